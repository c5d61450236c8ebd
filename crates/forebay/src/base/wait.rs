//! `.wait()`: blocking a plain thread on an operation.

mod waitable;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::here::{self, Waits};

pub use waitable::{FromError, Waitable};

/// Runs `future` to its end on the calling thread, which sleeps in between.
///
/// A shard's thread is refused, and so is a simulated world's: it would wait for work that only it can do.
pub(crate) fn block_on<F, T>(operation: &'static str, future: F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    match refusal() {
        Some(kind) => Err(Error::new(kind, operation)),
        None => block_on_any(future),
    }
}

/// As [`block_on`], for a future that starts an operation only after the end of the previous one. The thread carries them out
/// itself where that is allowed (`reactor/calls.rs`).
pub(crate) fn block_in_turn<F, T>(operation: &'static str, future: F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    match refusal() {
        Some(kind) => Err(Error::new(kind, operation)),
        None => run(Waits::InTurn, future),
    }
}

/// Returns why this thread must not wait, if it must not: the awaited work needs this thread.
pub(crate) fn refusal() -> Option<ErrorKind> {
    if here::is_on_shard() {
        return Some(ErrorKind::WaitOnShard);
    }
    #[cfg(feature = "_sim")]
    if here::world() != 0 {
        return Some(ErrorKind::WaitInWorld);
    }
    None
}

/// Does the same as [`block_on`] for futures whose output is not a `Result`. The caller has checked
/// [`refusal`] before.
pub(crate) fn block_on_any<F: Future>(future: F) -> F::Output {
    run(Waits::ForAny, future)
}

/// Does the same as [`block_in_turn`] for such futures.
pub(crate) fn block_in_turn_on_any<F: Future>(future: F) -> F::Output {
    run(Waits::InTurn, future)
}

/// Returns the waker that unparks the calling thread: for a thread that polls a future itself and sleeps in [`std::thread::park`]
/// or [`park_timeout`](std::thread::park_timeout) in between. A wake-up before the sleep ends that sleep immediately. Allocates in
/// the first call of a thread only, and in each call of a handler of exit(3).
///
/// ```
/// use std::future::Future;
/// use std::pin::pin;
/// use std::task::Context;
///
/// # fn main() -> forebay::Result<()> {
/// # let engine = forebay::Engine::start(forebay::Config::new())?;
/// let waker = forebay::thread_waker();
/// let mut future = pin!(engine.nop());
/// while future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
///     std::thread::park_timeout(std::time::Duration::from_secs(1)); // or do something else first
/// }
/// # Ok(()) }
/// ```
pub fn thread_waker() -> Waker {
    with_thread_waker(Waker::clone)
}

fn with_thread_waker<T>(mut f: impl FnMut(&Waker) -> T) -> T {
    thread_local! {
        static PARKER: Waker = Parker::waker();
    }
    // Handlers of exit(3) run on a thread without its locals. Its handle, by which it parks, is still there.
    PARKER.try_with(&mut f).unwrap_or_else(|_| f(&Parker::waker()))
}

fn run<F: Future>(waits: Waits, future: F) -> F::Output {
    let mut future = pin!(future);
    let _mark = WaitMark(here::set_waits(waits));
    with_thread_waker(|waker| {
        let mut context = Context::from_waker(waker);
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(output) => return output,
                // A wake-up between the poll and here leaves a token, so this returns immediately.
                Poll::Pending => thread::park(),
            }
        }
    })
}

/// Ends the mark of a wait, also after a panic.
struct WaitMark(Waits);

impl Drop for WaitMark {
    fn drop(&mut self) {
        here::set_waits(self.0);
    }
}

struct Parker(Thread);

impl Parker {
    fn waker() -> Waker {
        Waker::from(Arc::new(Parker(thread::current())))
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}
