//! [`Block`]: bytes read from a device, shared without copying.

use std::mem::ManuallyDrop;
use std::ops::{Bound, Deref, RangeBounds};
use std::ptr::NonNull;

use crate::memory::arena::{self, BUFFER_BYTES_MIN, Buffer, Header};

mod block_mut;

pub use block_mut::BlockMut;

/// The ratio of buffer sizes from which on [`Block::detach`] copies: the buffer kept alive is at least this
/// many times as large as the copy's.
const DETACH_RATIO: usize = 4;

/// Immutable bytes in I/O memory, as a read returns them. Cloning and slicing share the buffer and count
/// references. The last one dropped, on any thread, returns the buffer to its arena without allocating,
/// locking or waiting.
///
/// A block keeps its whole buffer ([`Block::pinned_bytes`]) from being used for other reads, however small a slice it is, and also
/// after the engine's end. Programs that keep small pieces for long should copy them, or call [`Block::detach`].
///
/// After `fork(2)` the child may drop inherited blocks, but must not access their bytes: I/O memory is not
/// inherited.
///
/// ```
/// use forebay::{Config, Engine};
/// # fn main() -> forebay::Result<()> {
/// let engine = Engine::start(Config::new())?;
/// let block = engine.block_from(b"before the turbine")?.freeze();
/// let word = block.slice(11..).unwrap_or_default();
/// assert_eq!(&word[..], b"turbine");
/// let shared: bytes::Bytes = word.into(); // no copy
/// assert_eq!(&shared[..], b"turbine");
/// # Ok(()) }
/// ```
pub struct Block {
    data: NonNull<u8>,
    len: usize,
    /// `None` only for blocks that never had a buffer.
    header: Option<NonNull<Header>>,
}

// SAFETY: the bytes are immutable while any block exists, the count is atomic, and the return is thread-safe.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// Returns an empty block without a buffer.
    pub const fn new() -> Block {
        Block { data: NonNull::dangling(), len: 0, header: None }
    }

    /// # Safety
    /// `data..data + len` are initialised bytes of the header's buffer, which are not written any more; the
    /// caller gives one counted reference to the block.
    pub(crate) unsafe fn from_parts(data: NonNull<u8>, len: usize, header: NonNull<Header>) -> Block {
        debug_assert!(
            // SAFETY: the caller gives a reference to a live buffer, which keeps its header.
            unsafe { header.as_ref() }.holds(data, len),
            "a block lies within its buffer"
        );
        Block { data, len, header: Some(header) }
    }

    /// Returns the bytes `data..data + len` of this block's buffer, which need not be of this block.
    ///
    /// # Safety
    /// They lie within the buffer, are initialised, and are not written any more.
    pub(crate) unsafe fn sibling(&self, data: NonNull<u8>, len: usize) -> Block {
        let Some(header) = self.header else { return Block::new() };
        // SAFETY: our own reference keeps the header; the new count is the new block's. The rest is the caller's promise.
        unsafe {
            header.as_ref().refs_add();
            Block::from_parts(data, len, header)
        }
    }

    /// Returns a part of this block, which shares the buffer; `None` when the range does not lie within it.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Option<Block> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.checked_add(1)?,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.checked_add(1)?,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.len,
        };
        if start > end || end > self.len {
            return None;
        }
        let mut part = self.clone();
        // SAFETY: `start` is within our bytes.
        part.data = unsafe { part.data.add(start) };
        part.len = end - start;
        Some(part)
    }

    /// Does the same as [`slice`](Block::slice) without another reference.
    pub(crate) fn into_slice(mut self, range: std::ops::Range<usize>) -> Option<Block> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        // SAFETY: the start is within our bytes.
        self.data = unsafe { self.data.add(range.start) };
        self.len = range.end - range.start;
        Some(self)
    }

    /// Returns the bytes before and from `at` as two blocks that share the buffer; `None` when `at` is beyond
    /// the end.
    pub fn split_at(&self, at: usize) -> Option<(Block, Block)> {
        Some((self.slice(..at)?, self.slice(at..)?))
    }

    /// Returns the bytes of the buffer that this block keeps from being used for anything else.
    pub fn pinned_bytes(&self) -> usize {
        // SAFETY: a counted reference keeps the header.
        self.header.map_or(0, |header| unsafe { header.as_ref() }.capacity())
    }

    /// Returns a copy of the bytes if it pins at most a quarter of the memory that this block pins ([`Block::pinned_bytes`]).
    /// Otherwise it returns another reference to this buffer.
    ///
    /// The copy lies in I/O memory where a whole buffer of it is small enough and free, else in ordinary memory of its exact
    /// length.
    pub fn detach(&self) -> Block {
        self.copy_if_worthwhile().unwrap_or_else(|| self.clone())
    }

    fn copy_if_worthwhile(&self) -> Option<Block> {
        let header = self.header?;
        if self.len == 0 {
            return Some(Block::new());
        }
        let is_small =
            |bytes: usize| bytes.checked_mul(DETACH_RATIO).is_some_and(|all| all <= self.pinned_bytes());
        if !is_small(self.len) {
            return None;
        }
        let io_memory = match arena::capacity_for(self.len) {
            // SAFETY: our reference keeps the buffer live.
            Some(capacity) if is_small(capacity) => unsafe { arena::alloc_beside(header, self.len) },
            _ => None,
        };
        let buffer = io_memory.or_else(|| arena::alloc_own(self.len, 1, false))?;
        // SAFETY: a new buffer of at least `len` bytes does not overlap ours; it is initialised by the copy.
        unsafe {
            buffer.as_ptr().copy_from_nonoverlapping(self.data.as_ptr(), self.len);
            Some(buffer.into_block(0, self.len))
        }
    }

    /// Makes the bytes writable without copying if no other block shares the buffer; otherwise returns the
    /// block. A block that is a later part of its buffer is first moved to the front, because writable memory
    /// is aligned; so a block whose buffer is not aligned to a page (a copy in ordinary memory) is returned, too.
    pub fn try_into_mut(self) -> Result<BlockMut, Block> {
        // SAFETY: a counted reference keeps the header.
        let can_be_mut = |header: &NonNull<Header>| unsafe {
            header.as_ref().refs_unique() && header.as_ref().data().addr().is_multiple_of(BUFFER_BYTES_MIN)
        };
        let Some(header) = self.header.filter(can_be_mut) else { return Err(self) };
        let this = ManuallyDrop::new(self);
        // SAFETY: the only reference, and no other can be made from it: so we own the buffer, and our bytes
        // in it are initialised. The move stays within it.
        unsafe {
            let buffer = Buffer::from_header(header);
            buffer.as_ptr().copy_from(this.data.as_ptr(), this.len);
            Ok(buffer.into_block_mut(this.len, this.len))
        }
    }

    /// Returns the address of the bytes, for a write from them.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.data.as_ptr()
    }

    /// Returns the region (and registration) that the bytes are in; `None` for ordinary memory.
    pub(crate) fn region_index(&self) -> Option<u16> {
        // SAFETY: a counted reference keeps the header and the region.
        self.header.and_then(|header| unsafe { arena::region_index(header) })
    }

    /// Returns how many bytes of its buffer lie before this block.
    #[cfg(test)]
    fn start_offset_in_buffer(&self) -> usize {
        // SAFETY: a counted reference keeps the buffer.
        self.header.map_or(0, |header| self.data.addr().get() - unsafe { header.as_ref() }.data().addr())
    }
}

impl Clone for Block {
    #[inline]
    fn clone(&self) -> Block {
        if let Some(header) = self.header {
            // SAFETY: our own reference keeps the header.
            unsafe { header.as_ref() }.refs_add();
        }
        Block { data: self.data, len: self.len, header: self.header }
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        if let Some(header) = self.header {
            // SAFETY: our reference keeps the header until it is released; if it was the last, the buffer is ours.
            unsafe {
                if header.as_ref().refs_drop() {
                    arena::release(header);
                }
            }
        }
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: initialised, and immutable while this reference exists (`from_parts`).
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Default for Block {
    fn default() -> Block {
        Block::new()
    }
}

impl PartialEq for Block {
    fn eq(&self, other: &Block) -> bool {
        **self == **other
    }
}

impl Eq for Block {}

/// Comparisons with types that hold bytes, in both directions.
macro_rules! compared {
    ($block:ty, [$($generics:tt)*] $other:ty) => {
        impl<$($generics)*> PartialEq<$other> for $block {
            fn eq(&self, other: &$other) -> bool {
                **self == other[..]
            }
        }

        impl<$($generics)*> PartialEq<$block> for $other {
            fn eq(&self, other: &$block) -> bool {
                self[..] == **other
            }
        }
    };
    ($block:ty) => {
        compared!($block, [] [u8]);
        compared!($block, [] &[u8]);
        compared!($block, [] Vec<u8>);
        compared!($block, [const N: usize] [u8; N]);
        compared!($block, [const N: usize] &[u8; N]);
    };
}

compared!(Block);
compared!(BlockMut);

/// Copies the bytes; [`bytes::Bytes`] shares them.
impl From<Block> for Vec<u8> {
    fn from(block: Block) -> Vec<u8> {
        block.to_vec()
    }
}

// Shows the length only: a block may be large, and its contents do not belong in logs.
crate::_debug_parts!(Block, |block| len: block.len);

/// Shares the buffer without copying; costs one small allocation, and the buffer returns when the last `Bytes` is
/// dropped.
impl From<Block> for bytes::Bytes {
    fn from(block: Block) -> bytes::Bytes {
        bytes::Bytes::from_owner(block)
    }
}

#[cfg(test)]
mod tests;
