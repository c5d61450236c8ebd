//! What code that runs on a shard may call: spawn, sleep, yield.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::base::class::Class;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::pending::{self, Pending};
use crate::reactor::shard::clock::Ticks;
use crate::reactor::shard::executor::Abort;
use crate::reactor::shard::inbox::Inbox;
use crate::reactor::shard::with_current;

/// The number of the shard whose thread this is; `None` elsewhere.
///
/// ```
/// assert_eq!(forebay::shard::current(), None);
/// ```
pub fn current() -> Option<usize> {
    with_current(|shard| shard.index())
}

/// The class of the task that runs now; elsewhere that of the [`Class::scope`] that is polled, or the default class.
pub fn class() -> Class {
    with_current(|shard| shard.class()).or_else(crate::reactor::class_scope::scoped).unwrap_or_default()
}

/// Starts a task on the shard whose thread this is, in the class of the task that calls. It need not be `Send`.
///
/// Costs two allocations. Dropping the handle lets the task run on.
///
/// # Errors
/// [`ErrorKind::NotOnShard`] on any other thread; there, [`Engine::spawn_on_shard`](crate::Engine::spawn_on_shard)
/// is the way.
pub fn spawn<F>(future: F) -> Result<JoinHandle<F::Output>>
where
    F: Future + 'static,
    F::Output: Send + 'static,
{
    with_current(|shard| {
        let (answer, pending) = pending::channel("task");
        let abort = Arc::<Abort>::default();
        shard.executor().spawn(shard.inbox(), shard.class(), future, answer, abort.clone());
        JoinHandle { pending, abort }
    })
    .ok_or_else(|| Error::new(ErrorKind::NotOnShard, "spawn"))
}

/// Blocks until each shard has heard what was left for it before, such as that a file has no handle any more: a turn
/// takes notes before it runs tasks. A shard that is closing or gone is not waited for. Not on a shard's thread.
pub(crate) fn wait_for_a_turn(inboxes: &[Arc<Inbox>]) {
    let tasks: Vec<_> = inboxes.iter().map(|inbox| spawn_on(inbox, Class::DEFAULT, || async {})).collect();
    for task in tasks {
        // An error says that the shard is no more.
        let _ = task.wait();
    }
}

/// Starts `make`'s future on the shard behind `inbox`.
pub(crate) fn spawn_on<F, Fut>(inbox: &Arc<Inbox>, class: Class, make: F) -> JoinHandle<Fut::Output>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future + 'static,
    Fut::Output: Send + 'static,
{
    if let Some(failure) = inbox.failure() {
        return JoinHandle::failed(failure.into_error("task", None));
    }
    let (answer, pending) = pending::channel("task");
    let abort = Arc::<Abort>::default();
    let heeded = abort.clone();
    inbox.call(Box::new(move |shard| {
        if heeded.is_asked() {
            // What the task would have owned goes before its handle answers, as with a task that had begun.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(make)));
            return answer.send(Err(Error::new(ErrorKind::TaskCancelled, "task")));
        }
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(make));
        match caught {
            Ok(future) => shard.executor().spawn(shard.inbox(), class, future, answer, heeded),
            Err(panic) => answer.send(Err(Error::panicked("task", panic.as_ref()))),
        }
    }));
    JoinHandle { pending, abort }
}

/// A task on a shard: await it, or [`wait`](JoinHandle::wait) for it, to get what it returned.
///
/// The error is [`ErrorKind::TaskPanicked`] when it panicked (the message is in the text),
/// [`ErrorKind::TaskCancelled`] when it was aborted or its engine closed before it finished,
/// [`ErrorKind::EngineClosed`] when the engine closed before it began, and [`ErrorKind::ShardLost`] when the shard's
/// thread died. Dropping the handle, on any thread, lets the task run on.
#[must_use = "dropping the handle is fine, but its result tells whether the task panicked; use `let _ =` to say so"]
pub struct JoinHandle<T> {
    pending: Pending<T>,
    abort: Arc<Abort>,
}

impl<T> JoinHandle<T> {
    /// Of a task that could not begin.
    pub(crate) fn failed(error: Error) -> JoinHandle<T> {
        JoinHandle { pending: Pending::ready(Err(error)), abort: Arc::default() }
    }

    /// Blocks the calling thread until the task is over.
    ///
    /// # Errors
    /// The task's end as above; [`ErrorKind::WaitOnShard`] on a shard's thread.
    pub fn wait(self) -> Result<T> {
        self.pending.wait()
    }

    /// Asks for the task's future to be dropped at its next chance; the handle then answers
    /// [`ErrorKind::TaskCancelled`]. Does nothing to a task that is over.
    pub fn abort(&self) {
        self.abort.ask();
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        Pin::new(&mut self.pending).poll(context)
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").finish_non_exhaustive()
    }
}

/// Lets the other ready tasks and completions of this shard go first.
///
/// ```
/// # use forebay::{Class, Config, Engine, shard};
/// # let engine = Engine::start(Config::default()).unwrap();
/// engine.spawn_on_shard(0, Class::DEFAULT, || async { shard::yield_now().await }).wait().unwrap();
/// ```
pub fn yield_now() -> YieldNow {
    YieldNow { yielded: false, always: true }
}

/// As [`yield_now`], but only when the task's turn has lasted longer than 200 us; costs about 5 ns otherwise.
///
/// Long computations on a shard should await this now and then, or they delay every operation of their shard.
pub fn yield_if_needed() -> YieldNow {
    YieldNow { yielded: false, always: false }
}

/// The future of [`yield_now`] and [`yield_if_needed`]; works on any executor.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct YieldNow {
    yielded: bool,
    always: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let due = self.always || with_current(|shard| shard.executor().slice_is_over(shard)).unwrap_or(false);
        if self.yielded || !due {
            return Poll::Ready(());
        }
        self.yielded = true;
        with_current(|shard| shard.executor().give_way());
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Waits for a while in a task on a shard; no timer is armed, the shard's own wait ends in time.
///
/// Resolution: the kernel's timers, about 50 us. Elsewhere than on a shard the future answers
/// [`ErrorKind::NotOnShard`]: there, the program's own runtime has timers.
pub fn sleep(duration: Duration) -> Sleep {
    Sleep { duration, timer: None, shard: 0, local: PhantomData }
}

/// The future of [`sleep`]; stays on the shard where it was first polled.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep {
    duration: Duration,
    timer: Option<(Ticks, u64)>,
    shard: u32,
    /// Not Send: the timer belongs to one shard.
    local: PhantomData<*const ()>,
}

impl Future for Sleep {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        with_current(|shard| {
            let now = shard.clock().now();
            let (deadline, id) = match self.timer {
                Some((deadline, id)) => (deadline, Some(id)),
                None => {
                    let ns = u64::try_from(self.duration.as_nanos()).unwrap_or(u64::MAX);
                    (now.saturating_add(shard.clock().ticks(ns)), None)
                }
            };
            if now >= deadline {
                if let Some(id) = id {
                    shard.remove_timer(deadline, id);
                }
                self.timer = None;
                self.duration = Duration::ZERO;
                return Poll::Ready(Ok(()));
            }
            let id = shard.set_timer(deadline, id, context.waker());
            self.timer = Some((deadline, id));
            self.shard = shard.uid();
            Poll::Pending
        })
        .unwrap_or_else(|| Poll::Ready(Err(Error::new(ErrorKind::NotOnShard, "sleep"))))
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((deadline, id)) = self.timer {
            with_current(|shard| {
                if shard.uid() == self.shard {
                    shard.remove_timer(deadline, id);
                }
            });
        }
    }
}

/// Gives `future` that long, in a task on a shard; then it is dropped.
///
/// # Errors
/// [`ErrorKind::Elapsed`] when the time passed first; [`ErrorKind::NotOnShard`] elsewhere.
pub fn timeout<F: Future>(duration: Duration, future: F) -> Timeout<F> {
    Timeout { sleep: sleep(duration), future: Some(Box::pin(future)) }
}

/// The future of [`timeout`]. Costs one allocation.
#[must_use = "futures do nothing unless awaited"]
pub struct Timeout<F> {
    sleep: Sleep,
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<F::Output>> {
        if let Some(future) = &mut self.future
            && let Poll::Ready(output) = future.as_mut().poll(context)
        {
            self.future = None;
            return Poll::Ready(Ok(output));
        }
        match Pin::new(&mut self.sleep).poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(slept) => {
                self.future = None;
                Poll::Ready(Err(slept.err().unwrap_or_else(|| Error::new(ErrorKind::Elapsed, "timeout"))))
            }
        }
    }
}

impl<F> fmt::Debug for Timeout<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeout").field("sleep", &self.sleep).finish_non_exhaustive()
    }
}
