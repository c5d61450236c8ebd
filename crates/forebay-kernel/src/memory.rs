//! Memory that the kernel's program and user space share.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A private mapping, initially zero. The kernel's side changes it while a system call runs. Everything is therefore read and
/// written through atomics and copies, and no reference into it lives across a call.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, and its content is plain numbers.
unsafe impl Send for Memory {}
// SAFETY: words are read and written as atomics. Where several threads share a session, the bytes of a slot and its pages
// belong to the one caller that has that slot.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps private memory of `bytes`.
    ///
    /// # Errors
    /// mmap failed.
    pub(crate) fn new(bytes: usize) -> io::Result<Memory> {
        Memory::map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE, -1)
    }

    /// Maps the memory that the module has for a session.
    ///
    /// # Errors
    /// mmap failed.
    pub(crate) fn of_device(device: &impl AsRawFd, bytes: usize) -> io::Result<Memory> {
        Memory::map(bytes, libc::MAP_SHARED | libc::MAP_POPULATE, device.as_raw_fd())
    }

    fn map(bytes: usize, flags: libc::c_int, fd: RawFd) -> io::Result<Memory> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap gave the address 0"))?;
        let memory = Memory { base, bytes };
        // A forked child has no use for it, and must not copy pages that the kernel writes to.
        // SAFETY: advice for the mapping made above.
        unsafe { libc::madvise(memory.base.as_ptr().cast(), bytes, libc::MADV_DONTFORK) };
        Ok(memory)
    }

    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Returns the word at `at`; 0 outside of the mapping.
    pub(crate) fn u32(&self, at: usize) -> u32 {
        self.word(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    pub(crate) fn set_u32(&self, at: usize, value: u32) {
        if let Some(word) = self.word(at) {
            word.store(value, Ordering::Relaxed);
        }
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        self.double_word(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    pub(crate) fn set_u64(&self, at: usize, value: u64) {
        if let Some(word) = self.double_word(at) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Copies from `at` on into `bytes`; leaves `bytes` unchanged if the range is not all in the mapping.
    pub(crate) fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        if at.checked_add(bytes.len()).is_some_and(|end| end <= self.bytes) {
            // SAFETY: the range lies in the mapping, and the two do not overlap. Nothing else writes to it
            // now: the steps run inside this thread's system calls, and reads of ended slots have landed.
            unsafe {
                std::ptr::copy_nonoverlapping(self.base.as_ptr().add(at), bytes.as_mut_ptr(), bytes.len());
            }
        }
    }

    /// Copies to `at`; copies nothing if not all of it fits.
    pub(crate) fn copy_in(&self, at: usize, bytes: &[u8]) {
        if at.checked_add(bytes.len()).is_some_and(|end| end <= self.bytes) {
            // SAFETY: as above, the other way round.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len()) };
        }
    }

    /// Returns the bytes of a page that no read is writing to.
    pub(crate) fn page(&mut self, at: usize, bytes: usize) -> &[u8] {
        if at.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return &[];
        }
        // SAFETY: the range lies in the mapping. The exclusive borrow keeps this thread out of the kernel, the only place where
        // reads start, and the page's own read has ended.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at), bytes) }
    }

    /// Returns the bytes of a page of a walk that has ended.
    ///
    /// # Safety
    /// No walk starts in its slot while the bytes are in use.
    pub(crate) unsafe fn page_of_ended(&self, at: usize, bytes: usize) -> &[u8] {
        if at.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return &[];
        }
        // SAFETY: the range lies in the mapping. The page's own read has ended, and the caller starts no other read of it.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at), bytes) }
    }

    fn word(&self, at: usize) -> Option<&AtomicU32> {
        let fits = at.is_multiple_of(4) && at.checked_add(4)? <= self.bytes;
        // SAFETY: the word lies in the mapping and is aligned; it is only ever used as an atomic or copied over.
        fits.then(|| unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) })
    }

    fn double_word(&self, at: usize) -> Option<&AtomicU64> {
        let fits = at.is_multiple_of(8) && at.checked_add(8)? <= self.bytes;
        // SAFETY: as above, with eight bytes.
        fits.then(|| unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Data of reads that the kernel still completes into it lands in pages that the kernel holds itself:
        // they are registered, or the module's.
        // SAFETY: the mapping is this value's own, and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
