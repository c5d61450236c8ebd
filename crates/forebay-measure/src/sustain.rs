//! `measure sustain`: runs one load for a minute or longer on a device that was idle before.
//! Reports the level at first, the level that lasts, and when the level changes.
//!
//! [`cells`] makes the file, runs every load in a fresh process ([`load`]) and builds the table.
//! [`level`] finds the change, [`stall`] the standstills.

use clap::Args;

use super::interleave::{chosen, parse_way};
use super::kind::{Kind, parsed};
use super::scan::parse_seconds;
use super::units::parse_bytes;
use crate::context::Context;
use crate::verdicts::sustain;
use forebay_report::page::columns::{self, Definition, column};
use forebay_report::page::view::{Axis, Role};
use forebay_report::result::{Experiment, metric};

mod cells;
mod job;
mod level;
mod load;
mod stall;

#[cfg(test)]
pub(crate) use cells::simulated;
use cells::{Plan, measure};
use job::{LoadRow, SEQUENTIAL_BYTES};

/// This experiment's entry in the list of experiments.
pub(crate) static KIND: Kind = Kind {
    name: "sustain",
    about: "Keep one load up after an idle time: the level at first, the level that lasts, and where it changes",
    quick_seconds: 17,
    full_seconds: 220,
    needs_directory: true,
    options: SustainOptions::augment_args,
    measure: |matches, context| run(&parsed(matches)?, context),
    report: |context| run(&SustainOptions::default(), context),
    sample: |job| load::sample(&job.path, job.device_stat.as_deref(), &job.work()?),
    columns: COLUMNS,
    compared: metric::SUSTAINED_MB_PER_S,
    charts: &[metric::BURST_MB_PER_S, metric::SUSTAINED_MB_PER_S, metric::P99_US],
    axis: Axis::new("depth", "in flight"),
    role: Role::Other,
    gains: Vec::new,
    title: sustain::title,
    heading: sustain::title,
    verdicts: sustain::of,
};

const COLUMNS: &[Definition] = &[
    column(
        metric::BURST_MB_PER_S,
        "burst MB/s",
        1.0,
        "millions of bytes a second at first: the median of the tenths of a second before the change",
    ),
    column(
        metric::SUSTAINED_MB_PER_S,
        "sustained MB/s",
        1.0,
        "the same after the change; where there is none, of the whole time",
    ),
    column(metric::CHANGE_S, "change s", 1.0, "seconds until the level changed; nothing where it did not"),
    column(
        metric::DROP_BYTES,
        "GB until the drop",
        1e9,
        "billions of bytes that were moved before the level fell; nothing where it did not",
    ),
    column(
        metric::VARIATION,
        "variation %",
        0.01,
        "standard deviation of the tenths of a second at the sustained level, as a share of their mean",
    ),
    column(
        metric::STALL_COUNT,
        "standstills",
        1.0,
        "times at the sustained level in which next to nothing ended",
    ),
    column(
        metric::STALL_EVERY_S,
        "one every s",
        1.0,
        "from one to the next; nothing where that is not regular",
    ),
    column(metric::STALL_MS, "standstill ms", 1.0, "how long one lasts, in the middle"),
    column(metric::STALL_SHARE, "standing still %", 0.01, "all of them together, as a share of the time"),
    column(metric::IOPS, "IOPS", 1.0, "blocks a second, over the whole time"),
    columns::P50_US,
    columns::P99_US,
    columns::CPU_US_PER_IO,
    column(metric::SYNC_MS, "sync ms", 1.0, "how long the sync took after the load"),
];

/// A shorter load does not show a sustained level.
const SECONDS: f64 = 60.0;
const SECONDS_QUICK: f64 = 5.0;
const SECONDS_MAX: f64 = 1800.0;
const IDLE_SECONDS: f64 = 10.0;
const IDLE_SECONDS_QUICK: f64 = 0.5;
const FILE_BYTES: u64 = 2 << 30;
const FILE_BYTES_QUICK: u64 = 256 << 20;

/// What can be chosen for a long load.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SustainOptions {
    /// Seconds of each load, 1 to 1800; fewer than 60 do not show a sustained level [default: 60, with --quick 5]
    #[arg(long, value_name = "SECONDS", value_parser = parse_duration)]
    seconds: Option<f64>,
    /// Seconds without any load before each [default: 10, with --quick 0.5]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    idle: Option<f64>,
    /// Size of the file [default: 2GiB, with --quick 256MiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    size: Option<u64>,
    /// Reads or writes of 4 KiB in flight [default: 32]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: Option<u32>,
    /// How often each load runs [default: 1]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: Option<u32>,
    /// Only these rows: random-read, random-write, sequential-write
    #[arg(long, value_name = "ROW,..", value_delimiter = ',', value_parser = parse_row)]
    rows: Vec<String>,
}

fn parse_row(text: &str) -> Result<String, String> {
    parse_way(text, &LoadRow::ALL)
}

fn parse_duration(text: &str) -> Result<f64, String> {
    match parse_seconds(text)? {
        seconds if (1.0..=SECONDS_MAX).contains(&seconds) => Ok(seconds),
        _ => Err(format!("{text:?} is no length of a load here: 1 to 1800 seconds")),
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes >= 8 << 20 => Ok(bytes.next_multiple_of(SEQUENTIAL_BYTES)),
        _ => Err(format!("{text:?} is too small for a file under a long load: at least 8MiB")),
    }
}

/// Runs every load and returns one experiment.
///
/// # Errors
/// The path cannot be used (a [`Failure`](forebay_report::failure::Failure)), or nothing could be measured.
pub(crate) fn run(options: &SustainOptions, context: &mut Context) -> anyhow::Result<Vec<Experiment>> {
    let quick = context.quick;
    let plan = Plan {
        rows: chosen(&LoadRow::ALL, &options.rows),
        file_bytes: options.size.unwrap_or(if quick { FILE_BYTES_QUICK } else { FILE_BYTES }),
        depth: options.depth.unwrap_or(32) as usize,
        seconds: options.seconds.unwrap_or(if quick { SECONDS_QUICK } else { SECONDS }),
        idle_seconds: options.idle.unwrap_or(if quick { IDLE_SECONDS_QUICK } else { IDLE_SECONDS }),
        repeats: options.repeats.unwrap_or(1) as usize,
    };
    measure(&plan, context)
}
