//! A signal for tasks that wait for a change made by another task.

use std::future::poll_fn;
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};

/// Wakes all waiters on a change; each checks its condition again.
#[derive(Debug, Default)]
pub(crate) struct Event {
    wakers: Mutex<Vec<Waker>>,
}

impl Event {
    /// Waits until `check` returns a value; it is called again after each [`notify`](Self::notify).
    pub(crate) async fn until<T>(&self, mut check: impl FnMut() -> Option<T>) -> T {
        poll_fn(|context| {
            if let Some(answer) = check() {
                return Poll::Ready(answer);
            }
            self.keep(context.waker());
            // A change before the waker was stored is seen here; a later one wakes the task.
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

    /// Notifies all waiters of a change.
    pub(crate) fn notify(&self) {
        let wakers = std::mem::take(&mut *self.wakers.lock().unwrap_or_else(PoisonError::into_inner));
        wakers.into_iter().for_each(Waker::wake);
    }
}
