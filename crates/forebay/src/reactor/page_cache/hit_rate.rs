//! How a file's reads fared in the page cache lately: whether the next one should try it, and whether it looks first.

use std::sync::atomic::{AtomicU32, Ordering};

/// All reads try the page cache until this many attempts in a row have failed.
///
/// A failed attempt costs about 0.4 us, and a successful attempt saves the device's time: 50 to 100 us on a disk. So each hit there
/// pays for the failures that follow it, at any hit rate. A device of 3 us loses 0.4 us a read at worst, where about one read in 64
/// is served. A rate over the last attempts would do worse: where one page in ten is cached, hits are not evenly spaced, and a rate
/// that pays on average falls below any useful limit by chance (simulated: a quarter of the reads tried).
const FAILURES_MAX: u32 = 64;
/// The longest pause between two attempts after that, as a shift: 64 reads. A cold file's attempts cost 6 ns a read on average, and a file that
/// was loaded into memory is seen after as many reads.
const PAUSE_SHIFT_MAX: u32 = 6;
/// After this many hits in a row reads do not check before they try, until one finds a page missing. Such a read loads its pages,
/// so each range that is loaded unasked follows at least this many hits.
const SURE_HITS: u32 = 1000;
/// A longer read looks in any case: that is 4 % of its copy at most, and much would be loaded.
const SURE_BYTES_MAX: u64 = 256 << 10;

/// The memory of a file's attempts. Threads use it concurrently and unordered: a lost update is harmless.
pub(crate) struct HitRate {
    /// Attempts in a row that failed, counted up to where pauses grow no more.
    failures: AtomicU32,
    /// Reads that are left of the present pause.
    pause: AtomicU32,
    /// Hits since the last attempt that failed, counted up to `SURE_HITS`.
    hits: AtomicU32,
}

impl HitRate {
    pub(crate) fn new() -> HitRate {
        HitRate { failures: AtomicU32::new(0), pause: AtomicU32::new(0), hits: AtomicU32::new(0) }
    }

    /// Returns whether all reads try.
    pub(crate) fn is_trying(&self) -> bool {
        self.failures.load(Ordering::Relaxed) < FAILURES_MAX
    }

    /// Returns whether the next read should try the page cache.
    #[inline]
    pub(crate) fn tries(&self) -> bool {
        if self.is_trying() {
            return true;
        }
        match self.pause.load(Ordering::Relaxed) {
            0 => true,
            left => {
                self.pause.store(left - 1, Ordering::Relaxed);
                false
            }
        }
    }

    /// Returns whether a read of `len` bytes that tries looks first.
    #[inline]
    pub(crate) fn looks(&self, len: u64) -> bool {
        len > SURE_BYTES_MAX || self.hits.load(Ordering::Relaxed) < SURE_HITS
    }

    /// Adds a read that was served, which ends all pauses.
    #[inline]
    pub(crate) fn hit(&self) {
        self.end_pauses();
        if self.hits.load(Ordering::Relaxed) < SURE_HITS {
            // A sum that no thread's failure is lost in.
            self.hits.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Has all reads try from now on.
    #[inline]
    pub(crate) fn end_pauses(&self) {
        // Written only when it changes: the threads of a warm file share the line.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Adds a read that was not served.
    #[inline]
    pub(crate) fn miss(&self) {
        if self.hits.load(Ordering::Relaxed) != 0 {
            self.hits.store(0, Ordering::Relaxed);
        }
        let failures = self.failures.load(Ordering::Relaxed) + 1;
        self.failures.store(failures.min(FAILURES_MAX + PAUSE_SHIFT_MAX), Ordering::Relaxed);
        if let Some(shift) = failures.checked_sub(FAILURES_MAX) {
            self.pause.store(1 << shift.min(PAUSE_SHIFT_MAX), Ordering::Relaxed);
        }
    }

    /// Stays away for the longest pause: another program is loading these pages right now.
    #[cold]
    pub(crate) fn stay_away(&self) {
        self.failures.store(FAILURES_MAX, Ordering::Relaxed);
        self.pause.store(1 << PAUSE_SHIFT_MAX, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `reads` times with the given hits; returns the attempts and the hits among them.
    fn attempts(rate: &HitRate, reads: u32, mut is_cached: impl FnMut() -> bool) -> (u32, u32) {
        let (mut tried, mut hits) = (0, 0);
        for _ in 0..reads {
            let is_cached = is_cached();
            if !rate.tries() {
                continue;
            }
            tried += 1;
            if is_cached {
                hits += 1;
                rate.hit();
            } else {
                rate.miss();
            }
        }
        (tried, hits)
    }

    /// Returns hits of that share, in no pattern that attempts could keep step with.
    fn one_in(share: u64) -> impl FnMut() -> bool {
        let mut state = 7_u64;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33).is_multiple_of(share)
        }
    }

    #[test]
    fn a_cold_file_pays_for_two_attempts_in_a_hundred_reads() {
        let rate = HitRate::new();
        let (tried, _) = attempts(&rate, 10_000, || false);
        assert!((200..240).contains(&tried), "{tried}");
        assert!(attempts(&rate, 65_000, || false).0 <= 1001);
    }

    #[test]
    fn one_hit_brings_all_attempts_back() {
        let rate = HitRate::new();
        attempts(&rate, 100_000, || false);
        let (tried, hits) = attempts(&rate, 1000, || true);
        assert!(tried >= 1000 - 64 && hits == tried, "{tried}");
    }

    #[test]
    fn attempts_follow_the_share_that_is_cached() {
        for (share, least, most) in [(2, 100_000, 100_000), (10, 85_000, 100_000), (300, 1500, 20_000)] {
            let (tried, hits) = attempts(&HitRate::new(), 100_000, one_in(share));
            assert!((least..=most).contains(&tried), "one in {share}: {tried}");
            assert!(hits > 0, "one in {share}");
        }
    }

    #[test]
    fn reads_look_first_until_a_thousand_in_a_row_were_served() {
        let rate = HitRate::new();
        for _ in 0..3 {
            for hit in 0..1000 {
                assert!(rate.looks(4096), "hit {hit}");
                rate.hit();
            }
            assert!(!rate.looks(4096) && !rate.looks(256 << 10) && rate.looks((256 << 10) + 1));
            attempts(&rate, 5000, || true);
            assert!(!rate.looks(4096), "as long as all are served");
            // Its pages may have been loaded.
            rate.miss();
        }
        // Half of the pages are there.
        attempts(&rate, 100_000, one_in(2));
        assert!(rate.looks(1));
    }

    #[test]
    fn staying_away_lasts_for_one_pause() {
        let rate = HitRate::new();
        attempts(&rate, 1000, || true);
        rate.stay_away();
        assert_eq!((0..64).filter(|_| rate.tries()).count(), 0);
        assert_eq!(attempts(&rate, 1000, || true), (1000, 1000));
    }
}
