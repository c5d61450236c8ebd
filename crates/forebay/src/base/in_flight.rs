//! The work in flight of a file, a directory or an engine; its close waits for it.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::base::paused_clock;
use crate::base::wakes;

/// Counts what keeps an owner from having closed: calls of the pool of threads, entries in tables of files, and dropped operations
/// that no shard has received yet.
///
/// It is apart from its owner, so that an operation in flight can first release its count of the owner and then report its end: the
/// descriptor is closed when the closer is notified.
#[derive(Default)]
pub(crate) struct InFlight {
    count: AtomicUsize,
    closers: Mutex<Vec<Waker>>,
}

impl InFlight {
    /// Adds one until the returned guard is dropped. A caller that then checks whether the owner is closed either sees that, or the closer
    /// sees the count.
    pub(crate) fn enter(self: &Arc<Self>) -> Stay {
        self.add();
        fence(Ordering::SeqCst);
        Stay(self.clone())
    }

    /// As [`enter`](Self::enter), without a guard.
    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn remove(&self) {
        let before = self.count.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "each that is in flight ends once");
        if before == 1 {
            self.wake_closers();
        }
    }

    /// Returns the number of operations, for an owner that accepts no more since before this call.
    pub(crate) fn count(&self) -> usize {
        fence(Ordering::SeqCst);
        self.count.load(Ordering::SeqCst)
    }

    /// Completes when nothing is in flight.
    pub(crate) fn poll_none(&self, waker: &Waker) -> Poll<()> {
        paused_clock::poll(waker, |waker| self.poll_count(waker))
    }

    fn poll_count(&self, waker: &Waker) -> Poll<()> {
        let mut closers = self.lock();
        if self.count() == 0 {
            return Poll::Ready(());
        }
        if !closers.iter().any(|known| known.will_wake(waker)) {
            closers.push(waker.clone());
        }
        Poll::Pending
    }

    /// Wakes the tasks that wait for the close; they look again.
    #[cold]
    fn wake_closers(&self) {
        let closers = std::mem::take(&mut *self.lock());
        wakes::wake_each(closers);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.closers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A guard of something in flight: dropping it reports the end. Drop all references to the owner first.
pub struct Stay(Arc<InFlight>);

impl fmt::Debug for Stay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stay")
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.0.remove();
    }
}

/// Those of one call: in the engine, and in up to two files or directories.
pub(crate) type Stays = [Option<Stay>; 3];

#[cfg(all(test, not(forebay_loom)))]
mod tests {
    use super::*;
    use crate::base::wakes::tests::{Count, Panics};

    /// The end of the last call woke one closer after the other: behind a waker that panicked the others waited for ever.
    #[test]
    fn a_waker_that_panics_keeps_no_other_closer_waiting() {
        let (in_flight, count) = (Arc::<InFlight>::default(), Arc::new(Count(AtomicUsize::new(0))));
        let stay = in_flight.enter();
        let (panics, other) = (Waker::from(Arc::new(Panics)), Waker::from(count.clone()));
        for waker in [&panics, &other, &other] {
            assert!(in_flight.poll_none(waker).is_pending());
        }
        drop(stay);
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "once, however often it was polled");
        assert!(in_flight.poll_none(&other).is_ready());
    }
}
