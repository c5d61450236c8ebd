//! Runs the cells of a plan, each in a process of its own and the rows in turn, and builds the tables.

use std::fmt;
use std::time::Instant;

use anyhow::Context as _;

use super::super::gates::Claim;
use super::super::interleave::{Cell, Interleaving, SampleFigures};
use super::super::job::Job;
use super::super::pattern::SplitMix;
use super::super::plan::fit_seconds;
use super::super::sampler::run_child;
use super::super::scratch_dir::ScratchDir;
use super::index_file::IndexFile;
use super::job::{WalkResult, WalkRow, WalkWork};
use super::published::tree_of;
use super::text::{method, notes};
use super::tree::{Tree, fan_out_max};
use crate::context::Context;
use crate::verdicts::interference;
use forebay_report::result::{CacheState, Experiment, Metrics, Row, metric};

/// The rows and settings to measure.
#[derive(Debug)]
pub(super) struct Plan {
    /// Sizes of nodes in bytes, each with a file of its own.
    pub(super) nodes: Vec<u64>,
    pub(super) settings: Vec<Setting>,
    pub(super) rows: Vec<WalkRow>,
    /// `None`: the maximum number of records.
    pub(super) fan_out: Option<u64>,
    pub(super) file_bytes: u64,
    pub(super) in_flight: usize,
    pub(super) as_published: bool,
    pub(super) seconds: f64,
    pub(super) repeats: usize,
}

/// Settings that the rows of one table share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) depth: u64,
    pub(super) threads: usize,
    /// Runs beside a thousand timer tasks.
    pub(super) timers: bool,
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let beside = if self.timers { ", beside timers" } else { "" };
        write!(formatter, ", depth {}{beside}", self.depth)
    }
}

/// Seconds that a sample takes beside its measured time and the overhead of every sample: warming up.
const EXTRA_SECONDS: f64 = 0.1;

/// Measures all sizes of nodes and all settings. Returns one experiment for each pair.
///
/// # Errors
/// The path cannot be used (a [`Failure`](forebay_report::failure::Failure)), or nothing could be measured.
pub(super) fn measure(plan: &Plan, context: &Context) -> anyhow::Result<Vec<Experiment>> {
    let scratch = ScratchDir::find(context, super::KIND.name)?;
    let mut experiments = Vec::new();
    for (done, node_bytes) in plan.nodes.iter().enumerate() {
        experiments.extend(of_node(plan, *node_bytes, plan.nodes.len() - done, &scratch, context)?);
    }
    Ok(experiments)
}

/// Measures all settings on one file. With a budget, it gets an equal share of the time left for
/// `files` files.
fn of_node(
    plan: &Plan,
    node_bytes: u64,
    files: usize,
    scratch: &ScratchDir,
    context: &Context,
) -> anyhow::Result<Vec<Experiment>> {
    let levels = plan.settings.iter().map(|setting| setting.depth).max().unwrap_or(1);
    let tree = Tree {
        node_bytes,
        fan_out: plan.fan_out.unwrap_or(fan_out_max(node_bytes)),
        levels,
        nodes: (plan.file_bytes / (levels * node_bytes)).max(1),
        seed: context.seed,
    };
    let begun = Instant::now();
    let share = context.remaining().map(|remaining| remaining / files as u32);
    let remaining = || share.map(|share| share.saturating_sub(begun.elapsed()));
    // Where each lookup has a file of its own, this file only shows the needs of a direct read.
    let tree = if plan.as_published { tree_of(tree, levels) } else { tree };
    let index_file = IndexFile::make(scratch, tree, context)?;
    let mut cells: Vec<Cell<Setting, WalkRow>> = plan
        .settings
        .iter()
        .flat_map(|setting| {
            // The baseline for the timer tasks.
            let alone = setting.timers.then_some(WalkRow::NoLookups);
            alone.into_iter().chain(plan.rows.iter().copied()).map(|row| Cell::new(*setting, row))
        })
        .collect();
    let fitted = fit_seconds(plan.seconds + EXTRA_SECONDS, cells.len(), remaining());
    let seconds = (fitted - EXTRA_SECONDS).max(plan.seconds.min(0.1));
    let interleaving = Interleaving {
        label: format!("measure walk, nodes of {node_bytes} bytes"),
        repeats: plan.repeats,
        until: remaining().and_then(|left| Instant::now().checked_add(left)),
        place: &scratch.directory,
        context,
    };
    // All rows of a repeat have the same keys; each repeat has different ones.
    let mut seeds = SplitMix::new(context.seed);
    let seeds: Vec<u64> = (0..plan.repeats).map(|_| seeds.next_u64()).collect();
    let done = interleaving.run(&mut cells, |setting, row, repeat| {
        let work = WalkWork {
            row,
            tree: if plan.as_published { tree_of(tree, setting.depth) } else { tree },
            unit_bytes: index_file.unit_bytes,
            depth: setting.depth,
            in_flight: plan.in_flight,
            threads: setting.threads,
            as_published: plan.as_published,
            timers: setting.timers,
            seconds,
            seed: seeds[repeat],
        };
        Ok(sampled(one(scratch, &index_file, &work, context)?, &work))
    })?;
    let conditions = index_file.preconditions.conditions();
    let build = |setting: &Setting| {
        let mut experiment = Experiment::new(super::KIND.name, method(&index_file, *setting, plan, seconds))
            .parameter("depth", setting.depth)
            .parameter("threads", setting.threads)
            .parameter("beside", if setting.timers { "timers" } else { "nothing" })
            .parameter("in_flight", plan.in_flight)
            .parameter("node_bytes", node_bytes)
            .parameter("fan_out", tree.fan_out)
            .parameter("levels", tree.levels)
            .parameter("nodes_per_level", tree.nodes)
            .parameter("file_bytes", tree.file_bytes())
            .parameter("read_bytes", node_bytes.max(index_file.unit_bytes))
            .parameter("seconds", seconds)
            .parameter("repeats", done)
            .parameter("file_system", scratch.filesystem.as_str())
            .parameter("seed", context.seed);
        if let Some(device) = &index_file.device {
            experiment = experiment.parameter("device", device.as_str());
        }
        if plan.as_published {
            experiment = experiment.parameter("as_published", true);
        }
        experiment.notes = notes(plan, done);
        experiment.conditions.clone_from(&conditions);
        let of_this = cells.extract_if(.., |cell| cell.setting == *setting);
        experiment.rows = of_this.map(|cell| build_row(cell, plan.as_published)).collect();
        experiment.notes.extend(interference::own_cost(&experiment, WalkRow::NoLookups.name()));
        experiment
    };
    Ok(plan.settings.iter().map(build).collect())
}

/// Runs one sample in a process of its own.
fn one(
    scratch: &ScratchDir,
    index_file: &IndexFile,
    work: &WalkWork,
    context: &Context,
) -> anyhow::Result<WalkResult> {
    index_file.evict()?;
    let own = work.as_published.then(|| scratch.temp_directory(context, "walk")).transpose()?;
    let place = own.as_ref().map_or(index_file.temp.path(), |own| own.path());
    let mut job = Job::new(super::KIND.name, place, work, work.seconds)?;
    job.device_stat.clone_from(&index_file.device_stat);
    let text = run_child(&job, None, &context.cleanup)?;
    serde_json::from_str(&text).context("the result of the measuring process cannot be read")
}

fn metrics(result: &WalkResult, row: WalkRow, in_flight: usize) -> Metrics {
    let lookups = result.lookups as f64;
    let mut metrics = Metrics::default();
    metrics.set(metric::SECONDS, result.seconds);
    if let Some(late) = result.timers {
        let values = [late.p50_us, late.p99_us, late.p99_9_us, late.max_us];
        for (name, value) in metric::TIMERS_LATE.iter().zip(values) {
            metrics.set(name, value);
        }
        if row == WalkRow::NoLookups {
            // Without lookups, the timer tasks show their own cost.
            metrics.set(metric::TIMERS_CPU_SHARE, result.cpu_seconds / result.seconds);
            return metrics;
        }
    } else {
        // Beside the timers, this would include the timers' own time.
        metrics
            .set(metric::CPU_US_PER_LOOKUP, result.cpu_seconds * 1e6 / lookups)
            .set(metric::CONTEXT_SWITCHES_PER_LOOKUP, result.context_switches as f64 / lookups);
    }
    metrics.set(metric::LOOKUPS_PER_S, lookups / result.seconds);
    let optional = [
        (metric::P50_US, result.p50_us),
        (metric::P99_US, result.p99_us),
        (metric::WAKES_PER_LOOKUP, result.wakes.map(|wakes| wakes as f64 / lookups)),
        (metric::IN_FLIGHT_AVG, result.in_flight_avg),
        // A lookup has one read at a time, so the lookups on the device are those whose reads are in flight
        // there.
        (metric::DEVICE_SHARE, result.in_flight_avg.map(|reads| (reads / in_flight as f64).min(1.0))),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            metrics.set(name, value);
        }
    }
    metrics
}

fn sampled(result: WalkResult, work: &WalkWork) -> SampleFigures {
    let claim = Claim {
        // A page cache that fills during the reads requests less from the device.
        read_bytes: (!work.row.uses_page_cache() && work.row != WalkRow::NoLookups)
            .then(|| result.lookups * work.depth * work.read_bytes() as u64),
        workers: Some(work.workers()),
        exact: true,
        ..Claim::default()
    };
    SampleFigures { metrics: metrics(&result, work.row, work.in_flight), evidence: result.evidence, claim }
}

fn build_row(cell: Cell<Setting, WalkRow>, as_published: bool) -> Row {
    let cache = match (cell.way, as_published) {
        (WalkRow::NoLookups, _) => return cell.into_row(),
        // The lookup reads data that it has just written.
        (row, true) if row.uses_page_cache() => CacheState::Warm,
        (row, false) if row.uses_page_cache() => CacheState::Evicted,
        _ => CacheState::Direct,
    };
    cell.into_row().cache(cache)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_divided_by_the_lookups() {
        let result = WalkResult {
            seconds: 0.5,
            cpu_seconds: 0.1,
            context_switches: 2_000,
            lookups: 1_000,
            p50_us: Some(50.0),
            wakes: Some(6_000),
            in_flight_avg: Some(48.0),
            ..WalkResult::default()
        };
        let metrics = metrics(&result, WalkRow::Pread, 64);
        assert_eq!(metrics.get(metric::DEVICE_SHARE), Some(0.75));
        assert_eq!(metrics.get(metric::LOOKUPS_PER_S), Some(2_000.0));
        assert_eq!(metrics.get(metric::CPU_US_PER_LOOKUP), Some(100.0));
        assert_eq!(metrics.get(metric::CONTEXT_SWITCHES_PER_LOOKUP), Some(2.0));
        assert_eq!(metrics.get(metric::WAKES_PER_LOOKUP), Some(6.0));
        assert_eq!((metrics.get(metric::P50_US), metrics.get(metric::P99_US)), (Some(50.0), None));
        let none = super::metrics(&WalkResult::default(), WalkRow::Pread, 64);
        assert_eq!(none.get(metric::CPU_US_PER_LOOKUP), None);
    }
}
