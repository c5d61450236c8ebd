//! A lock for one task at a time, which may be held across awaits.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::event::Event;

/// A lock that may be held across awaits. Few tasks wait for it, so it keeps no queue of waiters.
#[derive(Debug, Default)]
pub(crate) struct AsyncMutex {
    is_taken: AtomicBool,
    free: Event,
}

/// The right to the async_mutex; dropping it releases the turn.
#[derive(Debug)]
pub(crate) struct AsyncGuard<'a>(&'a AsyncMutex);

impl AsyncMutex {
    /// Waits until no other task has the turn, and acquires it.
    pub(crate) async fn take(&self) -> AsyncGuard<'_> {
        self.free.until(|| (!self.is_taken.swap(true, Ordering::Acquire)).then(|| AsyncGuard(self))).await
    }
}

impl Drop for AsyncGuard<'_> {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Release);
        self.0.free.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_and_the_next_is_woken() {
        futures::executor::block_on(async {
            let turn = AsyncMutex::default();
            let first = turn.take().await;
            let second = turn.take();
            let mut second = std::pin::pin!(second);
            // Each attempt of a waiter once released the turn, so that its next attempt acquired it.
            for _ in 0..3 {
                assert!(futures::poll!(&mut second).is_pending());
            }
            drop(first);
            drop(second.await);
            drop(turn.take().await);
        });
    }
}
