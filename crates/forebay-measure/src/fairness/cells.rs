//! Creates the file, runs the rows, one process each, and builds a table for each number of hogs.

use std::fmt;

use anyhow::Context as _;

use super::super::gates::Claim;
use super::super::interleave::{Interleaving, SampleFigures, cells, cut_short, seeds, until};
use super::super::job::Job;
use super::super::plan::fit_seconds;
use super::super::sampler::run_child;
use super::super::scratch_dir::ScratchDir;
use super::super::test_file::TestFile;
use super::group::HogGroup;
use super::job::{FairRow, FairWork, FairnessResult, HOG_BYTES, HOG_DEPTH, READ_BYTES};
use crate::context::Context;
use forebay_report::result::{CacheState, Experiment, Metrics, metric};

/// The measurements to be made.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) rows: Vec<FairRow>,
    pub(super) hogs: Vec<u32>,
    pub(super) writes: bool,
    pub(super) file_bytes: u64,
    pub(super) seconds: f64,
    pub(super) repeats: usize,
}

/// The parameters common to the rows of one table.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Setting {
    hogs: u32,
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, ", hogs {}", self.hogs)
    }
}

/// Measures and returns one experiment for each number of hogs.
///
/// # Errors
/// Fails when the path cannot be used (a [`Failure`](forebay_report::failure::Failure)), or nothing could be measured.
pub(super) fn measure(plan: &Plan, context: &Context) -> anyhow::Result<Vec<Experiment>> {
    let scratch = ScratchDir::find(context, super::KIND.name)?;
    let test_file = TestFile::prepare(context, plan.file_bytes, None)?;
    let settings: Vec<Setting> = plan.hogs.iter().map(|&hogs| Setting { hogs }).collect();
    let mut cells = cells(&settings, &plan.rows);
    let seconds = fit_seconds(plan.seconds, cells.len() * plan.repeats, context.remaining());
    let interleaving = Interleaving {
        label: format!("measure {}", super::KIND.name),
        repeats: plan.repeats,
        until: until(context),
        place: &scratch.directory,
        context,
    };
    let seeds = seeds(context, plan.repeats);
    let mut made = 0;
    let done = interleaving.run(&mut cells, |setting, row, repeat| {
        made += 1;
        let group = match row {
            FairRow::CgroupIo => Some(HogGroup::create(&test_file.path, made, &context.cleanup)?),
            _ => None,
        };
        let work = FairWork {
            row,
            hogs: setting.hogs,
            writes: plan.writes,
            file_bytes: test_file.bytes,
            seconds,
            seed: seeds[repeat],
            hogs_procs: group.as_ref().map(HogGroup::procs_file),
        };
        let mut job = Job::new(super::KIND.name, test_file.path.as_path(), &work, seconds * 2.0)?;
        job.device_stat.clone_from(&test_file.device_stat);
        let text = run_child(&job, None, &context.cleanup)?;
        let result: FairnessResult =
            serde_json::from_str(&text).context("the result of the measuring process cannot be read")?;
        let small = result.reads * READ_BYTES;
        let claim = Claim {
            read_bytes: Some(if plan.writes { small } else { small + result.hog_bytes })
                .filter(|&bytes| bytes > 0),
            written_bytes: (plan.writes && row.has_hogs()).then_some(result.hog_bytes),
            workers: Some(1),
            ..Claim::default()
        };
        Ok(SampleFigures { metrics: metrics(row, &result), evidence: result.evidence, claim })
    })?;
    let mut experiments = Vec::new();
    let mut cells = cells.into_iter().peekable();
    for setting in settings {
        let mut experiment = Experiment::new(super::KIND.name, method(plan, seconds))
            .parameter("hogs", setting.hogs)
            .parameter("hog_does", if plan.writes { "write" } else { "read" })
            .parameter("hog_bytes", HOG_BYTES)
            .parameter("hog_depth", HOG_DEPTH)
            .parameter("block_bytes", READ_BYTES)
            .parameter("seconds", seconds)
            .parameter("file_bytes", test_file.bytes)
            .parameter("repeats", done)
            .parameter("file_system", scratch.filesystem.as_str())
            .parameter("seed", context.seed);
        experiment.notes.extend(cut_short(done, plan.repeats));
        experiment.conditions = test_file.preconditions.conditions();
        while let Some(cell) = cells.next_if(|cell| cell.setting == setting) {
            experiment.rows.push(cell.into_row().cache(CacheState::Direct));
        }
        experiments.push(experiment);
    }
    Ok(experiments)
}

fn metrics(row: FairRow, result: &FairnessResult) -> Metrics {
    let mut metrics = Metrics::default();
    metrics.set(metric::SECONDS, result.seconds);
    if row.has_hogs() {
        metrics.set(metric::HOG_MB_PER_S, result.hog_bytes as f64 / 1e6 / result.seconds);
    }
    if row.has_reader() {
        metrics.set(metric::IOPS, result.reads as f64 / result.seconds);
    }
    let times = [
        (metric::P50_US, result.p50_us),
        (metric::P99_US, result.p99_us),
        (metric::P99_9_US, result.p99_9_us),
    ];
    for (name, value) in times {
        if let Some(value) = value.filter(|_| row.has_reader()) {
            metrics.set(name, value);
        }
    }
    metrics
}

fn method(plan: &Plan, seconds: f64) -> String {
    let does = if plan.writes { "writes" } else { "reads" };
    format!(
        "The file is written through with data that do not compress. Each row is a fresh process that runs for {seconds:.1} s: \
         a reader that reads 4 KiB anywhere in the file, one at a time, past the page cache, and hogs of which each has 64 {does} \
         of 1 MiB anywhere in the same file in flight. Percentiles are the reader's; the hogs' bytes are those of requests that \
         ended within the time."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_figures_only_of_its_participants() {
        let result = FairnessResult {
            seconds: 2.0,
            reads: 100,
            hog_bytes: 8_000_000,
            p50_us: Some(5.0),
            ..FairnessResult::default()
        };
        let of = |row| metrics(row, &result);
        assert_eq!(of(FairRow::Classes).get(metric::HOG_MB_PER_S), Some(4.0));
        assert_eq!(of(FairRow::Classes).get(metric::IOPS), Some(50.0));
        assert_eq!(of(FairRow::ReaderAlone).get(metric::HOG_MB_PER_S), None);
        assert_eq!(of(FairRow::HogsAlone).get(metric::P50_US), None);
    }
}
