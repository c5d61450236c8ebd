//! Signals while a command runs: they are passed to the command, and this program continues in order to report.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal as Number};
use nix::sys::signalfd::SignalFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The signals that arrived, and the command that receives them.
#[derive(Clone, Debug)]
pub(super) struct Signals {
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Debug, Default)]
struct State {
    /// A handle instead of its number, which another process may have once the command has ended.
    command: Option<OwnedFd>,
    arrived: Option<Signal>,
}

impl Signals {
    /// Receives SIGINT, SIGTERM, SIGHUP and SIGQUIT from here on. They are blocked rather than caught, because a handler would also
    /// run in the command before it has executed its program, and consume signals there that are meant for the command. Must be
    /// called before the program has a second thread.
    pub(super) fn install() -> io::Result<Self> {
        let taken: SigSet =
            [Number::SIGINT, Number::SIGTERM, Number::SIGHUP, Number::SIGQUIT].into_iter().collect();
        taken.thread_block()?;
        let source = SignalFd::new(&taken)?;
        let signals = Self { shared: Arc::default() };
        let own = signals.clone();
        std::thread::Builder::new().name("forebay-signals".to_owned()).spawn(move || {
            loop {
                match source.read_signal() {
                    Ok(Some(found)) => own.arrived(found.ssi_signo, found.ssi_code),
                    Ok(None) | Err(nix::errno::Errno::EINTR) => {}
                    // Signals that can no longer be read cannot be passed on either.
                    Err(_) => return,
                }
            }
        })?;
        Ok(signals)
    }

    fn arrived(&self, number: u32, code: i32) {
        /// Sent by the kernel: a key was pressed, and the command, which is in the foreground, has
        /// received it, too.
        const FROM_TERMINAL: i32 = 0x80;
        let signal = match i32::try_from(number) {
            Ok(libc::SIGINT) => Signal::INT,
            Ok(libc::SIGHUP) => Signal::HUP,
            Ok(libc::SIGQUIT) => Signal::QUIT,
            _ => Signal::TERM,
        };
        let mut state = self.lock();
        state.arrived = Some(signal);
        if code != FROM_TERMINAL {
            pass_on(state.command.as_ref(), signal);
        }
        self.shared.1.notify_all();
    }

    /// Passes signals on to `pid` from now on, and also one that arrived before the command started, from any sender.
    pub(super) fn pass_on_to(&self, pid: u32) {
        let mut state = self.lock();
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        // Without a handle (the command has already exited), no process is left to signal.
        state.command = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if let Some(signal) = state.arrived {
            pass_on(state.command.as_ref(), signal);
        }
    }

    /// Waits for a signal, at most for `time`. Returns whether one has arrived.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let state = self.lock();
        if state.arrived.is_some() {
            return true;
        }
        let (state, _) = self.shared.1.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner);
        state.arrived.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pass_on(command: Option<&OwnedFd>, signal: Signal) {
    if let Some(command) = command {
        // The command may have ended already; then no process is left to signal.
        let _ = pidfd_send_signal(command, signal);
    }
}
