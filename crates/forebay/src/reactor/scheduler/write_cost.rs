//! The device time of a write relative to a read of the same size, measured while classes compete for the
//! device.
//!
//! The device's time for each kind is measured in windows in which it did only that kind and worked at its
//! limit. The result of such a window does not depend on the ratio in force. The estimate therefore does not
//! depend on its own earlier effects and cannot oscillate. A mixed window gives the time of a kind that was
//! never seen alone, once the other kind was. The ratio in force moves towards the estimate in small steps,
//! never past it, and stays in place while it is nearly right.

/// Ratios are counted in sixty-fourths; this one is 1.
pub(super) const EVEN: u32 = 64;
/// The range of accepted ratios: a write costs at least a quarter of a read and at most 16 times one.
const LEAST: u32 = EVEN / 4;
const MOST: u32 = EVEN * 16;
/// The number of windows of a kind after which its pace is known.
const WINDOWS_MIN: u32 = 4;

/// The completed operations of a window, as costs without the ratio.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mix {
    pub(super) reads: u64,
    pub(super) writes: u64,
    /// The cost of operations that are neither reads nor writes.
    pub(super) others: u64,
    pub(super) ns: u64,
}

/// The device's time for one kind of operation.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// Nanoseconds per MiB of cost, smoothed.
    ns: u64,
    windows: u32,
    /// Measured without the other kind, which is more reliable than any other window.
    alone: bool,
}

impl Pace {
    fn is_known(self) -> bool {
        self.windows >= WINDOWS_MIN
    }

    fn note(&mut self, ns: u64, alone: bool) {
        if alone && !self.alone {
            *self = Pace { alone, ..Pace::default() };
        }
        self.ns = if self.is_known() {
            // The limits keep one window in which the machine stood still from dominating.
            self.ns - self.ns / 8 + ns.clamp(self.ns / 2, self.ns * 2) / 8
        } else if self.windows == 0 {
            ns
        } else {
            self.ns - self.ns / 2 + ns / 2
        };
        self.windows = self.windows.saturating_add(1);
    }
}

/// The ratio in force and the state of its estimate.
#[derive(Debug)]
pub(super) struct WriteCost {
    /// The ratio in force, in sixty-fourths.
    pub(super) ratio: u32,
    reads: Pace,
    writes: Pace,
    moving: bool,
}

impl WriteCost {
    /// Starts with the ratio that a calibration found, or with [`EVEN`].
    pub(super) fn new(ratio: u32) -> WriteCost {
        WriteCost {
            ratio: ratio.clamp(LEAST, MOST),
            reads: Pace::default(),
            writes: Pace::default(),
            moving: false,
        }
    }

    /// Evaluates a window in which the device worked at its limit, and sets `ratio` for the next one.
    pub(super) fn end_window(&mut self, mix: Mix) {
        let Mix { reads, writes, others, ns } = mix;
        let all = reads + writes;
        if all == 0 || others > all / 16 {
            return;
        }
        let per_mib = |ns: u64, cost: u64| ns.saturating_mul(1 << 20) / cost.max(1);
        let of_reads = self.reads.alone && self.reads.is_known();
        let of_writes = self.writes.alone && self.writes.is_known();
        if writes <= all / 16 {
            self.reads.note(per_mib(ns, all), true);
        } else if reads <= all / 16 {
            self.writes.note(per_mib(ns, all), true);
        } else if of_reads && !self.writes.alone && writes >= all / 4 {
            let rest_ns = rest(ns, self.reads, reads);
            rest_ns.into_iter().for_each(|ns| self.writes.note(per_mib(ns, writes), false));
        } else if of_writes && !self.reads.alone && reads >= all / 4 {
            let rest_ns = rest(ns, self.writes, writes);
            rest_ns.into_iter().for_each(|ns| self.reads.note(per_mib(ns, reads), false));
        }
        self.step();
    }

    fn step(&mut self) {
        if !self.reads.is_known() || !self.writes.is_known() {
            return;
        }
        let found = self.writes.ns.saturating_mul(u64::from(EVEN)) / self.reads.ns.max(1);
        let found = found.clamp(u64::from(LEAST), u64::from(MOST)) as u32;
        let off = found.abs_diff(self.ratio);
        // The ratio starts to move when it is off by an eighth, and then moves all the way.
        self.moving = off > if self.moving { self.ratio / 32 } else { self.ratio / 8 };
        if self.moving {
            let step = off.div_ceil(8);
            self.ratio = if found > self.ratio { self.ratio + step } else { self.ratio - step };
        }
    }
}

/// Returns the time of a window that remains for one kind after the known pace of the other is subtracted.
fn rest(ns: u64, known: Pace, cost: u64) -> Option<u64> {
    let taken_ns = (u128::from(known.ns) * u128::from(cost)) >> 20;
    ns.checked_sub(u64::try_from(taken_ns).ok()?).filter(|&rest_ns| rest_ns > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a window of a device with `read_ns` and `write_ns` per MiB.
    fn window(read_ns: u64, write_ns: u64, reads: u64, writes: u64) -> Mix {
        Mix { reads, writes, others: 0, ns: (reads * read_ns + writes * write_ns) >> 20 }
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_ratio_is_found_from_windows_of_one_kind() {
        for (write_ns, ratio) in [(400_000, 256), (100_000, 64), (50_000, 32), (9_000_000, MOST), (1, LEAST)]
        {
            let mut cost = WriteCost::new(EVEN);
            for _ in 0..50 {
                cost.end_window(window(100_000, write_ns, 4 * MIB, 0));
                cost.end_window(window(100_000, write_ns, 0, 4 * MIB));
            }
            assert!(cost.ratio.abs_diff(ratio) <= ratio / 16, "{} of {ratio}", cost.ratio);
        }
    }

    #[test]
    fn a_mixed_window_tells_of_the_kind_that_was_never_alone() {
        for (first, second) in [((4, 0), (3, 2)), ((0, 4), (2, 3))] {
            let mut cost = WriteCost::new(EVEN);
            for _ in 0..8 {
                cost.end_window(window(100_000, 300_000, first.0 * MIB, first.1 * MIB));
            }
            assert_eq!(cost.ratio, EVEN, "one kind alone says nothing of the other");
            for _ in 0..60 {
                cost.end_window(window(100_000, 300_000, second.0 * MIB, second.1 * MIB));
            }
            assert!(cost.ratio.abs_diff(3 * EVEN) <= 3 * EVEN / 16, "{}", cost.ratio);
        }
    }

    #[test]
    fn nothing_is_made_of_mixed_windows_alone_or_of_syncs() {
        let mut cost = WriteCost::new(200);
        for _ in 0..100 {
            cost.end_window(window(100_000, 700_000, 2 * MIB, 2 * MIB));
            cost.end_window(Mix { others: MIB, ..window(100_000, 100_000, 0, 4 * MIB) });
            cost.end_window(Mix::default());
        }
        assert_eq!(cost.ratio, 200);
    }

    #[test]
    fn it_goes_one_way_and_stays() {
        // The times of windows vary by a quarter, and the device's writes become more expensive the fewer
        // they are. The mix follows the ratio, because shares are shares of the device's time; the ratio must
        // not oscillate with it.
        let mut cost = WriteCost::new(EVEN);
        let mut noise = 1_u64;
        let (mut turns, mut last, mut rising) = (0, cost.ratio, true);
        for round in 0..5_000_u64 {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let wobble = 75 + (noise >> 33) % 51;
            let writes = 4 * MIB * u64::from(EVEN) / u64::from(EVEN + cost.ratio);
            let write_ns = 300_000 + 400_000 * (4 * MIB - writes) / (4 * MIB);
            let mix = if round < 20 {
                window(100_000, write_ns, 4 * MIB, 0)
            } else {
                window(100_000, write_ns, 4 * MIB - writes, writes)
            };
            cost.end_window(Mix { ns: mix.ns * wobble / 100, ..mix });
            if cost.ratio != last {
                turns += u32::from((cost.ratio > last) != rising);
                (rising, last) = (cost.ratio > last, cost.ratio);
            }
        }
        assert!(turns <= 2, "{turns} turns");
        assert!((4 * EVEN..8 * EVEN).contains(&cost.ratio), "{}", cost.ratio);
    }
}
