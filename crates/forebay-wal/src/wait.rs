//! Waits for the log: plain threads that block on a result, and the wake-up of all waiters.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use forebay::Engine;

use crate::error::Result;

/// Runs `future` to its end on the calling thread and returns its result; see [`Engine::block_on`] for where
/// that is refused.
pub(crate) fn block_on<T>(engine: &Engine, future: impl Future<Output = Result<T>>) -> Result<T> {
    engine.block_on(future)?
}

/// As [`block_on`], for a thread that may write a group of the log itself.
pub(crate) fn block_in_turn<T>(engine: &Engine, future: impl Future<Output = Result<T>>) -> Result<T> {
    engine.block_on_in_turn(future)?
}

/// Wakes all of them. A waker is the program's code: one that panics must not prevent the wake-up of the
/// others.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}
