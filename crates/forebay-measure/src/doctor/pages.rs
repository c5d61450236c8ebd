//! Page-aligned memory, as direct I/O and buffer registration require.

use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Zeroed, page-aligned memory in a mapping of its own.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<u8>,
    len: usize,
}

impl Pages {
    /// Maps `len` bytes, rounded up to whole pages and at least one.
    ///
    /// # Errors
    /// Fails when the memory cannot be mapped.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let len = len.max(1).next_multiple_of(rustix::param::page_size());
        // SAFETY: an anonymous private mapping at an address of the kernel's choice replaces no other mapping.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    /// Returns the memory as a slice.
    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `len` readable and writable bytes, is zeroed by the kernel, lives as long as `self`,
        // and is reached through `self` only.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Returns the memory in the form that the kernel's ring calls take.
    pub(crate) fn iovec(&self) -> libc::iovec {
        libc::iovec { iov_base: self.start.as_ptr().cast(), iov_len: self.len }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `new` made exactly this mapping, and no reference into it outlives `self`. Rings that registered it
        // hold the pages themselves, not the mapping.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_whole_zeroed_pages() {
        let mut pages = Pages::new(5000).expect("two pages can be mapped");
        let page = rustix::param::page_size();
        assert_eq!(pages.as_mut().len(), 5000_usize.next_multiple_of(page));
        assert_eq!(pages.as_mut().as_ptr().addr() % page, 0);
        assert!(pages.as_mut().iter().all(|byte| *byte == 0));
    }
}
