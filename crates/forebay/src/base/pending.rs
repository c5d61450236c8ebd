//! The return value of a call that a pool of threads carries out: its result is available later.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::fork::Origin;
use crate::base::in_flight::Stays;
use crate::base::paused_clock;
use crate::base::sync::{Mutex, MutexGuard};
use crate::base::wakes;

/// The future result of a call that opens, renames, looks up or otherwise does not move a file's bytes.
///
/// The work starts with the call: it is queued for a thread of the engine's pool, and needs no poll for that. Await it in a task of
/// any executor, or call [`wait`](Pending::wait) on a plain thread.
///
/// # When it is dropped
///
/// A queued call is withdrawn, and never happens. **A call that a thread has started is carried out to its end**: it may still
/// take effect after the drop, in whole, in part or not at all. A value without a waiter is dropped, so a file that was opened is
/// closed again. [`detach`](Pending::detach), instead of a drop, lets the call run.
///
/// Either way the close of the object that the call names waits for it: [`File::close`](crate::File::close) (of both files, for
/// [`copy_range`](crate::File::copy_range)), [`Dir::close`](crate::Dir::close) for names in an open directory, and
/// [`Engine::close`](crate::Engine::close). It has no effect afterwards.
///
/// ```
/// use forebay::{Config, Engine};
/// # fn main() -> forebay::Result<()> {
/// let engine = Engine::start(Config::new())?;
/// let metadata = engine.metadata(".").wait()?; // in a task: engine.metadata(".").await?
/// assert!(metadata.is_dir());
/// # Ok(()) }
/// ```
#[must_use = "a call that is dropped may never happen; await it, wait for it, or detach it"]
pub struct Pending<T> {
    state: State<T>,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

enum State<T> {
    Ready(Result<T>),
    Call(Call<T>),
    Future(&'static str, BoxFuture<T>),
    Completed,
}

// Nothing in it is pinned in place: the future is in a separate box, and `T` is only ever moved.
impl<T> Unpin for Pending<T> {}

impl<T> Pending<T> {
    /// Blocks the calling thread until the result is there, and returns it.
    ///
    /// # Errors
    /// The call's own error, or [`ErrorKind::WaitOnShard`] when called on a shard's thread: use `.await` there.
    pub fn wait(self) -> Result<T> {
        match self.state {
            State::Ready(result) => result,
            State::Call(Call { ref cell, .. }) => crate::base::wait::block_on(cell.operation, self),
            State::Future(operation, _) => crate::base::wait::block_on(operation, self),
            State::Completed => Err(completed_before()),
        }
    }

    /// Discards the result but not the call: it runs as if it were awaited, and its outcome is not reported. The close of the
    /// file, directory or engine that it names [waits for it](Pending#when-it-is-dropped). An engine whose handles are dropped
    /// without [`Engine::close`](crate::Engine::close) still carries it out, unless the process ends before.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let base = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let dir = engine.open_dir(base.path()).wait()?;
    /// dir.open("scratch", Open::create()).wait()?;
    /// dir.remove_file("scratch").detach(); // some time soon
    /// dir.close().wait()?; // by now
    /// assert!(!base.path().join("scratch").exists());
    /// # Ok(()) }
    /// ```
    pub fn detach(mut self) {
        if let State::Call(call) = &mut self.state {
            call.leave(true);
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
            State::Call(Call { ref cell, .. }) => {
                Pending::from_future(cell.operation, Box::pin(async move { f(self.await?) }))
            }
            State::Future(operation, _) => {
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
            State::Call(call) => call.poll(context.waker()),
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
            State::Call(call) => (call.cell.operation, "waiting"),
            State::Future(operation, _) => (*operation, "waiting"),
            State::Completed => ("", "answered"),
        };
        f.debug_struct("Pending").field("operation", &operation).field("state", &state).finish()
    }
}

fn completed_before() -> Error {
    Error::invalid("wait", "this call was polled again after it had completed")
}

/// The queue in which calls wait for their turn. Each has a number, which is not used again.
pub trait Turns: Send + Sync {
    /// Withdraws and drops the call, if it has not started.
    fn withdraw(&self, call: u64);

    /// Leaves the call in the queue without a waiter, if it has not started.
    fn detach(&self, call: u64);
}

/// The waiter's side of a call.
struct Call<T> {
    cell: Arc<Cell<T>>,
    /// The call's place in a queue, until its result is there.
    turn: Option<(Arc<dyn Turns>, u64)>,
}

impl<T> Call<T> {
    fn poll(&mut self, waker: &Waker) -> Poll<Result<T>> {
        let polled = self.cell.poll(waker);
        if polled.is_ready() {
            self.turn = None;
        }
        polled
    }

    /// Drops the result.
    fn leave(&mut self, detached: bool) {
        match self.turn.take() {
            // The queue is the parent's, whose threads may have held its lock at the fork.
            Some((turns, _)) if self.cell.origin.is_elsewhere() => std::mem::forget(turns),
            Some((turns, call)) if detached => turns.detach(call),
            Some((turns, call)) => turns.withdraw(call),
            None => {}
        }
    }
}

impl<T> Drop for Call<T> {
    fn drop(&mut self) {
        self.leave(crate::_is_broken!(DroppedCallsStayQueued));
    }
}

/// Returns a sender and the [`Pending`] that it completes. A sender dropped unused completes it with
/// [`ErrorKind::EngineClosed`].
pub fn channel<T>(operation: &'static str) -> (Sender<T>, Pending<T>) {
    pair(operation, Stays::default(), false)
}

/// As [`channel`], for a call that is in flight until its sender is used or dropped.
pub(crate) fn call<T>(operation: &'static str, stays: Stays) -> (Sender<T>, Pending<T>) {
    pair(operation, stays, true)
}

fn pair<T>(operation: &'static str, stays: Stays, stops_clock: bool) -> (Sender<T>, Pending<T>) {
    let slot = Mutex::new(Slot::Waiting(None));
    let cell = Arc::new(Cell { operation, slot, origin: Origin::here(), stops_clock });
    let sender = Sender { operation, cell: Some(cell.clone()), stays };
    (sender, Pending { state: State::Call(Call { cell, turn: None }) })
}

impl<T> Pending<T> {
    /// Notes where the call of this [`channel`] waits for its turn.
    pub(crate) fn queued_in(mut self, turns: Arc<dyn Turns>, number: u64) -> Pending<T> {
        if let State::Call(call) = &mut self.state {
            call.turn = Some((turns, number));
        }
        self
    }
}

/// The sending half of a [`channel`].
pub struct Sender<T> {
    operation: &'static str,
    cell: Option<Arc<Cell<T>>>,
    stays: Stays,
}

impl<T> Sender<T> {
    /// Stores the result and wakes the waiter.
    pub fn send(mut self, result: Result<T>) {
        self.finish(result);
    }

    fn finish(&mut self, result: Result<T>) {
        let Some(cell) = self.cell.take() else { return };
        let waiter = cell.fill(result);
        // In this order: a value without a waiter is dropped, the call is not in flight any more, and then its waiter, which may close
        // the file, learns of it.
        drop(cell);
        self.stays = Stays::default();
        waiter.into_iter().for_each(wakes::wake);
    }
}

crate::_debug_parts!([T] Sender<T>, |sender| operation: sender.operation);

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // An error allocates, and nearly every sender has been used.
        if self.cell.is_some() {
            self.finish(Err(Error::new(ErrorKind::EngineClosed, self.operation)));
        }
    }
}

/// The place between the two halves. The lock is held only while the value is moved, never while other code
/// runs.
struct Cell<T> {
    operation: &'static str,
    slot: Mutex<Slot<T>>,
    origin: Origin,
    /// The result needs nothing of the program's, whose paused clock stands until then.
    stops_clock: bool,
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

    /// Stores the result and returns the waiter's waker.
    fn fill(&self, result: Result<T>) -> Option<Waker> {
        let before = std::mem::replace(&mut *self.lock(), Slot::Filled(result));
        match before {
            Slot::Waiting(waker) => waker,
            Slot::Filled(_) | Slot::Taken => None,
        }
    }

    fn poll(&self, waker: &Waker) -> Poll<Result<T>> {
        if self.stops_clock {
            return paused_clock::poll(waker, |waker| self.poll_slot(waker));
        }
        self.poll_slot(waker)
    }

    fn poll_slot(&self, waker: &Waker) -> Poll<Result<T>> {
        let mut slot = self.lock();
        match std::mem::replace(&mut *slot, Slot::Taken) {
            Slot::Filled(result) => Poll::Ready(result),
            Slot::Taken => Poll::Ready(Err(completed_before())),
            // The thread that would complete the call exists in the parent only.
            Slot::Waiting(_) if self.origin.is_elsewhere() => {
                Poll::Ready(Err(Error::new(ErrorKind::Forked, self.operation)))
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
