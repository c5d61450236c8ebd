//! `measure wal`: durable appends from a Tokio runtime that has nothing else to do, and from one whose
//! workers compute.
//!
//! [`cells`] runs every row in a fresh process ([`mod@run`]) and builds the tables; [`log`], [`store`] and [`peers`] are
//! the rows ([`appender`], [`batches`], [`mod@file`]), [`load`] is what keeps the workers busy, [`source`] the thread from which
//! appends come at fixed times, [`stamp`] tells when a record was durable, [`targets`] what `--check` holds
//! the figures against.

use clap::{Args, ValueEnum};

use super::job::Job;
use super::kind::{DEPTH, Kind, parsed};
use super::scan::parse_seconds;
use super::turns::{chosen, parse_way};
use super::units::parse_bytes;
use crate::context::Context;
use crate::report::appends;
use crate::report::columns::{self, Column};
use crate::result::{Experiment, metric};

mod appender;
mod batches;
mod cells;
mod file;
mod job;
mod load;
mod log;
mod peers;
mod run;
mod source;
mod stamp;
mod store;
mod targets;
mod words;

pub(super) use cells::{Plan, Setting, measure};
pub(super) use job::{FlushChoice, Load, WalRow, Workload};
/// What the program knows of this experiment.
pub(crate) static KIND: Kind = Kind {
    name: "wal",
    about: "Make records durable from a Tokio runtime, idle and busy, in several ways",
    quick_seconds: 18,
    full_seconds: 320,
    needs_directory: true,
    options: WalOptions::augment_args,
    measure: |matches, context| run(&parsed(matches)?, context),
    report: |context| run(&WalOptions::default(), context),
    sample,
    columns: COLUMNS,
    compared: metric::DURABLE[1],
    charts: &[metric::DURABLE[1], metric::SEEN[1], metric::APPENDS_PER_S, metric::WORK_KEPT],
    axis: DEPTH,
    title: appends::title,
    heading: appends::title,
    together: |_, _| false,
    verdicts: appends::wal,
};

/// What tables of appends show.
pub(super) const COLUMNS: &[Column] = &[
    columns::APPENDS_PER_S,
    columns::RECORDS_PER_S,
    columns::DURABLE[0],
    columns::DURABLE[1],
    columns::DURABLE[2],
    columns::DURABLE[3],
    columns::SEEN[0],
    columns::SEEN[1],
    columns::SEEN[2],
    columns::SEEN[3],
    columns::LATE_P99_US,
    columns::WORK_PER_S,
    columns::WORK_KEPT,
    columns::CPU_US_PER_APPEND,
];

/// A sample of this experiment, and of `measure blocking`.
///
/// # Errors
/// The row failed, or lost what it had answered.
pub(super) fn sample(job: &Job) -> anyhow::Result<String> {
    Ok(serde_json::to_string(&run::sample(&job.path, job.device_stat.as_deref(), &job.work()?)?)?)
}

/// Size of a segment of the log, and of the file of the other rows.
const FILE_BYTES: u64 = 64 << 20;
const FILE_BYTES_QUICK: u64 = 16 << 20;

/// What can be chosen for durable appends.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WalOptions {
    /// Only with idle workers (none), or only with workers that compute (cpu) [default: both]
    #[arg(long, value_name = "LOAD")]
    load: Option<LoadChoice>,
    /// Only appends at fixed times (open), or only appenders that wait for each answer (closed) [default:
    /// both]
    #[arg(long = "loop", value_name = "LOOP")]
    kind: Option<LoopChoice>,
    /// Appends a second of the open loop [default: 500]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: Option<u32>,
    /// Appenders of the closed loops [default: 64,1, with --quick 64 with idle workers only]
    #[arg(long, value_name = "COUNT,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    appenders: Vec<u32>,
    /// Bytes of a record [default: 256]
    #[arg(long, value_name = "BYTES", value_parser = parse_record)]
    record: Option<u64>,
    /// Seconds of one sample [default: 2, with --quick 0.5]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Samples of each cell [default: 3, with --quick 1]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: Option<u32>,
    /// Only these rows: tokio-fs, std-in-task, std-thread, spawn-blocking, own-runtime, forebay,
    /// forebay-prompt, forebay-realtime
    #[arg(long, value_name = "ROW,..", value_delimiter = ',', value_parser = parse_row)]
    rows: Vec<String>,
    /// Who waits for the device in the log's rows [default: when-alone, as the log itself]
    #[arg(long, value_name = "FLUSH")]
    flush: Option<FlushChoice>,
    /// Hold the figures against the project's limits; the exit code is 1 when one is missed
    #[arg(long)]
    check: bool,
}

/// A load by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadChoice {
    /// The runtime has nothing else to do.
    None,
    /// Two tasks that sort for each worker.
    Cpu,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LoopChoice {
    /// Appends at fixed times.
    Open,
    /// The next append after the answer.
    Closed,
}

impl LoadChoice {
    /// The loads that were chosen.
    pub(super) fn loads(choice: Option<Self>) -> Vec<Load> {
        match choice {
            Some(Self::None) => vec![Load::None],
            Some(Self::Cpu) => vec![Load::Cpu],
            None => vec![Load::None, Load::Cpu],
        }
    }
}

fn parse_row(text: &str) -> Result<String, String> {
    parse_way(text, &WalRow::APPENDS)
}

/// Bytes of a record.
///
/// # Errors
/// A sentence that names the limits.
pub(super) fn parse_record(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes @ 8..=65_536 => Ok(bytes),
        _ => Err(format!("{text:?} cannot be a record here: 8 to 65536 bytes")),
    }
}

/// What all plans take for the file and the log.
pub(super) fn file_bytes(quick: bool) -> u64 {
    if quick { FILE_BYTES_QUICK } else { FILE_BYTES }
}

/// Appends with every row in turn; one experiment for each loop and load.
///
/// # Errors
/// The path cannot be used (a [`Failure`](crate::exit::Failure)), or nothing could be measured.
pub(crate) fn run(options: &WalOptions, context: &mut Context) -> anyhow::Result<Vec<Experiment>> {
    let plan = Plan {
        name: KIND.name,
        settings: settings(options, context.quick),
        rows: chosen(&WalRow::APPENDS, &options.rows),
        seconds: options.seconds.unwrap_or(if context.quick { 0.5 } else { 2.0 }),
        repeats: options.repeats.unwrap_or(if context.quick { 1 } else { 3 }) as usize,
        record_bytes: options.record.unwrap_or(256) as usize,
        batch: 1,
        file_bytes: file_bytes(context.quick),
        flush: options.flush.unwrap_or_default(),
    };
    let mut experiments = measure(&plan, context)?;
    if options.check {
        targets::check(&mut experiments);
    }
    Ok(experiments)
}

fn settings(options: &WalOptions, quick: bool) -> Vec<Setting> {
    let mut settings = Vec::new();
    let wanted = |kind| options.kind.is_none_or(|chosen| chosen == kind);
    for load in LoadChoice::loads(options.load) {
        if wanted(LoopChoice::Open) {
            settings.push(Setting { workload: Workload::Open { rate: options.rate.unwrap_or(500) }, load });
        }
        let appenders = match (options.appenders.as_slice(), quick, load) {
            ([], false, _) => vec![64, 1],
            ([], true, Load::None) => vec![64],
            ([], true, Load::Cpu) => Vec::new(),
            (given, _, _) => given.to_vec(),
        };
        if wanted(LoopChoice::Closed) {
            let closed = |count: u32| Workload::Closed { appenders: count as usize };
            settings.extend(appenders.into_iter().map(|count| Setting { workload: closed(count), load }));
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loop_runs_without_and_with_load() {
        assert_eq!(settings(&WalOptions::default(), false).len(), 6);
        assert_eq!(settings(&WalOptions::default(), true).len(), 3);
        let options = WalOptions {
            load: Some(LoadChoice::Cpu),
            kind: Some(LoopChoice::Closed),
            appenders: vec![7],
            ..WalOptions::default()
        };
        let only = Setting { workload: Workload::Closed { appenders: 7 }, load: Load::Cpu };
        assert_eq!(settings(&options, true), [only]);
    }

    #[test]
    fn names_and_sizes_are_checked() {
        assert!(parse_row("own-runtime").is_ok());
        assert!(parse_row("no-appends").is_err_and(|sentence| sentence.contains("forebay-realtime")));
        assert_eq!(parse_record("256"), Ok(256));
        assert!(parse_record("4").is_err() && parse_record("1MiB").is_err());
    }
}
