//! The interface of every row: an append, and an end.

use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

/// A future that resolves to the time when the records were durable.
pub(super) type Appending = Pin<Box<dyn Future<Output = anyhow::Result<Instant>> + Send>>;

/// A way to make records durable.
pub(super) trait Appender: Send + Sync {
    /// Returns an append, which begins when it is first polled. `lane` is the number of the
    /// appender, below [`Workload::lanes`](super::job::Workload::lanes).
    fn append(&self, lane: usize) -> Appending;

    /// Returns whether the thread that has data can begin the append, even if another task then
    /// awaits it. Otherwise only the task that awaits it can begin it.
    fn begins_anywhere(&self) -> bool {
        true
    }

    /// Returns which requested settings were not granted.
    fn degraded(&self) -> Option<String> {
        None
    }

    /// Releases the row's resources and checks that every acknowledged append is there. Not called
    /// from a task.
    ///
    /// # Errors
    /// An append is missing, which makes the figures worthless.
    fn close(&self, appends: u64) -> anyhow::Result<()>;
}
