//! Slows writers down while flushes or compaction are behind: each write a little, and never to a stop.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::compact::pick::{LEVEL0_FULL, LEVEL0_MAX, top_bytes};
use crate::budget::Budget;
use crate::event::Event;
use crate::table::TABLE_MEMORY;

/// Number of level-0 tables in a keyspace from which on writers are slowed.
///
/// It lies above [`LEVEL0_FULL`], where compaction starts, because writers would be slowed with no compaction running; and below
/// [`LEVEL0_MAX`], so that one compaction ends the delay. `DESIGN.md` has the number.
const LEVEL0_SLOW: usize = 25;
const _: () = assert!(LEVEL0_FULL < LEVEL0_SLOW && LEVEL0_SLOW < LEVEL0_MAX && LEVEL0_MAX < LEVEL0_SLOWEST);
/// Number of level-0 tables at which writers are slowed the most.
const LEVEL0_SLOWEST: usize = 50;
/// Pending compaction bytes from which on writers are slowed: at least this much, and about as much as the merging of all runs adds
/// in one step.
const PENDING_SLOW_MIN: u64 = 256 << 20;
/// Ratio of the pending bytes at which writers are slowed the most to those.
const PENDING_SLOWEST: u64 = 4;
/// The longest delay of a put.
const DELAY_MAX: Duration = Duration::from_millis(20);

/// Returns the delay of each put, which grows with the square of how far behind compaction is.
fn delay(level0: usize, pending_bytes: u64, pending_slow: u64) -> Duration {
    let behind = |value: u64, slow: u64, slowest: u64| {
        let over = value.saturating_sub(slow).min(slowest - slow);
        over as f64 / (slowest - slow) as f64
    };
    let level0 = behind(level0 as u64, LEVEL0_SLOW as u64, LEVEL0_SLOWEST as u64);
    let pending = behind(pending_bytes, pending_slow, pending_slow * PENDING_SLOWEST);
    let worst = level0.max(pending);
    DELAY_MAX.mul_f64(worst * worst)
}

/// Returns the tables in level 0 of one keyspace that slow writers as much as this many of all keyspaces do. All keyspaces together
/// slow writers once their metadata use half of the cache.
pub(super) fn crowd(tables: usize, budget: &Budget) -> usize {
    let half = (budget.cache / 2).max(1);
    (LEVEL0_SLOW as u64 * TABLE_MEMORY * tables as u64 / half) as usize
}

/// How far behind compaction is, and the writers that wait because of it.
///
/// Executors differ in their clocks, so waiting writers do not sleep: a task of the store sleeps and wakes
/// them.
#[derive(Debug)]
pub(crate) struct WriteStall {
    /// Pending compaction bytes from which on writers are slowed.
    pending_slow: u64,
    level0: AtomicUsize,
    pending_bytes: AtomicU64,
    /// Counts the sleeps that have ended.
    ticks: AtomicU64,
    /// The last tick that a writer waits for. This is not a count of waiters: a waiter that is not polled any more would keep the
    /// task sleeping forever.
    wanted: AtomicU64,
    /// Wakes the waiting writers.
    ticked: Event,
    /// Wakes the task that sleeps for them.
    asked: Event,
}

impl WriteStall {
    pub(crate) fn new(budget: &Budget) -> WriteStall {
        WriteStall::slow_from(PENDING_SLOW_MIN.max(top_bytes(budget) * 10))
    }

    fn slow_from(pending_slow: u64) -> WriteStall {
        WriteStall {
            pending_slow,
            level0: AtomicUsize::new(0),
            pending_bytes: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            ticked: Event::default(),
            asked: Event::default(),
        }
    }

    pub(crate) fn set_level0(&self, tables: usize) {
        self.level0.store(tables, Ordering::Relaxed);
        self.notify();
    }

    /// Sets the bytes that compaction has to rewrite.
    pub(crate) fn set_pending_bytes(&self, bytes: u64) {
        self.pending_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Returns how long each put has to wait now.
    pub(crate) fn delay(&self) -> Duration {
        let (level0, pending) = (&self.level0, &self.pending_bytes);
        delay(level0.load(Ordering::Relaxed), pending.load(Ordering::Relaxed), self.pending_slow)
    }

    /// Waits for the delay of a put: until one whole sleep of the store's task has passed.
    pub(crate) async fn wait(&self, mut is_over: impl FnMut() -> bool) {
        let end = self.ticks.load(Ordering::Acquire) + 2;
        self.wanted.fetch_max(end, Ordering::AcqRel);
        self.asked.notify();
        let mut has_ended =
            || self.ticks.load(Ordering::Acquire) >= end || self.delay().is_zero() || is_over();
        self.ticked.until(|| has_ended().then_some(())).await;
    }

    /// Runs the task that sleeps, on the store's shard.
    pub(crate) async fn run(&self, is_over: impl Fn() -> bool) {
        loop {
            // Without a delay no writer waits, whatever `wanted` is.
            let is_wanted = || self.ticks.load(Ordering::Acquire) < self.wanted.load(Ordering::Acquire);
            let waits = || is_over() || (!self.delay().is_zero() && is_wanted());
            self.asked.until(|| waits().then_some(())).await;
            // A put that arrives during a sleep waits for its rest and for the next one: half more on
            // average.
            if is_over() || forebay::shard::sleep(self.delay().mul_f64(2.0 / 3.0)).await.is_err() {
                return;
            }
            self.ticks.fetch_add(1, Ordering::AcqRel);
            self.ticked.notify();
        }
    }

    /// Wakes the task and all waiting writers, which check again.
    pub(crate) fn notify(&self) {
        self.asked.notify();
        self.ticked.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a writer that was slowed down and then not polled any more kept the task awake. Once compaction had caught up
    /// the task slept for zero time and used its shard's whole processor.
    #[test]
    fn a_writer_that_is_not_polled_any_more_keeps_nobody_awake() {
        use futures::FutureExt;
        let stall = WriteStall::slow_from(PENDING_SLOW_MIN);
        stall.set_level0(LEVEL0_SLOWEST);
        let mut slowed = Box::pin(stall.wait(|| false));
        assert!((&mut slowed).now_or_never().is_none());
        // Off shards a sleep is an error, at which the task ends.
        assert!(stall.run(|| false).now_or_never().is_some(), "it does not sleep for a writer that waits");
        stall.set_level0(0);
        assert!(stall.run(|| false).now_or_never().is_none(), "it sleeps although nobody has to wait");
        stall.set_level0(LEVEL0_SLOWEST);
        stall.ticks.fetch_add(2, Ordering::AcqRel);
        assert!(stall.run(|| false).now_or_never().is_none(), "it sleeps for one who may go on");
        assert!(slowed.now_or_never().is_some());
    }

    #[test]
    fn writers_are_slowed_smoothly_and_never_for_long() {
        let delay = |level0, pending| delay(level0, pending, PENDING_SLOW_MIN);
        assert_eq!(delay(LEVEL0_SLOW, PENDING_SLOW_MIN), Duration::ZERO);
        let mut last = Duration::ZERO;
        for level0 in LEVEL0_SLOW + 1..LEVEL0_SLOWEST + 9 {
            let next = delay(level0, 0);
            assert!(next >= last && next <= DELAY_MAX);
            last = next;
        }
        assert_eq!(last, DELAY_MAX);
        assert_eq!(delay(0, u64::MAX), DELAY_MAX);
        assert!(delay(0, PENDING_SLOW_MIN + (1 << 20)) < Duration::from_micros(10));
    }
}
