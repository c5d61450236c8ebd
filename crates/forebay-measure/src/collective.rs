//! `measure collective`: ranks that write concurrently, in turn or in segments of one shared file, or each into a separate file.
//! Terms are those of IOR: a *segment* of the file has a *block* of each rank, which it writes in *transfers*. Blocks in turn can
//! be merged into large requests (`bending`).
//!
//! Ranks are the agents of several hosts ([`hosts`](crate::hosts)), or processes on this host: the sample then starts them as its
//! children and sets their common start.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::backing_device::device_stat;
use crate::cleanup::{Cleanup, TempDirectory, TempFile};
use crate::fio::FioJob;
use crate::hosts::{HostSample, whole};
use crate::preconditions::Preconditions;
use crate::prelude::*;
use crate::progress::Unit;
use crate::residency::evict;
use crate::sampler::run_child_at;
use crate::start_barrier::{begun_ns, monotonic_ns};
use crate::system_counters::{Bytes, CounterDeltas};
use crate::test_file::{check_space, no_space, write_direct};
use crate::units::show_bytes;

mod bending;

use bending::{DATA_SIEVING, TWO_PHASE};

#[derive(Debug)]
pub(crate) struct Collective;

static SPEC: Spec = Spec {
    name: "collective",
    about: "Write one shared file from several ranks at once, beside a file for each rank",
    quick_seconds: 2,
    full_seconds: 55,
    needs_directory: true,
    options: &[
        Opt::count("ranks", "Processes that write at once; of several hosts each is one", 64).list().or("4"),
        Opt::bytes("size", "Bytes of each rank", 1 << 20, 1 << 40).or("128MiB").quick("32MiB"),
        Opt::bytes("block", "Bytes of a rank side by side in a segment (-b of IOR)", 512, 64 << 20)
            .or("47008"),
        Opt::bytes(
            "transfer",
            "Bytes of one write, by which a block can be divided (-t of IOR)",
            512,
            64 << 20,
        )
        .chosen("a block"),
        Opt::time("seconds", "A rank begins no more writes then", 0.01, 86_400.0).or("10").quick("0.25"),
        Opt::repeats("3").quick("1"),
    ],
    ways: &[
        Way::cached("shared-strided", "the ranks' blocks in turn in one file, pwrite, no sync"),
        Way::cached(STRIDED, "the same, an fsync of each rank at its end"),
        Way::cached(
            DATA_SIEVING,
            "the same places: each rank reads up to 512 KiB, changes its blocks, writes all back",
        ),
        Way::direct(
            TWO_PHASE,
            "the same places, Ranks of Forebay: one rank writes for all (-c of IOR), synced",
        ),
        Way::cached("shared-segmented", "the blocks of each rank side by side in one file, pwrite, no sync"),
        Way::cached("shared-segmented-sync", "the same, an fsync of each rank at its end"),
        Way::cached("file-per-rank", "a file for each rank, pwrite, no sync"),
        Way::cached("file-per-rank-sync", "the same, an fsync of each rank at its end"),
    ],
    columns: &[
        column(metric::MB_PER_S, "MB/s", 1.0, "bytes of all ranks until the last is done"),
        column(metric::LAST_DONE_S, "slowest rank s", 1.0, "seconds until the last rank was done"),
        column(metric::FIRST_DONE_S, "fastest rank s", 1.0, "seconds until the first rank was done"),
        column(metric::P99_US, "write p99 µs", 1.0, "99 of 100 writes took no longer, in µs"),
        columns::CPU_S_PER_GB,
        columns::DEVICE_BYTES_PER_BYTE,
        columns::START_SKEW_US,
    ],
    compared: metric::MB_PER_S,
    charts: &[metric::MB_PER_S],
    axis: Axis::new("ranks", "ranks"),
    role: Role::Other,
    gains: || {
        let change = "Write the blocks of many processes together, by one of them for all";
        vec![Gain::new(metric::MB_PER_S, true, &[STRIDED], &[TWO_PHASE], "MB/s", change)]
    },
};

/// Ranks that write their blocks one by one, the usual way.
const STRIDED: &str = "shared-strided-sync";

/// The time from the order to start until all ranks start.
const LEAD_NS: u64 = 20_000_000;
/// The seconds after which a child without a result is given up, in addition to its writing time.
const CHILD_SECONDS: f64 = 120.0;
/// The error of a rank that was ready while another rank could not start.
const CALLED_OFF: &str = "another rank could not take part";

impl Experiment for Collective {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn plan<'a>(&self, options: &Values, context: &'a Context) -> anyhow::Result<Box<dyn Plan + 'a>> {
        let scratch = ScratchDir::find(context, SPEC.name)?;
        let rank = options.optional("host");
        let ranks = options.optional("hosts").map_or_else(|| options.counts("ranks"), |hosts| vec![hosts]);
        let (most, block) = (ranks.iter().copied().max().unwrap_or(1), options.count("block"));
        let transfer = options.optional("transfer").unwrap_or(block);
        if !block.is_multiple_of(transfer) {
            let text = format!("--block {block} cannot be divided by --transfer {transfer}");
            return Err(Failure::Usage(text).into());
        }
        let rank_bytes = options.count("size").next_multiple_of(block);
        let has_shared = rank.is_none_or(|rank| rank == 0);
        let files = if rank.is_some() { 1 } else { most };
        let bytes = rank_bytes * (files + if has_shared { most } else { 0 });
        check_space(&scratch.directory, bytes, "give a smaller --size or fewer --ranks")?;
        let step = context.step(format!("write {} of test data", show_bytes(bytes)), bytes, Unit::Bytes);
        let make = |label: &str, bytes: u64| -> anyhow::Result<TempFile> {
            let (file, contents) = (scratch.temp_file(context, label)?, Pattern::new(context.seed));
            let whole = bytes.next_multiple_of(PAGE_BYTES as u64);
            let written = write_direct(file.path(), whole, |at, memory| contents.fill(at, memory), &step);
            written.map_err(|error| no_space(&scratch.directory, whole, &error))?;
            Ok(file)
        };
        let label = format!("shared-{}", options.count("run"));
        let shared = has_shared.then(|| make(&label, most * rank_bytes)).transpose()?;
        let own = (0..files).map(|_| make("rank", rank_bytes)).collect::<anyhow::Result<Vec<_>>>()?;
        step.finish("on the device");
        let device_stat = device_stat(own.first().context("a rank has a file")?.file());
        let setting = |ranks: u64| {
            parameters(json!({
                "ranks": ranks, "rank_bytes": rank_bytes, "block_bytes": block, "transfer_bytes": transfer,
                "segments": rank_bytes / block,
            }))
        };
        let preconditions = Preconditions::of_device(device_stat.as_deref());
        let settings = ranks.into_iter().map(setting).collect();
        // Of several hosts ranks meet in the directory that they share.
        let meeting = if rank.is_none() { Some(scratch.temp_directory(context, "ranks")?) } else { None };
        Ok(Box::new(Run { scratch, preconditions, label, rank, shared, own, meeting, settings }))
    }

    fn file_bytes(&self, options: &Values) -> u64 {
        let ranks = options.counts("ranks").into_iter().max().unwrap_or(1);
        options.count("size").saturating_mul(2 * ranks)
    }

    fn sample(&self, job: &Job) -> anyhow::Result<Outcome> {
        let work: Work = job.work()?;
        match work.rank {
            Some(rank) => write(job, &work, rank),
            None => together(job, &work),
        }
    }

    fn fio(&self, table: &Table, row: &Row, path: &std::path::Path) -> Option<String> {
        let more = row.name.strip_prefix("shared-segmented")?;
        let size_bytes = table.number("rank_bytes")?;
        let sync = if more.is_empty() { "" } else { " --end_fsync=1" };
        let job = FioJob {
            name: &row.name,
            path,
            size_bytes,
            rw: "write",
            block_bytes: table.number("transfer_bytes")?,
            depth: table.number("ranks")?,
            engine: "psync",
            is_direct: false,
            seconds: table.number("seconds")?,
            more: &format!("--offset_increment={size_bytes}{sync}"),
        };
        Some(job.command())
    }

    fn runs_on_hosts(&self) -> bool {
        true
    }

    fn title(&self, table: &Table) -> (String, String) {
        let [block, of_rank] = ["block_bytes", "rank_bytes"].map(|name| shown_bytes(table, name));
        let heading = format!("Writes of {block} by ranks with {of_rank} each");
        (format!("{heading}, {} ranks", shown(table, "ranks")), heading)
    }

    fn verdicts(&self, tables: &[&Table]) -> Vec<String> {
        let compare = |table: &Table, name: &str, other: &str| {
            let rows = (table.row(name)?, table.row(other)?);
            let how = match difference(rows.0, rows.1, metric::MB_PER_S)? {
                Difference::Equal => "is as fast as".to_owned(),
                Difference::More(times) => format!("is {} times as fast as", number(times)),
                Difference::Less(times) => format!("takes {} times as long as", number(times)),
            };
            let hint = once(&[rows.0, rows.1]);
            Some(format!("{} ranks: `{name}` {how} `{other}`{hint}", shown(table, "ranks")))
        };
        let synced = "file-per-rank-sync";
        let bent = |table: &Table, name: &str| {
            let block = shown_bytes(table, "block_bytes");
            compare(table, name, STRIDED).map(|text| format!("The pattern bent, blocks of {block}, {text}"))
        };
        let names = [TWO_PHASE, STRIDED, "shared-segmented-sync", "file-per-rank"];
        let all = |table: &&Table| {
            let bent = [TWO_PHASE, DATA_SIEVING].map(|name| bent(table, name));
            bent.into_iter().chain(names.map(|name| compare(table, name, synced)))
        };
        tables.iter().flat_map(all).flatten().collect()
    }
}

/// One run: a shared file, made by the first rank, and one for each rank of this host.
#[derive(Debug)]
struct Run {
    scratch: ScratchDir,
    preconditions: Preconditions,
    /// The label of the shared file, by which the ranks of other hosts find it.
    label: String,
    /// The rank of this host; `None`: all ranks are processes of it.
    rank: Option<u64>,
    shared: Option<TempFile>,
    own: Vec<TempFile>,
    meeting: Option<TempDirectory>,
    settings: Vec<Parameters>,
}

impl Run {
    /// Returns the files of a row.
    ///
    /// # Errors
    /// The shared file is not in the directory of this host.
    fn paths(&self, way: &Way) -> anyhow::Result<Vec<PathBuf>> {
        if way.name.starts_with("file") {
            return Ok(self.own.iter().map(|file| file.path().to_owned()).collect());
        }
        if let Some(shared) = &self.shared {
            return Ok(vec![shared.path().to_owned()]);
        }
        let prefix = format!(".forebay-{}-", self.label);
        let mut all = std::fs::read_dir(&self.scratch.directory)?.filter_map(Result::ok);
        let is_own = |file: &Metadata| file.is_file() && file.uid() == rustix::process::geteuid().as_raw();
        let found = all.find(|entry| {
            let is_named = entry.file_name().to_string_lossy().starts_with(&prefix);
            is_named && entry.metadata().is_ok_and(|file| is_own(&file))
        });
        let directory = self.scratch.directory.display();
        let found = found.with_context(|| {
            format!("{directory} has no file of the first rank: name a directory that all ranks share")
        })?;
        Ok(vec![found.path()])
    }
}

impl Plan for Run {
    fn place(&self) -> Place {
        self.scratch.place_of(&self.preconditions)
    }

    fn settings(&self) -> Vec<Parameters> {
        self.settings.clone()
    }

    fn start(&mut self, turn: &Turn<'_>, mut job: Job) -> anyhow::Result<Start> {
        if turn.way.name == DATA_SIEVING && self.rank.is_some() {
            anyhow::bail!("data sieving runs on one host only: its locks are not seen by others");
        }
        let paths = self.paths(turn.way)?;
        let mut all = self.paths(&SPEC.ways[0]).unwrap_or_default();
        all.extend(self.own.iter().map(|file| file.path().to_owned()));
        for path in all {
            // No row writes back the bytes that another one left in memory.
            let file = File::open(path)?;
            file.sync_all()?;
            evict(&file)?;
        }
        job.path = paths[0].clone();
        (job.work["paths"], job.work["rank"]) = (json!(paths), json!(self.rank));
        job.work["locks"] = json!(self.own.iter().map(TempFile::path).collect::<Vec<_>>());
        let meeting = self.meeting.as_ref().map_or(self.scratch.directory.as_path(), TempDirectory::path);
        job.work["meeting"] = json!(meeting);
        job.work["across_hosts"] = json!(self.rank.is_some());
        job.seconds_max = turn.seconds + CHILD_SECONDS;
        Ok(job.into())
    }

    fn claim(&self, turn: &Turn<'_>, outcome: &Outcome) -> Claim {
        let is_sync = turn.way.name.ends_with("-sync");
        let workers = if self.rank.is_none() { turn.count("ranks") } else { 1 };
        // On several hosts each writes an equal part, and not the blocks of its own rank.
        let is_own = is_sync && (turn.way.name != TWO_PHASE || self.rank.is_none());
        Claim {
            written_bytes: is_own.then_some(outcome.bytes),
            workers: Some(workers),
            // Copying to memory is all that such a row does.
            busy_on_purpose: !is_sync,
            ..Claim::default()
        }
    }

    fn cache(&self, _: &Parameters, way: &Way) -> Option<CacheState> {
        Some(cache_of(way, true))
    }

    fn method(&self, setting: &Parameters, seconds: f64) -> String {
        let count = |name: &str| setting.get(name).and_then(Value::as_u64).unwrap_or_default();
        format!(
            "All files are written through before, so no write allocates, and are synced and evicted before each sample. {} \
             ranks are processes that have the file open and their data in memory before the time begins. They begin at one \
             instant. Each writes {} in {} segments with a block of {} of each rank, by {} a write, or as many as it begins \
             within {seconds:.1} s. MB/s are the bytes of all ranks over the time from the first start to the last end. A row's \
             sync counts. `{TWO_PHASE}` makes calls of {} a rank, `{DATA_SIEVING}` one of each stretch that it reads: these are its \
             writes. The first word of each write is read back and compared. Rows take turns within a repeat, and a figure is the \
             median of the repeats.",
            count("ranks"),
            bytes(count("rank_bytes")),
            count("segments"),
            bytes(count("block_bytes")),
            bytes(count("transfer_bytes")),
            bytes(bending::CALL_BYTES),
        )
    }
}

/// The parameters that a sample needs.
#[derive(Debug, Deserialize)]
struct Work {
    /// The rank of this process; `None`: it starts all of them.
    rank: Option<u64>,
    ranks: u64,
    rank_bytes: u64,
    block_bytes: u64,
    transfer_bytes: u64,
    paths: Vec<PathBuf>,
    /// Files locked by the ranks of this host.
    #[serde(default)]
    locks: Vec<PathBuf>,
    /// The directory in which ranks meet.
    #[serde(default)]
    meeting: PathBuf,
    #[serde(default)]
    across_hosts: bool,
}

impl Work {
    /// Returns the place of write number `write` of a rank.
    fn offset(&self, row: &str, rank: u64, write: u64) -> u64 {
        let (block, rest) = (write / self.writes_of_block(), write % self.writes_of_block());
        let place = match row.trim_end_matches("-sync") {
            "shared-segmented" => rank * self.segments() + block,
            "file-per-rank" => block,
            _ => block * self.ranks + rank,
        };
        place * self.block_bytes + rest * self.transfer_bytes
    }

    fn segments(&self) -> u64 {
        self.rank_bytes / self.block_bytes
    }

    /// Returns the bytes of a segment: a block of each rank.
    fn segment_bytes(&self) -> u64 {
        self.ranks * self.block_bytes
    }

    fn writes_of_block(&self) -> u64 {
        self.block_bytes / self.transfer_bytes
    }
}

/// The blocks of one rank.
struct Part<'w> {
    job: &'w Job,
    work: &'w Work,
    rank: u64,
    /// Another one for each row, because rows write the same places.
    seed: u64,
    /// The bytes of a write, except its first word.
    contents: Vec<u8>,
    /// The length of the file after which the first words are the same again.
    period: u64,
}

/// The writes that a rank made, and their cost.
type Tally = (u64, Latency, Cost);

impl Part<'_> {
    fn open(&self) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(&self.job.path)
    }

    fn offset(&self, write: u64) -> u64 {
        self.work.offset(&self.job.row, self.rank, write)
    }

    /// Returns the first word of the write at this place.
    fn mark(&self, at: u64) -> [u8; 8] {
        (self.seed ^ (at % self.period) ^ ((self.rank + 1) << 56)).to_le_bytes()
    }

    /// Fills the memory of a block, or of a write, at this place.
    fn fill(&self, memory: &mut [u8], at: u64) {
        for (write, at) in
            memory.chunks_exact_mut(self.contents.len()).zip((at..).step_by(self.contents.len()))
        {
            write.copy_from_slice(&self.contents);
            write[..8].copy_from_slice(&self.mark(at));
        }
    }

    /// Calls `step` with the number of the next write until all are made or the time is over; it returns how many it made. The last
    /// call, with `true`, makes the sync.
    fn timed(&self, mut step: impl FnMut(u64, bool) -> anyhow::Result<u64>) -> anyhow::Result<Tally> {
        let (mut latency, mut done) = (Latency::new()?, 0);
        let gauge = Gauge::start(self.job.device_stat.as_deref())?;
        let deadline = gauge.begun() + Duration::from_secs_f64(self.job.seconds);
        while done < self.work.rank_bytes / self.work.transfer_bytes {
            let begun = Instant::now();
            if begun >= deadline {
                break;
            }
            done += step(done, false)?;
            latency.record(begun.elapsed());
        }
        step(done, true)?;
        let ended_ns = monotonic_ns();
        let mut cost = gauge.stop()?;
        if let Some(begun_ns) = begun_ns() {
            // The gauge was ready later than the start where ranks wait for processors.
            cost.seconds = ended_ns.saturating_sub(begun_ns) as f64 / 1e9;
        }
        Ok((done, latency, cost))
    }
}

/// Writes the blocks of one rank, and checks that they are still there when the time has ended.
fn write(job: &Job, work: &Work, rank: u64) -> anyhow::Result<Outcome> {
    let mut contents = vec![0; (work.transfer_bytes as usize).next_multiple_of(PAGE_BYTES)];
    Pattern::new(job.seed ^ rank).fill(0, &mut contents);
    contents.truncate(work.transfer_bytes as usize);
    let row = SPEC.ways.iter().take_while(|way| way.name != job.row).count() as u64;
    let mut part = Part { job, work, rank, seed: job.seed ^ (row << 48), contents, period: u64::MAX };
    let (done, latency, cost) = match job.row.as_str() {
        DATA_SIEVING => bending::data_sieving(&part)?,
        TWO_PHASE => bending::two_phase(&mut part)?,
        _ => one_by_one(&part)?,
    };
    let file = part.open()?;
    for at in (0..done).map(|write| part.offset(write)) {
        let mut found = [0; 8];
        file.read_exact_at(&mut found, at)?;
        anyhow::ensure!(
            found == part.mark(at),
            "the write of rank {rank} at offset {at} is not the one that it made"
        );
    }
    Ok(Outcome::new(cost, done, done * work.transfer_bytes, latency))
}

fn one_by_one(part: &Part<'_>) -> anyhow::Result<Tally> {
    let file = part.open()?;
    let mut memory = part.contents.clone();
    part.timed(|done, is_over| {
        if is_over {
            if part.job.row.ends_with("-sync") {
                file.sync_all()?;
            }
            return Ok(0);
        }
        let at = part.offset(done);
        memory[..8].copy_from_slice(&part.mark(at));
        file.write_all_at(&memory, at)?;
        Ok(1)
    })
}

/// Runs all ranks as children that start together, and returns their samples as one.
fn together(job: &Job, work: &Work) -> anyhow::Result<Outcome> {
    let cleanup = Cleanup::default();
    let (ready, waiting) = channel::<Option<Sender<u64>>>();
    let ended: Vec<anyhow::Result<String>> = std::thread::scope(|scope| {
        let start = |rank: u64| {
            let (mut own, ready, cleanup) = (job.clone(), ready.clone(), &cleanup);
            own.work["rank"] = rank.into();
            own.path = work.paths[rank as usize % work.paths.len()].clone();
            scope.spawn(move || {
                let mut begin = || {
                    let (reply, start) = channel();
                    let sent = ready.send(Some(reply)).ok();
                    sent.and_then(|()| start.recv().ok()).context(CALLED_OFF)
                };
                let text = run_child_at(&own, None, cleanup, Some(&mut begin));
                // A rank that ends before it is ready holds up no other one.
                let _ = ready.send(None);
                text
            })
        };
        let ranks: Vec<_> = (0..work.ranks).map(start).collect();
        // Dropped with all replies when a rank has ended that was not ready.
        let replies: Option<Vec<_>> = waiting.into_iter().take(ranks.len()).collect();
        let at_ns = monotonic_ns() + LEAD_NS;
        for reply in replies.iter().flatten() {
            // A rank that has ended reports its own reason.
            let _ = reply.send(at_ns);
        }
        let ended = ranks.into_iter().map(std::thread::ScopedJoinHandle::join);
        ended.map(|text| text.unwrap_or_else(|_| anyhow::bail!("a thread panicked"))).collect()
    });
    let (texts, failed): (Vec<_>, Vec<_>) = ended.into_iter().partition(Result::is_ok);
    let failed = failed.into_iter().filter_map(Result::err);
    if let Some(error) = failed.min_by_key(|error| error.to_string() == CALLED_OFF) {
        return Err(error);
    }
    let samples = texts.iter().flatten().map(|text| {
        let outcome: Outcome = serde_json::from_str(text)?;
        HostSample::of(outcome).context("a rank began at no set instant")
    });
    let samples = samples.collect::<anyhow::Result<Vec<_>>>()?;
    let mut all = whole(&samples)?;
    // Each rank reads the device's counters a little after the start: the largest difference is the most accurate.
    let deltas = samples.iter().map(|sample| &sample.outcome.evidence.counter_deltas);
    let moved = |deltas: &&CounterDeltas| deltas.device.map(|device| device.read + device.written);
    let deltas = deltas.max_by_key(moved).context("there are ranks")?.clone();
    let own = samples.iter().map(|sample| sample.outcome.evidence.counter_deltas.own);
    let own = own.reduce(|sum, own| {
        let (sum, own) = sum.zip(own)?;
        Some(Bytes { read: sum.read + own.read, written: sum.written + own.written })
    });
    let (own, cpu_seconds) = (own.flatten(), all.cpu_seconds);
    all.evidence.counter_deltas = CounterDeltas { own, cpu_seconds, busiest_thread: None, ..deltas };
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(rank: Option<u64>) -> Work {
        Work {
            rank,
            ranks: 3,
            rank_bytes: 4 * 8192,
            block_bytes: 8192,
            transfer_bytes: 8192,
            paths: Vec::new(),
            locks: Vec::new(),
            meeting: PathBuf::new(),
            across_hosts: false,
        }
    }

    #[test]
    fn the_blocks_of_all_ranks_fill_the_file() {
        let work = work(None);
        for (row, ranks) in [("shared-strided", 3), ("shared-segmented-sync", 3), ("file-per-rank", 1)] {
            let places = (0..ranks).flat_map(|rank| (0..4).map(move |block| (rank, block)));
            let mut all: Vec<u64> = places.map(|(rank, block)| work.offset(row, rank, block)).collect();
            all.sort_unstable();
            assert!(all.iter().enumerate().all(|(index, at)| *at == index as u64 * 8192), "{row}: {all:?}");
        }
        assert_eq!(work.offset("shared-strided-sync", 1, 2), 7 * 8192);
        assert_eq!(work.offset("shared-segmented", 1, 2), 6 * 8192);
        let halves = Work { transfer_bytes: 4096, ..work };
        assert_eq!(halves.offset(TWO_PHASE, 1, 5), 7 * 8192 + 4096);
    }

    #[test]
    fn a_rank_writes_its_blocks_and_no_others() {
        let (_cleanup, temp) = super::super::lanes::test_file(1, 12 * 8192);
        for (seed, row) in [(7, STRIDED), (8, "shared-segmented"), (9, DATA_SIEVING)] {
            let parameters = json!({
                "rank": 1, "ranks": 3, "rank_bytes": 4 * 8192, "block_bytes": 8192, "transfer_bytes": 8192,
                "paths": [temp.path()], "locks": [temp.path()],
            });
            let before = std::fs::read(temp.path()).expect("readable");
            let job = super::super::lanes::test_job(SPEC.name, row, temp.path(), parameters, seed);
            let outcome = Collective.sample(&job).expect("it writes");
            assert_eq!((outcome.operations, outcome.bytes), (4, 4 * 8192));
            let after = std::fs::read(temp.path()).expect("readable");
            let own: Vec<u64> = (0..4).map(|block| work(Some(1)).offset(row, 1, block)).collect();
            for (index, (before, after)) in before.chunks(8192).zip(after.chunks(8192)).enumerate() {
                assert_eq!(before != after, own.contains(&(index as u64 * 8192)), "{row}: block {index}");
            }
        }
    }

    #[test]
    fn sentences_compare_a_shared_file_with_one_for_each_rank() {
        let rates =
            [(STRIDED, 100.0), ("file-per-rank-sync", 200.0), ("file-per-rank", 4000.0), (TWO_PHASE, 200.0)];
        let rows = rates.map(|(name, rate)| Row::of_repeats(name, [[(metric::MB_PER_S, rate)]; 2]));
        let table = Table::new(SPEC.name, "").parameter("ranks", 4).parameter("block_bytes", 4096);
        let table = table.with_rows(rows);
        assert_eq!(
            Collective.verdicts(&[&table]),
            [
                "The pattern bent, blocks of 4 KiB, 4 ranks: `two-phase-sync` is 2 times as fast as `shared-strided-sync`",
                "4 ranks: `two-phase-sync` is as fast as `file-per-rank-sync`",
                "4 ranks: `shared-strided-sync` takes 2 times as long as `file-per-rank-sync`",
                "4 ranks: `file-per-rank` is 20 times as fast as `file-per-rank-sync`",
            ]
        );
    }
}
