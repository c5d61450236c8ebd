//! A wrapper around a task's future that handles its panics, its abort and its result.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;

use crate::base::error::{Error, ErrorKind};
use crate::base::pending::Sender;
use crate::io::op::OpFailure;
use crate::reactor::shard;

/// A task's future. Catches its panics, sends its result, and frees its place in the executor's list.
pub(super) struct Guarded<F: Future> {
    future: Option<Pin<Box<F>>>,
    answer: Option<Sender<F::Output>>,
    index: usize,
    abort: Arc<Abort>,
    begun: bool,
}

impl<F: Future> Guarded<F> {
    pub(super) fn new(future: F, answer: Sender<F::Output>, index: usize, abort: Arc<Abort>) -> Guarded<F> {
        Guarded { future: Some(Box::pin(future)), answer: Some(answer), index, abort, begun: false }
    }
}

impl<F: Future> Future for Guarded<F>
where
    F::Output: Send + 'static,
{
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if !std::mem::replace(&mut this.begun, true) {
            // A task's waker stays the same for its whole life.
            this.abort.waker.register(context.waker());
        }
        if this.abort.is_asked() {
            // The future is dropped when this task ends, and the destructor sends the result.
            return Poll::Ready(());
        }
        let Some(future) = &mut this.future else { return Poll::Ready(()) };
        let result = match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panic) => Err(Error::panicked("task", panic.as_ref())),
        };
        if let Some(answer) = this.answer.take() {
            answer.send(result);
        }
        Poll::Ready(())
    }
}

impl<F: Future> Drop for Guarded<F> {
    fn drop(&mut self) {
        // Caught here: async-task ends the process when a destructor panics.
        let future = self.future.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
        if let Some(answer) = self.answer.take() {
            let failure = shard::with_current(|shard| shard.inbox().failure()).flatten();
            let kind = match failure {
                Some(OpFailure::ShardLost) => ErrorKind::ShardLost,
                _ => ErrorKind::TaskCancelled,
            };
            answer.send(Err(Error::new(kind, "task")));
        }
        let index = self.index;
        shard::with_current(|shard| shard.executor().forget(index));
    }
}

/// Lets a handle on any thread end its task. It does not use the task's place in the list, which another task
/// may soon have.
#[derive(Debug, Default)]
pub(crate) struct Abort {
    asked: AtomicBool,
    waker: AtomicWaker,
}

impl Abort {
    /// Requests that the task end at its next poll, which comes soon.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        self.waker.wake();
    }

    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}
