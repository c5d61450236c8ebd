//! `measure random`: blocks read at random, within a span that memory could hold and over the whole file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay::{Class, Config, Open};
use rustix::mm::Advice;

use crate::aligned::Map;
use crate::backend::{LoopTally, Target, until_deadline};
use crate::cold::{ColdFile, MEMORY, SIZE};
use crate::commands::{self, NAMESPACE};
use crate::io_limit::IoLimit;
use crate::pace::Offsets;
use crate::pattern::Checker;
use crate::plan::{Sizes, check_memory};
use crate::prelude::*;
use crate::reads::{self, backend_of, of_block};
use crate::scan::{compare, cost};
use crate::units::show_bytes;
use forebay_report::page::knee::saturated_at;
use forebay_report::result::columns::groups;

#[derive(Debug)]
pub(crate) struct Random;

static SPEC: Spec = Spec {
    name: "random",
    about: "Read blocks at random places, in several ways",
    quick_seconds: 9,
    full_seconds: 180,
    needs_directory: false,
    options: &[
        MEMORY,
        SIZE,
        Opt::count("depth", "Reads in flight, all threads together", 4096)
            .list()
            .or("1,2,4,8,16,32,64,128")
            .quick("1,8,32,128"),
        Opt::block("Bytes of one read"),
        Opt::seconds("1", "0.3"),
        Opt::count(
            "threads",
            "Shards of `direct`, worker threads and shards of `direct-tokio`; the other rows have one thread for each read \
             in flight",
            64,
        )
        .or("1"),
        Opt::repeats("3").quick("2"),
        NAMESPACE,
    ],
    ways: &[
        Way::cached("buffered", "one std thread for each read in flight, pread through the page cache"),
        Way::cached(
            "mmap",
            "one std thread for each read in flight, a memory map with madvise(RANDOM), each page touched once",
        ),
        Way::direct("direct", "Forebay from tasks on its own shards, O_DIRECT"),
        Way::direct(
            "direct-polled",
            "Forebay from tasks on its own shards, O_DIRECT, and completions that are polled for",
        ),
        Way::direct(
            COMMANDS,
            "Forebay from tasks on one shard, reads as commands to the NVMe namespace, and completions that are polled for",
        ),
        Way::direct("direct-tokio", "Forebay from tasks of a Tokio runtime, O_DIRECT"),
        Way::direct("direct-pread", "one std thread for each read in flight, pread with O_DIRECT"),
        Way::direct(
            "read-many",
            "Forebay's read_many: as many blocks at a time as there are reads in flight, O_DIRECT, merged within its own limits",
        ),
        Way::direct(
            "read-many-wide",
            "the same, blocks up to 128 KiB apart read with one request of up to 1 MiB, half of it in vain",
        ),
    ],
    columns: &[
        columns::IOPS,
        columns::P50_US,
        columns::P99_US,
        columns::P99_9_US,
        columns::CPU_US_PER_IO,
        columns::CONTEXT_SWITCHES_PER_IO,
        columns::IN_FLIGHT_AVG,
        columns::MEMORY_PEAK_BYTES,
        columns::BUFFERS_PEAK_BYTES,
        columns::FIRST_DONE_S,
        columns::LAST_DONE_S,
        columns::START_SKEW_US,
    ],
    compared: metric::IOPS,
    charts: &[metric::IOPS, metric::P99_US, metric::CPU_US_PER_IO],
    axis: Axis::new("depth", "reads in flight"),
    role: Role::Random,
    gains: || {
        vec![
            Gain::new(
                metric::IOPS,
                true,
                &["buffered"],
                &[
                    "direct",
                    "direct-polled",
                    COMMANDS,
                    "direct-tokio",
                    "direct-pread",
                    "read-many",
                    "read-many-wide",
                ],
                "IOPS",
                "Read blocks past the page cache where memory cannot hold them",
            ),
            Gain::new(
                metric::CPU_US_PER_IO,
                false,
                &["direct-pread"],
                &["direct", "direct-polled", COMMANDS, "direct-tokio", "read-many", "read-many-wide"],
                "µs of processor time for a read",
                "Let few threads keep many reads in flight, instead of one thread for each",
            )
            .from_load(2),
        ]
    },
};

const COMMANDS: &str = "direct-commands";
/// The comparisons of ways to read directly, which have the same result on every span.
const WHOLE_FILE_ONLY: [&str; 4] = ["direct-polled", COMMANDS, "direct-tokio", "direct-pread"];
/// The fewest blocks of a span. Fewer would measure single places of the device.
const BLOCKS_MIN: u64 = 16;
/// The gap up to which `read-many-wide` merges blocks; the waste and the request size that it allows follow.
const WIDE_GAP_BYTES: u64 = 128 << 10;
const WIDE_WASTE_BYTES: u64 = 512 << 10;
const WIDE_REQUEST_BYTES: u64 = 1 << 20;
/// The slowest rate at which a disk is read.
const BYTES_PER_S_MIN: f64 = 20e6;

/// The names of the spans. The first is a tenth of the memory.
const SPANS: [&str; 2] = ["10% of memory", "whole file"];

impl Experiment for Random {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn plan<'a>(&self, options: &Values, context: &'a Context) -> anyhow::Result<Box<dyn Plan + 'a>> {
        let namespace = commands::namespace(&options.words("namespace"), &options.rows)?;
        let sizes = ColdFile::sizes(options, context)?;
        let block_bytes = options.count("block");
        let most = options.counts("depth").into_iter().max().unwrap_or(1);
        check_memory("reads in flight", most * block_bytes, "give a smaller --block or --depth")?;
        spans(&sizes, sizes.file_bytes, block_bytes)?;
        let file = ColdFile::prepare(context, &sizes)?;
        let spans = spans(&sizes, file.test_file.bytes, block_bytes)?;
        Ok(Box::new(Run {
            file,
            spans,
            block_bytes,
            depths: options.counts("depth"),
            threads: options.count("threads"),
            are_rows_named: !options.rows.is_empty(),
            namespace,
        }))
    }

    fn sample(&self, job: &Job) -> anyhow::Result<Outcome> {
        let mut work: Work = job.work()?;
        warm(job, &work)?;
        let read = match backend_of(&job.row) {
            Some(backend) => {
                let mut job = job.clone();
                if backend.sends_commands() {
                    (job, work.span_bytes) = commands::of_namespace(&job, work.span_bytes, work.block_bytes)?;
                    work.span_start = 0;
                }
                let target = Target {
                    workers: work.threads,
                    shards: work.threads.clamp(1, work.depth),
                    ..Target::reads(&job.path, work.block_bytes as usize, work.depth)
                };
                until_deadline(backend, &target, &job, true, |lane| work.offsets(&job, lane))?
            }
            None if job.row == "mmap" => mapped(job, &work)?,
            None => read_many(job)?,
        };
        let buffers = (work.block_bytes * work.depth as u64) as f64;
        Ok(read.outcome(work.block_bytes).figure(metric::BUFFERS_PEAK_BYTES, buffers))
    }

    fn fio(&self, table: &Table, row: &Row, path: &Path) -> Option<String> {
        reads::fio(table, row, path)
    }

    fn runs_on_hosts(&self) -> bool {
        true
    }

    fn title(&self, table: &Table) -> (String, String) {
        let heading = format!("Random reads{} over {}", of_block(table), span(table));
        let depth = table.number("depth").map_or_else(String::new, |depth| format!(", {depth} in flight"));
        (format!("{heading}{depth}"), heading)
    }

    fn verdicts(&self, tables: &[&Table]) -> Vec<String> {
        groups(tables.iter().copied()).iter().flat_map(|group| of_span(group)).collect()
    }
}

/// Returns the bytes of each span, in whole blocks.
///
/// # Errors
/// [`Failure::Unsuitable`] when one has not enough blocks, with the remedy.
fn spans(sizes: &Sizes, file_bytes: u64, block_bytes: u64) -> Result<[u64; 2], Failure> {
    let spans = [sizes.memory_bytes / 10, file_bytes].map(|bytes| bytes / block_bytes * block_bytes);
    for (bytes, name) in spans.iter().zip(SPANS) {
        if *bytes < BLOCKS_MIN * block_bytes {
            return Err(Failure::Unsuitable(format!(
                "a span of {} ({name}) is too small for reads of {}: it must hold at least {BLOCKS_MIN} of them; give a \
                 larger --memory and --size, or a smaller --block",
                show_bytes(*bytes),
                show_bytes(block_bytes)
            )));
        }
    }
    Ok(spans)
}

/// One run: a file, and a table for each span and depth.
#[derive(Debug)]
struct Run {
    file: ColdFile,
    spans: [u64; 2],
    block_bytes: u64,
    depths: Vec<u64>,
    threads: u64,
    are_rows_named: bool,
    namespace: Option<PathBuf>,
}

impl Run {
    /// Returns the bytes of the file that rows of the page cache have in it. Not all of the memory: the process needs a part
    /// of it, too.
    const fn cached_bytes(&self) -> u64 {
        self.file.memory_bytes / 10 * 8
    }
}

fn is_whole_file(setting: &Parameters) -> bool {
    setting.get("span").is_some_and(|span| span == SPANS[1])
}

impl Plan for Run {
    fn place(&self) -> Place {
        self.file.test_file.place()
    }

    fn settings(&self) -> Vec<Parameters> {
        let of = |(span, span_bytes): (&str, u64), depth: u64| {
            let mut setting = parameters(json!({
                "span": span, "span_bytes": span_bytes, "depth": depth, "block_bytes": self.block_bytes,
                "threads": self.threads,
            }));
            setting.extend(self.file.parameters());
            setting
        };
        let spans = SPANS.into_iter().zip(self.spans);
        spans.flat_map(|span| self.depths.iter().map(move |depth| of(span, *depth))).collect()
    }

    fn has(&self, setting: &Parameters, way: &Way) -> bool {
        (way.name != COMMANDS || self.namespace.is_some())
            && (self.are_rows_named || is_whole_file(setting) || !WHOLE_FILE_ONLY.contains(&way.name))
    }

    fn start(&mut self, turn: &Turn<'_>, mut job: Job) -> anyhow::Result<Start> {
        // Every sample has its own offsets: a device or a host that caches would otherwise have those of the row before.
        let row = SPEC.ways.iter().position(|way| way == turn.way).unwrap_or(0) as u64;
        let mut seeds = SplitMix::new(turn.seed ^ (turn.setting as u64 + 1) << 8 ^ row);
        let span_bytes = turn.number("span_bytes") as u64;
        let places = (self.file.test_file.bytes - span_bytes) / self.block_bytes + 1;
        let warm_bytes = if turn.way.cached { span_bytes.min(self.cached_bytes()) } else { 0 };
        job.work["span_start"] = (seeds.below(places) * self.block_bytes).into();
        job.work["warm_bytes"] = warm_bytes.into();
        job.seed = seeds.next_u64();
        job.seconds_max += warm_bytes as f64 / BYTES_PER_S_MIN;
        job.namespace.clone_from(&self.namespace);
        self.file.start(job)
    }

    fn ended(&mut self, turn: &Turn<'_>, start: &Start, outcome: &mut Outcome) -> anyhow::Result<()> {
        self.file.ended(turn, start, outcome);
        Ok(())
    }

    fn claim(&self, turn: &Turn<'_>, outcome: &Outcome) -> Claim {
        let threads = turn.count("threads");
        Claim {
            // Data kept in the page cache on purpose cause no requests to the device, and the block layer does not count
            // commands.
            read_bytes: (!turn.way.cached && turn.way.name != COMMANDS).then_some(outcome.bytes),
            workers: Some(match turn.way.name {
                "buffered" | "mmap" | "direct-pread" => turn.count("depth"),
                "direct" | "direct-polled" => threads,
                // The runtime has as many worker threads as the engine has shards.
                "direct-tokio" => 2 * threads,
                _ => 1,
            }),
            // Bytes between two merged blocks are read with them.
            exact: !turn.way.name.starts_with("read-many"),
            ..Claim::default()
        }
    }

    fn cache(&self, setting: &Parameters, way: &Way) -> Option<CacheState> {
        // Without a limit nothing keeps the whole file from staying in memory.
        Some(match (way.cached, is_whole_file(setting) && self.file.is_limited()) {
            (false, _) => CacheState::Direct,
            (true, true) => CacheState::MemoryLimited,
            (true, false) => CacheState::Warm,
        })
    }

    fn method(&self, _: &Parameters, seconds: f64) -> String {
        format!(
            "{} Each sample is a fresh process that reads blocks of {} at random offsets for {seconds:.2} s with the stated \
             number of reads in flight; each has its own seed, because a device or a host that caches would otherwise have the \
             offsets. Latency is the caller's wait, from the request to the block. CPU is user and system time of all threads, \
             divided by the reads. Rows take turns within a repeat; figures are medians of the repeats.",
            self.file.method(),
            show_bytes(self.block_bytes),
        )
    }

    fn notes(&self, setting: &Parameters) -> Vec<String> {
        let mut notes = vec![if is_whole_file(setting) {
            format!(
                "`buffered` begins with {} of the file in memory, as after a long run, and goes to the device for the rest",
                show_bytes(self.cached_bytes())
            )
        } else {
            "the span fits into memory: `buffered` is warm on purpose, and shows the page cache when all fits"
                .to_owned()
        }];
        notes.extend(self.file.notes());
        notes.extend(self.namespace.as_deref().map(commands::note));
        notes
    }

    fn finish(&self, _: &Parameters, table: &mut Table) {
        *table = IoLimit::note(self.file.test_file.io_limit.as_ref(), table.clone());
    }
}

/// The parameters that a sample needs.
#[derive(Debug, Clone, Deserialize)]
struct Work {
    /// The first byte that may be read; a multiple of the block.
    span_start: u64,
    /// The number of bytes from there that may be read; at least one block.
    span_bytes: u64,
    block_bytes: u64,
    /// Reads in flight of all threads together.
    depth: usize,
    /// Shards, or worker threads of the Tokio runtime.
    threads: usize,
    /// Bytes read in order before the measurement, so that a cache is as full as it would be after a long run.
    warm_bytes: u64,
}

impl Work {
    fn offsets(&self, job: &Job, lane: usize) -> Offsets {
        Offsets::over(job.seed, lane, self.span_start, self.span_bytes / self.block_bytes, self.block_bytes)
    }
}

/// Reads the first part of the span into the cache, in order. Random reads are equally likely everywhere, so the share of hits is
/// the same for any cached part. Reading in order needs a second where random reads would need minutes.
fn warm(job: &Job, work: &Work) -> anyhow::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let file = File::open(&job.path)?;
    let mut done = 0;
    while done < work.warm_bytes {
        let length = (work.warm_bytes - done).min(buffer.len() as u64) as usize;
        file.read_exact_at(&mut buffer[..length], work.span_start + done)?;
        done += length as u64;
    }
    Ok(())
}

/// Touches each page of a block in a map of the thread's own: the maps share the page cache's pages, as those of several
/// processes would.
fn mapped(job: &Job, work: &Work) -> anyhow::Result<LoopTally> {
    let file = File::open(&job.path)?;
    let (lanes, cost) = on_threads(work.depth, job, |number, deadline| {
        let map = Map::new(&file, work.span_start + work.span_bytes, Advice::Random)?;
        let (mut offsets, mut checker) = (work.offsets(job, number), Checker::new(job.pattern()));
        let (mut latency, mut begun) = (Latency::new()?, Instant::now());
        while begun < deadline || latency.count() == 0 {
            let first = offsets.next_offset() / PAGE_BYTES as u64;
            for page in first..first + work.block_bytes / PAGE_BYTES as u64 {
                checker.check_word(page, map.first_word(page))?;
            }
            let ended = Instant::now();
            latency.record(ended - begun);
            begun = ended;
        }
        Ok((latency, checker.folded()))
    })?;
    LoopTally::of(lanes, cost)
}

/// Requests as many blocks at a time as the depth from a task on a shard, and waits for all of them. The time of this wait is the
/// latency of each.
fn read_many(job: &Job) -> anyhow::Result<LoopTally> {
    let shared = shared::<Work>(job)?;
    with_engine(Config::new().shards(1), |engine| {
        let file = engine.open(&job.path, Open::read()).wait()?;
        let gauge = Gauge::start(job.device_stat.as_deref())?;
        let deadline = gauge.begun() + Duration::from_secs_f64(job.seconds);
        let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            let (job, work) = &*shared;
            let (mut offsets, mut checker) = (work.offsets(job, 0), Checker::new(job.pattern()));
            let (mut latency, mut begun) = (Latency::new()?, Instant::now());
            while begun < deadline || latency.count() == 0 {
                let offsets: Vec<u64> = (0..work.depth).map(|_| offsets.next_offset()).collect();
                let ranges = offsets.iter().map(|offset| *offset..offset + work.block_bytes);
                let mut many = file.read_many(ranges).depth(work.depth as u32);
                if job.row == "read-many-wide" {
                    many = many.gap_bytes_max(WIDE_GAP_BYTES).waste_bytes_max(WIDE_WASTE_BYTES);
                    many = many.request_bytes_max(WIDE_REQUEST_BYTES);
                }
                let blocks = many.await?;
                let ended = Instant::now();
                for (offset, block) in offsets.iter().zip(blocks) {
                    latency.record(ended - begun);
                    checker.check(*offset, &block?)?;
                }
                begun = ended;
            }
            anyhow::Ok((latency, checker.folded()))
        });
        let part = task.wait()??;
        LoopTally::of([part], gauge.stop()?)
    })
}

/// Describes the part of the file that random reads used.
fn span(table: &Table) -> String {
    let (Some(span), Some(file)) = (table.number("span_bytes"), table.number("file_bytes")) else {
        return "the file".to_owned();
    };
    if span >= file * 0.999 {
        format!("the whole file ({})", bytes(file as u64))
    } else {
        format!("{} of the file's {}", bytes(span as u64), bytes(file as u64))
    }
}

/// Returns the sentences on a span: how many reads in flight are enough, where the page cache is faster, and a thread for each
/// read.
fn of_span(group: &[&Table]) -> Vec<String> {
    let Some(first) = group.first() else { return Vec::new() };
    let mut tables: Vec<(f64, &Table)> =
        group.iter().map(|table| (table.number("depth").unwrap_or(1.0), *table)).collect();
    tables.sort_by(|a, b| a.0.total_cmp(&b.0));
    let rate = |row: &Row| row.metrics.get(metric::IOPS);
    let direct: Vec<(f64, &Table, &Row, f64)> = tables
        .iter()
        .filter_map(|(depth, table)| {
            let row = table.row("direct")?;
            Some((*depth, *table, row, rate(row)?))
        })
        .collect();
    let mut sentences = Vec::new();
    if let Some((depth, table, row, most)) = direct.iter().max_by(|a, b| a.3.total_cmp(&b.3)) {
        let curve: Vec<(f64, f64)> = direct.iter().map(|(depth, .., rate)| (*depth, *rate)).collect();
        if direct.len() >= 3
            && let Some((enough, _, row, found)) = saturated_at(&curve).map(|at| &direct[at])
        {
            let wait = row.metrics.get(metric::P99_US);
            let wait = wait.map_or_else(String::new, |wait| format!(", p99 {} µs", number(wait)));
            let is_last = direct.last().is_some_and(|(last, ..)| enough >= last);
            let last = if is_last { " (most measured)" } else { "" };
            let (found, most) = (number(*found), number(*most));
            sentences.push(format!(
                "`direct` reaches {found} of {most} IOPS at queue depth {}{last}{wait}",
                number(*enough)
            ));
        }
        sentences.extend(cache(&tables));
        if let Some(threads) = table.row("direct-pread") {
            let subject = format!("`direct` at queue depth {}", number(*depth));
            sentences.extend(compare(&subject, row, threads, metric::IOPS, "IOPS"));
            sentences.extend(cost(&subject, row, threads, metric::CPU_US_PER_IO, "µs/IO"));
        }
    }
    let place = match (first.number("span_bytes"), first.number("file_bytes")) {
        (Some(span), Some(file)) if span < file * 0.999 => {
            format!("{} of {}", bytes(span as u64), bytes(file as u64))
        }
        _ => "whole file".to_owned(),
    };
    sentences.into_iter().map(|sentence| format!("{place}: {sentence}")).collect()
}

/// Describes at which depths the page cache is faster than the fastest way of reading directly, equal or slower.
fn cache(tables: &[(f64, &Table)]) -> Option<String> {
    let rate = |row: &&Row| row.metrics.get(metric::IOPS).unwrap_or(0.0);
    let of_table = |table: &Table| {
        let direct = ["direct", "direct-polled", "direct-tokio", "direct-pread"];
        let rows = direct.iter().filter_map(|name| table.row(name));
        let fastest = rows.max_by(|a, b| rate(a).total_cmp(&rate(b)))?;
        difference(table.row("buffered")?, fastest, metric::IOPS)
    };
    let mut parts = ["faster", "slower", "equal"].map(|word| (word, Vec::new(), 1.0_f64)).to_vec();
    for (depth, found) in tables.iter().filter_map(|(depth, table)| Some((depth, of_table(table)?))) {
        let (index, times) = match found {
            Difference::More(times) => (0, times),
            Difference::Less(times) => (1, times),
            Difference::Equal => (2, 1.0),
        };
        parts[index].1.push(number(*depth));
        parts[index].2 = parts[index].2.max(times);
    }
    parts.retain(|(_, depths, _)| !depths.is_empty());
    let texts = parts.iter().enumerate().map(|(index, (word, depths, most))| {
        let named = if index == 0 { "depths " } else { "" };
        let times = if *most > 1.0 { format!(" (up to {}x)", number(*most)) } else { String::new() };
        format!("{word} at {named}{}{times}", depths.join(","))
    });
    let text = texts.collect::<Vec<_>>().join(", ");
    let is_warm = tables
        .iter()
        .any(|(_, table)| table.row("buffered").is_some_and(|row| row.cache == Some(CacheState::Warm)));
    let warm = if is_warm { " (warm)" } else { "" };
    (!text.is_empty()).then(|| format!("`buffered`{warm} is {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::NO_POLLING;
    use crate::lanes::{test_context, test_file, test_job, test_row, test_table};
    use crate::options::Length;

    fn job(path: &Path, row: &str, depth: usize, threads: usize) -> Job {
        let work = json!({
            "span_start": 1 << 20, "span_bytes": 2 << 20, "block_bytes": 4096, "depth": depth, "threads": threads,
            "warm_bytes": 2 << 20,
        });
        Job { pattern_seed: Some(12), seconds: 0.02, ..test_job(SPEC.name, row, path, work, 3) }
    }

    #[test]
    fn every_row_reads_for_its_time_and_checks_the_contents() {
        let (_cleanup, temp) = test_file(12, 4 << 20);
        for way in SPEC.ways.iter().filter(|way| way.name != COMMANDS) {
            for (depth, threads) in [(1, 1), (5, 2)] {
                let job = job(temp.path(), way.name, depth, threads);
                let outcome = match Random.sample(&job) {
                    // This machine's device need not have poll queues; the row then reports it.
                    Err(error) if way.name == "direct-polled" => {
                        assert!(format!("{error:#}").contains(NO_POLLING), "{error:#}");
                        continue;
                    }
                    other => other.unwrap_or_else(|error| panic!("{}: {error:#}", way.name)),
                };
                assert!(outcome.operations > 0 && outcome.seconds >= 0.02, "{}", way.name);
                assert_eq!(outcome.bytes, outcome.operations * 4096);
                assert_eq!(outcome.evidence.times["latency"].count(), outcome.operations);
                let wrong = Job { pattern_seed: Some(13), ..job };
                assert!(Random.sample(&wrong).is_err(), "{}", way.name);
            }
        }
    }

    #[test]
    fn spans_are_whole_blocks_and_too_small_ones_are_refused() {
        let sizes = Sizes { memory_bytes: 100_000_000, file_bytes: 256 << 20, limit_bytes: None };
        assert_eq!(spans(&sizes, 100_000, 4096), Ok([9_998_336, 98_304]));
        let error = spans(&sizes, 256 << 20, 1 << 20).expect_err("9 blocks");
        assert!(error.to_string().contains("--block"), "{error}");
        assert_eq!(error.code(), 4);
    }

    /// Returns the rows of each span of a run in a directory of the test.
    fn rows(named: &[&str], namespace: Option<PathBuf>) -> [Vec<&'static str>; 2] {
        let context = test_context();
        let sizes = Sizes { memory_bytes: 1 << 20, file_bytes: 2 << 20, limit_bytes: None };
        let file = ColdFile::prepare(&context, &sizes).expect("space for 2 MiB");
        let mut options = Values::new(SPEC.options, None, Length::Full).expect("defaults");
        options.rows = named.iter().map(|name| (*name).to_owned()).collect();
        let run = Run {
            file,
            spans: [1 << 16, 2 << 20],
            block_bytes: 4096,
            depths: vec![1],
            threads: 1,
            are_rows_named: !named.is_empty(),
            namespace,
        };
        let settings = run.settings();
        [0, 1].map(|span| {
            let ways = crate::runner::ways(&SPEC, &options, &run, &settings[span]);
            ways.map(|way| way.name).collect()
        })
    }

    #[test]
    fn comparison_rows_run_over_the_whole_file_only_unless_named() {
        let [memory, whole] = rows(&[], None);
        assert_eq!(memory, ["buffered", "mmap", "direct", "read-many", "read-many-wide"]);
        let all: Vec<&str> = SPEC.ways.iter().map(|way| way.name).filter(|name| *name != COMMANDS).collect();
        assert_eq!(whole, all);
        assert_eq!(rows(&["direct-pread"], None), [["direct-pread"], ["direct-pread"]].map(Vec::from));
        let [memory, whole] = rows(&[], Some("/dev/ng0n1".into()));
        assert_eq!((memory.contains(&COMMANDS), whole.contains(&COMMANDS)), (false, true));
    }

    fn near(name: &str, rate: f64) -> Row {
        test_row(name, &[0.98, 1.0, 1.02], &[(metric::IOPS, rate)])
    }

    fn table(depth: u32, rows: Vec<Row>) -> Table {
        test_table(SPEC.name, json!({ "depth": depth }), rows)
    }

    fn sentences(tables: &[Table]) -> Vec<String> {
        Random.verdicts(&tables.iter().collect::<Vec<_>>())
    }

    #[test]
    fn random_reads_report_the_knee_and_the_page_cache() {
        let tables = [(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)].map(|(depth, rate)| {
            let warm = near("buffered", 500e3).cache(CacheState::Warm);
            table(depth, vec![warm, near("direct", rate)])
        });
        assert_eq!(
            sentences(&tables),
            [
                "whole file: `direct` reaches 80,000 of 82,000 IOPS at queue depth 32",
                "whole file: `buffered` (warm) is faster at depths 1,8,32,128 (up to 50x)",
            ]
        );
    }

    #[test]
    fn depths_are_grouped_by_the_gain_of_the_cache() {
        let of = |depth, buffered, threads| {
            table(depth, vec![near("buffered", buffered), near("direct", 1.0), near("direct-pread", threads)])
        };
        let all = [of(32, 50e3, 100e3), of(1, 30e3, 10e3), of(8, 80e3, 80.5e3), of(2, 40e3, 20e3)];
        let found = sentences(&all);
        let words = "`buffered` is faster at depths 1,2 (up to 3x), slower at 32 (up to 2x), equal at 8";
        assert!(found.iter().any(|sentence| sentence.ends_with(words)), "{found:?}");
        assert!(sentences(&[table(1, vec![near("direct", 1.0)])]).is_empty());
    }
}
