//! The buffer that an append's bytes are copied into.

use crate::base::error::Result;
use crate::memory::arena::Buffer;
use crate::memory::block::BlockMut;

/// A buffer being filled, and its place in the file.
pub(super) struct Filling {
    /// The offset of its first byte: a multiple of the unit of the file's writes.
    start: u64,
    /// Bytes from `start` on that are in the file already and share their unit with the next bytes. Kept
    /// here, so that an idle append holds no I/O memory.
    carry: Vec<u8>,
    block: Option<BlockMut>,
    /// The length at which the block is sent to be written.
    full: usize,
}

impl Filling {
    pub(super) fn new(start: u64) -> Filling {
        Filling { start, carry: Vec::new(), block: None, full: 0 }
    }

    pub(super) fn start(&self) -> u64 {
        self.start
    }

    pub(super) fn has_block(&self) -> bool {
        self.block.is_some()
    }

    pub(super) fn is_full(&self) -> bool {
        self.block.as_ref().is_some_and(|block| block.len() >= self.full)
    }

    /// Returns the bytes of I/O memory held.
    pub(super) fn capacity(&self) -> usize {
        self.block.as_ref().map_or(0, BlockMut::capacity)
    }

    /// Continues at `start`, a multiple of the file's unit, with bytes that are in the file already.
    pub(super) fn restart(&mut self, start: u64, carry: &[u8]) {
        self.start = start;
        self.carry.clear();
        self.carry.extend_from_slice(carry);
    }

    /// Sets the `len` bytes before the first one: those found in the file, and zeros where it has none.
    pub(super) fn carry_found(&mut self, found: &[u8], len: usize) {
        self.carry.clear();
        self.carry.extend_from_slice(found);
        self.carry.resize(len, 0);
    }

    /// Takes over a buffer of at least `full` bytes to fill.
    pub(super) fn give(&mut self, buffer: Buffer, full: usize) -> Result<()> {
        // SAFETY: no bytes are claimed to be initialised, and the buffer is ours alone.
        let mut block = unsafe { buffer.into_block_mut(0, 0) };
        block.extend_from_slice(&self.carry)?;
        debug_assert!(block.len() < full, "what was carried over is less than a buffer");
        self.full = full;
        self.block = Some(block);
        Ok(())
    }

    /// Copies as many bytes as there is room for; returns how many.
    pub(super) fn copy(&mut self, bytes: &[u8]) -> Result<usize> {
        let Some(block) = &mut self.block else { return Ok(0) };
        let taken = &bytes[..bytes.len().min(self.full - block.len())];
        block.extend_from_slice(taken)?;
        Ok(taken.len())
    }

    /// Returns the filled block, to be written at [`start`](Self::start).
    pub(super) fn take(&mut self) -> Option<BlockMut> {
        self.block.take()
    }
}
