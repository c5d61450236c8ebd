//! [`Batch`]: records and values that become durable together.

use crate::error::Result;
use crate::format::RECORD_HEADER_BYTES;
use crate::values::ValueChange;

/// Records and changes of values that go into one group: after a crash all of them are there or none.
///
/// It owns its bytes, so calls with it return futures that borrow nothing. Memory: the records with 4 bytes each,
/// side by side.
///
/// ```
/// # use forebay::{Config, Engine};
/// # use forebay_wal::{Batch, Lsn, Options, Wal};
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let engine = Engine::start(Config::default())?;
/// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).await?;
/// let mut batch = Batch::from_iter(["one", "two"]);
/// batch.push(b"three").set("applied", &2u64.to_le_bytes())?;
/// let queued = wal.queue_batch(batch).await?; // readable, with numbers
/// assert_eq!(queued.lsns(), Lsn(1)..Lsn(4));
/// tokio::spawn(queued).await??; // durable
/// # wal.close().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Batch {
    framed: Vec<u8>,
    count: usize,
    /// Length of the longest record, in bytes.
    longest: usize,
    values: Vec<ValueChange>,
}

impl Batch {
    /// Returns an empty batch.
    #[must_use]
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Adds a record, by a copy.
    pub fn push(&mut self, record: impl AsRef<[u8]>) -> &mut Batch {
        let record = record.as_ref();
        // A record of more bytes than that is refused when the batch is queued.
        let length = u32::try_from(record.len()).unwrap_or(u32::MAX);
        self.framed.extend_from_slice(&length.to_le_bytes());
        self.framed.extend_from_slice(record);
        self.count += 1;
        self.longest = self.longest.max(record.len());
        self
    }

    /// Sets a value, as [`Wal::set`](crate::Wal::set) does. A later change of the same key in this batch replaces it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a key that is empty or longer than 32
    /// bytes; [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge) for a value of more than 1,024 bytes.
    pub fn set(&mut self, key: &str, value: &[u8]) -> Result<&mut Batch> {
        self.values.push(ValueChange::new(key, Some(value))?);
        Ok(self)
    }

    /// Removes a value, as [`Wal::unset`](crate::Wal::unset) does.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a key that is empty or longer than 32
    /// bytes.
    pub fn unset(&mut self, key: &str) -> Result<&mut Batch> {
        self.values.push(ValueChange::new(key, None)?);
        Ok(self)
    }

    /// Returns the number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are neither records nor changes of values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0 && self.values.is_empty()
    }

    /// Removes everything and keeps the memory.
    pub fn clear(&mut self) {
        self.framed.clear();
        self.values.clear();
        (self.count, self.longest) = (0, 0);
    }

    /// Returns the records with their lengths before them.
    pub(crate) fn framed(&self) -> &[u8] {
        debug_assert!(self.framed.len() >= self.count * RECORD_HEADER_BYTES, "each record has its length");
        &self.framed
    }

    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    pub(crate) fn values(&self) -> &[ValueChange] {
        &self.values
    }
}

impl<R: AsRef<[u8]>> FromIterator<R> for Batch {
    fn from_iter<I: IntoIterator<Item = R>>(records: I) -> Batch {
        let mut batch = Batch::new();
        batch.extend(records);
        batch
    }
}

impl<R: AsRef<[u8]>> Extend<R> for Batch {
    fn extend<I: IntoIterator<Item = R>>(&mut self, records: I) {
        for record in records {
            self.push(record);
        }
    }
}
