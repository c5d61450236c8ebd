//! Writes records into a new log, with their old LSNs.
//!
//! A program would have written the same log if it had started at the first record, lost the missing records, accepted the loss and
//! closed the log. Groups are adjacent, with a grain left free where records are missing. The last groups are one for each such
//! gap, and a mark. Recovery then judges it like any other log.

use std::path::{Path, PathBuf};

use forebay::{Durability, Engine, File, Open};

use crate::end_file::{END_NAME, EndFile, FoundEnd};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    EndRecord, Epochs, Flags, GRAIN, HEADER_BYTES, Header, Kind, Position, RECORD_HEADER_BYTES, VERSION,
    group_bytes, seal, segment_name,
};
use crate::values::{Stamp, Values};

/// A segment is ended if a group would make it longer than this, in bytes.
const SEGMENT_BYTES: u64 = 64 << 20;
/// A group is ended if a record would make its records longer than this, in bytes.
const GROUP_BYTES: usize = 1 << 20;
/// Suffix of a segment's name until all segments are written.
const UNFINISHED: &str = ".part";

/// Writes a new log into an empty directory.
pub(super) struct Rewrite<'a> {
    engine: &'a Engine,
    dir: &'a Path,
    log_id: u128,
    first_retained: u64,
    /// The values, which each segment's first group has.
    pub(super) values: Option<Values>,
    pub(super) segment_bytes: u64,
    /// The segment being written.
    file: Option<File>,
    /// Position of the next group.
    at: Position,
    /// End of the last group.
    end: Position,
    previous: u32,
    base_lsn: u64,
    /// The LSN of the first record in `pending`, or of the next one.
    first_lsn: u64,
    pending: Vec<u8>,
    count: u32,
    /// The end of the last group before missing records, while records are missing before the next group.
    missing_from: Option<Position>,
    gaps: Vec<(Position, Position)>,
    /// Every file created so far, newest last, under its present name.
    pub(super) made: Vec<PathBuf>,
    /// Bytes of all groups written.
    pub(super) bytes: u64,
}

/// The properties of a group apart from its records.
#[derive(Clone, Copy)]
struct Shape {
    kind: Kind,
    flags: Flags,
    cut: Position,
    resume: Position,
}

impl Shape {
    const RECORDS: Shape = Shape {
        kind: Kind::Records,
        flags: Flags(0),
        cut: Position { generation: 0, offset: 0 },
        resume: Position { generation: 0, offset: 0 },
    };
}

impl<'a> Rewrite<'a> {
    /// Returns a log whose first record is, or would have been, `first`.
    pub(super) fn new(engine: &'a Engine, dir: &'a Path, log_id: u128, first: u64) -> Rewrite<'a> {
        let start = Position { generation: 1, offset: 0 };
        Rewrite {
            engine,
            dir,
            log_id,
            first_retained: first,
            values: None,
            segment_bytes: SEGMENT_BYTES,
            file: None,
            at: start,
            end: start,
            previous: 0,
            base_lsn: first,
            first_lsn: first,
            pending: vec![0; HEADER_BYTES],
            count: 0,
            missing_from: None,
            gaps: Vec::new(),
            made: Vec::new(),
            bytes: 0,
        }
    }

    /// Writes the first group, which makes a file a valid segment.
    pub(super) async fn begin(&mut self) -> Result<()> {
        self.write(Shape { flags: Flags::REOPEN, ..Shape::RECORDS }).await
    }

    /// Adds a record; LSNs ascend, and omitted LSNs are missing.
    pub(super) async fn push(&mut self, lsn: u64, record: &[u8]) -> Result<()> {
        self.skip_to(lsn).await?;
        let framed = RECORD_HEADER_BYTES + record.len();
        if self.pending.len() - HEADER_BYTES + framed > GROUP_BYTES {
            self.flush().await?;
        }
        self.pending.extend_from_slice(&(record.len() as u32).to_le_bytes());
        self.pending.extend_from_slice(record);
        self.count += 1;
        Ok(())
    }

    /// Ends the group.
    pub(super) async fn flush(&mut self) -> Result<()> {
        match self.count {
            0 => Ok(()),
            _ => self.write(Shape::RECORDS).await,
        }
    }

    /// Marks the records before `lsn` that were not added as missing.
    async fn skip_to(&mut self, lsn: u64) -> Result<()> {
        let next = self.first_lsn + u64::from(self.count);
        if lsn < next {
            let text = format!("record {lsn} comes after record {}", next.saturating_sub(1));
            return Err(Error::at(ErrorKind::InvalidInput, self.dir, text));
        }
        if lsn > next {
            self.flush().await?;
            self.missing_from.get_or_insert(self.end);
            // Leave a gap: between adjacent groups no group can be missing.
            self.at.offset = self.end.offset + u64::from(GRAIN);
            self.first_lsn = lsn;
        }
        Ok(())
    }

    /// Ends the log, whose next record is `next_lsn`, and gives the files their names. Returns once all of it
    /// is durable.
    pub(super) async fn finish(&mut self, next_lsn: u64) -> Result<()> {
        self.skip_to(next_lsn).await?;
        self.flush().await?;
        let mark = Shape { kind: Kind::Mark, ..Shape::RECORDS };
        if self.missing_from.is_some() {
            // A gap needs a group after it.
            self.write(mark).await?;
        }
        for (cut, resume) in std::mem::take(&mut self.gaps) {
            self.write(Shape { kind: Kind::Gap, cut, resume, ..Shape::RECORDS }).await?;
        }
        self.write(mark).await?;
        self.end_segment().await?;
        // Newest first: while an older segment has no name yet, the log is refused, and never opens with
        // less.
        for made in self.made.iter_mut().rev() {
            let name = made.with_extension("");
            self.engine.rename(&*made, &name).await?;
            *made = name;
        }
        self.engine.sync_dir(self.dir).await?;
        let record = EndRecord {
            values: self.stamp(),
            log_id: self.log_id,
            position: self.end,
            epochs: Epochs::new(self.first_retained),
            next_lsn: self.first_lsn,
            first_retained: self.first_retained,
            start_generation: 1,
            previous: self.previous,
        };
        self.made.push(self.dir.join(END_NAME));
        let dir = self.engine.open_dir(self.dir).await?;
        Ok(EndFile::new(&dir, &FoundEnd::none(self.dir), 0, Default::default()).make(record, 1).await?)
    }

    /// Writes the pending records as one group.
    async fn write(&mut self, shape: Shape) -> Result<()> {
        let payload_len = self.pending.len() - HEADER_BYTES;
        let mut total_len = group_bytes(payload_len, GRAIN);
        if self.at.offset > 0 && self.at.offset + u64::from(total_len) > self.segment_bytes {
            self.end_segment().await?;
            self.at = Position { generation: self.at.generation + 1, offset: 0 };
            self.base_lsn = self.first_lsn;
        }
        if let Some(cut) = self.missing_from.take() {
            self.gaps.push((cut, self.at));
        }
        let is_first = self.file.is_none();
        if let Some(values) = self.values.as_ref().filter(|_| is_first) {
            values.write(&mut self.pending);
            total_len = group_bytes(self.pending.len() - HEADER_BYTES, GRAIN);
        }
        let sets = if self.made.is_empty() && self.values.is_some() { Flags::SETS } else { Flags::default() };
        let header = Header {
            version: VERSION,
            values: self.stamp(),
            values_len: (self.pending.len() - HEADER_BYTES - payload_len) as u32,
            crc: 0,
            total_len,
            log_id: self.log_id,
            generation: self.at.generation,
            offset: self.at.offset,
            epochs: Epochs::new(self.first_retained),
            first_lsn: self.first_lsn,
            record_count: self.count,
            payload_len: payload_len as u32,
            previous: self.previous,
            kind: shape.kind,
            flags: shape.flags.with(sets),
            // The directory counts as durable only once all of it is.
            watermark: if self.made.is_empty() { Position::default() } else { self.end },
            first_retained: self.first_retained,
            base_lsn: self.base_lsn,
            argument: 0,
            cut: shape.cut,
            resume: shape.resume,
            start_generation: 1,
        };
        debug_assert!(header.consistent(), "recovery would refuse the group: {header:?}");
        debug_assert!(self.end <= header.position(), "groups follow each other in the segments");
        self.pending.resize(total_len as usize, 0);
        self.previous = seal(&header, &mut self.pending);
        let file = match &self.file {
            Some(file) => file.clone(),
            None => self.begin_segment().await?,
        };
        let mut at = self.at.offset;
        for part in self.pending.chunks(GROUP_BYTES) {
            file.write(at, part).await?;
            at += part.len() as u64;
        }
        self.end = header.end();
        self.at = self.end;
        self.bytes += u64::from(total_len);
        self.first_lsn += u64::from(self.count);
        self.count = 0;
        self.pending.clear();
        self.pending.resize(HEADER_BYTES, 0);
        Ok(())
    }

    /// Returns the stamp of the values.
    fn stamp(&self) -> Stamp {
        let epoch = Epochs::new(self.first_retained).number;
        self.values.as_ref().map_or(Stamp::default(), |_| Stamp::default().next(epoch))
    }

    async fn begin_segment(&mut self) -> Result<File> {
        let path = self.dir.join(format!("{}{UNFINISHED}", segment_name(self.at.generation)));
        let file = self.engine.open(&path, Open::create_new().buffered()).await?;
        self.made.push(path);
        self.file = Some(file.clone());
        Ok(file)
    }

    async fn end_segment(&mut self) -> Result<()> {
        if let Some(file) = self.file.take() {
            file.sync(Durability::All).await?;
        }
        Ok(())
    }
}
