//! The ratios and the gates of the random reads.

use crate::cell::Cell;
use crate::gate::{Bound, Gate};
use crate::report::Experiment;
use crate::statistics::median;

/// The runtimes, and fio, that Forebay's shard must surpass on the CPU-bound device.
const PEERS: &[&str] = &["glommio", "compio", "monoio", "tokio-uring", "fio", "fio-batched"];

/// Sets the ratios of every row and the gates of Forebay's rows.
pub(crate) fn judge(experiment: &mut Experiment, cell: &Cell, device: &str, depth: usize) {
    let bare = cell.values("bare", "iops");
    let batched = cell.values("bare-batched", "iops");
    let limit: Vec<Option<f64>> = if batched.is_empty() {
        bare.clone()
    } else if bare.is_empty() {
        batched.clone()
    } else {
        bare.iter().zip(&batched).map(|(a, b)| Some(a.as_ref()?.max(*b.as_ref()?))).collect()
    };
    let batched_is_better = experiment.get("bare-batched", "iops") > experiment.get("bare", "iops");
    let better = if batched_is_better { "bare-batched" } else { "bare" };
    for row in cell.rows().iter().map(|row| row.name.as_str()) {
        experiment.set_ratio(row, "ratio_to_limit", &cell.ratios_to(row, "iops", &limit));
        experiment.set(row, "ratio_to_better_loop", median(&cell.ratios(row, better, "iops")));
    }
    let spread = cell.spread("bare", "bare-again", "iops");
    let cpu_spread = cell.spread("bare", "bare-again", "cpu_us_per_io");
    experiment.set("bare-again", "a_a_spread", spread);
    experiment.set("bare-again", "a_a_spread_cpu", cpu_spread);
    let has_limit = cell.has(&["bare"]) || cell.has(&["bare-batched"]);
    if let Some(target) = shard_target(device, depth).filter(|_| has_limit) {
        let measured = experiment.get("forebay-shard", "ratio_to_limit");
        let name = format!("{device} depth {depth}: forebay-shard / limit");
        experiment.add_gate("forebay-shard", Gate::new(name, Bound::AtLeast, target, measured, spread));
    }
    if device == "disk" {
        judge_disk(experiment, cell, depth, better, spread, cpu_spread);
    } else {
        for peer in PEERS.iter().filter(|peer| cell.has(&[peer])) {
            let name = format!("{device} depth {depth}: forebay-shard / {peer}");
            let measured = median(&cell.ratios("forebay-shard", peer, "iops"));
            experiment.add_gate("forebay-shard", Gate::new(name, Bound::AtLeast, 1.0, measured, spread));
        }
    }
    judge_tokio(experiment, cell, device, depth, spread, cpu_spread);
    let turns = experiment.get("forebay-shard", "enters_per_turn");
    if turns.is_finite() {
        let name = format!("{device} depth {depth}: forebay-shard system calls per turn");
        experiment.add_gate("forebay-shard", Gate::new(name, Bound::AtMost, 1.0, turns, 0.0));
    }
}

fn shard_target(device: &str, depth: usize) -> Option<f64> {
    match (device, depth) {
        ("disk", 1 | 8 | 32 | 128) => Some(0.98),
        ("zram", 1) => Some(0.95),
        ("zram", 8 | 128) => Some(0.92),
        ("zram", 32) => Some(0.93),
        _ => None,
    }
}

fn judge_disk(
    experiment: &mut Experiment,
    cell: &Cell,
    depth: usize,
    better: &str,
    spread: f64,
    cpu_spread: f64,
) {
    if cell.has(&[better]) {
        let cpu = median(&cell.ratios("forebay-shard", better, "cpu_us_per_io"));
        let name = format!("disk depth {depth}: forebay-shard CPU per I/O / {better}");
        experiment.add_gate("forebay-shard", Gate::new(name, Bound::AtMost, 1.10, cpu, cpu_spread));
    }
    if depth == 32 && cell.has(&["bare"]) {
        let waiting = median(&cell.ratios("forebay-shard", "bare", "iops"));
        let name = "disk depth 32: forebay-shard / bare (the loop that waits for one)";
        experiment.add_gate("forebay-shard", Gate::new(name, Bound::AtLeast, 1.10, waiting, spread));
    }
}

fn judge_tokio(
    experiment: &mut Experiment,
    cell: &Cell,
    device: &str,
    depth: usize,
    spread: f64,
    cpu_spread: f64,
) {
    for (row, ring) in
        [("forebay-tokio", "bare-worker-ring"), ("forebay-tokio-current", "bare-worker-ring-current")]
    {
        if cell.has(&[ring]) {
            judge_beside_ring(experiment, cell, device, depth, row, ring);
        }
        if depth == 128 && cell.has(&["tokio-spawn-blocking"]) {
            let name = format!("{device} depth 128: {row} CPU per I/O / tokio-spawn-blocking");
            let measured = median(&cell.ratios(row, "tokio-spawn-blocking", "cpu_us_per_io"));
            experiment.add_gate(row, Gate::new(name, Bound::AtMost, 0.4, measured, cpu_spread));
        }
        if depth == 1 && cell.has(&["tokio-spawn-blocking"]) {
            let name = format!("{device} depth 1: {row} / tokio-spawn-blocking");
            let measured = median(&cell.ratios(row, "tokio-spawn-blocking", "iops"));
            experiment.add_gate(row, Gate::new(name, Bound::AtLeast, 1.0, measured, spread));
        }
    }
    if cell.has(&["forebay-read-many", "forebay-shard"]) {
        let name = format!("{device}: 20,000 ranges as one read_many / forebay-shard");
        let measured = median(&cell.ratios("forebay-read-many", "forebay-shard", "iops"));
        experiment.add_gate("forebay-read-many", Gate::new(name, Bound::AtLeast, 0.97, measured, spread));
        // A batch may allocate its own result; a thousandth of an allocation a range is twenty for the whole batch.
        let name = format!("{device}: allocations per range of read_many");
        let measured = experiment.get("forebay-read-many", "allocations_per_io");
        experiment.add_gate("forebay-read-many", Gate::new(name, Bound::AtMost, 0.001, measured, 0.0));
    }
}

/// A task's reads beside those of a ring that the worker itself fills. Where a device completes at once, the processor time of the path
/// shows best at low depth, and the rate at high depth.
fn judge_beside_ring(
    experiment: &mut Experiment,
    cell: &Cell,
    device: &str,
    depth: usize,
    row: &str,
    ring: &str,
) {
    let spread = cell.spread("bare-worker-ring", "bare-worker-ring-again", "iops");
    let cpu_spread = cell.spread("bare-worker-ring", "bare-worker-ring-again", "cpu_us_per_io");
    if device == "disk" || depth >= 32 {
        let target = if device == "disk" { 0.95 } else { 0.90 };
        let name = format!("{device} depth {depth}: {row} / {ring}");
        let measured = median(&cell.ratios(row, ring, "iops"));
        experiment.add_gate(row, Gate::new(name, Bound::AtLeast, target, measured, spread));
    }
    if device == "disk" {
        let name = format!("disk depth {depth}: {row} CPU per I/O / {ring}");
        let measured = median(&cell.ratios(row, ring, "cpu_us_per_io"));
        experiment.add_gate(row, Gate::new(name, Bound::AtMost, 1.10, measured, cpu_spread));
    } else if depth < 32 {
        let name = format!("{device} depth {depth}: {row} CPU per I/O more than {ring}, us");
        let more = experiment.get(row, "cpu_us_per_io") - experiment.get(ring, "cpu_us_per_io");
        experiment.add_gate(row, Gate::new(name, Bound::AtMost, 0.7, more, 0.0));
    }
}
