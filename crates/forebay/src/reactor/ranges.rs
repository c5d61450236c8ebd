//! Ranges: widened to the blocks that the device needs, cut back afterwards, or served from the page cache.

use std::ops::Range;
use std::ptr::NonNull;
#[cfg(target_os = "linux")]
use std::sync::atomic::Ordering;

use crate::base::error::{Error, ErrorKind, Result};
use crate::memory::arena::{BUFFER_BYTES_MAX, Buffer};
use crate::memory::block::Block;
use crate::reactor::open_file::FileCore;

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

/// Returns all `len` bytes at `offset` if the page cache has them.
pub(crate) fn from_page_cache(core: &FileCore, offset: u64, len: u32) -> Option<Block> {
    if core.engine().is_simulated() {
        return None;
    }
    let buffer = core.engine().buffer("read", len as usize).ok()?;
    // SAFETY: the buffer has at least `len` bytes and is ours alone; the kernel has filled all of them where it is in the cache.
    unsafe {
        let start = NonNull::new(buffer.as_ptr())?;
        is_in_page_cache(core, offset, start, len).then(|| buffer.into_block(0, len as usize))
    }
}

/// Reads `len` bytes at `offset` if the page cache has all of them, and returns whether it has: preadv2(2) with `RWF_NOWAIT`,
/// about a microsecond.
///
/// # Safety
/// `memory` is valid for writes of `len` bytes, and nothing else accesses them.
#[cfg(target_os = "linux")]
pub(crate) unsafe fn is_in_page_cache(core: &FileCore, offset: u64, memory: NonNull<u8>, len: u32) -> bool {
    use std::os::fd::AsRawFd;
    if core.is_closed() || core.engine().failure().is_some() || core.engine().is_simulated() {
        return false;
    }
    let part = libc::iovec { iov_base: memory.as_ptr().cast(), iov_len: len as usize };
    // SAFETY: one vector over memory that the caller vouches for.
    let read =
        unsafe { libc::preadv2(core.fd().as_raw_fd(), &part, 1, offset as libc::off_t, libc::RWF_NOWAIT) };
    // A shorter read may mean the end of the file or the end of the cached bytes; the ring finds out.
    if read != len as isize {
        return false;
    }
    core.engine().page_cache_reads.fetch_add(1, Ordering::Relaxed);
    core.engine().page_cache_bytes.fetch_add(u64::from(len), Ordering::Relaxed);
    true
}

/// # Safety
/// None is needed: nothing is accessed.
#[cfg(not(target_os = "linux"))]
pub(crate) unsafe fn is_in_page_cache(_: &FileCore, _: u64, _: NonNull<u8>, _: u32) -> bool {
    false
}
