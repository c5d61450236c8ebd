//! The processes that hold a lock, as far as the system reports them.

use std::fmt;

use forebay::Metadata;

/// The processes that hold the lock of a file (flock(2)). For our crates.
#[doc(hidden)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holders {
    /// Ids of the processes, each once, in order; empty where the system does not report them.
    pub processes: Vec<u32>,
    /// Whether the lock is shared, as readers hold it.
    pub is_shared: bool,
    /// Whether the lock is of this file beyond doubt: some file systems have other numbers in the system's list.
    pub(super) is_certain: bool,
}

impl Holders {
    /// Returns the holders of the lock of the file that has this metadata.
    pub fn of(file: &Metadata) -> Holders {
        let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
        Holders::among(&locks, file.device(), file.inode())
    }

    /// Returns the process that recorded itself as a log's writer.
    pub(super) fn recorded(process: Option<u32>) -> Holders {
        Holders { processes: process.into_iter().collect(), ..Holders::default() }
    }

    /// Finds them in lines such as `1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF`.
    fn among(locks: &str, device: (u32, u32), inode: u64) -> Holders {
        let own = format!("{:02x}:{:02x}:{inode}", device.0, device.1);
        let same_inode = format!(":{inode}");
        let mut found = Holders::default();
        for line in locks.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let &[_, "FLOCK", _, mode, process, place, ..] = &words[..] else { continue };
            let is_certain = place == own;
            if !place.ends_with(&same_inode) || (found.is_certain && !is_certain) {
                continue;
            }
            let Ok(process) = process.parse::<u32>() else { continue };
            if is_certain && !found.is_certain {
                found = Holders { is_certain, ..Holders::default() };
            }
            found.is_shared = mode == "READ";
            found.processes.push(process);
        }
        found.processes.sort_unstable();
        found.processes.dedup();
        found
    }

    /// Returns whether this process is one of them.
    pub fn has_own(&self) -> bool {
        self.processes.contains(&std::process::id())
    }
}

/// Their names in a sentence; `another process` where they are not known.
impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = std::process::id();
        match self.processes[..] {
            [] => f.write_str("another process"),
            [process] if process == own => write!(f, "this process ({own})"),
            [process] => write!(f, "process {process}"),
            ref processes => {
                let list: Vec<String> = processes.iter().map(u32::to_string).collect();
                write!(f, "processes {}", list.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKS: &str = "1: POSIX  ADVISORY  WRITE 7 08:01:5678 0 EOF\n\
                         2: FLOCK  ADVISORY  READ 12 08:01:5678 0 EOF\n\
                         3: FLOCK  ADVISORY  READ 11 08:01:5678 0 EOF\n\
                         4: FLOCK  ADVISORY  READ 12 08:01:5678 0 EOF\n\
                         5: FLOCK  ADVISORY  WRITE 13 00:2d:5678 0 EOF\n\
                         6: -> FLOCK  ADVISORY  WRITE 14 08:01:5678 0 EOF\n\
                         7: FLOCK  ADVISORY  WRITE 15 08:01:15678 0 EOF\n";

    #[test]
    fn those_of_the_same_file_are_found_and_of_the_same_number_where_there_are_none() {
        let readers = Holders::among(LOCKS, (8, 1), 5678);
        assert_eq!(
            (&readers.processes[..], readers.is_shared, readers.is_certain),
            (&[11, 12][..], true, true)
        );
        assert_eq!(readers.to_string(), "processes 11, 12");
        let writer = Holders::among(LOCKS, (0, 0x2d), 5678);
        assert_eq!((&writer.processes[..], writer.is_shared, writer.is_certain), (&[13][..], false, true));
        assert_eq!(writer.to_string(), "process 13");
        let elsewhere = Holders::among(LOCKS, (9, 9), 15678);
        assert_eq!((&elsewhere.processes[..], elsewhere.is_certain), (&[15][..], false));
        assert_eq!(Holders::among(LOCKS, (8, 1), 678), Holders::default());
        assert_eq!(Holders::default().to_string(), "another process");
    }
}
