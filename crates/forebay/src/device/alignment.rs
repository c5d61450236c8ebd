//! The alignment that direct I/O on a file needs.

use std::os::fd::BorrowedFd;

/// The least alignment of I/O memory, even if the kernel reports less.
///
/// statx(2) reports 512 on many devices. A kernel (6.18, zram) was seen to accept a direct read into memory
/// aligned like that, return success, and overwrite memory outside the buffer. Page-aligned memory was never
/// affected.
const MEMORY_MIN: u32 = 4096;

/// The multiples, in bytes, that offset, length and memory of an operation on a file must have.
///
/// Forebay reads at any offset: it reads the aligned range around the requested one. Direct *writes* must be
/// aligned by the caller, because writing the range around would overwrite other bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Alignment {
    /// Alignment of the memory's start; never below 4096 for direct files.
    pub memory: u32,
    /// Alignment of the offset and length of a write.
    pub offset: u32,
    /// Alignment of the offset and length of a read: as `offset`, or smaller on file systems that write out of place.
    pub read_offset: u32,
    /// Whether the kernel reported these figures. If not they are 4096, which suits every file system known.
    pub reported: bool,
    /// Whether I/O bypasses the page cache. `false` for files opened buffered, and where the kernel reports that direct I/O on this
    /// very file is not supported (encrypted, compressed or journaled data): it may then fall back silently.
    pub direct: bool,
}

impl Alignment {
    /// Returns the alignment of an open file; `direct` is whether it was opened for direct I/O. Where the
    /// kernel reports nothing, the alignment is 4096. For tests; programs have [`File::alignment`](crate::File::alignment).
    #[doc(hidden)]
    pub fn of_fd(fd: BorrowedFd<'_>, direct: bool) -> Alignment {
        if direct { Alignment::from_report(report(fd)) } else { Alignment::BUFFERED }
    }

    /// Returns the alignment of a device with blocks of that size, whose commands accept any memory.
    #[cfg(target_os = "linux")]
    pub(crate) fn of_blocks(bytes: u32) -> Alignment {
        let offset = bytes.next_power_of_two();
        Alignment { memory: MEMORY_MIN, offset, read_offset: offset, reported: true, direct: true }
    }

    /// The alignment of files in the page cache, which accepts anything.
    pub(crate) const BUFFERED: Alignment =
        Alignment { memory: 1, offset: 1, read_offset: 1, reported: true, direct: false };

    fn from_report(report: Option<Report>) -> Alignment {
        let fallback =
            Alignment { memory: MEMORY_MIN, offset: 4096, read_offset: 4096, reported: false, direct: true };
        match report {
            // tmpfs reports nothing, though it opens files with O_DIRECT (and serves them from memory).
            None => fallback,
            // statx(2): both are 0 when direct I/O is not supported on this file.
            Some(Report { offset: 0, .. }) => Alignment { reported: true, direct: false, ..fallback },
            Some(Report { memory, offset, read_offset }) => Alignment {
                memory: memory.max(MEMORY_MIN),
                // Always a power of two in practice; reads round by masks and rely on it.
                offset: offset.next_power_of_two(),
                // statx(2): 0 means that stx_dio_offset_align applies to reads as well.
                read_offset: if read_offset == 0 { offset } else { read_offset.min(offset) }
                    .next_power_of_two(),
                reported: true,
                direct: true,
            },
        }
    }
}

/// The figures as the kernel reports them.
#[derive(Clone, Copy)]
struct Report {
    memory: u32,
    offset: u32,
    read_offset: u32,
}

#[cfg(target_os = "linux")]
fn report(fd: BorrowedFd<'_>) -> Option<Report> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    // STATX_DIO_READ_ALIGN, Linux 6.14; rustix has the field but not the flag. Kernels ignore unknown bits.
    let read_align = StatxFlags::from_bits_retain(libc::STATX_DIO_READ_ALIGN);
    let found = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN | read_align).ok()?;
    // statx(2): a field is valid only when its bit is set in the returned mask.
    if found.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return None;
    }
    let has_read = found.stx_mask & read_align.bits() != 0;
    Some(Report {
        memory: found.stx_dio_mem_align,
        offset: found.stx_dio_offset_align,
        read_offset: if has_read { found.stx_dio_read_offset_align } else { 0 },
    })
}

#[cfg(not(target_os = "linux"))]
fn report(_: BorrowedFd<'_>) -> Option<Report> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(memory: u32, offset: u32, read_offset: u32) -> Alignment {
        Alignment::from_report(Some(Report { memory, offset, read_offset }))
    }

    #[test]
    fn memory_is_never_below_a_page() {
        assert_eq!(
            (of(4, 512, 0).memory, of(512, 512, 0).memory, of(16384, 512, 0).memory),
            (4096, 4096, 16384)
        );
    }

    #[test]
    fn reads_may_have_smaller_offsets() {
        assert_eq!((of(512, 4096, 512).offset, of(512, 4096, 512).read_offset), (4096, 512));
        assert_eq!(of(512, 512, 0).read_offset, 512);
    }

    #[test]
    fn unknown_and_unsupported_are_told_apart() {
        let unknown = Alignment::from_report(None);
        assert!(!unknown.reported && unknown.direct && unknown.offset == 4096);
        let unsupported = of(0, 0, 0);
        assert!(unsupported.reported && !unsupported.direct && unsupported.offset == 4096);
    }
}
