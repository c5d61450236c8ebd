//! Exit codes; [`Failure`] chooses them.
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

use std::process::ExitCode;

use crate::output::stderr_line;
use forebay_report::failure::Failure;

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
