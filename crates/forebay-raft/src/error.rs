//! Errors of log and store.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The result of opening or closing a log or a store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a log or a store.
///
/// Calls by openraft return it inside of an [`io::Error`]; [`get_ref`](io::Error::get_ref) leads back to it.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    path: Option<PathBuf>,
    text: String,
    cause: Option<Cause>,
}

#[derive(Clone, Debug)]
enum Cause {
    Core(std::sync::Arc<forebay::Error>),
    Log(forebay_wal::Error),
    Store(forebay_kv::Error),
    Other(std::sync::Arc<io::Error>),
}

/// The kinds of failure that an [`Error`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A layer below failed; [`source`](std::error::Error::source) is its error.
    Io,
    /// The directory holds something else, or was written by a later version of this crate.
    Foreign,
    /// The bytes on disk do not fit together: an entry cannot be decoded, or entries between two others are missing.
    Corruption,
    /// An entry, a vote or a log id cannot be encoded, or is too long.
    InvalidInput,
    /// A received snapshot is not the one that was sent: a file is missing, damaged, or not a part of it.
    BadSnapshot,
    /// An earlier write or flush failed. The text is that of the first failure. Open the log or store again.
    Poisoned,
    /// The state machine of the program returned an error.
    Application,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Error {
        Error { kind, path: None, text: text.into(), cause: None }
    }

    pub(crate) fn at(kind: ErrorKind, path: &Path, text: impl Into<String>) -> Error {
        Error { kind, path: Some(path.to_path_buf()), text: text.into(), cause: None }
    }

    pub(crate) fn encode(what: &str, error: impl fmt::Display) -> Error {
        let text = format!("{what} cannot be encoded by serde as MessagePack: {error}");
        Error::new(ErrorKind::InvalidInput, text)
    }

    pub(crate) fn decode(what: &str, error: impl fmt::Display) -> Error {
        let text = format!(
            "{what} cannot be decoded: {error}; was it written by a program whose types are different?"
        );
        Error::new(ErrorKind::Corruption, text)
    }

    pub(crate) fn application(error: io::Error) -> Error {
        let text = "the state machine of the program failed, so its state is not known; open the store again";
        let cause = Some(Cause::Other(std::sync::Arc::new(error)));
        Error { kind: ErrorKind::Application, path: None, text: text.into(), cause }
    }

    /// Returns this failure as the error of a later call.
    pub(crate) fn poisoned(&self) -> Error {
        if self.kind == ErrorKind::Poisoned {
            return self.clone();
        }
        let text = format!("an earlier call failed ({self}); open the log or store again");
        Error { kind: ErrorKind::Poisoned, path: self.path.clone(), text, cause: None }
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the file or directory concerned, if it is known.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref().or_else(|| match self.cause.as_ref()? {
            Cause::Core(core) => core.path(),
            Cause::Log(log) => log.path(),
            Cause::Store(store) => store.path(),
            Cause::Other(_) => None,
        })
    }

    /// Returns whether tables of the state are damaged or missing, even if the program's state machine reports it: a case for
    /// [`RaftStore::repair`](crate::RaftStore::repair).
    pub fn is_damage(&self) -> bool {
        match self.cause.as_ref() {
            Some(Cause::Store(store)) => is_damage(store),
            Some(Cause::Other(other)) => {
                let store = other.get_ref().and_then(|error| error.downcast_ref::<forebay_kv::Error>());
                store.is_some_and(is_damage)
            }
            _ => false,
        }
    }

    /// Returns the operating system's error number, when the system is the cause.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self.cause.as_ref()? {
            Cause::Other(other) => other.raw_os_error(),
            _ => self.cause().and_then(forebay::Error::raw_os_error),
        }
    }

    /// Returns the core's error that caused this error.
    pub fn cause(&self) -> Option<&forebay::Error> {
        match self.cause.as_ref()? {
            Cause::Core(core) => Some(core),
            Cause::Log(log) => log.cause(),
            Cause::Store(store) => store.cause(),
            Cause::Other(_) => None,
        }
    }

    /// Returns the error of the log below, if it is the cause.
    pub fn log(&self) -> Option<&forebay_wal::Error> {
        match self.cause.as_ref()? {
            Cause::Log(log) => Some(log),
            _ => None,
        }
    }

    /// Returns the error of the store below, if it is the cause.
    pub fn store(&self) -> Option<&forebay_kv::Error> {
        match self.cause.as_ref()? {
            Cause::Store(store) => Some(store),
            _ => None,
        }
    }
}

/// Returns whether an error of the store is damage of its tables.
fn is_damage(error: &forebay_kv::Error) -> bool {
    match error.kind() {
        forebay_kv::ErrorKind::Corruption | forebay_kv::ErrorKind::MissingTable => true,
        // A flush or a compaction has met it.
        forebay_kv::ErrorKind::ReadOnly => {
            let first = std::error::Error::source(error);
            first.and_then(|first| first.downcast_ref::<forebay_kv::Error>()).is_some_and(is_damage)
        }
        _ => false,
    }
}

impl From<forebay::Error> for Error {
    fn from(error: forebay::Error) -> Error {
        let cause = Some(Cause::Core(std::sync::Arc::new(error)));
        Error { kind: ErrorKind::Io, path: None, text: String::new(), cause }
    }
}

impl From<forebay_wal::Error> for Error {
    fn from(error: forebay_wal::Error) -> Error {
        let kind = match error.kind() {
            forebay_wal::ErrorKind::Poisoned => ErrorKind::Poisoned,
            forebay_wal::ErrorKind::Corruption | forebay_wal::ErrorKind::ValuesLost => ErrorKind::Corruption,
            forebay_wal::ErrorKind::Foreign => ErrorKind::Foreign,
            forebay_wal::ErrorKind::TooLarge { .. } | forebay_wal::ErrorKind::InvalidInput => {
                ErrorKind::InvalidInput
            }
            _ => ErrorKind::Io,
        };
        Error { kind, path: None, text: String::new(), cause: Some(Cause::Log(error)) }
    }
}

impl From<forebay_kv::Error> for Error {
    fn from(error: forebay_kv::Error) -> Error {
        let kind = match error.kind() {
            forebay_kv::ErrorKind::ReadOnly => ErrorKind::Poisoned,
            forebay_kv::ErrorKind::Corruption | forebay_kv::ErrorKind::MissingTable => ErrorKind::Corruption,
            forebay_kv::ErrorKind::Foreign => ErrorKind::Foreign,
            forebay_kv::ErrorKind::InvalidInput | forebay_kv::ErrorKind::TooLarge { .. } => {
                ErrorKind::InvalidInput
            }
            _ => ErrorKind::Io,
        };
        Error { kind, path: None, text: String::new(), cause: Some(Cause::Store(error)) }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match error.kind {
            ErrorKind::Foreign | ErrorKind::Corruption | ErrorKind::BadSnapshot => io::ErrorKind::InvalidData,
            ErrorKind::InvalidInput => io::ErrorKind::InvalidInput,
            ErrorKind::Io | ErrorKind::Poisoned | ErrorKind::Application => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}: ", path.display())?;
        }
        f.write_str(&self.text)?;
        let Some(cause) = std::error::Error::source(self) else { return Ok(()) };
        if self.text.is_empty() { write!(f, "{cause}") } else { write!(f, ": {cause}") }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(match self.cause.as_ref()? {
            Cause::Core(core) => &**core,
            Cause::Log(log) => log,
            Cause::Store(store) => store,
            Cause::Other(other) => &**other,
        })
    }
}
