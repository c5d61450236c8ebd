//! `measure cpu`: the processor time of a read, for each way of reading.
//!
//! Every way reads blocks with the same number of reads in flight; [`crate::reads`] runs the samples.

use std::path::Path;

use crate::commands::{self, NAMESPACE};
use crate::prelude::*;
use crate::reads::{
    self, BLOCK, DEFER_TASKRUN, FOREBAY_TOKIO, PREAD, Run, SHARE, SIZE, of_block, system_calls_by,
};

#[derive(Debug)]
pub(crate) struct Cpu;

static SPEC: Spec = Spec {
    name: "cpu",
    about: "Measure the processor time of a read, in fourteen ways of reading and, with --namespace, two more",
    quick_seconds: 10,
    full_seconds: 110,
    needs_directory: false,
    options: &[
        Opt::count("readers", "Reads in flight", 4096).list().or("1,32").quick("32"),
        BLOCK,
        SIZE,
        Opt::seconds("1", "0.3"),
        Opt::repeats("3"),
        NAMESPACE,
    ],
    ways: &[
        PREAD,
        Way::direct("preadv2-hipri", "a std thread for each reader, preadv2 with RWF_HIPRI and O_DIRECT"),
        Way::direct(
            "io_submit",
            "one thread with Linux AIO, O_DIRECT, an io_submit and an io_getevents for at least one completion a turn",
        ),
        Way::direct(
            "io_uring",
            "one thread with a plain ring, a submission and a wait for at least one completion a turn",
        ),
        Way::direct("io_uring-fixed-buffers", "the same with registered memory"),
        Way::direct("io_uring-fixed-files", "the same with registered memory and a registered file"),
        DEFER_TASKRUN,
        Way::direct(
            "io_uring-sqpoll",
            "registered memory and file, and a thread of the kernel that looks for submissions (SQPOLL)",
        ),
        Way::direct(
            "io_uring-iopoll",
            "registered memory and file, SINGLE_ISSUER and DEFER_TASKRUN, and completions that are polled for (IOPOLL)",
        ),
        Way::direct(
            "io_uring-commands",
            "the same ring with entries of 128 bytes, and reads as commands to the NVMe namespace",
        ),
        Way::cached(
            "tokio-fs",
            "a Tokio task for each reader, seek and read_exact of a tokio::fs::File, through the page cache",
        ),
        Way::direct(
            "spawn-blocking",
            "a Tokio task for each reader, a spawn_blocking with pread and O_DIRECT for each read",
        ),
        Way::direct("forebay-shard", "a task on one of Forebay's shards for each reader, O_DIRECT"),
        Way::direct(
            "forebay-polled",
            "a task on one of Forebay's shards for each reader, O_DIRECT, and completions that are polled for",
        ),
        Way::direct(
            "forebay-commands",
            "the same from the NVMe namespace (Engine::open_nvme), where reads are commands, and polled for",
        ),
        FOREBAY_TOKIO,
    ],
    columns: &[
        columns::CPU_US_PER_IO,
        column(
            metric::CPU_USER_NS_PER_IO,
            "user ns/IO",
            1.0,
            "of that, outside of the kernel, in nanoseconds",
        ),
        column(metric::CPU_SYSTEM_NS_PER_IO, "system ns/IO", 1.0, "of that, in the kernel, in nanoseconds"),
        column(metric::IOPS_PER_CORE, "IOPS/core", 1.0, "blocks for a second of processor time"),
        column(metric::SYSTEM_CALLS_PER_IO, "calls/IO", 1.0, "system calls for one block"),
        columns::CONTEXT_SWITCHES_PER_IO,
        column(
            metric::VOLUNTARY_SWITCHES_PER_IO,
            "voluntary/IO",
            1.0,
            "of the switches, those of threads that waited",
        ),
        column(
            metric::INVOLUNTARY_SWITCHES_PER_IO,
            "forced/IO",
            1.0,
            "of the switches, those of threads that were preempted",
        ),
        SHARE,
        columns::IOPS,
        columns::P50_US,
        columns::P99_US,
        columns::IN_FLIGHT_AVG,
    ],
    compared: metric::CPU_US_PER_IO,
    charts: &[
        metric::CPU_US_PER_IO,
        metric::IOPS_PER_CORE,
        metric::SYSTEM_CALLS_PER_IO,
        metric::CONTEXT_SWITCHES_PER_IO,
    ],
    axis: Axis::new("readers", "reads in flight"),
    role: Role::ProcessorTime,
    gains: || {
        vec![Gain::new(
            metric::CPU_US_PER_IO,
            false,
            &["tokio-fs", "spawn-blocking", "pread"],
            &[
                "io_submit",
                "io_uring",
                "io_uring-fixed-buffers",
                "io_uring-fixed-files",
                DEFER_TASKRUN.name,
                "io_uring-sqpoll",
                "io_uring-iopoll",
                "io_uring-commands",
                "forebay-shard",
                "forebay-polled",
                "forebay-commands",
                FOREBAY_TOKIO.name,
            ],
            "µs of processor time for a read",
            "Spend less processor time on each read, by a ring or Linux AIO",
        )]
    },
};

impl Experiment for Cpu {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn plan<'a>(&self, options: &Values, context: &'a Context) -> anyhow::Result<Box<dyn Plan + 'a>> {
        let namespace = commands::namespace(&options.words("namespace"), &options.rows)?;
        let mut run = Run::new(options, context, method)?;
        let by = system_calls_by();
        let of = |readers| parameters(json!({ "readers": readers, "system_calls_by": by }));
        run.tables = options.counts("readers").into_iter().map(of).collect();
        run.notes.push(
            "`tokio-fs` goes through the page cache, emptied of the file before each sample".to_owned(),
        );
        let counted = if by == "kernel" {
            "system calls were counted by the kernel (tracepoint raw_syscalls:sys_enter), all threads"
        } else {
            "system calls were counted by the rows themselves, because the kernel counts them only for users who may \
             trace (root, or CAP_PERFMON and CAP_SYS_ADMIN): rows with other threads have no figure"
        };
        run.notes.push(counted.to_owned());
        run.notes.extend(namespace.as_deref().map(commands::note));
        run.namespace = namespace;
        Ok(Box::new(run))
    }

    fn sample(&self, job: &Job) -> anyhow::Result<Outcome> {
        reads::sample(job)
    }

    fn fio(&self, table: &Table, row: &Row, path: &Path) -> Option<String> {
        reads::fio(table, row, path)
    }

    fn title(&self, table: &Table) -> (String, String) {
        let readers = shown(table, "readers");
        let title = format!("Processor time of random reads{}, {readers} at once", of_block(table));
        (title.clone(), title)
    }

    fn verdicts(&self, tables: &[&Table]) -> Vec<String> {
        let of = |table: &&Table| {
            let readers = shown(table, "readers");
            [costs(table, &readers), one_core(table, &readers), calls(table, &readers)]
        };
        tables.iter().flat_map(of).flatten().collect()
    }
}

fn method(_: &Parameters, block: &str, seconds: f64) -> String {
    format!(
        "Each reader reads {block} at random offsets and begins its next read as the last one ends, for {seconds:.2} s after \
         a warm-up of 0.1 s, in a fresh process; samples of a repeat are shuffled, and a figure is the median of the repeats. \
         Processor time and context switches are those of all threads of the process (getrusage), a kernel's thread that \
         polls for it included; an interrupt counts for the thread that it interrupts. Every row looks at eight bytes of each \
         page. System calls are counted in a further 0.1 s, because counting slows them. IOPS per core hold for this depth."
    )
}

/// Returns the rows that have the metric, the cheapest first.
fn by_cost<'a>(table: &'a Table, metric: &str) -> Vec<(&'a Row, f64)> {
    let mut rows: Vec<(&Row, f64)> =
        table.rows.iter().filter_map(|row| Some((row, row.metrics.get(metric)?))).collect();
    rows.sort_by(|a, b| a.1.total_cmp(&b.1));
    rows
}

/// Returns a sentence on the cheapest row, the others that cost no more, and the dearest.
fn costs(table: &Table, readers: &str) -> Option<String> {
    const METRIC: &str = metric::CPU_US_PER_IO;
    let rows = by_cost(table, METRIC);
    let ((cheapest, least), (dearest, most)) = (*rows.first()?, *rows.last().filter(|_| rows.len() > 1)?);
    let clear = |row: &Row| matches!(difference(row, cheapest, METRIC), Some(Difference::More(_)));
    let alike = rows[1..].iter().filter(|(row, _)| !clear(row)).count();
    let rest = match (clear(dearest), alike) {
        (false, _) => "; no row clearly costs more".to_owned(),
        (true, 0) => format!(", `{}` {}", dearest.name, number(most)),
        (true, alike) => format!(" ({alike} more alike), `{}` {}", dearest.name, number(most)),
    };
    let hint = if rows.iter().any(|(row, _)| row.samples.len() == 1) { " (measured once)" } else { "" };
    Some(format!("CPU µs of a read, {readers} in flight: `{}` {}{rest}{hint}", cheapest.name, number(least)))
}

/// Returns a sentence on how many reads one core drives, at best, with Forebay, and at worst.
fn one_core(table: &Table, readers: &str) -> Option<String> {
    let rows = by_cost(table, metric::IOPS_PER_CORE);
    let ((last, least), (first, most)) = (*rows.first()?, *rows.last().filter(|_| rows.len() > 1)?);
    let forebay = rows.iter().rev().find(|(row, _)| row.name.starts_with("forebay"));
    let between = forebay.filter(|(row, _)| ![&first.name, &last.name].contains(&&row.name));
    let between =
        between.map_or_else(String::new, |(row, rate)| format!(", `{}` {}", row.name, number(*rate)));
    Some(format!(
        "one core drives, {readers} in flight: `{}` {} IOPS{between}, `{}` {}",
        first.name,
        number(most),
        last.name,
        number(least)
    ))
}

fn calls(table: &Table, readers: &str) -> Option<String> {
    let of = |name: &&str| {
        let row = table.row(name)?;
        let calls = row.metrics.get(metric::SYSTEM_CALLS_PER_IO)?;
        let switches = row.metrics.get(metric::CONTEXT_SWITCHES_PER_IO)?;
        Some(format!("`{name}` {} + {}", number(calls), number(switches)))
    };
    let parts: Vec<String> = ["pread", "spawn-blocking", "forebay-tokio"].iter().filter_map(of).collect();
    (!parts.is_empty())
        .then(|| format!("system calls + context switches a read, {readers} in flight: {}", parts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::{test_row, test_table};

    fn row(name: &str, cpu_us: f64, calls: Option<f64>) -> Row {
        let mut metrics = vec![
            (metric::CPU_US_PER_IO, cpu_us),
            (metric::IOPS_PER_CORE, 1e6 / cpu_us),
            (metric::CONTEXT_SWITCHES_PER_IO, 0.5),
        ];
        metrics.extend(calls.map(|calls| (metric::SYSTEM_CALLS_PER_IO, calls)));
        test_row(name, &[0.99, 1.0, 1.01], &metrics)
    }

    fn table(rows: Vec<Row>) -> Table {
        test_table("cpu", json!({ "readers": 32, "block_bytes": 4096 }), rows)
    }

    fn of(rows: Vec<Row>) -> Vec<String> {
        let sentences = Cpu.verdicts(&[&table(rows)]);
        for sentence in &sentences {
            assert!(sentence.split_whitespace().count() <= 20, "{sentence}");
        }
        sentences
    }

    #[test]
    fn costs_one_core_and_the_calls_are_reported() {
        let sentences = of(vec![
            row("pread", 20.0, Some(1.0)),
            row("io_uring", 10.0, None),
            row("tokio-fs", 50.0, Some(4.0)),
            row("forebay-shard", 10.1, Some(0.25)),
            row("forebay-tokio", 12.0, Some(0.3)),
            Row::skipped("io_uring-iopoll", "refused"),
        ]);
        assert_eq!(
            sentences,
            [
                "CPU µs of a read, 32 in flight: `io_uring` 10 (1 more alike), `tokio-fs` 50",
                "one core drives, 32 in flight: `io_uring` 100,000 IOPS, `forebay-shard` 99,010, `tokio-fs` 20,000",
                "system calls + context switches a read, 32 in flight: `pread` 1 + 0.500, `forebay-tokio` 0.300 + 0.500",
            ]
        );
        let (title, heading) = Cpu.title(&table(Vec::new()));
        assert_eq!(title, "Processor time of random reads of 4 KiB, 32 at once");
        assert_eq!(title, heading);
    }

    #[test]
    fn rows_within_noise_are_not_called_dearer() {
        let sentences = of(vec![row("io_uring", 10.0, None), row("forebay-shard", 10.1, None)]);
        assert_eq!(sentences[0], "CPU µs of a read, 32 in flight: `io_uring` 10; no row clearly costs more");
    }

    #[test]
    fn one_row_is_compared_with_nothing() {
        let sentences = of(vec![row("io_uring", 10.0, None)]);
        assert!(sentences.is_empty(), "{sentences:?}");
    }
}
