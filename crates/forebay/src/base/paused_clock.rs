//! A paused clock of Tokio stands while an operation is in flight.
//!
//! A current-thread runtime moves its paused clock to the next timer when no task is ready and no blocking task runs. Tokio's own
//! files wait in blocking tasks. Here a waker that is left with an operation counts as in flight until it is woken or dropped, and
//! while one is, a blocking task of the runtime waits.

use std::task::{Poll, Waker};

#[cfg(all(feature = "tokio", not(forebay_loom)))]
mod standing;

#[cfg(all(feature = "tokio", not(forebay_loom)))]
pub use standing::{ClockHold, stand};

/// Polls with a waker for which a paused clock stands, until it is woken or dropped. A poll that is ready leaves none.
#[inline]
pub(crate) fn poll<T>(waker: &Waker, poll: impl FnOnce(&Waker) -> Poll<T>) -> Poll<T> {
    #[cfg(all(feature = "tokio", not(forebay_loom)))]
    if let Some(standing) = standing::standing_waker(waker) {
        let polled = poll(&Waker::from(standing.clone()));
        if polled.is_ready() {
            standing.release();
        }
        return polled;
    }
    poll(waker)
}
