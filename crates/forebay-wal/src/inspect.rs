//! Inspects a log without opening it, and saves the contents that a damaged log still has.
//!
//! [`inspect`] only reads: it creates no file, takes the log's lock shared at most, and changes nothing. It
//! reports the result that [`Wal::open`](crate::Wal::open) would return. [`repair()`] writes the records that
//! can be saved into a new log in another directory. The commands `forebay wal` of the program are these two.

use std::ops::Range;
use std::path::{Path, PathBuf};

use forebay::{Engine, Open, Waitable};

use crate::error::{Error, ErrorKind, Result};
use crate::format::{Kind, Position, segment_name};
use crate::loss::Loss;
use crate::lsn::Lsn;
use crate::recover::{Outcome, Recovery, Scan, recover};
use crate::values::Values;

mod directory;
mod records;
mod repair;
mod rewrite;
#[cfg(test)]
mod tests;

pub use records::{Records, records};
pub use repair::{RepairReport, repair};

use directory::{LogDirectory, find};

/// The contents of a log's directory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The directory.
    pub dir: PathBuf,
    /// Another handle or process has the log open, or a write of a dead process has not completed. The locks of a dead process are waited
    /// for, up to ten seconds, as an open does. The data
    /// may have changed while it was read, and the end may look unfinished because it is.
    pub in_use: bool,
    /// The log's random number; `None` if no group is whole, or if groups of two logs were found.
    pub log_id: Option<u128>,
    /// The segments, oldest first.
    pub segments: Vec<Segment>,
    /// Files that belong neither to the log nor to the file system (`lost+found`).
    pub unknown_files: Vec<PathBuf>,
    /// The newest watermark: every group that ends at or before it was durable when a later one was written.
    pub watermark: Option<Place>,
    /// The LSN of the next record, in the log as it could be opened.
    pub next_lsn: Option<Lsn>,
    /// The result that an open would have.
    pub verdict: Verdict,
    /// The recovery that an open would report; with [`Verdict::Damaged`] the one of an open with
    /// [`Options::salvage`](crate::Options::salvage). `None` if nothing could be opened.
    pub recovery: Option<Recovery>,
    /// The losses in `recovery` that no earlier salvage accepted.
    pub lost_now: Vec<Loss>,
    /// The values of the log with their keys, as far as they could be read; see [`Wal::set`](crate::Wal::set).
    pub values: Vec<(String, Vec<u8>)>,
}

/// The result that an open would have; see [`Report::verdict`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// The directory has no segments.
    NoLog,
    /// The log opens, with every record that it promises.
    Opens,
    /// [`ErrorKind::Corruption`]: acknowledged records are damaged or missing; [`ErrorKind::ValuesLost`]: the values are.
    Damaged(Error),
    /// The open fails with [`ErrorKind::Version`] or [`ErrorKind::Foreign`].
    Refused(Error),
}

/// A segment file of the log.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Segment {
    /// The segment's number.
    pub generation: u64,
    /// The segment's path.
    pub file: PathBuf,
    /// Length of the file, in bytes.
    pub bytes: u64,
    /// An open reads it; the log no longer needs the others.
    pub needed: bool,
    /// The segment's whole groups, in order.
    pub groups: Vec<Group>,
    /// Ranges that the drive could not read, in bytes.
    pub unreadable: Vec<Range<u64>>,
}

impl Segment {
    /// Returns the LSNs of the records in the segment's whole groups, including truncated records and dead groups; empty without
    /// records.
    pub fn lsns(&self) -> Range<u64> {
        let with = || self.groups.iter().map(|group| &group.lsns).filter(|lsns| !lsns.is_empty());
        let first = with().map(|lsns| lsns.start).min().unwrap_or(0);
        first..with().map(|lsns| lsns.end).max().unwrap_or(0)
    }

    /// Returns the offset of the end of the segment's last whole group, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.groups.last().map_or(0, |group| group.offset + group.bytes)
    }
}

/// A whole group.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Group {
    /// Offset in its segment, in bytes.
    pub offset: u64,
    /// Length with header and padding, in bytes.
    pub bytes: u64,
    /// The group's effect.
    pub kind: GroupKind,
    /// LSNs of the group's records. Without records: an empty range at the next record's LSN.
    pub lsns: Range<u64>,
    /// The part of `lsns` that is still in the log.
    pub live: Range<u64>,
    /// The group is part of the log. Other groups were cut off, or belong to a removed part at the log's front.
    pub linked: bool,
    /// Number of times that the log had been truncated at its end, reset or reopened.
    pub epoch: u64,
    /// Everything below was durable when the group was written.
    pub watermark: Place,
    /// The log's first record from this group on.
    pub first_retained: Lsn,
    /// Length of the table of values in the group, in bytes; 0 without a table.
    pub values_bytes: u64,
    /// The group changed a value.
    pub sets_values: bool,
}

/// The effect of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupKind {
    /// Holds records.
    Records,
    /// Starts a fresh segment after an open, with the records that were not proven durable before.
    Reopen,
    /// Proves the durability that its watermark states.
    Mark,
    /// Removed the records after this one.
    Truncate(Lsn),
    /// Removed all records; the next one is this.
    Reset(Lsn),
    /// Records that an accepted loss lies between the two places.
    Gap(Place, Place),
}

/// A position in a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Place {
    /// The segment's number.
    pub generation: u64,
    /// Offset in the segment, in bytes.
    pub offset: u64,
}

impl From<Position> for Place {
    fn from(position: Position) -> Place {
        Place { generation: position.generation, offset: position.offset }
    }
}

impl Report {
    /// Returns whether nothing is damaged or cut off, and every loss was accepted by an earlier salvage.
    pub fn is_whole(&self) -> bool {
        let recovery = self.recovery.as_ref();
        matches!(self.verdict, Verdict::Opens)
            && recovery.is_some_and(|recovery| recovery.truncated_at.is_none() && recovery.damage.is_empty())
            && self.unreadable().next().is_none()
    }

    /// Returns the unreadable ranges of the segments that an open reads: an open would fail there.
    pub fn unreadable(&self) -> impl Iterator<Item = (&Path, Range<u64>)> {
        let needed = self.segments.iter().filter(|segment| segment.needed);
        needed.flat_map(|segment| segment.unreadable.iter().map(|range| (&*segment.file, range.clone())))
    }
}

/// Inspects the log in `dir` and returns a report.
///
/// Reads every segment in full, one after the other, in pieces of 1 MiB. It needs memory for one piece, for the longest group, and
/// some 250 bytes for each group. It holds the log's lock shared while it reads, so a program that opens the log meanwhile fails.
/// An open log is read as well, and the report states that. Parts that the drive cannot read are listed in the report and judged as
/// damage.
///
/// # Errors
/// System errors, if the directory or a segment cannot be opened; [`ErrorKind::InvalidInput`] if `dir` is not a directory;
/// [`ErrorKind::Closed`] if the engine ends.
///
/// ```
/// # use forebay::{Config, Engine};
/// # use forebay_wal::{Options, Wal, inspect::inspect};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let engine = Engine::start(Config::new())?;
/// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).wait()?;
/// wal.append(b"a record").wait()?;
/// wal.close().wait()?;
/// let report = inspect(&engine, dir.path()).wait()?;
/// assert!(report.is_whole());
/// for segment in &report.segments {
///     println!("{}: {:?}, {} bytes used", segment.file.display(), segment.lsns(), segment.used_bytes());
/// }
/// # Ok(()) }
/// ```
pub fn inspect(engine: &Engine, dir: impl AsRef<Path>) -> Waitable<impl Future<Output = Result<Report>>> {
    Waitable::new("inspect", async move {
        let found = find(engine, dir.as_ref()).await?;
        Ok(examine(engine, &found).await?.0)
    })
}

/// Returns the log's values; `None` if it never had any, or if all are lost.
async fn values_of(engine: &Engine, dir: &Path, outcome: &Outcome) -> Result<Option<Values>> {
    let Some(group) = &outcome.values.table else { return Ok(None) };
    let path = dir.join(segment_name(group.header.generation));
    let table = engine.open(&path, Open::read()).await?.read_up_to(group.values()).await?;
    match Values::read(&table) {
        Some(values) => Ok(Some(values)),
        None => {
            let text = format!("the group at byte {} changed while the log was read", group.header.offset);
            Err(Error::at(ErrorKind::Io, &path, text))
        }
    }
}

/// Judges the data found, and reads the values; also returns the outcome on which [`repair()`] works.
async fn examine(engine: &Engine, found: &LogDirectory) -> Result<(Report, Option<Outcome>)> {
    let (mut report, outcome) = judge(found)?;
    if let Some(outcome) = &outcome {
        match values_of(engine, &found.dir, outcome).await {
            Ok(values) => {
                let values = values.unwrap_or_default();
                let owned = |(key, value): (&str, &[u8])| (key.to_owned(), value.to_vec());
                report.values = values.iter().map(owned).collect();
            }
            // Another program writes the log meanwhile.
            Err(_) if found.in_use => {}
            Err(error) => return Err(error),
        }
    }
    Ok((report, outcome))
}

/// Judges the data found.
fn judge(found: &LogDirectory) -> Result<(Report, Option<Outcome>)> {
    let needed =
        || found.segments.iter().filter(|segment| segment.needed).map(|segment| segment.scan.clone());
    let strict = recover(needed().collect(), &found.end, false);
    let (verdict, outcome) = match strict {
        Ok(None) => (Verdict::NoLog, None),
        Ok(Some(outcome)) => (Verdict::Opens, Some(outcome)),
        Err(error) => match error.kind() {
            // If nothing is left, salvage fails as well, with the same words.
            ErrorKind::Corruption | ErrorKind::ValuesLost => {
                (Verdict::Damaged(error), recover(needed().collect(), &found.end, true).unwrap_or(None))
            }
            ErrorKind::Version { .. } | ErrorKind::Foreign => (Verdict::Refused(error), None),
            _ => return Err(error),
        },
    };
    let lost_now = match (&verdict, &outcome) {
        (Verdict::Damaged(_), Some(outcome)) => lost_now(outcome),
        (Verdict::Damaged(error), None) => error.loss().cloned().into_iter().collect(),
        _ => Vec::new(),
    };
    let recovery = outcome.as_ref().map(|outcome| outcome.recovery.clone());
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
        unknown_files: found.unknown_files.clone(),
        watermark: watermark.map(Place::from),
        next_lsn: outcome.as_ref().map(|outcome| Lsn(outcome.next_lsn)),
        verdict,
        recovery,
        lost_now,
        values: Vec::new(),
    };
    Ok((report, outcome))
}

/// Returns the losses that salvage would have to declare: its new gaps, and a segment missing at the end.
fn lost_now(outcome: &Outcome) -> Vec<Loss> {
    let new = |lost: &&Loss| {
        let gap = outcome.gaps.iter().any(|gap| !gap.lost.is_empty() && gap.lost.start == lost.first.0);
        gap || lost.last.0 == u64::MAX
    };
    outcome.recovery.lost.iter().filter(new).cloned().collect()
}

fn described(segment: &directory::Segment, outcome: Option<&Outcome>) -> Segment {
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
                // The parser rejects all other kinds.
                Kind::Records | Kind::Unknown(_) => GroupKind::Records,
            },
            lsns: header.first_lsn..header.first_lsn.saturating_add(u64::from(header.record_count)),
            live: linked.map_or(header.first_lsn..header.first_lsn, |group| group.live.clone()),
            linked: linked.is_some(),
            epoch: header.epochs.number,
            watermark: header.watermark.into(),
            first_retained: Lsn(header.first_retained),
            values_bytes: u64::from(header.values_len),
            sets_values: header.flags.sets(),
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
