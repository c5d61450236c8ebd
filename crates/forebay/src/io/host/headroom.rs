//! Free memory: pages that the kernel can add to its cache without reclaiming others.

use std::path::Path;

use super::{groups, meminfo_bytes};

/// This part of each limit does not count as free: the kernel starts to reclaim pages before a limit is reached, and the numbers
/// are a moment old.
const RESERVE_PART: u64 = 32;
/// The counter of pages of files that were read again soon after the kernel had reclaimed them, in memory.stat and in /proc/vmstat.
const REFAULTS: &str = "workingset_refault_file";
/// The same of a group of the first version with all groups below it, where `REFAULTS` is its own; the second version has one for both.
const REFAULTS_IN_ALL: &str = "total_workingset_refault_file";

/// The counters of pages that the kernel reclaimed because memory was short, in both files. They exclude pages reclaimed for other
/// reasons, as by DAMON. Groups of the first version lack them.
const STEALS: [&str; 2] = ["pgsteal_kswapd", "pgsteal_direct"];

/// The free memory of the process at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Headroom {
    /// The least of the machine's free bytes, of those below the limit of the process's control group, and below that of each of
    /// its ancestors. Pages that hold a file's bytes count as used: the kernel would reclaim them, and their readers would wait.
    pub(crate) bytes: u64,
    /// How many pages were read again so far: in the process's group and in its ancestors that have a limit, or in the machine if the process
    /// is in no group.
    pub(crate) refaults: u64,
    /// How many pages the kernel reclaimed so far because memory was short, in the machine and in those groups that have a limit.
    /// `None` where one of them does not report it.
    pub(crate) steals: Option<u64>,
}

impl Headroom {
    /// Reads the headroom from the files below `root`, which is `/` except in tests: about ten small files, in 0.2 ms. `None` where
    /// the system does not report it.
    pub(crate) fn below(root: &Path) -> Option<Headroom> {
        let read = |path: &str| std::fs::read_to_string(root.join(path.trim_start_matches('/'))).ok();
        let memory = read("/proc/meminfo")?;
        let (total, free) = (meminfo_bytes(&memory, "MemTotal:")?, meminfo_bytes(&memory, "MemFree:")?);
        let mut bytes = without_reserve(free, total);
        let of_machine = read("/proc/vmstat").unwrap_or_default();
        let (mut refaults, mut steals) = (None::<u64>, steals_of(&of_machine));
        for group in groups(&read("/proc/self/cgroup").unwrap_or_default()) {
            let number = |file: &str| read(&group.file(file))?.trim().parse::<u64>().ok();
            let used = number(group.names.usage);
            // A group without a limit has `max`, or more than the machine's memory. A group whose use is unknown has no headroom.
            let limit = group.names.limits.iter().filter_map(|&file| number(file)).min();
            let limit = limit.filter(|limit| *limit < total);
            if let Some(limit) = limit {
                let free = used.map_or(0, |used| limit.saturating_sub(used));
                bytes = bytes.min(without_reserve(free, limit));
            }
            // In an ancestor without a limit others may lack memory that this process has. The root of all groups counts no use.
            let counts = used.is_some() && (group.is_own || limit.is_some());
            let stat = counts.then(|| read(&group.file("memory.stat"))).flatten().unwrap_or_default();
            if let Some(count) = counter(&stat, REFAULTS_IN_ALL).or_else(|| counter(&stat, REFAULTS)) {
                refaults = Some(refaults.unwrap_or(0) + count);
                // Pages reclaimed for a group's own limit do not count for the machine.
                if limit.is_some() {
                    steals = steals.zip(steals_of(&stat)).map(|(all, these)| all + these);
                }
            }
        }
        let refaults = refaults.or_else(|| counter(&of_machine, REFAULTS)).unwrap_or(0);
        Some(Headroom { bytes, refaults, steals })
    }
}

fn steals_of(text: &str) -> Option<u64> {
    STEALS.into_iter().map(|name| counter(text, name)).sum()
}

fn without_reserve(free: u64, limit: u64) -> u64 {
    free.saturating_sub(limit / RESERVE_PART)
}

/// Returns a counter of a file with a name and a number in each line.
fn counter(text: &str, name: &str) -> Option<u64> {
    let (_, number) =
        text.lines().filter_map(|line| line.split_once(' ')).find(|(found, _)| *found == name)?;
    number.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A directory with the files of a machine of 3,200 MiB, of which 1,000 are free.
    fn machine(group: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let kib = |mib: u64| mib << 10;
        let memory = format!(
            "MemTotal: {} kB\nMemFree: {} kB\nMemAvailable: {} kB\n",
            kib(3200),
            kib(1000),
            kib(3100)
        );
        put(&root, "proc/meminfo", &memory);
        put(&root, "proc/self/cgroup", group);
        let counts = "workingset_refault_anon 8\nworkingset_refault_file 77\npgsteal_kswapd 3\npgsteal_direct 4\npgsteal_file 90\n";
        put(&root, "proc/vmstat", counts);
        root
    }

    fn put(root: &tempfile::TempDir, path: &str, text: &str) {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn put_group(root: &tempfile::TempDir, dir: &str, limits: [&str; 2], used: u64, refaults: u64) {
        let [max, high] = limits;
        put(root, &format!("{dir}/memory.max"), max);
        put(root, &format!("{dir}/memory.high"), high);
        put(root, &format!("{dir}/memory.current"), &format!("{used}\n"));
        let steals = "pgsteal_kswapd 10\npgsteal_direct 20\npgsteal_proactive 70\n";
        let stat =
            format!("anon 1\nworkingset_refault_file {refaults}\nworkingset_refault_file_x 9\n{steals}");
        put(root, &format!("{dir}/memory.stat"), &stat);
    }

    #[test]
    fn only_unused_memory_of_the_machine_counts() {
        let root = machine("0::/\n");
        let found = Headroom::below(root.path()).unwrap();
        assert_eq!(
            found,
            Headroom { bytes: 900 * MIB, refaults: 77, steals: Some(7) },
            "not what is available; 100 in reserve"
        );
        put(&root, "proc/vmstat", "workingset_refault_file 77\npgsteal_direct 4\n");
        assert_eq!(Headroom::below(root.path()).unwrap().steals, None, "not all counters");
        fs::remove_file(root.path().join("proc/meminfo")).unwrap();
        assert_eq!(Headroom::below(root.path()), None);
    }

    #[test]
    fn the_narrowest_of_a_group_and_its_ancestors_counts() {
        let root = machine("0::/a/b\n");
        let group = "sys/fs/cgroup/a/b";
        put_group(&root, group, ["max\n", "max\n"], 5 * MIB, 10);
        put_group(&root, "sys/fs/cgroup/a", ["335544320\n", "max\n"], 100 * MIB, 200);
        // The root of all has counters, and neither a limit nor a use.
        put(&root, "sys/fs/cgroup/memory.stat", "workingset_refault_file 5000\n");
        let here = || Headroom::below(root.path()).unwrap();
        let found = Headroom { bytes: 210 * MIB, refaults: 210, steals: Some(37) };
        assert_eq!(here(), found, "320 less 100 and a reserve of 10");
        put(&root, "sys/fs/cgroup/a/b/memory.high", "33554432\n");
        assert_eq!(here().bytes, 26 * MIB, "32 less 5 and 1");
        put(&root, "sys/fs/cgroup/a/memory.current", "335544320\n");
        assert_eq!(here().bytes, 0, "the ancestor is full");
        fs::remove_file(root.path().join(group).join("memory.current")).unwrap();
        put(&root, "sys/fs/cgroup/a/memory.current", "0\n");
        assert_eq!(here().bytes, 0, "the use of the group is unknown");
    }

    #[test]
    fn groups_of_the_first_version_count_too() {
        let root = machine("5:cpu:/x\n4:memory:/y\n");
        let group = "sys/fs/cgroup/memory/y";
        put(&root, &format!("{group}/memory.limit_in_bytes"), "335544320\n");
        put(&root, &format!("{group}/memory.usage_in_bytes"), "104857600\n");
        let stat = "cache 1\nworkingset_refault_file 1\ntotal_workingset_refault_file 3\n";
        put(&root, &format!("{group}/memory.stat"), stat);
        // The root of all, where others read pages again.
        put(&root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        put(&root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "3221225472\n");
        put(&root, "sys/fs/cgroup/memory/memory.stat", "total_workingset_refault_file 5000\n");
        let found = Headroom::below(root.path()).unwrap();
        assert_eq!(found, Headroom { bytes: 210 * MIB, refaults: 3, steals: None }, "they do not say");
        put(&root, &format!("{group}/memory.limit_in_bytes"), "9223372036854771712\n");
        let steals = Headroom::below(root.path()).unwrap().steals;
        assert_eq!(steals, Some(7), "without a limit it has nothing to say");
    }
}
