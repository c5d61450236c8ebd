//! A command that is held just before it executes its program, until the measuring is ready.

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread::JoinHandle;

use crate::error::Error;
use crate::pressure::Group;

/// A child process that waits before it executes the command.
#[derive(Debug)]
pub(crate) struct StoppedChild {
    /// The child's process number, which stays the command's.
    pub(crate) pid: u32,
    program: String,
    go: PipeWriter,
    // `spawn` returns only when the program was replaced, so it runs on its own thread.
    spawning: JoinHandle<io::Result<Child>>,
}

impl StoppedChild {
    /// Forks a process for `command` (its program and arguments) in `group`, if any, and holds it.
    pub(crate) fn new(command: &[OsString], group: Option<&Group>) -> Result<Self, Error> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(Error::NotStarted {
                program: String::new(),
                source: io::ErrorKind::InvalidInput.into(),
            });
        };
        let failed = "the command cannot be prepared";
        let (mut told, tell) = io::pipe().map_err(Error::failed(failed))?;
        let (wait, go) = io::pipe().map_err(Error::failed(failed))?;
        let door = group.map(Group::door).transpose().map_err(Error::failed("the cgroup"))?;
        let mut child = Command::new(program);
        child.args(arguments);
        let writer = go.as_raw_fd();
        let hold = move || {
            take_signals();
            if let Some(mut door) = door.as_ref() {
                // 0 stands for the process that writes.
                door.write_all(b"0")?;
            }
            hold(&tell, &wait, writer)
        };
        // SAFETY: between fork and exec the closure only makes system calls on descriptors that exist since before the fork; it
        // allocates nothing, acquires no lock, and an io::Error made of a code allocates nothing either.
        unsafe { child.pre_exec(hold) };
        let spawning = std::thread::Builder::new()
            .name("forebay-spawn".to_owned())
            .spawn(move || child.spawn())
            .map_err(Error::failed(failed))?;
        let name = program.to_string_lossy().into_owned();
        let mut number = [0; 4];
        // The child sends its number; otherwise it failed, and the pipe's last writer was closed with the thread's `Command`.
        if told.read_exact(&mut number).is_err() {
            let source = match spawning.join() {
                Ok(Err(error)) => error,
                _ => io::ErrorKind::BrokenPipe.into(),
            };
            return Err(Error::NotStarted { program: name, source });
        }
        Ok(Self { pid: u32::from_ne_bytes(number), program: name, go, spawning })
    }

    /// Lets the child execute the program.
    pub(crate) fn release(mut self) -> Result<Child, Error> {
        let not_started = |source| Error::NotStarted { program: self.program, source };
        // A signal may have ended it meanwhile: then no process reads this, and the exit status shows the
        // signal.
        let _ = self.go.write_all(&[1]);
        match self.spawning.join() {
            Ok(Ok(child)) => Ok(child),
            Ok(Err(error)) => Err(not_started(error)),
            Err(_) => Err(not_started(io::ErrorKind::Other.into())),
        }
    }
}

/// In the child: unblocks signals that this program may have blocked to pass them on. From here on they are
/// the command's own, with the actions that it was started with.
fn take_signals() {
    // SAFETY: a set of signals is plain bits, of which all 0 is a valid one.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: the set lives on this stack, and the numbers are signals.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    // SAFETY: the set lives through the call, and the old set is not requested; the call may be made between
    // fork and exec.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) };
}

/// In the child: sends its number, then waits for a byte. The end of the pipe instead of a byte means that
/// the measuring failed, and the child ends.
fn hold(mut tell: &PipeWriter, mut wait: &PipeReader, writer: i32) -> io::Result<()> {
    // SAFETY: the child's copy of the parent's descriptor, closed once and used nowhere in the child; without
    // this the child would keep its own pipe open.
    unsafe { libc::close(writer) };
    // SAFETY: getpid cannot fail.
    let pid = unsafe { libc::getpid() };
    tell.write_all(&pid.to_ne_bytes())?;
    let mut byte = [0];
    match wait.read(&mut byte)? {
        0 => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
        _ => Ok(()),
    }
}
