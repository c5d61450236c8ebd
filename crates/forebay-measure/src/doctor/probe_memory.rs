//! Limits of the process: locked memory, huge pages, the cgroup's limit, processors.

use std::fs;

use io_uring::IoUring;
use rustix::process::{Resource, getrlimit};

use super::{degraded, ok, probe_uring};
use crate::cgroup::MemoryLimit;
use forebay_report::check::Check;
use forebay_report::environment::Environment;
use forebay_report::units::bytes;

/// Memory whose registration is tested. A smaller possible size is a degraded finding.
const WANTED_BYTES: usize = 64 << 20;

/// Tests and reads everything about memory and processors.
pub(super) fn examine(limit: Option<&MemoryLimit>, machine: &Environment) -> [(&'static str, Check); 4] {
    [
        ("memlock", memlock(limit)),
        ("hugepages", hugepages()),
        ("memory_limit", cgroup(limit)),
        ("processors", processors(machine.cpus_allowed, machine.cpus_online)),
    ]
}

fn memlock(limit: Option<&MemoryLimit>) -> Check {
    const REMEDY: &str = "raise it: ulimit -l, LimitMEMLOCK= in systemd, --ulimit memlock= in containers";
    let rlimit = getrlimit(Resource::Memlock).current.map_or_else(|| "unlimited".to_owned(), bytes);
    let Ok(ring) = IoUring::new(8) else {
        return ok(format!("the limit is {rlimit}; without io_uring nothing needs to be locked"));
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
                return degraded(why, REMEDY);
            }
            Err(error) => cause = format!(": {error}"),
        }
    }
    degraded(format!("no memory can be registered{cause}; the limit is {rlimit}"), REMEDY)
}

fn hugepages() -> Check {
    const FILE: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    let Ok(text) = fs::read_to_string(FILE) else {
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
            format!("echo madvise > {FILE}"),
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
    let why = format!("{allowed} of {online} may be used: {shards} shard{plural} by default");
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
