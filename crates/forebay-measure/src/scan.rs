//! `measure scan`: a file read from beginning to end, in eight ways, and with a growing number of
//! requests in flight.

use std::fmt;
use std::path::Path;

use clap::Args;

use super::child;
use super::cold::Cold;
use super::gates::Claim;
use super::hosts::HostsArgs;
use super::interleave::{Cell, Interleaving, SampleFigures, chosen, cut_short, parse_way, until};
use super::job::{Job, ScanRow, ScanWork};
use super::kind::{DEPTH, Kind, parsed};
use super::plan::{Sizes, fit_seconds};
use super::prefault::prefault;
use super::sampler::{Cached, Outcome, Sampler};
use super::test_file::TestFile;
use super::units::{parse_bytes, show_bytes};
use crate::context::Context;
use crate::verdicts::{reads as verdicts, titles as reads};
use forebay_report::page::columns;
use forebay_report::page::view::{Gain, Role};
use forebay_report::result::{CacheState, Experiment, Metrics, Row, metric};

/// The program's description of this experiment.
pub(crate) static KIND: Kind = Kind {
    name: "scan",
    about: "Read a file from its beginning to its end, in several ways",
    quick_seconds: 23,
    full_seconds: 280,
    needs_directory: false,
    options: ScanOptions::augment_args,
    measure: |matches, context| run(&parsed(matches)?, context),
    report: |context| run(&ScanOptions::default(), context),
    sample: child::scan_sample,
    columns: &[
        columns::MB_PER_S,
        columns::CPU_S_PER_GB,
        columns::IN_FLIGHT_AVG,
        columns::MEMORY_PEAK_BYTES,
        columns::BUFFERS_PEAK_BYTES,
        columns::FIRST_DONE_S,
        columns::LAST_DONE_S,
        columns::START_SKEW_US,
        columns::SECONDS,
    ],
    compared: metric::MB_PER_S,
    charts: &[metric::MB_PER_S, metric::CPU_S_PER_GB, metric::MEMORY_PEAK_BYTES, metric::IN_FLIGHT_AVG],
    axis: DEPTH,
    role: Role::Sequential,
    gains: || {
        vec![Gain::new(
            metric::MB_PER_S,
            true,
            &["buffered"],
            "MB/s",
            "Read whole files with several large reads in flight",
        )]
    },
    title: reads::scan_title,
    heading: reads::scan_heading,
    verdicts: verdicts::scans,
};

/// Requests in flight of the sweep.
const SWEEP: [u32; 5] = [1, 2, 4, 8, 16];

/// What can be chosen for a scan.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ScanOptions {
    /// Memory that a sample may use, page cache included [default: 1GiB, with --quick 256MiB, less on small machines]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,
    /// Size of the file, or how much is read of an existing one [default: 3 times the memory, with --quick 4 times]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) size: Option<u64>,
    /// Samples of each row [default: 5, with --quick 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeats: Option<u32>,
    /// A sample ends after so many seconds even when the file does not [default: 5, with --quick 1.5]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) seconds: Option<f64>,
    /// Only these rows: buffered, mmap, direct-4k, direct-read-ahead, direct-no-copy, direct-large, default, uncached
    #[arg(long, value_name = "ROW,..", value_delimiter = ',', value_parser = parse_row)]
    pub(crate) rows: Vec<String>,
    /// Requests of 512 KiB in flight of a sweep with `direct-large` [default: 1,2,4,8,16, with --quick or --rows none]
    #[arg(long, value_name = "COUNT,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) depth: Vec<u32>,
    #[command(flatten)]
    pub(crate) hosts: HostsArgs,
}

/// One table: all rows as they are, or one row with this many requests in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Setting(Option<u32>);

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |depth| write!(formatter, ", {depth} in flight"))
    }
}

/// Returns all rows once, and then the sweep.
fn cells(options: &ScanOptions, is_quick: bool) -> Vec<Cell<Setting, ScanRow>> {
    let depths = match options.depth.as_slice() {
        [] if is_quick || !options.rows.is_empty() => &[],
        [] => &SWEEP[..],
        given => given,
    };
    let rows = chosen(&ScanRow::ALL, &options.rows).into_iter().map(|row| Cell::new(Setting(None), row));
    let of_depth = |depth: &u32| Cell::new(Setting(Some(*depth)), ScanRow::DirectLarge);
    rows.chain(depths.iter().map(of_depth)).collect()
}

/// Parses seconds as a positive number.
///
/// # Errors
/// Fails with a sentence that quotes the text.
pub(super) fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("{text:?} is not a time; write seconds such as 0.5 or 10")),
    }
}

fn parse_row(text: &str) -> Result<String, String> {
    parse_way(text, &ScanRow::ALL)
}

/// Reads the file with every row in turn, again and again, each time in a fresh process.
///
/// # Errors
/// Fails when the path cannot be used (a [`Failure`](forebay_report::failure::Failure)), or no row could be measured.
pub(crate) fn run(options: &ScanOptions, context: &mut Context) -> anyhow::Result<Vec<Experiment>> {
    let sizes = Sizes::choose(context, options.memory, options.size)?;
    let test_file = TestFile::prepare(context, sizes.file_bytes, sizes.limit_bytes)?;
    let (cold, mut notes) = Cold::choose(&test_file, sizes.memory_bytes, &context.cleanup);
    for note in &notes {
        context.progress.print_line(note);
    }
    // Twice the memory that a sample fills: the page cache takes its pages from those freed last, but not
    // only from those.
    let prefault = prefault(2 * sizes.memory_bytes);
    let mut cells = cells(options, context.quick);
    let repeats = options.repeats.unwrap_or(if context.quick { 3 } else { 5 }) as usize;
    let wanted = options.seconds.unwrap_or(if context.quick { 1.5 } else { 5.0 });
    let seconds_max = fit_seconds(wanted, cells.len(), context.remaining());
    let mut sampler = Sampler::new(&test_file, &cold, sizes.memory_bytes, &context.cleanup);
    let interleaving = Interleaving {
        label: "measure scan".to_owned(),
        repeats,
        until: until(context),
        place: &test_file.path,
        context,
    };
    let done = interleaving.run(&mut cells, |setting, row, _| {
        let depth = setting.0.map(|depth| depth as usize);
        let work = ScanWork { row, bytes: test_file.bytes, seconds_max, depth };
        let (job, cached) = job(&test_file.path, &work)?;
        Ok(sampled(sampler.run(job, cached)?, row, cold.cache_state()))
    })?;
    notes.extend(general_notes(&test_file, done, repeats));
    let mut settings: Vec<Setting> = cells.iter().map(|cell| cell.setting).collect();
    settings.dedup();
    let build = |setting: Setting| {
        let mut experiment = Experiment::new(KIND.name, method(&cold, &sizes, seconds_max))
            .parameter("file_bytes", test_file.bytes)
            .parameter("memory_limit_bytes", sizes.memory_bytes)
            .parameter("memory_touched_bytes", prefault)
            .parameter("cold", cold.name())
            .parameter("repeats", done)
            .parameter("seconds_max", seconds_max)
            .parameter("file_system", test_file.filesystem.as_str())
            .parameter("own_file", test_file.pattern.is_some())
            .parameter("seed", context.seed);
        if let Some(depth) = setting.0 {
            experiment = experiment.parameter("depth", depth);
        }
        experiment.notes.clone_from(&notes);
        experiment.conditions = test_file.preconditions.conditions();
        let of_this = cells.extract_if(.., |cell| cell.setting == setting);
        experiment.rows = of_this.map(|cell| build_row(cell, &cold)).collect();
        experiment
    };
    Ok(settings.into_iter().map(build).collect())
}

/// Returns a sample with the file at `path`, and where the page cache's part of its memory is counted.
///
/// # Errors
/// Fails when the work has no JSON.
pub(super) fn job(path: &Path, work: &ScanWork) -> anyhow::Result<(Job, Cached)> {
    let cached = match work.row {
        ScanRow::Mmap => Cached::Mapped,
        row if row.uses_page_cache() => Cached::Apart,
        _ => Cached::Not,
    };
    Ok((Job::new(KIND.name, path, work, work.seconds_max)?, cached))
}

fn build_row(cell: Cell<Setting, ScanRow>, cold: &Cold) -> Row {
    let cache = if cell.way.uses_page_cache() { cold.cache_state() } else { CacheState::Direct };
    let depth = cell.setting.0;
    let row = cell.into_row().cache(cache);
    match depth {
        Some(depth) => row.describe(format!("Forebay's scan, O_DIRECT, {depth} x 512 KiB in flight")),
        None => row,
    }
}

/// Returns the figures and claims of a sample; `cache` is the state of the page cache for rows that use it.
pub(super) fn sampled(outcome: Outcome, row: ScanRow, cache: CacheState) -> SampleFigures {
    let from_device = !row.uses_page_cache() || cache != CacheState::Warm;
    // One worker is the reader; the second is a shard that does its reads.
    let workers = Some(if matches!(row, ScanRow::Buffered | ScanRow::Mmap) { 1 } else { 2 });
    let claim = Claim {
        read_bytes: from_device.then_some(outcome.result.bytes),
        workers,
        exact: true,
        ..Claim::default()
    };
    SampleFigures { metrics: metrics(&outcome), evidence: outcome.result.evidence, claim }
}

fn metrics(outcome: &Outcome) -> Metrics {
    let result = &outcome.result;
    let mut metrics = Metrics::default();
    metrics
        .set(metric::SECONDS, result.seconds)
        .set(metric::MB_PER_S, result.bytes as f64 / 1e6 / result.seconds)
        .set(metric::CPU_S_PER_GB, result.cpu_seconds * 1e9 / result.bytes as f64);
    let optional = [
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

fn method(cold: &Cold, sizes: &Sizes, seconds_max: f64) -> String {
    format!(
        "{} Each sample is a fresh process that reads from the beginning to the end, or for {seconds_max:.1} s where that is \
         shorter; rows take turns within a repeat, and a figure is the median of the repeats. The time runs from the \
         first read to the last block; starting the process, opening the file and starting the engine are not in it. \
         CPU is user and system time of all threads of the process in that time. Memory is the peak of {}. Requests in \
         flight are the block device's own sum of request times divided by the wall time: what others do on the \
         device counts too, and a large read counts as the requests it was split into. Every row looks at the first \
         eight bytes of each page.",
        cold.describe(sizes.memory_bytes),
        memory_source(cold),
    )
}

/// Returns the source of the memory figures.
pub(super) fn memory_source(cold: &Cold) -> &'static str {
    match cold {
        Cold::Cgroup(_) => "the sample's cgroup: process, page cache and kernel memory, from start to end",
        _ => {
            "the process's resident memory, plus the part of the file in the page cache after the sample, for rows \
             that use it"
        }
    }
}

/// Returns facts about the file and the repeats that a reader of the figures needs.
pub(super) fn general_notes(test_file: &TestFile, done: usize, wanted: usize) -> Vec<String> {
    let mut notes = Vec::new();
    if test_file.pattern.is_some() {
        notes.push(format!(
            "the {} read were written by this program before, do not compress, and were compared while they were read",
            show_bytes(test_file.bytes)
        ));
    } else {
        notes.push(
            "the file existed before and was only read: whether its contents compress, and whether it has holes, \
             which no device reads, is not known"
                .to_owned(),
        );
    }
    notes.push("a drive, a RAID controller or a virtual machine's host may hold the file in memory of its own; no row is spared that, none profits alone".to_owned());
    if test_file.device_stat.is_none() {
        notes.push(format!(
            "requests in flight are not known: {} has no block device that counts them",
            test_file.filesystem
        ));
    }
    notes.extend(cut_short(done, wanted));
    notes
}

#[cfg(test)]
mod tests {
    use super::super::job::SampleResult;
    use super::*;

    fn result() -> SampleResult {
        SampleResult {
            seconds: 2.0,
            cpu_seconds: 0.5,
            in_flight_avg: Some(4.5),
            bytes: 2_000_000_000,
            operations: 10,
            buffers_peak_bytes: Some(4096),
            ..SampleResult::default()
        }
    }

    #[test]
    fn metrics_have_their_units() {
        let outcome = Outcome { result: result(), memory_peak_bytes: Some(1 << 20) };
        let metrics = metrics(&outcome);
        assert_eq!(metrics.get(metric::MB_PER_S), Some(1000.0));
        assert_eq!(metrics.get(metric::CPU_S_PER_GB), Some(0.25));
        assert_eq!(metrics.get(metric::MEMORY_PEAK_BYTES), Some(1_048_576.0));
        assert_eq!(metrics.get(metric::BUFFERS_PEAK_BYTES), Some(4096.0));
        assert_eq!(metrics.get(metric::IN_FLIGHT_AVG), Some(4.5));
    }

    #[test]
    fn a_failed_row_has_its_reason_and_direct_rows_are_never_warm() {
        let mut cell = Cell::new(Setting(None), ScanRow::Uncached);
        cell.sampled = Err("no".to_owned());
        let row = build_row(cell, &Cold::Warm);
        assert_eq!((row.skipped.as_deref(), row.cache), (Some("no"), Some(CacheState::Warm)));
        let row = build_row(Cell::new(Setting(None), ScanRow::DirectLarge), &Cold::Warm);
        assert_eq!(row.cache, Some(CacheState::Direct));
    }

    #[test]
    fn a_sweep_follows_the_rows_unless_it_is_not_wanted() {
        let depths = |options: &ScanOptions, is_quick| -> Vec<Option<u32>> {
            cells(options, is_quick).iter().map(|cell| cell.setting.0).collect()
        };
        let usual = ScanOptions::default();
        assert_eq!(depths(&usual, false)[7..], [None, Some(1), Some(2), Some(4), Some(8), Some(16)]);
        assert_eq!(depths(&usual, true), [None; 8]);
        let rows = ScanOptions { rows: vec!["mmap".to_owned()], ..ScanOptions::default() };
        assert_eq!(depths(&rows, false), [None]);
        let both = ScanOptions { depth: vec![3], ..rows };
        assert_eq!(depths(&both, true), [None, Some(3)]);
    }

    #[test]
    fn names_of_rows_and_times_are_checked() {
        assert!(parse_row("mmap").is_ok());
        assert!(parse_row("map").is_err_and(|sentence| sentence.contains("direct-no-copy")));
        assert_eq!(parse_seconds("0.5"), Ok(0.5));
        for wrong in ["0", "-1", "x", "inf", "NaN"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
    }
}
