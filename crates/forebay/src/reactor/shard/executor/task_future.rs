//! A task's future with its panics, its abort and its result.

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

/// What a task runs. The type of its future is erased here, in the allocation that it has anyway: async-task's functions are then
/// compiled once and not for each future, which was a fifth of this crate's code.
pub(super) trait Body {
    /// Polls the future; its end and its panic are sent as the result.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()>;

    /// Drops the future, then sends an error if it had no result.
    fn end(self: Pin<&mut Self>);
}

/// A future and where its result is sent.
struct TypedBody<F: Future> {
    future: Option<F>,
    answer: Option<Sender<F::Output>>,
}

impl<F: Future> TypedBody<F> {
    fn parts(self: Pin<&mut Self>) -> (Pin<&mut Option<F>>, &mut Option<Sender<F::Output>>) {
        // SAFETY: the future is pinned with the whole, which is Unpin only if the future is, has no destructor, and is never moved
        // from: the future is polled and replaced in its place. The sender is pinned nowhere.
        unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), &mut this.answer)
        }
    }
}

impl<F: Future> Body for TypedBody<F> {
    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let (future, answer) = self.parts();
        let Some(future) = future.as_pin_mut() else { return Poll::Ready(()) };
        let result = match catch_unwind(AssertUnwindSafe(|| future.poll(context))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panic) => Err(Error::panicked("task", panic.as_ref())),
        };
        if let Some(answer) = answer.take() {
            answer.send(result);
        }
        Poll::Ready(())
    }

    fn end(self: Pin<&mut Self>) {
        let (mut future, answer) = self.parts();
        // Caught here: async-task ends the process when a destructor panics.
        let _ = catch_unwind(AssertUnwindSafe(|| future.set(None)));
        if let Some(answer) = answer.take() {
            let failure = shard::with_current(|shard| shard.inbox().failure()).flatten();
            let kind = match failure {
                Some(OpFailure::ShardLost) => ErrorKind::ShardLost,
                _ => ErrorKind::TaskCancelled,
            };
            answer.send(Err(Error::new(kind, "task")));
        }
    }
}

/// A task. Catches its panics, and frees its place in the executor's list.
pub(super) struct TaskFuture {
    body: Pin<Box<dyn Body>>,
    index: usize,
    abort: Arc<Abort>,
    begun: bool,
}

impl TaskFuture {
    pub(super) fn new<F>(future: F, answer: Sender<F::Output>, index: usize, abort: Arc<Abort>) -> TaskFuture
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let body = Box::pin(TypedBody { future: Some(future), answer: Some(answer) });
        TaskFuture { body, index, abort, begun: false }
    }

    /// Returns the place in the executor's list.
    pub(super) fn index(&self) -> usize {
        self.index
    }
}

impl Future for TaskFuture {
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
        this.body.as_mut().poll(context)
    }
}

impl Drop for TaskFuture {
    fn drop(&mut self) {
        self.body.as_mut().end();
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
    /// Requests that the task end at its next poll, which is soon.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        self.waker.wake();
    }

    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}
