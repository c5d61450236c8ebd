//! Reads the records of a log without opening it.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use forebay::{Engine, File, Open, Waitable};

use super::directory::{CHUNK_BYTES, find};
use super::{Report, Verdict, examine};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{self, Content, parse, segment_name};
use crate::lsn::Lsn;
use crate::recover::Group;

/// Reader of the records of a log that is not open; see [`records`].
#[derive(Debug)]
pub struct Records {
    engine: Engine,
    dir: PathBuf,
    report: Report,
    groups: VecDeque<Group>,
    /// The segment being read.
    segment: Option<(u64, File)>,
    /// Records of the last group read.
    ready: VecDeque<(Lsn, Vec<u8>)>,
    /// Holds the lock shared, if the log has a lock file.
    _lock: Option<File>,
}

/// Returns a reader of the records of the log in `dir`, which is not opened. It runs
/// [`inspect`](super::inspect) first and keeps the report, then reads each record on demand. For a damaged
/// log it returns the records that [`repair`](super::repair()) would save; the report has the result that an
/// open would have.
///
/// Only reads, and holds the log's lock shared as long as it lives, so a program that opens the log meanwhile
/// fails. It needs memory for the longest group.
///
/// # Errors
/// [`ErrorKind::Locked`] while the log is in use; [`ErrorKind::InvalidInput`] if the directory has no log;
/// [`ErrorKind::Corruption`] if nothing at all is left; [`ErrorKind::Version`] and [`ErrorKind::Foreign`]; system errors.
///
/// ```
/// # use forebay::{Config, Engine};
/// # use forebay_wal::{Options, Wal, inspect::records};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let engine = Engine::start(Config::new())?;
/// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).wait()?;
/// wal.append(&[b"one".as_slice(), b"two"]).wait()?;
/// wal.close().wait()?;
/// let mut records = records(&engine, dir.path()).wait()?;
/// while let Some(record) = records.next().wait() {
///     let (lsn, bytes) = record?;
///     println!("{lsn}: {} bytes", bytes.len());
/// }
/// # Ok(()) }
/// ```
pub fn records(engine: &Engine, dir: impl AsRef<Path>) -> Waitable<impl Future<Output = Result<Records>>> {
    Waitable::new("inspect", async move {
        let dir = dir.as_ref();
        let found = find(engine, dir).await?;
        if found.in_use {
            return Err(Error::at(ErrorKind::Locked, dir, "somebody else has this log open"));
        }
        let (report, outcome) = examine(engine, &found).await?;
        let Some(outcome) = outcome else {
            return Err(match report.verdict {
                Verdict::Damaged(error) | Verdict::Refused(error) => error,
                _ => Error::at(ErrorKind::InvalidInput, dir, "there is no log in this directory"),
            });
        };
        let groups = outcome.groups.into_iter().filter(|group| !group.live.is_empty());
        Ok(Records {
            engine: engine.clone(),
            dir: dir.to_path_buf(),
            report,
            groups: groups.collect(),
            segment: None,
            ready: VecDeque::new(),
            _lock: found._lock,
        })
    })
}

/// A record with its LSN.
type NumberedRecord = (Lsn, Vec<u8>);

impl Records {
    /// Returns the report of [`inspect`](super::inspect) on the log.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Returns the next record with its LSN, or `None` after the last. LSNs that are missing were lost.
    ///
    /// # Errors
    /// System errors; [`ErrorKind::Io`] if the file has changed since the inspection.
    #[expect(clippy::should_implement_trait, reason = "the asynchronous `next`, as that of a `Stream`")]
    pub fn next(&mut self) -> Waitable<impl Future<Output = Option<Result<NumberedRecord>>>> {
        Waitable::new("read the log", async move { self.try_next().await.transpose() })
    }

    async fn try_next(&mut self) -> Result<Option<(Lsn, Vec<u8>)>> {
        loop {
            if let Some(record) = self.ready.pop_front() {
                return Ok(Some(record));
            }
            let Some(group) = self.groups.front().cloned() else { return Ok(None) };
            self.read(&group).await?;
            self.groups.pop_front();
        }
    }

    async fn read(&mut self, group: &Group) -> Result<()> {
        let header = &group.header;
        let path = self.dir.join(segment_name(header.generation));
        let file = match &self.segment {
            Some((generation, file)) if *generation == header.generation => file.clone(),
            _ => {
                let file = self.engine.open(&path, Open::read()).await?;
                self.segment.insert((header.generation, file)).1.clone()
            }
        };
        let (mut at, end) = (header.offset, header.end().offset);
        let mut bytes = Vec::with_capacity(header.total_len as usize);
        while at < end {
            let block = file.read_up_to(at..end.min(at + CHUNK_BYTES)).await?;
            if block.is_empty() {
                // The file ends within the group's padding.
                break;
            }
            bytes.extend_from_slice(&block);
            at += block.len() as u64;
        }
        let payload = bytes.get(header.payload_range());
        let same = parse(&bytes, header.generation, header.offset) == Content::Valid(*header);
        let Some(payload) = payload.filter(|_| same) else {
            let text = format!("the group at byte {} changed while the log was read", header.offset);
            return Err(Error::at(ErrorKind::Io, &path, text));
        };
        for (lsn, record) in (header.first_lsn..).zip(format::records(payload)) {
            if group.live.contains(&lsn) {
                self.ready.push_back((Lsn(lsn), record.to_vec()));
            }
        }
        Ok(())
    }
}
