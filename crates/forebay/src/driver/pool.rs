//! A bounded pool of plain threads for calls that block: open, rename, fallocate, and pread and pwrite without a ring.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::base::affinity::unpinned;
use crate::base::error::{Error, Result};
use crate::base::fork::Origin;
use crate::base::in_flight::Stays;
use crate::base::pending::{self, Pending, Sender, Turns};
use crate::base::priority::Before;

/// Time after which a thread without work ends, of this pool and of the driver's threads.
pub(super) const IDLE: Duration = Duration::from_secs(5);

/// Threads that run jobs in order of arrival, at most `threads_max` at a time.
///
/// Threads start for more jobs than idle threads, and end after five idle seconds. A [call](Pool::run) belongs to its `Pending`,
/// whose drop removes it from the queue; so the queue grows with the calls that the program holds. A job without a caller is
/// refused while `queue_max` wait. When the last clone is dropped the pool closes, and the drop waits for no thread, so a job may
/// hold a clone.
#[derive(Clone)]
pub(crate) struct Pool {
    handle: Arc<Handle>,
}

/// A call for the pool to make.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The reason why the pool refused a job.
#[derive(Debug)]
pub(crate) enum SubmitError {
    /// The queue is full; the job was dropped.
    Full,
    /// The pool was closed; the job was dropped.
    Closed,
    /// The pool has no thread and the system refused one, for this reason; the job was dropped.
    NoThread(std::io::Error),
}

struct Handle {
    shared: Arc<PoolCore>,
}

struct PoolCore {
    name: String,
    threads_max: usize,
    queue_max: usize,
    state: Mutex<State>,
    work: Condvar,
    origin: Origin,
}

#[derive(Default)]
struct State {
    /// By number, in the order of arrival.
    queue: BTreeMap<u64, QueuedJob>,
    next: u64,
    /// What the threads are in.
    running: Vec<&'static str>,
    threads: usize,
    idle: usize,
    closed: bool,
}

struct QueuedJob {
    operation: &'static str,
    /// Whether a `Pending` is its owner.
    has_caller: bool,
    job: Job,
}

/// A call with its result's way; `call` is dropped first.
struct Work<F, T> {
    operation: &'static str,
    call: F,
    sender: Sender<T>,
}

impl<F: FnOnce() -> Result<T>, T> Work<F, T> {
    fn run(self) {
        let result = catch_unwind(AssertUnwindSafe(self.call));
        self.sender.send(result.unwrap_or_else(|panic| Err(Error::panicked(self.operation, &*panic))));
    }
}

impl Pool {
    /// Creates a pool without threads; `name` becomes the name of its threads.
    pub(crate) fn new(name: &str, threads_max: usize, queue_max: usize) -> Pool {
        let shared = PoolCore {
            name: name.to_string(),
            threads_max: threads_max.max(1),
            queue_max: queue_max.max(1),
            state: Mutex::default(),
            work: Condvar::new(),
            origin: Origin::here(),
        };
        Pool { handle: Arc::new(Handle { shared: Arc::new(shared) }) }
    }

    /// Queues a job without a caller. A panic in a job is caught and ends that job only.
    pub(crate) fn submit(&self, job: Job) -> Result<(), SubmitError> {
        PoolCore::submit(&self.handle.shared, QueuedJob { operation: "", has_caller: false, job }).map(drop)
    }

    /// Runs `call` on a thread of the pool. A panic becomes `TaskPanicked`; after [`close`](Pool::close) the call fails with
    /// `EngineClosed`. It stays in flight until it was dropped, and so was a result without a waiter.
    pub(crate) fn run<T, F>(&self, operation: &'static str, stays: Stays, call: F) -> Pending<T>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T> + Send + 'static,
    {
        let (sender, pending) = pending::call(operation, stays);
        let work = Work { operation, call, sender };
        let job: Job = Box::new(move || work.run());
        // Not a clone of the pool: a caller must not keep a pool open.
        let shared = &self.handle.shared;
        match PoolCore::submit(shared, QueuedJob { operation, has_caller: true, job }) {
            Ok(number) => pending.queued_in(shared.clone(), number),
            Err(SubmitError::NoThread(cause)) => {
                let error = Error::io(operation, cause);
                Pending::ready(Err(error.with_note("no thread could be started for this call")))
            }
            // Dropping the job dropped its sender, which completed the `Pending` with an error.
            Err(SubmitError::Closed | SubmitError::Full) => pending,
        }
    }

    /// Rejects further jobs, and drops the queued jobs whose callers wait for them, with an error. Those without a caller still
    /// run.
    pub(crate) fn close(&self) {
        self.handle.shared.close(|queued| queued.has_caller);
    }

    /// Rejects further jobs and drops all queued jobs. Returns the names of those calls, and of the running calls.
    pub(crate) fn abandon(&self) -> Vec<&'static str> {
        let calls = self.calls();
        self.handle.shared.close(|_| true);
        calls
    }

    /// Returns the names of the calls that threads are in or that wait for one.
    fn calls(&self) -> Vec<&'static str> {
        let state = self.handle.shared.lock();
        let queued = state.queue.values().map(|queued| queued.operation);
        state.running.iter().copied().chain(queued).filter(|operation| !operation.is_empty()).collect()
    }
}

crate::_debug_parts!(Pool, |pool| name: pool.handle.shared.name);

impl Drop for Handle {
    fn drop(&mut self) {
        // A forked child does not have the threads, and one of them may have held the lock at the fork.
        if !self.shared.origin.is_elsewhere() {
            self.shared.close(|_| false);
        }
    }
}

impl Turns for PoolCore {
    fn withdraw(&self, call: u64) {
        let queued = self.lock().queue.remove(&call);
        // The lock is not held here: the job owns values with destructors.
        drop(queued);
    }

    fn detach(&self, call: u64) {
        if let Some(queued) = self.lock().queue.get_mut(&call) {
            queued.has_caller = false;
        }
    }
}

impl PoolCore {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a job and returns its number. A refused one is dropped here, without the lock.
    fn submit(this: &Arc<PoolCore>, queued: QueuedJob) -> Result<u64, SubmitError> {
        let mut state = this.lock();
        if state.closed {
            return Err(SubmitError::Closed);
        }
        if !queued.has_caller && state.queue.len() >= this.queue_max {
            return Err(SubmitError::Full);
        }
        if state.queue.len() >= state.idle && state.threads < this.threads_max {
            let shared = this.clone();
            // A shard's priority and processor are for its I/O, not for calls that may be slow.
            let before = Before::of_thread();
            let body = unpinned(move || {
                before.into_iter().for_each(Before::restore);
                shared.work();
            });
            match std::thread::Builder::new().name(this.name.clone()).spawn(body) {
                Ok(_) => state.threads += 1,
                // The running threads will get to the job. Without any, the queue is empty and must stay so.
                Err(_) if state.threads > 0 => {}
                Err(cause) => return Err(SubmitError::NoThread(cause)),
            }
        }
        let number = state.next;
        state.next += 1;
        state.queue.insert(number, queued);
        this.work.notify_one();
        Ok(number)
    }

    fn work(&self) {
        crate::base::size_limit::shield_thread();
        let mut state = self.lock();
        loop {
            if let Some((_, queued)) = state.queue.pop_first() {
                state.running.push(queued.operation);
                debug_assert!(state.running.len() <= self.threads_max, "a thread runs one job");
                drop(state);
                let _ = catch_unwind(AssertUnwindSafe(queued.job));
                state = self.lock();
                if let Some(at) = state.running.iter().position(|running| *running == queued.operation) {
                    state.running.swap_remove(at);
                }
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            debug_assert!(
                state.idle <= state.threads && state.threads <= self.threads_max,
                "threads are counted"
            );
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

    fn close(&self, is_refused: impl Fn(&QueuedJob) -> bool) {
        let mut state = self.lock();
        state.closed = true;
        let (refused, kept) =
            std::mem::take(&mut state.queue).into_iter().partition(|(_, queued)| is_refused(queued));
        let refused: BTreeMap<u64, QueuedJob> = refused;
        state.queue = kept;
        drop(state);
        self.work.notify_all();
        for queued in refused.into_values() {
            // Dropping the job's sender completes its `Pending` and wakes the waiter, which runs foreign
            // code.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(queued)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;
    use crate::base::in_flight::InFlight;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc;
    use std::task::{Context, Waker};

    /// Returns a job that reports its start and ends when it is released.
    fn blocker() -> (Job, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let (begun, has_begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let job = Box::new(move || {
            begun.send(()).unwrap();
            let _ = released.recv();
        });
        (job, has_begun, release)
    }

    #[test]
    fn runs_jobs_on_named_threads() {
        let pool = Pool::new("forebay-pool", 4, 8);
        let name =
            pool.run("test", Stays::default(), || Ok(std::thread::current().name().map(str::to_string)));
        assert_eq!(name.wait().unwrap().as_deref(), Some("forebay-pool"));
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_goes_on() {
        let pool = Pool::new("forebay-pool", 1, 8);
        let error = pool
            .run("test", Stays::default(), || -> Result<()> { std::panic::panic_any("boom".to_string()) })
            .wait()
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TaskPanicked);
        assert!(error.to_string().contains("boom"));
        assert!(pool.submit(Box::new(|| std::panic::panic_any(1))).is_ok());
        assert_eq!(pool.run("test", Stays::default(), || Ok(3)).wait().unwrap(), 3);
        // Zero after an idle period, one otherwise.
        assert!(pool.handle.shared.lock().threads <= 1);
    }

    #[test]
    fn never_more_threads_or_jobs_than_stated() {
        let pool = Pool::new("forebay-pool", 2, 3);
        let mut releases = Vec::new();
        for _ in 0..2 {
            let (job, begun, release) = blocker();
            assert!(pool.submit(job).is_ok());
            begun.recv().unwrap();
            releases.push(release);
        }
        for _ in 0..3 {
            assert!(pool.submit(Box::new(|| ())).is_ok());
        }
        assert!(matches!(pool.submit(Box::new(|| ())), Err(SubmitError::Full)));
        assert_eq!(pool.handle.shared.lock().threads, 2);
        drop(releases);
        assert_eq!(pool.run("test", Stays::default(), || Ok(1)).wait().unwrap(), 1);
    }

    #[test]
    fn calls_need_no_room_in_the_queue_and_leave_it_when_they_are_dropped() {
        let pool = Pool::new("forebay-pool", 1, 2);
        let (job, begun, release) = blocker();
        assert!(pool.submit(job).is_ok());
        begun.recv().unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let mut calls: Vec<_> = (0..100)
            .map(|_| {
                let count = count.clone();
                pool.run("test", Stays::default(), move || Ok(count.fetch_add(1, SeqCst)))
            })
            .collect();
        assert_eq!(pool.handle.shared.lock().queue.len(), 100);
        // A polled job is dropped as well, and a detached job stays.
        let waker = Waker::noop();
        assert!(std::pin::Pin::new(&mut calls[0]).poll(&mut Context::from_waker(waker)).is_pending());
        calls.drain(..20).for_each(drop);
        calls.drain(..5).for_each(Pending::detach);
        assert_eq!((pool.handle.shared.lock().queue.len(), Arc::strong_count(&count)), (80, 81));
        release.send(()).unwrap();
        let answers = calls.into_iter().filter_map(|pending| pending.wait().ok()).count();
        assert_eq!((answers, count.load(SeqCst)), (75, 80));
    }

    #[test]
    fn close_runs_what_has_no_caller_and_refuses_the_rest() {
        let pool = Pool::new("forebay-pool", 1, 2);
        let (job, begun, release) = blocker();
        assert!(pool.submit(job).is_ok());
        begun.recv().unwrap();
        let in_flight = Arc::<InFlight>::default();
        let stays = || [Some(in_flight.enter()), None, None];
        let (count, detached) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for _ in 0..3 {
            let detached = detached.clone();
            pool.run("kept", stays(), move || Ok(detached.fetch_add(1, SeqCst))).detach();
        }
        let counted = count.clone();
        let waiting = pool.run("waits", stays(), move || Ok(counted.fetch_add(1, SeqCst)));
        assert_eq!((in_flight.count(), pool.calls()), (4, vec!["kept", "kept", "kept", "waits"]));
        pool.close();
        let late = pool.run("late", stays(), || Ok(4)).wait();
        assert_eq!(late.unwrap_err().kind(), ErrorKind::EngineClosed);
        assert_eq!(waiting.wait().unwrap_err().kind(), ErrorKind::EngineClosed);
        assert_eq!(in_flight.count(), 3);
        release.send(()).unwrap();
        while in_flight.poll_none(Waker::noop()).is_pending() {
            std::thread::yield_now();
        }
        assert_eq!((count.load(SeqCst), detached.load(SeqCst)), (0, 3));
    }

    #[test]
    fn what_is_abandoned_never_runs() {
        let pool = Pool::new("forebay-pool", 1, 2);
        let (job, begun, release) = blocker();
        pool.run("stuck", Stays::default(), move || {
            job();
            Ok(())
        })
        .detach();
        begun.recv().unwrap();
        let value = Arc::new(());
        let kept = value.clone();
        pool.run("kept", Stays::default(), move || Ok(kept)).detach();
        pool.close();
        assert_eq!((pool.calls(), Arc::strong_count(&value)), (vec!["stuck", "kept"], 2));
        assert_eq!(pool.abandon(), ["stuck", "kept"]);
        assert_eq!((pool.calls(), Arc::strong_count(&value)), (vec!["stuck"], 1));
        release.send(()).unwrap();
    }

    #[test]
    fn the_last_handle_may_be_dropped_by_a_job() {
        let pool = Pool::new("forebay-pool", 1, 2);
        let shared = Arc::downgrade(&pool.handle.shared);
        let (ended, has_ended) = mpsc::channel::<()>();
        let inner = pool.clone();
        let (job, begun, release) = blocker();
        let job: Job = Box::new(move || {
            job();
            drop(inner);
            drop(ended);
        });
        assert!(pool.submit(job).is_ok());
        begun.recv().unwrap();
        drop(pool);
        release.send(()).unwrap();
        assert!(has_ended.recv().is_err());
        // The thread ends by itself and then releases its reference to the pool's state.
        while shared.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}
