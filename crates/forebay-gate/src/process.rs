//! Child processes: a child in its own process group, watched until it ends or its time is over, and the descendants that it
//! leaves.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// The last parts of a pipeline end a moment after the first process, and so does a process that a test has killed.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// A signal that asked this program to end, or 0.
static ASKED: AtomicI32 = AtomicI32::new(0);

extern "C" fn remember(signal: libc::c_int) {
    ASKED.store(signal, Ordering::Relaxed);
}

/// From now on SIGINT, SIGTERM and SIGHUP are only recorded, so that nothing is left behind after a signal.
pub(crate) fn watch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the action is a valid structure whose handler only stores to an atomic.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = remember as *const () as libc::sighandler_t;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// The signal that asked this program to end.
pub(crate) fn asked_to_end() -> Option<i32> {
    match ASKED.load(Ordering::Relaxed) {
        0 => None,
        signal => Some(signal),
    }
}

/// Descendants whose parents end become children of this process instead of init's, so that all of them are found.
pub(crate) fn adopt_orphans() {
    // SAFETY: passes no pointer.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Exit(i32),
    Signal(i32),
    /// It was killed, as its time was over.
    Late,
    /// It was killed, as this program was asked to end.
    Asked,
}

#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) end: End,
    /// Of the process and its descendants that were waited for.
    pub(crate) processor: Duration,
    /// Where its threads were when its time was over.
    pub(crate) threads: Vec<String>,
}

/// Starts the command in a new process group. It gets SIGKILL if the calling thread ends first.
///
/// # Errors
///
/// The program does not start.
pub(crate) fn start(command: &mut Command) -> io::Result<u32> {
    // SAFETY: between fork and exec only async-signal-safe calls are made.
    unsafe {
        command.process_group(0).pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            Ok(())
        });
    }
    Ok(command.stdin(Stdio::null()).spawn()?.id())
}

/// Waits for a child that `start` has started, for `limit` at most. When this program is asked to end, the child's group is, too,
/// and has `patience` to do so in order. Then the whole group is killed in any case.
///
/// # Errors
///
/// The kernel has no pidfd, or the process is not a child.
pub(crate) fn wait(pid: u32, limit: Duration, patience: Duration) -> io::Result<Outcome> {
    let begun = Instant::now();
    let watched = pidfd(pid)?;
    let mut threads = Vec::new();
    let mut killed = None;
    // Wakes now and then, as a signal may reach another thread.
    while !readable(&watched, limit.saturating_sub(begun.elapsed()).min(Duration::from_millis(200))) {
        if let Some(signal) = asked_to_end() {
            signal_group(pid, signal);
            readable(&watched, patience);
            killed = Some(End::Asked);
        } else if begun.elapsed() >= limit {
            threads = positions(pid);
            killed = Some(End::Late);
        } else {
            continue;
        }
        break;
    }
    kill_group(pid);
    let (status, processor) = reap(pid)?;
    let end = killed.unwrap_or(if libc::WIFEXITED(status) {
        End::Exit(libc::WEXITSTATUS(status))
    } else {
        End::Signal(libc::WTERMSIG(status))
    });
    Ok(Outcome { end, processor, threads })
}

pub(crate) fn kill_group(pid: u32) {
    signal_group(pid, libc::SIGKILL);
}

fn signal_group(pid: u32, signal: i32) {
    // SAFETY: passes no pointer. The group has the number of a process that was not reaped yet, and stays its own till then.
    unsafe { libc::kill(-pid.cast_signed(), signal) };
}

pub(crate) fn kill(pid: u32, signal: i32) {
    // SAFETY: passes no pointer.
    unsafe { libc::kill(pid.cast_signed(), signal) };
}

/// Whether the process ends within [`GRACE`], for which this waits at most.
pub(crate) fn is_about_to_end(pid: u32) -> bool {
    pidfd(pid).map_or_else(|_| has_ended(pid), |process| readable(&process, GRACE))
}

fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: passes no pointer.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match i32::try_from(fd) {
        // SAFETY: the descriptor is new, and owned here alone.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn readable(fd: &OwnedFd, limit: Duration) -> bool {
    let begun = Instant::now();
    loop {
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let left = limit.saturating_sub(begun.elapsed());
        let left = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the structure is valid and one is named.
        let count = unsafe { libc::poll(&raw mut poll, 1, left) };
        // A signal interrupts the wait, and does not shorten it.
        if count >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return count > 0;
        }
    }
}

fn reap(pid: u32) -> io::Result<(i32, Duration)> {
    let mut status = 0;
    // SAFETY: a rusage of zeros is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers are to valid values.
        if unsafe { libc::wait4(pid.cast_signed(), &raw mut status, 0, &raw mut usage) } >= 0 {
            return Ok((status, processor(&usage)));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn processor(usage: &libc::rusage) -> Duration {
    [usage.ru_utime, usage.ru_stime]
        .iter()
        .map(|time| {
            Duration::from_secs(time.tv_sec.cast_unsigned())
                + Duration::from_micros(time.tv_usec.cast_unsigned())
        })
        .sum()
}

/// The processor time of all descendants that were waited for.
pub(crate) fn processor_of_children() -> Duration {
    // SAFETY: a rusage of zeros is valid, and the pointer is to it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    processor(&usage)
}

/// Reaps a child that has ended without a thread that waits for it: an orphan. Returns whether it reaped a child.
pub(crate) fn reap_any() -> bool {
    let mut status = 0;
    // SAFETY: the pointer is to a valid value.
    unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) > 0 }
}

/// The children of this process that run, with their names.
pub(crate) fn children() -> Vec<(u32, String)> {
    let mut all = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(list.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    all.retain(|pid| !has_ended(*pid));
    all.into_iter().map(|pid| (pid, name(pid))).collect()
}

/// Whether it only waits to be reaped.
fn has_ended(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.is_empty() || state.contains(") Z")
}

/// The command line of a process, shortened.
fn name(pid: u32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    let short: String = line.trim().chars().take(100).collect();
    if short.is_empty() {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
    } else {
        short
    }
}

/// The value of a variable in the process's initial environment. Amid `execve` a process has no environment or a part of one for a
/// moment, so a process without the variable is checked again, for [`GRACE`] at most.
pub(crate) fn variable_of(pid: u32, name: &str) -> Option<String> {
    let begun = Instant::now();
    loop {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        // What does not end with a zero was cut off.
        let whole =
            environment.split_inclusive(|byte| *byte == 0).filter_map(|entry| entry.strip_suffix(&[0]));
        let value = whole.filter_map(|entry| std::str::from_utf8(entry).ok()).find_map(|entry| {
            entry.split_once('=').filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        });
        if value.is_some() || has_ended(pid) || begun.elapsed() > GRACE {
            return value;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Name, state and place in the kernel of each thread.
fn positions(pid: u32) -> Vec<String> {
    let mut all = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let state = read("status")
            .lines()
            .find_map(|line| line.strip_prefix("State:").map(|state| state.trim().to_owned()));
        all.push(format!("{}: {}, {}", read("comm").trim(), state.unwrap_or_default(), read("wchan").trim()));
    }
    all
}

/// Redirects both outputs of a command to this file.
///
/// # Errors
///
/// The file cannot be opened twice.
pub(crate) fn output_to(command: &mut Command, file: File) -> io::Result<()> {
    command.stdout(file.try_clone()?).stderr(file);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &str, limit_ms: u64) -> Outcome {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        wait(start(&mut command).unwrap(), Duration::from_millis(limit_ms), Duration::ZERO).unwrap()
    }

    #[test]
    fn the_end_of_a_process_is_told_apart() {
        assert_eq!(shell("exit 3", 60_000).end, End::Exit(3));
        assert_eq!(shell("kill -TERM $$", 60_000).end, End::Signal(libc::SIGTERM));
        // On a busy machine the shell may not have become `sleep` yet.
        let mut limit_ms = 100;
        loop {
            let late = shell("exec sleep 1000", limit_ms);
            assert_eq!(late.end, End::Late);
            if late.threads.first().is_some_and(|thread| thread.starts_with("sleep: S")) {
                break;
            }
            limit_ms *= 2;
        }
    }

    #[test]
    fn processor_time_is_of_the_process_and_its_children() {
        let spent = shell("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done", 60_000).processor;
        assert!(spent > Duration::from_millis(5), "{spent:?}");
    }

    /// A process that a test had left was overlooked at the moment when its shell became `sleep`: it had no environment.
    #[test]
    fn a_variable_is_found_amid_exec() {
        let dir = tempfile::tempdir().unwrap();
        let again = dir.path().join("again");
        std::fs::write(&again, format!("exec /bin/sh {}", again.display())).unwrap();
        let mut command = Command::new("/bin/sh");
        let pid = start(command.arg(&again).env("MARK", "1")).unwrap();
        let overlooked = (0..3_000).filter(|_| variable_of(pid, "MARK").as_deref() != Some("1")).count();
        kill_group(pid);
        assert_eq!(overlooked, 0);
        while !has_ended(pid) {
            std::thread::yield_now();
        }
        assert_eq!(variable_of(pid, "MARK"), None);
        reap(pid).unwrap();
    }

    /// A process that outlives the test that started it would run during the tests after it.
    #[test]
    fn the_group_ends_with_its_leader() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        assert_eq!(shell(&format!("sleep 1000 & echo $! >{}", file.display()), 60_000).end, End::Exit(0));
        let pid: u32 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
        while !has_ended(pid) {
            std::thread::yield_now();
        }
    }
}
