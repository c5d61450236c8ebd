//! `measure cpu`: the processor time of a read, for each way of reading.
//!
//! Every way reads the same blocks with the same number of reads in flight; [`super::reads`] runs the
//! samples.

use std::cell::Cell as Flag;
use std::fs;
use std::path::Path;

use clap::Args;

use super::commands::{self, NamespaceArgs};
use super::interleave::{chosen, parse_way};
use super::kind::{Kind, parsed};
use super::pattern::SplitMix;
use super::plan::fit_seconds;
use super::reads::names::{self, IOPS_PER_CORE, SYSTEM_CALLS_PER_IO};
use super::reads::{
    self, Cell, Pacing, ReadResult, Setting, Shape, Way, build_row, common_metrics, extra_seconds,
};
use super::saturate::{parse_block, processors, test_file};
use super::scan::parse_seconds;
use super::units::{parse_bytes, show_bytes};
use crate::context::Context;
use crate::verdicts::cpu;
use forebay_report::page::columns;
use forebay_report::page::view::{Axis, Gain, Role};
use forebay_report::result::{Experiment, Metrics, Row, metric};

/// The program's description of this experiment.
pub(crate) static KIND: Kind = Kind {
    name: "cpu",
    about: "Measure the processor time of a read, in thirteen ways of reading and, with --namespace, two more",
    quick_seconds: 14,
    full_seconds: 110,
    needs_directory: false,
    options: CpuOptions::augment_args,
    measure: |matches, context| run(&parsed(matches)?, context),
    report: |context| run(&CpuOptions::default(), context),
    sample: reads::sample,
    columns: &[
        columns::CPU_US_PER_IO,
        names::USER,
        names::SYSTEM,
        names::PER_CORE,
        names::CALLS,
        columns::CONTEXT_SWITCHES_PER_IO,
        names::VOLUNTARY,
        names::FORCED,
        names::SHARE,
        columns::IOPS,
        columns::P50_US,
        columns::P99_US,
        columns::IN_FLIGHT_AVG,
    ],
    compared: metric::CPU_US_PER_IO,
    charts: &[metric::CPU_US_PER_IO, IOPS_PER_CORE, SYSTEM_CALLS_PER_IO, metric::CONTEXT_SWITCHES_PER_IO],
    axis: Axis::new("readers", "reads in flight"),
    role: Role::ProcessorTime,
    gains: || {
        vec![Gain::new(
            metric::CPU_US_PER_IO,
            false,
            &["tokio-fs", "spawn-blocking", "pread"],
            "µs of processor time for a read",
            "Spend less processor time on each read",
        )]
    },
    title: cpu::title,
    heading: cpu::title,
    verdicts: cpu::of,
};

const READERS: [u32; 2] = [1, 32];
const READERS_QUICK: [u32; 1] = [32];

/// What can be chosen for the cost of a read.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct CpuOptions {
    /// Reads in flight [default: 1,32, with --quick 32]
    #[arg(long, value_name = "COUNT,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    readers: Vec<u32>,
    /// Bytes of one read [default: 4KiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_block)]
    block: Option<u64>,
    /// Size of the file, or how much is read of an existing one [default: 1GiB, with --quick 256MiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    size: Option<u64>,
    /// Seconds of one sample [default: 1, with --quick 0.3]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Samples of each cell [default: 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: Option<u32>,
    /// Only these rows: pread, preadv2-hipri, io_uring, io_uring-fixed-buffers, io_uring-fixed-files,
    /// io_uring-defer-taskrun, io_uring-sqpoll, io_uring-iopoll, io_uring-commands, tokio-fs, spawn-blocking,
    /// forebay-shard, forebay-polled, forebay-commands, forebay-tokio
    #[arg(long, value_name = "ROW,..", value_delimiter = ',', value_parser = parse_row)]
    rows: Vec<String>,
    #[command(flatten)]
    commands: NamespaceArgs,
}

fn parse_row(text: &str) -> Result<String, String> {
    parse_way(text, &Way::ALL)
}

/// Reads with every row in turn, and returns one experiment for each number of reads in flight.
///
/// # Errors
/// Fails when the path cannot be used (a [`Failure`](forebay_report::failure::Failure)), or nothing could be measured.
pub(crate) fn run(options: &CpuOptions, context: &mut Context) -> anyhow::Result<Vec<Experiment>> {
    let block_bytes = options.block.unwrap_or(4096);
    let namespace = options.commands.checked(&options.rows)?;
    let test_file = test_file(context, options.size, block_bytes)?;
    let readers = match (options.readers.as_slice(), context.quick) {
        ([], true) => READERS_QUICK.to_vec(),
        ([], false) => READERS.to_vec(),
        (given, _) => given.to_vec(),
    };
    let mut cells: Vec<Cell> = Vec::new();
    for way in chosen(&Way::ALL, &options.rows) {
        if way.sends_commands() && namespace.is_none() {
            continue;
        }
        for (experiment, readers) in readers.iter().enumerate() {
            let readers = *readers as usize;
            cells.push(Cell::new(Setting { readers, pacing: Pacing::Closed, experiment }, way));
        }
    }
    let repeats = options.repeats.unwrap_or(3) as usize;
    let wanted = options.seconds.unwrap_or(if context.quick { 0.3 } else { 1.0 });
    let extra = extra_seconds(true);
    let fitted = fit_seconds(wanted + extra, cells.len() * repeats, context.remaining()) - extra;
    let workers = processors();
    let shape = Shape {
        experiment: KIND.name,
        test_file: &test_file,
        context,
        namespace,
        block_bytes,
        workers,
        seconds: fitted.max(wanted.min(0.1)),
        count_calls: true,
    };
    let by_kernel = Flag::new(false);
    let figures = |way, setting: &Setting, result: &ReadResult| {
        if result.calls.as_ref().is_some_and(|calls| calls.by_kernel) {
            by_kernel.set(true);
        }
        metrics(way, setting, result, workers)
    };
    let mut seeds = SplitMix::new(context.seed);
    let done = shape.run(&mut cells, repeats, &mut seeds, figures)?;
    let polls = test_file.device_stat.as_deref().and_then(has_poll_queues);
    let build = |(index, readers): (usize, &u32)| {
        let mut experiment = Experiment::new(KIND.name, method(&shape))
            .parameter("readers", *readers)
            .parameter("block_bytes", block_bytes)
            .parameter("file_bytes", test_file.bytes)
            .parameter("workers", workers)
            .parameter("seconds", shape.seconds)
            .parameter("repeats", done)
            .parameter("system_calls_by", if by_kernel.get() { "kernel" } else { "row" })
            .parameter("file_system", test_file.filesystem.as_str())
            .parameter("own_file", test_file.pattern.is_some())
            .parameter("seed", context.seed);
        experiment.conditions = test_file.preconditions.conditions();
        experiment.notes = notes(by_kernel.get(), done);
        experiment.notes.extend(namespace.map(commands::note));
        let of_this = cells.extract_if(.., |cell| cell.setting.experiment == index);
        experiment.rows = of_this.map(|cell| polled(build_row(cell), polls)).collect();
        experiment
    };
    Ok(readers.iter().enumerate().map(build).collect())
}

fn metrics(way: Way, setting: &Setting, result: &ReadResult, workers: usize) -> Metrics {
    let operations = result.operations as f64;
    let mut metrics = common_metrics(way, setting, result, workers);
    let cpu_ns = (result.user_ns + result.system_ns) as f64;
    metrics
        .set(names::CPU_USER_NS_PER_IO, result.user_ns as f64 / operations)
        .set(names::CPU_SYSTEM_NS_PER_IO, result.system_ns as f64 / operations)
        .set(names::IOPS_PER_CORE, operations * 1e9 / cpu_ns)
        .set(names::VOLUNTARY_SWITCHES_PER_IO, result.voluntary_switches as f64 / operations)
        .set(names::INVOLUNTARY_SWITCHES_PER_IO, result.involuntary_switches as f64 / operations);
    if let Some(calls) = &result.calls {
        metrics.set(names::SYSTEM_CALLS_PER_IO, calls.count as f64 / calls.operations as f64);
    }
    metrics
}

/// Marks a polling row as degraded when the device has no poll queues. Some kernels accept the flag for
/// polling and still wait for the interrupt.
fn polled(mut row: Row, polls: Option<bool>) -> Row {
    let wants_polling = [Way::PreadHipri, Way::UringIopoll].map(Way::name).contains(&row.name.as_str());
    if wants_polling && row.skipped.is_none() && polls == Some(false) {
        row.degraded =
            Some("the device has no poll queues: completions come by interrupt all the same".to_owned());
    }
    row
}

/// Returns whether the device of a `stat` file has poll queues; a partition uses the queue of its disk.
fn has_poll_queues(stat: &Path) -> Option<bool> {
    let device = fs::canonicalize(stat.parent()?).ok()?;
    let read = |directory: &Path| fs::read_to_string(directory.join("queue/io_poll")).ok();
    let text = read(&device).or_else(|| read(device.parent()?))?;
    Some(text.trim() == "1")
}

fn method(shape: &Shape<'_>) -> String {
    format!(
        "Each reader reads {} at random offsets and begins its next read as the last one ends. Each sample is a \
         fresh process that reads for {:.2} s after a warm-up of 0.1 s; the order of all samples of a repeat is \
         shuffled anew, and a figure is the median of the repeats. Processor time and context switches are those of \
         all threads of the process in that time (getrusage), a kernel's thread that polls for it included; how much \
         of it is user time the kernel may know by the ticks of its clock only, the sum it knows exactly. The time \
         of an interrupt counts for the thread that it interrupts. Every row looks at the first eight bytes of each \
         page. System calls are counted in a further 0.1 s of the same sample, because counting makes them slower. \
         One core drives as many reads as there are in a second when each takes this processor time; at another \
         depth it is another number.",
        show_bytes(shape.block_bytes),
        shape.seconds
    )
}

fn notes(by_kernel: bool, repeats: usize) -> Vec<String> {
    let mut notes = vec![
        "`tokio-fs` goes through the page cache, which is emptied of the file before each sample; all other rows read directly"
            .to_owned(),
    ];
    let counted = if by_kernel {
        "system calls were counted by the kernel (tracepoint raw_syscalls:sys_enter), all threads"
    } else {
        "system calls were counted by the rows themselves, because the kernel counts them only for users who may \
         trace (root, or CAP_PERFMON and CAP_SYS_ADMIN): rows with other threads have no figure"
    };
    notes.push(counted.to_owned());
    if repeats < 3 {
        notes.push(format!("only {repeats} repeat(s): take small differences for chance"));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::super::reads::Calls;
    use super::*;

    #[test]
    fn costs_are_divided_by_the_reads_and_calls_by_those_of_their_stretch() {
        let setting = Setting { readers: 2, pacing: Pacing::Closed, experiment: 0 };
        let mut result = ReadResult {
            seconds: 1.0,
            operations: 1000,
            user_ns: 2_000_000,
            system_ns: 8_000_000,
            voluntary_switches: 900,
            involuntary_switches: 100,
            calls: Some(Calls { count: 150, operations: 100, by_kernel: true }),
            ..ReadResult::default()
        };
        let found = metrics(Way::Pread, &setting, &result, 2);
        let of_row = |name| found.get(name);
        assert_eq!(
            [names::CPU_USER_NS_PER_IO, names::CPU_SYSTEM_NS_PER_IO].map(of_row),
            [Some(2000.0), Some(8000.0)]
        );
        assert_eq!(
            (of_row(names::IOPS_PER_CORE), of_row(names::SYSTEM_CALLS_PER_IO)),
            (Some(100e3), Some(1.5))
        );
        assert_eq!(
            [names::VOLUNTARY_SWITCHES_PER_IO, names::INVOLUNTARY_SWITCHES_PER_IO].map(of_row),
            [Some(0.9), Some(0.1)]
        );
        result.calls = None;
        assert_eq!(metrics(Way::Pread, &setting, &result, 2).get(names::SYSTEM_CALLS_PER_IO), None);
    }

    #[test]
    fn a_polled_row_without_poll_queues_is_degraded() {
        let row = |name: &str| Row::from_samples(name, Vec::new());
        assert!(polled(row("preadv2-hipri"), Some(false)).degraded.is_some());
        assert!(polled(row("preadv2-hipri"), Some(true)).degraded.is_none());
        assert!(polled(row("pread"), Some(false)).degraded.is_none());
        assert!(polled(Row::skipped("io_uring-iopoll", "refused"), Some(false)).degraded.is_none());
        assert_eq!(has_poll_queues(Path::new("/nowhere/stat")), None);
    }

    #[test]
    fn names_are_checked() {
        assert!(parse_row("io_uring-sqpoll").is_ok());
        assert!(parse_row("sqpoll").is_err_and(|sentence| sentence.contains("io_uring-sqpoll")));
    }
}
