//! The global allocator of this program: the system's, with a count that a sample may switch on.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static COUNTING: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Counts allocations and reallocations while counting is on. Off by default: a shared counter would slow down peers
/// that allocate from several threads, and their figures would no longer be theirs.
#[derive(Debug)]
pub(crate) struct CountingAllocator;

/// Starts to count, for the rest of this process.
pub(crate) fn start_counting() {
    COUNTING.store(true, Ordering::Relaxed);
}

/// Allocations counted so far in this process.
pub(crate) fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Whether allocations are counted in this process.
pub(crate) fn is_counting() -> bool {
    COUNTING.load(Ordering::Relaxed)
}

#[inline]
fn note() {
    if COUNTING.load(Ordering::Relaxed) {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches two atomics only.
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
