//! [`StartError`]: why a server does not start.

use std::fmt;
use std::io;
use std::path::Path;

/// Why a server does not start, or has ended: one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartError(String);

impl StartError {
    pub(crate) fn new(sentence: impl Into<String>) -> StartError {
        StartError(sentence.into())
    }

    pub(crate) fn at(what: &str, path: &Path, error: &io::Error) -> StartError {
        StartError(format!("{what} {}: {error}", path.display()))
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}
