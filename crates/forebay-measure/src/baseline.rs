//! `measure baseline`: the headline figures of a device, each by the work of one job of fio: sequential and random reads and
//! writes with a plain io_uring loop, and writes that are made durable one by one.

use std::path::Path;

use crate::backend::{Backend, Calls, Setup, Target, until_deadline};
use crate::fio::FioJob;
use crate::pace::Offsets;
use crate::prelude::*;
use crate::residency::evict;

#[derive(Debug)]
pub(crate) struct Baseline;

static SPEC: Spec = Spec {
    name: "baseline",
    about: "Measure the headline figures of a device, each by the work of one job of fio",
    quick_seconds: 10,
    full_seconds: 60,
    needs_directory: true,
    options: &[
        Opt::bytes("size", "Bytes of the file", MIB, u64::MAX).or("4GiB").quick("256MiB"),
        Opt::seconds("2", "0.4"),
        Opt::repeats("3"),
    ],
    ways: &[
        Way::direct(
            "sequential-read",
            "1 MiB at a time from the beginning to the end, and again; io_uring, O_DIRECT, 4 in flight",
        ),
        Way::direct(
            HUGE,
            "the same into buffers in huge pages; fio's mmaphuge needs vm.nr_hugepages for that",
        ),
        Way::direct(
            "sequential-write",
            "1 MiB at a time from the beginning to the end, and again; io_uring, O_DIRECT, 4 in flight",
        ),
        Way::direct("random-read-1", "4 KiB anywhere in the file; io_uring, O_DIRECT, 1 in flight"),
        Way::direct("random-read-32", "4 KiB anywhere in the file; io_uring, O_DIRECT, 32 in flight"),
        Way::direct("random-write-1", "4 KiB anywhere in the file; io_uring, O_DIRECT, 1 in flight"),
        Way::direct("random-write-32", "4 KiB anywhere in the file; io_uring, O_DIRECT, 32 in flight"),
        Way::cached("sync", "4 KiB after the other through the page cache, pwrite and fdatasync each"),
    ],
    columns: &[
        columns::MB_PER_S,
        columns::IOPS,
        columns::P50_US,
        columns::P99_US,
        column(metric::MEAN_US, "mean µs", 1.0, "mean time of an operation"),
        columns::CPU_US_PER_IO,
    ],
    compared: metric::IOPS,
    charts: &[],
    axis: Axis::new("file_bytes", "bytes of the file"),
    role: Role::Baseline,
    gains: Vec::new,
};

const HUGE: &str = "sequential-read-huge";
const MIB: u64 = 1 << 20;
const BLOCK_BYTES: u64 = PAGE_BYTES as u64;
const SEQUENTIAL_DEPTH: usize = 4;

/// The work of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Load {
    is_write: bool,
    is_random: bool,
    block_bytes: u64,
    depth: usize,
    /// Each write is made durable.
    syncs: bool,
}

impl Load {
    fn of(row: &str) -> Self {
        let (is_random, syncs) = (row.starts_with("random"), row == "sync");
        let block_bytes = if is_random || syncs { BLOCK_BYTES } else { MIB };
        let depth = match (is_random, row.rsplit('-').next().and_then(|word| word.parse().ok())) {
            (true, depth) => depth.unwrap_or(1),
            (false, _) if syncs => 1,
            (false, _) => SEQUENTIAL_DEPTH,
        };
        Self { is_write: syncs || row.contains("write"), is_random, block_bytes, depth, syncs }
    }
}

impl Experiment for Baseline {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn plan<'a>(&self, options: &Values, context: &'a Context) -> anyhow::Result<Box<dyn Plan + 'a>> {
        ScratchDir::find(context, SPEC.name)?;
        let file_bytes = options.count("size").div_ceil(MIB) * MIB;
        Ok(Box::new(Run { file: TestFile::prepare(context, file_bytes, None)? }))
    }

    fn sample(&self, job: &Job) -> anyhow::Result<Outcome> {
        let (load, file_bytes) = (Load::of(&job.row), job.work::<Work>()?.file_bytes);
        let as_fio = Setup { as_fio: true, ..Setup::default() };
        let backend = if load.syncs { Backend::Threads(Calls::Durable) } else { Backend::Ring(as_fio) };
        let target = Target {
            writes: load.is_write,
            // Data that do not compress, and that differ from the file's.
            contents: Some(Pattern::new(job.seed)),
            is_huge: job.row == HUGE,
            ..Target::reads(&job.path, load.block_bytes as usize, load.depth)
        };
        let blocks = file_bytes / load.block_bytes;
        // No write changes the first word of a page.
        let loops = until_deadline(backend, &target, job, false, |lane| {
            if load.is_random {
                Offsets::over(job.seed, lane, 0, blocks, load.block_bytes)
            } else {
                Offsets::in_order(blocks, load.block_bytes)
            }
        })?;
        Ok(loops.outcome(load.block_bytes))
    }

    fn fio(&self, table: &Table, row: &Row, path: &Path) -> Option<String> {
        let load = Load::of(&row.name);
        let rw = format!(
            "{}{}",
            if load.is_random { "rand" } else { "" },
            if load.is_write { "write" } else { "read" }
        );
        let more = match row.name.as_str() {
            HUGE => "--time_based --lat_percentiles=1 --iomem=mmaphuge",
            "sync" => "--time_based --lat_percentiles=1 --fdatasync=1",
            _ => "--time_based --lat_percentiles=1",
        };
        let job = FioJob {
            rw: &rw,
            block_bytes: load.block_bytes as f64,
            depth: load.depth as f64,
            engine: if load.syncs { "psync" } else { "io_uring" },
            is_direct: !load.syncs,
            more,
            ..FioJob::of(table, row, path, "file_bytes")?
        };
        Some(job.command())
    }

    fn title(&self, table: &Table) -> (String, String) {
        let title = format!("Headline figures, on a file of {}", shown_bytes(table, "file_bytes"));
        (title.clone(), title)
    }

    fn verdicts(&self, tables: &[&Table]) -> Vec<String> {
        tables.iter().flat_map(|table| verdicts(table)).collect()
    }
}

/// One run: a file, which all rows use.
#[derive(Debug)]
struct Run {
    file: TestFile,
}

impl Plan for Run {
    fn place(&self) -> Place {
        self.file.place()
    }

    fn settings(&self) -> Vec<Parameters> {
        vec![parameters(json!({ "file_bytes": self.file.bytes }))]
    }

    fn start(&mut self, turn: &Turn<'_>, mut job: Job) -> anyhow::Result<Start> {
        evict(&self.file.handle)?;
        // Rows of a repeat have other offsets: a device or a host that caches would otherwise have them.
        let row = SPEC.ways.iter().position(|way| way == turn.way).unwrap_or(0) as u64;
        job.seed ^= (row + 1) << 8;
        job.pattern_seed = self.file.pattern.map(Pattern::seed);
        Ok(job.into())
    }

    fn claim(&self, turn: &Turn<'_>, outcome: &Outcome) -> Claim {
        let load = Load::of(turn.way.name);
        Claim {
            read_bytes: (!load.is_write).then_some(outcome.bytes),
            written_bytes: load.is_write.then_some(outcome.bytes),
            workers: Some(1),
            exact: !load.is_write,
            ..Claim::default()
        }
    }

    fn method(&self, _: &Parameters, seconds: f64) -> String {
        format!(
            "The file was written before, with data that do not compress, so no write allocates. Each sample is a fresh \
             process that does for {seconds:.2} s what the job of fio beside its row does: one thread with a plain ring, without \
             registered buffers, submits as completions come. Random offsets are equally likely in the whole file. Latency is \
             the time from the submission to the completion as the program sees it, of `sync` that of both calls. CPU is user \
             and system time. Rows take turns within a repeat; figures are medians of the repeats."
        )
    }
}

/// The parameters that a sample needs.
#[derive(Debug, Deserialize)]
struct Work {
    file_bytes: u64,
}

fn verdicts(table: &Table) -> Vec<String> {
    let figure = |row: &Row, name: &str| row.metrics.get(name).map(number);
    let of = |name: &str, unit: &str| figure(table.row(name)?, unit);
    let mut sentences = Vec::new();
    let rates = (of("sequential-read", metric::MB_PER_S), of("sequential-write", metric::MB_PER_S));
    if let (Some(read), Some(written)) = rates {
        sentences
            .push(format!("sequential, 1 MiB at queue depth 4: {read} MB/s read, {written} MB/s written"));
    }
    if let (Some(read), Some(written)) =
        (of("random-read-32", metric::IOPS), of("random-write-32", metric::IOPS))
    {
        sentences.push(format!("random, 4 KiB at queue depth 32: {read} IOPS read, {written} IOPS written"));
    }
    if let (Some(each), Some(p50)) = (of("sync", metric::IOPS), of("sync", metric::P50_US)) {
        sentences.push(format!("`sync`: {each} durable writes/s one by one, p50 {p50} µs"));
    }
    if let (Some(huge), Some(plain)) = (table.row(HUGE), table.row("sequential-read"))
        && let Some(Difference::More(times)) = difference(huge, plain, metric::MB_PER_S)
    {
        sentences.push(format!(
            "buffers in huge pages read {} times as fast as `sequential-read`: fio shows it with --iomem=mmaphuge{}",
            number(times),
            once(&[huge, plain])
        ));
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::super::lanes::{test_file, test_job, test_row, test_table};
    use super::*;

    const FILE_BYTES: usize = 4 << 20;

    fn job(path: &Path, way: &Way, pattern_seed: u64) -> Job {
        let job = test_job(SPEC.name, way.name, path, json!({ "file_bytes": FILE_BYTES }), 9);
        Job { pattern_seed: Some(pattern_seed), seconds: 0.05, ..job }
    }

    /// Returns whether huge pages are refused here, which the row then reports.
    fn is_refused(way: &Way, error: &anyhow::Error) -> bool {
        way.name == HUGE && error.to_string().contains("huge pages")
    }

    #[test]
    fn every_row_works_for_its_time_and_keeps_the_words_of_the_file() {
        let (_cleanup, temp) = test_file(5, FILE_BYTES);
        for way in SPEC.ways {
            let before = std::fs::read(temp.path()).expect("readable");
            let outcome = match Baseline.sample(&job(temp.path(), way, 5)) {
                Err(error) if is_refused(way, &error) => continue,
                other => other.unwrap_or_else(|error| panic!("{}: {error:#}", way.name)),
            };
            let load = Load::of(way.name);
            assert!(outcome.operations > 0 && outcome.seconds >= 0.05, "{}", way.name);
            assert_eq!(outcome.bytes, outcome.operations * load.block_bytes, "{}", way.name);
            assert_eq!(outcome.evidence.times["latency"].count(), outcome.operations);
            let after = std::fs::read(temp.path()).expect("readable");
            assert_eq!(before != after, load.is_write, "{}", way.name);
            let pages = after.chunks_exact(PAGE_BYTES).zip(before.chunks_exact(PAGE_BYTES));
            assert!(pages.into_iter().all(|(new, old)| new[..8] == old[..8]), "{}", way.name);
        }
    }

    #[test]
    fn reads_notice_wrong_data() {
        let (_cleanup, temp) = test_file(5, FILE_BYTES);
        for way in SPEC.ways.iter().filter(|way| !Load::of(way.name).is_write) {
            let error = Baseline.sample(&job(temp.path(), way, 6)).expect_err("another seed");
            assert!(is_refused(way, &error) || error.to_string().contains("not the data"), "{error:#}");
        }
    }

    #[test]
    fn an_operation_that_fails_ends_the_sample_with_the_reason() {
        let (_cleanup, temp) = test_file(5, FILE_BYTES);
        let way = &SPEC.ways[0];
        let mut job = job(temp.path(), way, 5);
        job.work["file_bytes"] = (2 * FILE_BYTES).into();
        let error = Baseline.sample(&job).expect_err("beyond the end of the file");
        assert!(error.to_string().contains("moved 0 bytes"), "{error:#}");
    }

    #[test]
    fn rows_do_the_work_of_their_names() {
        let of = |row: &str| {
            let load = Load::of(row);
            (load.is_write, load.is_random, load.block_bytes, load.depth)
        };
        assert_eq!(of("sequential-read"), (false, false, MIB, 4));
        assert_eq!(of(HUGE), of("sequential-read"));
        assert_eq!(of("sequential-write"), (true, false, MIB, 4));
        assert_eq!(of("random-read-1"), (false, true, 4096, 1));
        assert_eq!(of("random-write-32"), (true, true, 4096, 32));
        assert_eq!(of("sync"), (true, false, 4096, 1));
    }

    fn table(rates: &[(&str, f64)]) -> Table {
        let row = |(name, rate): &(&str, f64)| {
            let metrics = [(metric::MB_PER_S, *rate), (metric::IOPS, *rate), (metric::P50_US, 1e6 / rate)];
            test_row(name, &[0.99, 1.0, 1.01], &metrics)
        };
        let parameters = json!({ "file_bytes": 1 << 28, "seconds": 2.0 });
        test_table(SPEC.name, parameters, rates.iter().map(row).collect())
    }

    #[test]
    fn every_row_has_its_job_of_fio() {
        let table = table(&[]);
        for way in SPEC.ways {
            let row = Row { name: way.name.to_owned(), ..Row::default() };
            let line = Baseline.fio(&table, &row, Path::new("/data/f")).expect("every row");
            let load = Load::of(way.name);
            for word in [
                format!("--bs={}", load.block_bytes),
                "--size=268435456".to_owned(),
                "--runtime=2000ms --".to_owned(),
                "--time_based".to_owned(),
                format!("--direct={}", u8::from(!load.syncs)),
            ] {
                assert!(line.contains(&word), "{word}: {line}");
            }
            assert_eq!(line.contains("--iodepth=4 "), load.block_bytes == MIB, "{line}");
            assert_eq!(line.contains("--fdatasync=1"), load.syncs, "{line}");
            assert_eq!(line.contains("--iomem=mmaphuge"), way.name == HUGE, "{line}");
        }
    }

    #[test]
    fn huge_pages_are_mentioned_where_they_pay() {
        let of = |huge: f64| {
            let table = table(&[
                ("sequential-read", 1500.0),
                (HUGE, huge),
                ("sequential-write", 1000.0),
                ("sync", 200.0),
            ]);
            verdicts(&table)
        };
        assert_eq!(
            of(3500.0),
            [
                "sequential, 1 MiB at queue depth 4: 1,500 MB/s read, 1,000 MB/s written",
                "`sync`: 200 durable writes/s one by one, p50 5,000 µs",
                "buffers in huge pages read 2.33 times as fast as `sequential-read`: fio shows it with --iomem=mmaphuge",
            ]
        );
        assert_eq!(of(1510.0).len(), 2);
    }
}
