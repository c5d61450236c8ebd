//! Queues in front of locks: the changes of one process that need a lock get it in FIFO order. flock(2) has no order, and is
//! retried every few milliseconds.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The number of locks. All processes must agree on it, and on the hash.
pub(crate) const LOCKS: u64 = 64;

/// A line for each lock.
#[derive(Clone)]
pub(crate) struct Lines(Arc<Vec<Mutex<Line>>>);

#[derive(Default)]
struct Line {
    is_taken: bool,
    /// By their number. One that is not here any more has the first place.
    waiting: BTreeMap<u64, Waker>,
    next: u64,
    /// Changes that had all their locks.
    changes: u64,
}

/// The first place of a line; dropping it gives it to the next.
pub(crate) struct FirstPlace {
    lines: Lines,
    number: u64,
}

impl Lines {
    pub(crate) fn new() -> Lines {
        Lines(Arc::new((0..LOCKS).map(|_| Mutex::default()).collect()))
    }

    /// Waits until all earlier changes have left. The future is polled by a task of the engine.
    pub(crate) async fn enter(&self, number: u64) -> FirstPlace {
        let mut wait = Wait { lines: self, number, waits_as: None };
        poll_fn(|context| wait.poll(context)).await
    }

    /// Counts a change that has the lock, and all others that it needs.
    pub(crate) fn count_change(&self, number: u64) {
        self.line(number).changes += 1;
    }

    /// Returns how many changes had the lock, and all others that they needed: the line moves while the count grows.
    pub(crate) fn changes(&self, number: u64) -> u64 {
        self.line(number).changes
    }

    fn line(&self, number: u64) -> MutexGuard<'_, Line> {
        self.0[(number % LOCKS) as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, number: u64) {
        let next = {
            let mut line = self.line(number);
            let next = line.waiting.pop_first();
            line.is_taken = next.is_some();
            next
        };
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }
}

impl Drop for FirstPlace {
    fn drop(&mut self) {
        self.lines.leave(self.number);
    }
}

/// A change in a line.
struct Wait<'l> {
    lines: &'l Lines,
    number: u64,
    waits_as: Option<u64>,
}

impl Wait<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<FirstPlace> {
        let mut line = self.lines.line(self.number);
        match self.waits_as {
            None if !line.is_taken => line.is_taken = true,
            None => {
                let waits_as = line.next;
                line.next += 1;
                line.waiting.insert(waits_as, context.waker().clone());
                self.waits_as = Some(waits_as);
                return Poll::Pending;
            }
            Some(waits_as) => {
                if let Some(waker) = line.waiting.get_mut(&waits_as) {
                    waker.clone_from(context.waker());
                    return Poll::Pending;
                }
                self.waits_as = None;
            }
        }
        Poll::Ready(FirstPlace { lines: self.lines.clone(), number: self.number })
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let Some(waits_as) = self.waits_as else { return };
        let has_place = self.lines.line(self.number).waiting.remove(&waits_as).is_none();
        // A dropped wait that has the place passes it on.
        if has_place {
            self.lines.leave(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use super::*;

    fn poll<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn places_go_to_those_who_wait_in_their_order() {
        let lines = Lines::new();
        let Poll::Ready(first) = poll(&mut Box::pin(lines.enter(0))) else { panic!("nothing is before it") };
        assert!(poll(&mut Box::pin(lines.enter(1))).is_ready(), "another line");
        let mut waiting: Vec<_> = (0..4).map(|_| Box::pin(lines.enter(0))).collect();
        assert!(waiting.iter_mut().all(|wait| poll(wait).is_pending()));
        drop(first);
        assert!(poll(&mut waiting[1]).is_pending(), "one is before it");
        // The first has the place and never polls for it; the third gives up.
        drop(waiting.remove(0));
        drop(waiting.remove(1));
        let Poll::Ready(second) = poll(&mut waiting[0]) else { panic!("it is the next") };
        assert!(poll(&mut waiting[1]).is_pending());
        drop(second);
        assert!(poll(&mut waiting[1]).is_ready());
        assert!(poll(&mut Box::pin(lines.enter(0))).is_ready(), "all have gone");
    }
}
