//! The futures of a store's operations, and `.wait()` for plain threads.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use forebay::Engine;

use crate::error::{Error, ErrorKind, Result};

/// Runs `future` to its end on the calling thread, which sleeps in between.
///
/// A shard's thread is refused, and a simulated world's: it would wait for work that only it can do.
pub(crate) fn block_on<T>(engine: &Engine, future: impl Future<Output = Result<T>>) -> Result<T> {
    if forebay::shard::current().is_some() {
        return Err(Error::new(ErrorKind::WaitOnShard, "waiting on a shard's own thread would never end"));
    }
    if engine.driver() == "sim" {
        let text = "waiting would stop the one thread of the simulated world";
        return Err(Error::new(ErrorKind::WaitInWorld, text));
    }
    thread_local! {
        static PARKER: Waker = Waker::from(Arc::new(Parker(thread::current())));
    }
    let waker = PARKER.with(Waker::clone);
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            // A wake between the poll and here leaves a token, so this returns at once.
            Poll::Pending => thread::park(),
        }
    }
}

struct Parker(Thread);

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// A future in memory of its own.
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// The answer of an operation that is not asked for often: await it, or [`wait`](Answer::wait) for it. It
/// begins when it is first polled, unless its operation says otherwise.
#[must_use = "nothing happens unless this is awaited or waited for"]
pub struct Answer<'a, T> {
    engine: Engine,
    future: Boxed<'a, T>,
}

impl<'a, T> Answer<'a, T> {
    pub(crate) fn new(engine: &Engine, future: impl Future<Output = Result<T>> + Send + 'a) -> Answer<'a, T> {
        Answer { engine: engine.clone(), future: Box::pin(future) }
    }

    /// Blocks the calling thread until the answer is there.
    ///
    /// # Errors
    /// Those of the operation; [`ErrorKind::WaitOnShard`] on a shard's thread and [`ErrorKind::WaitInWorld`]
    /// in a simulated world, where `.await` is the way.
    pub fn wait(self) -> Result<T> {
        block_on(&self.engine, self.future)
    }
}

impl<T> Future for Answer<'_, T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        self.future.as_mut().poll(context)
    }
}

impl<T> fmt::Debug for Answer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}
