//! The kernel's own figures: a cgroup of the command's own, and its `io.pressure`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A cgroup (version 2) of our own, removed when dropped.
#[derive(Debug)]
pub(crate) struct Group {
    directory: PathBuf,
}

/// Nanoseconds since the cgroup was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StallTotals {
    pub(crate) some_ns: u64,
    pub(crate) full_ns: u64,
}

impl Group {
    /// Creates a cgroup below the cgroup of this process.
    pub(crate) fn create() -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let parent = own_directory(&mounts, &own)
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no cgroup2 hierarchy is mounted"))?;
        // One process may measure several commands.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        remove_left_ones(&parent);
        let directory = parent.join(format!("{NAME}{}-{number}", std::process::id()));
        fs::create_dir(&directory)?;
        let group = Self { directory };
        // A cgroup without pressure figures, or that processes may not enter, is useless.
        group.stalled()?;
        group.door()?;
        OpenOptions::new().write(true).open(parent.join("cgroup.procs"))?;
        Ok(group)
    }

    /// Opens the file into which a process writes 0 to enter.
    pub(crate) fn door(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.directory.join("cgroup.procs"))
    }

    /// Returns the totals so far.
    pub(crate) fn stalled(&self) -> io::Result<StallTotals> {
        let text = fs::read_to_string(self.directory.join("io.pressure"))?;
        parse(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "io.pressure has no totals"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Processes that the command left behind return to the cgroup that it was started from; one may fork
        // meanwhile.
        for _ in 0..10 {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            let left = fs::read_to_string(self.directory.join("cgroup.procs")).unwrap_or_default();
            let Some(parent) = self.directory.parent() else { return };
            for process in left.lines() {
                // The process may have ended.
                let _ = fs::write(parent.join("cgroup.procs"), process);
            }
        }
    }
}

/// Names of the cgroups, before the number of the process that made them.
const NAME: &str = "forebay-wait-";

/// Removes empty cgroups whose maker was killed before it could. The kernel refuses to remove one that has a
/// process.
fn remove_left_ones(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.strip_prefix(NAME)?.split('-').next());
        let is_left = maker
            .is_some_and(|maker| maker.parse::<u32>().is_ok() && !Path::new("/proc").join(maker).exists());
        if is_left {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Returns the directory of this process's cgroup of version 2.
fn own_directory(mounts: &str, own: &str) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (head, tail) = line.split_once(" - ")?;
        if tail.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut fields = head.split(' ').skip(3);
        let (root, place) = (fields.next()?, fields.next()?);
        let below = Path::new(path).strip_prefix(root).ok()?;
        Some(Path::new(place).join(below))
    })
}

fn parse(text: &str) -> Option<StallTotals> {
    let total = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        let micros: u64 = line.split("total=").nth(1)?.trim().parse().ok()?;
        Some(micros.saturating_mul(1000))
    };
    Some(StallTotals { some_ns: total("some ")?, full_ns: total("full ")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read() {
        let text = "some avg10=0.50 avg60=1.00 avg300=0.00 total=1200\n\
            full avg10=0.20 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(parse(text), Some(StallTotals { some_ns: 1_200_000, full_ns: 7_000 }));
        assert_eq!(parse("some avg10=0.50"), None);
    }

    #[test]
    fn the_own_cgroup_is_found_below_its_mount() {
        let mounts = "30 24 0:26 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n\
            31 24 0:27 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let own = "4:memory:/x\n0::/user.slice/a\n";
        assert_eq!(own_directory(mounts, own), Some(PathBuf::from("/sys/fs/cgroup/unified/user.slice/a")));
        assert_eq!(own_directory("", own), None);
    }
}
