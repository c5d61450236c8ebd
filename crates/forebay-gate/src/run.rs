//! Runs tests, each in a separate process with a folder for its files, several at a time.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::process::{self, End};
use crate::programs::{self, Program};
use crate::rules::Rules;
use crate::{Arguments, glob};

/// The variable that names the folder of a test to its descendants. All that this program starts has it; a process without it may
/// be amid `execve`.
pub(crate) const MARK: &str = "FOREBAY_GATE_TEST";

/// A test, and the program that has it.
#[derive(Debug, Clone)]
pub(crate) struct Test {
    pub(crate) program: Program,
    pub(crate) name: String,
    pub(crate) id: String,
}

/// How a run of a test ended.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) id: String,
    pub(crate) wall: Duration,
    pub(crate) processor: Duration,
    /// Why it failed.
    pub(crate) failure: Option<String>,
    /// Lines about parts that it left out.
    skipped: Vec<String>,
}

/// Where tests run.
#[derive(Debug)]
pub(crate) struct Place {
    /// Folders for files of tests, one for each lane.
    files: PathBuf,
    /// The output of tests that failed.
    pub(crate) logs: PathBuf,
    /// Arguments for each test program.
    arguments: Vec<String>,
}

impl Place {
    /// # Errors
    ///
    /// A folder cannot be made.
    pub(crate) fn new(work: &Path, arguments: Vec<String>) -> Result<Self, String> {
        // Tests run in the folder of their crate.
        let work = std::path::absolute(work).map_err(|error| format!("{}: {error}", work.display()))?;
        let place = Self { files: work.join("t"), logs: work.join("logs"), arguments };
        // The output of tests that failed in an earlier step stays.
        let _ = std::fs::remove_dir_all(&place.files);
        for folder in [&place.files, &place.logs] {
            std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        Ok(place)
    }

    /// Runs a test. Anything that it leaves behind is a failure: processes, and files in its folder.
    pub(crate) fn run(&self, test: &Test, lane: usize, limit: Duration) -> Report {
        let folder = self.files.join(lane.to_string());
        // Of the lane too: `steady` runs one test in several lanes concurrently.
        let log = folder.with_extension("log");
        let begun = Instant::now();
        let (outcome, mut failure) = match self.start_and_wait(test, &log, &folder, limit) {
            Ok(outcome) => {
                let failure = match outcome.end {
                    End::Exit(0) => None,
                    End::Exit(status) => Some(format!("exit status {status}")),
                    End::Signal(signal) => Some(format!("signal {signal}")),
                    End::Late => Some(format!(
                        "stopped after {} s: it hangs. Its threads:\n  {}",
                        limit.as_secs(),
                        outcome.threads.join("\n  ")
                    )),
                    End::Asked => Some("the run was ended".to_owned()),
                };
                (Some(outcome), failure)
            }
            Err(error) => (None, Some(format!("it does not run: {error}"))),
        };
        for (pid, name) in process::children() {
            if process::variable_of(pid, MARK).as_deref() == folder.to_str() && !process::is_about_to_end(pid)
            {
                process::kill(pid, libc::SIGKILL);
                failure.get_or_insert_with(|| format!("it left a process running: {name}"));
            }
        }
        let left = names_in(&folder);
        if std::fs::remove_dir_all(&folder).is_err() && folder.exists() {
            failure.get_or_insert_with(|| {
                format!("its folder {} cannot be removed: is something mounted there?", folder.display())
            });
        } else if !left.is_empty() {
            failure.get_or_insert_with(|| format!("it left files in its TMPDIR: {}", left.join(", ")));
        }
        let skipped = skipped_in(&log);
        match &failure {
            None => drop(std::fs::remove_file(&log)),
            Some(why) => drop(
                File::options()
                    .append(true)
                    .open(&log)
                    .and_then(|mut file| writeln!(file, "\n{}: {why}", test.id))
                    .and_then(|()| std::fs::rename(&log, self.log_of(test))),
            ),
        }
        let processor = outcome.map_or(Duration::ZERO, |outcome| outcome.processor);
        Report { id: test.id.clone(), wall: begun.elapsed(), processor, failure, skipped }
    }

    fn start_and_wait(
        &self,
        test: &Test,
        log: &Path,
        folder: &Path,
        limit: Duration,
    ) -> std::io::Result<process::Outcome> {
        std::fs::create_dir_all(folder)?;
        let mut command = Command::new(&test.program.path);
        command
            .args(["--exact", &test.name, "--nocapture", "--include-ignored"])
            .args(&self.arguments)
            .current_dir(&test.program.folder)
            .env("CARGO_PKG_NAME", &test.program.package)
            .env("CARGO_MANIFEST_DIR", &test.program.folder)
            .env("TMPDIR", folder)
            .env(MARK, folder);
        process::output_to(&mut command, File::create(log)?)?;
        let pid = process::start(&mut command)?;
        process::wait(pid, limit, Duration::ZERO)
    }

    /// Where the output of a test is kept that failed.
    fn log_of(&self, test: &Test) -> PathBuf {
        self.logs.join(test.id.replace(['/', ':'], "_"))
    }

    /// The lines of a failed test that its reader must see, and the command that repeats it.
    pub(crate) fn explain(&self, test: &Test, report: &Report) -> String {
        let log = self.log_of(test);
        let text = std::fs::read(&log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let telling =
            |line: &str| line.contains("panicked at") || line.contains("seed") || line.starts_with("error");
        let mut wanted: Vec<usize> = Vec::new();
        for (number, line) in lines.iter().enumerate() {
            if telling(line) {
                wanted.extend(number..(number + 4).min(lines.len()));
            }
        }
        wanted.extend(lines.len().saturating_sub(12)..lines.len());
        wanted.sort_unstable();
        wanted.dedup();
        let first = wanted.len().saturating_sub(40);
        let shown: Vec<String> = wanted[first..]
            .iter()
            .map(|number| format!("    {}", lines[*number].chars().take(300).collect::<String>()))
            .collect();
        format!(
            "FAILED {}: {}\n{}\n    all of it: {}\n    again: cargo test {} --all-features -- --exact {}\n",
            report.id,
            report.failure.as_deref().unwrap_or_default(),
            shown.join("\n"),
            log.display(),
            test.program.cargo_options(),
            test.name
        )
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Lines about parts that a test left out.
fn skipped_in(log: &Path) -> Vec<String> {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines()
        .filter(|line| line.contains("SKIPPED"))
        .map(|line| line.chars().take(200).collect())
        .collect()
}

/// Runs the tests in this many lanes, in their order. Reports arrive as the tests end; `ended` may print.
pub(crate) fn run_all(
    place: &Place,
    tests: &[&Test],
    rules: &Rules,
    lanes: usize,
    ended: &(dyn Fn(&Test, &Report) + Sync),
) -> Vec<Report> {
    let next = AtomicUsize::new(0);
    let reports = Mutex::new(Vec::with_capacity(tests.len()));
    std::thread::scope(|scope| {
        for lane in 0..lanes.max(1) {
            let (next, reports) = (&next, &reports);
            scope.spawn(move || {
                while process::asked_to_end().is_none() {
                    let Some(test) = tests.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                    let report = place.run(test, lane, Duration::from_secs(rules.limit_s(&test.id)));
                    ended(test, &report);
                    if let Ok(mut reports) = reports.lock() {
                        reports.push(report);
                    }
                }
            });
        }
    });
    reports.into_inner().unwrap_or_default()
}

/// The tests of a command line.
#[derive(Debug)]
pub(crate) struct Selection {
    pub(crate) tests: Vec<Test>,
    pub(crate) rules: Rules,
    /// Tests in all programs, chosen or not.
    pub(crate) all: usize,
}

/// # Errors
///
/// The messages or the rules cannot be read, a program does not start, or a rule describes no test.
pub(crate) fn choose(arguments: &Arguments) -> Result<Selection, String> {
    let rules = match arguments.value("rules") {
        None => Rules::default(),
        Some(file) => {
            Rules::parse(&std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?)?
        }
    };
    let (only, skip) = (arguments.all("only"), arguments.all("skip"));
    let mut tests = Vec::new();
    for program in programs::in_messages(Path::new(arguments.wanted("messages")?))? {
        for name in programs::tests(&program, arguments.flag("include-ignored"))? {
            tests.push(Test { id: program.id(&name), program: program.clone(), name });
        }
    }
    let all = tests.len();
    let ids: Vec<&str> = tests.iter().map(|test| test.id.as_str()).collect();
    if arguments.flag("check-rules") && !rules.stale(&ids).is_empty() {
        return Err(format!("these rules describe no test: {}", rules.stale(&ids).join(", ")));
    }
    tests.retain(|test| {
        (only.is_empty() || glob::any(&only, &test.id))
            && !glob::any(&skip, &test.id)
            && (arguments.flag("all") || !rules.only_with_all(&test.id))
    });
    if tests.is_empty() {
        return Err(format!("none of {all} tests is described by {}", only.join(", ")));
    }
    // Long tests first, or one lane would be busy long after the others. The rest in turn of their programs, as the tests of one
    // program are alike in what they wait for.
    tests.sort_by_key(|test| !rules.first(&test.id));
    Ok(Selection { tests, rules, all })
}

pub(crate) const WITH_VALUE: [&str; 8] =
    ["messages", "work", "rules", "lanes", "only", "skip", "runs", "times"];

/// `forebay-gate tests`.
pub(crate) fn command(arguments: &[String]) -> Result<bool, String> {
    let arguments =
        Arguments::parse(arguments, &WITH_VALUE, &["all", "include-ignored", "list", "check-rules"])?;
    let chosen = choose(&arguments)?;
    if arguments.flag("list") {
        chosen.tests.iter().for_each(|test| println!("{}", test.id));
        return Ok(true);
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    // Tests wait for the disk about as long as they run.
    let lanes = arguments.number("lanes", processors * 2)?;
    let place = Place::new(Path::new(arguments.wanted("work")?), arguments.rest.clone())?;
    process::watch_signals();
    process::adopt_orphans();
    println!("{} of {} tests, {lanes} at once", chosen.tests.len(), chosen.all);
    let begun = Instant::now();
    let (alone, beside): (Vec<&Test>, Vec<&Test>) =
        chosen.tests.iter().partition(|test| chosen.rules.alone(&test.id));
    let failures = Mutex::new(Vec::new());
    let ended = |test: &Test, report: &Report| {
        for line in &report.skipped {
            println!("{}: {line}", report.id);
        }
        if report.failure.is_some() {
            let text = place.explain(test, report);
            println!("{text}");
            if let Ok(mut failures) = failures.lock() {
                failures.push(text);
            }
        }
    };
    let mut reports = run_all(&place, &beside, &chosen.rules, lanes, &ended);
    let together = begun.elapsed();
    reports.extend(run_all(&place, &alone, &chosen.rules, 1, &ended));
    summary(&mut reports, together, begun.elapsed());
    if let Some(file) = arguments.value("times") {
        write_times(file, &reports).map_err(|error| format!("{file}: {error}"))?;
    }
    let _ = std::fs::remove_dir_all(&place.files);
    let failed = reports.iter().filter(|report| report.failure.is_some()).count();
    let left_out = chosen.tests.len() - reports.len();
    println!("\n{} passed, {failed} failed", reports.len() - failed);
    if left_out > 0 {
        println!("{left_out} did not run, as the run was ended");
    }
    Ok(failed == 0 && left_out == 0)
}

fn summary(reports: &mut [Report], together: Duration, wall: Duration) {
    let mut programs: Vec<(String, usize, Duration)> = Vec::new();
    for report in reports.iter() {
        let name = report.id.split("::").next().unwrap_or_default();
        match programs.iter_mut().find(|(given, _, _)| given == name) {
            Some((_, count, processor)) => {
                *count += 1;
                *processor += report.processor;
            }
            None => programs.push((name.to_owned(), 1, report.processor)),
        }
    }
    programs.sort_by_key(|(_, _, processor)| std::cmp::Reverse(*processor));
    println!("\n  tests  processor  program");
    for (name, count, processor) in &programs {
        println!("{count:>7} {:>8.1} s  {name}", processor.as_secs_f64());
    }
    reports.sort_by_key(|report| std::cmp::Reverse(report.wall));
    println!("\n   took  processor  longest tests");
    for report in reports.iter().take(15) {
        println!(
            "{:>5.1} s {:>8.1} s  {}",
            report.wall.as_secs_f64(),
            report.processor.as_secs_f64(),
            report.id
        );
    }
    let processor: Duration = reports.iter().map(|report| report.processor).sum();
    println!(
        "\n{:.0} s of processor time in {:.0} s, the last {:.0} of them for tests that are alone",
        processor.as_secs_f64(),
        wall.as_secs_f64(),
        (wall - together).as_secs_f64()
    );
}

fn write_times(file: &str, reports: &[Report]) -> std::io::Result<()> {
    let mut out = File::create(file)?;
    for report in reports {
        writeln!(
            out,
            "{:.3}\t{:.3}\t{}",
            report.wall.as_secs_f64(),
            report.processor.as_secs_f64(),
            report.id
        )?;
    }
    Ok(())
}

/// The tests in the order in which `steady` runs them, each as often as its rule says.
pub(crate) fn repeated(chosen: &Selection, runs: usize) -> VecDeque<&Test> {
    let most = chosen.tests.iter().map(|test| chosen.rules.runs(&test.id, runs)).max().unwrap_or(0);
    let mut all = VecDeque::new();
    for round in 0..most {
        all.extend(chosen.tests.iter().filter(|test| round < chosen.rules.runs(&test.id, runs)));
    }
    all
}
