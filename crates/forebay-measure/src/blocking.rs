//! `measure blocking`: batches of records into the log and into the store, from tasks that block, that hand
//! the blocking call to another thread, or that await.

use clap::Args;

use super::interleave::{chosen, parse_way};
use super::kind::{DEPTH, Kind, parsed};
use super::scan::parse_seconds;
use super::wal::{
    CHARTS, COLUMNS, FlushChoice, Load, LoadChoice, Plan, Setting, WalRow, Workload, file_bytes, measure,
    parse_record, sample, swept_threads, with_threads,
};
use crate::context::Context;
use crate::verdicts::appends;
use forebay_report::page::view::Role;
use forebay_report::result::{Experiment, metric};

/// The program's description of this experiment.
pub(crate) static KIND: Kind = Kind {
    name: "blocking",
    about: "Append batches to the log and the store from tasks that block, that use spawn_blocking, or that await",
    quick_seconds: 8,
    full_seconds: 50,
    needs_directory: true,
    options: BlockingOptions::augment_args,
    measure: |matches, context| run(&parsed(matches)?, true, context),
    report: |context| run(&BlockingOptions::default(), false, context),
    sample,
    columns: COLUMNS,
    compared: metric::DURABLE[1],
    charts: CHARTS,
    axis: DEPTH,
    role: Role::Other,
    gains: Vec::new,
    title: appends::title,
    heading: appends::title,
    verdicts: appends::blocking,
};

/// What can be chosen for batches.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct BlockingOptions {
    /// Only with idle workers (none), with workers that compute (cpu), or beside a thousand timer tasks (timers) [default:
    /// none and cpu, with --quick none]
    #[arg(long, value_name = "LOAD")]
    load: Option<LoadChoice>,
    /// Tasks that append one batch after the other [default: 1,8, with --quick 1]
    #[arg(long, value_name = "COUNT,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=256))]
    callers: Vec<u32>,
    /// Threads of the runtime [default: one for each processor, and for the most callers with idle workers also 1 and 4
    /// times as many, unless something else is chosen]
    #[arg(long, value_name = "COUNT,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Vec<u32>,
    /// Records of a batch [default: 100]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(2..=1000))]
    batch: Option<u32>,
    /// Bytes of a record [default: 256]
    #[arg(long, value_name = "BYTES", value_parser = parse_record)]
    record: Option<u64>,
    /// Seconds of one sample [default: 1, with --quick 0.5]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Samples of each cell [default: 3, with --quick 2]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: Option<u32>,
    /// Only these rows: direct, spawn-blocking, async, store-direct, store-spawn-blocking, store-async
    #[arg(long, value_name = "ROW,..", value_delimiter = ',', value_parser = parse_row)]
    rows: Vec<String>,
}

fn parse_row(text: &str) -> Result<String, String> {
    parse_way(text, &WalRow::BATCHES)
}

/// Appends batches with every row in turn. Returns one experiment for each number of callers and load, and
/// with `sweeps` also for other numbers of threads.
///
/// # Errors
/// Fails when the path cannot be used (a [`Failure`](forebay_report::failure::Failure)), or nothing could be measured.
fn run(options: &BlockingOptions, sweeps: bool, context: &mut Context) -> anyhow::Result<Vec<Experiment>> {
    let quick = context.quick;
    let callers = match (options.callers.as_slice(), quick) {
        ([], true) => vec![1],
        ([], false) => vec![1, 8],
        (given, _) => given.to_vec(),
    };
    let load = options.load.or(quick.then_some(LoadChoice::None));
    let mut settings = Vec::new();
    for load in LoadChoice::loads(load) {
        let closed = |count: &u32| Workload::Closed { appenders: *count as usize };
        let setting = |count: &u32| Setting { workload: closed(count), load, threads: None };
        settings.extend(callers.iter().map(setting));
    }
    let nothing_chosen = options.load.is_none() && options.callers.is_empty() && options.threads.is_empty();
    if let Some(most) = callers.iter().max().filter(|_| sweeps && nothing_chosen && !quick) {
        let (workload, load) = (Workload::Closed { appenders: *most as usize }, Load::None);
        settings.extend(swept_threads().map(|threads| Setting { workload, load, threads }));
    }
    let settings = with_threads(settings, &options.threads);
    let plan = Plan {
        name: KIND.name,
        settings,
        rows: chosen(&WalRow::BATCHES, &options.rows),
        seconds: options.seconds.unwrap_or(if quick { 0.5 } else { 1.0 }),
        repeats: options.repeats.unwrap_or(if quick { 2 } else { 3 }) as usize,
        record_bytes: options.record.unwrap_or(256) as usize,
        batch: options.batch.unwrap_or(100) as usize,
        file_bytes: file_bytes(quick),
        as_published: false,
        flush: FlushChoice::default(),
    };
    measure(&plan, context)
}
