//! Appends that never wait: a record is queued at once, or refused for lack of room.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::error::Result;
use crate::lsn::Lsn;
use crate::queue::{Shared, Ticket};
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
    /// # Ok(()) }
    /// ```
    pub fn try_append(&self, record: &[u8]) -> Result<Option<Appended>> {
        let pushed = self.shared().try_push(record)?;
        Ok(pushed.map(|(ticket, lsn)| Appended { shared: self.shared().clone(), ticket, lsn }))
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
    /// # Ok(()) }
    /// ```
    pub fn room(&self, bytes: usize) -> Room<'_> {
        Room { shared: self.shared(), bytes }
    }
}

/// A queued record; as a future it completes with the record's LSN when the record is durable.
#[must_use = "the record is written in any case; this tells when it is durable"]
pub struct Appended {
    shared: Arc<Shared>,
    ticket: Ticket,
    lsn: u64,
}

/// The future of [`Wal::room`].
#[must_use = "it waits only when it is awaited or waited for"]
pub struct Room<'a> {
    shared: &'a Arc<Shared>,
    bytes: usize,
}

impl Appended {
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

impl Future for Appended {
    type Output = Result<Lsn>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Lsn>> {
        let this = &mut *self;
        ready!(this.shared.poll_done(&mut this.ticket, context.waker()))?;
        Poll::Ready(Ok(Lsn(this.lsn)))
    }
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

impl fmt::Debug for Appended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Appended").field("lsn", &self.lsn).finish_non_exhaustive()
    }
}

impl fmt::Debug for Room<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
