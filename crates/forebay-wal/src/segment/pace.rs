//! The pace of zeros: a segment ahead is prepared in steps that follow the log's use, so that no burst of them delays appends.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::error::{Error, ErrorKind, Result};
use crate::wait::wake_all;

/// The most bytes of zeros in one write among groups: the longest delay of a group. A multiple of every write unit, and a piece of
/// the core's scheduler, into which longer requests are divided.
const STEP_BYTES: u64 = 64 << 10;
/// Bytes of zeros in one write while the segment is waited for, or zeros are late.
const ZEROS_BYTES: u64 = 256 << 10;

/// The next zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) bytes: u64,
    /// They run ahead of the log's use.
    pub(super) is_ahead: bool,
}

impl Step {
    /// Returns the step for a segment that is waited for, with this many bytes left.
    pub(super) fn waited_for(left: u64) -> Step {
        Step { bytes: left.min(ZEROS_BYTES), is_ahead: false }
    }
}

/// The reason for zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    /// No reason: the log is idle, and nothing is delayed.
    Idle,
    /// Each group earns some.
    Use,
    /// The segment is waited for.
    Wait,
}

#[derive(Debug)]
struct PaceState {
    demand: Demand,
    /// Bytes of zeros that groups have earned.
    earned: u64,
    stopped: bool,
    /// The tasks that write zeros.
    wakers: Vec<Waker>,
}

/// The pace of a log's zeros, between the log's task and those that write them.
#[derive(Debug)]
pub(crate) struct Pace(Mutex<PaceState>);

impl Pace {
    /// Returns the pace of a log without work.
    pub(crate) fn new() -> Pace {
        Pace(Mutex::new(PaceState { demand: Demand::Idle, earned: 0, stopped: false, wakers: Vec::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, PaceState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a change, and wakes the tasks that wait for it.
    fn change(&self, change: impl FnOnce(&mut PaceState)) {
        let wakers = {
            let mut state = self.lock();
            change(&mut state);
            if state.demand == Demand::Use && state.earned < STEP_BYTES && !state.stopped {
                return;
            }
            std::mem::take(&mut state.wakers)
        };
        wake_all(wakers);
    }

    /// Starts the preparation of a segment: one step is due immediately.
    pub(crate) fn begin(&self) {
        self.lock().earned = STEP_BYTES;
    }

    /// Notes a group, which earns this many bytes of zeros.
    pub(crate) fn earn(&self, bytes: u64) {
        self.change(|state| {
            state.demand = Demand::Use;
            state.earned = state.earned.saturating_add(bytes);
        });
    }

    /// Lets zeros run ahead until the next group.
    pub(crate) fn run_ahead(&self) {
        self.change(|state| state.demand = Demand::Idle);
    }

    /// Lets zeros be written at full speed, until the next group.
    pub(crate) fn hurry(&self) {
        self.change(|state| state.demand = Demand::Wait);
    }

    /// Stops all preparation, for good.
    pub(crate) fn stop(&self) {
        self.change(|state| state.stopped = true);
    }

    /// Waits until zeros are due. `left` is how many bytes of them the segment still needs.
    ///
    /// # Errors
    /// `Closed` once preparation is to [stop](Self::stop).
    pub(super) async fn step(&self, left: u64) -> Result<Step> {
        poll_fn(|context| self.poll_step(left, context)).await
    }

    fn poll_step(&self, left: u64, context: &mut Context<'_>) -> Poll<Result<Step>> {
        let mut state = self.lock();
        if state.stopped {
            return Poll::Ready(Err(Error::new(ErrorKind::Closed, "the log was closed")));
        }
        let demand = if forebay::_is_broken!(ZerosInOneBurst) { Demand::Wait } else { state.demand };
        let due = match demand {
            Demand::Idle => STEP_BYTES,
            Demand::Wait => ZEROS_BYTES,
            Demand::Use => {
                // Groups are faster than zeros so far: longer steps catch up.
                let due = if state.earned >= ZEROS_BYTES { ZEROS_BYTES } else { STEP_BYTES };
                let Some(rest) = state.earned.checked_sub(due) else {
                    if !state.wakers.iter().any(|known| known.will_wake(context.waker())) {
                        state.wakers.push(context.waker().clone());
                    }
                    return Poll::Pending;
                };
                state.earned = rest;
                due
            }
        };
        Poll::Ready(Ok(Step { bytes: left.min(due), is_ahead: demand == Demand::Idle }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polled(pace: &Pace, left: u64) -> Option<u64> {
        match pace.poll_step(left, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(step) => step.ok().map(|step| step.bytes),
            Poll::Pending => None,
        }
    }

    #[test]
    fn zeros_follow_groups_and_come_at_once_while_the_segment_is_waited_for() {
        let pace = Pace::new();
        pace.begin();
        pace.earn(STEP_BYTES / 2);
        assert_eq!(polled(&pace, 1 << 20), Some(STEP_BYTES), "the first step");
        assert_eq!(polled(&pace, 1 << 20), None);
        pace.earn(STEP_BYTES / 2);
        assert_eq!(polled(&pace, 4096), Some(4096));
        assert_eq!(polled(&pace, 1 << 20), None);
        pace.earn(ZEROS_BYTES + 1);
        assert_eq!((polled(&pace, 1 << 20), polled(&pace, 1 << 20)), (Some(ZEROS_BYTES), None));
        pace.run_ahead();
        assert_eq!(polled(&pace, 1 << 20), Some(STEP_BYTES));
        pace.earn(1);
        assert_eq!(polled(&pace, 1 << 20), None);
        pace.hurry();
        assert_eq!(polled(&pace, 1 << 20), Some(ZEROS_BYTES));
        pace.stop();
        assert!(matches!(pace.poll_step(1, &mut Context::from_waker(Waker::noop())), Poll::Ready(Err(_))));
    }
}
