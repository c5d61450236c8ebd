//! `measure random`: blocks read at random, within a span that memory could hold and over the whole file.

use std::fmt;
use std::path::Path;

use clap::Args;

use super::child;
use super::cold::Cold;
use super::commands::{self, NamespaceArgs};
use super::gates::Claim;
use super::hosts::HostsArgs;
use super::interleave::{Cell, Interleaving, SampleFigures, parse_way, until};
use super::io_limit::IoLimit;
use super::job::{Job, RandomRow, RandomWork};
use super::kind::{DEPTH, Kind, parsed};
use super::pattern::SplitMix;
use super::plan::{Sizes, fit_seconds};
use super::sampler::{Cached, Outcome, Sampler};
use super::scan::{general_notes, memory_source, parse_seconds};
use super::span::{Span, check_spans, parse_block};
use super::test_file::TestFile;
use super::units::{parse_bytes, show_bytes};
use crate::context::Context;
use crate::verdicts::{reads as verdicts, titles as reads};
use forebay_report::page::columns;
use forebay_report::page::view::{Gain, Role};
use forebay_report::result::{CacheState, Experiment, Metrics, Row, metric};

const SWEEP: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
const SWEEP_QUICK: [usize; 4] = [1, 8, 32, 128];

/// The program's description of this experiment.
pub(crate) static KIND: Kind = Kind {
    name: "random",
    about: "Read blocks at random places, in several ways",
    quick_seconds: 19,
    full_seconds: 180,
    needs_directory: false,
    options: RandomOptions::augment_args,
    measure: |matches, context| run(&parsed(matches)?, context),
    report: |context| run(&RandomOptions::default(), context),
    sample: child::random_sample,
    columns: &[
        columns::IOPS,
        columns::P50_US,
        columns::P99_US,
        columns::P99_9_US,
        columns::CPU_US_PER_IO,
        columns::CONTEXT_SWITCHES_PER_IO,
        columns::IN_FLIGHT_AVG,
        columns::MEMORY_PEAK_BYTES,
        columns::BUFFERS_PEAK_BYTES,
        columns::FIRST_DONE_S,
        columns::LAST_DONE_S,
        columns::START_SKEW_US,
    ],
    compared: metric::IOPS,
    charts: &[metric::IOPS, metric::P99_US, metric::CPU_US_PER_IO],
    axis: DEPTH,
    role: Role::Random,
    gains: || {
        vec![
            Gain::new(
                metric::IOPS,
                true,
                &["buffered"],
                "IOPS",
                "Read blocks past the page cache where memory cannot hold them",
            ),
            Gain::new(
                metric::CPU_US_PER_IO,
                false,
                &["direct-pread"],
                "µs of processor time for a read",
                "Let one thread keep many reads in flight, instead of one thread for each",
            ),
        ]
    },
    title: reads::random_title,
    heading: reads::random_heading,
    verdicts: verdicts::randoms,
};

/// What can be chosen for random reads.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct RandomOptions {
    /// Memory that a sample may use, page cache included [default: 1GiB, with --quick 256MiB, less on small machines]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,
    /// Size of the file, or how much is used of an existing one [default: 3 times the memory, with --quick 4 times]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) size: Option<u64>,
    /// Reads in flight, all threads together [default: a sweep 1,2,4,..128, with --quick 1,8,32,128]
    #[arg(long, value_name = "COUNT", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) depth: Vec<u32>,
    /// Bytes of one read [default: 4KiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_block)]
    pub(crate) block: Option<u64>,
    /// Seconds of one sample [default: 1, with --quick 0.3]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) seconds: Option<f64>,
    /// Shards of `direct`, worker threads and shards of `direct-tokio`; the other rows have one thread for each read in flight [default: 1]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) threads: Option<u32>,
    /// Samples of each cell [default: 3, with --quick 2]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeats: Option<u32>,
    /// Only these rows: buffered, mmap, direct, direct-polled, direct-commands, direct-tokio, direct-pread, read-many,
    /// read-many-wide
    #[arg(long, value_name = "ROW,..", value_delimiter = ',', value_parser = parse_row)]
    pub(crate) rows: Vec<String>,
    #[command(flatten)]
    pub(super) commands: NamespaceArgs,
    #[command(flatten)]
    pub(crate) hosts: HostsArgs,
}

fn parse_row(text: &str) -> Result<String, String> {
    parse_way(text, &RandomRow::ALL)
}

/// The parameters common to the rows of one table.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Setting {
    span: Span,
    depth: usize,
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, ", {} in flight, {}", self.depth, self.span.name())
    }
}

/// Reads at random with every row in turn, and returns one experiment for each span and depth.
///
/// # Errors
/// Fails when the path cannot be used (a [`Failure`](forebay_report::failure::Failure)), the file is too small for the
/// span, or nothing could be measured.
pub(crate) fn run(options: &RandomOptions, context: &mut Context) -> anyhow::Result<Vec<Experiment>> {
    let block_bytes = options.block.unwrap_or(4096);
    let namespace = options.commands.checked(&options.rows)?;
    let sizes = Sizes::choose(context, options.memory, options.size)?;
    check_spans(&sizes, block_bytes)?;
    let test_file = TestFile::prepare(context, sizes.file_bytes, sizes.limit_bytes)?;
    let (cold, notes) = Cold::choose(&test_file, sizes.memory_bytes, &context.cleanup);
    for note in &notes {
        context.progress.print_line(note);
    }
    let depths = depths(options, context.quick);
    let mut cells = cells(options, &depths, namespace.is_some());
    let repeats = options.repeats.unwrap_or(if context.quick { 2 } else { 3 }) as usize;
    let wanted = options.seconds.unwrap_or(if context.quick { 0.3 } else { 1.0 });
    let shape = Shape {
        test_file: &test_file,
        sizes,
        block_bytes,
        seconds: fit_seconds(wanted, cells.len(), context.remaining()),
        threads: options.threads.unwrap_or(1) as usize,
        seed: context.seed,
    };
    let mut sampler = Sampler::new(&test_file, &cold, sizes.memory_bytes, &context.cleanup);
    let mut seeds = SplitMix::new(context.seed);

    let interleaving = Interleaving {
        label: "measure random".to_owned(),
        repeats,
        until: until(context),
        place: &test_file.path,
        context,
    };
    let done = interleaving.run(&mut cells, |setting, row, _| {
        let work = shape.work(setting.span, setting.depth, row, &mut seeds);
        let (mut job, cached) = job(&test_file.path, &work)?;
        job.namespace = namespace.map(Path::to_owned);
        Ok(sampled(sampler.run(job, cached)?, &work))
    })?;
    let mut notes: Vec<String> = notes.into_iter().chain(general_notes(&test_file, done, repeats)).collect();
    notes.extend(namespace.map(commands::note));
    let mut experiments = Vec::new();
    for span in Span::ALL {
        for depth in &depths {
            let mut experiment = shape.experiment(span, *depth, &cold, done);
            experiment.notes.extend(notes.iter().cloned());
            experiment.conditions = test_file.preconditions.conditions();
            let of_this = cells.extract_if(.., |cell| cell.setting == Setting { span, depth: *depth });
            experiment.rows = of_this.map(|cell| build_row(cell, &cold)).collect();
            experiments.push(experiment);
        }
    }
    Ok(experiments)
}

/// Returns a sample with the file at `path`, and where the page cache's part of its memory is counted.
///
/// # Errors
/// Fails when the work has no JSON.
pub(super) fn job(path: &Path, work: &RandomWork) -> anyhow::Result<(Job, Cached)> {
    let cached = match work.row {
        RandomRow::Mmap => Cached::Mapped,
        row if row.uses_page_cache() => Cached::Apart,
        _ => Cached::Not,
    };
    // Warming reads at 20 MB/s on the slowest of disks.
    let seconds_max = work.seconds + work.warm_bytes as f64 / 20e6;
    Ok((Job::new(KIND.name, path, work, seconds_max)?, cached))
}

/// Returns the numbers of reads in flight to measure, one after the other.
pub(super) fn depths(options: &RandomOptions, quick: bool) -> Vec<usize> {
    match (options.depth.as_slice(), quick) {
        ([], true) => SWEEP_QUICK.to_vec(),
        ([], false) => SWEEP.to_vec(),
        (given, _) => given.iter().map(|depth| *depth as usize).collect(),
    }
}

/// Returns all cells. Those of one span and depth are beside each other, so that compared rows run one
/// after the other.
fn cells(options: &RandomOptions, depths: &[usize], has_namespace: bool) -> Vec<Cell<Setting, RandomRow>> {
    let is_there = |row: &RandomRow| has_namespace || *row != RandomRow::DirectCommands;
    let mut cells = Vec::new();
    for span in Span::ALL {
        for depth in depths {
            let rows = span.rows(&options.rows).into_iter().filter(is_there);
            cells.extend(rows.map(|row| Cell::new(Setting { span, depth: *depth }, row)));
        }
    }
    cells
}

/// The parameters common to all cells.
#[derive(Debug)]
struct Shape<'a> {
    test_file: &'a TestFile,
    sizes: Sizes,
    block_bytes: u64,
    seconds: f64,
    threads: usize,
    seed: u64,
}

impl Shape<'_> {
    fn span_bytes(&self, span: Span) -> u64 {
        span.bytes(self.sizes.memory_bytes, self.test_file.bytes, self.block_bytes)
    }

    fn work(&self, span: Span, depth: usize, row: RandomRow, seeds: &mut SplitMix) -> RandomWork {
        let span_bytes = self.span_bytes(span);
        let places = (self.test_file.bytes - span_bytes) / self.block_bytes + 1;
        RandomWork {
            row,
            span_start: seeds.below(places) * self.block_bytes,
            span_bytes,
            block_bytes: self.block_bytes,
            depth,
            threads: self.threads,
            seconds: self.seconds,
            seed: seeds.next_u64(),
            // Not all of the memory: the process needs a part of it too.
            warm_bytes: if row.uses_page_cache() {
                span_bytes.min(self.sizes.memory_bytes / 10 * 8)
            } else {
                0
            },
        }
    }

    fn experiment(&self, span: Span, depth: usize, cold: &Cold, repeats: usize) -> Experiment {
        let mut experiment = Experiment::new(KIND.name, self.method(cold))
            .parameter("span", span.name())
            .parameter("span_bytes", self.span_bytes(span))
            .parameter("depth", depth)
            .parameter("block_bytes", self.block_bytes)
            .parameter("threads", self.threads)
            .parameter("seconds", self.seconds)
            .parameter("file_bytes", self.test_file.bytes)
            .parameter("memory_limit_bytes", self.sizes.memory_bytes)
            .parameter("cold", cold.name())
            .parameter("repeats", repeats)
            .parameter("file_system", self.test_file.filesystem.as_str())
            .parameter("own_file", self.test_file.pattern.is_some())
            .parameter("seed", self.seed);
        experiment.notes.push(match span {
            Span::TenthOfMemory => {
                "the span fits into memory: `buffered` is warm on purpose, and shows the page cache when all fits".to_owned()
            }
            Span::WholeFile => format!(
                "`buffered` begins with {} of the file in memory, as after a long run, and goes to the device for the rest",
                show_bytes(self.sizes.memory_bytes / 10 * 8)
            ),
        });
        IoLimit::note(self.test_file.io_limit.as_ref(), experiment)
    }

    fn method(&self, cold: &Cold) -> String {
        format!(
            "{} Each sample is a fresh process that reads blocks of {} at random offsets for {:.2} s with the stated \
             number of reads in flight; every sample has its own random seed, because a device or a host that caches \
             would otherwise know the offsets. Rows take turns within a repeat, and a figure is the median of the \
             repeats. Latency is the caller's wait, from the request to the block. CPU is user and system time of \
             all threads of the process, divided by the reads; context switches are voluntary and involuntary ones \
             of all threads. Memory is the peak of {}.",
            cold.describe(self.sizes.memory_bytes),
            show_bytes(self.block_bytes),
            self.seconds,
            memory_source(cold),
        )
    }
}

fn build_row(cell: Cell<Setting, RandomRow>, cold: &Cold) -> Row {
    let cache = match (cell.way.uses_page_cache(), cell.setting.span) {
        (false, _) => CacheState::Direct,
        (true, Span::TenthOfMemory) => CacheState::Warm,
        // Without a limit nothing keeps the whole file from staying in memory.
        (true, Span::WholeFile) if matches!(cold, Cold::Cgroup(_)) => CacheState::MemoryLimited,
        (true, Span::WholeFile) => CacheState::Warm,
    };
    cell.into_row().cache(cache)
}

/// Returns the figures and claims of a sample.
pub(super) fn sampled(outcome: Outcome, work: &RandomWork) -> SampleFigures {
    let workers = match work.row {
        RandomRow::Buffered | RandomRow::Mmap | RandomRow::DirectPread => work.depth,
        RandomRow::Direct | RandomRow::DirectPolled => work.threads,
        RandomRow::DirectCommands | RandomRow::ReadMany | RandomRow::ReadManyWide => 1,
        // The runtime has as many worker threads as the engine has shards.
        RandomRow::DirectTokio => 2 * work.threads,
    };
    let claim = Claim {
        // Data kept in the page cache on purpose cause no requests to the device, and the block layer does
        // not count commands.
        read_bytes: (!work.row.uses_page_cache() && work.row != RandomRow::DirectCommands)
            .then_some(outcome.result.bytes),
        workers: Some(workers),
        // Bytes between two merged blocks are read with them.
        exact: !matches!(work.row, RandomRow::ReadMany | RandomRow::ReadManyWide),
        ..Claim::default()
    };
    SampleFigures { metrics: metrics(&outcome), evidence: outcome.result.evidence, claim }
}

fn metrics(outcome: &Outcome) -> Metrics {
    let result = &outcome.result;
    let operations = result.operations as f64;
    let mut metrics = Metrics::default();
    metrics
        .set(metric::SECONDS, result.seconds)
        .set(metric::IOPS, operations / result.seconds)
        .set(metric::MB_PER_S, result.bytes as f64 / 1e6 / result.seconds)
        .set(metric::CPU_US_PER_IO, result.cpu_seconds * 1e6 / operations)
        .set(metric::CONTEXT_SWITCHES_PER_IO, result.context_switches as f64 / operations);
    let optional = [
        (metric::P50_US, result.p50_us),
        (metric::P99_US, result.p99_us),
        (metric::P99_9_US, result.p99_9_us),
        (metric::MEMORY_PEAK_BYTES, outcome.memory_peak_bytes.map(|bytes| bytes as f64)),
        (metric::BUFFERS_PEAK_BYTES, result.buffers_peak_bytes.map(|bytes| bytes as f64)),
        (metric::IN_FLIGHT_AVG, result.in_flight_avg),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            metrics.set(name, value);
        }
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::super::job::SampleResult;
    use super::*;

    #[test]
    fn metrics_are_divided_by_the_reads() {
        let result = SampleResult {
            seconds: 0.5,
            cpu_seconds: 0.1,
            context_switches: 2_000,
            bytes: 4_096_000,
            operations: 1_000,
            p50_us: Some(50.0),
            p99_us: Some(90.0),
            p99_9_us: Some(99.0),
            ..SampleResult::default()
        };
        let metrics = metrics(&Outcome { result, memory_peak_bytes: None });
        assert_eq!(metrics.get(metric::IOPS), Some(2_000.0));
        assert_eq!(metrics.get(metric::CPU_US_PER_IO), Some(100.0));
        assert_eq!(metrics.get(metric::CONTEXT_SWITCHES_PER_IO), Some(2.0));
        assert_eq!(metrics.get(metric::P99_9_US), Some(99.0));
        assert_eq!(metrics.get(metric::MEMORY_PEAK_BYTES), None);
    }

    #[test]
    fn comparison_rows_run_over_the_whole_file_only_unless_named() {
        let names = |span: Span, options: &RandomOptions| -> Vec<&str> {
            span.rows(&options.rows).into_iter().map(RandomRow::name).collect()
        };
        let mut options = RandomOptions::default();
        assert_eq!(
            names(Span::TenthOfMemory, &options),
            ["buffered", "mmap", "direct", "read-many", "read-many-wide"]
        );
        assert_eq!(
            names(Span::WholeFile, &options),
            [
                "buffered",
                "mmap",
                "direct",
                "direct-polled",
                "direct-commands",
                "direct-tokio",
                "direct-pread",
                "read-many",
                "read-many-wide"
            ]
        );
        options.rows = vec!["direct-pread".to_owned()];
        assert_eq!(names(Span::TenthOfMemory, &options), ["direct-pread"]);
        assert_eq!(cells(&options, &[1, 8], false).len(), 4);
        options.rows.clear();
        let commands = |has| {
            cells(&options, &[1], has).iter().filter(|cell| cell.way.name() == "direct-commands").count()
        };
        assert_eq!([commands(false), commands(true)], [0, 1]);
    }
}
