//! Names in directories: rename, link, list, and the syncs that make names durable.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use super::{errno, retry};
use crate::dir::{DirEntry, FileKind};
use crate::error::{Error, Result};

/// Renames, then syncs the directories of both names. The sync a rename needs sits in here, so nobody can forget it.
pub(super) fn rename(from: &Path, to: &Path) -> Result<()> {
    const OPERATION: &str = "rename";
    // The directories are opened first: then the syncs reach the directories that the rename changed, wherever those
    // may have been moved meanwhile, and a directory that cannot be opened fails the call before anything happened.
    let (from_dir, from_name) = parent(OPERATION, from)?;
    let (to_dir, to_name) = parent(OPERATION, to)?;
    retry(|| rustix::fs::renameat(&from_dir, from_name, &to_dir, to_name))
        .map_err(|cause| errno(OPERATION, cause).with_path(from).with_note(format!("to {}", to.display())))?;
    // fsync(2): syncing a file does not make its directory entry durable, that takes a sync of the directory. The new
    // name first: when power fails between the two syncs the file should have both names rather than none.
    sync(OPERATION, &to_dir, to)?;
    if same_dir(&from_dir, &to_dir) { Ok(()) } else { sync(OPERATION, &from_dir, from) }
}

/// Gives a file a second name and syncs that name's directory.
pub(super) fn hard_link(from: &Path, to: &Path) -> Result<()> {
    const OPERATION: &str = "hard_link";
    let (to_dir, to_name) = parent(OPERATION, to)?;
    // linkat(2): without AT_SYMLINK_FOLLOW a symbolic link itself gets the new name, as with std.
    retry(|| rustix::fs::linkat(CWD, from, &to_dir, to_name, AtFlags::empty()))
        .map_err(|cause| errno(OPERATION, cause).with_path(from).with_note(format!("as {}", to.display())))?;
    sync(OPERATION, &to_dir, to)
}

pub(super) fn sync_dir(path: &Path) -> Result<()> {
    const OPERATION: &str = "sync_dir";
    let dir = open_dir(path).map_err(|cause| errno(OPERATION, cause).with_path(path))?;
    retry(|| rustix::fs::fsync(&dir)).map_err(|cause| errno(OPERATION, cause).with_path(path))
}

pub(super) fn read_dir(path: &Path) -> Result<Vec<DirEntry>> {
    const OPERATION: &str = "read_dir";
    let mut entries = Vec::new();
    for entry in at_path(OPERATION, path, std::fs::read_dir(path))? {
        let entry = at_path(OPERATION, path, entry)?;
        let kind = match entry.file_type() {
            Ok(kind) => FileKind::from_std(kind),
            // File systems that do not tell the type (readdir(3), DT_UNKNOWN) are asked per file, which may be gone.
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => continue,
            Err(cause) => return Err(Error::io(OPERATION, cause).with_path(entry.path())),
        };
        entries.push(DirEntry::new(entry.file_name(), kind));
    }
    // The order of a directory is an accident of its hash table.
    entries.sort_unstable_by(|one, other| one.name().cmp(other.name()));
    Ok(entries)
}

/// Puts operation and path into the error of a std call (which repeats what signals interrupt).
pub(super) fn at_path<T>(operation: &'static str, path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|cause| Error::io(operation, cause).with_path(path))
}

fn open_dir(path: &Path) -> rustix::io::Result<OwnedFd> {
    retry(|| {
        rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    })
}

/// The directory of `path`, opened, and the name in it.
fn parent<'a>(operation: &'static str, path: &'a Path) -> Result<(OwnedFd, &'a OsStr)> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Error::invalid(operation, "this path does not end in a name").with_path(path));
    };
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let opened = open_dir(dir).map_err(|cause| {
        errno(operation, cause)
            .with_path(path)
            .with_note(format!("cannot open the directory {}", dir.display()))
    })?;
    Ok((opened, name))
}

fn sync(operation: &'static str, dir: &OwnedFd, path: &Path) -> Result<()> {
    retry(|| rustix::fs::fsync(dir)).map_err(|cause| {
        errno(operation, cause).with_path(path).with_note(
            "the name was changed, but its directory could not be synced, so the change may be lost",
        )
    })
}

fn same_dir(one: &OwnedFd, other: &OwnedFd) -> bool {
    match (rustix::fs::fstat(one), rustix::fs::fstat(other)) {
        (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use std::fs;

    #[test]
    fn rename_replaces_and_crosses_directories() {
        let dir = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
        fs::create_dir(&two).unwrap();
        fs::write(&one, b"new").unwrap();
        fs::write(two.join("file"), b"old").unwrap();
        rename(&one, &two.join("file")).unwrap();
        assert_eq!(fs::read(two.join("file")).unwrap(), b"new");
        rename(&two.join("file"), &two.join("again")).unwrap();
        assert!(!one.exists() && two.join("again").exists());
    }

    #[test]
    fn errors_name_both_ends() {
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
        for call in [rename, hard_link] {
            let error = call(&from, &to).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
            assert!(text.contains(from.to_str().unwrap()) && text.contains(to.to_str().unwrap()), "{text}");
        }
        assert_eq!(rename(Path::new("/"), &to).unwrap_err().kind(), ErrorKind::InvalidInput);
        let error = rename(&from, &dir.path().join("none/to")).unwrap_err();
        assert!(error.to_string().contains("cannot open the directory"), "{error}");
    }

    #[test]
    fn the_parent_of_a_bare_name_is_the_working_directory() {
        let (dir, name) = parent("test", Path::new("Cargo.toml")).unwrap();
        assert_eq!(name, "Cargo.toml");
        assert!(same_dir(&dir, &open_dir(Path::new(".")).unwrap()));
    }
}
