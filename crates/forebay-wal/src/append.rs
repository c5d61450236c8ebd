//! Futures of appends, changes and closing.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;
use crate::queue::{Change, Entries, Queue, Ticket};
use crate::wait;

/// Records on their way into the queue and from there to the disk.
struct Entry<'a> {
    shared: &'a Arc<Queue>,
    stage: Stage,
}

enum Stage {
    /// Not in the queue; holds the place among the appends that wait for room.
    Outside(Option<u64>),
    Queued(Ticket, u64),
    Over,
}

impl<'a> Entry<'a> {
    fn new(shared: &'a Arc<Queue>) -> Entry<'a> {
        Entry { shared, stage: Stage::Outside(None) }
    }

    /// Completes once the records are in the queue; returns the number of the first.
    fn poll_queued(&mut self, records: &[&[u8]], context: &mut Context<'_>) -> Poll<Result<u64>> {
        match &mut self.stage {
            Stage::Outside(place) => {
                if place.is_none()
                    && let Err(error) = self.shared.check_size(records)
                {
                    self.stage = Stage::Over;
                    return Poll::Ready(Err(error));
                }
                match ready!(self.shared.poll_push(Entries::of(records), place, context.waker())) {
                    Ok((ticket, first)) => {
                        self.stage = Stage::Queued(ticket, first);
                        Poll::Ready(Ok(first))
                    }
                    Err(error) => {
                        self.shared.leave(place);
                        self.stage = Stage::Over;
                        Poll::Ready(Err(error))
                    }
                }
            }
            Stage::Queued(_, first) => Poll::Ready(Ok(*first)),
            Stage::Over => Poll::Ready(Err(again())),
        }
    }

    /// Completes once the records are durable; returns the number of the first.
    fn poll_durable(&mut self, records: &[&[u8]], context: &mut Context<'_>) -> Poll<Result<u64>> {
        let first = ready!(self.poll_queued(records, context))?;
        let Stage::Queued(ticket, _) = &mut self.stage else {
            return Poll::Ready(Err(again()));
        };
        let done = ready!(self.shared.poll_done(ticket, context.waker()));
        self.stage = Stage::Over;
        Poll::Ready(done.map(|()| first))
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        if let Stage::Outside(place) = &mut self.stage {
            self.shared.leave(place);
        }
    }
}

fn again() -> Error {
    Error::new(ErrorKind::InvalidInput, "polled again after it had completed")
}

/// The future of [`Wal::append`](crate::Wal::append).
#[must_use = "nothing is appended unless this is awaited or waited for"]
pub struct Append<'a> {
    entry: Entry<'a>,
    record: &'a [u8],
}

/// The future of [`Wal::append_batch`](crate::Wal::append_batch).
#[must_use = "nothing is appended unless this is awaited or waited for"]
pub struct AppendBatch<'a> {
    entry: Entry<'a>,
    records: &'a [&'a [u8]],
}

/// The future of [`Wal::append_unsynced`](crate::Wal::append_unsynced).
#[must_use = "nothing is appended unless this is awaited or waited for"]
pub struct AppendUnsynced<'a> {
    entry: Entry<'a>,
    record: &'a [u8],
}

/// The future of [`Wal::sync`](crate::Wal::sync) and of the calls that change a log.
#[must_use = "nothing happens unless this is awaited or waited for"]
pub struct LogOperation<'a> {
    shared: &'a Arc<Queue>,
    change: Option<Change>,
    ticket: Option<Ticket>,
}

/// The future of [`Wal::close`](crate::Wal::close).
#[must_use = "the log is closed in any case; this tells when and how"]
pub struct Close<'a> {
    shared: &'a Arc<Queue>,
}

impl<'a> Append<'a> {
    pub(crate) fn new(shared: &'a Arc<Queue>, record: &'a [u8]) -> Append<'a> {
        Append { entry: Entry::new(shared), record }
    }
}

impl<'a> AppendBatch<'a> {
    pub(crate) fn new(shared: &'a Arc<Queue>, records: &'a [&'a [u8]]) -> AppendBatch<'a> {
        AppendBatch { entry: Entry::new(shared), records }
    }
}

impl<'a> AppendUnsynced<'a> {
    pub(crate) fn new(shared: &'a Arc<Queue>, record: &'a [u8]) -> AppendUnsynced<'a> {
        AppendUnsynced { entry: Entry::new(shared), record }
    }
}

impl<'a> LogOperation<'a> {
    pub(crate) fn new(shared: &'a Arc<Queue>, change: Option<Change>) -> LogOperation<'a> {
        LogOperation { shared, change, ticket: None }
    }
}

impl<'a> Close<'a> {
    pub(crate) fn new(shared: &'a Arc<Queue>) -> Close<'a> {
        Close { shared }
    }
}

impl Future for Append<'_> {
    type Output = Result<Lsn>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Lsn>> {
        let this = &mut *self;
        this.entry.poll_durable(&[this.record], context).map_ok(Lsn)
    }
}

impl Future for AppendBatch<'_> {
    type Output = Result<Range<Lsn>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Range<Lsn>>> {
        let this = &mut *self;
        let count = this.records.len() as u64;
        this.entry.poll_durable(this.records, context).map_ok(|first| Lsn(first)..Lsn(first + count))
    }
}

impl Future for AppendUnsynced<'_> {
    type Output = Result<Lsn>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Lsn>> {
        let this = &mut *self;
        let queued = ready!(this.entry.poll_queued(&[this.record], context));
        this.entry.stage = Stage::Over;
        Poll::Ready(queued.map(Lsn))
    }
}

impl Future for LogOperation<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        let ticket = match &mut this.ticket {
            Some(ticket) => ticket,
            none => none.insert(match this.change {
                Some(change) => this.shared.push_change(change)?,
                None => this.shared.ticket_for_all()?,
            }),
        };
        this.shared.poll_done(ticket, context.waker())
    }
}

impl Future for Close<'_> {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.shared.poll_end(context.waker())
    }
}

/// Defines `wait` and `Debug` for the futures.
macro_rules! waits {
    ($($name:ident => $output:ty, $($shared:ident).+);* $(;)?) => {
        $(impl $name<'_> {
            /// Blocks the calling thread until the call completes, and returns its result.
            ///
            /// # Errors
            /// Those of the call; [`ErrorKind::WaitOnShard`] on a shard's thread and
            /// [`ErrorKind::WaitInWorld`] in a simulated world, where `.await` is the way.
            pub fn wait(self) -> Result<$output> {
                wait::block_on(&self.$($shared).+.clone().engine, self)
            }
        }

        impl fmt::Debug for $name<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        })*
    };
}

waits! {
    Append => Lsn, entry.shared;
    AppendBatch => Range<Lsn>, entry.shared;
    AppendUnsynced => Lsn, entry.shared;
    LogOperation => (), shared;
    Close => (), shared;
}
