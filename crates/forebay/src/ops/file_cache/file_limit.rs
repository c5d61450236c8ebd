//! The line of calls that would have too many files open.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::base::error::Result;
use crate::base::wakes;
use crate::reactor::shard::JoinHandle;

/// The places of calls that take turns, and the calls that wait for one, in the order of their first polls. A call in a place runs
/// in a task of the engine, so it always ends.
pub(super) struct Line {
    beside: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    free: usize,
    /// Calls that wait for a place, by their number. One that is not here any more has got its place.
    waiting: BTreeMap<u64, Waker>,
    next: u64,
    /// Calls in places, without those that wait for a descriptor themselves.
    running: isize,
    /// The number of returned places.
    ended: u64,
    /// Calls that wait for a returned place.
    lacking: Vec<Waker>,
}

impl Line {
    pub(super) fn new(places: usize) -> Arc<Line> {
        let state = State {
            free: places,
            waiting: BTreeMap::new(),
            next: 0,
            running: 0,
            ended: 0,
            lacking: Vec::new(),
        };
        Arc::new(Line { beside: AtomicUsize::new(0), state: Mutex::new(state) })
    }

    /// Returns how many files are counted.
    pub(super) fn beside(&self) -> usize {
        self.beside.load(Ordering::Relaxed)
    }

    /// Waits for a place.
    pub(super) async fn enter(self: Arc<Line>) -> Place {
        let mut waits = Waits { line: &self, number: None };
        poll_fn(|context| waits.poll(context)).await;
        drop(waits);
        Place(self)
    }

    /// Waits until a call in a place has ended, whose file is idle then. Returns false if no such call continues. `has_place`: the
    /// caller is in a place.
    pub(super) async fn released(&self, has_place: bool) -> bool {
        let (lack, seen) = {
            let mut state = self.lock();
            if state.running <= isize::from(has_place) {
                return false;
            }
            state.running -= isize::from(has_place);
            (Lack { line: self, has_place }, state.ended)
        };
        let ended = |context: &mut Context<'_>| {
            let mut state = self.lock();
            if state.ended != seen {
                return Poll::Ready(());
            }
            if !state.lacking.iter().any(|waker| waker.will_wake(context.waker())) {
                state.lacking.push(context.waker().clone());
            }
            Poll::Pending
        };
        poll_fn(ended).await;
        drop(lack);
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self) {
        let (next, lacking) = {
            let mut state = self.lock();
            let next = state.waiting.pop_first();
            state.free += usize::from(next.is_none());
            state.running -= isize::from(next.is_none());
            state.ended += 1;
            (next, std::mem::take(&mut state.lacking))
        };
        wakes::wake_each(next.into_iter().map(|(_, waker)| waker).chain(lacking));
    }
}

/// The right to have a file open; dropping it gives it to the next.
pub(super) struct Place(Arc<Line>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// A call that waits for a returned place.
struct Lack<'l> {
    line: &'l Line,
    has_place: bool,
}

impl Drop for Lack<'_> {
    fn drop(&mut self) {
        self.line.lock().running += isize::from(self.has_place);
    }
}

/// A call in the line.
struct Waits<'l> {
    line: &'l Line,
    number: Option<u64>,
}

impl Waits<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.line.lock();
        match self.number {
            None if state.free > 0 => {
                state.free -= 1;
                state.running += 1;
            }
            None => {
                let number = state.next;
                state.next += 1;
                state.waiting.insert(number, context.waker().clone());
                self.number = Some(number);
                return Poll::Pending;
            }
            Some(number) => {
                if let Some(waker) = state.waiting.get_mut(&number) {
                    waker.clone_from(context.waker());
                    return Poll::Pending;
                }
                self.number = None;
            }
        }
        Poll::Ready(())
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        // A call that got its place without being polled again passes it to the next.
        if self.line.lock().waiting.remove(&number).is_none() {
            self.line.leave();
        }
    }
}

/// A file that a call has open outside of the cache.
#[doc(hidden)]
pub struct FileCount(Arc<Line>);

impl FileCount {
    pub(super) fn new(line: &Arc<Line>) -> FileCount {
        line.beside.fetch_add(1, Ordering::Relaxed);
        FileCount(line.clone())
    }
}

impl Drop for FileCount {
    fn drop(&mut self) {
        self.0.beside.fetch_sub(1, Ordering::Relaxed);
    }
}

crate::_debug_parts!(FileCount);

/// A task that ends when its handle is dropped.
pub struct AbortOnDrop<T>(pub JoinHandle<T>);

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

crate::_debug_parts!([T] AbortOnDrop<T>);

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn places_go_to_those_who_wait_in_their_order() {
        let line = Line::new(8);
        let mut places: Vec<_> = (0..8).map(|_| line.clone().enter().now_or_never().unwrap()).collect();
        let mut waiting: Vec<_> = (0..4).map(|_| Box::pin(line.clone().enter())).collect();
        assert!(waiting.iter_mut().all(|wait| poll(wait).is_pending()));
        places.pop();
        assert!(poll(&mut waiting[1]).is_pending(), "the first is before it");
        // The first has its place and is never polled again; the third is dropped.
        drop(waiting.remove(0));
        assert!(poll(&mut waiting[1]).is_pending());
        drop(waiting.remove(1));
        let Poll::Ready(second) = poll(&mut waiting[0]) else { panic!("it is the next") };
        assert!(poll(&mut waiting[1]).is_pending());
        drop(second);
        assert!(poll(&mut waiting[1]).is_ready());
        drop(waiting);
        drop(places);
        let state = line.lock();
        assert_eq!((state.free, state.running), (8, 0), "all are back");
    }

    /// Of calls in places that all lack a descriptor one gives up, so that the others continue.
    #[test]
    fn a_call_waits_for_a_descriptor_only_while_another_goes_on() {
        let line = Line::new(3);
        assert_eq!(line.released(false).now_or_never(), Some(false), "nothing is under way");
        let mut places: Vec<_> = (0..3).map(|_| line.clone().enter().now_or_never().unwrap()).collect();
        let mut outside = Box::pin(line.released(false));
        let mut first = Box::pin(line.released(true));
        let mut second = Box::pin(line.released(true));
        assert!(
            poll(&mut outside).is_pending()
                && poll(&mut first).is_pending()
                && poll(&mut second).is_pending()
        );
        assert_eq!(line.released(true).now_or_never(), Some(false), "the last one that went on");
        places.pop();
        assert_eq!([poll(&mut outside), poll(&mut first), poll(&mut second)], [Poll::Ready(true); 3]);
        let mut dropped = Box::pin(line.released(true));
        assert!(poll(&mut dropped).is_pending());
        drop((dropped, first, second, outside));
        drop(places);
        let state = line.lock();
        assert_eq!((state.free, state.running), (3, 0));
    }
}
