//! `measure patterns`: small writes at random places, and the strided records of several participants,
//! until all of them are durable. They are written as the program makes them, and after gathering.
//!
//! [`cells`] creates the file, runs every row in a fresh process ([`mod@run`]) and builds the tables;
//! [`blocking`] and [`engine`] are the rows.

use clap::Args;

use super::interleave::{chosen, parse_way};
use super::kind::{Kind, parsed};
use super::scan::parse_seconds;
use super::units::parse_bytes;
use crate::context::Context;
use crate::verdicts::patterns;
use forebay_report::page::columns::{self, Definition, column};
use forebay_report::page::view::{Axis, Role};
use forebay_report::result::{Experiment, metric};

mod blocking;
mod cells;
mod engine;
mod job;
mod run;

use cells::{Plan, Setting, measure};
use job::{Pattern, PatternRow};

/// The program's description of this experiment.
pub(crate) static KIND: Kind = Kind {
    name: "patterns",
    about: "Write small pieces at random and strided records, as they come and gathered in memory",
    quick_seconds: 10,
    full_seconds: 240,
    needs_directory: true,
    options: PatternsOptions::augment_args,
    measure: |matches, context| run(&parsed(matches)?, context),
    report: |context| run(&PatternsOptions::for_report(context.quick), context),
    sample: |job| run::sample(&job.path, job.device_stat.as_deref(), &job.work()?),
    columns: COLUMNS,
    compared: metric::MB_PER_S,
    charts: &[metric::TOTAL_MS, metric::REQUEST_BYTES_MEAN],
    axis: Axis::new("memory_mib", "MiB of memory"),
    role: Role::Other,
    gains: Vec::new,
    title: patterns::title,
    heading: patterns::heading,
    verdicts: patterns::of,
};

const COLUMNS: &[Definition] = &[
    column(
        metric::TOTAL_MS,
        "ms until durable",
        1.0,
        "from the first write until all of it is durable; opening and memory are not in it",
    ),
    column(metric::MB_PER_S, "MB/s", 1.0, "millions of bytes that became durable in a second"),
    column(
        metric::DEVICE_REQUESTS,
        "device requests",
        1.0,
        "writes that the block device completed meanwhile; all processes count",
    ),
    column(metric::REQUEST_BYTES_MEAN, "KiB/request", 1024.0, "bytes of a write at the device, on average"),
    columns::DEVICE_BYTES_PER_BYTE,
    columns::CPU_S_PER_GB,
];

const BYTES: u64 = 1 << 30;
const BYTES_QUICK: u64 = 64 << 20;
/// The divisors of the memory for the whole range.
const PARTS: [u32; 5] = [1, 2, 4, 8, 16];
const PARTICIPANTS: [u32; 3] = [1, 2, 8];

/// What can be chosen for write patterns.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct PatternsOptions {
    /// Pattern of the pieces: random (4 KiB each, every one of a range once), strided (records of 47,008 bytes in turn)
    /// [default: both]
    #[arg(long, value_name = "PATTERN,..", value_delimiter = ',', value_parser = parse_pattern)]
    pattern: Vec<Pattern>,
    /// Bytes of random pieces, and size of the file; strided records are a quarter of it
    /// [default: 1GiB, with --quick 64MiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    size: Option<u64>,
    /// Memory of `combine` for random pieces: the whole range divided by these [default: 1,2,4,8,16, with --quick 1,4]
    #[arg(long, value_name = "COUNT,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    parts: Vec<u32>,
    /// Threads that have the strided records in turn [default: 1,2,8, with --quick 2]
    #[arg(long, value_name = "COUNT,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    participants: Vec<u32>,
    /// The row `o-direct` begins no more writes after so many seconds [default: 20, with --quick 0.5]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Samples of each cell [default: 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: Option<u32>,
    /// Only these rows: write-fsync, o-direct, combine, collective
    #[arg(long, value_name = "ROW,..", value_delimiter = ',', value_parser = parse_row)]
    rows: Vec<String>,
}

impl PatternsOptions {
    /// Returns the options for the report; a quick one has no time for repeats.
    fn for_report(is_quick: bool) -> Self {
        Self { repeats: is_quick.then_some(1), ..Self::default() }
    }
}

fn parse_row(text: &str) -> Result<String, String> {
    parse_way(text, &PatternRow::ALL)
}

fn parse_pattern(text: &str) -> Result<Pattern, String> {
    let known = Pattern::ALL.into_iter().find(|pattern| pattern.name() == text);
    known.ok_or_else(|| format!("there is no pattern {text:?}; there are random and strided"))
}

fn parse_size(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes >= 4 << 20 => Ok(bytes.next_multiple_of(1 << 20)),
        _ => Err(format!("{text:?} is too small to be gathered: at least 4MiB")),
    }
}

/// Writes with every row in turn. Returns one experiment for each size of memory, or number
/// of participants.
///
/// # Errors
/// Fails when the path cannot be used (a [`Failure`](forebay_report::failure::Failure)), or nothing could be measured.
pub(crate) fn run(options: &PatternsOptions, context: &mut Context) -> anyhow::Result<Vec<Experiment>> {
    let quick = context.quick;
    let bytes = options.size.unwrap_or(if quick { BYTES_QUICK } else { BYTES });
    let given = |given: &[u32], all: &[u32], few: &[u32]| match (given, quick) {
        ([], true) => few.to_vec(),
        ([], false) => all.to_vec(),
        (given, _) => given.to_vec(),
    };
    let parts = given(&options.parts, &PARTS, &[1, 4]);
    let participants = given(&options.participants, &PARTICIPANTS, &[2]);
    let patterns = if options.pattern.is_empty() { Pattern::ALL.to_vec() } else { options.pattern.clone() };
    let rows = chosen(&PatternRow::ALL, &options.rows);
    let plan = Plan {
        settings: patterns
            .iter()
            .flat_map(|pattern| match pattern {
                Pattern::Random => Setting::random(bytes, &parts),
                Pattern::Strided => Setting::strided(bytes / 4, &participants),
            })
            .collect(),
        rows,
        bytes,
        seconds: options.seconds.unwrap_or(if quick { 0.5 } else { 20.0 }),
        repeats: options.repeats.unwrap_or(3) as usize,
    };
    measure(&plan, context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_are_checked() {
        assert!(parse_row("o-direct").is_ok() && parse_row("odirect").is_err());
        assert_eq!(parse_pattern("strided"), Ok(Pattern::Strided));
        assert!(parse_pattern("both").is_err_and(|sentence| sentence.contains("random and strided")));
        assert_eq!(parse_size("4097KiB"), Ok(5 << 20));
        assert!(parse_size("1MiB").is_err());
    }
}
