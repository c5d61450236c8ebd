//! Memory of the rows that do I/O without Forebay: page-aligned buffers, and maps of files.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsFd;
use std::ptr;

use anyhow::Context as _;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::pattern::PAGE_BYTES;
use crate::system_counters::value;

/// Memory that starts on a page boundary and never moves.
#[derive(Debug, Default)]
pub(super) struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBuffer {
    /// Returns `length` zero bytes. The alignment is never below a page: one kernel was seen to write outside the buffer with
    /// smaller alignments that it advertised itself.
    pub(super) fn new(length: usize) -> Self {
        let memory = vec![0; length + PAGE_BYTES];
        let start = memory.as_ptr().align_offset(PAGE_BYTES);
        Self { memory, start, length }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

/// Memory in huge pages.
#[derive(Debug)]
pub(super) struct HugeBuffer {
    address: *mut c_void,
    mapped_bytes: usize,
    start: *mut u8,
    length: usize,
}

impl HugeBuffer {
    const PAGE_BYTES: usize = 2 << 20;

    /// Returns `length` zero bytes in pages of 2 MiB: of the pool, if it has enough, otherwise transparent huge pages.
    ///
    /// # Errors
    /// The kernel provides no such pages.
    pub(super) fn new(length: usize) -> anyhow::Result<Self> {
        let bytes = length.next_multiple_of(Self::PAGE_BYTES);
        let map = |bytes, flags| {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: this is a new mapping at an address that the kernel chooses.
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE | flags) }
        };
        if let Ok(address) = map(bytes, MapFlags::HUGETLB) {
            return Ok(Self { address, mapped_bytes: bytes, start: address.cast(), length });
        }
        let mapped_bytes = bytes + Self::PAGE_BYTES;
        let address = map(mapped_bytes, MapFlags::empty())?;
        let start = address.cast::<u8>();
        let start = start.wrapping_add(start.align_offset(Self::PAGE_BYTES));
        let mut buffer = Self { address, mapped_bytes, start, length };
        // SAFETY: the range lies within the mapping made above, and this advice changes no contents.
        let advised = unsafe { madvise(buffer.start.cast(), bytes, Advice::LinuxHugepage) };
        // The first use of a page decides its size.
        buffer.bytes_mut().fill(0);
        let granted = advised.ok().and_then(|()| huge_bytes()).filter(|granted| *granted >= bytes);
        granted.context(
            "the kernel gave no huge pages: allow transparent ones (/sys/kernel/mm/transparent_hugepage/enabled), or fill \
             the pool (vm.nr_hugepages)",
        )?;
        Ok(buffer)
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the bytes lie inside the mapping, which this value owns and which was zeroed by the kernel.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

impl Drop for HugeBuffer {
    fn drop(&mut self) {
        // SAFETY: this unmaps the mapping made in `new`, into which nothing points any more.
        let _ = unsafe { munmap(self.address, self.mapped_bytes) };
    }
}

/// Returns the bytes of this process that are in transparent huge pages.
fn huge_bytes() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    usize::try_from(value(&text, "AnonHugePages:")?).ok()
}

/// A map of a file, to be read only.
#[derive(Debug)]
pub(super) struct Map {
    address: *mut c_void,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, and any thread may read or unmap it.
unsafe impl Send for Map {}
// SAFETY: its methods only read the mapping, which nothing in this process writes.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the first `bytes` bytes of a file.
    ///
    /// # Errors
    /// The kernel refuses the map or the advice.
    pub(super) fn new(file: &File, bytes: u64, advice: Advice) -> anyhow::Result<Self> {
        let bytes = usize::try_from(bytes)?;
        // SAFETY: this is a new mapping at an address that the kernel chooses.
        let address =
            unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file.as_fd(), 0) }?;
        let map = Self { address, bytes };
        // SAFETY: the range is exactly the mapping made above, and this advice changes no contents.
        unsafe { madvise(map.address, bytes, advice) }?;
        Ok(map)
    }

    /// Copies the bytes from `offset` on into `memory`; the kernel brings them into memory first.
    pub(super) fn copy(&self, offset: u64, memory: &mut [u8]) {
        let at = offset as usize;
        assert!(at + memory.len() <= self.bytes, "offset {offset} lies behind the end of the mapping");
        // SAFETY: the bytes lie inside the mapping (asserted), which lives as long as `self` and does not overlap `memory`, and
        // no reference to them is made. A file that is truncated ends this child process, as below.
        unsafe {
            ptr::copy_nonoverlapping(self.address.byte_add(at).cast(), memory.as_mut_ptr(), memory.len());
        }
    }

    /// Returns the first word of page number `page`, which the kernel brings into memory first.
    pub(super) fn first_word(&self, page: u64) -> u64 {
        let at = page as usize * PAGE_BYTES;
        assert!(at + 8 <= self.bytes, "page {page} lies behind the end of the mapping");
        // SAFETY: the eight bytes lie inside the mapping (asserted), which lives as long as `self`, and pages are aligned for a
        // u64. The read is volatile and makes no reference, because other processes may write the file; if the file is truncated,
        // the signal ends this child process, which exists only for this sample.
        u64::from_le(unsafe { ptr::read_volatile(self.address.byte_add(at).cast::<u64>()) })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this unmaps the mapping made in `new`; no reference into it was ever made. Failing to unmap leaks it until
        // the process ends, which is now.
        let _ = unsafe { munmap(self.address, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_huge_or_refused() {
        match HugeBuffer::new(5 << 20) {
            Ok(mut buffer) => {
                assert_eq!(buffer.bytes_mut().len(), 5 << 20);
                assert_eq!(buffer.bytes_mut().as_ptr() as usize % HugeBuffer::PAGE_BYTES, 0);
                assert!(buffer.bytes_mut().iter().all(|byte| *byte == 0));
            }
            Err(error) => assert!(error.to_string().contains("vm.nr_hugepages"), "{error}"),
        }
    }

    #[test]
    fn it_begins_on_a_page_and_has_its_length() {
        for length in [1, 512, 4096, 1 << 20] {
            let mut buffer = AlignedBuffer::new(length);
            assert_eq!(buffer.bytes_mut().as_ptr() as usize % PAGE_BYTES, 0);
            assert_eq!(buffer.bytes().len(), length);
        }
    }
}
