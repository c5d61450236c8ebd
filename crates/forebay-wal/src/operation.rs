//! The future of calls that append no record.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::error::{Error, Result};
use crate::queue::{Change, Queue, Ticket};
use crate::values::ValueChange;

/// The future of the calls of a [`Wal`](crate::Wal) that append no record: changes, values, waits and the close. Each call
/// documents when it starts.
///
/// It borrows nothing and does not keep the log open.
#[must_use = "most calls do not begin before this is awaited or waited for"]
pub struct LogOperation {
    shared: Arc<Queue>,
    stage: Stage,
}

enum Stage {
    /// Not started. `None` waits for everything queued before.
    Change(Option<Change>),
    Queued(Ticket),
    /// The value is queued, and completes as others do unless the log was broken on purpose.
    Value(Ticket),
    Refused(Error),
    /// Waits for room for a record of this many bytes; `id` is the number of its entry, once it waits.
    Room {
        bytes: usize,
        id: Option<u64>,
    },
    /// Waits for a record; `id` is the number of its entry, once it waits.
    Record {
        lsn: u64,
        is_durable: bool,
        id: Option<u64>,
    },
    Close,
}

impl LogOperation {
    fn new(shared: &Arc<Queue>, stage: Stage) -> LogOperation {
        LogOperation { shared: shared.clone(), stage }
    }

    /// A change after everything queued before; `None` only waits for that.
    pub(crate) fn change(shared: &Arc<Queue>, change: Option<Change>) -> LogOperation {
        LogOperation::new(shared, Stage::Change(change))
    }

    /// A change of a value, which is queued here.
    pub(crate) fn value(shared: &Arc<Queue>, change: Result<ValueChange>) -> LogOperation {
        let queued = change.and_then(|change| shared.push_values(&[change]));
        LogOperation::new(shared, queued.map_or_else(Stage::Refused, Stage::Value))
    }

    /// A wait for room.
    pub(crate) fn room(shared: &Arc<Queue>, bytes: usize) -> LogOperation {
        LogOperation::new(shared, Stage::Room { bytes, id: None })
    }

    /// A wait for a record.
    pub(crate) fn record(shared: &Arc<Queue>, lsn: u64, is_durable: bool) -> LogOperation {
        LogOperation::new(shared, Stage::Record { lsn, is_durable, id: None })
    }

    /// A close, which starts here.
    pub(crate) fn close(shared: &Arc<Queue>) -> LogOperation {
        shared.begin_close();
        LogOperation::new(shared, Stage::Close)
    }

    /// Blocks the calling thread until the call completes, and returns its result.
    ///
    /// # Errors
    /// Those of the call; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread and
    /// [`ErrorKind::WaitInWorld`](crate::ErrorKind::WaitInWorld) in a simulated world: use `.await` there.
    pub fn wait(self) -> Result<()> {
        self.shared.engine.clone().block_on(self)?
    }
}

impl Future for LogOperation {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let LogOperation { shared, stage } = &mut *self;
        match stage {
            Stage::Change(change) => {
                let mut ticket = match *change {
                    Some(change) => shared.push_change(change)?,
                    None => shared.ticket_for_all()?,
                };
                let done = shared.poll_done(&mut ticket, context.waker());
                *stage = Stage::Queued(ticket);
                done
            }
            Stage::Value(_) if forebay::_is_broken!(ValueAcknowledgedEarly) => Poll::Ready(Ok(())),
            Stage::Queued(ticket) | Stage::Value(ticket) => shared.poll_done(ticket, context.waker()),
            Stage::Refused(error) => Poll::Ready(Err(error.clone())),
            Stage::Room { bytes, id } => shared.poll_room(*bytes, id, context.waker()),
            Stage::Record { lsn, is_durable, id } => {
                shared.poll_reached(*lsn, *is_durable, id, context.waker())
            }
            Stage::Close => shared.poll_end(context.waker()),
        }
    }
}

impl Drop for LogOperation {
    fn drop(&mut self) {
        match self.stage {
            Stage::Room { id: Some(id), .. } => self.shared.leave_room(id),
            Stage::Record { lsn, is_durable, id: Some(id) } => self.shared.leave_watch(lsn, is_durable, id),
            _ => {}
        }
    }
}

forebay::_debug_parts!(LogOperation);
