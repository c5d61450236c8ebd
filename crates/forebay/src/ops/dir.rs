//! Names, directories and what is known about a file without reading it.

mod handle;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::SystemTime;

use crate::base::pending::Pending;
use crate::driver::meta::{At, MetaReply, MetaRequest};
use crate::handle::engine::Engine;

pub use handle::Dir;

/// Names and directories. Every call runs on a thread of the engine's pool, begins at once, and never blocks a shard.
impl Engine {
    /// Gives the file or directory `from` the name `to`, replacing a file that had it, and makes that durable: the
    /// directories of both names are synced before the answer comes.
    ///
    /// A file's *content* is made durable by [`File::sync`](crate::File::sync); to replace a file safely write the new
    /// one under another name, sync it, then rename it.
    ///
    /// # Errors
    /// Those of rename(2), and of opening the two directories for reading. When the rename worked and a sync did not,
    /// the text says so: the name has changed, but may change back when power fails.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # fn main() -> forebay::Result<()> {
    /// # let engine = Engine::start(Config::default())?;
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (new, name) = (dir.path().join("settings.new"), dir.path().join("settings"));
    /// # std::fs::write(&new, b"depth = 8").unwrap();
    /// engine.rename(&new, &name).wait()?;
    /// assert!(!new.exists() && name.exists());
    /// # Ok(()) }
    /// ```
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Pending<()> {
        self.ask(MetaRequest::Rename { from: at(from), to: at(to) }, done)
    }

    /// Gives the file `from` the second name `to` and syncs the directory of `to`. Fails when `to` exists.
    ///
    /// # Errors
    /// Those of link(2), and of opening the directory of `to` for reading.
    pub fn hard_link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Pending<()> {
        self.ask(MetaRequest::HardLink { from: at(from), to: at(to) }, done)
    }

    /// Removes a file's name; the file itself goes with its last name and its last open handle.
    ///
    /// Not synced: after a power failure the name may be there again. [`sync_dir`](Engine::sync_dir) on its directory
    /// makes one removal, or a thousand, durable.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Pending<()> {
        self.ask(MetaRequest::RemoveFile { path: at(path) }, done)
    }

    /// Removes an empty directory. Not synced, as [`remove_file`](Engine::remove_file).
    ///
    /// # Errors
    /// Those of rmdir(2).
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Pending<()> {
        self.ask(MetaRequest::RemoveDir { path: at(path) }, done)
    }

    /// Makes a directory. Not synced: [`sync_dir`](Engine::sync_dir) on the directory above makes it durable.
    ///
    /// # Errors
    /// Those of mkdir(2): one that exists is an error.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Pending<()> {
        self.ask(MetaRequest::CreateDir { path: at(path) }, done)
    }

    /// Makes a directory and those above it that are missing; one that exists is fine. Not synced.
    ///
    /// # Errors
    /// Those of mkdir(2). Directories made before the failure stay.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Pending<()> {
        self.ask(MetaRequest::CreateDirAll { path: at(path) }, done)
    }

    /// Makes the names in a directory durable: files created in it or removed from it stay so after a power failure.
    ///
    /// # Errors
    /// Those of fsync(2), and of opening the directory for reading.
    pub fn sync_dir(&self, path: impl AsRef<Path>) -> Pending<()> {
        self.ask(MetaRequest::SyncDir { path: at(path) }, done)
    }

    /// The entries of a directory, sorted by name, without `.` and `..`.
    ///
    /// All at once: a directory of a million names takes some 50 MB. What is created or removed meanwhile may be in the
    /// list or not.
    ///
    /// # Errors
    /// Those of opendir(3) and readdir(3).
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Pending<Vec<DirEntry>> {
        self.ask(MetaRequest::ReadDir { path: at(path) }, entries)
    }

    /// Opens the directory at `path`, to name what is in it wherever it is moved to; see [`Dir`].
    ///
    /// # Errors
    /// Those of open(2) with `O_DIRECTORY`: `ENOTDIR` for what is no directory.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Pending<Dir> {
        handle::open(self, at(path))
    }

    /// What is known about the file at `path`; symbolic links are followed.
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn metadata(&self, path: impl AsRef<Path>) -> Pending<Metadata> {
        self.ask(MetaRequest::Metadata { path: at(path) }, metadata)
    }

    fn ask<T: Send + 'static>(
        &self,
        request: MetaRequest,
        answer: impl FnOnce(MetaReply) -> Option<T> + Send + 'static,
    ) -> Pending<T> {
        self.shared().ask(request, answer)
    }
}

/// Takes the reply of a call that answers nothing.
pub(crate) fn done(reply: MetaReply) -> Option<()> {
    matches!(reply, MetaReply::Done).then_some(())
}

fn entries(reply: MetaReply) -> Option<Vec<DirEntry>> {
    match reply {
        MetaReply::Entries(entries) => Some(entries),
        _ => None,
    }
}

fn metadata(reply: MetaReply) -> Option<Metadata> {
    match reply {
        MetaReply::Metadata(metadata) => Some(metadata),
        _ => None,
    }
}

fn at(path: impl AsRef<Path>) -> At {
    At::from(path.as_ref())
}

/// One name in a directory; see [`Engine::read_dir`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    name: OsString,
    kind: FileKind,
}

impl DirEntry {
    /// The name, without the directory's path.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// What the name stands for; symbolic links are not followed.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    pub(crate) fn new(name: OsString, kind: FileKind) -> DirEntry {
        DirEntry { name, kind }
    }
}

/// What a name stands for.
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

/// What is known about a file without reading it, as of one moment; see [`Engine::metadata`] and
/// [`File::metadata`](crate::File::metadata).
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
    /// The file's length in bytes. For a block device: its size when asked of an open file, 0 when asked by path.
    #[expect(clippy::len_without_is_empty, reason = "a file's length, not a collection's")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// What it is.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == FileKind::File
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Dir
    }

    /// Bytes of space that it takes on the device: less than its length when it has holes, more when space was reserved.
    pub fn blocks_bytes(&self) -> u64 {
        self.blocks_bytes
    }

    /// When its content was last changed.
    pub fn modified(&self) -> Option<SystemTime> {
        self.modified
    }

    /// When it was created, where the file system remembers that.
    pub fn created(&self) -> Option<SystemTime> {
        self.created
    }

    /// Permissions and type as in stat(2), `st_mode`.
    pub fn mode(&self) -> u32 {
        self.mode
    }

    /// The file's number in its file system.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// How many names the file has.
    pub fn links(&self) -> u64 {
        self.links
    }

    /// Which file system it is in: major and minor number of the device. Together with the inode this tells whether two
    /// names are one file.
    pub fn device(&self) -> (u32, u32) {
        crate::device::numbers(self.device)
    }

    pub(crate) fn set_len(&mut self, len: u64) {
        self.len = len;
    }

    /// What a simulated machine knows about a file; its clock began at the Unix epoch.
    #[cfg(feature = "sim")]
    pub(crate) fn simulated(found: Simulated) -> Metadata {
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
            // stat(2): st_blocks counts 512 bytes each, whatever the file system's own blocks are.
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

/// What [`Metadata::simulated`] is made from.
#[cfg(feature = "sim")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Simulated {
    pub(crate) kind: FileKind,
    pub(crate) len: u64,
    pub(crate) blocks_bytes: u64,
    pub(crate) mode: u32,
    pub(crate) inode: u64,
    pub(crate) links: u64,
    pub(crate) device: u64,
    pub(crate) modified_ns: u64,
    pub(crate) created_ns: u64,
}
