//! Runs a step: its output to the terminal and a log, its processor time with that of all descendants, and the processes that it leaves.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{Arguments, process};

/// How long descendants of a step that was asked to end may clean up.
const PATIENCE: Duration = Duration::from_secs(10);

/// The seconds that a step lasts at most where no limit is given: none lasts a whole CI run.
const LIMIT_S: usize = 3_600;

/// `forebay-gate step`.
pub(crate) fn command(arguments: &[String]) -> Result<bool, String> {
    let arguments = Arguments::parse(arguments, &["log", "result", "folder", "limit"], &[])?;
    let (log, result, folder) =
        (arguments.wanted("log")?, arguments.wanted("result")?, Path::new(arguments.wanted("folder")?));
    let limit = Duration::from_secs(arguments.number("limit", LIMIT_S)? as u64);
    let (program, rest) = arguments.rest.split_first().ok_or("no command")?;
    process::watch_signals();
    process::adopt_orphans();
    let begun = Instant::now();
    let absolute = std::fs::create_dir_all(folder).and_then(|()| folder.canonicalize());
    let absolute = absolute.map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut succeeded = run(Command::new(program).args(rest).env("TMPDIR", &absolute), Path::new(log), limit)
        .map_err(|error| format!("{program}: {error}"))?;
    let left: Vec<_> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
    if !left.is_empty() && process::asked_to_end().is_none() {
        let text = format!("error: the step left files in its TMPDIR {}: {left:?}\n", absolute.display());
        print!("{text}");
        let _ = File::options().append(true).open(log).and_then(|mut log| log.write_all(text.as_bytes()));
        succeeded = false;
    }
    let _ = std::fs::remove_dir_all(folder);
    let verdict = if succeeded { "ok" } else { "FAILED" };
    let line =
        format!("{verdict} {} {}\n", begun.elapsed().as_secs(), process::processor_of_children().as_secs());
    std::fs::write(result, line).map_err(|error| format!("{result}: {error}"))?;
    Ok(succeeded)
}

fn run(command: &mut Command, log: &Path, limit: Duration) -> std::io::Result<bool> {
    let (reader, writer) = std::io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer);
    let pid = process::start(command)?;
    // Its ends of the pipe are the step's own from now on.
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let copy = {
        let log = File::create(log)?;
        std::thread::spawn(move || copy(reader, log))
    };
    let end = process::wait(pid, limit, PATIENCE)?.end;
    let left = end_descendants();
    let mut log = copy.join().unwrap_or(None);
    let mut reasons: Vec<String> =
        left.iter().map(|name| format!("the step left a process running: {name}")).collect();
    if end == process::End::Late {
        reasons.push(format!("stopped after {} s", limit.as_secs()));
    }
    for reason in reasons {
        let line = format!("error: {reason}\n");
        print!("{line}");
        if let Some(log) = &mut log {
            let _ = log.write_all(line.as_bytes());
        }
    }
    Ok(end == process::End::Exit(0) && left.is_empty())
}

/// Ends all descendants, and returns the names of those that were not about to end by themselves.
fn end_descendants() -> Vec<String> {
    let begun = Instant::now();
    let mut names = Vec::new();
    loop {
        while process::reap_any() {}
        let children = process::children();
        if children.is_empty() {
            return names;
        }
        if begun.elapsed() > process::GRACE {
            for (pid, name) in children {
                process::kill(pid, libc::SIGKILL);
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Copies until the last writer has closed. Returns the log.
fn copy(mut from: impl Read, mut log: File) -> Option<File> {
    let mut buffer = [0; 16 << 10];
    let mut terminal = std::io::stdout();
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Some(log),
            Ok(length) => {
                let _ = terminal.write_all(&buffer[..length]).and_then(|()| terminal.flush());
                log.write_all(&buffer[..length]).ok()?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return Some(log),
        }
    }
}
