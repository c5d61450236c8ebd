//! The machine: kernel, processors, memory; and the limits of this process: locked memory, huge pages, the cgroup's limit.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use io_uring::IoUring;
use rustix::process::{Resource, getrlimit};

use super::{MORE_LOCKED_MEMORY, MOUNT_SYSFS, degraded, is_sysfs, ok, probe_uring, remedy_of_limit};
use crate::cgroup::MemoryLimit;
use crate::system_counters::value;
use forebay_report::check::Check;
use forebay_report::environment::Environment;
use forebay_report::units::bytes;

/// Memory whose registration is tested. A smaller possible size is a degraded finding.
const WANTED_BYTES: usize = 64 << 20;

/// Returns the environment without a path and without checks.
pub(super) fn environment(limit: Option<&MemoryLimit>) -> Environment {
    let name = rustix::system::uname();
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (memory, cpus) = (read("/proc/meminfo"), read("/proc/cpuinfo"));
    Environment {
        time_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        kernel: format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy()),
        host: Some(name.nodename().to_string_lossy().into_owned()).filter(|name| !name.is_empty()),
        architecture: name.machine().to_string_lossy().into_owned(),
        distribution: distribution(&read("/etc/os-release")),
        cpu_model: field(&cpus, "model name").map(str::to_owned),
        cpus_allowed: std::thread::available_parallelism().map_or(1, |count| count.get() as u64),
        cpus_online: count(read("/sys/devices/system/cpu/online").trim()).unwrap_or(0),
        virtual_machine: field(&cpus, "flags")
            .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
        memory_total_bytes: value(&memory, "MemTotal:").unwrap_or(0),
        memory_available_bytes: value(&memory, "MemAvailable:").unwrap_or(0),
        memory_limit_bytes: limit.map(|limit| limit.bytes),
        memory_limit_by: limit.map(|limit| format!("cgroup {} {}", limit.version, limit.cgroup)),
        mitigations: mitigations(Path::new("/sys/devices/system/cpu/vulnerabilities")),
        optimized_build: !cfg!(debug_assertions),
        ..Environment::default()
    }
}

/// Returns the contents of a folder that has one file for each processor flaw. Flaws that the processor
/// does not have are left out.
fn mitigations(folder: &Path) -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeMap::new() };
    let mitigations = entries.flatten().filter_map(|entry| {
        let text = fs::read_to_string(entry.path()).ok()?.trim().to_owned();
        (text != "Not affected").then(|| (entry.file_name().to_string_lossy().into_owned(), text))
    });
    mitigations.collect()
}

fn distribution(text: &str) -> Option<String> {
    text.lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .map(|name| name.trim_matches('"').to_owned())
}

/// Returns the value of the first `name : value` line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// Returns how many numbers a list such as `0-3,8` contains.
fn count(list: &str) -> Option<u64> {
    list.split(',')
        .map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: u64 = first.parse().ok()?;
            let last: u64 = last.parse().ok()?;
            last.checked_sub(first)?.checked_add(1)
        })
        .sum()
}

/// Tests and reads everything about memory and processors.
pub(super) fn examine(limit: Option<&MemoryLimit>, machine: &Environment) -> [(&'static str, Check); 4] {
    [
        ("memlock", memlock(limit)),
        ("hugepages", hugepages(Path::new("/sys"))),
        ("memory_limit", cgroup(limit)),
        ("processors", processors(machine.cpus_allowed, machine.cpus_online)),
    ]
}

fn memlock(limit: Option<&MemoryLimit>) -> Check {
    let rlimit = getrlimit(Resource::Memlock).current.map_or_else(|| "unlimited".to_owned(), bytes);
    let ring = match IoUring::new(8) {
        Ok(ring) => ring,
        Err(error) => {
            return match remedy_of_limit(&error) {
                Some(remedy) => {
                    degraded(format!("no ring can be made: {error}; the limit is {rlimit}"), remedy)
                }
                None => ok(format!("the limit is {rlimit}; without io_uring nothing needs to be locked")),
            };
        }
    };
    // Registration touches every page, so it never uses more than a quarter of the memory that the
    // process may have.
    let quarter = limit.map_or(usize::MAX, |limit| usize::try_from(limit.bytes / 4).unwrap_or(usize::MAX));
    let most = quarter.clamp(4096, WANTED_BYTES);
    let mut cause = String::new();
    for tried in (0..).map(|halvings| most >> halvings).take_while(|tried| *tried >= 4096) {
        let size = bytes(tried as u64);
        match probe_uring::register(&ring, tried) {
            Ok(()) if tried == most => return ok(format!("{size} were registered; the limit is {rlimit}")),
            Ok(()) => {
                let why = format!("{size} could be registered, twice as much not; the limit is {rlimit}");
                return degraded(why, MORE_LOCKED_MEMORY);
            }
            Err(error) => cause = format!(": {error}"),
        }
    }
    degraded(format!("no memory can be registered{cause}; the limit is {rlimit}"), MORE_LOCKED_MEMORY)
}

fn hugepages(sysfs: &Path) -> Check {
    let file = sysfs.join("kernel/mm/transparent_hugepage/enabled");
    let Ok(text) = fs::read_to_string(&file) else {
        if !is_sysfs(sysfs) {
            return degraded("transparent huge pages are not known: /sys is not mounted", MOUNT_SYSFS);
        }
        return degraded(
            "this kernel has no transparent huge pages: large scans run at half their rate and less",
            "use a kernel built with CONFIG_TRANSPARENT_HUGEPAGE",
        );
    };
    match selected(&text) {
        Some(mode @ ("always" | "madvise")) => {
            ok(format!("transparent huge pages are set to {mode}: buffers are contiguous"))
        }
        mode => degraded(
            format!(
                "transparent huge pages are set to {}: large scans run at half their rate and less",
                mode.unwrap_or("something unknown")
            ),
            format!("echo madvise > {}", file.display()),
        ),
    }
}

/// Returns the word in brackets of a sysfs choice such as `always [madvise] never`.
fn selected(text: &str) -> Option<&str> {
    Some(text.split_once('[')?.1.split_once(']')?.0)
}

fn cgroup(limit: Option<&MemoryLimit>) -> Check {
    let Some(MemoryLimit { bytes: limit, cgroup, version }) = limit else {
        return ok("no cgroup limits the memory of this process");
    };
    let rest = format!(
        "allows {}, page cache included; the engine's memory stays below a quarter of it",
        bytes(*limit)
    );
    if *limit < 64 << 20 {
        return degraded(format!("the cgroup {cgroup} {rest}"), "allow 64 MiB or more");
    }
    ok(format!("the cgroup {cgroup} (cgroup {version}) {rest}"))
}

fn processors(allowed: u64, online: u64) -> Check {
    let shards = if allowed <= 4 { 1 } else { allowed.div_ceil(4) };
    let plural = if shards == 1 { "" } else { "s" };
    let of = if online == 0 { String::new() } else { format!(" of {online}") };
    let why = format!("{allowed}{of} may be used: {shards} shard{plural} by default");
    if allowed > 1 {
        return ok(why);
    }
    let why = format!("{why}; the shard and the program take turns, and nothing spins");
    degraded(why, "allow two processors or more")
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::check::Verdict;

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(count("0-3,8"), Some(5));
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("x"), None);
    }

    #[test]
    fn fields_are_found() {
        assert_eq!(field("model name\t: A CPU\n", "model name"), Some("A CPU"));
        assert_eq!(distribution("ID=x\nPRETTY_NAME=\"X 1\"\n"), Some("X 1".to_owned()));
    }

    #[test]
    fn this_machine_has_memory_and_a_processor() {
        let environment = environment(None);
        assert!(environment.memory_total_bytes > 0);
        assert!(environment.cpus_allowed >= 1);
        assert!(environment.kernel.starts_with("Linux"));
    }

    #[test]
    fn the_selected_word_is_found() {
        assert_eq!(selected("always [madvise] never\n"), Some("madvise"));
        assert_eq!(selected("none"), None);
        assert_eq!(selected("[broken"), None);
    }

    #[test]
    fn one_processor_is_a_degradation() {
        assert_eq!(processors(1, 8).verdict, Verdict::Degraded);
        assert_eq!(processors(2, 8).verdict, Verdict::Ok);
        assert!(processors(32, 32).why.contains("8 shards"));
    }

    /// Regression: without /sys, 8 of 1 processors could be used, and the kernel had no huge pages: it was to be built anew.
    #[test]
    fn without_sysfs_nothing_is_said_of_the_kernel() {
        assert!(processors(8, 0).why.starts_with("8 may be used"), "{}", processors(8, 0).why);
        let cleanup = crate::cleanup::Cleanup::default();
        let sysfs = cleanup.temp_directory(&std::env::temp_dir(), "sysfs").expect("writable");
        let unknown = hugepages(sysfs.path());
        assert!(unknown.why.contains("not known"), "{}", unknown.why);
        assert!(unknown.remedy.is_some_and(|remedy| remedy.contains("mount -t sysfs")));
        fs::create_dir_all(sysfs.path().join("kernel/mm")).expect("ours");
        assert!(hugepages(sysfs.path()).why.contains("has no transparent huge pages"));
    }

    #[test]
    fn memory_is_registered_or_the_refusal_is_reported() {
        let check = memlock(None);
        assert!(check.why.contains("limit"), "{}", check.why);
    }
}
