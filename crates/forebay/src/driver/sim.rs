//! The driver of a simulated world: requests are passed to its machine, and nothing blocks but virtual time.
//!
//! The memory of a read is filled when the read *completes*; that of a write is read then, or at submission,
//! as by a device with DMA. If the core releases memory too early, the memory's contents then show it.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use crate::base::health::Degradation;
use crate::device::{Alignment, Device};
use crate::driver::{IoRequest, QueueFull, Wait, WakeHandle};
use crate::io::op::OpKey;

/// Memory that a simulated device reads or writes while an operation is in flight.
#[derive(Debug)]
pub struct Transfer {
    memory: NonNull<u8>,
    len: usize,
}

impl Transfer {
    /// # Safety
    /// The memory stays readable and writable until the operation's completion was reported, or for ever if
    /// it never is. No other code accesses it meanwhile.
    pub(crate) unsafe fn new(memory: NonNull<u8>, len: usize) -> Transfer {
        Transfer { memory, len }
    }

    /// Wraps the memory of a test, which lives as long as the process and is accessed on one thread.
    pub fn of(memory: &'static [std::cell::Cell<u8>]) -> Transfer {
        Transfer { memory: NonNull::from(memory).cast(), len: memory.len() }
    }

    /// Returns its length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no transfer is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the address range, to check whether two operations share memory. Never part of a history:
    /// addresses differ between runs.
    pub fn as_range(&self) -> Range<usize> {
        let start = self.memory.as_ptr() as usize;
        start..start + self.len
    }

    /// Writes `bytes` at `at`, as far as they fit.
    pub fn fill(&mut self, at: usize, bytes: &[u8]) {
        let at = at.min(self.len);
        let len = bytes.len().min(self.len - at);
        // SAFETY: the range is inside the memory, which `new`'s caller keeps valid; the source is a reference
        // and so elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.as_ptr().add(at), len) };
    }

    /// Reads into `out` from `at` on, to the end of the memory.
    pub fn copy_to(&self, at: usize, out: &mut [u8]) {
        let at = at.min(self.len);
        let len = out.len().min(self.len - at);
        // SAFETY: as in `fill`.
        unsafe { std::ptr::copy_nonoverlapping(self.memory.as_ptr().add(at), out.as_mut_ptr(), len) };
    }
}

/// A file of a simulated machine; dropping it closes it there.
#[derive(Debug)]
pub struct SimFile {
    /// The number by which the machine knows it.
    pub number: u32,
    /// The alignment of its operations.
    pub alignment: Alignment,
    /// The disk that it is on.
    pub device: Arc<Device>,
    /// The number of that disk.
    pub device_number: u64,
    /// Numbers of closed files, queued for the machine: a destructor may run while the machine is at work.
    pub closed: Arc<Mutex<Vec<u32>>>,
    /// `/dev/null`, for callers that need a descriptor.
    pub null: Arc<OwnedFd>,
}

impl SimFile {
    pub(crate) fn raw(&self) -> RawFd {
        self.number as RawFd
    }
}

impl AsFd for SimFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.null.as_fd()
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
    }
}

/// The machine of a simulated world, as its shards' drivers see it: one port per driver.
pub trait SimMachine {
    /// Makes a port and returns its number.
    fn add_port(&self) -> usize;

    /// Starts an operation, whose memory is `transfer`. Returns whether it is a write that will be durable when it completes,
    /// without its sync; its result is 0 then if all bytes were written.
    fn submit(&self, port: usize, request: &IoRequest, transfer: Option<Transfer>) -> bool;

    /// Tries to end an operation early.
    fn cancel(&self, port: usize, key: OpKey);

    /// Lets virtual time pass until `completions` operations of the port are complete, or the limit has
    /// passed.
    fn wait_for(&self, port: usize, completions: usize, limit: Option<Duration>);

    /// Returns how many completions of the port are there.
    fn done_count(&self, port: usize) -> usize;

    /// Returns the port's completions since the last call.
    fn take_done(&self, port: usize) -> VecDeque<(OpKey, i32)>;
}

/// The driver with which one shard reaches its world's machine.
pub(crate) struct SimDriver {
    hub: Rc<dyn SimMachine>,
    port: usize,
    wake: Arc<SimWake>,
    enters: u64,
}

impl SimDriver {
    pub(crate) fn new(hub: Rc<dyn SimMachine>, wake: Arc<SimWake>) -> SimDriver {
        let port = hub.add_port();
        SimDriver { hub, port, wake, enters: 0 }
    }

    /// Returns the shard's port number, its index among the shards of the world.
    pub(crate) fn port(&self) -> usize {
        self.port
    }

    /// # Safety
    /// As [`Driver::submit`](crate::driver::Driver::submit).
    #[inline]
    pub(crate) unsafe fn submit(&mut self, request: &IoRequest) -> Result<bool, QueueFull> {
        // SAFETY: the caller keeps the memory until the completion was reported; the machine drops all unreported operations before
        // the memory can be freed (see `Hub::kill` in `forebay-sim`).
        let transfer = request.memory.map(|memory| unsafe { Transfer::new(memory, request.len as usize) });
        // Without FUA write and sync are two steps here, so that a power cut may fall between them.
        Ok(self.hub.submit(self.port, request, transfer))
    }

    pub(crate) fn cancel(&mut self, key: OpKey) {
        self.hub.cancel(self.port, key);
    }

    /// Waits in virtual time: the world advances to the next completion of this shard. Shards that wait in
    /// their turns never get here, as the world steps them; a shard that is ending does.
    pub(crate) fn complete(&mut self, wait: Wait, mut report: impl FnMut(OpKey, i32)) -> io::Result<()> {
        if let Wait::For { completions, limit, .. } = wait {
            self.hub.wait_for(self.port, completions as usize, limit);
        }
        self.enters += 1;
        for (key, result) in self.hub.take_done(self.port) {
            report(key, result);
        }
        Ok(())
    }

    pub(crate) fn has_completions(&mut self) -> bool {
        self.hub.done_count(self.port) > 0
    }

    pub(crate) fn wake_handle(&self) -> WakeHandle {
        WakeHandle::Sim(self.wake.clone())
    }

    pub(crate) fn register_region(&mut self, _index: u16, _start: *mut u8, _len: usize) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn retire(&mut self) {}

    pub(crate) fn enters(&self) -> u64 {
        self.enters
    }

    pub(crate) fn degradations(&mut self) -> Vec<Degradation> {
        Vec::new()
    }
}

/// Notifies the world that a shard has news. It also records wake-ups from another thread, which no seed
/// could repeat.
#[derive(Debug)]
pub struct SimWake {
    woken: AtomicBool,
    thread: ThreadId,
    /// Shared by all shards of a world.
    foreign: Arc<AtomicBool>,
}

impl SimWake {
    /// Returns a `SimWake` that sets `foreign` when another thread wakes it.
    pub fn new(foreign: Arc<AtomicBool>) -> SimWake {
        SimWake { woken: AtomicBool::new(false), thread: std::thread::current().id(), foreign }
    }

    /// Notifies the world.
    pub fn wake(&self) {
        if std::thread::current().id() != self.thread {
            self.foreign.store(true, Ordering::SeqCst);
        }
        self.woken.store(true, Ordering::SeqCst);
    }

    /// Returns whether it was woken, and consumes the wake-up.
    pub fn take(&self) -> bool {
        self.woken.swap(false, Ordering::SeqCst)
    }

    /// Returns whether it was woken.
    pub fn is_woken(&self) -> bool {
        self.woken.load(Ordering::SeqCst)
    }
}
