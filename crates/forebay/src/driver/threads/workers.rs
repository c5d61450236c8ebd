//! The threads that execute requests, and their queue.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::completions::CompletionQueue;
use super::transfer;
use crate::base::affinity::unpinned;
use crate::driver::IoRequest;
use crate::driver::pool::IDLE;
use crate::io::op::OpKey;

/// A function that starts a thread that runs [`Workers::work`].
pub(super) type Spawn = fn(Arc<Workers>) -> io::Result<()>;

/// Starts a thread that is never joined: it may hang in the kernel for as long as a device does.
pub(super) fn spawn(workers: Arc<Workers>) -> io::Result<()> {
    // Copies on the shard's only processor would hold the shard up, and each other.
    let body = unpinned(move || workers.work());
    std::thread::Builder::new().name("forebay-io".to_string()).spawn(body).map(drop)
}

/// A request on its way to a thread.
pub(super) struct QueuedRequest(IoRequest);

// SAFETY: the pointer is used by the one thread that dequeues the request, and by its kernel call only; the slot that owns the
// memory leaves it alone until that thread has reported the completion (`QueuedRequest::new`).
unsafe impl Send for QueuedRequest {}

impl QueuedRequest {
    /// # Safety
    /// The request's memory and file must stay valid, and the memory unused by others, until the completion of its key
    /// was reported; for ever if it never is.
    pub(super) unsafe fn new(request: IoRequest) -> QueuedRequest {
        QueuedRequest(request)
    }

    pub(super) fn key(&self) -> OpKey {
        self.0.key
    }
}

/// State shared by the driver and its threads. Threads own it too, so it outlives a driver whose requests
/// hang.
pub(super) struct Workers {
    threads_max: usize,
    spawn: Spawn,
    state: Mutex<State>,
    work: Condvar,
    completions: Arc<CompletionQueue>,
}

struct State {
    queue: VecDeque<QueuedRequest>,
    threads: usize,
    /// Threads without a request, including those still starting.
    idle: usize,
    closed: bool,
}

impl Workers {
    pub(super) fn new(
        threads_max: usize,
        room: usize,
        completions: Arc<CompletionQueue>,
        spawn: Spawn,
    ) -> Workers {
        let state = State { queue: VecDeque::with_capacity(room), threads: 0, idle: 0, closed: false };
        Workers { threads_max, spawn, state: Mutex::new(state), work: Condvar::new(), completions }
    }

    /// Queues all of `requests` and starts threads for the requests beyond the number of idle threads. The error is the system's
    /// refusal of a thread. The requests are passed to the running threads, or fail with its errno without any.
    pub(super) fn hand_over(this: &Arc<Workers>, requests: &mut Vec<QueuedRequest>) -> io::Result<()> {
        let mut state = this.lock();
        let to_notify = requests.len().min(state.idle);
        state.queue.extend(requests.drain(..));
        let without_thread = state.queue.len().saturating_sub(state.idle);
        let to_start = without_thread.min(this.threads_max - state.threads);
        state.threads += to_start;
        state.idle += to_start;
        debug_assert!(
            state.idle <= state.threads && state.threads <= this.threads_max,
            "threads are counted"
        );
        drop(state);
        for _ in 0..to_notify {
            this.work.notify_one();
        }
        for started in 0..to_start {
            if let Err(refusal) = (this.spawn)(this.clone()) {
                this.not_started(to_start - started, &refusal);
                return Err(refusal);
            }
        }
        Ok(())
    }

    #[cold]
    fn not_started(&self, count: usize, refusal: &io::Error) {
        let mut state = self.lock();
        state.threads -= count;
        state.idle -= count;
        if state.threads == 0 {
            let errno = refusal.raw_os_error().unwrap_or(libc::EAGAIN);
            for request in state.queue.drain(..) {
                self.completions.push(request.key(), -errno);
            }
        }
    }

    /// Removes a request from the queue; returns false if a thread has it already, or had it before.
    pub(super) fn take_back(&self, key: OpKey) -> bool {
        let mut state = self.lock();
        let place = state.queue.iter().position(|request| request.key() == key);
        place.and_then(|place| state.queue.remove(place)).is_some()
    }

    /// Drops the requests that no thread has started, and lets the threads end.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.queue.clear();
        drop(state);
        self.work.notify_all();
    }

    fn work(&self) {
        crate::base::size_limit::shield_thread();
        let mut state = self.lock();
        state.idle -= 1;
        loop {
            if let Some(request) = state.queue.pop_front() {
                drop(state);
                // SAFETY: `QueuedRequest::new` guarantees that memory and file stay until the push below was
                // reported. Once out of the queue the request belongs to this thread alone.
                let result = unsafe { transfer::run(&request.0) };
                self.completions.push(request.key(), result);
                state = self.lock();
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let (again, timeout) =
                self.work.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = again;
            state.idle -= 1;
            if timeout.timed_out() && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> Counts {
        let state = self.lock();
        Counts { queued: state.queue.len(), threads: state.threads, room: state.queue.capacity() }
    }
}

/// A snapshot of the state, for tests.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) queued: usize,
    pub(super) threads: usize,
    pub(super) room: usize,
}
