//! The share of a file's reads that the page cache could serve lately, and whether the next one should try it.

use std::sync::atomic::{AtomicU32, Ordering};

/// The whole, in fixed point.
const ONE: u32 = 1 << 16;
/// Each attempt moves the rate by this part of the difference: one in 16, as a shift.
const WEIGHT_SHIFT: u32 = 4;
/// The rate from which on every read tries the page cache.
///
/// A failed attempt costs about 0.4 us; a successful one saves the device's time. Attempts pay above the ratio of the two: 0.4 %
/// on a disk of 100 us, 3 % on one of 13 us, 13 % on one of 3 us. One constant for all of them is never far off: on the slow
/// disk at most 3 % of the reads lose their chance, on the fast one at most 0.4 us a read is lost.
const PAYS: u32 = ONE / 32;
/// The rate before the first attempt: 33 failures in a row lead below `PAYS`.
const START: u32 = ONE / 4;
/// The most reads between two attempts, below `PAYS`: 6 ns a read at most, and a file that was loaded into memory is seen after
/// as many reads.
const SKIPS_MAX: u32 = 64;

/// An exponentially weighted rate. Threads use it at once without an order: an update that is lost changes nothing that matters.
pub(crate) struct HitRate {
    rate: AtomicU32,
    /// The length of the present pause.
    skips: AtomicU32,
    /// Reads of it that are left.
    left: AtomicU32,
}

impl HitRate {
    pub(crate) fn new() -> HitRate {
        HitRate { rate: AtomicU32::new(START), skips: AtomicU32::new(0), left: AtomicU32::new(0) }
    }

    /// Returns whether the next read should try the page cache.
    #[inline]
    pub(crate) fn tries(&self) -> bool {
        if self.rate.load(Ordering::Relaxed) >= PAYS {
            return true;
        }
        match self.left.load(Ordering::Relaxed) {
            0 => true,
            left => {
                self.left.store(left - 1, Ordering::Relaxed);
                false
            }
        }
    }

    /// Adds a read that was served. One is enough to end all pauses.
    #[inline]
    pub(crate) fn hit(&self) {
        let rate = self.rate.load(Ordering::Relaxed);
        let grown = rate + ((ONE - rate) >> WEIGHT_SHIFT);
        // Written only while it changes: the threads of a warm file share the line.
        if grown != rate {
            self.rate.store(grown, Ordering::Relaxed);
            self.skips.store(0, Ordering::Relaxed);
            self.left.store(0, Ordering::Relaxed);
        }
    }

    /// Adds a read that was not served.
    #[inline]
    pub(crate) fn miss(&self) {
        let rate = self.rate.load(Ordering::Relaxed);
        let fallen = rate - (rate >> WEIGHT_SHIFT);
        self.rate.store(fallen, Ordering::Relaxed);
        if fallen < PAYS {
            self.pause(if rate >= PAYS {
                1
            } else {
                (self.skips.load(Ordering::Relaxed) * 2).clamp(1, SKIPS_MAX)
            });
        }
    }

    /// Stays away for the longest pause: another program is loading these pages right now.
    #[cold]
    pub(crate) fn stay_away(&self) {
        self.rate.store(self.rate.load(Ordering::Relaxed).min(PAYS - 1), Ordering::Relaxed);
        self.pause(SKIPS_MAX);
    }

    fn pause(&self, skips: u32) {
        self.skips.store(skips, Ordering::Relaxed);
        self.left.store(skips, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `reads` times with the given hits; returns the attempts and the hits among them.
    fn attempts(rate: &HitRate, reads: u32, mut is_cached: impl FnMut(u32) -> bool) -> (u32, u32) {
        let (mut tried, mut hits) = (0, 0);
        for read in (0..reads).filter(|_| rate.tries()) {
            tried += 1;
            if is_cached(read) {
                hits += 1;
                rate.hit();
            } else {
                rate.miss();
            }
        }
        (tried, hits)
    }

    #[test]
    fn a_cold_file_pays_for_two_attempts_in_a_hundred_reads() {
        let rate = HitRate::new();
        let (tried, _) = attempts(&rate, 10_000, |_| false);
        assert!((150..250).contains(&tried), "{tried}");
        assert!(attempts(&rate, 65_000, |_| false).0 <= 1001);
    }

    #[test]
    fn one_hit_brings_all_attempts_back() {
        let rate = HitRate::new();
        attempts(&rate, 100_000, |_| false);
        let (tried, hits) = attempts(&rate, 1000, |_| true);
        assert!(tried >= 1000 - SKIPS_MAX && hits == tried, "{tried}");
    }

    #[test]
    fn where_one_read_in_ten_is_cached_nine_of_ten_attempts_are_made() {
        let rate = HitRate::new();
        attempts(&rate, 100_000, |_| false);
        // In no pattern that attempts could keep step with.
        let mut state = 7_u64;
        let (tried, hits) = attempts(&rate, 100_000, |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % 10 == 0
        });
        assert!(tried > 90_000 && hits > tried / 12, "{tried} {hits}");
    }

    #[test]
    fn staying_away_lasts_for_one_pause() {
        let rate = HitRate::new();
        attempts(&rate, 1000, |_| true);
        rate.stay_away();
        assert_eq!((0..SKIPS_MAX).filter(|_| rate.tries()).count(), 0);
        assert_eq!(attempts(&rate, 1000, |_| true), (1000, 1000));
    }
}
