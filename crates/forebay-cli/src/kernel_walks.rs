//! Finds out where walks can run here: inside the kernel, or in the reactor.

use forebay_report::check::Check;

const GROUP: &str = "engine";
const NAME: &str = "kernel_walks";

/// Tries each engine inside the kernel and returns the finding.
#[cfg(feature = "wait")]
pub(super) fn examine() -> Check {
    use forebay_kernel::{EngineKind, probe};

    match (probe(EngineKind::Module), probe(EngineKind::BpfLoop)) {
        (Ok(()), others) => {
            let others = match others {
                Ok(()) => "and in io_uring's own loop on any".to_owned(),
                Err(why) => format!("but not in io_uring's own loop: {why}"),
            };
            let says = "dependent reads can run in the module forebay_walk on files of ext4 and XFS";
            Check::ok(GROUP, NAME, format!("{says}, {others}"))
        }
        (Err(why), Ok(())) => Check::ok(
            GROUP,
            NAME,
            format!(
                "dependent reads can run in io_uring's own loop (forebay-kernel), but not in the module: {why}"
            ),
        ),
        (Err(module), Err(own_loop)) => Check::degraded(
            GROUP,
            NAME,
            format!("dependent reads run in the reactor, not inside the kernel: {own_loop}; {module}"),
            "docs/kernel-walks.md lists the requirements: kernel 7.1 or later with CAP_BPF and CAP_PERFMON, or the \
             module on 6.12 or later with CAP_SYS_ADMIN",
        ),
    }
}

/// Returns the finding that this build cannot try.
#[cfg(not(feature = "wait"))]
pub(super) fn examine() -> Check {
    Check::degraded(
        GROUP,
        NAME,
        "dependent reads run in the reactor; this build of forebay does not try the kernel",
        "install it with: cargo install forebay-cli --features wait (needs a C compiler, make, pkg-config, and the \
         headers of libelf and zlib)",
    )
}
