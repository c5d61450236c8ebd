//! The engine of the process, and those that stand in for it on a thread or in a task.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::{Mutex, OnceLock, PoisonError};

use forebay::internal::{PerProcess, is_in_world};
use forebay::{Class, Config, Engine};

use crate::failure::io_error;

static PROCESS: PerProcess<ProcessEngine> = PerProcess::new();

thread_local! {
    static SCOPE: RefCell<Option<Engine>> = const { RefCell::new(None) };
}

/// The engine of one process. It starts when it is needed first and never ends: bytes that a file has accepted are written while
/// the process lives.
#[derive(Default)]
struct ProcessEngine {
    /// Locked while the engine starts.
    config: Mutex<Config>,
    engine: OnceLock<Engine>,
}

/// Sets how the engine of the process starts. A forked child has a separate engine and must be configured again.
///
/// # Errors
/// [`AlreadyExists`](io::ErrorKind::AlreadyExists) when it runs already: call this before the first file is opened.
///
/// ```
/// forebay_fs::configure(forebay::Config::new().arena_bytes_max(64 << 20))?;
/// # Ok::<_, std::io::Error>(())
/// ```
pub fn configure(config: Config) -> io::Result<()> {
    let process = PROCESS.get(ProcessEngine::default);
    let mut next = process.config.lock().unwrap_or_else(PoisonError::into_inner);
    if process.engine.get().is_some() {
        let text = "the engine of this process runs already; call forebay_fs::configure before the first file is opened";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    *next = config;
    Ok(())
}

/// Returns the engine of the scope that this thread is in, else that of the process, which the first call starts.
///
/// # Errors
/// Those of [`Engine::start`], and an error in a simulated world without a scope.
///
/// ```
/// println!("{}", forebay_fs::engine()?.health());
/// # Ok::<_, std::io::Error>(())
/// ```
pub fn engine() -> io::Result<Engine> {
    if let Some(engine) = scope() {
        return Ok(engine);
    }
    refuse_world()?;
    let process = PROCESS.get(ProcessEngine::default);
    if let Some(engine) = process.engine.get() {
        return Ok(engine.clone());
    }
    let config = process.config.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(engine) = process.engine.get() {
        return Ok(engine.clone());
    }
    let engine = Engine::start(config.clone()).map_err(io_error)?;
    Ok(process.engine.get_or_init(|| engine).clone())
}

/// Uses `engine` instead of the process's engine for files that this thread opens, until the returned guard is dropped. With the
/// engine of a simulated world all names are that world's.
///
/// # Panics
/// In a handler of exit(3): the thread has lost its scopes, and the engine of the process may be the wrong one.
///
/// ```
/// # async fn program() -> std::io::Result<()> { forebay_fs::write("/greeting", "hello").await }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// forebay_sim::World::new(1).run(async |engine| {
///     let _world = forebay_fs::enter(&engine);
///     program().await
/// })??;
/// # Ok(()) }
/// ```
#[must_use = "the scope ends when this is dropped"]
pub fn enter(engine: &Engine) -> EngineScope {
    let before = SCOPE.with(|scope| scope.replace(Some(engine.clone())));
    EngineScope { before, thread: PhantomData }
}

/// A scope of [`enter`], which ends when this is dropped. Scopes of a thread end in the reverse order of their starts.
#[derive(Debug)]
pub struct EngineScope {
    before: Option<Engine>,
    /// It belongs to its thread.
    thread: PhantomData<*const ()>,
}

impl Drop for EngineScope {
    fn drop(&mut self) {
        let before = self.before.take();
        // At the end of the thread nothing is left to restore.
        let ended = SCOPE.try_with(|scope| scope.replace(before));
        drop(ended);
    }
}

/// Runs `future` with `engine` instead of the process's engine, on whichever threads it is polled. Tasks that it spawns are
/// outside of the scope.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = forebay::Engine::start(forebay::Config::new().shards(1))?;
/// let text = forebay_fs::within(&engine, forebay_fs::read_to_string("Cargo.toml")).await?;
/// assert!(text.starts_with("[package]"));
/// # Ok(()) }
/// ```
pub fn within<F: Future>(engine: &Engine, future: F) -> impl Future<Output = F::Output> + use<F> {
    let engine = engine.clone();
    async move {
        let mut future = pin!(future);
        poll_fn(|context| {
            let _scope = enter(&engine);
            future.as_mut().poll(context)
        })
        .await
    }
}

/// Returns the engine of the scope that this thread is in.
pub(crate) fn scope() -> Option<Engine> {
    SCOPE.try_with(|scope| scope.borrow().clone()).ok().flatten()
}

/// Returns the engine of the simulated world whose names a call means; `None` for those of the machine.
pub(crate) fn world() -> io::Result<Option<Engine>> {
    match scope() {
        Some(engine) if engine.driver() == "sim" => Ok(Some(engine)),
        _ => refuse_world().map(|()| None),
    }
}

/// Keeps a simulated program away from the machine's files.
fn refuse_world() -> io::Result<()> {
    if is_in_world() {
        return Err(io::Error::other(
            "a simulated world runs on this thread: call forebay_fs::enter with its engine",
        ));
    }
    Ok(())
}

/// Makes calls of a world in a separate task, which continues without a waiter.
pub(crate) async fn in_world<T, W>(
    engine: Engine,
    calls: impl FnOnce(Engine) -> W + Send + 'static,
) -> io::Result<T>
where
    T: Send + 'static,
    W: Future<Output = forebay::Result<T>> + 'static,
{
    let inside = engine.clone();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || calls(inside));
    task.await.map_err(io_error)?.map_err(io_error)
}
