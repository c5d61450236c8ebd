//! Signals while a command runs: they are the command's, and this program stays to tell what it saw.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// What arrived, and who is to get it.
#[derive(Clone, Debug)]
pub(super) struct Signals {
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Debug, Default)]
struct State {
    command: Option<Pid>,
    arrived: Option<i32>,
}

impl Signals {
    /// Catches SIGINT, SIGTERM and SIGHUP from here on.
    pub(super) fn install() -> std::io::Result<Self> {
        let mut source = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let signals = Self { shared: Arc::default() };
        let own = signals.clone();
        std::thread::Builder::new().name("forebay-signals".to_owned()).spawn(move || {
            for signal in source.forever() {
                let mut state = own.lock();
                state.arrived = Some(signal);
                pass_on(state.command, signal);
                own.shared.1.notify_all();
            }
        })?;
        Ok(signals)
    }

    /// From now on `pid` gets what arrives. A terminal sends Ctrl-C to the command by itself, so that SIGINT is not
    /// sent twice.
    pub(super) fn pass_on_to(&self, pid: u32) {
        let mut state = self.lock();
        state.command = i32::try_from(pid).ok().and_then(Pid::from_raw);
        if let Some(signal) = state.arrived {
            pass_on(state.command, signal);
        }
    }

    /// Waits for a signal, at most so long; whether one has arrived.
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

fn pass_on(command: Option<Pid>, signal: i32) {
    let Some(command) = command else { return };
    // It may have ended already; then there is nobody to tell.
    let _ = match signal {
        SIGTERM => kill_process(command, Signal::TERM),
        SIGHUP => kill_process(command, Signal::HUP),
        _ => Ok(()),
    };
}
