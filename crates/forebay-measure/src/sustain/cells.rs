//! Makes the file, runs the loads, one process each, and builds the table.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Context as _;

use super::super::gates::Claim;
use super::super::interleave::{Interleaving, SampleFigures, cells, cut_short, seeds, until};
use super::super::job::Job;
use super::super::plan::fit_seconds;
use super::super::sampler::run_child;
use super::super::scratch_dir::ScratchDir;
use super::super::test_file::TestFile;
use super::job::{BIN_SECONDS, LoadRow, SustainResult, SustainWork};
use super::{level, stall};
use crate::context::Context;
use forebay_report::result::{CacheState, Experiment, Metrics, Series, metric};

/// The loads to run, and how.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) rows: Vec<LoadRow>,
    pub(super) file_bytes: u64,
    pub(super) depth: usize,
    pub(super) seconds: f64,
    pub(super) idle_seconds: f64,
    pub(super) repeats: usize,
}

/// Settings that all loads share.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Setting {
    /// Seconds requested; a budget can make it less.
    seconds: f64,
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, ", up to {:.0} s", self.seconds)
    }
}

/// Runs all loads and returns one experiment with a row for each load.
///
/// # Errors
/// The path cannot be used (a [`Failure`](forebay_report::failure::Failure)), or nothing could be measured.
pub(super) fn measure(plan: &Plan, context: &Context) -> anyhow::Result<Vec<Experiment>> {
    let scratch = ScratchDir::find(context, super::KIND.name)?;
    let test_file = TestFile::prepare(context, plan.file_bytes, None)?;
    let mut cells = cells(&[Setting { seconds: plan.seconds }], &plan.rows);
    let samples = cells.len() * plan.repeats;
    let fitted = fit_seconds(plan.seconds + plan.idle_seconds, samples, context.remaining());
    // A load shorter than a second has no level.
    let seconds = (fitted - plan.idle_seconds).max(plan.seconds.min(1.0));
    let mut series = BTreeMap::new();
    let interleaving = Interleaving {
        label: format!("measure {}", super::KIND.name),
        repeats: plan.repeats,
        until: until(context),
        place: &scratch.directory,
        context,
    };
    let seeds = seeds(context, plan.repeats);
    let done = interleaving.run(&mut cells, |_, row, repeat| {
        let work = SustainWork {
            row,
            file_bytes: test_file.bytes,
            depth: plan.depth,
            idle_seconds: plan.idle_seconds,
            seconds,
            seed: seeds[repeat],
        };
        // The sync can take as long as the load.
        let seconds_max = plan.idle_seconds + 2.0 * seconds;
        let mut job = Job::new(super::KIND.name, test_file.path.as_path(), &work, seconds_max)?;
        job.device_stat.clone_from(&test_file.device_stat);
        let text = run_child(&job, None, &context.cleanup)?;
        let result: SustainResult =
            serde_json::from_str(&text).context("the result of the measuring process cannot be read")?;
        series.entry(row).or_insert_with(|| series_of(&result));
        let bytes = result.operations * work.block_bytes();
        let is_read = row == LoadRow::RandomRead;
        let claim = Claim {
            read_bytes: is_read.then_some(bytes),
            written_bytes: (!is_read).then_some(bytes),
            workers: Some(1),
            ..Claim::default()
        };
        Ok(SampleFigures { metrics: metrics(&result, work.depth())?, evidence: result.evidence, claim })
    })?;
    let is_too_short = seconds < super::SECONDS;
    let mut experiment = Experiment::new(super::KIND.name, method(plan, seconds))
        .parameter("seconds", seconds)
        .parameter("too_short", is_too_short)
        .parameter("idle_seconds", plan.idle_seconds)
        .parameter("bin_seconds", BIN_SECONDS)
        .parameter("depth", plan.depth)
        .parameter("file_bytes", test_file.bytes)
        .parameter("repeats", done)
        .parameter("file_system", scratch.filesystem.as_str())
        .parameter("seed", context.seed);
    if is_too_short {
        experiment.notes.push(format!(
            "{seconds:.0} s a load are too short for a sustained level: caches and budgets of devices last a minute and \
             longer; give --seconds {:.0} or more",
            super::SECONDS
        ));
    }
    experiment.notes.extend(cut_short(done, plan.repeats));
    experiment.conditions = test_file.preconditions.conditions();
    experiment.rows = cells
        .into_iter()
        .map(|cell| {
            let load = cell.way;
            let mut row = cell.into_row().cache(CacheState::Direct);
            row.series = series.remove(&load).unwrap_or_default();
            row
        })
        .collect();
    Ok(vec![experiment])
}

fn series_of(result: &SustainResult) -> Series {
    let place = |bin: usize| (bin as f64 * BIN_SECONDS * 10.0).round() / 10.0;
    let at: Vec<f64> = (0..result.ended.bins.len()).map(place).collect();
    let rates = rates(result);
    Series::from([("at_s".to_owned(), at), (metric::MB_PER_S.to_owned(), rates)])
}

/// Returns the rate of each bin in millions of bytes per second.
fn rates(result: &SustainResult) -> Vec<f64> {
    result.ended.bins.iter().map(|bytes| *bytes as f64 / 1e6 / BIN_SECONDS).collect()
}

/// Returns the metrics of a load with `depth` operations in flight.
///
/// # Errors
/// The load took no time.
pub(super) fn metrics(result: &SustainResult, depth: usize) -> anyhow::Result<Metrics> {
    let levels = level::find(&rates(result)).context("the load had no time")?;
    let operations = result.operations as f64;
    let mut metrics = Metrics::default();
    metrics
        .set(metric::SECONDS, result.seconds)
        .set(metric::BURST_MB_PER_S, levels.burst)
        .set(metric::SUSTAINED_MB_PER_S, levels.sustained)
        .set(metric::VARIATION, levels.variation)
        .set(metric::IOPS, operations / result.seconds)
        .set(metric::CPU_US_PER_IO, result.cpu_seconds * 1e6 / operations)
        .set(metric::SYNC_MS, result.sync_s * 1e3);
    if let Some(change) = levels.change {
        metrics.set(metric::CHANGE_S, change as f64 * BIN_SECONDS);
        if levels.sustained < levels.burst {
            metrics.set(metric::DROP_BYTES, result.ended.bins[..change].iter().sum::<u64>() as f64);
        }
    }
    // Only at the level that lasts: the usual number of operations in a step is different before it.
    if let Some(stalls) = stall::find(result.ended.steps_from(levels.change.unwrap_or(0)), depth) {
        metrics
            .set(metric::STALL_COUNT, stalls.count as f64)
            .set(metric::STALL_SHARE, stalls.share)
            .set(metric::STALL_STEP_MS, stalls.step_ms);
        if stalls.count > 0 {
            metrics.set(metric::STALL_MS, stalls.length_ms);
        }
        if let Some(every_s) = stalls.every_s {
            metrics.set(metric::STALL_EVERY_S, every_s);
        }
    }
    for (name, value) in [(metric::P50_US, result.p50_us), (metric::P99_US, result.p99_us)] {
        if let Some(value) = value {
            metrics.set(name, value);
        }
    }
    Ok(metrics)
}

fn method(plan: &Plan, seconds: f64) -> String {
    format!(
        "The file is written through with data that do not compress. Each load is a fresh process that waits {:.1} s \
         without doing anything, then reads or writes for {seconds:.1} s, {} in flight at random and 8 in sequence, \
         past the page cache; writes are not synced before the end, so a device's own cache takes part, and the sync \
         at the end is measured separately. Bytes count for the tenth of a second in which their operation ended. \
         The change is the one cut of that series around whose two means the sum of squares is least; it counts when \
         it explains far more than chance would, when the medians of the two sides differ by a seventh at least and \
         by three times the scatter of either side. Burst and sustained level are these medians; without a change \
         both are the median of everything. Variation is the standard deviation of the tenths of a second at the \
         sustained level, divided by their mean. Standstills are looked for at the sustained level, in steps of at \
         least 10 ms in which 32 operations, and four times as many as are in flight, end on average: a step with \
         less than a quarter of what busy ones have is one, and what is shorter than two steps may not show.",
        plan.idle_seconds, plan.depth
    )
}

/// Returns the table of random writes with these completed operations, each with its time and its bytes.
#[cfg(test)]
pub(crate) fn simulated(
    time: std::time::Duration,
    depth: usize,
    ended: &[(std::time::Duration, u64)],
) -> Experiment {
    use forebay_report::result::{Row, Sample};
    let seconds = time.as_secs_f64();
    let mut result = SustainResult {
        ended: super::job::Ended::new(seconds),
        operations: ended.len() as u64,
        seconds,
        ..SustainResult::default()
    };
    ended.iter().for_each(|(since, bytes)| result.ended.count(*since, *bytes));
    let metrics = metrics(&result, depth).expect("it has bins");
    let row = Row::from_samples(LoadRow::RandomWrite.name(), vec![Sample { repeat: 0, metrics }]);
    let mut experiment = Experiment::new(super::KIND.name, "").parameter("seconds", seconds);
    experiment.rows.push(row);
    experiment
}

#[cfg(test)]
mod tests {
    use super::super::job::Ended;
    use super::*;

    fn result(parts: &[(u64, usize)]) -> SustainResult {
        let bins: Vec<u64> = parts.iter().flat_map(|(bytes, count)| vec![*bytes; *count]).collect();
        SustainResult {
            seconds: bins.len() as f64 * BIN_SECONDS,
            ended: Ended { steps: vec![100; 10 * bins.len()], bins },
            operations: 1000,
            ..SustainResult::default()
        }
    }

    #[test]
    fn a_drop_is_reported_with_its_time_and_bytes() {
        let metrics = metrics(&result(&[(10_000_000, 50), (2_000_000, 100)]), 32).expect("it has bins");
        let get = |name: &str| metrics.get(name).expect("it was set");
        assert_eq!((get(metric::BURST_MB_PER_S), get(metric::SUSTAINED_MB_PER_S)), (100.0, 20.0));
        assert_eq!((get(metric::CHANGE_S), get(metric::DROP_BYTES)), (5.0, 500_000_000.0));
        assert_eq!(get(metric::VARIATION), 0.0);
    }

    #[test]
    fn a_rise_has_no_drop_and_a_level_no_change() {
        let rise = metrics(&result(&[(2_000_000, 50), (10_000_000, 50)]), 32).expect("it has bins");
        assert_eq!((rise.get(metric::CHANGE_S), rise.get(metric::DROP_BYTES)), (Some(5.0), None));
        let level = metrics(&result(&[(2_000_000, 100)]), 32).expect("it has bins");
        assert_eq!((level.get(metric::CHANGE_S), level.get(metric::DROP_BYTES)), (None, None));
        assert!(metrics(&result(&[]), 32).is_err());
    }

    #[test]
    fn standstills_are_those_of_the_level_that_lasts() {
        let mut stalling = result(&[(10_000_000, 20), (2_000_000, 100)]);
        stalling.ended.steps[200..].chunks_mut(100).for_each(|second| second[90..].fill(0));
        let found = metrics(&stalling, 8).expect("it has bins");
        let get = |name: &str| found.get(name).expect("it was set");
        assert_eq!((get(metric::STALL_COUNT), get(metric::STALL_STEP_MS)), (10.0, 10.0));
        assert_eq!((get(metric::STALL_EVERY_S), get(metric::STALL_MS)), (1.0, 100.0));
        assert!((get(metric::STALL_SHARE) - 0.1).abs() < 1e-9);
        let steady = metrics(&result(&[(2_000_000, 100)]), 8).expect("it has bins");
        assert_eq!((steady.get(metric::STALL_COUNT), steady.get(metric::STALL_MS)), (Some(0.0), None));
    }

    #[test]
    fn a_series_has_a_time_for_each_value() {
        let series = series_of(&result(&[(1_000_000, 4)]));
        assert_eq!(series["at_s"], [0.0, 0.1, 0.2, 0.3]);
        assert_eq!(series["mb_per_s"], [10.0; 4]);
    }
}
