//! The io_uring features offered here, found by real calls. No kernel version is checked.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{Builder, EnterFlags, IoUring, Probe as Opcodes, opcode, squeue};

use super::{MORE_LOCKED_MEMORY, Probe, ProbeResult, Refusal, degraded, done};
use crate::aligned::AlignedBuffer;
use crate::system_counters::value;
use forebay_report::check::Check;

const GROUP: &str = "io_uring";
/// Entries of the rings made for trials. Such a ring needs one page, and no limit refuses it for its size.
const ENTRIES: u32 = 8;
/// The size of the file table that the engine requests.
const FILE_TABLE: u32 = 1024;
/// The memory that the engine registers as its arena before the arena grows.
const ARENA_BYTES: usize = 8 << 20;

// Kernel constants that the crate does not export.
const SETUP_IOPOLL: u32 = 1;
const SETUP_HYBRID_IOPOLL: u32 = 1 << 17;
const REGISTER_SEND_MSG_RING: libc::c_long = 31;

const FLAG_REFUSED: &str = "a ring with this flag is refused: {}";
const SINCE_5_18: &str = "run a kernel that has it (Linux 5.18 or later)";
const SINCE_5_19: &str = "run a kernel that has it (Linux 5.19 or later)";
const SINCE_6_1: &str = "run a kernel that has it (Linux 6.1 or later)";
const SINCE_6_12: &str = "run a kernel that has it (Linux 6.12 or later)";
const SINCE_6_13: &str = "run a kernel that has it (Linux 6.13 or later)";
const SINCE_6_15: &str = "run a kernel that has it (Linux 6.15 or later)";

/// The features, each tried in addition to a plain ring.
const PROBES: [Probe<IoUring>; 13] = [
    Probe {
        name: "single_issuer",
        call: |_| with_flags(Builder::setup_single_issuer),
        works: "accepted: one thread submits: no locking in the kernel",
        refused: FLAG_REFUSED,
        remedy: SINCE_6_1,
    },
    Probe {
        name: "defer_taskrun",
        call: |_| with_flags(|builder| builder.setup_single_issuer().setup_defer_taskrun()),
        works: "accepted: completions are processed when the shard requests them",
        refused: FLAG_REFUSED,
        remedy: SINCE_6_1,
    },
    Probe {
        name: "coop_taskrun",
        call: |_| with_flags(Builder::setup_coop_taskrun),
        works: "accepted: completions do not interrupt the shard's thread",
        refused: FLAG_REFUSED,
        remedy: SINCE_5_19,
    },
    Probe {
        name: "hybrid_iopoll",
        call: |_| hybrid_iopoll(),
        works: "accepted: polling may sleep for half of the expected time first",
        refused: "refused: {}; polled rings spin all the time",
        remedy: SINCE_6_13,
    },
    Probe {
        name: "registered_ring_fd",
        call: |_| {
            let mut ring = ring_with(&nop())?;
            let mut submitter = ring.split().0;
            submitter.register_ring_fd()?;
            done(submitter.submit_and_wait(1))
        },
        works: "a NOP went through a registered ring descriptor",
        refused: "refused: {}; each call looks the descriptor up (about 50 ns)",
        remedy: SINCE_5_18,
    },
    Probe {
        name: "file_table",
        call: |_| file_table(),
        works: "a sparse table of 1024 files works; the largest accepted has {}",
        refused: "a sparse table of 1024 files is refused: {}; files are looked up for each operation",
        remedy: "raise the limit on open files (ulimit -n) or run Linux 5.19 or later",
    },
    Probe {
        name: "registered_buffers",
        call: |ring| done(register(ring, ARENA_BYTES)),
        works: "8 MiB were registered as one buffer",
        refused: "registering 8 MiB fails: {}; the kernel maps the memory for each operation (20 to 25 % fewer I/Os a \
                  second on a CPU-bound device)",
        remedy: MORE_LOCKED_MEMORY,
    },
    Probe {
        name: "clone_buffers",
        call: |_| clone_buffers(),
        works: "a second ring took over the registered buffers of the first",
        refused: "refused: {}; every ring registers the arena itself, and the memory counts once for each",
        remedy: SINCE_6_12,
    },
    Probe {
        name: "min_wait",
        call: |_| min_wait(),
        works: "a wait for two completions ended early with one: batching costs no latency at the end",
        refused: "refused: {}; the shard waits for one completion at a time (about 10 % at depth 32)",
        remedy: SINCE_6_12,
    },
    Probe {
        name: "no_iowait",
        call: |_| {
            let ring = ring_with(&nop())?;
            let flags = EnterFlags::GETEVENTS | EnterFlags::NO_IOWAIT;
            // SAFETY: one entry is queued; no argument is passed.
            done(unsafe { ring.submitter().enter::<libc::sigset_t>(1, 1, flags.bits(), None) })
        },
        works: "accepted: waiting for I/O is not shown as iowait of the CPU",
        refused: "refused: {}; waiting shards count as iowait and raise the CPU's frequency",
        remedy: SINCE_6_15,
    },
    Probe {
        name: "msg_ring",
        call: |_| {
            message(|entry| {
                ring_with(entry)?.submit_and_wait(1)?;
                Ok(())
            })
        },
        works: "one ring sent a message to another",
        refused: "refused: {}; shards wake each other through an eventfd",
        remedy: SINCE_5_18,
    },
    Probe {
        name: "msg_ring_from_any_thread",
        call: |_| message(send_without_ring),
        works: "a thread without a ring sent a message to one: the cheapest way to wake a shard",
        refused: "refused: {}; other threads wake a shard through an eventfd (about 12 us more)",
        remedy: SINCE_6_13,
    },
    Probe {
        name: "opcodes",
        call: opcodes,
        works: "all {} operations of interest are there",
        refused: "the kernel does not list its operations: {}",
        remedy: "run a kernel that has it (Linux 5.6 or later)",
    },
];

/// Tries every feature. When no ring can be set up at all, the result is one finding with the reason.
pub(crate) fn examine() -> Vec<Check> {
    let plain = match IoUring::new(ENTRIES) {
        Ok(ring) => ring,
        Err(error) => return vec![refused(&error)],
    };
    let setup = Check::ok(GROUP, "setup", format!("a ring of {ENTRIES} entries was set up"));
    [setup].into_iter().chain(PROBES.iter().map(|probe| probe.check(GROUP, &plain))).collect()
}

fn refused(error: &io::Error) -> Check {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let disabled = read("/proc/sys/kernel/io_uring_disabled").trim().parse().ok();
    let seccomp = value(&read("/proc/self/status"), "Seccomp:").unwrap_or(0);
    let (cause, remedy) = explain(error.raw_os_error(), disabled, seccomp);
    let why = format!(
        "io_uring_setup fails: {error}; {cause}; Forebay uses its threads driver instead, and native AIO in Tokio tasks \
         where that is allowed"
    );
    Check::unavailable(GROUP, "setup", why, remedy)
}

/// Returns why the kernel refuses a ring, from its error code, the sysctl and the seccomp mode
/// of this process, and the remedy.
fn explain(errno: Option<i32>, disabled: Option<u32>, seccomp: u64) -> (&'static str, &'static str) {
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
        (Some(libc::EMFILE), _, _) => {
            ("this process has too many files open", "raise the limit on open files (ulimit -n)")
        }
        (Some(libc::ENFILE), _, _) => (
            "the system has too many files open",
            "raise the system's limit on open files (sysctl fs.file-max)",
        ),
        _ => ("the reason is not known", "run under strace to see the call"),
    }
}

fn with_flags(set: impl FnOnce(&mut Builder) -> &mut Builder) -> ProbeResult {
    done(set(&mut IoUring::builder()).build(ENTRIES))
}

fn hybrid_iopoll() -> ProbeResult {
    let mut parameters = [0_u32; 30];
    // The third word of `struct io_uring_params` holds the flags.
    parameters[2] = SETUP_IOPOLL | SETUP_HYBRID_IOPOLL;
    // SAFETY: `parameters` is as large as `struct io_uring_params` (120 bytes) and writable.
    let returned =
        unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES as libc::c_long, parameters.as_mut_ptr()) };
    let fd = i32::try_from(returned).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the call has just returned this descriptor, and nothing else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(String::new())
}

fn file_table() -> ProbeResult {
    let accepts =
        |entries: u32| IoUring::new(ENTRIES).and_then(|ring| ring.submitter().register_files_sparse(entries));
    accepts(FILE_TABLE)?;
    let mut largest = FILE_TABLE;
    while largest < 1 << 20 && accepts(largest * 2).is_ok() {
        largest *= 2;
    }
    Ok(largest.to_string())
}

/// Registers `bytes` of fresh memory. It stays pinned until the ring is closed.
///
/// # Errors
/// Fails when the limit on locked memory is lower.
pub(super) fn register(ring: &IoUring, bytes: usize) -> io::Result<()> {
    let mut memory = AlignedBuffer::new(bytes);
    let buffer = libc::iovec { iov_base: memory.bytes_mut().as_mut_ptr().cast(), iov_len: bytes };
    // SAFETY: the kernel pins the pages themselves; no operation ever names the buffer, so that freeing it while it is
    // registered harms nothing.
    unsafe { ring.submitter().register_buffers(&[buffer]) }
}

fn clone_buffers() -> ProbeResult {
    let keeper = IoUring::new(ENTRIES)?;
    register(&keeper, 1 << 20)?;
    let other = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(ENTRIES);
    let other = other.or_else(|_| IoUring::new(ENTRIES))?;
    done(other.submitter().register_buffers_clone(keeper.as_raw_fd()))
}

/// Waits for two completions, of which only one arrives: without min_wait the call lasts until the timeout.
fn min_wait() -> ProbeResult {
    let ring = ring_with(&nop())?;
    let (started, timeout) = (Instant::now(), Timespec::new().sec(1));
    ring.submitter().submit_with_args(2, &SubmitArgs::new().timespec(&timeout).min_wait_usec(100))?;
    if started.elapsed() < Duration::from_millis(500) {
        return Ok(String::new());
    }
    Err(Refusal::Finding(degraded("accepted, but it had no effect", SINCE_6_12)))
}

/// Sends a message to a ring, and looks for it there.
fn message(send: impl FnOnce(&squeue::Entry) -> io::Result<()>) -> ProbeResult {
    let mut receiver = IoUring::new(ENTRIES)?;
    send(&opcode::MsgRingData::new(Fd(receiver.as_raw_fd()), 7, 1, None).build())?;
    match receiver.completion().next() {
        Some(entry) if entry.user_data() == 1 && entry.result() == 7 => Ok(String::new()),
        Some(entry) => Err(io::Error::from_raw_os_error(entry.result().saturating_neg()).into()),
        None => Err(io::Error::other("the ring did not receive the message").into()),
    }
}

fn send_without_ring(message: &squeue::Entry) -> io::Result<()> {
    // SAFETY: with a descriptor of -1 this call reads one submission entry: `message`, which lives until the call returns.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            -1 as libc::c_long,
            REGISTER_SEND_MSG_RING,
            std::ptr::from_ref(message),
            1 as libc::c_long,
        )
    };
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn opcodes(ring: &IoUring) -> ProbeResult {
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
    let mut offered = Opcodes::new();
    ring.submitter().register_probe(&mut offered)?;
    let missing = wanted.iter().filter(|(_, code)| !offered.is_supported(*code));
    let missing: Vec<&str> = missing.map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Ok(wanted.len().to_string());
    }
    let why = format!("missing: {}; these run on a helper thread", missing.join(", "));
    Err(Refusal::Finding(degraded(why, "run a newer kernel")))
}

fn nop() -> squeue::Entry {
    opcode::Nop::new().build()
}

/// Returns a ring with one entry queued.
fn ring_with(entry: &squeue::Entry) -> io::Result<IoUring> {
    let mut ring = IoUring::new(ENTRIES)?;
    // SAFETY: the entries of this module name no memory, so nothing must outlive the call.
    let queued = unsafe { ring.submission().push(entry) };
    queued.map_err(|_| io::Error::other("the submission queue is full"))?;
    Ok(ring)
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
        // Regression: the process's limit does not remedy that of the system.
        assert!(explain(Some(libc::EMFILE), None, 0).1.contains("ulimit -n"));
        assert!(explain(Some(libc::ENFILE), None, 0).1.contains("fs.file-max"));
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
