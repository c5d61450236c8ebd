//! Heap allocations of one thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// `None`: this thread's allocations are not counted.
    static COUNT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The system's allocator with a counter per thread, for `#[global_allocator]`.
#[derive(Debug)]
pub struct CountingAllocator;

fn count() {
    let _ = COUNT.try_with(|count| count.set(count.get().map(|counted| counted + 1)));
}

// SAFETY: all calls are passed to the system's allocator unchanged; counting touches a plain thread-local.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of this function, which is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of this function, which is that of the system's allocator.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of this function, which is that of the system's allocator.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of this function, which is that of the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Starts to count this thread's allocations from this number on, or stops. Returns the count until now, or `None` if counting was
/// off. Nothing is counted where [`CountingAllocator`] is not the global allocator.
pub fn set(count: Option<u64>) -> Option<u64> {
    COUNT.replace(count)
}

/// Returns the output of `future`, and the allocations of this thread until it completed. A task that moves to
/// another thread meanwhile has `u64::MAX`.
pub async fn during<F: Future>(future: F) -> (F::Output, u64) {
    set(Some(0));
    let output = future.await;
    (output, set(None).unwrap_or(u64::MAX))
}
