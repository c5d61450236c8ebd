//! Builds the report from the totals.

use std::collections::BTreeMap;

use super::{Call, DeviceRates, DeviceTime, File, LostEvents, Method, Pressure, Report, SizeClass};
use crate::calls;
use crate::layout::{CallStats, Clock, FileKey, FileState, SIZES};
use crate::object::Totals;
use crate::pressure::StallTotals;

/// Row of waits that no other row has: of calls beyond the limits, or in flight at the end.
pub(crate) const NOT_TOLD: &str = "not known";

/// The parts that the report is made of.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) command: Vec<String>,
    pub(crate) pid: u32,
    pub(crate) wall_ns: u64,
    pub(crate) stalled: Option<StallTotals>,
    pub(crate) notes: Vec<String>,
    pub(crate) misses_rings: bool,
}

pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) }
}

impl Report {
    /// Builds a report from the tracepoints' totals.
    pub(crate) fn new(parts: Parts, totals: Totals) -> Self {
        let clock = &totals.clock;
        let [some, full, some_device, full_device] = clock.maybe;
        let unseen = unseen(clock, parts.misses_rings);
        let mut report = Self::empty(parts, Method::Tracepoints);
        report.unseen = unseen;
        // A command that was ended before it executed its program has not started.
        let wall = if clock.begun == 0 { 0 } else { clock.ended.saturating_sub(clock.begun) };
        report.wall_ns = wall;
        report.full_wait_ns = clock.full_ns + full.taken_ns;
        report.some_wait_ns = clock.some_ns + some.taken_ns;
        report.maybe_full_wait_ns = full.open_ns();
        report.maybe_some_wait_ns = some.open_ns();
        report.wait_sum_ns = clock.wait_sum_ns;
        report.iowait = Pressure::of(clock.some_iowait_ns, clock.full_iowait_ns, wall);
        report.device = Some(DeviceTime {
            busy_ns: clock.device_ns,
            full_wait_at_device_ns: clock.full_device_ns + full_device.taken_ns,
            full_wait_above_ns: (clock.full_ns + full.taken_ns)
                .saturating_sub(clock.full_device_ns + full_device.taken_ns),
            some_wait_at_device_ns: clock.some_device_ns + some_device.taken_ns,
            maybe_full_wait_at_device_ns: full_device.open_ns(),
        });
        report.threads = clock.threads;
        report.processes = clock.processes;
        report.lost = LostEvents { calls: clock.lost_files, operations: clock.lost_ops };
        report.add_calls(totals);
        report.complete()
    }

    /// Returns the full wait with what may be one.
    pub(crate) fn full_at_most_ns(&self) -> u64 {
        self.full_wait_ns + self.maybe_full_wait_ns
    }

    /// Returns the part of that with a request at a device, which is all that a faster one can shorten.
    pub(crate) fn at_device_at_most_ns(&self) -> u64 {
        self.device.map_or(self.full_at_most_ns(), |device| {
            device.full_wait_at_device_ns + device.maybe_full_wait_at_device_ns
        })
    }

    /// Builds a report from the cgroup's figures alone.
    pub(crate) fn of_pressure(parts: Parts) -> Self {
        let stalled = parts.stalled.unwrap_or_default();
        let mut report = Self::empty(parts, Method::Pressure);
        report.full_wait_ns = stalled.full_ns;
        report.some_wait_ns = stalled.some_ns;
        report.iowait = Pressure::of(stalled.some_ns, stalled.full_ns, report.wall_ns);
        report.unseen.push("io.pressure has only the waits that the kernel calls iowait".to_owned());
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
            maybe_full_wait_ns: 0,
            maybe_full_wait_share: 0.0,
            maybe_some_wait_ns: 0,
            maybe_some_wait_share: 0.0,
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
            lost: LostEvents::default(),
            unseen: Vec::new(),
        }
    }

    fn complete(mut self) -> Self {
        self.full_wait_share = share(self.full_wait_ns, self.wall_ns);
        self.some_wait_share = share(self.some_wait_ns, self.wall_ns);
        self.maybe_full_wait_share = share(self.maybe_full_wait_ns, self.wall_ns);
        self.maybe_some_wait_share = share(self.maybe_some_wait_ns, self.wall_ns);
        self.pressure = self.pressure.map(|psi| Pressure::of(psi.some_ns, psi.full_ns, self.wall_ns));
        self.advice = crate::advice::of(&self, &[]);
        self
    }

    /// Computes the advice again, with the measured rates of devices.
    pub fn advise(&mut self, served: &[DeviceRates]) {
        self.advice = crate::advice::of(self, served);
    }

    fn add_calls(&mut self, totals: Totals) {
        let mut files: BTreeMap<FileKey, File> = BTreeMap::new();
        // Shares are of one total: the waits of all rows, and the waits that no row has. The clock stops at
        // the last moment that anything changed, so rows may have a little more than it.
        let told: u64 = totals.calls.values().map(|stats| stats.wait_ns).sum();
        self.wait_sum_ns = self.wait_sum_ns.max(told);
        let rest = CallStats { wait_ns: self.wait_sum_ns - told, ..CallStats::default() };
        if rest.wait_ns > 0 {
            let call = Call::new(0, false, &rest, self.wait_sum_ns);
            self.without_file.push(Call { call: NOT_TOLD.to_owned(), ..call });
        }
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

fn unseen(clock: &Clock, misses_rings: bool) -> Vec<String> {
    let mut unseen = Vec::new();
    if misses_rings {
        unseen.push("operations of io_uring cannot be followed on this kernel".to_owned());
    }
    if clock.lost_ops > 0 {
        unseen.push(format!("there was no room to follow {} operations or requests", clock.lost_ops));
    }
    if clock.unseen_ops > 0 {
        unseen.push(format!(
            "{} operations of io_uring or libaio could not be followed to their end",
            clock.unseen_ops
        ));
    }
    unseen
}

fn named(key: FileKey, totals: &Totals) -> File {
    let state = totals.files.get(&key).cloned().unwrap_or_default();
    // The file of an open, or of libaio's events, is known only when the call ends, so it is not in the busy time either.
    let time: u64 = totals
        .calls
        .range((key, 0)..=(key, u32::MAX))
        .filter(|((_, row), _)| !matches!(*row, calls::row::OPEN | calls::row::AIO))
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
            durable_share: of(stats.durable, moved)
                .filter(|_| matches!(row, calls::row::WRITE | calls::row::RING_WRITE)),
        }
    }

    /// Returns the size that more than half of the calls requested, as the upper end of its class.
    pub(crate) fn usual_bytes(&self) -> Option<u64> {
        let all: u64 = self.sizes.iter().map(|class| class.count).sum();
        self.sizes.iter().find(|class| class.count * 2 > all).map(|class| class.up_to_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the shares of files and calls were of a total that they did not add up to: 94 % in one
    /// run, 103 % in another.
    #[test]
    fn shares_are_of_one_total() {
        let key = |ino| FileKey { ino, ..FileKey::default() };
        let waits = |ns| CallStats { wait_ns: ns, count: 1, ..CallStats::default() };
        for clock_ns in [900, 1000, 1300] {
            let mut totals = Totals::default();
            totals.clock.wait_sum_ns = clock_ns;
            totals.calls.insert((key(1), calls::row::READ), waits(600));
            totals.calls.insert((key(1), calls::row::FAULT), waits(150));
            totals.calls.insert((key(2), calls::row::SYNC), waits(150));
            totals.calls.insert((FileKey::default(), calls::row::EXEC), waits(100));
            let report = Report::new(Parts::default(), totals);
            assert_eq!(report.wait_sum_ns, clock_ns.max(1000));
            let files: f64 = report.files.iter().map(|file| file.wait_share).sum();
            let calls = report.files.iter().flat_map(|file| &file.calls).chain(&report.without_file);
            let without: f64 = report.without_file.iter().map(|call| call.wait_share).sum();
            let calls: f64 = calls.map(|call| call.wait_share).sum();
            assert!((files + without - 1.0).abs() < 1e-9, "{clock_ns}: {files} and {without}");
            assert!((calls - 1.0).abs() < 1e-9, "{clock_ns}: {calls}");
        }
    }
}
