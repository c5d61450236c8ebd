//! Futures of appends.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use forebay::Waitable;

use crate::batch::{Batch, Entries};
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;
use crate::queue::{Duty, Queue, Ticket};

/// The future of [`Wal::append`](crate::Wal::append): completes with the LSN of the batch's first record when the whole
/// batch is durable.
///
/// The first poll puts the batch into the log's queue if it fits. From then on it is written, whether this is polled, kept or
/// dropped.
#[must_use = "nothing is appended unless this is awaited or waited for"]
pub struct Append<'a> {
    shared: &'a Arc<Queue>,
    stage: Stage<'a>,
}

enum Stage<'a> {
    /// Not in the queue; holds the place among the appends that wait for room.
    Outside(Batch<'a>, Option<u64>),
    Queued(Entry),
    Over,
}

/// An append that is in the log's queue: its records have their LSNs and can be [read](crate::Wal::read). As a future it
/// completes as [`Append`] does, when all of them are durable.
///
/// It borrows nothing and does not keep the log open. The records are written in any case.
pub struct PendingAppend {
    shared: Arc<Queue>,
    entry: Entry,
    duty: Duty,
}

/// The kind of an append that does not wait for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    Usual,
    /// No one waits for it.
    Deferred,
    /// Its caller is a thread that does nothing else before it is durable.
    Waits,
}

/// A batch in the queue.
#[derive(Clone, Copy)]
struct Entry {
    ticket: Ticket,
    /// The LSN of its first record.
    first: u64,
}

impl Entry {
    /// Completes once the batch is durable.
    fn poll(&mut self, shared: &Queue, context: &mut Context<'_>) -> Poll<Result<Lsn>> {
        ready!(shared.poll_done(&mut self.ticket, context.waker()))?;
        Poll::Ready(Ok(Lsn(self.first)))
    }
}

impl<'a> Append<'a> {
    #[inline]
    pub(crate) fn new(shared: &'a Arc<Queue>, batch: Batch<'a>) -> Append<'a> {
        Append { shared, stage: Stage::Outside(batch, None) }
    }

    /// Waits for room and puts the batch into the queue. Completes without waiting for the disk, with a future that
    /// completes when the batch is durable.
    ///
    /// # Errors
    /// As [`Wal::append`](crate::Wal::append), for failures known by then.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_wal::{Lsn, Options, Wal};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).await?;
    /// // Records one after the other, none of which waits for the disk; a callback when each is durable.
    /// for number in 0..10u8 {
    ///     let append = wal.append(&[number]).queued().await?;
    ///     println!("record {} can be read", append.lsn());
    ///     tokio::spawn(async move { println!("durable: {:?}", append.await) });
    /// }
    /// wal.sync().await?; // all that was queued is durable
    /// assert_eq!(wal.durable_lsn(), Lsn(10));
    /// # wal.close().await?;
    /// # Ok(()) }
    /// ```
    pub fn queued(mut self) -> Waitable<impl Future<Output = Result<PendingAppend>> + Send + Unpin + 'a> {
        let queued = poll_fn(move |context| {
            let entry = *ready!(self.poll_queued(context, None))?;
            self.stage = Stage::Over;
            Poll::Ready(Ok(PendingAppend { shared: self.shared.clone(), entry, duty: Duty::default() }))
        });
        Waitable::new("queue an append", queued)
    }

    /// Blocks the calling thread until the batch is durable, and returns the LSN of its first record.
    ///
    /// If this thread is the only appender, as it was for the last appends, it writes and flushes the batch itself. With
    /// concurrent appends the log's thread does that for all of them together.
    ///
    /// # Errors
    /// Those of the call; [`ErrorKind::WaitOnShard`] on a shard's thread and [`ErrorKind::WaitInWorld`] in a simulated world: use
    /// `.await` there.
    pub fn wait(mut self) -> Result<Lsn> {
        let shared = self.shared;
        let mut duty = Duty::default();
        let durable = poll_fn(move |context| {
            let entry = ready!(self.poll_queued(context, Some(&mut duty)))?;
            shared.write_here(&mut duty);
            entry.poll(shared, context)
        });
        shared.engine.block_on_in_turn(durable)?
    }

    /// Completes once the batch is in the queue.
    fn poll_queued(
        &mut self,
        context: &mut Context<'_>,
        duty: Option<&mut Duty>,
    ) -> Poll<Result<&mut Entry>> {
        if let Stage::Outside(batch, place) = &mut self.stage {
            let entries = batch.entries();
            // One that has a place was checked before.
            let checked = if place.is_none() { self.shared.check_size(&entries) } else { Ok(()) };
            let pushed = match checked {
                Ok(()) => ready!(self.shared.poll_push(&entries, place, context.waker(), duty)),
                Err(error) => Err(error),
            };
            match pushed {
                Ok((ticket, first)) => self.stage = Stage::Queued(Entry { ticket, first }),
                Err(error) => {
                    self.shared.leave(place);
                    self.stage = Stage::Over;
                    return Poll::Ready(Err(error));
                }
            }
        }
        match &mut self.stage {
            Stage::Queued(entry) => Poll::Ready(Ok(entry)),
            _ => {
                let text = "polled again after it had completed";
                Poll::Ready(Err(Error::new(ErrorKind::InvalidInput, text)))
            }
        }
    }
}

impl Future for Append<'_> {
    type Output = Result<Lsn>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Lsn>> {
        let this = &mut *self;
        let shared = this.shared;
        let done = ready!(ready!(this.poll_queued(context, None))?.poll(shared, context));
        this.stage = Stage::Over;
        Poll::Ready(done)
    }
}

impl Drop for Append<'_> {
    fn drop(&mut self) {
        if let Stage::Outside(_, place) = &mut self.stage {
            self.shared.leave(place);
        }
    }
}

impl PendingAppend {
    /// Queues a batch now; returns `None` without enough room, or if it is another append's turn.
    pub(crate) fn begin(
        shared: &Arc<Queue>,
        entries: &Entries<'_>,
        kind: Attempt,
    ) -> Result<Option<PendingAppend>> {
        shared.check_size(entries)?;
        let mut duty = Duty::default();
        let theirs = (kind == Attempt::Waits).then_some(&mut duty);
        let pushed = shared.try_push(entries, kind == Attempt::Deferred, theirs)?;
        Ok(pushed.map(|(ticket, first)| PendingAppend {
            shared: shared.clone(),
            entry: Entry { ticket, first },
            duty,
        }))
    }

    /// Returns the LSN of the first record; the others follow without a gap. For a batch of values alone it is the number
    /// that the next record gets.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        Lsn(self.entry.first)
    }

    /// Blocks the calling thread until the records are durable, and returns the LSN of the first.
    ///
    /// # Errors
    /// [`ErrorKind::Poisoned`] and [`ErrorKind::Closed`]; [`ErrorKind::WaitOnShard`] on a shard's thread and
    /// [`ErrorKind::WaitInWorld`] in a simulated world.
    pub fn wait(self) -> Result<Lsn> {
        self.shared.engine.clone().block_on(self)?
    }
}

impl Future for PendingAppend {
    type Output = Result<Lsn>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Lsn>> {
        let PendingAppend { shared, entry, duty } = &mut *self;
        shared.write_here(duty);
        entry.poll(shared, context)
    }
}

forebay::_debug_parts!(Append<'_>);

forebay::_debug_parts!(PendingAppend, |pending_append| lsn: pending_append.lsn());
