//! The driver of threads: `pread` and `pwrite` on a pool of threads, for kernels that refuse io_uring and for other systems.
//!
//! Its results are those of a ring: short transfers, errors and end of file as the kernel reports them. A transfer that a thread
//! has started cannot be recalled, so a cancel affects only requests that still wait.

mod completions;
#[cfg(test)]
mod tests;
pub(crate) mod transfer;
mod workers;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub(crate) use self::completions::CompletionQueue;
use self::workers::{QueuedRequest, Spawn, Workers};
use crate::base::fork::Origin;
use crate::base::health::Degradation;
use crate::driver::{IoRequest, QueueFull, Wait, WakeHandle};
use crate::io::op::OpKey;

/// The most threads of one driver; more would only wait for each other.
const THREADS_MAX: u32 = 64;
/// Capacity allocated at the start; deeper queues grow to their size once.
const ROOM_AT_FIRST: u32 = 1024;

/// Requests of one shard, executed by threads. Threads start for more requests than idle threads, and end after five idle seconds
/// or with the driver.
///
/// Dropping it waits for no thread. Requests that no thread has started are dropped, and their memory is never touched. A transfer
/// in progress continues, so its slot must leave the memory as it is.
pub(crate) struct ThreadsDriver {
    workers: Arc<Workers>,
    completions: Arc<CompletionQueue>,
    /// Submitted requests, which the next `complete` hands over together.
    buffered: Vec<QueuedRequest>,
    /// Results from the completion queue; empty between calls.
    taken: Vec<(OpKey, i32)>,
    depth: u32,
    /// Requests that were accepted and whose completion was not reported yet.
    unreported: u32,
    enters: u64,
    degraded: Vec<Degradation>,
    has_thread_refusal: bool,
    origin: Origin,
}

impl ThreadsDriver {
    /// Creates a driver for `depth` requests at a time. No thread starts before the first request, so this
    /// never fails; it returns a result because other drivers can fail.
    pub(crate) fn new(depth: u32) -> io::Result<ThreadsDriver> {
        Ok(ThreadsDriver::with_threads(depth, depth.clamp(1, THREADS_MAX), workers::spawn))
    }

    /// Creates a driver with at most `threads_max` threads whose completions signal an event descriptor.
    #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
    pub(crate) fn with_event(depth: u32, threads_max: u32, event: Arc<OwnedFd>) -> ThreadsDriver {
        ThreadsDriver::over(depth, depth.clamp(1, threads_max), workers::spawn, Some(event))
    }

    fn with_threads(depth: u32, threads_max: u32, spawn: Spawn) -> ThreadsDriver {
        ThreadsDriver::over(depth, threads_max, spawn, None)
    }

    fn over(depth: u32, threads_max: u32, spawn: Spawn, event: Option<Arc<OwnedFd>>) -> ThreadsDriver {
        let depth = depth.max(1);
        let room = depth.min(ROOM_AT_FIRST) as usize;
        let completions = Arc::new(CompletionQueue::new(room, event));
        ThreadsDriver {
            workers: Arc::new(Workers::new(threads_max as usize, room, completions.clone(), spawn)),
            completions,
            buffered: Vec::with_capacity(room),
            taken: Vec::with_capacity(room),
            depth,
            unreported: 0,
            enters: 0,
            degraded: Vec::new(),
            has_thread_refusal: false,
            origin: Origin::here(),
        }
    }

    /// # Safety
    /// As [`Driver::submit`](crate::driver::Driver::submit). If the driver is dropped first, the completion
    /// is never reported, and memory and file must stay as they are for ever.
    #[inline]
    pub(crate) unsafe fn submit(&mut self, request: &IoRequest) -> Result<bool, QueueFull> {
        if self.unreported >= self.depth {
            return Err(QueueFull);
        }
        self.unreported += 1;
        // SAFETY: the caller makes the promise that `QueuedRequest` requires.
        self.buffered.push(unsafe { QueuedRequest::new(*request) });
        Ok(request.sync.is_some())
    }

    /// Completes a request with `ECANCELED` if no thread has started it; any other runs to its end.
    pub(crate) fn cancel(&mut self, key: OpKey) {
        let buffered = self.buffered.iter().position(|queued| queued.key() == key);
        let taken_back = match buffered {
            Some(place) => {
                self.buffered.remove(place);
                true
            }
            None => self.workers.take_back(key),
        };
        if taken_back {
            self.completions.push(key, -libc::ECANCELED);
        }
    }

    /// Returns an error once, if the system refuses a thread; then `degradations` has a new entry.
    #[inline]
    pub(crate) fn complete(&mut self, wait: Wait, mut report: impl FnMut(OpKey, i32)) -> io::Result<()> {
        let waits = matches!(wait, Wait::For { completions: 1.., .. });
        self.enters += u64::from(waits || !self.buffered.is_empty());
        let mut told = Ok(());
        if !self.buffered.is_empty()
            && let Err(refusal) = Workers::hand_over(&self.workers, &mut self.buffered)
        {
            told = self.degrade(refusal);
        }
        self.completions.take(wait, &mut self.taken);
        self.unreported -= self.taken.len() as u32;
        for (key, result) in self.taken.drain(..) {
            report(key, result);
        }
        told
    }

    /// Records the first refusal only; later refusals would repeat it for every request. The error signals the new entry.
    #[cold]
    fn degrade(&mut self, refusal: io::Error) -> io::Result<()> {
        if std::mem::replace(&mut self.has_thread_refusal, true) {
            return Ok(());
        }
        self.degraded.push(Degradation::new(
            "I/O threads",
            format!("the system refused to start another thread: {refusal}"),
            "raise the limit of processes (ulimit -u, or pids.max of the control group)",
        ));
        Err(refusal)
    }

    #[inline]
    pub(crate) fn has_completions(&mut self) -> bool {
        self.completions.is_ready()
    }

    pub(crate) fn wake_handle(&self) -> WakeHandle {
        WakeHandle::Threads(self.completions.clone())
    }

    /// Registers nothing: for `pread` and `pwrite` all memory is alike.
    pub(crate) fn register_region(&mut self, _index: u16, _start: *mut u8, _len: usize) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn retire(&mut self) {}

    /// Returns the number of calls of `complete` that waited or handed requests over.
    pub(crate) fn enters(&self) -> u64 {
        self.enters
    }

    pub(crate) fn degradations(&mut self) -> Vec<Degradation> {
        std::mem::take(&mut self.degraded)
    }
}

impl Drop for ThreadsDriver {
    fn drop(&mut self) {
        // A forked child does not have the threads, and one of them may have held the lock at the fork.
        if !self.origin.is_elsewhere() {
            self.workers.close();
        }
    }
}
