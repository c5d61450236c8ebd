//! [`OpenFuture`]: the future of an open.

use std::future::Future;
use std::path::{Path, PathBuf};
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
    task: std::result::Result<(JoinHandle<Result<Store>>, PathBuf), Option<Error>>,
}

/// Returns what became of the open of the store in this directory.
fn opened(done: forebay::Result<Result<Store>>, dir: &Path) -> Result<Store> {
    done.map_err(|error| Error::from(error).named(dir))?.map_err(|error| error.named(dir))
}

impl OpenFuture {
    pub(crate) fn new(engine: &Engine, dir: &Path, mut options: Options) -> OpenFuture {
        let budget = match budget(engine, &mut options) {
            Ok(budget) => budget,
            Err(error) => return OpenFuture { task: Err(Some(error)) },
        };
        let (owned, named) = (engine.clone(), dir.to_path_buf());
        let dir = named.clone();
        let task = engine.spawn_on_shard(options.shard, options.class, move || async move {
            let (shared, recovery) = open(owned, &dir, options, budget).await?;
            Ok(Store::new(shared, recovery))
        });
        OpenFuture { task: Ok((task, named)) }
    }

    /// Blocks the calling thread until the store is open.
    ///
    /// # Errors
    /// Those of [`Store::open`]; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread and
    /// [`ErrorKind::WaitInWorld`](crate::ErrorKind::WaitInWorld) in a simulated world: use `.await` there.
    pub fn wait(self) -> Result<Store> {
        match self.task {
            Ok((task, dir)) => opened(task.wait(), &dir),
            Err(error) => Err(error.unwrap_or_else(Error::polled_again)),
        }
    }
}

impl Future for OpenFuture {
    type Output = Result<Store>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.task {
            Ok((task, dir)) => Pin::new(task).poll(context).map(|done| opened(done, dir)),
            Err(error) => Poll::Ready(Err(error.take().unwrap_or_else(Error::polled_again))),
        }
    }
}

forebay::_debug_parts!(OpenFuture);
