//! A measurement from start to end: of a command, or of a process that runs already.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::launch::StoppedChild;
use crate::object::Tracer;
use crate::pressure::Group;
use crate::report::{Parts, Report};

/// Whether a measurement continues after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PauseOutcome {
    /// The time is not up and nothing happened: check again.
    Going,
    /// The user requested the end.
    Asked,
}

/// Runs `command` (its program and arguments) to its end, measures it, and returns the report. `started` receives the process's
/// number as soon as it is known, for signals to be forwarded. Without the privileges for BPF the figures are those of a cgroup for
/// the command.
///
/// # Errors
/// [`Error::Unavailable`] when neither way works, [`Error::NotStarted`], [`Error::Failed`].
pub fn run(command: &[OsString], started: impl FnOnce(u32)) -> Result<Report, Error> {
    let mut parts = Parts {
        command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        ..Parts::default()
    };
    let group = Group::create();
    let tracer = match (Tracer::load(true), &group) {
        (Ok(tracer), _) => Some(tracer),
        (Err(error @ Error::Unavailable { .. }), Ok(_)) => {
            parts.notes.push(format!(
                "only the kernel's pressure figures of the command's cgroup, without files and calls: {error}"
            ));
            None
        }
        (Err(Error::Unavailable { what, remedy }), Err(refused)) => {
            return Err(Error::Unavailable {
                what: format!("{what}, and no cgroup could be made for the command ({refused})"),
                remedy,
            });
        }
        (Err(error), _) => return Err(error),
    };
    let mut tracer = tracer;
    let held = StoppedChild::new(command, group.as_ref().ok())?;
    let pid = held.pid;
    parts.pid = pid;
    if let Some(tracer) = &mut tracer {
        tracer.follow(pid, &[pid])?;
    }
    started(pid);
    let begun = Instant::now();
    let mut child = held.release()?;
    let status = child.wait().map_err(Error::failed("the command cannot be waited for"))?;
    parts.wall_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    match &group {
        Ok(group) => parts.stalled = group.stalled().ok(),
        Err(error) => parts.notes.push(format!(
            "not compared with the kernel's io.pressure: no cgroup can be made for the command ({error})"
        )),
    }
    let mut report = finished(tracer, parts)?;
    report.exit_code = status.code();
    report.signal = ExitStatus::signal(&status);
    Ok(report)
}

/// Measures process `pid` and the processes that it starts, for `duration` at most, and returns the report.
/// `pause` waits for the time that it receives, and may end the measurement.
///
/// # Errors
/// [`Error::NoProcess`], [`Error::Unavailable`], [`Error::Failed`].
pub fn watch(
    pid: u32,
    duration: Duration,
    mut pause: impl FnMut(Duration) -> PauseOutcome,
) -> Result<Report, Error> {
    const LOOK: Duration = Duration::from_millis(20);
    if !exists(pid) {
        return Err(Error::NoProcess(pid));
    }
    let mut tracer = Tracer::load(false)?;
    tracer.follow(pid, &with_descendants(pid))?;
    let begun = Instant::now();
    let mut parts = Parts { pid, command: command_of(pid), ..Parts::default() };
    loop {
        let left = duration.saturating_sub(begun.elapsed());
        if left.is_zero() {
            break;
        }
        if !exists(pid) {
            parts.notes.push("the process ended before the time was up".to_owned());
            break;
        }
        if pause(left.min(LOOK)) == PauseOutcome::Asked {
            parts.notes.push("the measurement was ended before the time was up".to_owned());
            break;
        }
    }
    let report = finished(Some(tracer), parts)?;
    // The process ended while the programs were loaded: nothing of it was measured.
    if report.threads == 0 { Err(Error::NoProcess(pid)) } else { Ok(report) }
}

fn finished(tracer: Option<Tracer>, mut parts: Parts) -> Result<Report, Error> {
    let Some(tracer) = tracer else { return Ok(Report::of_pressure(parts)) };
    if !tracer.missing.is_empty() {
        parts.notes.push(format!("this kernel has no tracepoint {}", tracer.missing.join(", ")));
    }
    parts.misses_rings = tracer.misses_rings();
    let totals = tracer.finish()?;
    if totals.clock.lost_files + totals.clock.lost_ops > 0 {
        parts.notes.push("there was no room for some files or operations; `lost` counts them".to_owned());
    }
    Ok(Report::new(parts, totals))
}

/// Returns whether the process runs. One that has ended, and whose exit code was not collected yet, does not;
/// a thread is not a process.
fn exists(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    field("Tgid:") == Some(pid.to_string().as_str())
        && field("State:").is_some_and(|state| !state.starts_with(['Z', 'X']))
}

fn command_of(pid: u32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    bytes
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

/// Returns the process and all its present descendants.
fn with_descendants(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(process) = all.get(next).copied() {
        next += 1;
        let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace().filter_map(|number| number.parse().ok()) {
                if !all.contains(&child) {
                    all.push(child);
                }
            }
        }
    }
    all
}
