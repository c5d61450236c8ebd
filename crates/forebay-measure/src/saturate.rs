//! `measure saturate`: throughput and latency over the number of readers, and at a rate that does not wait
//! for the device.
//!
//! First a closed loop: 1 to 256 readers, each of which begins its next read as the last one ends. Then an
//! open loop at shares of the most that each row reached, latencies counted from when a read was *due*.
//! [`text`] describes the method.

use clap::Args;

use super::interleave::{self, parse_way};
use super::kind::{Kind, parsed};
use super::pattern::SplitMix;
use super::plan::fit_seconds;
use super::reads::names::{self, CPU_SHARE, MEAN_US};
use super::reads::{self, Cell, Pacing, Setting, Shape, Way, build_row, common_metrics, extra_seconds};
use super::scan::parse_seconds;
use super::test_file::TestFile;
use super::units::parse_bytes;
use crate::context::{Context, Target};
use crate::verdicts::saturate;
use forebay_report::failure::Failure;
use forebay_report::page::columns;
use forebay_report::page::view::{Axis, Role};
use forebay_report::result::{Experiment, Row, metric};

mod text;

/// The program's description of this experiment.
pub(crate) static KIND: Kind = Kind {
    name: "saturate",
    about: "Find the number of readers, and the rate, from which on latency only grows",
    quick_seconds: 16,
    full_seconds: 120,
    needs_directory: false,
    options: SaturateOptions::augment_args,
    measure: |matches, context| run(&parsed(matches)?, context),
    report: |context| run(&SaturateOptions::default(), context),
    sample: reads::sample,
    columns: &[
        names::OFFERED,
        columns::IOPS,
        names::MEAN,
        columns::P50_US,
        columns::P99_US,
        columns::P99_9_US,
        columns::LATE_P99_US,
        names::INCOMPLETE,
        columns::CPU_US_PER_IO,
        names::SHARE,
        columns::CONTEXT_SWITCHES_PER_IO,
        columns::IN_FLIGHT_AVG,
    ],
    compared: metric::IOPS,
    charts: &[metric::IOPS, metric::P99_US, MEAN_US, CPU_SHARE],
    axis: Axis::new("load", "readers, or in the open loop % of the row's most"),
    role: Role::Saturation,
    gains: Vec::new,
    title: saturate::title,
    heading: saturate::heading,
    verdicts: saturate::of,
};

const WAYS: [Way; 3] = [Way::Pread, Way::UringDeferTaskrun, Way::ForebayTokio];
const READERS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const READERS_QUICK: [u32; 4] = [1, 8, 64, 256];
const LOADS: [u32; 6] = [10, 25, 50, 75, 90, 95];
const LOADS_QUICK: [u32; 2] = [50, 90];
pub(super) const FILE_BYTES: u64 = 1 << 30;
pub(super) const FILE_BYTES_QUICK: u64 = 256 << 20;

/// What can be chosen for the search for the limit.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SaturateOptions {
    /// Readers of the closed loop [default: 1,2,4,8,16,32,64,128,256, with --quick 1,8,64,256]
    #[arg(long, value_name = "COUNT,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    readers: Vec<u32>,
    /// Rates of the open loop, in per cent of the most that the row reached; 0: no open loop [default:
    /// 10,25,50,75,90,95, with --quick 50,90]
    #[arg(long, value_name = "PERCENT,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..=200))]
    load: Vec<u32>,
    /// Bytes of one read [default: 4KiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_block)]
    block: Option<u64>,
    /// Size of the file, or how much is read of an existing one [default: 1GiB, with --quick 256MiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    size: Option<u64>,
    /// Seconds of one sample [default: 0.5, with --quick 0.15]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Samples of each cell [default: 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: Option<u32>,
    /// Only these rows: pread, io_uring-defer-taskrun, forebay-tokio
    #[arg(long, value_name = "ROW,..", value_delimiter = ',', value_parser = parse_row)]
    rows: Vec<String>,
}

fn parse_row(text: &str) -> Result<String, String> {
    parse_way(text, &WAYS)
}

/// Parses the bytes of a block for direct reads.
///
/// # Errors
/// Fails with a sentence that names the limits.
pub(super) fn parse_block(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    if bytes.is_multiple_of(4096) && bytes <= 1 << 20 {
        Ok(bytes)
    } else {
        Err(format!("{text:?} cannot be a block: direct reads need a multiple of 4KiB, here at most 1MiB"))
    }
}

/// Returns the file for experiments that read directly, with enough blocks for random places.
///
/// # Errors
/// Fails with a [`Failure`] when the path cannot be used, or the file is too small.
pub(super) fn test_file(context: &Context, size: Option<u64>, block_bytes: u64) -> anyhow::Result<TestFile> {
    const BLOCKS_MIN: u64 = 64;
    let usual = if context.quick { FILE_BYTES_QUICK } else { FILE_BYTES };
    let bytes = size.unwrap_or(usual).next_multiple_of(4096);
    let too_small = |bytes: u64| {
        Failure::Unsuitable(format!(
            "{} is too small for random reads of {block_bytes} bytes: it must hold at least {BLOCKS_MIN} of them; give a \
             larger --size, or a larger file",
            super::units::show_bytes(bytes)
        ))
    };
    if bytes < BLOCKS_MIN * block_bytes {
        return Err(too_small(bytes).into());
    }
    let limit = match context.target {
        Target::Existing(_) => size,
        _ => Some(bytes),
    };
    let test_file = TestFile::prepare(context, bytes, limit)?;
    if test_file.bytes < BLOCKS_MIN * block_bytes {
        return Err(too_small(test_file.bytes).into());
    }
    Ok(test_file)
}

/// Returns the number of processors that this process may use.
pub(super) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn chosen(given: &[u32], quick: bool, usual: &[u32], short: &[u32]) -> Vec<u32> {
    let mut all = match (given, quick) {
        ([], true) => short.to_vec(),
        ([], false) => usual.to_vec(),
        (given, _) => given.to_vec(),
    };
    all.sort_unstable();
    all.dedup();
    all
}

/// Reads with every row, number of readers and rate. Returns one experiment for each number and
/// for each rate.
///
/// # Errors
/// Fails when the path cannot be used (a [`Failure`]), or nothing could be measured.
pub(crate) fn run(options: &SaturateOptions, context: &mut Context) -> anyhow::Result<Vec<Experiment>> {
    let block_bytes = options.block.unwrap_or(4096);
    let test_file = test_file(context, options.size, block_bytes)?;
    let readers = chosen(&options.readers, context.quick, &READERS, &READERS_QUICK);
    let mut loads = chosen(&options.load, context.quick, &LOADS, &LOADS_QUICK);
    loads.retain(|load| *load > 0);
    let ways = interleave::chosen(&WAYS, &options.rows);
    let repeats = options.repeats.unwrap_or(3) as usize;
    let wanted = options.seconds.unwrap_or(if context.quick { 0.15 } else { 0.5 });
    let samples = (readers.len() + loads.len()) * ways.len() * repeats;
    let extra = extra_seconds(false);
    let fitted = fit_seconds(wanted + extra, samples, context.remaining()) - extra;
    let workers = processors();
    let shape = Shape {
        experiment: KIND.name,
        test_file: &test_file,
        context,
        namespace: None,
        block_bytes,
        workers,
        seconds: fitted.max(wanted.min(0.1)),
        count_calls: false,
    };
    let mut seeds = SplitMix::new(context.seed);
    let figures = |way, setting: &Setting, result: &_| common_metrics(way, setting, result, workers);

    let mut closed: Vec<Cell> =
        cells(readers.len(), &ways, |index, _| (readers[index] as usize, Pacing::Closed));
    let done = shape.run(&mut closed, repeats, &mut seeds, figures)?;
    let mut experiments = Vec::new();
    for (index, count) in readers.iter().enumerate() {
        let mut experiment =
            text::experiment(&shape, "closed", done).parameter("load", *count).parameter("readers", *count);
        let of_this = closed.extract_if(.., |cell| cell.setting.experiment == index);
        experiment.conditions = test_file.preconditions.conditions();
        experiment.rows = of_this.map(build_row).collect();
        experiments.push(experiment);
    }

    let most: Vec<Option<f64>> = ways.iter().map(|way| most_of(&experiments, way.name())).collect();
    let reached: Vec<Way> =
        ways.iter().zip(&most).filter(|(_, most)| most.is_some()).map(|(way, _)| *way).collect();
    let rate = |index: usize, way: Way| {
        let known = ways.iter().position(|other| *other == way).and_then(|place| most[place]);
        known.unwrap_or(1.0) * f64::from(loads[index]) / 100.0
    };
    // As many places as the most readers: a rate does not determine how many are needed.
    let places = readers.last().copied().unwrap_or(1) as usize;
    let mut open =
        cells(loads.len(), &reached, |index, way| (places, Pacing::Open { per_second: rate(index, way) }));
    if open.is_empty() {
        return Ok(experiments);
    }
    let done = shape.run(&mut open, repeats, &mut seeds, figures)?;
    for (index, load) in loads.iter().enumerate() {
        let mut experiment = text::experiment(&shape, "open", done)
            .parameter("load", *load)
            .parameter("load_percent", *load)
            .parameter("readers_max", places);
        experiment.conditions = test_file.preconditions.conditions();
        experiment.rows =
            open.extract_if(.., |cell| cell.setting.experiment == index).map(build_row).collect();
        experiments.push(experiment);
    }
    Ok(experiments)
}

fn cells(experiments: usize, ways: &[Way], setting: impl Fn(usize, Way) -> (usize, Pacing)) -> Vec<Cell> {
    let mut cells = Vec::new();
    for experiment in 0..experiments {
        for way in ways {
            let (readers, pacing) = setting(experiment, *way);
            cells.push(Cell::new(Setting { readers, pacing, experiment }, *way));
        }
    }
    cells
}

/// Returns the most that a row reached with any number of readers.
fn most_of(experiments: &[Experiment], row: &str) -> Option<f64> {
    let rates = experiments.iter().filter_map(|experiment| experiment.row(row).and_then(rate_of));
    rates.max_by(f64::total_cmp)
}

fn rate_of(row: &Row) -> Option<f64> {
    row.metrics.get(metric::IOPS).filter(|rate| *rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_go_to_256_in_powers_of_two_and_rates_to_95_percent() {
        let all = chosen(&[], false, &READERS, &READERS_QUICK);
        assert_eq!((all.len(), all[0], all[8]), (9, 1, 256));
        assert!(all.windows(2).all(|pair| pair[1] == 2 * pair[0]));
        assert_eq!(chosen(&[8, 1, 8], true, &READERS, &READERS_QUICK), [1, 8]);
        assert_eq!((LOADS[0], LOADS[5]), (10, 95));
    }

    #[test]
    fn names_and_blocks_are_checked() {
        assert!(parse_row("pread").is_ok());
        assert!(parse_row("mmap").is_err_and(|sentence| sentence.contains("forebay-tokio")));
        assert_eq!(parse_block("8KiB"), Ok(8192));
        assert!(parse_block("512").is_err() && parse_block("2MiB").is_err());
    }

    #[test]
    fn every_experiment_has_a_cell_for_each_way() {
        let made = cells(2, &WAYS, |index, _| (index + 1, Pacing::Closed));
        let numbers: Vec<(usize, usize)> =
            made.iter().map(|cell| (cell.setting.experiment, cell.setting.readers)).collect();
        assert_eq!(numbers, [(0, 1), (0, 1), (0, 1), (1, 2), (1, 2), (1, 2)]);
    }
}
