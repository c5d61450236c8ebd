//! What holds for all slots of a shard together, checked in debug builds.

#[cfg(debug_assertions)]
use crate::reactor::scheduler::DeviceQueues;
#[cfg(debug_assertions)]
use crate::reactor::shard::Shard;
use crate::reactor::shard::ops::Ops;
#[cfg(debug_assertions)]
use crate::reactor::shard::ops::brings_memory;
#[cfg(debug_assertions)]
use crate::reactor::shard::optable::{Continuation, SlotState};

impl Ops {
    /// Checks, once nothing more can be submitted, that short reads wait for memory only while some will be released.
    #[inline]
    pub(super) fn check_starved(&self, depth: u32, driver_is_full: bool) {
        debug_assert!(
            self.starved.is_empty() || self.some_returns() || self.in_flight >= depth || driver_is_full,
            "a read waits for memory only while an operation under way gives some back"
        );
    }

    /// Checks every slot. A large table is left out: the tests that fill one would need minutes.
    #[cfg(debug_assertions)]
    fn check_invariants(&self, queues: &DeviceQueues) {
        const CHECKED_SLOTS_MAX: u32 = 1024;
        if self.table.capacity() > CHECKED_SLOTS_MAX {
            return;
        }
        // One pass: before each sleep of a shard it is a tenth of a simulated run.
        let (mut live, mut in_flight, mut returning, mut staged, mut charged, mut charges) =
            (0, 0, 0, 0, 0, 0);
        for slot in self.table.slots() {
            match slot.state {
                SlotState::Free | SlotState::Done => {}
                SlotState::InFlight => {
                    in_flight += 1;
                    let returns = matches!(slot.continuation, Continuation::Orphan) || brings_memory(slot);
                    returning += u32::from(returns);
                }
                SlotState::Staged => staged += 1,
            }
            live += u32::from(slot.state != SlotState::Free);
            charged += u32::from(slot.charge != 0);
            charges += u64::from(slot.charge);
        }
        assert_eq!(self.table.live(), live, "each slot in use is counted");
        assert_eq!(self.in_flight, in_flight, "each operation in flight is counted");
        assert_eq!(self.returning, returning, "each return is counted");
        assert!(self.returning_queued <= queues.waiting(), "a queued return is an operation in a queue");
        assert_eq!(
            self.unsubmitted() + queues.waiting(),
            staged,
            "an operation that is not in flight waits in one queue"
        );
        assert_eq!(
            queues.in_flight(),
            (charges, charged),
            "the device queues count what the slots were charged"
        );
    }
}

#[cfg(debug_assertions)]
impl Shard {
    /// Checks, in debug builds before a shard sleeps, what holds for all its slots.
    pub(super) fn check_invariants(&self) {
        self.ops.with(|ops| self.account.with(|account| ops.check_invariants(&account.queues)));
    }
}
