//! Futures of a store's operations, with `.wait()` for plain threads.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use forebay::Engine;

use crate::error::{Error, ErrorKind, Result};

/// Runs `future` to completion on the calling thread, which sleeps while it is pending.
///
/// Refused on a shard's thread and in a simulated world: the thread would wait for work that only it can do.
pub(crate) fn block_on<T>(engine: &Engine, future: impl Future<Output = Result<T>>) -> Result<T> {
    waited(engine.block_on(future))
}

/// As [`block_on`], for a future that runs one operation after the other; the thread makes the system calls itself.
pub(crate) fn block_in_turn<T>(engine: &Engine, future: impl Future<Output = Result<T>>) -> Result<T> {
    waited(engine.block_on_in_turn(future))
}

fn waited<T>(waited: forebay::Result<Result<T>>) -> Result<T> {
    match waited {
        Ok(output) => output,
        Err(error) if error.kind() == forebay::ErrorKind::WaitInWorld => {
            let text = "waiting would stop the one thread of the simulated world";
            Err(Error::new(ErrorKind::WaitInWorld, text))
        }
        Err(_) => Err(Error::new(ErrorKind::WaitOnShard, "waiting on a shard's own thread would never end")),
    }
}

/// Awaits futures side by side. Returns their outputs in the order of the futures.
pub(crate) async fn all<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut is_over = true;
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none() {
                match Pin::new(future).poll(context) {
                    Poll::Ready(found) => *output = Some(found),
                    Poll::Pending => is_over = false,
                }
            }
        }
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// A boxed future of a result.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// The state of a call that starts at its first poll.
pub(crate) enum Stage<'a, W, T> {
    Wanted(W),
    Running(BoxFuture<'a, T>),
    Failed(Error),
    Over,
}

/// The result of the first step of such a call.
pub(crate) enum FirstStep<'a, T> {
    Done(T),
    Running(BoxFuture<'a, T>),
}

impl<'a, W, T> Stage<'a, W, T> {
    /// Polls the call, whose first step is `begin`.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        begin: impl FnOnce(W) -> Result<FirstStep<'a, T>>,
    ) -> Poll<Result<T>> {
        let mut running = match std::mem::replace(self, Stage::Over) {
            Stage::Wanted(wanted) => match begin(wanted)? {
                FirstStep::Done(output) => return Poll::Ready(Ok(output)),
                FirstStep::Running(running) => running,
            },
            Stage::Running(running) => running,
            Stage::Failed(error) => return Poll::Ready(Err(error)),
            Stage::Over => return Poll::Ready(Err(Error::polled_again())),
        };
        let polled = running.as_mut().poll(context);
        if polled.is_pending() {
            *self = Stage::Running(running);
        }
        polled
    }
}

/// The result of an infrequent operation: await it, or [`wait`](Pending::wait) for it. The operation starts at the first poll,
/// unless its documentation says otherwise.
#[must_use = "nothing happens unless this is awaited or waited for"]
pub struct Pending<'a, T> {
    engine: Engine,
    future: BoxFuture<'a, T>,
}

impl<'a, T> Pending<'a, T> {
    pub(crate) fn new(
        engine: &Engine,
        future: impl Future<Output = Result<T>> + Send + 'a,
    ) -> Pending<'a, T> {
        Pending { engine: engine.clone(), future: Box::pin(future) }
    }

    /// Blocks the calling thread until the result is there.
    ///
    /// # Errors
    /// Those of the operation; [`ErrorKind::WaitOnShard`] on a shard's thread and [`ErrorKind::WaitInWorld`]
    /// in a simulated world, where only `.await` works.
    pub fn wait(self) -> Result<T> {
        block_on(&self.engine, self.future)
    }
}

impl<T> Future for Pending<'_, T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        self.future.as_mut().poll(context)
    }
}

forebay::_debug_parts!([T] Pending<'_, T>);
