//! What holds for all slots of a shard together, checked in debug builds.

use crate::reactor::shard::ops::Ops;
#[cfg(debug_assertions)]
use crate::reactor::shard::ops::brings_memory;
#[cfg(debug_assertions)]
use crate::reactor::shard::optable::{Continuation, Slot, SlotState};

impl Ops {
    /// Checks, once nothing more can be submitted, that short reads wait for memory only while some comes back.
    #[inline]
    pub(super) fn check_starved(&self, depth: u32, driver_is_full: bool) {
        debug_assert!(
            self.starved.is_empty() || self.some_returns() || self.in_flight >= depth || driver_is_full,
            "a read waits for memory only while an operation under way gives some back"
        );
    }

    /// Checks what takes a look at every slot, in debug builds before a shard sleeps. A large table is left
    /// out: the tests that fill one would take minutes.
    #[cfg(debug_assertions)]
    pub(crate) fn check_invariants(&self) {
        const CHECKED_SLOTS_MAX: u32 = 1024;
        if self.table.capacity() > CHECKED_SLOTS_MAX {
            return;
        }
        let count =
            |is_it: &dyn Fn(&Slot) -> bool| self.table.slots().filter(|slot| is_it(slot)).count() as u32;
        let is_flying = |slot: &Slot| slot.state == SlotState::InFlight;
        let returns = |slot: &Slot| matches!(slot.continuation, Continuation::Orphan) || brings_memory(slot);
        assert_eq!(
            self.table.live(),
            count(&|slot| slot.state != SlotState::Free),
            "each slot in use is counted"
        );
        assert_eq!(self.in_flight, count(&is_flying), "each operation in flight is counted");
        assert_eq!(self.returning, count(&|slot| is_flying(slot) && returns(slot)), "each return is counted");
        assert!(
            self.returning_queued <= self.device_queues.waiting(),
            "a queued return is an operation in a queue"
        );
        assert_eq!(
            self.waiting(),
            count(&|slot| slot.state == SlotState::Staged),
            "an operation that is not in flight waits in one queue"
        );
        let charges = self.table.slots().map(|slot| u64::from(slot.charge)).sum();
        assert_eq!(
            self.device_queues.in_flight(),
            (charges, count(&|slot| slot.charge != 0)),
            "the device queues count what the slots were charged"
        );
    }
}
