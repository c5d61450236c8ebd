//! Finds out where walks can run here: inside the kernel, or in the reactor.

use forebay_report::check::Check;
use forebay_report::environment::Environment;

const GROUP: &str = "engine";
const NAME: &str = "kernel_walks";

/// Tries each engine inside the kernel and returns the finding for files at the path of `environment`, whose rings were tried.
#[cfg(feature = "wait")]
pub(super) fn examine(environment: &Environment) -> Check {
    use forebay_kernel::{EngineKind, probe};
    use forebay_report::check::Verdict;

    let is_refused = |check: &&Check| check.group == "io_uring" && check.name == "setup";
    let ring = environment.checks.iter().find(is_refused).map(|check| check.verdict);
    if ring == Some(Verdict::Unavailable) {
        let why = "dependent reads run in the reactor, not inside the kernel: each engine there needs a ring";
        return Check::degraded(GROUP, NAME, why, "make io_uring available (see the io_uring findings)");
    }
    let file_system = environment.path.as_ref().and_then(|path| path.file_system.as_deref());
    let module = match file_system.filter(|name| !OF_THE_MODULE.contains(name)) {
        Some(name) => Err(format!("it does not support files on {name}")),
        None => probe(EngineKind::Module),
    };
    // The loop makes the same call when it opens.
    let may_wait = |check: &Check| check.name == "rwf_nowait" && check.verdict != Verdict::Ok;
    let own_loop = if environment.checks.iter().any(may_wait) {
        Err("reads here cannot be told not to wait (RWF_NOWAIT)".to_owned())
    } else {
        probe(EngineKind::BpfLoop)
    };
    let places = match (module, own_loop) {
        (Ok(()), Ok(())) => "the module forebay_walk, and in io_uring's own loop (forebay-kernel)".to_owned(),
        (Ok(()), Err(why)) => format!("the module forebay_walk, but not in io_uring's own loop: {why}"),
        (Err(why), Ok(())) => format!("io_uring's own loop (forebay-kernel), but not in the module: {why}"),
        (Err(module), Err(own_loop)) => {
            return Check::degraded(
                GROUP,
                NAME,
                format!(
                    "dependent reads run in the reactor, not inside the kernel; io_uring's own loop: {own_loop}; the module: \
                     {module}"
                ),
                "docs/kernel-walks.md lists the requirements: files on ext4 or XFS, and kernel 7.1 or later with CAP_BPF \
                 and CAP_PERFMON, or the module on 6.12 or later with CAP_SYS_ADMIN",
            );
        }
    };
    Check::ok(GROUP, NAME, format!("dependent reads can run in {places}"))
}

/// File systems whose files the module supports.
#[cfg(feature = "wait")]
const OF_THE_MODULE: [&str; 4] = ["ext2", "ext3", "ext4", "xfs"];

/// Returns the finding that this build cannot try.
#[cfg(not(feature = "wait"))]
pub(super) fn examine(_: &Environment) -> Check {
    Check::degraded(
        GROUP,
        NAME,
        "dependent reads run in the reactor; this build of forebay does not try the kernel",
        "install it from a checkout: cargo install --path crates/forebay-cli --features wait (needs a C compiler, make, \
         pkg-config, and the headers of libelf and zlib)",
    )
}

#[cfg(all(test, feature = "wait"))]
mod tests {
    use forebay_report::check::Verdict;
    use forebay_report::environment::PathInfo;

    use super::*;

    /// Regression: `ok`, in io_uring's own loop on any file system, where no ring could be made, and on a container's root.
    #[test]
    fn engines_are_possible_only_with_a_ring_and_on_their_file_systems() {
        let refused = Check::unavailable("io_uring", "setup", "refused", "");
        let environment = Environment { checks: vec![refused], ..Environment::default() };
        let found = examine(&environment);
        assert!(found.why.ends_with("needs a ring") && found.remedy.is_some(), "{}", found.why);
        // What was tried at the path decides, not a list of names.
        for name in ["tmpfs", "overlay", "fuse.sshfs", "nfs4", "squashfs"] {
            let refused = Check::degraded("path", "rwf_nowait", "refused: Operation not supported", "");
            let path = PathInfo { file_system: Some(name.to_owned()), ..PathInfo::default() };
            let checks = vec![refused];
            let found = examine(&Environment { path: Some(path), checks, ..Environment::default() });
            assert_eq!(found.verdict, Verdict::Degraded, "{name}: {}", found.why);
            let words = ["RWF_NOWAIT", &format!("does not support files on {name}")];
            assert!(words.iter().all(|word| found.why.contains(*word)), "{}", found.why);
        }
    }
}
