//! Processes that do not outlive the one that started them.
//!
//! A process that a signal or a time limit ends runs no `Drop`: what it has started would go on without it.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

pub use libc::{SIGHUP, SIGINT, SIGKILL, SIGTERM};

/// Has the kernel kill the process that `command` starts, once the thread that starts it has ended, in whatever way.
///
/// The thread must live as long as the process is to: a test's own does, a blocking pool's does not.
#[cfg(target_os = "linux")]
pub fn end_with_parent(command: &mut Command) -> &mut Command {
    let parent = std::process::id();
    let begin = move || {
        // SAFETY: system calls with plain numbers.
        let is_set = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, SIGKILL) } == 0;
        if !is_set {
            return Err(io::Error::last_os_error());
        }
        // The parent may have ended before that call. Process numbers are positive.
        // SAFETY: a system call without arguments.
        if unsafe { libc::getppid() }.cast_unsigned() != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes system calls alone, and allocates nothing.
    unsafe { command.pre_exec(begin) }
}

/// Elsewhere the process is ended by its owner's `Drop` alone.
#[cfg(not(target_os = "linux"))]
pub fn end_with_parent(command: &mut Command) -> &mut Command {
    command
}

/// Sends a signal to a process that was not waited for yet.
///
/// # Errors
/// There is no such process, or it is another user's.
pub fn signal(child: &Child, signal: i32) -> io::Result<()> {
    // SAFETY: a system call with plain numbers.
    let sent = unsafe { libc::kill(child.id().cast_signed(), signal) };
    if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The limit of descriptors of a child that [`with_descriptors`] has started.
const DESCRIPTORS: &str = "FOREBAY_TEST_DESCRIPTORS";

/// Runs `body` in children of this program that may have so many files open, one after the other, each with its limit from its first
/// instruction on. `test` is the full name of the test that calls this: a child runs it alone.
///
/// # Panics
/// If a child fails.
pub fn with_descriptors(test: &str, limits: &[u64], body: impl FnOnce(u64)) {
    if let Some(limit) = std::env::var_os(DESCRIPTORS) {
        return body(limit.to_str().and_then(|limit| limit.parse().ok()).expect("a number"));
    }
    for limit in limits {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"]);
        command.env(DESCRIPTORS, limit.to_string());
        let new = libc::rlimit { rlim_cur: *limit, rlim_max: *limit };
        // SAFETY: setrlimit(2) reads the structure; nothing is allocated between fork and exec.
        unsafe {
            command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_NOFILE, &new) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        let output = end_with_parent(&mut command).output().expect("a child");
        let text = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .join("\n");
        assert!(output.status.success(), "with {limit} descriptors: {}\n{text}", output.status);
        assert!(text.contains("1 passed"), "{test} did not run:\n{text}");
    }
}

/// Takes all descriptors that this process has left, until the result is dropped.
pub fn all_descriptors() -> Vec<std::fs::File> {
    std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect()
}
