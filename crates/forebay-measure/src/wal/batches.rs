//! The three ways in which a task can make a batch durable.

use std::future::Future;
use std::time::Instant;

use super::appender::Appending;
use super::job::Way;
use super::stamp::stamped;

/// A batch and its destination.
pub(super) trait Batch: Send + 'static {
    /// Makes the batch durable while the thread waits.
    fn wait(self) -> anyhow::Result<()>;

    /// Returns a future that makes the batch durable.
    fn write(self) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// Returns an append that makes the batch durable in that way.
pub(super) fn append(way: Way, batch: impl Batch) -> Appending {
    match way {
        Way::Direct => Box::pin(async move {
            batch.wait()?;
            Ok(Instant::now())
        }),
        Way::SpawnBlocking => Box::pin(async move {
            tokio::task::spawn_blocking(move || batch.wait().map(|()| Instant::now())).await?
        }),
        Way::Async => Box::pin(async move {
            let (written, at) = stamped(batch.write()).await;
            written?;
            Ok(at)
        }),
    }
}
