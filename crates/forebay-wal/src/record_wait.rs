//! Waits until a record can be read.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::error::Result;
use crate::queue::Queue;
use crate::wait;

/// The future of [`Wal::wait_queued`](crate::Wal::wait_queued) and [`Wal::wait_durable`](crate::Wal::wait_durable).
///
/// It borrows nothing and does not keep the log open. While it is not polled it costs one entry of a map.
#[must_use = "it waits only when it is awaited or waited for"]
pub struct RecordWait {
    shared: Arc<Queue>,
    lsn: u64,
    is_durable: bool,
    /// The number of its entry, once it waits.
    id: Option<u64>,
}

impl RecordWait {
    pub(crate) fn new(shared: Arc<Queue>, lsn: u64, is_durable: bool) -> RecordWait {
        RecordWait { shared, lsn, is_durable, id: None }
    }

    /// Blocks the calling thread until the record can be read.
    ///
    /// # Errors
    /// Those of the call; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread and
    /// [`ErrorKind::WaitInWorld`](crate::ErrorKind::WaitInWorld) in a simulated world.
    pub fn wait(self) -> Result<()> {
        wait::block_on(&self.shared.engine.clone(), self)
    }
}

impl Future for RecordWait {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        this.shared.poll_reached(this.lsn, this.is_durable, &mut this.id, context.waker())
    }
}

impl Drop for RecordWait {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.shared.leave_watch(self.lsn, self.is_durable, id);
        }
    }
}

impl fmt::Debug for RecordWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordWait").field("lsn", &self.lsn).finish_non_exhaustive()
    }
}
