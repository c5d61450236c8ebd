//! A future with a `.wait()`, for calls that are made of several operations.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{block_on_any, refusal};
use crate::base::error::Error;

/// A call in progress that a task can await and a plain thread can wait for. It does nothing before it is
/// polled.
///
/// Libraries on top of Forebay give their own futures a `.wait()` with it. It allocates nothing.
///
/// ```
/// use std::path::Path;
///
/// use forebay::{Config, Engine, Open, Result, Waitable};
///
/// fn first_byte(engine: &Engine, path: &Path) -> Waitable<impl Future<Output = Result<u8>>> {
///     Waitable::new("first byte", async move {
///         let file = engine.open(path, Open::read()).await?;
///         Ok(file.read(0..1).await?[0])
///     })
/// }
///
/// # fn main() -> forebay::Result<()> {
/// let engine = Engine::start(Config::new())?;
/// assert_eq!(first_byte(&engine, Path::new("Cargo.toml")).wait()?, b'[');
/// # Ok(()) }
/// ```
#[must_use = "nothing happens unless this is awaited or waited for"]
pub struct Waitable<F> {
    operation: &'static str,
    future: F,
}

/// Implemented by the return types of calls that can carry an error. [`Waitable::wait`] needs it where it
/// refuses to wait.
pub trait FromError {
    /// Returns the value that carries this error.
    fn from_error(error: Error) -> Self;
}

impl<T, E: From<Error>> FromError for Result<T, E> {
    fn from_error(error: Error) -> Self {
        Err(error.into())
    }
}

/// The return type of streams: the error is their next item.
impl<T: FromError> FromError for Option<T> {
    fn from_error(error: Error) -> Self {
        Some(T::from_error(error))
    }
}

/// The return type of [`ReadManyStream::next`](crate::ReadManyStream::next): the error of a refused wait concerns no range, and has the
/// number `usize::MAX`.
impl<T: FromError> FromError for (usize, T) {
    fn from_error(error: Error) -> Self {
        (usize::MAX, T::from_error(error))
    }
}

impl<F: Future> Waitable<F> {
    /// Returns a call that wraps a future. `operation` is the name in the error of a refused
    /// [`wait`](Waitable::wait).
    #[inline]
    pub fn new(operation: &'static str, future: F) -> Waitable<F> {
        Waitable { operation, future }
    }

    /// Blocks the calling thread until the call has completed.
    ///
    /// # Errors
    /// Those of the call; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread and
    /// [`ErrorKind::WaitInWorld`](crate::ErrorKind::WaitInWorld) in a simulated world: use `.await` there. The call is then
    /// dropped before it starts.
    pub fn wait(self) -> F::Output
    where
        F::Output: FromError,
    {
        match refusal() {
            Some(kind) => F::Output::from_error(Error::new(kind, self.operation)),
            None => block_on_any(self.future),
        }
    }
}

impl<F: Future> Future for Waitable<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: the future is pinned with the whole: `wait` takes an unpinned one, nothing else moves it, the type has no
        // destructor, and the whole is Unpin only if the future is.
        let future = unsafe { self.map_unchecked_mut(|this| &mut this.future) };
        future.poll(context)
    }
}

crate::_debug_parts!([F] Waitable<F>, |waitable| operation: waitable.operation);
