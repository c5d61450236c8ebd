//! The process's usage so far: CPU time, context switches, allocations, system calls, device writes, memory.

use crate::{allocations, device_writes, syscalls};

/// A reading; two of them are subtracted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// CPU time of all threads, user and system, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// Voluntary and involuntary context switches of all threads.
    pub(crate) context_switches: u64,
    /// Heap allocations, when they are counted.
    pub(crate) allocations: u64,
    /// System calls, when they are counted.
    pub(crate) syscalls: Option<u64>,
    /// Writes of a block device, when they are counted; a flush is one of them.
    pub(crate) device_writes: Option<u64>,
    /// Reads of a block device, when they are counted.
    pub(crate) device_reads: Option<u64>,
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
            syscalls: syscalls::count(),
            device_writes: device_writes::count(),
            device_reads: device_writes::reads(),
        }
    }

    /// Returns the sum of two stretches.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns + other.cpu_ns,
            context_switches: self.context_switches + other.context_switches,
            allocations: self.allocations + other.allocations,
            syscalls: self.syscalls.zip(other.syscalls).map(|(a, b)| a + b),
            device_writes: self.device_writes.zip(other.device_writes).map(|(a, b)| a + b),
            device_reads: self.device_reads.zip(other.device_reads).map(|(a, b)| a + b),
        }
    }

    /// Returns the usage since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns - earlier.cpu_ns,
            context_switches: self.context_switches - earlier.context_switches,
            allocations: self.allocations - earlier.allocations,
            syscalls: self.syscalls.zip(earlier.syscalls).map(|(now, then)| now - then),
            device_writes: self.device_writes.zip(earlier.device_writes).map(|(now, then)| now - then),
            device_reads: self.device_reads.zip(earlier.device_reads).map(|(now, then)| now - then),
        }
    }
}

/// Returns the most memory this process had resident at once, in bytes (`VmHWM`; counts mapped file pages,
/// but no other page cache).
pub(crate) fn peak_resident_bytes() -> f64 {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("VmHWM:"))?;
            line.split_whitespace().nth(1)?.parse::<f64>().ok()
        })
        .map_or(f64::NAN, |kib| kib * 1024.0)
}
