//! The only code that talks to a device, behind the same five words: submit, complete, cancel, wake, close.

pub(crate) mod meta;
pub(crate) mod pool;
#[cfg(feature = "sim")]
pub(crate) mod sim;
pub(crate) mod threads;
#[cfg(all(target_os = "linux", not(forebay_no_uring)))]
pub(crate) mod uring;

use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::time::Duration;

use crate::op::{Flush, OpKind};
use crate::shard::optable::OpKey;

/// One request to the device. The slot that `key` names owns the memory and the file until the completion is seen.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    any(not(target_os = "linux"), forebay_no_uring),
    allow(dead_code, reason = "only rings register files and memory, and only Linux has the flags")
)]
pub(crate) struct IoRequest {
    pub(crate) key: OpKey,
    pub(crate) kind: OpKind,
    pub(crate) fd: RawFd,
    /// The file's place in the driver's table of registered files.
    pub(crate) fixed_file: Option<u32>,
    pub(crate) memory: Option<NonNull<u8>>,
    /// The arena region that the memory lies in.
    pub(crate) region: Option<u16>,
    pub(crate) len: u32,
    pub(crate) offset: u64,
    /// `RWF_*` of preadv2(2).
    pub(crate) rw_flags: i32,
    /// Of a write: the sync that follows it, which the driver may take along; see [`Driver::submit`].
    pub(crate) sync: Option<OpKind>,
    /// Whether the calling thread is to make a write with a sync itself.
    pub(crate) flush: Flush,
}

/// How long a turn may stay in the driver.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// Only reap what is there.
    Poll,
    /// Until `completions` are there; after `patience` one is enough; at the latest until `limit` has passed.
    For { completions: u32, patience: Option<Duration>, limit: Option<Duration> },
}

/// Why the driver took no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

/// One of the ways to a device. An enum, so that the hot path has no indirect call.
#[allow(clippy::large_enum_variant, reason = "one a shard, and a box would be an indirection in every call")]
pub(crate) enum Driver {
    #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
    Uring(uring::UringDriver),
    Threads(threads::ThreadsDriver),
    #[cfg(feature = "sim")]
    Sim(sim::SimDriver),
}

/// Calls the same method on whichever driver there is.
macro_rules! each {
    ($self:expr, $driver:ident => $call:expr) => {
        match $self {
            #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
            Driver::Uring($driver) => $call,
            Driver::Threads($driver) => $call,
            #[cfg(feature = "sim")]
            Driver::Sim($driver) => $call,
        }
    };
}

impl Driver {
    /// Queues a request; it may reach the device only with the next [`complete`](Self::complete).
    ///
    /// `Ok(true)` for a write with a sync: the sync was taken along. There is one completion, and 0 says that all was
    /// written and synced, a count that so much was written and the rest, the sync included, was not done. `Ok(false)`
    /// otherwise: only the write was taken.
    ///
    /// # Safety
    /// The memory and the file must stay valid until the completion for `key` was reported.
    #[inline]
    pub(crate) unsafe fn submit(&mut self, request: &IoRequest) -> Result<bool, QueueFull> {
        // SAFETY: the caller's promise is passed on unchanged.
        each!(self, driver => unsafe { driver.submit(request) })
    }

    /// Asks for an operation to end early; it still completes, perhaps with success.
    pub(crate) fn cancel(&mut self, key: OpKey) {
        each!(self, driver => driver.cancel(key))
    }

    /// Hands queued requests over, waits as told, and reports completions as (key, bytes or negative errno).
    #[inline]
    pub(crate) fn complete(&mut self, wait: Wait, report: impl FnMut(OpKey, i32)) -> std::io::Result<()> {
        each!(self, driver => driver.complete(wait, report))
    }

    /// True as soon as `complete` would report something; costs a few loads.
    #[inline]
    pub(crate) fn has_completions(&mut self) -> bool {
        each!(self, driver => driver.has_completions())
    }

    /// What other threads use to end a wait.
    pub(crate) fn wake_handle(&self) -> WakeHandle {
        each!(self, driver => driver.wake_handle())
    }

    /// Puts a file into the driver's own table at `index`; false when it goes by its descriptor instead.
    pub(crate) fn register_file(&mut self, index: u32, fd: RawFd) -> bool {
        each!(self, driver => driver.register_file(index, fd))
    }

    /// Takes a file out of the table. No slot and no queued request may name it any more.
    pub(crate) fn unregister_file(&mut self, index: u32) {
        each!(self, driver => driver.unregister_file(index))
    }

    /// Makes an arena region known to the device path; the error says why it goes unregistered.
    pub(crate) fn register_region(&mut self, index: u16, start: *mut u8, len: usize) -> std::io::Result<()> {
        each!(self, driver => driver.register_region(index, start, len))
    }

    /// Lets go of the arena's regions, with nothing in flight any more: what other threads hold to wake this driver
    /// may outlive it and must not keep memory.
    pub(crate) fn retire(&mut self) {
        each!(self, driver => driver.retire())
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
            Driver::Uring(_) => "uring",
            Driver::Threads(_) => "threads",
            #[cfg(feature = "sim")]
            Driver::Sim(_) => "sim",
        }
    }

    /// System calls made to enter the device path, for the statistics.
    pub(crate) fn enters(&self) -> u64 {
        each!(self, driver => driver.enters())
    }

    /// What works worse than it could, as (what, why, remedy).
    pub(crate) fn degradations(&mut self) -> Vec<crate::health::Degradation> {
        each!(self, driver => driver.degradations())
    }
}

/// Ends a shard's wait from any thread, also after the shard is gone.
#[derive(Clone)]
pub(crate) enum WakeHandle {
    #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
    Uring(std::sync::Arc<uring::UringWake>),
    Threads(std::sync::Arc<threads::CompletionQueue>),
    #[cfg(feature = "sim")]
    Sim(std::sync::Arc<sim::SimWake>),
}

impl WakeHandle {
    pub(crate) fn wake(&self) {
        match self {
            #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
            WakeHandle::Uring(wake) => wake.wake(),
            WakeHandle::Threads(queue) => queue.wake(),
            #[cfg(feature = "sim")]
            WakeHandle::Sim(wake) => wake.wake(),
        }
    }
}
