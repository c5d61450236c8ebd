//! Reads of ranges, also of records that are not durable yet, and waits for records.

use std::future::poll_fn;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use forebay::Waitable;

use crate::error::Result;
use crate::format::RECORD_HEADER_BYTES;
use crate::lsn::Lsn;
use crate::operation::LogOperation;
use crate::queue::{Piece, Queue, RecordSource};
use crate::reader::{Reader, Record};
use crate::wal::Wal;

impl Wal {
    /// Returns the records of a range, durable or only queued, in order: at most `bytes_max` bytes of them, but the first
    /// one in any case. Empty if the range has no record yet.
    ///
    /// Records that are queued, being written, or among the last [`Options::recent_bytes`](crate::Options::recent_bytes) written
    /// are returned from memory, without a system call; queued records are copied. All others are read from the segments, 256 KiB
    /// at a time. A queued record may still be lost in a crash. All records returned belong to one state of the log: a truncation
    /// of the end meanwhile makes the call start again. The future borrows nothing.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`](crate::ErrorKind::OutOfRange) if the range starts before the log does;
    /// [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) if its first record is damaged or was lost before;
    /// [`ErrorKind::Poisoned`](crate::ErrorKind::Poisoned) and [`ErrorKind::Closed`](crate::ErrorKind::Closed) for records that
    /// were queued and never written; system errors.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Lsn, Options, Wal};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).await?;
    /// for record in ["one", "two", "three"] {
    ///     _ = wal.append(record.as_bytes()).queued().await?;
    /// }
    /// let records = wal.read(Lsn(2).., 1 << 20).await?; // durable or not
    /// assert_eq!((records.len(), &records[1][..]), (2, &b"three"[..]));
    /// assert_eq!(wal.read(..=Lsn(3), 5).await?.len(), 1); // no two have 5 bytes together
    /// # wal.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn read(
        &self,
        range: impl RangeBounds<Lsn>,
        bytes_max: usize,
    ) -> Waitable<impl Future<Output = Result<Vec<Record>>> + Send + 'static> {
        let start = match range.start_bound() {
            Bound::Included(first) => Some(first.0),
            // The highest number has no successor.
            Bound::Excluded(before) => Some(before.0.saturating_add(1)),
            Bound::Unbounded => None,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.0.saturating_add(1),
            Bound::Excluded(end) => end.0,
            Bound::Unbounded => u64::MAX,
        };
        let shared = self.shared().clone();
        Waitable::new("read the log", read(shared, start, end, bytes_max))
    }

    /// Waits until record `lsn` can be [read](Wal::read), durable or only queued.
    ///
    /// Any number may wait; each is woken once. A reset that passes over the number ends the wait with an error.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`](crate::ErrorKind::OutOfRange) if the record was removed from the log's front;
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) and [`ErrorKind::Poisoned`](crate::ErrorKind::Poisoned) once it can no
    /// longer be appended.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Lsn, Options, Wal};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).await?;
    /// let queued = tokio::spawn(wal.wait_queued(Lsn(2)));
    /// let durable = tokio::spawn(wal.wait_durable(Lsn(2)));
    /// wal.append(&[b"one".as_slice(), b"two"]).await?;
    /// queued.await??;
    /// durable.await??;
    /// # wal.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn wait_queued(&self, lsn: Lsn) -> LogOperation {
        LogOperation::record(self.shared(), lsn.0, false)
    }

    /// Waits until record `lsn` is durable, and so can be read by a [`Reader`].
    ///
    /// # Errors
    /// Those of [`wait_queued`](Wal::wait_queued).
    pub fn wait_durable(&self, lsn: Lsn) -> LogOperation {
        LogOperation::record(self.shared(), lsn.0, true)
    }
}

async fn read(shared: Arc<Queue>, start: Option<u64>, end: u64, bytes_max: usize) -> Result<Vec<Record>> {
    'again: loop {
        let cuts = shared.cuts();
        let mut next = start.unwrap_or_else(|| shared.lock().first_lsn);
        let (mut all, mut left) = (Vec::new(), bytes_max);
        let mut reader: Option<Reader> = None;
        // An inverted range has no record, regardless of the log's first LSN.
        while next < end {
            let found = poll_fn(|context| shared.poll_find(next, end, left, context.waker())).await;
            let found = match found {
                // The records that were found are there; the next call returns the error.
                Err(_) if !all.is_empty() => RecordSource::None,
                other => other?,
            };
            if shared.cuts() != cuts {
                continue 'again;
            }
            let is_full = match found {
                RecordSource::None => true,
                RecordSource::Memory(piece) => {
                    let (taken, is_full) = take(&piece, &mut left, &mut all);
                    next = taken;
                    is_full
                }
                RecordSource::Segments(until) => {
                    let read = reader.take().filter(|reader| reader.position() == Lsn(next));
                    let reader = reader.insert(read.unwrap_or_else(|| Reader::new(shared.clone(), next)));
                    let is_full = from_segments(reader, until, &mut left, &mut all).await;
                    next = reader.position().0;
                    if shared.cuts() != cuts {
                        continue 'again;
                    }
                    is_full?
                }
            };
            if is_full {
                break;
            }
        }
        return Ok(all);
    }
}

/// Adds the records before `until`. Returns whether the read ends with them.
async fn from_segments(
    reader: &mut Reader,
    until: u64,
    left: &mut usize,
    all: &mut Vec<Record>,
) -> Result<bool> {
    while reader.position() < Lsn(until) {
        match reader.next_before(until).await {
            Err(error) if all.is_empty() => return Err(error),
            Err(_) | Ok(None) => return Ok(true),
            Ok(Some(record)) => {
                if !add(record, left, all) {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

/// Adds a record if it is the first, or within the limit. Returns whether it was.
fn add(record: Record, left: &mut usize, all: &mut Vec<Record>) -> bool {
    let is_within = record.len() <= *left;
    *left = left.saturating_sub(record.len());
    if is_within || all.is_empty() {
        all.push(record);
        return is_within;
    }
    false
}

/// Adds the wanted records of a piece. Returns the number after the last one, and whether the limit is reached.
fn take(piece: &Piece, left: &mut usize, all: &mut Vec<Record>) -> (u64, bool) {
    let (mut lsn, mut at) = (piece.first, 0);
    while lsn < piece.take.end {
        let Some(length) =
            piece.framed.get(at..at + RECORD_HEADER_BYTES).and_then(|length| length.try_into().ok())
        else {
            break;
        };
        let start = at + RECORD_HEADER_BYTES;
        at = start + u32::from_le_bytes(length) as usize;
        if lsn >= piece.take.start {
            let Some(data) = piece.framed.slice(start..at) else { break };
            if !add(Record::new(lsn, data), left, all) {
                return (lsn, true);
            }
        }
        lsn += 1;
    }
    // A piece that does not have what it promises ends the read: it must not loop for ever.
    (lsn, lsn <= piece.take.start)
}
