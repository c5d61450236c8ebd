//! What was measured, as it stands in JSON.

mod build;

use serde::Serialize;

pub(crate) use build::{NOT_TOLD, Parts, share};

/// How long a program stood still for I/O, and for what. All times are nanoseconds, all shares are between 0
/// and 1.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The command with its arguments; empty when a process was watched.
    pub command: Vec<String>,
    /// The first process.
    pub pid: u32,
    /// Its exit code, when it ended by itself.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// What the figures come from.
    pub method: Method,
    /// How long the measurement took.
    pub wall_ns: u64,
    /// At least one thread waited and none ran or could have run.
    pub full_wait_ns: u64,
    /// The same as a share of `wall_ns`.
    pub full_wait_share: f64,
    /// At least one thread waited.
    pub some_wait_ns: u64,
    /// The same as a share of `wall_ns`.
    pub some_wait_share: f64,
    /// The waits of all threads together; more than `wall_ns` when several wait at once.
    pub wait_sum_ns: u64,
    /// Only those waits that the kernel calls iowait, which are the ones that `io.pressure` counts.
    pub iowait: Pressure,
    /// The kernel's own figures of the command's cgroup, where it could have one.
    pub pressure: Option<Pressure>,
    /// What was at the block devices meanwhile; absent without BPF.
    pub device: Option<DeviceTime>,
    /// Threads that were followed.
    pub threads: u64,
    /// Processes that were followed.
    pub processes: u64,
    /// The files, the longest wait first.
    pub files: Vec<File>,
    /// Calls that name no open file, and waits outside of file calls.
    pub without_file: Vec<Call>,
    /// What the numbers mean, and what to change first.
    pub advice: Vec<String>,
    /// What a reader must know about these figures.
    pub notes: Vec<String>,
    /// What did not fit into the maps.
    pub lost: Lost,
}

/// What a device was measured to serve of reads at random, of one size: the advice tells a gain only where it is known.
#[derive(Clone, Debug)]
pub struct Served {
    /// Which device, as in [`File::device_number`].
    pub device_number: String,
    /// Of a read.
    pub block_bytes: u64,
    /// Reads a second, one at a time.
    pub alone_per_s: f64,
    /// At a number in flight that gets about all there is.
    pub in_flight: u64,
    /// Reads a second then.
    pub per_s: f64,
    /// Where that is from, for the sentence.
    pub source: String,
}

/// What the figures come from.
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
    /// At least one thread stood still.
    pub some_ns: u64,
    /// At least one stood still and none ran.
    pub full_ns: u64,
    /// As a share of the measurement.
    pub some_share: f64,
    /// As a share of the measurement.
    pub full_share: f64,
}

/// How long requests were at the block devices: those of the tree, of its files, and of the kernel itself.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct DeviceTime {
    /// At least one request was at a device.
    pub busy_ns: u64,
    /// Of `full_wait_ns`: a request was at a device.
    pub full_wait_at_device_ns: u64,
    /// Of `full_wait_ns`: none was, so the wait was above the device.
    pub full_wait_above_ns: u64,
    /// Of `some_wait_ns`: a request was at a device.
    pub some_wait_at_device_ns: u64,
}

/// What did not fit into the maps.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Lost {
    /// Calls on files beyond the 16,384 (65,536 pairs of file and call) there is room for; they are in
    /// `without_file`.
    pub calls: u64,
    /// Operations of io_uring or requests at devices beyond the 32,768 in flight there is room for.
    pub operations: u64,
}

/// One file.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct File {
    /// Its path as the program saw it; `...` for outer names that were left out.
    pub path: String,
    /// Its device as major:minor, and its inode.
    pub device_number: String,
    /// Its inode.
    pub inode: u64,
    /// How long threads stood still for it, added up.
    pub wait_ns: u64,
    /// As a share of `wait_sum_ns`.
    pub wait_share: f64,
    /// What its calls moved.
    pub bytes: u64,
    /// Calls and operations under way at once, at most.
    pub concurrency_max: u64,
    /// The mean, while at least one was under way.
    pub concurrency_mean: f64,
    /// What the device read for it; bytes that came with readahead are in it.
    pub device_read_bytes: u64,
    /// What the device wrote for it.
    pub device_written_bytes: u64,
    /// Requests at the device.
    pub device_requests: u64,
    /// The time of these requests at the device, added up.
    pub device_ns: u64,
    /// Their time in the queues above it, added up.
    pub queue_ns: u64,
    /// By call, the longest wait first.
    pub calls: Vec<Call>,
}

/// One kind of call on one file.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Call {
    /// Its kind: `read` stands for read, pread, readv, preadv and preadv2, and so on.
    pub call: String,
    /// How many.
    pub count: u64,
    /// What they moved; a page for each page fault.
    pub bytes: u64,
    /// How long threads stood still in them.
    pub wait_ns: u64,
    /// As a share of the report's `wait_sum_ns`.
    pub wait_share: f64,
    /// From entry to return; of ring operations from submission to completion; of page faults the wait.
    pub time_ns: u64,
    /// How many stood still at all; of ring operations how many waits they ended.
    pub waits: u64,
    /// The longest one.
    pub longest_ns: u64,
    /// Those that failed.
    pub errors: u64,
    /// The mean of what was moved by those that moved anything.
    pub mean_bytes: Option<f64>,
    /// By size that was asked for.
    pub sizes: Vec<SizeClass>,
    /// Share that began where an earlier one on the file had ended.
    pub sequential_share: Option<f64>,
    /// Of buffered reads: share that neither waited nor brought pages in.
    pub cache_hit_share: Option<f64>,
    /// Share on descriptors opened with O_DIRECT.
    pub direct_share: Option<f64>,
    /// Of writes: share that returned only when it was durable, because of how the file was opened (O_SYNC, O_DSYNC), of the
    /// call's own flags (RWF_SYNC, RWF_DSYNC), of the file's attribute `S` or of the mount option `sync`.
    pub durable_share: Option<f64>,
}

/// How many calls asked for up to so many bytes (and for more than half of it).
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct SizeClass {
    /// The upper end; the last class, 64 MiB, has none.
    pub up_to_bytes: u64,
    /// How many.
    pub count: u64,
}
