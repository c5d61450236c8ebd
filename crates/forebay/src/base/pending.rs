//! The return value of a call that a pool of threads carries out: its result comes later.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::fork::Origin;
use crate::base::sync::{Mutex, MutexGuard};
use crate::base::wakes;

/// The result, available later, of a call that opens, renames, looks up or otherwise does not move a file's
/// bytes.
///
/// The work begins when the call is made, on a thread of the engine's pool. When the pool's queue is full,
/// the first poll puts the call into a line, and the pool's threads take it from there: it needs no further
/// poll to begin. Await it in a task of any executor, or call [`wait`](Pending::wait) on a plain thread.
///
/// **Dropping a `Pending` does not undo the call**: it may have happened, it may still happen, or (when the
/// queue was full) never happen. A value without a waiter is dropped, so a file that was opened is closed
/// again.
///
/// ```
/// use forebay::{Config, Engine};
/// # fn main() -> forebay::Result<()> {
/// let engine = Engine::start(Config::default())?;
/// let metadata = engine.metadata(".").wait()?; // in a task: engine.metadata(".").await?
/// assert!(metadata.is_dir());
/// # Ok(()) }
/// ```
#[must_use = "the result, and the error if there is one, comes only when this is awaited or waited for"]
pub struct Pending<T> {
    state: State<T>,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

enum State<T> {
    Ready(Result<T>),
    Channel(&'static str, Arc<Cell<T>>),
    Future(&'static str, BoxFuture<T>),
    Completed,
}

// Nothing in it is pinned in place: the future is in a box of its own, and `T` is only ever moved.
impl<T> Unpin for Pending<T> {}

impl<T> Pending<T> {
    /// Blocks the calling thread until the result is there, and returns it.
    ///
    /// # Errors
    /// The call's own error, or [`ErrorKind::WaitOnShard`] when called on a shard's thread, where `.await` is the way.
    pub fn wait(self) -> Result<T> {
        match self.state {
            State::Ready(result) => result,
            State::Channel(operation, _) | State::Future(operation, _) => {
                crate::base::wait::block_on(operation, self)
            }
            State::Completed => Err(completed_before()),
        }
    }

    /// Returns a `Pending` whose result is known already.
    pub(crate) fn ready(result: Result<T>) -> Pending<T> {
        Pending { state: State::Ready(result) }
    }

    /// Returns a `Pending` for the output of `future`, which runs where the `Pending` is awaited. `operation`
    /// is for errors.
    pub(crate) fn from_future(operation: &'static str, future: BoxFuture<T>) -> Pending<T> {
        Pending { state: State::Future(operation, future) }
    }
}

impl<T: Send + 'static> Pending<T> {
    /// Returns a `Pending` for the same result with `f` applied to its value. `f` runs on the thread that
    /// polls.
    pub(crate) fn map<U>(self, f: impl FnOnce(T) -> Result<U> + Send + 'static) -> Pending<U> {
        match self.state {
            State::Ready(result) => Pending::ready(result.and_then(f)),
            State::Channel(operation, _) | State::Future(operation, _) => {
                Pending::from_future(operation, Box::pin(async move { f(self.await?) }))
            }
            State::Completed => Pending::ready(Err(completed_before())),
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let this = self.get_mut();
        let polled = match &mut this.state {
            State::Channel(operation, cell) => cell.poll(operation, context.waker()),
            State::Future(_, future) => future.as_mut().poll(context),
            State::Ready(_) | State::Completed => {
                return match std::mem::replace(&mut this.state, State::Completed) {
                    State::Ready(result) => Poll::Ready(result),
                    _ => Poll::Ready(Err(completed_before())),
                };
            }
        };
        if polled.is_ready() {
            this.state = State::Completed;
        }
        polled
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (operation, state) = match &self.state {
            State::Ready(_) => ("", "ready"),
            State::Channel(operation, _) | State::Future(operation, _) => (*operation, "waiting"),
            State::Completed => ("", "answered"),
        };
        f.debug_struct("Pending").field("operation", &operation).field("state", &state).finish()
    }
}

fn completed_before() -> Error {
    Error::invalid("wait", "this call was polled again after it had completed")
}

/// Returns a sender and the [`Pending`] that it completes. A sender dropped unused completes it with
/// [`ErrorKind::EngineClosed`].
pub(crate) fn channel<T>(operation: &'static str) -> (Sender<T>, Pending<T>) {
    let cell = Arc::new(Cell { slot: Mutex::new(Slot::Waiting(None)), origin: Origin::here() });
    let sender = Sender { operation, cell: Some(cell.clone()) };
    (sender, Pending { state: State::Channel(operation, cell) })
}

/// The sending half of a [`channel`].
pub(crate) struct Sender<T> {
    operation: &'static str,
    cell: Option<Arc<Cell<T>>>,
}

impl<T> Sender<T> {
    /// Stores the result and wakes the waiter.
    pub(crate) fn send(mut self, result: Result<T>) {
        if let Some(cell) = self.cell.take() {
            Cell::fill(&cell, result);
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if let Some(cell) = self.cell.take() {
            Cell::fill(&cell, Err(Error::new(ErrorKind::EngineClosed, self.operation)));
        }
    }
}

/// The place between the two halves. The lock is held only while the value is moved, never while other code
/// runs.
struct Cell<T> {
    slot: Mutex<Slot<T>>,
    origin: Origin,
}

enum Slot<T> {
    Waiting(Option<Waker>),
    Filled(Result<T>),
    Taken,
}

impl<T> Cell<T> {
    fn lock(&self) -> MutexGuard<'_, Slot<T>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(cell: &Arc<Cell<T>>, result: Result<T>) {
        let before = std::mem::replace(&mut *cell.lock(), Slot::Filled(result));
        if let Slot::Waiting(Some(waker)) = before {
            wakes::wake(waker);
        }
    }

    fn poll(&self, operation: &'static str, waker: &Waker) -> Poll<Result<T>> {
        let mut slot = self.lock();
        match std::mem::replace(&mut *slot, Slot::Taken) {
            Slot::Filled(result) => Poll::Ready(result),
            Slot::Taken => Poll::Ready(Err(completed_before())),
            // The thread that would complete the call exists in the parent only.
            Slot::Waiting(_) if self.origin.is_elsewhere() => {
                Poll::Ready(Err(Error::new(ErrorKind::Forked, operation)))
            }
            Slot::Waiting(known) => {
                let keep = known.filter(|known| known.will_wake(waker)).unwrap_or_else(|| waker.clone());
                *slot = Slot::Waiting(Some(keep));
                Poll::Pending
            }
        }
    }
}

#[cfg(all(test, forebay_loom))]
mod loom_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_from_another_thread() {
        let (sender, pending) = channel::<u32>("test");
        let thread = std::thread::spawn(move || sender.send(Ok(7)));
        assert_eq!(pending.wait().unwrap(), 7);
        thread.join().unwrap();
    }

    #[test]
    fn a_sender_dropped_unused_answers_engine_closed() {
        let (sender, pending) = channel::<u32>("open");
        drop(sender);
        let error = pending.wait().unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::EngineClosed, "open"));
    }

    #[test]
    fn map_keeps_errors_and_changes_values() {
        let (sender, pending) = channel::<u32>("test");
        sender.send(Ok(20));
        assert_eq!(pending.map(|n| Ok(n + 1)).wait().unwrap(), 21);
        let failed = Pending::<u32>::ready(Err(Error::os("test", libc::EIO)));
        assert_eq!(failed.map(|n| Ok(n + 1)).wait().unwrap_err().raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn the_last_waker_given_is_the_one_woken() {
        struct Count(std::sync::atomic::AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
        }
        let counts = [(), ()].map(|()| Arc::new(Count(Default::default())));
        let (sender, mut pending) = channel::<u32>("test");
        for count in &counts {
            let waker = Waker::from(count.clone());
            assert!(Pin::new(&mut pending).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        sender.send(Ok(1));
        assert_eq!(counts.each_ref().map(|count| count.0.load(std::sync::atomic::Ordering::SeqCst)), [0, 1]);
        assert!(matches!(
            Pin::new(&mut pending).poll(&mut Context::from_waker(Waker::noop())),
            Poll::Ready(Ok(1))
        ));
        let again = Pin::new(&mut pending).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(again, Poll::Ready(Err(error)) if error.kind() == ErrorKind::InvalidInput));
    }

    #[test]
    fn a_value_nobody_waits_for_is_dropped() {
        let value = Arc::new(());
        let (sender, pending) = channel("test");
        drop(pending);
        sender.send(Ok(value.clone()));
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn is_send() {
        fn send<T: Send>() {}
        send::<Pending<u32>>();
    }
}
