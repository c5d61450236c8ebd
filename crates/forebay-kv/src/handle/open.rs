//! [`OpenFuture`]: the future of an open.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use forebay::Engine;
use forebay::shard::JoinHandle;

use super::store::Store;
use crate::engine::startup::{budget, open};
use crate::error::{Error, Result};
use crate::options::Options;

/// The future of [`Store::open`]: await it, or [`wait`](OpenFuture::wait) for it.
#[must_use = "dropping it closes the store again"]
pub struct OpenFuture {
    task: std::result::Result<JoinHandle<Result<Store>>, Option<Error>>,
}

impl OpenFuture {
    pub(crate) fn new(engine: &Engine, dir: &Path, mut options: Options) -> OpenFuture {
        let budget = match budget(engine, &mut options) {
            Ok(budget) => budget,
            Err(error) => return OpenFuture { task: Err(Some(error)) },
        };
        let (owned, dir) = (engine.clone(), dir.to_path_buf());
        let task = engine.spawn_on_shard(options.shard, options.class, move || async move {
            let (shared, recovery) = open(owned, &dir, options, budget).await?;
            Ok(Store::new(shared, recovery))
        });
        OpenFuture { task: Ok(task) }
    }

    /// Blocks the calling thread until the store is open.
    ///
    /// # Errors
    /// Those of [`Store::open`]; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread and
    /// [`ErrorKind::WaitInWorld`](crate::ErrorKind::WaitInWorld) in a simulated world: use `.await` there.
    pub fn wait(self) -> Result<Store> {
        match self.task {
            Ok(task) => task.wait()?,
            Err(error) => Err(error.unwrap_or_else(Error::polled_again)),
        }
    }
}

impl Future for OpenFuture {
    type Output = Result<Store>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.task {
            Ok(task) => Pin::new(task).poll(context).map(|opened| opened?),
            Err(error) => Poll::Ready(Err(error.take().unwrap_or_else(Error::polled_again))),
        }
    }
}

forebay::_debug_parts!(OpenFuture);
