//! `measure writes`: random writes of 4 KiB into a file that was written before. Shows the parts
//! of a program's time for them that are usually left out: open, sync, close.
//!
//! [`cells`] makes the file, runs every row in a fresh process ([`mod@run`]) and builds the tables.
//! [`blocking`] and [`engine`] are the rows, both made of clients ([`client`]) with a part of the
//! blocks each.

use clap::Args;

use super::interleave::{chosen, parse_way};
use super::kind::{Kind, parsed};
use super::scan::parse_seconds;
use super::units::parse_bytes;
use crate::context::Context;
use crate::verdicts::writes;
use forebay_report::failure::Failure;
use forebay_report::page::columns::{self, Definition, column};
use forebay_report::page::view::{Axis, Gain, Role};
use forebay_report::result::{Experiment, metric};

mod blocking;
mod cells;
mod client;
mod engine;
mod job;
mod run;

#[cfg(test)]
pub(crate) use cells::simulated;
use cells::{Plan, Setting, measure};
use job::{BLOCK_BYTES, Pattern, WriteRow};

/// This experiment's entry in the list of experiments.
pub(crate) static KIND: Kind = Kind {
    name: "writes",
    about: "Write blocks at random, with and without the time for open, sync and close, in several ways",
    quick_seconds: 12,
    full_seconds: 200,
    needs_directory: true,
    options: WritesOptions::augment_args,
    measure: |matches, context| run(&parsed(matches)?, context),
    report: |context| run(&WritesOptions::for_report(context.quick), context),
    sample: |job| run::sample(&job.path, job.device_stat.as_deref(), &job.work()?),
    columns: COLUMNS,
    compared: metric::IOPS_RELIABLE,
    charts: &[
        metric::IOPS_ADVERTISED,
        metric::IOPS_RELIABLE,
        metric::TOTAL_MS,
        metric::DEVICE_BYTES_PER_BYTE,
    ],
    axis: Axis::new("clients", "clients"),
    role: Role::Writes,
    gains: || {
        vec![Gain::new(
            metric::IOPS_RELIABLE,
            true,
            &["fsync-each", "fdatasync-each"],
            "durable writes a second",
            "Make many writes durable together, where no task waits for each of them",
        )]
    },
    title: writes::title,
    heading: writes::heading,
    verdicts: writes::of,
};

const COLUMNS: &[Definition] = &[
    column(
        metric::IOPS_ADVERTISED,
        "IOPS as advertised",
        1.0,
        "writes divided by the time in write calls alone",
    ),
    column(
        metric::IOPS_RELIABLE,
        "IOPS you can rely on",
        1.0,
        "writes divided by the whole time: open, write, sync and close; rows that are not durable then have none",
    ),
    column(metric::OPEN_MS, "open ms", 1.0, "time that a client spent opening"),
    column(metric::WRITE_MS, "write ms", 1.0, "time that a client spent in write calls"),
    column(metric::SYNC_MS, "sync ms", 1.0, "time that a client spent in sync calls"),
    column(metric::CLOSE_MS, "close ms", 1.0, "time that a client spent closing"),
    column(metric::TOTAL_MS, "total ms", 1.0, "from the beginning until the last client was ready"),
    column(
        metric::SYNC_LEFT_OUT_MS,
        "sync left out ms",
        1.0,
        "how long the sync took afterwards that the row did not make",
    ),
    columns::P50_US,
    columns::P99_US,
    columns::CPU_US_PER_IO,
    columns::DEVICE_BYTES_PER_BYTE,
];

const FILE_BYTES: u64 = 1 << 30;
const FILE_BYTES_QUICK: u64 = 256 << 20;
const OPERATIONS: u64 = 16_384;
const OPERATIONS_QUICK: u64 = 4_096;
const CLIENTS: [u32; 3] = [1, 2, 4];
/// Minimum blocks of the file for each write: with fewer, the writes would not be sparse.
const SPARSE_BLOCKS: u64 = 4;

/// What can be chosen for random writes.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WritesOptions {
    /// Pattern of the blocks: dense (each block of a range once), sparse (few blocks of the whole file)
    /// [default: both]
    #[arg(long, value_name = "PATTERN,..", value_delimiter = ',', value_parser = parse_pattern)]
    pattern: Vec<Pattern>,
    /// Clients that write at once, each with a handle of its own [default: 1,2,4, with --quick 1,4]
    #[arg(long, value_name = "COUNT,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: Vec<u32>,
    /// Writes of a sample, all clients together, if its time suffices [default: 16384, with --quick 4096]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=16_777_216))]
    operations: Option<u64>,
    /// Size of the file [default: 1GiB, with --quick 256MiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    size: Option<u64>,
    /// A sample begins no more writes after so many seconds [default: 2, with --quick 0.5]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Samples of each cell [default: 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: Option<u32>,
    /// Only these rows: naive, sync-at-end, sync-close, o-direct, o-direct-dsync, fdatasync-each, fsync-each,
    /// forebay, forebay-durable, forebay-combine
    #[arg(long, value_name = "ROW,..", value_delimiter = ',', value_parser = parse_row)]
    rows: Vec<String>,
}

impl WritesOptions {
    /// Returns the options of the report: a quick one has time for one client only.
    fn for_report(is_quick: bool) -> Self {
        Self { clients: if is_quick { vec![1] } else { Vec::new() }, ..Self::default() }
    }
}

fn parse_row(text: &str) -> Result<String, String> {
    parse_way(text, &WriteRow::ALL)
}

fn parse_pattern(text: &str) -> Result<Pattern, String> {
    let known = Pattern::ALL.into_iter().find(|pattern| pattern.name() == text);
    known.ok_or_else(|| format!("there is no pattern {text:?}; there are dense and sparse"))
}

fn parse_size(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes >= 1 << 20 => Ok(bytes.next_multiple_of(1 << 20)),
        _ => Err(format!("{text:?} is too small for a file that is written at random: at least 1MiB")),
    }
}

/// Measures writes with every row in turn. Returns one experiment for each pattern and number of clients.
///
/// # Errors
/// The path cannot be used (a [`Failure`]), or nothing could be measured.
pub(crate) fn run(options: &WritesOptions, context: &mut Context) -> anyhow::Result<Vec<Experiment>> {
    let quick = context.quick;
    let patterns = if options.pattern.is_empty() { Pattern::ALL.to_vec() } else { options.pattern.clone() };
    let clients = match (options.clients.as_slice(), quick) {
        ([], true) => vec![1, 4],
        ([], false) => CLIENTS.to_vec(),
        (given, _) => given.to_vec(),
    };
    let file_bytes = options.size.unwrap_or(if quick { FILE_BYTES_QUICK } else { FILE_BYTES });
    let room = file_bytes / BLOCK_BYTES / SPARSE_BLOCKS;
    let wanted = if quick { OPERATIONS_QUICK } else { OPERATIONS };
    let operations = options.operations.unwrap_or(wanted.min(room));
    if operations > room {
        return Err(Failure::Usage(format!(
            "--operations {operations} are too many for this file: it must hold {SPARSE_BLOCKS} blocks of 4 KiB for each, \
             which are {room} here; give a larger --size or fewer --operations"
        ))
        .into());
    }
    let settings: Vec<Setting> = patterns
        .iter()
        .flat_map(|pattern| clients.iter().map(|clients| Setting { pattern: *pattern, clients: *clients }))
        .collect();
    if let Some(setting) = settings.iter().find(|setting| u64::from(setting.clients) > operations) {
        return Err(Failure::Usage(format!(
            "{} clients have nothing to do with --operations {operations}: each needs one at least",
            setting.clients
        ))
        .into());
    }
    let plan = Plan {
        settings,
        rows: chosen(&WriteRow::ALL, &options.rows),
        file_bytes,
        operations,
        seconds: options.seconds.unwrap_or(if quick { 0.5 } else { 2.0 }),
        repeats: options.repeats.unwrap_or(3) as usize,
    };
    measure(&plan, context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_are_checked() {
        assert!(parse_row("o-direct-dsync").is_ok() && parse_row("odirect").is_err());
        assert_eq!(parse_pattern("sparse"), Ok(Pattern::Sparse));
        assert!(parse_pattern("both").is_err_and(|sentence| sentence.contains("dense and sparse")));
        assert_eq!(parse_size("1500KiB"), Ok(2 << 20));
        assert!(parse_size("512KiB").is_err());
    }
}
