//! Calls on an open file: its space, its length, its locks, its times and extended attributes.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::{Advice, At, Lock, errno, retry};
use crate::base::error::{Error, ErrorKind, Result};
use crate::io::metadata::{FileKind, Metadata};

/// Returns the metadata of an open file. It blocks on network file systems only.
pub(crate) fn metadata(file: BorrowedFd<'_>) -> Result<Metadata> {
    let found = with_file(file, |file| file.metadata()).map_err(|cause| Error::io("metadata", cause))?;
    let mut metadata = Metadata::from_std(&found);
    if metadata.kind() == FileKind::BlockDevice {
        metadata.set_len(device_len(file).map_err(|cause| errno("metadata", cause))?);
    }
    Ok(metadata)
}

/// Returns the size of a block device, which stat(2) does not return. The position of the descriptor stays: the program may have
/// another of the same open file.
#[cfg(target_os = "linux")]
fn device_len(device: BorrowedFd<'_>) -> rustix::io::Result<u64> {
    use rustix::ioctl::{Getter, Opcode, ioctl, opcode};
    // `_IOR(0x12, 114, size_t)` of linux/fs.h.
    const BLKGETSIZE64: Opcode = opcode::read::<usize>(0x12, 114);
    // SAFETY: for this opcode the kernel writes a u64, whatever the length of size_t, and the getter has memory for one.
    unsafe { ioctl(device, Getter::<BLKGETSIZE64, u64>::new()) }
}

#[cfg(not(target_os = "linux"))]
fn device_len(device: BorrowedFd<'_>) -> rustix::io::Result<u64> {
    rustix::fs::seek(device, rustix::fs::SeekFrom::End(0))
}

/// Returns the metadata of the file under a name; symbolic links are followed.
pub(super) fn metadata_at(operation: &'static str, at: &At) -> Result<Metadata> {
    use rustix::fs::{Mode, OFlags};
    if at.dir().is_none() {
        // One system call.
        return std::fs::metadata(at.path())
            .map(|found| Metadata::from_std(&found))
            .map_err(|cause| Error::io(operation, cause).with_path(at.path()));
    }
    // An `O_PATH` descriptor (open(2)) refers to the file without opening it and needs no read permission. On
    // other systems the file is opened, without waiting for the other end of a pipe.
    #[cfg(target_os = "linux")]
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    #[cfg(not(target_os = "linux"))]
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = retry(|| rustix::fs::openat(at.fd(), at.name(), flags, Mode::empty()))
        .map_err(|cause| errno(operation, cause).with_path(at.path()))?;
    File::from(file)
        .metadata()
        .map(|found| Metadata::from_std(&found))
        .map_err(|cause| Error::io(operation, cause).with_path(at.path()))
}

/// Returns the metadata of the file or symbolic link with this path, which is not one in an open directory.
pub(super) fn symlink_metadata(operation: &'static str, at: &At) -> Result<Metadata> {
    std::fs::symlink_metadata(at.path())
        .map(|found| Metadata::from_std(&found))
        .map_err(|cause| Error::io(operation, cause).with_path(at.path()))
}

/// Returns the metadata of the file at a path, on this thread, if the kernel can find it without any read or request: `None` if not.
/// Symbolic links are followed.
#[cfg(target_os = "linux")]
pub(crate) fn metadata_now(operation: &'static str, path: &Path) -> Option<Result<Metadata>> {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
    // openat2(2), Linux 5.12: RESOLVE_CACHED fails with EAGAIN unless all of the path's names are in the kernel's cache. Systems
    // without it, or that refuse the call, have the ordinary way.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED) {
        Ok(file) => {
            let found = File::from(file).metadata().map(|found| Metadata::from_std(&found));
            Some(found.map_err(|cause| Error::io(operation, cause).with_path(path)))
        }
        Err(Errno::NOENT) => Some(Err(errno(operation, Errno::NOENT).with_path(path))),
        Err(_) => None,
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn metadata_now(_: &'static str, _: &Path) -> Option<Result<Metadata>> {
    None
}

/// Returns whether an open file or directory has no name any more. It blocks on network file systems only:
/// the kernel has the link count in memory.
pub(crate) fn is_removed(file: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{AtFlags, StatxFlags};
        // statx(2): AT_STATX_DONT_SYNC returns the attributes cached on this machine, without a request to a server.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        if let Ok(found) = retry(|| rustix::fs::statx(file, c"", flags, StatxFlags::NLINK)) {
            return Ok(found.stx_nlink == 0);
        }
    }
    retry(|| rustix::fs::fstat(file)).map(|found| found.st_nlink == 0)
}

#[cfg(target_os = "linux")]
pub(super) fn allocate(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<()> {
    // fallocate(2) with mode 0: space is reserved, the length grows, new bytes read as zeros; EINTR is possible.
    retry(|| rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), offset, len))
        .map_err(|cause| errno("allocate", cause).with_range(offset, len))
}

#[cfg(target_os = "linux")]
pub(super) fn write_zeros(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<()> {
    // fallocate(2): FALLOC_FL_WRITE_ZEROES, Linux 6.17. EOPNOTSUPP from older kernels, from file systems without it, and from devices
    // that would have to write the zeros.
    const WRITE_ZEROES: u32 = 0x80;
    let flags = rustix::fs::FallocateFlags::from_bits_retain(WRITE_ZEROES);
    retry(|| rustix::fs::fallocate(file, flags, offset, len))
        .map_err(|cause| errno("write_zeros", cause).with_range(offset, len))
}

#[cfg(target_os = "linux")]
pub(super) fn punch_hole(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<()> {
    use rustix::fs::FallocateFlags as Flags;
    // fallocate(2): FALLOC_FL_PUNCH_HOLE must be ORed with FALLOC_FL_KEEP_SIZE.
    retry(|| rustix::fs::fallocate(file, Flags::PUNCH_HOLE | Flags::KEEP_SIZE, offset, len))
        .map_err(|cause| errno("punch_hole", cause).with_range(offset, len))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn allocate(_: BorrowedFd<'_>, offset: u64, len: u64) -> Result<()> {
    Err(errno("allocate", Errno::OPNOTSUPP).with_range(offset, len))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn write_zeros(_: BorrowedFd<'_>, offset: u64, len: u64) -> Result<()> {
    Err(errno("write_zeros", Errno::OPNOTSUPP).with_range(offset, len))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn punch_hole(_: BorrowedFd<'_>, offset: u64, len: u64) -> Result<()> {
    Err(errno("punch_hole", Errno::OPNOTSUPP).with_range(offset, len))
}

pub(super) fn truncate(file: BorrowedFd<'_>, len: u64) -> Result<()> {
    // ftruncate(2) may return EINTR.
    retry(|| rustix::fs::ftruncate(file, len))
        .map_err(|cause| errno("truncate", cause).with_note(format!("to {len} bytes")))
}

#[cfg(target_os = "linux")]
pub(super) fn advise(file: BorrowedFd<'_>, offset: u64, len: u64, advice: Advice) -> Result<()> {
    use rustix::fs::Advice as Posix;
    let advice = match advice {
        Advice::Normal => Posix::Normal,
        Advice::Sequential => Posix::Sequential,
        Advice::Random => Posix::Random,
        Advice::WillNeed => Posix::WillNeed,
        Advice::DontNeed => Posix::DontNeed,
        Advice::NoReuse => Posix::NoReuse,
    };
    // posix_fadvise(2): a length of 0 means "all bytes to the end of the file".
    retry(|| rustix::fs::fadvise(file, offset, std::num::NonZeroU64::new(len), advice))
        .map_err(|cause| errno("advise", cause).with_range(offset, len))
}

/// Advice is a hint, so systems without the call ignore it.
#[cfg(not(target_os = "linux"))]
pub(super) fn advise(_: BorrowedFd<'_>, _: u64, _: u64, _: Advice) -> Result<()> {
    Ok(())
}

pub(super) fn try_lock(file: BorrowedFd<'_>, lock: Lock) -> Result<()> {
    let how = match lock {
        Lock::Shared => FlockOperation::NonBlockingLockShared,
        Lock::Exclusive => FlockOperation::NonBlockingLockExclusive,
    };
    match retry(|| rustix::fs::flock(file, how)) {
        // flock(2): with LOCK_NB, EWOULDBLOCK reports another holder. Converting a held lock to the other
        // mode is not atomic: the old lock may be lost on the way.
        Err(Errno::WOULDBLOCK) => Err(Error::new(ErrorKind::Locked, "try_lock")),
        other => other.map_err(|cause| errno("try_lock", cause)),
    }
}

pub(super) fn unlock(file: BorrowedFd<'_>) -> Result<()> {
    retry(|| rustix::fs::flock(file, FlockOperation::Unlock)).map_err(|cause| errno("unlock", cause))
}

/// Takes an OFD lock, or releases it.
#[cfg(target_os = "linux")]
pub(super) fn record_lock(file: BorrowedFd<'_>, lock: Option<Lock>) -> Result<()> {
    let kind = match lock {
        Some(Lock::Shared) => libc::F_RDLCK,
        Some(Lock::Exclusive) => libc::F_WRLCK,
        None => libc::F_UNLCK,
    };
    // SAFETY: all fields are numbers. A length of 0 at offset 0 is the whole file.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    let call = || {
        // SAFETY: the descriptor is open for as long as it is borrowed, and the kernel only reads the structure.
        let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, std::ptr::from_ref(&range)) };
        let cause = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
        if done == -1 { Err(cause()) } else { Ok(()) }
    };
    match retry(call) {
        // fcntl(2): either reports another holder.
        Err(Errno::AGAIN | Errno::ACCESS) => Err(Error::new(ErrorKind::Locked, "record_lock")),
        Err(Errno::INVAL) => {
            Err(Error::new(ErrorKind::Unsupported, "record_lock").with_note("this system has no OFD locks"))
        }
        other => other.map_err(|cause| errno("record_lock", cause)),
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn record_lock(_: BorrowedFd<'_>, _: Option<Lock>) -> Result<()> {
    Err(errno("record_lock", Errno::OPNOTSUPP))
}

/// Returns the metadata as of afterwards: a file system keeps times as exactly as it can.
pub(super) fn set_modified(file: BorrowedFd<'_>, modified: SystemTime) -> Result<Metadata> {
    with_file(file, |file| file.set_modified(modified)).map_err(|cause| Error::io("set_modified", cause))?;
    metadata(file)
}

#[cfg(target_os = "linux")]
pub(super) fn set_attribute(file: BorrowedFd<'_>, name: &str, value: &[u8]) -> Result<()> {
    rustix::fs::fsetxattr(file, name, value, rustix::fs::XattrFlags::empty())
        .map_err(|cause| errno("set_attribute", cause))
}

/// Returns the attributes of the space `user.`; an empty list on a file system without attributes.
#[cfg(target_os = "linux")]
pub(super) fn attributes(file: BorrowedFd<'_>) -> Result<Vec<(String, Vec<u8>)>> {
    // xattr(7): the limits of the VFS for the list of names, and for a value.
    const BYTES_MAX: usize = 64 << 10;
    let failed = |cause| errno("attributes", cause);
    let mut names = vec![0_u8; BYTES_MAX];
    let len = match rustix::fs::flistxattr(file, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        listed => listed.map_err(failed)?,
    };
    let mut value = vec![0_u8; BYTES_MAX];
    let mut found = Vec::new();
    for name in names[..len].split(|byte| *byte == 0) {
        // One of another program need not be UTF-8.
        let Some(name) = std::str::from_utf8(name).ok().filter(|name| name.starts_with("user.")) else {
            continue;
        };
        match rustix::fs::fgetxattr(file, name, &mut value[..]) {
            // It was removed meanwhile.
            Err(Errno::NODATA) => {}
            got => found.push((name.to_owned(), value[..got.map_err(failed)?].to_vec())),
        }
    }
    Ok(found)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn set_attribute(_: BorrowedFd<'_>, _: &str, _: &[u8]) -> Result<()> {
    Err(errno("set_attribute", Errno::OPNOTSUPP))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn attributes(_: BorrowedFd<'_>) -> Result<Vec<(String, Vec<u8>)>> {
    Ok(Vec::new())
}

/// Lends `fd` to a call that wants a `File`.
fn with_file<T>(fd: BorrowedFd<'_>, call: impl FnOnce(&File) -> T) -> T {
    // SAFETY: the descriptor is open for as long as it is borrowed, and `ManuallyDrop` keeps the `File` from
    // closing a descriptor that it does not own.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd.as_raw_fd()) });
    call(&file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::meta::{Descriptor, FdOwner, MetaReply, MetaRequest, execute};
    use std::os::fd::AsFd;
    use std::sync::Arc;

    fn owner(file: File) -> FdOwner {
        Arc::new(Descriptor::Os(file.into()))
    }

    fn metadata(file: &FdOwner) -> Metadata {
        match execute(&MetaRequest::FileMetadata { file: file.clone() }).unwrap() {
            MetaReply::Metadata(metadata) => metadata,
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn space_is_given_and_taken_back() {
        let file = owner(tempfile::tempfile().unwrap());
        execute(&MetaRequest::Allocate { file: file.clone(), offset: 0, len: 1 << 20 }).unwrap();
        let full = metadata(&file);
        assert_eq!(full.len(), 1 << 20);
        assert!(full.blocks_bytes() >= 1 << 20);
        execute(&MetaRequest::PunchHole { file: file.clone(), offset: 0, len: 1 << 19 }).unwrap();
        let holed = metadata(&file);
        assert_eq!(holed.len(), 1 << 20);
        assert!(holed.blocks_bytes() <= full.blocks_bytes() - (1 << 19));
        execute(&MetaRequest::Truncate { file: file.clone(), len: 5 }).unwrap();
        assert_eq!(metadata(&file).len(), 5);
        let advice = Advice::DontNeed;
        execute(&MetaRequest::Advise { file: file.clone(), offset: 0, len: 0, advice }).unwrap();
        let error = execute(&MetaRequest::Allocate { file, offset: 7, len: 0 }).unwrap_err();
        assert_eq!((error.raw_os_error(), error.range()), (Some(libc::EINVAL), Some((7, 0))));
    }

    /// Kernels, file systems and devices without it refuse it and change nothing.
    #[test]
    fn zeros_are_written_or_refused() {
        use std::os::unix::fs::FileExt;
        let plain = tempfile::tempfile().unwrap();
        plain.write_all_at(&[7; 16 << 10], 0).unwrap();
        let file = owner(plain.try_clone().unwrap());
        let mut expected = vec![7; 16 << 10];
        match execute(&MetaRequest::WriteZeros { file, offset: 4096, len: 64 << 10 }) {
            Ok(_) => {
                expected[4096..].fill(0);
                expected.resize(68 << 10, 0);
            }
            Err(error) => assert_eq!(error.kind(), crate::ErrorKind::Unsupported, "{error}"),
        }
        let mut found = vec![1; expected.len()];
        plain.read_exact_at(&mut found, 0).unwrap();
        assert!(found == expected && plain.metadata().unwrap().len() == expected.len() as u64);
    }

    #[test]
    fn locks_exclude_other_opens_of_the_file() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let [one, two] = [(), ()].map(|()| owner(named.reopen().unwrap()));
        let try_lock =
            |file: &FdOwner, lock| execute(&MetaRequest::TryLock { file: file.clone(), lock }).map(|_| ());
        try_lock(&one, Lock::Shared).unwrap();
        try_lock(&two, Lock::Shared).unwrap();
        assert_eq!(try_lock(&two, Lock::Exclusive).unwrap_err().kind(), ErrorKind::Locked);
        execute(&MetaRequest::Unlock { file: one.clone() }).unwrap();
        try_lock(&two, Lock::Exclusive).unwrap();
        assert_eq!(try_lock(&one, Lock::Shared).unwrap_err().kind(), ErrorKind::Locked);
        drop(two);
        try_lock(&one, Lock::Exclusive).unwrap();
    }

    #[test]
    fn record_locks_exclude_those_of_fcntl_alone() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let [one, two] = [(), ()].map(|()| owner(named.reopen().unwrap()));
        let record_lock =
            |file: &FdOwner, lock| execute(&MetaRequest::RecordLock { file: file.clone(), lock }).map(|_| ());
        let locked = |result: Result<()>| result.unwrap_err().kind() == ErrorKind::Locked;
        match record_lock(&one, Some(Lock::Shared)) {
            Err(error) if error.kind() == ErrorKind::Unsupported => return println!("skipped: {error}"),
            result => result.unwrap(),
        }
        record_lock(&two, Some(Lock::Shared)).unwrap();
        assert!(locked(record_lock(&two, Some(Lock::Exclusive))));
        record_lock(&one, None).unwrap();
        record_lock(&two, Some(Lock::Exclusive)).unwrap();
        assert!(locked(record_lock(&one, Some(Lock::Shared))));
        // A POSIX lock, also of this process. Its descriptor is closed last, as any close of the file releases it.
        let posix = named.reopen().unwrap();
        let lock_posix = || rustix::fs::fcntl_lock(&posix, FlockOperation::NonBlockingLockExclusive);
        assert!(lock_posix().is_err());
        execute(&MetaRequest::TryLock { file: one.clone(), lock: Lock::Exclusive }).unwrap();
        drop(two);
        lock_posix().unwrap();
        assert!(locked(record_lock(&one, Some(Lock::Exclusive))));
    }

    #[test]
    fn times_and_attributes_are_set() {
        let file = owner(tempfile::tempfile().unwrap());
        let modified = SystemTime::UNIX_EPOCH + std::time::Duration::new(1_700_000_000, 123_456_700);
        let MetaReply::Metadata(found) =
            execute(&MetaRequest::SetModified { file: file.clone(), modified }).unwrap()
        else {
            unreachable!()
        };
        assert_eq!(found.modified(), Some(modified));
        let set = |name: &str, value: &[u8]| {
            let (name, value) = (name.to_owned(), value.to_vec());
            execute(&MetaRequest::SetAttribute { file: file.clone(), name, value }).map(|_| ())
        };
        match set("user.one", b"1") {
            Err(error) => assert_eq!(error.kind(), crate::ErrorKind::Unsupported, "{error}"),
            Ok(()) => {
                set("user.two", b"").unwrap();
                set("user.one", b"one").unwrap();
                assert!(set("user.three", &[7; 1 << 20]).is_err());
                let MetaReply::Attributes(mut found) =
                    execute(&MetaRequest::Attributes { file: file.clone() }).unwrap()
                else {
                    unreachable!()
                };
                found.sort();
                let expected = [("user.one", &b"one"[..]), ("user.two", &b""[..])];
                assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_vec())));
            }
        }
    }

    #[test]
    fn lending_a_descriptor_does_not_close_it() {
        let file = tempfile::tempfile().unwrap();
        with_file(file.as_fd(), |lent| lent.set_len(3)).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 3);
    }
}
