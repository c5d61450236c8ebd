//! `nop`: IORING_OP_NOP at depth 32, bare and through the whole path of Forebay: the cost of the path,
//! without any device's noise.

use forebay_measure::experiment::Place;

use crate::peers::{bare, forebay};
use crate::prelude::*;

experiment! {
    NOP "nop", "Operations that do nothing: what the path itself costs", compared by "ns_above_bare", per |_| "io";
    options {
        count("depth", "Operations in flight (tasks on the shard)", 4096).or("32");
        count("operations", "Operations of a sample", 1 << 40).or("3000000");
        count("repeats", "Interleaved repeats", 1000).or("11");
    }
    rows {
        direct "bare", "a loop on the io-uring crate" => bare, twin direct;
        direct "forebay-shard", "tasks on a shard that await engine.nop()"
            => |work| Ok(forebay::nop(work.depth, work.operations)?.figure("operations", work.operations as f64));
    }
    columns {
        "ns_per_operation" "ns/op", "nanoseconds of an operation";
        "ns_above_bare" "above bare", "nanoseconds more than in the bare loop of the same repeat";
    }
    ranked by ""
    ratios { "ns_above_bare" "ns_per_operation" Above &["bare"]; }
    spreads {}
    limits {
        // The most that the path may cost, in nanoseconds an operation.
        "forebay-shard" "ns_per_operation" above &["bare"], at_most 50.0, within "bare-again";
    }
}

fn title(table: &Table) -> String {
    let count = |name| table.number(name).unwrap_or(0.0);
    format!("IORING_OP_NOP, {} in flight, {} operations", count("depth"), count("operations"))
}

fn plan<'c>(options: &Values, context: &'c Context) -> Result<Run<'c>> {
    let (path, file_system) = (".".into(), "none".to_owned());
    let place = Place { path, file_system, device_stat: None, conditions: Vec::new() };
    let work = json!({ "depth": options.count("depth"), "operations": options.count("operations") });
    let method = "Each sample is a process of its own; a tenth of the operations go before, to warm up. Rows take turns \
        within a repeat; differences are those of the same repeat, and figures medians.";
    let mut run = Run::new(context, place, method);
    run.table(work);
    Ok(run)
}

fn bare(work: &Work) -> Result<Outcome> {
    bare::nop(work.depth, work.operations / 10)?;
    let (ns, operations) = (bare::nop(work.depth, work.operations)?, work.operations as f64);
    let outcome = Outcome::lasting(ns * operations / 1e9);
    Ok(outcome.figure("ns_per_operation", ns).figure("operations", operations))
}
