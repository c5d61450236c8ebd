//! [`Histogram`]: how many values are up to each of some bounds, as Prometheus has it.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts of values by bounds, and their sum. Times are in nanoseconds.
#[derive(Debug)]
pub(crate) struct Histogram {
    /// Each bound with the number of values up to it, and above the one before.
    buckets: Box<[(u64, AtomicU64)]>,
    /// The number of the others.
    above: AtomicU64,
    sum: AtomicU64,
}

/// A histogram whose first bound is `FIRST`, and each other one twice the one before.
#[derive(Debug)]
pub(crate) struct DoublingHistogram<const FIRST: u64, const COUNT: u32>(Histogram);

impl<const FIRST: u64, const COUNT: u32> Default for DoublingHistogram<FIRST, COUNT> {
    fn default() -> Self {
        DoublingHistogram(Histogram::of((0..COUNT).map(|power| FIRST << power)))
    }
}

impl<const FIRST: u64, const COUNT: u32> Deref for DoublingHistogram<FIRST, COUNT> {
    type Target = Histogram;

    fn deref(&self) -> &Histogram {
        &self.0
    }
}

impl Histogram {
    /// Returns one with these bounds, which rise.
    pub(crate) fn of(bounds: impl IntoIterator<Item = u64>) -> Histogram {
        let buckets = bounds.into_iter().map(|bound| (bound, AtomicU64::default())).collect();
        Histogram { buckets, above: AtomicU64::default(), sum: AtomicU64::default() }
    }

    pub(crate) fn observe(&self, value: u64) {
        let place = self.buckets.partition_point(|(bound, _)| *bound < value);
        let count = self.buckets.get(place).map_or(&self.above, |(_, count)| count);
        count.fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    pub(crate) fn observe_time(&self, time: Duration) {
        self.observe(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Returns the number of values up to each bound, that of all, and their sum. Bounds and sum are divided by `unit`.
    pub(crate) fn read(&self, unit: f64) -> (Vec<(f64, u64)>, u64, f64) {
        let mut count = 0;
        let mut up_to = |of: &AtomicU64| {
            count += of.load(Ordering::Relaxed);
            count
        };
        let buckets = self.buckets.iter().map(|(bound, of)| (*bound as f64 / unit, up_to(of))).collect();
        (buckets, up_to(&self.above), self.sum.load(Ordering::Relaxed) as f64 / unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_up_to_its_bound_and_all_above() {
        let times = DoublingHistogram::<1_000_000, 3>::default();
        for micros in [0, 1_000, 1_001, 2_000, 4_000, 4_001, 90_000] {
            times.observe_time(Duration::from_micros(micros));
        }
        let (buckets, count, seconds) = times.read(1e9);
        assert_eq!(buckets, [(0.001, 2), (0.002, 4), (0.004, 5)]);
        assert_eq!((count, seconds), (7, 0.102002));
        assert_eq!(Histogram::of([]).read(1.0), (Vec::new(), 0, 0.0));
    }
}
