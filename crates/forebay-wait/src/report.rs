//! What was measured, as it stands in JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::calls;
use crate::layout::{CallStats, FileKey, FileState, SIZES};
use crate::object::Totals;
use crate::pressure::Stalled;

/// How long a program stood still for I/O, and for what. All times are nanoseconds, all shares are between 0 and 1.
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
    /// Calls on files beyond the 16,384 (65,536 pairs of file and call) there is room for; they are in `without_file`.
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

/// Of what the report is made.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) command: Vec<String>,
    pub(crate) pid: u32,
    pub(crate) wall_ns: u64,
    pub(crate) stalled: Option<Stalled>,
    pub(crate) notes: Vec<String>,
}

pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) }
}

impl Report {
    /// Of the tracepoints' totals.
    pub(crate) fn new(parts: Parts, totals: Totals) -> Self {
        let clock = &totals.clock;
        let mut report = Self::empty(parts, Method::Tracepoints);
        let wall = clock.ended.saturating_sub(clock.begun);
        report.wall_ns = wall;
        report.full_wait_ns = clock.full_ns;
        report.some_wait_ns = clock.some_ns;
        report.wait_sum_ns = clock.wait_sum_ns;
        report.iowait = Pressure::of(clock.some_iowait_ns, clock.full_iowait_ns, wall);
        report.device = Some(DeviceTime {
            busy_ns: clock.device_ns,
            full_wait_at_device_ns: clock.full_device_ns,
            full_wait_above_ns: clock.full_ns.saturating_sub(clock.full_device_ns),
            some_wait_at_device_ns: clock.some_device_ns,
        });
        report.threads = clock.threads;
        report.processes = clock.processes;
        report.lost = Lost { calls: clock.lost_files, operations: clock.lost_ops };
        report.add_calls(totals);
        report.complete()
    }

    /// Of the cgroup's figures alone.
    pub(crate) fn of_pressure(parts: Parts) -> Self {
        let stalled = parts.stalled.unwrap_or_default();
        let mut report = Self::empty(parts, Method::Pressure);
        report.full_wait_ns = stalled.full_ns;
        report.some_wait_ns = stalled.some_ns;
        report.iowait = Pressure::of(stalled.some_ns, stalled.full_ns, report.wall_ns);
        report.complete()
    }

    fn empty(parts: Parts, method: Method) -> Self {
        Self {
            command: parts.command,
            pid: parts.pid,
            exit_code: None,
            signal: None,
            method,
            wall_ns: parts.wall_ns,
            full_wait_ns: 0,
            full_wait_share: 0.0,
            some_wait_ns: 0,
            some_wait_share: 0.0,
            wait_sum_ns: 0,
            iowait: Pressure::default(),
            pressure: parts.stalled.map(|stalled| Pressure::of(stalled.some_ns, stalled.full_ns, 0)),
            device: None,
            threads: 0,
            processes: 0,
            files: Vec::new(),
            without_file: Vec::new(),
            advice: Vec::new(),
            notes: parts.notes,
            lost: Lost::default(),
        }
    }

    fn complete(mut self) -> Self {
        self.full_wait_share = share(self.full_wait_ns, self.wall_ns);
        self.some_wait_share = share(self.some_wait_ns, self.wall_ns);
        self.pressure = self.pressure.map(|psi| Pressure::of(psi.some_ns, psi.full_ns, self.wall_ns));
        self.advice = crate::advice::of(&self);
        self
    }

    fn add_calls(&mut self, totals: Totals) {
        let mut files: BTreeMap<FileKey, File> = BTreeMap::new();
        for ((key, row), stats) in &totals.calls {
            let call = Call::new(*row, *key != FileKey::default(), stats, self.wait_sum_ns);
            if call.count == 0 && call.wait_ns == 0 {
                continue;
            }
            if *key == FileKey::default() {
                self.without_file.push(call);
                continue;
            }
            files.entry(*key).or_insert_with(|| named(*key, &totals)).add(call);
        }
        self.files = files.into_values().collect();
        for file in &mut self.files {
            file.wait_share = share(file.wait_ns, self.wait_sum_ns);
            file.calls.sort_by_key(|call| std::cmp::Reverse(call.wait_ns));
        }
        self.files.sort_by_key(|file| (std::cmp::Reverse(file.wait_ns), std::cmp::Reverse(file.bytes)));
        self.without_file.sort_by_key(|call| std::cmp::Reverse(call.wait_ns));
    }
}

fn named(key: FileKey, totals: &Totals) -> File {
    let state = totals.files.get(&key).cloned().unwrap_or_default();
    // Which file an open is about is known when it ends, so it is not in the busy time either.
    let time: u64 = totals
        .calls
        .range((key, 0)..=(key, u32::MAX))
        .filter(|((_, row), _)| *row != calls::row::OPEN)
        .map(|(_, stats)| stats.time_ns)
        .sum();
    // The kernel's own numbering: 12 bits of major above 20 of minor.
    let device_number = format!("{}:{}", key.dev >> 20, key.dev & 0xf_ffff);
    let FileState { busy_ns, device_ns, queue_ns, .. } = state;
    let unnamed = || format!("(inode {} on {device_number})", key.ino);
    File {
        path: totals.names.get(&key).cloned().unwrap_or_else(unnamed),
        inode: key.ino,
        concurrency_max: state.most,
        concurrency_mean: if busy_ns == 0 { 0.0 } else { (time as f64 / busy_ns as f64).max(1.0) },
        device_read_bytes: state.device_read_bytes,
        device_written_bytes: state.device_written_bytes,
        device_requests: state.device_requests,
        device_ns,
        queue_ns,
        device_number,
        ..File::default()
    }
}

impl Pressure {
    fn of(some_ns: u64, full_ns: u64, wall_ns: u64) -> Self {
        Self { some_ns, full_ns, some_share: share(some_ns, wall_ns), full_share: share(full_ns, wall_ns) }
    }
}

impl File {
    fn add(&mut self, call: Call) {
        self.wait_ns += call.wait_ns;
        self.bytes += call.bytes;
        self.calls.push(call);
    }
}

impl Call {
    fn new(row: u32, has_file: bool, stats: &CallStats, wait_sum_ns: u64) -> Self {
        let moved: u64 = stats.sizes.iter().sum();
        let classes = (0..SIZES).zip(stats.sizes).filter(|(_, count)| *count > 0);
        let of = |part: u64, whole: u64| (whole > 0).then(|| share(part, whole));
        Self {
            call: calls::name(row, has_file).to_owned(),
            count: stats.count,
            bytes: stats.bytes,
            wait_ns: stats.wait_ns,
            wait_share: share(stats.wait_ns, wait_sum_ns),
            time_ns: stats.time_ns,
            waits: stats.waits,
            longest_ns: stats.longest_ns,
            errors: stats.errors,
            mean_bytes: (moved > 0).then(|| stats.bytes as f64 / moved as f64),
            sizes: classes.map(|(class, count)| SizeClass { up_to_bytes: 512 << class, count }).collect(),
            sequential_share: of(stats.sequential, stats.placed),
            cache_hit_share: of(stats.hits, stats.buffered),
            direct_share: of(stats.direct, moved),
        }
    }

    /// The size that more than half of the calls asked for, as the upper end of its class.
    pub(crate) fn usual_bytes(&self) -> Option<u64> {
        let all: u64 = self.sizes.iter().map(|class| class.count).sum();
        self.sizes.iter().find(|class| class.count * 2 > all).map(|class| class.up_to_bytes)
    }
}
