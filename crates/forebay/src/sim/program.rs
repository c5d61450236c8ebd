//! What a program may call inside a world.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::here;
use crate::base::pending::{self, Pending, Sender};
use crate::sim::fault::Rule;
use crate::sim::history::What;
use crate::sim::hub;

/// Does a world run on this thread?
pub fn is_inside() -> bool {
    here::world() != 0
}

/// The world's time since its beginning; zero outside of one.
pub fn now() -> Duration {
    Duration::from_nanos(here::now_ns())
}

/// A number below `n` (at most 2^32) that the world's seed decides; 0 outside of a world. [`shrink`](super::shrink) makes these smaller, too.
pub fn random(n: u64) -> u64 {
    hub::current().map_or(0, |hub| hub.fate.borrow_mut().source.below(n.min(1 << 32)))
}

/// Adds something of the program's to the world's [`history_digest`](super::World::history_digest).
pub fn note(bytes: &[u8]) {
    if let Some(hub) = hub::current() {
        let mut fate = hub.fate.borrow_mut();
        fate.history.note(What::Program, &[bytes.len() as u64]);
        fate.history.bytes(bytes);
    }
}

/// From now on faults strike as `rule` says; see [`Rule`]. Does nothing outside of a world.
pub fn inject(rule: Rule) {
    if let Some(hub) = hub::current() {
        hub.machine.borrow_mut().inject(rule);
    }
}

/// Takes all rules back, those of the disks' profiles too. What faults did to the disks stays.
pub fn clear_faults() {
    if let Some(hub) = hub::current() {
        hub.machine.borrow_mut().clear_faults();
    }
}

/// Cuts the power here and now: never answers, and the run ends with
/// [`FailureKind::PowerCut`](super::FailureKind::PowerCut). Outside of a world it waits for ever.
pub async fn power_cut() {
    if let Some(hub) = hub::current() {
        hub.cut.set(hub::Cut { now: true, ..hub.cut.get() });
    }
    std::future::pending().await
}

/// Starts a task of the program. The world polls it in seeded order, now outside of all shards and now on one of them, as a
/// multi-threaded runtime might: that moves the operations that it awaits from thread to thread.
///
/// Its panic ends the run. Dropping the handle lets it run on; tasks that are not over when the program is are dropped.
pub fn spawn<F>(future: F) -> Task<F::Output>
where
    F: Future + Send + 'static,
    F::Output: 'static,
{
    start(future, true)
}

/// As [`spawn`] for a task that stays outside of all shards, and so need not be `Send`.
pub fn spawn_local<F>(future: F) -> Task<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    start(future, false)
}

fn start<F>(future: F, wanders: bool) -> Task<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let Some(hub) = hub::current() else {
        let error = Error::new(ErrorKind::OutsideWorld, "spawn");
        return Task { pending: Pending::ready(Err(error)), abort: Arc::default(), waker: None };
    };
    let (answer, pending) = pending::channel("task");
    let abort = Arc::<AtomicBool>::default();
    let answer = Answer(Some(answer));
    let future = async move {
        let mut answer = answer;
        let output = future.await;
        if let Some(answer) = answer.0.take() {
            answer.send(Ok(output));
        }
    };
    let waker = hub.tasks.add(Box::pin(future), wanders, abort.clone());
    Task { pending, abort, waker: Some(waker) }
}

/// Answers for a task that was dropped before its end.
struct Answer<T>(Option<Sender<T>>);

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let Some(answer) = self.0.take() {
            answer.send(Err(Error::new(ErrorKind::TaskCancelled, "task")));
        }
    }
}

/// A task of the program: await it to get what it returned.
///
/// The error is [`ErrorKind::TaskCancelled`] when it was aborted, or the run ended.
#[must_use = "dropping the handle lets the task run on; use `let _ =` to say so"]
pub struct Task<T> {
    pending: Pending<T>,
    abort: Arc<AtomicBool>,
    waker: Option<Waker>,
}

impl<T> Task<T> {
    /// Has the task dropped at its next turn, at whichever await it stands.
    pub fn abort(&self) {
        self.abort.store(true, Ordering::SeqCst);
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        Pin::new(&mut self.pending).poll(context)
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").finish_non_exhaustive()
    }
}

/// Waits in the world's time, which costs no real time. Resolution: a nanosecond.
///
/// The future's error is [`ErrorKind::OutsideWorld`] where no world runs.
pub fn sleep(duration: Duration) -> Sleep {
    Sleep { duration, timer: None }
}

/// The future of [`sleep`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep {
    duration: Duration,
    /// When it wakes, in nanoseconds, and its number among the sleepers.
    timer: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let Some(hub) = hub::current() else {
            return Poll::Ready(Err(Error::new(ErrorKind::OutsideWorld, "sleep")));
        };
        let duration_ns = u64::try_from(self.duration.as_nanos()).unwrap_or(u64::MAX);
        let at_ns = self.timer.map_or_else(|| hub.now_ns().saturating_add(duration_ns), |(at_ns, _)| at_ns);
        if let Some((at_ns, number)) = self.timer.take() {
            hub.tasks.forget_sleeper(at_ns, number);
        }
        if hub.now_ns() >= at_ns {
            // Polled again it is ready at once.
            self.duration = Duration::ZERO;
            return Poll::Ready(Ok(()));
        }
        self.timer = Some((at_ns, hub.tasks.sleep_until(at_ns, context.waker().clone())));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let (Some((at_ns, number)), Some(hub)) = (self.timer, hub::current()) {
            hub.tasks.forget_sleeper(at_ns, number);
        }
    }
}

/// Polls `future` at most `polls` times and then drops it where it stands: `None` says that it was dropped.
///
/// With every number from 0 on, until the answer is not `None`, a future has been dropped at each of its awaits. Works on any
/// executor.
pub async fn dropped_after<F: IntoFuture>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = Some(Box::pin(future.into_future()));
    let mut polled = 0;
    std::future::poll_fn(move |context| {
        let Some(going) = &mut future else { return Poll::Ready(None) };
        if polled == polls {
            future = None;
            return Poll::Ready(None);
        }
        polled += 1;
        match going.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polled == polls => {
                future = None;
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Polls `future` at most `polls` times and then keeps it where it stands: `Ok` has its output, `Err` the future itself, to be
/// held for ever, polled later on another task or thread, or dropped.
///
/// This is what a program does that leaves a future in a `select!` or a `buffer_unordered` whose body waits for something
/// else. Others must go on meanwhile, and what the kept future may cost them is the memory that it holds. Works on any
/// executor.
///
/// ```
/// use forebay::sim::{self, World};
/// use forebay::Open;
///
/// let mut world = World::new(1);
/// let outcome: Result<forebay::Result<()>, _> = world.run(async |engine| {
///     let file = engine.open("/f", Open::create()).await?;
///     file.write(0, vec![7; 8192]).await?;
///     // Begun, and never polled again until the others are through.
///     let kept = sim::frozen_after(1, file.read(0..4096)).await;
///     file.read(4096..8192).await?;
///     if let Err(read) = kept {
///         assert_eq!(read.await?[..], [7; 4096]);
///     }
///     Ok(())
/// });
/// outcome.unwrap().unwrap();
/// ```
pub async fn frozen_after<F: IntoFuture>(
    polls: usize,
    future: F,
) -> std::result::Result<F::Output, Pin<Box<F::IntoFuture>>> {
    let mut kept = Box::pin(future.into_future());
    let mut polled = 0;
    let output = std::future::poll_fn(|context| {
        if polled == polls {
            return Poll::Ready(None);
        }
        polled += 1;
        match kept.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polled == polls => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    output.ok_or(kept)
}
