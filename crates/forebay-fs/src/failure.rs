//! The core's errors as those of the standard library.

use std::io;

/// Returns an error of the system as the system's calls return it, and any other with its text.
pub(crate) fn io_error(error: forebay::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::from(error), io::Error::from_raw_os_error)
}
