//! [`BlockMut`]: aligned memory to fill and write.

use std::io;
use std::ops::{Deref, DerefMut};

use super::Block;
use crate::base::error::{Error, ErrorKind, Result};
use crate::memory::arena::{BUFFER_BYTES_MAX, BUFFER_BYTES_MIN, Buffer, alloc_own};

/// Writable bytes in I/O memory with a single owner, for direct writes without a copy. They start at the start of a buffer, so
/// they are aligned to at least a page. Bytes that the program has not written are zero: memory never shows another file's bytes.
///
/// The default is empty and has no memory. An operation returns it when its memory was lost with its shard.
///
/// After `fork(2)` the child may drop it, but must not touch its bytes.
///
/// ```
/// use forebay::{Config, Engine};
/// # fn main() -> forebay::Result<()> {
/// let engine = Engine::start(Config::new())?;
/// let mut block = engine.block(8)?;
/// block[..3].copy_from_slice(b"abc");
/// assert_eq!(&block[..], b"abc\0\0\0\0\0");
/// block.truncate(4);
/// block.extend_from_slice(b"de")?;
/// assert_eq!(&block.freeze()[..], b"abc\0de");
/// # Ok(()) }
/// ```
#[derive(Default)]
pub struct BlockMut {
    buffer: Option<Buffer>,
    /// The bytes below are initialised and the program's own.
    len: usize,
    /// The bytes from `len` up to here are known to be zero, so that no byte is zeroed twice; never below `len`.
    zero_until: usize,
}

impl BlockMut {
    /// Wraps a buffer of which the first `filled` bytes keep their contents; up to `len` (at most the capacity) the others are
    /// zeroed.
    ///
    /// # Safety
    /// The first `filled` bytes lie within the capacity, are initialised and may be seen by the program; nothing else
    /// accesses the buffer any more.
    pub(crate) unsafe fn from_buffer(buffer: Buffer, len: usize, filled: usize) -> BlockMut {
        debug_assert!(filled <= buffer.capacity() && len <= buffer.capacity());
        let len = len.min(buffer.capacity());
        let filled = filled.min(len);
        let mut block = BlockMut { buffer: Some(buffer), len: filled, zero_until: filled };
        block.pad_with_zeros(len);
        block.len = len;
        block
    }

    /// Returns the buffer, with the number of bytes that are initialised and the program's own.
    #[cfg(test)]
    pub(super) fn into_buffer(self) -> (Option<Buffer>, usize) {
        (self.buffer, self.len)
    }

    /// Zeroes the bytes that follow the contents, up to `to` bytes from the start (at most the capacity),
    /// without making them part of the contents: a direct write may then write whole units.
    pub(crate) fn pad_with_zeros(&mut self, to: usize) {
        let to = to.min(self.capacity());
        if to > self.zero_until {
            debug_assert!(self.len <= self.zero_until, "zeroing begins behind the program's bytes");
            // SAFETY: `zero_until < to <= capacity`, and the buffer is ours alone.
            unsafe { self.as_ptr().add(self.zero_until).write_bytes(0, to - self.zero_until) };
            self.zero_until = to;
        }
    }

    /// Returns the address of the bytes, for the device.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        // Without a buffer the length is zero, and so is every access.
        self.buffer.as_ref().map_or(std::ptr::dangling_mut(), Buffer::as_ptr)
    }

    /// Returns the region (and registration) of the buffer; `None` for overflow memory.
    pub(crate) fn region_index(&self) -> Option<u16> {
        self.buffer.as_ref().and_then(Buffer::region_index)
    }

    /// Returns `len` zeroed bytes of ordinary memory, aligned to a page (4,096): for memory that a program keeps, outside of
    /// the engine's I/O memory and its limits, yet read and written by the device in place. Not registered with the rings,
    /// which costs about 0.5 us an operation.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] above 1 GiB; [`ErrorKind::ArenaExhausted`] when the system has no memory.
    ///
    /// ```
    /// # use forebay::{BlockMut, Config, Engine, Open};
    /// # fn main() -> forebay::Result<()> {
    /// # let engine = Engine::start(Config::new())?;
    /// let file = engine.open("Cargo.toml", Open::read()).wait()?;
    /// let (bytes, memory) = file.read_into(0, BlockMut::aligned(4096)?).wait();
    /// assert_eq!(&memory[..9], b"[package]");
    /// # Ok(()) }
    /// ```
    pub fn aligned(len: usize) -> Result<BlockMut> {
        if len == 0 {
            return Ok(BlockMut::default());
        }
        if len > BUFFER_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::TooLarge { limit: BUFFER_BYTES_MAX as u64 },
                "allocate a block",
            ));
        }
        // Whole pages: a direct file's last block may be read into it.
        let buffer = alloc_own(len.next_multiple_of(BUFFER_BYTES_MIN), BUFFER_BYTES_MIN, true)
            .ok_or_else(|| Error::new(ErrorKind::ArenaExhausted { held: 0 }, "allocate a block"))?;
        Ok(BlockMut { zero_until: buffer.capacity(), buffer: Some(buffer), len })
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the limit for its length, in bytes: the requested length rounded up to a power of two, and at
    /// least a page; to whole pages where it is more than a quarter of the engine's I/O memory.
    pub fn capacity(&self) -> usize {
        self.buffer.as_ref().map_or(0, Buffer::capacity)
    }

    /// Shortens it to `len` bytes; a larger `len` changes nothing.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len {
            self.len = len;
            // The bytes that follow were the program's, and need not be zero.
            self.zero_until = len;
        }
    }

    /// Makes it `len` bytes long; bytes that become visible are zero.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] beyond the [capacity](BlockMut::capacity); nothing is changed then.
    pub fn resize(&mut self, len: usize) -> Result<()> {
        if len > self.capacity() {
            return Err(self.too_large("resize a block"));
        }
        if len < self.len {
            self.truncate(len);
        } else {
            self.pad_with_zeros(len);
            self.len = len;
        }
        Ok(())
    }

    /// Appends a copy of these bytes.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] when they do not fit within the [capacity](BlockMut::capacity); nothing is changed then.
    #[inline]
    pub fn extend_from_slice(&mut self, bytes: &[u8]) -> Result<()> {
        let end = match self.len.checked_add(bytes.len()) {
            Some(end) if end <= self.capacity() => end,
            _ => return Err(self.too_large("extend a block")),
        };
        // SAFETY: `end <= capacity`; `bytes` is borrowed from elsewhere, because the buffer is ours and borrowed mutably.
        unsafe { self.as_ptr().add(self.len).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.len = end;
        self.zero_until = self.zero_until.max(end);
        Ok(())
    }

    #[cold]
    fn too_large(&self, operation: &'static str) -> Error {
        Error::new(ErrorKind::TooLarge { limit: self.capacity() as u64 }, operation)
    }

    /// Ends the writing: returns the same bytes, immutable and shareable. Copies nothing.
    pub fn freeze(self) -> Block {
        let len = self.len;
        match self.buffer {
            // SAFETY: the first `len` bytes are initialised, and `self`, the only writer, is consumed.
            Some(buffer) => unsafe { buffer.into_block(0, len) },
            None => Block::new(),
        }
    }
}

/// Appends, as [`extend_from_slice`](BlockMut::extend_from_slice), as much as fits within the [capacity](BlockMut::capacity): a
/// full block accepts 0 bytes, and `write_all` fails with `WriteZero`. Start with `truncate(0)`: a new block has the requested
/// length, and is zero.
impl io::Write for BlockMut {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.capacity() - self.len);
        self.extend_from_slice(&bytes[..taken])?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Deref for BlockMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the first `len` bytes are initialised and ours.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }
}

impl DerefMut for BlockMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for BlockMut {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for BlockMut {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

// Shows length and capacity only.
crate::_debug_parts!(BlockMut, |block_mut| len: block_mut.len, capacity: block_mut.capacity());
