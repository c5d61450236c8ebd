//! `measure files`: many small files, one after the other and many concurrently: open, read and close; create, write, sync and
//! close; stat.

use std::cell::Cell;
use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay::{Block, Config, Durability, Engine, Open};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::file_set::{FileSet, Files as FilesOnDisk};
use crate::lanes::{allow_files, ready};
use crate::prelude::*;
use crate::units::show_bytes;

#[derive(Debug)]
pub(crate) struct Files;

static SPEC: Spec = Spec {
    name: "files",
    about: "Open, read, create, sync and stat many small files, from one to 64 at once, in several ways",
    quick_seconds: 4,
    full_seconds: 90,
    needs_directory: true,
    options: &[
        Opt::word(
            "calls",
            "Only these calls (read: open, read, close; create: create, write, sync, close)",
            &["read", "create", "stat"],
        )
        .list()
        .or("read,create,stat"),
        Opt::count("at-once", "Files in progress at once", 1024)
            .list()
            .or("1,4,16,64")
            .quick("16")
            .report("1,64"),
        Opt::count("count", "Number of files, and the most that a sample creates", 1_000_000)
            .or("10000")
            .quick("2000"),
        Opt::bytes("size", "Bytes of a file", 4096, 1 << 20).multiple_of(4096).or("4KiB"),
        Opt::seconds("0.5", "0.2"),
        Opt::repeats("3"),
    ],
    ways: &[
        Way::cached("std-threads", "a std thread for each file at once, std::fs, through the page cache"),
        Way::cached("tokio-fs", "a Tokio task for each file at once, tokio::fs, through the page cache"),
        Way::direct("forebay", "a Tokio task for each file at once, Forebay, O_DIRECT"),
    ],
    columns: &[
        column(metric::FILES_PER_S, "files/s", 1.0, "files with which all calls were made in a second"),
        column(metric::OPEN_US, "open µs", 1.0, "mean time of opening, or of making, one file"),
        column(metric::READ_US, "read µs", 1.0, "mean time of reading one file"),
        column(metric::WRITE_US, "write µs", 1.0, "mean time of writing one file"),
        column(metric::SYNC_US, "sync µs", 1.0, "mean time of making one file durable"),
        column(metric::CLOSE_US, "close µs", 1.0, "mean time of closing one file"),
        column(metric::STAT_US, "stat µs", 1.0, "mean time of reading the metadata of one file"),
        columns::P50_US,
        columns::P99_US,
        column(metric::CPU_US_PER_FILE, "CPU µs/file", 1.0, "processor time of all threads for one file"),
    ],
    compared: metric::FILES_PER_S,
    charts: &[metric::FILES_PER_S, metric::P99_US, metric::CPU_US_PER_FILE],
    axis: Axis::new("at_once", "files at once"),
    role: Role::Other,
    gains: || {
        vec![Gain::new(
            metric::FILES_PER_S,
            true,
            &["tokio-fs", "std-threads"],
            &["forebay"],
            "files a second",
            "Open and read small files without a thread for each of them",
        )]
    },
};

impl Experiment for Files {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn plan<'a>(&self, options: &Values, context: &'a Context) -> anyhow::Result<Box<dyn Plan + 'a>> {
        let (at_once, count) = (options.counts("at-once"), options.count("count"));
        if let Some(most) = at_once.iter().find(|most| **most > count) {
            return Err(Failure::Usage(format!(
                "--at-once {most} needs as many files: give a larger --count than {count}"
            ))
            .into());
        }
        let scratch = ScratchDir::find(context, SPEC.name)?;
        let set = FileSet { files: count as u32, file_bytes: options.count("size"), seed: context.seed };
        let files = FilesOnDisk::make(&scratch, set, context)?;
        let of_call = |call| {
            at_once.iter().map(move |at_once| {
                let mut setting = parameters(json!({ "call": call, "at_once": at_once }));
                setting.extend(set.parameters());
                setting
            })
        };
        let settings = options.words("calls").into_iter().flat_map(of_call).collect();
        Ok(Box::new(Run { scratch, files, settings, is_cold: Cell::new(true), context }))
    }

    fn file_bytes(&self, options: &Values) -> u64 {
        options.count("size").saturating_mul(options.count("count"))
    }

    fn sample(&self, job: &Job) -> anyhow::Result<Outcome> {
        let work: Work = job.work()?;
        _ = allow_files(work.at_once as u64);
        let (tallies, cost) = match job.row.as_str() {
            "forebay" => with_engine(Config::new(), |engine| tasks(Library::Forebay(engine.clone()), job))?,
            "tokio-fs" => tasks(Library::Tokio, job)?,
            _ => {
                let visits = Visits::new(Library::Std, job)?;
                on_threads(work.at_once, job, |_, deadline| ready(lane(&visits, deadline)))?
            }
        };
        let mut latency = Latency::new()?;
        tallies.iter().try_for_each(|tally| latency.add(&tally.latency))?;
        let files = latency.count();
        if work.call == "create" {
            verify(&job.path, work.file_set, files)?;
        }
        let mut outcome = Outcome::new(cost, files, files * work.file_set.file_bytes, latency);
        for (call, time) in tallies.iter().flat_map(|tally| &tally.calls) {
            *outcome.figures.0.entry((*call).to_owned()).or_default() +=
                time.as_secs_f64() * 1e6 / files as f64;
        }
        Ok(outcome)
    }

    fn title(&self, table: &Table) -> (String, String) {
        let size = shown_bytes(table, "file_bytes");
        let heading = match shown(table, "call").as_str() {
            "read" => format!("Open, read and close of files of {size}"),
            "create" => format!("Create, write, sync and close of files of {size}"),
            _ => "Stat of files".to_owned(),
        };
        (format!("{heading}, {} at once", shown(table, "at_once")), heading)
    }

    /// Returns one sentence for each call, on the table with the most concurrent files.
    fn verdicts(&self, tables: &[&Table]) -> Vec<String> {
        let mut most: Vec<&Table> = Vec::new();
        for table in tables {
            match most.iter_mut().find(|known| shown(known, "call") == shown(table, "call")) {
                Some(known) if known.number("at_once") < table.number("at_once") => *known = table,
                Some(_) => {}
                None => most.push(table),
            }
        }
        most.into_iter().filter_map(fastest).collect()
    }
}

/// One run: the files, and a table for each call and number of concurrent files.
#[derive(Debug)]
struct Run<'a> {
    scratch: ScratchDir,
    files: FilesOnDisk,
    settings: Vec<Parameters>,
    is_cold: Cell<bool>,
    context: &'a Context,
}

impl Plan for Run<'_> {
    fn place(&self) -> Place {
        self.scratch.place_of(&self.files.preconditions)
    }

    fn settings(&self) -> Vec<Parameters> {
        self.settings.clone()
    }

    fn start(&mut self, turn: &Turn<'_>, mut job: Job) -> anyhow::Result<Start> {
        // The check of the created files needs time, too.
        job.seconds_max = 10.0 * turn.seconds;
        if turn.text("call") == "create" {
            let new = self.scratch.temp_directory(self.context, "new")?;
            job.path = new.path().to_owned();
            return Ok(Start { held: Some(Box::new(new)), ..job.into() });
        }
        if turn.text("call") == "read" {
            self.is_cold.set(self.is_cold.get() & self.files.evict()?);
        }
        job.path = self.files.directory.path().to_owned();
        Ok(job.into())
    }

    fn claim(&self, turn: &Turn<'_>, outcome: &Outcome) -> Claim {
        let call = turn.text("call");
        Claim {
            read_bytes: (call == "read").then_some(outcome.bytes),
            written_bytes: (call == "create").then_some(outcome.bytes),
            // The pool of either runtime has a thread for each call that waits.
            workers: None,
            // Names and inodes are in memory.
            busy_on_purpose: call == "stat",
            ..Claim::default()
        }
    }

    fn cache(&self, setting: &Parameters, way: &Way) -> Option<CacheState> {
        match text(setting, "call") {
            "stat" => Some(CacheState::Warm),
            "create" if way.cached => None,
            _ => Some(cache_of(way, self.is_cold.get())),
        }
    }

    fn method(&self, setting: &Parameters, seconds: f64) -> String {
        let calls = match text(setting, "call") {
            "read" => "opens it, reads it whole and closes it",
            "create" => "makes it, writes it whole, syncs it (fsync) and closes it",
            _ => "reads its metadata (statx)",
        };
        let FileSet { files, file_bytes, .. } = self.files.file_set;
        format!(
            "Each sample is a fresh process with a thread or task for each file at once. Each takes the next of {files} \
             files of {} in one directory, in an order that is new in each repeat, and {calls}; no file is begun after \
             {seconds:.2} s. The time of a call is its mean over all files; percentiles are of all calls with one file. \
             Making the data to write and checking the data read count in none of these times. Rows take turns within a \
             repeat, and a figure is the median of the repeats.",
            show_bytes(file_bytes),
        )
    }

    fn notes(&self, setting: &Parameters) -> Vec<String> {
        let note = match text(setting, "call") {
            "read" => {
                "the files' contents are evicted from the page cache before each sample, their names and inodes are not"
            }
            "create" => {
                "each file is synced, the directory is not: the file system decides whether the name survives a power cut"
            }
            _ => "names and inodes are in memory: this is the time in the kernel, without the device",
        };
        let is_warm = text(setting, "call") == "read" && !self.is_cold.get();
        [note].into_iter().chain(is_warm.then_some(PARTLY_WARM)).map(str::to_owned).collect()
    }
}

/// The parameters that a sample needs.
#[derive(Debug, Deserialize)]
struct Work {
    call: String,
    at_once: usize,
    /// The existing files; new files have the same lengths and contents.
    #[serde(flatten)]
    file_set: FileSet,
}

/// The files of a sample, in the order in which the lanes visit them.
#[derive(Debug)]
struct Visits {
    library: Library,
    work: Work,
    directory: PathBuf,
    order: Vec<u32>,
    next: AtomicU64,
}

impl Visits {
    fn new(library: Library, job: &Job) -> anyhow::Result<Self> {
        let work: Work = job.work()?;
        let mut order: Vec<u32> = (0..work.file_set.files).collect();
        SplitMix::new(job.seed).shuffle(&mut order);
        Ok(Self { library, work, directory: job.path.clone(), order, next: AtomicU64::new(0) })
    }

    /// Returns the next file; no other lane gets it in this turn. Stat starts again after the last file: its data are in memory in
    /// any case.
    fn next_file(&self) -> Option<u32> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.order.len() as u64;
        let place = if self.work.call == "stat" { turn % count } else { turn };
        self.order.get(usize::try_from(place).ok()?).copied()
    }
}

/// Checks that `found` is file number `file`: its length and its first bytes.
///
/// # Errors
/// It is not.
fn check(file_set: FileSet, file: u32, found: &[u8]) -> anyhow::Result<()> {
    let word = file_set.contents(file).first_word(0).to_le_bytes();
    anyhow::ensure!(
        found.len() as u64 == file_set.file_bytes && found.starts_with(&word),
        "file {file} does not hold the bytes written there; the storage below it or the way it was read is faulty"
    );
    Ok(())
}

/// Checks the created files. A row that created fewer files than it counted, or empty files, would look fast.
fn verify(directory: &Path, file_set: FileSet, files: u64) -> anyhow::Result<()> {
    let mut found = 0;
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        let number = number.with_context(|| format!("{} is not one of these files", path.display()))?;
        check(file_set, number, &fs::read(path)?)?;
        found += 1;
    }
    anyhow::ensure!(found == files, "{files} files were counted, and {found} are there");
    Ok(())
}

/// The library that makes the calls.
#[derive(Debug)]
enum Library {
    /// Its calls block the thread, so its futures never wait.
    Std,
    Tokio,
    Forebay(Engine),
}

/// An open file of a library.
enum Handle {
    Std(fs::File),
    Tokio(tokio::fs::File),
    Forebay(forebay::File),
}

impl Library {
    async fn open(&self, path: PathBuf, is_new: bool) -> anyhow::Result<Handle> {
        let mut options = OpenOptions::new();
        options.read(!is_new).write(is_new).create_new(is_new).mode(0o600);
        Ok(match self {
            Self::Std => Handle::Std(options.open(path)?),
            Self::Tokio => Handle::Tokio(tokio::fs::OpenOptions::from(options).open(path).await?),
            Self::Forebay(engine) => {
                let open = if is_new { Open::create_new().permissions(0o600) } else { Open::read() };
                Handle::Forebay(engine.open(path, open).await?)
            }
        })
    }

    async fn stat(&self, path: PathBuf) -> anyhow::Result<u64> {
        Ok(match self {
            Self::Std => fs::metadata(path)?.len(),
            Self::Tokio => tokio::fs::metadata(path).await?.len(),
            Self::Forebay(engine) => engine.metadata(path).await?.len(),
        })
    }
}

impl Handle {
    /// Reads the whole file into `memory`, or into a block, which it returns.
    async fn read(&mut self, memory: &mut [u8]) -> anyhow::Result<Option<Block>> {
        match self {
            Self::Std(file) => file.read_exact(memory)?,
            Self::Tokio(file) => drop(file.read_exact(memory).await?),
            Self::Forebay(file) => return Ok(Some(file.read(0..memory.len() as u64).await?)),
        }
        Ok(None)
    }

    async fn write(&mut self, memory: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::Std(file) => file.write_all(memory)?,
            Self::Tokio(file) => {
                file.write_all(memory).await?;
                // Bytes that tokio has only buffered are written by the flush.
                file.flush().await?;
            }
            Self::Forebay(file) => file.write(0, memory).await?,
        }
        Ok(())
    }

    async fn sync(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Std(file) => file.sync_all()?,
            Self::Tokio(file) => file.sync_all().await?,
            Self::Forebay(file) => file.sync(Durability::All).await?,
        }
        Ok(())
    }

    async fn close(self) -> anyhow::Result<()> {
        if let Self::Forebay(file) = self {
            file.close().await?;
        }
        Ok(())
    }
}

/// The calls of one lane.
#[derive(Debug)]
struct Tally {
    /// The metric of each call, with the sum of its times.
    calls: Vec<(&'static str, Duration)>,
    /// Times of all calls with one file.
    latency: Latency,
    begun: Instant,
    last: Instant,
}

impl Tally {
    /// Starts the first call with a file. The time before it is the program's own.
    fn begin(&mut self) {
        self.begun = Instant::now();
        self.last = self.begun;
    }

    /// Adds the time of the call that has ended; the next call starts.
    fn made(&mut self, call: &'static str) {
        let now = Instant::now();
        let time = now - self.last;
        match self.calls.iter_mut().find(|(known, _)| *known == call) {
            Some((_, sum)) => *sum += time,
            None => self.calls.push((call, time)),
        }
        self.last = now;
    }
}

fn tasks(library: Library, job: &Job) -> anyhow::Result<(Vec<Tally>, Cost)> {
    let visits = Arc::new(Visits::new(library, job)?);
    on_tokio(visits.work.at_once, None, job, |_, deadline| {
        let visits = Arc::clone(&visits);
        async move { lane(&visits, deadline).await }
    })
}

/// Visits one file after the other.
async fn lane(visits: &Visits, deadline: Instant) -> anyhow::Result<Tally> {
    let Visits { library, work: Work { call, file_set, .. }, .. } = visits;
    let now = Instant::now();
    let mut tally = Tally { calls: Vec::new(), latency: Latency::new()?, begun: now, last: now };
    let mut memory = vec![0; file_set.file_bytes as usize];
    let is_new = call == "create";
    // The first file always has time: otherwise a short sample on a busy machine would have nothing to report.
    while Instant::now() < deadline || tally.latency.count() == 0 {
        let Some(number) = visits.next_file() else { break };
        let path = FileSet::path(&visits.directory, number);
        if is_new {
            file_set.contents(number).fill(0, &mut memory);
        }
        tally.begin();
        if call == "stat" {
            let length = library.stat(path).await?;
            tally.made(metric::STAT_US);
            anyhow::ensure!(
                length == file_set.file_bytes,
                "file {number} is {length} bytes long and should have {}",
                file_set.file_bytes
            );
        } else {
            let mut file = library.open(path, is_new).await?;
            tally.made(metric::OPEN_US);
            let mut block = None;
            if is_new {
                file.write(&memory).await?;
                tally.made(metric::WRITE_US);
                file.sync().await?;
                tally.made(metric::SYNC_US);
            } else {
                block = file.read(&mut memory).await?;
                tally.made(metric::READ_US);
            }
            file.close().await?;
            tally.made(metric::CLOSE_US);
            if !is_new {
                check(*file_set, number, block.as_deref().unwrap_or(&memory))?;
            }
        }
        tally.latency.record(tally.last - tally.begun);
    }
    Ok(tally)
}

/// Returns a sentence on the fastest way: by how much it leads, and which call uses most of its time.
fn fastest(table: &Table) -> Option<String> {
    const RATE: &str = metric::FILES_PER_S;
    let mut rows: Vec<(&Row, f64)> =
        table.rows.iter().filter_map(|row| Some((row, row.metrics.get(RATE)?))).collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (best, rate) = *rows.first()?;
    let compared = rows[1..].iter().map(|(row, _)| match difference(best, row, RATE) {
        Some(Difference::More(times)) => format!("{} times `{}`", number(times), row.name),
        // Only repeats that are alike show that rows are.
        _ if too_wide(&[(best, RATE), (row, RATE)]).is_some() => format!("unclear against `{}`", row.name),
        _ => format!("equal to `{}`", row.name),
    });
    let mut sentence = format!(
        "`{}` {}s {} files/s, {} at once",
        best.name,
        shown(table, "call"),
        number(rate),
        shown(table, "at_once")
    );
    for (place, other) in compared.enumerate() {
        sentence.push_str(if place == 0 { ": " } else { ", " });
        sentence.push_str(&other);
    }
    let times = best.metrics.0.iter().filter_map(|(name, time)| Some((name.strip_suffix("_us")?, *time)));
    let times: Vec<(&str, f64)> =
        times.filter(|(name, _)| ["open", "read", "write", "sync", "close"].contains(name)).collect();
    if let Some((longest, most)) = times.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)) {
        let all: f64 = times.iter().map(|(_, time)| time).sum();
        sentence.push_str(&format!("; {} % in {longest}", number((100.0 * most / all).round())));
    }
    Some(sentence + once(&[best]))
}

#[cfg(test)]
mod tests {
    use super::super::lanes::{test_context, test_job, test_table};
    use super::*;

    const FILE_SET: FileSet = FileSet { files: 30, file_bytes: 8192, seed: 3 };

    fn with_files(test: impl FnOnce(&FilesOnDisk, &dyn Fn() -> crate::cleanup::TempDirectory)) {
        let context = test_context();
        let scratch = ScratchDir::find(&context, SPEC.name).expect("a directory on a disk");
        let files = FilesOnDisk::make(&scratch, FILE_SET, &context).expect("space for 240 KiB");
        test(&files, &|| scratch.temp_directory(&context, "new").expect("writable"));
    }

    fn job(way: &Way, call: &str, at_once: usize, directory: &Path) -> Job {
        let mut all = parameters(json!({ "call": call, "at_once": at_once }));
        all.extend(FILE_SET.parameters());
        test_job(SPEC.name, way.name, directory, all.into(), 5)
    }

    #[test]
    fn every_row_visits_every_file_once_and_times_its_calls() {
        with_files(|files, new| {
            for way in SPEC.ways {
                for (call, calls) in [
                    ("read", &["close_us", "open_us", "read_us"][..]),
                    ("create", &["close_us", "open_us", "sync_us", "write_us"]),
                ] {
                    for at_once in [1, 7] {
                        let new = new();
                        let directory = if call == "read" { files.directory.path() } else { new.path() };
                        let outcome = Files
                            .sample(&job(way, call, at_once, directory))
                            .unwrap_or_else(|error| panic!("{} {call}: {error:#}", way.name));
                        assert_eq!((outcome.operations, outcome.bytes), (30, 30 * 8192), "{}", way.name);
                        let times = &outcome.figures.0;
                        assert_eq!(times.keys().collect::<Vec<_>>(), calls, "{}", way.name);
                        assert!(times.values().all(|time| *time > 0.0), "{} {outcome:?}", way.name);
                    }
                }
                // Also without any time: a machine that stood still for 50 ms once left a row without files.
                for seconds in [0.05, 0.0] {
                    let mut stat = job(way, "stat", 3, files.directory.path());
                    stat.seconds = seconds;
                    let outcome = Files.sample(&stat).expect("they are there");
                    assert!(outcome.operations >= 3, "one for each of the three: {outcome:?}");
                    assert_eq!(outcome.figures.0.keys().collect::<Vec<_>>(), ["stat_us"], "{}", way.name);
                }
            }
        });
    }

    #[test]
    fn every_row_notices_a_wrong_file() {
        with_files(|files, _| {
            for way in SPEC.ways {
                let fails = |call, change: &dyn Fn(&mut Value)| {
                    let mut job = job(way, call, 2, files.directory.path());
                    change(&mut job.work);
                    format!("{:#}", Files.sample(&job).expect_err(way.name))
                };
                let error = fails("read", &|work| work["file_seed"] = 4.into());
                assert!(error.contains("does not hold the bytes written"), "{}: {error}", way.name);
                let error = fails("stat", &|work| work["file_bytes"] = 4096.into());
                assert!(error.contains("8192 bytes long"), "{}: {error}", way.name);
                // The files exist already.
                fails("create", &|_| {});
            }
        });
    }

    #[test]
    fn a_file_that_was_counted_and_not_made_is_noticed() {
        with_files(|files, _| {
            verify(files.directory.path(), FILE_SET, 30).expect("all of them");
            let error = verify(files.directory.path(), FILE_SET, 31).expect_err("one more");
            assert!(error.to_string().contains("30 are there"), "{error}");
        });
    }

    #[test]
    fn every_file_has_its_place_in_the_order() {
        let job = job(&SPEC.ways[0], "read", 3, Path::new("/"));
        let mut order = Visits::new(Library::Std, &job).expect("its own work").order;
        assert_ne!(order, (0..30).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..30).collect::<Vec<_>>());
    }

    fn row(name: &str, rate: f64, sync_us: f64) -> Row {
        let times = [(metric::OPEN_US, 20.0), (metric::SYNC_US, sync_us)];
        let repeat = |factor: f64| [(metric::FILES_PER_S, rate * factor)].into_iter().chain(times);
        Row::of_repeats(name, [0.98, 1.0, 1.02].map(repeat))
    }

    fn table(call: &str, at_once: u32, rows: Vec<Row>) -> Table {
        test_table(SPEC.name, json!({ "call": call, "at_once": at_once, "file_bytes": 4096 }), rows)
    }

    #[test]
    fn the_fastest_way_is_reported_with_the_slowest_call() {
        let rows = || {
            vec![
                row("std-threads", 1000.0, 180.0),
                row("tokio-fs", 500.0, 400.0),
                row("forebay", 2000.0, 80.0),
            ]
        };
        let all = [table("create", 64, rows()), table("create", 1, rows())];
        assert_eq!(
            Files.verdicts(&all.each_ref()),
            [
                "`forebay` creates 2,000 files/s, 64 at once: 2 times `std-threads`, 4 times `tokio-fs`; 80 % in sync"
            ]
        );
    }

    #[test]
    fn ways_that_are_alike_are_called_so() {
        let rows = vec![row("std-threads", 1010.0, 20.0), row("forebay", 1000.0, 20.0)];
        let sentences = Files.verdicts(&[&table("read", 4, rows)]);
        assert!(sentences[0].contains("4 at once: equal to `forebay`"), "{sentences:?}");
        assert!(!sentences[0].contains("times"), "{sentences:?}");
        let mut noisy = row("forebay", 1000.0, 20.0);
        noisy.samples[0].metrics.set(metric::FILES_PER_S, 2000.0);
        let sentences = Files.verdicts(&[&table("read", 4, vec![row("std-threads", 1010.0, 20.0), noisy])]);
        assert!(sentences[0].contains("unclear against `forebay`"), "{sentences:?}");
    }

    #[test]
    fn a_call_without_figures_makes_no_sentence() {
        assert!(Files.verdicts(&[&table("stat", 1, vec![Row::skipped("forebay", "no")])]).is_empty());
        let titles = ("Stat of files, 1 at once".to_owned(), "Stat of files".to_owned());
        assert_eq!(Files.title(&table("stat", 1, vec![])), titles);
    }
}
