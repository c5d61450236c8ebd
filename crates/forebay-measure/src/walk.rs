//! `measure walk`: lookups in an index on the device. Each is a chain of reads, and every read depends
//! on the one before.
//!
//! [`published`] does the other work of a lookup that is counted as published. [`index_file`] writes the
//! index ([`tree`]). [`cells`] runs every row in a fresh process ([`mod@run`]) and builds the tables.
//! [`ring`], [`blocking`] and [`engine`] are the rows, all made of lanes ([`lane`]): one lookup after the
//! other, each result verified. [`targets`] has the limits that `--check` applies to the figures.

use clap::{Args, ValueEnum};

use super::interleave::{chosen, parse_way};
use super::kind::{Kind, parsed};
use super::scan::parse_seconds;
use super::units::parse_bytes;
use crate::context::Context;
use crate::verdicts::walks;
use forebay_report::page::columns;
use forebay_report::page::view::{Axis, Gain, Role};
use forebay_report::result::{Experiment, metric};

mod blocking;
mod cells;
mod engine;
mod index_file;
mod job;
mod lane;
mod published;
mod ring;
mod run;
mod targets;
mod text;
mod tree;

use cells::{Plan, Setting, measure};
use job::{WalkRow, processors};
use tree::fan_out_max;

/// This experiment's entry in the list of experiments.
pub(crate) static KIND: Kind = Kind {
    name: "walk",
    about: "Look keys up in an index on the device, each a chain of dependent reads, in several ways",
    quick_seconds: 6,
    full_seconds: 80,
    needs_directory: true,
    options: WalkOptions::augment_args,
    measure: |matches, context| run(&parsed(matches)?, context),
    report: |context| run(&WalkOptions::for_report(), context),
    sample: |job| run::sample(&job.path, job.device_stat.as_deref(), &job.work()?),
    columns: &[
        columns::LOOKUPS_PER_S,
        columns::P50_US,
        columns::P99_US,
        columns::CPU_US_PER_LOOKUP,
        columns::CONTEXT_SWITCHES_PER_LOOKUP,
        columns::WAKES_PER_LOOKUP,
        columns::TIMERS_LATE[0],
        columns::TIMERS_LATE[1],
        columns::TIMERS_LATE[2],
        columns::TIMERS_CPU_SHARE,
        columns::IN_FLIGHT_AVG,
        columns::DEVICE_SHARE,
    ],
    compared: metric::LOOKUPS_PER_S,
    charts: &[
        metric::LOOKUPS_PER_S,
        metric::P99_US,
        metric::CPU_US_PER_LOOKUP,
        metric::WAKES_PER_LOOKUP,
        metric::TIMERS_LATE[1],
    ],
    axis: Axis::new("depth", "reads of a lookup"),
    role: Role::Other,
    gains: || {
        vec![
            Gain::new(
                metric::LOOKUPS_PER_S,
                true,
                &["blocking-per-hop", "tokio-fs"],
                "lookups a second",
                "Send dependent reads from where the last one ends",
            ),
            Gain::new(
                metric::CPU_US_PER_LOOKUP,
                false,
                &["blocking-per-hop", "tokio-fs"],
                "µs of processor time for a lookup",
                "Spend less processor time on each lookup",
            ),
        ]
    },
    title: walks::title,
    heading: walks::heading,
    verdicts: walks::of,
};

const FILE_BYTES: u64 = 1 << 30;
const FILE_BYTES_QUICK: u64 = 128 << 20;
/// Depth for which the project's targets are set.
const DEPTH: u64 = 6;
const DEPTH_MAX: u64 = 8;

/// What can be chosen for lookups.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WalkOptions {
    /// Nodes from root to leaf [default: 1 to 8 with one thread and 6 with more, with --quick 6]
    #[arg(long, value_name = "COUNT,..", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=32))]
    depth: Vec<u64>,
    /// Bytes of a node, each in a file of its own: 512, 4096 [default: both, with --quick 512]
    #[arg(long, value_name = "BYTES,..", value_delimiter = ',', value_parser = parse_node)]
    node: Vec<u64>,
    /// Records of a node [default: as many as there is room for: 30 and 254]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(2..=254))]
    fanout: Option<u64>,
    /// Lookups in flight, all threads together [default: 64]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=4096))]
    in_flight: Option<u32>,
    /// Threads that lookups come from: rings, shards, workers of the Tokio runtime; `pread` has one for each
    /// lookup in flight [default: 1, and as many as processors and 4 times as many at depth 6, with --quick
    /// 1]
    #[arg(long, value_name = "COUNT,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Vec<u32>,
    /// Only lookups with nothing beside them (nothing), or only beside a thousand timer tasks whose lateness is
    /// measured (timers) [default: nothing, and timers at depth 6 from one thread, with --quick nothing]
    #[arg(long, value_name = "WHAT")]
    beside: Option<Beside>,
    /// Size of a file [default: 1GiB, with --quick 128MiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    size: Option<u64>,
    /// Seconds of one sample [default: 0.5, with --quick 0.3]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Samples of each cell [default: 3, with --quick 1]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: Option<u32>,
    /// Only these rows: pread, io_uring, forebay-task, forebay-walk, forebay-walk-tokio, blocking-per-hop,
    /// blocking-whole, tokio-fs
    #[arg(long, value_name = "ROW,..", value_delimiter = ',', value_parser = parse_row)]
    rows: Vec<String>,
    /// Count as the published benchmarks do: each lookup makes a file with its nodes and removes it. `io_uring`, whose file
    /// is registered once, is left out
    #[arg(long)]
    as_published: bool,
    /// Measure the selection of the report: not every depth, but also the interference with timers.
    #[arg(skip)]
    in_report: bool,
    /// Compare the figures with the project's limits; the exit code is 1 when one is missed
    #[arg(long, conflicts_with_all = ["as_published", "beside"])]
    check: bool,
}

/// What else happens meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Beside {
    /// Nothing.
    Nothing,
    /// A thousand tasks that wait for a time.
    Timers,
}

impl WalkOptions {
    /// Returns the options of the report, which does not measure every depth.
    pub(crate) fn for_report() -> Self {
        Self { depth: vec![DEPTH], threads: vec![1], in_report: true, ..Self::default() }
    }
}

fn parse_row(text: &str) -> Result<String, String> {
    parse_way(text, &WalkRow::ALL)
}

fn parse_node(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes @ (512 | 4096) => Ok(bytes),
        _ => Err(format!("{text:?} cannot be a node here: 512 or 4096 bytes")),
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes >= 1 << 20 => Ok(bytes),
        _ => Err(format!("{text:?} is too small for a file with an index: at least 1MiB")),
    }
}

/// Measures lookups with every row in turn. Returns one experiment for each size of a node, depth and
/// number of threads.
///
/// # Errors
/// The path cannot be used (a [`Failure`](forebay_report::failure::Failure)), or nothing could be measured.
pub(crate) fn run(options: &WalkOptions, context: &mut Context) -> anyhow::Result<Vec<Experiment>> {
    let quick = context.quick;
    let nodes = match (options.node.as_slice(), quick) {
        ([], true) => vec![512],
        ([], false) => vec![512, 4096],
        (given, _) => given.to_vec(),
    };
    if let Some(fan_out) = options.fanout
        && let Some(small) = nodes.iter().find(|node| fan_out > fan_out_max(**node))
    {
        return Err(forebay_report::failure::Failure::Usage(format!(
            "a node of {small} bytes has room for {} records: give a smaller --fanout, or only --node 4096",
            fan_out_max(*small)
        ))
        .into());
    }
    let plan = Plan {
        nodes,
        settings: settings(options, quick, processors() as u32),
        rows: rows(options)?,
        as_published: options.as_published,
        fan_out: options.fanout,
        file_bytes: options.size.unwrap_or(if quick { FILE_BYTES_QUICK } else { FILE_BYTES }),
        in_flight: options.in_flight.unwrap_or(64) as usize,
        seconds: options.seconds.unwrap_or(if quick { 0.3 } else { 0.5 }),
        repeats: options.repeats.unwrap_or(if quick { 1 } else { 3 }) as usize,
    };
    let mut experiments = measure(&plan, context)?;
    if options.check {
        targets::check(&mut experiments, processors());
    }
    Ok(experiments)
}

/// Returns the requested rows that can be measured with these options.
fn rows(options: &WalkOptions) -> anyhow::Result<Vec<WalkRow>> {
    let mut rows = chosen(&WalkRow::ALL, &options.rows);
    rows.retain(|row| !options.as_published || *row != WalkRow::IoUring);
    if rows.is_empty() {
        let what = "`io_uring` reads a file that is registered once: it cannot be counted as the published benchmarks do";
        return Err(forebay_report::failure::Failure::Usage(what.to_owned()).into());
    }
    Ok(rows)
}

/// Returns the depths and threads that go together, and the load beside them.
fn settings(options: &WalkOptions, quick: bool, processors: u32) -> Vec<Setting> {
    let interference = options.beside == Some(Beside::Timers);
    let setting = |depth, threads: u32| Setting { depth, threads: threads as usize, timers: interference };
    let mut settings: Vec<Setting> =
        if !options.depth.is_empty() || !options.threads.is_empty() || quick || interference {
            let depths = if options.depth.is_empty() { &[DEPTH][..] } else { &options.depth };
            let threads = if options.threads.is_empty() { &[1][..] } else { &options.threads };
            let all = threads.iter().flat_map(|threads| depths.iter().map(|depth| setting(*depth, *threads)));
            all.collect()
        } else {
            let more = [processors, 4 * processors].map(|threads| setting(DEPTH, threads));
            let mut settings: Vec<Setting> = (1..=DEPTH_MAX).map(|depth| setting(depth, 1)).collect();
            let new = more.into_iter().filter(|more| more.threads > 1);
            settings.extend(new);
            settings
        };
    // Harm that is only observed has no place in a quick report, nor where other settings were requested.
    let by_itself = options.in_report || (options.depth.is_empty() && options.threads.is_empty());
    if options.beside.is_none() && by_itself && !quick && !options.check {
        settings.push(Setting { depth: DEPTH, threads: 1, timers: true });
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_depths_run_from_one_thread_and_the_sixth_from_more() {
        let shape_of = |settings: Vec<Setting>| -> Vec<(u64, usize)> {
            settings.into_iter().map(|setting| (setting.depth, setting.threads)).collect()
        };
        let all = shape_of(settings(&WalkOptions::default(), false, 2));
        assert_eq!(all.len(), 11);
        assert_eq!(all[8..], [(6, 2), (6, 8), (6, 1)]);
        assert_eq!(shape_of(settings(&WalkOptions::default(), false, 1)).len(), 10);
        assert_eq!(shape_of(settings(&WalkOptions::default(), true, 2)), [(6, 1)]);
        let (depth, threads, beside) = (vec![1, 3], vec![2, 5], Some(Beside::Nothing));
        let options = WalkOptions { depth, threads, beside, ..WalkOptions::default() };
        assert_eq!(shape_of(settings(&options, false, 2)), [(1, 2), (3, 2), (1, 5), (3, 5)]);
        let report = settings(&WalkOptions::for_report(), false, 2);
        assert_eq!(report.iter().map(|setting| setting.timers).collect::<Vec<_>>(), [false, true]);
        assert_eq!(shape_of(report), [(6, 1), (6, 1)]);
        let interference = WalkOptions { beside: Some(Beside::Timers), ..WalkOptions::default() };
        assert!(settings(&interference, true, 2).iter().all(|setting| setting.timers));
        let check = WalkOptions { check: true, ..WalkOptions::default() };
        assert!(settings(&check, false, 2).iter().all(|setting| !setting.timers), "it has no limits");
    }

    #[test]
    fn rows_that_cannot_be_counted_as_published_are_left_out_or_refused() {
        let published = |rows: &[&str]| WalkOptions {
            as_published: true,
            rows: rows.iter().map(|row| (*row).to_owned()).collect(),
            ..WalkOptions::default()
        };
        assert_eq!(rows(&published(&[])).expect("the others").len(), WalkRow::ALL.len() - 1);
        assert!(rows(&published(&["io_uring"])).is_err());
    }

    #[test]
    fn names_and_sizes_are_checked() {
        assert!(parse_row("io_uring").is_ok());
        assert!(parse_row("io-uring").is_err_and(|sentence| sentence.contains("forebay-walk-tokio")));
        assert_eq!((parse_node("4KiB"), parse_node("512")), (Ok(4096), Ok(512)));
        assert!(parse_node("1024").is_err() && parse_size("512KiB").is_err());
    }
}
