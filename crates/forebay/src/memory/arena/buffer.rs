//! The sole ownership of one buffer, as an operation in flight has it.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use super::header::{self, Header};
use crate::memory::block::{Block, BlockMut};

/// One buffer, at least page-aligned, owned alone; in a region its length is a power of two. A dropped buffer returns to the arena. The
/// region of a forgotten one is never unmapped. Its bytes are those that the last owner left. They become
/// visible only through the two conversions, whose callers state which bytes are initialised.
pub(crate) struct Buffer {
    data: NonNull<u8>,
    header: NonNull<Header>,
}

// SAFETY: sole ownership of plain memory; returning it is thread-safe.
unsafe impl Send for Buffer {}
// SAFETY: a shared `Buffer` hands out addresses and numbers only.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// # Safety
    /// The header is of a live buffer that the caller owns alone and gives to the result.
    #[inline]
    pub(crate) unsafe fn from_header(header: NonNull<Header>) -> Buffer {
        // SAFETY: a live buffer, by the caller's promise, and its data is never null.
        Buffer { data: unsafe { NonNull::new_unchecked(header.as_ref().data()) }, header }
    }

    /// Returns the first byte, valid for `capacity()` bytes of reads and writes; overflow memory is
    /// uninitialised.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.data.as_ptr()
    }

    /// Returns the length in bytes.
    pub(crate) fn capacity(&self) -> usize {
        // SAFETY: we own the buffer.
        unsafe { self.header.as_ref() }.capacity()
    }

    /// Returns the number of its region (and of that region's registration); `None` for overflow memory.
    pub(crate) fn region_index(&self) -> Option<u16> {
        // SAFETY: we own the buffer, which keeps its header and region.
        unsafe { header::region_index(self.header) }
    }

    /// Returns the bytes `start..start + len` as a block.
    ///
    /// # Safety
    /// These bytes lie within the capacity, are initialised (by a completed read, say), and nothing writes them any
    /// more.
    pub(crate) unsafe fn into_block(self, start: usize, len: usize) -> Block {
        debug_assert!(start.checked_add(len).is_some_and(|end| end <= self.capacity()));
        let this = ManuallyDrop::new(self);
        // SAFETY: within the capacity by the caller's promise; the block takes over the ownership.
        unsafe {
            this.header.as_ref().refs_start();
            Block::from_parts(this.data.add(start), len, this.header)
        }
    }

    /// Returns the buffer as a block without bytes, to be filled.
    pub(crate) fn into_empty(self) -> BlockMut {
        // SAFETY: no bytes are claimed to be initialised, and the buffer is ours alone.
        unsafe { self.into_block_mut(0, 0) }
    }

    /// Returns writable memory of `len` bytes (at most the capacity), of which the first `filled` keep their
    /// contents and the others are zeroed.
    ///
    /// # Safety
    /// The first `filled` bytes lie within the capacity, are initialised and may be seen by the program; nothing else
    /// accesses the buffer any more.
    pub(crate) unsafe fn into_block_mut(self, len: usize, filled: usize) -> BlockMut {
        // SAFETY: the caller's promise.
        unsafe { BlockMut::from_buffer(self, len, filled) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: we own the buffer alone and do not use it after this.
        unsafe { header::release(self.header) };
    }
}

crate::_debug_parts!(Buffer, |buffer| capacity: buffer.capacity(), region: buffer.region_index());
