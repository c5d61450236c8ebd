//! `measure fairness`: one small random reader beside programs that read or write as much as they can.
//!
//! [`cells`] creates the file, runs every row in a fresh process ([`load`]) and builds the tables.

use clap::Args;

use super::interleave::{chosen, parse_way};
use super::kind::{Kind, parsed};
use super::scan::parse_seconds;
use super::units::parse_bytes;
use crate::context::Context;
use crate::verdicts::fairness;
use forebay_report::page::columns::{self, Definition, column};
use forebay_report::page::view::{Axis, Role};
use forebay_report::result::{Experiment, metric};

mod cells;
mod group;
mod job;
mod load;
mod other;

use cells::{Plan, measure};
use job::{FairRow, HOG_BYTES};

/// The program's description of this experiment.
pub(crate) static KIND: Kind = Kind {
    name: "fairness",
    about: "Read 4 KiB at random, one at a time, beside programs that saturate the same device",
    quick_seconds: 8,
    full_seconds: 120,
    needs_directory: true,
    options: FairnessOptions::augment_args,
    measure: |matches, context| run(&parsed(matches)?, context),
    report: |context| run(&FairnessOptions::default(), context),
    sample: |job| load::sample(&job.path, job.device_stat.as_deref(), &job.work()?),
    columns: COLUMNS,
    compared: metric::P99_US,
    charts: &[metric::P99_US, metric::HOG_MB_PER_S],
    axis: Axis::new("hogs", "hogs"),
    role: Role::Sharing,
    gains: Vec::new,
    title: fairness::title,
    heading: fairness::heading,
    verdicts: fairness::of,
};

const COLUMNS: &[Definition] = &[
    columns::P50_US,
    columns::P99_US,
    columns::P99_9_US,
    columns::IOPS,
    column(
        metric::HOG_MB_PER_S,
        "hog MB/s",
        1.0,
        "millions of bytes that all hogs together moved in a second",
    ),
];

const SECONDS: f64 = 5.0;
const SECONDS_QUICK: f64 = 0.5;
const FILE_BYTES: u64 = 2 << 30;
const FILE_BYTES_QUICK: u64 = 256 << 20;

/// What can be chosen.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FairnessOptions {
    /// Seconds of each row [default: 5, with --quick 0.5]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Hogs beside the reader, each with 64 requests of 1 MiB in flight [default: 1,16]
    #[arg(long, value_name = "COUNT,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    hogs: Vec<u32>,
    /// The hogs write instead of reading
    #[arg(long)]
    writes: bool,
    /// Size of the file [default: 2GiB, with --quick 256MiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    size: Option<u64>,
    /// How often each row runs [default: 3, with --quick 1]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: Option<u32>,
    /// Only these rows: reader-alone, hogs-alone, no-classes, classes, ionice, cgroup-io
    #[arg(long, value_name = "ROW,..", value_delimiter = ',', value_parser = parse_row)]
    rows: Vec<String>,
}

fn parse_row(text: &str) -> Result<String, String> {
    parse_way(text, &FairRow::ALL)
}

fn parse_size(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes >= 8 << 20 => Ok(bytes.next_multiple_of(HOG_BYTES)),
        _ => Err(format!("{text:?} is too small for a file that hogs work on: at least 8MiB")),
    }
}

/// Runs every row, and returns one experiment for each number of hogs.
///
/// # Errors
/// Fails when the path cannot be used (a [`Failure`](forebay_report::failure::Failure)), or nothing could be measured.
pub(crate) fn run(options: &FairnessOptions, context: &mut Context) -> anyhow::Result<Vec<Experiment>> {
    let quick = context.quick;
    let plan = Plan {
        rows: chosen(&FairRow::ALL, &options.rows),
        hogs: if options.hogs.is_empty() { vec![1, 16] } else { options.hogs.clone() },
        writes: options.writes,
        file_bytes: options.size.unwrap_or(if quick { FILE_BYTES_QUICK } else { FILE_BYTES }),
        seconds: options.seconds.unwrap_or(if quick { SECONDS_QUICK } else { SECONDS }),
        repeats: options.repeats.unwrap_or(if quick { 1 } else { 3 }) as usize,
    };
    measure(&plan, context)
}
