//! The environment of a case.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use forebay::internal::{ErrorExt, channel};
use forebay::{Config, Engine, Error, File, Open, Pending, Result, Waitable};

use crate::storage::{Namespace, Storage};

/// The environment of a case: an engine, a fresh directory or an NVMe namespace, and methods that make more of both.
///
/// ```
/// use forebay::Config;
/// use forebay_conformance::Env;
/// # async fn example(base: &std::path::Path) -> forebay::Result<()> {
/// let env = Env::start(Config::new().shards(2), base.join("scene")).await?;
/// let small = env.restart(|config| config.inbox_depth(1))?;
/// let file = small.open(env.path("a"), forebay::Open::create()).await?;
/// let length = env.elsewhere(async move { file.len().await }).await??;
/// assert_eq!(length, 0);
/// # Ok(()) }
/// ```
pub struct Env {
    engine: Engine,
    config: Config,
    storage: Storage,
    pub(crate) operations: Option<fn(&Engine, &Path) -> Vec<Operation>>,
}

/// An operation of a library: its name, and its future, which checks the result.
pub type Operation = (&'static str, Pin<Box<dyn Future<Output = Result<()>> + Send>>);

impl Env {
    /// Starts an engine with these settings, and makes the directory `dir`, which must not have existed.
    ///
    /// Inside a simulated world the engine and the directory are that world's.
    ///
    /// # Errors
    /// Those of [`Engine::start`] and of [`Engine::create_dir`].
    pub async fn start(config: Config, dir: impl Into<PathBuf>) -> Result<Env> {
        let (engine, dir) = (Engine::start(config.clone())?, dir.into());
        engine.create_dir(&dir).await?;
        Ok(Env { engine, config, storage: Storage::Directory(dir), operations: None })
    }

    /// Starts an engine with these settings on an NVMe namespace, **which is overwritten**, instead of a
    /// directory. The files of a case are parts of it ([`OpenNvme::part`](forebay::OpenNvme::part)), opened
    /// with [`Engine::open_nvme`]. Cases that need a [file system](crate::suite::Need::FileSystem)
    /// are skipped. 64 MiB are enough.
    ///
    /// # Errors
    /// Those of [`Engine::start`] and of [`Engine::open_nvme`]: a namespace that is in use is refused.
    pub async fn start_on_namespace(config: Config, namespace: impl Into<PathBuf>) -> Result<Env> {
        let engine = Engine::start(config.clone())?;
        let namespace = Namespace::claim(&engine, namespace.into()).await?;
        Ok(Env { engine, config, storage: Storage::Namespace(Arc::new(namespace)), operations: None })
    }

    /// Makes the cases about dropped and frozen futures test the operations of a library instead of the engine's. They work on
    /// separate files in the directory that is passed to `operations`.
    pub fn operations(mut self, operations: fn(&Engine, &Path) -> Vec<Operation>) -> Env {
        self.operations = Some(operations);
        self
    }

    /// Returns the environment's first engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns a name in the case's own directory, which is empty at first. In a namespace it is only the label of a part.
    pub fn path(&self, name: &str) -> PathBuf {
        self.storage.path(name)
    }

    /// Returns the directory itself, or the namespace's path.
    pub fn dir(&self) -> &Path {
        self.storage.dir()
    }

    /// Returns whether files are parts of a namespace here.
    pub fn is_namespace(&self) -> bool {
        self.storage.is_namespace()
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Opens a file of the case with its first engine.
    pub(crate) fn open(&self, path: impl AsRef<Path>, open: Open) -> Pending<File> {
        self.storage.open(&self.engine, path, open)
    }

    /// Opens a file of the case with an engine of [`restart`](Env::restart).
    pub(crate) fn open_on(&self, engine: &Engine, path: impl AsRef<Path>, open: Open) -> Pending<File> {
        self.storage.open(engine, path, open)
    }

    /// Starts another engine on the same driver, with the same settings except for the changes that `change`
    /// makes, and returns it.
    ///
    /// # Errors
    /// Those of [`Engine::start`].
    pub fn restart(&self, change: impl FnOnce(Config) -> Config) -> Result<Engine> {
        Engine::start(change(self.config.clone()))
    }

    /// Runs `future` to completion on another thread, which runs no shard; in a simulated world, in another task of the program.
    ///
    /// # Errors
    /// [`ErrorKind::TaskPanicked`](forebay::ErrorKind::TaskPanicked) when it panicked; the system's error when
    /// no thread can be started.
    pub async fn elsewhere<F>(&self, future: F) -> Result<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        if self.is_simulated() {
            return in_world(future).await;
        }
        let (answer, pending) = channel("elsewhere");
        let future = async move { Ok::<_, Error>(future.await) };
        let thread = std::thread::Builder::new()
            .name("forebay-suite".to_string())
            .spawn(move || {
                let waiting = || Waitable::new("elsewhere", future).wait();
                let output = catch_unwind(AssertUnwindSafe(waiting));
                answer.send(output.unwrap_or_else(|panic| Err(Error::panicked("elsewhere", panic.as_ref()))));
            })
            .map_err(|error| Error::io("elsewhere", error))?;
        let output = pending.await;
        // It has sent its result, so this waits for nothing but the thread's own end.
        let _ = thread.join();
        output
    }

    /// Returns whether everything here is simulated: one thread, a virtual clock, disk and file system.
    pub fn is_simulated(&self) -> bool {
        self.engine.driver() == "sim"
    }

    /// Lets other threads, or the other tasks of a simulated world, run for a while.
    pub(crate) async fn pause(&self) {
        if self.is_simulated() {
            forebay_sim::sleep(Duration::from_micros(20)).await.unwrap_or_default()
        } else {
            std::thread::yield_now()
        }
    }
}

forebay::_debug_parts!(Env, |env| engine: env.engine, dir: env.dir());

/// Does [`Env::elsewhere`] in a simulated world, where a panic of a task would end the run.
async fn in_world<F>(future: F) -> Result<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let mut future = Box::pin(future);
    let caught =
        poll_fn(move |context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(Error::panicked("elsewhere", panic.as_ref()))),
        });
    forebay_sim::spawn(caught).await?
}

/// A future that only its own thread uses.
pub(crate) type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;
