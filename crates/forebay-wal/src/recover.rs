//! The result of recovery, and how it judges the segments.
//!
//! A [`Scanner`] reads one segment's bytes, [`recover`] judges all scans together; both are pure functions.
//! The reasons are in `FORMAT.md`.

use std::path::PathBuf;

use crate::lsn::Lsn;

mod scan;
#[cfg(test)]
pub(crate) mod tests;
mod verdict;
mod walk;

#[cfg(test)]
pub(crate) use scan::scan;
pub(crate) use scan::{NeededSegments, Scan, Scanner};
pub(crate) use verdict::recover;
pub(crate) use walk::{Gap, Group};

use crate::format::{Epochs, Position};
use crate::loss::Loss;
use crate::values::Stamp;

/// A damaged place in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The segment, or the file `wal.end`.
    pub file: PathBuf,
    /// Offset of the damage, in bytes.
    pub offset: u64,
    /// The finding in words.
    pub why: String,
}

/// The state in which a log was found; see [`Wal::open`](crate::Wal::open).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// The log was created by this call.
    pub created: bool,
    /// The first record in the log, except those in `lost`; one past `last` if the log is empty.
    pub first: Lsn,
    /// The last record; one before `first` if the log is empty, and 0 for an empty log whose first LSN is 0.
    pub last: Lsn,
    /// The log's epoch at that record; see [`End::epoch`](crate::End::epoch). For the store.
    #[doc(hidden)]
    pub epoch: u64,
    /// Everything up to this record was durable: a later group proves it. Where no record is proven, it is one before
    /// the first, but at least 0; `tail_records` is clear in any case.
    pub durable_lsn: Lsn,
    /// Number of records after `durable_lsn`, which no later group proves: intact, and kept.
    pub tail_records: u64,
    /// The place behind the last good group where data was cut off: never acknowledged, or at most the very last group.
    pub truncated_at: Option<Damage>,
    /// Damage that destroyed no record: groups without records, or with records that had been truncated. It was skipped.
    pub damage: Vec<Damage>,
    /// The records lost, if the log was salvaged: now, or earlier and not yet truncated away.
    pub lost: Vec<Loss>,
    /// The damage that destroyed the newest values, if this open salvaged the log: [`Wal::value`](crate::Wal::value) returns older
    /// values, or `None`. If a salvage was interrupted after that, the next open names the place in `damage` alone.
    pub values_lost: Option<Damage>,
}

#[derive(Clone, Debug)]
pub(crate) struct RecoveredValues {
    /// The stamp of the table in effect, according to the last group.
    pub(crate) stamp: Stamp,
    /// The group that has the table; an older one if `is_lost`.
    pub(crate) table: Option<Group>,
    /// A group that stays in its place has the table. Otherwise the REOPEN group is to be copied again until it is
    /// proven.
    pub(crate) is_kept: bool,
    /// The table in effect is lost now, under salvage.
    pub(crate) is_lost: bool,
}

/// The conclusion of [`recover`]: the live log, its end, and how to continue.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The log's random number.
    pub(crate) log_id: u128,
    /// The live groups in order, including those without live records. The groups from `kept` on are unproven: the REOPEN group
    /// copies all their records, including those before `first`.
    pub(crate) groups: Vec<Group>,
    /// Number of `groups` that stay in their place.
    pub(crate) kept: usize,
    /// The first record in the log, except for `holes`; `next_lsn` if the log is empty.
    pub(crate) first: u64,
    /// The LSN of the next record, after the copied records.
    pub(crate) next_lsn: u64,
    /// The epoch at the end: a clean log continues in it.
    pub(crate) epochs: Epochs,
    /// The REOPEN group's epoch.
    pub(crate) reopen_epochs: Epochs,
    pub(crate) values: RecoveredValues,
    /// The end of the last live group: a clean log continues there.
    pub(crate) end: Position,
    /// The checksum of the last live group: `previous` of the group written at `end`.
    pub(crate) last_crc: u32,
    /// The REOPEN group's `cut`: the end of the kept groups.
    pub(crate) proven_end: Position,
    /// The REOPEN group's `watermark`: `proven_end`, or the lost end after it.
    pub(crate) watermark: Position,
    /// The REOPEN group's `previous`: the checksum of the last kept group, 0 if no group is kept.
    pub(crate) proven_crc: u32,
    /// The REOPEN group's `first_lsn`: the next LSN after the kept groups.
    pub(crate) proven_next: u64,
    /// Nothing to copy, nothing to cut, nothing lost now. After a sync of the last segment the log may
    /// continue at `end`.
    pub(crate) clean: bool,
    /// Losses found now, under salvage: each needs a Gap group after the REOPEN group.
    pub(crate) gaps: Vec<Gap>,
    /// Ranges of LSNs from `first` on that are missing in the log.
    #[cfg_attr(not(feature = "inspect"), expect(dead_code, reason = "a repair alone has to know them"))]
    pub(crate) holes: Vec<std::ops::Range<u64>>,
    /// The oldest segment that the log needs, as stated in its last group.
    pub(crate) start_generation: u64,
    /// The highest number among the segments; a fresh one gets the next.
    pub(crate) max_generation: u64,
    /// The report for the program; the caller sets `created`.
    pub(crate) recovery: Recovery,
}
