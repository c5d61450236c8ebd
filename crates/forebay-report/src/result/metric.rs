//! The metrics: their names in a document, and the columns of those that several experiments show.

/// Defines metrics, one a line: constant and name in the document, heading and divisor of the column where several
/// experiments have one, and the meaning.
macro_rules! metrics {
    ($($name:ident $text:literal $(as $heading:literal / $divisor:literal)?: $meaning:literal;)*) => {
        $(#[doc = $meaning] pub const $name: &str = $text;)*

        /// The columns of metrics that several experiments have; an experiment makes others with
        /// [`column`](crate::result::columns::column).
        pub mod columns {
            use crate::result::columns::{Definition, column};

            $($(#[doc = $meaning] pub const $name: Definition = column($text, $heading, $divisor, $meaning);)?)*
        }
    };
}

metrics! {
    MB_PER_S "mb_per_s" as "MB/s" / 1.0: "millions of bytes that the program got in a second, closing included";
    IOPS "iops" as "IOPS" / 1.0: "blocks or pieces that the program got in a second";
    LOOKUPS_PER_S "lookups_per_s" as "lookups/s" / 1.0: "lookups that completed and were verified in a second";
    FILES_PER_S "files_per_s" as "files/s" / 1.0: "files, directories or objects a second";
    MEAN_US "mean_us" as "mean µs" / 1.0: "mean time of an operation, in µs";
    P50_US "p50_us" as "p50 µs" / 1.0: "half of the operations took no longer, seen from the caller";
    P99_US "p99_us" as "p99 µs" / 1.0: "99 of 100 operations took no longer";
    P99_9_US "p99_9_us" as "p99.9 µs" / 1.0: "999 of 1,000 reads took no longer";
    CPU_S_PER_GB "cpu_s_per_gb" as "CPU s/GB" / 1.0:
        "processor seconds, user and system, all threads, for a billion bytes";
    CPU_US_PER_IO "cpu_us_per_io" as "CPU µs/IO" / 1.0:
        "processor microseconds, user and system, all threads, for one block";
    CONTEXT_SWITCHES_PER_IO "context_switches_per_io" as "switches/IO" / 1.0:
        "voluntary and involuntary context switches for one block";
    CPU_US_PER_LOOKUP "cpu_us_per_lookup" as "CPU µs/lookup" / 1.0:
        "processor microseconds, user and system, all threads, for one lookup";
    CONTEXT_SWITCHES_PER_LOOKUP "context_switches_per_lookup" as "switches/lookup" / 1.0:
        "voluntary and involuntary context switches for one lookup";
    WAKES_PER_LOOKUP "wakes_per_lookup" as "wakes/lookup" / 1.0: "how often a lookup's task was polled again";
    IN_FLIGHT_AVG "in_flight_avg" as "in flight" / 1.0: "requests at the block device, averaged over the time";
    DEVICE_SHARE "device_share" as "on the device %" / 0.01:
        "share of a lookup's time in which its read is at the block device; requests of all processes count";
    DEVICE_BYTES_PER_BYTE "device_bytes_per_byte" as "device bytes/byte" / 1.0:
        "bytes that the block device moved for each byte that the program requested; all processes count";
    PROCESS_BYTES_PER_BYTE "process_bytes_per_byte" as "process bytes/byte" / 1.0:
        "the same by the kernel's account of the process, without the bytes of other processes";
    MEMORY_PEAK_BYTES "memory_peak_bytes" as "memory MiB" / 1_048_576.0:
        "the largest memory in use, page cache of the file included";
    BUFFERS_PEAK_BYTES "buffers_peak_bytes" as "buffers MiB" / 1_048_576.0:
        "the largest sum of buffers held at once";
    APPENDS_PER_S "appends_per_s" as "appends/s" / 1.0: "appends that completed in a second";
    RECORDS_PER_S "records_per_s" as "records/s" / 1.0: "records of those appends";
    LATE_P99_US "late_p99_us" as "late p99" / 1.0:
        "99 of 100 appends were begun so long after they were due, in µs; it is part of the other times";
    WORK_PER_S "work_per_s" as "work/s" / 1.0: "vectors that the load sorted in a second";
    WORK_KEPT "work_kept" as "work kept %" / 0.01: "that, as a share of the vectors without appends";
    TIMERS_CPU_SHARE "timers_cpu_share" as "timers CPU %" / 0.01:
        "processor time of the timer tasks with nothing beside them, in percent of one processor";
    CPU_US_PER_APPEND "cpu_us_per_append" as "CPU µs/append" / 1.0:
        "processor microseconds, user and system, all threads, for one append";
    FIRST_DONE_S "first_done_s" as "first done s" / 1.0:
        "seconds from the first host's start until the first host was done";
    LAST_DONE_S "last_done_s" as "last done s" / 1.0:
        "seconds from the first host's start until the last host was done";
    START_SKEW_US "start_skew_us" as "skew µs" / 1.0: "how far the hosts' starts lay apart, in µs";
    SECONDS "seconds" as "seconds" / 1.0: "wall time of one repeat";
    FULL_WAIT_SHARE "full_wait_share" as "full wait %" / 0.01:
        "share of the time in which a thread was blocked on I/O and none ran";
    MAYBE_WAIT_SHARE "maybe_full_wait_share" as "may be %" / 0.01:
        "share of the time, besides, in which it may have been blocked on I/O: none ran, and operations on files were in flight";
    SOME_WAIT_SHARE "some_wait_share" as "some wait %" / 0.01:
        "share of the time in which a thread was blocked on I/O";
    FULL_IOWAIT_SHARE "full_iowait_share" as "full iowait %" / 0.01:
        "full wait, as far as the kernel calls it iowait";
    WAIT_SHARE "wait_share" as "of all waits %" / 0.01: "a file's share of the waits of all threads";
    WAIT_S "wait_s" as "wait s" / 1.0: "waits of all threads, in seconds";

    CLOCK_ERROR_US "clock_error_us": "error bound of the clock with the largest one of several hosts, in microseconds";
    IOPS_ADVERTISED "iops_advertised": "operations divided by the time in write calls alone";
    IOPS_RELIABLE "iops_reliable":
        "operations divided by the whole time: open, write, sync, close; absent where nothing is durable then";
    OPEN_MS "open_ms": "time that a client spent opening, in milliseconds: all of its calls together";
    WRITE_MS "write_ms": "the same, writing";
    SYNC_MS "sync_ms": "the same, syncing";
    CLOSE_MS "close_ms": "the same, closing";
    TOTAL_MS "total_ms": "time from the beginning until the last client was ready";
    SYNC_LEFT_OUT_MS "sync_left_out_ms": "time of the sync that a row did not make";
    DEVICE_REQUESTS "device_requests": "writes that the block device completed";
    REQUEST_BYTES_MEAN "request_bytes_mean": "bytes of such a write, on average";
    CPU_US_PER_FILE "cpu_us_per_file": "processor microseconds, user and system, all threads, for one file";
    OPEN_US "open_us": "mean time of opening or making one file";
    READ_US "read_us": "mean time of reading one file";
    WRITE_US "write_us": "mean time of writing one file";
    SYNC_US "sync_us": "mean time of syncing one file";
    CLOSE_US "close_us": "mean time of closing one file";
    STAT_US "stat_us": "mean time of reading the metadata of one file";
    BURST_MB_PER_S "burst_mb_per_s": "useful bytes per second before a level changes, in millions of bytes";
    SUSTAINED_MB_PER_S "sustained_mb_per_s": "the same after the change";
    CHANGE_S "change_s": "time of the change, in seconds";
    DROP_BYTES "bytes_until_drop": "bytes moved before the level fell";
    VARIATION "variation": "standard deviation of the sustained level, as a share of its mean";
    STEADY_ROUND "steady_round":
        "the last of the first five rounds that are steady, each of a 25th of the load; 0 where none are";
    STALL_COUNT "stall_count": "number of periods in which almost nothing completed";
    STALL_MS "stall_ms": "median length of such a period";
    STALL_EVERY_S "stall_every_s": "interval between two such periods, where it is regular";
    STALL_SHARE "stall_share": "length of all such periods together, as a share of the time";
    STALL_STEP_MS "stall_step_ms": "width of the steps in which they were searched for";
    HOG_MB_PER_S "hog_mb_per_s": "throughput, beside a reader, of programs that take all they can get";
    CPU_SHARE "cpu_share":
        "processor time, user and system, all threads, as a share of the wall time of the processors that the way can use";
    OFFERED_PER_S "offered_per_s": "reads a second that were due on average, in an open loop";
    UNANSWERED "unanswered": "reads of an open loop without a result when the sample was given up";
    CPU_USER_NS_PER_IO "cpu_user_ns_per_io": "processor nanoseconds outside of the kernel, all threads, for each read";
    CPU_SYSTEM_NS_PER_IO "cpu_system_ns_per_io": "processor nanoseconds in the kernel, all threads, for each read";
    IOPS_PER_CORE "iops_per_core": "reads for a second of processor time";
    SYSTEM_CALLS_PER_IO "system_calls_per_io": "system calls of all threads for each read";
    VOLUNTARY_SWITCHES_PER_IO "voluntary_switches_per_io": "context switches of threads that waited, for each read";
    INVOLUNTARY_SWITCHES_PER_IO "involuntary_switches_per_io":
        "context switches of threads that had to make way, for each read";
}

/// Time until an append was durable, stamped where that happened, in microseconds: p50, p99, p99.9, largest.
pub const DURABLE: [&str; 4] = ["durable_p50_us", "durable_p99_us", "durable_p99_9_us", "durable_max_us"];
/// Time until the task that awaits an append was notified that it is durable.
pub const SEEN: [&str; 4] = ["seen_p50_us", "seen_p99_us", "seen_p99_9_us", "seen_max_us"];
/// Lateness of timer tasks during the work: p50, p99, p99.9, largest, in microseconds.
pub const TIMERS_LATE: [&str; 4] =
    ["timers_late_p50_us", "timers_late_p99_us", "timers_late_p99_9_us", "timers_late_max_us"];
