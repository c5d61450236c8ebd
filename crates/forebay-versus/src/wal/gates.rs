//! The ratios and the gates of the logs.

use crate::cell::Cell;
use crate::gate::{Bound, Gate};
use crate::report::Experiment;
use crate::statistics::median;

/// How much longer an append from Tokio may take than a write and a flush on one thread, in microseconds.
const HOPS_US: f64 = 25.0;
/// The device's work for an append that is alone: a write and a flush, and rarely a change of segment.
const DEVICE_WRITES: f64 = 2.1;
/// The processor time of an append among many, in microseconds.
const CPU_US: f64 = 10.0;
/// A change of segment allocates a few dozen times, once in a quarter of a million records of 256 B; nothing else may.
const ALLOCATIONS: f64 = 0.001;

/// Sets the ratios of every row and the gates of Forebay's rows.
pub(crate) fn judge(experiment: &mut Experiment, cell: &Cell, writers: usize, record_bytes: usize) {
    let (first, again, other) = match writers {
        1 => ("alone", "alone-again", "alone-fdatasync"),
        _ => ("bare", "bare-again", "bare-fdatasync"),
    };
    // The limit is the way to flush that has the better median, the same one for the whole cell.
    let other_is_better = experiment.get(other, "appends_per_s") > experiment.get(first, "appends_per_s");
    let limit = if other_is_better || !cell.has(&[first]) { other } else { first };
    for row in cell.rows().iter().map(|row| row.name.as_str()) {
        experiment.set_ratio(row, "ratio_to_limit", &cell.ratios(row, limit, "appends_per_s"));
        let p50 = median(&cell.differences(row, limit, "p50_us"));
        experiment.set(row, "p50_us_above_limit", p50);
    }
    let spread = |metric| cell.spread(first, again, metric);
    experiment.set(again, "a_a_spread", spread("appends_per_s"));
    experiment.set(again, "a_a_spread_p99", spread("p99_us"));
    let label = format!("{writers} x {record_bytes} B");
    let judge = Judge { cell, limit, label: &label };
    if writers == 1 {
        judge.one(experiment, spread("p50_us"));
    } else if writers == 64 {
        judge.many(experiment, record_bytes, spread("appends_per_s"), spread("p99_us"));
    }
}

struct Judge<'c> {
    cell: &'c Cell,
    limit: &'c str,
    label: &'c str,
}

impl Judge<'_> {
    fn many(&self, experiment: &mut Experiment, record_bytes: usize, spread: f64, spread_p99: f64) {
        let Self { cell, limit, label } = self;
        if cell.has(&["forebay", limit]) {
            let measured = experiment.get("forebay", "ratio_to_limit");
            let name = format!("{label}: forebay / {limit}");
            experiment.add_gate("forebay", Gate::new(name, Bound::AtLeast, 0.95, measured, spread));
            let measured = median(&cell.ratios("forebay", limit, "p99_us"));
            let name = format!("{label}: p99 of forebay / {limit}");
            experiment.add_gate("forebay", Gate::new(name, Bound::AtMost, 1.15, measured, spread_p99));
        }
        let blocking = experiment.get("raft-engine-blocking", "appends_per_s");
        let peer = if blocking > experiment.get("raft-engine", "appends_per_s") {
            "raft-engine-blocking"
        } else {
            "raft-engine"
        };
        let times = match record_bytes {
            256 => Some(1.4),
            4096 => Some(1.9),
            _ => None,
        };
        if let Some(times) = times.filter(|_| cell.has(&["forebay", peer])) {
            let measured = median(&cell.ratios("forebay", peer, "appends_per_s"));
            let name = format!("{label}: forebay / {peer}");
            experiment.add_gate("forebay", Gate::new(name, Bound::AtLeast, times, measured, spread));
        }
        let cpu = experiment.get("forebay", "cpu_us_per_append");
        let name = format!("{label}: CPU us per append of forebay");
        experiment.add_gate("forebay", Gate::new(name, Bound::AtMost, CPU_US, cpu, 0.0));
        if record_bytes == 256 {
            for row in ["forebay", "forebay-shard"] {
                let measured = experiment.get(row, "allocations_per_append");
                let name = format!("{label}: allocations per append on the shard of {row}");
                experiment.add_gate(row, Gate::new(name, Bound::AtMost, ALLOCATIONS, measured, 0.0));
            }
        }
    }

    fn one(&self, experiment: &mut Experiment, spread_p50: f64) {
        let Self { cell, limit, label } = self;
        if cell.has(&["forebay-shard", limit]) {
            let measured = median(&cell.ratios("forebay-shard", limit, "p50_us"));
            let name = format!("{label}: p50 of forebay-shard / {limit}");
            experiment.add_gate("forebay-shard", Gate::new(name, Bound::AtMost, 1.05, measured, spread_p50));
        }
        if cell.has(&["forebay", limit]) {
            let measured = experiment.get("forebay", "p50_us_above_limit");
            let name = format!("{label}: p50 of forebay, us above {limit}");
            experiment.add_gate("forebay", Gate::new(name, Bound::AtMost, HOPS_US, measured, 0.0));
        }
        for row in ["forebay", "forebay-shard"] {
            let measured = experiment.get(row, "device_writes_per_append");
            let name = format!("{label}: device writes per append of {row}");
            experiment.add_gate(row, Gate::new(name, Bound::AtMost, DEVICE_WRITES, measured, 0.0));
        }
    }
}
