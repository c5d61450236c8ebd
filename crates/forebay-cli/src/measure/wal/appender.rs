//! What every row offers: an append, and an end.

use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

/// Resolves to the time when the records were durable.
pub(super) type Appending = Pin<Box<dyn Future<Output = anyhow::Result<Instant>> + Send>>;

/// A way to make records durable.
pub(super) trait Appender: Send + Sync {
    /// An append, which begins when it is first polled. `lane` is the number of the appender, below
    /// [`Workload::lanes`](super::job::Workload::lanes).
    fn append(&self, lane: usize) -> Appending;

    /// Whether the thread that has something to append can begin it, whoever awaits it then. Otherwise only
    /// the task that awaits it does.
    fn begins_anywhere(&self) -> bool {
        true
    }

    /// What was asked for and not granted.
    fn degraded(&self) -> Option<String> {
        None
    }

    /// Ends what the row needs and looks whether all that was answered is there. Not from a task.
    ///
    /// # Errors
    /// Something is missing: then the figures are worth nothing.
    fn close(&self, appends: u64) -> anyhow::Result<()>;
}
