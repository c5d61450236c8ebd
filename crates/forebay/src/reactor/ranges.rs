//! Ranges: widened to the blocks that the device needs, and cut back afterwards.

use std::ops::Range;

use crate::base::error::{Error, ErrorKind, Result};
use crate::device::Alignment;
use crate::io::op::OpKind;
use crate::memory::arena::{BUFFER_BYTES_MAX, Buffer};
use crate::memory::block::Block;

/// The most bytes of one request to memory of its length: as much as a device has in flight at its full speed.
pub(crate) const PART_BYTES: u64 = 8 << 20;
/// The most bytes of one request by way of I/O memory. A copy of that many takes 20 us.
pub(crate) const BOUNCE_BYTES: u64 = 256 << 10;
/// The least bytes for which a separate request for the aligned middle costs less than a copy.
const MIDDLE_BYTES_MIN: u64 = 16 << 10;

/// Returns the slice of `range` out of a buffer into which `bytes` were read from the widened offset on.
#[inline]
pub(crate) fn cut(buffer: Buffer, bytes: u32, range: &Range<u64>, grain: u32, exact: bool) -> Result<Block> {
    let skip = (range.start & (u64::from(grain.max(1)) - 1)) as usize;
    let asked = (range.end - range.start) as usize;
    let got = (bytes as usize).saturating_sub(skip).min(asked);
    debug_assert!(skip + got <= buffer.capacity(), "a request's bytes fit into its buffer");
    if exact && got < asked {
        return Err(Error::new(ErrorKind::UnexpectedEof { got: got as u64 }, "read"));
    }
    // SAFETY: the device filled `bytes` from the buffer's start, and `skip + got` does not exceed that.
    Ok(unsafe { buffer.into_block(if got == 0 { 0 } else { skip }, got) })
}

/// A range widened to the device's alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AlignedRange {
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// Checks that a file can have this range.
pub(crate) fn check_range(operation: &'static str, range: &Range<u64>, grain: u32) -> Result<()> {
    if range.end < range.start {
        let note = format!("the range ends ({}) before it starts ({})", range.end, range.start);
        return Err(Error::invalid(operation, note));
    }
    // The kernel's offsets are signed (off_t), and the range that is read around it must fit as well.
    if range.end > i64::MAX as u64 - u64::from(grain) {
        let note = format!("offset {} is beyond what a file can have", range.end);
        return Err(Error::invalid(operation, note).with_range(range.start, range.end - range.start));
    }
    Ok(())
}

impl AlignedRange {
    #[inline]
    pub(crate) fn of(range: &Range<u64>, grain: u32) -> Result<AlignedRange> {
        let grain = grain.max(1);
        check_range("read", range, grain)?;
        let grain = u64::from(grain);
        // Grains are powers of two; a division would cost as much as all the rest of this function.
        debug_assert!(grain.is_power_of_two());
        let offset = range.start & !(grain - 1);
        let len = ((range.end + grain - 1) & !(grain - 1)) - offset;
        if len > BUFFER_BYTES_MAX as u64 {
            return Err(Error::new(ErrorKind::TooLarge { limit: BUFFER_BYTES_MAX as u64 }, "read")
                .with_range(range.start, range.end - range.start));
        }
        Ok(AlignedRange { offset, len: len as u32 })
    }
}

/// The bytes of lent memory that requests of a file can name.
pub(crate) fn middle(alignment: &Alignment, kind: OpKind, offset: u64, len: u64, address: u64) -> Range<u64> {
    let unit = u64::from(alignment.memory.max(1));
    let grain = u64::from(if kind == OpKind::Read { alignment.read_offset } else { alignment.offset }.max(1));
    let first = address.next_multiple_of(unit) - address;
    // The file's blocks may be larger than what the memory must be aligned to.
    let head = (0..grain.div_ceil(unit))
        .map(|units| first + units * unit)
        .find(|head| (offset + head).is_multiple_of(grain));
    let Some(head) = head.filter(|head| *head < len) else { return 0..0 };
    let blocks = (len - head) / grain * grain;
    if blocks == len || blocks >= MIDDLE_BYTES_MIN { head..head + blocks } else { 0..0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alignment(memory: u32, grain: u32) -> Alignment {
        Alignment { memory, offset: grain, read_offset: grain, ..Alignment::BUFFERED }
    }

    #[test]
    fn requests_name_the_whole_blocks_whose_place_is_aligned() {
        let place = |memory, grain, offset, len, address| {
            middle(&alignment(memory, grain), OpKind::Read, offset, len, address)
        };
        const PAGE: u64 = 4096;
        assert_eq!(place(1, 1, 7, 9, 3), 0..9, "through the page cache");
        assert_eq!(place(4096, 512, 512, 4 * PAGE, PAGE), 0..4 * PAGE);
        assert_eq!(place(4096, 512, 512, 512, PAGE), 0..512, "small, but whole");
        assert_eq!(place(4096, 512, 512, 9 * PAGE + 100, PAGE), 0..9 * PAGE, "a tail");
        assert_eq!(place(4096, 512, 412, 9 * PAGE, PAGE - 100), 100..100 + 9 * PAGE - 512, "and a head");
        assert_eq!(place(4096, 512, 0, 9 * PAGE, 16), 0..0, "memory at 16 bytes");
        assert_eq!(place(4096, 512, 412, 2 * PAGE, PAGE - 100), 0..0, "not worth three requests");
        assert_eq!(
            place(4096, 16_384, 8192, 64 << 10, 3 * PAGE),
            8192..8192 + (48 << 10),
            "blocks above a page"
        );
        assert_eq!(place(4096, 16_384, 8192 + 512, 64 << 10, 3 * PAGE), 0..0);
        assert_eq!(place(4096, 512, 0, 0, 0), 0..0);
    }
}
