//! System calls of a sample, counted by the kernel's `raw_syscalls:sys_enter` tracepoint: no tracer stops the process.

use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result};

static COUNTER: OnceLock<libc::c_int> = OnceLock::new();

/// The layout of `struct perf_event_attr` up to `config2`-less version 0 (64 bytes), which is all a plain counter needs.
#[repr(C)]
#[derive(Debug, Default)]
struct EventAttributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

const KIND_TRACEPOINT: u32 = 2;
const FLAG_INHERIT: u64 = 1 << 1;

/// Starts to count the system calls of this process, threads that start later included.
///
/// # Errors
/// When the kernel refuses the counter: it needs `CAP_PERFMON` or root.
pub(crate) fn start_counting(event: u64) -> Result<()> {
    let attributes = EventAttributes {
        kind: KIND_TRACEPOINT,
        size: 64,
        config: event,
        flags: FLAG_INHERIT,
        ..EventAttributes::default()
    };
    // SAFETY: `attributes` is a complete version-0 perf_event_attr for the duration of the call.
    let counter =
        unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attributes, 0, -1, -1, 8_u64) };
    if counter < 0 {
        return Err(std::io::Error::last_os_error()).context(
            "the kernel refused a counter of system calls; run as root or leave out --count-syscalls",
        );
    }
    COUNTER.get_or_init(|| counter as libc::c_int);
    Ok(())
}

/// Returns the system calls so far, when they are counted.
pub(crate) fn count() -> Option<u64> {
    let counter = *COUNTER.get()?;
    let mut value = 0_u64;
    // SAFETY: `value` has room for the eight bytes that this counter returns.
    let got = unsafe { libc::read(counter, (&raw mut value).cast(), 8) };
    (got == 8).then_some(value)
}

/// Returns the number of the tracepoint, from a tracefs that is already mounted or is mounted for this
/// look-up only.
///
/// # Errors
/// When tracefs cannot be mounted (needs root) or has no such tracepoint.
pub(crate) fn event_number() -> Result<u64> {
    for root in ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"] {
        if let Ok(number) = read_number(Path::new(root)) {
            return Ok(number);
        }
    }
    let folder = crate::scratch::Folder::in_dir(&std::env::temp_dir(), "forebay-versus-tracefs")?;
    let empty = rustix::mount::MountFlags::RDONLY;
    rustix::mount::mount("nodev", folder.path(), "tracefs", empty, None)
        .context("counting system calls needs tracefs, and mounting it needs root")?;
    let number = read_number(folder.path());
    rustix::mount::unmount(folder.path(), rustix::mount::UnmountFlags::DETACH)?;
    number
}

fn read_number(root: &Path) -> Result<u64> {
    let path = root.join("events/raw_syscalls/sys_enter/id");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(text.trim().parse()?)
}
