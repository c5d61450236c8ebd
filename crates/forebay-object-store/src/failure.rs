//! Why an operation failed, before it becomes an error of one version of object_store.

use std::fmt;
use std::path::Path;

use forebay::ErrorKind;

/// A failure, by the kinds that object_store distinguishes for files.
#[derive(Debug)]
pub(crate) enum Failure {
    NotFound {
        path: String,
        source: Source,
    },
    AlreadyExists {
        path: String,
        source: Source,
    },
    /// The object is not the one that it was to be.
    Precondition {
        path: String,
        source: Source,
    },
    /// The lock of a name was not to be had in time. Nothing has changed, so the call may be made again.
    Locked(String),
    Generic(Source),
}

/// The cause of a [`Failure`].
pub(crate) type Source = Box<dyn std::error::Error + Send + Sync>;

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// Returns a failure with its own sentence.
    pub(crate) fn text(text: impl Into<String>) -> Failure {
        Failure::Generic(Box::new(Sentence(text.into())))
    }

    pub(crate) fn not_found(path: &Path, source: impl Into<Source>) -> Failure {
        Failure::NotFound { path: path.display().to_string(), source: source.into() }
    }

    pub(crate) fn precondition(path: &Path, text: impl Into<String>) -> Failure {
        Failure::Precondition { path: path.display().to_string(), source: Box::new(Sentence(text.into())) }
    }

    /// Returns the failure of a call on an existing file: its name is missing, or anything else.
    pub(crate) fn of_file(path: &Path, error: forebay::Error) -> Failure {
        match error.kind() {
            ErrorKind::NotFound => Failure::not_found(path, error),
            _ => error.into(),
        }
    }

    /// Returns the failure of a call that gives a new file the name `path`.
    pub(crate) fn of_new_name(path: &Path, error: forebay::Error) -> Failure {
        match error.kind() {
            ErrorKind::AlreadyExists => {
                Failure::AlreadyExists { path: path.display().to_string(), source: Box::new(error) }
            }
            _ => error.into(),
        }
    }
}

impl From<forebay::Error> for Failure {
    fn from(error: forebay::Error) -> Failure {
        Failure::Generic(Box::new(error))
    }
}

/// A cause that is not an error of the engine.
#[derive(Debug)]
pub(crate) struct Sentence(pub(crate) String);

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Sentence {}
