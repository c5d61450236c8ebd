//! Whether reads that complete while they are submitted are gathered.
//!
//! A read on such a device is ready in its first poll, at the price of a kernel entry each. When several tasks are ready, one entry
//! for all of them costs less, although each has to be woken then. How many are ready is only seen by waiting: now and then one
//! read waits for the flush after the other tasks' turns, and the number of reads until then decides.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// With this many reads a flush, gathering pays.
const SEVERAL: u32 = 6;
/// A read in this many is a probe, at first. Each probe that finds few doubles the number. Primes: with a multiple of the number of tasks
/// each probe could be the last read before a flush.
const PROBE_EVERY_MIN: u32 = 61;
const PROBE_EVERY_MAX: u32 = 4_001;

/// The numbers are hints: visitors on several threads may lose a count, so all accesses are relaxed.
pub(super) struct GatherController {
    is_on: AtomicBool,
    /// Reads since the last flush.
    count: AtomicU32,
    /// Reads until the next probe, and between two.
    probe_in: AtomicU32,
    probe_every: AtomicU32,
}

impl GatherController {
    pub(super) fn new() -> GatherController {
        GatherController {
            is_on: AtomicBool::new(false),
            count: AtomicU32::new(0),
            probe_in: AtomicU32::new(PROBE_EVERY_MIN),
            probe_every: AtomicU32::new(PROBE_EVERY_MIN),
        }
    }

    /// Notes the start of a read. Returns whether it waits for the next flush.
    #[inline]
    pub(super) fn begin(&self) -> bool {
        if self.is_on.load(Ordering::Relaxed) {
            self.count.store(self.count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            return true;
        }
        let left = self.probe_in.load(Ordering::Relaxed);
        if left > 0 {
            self.probe_in.store(left - 1, Ordering::Relaxed);
            return false;
        }
        self.count.store(1, Ordering::Relaxed);
        self.is_on.store(true, Ordering::Relaxed);
        true
    }

    /// Notes a flush, which submits what is gathered.
    pub(super) fn flush(&self) {
        let count = self.count.swap(0, Ordering::Relaxed);
        if !self.is_on.load(Ordering::Relaxed) {
            return;
        }
        if count >= SEVERAL {
            return self.probe_every.store(PROBE_EVERY_MIN, Ordering::Relaxed);
        }
        let every = (2 * self.probe_every.load(Ordering::Relaxed)).min(PROBE_EVERY_MAX);
        self.probe_every.store(every, Ordering::Relaxed);
        self.probe_in.store(every, Ordering::Relaxed);
        self.is_on.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts `ready` reads between two flushes, `flushes` times, and returns how many waited.
    fn run(gathering: &GatherController, ready: u32, flushes: u32) -> u32 {
        let mut waited = 0;
        for _ in 0..flushes {
            let staged = (0..ready).filter(|_| gathering.begin()).count() as u32;
            if staged > 0 {
                gathering.flush();
            }
            waited += staged;
        }
        waited
    }

    #[test]
    fn reads_of_many_ready_tasks_are_gathered_and_those_of_few_are_not() {
        let gathering = GatherController::new();
        assert!(run(&gathering, 32, 1_000) > 31_000);
        let waited = run(&gathering, 1, 100_000);
        assert!((20..60).contains(&waited), "{waited} probes in 100,000 reads");
        // It finds out within some thousand reads, also if the first probes are the last reads before a flush.
        for _ in 0..40 {
            run(&gathering, 1, 1);
            assert!(run(&gathering, 32, 1_000) > 20_000);
            run(&gathering, 1, 20_000);
        }
    }
}
