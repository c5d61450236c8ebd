//! The errors that choose an exit code of the program.

use std::fmt;
use std::io;
use std::path::Path;

/// A failure that has its own exit code. Return it through `anyhow`
/// (`Err(Failure::Unsuitable(..).into())`). `main` finds it also below added context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Exit code 2: the command line is wrong.
    Usage(String),
    /// Exit code 3: the path cannot be used.
    Path(String),
    /// Exit code 4: the path can be used, but not for this.
    Unsuitable(String),
    /// Exit code 5: a feature that this build does not have, or a privilege that this user does not have.
    Lacking(String),
    /// Exit code 2: a log or a store cannot be used. Code 1 is reserved for a damaged one that can be read, and
    /// for a missing key.
    Data(String),
}

impl Failure {
    /// Returns the failure for a path that could not be opened or examined.
    pub fn missing(path: &Path, error: &io::Error) -> Self {
        let name = path.display();
        Self::Path(match error.kind() {
            io::ErrorKind::NotFound => format!("{name} does not exist: name an existing directory or file"),
            io::ErrorKind::PermissionDenied => {
                format!("{name} may not be used by this user: change its permissions or name another path")
            }
            _ => format!("{name} cannot be used: {error}"),
        })
    }

    /// Gives `error` the exit code 2, unless it has one already.
    pub fn data(error: anyhow::Error) -> anyhow::Error {
        if error.is::<Self>() { error } else { Self::Data(format!("{error:#}")).into() }
    }

    /// Returns the exit code of the process.
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Data(_) => 2,
            Self::Path(_) => 3,
            Self::Unsuitable(_) => 4,
            Self::Lacking(_) => 5,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Usage(sentence)
        | Self::Path(sentence)
        | Self::Unsuitable(sentence)
        | Self::Lacking(sentence)
        | Self::Data(sentence)) = self;
        formatter.write_str(sentence)
    }
}

impl std::error::Error for Failure {}
