//! What is queued by the call itself: a batch at once, or refused for lack of room; values always.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::append::PendingAppend;
use crate::batch::Batch;
use crate::error::Result;
use crate::queue::{Queue, Ticket};
use crate::values::ValueChange;
use crate::wait;
use crate::wal::Wal;

impl Wal {
    /// Queues a batch at once, or nothing. Returns `None` if too much is pending already or an append waits for its turn;
    /// [`room`](Wal::room) reports when to try again. What it takes is what [`append`](Wal::append) takes.
    ///
    /// For programs that need a record's LSN while they hold a lock of their own: this call never waits.
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
        PendingAppend::begin(self.shared(), &batch.into().entries())
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
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a key that is empty or longer than 32 bytes, or if there are 64 others;
    /// [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge) for a value of more than 1,024 bytes, or if all of them together
    /// would take more than a quarter of a segment; [`ErrorKind::Closed`](crate::ErrorKind::Closed),
    /// [`ErrorKind::Poisoned`](crate::ErrorKind::Poisoned).
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
    pub fn room(&self, bytes: usize) -> Room<'_> {
        Room { shared: self.shared(), bytes }
    }
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

impl ValueUpdate {
    fn new(shared: Arc<Queue>, change: Result<ValueChange>) -> ValueUpdate {
        let ticket = change.and_then(|change| shared.push_values(&[change]));
        ValueUpdate { shared, ticket }
    }

    /// Blocks the calling thread until the value is durable.
    ///
    /// # Errors
    /// Those of the call; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread and
    /// [`ErrorKind::WaitInWorld`](crate::ErrorKind::WaitInWorld) in a simulated world.
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
