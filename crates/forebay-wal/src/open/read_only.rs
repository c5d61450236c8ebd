//! Turns the result of recovery into a log that is only read: it has no writer, and nothing of it is changed.

use std::future::poll_fn;
use std::sync::Arc;

use forebay::File;

use super::Scene;
use crate::error::Result;
use crate::format::GRAIN;
use crate::queue::Queue;
use crate::recover::{Outcome, Recovery};
use crate::wal::Wal;
use crate::writer::EndGuard;

impl Scene {
    /// Uses the records where they are, also those that an open for writing would copy into a fresh segment.
    pub(super) async fn read_only(self, outcome: Outcome) -> Result<(Wal, Recovery)> {
        let values = Arc::new(self.values(&outcome).await?);
        let (groups, next_lsn) = (outcome.groups.len(), outcome.next_lsn);
        let index = self.index(&outcome, groups, outcome.end, next_lsn, u64::MAX).await?;
        let (limits, written_bytes) = (self.limits(GRAIN), self.maker.written_bytes.clone());
        let queue =
            Queue::new(self.engine, self.options.shard, limits, index, next_lsn, values, written_bytes);
        queue.lock().is_read_only = true;
        let shared = Arc::new(queue);
        drop(forebay::shard::spawn(keep(EndGuard(shared.clone()), self.lock))?);
        Ok((Wal::new(shared), outcome.recovery))
    }
}

/// Keeps the log's lock until the log is closed.
async fn keep(end: EndGuard, lock: Option<File>) {
    let EndGuard(shared) = &end;
    // Nothing is queued, so the first work is the last.
    let _ = poll_fn(|context| shared.poll_work(0, context.waker(), &mut None)).await;
    if let Some(lock) = lock {
        let _ = lock.unlock().await;
    }
    shared.end(true);
}
