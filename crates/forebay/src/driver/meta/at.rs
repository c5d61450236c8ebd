//! Where a call finds a file.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;

use super::{FdOwner, fd};

/// A path, or a name in an open directory. The latter means the same directory wherever that is moved to, and whatever
/// the process's working directory is.
#[derive(Clone)]
pub(crate) struct At {
    dir: Option<FdOwner>,
    /// What the `*at` system call is given: one name, or `.` for the directory itself.
    name: PathBuf,
    /// What errors and the rules of a simulated machine name: the directory's path when it was opened, and the name.
    path: PathBuf,
}

impl At {
    /// `name` in the open directory `dir`, which had the path `at` when it was opened.
    pub(crate) fn within(dir: FdOwner, at: &Path, name: &Path) -> At {
        At { dir: Some(dir), name: name.to_path_buf(), path: at.join(name) }
    }

    /// The open directory itself.
    pub(crate) fn itself(dir: FdOwner, at: &Path) -> At {
        At { dir: Some(dir), name: PathBuf::from("."), path: at.to_path_buf() }
    }

    /// The path for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The first argument of a `*at` call.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.dir.as_ref().map_or(CWD, fd)
    }

    /// The second argument of a `*at` call.
    pub(crate) fn name(&self) -> &Path {
        &self.name
    }

    /// The open directory, if the name is in one.
    pub(crate) fn dir(&self) -> Option<&FdOwner> {
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

#[cfg(test)]
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
