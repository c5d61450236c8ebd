//! Errors of a log, and how to react to each.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::loss::Loss;
use crate::lsn::Lsn;

/// The result of an operation on a log.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of an operation on a log. Cheap to clone, because one cause may fail many waiting appends.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    path: Option<PathBuf>,
    text: String,
    loss: Option<Loss>,
    cause: Option<Arc<forebay::Error>>,
}

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An operation failed in the operating system. [`Error::cause`] has the operation, the file and the
    /// errno, and its kind is the one to match on
    /// ([`PermissionDenied`](forebay::ErrorKind::PermissionDenied),
    /// [`NotFound`](forebay::ErrorKind::NotFound) ...).
    Io,
    /// The file system is full, or a quota is used up. From an open: the segment in which the log continues does not fit, and the
    /// reserve is missing or too short; the text states how much to free. From [`Wal::no_space`](crate::Wal::no_space): the next
    /// segment does not fit, and the log works until it needs that segment. An append that needed it fails with
    /// [`Poisoned`](ErrorKind::Poisoned).
    NoSpace,
    /// Acknowledged records are damaged or missing, and nothing was changed on disk. [`Error::loss`] has which.
    /// [`Options::salvage`](crate::Options::salvage) opens the log with the rest.
    Corruption,
    /// The newest values ([`Wal::set`](crate::Wal::set)) are damaged or missing, though the records are intact. Nothing was changed
    /// on disk. [`Options::salvage`](crate::Options::salvage) opens the log with older values, or without.
    ValuesLost,
    /// An earlier write or flush of this log failed; the error's text and cause are those of that first
    /// failure. Opening the log again recovers it.
    Poisoned,
    /// The record is longer than [`Options::record_bytes_max`](crate::Options::record_bytes_max), or a value, or all values
    /// together, are longer than a log accepts.
    TooLarge {
        /// Maximum length of a record, a value or all values, in bytes.
        limit: usize,
    },
    /// Another handle or process has the log open.
    Locked,
    /// The log was written by another version of the format.
    Version {
        /// The version found.
        found: u16,
    },
    /// The directory holds segments of more than one log, or something else and no log.
    Foreign,
    /// The log was closed, or its task ended before that: because its engine was closed or its shard's thread
    /// died ([`Error::cause`] has which), or because it panicked. Records not acknowledged by then may or may
    /// not be in the log once it is opened again.
    Closed,
    /// The requested records were removed by a truncation, or do not exist yet.
    OutOfRange {
        /// The first record in the log.
        first: Lsn,
        /// The last durable record.
        last: Lsn,
    },
    /// An option or argument is invalid.
    InvalidInput,
    /// `.wait()` on a shard's thread would wait for work of that same thread; use `.await` there.
    WaitOnShard,
    /// `.wait()` would block the only thread of a simulated world; use `.await` there.
    WaitInWorld,
}

impl Error {
    fn build(
        kind: ErrorKind,
        path: Option<PathBuf>,
        text: String,
        cause: Option<Arc<forebay::Error>>,
    ) -> Error {
        Error(Arc::new(Inner { kind, path, text, loss: None, cause }))
    }

    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Error {
        Error::build(kind, None, text.into(), None)
    }

    pub(crate) fn at(kind: ErrorKind, path: &Path, text: impl Into<String>) -> Error {
        Error::build(kind, Some(path.to_path_buf()), text.into(), None)
    }

    /// Returns the error for lost records.
    pub(crate) fn corruption(path: Option<PathBuf>, loss: Loss, text: String) -> Error {
        let (kind, loss) = (ErrorKind::Corruption, Some(loss));
        Error(Arc::new(Inner { kind, path, text, loss, cause: None }))
    }

    /// Returns the error, caused by `cause`, for a lack of space for a segment of `bytes` bytes; `remedy`
    /// states how to free space.
    pub(crate) fn no_space(path: PathBuf, bytes: u64, remedy: &str, cause: &Error) -> Error {
        let text = format!("there is no space for a segment of {bytes} bytes; {remedy}");
        Error::build(ErrorKind::NoSpace, Some(path), text, cause.0.cause.clone())
    }

    /// Returns this failure as the error of a later call.
    pub(crate) fn poisoned(&self) -> Error {
        if matches!(self.0.kind, ErrorKind::Poisoned | ErrorKind::Closed) {
            return self.clone();
        }
        let text = format!("an earlier write or flush failed ({self}); open the log again to recover");
        Error::build(ErrorKind::Poisoned, self.0.path.clone(), text, self.0.cause.clone())
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the file or directory concerned, if any.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref().or_else(|| self.0.cause.as_ref().and_then(|cause| cause.path()))
    }

    /// Returns the lost records, if some are: of a [`Corruption`](ErrorKind::Corruption).
    pub fn loss(&self) -> Option<&Loss> {
        self.0.loss.as_ref()
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

    /// Returns whether something was short that the program may give back: descriptors, or I/O memory.
    pub(crate) fn is_crowded(&self) -> bool {
        let is_out_of_memory = || self.cause().is_some_and(forebay::Error::is_out_of_memory);
        self.is_out_of_descriptors() || (self.0.kind == ErrorKind::Io && is_out_of_memory())
    }

    /// Returns whether something was short of which there may be more later: space on the disk, descriptors, or I/O memory.
    pub(crate) fn is_shortage(&self) -> bool {
        self.0.kind == ErrorKind::NoSpace || self.is_crowded()
    }

    /// Returns the core's error that caused this one.
    pub fn cause(&self) -> Option<&forebay::Error> {
        self.0.cause.as_deref()
    }
}

impl From<forebay::Error> for Error {
    fn from(cause: forebay::Error) -> Error {
        let kind = match cause.kind() {
            forebay::ErrorKind::EngineClosed
            | forebay::ErrorKind::FileClosed
            | forebay::ErrorKind::OutsideWorld
            | forebay::ErrorKind::ShardLost
            | forebay::ErrorKind::TaskCancelled => ErrorKind::Closed,
            forebay::ErrorKind::WaitOnShard => ErrorKind::WaitOnShard,
            forebay::ErrorKind::WaitInWorld => ErrorKind::WaitInWorld,
            forebay::ErrorKind::InvalidInput => ErrorKind::InvalidInput,
            forebay::ErrorKind::NoSpace => ErrorKind::NoSpace,
            _ => ErrorKind::Io,
        };
        Error::build(kind, None, String::new(), Some(Arc::new(cause)))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.0.path {
            write!(f, "{}: ", path.display())?;
        }
        f.write_str(&self.0.text)?;
        match &self.0.cause {
            Some(cause) if self.0.text.is_empty() => write!(f, "{cause}"),
            // The text of a poisoned log's error already contains its cause.
            Some(cause) if self.0.kind != ErrorKind::Poisoned => write!(f, ": {cause}"),
            _ => Ok(()),
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
        self.0.cause.as_ref().map(|cause| &**cause as _)
    }
}

/// Returns whether a read failed because the file has no such bytes to give. A lack of memory or descriptors says nothing about them: they
/// are no damage, and a repair must not leave them out.
pub(crate) fn is_unreadable(error: &forebay::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, OutOfMemory, WouldBlock};
    let kind = error.raw_os_error().map(|errno| std::io::Error::from_raw_os_error(errno).kind());
    !error.is_out_of_descriptors()
        && kind.is_some_and(|kind| !matches!(kind, Interrupted | OutOfMemory | WouldBlock))
}
