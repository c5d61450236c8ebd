//! Memory limits of the cgroups of this process, version 1 and 2.

use std::fs;
use std::path::{Path, PathBuf};

/// The smallest memory limit that applies to this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimit {
    /// The limit in bytes, page cache included.
    pub(crate) bytes: u64,
    /// The cgroup that sets the limit, named as in /proc/self/cgroup.
    pub(crate) cgroup: String,
    /// `cgroup v1` or `cgroup v2`.
    pub(crate) version: &'static str,
}

impl MemoryLimit {
    /// Reads the limits of the process's own cgroup and of all above it, and returns the smallest. `None`
    /// when there is none, or when none can be read.
    pub(crate) fn of_this_process() -> Option<Self> {
        let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        hierarchies(&membership, &mounts)
            .into_iter()
            .filter_map(Hierarchy::smallest)
            .min_by_key(|limit| limit.bytes)
    }
}

/// One mounted hierarchy and the place of the process in it.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    mount: PathBuf,
    cgroup: String,
    version: &'static str,
    file: &'static str,
}

impl Hierarchy {
    fn smallest(self) -> Option<MemoryLimit> {
        let mut smallest: Option<MemoryLimit> = None;
        let mut place = Path::new(self.cgroup.trim_start_matches('/'));
        loop {
            if let Some(bytes) = read_limit(&self.mount.join(place).join(self.file))
                && smallest.as_ref().is_none_or(|limit| bytes < limit.bytes)
            {
                smallest = Some(MemoryLimit {
                    bytes,
                    cgroup: format!("/{}", place.display()),
                    version: self.version,
                });
            }
            match place.parent() {
                Some(parent) => place = parent,
                None => return smallest,
            }
        }
    }
}

fn read_limit(file: &Path) -> Option<u64> {
    let value: u64 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    // Version 1 writes "no limit" as the largest multiple of a page.
    (value < 1 << 60).then_some(value)
}

fn hierarchies(membership: &str, mounts: &str) -> Vec<Hierarchy> {
    let mut found = Vec::new();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(cgroup)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (kind, option, version, file) = if controllers.is_empty() {
            ("cgroup2", None, "cgroup v2", "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            ("cgroup", Some("memory"), "cgroup v1", "memory.limit_in_bytes")
        } else {
            continue;
        };
        if let Some(mount) = mounts.lines().find_map(|line| mount_of(line, kind, option)) {
            found.push(Hierarchy { mount, cgroup: cgroup.to_owned(), version, file });
        }
    }
    found
}

fn mount_of(line: &str, kind: &str, option: Option<&str>) -> Option<PathBuf> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = after.split(' ');
    if fields.next()? != kind {
        return None;
    }
    if let Some(option) = option
        && !fields.nth(1)?.split(',').any(|name| name == option)
    {
        return None;
    }
    before.split(' ').nth(4).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn both_versions_are_found() {
        let found = hierarchies("4:memory:/a/b\n3:cpuset:/\n0::/c\n", MOUNTS);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].mount, PathBuf::from("/sys/fs/cgroup/memory"));
        assert_eq!((found[0].version, found[0].cgroup.as_str()), ("cgroup v1", "/a/b"));
        assert_eq!(found[1].mount, PathBuf::from("/sys/fs/cgroup/unified"));
        assert_eq!((found[1].version, found[1].file), ("cgroup v2", "memory.max"));
    }

    #[test]
    fn the_smallest_limit_on_the_way_up_wins() {
        let root = std::env::temp_dir().join(format!("forebay-cgroup-test-{}", std::process::id()));
        let inner = root.join("a/b");
        fs::create_dir_all(&inner).expect("the temp directory is writable");
        fs::write(inner.join("memory.max"), "max\n").expect("write");
        fs::write(root.join("a/memory.max"), "1048576\n").expect("write");
        fs::write(root.join("memory.max"), "2097152\n").expect("write");
        let limit = Hierarchy {
            mount: root.clone(),
            cgroup: "/a/b".to_owned(),
            version: "cgroup v2",
            file: "memory.max",
        }
        .smallest();
        fs::remove_dir_all(&root).expect("it is our own");
        let limit = limit.expect("two limits are set");
        assert_eq!((limit.bytes, limit.cgroup.as_str()), (1 << 20, "/a"));
    }
}
