//! The location of the file that a call names.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;

use super::{FdOwner, fd};

/// A path, or a name in an open directory. The latter keeps naming the same directory if that is moved, and
/// does not depend on the process's working directory.
#[derive(Clone)]
pub struct At {
    dir: Option<FdOwner>,
    /// The path argument of the `*at` system call: one name, or `.` for the directory itself.
    name: PathBuf,
    /// The path for errors and for the rules of a simulated machine: the directory's path when it was opened,
    /// and the name.
    path: PathBuf,
}

impl At {
    /// Names `name` in the open directory `dir`, which had the path `at` when it was opened.
    pub(crate) fn within(dir: FdOwner, at: &Path, name: &Path) -> At {
        At { dir: Some(dir), name: name.to_path_buf(), path: at.join(name) }
    }

    /// Names the open directory itself.
    pub(crate) fn itself(dir: FdOwner, at: &Path) -> At {
        At { dir: Some(dir), name: PathBuf::from("."), path: at.to_path_buf() }
    }

    /// Returns the path for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the first argument of a `*at` call.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.dir.as_ref().map_or(CWD, fd)
    }

    /// Returns the second argument of a `*at` call.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Returns the open directory, if the name is in one.
    pub fn dir(&self) -> Option<&FdOwner> {
        self.dir.as_ref()
    }
}

impl From<PathBuf> for At {
    fn from(path: PathBuf) -> At {
        At { dir: None, name: path.clone(), path }
    }
}

impl From<&Path> for At {
    fn from(path: &Path) -> At {
        At::from(path.to_path_buf())
    }
}

impl From<&str> for At {
    fn from(path: &str) -> At {
        At::from(PathBuf::from(path))
    }
}

impl fmt::Debug for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("At").field(&self.path).finish()
    }
}
