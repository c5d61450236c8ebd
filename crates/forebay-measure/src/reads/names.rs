//! The names of the figures that only experiments with many readers have, and their columns.

use forebay_report::page::columns::{Definition, column};

/// Mean latency as the caller saw it, in microseconds.
pub(crate) const MEAN_US: &str = "mean_us";
/// CPU time (user and system, all threads), as a share of the wall time of the processors that this way can use.
pub(crate) const CPU_SHARE: &str = "cpu_share";
/// Open loop: reads a second that were due on average.
pub(crate) const OFFERED_PER_S: &str = "offered_per_s";
/// Open loop: reads without a result when the sample was given up.
pub(crate) const UNANSWERED: &str = "unanswered";
/// CPU nanoseconds outside of the kernel, all threads of the process, for each read.
pub(crate) const CPU_USER_NS_PER_IO: &str = "cpu_user_ns_per_io";
/// CPU nanoseconds in the kernel, all threads of the process, for each read.
pub(crate) const CPU_SYSTEM_NS_PER_IO: &str = "cpu_system_ns_per_io";
/// Reads for a second of CPU time.
pub(crate) const IOPS_PER_CORE: &str = "iops_per_core";
/// System calls of all threads for each read.
pub(crate) const SYSTEM_CALLS_PER_IO: &str = "system_calls_per_io";
/// Context switches of threads that waited, for each read.
pub(crate) const VOLUNTARY_SWITCHES_PER_IO: &str = "voluntary_switches_per_io";
/// Context switches of threads that had to make way, for each read.
pub(crate) const INVOLUNTARY_SWITCHES_PER_IO: &str = "involuntary_switches_per_io";

pub(crate) const OFFERED: Definition =
    column(OFFERED_PER_S, "asked/s", 1.0, "reads that were due in a second");
pub(crate) const MEAN: Definition = column(MEAN_US, "mean µs", 1.0, "mean time of a read");
pub(crate) const SHARE: Definition = column(
    CPU_SHARE,
    "CPU busy %",
    0.01,
    "processor time as a share of the processors that this way can use: one, or all",
);
pub(crate) const INCOMPLETE: Definition =
    column(UNANSWERED, "unanswered", 1.0, "reads that had not completed when the sample was given up");
pub(crate) const USER: Definition =
    column(CPU_USER_NS_PER_IO, "user ns/IO", 1.0, "of that, outside of the kernel, in nanoseconds");
pub(crate) const SYSTEM: Definition =
    column(CPU_SYSTEM_NS_PER_IO, "system ns/IO", 1.0, "of that, in the kernel, in nanoseconds");
pub(crate) const PER_CORE: Definition =
    column(IOPS_PER_CORE, "IOPS/core", 1.0, "blocks for a second of processor time");
pub(crate) const CALLS: Definition =
    column(SYSTEM_CALLS_PER_IO, "calls/IO", 1.0, "system calls for one block");
pub(crate) const VOLUNTARY: Definition =
    column(VOLUNTARY_SWITCHES_PER_IO, "voluntary/IO", 1.0, "of the switches, those of threads that waited");
pub(crate) const FORCED: Definition = column(
    INVOLUNTARY_SWITCHES_PER_IO,
    "forced/IO",
    1.0,
    "of the switches, those of threads that were preempted",
);
