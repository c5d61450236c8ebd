//! Runs one sample in a fresh child process and collects its result.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;

use crate::CHILD_SUBCOMMAND;
use crate::cgroup::Group;
use crate::cleanup::Cleanup;
use crate::job::Job;
use crate::start_barrier::{self, READY};

/// The excess over its requested time after which a child counts as hung.
const GRACE: Duration = Duration::from_secs(60);

/// The time for which a ready sample waits for those of other hosts.
const OTHERS: Duration = Duration::from_secs(300);

/// Called when a sample is ready; returns its start.
pub(super) type Begin<'a> = dyn FnMut() -> anyhow::Result<u64> + 'a;

/// Reads the job of this process, the child, from its input; `None` for a [`probe`]. With `start_line` it starts at the instant that
/// it reads there next.
///
/// # Errors
/// Fails when the line is not one that this program wrote.
pub(super) fn job_here(input: &mut impl BufRead, start_line: bool) -> anyhow::Result<Option<Job>> {
    let mut line = String::new();
    input.read_line(&mut line).context("the job cannot be read")?;
    let job: Job = serde_json::from_str(&line)
        .context("this subcommand is for the program itself; use `forebay measure` instead")?;
    // A child must not continue to read after the program was killed.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    if job.experiment.is_empty() {
        return Ok(None);
    }
    if start_line {
        start_barrier::arm();
    }
    Ok(Some(job))
}

/// Runs a child that does nothing in `group`.
///
/// # Errors
/// Fails when this process may not put a child there.
pub(super) fn probe(group: &Group, cleanup: &Cleanup) -> anyhow::Result<()> {
    run_child(&Job::new("", "/", &(), 0.0)?, Some(group), cleanup).map(drop)
}

/// Runs a child to its end, in `group` if given, and returns its output.
///
/// # Errors
/// Fails with the child's message before it failed, or because it had to be ended.
pub(super) fn run_child(job: &Job, group: Option<&Group>, cleanup: &Cleanup) -> anyhow::Result<String> {
    run_child_at(job, group, cleanup, None)
}

/// Runs a child that starts at the instant returned by `start`, if given.
///
/// # Errors
/// As for [`run_child`], and with the error of `start`.
pub(super) fn run_child_at(
    job: &Job,
    group: Option<&Group>,
    cleanup: &Cleanup,
    start: Option<&mut Begin<'_>>,
) -> anyhow::Result<String> {
    let procs_file =
        group.map(Group::procs_file).transpose().context("no process can be moved into the memory cgroup")?;
    let mut command = command()?;
    if start.is_some() {
        command.arg("--start-line");
    }
    if let Some(procs_file) = procs_file {
        enter_on_spawn(&mut command, procs_file);
    }
    // Shared with the signal handler and the watchdog: Child records whether it was waited for already, a
    // bare process number does not.
    let child = Arc::new(Mutex::new(None));
    let doomed = Arc::clone(&child);
    let spawned = cleanup.create(
        || {
            *lock(&child) = Some(command.spawn()?);
            Ok(())
        },
        move || end(&doomed),
    );
    let ((), _guard) = spawned.context("the measuring child could not be started")?;
    let (mut stdin, stdout, mut stderr) = {
        let mut held = lock(&child);
        let running = held.as_mut().context("the child has just been started")?;
        (
            running.stdin.take().context("its input is piped")?,
            running.stdout.take().context("its output is piped")?,
            running.stderr.take().context("its errors are piped")?,
        )
    };
    let (done, watch) = mpsc::channel::<()>();
    let patience = if start.is_some() { OTHERS } else { Duration::ZERO };
    let limit = GRACE + Duration::from_secs_f64(job.seconds_max) + patience;
    let watched = Arc::clone(&child);
    let watchdog = std::thread::spawn(move || {
        let late = watch.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
        if late {
            end(&watched);
        }
        late
    });
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    });
    let mut stdout = BufReader::new(stdout);
    let started = pass_job(&mut stdin, job)
        .and_then(|()| start.map_or(Ok(()), |start| pass_start(start, &mut stdin, &mut stdout)));
    if started.is_err() {
        end(&child);
    }
    let mut text = String::new();
    let read = stdout.read_to_string(&mut text);
    drop(done);
    let late = watchdog.join().unwrap_or(false);
    let message = errors.join().ok().and_then(Result::ok).unwrap_or_default();
    let status = lock(&child).as_mut().context("the child has been started")?.wait()?;
    anyhow::ensure!(!late, "the sample did not end within {} s and was stopped", limit.as_secs());
    started?;
    read?;
    if status.success() {
        return Ok(text);
    }
    let message = message.trim().trim_start_matches("forebay: ");
    if message.is_empty() {
        anyhow::bail!(
            "the measuring child ended with {status}; a memory limit that is too small is one reason"
        );
    }
    anyhow::bail!("{message}")
}

/// Starts a child that is ready. A child that ends before that reports the reason itself.
fn pass_start(
    start: &mut Begin<'_>,
    stdin: &mut ChildStdin,
    stdout: &mut BufReader<ChildStdout>,
) -> anyhow::Result<()> {
    let mut line = String::new();
    stdout.read_line(&mut line)?;
    if line.trim_end() == READY {
        let at_ns = start()?;
        // A child that has ended meanwhile is noticed by its status.
        let _ = writeln!(stdin, "{at_ns}");
    }
    Ok(())
}

/// Returns the command of a child, which waits for its job.
///
/// # Errors
/// The program's file is not known.
pub(super) fn command() -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("the path of this program's file is not known")?;
    let mut command = Command::new(program);
    command.arg(CHILD_SUBCOMMAND).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// Writes a job to its child. A job has any length, and the kernel limits an argument to 128 KiB.
///
/// # Errors
/// The job has no JSON.
pub(super) fn pass_job(stdin: &mut ChildStdin, job: &Job) -> anyhow::Result<()> {
    let line = serde_json::to_string(job)? + "\n";
    // A child that has ended meanwhile is noticed by its status.
    let _ = stdin.write_all(line.as_bytes());
    Ok(())
}

/// Moves the child into the group between fork and exec, so that all of its memory is charged there.
fn enter_on_spawn(command: &mut Command, procs_file: File) {
    let enter = move || {
        // "0" stands for the process that writes it.
        rustix::io::write(&procs_file, b"0").map(drop).map_err(io::Error::from)
    };
    // SAFETY: between fork and exec the closure makes one write system call on a descriptor opened before the fork; it allocates
    // nothing and acquires no lock (an errno becomes an io::Error without allocating).
    unsafe { command.pre_exec(enter) };
}

fn end(child: &Mutex<Option<Child>>) {
    if let Some(child) = lock(child).as_mut() {
        // Both fail only when the child has ended already.
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn lock(child: &Mutex<Option<Child>>) -> MutexGuard<'_, Option<Child>> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    // The test binary is not the program, so only the code around the child can be tested here. The samples themselves are
    // tested in their experiments, and the whole by the program's own tests.
    #[test]
    fn a_foreign_text_is_refused() {
        for mut text in ["", "{}\n", "not JSON"].map(str::as_bytes) {
            assert!(job_here(&mut text, false).is_err());
        }
    }

    #[test]
    fn ending_a_child_twice_is_harmless() {
        let child = Command::new("sleep").arg("600").spawn().expect("sleep is everywhere");
        let child = Mutex::new(Some(child));
        end(&child);
        end(&child);
        let status = lock(&child).as_mut().expect("still there").wait().expect("remembered");
        assert!(!status.success());
    }
}
