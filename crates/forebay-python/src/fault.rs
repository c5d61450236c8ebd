//! Errors of the core as the exceptions that Python programs expect.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay::ErrorKind;
use pyo3::exceptions::{PyEOFError, PyException, PyOSError, PyValueError};
use pyo3::prelude::*;

pyo3::create_exception!(
    forebay,
    Error,
    PyException,
    "A failure that is neither the operating system's nor a wrong argument. `kind` is its kind, as a word."
);

/// A failure of an operation, on its way to the thread that may make an exception of it.
pub(crate) struct Fault {
    cause: Cause,
    /// The file's name for Python, and the name by which the core opened it if that is another one.
    file: Option<(Arc<Path>, Option<PathBuf>)>,
    /// The core refuses directories as it does pipes; Python programs know them as an error of the system.
    is_directory: bool,
}

enum Cause {
    Core(forebay::Error),
    /// The path leads to another file than at first.
    Stale,
}

/// A remedy of the core that names a call of Rust's, and the same in Python.
const SHORT_FILE: [&str; 2] = [
    "use File::read_up_to when the file may end inside the range",
    "read returns less where the file ends inside the range",
];

impl Fault {
    pub(crate) fn new(error: forebay::Error) -> Fault {
        Fault { cause: Cause::Core(error), file: None, is_directory: false }
    }

    /// Names a path that leads to another file than at first.
    pub(crate) fn stale(path: &Arc<Path>) -> Fault {
        Fault { cause: Cause::Stale, file: Some((path.clone(), None)), is_directory: false }
    }

    /// Names the file that could not be opened.
    pub(crate) fn of_open(error: forebay::Error, path: &Arc<Path>) -> Fault {
        let is_directory = error.kind() == ErrorKind::InvalidInput && path.is_dir();
        Fault { is_directory, ..Fault::of_file(error, path) }
    }

    /// Names the file, which the core may know by another name.
    pub(crate) fn of_file(error: forebay::Error, path: &Arc<Path>) -> Fault {
        let other = error.path().filter(|named| *named != &**path).map(Path::to_path_buf);
        Fault { cause: Cause::Core(error), file: Some((path.clone(), other)), is_directory: false }
    }

    fn text(&self) -> String {
        let text = match &self.cause {
            Cause::Core(error) => error.to_string().replace(SHORT_FILE[0], SHORT_FILE[1]),
            Cause::Stale => {
                "the path leads to another file than at first, which replaced it; open the files again"
                    .to_owned()
            }
        };
        match &self.file {
            Some((path, Some(other))) if other.starts_with("/proc/self/fd") => {
                text.replace(&*other.to_string_lossy(), &path.to_string_lossy())
            }
            _ => text,
        }
    }

    fn filename(&self) -> Option<&Path> {
        match &self.file {
            Some((path, _)) => Some(path),
            None => match &self.cause {
                Cause::Core(error) => error.path(),
                Cause::Stale => None,
            },
        }
    }

    pub(crate) fn into_py(self, py: Python<'_>) -> PyErr {
        let text = self.text();
        let number = match &self.cause {
            _ if self.is_directory => Some(libc::EISDIR),
            Cause::Core(error) => errno(error),
            Cause::Stale => Some(libc::ESTALE),
        };
        if let Some(errno) = number {
            // The constructor of OSError chooses the subclass by the number.
            return match self.filename() {
                Some(path) => PyOSError::new_err((errno, text, path.to_path_buf().into_os_string())),
                None => PyOSError::new_err((errno, text)),
            };
        }
        let Cause::Core(error) = &self.cause else { return Error::new_err(text) };
        match error.kind() {
            ErrorKind::UnexpectedEof { .. } => PyEOFError::new_err(text),
            ErrorKind::InvalidInput | ErrorKind::FileClosed | ErrorKind::Misaligned { .. } => {
                PyValueError::new_err(text)
            }
            kind => {
                let error = Error::new_err(text);
                // Without the attribute the exception still says everything.
                let _ = error.value(py).setattr("kind", word(kind));
                error
            }
        }
    }
}

impl From<forebay::Error> for Fault {
    fn from(error: forebay::Error) -> Fault {
        Fault::new(error)
    }
}

/// Returns the system's number of an error that is the system's, also where the core has found it by itself.
fn errno(error: &forebay::Error) -> Option<i32> {
    let of_kind = match error.kind() {
        ErrorKind::Io => Some(libc::EIO),
        ErrorKind::NotFound => Some(libc::ENOENT),
        ErrorKind::PermissionDenied => Some(libc::EACCES),
        ErrorKind::AlreadyExists => Some(libc::EEXIST),
        ErrorKind::NoSpace => Some(libc::ENOSPC),
        ErrorKind::ReadOnlyFilesystem => Some(libc::EROFS),
        ErrorKind::IsADirectory => Some(libc::EISDIR),
        ErrorKind::NotADirectory => Some(libc::ENOTDIR),
        ErrorKind::DirectoryNotEmpty => Some(libc::ENOTEMPTY),
        ErrorKind::Locked => Some(libc::EWOULDBLOCK),
        _ => None,
    };
    error.raw_os_error().or(of_kind)
}

/// Returns a kind as a word in the style of Python: `ArenaExhausted { held: 5 }` is `"arena_exhausted"`.
fn word(kind: ErrorKind) -> String {
    let mut word = String::new();
    for letter in format!("{kind:?}").chars().take_while(|letter| letter.is_ascii_alphanumeric()) {
        if letter.is_ascii_uppercase() && !word.is_empty() {
            word.push('_');
        }
        word.push(letter.to_ascii_lowercase());
    }
    word
}
