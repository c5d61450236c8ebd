//! A lane: one lookup after the other, each verified and timed.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::Poll;
use std::time::Instant;

use super::super::latency::Latency;
use super::super::pattern::SplitMix;
use super::job::WalkWork;

/// The phase of a sample, which decides whether lookups count. The thread that takes the gauge
/// readings sets it. So the lookups counted are those gauged, however late that thread is scheduled.
#[derive(Debug, Default)]
pub(super) struct Phase(AtomicU8);

/// The phase before these two is the beginning, which warms up.
const COUNTING: u8 = 1;
const OVER: u8 = 2;

impl Phase {
    /// Starts counting: lookups count from now on.
    pub(super) fn count(&self) {
        self.0.store(COUNTING, Ordering::Relaxed);
    }

    /// Ends counting: lookups no longer count, and no more are begun.
    pub(super) fn end(&self) {
        self.0.store(OVER, Ordering::Relaxed);
    }
}

/// One lookup in flight: its keys, and the results of its lookups.
#[derive(Debug)]
pub(super) struct Lane {
    keys: SplitMix,
    work: WalkWork,
    phase: Arc<Phase>,
    begun: Instant,
    key: u64,
    tally: Tally,
}

/// Lookups of a lane, or of all lanes, that completed while they counted.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    pub(super) latency: Latency,
    /// Number of times that the task was polled again.
    pub(super) wakes: u64,
}

impl Tally {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self { latency: Latency::new()?, wakes: 0 })
    }

    pub(super) fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        self.wakes += other.wakes;
        self.latency.add(&other.latency)
    }
}

impl Lane {
    /// Returns lane number `lane` of the sample. The lane of this number has the same keys in every row.
    pub(super) fn new(work: &WalkWork, lane: usize, phase: &Arc<Phase>) -> anyhow::Result<Self> {
        let mut keys = SplitMix::new(work.seed ^ SplitMix::new(lane as u64 + 1).next_u64());
        let key = keys.next_u64();
        let (work, phase, tally) = (work.clone(), Arc::clone(phase), Tally::new()?);
        Ok(Self { keys, work, phase, begun: Instant::now(), key, tally })
    }

    /// Returns the key to look up.
    pub(super) fn key(&self) -> u64 {
        self.key
    }

    /// Returns the position of the node at which that lookup begins.
    pub(super) fn root(&self) -> u64 {
        self.work.tree.root(self.work.depth, self.key)
    }

    /// Completes the lookup with `value`, after its task was woken `wakes` times. Returns whether
    /// there is another one.
    ///
    /// # Errors
    /// The value is wrong.
    pub(super) fn completed(&mut self, value: u64, wakes: u64) -> anyhow::Result<bool> {
        let expected = self.work.tree.expected(self.work.depth, self.key);
        anyhow::ensure!(
            value == expected,
            "the lookup of {:#x} gave {value:#x} and not {expected:#x}: the way it was read is faulty",
            self.key
        );
        let now = Instant::now();
        let phase = self.phase.0.load(Ordering::Relaxed);
        if phase == COUNTING {
            self.tally.latency.record(now - self.begun);
            self.tally.wakes += wakes;
        }
        self.begun = now;
        self.key = self.keys.next_u64();
        Ok(phase != OVER)
    }

    pub(super) fn end(self) -> Tally {
        self.tally
    }
}

/// Returns the output of `future`, and how often it was polled again: each time its task was woken, and run.
pub(super) async fn count_wakes<F: Future>(future: F) -> (F::Output, u64) {
    let mut future = pin!(future);
    let mut wakes = 0;
    poll_fn(move |context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready((output, wakes)),
        Poll::Pending => {
            wakes += 1;
            Poll::Pending
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::super::job::WalkRow;
    use super::super::tree::Tree;
    use super::*;

    #[test]
    fn only_right_values_of_the_middle_phase_count() {
        let tree = Tree { node_bytes: 512, fan_out: 30, levels: 2, nodes: 8, seed: 0 };
        let work = WalkWork {
            row: WalkRow::Pread,
            tree,
            unit_bytes: 512,
            depth: 2,
            in_flight: 1,
            threads: 1,
            as_published: false,
            timers: false,
            seconds: 1.0,
            seed: 3,
        };
        let phase = Arc::new(Phase::default());
        let mut lane = Lane::new(&work, 0, &phase).expect("a few kilobytes");
        let right = |lane: &mut Lane| {
            let value = tree.expected(2, lane.key());
            lane.completed(value, 2).expect("the right answer")
        };
        assert!(right(&mut lane), "warming up");
        phase.count();
        assert!(right(&mut lane));
        let wrong = tree.expected(2, lane.key()) ^ 1;
        assert!(lane.completed(wrong, 2).is_err());
        phase.end();
        assert!(!right(&mut lane));
        let tally = lane.end();
        assert_eq!((tally.latency.count(), tally.wakes), (1, 2));
    }

    #[test]
    fn polls_after_the_first_are_counted() {
        let mut left = 3;
        let waiting = poll_fn(move |_| {
            left -= 1;
            if left == 0 { Poll::Ready(9) } else { Poll::Pending }
        });
        let mut counted = pin!(count_wakes(waiting));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        while counted.as_mut().poll(&mut context).is_pending() {}
        let mut done = Box::pin(count_wakes(std::future::ready(1)));
        assert_eq!(done.as_mut().poll(&mut context), Poll::Ready((1, 0)));
    }
}
