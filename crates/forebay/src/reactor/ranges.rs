//! Ranges: widened to the blocks that the device needs, and cut back afterwards.

use std::ops::Range;

use crate::base::error::{Error, ErrorKind, Result};
use crate::memory::arena::{BUFFER_BYTES_MAX, Buffer};
use crate::memory::block::Block;

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
pub(crate) struct Widened {
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

impl Widened {
    #[inline]
    pub(crate) fn of(range: &Range<u64>, grain: u32) -> Result<Widened> {
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
        Ok(Widened { offset, len: len as u32 })
    }
}
