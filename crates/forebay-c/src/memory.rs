//! Memory of the caller that operations have.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use std::{ptr, slice};

use forebay::IoMemory;

use crate::instance::lock;
use crate::op::Op;

/// The one that is notified when the engine has given memory back.
enum Lender {
    /// An operation that was submitted: it ends then.
    Op(Arc<Op>),
    /// A thread in a blocking call.
    Thread(Arc<Return>),
}

/// Memory of the caller, as the engine has it. Its drop, on any thread, reports that neither the engine nor the kernel will touch
/// the memory again: when the operation returns it, or when a request that was given up is done.
#[derive(Default)]
pub(crate) struct CallerMemory {
    start: AtomicPtr<u8>,
    len: usize,
    lender: Option<Lender>,
}

impl CallerMemory {
    /// Lends memory to the operation.
    ///
    /// # Safety
    /// From `start` on `len` bytes are valid for the operation, to be read or written, and are touched by no one else before
    /// the operation has ended.
    pub(crate) unsafe fn of_op(start: *mut u8, len: usize, op: Arc<Op>) -> CallerMemory {
        CallerMemory { start: AtomicPtr::new(start), len, lender: Some(Lender::Op(op)) }
    }

    /// Lends memory to a call of the thread.
    ///
    /// # Safety
    /// As [`of_op`](Self::of_op), until the return says so.
    pub(crate) unsafe fn of_thread(start: *mut u8, len: usize, back: Arc<Return>) -> CallerMemory {
        CallerMemory { start: AtomicPtr::new(start), len, lender: Some(Lender::Thread(back)) }
    }
}

// SAFETY: the bytes do not move, and C promises that they are valid and that no one else touches them until the report of the drop
// (`of_op`, `of_thread`). A write's bytes are only read, those of a read only written, so neither needs more of them. A default
// value has no bytes.
unsafe impl IoMemory for CallerMemory {
    // The report acquires locks that are held for a few instructions and never across a call of the engine's or the program's.
    const DROPS_ANYWHERE: bool = true;

    fn memory(&mut self) -> (*mut u8, usize) {
        (*self.start.get_mut(), self.len)
    }
}

impl Drop for CallerMemory {
    fn drop(&mut self) {
        match self.lender.take() {
            Some(Lender::Op(op)) => op.memory_back(),
            Some(Lender::Thread(back)) => back.set(),
            None => {}
        }
    }
}

/// The return of the memory of one blocking call.
#[derive(Default)]
pub(crate) struct Return {
    state: Mutex<ReturnState>,
    changed: Condvar,
}

#[derive(Default)]
struct ReturnState {
    is_back: bool,
    /// The thread of the call has waited for it.
    is_awaited: bool,
}

impl Return {
    fn set(&self) {
        let is_awaited = {
            let mut state = lock(&self.state);
            state.is_back = true;
            state.is_awaited
        };
        // A notification is a system call also where nothing waits, as in nearly every call: its own thread returns the memory.
        if is_awaited {
            self.changed.notify_all();
        }
    }

    /// Waits until the memory is back, at most for the time of `patience`, and returns whether it is.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        let mut state = lock(&self.state);
        if state.is_back {
            return true;
        }
        state.is_awaited = true;
        let waited = self.changed.wait_timeout_while(state, patience, |state| !state.is_back);
        waited.unwrap_or_else(std::sync::PoisonError::into_inner).0.is_back
    }
}

/// Memory of the caller that only the thread that polls a batch fills.
pub(crate) struct Destination {
    start: AtomicPtr<u8>,
    len: usize,
}

impl Destination {
    /// Returns memory to fill.
    ///
    /// # Safety
    /// From `start` on `len` bytes are valid for writes, and are touched by no one else before the operation has ended.
    pub(crate) unsafe fn new(start: *mut u8, len: usize) -> Destination {
        Destination { start: AtomicPtr::new(start), len }
    }

    /// Copies the bytes to the start, as far as they fit, and returns how many.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.len);
        if len > 0 {
            // SAFETY: at least `len` bytes are there (`new`); the engine's memory, which contains `bytes`, never overlaps with the
            // caller's.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.load(Ordering::Relaxed), len) };
        }
        len
    }
}

/// Returns memory of the caller as bytes.
///
/// # Safety
/// From `start` on `len` bytes, at most `isize::MAX`, are valid for reads and stay as they are until the end of `'a`.
pub(crate) unsafe fn bytes<'a>(start: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(start, len) }
}
