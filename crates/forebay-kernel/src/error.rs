//! What can go wrong.

use std::fmt;
use std::io;

/// Why a walk has no result. Every engine answers the same for the same file.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A read failed.
    #[non_exhaustive]
    Io {
        /// The page's position in the file, bytes.
        offset: u64,
        /// Which of the walk's reads; the first is 1.
        hop: u32,
        /// Why.
        source: io::Error,
    },
    /// The file ends inside of a page, or before it.
    #[non_exhaustive]
    UnexpectedEof {
        /// The page's position in the file, bytes.
        offset: u64,
        /// Bytes of the page that the file does have.
        got: u64,
    },
    /// The walk did not end within its hops.
    #[non_exhaustive]
    TooManyHops {
        /// The most hops it could have.
        limit: u32,
    },
    /// The program's step said so.
    #[non_exhaustive]
    Failed {
        /// The position of the page that it looked at, bytes.
        offset: u64,
        /// The program's own reason.
        code: u32,
    },
    /// The step answered what it may not: no page, more than its fan-out, or more while some were coming.
    #[non_exhaustive]
    BadAnswer {
        /// The position of the page that it looked at, bytes.
        offset: u64,
    },
    /// This engine cannot go on with the walk, and another one can. A [`KernelWalk`](crate::KernelWalk) goes on in the reactor;
    /// only a [`LocalWalk`](crate::LocalWalk) answers it.
    #[non_exhaustive]
    Elsewhere {
        /// The position of the page, bytes.
        offset: u64,
        /// What the engine said.
        source: io::Error,
    },
    /// The walks were closed before this one was over.
    Closed,
    /// `.wait()` was called on a shard's thread, which would wait for itself.
    WaitOnShard,
    /// An engine that was asked for by name is not possible here.
    Unavailable(String),
    /// What Forebay's reactor answered, where it is none of the above.
    Core(forebay::Error),
}

/// What a call gives.
pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { offset, hop, source } => {
                write!(formatter, "a walk's read at offset {offset} failed at hop {hop}: {source}")
            }
            Error::UnexpectedEof { offset, got } => {
                write!(formatter, "the file has {got} bytes of the page at offset {offset}: it ends there")
            }
            Error::TooManyHops { limit } => {
                write!(formatter, "the walk did not end within {limit} hops: its pages lead in a circle")
            }
            Error::Failed { offset, code } => {
                write!(formatter, "the walk's program gave up at offset {offset} (its reason {code})")
            }
            Error::BadAnswer { offset } => {
                write!(formatter, "the walk's program answered nonsense at offset {offset}")
            }
            Error::Elsewhere { offset, source } => {
                write!(formatter, "this engine cannot go on with the walk at offset {offset}: {source}")
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
