//! `nop`: IORING_OP_NOP at depth 32, bare and through the whole path of Forebay: the cost of the path,
//! without any device's noise.

use forebay_measure::experiment::Place;

use crate::peers::{bare, forebay};
use crate::prelude::*;

/// The experiment.
pub(crate) static NOP: Versus = Versus { spec: &SPEC, targets: &TARGETS, plan, sample, title };

static SPEC: Spec = spec(
    "nop",
    "Operations that do nothing: what the path itself costs",
    &[
        Opt::count("depth", "Operations in flight (tasks on the shard)", 4096).or("32"),
        Opt::count("operations", "Operations of a sample", 1 << 40).or("3000000"),
        Opt::count("repeats", "Interleaved repeats", 1000).or("11"),
    ],
    &[
        Way::direct("bare", "a loop on the io-uring crate"),
        Way::direct("bare-again", "the same, for the A-A spread"),
        Way::direct("forebay-shard", "tasks on a shard that await engine.nop()"),
    ],
    &[
        column("ns_per_operation", "ns/op", 1.0, "nanoseconds of an operation"),
        column(
            "ns_above_bare",
            "above bare",
            1.0,
            "nanoseconds more than in the bare loop of the same repeat",
        ),
    ],
    "ns_above_bare",
);

static TARGETS: Targets = Targets {
    ranked_by: "",
    ratios: &[Ratio { name: "ns_above_bare", metric: "ns_per_operation", beside: Beside::Above(&["bare"]) }],
    spreads: &[],
    // The most that the path may cost, in nanoseconds an operation.
    limits: &[Target::of("forebay-shard", "ns_per_operation")
        .above(&["bare"])
        .at_most(50.0)
        .within("bare-again")],
};

fn title(table: &Table) -> String {
    let count = |name| table.number(name).unwrap_or(0.0);
    format!("IORING_OP_NOP, {} in flight, {} operations", count("depth"), count("operations"))
}

fn plan<'c>(options: &Values, context: &'c Context) -> Result<Run<'c>> {
    let place = Place { path: ".".into(), file_system: "none".to_owned(), device_stat: None };
    let work = json!({ "depth": options.count("depth"), "operations": options.count("operations") });
    let method = "Each sample is a process of its own; a tenth of the operations go before, to warm up. Rows take turns \
        within a repeat; differences are those of the same repeat, and figures medians.";
    Ok(Run::new(context, place, vec![parameters(work)], method))
}

#[derive(Debug, Deserialize)]
struct Work {
    depth: usize,
    operations: u64,
}

fn sample(job: &Job) -> Result<Outcome> {
    let Work { depth, operations } = job.work()?;
    let mut outcome = match without_again(&job.row) {
        "bare" => {
            bare::nop(depth, operations / 10)?;
            let ns = bare::nop(depth, operations)?;
            let mut outcome = Outcome::lasting(ns * operations as f64 / 1e9);
            outcome.figures.set("ns_per_operation", ns);
            outcome
        }
        "forebay-shard" => forebay::nop(depth, operations)?,
        other => return Err(no_row(other)),
    };
    outcome.figures.set("operations", operations as f64);
    Ok(outcome)
}
