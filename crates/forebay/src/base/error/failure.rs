//! The first error of an object that fails for good, in a form that every later call can return.

use super::{Error, ErrorKind};

/// The facts of an [`Error`] that are kept. The error itself goes to the call that met it first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    kind: ErrorKind,
    errno: Option<i32>,
    operation: &'static str,
    range: Option<(u64, u64)>,
}

impl Failure {
    pub(crate) fn of(error: &Error) -> Failure {
        Failure {
            kind: error.kind(),
            errno: error.raw_os_error(),
            operation: error.operation(),
            range: error.range(),
        }
    }

    /// Returns the error again, with a note that marks it as an earlier one. It names no file yet.
    pub(crate) fn again(&self, note: &str) -> Error {
        let error = match self.errno {
            Some(errno) => Error::os(self.operation, errno),
            None => Error::new(self.kind, self.operation),
        };
        let error = error.with_note(note);
        match self.range {
            Some((offset, len)) => error.with_range(offset, len),
            None => error,
        }
    }
}
