//! Page-aligned memory, and the preparation of its pages.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;

const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;
/// From this size on memory starts at a huge page.
const LARGE_BYTES: usize = 4 * HUGE_PAGE;
/// A slower huge page costs more than small pages: a virtual machine whose host has to find the memory (0.1 ms at best, 4.6 ms
/// measured there).
const HUGE_LIMIT: Duration = Duration::from_micros(800);
/// Small pages after such a huge one, until the next is tried.
const SMALL_BYTES: usize = 512 << 20;
/// Memory that starts at a page, so that devices can write into it without a copy; from 8 MiB on at a huge page.
pub(crate) struct AlignedMemory {
    start: NonNull<u8>,
    len: usize,
    layout: Layout,
}

// SAFETY: nothing but a piece of memory; its users see to who writes when, as with every buffer of Python.
unsafe impl Send for AlignedMemory {}
// SAFETY: as above.
unsafe impl Sync for AlignedMemory {}

impl AlignedMemory {
    /// Allocates `len` bytes, which are not initialised unless `zeroed`.
    pub(crate) fn new(len: usize, zeroed: bool) -> PyResult<Arc<AlignedMemory>> {
        let is_large = len >= LARGE_BYTES;
        let layout = Layout::from_size_align(len.max(1), if is_large { HUGE_PAGE } else { PAGE });
        let layout = layout.map_err(|_| PyMemoryError::new_err(format!("no memory has {len} bytes")))?;
        // SAFETY: the layout has a length.
        let start = unsafe { std::alloc::alloc(layout) };
        let Some(start) = NonNull::new(start) else {
            return Err(PyMemoryError::new_err(format!("there is no memory for {len} bytes")));
        };
        let aligned = AlignedMemory { start, len, layout };
        if is_large {
            aligned.advise(0, len, libc::MADV_HUGEPAGE);
        }
        if zeroed {
            // SAFETY: as long as the allocation.
            unsafe { start.as_ptr().write_bytes(0, len) };
        }
        Ok(Arc::new(aligned))
    }

    /// Returns new memory with these bytes.
    pub(crate) fn of(bytes: &[u8]) -> PyResult<Arc<AlignedMemory>> {
        let aligned = AlignedMemory::new(bytes.len(), false)?;
        // SAFETY: new memory of the same length, which no other code has.
        unsafe { aligned.start.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(aligned)
    }

    /// Starts to prepare the pages of large memory, from its front, in a thread: preparing them costs as much time as copying into
    /// them, and a read that meets an unprepared page waits. The thread ends with the last page, or when it holds the last
    /// reference to the memory.
    pub(crate) fn populate(self: &Arc<AlignedMemory>) {
        if self.len >= LARGE_BYTES {
            let aligned = Arc::clone(self);
            let thread = std::thread::Builder::new().name("forebay-memory".into());
            // Without the thread the pages are allocated by the first writes, as in all other memory.
            let _ = thread.spawn(move || aligned.populate_all());
        }
    }

    fn populate_all(self: &Arc<AlignedMemory>) {
        let mut small_until = 0;
        for offset in (0..self.len).step_by(HUGE_PAGE) {
            if Arc::strong_count(self) == 1 {
                return;
            }
            let bytes = HUGE_PAGE.min(self.len - offset);
            let begun = Instant::now();
            if !self.advise(offset, bytes, libc::MADV_POPULATE_WRITE) {
                return;
            }
            if offset >= small_until && begun.elapsed() > HUGE_LIMIT {
                let next = offset + bytes;
                let bytes = SMALL_BYTES.min(self.len - next);
                self.advise(next, bytes, libc::MADV_NOHUGEPAGE);
                small_until = next + bytes;
            }
        }
    }

    /// Gives the kernel an advice about a part; returns whether it was accepted. A refusal costs speed only.
    fn advise(&self, offset: usize, bytes: usize, advice: libc::c_int) -> bool {
        debug_assert!(offset + bytes <= self.len, "the part is ours");
        // SAFETY: pages of our own, and no advice used here changes a byte, even while other code writes to them.
        unsafe { libc::madvise(self.start.as_ptr().add(offset).cast(), bytes, advice) == 0 }
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for AlignedMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and the last owner is dropped.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}
