//! Threads of this crate's own, for calls that wait: names, metadata, and the bytes that no ring moves.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use forebay::internal::{PerProcess, stand};
use tokio::sync::oneshot;

/// The number of threads of tokio's blocking pool: this many calls on pipes may wait for their other ends.
const THREADS_MAX: usize = 512;
/// The time after which a thread without work ends.
const IDLE: Duration = Duration::from_secs(10);

static THREADS: PerProcess<Threads> = PerProcess::new();

type Job = Box<dyn FnOnce() + Send>;

/// The threads of a process and their queue.
#[derive(Default)]
struct Threads {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
}

/// The result, available later, of a call that one of the threads makes. Dropping it does not stop the call.
#[derive(Debug)]
pub(crate) struct Call<T> {
    result: oneshot::Receiver<T>,
}

impl<T> Future for Call<T> {
    type Output = io::Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let result = Pin::new(&mut self.result).poll(context);
        // The sender is dropped without a result when the call panics.
        result.map(|result| result.map_err(|_| io::Error::other("background task failed")))
    }
}

/// Makes a call on one of the threads. All that the call owns is dropped before its result is there.
pub(crate) fn run<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Call<T> {
    let (sender, result) = oneshot::channel();
    let standing = stand();
    let job = move || {
        // The waiter may be dropped.
        let _ = sender.send(call());
        // A paused clock may go on once the waiter is woken.
        drop(standing);
    };
    THREADS.get(Threads::default).push(Box::new(job));
    Call { result }
}

impl Threads {
    fn push(&'static self, job: Job) {
        let mut queue = self.lock();
        queue.jobs.push_back(job);
        if queue.idle >= queue.jobs.len() || queue.threads >= THREADS_MAX {
            drop(queue);
            self.wake.notify_one();
            return;
        }
        queue.threads += 1;
        drop(queue);
        let thread = std::thread::Builder::new().name("forebay-fs".to_string()).spawn(move || self.work());
        if thread.is_err() {
            let mut queue = self.lock();
            queue.threads -= 1;
            // Without any thread the caller makes the call itself: late is better than never.
            let stranded = if queue.threads == 0 { std::mem::take(&mut queue.jobs) } else { VecDeque::new() };
            drop(queue);
            stranded.into_iter().for_each(|job| job());
        }
    }

    fn work(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                // A panic ends its own call, whose waiter learns of it.
                let _ = catch_unwind(AssertUnwindSafe(job));
                queue = self.lock();
                continue;
            }
            queue.idle += 1;
            let (woken, time) = self.wake.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            queue.idle -= 1;
            if time.timed_out() && queue.jobs.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
