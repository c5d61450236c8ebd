//! Opening files, named and unnamed.

use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{At, OpenHow, errno, retry};
use crate::base::error::{Error, ErrorKind, Result};

pub(super) fn open(at: &At, how: &OpenHow) -> Result<OwnedFd> {
    const OPERATION: &str = "open";
    let named = |error: Error| error.with_path(at.path());
    if !how.read && !how.write {
        return Err(named(Error::invalid(OPERATION, "a file is opened to read it, to write it, or both")));
    }
    if !how.write && (how.create || how.create_new || how.truncate) {
        return Err(named(Error::invalid(
            OPERATION,
            "creating or truncating a file needs it opened for writing",
        )));
    }
    // A new file is an ordinary one, and O_EXCL opens no other.
    if !how.create_new {
        refuse_special(at).map_err(named)?;
    }
    let mut flags = OFlags::CLOEXEC | access(how.read, how.write);
    flags.set(OFlags::CREATE, how.create || how.create_new);
    flags.set(OFlags::EXCL, how.create_new);
    flags.set(OFlags::TRUNC, how.truncate);
    open_with(at.fd(), at.name(), flags, Mode::from_raw_mode(how.mode as _), how.direct).map_err(|cause| {
        if how.create_new && how.direct && cause == Errno::INVAL {
            remove_refused(at);
        }
        named(open_error(OPERATION, cause, how.direct))
    })
}

/// Removes the new file that a file system without direct I/O has created before it refused `O_DIRECT`, so that the next open can
/// create it.
fn remove_refused(at: &At) {
    let Ok(found) = retry(|| rustix::fs::statat(at.fd(), at.name(), AtFlags::SYMLINK_NOFOLLOW)) else {
        return;
    };
    if found.st_size == 0 && matches!(FileType::from_raw_mode(found.st_mode), FileType::RegularFile) {
        let _ = rustix::fs::unlinkat(at.fd(), at.name(), AtFlags::empty());
    }
}

pub(super) fn temp_file(dir: &At, direct: bool) -> Result<OwnedFd> {
    const OPERATION: &str = "temp_file";
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::CLOEXEC | OFlags::RDWR;
    let failed = |cause| open_error(OPERATION, cause, direct).with_path(dir.path());
    #[cfg(target_os = "linux")]
    match open_with(dir.fd(), dir.name(), flags | OFlags::TMPFILE, mode, direct) {
        // open(2), O_TMPFILE: EOPNOTSUPP from file systems without it; EISDIR or ENOENT from kernels without it.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {}
        other => return other.map_err(failed),
    }
    for _ in 0..16 {
        // A fresh state has random keys: unpredictable enough for a name that O_EXCL guards.
        let random = std::hash::RandomState::new().build_hasher().finish();
        let path = dir.name().join(format!(".forebay-{random:016x}.tmp"));
        match open_with(dir.fd(), &path, flags | OFlags::CREATE | OFlags::EXCL, mode, direct) {
            Err(Errno::EXIST) => {}
            Err(cause) => {
                if direct && cause == Errno::INVAL {
                    // Such a file system may have created the file before it returned the error; no other
                    // process has a file of this name.
                    let _ = rustix::fs::unlinkat(dir.fd(), &path, AtFlags::empty());
                }
                return Err(failed(cause));
            }
            Ok(file) => {
                rustix::fs::unlinkat(dir.fd(), &path, AtFlags::empty()).map_err(failed)?;
                return Ok(file);
            }
        }
    }
    Err(failed(Errno::EXIST))
}

fn access(read: bool, write: bool) -> OFlags {
    match (read, write) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    }
}

fn open_with(
    dir: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    direct: bool,
) -> rustix::io::Result<OwnedFd> {
    #[cfg(any(target_os = "linux", target_os = "freebsd"))]
    let flags = if direct { flags | OFlags::DIRECT } else { flags };
    #[cfg(not(any(target_os = "linux", target_os = "freebsd", target_vendor = "apple")))]
    if direct {
        return Err(Errno::OPNOTSUPP);
    }
    // open(2) may return EINTR on slow devices (NFS, FUSE).
    let file = retry(|| rustix::fs::openat(dir, path, flags, mode))?;
    #[cfg(target_vendor = "apple")]
    if direct {
        // fcntl(2), F_NOCACHE: the counterpart of O_DIRECT on this system.
        rustix::fs::fcntl_nocache(&file, true)?;
    }
    Ok(file)
}

/// Rejects files without bytes at offsets. Opening a FIFO would block a thread of the pool until its other
/// end is opened (fifo(7)), so the check runs before the open.
fn refuse_special(at: &At) -> Result<()> {
    let Ok(found) = retry(|| rustix::fs::statat(at.fd(), at.name(), AtFlags::empty())) else {
        // The file is missing or cannot be inspected: the open itself returns the error.
        return Ok(());
    };
    let what = match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile | FileType::BlockDevice => return Ok(()),
        FileType::Directory => "a directory",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "a character device",
    };
    Err(Error::invalid(
        "open",
        format!("it is {what}, but only regular files and block devices have offsets"),
    ))
}

/// Sets or clears `O_DIRECT` of an open file: fcntl(2), `F_SETFL`, which refuses what open(2) refuses.
#[cfg(target_os = "linux")]
pub(crate) fn set_direct(fd: BorrowedFd<'_>, direct: bool) -> rustix::io::Result<()> {
    let mut flags = rustix::fs::fcntl_getfl(fd)?;
    if flags.contains(OFlags::DIRECT) == direct {
        return Ok(());
    }
    flags.set(OFlags::DIRECT, direct);
    rustix::fs::fcntl_setfl(fd, flags)
}

/// Reads the first block of a file that has `O_DIRECT`. Returns whether its file system supports direct requests; `None` where that
/// does not show, because the file is empty or was not opened to read.
pub(crate) fn takes_direct(fd: BorrowedFd<'_>) -> Option<bool> {
    #[repr(C, align(4096))]
    struct Page([u8; 4096]);
    let mut page = Page([0; 4096]);
    match retry(|| rustix::io::pread(fd, &mut page.0[..], 0)) {
        Ok(0) => None,
        Ok(_) => Some(true),
        Err(Errno::INVAL) => Some(false),
        // Later reads report it.
        Err(_) => None,
    }
}

/// Returns the error of an open for direct I/O on a file system that lacks it.
pub(crate) fn no_direct(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, operation)
        .with_note("this file system refuses direct I/O (O_DIRECT), open the file with Open::buffered()")
}

fn open_error(operation: &'static str, cause: Errno, direct: bool) -> Error {
    // open(2): EINVAL when the file system does not support O_DIRECT.
    if direct && (cause == Errno::INVAL || cause == Errno::OPNOTSUPP) {
        return no_direct(operation);
    }
    if cause == Errno::NAMETOOLONG {
        return Error::io(operation, io::Error::from(cause)).with_note("a part of the path is too long");
    }
    errno(operation, cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn at(path: &Path) -> At {
        At::from(path)
    }

    const WRITE: OpenHow = OpenHow {
        read: true,
        write: true,
        create: true,
        create_new: false,
        truncate: false,
        direct: false,
        mode: 0o640,
    };

    #[test]
    fn creates_truncates_and_refuses_as_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let missing = open(&at(&path), &OpenHow { create: false, ..WRITE }).unwrap_err();
        assert_eq!((missing.raw_os_error(), missing.path()), (Some(libc::ENOENT), Some(path.as_path())));
        open(&at(&path), &WRITE).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777 & !0o640, 0);
        fs::write(&path, b"abc").unwrap();
        open(&at(&path), &WRITE).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"abc");
        let exists = open(&at(&path), &OpenHow { create_new: true, ..WRITE }).unwrap_err();
        assert_eq!(exists.raw_os_error(), Some(libc::EEXIST));
        open(&at(&path), &OpenHow { truncate: true, ..WRITE }).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        for wrong in [OpenHow::default(), OpenHow { read: true, create: true, ..OpenHow::default() }] {
            assert_eq!(open(&at(&path), &wrong).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn what_has_no_offsets_is_refused_without_blocking() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        let read = OpenHow { read: true, ..OpenHow::default() };
        for (path, what) in
            [(fifo.as_path(), "pipe"), (dir.path(), "directory"), (Path::new("/dev/null"), "character")]
        {
            let error = open(&at(path), &read).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains(what), "{error}");
        }
    }

    #[test]
    fn a_temp_file_has_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = fs::File::from(temp_file(&at(dir.path()), false).unwrap());
        std::os::unix::fs::FileExt::write_all_at(&file, b"abc", 0).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let missing = temp_file(&at(&dir.path().join("none")), false).unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn no_direct_io_is_a_sentence_with_the_remedy() {
        // procfs has no direct I/O anywhere.
        let read = OpenHow { read: true, direct: true, ..OpenHow::default() };
        let error = open(&At::from("/proc/self/status"), &read).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("Open::buffered()"), "{error}");
    }
}
