//! Immutable memory that another process has filled.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::slice;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The bytes of a sealed memory file (memfd_create(2)). Processes of `forebay-collective` on one host exchange pieces of a file
/// in them.
#[derive(Debug)]
pub struct SealedMemory {
    address: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value, and any thread may remove it.
unsafe impl Send for SealedMemory {}
// SAFETY: the bytes never change, so that any threads may read them.
unsafe impl Sync for SealedMemory {}

impl SealedMemory {
    /// Maps the memory of a descriptor, which may be closed afterwards.
    ///
    /// # Errors
    /// It can still change, is empty, or has more than `len_max` bytes; those of mmap(2).
    pub fn map(memory: BorrowedFd<'_>, len_max: usize) -> io::Result<SealedMemory> {
        let seals = fcntl_get_seals(memory)?;
        let len = usize::try_from(fstat(memory)?.st_size).unwrap_or_default();
        let needed = SealFlags::WRITE | SealFlags::SHRINK;
        if !seals.contains(needed) || len == 0 || len > len_max {
            return Err(io::Error::other("it is not sealed, or has a wrong length"));
        }
        // Private, as kernels before 6.7 refuse a shared mapping of what is sealed: its pages are the file's until they are written.
        let (read, flags) = (ProtFlags::READ, MapFlags::PRIVATE | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let address = unsafe { mmap(ptr::null_mut(), len, read, flags, memory, 0) }?;
        match NonNull::new(address.cast()) {
            Some(address) => Ok(SealedMemory { address, len }),
            None => Err(io::Error::other("mapped at the address 0")),
        }
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has `len` bytes until the drop, and the seals keep anyone from changing or removing them.
        unsafe { slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for SealedMemory {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for SealedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and no reference to its bytes outlives the value.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.len) };
    }
}
