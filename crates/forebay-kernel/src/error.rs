//! Errors of walks and of opening them.

use std::fmt;
use std::io;

/// The reason why a walk has no result. Every engine reports the same for the same file; if several of the pages in flight
/// fail, the first failure to complete.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A read failed.
    #[non_exhaustive]
    Io {
        /// The page's position in the file, bytes.
        offset: u64,
        /// Number of the read within the walk; the first is 1.
        hop: u32,
        /// The error of the read.
        source: io::Error,
    },
    /// The file ends inside a page, or before it.
    #[non_exhaustive]
    UnexpectedEof {
        /// The page's position in the file, bytes.
        offset: u64,
        /// Bytes of the page that the file does have.
        got: u64,
    },
    /// The walk did not end within its limit of hops.
    #[non_exhaustive]
    TooManyHops {
        /// The walk's limit of hops.
        limit: u32,
    },
    /// The program's step failed the walk.
    #[non_exhaustive]
    Failed {
        /// The position of the page that the step read, bytes.
        offset: u64,
        /// The program's own number for the reason.
        code: u32,
    },
    /// The step returned an invalid result: no page, more pages than its fan-out, or more pages while some
    /// were in flight.
    #[non_exhaustive]
    BadAnswer {
        /// The position of the page that the step read, bytes.
        offset: u64,
    },
    /// This engine cannot continue the walk, and another one can. A [`KernelWalk`](crate::KernelWalk)
    /// continues it in the reactor; only a [`LocalWalk`](crate::LocalWalk) returns this error.
    #[non_exhaustive]
    Elsewhere {
        /// The position of the page, bytes.
        offset: u64,
        /// The engine's error.
        source: io::Error,
    },
    /// The walks were closed before this walk ended.
    Closed,
    /// `.wait()` was called on a shard's thread, which would wait for itself.
    WaitOnShard,
    /// An engine that was requested by name is not possible here.
    Unavailable(String),
    /// Another error of Forebay's reactor.
    Core(forebay::Error),
}

/// The result of a call, with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { offset, hop, source } => {
                write!(formatter, "a walk's read at offset {offset} failed at hop {hop}: {source}")
            }
            Error::UnexpectedEof { offset, got } => {
                write!(formatter, "the file ends {got} bytes into the page at offset {offset}")
            }
            Error::TooManyHops { limit } => {
                write!(formatter, "the walk did not end within {limit} hops: its pages lead in a circle")
            }
            Error::Failed { offset, code } => {
                write!(formatter, "the walk's program gave up at offset {offset} (its reason {code})")
            }
            Error::BadAnswer { offset } => {
                write!(formatter, "the walk's program returned an invalid result at offset {offset}")
            }
            Error::Elsewhere { offset, source } => {
                write!(formatter, "this engine cannot continue the walk at offset {offset}: {source}")
            }
            Error::WaitOnShard => formatter.write_str("a shard's thread cannot wait for a walk: await it"),
            Error::Closed => formatter.write_str("the walks were closed"),
            Error::Unavailable(why) => write!(formatter, "the engine is not possible here: {why}"),
            Error::Core(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } | Error::Elsewhere { source, .. } => Some(source),
            Error::Core(error) => Some(error),
            _ => None,
        }
    }
}
