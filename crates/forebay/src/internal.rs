//! What `forebay-sim` and `forebay-conformance` need of the inside. They are released with this crate: nothing here is stable.

use std::any::Any;
use std::path::PathBuf;

use crate::base::error::{Error, ErrorKind, Result};
use crate::handle::engine::Engine;
use crate::handle::open::Open;
use crate::io::config::Config;
use crate::io::host::Host;

pub use crate::base::pending::{Pending, Sender, channel};

/// The making of [`Error`]s, with the texts and fields of the core's own.
pub trait ErrorExt {
    /// Returns an error of this kind.
    fn new(kind: ErrorKind, operation: &'static str) -> Error;

    /// Returns an error of the operating system for its number (positive).
    fn os(operation: &'static str, errno: i32) -> Error;

    /// Returns an error of the operating system.
    fn io(operation: &'static str, cause: std::io::Error) -> Error;

    /// Returns the error of a caught panic, with the panic's message.
    fn panicked(operation: &'static str, payload: &(dyn Any + Send)) -> Error;

    /// Returns an error about an argument.
    fn invalid(operation: &'static str, note: impl Into<String>) -> Error;

    /// Returns the error with the path of its file.
    fn with_path(self, path: impl Into<PathBuf>) -> Error;

    /// Returns the error with a note for people.
    fn with_note(self, note: impl Into<String>) -> Error;
}

impl ErrorExt for Error {
    fn new(kind: ErrorKind, operation: &'static str) -> Error {
        Error::new(kind, operation)
    }

    fn os(operation: &'static str, errno: i32) -> Error {
        Error::os(operation, errno)
    }

    fn io(operation: &'static str, cause: std::io::Error) -> Error {
        Error::io(operation, cause)
    }

    fn panicked(operation: &'static str, payload: &(dyn Any + Send)) -> Error {
        Error::panicked(operation, payload)
    }

    fn invalid(operation: &'static str, note: impl Into<String>) -> Error {
        Error::invalid(operation, note)
    }

    fn with_path(self, path: impl Into<PathBuf>) -> Error {
        Error::with_path(self, path)
    }

    fn with_note(self, note: impl Into<String>) -> Error {
        Error::with_note(self, note)
    }
}

/// Returns a [`Pending`] whose result is known already.
pub fn ready<T>(result: Result<T>) -> Pending<T> {
    Pending::ready(result)
}

/// Returns whether the options request write access.
pub fn is_writable(open: &Open) -> bool {
    open.is_writable()
}

/// Starts an engine as [`Engine::start`] does on a machine of that many processors (at least 1), whatever this one has.
///
/// # Errors
/// Those of [`Engine::start`].
pub fn start_on_processors(processors: usize, config: Config) -> Result<Engine> {
    Engine::start_on(config, Host { processors: processors.max(1), ..Host::here() })
}
