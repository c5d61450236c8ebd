//! `measure amplification`: the bytes that a device reads for pieces of less than a page, at random places
//! of one file and of many.
//!
//! [`cells`] creates the files, runs every row in a fresh process ([`mod@run`]) and builds the tables.

use clap::Args;

use super::interleave::{chosen, parse_way};
use super::kind::{Kind, parsed};
use super::scan::parse_seconds;
use super::units::parse_bytes;
use crate::context::Context;
use crate::verdicts::amplification;
use forebay_report::failure::Failure;
use forebay_report::page::columns;
use forebay_report::page::view::{Axis, Gain, Role};
use forebay_report::result::{Experiment, metric};

mod cells;
mod engine;
mod job;
mod run;

use cells::{Plan, measure};
use job::ReadRow;

/// The program's description of this experiment.
pub(crate) static KIND: Kind = Kind {
    name: "amplification",
    about: "Read pieces of less than a page from one file and from many, and count the bytes that the device reads \
        for them",
    quick_seconds: 8,
    full_seconds: 60,
    needs_directory: true,
    options: AmplificationOptions::augment_args,
    measure: |matches, context| run(&parsed(matches)?, context),
    report: |context| run(&AmplificationOptions::default(), context),
    sample: |job| run::sample(&job.path, job.device_stat.as_deref(), &job.work()?),
    columns: &[
        columns::PROCESS_BYTES_PER_BYTE,
        columns::DEVICE_BYTES_PER_BYTE,
        columns::IOPS,
        columns::P50_US,
        columns::P99_US,
        columns::CPU_US_PER_IO,
    ],
    compared: metric::PROCESS_BYTES_PER_BYTE,
    charts: &[metric::PROCESS_BYTES_PER_BYTE, metric::DEVICE_BYTES_PER_BYTE, metric::IOPS, metric::P99_US],
    axis: Axis::new("files", "files"),
    role: Role::Other,
    gains: || {
        vec![Gain::new(
            metric::DEVICE_BYTES_PER_BYTE,
            false,
            &["buffered"],
            "bytes from the device for each byte wanted",
            "Read only what is wanted",
        )]
    },
    title: amplification::title,
    heading: amplification::heading,
    verdicts: amplification::of,
};

const BYTES: u64 = 1 << 30;
const BYTES_QUICK: u64 = 128 << 20;
const FILES: [u32; 2] = [1, 1000];
const READS: u64 = 8_000;
const READS_QUICK: u64 = 2_000;
const LEAST: u64 = 512;
const MOST: u64 = 4096;

/// What can be chosen for small pieces.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AmplificationOptions {
    /// Files that share the data [default: 1,1000]
    #[arg(long, value_name = "COUNT,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=50_000))]
    files: Vec<u32>,
    /// Bytes of all files together [default: 1GiB, with --quick 128MiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    size: Option<u64>,
    /// The shortest piece [default: 512]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    least: Option<u64>,
    /// The longest piece [default: 4KiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    most: Option<u64>,
    /// Pieces of a sample, if its time suffices [default: 8000, with --quick 2000]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    reads: Option<u64>,
    /// Pieces wanted at once [default: 16]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    in_flight: Option<u32>,
    /// A sample begins no more reads after so many seconds [default: 2, with --quick 0.5]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Samples of each cell [default: 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: Option<u32>,
    /// Only these rows: buffered, buffered-random-advice, read-many, direct
    #[arg(long, value_name = "ROW,..", value_delimiter = ',', value_parser = parse_row)]
    rows: Vec<String>,
}

fn parse_row(text: &str) -> Result<String, String> {
    parse_way(text, &ReadRow::ALL)
}

/// Reads with every row in turn, and returns one experiment for each number of files.
///
/// # Errors
/// Fails when the path cannot be used (a [`Failure`]), or nothing could be measured.
pub(crate) fn run(options: &AmplificationOptions, context: &mut Context) -> anyhow::Result<Vec<Experiment>> {
    let quick = context.quick;
    let files = if options.files.is_empty() { FILES.to_vec() } else { options.files.clone() };
    let bytes = options.size.unwrap_or(if quick { BYTES_QUICK } else { BYTES });
    let (least, most) = (options.least.unwrap_or(LEAST), options.most.unwrap_or(MOST));
    if least > most {
        return Err(Failure::Usage(format!(
            "the shortest piece (--least {least}) is longer than the longest (--most {most}): give them the other way round"
        ))
        .into());
    }
    let many = files.iter().copied().max().unwrap_or(1);
    // The size of the smallest file, in whole pages. It has at least two, so that not every piece begins
    // where the file does.
    let smallest = (bytes / u64::from(many)) & !4095;
    if smallest < most.max(8192) {
        return Err(Failure::Usage(format!(
            "{many} files of {bytes} bytes together are too small for pieces of {most} bytes: each must hold two pages and \
             the longest piece; give a larger --size, fewer --files or a smaller --most"
        ))
        .into());
    }
    let plan = Plan {
        files,
        rows: chosen(&ReadRow::ALL, &options.rows),
        bytes,
        least,
        most,
        reads: options.reads.unwrap_or(if quick { READS_QUICK } else { READS }),
        in_flight: options.in_flight.unwrap_or(16) as usize,
        seconds: options.seconds.unwrap_or(if quick { 0.5 } else { 2.0 }),
        repeats: options.repeats.unwrap_or(3) as usize,
    };
    measure(&plan, context)
}
