//! Looking at a log without opening it, and saving what a damaged one still holds.
//!
//! [`inspect`] only reads: it makes no file, takes the log's lock no more than shared, and changes nothing.
//! It tells what [`Wal::open`](crate::Wal::open) would say. [`repair`] writes what can be saved into a new
//! log in another directory. The commands `forebay wal` of the program are these two.

use std::ops::Range;
use std::path::{Path, PathBuf};

use forebay::{Engine, Waitable};

use crate::error::{Error, ErrorKind, Result};
use crate::format::{Kind, Position};
use crate::lost::Lost;
use crate::lsn::Lsn;
use crate::recover::{Outcome, Recovery, Scan, recover};

mod read;
mod records;
mod repair;
mod rewrite;
#[cfg(test)]
mod tests;

pub use records::{Records, records};
pub use repair::{Repaired, repair};

use read::{Found, find};

/// What is in a log's directory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The directory.
    pub dir: PathBuf,
    /// Somebody has the log open, or a write of a dead process is not over: what was read may have changed
    /// meanwhile, and the end may look unfinished because it is.
    pub in_use: bool,
    /// The log's random number; `None` where no group is whole, or where there are groups of two logs.
    pub log_id: Option<u128>,
    /// The segments, oldest first.
    pub segments: Vec<Segment>,
    /// Files that are not the log's.
    pub strangers: Vec<PathBuf>,
    /// The newest watermark: every group that ends at or before it was durable when a later one was written.
    pub watermark: Option<Place>,
    /// The next record's number, in the log as it could be opened.
    pub next_lsn: Option<Lsn>,
    /// What an open would say.
    pub verdict: Verdict,
    /// What an open would report; with [`Verdict::Damaged`] one with
    /// [`Options::salvage`](crate::Options::salvage). `None` where nothing could be opened.
    pub recovery: Option<Recovery>,
    /// Those of `recovery`'s losses that no earlier salvage accepted.
    pub lost_now: Vec<Lost>,
}

/// What an open would say; see [`Report::verdict`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// There are no segments.
    NoLog,
    /// It opens, with every record that it promises.
    Opens,
    /// [`ErrorKind::Corruption`]: acknowledged records are damaged or gone.
    Damaged(Error),
    /// It is refused: [`ErrorKind::Version`] or [`ErrorKind::Foreign`].
    Refused(Error),
}

/// A file of the log.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Segment {
    /// Its number.
    pub generation: u64,
    /// The file.
    pub file: PathBuf,
    /// Its length, in bytes.
    pub bytes: u64,
    /// An open looks at it; the log does not need the others any more.
    pub needed: bool,
    /// Its whole groups, in order.
    pub groups: Vec<Group>,
    /// What the drive could not read, in bytes.
    pub unreadable: Vec<Range<u64>>,
}

impl Segment {
    /// The records in its whole groups, truncated ones and dead groups included; empty when there are none.
    pub fn lsns(&self) -> Range<u64> {
        let with = || self.groups.iter().map(|group| &group.lsns).filter(|lsns| !lsns.is_empty());
        let first = with().map(|lsns| lsns.start).min().unwrap_or(0);
        first..with().map(|lsns| lsns.end).max().unwrap_or(0)
    }

    /// Bytes from its beginning to the end of its last whole group.
    pub fn used_bytes(&self) -> u64 {
        self.groups.last().map_or(0, |group| group.offset + group.bytes)
    }
}

/// A whole group.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Group {
    /// Where it begins in its segment, in bytes.
    pub offset: u64,
    /// Its length with header and padding, in bytes.
    pub bytes: u64,
    /// What it does.
    pub kind: GroupKind,
    /// Its records; empty at the next record's number when it has none.
    pub lsns: Range<u64>,
    /// Those of them that the log still holds.
    pub live: Range<u64>,
    /// It is part of the log. Others were cut off, or belong to a beginning that is not needed any more.
    pub linked: bool,
    /// How often the log had been truncated at its end, reset or reopened.
    pub epoch: u64,
    /// Everything below was durable when it was written.
    pub watermark: Place,
    /// The log's first record from this group on.
    pub first_retained: Lsn,
}

/// What a group does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupKind {
    /// It holds records.
    Records,
    /// It begins a fresh segment after an open, with the records that were not proven before.
    Reopen,
    /// It proves what its watermark says.
    Mark,
    /// It removed the records after this one.
    Truncate(Lsn),
    /// It removed all records; the next one is this.
    Reset(Lsn),
    /// It says that an accepted loss lies between the two places.
    Gap(Place, Place),
}

/// A place in a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Place {
    /// The segment's number.
    pub generation: u64,
    /// Bytes from its beginning.
    pub offset: u64,
}

impl From<Position> for Place {
    fn from(position: Position) -> Place {
        Place { generation: position.generation, offset: position.offset }
    }
}

impl Report {
    /// Nothing is damaged, nothing was cut off, and nothing is lost but what an earlier salvage accepted.
    pub fn is_whole(&self) -> bool {
        let recovery = self.recovery.as_ref();
        matches!(self.verdict, Verdict::Opens)
            && recovery.is_some_and(|recovery| recovery.cut.is_none() && recovery.damage.is_empty())
            && self.unreadable().next().is_none()
    }

    /// What the drive could not read of the segments that an open looks at: an open would fail there.
    pub fn unreadable(&self) -> impl Iterator<Item = (&Path, Range<u64>)> {
        let needed = self.segments.iter().filter(|segment| segment.needed);
        needed.flat_map(|segment| segment.unreadable.iter().map(|range| (&*segment.file, range.clone())))
    }
}

/// Looks at the log in `dir`.
///
/// Reads every segment in full, one after the other, in pieces of 1 MiB; it needs memory for one, for the
/// longest group, and some 250 bytes for each group. While it reads it holds the log's lock shared, so a
/// program that opens the log meanwhile is refused; a log that is open already is read all the same, and
/// the report says so. Parts that the drive cannot read are told in the report and judged as damage.
///
/// # Errors
/// The system's, when the directory or a segment cannot be opened; [`ErrorKind::InvalidInput`] when `dir` is
/// no directory; [`ErrorKind::Closed`] when the engine ends.
pub fn inspect(engine: &Engine, dir: impl AsRef<Path>) -> Waitable<impl Future<Output = Result<Report>>> {
    Waitable::new("inspect", async move {
        let found = find(engine, dir.as_ref()).await?;
        Ok(examine(&found)?.0)
    })
}

/// Judges what was found; with it what [`repair`] goes by.
fn examine(found: &Found) -> Result<(Report, Option<Outcome>)> {
    let needed =
        || found.segments.iter().filter(|segment| segment.needed).map(|segment| segment.scan.clone());
    let strict = recover(needed().collect(), &found.end, false);
    let (verdict, outcome) = match strict {
        Ok(None) => (Verdict::NoLog, None),
        Ok(Some(outcome)) => (Verdict::Opens, Some(outcome)),
        Err(error) => match error.kind() {
            // Without anything left salvage fails as well, with the same words.
            ErrorKind::Corruption(_) => {
                (Verdict::Damaged(error), recover(needed().collect(), &found.end, true).unwrap_or(None))
            }
            ErrorKind::Version { .. } | ErrorKind::Foreign => (Verdict::Refused(error), None),
            _ => return Err(error),
        },
    };
    let lost_now = match (&verdict, &outcome) {
        (Verdict::Damaged(_), Some(outcome)) => lost_now(outcome),
        (Verdict::Damaged(error), None) => match error.kind() {
            ErrorKind::Corruption(lost) => vec![lost.clone()],
            _ => Vec::new(),
        },
        _ => Vec::new(),
    };
    let mut recovery = outcome.as_ref().map(|outcome| outcome.recovery.clone());
    if let Some(recovery) = &mut recovery {
        recovery.strangers.clone_from(&found.strangers);
    }
    let headers = || found.segments.iter().flat_map(|segment| &segment.scan.groups);
    let watermark = match &outcome {
        Some(outcome) => outcome.groups.iter().map(|group| group.header.watermark).max(),
        None => headers().map(|header| header.watermark).max(),
    };
    let report = Report {
        dir: found.dir.clone(),
        in_use: found.in_use,
        log_id: outcome.as_ref().map(|outcome| outcome.log_id),
        segments: found.segments.iter().map(|segment| described(segment, outcome.as_ref())).collect(),
        strangers: found.strangers.clone(),
        watermark: watermark.map(Place::from),
        next_lsn: outcome.as_ref().map(|outcome| Lsn(outcome.next_lsn)),
        verdict,
        recovery,
        lost_now,
    };
    Ok((report, outcome))
}

/// The losses that salvage would have to declare: its new gaps, and a segment that is missing at the end.
fn lost_now(outcome: &Outcome) -> Vec<Lost> {
    let new = |lost: &&Lost| {
        let gap = outcome.gaps.iter().any(|gap| !gap.lost.is_empty() && gap.lost.start == lost.first.0);
        gap || lost.last.0 == u64::MAX
    };
    outcome.recovery.lost.iter().filter(new).cloned().collect()
}

fn described(segment: &read::Segment, outcome: Option<&Outcome>) -> Segment {
    let Scan { generation, file, bytes, groups, .. } = &segment.scan;
    let chain = outcome.map_or(&[][..], |outcome| &outcome.groups);
    let mut described = Vec::with_capacity(groups.len());
    for header in groups {
        let linked = chain.binary_search_by_key(&header.position(), |group| group.header.position());
        let linked = linked.ok().and_then(|at| chain.get(at));
        described.push(Group {
            offset: header.offset,
            bytes: u64::from(header.total_len),
            kind: match header.kind {
                Kind::Records if header.flags.reopen() => GroupKind::Reopen,
                Kind::Mark => GroupKind::Mark,
                Kind::Truncate => GroupKind::Truncate(Lsn(header.argument)),
                Kind::Reset => GroupKind::Reset(Lsn(header.argument)),
                Kind::Gap => GroupKind::Gap(header.cut.into(), header.resume.into()),
                // The parser lets no other kind pass.
                Kind::Records | Kind::Unknown(_) => GroupKind::Records,
            },
            lsns: header.first_lsn..header.first_lsn.saturating_add(u64::from(header.record_count)),
            live: linked.map_or(header.first_lsn..header.first_lsn, |group| group.live.clone()),
            linked: linked.is_some(),
            epoch: header.epochs.number,
            watermark: header.watermark.into(),
            first_retained: Lsn(header.first_retained),
        });
    }
    Segment {
        generation: *generation,
        file: file.clone(),
        bytes: *bytes,
        needed: segment.needed,
        groups: described,
        unreadable: segment.unreadable.clone(),
    }
}
