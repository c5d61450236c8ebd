//! The ratios and the gates of the batch.

use super::{Cache, Shape};
use crate::cell::Cell;
use crate::gate::{Bound, Gate};
use crate::report::Experiment;
use crate::statistics::median;

/// Sets the ratios of every row, and the gates of held results, and for a cold batch those of the stream. A warm stream is
/// shown, whichever row is faster.
pub(crate) fn judge(experiment: &mut Experiment, cell: &Cell, shape: Shape, cache: Cache) {
    for row in cell.rows().iter().map(|row| row.name.as_str()) {
        let times: Vec<f64> = cell.values(row, "total_ms").into_iter().flatten().collect();
        experiment.set_ratio(row, "total_ms", &times);
        let faster = cell.ratios("tokio-fs-sequential", row, "total_ms");
        experiment.set_ratio(row, "times_faster_than_sequential", &faster);
    }
    let spread = cell.spread("tokio-fs-sequential", "tokio-fs-sequential-again", "total_ms");
    let cpu_spread = cell.spread("tokio-fs-sequential", "tokio-fs-sequential-again", "cpu_ms");
    experiment.set("tokio-fs-sequential-again", "a_a_spread", spread);
    let allocations = experiment.get("read_many", "allocations_per_range");
    if allocations.is_finite() {
        // One batch of a fresh process: opening the file and tables that grow by doubling are in it, which is some hundred
        // allocations. The steady state has a gate of its own in `random`.
        let name = format!("{}: read_many allocations per range", shape.name());
        experiment.add_gate("read_many", Gate::new(name, Bound::AtMost, 0.05, allocations, 0.0));
    }
    held(experiment, cell, shape, cache, spread);
    if cache != Cache::Cold {
        return;
    }
    let mut targets = vec![("tokio-fs-sequential", 3.0), ("mmap", 1.0)];
    match shape {
        Shape::Uniform => targets.push(("tokio-fs-tasks", 1.2)),
        Shape::Clustered => targets.push(("tokio-fs-tasks", 2.0)),
        Shape::Mixed | Shape::Records => {}
    }
    for (other, target) in targets {
        if cell.has(&["read_many", other]) {
            let measured = median(&cell.ratios(other, "read_many", "total_ms"));
            let name = format!("cold {}: read_many, times faster than {other}", shape.name());
            experiment.add_gate("read_many", Gate::new(name, Bound::AtLeast, target, measured, spread));
        }
    }
    if cell.has(&["read_many", "tokio-fs-tasks"]) {
        let measured = median(&cell.ratios("read_many", "tokio-fs-tasks", "cpu_ms"));
        let name = format!("cold {}: read_many CPU / tokio-fs-tasks", shape.name());
        experiment.add_gate("read_many", Gate::new(name, Bound::AtMost, 0.5, measured, cpu_spread));
    }
}

/// Sets the gates of batches that hold all their results.
fn held(experiment: &mut Experiment, cell: &Cell, shape: Shape, cache: Cache, spread: f64) {
    let name = |what: &str| format!("{} {}: {what}", cache.name(), shape.name());
    if cell.has(&["read_many-adaptive", "read_many-collect", "read_many-buffered"]) {
        let to = |row| median(&cell.ratios("read_many-adaptive", row, "total_ms"));
        // To the better one: the larger ratio.
        let measured = to("read_many-collect").max(to("read_many-buffered"));
        let gate = Gate::new(
            name("adaptive / the better of direct and buffered"),
            Bound::AtMost,
            1.05,
            measured,
            spread,
        );
        experiment.add_gate("read_many-adaptive", gate);
    }
    if cell.has(&["read_many-adaptive", "object-store-like"]) {
        let measured = median(&cell.ratios("read_many-adaptive", "object-store-like", "total_ms"));
        let target = match cache {
            Cache::Cold => 0.4,
            _ => 1.0,
        };
        let gate = Gate::new(name("adaptive / object-store-like"), Bound::AtMost, target, measured, spread);
        experiment.add_gate("read_many-adaptive", gate);
    }
    if shape == Shape::Records && cell.has(&["read_many", "read_many-collect"]) {
        for metric in ["total_ms", "cpu_ms"] {
            let measured = median(&cell.ratios("read_many-collect", "read_many", metric));
            let what = format!("held / stream, {metric}");
            experiment
                .add_gate("read_many-collect", Gate::new(name(&what), Bound::AtMost, 1.5, measured, spread));
        }
    }
}
