//! The functions that a program may call inside a world.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay::internal::{ErrorExt, Sender, channel, here, ready};
use forebay::{Error, ErrorKind, Pending, Result};

use crate::fault::Rule;
use crate::history::What;
use crate::hub;
use crate::node;

/// Returns whether a world runs on this thread.
pub fn is_inside() -> bool {
    here::world() != 0
}

/// Returns the time that the current node's clock shows; zero outside of a world. That is the time since the world's start, unless
/// [`Node::set_drift_ppm`](super::Node::set_drift_ppm) or [`Node::advance_clock`](super::Node::advance_clock) changed the clock.
pub fn now() -> Duration {
    Duration::from_nanos(here::now_ns())
}

/// Returns the time since the world's start, independent of its nodes' clocks; zero outside of a world. A program under test does
/// not use it; the history that a checker judges does.
pub fn world_time() -> Duration {
    Duration::from_nanos(hub::current().map_or(0, |hub| hub.now_ns()))
}

/// Returns a number below `n` (at most 2^32) that the world's seed decides; 0 outside of a world.
/// [`shrink`](super::shrink()) makes these smaller, too.
pub fn random(n: u64) -> u64 {
    hub::current().map_or(0, |hub| hub.fate.borrow_mut().source.below(n.min(1 << 32)))
}

/// Adds bytes of the program to the world's [`history_digest`](super::World::history_digest).
pub fn note(bytes: &[u8]) {
    if let Some(hub) = hub::current() {
        let mut fate = hub.fate.borrow_mut();
        fate.history.note(What::Program, &[bytes.len() as u64]);
        fate.history.bytes(bytes);
    }
}

/// Makes faults strike on the current node's disks as `rule` describes, from now on; see [`Rule`]. Does nothing outside
/// of a world.
pub fn inject(rule: Rule) {
    node::current_node().inject(rule);
}

/// Removes all rules of the current node, those of the disks' profiles too. The damage that faults did to the disks
/// stays.
pub fn clear_faults() {
    node::current_node().clear_faults();
}

/// Cuts the power of the current node here and now. It never returns. On node 0, where a program starts, the run ends with
/// [`FailureKind::PowerCut`](super::FailureKind::PowerCut); elsewhere the node's tasks are dropped. Outside of a world it waits for
/// ever.
pub async fn power_cut() {
    node::current_node().power_cut().await;
    std::future::pending().await
}

/// Starts a task of the program on the current node and returns its handle. The world polls it in seeded order, now outside of
/// all shards and now on one of them, as a multi-threaded runtime might. That moves the operations that it
/// awaits from thread to thread.
///
/// A panic of the task ends the run. Dropping the handle lets the task run on. Tasks that have not ended when
/// the program ends are dropped.
pub fn spawn<F>(future: F) -> Task<F::Output>
where
    F: Future + Send + 'static,
    F::Output: 'static,
{
    start(future, true, None)
}

/// Does the same as [`spawn`] for a task that stays outside of all shards, and so need not be `Send`.
pub fn spawn_local<F>(future: F) -> Task<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    start(future, false, None)
}

/// Starts a task on the node with this number; `None` for the current one.
pub(crate) fn start<F>(future: F, wanders: bool, node: Option<u32>) -> Task<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let refused = |error| Task { pending: ready(Err(error)), abort: Arc::default(), waker: None };
    let Some(hub) = hub::current() else {
        return refused(Error::new(ErrorKind::OutsideWorld, "spawn"));
    };
    let node = node.map_or_else(|| hub.here(), |number| hub.node(number));
    if !node.is_on() {
        let number = node.number;
        let note = format!("node {number} has no power: Node::power_on comes first");
        return refused(Error::invalid("spawn", note));
    }
    let (answer, pending) = channel("task");
    let abort = Arc::<AtomicBool>::default();
    let answer = CancelOnDrop(Some(answer));
    let future = async move {
        let mut answer = answer;
        let output = future.await;
        if let Some(answer) = answer.0.take() {
            answer.send(Ok(output));
        }
    };
    let waker = hub.tasks.add(node, Box::pin(future), wanders, abort.clone());
    Task { pending, abort, waker: Some(waker) }
}

/// Sends an error for a task that is dropped before its end.
struct CancelOnDrop<T>(Option<Sender<T>>);

impl<T> Drop for CancelOnDrop<T> {
    fn drop(&mut self) {
        if let Some(answer) = self.0.take() {
            answer.send(Err(Error::new(ErrorKind::TaskCancelled, "task")));
        }
    }
}

/// A task of the program. Awaiting it yields the task's return value.
///
/// The error is [`ErrorKind::TaskCancelled`] when the task was aborted or the run ended.
#[must_use = "dropping the handle lets the task run on; use `let _ =` to say so"]
pub struct Task<T> {
    pending: Pending<T>,
    abort: Arc<AtomicBool>,
    waker: Option<Waker>,
}

impl<T> Task<T> {
    /// Aborts the task: at its next turn it is dropped, at the await that it has reached.
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

forebay::_debug_parts!([T] Task<T>);

/// Returns a future that waits for a time by the current node's clock, which costs no real time. Resolution: a
/// nanosecond.
///
/// The future's error is [`ErrorKind::OutsideWorld`] where no world runs.
pub fn sleep(duration: Duration) -> Sleep {
    Sleep { wait: Wait::For(duration), timer: None }
}

/// Returns a future that waits until the current node's clock ([`now`]) shows `time`.
///
/// The future's error is [`ErrorKind::OutsideWorld`] where no world runs.
pub fn sleep_until(time: Duration) -> Sleep {
    Sleep { wait: Wait::UntilNs(node::ns(time)), timer: None }
}

/// The future of [`sleep`] and [`sleep_until`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep {
    wait: Wait,
    /// The time of its wake-up, in nanoseconds of the world, and its number among the sleepers.
    timer: Option<(u64, u64)>,
}

#[derive(Debug)]
enum Wait {
    /// From the first poll on.
    For(Duration),
    /// In nanoseconds of the node's clock.
    UntilNs(u64),
}

impl Future for Sleep {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let Some(hub) = hub::current() else {
            return Poll::Ready(Err(Error::new(ErrorKind::OutsideWorld, "sleep")));
        };
        let until_ns = match self.wait {
            Wait::For(duration) => here::now_ns().saturating_add(node::ns(duration)),
            Wait::UntilNs(until_ns) => until_ns,
        };
        self.wait = Wait::UntilNs(until_ns);
        if let Some((at_ns, number)) = self.timer.take() {
            hub.tasks.forget_sleeper(at_ns, number);
        }
        if here::now_ns() >= until_ns {
            return Poll::Ready(Ok(()));
        }
        let at_ns = hub.here().clock.get().world_ns_at(until_ns);
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

/// Awaits `future` for at most `limit` by the current node's clock, and drops it then.
///
/// # Errors
/// [`ErrorKind::Elapsed`] when the time has passed first; [`ErrorKind::OutsideWorld`] where no world runs and the future is not
/// ready immediately.
pub async fn timeout<F: IntoFuture>(limit: Duration, future: F) -> Result<F::Output> {
    let mut future = std::pin::pin!(future.into_future());
    let mut sleep = sleep(limit);
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut sleep)
            .poll(context)
            .map(|slept| Err(slept.err().unwrap_or_else(|| Error::new(ErrorKind::Elapsed, "timeout"))))
    })
    .await
}

/// Returns a clock that ticks every `period` by the current node's clock; the first tick is after one period.
pub fn interval(period: Duration) -> Interval {
    Interval { next: now().saturating_add(period), period }
}

/// The ticks of [`interval`].
#[derive(Debug)]
pub struct Interval {
    next: Duration,
    period: Duration,
}

impl Interval {
    /// Waits for the next tick. A missed tick is returned immediately, and the next tick is a whole period later.
    ///
    /// # Errors
    /// [`ErrorKind::OutsideWorld`] where no world runs.
    pub async fn tick(&mut self) -> Result<()> {
        sleep_until(self.next).await?;
        self.next = if now() >= self.next.saturating_add(self.period) {
            now().saturating_add(self.period)
        } else {
            self.next.saturating_add(self.period)
        };
        Ok(())
    }
}

/// Polls `future` at most `polls` times and returns its output, or drops it where it is and returns `None`.
///
/// Called with every number from 0 on until it no longer returns `None`, it drops a future at each of its
/// awaits. Works on any executor.
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

/// Polls `future` at most `polls` times and then stops. Returns `Ok` with the output, or `Err` with the
/// future itself, which can be held for ever, polled later on another task or thread, or dropped.
///
/// A program does the same when it leaves a future in a `select!` or a `buffer_unordered` whose body waits
/// for something else. Other operations must make progress meanwhile, and the kept future may cost them no
/// more than the memory that it holds. Works on any executor.
///
/// ```
/// use forebay::Open;
/// use forebay_sim::{self as sim, World};
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
