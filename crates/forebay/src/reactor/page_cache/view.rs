//! The system calls: the second descriptor, cachestat(2), preadv2(2), and how far the kernel reads ahead.

use std::fmt::Display;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{Mode, OFlags};

use super::Tries;

/// The read-ahead assumed where the system does not say.
pub(super) const WINDOW_BYTES_UNKNOWN: u64 = 8 << 20;

/// The reason why a file cannot look into the page cache, and the remedy.
pub(crate) struct Refusal {
    pub(crate) why: String,
    pub(crate) remedy: &'static str,
    /// Whether the process had no descriptor for it.
    pub(crate) lacks_descriptor: bool,
}

/// Opens the file of `fd`, which has this device and inode, once more, without `O_DIRECT` and to read only, and determines how its
/// page cache can be tried. Loads by the new descriptor that follow each other are read ahead by the kernel: set to random access,
/// a load of 4 KiB was twice as slow as a direct read, and a load of 512 KiB three times.
pub(crate) fn open(fd: BorrowedFd<'_>, file: (u64, u64)) -> Result<(OwnedFd, Tries), Refusal> {
    let view = reopen(fd, file).map_err(|error| Refusal {
        why: format!("the file cannot be opened a second time through /proc/self/fd: {error}"),
        remedy: "mount /proc, and let the program read the file by its permissions; with too many open files: raise ulimit -n",
        lacks_descriptor: matches!(error, rustix::io::Errno::MFILE | rustix::io::Errno::NFILE),
    })?;
    let tries = how(view.as_fd())?;
    // Reads that load wait. Where this is refused they are made again, past the page cache.
    let _ = rustix::fs::fcntl_setfl(&view, OFlags::empty());
    Ok((view, tries))
}

fn reopen(fd: BorrowedFd<'_>, file: (u64, u64)) -> rustix::io::Result<OwnedFd> {
    let access = rustix::fs::fcntl_getfl(fd)? & OFlags::ACCMODE;
    if access == OFlags::WRONLY {
        // A descriptor that may not read must not read by another one.
        return Err(rustix::io::Errno::BADF);
    }
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let view = rustix::fs::openat(rustix::fs::CWD, path, flags, Mode::empty())?;
    let found = rustix::fs::fstat(&view)?;
    if (found.st_dev, found.st_ino) == file { Ok(view) } else { Err(rustix::io::Errno::STALE) }
}

/// Returns a hash of a file's device and inode, which all descriptors of it share.
pub(crate) fn identity((device, inode): (u64, u64)) -> u64 {
    // The device's number in the bits that a file's number rarely has; multiplied, so that near numbers are spread.
    (inode ^ device.rotate_left(40)).wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(29)
}

/// Returns how the page cache of an open file can be tried.
pub(crate) fn how(fd: BorrowedFd<'_>) -> Result<Tries, Refusal> {
    let refused =
        |why: &dyn Display, remedy| Err(Refusal { why: why.to_string(), remedy, lacks_descriptor: false });
    match cached_pages(fd, 0, 1) {
        Ok(_) => Ok(Tries::Checked),
        Err(libc::ENOSYS) if is_before_cachestat() => Ok(Tries::Unchecked),
        Err(libc::EPERM) => refused(
            &"cachestat(2) is refused for a file that the program neither owns nor may write",
            "run as the file's owner, or give the program the right to write it",
        ),
        Err(errno) => refused(
            &format_args!("cachestat(2) fails: {}", std::io::Error::from_raw_os_error(errno)),
            "allow cachestat(2) in the seccomp profile; files of hugetlbfs have none",
        ),
    }
}

/// Returns whether the kernel is older than 6.5, which brought cachestat(2): a sandbox may hide the call of a newer one.
fn is_before_cachestat() -> bool {
    let names = rustix::system::uname();
    let release = names.release().to_string_lossy();
    let mut numbers = release.split(|sign: char| !sign.is_ascii_digit()).map_while(|part| part.parse().ok());
    let (major, minor): (u32, u32) = (numbers.next().unwrap_or(u32::MAX), numbers.next().unwrap_or(0));
    (major, minor) < (6, 5)
}

/// Returns whether all pages of a range, which is not empty, are in the page cache. Some of them may still be on their way there.
pub(super) fn is_cached(fd: BorrowedFd<'_>, start: u64, end: u64) -> bool {
    let page = rustix::param::page_size() as u64;
    let pages = (end - 1) / page - start / page + 1;
    cached_pages(fd, start, end - start).is_ok_and(|cached| cached >= pages)
}

/// cachestat(2): the number of pages of a range in the page cache, or the errno.
pub(crate) fn cached_pages(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<u64, i32> {
    /// The number of the call on every architecture whose table is the common one.
    const CACHESTAT: libc::c_long = 451;
    if cfg!(any(target_arch = "mips", target_arch = "mips64")) {
        return Err(libc::EOPNOTSUPP);
    }
    // struct cachestat_range and struct cachestat: pages cached, dirty, under write-back, evicted, evicted lately.
    let range = [offset, len];
    let mut found = [0_u64; 5];
    // SAFETY: both arrays have the layout of the kernel's structures, and live until the call returns.
    let result = unsafe { libc::syscall(CACHESTAT, fd.as_raw_fd(), range.as_ptr(), found.as_mut_ptr(), 0) };
    if result == 0 { Ok(found[0]) } else { Err(errno()) }
}

/// Reads cached bytes: preadv2(2) with `RWF_NOWAIT`. Returns their number, or the errno.
///
/// # Safety
/// `place` has space for `len` bytes, and no other code uses it meanwhile.
pub(super) unsafe fn read_now(
    fd: BorrowedFd<'_>,
    offset: u64,
    place: NonNull<u8>,
    len: usize,
) -> Result<usize, i32> {
    let part = libc::iovec { iov_base: place.as_ptr().cast(), iov_len: len };
    // SAFETY: one vector over memory that the caller vouches for.
    let read = unsafe { libc::preadv2(fd.as_raw_fd(), &part, 1, offset as libc::off_t, libc::RWF_NOWAIT) };
    usize::try_from(read).map_err(|_| errno())
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Returns how far the kernel reads ahead in files of a device, by its number.
///
/// # Errors
/// The lack of a descriptor to read with.
pub(super) fn read_ahead_bytes(device: u64) -> std::io::Result<u64> {
    let numbers = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    // A partition has the queue of its disk, one level up.
    let places = [
        format!("/sys/class/bdi/{numbers}/read_ahead_kb"),
        format!("/sys/dev/block/{numbers}/queue/read_ahead_kb"),
        format!("/sys/dev/block/{numbers}/../queue/read_ahead_kb"),
    ];
    for place in places {
        match std::fs::read_to_string(place) {
            Ok(text) => {
                if let Ok(kib) = text.trim().parse::<u64>() {
                    return Ok(kib.min(64 << 10) << 10);
                }
            }
            Err(cause) if matches!(cause.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                return Err(cause);
            }
            Err(_) => {}
        }
    }
    Ok(WINDOW_BYTES_UNKNOWN)
}
