//! `nop`: IORING_OP_NOP at depth 32, bare and through the whole path of Forebay: the cost of the path,
//! without any device's noise.

use anyhow::{Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cell::Cell;
use crate::child::{self, Job};
use crate::cli::Common;
use crate::gate::{Bound, Gate};
use crate::peers::{bare, forebay};
use crate::report::{Document, Experiment};
use crate::sample::Sample;
use crate::statistics::{median, quantile};

/// All rows, in the order of the table.
const ROWS: &[&str] = &["bare", "bare-again", "forebay-shard"];

/// The most that the path may cost, in nanoseconds per operation.
const ALLOWANCE_NS: f64 = 50.0;

const COLUMNS: &[(&str, &str, usize)] = &[
    ("ns_per_operation", "ns/op", 1),
    ("ns_above_bare", "above bare", 1),
    ("ns_above_bare_min", "min", 1),
    ("ns_above_bare_max", "max", 1),
];

/// Options of `nop`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Operations in flight (tasks on the shard).
    #[arg(long, default_value_t = 32)]
    depth: usize,
    /// Operations per sample.
    #[arg(long, default_value_t = 3_000_000)]
    operations: u64,
    /// Interleaved repeats.
    #[arg(long, default_value_t = 11)]
    repeats: usize,
}

/// The measurement of a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NopJob {
    row: String,
    depth: usize,
    operations: u64,
}

/// Runs the experiment.
///
/// # Errors
/// When interrupted.
pub(crate) fn run(options: &Options) -> Result<usize> {
    let rows = options.common.choose(ROWS)?;
    let cell = Cell::run("nop", &rows, options.repeats, |row| {
        let job = NopJob { row: row.to_owned(), depth: options.depth, operations: options.operations };
        child::measure(&Job::Nop(job), None)
    })?;
    let parameters =
        json!({ "depth": options.depth, "operations": options.operations, "repeats": options.repeats });
    let parameters = parameters.as_object().cloned().unwrap_or_default();
    let mut experiment = Experiment::new("nop", parameters, cell.rows());
    for row in &rows {
        experiment.set_ratio(row, "ns_above_bare", &cell.differences(row, "bare", "ns_per_operation"));
    }
    if cell.has(&["forebay-shard", "bare"]) {
        let above = cell.differences("forebay-shard", "bare", "ns_per_operation");
        let again = cell.differences("bare-again", "bare", "ns_per_operation");
        let spread = if again.is_empty() {
            0.0
        } else {
            quantile(&again, 0.25).abs().max(quantile(&again, 0.75).abs())
        };
        let name = format!("nop depth {}: forebay-shard, ns above bare", options.depth);
        let tolerance = spread.min(ALLOWANCE_NS / 10.0);
        let gate = Gate::with_tolerance(name, Bound::AtMost, ALLOWANCE_NS, median(&above), tolerance);
        experiment.add_gate("forebay-shard", gate);
    }
    let title = format!(
        "IORING_OP_NOP, {} in flight: medians of {} x {} operations",
        options.depth, options.repeats, options.operations
    );
    experiment.print(&title, COLUMNS);
    let mut document = Document::new();
    document.push(experiment);
    options.common.write_json(&document)?;
    document.summarise()
}

/// Measures one sample in this process. A tenth of the operations go before, to warm up.
///
/// # Errors
/// The error of the row.
pub(crate) fn measure(job: &NopJob) -> Result<Sample> {
    let mut sample = match job.row.as_str() {
        "bare" | "bare-again" => {
            bare::nop(job.depth, job.operations / 10)?;
            let mut sample = Sample::default();
            sample.set("ns_per_operation", bare::nop(job.depth, job.operations)?);
            sample
        }
        "forebay-shard" => forebay::nop(job.depth, job.operations)?,
        other => bail!("there is no row {other}"),
    };
    sample.set("operations", job.operations as f64);
    Ok(sample)
}
