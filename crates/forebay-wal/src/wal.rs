//! [`Wal`]: the handle of an open log.

use std::sync::Arc;

use crate::append::{Append, Attempt, PendingAppend};
use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::lsn::{End, Lsn};
use crate::operation::LogOperation;
use crate::queue::{Change, Queue};
use crate::reader::Reader;
use crate::stats::Stats;
use crate::values::ValueChange;

/// An open log: a handle that is cheap to clone and works from any thread and any executor, on shards, and in
/// a simulated world.
///
/// Appends that arrive while a group is being written become the next group: one write and one flush for all of them, without any
/// delay to gather more. They are written by the log's dedicated thread or by its task on a shard
/// ([`Options::own_thread`](crate::Options::own_thread)), or by the only thread that appends, in its `.wait()`.
///
/// Its operations are futures that also have `.wait()`. They start when they are first polled. **Dropping the future of an append
/// does not withdraw the record**: once polled, the record may be in the log, or may still get there.
///
/// A failed write or flush *poisons* the log: all pending calls and every later call fail with
/// [`ErrorKind::Poisoned`](crate::ErrorKind::Poisoned), with the first failure as cause. The contents of the
/// disk are then unknown until the log is opened again.
///
/// When the last handle is dropped, queued records are still written, in the background;
/// [`close`](Wal::close) reports when that is done. The engine lives as long as the log.
///
/// ```
/// use forebay::{Config, Engine};
/// use forebay_wal::{Lsn, Options, Wal};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path();
/// let engine = Engine::start(Config::new())?;
/// let options = Options::new().segment_bytes(1 << 20);
/// let (wal, recovery) = Wal::open(&engine, dir, options.clone()).wait()?; // in a task: .await
/// assert!(recovery.created);
///
/// let first = wal.append(b"durable once it resolves").wait()?;
/// let more = wal.append(&[&b"all"[..], b"or", b"nothing"]).wait()?;
/// assert_eq!((first, more), (Lsn(1), Lsn(2)));
/// wal.close().wait()?;
///
/// let (wal, recovery) = Wal::open(&engine, dir, options).wait()?;
/// assert_eq!((recovery.last, recovery.tail_records), (Lsn(4), 0));
/// let mut reader = wal.read_from(Lsn(2));
/// let record = reader.next().wait().expect("there are four records")?;
/// assert_eq!((record.lsn(), &record[..]), (Lsn(2), &b"all"[..]));
/// # wal.close().wait()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Wal {
    handle: Arc<Handle>,
}

/// Shared by all clones; the log closes when it is dropped.
struct Handle {
    shared: Arc<Queue>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.begin_close();
    }
}

impl Wal {
    pub(crate) fn new(shared: Arc<Queue>) -> Wal {
        Wal { handle: Arc::new(Handle { shared }) }
    }

    pub(crate) fn shared(&self) -> &Arc<Queue> {
        &self.handle.shared
    }

    /// Appends a batch and completes when all of it is durable, with the LSN of its first record. The others follow without a
    /// gap. A crash keeps the whole batch or nothing of it.
    ///
    /// [`Batch`] lists what becomes a batch: above all bytes, which are one record. An empty record is a record. Appends that
    /// were polled one after the other get their LSNs in that order. [`queued`](Append::queued) on the future completes
    /// before the batch is durable.
    ///
    /// If too much is pending already ([`Options::pending_bytes_max`](crate::Options::pending_bytes_max)), the append waits for its
    /// turn: first come, first served among appends that are polled when they are woken. Other appends pass an append that is not
    /// polled (kept in a `select!`, say) while they have room; the first time they may wait 50 ms for it. A queued batch is
    /// written, whether the future is polled or not.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Lsn, Options, Wal};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).wait()?;
    /// // Appends at the same time share one write and one flush.
    /// let both = [b"from one", b"another "].map(|record| {
    ///     let wal = wal.clone();
    ///     std::thread::spawn(move || wal.append(record).wait())
    /// });
    /// for append in both {
    ///     let lsn = append.join().expect("it does not panic")?;
    ///     assert!(lsn <= wal.durable_lsn());
    /// }
    /// let first = wal.append(&[&b"debit"[..], b"credit"]).wait()?; // both or none after a crash
    /// assert_eq!((first, wal.next_lsn()), (Lsn(3), Lsn(5)));
    /// # wal.close().wait()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge) if a record is too long, or all of them do not fit into a segment
    /// together; [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a batch without records and values, or if
    /// it would leave more than 64 values; [`ErrorKind::Closed`](crate::ErrorKind::Closed),
    /// [`ErrorKind::Poisoned`](crate::ErrorKind::Poisoned). After `Poisoned` the records may or may not be in the log once it
    /// is opened again.
    pub fn append<'a>(&'a self, batch: impl Into<Batch<'a>>) -> Append<'a> {
        Append::new(self.shared(), batch.into())
    }

    /// Queues a batch immediately, or nothing. Returns `None` if too much is pending already or an append waits for its turn;
    /// [`room`](Wal::room) reports when to try again. It accepts the same batches as [`append`](Wal::append).
    ///
    /// For programs that need a record's LSN while they hold a lock: this call never waits.
    ///
    /// # Errors
    /// As [`append`](Wal::append), for failures known by then.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Lsn, Options, Wal};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).wait()?;
    /// let mut positions = Vec::new(); // under a lock of the program, say: nothing waits here
    /// let mut last = None;
    /// for record in [b"one".as_slice(), b"two"] {
    ///     if let Some(append) = wal.try_append(record)? {
    ///         positions.push(append.lsn());
    ///         last = Some(append);
    ///     }
    /// }
    /// if let Some(append) = last {
    ///     append.wait()?; // this record is durable, and so are those before it
    /// }
    /// assert_eq!(positions, [Lsn(1), Lsn(2)]);
    /// # wal.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn try_append<'a>(&self, batch: impl Into<Batch<'a>>) -> Result<Option<PendingAppend>> {
        PendingAppend::begin(self.shared(), &batch.into().entries(), Attempt::Usual)
    }

    /// As [`try_append`](Wal::try_append), for records that need LSNs but have no waiting caller: they cause no write by
    /// themselves. They are written with the next records or values that are not deferred, once a group is full of them, when an
    /// append or [`room`](Wal::room) finds too little room, with a truncation, and at the close. A wait for one of them (the
    /// future returned, [`sync`](Wal::sync), [`wait_durable`](Wal::wait_durable), also from before it was queued) causes the
    /// write. A crash before that loses them, and their LSNs are assigned again. For the store.
    #[doc(hidden)]
    pub fn try_append_deferred<'a>(&self, batch: impl Into<Batch<'a>>) -> Result<Option<PendingAppend>> {
        PendingAppend::begin(self.shared(), &batch.into().entries(), Attempt::Deferred)
    }

    /// As [`try_append`](Wal::try_append), for a thread in `.wait()` that awaits the result next: it may have to write the
    /// records itself, as an [`Append::wait`](crate::Append::wait) does. For the store.
    #[doc(hidden)]
    pub fn try_append_in_turn<'a>(&self, batch: impl Into<Batch<'a>>) -> Result<Option<PendingAppend>> {
        PendingAppend::begin(self.shared(), &batch.into().entries(), Attempt::Waits)
    }

    /// Waits until [`try_append`](Wal::try_append) would accept a record of `bytes` bytes. Reserves nothing:
    /// another append may be first.
    ///
    /// # Errors
    /// [`ErrorKind::Poisoned`](crate::ErrorKind::Poisoned), [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Options, Wal};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).await?;
    /// let append = loop {
    ///     match wal.try_append(b"a record")? {
    ///         Some(append) => break append,
    ///         None => wal.room(8).await?, // the bytes of the record
    ///     }
    /// };
    /// append.await?;
    /// # wal.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn room(&self, bytes: usize) -> LogOperation {
        LogOperation::room(self.shared(), bytes)
    }

    /// Resolves when everything queued before is durable, also while the log closes and after that: a caller
    /// that queued records may wait for them regardless of the actions of other handles.
    ///
    /// # Errors
    /// [`ErrorKind::Poisoned`](crate::ErrorKind::Poisoned), and
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) if the engine, the log's shard or its task ended
    /// before.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Lsn, Options, Wal};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).await?;
    /// for number in 0..1000u32 {
    ///     _ = wal.append(&number.to_le_bytes()).queued().await?;
    /// }
    /// wal.sync().await?; // all of them are durable
    /// assert_eq!(wal.durable_lsn(), Lsn(1000));
    /// # wal.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn sync(&self) -> LogOperation {
        LogOperation::change(self.shared(), None)
    }

    /// Releases the records before `lsn`; durable when it resolves. Segments without any other records are reused. A number up to
    /// the first record's changes nothing. If record `lsn` was lost in a salvage, the log starts after that loss.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Lsn, Options, Wal};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).wait()?;
    /// wal.append(&[&b"in the snapshot"[..], b"newer"]).wait()?;
    /// wal.truncate_before(Lsn(2)).wait()?; // once the snapshot is durable
    /// assert_eq!((wal.first_lsn(), wal.durable_lsn()), (Lsn(2), Lsn(2)));
    /// # wal.close().wait()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`](crate::ErrorKind::OutOfRange) above [`next_lsn`](Wal::next_lsn); as
    /// [`append`](Wal::append).
    pub fn truncate_before(&self, lsn: Lsn) -> LogOperation {
        LogOperation::change(self.shared(), Some(Change::TruncateBefore(lsn.0)))
    }

    /// Removes the records from `lsn` on; durable when it resolves. The next record gets the number `lsn`. Records queued
    /// before are written first, and then removed.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`](crate::ErrorKind::OutOfRange) above [`next_lsn`](Wal::next_lsn), and below the log's first
    /// record; as [`append`](Wal::append).
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Lsn, Options, Wal};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).wait()?;
    /// wal.append(&[&b"agreed"[..], b"of a deposed leader"]).wait()?;
    /// wal.truncate_from(Lsn(2)).wait()?;
    /// assert_eq!(wal.append(b"of the new one").wait()?, Lsn(2));
    /// # wal.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn truncate_from(&self, lsn: Lsn) -> LogOperation {
        LogOperation::change(self.shared(), Some(Change::TruncateFrom(lsn.0)))
    }

    /// Removes all records; durable when it resolves. The next record gets the number `next`, regardless of the previous numbers: a
    /// snapshot may leave a gap.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for `u64::MAX`; as [`append`](Wal::append).
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Lsn, Options, Wal};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).wait()?;
    /// wal.append(b"older than the snapshot").wait()?;
    /// wal.reset_to(Lsn(5001)).wait()?; // a snapshot of 5,000 records was installed
    /// assert_eq!(wal.append(b"the next").wait()?, Lsn(5001));
    /// # wal.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn reset_to(&self, next: Lsn) -> LogOperation {
        LogOperation::change(self.shared(), Some(Change::ResetTo(next.0)))
    }

    /// Sets a small value next to the records: it is durable with the next group, and each open returns the newest durable value
    /// ([`value`](Wal::value)), regardless of truncations.
    ///
    /// For small state that must be as durable as the records and share their flush: a vote, an applied index, a cursor. The
    /// value is queued by the call itself, behind all appends and changes before it; it never waits for room. The future
    /// completes when it is durable, and dropping it withdraws nothing. Each group that changes a value stores all values of the
    /// log, as does the first group of each segment: keep them few and short. Use [`Batch::set`] for a value and records
    /// together.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a key that is empty or longer than 32 bytes, or if the log
    /// has 64 others; [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge) for a value of more than 1,024 bytes, or if all of them
    /// together would exceed a quarter of a segment; [`ErrorKind::Closed`](crate::ErrorKind::Closed),
    /// [`ErrorKind::Poisoned`](crate::ErrorKind::Poisoned).
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Lsn, Options, Wal};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let options = Options::new().segment_bytes(1 << 20);
    /// # let (wal, _) = Wal::open(&engine, dir.path(), options.clone()).await?;
    /// wal.set("vote", b"term 7 for node 2").await?; // durable before it is sent
    /// wal.append(b"a record").await?;
    /// wal.truncate_from(Lsn(1)).await?; // takes records, and no value
    /// wal.close().await?;
    /// let (wal, _) = Wal::open(&engine, dir.path(), options).await?;
    /// assert_eq!(wal.value("vote").as_deref(), Some(&b"term 7 for node 2"[..]));
    /// # wal.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn set(&self, key: &str, value: &[u8]) -> LogOperation {
        LogOperation::value(self.shared(), ValueChange::new(key, Some(value)))
    }

    /// Removes a value, as [`set`](Wal::set) sets one. A key without a value is not an error.
    ///
    /// # Errors
    /// Those of [`set`](Wal::set).
    pub fn unset(&self, key: &str) -> LogOperation {
        LogOperation::value(self.shared(), ValueChange::new(key, None))
    }

    /// Returns the newest durable value of a key; see [`set`](Wal::set).
    pub fn value(&self, key: &str) -> Option<Vec<u8>> {
        self.shared().durable_values().get(key).map(<[u8]>::to_vec)
    }

    /// Returns all durable values with their keys, in the order of the keys. For tests.
    #[doc(hidden)]
    pub fn values(&self) -> Vec<(String, Vec<u8>)> {
        self.shared().durable_values().iter().map(|(key, value)| (key.to_owned(), value.to_vec())).collect()
    }

    /// Returns the LSN of the last durable record; one less than [`first_lsn`](Wal::first_lsn) if there is no such record. Costs
    /// one atomic load.
    ///
    /// In a log whose first LSN is [0](crate::Options::first_lsn), 0 also means that no record is durable.
    pub fn durable_lsn(&self) -> Lsn {
        Lsn(self.shared().durable_next().saturating_sub(1))
    }

    /// Records the log's end in the file `wal.end`, once everything queued before is durable. An open
    /// compares: a log that has lost its end since then is rejected with
    /// [`ErrorKind::Corruption`](crate::ErrorKind::Corruption), even if its segments alone do not show the
    /// loss. [`close`](Wal::close), [`truncate_from`](Wal::truncate_from) and [`reset_to`](Wal::reset_to)
    /// do it by themselves. Costs a flush of the segment and one of that file.
    ///
    /// # Errors
    /// As [`append`](Wal::append).
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Options, Wal};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).wait()?;
    /// wal.append(b"a record").wait()?;
    /// wal.record_end().wait()?; // from now on an open notices the loss of this record
    /// # wal.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn record_end(&self) -> LogOperation {
        LogOperation::change(self.shared(), Some(Change::RecordEnd))
    }

    /// Returns the last durable record with its epoch, read together. Takes the queue's lock for a short
    /// time. For the store.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Options, Wal};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).wait()?;
    /// wal.append(b"a record").wait()?;
    /// let end = wal.durable_end();
    /// println!("up to {} in epoch {}", end.lsn, end.epoch); // such as a replica reports
    /// # wal.close().wait()?;
    /// # Ok(()) }
    /// ```
    #[doc(hidden)]
    pub fn durable_end(&self) -> End {
        self.shared().lock().index.durable_end()
    }

    /// Returns the LSN of the next record, which follows the last one that is queued.
    pub fn next_lsn(&self) -> Lsn {
        Lsn(self.shared().lock().next_lsn)
    }

    /// Returns the first record of the log, as far as truncations are durable; the LSN of the next record if
    /// the log is empty.
    pub fn first_lsn(&self) -> Lsn {
        Lsn(self.shared().lock().index.first_lsn())
    }

    /// Returns a reader of durable records from `lsn` on. It reads up to the last one; later calls continue
    /// with the records added since.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Lsn, Options, Wal};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).wait()?;
    /// wal.append(&[b"one".as_slice(), b"two"]).wait()?;
    /// let mut reader = wal.read_from(Lsn(2));
    /// let mut found = Vec::new();
    /// while let Some(record) = reader.next().wait() {
    ///     found.push(record?.to_vec());
    /// }
    /// assert_eq!(found, [b"two"]);
    /// // The reader goes on where it was when more is there.
    /// wal.append(b"three").wait()?;
    /// assert_eq!(reader.next().wait().expect("one more")?.lsn(), Lsn(3));
    /// # wal.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn read_from(&self, lsn: Lsn) -> Reader {
        Reader::new(self.shared().clone(), lsn.0)
    }

    /// Returns the reason why the next segment cannot be made at present: its file system is full, or the process has no descriptor
    /// or no I/O memory for it (then the kind is [`Io`](crate::ErrorKind::Io), and an append that needs the segment waits ten seconds).
    /// Returns `None` once it was made, and while it is not due yet. Costs one atomic load if space is available.
    ///
    /// The log works until the current segment is full, which is up to three quarters of
    /// [`Options::segment_bytes`](crate::Options::segment_bytes) later, and then until its reserve is full, a file as long as a
    /// segment. An append that needs a further segment fails and poisons the log. So a program can stop appending, truncate
    /// ([`truncate_before`](Wal::truncate_before)) and continue when this is `None`. The log tries again when a truncation frees a
    /// segment, and once a second. After an open that found no space for a segment the error is set immediately.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Options, Wal};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).wait()?;
    /// if let Some(error) = wal.no_space() {
    ///     eprintln!("{error}"); // says how much to free
    ///     wal.truncate_before(wal.durable_lsn()).wait()?; // gives segments back
    /// }
    /// # wal.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn no_space(&self) -> Option<Error> {
        self.shared().no_space()
    }

    /// Returns the bytes left in the current segment for further records, including framing and padding: the amount that a
    /// program can still append while [`no_space`](Wal::no_space) is an error. If the next segment exists already and has more
    /// bytes left, returns those. Each group of records is padded to 4,096 bytes or the device's write unit, and so is each
    /// truncation. For the store.
    #[doc(hidden)]
    pub fn segment_bytes_left(&self) -> u64 {
        self.shared().segment_left()
    }

    /// Returns the bytes of the log's reserve: a file of a segment's length in which the log continues if a fresh segment does not
    /// fit. It is 0 before the second segment is made, and after the log has continued in it until it is made again. For the store.
    ///
    /// # Errors
    /// `NoSpace`, if the reserve is missing for lack of space. The log tries again once a second.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Options, Wal};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).wait()?;
    /// if let Err(error) = wal.reserve_bytes() {
    ///     eprintln!("{error}; a lack of space can make the log fail from now on");
    /// }
    /// # wal.close().wait()?;
    /// # Ok(()) }
    /// ```
    #[doc(hidden)]
    pub fn reserve_bytes(&self) -> Result<u64> {
        self.shared().reserve_bytes()
    }

    /// Returns counts and times since the log was opened.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Options, Wal};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).wait()?;
    /// wal.append(b"a record").wait()?;
    /// let stats = wal.stats();
    /// println!("{} records in {} groups, p99 {} ns a flush", stats.records, stats.groups, stats.flush_ns.ns_at(0.99));
    /// # wal.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn stats(&self) -> Stats {
        self.shared().stats()
    }

    /// Closes the log for all handles. Queued records are written, and later calls that would change the log fail with
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed). Once the future resolves, the log can be opened again. The close starts
    /// with the call, even if the future is never awaited. Readers continue, and [`sync`](Wal::sync) and `close` itself report the
    /// fate of the queued records.
    ///
    /// # Errors
    /// The failure that poisoned the log. The log is still closed.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Lsn, Options, Wal};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).await?;
    /// let append = wal.append(b"a record").queued().await?;
    /// wal.close().await?; // written, durable, and the lock is released
    /// append.await?;
    /// let (wal, recovery) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).await?;
    /// assert_eq!((recovery.last, recovery.tail_records), (Lsn(1), 0));
    /// # wal.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn close(&self) -> LogOperation {
        LogOperation::close(self.shared())
    }
}

forebay::_debug_parts!(Wal, |wal| durable_lsn: wal.durable_lsn());
