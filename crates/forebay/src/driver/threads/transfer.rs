//! Execution of one request as a blocking system call.

use std::io;
use std::os::fd::RawFd;

use crate::driver::IoRequest;
use crate::io::op::OpKind;

/// Linux cuts every transfer at this length; elsewhere more than `INT_MAX` is an error.
const TRANSFER_MAX: u32 = 0x7fff_f000;

/// Executes a request and returns the bytes transferred, or a negative errno, but never `EINTR`. A write's
/// sync is performed too, as described at [`Driver::submit`](crate::driver::Driver::submit).
///
/// # Safety
/// For `Read` the memory must be writable for `len` bytes, for `Write` readable, and no one else may use it
/// meanwhile. The descriptor must still refer to the request's file.
pub(crate) unsafe fn run(request: &IoRequest) -> i32 {
    match request.kind {
        OpKind::Nop => 0,
        OpKind::Command => -libc::EOPNOTSUPP,
        OpKind::SyncData => sync_data(request.fd),
        OpKind::SyncAll => sync_all(request.fd),
        OpKind::Read | OpKind::Write => match request.memory {
            None => -libc::EFAULT,
            // SAFETY: the caller's promise is passed on unchanged.
            Some(memory) => unsafe {
                match request.sync {
                    None => transfer(request, memory.as_ptr()),
                    Some(sync) => write_durably(request, memory.as_ptr(), sync),
                }
            },
        },
    }
}

/// Writes, and syncs if all bytes were written.
///
/// # Safety
/// As for [`run`]; `memory` is the request's.
unsafe fn write_durably(request: &IoRequest, memory: *mut u8, sync: OpKind) -> i32 {
    #[cfg(target_os = "linux")]
    if request.flush == crate::io::op::Flush::Blocking {
        let durable = if sync == OpKind::SyncAll { libc::RWF_SYNC } else { libc::RWF_DSYNC };
        // SAFETY: the caller's promise is passed on unchanged.
        let result = unsafe { with_flags(request, memory, request.rw_flags | durable) };
        // A file system that does not support the flags has written nothing; the plain call repeats any other
        // error.
        if !matches!(-result, libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS) {
            return outcome(request, result, || 0);
        }
    }
    // SAFETY: as above.
    let result = unsafe { transfer(request, memory) };
    outcome(request, result, || match sync {
        OpKind::SyncAll => sync_all(request.fd),
        _ => sync_data(request.fd),
    })
}

/// Returns the result of a durable write, given the `result` of its write.
fn outcome(request: &IoRequest, result: i32, sync: impl FnOnce() -> i32) -> i32 {
    match u32::try_from(result) {
        Ok(written) if written >= request.len => sync(),
        // Zero would mean that all is done.
        Ok(0) => -libc::EIO,
        _ => result,
    }
}

/// # Safety
/// As for [`run`]; `memory` is the request's.
#[cfg(target_os = "linux")]
unsafe fn transfer(request: &IoRequest, memory: *mut u8) -> i32 {
    /// preadv2(2), Linux 6.14: pages leave the page cache as soon as the transfer is through with them.
    const RWF_DONTCACHE: i32 = 0x80;

    if request.rw_flags == 0 {
        // SAFETY: the caller's promise is passed on unchanged.
        return unsafe { plain(request, memory) };
    }
    // SAFETY: as above.
    let result = unsafe { with_flags(request, memory, request.rw_flags) };
    let refused = matches!(-result, libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS);
    if !refused || request.rw_flags & RWF_DONTCACHE == 0 {
        return result;
    }
    // Not remembered: another file system may well support the flag, and the refusal costs less than a
    // microsecond.
    let result = match request.rw_flags & !RWF_DONTCACHE {
        // SAFETY: as above.
        0 => unsafe { plain(request, memory) },
        // SAFETY: as above.
        others => unsafe { with_flags(request, memory, others) },
    };
    if let Some(moved) = u64::try_from(result).ok().and_then(std::num::NonZeroU64::new) {
        // SAFETY: a transfer with this descriptor just worked, and the caller keeps it open.
        let file = unsafe { std::os::fd::BorrowedFd::borrow_raw(request.fd) };
        // Advice only: it starts the write-back of freshly written pages, which leave the cache if that
        // completes in time.
        let _ = rustix::fs::fadvise(file, request.offset, Some(moved), rustix::fs::Advice::DontNeed);
    }
    result
}

/// # Safety
/// As for [`run`]; `memory` is the request's.
#[cfg(not(target_os = "linux"))]
unsafe fn transfer(request: &IoRequest, memory: *mut u8) -> i32 {
    // `RWF_*` exist on Linux only, so no flags are applied.
    // SAFETY: the caller's promise is passed on unchanged.
    unsafe { plain(request, memory) }
}

/// # Safety
/// As for [`run`]; `memory` is the request's.
unsafe fn plain(request: &IoRequest, memory: *mut u8) -> i32 {
    #[cfg(not(target_os = "linux"))]
    use libc::{off_t, pread, pwrite};
    // `off_t` has 32 bits on some 32-bit Linux systems.
    #[cfg(target_os = "linux")]
    use libc::{off64_t as off_t, pread64 as pread, pwrite64 as pwrite};

    let (fd, offset) = (request.fd, request.offset as off_t);
    let len = request.len.min(TRANSFER_MAX) as usize;
    match request.kind {
        // SAFETY: the caller has `len` readable bytes there.
        OpKind::Write => retry(|| unsafe { pwrite(fd, memory.cast_const().cast(), len, offset) }),
        // SAFETY: the caller has `len` writable bytes there.
        _ => retry(|| unsafe { pread(fd, memory.cast(), len, offset) }),
    }
}

/// # Safety
/// As for [`run`]; `memory` is the request's.
#[cfg(target_os = "linux")]
unsafe fn with_flags(request: &IoRequest, memory: *mut u8, rw_flags: i32) -> i32 {
    // Called by number, because not every C library has the wrapper. The kernel expects the offset in two halves and, where a long
    // holds all of it, ignores the second.
    let call = match request.kind {
        OpKind::Write => libc::SYS_pwritev2,
        _ => libc::SYS_preadv2,
    };
    let (low, high) = (request.offset as libc::c_long, (request.offset >> 32) as libc::c_long);
    let vector = libc::iovec { iov_base: memory.cast(), iov_len: request.len.min(TRANSFER_MAX) as usize };
    // SAFETY: one vector over memory that the caller has there, writable where the call writes.
    retry(|| unsafe {
        libc::syscall(call, request.fd, std::ptr::from_ref(&vector), 1, low, high, rw_flags) as isize
    })
}

#[cfg(any(
    target_os = "linux",
    target_os = "android",
    target_os = "freebsd",
    target_os = "netbsd",
    target_os = "openbsd",
    target_os = "dragonfly",
    target_os = "illumos",
    target_os = "solaris",
))]
fn sync_data(fd: RawFd) -> i32 {
    // SAFETY: fdatasync(2) has no pointer arguments and checks the descriptor.
    retry(|| unsafe { libc::fdatasync(fd) } as isize)
}

#[cfg(not(any(
    target_os = "linux",
    target_os = "android",
    target_os = "freebsd",
    target_os = "netbsd",
    target_os = "openbsd",
    target_os = "dragonfly",
    target_os = "illumos",
    target_os = "solaris",
)))]
fn sync_data(fd: RawFd) -> i32 {
    sync_all(fd)
}

fn sync_all(fd: RawFd) -> i32 {
    #[cfg(target_vendor = "apple")]
    {
        // On these systems fsync(2) leaves the bytes in the device's volatile cache; this call flushes that cache.
        // SAFETY: F_FULLFSYNC has no pointer arguments, and fcntl(2) checks the descriptor.
        let result = retry(|| unsafe { libc::fcntl(fd, libc::F_FULLFSYNC) } as isize);
        // The weaker call is only for file systems that do not support this one; an I/O error must be
        // reported.
        if !matches!(-result, libc::ENOTSUP | libc::ENOTTY | libc::EINVAL) {
            return result;
        }
    }
    // SAFETY: fsync(2) has no pointer arguments and checks the descriptor.
    retry(|| unsafe { libc::fsync(fd) } as isize)
}

/// Repeats the call until its result is not `EINTR`.
fn retry(mut call: impl FnMut() -> isize) -> i32 {
    loop {
        let result = call();
        if result >= 0 {
            // Transfers are cut to `TRANSFER_MAX`, so this always fits.
            return i32::try_from(result).unwrap_or(i32::MAX);
        }
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        if errno != libc::EINTR {
            return -errno;
        }
    }
}
