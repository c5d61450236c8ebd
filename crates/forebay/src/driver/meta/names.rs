//! Names in directories: rename, link, list, and the syncs that make names durable.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{At, errno, retry};
use crate::base::error::{Error, Result};
use crate::io::metadata::{DirEntry, FileKind};

/// Renames, then syncs the directories of both names. The sync is part of this call, so no caller can forget
/// it.
pub(super) fn rename(from: &At, to: &At) -> Result<()> {
    const OPERATION: &str = "rename";
    // The directories are opened first. The syncs then reach the directories that the rename changed, even if
    // those were moved meanwhile, and a directory that cannot be opened fails the call before any change.
    let (from_dir, from_name) = parent(OPERATION, from)?;
    let (to_dir, to_name) = parent(OPERATION, to)?;
    retry(|| rustix::fs::renameat(&from_dir, from_name, &to_dir, to_name)).map_err(|cause| {
        errno(OPERATION, cause).with_path(from.path()).with_note(format!("to {}", to.path().display()))
    })?;
    // fsync(2): syncing a file does not make its directory entry durable; that needs a sync of the directory. The new name is
    // synced first: if power fails between the two syncs, the file should have both names rather than no name.
    sync(OPERATION, &to_dir, to.path())?;
    if same_dir(&from_dir, &to_dir) { Ok(()) } else { sync(OPERATION, &from_dir, from.path()) }
}

/// Adds a second name to a file and syncs that name's directory.
pub(super) fn hard_link(from: &At, to: &At) -> Result<()> {
    const OPERATION: &str = "hard_link";
    let (to_dir, to_name) = parent(OPERATION, to)?;
    // linkat(2): without AT_SYMLINK_FOLLOW a symbolic link itself gets the new name, as with std.
    retry(|| rustix::fs::linkat(from.fd(), from.name(), &to_dir, to_name, AtFlags::empty())).map_err(
        |cause| {
            errno(OPERATION, cause).with_path(from.path()).with_note(format!("as {}", to.path().display()))
        },
    )?;
    sync(OPERATION, &to_dir, to.path())
}

/// Renames as rename(2) does.
pub(super) fn rename_unsynced(from: &At, to: &At) -> Result<()> {
    retry(|| rustix::fs::renameat(from.fd(), from.name(), to.fd(), to.name())).map_err(|cause| {
        errno("rename_unsynced", cause)
            .with_path(from.path())
            .with_note(format!("to {}", to.path().display()))
    })
}

/// Adds a name as link(2) does.
pub(super) fn hard_link_unsynced(from: &At, to: &At) -> Result<()> {
    retry(|| rustix::fs::linkat(from.fd(), from.name(), to.fd(), to.name(), AtFlags::empty())).map_err(
        |cause| {
            errno("hard_link_unsynced", cause)
                .with_path(from.path())
                .with_note(format!("as {}", to.path().display()))
        },
    )
}

/// Removes a name: unlink(2), or rmdir(2) with `AT_REMOVEDIR`.
pub(super) fn remove(operation: &'static str, at: &At, flags: AtFlags) -> Result<()> {
    failing(operation, at, || rustix::fs::unlinkat(at.fd(), at.name(), flags))
}

pub(super) fn create_dir(at: &At) -> Result<()> {
    // The process's umask clears the bits that it masks.
    failing("create_dir", at, || rustix::fs::mkdirat(at.fd(), at.name(), Mode::from_raw_mode(0o777)))
}

/// Accepts a path only: a name in an open directory has no missing parents.
pub(super) fn create_dir_all(at: &At) -> Result<()> {
    std::fs::create_dir_all(at.path())
        .map_err(|cause| Error::io("create_dir_all", cause).with_path(at.path()))
}

pub(super) fn sync_dir(at: &At) -> Result<()> {
    const OPERATION: &str = "sync_dir";
    let dir = open_dir_at(OPERATION, at)?;
    failing(OPERATION, at, || rustix::fs::fsync(&dir))
}

pub(super) fn read_dir(at: &At) -> Result<Vec<DirEntry>> {
    const OPERATION: &str = "read_dir";
    let failed = |cause| errno(OPERATION, cause).with_path(at.path());
    let dir = open_dir_at(OPERATION, at)?;
    let mut entries = Vec::new();
    for entry in rustix::fs::Dir::read_from(&dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = OsString::from(OsStr::from_bytes(entry.file_name().to_bytes()));
        if name == "." || name == ".." {
            continue;
        }
        let kind = match entry.file_type() {
            // Some file systems do not report the type (readdir(3), DT_UNKNOWN). Then a stat of the file is needed, which may have
            // been removed by now.
            FileType::Unknown => {
                match retry(|| rustix::fs::statat(&dir, &*name, AtFlags::SYMLINK_NOFOLLOW)) {
                    Ok(found) => FileType::from_raw_mode(found.st_mode),
                    Err(Errno::NOENT) => continue,
                    Err(cause) => {
                        return Err(errno(OPERATION, cause).with_path(at.path().join(name)));
                    }
                }
            }
            known => known,
        };
        entries.push(DirEntry::new(name, FileKind::from_type(kind)));
    }
    // The order of the entries in a directory is arbitrary: it follows from its hash table.
    entries.sort_unstable_by(|one, other| one.name().cmp(other.name()));
    Ok(entries)
}

/// Makes a call, repeats it after each interruption by a signal, and adds operation and path to its error.
fn failing<T>(operation: &'static str, at: &At, call: impl FnMut() -> rustix::io::Result<T>) -> Result<T> {
    retry(call).map_err(|cause| errno(operation, cause).with_path(at.path()))
}

/// Opens a directory to list it, to sync it, or to name its entries.
pub(super) fn open_dir_at(operation: &'static str, at: &At) -> Result<OwnedFd> {
    failing(operation, at, || open_dir(at.fd(), at.name()))
}

fn open_dir(dir: BorrowedFd<'_>, name: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry(|| rustix::fs::openat(dir, name, flags, Mode::empty()))
}

/// A directory in which a call changes a name.
enum Parent<'a> {
    Lent(BorrowedFd<'a>),
    Opened(OwnedFd),
}

impl AsFd for Parent<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Parent::Lent(fd) => *fd,
            Parent::Opened(fd) => fd.as_fd(),
        }
    }
}

/// Opens the directory of a name, and returns it with the name in it.
fn parent<'a>(operation: &'static str, at: &'a At) -> Result<(Parent<'a>, &'a OsStr)> {
    let path = at.name();
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Error::invalid(operation, "this path does not end in a name").with_path(at.path()));
    };
    if at.dir().is_some() {
        return Ok((Parent::Lent(at.fd()), name));
    }
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let opened = open_dir(at.fd(), dir).map_err(|cause| {
        errno(operation, cause)
            .with_path(path)
            .with_note(format!("cannot open the directory {}", dir.display()))
    })?;
    Ok((Parent::Opened(opened), name))
}

fn sync(operation: &'static str, dir: &Parent<'_>, path: &Path) -> Result<()> {
    retry(|| rustix::fs::fsync(dir)).map_err(|cause| {
        errno(operation, cause).with_path(path).with_note(
            "the name was changed, but its directory could not be synced, so the change may be lost",
        )
    })
}

fn same_dir(one: &Parent<'_>, other: &Parent<'_>) -> bool {
    match (rustix::fs::fstat(one), rustix::fs::fstat(other)) {
        (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;
    use std::fs;

    fn at(path: &Path) -> At {
        At::from(path)
    }

    #[test]
    fn rename_replaces_and_crosses_directories() {
        let dir = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
        fs::create_dir(&two).unwrap();
        fs::write(&one, b"new").unwrap();
        fs::write(two.join("file"), b"old").unwrap();
        rename(&at(&one), &at(&two.join("file"))).unwrap();
        assert_eq!(fs::read(two.join("file")).unwrap(), b"new");
        rename(&at(&two.join("file")), &at(&two.join("again"))).unwrap();
        assert!(!one.exists() && two.join("again").exists());
    }

    #[test]
    fn errors_name_both_ends() {
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
        for call in [rename, hard_link, rename_unsynced, hard_link_unsynced] {
            let error = call(&at(&from), &at(&to)).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
            assert!(text.contains(from.to_str().unwrap()) && text.contains(to.to_str().unwrap()), "{text}");
        }
        assert_eq!(rename(&at(Path::new("/")), &at(&to)).unwrap_err().kind(), ErrorKind::InvalidInput);
        let error = rename(&at(&from), &at(&dir.path().join("none/to"))).unwrap_err();
        assert!(error.to_string().contains("cannot open the directory"), "{error}");
    }

    #[test]
    fn the_parent_of_a_bare_name_is_the_working_directory() {
        let given = At::from("Cargo.toml");
        let (dir, name) = parent("test", &given).unwrap();
        assert_eq!(name, "Cargo.toml");
        let here = open_dir(rustix::fs::CWD, Path::new(".")).unwrap();
        assert!(same_dir(&dir, &Parent::Opened(here)));
    }
}
