//! The only code that talks to a device: io_uring, a pool of threads, native AIO for the workers of a runtime, or a simulated machine
//! behind one set of methods.

#[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
pub(crate) mod aio;
pub(crate) mod meta;
pub(crate) mod pool;
#[cfg(feature = "_sim")]
pub(crate) mod sim;
pub(crate) mod threads;
#[cfg(all(target_os = "linux", not(forebay_no_uring)))]
pub(crate) mod uring;

use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::time::Duration;

use crate::io::command::CommandEntry;
use crate::io::op::OpKey;
use crate::io::op::{Flush, OpKind};

/// Returns the most bytes of I/O memory that the rings of this process may register; `None` means no limit.
pub(crate) fn registered_bytes_max() -> Option<u64> {
    #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
    return uring::memlock::allowance();
    #[cfg(not(all(target_os = "linux", not(forebay_no_uring))))]
    None
}

/// One request to the device. The slot that `key` names owns the memory and the file until the completion is
/// seen.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    any(not(target_os = "linux"), forebay_no_uring),
    allow(dead_code, reason = "only rings register files and memory, and only Linux has the flags")
)]
pub struct IoRequest {
    /// The name of the slot, which the completion names again.
    pub key: OpKey,
    /// The kind of the operation.
    pub kind: OpKind,
    /// The number of the open file.
    pub fd: RawFd,
    /// The file's index in the driver's table of registered files.
    pub(crate) fixed_file: Option<u32>,
    pub(crate) memory: Option<NonNull<u8>>,
    /// The arena region that contains the memory.
    pub(crate) region: Option<u16>,
    /// The bytes to move.
    pub len: u32,
    /// The place in the file.
    pub offset: u64,
    /// `RWF_*` of preadv2(2).
    pub(crate) rw_flags: i32,
    /// The file's route through the driver, as returned by [`Driver::register_file`]; 0 is the ordinary one.
    pub(crate) route: u32,
    /// For a write: the sync that follows it, which the driver may perform together with the write; see
    /// `Driver::submit`.
    pub sync: Option<OpKind>,
    /// Whether the calling thread performs a write with a sync itself.
    pub flush: Flush,
}

/// The longest stay of a turn in the driver.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// Only reaps the completions that are there.
    Poll,
    /// Waits for `completions`. After `patience` one is enough, and the wait ends at the latest when `limit` has passed.
    /// `in_flight` is the number of all requests in flight.
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

/// The route through a driver that a file requests for its operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Route {
    #[default]
    Ordinary,
    /// Polls for the completions of reads and writes, where the kernel supports that, in parts of at most
    /// `bytes_max`.
    Polled { bytes_max: u32 },
    /// Sends commands to an NVMe namespace, without a block layer in between.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "namespaces are opened on Linux only"))]
    Nvme(NvmeTarget),
}

/// The properties of a namespace that its commands depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NvmeTarget {
    /// The namespace's number.
    pub(crate) id: u32,
    /// The binary logarithm of the block size: blocks are `1 << block_shift` bytes.
    pub(crate) block_shift: u8,
    pub(crate) writable: bool,
    /// Completions are polled for.
    pub(crate) polled: bool,
    /// The most bytes in one command.
    pub(crate) bytes_max: u32,
    /// The first block of the open part of the namespace, and the part's length. Its end may lie inside a
    /// block.
    pub(crate) first_block: u64,
    pub(crate) bytes: u64,
}

/// The driver's reply about a file that was registered with it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FileRegistration {
    /// The file is in the driver's own table, at the given index.
    pub(crate) fixed: bool,
    /// The file's route, 0 for the ordinary one.
    pub(crate) route: u32,
    /// The driver has set up something for the file: regions must be registered anew, and new degradations
    /// may be pending.
    pub(crate) is_news: bool,
}

/// The result of a request that must use the ordinary route, because its file or device turned out not to support polling. No errno
/// is this large.
pub(crate) const NOT_POLLABLE: i32 = i32::MIN;

/// Counters of completion polling.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PollCounts {
    /// Requests that were polled for.
    pub(crate) requests: u64,
    /// Polls of the devices, and the number of those that found nothing.
    pub(crate) polls: u64,
    pub(crate) empty: u64,
}

/// The error of a full driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

/// One of the ways to a device. An enum, so that the hot path has no indirect call.
#[allow(clippy::large_enum_variant, reason = "one a shard, and a box would be an indirection in every call")]
pub(crate) enum Driver {
    #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
    Uring(uring::UringDriver),
    Threads(threads::ThreadsDriver),
    #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
    Aio(aio::AioDriver),
    #[cfg(feature = "_sim")]
    Sim(sim::SimDriver),
}

/// Calls the same method on the driver in use.
macro_rules! each {
    ($self:expr, $driver:ident => $call:expr) => {
        match $self {
            #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
            Driver::Uring($driver) => $call,
            Driver::Threads($driver) => $call,
            #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
            Driver::Aio($driver) => $call,
            #[cfg(feature = "_sim")]
            Driver::Sim($driver) => $call,
        }
    };
}

impl Driver {
    /// Queues a request; it may reach the device only with the next [`complete`](Self::complete).
    ///
    /// Returns `Ok(true)` for a write whose sync the driver performs too. It has one completion. Its result is 0 if all bytes were
    /// written and synced. A positive count means that this many bytes were written, and that the rest was not done, the sync
    /// included. Returns `Ok(false)` otherwise: the driver accepted only the write.
    ///
    /// # Safety
    /// The memory and the file must stay valid until the completion for `key` was reported.
    #[inline]
    pub(crate) unsafe fn submit(&mut self, request: &IoRequest) -> Result<bool, QueueFull> {
        // SAFETY: the caller's promise is passed on unchanged.
        each!(self, driver => unsafe { driver.submit(request) })
    }

    /// Queues a command. Returns false if this driver does not support commands.
    ///
    /// # Safety
    /// The descriptor, and all that the command uses, must stay valid until the completion for `key` was reported.
    pub(crate) unsafe fn submit_command(
        &mut self,
        key: OpKey,
        entry: &CommandEntry,
    ) -> Result<bool, QueueFull> {
        match self {
            #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
            // SAFETY: the caller's promise is passed on unchanged.
            Driver::Uring(driver) => unsafe { driver.submit_command(key, entry) }.map(|()| true),
            _ => {
                let _ = (key, entry);
                Ok(false)
            }
        }
    }

    /// Returns whether the driver carries out commands: its ring belongs to one task, and runs the kernel's deferred work of that
    /// task only where the task enters it.
    pub(crate) fn takes_commands(&self) -> bool {
        match self {
            #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
            Driver::Uring(driver) => driver.takes_commands(),
            _ => false,
        }
    }

    /// Requests an early end of an operation; it still completes, perhaps with success.
    pub(crate) fn cancel(&mut self, key: OpKey) {
        each!(self, driver => driver.cancel(key))
    }

    /// Submits the queued requests, waits as `wait` specifies, and reports completions as (key, bytes or
    /// negative errno).
    #[inline]
    pub(crate) fn complete(&mut self, wait: Wait, report: impl FnMut(OpKey, i32)) -> std::io::Result<()> {
        each!(self, driver => driver.complete(wait, report))
    }

    /// Returns true as soon as `complete` would report something; costs a few loads.
    #[inline]
    pub(crate) fn has_completions(&mut self) -> bool {
        each!(self, driver => driver.has_completions())
    }

    /// Returns the handle with which other threads end a wait.
    pub(crate) fn wake_handle(&self) -> WakeHandle {
        each!(self, driver => driver.wake_handle())
    }

    /// Registers a file: in the driver's own table at `index`, if the driver has one, and with the requested
    /// route, if that is available.
    pub(crate) fn register_file(&mut self, index: u32, fd: RawFd, route: Route) -> FileRegistration {
        match self {
            #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
            Driver::Uring(driver) => driver.register_file(index, fd, route),
            #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
            Driver::Aio(driver) => driver.register_file(index, fd),
            // These drivers have neither a table nor a second route.
            _ => {
                let _ = (index, fd, route);
                FileRegistration::default()
            }
        }
    }

    /// Removes a file from the table, and its route. No slot and no queued request may name it any more.
    pub(crate) fn unregister_file(&mut self, index: u32, route: u32) {
        match self {
            #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
            Driver::Uring(driver) => driver.unregister_file(index, route),
            #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
            Driver::Aio(driver) => driver.unregister_file(index),
            _ => {
                let _ = (index, route);
            }
        }
    }

    /// Returns whether anything is in flight whose completion sends no wake-up. Then the shard must not
    /// sleep.
    #[inline]
    pub(crate) fn is_polling(&self) -> bool {
        match self {
            #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
            Driver::Uring(driver) => driver.is_polling(),
            _ => false,
        }
    }

    /// Returns the counters of completion polling, for the statistics.
    pub(crate) fn poll_counts(&self) -> PollCounts {
        match self {
            #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
            Driver::Uring(driver) => driver.poll_counts(),
            _ => PollCounts::default(),
        }
    }

    /// Registers an arena region with the device path; the error is the reason why it stays unregistered.
    pub(crate) fn register_region(&mut self, index: u16, start: *mut u8, len: usize) -> std::io::Result<()> {
        each!(self, driver => driver.register_region(index, start, len))
    }

    /// Releases the arena's regions, with nothing in flight any more. The handles with which other threads
    /// wake this driver may outlive it and must not keep memory.
    pub(crate) fn retire(&mut self) {
        each!(self, driver => driver.retire())
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
            Driver::Uring(_) => "uring",
            Driver::Threads(_) => "threads",
            #[cfg(all(feature = "tokio", target_os = "linux", not(forebay_no_uring)))]
            Driver::Aio(_) => "aio",
            #[cfg(feature = "_sim")]
            Driver::Sim(_) => "sim",
        }
    }

    /// Returns the number of system calls made to enter the device path, for the statistics.
    pub(crate) fn enters(&self) -> u64 {
        each!(self, driver => driver.enters())
    }

    /// Returns the new degradations, as (what, why, remedy).
    pub(crate) fn degradations(&mut self) -> Vec<crate::base::health::Degradation> {
        each!(self, driver => driver.degradations())
    }
}

/// Ends a shard's wait from any thread, also after the shard's end.
#[derive(Clone)]
pub(crate) enum WakeHandle {
    #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
    Uring(std::sync::Arc<uring::UringWake>),
    Threads(std::sync::Arc<threads::CompletionQueue>),
    #[cfg(feature = "_sim")]
    Sim(std::sync::Arc<sim::SimWake>),
    /// Calls a function; for a shard without a thread.
    #[cfg(any(
        feature = "_sim",
        all(feature = "tokio", target_os = "linux", not(forebay_no_uring)),
        all(test, forebay_loom)
    ))]
    Call(std::sync::Arc<dyn Fn() + Send + Sync>),
}

impl WakeHandle {
    pub(crate) fn wake(&self) {
        match self {
            #[cfg(all(target_os = "linux", not(forebay_no_uring)))]
            WakeHandle::Uring(wake) => wake.wake(),
            WakeHandle::Threads(queue) => queue.wake(),
            #[cfg(feature = "_sim")]
            WakeHandle::Sim(wake) => wake.wake(),
            #[cfg(any(
                feature = "_sim",
                all(feature = "tokio", target_os = "linux", not(forebay_no_uring)),
                all(test, forebay_loom)
            ))]
            WakeHandle::Call(call) => call(),
        }
    }
}
