//! A bounded pool of plain threads for calls that block: open, rename, fallocate, and pread and pwrite where there is
//! no ring.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::base::error::{Error, Result};
use crate::base::fork::Origin;
use crate::base::pending::{Pending, Sender, channel};
use crate::base::priority::Before;

/// Time after which a thread without work ends.
const IDLE: Duration = Duration::from_secs(5);

/// Threads that run jobs in order of arrival, at most `threads_max` at a time and `queue_max` waiting.
///
/// Threads start when there is more work than idle threads, and end after five idle seconds. When the last
/// clone is dropped the pool closes. Queued jobs still run, and the drop waits for no thread, so a job may
/// hold a clone.
#[derive(Clone)]
pub(crate) struct Pool {
    handle: Arc<Handle>,
}

/// A call for the pool to make.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The reason why the pool did not take a job.
pub(crate) enum Refused {
    /// The queue is full; contains the job, which can join the [line](Line).
    Full(Job),
    /// The pool was closed; contains the job.
    Closed(Job),
    /// The pool has no thread and the system refused one, for this reason; the job was dropped.
    NoThread(std::io::Error),
}

struct Handle {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    threads_max: usize,
    queue_max: usize,
    state: Mutex<State>,
    work: Condvar,
    origin: Origin,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
    /// Jobs that found the queue full, by ticket; the threads themselves move the oldest one into the queue.
    /// No caller is woken to do so: a caller that is not polled any more would keep the freed place from all
    /// callers behind it. Each job belongs to a `Pending` that the program holds, so this grows with the
    /// program's calls. Empty unless the queue is full.
    line: BTreeMap<u64, Job>,
    next_ticket: u64,
    ended: Vec<Sender<()>>,
}

impl Pool {
    /// Creates a pool without threads; `name` becomes the name of its threads.
    pub(crate) fn new(name: &str, threads_max: usize, queue_max: usize) -> Pool {
        let shared = Shared {
            name: name.to_string(),
            threads_max: threads_max.max(1),
            queue_max: queue_max.max(1),
            state: Mutex::default(),
            work: Condvar::new(),
            origin: Origin::here(),
        };
        Pool { handle: Arc::new(Handle { shared: Arc::new(shared) }) }
    }

    /// Queues a job, or returns it with the reason. A panic in a job is caught and ends that job only.
    pub(crate) fn submit(&self, job: Job) -> Result<(), Refused> {
        Shared::submit(&self.handle.shared, job)
    }

    /// Runs `call` on a thread of the pool. A full queue makes the caller wait; a panic becomes
    /// `TaskPanicked`; after [`close`](Pool::close) the call fails with `EngineClosed`.
    pub(crate) fn run<T, F>(&self, operation: &'static str, call: F) -> Pending<T>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T> + Send + 'static,
    {
        let (sender, pending) = channel(operation);
        let job: Job = Box::new(move || {
            sender.send(
                catch_unwind(AssertUnwindSafe(call))
                    .unwrap_or_else(|panic| Err(Error::panicked(operation, &*panic))),
            );
        });
        match self.submit(job) {
            Ok(()) => pending,
            Err(Refused::Full(job)) => {
                // Not a clone of the pool: a caller that waits for room must not keep a pool open.
                let shared = self.handle.shared.clone();
                Pending::from_future(
                    operation,
                    Box::pin(async move {
                        let _in_line =
                            Line::join(shared, job).map_err(|cause| no_thread(operation, cause))?;
                        pending.await
                    }),
                )
            }
            // Dropping the job drops its sender, which completes the `Pending` with an error.
            Err(Refused::Closed(job)) => {
                drop(job);
                pending
            }
            Err(Refused::NoThread(cause)) => Pending::ready(Err(no_thread(operation, cause))),
        }
    }

    /// Rejects further jobs, lets the queued ones run, and completes when the last thread has ended. Waiting
    /// is optional.
    pub(crate) fn close(&self) -> Pending<()> {
        let (sender, pending) = channel("close");
        let shared = &self.handle.shared;
        shared.close();
        let mut state = shared.lock();
        if state.threads > 0 {
            state.ended.push(sender);
        } else {
            drop(state);
            sender.send(Ok(()));
        }
        pending
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("name", &self.handle.shared.name).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A forked child has none of the threads, and one of them may have held the lock at the fork.
        if !self.shared.origin.is_elsewhere() {
            self.shared.close();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(this: &Arc<Shared>, job: Job) -> Result<(), Refused> {
        Shared::submit_locked(this, &mut this.lock(), job)
    }

    fn submit_locked(this: &Arc<Shared>, state: &mut State, job: Job) -> Result<(), Refused> {
        if state.closed {
            return Err(Refused::Closed(job));
        }
        if state.queue.len() >= this.queue_max {
            return Err(Refused::Full(job));
        }
        if state.queue.len() >= state.idle && state.threads < this.threads_max {
            let shared = this.clone();
            // A shard's priority is for its I/O, not for calls that may take long.
            let before = Before::of_thread();
            let body = move || {
                before.into_iter().for_each(Before::restore);
                shared.work();
            };
            match std::thread::Builder::new().name(this.name.clone()).spawn(body) {
                Ok(_) => state.threads += 1,
                // The running threads will get to the job. Without any, the queue is empty and must stay so.
                Err(_) if state.threads > 0 => {}
                Err(cause) => return Err(Refused::NoThread(cause)),
            }
        }
        state.queue.push_back(job);
        this.work.notify_one();
        Ok(())
    }

    fn work(&self) {
        crate::base::signal_mask::shield_thread();
        let mut state = self.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                if let Some((_, next)) = state.line.pop_first() {
                    state.queue.push_back(next);
                }
                debug_assert!(state.queue.len() <= self.queue_max, "the queue keeps its limit");
                drop(state);
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.lock();
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
        let ended = if state.threads == 0 { std::mem::take(&mut state.ended) } else { Vec::new() };
        drop(state);
        ended.into_iter().for_each(|sender| sender.send(Ok(())));
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let refused = std::mem::take(&mut state.line);
        drop(state);
        self.work.notify_all();
        for job in refused.into_values() {
            // Dropping the job's sender completes its `Pending` and wakes the waiter, which runs foreign
            // code.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(job)));
        }
    }
}

fn no_thread(operation: &'static str, cause: std::io::Error) -> Error {
    Error::io(operation, cause).with_note("no thread could be started for this call")
}

/// A caller's place in the line; dropping it takes the job out, unless a thread has moved it to the queue.
struct Line {
    shared: Arc<Shared>,
    ticket: Option<u64>,
}

impl Line {
    /// Queues the job, or puts it into the line. A closed pool drops the job, whose sender then completes
    /// with an error.
    ///
    /// # Errors
    /// The system's refusal of a thread, if the pool has none.
    fn join(shared: Arc<Shared>, job: Job) -> io::Result<Line> {
        let mut ticket = None;
        let refused = {
            // One critical section: if the queue were emptied between the refusal and the entry, the job
            // would be left behind.
            let mut state = shared.lock();
            match Shared::submit_locked(&shared, &mut state, job) {
                Err(Refused::Full(job)) => {
                    let next = state.next_ticket;
                    state.next_ticket += 1;
                    state.line.insert(next, job);
                    ticket = Some(next);
                    Ok(())
                }
                other => other,
            }
        };
        match refused {
            Err(Refused::NoThread(cause)) => Err(cause),
            _ => Ok(Line { shared, ticket }),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket
            && !self.shared.origin.is_elsewhere()
        {
            let job = self.shared.lock().line.remove(&ticket);
            // The lock is not held here: the job owns values with destructors.
            drop(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc;
    use std::task::{Context, Waker};

    /// Returns a job that reports when it begins and ends when it is released.
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
        let name = pool.run("test", || Ok(std::thread::current().name().map(str::to_string)));
        assert_eq!(name.wait().unwrap().as_deref(), Some("forebay-pool"));
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_goes_on() {
        let pool = Pool::new("forebay-pool", 1, 8);
        let error = pool
            .run("test", || -> Result<()> { std::panic::panic_any("boom".to_string()) })
            .wait()
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TaskPanicked);
        assert!(error.to_string().contains("boom"));
        assert!(pool.submit(Box::new(|| std::panic::panic_any(1))).is_ok());
        assert_eq!(pool.run("test", || Ok(3)).wait().unwrap(), 3);
        assert_eq!(pool.handle.shared.lock().threads, 1);
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
        assert!(matches!(pool.submit(Box::new(|| ())), Err(Refused::Full(_))));
        assert_eq!(pool.handle.shared.lock().threads, 2);
        drop(releases);
        assert_eq!(pool.run("test", || Ok(1)).wait().unwrap(), 1);
    }

    #[test]
    fn a_full_queue_makes_callers_wait_and_all_are_served() {
        let pool = Pool::new("forebay-pool", 1, 2);
        let (job, begun, release) = blocker();
        assert!(pool.submit(job).is_ok());
        begun.recv().unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let mut pending: Vec<_> = (0..100)
            .map(|_| {
                let count = count.clone();
                pool.run("test", move || Ok(count.fetch_add(1, SeqCst)))
            })
            .collect();
        assert_eq!(pool.handle.shared.lock().queue.len(), 2);
        let threads: Vec<_> = pending
            .drain(..)
            .enumerate()
            .map(|(index, mut pending)| {
                std::thread::spawn(move || {
                    // Some callers give up after one poll with the queue full; the others must not be lost by
                    // it.
                    if index % 5 == 4 {
                        let waker = Waker::noop();
                        let _ = std::pin::Pin::new(&mut pending).poll(&mut Context::from_waker(waker));
                        return None;
                    }
                    Some(pending.wait().unwrap())
                })
            })
            .collect();
        release.send(()).unwrap();
        let answers = threads.into_iter().filter_map(|thread| thread.join().unwrap()).count();
        assert_eq!(answers, 80);
        assert!(count.load(SeqCst) >= 80);
        assert!(pool.handle.shared.lock().line.is_empty());
    }

    #[test]
    fn close_runs_what_is_queued_and_refuses_the_rest() {
        let pool = Pool::new("forebay-pool", 1, 2);
        let (job, begun, release) = blocker();
        assert!(pool.submit(job).is_ok());
        begun.recv().unwrap();
        let queued = [pool.run("test", || Ok(1)), pool.run("test", || Ok(2))];
        let mut waiting = pool.run("test", || Ok(3));
        assert!(std::pin::Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let closed = pool.close();
        assert_eq!(pool.run("late", || Ok(4)).wait().unwrap_err().kind(), ErrorKind::EngineClosed);
        assert_eq!(waiting.wait().unwrap_err().kind(), ErrorKind::EngineClosed);
        release.send(()).unwrap();
        closed.wait().unwrap();
        assert_eq!(queued.map(|pending| pending.wait().unwrap()), [1, 2]);
        assert_eq!(pool.handle.shared.lock().threads, 0);
        pool.close().wait().unwrap();
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
