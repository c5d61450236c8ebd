//! Looks for tests that fail by chance: each runs many times while other processes keep the processors and the disk busy.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::run::{MARK, Place, Report, Test, WITH_VALUE, choose, repeated, run_all};
use crate::{Arguments, process};

/// Processes that do nothing but compute.
const BUSY: usize = 8;

/// `forebay-gate steady`: continues where an earlier run of the same programs has ended.
pub(crate) fn command(arguments: &[String]) -> Result<bool, String> {
    let mut arguments = Arguments::parse(arguments, &WITH_VALUE, &["include-ignored"])?;
    arguments.flags.push("all".to_owned());
    let mut chosen = choose(&arguments)?;
    let runs = arguments.number("runs", 20)?;
    let work = PathBuf::from(arguments.wanted("work")?);
    let place = Place::new(&work, Vec::new())?;
    let done_file = work.join("steady");
    let done = read_done(&done_file, &version(&chosen.tests));
    process::watch_signals();
    process::adopt_orphans();
    // Busy processes leave a test a small part of its usual time; what hangs is still seen.
    chosen.rules = chosen.rules.slower(4);
    let mut wanted = repeated(&chosen, runs);
    let mut passed_before = done.clone();
    wanted.retain(|test| match passed_before.get_mut(&test.id) {
        Some(left) if *left > 0 => {
            *left -= 1;
            false
        }
        _ => true,
    });
    println!(
        "{} runs of {} tests, {} of them passed earlier",
        wanted.len(),
        chosen.tests.len(),
        done.values().sum::<usize>()
    );
    let busy = begin_load(&work)?;
    let record = Mutex::new(
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(&done_file)
            .map_err(|error| format!("{}: {error}", done_file.display()))?,
    );
    let ended = |test: &Test, report: &Report| {
        if report.failure.is_some() {
            if process::asked_to_end().is_none() {
                println!("{}", place.explain(test, report));
            }
        } else if let Ok(mut record) = record.lock() {
            let _ = writeln!(record, "{}", report.id);
        }
    };
    let (alone, beside): (Vec<&Test>, Vec<&Test>) =
        wanted.iter().partition(|test| chosen.rules.alone(&test.id));
    let lanes = arguments.number("lanes", 4)?;
    let mut reports = run_all(&place, &beside, &chosen.rules, lanes, &ended);
    reports.extend(run_all(&place, &alone, &chosen.rules, 1, &ended));
    for pid in busy {
        process::kill_group(pid);
        while !process::reap_any() {
            std::thread::yield_now();
        }
    }
    if process::asked_to_end().is_some() {
        println!("ended; the same command goes on from here");
        return Ok(false);
    }
    let mut failures: HashMap<&str, usize> = HashMap::new();
    for report in reports.iter().filter(|report| report.failure.is_some()) {
        *failures.entry(&report.id).or_default() += 1;
    }
    let mut failed: Vec<_> = failures.into_iter().collect();
    failed.sort_unstable();
    for (id, times) in &failed {
        println!("failed {times} times: {id}");
    }
    println!("\n{} passed, {} failed", chosen.tests.len() - failed.len(), failed.len());
    Ok(failed.is_empty())
}

/// Names the programs that were built: another build starts anew.
fn version(tests: &[Test]) -> String {
    let mut paths: Vec<String> = tests
        .iter()
        .map(|test| {
            let time = std::fs::metadata(&test.program.path).and_then(|metadata| metadata.modified());
            format!("{} {time:?}", test.program.path.display())
        })
        .collect();
    paths.dedup();
    paths.join(", ")
}

/// How often each test has passed with these programs.
fn read_done(file: &Path, version: &str) -> HashMap<String, usize> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut done = HashMap::new();
    match text.split_once('\n') {
        Some((first, rest)) if first == version => {
            for id in rest.lines() {
                *done.entry(id.to_owned()).or_default() += 1;
            }
        }
        _ => drop(std::fs::write(file, format!("{version}\n"))),
    }
    done
}

fn begin_load(work: &Path) -> Result<Vec<u32>, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let kinds = std::iter::repeat_n("cpu", BUSY).chain(["disk"]);
    kinds
        .map(|kind| {
            let mut command = Command::new(&program);
            command.arg("load").arg(kind).arg(work).env(MARK, "");
            process::start(&mut command).map_err(|error| format!("load {kind}: {error}"))
        })
        .collect()
}

/// `forebay-gate load`: keeps a processor busy, or the disk under a folder, until it is killed.
pub(crate) fn load(arguments: &[String]) -> Result<bool, String> {
    match arguments {
        [kind, _] if kind == "cpu" => loop {
            std::hint::spin_loop();
        },
        [kind, folder] if kind == "disk" => {
            write_for_ever(Path::new(folder)).map_err(|error| format!("{folder}: {error}"))?;
            Ok(true)
        }
        _ => Err("load wants `cpu` or `disk`, and a folder".to_owned()),
    }
}

/// Writes 1 MiB after the other, each through to the device. The file has no name, so nothing stays.
fn write_for_ever(folder: &Path) -> std::io::Result<()> {
    const LENGTH: u64 = 64 << 20;
    let file: File = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE | libc::O_DSYNC)
        .open(folder)?;
    let bytes = vec![0xA5_u8; 1 << 20];
    let mut at = 0;
    loop {
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, at)?;
        at = (at + bytes.len() as u64) % LENGTH;
    }
}
