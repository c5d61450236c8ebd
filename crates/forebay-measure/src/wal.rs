//! `measure wal`: durable appends from a Tokio runtime that has nothing else to do, and from one
//! whose workers compute.
//!
//! [`cells`] runs every row in a fresh process ([`mod@run`]) and builds the tables. [`log`],
//! [`store`] and [`peers`] are the rows ([`appender`], [`batches`], [`mod@file`]); [`published`]
//! has the same rows with a file for each append. [`load`] keeps the workers busy, and [`source`]
//! is the thread that starts appends at fixed times. [`stamp`] records when a record was durable.
//! [`targets`] has the limits that `--check` applies to the figures.

use clap::{Args, ValueEnum};

use super::interleave::{chosen, parse_way};
use super::job::Job;
use super::kind::{DEPTH, Kind, parsed};
use super::scan::parse_seconds;
use super::units::parse_bytes;
use crate::context::Context;
use crate::verdicts::appends;
use forebay_report::page::columns::{self, Definition};
use forebay_report::page::view::{Gain, Role};
use forebay_report::result::{Experiment, metric};

mod appender;
mod batches;
mod cells;
mod file;
mod job;
mod load;
mod log;
mod peers;
mod published;
mod run;
mod source;
mod stamp;
mod store;
mod targets;
mod text;

pub(super) use cells::{Plan, Setting, measure};
pub(super) use job::{FlushChoice, Load, Times, WalRow, Workload};
use load::workers;

/// This experiment's entry in the list of experiments.
pub(crate) static KIND: Kind = Kind {
    name: "wal",
    about: "Make records durable from a Tokio runtime, idle and busy, in several ways",
    quick_seconds: 16,
    full_seconds: 405,
    needs_directory: true,
    options: WalOptions::augment_args,
    measure: |matches, context| run(&parsed(matches)?, true, context),
    report: |context| run(&WalOptions::default(), false, context),
    sample,
    columns: COLUMNS,
    compared: metric::DURABLE[1],
    charts: CHARTS,
    axis: DEPTH,
    role: Role::Other,
    gains: || {
        vec![Gain::new(
            metric::DURABLE[1],
            false,
            &["tokio-fs", "spawn-blocking"],
            "µs until 99 of 100 appends are durable",
            "Take durable appends off the runtime",
        )]
    },
    title: appends::title,
    heading: appends::title,
    verdicts: appends::wal,
};

/// Metrics in the charts of appends.
pub(super) const CHARTS: &[&str] =
    &[metric::DURABLE[1], metric::SEEN[1], metric::APPENDS_PER_S, metric::WORK_KEPT, metric::TIMERS_LATE[1]];

/// Columns in the tables of appends.
pub(super) const COLUMNS: &[Definition] = &[
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
    columns::TIMERS_LATE[0],
    columns::TIMERS_LATE[1],
    columns::TIMERS_LATE[2],
    columns::TIMERS_CPU_SHARE,
    columns::CPU_US_PER_APPEND,
];

/// Runs one sample of this experiment or of `measure blocking`, and returns its result as text.
///
/// # Errors
/// The row failed, or lost an append after it had reported success.
pub(super) fn sample(job: &Job) -> anyhow::Result<String> {
    Ok(serde_json::to_string(&run::sample(&job.path, job.device_stat.as_deref(), &job.work()?)?)?)
}

/// Size of a segment of the log, and of the file of the other rows.
const FILE_BYTES: u64 = 64 << 20;
const FILE_BYTES_QUICK: u64 = 16 << 20;

/// What can be chosen for durable appends.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WalOptions {
    /// Only with idle workers (none), with workers that compute (cpu), or beside a thousand timer tasks whose
    /// lateness is measured (timers) [default: all, with --quick none and cpu]
    #[arg(long, value_name = "LOAD")]
    load: Option<LoadChoice>,
    /// Only appends at fixed times (open), or only appenders that wait for each append (closed) [default:
    /// both]
    #[arg(long = "loop", value_name = "LOOP")]
    kind: Option<LoopChoice>,
    /// Appends a second of the open loop [default: 500]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: Option<u32>,
    /// Appenders of the closed loops [default: 64,1, with --quick 64 with idle workers only]
    #[arg(long, value_name = "COUNT,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    appenders: Vec<u32>,
    /// Threads of the runtime [default: one for each processor, and for 64 appenders with idle workers also 1 and 4 times
    /// as many, unless something else is chosen]
    #[arg(long, value_name = "COUNT,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Vec<u32>,
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
    /// How the log's rows wait for the device [default: when-alone, as the log itself]
    #[arg(long, value_name = "FLUSH")]
    flush: Option<FlushChoice>,
    /// Count as the published benchmarks do: each append makes a file of its own and removes it
    #[arg(long)]
    as_published: bool,
    /// Compare the figures with the project's limits; the exit code is 1 when one is missed
    #[arg(long, conflicts_with = "as_published")]
    check: bool,
}

/// A load by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadChoice {
    /// The runtime has nothing else to do.
    None,
    /// Two tasks that sort for each worker.
    Cpu,
    /// A thousand tasks that wait for a time.
    Timers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LoopChoice {
    /// Appends at fixed times.
    Open,
    /// The next append when the last one is durable.
    Closed,
}

impl LoadChoice {
    /// Returns the chosen loads.
    pub(super) fn loads(choice: Option<Self>) -> Vec<Load> {
        match choice {
            Some(Self::None) => vec![Load::None],
            Some(Self::Cpu) => vec![Load::Cpu],
            Some(Self::Timers) => vec![Load::Timers],
            None => vec![Load::None, Load::Cpu],
        }
    }
}

fn parse_row(text: &str) -> Result<String, String> {
    parse_way(text, &WalRow::APPENDS)
}

/// Parses the bytes of a record.
///
/// # Errors
/// The number is outside the limits; the sentence names them.
pub(super) fn parse_record(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes @ 8..=65_536 => Ok(bytes),
        _ => Err(format!("{text:?} cannot be a record here: 8 to 65536 bytes")),
    }
}

/// Returns the size that all plans use for the file and for a segment of the log.
pub(super) fn file_bytes(quick: bool) -> u64 {
    if quick { FILE_BYTES_QUICK } else { FILE_BYTES }
}

/// Returns the numbers of threads beside the usual one: 1, and 4 times the number of processors.
pub(super) fn swept_threads() -> impl Iterator<Item = Option<u32>> {
    let usual = workers() as u32;
    [1, 4 * usual].into_iter().filter(move |threads| *threads != usual).map(Some)
}

/// Returns the settings with each of these numbers of threads, or unchanged when there are none.
pub(super) fn with_threads(settings: Vec<Setting>, threads: &[u32]) -> Vec<Setting> {
    if threads.is_empty() {
        return settings;
    }
    let each = |threads: &u32| {
        let threads = Some(*threads);
        settings.iter().map(move |setting| Setting { threads, ..*setting })
    };
    threads.iter().flat_map(each).collect()
}

/// Measures appends with every row in turn. Returns one experiment for each loop and load, and with
/// `sweeps` also for other numbers of threads.
///
/// # Errors
/// The path cannot be used (a [`Failure`](forebay_report::failure::Failure)), or nothing could be measured.
fn run(options: &WalOptions, sweeps: bool, context: &mut Context) -> anyhow::Result<Vec<Experiment>> {
    let plan = Plan {
        name: KIND.name,
        settings: settings(options, context.quick, sweeps),
        rows: chosen(&WalRow::APPENDS, &options.rows),
        seconds: options.seconds.unwrap_or(if context.quick { 0.5 } else { 2.0 }),
        repeats: options.repeats.unwrap_or(if context.quick { 1 } else { 3 }) as usize,
        record_bytes: options.record.unwrap_or(256) as usize,
        batch: 1,
        file_bytes: file_bytes(context.quick),
        as_published: options.as_published,
        flush: options.flush.unwrap_or_default(),
    };
    let mut experiments = measure(&plan, context)?;
    if options.check {
        targets::check(&mut experiments);
    }
    Ok(experiments)
}

fn settings(options: &WalOptions, quick: bool, sweeps: bool) -> Vec<Setting> {
    let mut settings = Vec::new();
    let wanted = |kind| options.kind.is_none_or(|chosen| chosen == kind);
    let mut loads = LoadChoice::loads(options.load);
    // Harm that is only observed needs no second loop, and no place in a quick report.
    let interference = options.load.is_none() && !quick && wanted(LoopChoice::Open);
    loads.extend(interference.then_some(Load::Timers));
    for load in loads {
        if wanted(LoopChoice::Open) {
            let workload = Workload::Open { rate: options.rate.unwrap_or(500) };
            settings.push(Setting { workload, load, threads: None });
        }
        let appenders = match (options.appenders.as_slice(), quick, load) {
            ([], false, _) => vec![64, 1],
            ([], true, Load::None) => vec![64],
            ([], true, _) => Vec::new(),
            (given, _, _) => given.to_vec(),
        };
        if wanted(LoopChoice::Closed) && (load != Load::Timers || options.load.is_some()) {
            let closed = |count: u32| Workload::Closed { appenders: count as usize };
            let setting = |count| Setting { workload: closed(count), load, threads: None };
            settings.extend(appenders.into_iter().map(setting));
        }
    }
    let nothing_chosen = options.load.is_none()
        && options.kind.is_none()
        && options.appenders.is_empty()
        && options.threads.is_empty();
    if sweeps && nothing_chosen && !quick && !options.check {
        let (workload, load) = (Workload::Closed { appenders: 64 }, Load::None);
        settings.extend(swept_threads().map(|threads| Setting { workload, load, threads }));
    }
    with_threads(settings, &options.threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loop_runs_without_and_with_load() {
        assert_eq!(settings(&WalOptions::default(), false, false).len(), 7);
        assert_eq!(settings(&WalOptions::default(), true, true).len(), 3);
        let swept = settings(&WalOptions::default(), false, true);
        assert!(swept.len() > 7, "1 or 4 times as many threads as processors differ from as many");
        assert!(swept[7..].iter().all(|setting| setting.threads.is_some() && setting.load == Load::None));
        let checked = WalOptions { check: true, ..WalOptions::default() };
        assert_eq!(settings(&checked, false, true).len(), 7, "limits are for the usual number");
        let options = WalOptions {
            load: Some(LoadChoice::Cpu),
            kind: Some(LoopChoice::Closed),
            appenders: vec![7],
            ..WalOptions::default()
        };
        let only = Setting { workload: Workload::Closed { appenders: 7 }, load: Load::Cpu, threads: None };
        assert_eq!(settings(&options, true, true), [only]);
        let options = WalOptions { threads: vec![1, 8], ..options };
        let found: Vec<Option<u32>> =
            settings(&options, true, true).iter().map(|setting| setting.threads).collect();
        assert_eq!(found, [Some(1), Some(8)]);
    }

    #[test]
    fn names_and_sizes_are_checked() {
        assert!(parse_row("own-runtime").is_ok());
        assert!(parse_row("no-appends").is_err_and(|sentence| sentence.contains("forebay-realtime")));
        assert_eq!(parse_record("256"), Ok(256));
        assert!(parse_record("4").is_err() && parse_record("1MiB").is_err());
    }
}
