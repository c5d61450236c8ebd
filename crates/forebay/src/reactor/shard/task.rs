//! Functions for code that runs on a shard: spawn, sleep, yield.

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

/// Returns the number of the shard that runs on this thread; `None` on any other thread.
///
/// ```
/// assert_eq!(forebay::shard::current(), None);
/// ```
pub fn current() -> Option<usize> {
    with_current(|shard| shard.index())
}

/// Returns the class of the running task. Elsewhere, returns that of the [`Class::scope`] that is polled, or
/// the default class.
pub fn class() -> Class {
    with_current(|shard| shard.class()).or_else(crate::reactor::class_scope::scoped).unwrap_or_default()
}

/// Starts a task on the calling thread's shard, in the class of the calling task, and returns its handle. It
/// need not be `Send`.
///
/// Costs two allocations. Dropping the handle does not stop the task.
///
/// # Errors
/// Fails with [`ErrorKind::NotOnShard`] on any other thread; use
/// [`Engine::spawn_on_shard`](crate::Engine::spawn_on_shard) there.
///
/// ```
/// # use forebay::{Class, Config, Engine, Open, shard};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let engine = Engine::start(Config::new())?;
/// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
/// # file.write(0, vec![7; 16_384]).wait()?;
/// let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
///     let parts = [0, 8192].map(|at| {
///         let file = file.clone();
///         shard::spawn(async move { file.read(at..at + 8192).await })
///     });
///     let mut bytes = 0;
///     for part in parts {
///         bytes += part?.await??.len();
///     }
///     forebay::Result::<usize>::Ok(bytes)
/// });
/// assert_eq!(task.wait()??, 16_384);
/// # Ok(()) }
/// ```
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

/// Blocks until each shard has handled all earlier notices, such as the drop of a file's last handle: a turn handles notices before
/// it runs tasks. A closing or ended shard is not waited for. Must not be called on a shard's thread.
pub(crate) fn wait_for_a_turn(inboxes: &[Arc<Inbox>]) {
    let tasks: Vec<_> = inboxes.iter().map(|inbox| spawn_on(inbox, Class::DEFAULT, || async {})).collect();
    for task in tasks {
        // An error means that the shard no longer exists.
        let _ = task.wait();
    }
}

/// Starts the future that `make` returns on the shard behind `inbox`.
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
            // Values that the task would have owned are dropped before its handle completes, as with a task that has started.
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

/// A handle to a task on a shard. Await it, or [`wait`](JoinHandle::wait) for it, to get the task's result.
///
/// The error is [`ErrorKind::TaskPanicked`] if the task panicked (the message is in the text), [`ErrorKind::TaskCancelled`] if it
/// was aborted or its engine closed before it finished, [`ErrorKind::EngineClosed`] if the engine closed before it started, and
/// [`ErrorKind::ShardLost`] if the shard's thread died. Dropping the handle, on any thread, does not stop the task.
#[must_use = "dropping the handle is fine, but its result tells whether the task panicked; use `let _ =` to say so"]
pub struct JoinHandle<T> {
    pending: Pending<T>,
    abort: Arc<Abort>,
}

impl<T> JoinHandle<T> {
    /// Returns the handle of a task that could not start.
    pub(crate) fn failed(error: Error) -> JoinHandle<T> {
        JoinHandle { pending: Pending::ready(Err(error)), abort: Arc::default() }
    }

    /// Blocks the calling thread until the task has ended, and returns its result.
    ///
    /// # Errors
    /// Returns the task's error as listed for the handle, or [`ErrorKind::WaitOnShard`] on a shard's thread.
    pub fn wait(self) -> Result<T> {
        self.pending.wait()
    }

    /// Requests that the task's future be dropped at its next poll. The handle then completes with
    /// [`ErrorKind::TaskCancelled`]. Has no effect on a task that has ended.
    ///
    /// ```
    /// # use forebay::{Class, Config, Engine, ErrorKind};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::start(Config::new())?;
    /// let task = engine.spawn_on_shard(0, Class::DEFAULT, std::future::pending::<()>);
    /// task.abort();
    /// assert_eq!(task.wait().map_err(|error| error.kind()), Err(ErrorKind::TaskCancelled));
    /// # Ok(()) }
    /// ```
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

crate::_debug_parts!([T] JoinHandle<T>);

/// Returns a future that yields to the other ready tasks and completions of this shard.
///
/// ```
/// # use forebay::{Class, Config, Engine, shard};
/// # let engine = Engine::start(Config::new()).unwrap();
/// engine.spawn_on_shard(0, Class::DEFAULT, || async { shard::yield_now().await }).wait().unwrap();
/// ```
pub fn yield_now() -> YieldNow {
    YieldNow { yielded: false, always: true }
}

/// Returns a future as [`yield_now`], which yields only if the task's turn has lasted longer than 200 us;
/// otherwise it costs about 5 ns.
///
/// Long computations on a shard should await this regularly; otherwise they delay every operation of their
/// shard.
///
/// ```
/// # use forebay::{Class, Config, Engine, shard};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = Engine::start(Config::new())?;
/// let task = engine.spawn_on_shard(0, Class::BACKGROUND, || async {
///     let mut sum = 0u64;
///     for number in 0..100_000u64 {
///         sum = sum.wrapping_add(number * number);
///         shard::yield_if_needed().await; // I/O of the shard goes on meanwhile
///     }
///     sum
/// });
/// assert_eq!(task.wait()?, 333_328_333_350_000);
/// # Ok(()) }
/// ```
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

/// Returns a future that waits for a duration in a task on a shard. No timer is armed; the shard's own wait
/// ends in time.
///
/// The resolution is that of the kernel's timers, about 50 us. Outside a shard the future fails with
/// [`ErrorKind::NotOnShard`]; use the timers of the program's own runtime there.
///
/// ```
/// # use forebay::{Class, Config, Engine, shard};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = Engine::start(Config::new())?;
/// # use std::time::Duration;
/// let task = engine.spawn_on_shard(0, Class::DEFAULT, || shard::sleep(Duration::from_millis(1)));
/// task.wait()??;
/// # Ok(()) }
/// ```
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

/// Returns `future` limited to `duration`, in a task on a shard. When the time has passed, the future is
/// dropped.
///
/// # Errors
/// Fails with [`ErrorKind::Elapsed`] if the time passed first, and with [`ErrorKind::NotOnShard`] outside a
/// shard.
///
/// ```
/// # use forebay::{Class, Config, Engine, ErrorKind, Open, shard};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let engine = Engine::start(Config::new())?;
/// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
/// # file.write(0, vec![7; 16_384]).wait()?;
/// # use std::time::Duration;
/// let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
///     match shard::timeout(Duration::from_secs(5), file.read(0..4096)).await {
///         Err(error) if error.kind() == ErrorKind::Elapsed => Ok(None), // the read was dropped
///         block => block?.map(Some),
///     }
/// });
/// assert!(task.wait()??.is_some());
/// # Ok(()) }
/// ```
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

crate::_debug_parts!([F] Timeout<F>, |timeout| sleep: timeout.sleep);
