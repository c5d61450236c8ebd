//! The process's usage so far: CPU time, context switches, allocations, system calls, I/O of the device.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use forebay_measure::cleanup::Cleanup;
use forebay_measure::experiment::Outcome;
use forebay_measure::job::Job;
use serde_json::Value;

use crate::allocations;

/// A reading; two of them are subtracted. The counters of the device include other programs; a flush counts as a write, so
/// a direct write and its flush are two.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// CPU time of all threads, user and system, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// Voluntary and involuntary context switches of all threads.
    pub(crate) context_switches: u64,
    /// Heap allocations, when they are counted.
    pub(crate) allocations: u64,
    /// System calls, when they are counted.
    syscalls: Option<u64>,
    /// Writes, reads and written bytes of the block device, when they are counted.
    device: Option<[u64; 3]>,
}

impl Usage {
    /// Reads the counters of this process.
    pub(crate) fn now() -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        // SAFETY: an all-zero `rusage` is a valid value of a plain C struct.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is a writable rusage for the duration of the call.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
        Self {
            cpu_ns: time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64,
            context_switches: (usage.ru_nvcsw + usage.ru_nivcsw) as u64,
            allocations: allocations::count(),
            syscalls: SYSCALLS.get().and_then(|counter| read_counter(*counter)),
            device: DEVICE.get().and_then(|statistics| read_device(statistics)),
        }
    }

    /// Returns the sum of two stretches.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a + b)
    }

    /// Returns the usage since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        self.combine(earlier, |now, then| now - then)
    }

    fn combine(&self, other: &Self, act: fn(u64, u64) -> u64) -> Self {
        Self {
            cpu_ns: act(self.cpu_ns, other.cpu_ns),
            context_switches: act(self.context_switches, other.context_switches),
            allocations: act(self.allocations, other.allocations),
            syscalls: self.syscalls.zip(other.syscalls).map(|(a, b)| act(a, b)),
            device: self.device.zip(other.device).map(|(a, b)| std::array::from_fn(|i| act(a[i], b[i]))),
        }
    }

    /// Returns the bytes that the device wrote, when they are counted.
    pub(crate) fn written_bytes(&self) -> Option<u64> {
        self.device.map(|[_, _, bytes]| bytes)
    }

    /// Adds the usage of `operations` operations to an outcome, each metric per operation.
    pub(crate) fn add_to(&self, outcome: &mut Outcome, operations: u64) {
        let [writes, reads] = [0, 1].map(|place| self.device.map(|counts| counts[place] as f64));
        let per_operation = [
            ("cpu_us_per_io", Some(self.cpu_ns as f64 / 1e3)),
            ("context_switches_per_io", Some(self.context_switches as f64)),
            ("allocations_per_io", allocations::is_counting().then_some(self.allocations as f64)),
            ("syscalls_per_io", self.syscalls.map(|calls| calls as f64)),
            ("device_writes_per_io", writes),
            ("device_reads_per_io", reads),
        ];
        for (name, value) in per_operation {
            if let Some(value) = value {
                outcome.figures.set(name, value / operations as f64);
            }
        }
    }
}

static SYSCALLS: OnceLock<libc::c_int> = OnceLock::new();
static DEVICE: OnceLock<PathBuf> = OnceLock::new();

/// Starts to count, for the rest of this process: the requests of the device that the job names, and system calls where
/// the job has their event.
///
/// # Errors
/// When the kernel refuses the counter of system calls.
pub(crate) fn start_counting(job: &Job) -> Result<()> {
    if let Some(statistics) = &job.device_stat {
        DEVICE.get_or_init(|| statistics.clone());
    }
    match job.work.get("syscall_event").and_then(Value::as_u64) {
        Some(event) => count_syscalls(event),
        None => Ok(()),
    }
}

/// Reads completed writes, completed reads and written bytes; the kernel's unit called a sector is 512 bytes for every
/// device.
fn read_device(statistics: &Path) -> Option<[u64; 3]> {
    let text = std::fs::read_to_string(statistics).ok()?;
    let field = |place: usize| text.split_whitespace().nth(place)?.parse::<u64>().ok();
    Some([field(4)?, field(0)?, field(6)? * 512])
}

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

/// Counts the system calls of this process, threads that start later included, by the kernel's tracepoint
/// `raw_syscalls:sys_enter`: no tracer stops the process.
fn count_syscalls(event: u64) -> Result<()> {
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
    SYSCALLS.get_or_init(|| counter as libc::c_int);
    Ok(())
}

fn read_counter(counter: libc::c_int) -> Option<u64> {
    let mut value = 0_u64;
    // SAFETY: `value` has room for the eight bytes that this counter returns.
    let got = unsafe { libc::read(counter, (&raw mut value).cast(), 8) };
    (got == 8).then_some(value)
}

/// Returns the number of the tracepoint, from a tracefs that is already mounted or is mounted for this look-up only.
///
/// # Errors
/// When tracefs cannot be mounted (needs root) or has no such tracepoint.
pub(crate) fn syscall_event(cleanup: &Cleanup) -> Result<u64> {
    for root in ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"] {
        if let Ok(number) = read_event(Path::new(root)) {
            return Ok(number);
        }
    }
    let folder = cleanup.temp_directory(&std::env::temp_dir(), "tracefs")?;
    let flags = rustix::mount::MountFlags::RDONLY;
    rustix::mount::mount("nodev", folder.path(), "tracefs", flags, None)
        .context("counting system calls needs tracefs, and mounting it needs root")?;
    let number = read_event(folder.path());
    rustix::mount::unmount(folder.path(), rustix::mount::UnmountFlags::DETACH)?;
    number
}

fn read_event(root: &Path) -> Result<u64> {
    let path = root.join("events/raw_syscalls/sys_enter/id");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(text.trim().parse()?)
}
