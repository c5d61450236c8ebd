//! Copies a range from file to file: in the kernel where possible, else through a bounded buffer and the page
//! cache.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::{errno, retry};
use crate::base::error::{Error, Result};

const OPERATION: &str = "copy_range";

/// Bytes of memory that a copy by reading and writing uses.
const BUFFER: u64 = 256 << 10;

/// Copies until `len` bytes are copied or the source ends, and returns the number of bytes copied.
///
/// The kernel copies where the file systems support it; then holes may stay holes, and some file systems
/// share the blocks of both files. Otherwise the bytes are read and written.
pub(super) fn copy_range(
    from: BorrowedFd<'_>,
    offset: u64,
    len: u64,
    to: BorrowedFd<'_>,
    to_offset: u64,
) -> Result<u64> {
    let failed = |error: Error| error.with_range(offset, len);
    let too_far = || failed(Error::invalid(OPERATION, "a file's offsets end at 2^63 - 1"));
    let room = (i64::MAX as u64).checked_sub(to_offset).ok_or_else(too_far)?;
    if offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
        return Err(too_far());
    }
    // copy_file_range(2) rejects overlapping ranges of one file with EINVAL; reading and writing would mix
    // them up.
    let same_file = same_file(from, to);
    if offset.abs_diff(to_offset) < len && same_file {
        return Err(failed(Error::invalid(OPERATION, "source and target overlap in the same file")));
    }
    let behind = if same_file || len > room { bytes_behind(from, offset) } else { u64::MAX };
    if len.min(behind) > room {
        return Err(too_far());
    }
    // A copy behind the end of its source would extend it, and then read zeros where the source had ended. Files of procfs have more
    // bytes than stat(2) returns.
    let len = if same_file { len.min(behind) } else { len.min(room) };
    let outcome =
        in_kernel(from, offset, len, to, to_offset).map_err(|cause| failed(Error::io(OPERATION, cause)))?;
    match outcome {
        CopyOutcome::All(bytes) => Ok(bytes),
        CopyOutcome::Refused { after } => by_hand(from, offset + after, len - after, to, to_offset + after)
            .map(|bytes| after + bytes)
            .map_err(failed),
    }
}

enum CopyOutcome {
    /// Copied up to the requested end, or the end of the source.
    #[cfg_attr(
        not(target_os = "linux"),
        allow(dead_code, reason = "the call that answers this is Linux's own")
    )]
    All(u64),
    /// The kernel cannot copy between these two files; it stopped after `after` bytes.
    Refused { after: u64 },
}

#[cfg(target_os = "linux")]
fn in_kernel(
    from: BorrowedFd<'_>,
    offset: u64,
    len: u64,
    to: BorrowedFd<'_>,
    to_offset: u64,
) -> io::Result<CopyOutcome> {
    use rustix::io::Errno;
    let mut done = 0;
    while done < len {
        // The kernel moves at most 0x7ffff000 bytes a call (read(2)); a round number stays aligned for direct
        // files.
        let step = (len - done).min(1 << 30) as usize;
        let (mut from_at, mut to_at) = (offset + done, to_offset + done);
        match retry(|| rustix::fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), step)) {
            // copy_file_range(2): "If the file offset of fd_in is at or past the end of file, no bytes are
            // copied". Some file systems also return 0 for files of unknown length. Reading distinguishes the
            // two, at the cost of one read.
            Ok(0) if done == 0 => return Ok(CopyOutcome::Refused { after: 0 }),
            Ok(0) => break,
            Ok(bytes) => done += bytes as u64,
            // copy_file_range(2): EXDEV across file systems, EINVAL unless both are regular files (and from
            // direct files at odd offsets), EOPNOTSUPP from file systems; ENOSYS and EPERM from kernels and
            // sandboxes without it.
            Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => {
                return Ok(CopyOutcome::Refused { after: done });
            }
            Err(cause) => return Err(cause.into()),
        }
    }
    Ok(CopyOutcome::All(done))
}

#[cfg(not(target_os = "linux"))]
fn in_kernel(_: BorrowedFd<'_>, _: u64, _: u64, _: BorrowedFd<'_>, _: u64) -> io::Result<CopyOutcome> {
    Ok(CopyOutcome::Refused { after: 0 })
}

fn by_hand(from: BorrowedFd<'_>, offset: u64, len: u64, to: BorrowedFd<'_>, to_offset: u64) -> Result<u64> {
    if len == 0 {
        return Ok(0);
    }
    let reopened = [buffered(from, false)?, buffered(to, true)?];
    let from = reopened[0].as_ref().map_or(from, |file| file.as_fd());
    let to = reopened[1].as_ref().map_or(to, |file| file.as_fd());
    let mut buffer = vec![0; len.min(BUFFER) as usize];
    let mut done = 0;
    while done < len {
        let step = (len - done).min(BUFFER) as usize;
        let got = retry(|| rustix::io::pread(from, &mut buffer[..step], offset + done))
            .map_err(|cause| errno(OPERATION, cause).with_note("reading the source"))?;
        if got == 0 {
            break;
        }
        let mut put = 0;
        while put < got {
            // pwrite(2) may write fewer bytes than requested, for example if space runs out; the next call
            // returns the reason.
            let wrote = retry(|| rustix::io::pwrite(to, &buffer[put..got], to_offset + done + put as u64));
            put += match wrote {
                Ok(0) => Err(Error::io(OPERATION, io::ErrorKind::WriteZero.into())),
                other => other.map_err(|cause| errno(OPERATION, cause)),
            }
            .map_err(|error| error.with_note("writing the target"))?;
        }
        done += got as u64;
    }
    Ok(done)
}

/// Opens the file of a direct descriptor again through the page cache, which accepts any offset, length and memory. Returns `None`
/// if `fd` itself uses the page cache.
fn buffered(fd: BorrowedFd<'_>, write: bool) -> Result<Option<File>> {
    if !is_direct(fd) {
        return Ok(None);
    }
    // proc_pid_fd(5): opening the link opens the file itself anew, with its own flags, whether it has a name
    // or not.
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    File::options().read(!write).write(write).open(link).map(Some).map_err(|cause| {
        let error = Error::io(OPERATION, cause);
        // The caller finds a descriptor, or names the limit.
        if error.is_out_of_descriptors() {
            return error;
        }
        error.with_note("a direct file could not be opened again for a copy (is /proc mounted?)")
    })
}

#[cfg(target_os = "linux")]
fn is_direct(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::DIRECT))
}

#[cfg(not(target_os = "linux"))]
fn is_direct(_: BorrowedFd<'_>) -> bool {
    false
}

fn same_file(one: impl AsFd, other: impl AsFd) -> bool {
    match (rustix::fs::fstat(one), rustix::fs::fstat(other)) {
        (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

/// Returns the number of bytes of a file from `offset` on. For files that are not regular, and so never grow,
/// it returns the maximum.
fn bytes_behind(file: BorrowedFd<'_>, offset: u64) -> u64 {
    match rustix::fs::fstat(file) {
        Ok(found) if rustix::fs::FileType::from_raw_mode(found.st_mode).is_file() => {
            u64::try_from(found.st_size).unwrap_or(0).saturating_sub(offset)
        }
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 31 % 251) as u8).collect()
    }

    fn content(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn copies_at_any_offset_and_stops_at_the_end() {
        let [from, to] = [(), ()].map(|()| tempfile::tempfile().unwrap());
        let bytes = pattern(700_001);
        from.write_all_at(&bytes, 0).unwrap();
        assert_eq!(copy_range(from.as_fd(), 3, 700_001, to.as_fd(), 5).unwrap(), 699_998);
        assert_eq!(content(&to)[5..], bytes[3..]);
        assert_eq!(copy_range(from.as_fd(), 700_001, 5, to.as_fd(), 0).unwrap(), 0);
        assert_eq!(copy_range(from.as_fd(), 0, 0, to.as_fd(), 0).unwrap(), 0);
        let last = i64::MAX as u64;
        assert_eq!(copy_range(from.as_fd(), 700_000, last - 700_000, to.as_fd(), 9).unwrap(), 1);
        assert_eq!(copy_range(from.as_fd(), 700_001, 5, to.as_fd(), last).unwrap(), 0);
        let error = copy_range(from.as_fd(), 0, 5, to.as_fd(), last - 4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }

    #[test]
    fn by_hand_copies_the_same() {
        let [from, to] = [(), ()].map(|()| tempfile::tempfile().unwrap());
        let bytes = pattern(3 * BUFFER as usize + 17);
        from.write_all_at(&bytes, 0).unwrap();
        let copied = by_hand(from.as_fd(), 1, bytes.len() as u64, to.as_fd(), 0).unwrap();
        assert_eq!(copied, bytes.len() as u64 - 1);
        assert_eq!(content(&to), bytes[1..]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn direct_files_copy_at_odd_offsets_and_across_file_systems() {
        // Two file systems if the machine has two, else the same one twice: both must work.
        let build = std::env::current_exe().unwrap();
        let build = build.parent().unwrap();
        for other in [std::path::Path::new("/dev/shm"), build] {
            let Ok(dir) = tempfile::tempdir_in(other) else { continue };
            let here = tempfile::tempdir_in(build).unwrap();
            let open = |path: std::path::PathBuf| {
                let mut options = File::options();
                options.read(true).write(true).create(true);
                // A file system without direct I/O copies in the same way.
                options
                    .clone()
                    .custom_flags(libc::O_DIRECT)
                    .open(&path)
                    .or_else(|_| options.open(&path))
                    .unwrap()
            };
            let [from, to] = [here.path().join("from"), dir.path().join("to")];
            let bytes = pattern(1_000_003);
            std::fs::write(&from, &bytes).unwrap();
            let (from, direct) = (open(from), open(to.clone()));
            assert_eq!(copy_range(from.as_fd(), 1, 999_999, direct.as_fd(), 7).unwrap(), 999_999);
            assert_eq!(std::fs::read(&to).unwrap()[7..], bytes[1..1_000_000]);
        }
    }

    #[test]
    fn overlap_in_one_file_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&pattern(100), 0).unwrap();
        let error = copy_range(file.as_fd(), 0, 50, file.as_fd(), 49).unwrap_err();
        assert_eq!((error.kind(), error.range()), (ErrorKind::InvalidInput, Some((0, 50))));
        assert_eq!(copy_range(file.as_fd(), 0, 50, file.as_fd(), 50).unwrap(), 50);
        let error = copy_range(file.as_fd(), u64::MAX, 2, file.as_fd(), 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    /// Found by a random sequence: a copy from before the end of a file to behind it. The first 8 KiB made
    /// the file longer; then 4 KiB of zeros behind the old end were read, copied and counted too.
    #[test]
    fn a_copy_within_a_file_ends_where_the_file_ended_before() {
        let file = tempfile::tempfile().unwrap();
        let bytes = pattern(28_672);
        file.write_all_at(&bytes, 0).unwrap();
        assert_eq!(copy_range(file.as_fd(), 20_480, 12_288, file.as_fd(), 45_568).unwrap(), 8192);
        assert_eq!(content(&file)[45_568..], bytes[20_480..]);
        assert_eq!(copy_range(file.as_fd(), 60_000, 10, file.as_fd(), 90_000).unwrap(), 0);
        assert_eq!(file.metadata().unwrap().len(), 45_568 + 8192);
    }
}
