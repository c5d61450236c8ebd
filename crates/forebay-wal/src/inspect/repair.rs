//! Saves the contents that a damaged log still has.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crc_fast::{CrcAlgorithm, Digest};
use forebay::{Engine, Open, Waitable};

use super::directory::{LogDirectory, bytes_of, find};
use super::rewrite::Rewrite;
use super::{Report, Verdict, examine, values_of};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{Content, parse, records};
use crate::lsn::Lsn;
use crate::recover::Outcome;

/// Result of [`repair`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RepairReport {
    /// The log as it was found, with its losses.
    pub before: Report,
    /// The new log.
    pub after: Report,
    /// Number of records in the new log.
    pub records: u64,
    /// Bytes of the new log's groups.
    pub bytes: u64,
}

/// Writes every record of the log in `dir` that can be saved into a new log in `out`, with its LSN, and
/// returns reports of both. Then verifies the new log: it is read back and compared. Never works in place:
/// `dir` is only read.
///
/// The new log has a random id, records a loss in the middle as an accepted loss, and continues at the same next LSN. After an
/// error nothing is left in `out`, as far as it can be removed. An interrupted repair leaves `*.part` files, which are not a log.
/// Reads `dir` twice and `out` twice, and needs memory for one segment.
///
/// # Errors
/// [`ErrorKind::Locked`] while the log is in use; [`ErrorKind::InvalidInput`] if `dir` has no log, if `out` is not new or empty, or
/// lies in `dir`; [`ErrorKind::Corruption`] if nothing at all is left; [`ErrorKind::Version`] and [`ErrorKind::Foreign`]; system
/// errors.
///
/// ```
/// # use forebay::{Config, Engine};
/// # use forebay_wal::{Options, Wal, inspect::repair};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let engine = Engine::start(Config::new())?;
/// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).wait()?;
/// wal.append(b"a record").wait()?;
/// wal.close().wait()?;
/// let out = tempfile::tempdir()?;
/// let repaired = repair(&engine, dir.path(), out.path()).wait()?;
/// assert_eq!(repaired.records, 1);
/// println!("lost: {:?}", repaired.before.lost_now);
/// # Ok(()) }
/// ```
pub fn repair(
    engine: &Engine,
    dir: impl AsRef<Path>,
    out: impl AsRef<Path>,
) -> Waitable<impl Future<Output = Result<RepairReport>>> {
    Waitable::new("repair", async move {
        let (dir, out) = (dir.as_ref(), out.as_ref());
        let found = find(engine, dir).await?;
        if found.in_use {
            return Err(Error::at(ErrorKind::Locked, dir, "somebody else has this log open"));
        }
        let (before, outcome) = examine(engine, &found).await?;
        let Some(outcome) = outcome else {
            return Err(match before.verdict {
                Verdict::Damaged(error) | Verdict::Refused(error) => error,
                _ => Error::at(ErrorKind::InvalidInput, dir, "there is no log in this directory"),
            });
        };
        let made_dir = prepare(engine, dir, out).await?;
        // Derive another number, so that segments of the two logs are never mistaken for those of one log.
        let log_id = outcome.log_id.rotate_left(64) ^ 0x5265_7061_6972_6564;
        let lost_first = outcome.holes.first().map_or(u64::MAX, |hole| hole.start);
        let mut rewrite = Rewrite::new(engine, out, log_id, outcome.first.min(lost_first));
        match save(engine, &found, &outcome, &mut rewrite).await {
            Ok((after, records)) => Ok(RepairReport { before, after, records, bytes: rewrite.bytes }),
            Err(error) => {
                for made in &rewrite.made {
                    // Remove both names: a rename that returned an error may have happened. The error that
                    // stopped the repair is more useful than an error of these calls.
                    let _ = engine.remove_file(made).await;
                    let _ = engine.remove_file(made.with_extension("")).await;
                }
                if made_dir {
                    let _ = engine.remove_dir(out).await;
                }
                Err(error)
            }
        }
    })
}

/// Ensures an empty directory outside of the log's; returns whether it had to be created.
async fn prepare(engine: &Engine, dir: &Path, out: &Path) -> Result<bool> {
    let refused = |text: &str| Err(Error::at(ErrorKind::InvalidInput, out, text));
    let exists = match engine.metadata(out).await {
        Ok(metadata) if !metadata.is_dir() => {
            return refused("this is not a directory: give an empty one for the new log");
        }
        Ok(_) => true,
        Err(_) => false,
    };
    if exists && !engine.read_dir(out).await?.is_empty() {
        return refused("the new log needs a new or an empty directory, and this one is not empty");
    }
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if is_within(engine, dir, if exists { out } else { parent }).await? {
        return refused("the new log must lie outside of the damaged one, which is only read");
    }
    if !exists {
        engine.create_dir(out).await?;
        if let Err(error) = engine.sync_dir(parent).await {
            let _ = engine.remove_dir(out).await;
            return Err(error.into());
        }
    }
    Ok(!exists)
}

/// Returns whether `path`, which exists, is `dir` or lies below it.
async fn is_within(engine: &Engine, dir: &Path, path: &Path) -> Result<bool> {
    if engine.driver() == "sim" {
        return Ok(path.starts_with(dir));
    }
    let real = |path: &Path| {
        let failed = |cause| Error::at(ErrorKind::Io, path, format!("{cause}"));
        std::fs::canonicalize(path).map_err(failed)
    };
    Ok(real(path)?.starts_with(real(dir)?))
}

/// Writes and verifies the new log; returns its report and the number of its records.
async fn save(
    engine: &Engine,
    found: &LogDirectory,
    outcome: &Outcome,
    rewrite: &mut Rewrite<'_>,
) -> Result<(Report, u64)> {
    rewrite.values = values_of(engine, &found.dir, outcome).await?;
    rewrite.begin().await?;
    let written = each_group(engine, &found.dir, outcome, Some(rewrite)).await?;
    rewrite.finish(outcome.next_lsn).await?;

    let out = rewrite.made.first().and_then(|made| made.parent()).map(PathBuf::from).unwrap_or_default();
    let again = find(engine, &out).await?;
    let (report, saved) = examine(engine, &again).await?;
    let differs = |what: &str| {
        let text = format!("the new log is not what was written ({what}); nothing was kept of it");
        Error::at(ErrorKind::Io, &out, text)
    };
    let Some(saved) = saved.filter(|saved| saved.clean && report.is_whole()) else {
        return Err(differs("it does not open without a finding"));
    };
    if saved.next_lsn != outcome.next_lsn || merged(&saved.holes) != merged(&outcome.holes) {
        return Err(differs("other records are missing"));
    }
    if values_of(engine, &out, &saved).await? != rewrite.values {
        return Err(differs("its values differ"));
    }
    if each_group(engine, &out, &saved, None).await? != written {
        return Err(differs("its records differ"));
    }
    Ok((report, written.count))
}

/// Returns the ranges with adjacent ranges joined: between two losses there may have been a group without records.
fn merged(holes: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut merged: Vec<Range<u64>> = Vec::new();
    for hole in holes {
        match merged.last_mut() {
            Some(last) if last.end == hole.start => last.end = hole.end,
            _ => merged.push(hole.clone()),
        }
    }
    merged
}

/// Summary of the records seen.
#[derive(PartialEq, Eq)]
struct RecordSummary {
    count: u64,
    digest: u64,
}

/// Reads all live records, in order, and passes them on.
async fn each_group(
    engine: &Engine,
    dir: &Path,
    outcome: &Outcome,
    mut to: Option<&mut Rewrite<'_>>,
) -> Result<RecordSummary> {
    let (mut count, mut digest) = (0, Digest::new(CrcAlgorithm::Crc32Iscsi));
    let mut segment = (0, Vec::new());
    for group in outcome.groups.iter().filter(|group| !group.live.is_empty()) {
        let header = &group.header;
        let path = dir.join(crate::format::segment_name(header.generation));
        if segment.0 != header.generation {
            let file = engine.open(&path, Open::read()).await?;
            segment = (header.generation, bytes_of(&file).await?.0);
        }
        let changed = || {
            let text = format!("the group at byte {} changed while the log was read", header.offset);
            Error::at(ErrorKind::Io, &path, text)
        };
        let bytes =
            usize::try_from(header.offset).ok().and_then(|at| segment.1.get(at..)).ok_or_else(changed)?;
        if parse(bytes, header.generation, header.offset) != Content::Valid(*header) {
            return Err(changed());
        }
        let payload = bytes.get(header.payload_range()).ok_or_else(changed)?;
        for (lsn, record) in (header.first_lsn..).zip(records(payload)) {
            if group.live.contains(&lsn) {
                count += 1;
                digest.update(&lsn.to_le_bytes());
                digest.update(&(record.len() as u64).to_le_bytes());
                digest.update(record);
                if let Some(rewrite) = &mut to {
                    rewrite.push(lsn, record).await?;
                }
            }
        }
    }
    Ok(RecordSummary { count, digest: digest.finalize() })
}

impl RepairReport {
    /// Returns the first record of the new log; one past [`last`](Self::last) if the log is empty.
    pub fn first(&self) -> Lsn {
        self.after.recovery.as_ref().map_or(Lsn(0), |recovery| recovery.first)
    }

    /// Returns the last record of the new log.
    pub fn last(&self) -> Lsn {
        self.after.recovery.as_ref().map_or(Lsn(0), |recovery| recovery.last)
    }
}
