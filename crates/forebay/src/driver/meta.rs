//! Calls about files rather than their bytes, as plain data, and their execution by the operating system.
//!
//! A request holds every parameter of its call, so a simulator can execute it as well. [`execute`] may block
//! for as long as the file system likes: it belongs on a thread of the [`Pool`](super::pool::Pool), never on
//! a shard.

mod at;
mod copy;
mod file_calls;
mod names;
mod openat;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::AtFlags;
use rustix::io::Errno;

pub use at::At;
pub(crate) use file_calls::{is_removed, metadata, metadata_now};
#[cfg(target_os = "linux")]
pub(crate) use openat::set_direct;
pub(crate) use openat::{no_direct, takes_direct};

use crate::base::error::{Error, Result};
use crate::base::in_flight::Stay;
use crate::io::metadata::{DirEntry, Metadata};

/// The driver's reference to an open file.
pub enum Descriptor {
    /// A descriptor of the operating system.
    Os(OwnedFd),
    /// A file of a simulated machine.
    #[cfg(feature = "_sim")]
    Sim(super::sim::SimFile),
}

impl Descriptor {
    /// Returns the number by which requests to the driver name the file.
    pub(crate) fn raw(&self) -> RawFd {
        match self {
            Descriptor::Os(fd) => fd.as_raw_fd(),
            #[cfg(feature = "_sim")]
            Descriptor::Sim(file) => file.raw(),
        }
    }

    /// Returns the simulated machine's file, if it is one.
    #[cfg(feature = "_sim")]
    pub fn simulated(&self) -> Option<&super::sim::SimFile> {
        match self {
            Descriptor::Os(_) => None,
            Descriptor::Sim(file) => Some(file),
        }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Descriptor::Os(fd) => fd.as_fd(),
            #[cfg(feature = "_sim")]
            Descriptor::Sim(file) => file.as_fd(),
        }
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Descriptor").field(&self.raw()).finish()
    }
}

/// An owner that keeps a descriptor open.
pub trait DescriptorOwner {
    /// Returns the descriptor.
    fn descriptor(&self) -> &Descriptor;

    /// Counts a call in an owner that can be closed.
    ///
    /// # Errors
    /// [`ErrorKind::FileClosed`](crate::ErrorKind::FileClosed) if it was closed.
    fn enter(&self, _operation: &'static str) -> Result<Option<Stay>> {
        Ok(None)
    }
}

impl DescriptorOwner for Descriptor {
    fn descriptor(&self) -> &Descriptor {
        self
    }
}

/// An open file that lives at least as long as the request that names it.
pub type FdOwner = Arc<dyn DescriptorOwner + Send + Sync>;

/// Access and flags for opening a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenHow {
    /// Read access.
    pub read: bool,
    /// Write access.
    pub write: bool,
    /// Create the file if it does not exist.
    pub create: bool,
    /// Create the file, and fail if it exists. Implies `create`.
    pub create_new: bool,
    /// Set its length to zero.
    pub truncate: bool,
    /// Bypass the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Permissions of a created file, before the process's umask.
    pub mode: u32,
}

/// The access pattern that a program expects for a range of a file; see
/// [`File::advise`](crate::File::advise).
///
/// Advice concerns the page cache. It matters for buffered files; for direct files only for pages that others
/// cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advice {
    /// No particular pattern: withdraws earlier advice.
    Normal,
    /// Read from front to back: the kernel reads further ahead.
    Sequential,
    /// Read in random order: the kernel does not read ahead.
    Random,
    /// Needed soon: the kernel starts to read it into the page cache.
    WillNeed,
    /// Not needed soon: clean pages leave the page cache. Dirty pages stay; sync first.
    DontNeed,
    /// Read once only.
    NoReuse,
}

/// The mode of a file lock; see [`File::try_lock`](crate::File::try_lock).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lock {
    /// Any number of shared holders, without an exclusive one.
    Shared,
    /// Exactly one holder.
    Exclusive,
}

/// A call about a file, as plain data.
#[derive(Clone)]
#[allow(missing_docs, reason = "the names are those of the calls")]
pub enum MetaRequest {
    /// Returns [`MetaReply::Opened`].
    Open {
        path: At,
        how: OpenHow,
    },
    /// Opens the directory itself, so that later calls can name its entries; returns [`MetaReply::Opened`].
    OpenDir {
        path: At,
    },
    /// Creates a file without a name in `dir`, readable and writable; returns [`MetaReply::Opened`].
    TempFile {
        dir: At,
        direct: bool,
    },
    /// Renames and syncs the directories of both names.
    Rename {
        from: At,
        to: At,
    },
    /// Adds the second name `to` to the file `from`, and syncs the directory of `to`.
    HardLink {
        from: At,
        to: At,
    },
    /// As `Rename`, without a sync.
    RenameUnsynced {
        from: At,
        to: At,
    },
    /// As `HardLink`, without a sync.
    HardLinkUnsynced {
        from: At,
        to: At,
    },
    RemoveFile {
        path: At,
    },
    RemoveDir {
        path: At,
    },
    CreateDir {
        path: At,
    },
    CreateDirAll {
        path: At,
    },
    SyncDir {
        path: At,
    },
    /// Returns [`MetaReply::Entries`].
    ReadDir {
        path: At,
    },
    /// Follows symbolic links; returns [`MetaReply::Metadata`].
    Metadata {
        path: At,
    },
    /// Does not follow a symbolic link of the last name; returns [`MetaReply::Metadata`].
    SymlinkMetadata {
        path: At,
    },
    /// Follows symbolic links; returns [`MetaReply::MetadataMany`], with a result for each path.
    MetadataMany {
        paths: Vec<At>,
    },
    /// Returns [`MetaReply::Metadata`].
    FileMetadata {
        file: FdOwner,
    },
    /// Reserves space on the device for the range; the file grows if the range ends past its end.
    Allocate {
        file: FdOwner,
        offset: u64,
        len: u64,
    },
    /// Makes the range zeros that count as written; the file grows if the range ends past its end.
    WriteZeros {
        file: FdOwner,
        offset: u64,
        len: u64,
    },
    /// Frees the space of the range; it reads as zeros, and the file's length stays.
    PunchHole {
        file: FdOwner,
        offset: u64,
        len: u64,
    },
    Truncate {
        file: FdOwner,
        len: u64,
    },
    /// A `len` of 0 extends the range to the end of the file.
    Advise {
        file: FdOwner,
        offset: u64,
        len: u64,
        advice: Advice,
    },
    /// Returns [`MetaReply::Copied`]: less than `len` if the source ends first.
    CopyRange {
        from: FdOwner,
        offset: u64,
        len: u64,
        to: FdOwner,
        to_offset: u64,
    },
    /// Never waits: fails with [`ErrorKind::Locked`](crate::ErrorKind::Locked) if the lock is not available.
    TryLock {
        file: FdOwner,
        lock: Lock,
    },
    Unlock {
        file: FdOwner,
    },
    /// Takes an OFD lock of fcntl(2) on the whole file, or releases it. Never waits, as `TryLock`.
    RecordLock {
        file: FdOwner,
        lock: Option<Lock>,
    },
    /// Sets the time of the last change of the content; returns [`MetaReply::Metadata`] as of afterwards.
    SetModified {
        file: FdOwner,
        modified: SystemTime,
    },
    /// Sets an extended attribute.
    SetAttribute {
        file: FdOwner,
        name: String,
        value: Vec<u8>,
    },
    /// Returns [`MetaReply::Attributes`]: the extended attributes of the space `user.`.
    Attributes {
        file: FdOwner,
    },
}

/// The reply to a call that succeeded.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum MetaReply {
    Done,
    Opened(Descriptor),
    Entries(Vec<DirEntry>),
    Metadata(Metadata),
    MetadataMany(Vec<Result<Metadata>>),
    /// Bytes copied.
    Copied(u64),
    /// Names and values.
    Attributes(Vec<(String, Vec<u8>)>),
}

impl MetaRequest {
    /// Returns the name of this call for errors.
    pub fn operation(&self) -> &'static str {
        match self {
            MetaRequest::Open { .. } => "open",
            MetaRequest::OpenDir { .. } => "open_dir",
            MetaRequest::TempFile { .. } => "temp_file",
            MetaRequest::Rename { .. } => "rename",
            MetaRequest::HardLink { .. } => "hard_link",
            MetaRequest::RenameUnsynced { .. } => "rename_unsynced",
            MetaRequest::HardLinkUnsynced { .. } => "hard_link_unsynced",
            MetaRequest::RemoveFile { .. } => "remove_file",
            MetaRequest::RemoveDir { .. } => "remove_dir",
            MetaRequest::CreateDir { .. } => "create_dir",
            MetaRequest::CreateDirAll { .. } => "create_dir_all",
            MetaRequest::SyncDir { .. } => "sync_dir",
            MetaRequest::ReadDir { .. } => "read_dir",
            MetaRequest::Metadata { .. } | MetaRequest::FileMetadata { .. } => "metadata",
            MetaRequest::SymlinkMetadata { .. } => "symlink_metadata",
            MetaRequest::MetadataMany { .. } => "metadata_many",
            MetaRequest::Allocate { .. } => "allocate",
            MetaRequest::WriteZeros { .. } => "write_zeros",
            MetaRequest::PunchHole { .. } => "punch_hole",
            MetaRequest::Truncate { .. } => "truncate",
            MetaRequest::Advise { .. } => "advise",
            MetaRequest::CopyRange { .. } => "copy_range",
            MetaRequest::TryLock { .. } => "try_lock",
            MetaRequest::Unlock { .. } => "unlock",
            MetaRequest::RecordLock { .. } => "record_lock",
            MetaRequest::SetModified { .. } => "set_modified",
            MetaRequest::SetAttribute { .. } => "set_attribute",
            MetaRequest::Attributes { .. } => "attributes",
        }
    }
}

impl MetaRequest {
    /// Returns whether the reply is an open file or directory.
    #[cfg(feature = "_sim")]
    pub fn opens(&self) -> bool {
        matches!(self, MetaRequest::Open { .. } | MetaRequest::OpenDir { .. } | MetaRequest::TempFile { .. })
    }

    /// Returns the open files and directories that the call names.
    pub(crate) fn owners(&self) -> [Option<&FdOwner>; 2] {
        match self {
            MetaRequest::Open { path, .. }
            | MetaRequest::OpenDir { path }
            | MetaRequest::TempFile { dir: path, .. }
            | MetaRequest::RemoveFile { path }
            | MetaRequest::RemoveDir { path }
            | MetaRequest::CreateDir { path }
            | MetaRequest::CreateDirAll { path }
            | MetaRequest::SyncDir { path }
            | MetaRequest::ReadDir { path }
            | MetaRequest::Metadata { path }
            | MetaRequest::SymlinkMetadata { path } => [path.dir(), None],
            MetaRequest::Rename { from, to }
            | MetaRequest::HardLink { from, to }
            | MetaRequest::RenameUnsynced { from, to }
            | MetaRequest::HardLinkUnsynced { from, to } => [from.dir(), to.dir()],
            // Paths only.
            MetaRequest::MetadataMany { .. } => [None, None],
            MetaRequest::FileMetadata { file }
            | MetaRequest::Allocate { file, .. }
            | MetaRequest::WriteZeros { file, .. }
            | MetaRequest::PunchHole { file, .. }
            | MetaRequest::Truncate { file, .. }
            | MetaRequest::Advise { file, .. }
            | MetaRequest::TryLock { file, .. }
            | MetaRequest::Unlock { file }
            | MetaRequest::RecordLock { file, .. }
            | MetaRequest::SetModified { file, .. }
            | MetaRequest::SetAttribute { file, .. }
            | MetaRequest::Attributes { file } => [Some(file), None],
            MetaRequest::CopyRange { from, to, .. } => [Some(from), Some(to)],
        }
    }
}

crate::_debug_parts!(MetaRequest, |meta_request| operation: meta_request.operation());

/// Executes the call. Errors name the path where the request has one.
pub(crate) fn execute(request: &MetaRequest) -> Result<MetaReply> {
    let operation = request.operation();
    let done = |()| MetaReply::Done;
    match request {
        MetaRequest::Open { path, how } => openat::open(path, how).map(opened),
        MetaRequest::OpenDir { path } => names::open_dir_at(operation, path).map(opened),
        MetaRequest::TempFile { dir, direct } => openat::temp_file(dir, *direct).map(opened),
        MetaRequest::Rename { from, to } => names::rename(from, to).map(done),
        MetaRequest::HardLink { from, to } => names::hard_link(from, to).map(done),
        MetaRequest::RenameUnsynced { from, to } => names::rename_unsynced(from, to).map(done),
        MetaRequest::HardLinkUnsynced { from, to } => names::hard_link_unsynced(from, to).map(done),
        MetaRequest::RemoveFile { path } => names::remove(operation, path, AtFlags::empty()).map(done),
        MetaRequest::RemoveDir { path } => names::remove(operation, path, AtFlags::REMOVEDIR).map(done),
        MetaRequest::CreateDir { path } => names::create_dir(path).map(done),
        MetaRequest::CreateDirAll { path } => names::create_dir_all(path).map(done),
        MetaRequest::SyncDir { path } => names::sync_dir(path).map(done),
        MetaRequest::ReadDir { path } => names::read_dir(path).map(MetaReply::Entries),
        MetaRequest::Metadata { path } => file_calls::metadata_at(operation, path).map(MetaReply::Metadata),
        MetaRequest::SymlinkMetadata { path } => {
            file_calls::symlink_metadata(operation, path).map(MetaReply::Metadata)
        }
        MetaRequest::MetadataMany { paths } => Ok(MetaReply::MetadataMany(
            paths.iter().map(|path| file_calls::metadata_at(operation, path)).collect(),
        )),
        MetaRequest::FileMetadata { file } => file_calls::metadata(fd(file)).map(MetaReply::Metadata),
        MetaRequest::Allocate { file, offset, len } => {
            file_calls::allocate(fd(file), *offset, *len).map(done)
        }
        MetaRequest::WriteZeros { file, offset, len } => {
            file_calls::write_zeros(fd(file), *offset, *len).map(done)
        }
        MetaRequest::PunchHole { file, offset, len } => {
            file_calls::punch_hole(fd(file), *offset, *len).map(done)
        }
        MetaRequest::Truncate { file, len } => file_calls::truncate(fd(file), *len).map(done),
        MetaRequest::Advise { file, offset, len, advice } => {
            file_calls::advise(fd(file), *offset, *len, *advice).map(done)
        }
        MetaRequest::CopyRange { from, offset, len, to, to_offset } => {
            copy::copy_range(fd(from), *offset, *len, fd(to), *to_offset).map(MetaReply::Copied)
        }
        MetaRequest::TryLock { file, lock } => file_calls::try_lock(fd(file), *lock).map(done),
        MetaRequest::Unlock { file } => file_calls::unlock(fd(file)).map(done),
        MetaRequest::RecordLock { file, lock } => file_calls::record_lock(fd(file), *lock).map(done),
        MetaRequest::SetModified { file, modified } => {
            file_calls::set_modified(fd(file), *modified).map(MetaReply::Metadata)
        }
        MetaRequest::SetAttribute { file, name, value } => {
            file_calls::set_attribute(fd(file), name, value).map(done)
        }
        MetaRequest::Attributes { file } => file_calls::attributes(fd(file)).map(MetaReply::Attributes),
    }
}

/// Tries to take a lock of an open file, on this thread. A simulated machine takes it by a call only, so it is not tried there.
pub(crate) fn lock_now(file: &Descriptor, lock: Lock) -> bool {
    match file {
        Descriptor::Os(fd) => file_calls::try_lock(fd.as_fd(), lock).is_ok(),
        #[cfg(feature = "_sim")]
        Descriptor::Sim(_) => false,
    }
}

/// Releases the lock of an open file, if it has one. A simulated machine has no forks: a close is enough there.
pub(crate) fn release_lock(file: &Descriptor) {
    match file {
        Descriptor::Os(fd) => drop(file_calls::unlock(fd.as_fd())),
        #[cfg(feature = "_sim")]
        Descriptor::Sim(_) => {}
    }
}

/// As [`release_lock`], for the OFD lock.
pub(crate) fn release_record_lock(file: &Descriptor) {
    match file {
        Descriptor::Os(fd) => drop(file_calls::record_lock(fd.as_fd(), None)),
        #[cfg(feature = "_sim")]
        Descriptor::Sim(_) => {}
    }
}

fn opened(fd: OwnedFd) -> MetaReply {
    MetaReply::Opened(Descriptor::Os(fd))
}

fn fd(file: &FdOwner) -> BorrowedFd<'_> {
    file.descriptor().as_fd()
}

/// Repeats a call that a signal interrupted (signal(7)).
fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn errno(operation: &'static str, cause: Errno) -> Error {
    Error::io(operation, io::Error::from(cause))
}

/// Unwraps the reply of a call that returns no value; `None` for any other reply.
pub(crate) fn done(reply: MetaReply) -> Option<()> {
    matches!(reply, MetaReply::Done).then_some(())
}
