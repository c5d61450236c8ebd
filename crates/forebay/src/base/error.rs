//! The one error type, which names the operation, the file, the place in it, the cause and the remedy.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

mod text;

/// The result of a Forebay operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of an operation: the operation, the file, the range in it, and the cause.
///
/// It is one pointer wide, so that a `Result<Block, Error>` stays small in a batch of many thousands. A clone costs a count.
/// [`Error::kind`] is for programs; the `Display` text is for people and names the remedy, if any.
///
/// ```
/// use forebay::{Config, Engine, ErrorKind, Open};
/// # fn main() -> forebay::Result<()> {
/// let engine = Engine::start(Config::new())?;
/// let error = engine.open("no/such/file", Open::read()).wait().unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// assert_eq!(error.raw_os_error(), Some(2)); // ENOENT
/// assert!(error.to_string().contains("no/such/file"));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    operation: &'static str,
    path: Option<PathBuf>,
    range: Option<(u64, u64)>,
    hop: Option<u32>,
    device: Option<String>,
    note: Option<String>,
    cause: Option<Arc<io::Error>>,
}

/// The kind of failure of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused for a reason without a specific kind; [`Error::raw_os_error`] has the number.
    Io,
    /// A file, a directory, or one above it does not exist.
    NotFound,
    /// The process may not do this (`EACCES`, `EPERM`).
    PermissionDenied,
    /// The object to create exists already.
    AlreadyExists,
    /// The device, the file system or the quota is full (`ENOSPC`, `EDQUOT`).
    NoSpace,
    /// The file system is mounted read-only.
    ReadOnlyFilesystem,
    /// The path names a directory where a file is needed.
    IsADirectory,
    /// A directory is needed, and the path or a part of it names something else.
    NotADirectory,
    /// The directory to remove or replace has entries.
    DirectoryNotEmpty,
    /// The file ends inside a range that was requested exactly.
    UnexpectedEof {
        /// Bytes of the range that the file has.
        got: u64,
    },
    /// A direct write, or a direct read into a given block, does not start or end at a multiple that the
    /// device needs.
    Misaligned {
        /// The multiple, in bytes, that offset and length must have ([`File::alignment`](crate::File::alignment)).
        needed: u32,
    },
    /// The program holds all I/O memory, and the overflow allowance is used up too.
    ArenaExhausted {
        /// Bytes of I/O memory that live blocks hold.
        held: u64,
    },
    /// The operation needs more bytes than one buffer may hold.
    TooLarge {
        /// The most bytes one operation may move.
        limit: u64,
    },
    /// The engine was closed, or its last handle dropped, before the operation could run.
    EngineClosed,
    /// The file was closed by [`File::close`](crate::File::close).
    FileClosed,
    /// The shard's thread died; its memory and files were leaked on purpose.
    ShardLost,
    /// The handle was inherited through `fork(2)`; only the parent process may use it.
    Forked,
    /// `.wait()` was called on a shard's thread, which would wait for itself.
    WaitOnShard,
    /// The call works only inside a task that runs on a shard.
    NotOnShard,
    /// `.wait()` was called inside a simulated world (crate `forebay-sim`), whose one thread would wait for itself.
    WaitInWorld,
    /// The handle belongs to a simulated world (crate `forebay-sim`), and this is another thread, or the world's
    /// run has ended.
    OutsideWorld,
    /// An argument cannot be valid (an empty name, a range that ends before it starts, ...).
    InvalidInput,
    /// The task, or a walk's step, panicked; the message is in the text.
    TaskPanicked,
    /// The task was cancelled before it finished.
    TaskCancelled,
    /// The operation was cancelled while it ran.
    Cancelled,
    /// The time given to [`shard::timeout`](crate::shard::timeout), or in a simulated world to `sim::timeout`, has passed.
    Elapsed,
    /// A walk did not end within its hops ([`WalkOne::hops_max`](crate::WalkOne::hops_max)).
    TooManyHops {
        /// The limit for hops of the walk.
        limit: u32,
    },
    /// The file system, kernel or platform cannot do this.
    Unsupported,
    /// Another holder has the lock that [`File::try_lock`](crate::File::try_lock) or [`lock_within`](crate::File::lock_within) requested.
    Locked,
}

impl ErrorKind {
    /// Returns whether the operating system refused: [`Io`](ErrorKind::Io) and the kinds that are split off from it.
    pub fn is_system(self) -> bool {
        use ErrorKind as Kind;
        matches!(
            self,
            Kind::Io
                | Kind::NotFound
                | Kind::PermissionDenied
                | Kind::AlreadyExists
                | Kind::NoSpace
                | Kind::ReadOnlyFilesystem
                | Kind::IsADirectory
                | Kind::NotADirectory
                | Kind::DirectoryNotEmpty
        )
    }

    fn of_io(kind: io::ErrorKind) -> ErrorKind {
        match kind {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
            io::ErrorKind::StorageFull => ErrorKind::NoSpace,
            io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnlyFilesystem,
            io::ErrorKind::IsADirectory => ErrorKind::IsADirectory,
            io::ErrorKind::NotADirectory => ErrorKind::NotADirectory,
            io::ErrorKind::DirectoryNotEmpty => ErrorKind::DirectoryNotEmpty,
            _ => ErrorKind::Io,
        }
    }
}

impl Error {
    /// Returns the kind of failure, for programs to match on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the operating system's error number, when the system is the cause.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.0.cause.as_deref().and_then(io::Error::raw_os_error)
    }

    /// Returns whether the process, or the whole system, can open no more files (`EMFILE`, `ENFILE`). Files that libraries on the engine
    /// keep open for later use have been closed by then.
    pub fn is_out_of_descriptors(&self) -> bool {
        matches!(self.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
    }

    /// Returns whether the program's blocks hold all I/O memory ([`ErrorKind::ArenaExhausted`]): the call can be made again when some
    /// were dropped.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self.0.kind, ErrorKind::ArenaExhausted { .. })
    }

    /// Returns the operation that failed, as a word such as `"read"` or `"open"`.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// Returns the file's path as it was opened, when the failure concerns a file.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// Returns offset and length in bytes of the requested range, when the failure concerns a range.
    pub fn range(&self) -> Option<(u64, u64)> {
        self.0.range
    }

    /// Returns the hop of a walk that failed, counted from 1, which is the root.
    pub fn hop(&self) -> Option<u32> {
        self.0.hop
    }

    pub(crate) fn new(kind: ErrorKind, operation: &'static str) -> Error {
        Error(Arc::new(Inner {
            kind,
            operation,
            path: None,
            range: None,
            hop: None,
            device: None,
            note: None,
            cause: None,
        }))
    }

    /// Returns an error of the operating system for its number (positive).
    pub(crate) fn os(operation: &'static str, errno: i32) -> Error {
        Error::io(operation, io::Error::from_raw_os_error(errno))
    }

    pub(crate) fn io(operation: &'static str, cause: io::Error) -> Error {
        let kind = match cause.raw_os_error() {
            Some(libc::ECANCELED) => ErrorKind::Cancelled,
            Some(libc::EOPNOTSUPP) | Some(libc::ENOSYS) => ErrorKind::Unsupported,
            Some(libc::EDQUOT) => ErrorKind::NoSpace,
            _ => ErrorKind::of_io(cause.kind()),
        };
        Error::new(kind, operation).edit(|inner| inner.cause = Some(Arc::new(cause)))
    }

    /// Changes this error only: copies the record first if clones share it.
    fn edit(mut self, change: impl FnOnce(&mut Inner)) -> Error {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Returns the error of a caught panic, with the panic's message.
    pub(crate) fn panicked(operation: &'static str, payload: &(dyn Any + Send)) -> Error {
        Error::new(ErrorKind::TaskPanicked, operation)
            .with_note(format!("panicked: {}", panic_words(payload)))
    }

    pub(crate) fn invalid(operation: &'static str, note: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidInput, operation).with_note(note)
    }

    pub(crate) fn with_path(self, path: impl Into<PathBuf>) -> Error {
        self.edit(|inner| inner.path = Some(path.into()))
    }

    pub(crate) fn with_range(self, offset: u64, len: u64) -> Error {
        self.edit(|inner| inner.range = Some((offset, len)))
    }

    pub(crate) fn with_hop(self, hop: u32) -> Error {
        self.edit(|inner| inner.hop = Some(hop))
    }

    /// Returns the same error as one of another operation.
    pub(crate) fn of(self, operation: &'static str) -> Error {
        self.edit(|inner| inner.operation = operation)
    }

    pub(crate) fn with_device(self, device: impl Into<String>) -> Error {
        self.edit(|inner| inner.device = Some(device.into()))
    }

    pub(crate) fn has_note(&self) -> bool {
        self.0.note.is_some()
    }

    pub(crate) fn with_note(self, note: impl Into<String>) -> Error {
        self.edit(|inner| inner.note = Some(note.into()))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self})", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.cause.as_deref().map(|cause| cause as _)
    }
}

/// Keeps the meaning that `std::io` code matches on; the Forebay error stays reachable as the inner error.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match error.kind() {
            ErrorKind::UnexpectedEof { .. } => io::ErrorKind::UnexpectedEof,
            ErrorKind::Misaligned { .. } | ErrorKind::InvalidInput | ErrorKind::TooLarge { .. } => {
                io::ErrorKind::InvalidInput
            }
            ErrorKind::ArenaExhausted { .. } => io::ErrorKind::OutOfMemory,
            ErrorKind::EngineClosed | ErrorKind::FileClosed | ErrorKind::ShardLost => {
                io::ErrorKind::BrokenPipe
            }
            ErrorKind::Elapsed => io::ErrorKind::TimedOut,
            ErrorKind::Cancelled | ErrorKind::TaskCancelled => io::ErrorKind::Interrupted,
            ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            ErrorKind::Locked => io::ErrorKind::WouldBlock,
            _ => error.0.cause.as_deref().map_or(io::ErrorKind::Other, io::Error::kind),
        };
        io::Error::new(kind, error)
    }
}

/// Returns the message of a panic.
pub fn panic_words(payload: &(dyn Any + Send)) -> &str {
    let words = payload.downcast_ref::<&str>().copied();
    words
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}

/// The facts of an [`Error`] that are kept. The error itself is returned to the first call that met it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    kind: ErrorKind,
    errno: Option<i32>,
    operation: &'static str,
    range: Option<(u64, u64)>,
}

impl Failure {
    pub(crate) fn of(error: &Error) -> Failure {
        Failure {
            kind: error.kind(),
            errno: error.raw_os_error(),
            operation: error.operation(),
            range: error.range(),
        }
    }

    /// Returns the error again, with a note that marks it as an earlier one. It names no file yet.
    pub(crate) fn again(&self, note: &str) -> Error {
        let error = match self.errno {
            Some(errno) => Error::os(self.operation, errno),
            None => Error::new(self.kind, self.operation),
        };
        let error = error.with_note(note);
        match self.range {
            Some((offset, len)) => error.with_range(offset, len),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_operation_path_range_cause_and_remedy() {
        let error =
            Error::os("write", libc::ENOSPC).with_path("/data/log").with_range(4096, 512).with_device("vda");
        let text = error.to_string();
        for part in ["write", "/data/log", "512 bytes at 4096", "vda", "No space left", "free space"] {
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn stays_one_pointer_wide() {
        assert_eq!(size_of::<Result<(), Error>>(), size_of::<usize>());
    }
}
