//! `measure writes`: random writes of 4 KiB into a file that was written before, with the parts of a program's time for them
//! that are usually left out: open, sync, close.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::{Config, Durability, Engine, Open, WriteCombiner};
use serde::Deserialize;
use serde_json::json;

use super::aligned::AlignedBuffer;
use super::experiment::{
    Experiment, Outcome, Parameters, Place, Plan, Spec, Start, Turn, Way, once, parameters,
};
use super::gates::{Claim, processors};
use super::gauge::Gauge;
use super::job::Job;
use super::lanes::{on_threads, on_tokio, ready, shared, with_engine};
use super::latency::Latency;
use super::options::{Opt, Values};
use super::pattern::{PAGE_BYTES, Pattern, SplitMix};
use super::residency::evict;
use super::scratch_dir::ScratchDir;
use super::test_file::TestFile;
use crate::context::Context;
use forebay_report::failure::Failure;
use forebay_report::page::columns::{self, column};
use forebay_report::page::noise::{NOTEWORTHY, too_wide};
use forebay_report::page::view::{Axis, Gain, Role};
use forebay_report::result::{CacheState, Condition, Experiment as Table, Row, Sample, metric};
use forebay_report::units::{bytes, number};

/// The experiment.
#[derive(Debug)]
pub(crate) struct Writes;

static SPEC: Spec = Spec {
    name: "writes",
    about: "Write blocks at random, with and without the time for open, sync and close, in several ways",
    quick_seconds: 12,
    full_seconds: 200,
    needs_directory: true,
    options: &[
        Opt::word("pattern", "Places of the blocks", &["dense", "sparse"]).list().or("dense,sparse"),
        Opt::count("clients", "Clients that write at once, each with a handle of its own", 256)
            .list()
            .or("1,2,4")
            .quick("1,4"),
        Opt::count(
            "operations",
            "Writes of a sample, all clients together, if its time suffices",
            16_777_216,
        )
        .or("16384")
        .quick("4096"),
        Opt::bytes("size", "Bytes of the file", MIB, u64::MAX).or("1GiB").quick("256MiB"),
        Opt::seconds("2", "0.5"),
        Opt::repeats("3"),
    ],
    ways: &[
        Way::cached(
            "naive",
            "pwrite into the page cache, no sync: nothing of it survives a power cut for sure",
        ),
        Way::cached(
            "sync-at-end",
            "pwrite into the page cache, one fdatasync at the end; the file stays open, closing is not in the total",
        ),
        Way::cached("sync-close", "pwrite into the page cache, one fsync at the end, closing in the total"),
        Way::direct(
            "o-direct",
            "pwrite with O_DIRECT, no sync: past the page cache, but a device's own cache may lose it",
        ),
        Way::direct(
            "o-direct-dsync",
            "pwrite with O_DIRECT and O_DSYNC: each write returns when it is durable",
        ),
        Way::cached("fdatasync-each", "pwrite into the page cache, an fdatasync after each"),
        Way::cached("fsync-each", "pwrite into the page cache, an fsync after each"),
        Way::direct(
            "forebay",
            "Forebay from tasks of a Tokio runtime, O_DIRECT, one File::sync of each client at the end",
        ),
        Way::direct(
            "forebay-durable",
            "Forebay from tasks of a Tokio runtime, O_DIRECT, each write durable(Durability::Data)",
        ),
        Way::direct(
            "forebay-combine",
            "Forebay from tasks of a Tokio runtime, O_DIRECT, writes gathered by a WriteCombiner of each client with \
             memory for all of them, one flush at the end",
        ),
    ],
    columns: &[
        column(ADVERTISED, "IOPS as advertised", 1.0, "writes divided by the time in write calls alone"),
        column(
            RELIABLE,
            "IOPS you can rely on",
            1.0,
            "writes divided by the whole time: open, write, sync and close; rows that are not durable then have none",
        ),
        column(metric::OPEN_MS, "open ms", 1.0, "time that a client spent opening"),
        column(metric::WRITE_MS, "write ms", 1.0, "time that a client spent in write calls"),
        column(metric::SYNC_MS, "sync ms", 1.0, "time that a client spent in sync calls"),
        column(metric::CLOSE_MS, "close ms", 1.0, "time that a client spent closing"),
        column(metric::TOTAL_MS, "total ms", 1.0, "from the beginning until the last client was ready"),
        column(
            LEFT_OUT_MS,
            "sync left out ms",
            1.0,
            "how long the sync took afterwards that the row did not make",
        ),
        columns::P50_US,
        columns::P99_US,
        columns::CPU_US_PER_IO,
        columns::DEVICE_BYTES_PER_BYTE,
    ],
    compared: RELIABLE,
    charts: &[ADVERTISED, RELIABLE, metric::TOTAL_MS, metric::DEVICE_BYTES_PER_BYTE],
    axis: Axis::new("clients", "clients"),
    role: Role::Writes,
    gains: || {
        vec![Gain::new(
            RELIABLE,
            true,
            &["fsync-each", "fdatasync-each"],
            "durable writes a second",
            "Make many writes durable together, where no task waits for each of them",
        )]
    },
};

const ADVERTISED: &str = metric::IOPS_ADVERTISED;
const RELIABLE: &str = metric::IOPS_RELIABLE;
const LEFT_OUT_MS: &str = metric::SYNC_LEFT_OUT_MS;
const MIB: u64 = 1 << 20;
/// Bytes of one write.
const BLOCK_BYTES: u64 = PAGE_BYTES as u64;
/// Minimum blocks of the file for each write: with fewer, the writes would not be sparse.
const SPARSE_BLOCKS: u64 = 4;
/// Memory that write combining keeps free and in flight beside the waiting pages.
const COMBINE_SPARE_BYTES: usize = 16 << 20;
/// Number of blocks of each client that are checked afterwards, the last ones that it wrote.
const CHECKED_MAX: usize = 64;

impl Experiment for Writes {
    fn spec(&self) -> &'static Spec {
        &SPEC
    }

    fn plan<'a>(&self, options: &Values, context: &'a Context) -> anyhow::Result<Box<dyn Plan + 'a>> {
        // A quick report has time for one client only.
        let clients = if context.budget.is_some() { vec![1] } else { options.counts("clients") };
        let file_bytes = options.count("size").div_ceil(MIB) * MIB;
        let room = file_bytes / BLOCK_BYTES / SPARSE_BLOCKS;
        let wanted = options.count("operations");
        let operations = if options.given("operations") { wanted } else { wanted.min(room) };
        if operations > room {
            return Err(Failure::Usage(format!(
                "--operations {operations} are too many for this file: it must hold {SPARSE_BLOCKS} blocks of 4 KiB for \
                 each, which are {room} here; give a larger --size or fewer --operations"
            ))
            .into());
        }
        if let Some(clients) = clients.iter().find(|clients| **clients > operations) {
            return Err(Failure::Usage(format!(
                "{clients} clients have nothing to do with --operations {operations}: each needs one at least"
            ))
            .into());
        }
        ScratchDir::find(context, SPEC.name)?;
        let file = TestFile::prepare(context, file_bytes, None)?;
        let setting = |pattern: &str, clients: &u64| {
            parameters(json!({
                "pattern": pattern, "clients": clients, "operations": operations,
                "block_bytes": BLOCK_BYTES, "file_bytes": file.bytes,
            }))
        };
        let patterns = options.words("pattern").into_iter();
        let settings =
            patterns.flat_map(|pattern| clients.iter().map(move |clients| setting(pattern, clients)));
        let settings = settings.collect();
        Ok(Box::new(Run { file, settings }))
    }

    fn sample(&self, job: &Job) -> anyhow::Result<Outcome> {
        let (clients, times, outcome) = write(job)?;
        verify(job, &clients)?;
        Ok(figures(&job.row, &times, outcome))
    }

    fn title(&self, table: &Table) -> (String, String) {
        let heading = format!("Random writes of {}, {}", block(table), pattern(table));
        (format!("{heading}, {}", clients(table)), heading)
    }

    fn verdicts(&self, tables: &[&Table]) -> Vec<String> {
        verdicts(tables)
    }
}

/// One run: a file, in which every sample writes.
#[derive(Debug)]
struct Run {
    file: TestFile,
    settings: Vec<Parameters>,
}

impl Plan for Run {
    fn place(&self) -> Place {
        self.file.place()
    }

    fn settings(&self) -> Vec<Parameters> {
        self.settings.clone()
    }

    fn start(&mut self, turn: &Turn<'_>, mut job: Job) -> anyhow::Result<Start> {
        // No row must find the pages of another one in memory.
        evict(&self.file.handle)?;
        // Each row writes different blocks, so that none is written again while a device still has it in its cache.
        let row = SPEC.ways.iter().position(|way| way == turn.way).unwrap_or(0) as u64;
        job.seed ^= row << 3 ^ (turn.count("clients") as u64) << 8;
        // Syncing takes as long as the device needs for the bytes written in that time.
        job.seconds_max = 10.0 * job.seconds;
        Ok(job.into())
    }

    fn claim(&self, turn: &Turn<'_>, outcome: &Outcome) -> Claim {
        Claim {
            written_bytes: Some(outcome.bytes),
            workers: Some(turn.count("clients") + usize::from(has_engine(turn.way.name))),
            ..Claim::default()
        }
    }

    fn cache(&self, _: &Parameters, way: &Way) -> Option<CacheState> {
        (!way.cached).then_some(CacheState::Direct)
    }

    fn method(&self, setting: &Parameters, seconds: f64) -> String {
        let places = match setting.get("pattern").and_then(serde_json::Value::as_str) {
            Some("dense") => "each block of one range of the file once, in random order",
            _ => "few blocks of the file, far apart, in random order, none twice",
        };
        format!(
            "The file was written before, with data that do not compress, so no write allocates. Each sample is a fresh \
             process whose clients open the file, write blocks of 4 KiB ({places}), sync and close as the row says, and \
             begin no more writes after {seconds:.2} s. Times of calls are averaged over the clients; total runs until the \
             last client was ready. \"As advertised\" divides the writes by the time in write calls; \"you can rely on\" \
             divides them by the total, where they are durable then. The last blocks of each client are read back from \
             the device. Rows take turns within a repeat; figures are medians of the repeats."
        )
    }

    fn notes(&self, _: &Parameters) -> Vec<String> {
        vec!["`naive` and `o-direct` do not wait until their writes are durable: there is nothing in them to rely on".to_owned()]
    }

    fn conditions(&self) -> Vec<Condition> {
        self.file.preconditions.conditions()
    }
}

/// The parameters that a sample needs.
#[derive(Debug, Deserialize)]
struct Work {
    pattern: String,
    file_bytes: u64,
    /// Threads or tasks that write at the same time.
    clients: usize,
    /// Writes of all clients together; no block is written twice.
    operations: u64,
}

impl Work {
    /// Returns the offsets of the writes, in their order; client number `client` has every `clients`th.
    ///
    /// The range is cut into as many equal parts as there are writes, and one block of each part is written. So no block is
    /// written twice, and sparse ones are spread over the whole file.
    fn offsets(&self, seed: u64) -> Vec<u64> {
        let mut random = SplitMix::new(seed);
        let blocks = match self.pattern.as_str() {
            "dense" => 1,
            _ => (self.file_bytes / BLOCK_BYTES / self.operations.max(1)).max(1),
        };
        let block_of = |part| (part * blocks + random.below(blocks)) * BLOCK_BYTES;
        let mut offsets: Vec<u64> = (0..self.operations).map(block_of).collect();
        random.shuffle(&mut offsets);
        offsets
    }

    /// Returns the offsets of one client.
    fn part(&self, seed: u64, client: usize) -> Vec<u64> {
        self.offsets(seed).into_iter().skip(client).step_by(self.clients).collect()
    }
}

/// Returns the contents of the blocks of a sample. They are not the previous ones of the file, which were made from the seed
/// of the run itself.
const fn contents(job: &Job) -> Pattern {
    Pattern::new(job.seed ^ 0x5eed_0f77_0000_0001)
}

/// Returns whether all written data of a row are durable when its time ends.
fn is_durable(row: &str) -> bool {
    !matches!(row, "naive" | "o-direct")
}

fn has_engine(row: &str) -> bool {
    row.starts_with("forebay")
}

/// The file as a client has it open.
enum Handle {
    Std(File),
    Forebay(forebay::File, Durability),
    Combine(forebay::File, WriteCombiner),
}

impl Handle {
    async fn open(job: &Job, engine: Option<&Engine>, bytes: usize) -> anyhow::Result<Self> {
        let Some(engine) = engine else {
            let flags = match job.row.as_str() {
                "o-direct" => libc::O_DIRECT,
                "o-direct-dsync" => libc::O_DIRECT | libc::O_DSYNC,
                _ => 0,
            };
            return Ok(Self::Std(OpenOptions::new().write(true).custom_flags(flags).open(&job.path)?));
        };
        let file = engine.open(&job.path, Open::write()).await?;
        Ok(match job.row.as_str() {
            "forebay-combine" => {
                let combiner = file.write_combiner().memory(bytes + COMBINE_SPARE_BYTES).start();
                Self::Combine(file, combiner)
            }
            "forebay-durable" => Self::Forebay(file, Durability::Data),
            _ => Self::Forebay(file, Durability::None),
        })
    }

    async fn write(&self, offset: u64, bytes: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::Std(file) => file.write_all_at(bytes, offset)?,
            Self::Forebay(file, durability) => file.write(offset, bytes).durable(*durability).await?,
            Self::Combine(_, combiner) => combiner.write(offset, bytes).await?,
        }
        Ok(())
    }

    async fn sync(&self, row: &str) -> anyhow::Result<()> {
        match self {
            Self::Std(file) if matches!(row, "sync-close" | "fsync-each") => file.sync_all()?,
            Self::Std(file) => file.sync_data()?,
            Self::Forebay(file, _) => file.sync(Durability::Data).await?,
            Self::Combine(_, combiner) => combiner.flush(Durability::Data).await?,
        }
        Ok(())
    }

    async fn close(self) -> anyhow::Result<()> {
        match self {
            Self::Std(_) => {}
            Self::Forebay(file, _) => file.close().await?,
            Self::Combine(file, combiner) => {
                drop(combiner);
                file.close().await?;
            }
        }
        Ok(())
    }
}

/// The times of one client.
#[derive(Debug)]
struct Client {
    open: Duration,
    write: Duration,
    sync: Duration,
    close: Duration,
    /// The end of the time that counts for the client.
    ended: Instant,
    /// The latency of one write, with its own sync where it has one.
    latency: Latency,
}

/// Runs one client, which writes its blocks and begins none after the deadline.
async fn client(
    shared: Arc<(Job, Work)>,
    number: usize,
    engine: Option<Engine>,
    deadline: Instant,
) -> anyhow::Result<Client> {
    let (job, work) = &*shared;
    let (row, contents, offsets) = (job.row.as_str(), contents(job), work.part(job.seed, number));
    // Only the first word of each block is its own: generating all of it would cost as much as a write into the page cache.
    let mut buffer = AlignedBuffer::new(BLOCK_BYTES as usize);
    contents.fill(0, buffer.bytes_mut());
    let (mut latency, mut write, mut sync) = (Latency::new()?, Duration::ZERO, Duration::ZERO);

    let begun = Instant::now();
    let file = Handle::open(job, engine.as_ref(), offsets.len() * BLOCK_BYTES as usize).await?;
    let mut now = Instant::now();
    let open = now - begun;
    for offset in offsets {
        let word = contents.first_word(offset / BLOCK_BYTES);
        buffer.bytes_mut()[..8].copy_from_slice(&word.to_le_bytes());
        let before = now;
        file.write(offset, buffer.bytes()).await?;
        now = Instant::now();
        write += now - before;
        if matches!(row, "fdatasync-each" | "fsync-each") {
            let written = now;
            file.sync(row).await?;
            now = Instant::now();
            sync += now - written;
        }
        latency.record(now - before);
        if now >= deadline {
            break;
        }
    }
    if matches!(row, "sync-at-end" | "sync-close" | "forebay" | "forebay-combine") {
        let written = now;
        file.sync(row).await?;
        now = Instant::now();
        sync = now - written;
    }
    file.close().await?;
    let closed = Instant::now();
    let ended = if row == "sync-at-end" { now } else { closed };
    Ok(Client { open, write, sync, close: closed - now, ended, latency })
}

/// Times of a sample in seconds: of calls averaged over the clients.
#[derive(Debug, Default)]
struct Times {
    open: f64,
    write: f64,
    sync: f64,
    close: f64,
    /// Time from the beginning until the last client was ready.
    total: f64,
    /// Time of the sync afterwards.
    left_out: f64,
}

/// Runs all clients, and makes what they wrote durable.
fn write(job: &Job) -> anyhow::Result<(Vec<Client>, Times, Outcome)> {
    let shared = shared::<Work>(job)?;
    let lanes = shared.1.clients;
    // Counters run until all is durable; processor time is that of the clients.
    let gauge = Gauge::start(job.device_stat.as_deref())?;
    let begun = |deadline: Instant| deadline - Duration::from_secs_f64(job.seconds);
    let (ended, cost) = if has_engine(&job.row) {
        with_engine(Config::default().shards(1), |engine| {
            on_tokio(lanes, Some(processors().min(lanes)), job, |number, deadline| {
                let (shared, engine, begun) = (Arc::clone(&shared), engine.clone(), begun(deadline));
                async move { Ok((begun, client(shared, number, Some(engine), deadline).await?)) }
            })
        })?
    } else {
        on_threads(lanes, job, |number, deadline| {
            Ok((begun(deadline), ready(client(Arc::clone(&shared), number, None, deadline))?))
        })?
    };
    // Also where the row has made a sync: its bytes on the device belong to it, and the next sample begins clean.
    let left_out = Instant::now();
    OpenOptions::new().write(true).open(&job.path)?.sync_all()?;
    let left_out = left_out.elapsed().as_secs_f64();
    let counters = gauge.stop()?;

    let total = ended.iter().map(|(begun, client)| (client.ended - *begun).as_secs_f64()).fold(0.0, f64::max);
    let clients: Vec<Client> = ended.into_iter().map(|(_, client)| client).collect();
    let average = |of: fn(&Client) -> Duration| {
        clients.iter().map(|client| of(client).as_secs_f64()).sum::<f64>() / lanes as f64
    };
    let times = Times {
        open: average(|client| client.open),
        write: average(|client| client.write),
        sync: average(|client| client.sync),
        close: average(|client| client.close),
        total,
        left_out,
    };
    let mut latency = Latency::new()?;
    for client in &clients {
        latency.add(&client.latency)?;
    }
    let operations = latency.count();
    let mut outcome = Outcome::new(counters, operations, operations * BLOCK_BYTES, latency);
    outcome.cpu_seconds = cost.cpu_seconds;
    Ok((clients, times, outcome))
}

/// Adds the figures of a row.
fn figures(row: &str, times: &Times, outcome: Outcome) -> Outcome {
    let (operations, written) = (outcome.operations as f64, outcome.evidence.counter_deltas.device);
    let written = written.map(|moved| moved.written as f64 / outcome.bytes as f64);
    Outcome { seconds: times.total, ..outcome }
        .figure(ADVERTISED, operations / times.write)
        .figure(RELIABLE, is_durable(row).then(|| operations / times.total))
        .figure(metric::OPEN_MS, times.open * 1e3)
        .figure(metric::WRITE_MS, times.write * 1e3)
        .figure(metric::SYNC_MS, times.sync * 1e3)
        .figure(metric::CLOSE_MS, times.close * 1e3)
        .figure(metric::TOTAL_MS, times.total * 1e3)
        .figure(LEFT_OUT_MS, (!is_durable(row)).then_some(times.left_out * 1e3))
        .figure(metric::DEVICE_BYTES_PER_BYTE, written)
}

/// Reads the last blocks of each client back, past the page cache: a row that did not write would look fast.
fn verify(job: &Job, clients: &[Client]) -> anyhow::Result<()> {
    let work: Work = job.work()?;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&job.path)?;
    let (mut buffer, contents) = (AlignedBuffer::new(BLOCK_BYTES as usize), contents(job));
    for (number, client) in clients.iter().enumerate() {
        let written = client.latency.count() as usize;
        let mine = work.part(job.seed, number);
        for offset in mine.iter().take(written).skip(written.saturating_sub(CHECKED_MAX)) {
            file.read_exact_at(buffer.bytes_mut(), *offset)?;
            anyhow::ensure!(
                buffer.bytes()[..8] == contents.first_word(offset / BLOCK_BYTES).to_le_bytes(),
                "the block at offset {offset} is not the one that was written there; the storage below the file or the \
                 way it was written is faulty"
            );
        }
    }
    Ok(())
}

fn block(table: &Table) -> String {
    table.number("block_bytes").map_or_else(|| "?".to_owned(), |block| bytes(block as u64))
}

fn pattern(table: &Table) -> &str {
    table.parameters.get("pattern").and_then(serde_json::Value::as_str).unwrap_or("?")
}

fn clients(table: &Table) -> String {
    format!("{} client(s)", table.number("clients").map_or_else(|| "?".to_owned(), number))
}

/// Minimum cost factor of durability: below it, a write that must be durable is as good as durable without a flush.
const DURABLE_COSTS: f64 = 1.5;
/// Cost factor from which a flush is worth planning for.
const FLUSH_COSTS: f64 = 10.0;
/// Minimum factor between a flush of many writes and one of a single write: from here on it had data to write to the medium.
const DRAINS: f64 = 5.0;
/// Minimum share of the time until all was durable, for the same conclusion.
const DRAIN_SHARE: f64 = 0.05;

/// Returns the verdicts: for each pattern on the fewest clients.
fn verdicts(tables: &[&Table]) -> Vec<String> {
    let mut fewest: Vec<&Table> = Vec::new();
    for table in tables {
        match fewest.iter_mut().find(|known| pattern(known) == pattern(table)) {
            Some(known) if table.number("clients") < known.number("clients") => *known = table,
            Some(_) => {}
            None => fewest.push(table),
        }
    }
    let of = |table: &&Table| {
        let title = format!("{}, {}", pattern(table), clients(table));
        let found = range(table).into_iter().chain(each_durable(table)).chain(flush(table));
        found.map(|sentence| format!("{title}: {sentence}")).collect::<Vec<_>>()
    };
    fewest.iter().flat_map(of).collect()
}

/// Returns the rows that have a metric, the largest first.
fn figures_of<'a>(table: &'a Table, metric: &str) -> Vec<(&'a Row, f64)> {
    let value = |row: &'a Row| Some((row, row.metrics.get(metric).filter(|value| *value > 0.0)?));
    let mut all: Vec<(&Row, f64)> = table.rows.iter().filter_map(value).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

/// Returns a sentence on the range of figures that the same writes can give: the largest against the smallest.
fn range(table: &Table) -> Option<String> {
    let (top, largest) = *figures_of(table, ADVERTISED).first()?;
    let reliable = figures_of(table, RELIABLE);
    let ((best, most), (bottom, smallest)) = (*reliable.first()?, *reliable.last()?);
    let (times, once) = (largest / smallest, once(&[top, bottom]));
    Some(if above(top, ADVERTISED, bottom, RELIABLE) && times >= NOTEWORTHY {
        format!(
            "`{}` advertises {} writes/s, {} times the durable {} (`{}`); best durable: {} (`{}`){once}",
            top.name,
            number(largest),
            number(times),
            number(smallest),
            bottom.name,
            number(most),
            best.name
        )
    } else if let Some(spread) = spread(&[(top, ADVERTISED), (bottom, RELIABLE)]) {
        format!("{spread} to compare advertised and durable writes{once}")
    } else {
        format!(
            "no clear difference between advertised (`{}` {}) and durable writes/s (`{}` {}){once}",
            top.name,
            number(largest),
            bottom.name,
            number(smallest)
        )
    })
}

/// Returns a sentence on the best way where each write must be durable before the next one.
fn each_durable(table: &Table) -> Option<String> {
    let names = ["o-direct-dsync", "fdatasync-each", "fsync-each", "forebay-durable"];
    let mut rows = figures_of(table, RELIABLE);
    rows.retain(|(row, _)| names.contains(&row.name.as_str()));
    let [(best, most), .., (worst, least)] = *rows.as_slice() else { return None };
    let once = once(&[best, worst]);
    let range = format!("(`{}` {}, `{}` {})", best.name, number(most), worst.name, number(least));
    let figures: Vec<_> = rows.iter().map(|(row, _)| (*row, RELIABLE)).collect();
    Some(if most / least >= NOTEWORTHY && above(best, RELIABLE, worst, RELIABLE) {
        format!(
            "durable one by one: `{}` is {} times faster than `{}` ({} and {} writes/s){once}",
            best.name,
            number(most / least),
            worst.name,
            number(most),
            number(least)
        )
    } else if let Some(spread) = spread(&figures) {
        format!("{spread} to rank writes durable one by one{once}")
    } else {
        format!("durable one by one: all ways are about as fast {range}{once}")
    })
}

/// Returns sentences on the cost of a flush and on the data flushed, by the rows that write past the page cache.
fn flush(table: &Table) -> Vec<String> {
    let measured = |name: &str| {
        let row = table.row(name)?;
        let rate = row.metrics.get(ADVERTISED).filter(|rate| *rate > 0.0)?;
        Some((row, 1e6 * table.number("clients").unwrap_or(1.0) / rate))
    };
    let (Some((plain, write_us)), Some((durable, durable_us))) =
        (measured("o-direct"), measured("o-direct-dsync"))
    else {
        return Vec::new();
    };
    let (once, flush_us) = (once(&[plain, durable]), durable_us - write_us);
    if durable_us < DURABLE_COSTS * write_us {
        return vec![format!(
            "a durable write takes {} µs, others {} µs: no sign of a volatile cache{once}",
            number(durable_us),
            number(write_us)
        )];
    }
    if !above(plain, ADVERTISED, durable, ADVERTISED)
        && let Some(spread) = spread(&[(plain, ADVERTISED), (durable, ADVERTISED)])
    {
        return vec![format!("{spread} to show the cost of a flush{once}")];
    }
    let mut sentences = Vec::new();
    if flush_us >= FLUSH_COSTS * write_us {
        sentences.push(format!(
            "a flush costs {} times as much as a write ({} and {} µs){once}",
            number(flush_us / write_us),
            number(flush_us),
            number(write_us)
        ));
    }
    // The sync of many writes against that of one, in every repeat.
    let left_out_us = |sample: &Sample| Some(1000.0 * sample.metrics.get(LEFT_OUT_MS)?);
    let least = plain.samples.iter().filter_map(left_out_us).min_by(f64::total_cmp);
    let known = least.zip(plain.metrics.get(LEFT_OUT_MS)).zip(plain.metrics.get(metric::TOTAL_MS));
    if let Some(((least, left_out_ms), total_ms)) = known
        && least >= DRAINS * flush_us
        && left_out_ms / (left_out_ms + total_ms) >= DRAIN_SHARE
    {
        sentences.push(format!(
            "`o-direct` writes are acknowledged from a volatile cache: their sync takes {} of {} ms{once}",
            number(left_out_ms),
            number(left_out_ms + total_ms)
        ));
    }
    sentences
}

/// Returns whether every repeat of `row` is above every repeat of `other`.
fn above(row: &Row, metric: &str, other: &Row, other_metric: &str) -> bool {
    match (row.spread(metric), other.spread(other_metric)) {
        (Some((low, _)), Some((_, high))) => low > high,
        _ => false,
    }
}

/// Returns `the repeats spread too widely (12,000 to 80,000 writes/s)`, where they do.
fn spread(figures: &[(&Row, &str)]) -> Option<String> {
    let (low, high) = too_wide(figures)?;
    Some(format!("the repeats spread too widely ({} to {} writes/s)", number(low), number(high)))
}

/// The writes of one client in each repeat: their number, the time they took, and the time of the sync left out.
#[cfg(test)]
pub(crate) type Simulated = (u32, Duration, Option<Duration>);

/// Returns the sentences on such writes.
#[cfg(test)]
pub(crate) fn simulated(rows: &[(&str, Vec<Simulated>)]) -> Vec<String> {
    let mut table = Table::new(SPEC.name, "").parameter("pattern", "sparse").parameter("clients", 1);
    for (name, repeats) in rows {
        let sample = |(writes, time, left_out): &Simulated| {
            let total = time.as_secs_f64();
            let left_out = left_out.unwrap_or_default().as_secs_f64();
            let outcome = Outcome { operations: u64::from(*writes), ..Outcome::default() };
            let times = Times { write: total, total, left_out, ..Times::default() };
            Sample { repeat: 0, metrics: figures(name, &times, outcome).metrics() }
        };
        table.rows.push(Row::from_samples(*name, repeats.iter().map(sample).collect()));
    }
    verdicts(&[&table])
}

#[cfg(test)]
mod tests {
    use super::super::lanes::{test_file, test_job};
    use super::super::system_counters::Bytes;
    use super::*;
    use crate::cleanup::TempFile;
    use forebay_report::result::Metrics;

    const FILE_BYTES: u64 = 2 << 20;

    fn job(temp: &TempFile, row: &str, pattern: &str, clients: usize, operations: u64, seed: u64) -> Job {
        let work = json!({
            "pattern": pattern, "clients": clients, "operations": operations, "file_bytes": FILE_BYTES,
        });
        test_job(SPEC.name, row, temp.path(), work, seed)
    }

    fn offsets(pattern: &str, operations: u64) -> Vec<u64> {
        let pattern = pattern.to_owned();
        Work { pattern, file_bytes: MIB, clients: 1, operations }.offsets(5)
    }

    #[test]
    fn dense_writes_meet_each_block_of_a_range_once_and_not_in_order() {
        let offsets = offsets("dense", 100);
        let mut sorted = offsets.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).map(|block| block * BLOCK_BYTES).collect::<Vec<_>>());
        assert_ne!(offsets, sorted);
    }

    #[test]
    fn sparse_writes_are_spread_over_the_file_and_meet_no_block_twice() {
        let mut offsets = offsets("sparse", 50);
        offsets.sort_unstable();
        offsets.dedup();
        assert_eq!(offsets.len(), 50);
        assert!(offsets.iter().all(|offset| offset.is_multiple_of(BLOCK_BYTES) && *offset < 1 << 20));
        assert!(offsets[49] > 900 << 10, "the last one is in the last fiftieth: {}", offsets[49]);
    }

    #[test]
    fn every_row_writes_all_of_its_blocks_and_no_other() {
        let (_cleanup, temp) = test_file(1, FILE_BYTES as usize);
        for (seed, way) in (1..).zip(SPEC.ways) {
            for (pattern, clients) in [("dense", 1), ("sparse", 3)] {
                let before = std::fs::read(temp.path()).expect("readable");
                // With the same seed, the block would keep its contents.
                let job = job(&temp, way.name, pattern, clients, 20, 2 * seed + clients as u64 / 2);
                let outcome =
                    Writes.sample(&job).unwrap_or_else(|error| panic!("{} {pattern}: {error:#}", way.name));
                assert_eq!(outcome.operations, 20, "{}", way.name);
                let figure = |name: &str| outcome.figures.get(name);
                assert!(figure(metric::WRITE_MS) > Some(0.0), "{}", way.name);
                assert!(figure(metric::TOTAL_MS) >= figure(metric::WRITE_MS), "{}", way.name);
                assert_eq!(figure(LEFT_OUT_MS).is_none(), is_durable(way.name), "{}", way.name);
                let after = std::fs::read(temp.path()).expect("readable");
                let mut changed: Vec<u64> = (0..FILE_BYTES / BLOCK_BYTES)
                    .filter(|block| {
                        let at = (block * BLOCK_BYTES) as usize..((block + 1) * BLOCK_BYTES) as usize;
                        before[at.clone()] != after[at]
                    })
                    .map(|block| block * BLOCK_BYTES)
                    .collect();
                changed.sort_unstable();
                let mut expected = job.work::<Work>().expect("its own").offsets(job.seed);
                expected.sort_unstable();
                assert_eq!(changed, expected, "{} {pattern}", way.name);
            }
        }
    }

    #[test]
    fn a_block_that_was_not_written_is_noticed() {
        let (_cleanup, temp) = test_file(1, FILE_BYTES as usize);
        let job = job(&temp, "naive", "dense", 1, 8, 3);
        let (clients, _, _) = write(&job).expect("it can be written");
        verify(&job, &clients).expect("all are there");
        let offset = job.work::<Work>().expect("its own").offsets(job.seed)[5];
        temp.file().write_all_at(&[0; 8], offset).expect("it may be written");
        let error = verify(&job, &clients).expect_err("one is spoilt");
        assert!(error.to_string().contains(&format!("offset {offset} ")), "{error}");
    }

    #[test]
    fn no_write_is_begun_after_the_time_is_over() {
        let (_cleanup, temp) = test_file(1, FILE_BYTES as usize);
        for way in SPEC.ways {
            let mut job = job(&temp, way.name, "dense", 2, 100, 4);
            job.seconds = 0.0;
            let outcome = Writes.sample(&job).expect("it ends");
            assert_eq!(outcome.operations, 2, "each client has begun one: {}", way.name);
        }
    }

    #[test]
    fn advertised_features_leave_out_the_reliable_ones() {
        let times = Times { write: 0.01, sync: 0.4, total: 0.5, left_out: 0.3, ..Times::default() };
        let mut outcome = Outcome { operations: 1000, bytes: 4_096_000, ..Outcome::default() };
        outcome.evidence.counter_deltas.device = Some(Bytes { read: 7, written: 8_192_000 });
        let durable = figures("sync-close", &times, outcome.clone()).metrics();
        assert_eq!(durable.get(ADVERTISED), Some(100_000.0));
        assert_eq!(durable.get(RELIABLE), Some(2_000.0));
        assert_eq!(durable.get(metric::DEVICE_BYTES_PER_BYTE), Some(2.0));
        assert_eq!((durable.get(metric::SYNC_MS), durable.get(LEFT_OUT_MS)), (Some(400.0), None));
        let naive = figures("naive", &times, outcome).metrics();
        assert_eq!((naive.get(RELIABLE), naive.get(LEFT_OUT_MS)), (None, Some(300.0)));
    }

    fn row_of(name: &str, advertised: [f64; 3], reliable: Option<[f64; 3]>) -> Row {
        let samples = (0..3).map(|repeat| {
            let mut metrics = Metrics::default();
            metrics.set(ADVERTISED, advertised[repeat]);
            if let Some(reliable) = reliable {
                metrics.set(RELIABLE, reliable[repeat]);
            }
            Sample { repeat: 0, metrics }
        });
        Row::from_samples(name, samples.collect())
    }

    fn row(name: &str, advertised: f64, reliable: Option<f64>) -> Row {
        let near = |rate: f64| [0.98, 1.0, 1.02].map(|factor| rate * factor);
        row_of(name, near(advertised), reliable.map(near))
    }

    fn table(pattern: &str, clients: u32, rows: Vec<Row>) -> Table {
        let mut table = Table::new(SPEC.name, "").parameter("pattern", pattern).parameter("clients", clients);
        table.rows = rows;
        table
    }

    /// A device with a slow flush: the page cache takes everything at once, and each flush costs.
    #[test]
    fn the_ratio_of_a_slow_flush_is_found_for_the_fewest_clients() {
        let rows = || {
            vec![
                row("naive", 400e3, None),
                row("sync-close", 390e3, Some(40e3)),
                row("o-direct-dsync", 2e3, Some(2e3)),
                row("fsync-each", 380e3, Some(1e3)),
            ]
        };
        let sentences = verdicts(&[&table("sparse", 4, rows()), &table("sparse", 1, rows())]);
        assert_eq!(
            sentences,
            [
                "sparse, 1 client(s): `naive` advertises 400,000 writes/s, 400 times the durable 1,000 (`fsync-each`); \
                 best durable: 40,000 (`sync-close`)",
                "sparse, 1 client(s): durable one by one: `o-direct-dsync` is 2 times faster than `fsync-each` \
                 (2,000 and 1,000 writes/s)",
            ]
        );
    }

    #[test]
    fn a_device_on_which_all_are_alike_is_not_accused() {
        let rows = vec![
            row("naive", 1.01e3, None),
            row("o-direct-dsync", 1.0e3, Some(1.0e3)),
            row("fsync-each", 1.0e3, Some(0.99e3)),
        ];
        let sentences = verdicts(&[&table("dense", 1, rows)]);
        assert!(sentences[0].contains("no clear difference"), "{sentences:?}");
        assert!(sentences[1].contains("all ways are about as fast"), "{sentences:?}");
    }

    /// Regression: on a disk that other machines share, repeats of one row were between 12,000 and 80,000 per second. Their
    /// medians differed by half, no row was above all repeats of another, and so they were called "about as fast".
    #[test]
    fn repeats_that_spread_widely_are_not_called_alike() {
        let rows = |first: [f64; 3]| {
            let wide = |name: &str, rates: [f64; 3]| row_of(name, rates, Some(rates));
            vec![
                wide("o-direct", first),
                wide("o-direct-dsync", [12e3, 20e3, 75e3]),
                wide("fsync-each", [14e3, 22e3, 60e3]),
            ]
        };
        let sentences = verdicts(&[&table("dense", 1, rows([15e3, 31e3, 80e3]))]);
        let text = sentences.join("\n");
        assert_eq!(sentences.len(), 3, "{text}");
        assert!(sentences[0].contains("the repeats spread too widely (12,000 to 80,000 writes/s)"), "{text}");
        assert!(sentences[1].contains("the repeats spread too widely (12,000 to 75,000 writes/s)"), "{text}");
        assert!(sentences[2].contains("(12,000 to 80,000 writes/s) to show the cost of a flush"), "{text}");
        assert!(!text.contains("about as fast") && !text.contains("no clear difference"), "{text}");
        // A row above all others is mentioned, however wide its own spread is.
        let clear = verdicts(&[&table("dense", 1, rows([150e3, 310e3, 800e3]))]);
        assert!(clear[0].contains("`o-direct` advertises 310,000 writes/s, "), "{clear:?}");
    }

    #[test]
    fn rows_without_figures_have_no_sentence() {
        assert!(verdicts(&[&table("dense", 1, vec![row("naive", 1e6, None)])]).is_empty());
        assert!(verdicts(&[&table("dense", 1, vec![Row::skipped("fsync-each", "no")])]).is_empty());
    }

    /// Returns the sentences on flushes: a write takes `write_us`, a durable one `durable_us`, and a sync of 1,000 `sync_ms`.
    fn flushes(write_us: f64, durable_us: f64, sync_ms: f64) -> Vec<String> {
        let mut plain = row("o-direct", 1e6 / write_us, None);
        for metrics in plain.samples.iter_mut().map(|sample| &mut sample.metrics).chain([&mut plain.metrics])
        {
            metrics.set(metric::TOTAL_MS, write_us).set(LEFT_OUT_MS, sync_ms);
        }
        let durable = row("o-direct-dsync", 1e6 / durable_us, Some(1e6 / durable_us));
        flush(&table("dense", 1, vec![plain, durable]))
    }

    #[test]
    fn a_slow_flush_and_a_volatile_cache_are_distinguished() {
        let slow = flushes(100.0, 5_100.0, 5.0);
        assert_eq!(slow.len(), 1, "{slow:?}");
        assert!(slow[0].contains("a flush costs 50 times as much as a write (5,000 and 100 µs)"), "{slow:?}");
        let cache = flushes(20.0, 80.0, 60.0);
        assert_eq!(cache.len(), 1, "{cache:?}");
        assert!(cache[0].contains("from a volatile cache: their sync takes 60 of 80 ms"), "{cache:?}");
        assert_eq!(flushes(20.0, 420.0, 200.0).len(), 2, "both");
        assert!(flushes(100.0, 400.0, 0.5).is_empty(), "neither, and a durable write costs something");
        let none = flushes(100.0, 120.0, 0.1);
        assert!(none.len() == 1 && none[0].contains("no sign of a volatile cache"), "{none:?}");
    }
}
