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

use crate::io::op::OpKey;
use crate::io::op::{Flush, OpKind};

/// The most bytes of I/O memory that rings of this process may have registered; `None`: as many as there are.
pub(crate) fn registered_bytes_max() -> Option<u64> {
    #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
    return uring::memlock::allowance();
    #[cfg(not(all(target_os = "linux", not(forebay_no_uring))))]
    None
}

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
    /// The file's way through the driver, as [`Driver::register_file`] told; 0 is the ordinary one.
    pub(crate) route: u32,
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
    /// Until `completions` are there; after `patience` one is enough; at the latest until `limit` has passed. `in_flight`
    /// requests are under way in all.
    For {
        completions: u32,
        patience: Option<Duration>,
        limit: Option<Duration>,
        #[cfg_attr(
            any(not(target_os = "linux"), forebay_no_uring),
            expect(dead_code, reason = "a second ring asks")
        )]
        in_flight: u32,
    },
}

/// The way through a driver that a file wants for its operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Route {
    #[default]
    Ordinary,
    /// Reads and writes are polled for, where the kernel does that, in parts of at most so many bytes.
    Polled { bytes_max: u32 },
    /// As commands to an NVMe namespace, without a block layer in between.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "namespaces are opened on Linux only"))]
    Nvme(NvmeTarget),
}

/// What commands to a namespace need to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NvmeTarget {
    /// The namespace's number.
    pub(crate) id: u32,
    /// Its blocks are `1 << block_shift` bytes.
    pub(crate) block_shift: u8,
    pub(crate) writable: bool,
    /// Completions are polled for.
    pub(crate) polled: bool,
    /// The most bytes of one command.
    pub(crate) bytes_max: u32,
    /// Where the part of it that is open begins, and how long that is. The end may lie inside of a block.
    pub(crate) first_block: u64,
    pub(crate) bytes: u64,
}

/// What a driver answers about a file that it knows from now on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    /// It is in the driver's own table at the index that was given.
    pub(crate) fixed: bool,
    /// Its way, 0 for the ordinary one.
    pub(crate) route: u32,
    /// The driver has begun something for it: regions must be registered anew, and degradations may wait to be told.
    pub(crate) is_news: bool,
}

/// The result of a request that must go the ordinary way: its file or device cannot be polled after all. No errno is this
/// large.
pub(crate) const NOT_POLLABLE: i32 = i32::MIN;

/// What polling did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PollCounts {
    /// Requests that were polled for.
    pub(crate) requests: u64,
    /// Looks at the devices, and those of them that found nothing.
    pub(crate) polls: u64,
    pub(crate) empty: u64,
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

    /// Makes a file known: in the driver's own table at `index`, if it has one, and with the way that it wants, if there
    /// is that way.
    pub(crate) fn register_file(&mut self, index: u32, fd: RawFd, route: Route) -> Known {
        match self {
            #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
            Driver::Uring(driver) => driver.register_file(index, fd, route),
            // These have neither a table nor a second way.
            _ => {
                let _ = (index, fd, route);
                Known::default()
            }
        }
    }

    /// Takes a file out of the table, and its way from it. No slot and no queued request may name it any more.
    pub(crate) fn unregister_file(&mut self, index: u32, route: u32) {
        match self {
            #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
            Driver::Uring(driver) => driver.unregister_file(index, route),
            _ => {
                let _ = (index, route);
            }
        }
    }

    /// Is anything in flight that wakes nobody when it is over? Then the shard must not sleep.
    #[inline]
    pub(crate) fn is_polling(&self) -> bool {
        match self {
            #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
            Driver::Uring(driver) => driver.is_polling(),
            _ => false,
        }
    }

    /// What polling did, for the statistics.
    pub(crate) fn poll_counts(&self) -> PollCounts {
        match self {
            #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
            Driver::Uring(driver) => driver.poll_counts(),
            _ => PollCounts::default(),
        }
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
    pub(crate) fn degradations(&mut self) -> Vec<crate::base::health::Degradation> {
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
