//! `measure samples`: batches of random samples from the large files of a training set, at maximum speed and at a rate, with the
//! share of processors and device that the rate leaves to others.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use forebay::{Config, Engine, Open};
use rustix::mm::Advice;

use crate::aligned::Map;
use crate::backend::sleep_until;
use crate::file_set::{FileSet, Files};
use crate::gates::processors;
use crate::pattern::Checker;
use crate::prelude::*;

#[derive(Debug)]
pub(crate) struct Samples;

static SPEC: Spec = Spec {
    name: "samples",
    about: "Read batches of random samples from large files, as a training does, and see what is left for others",
    quick_seconds: 2,
    full_seconds: 60,
    needs_directory: true,
    options: &[
        Opt::bytes("size", "Bytes of the four files together", 16 << 20, u64::MAX).or("1GiB").quick("128MiB"),
        Opt::count("cached", "Files of the four that memory holds before a sample", 4).zero_too().or("1"),
        Opt::count("batch", "Samples of a batch", 1024).or("16"),
        Opt::count("loaders", "Threads that read a batch each", 256).or("4"),
        Opt::count("rate", "Samples a second of the second table", 10_000_000).or("2000"),
        Opt::seconds("2", "0.2"),
        Opt::repeats("3").quick("1"),
    ],
    ways: &[
        Way::cached("pread", "pread of one sample after the other in each loader, through the page cache"),
        Way::cached("mmap", "a map of each file with madvise(RANDOM), from which samples are copied"),
        Way::direct("read-many", "Forebay's Engine::read_many of a batch in each loader, O_DIRECT"),
        Way::cached("read-many-adaptive", "the same, but bytes that the page cache has come from it"),
    ],
    columns: &[
        column(metric::IOPS, "samples/s", 1.0, "samples that the loaders got in a second"),
        columns::MB_PER_S,
        column(metric::UNANSWERED, "missed", 1.0, "samples that were due and not begun when the time ended"),
        column(metric::P50_US, "batch p50 µs", 1.0, "half of the batches took no longer, from when due"),
        column(metric::P99_US, "batch p99", 1.0, "99 of 100 batches, in µs"),
        column(metric::CPU_US_PER_IO, "CPU µs/sample", 1.0, "processor time of one sample, all threads"),
        column(metric::CPU_SHARE, "CPU %", 0.01, "that time as a share of all processors"),
        columns::PROCESS_BYTES_PER_BYTE,
    ],
    compared: metric::IOPS,
    charts: &[metric::IOPS],
    axis: Axis::new("rate_per_s", "samples a second"),
    role: Role::Other,
    gains: Vec::new,
};

/// Files of the training set.
const FILES: u32 = 4;
/// The shortest and the longest sample: from small texts to photographs.
const BYTES: [u64; 2] = [4 << 10, 150 << 10];
/// Share of the samples that were due from which a row that missed them falls behind.
const BEHIND: f64 = 0.03;

impl Experiment for Samples {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn plan<'a>(&self, options: &Values, context: &'a Context) -> anyhow::Result<Box<dyn Plan + 'a>> {
        let file_bytes = (options.count("size") / u64::from(FILES)) & !4095;
        let scratch = ScratchDir::find(context, SPEC.name)?;
        let set = FileSet { files: FILES, file_bytes, seed: context.seed };
        let files = Files::make(&scratch, set, context)?;
        let mut common = files.file_set.parameters();
        common.extend(parameters(json!({
            "batch": options.count("batch"), "loaders": options.count("loaders"), "cached_files": options.count("cached"),
        })));
        Ok(Box::new(Run { scratch, files, common, rate: options.count("rate"), is_cold: Cell::new(true) }))
    }

    fn sample(&self, job: &Job) -> anyhow::Result<Outcome> {
        let work: Work = job.work()?;
        let paths = (0..FILES).map(|file| FileSet::path(&job.path, file));
        let open = || paths.clone().map(File::open).collect::<io::Result<Vec<_>>>();
        match job.row.as_str() {
            "pread" => load(job, &work, &Source::Files(open()?)),
            "mmap" => {
                let map = |file: &File| Map::new(file, work.set.file_bytes, Advice::Random);
                load(job, &work, &Source::Maps(open()?.iter().map(map).collect::<anyhow::Result<_>>()?))
            }
            row => with_engine(Config::new().shards(1), |engine| {
                let is_adaptive = row == "read-many-adaptive";
                let options = || if is_adaptive { Open::read().adaptive() } else { Open::read() };
                let files = paths.map(|path| engine.open(path, options()).wait());
                load(job, &work, &Source::Forebay(engine, files.collect::<Result<_, _>>()?))
            }),
        }
    }

    fn title(&self, table: &Table) -> (String, String) {
        let heading = format!("Random samples of {} to {}", bytes(BYTES[0]), bytes(BYTES[1]));
        let rate = match table.number("rate_per_s") {
            Some(rate) if rate > 0.0 => format!("{} a second", number(rate)),
            _ => "as fast as they come".to_owned(),
        };
        (format!("{heading}, {rate}"), heading)
    }

    fn verdicts(&self, tables: &[&Table]) -> Vec<String> {
        let rate = |table: &Table| table.number("rate_per_s").unwrap_or_default();
        // Rows through the page cache get more than the device delivers.
        let moved = |row: &Row| {
            let per_byte = row.metrics.get(metric::PROCESS_BYTES_PER_BYTE)?;
            Some(row.metrics.get(metric::MB_PER_S)? * per_byte)
        };
        let full = tables.iter().filter(|table| rate(table) == 0.0).flat_map(|table| &table.rows);
        let most = full.filter_map(moved).max_by(f64::total_cmp);
        let sentence = |table: &Table, row: &Row| {
            let figure = |name: &str| row.metrics.get(name);
            let (wanted, name, hint) = (rate(table), &row.name, once(&[row]));
            if figure(metric::UNANSWERED)? > BEHIND * wanted * figure(metric::SECONDS)? {
                let [wanted, got] = [wanted, figure(metric::IOPS)?].map(number);
                return Some(format!(
                    "`{name}` gets {got} of {wanted} samples a second: nothing is left{hint}"
                ));
            }
            let left = |share: f64| number(((1.0 - share) * 100.0).round().max(0.0));
            let device = moved(row).zip(most).map(|(moved, most)| left(moved / most));
            let device =
                device.map_or_else(String::new, |left| format!(" and {left} % of the device's most"));
            let (wanted, processors) = (number(wanted), left(figure(metric::CPU_SHARE)?));
            Some(format!(
                "{wanted} samples/s by `{name}` leave {processors} % of the processors{device}{hint}"
            ))
        };
        let at_a_rate = tables.iter().filter(|table| rate(table) > 0.0);
        at_a_rate.flat_map(|table| table.rows.iter().filter_map(|row| sentence(table, row))).collect()
    }
}

/// One run: a table at maximum speed, and one at a rate.
#[derive(Debug)]
struct Run {
    scratch: ScratchDir,
    files: Files,
    common: Parameters,
    rate: u64,
    is_cold: Cell<bool>,
}

impl Plan for Run {
    fn place(&self) -> Place {
        self.scratch.place_of(&self.files.preconditions)
    }

    fn settings(&self) -> Vec<Parameters> {
        let of = |rate: u64| {
            let mut setting = self.common.clone();
            setting.insert("rate_per_s".to_owned(), rate.into());
            setting
        };
        vec![of(0), of(self.rate)]
    }

    fn start(&mut self, turn: &Turn<'_>, mut job: Job) -> anyhow::Result<Start> {
        self.is_cold.set(self.is_cold.get() & self.files.evict()?);
        job.path = self.files.directory.path().to_owned();
        for file in 0..turn.count("cached_files") as u32 {
            io::copy(&mut File::open(FileSet::path(&job.path, file))?, &mut io::sink())?;
        }
        Ok(job.into())
    }

    fn claim(&self, turn: &Turn<'_>, outcome: &Outcome) -> Claim {
        let is_direct = turn.way.name == "read-many";
        Claim {
            read_bytes: is_direct.then_some(outcome.bytes),
            workers: Some(turn.count("loaders") + usize::from(turn.way.name.starts_with("read-many"))),
            ..Claim::default()
        }
    }

    fn cache(&self, setting: &Parameters, way: &Way) -> Option<CacheState> {
        Some(cache_of(way, self.is_cold.get() && setting["cached_files"] == 0))
    }

    fn method(&self, setting: &Parameters, seconds: f64) -> String {
        let count = |name: &str| setting.get(name).and_then(Value::as_u64).unwrap_or_default();
        let when = match count("rate_per_s") {
            0 => "each loader takes the next batch as the last one is there".to_owned(),
            rate => format!(
                "batches are due at even times, {rate} samples a second, and their wait counts from there"
            ),
        };
        format!(
            "{FILES} files of data that do not compress were written through. Before each sample they are evicted from the page \
             cache, and {} of them read into it again. Each sample is a fresh process in which {} threads, the loaders, read \
             batches of {} samples. These are at any byte of any file, {} to {} long, each octave of lengths equally likely. \
             For {seconds:.2} s {when}. The first word of each page is compared. Processor time is user and system time of all \
             threads, as a share of all processors. Rows of a repeat want the same samples; rows take turns within a repeat, \
             and a figure is the median of the repeats.",
            count("cached_files"),
            count("loaders"),
            count("batch"),
            bytes(BYTES[0]),
            bytes(BYTES[1]),
        )
    }

    fn notes(&self, _: &Parameters) -> Vec<String> {
        let note = "rows of a repeat read the same samples: a device, or the host of a virtual machine, that caches serves them \
                    from its memory";
        let warm = (!self.is_cold.get()).then_some(PARTLY_WARM);
        [note].into_iter().chain(warm).map(str::to_owned).collect()
    }
}

/// The parameters that a sample needs.
#[derive(Debug, Deserialize)]
struct Work {
    #[serde(flatten)]
    set: FileSet,
    batch: usize,
    loaders: usize,
    rate_per_s: f64,
}

impl Work {
    /// Returns the next sample of a random sequence: its file, offset and length.
    fn next(&self, random: &mut SplitMix) -> (u32, u64, u64) {
        let [least, most] = BYTES.map(|bytes| bytes as f64);
        let part = random.below(1 << 32) as f64 / (1_u64 << 32) as f64;
        let bytes = (least * (most / least).powf(part)) as u64;
        (random.below(u64::from(self.set.files)) as u32, random.below(self.set.file_bytes - bytes + 1), bytes)
    }
}

/// The open files.
enum Source<'e> {
    Files(Vec<File>),
    Maps(Vec<Map>),
    Forebay(&'e Engine, Vec<forebay::File>),
}

impl Source<'_> {
    /// Reads a batch and passes each sample to `take`. `memory` has space for all of them.
    ///
    /// # Errors
    /// A read fails, or `take`.
    fn read(
        &self,
        batch: &[(u32, u64, u64)],
        mut memory: &mut [u8],
        mut take: impl FnMut(u32, u64, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if let Self::Forebay(engine, files) = self {
            let ranges =
                batch.iter().map(|(file, offset, bytes)| (&files[*file as usize], *offset..offset + bytes));
            let blocks = engine.read_many(ranges).wait()?;
            return batch.iter().zip(blocks).try_for_each(|((file, at, _), block)| take(*file, *at, &block?));
        }
        for (file, offset, bytes) in batch {
            let (own, rest) = memory.split_at_mut(*bytes as usize);
            match self {
                Self::Files(files) => files[*file as usize].read_exact_at(own, *offset)?,
                Self::Maps(maps) => maps[*file as usize].copy(*offset, own),
                Self::Forebay(..) => {}
            }
            take(*file, *offset, own)?;
            memory = rest;
        }
        Ok(())
    }
}

/// Reads batches in all loaders until the time ends.
fn load(job: &Job, work: &Work, source: &Source<'_>) -> anyhow::Result<Outcome> {
    // Of each loader, between two batches.
    let samples = (work.batch * work.loaders) as f64;
    let turn = if work.rate_per_s > 0.0 { samples / work.rate_per_s } else { 0.0 };
    let turn = Duration::from_secs_f64(turn);
    let (loaded, cost) = on_threads(work.loaders, job, |loader, deadline| {
        let mut random = SplitMix::new(job.seed ^ SplitMix::new(loader as u64 + 1).next_u64());
        let mut memory = vec![0; work.batch * BYTES[1] as usize];
        let (mut latency, mut bytes) = (Latency::new()?, 0);
        let mut due = deadline - Duration::from_secs_f64(job.seconds);
        due += turn.mul_f64(loader as f64 / work.loaders as f64);
        loop {
            sleep_until(due.min(deadline));
            let now = Instant::now();
            // A late start has at least one batch.
            if now >= deadline && (due >= deadline || latency.count() > 0) {
                let late = deadline.saturating_duration_since(due);
                let missed = if turn.is_zero() { 0.0 } else { late.div_duration_f64(turn).ceil() };
                return Ok((latency, bytes, missed));
            }
            let begun = if turn.is_zero() { now } else { due };
            let batch: Vec<_> = (0..work.batch).map(|_| work.next(&mut random)).collect();
            source.read(&batch, &mut memory, |file, offset, found| {
                bytes += found.len() as u64;
                Checker::new(Some(work.set.contents(file))).check(offset, found)
            })?;
            latency.record(begun.elapsed());
            due += turn;
        }
    })?;
    let (mut latency, mut bytes, mut missed) = (Latency::new()?, 0, 0.0);
    for (own, own_bytes, own_missed) in &loaded {
        latency.add(own)?;
        (bytes, missed) = (bytes + own_bytes, missed + own_missed);
    }
    let share = cost.cpu_seconds / (cost.seconds * processors() as f64);
    let samples = latency.count() * work.batch as u64;
    let outcome = Outcome::new(cost, samples, bytes, latency).figure(metric::CPU_SHARE, share);
    Ok(outcome.figure(metric::UNANSWERED, missed * work.batch as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Cleanup;
    use crate::lanes::{test_job, test_row, test_table};

    fn work(rate_per_s: f64) -> Value {
        json!({
            "files": FILES, "file_bytes": 1 << 20, "file_seed": 5, "batch": 4, "loaders": 2, "rate_per_s": rate_per_s,
        })
    }

    #[test]
    fn lengths_are_spread_evenly_over_their_octaves() {
        let work: Work = serde_json::from_value(work(0.0)).expect("its own parameters");
        let mut random = SplitMix::new(3);
        let all: Vec<_> = (0..4000).map(|_| work.next(&mut random)).collect();
        assert!(all.iter().all(|(file, at, bytes)| {
            *file < FILES && (4096..=153_600).contains(bytes) && at + bytes <= 1 << 20
        }));
        // Half of them are shorter than the geometric mean of the ends.
        let short = all.iter().filter(|(.., bytes)| *bytes < 25_082).count();
        assert!((1800..2200).contains(&short), "{short}");
    }

    #[test]
    fn every_row_reads_and_compares_and_a_rate_is_kept() {
        let cleanup = Cleanup::default();
        let directory = cleanup
            .temp_directory(std::path::Path::new(env!("CARGO_MANIFEST_DIR")), "samples")
            .expect("writable");
        let set = FileSet { files: FILES, file_bytes: 1 << 20, seed: 5 };
        for file in 0..FILES {
            let mut memory = vec![0; 1 << 20];
            set.contents(file).fill(0, &mut memory);
            std::fs::write(FileSet::path(directory.path(), file), memory).expect("space for a few MiB");
        }
        let sample = |row: &str, rate: f64| {
            let mut job = test_job(SPEC.name, row, directory.path(), work(rate), 9);
            job.seconds = 0.1;
            Samples.sample(&job)
        };
        for way in SPEC.ways {
            let fast = sample(way.name, 0.0).expect("it reads");
            assert!(fast.operations >= 8 && fast.bytes > fast.operations * 4096, "{}: {fast:?}", way.name);
            assert!(fast.figures.get(metric::CPU_SHARE).is_some());
            let paced = sample(way.name, 400.0).expect("it reads");
            let missed = paced.figures.get(metric::UNANSWERED).expect("it counts them");
            assert_eq!(paced.operations as f64 + missed, 40.0, "{}", way.name);
        }
        std::fs::write(FileSet::path(directory.path(), 2), vec![0; 1 << 20]).expect("ours");
        assert!(sample("read-many", 0.0).is_err_and(|error| error.to_string().contains("faulty")));
    }

    #[test]
    fn the_room_left_is_that_of_processors_and_device() {
        let table = |rate: u64, rows: &[(&str, f64, f64, f64)]| {
            let row = |(name, got, mb, share): &(&str, f64, f64, f64)| {
                let figures = [
                    (metric::IOPS, *got),
                    (metric::MB_PER_S, *mb),
                    (metric::CPU_SHARE, *share),
                    (metric::PROCESS_BYTES_PER_BYTE, 1.0),
                    (metric::SECONDS, 1.0),
                    (metric::UNANSWERED, (rate as f64 - got).max(0.0)),
                ];
                test_row(name, &[1.0; 2], &figures)
            };
            test_table(SPEC.name, json!({ "rate_per_s": rate }), rows.iter().map(row).collect())
        };
        let full = table(0, &[("read-many", 20_000.0, 800.0, 0.5), ("pread", 10_000.0, 400.0, 0.9)]);
        let rate = table(2000, &[("read-many", 2000.0, 80.0, 0.07), ("pread", 1500.0, 60.0, 0.9)]);
        let sentences = Samples.verdicts(&[&full, &rate]);
        assert_eq!(
            sentences,
            [
                "2,000 samples/s by `read-many` leave 93 % of the processors and 90 % of the device's most",
                "`pread` gets 1,500 of 2,000 samples a second: nothing is left",
            ]
        );
        assert!(sentences.iter().all(|sentence| sentence.split_whitespace().count() <= 20));
    }
}
