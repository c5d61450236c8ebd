//! What of the machine a process may use: every number that an engine derives from it comes from here.

use std::num::NonZeroUsize;

/// The processors, the memory and the descriptors that this process may use. A container's limits count, not the machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// As `sched_getaffinity` and the cgroup's quota of processor time allow, at least 1.
    pub(crate) processors: usize,
    pub(crate) memory_bytes: usize,
    /// The files that it may have open at once: the soft limit of `RLIMIT_NOFILE`.
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

/// Returns how many files this process may have open at once, as of now: getrlimit(2), `RLIMIT_NOFILE`.
pub(crate) fn descriptor_limit() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// Returns the memory that this process may use, in bytes: the machine's, or less where a cgroup (v1 or v2)
/// sets a limit.
fn memory_limit_bytes() -> usize {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_total_bytes(&text));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = cgroup_limit_files(&groups).into_iter().filter_map(|path| {
        std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<usize>().ok())
    });
    limits.chain(machine).min().unwrap_or(1 << 30)
}

fn mem_total_bytes(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find(|line| line.starts_with("MemTotal:"))?;
    line.split_whitespace().nth(1)?.parse::<usize>().ok()?.checked_mul(1024)
}

/// Returns the files that may hold a limit for a process whose /proc/self/cgroup reads like `text`
/// (cgroups(7)): its own group's and every parent's, which bind it as well. Inside a container the group is
/// often mounted as the root, so the root is included too.
fn cgroup_limit_files(text: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut group = group.trim_end_matches('/');
        loop {
            files.push(format!("{root}{group}/{file}"));
            match group.rfind('/') {
                Some(parent) => group = &group[..parent],
                None => break,
            }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_limit_files_of_both_cgroup_versions() {
        assert_eq!(
            cgroup_limit_files("0::/a/b\n"),
            ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup/memory.max"]
        );
        assert_eq!(
            cgroup_limit_files("5:cpu:/x\n4:memory:/y\n"),
            ["/sys/fs/cgroup/memory/y/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        );
        assert_eq!(mem_total_bytes("MemTotal:       24684084 kB\nMemFree: 1 kB\n"), Some(24684084 * 1024));
    }
}
