//! Reads durable records while the log is in use.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use forebay::{Block, Waitable};

use crate::error::{Error, ErrorKind, Result};
use crate::format::{Content, GRAIN, Header, RECORD_HEADER_BYTES, parse};
use crate::loss::Loss;
use crate::lsn::Lsn;
use crate::operation::LogOperation;
use crate::queue::Queue;
use crate::segment::SearchStart;

/// Length of one read, unless a group is longer.
const CHUNK_BYTES: u64 = 256 << 10;

/// Reads a log's durable records in order; see [`Wal::read_from`](crate::Wal::read_from).
///
/// The segment being read is not reused until the reader has moved on. The reader keeps working after the log
/// was closed, as long as its engine lives, and it keeps the engine alive itself.
pub struct Reader {
    shared: Arc<Queue>,
    /// The next record to return.
    next: u64,
    /// Position of the groups being read.
    place: Option<SearchStart>,
    /// The bytes from `place.offset` on.
    chunk: Block,
    /// The group at the chunk's start, if it has the next record: its header, the number of its records already passed, and the
    /// offset of the next one.
    group: Option<(Header, u64, usize)>,
}

/// A record as it was appended.
///
/// It shares the memory that it was read into, up to 256 KiB or its group's length, and keeps that memory
/// from other use. For records that are kept long make them a [`Block`], and see [`Block::detach`].
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    lsn: Lsn,
    data: Block,
}

impl Record {
    pub(crate) fn new(lsn: u64, data: Block) -> Record {
        Record { lsn: Lsn(lsn), data }
    }

    /// Returns the record's LSN.
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }
}

impl From<Record> for Block {
    fn from(record: Record) -> Block {
        record.data
    }
}

impl Deref for Record {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.data
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("lsn", &self.lsn).field("bytes", &self.data.len()).finish()
    }
}

impl Reader {
    pub(crate) fn new(shared: Arc<Queue>, next: u64) -> Reader {
        Reader { shared, next, place: None, chunk: Block::new(), group: None }
    }

    /// Returns the LSN of the record that [`next`](Reader::next) returns next. For the store.
    #[doc(hidden)]
    pub fn position(&self) -> Lsn {
        Lsn(self.next)
    }

    /// Returns the next record, or `None` if no further record is durable yet. Call it again after more appends.
    ///
    /// After [`truncate_from`](crate::Wal::truncate_from) and [`reset_to`](crate::Wal::reset_to) it
    /// continues at the same LSN in the log as it is then. From time to time a call reads up to 256 KiB. The
    /// future may be dropped at any await; no record is skipped.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] if the record was truncated away or lies beyond the next one to be appended;
    /// [`ErrorKind::Corruption`] if it is damaged or was lost before; system errors. The position does not
    /// change.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Lsn, Options, Wal};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).await?;
    /// wal.append(&[b"one".as_slice(), b"two"]).await?;
    /// let mut reader = wal.read_from(Lsn(1));
    /// while let Some(record) = reader.next().await {
    ///     let record = record?;
    ///     println!("{}: {} bytes", record.lsn(), record.len());
    /// }
    /// // A later call goes on with record 3.
    /// # wal.close().await?;
    /// # Ok(()) }
    /// ```
    #[expect(clippy::should_implement_trait, reason = "the asynchronous `next`, as that of a `Stream`")]
    pub fn next(&mut self) -> Waitable<impl Future<Output = Option<Result<Record>>>> {
        Waitable::new("read the log", async move { self.try_next().await.transpose() })
    }

    /// Returns the next record, and waits for it: for followers and feeds of changes. The position does not change while it waits,
    /// and the future may be dropped at any await.
    ///
    /// # Errors
    /// Those of [`next`](Reader::next); [`ErrorKind::Closed`] and [`ErrorKind::Poisoned`] once no further record can be appended.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Lsn, Options, Wal};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).await?;
    /// let mut reader = wal.read_from(Lsn(1));
    /// let follower = tokio::spawn(async move { reader.follow().await });
    /// wal.append(b"news").await?;
    /// assert_eq!(&follower.await??[..], b"news");
    /// # wal.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn follow(&mut self) -> Waitable<impl Future<Output = Result<Record>>> {
        Waitable::new("follow the log", async move {
            loop {
                if let Some(record) = self.try_next().await? {
                    return Ok(record);
                }
                LogOperation::record(&self.shared, self.next, true).await?;
            }
        })
    }

    /// Returns the next record if it lies before `end` and is durable.
    pub(crate) async fn next_before(&mut self, end: u64) -> Result<Option<Record>> {
        if self.next < end { self.try_next().await } else { Ok(None) }
    }

    async fn try_next(&mut self) -> Result<Option<Record>> {
        loop {
            if !self.find()? {
                return Ok(None);
            }
            if let Some(record) = self.take() {
                return Ok(Some(record));
            }
            self.advance().await?;
        }
    }

    /// Locates the next record; returns whether it was found.
    fn find(&mut self) -> Result<bool> {
        let known = self.place.as_ref().map(|place| (place.version, place.end));
        let state = self.shared.lock();
        let index = &state.index;
        let (first, next) = (index.first_lsn(), index.next_lsn());
        if self.next < first || self.next > next.max(state.next_lsn) {
            let kind = ErrorKind::OutOfRange { first: Lsn(first), last: Lsn(next.saturating_sub(1)) };
            return Err(Error::new(kind, format!("record {} is not in the log", self.next)));
        }
        if self.next >= next {
            return Ok(false);
        }
        if let Some((version, end)) = known
            && version == index.version()
            && self.next < end
        {
            return Ok(true);
        }
        if index.is_released() {
            return Err(Error::new(ErrorKind::Closed, "the engine of the log has ended"));
        }
        let Some(mut place) = index.place_of(self.next) else {
            let lost = index.hole_at(self.next);
            let text = format!("record {} was lost before this log was salvaged", self.next);
            return Err(Error::corruption(None, lost, text));
        };
        // Further on in the same groups, so the data already read stays valid.
        if let Some(old) = &self.place
            && old.version == place.version
            && old.segment.generation == place.segment.generation
            && old.offset >= place.offset
        {
            place.offset = old.offset;
        } else {
            (self.chunk, self.group) = (Block::new(), None);
        }
        self.place = Some(place);
        Ok(true)
    }

    /// Returns the next record, if its group was read.
    fn take(&mut self) -> Option<Record> {
        let (header, index, at) = self.group.as_mut()?;
        loop {
            let lsn = header.first_lsn + *index;
            if *index >= u64::from(header.record_count) {
                return None;
            }
            let length = self.chunk.get(*at..*at + RECORD_HEADER_BYTES)?;
            let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
            let start = *at + RECORD_HEADER_BYTES;
            *index += 1;
            *at = start + length;
            if lsn == self.next {
                let data = self.chunk.slice(start..start + length)?;
                self.next += 1;
                return Some(Record::new(lsn, data));
            }
        }
    }

    /// Advances to the next group. Skips damage unless the next record lies in it.
    async fn advance(&mut self) -> Result<()> {
        if let (Some(place), Some((header, ..))) = (&mut self.place, self.group.take()) {
            step(place, &mut self.chunk, header.total_len as usize);
        }
        let mut damage = None;
        loop {
            let found = self.group_here().await?;
            let Some(place) = &mut self.place else { return Ok(()) };
            match found {
                Some(header) if damage.is_some() && header.first_lsn > self.next => {
                    let lost = self.next..header.first_lsn;
                    return Err(self.damaged(lost.start, lost.end - 1, damage));
                }
                Some(header) => {
                    self.group = Some((header, 0, header.bytes()));
                    return Ok(());
                }
                None if place.offset + u64::from(GRAIN) >= place.limit => {
                    let last = place.end.saturating_sub(1);
                    return Err(self.damaged(self.next, last, damage));
                }
                None => {
                    damage.get_or_insert(place.offset);
                    step(place, &mut self.chunk, GRAIN as usize);
                }
            }
        }
    }

    /// Returns the group at the place and puts its bytes at the chunk's start; `None` without a whole group.
    async fn group_here(&mut self) -> Result<Option<Header>> {
        let Some(place) = &self.place else { return Ok(None) };
        let mut wanted = GRAIN as usize;
        for _ in 0..2 {
            if self.chunk.len() < wanted {
                let end = place.limit.min(place.offset + CHUNK_BYTES.max(wanted as u64));
                if end <= place.offset {
                    return Ok(None);
                }
                self.chunk = place.segment.file.read_up_to(place.offset..end).await?;
            }
            wanted = total_len(&self.chunk);
        }
        // A segment may end within a group's padding; recovery allows this.
        let group = &self.chunk[..wanted.min(self.chunk.len())];
        let parsed = parse(group, place.segment.generation, place.offset);
        Ok(match parsed {
            Content::Valid(header) if header.log_id == place.log_id => Some(header),
            _ => None,
        })
    }

    fn damaged(&mut self, first: u64, last: u64, offset: Option<u64>) -> Error {
        // The next attempt starts anew.
        let place = self.place.take();
        (self.chunk, self.group) = (Block::new(), None);
        let file = place.as_ref().map(|place| place.segment.path.clone()).unwrap_or_default();
        let offset = offset.or(place.map(|place| place.offset)).unwrap_or(0);
        let text = format!("records {first} to {last} are damaged, from byte {offset} on");
        let lost = Loss { first: Lsn(first), last: Lsn(last), file, offset };
        Error::corruption(Some(lost.file.clone()), lost, text)
    }
}

/// Advances by `bytes` bytes, in the chunk as well.
fn step(place: &mut SearchStart, chunk: &mut Block, bytes: usize) {
    place.offset += bytes as u64;
    *chunk = chunk.slice(bytes.min(chunk.len())..).unwrap_or_default();
}

/// Returns the length that the group at the start of these bytes claims.
fn total_len(chunk: &[u8]) -> usize {
    let length = chunk.get(12..16).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes);
    (length as usize).max(GRAIN as usize)
}

forebay::_debug_parts!(Reader, |reader| next: reader.next);
