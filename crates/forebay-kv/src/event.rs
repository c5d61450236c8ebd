//! A signal for tasks that wait for a change made by another task.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Wakes all waiters on a change; each checks its condition again.
#[derive(Debug, Default)]
pub(crate) struct Event {
    waiters: Mutex<Waiters>,
}

#[derive(Debug, Default)]
struct Waiters {
    /// Number of notifications, each of which takes all wakers.
    notified: u64,
    /// `None` for a waiter that was dropped.
    wakers: Vec<Option<Waker>>,
}

/// A waiter's place among the wakers, given up when it is dropped. Ten thousand writers may wait: no waiter looks at the others.
struct Place<'e> {
    event: &'e Event,
    /// The number of notifications before it had the place, and its index.
    at: Option<(u64, usize)>,
}

impl Event {
    fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `check` returns a value; it is called again after each [`notify`](Self::notify).
    pub(crate) async fn until<T>(&self, mut check: impl FnMut() -> Option<T>) -> T {
        let mut place = Place { event: self, at: None };
        poll_fn(|context| {
            if let Some(answer) = check() {
                return Poll::Ready(answer);
            }
            place.keep(context.waker());
            // A change before the waker was stored is seen here; a later one wakes the task.
            check().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Notifies all waiters of a change.
    pub(crate) fn notify(&self) {
        let wakers = {
            let mut waiters = self.lock();
            waiters.notified += 1;
            std::mem::take(&mut waiters.wakers)
        };
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Place<'_> {
    fn keep(&mut self, waker: &Waker) {
        let replaced = {
            let mut waiters = self.event.lock();
            let Waiters { notified, wakers } = &mut *waiters;
            let index = self.at.filter(|(at, _)| *at == *notified).map(|(_, index)| index);
            match index.and_then(|index| wakers.get_mut(index)) {
                Some(Some(known)) if known.will_wake(waker) => None,
                Some(known) => known.replace(waker.clone()),
                None => {
                    self.at = Some((*notified, wakers.len()));
                    wakers.push(Some(waker.clone()));
                    None
                }
            }
        };
        // Not under the lock: a waker is the program's code.
        drop(replaced);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some((at, index)) = self.at else { return };
        let gone = {
            let mut waiters = self.event.lock();
            let Waiters { notified, wakers } = &mut *waiters;
            if *notified != at {
                return;
            }
            let gone = wakers.get_mut(index).and_then(Option::take);
            while wakers.pop_if(|last| last.is_none()).is_some() {}
            gone
        };
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// One that waits again and again, as in a `select!`, has one place, and a dropped one leaves none.
    #[test]
    fn a_waiter_has_one_place_until_it_is_dropped() {
        futures::executor::block_on(async {
            let (event, is_set) = (Event::default(), Cell::new(false));
            let wait = || Box::pin(event.until(|| is_set.get().then_some(())));
            let places = || event.lock().wakers.len();
            let (mut first, mut second, mut third) = (wait(), wait(), wait());
            for _ in 0..3 {
                assert!(futures::poll!(&mut first).is_pending() && futures::poll!(&mut second).is_pending());
                assert_eq!(places(), 2);
            }
            assert!(futures::poll!(&mut third).is_pending());
            drop(second);
            assert_eq!(places(), 3, "the place of another waiter stays where it is");
            drop(third);
            assert_eq!(places(), 1);
            event.notify();
            assert_eq!(places(), 0);
            assert!(futures::poll!(&mut first).is_pending());
            is_set.set(true);
            event.notify();
            first.await;
            assert_eq!(places(), 0);
        });
    }
}
