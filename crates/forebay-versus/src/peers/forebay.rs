//! Forebay: next to the device (on a shard), from Tokio, and as one batch. One shard, everything else at its
//! default.

use forebay::{Class, Config, DriverChoice, Durability, Engine, File, Open, shard};
use tokio::runtime::Builder;

use crate::prelude::*;
use crate::random::Offsets;

/// Ranges of one `read_many`.
const BATCH_RANGES: usize = 20_000;

/// Starts a task on the shard whose thread this is; the future is its result.
pub(crate) fn spawn<T: Send + 'static>(
    task: impl Future<Output = Result<T>> + 'static,
) -> impl Future<Output = Result<T>> {
    let task = shard::spawn(task);
    async { task?.await? }
}

/// Measures random reads on the shard: `depth` tasks there, each with one read in flight.
pub(crate) fn random_on_shard(reads: &Work) -> Result<Outcome> {
    let (engine, file) = open(config(), reads, Open::read())?;
    let (window, reads) = (reads.window(), reads.clone());
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let lanes = (0..reads.depth).map(|i| (file.clone(), reads.offsets(i)));
        let meter = local_tasks!(window, spawn, lanes, |(file, mut offsets)| {
            read_one(&file, &mut offsets).await?;
        });
        anyhow::Ok(window.outcome([meter]))
    });
    with_stats(&engine, task.wait()??)
}

/// Measures random reads from Tokio: `depth` tasks of the multi-threaded (one worker per core) or the
/// current-thread runtime. With threads as the driver the workers use native AIO.
pub(crate) fn random_from_tokio(
    reads: &Work,
    multi_thread: bool,
    driver: DriverChoice,
    open_as: Open,
) -> Result<Outcome> {
    let (engine, file) = open(config().driver(driver), reads, open_as)?;
    // As `#[tokio::main]` makes it.
    let mut runtime = if multi_thread { Builder::new_multi_thread() } else { Builder::new_current_thread() };
    let runtime = runtime.enable_all().build()?;
    let lanes = (0..reads.depth).map(|i| (file.clone(), reads.offsets(i)));
    let outcome = tokio_tasks!(reads, runtime, lanes, |(file, mut offsets)| {
        read_one(&file, &mut offsets).await?;
    });
    with_stats(&engine, outcome?)
}

/// Measures durable writes at random pages from Tokio: `depth` tasks, each with one write through the page cache in flight.
pub(crate) fn writes_from_tokio(writes: &Work) -> Result<Outcome> {
    let (engine, file) = open(config(), writes, Open::write().buffered())?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let lanes = (0..writes.depth).map(|i| (file.clone(), writes.offsets(i), vec![7_u8; writes.block_bytes]));
    let outcome = tokio_tasks!(writes, runtime, lanes, |(file, mut offsets, data)| {
        file.write(offsets.next(), &data).durable(Durability::Data).await?;
    });
    with_stats(&engine, outcome?)
}

/// Measures random reads from `depth` plain threads, each of which waits for its one read.
pub(crate) fn random_from_threads(reads: &Work, open_as: Open) -> Result<Outcome> {
    let (engine, file) = open(config(), reads, open_as)?;
    let lanes = (0..reads.depth).map(|i| {
        let (file, mut offsets) = (&file, reads.offsets(i));
        move || {
            let offset = offsets.next();
            let block = file.read(offset..offset + BLOCK_BYTES as u64).wait()?;
            offsets.check(&block, offset)
        }
    });
    with_stats(&engine, threads(reads, lanes)?)
}

/// Measures batches of 20,000 ranges from Tokio, each as one `read_many`; nearby ranges are not merged, so
/// that as many reads are made as the shard's row makes. Only whole batches count; the first one warms up.
pub(crate) fn random_read_many(reads: &Work) -> Result<Outcome> {
    // A batch is held in memory as a whole, because it is one result.
    let config = config().arena_bytes(128 << 20).arena_bytes_max(256 << 20);
    let (_engine, file) = open(config, reads, Open::read())?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let mut offsets = reads.offsets(0);
    let (mut elapsed, mut ranges_read) = (Duration::ZERO, 0);
    let mut used: Option<Usage> = None;
    let mut warm = false;
    while elapsed < Duration::from_secs_f64(reads.seconds) {
        let places = std::iter::repeat_with(|| offsets.next()).take(BATCH_RANGES);
        let ranges: Vec<_> = places.map(|offset| offset..offset + BLOCK_BYTES as u64).collect();
        let first = ranges[0].start;
        let before = Usage::now();
        let begun = Instant::now();
        runtime.block_on(async {
            let blocks = file.read_many(ranges).gap_bytes_max(0).depth(reads.depth as u32).await?;
            ensure!(blocks.len() == BATCH_RANGES, "{} of {BATCH_RANGES} ranges came back", blocks.len());
            for (place, block) in blocks.iter().enumerate() {
                let block = block.as_ref().map_err(|error| anyhow!("{error}"))?;
                ensure!(block.len() == BLOCK_BYTES, "a range gave {} bytes", block.len());
                if place == 0 {
                    files::check_start(block, first)?;
                }
            }
            anyhow::Ok(())
        })?;
        if std::mem::replace(&mut warm, true) {
            elapsed += begun.elapsed();
            ranges_read += BATCH_RANGES as u64;
            let now = Usage::now().since(&before);
            used = Some(used.map_or(now, |sum| sum.plus(&now)));
        }
    }
    let (seconds, ios) = (elapsed.as_secs_f64(), ranges_read as f64);
    let mut outcome = Outcome::lasting(seconds).figure("iops", ios / seconds).figure("ios", ios);
    used.context("no batch was measured")?.add_to(&mut outcome, ranges_read);
    Ok(outcome)
}

/// Measures the scan on the shard; without a geometry the default one, which adapts.
pub(crate) fn scan_on_shard(scan: &Work, open: Open, geometry: Option<(usize, usize)>) -> Result<Outcome> {
    let engine = start()?;
    let (inner, scan) = (engine.clone(), scan.clone());
    engine.spawn_on_shard(0, Class::DEFAULT, move || run_scan(inner, scan, open, geometry)).wait()?
}

/// Measures the scan from a task of the current-thread runtime.
pub(crate) fn scan_from_tokio(scan: &Work, geometry: Option<(usize, usize)>) -> Result<Outcome> {
    let scan = run_scan(start()?, scan.clone(), Open::read(), geometry);
    Builder::new_current_thread().enable_all().build()?.block_on(scan)
}

async fn run_scan(
    engine: Engine,
    scan: Work,
    open: Open,
    geometry: Option<(usize, usize)>,
) -> Result<Outcome> {
    let pass = scan.begin();
    let mut builder = engine.open(&scan.path, open).await?.scan();
    if let Some((bytes, depth)) = geometry {
        builder = builder.request_bytes(bytes).depth(depth);
    }
    let mut scan = builder.start();
    let (mut checksum, mut offset) = (Checksum::default(), 0);
    while let Some(block) = scan.next().await.transpose()? {
        checksum.add(offset, &block);
        offset += block.len() as u64;
    }
    Ok(pass.finish(&checksum)?.figure("buffers_peak_bytes", scan.in_flight_bytes_peak() as f64))
}

/// Runs `operations` times `engine.nop()`, from `depth` tasks on the shard.
pub(crate) fn nop(depth: usize, operations: u64) -> Result<Outcome> {
    usage::count_allocations();
    let engine = start()?;
    let inner = engine.clone();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        nop_round(&inner, depth, operations / 10).await?;
        let (before, begun) = (Usage::now(), Instant::now());
        nop_round(&inner, depth, operations).await?;
        let elapsed = begun.elapsed();
        let used = Usage::now().since(&before);
        let ns = elapsed.as_nanos() as f64 / operations as f64;
        let mut outcome = Outcome::lasting(elapsed.as_secs_f64()).figure("ns_per_operation", ns);
        used.add_to(&mut outcome, operations);
        anyhow::Ok(outcome)
    });
    task.wait()?
}

async fn nop_round(engine: &Engine, depth: usize, operations: u64) -> Result<()> {
    let tasks = (0..depth as u64).map(|i| {
        let engine = engine.clone();
        let mine = operations / depth as u64 + u64::from(i < operations % depth as u64);
        spawn(async move {
            for _ in 0..mine {
                engine.nop().await?;
            }
            Ok(())
        })
    });
    all(tasks).await.map(drop)
}

async fn read_one(file: &File, offsets: &mut Offsets) -> Result<()> {
    let offset = offsets.next();
    let block = file.read(offset..offset + offsets.block_bytes as u64).await?;
    offsets.check(&block, offset)
}

fn config() -> Config {
    Config::new().shards(1)
}

fn start() -> Result<Engine> {
    Ok(Engine::start(config())?)
}

/// Starts an engine that opens the test file, and counts allocations.
fn open(config: Config, reads: &Work, open: Open) -> Result<(Engine, File)> {
    usage::count_allocations();
    let engine = Engine::start(config)?;
    let file = engine.open(&reads.path, open).wait()?;
    Ok((engine, file))
}

/// Adds the engine's own counters over its whole life: system calls and turns of the shard, bytes read per
/// byte requested.
fn with_stats(engine: &Engine, outcome: Outcome) -> Result<Outcome> {
    let stats = engine.stats().wait()?;
    let (enters, turns) =
        stats.shards.iter().fold((0, 0), |(e, t), shard| (e + shard.enters, t + shard.turns));
    let reads: u64 = stats.flows.iter().map(|flow| flow.reads).sum();
    Ok(outcome
        .figure("enters_per_turn", enters as f64 / turns as f64)
        .figure("enters_per_io", enters as f64 / reads as f64)
        .figure("degradations", engine.health().degraded.len() as f64))
}
