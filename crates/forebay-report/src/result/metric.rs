//! The names of metrics, so that the experiments that fill them and the report that shows them agree.

/// Useful bytes per second, in millions of bytes.
pub const MB_PER_S: &str = "mb_per_s";
/// CPU seconds (user and system, all threads of the process) for each 10^9 bytes read.
pub const CPU_S_PER_GB: &str = "cpu_s_per_gb";
/// The largest memory in use, page cache of the file included, in bytes.
pub const MEMORY_PEAK_BYTES: &str = "memory_peak_bytes";
/// The largest sum of buffers held at one time, in bytes.
pub const BUFFERS_PEAK_BYTES: &str = "buffers_peak_bytes";
/// Requests in flight at the block device, averaged over the sample's time.
pub const IN_FLIGHT_AVG: &str = "in_flight_avg";
/// Wall time of a sample.
pub const SECONDS: &str = "seconds";
/// Operations per second.
pub const IOPS: &str = "iops";
/// Latency percentiles as the caller saw them, in microseconds.
pub const P50_US: &str = "p50_us";
/// See [`P50_US`].
pub const P99_US: &str = "p99_us";
/// See [`P50_US`].
pub const P99_9_US: &str = "p99_9_us";
/// CPU microseconds (user and system, all threads of the process) for each operation.
pub const CPU_US_PER_IO: &str = "cpu_us_per_io";
/// Voluntary and involuntary context switches of all threads for each operation.
pub const CONTEXT_SWITCHES_PER_IO: &str = "context_switches_per_io";
/// Completed appends per second.
pub const APPENDS_PER_S: &str = "appends_per_s";
/// Records of those appends, where an append has several.
pub const RECORDS_PER_S: &str = "records_per_s";
/// Time until an append was durable, stamped where that happened, in microseconds: p50, p99, p99.9, largest.
pub const DURABLE: [&str; 4] = ["durable_p50_us", "durable_p99_us", "durable_p99_9_us", "durable_max_us"];
/// Time until the task that awaits an append was notified that it is durable.
pub const SEEN: [&str; 4] = ["seen_p50_us", "seen_p99_us", "seen_p99_9_us", "seen_max_us"];
/// Time from the planned start of an append until it began.
pub const LATE_P99_US: &str = "late_p99_us";
/// The runtime's own work, in units per second.
pub const WORK_PER_S: &str = "work_per_s";
/// That work, as a share of the work without appends.
pub const WORK_KEPT: &str = "work_kept";
/// Lateness of timer tasks beside the work: p50, p99, p99.9, largest, in microseconds.
pub const TIMERS_LATE: [&str; 4] =
    ["timers_late_p50_us", "timers_late_p99_us", "timers_late_p99_9_us", "timers_late_max_us"];
/// Processor time of these tasks and their runtime without any other work, as a share of one processor.
pub const TIMERS_CPU_SHARE: &str = "timers_cpu_share";
/// CPU microseconds (user and system, all threads of the process) for each append.
pub const CPU_US_PER_APPEND: &str = "cpu_us_per_append";
/// Completed and verified lookups per second.
pub const LOOKUPS_PER_S: &str = "lookups_per_s";
/// CPU microseconds (user and system, all threads of the process) for each lookup.
pub const CPU_US_PER_LOOKUP: &str = "cpu_us_per_lookup";
/// Voluntary and involuntary context switches of all threads for each lookup.
pub const CONTEXT_SWITCHES_PER_LOOKUP: &str = "context_switches_per_lookup";
/// Number of times that a lookup's task was polled again.
pub const WAKES_PER_LOOKUP: &str = "wakes_per_lookup";
/// Several hosts: seconds from the first start until the first, and until the last host was done.
pub const FIRST_DONE_S: &str = "first_done_s";
/// See [`FIRST_DONE_S`].
pub const LAST_DONE_S: &str = "last_done_s";
/// Several hosts: the distance between their starts, in microseconds.
pub const START_SKEW_US: &str = "start_skew_us";
/// Several hosts: error bound of the clock with the largest one, in microseconds.
pub const CLOCK_ERROR_US: &str = "clock_error_us";
/// Operations divided by the time in write calls alone.
pub const IOPS_ADVERTISED: &str = "iops_advertised";
/// Operations divided by the whole time: open, write, sync, close. Absent where nothing is durable then.
pub const IOPS_RELIABLE: &str = "iops_reliable";
/// Time that a client spent opening, in milliseconds: all of its calls together.
pub const OPEN_MS: &str = "open_ms";
/// See [`OPEN_MS`].
pub const WRITE_MS: &str = "write_ms";
/// See [`OPEN_MS`].
pub const SYNC_MS: &str = "sync_ms";
/// See [`OPEN_MS`].
pub const CLOSE_MS: &str = "close_ms";
/// Time from the beginning until the last client was ready.
pub const TOTAL_MS: &str = "total_ms";
/// Time of the sync that a row did not make.
pub const SYNC_LEFT_OUT_MS: &str = "sync_left_out_ms";
/// Share of a lookup's time in which its read is at the block device.
pub const DEVICE_SHARE: &str = "device_share";
/// Bytes that the block device moved for each byte that the program requested.
pub const DEVICE_BYTES_PER_BYTE: &str = "device_bytes_per_byte";
/// The same ratio by the kernel's account of the process.
pub const PROCESS_BYTES_PER_BYTE: &str = "process_bytes_per_byte";
/// Writes that the block device completed.
pub const DEVICE_REQUESTS: &str = "device_requests";
/// Bytes of such a write, on average.
pub const REQUEST_BYTES_MEAN: &str = "request_bytes_mean";
/// Files per second on which all calls were made.
pub const FILES_PER_S: &str = "files_per_s";
/// CPU microseconds (user and system, all threads of the process) for each file.
pub const CPU_US_PER_FILE: &str = "cpu_us_per_file";
/// Mean time of opening or making one file.
pub const OPEN_US: &str = "open_us";
/// Mean time of reading one file.
pub const READ_US: &str = "read_us";
/// Mean time of writing one file.
pub const WRITE_US: &str = "write_us";
/// Mean time of syncing one file.
pub const SYNC_US: &str = "sync_us";
/// Mean time of closing one file.
pub const CLOSE_US: &str = "close_us";
/// Mean time of reading the metadata of one file.
pub const STAT_US: &str = "stat_us";
/// Useful bytes per second before a level changes, in millions of bytes.
pub const BURST_MB_PER_S: &str = "burst_mb_per_s";
/// The same after the change.
pub const SUSTAINED_MB_PER_S: &str = "sustained_mb_per_s";
/// Time of the change, in seconds.
pub const CHANGE_S: &str = "change_s";
/// Bytes moved before the level fell.
pub const DROP_BYTES: &str = "bytes_until_drop";
/// Standard deviation of the sustained level, as a share of its mean.
pub const VARIATION: &str = "variation";
/// Number of periods in which almost nothing completed.
pub const STALL_COUNT: &str = "stall_count";
/// Median length of such a period.
pub const STALL_MS: &str = "stall_ms";
/// Interval between two such periods, where it is regular.
pub const STALL_EVERY_S: &str = "stall_every_s";
/// Length of all such periods together, as a share of the time.
pub const STALL_SHARE: &str = "stall_share";
/// Width of the steps in which they were searched for.
pub const STALL_STEP_MS: &str = "stall_step_ms";
/// Share of a program's time in which a thread stood still for I/O and none ran.
pub const FULL_WAIT_SHARE: &str = "full_wait_share";
/// Share in which a thread stood still for I/O.
pub const SOME_WAIT_SHARE: &str = "some_wait_share";
/// [`FULL_WAIT_SHARE`] as far as the kernel calls it iowait.
pub const FULL_IOWAIT_SHARE: &str = "full_iowait_share";
/// A file's share of the waits of all threads.
pub const WAIT_SHARE: &str = "wait_share";
/// Waits of all threads, in seconds.
pub const WAIT_S: &str = "wait_s";
/// Throughput, beside a reader, of programs that take all they can get.
pub const HOG_MB_PER_S: &str = "hog_mb_per_s";

/// Mean time of an operation, in microseconds.
pub const MEAN_US: &str = "mean_us";
/// Processor time (user and system, all threads), as a share of the wall time of the processors that the way can use.
pub const CPU_SHARE: &str = "cpu_share";
/// Open loop: reads a second that were due on average.
pub const OFFERED_PER_S: &str = "offered_per_s";
/// Open loop: reads without a result when the sample was given up.
pub const UNANSWERED: &str = "unanswered";
/// CPU nanoseconds outside of the kernel, all threads of the process, for each read.
pub const CPU_USER_NS_PER_IO: &str = "cpu_user_ns_per_io";
/// CPU nanoseconds in the kernel, all threads of the process, for each read.
pub const CPU_SYSTEM_NS_PER_IO: &str = "cpu_system_ns_per_io";
/// Reads for a second of CPU time.
pub const IOPS_PER_CORE: &str = "iops_per_core";
/// System calls of all threads for each read.
pub const SYSTEM_CALLS_PER_IO: &str = "system_calls_per_io";
/// Context switches of threads that waited, for each read.
pub const VOLUNTARY_SWITCHES_PER_IO: &str = "voluntary_switches_per_io";
/// Context switches of threads that had to make way, for each read.
pub const INVOLUNTARY_SWITCHES_PER_IO: &str = "involuntary_switches_per_io";
