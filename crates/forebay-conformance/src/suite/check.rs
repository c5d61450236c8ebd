//! The ways in which a case reports the expected and the actual result.

use std::fmt::{Debug, Display};
use std::panic::Location;

use forebay::{Error, ErrorKind, Result};

/// The reason why a case ends early.
#[derive(Debug)]
pub(super) enum Stop {
    Failed(String),
    Skipped(String),
}

pub(super) type Outcome<T = ()> = std::result::Result<T, Stop>;

/// An error where a case expected success. The text names the place of the error.
impl From<Error> for Stop {
    #[track_caller]
    fn from(error: Error) -> Stop {
        Stop::Failed(format!("{}: no error was expected, and there came: {error}", place()))
    }
}

impl Stop {
    /// Returns the same with a prefix, such as the operation or the round.
    pub(super) fn of(self, what: impl Display) -> Stop {
        match self {
            Stop::Failed(reason) => Stop::Failed(format!("{what}: {reason}")),
            skipped => skipped,
        }
    }
}

/// Returns the file's name without its directories, which depend on the build machine, and the line.
#[track_caller]
fn place() -> String {
    let caller = Location::caller();
    let name = caller.file().rsplit('/').next().unwrap_or_default();
    format!("{name}:{}", caller.line())
}

#[track_caller]
pub(super) fn fail<T>(reason: impl Display) -> Outcome<T> {
    Err(Stop::Failed(format!("{}: {reason}", place())))
}

#[track_caller]
pub(super) fn holds(what: impl Display, is_so: bool) -> Outcome {
    if is_so { Ok(()) } else { fail(format_args!("expected: {what}")) }
}

#[track_caller]
pub(super) fn same<A, B>(what: impl Display, came: A, expected: B) -> Outcome
where
    A: PartialEq<B> + Debug,
    B: Debug,
{
    if came == expected { Ok(()) } else { fail(format_args!("{what}: expected {expected:?}, came {came:?}")) }
}

/// Does the same as [`same`] for many bytes, and reports the first that differs.
#[track_caller]
pub(super) fn same_bytes(what: impl Display, came: &[u8], expected: &[u8]) -> Outcome {
    if came == expected {
        return Ok(());
    }
    if came.len() != expected.len() {
        return fail(format_args!("{what}: expected {} bytes, came {}", expected.len(), came.len()));
    }
    let at = came.iter().zip(expected).position(|(came, expected)| came != expected).unwrap_or_default();
    fail(format_args!(
        "{what}: byte {at} of {}: expected {:#04x}, came {:#04x}",
        came.len(),
        expected[at],
        came[at]
    ))
}

/// Returns the error that was expected.
#[track_caller]
pub(super) fn fails<T>(what: impl Display, result: Result<T>) -> Outcome<Error> {
    match result {
        Err(error) => Ok(error),
        Ok(_) => fail(format_args!("{what}: expected an error, and it worked")),
    }
}

#[track_caller]
pub(super) fn fails_with<T>(what: impl Display, result: Result<T>, kind: ErrorKind) -> Outcome<Error> {
    match result {
        Err(error) if error.kind() == kind => Ok(error),
        Err(error) => fail(format_args!("{what}: expected {kind:?}, came {error:?}")),
        Ok(_) => fail(format_args!("{what}: expected {kind:?}, and it worked")),
    }
}

/// Returns the expected error of the operating system with that number.
#[track_caller]
pub(super) fn fails_os<T>(what: impl Display, result: Result<T>, errno: i32) -> Outcome<Error> {
    match result {
        Err(error) if error.raw_os_error() == Some(errno) => Ok(error),
        Err(error) => fail(format_args!("{what}: expected OS error {errno}, came {error:?}")),
        Ok(_) => fail(format_args!("{what}: expected OS error {errno}, and it worked")),
    }
}

/// Ends the case as skipped where the file system does not support the call that returned `result`.
#[track_caller]
pub(super) fn or_skip<T>(what: impl Display, result: Result<T>) -> Outcome<T> {
    match result {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            Err(Stop::Skipped(format!("{what} is not supported here: {error}")))
        }
        other => Ok(other?),
    }
}
