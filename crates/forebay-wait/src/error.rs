//! Errors of measuring.

use std::fmt;
use std::io;

/// The reason why nothing was measured.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// This machine or this user cannot measure it.
    #[non_exhaustive]
    Unavailable {
        /// The missing requirement, as a sentence without its full stop.
        what: String,
        /// A remedy.
        remedy: String,
    },
    /// The command could not be started.
    #[non_exhaustive]
    NotStarted {
        /// The command's name, as the caller passed it.
        program: String,
        /// The error of the start.
        source: io::Error,
    },
    /// No process has this number, or it is a thread of another process.
    NoProcess(u32),
    /// A call failed that usually does not.
    #[non_exhaustive]
    Failed {
        /// The action that failed.
        what: &'static str,
        /// The error of the call.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn unavailable(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Unavailable { what: what.into(), remedy: remedy.into() }
    }

    pub(crate) fn failed(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Failed { what, source }
    }

    /// Returns a function that makes `Failed` of an error of the loader.
    pub(crate) fn bpf(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Self {
        move |error| Self::Failed { what, source: io::Error::other(format!("{error:#}")) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { what, remedy } => write!(formatter, "{what}: {remedy}"),
            Self::NotStarted { program, source } if source.kind() == io::ErrorKind::NotFound => {
                write!(formatter, "there is no program {program}: check its name and the PATH")
            }
            Self::NotStarted { program, source } => {
                write!(formatter, "{program} cannot be started: {source}")
            }
            Self::NoProcess(pid) => {
                write!(formatter, "there is no process {pid}: name one that runs (ps -e lists them)")
            }
            Self::Failed { what, source } => write!(formatter, "{what}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotStarted { source, .. } | Self::Failed { source, .. } => Some(source),
            _ => None,
        }
    }
}
