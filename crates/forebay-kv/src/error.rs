//! The errors of a store, and how a program can react to them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The result of an operation on a store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of an operation on a store. Cheap to clone, because one cause may fail many waiting calls.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    path: Option<PathBuf>,
    offset: Option<u64>,
    text: String,
    cause: Option<Cause>,
}

/// The error of a lower layer that caused an [`Error`].
#[derive(Clone, Debug)]
enum Cause {
    Core(Arc<forebay::Error>),
    Log(forebay_wal::Error),
    Store(Error),
}

/// The kinds of failure that an [`Error`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The system refused an operation. [`Error::cause`] has the operation, the file and the errno, and its
    /// kind is the one to match on ([`PermissionDenied`](forebay::ErrorKind::PermissionDenied),
    /// [`NotFound`](forebay::ErrorKind::NotFound) ...).
    Io,
    /// The bytes read are not the bytes written. [`Error::path`] and [`Error::offset`] locate the damage.
    /// Nothing was changed on disk.
    Corruption,
    /// A table that the manifest names is not there, or is shorter than it was. Nothing was changed on disk.
    MissingTable,
    /// The store's file system, or the quota on it, has no space left. Nothing was written, and nothing is lost. An open store
    /// remains usable: reads and deletes work, compaction frees the space of deleted keys, and puts are accepted again as soon as
    /// space is free.
    NoSpace,
    /// An earlier write of this store failed, and no more writes are possible. Reads still work. The text and
    /// [`source`](std::error::Error::source) are those of that first failure. Opening the store again recovers. Or a task of the
    /// store panicked, or the store was opened with [`Options::read_only`](crate::Options::read_only); then it has no source.
    ReadOnly,
    /// A key, a value, or a batch exceeds its limit.
    TooLarge {
        /// The maximum length, in bytes.
        limit: usize,
    },
    /// The store's memory is used up by values, snapshots and streams that the program holds. From an open with
    /// [`Options::read_only`](crate::Options::read_only): the log has more records that are in no table than fit into the
    /// memtables.
    MemoryBudget {
        /// Bytes that the program holds, or that the memtables have.
        held: u64,
    },
    /// The store is already open elsewhere, in this process or in another one.
    Locked,
    /// The store was written by another version of the format.
    Version {
        /// The version found.
        found: u16,
    },
    /// A table is compressed in a way that this build does not read.
    MissingFeature {
        /// The feature of this crate that reads it.
        feature: &'static str,
    },
    /// The directory holds something other than a store.
    Foreign,
    /// A keyspace of this name does not exist, or the store itself does not and may not be created.
    NotFound,
    /// The object to be created exists already.
    AlreadyExists,
    /// A checkpoint into this directory was not finished. The directory may be removed.
    Unfinished,
    /// A transaction was not committed: a key that it read or wrote was changed since its start, or so many keys were changed since
    /// that the store cannot rule that out. Nothing was written. Run the transaction again from its start.
    Conflict,
    /// A feed of changes cannot continue: the log no longer has its next record, or the store has changed in a way that is not in
    /// the log. Create a new feed, and then a snapshot.
    Lagged,
    /// The store or its engine was closed.
    Closed,
    /// An option or argument is not valid.
    InvalidInput,
    /// `.wait()` on a shard's thread would wait for work of that same thread. Use `.await` there.
    WaitOnShard,
    /// `.wait()` would stop the only thread of a simulated world. Use `.await` there.
    WaitInWorld,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Error {
        Error(Arc::new(Inner { kind, path: None, offset: None, text: text.into(), cause: None }))
    }

    pub(crate) fn at(kind: ErrorKind, path: &Path, text: impl Into<String>) -> Error {
        let path = Some(path.to_path_buf());
        Error(Arc::new(Inner { kind, path, offset: None, text: text.into(), cause: None }))
    }

    /// Returns the error for damage at a place in a file.
    pub(crate) fn corrupt(path: &Path, offset: u64, text: impl Into<String>) -> Error {
        let (kind, path, offset) = (ErrorKind::Corruption, Some(path.to_path_buf()), Some(offset));
        Error(Arc::new(Inner { kind, path, offset, text: text.into(), cause: None }))
    }

    /// Returns the error of calls that need what `cause` is a shortage of.
    pub(crate) fn short(dir: &Path, text: String, cause: &Error) -> Error {
        let kind = cause.kind();
        let (path, cause) = (Some(dir.to_path_buf()), Some(Cause::Store(cause.clone())));
        Error(Arc::new(Inner { kind, path, offset: None, text, cause }))
    }

    /// Returns the error with the store's directory where it names no file: that an engine is closed does not say of which store.
    pub(crate) fn named(self, dir: &Path) -> Error {
        if self.0.kind != ErrorKind::Closed || self.path().is_some() {
            return self;
        }
        let (path, cause) = (Some(dir.to_path_buf()), Some(Cause::Store(self)));
        Error(Arc::new(Inner { kind: ErrorKind::Closed, path, offset: None, text: String::new(), cause }))
    }

    /// Returns the error of calls on a keyspace that is not there any more.
    pub(crate) fn dropped_keyspace() -> Error {
        let text = "the keyspace was dropped; `Store::keyspace` makes a new one of its name";
        Error::new(ErrorKind::NotFound, text)
    }

    /// Returns the error of a future that is polled after it has completed.
    pub(crate) fn polled_again() -> Error {
        Error::new(ErrorKind::InvalidInput, "polled again after it had completed")
    }

    /// Returns the operating system's error number, when the system is the cause.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.cause().and_then(forebay::Error::raw_os_error)
    }

    /// Returns whether the process, or the whole system, can open no more files; see
    /// [`forebay::Error::is_out_of_descriptors`].
    pub fn is_out_of_descriptors(&self) -> bool {
        self.0.kind == ErrorKind::Io && self.cause().is_some_and(forebay::Error::is_out_of_descriptors)
    }

    /// Returns whether the program held all I/O memory.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.0.kind == ErrorKind::Io && self.cause().is_some_and(forebay::Error::is_out_of_memory)
    }

    /// Returns whether something was short of which there may be more later: space on the disk, descriptors, or I/O memory.
    pub(crate) fn is_shortage(&self) -> bool {
        self.0.kind == ErrorKind::NoSpace || self.is_out_of_descriptors() || self.is_out_of_memory()
    }

    /// Returns whether something was short that other reads under way may have: memory, or descriptors.
    pub(crate) fn is_crowded(&self) -> bool {
        matches!(self.0.kind, ErrorKind::MemoryBudget { .. })
            || self.is_out_of_descriptors()
            || self.is_out_of_memory()
    }

    /// Returns the error for writes after the first one that failed.
    pub(crate) fn read_only(&self) -> Error {
        if matches!(self.0.kind, ErrorKind::ReadOnly | ErrorKind::Closed) {
            return self.clone();
        }
        let text = "an earlier write failed, so the store is read-only until it is opened again".to_string();
        let cause = Some(Cause::Store(self.clone()));
        Error(Arc::new(Inner { kind: ErrorKind::ReadOnly, path: None, offset: None, text, cause }))
    }

    /// Returns the error for writes to a store that was opened to be read only.
    pub(crate) fn opened_read_only() -> Error {
        let text = "the store was opened to be read only; open it without Options::read_only to change it";
        Error::new(ErrorKind::ReadOnly, text)
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the file or directory concerned, if any.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref().or_else(|| match self.0.cause.as_ref()? {
            Cause::Core(core) => core.path(),
            Cause::Log(log) => log.path(),
            Cause::Store(store) => store.path(),
        })
    }

    /// Returns the offset in that file, in bytes, if damage was found there.
    pub fn offset(&self) -> Option<u64> {
        self.0.offset.or_else(|| match self.0.cause.as_ref()? {
            Cause::Store(store) => store.offset(),
            Cause::Log(log) => log.loss().map(|lost| lost.offset),
            Cause::Core(_) => None,
        })
    }

    /// Returns the core's error that caused this error.
    pub fn cause(&self) -> Option<&forebay::Error> {
        match self.0.cause.as_ref()? {
            Cause::Core(core) => Some(core),
            Cause::Log(log) => log.cause(),
            Cause::Store(store) => store.cause(),
        }
    }

    /// Returns the log's error that caused this error: of the store's log or of its manifest.
    pub fn log(&self) -> Option<&forebay_wal::Error> {
        match self.0.cause.as_ref()? {
            Cause::Core(_) => None,
            Cause::Log(log) => Some(log),
            Cause::Store(store) => store.log(),
        }
    }

    /// Returns the failure that made the store read-only if this is the error of a later write; any other
    /// error is returned unchanged.
    pub(crate) fn first(&self) -> Error {
        match (&self.0.kind, &self.0.cause) {
            (ErrorKind::ReadOnly, Some(Cause::Store(first))) => first.clone(),
            _ => self.clone(),
        }
    }

    fn caused(kind: ErrorKind, cause: Cause) -> Error {
        Error(Arc::new(Inner { kind, path: None, offset: None, text: String::new(), cause: Some(cause) }))
    }
}

impl From<forebay::Error> for Error {
    fn from(cause: forebay::Error) -> Error {
        let kind = match cause.kind() {
            forebay::ErrorKind::EngineClosed
            | forebay::ErrorKind::FileClosed
            | forebay::ErrorKind::ShardLost
            | forebay::ErrorKind::TaskCancelled => ErrorKind::Closed,
            forebay::ErrorKind::WaitOnShard => ErrorKind::WaitOnShard,
            forebay::ErrorKind::WaitInWorld => ErrorKind::WaitInWorld,
            forebay::ErrorKind::InvalidInput => ErrorKind::InvalidInput,
            forebay::ErrorKind::NoSpace => ErrorKind::NoSpace,
            _ => ErrorKind::Io,
        };
        Error::caused(kind, Cause::Core(Arc::new(cause)))
    }
}

impl From<forebay_wal::Error> for Error {
    fn from(cause: forebay_wal::Error) -> Error {
        let kind = match cause.kind() {
            forebay_wal::ErrorKind::Corruption | forebay_wal::ErrorKind::OutOfRange { .. } => {
                ErrorKind::Corruption
            }
            forebay_wal::ErrorKind::Poisoned => ErrorKind::ReadOnly,
            forebay_wal::ErrorKind::NoSpace => ErrorKind::NoSpace,
            forebay_wal::ErrorKind::TooLarge { limit } => ErrorKind::TooLarge { limit },
            forebay_wal::ErrorKind::Locked => ErrorKind::Locked,
            forebay_wal::ErrorKind::Version { found } => ErrorKind::Version { found },
            forebay_wal::ErrorKind::Foreign => ErrorKind::Foreign,
            forebay_wal::ErrorKind::Closed => ErrorKind::Closed,
            forebay_wal::ErrorKind::InvalidInput => ErrorKind::InvalidInput,
            forebay_wal::ErrorKind::WaitOnShard => ErrorKind::WaitOnShard,
            forebay_wal::ErrorKind::WaitInWorld => ErrorKind::WaitInWorld,
            _ => ErrorKind::Io,
        };
        Error::caused(kind, Cause::Log(cause))
    }
}

impl Cause {
    fn as_error(&self) -> &(dyn std::error::Error + 'static) {
        match self {
            Cause::Core(core) => &**core,
            Cause::Log(log) => log,
            Cause::Store(store) => store,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.0.path {
            write!(f, "{}", path.display())?;
            if let Some(offset) = self.0.offset {
                write!(f, " at byte {offset}")?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.0.text)?;
        match &self.0.cause {
            Some(cause) if self.0.text.is_empty() => write!(f, "{}", cause.as_error()),
            Some(cause) => write!(f, ": {}", cause.as_error()),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self})", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.cause.as_ref().map(Cause::as_error)
    }
}
