//! `measure files`: many small files, one after the other and many at once: open, read and close;
//! create, write, sync and close; stat.
//!
//! [`cells`] creates the files, runs every row in a fresh process ([`mod@run`]) and builds the
//! tables. [`threads`], [`tokio_fs`] and [`engine`] are the rows, all made of lanes ([`lane`]): one
//! file after the other.

use clap::Args;

use super::interleave::{chosen, parse_way};
use super::kind::{Kind, parsed};
use super::scan::parse_seconds;
use super::units::parse_bytes;
use crate::context::Context;
use crate::verdicts::files;
use forebay_report::failure::Failure;
use forebay_report::page::columns::{self, Definition, column};
use forebay_report::page::view::{Axis, Gain, Role};
use forebay_report::result::{Experiment, metric};

mod cells;
mod engine;
mod job;
mod lane;
mod run;
mod threads;
mod tokio_fs;

use cells::{Plan, Setting, measure};
use job::{Call, FilesRow};

/// The program's description of this experiment.
pub(crate) static KIND: Kind = Kind {
    name: "files",
    about: "Open, read, create, sync and stat many small files, from one to 64 at once, in several ways",
    quick_seconds: 8,
    full_seconds: 90,
    needs_directory: true,
    options: FilesOptions::augment_args,
    measure: |matches, context| run(&parsed(matches)?, context),
    report: |context| run(&FilesOptions::for_report(context.quick), context),
    sample: |job| run::sample(&job.path, job.device_stat.as_deref(), &job.work()?),
    columns: COLUMNS,
    compared: metric::FILES_PER_S,
    charts: &[metric::FILES_PER_S, metric::P99_US, metric::CPU_US_PER_FILE],
    axis: Axis::new("at_once", "files at once"),
    role: Role::Other,
    gains: || {
        vec![Gain::new(
            metric::FILES_PER_S,
            true,
            &["tokio-fs", "std-threads"],
            "files a second",
            "Open and read many small files at once",
        )]
    },
    title: files::title,
    heading: files::heading,
    verdicts: files::of,
};

const COLUMNS: &[Definition] = &[
    column(metric::FILES_PER_S, "files/s", 1.0, "files with which all calls were made in a second"),
    column(metric::OPEN_US, "open µs", 1.0, "mean time of opening, or of making, one file"),
    column(metric::READ_US, "read µs", 1.0, "mean time of reading one file"),
    column(metric::WRITE_US, "write µs", 1.0, "mean time of writing one file"),
    column(metric::SYNC_US, "sync µs", 1.0, "mean time of making one file durable"),
    column(metric::CLOSE_US, "close µs", 1.0, "mean time of closing one file"),
    column(metric::STAT_US, "stat µs", 1.0, "mean time of reading the metadata of one file"),
    columns::P50_US,
    columns::P99_US,
    column(
        metric::CPU_US_PER_FILE,
        "CPU µs/file",
        1.0,
        "processor microseconds, user and system, all threads, for one file",
    ),
];

const COUNT: u32 = 10_000;
const COUNT_QUICK: u32 = 2_000;
const AT_ONCE: [u32; 4] = [1, 4, 16, 64];
const AT_ONCE_QUICK: u32 = 16;

/// What can be chosen for small files.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FilesOptions {
    /// Only these calls: read (open, read, close), create (create, write, sync, close), stat [default: all]
    #[arg(long, value_name = "CALL,..", value_delimiter = ',', value_parser = parse_call)]
    calls: Vec<Call>,
    /// Files in progress at once, each with a thread or a task [default: 1,4,16,64, with --quick 16]
    #[arg(long, value_name = "COUNT,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    at_once: Vec<u32>,
    /// Number of files, and the most that a sample creates [default: 10000, with --quick 2000]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: Option<u32>,
    /// Bytes of a file, a multiple of 4KiB [default: 4KiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    size: Option<u64>,
    /// Seconds of one sample, if the files suffice [default: 0.5, with --quick 0.2]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Samples of each cell [default: 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: Option<u32>,
    /// Only these rows: std-threads, tokio-fs, forebay
    #[arg(long, value_name = "ROW,..", value_delimiter = ',', value_parser = parse_row)]
    rows: Vec<String>,
}

impl FilesOptions {
    /// Returns the options for the report: the ends of the range.
    fn for_report(is_quick: bool) -> Self {
        Self { at_once: if is_quick { vec![AT_ONCE_QUICK] } else { vec![1, 64] }, ..Self::default() }
    }
}

fn parse_row(text: &str) -> Result<String, String> {
    parse_way(text, &FilesRow::ALL)
}

fn parse_call(text: &str) -> Result<Call, String> {
    let known = Call::ALL.into_iter().find(|call| call.name() == text);
    known.ok_or_else(|| format!("there is no call {text:?}; there are read, create and stat"))
}

fn parse_size(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes.is_multiple_of(4096) && bytes <= 1 << 20 => Ok(bytes),
        _ => Err(format!(
            "{text:?} cannot be a small file here: a multiple of 4KiB, which is read in one piece, at most 1MiB"
        )),
    }
}

/// Runs every row in turn, and returns one experiment for each call and number of files at once.
///
/// # Errors
/// Fails when the path cannot be used (a [`Failure`]), or nothing could be measured.
pub(crate) fn run(options: &FilesOptions, context: &mut Context) -> anyhow::Result<Vec<Experiment>> {
    let quick = context.quick;
    let calls = if options.calls.is_empty() { Call::ALL.to_vec() } else { options.calls.clone() };
    let at_once = match (options.at_once.as_slice(), quick) {
        ([], true) => vec![AT_ONCE_QUICK],
        ([], false) => AT_ONCE.to_vec(),
        (given, _) => given.to_vec(),
    };
    let count = options.count.unwrap_or(if quick { COUNT_QUICK } else { COUNT });
    if let Some(most) = at_once.iter().copied().max().filter(|most| *most > count) {
        return Err(Failure::Usage(format!(
            "--at-once {most} needs as many files: give a larger --count than {count}"
        ))
        .into());
    }
    let settings = calls
        .iter()
        .flat_map(|call| at_once.iter().map(|at_once| Setting { call: *call, at_once: *at_once }));
    let plan = Plan {
        settings: settings.collect(),
        rows: chosen(&FilesRow::ALL, &options.rows),
        count,
        file_bytes: options.size.unwrap_or(4096),
        seconds: options.seconds.unwrap_or(if quick { 0.2 } else { 0.5 }),
        repeats: options.repeats.unwrap_or(3) as usize,
    };
    measure(&plan, context)
}
