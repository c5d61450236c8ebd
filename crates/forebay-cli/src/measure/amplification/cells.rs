//! Runs the cells of a plan, one process each, and builds the tables.

use std::cell::Cell as Flag;
use std::fmt;

use anyhow::Context as _;

use super::super::gates::Claim;
use super::super::interleave::{Taken, Turns, cells, cut_short, seeds, until};
use super::super::job::Job;
use super::super::plan::fit_seconds;
use super::super::planted::{Files, Planted};
use super::super::sampler::run_child;
use super::super::scratch_dir::Home;
use super::super::units::show_bytes;
use super::job::{AmplificationAnswer, AmplificationWork, ReadRow};
use crate::context::Context;
use crate::result::{CacheState, Experiment, Metrics, metric};

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
/// Fails when the path cannot be used (a [`Failure`](crate::exit::Failure)), or nothing could be measured.
pub(super) fn measure(plan: &Plan, context: &Context) -> anyhow::Result<Vec<Experiment>> {
    let home = Home::find(context, super::KIND.name)?;
    let sets = plan
        .files
        .iter()
        .map(|files| {
            let file_bytes = (plan.bytes / u64::from(*files)) & !4095;
            let planted = Planted { files: *files, file_bytes, seed: context.seed };
            Files::make(&home, planted, context)
        })
        .collect::<anyhow::Result<Vec<Files>>>()?;
    let settings: Vec<Setting> =
        sets.iter().enumerate().map(|(set, files)| Setting { set, files: files.planted.files }).collect();
    let mut cells = cells(&settings, &plan.rows);
    let seconds = fit_seconds(plan.seconds, cells.len() * plan.repeats, context.remaining());
    let is_cold = Flag::new(true);
    let turns = Turns {
        label: format!("measure {}", super::KIND.name),
        repeats: plan.repeats,
        until: until(context),
        place: &home.directory,
        context,
    };
    let seeds = seeds(context, plan.repeats);
    let done = turns.take(&mut cells, |setting, row, repeat| {
        let files = &sets[setting.set];
        is_cold.set(is_cold.get() & files.evict()?);
        let work = AmplificationWork {
            row,
            planted: files.planted,
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
        let answer: AmplificationAnswer =
            serde_json::from_str(&text).context("the measuring child answered in an unknown way")?;
        let claim = Claim {
            // The other rows may read a page that holds several pieces once for all of them.
            read_bytes: (row == ReadRow::Direct).then_some(answer.bytes),
            workers: Some(plan.in_flight + usize::from(!row.uses_page_cache())),
            ..Claim::default()
        };
        Ok(Taken { metrics: metrics(&answer), evidence: answer.evidence, claim })
    })?;
    let build = |setting: Setting| {
        let Files { planted, ground, .. } = &sets[setting.set];
        let mut experiment = Experiment::new(super::KIND.name, method(plan, seconds))
            .parameter("files", planted.files)
            .parameter("file_bytes", planted.file_bytes)
            .parameter("wanted_bytes_min", plan.least)
            .parameter("wanted_bytes_max", plan.most)
            .parameter("reads", plan.reads)
            .parameter("in_flight", plan.in_flight)
            .parameter("seconds_max", seconds)
            .parameter("repeats", done)
            .parameter("file_system", home.filesystem.as_str())
            .parameter("seed", context.seed);
        experiment.notes = notes(is_cold.get(), done, plan.repeats);
        experiment.conditions = ground.conditions();
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

fn metrics(answer: &AmplificationAnswer) -> Metrics {
    let (reads, bytes) = (answer.reads as f64, answer.bytes as f64);
    let witness = &answer.evidence.witness;
    let mut metrics = Metrics::default();
    metrics
        .set(metric::SECONDS, answer.seconds)
        .set(metric::IOPS, reads / answer.seconds)
        .set(metric::MB_PER_S, bytes / 1e6 / answer.seconds)
        .set(metric::CPU_US_PER_IO, answer.cpu_seconds * 1e6 / reads);
    let optional = [
        (metric::P50_US, answer.p50_us),
        (metric::P99_US, answer.p99_us),
        (metric::DEVICE_BYTES_PER_BYTE, witness.device.map(|moved| moved.read as f64 / bytes)),
        (metric::PROCESS_BYTES_PER_BYTE, witness.own.map(|moved| moved.read as f64 / bytes)),
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
        "{} of data that do not compress lie in as many files as stated, all of one length, written through and evicted from \
         the page cache before each sample. Each sample is a fresh process that opens all files, and then wants {} pieces of \
         {} to {}, each length equally likely, at any byte of any file, {} at once, and begins no more after {seconds:.2} s. \
         Every byte is compared with what was written. Device bytes are what the block device's counters say it read \
         meanwhile, for whomever; bytes read for the process are the kernel's account in /proc/self/io; both are divided by \
         the bytes of the pieces. Rows of a repeat want the same pieces; rows take turns within a repeat, and a figure is \
         the median of the repeats.",
        show_bytes(plan.bytes),
        plan.reads,
        show_bytes(plan.least),
        show_bytes(plan.most),
        plan.in_flight,
    )
}

fn notes(is_cold: bool, repeats: usize, wanted: usize) -> Vec<String> {
    let mut notes = vec![
        "rows of a repeat read the same pieces: a device or a host of a virtual machine that caches answers from its memory, \
         so compare bytes and take the rates for what they are"
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
    fn bytes_are_divided_by_what_was_wanted() {
        let mut answer = AmplificationAnswer {
            seconds: 0.5,
            reads: 1000,
            bytes: 2_000_000,
            ..AmplificationAnswer::default()
        };
        answer.evidence.witness.device = Some(Bytes { read: 5_000_000, written: 1 });
        answer.evidence.witness.own = Some(Bytes { read: 4_000_000, written: 1 });
        let metrics = metrics(&answer);
        assert_eq!(metrics.get(metric::DEVICE_BYTES_PER_BYTE), Some(2.5));
        assert_eq!(metrics.get(metric::PROCESS_BYTES_PER_BYTE), Some(2.0));
        assert_eq!(metrics.get(metric::IOPS), Some(2000.0));
        // Without a read there is no count to divide by.
        let none = super::metrics(&AmplificationAnswer { seconds: 1.0, ..AmplificationAnswer::default() });
        assert_eq!(none.get(metric::CPU_US_PER_IO), None);
    }
}
