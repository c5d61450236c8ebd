//! Operations of a thread that waits for them, with the interpreter released.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use forebay::Engine;
use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;

use crate::job::{Job, Outcome};
use crate::process;

/// The time after which a waiting thread looks for signals: Ctrl-C arrives that much later at most.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// Runs an operation to its end. `in_turn` lets this thread make the system call itself, for operations that are short.
///
/// An exception of a signal's handler ends the wait and drops the operation: it is cancelled, and the engine keeps its memory until
/// the kernel is done with it.
pub(crate) fn run(py: Python<'_>, engine: &Engine, mut job: Job, in_turn: bool) -> PyResult<Py<PyAny>> {
    let mut begins_in_turn = in_turn;
    let outcome = loop {
        let polled = py.detach(|| wait(engine, &mut job, std::mem::take(&mut begins_in_turn)));
        match polled {
            Some(outcome) => break outcome,
            None => py.check_signals()?,
        }
    };
    process::current().release_returned(py);
    outcome.into_py(py)?.ok_or_else(|| PyStopIteration::new_err(()))
}

/// Waits for a while; `None` when it is time to look for signals.
fn wait(engine: &Engine, job: &mut Job, begins_in_turn: bool) -> Option<Outcome> {
    if begins_in_turn {
        // The poll is the whole future here, so that a wait behind it can end early.
        let first = poll_fn(|context| Poll::Ready(job.as_mut().poll(context)));
        if let Ok(Poll::Ready(outcome)) = engine.block_on_in_turn(first) {
            return Some(outcome);
        }
    }
    let waker = forebay::thread_waker();
    let mut context = Context::from_waker(&waker);
    let until = Instant::now() + SIGNALS_EVERY;
    loop {
        if let Poll::Ready(outcome) = job.as_mut().poll(&mut context) {
            return Some(outcome);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left);
    }
}
