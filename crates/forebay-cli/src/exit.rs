//! Exit codes, and the errors that choose them.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | something failed while measuring; `wal`: the log is damaged; `kv`: the store is, or the key does not exist |
//! | 2 | the command line is wrong; `wal`: the log cannot be read; `kv`: it could not be done |
//! | 3 | the path cannot be used: missing, not a file or directory, not readable or writable |
//! | 4 | the path can be used, but not for this: no space, a file that is too small, a file system without O_DIRECT |
//! | 5 | this build or this user cannot do it: a feature that was left out, a privilege that is missing |
//! | 130, 143, 129 | ended by SIGINT, SIGTERM, SIGHUP; temp files were removed |

use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use crate::output::stderr_line;

/// A failure that has its own exit code. Return it through `anyhow`
/// (`Err(Failure::Unsuitable(..).into())`). `main` finds it also below added context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
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
    pub(crate) fn missing(path: &Path, error: &io::Error) -> Self {
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
    pub(crate) fn data(error: anyhow::Error) -> anyhow::Error {
        if error.is::<Self>() { error } else { Self::Data(format!("{error:#}")).into() }
    }

    /// Returns the exit code of the process.
    pub(crate) fn code(&self) -> u8 {
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

/// Prints the failure and returns its exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    stderr_line(format_args!("forebay: {error:#}"));
    ExitCode::from(error.downcast_ref::<Failure>().map_or(1, Failure::code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn the_code_survives_added_context() {
        let result: anyhow::Result<()> =
            Err(anyhow::Error::from(Failure::Unsuitable("too small".to_owned()))).context("scan");
        let error = result.expect_err("it failed");
        assert_eq!(error.downcast_ref::<Failure>().map(Failure::code), Some(4));
    }
}
