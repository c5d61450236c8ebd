//! The way in which groups become durable: by `RWF_DSYNC`, which a drive may carry out as a write with FUA, or by a write and a
//! flush. On some drives one is twice as slow as the other. No name says which, so the log compares them.
//!
//! Each group earns a thousandth of a try: a group that uses the other way, and is compared with the group before it. Up to four
//! tries are saved. A try without a reason needs all four. With a reason, a try follows as soon as it is earned: the other way was
//! faster the last time, or looks faster by its figures. So a way that becomes slow is left after some tens of groups, and a drive
//! that stays as it is sees one try in a thousand groups.
//!
//! The way may change with each group, as either makes its group durable by itself. The state that a group relies on outside of its
//! sectors was flushed before: a segment's name, length and extents when it was made or reopened, and `wal.end` with each record.

use forebay::Flush;

use crate::stats::GroupWay;

const TRIES_SAVED: u32 = 4;
/// The lead in comparisons that changes the way.
const WINS: u32 = 3;

/// Chooses the way of each group.
#[derive(Debug)]
pub(crate) struct WayChooser {
    figures: GroupWay,
    /// Groups that earn a try.
    try_every: u32,
    /// Groups since the tries that were made.
    credit: u32,
    /// The other way's lead in the last comparisons.
    score: u32,
    /// Bytes and time of the last group with the log's way that was not compared yet.
    last: Option<(u32, u64)>,
}

impl WayChooser {
    /// Returns the chooser of a log with this option, and the number of groups for one try.
    pub(crate) fn new(fixed: Option<Flush>, try_every: u32) -> WayChooser {
        let figures = GroupWay::new(fixed);
        WayChooser { figures, try_every: try_every.max(1), credit: 0, score: 0, last: None }
    }

    /// Returns the flush of the next group, of `bytes` bytes.
    pub(crate) fn next(&mut self, bytes: u32) -> Flush {
        let flush = self.figures.flush;
        if !self.figures.is_learned {
            return flush;
        }
        let all = self.try_every.saturating_mul(TRIES_SAVED);
        self.credit = self.credit.saturating_add(1).min(all);
        let due = if self.looks_slower() { self.try_every } else { all };
        // Times of groups of other lengths say nothing.
        let is_alike = self.last.is_some_and(|(last, _)| bytes / 2 <= last && last / 2 <= bytes);
        if self.credit < due || !is_alike {
            return flush;
        }
        self.credit -= self.try_every;
        self.figures.tries += 1;
        other(flush)
    }

    /// Notes the time of a group that [`next`](Self::next) gave this flush.
    pub(crate) fn note(&mut self, flush: Flush, bytes: u32, ns: u64) {
        let ns = ns.max(1);
        let is_try = flush != self.figures.flush;
        let parts = if is_try { 4 } else { 16 };
        let usual = self.usual_ns(flush);
        *usual = match *usual {
            0 => ns,
            // An outlier counts as twice the usual time.
            known => known - known / parts + ns.min(known.saturating_mul(2)) / parts,
        };
        if !is_try {
            self.last = Some((bytes, ns));
            return;
        }
        let Some((_, before_ns)) = self.last.take() else { return };
        self.score = if ns < before_ns {
            self.score + lead(before_ns, ns)
        } else {
            self.score.saturating_sub(lead(ns, before_ns))
        };
        if self.score >= WINS {
            (self.figures.flush, self.score) = (flush, 0);
            self.figures.changes += 1;
        }
    }

    pub(crate) fn figures(&self) -> GroupWay {
        self.figures
    }

    /// Returns whether the other way is worth a try, by the last comparison or by the usual times.
    fn looks_slower(&mut self) -> bool {
        let flush = self.figures.flush;
        let (usual_ns, other_ns) = (*self.usual_ns(flush), *self.usual_ns(other(flush)));
        self.score > 0 || other_ns + other_ns / 16 < usual_ns
    }

    fn usual_ns(&mut self, flush: Flush) -> &mut u64 {
        if flush == Flush::Queued { &mut self.figures.write_and_flush_ns } else { &mut self.figures.dsync_ns }
    }
}

/// Returns the flush of the other way.
fn other(flush: Flush) -> Flush {
    if flush == Flush::Queued { Flush::WhenAlone } else { Flush::Queued }
}

/// Returns how much a comparison counts: nothing within a sixteenth, and twice from half as long again on.
fn lead(slow_ns: u64, fast_ns: u64) -> u32 {
    u32::from(slow_ns - slow_ns / 16 > fast_ns) + u32::from(slow_ns - slow_ns / 3 > fast_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drive: the time of a group either way, in microseconds, with a fifth of jitter and rare outliers.
    struct Drive {
        dsync_us: u64,
        write_and_flush_us: u64,
        random: u64,
    }

    impl Drive {
        fn new(seed: u64, (dsync_us, write_and_flush_us): (u64, u64)) -> Drive {
            Drive { dsync_us, write_and_flush_us, random: seed * 2 + 1 }
        }

        /// Returns a number below `n`: xorshift*.
        fn below(&mut self, n: u64) -> u64 {
            self.random ^= self.random >> 12;
            self.random ^= self.random << 25;
            self.random ^= self.random >> 27;
            (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
        }

        fn take_ns(&mut self, flush: Flush) -> u64 {
            let us = if flush == Flush::Queued { self.write_and_flush_us } else { self.dsync_us };
            let ns = us * 1_000;
            if self.below(2_000) == 0 { ns * 20 } else { ns + ns * self.below(1_000) / 5_000 }
        }

        /// Returns the times of groups that a chooser sends there.
        fn run(&mut self, chooser: &mut WayChooser, groups: usize) -> Vec<u64> {
            let group = |_| {
                let flush = chooser.next(4096);
                let ns = self.take_ns(flush);
                chooser.note(flush, 4096, ns);
                ns
            };
            (0..groups).map(group).collect()
        }

        /// Returns the 99th percentile of the faster way alone.
        fn best_ns_p99(&mut self) -> u64 {
            let fixed = [Flush::Blocking, Flush::Queued];
            let of = fixed.map(|flush| p99(self.run(&mut WayChooser::new(Some(flush), 1_000), 20_000)));
            of.into_iter().min().unwrap()
        }
    }

    fn p99(mut times: Vec<u64>) -> u64 {
        let at = times.len() * 99 / 100;
        *times.select_nth_unstable(at).1
    }

    /// Costs of drives, and what becomes of them.
    const COSTS: [[(u64, u64); 2]; 5] = [
        [(4_000, 1_700), (900, 1_700)],
        [(1_300, 1_700), (4_000, 1_700)],
        [(11, 15), (60, 15)],
        [(300, 100), (300, 900)],
        [(100, 300), (100, 40)],
    ];

    #[test]
    fn the_faster_way_is_found_on_thirty_of_thirty_drives_that_change() {
        for seed in 0..30 {
            let [first, then] = COSTS[seed % COSTS.len()];
            let mut chooser = WayChooser::new(None, 1_000);
            for (costs, groups) in [(first, 400_000), (then, 150_000), (first, 150_000)] {
                let mut drive = Drive::new(seed as u64 + groups as u64, costs);
                let ns_p99 = p99(drive.run(&mut chooser, groups));
                let figures = chooser.figures();
                assert_eq!(
                    figures.flush == Flush::Queued,
                    costs.1 < costs.0,
                    "{seed}: {costs:?}, {figures:?}"
                );
                let best = drive.best_ns_p99();
                assert!(ns_p99 * 100 <= best * 105, "{seed}: {costs:?}, {ns_p99} and {best} ns, {figures:?}");
            }
            let figures = chooser.figures();
            assert!(figures.tries <= 700, "one group in 1,000 at most: {figures:?}");
            assert!((2..=5).contains(&figures.changes), "{figures:?}");
        }
    }

    /// A way that becomes slow is left by what was saved, long before the next thousand groups.
    #[test]
    fn a_way_that_becomes_slow_is_left_at_once() {
        let mut chooser = WayChooser::new(None, 1_000);
        Drive::new(1, (900, 1_700)).run(&mut chooser, 8_000);
        assert_eq!(chooser.figures().flush, Flush::WhenAlone);
        Drive::new(2, (4_000, 1_700)).run(&mut chooser, 100);
        assert_eq!(chooser.figures().flush, Flush::Queued, "{chooser:?}");
    }

    #[test]
    fn a_short_log_tries_nothing_and_a_set_way_stays() {
        let mut chooser = WayChooser::new(None, 1_000);
        Drive::new(1, (4_000, 1_700)).run(&mut chooser, 999);
        assert_eq!((chooser.figures().tries, chooser.figures().flush), (0, Flush::WhenAlone));
        for flush in [Flush::Queued, Flush::Blocking, Flush::WhenAlone] {
            let mut chooser = WayChooser::new(Some(flush), 1);
            Drive::new(1, (1_000, 1_000)).run(&mut chooser, 10_000);
            assert_eq!((chooser.figures().tries, chooser.figures().flush), (0, flush));
        }
    }

    /// A long group between short groups is not a reason for a change.
    #[test]
    fn groups_of_other_lengths_are_not_compared() {
        let mut chooser = WayChooser::new(None, 1);
        for bytes in [4_096, 1 << 20].repeat(1_000) {
            let flush = chooser.next(bytes);
            chooser.note(flush, bytes, u64::from(bytes));
        }
        assert_eq!(chooser.figures().tries, 0);
    }
}
