//! The machine: kernel, processors, memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::cgroup::MemoryLimit;
use crate::system_counters::value;
use forebay_report::environment::Environment;

/// Returns the environment without a path and without checks.
pub(crate) fn environment(limit: Option<&MemoryLimit>) -> Environment {
    let name = rustix::system::uname();
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (memory, cpus) = (read("/proc/meminfo"), read("/proc/cpuinfo"));
    Environment {
        time_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        kernel: format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy()),
        architecture: name.machine().to_string_lossy().into_owned(),
        distribution: distribution(&read("/etc/os-release")),
        cpu_model: field(&cpus, "model name").map(str::to_owned),
        cpus_allowed: std::thread::available_parallelism().map_or(1, |count| count.get() as u64),
        cpus_online: count(read("/sys/devices/system/cpu/online").trim()).unwrap_or(1),
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
