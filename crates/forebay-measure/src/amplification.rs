//! `measure amplification`: the bytes that a device reads for pieces of less than a page, at random places of one file and
//! of many.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::{Config, Open};
use rustix::fs::{Advice, fadvise};

use crate::file_set::{FileSet, Files};
use crate::gates::processors;
use crate::lanes::{allow_files, share};
use crate::plan::check_memory;
use crate::prelude::*;
use crate::sentences::compared;
use crate::units::show_bytes;

#[derive(Debug)]
pub(crate) struct Amplification;

static SPEC: Spec = Spec {
    name: "amplification",
    about: "Read pieces of less than a page from one file and from many, and count the bytes that the device reads \
        for them",
    quick_seconds: 3,
    full_seconds: 60,
    needs_directory: true,
    options: &[
        Opt::count("files", "Files that share the data", 50_000).list().or("1,1000"),
        Opt::bytes("size", "Bytes of all files together", 8192, u64::MAX).or("1GiB").quick("128MiB"),
        Opt::bytes("least", "The shortest piece", 1, 1 << 30).or("512"),
        Opt::bytes("most", "The longest piece", 1, 1 << 30).or("4KiB"),
        Opt::bytes(
            "piece",
            "Pieces of this length, each in another page, of two files; a part of 4 KiB",
            1,
            4096,
        )
        .chosen("as --least and --most say"),
        Opt::count("reads", "Pieces of a sample, if its time suffices", 100_000_000).or("8000").quick("2000"),
        Opt::count("in-flight", "Pieces wanted at once", 1024).or("16"),
        Opt::seconds("2", "0.5"),
        Opt::repeats("3"),
    ],
    ways: &[
        Way::cached(
            "buffered",
            "a std thread for each piece wanted at once, pread through the page cache as it comes",
        ),
        Way::cached(
            "buffered-random-advice",
            "the same after posix_fadvise(RANDOM) on each file: no read-ahead",
        ),
        Way::cached(
            READ_AHEAD,
            "with --piece: `buffered` after posix_fadvise(WILLNEED) on the 128 KiB around each piece, which is the usual read-ahead",
        ),
        Way::direct(
            "read-many",
            "Forebay from Tokio, O_DIRECT, File::read_many with 256 pieces at a time, those of one file in one call",
        ),
        Way::direct(
            "direct",
            "Forebay from tasks of a Tokio runtime, O_DIRECT, one File::read for each piece, widened to the least that \
             the device reads",
        ),
    ],
    columns: &[
        columns::PROCESS_BYTES_PER_BYTE,
        columns::DEVICE_BYTES_PER_BYTE,
        columns::IOPS,
        columns::P50_US,
        columns::P99_US,
        columns::CPU_US_PER_IO,
    ],
    compared: metric::PROCESS_BYTES_PER_BYTE,
    charts: &[metric::PROCESS_BYTES_PER_BYTE, metric::DEVICE_BYTES_PER_BYTE, metric::IOPS, metric::P99_US],
    axis: Axis::new("files", "files"),
    role: Role::Other,
    gains: || {
        vec![Gain::new(
            metric::DEVICE_BYTES_PER_BYTE,
            false,
            &["buffered"],
            &["buffered-random-advice", "read-many", "direct"],
            "bytes from the device for each byte wanted",
            "Read only what is wanted",
        )]
    },
};

/// The row of reads with the usual read-ahead of the kernel, and the bytes of that.
const READ_AHEAD: &str = "buffered-read-ahead";
const WINDOW_BYTES: u64 = 128 << 10;
/// Files, and pieces of each, that `--piece` reads unless told otherwise.
const PIECE_FILES: u64 = 2;
const PIECES_OF_FILE: u64 = 64;
/// Pieces that a program of the row `read-many` can request together.
const BATCH: usize = 256;

impl Experiment for Amplification {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn plan<'a>(&self, options: &Values, context: &'a Context) -> anyhow::Result<Box<dyn Plan + 'a>> {
        let (piece, size) = (options.optional("piece"), options.count("size"));
        let [least, most] = ["least", "most"].map(|name| piece.unwrap_or_else(|| options.count(name)));
        if let Some(piece) = piece.filter(|piece| {
            !4096_u64.is_multiple_of(*piece) || options.given("least") || options.given("most")
        }) {
            return Err(Failure::Usage(format!(
                "--piece {piece} stands for --least and --most, and must be a part of 4096: a power of two"
            ))
            .into());
        }
        if least > most {
            return Err(Failure::Usage(format!(
                "the shortest piece (--least {least}) is longer than the longest (--most {most}): give them the other way round"
            ))
            .into());
        }
        let is_given = |name: &str| piece.is_none() || options.given(name);
        let files = if is_given("files") { options.counts("files") } else { vec![PIECE_FILES] };
        let many = files.iter().copied().max().unwrap_or(1);
        // Whole pages. The smallest file has at least two, so that pieces start at different offsets.
        let file_bytes_min = if piece.is_some() { WINDOW_BYTES } else { most.max(8192) };
        if (size / many) & !4095 < file_bytes_min {
            return Err(Failure::Usage(format!(
                "{many} files of {size} bytes together are too small for pieces of {most} bytes: each must hold two pages and \
                 the longest piece, with --piece 128 KiB; give a larger --size, fewer --files or a smaller --most"
            ))
            .into());
        }
        let needed = most * options.count("in-flight");
        check_memory("pieces in flight", needed, "give a smaller --most or --in-flight")?;
        let scratch = ScratchDir::find(context, SPEC.name)?;
        let make = |files: &u64| {
            let set =
                FileSet { files: *files as u32, file_bytes: (size / files) & !4095, seed: context.seed };
            Files::make(&scratch, set, context)
        };
        let sets = files.iter().map(make).collect::<anyhow::Result<_>>()?;
        let reads = if is_given("reads") { options.count("reads") } else { many * PIECES_OF_FILE };
        let mut common = parameters(json!({
            "wanted_bytes_min": least, "wanted_bytes_max": most,
            "reads": reads, "in_flight": options.count("in-flight"),
        }));
        common.extend(piece.map(|piece| ("piece_bytes".to_owned(), piece.into())));
        Ok(Box::new(Run { scratch, sets, common, size, is_cold: Cell::new(true) }))
    }

    fn file_bytes(&self, options: &Values) -> u64 {
        options.count("size").saturating_mul(options.counts("files").len() as u64)
    }

    fn sample(&self, job: &Job) -> anyhow::Result<Outcome> {
        let work: Work = job.work()?;
        allow_files(u64::from(work.files))?;
        let (tallies, cost) = match job.row.as_str() {
            "direct" => direct(job)?,
            "read-many" => read_many(job)?,
            _ => buffered(job, &work)?,
        };
        let (mut latency, mut bytes) = (Latency::new()?, 0);
        for tally in &tallies {
            latency.add(&tally.latency)?;
            bytes += tally.bytes;
        }
        Ok(Outcome::new(cost, latency.count(), bytes, latency))
    }

    fn title(&self, table: &Table) -> (String, String) {
        let [least, most] = ["wanted_bytes_min", "wanted_bytes_max"].map(|name| shown_bytes(table, name));
        let range = if least == most { least } else { format!("{least} to {most}") };
        let heading = format!("Pieces of {range} wanted at random");
        (format!("{heading} from {} file(s)", shown(table, "files")), heading)
    }

    fn verdicts(&self, tables: &[&Table]) -> Vec<String> {
        // For each number of files the bytes read for each byte wanted; then the most files against the fewest.
        let mut all = tables.to_vec();
        let files = |table: &Table| table.number("files").unwrap_or_default();
        all.sort_by(|a, b| files(a).total_cmp(&files(b)));
        let mut sentences: Vec<String> = all.iter().filter_map(|table| per_byte(table)).collect();
        if let [few, .., many] = all.as_slice() {
            sentences.extend(many_files(few, many));
        }
        sentences
    }
}

/// One run: a set of files for each table.
#[derive(Debug)]
struct Run {
    scratch: ScratchDir,
    sets: Vec<Files>,
    common: Parameters,
    size: u64,
    is_cold: Cell<bool>,
}

impl Plan for Run {
    fn place(&self) -> Place {
        self.scratch.place_of(self.sets.first().map(|files| &files.preconditions))
    }

    fn settings(&self) -> Vec<Parameters> {
        let of = |files: &Files| {
            let mut setting = self.common.clone();
            setting.extend(files.file_set.parameters());
            setting
        };
        self.sets.iter().map(of).collect()
    }

    fn has(&self, setting: &Parameters, way: &Way) -> bool {
        way.name != READ_AHEAD || setting.contains_key("piece_bytes")
    }

    fn start(&mut self, turn: &Turn<'_>, mut job: Job) -> anyhow::Result<Start> {
        let files = &self.sets[turn.setting];
        self.is_cold.set(self.is_cold.get() & files.evict()?);
        job.path = files.directory.path().to_owned();
        Ok(job.into())
    }

    fn claim(&self, turn: &Turn<'_>, outcome: &Outcome) -> Claim {
        Claim {
            // The other rows may read a page that holds several pieces once for all of them.
            read_bytes: (turn.way.name == "direct").then_some(outcome.bytes),
            workers: Some(turn.count("in_flight") + usize::from(!turn.way.cached)),
            ..Claim::default()
        }
    }

    fn cache(&self, _: &Parameters, way: &Way) -> Option<CacheState> {
        Some(cache_of(way, self.is_cold.get()))
    }

    fn method(&self, setting: &Parameters, seconds: f64) -> String {
        let value = |name: &str| setting.get(name).and_then(Value::as_u64).unwrap_or_default();
        format!(
            "{} of data that do not compress lie in as many files as stated, all of one length, written through and \
             evicted from the page cache before each sample. Each sample is a fresh process that opens all files, and \
             then wants {} pieces of {} to {}, {}, {} at once, and \
             begins no more after {seconds:.2} s. Every byte is compared with the written one. Device bytes are the \
             block device's counters, for all processes; process bytes are the kernel's account in /proc/self/io; \
             both are divided by the bytes of the pieces. Rows of a repeat want the same pieces; rows take turns \
             within a repeat, and a figure is the median of the repeats.",
            show_bytes(self.size),
            value("reads"),
            show_bytes(value("wanted_bytes_min")),
            show_bytes(value("wanted_bytes_max")),
            if setting.contains_key("piece_bytes") {
                "from the files in turn, each piece in one page and in another 128 KiB as far as a file has them"
            } else {
                "each length equally likely, at any byte of any file"
            },
            value("in_flight"),
        )
    }

    fn notes(&self, _: &Parameters) -> Vec<String> {
        let mut notes = vec![
            "rows of a repeat read the same pieces: a device, or the host of a virtual machine, that caches serves them \
             from its memory, so compare bytes and not rates"
                .to_owned(),
            "in `read-many` each piece counts the time of its whole call".to_owned(),
        ];
        notes.extend((!self.is_cold.get()).then(|| PARTLY_WARM.to_owned()));
        notes
    }
}

/// The parameters that a sample needs.
#[derive(Debug, Deserialize)]
struct Work {
    files: u32,
    file_bytes: u64,
    file_seed: u64,
    wanted_bytes_min: u64,
    wanted_bytes_max: u64,
    /// Reads of all lanes together.
    reads: u64,
    in_flight: usize,
    /// The length of all pieces, each of which has its own page.
    piece_bytes: Option<u64>,
}

impl Work {
    fn file_set(&self) -> FileSet {
        FileSet { files: self.files, file_bytes: self.file_bytes, seed: self.file_seed }
    }
}

/// A piece to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    file: u32,
    offset: u64,
    bytes: u64,
}

/// An endless sequence of the pieces of a lane, the same for every row.
#[derive(Debug)]
struct Pieces<'a> {
    random: SplitMix,
    work: &'a Work,
    /// The number of the next piece among those of all lanes.
    number: u64,
}

impl<'a> Pieces<'a> {
    fn new(work: &'a Work, seed: u64, lane: usize) -> Self {
        let number = lane as u64;
        Self { random: SplitMix::new(seed ^ SplitMix::new(number + 1).next_u64()), work, number }
    }

    fn next_piece(&mut self) -> Piece {
        let number = self.number;
        self.number += self.work.in_flight as u64;
        if let Some(bytes) = self.work.piece_bytes {
            return self.apart(number, bytes);
        }
        let (least, most) = (self.work.wanted_bytes_min, self.work.wanted_bytes_max);
        let bytes = least + self.random.below(most - least + 1);
        let file = self.random.below(u64::from(self.work.files)) as u32;
        let offset = self.random.below(self.work.file_bytes - bytes + 1);
        Piece { file, offset, bytes }
    }

    /// Returns piece `number` of all, in a window of read-ahead that no other one is in, as far as its file has them.
    fn apart(&mut self, number: u64, bytes: u64) -> Piece {
        let files = u64::from(self.work.files);
        let windows = (self.work.file_bytes / WINDOW_BYTES).max(1);
        let step = (windows / self.work.reads.div_ceil(files).max(1)).max(1);
        let window = number / files * step % windows;
        let offset = window * WINDOW_BYTES + self.random.below(WINDOW_BYTES / bytes) * bytes;
        Piece { file: (number % files) as u32, offset, bytes }
    }
}

/// The reads of one lane, and the check of their bytes.
#[derive(Debug)]
struct Tally {
    latency: Latency,
    bytes: u64,
    file_set: FileSet,
    page: Vec<u8>,
}

impl Tally {
    fn new(work: &Work) -> anyhow::Result<Self> {
        Ok(Self { latency: Latency::new()?, bytes: 0, file_set: work.file_set(), page: vec![0; PAGE_BYTES] })
    }

    /// Counts a piece that was read in `time`, and compares every byte with those written.
    ///
    /// # Errors
    /// A byte is another.
    fn read(&mut self, time: Duration, piece: Piece, found: &[u8]) -> anyhow::Result<()> {
        self.latency.record(time);
        self.bytes += piece.bytes;
        let contents = self.file_set.contents(piece.file);
        let page_bytes = PAGE_BYTES as u64;
        let mut is_right = found.len() as u64 == piece.bytes;
        let (mut at, mut rest) = (piece.offset, found);
        while is_right && !rest.is_empty() {
            let page = at / page_bytes * page_bytes;
            contents.fill(page, &mut self.page);
            let expected = &self.page[(at - page) as usize..];
            let length = expected.len().min(rest.len());
            is_right = expected[..length] == rest[..length];
            (at, rest) = (at + length as u64, &rest[length..]);
        }
        anyhow::ensure!(
            is_right,
            "the {} bytes at offset {} of file {} are not those that were written there; the storage below the file or \
             the way it was read is faulty",
            piece.bytes,
            piece.offset,
            piece.file
        );
        Ok(())
    }
}

fn buffered(job: &Job, work: &Work) -> anyhow::Result<(Vec<Tally>, Cost)> {
    let open = |file| {
        let file = File::open(FileSet::path(&job.path, file))?;
        if job.row == "buffered-random-advice" {
            fadvise(&file, 0, None, Advice::Random)?;
        }
        Ok(file)
    };
    let files = (0..work.files).map(open).collect::<anyhow::Result<Vec<File>>>()?;
    on_threads(work.in_flight, job, |lane, deadline| {
        let (mut pieces, mut tally) = (Pieces::new(work, job.seed, lane), Tally::new(work)?);
        let mut buffer = vec![0; work.wanted_bytes_max as usize];
        for _ in 0..share(work.reads, lane, work.in_flight) {
            let (piece, begun) = (pieces.next_piece(), Instant::now());
            if begun >= deadline {
                break;
            }
            let memory = &mut buffer[..piece.bytes as usize];
            if job.row == READ_AHEAD {
                let window = piece.offset / WINDOW_BYTES * WINDOW_BYTES;
                fadvise(
                    &files[piece.file as usize],
                    window,
                    NonZeroU64::new(WINDOW_BYTES),
                    Advice::WillNeed,
                )?;
            }
            files[piece.file as usize].read_exact_at(memory, piece.offset)?;
            tally.read(begun.elapsed(), piece, memory)?;
        }
        Ok(tally)
    })
}

/// Opens all files with an engine, before the time of the sample starts.
fn with_files(
    job: &Job,
    work: &Work,
    read: impl FnOnce(Arc<Vec<forebay::File>>) -> anyhow::Result<(Vec<Tally>, Cost)>,
) -> anyhow::Result<(Vec<Tally>, Cost)> {
    with_engine(Config::new().shards(1), |engine| {
        let open = |file| Ok(engine.open(FileSet::path(&job.path, file), Open::read()).wait()?);
        read(Arc::new((0..work.files).map(open).collect::<anyhow::Result<_>>()?))
    })
}

fn direct(job: &Job) -> anyhow::Result<(Vec<Tally>, Cost)> {
    let shared = shared::<Work>(job)?;
    let lanes = shared.1.in_flight;
    with_files(job, &shared.1, |files| {
        on_tokio(lanes, Some(processors().min(lanes)), job, |lane, deadline| {
            let (shared, files) = (Arc::clone(&shared), Arc::clone(&files));
            async move {
                let (job, work) = &*shared;
                let (mut pieces, mut tally) = (Pieces::new(work, job.seed, lane), Tally::new(work)?);
                for _ in 0..share(work.reads, lane, lanes) {
                    let (piece, begun) = (pieces.next_piece(), Instant::now());
                    if begun >= deadline {
                        break;
                    }
                    let file = &files[piece.file as usize];
                    let block = file.read(piece.offset..piece.offset + piece.bytes).await?;
                    tally.read(begun.elapsed(), piece, &block)?;
                }
                Ok(tally)
            }
        })
    })
}

/// Reads batches of the pieces that the lanes of the other rows read, in turn. The lanes of this row share the calls of a
/// batch.
fn read_many(job: &Job) -> anyhow::Result<(Vec<Tally>, Cost)> {
    let shared = shared::<Work>(job)?;
    let work = &shared.1;
    let lanes = work.in_flight;
    let mut wanted = Vec::with_capacity(work.reads as usize);
    let mut all: Vec<Pieces<'_>> = (0..lanes).map(|lane| Pieces::new(work, job.seed, lane)).collect();
    for turn in 0..share(work.reads, 0, lanes) {
        let own = all.iter_mut().enumerate().filter(|(lane, _)| turn < share(work.reads, *lane, lanes));
        wanted.extend(own.map(|(_, pieces)| pieces.next_piece()));
    }
    let batches: Vec<Vec<Vec<Piece>>> = wanted
        .chunks(BATCH)
        .map(|batch| {
            let mut of_file: BTreeMap<u32, Vec<Piece>> = BTreeMap::new();
            for piece in batch {
                of_file.entry(piece.file).or_default().push(*piece);
            }
            of_file.into_values().collect()
        })
        .collect();
    let batches = Arc::new(batches);
    with_files(job, work, |files| {
        on_tokio(1, Some(processors().min(lanes)), job, |_, deadline| {
            let (shared, files, batches) = (Arc::clone(&shared), Arc::clone(&files), Arc::clone(&batches));
            async move {
                let mut tally = Tally::new(&shared.1)?;
                for calls in batches.iter() {
                    if Instant::now() >= deadline {
                        break;
                    }
                    let tasks: Vec<_> = (0..lanes.min(calls.len()))
                        .map(|lane| {
                            let mine: Vec<_> = calls.iter().skip(lane).step_by(lanes).cloned().collect();
                            tokio::spawn(together(Arc::clone(&files), Arc::clone(&shared), mine))
                        })
                        .collect();
                    for task in tasks {
                        let part = task.await??;
                        tally.latency.add(&part.latency)?;
                        tally.bytes += part.bytes;
                    }
                }
                Ok(tally)
            }
        })
    })
}

/// Makes one call for each group of pieces; the pieces of a group belong to one file.
async fn together(
    files: Arc<Vec<forebay::File>>,
    shared: Arc<(Job, Work)>,
    groups: Vec<Vec<Piece>>,
) -> anyhow::Result<Tally> {
    let mut tally = Tally::new(&shared.1)?;
    for group in groups {
        let Some(first) = group.first() else { continue };
        let ranges: Vec<_> = group.iter().map(|piece| piece.offset..piece.offset + piece.bytes).collect();
        let begun = Instant::now();
        let depth = shared.1.in_flight as u32;
        let blocks = files[first.file as usize].read_many(ranges).depth(depth).await?;
        let time = begun.elapsed();
        for (piece, block) in group.into_iter().zip(blocks) {
            tally.read(time, piece, &block?)?;
        }
    }
    Ok(tally)
}

/// Returns the metric to use: the kernel's account of the process if available, otherwise that of the device, whose counters
/// include the reads of all processes.
fn counted(row: &Row) -> Option<&'static str> {
    [metric::PROCESS_BYTES_PER_BYTE, metric::DEVICE_BYTES_PER_BYTE]
        .into_iter()
        .find(|metric| row.metrics.get(metric).is_some())
}

fn per_byte(table: &Table) -> Option<String> {
    let value = |row: &Row| row.metrics.get(counted(row)?);
    let known: Vec<(&Row, f64)> = table.rows.iter().filter_map(|row| Some((row, value(row)?))).collect();
    let (most, worst) = *known.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let (least, best) = *known.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let files = number(table.number("files")?);
    let is_clear = counted(most) == counted(least)
        && counted(most).and_then(|metric| difference(most, least, metric)) != Some(Difference::Equal);
    Some(if is_clear {
        format!(
            "{files} file(s): the device reads {} bytes for each wanted with `{}`, {} with `{}`{}",
            number(worst),
            most.name,
            number(best),
            least.name,
            once(&[most])
        )
    } else {
        format!(
            "{files} file(s): the device reads {} bytes for each wanted; no way reads clearly more{}",
            number(worst),
            once(&[most])
        )
    })
}

fn many_files(few: &Table, many: &Table) -> Option<String> {
    let (first, last) = (few.number("files").map(number)?, many.number("files").map(number)?);
    if first == last {
        return None;
    }
    let (before, after) = (few.row("buffered")?, many.row("buffered")?);
    let metric = counted(before).filter(|metric| counted(after) == Some(metric))?;
    let read = compared(after, before, metric, ["as much", "less", "no more"])?;
    let speed = few.row("direct").zip(many.row("direct")).and_then(|(before, after)| {
        Some(match difference(after, before, metric::IOPS)? {
            Difference::Less(times) => format!(", and direct reads are {} times slower", number(times)),
            _ => ", and direct reads are as fast".to_owned(),
        })
    });
    Some(format!(
        "the same data in {last} files instead of {first}: the page cache reads {read}{}{}",
        speed.unwrap_or_default(),
        once(&[after])
    ))
}

#[cfg(test)]
mod tests {
    use super::super::lanes::{test_context, test_job, test_row, test_table};
    use super::*;

    fn files(count: u32) -> Files {
        let context = test_context();
        let scratch = ScratchDir::find(&context, SPEC.name).expect("a directory on a disk");
        let file_set = FileSet { files: count, file_bytes: 64 << 10, seed: 3 };
        Files::make(&scratch, file_set, &context).expect("space for 640 KiB")
    }

    fn job(files: &Files, way: &str, in_flight: usize) -> Job {
        let mut all = parameters(json!({
            "wanted_bytes_min": 512, "wanted_bytes_max": 4096, "reads": 101, "in_flight": in_flight,
        }));
        all.extend(files.file_set.parameters());
        test_job(SPEC.name, way, files.directory.path(), all.into(), 5)
    }

    #[test]
    fn every_way_reads_the_same_pieces() {
        for count in [1, 10] {
            let files = files(count);
            for in_flight in [1, 7] {
                let read = |way: &Way| {
                    let outcome = Amplification
                        .sample(&job(&files, way.name, in_flight))
                        .unwrap_or_else(|error| panic!("{} {count}: {error:#}", way.name));
                    assert_eq!((outcome.operations, outcome.seconds > 0.0), (101, true), "{}", way.name);
                    outcome.bytes
                };
                let bytes: Vec<u64> = SPEC.ways.iter().map(read).collect();
                assert!(bytes.iter().all(|one| *one == bytes[0] && *one >= 101 * 512), "{bytes:?}");
            }
        }
    }

    #[test]
    fn every_way_notices_wrong_bytes_and_ends_in_time() {
        let files = files(2);
        for way in SPEC.ways {
            let mut late = job(&files, way.name, 2);
            late.seconds = 0.0;
            assert_eq!(Amplification.sample(&late).expect("nothing to do").operations, 0, "{}", way.name);
            let mut wrong = job(&files, way.name, 3);
            wrong.work["file_seed"] = 4.into();
            let error = Amplification.sample(&wrong).expect_err("other contents");
            assert!(format!("{error:#}").contains("not those that were written"), "{}: {error:#}", way.name);
        }
    }

    #[test]
    fn pieces_stay_in_their_files_and_reach_all_of_them() {
        let work = Work {
            files: 3,
            file_bytes: 16 << 10,
            file_seed: 7,
            wanted_bytes_min: 512,
            wanted_bytes_max: 4096,
            reads: 1,
            in_flight: 1,
            piece_bytes: None,
        };
        let mut pieces = Pieces::new(&work, 3, 0);
        let all: Vec<Piece> = (0..3000).map(|_| pieces.next_piece()).collect();
        let inside =
            |piece: &Piece| (512..=4096).contains(&piece.bytes) && piece.offset + piece.bytes <= 16 << 10;
        assert!(all.iter().all(inside));
        assert!((0..3).all(|file| all.iter().any(|piece| piece.file == file)));
        assert!(all.iter().any(|piece| piece.offset % 512 != 0));
        assert_ne!(Pieces::new(&work, 3, 1).next_piece(), all[0]);
    }

    /// The case of a text: the read for 512 B is a page, or a whole read-ahead, only if no other piece is in it.
    #[test]
    fn pieces_of_one_length_share_no_read_ahead() {
        let work = Work {
            files: 2,
            file_bytes: 80 * WINDOW_BYTES,
            file_seed: 7,
            wanted_bytes_min: 512,
            wanted_bytes_max: 512,
            reads: 128,
            in_flight: 16,
            piece_bytes: Some(512),
        };
        let mut seen = std::collections::BTreeSet::new();
        for lane in 0..16 {
            let mut pieces = Pieces::new(&work, 3, lane);
            for _ in 0..8 {
                let Piece { file, offset, bytes } = pieces.next_piece();
                assert!(bytes == 512 && offset.is_multiple_of(512) && offset + bytes <= work.file_bytes);
                assert!(seen.insert((file, offset / WINDOW_BYTES)), "{seen:?}");
            }
        }
        assert_eq!(seen.iter().filter(|(file, _)| *file == 0).count(), 64);
    }

    #[test]
    fn every_wrong_byte_of_a_piece_is_noticed() {
        let set = FileSet { files: 3, file_bytes: 16 << 10, seed: 7 };
        let mut memory = vec![0; 16 << 10];
        set.contents(2).fill(0, &mut memory);
        let piece = Piece { file: 2, offset: 4000, bytes: 4300 };
        let mut found = memory[4000..8300].to_vec();
        let latency = Latency::new().expect("a few kilobytes");
        let mut tally = Tally { latency, bytes: 0, file_set: set, page: vec![0; PAGE_BYTES] };
        let mut check = |piece, found: &[u8]| tally.read(Duration::ZERO, piece, found);
        check(piece, &found).expect("as it was written");
        assert!(check(Piece { file: 1, ..piece }, &found).is_err());
        assert!(check(piece, &found[1..]).is_err());
        for at in [0, 100, 4299] {
            found[at] ^= 1;
            let error = check(piece, &found).expect_err("one byte is wrong");
            assert!(error.to_string().contains("offset 4000 of file 2"), "{error}");
            found[at] ^= 1;
        }
    }

    fn row(name: &str, per_byte: f64, rate: f64) -> Row {
        // Another process reads, too.
        let by_all = (metric::DEVICE_BYTES_PER_BYTE, 100.0);
        let figures = [(metric::PROCESS_BYTES_PER_BYTE, per_byte), (metric::IOPS, rate), by_all];
        test_row(name, &[0.99, 1.0, 1.01], &figures)
    }

    fn table(files: u32, rows: Vec<Row>) -> Table {
        test_table(SPEC.name, json!({ "files": files }), rows)
    }

    #[test]
    fn read_ahead_in_many_files_is_found() {
        let few = table(1, vec![row("buffered", 3.0, 9e3), row("direct", 1.2, 20e3)]);
        let many = table(1000, vec![row("buffered", 12.0, 3e3), row("direct", 1.2, 20e3)]);
        let sentences = Amplification.verdicts(&[&many, &few]);
        assert_eq!(
            sentences,
            [
                "1 file(s): the device reads 3 bytes for each wanted with `buffered`, 1.20 with `direct`",
                "1,000 file(s): the device reads 12 bytes for each wanted with `buffered`, 1.20 with `direct`",
                "the same data in 1,000 files instead of 1: the page cache reads 4 times as much, and direct reads are as fast",
            ]
        );
    }

    #[test]
    fn many_files_are_blamed_only_where_something_differs() {
        let rows = || vec![row("buffered", 1.2, 20e3), row("direct", 1.2, 20e3)];
        let sentences = Amplification.verdicts(&[&table(1, rows()), &table(50, rows())]);
        assert!(sentences[0].contains("no way reads clearly more"), "{sentences:?}");
        assert!(sentences[2].ends_with("reads no more, and direct reads are as fast"), "{sentences:?}");
        let slow = table(50, vec![row("buffered", 1.2, 9e3), row("direct", 1.2, 5e3)]);
        assert!(
            Amplification.verdicts(&[&table(1, rows()), &slow])[2]
                .contains("direct reads are 4 times slower")
        );
        assert!(Amplification.verdicts(&[&table(1, vec![Row::skipped("buffered", "no")])]).is_empty());
    }
}
