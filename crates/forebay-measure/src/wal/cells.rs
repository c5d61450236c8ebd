//! Runs the cells of a plan, each in a process of its own and the rows in turn, and builds the tables.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;

use anyhow::Context as _;

use super::super::backing_device::device_stat;
use super::super::extents::Extents;
use super::super::gates::Claim;
use super::super::interleave::{Cell, Interleaving, SampleFigures, cut_short, until};
use super::super::job::Job;
use super::super::pattern::SplitMix;
use super::super::plan::fit_seconds;
use super::super::preconditions::Preconditions;
use super::super::sampler::run_child;
use super::super::scratch_dir::ScratchDir;
use super::super::test_file::check_space;
use super::super::timers;
use super::job::{FlushChoice, Load, Times, WalResult, WalRow, WalWork, Workload};
use super::load::{SORTED, TASKS_PER_WORKER, workers};
use super::published;
use super::text::method;
use crate::context::Context;
use crate::verdicts::interference;
use forebay_report::result::{CacheState, Experiment, Metrics, Row, metric};

/// The rows and settings to measure.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Name of the experiments.
    pub(crate) name: &'static str,
    pub(crate) settings: Vec<Setting>,
    pub(crate) rows: Vec<WalRow>,
    pub(crate) seconds: f64,
    pub(crate) repeats: usize,
    pub(crate) record_bytes: usize,
    /// Records in one append.
    pub(crate) batch: usize,
    pub(crate) file_bytes: u64,
    pub(crate) as_published: bool,
    pub(crate) flush: FlushChoice,
}

/// Settings that the rows of one table share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) workload: Workload,
    pub(crate) load: Load,
    /// Threads of the runtime, where their number differs from that of the processors.
    pub(crate) threads: Option<u32>,
}

impl Setting {
    /// Returns the number of threads of the runtime.
    pub(super) fn workers(&self) -> usize {
        self.threads.map_or_else(workers, |threads| threads as usize)
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, ", load {}", self.load.name())?;
        self.threads.map_or(Ok(()), |threads| write!(formatter, ", {threads} threads"))
    }
}

/// Remarks of the children on a cell, beside its figures.
#[derive(Debug, Default)]
struct Remarks {
    degraded: BTreeMap<&'static str, String>,
    source: Option<String>,
}

/// Maximum files of a sample: the one that is written through, or the log's segments while it runs.
const FILES_MAX: u64 = 16;
/// Seconds that a sample takes beside its measured time and the overhead of every sample: files
/// written through, warming up.
const EXTRA_SECONDS: f64 = 0.35;

/// Measures all settings and returns one experiment for each.
///
/// # Errors
/// The path cannot be used (a [`Failure`](forebay_report::failure::Failure)), or nothing could be measured.
pub(crate) fn measure(plan: &Plan, context: &Context) -> anyhow::Result<Vec<Experiment>> {
    let scratch = ScratchDir::find(context, plan.name)?;
    check_space(&scratch.directory, plan.file_bytes * FILES_MAX, "name a directory with more space")?;
    let mut cells = cells(plan);
    let share = fit_seconds(plan.seconds + EXTRA_SECONDS, cells.len(), context.remaining());
    let seconds = (share - EXTRA_SECONDS).max(plan.seconds.min(0.1));
    let mut seeds = SplitMix::new(context.seed);
    let device_stat = File::open(&scratch.directory).ok().and_then(|directory| device_stat(&directory));
    let mut preconditions = Preconditions::of_device(device_stat.as_deref());
    let mut remarks: Vec<(Setting, Remarks)> =
        plan.settings.iter().map(|setting| (*setting, Remarks::default())).collect();
    let interleaving = Interleaving {
        label: format!("measure {}", plan.name),
        repeats: plan.repeats,
        until: until(context),
        place: &scratch.directory,
        context,
    };
    let done = interleaving.run(&mut cells, |setting, row, _| {
        let work = WalWork {
            row,
            workload: setting.workload,
            load: setting.load,
            workers: setting.workers(),
            seconds,
            record_bytes: plan.record_bytes,
            batch: plan.batch,
            file_bytes: plan.file_bytes,
            as_published: plan.as_published,
            flush: plan.flush,
            seed: seeds.next_u64(),
        };
        let (result, extents) = one(plan.name, &scratch, device_stat.as_deref(), work, context)?;
        if let Some((_, remarks)) = remarks.iter_mut().find(|(known, _)| known == setting) {
            if let Some(why) = &result.degraded {
                remarks.degraded.entry(row.name()).or_insert_with(|| why.clone());
            }
            remarks.source = remarks.source.take().or_else(|| result.source.clone());
        }
        // Rows without files have none to inspect.
        if row != WalRow::NoAppends {
            preconditions.set_extents(extents);
        }
        Ok(sampled(result, plan, *setting))
    })?;
    let conditions = preconditions.conditions();
    let build = |(setting, remarks): (Setting, Remarks)| {
        let of_this = cells.extract_if(.., |cell| cell.setting == setting).collect();
        let mut experiment = experiment(plan, setting, of_this, remarks, seconds, done)
            .parameter("seed", context.seed)
            .parameter("file_system", scratch.filesystem.as_str());
        experiment.notes.extend(cut_short(done, plan.repeats));
        experiment.conditions.clone_from(&conditions);
        experiment
    };
    Ok(remarks.into_iter().map(build).collect())
}

/// Returns all cells. Those of one setting are adjacent, so that rows that are compared run one after
/// the other.
fn cells(plan: &Plan) -> Vec<Cell<Setting, WalRow>> {
    let mut cells = Vec::new();
    for setting in &plan.settings {
        // The baseline for the runtime's other tasks.
        let base = (setting.load != Load::None).then_some(WalRow::NoAppends);
        for row in base.into_iter().chain(plan.rows.iter().copied()) {
            cells.push(Cell::new(*setting, row));
        }
    }
    cells
}

/// Runs one sample in a process and a directory of its own. Returns its result and the layout of its files.
fn one(
    name: &str,
    scratch: &ScratchDir,
    device_stat: Option<&Path>,
    work: WalWork,
    context: &Context,
) -> anyhow::Result<(WalResult, io::Result<Extents>)> {
    let own = scratch.temp_directory(context, "wal")?;
    // Time enough to write the files through at 20 MB/s, for the slowest disks.
    let seconds_max = work.seconds + 2.0 * work.file_bytes as f64 / 20e6;
    let mut job = Job::new(name, own.path(), &work, seconds_max)?;
    job.device_stat = device_stat.map(Path::to_owned);
    let text = run_child(&job, None, &context.cleanup)?;
    let result = serde_json::from_str(&text).context("the result of the measuring process cannot be read")?;
    Ok((result, Extents::of_directory(own.path())))
}

fn sampled(result: WalResult, plan: &Plan, setting: Setting) -> SampleFigures {
    let bytes = result.appends * plan.record_bytes as u64 * plan.batch as u64;
    let claim = Claim {
        // Without appends nothing is written.
        written_bytes: result.durable.is_some().then_some(bytes),
        busy_on_purpose: setting.load == Load::Cpu,
        ..Claim::default()
    };
    SampleFigures { metrics: metrics(&result, plan.batch, setting.load), evidence: result.evidence, claim }
}

fn metrics(result: &WalResult, batch: usize, load: Load) -> Metrics {
    let appends = result.appends as f64;
    let mut metrics = Metrics::default();
    metrics.set(metric::SECONDS, result.seconds);
    if let (Some(durable), Some(seen)) = (result.durable, result.seen) {
        metrics.set(metric::APPENDS_PER_S, appends / result.seconds);
        if batch > 1 {
            metrics.set(metric::RECORDS_PER_S, appends * batch as f64 / result.seconds);
        }
        set_times(&mut metrics, &metric::DURABLE, durable);
        set_times(&mut metrics, &metric::SEEN, seen);
    }
    if let Some(late) = result.late {
        metrics.set(metric::LATE_P99_US, late.p99_us);
    }
    match load {
        Load::Cpu => metrics.set(metric::WORK_PER_S, result.work as f64 / result.seconds),
        // Beside a load, this would include the load's own time.
        Load::None => metrics.set(metric::CPU_US_PER_APPEND, result.cpu_seconds * 1e6 / appends),
        Load::Timers => match result.durable {
            // Without appends, the timer tasks show their own cost.
            None => metrics.set(metric::TIMERS_CPU_SHARE, result.cpu_seconds / result.seconds),
            Some(_) => &mut metrics,
        },
    };
    if let Some(late) = result.timers {
        set_times(&mut metrics, &metric::TIMERS_LATE, late);
    }
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
    mut cells: Vec<Cell<Setting, WalRow>>,
    mut remarks: Remarks,
    seconds: f64,
    repeats: usize,
) -> Experiment {
    set_work_kept(&mut cells);
    let mut experiment = Experiment::new(plan.name, method(plan, setting, seconds))
        .parameter("load", setting.load.name())
        .parameter("record_bytes", plan.record_bytes)
        .parameter("batch_records", plan.batch)
        .parameter("file_bytes", plan.file_bytes)
        .parameter("log_flush", plan.flush.name())
        .parameter("seconds", seconds)
        .parameter("workers", setting.workers())
        .parameter("repeats", repeats);
    experiment = match setting.workload {
        Workload::Open { rate } => experiment.parameter("loop", "open").parameter("rate_per_s", rate),
        Workload::Closed { appenders } => {
            experiment.parameter("loop", "closed").parameter("appenders", appenders)
        }
    };
    if let Some(threads) = setting.threads {
        experiment = experiment.parameter("threads", threads);
    }
    experiment = match setting.load {
        Load::None => experiment,
        Load::Cpu => experiment
            .parameter("load_tasks", setting.workers() * TASKS_PER_WORKER)
            .parameter("sorted_numbers", SORTED),
        Load::Timers => experiment.parameter("load_tasks", timers::TASKS),
    };
    if plan.as_published {
        experiment = experiment.parameter("as_published", true);
    }
    if let Some(source) = remarks.source.take() {
        experiment = experiment.parameter("source_priority", source);
    }
    if !plan.as_published && plan.rows.iter().any(|row| !row.is_log()) {
        experiment.notes.push(
            "old records are given up as it goes: the rows without a log begin again at the beginning of their file, and \
             the log uses its segments again; it was filled until it did before the sample"
                .to_owned(),
        );
    }
    for (row, why) in &remarks.degraded {
        experiment.notes.push(format!("`{row}` ran degraded: {why}"));
    }
    experiment.rows = cells.into_iter().map(|cell| build_row(cell, &mut remarks, plan)).collect();
    experiment.notes.extend(interference::own_cost(&experiment, WalRow::NoAppends.name()));
    experiment
}

/// Sets the share of the runtime's own work that remains, against the row without appends of the same repeat.
fn set_work_kept(cells: &mut [Cell<Setting, WalRow>]) {
    let base: Vec<(u32, f64)> = cells
        .iter()
        .filter(|cell| cell.way == WalRow::NoAppends)
        .filter_map(|cell| cell.sampled.as_ref().ok())
        .flatten()
        .filter_map(|(repeat, sampled)| Some((*repeat, sampled.metrics.get(metric::WORK_PER_S)?)))
        .collect();
    for (repeat, sampled) in cells.iter_mut().filter_map(|cell| cell.sampled.as_mut().ok()).flatten() {
        let alone = base.iter().find(|(other, _)| other == repeat);
        if let (Some((_, alone)), Some(work)) = (alone, sampled.metrics.get(metric::WORK_PER_S)) {
            sampled.metrics.set(metric::WORK_KEPT, work / alone);
        }
    }
}

fn build_row(cell: Cell<Setting, WalRow>, remarks: &mut Remarks, plan: &Plan) -> Row {
    let way = cell.way;
    let mut row = cell.into_row();
    row.degraded = remarks.degraded.remove(way.name());
    if plan.as_published && row.skipped.is_none() {
        return row.describe(published::description(way));
    }
    if way.is_log() { row.cache(CacheState::Direct) } else { row }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(row: WalRow, work: &[f64]) -> Cell<Setting, WalRow> {
        let sample = |(repeat, rate): (usize, &f64)| {
            let mut sampled = SampleFigures::default();
            sampled.metrics.set(metric::WORK_PER_S, *rate);
            (repeat as u32, sampled)
        };
        let setting = Setting { workload: Workload::Open { rate: 1 }, load: Load::Cpu, threads: None };
        Cell { sampled: Ok(work.iter().enumerate().map(sample).collect()), ..Cell::new(setting, row) }
    }

    #[test]
    fn work_is_compared_within_a_repeat() {
        let mut cells =
            [cell(WalRow::NoAppends, &[1000.0, 500.0]), cell(WalRow::Forebay, &[900.0, 500.0, 7.0])];
        set_work_kept(&mut cells);
        let kept = |cell: &Cell<Setting, WalRow>| -> Vec<Option<f64>> {
            let samples = cell.sampled.as_ref().expect("measured");
            samples.iter().map(|(_, sampled)| sampled.metrics.get(metric::WORK_KEPT)).collect()
        };
        assert_eq!(kept(&cells[0]), [Some(1.0), Some(1.0)]);
        assert_eq!(kept(&cells[1]), [Some(0.9), Some(1.0), None]);
    }

    #[test]
    fn the_processor_time_is_reported_without_load_only() {
        let result =
            WalResult { seconds: 2.0, appends: 10, cpu_seconds: 1e-3, work: 8, ..WalResult::default() };
        let idle = metrics(&result, 1, Load::None);
        assert_eq!((idle.get(metric::CPU_US_PER_APPEND), idle.get(metric::WORK_PER_S)), (Some(100.0), None));
        let busy = metrics(&result, 1, Load::Cpu);
        assert_eq!((busy.get(metric::CPU_US_PER_APPEND), busy.get(metric::WORK_PER_S)), (None, Some(4.0)));
    }
}
