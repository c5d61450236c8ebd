//! A limit for the files that calls have open at once.
//!
//! A call that begins while few files are open opens its file where it is polled. Any further one runs as a task of the engine's, and waits
//! there for a place: a task of the engine's is always polled, so a call that the program keeps unpolled holds up no other one.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use forebay::shard::JoinHandle;
use forebay::{Class, Engine};

use crate::failure::Result;

/// Files of calls that are open beside those that stay open, before further calls wait.
const BESIDE_MAX: usize = 64;
/// Calls that have waited and run at once.
const PLACES: usize = 64;

/// Counts open files, and has the line of calls that wait.
pub(crate) struct Crowd {
    open: AtomicUsize,
    open_max: usize,
    line: Mutex<Line>,
}

struct Line {
    free: usize,
    /// Calls that wait, by their number. One that is not here any more has got its place.
    waiting: BTreeMap<u64, Waker>,
    next: u64,
}

/// One open file.
pub(crate) struct OpenFileGuard(Arc<Crowd>);

impl Crowd {
    /// Returns the count for a store of which `files_max` files stay open.
    pub(crate) fn new(files_max: usize) -> Crowd {
        let line = Line { free: PLACES, waiting: BTreeMap::new(), next: 0 };
        Crowd { open: AtomicUsize::new(0), open_max: files_max + BESIDE_MAX, line: Mutex::new(line) }
    }

    /// Counts a file until the result is dropped.
    pub(crate) fn count(self: &Arc<Crowd>) -> OpenFileGuard {
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenFileGuard(self.clone())
    }

    /// Runs a call that opens a file: at once, or as a task of the engine's when its turn has come. Dropping the future stops it.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Crowd>,
        engine: &Engine,
        class: Class,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let open = self.open.load(Ordering::Relaxed);
        if open < self.open_max {
            return call.await;
        }
        let crowd = self.clone();
        let task = engine.spawn_on_shard(open % engine.shard_count(), class, move || async move {
            let _place = crowd.enter().await;
            call.await
        });
        AbortOnDrop(task).await?
    }

    /// Waits for a place; calls get theirs in the order of their first polls.
    async fn enter(&self) -> Place<'_> {
        let mut waits = Waits { crowd: self, number: None };
        poll_fn(|context| waits.poll(context)).await
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self) {
        let next = {
            let mut line = self.line();
            let next = line.waiting.pop_first();
            line.free += usize::from(next.is_none());
            next
        };
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }
}

impl Drop for OpenFileGuard {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The right to have a file open; dropping it gives it to the next.
struct Place<'a>(&'a Crowd);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// A call in the line.
struct Waits<'a> {
    crowd: &'a Crowd,
    number: Option<u64>,
}

impl<'a> Waits<'a> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Place<'a>> {
        let mut line = self.crowd.line();
        match self.number {
            None if line.free > 0 => line.free -= 1,
            None => {
                let number = line.next;
                line.next += 1;
                line.waiting.insert(number, context.waker().clone());
                self.number = Some(number);
                return Poll::Pending;
            }
            Some(number) => {
                if let Some(waker) = line.waiting.get_mut(&number) {
                    waker.clone_from(context.waker());
                    return Poll::Pending;
                }
                self.number = None;
            }
        }
        Poll::Ready(Place(self.crowd))
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        // One that has got its place and did not come for it gives it to the next.
        if self.crowd.line().waiting.remove(&number).is_none() {
            self.crowd.leave();
        }
    }
}

/// A task that ends when its handle is dropped.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Future for AbortOnDrop<T> {
    type Output = forebay::Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn places_go_to_those_who_wait_in_their_order() {
        let crowd = Crowd::new(1);
        let mut places: Vec<_> = (0..PLACES).map(|_| crowd.enter().now_or_never().unwrap()).collect();
        let mut context = Context::from_waker(Waker::noop());
        let mut waiting: Vec<_> = (0..4).map(|_| Box::pin(crowd.enter())).collect();
        assert!(waiting.iter_mut().all(|wait| wait.as_mut().poll(&mut context).is_pending()));
        places.pop();
        assert!(waiting[1].as_mut().poll(&mut context).is_pending(), "the first is before it");
        // The first has its place and never comes for it; the third gives up.
        drop(waiting.remove(0));
        assert!(waiting[1].as_mut().poll(&mut context).is_pending());
        drop(waiting.remove(1));
        let Poll::Ready(second) = waiting[0].as_mut().poll(&mut context) else { panic!("it is the next") };
        assert!(waiting[1].as_mut().poll(&mut context).is_pending());
        drop(second);
        assert!(waiting[1].as_mut().poll(&mut context).is_ready());
        drop(waiting);
        drop(places);
        assert_eq!(crowd.line().free, PLACES, "all are back");
    }
}
