//! The bytes between a file and its reader or writer.

use std::io::IoSlice;
use std::ops::Range;

use tokio::io::ReadBuf;

/// Bytes that were read and not given away yet, or that are to be written. One allocation serves a file for its life.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    /// Its bytes outside of `held` have any value: they are not set to zero for each read.
    memory: Vec<u8>,
    held: Range<usize>,
}

impl Buffer {
    /// Returns a buffer that holds the first `len` bytes of `memory`.
    pub(crate) fn of(memory: Vec<u8>, len: usize) -> Buffer {
        let held = 0..len.min(memory.len());
        Buffer { memory, held }
    }

    /// Returns memory of `len` bytes with any contents.
    pub(crate) fn into_memory(mut self, len: usize) -> Vec<u8> {
        self.memory.truncate(len);
        if self.memory.len() < len { zeros(len) } else { self.memory }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.held.clone()]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns `len` bytes of memory to read into; [`hold`](Self::hold) says how many of them count.
    pub(crate) fn room(&mut self, len: usize) -> &mut [u8] {
        self.held = 0..0;
        if self.memory.len() < len {
            self.memory = zeros(len);
        }
        &mut self.memory[..len]
    }

    pub(crate) fn hold(&mut self, len: usize) {
        self.held = 0..len.min(self.memory.len());
    }

    /// Moves bytes to a reader.
    pub(crate) fn give(&mut self, reader: &mut ReadBuf<'_>) {
        let len = self.held.len().min(reader.remaining());
        reader.put_slice(&self.bytes()[..len]);
        self.held.start += len;
    }

    /// Copies up to `most` bytes of a writer, and returns their number.
    pub(crate) fn take(&mut self, slices: &[IoSlice<'_>], most: usize) -> usize {
        self.memory.clear();
        for slice in slices {
            let room = most - self.memory.len();
            self.memory.extend_from_slice(&slice[..slice.len().min(room)]);
        }
        self.held = 0..self.memory.len();
        self.held.len()
    }

    /// Drops what was read and not given away, and returns how far the cursor moves for that: backwards.
    pub(crate) fn discard(&mut self) -> i64 {
        let unread = self.held.len() as i64;
        self.held = 0..0;
        -unread
    }
}

/// Returns memory whose pages are allocated when they are used: a file may allow reads of gigabytes.
fn zeros(len: usize) -> Vec<u8> {
    vec![0; len]
}
