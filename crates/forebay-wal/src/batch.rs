//! [`Batch`]: records and values that become durable together.

use forebay::BlockMut;

use crate::error::Result;
use crate::format::RECORD_HEADER_BYTES;
use crate::values::ValueChange;

/// Records and value changes that share one group: a crash keeps all of them or nothing.
///
/// [`Wal::append`](crate::Wal::append) and [`Wal::try_append`](crate::Wal::try_append) accept any `Into<Batch>`. Bytes are one
/// record (a slice, an array, a vector), and a slice or an array of slices has a record for each: these are borrowed and need no
/// memory. A batch built with [`push`](Batch::push), [`set`](Batch::set) or from an iterator owns its bytes: the records are
/// contiguous, with 4 bytes more for each. A reference to a batch converts as well, to append it more than once.
///
/// ```
/// # use forebay::{Config, Engine};
/// # use forebay_wal::{Batch, Lsn, Options, Wal};
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let engine = Engine::start(Config::new())?;
/// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).await?;
/// wal.append(b"a record").await?;
/// wal.append(&[&b"all of these"[..], b"or none"]).await?;
/// let mut batch = Batch::from_iter(["one", "two"]);
/// batch.push(b"three").set("applied", &2u64.to_le_bytes())?;
/// assert_eq!(wal.append(batch).await?, Lsn(4)); // the first of its records
/// # wal.close().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Batch<'a> {
    /// Empty once `buffer` is set.
    content: Content<'a>,
    /// In a box, so that the future of an append is small.
    buffer: Option<Box<Buffer>>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Content<'a> {
    #[default]
    Nothing,
    Record(&'a [u8]),
    Records(&'a [&'a [u8]]),
    Buffer(&'a Buffer),
}

/// The content of a batch that owns its bytes.
#[derive(Clone, Debug, Default)]
struct Buffer {
    framed: Vec<u8>,
    values: Vec<ValueChange>,
    /// Number of records.
    count: usize,
    /// Length of the longest record, in bytes.
    longest: usize,
}

/// Memory for the records of a batch, with the first of them, in bytes.
const FIRST_BYTES: usize = 256;

/// A batch as the queue sees it, with its measures.
#[derive(Clone, Copy)]
pub(crate) struct Entries<'a> {
    records: Records<'a>,
    /// Number of records.
    pub(crate) count: usize,
    /// Bytes of the records with their lengths.
    pub(crate) framed_bytes: usize,
    /// Length of the longest record, in bytes.
    pub(crate) longest: usize,
    pub(crate) values: &'a [ValueChange],
}

#[derive(Clone, Copy)]
enum Records<'a> {
    One(&'a [u8]),
    Slices(&'a [&'a [u8]]),
    /// With their lengths before them.
    Framed(&'a [u8]),
}

impl<'a> Batch<'a> {
    /// Returns an empty batch.
    #[must_use]
    pub fn new() -> Batch<'a> {
        Batch::default()
    }

    /// Adds a record, by a copy. The first change of a batch that borrows its records copies those, too.
    pub fn push(&mut self, record: impl AsRef<[u8]>) -> &mut Batch<'a> {
        self.buffer().push(record.as_ref());
        self
    }

    /// Sets a value, as [`Wal::set`](crate::Wal::set) does. A later change of the same key in this batch replaces it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a key that is empty or longer than 32
    /// bytes; [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge) for a value of more than 1,024 bytes.
    pub fn set(&mut self, key: &str, value: &[u8]) -> Result<&mut Batch<'a>> {
        let change = ValueChange::new(key, Some(value))?;
        self.buffer().values.push(change);
        Ok(self)
    }

    /// Returns whether it has neither records nor changes of values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }

    #[inline]
    pub(crate) fn entries(&self) -> Entries<'_> {
        match self.content() {
            Content::Nothing => Entries::of_slices(&[]),
            Content::Record(record) => Entries::of_record(record),
            Content::Records(records) => Entries::of_slices(records),
            Content::Buffer(buffer) => Entries::of_buffer(buffer),
        }
    }

    /// Returns the content without its owner.
    #[inline]
    fn content(&self) -> Content<'_> {
        self.buffer.as_deref().map_or(self.content, Content::Buffer)
    }

    /// Returns the batch's own bytes, which are copies of those that it borrowed until now.
    fn buffer(&mut self) -> &mut Buffer {
        let buffer: &mut Buffer = self.buffer.get_or_insert_default();
        match std::mem::take(&mut self.content) {
            Content::Nothing => {}
            Content::Record(record) => buffer.push(record),
            Content::Records(records) => records.iter().for_each(|record| buffer.push(record)),
            Content::Buffer(other) => buffer.clone_from(other),
        }
        buffer
    }
}

impl Buffer {
    fn push(&mut self, record: &[u8]) {
        // A record of more bytes than that is refused when the batch is queued.
        let length = u32::try_from(record.len()).unwrap_or(u32::MAX);
        let bytes = RECORD_HEADER_BYTES + record.len();
        self.framed.reserve(if self.count == 0 { bytes.max(FIRST_BYTES) } else { bytes });
        self.framed.extend_from_slice(&length.to_le_bytes());
        self.framed.extend_from_slice(record);
        self.count += 1;
        self.longest = self.longest.max(record.len());
    }
}

impl<'a> Entries<'a> {
    #[inline]
    fn of_record(record: &'a [u8]) -> Entries<'a> {
        let longest = record.len();
        let framed_bytes = longest.saturating_add(RECORD_HEADER_BYTES);
        Entries { records: Records::One(record), count: 1, framed_bytes, longest, values: &[] }
    }

    #[inline]
    fn of_slices(records: &'a [&'a [u8]]) -> Entries<'a> {
        let (mut framed_bytes, mut longest) = (0usize, 0);
        for record in records {
            framed_bytes = framed_bytes.saturating_add(record.len() + RECORD_HEADER_BYTES);
            longest = longest.max(record.len());
        }
        Entries {
            records: Records::Slices(records),
            count: records.len(),
            framed_bytes,
            longest,
            values: &[],
        }
    }

    #[inline]
    fn of_buffer(buffer: &'a Buffer) -> Entries<'a> {
        let Buffer { framed, values, count, longest } = buffer;
        debug_assert!(framed.len() >= count * RECORD_HEADER_BYTES, "each record has its length");
        let (records, framed_bytes) = (Records::Framed(framed), framed.len());
        Entries { records, count: *count, framed_bytes, longest: *longest, values }
    }

    /// Returns whether it has neither records nor changes of values.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0 && self.values.is_empty()
    }

    /// Appends the records with their lengths to a buffer.
    #[inline(always)]
    pub(crate) fn extend(&self, buffer: &mut BlockMut) -> forebay::Result<()> {
        match self.records {
            Records::One(record) => extend(buffer, record),
            Records::Slices(records) => records.iter().try_for_each(|record| extend(buffer, record)),
            Records::Framed(framed) => buffer.extend_from_slice(framed),
        }
    }
}

/// Appends a record with its length.
#[inline]
fn extend(buffer: &mut BlockMut, record: &[u8]) -> forebay::Result<()> {
    // Records longer than a segment were rejected, and a segment is shorter than 4 GiB.
    buffer.extend_from_slice(&(record.len() as u32).to_le_bytes())?;
    buffer.extend_from_slice(record)
}

impl<'a> From<&'a [u8]> for Batch<'a> {
    #[inline]
    fn from(record: &'a [u8]) -> Batch<'a> {
        Batch { content: Content::Record(record), buffer: None }
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Batch<'a> {
    #[inline]
    fn from(record: &'a [u8; N]) -> Batch<'a> {
        Batch { content: Content::Record(record), buffer: None }
    }
}

impl<'a> From<&'a Vec<u8>> for Batch<'a> {
    #[inline]
    fn from(record: &'a Vec<u8>) -> Batch<'a> {
        Batch { content: Content::Record(record), buffer: None }
    }
}

impl<'a> From<&'a [&'a [u8]]> for Batch<'a> {
    #[inline]
    fn from(records: &'a [&'a [u8]]) -> Batch<'a> {
        Batch { content: Content::Records(records), buffer: None }
    }
}

impl<'a, const N: usize> From<&'a [&'a [u8]; N]> for Batch<'a> {
    #[inline]
    fn from(records: &'a [&'a [u8]; N]) -> Batch<'a> {
        Batch { content: Content::Records(records), buffer: None }
    }
}

impl<'a, 'b: 'a> From<&'a Batch<'b>> for Batch<'a> {
    #[inline]
    fn from(batch: &'a Batch<'b>) -> Batch<'a> {
        Batch { content: batch.content(), buffer: None }
    }
}

impl<R: AsRef<[u8]>> FromIterator<R> for Batch<'_> {
    fn from_iter<I: IntoIterator<Item = R>>(records: I) -> Self {
        let mut batch = Batch::new();
        batch.extend(records);
        batch
    }
}

impl<R: AsRef<[u8]>> Extend<R> for Batch<'_> {
    fn extend<I: IntoIterator<Item = R>>(&mut self, records: I) {
        let buffer = self.buffer();
        records.into_iter().for_each(|record| buffer.push(record.as_ref()));
    }
}
