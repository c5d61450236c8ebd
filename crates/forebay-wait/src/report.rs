//! The results of a measurement, in the form of their JSON.

mod build;

use serde::Serialize;

pub(crate) use build::{NOT_TOLD, Parts, share};

/// How long a program was stalled on I/O, and on which files and calls. All times are nanoseconds, all shares
/// are between 0 and 1.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The command with its arguments; empty when a process was watched.
    pub command: Vec<String>,
    /// The number of the first process.
    pub pid: u32,
    /// The command's exit code, when it ended by itself.
    pub exit_code: Option<i32>,
    /// The signal that ended the command.
    pub signal: Option<i32>,
    /// The source of the figures.
    pub method: Method,
    /// The length of the measurement.
    pub wall_ns: u64,
    /// Time in which at least one thread waited and no thread ran or could have run.
    pub full_wait_ns: u64,
    /// `full_wait_ns` as a share of `wall_ns`.
    pub full_wait_share: f64,
    /// Time in which at least one thread waited.
    pub some_wait_ns: u64,
    /// `some_wait_ns` as a share of `wall_ns`.
    pub some_wait_share: f64,
    /// Time in which no thread ran or certainly waited, and at least one slept while its process had operations on files in
    /// flight, for which it may have waited. Not included in `full_wait_ns`.
    pub maybe_full_wait_ns: u64,
    /// `maybe_full_wait_ns` as a share of `wall_ns`.
    pub maybe_full_wait_share: f64,
    /// Time in which at least one thread may have waited, regardless of the others. Not included in `some_wait_ns`.
    pub maybe_some_wait_ns: u64,
    /// `maybe_some_wait_ns` as a share of `wall_ns`.
    pub maybe_some_wait_share: f64,
    /// The waits of all threads together; more than `wall_ns` when several wait together.
    pub wait_sum_ns: u64,
    /// The waits that the kernel counts as iowait in `io.pressure`.
    pub iowait: Pressure,
    /// The kernel's own figures of the command's cgroup, where it could have one.
    pub pressure: Option<Pressure>,
    /// Activity at the block devices meanwhile; absent without BPF.
    pub device: Option<DeviceTime>,
    /// Threads that were followed.
    pub threads: u64,
    /// Processes that were followed.
    pub processes: u64,
    /// The files, the longest wait first.
    pub files: Vec<File>,
    /// Calls that name no open file, and waits outside of file calls.
    pub without_file: Vec<Call>,
    /// The meaning of the numbers, and the first change to make.
    pub advice: Vec<String>,
    /// Limits of these figures that the reader should know.
    pub notes: Vec<String>,
    /// Events that did not fit into the maps.
    pub lost: LostEvents,
    /// Operations that were or may have been in flight without being seen, in words. The figures bound what a faster device saves
    /// only if this is empty.
    pub unseen: Vec<String>,
}

/// A device's measured rates of reads at random, of one size: the advice states a gain only where it was
/// measured.
#[derive(Clone, Debug)]
pub struct DeviceRates {
    /// The device, as in [`File::device_number`].
    pub device_number: String,
    /// Bytes of a read.
    pub block_bytes: u64,
    /// Reads a second, one at a time.
    pub alone_per_s: f64,
    /// A number in flight that reaches about the device's maximum.
    pub in_flight: u64,
    /// Reads a second with that many in flight.
    pub per_s: f64,
    /// The source of these rates, for the sentence.
    pub source: String,
}

/// The source of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Method {
    /// The tracepoints.
    Tracepoints,
    /// The cgroup's `io.pressure` alone.
    Pressure,
}

/// A pair of pressure figures.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Pressure {
    /// Time in which at least one thread was stalled.
    pub some_ns: u64,
    /// Time in which at least one thread was stalled and no thread ran.
    pub full_ns: u64,
    /// `some_ns` as a share of the measurement.
    pub some_share: f64,
    /// `full_ns` as a share of the measurement.
    pub full_share: f64,
}

/// The time that requests were at the block devices: those of the tree, of its files, and of the kernel
/// itself.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct DeviceTime {
    /// Time in which at least one request was at a device.
    pub busy_ns: u64,
    /// Part of `full_wait_ns` with a request at a device.
    pub full_wait_at_device_ns: u64,
    /// Part of `full_wait_ns` without one, so the wait was above the device.
    pub full_wait_above_ns: u64,
    /// Part of `some_wait_ns` with a request at a device.
    pub some_wait_at_device_ns: u64,
    /// Part of `maybe_full_wait_ns` with a request at a device.
    pub maybe_full_wait_at_device_ns: u64,
}

/// Events that did not fit into the maps.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct LostEvents {
    /// Calls on files beyond the limit of 16,384 files (65,536 pairs of file and call); they are in `without_file`.
    pub calls: u64,
    /// Operations of io_uring or requests at devices beyond the limit of 32,768 in flight.
    pub operations: u64,
}

/// A file that the program used, with its calls and waits.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct File {
    /// The path as the program saw it; `...` for outer names that were left out.
    pub path: String,
    /// The file's device as major:minor.
    pub device_number: String,
    /// The file's inode.
    pub inode: u64,
    /// Time that threads were stalled on it, added up.
    pub wait_ns: u64,
    /// `wait_ns` as a share of `wait_sum_ns`.
    pub wait_share: f64,
    /// Bytes that its calls moved.
    pub bytes: u64,
    /// The most calls and operations in flight together, without those of libaio.
    pub concurrency_max: u64,
    /// The mean number in flight, while at least one was, without those of libaio.
    pub concurrency_mean: f64,
    /// Bytes that the device read for it, with read-ahead.
    pub device_read_bytes: u64,
    /// Bytes that the device wrote for it.
    pub device_written_bytes: u64,
    /// Requests at the device.
    pub device_requests: u64,
    /// The time of these requests at the device, added up.
    pub device_ns: u64,
    /// The time of these requests in the queues above the device, added up.
    pub queue_ns: u64,
    /// The file's calls, the longest wait first.
    pub calls: Vec<Call>,
}

/// One kind of call on one file.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Call {
    /// The call's kind: `read` stands for read, pread, readv, preadv and preadv2, and so on.
    pub call: String,
    /// Number of calls.
    pub count: u64,
    /// Bytes that they moved; a page for each page fault; not those of libaio.
    pub bytes: u64,
    /// Time that threads were stalled in them.
    pub wait_ns: u64,
    /// `wait_ns` as a share of the report's `wait_sum_ns`.
    pub wait_share: f64,
    /// Time from entry to return; of ring operations from submission to completion; of page faults the wait.
    pub time_ns: u64,
    /// Calls that waited at all; of ring operations, the waits that they ended.
    pub waits: u64,
    /// The longest wait of one call.
    pub longest_ns: u64,
    /// Calls that failed.
    pub errors: u64,
    /// The mean number of bytes moved by the calls that moved anything.
    pub mean_bytes: Option<f64>,
    /// Calls by requested size.
    pub sizes: Vec<SizeClass>,
    /// Share of calls that started where an earlier call on the file had ended.
    pub sequential_share: Option<f64>,
    /// Share of buffered reads that neither waited nor brought pages in.
    pub cache_hit_share: Option<f64>,
    /// Share of calls on descriptors opened with O_DIRECT.
    pub direct_share: Option<f64>,
    /// Share of writes that returned only when they were durable, because of the file's flags (O_SYNC, O_DSYNC), the call's flags
    /// (RWF_SYNC, RWF_DSYNC), the file's attribute `S` or the mount option `sync`.
    pub durable_share: Option<f64>,
}

/// A class of calls by requested size: up to `up_to_bytes`, and more than half of it.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct SizeClass {
    /// The upper end; the last class, 64 MiB, has no upper end.
    pub up_to_bytes: u64,
    /// Number of calls.
    pub count: u64,
}
