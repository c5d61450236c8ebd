//! The parts of a file that were ever written. The file system returns the other parts without a request
//! to the device.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use forebay_report::result::Condition;

/// The largest share of unwritten bytes. With a larger one, reading the file does not measure the device.
const UNWRITTEN_SHARE: f64 = 0.01;
const BATCH: usize = 128;
/// A limit beyond the number of extents of any file here. A map without an end must not keep the program.
const BATCHES_MAX: usize = 100_000;
/// `_IOWR('f', 11, struct fiemap)`, of 32 bytes.
const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
const SYNC: u32 = 1;
const LAST: u32 = 1;
const UNWRITTEN: u32 = 0x800;

/// Bytes of one or more files, by the state of the space beneath them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Extents {
    pub(super) written: u64,
    /// Reserved space that still reads as zeros.
    pub(super) unwritten: u64,
    /// Bytes without any space reserved.
    pub(super) holes: u64,
}

/// The kernel's `struct fiemap_extent`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

/// The kernel's `struct fiemap` with space for a batch of extents.
#[repr(C)]
#[derive(Debug, Clone)]
struct RawMap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
    extents: [RawExtent; BATCH],
}

impl Extents {
    /// Counts the extents of the first `bytes` bytes of `file`.
    ///
    /// # Errors
    /// Fails when the file system does not report them.
    pub(super) fn of(file: &File, bytes: u64) -> io::Result<Self> {
        let mut found = Vec::new();
        let mut start = 0;
        for _ in 0..BATCHES_MAX {
            let batch = batch(file, start, bytes - start)?;
            let Some(end) = batch.last() else { break };
            let (next, is_last) = (end.logical.saturating_add(end.length), end.flags & LAST != 0);
            found.extend(batch);
            if is_last || next >= bytes || next <= start {
                break;
            }
            start = next;
        }
        Ok(Self::sum(&found, bytes))
    }

    /// Counts the extents of all regular files in a directory, over their present length.
    ///
    /// # Errors
    /// As for [`of`](Self::of), or the directory cannot be read.
    pub(super) fn of_directory(directory: &Path) -> io::Result<Self> {
        let mut all = Self::default();
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                let file = File::open(entry.path())?;
                let Self { written, unwritten, holes } = Self::of(&file, file.metadata()?.len())?;
                all.written += written;
                all.unwritten += unwritten;
                all.holes += holes;
            }
        }
        Ok(all)
    }

    fn sum(extents: &[RawExtent], bytes: u64) -> Self {
        let (mut written, mut unwritten) = (0, 0);
        for extent in extents {
            let end = extent.logical.saturating_add(extent.length).min(bytes);
            let length = end.saturating_sub(extent.logical);
            *if extent.flags & UNWRITTEN == 0 { &mut written } else { &mut unwritten } += length;
        }
        Self { written, unwritten, holes: bytes.saturating_sub(written + unwritten) }
    }
}

fn batch(file: &File, start: u64, length: u64) -> io::Result<Vec<RawExtent>> {
    let mut map = RawMap {
        start,
        length,
        flags: SYNC,
        mapped: 0,
        room: BATCH as u32,
        reserved: 0,
        extents: [RawExtent::default(); BATCH],
    };
    // SAFETY: the kernel reads the header and writes at most `room` extents behind it, which `map` has space for; it keeps no
    // pointer.
    if unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as _, &raw mut map) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(map.extents.into_iter().take(map.mapped as usize).collect())
}

/// Returns the gate on the file to be read: its `extents`, or the reason why they are not known.
pub(super) fn gate(extents: &io::Result<Extents>) -> Condition {
    const NAME: &str = "extents";
    match extents {
        Ok(Extents { written, unwritten, holes }) => {
            let all = written + unwritten + holes;
            let share = if all == 0 { 0.0 } else { (unwritten + holes) as f64 / all as f64 };
            Condition::at_most(NAME, share, UNWRITTEN_SHARE).with_meaning(
                "share of the file that was never written (reserved only, or holes): no device reads it",
            )
        }
        Err(error) => Condition::unknown(NAME, format!("the file system does not map its files ({error})")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::cleanup::Cleanup;

    #[test]
    fn bytes_are_summed_within_the_part_that_counts() {
        let extent = |logical, length, flags| RawExtent { logical, length, flags, ..RawExtent::default() };
        let extents = [extent(0, 4096, 0), extent(4096, 4096, UNWRITTEN), extent(16_384, 8192, LAST)];
        assert_eq!(Extents::sum(&extents, 20_480), Extents { written: 8192, unwritten: 4096, holes: 8192 });
        assert_eq!(size_of::<RawExtent>(), 56);
        assert_eq!(std::mem::offset_of!(RawMap, extents), 32);
    }

    #[test]
    fn a_file_that_was_only_reserved_fails_and_a_written_one_does_not() {
        let of_most_repeats = |unwritten| gate(&Ok(Extents { written: 100, unwritten, holes: 0 })).passed;
        assert_eq!((of_most_repeats(0), of_most_repeats(50)), (Some(true), Some(false)));
        assert_eq!(gate(&Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))).passed, None);
    }

    #[test]
    fn a_real_file_is_mapped_where_its_file_system_can() {
        let cleanup = Cleanup::default();
        let beside = Path::new(env!("CARGO_MANIFEST_DIR"));
        let temp = cleanup.temp_file(beside, "extents").expect("writable");
        temp.file().write_all_at(&[7; 65_536], 0).expect("space for 64 KiB");
        temp.file().set_len(262_144).expect("a hole");
        match Extents::of(temp.file(), 262_144) {
            Ok(found) => {
                assert_eq!(found.written + found.unwritten + found.holes, 262_144, "{found:?}");
                assert!(found.written >= 65_536 && gate(&Ok(found)).passed == Some(false), "{found:?}");
            }
            Err(error) => assert_eq!(gate(&Err(error)).passed, None),
        }
    }
}
