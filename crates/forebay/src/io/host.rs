//! The resources of the machine that a process may use: every number that an engine derives from them is read here.

use std::num::NonZeroUsize;

mod headroom;

pub(crate) use headroom::Headroom;

/// The processors, the memory and the descriptors that this process may use. A container's limits count, not the machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// As `sched_getaffinity` and the cgroup's quota of processor time allow, at least 1.
    pub(crate) processors: usize,
    pub(crate) memory_bytes: usize,
    /// The files that it may have open: the soft limit of `RLIMIT_NOFILE`.
    pub(crate) descriptors: usize,
}

impl Host {
    /// Returns the limits of this process. Reads up to about ten small files, in 0.1 ms: once for an engine.
    pub(crate) fn here() -> Host {
        Host {
            processors: std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
            memory_bytes: memory_limit_bytes(),
            descriptors: descriptor_limit(),
        }
    }

    /// The host of a simulated world: the same on every machine.
    #[cfg(feature = "_sim")]
    pub(crate) const SIMULATED: Host = Host { processors: 1, memory_bytes: usize::MAX, descriptors: 1024 };
}

/// Returns how many files this process may have open, as of now: getrlimit(2), `RLIMIT_NOFILE`.
pub(crate) fn descriptor_limit() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// Returns the memory that this process may use, in bytes: the machine's, or less where a cgroup (v1 or v2)
/// sets a limit.
fn memory_limit_bytes() -> usize {
    let machine = std::fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.and_then(|text| usize::try_from(meminfo_bytes(&text, "MemTotal:")?).ok());
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = groups(&own).into_iter().filter_map(|group| {
        std::fs::read_to_string(group.file(group.names.limits[0])).ok()?.trim().parse::<usize>().ok()
    });
    limits.chain(machine).min().unwrap_or(1 << 30)
}

/// Returns a number of /proc/meminfo, in bytes.
fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// A control group that may limit this process's memory.
struct Group {
    dir: String,
    /// Whether the process is in it, not in one below it.
    is_own: bool,
    names: &'static GroupFiles,
}

/// The names of a group's files: the least of the limits counts, the first of which ends processes.
struct GroupFiles {
    root: &'static str,
    limits: &'static [&'static str],
    usage: &'static str,
}

const FIRST_VERSION: GroupFiles = GroupFiles {
    root: "/sys/fs/cgroup/memory",
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
};
const SECOND_VERSION: GroupFiles =
    GroupFiles { root: "/sys/fs/cgroup", limits: &["memory.max", "memory.high"], usage: "memory.current" };

impl Group {
    fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }
}

/// Returns the groups that may limit a process whose /proc/self/cgroup reads like `text` (cgroups(7)): its own
/// and every parent, which binds it as well. Inside a container the group is often mounted as the root, so the
/// root is included too.
fn groups(text: &str) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let names = match controllers {
            "" => &SECOND_VERSION,
            _ if controllers.split(',').any(|name| name == "memory") => &FIRST_VERSION,
            _ => continue,
        };
        let mut group = group.trim_end_matches('/');
        let mut is_own = true;
        loop {
            groups.push(Group { dir: format!("{}{group}", names.root), is_own, names });
            is_own = false;
            match group.rfind('/') {
                Some(parent) => group = &group[..parent],
                None => break,
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_limit_files_of_both_cgroup_versions() {
        let files = |text: &str| -> Vec<String> {
            groups(text).iter().map(|group| group.file(group.names.limits[0])).collect()
        };
        assert_eq!(
            files("0::/a/b\n"),
            ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup/memory.max"]
        );
        assert_eq!(
            files("5:cpu:/x\n4:memory:/y\n"),
            ["/sys/fs/cgroup/memory/y/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        );
        let memory = "MemTotal:       24684084 kB\nMemFree: 1 kB\n";
        assert_eq!(meminfo_bytes(memory, "MemTotal:"), Some(24684084 * 1024));
    }
}
