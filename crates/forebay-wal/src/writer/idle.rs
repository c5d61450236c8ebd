//! Waits for work.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use forebay::{Engine, shard};

use super::Writer;
use super::next::RETRY;
use crate::error::Result;
use crate::format::Position;
use crate::queue::{Queue, Work};

/// Waits for work, and for the end of a quiet period.
#[derive(Default)]
pub(super) struct Idle {
    tick: Option<Timer>,
    /// The deadline on the engine's clock after which appends that were called and not polled are passed, and
    /// its timer.
    patience: Option<(u64, Timer)>,
    ticks: u32,
    /// The end of the last group that was seen: another one may have been written by a thread that waits.
    seen: Position,
    /// Timer until the task tries again to make the next segment, for lack of space.
    space: Option<Timer>,
    /// The waker of the log's own thread, where it has one.
    parker: Option<Waker>,
    /// The deadline of that thread's first timer.
    due_ns: Cell<Option<u64>>,
}

/// The time without a group is counted in halves, so that a busy log arms a timer only from time to time and
/// not once per group.
const QUIET_TICKS: u32 = 3;

/// Waits for a duration.
enum Timer {
    Shard(shard::Sleep),
    /// Ends at this time on the engine's clock.
    Thread(u64),
}

impl Idle {
    /// Returns the state for a log whose own thread is the calling one.
    pub(super) fn of_thread() -> Idle {
        Idle { parker: Some(forebay::thread_waker()), ..Idle::default() }
    }

    /// Returns the next group; `None` after a quiet period, if the last group had records.
    pub(super) async fn next(&mut self, writer: &Writer) -> Result<Option<Work>> {
        poll_fn(|context| self.poll(writer, context)).await
    }

    /// Does the same on the log's own thread, which [sleeps](Self::sleep) in between.
    pub(super) fn poll_on_thread(&mut self, writer: &Writer) -> Poll<Result<Option<Work>>> {
        let waker = self.parker.clone().unwrap_or_else(|| Waker::noop().clone());
        self.due_ns.set(None);
        self.poll(writer, &mut Context::from_waker(&waker))
    }

    /// Sleeps until there may be work.
    pub(super) fn sleep(&self, engine: &Engine) {
        // A wake-up since the poll has left a token, so either returns immediately.
        match self.due_ns.get() {
            Some(due_ns) => {
                let left_ns = due_ns.saturating_sub(engine.now_ns());
                thread::park_timeout(Duration::from_nanos(left_ns));
            }
            None => thread::park(),
        }
    }

    /// Returns whether the end of a quiet period is being waited for.
    pub(super) fn is_ticking(&self) -> bool {
        self.tick.is_some()
    }

    fn poll(&mut self, writer: &Writer, context: &mut Context<'_>) -> Poll<Result<Option<Work>>> {
        let end = writer.chain.watermark;
        if std::mem::replace(&mut self.seen, end) != end {
            self.ticks = 0;
        }
        let quiet = (writer.chain.marked, writer.mark_after / 2);
        let work = self.poll_all(&writer.shared, writer.room(), quiet, context);
        if work.is_ready() {
            self.ticks = 0;
        }
        work
    }

    fn poll_all(
        &mut self,
        shared: &Queue,
        room: u64,
        (marked, half): (bool, Duration),
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Work>>> {
        loop {
            let mut until_ns = None;
            if let Poll::Ready(work) = shared.poll_work(room, context.waker(), &mut until_ns) {
                return Poll::Ready(work.map(Some));
            }
            let Some(until_ns) = until_ns else {
                self.patience = None;
                break;
            };
            let known = self.patience.take().filter(|(known_ns, _)| *known_ns == until_ns);
            let (_, mut timer) = known.unwrap_or_else(|| {
                let left_ns = until_ns.saturating_sub(shared.engine.now_ns());
                (until_ns, self.timer(shared, Duration::from_nanos(left_ns)))
            });
            match self.poll_timer(&mut timer, shared, context) {
                Poll::Pending => {
                    self.patience = Some((until_ns, timer));
                    break;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) => shared.pass(),
            }
        }
        let known = self.space.take();
        if shared.is_short() {
            let mut timer = known.unwrap_or_else(|| self.timer(shared, RETRY));
            match self.poll_timer(&mut timer, shared, context) {
                Poll::Pending => self.space = Some(timer),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) => return Poll::Ready(Ok(Some(Work::Space))),
            }
        }
        let known = self.tick.take();
        if marked {
            return Poll::Pending;
        }
        let mut timer = known.unwrap_or_else(|| self.timer(shared, half));
        loop {
            match self.poll_timer(&mut timer, shared, context) {
                Poll::Pending => {
                    self.tick = Some(timer);
                    return Poll::Pending;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) => {
                    self.ticks += 1;
                    if self.ticks >= QUIET_TICKS {
                        return Poll::Ready(Ok(None));
                    }
                    timer = self.timer(shared, half);
                }
            }
        }
    }

    fn timer(&self, shared: &Queue, duration: Duration) -> Timer {
        if self.parker.is_none() {
            return Timer::Shard(shard::sleep(duration));
        }
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Timer::Thread(shared.engine.now_ns().saturating_add(ns))
    }

    fn poll_timer(&self, timer: &mut Timer, shared: &Queue, context: &mut Context<'_>) -> Poll<Result<()>> {
        match timer {
            Timer::Shard(sleep) => Pin::new(sleep).poll(context).map_err(Into::into),
            Timer::Thread(end_ns) if shared.engine.now_ns() >= *end_ns => Poll::Ready(Ok(())),
            Timer::Thread(end_ns) => {
                self.due_ns.set(Some(self.due_ns.get().map_or(*end_ns, |due_ns| due_ns.min(*end_ns))));
                Poll::Pending
            }
        }
    }
}
