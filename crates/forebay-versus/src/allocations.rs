//! The global allocator of this program: the system's, with a count that a sample may switch on.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The threads whose allocations are counted: none, the watched ones, or all.
static COUNTING: AtomicU8 = AtomicU8::new(NOBODY);
static COUNT: AtomicU64 = AtomicU64::new(0);

const NOBODY: u8 = 0;
const WATCHED: u8 = 1;
const EVERYBODY: u8 = 2;

thread_local! {
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// Counts allocations and reallocations while counting is on. Off by default: a shared counter would slow
/// down peers that allocate from several threads, and their figures would no longer be theirs.
#[derive(Debug)]
pub(crate) struct CountingAllocator;

/// Starts to count the allocations of all threads, for the rest of this process.
pub(crate) fn start_counting() {
    COUNTING.store(EVERYBODY, Ordering::Relaxed);
}

/// Starts to count the allocations of this thread, for the rest of this process. Other threads pay for a
/// check of their own flag.
pub(crate) fn watch_this_thread() {
    IS_WATCHED.set(true);
    COUNTING.store(WATCHED, Ordering::Relaxed);
}

/// Returns the allocations counted so far in this process.
pub(crate) fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Returns whether allocations are counted in this process.
pub(crate) fn is_counting() -> bool {
    COUNTING.load(Ordering::Relaxed) != NOBODY
}

#[inline]
fn note() {
    let counts = match COUNTING.load(Ordering::Relaxed) {
        NOBODY => false,
        // A thread that ends may allocate after its flag is gone; it is no longer watched then.
        WATCHED => IS_WATCHED.try_with(Cell::get).unwrap_or(false),
        _ => true,
    };
    if counts {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches atomics and a plain thread-local only.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promises for `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System` with this layout, because every allocation here does.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promises for `layout` are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note();
        // SAFETY: `ptr` came from `System` with this layout, and the caller's promises for `new_size` are passed on.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
