//! Creates the files, runs the cells of a plan, one process each, and builds the tables.

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
use super::job::{Call, FilesResult, FilesRow, FilesWork};
use crate::context::Context;
use forebay_report::result::{CacheState, Experiment, Metrics, metric};

/// The measurements to be made.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) settings: Vec<Setting>,
    pub(super) rows: Vec<FilesRow>,
    pub(super) count: u32,
    pub(super) file_bytes: u64,
    pub(super) seconds: f64,
    pub(super) repeats: usize,
}

/// The parameters common to the rows of one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) call: Call,
    pub(super) at_once: u32,
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, ", {}, {} at once", self.call.name(), self.at_once)
    }
}

/// Measures and returns one experiment for each setting.
///
/// # Errors
/// Fails when the path cannot be used (a [`Failure`](forebay_report::failure::Failure)), or nothing could be measured.
pub(super) fn measure(plan: &Plan, context: &Context) -> anyhow::Result<Vec<Experiment>> {
    let scratch = ScratchDir::find(context, super::KIND.name)?;
    let file_set = FileSet { files: plan.count, file_bytes: plan.file_bytes, seed: context.seed };
    let files = Files::make(&scratch, file_set, context)?;
    let mut cells = cells(&plan.settings, &plan.rows);
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
        let Setting { call, at_once } = *setting;
        let work = FilesWork {
            row,
            call,
            file_set,
            at_once: at_once as usize,
            seconds_max: seconds,
            seed: seeds[repeat],
        };
        if call == Call::Read {
            is_cold.set(is_cold.get() & files.evict()?);
        }
        // Each sample has its own directory, which is removed after it.
        let new = match call {
            Call::Create => Some(scratch.temp_directory(context, "new")?),
            _ => None,
        };
        let directory = new.as_ref().unwrap_or(&files.directory).path();
        // The check of the files made takes its time, too.
        let mut job = Job::new(super::KIND.name, directory, &work, 10.0 * seconds)?;
        job.device_stat.clone_from(&files.device_stat);
        let text = run_child(&job, None, &context.cleanup)?;
        let result: FilesResult =
            serde_json::from_str(&text).context("the result of the measuring process cannot be read")?;
        let bytes = result.files * plan.file_bytes;
        let claim = Claim {
            read_bytes: (call == Call::Read).then_some(bytes),
            written_bytes: (call == Call::Create).then_some(bytes),
            // The pool of either runtime has a thread for each call that waits.
            workers: None,
            // Names and inodes are in memory.
            busy_on_purpose: call == Call::Stat,
            ..Claim::default()
        };
        Ok(SampleFigures { metrics: metrics(call, &result), evidence: result.evidence, claim })
    })?;
    let conditions = files.preconditions.conditions();
    let build = |setting: &Setting| {
        let mut experiment = Experiment::new(super::KIND.name, method(plan, setting.call, seconds))
            .parameter("call", setting.call.name())
            .parameter("at_once", setting.at_once)
            .parameter("files", plan.count)
            .parameter("file_bytes", plan.file_bytes)
            .parameter("seconds_max", seconds)
            .parameter("repeats", done)
            .parameter("file_system", scratch.filesystem.as_str())
            .parameter("seed", context.seed);
        experiment.notes = notes(setting.call, is_cold.get(), done, plan.repeats);
        experiment.conditions.clone_from(&conditions);
        let of_this = cells.extract_if(.., |cell| cell.setting == *setting);
        experiment.rows = of_this
            .map(|cell| {
                let cache = match (setting.call, cell.way.uses_page_cache(), is_cold.get()) {
                    (Call::Stat, _, _) => Some(CacheState::Warm),
                    (_, false, _) => Some(CacheState::Direct),
                    (Call::Create, true, _) => None,
                    (Call::Read, true, true) => Some(CacheState::Evicted),
                    (Call::Read, true, false) => Some(CacheState::Warm),
                };
                let row = cell.into_row();
                match cache {
                    Some(cache) => row.cache(cache),
                    None => row,
                }
            })
            .collect();
        experiment
    };
    Ok(plan.settings.iter().map(build).collect())
}

fn metrics(call: Call, result: &FilesResult) -> Metrics {
    let files = result.files as f64;
    let mut metrics = Metrics::default();
    metrics
        .set(metric::SECONDS, result.seconds)
        .set(metric::FILES_PER_S, files / result.seconds)
        .set(metric::CPU_US_PER_FILE, result.cpu_seconds * 1e6 / files);
    let parts: &[(&str, f64)] = match call {
        Call::Read => &[
            (metric::OPEN_US, result.open_s),
            (metric::READ_US, result.read_s),
            (metric::CLOSE_US, result.close_s),
        ],
        Call::Create => &[
            (metric::OPEN_US, result.open_s),
            (metric::WRITE_US, result.write_s),
            (metric::SYNC_US, result.sync_s),
            (metric::CLOSE_US, result.close_s),
        ],
        Call::Stat => &[(metric::STAT_US, result.stat_s)],
    };
    for (name, seconds) in parts {
        metrics.set(name, seconds * 1e6 / files);
    }
    for (name, value) in [(metric::P50_US, result.p50_us), (metric::P99_US, result.p99_us)] {
        if let Some(value) = value {
            metrics.set(name, value);
        }
    }
    metrics
}

fn method(plan: &Plan, call: Call, seconds: f64) -> String {
    format!(
        "Each sample is a fresh process with as many threads or tasks as files are visited at once. Each takes the \
         next file of {} in one directory, {} each, in an order that is new in each repeat, and {}; no file is begun \
         after {seconds:.2} s. The time of a call is its mean over all files; percentiles are of all calls with one \
         file. Making the data to write and checking the data read are the program's own work and in none of the \
         times of calls. Rows take turns within a repeat, and a figure is the median of the repeats.",
        plan.count,
        show_bytes(plan.file_bytes),
        call.phrase(),
    )
}

fn notes(call: Call, is_cold: bool, repeats: usize, wanted: usize) -> Vec<String> {
    let mut notes = Vec::new();
    notes.push(
        match call {
            Call::Read => {
                "the files' contents are evicted from the page cache before each sample, their names and inodes are not"
            }
            Call::Create => {
                "each file is synced, the directory is not: whether the name survives a power cut is the file system's affair"
            }
            Call::Stat => "names and inodes are in memory: this is the way to the kernel and back, without the device",
        }
        .to_owned(),
    );
    if call == Call::Read && !is_cold {
        notes.push(
            "the files could not be brought out of memory before every sample: the page-cache rows begin partly warm".to_owned(),
        );
    }
    notes.extend(cut_short(repeats, wanted));
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calls_that_were_made() {
        let result = FilesResult {
            seconds: 0.5,
            cpu_seconds: 0.1,
            files: 1000,
            open_s: 0.01,
            sync_s: 0.4,
            ..FilesResult::default()
        };
        let create = metrics(Call::Create, &result);
        assert_eq!(create.get(metric::FILES_PER_S), Some(2000.0));
        assert_eq!((create.get(metric::SYNC_US), create.get(metric::OPEN_US)), (Some(400.0), Some(10.0)));
        assert_eq!((create.get(metric::READ_US), create.get(metric::STAT_US)), (None, None));
        let stat = metrics(Call::Stat, &result);
        assert_eq!((stat.get(metric::OPEN_US), stat.get(metric::STAT_US)), (None, Some(0.0)));
    }
}
