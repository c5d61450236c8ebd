//! Limits of the process: locked memory, huge pages, the cgroup's limit, processors.

use std::fs;

use io_uring::IoUring;
use rustix::process::{Resource, getrlimit};

use super::cgroup::MemoryLimit;
use super::probe_uring;
use forebay_report::check::Check;
use forebay_report::units::bytes;

const GROUP: &str = "memory";
/// Memory whose registration is tested. A smaller possible size is a degraded finding.
const WANTED_BYTES: usize = 64 << 20;

/// Tests and reads everything about memory and processors.
pub(crate) fn examine(limit: Option<&MemoryLimit>, cpus_allowed: u64, cpus_online: u64) -> Vec<Check> {
    vec![memlock(limit), hugepages(), cgroup(limit), processors(cpus_allowed, cpus_online)]
}

fn memlock(limit: Option<&MemoryLimit>) -> Check {
    let rlimit = match getrlimit(Resource::Memlock).current {
        None => "unlimited".to_owned(),
        Some(value) => bytes(value),
    };
    let Ok(ring) = IoUring::new(8) else {
        return Check::ok(
            GROUP,
            "memlock",
            format!("the limit is {rlimit}; without io_uring nothing needs to be locked"),
        );
    };
    // Registration touches every page, so it never uses more than a quarter of the memory that the
    // process may have.
    let most = limit.map_or(WANTED_BYTES, |limit| {
        usize::try_from(limit.bytes / 4).unwrap_or(usize::MAX).min(WANTED_BYTES)
    });
    let mut tried = most.max(4096);
    let mut last = None;
    while tried >= 4096 {
        match probe_uring::register(&ring, tried) {
            Ok(_) if tried >= most => {
                return Check::ok(
                    GROUP,
                    "memlock",
                    format!("{} were registered; the limit is {rlimit}", bytes(tried as u64)),
                );
            }
            Ok(_) => {
                return Check::degraded(
                    GROUP,
                    "memlock",
                    format!(
                        "{} could be registered, twice as much not; the limit is {rlimit}",
                        bytes(tried as u64)
                    ),
                    "raise it: ulimit -l, LimitMEMLOCK= in systemd, --ulimit memlock= in containers",
                );
            }
            Err(error) => last = Some(error),
        }
        tried /= 2;
    }
    let cause = last.map_or_else(String::new, |error| format!(": {error}"));
    Check::degraded(
        GROUP,
        "memlock",
        format!("no memory can be registered{cause}; the limit is {rlimit}"),
        "raise it: ulimit -l, LimitMEMLOCK= in systemd, --ulimit memlock= in containers",
    )
}

fn hugepages() -> Check {
    const FILE: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    let Ok(text) = fs::read_to_string(FILE) else {
        return Check::degraded(
            GROUP,
            "hugepages",
            "this kernel has no transparent huge pages: large scans run at half their rate and less",
            "use a kernel built with CONFIG_TRANSPARENT_HUGEPAGE",
        );
    };
    match selected(&text) {
        Some(mode @ ("always" | "madvise")) => Check::ok(
            GROUP,
            "hugepages",
            format!("transparent huge pages are set to {mode}: buffers are contiguous"),
        ),
        mode => Check::degraded(
            GROUP,
            "hugepages",
            format!(
                "transparent huge pages are set to {}: large scans run at half their rate and less",
                mode.unwrap_or("something unknown")
            ),
            format!("echo madvise > {FILE}"),
        ),
    }
}

/// Returns the word in brackets of a sysfs choice such as `always [madvise] never`.
fn selected(text: &str) -> Option<&str> {
    let start = text.find('[')? + 1;
    let len = text.get(start..)?.find(']')?;
    text.get(start..start + len)
}

fn cgroup(limit: Option<&MemoryLimit>) -> Check {
    match limit {
        None => Check::ok(GROUP, "memory_limit", "no cgroup limits the memory of this process"),
        Some(limit) if limit.bytes < 64 << 20 => Check::degraded(
            GROUP,
            "memory_limit",
            format!(
                "the cgroup {} allows {}, page cache included; the engine's memory stays below a quarter of it",
                limit.cgroup,
                bytes(limit.bytes)
            ),
            "allow 64 MiB or more",
        ),
        Some(limit) => Check::ok(
            GROUP,
            "memory_limit",
            format!(
                "the cgroup {} ({}) allows {}, page cache included; the engine's memory stays below a quarter of it",
                limit.cgroup,
                limit.version,
                bytes(limit.bytes)
            ),
        ),
    }
}

fn processors(allowed: u64, online: u64) -> Check {
    let shards = if allowed <= 4 { 1 } else { allowed.div_ceil(4) };
    let why = format!(
        "{allowed} of {online} may be used: {shards} shard{} by default",
        if shards == 1 { "" } else { "s" }
    );
    if allowed == 1 {
        Check::degraded(
            GROUP,
            "processors",
            format!("{why}; the shard and the program take turns, and nothing spins"),
            "allow two processors or more",
        )
    } else {
        Check::ok(GROUP, "processors", why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::check::Verdict;

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

    #[test]
    fn memory_is_registered_or_the_refusal_is_reported() {
        let check = memlock(None);
        assert!(check.why.contains("limit"), "{}", check.why);
    }
}
