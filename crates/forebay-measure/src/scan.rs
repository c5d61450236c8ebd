//! `measure scan`: a file read from start to end, in eight ways, and with a growing number of requests in flight.

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay::{Config, Open};
use rustix::mm::Advice;
use tokio::io::AsyncReadExt as _;

use crate::aligned::Map;
use crate::cold::{ColdFile, MEMORY, SIZE};
use crate::fio::FioJob;
use crate::pattern::Checker;
use crate::plan::affordable_bytes;
use crate::prelude::*;
use forebay_report::page::knee::saturated_at;

#[derive(Debug)]
pub(crate) struct Scan;

static SPEC: Spec = Spec {
    name: "scan",
    about: "Read a file from its beginning to its end, in several ways",
    quick_seconds: 10,
    full_seconds: 280,
    needs_directory: false,
    options: &[
        MEMORY,
        SIZE,
        Opt::count("depth", "Requests of 512 KiB in flight of a sweep with `direct-large`", 256)
            .list()
            .chosen("1,2,4,8,16, with --quick or --rows none"),
        Opt::seconds("5", "1.5"),
        Opt::repeats("5").quick("3"),
    ],
    ways: &[
        Way::cached("buffered", "std::fs::File, 128 KiB a read, through the page cache"),
        Way::cached("mmap", "a memory map with madvise(SEQUENTIAL), touched page by page"),
        Way::direct("direct-4k", "Forebay's File::read, O_DIRECT, 4 KiB at a time, one in flight"),
        Way::direct(
            "direct-read-ahead",
            "Forebay's scan through AsyncRead, O_DIRECT, 50 x 4 KiB in flight, each copied to the reader",
        ),
        Way::direct(
            "direct-no-copy",
            "Forebay's scan, O_DIRECT, 50 x 4 KiB in flight, blocks handed over without a copy",
        ),
        Way::direct(LARGE, "Forebay's scan, O_DIRECT, 5 x 512 KiB in flight, no copy"),
        Way::direct("default", "Forebay's scan as it is without options, O_DIRECT, no copy"),
        Way::cached("uncached", "Forebay's scan of a file opened uncached (RWF_DONTCACHE), 1 MiB at a time"),
    ],
    columns: &[
        columns::MB_PER_S,
        columns::CPU_S_PER_GB,
        columns::IN_FLIGHT_AVG,
        columns::MEMORY_PEAK_BYTES,
        columns::BUFFERS_PEAK_BYTES,
        columns::FIRST_DONE_S,
        columns::LAST_DONE_S,
        columns::START_SKEW_US,
        columns::SECONDS,
    ],
    compared: metric::MB_PER_S,
    charts: &[metric::MB_PER_S, metric::CPU_S_PER_GB, metric::MEMORY_PEAK_BYTES, metric::IN_FLIGHT_AVG],
    axis: Axis::new("depth", "reads in flight"),
    role: Role::Sequential,
    gains: || {
        vec![Gain::new(
            metric::MB_PER_S,
            true,
            &["buffered"],
            &[LARGE, "default"],
            "MB/s",
            "Read whole files with several large reads in flight",
        )]
    },
};

/// The row of the sweep.
const LARGE: &str = "direct-large";
/// Requests in flight of the sweep.
const SWEEP: [u64; 5] = [1, 2, 4, 8, 16];
const BUFFERED_BYTES: usize = 128 << 10;
const SMALL_BYTES: usize = 4096;
const SMALL_DEPTH: usize = 50;
const LARGE_BYTES: usize = 512 << 10;
const LARGE_DEPTH: usize = 5;
const UNCACHED_BYTES: usize = 1 << 20;

impl Experiment for Scan {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn plan<'a>(&self, options: &Values, context: &'a Context) -> anyhow::Result<Box<dyn Plan + 'a>> {
        let sizes = ColdFile::sizes(options, context)?;
        let file = ColdFile::prepare(context, &sizes)?;
        // Twice the memory that a sample fills: the page cache uses recently freed pages first, but not only from those.
        let touched_bytes = prefault(2 * sizes.memory_bytes);
        Ok(Box::new(Run { file, touched_bytes, depths: depths(options, context.quick) }))
    }

    fn sample(&self, job: &Job) -> anyhow::Result<Outcome> {
        let work: Work = job.work()?;
        match job.row.as_str() {
            "buffered" => buffered(job, &work),
            "mmap" => mapped(job, &work),
            row => with_engine(Config::new().shards(1), |engine| {
                let options = if row == "uncached" { Open::read().uncached() } else { Open::read() };
                let file = engine.open(&job.path, options).wait()?;
                match row {
                    "direct-4k" => one_at_a_time(&file, job, &work),
                    "direct-read-ahead" => async_read(&file, job, &work),
                    _ => blocks(&file, job, &work),
                }
            }),
        }
    }

    fn fio(&self, table: &Table, row: &Row, path: &Path) -> Option<String> {
        let large = table.number("depth").unwrap_or(LARGE_DEPTH as f64);
        let (engine, block, depth) = match row.name.as_str() {
            "buffered" => ("psync", BUFFERED_BYTES, 1.0),
            "mmap" => ("mmap", PAGE_BYTES, 1.0),
            "direct-4k" => ("io_uring", SMALL_BYTES, 1.0),
            "direct-read-ahead" | "direct-no-copy" => ("io_uring", SMALL_BYTES, SMALL_DEPTH as f64),
            LARGE => ("io_uring", LARGE_BYTES, large),
            _ => return None,
        };
        let job = FioJob {
            block_bytes: block as f64,
            depth,
            engine,
            is_direct: engine == "io_uring",
            ..FioJob::of(table, row, path, "file_bytes")?
        };
        Some(job.command())
    }

    fn runs_on_hosts(&self) -> bool {
        true
    }

    fn title(&self, table: &Table) -> (String, String) {
        let file =
            table.number("file_bytes").map_or_else(String::new, |file| format!(" of {}", bytes(file as u64)));
        match table.number("depth") {
            Some(depth) => (
                format!("Sequential read{file}, {depth} x 512 KiB in flight"),
                format!("Sequential read{file} with more and more in flight"),
            ),
            None => (format!("Sequential read{file}"), format!("Sequential read{file}")),
        }
    }

    fn verdicts(&self, tables: &[&Table]) -> Vec<String> {
        let (swept, whole): (Vec<&Table>, Vec<&Table>) =
            tables.iter().partition(|table| table.number("depth").is_some());
        let mut sentences: Vec<String> = whole.iter().flat_map(|table| of_table(table)).collect();
        let buffered = whole.iter().find_map(|table| table.row("buffered"));
        sentences.extend(of_sweep(&swept, buffered));
        sentences
    }
}

/// Returns the requests in flight of the sweep.
fn depths(options: &Values, is_quick: bool) -> Vec<u64> {
    match options.counts("depth").as_slice() {
        [] if is_quick || !options.rows.is_empty() => Vec::new(),
        [] => SWEEP.to_vec(),
        given => given.to_vec(),
    }
}

/// One run: a table of all rows, and one of `direct-large` for each depth.
#[derive(Debug)]
struct Run {
    file: ColdFile,
    touched_bytes: u64,
    depths: Vec<u64>,
}

impl Plan for Run {
    fn place(&self) -> Place {
        self.file.test_file.place()
    }

    fn settings(&self) -> Vec<Parameters> {
        let mut all = self.file.parameters();
        all.insert("memory_touched_bytes".to_owned(), self.touched_bytes.into());
        let of_depth = |depth: &u64| {
            let mut swept = all.clone();
            swept.insert("depth".to_owned(), (*depth).into());
            swept
        };
        let swept: Vec<Parameters> = self.depths.iter().map(of_depth).collect();
        [vec![all], swept].concat()
    }

    fn has(&self, setting: &Parameters, _: &Way) -> bool {
        !setting.contains_key("depth")
    }

    fn always(&self, setting: &Parameters, way: &Way) -> bool {
        setting.contains_key("depth") && way.name == LARGE
    }

    fn start(&mut self, _: &Turn<'_>, job: Job) -> anyhow::Result<Start> {
        self.file.start(job)
    }

    fn ended(&mut self, turn: &Turn<'_>, start: &Start, outcome: &mut Outcome) -> anyhow::Result<()> {
        self.file.ended(turn, start, outcome);
        Ok(())
    }

    fn claim(&self, turn: &Turn<'_>, outcome: &Outcome) -> Claim {
        Claim {
            read_bytes: (self.file.cache(turn.way) != CacheState::Warm).then_some(outcome.bytes),
            // One worker is the reader; the second is a shard that does its reads.
            workers: Some(if matches!(turn.way.name, "buffered" | "mmap") { 1 } else { 2 }),
            exact: true,
            ..Claim::default()
        }
    }

    fn cache(&self, _: &Parameters, way: &Way) -> Option<CacheState> {
        Some(self.file.cache(way))
    }

    fn method(&self, _: &Parameters, seconds: f64) -> String {
        format!(
            "{} Each sample is a fresh process that reads from the beginning to the end, or for {seconds:.1} s. The time runs \
             from the first read to the last block; starting the process and opening the file are not in it. CPU is user and \
             system time of all threads. Requests in flight are the block device's own count: others' work counts too. Every \
             row looks at the first eight bytes of each page. Rows take turns within a repeat; figures are medians of the \
             repeats.",
            self.file.method()
        )
    }

    fn notes(&self, _: &Parameters) -> Vec<String> {
        self.file.notes()
    }

    fn finish(&self, setting: &Parameters, table: &mut Table) {
        if let Some(depth) = setting.get("depth") {
            for row in &mut table.rows {
                row.description = format!("Forebay's scan, O_DIRECT, {depth} x 512 KiB in flight");
            }
        }
    }
}

/// Writes to `bytes` of memory, or to half of the available memory where that is less, and frees all of it. Returns the bytes
/// written. The kernel allocates the most recently freed memory first.
///
/// On the first use of a page of a guest's memory, its host must find one, which is slower than a read from the page cache. Rows
/// that fill the page cache paid for that, and rows that bypass it did not. On the same machine a scan through `std::fs` reached
/// 1,249 MB/s with fresh memory and 2,218 MB/s later.
pub fn prefault(bytes: u64) -> u64 {
    const CHUNK_BYTES: u64 = 32 << 20;
    let wanted = bytes.min(affordable_bytes());
    let (mut held, mut touched) = (Vec::new(), 0);
    while touched < wanted {
        let length = CHUNK_BYTES.min(wanted - touched);
        let mut chunk: Vec<u8> = Vec::new();
        if chunk.try_reserve_exact(length as usize).is_err() {
            break;
        }
        // Not zeros: the allocator may have zeroed pages that were never touched.
        chunk.resize(length as usize, 1);
        held.push(black_box(chunk));
        touched += length;
    }
    touched
}

/// The parameters that a sample needs.
#[derive(Debug, Deserialize)]
struct Work {
    file_bytes: u64,
    /// Requests in flight of `direct-large`, where that is not its usual number.
    depth: Option<usize>,
}

/// Counts and checks the bytes that a scan delivers, and reports when its time has ended.
#[derive(Debug)]
struct Pace {
    checker: Checker,
    deadline: Instant,
    bytes: u64,
    operations: u64,
    next_clock: u64,
    late: bool,
}

impl Pace {
    /// Bytes for which the clock is read once: few enough for a tenth of a second on a slow disk, and enough that the clock costs
    /// little compared with 4 KiB reads.
    const CLOCK_BYTES: u64 = 128 << 10;

    /// Consumes the next bytes of the file; returns `false` when the time has ended.
    ///
    /// # Errors
    /// Fails when the bytes are not those written there.
    fn take(&mut self, bytes: &[u8]) -> anyhow::Result<bool> {
        self.checker.check(self.bytes, bytes)?;
        Ok(self.advance(bytes.len() as u64))
    }

    fn advance(&mut self, bytes: u64) -> bool {
        self.bytes += bytes;
        self.operations += 1;
        if self.bytes >= self.next_clock {
            self.next_clock = self.bytes + Self::CLOCK_BYTES;
            self.late = Instant::now() >= self.deadline;
        }
        !self.late
    }
}

/// Measures `read`, which gives its bytes to the pace until that is late, and returns the peak of its buffers.
///
/// # Errors
/// The errors of `read`; or it stopped before the end of the file and before its time had passed.
fn paced(
    job: &Job,
    work: &Work,
    read: impl FnOnce(&mut Pace) -> anyhow::Result<Option<u64>>,
) -> anyhow::Result<Outcome> {
    let gauge = Gauge::start(job.device_stat.as_deref())?;
    let mut pace = Pace {
        checker: Checker::new(job.pattern()),
        deadline: gauge.begun() + Duration::from_secs_f64(job.seconds),
        bytes: 0,
        operations: 0,
        next_clock: Pace::CLOCK_BYTES,
        late: false,
    };
    let buffers = read(&mut pace)?;
    let cost = gauge.stop()?;
    anyhow::ensure!(
        pace.late || pace.bytes == work.file_bytes,
        "{} of {} bytes were delivered; the file became shorter, or the way it was read loses data",
        pace.bytes,
        work.file_bytes
    );
    let outcome = Outcome::new(cost, pace.operations, pace.bytes, Latency::new()?);
    let outcome = outcome.figure(metric::BUFFERS_PEAK_BYTES, buffers.map(|bytes| bytes as f64));
    Ok(Outcome { folded: pace.checker.folded(), ..outcome })
}

/// Reads as a program without special measures does.
fn buffered(job: &Job, work: &Work) -> anyhow::Result<Outcome> {
    let mut file = File::open(&job.path)?;
    let mut buffer = vec![0; BUFFERED_BYTES];
    paced(job, work, |pace| {
        loop {
            let wanted = (work.file_bytes - pace.bytes).min(BUFFERED_BYTES as u64) as usize;
            if wanted == 0 {
                break;
            }
            let got = file.read(&mut buffer[..wanted])?;
            anyhow::ensure!(got > 0, "the file became shorter while it was read");
            if !pace.take(&buffer[..got])? {
                break;
            }
        }
        Ok(Some(BUFFERED_BYTES as u64))
    })
}

/// Reads the first word of each page of a map.
fn mapped(job: &Job, work: &Work) -> anyhow::Result<Outcome> {
    let map = Map::new(&File::open(&job.path)?, work.file_bytes, Advice::Sequential)?;
    paced(job, work, |pace| {
        for page in 0..work.file_bytes / PAGE_BYTES as u64 {
            pace.checker.check_word(page, map.first_word(page))?;
            if !pace.advance(PAGE_BYTES as u64) {
                break;
            }
        }
        Ok(None)
    })
}

/// Waits for one read after the other.
fn one_at_a_time(file: &forebay::File, job: &Job, work: &Work) -> anyhow::Result<Outcome> {
    paced(job, work, |pace| {
        while pace.bytes < work.file_bytes {
            let end = work.file_bytes.min(pace.bytes + SMALL_BYTES as u64);
            if !pace.take(&file.read(pace.bytes..end).wait()?)? {
                break;
            }
        }
        Ok(Some(SMALL_BYTES as u64))
    })
}

/// Reads the scan as an `AsyncRead`, in a current-thread Tokio runtime, which copies every byte.
fn async_read(file: &forebay::File, job: &Job, work: &Work) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    paced(job, work, |pace| {
        runtime.block_on(async {
            let scan = file.scan().range(0..work.file_bytes).request_bytes(SMALL_BYTES).depth(SMALL_DEPTH);
            let mut reader = scan.start().into_async_read();
            let mut buffer = vec![0; SMALL_BYTES];
            loop {
                let got = reader.read(&mut buffer).await?;
                if got == 0 || !pace.take(&buffer[..got])? {
                    return Ok(Some((SMALL_BYTES * (SMALL_DEPTH + 1)) as u64));
                }
            }
        })
    })
}

/// Reads the scan's blocks.
fn blocks(file: &forebay::File, job: &Job, work: &Work) -> anyhow::Result<Outcome> {
    paced(job, work, |pace| {
        let scan = file.scan().range(0..work.file_bytes);
        let scan = match job.row.as_str() {
            "direct-no-copy" => scan.request_bytes(SMALL_BYTES).depth(SMALL_DEPTH),
            LARGE => scan.request_bytes(LARGE_BYTES).depth(work.depth.unwrap_or(LARGE_DEPTH)),
            "uncached" => scan.request_bytes(UNCACHED_BYTES),
            _ => scan,
        };
        let (mut scan, mut largest) = (scan.start(), 0);
        while let Some(block) = scan.next().wait().transpose()? {
            largest = largest.max(block.len() as u64);
            if !pace.take(&block)? {
                break;
            }
        }
        // While this thread holds one block the next blocks are in flight.
        Ok(Some(scan.in_flight_bytes_peak() + largest))
    })
}

/// Parses seconds as a positive number.
///
/// # Errors
/// Fails with a sentence that quotes the text.
pub(super) fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("{text:?} is not a time; write seconds such as 0.5 or 10")),
    }
}

fn of_table(table: &Table) -> Vec<String> {
    let mut sentences = Vec::new();
    if let (Some(large), Some(buffered)) = (table.row(LARGE), table.row("buffered")) {
        let subject = format!("`{LARGE}` (5 x 512 KiB in flight)");
        sentences.extend(compare(&subject, large, buffered, metric::MB_PER_S, "MB/s"));
        sentences.extend(cost(&format!("`{LARGE}`"), large, buffered, metric::CPU_S_PER_GB, "CPU s/GB"));
        let memory = |row: &Row, name: &str| row.metrics.get(name).map(|found| bytes(found as u64));
        let needs = memory(large, metric::BUFFERS_PEAK_BYTES)
            .zip(memory(large, metric::MEMORY_PEAK_BYTES))
            .zip(memory(buffered, metric::MEMORY_PEAK_BYTES));
        sentences.extend(needs.map(|((buffers, own), theirs)| {
            format!(
                "`{LARGE}` needs {own} of memory, {buffers} of it buffers; `buffered` {theirs}, page cache included"
            )
        }));
    }
    let mut rates: Vec<(&Row, f64)> =
        table.rows.iter().filter_map(|row| Some((row, row.metrics.get(metric::MB_PER_S)?))).collect();
    rates.sort_by(|a, b| b.1.total_cmp(&a.1));
    if let [(best, most), others @ ..] = rates.as_slice() {
        let differs =
            |row: &Row| !matches!(difference(row, best, metric::MB_PER_S), None | Some(Difference::Equal));
        let slowest =
            others.last().filter(|(row, _)| differs(row)).map_or_else(String::new, |(row, least)| {
                format!(", the slowest `{}` with {}", row.name, number(*least))
            });
        let alike: Vec<String> = others
            .iter()
            .filter(|(row, _)| !differs(row))
            .map(|(row, _)| format!("`{}`", row.name))
            .collect();
        let alike = match alike.as_slice() {
            [] => String::new(),
            [first, second, more @ ..] if !more.is_empty() => {
                format!(", within noise like {first}, {second} and {} more", more.len())
            }
            names => format!(", within noise like {}", names.join(", ")),
        };
        let most = number(*most);
        sentences.push(format!(
            "the fastest sequential read was `{}` with {most} MB/s{alike}{slowest}",
            best.name
        ));
    }
    sentences
}

/// Describes how many large requests in flight a scan needs, and at which numbers the page cache is faster.
fn of_sweep(swept: &[&Table], buffered: Option<&Row>) -> Option<String> {
    let rate = |row: &Row| row.metrics.get(metric::MB_PER_S);
    let of = |table: &&Table| {
        let row = table.row(LARGE)?;
        Some((table.number("depth")?, rate(row)?, row.clone()))
    };
    let mut rows: Vec<(f64, f64, Row)> = swept.iter().filter_map(of).collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let most = rows.iter().map(|(_, rate, _)| *rate).fold(0.0, f64::max);
    let curve: Vec<(f64, f64)> = rows.iter().map(|(depth, rate, _)| (*depth, *rate)).collect();
    let at = saturated_at(&curve)?;
    let (depth, enough) = curve[at];
    let is_faster = |row: &Row| {
        let found = buffered.and_then(|buffered| difference(buffered, row, metric::MB_PER_S));
        matches!(found, Some(Difference::More(_)))
    };
    let wins: Vec<String> =
        rows.iter().filter(|(_, _, row)| is_faster(row)).map(|(depth, ..)| number(*depth)).collect();
    let cache = match buffered.and_then(rate).map(number) {
        None => String::new(),
        Some(rate) if wins.is_empty() => format!("; `buffered` ({rate}) is faster at none"),
        Some(rate) => format!("; `buffered` ({rate}) is faster at depth {}", wins.join(",")),
    };
    let (depth, enough, most) = (number(depth), number(enough), number(most));
    Some(if at + 1 == curve.len() {
        format!("reads of 512 KiB reach {enough} MB/s at queue depth {depth}, the most measured{cache}")
    } else {
        format!("reads of 512 KiB saturate at queue depth {depth} ({enough} of {most} MB/s){cache}")
    })
}

/// Returns a sentence on how a row's rate differs from that of `buffered`, a row of the page cache. `None` when one of them has
/// no figure.
pub(super) fn compare(subject: &str, row: &Row, other: &Row, metric: &str, unit: &str) -> Option<String> {
    let figures = |row: &Row| row.metrics.get(metric).map(number);
    let (own, theirs) = (figures(row)?, figures(other)?);
    let warm = if other.cache == Some(CacheState::Warm) { " (warm)" } else { "" };
    let name = format!("`{}`{warm}", other.name);
    let relation = match difference(row, other, metric)? {
        Difference::More(times) => format!("{subject} is {} times faster than {name}", number(times)),
        Difference::Less(times) => format!("{subject} is {} times slower than {name}", number(times)),
        Difference::Equal => format!("no clear difference between {subject} and {name}"),
    };
    Some(format!("{relation} ({own} and {theirs} {unit}){}", once(&[row, other])))
}

/// Returns a sentence on how a row's processor time differs from that of another, where it does.
pub(super) fn cost(subject: &str, row: &Row, other: &Row, metric: &str, unit: &str) -> Option<String> {
    let (own, theirs) = (row.metrics.get(metric)?, other.metrics.get(metric)?);
    let (times, word) = match difference(row, other, metric)? {
        Difference::Less(times) => (times, "less"),
        Difference::More(times) => (times, "more"),
        Difference::Equal => return None,
    };
    Some(format!(
        "{subject} takes {} times {word} CPU than `{}` ({} and {} {unit}){}",
        number(times),
        other.name,
        number(own),
        number(theirs),
        once(&[row, other])
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::super::lanes::{test_file, test_job, test_row, test_table};
    use super::super::options::Length;
    use super::super::pattern::Pattern;
    use super::*;
    use crate::cleanup::TempFile;

    const BYTES: u64 = 4 << 20;

    fn job(temp: &TempFile, way: &Way) -> Job {
        let job = test_job(SPEC.name, way.name, temp.path(), json!({ "file_bytes": BYTES }), 1);
        Job { pattern_seed: Some(11), ..job }
    }

    #[test]
    fn every_row_sees_every_page_once() {
        let (_cleanup, temp) = test_file(11, BYTES as usize);
        let pages = 0..BYTES / PAGE_BYTES as u64;
        let fold = pages.fold(0, |folded, page| folded ^ Pattern::new(11).first_word(page));
        for way in SPEC.ways {
            let outcome =
                Scan.sample(&job(&temp, way)).unwrap_or_else(|error| panic!("{}: {error:#}", way.name));
            assert_eq!((outcome.bytes, outcome.folded), (BYTES, fold), "{}", way.name);
            let has_buffers = outcome.figures.get(metric::BUFFERS_PEAK_BYTES).is_some();
            assert_eq!(has_buffers, way.name != "mmap", "{}", way.name);
        }
    }

    #[test]
    fn every_row_notices_wrong_data() {
        let (_cleanup, temp) = test_file(11, BYTES as usize);
        temp.file().write_all_at(&[0; 8], 2 << 20).expect("it may be written");
        temp.file().sync_all().expect("it can be flushed");
        for way in SPEC.ways {
            let error = Scan.sample(&job(&temp, way)).expect_err(way.name);
            assert!(format!("{error:#}").contains("offset 2097152"), "{}: {error:#}", way.name);
        }
    }

    #[test]
    fn every_row_ends_at_its_deadline() {
        let (_cleanup, temp) = test_file(11, BYTES as usize);
        for way in SPEC.ways {
            let outcome = Scan.sample(&Job { seconds: 0.0, ..job(&temp, way) }).expect("it ends");
            assert!((1..BYTES).contains(&outcome.bytes), "{}: {}", way.name, outcome.bytes);
        }
    }

    #[test]
    fn a_scan_that_loses_its_end_is_an_error() {
        let job = test_job(SPEC.name, "", Path::new("/"), json!({ "file_bytes": 8192 }), 1);
        let work = job.work().expect("its own");
        let error = paced(&job, &work, |pace| {
            assert!(pace.take(&[0; 4096]).expect("nothing is compared"));
            Ok(None)
        })
        .expect_err("half of it is missing");
        assert!(error.to_string().contains("4096 of 8192"), "{error}");
    }

    #[test]
    fn a_sweep_follows_the_rows_unless_it_is_not_wanted() {
        let mut options = Values::new(SPEC.options, None, Length::Full).expect("defaults");
        assert_eq!((depths(&options, false), depths(&options, true)), (SWEEP.to_vec(), vec![]));
        options.rows = vec!["mmap".to_owned()];
        assert!(depths(&options, false).is_empty());
        options.set("depth", 3.0);
        assert_eq!(depths(&options, true), [3]);
    }

    /// Regression: README compared rows of the page cache, on memory that the guest had never used, with direct reads.
    #[test]
    fn touched_bytes_were_in_memory() {
        let wanted = (48 << 20).min(affordable_bytes());
        assert_eq!(prefault(wanted), wanted);
        let peak = super::super::gauge::peak_resident_bytes().expect("the kernel counts it");
        assert!(peak >= wanted, "{peak} of {wanted}");
    }

    #[test]
    fn times_are_checked() {
        assert_eq!(parse_seconds("0.5"), Ok(0.5));
        for wrong in ["0", "-1", "x", "inf", "NaN"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
    }

    fn row(name: &str, values: &[f64]) -> Row {
        test_row(name, values, &[(metric::MB_PER_S, 1.0)])
    }

    fn sentences(large: &[f64], buffered: Row) -> Vec<String> {
        Scan.verdicts(&[&test_table(SPEC.name, json!({}), vec![buffered, row(LARGE, large)])])
    }

    #[test]
    fn wins_losses_and_equal_rows_are_reported() {
        let buffered = || row("buffered", &[1000.0, 1250.0, 900.0]);
        for (large, words) in [
            (
                [2400.0, 2500.0, 2300.0],
                "`direct-large` (5 x 512 KiB in flight) is 2.40 times faster than `buffered` (2,400 and 1,000 MB/s)",
            ),
            ([500.0, 510.0, 490.0], "2 times slower than `buffered`"),
            ([1200.0, 900.0, 1300.0], "no clear difference"),
        ] {
            let sentences = sentences(&large, buffered());
            assert!(sentences[0].contains(words), "{sentences:?}");
        }
    }

    #[test]
    fn warm_figures_are_called_warm() {
        let warm = row("buffered", &[9000.0, 9100.0]).cache(CacheState::Warm);
        let sentences = sentences(&[2400.0, 2500.0], warm);
        assert!(sentences[0].contains("slower") && sentences[0].contains("warm"), "{}", sentences[0]);
    }

    #[test]
    fn rows_that_were_not_measured_make_no_sentence() {
        let sentences = sentences(&[1000.0], Row::skipped("buffered", "no"));
        assert_eq!(sentences, ["the fastest sequential read was `direct-large` with 1,000 MB/s"]);
    }

    /// Regression: a row was the fastest by less than its repeats differ.
    #[test]
    fn the_fastest_is_named_with_those_that_are_alike() {
        let rates = |all: &[(&str, [f64; 3])]| {
            let rows = all.iter().map(|(name, rates)| row(name, rates)).collect();
            of_table(&test_table(SPEC.name, json!({}), rows)).pop()
        };
        let [default, mmap] = [("default", [1000.0, 900.0, 1100.0]), ("mmap", [990.0, 880.0, 1120.0])];
        assert_eq!(
            rates(&[default, mmap, ("direct-4k", [100.0, 99.0, 101.0])]).as_deref(),
            Some(
                "the fastest sequential read was `default` with 1,000 MB/s, within noise like `mmap`, \
                 the slowest `direct-4k` with 100"
            )
        );
        let both = rates(&[default, mmap]);
        assert!(both.as_ref().is_some_and(|text| text.ends_with("within noise like `mmap`")), "{both:?}");
    }

    #[test]
    fn processor_time_is_reported_where_it_differs() {
        let costs = |own: f64| cost("`a`", &row("a", &[own]), &row("b", &[4.0]), metric::MB_PER_S, "s");
        assert!(costs(2.0).is_some_and(|text| text.contains("`a` takes 2 times less CPU than `b`")));
        assert_eq!(costs(4.0), None);
    }

    #[test]
    fn a_sweep_reports_its_depth_and_where_the_cache_wins() {
        let of = |depth: Option<u32>, name: &str, rate: f64| {
            let all = depth.map_or(json!({}), |depth| json!({ "depth": depth }));
            test_table(SPEC.name, all, vec![row(name, &[0.99 * rate, rate, 1.01 * rate])])
        };
        let mut all = vec![of(None, "buffered", 1000.0)];
        all.extend(
            [(4, 2900.0), (1, 700.0), (2, 1400.0), (8, 3000.0)]
                .map(|(depth, rate)| of(Some(depth), LARGE, rate)),
        );
        let reported = |all: &[Table]| Scan.verdicts(&all.iter().collect::<Vec<_>>()).pop();
        assert_eq!(
            reported(&all).as_deref(),
            Some(
                "reads of 512 KiB saturate at queue depth 4 (2,900 of 3,000 MB/s); `buffered` (1,000) is faster at depth 1"
            )
        );
        assert!(reported(&all[1..]).is_some_and(|sentence| !sentence.contains("buffered")));
        // Regression: what still grew at the largest depth was called saturated there.
        all[4] = of(Some(8), LARGE, 5700.0);
        assert_eq!(
            reported(&all[1..]).as_deref(),
            Some("reads of 512 KiB reach 5,700 MB/s at queue depth 8, the most measured")
        );
        assert_eq!(of_sweep(&[], None), None);
    }
}
