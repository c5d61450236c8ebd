//! Runs the cells of a plan, one process each, the rows in turn, and builds the tables.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;

use super::super::beneath::filesystem_of;
use super::super::job::Job;
use super::super::pattern::SplitMix;
use super::super::plan::{another_repeat, fit_seconds, interleaved};
use super::super::sampler::run_child;
use super::super::subject::{check_space, refuse_memory_filesystem};
use super::job::{FlushChoice, Load, Times, WalAnswer, WalRow, WalWork, Workload};
use super::load::{SORTED, TASKS_PER_WORKER, workers};
use super::words::method;
use crate::context::{Context, Target};
use crate::exit::Failure;
use crate::progress::Unit;
use crate::result::{CacheState, Experiment, Metrics, Row, Sample, metric};

/// What is to be measured.
#[derive(Debug)]
pub(in crate::measure) struct Plan {
    /// Of the experiments.
    pub(in crate::measure) name: &'static str,
    pub(in crate::measure) settings: Vec<Setting>,
    pub(in crate::measure) rows: Vec<WalRow>,
    pub(in crate::measure) seconds: f64,
    pub(in crate::measure) repeats: usize,
    pub(in crate::measure) record_bytes: usize,
    /// Records of one append.
    pub(in crate::measure) batch: usize,
    pub(in crate::measure) file_bytes: u64,
    pub(in crate::measure) flush: FlushChoice,
}

/// What the rows of one table share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::measure) struct Setting {
    pub(in crate::measure) workload: Workload,
    pub(in crate::measure) load: Load,
}

/// One row in one setting.
struct Cell {
    setting: Setting,
    row: WalRow,
    samples: Result<Vec<Sample>, String>,
    degraded: Option<String>,
    source: Option<String>,
}

/// Files of a sample at most: the one that is written through, or the log's segments while it runs.
const FILES_MAX: u64 = 16;
/// What a sample takes beside its seconds and what every sample takes: files written through, warming up.
const EXTRA_SECONDS: f64 = 0.35;

/// One experiment for each setting.
///
/// # Errors
/// The path cannot be used (a [`Failure`]), or nothing could be measured.
pub(in crate::measure) fn measure(plan: &Plan, context: &Context) -> anyhow::Result<Vec<Experiment>> {
    let (directory, filesystem) = directory(plan, context)?;
    let mut cells = cells(plan);
    let share = fit_seconds(plan.seconds + EXTRA_SECONDS, cells.len(), context.remaining());
    let seconds = (share - EXTRA_SECONDS).max(plan.seconds.min(0.1));
    let mut seeds = SplitMix::new(context.seed);
    let step =
        context.step(format!("measure {}", plan.name), (cells.len() * plan.repeats) as u64, Unit::Count);
    let begun = Instant::now();
    let mut done = 0;
    while done < plan.repeats && another_repeat(done, begun.elapsed(), context.remaining()) {
        let count = cells.len();
        for (position, index) in interleaved(done, count).enumerate() {
            let cell = &mut cells[index];
            step.set((done * count + position) as u64);
            step.message(format!("{}, load {}", cell.row.name(), cell.setting.load.name()));
            let work = WalWork {
                row: cell.row,
                workload: cell.setting.workload,
                load: cell.setting.load,
                seconds,
                record_bytes: plan.record_bytes,
                batch: plan.batch,
                file_bytes: plan.file_bytes,
                flush: plan.flush,
                seed: seeds.next_u64(),
            };
            cell.take(done, plan, one(plan.name, &directory, work, context));
        }
        done += 1;
    }
    step.finish(&format!("{done} repeats of {} cells", cells.len()));
    let failed = cells.iter().filter_map(|cell| cell.samples.as_ref().err()).collect::<Vec<_>>();
    if let Some(why) = failed.first().filter(|_| failed.len() == cells.len()) {
        anyhow::bail!("nothing could be measured in {}: {why}", directory.display());
    }
    let build = |setting: &Setting| {
        let of_this = cells.extract_if(.., |cell| cell.setting == *setting).collect();
        let mut experiment = experiment(plan, *setting, of_this, seconds, done)
            .parameter("seed", context.seed)
            .parameter("file_system", filesystem.as_str());
        if done < plan.repeats {
            let note = format!("{done} of {} repeats were run: the time given was over", plan.repeats);
            experiment.notes.push(note);
        }
        experiment
    };
    Ok(plan.settings.iter().map(build).collect())
}

/// Where the samples make their directories.
fn directory(plan: &Plan, context: &Context) -> anyhow::Result<(PathBuf, String)> {
    let Target::Directory(directory) = &context.target else {
        return Err(Failure::Path(format!(
            "{} is no directory: `measure {}` writes files of its own and nothing else; name a directory for them",
            context.target.path().display(),
            plan.name
        ))
        .into());
    };
    let directory = fs::canonicalize(directory).map_err(|error| Failure::missing(directory, &error))?;
    let filesystem = filesystem_of(&directory);
    refuse_memory_filesystem(&directory, &filesystem)?;
    check_space(&directory, plan.file_bytes * FILES_MAX, "name a directory with more space")?;
    Ok((directory, filesystem))
}

/// The cells of one setting stand beside each other, so that rows which are compared run one after the other.
fn cells(plan: &Plan) -> Vec<Cell> {
    let mut cells = Vec::new();
    for setting in &plan.settings {
        let base = (setting.load == Load::Cpu).then_some(WalRow::NoAppends);
        for row in base.into_iter().chain(plan.rows.iter().copied()) {
            cells.push(Cell {
                setting: *setting,
                row,
                samples: Ok(Vec::new()),
                degraded: None,
                source: None,
            });
        }
    }
    cells
}

/// One sample in a process and a directory of its own.
fn one(name: &str, directory: &Path, work: WalWork, context: &Context) -> anyhow::Result<WalAnswer> {
    let own = context.cleanup.temp_directory(directory, "wal").map_err(|error| {
        Failure::Path(format!(
            "no directory can be made in {}: {error}; name one that this user may write to",
            directory.display()
        ))
    })?;
    // Writing files through at 20 MB/s on the slowest of disks.
    let seconds_max = work.seconds + 2.0 * work.file_bytes as f64 / 20e6;
    let job = Job::new(name, own.path(), &work, seconds_max)?;
    let text = run_child(&job, None, &context.cleanup)?;
    serde_json::from_str(&text).context("the measuring child answered in an unknown way")
}

impl Cell {
    fn take(&mut self, repeat: usize, plan: &Plan, outcome: anyhow::Result<WalAnswer>) {
        let Ok(samples) = &mut self.samples else { return };
        match outcome {
            Ok(answer) => {
                let metrics = metrics(&answer, plan.batch, self.setting.load);
                samples.push(Sample { repeat: repeat as u32, metrics });
                self.degraded = self.degraded.take().or(answer.degraded);
                self.source = self.source.take().or(answer.source);
            }
            Err(error) => self.samples = Err(format!("{error:#}")),
        }
    }
}

fn metrics(answer: &WalAnswer, batch: usize, load: Load) -> Metrics {
    let appends = answer.appends as f64;
    let mut metrics = Metrics::default();
    metrics.set(metric::SECONDS, answer.seconds);
    if let (Some(durable), Some(seen)) = (answer.durable, answer.seen) {
        metrics.set(metric::APPENDS_PER_S, appends / answer.seconds);
        if batch > 1 {
            metrics.set(metric::RECORDS_PER_S, appends * batch as f64 / answer.seconds);
        }
        set_times(&mut metrics, &metric::DURABLE, durable);
        set_times(&mut metrics, &metric::SEEN, seen);
    }
    if let Some(late) = answer.late {
        metrics.set(metric::LATE_P99_US, late.p99_us);
    }
    match load {
        Load::Cpu => metrics.set(metric::WORK_PER_S, answer.work as f64 / answer.seconds),
        // Beside the load it would count the load.
        Load::None => metrics.set(metric::CPU_US_PER_APPEND, answer.cpu_seconds * 1e6 / appends),
    };
    metrics
}

fn set_times(metrics: &mut Metrics, names: &[&str; 4], times: Times) {
    let values = [times.p50_us, times.p99_us, times.p99_9_us, times.max_us];
    for (name, value) in names.iter().zip(values) {
        metrics.set(name, value);
    }
}

fn experiment(
    plan: &Plan,
    setting: Setting,
    mut cells: Vec<Cell>,
    seconds: f64,
    repeats: usize,
) -> Experiment {
    keep_shares(&mut cells);
    let mut experiment = Experiment::new(plan.name, method(plan, setting, seconds))
        .parameter("load", setting.load.name())
        .parameter("record_bytes", plan.record_bytes)
        .parameter("batch_records", plan.batch)
        .parameter("file_bytes", plan.file_bytes)
        .parameter("log_flush", plan.flush.name())
        .parameter("seconds", seconds)
        .parameter("workers", workers())
        .parameter("repeats", repeats);
    experiment = match setting.workload {
        Workload::Open { rate } => experiment.parameter("loop", "open").parameter("rate_per_s", rate),
        Workload::Closed { appenders } => {
            experiment.parameter("loop", "closed").parameter("appenders", appenders)
        }
    };
    if setting.load == Load::Cpu {
        experiment = experiment
            .parameter("load_tasks", workers() * TASKS_PER_WORKER)
            .parameter("sorted_numbers", SORTED);
    }
    if let Some(source) = cells.iter().find_map(|cell| cell.source.clone()) {
        experiment = experiment.parameter("source_priority", source);
    }
    if plan.rows.iter().any(|row| !row.is_log()) {
        experiment.notes.push(
            "old records are given up as it goes: the rows without a log begin again at the beginning of their file, and \
             the log uses its segments again; it was filled until it did before the sample"
                .to_owned(),
        );
    }
    for cell in &cells {
        if let Some(why) = &cell.degraded {
            experiment.notes.push(format!("`{}` did not get what it asks for: {why}", cell.row.name()));
        }
    }
    experiment.rows = cells.into_iter().map(build_row).collect();
    experiment
}

/// The share of the runtime's own work that is left: against the row without appends of the same repeat.
fn keep_shares(cells: &mut [Cell]) {
    let rate = |sample: &Sample| Some((sample.repeat, sample.metrics.get(metric::WORK_PER_S)?));
    let base: Vec<(u32, f64)> = cells
        .iter()
        .filter(|cell| cell.row == WalRow::NoAppends)
        .filter_map(|cell| cell.samples.as_ref().ok())
        .flat_map(|samples| samples.iter().filter_map(rate))
        .collect();
    for sample in cells.iter_mut().filter_map(|cell| cell.samples.as_mut().ok()).flatten() {
        let alone = base.iter().find(|(repeat, _)| *repeat == sample.repeat);
        if let (Some((_, alone)), Some(work)) = (alone, sample.metrics.get(metric::WORK_PER_S)) {
            sample.metrics.set(metric::WORK_KEPT, work / alone);
        }
    }
}

fn build_row(cell: Cell) -> Row {
    let mut row = match cell.samples {
        Ok(samples) => Row::from_samples(cell.row.name(), samples),
        Err(why) => Row::skipped(cell.row.name(), why),
    }
    .describe(cell.row.description());
    row.degraded = cell.degraded;
    if cell.row.is_log() {
        row = row.cache(CacheState::Direct);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(row: WalRow, work: &[f64]) -> Cell {
        let sample = |(repeat, rate): (usize, &f64)| {
            let mut metrics = Metrics::default();
            metrics.set(metric::WORK_PER_S, *rate);
            Sample { repeat: repeat as u32, metrics }
        };
        let setting = Setting { workload: Workload::Open { rate: 1 }, load: Load::Cpu };
        let samples = Ok(work.iter().enumerate().map(sample).collect());
        Cell { setting, row, samples, degraded: None, source: None }
    }

    #[test]
    fn work_is_compared_within_a_repeat() {
        let mut cells =
            [cell(WalRow::NoAppends, &[1000.0, 500.0]), cell(WalRow::Forebay, &[900.0, 500.0, 7.0])];
        keep_shares(&mut cells);
        let kept = |cell: &Cell| -> Vec<Option<f64>> {
            let samples = cell.samples.as_ref().expect("measured");
            samples.iter().map(|sample| sample.metrics.get(metric::WORK_KEPT)).collect()
        };
        assert_eq!(kept(&cells[0]), [Some(1.0), Some(1.0)]);
        assert_eq!(kept(&cells[1]), [Some(0.9), Some(1.0), None]);
    }

    #[test]
    fn the_processors_time_is_told_without_load_only() {
        let answer =
            WalAnswer { seconds: 2.0, appends: 10, cpu_seconds: 1e-3, work: 8, ..WalAnswer::default() };
        let idle = metrics(&answer, 1, Load::None);
        assert_eq!((idle.get(metric::CPU_US_PER_APPEND), idle.get(metric::WORK_PER_S)), (Some(100.0), None));
        let busy = metrics(&answer, 1, Load::Cpu);
        assert_eq!((busy.get(metric::CPU_US_PER_APPEND), busy.get(metric::WORK_PER_S)), (None, Some(4.0)));
    }
}
