//! Callbacks of appends, called in the order of the appends as these become durable.
//!
//! No task waits: the queue is its own waker. When the log has flushed a group it wakes the append at the queue's front, on the
//! log's thread, and the callback runs there. It sends a value to openraft and never waits.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use forebay_wal::PendingAppend;
use openraft::RaftTypeConfig;
use openraft::storage::IOFlushed;

use crate::error::{Error, Result};

/// The appends that are not durable yet, with their callbacks.
pub(crate) struct Flushes<C: RaftTypeConfig> {
    queue: Mutex<Queue<C>>,
    /// The first failure of the log, if any.
    failed: OnceLock<Error>,
}

struct Queue<C: RaftTypeConfig> {
    waiting: VecDeque<Waiter<C>>,
    /// Whether a thread looks through the queue now.
    is_driven: bool,
    /// Whether that thread has to look again, because of a wake-up since it looked.
    again: bool,
}

struct Waiter<C: RaftTypeConfig> {
    /// The last batch of the append; `None` for an append without entries.
    batch: Option<PendingAppend>,
    callback: IOFlushed<C>,
}

impl<C: RaftTypeConfig> Flushes<C> {
    pub(crate) fn new() -> Arc<Flushes<C>> {
        let queue = Queue { waiting: VecDeque::new(), is_driven: false, again: false };
        Arc::new(Flushes { queue: Mutex::new(queue), failed: OnceLock::new() })
    }

    /// Adds an append behind all others.
    pub(crate) fn push(self: &Arc<Self>, batch: Option<PendingAppend>, callback: IOFlushed<C>) {
        self.lock().waiting.push_back(Waiter { batch, callback });
        self.drive();
    }

    /// Returns the first failure of the log, if any.
    pub(crate) fn check(&self) -> Result<()> {
        self.failed.get().map_or(Ok(()), |error| Err(error.poisoned()))
    }

    /// Notes a failure of the log: every later call fails with the first one.
    pub(crate) fn fail(&self, error: Error) -> Error {
        self.failed.get_or_init(|| error.clone());
        error
    }

    fn lock(&self) -> MutexGuard<'_, Queue<C>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the callbacks that are due. If another thread is doing so, that thread checks again.
    fn drive(self: &Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut context = Context::from_waker(&waker);
        let mut queue = self.lock();
        if queue.is_driven {
            queue.again = true;
            return;
        }
        queue.is_driven = true;
        loop {
            queue.again = false;
            let Some(mut front) = queue.waiting.pop_front() else { break };
            // The log's lock is acquired below, and callbacks are foreign code: neither happens under this lock.
            drop(queue);
            let result = match front.batch.as_mut().map(|batch| Pin::new(batch).poll(&mut context)) {
                Some(Poll::Pending) => None,
                Some(Poll::Ready(result)) => Some(result.map(drop)),
                None => Some(Ok(())),
            };
            let Some(result) = result else {
                queue = self.lock();
                queue.waiting.push_front(front);
                if queue.again {
                    continue;
                }
                break;
            };
            // An append without entries fails like the others after a failure.
            let result = result.map_err(|error| self.fail(error.into())).and_then(|()| self.check());
            // The next callbacks are called even if this callback panics: the log's thread must continue.
            let call = || front.callback.io_completed(result.map_err(Into::into));
            let _ = catch_unwind(AssertUnwindSafe(call));
            queue = self.lock();
        }
        queue.is_driven = false;
    }
}

impl<C: RaftTypeConfig> Wake for Flushes<C> {
    fn wake(self: Arc<Self>) {
        self.drive();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.drive();
    }
}
