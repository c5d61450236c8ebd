//! `measure writes`: until they are durable, gathered in memory ([`patterns`]), and for a minute and longer ([`sustain`]).
//!
//! Here are random writes of 4 KiB into a file that was written before, with the parts of a program's time for them that are
//! usually left out: open, sync, close.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay::{Config, Durability, Engine, Open};
use forebay_collective::{Options, WriteCombiner};

use crate::aligned::AlignedBuffer;
use crate::gates::processors;
use crate::lanes::ready;
use crate::prelude::*;
use crate::residency::evict;
use forebay_report::page::noise::NOTEWORTHY;
use forebay_report::result::Sample;

mod patterns;
pub(crate) mod sustain;

pub(crate) use patterns::Patterns;

#[derive(Debug)]
pub(crate) struct Writes;

static SPEC: Spec = Spec {
    name: "writes",
    about: "Write blocks at random, with and without the time for open, sync and close, in several ways",
    quick_seconds: 6,
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
            &["sync-at-end", "sync-close", "forebay", "forebay-combine"],
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
/// Memory that write combining keeps free and in flight in addition to the waiting pages.
const COMBINE_SPARE_BYTES: usize = 16 << 20;
/// Number of blocks of each client that are checked afterwards, the last blocks that it wrote.
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
        let heading =
            format!("Random writes of {}, {}", shown_bytes(table, "block_bytes"), shown(table, "pattern"));
        (format!("{heading}, {}", clients(table)), heading)
    }

    fn verdicts(&self, tables: &[&Table]) -> Vec<String> {
        // For each pattern on the fewest clients.
        let mut fewest: Vec<&Table> = Vec::new();
        for table in tables {
            match fewest.iter_mut().find(|known| shown(known, "pattern") == shown(table, "pattern")) {
                Some(known) if table.number("clients") < known.number("clients") => *known = table,
                Some(_) => {}
                None => fewest.push(table),
            }
        }
        let of = |table: &&Table| {
            let title = format!("{}, {}", shown(table, "pattern"), clients(table));
            let found = range(table).into_iter().chain(each_durable(table)).chain(flush(table));
            found.map(|sentence| format!("{title}: {sentence}")).collect::<Vec<_>>()
        };
        fewest.iter().flat_map(of).collect()
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
        // Each row writes different blocks, so that no block is written again while a device still has it in its cache.
        let row = SPEC.ways.iter().position(|way| way == turn.way).unwrap_or(0) as u64;
        job.seed ^= row << 3 ^ (turn.count("clients") as u64) << 8;
        // Syncing lasts as long as the device needs for the bytes written in that time.
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
    /// The range is cut into one equal part for each write, and one block of each part is written. So no block is written twice,
    /// and sparse blocks are spread over the whole file.
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

/// Returns the contents of the blocks of a sample. They differ from the previous contents of the file, which were made from the
/// seed of the run itself.
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
                let options = Options::new().memory_bytes_max(bytes + COMBINE_SPARE_BYTES);
                let combiner = WriteCombiner::start(&file, options);
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

/// Runs one client, which writes its blocks and starts no write after the deadline.
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
    /// Time from the start until the last client was ready.
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
        with_engine(Config::new().shards(1), |engine| {
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
    // Also where the row has made a sync: its bytes on the device belong to it, and the next sample starts clean.
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

fn clients(table: &Table) -> String {
    format!("{} client(s)", shown(table, "clients"))
}

/// Minimum cost factor of durability: below it, a write that must be durable is as good as durable without a flush.
const DURABLE_COSTS: f64 = 1.5;
/// Cost factor from which a flush is worth planning for.
const FLUSH_COSTS: f64 = 10.0;
/// Minimum factor between a flush of many writes and one of a single write: from here on it had data to write to the medium.
const DRAINS: f64 = 5.0;
/// Minimum share of the time until all was durable, for the same conclusion.
const DRAIN_SHARE: f64 = 0.05;

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
    let is_near = durable_us < DURABLE_COSTS * write_us;
    let rows = [(plain, ADVERTISED), (durable, ADVERTISED)];
    // Two costs that are near have to be known each.
    let wide = if is_near { rows.iter().find_map(|row| spread(&[*row])) } else { spread(&rows) };
    if let Some(spread) = wide.filter(|_| !above(plain, ADVERTISED, durable, ADVERTISED)) {
        return vec![format!("{spread} to show the cost of a flush{once}")];
    }
    if is_near {
        return vec![format!(
            "a durable write takes {} µs, others {} µs: no sign of a volatile cache{once}",
            number(durable_us),
            number(write_us)
        )];
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

/// The writes of one client in a simulated repeat: their number, their time, and the time of the sync left out.
#[cfg(test)]
pub(crate) type SimulatedRepeat = (u32, Duration, Option<Duration>);

/// Returns the sentences on such writes.
#[cfg(test)]
pub(crate) fn simulated(rows: &[(&str, Vec<SimulatedRepeat>)]) -> Vec<String> {
    let mut table = Table::new(SPEC.name, "").parameter("pattern", "sparse").parameter("clients", 1);
    for (name, repeats) in rows {
        let sample = |(writes, time, left_out): &SimulatedRepeat| {
            let total = time.as_secs_f64();
            let left_out = left_out.unwrap_or_default().as_secs_f64();
            let outcome = Outcome { operations: u64::from(*writes), ..Outcome::default() };
            let times = Times { write: total, total, left_out, ..Times::default() };
            Sample { repeat: 0, metrics: figures(name, &times, outcome).metrics() }
        };
        table.rows.push(Row::from_samples(*name, repeats.iter().map(sample).collect()));
    }
    Writes.verdicts(&[&table])
}

#[cfg(test)]
mod tests;
