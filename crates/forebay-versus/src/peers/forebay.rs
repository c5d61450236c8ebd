//! Forebay: next to the device (on a shard), from Tokio, and as one batch. One shard, everything else at its
//! default.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use forebay::{Block, Class, Config, DriverChoice, Engine, File, Open, shard};
use tokio::runtime::Builder;

use crate::allocations;
use crate::content::{self, Checksum};
use crate::meter::{LocalMeter, Window};
use crate::peers::std_threads::join_all;
use crate::random::{BLOCK_BYTES, RandomJob};
use crate::rng::Rng;
use crate::sample::Sample;
use crate::scan::ScanJob;
use crate::usage::Usage;

/// Ranges of one `read_many`.
const BATCH_RANGES: usize = 20_000;

/// Measures random reads on the shard: `depth` tasks there, each with one read in flight.
pub(crate) fn random_on_shard(job: &RandomJob) -> Result<Sample> {
    allocations::start_counting();
    let engine = start()?;
    let file = engine.open(&job.path, Open::read()).wait()?;
    let window = Window::start(job.warm_up, job.measure);
    let job = job.clone();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let meter = LocalMeter::new(&window);
        let tasks: Vec<_> = (0..job.depth)
            .map(|i| {
                let (file, meter, mut rng) = (file.clone(), meter.clone(), Rng::new(job.seed, i));
                let file_bytes = job.file_bytes;
                shard::spawn(async move {
                    let mut first = true;
                    let mut began = meter.begin();
                    loop {
                        read_one(&file, &mut rng, file_bytes, &mut first).await?;
                        match meter.finish(began) {
                            Some(now) => began = now,
                            None => return anyhow::Ok(()),
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task?.await??;
        }
        anyhow::Ok(meter.sample(&window))
    });
    let mut sample = task.wait()??;
    add_stats(&engine, &mut sample)?;
    Ok(sample)
}

/// Measures random reads from Tokio: `depth` tasks of the multi-threaded (one worker per core) or the
/// current-thread runtime. With threads as the driver the workers use native AIO.
pub(crate) fn random_from_tokio(job: &RandomJob, multi_thread: bool, driver: DriverChoice) -> Result<Sample> {
    allocations::start_counting();
    let engine = Engine::start(config().driver(driver))?;
    let file = engine.open(&job.path, Open::read()).wait()?;
    // As `#[tokio::main]` makes it.
    let mut runtime = if multi_thread { Builder::new_multi_thread() } else { Builder::new_current_thread() };
    let runtime = runtime.enable_all().build()?;
    let window = Window::start(job.warm_up, job.measure);
    let meters = runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for i in 0..job.depth {
            let (file, mut meter, mut rng) = (file.clone(), window.meter(), Rng::new(job.seed, i));
            let file_bytes = job.file_bytes;
            tasks.spawn(async move {
                let mut first = true;
                let mut began = meter.begin();
                loop {
                    read_one(&file, &mut rng, file_bytes, &mut first).await?;
                    match meter.finish(began) {
                        Some(now) => began = now,
                        None => return anyhow::Ok(meter),
                    }
                }
            });
        }
        tasks.join_all().await.into_iter().collect::<Result<Vec<_>>>()
    })?;
    let mut sample = window.sample(meters);
    add_stats(&engine, &mut sample)?;
    Ok(sample)
}

/// Measures random reads from `depth` plain threads, each of which waits for its one read.
pub(crate) fn random_from_threads(job: &RandomJob, open: Open) -> Result<Sample> {
    allocations::start_counting();
    let engine = start()?;
    let file = engine.open(&job.path, open).wait()?;
    let window = Window::start(job.warm_up, job.measure);
    let meters = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..job.depth)
            .map(|i| {
                let (file, mut meter, mut rng) = (&file, window.meter(), Rng::new(job.seed, i));
                scope.spawn(move || -> Result<_> {
                    let mut first = true;
                    let mut began = meter.begin();
                    loop {
                        let offset = rng.page_offset(job.file_bytes);
                        let block = file.read(offset..offset + BLOCK_BYTES as u64).wait()?;
                        check_first(&block, offset, &mut first)?;
                        match meter.finish(began) {
                            Some(now) => began = now,
                            None => return Ok(meter),
                        }
                    }
                })
            })
            .collect();
        join_all(threads)
    })?;
    let mut sample = window.sample(meters);
    add_stats(&engine, &mut sample)?;
    Ok(sample)
}

/// Measures batches of 20,000 ranges from Tokio, each as one `read_many`; nearby ranges are not merged, so
/// that as many reads are made as the shard's row makes. Only whole batches count; the first one warms up.
pub(crate) fn random_read_many(job: &RandomJob) -> Result<Sample> {
    allocations::start_counting();
    // A batch is held in memory as a whole, because it is one result.
    let engine = Engine::start(config().arena_bytes(128 << 20).arena_bytes_max(256 << 20))?;
    let file = engine.open(&job.path, Open::read()).wait()?;
    let runtime = Builder::new_multi_thread().build()?;
    let mut rng = Rng::new(job.seed, 0);
    let batch = |rng: &mut Rng| -> Vec<_> {
        let offsets = std::iter::repeat_with(|| rng.page_offset(job.file_bytes));
        offsets.take(BATCH_RANGES).map(|offset| offset..offset + BLOCK_BYTES as u64).collect()
    };
    let (mut elapsed, mut ranges_read) = (Duration::ZERO, 0);
    let mut used: Option<Usage> = None;
    let mut warm = false;
    while elapsed < job.measure {
        let ranges = batch(&mut rng);
        let first = ranges[0].start;
        let before = Usage::now();
        let begun = Instant::now();
        runtime.block_on(async {
            let blocks = file.read_many(ranges).max_gap(0).depth(job.depth as u32).await?;
            ensure!(blocks.len() == BATCH_RANGES, "{} of {BATCH_RANGES} ranges came back", blocks.len());
            for block in &blocks {
                let block = block.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
                ensure!(block.len() == BLOCK_BYTES, "a range gave {} bytes", block.len());
            }
            let block = blocks[0].as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
            content::check_start(block, first)
        })?;
        if std::mem::replace(&mut warm, true) {
            elapsed += begun.elapsed();
            ranges_read += BATCH_RANGES as u64;
            let now = Usage::now().since(&before);
            used = Some(used.map_or(now, |sum| sum.plus(&now)));
        }
    }
    let mut sample = Sample::default();
    sample.set("iops", ranges_read as f64 / elapsed.as_secs_f64());
    sample.set("ios", ranges_read as f64);
    sample.set_usage(&used.context("no batch was measured")?, ranges_read);
    Ok(sample)
}

/// Measures the scan on the shard; without a geometry the default one, which adapts.
pub(crate) fn scan_on_shard(job: &ScanJob, open: Open, geometry: Option<(usize, usize)>) -> Result<Sample> {
    let engine = start()?;
    let (inner, path) = (engine.clone(), job.path.clone());
    let job = job.clone();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let begun = job.begin();
        let file = inner.open(&path, open).await?;
        scan(&job, begun, &file, geometry).await
    });
    task.wait()?
}

/// Measures the scan from a task of the current-thread runtime.
pub(crate) fn scan_from_tokio(job: &ScanJob, geometry: Option<(usize, usize)>) -> Result<Sample> {
    let engine = start()?;
    Builder::new_current_thread().build()?.block_on(async {
        let begun = job.begin();
        let file = engine.open(&job.path, Open::read()).await?;
        scan(job, begun, &file, geometry).await
    })
}

/// Runs `operations` times `engine.nop()`, from `depth` tasks on the shard.
pub(crate) fn nop(depth: usize, operations: u64) -> Result<Sample> {
    allocations::start_counting();
    let engine = start()?;
    let inner = engine.clone();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        nop_round(&inner, depth, operations / 10).await?;
        let before = Usage::now();
        let begun = Instant::now();
        nop_round(&inner, depth, operations).await?;
        let elapsed = begun.elapsed();
        let used = Usage::now().since(&before);
        let mut sample = Sample::default();
        sample.set("ns_per_operation", elapsed.as_nanos() as f64 / operations as f64);
        sample.set_usage(&used, operations);
        anyhow::Ok(sample)
    });
    task.wait()?
}

async fn nop_round(engine: &Engine, depth: usize, operations: u64) -> Result<()> {
    let tasks: Vec<_> = (0..depth as u64)
        .map(|i| {
            let engine = engine.clone();
            let mine = operations / depth as u64 + u64::from(i < operations % depth as u64);
            shard::spawn(async move {
                for _ in 0..mine {
                    engine.nop().await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task?.await??;
    }
    Ok(())
}

async fn scan(
    job: &ScanJob,
    begun: (Instant, Usage),
    file: &File,
    geometry: Option<(usize, usize)>,
) -> Result<Sample> {
    let builder = file.scan();
    let mut scan = match geometry {
        Some((bytes, depth)) => builder.buffer(bytes).depth(depth).start(),
        None => builder.start(),
    };
    let (mut checksum, mut offset) = (Checksum::default(), 0);
    while let Some(block) = scan.next().await.transpose()? {
        checksum.add(offset, &block);
        offset += block.len() as u64;
    }
    let mut sample = job.finish(begun, &checksum)?;
    sample.set("buffers_peak_bytes", scan.in_flight_bytes_peak() as f64);
    Ok(sample)
}

async fn read_one(file: &File, rng: &mut Rng, file_bytes: u64, first: &mut bool) -> Result<()> {
    let offset = rng.page_offset(file_bytes);
    let block = file.read(offset..offset + BLOCK_BYTES as u64).await?;
    check_first(&block, offset, first)
}

/// Checks the contents of a task's first block.
fn check_first(block: &Block, offset: u64, first: &mut bool) -> Result<()> {
    if std::mem::take(first) {
        ensure!(block.len() == BLOCK_BYTES, "a read gave {} bytes", block.len());
        content::check_start(block, offset)?;
    }
    Ok(())
}

fn config() -> Config {
    Config::default().shards(1)
}

fn start() -> Result<Engine> {
    Ok(Engine::start(config())?)
}

/// Adds the engine's own counters over its whole life: system calls and turns of the shard, bytes read per
/// byte requested.
fn add_stats(engine: &Engine, sample: &mut Sample) -> Result<()> {
    let stats = engine.stats().wait()?;
    let enters: u64 = stats.shards.iter().map(|shard| shard.enters).sum();
    let turns: u64 = stats.shards.iter().map(|shard| shard.turns).sum();
    let reads: u64 = stats.flows.iter().map(|flow| flow.reads).sum();
    sample.set("enters_per_turn", enters as f64 / turns as f64);
    sample.set("enters_per_io", enters as f64 / reads as f64);
    sample.set("degradations", engine.health().degraded.len() as f64);
    Ok(())
}
