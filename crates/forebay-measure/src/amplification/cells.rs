//! Runs the cells of a plan, one process each, and builds the tables.

use std::cell::Cell as Flag;
use std::fmt;

use anyhow::Context as _;

use super::super::file_set::{FileSet, Files};
use super::super::gates::Claim;
use super::super::interleave::{Interleaving, SampleFigures, cells, cut_short, seeds, until};
use super::super::job::Job;
use super::super::plan::fit_seconds;
use super::super::sampler::run_child;
use super::super::scratch_dir::ScratchDir;
use super::super::units::show_bytes;
use super::job::{AmplificationResult, AmplificationWork, ReadRow};
use crate::context::Context;
use forebay_report::result::{CacheState, Experiment, Metrics, metric};

/// The measurements to be made.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) files: Vec<u32>,
    pub(super) rows: Vec<ReadRow>,
    /// Bytes of all files together.
    pub(super) bytes: u64,
    pub(super) least: u64,
    pub(super) most: u64,
    pub(super) reads: u64,
    pub(super) in_flight: usize,
    pub(super) seconds: f64,
    pub(super) repeats: usize,
}

/// The parameters common to the rows of one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Setting {
    /// The index of the set of files.
    set: usize,
    files: u32,
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, ", {} file(s)", self.files)
    }
}

/// Measures and returns one experiment for each number of files.
///
/// # Errors
/// Fails when the path cannot be used (a [`Failure`](forebay_report::failure::Failure)), or nothing could be measured.
pub(super) fn measure(plan: &Plan, context: &Context) -> anyhow::Result<Vec<Experiment>> {
    let scratch = ScratchDir::find(context, super::KIND.name)?;
    let sets = plan
        .files
        .iter()
        .map(|files| {
            let file_bytes = (plan.bytes / u64::from(*files)) & !4095;
            let file_set = FileSet { files: *files, file_bytes, seed: context.seed };
            Files::make(&scratch, file_set, context)
        })
        .collect::<anyhow::Result<Vec<Files>>>()?;
    let settings: Vec<Setting> =
        sets.iter().enumerate().map(|(set, files)| Setting { set, files: files.file_set.files }).collect();
    let mut cells = cells(&settings, &plan.rows);
    let seconds = fit_seconds(plan.seconds, cells.len() * plan.repeats, context.remaining());
    let is_cold = Flag::new(true);
    let interleaving = Interleaving {
        label: format!("measure {}", super::KIND.name),
        repeats: plan.repeats,
        until: until(context),
        place: &scratch.directory,
        context,
    };
    let seeds = seeds(context, plan.repeats);
    let done = interleaving.run(&mut cells, |setting, row, repeat| {
        let files = &sets[setting.set];
        is_cold.set(is_cold.get() & files.evict()?);
        let work = AmplificationWork {
            row,
            file_set: files.file_set,
            least: plan.least,
            most: plan.most,
            reads: plan.reads,
            in_flight: plan.in_flight,
            seconds_max: seconds,
            seed: seeds[repeat],
        };
        let mut job = Job::new(super::KIND.name, files.directory.path(), &work, seconds)?;
        job.device_stat.clone_from(&files.device_stat);
        let text = run_child(&job, None, &context.cleanup)?;
        let result: AmplificationResult =
            serde_json::from_str(&text).context("the result of the measuring process cannot be read")?;
        let claim = Claim {
            // The other rows may read a page that holds several pieces once for all of them.
            read_bytes: (row == ReadRow::Direct).then_some(result.bytes),
            workers: Some(plan.in_flight + usize::from(!row.uses_page_cache())),
            ..Claim::default()
        };
        Ok(SampleFigures { metrics: metrics(&result), evidence: result.evidence, claim })
    })?;
    let build = |setting: Setting| {
        let Files { file_set, preconditions, .. } = &sets[setting.set];
        let mut experiment = Experiment::new(super::KIND.name, method(plan, seconds))
            .parameter("files", file_set.files)
            .parameter("file_bytes", file_set.file_bytes)
            .parameter("wanted_bytes_min", plan.least)
            .parameter("wanted_bytes_max", plan.most)
            .parameter("reads", plan.reads)
            .parameter("in_flight", plan.in_flight)
            .parameter("seconds_max", seconds)
            .parameter("repeats", done)
            .parameter("file_system", scratch.filesystem.as_str())
            .parameter("seed", context.seed);
        experiment.notes = notes(is_cold.get(), done, plan.repeats);
        experiment.conditions = preconditions.conditions();
        let of_this = cells.extract_if(.., |cell| cell.setting == setting);
        experiment.rows = of_this
            .map(|cell| {
                let cache = match (cell.way.uses_page_cache(), is_cold.get()) {
                    (false, _) => CacheState::Direct,
                    (true, true) => CacheState::Evicted,
                    (true, false) => CacheState::Warm,
                };
                cell.into_row().cache(cache)
            })
            .collect();
        experiment
    };
    Ok(settings.into_iter().map(build).collect())
}

fn metrics(result: &AmplificationResult) -> Metrics {
    let (reads, bytes) = (result.reads as f64, result.bytes as f64);
    let counter_deltas = &result.evidence.counter_deltas;
    let mut metrics = Metrics::default();
    metrics
        .set(metric::SECONDS, result.seconds)
        .set(metric::IOPS, reads / result.seconds)
        .set(metric::MB_PER_S, bytes / 1e6 / result.seconds)
        .set(metric::CPU_US_PER_IO, result.cpu_seconds * 1e6 / reads);
    let optional = [
        (metric::P50_US, result.p50_us),
        (metric::P99_US, result.p99_us),
        (metric::DEVICE_BYTES_PER_BYTE, counter_deltas.device.map(|moved| moved.read as f64 / bytes)),
        (metric::PROCESS_BYTES_PER_BYTE, counter_deltas.own.map(|moved| moved.read as f64 / bytes)),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            metrics.set(name, value);
        }
    }
    metrics
}

fn method(plan: &Plan, seconds: f64) -> String {
    format!(
        "{} of data that do not compress lie in as many files as stated, all of one length, written through and \
         evicted from the page cache before each sample. Each sample is a fresh process that opens all files, and \
         then wants {} pieces of {} to {}, each length equally likely, at any byte of any file, {} at once, and \
         begins no more after {seconds:.2} s. Every byte is compared with the written one. Device bytes are what the \
         block device's counters say it read meanwhile, for all processes; bytes read for the process are the \
         kernel's account in /proc/self/io; both are divided by the bytes of the pieces. Rows of a repeat want the \
         same pieces; rows take turns within a repeat, and a figure is the median of the repeats.",
        show_bytes(plan.bytes),
        plan.reads,
        show_bytes(plan.least),
        show_bytes(plan.most),
        plan.in_flight,
    )
}

fn notes(is_cold: bool, repeats: usize, wanted: usize) -> Vec<String> {
    let mut notes = vec![
        "rows of a repeat read the same pieces: a device, or the host of a virtual machine, that caches serves them \
         from its memory, so compare bytes and not rates"
            .to_owned(),
        "in `read-many` each piece counts the time of its whole call".to_owned(),
    ];
    if !is_cold {
        notes.push(
            "the files could not be brought out of memory before every sample: the page-cache rows begin partly warm".to_owned(),
        );
    }
    notes.extend(cut_short(repeats, wanted));
    notes
}

#[cfg(test)]
mod tests {
    use super::super::super::system_counters::Bytes;
    use super::*;

    #[test]
    fn bytes_are_divided_by_the_bytes_wanted() {
        let mut result = AmplificationResult {
            seconds: 0.5,
            reads: 1000,
            bytes: 2_000_000,
            ..AmplificationResult::default()
        };
        result.evidence.counter_deltas.device = Some(Bytes { read: 5_000_000, written: 1 });
        result.evidence.counter_deltas.own = Some(Bytes { read: 4_000_000, written: 1 });
        let metrics = metrics(&result);
        assert_eq!(metrics.get(metric::DEVICE_BYTES_PER_BYTE), Some(2.5));
        assert_eq!(metrics.get(metric::PROCESS_BYTES_PER_BYTE), Some(2.0));
        assert_eq!(metrics.get(metric::IOPS), Some(2000.0));
        // Without a read there is no count to divide by.
        let none = super::metrics(&AmplificationResult { seconds: 1.0, ..AmplificationResult::default() });
        assert_eq!(none.get(metric::CPU_US_PER_IO), None);
    }
}
