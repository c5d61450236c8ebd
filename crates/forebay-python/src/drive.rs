//! Operations of a thread that waits for them, with the interpreter released.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use forebay::Engine;
use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;

use crate::job::Job;
use crate::process;

/// The time after which a waiting thread looks for signals: Ctrl-C arrives that much later at most.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// Runs an operation to its end, and returns its value for Python. `in_turn` lets this thread make the system call itself, for
/// operations that are short.
///
/// An exception of a signal's handler ends the wait and drops the operation: it is cancelled, and the engine keeps its memory until
/// the kernel is done with it.
pub(crate) fn run(py: Python<'_>, engine: &Engine, job: Job, in_turn: bool) -> PyResult<Py<PyAny>> {
    let outcome = wait_for(py, engine, job, in_turn)?;
    process::current().release_returned(py);
    outcome.into_py(py)?.ok_or_else(|| PyStopIteration::new_err(()))
}

/// As [`run`], for any future.
pub(crate) fn wait_for<T: Send>(
    py: Python<'_>,
    engine: &Engine,
    mut future: Pin<Box<dyn Future<Output = T> + Send + '_>>,
    in_turn: bool,
) -> PyResult<T> {
    let mut begins_in_turn = in_turn;
    loop {
        match py.detach(|| wait(engine, future.as_mut(), std::mem::take(&mut begins_in_turn))) {
            Some(output) => return Ok(output),
            None => py.check_signals()?,
        }
    }
}

/// Waits for a while; `None` when it is time to look for signals.
fn wait<T>(
    engine: &Engine,
    mut future: Pin<&mut (dyn Future<Output = T> + Send + '_)>,
    begins_in_turn: bool,
) -> Option<T> {
    if begins_in_turn {
        // The poll is the whole future here, so that a wait behind it can end early.
        let first = poll_fn(|context| Poll::Ready(future.as_mut().poll(context)));
        if let Ok(Poll::Ready(output)) = engine.block_on_in_turn(first) {
            return Some(output);
        }
    }
    let waker = forebay::thread_waker();
    let mut context = Context::from_waker(&waker);
    let until = Instant::now() + SIGNALS_EVERY;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left);
    }
}
