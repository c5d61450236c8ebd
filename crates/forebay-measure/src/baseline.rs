//! `measure baseline`: the headline figures of a device, each by the work of one job of fio: sequential and random reads and
//! writes with a plain io_uring loop, and writes that are made durable one by one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use io_uring::{IoUring, opcode, types};
use serde::Deserialize;
use serde_json::json;

use super::aligned::{AlignedBuffer, HugeBuffer};
use super::experiment::{
    Experiment, Outcome, Parameters, Place, Plan, Spec, Start, Turn, Way, once, parameters,
};
use super::fio::FioJob;
use super::gates::Claim;
use super::gauge::Gauge;
use super::job::Job;
use super::latency::Latency;
use super::options::{Opt, Values};
use super::pace::Offsets;
use super::pattern::{PAGE_BYTES, Pattern};
use super::residency::evict;
use super::scratch_dir::ScratchDir;
use super::test_file::TestFile;
use crate::context::Context;
use forebay_report::page::columns::{self, column};
use forebay_report::page::noise::{Difference, difference};
use forebay_report::page::view::{Axis, Role};
use forebay_report::result::{CacheState, Condition, Experiment as Table, Row, metric};
use forebay_report::units::{bytes, number};

/// The experiment.
#[derive(Debug)]
pub(crate) struct Baseline;

static SPEC: Spec = Spec {
    name: "baseline",
    about: "Measure the headline figures of a device, each by the work of one job of fio",
    quick_seconds: 14,
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
        let load = Load::of(&job.row);
        let file_bytes = job.work::<Work>()?.file_bytes;
        let flags = if load.syncs { 0 } else { libc::O_DIRECT };
        let file = OpenOptions::new().read(true).write(load.is_write).custom_flags(flags).open(&job.path)?;
        let places = Places::new(job, load, file_bytes);
        if load.syncs {
            return one_by_one(job, &file, places);
        }
        let bytes = load.depth * load.block_bytes as usize;
        let memory = match job.row.as_str() {
            HUGE => Memory::Huge(HugeBuffer::new(bytes)?),
            _ => Memory::Small(AlignedBuffer::new(bytes)),
        };
        in_flight(job, &file, load, places, memory)
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
            name: &row.name,
            path,
            size_bytes: table.number("file_bytes")?,
            rw: &rw,
            block_bytes: load.block_bytes as f64,
            depth: load.depth as f64,
            engine: if load.syncs { "psync" } else { "io_uring" },
            is_direct: !load.syncs,
            seconds: table.number("seconds")?,
            more,
        };
        Some(job.command())
    }

    fn title(&self, table: &Table) -> (String, String) {
        let file = table.number("file_bytes").map_or_else(|| "?".to_owned(), |file| bytes(file as u64));
        let title = format!("Headline figures, on a file of {file}");
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

    fn cache(&self, _: &Parameters, way: &Way) -> Option<CacheState> {
        (!way.cached).then_some(CacheState::Direct)
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

    fn conditions(&self) -> Vec<Condition> {
        self.file.preconditions.conditions()
    }
}

/// The parameters that a sample needs.
#[derive(Debug, Deserialize)]
struct Work {
    file_bytes: u64,
}

/// The places of the operations, and the first words of their blocks.
#[derive(Debug)]
struct Places {
    random: Option<Offsets>,
    next: u64,
    file_bytes: u64,
    block_bytes: u64,
    words: Option<Pattern>,
}

impl Places {
    fn new(job: &Job, load: Load, file_bytes: u64) -> Self {
        let blocks = file_bytes / load.block_bytes;
        let random = load.is_random.then(|| Offsets::over(job.seed, 0, 0, blocks, load.block_bytes));
        Self { random, next: 0, file_bytes, block_bytes: load.block_bytes, words: job.pattern() }
    }

    fn next_offset(&mut self) -> u64 {
        if let Some(random) = &mut self.random {
            return random.next_offset();
        }
        let offset = if self.next + self.block_bytes <= self.file_bytes { self.next } else { 0 };
        self.next = offset + self.block_bytes;
        offset
    }

    /// Gives every page of a block its first word, so that storage which detects equal blocks finds none.
    fn stamp(&self, offset: u64, memory: &mut [u8]) {
        let Some(words) = self.words else { return };
        for (page, bytes) in (offset / BLOCK_BYTES..).zip(memory.chunks_exact_mut(PAGE_BYTES)) {
            bytes[..8].copy_from_slice(&words.first_word(page).to_le_bytes());
        }
    }

    /// Checks the first word of a block, which no write of this experiment changes.
    fn check(&self, offset: u64, memory: &[u8]) -> anyhow::Result<()> {
        let expected = self.words.map(|words| words.first_word(offset / BLOCK_BYTES).to_le_bytes());
        anyhow::ensure!(
            expected.is_none_or(|word| memory[..8] == word),
            "the data read at offset {offset} are not the data written there; the storage below the file or the way it was \
             read is faulty"
        );
        Ok(())
    }
}

/// Writes one block after the other, each durable before the next.
fn one_by_one(job: &Job, file: &File, mut places: Places) -> anyhow::Result<Outcome> {
    let mut buffer = AlignedBuffer::new(places.block_bytes as usize);
    Pattern::new(job.seed).fill(0, buffer.bytes_mut());
    let mut latency = Latency::new()?;
    let gauge = Gauge::start(job.device_stat.as_deref())?;
    let deadline = gauge.begun() + Duration::from_secs_f64(job.seconds);
    let mut begun = gauge.begun();
    while begun < deadline || latency.count() == 0 {
        let offset = places.next_offset();
        places.stamp(offset, buffer.bytes_mut());
        file.write_all_at(buffer.bytes(), offset)?;
        file.sync_data()?;
        let ended = Instant::now();
        latency.record(ended - begun);
        begun = ended;
    }
    let (cost, operations) = (gauge.stop()?, latency.count());
    Ok(Outcome::new(cost, operations, operations * places.block_bytes, latency))
}

/// Memory for the blocks of all operations.
#[derive(Debug)]
enum Memory {
    Small(AlignedBuffer),
    Huge(HugeBuffer),
}

impl Memory {
    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Small(buffer) => buffer.bytes_mut(),
            Self::Huge(buffer) => buffer.bytes_mut(),
        }
    }
}

/// Keeps the load's operations in flight until the deadline, and waits for the last ones.
fn in_flight(
    job: &Job,
    file: &File,
    load: Load,
    mut places: Places,
    mut memory: Memory,
) -> anyhow::Result<Outcome> {
    // Data that do not compress, and other ones than those in the file.
    Pattern::new(job.seed).fill(0, memory.bytes_mut());
    let (start, piece_bytes) = (memory.bytes_mut().as_mut_ptr(), load.block_bytes as usize);
    // SAFETY: slots are below the depth, for which the memory has room; the slice is used between a completion of the slot and
    // its next push, when the kernel does not touch these bytes, and before `memory` is dropped.
    let piece =
        |slot: usize| unsafe { std::slice::from_raw_parts_mut(start.add(slot * piece_bytes), piece_bytes) };
    let descriptor = types::Fd(file.as_raw_fd());
    let mut ring = ring(load.depth)?;
    let (mut latency, mut failure) = (Latency::new()?, None);
    let mut free: Vec<usize> = (0..load.depth).rev().collect();
    let gauge = Gauge::start(job.device_stat.as_deref())?;
    let deadline = gauge.begun() + Duration::from_secs_f64(job.seconds);
    let mut now = gauge.begun();
    let mut begun = vec![(0, now); load.depth];
    loop {
        while failure.is_none()
            && (now < deadline || latency.count() == 0)
            && let Some(slot) = free.pop()
        {
            let (offset, piece) = (places.next_offset(), piece(slot));
            let (address, length) = (piece.as_mut_ptr(), piece_bytes as u32);
            let entry = if load.is_write {
                places.stamp(offset, piece);
                opcode::Write::new(descriptor, address, length).offset(offset).build()
            } else {
                opcode::Read::new(descriptor, address, length).offset(offset).build()
            };
            begun[slot] = (offset, now);
            // SAFETY: the piece belongs to this slot alone. Memory and file outlive the operation: the loop ends when none is in
            // flight, and where the ring fails the memory is leaked.
            let pushed = unsafe { ring.submission().push(&entry.user_data(slot as u64)) };
            pushed.context("the queue has a place for each operation")?;
        }
        if free.len() == load.depth {
            break;
        }
        // As fio does, with each completion the next operation is submitted: a batch would reach the device later.
        let waited_for = usize::from(ring.completion().is_empty());
        match ring.submit_and_wait(waited_for) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                std::mem::forget(memory);
                return Err(error).context("io_uring_enter failed");
            }
            _ => now = Instant::now(),
        }
        if let Some(completion) = ring.completion().next() {
            let slot = completion.user_data() as usize;
            let (offset, begun) = begun[slot];
            latency.record(now - begun);
            free.push(slot);
            let ended = match completion.result() {
                error if error < 0 => Err(io::Error::from_raw_os_error(-error).into()),
                bytes if bytes as usize != piece_bytes => {
                    Err(anyhow::anyhow!("an operation moved {bytes} bytes of {piece_bytes}"))
                }
                _ if load.is_write => Ok(()),
                _ => places.check(offset, piece(slot)),
            };
            failure = failure.or(ended.err());
        }
    }
    let (cost, operations) = (gauge.stop()?, latency.count());
    match failure {
        Some(failure) => Err(failure),
        None => Ok(Outcome::new(cost, operations, operations * load.block_bytes, latency)),
    }
}

/// Returns a ring as fio sets it up. Kernels before Linux 6.1 refuse that, and have a plain one.
fn ring(depth: usize) -> anyhow::Result<IoUring> {
    let entries = depth.next_power_of_two() as u32;
    let mut builder = IoUring::builder();
    builder.setup_coop_taskrun().setup_single_issuer().setup_defer_taskrun();
    let ring = builder.build(entries).or_else(|_| IoUring::new(entries));
    ring.context("the kernel refuses a ring (the sysctl kernel.io_uring_disabled, or a seccomp filter)")
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
    use super::super::lanes::{test_file, test_job};
    use super::*;
    use forebay_report::result::{Metrics, Sample};

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
        let mut table = Table::new(SPEC.name, "").parameter("file_bytes", 1 << 28).parameter("seconds", 2.0);
        let row = |(name, rate): &(&str, f64)| {
            let samples = [0.99, 1.0, 1.01].map(|factor| {
                let mut metrics = Metrics::default();
                metrics.set(metric::MB_PER_S, rate * factor).set(metric::IOPS, rate * factor);
                metrics.set(metric::P50_US, 1e6 / rate);
                Sample { repeat: 0, metrics }
            });
            Row::from_samples(*name, samples.into())
        };
        table.rows = rates.iter().map(row).collect();
        table
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
