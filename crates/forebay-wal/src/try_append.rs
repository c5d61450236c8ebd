//! Appends whose futures borrow nothing: what is queued completes by itself when it is durable. A record is queued at
//! once, or refused for lack of room; a batch may also wait for room first. Values are always queued at once.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::batch::Batch;
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;
use crate::queue::{Entries, Queue, Ticket};
use crate::values::ValueChange;
use crate::wait;
use crate::wal::Wal;

impl Wal {
    /// Queues a record at once and returns a handle with its LSN, which completes when the record is durable.
    /// Returns `None` and queues nothing if too much is pending already or an append waits for its turn;
    /// [`room`](Wal::room) reports when to try again.
    ///
    /// For programs that need a record's LSN while they hold a lock of their own: this call never waits. The
    /// record is written even if the handle is dropped.
    ///
    /// # Errors
    /// As [`append`](Wal::append), for failures known by then.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Lsn, Options, Wal};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::default())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).wait()?;
    /// let mut positions = Vec::new(); // under a lock of the program, say: nothing waits here
    /// let mut last = None;
    /// for record in [b"one".as_slice(), b"two"] {
    ///     if let Some(appended) = wal.try_append(record)? {
    ///         positions.push(appended.lsn());
    ///         last = Some(appended);
    ///     }
    /// }
    /// if let Some(appended) = last {
    ///     appended.wait()?; // this record is durable, and so are those before it
    /// }
    /// assert_eq!(positions, [Lsn(1), Lsn(2)]);
    /// # wal.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn try_append(&self, record: &[u8]) -> Result<Option<AppendedRecord>> {
        let records = [record];
        self.shared().check_size(&records)?;
        let pushed = self.shared().try_push(Entries::of(&records))?;
        Ok(pushed.map(|(ticket, lsn)| AppendedRecord { shared: self.shared().clone(), ticket, lsn }))
    }

    /// Queues a batch at once and returns a handle with the LSNs of its records, which completes when all of it is
    /// durable. Returns `None` and queues nothing if there is no [`room`](Wal::room). Otherwise as
    /// [`try_append`](Wal::try_append).
    ///
    /// # Errors
    /// As [`queue_batch`](Wal::queue_batch).
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Batch, Lsn, Options, Wal};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::default())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).wait()?;
    /// let batch = Batch::from_iter(["one", "two"]);
    /// let appended = wal.try_append_batch(&batch)?.expect("nothing else is queued");
    /// assert_eq!(appended.lsns(), Lsn(1)..Lsn(3));
    /// appended.wait()?;
    /// # wal.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn try_append_batch(&self, batch: &Batch) -> Result<Option<AppendedBatch>> {
        self.shared().check_batch(batch)?;
        let pushed = self.shared().try_push(Entries::of_batch(batch))?;
        Ok(pushed.map(|pushed| AppendedBatch::new(self.shared().clone(), batch.len(), pushed)))
    }

    /// Waits for room, queues a batch, and resolves with a handle that has the LSNs of its records and completes when all
    /// of it is durable. Neither future borrows anything: both can be spawned.
    ///
    /// The batch is in the queue, and can be [read](Wal::read), when the first future resolves. It goes there at its
    /// first poll if there is room, in turn with other appends as [`append`](Wal::append) says. Dropping the handle takes
    /// nothing back.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] if a record is too long, or all of them do not fit into a segment together;
    /// [`ErrorKind::InvalidInput`] for an empty batch, or for more than 64 values; [`ErrorKind::Closed`],
    /// [`ErrorKind::Poisoned`].
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Batch, Lsn, Options, Wal};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::default())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).await?;
    /// // Records one after the other, none of which waits for the disk; a callback when each is durable.
    /// for number in 0..10u8 {
    ///     let queued = wal.queue_batch(Batch::from_iter([[number]])).await?;
    ///     tokio::spawn(async move { println!("durable: {:?}", queued.await) });
    /// }
    /// assert_eq!(wal.last(), Some(Lsn(10)));
    /// # wal.sync().await?;
    /// # wal.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn queue_batch(&self, batch: Batch) -> QueueBatch {
        QueueBatch { shared: self.shared().clone(), batch, place: None, is_over: false }
    }

    /// Sets a small value beside the records: it is durable with the group that is written next, and the newest durable
    /// one is there after each open ([`value`](Wal::value)), whatever was truncated meanwhile.
    ///
    /// For the few words that must be as durable as the records and come with their flush: a vote, an applied index, a
    /// cursor. The value is queued by the call itself, behind all appends and changes before it; it never waits for room.
    /// The future completes when it is durable, and dropping it takes nothing back. Each group that changes a value has all
    /// values of the log, and so has each segment's first group: keep them few and short. Use
    /// [`Batch::set`] for a value and records together.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a key that is empty or longer than 32 bytes, or if there are 64 others;
    /// [`ErrorKind::TooLarge`] for a value of more than 1,024 bytes, or if all of them together would take more than a
    /// quarter of a segment; [`ErrorKind::Closed`], [`ErrorKind::Poisoned`].
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Lsn, Options, Wal};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::default())?;
    /// # let options = Options::new().segment_bytes(1 << 20);
    /// # let (wal, _) = Wal::open(&engine, dir.path(), options.clone()).await?;
    /// wal.set("vote", b"term 7 for node 2").await?; // durable before it is sent
    /// wal.append(b"a record").await?;
    /// wal.truncate_after(Lsn(0)).await?; // takes records, and no value
    /// wal.close().await?;
    /// let (wal, _) = Wal::open(&engine, dir.path(), options).await?;
    /// assert_eq!(wal.value("vote").as_deref(), Some(&b"term 7 for node 2"[..]));
    /// # wal.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn set(&self, key: &str, value: &[u8]) -> ValueUpdate {
        ValueUpdate::new(self.shared().clone(), ValueChange::new(key, Some(value)))
    }

    /// Removes a value, as [`set`](Wal::set) sets one. A key without a value is no error.
    ///
    /// # Errors
    /// Those of [`set`](Wal::set).
    pub fn unset(&self, key: &str) -> ValueUpdate {
        ValueUpdate::new(self.shared().clone(), ValueChange::new(key, None))
    }

    /// Returns the newest durable value of a key; see [`set`](Wal::set).
    pub fn value(&self, key: &str) -> Option<Vec<u8>> {
        self.shared().durable_values().get(key).map(<[u8]>::to_vec)
    }

    /// Returns all durable values with their keys, in the order of the keys.
    pub fn values(&self) -> Vec<(String, Vec<u8>)> {
        self.shared().durable_values().iter().map(|(key, value)| (key.to_owned(), value.to_vec())).collect()
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
    /// # let engine = Engine::start(Config::default())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).await?;
    /// let appended = loop {
    ///     match wal.try_append(b"a record")? {
    ///         Some(appended) => break appended,
    ///         None => wal.room(8).await?, // the bytes of the record
    ///     }
    /// };
    /// appended.await?;
    /// # wal.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn room(&self, bytes: usize) -> Room<'_> {
        Room { shared: self.shared(), bytes }
    }
}

/// A queued record; as a future it completes with the record's LSN when the record is durable.
#[must_use = "the record is written in any case; this tells when it is durable"]
pub struct AppendedRecord {
    shared: Arc<Queue>,
    ticket: Ticket,
    lsn: u64,
}

/// A queued batch; as a future it completes with the LSNs of its records when all of it is durable.
#[must_use = "the batch is written in any case; this tells when it is durable"]
pub struct AppendedBatch {
    shared: Arc<Queue>,
    ticket: Ticket,
    lsns: Range<u64>,
}

/// The future of [`Wal::queue_batch`].
#[must_use = "nothing is queued unless this is awaited or waited for"]
pub struct QueueBatch {
    shared: Arc<Queue>,
    batch: Batch,
    /// The place among the appends that wait for room.
    place: Option<u64>,
    is_over: bool,
}

/// The future of [`Wal::set`] and [`Wal::unset`].
#[must_use = "the value is written in any case; this tells when it is durable"]
pub struct ValueUpdate {
    shared: Arc<Queue>,
    ticket: Result<Ticket>,
}

/// The future of [`Wal::room`].
#[must_use = "it waits only when it is awaited or waited for"]
pub struct Room<'a> {
    shared: &'a Arc<Queue>,
    bytes: usize,
}

impl AppendedRecord {
    /// Returns the record's LSN.
    pub fn lsn(&self) -> Lsn {
        Lsn(self.lsn)
    }

    /// Blocks the calling thread until the record is durable.
    ///
    /// # Errors
    /// [`ErrorKind::Poisoned`](crate::ErrorKind::Poisoned) and [`ErrorKind::Closed`](crate::ErrorKind::Closed);
    /// [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread and
    /// [`ErrorKind::WaitInWorld`](crate::ErrorKind::WaitInWorld) in a simulated world.
    pub fn wait(self) -> Result<Lsn> {
        wait::block_on(&self.shared.engine.clone(), self)
    }
}

impl Future for AppendedRecord {
    type Output = Result<Lsn>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Lsn>> {
        let this = &mut *self;
        ready!(this.shared.poll_done(&mut this.ticket, context.waker()))?;
        Poll::Ready(Ok(Lsn(this.lsn)))
    }
}

impl AppendedBatch {
    fn new(shared: Arc<Queue>, count: usize, (ticket, first): (Ticket, u64)) -> AppendedBatch {
        AppendedBatch { shared, ticket, lsns: first..first + count as u64 }
    }

    /// Returns the LSNs of the batch's records; empty for a batch of values alone.
    #[must_use]
    pub fn lsns(&self) -> Range<Lsn> {
        Lsn(self.lsns.start)..Lsn(self.lsns.end)
    }

    /// Blocks the calling thread until the batch is durable.
    ///
    /// # Errors
    /// Those of [`AppendedRecord::wait`].
    pub fn wait(self) -> Result<Range<Lsn>> {
        wait::block_on(&self.shared.engine.clone(), self)
    }
}

impl Future for AppendedBatch {
    type Output = Result<Range<Lsn>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Range<Lsn>>> {
        let this = &mut *self;
        ready!(this.shared.poll_done(&mut this.ticket, context.waker()))?;
        Poll::Ready(Ok(this.lsns()))
    }
}

impl QueueBatch {
    /// Blocks the calling thread until the batch is queued.
    ///
    /// # Errors
    /// Those of the call; [`ErrorKind::WaitOnShard`] on a shard's thread and [`ErrorKind::WaitInWorld`] in a simulated
    /// world.
    pub fn wait(self) -> Result<AppendedBatch> {
        wait::block_on(&self.shared.engine.clone(), self)
    }
}

impl Future for QueueBatch {
    type Output = Result<AppendedBatch>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<AppendedBatch>> {
        let this = &mut *self;
        if this.is_over {
            let text = "polled again after it had completed";
            return Poll::Ready(Err(Error::new(ErrorKind::InvalidInput, text)));
        }
        if this.place.is_none() {
            this.is_over = true;
            this.shared.check_batch(&this.batch)?;
        }
        this.is_over = false;
        let entries = Entries::of_batch(&this.batch);
        let pushed = ready!(this.shared.poll_push(entries, &mut this.place, context.waker()));
        this.is_over = true;
        Poll::Ready(pushed.map(|pushed| AppendedBatch::new(this.shared.clone(), this.batch.len(), pushed)))
    }
}

impl Drop for QueueBatch {
    fn drop(&mut self) {
        self.shared.leave(&mut self.place);
    }
}

impl ValueUpdate {
    fn new(shared: Arc<Queue>, change: Result<ValueChange>) -> ValueUpdate {
        let ticket = change.and_then(|change| shared.push_values(&[change]));
        ValueUpdate { shared, ticket }
    }

    /// Blocks the calling thread until the value is durable.
    ///
    /// # Errors
    /// Those of the call; [`ErrorKind::WaitOnShard`] on a shard's thread and [`ErrorKind::WaitInWorld`] in a simulated
    /// world.
    pub fn wait(self) -> Result<()> {
        wait::block_on(&self.shared.engine.clone(), self)
    }
}

impl Future for ValueUpdate {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        match &mut this.ticket {
            Ok(_) if is_early() => Poll::Ready(Ok(())),
            Ok(ticket) => this.shared.poll_done(ticket, context.waker()),
            Err(error) => Poll::Ready(Err(error.clone())),
        }
    }
}

/// Returns whether this log was broken on purpose and acknowledges values before they are durable.
fn is_early() -> bool {
    #[cfg(feature = "_mutants")]
    return crate::mutants::Mutant::ValueAcknowledgedEarly.is_on();
    #[cfg(not(feature = "_mutants"))]
    false
}

impl Room<'_> {
    /// Blocks the calling thread until there is room.
    ///
    /// # Errors
    /// Those of the call; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread and
    /// [`ErrorKind::WaitInWorld`](crate::ErrorKind::WaitInWorld) in a simulated world.
    pub fn wait(self) -> Result<()> {
        wait::block_on(&self.shared.engine.clone(), self)
    }
}

impl Future for Room<'_> {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.shared.poll_room(self.bytes, context.waker())
    }
}

impl fmt::Debug for AppendedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppendedRecord").field("lsn", &self.lsn).finish_non_exhaustive()
    }
}

impl fmt::Debug for AppendedBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppendedBatch").field("lsns", &self.lsns).finish_non_exhaustive()
    }
}

impl fmt::Debug for QueueBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueBatch").field("batch", &self.batch).finish_non_exhaustive()
    }
}

impl fmt::Debug for ValueUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueUpdate").finish_non_exhaustive()
    }
}

impl fmt::Debug for Room<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
