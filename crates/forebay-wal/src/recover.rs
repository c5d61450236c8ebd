//! What recovery found, and how it judges what it finds.
//!
//! A [`Scanner`] looks at one segment's bytes, [`recover`] at all scans together; both are pure functions.
//! The reasons are in `docs/wal-format.md`.

use std::path::PathBuf;

use crate::lsn::Lsn;

mod scan;
#[cfg(test)]
pub(crate) mod tests;
mod verdict;
mod walk;

#[cfg(test)]
pub(crate) use scan::scan;
pub(crate) use scan::{Needed, Scan, Scanner};
pub(crate) use verdict::recover;
pub(crate) use walk::{Gap, Group};

use crate::format::{Epochs, Position};
use crate::lost::Lost;

/// What was cut off behind the last good group: never acknowledged, or at most the very last group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cut {
    /// The segment.
    pub file: PathBuf,
    /// Where it was cut, in bytes.
    pub offset: u64,
    /// Why.
    pub why: String,
}

/// Damage that took no record: a group without records, or records that had been truncated. It was passed
/// over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The segment.
    pub file: PathBuf,
    /// Where it begins, in bytes.
    pub offset: u64,
}

/// How a log was found; see [`Wal::open`](crate::Wal::open).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// The log was made by this call.
    pub created: bool,
    /// The first record that it holds, but for what `lost` names; one past `last` when it holds none.
    pub first: Lsn,
    /// The last record.
    pub last: Lsn,
    /// The log's epoch at that record; see [`End::epoch`](crate::End::epoch).
    pub epoch: u64,
    /// Everything up to this record is proven: a later group says that it was durable.
    pub proven: Lsn,
    /// Records after `proven`: intact, and kept.
    pub unproven: u64,
    /// What was cut off behind the last good group.
    pub cut: Option<Cut>,
    /// Damage that took no record.
    pub damage: Vec<Damage>,
    /// What is lost, when the log was salvaged: now, or earlier and not yet truncated away.
    pub lost: Vec<Lost>,
    /// Segments read.
    pub segments: usize,
    /// Files in the directory that are not the log's; they are left alone.
    pub strangers: Vec<PathBuf>,
}

/// What [`recover`] concludes: the live log, where it ends and how to go on.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The log's random number.
    pub(crate) log_id: u128,
    /// The live groups in order, those without live records too. Of the ones from `kept` on, which are
    /// unproven, all records go into the REOPEN group, those before `first` too.
    pub(crate) groups: Vec<Group>,
    /// How many of `groups` stay where they are.
    pub(crate) kept: usize,
    /// The first record that the log holds, but for `holes`; `next_lsn` if none.
    pub(crate) first: u64,
    /// The next record's number, the copied ones included.
    pub(crate) next_lsn: u64,
    /// The epoch at the end: a clean log goes on in it.
    pub(crate) epochs: Epochs,
    /// The REOPEN group's epoch.
    pub(crate) reopen_epochs: Epochs,
    /// Where the last live group ends: where a clean log goes on.
    pub(crate) end: Position,
    /// The checksum of the last live group: `previous` of what is written at `end`.
    pub(crate) last_crc: u32,
    /// The REOPEN group's `cut`: where the kept groups end.
    pub(crate) proven_end: Position,
    /// The REOPEN group's `watermark`: `proven_end`, or behind it the end that is lost.
    pub(crate) watermark: Position,
    /// The REOPEN group's `previous`: the checksum of the last kept group, 0 if none is kept.
    pub(crate) proven_crc: u32,
    /// The REOPEN group's `first_lsn`: the next LSN behind the kept groups.
    pub(crate) proven_next: u64,
    /// Nothing to copy, nothing to cut, nothing lost now: after a sync of the last segment the log may go on
    /// at `end`.
    pub(crate) clean: bool,
    /// Losses found now, under salvage: each needs a Gap group behind the REOPEN group.
    pub(crate) gaps: Vec<Gap>,
    /// Ranges of LSNs from `first` on that the log does not hold.
    pub(crate) holes: Vec<std::ops::Range<u64>>,
    /// The oldest segment that the log needs, as its last group says.
    pub(crate) start_generation: u64,
    /// The highest number among the segments; a fresh one takes the next.
    pub(crate) max_generation: u64,
    /// What the program is told; `created` and `strangers` are the caller's.
    pub(crate) recovery: Recovery,
}
