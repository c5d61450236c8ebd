//! What can go wrong, in one type that names the operation, the file, the place in it, the cause and the remedy.

use std::any::Any;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

mod failure;
mod text;

pub(crate) use failure::Failure;

/// The result of a Forebay operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of an operation: what was asked, of which file, where, and why it failed.
///
/// One pointer wide, so that a `Result<Block, Error>` stays small in a batch of many thousands.
/// [`Error::kind`] is for programs; the `Display` text is for people and names the remedy where there is one.
///
/// ```
/// use forebay::{Config, Engine, ErrorKind, Open};
/// # fn main() -> forebay::Result<()> {
/// let engine = Engine::start(Config::default())?;
/// let error = engine.open("no/such/file", Open::read()).wait().unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Io);
/// assert_eq!(error.raw_os_error(), Some(2)); // ENOENT
/// assert!(error.to_string().contains("no/such/file"));
/// # Ok(()) }
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    operation: &'static str,
    path: Option<PathBuf>,
    range: Option<(u64, u64)>,
    hop: Option<u32>,
    device: Option<String>,
    note: Option<String>,
    cause: Option<io::Error>,
}

/// What kind of failure an [`Error`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused; [`Error::raw_os_error`] has the number.
    Io,
    /// The file ends inside the range that was asked for exactly.
    UnexpectedEof {
        /// Bytes of the range that the file does have.
        got: u64,
    },
    /// A direct write, or read into a given block, does not start or end at a multiple of what the device needs.
    Misaligned {
        /// The multiple, in bytes, that offset and length must have ([`File::alignment`](crate::File::alignment)).
        needed: u32,
    },
    /// All I/O memory is in the program's hands, and the overflow allowance is used up too.
    ArenaExhausted {
        /// Bytes of I/O memory that live blocks hold.
        held: u64,
    },
    /// One operation asked for more bytes than one buffer may hold.
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
    /// `.wait()` was called inside a simulated world (feature `sim`), whose one thread would wait for itself.
    WaitInWorld,
    /// The handle belongs to a simulated world (feature `sim`), and this is another thread, or its run is over.
    OutsideWorld,
    /// An argument cannot be right (an empty name, a range that ends before it starts, ...).
    InvalidInput,
    /// The task, or a walk's step, panicked; the message is in the text.
    TaskPanicked,
    /// The task was cancelled before it finished.
    TaskCancelled,
    /// The operation was cancelled while it ran.
    Cancelled,
    /// The time given to [`shard::timeout`](crate::shard::timeout) passed.
    Elapsed,
    /// A walk did not end within its hops ([`WalkOne::hops_max`](crate::WalkOne::hops_max)).
    TooManyHops {
        /// The most hops it could have.
        limit: u32,
    },
    /// The file system, kernel or platform cannot do this.
    Unsupported,
    /// Someone else holds the lock that [`File::try_lock`](crate::File::try_lock) asked for.
    Locked,
}

impl Error {
    /// The kind of failure, for programs to match on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The operating system's error number, when the system is the cause.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.0.cause.as_ref().and_then(io::Error::raw_os_error)
    }

    /// The process, or the whole system, may open no more files: open(2).
    pub(crate) fn is_out_of_descriptors(&self) -> bool {
        matches!(self.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
    }

    /// The operation that failed, as a word such as `"read"` or `"open"`.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// The file's path as it was opened, when the failure concerns a file.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// Offset and length in bytes of what was asked for, when the failure concerns a range.
    pub fn range(&self) -> Option<(u64, u64)> {
        self.0.range
    }

    /// The hop of a walk that failed, counted from 1, which is the root.
    pub fn hop(&self) -> Option<u32> {
        self.0.hop
    }

    pub(crate) fn new(kind: ErrorKind, operation: &'static str) -> Error {
        Error(Box::new(Inner {
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

    /// An error of the operating system, from its number (positive).
    pub(crate) fn os(operation: &'static str, errno: i32) -> Error {
        Error::io(operation, io::Error::from_raw_os_error(errno))
    }

    pub(crate) fn io(operation: &'static str, cause: io::Error) -> Error {
        let kind = match cause.raw_os_error() {
            Some(libc::ECANCELED) => ErrorKind::Cancelled,
            Some(libc::EOPNOTSUPP) | Some(libc::ENOSYS) => ErrorKind::Unsupported,
            _ => ErrorKind::Io,
        };
        let mut error = Error::new(kind, operation);
        error.0.cause = Some(cause);
        error
    }

    /// A caught panic, with its own words.
    pub(crate) fn panicked(operation: &'static str, payload: &(dyn Any + Send)) -> Error {
        Error::new(ErrorKind::TaskPanicked, operation)
            .with_note(format!("panicked: {}", panic_words(payload)))
    }

    pub(crate) fn invalid(operation: &'static str, note: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidInput, operation).with_note(note)
    }

    pub(crate) fn with_path(mut self, path: impl Into<PathBuf>) -> Error {
        self.0.path = Some(path.into());
        self
    }

    pub(crate) fn with_range(mut self, offset: u64, len: u64) -> Error {
        self.0.range = Some((offset, len));
        self
    }

    pub(crate) fn with_hop(mut self, hop: u32) -> Error {
        self.0.hop = Some(hop);
        self
    }

    /// The same of another operation.
    pub(crate) fn of(mut self, operation: &'static str) -> Error {
        self.0.operation = operation;
        self
    }

    pub(crate) fn with_device(mut self, device: impl Into<String>) -> Error {
        self.0.device = Some(device.into());
        self
    }

    pub(crate) fn with_note(mut self, note: impl Into<String>) -> Error {
        self.0.note = Some(note.into());
        self
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self})", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.cause.as_ref().map(|cause| cause as _)
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
            _ => error.0.cause.as_ref().map_or(io::ErrorKind::Other, io::Error::kind),
        };
        io::Error::new(kind, error)
    }
}

/// What a panic said.
pub(crate) fn panic_words(payload: &(dyn Any + Send)) -> &str {
    let words = payload.downcast_ref::<&str>().copied();
    words
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
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
