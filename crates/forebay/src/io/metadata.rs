//! Facts about a file that are known without reading it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::SystemTime;

/// One entry of a directory; see [`Engine::read_dir`](crate::Engine::read_dir).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    name: OsString,
    kind: FileKind,
}

impl DirEntry {
    /// Returns the name, without the directory's path.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the kind of the object with this name; symbolic links are not followed.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    pub(crate) fn new(name: OsString, kind: FileKind) -> DirEntry {
        DirEntry { name, kind }
    }
}

/// The kind of an object with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileKind {
    /// Bytes at offsets, in a file system.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A block device: bytes at offsets, without a file system.
    BlockDevice,
    /// A pipe, a socket, a character device, or something newer.
    Other,
}

impl FileKind {
    pub(crate) fn from_type(kind: rustix::fs::FileType) -> FileKind {
        match kind {
            rustix::fs::FileType::RegularFile => FileKind::File,
            rustix::fs::FileType::Directory => FileKind::Dir,
            rustix::fs::FileType::Symlink => FileKind::Symlink,
            rustix::fs::FileType::BlockDevice => FileKind::BlockDevice,
            _ => FileKind::Other,
        }
    }

    pub(crate) fn from_std(kind: fs::FileType) -> FileKind {
        if kind.is_file() {
            FileKind::File
        } else if kind.is_dir() {
            FileKind::Dir
        } else if kind.is_symlink() {
            FileKind::Symlink
        } else if kind.is_block_device() {
            FileKind::BlockDevice
        } else {
            FileKind::Other
        }
    }
}

/// Facts about a file that need no read of its content, as of one moment; see
/// [`Engine::metadata`](crate::Engine::metadata) and [`File::metadata`](crate::File::metadata).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    kind: FileKind,
    len: u64,
    blocks_bytes: u64,
    mode: u32,
    inode: u64,
    links: u64,
    device: u64,
    modified: Option<SystemTime>,
    created: Option<SystemTime>,
}

impl Metadata {
    /// Returns the file's length in bytes. For a block device it is the size for an open file, and 0 for a path.
    #[expect(clippy::len_without_is_empty, reason = "a file's length, not a collection's")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the kind of the object.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Returns whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == FileKind::File
    }

    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Dir
    }

    /// Returns its allocated bytes on the device: less than its length when it has holes, more when space was reserved.
    pub fn blocks_bytes(&self) -> u64 {
        self.blocks_bytes
    }

    /// Returns the time at which its content was last changed.
    pub fn modified(&self) -> Option<SystemTime> {
        self.modified
    }

    /// Returns the time at which it was created, where the file system stores that.
    pub fn created(&self) -> Option<SystemTime> {
        self.created
    }

    /// Returns permissions and type as in stat(2), `st_mode`.
    pub fn mode(&self) -> u32 {
        self.mode
    }

    /// Returns the file's number in its file system.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Returns how many names the file has.
    pub fn links(&self) -> u64 {
        self.links
    }

    /// Returns the file system that it is in: major and minor number of the device. If device and inode of
    /// two names are equal, both names are one file.
    pub fn device(&self) -> (u32, u32) {
        crate::device::numbers(self.device)
    }

    pub(crate) fn set_len(&mut self, len: u64) {
        self.len = len;
    }

    /// Returns the metadata that a simulated machine has for a file; its clock starts at the Unix epoch.
    #[cfg(feature = "_sim")]
    pub(crate) fn simulated(found: SimMetadata) -> Metadata {
        let time = |ns| SystemTime::UNIX_EPOCH.checked_add(std::time::Duration::from_nanos(ns));
        Metadata {
            kind: found.kind,
            len: found.len,
            blocks_bytes: found.blocks_bytes,
            mode: found.mode,
            inode: found.inode,
            links: found.links,
            device: found.device,
            modified: time(found.modified_ns),
            created: time(found.created_ns),
        }
    }

    pub(crate) fn from_std(found: &fs::Metadata) -> Metadata {
        Metadata {
            kind: FileKind::from_std(found.file_type()),
            len: found.len(),
            // stat(2): st_blocks counts 512 bytes each, regardless of the file system's blocks.
            blocks_bytes: found.blocks() * 512,
            mode: found.mode(),
            inode: found.ino(),
            links: found.nlink(),
            device: found.dev(),
            modified: found.modified().ok(),
            created: found.created().ok(),
        }
    }
}

/// The [`Metadata`] of a file of a simulated machine.
#[cfg(feature = "_sim")]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "as in `Metadata`")]
pub struct SimMetadata {
    pub kind: FileKind,
    pub len: u64,
    pub blocks_bytes: u64,
    pub mode: u32,
    pub inode: u64,
    pub links: u64,
    pub device: u64,
    pub modified_ns: u64,
    pub created_ns: u64,
}
