//! Waiting for something that another task changes.

use std::future::poll_fn;
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};

/// Wakes everybody who waits for a change, each to look for itself.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    wakers: Mutex<Vec<Waker>>,
}

impl Signal {
    /// Waits until `check` has an answer; it is asked again after each [`tell`](Self::tell).
    pub(crate) async fn until<T>(&self, mut check: impl FnMut() -> Option<T>) -> T {
        poll_fn(|context| {
            if let Some(answer) = check() {
                return Poll::Ready(answer);
            }
            self.keep(context.waker());
            // What changed before the waker was there is seen here, what changes later wakes.
            check().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    fn keep(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    /// Something changed.
    pub(crate) fn tell(&self) {
        let wakers = std::mem::take(&mut *self.wakers.lock().unwrap_or_else(PoisonError::into_inner));
        wakers.into_iter().for_each(Waker::wake);
    }
}
