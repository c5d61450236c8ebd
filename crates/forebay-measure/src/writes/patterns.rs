//! `measure patterns`: small writes at random places, and the strided records of several participants, until all of them
//! are durable. They are written as the program makes them, and after gathering.

use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use forebay::{Config, Durability, Open};
use forebay_collective::{Collective, Options, WriteCombiner};

use crate::aligned::AlignedBuffer;
use crate::backend::locked;
use crate::plan::check_memory;
use crate::prelude::*;
use crate::residency::evict;

#[derive(Debug)]
pub(crate) struct Patterns;

/// Bytes of a random piece.
const BLOCK_BYTES: u64 = 4096;
/// Bytes of a strided record: a plausible size for a checkpoint of one variable of a simulation, and a multiple of no page.
const RECORD_BYTES: u64 = 47_008;
/// The memory that a write combiner needs in addition to its pages, so that a whole range fits: requests in flight, and pages that
/// stay free.
const BESIDE_BYTES: u64 = 24 << 20;
/// The memory for strided records, which are in the order of the file, and the maximum memory of `collective`.
const STRIDED_MEMORY_BYTES: u64 = 64 << 20;
const COLLECTIVE_MEMORY_BYTES: u64 = 16 << 20;
/// I/O memory in addition to the memory for gathering.
const SPARE_BYTES: u64 = 16 << 20;
/// The seconds after which a child without a result is given up, in addition to those of `o-direct`.
const CHILD_SECONDS: f64 = 120.0;
/// Pieces of each participant that are checked afterwards, evenly spread.
const CHECKED_MAX: usize = 1024;
/// The number of locks for pages that two records share. With more pages than locks, several pages share one lock.
const LOCKS: usize = 1024;

static SPEC: Spec = Spec {
    name: "patterns",
    about: "Write small pieces at random and strided records, as they come and gathered in memory",
    quick_seconds: 3,
    full_seconds: 240,
    needs_directory: true,
    options: &[
        Opt::word(
            "pattern",
            "Pieces of 4 KiB at random, or records of 47,008 bytes in turn",
            &["random", "strided"],
        )
        .list()
        .or("random,strided"),
        Opt::bytes("size", "Bytes of random pieces; strided records are a quarter", 4 << 20, u64::MAX)
            .or("1GiB")
            .quick("64MiB"),
        Opt::count("parts", "Memory of `combine` for random pieces: the whole range divided by these", 64)
            .list()
            .or("1,2,4,8,16")
            .quick("1,4"),
        Opt::count("participants", "Threads that have the strided records in turn", 64)
            .list()
            .or("1,2,8")
            .quick("2"),
        Opt::time(
            "seconds",
            "The row `o-direct` begins no more writes after so many seconds",
            0.01,
            86_400.0,
        )
        .or("20")
        .quick("0.5"),
        Opt::repeats("3").quick("1"),
    ],
    ways: &[
        Way::cached("write-fsync", "pwrite of each piece into the page cache, one fsync at the end"),
        Way::direct(
            "o-direct",
            "pwrite with O_DIRECT of each piece, one fdatasync at the end; a record that is not aligned is \
             widened to whole pages, whose ends are read before, under a lock",
        ),
        Way::direct("combine", "one WriteCombiner of Forebay for all threads, one flush at the end"),
        Way::direct("collective", "Collective of Forebay, each thread a participant, one durable write"),
    ],
    columns: &[
        column(metric::TOTAL_MS, "ms until durable", 1.0, "from the first write until all is durable"),
        column(metric::MB_PER_S, "MB/s", 1.0, "millions of bytes that became durable in a second"),
        column(metric::DEVICE_REQUESTS, "device requests", 1.0, "writes of all processes that it completed"),
        column(metric::REQUEST_BYTES_MEAN, "KiB/request", 1024.0, "mean bytes of a write at the device"),
        columns::DEVICE_BYTES_PER_BYTE,
        columns::CPU_S_PER_GB,
    ],
    compared: metric::MB_PER_S,
    charts: &[metric::TOTAL_MS, metric::REQUEST_BYTES_MEAN],
    axis: Axis::new("memory_mib", "MiB of memory"),
    role: Role::Other,
    gains: Vec::new,
};

impl Experiment for Patterns {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn plan<'a>(&self, options: &Values, context: &'a Context) -> anyhow::Result<Box<dyn Plan + 'a>> {
        ScratchDir::find(context, SPEC.name)?;
        let bytes = options.count("size").next_multiple_of(1 << 20);
        // A sample has all bytes in memory, and `combine` gathers them in more.
        let least = options.counts("parts").into_iter().min().unwrap_or(1);
        let is_random = options.words("pattern").contains(&"random");
        let needed = if is_random { bytes.saturating_add(bytes / least) } else { bytes / 4 };
        check_memory("the data of a sample", needed, "give a smaller --size")?;
        let file = TestFile::prepare(context, bytes, None)?;
        let setting = |pattern: &str, bytes: u64, piece_bytes: u64, participants: u64, memory: u64| {
            let all = json!({
                "pattern": pattern, "participants": participants, "memory_mib": memory >> 20, "bytes": bytes,
                "piece_bytes": piece_bytes, "file_bytes": file.bytes,
            });
            (parameters(all), memory)
        };
        let mut settings = Vec::new();
        for pattern in options.words("pattern") {
            if pattern == "random" {
                settings.extend(options.counts("parts").into_iter().map(|part| {
                    let memory = if part == 1 { bytes + BESIDE_BYTES } else { bytes / part };
                    setting(pattern, bytes, BLOCK_BYTES, 1, memory)
                }));
            } else {
                let bytes = bytes / 4 / RECORD_BYTES * RECORD_BYTES;
                let of = |count| setting(pattern, bytes, RECORD_BYTES, count, STRIDED_MEMORY_BYTES);
                settings.extend(options.counts("participants").into_iter().map(of));
            }
        }
        Ok(Box::new(Run { file, settings, samples: 0 }))
    }

    fn sample(&self, job: &Job) -> anyhow::Result<Outcome> {
        let work: Work = job.work()?;
        let mut data = vec![0; work.bytes.next_multiple_of(4096) as usize];
        // The data differ from the earlier contents of the file, which were made from the seed of the run itself.
        Pattern::new(job.seed ^ CONTENTS).fill(0, &mut data);
        let data = Bytes::from(data);
        let pieces: Vec<_> = (0..work.participants).map(|mine| work.pieces(job.seed, mine)).collect();
        let stat =
            || job.device_stat.as_ref().and_then(|stat| parse_requests(&fs::read_to_string(stat).ok()?));
        let before = stat();
        let (done, cost) = match job.row.as_str() {
            "combine" | "collective" => gathered(job, &work, &pieces, &data)?,
            _ => blocking(job, &pieces, &data)?,
        };
        let requests = before.zip(stat()).map(|(before, after)| after.saturating_sub(before));
        verify(&job.path, &pieces, &data, &done)?;
        let count = done.iter().sum::<usize>() as u64;
        let outcome = Outcome::new(cost, count, count * work.piece_bytes, Latency::new()?);
        Ok(with_requests(outcome, requests))
    }

    fn title(&self, table: &Table) -> (String, String) {
        let heading = heading(table);
        (format!("{heading}, {} MiB of memory", shown(table, "memory_mib")), heading)
    }

    /// Returns a sentence for each number of participants, and for the most and the least memory.
    fn verdicts(&self, tables: &[&Table]) -> Vec<String> {
        let sentence = |table: &&Table| {
            let family: Vec<&Table> =
                tables.iter().copied().filter(|other| heading(other) == heading(table)).collect();
            let is_end = |end: Option<&&Table>| end.is_some_and(|end| std::ptr::eq(*end, *table));
            (is_end(family.first()) || is_end(family.last())).then(|| compare(table, &family))?
        };
        tables.iter().filter_map(sentence).collect()
    }
}

/// One run: a file, and the parameters of each table with the memory for gathering.
#[derive(Debug)]
struct Run {
    file: TestFile,
    settings: Vec<(Parameters, u64)>,
    samples: u64,
}

impl Plan for Run {
    fn place(&self) -> Place {
        self.file.place()
    }

    fn settings(&self) -> Vec<Parameters> {
        self.settings.iter().map(|(setting, _)| setting.clone()).collect()
    }

    fn has(&self, setting: &Parameters, way: &Way) -> bool {
        let same = |other: &Parameters, name: &str| other.get(name) == setting.get(name);
        match way.name {
            "combine" => true,
            "collective" => text(setting, "pattern") == "strided",
            // They have no memory of their own, and are not measured again for every size of it.
            _ => {
                let mut alike = self.settings.iter().map(|(other, _)| other);
                let first = alike.find(|other| same(other, "pattern") && same(other, "participants"));
                first.is_some_and(|first| same(first, "memory_mib"))
            }
        }
    }

    fn start(&mut self, turn: &Turn<'_>, mut job: Job) -> anyhow::Result<Start> {
        // No row finds the pages of another one in memory, or its own data in the file.
        evict(&self.file.handle)?;
        self.samples += 1;
        job.seed ^= self.samples << 8;
        job.work["memory_bytes"] = self.settings[turn.setting].1.into();
        job.seconds_max = turn.seconds + CHILD_SECONDS;
        Ok(job.into())
    }

    fn claim(&self, turn: &Turn<'_>, outcome: &Outcome) -> Claim {
        let is_forebay = matches!(turn.way.name, "combine" | "collective");
        Claim {
            written_bytes: Some(outcome.bytes),
            workers: Some(turn.count("participants") + usize::from(is_forebay)),
            ..Claim::default()
        }
    }

    fn method(&self, setting: &Parameters, seconds: f64) -> String {
        let pieces = match text(setting, "pattern") {
            "random" => {
                "blocks of 4 KiB, each of the range once, in random order, from one thread".to_owned()
            }
            _ => format!(
                "adjacent records of {RECORD_BYTES} bytes, which threads, the participants, have in turn"
            ),
        };
        format!(
            "The file is written through with data that do not compress before, so no write allocates. Each sample is a \
             fresh process that has all bytes in memory, the file open and memory for gathering before the time begins; it \
             writes {pieces}, and the time ends when all of it is durable. `o-direct` begins no more writes after \
             {seconds:.1} s, so where it could not write all compare MB/s. Device requests and bytes are the block device's \
             counters, for all processes. Pieces are read back and compared. Rows take turns within a repeat, and a figure \
             is the median of the repeats."
        )
    }
}

/// Makes the seed of the contents from that of the sample.
const CONTENTS: u64 = 0x5eed_0f77_0000_0002;

/// The parameters that a sample needs.
#[derive(Debug, Deserialize)]
struct Work {
    pattern: String,
    /// Bytes of all pieces together; the file is at least as long, and was written through.
    bytes: u64,
    piece_bytes: u64,
    participants: usize,
    /// Memory for gathering.
    memory_bytes: u64,
}

impl Work {
    /// Returns the pieces of participant number `participant`, in its order.
    fn pieces(&self, seed: u64, participant: usize) -> Vec<Range<u64>> {
        let len = self.piece_bytes;
        let mut numbers: Vec<u64> = (0..self.bytes / len).collect();
        if self.pattern == "random" {
            SplitMix::new(seed).shuffle(&mut numbers);
        }
        let mine = numbers.into_iter().skip(participant).step_by(self.participants);
        mine.map(|number| number * len..(number + 1) * len).collect()
    }
}

/// Returns the bytes of a piece; their place in `data` is that in the file.
fn of<'d>(piece: &Range<u64>, data: &'d [u8]) -> &'d [u8] {
    &data[piece.start as usize..piece.end as usize]
}

/// Writes in one thread for each participant; the last one that ends makes all of it durable. Returns how many pieces of
/// each are written.
fn write(
    job: &Job,
    participants: usize,
    lane: impl Fn(usize, Instant) -> anyhow::Result<usize> + Sync,
    durable: impl Fn() -> anyhow::Result<()> + Sync,
) -> anyhow::Result<(Vec<usize>, Cost)> {
    let left = AtomicUsize::new(participants);
    on_threads(participants, job, |number, deadline| {
        let done = lane(number, deadline)?;
        if left.fetch_sub(1, Ordering::AcqRel) == 1 {
            durable()?;
        }
        Ok(done)
    })
}

fn blocking(job: &Job, pieces: &[Vec<Range<u64>>], data: &[u8]) -> anyhow::Result<(Vec<usize>, Cost)> {
    let is_direct = job.row == "o-direct";
    let flags = if is_direct { libc::O_DIRECT } else { 0 };
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&job.path)?;
    let locks: Vec<Mutex<()>> = (0..LOCKS).map(|_| Mutex::new(())).collect();
    let lane = |participant: usize, deadline| {
        let pieces = &pieces[participant];
        if is_direct {
            return direct(&file, pieces, data, &locks, deadline);
        }
        pieces.iter().try_for_each(|piece| file.write_all_at(of(piece, data), piece.start))?;
        Ok(pieces.len())
    };
    write(job, pieces.len(), lane, || Ok(if is_direct { file.sync_data() } else { file.sync_all() }?))
}

fn direct(
    file: &File,
    pieces: &[Range<u64>],
    data: &[u8],
    locks: &[Mutex<()>],
    deadline: Instant,
) -> anyhow::Result<usize> {
    let page = PAGE_BYTES as u64;
    let longest = pieces.iter().map(|piece| piece.end - piece.start).max().unwrap_or(0) + 2 * page;
    let mut buffer = AlignedBuffer::new(longest.next_multiple_of(page) as usize);
    for (number, piece) in pieces.iter().enumerate() {
        let wide = piece.start / page * page..piece.end.next_multiple_of(page);
        let len = (wide.end - wide.start) as usize;
        let at = (piece.start - wide.start) as usize;
        let memory = &mut buffer.bytes_mut()[..len];
        // In the order of their numbers, so that no cycle of waiters can form.
        let mut shared: Vec<usize> = Vec::with_capacity(2);
        if wide.start != piece.start {
            shared.push((wide.start / page) as usize % locks.len());
        }
        if wide.end != piece.end {
            shared.push(((wide.end / page) as usize - 1) % locks.len());
        }
        shared.sort_unstable();
        shared.dedup();
        let held: Vec<_> = shared.iter().map(|number| locked(&locks[*number])).collect();
        if wide.start != piece.start {
            file.read_exact_at(&mut memory[..PAGE_BYTES], wide.start)?;
        }
        if wide.end != piece.end {
            file.read_exact_at(&mut memory[len - PAGE_BYTES..], wide.end - page)?;
        }
        let piece_bytes = of(piece, data);
        memory[at..at + piece_bytes.len()].copy_from_slice(piece_bytes);
        file.write_all_at(memory, wide.start)?;
        drop(held);
        if Instant::now() >= deadline {
            return Ok(number + 1);
        }
    }
    Ok(pieces.len())
}

fn gathered(
    job: &Job,
    work: &Work,
    pieces: &[Vec<Range<u64>>],
    data: &Bytes,
) -> anyhow::Result<(Vec<usize>, Cost)> {
    let arena = (work.memory_bytes + SPARE_BYTES) as usize;
    with_engine(Config::new().shards(1).arena_bytes(arena).arena_bytes_max(arena), |engine| {
        let file = engine.open(&job.path, Open::write()).wait()?;
        let written = if job.row == "collective" {
            let memory = work.memory_bytes.min(COLLECTIVE_MEMORY_BYTES) as usize;
            let options = Options::new().memory_bytes_max(memory);
            let handles = Collective::start(&file, work.participants, options);
            let slice =
                |piece: &Range<u64>| (piece.start, data.slice(piece.start as usize..piece.end as usize));
            let part = |handle: Collective| {
                let pieces: Vec<(u64, Bytes)> = pieces[handle.rank()].iter().map(slice).collect();
                Mutex::new(Some((handle, pieces)))
            };
            let parts: Vec<_> = handles.into_iter().map(part).collect();
            let lane = |number: usize, _| {
                let Some((mut handle, part)) = locked(&parts[number]).take() else { return Ok(0) };
                handle.write(part, Durability::Data).wait()?;
                Ok(pieces[number].len())
            };
            write(job, work.participants, lane, || Ok(()))?
        } else {
            let options = Options::new().memory_bytes_max(work.memory_bytes as usize);
            let combine = WriteCombiner::start(&file, options);
            let lane = |number: usize, _| {
                for piece in &pieces[number] {
                    combine.write(piece.start, of(piece, data)).wait()?;
                }
                Ok(pieces[number].len())
            };
            write(job, work.participants, lane, || Ok(combine.flush(Durability::Data).wait()?))?
        };
        file.close().wait()?;
        Ok(written)
    })
}

/// Returns field 5 of a block device's `stat`: writes completed.
fn parse_requests(stat: &str) -> Option<u64> {
    stat.split_whitespace().nth(4)?.parse().ok()
}

/// Adds the figures of a sample during which the device completed `requests` writes.
fn with_requests(outcome: Outcome, requests: Option<u64>) -> Outcome {
    let (bytes, total_ms) = (outcome.bytes as f64, outcome.seconds * 1e3);
    let written = outcome.evidence.counter_deltas.device.map(|moved| moved.written as f64);
    let requests = requests.map(|requests| requests as f64);
    outcome
        .figure(metric::TOTAL_MS, total_ms)
        .figure(metric::DEVICE_REQUESTS, requests)
        .figure(
            metric::REQUEST_BYTES_MEAN,
            written.zip(requests).map(|(written, requests)| written / requests),
        )
        .figure(metric::DEVICE_BYTES_PER_BYTE, written.map(|written| written / bytes))
}

/// Reads pieces back from the device and checks them. A row that did not write would look fast.
fn verify(path: &Path, pieces: &[Vec<Range<u64>>], data: &[u8], done: &[usize]) -> anyhow::Result<()> {
    let file = File::open(path)?;
    evict(&file)?;
    let mut found = Vec::new();
    for (pieces, done) in pieces.iter().zip(done) {
        for piece in pieces[..*done].iter().step_by((done / CHECKED_MAX).max(1)) {
            found.resize((piece.end - piece.start) as usize, 0);
            file.read_exact_at(&mut found, piece.start)?;
            anyhow::ensure!(
                found == of(piece, data),
                "the piece at offset {} is not the one that was written there; the storage below the file or the way it \
                 was written is faulty",
                piece.start
            );
        }
    }
    Ok(())
}

fn heading(table: &Table) -> String {
    let piece = shown_bytes(table, "piece_bytes");
    let participants = shown(table, "participants");
    match shown(table, "pattern").as_str() {
        "random" => format!("Random pieces of {piece} until durable"),
        _ => format!("Strided records of {piece} until durable, {participants} participant(s)"),
    }
}

/// Compares the gathering row with those that gather nothing, which are in the first table of the family.
fn compare(table: &Table, family: &[&Table]) -> Option<String> {
    let pattern = shown(table, "pattern");
    let (gathering, setting) = match pattern.as_str() {
        "random" => ("combine", format!("{} MiB of memory", shown(table, "memory_mib"))),
        _ => ("collective", format!("{} participant(s)", shown(table, "participants"))),
    };
    let row = table.row(gathering)?;
    let others = ["o-direct", "write-fsync"].into_iter();
    let others = others.filter_map(|name| family.iter().find_map(|other| other.row(name)));
    let compared: Vec<String> = others.filter_map(|other| than(row, other)).collect();
    let is = compared.join(" and ");
    (!is.is_empty()).then(|| format!("{pattern}, {setting}: `{gathering}` is {is}{}", once(&[row])))
}

fn than(row: &Row, other: &Row) -> Option<String> {
    const RATE: &str = metric::MB_PER_S;
    let name = &other.name;
    Some(match difference(row, other, RATE)? {
        Difference::More(times) if times.is_finite() => {
            format!("{} times faster than `{name}`", number(times))
        }
        Difference::Less(times) if times.is_finite() => {
            format!("{} times slower than `{name}`", number(times))
        }
        Difference::Equal if too_wide(&[(row, RATE), (other, RATE)]).is_some() => {
            format!("not clearly apart from `{name}`")
        }
        Difference::Equal => format!("as fast as `{name}`"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::{test_context, test_file, test_job, test_row, test_table};
    use crate::options::Length;
    use crate::system_counters::Bytes as CountedBytes;

    const BYTES: u64 = 4 << 20;
    const PATTERNS: [(&str, u64); 2] = [("random", BLOCK_BYTES), ("strided", RECORD_BYTES)];

    #[test]
    fn every_row_writes_all_of_its_pieces() {
        let (_cleanup, temp) = test_file(7, BYTES as usize);
        let mut seed = 0;
        for ((pattern, piece_bytes), way) in
            PATTERNS.iter().flat_map(|one| SPEC.ways.iter().map(move |way| (one, way)))
        {
            for participants in [1, 3] {
                seed += 1;
                let all = json!({
                    "pattern": pattern, "bytes": BYTES, "piece_bytes": piece_bytes, "participants": participants,
                    "memory_bytes": 1 << 20,
                });
                let name = format!("{} {pattern} {participants}", way.name);
                let outcome = Patterns
                    .sample(&test_job(SPEC.name, way.name, temp.path(), all, seed))
                    .unwrap_or_else(|error| panic!("{name}: {error:#}"));
                let whole = BYTES / piece_bytes * piece_bytes;
                assert_eq!(outcome.bytes, whole, "{name}");
                assert!(outcome.seconds > 0.0);
                // All pieces are checked, not only those that a sample checks, and nothing may follow them.
                let found = fs::read(temp.path()).expect("readable");
                let mut expected = vec![0; BYTES as usize];
                Pattern::new(seed ^ CONTENTS).fill(0, &mut expected);
                assert!(found[..whole as usize] == expected[..whole as usize], "{name}");
                assert_eq!(found.len() as u64, BYTES);
            }
        }
    }

    #[test]
    fn direct_writes_end_in_time() {
        let (_cleanup, temp) = test_file(7, BYTES as usize);
        let all = json!({
            "pattern": "random", "bytes": BYTES, "piece_bytes": 4096, "participants": 2, "memory_bytes": 0,
        });
        let mut job = test_job(SPEC.name, "o-direct", temp.path(), all, 3);
        job.seconds = 0.0;
        assert_eq!(Patterns.sample(&job).expect("one piece each").operations, 2);
    }

    #[test]
    fn a_piece_that_was_not_written_is_noticed() {
        let (_cleanup, temp) = test_file(7, BYTES as usize);
        let pieces: Vec<Range<u64>> = (0..256).map(|number| number * 4096..(number + 1) * 4096).collect();
        let (pieces, mut data) = ([pieces], vec![0; 1 << 20]);
        Pattern::new(7).fill(0, &mut data);
        verify(temp.path(), &pieces, &data, &[256]).expect("all are there");
        temp.file().write_all_at(&[0; 8], 8192).expect("it may be written");
        verify(temp.path(), &pieces, &data, &[2]).expect("it was not said to be written");
        let error = verify(temp.path(), &pieces, &data, &[256]).expect_err("one is spoilt");
        assert!(error.to_string().contains("offset 8192 "), "{error}");
    }

    #[test]
    fn the_field_of_the_kernels_file_is_found() {
        let stat =
            "   28513     6028  3510642    15001     6076    12993   915360     1748        0     8028";
        assert_eq!(parse_requests(stat), Some(6_076));
        assert_eq!(parse_requests("1 2 3"), None);
    }

    #[test]
    fn the_participants_have_every_piece_once() {
        for (pattern, piece_bytes) in PATTERNS {
            let pattern = pattern.to_owned();
            let work = Work { pattern, bytes: BYTES, piece_bytes, participants: 3, memory_bytes: 0 };
            let mut pieces: Vec<u64> =
                (0..3).flat_map(|mine| work.pieces(9, mine)).map(|piece| piece.start).collect();
            assert!(!pieces.is_sorted(), "they have them in turn");
            pieces.sort_unstable();
            let all = (0..BYTES / piece_bytes).map(|number| number * piece_bytes);
            assert_eq!(pieces, all.collect::<Vec<_>>());
        }
    }

    #[test]
    fn figures_come_from_the_counters_of_the_device() {
        let mut outcome =
            Outcome { bytes: 1_000_000, seconds: 0.5, cpu_seconds: 0.001, ..Outcome::default() };
        outcome.evidence.counter_deltas.device = Some(CountedBytes { read: 7, written: 2_000_000 });
        let found = with_requests(outcome.clone(), Some(10)).metrics();
        assert_eq!(found.get(metric::TOTAL_MS), Some(500.0));
        assert_eq!(found.get(metric::MB_PER_S), Some(2.0));
        assert_eq!(found.get(metric::REQUEST_BYTES_MEAN), Some(200_000.0));
        assert_eq!(found.get(metric::DEVICE_BYTES_PER_BYTE), Some(2.0));
        assert_eq!(with_requests(outcome, None).metrics().get(metric::DEVICE_REQUESTS), None);
    }

    #[test]
    fn rows_without_memory_are_measured_once() {
        let context = test_context();
        let options = Values::new(SPEC.options, None, Length::Quick).expect("defaults");
        let plan = Patterns.plan(&options, &context).expect("space for 64 MiB");
        let rows = |setting: &Parameters| {
            let has = SPEC.ways.iter().filter(|way| plan.has(setting, way)).map(|way| way.name);
            (setting["memory_mib"].as_u64(), has.collect::<Vec<_>>())
        };
        let tables: Vec<_> = plan.settings().iter().map(rows).collect();
        assert_eq!(
            tables,
            [
                (Some(88), vec!["write-fsync", "o-direct", "combine"]),
                (Some(16), vec!["combine"]),
                (Some(64), vec!["write-fsync", "o-direct", "combine", "collective"]),
            ]
        );
    }

    fn row(name: &str, rate: f64) -> Row {
        test_row(name, &[1.0; 3], &[(metric::MB_PER_S, rate)])
    }

    fn table(pattern: &str, memory: u64, rows: Vec<Row>) -> Table {
        let all = json!({
            "pattern": pattern, "participants": 2, "memory_mib": memory, "piece_bytes": 4096,
        });
        test_table(SPEC.name, all, rows)
    }

    #[test]
    fn the_ends_of_the_memory_are_compared_with_the_rows_that_have_none() {
        let first = vec![row("write-fsync", 400.0), row("o-direct", 50.0), row("combine", 800.0)];
        let combine = |memory, rate| table("random", memory, vec![row("combine", rate)]);
        let all = [table("random", 1024, first), combine(512, 400.0), combine(256, 200.0)];
        assert_eq!(
            Patterns.verdicts(&all.each_ref()),
            [
                "random, 1,024 MiB of memory: `combine` is 16 times faster than `o-direct` and 2 times faster than `write-fsync`",
                "random, 256 MiB of memory: `combine` is 4 times faster than `o-direct` and 2 times slower than `write-fsync`",
            ]
        );
    }

    #[test]
    fn rows_that_do_not_differ_are_not_ranked() {
        let strided = table("strided", 64, vec![row("collective", 51.0), row("o-direct", 50.0)]);
        let alike = "strided, 2 participant(s): `collective` is as fast as `o-direct`";
        assert_eq!(Patterns.verdicts(&[&strided]), [alike]);
        let mut noisy = row("collective", 51.0);
        noisy.samples[0].metrics.set(metric::MB_PER_S, 9.0);
        let sentences = Patterns.verdicts(&[&table("strided", 64, vec![noisy, row("o-direct", 50.0)])]);
        assert!(sentences[0].ends_with("is not clearly apart from `o-direct`"), "{sentences:?}");
    }

    #[test]
    fn without_figures_there_is_no_sentence() {
        let alone = table("strided", 64, vec![row("combine", 800.0)]);
        assert!(Patterns.verdicts(&[&alone]).is_empty());
        let skipped = table("strided", 64, vec![row("collective", 5.0), Row::skipped("o-direct", "no")]);
        assert!(Patterns.verdicts(&[&skipped]).is_empty());
    }
}
