//! The process's usage so far: CPU time, context switches, allocations, system calls, requests of the device. And the
//! program's allocator, which counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Context as _, Result};
use forebay_measure::CallCounter;
use forebay_measure::experiment::Outcome;

/// The first counters, as metrics of one operation, with the divisor to the metric's unit.
const METRICS: [(&str, f64); 6] = [
    ("cpu_us_per_io", 1e3),
    ("context_switches_per_io", 1.0),
    ("allocations_per_io", 1.0),
    ("syscalls_per_io", 1.0),
    ("device_writes_per_io", 1.0),
    ("device_reads_per_io", 1.0),
];

// Places of counters: CPU time in nanoseconds, of all threads, user and system; voluntary and involuntary switches; heap
// allocations; bytes that the device wrote.
pub(crate) const CPU_NS: usize = 0;
pub(crate) const CONTEXT_SWITCHES: usize = 1;
pub(crate) const ALLOCATIONS: usize = 2;
pub(crate) const WRITTEN_BYTES: usize = 6;

/// A reading of the counters, or the difference of two; NaN: not counted. Requests of the device include other programs'; a
/// flush counts as a write, so a direct write and its flush are two.
#[derive(Clone, Copy)]
pub(crate) struct Usage(pub(crate) [f64; 7]);

impl Usage {
    /// Reads the counters of this process.
    pub(crate) fn now() -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        // SAFETY: an all-zero `rusage` is a valid value of a plain C struct.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is a writable rusage for the duration of the call.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
        let mut counter = SYSCALLS.lock().unwrap_or_else(PoisonError::into_inner);
        let syscalls = counter.as_mut().and_then(|counter| counter.count().ok());
        let is_counting = COUNTING.load(Ordering::Relaxed) != OFF;
        let allocations = is_counting.then(|| COUNT.load(Ordering::Relaxed));
        let device = DEVICE.get().and_then(|path| std::fs::read_to_string(path).ok());
        let device = |place| device.as_ref()?.split_whitespace().nth(place)?.parse::<u64>().ok();
        let counters = [
            Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64),
            Some((usage.ru_nvcsw + usage.ru_nivcsw) as u64),
            allocations,
            syscalls,
            device(4),
            device(0),
            // The kernel's unit called a sector is 512 bytes for every device.
            device(6).map(|sectors| sectors * 512),
        ];
        Self(counters.map(|counter| counter.map_or(f64::NAN, |count| count as f64)))
    }

    /// Returns the sum of two stretches.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|place| self.0[place] + other.0[place]))
    }

    /// Returns the usage since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|place| self.0[place] - earlier.0[place]))
    }

    /// Adds the usage of `operations` operations to an outcome, each metric per operation.
    pub(crate) fn add_to(&self, outcome: &mut Outcome, operations: u64) {
        for ((name, divisor), count) in METRICS.iter().zip(self.0).filter(|(_, count)| !count.is_nan()) {
            outcome.figures.set(name, count / divisor / operations as f64);
        }
    }
}

static SYSCALLS: Mutex<Option<CallCounter>> = Mutex::new(None);
static DEVICE: OnceLock<PathBuf> = OnceLock::new();

/// Starts to count the requests of the device with this `stat` file, if any, for the rest of this process.
pub(crate) fn count_requests(device_stat: Option<&Path>) {
    if let Some(path) = device_stat {
        DEVICE.get_or_init(|| path.to_owned());
    }
}

/// Starts to count system calls, for the rest of this process.
pub(crate) fn count_syscalls() -> Result<()> {
    let counter = CallCounter::start()
        .context("system calls cannot be counted; run as root or leave out --count-syscalls")?;
    *SYSCALLS.lock().unwrap_or_else(PoisonError::into_inner) = Some(counter);
    Ok(())
}

/// The threads whose allocations are counted: no thread, the watched threads, or all.
static COUNTING: AtomicU8 = AtomicU8::new(OFF);
static COUNT: AtomicU64 = AtomicU64::new(0);

const OFF: u8 = 0;
const WATCHED: u8 = 1;
const ALL: u8 = 2;

thread_local! {
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// Starts to count the allocations of all threads, for the rest of this process.
pub(crate) fn count_allocations() {
    COUNTING.store(ALL, Ordering::Relaxed);
}

/// Starts to count the allocations of this thread, for the rest of this process. Other threads pay for a check of their flag.
pub(crate) fn count_allocations_here() {
    IS_WATCHED.set(true);
    COUNTING.store(WATCHED, Ordering::Relaxed);
}

/// The system's allocator, which counts allocations and reallocations while counting is on. Off by default: a shared
/// counter would slow down peers that allocate from several threads, and their figures would no longer be theirs.
pub(crate) struct CountingAllocator;

#[inline]
fn note() {
    let counts = match COUNTING.load(Ordering::Relaxed) {
        OFF => false,
        // A thread that ends may allocate after its flag is destroyed; it is no longer watched then.
        WATCHED => IS_WATCHED.try_with(Cell::get).unwrap_or(false),
        _ => true,
    };
    if counts {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches atomics and a plain thread-local only.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promises for `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` was allocated by `System` with this layout, because every allocation here does.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promises for `layout` are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note();
        // SAFETY: `ptr` was allocated by `System` with this layout, and the caller's promises for `new_size` are passed on.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
