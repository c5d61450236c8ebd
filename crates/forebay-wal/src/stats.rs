//! Statistics of a running log.

use std::fmt;

use forebay::{Flush, Latency};

/// Counts and times since the log was opened; see [`Wal::stats`](crate::Wal::stats).
///
/// Times are in nanoseconds, in histograms with two significant digits from 1 ns to 60 s; longer times count as 60 s. Inside a
/// simulated world they are virtual time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Durable groups, including those without records. Each is one write and one flush.
    pub groups: u64,
    /// The part of `groups` without records: marks, truncations, resets, values alone.
    pub control_groups: u64,
    /// The part of `groups` that threads in `.wait()` wrote themselves, because each was the only appender.
    pub groups_in_wait: u64,
    /// Records that became durable.
    pub records: u64,
    /// Bytes of those records, without framing.
    pub record_bytes: u64,
    /// Bytes of groups written, with headers, framing and padding: a part of `written_bytes`.
    pub write_bytes: u64,
    /// Time from a group's submission until it was durable.
    pub flush_ns: Latency,
    /// The way in which groups become durable, and the time of either way.
    pub way: GroupWay,
    /// Time from the arrival of a group's first record until the group's submission.
    pub queued_ns: Latency,
    /// Number of new segments made.
    pub segments_made: u64,
    /// All bytes written to the log's directory since the start of its open: groups; zeros, also those of segments without a group
    /// yet and of the log's reserve, but not those that the device writes by a command
    /// ([`File::write_zeros`](forebay::File::write_zeros)); the record of its end; copies made by a salvage. Failed writes do not
    /// count, nor do the 16 bytes in `wal.lock`. Divided by `record_bytes` it is the write amplification, which is large for a log
    /// that has just written its first segment with zeros.
    pub written_bytes: u64,
    /// Number of segments reused.
    pub segments_recycled: u64,
    /// Number of times that a group had to wait for a new segment.
    pub segment_waits: u64,
    /// Number of appends that had to wait for room; see
    /// [`Options::pending_bytes_max`](crate::Options::pending_bytes_max).
    pub full_waits: u64,
    /// Bytes of records that are waiting to become durable. For the store.
    #[doc(hidden)]
    pub pending_bytes: usize,
}

impl Stats {
    pub(crate) fn new() -> Stats {
        Stats {
            groups: 0,
            control_groups: 0,
            groups_in_wait: 0,
            records: 0,
            record_bytes: 0,
            write_bytes: 0,
            flush_ns: Latency::default(),
            way: GroupWay::new(None),
            queued_ns: Latency::default(),
            segments_made: 0,
            written_bytes: 0,
            segments_recycled: 0,
            segment_waits: 0,
            full_waits: 0,
            pending_bytes: 0,
        }
    }
}

/// The way in which a log makes its groups durable, and the time of either way on its drive.
///
/// Without [`Options::flush`](crate::Options::flush) the log learns it: at most one group in 1,000 uses the other way, and the way
/// changes when that was clearly faster several times. Its `Display` is one readable line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupWay {
    /// The flush of the next groups: [`Flush::Queued`] is a write and a flush, [`Flush::Blocking`] one call with `RWF_DSYNC`, and
    /// so is [`Flush::WhenAlone`], except with other operations in flight on its shard.
    pub flush: Flush,
    /// The log chooses the way; else [`Options::flush`](crate::Options::flush) did.
    pub(crate) is_learned: bool,
    /// The usual time of a group with `RWF_DSYNC`, in nanoseconds, by the last groups; 0 before the first.
    pub dsync_ns: u64,
    /// The usual time of a group by a write and a flush, in nanoseconds, by the last groups; 0 before the first.
    pub write_and_flush_ns: u64,
    /// Groups that used the other way, for a comparison.
    pub tries: u64,
    /// Number of times that the way has changed.
    pub changes: u64,
}

impl GroupWay {
    pub(crate) fn new(fixed: Option<Flush>) -> GroupWay {
        GroupWay {
            flush: fixed.unwrap_or(Flush::WhenAlone),
            is_learned: fixed.is_none(),
            dsync_ns: 0,
            write_and_flush_ns: 0,
            tries: 0,
            changes: 0,
        }
    }
}

impl fmt::Display for GroupWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ways = [("RWF_DSYNC", self.dsync_ns), ("write and flush", self.write_and_flush_ns)];
        if self.flush == Flush::Queued {
            ways.reverse();
        }
        let [(way, ns), (other, other_ns)] = ways;
        let us = |ns: u64| ns as f64 / 1e3;
        write!(f, "groups become durable by {way}, in {:.1} us", us(ns))?;
        match other_ns {
            _ if !self.is_learned => f.write_str(", as Options::flush says"),
            0 => write!(f, "; {other} was not tried yet"),
            _ => {
                let (tries, changes) = (self.tries, self.changes);
                write!(f, "; {other} took {:.1} us (groups tried: {tries}, changes: {changes})", us(other_ns))
            }
        }
    }
}
