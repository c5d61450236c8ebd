//! The experiments on several hosts: the same rows as on one, with every sample on all hosts at once.

use std::path::Path;

use super::super::job::{Job, RandomRow, RandomWork, ScanRow, ScanWork};
use super::super::pattern::SplitMix;
use super::super::plan::{MEMORY_MIN_BYTES, Sizes, interleaved};
use super::super::random::{self, RandomOptions};
use super::super::sampler::Cached;
use super::super::scan::{self, ScanOptions};
use super::super::span::{Span, check_spans};
use super::super::units::show_bytes;
use super::Setup;
use super::controller::{Controller, Host, HostSample};
use super::merge::{Figures, Round, Rounds, Way, rows};
use super::message::Prepared;
use crate::progress::Unit;
use forebay_report::failure::Failure;
use forebay_report::result::{CacheState, Condition, Experiment};

const MIB: u64 = 1 << 20;

/// One way at one setting, in the experiment with this number.
struct Cell {
    experiment: usize,
    way: Way,
    rounds: Rounds,
    /// Returns the next sample, and the function for its figures.
    work: Work,
}

type Work = Box<dyn Fn(&mut SplitMix) -> anyhow::Result<(Job, Cached, Figures)>>;

/// Runs `measure random` on all hosts.
///
/// # Errors
/// Fails when a host was lost or cannot measure, or no row could be measured.
pub(super) fn random(
    controller: &mut Controller,
    options: &RandomOptions,
    setup: &Setup<'_>,
) -> anyhow::Result<Vec<Experiment>> {
    let block_bytes = options.block.unwrap_or(4096);
    let sizes = sizes(controller, options.memory, options.size, setup.quick)?;
    check_spans(&sizes, block_bytes)?;
    let prepared = prepare(controller, &sizes, setup)?;
    let threads = options.threads.unwrap_or(1) as usize;
    let seconds = options.seconds.unwrap_or(if setup.quick { 0.3 } else { 1.0 });
    let mut experiments = Vec::new();
    let mut cells = Vec::new();
    for span in Span::ALL {
        let span_bytes = span.bytes(sizes.memory_bytes, sizes.file_bytes, block_bytes);
        for depth in random::depths(options, setup.quick) {
            let experiment = frame("random", controller, &sizes, &prepared, setup)
                .parameter("span", span.name())
                .parameter("span_bytes", span_bytes)
                .parameter("depth", depth)
                .parameter("block_bytes", block_bytes)
                .parameter("threads", threads)
                .parameter("seconds", seconds);
            for row in span.rows(&options.rows) {
                let warm_bytes =
                    if row.uses_page_cache() { span_bytes.min(sizes.memory_bytes / 10 * 8) } else { 0 };
                let places = (sizes.file_bytes - span_bytes) / block_bytes + 1;
                let work = move |seeds: &mut SplitMix| {
                    let work = RandomWork {
                        row,
                        span_start: seeds.below(places) * block_bytes,
                        span_bytes,
                        block_bytes,
                        depth,
                        threads,
                        seconds,
                        seed: seeds.next_u64(),
                        warm_bytes,
                    };
                    let (job, cached) = random::job(Path::new(""), &work)?;
                    Ok((job, cached, Box::new(move |outcome, _| random::sampled(outcome, &work)) as Figures))
                };
                let way = Way {
                    name: row.name(),
                    description: row.description(),
                    cache: random_cache(row, span, &prepared),
                };
                let experiment = experiments.len();
                cells.push(Cell { experiment, way, rounds: Ok(Vec::new()), work: Box::new(work) });
            }
            experiments.push(experiment);
        }
    }
    let repeats = options.repeats.unwrap_or(if setup.quick { 2 } else { 3 }) as usize;
    measure(controller, experiments, cells, repeats, setup)
}

/// Runs `measure scan` on all hosts.
///
/// # Errors
/// As for [`random()`].
pub(super) fn scan(
    controller: &mut Controller,
    options: &ScanOptions,
    setup: &Setup<'_>,
) -> anyhow::Result<Vec<Experiment>> {
    if !options.depth.is_empty() {
        let text = "--depth is for one host: of several hosts a scan has its usual number in flight on each";
        return Err(Failure::Usage(text.to_owned()).into());
    }
    let sizes = sizes(controller, options.memory, options.size, setup.quick)?;
    let prepared = prepare(controller, &sizes, setup)?;
    let seconds_max = options.seconds.unwrap_or(if setup.quick { 1.5 } else { 5.0 });
    let experiment =
        frame("scan", controller, &sizes, &prepared, setup).parameter("seconds_max", seconds_max);
    let bytes = sizes.file_bytes;
    let cells = ScanRow::ALL
        .into_iter()
        .filter(|row| options.rows.is_empty() || options.rows.iter().any(|name| name == row.name()))
        .map(|row| {
            let cache = if row.uses_page_cache() { common_cache(&prepared) } else { CacheState::Direct };
            let way = Way { name: row.name(), description: row.description(), cache };
            let work = move |_: &mut SplitMix| {
                let work = ScanWork { row, bytes, seconds_max, depth: None };
                let (job, cached) = scan::job(Path::new(""), &work)?;
                Ok((
                    job,
                    cached,
                    Box::new(move |outcome, cache| scan::sampled(outcome, row, cache)) as Figures,
                ))
            };
            Cell { experiment: 0, way, rounds: Ok(Vec::new()), work: Box::new(work) }
        })
        .collect();
    let repeats = options.repeats.unwrap_or(if setup.quick { 3 } else { 5 }) as usize;
    measure(controller, vec![experiment], cells, repeats, setup)
}

/// Runs all cells in turn within each repeat, and builds their rows.
fn measure(
    controller: &mut Controller,
    mut experiments: Vec<Experiment>,
    mut cells: Vec<Cell>,
    repeats: usize,
    setup: &Setup<'_>,
) -> anyhow::Result<Vec<Experiment>> {
    let mut seeds = SplitMix::new(setup.seed);
    let (name, hosts) = (experiments.first().map_or("", |first| first.name.as_str()), controller.hosts.len());
    let label = format!("measure {name} on {hosts} hosts");
    let step = setup.progress.step(label, (cells.len() * repeats) as u64, Unit::Count);
    for repeat in 0..repeats {
        for (position, index) in interleaved(repeat, cells.len()).enumerate() {
            step.set((repeat * cells.len() + position) as u64);
            let cell = &mut cells[index];
            step.message(cell.way.name);
            let Ok(rounds) = &mut cell.rounds else { continue };
            let (job, cached, figures) = (cell.work)(&mut seeds)?;
            match controller.round(&job, cached)? {
                Ok(hosts) => rounds.push(Round { repeat: repeat as u32, figures, hosts }),
                Err(why) => cell.rounds = Err(why),
            }
        }
    }
    step.finish(&format!("{repeats} repeats of {} cells", cells.len()));
    if let Some(Err(why)) = cells.iter().map(|cell| &cell.rounds).find(|rounds| rounds.is_err())
        && cells.iter().all(|cell| cell.rounds.is_err())
    {
        anyhow::bail!("nothing could be measured: {why}");
    }
    for cell in &cells {
        let last = cell.rounds.as_ref().ok().and_then(|rounds| rounds.last());
        let experiment = &mut experiments[cell.experiment];
        if let Some(last) = last.filter(|_| experiment.conditions.is_empty()) {
            experiment.conditions = preconditions(last, &controller.hosts);
        }
        experiment.rows.extend(rows(&cell.way, &cell.rounds, &controller.hosts)?);
    }
    for experiment in &mut experiments {
        experiment.parameters.insert("repeats".to_owned(), repeats.into());
    }
    Ok(experiments)
}

/// Returns the preconditions of each host, with the host's label.
fn preconditions(round: &Round, hosts: &[Host]) -> Vec<Condition> {
    let of_host = |(sample, host): (&HostSample, &Host)| {
        let label = host.label.clone();
        let labelled =
            move |gate: &Condition| Condition { why: format!("@{label}: {}", gate.why), ..gate.clone() };
        sample.conditions.iter().map(labelled).collect::<Vec<_>>()
    };
    round.hosts.iter().zip(hosts).flat_map(of_host).collect()
}

/// Returns sizes that every host can afford.
fn sizes(
    controller: &Controller,
    memory: Option<u64>,
    size: Option<u64>,
    quick: bool,
) -> Result<Sizes, Failure> {
    let (usual, factor) = if quick { (256 * MIB, 4) } else { (1024 * MIB, 3) };
    let affordable = controller.hosts.iter().map(|host| host.facts.memory_affordable_bytes).min();
    let usual = usual.min(affordable.unwrap_or(usual));
    let memory_bytes = memory
        .unwrap_or_else(|| usual.min(size.map_or(u64::MAX, |bytes| bytes / factor)).max(MEMORY_MIN_BYTES));
    let file_bytes = size.unwrap_or_else(|| memory_bytes.saturating_mul(factor)).next_multiple_of(MIB);
    if memory_bytes < MEMORY_MIN_BYTES || file_bytes <= memory_bytes {
        return Err(Failure::Usage(format!(
            "--memory {} with a file of {} measures no device: give at least {}, and a --size above it",
            show_bytes(memory_bytes),
            show_bytes(file_bytes),
            show_bytes(MEMORY_MIN_BYTES)
        )));
    }
    Ok(Sizes { memory_bytes, file_bytes, limit_bytes: None })
}

fn prepare(controller: &mut Controller, sizes: &Sizes, setup: &Setup<'_>) -> anyhow::Result<Vec<Prepared>> {
    let hosts = controller.hosts.len();
    let label = format!("write {} of test data on each of {hosts} hosts", show_bytes(sizes.file_bytes));
    let step = setup.progress.step(label, hosts as u64, Unit::Count);
    controller.prepare(sizes.memory_bytes, sizes.file_bytes, setup.seed)?;
    step.finish("done");
    Ok(controller.hosts.iter().filter_map(|host| host.prepared.clone()).collect())
}

/// Returns an experiment with the parts common to all its cells.
fn frame(
    name: &str,
    controller: &Controller,
    sizes: &Sizes,
    prepared: &[Prepared],
    setup: &Setup<'_>,
) -> Experiment {
    let names: Vec<&str> = controller.hosts.iter().map(|host| host.name.as_str()).collect();
    let mut experiment = Experiment::new(name, METHOD)
        .parameter("hosts", names)
        .parameter("file_bytes", sizes.file_bytes)
        .parameter("memory_limit_bytes", sizes.memory_bytes)
        .parameter("own_file", true)
        .parameter("seed", setup.seed);
    for (host, prepared) in controller.hosts.iter().zip(prepared) {
        experiment.notes.push(format!("@{} is {}: {}", host.label, host.title(), prepared.about));
        experiment.notes.extend(prepared.notes.iter().map(|note| format!("@{}: {note}", host.label)));
    }
    experiment
}

const METHOD: &str = "Every host has a file of its own with contents of its own, and every sample runs on all hosts at \
    once, each time in a fresh process that had everything ready before and began at the same instant; how far the \
    starts lay apart is `start_skew_us`, and how well the hosts' clocks are known is `clock_error_us`. A row without @ \
    is all hosts together: all their operations, from the first start to the last end, with percentiles of their merged \
    histogram; a row with @ is one host within the same time. Rows take turns within a repeat, and a figure is the \
    median of the repeats.";

/// Returns the state of the page cache on all hosts; it is warm when hosts differ.
fn common_cache(prepared: &[Prepared]) -> CacheState {
    match prepared {
        [first, others @ ..] if others.iter().all(|other| other.cache == first.cache) => first.cache,
        _ => CacheState::Warm,
    }
}

fn random_cache(row: RandomRow, span: Span, prepared: &[Prepared]) -> CacheState {
    match (row.uses_page_cache(), span) {
        (false, _) => CacheState::Direct,
        (true, Span::WholeFile) if prepared.iter().all(|host| host.memory_limited) => {
            CacheState::MemoryLimited
        }
        (true, _) => CacheState::Warm,
    }
}
