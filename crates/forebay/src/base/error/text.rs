//! The text of an error for people, with the remedy, if any.

use std::fmt;

use super::{Error, ErrorKind};

impl Error {
    fn remedy(&self) -> Option<&'static str> {
        Some(match self.0.kind {
            ErrorKind::Misaligned { .. } if self.0.operation == "read" => {
                "read whole multiples, use File::read, or open the file buffered"
            }
            ErrorKind::Misaligned { .. } => {
                "write whole multiples, or let File::append (from front to back) or forebay_collective::WriteCombiner (anywhere) read what is \
                 missing, or open the file buffered"
            }
            ErrorKind::ArenaExhausted { held: 0 } => {
                "ask for less at once, raise Config::arena_bytes_max or overflow_bytes_max, or free memory of the system"
            }
            ErrorKind::ArenaExhausted { .. } => "drop blocks sooner, or raise Config::arena_bytes_max",
            ErrorKind::TooLarge { .. } if self.0.operation == "scan" => {
                "read its ranges with File::read_up_to"
            }
            ErrorKind::TooLarge { .. } => {
                "one block has no more; File::read_many, read_into, write_from, scan and append take any length"
            }
            ErrorKind::EngineClosed => "keep an Engine handle alive while files are in use",
            ErrorKind::FileClosed => "open the file again",
            ErrorKind::ShardLost => "start a new Engine; a panic outside tasks is a bug worth reporting",
            ErrorKind::Forked => "start a new Engine in the child process",
            ErrorKind::WaitOnShard => "use .await in tasks that run on a shard",
            ErrorKind::WaitInWorld => "use .await in the program that the world runs",
            ErrorKind::OutsideWorld => "use sim::spawn instead of threads or another runtime's tasks",
            ErrorKind::NotOnShard => "run it in a task given to Engine::spawn_on_shard",
            ErrorKind::UnexpectedEof { .. } if self.0.operation == "walk" => {
                "a step asked for what is behind the end of the file; check positions before they are followed"
            }
            ErrorKind::TooManyHops { .. } => "look for a cycle in the file, or raise hops_max",
            ErrorKind::UnexpectedEof { .. } => "use File::read_up_to when the file may end inside the range",
            ErrorKind::Locked => {
                "wait until the other holder has released the lock, as File::lock_within does"
            }
            ErrorKind::Unsupported => "`forebay doctor PATH` tells what works here",
            _ => match self.raw_os_error()? {
                libc::ENOSPC => {
                    "free space or inodes of the file system (df -h, df -i); nothing acknowledged before is lost"
                }
                libc::EDQUOT => "raise the quota or free space",
                libc::EMFILE | libc::ENFILE => "close files, or raise the limit of open files (ulimit -n)",
                libc::EFBIG => {
                    "write less, or raise the limit of a file's length (ulimit -f, or the file system's)"
                }
                libc::ENOMEM if self.0.operation == "start" => {
                    "raise RLIMIT_MEMLOCK (ulimit -l), the address space (ulimit -v) or the control group's \
                     memory.max, or lower Config::arena_bytes"
                }
                libc::ENOMEM => "free memory, or raise what this process may use (ulimit -v, -l; memory.max)",
                libc::EAGAIN => {
                    "the system has no thread or memory for it now: raise the limit of processes (ulimit -u, or \
                     pids.max of the control group), or try again later"
                }
                libc::EACCES | libc::EPERM => "check the permissions of the file and its directories",
                libc::ENOENT => "check the path",
                libc::EEXIST => "remove it, choose another name, or open what is there",
                libc::EISDIR => "give the path of a file",
                libc::ENOTDIR => "check the path: a part of it is not a directory",
                libc::ENOTEMPTY => "remove what is in the directory first",
                libc::EROFS => "the file system is mounted read-only",
                libc::EIO => "the device failed; what was written before the last good sync is what counts",
                _ => return None,
            },
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.operation)?;
        match &self.0.path {
            Some(path) if path.as_os_str().is_empty() => f.write_str(" (an empty path)")?,
            Some(path) => write!(f, " {}", path.display())?,
            None => {}
        }
        if let Some((offset, len)) = self.0.range {
            write!(f, " ({len} bytes at {offset})")?;
        }
        if let Some(hop) = self.0.hop {
            write!(f, " at hop {hop}")?;
        }
        if let Some(device) = &self.0.device {
            write!(f, " on {device}")?;
        }
        f.write_str(": ")?;
        match self.0.kind {
            ErrorKind::Unsupported | ErrorKind::InvalidInput | ErrorKind::TaskPanicked => {}
            ErrorKind::UnexpectedEof { got } => write!(f, "the file ends after {got} of these bytes")?,
            ErrorKind::Misaligned { needed } => {
                let what = if self.0.operation == "read" { "read into a given block" } else { "write" };
                write!(f, "a direct {what} must start and end at a multiple of {needed} bytes")?;
            }
            ErrorKind::ArenaExhausted { held: 0 } => {
                f.write_str("there is no memory for that many bytes, and no live block holds any")?;
            }
            ErrorKind::ArenaExhausted { held } => {
                write!(f, "no I/O memory left: live blocks hold {held} bytes")?
            }
            ErrorKind::TooLarge { limit } => write!(f, "one operation may move at most {limit} bytes")?,
            ErrorKind::EngineClosed => f.write_str("the engine is closed")?,
            ErrorKind::FileClosed => f.write_str("the file is closed")?,
            ErrorKind::ShardLost => f.write_str("the shard's thread died")?,
            ErrorKind::Forked => f.write_str("this handle belongs to the parent process")?,
            ErrorKind::WaitOnShard => f.write_str("waiting on a shard's own thread would never end")?,
            ErrorKind::WaitInWorld => {
                f.write_str("waiting would stop the one thread of the simulated world")?
            }
            ErrorKind::OutsideWorld => {
                f.write_str("this handle works only on its simulated world's thread, while it runs")?
            }
            ErrorKind::NotOnShard => f.write_str("this works only in a task on a shard")?,
            ErrorKind::TaskCancelled => f.write_str("the task was cancelled")?,
            ErrorKind::Cancelled => f.write_str("the operation was cancelled")?,
            ErrorKind::Elapsed => f.write_str("the time given has passed")?,
            ErrorKind::TooManyHops { limit } => write!(f, "the walk did not end within {limit} hops")?,
            ErrorKind::Locked => f.write_str("another holder has the lock")?,
            // The system's own message, written below, is the text of these.
            ErrorKind::Io
            | ErrorKind::NotFound
            | ErrorKind::PermissionDenied
            | ErrorKind::AlreadyExists
            | ErrorKind::NoSpace
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::IsADirectory
            | ErrorKind::NotADirectory
            | ErrorKind::DirectoryNotEmpty => {}
        }
        match (&self.0.note, &self.0.cause) {
            (Some(note), Some(cause)) => write!(f, "{note}: {cause}")?,
            (Some(note), None) => f.write_str(note)?,
            (None, Some(cause)) if self.0.kind.is_system() || self.0.kind == ErrorKind::Unsupported => {
                write!(f, "{cause}")?;
            }
            (None, None) if self.0.kind == ErrorKind::Unsupported => f.write_str("not supported here")?,
            _ => {}
        }
        match self.remedy() {
            Some(remedy) => write!(f, " ({remedy})"),
            None => Ok(()),
        }
    }
}
