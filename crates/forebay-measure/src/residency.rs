//! The part of a file in the page cache, and its eviction.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::ptr;

use forebay::device::Device;
use forebay::internal::cached_pages;
use rustix::fs::Advice;
use rustix::mm::{MapFlags, ProtFlags};

/// The size of the windows in which the file is mapped. The mapping costs no memory, but mincore returns
/// one byte a page.
const WINDOW_BYTES: u64 = 1 << 30;

/// The most bytes whose pages are checked, in about two seconds. A longer file is sampled by windows.
const LOOKED_AT_MAX: u64 = 64 << 30;
/// The size of such a window.
const SAMPLED_BYTES: u64 = 16 << 20;

/// Returns how many of the first `length` bytes of `file` are in the page cache: by cachestat if many, else by mincore; above 64
/// GiB approximately, by evenly spaced windows.
///
/// The kernel reports it only to processes that own the file or may write it; for anyone else every page
/// counts as cached.
///
/// # Errors
/// Fails when the file cannot be mapped.
pub fn resident_bytes(file: &File, length: u64) -> io::Result<u64> {
    let page_bytes = rustix::param::page_size() as u64;
    if length > WINDOW_BYTES
        && has_own_pages(file)
        && let Ok(pages) = cached_pages(file.as_fd(), 0, length)
    {
        return Ok((pages * page_bytes).min(length));
    }
    let (window_max, distance) = windows(length);
    let (mut resident, mut seen, mut offset) = (0, 0, 0);
    while offset < length {
        let window = window_max.min(length - offset);
        let pages = count_resident(file, offset, window as usize, page_bytes as usize)?;
        resident += (pages as u64 * page_bytes).min(window);
        seen += window;
        offset += distance;
    }
    Ok(if seen < length { (resident as f64 * (length as f64 / seen as f64)) as u64 } else { resident })
}

/// Returns whether the pages of a file are its own: on overlay and FUSE, whose files may stand for others, a mapping alone leads to
/// them.
fn has_own_pages(file: &File) -> bool {
    let device = Device::of_fd(file.as_fd()).unwrap_or_default();
    match device.file_system().map(|file_system| file_system.type_name()) {
        Some(name) => name != "overlay" && !name.starts_with("fuse"),
        // A block device; or the file system is not known, where /proc is not there.
        None => !device.layers().is_empty(),
    }
}

/// Returns the size of the windows in which a file of this length is looked at, and the distance of their beginnings.
fn windows(length: u64) -> (u64, u64) {
    if length <= LOOKED_AT_MAX {
        return (WINDOW_BYTES, WINDOW_BYTES);
    }
    let count = LOOKED_AT_MAX / SAMPLED_BYTES;
    (SAMPLED_BYTES, length.div_ceil(count).next_multiple_of(SAMPLED_BYTES))
}

fn count_resident(file: &File, offset: u64, bytes: usize, page_bytes: usize) -> io::Result<usize> {
    let mut map = vec![0_u8; bytes.div_ceil(page_bytes)];
    // SAFETY: this is a new mapping at an address that the kernel chooses; nothing ever dereferences it.
    let address = unsafe {
        rustix::mm::mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file.as_fd(), offset)
    }?;
    // SAFETY: `address` is the start of the mapping of `bytes` bytes made above, and `map` has one byte for each of its pages.
    let outcome = unsafe { libc::mincore(address, bytes, map.as_mut_ptr()) };
    let error = io::Error::last_os_error();
    // SAFETY: this unmaps the mapping made above, of which no reference exists.
    unsafe { rustix::mm::munmap(address, bytes) }?;
    if outcome != 0 {
        return Err(error);
    }
    Ok(map.iter().filter(|page| **page & 1 == 1).count())
}

/// Asks the kernel to drop the clean pages of `file`. It may keep some, so check [`resident_bytes`] afterwards.
///
/// # Errors
/// Fails with the error of fadvise.
pub fn evict(file: &File) -> io::Result<()> {
    // A length of zero means "to the end of the file".
    Ok(rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?)
}

/// Drops the clean page cache of the whole machine.
///
/// # Errors
/// Fails when the user may not do it (it needs root, and a writable /proc/sys).
pub fn drop_all_caches() -> io::Result<()> {
    io::Write::write_all(&mut OpenOptions::new().write(true).open("/proc/sys/vm/drop_caches")?, b"1\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Cleanup;
    use std::os::unix::fs::FileExt;

    #[test]
    fn freshly_written_pages_are_resident() {
        let temp = Cleanup::default().temp_file(&std::env::temp_dir(), "resident").expect("writable");
        let file = temp.file();
        // A long file uses another call. The kernel may reclaim pages at any time.
        for at in [0, 3 << 30] {
            loop {
                file.write_all_at(&vec![1; 1 << 20], at).expect("space for 1 MiB");
                let resident = resident_bytes(file, at + (1 << 20)).expect("it can be looked at");
                if resident >= 1 << 20 {
                    break;
                }
            }
        }
        assert_eq!(resident_bytes(file, 0).expect("nothing to map"), 0);
    }

    /// Regression: a file of 1 TiB was looked at for 35 s, page by page, before each sample.
    #[test]
    fn a_long_file_is_looked_at_in_few_windows() {
        assert_eq!(windows(64 << 30), (1 << 30, 1 << 30));
        assert_eq!(windows(1 << 40), (16 << 20, 256 << 20));
        for length in [(64 << 30) + 1, 1 << 40, (15 << 40) + 4096] {
            let (window, distance) = windows(length);
            assert!(length.div_ceil(distance) * window <= LOOKED_AT_MAX && distance >= window, "{length}");
        }
        let temp = Cleanup::default().temp_file(&std::env::temp_dir(), "sparse").expect("writable");
        temp.file().set_len(1 << 40).expect("a sparse file");
        assert_eq!(resident_bytes(temp.file(), 1 << 40).expect("it can be mapped"), 0);
    }
}
