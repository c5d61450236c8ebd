//! Statistics of a running log.

use std::fmt;

use hdrhistogram::Histogram;

/// Counts and times since the log was opened; see [`Wal::stats`](crate::Wal::stats).
///
/// Times are in nanoseconds, in histograms with two significant digits from 1 ns to 60 s; longer ones count
/// as 60 s. Inside a simulated world they are that world's.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Durable groups, including those without records. Each took one write and one flush.
    pub groups: u64,
    /// The part of `groups` without records: marks, truncations, resets, values alone.
    pub control_groups: u64,
    /// Records that became durable.
    pub records: u64,
    /// Bytes of those records, without framing.
    pub record_bytes: u64,
    /// Bytes written, with headers, framing and padding.
    pub write_bytes: u64,
    /// The part of `write_bytes` that is zeros which fill groups up to the device's write unit.
    pub padded_bytes: u64,
    /// Number of records per group, for groups with any.
    pub group_records: Distribution,
    /// Time from a group's submission until it was durable.
    pub flush_ns: Distribution,
    /// Time from the arrival of a group's first record until the group's submission.
    pub queued_ns: Distribution,
    /// Number of new segments made.
    pub segments_made: u64,
    /// Bytes of zeros written to prepare them; see [`Options::fill`](crate::Options::fill). Not a part of
    /// `write_bytes`.
    pub zero_bytes: u64,
    /// Number of segments reused.
    pub segments_recycled: u64,
    /// Number of times that a group had to wait for its segment to be made.
    pub segment_waits: u64,
    /// Number of appends that had to wait for room; see
    /// [`Options::pending_bytes_max`](crate::Options::pending_bytes_max).
    pub full_waits: u64,
    /// Bytes of records that are waiting to become durable.
    pub pending_bytes: usize,
    /// A write or flush failed, and every later call returns that failure.
    pub poisoned: bool,
}

impl Stats {
    pub(crate) fn new() -> Stats {
        Stats {
            groups: 0,
            control_groups: 0,
            records: 0,
            record_bytes: 0,
            write_bytes: 0,
            padded_bytes: 0,
            group_records: Distribution::new(1_000_000),
            flush_ns: Distribution::new(TIME_NS_MAX),
            queued_ns: Distribution::new(TIME_NS_MAX),
            segments_made: 0,
            zero_bytes: 0,
            segments_recycled: 0,
            segment_waits: 0,
            full_waits: 0,
            pending_bytes: 0,
            poisoned: false,
        }
    }
}

const TIME_NS_MAX: u64 = 60_000_000_000;

/// A distribution of values, with two significant digits.
#[derive(Clone)]
pub struct Distribution(Option<Histogram<u64>>);

impl Distribution {
    /// If the bounds are ever rejected, nothing is recorded: statistics are no reason to fail.
    fn new(max: u64) -> Distribution {
        Distribution(Histogram::new_with_bounds(1, max, 2).ok())
    }

    pub(crate) fn record(&mut self, value: u64) {
        if let Some(histogram) = &mut self.0 {
            histogram.saturating_record(value);
        }
    }

    /// Returns the number of values recorded.
    pub fn count(&self) -> u64 {
        self.0.as_ref().map_or(0, Histogram::len)
    }

    /// Returns the value that a share of `quantile` (0.0 to 1.0) of the values does not exceed; 0 if nothing
    /// was recorded.
    pub fn at(&self, quantile: f64) -> u64 {
        self.0.as_ref().map_or(0, |histogram| histogram.value_at_quantile(quantile))
    }

    /// Returns how many values are not above `value`, with the two digits of the histogram.
    pub fn count_up_to(&self, value: u64) -> u64 {
        self.0.as_ref().map_or(0, |histogram| histogram.count_between(0, value))
    }

    /// Returns the arithmetic mean; 0 if nothing was recorded.
    pub fn mean(&self) -> f64 {
        self.0.as_ref().map_or(0.0, Histogram::mean)
    }

    /// Returns the largest value; 0 if nothing was recorded.
    pub fn max(&self) -> u64 {
        self.0.as_ref().map_or(0, Histogram::max)
    }
}

impl fmt::Debug for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Distribution")
            .field("count", &self.count())
            .field("p50", &self.at(0.5))
            .field("p99", &self.at(0.99))
            .field("max", &self.max())
            .finish()
    }
}
