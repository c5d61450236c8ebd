//! [`Counts`]: entries and reads since the start, and their durations, as in etcd's metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::histogram::DoublingHistogram;
use crate::operation::{Operation, OperationTimes};

/// Longer entries and reads are slow: etcd's default of `--warning-apply-duration`.
const SLOW: Duration = Duration::from_millis(100);

/// Counts of a state, however often it is opened.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) ranges: AtomicU64,
    pub(crate) puts: AtomicU64,
    /// Bytes of their keys and values.
    pub(crate) put_bytes: AtomicU64,
    pub(crate) deletes: AtomicU64,
    /// Entries and reads with several of these.
    pub(crate) txns: AtomicU64,
    pub(crate) slow: AtomicU64,
    /// The time from the start of an entry until it can be read.
    pub(crate) applies: OperationTimes<100_000, 20>,
    /// The durations of ranges: failed, and successful.
    pub(crate) range_times: [DoublingHistogram<100_000, 20>; 2],
    /// The store's time for the changes of an entry.
    pub(crate) commits: DoublingHistogram<1_000_000, 14>,
    /// Events that compactions have removed.
    pub(crate) removed: AtomicU64,
    /// When the last compaction has removed all, in seconds since 1970; 0 before.
    pub(crate) compacted_at_s: AtomicU64,
    /// The time of compactions until then, and of entries proposed only for them, in milliseconds.
    pub(crate) compaction_ms: DoublingHistogram<100, 14>,
    pub(crate) compaction_step_ms: DoublingHistogram<1, 13>,
    /// The durations of hashes: of all, and of a revision.
    pub(crate) hashes: [DoublingHistogram<10_000_000, 15>; 2],
}

/// The numbers of an entry's operations, or of a read's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Operations {
    pub(crate) ranges: u64,
    pub(crate) puts: u64,
    pub(crate) put_bytes: u64,
    pub(crate) deletes: u64,
}

/// An entry, until its changes can be read.
pub(super) struct EntryCost {
    pub(super) begun: Instant,
    /// When its changes were passed to the store.
    pub(super) committed: Instant,
    pub(super) operation: Option<Operation>,
    pub(super) is_success: bool,
    pub(super) operations: Operations,
    /// Whether it is a step of a compaction alone.
    pub(super) is_step: bool,
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Counts {
    /// Counts an entry whose changes can be read from now on.
    pub(super) fn note_applied(&self, entry: &EntryCost) {
        let now = Instant::now();
        let time = now.saturating_duration_since(entry.begun);
        self.commits.observe_time(now.saturating_duration_since(entry.committed));
        if let Some(operation) = entry.operation {
            self.applies.observe(operation, entry.is_success, time);
        }
        if entry.is_step {
            self.compaction_step_ms.observe(millis(time));
        }
        self.note_time(time);
        self.note(entry.operations);
    }

    /// Counts these operations.
    pub(crate) fn note(&self, of: Operations) {
        let several = u64::from(of.ranges + of.puts + of.deletes > 1);
        for (count, more) in [
            (&self.ranges, of.ranges),
            (&self.puts, of.puts),
            (&self.put_bytes, of.put_bytes),
            (&self.deletes, of.deletes),
            (&self.txns, several),
        ] {
            if more > 0 {
                count.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    /// Counts an entry or a read if it was slow.
    pub(crate) fn note_time(&self, time: Duration) {
        if time > SLOW {
            self.slow.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts the events that a step of a compaction has removed.
    pub(super) fn note_removed(&self, events: u64) {
        if events > 0 {
            self.removed.fetch_add(events, Ordering::Relaxed);
        }
    }

    /// Counts a compaction that has removed all.
    pub(super) fn note_compaction(&self, time: Duration) {
        self.compaction_ms.observe(millis(time));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.compacted_at_s.store(now.as_secs(), Ordering::Relaxed);
    }
}
