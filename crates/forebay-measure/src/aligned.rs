//! Page-aligned memory for the rows that do direct I/O without Forebay.

use super::pattern::PAGE_BYTES;

/// Memory that begins on a page boundary and never moves.
#[derive(Debug, Default)]
pub(super) struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBuffer {
    /// Returns `length` zero bytes. The alignment is never below a page: one kernel was seen to write
    /// beside smaller alignments that it advertised itself.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_on_a_page_and_has_its_length() {
        for length in [1, 512, 4096, 1 << 20] {
            let mut buffer = AlignedBuffer::new(length);
            assert_eq!(buffer.bytes_mut().as_ptr() as usize % PAGE_BYTES, 0);
            assert_eq!(buffer.bytes().len(), length);
        }
    }
}
