//! What can go wrong with a store, and what to do about it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The result of an operation on a store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation on a store failed. Cheap to clone, because one cause may be the answer to many waiting
/// calls.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    path: Option<PathBuf>,
    offset: Option<u64>,
    text: String,
    cause: Option<Cause>,
}

/// The error of a lower layer that an [`Error`] comes from.
#[derive(Clone, Debug)]
enum Cause {
    Core(Arc<forebay::Error>),
    Log(forebay_wal::Error),
    Store(Error),
}

/// What kind of failure an [`Error`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The system refused; [`Error::core`] has the operation, the file, the errno, and in its kind what to match on
    /// ([`PermissionDenied`](forebay::ErrorKind::PermissionDenied), [`NotFound`](forebay::ErrorKind::NotFound) ...).
    Io,
    /// What was read is not what was written: [`Error::path`] and [`Error::offset`] say where. Nothing was
    /// changed on disk.
    Corruption,
    /// A table that the manifest names is not there, or is shorter than it was. Nothing was changed on disk.
    MissingTable,
    /// The store's file system, or the quota on it, has no space left. Nothing was written, and nothing is lost. An open
    /// store goes on: reads and deletes work, compaction frees the space of deleted keys, and puts are accepted
    /// again as soon as there is space.
    NoSpace,
    /// An earlier write of this store failed, and nothing can be written any more; reads go on. The text and
    /// [`source`](std::error::Error::source) are that first failure's. Opening the store again recovers.
    ReadOnly,
    /// A key is longer than keys may be.
    KeyTooLong {
        /// The most bytes that a key may have.
        limit: usize,
    },
    /// A value, or a batch, is longer than it may be.
    TooLarge {
        /// The most bytes that it may have.
        limit: usize,
    },
    /// The store's memory is used up by what the program holds: values, snapshots, streams.
    MemoryBudget {
        /// Bytes that the program holds.
        held: u64,
    },
    /// Somebody else has the store open.
    Locked,
    /// The store was written by another version of the format.
    Version {
        /// The version that was found.
        found: u16,
    },
    /// The directory holds something else than a store.
    Foreign,
    /// What was asked for by name does not exist: a keyspace, or the store itself where none may be made.
    NotFound,
    /// What was to be made exists already.
    Exists,
    /// A checkpoint that was begun into this directory was not finished; it may be removed.
    Unfinished,
    /// The store was closed, or its engine was.
    Closed,
    /// An option or argument cannot be right.
    InvalidInput,
    /// `.wait()` on a shard's thread would wait for what that thread has to do; `.await` there.
    WaitOnShard,
    /// `.wait()` would stop the one thread of a simulated world; `.await` there.
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

    /// Damage at a place in a file.
    pub(crate) fn corrupt(path: &Path, offset: u64, text: impl Into<String>) -> Error {
        let (kind, path, offset) = (ErrorKind::Corruption, Some(path.to_path_buf()), Some(offset));
        Error(Arc::new(Inner { kind, path, offset, text: text.into(), cause: None }))
    }

    /// The error of calls that need space in a full store.
    pub(crate) fn no_space(dir: &Path, text: String, cause: &Error) -> Error {
        let (path, cause) = (Some(dir.to_path_buf()), Some(Cause::Store(cause.clone())));
        Error(Arc::new(Inner { kind: ErrorKind::NoSpace, path, offset: None, text, cause }))
    }

    /// The answer to writes after the first one that failed.
    pub(crate) fn read_only(&self) -> Error {
        if matches!(self.0.kind, ErrorKind::ReadOnly | ErrorKind::Closed) {
            return self.clone();
        }
        let text = "an earlier write failed, so the store is read-only until it is opened again".to_string();
        let cause = Some(Cause::Store(self.clone()));
        Error(Arc::new(Inner { kind: ErrorKind::ReadOnly, path: None, offset: None, text, cause }))
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The file or directory that it concerns, where there is one.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref().or_else(|| match self.0.cause.as_ref()? {
            Cause::Core(core) => core.path(),
            Cause::Log(log) => log.path(),
            Cause::Store(store) => store.path(),
        })
    }

    /// Where in that file, in bytes, if damage was found there.
    pub fn offset(&self) -> Option<u64> {
        self.0.offset.or_else(|| match self.0.cause.as_ref()? {
            Cause::Store(store) => store.offset(),
            Cause::Log(log) => match log.kind() {
                forebay_wal::ErrorKind::Corruption(lost) => Some(lost.offset),
                _ => None,
            },
            Cause::Core(_) => None,
        })
    }

    /// The core's error behind it.
    pub fn core(&self) -> Option<&forebay::Error> {
        match self.0.cause.as_ref()? {
            Cause::Core(core) => Some(core),
            Cause::Log(log) => log.cause(),
            Cause::Store(store) => store.core(),
        }
    }

    /// The log's error behind it: that of the store's log or of its manifest.
    pub fn log(&self) -> Option<&forebay_wal::Error> {
        match self.0.cause.as_ref()? {
            Cause::Core(_) => None,
            Cause::Log(log) => Some(log),
            Cause::Store(store) => store.log(),
        }
    }

    /// The failure that made the store read-only, of the answer to later writes; any other error as it is.
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
            forebay_wal::ErrorKind::Corruption(_) | forebay_wal::ErrorKind::OutOfRange { .. } => {
                ErrorKind::Corruption
            }
            forebay_wal::ErrorKind::Poisoned => ErrorKind::ReadOnly,
            forebay_wal::ErrorKind::NoSpace => ErrorKind::NoSpace,
            forebay_wal::ErrorKind::TooLarge { limit } => ErrorKind::TooLarge { limit: *limit },
            forebay_wal::ErrorKind::Locked => ErrorKind::Locked,
            forebay_wal::ErrorKind::Version { found } => ErrorKind::Version { found: *found },
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
