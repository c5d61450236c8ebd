//! The socket in the file system: restricted to its owner before anyone can connect, and removed at the end.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use crate::base::error::{Error, Result};
use crate::base::fork::Origin;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;

/// The name of a listening socket.
pub(super) struct Name {
    path: PathBuf,
    identity: Identity,
    removed: AtomicBool,
    origin: Origin,
}

/// The identity of the file behind a name, so that no other process's socket is removed. Inode numbers are
/// used again, but with another time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    number: (u64, u64),
    made: (i64, i64),
}

impl Identity {
    fn of(path: &Path) -> io::Result<Identity> {
        let found = fs::symlink_metadata(path)?;
        Ok(Identity { number: (found.dev(), found.ino()), made: (found.mtime(), found.mtime_nsec()) })
    }
}

impl Name {
    /// Makes a socket and listens. It replaces a socket that a dead process left at `path`, and nothing else.
    pub(super) fn bind(path: &Path) -> Result<(UnixListener, Name)> {
        let failed = |error: Errno| Error::io("stats socket", error.into()).with_path(path);
        let address = SocketAddrUnix::new(path).map_err(|error| match error {
            Errno::NAMETOOLONG => {
                Error::invalid("stats socket", "the path is too long for a socket").with_path(path)
            }
            other => failed(other),
        })?;
        let fd = new_socket().map_err(failed)?;
        match rustix::net::bind(&fd, &address) {
            Err(Errno::ADDRINUSE) => {
                take_away_what_died(path)?;
                rustix::net::bind(&fd, &address).map_err(failed)?;
            }
            bound => bound.map_err(failed)?,
        }
        let listen = || -> rustix::io::Result<Identity> {
            // No client can connect before the listen, so the initial permissions of the name are not used.
            rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR)?;
            rustix::net::listen(&fd, BACKLOG)?;
            Identity::of(path).map_err(|error| errno(&error))
        };
        let identity = listen().map_err(|error| {
            let _ = fs::remove_file(path);
            failed(error)
        })?;
        let name = Name {
            path: path.to_path_buf(),
            identity,
            removed: AtomicBool::new(false),
            origin: Origin::here(),
        };
        Ok((UnixListener::from(fd), name))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether it was made by a process that this one was forked from.
    pub(super) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// Removes the name, once, and only while it is this socket's. A forked child leaves it to its parent.
    pub(super) fn remove(&self) {
        if self.is_forked() || self.removed.swap(true, Ordering::Relaxed) {
            return;
        }
        let ours = Identity::of(&self.path).is_ok_and(|found| found == self.identity);
        if ours {
            // A removed name is as good, and no caller could be told of another error.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

#[cfg(target_os = "linux")]
fn new_socket() -> rustix::io::Result<OwnedFd> {
    use rustix::net::{SocketFlags, socket_with};
    socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

#[cfg(not(target_os = "linux"))]
fn new_socket() -> rustix::io::Result<OwnedFd> {
    let fd = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(fd)
}

/// Removes the socket of an ended process.
fn take_away_what_died(path: &Path) -> Result<()> {
    let failed = |error: io::Error| Error::io("stats socket", error).with_path(path);
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let kind = match fs::symlink_metadata(path) {
        // The owner has ended just now and removed its name.
        Err(error) if gone(&error) => return Ok(()),
        found => found.map_err(failed)?.file_type(),
    };
    if !kind.is_socket() {
        let error =
            Error::invalid("stats socket", "something other than a socket is there: name another path");
        return Err(error.with_path(path));
    }
    let found = match Identity::of(path) {
        Err(error) if gone(&error) => return Ok(()),
        found => found.map_err(failed)?,
    };
    if !is_dead(path).map_err(|error| failed(error.into()))? {
        return Err(in_use(path));
    }
    // Under another name the socket can be checked once more, and no other process that found it dead removes
    // its successor.
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".{}", std::process::id()));
    let aside = PathBuf::from(aside);
    match fs::rename(path, &aside) {
        Err(error) if gone(&error) => return Ok(()),
        renamed => renamed.map_err(failed)?,
    }
    let same = Identity::of(&aside).map_err(failed)? == found;
    if !same {
        // Another process was faster and this is its socket: it gets its name back.
        let _ = fs::hard_link(&aside, path);
    }
    fs::remove_file(&aside).map_err(failed)?;
    if same { Ok(()) } else { Err(in_use(path)) }
}

fn in_use(path: &Path) -> Error {
    let error = Error::os("stats socket", libc::EADDRINUSE).with_path(path);
    error.with_note("a living process serves there: name another path")
}

/// Returns whether no process listens there any more.
fn is_dead(path: &Path) -> rustix::io::Result<bool> {
    let fd = new_socket()?;
    match rustix::net::connect(fd.as_fd(), &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => Ok(true),
        // Its queue may be full, which means that a process has it.
        Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS) => Ok(false),
        // It was removed meanwhile.
        Err(Errno::NOENT) => Ok(true),
        Err(other) => Err(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a process that ended after our bind had failed at its socket, and before our check of it, removed the name as
    /// well. That was an error, though the name is free then.
    #[test]
    fn a_name_that_has_gone_by_itself_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("engine.sock");
        take_away_what_died(&path).unwrap();
        fs::write(&path, b"a file").unwrap();
        assert!(take_away_what_died(&path).is_err() && path.exists(), "not a socket, so not ours to remove");
    }
}
