//! The io_uring features offered here, found by real calls. No kernel version is checked.

mod registration;
mod waiting;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use io_uring::{Builder, IoUring, Probe, opcode};

use forebay_report::check::Check;
pub(super) use registration::register;

const GROUP: &str = "io_uring";
/// Entries of the rings made for trials. Such a ring takes one page, and no limit refuses it for its size.
const ENTRIES: u32 = 8;

// Kernel constants that the crate does not export.
const SETUP_IOPOLL: u32 = 1;
const SETUP_HYBRID_IOPOLL: u32 = 1 << 17;

/// Tries every feature. When no ring can be set up at all, the result is one finding with the reason.
pub(crate) fn examine() -> Vec<Check> {
    let plain = match IoUring::new(ENTRIES) {
        Ok(ring) => ring,
        Err(error) => return vec![refused(&error)],
    };
    let mut checks = vec![Check::ok(GROUP, "setup", format!("a ring of {ENTRIES} entries was set up"))];
    checks.push(setup_flag("single_issuer", "one thread submits: no locking in the kernel", |b| {
        b.setup_single_issuer();
    }));
    checks.push(setup_flag("defer_taskrun", "completions are processed when the shard requests them", |b| {
        b.setup_single_issuer().setup_defer_taskrun();
    }));
    checks.push(setup_flag("coop_taskrun", "completions do not interrupt the shard's thread", |b| {
        b.setup_coop_taskrun();
    }));
    checks.push(hybrid_iopoll());
    checks.push(registration::registered_ring_fd());
    checks.push(registration::file_table());
    checks.push(registration::buffers(&plain));
    checks.push(registration::clone_buffers());
    checks.push(waiting::min_wait());
    checks.push(waiting::no_iowait());
    checks.push(waiting::msg_ring());
    checks.push(waiting::msg_ring_without_ring());
    checks.push(opcodes(&plain));
    checks
}

fn refused(error: &io::Error) -> Check {
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
        .ok()
        .and_then(|text| text.trim().parse::<u32>().ok());
    let seccomp = std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("Seccomp:"))?;
            line.trim().parse::<u32>().ok()
        })
        .unwrap_or(0);
    let (cause, remedy) = explain(error.raw_os_error(), disabled, seccomp);
    Check::unavailable(
        GROUP,
        "setup",
        format!(
            "io_uring_setup fails: {error}; {cause}; Forebay uses its threads driver instead, and native AIO in Tokio tasks where that is allowed"
        ),
        remedy,
    )
}

/// Returns why the kernel refuses a ring, from its error code, the sysctl and the seccomp mode
/// of this process.
fn explain(errno: Option<i32>, disabled: Option<u32>, seccomp: u32) -> (&'static str, &'static str) {
    match (errno, disabled, seccomp) {
        (Some(libc::EPERM), Some(2), _) => (
            "the sysctl kernel.io_uring_disabled is 2: no process may use io_uring",
            "set it to 0: sysctl -w kernel.io_uring_disabled=0",
        ),
        (Some(libc::EPERM), Some(1), _) => (
            "the sysctl kernel.io_uring_disabled is 1: only members of kernel.io_uring_group and CAP_SYS_ADMIN may",
            "add this user's group to kernel.io_uring_group, or set kernel.io_uring_disabled=0",
        ),
        (Some(libc::EPERM | libc::EACCES | libc::ENOSYS), _, 2) => (
            "a seccomp filter is active on this process, as container runtimes install it",
            "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile",
        ),
        (Some(libc::EPERM | libc::EACCES), _, _) => (
            "a security module refuses it",
            "allow io_uring for this process in the security module's policy (SELinux: class io_uring)",
        ),
        (Some(libc::ENOSYS), _, _) => {
            ("this kernel has no io_uring", "use a kernel that is built with CONFIG_IO_URING")
        }
        (Some(libc::ENOMEM), _, _) => (
            "there is not enough memory for a ring",
            "raise the limit on locked memory (ulimit -l) or the cgroup's memory limit",
        ),
        (Some(libc::EMFILE | libc::ENFILE), _, _) => {
            ("too many files are open", "raise the limit on open files (ulimit -n)")
        }
        _ => ("the reason is not known", "run under strace to see the call"),
    }
}

fn newer_kernel(feature_since: &str) -> String {
    format!("run a kernel that has it (Linux {feature_since} or later)")
}

fn setup_flag(name: &str, meaning: &str, set: impl FnOnce(&mut Builder)) -> Check {
    let mut builder = IoUring::builder();
    set(&mut builder);
    match builder.build(ENTRIES) {
        Ok(_) => Check::ok(GROUP, name, format!("accepted: {meaning}")),
        Err(error) => Check::degraded(
            GROUP,
            name,
            format!("a ring with this flag is refused: {error}"),
            newer_kernel(if name == "coop_taskrun" { "5.19" } else { "6.1" }),
        ),
    }
}

fn hybrid_iopoll() -> Check {
    let mut parameters = [0_u32; 30];
    // The third word of `struct io_uring_params` holds the flags.
    parameters[2] = SETUP_IOPOLL | SETUP_HYBRID_IOPOLL;
    // SAFETY: `parameters` is as large as `struct io_uring_params` (120 bytes) and writable.
    let returned =
        unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES as libc::c_long, parameters.as_mut_ptr()) };
    match i32::try_from(returned) {
        Ok(fd) if fd >= 0 => {
            // SAFETY: the call has just returned this descriptor, and nothing else owns it.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            Check::ok(
                GROUP,
                "hybrid_iopoll",
                "accepted: polling may sleep for half of the expected time first",
            )
        }
        _ => Check::degraded(
            GROUP,
            "hybrid_iopoll",
            format!("refused: {}; polled rings spin all the time", io::Error::last_os_error()),
            newer_kernel("6.13"),
        ),
    }
}

fn opcodes(ring: &IoUring) -> Check {
    let wanted = [
        ("READ", opcode::Read::CODE),
        ("WRITE", opcode::Write::CODE),
        ("READ_FIXED", opcode::ReadFixed::CODE),
        ("WRITE_FIXED", opcode::WriteFixed::CODE),
        ("FSYNC", opcode::Fsync::CODE),
        ("FALLOCATE", opcode::Fallocate::CODE),
        ("OPENAT", opcode::OpenAt::CODE),
        ("CLOSE", opcode::Close::CODE),
        ("STATX", opcode::Statx::CODE),
        ("ASYNC_CANCEL", opcode::AsyncCancel::CODE),
        ("MSG_RING", opcode::MsgRingData::CODE),
        ("FTRUNCATE", opcode::Ftruncate::CODE),
        ("URING_CMD", opcode::UringCmd80::CODE),
        ("FUTEX_WAIT", opcode::FutexWait::CODE),
    ];
    let mut probe = Probe::new();
    if let Err(error) = ring.submitter().register_probe(&mut probe) {
        return Check::degraded(
            GROUP,
            "opcodes",
            format!("the kernel does not list its operations: {error}"),
            newer_kernel("5.6"),
        );
    }
    let missing: Vec<&str> =
        wanted.iter().filter(|(_, code)| !probe.is_supported(*code)).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        Check::ok(GROUP, "opcodes", format!("all {} operations of interest are there", wanted.len()))
    } else {
        Check::degraded(
            GROUP,
            "opcodes",
            format!("missing: {}; these run on a helper thread", missing.join(", ")),
            "run a newer kernel",
        )
    }
}

fn push(queue: &mut io_uring::SubmissionQueue<'_>, entry: &io_uring::squeue::Entry) -> io::Result<()> {
    // SAFETY: the entries of this module name no memory, so nothing must outlive the call.
    unsafe { queue.push(entry) }.map_err(|_| io::Error::other("the submission queue is full"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_distinguished() {
        assert!(explain(Some(libc::EPERM), Some(2), 0).0.contains("is 2"));
        assert!(explain(Some(libc::EPERM), Some(1), 0).1.contains("io_uring_group"));
        assert!(explain(Some(libc::EPERM), Some(0), 2).0.contains("seccomp"));
        assert!(explain(Some(libc::EPERM), Some(0), 0).0.contains("security module"));
        assert!(explain(Some(libc::ENOSYS), None, 0).0.contains("no io_uring"));
    }

    #[test]
    fn every_finding_has_its_own_name() {
        let checks = examine();
        let mut names: Vec<&str> = checks.iter().map(|check| check.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), checks.len());
        assert!(checks.iter().all(|check| check.group == GROUP));
    }
}
