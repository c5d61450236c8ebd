//! The rows that use Forebay; no other module in this folder uses its API.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay::{Class, Config, Engine, File, Open, Polling, Scan};
use tokio::io::AsyncReadExt as _;

use super::commands;
use super::gauge::Gauge;
use super::job::{Job, RandomRow, RandomWork, Reading, ScanRow, ScanWork};
use super::latency::Latency;
use super::pace::{Offsets, Pace};
use super::pattern::Checker;
use super::reads::{NO_POLLING, why_not_polled};

const SMALL_BYTES: usize = 4096;
const SMALL_DEPTH: usize = 50;
const LARGE_BYTES: usize = 512 * 1024;
const LARGE_DEPTH: usize = 5;
const UNCACHED_BYTES: usize = 1 << 20;

/// Runs `direct-4k`: a plain thread waits for one read after the other.
pub(super) fn scan_one_at_a_time(job: &Job, work: &ScanWork) -> anyhow::Result<Reading> {
    let (engine, file) = open(job, 1, Open::read())?;
    let gauge = Gauge::start(job.device_stat.as_deref())?;
    let mut pace = Pace::new(job, work, gauge.begun());
    while pace.bytes() < work.bytes {
        let end = work.bytes.min(pace.bytes() + SMALL_BYTES as u64);
        let block = file.read(pace.bytes()..end).wait()?;
        if !pace.take(&block)? {
            break;
        }
    }
    let reading = pace.finish(gauge, Some(SMALL_BYTES as u64))?;
    drop(file);
    close(engine)?;
    Ok(reading)
}

/// Runs `direct-read-ahead`: the scan as an `AsyncRead`, in a current-thread Tokio runtime, which
/// copies every byte.
pub(super) fn scan_async_read(job: &Job, work: &ScanWork) -> anyhow::Result<Reading> {
    let (engine, file) = open(job, 1, Open::read())?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let gauge = Gauge::start(job.device_stat.as_deref())?;
    let mut pace = Pace::new(job, work, gauge.begun());
    runtime.block_on(async {
        let scan = file.scan().range(0..work.bytes).buffer(SMALL_BYTES).depth(SMALL_DEPTH).start();
        let mut reader = scan.into_async_read();
        let mut buffer = vec![0; SMALL_BYTES];
        loop {
            let got = reader.read(&mut buffer).await?;
            if got == 0 || !pace.take(&buffer[..got])? {
                return anyhow::Ok(());
            }
        }
    })?;
    let reading = pace.finish(gauge, Some((SMALL_BYTES * (SMALL_DEPTH + 1)) as u64))?;
    drop(file);
    close(engine)?;
    Ok(reading)
}

/// Runs `direct-no-copy`, `direct-large`, `default` and `uncached`: a plain thread takes the scan's blocks.
pub(super) fn scan_blocks(job: &Job, work: &ScanWork) -> anyhow::Result<Reading> {
    let options = if work.row == ScanRow::Uncached { Open::read().uncached() } else { Open::read() };
    let (engine, file) = open(job, 1, options)?;
    let gauge = Gauge::start(job.device_stat.as_deref())?;
    let mut pace = Pace::new(job, work, gauge.begun());
    let mut scan = start_scan(&file, work);
    let mut largest = 0;
    while let Some(block) = scan.next().wait().transpose()? {
        largest = largest.max(block.len() as u64);
        if !pace.take(&block)? {
            break;
        }
    }
    // While this thread holds one block the next ones are in flight.
    let held = scan.in_flight_bytes_peak() + largest;
    drop(scan);
    let reading = pace.finish(gauge, Some(held))?;
    drop(file);
    close(engine)?;
    Ok(reading)
}

fn start_scan(file: &File, work: &ScanWork) -> Scan {
    let scan = file.scan().range(0..work.bytes);
    match work.row {
        ScanRow::DirectNoCopy => scan.buffer(SMALL_BYTES).depth(SMALL_DEPTH),
        ScanRow::DirectLarge => scan.buffer(LARGE_BYTES).depth(work.depth.unwrap_or(LARGE_DEPTH)),
        ScanRow::Uncached => scan.buffer(UNCACHED_BYTES),
        _ => scan,
    }
    .start()
}

/// Runs `direct` and `direct-polled`: the reads in flight are tasks on the shards, which never
/// leave their thread.
pub(super) fn random_on_shards(job: &Job, work: &RandomWork) -> anyhow::Result<Reading> {
    let shards = work.threads.clamp(1, work.depth);
    let polling = if work.row == RandomRow::DirectPolled { Polling::On } else { Polling::Off };
    let engine = Engine::start(Config::default().shards(shards).polling(polling))?;
    let files = (0..shards)
        .map(|shard| {
            let file = engine.open(&job.path, Open::read().shard(shard)).wait()?;
            // The first read sets up the polled ring, and shows whether the file system
            // accepts polled reads.
            if polling == Polling::On {
                file.read_up_to(0..1).wait()?;
            }
            Ok(file)
        })
        .collect::<anyhow::Result<Vec<File>>>()?;
    if let Some(why) = why_not_polled(&engine) {
        return Err(anyhow::anyhow!(why).context(NO_POLLING));
    }
    let shared = Arc::new((job.clone(), work.clone()));
    let gauge = Gauge::start(job.device_stat.as_deref())?;
    let handles: Vec<_> = files
        .iter()
        .enumerate()
        .map(|(shard, file)| {
            let (file, shared) = (file.clone(), Arc::clone(&shared));
            engine.spawn_on_shard(shard, Class::DEFAULT, move || shard_reader(file, shared, shard, shards))
        })
        .collect();
    let mut parts = Vec::with_capacity(shards);
    for handle in handles {
        parts.push(handle.wait()??);
    }
    let reading = gather(gauge, work, parts)?;
    drop(files);
    close(engine)?;
    Ok(reading)
}

/// Runs `direct-commands`: the same reads from the namespace, within the length of the span.
pub(super) fn random_by_commands(job: &Job, work: &RandomWork) -> anyhow::Result<Reading> {
    let job = commands::of_namespace(job)?;
    let (engine, file) = commands::open(&job.path)?;
    if let Some(why) = why_not_polled(&engine) {
        return Err(anyhow::anyhow!(why).context(NO_POLLING));
    }
    let bytes = work.span_bytes.min(file.len().wait()?) / work.block_bytes * work.block_bytes;
    anyhow::ensure!(bytes > 0, "the namespace is shorter than a block");
    let work = RandomWork { span_start: 0, span_bytes: bytes, threads: 1, ..work.clone() };
    let shared = Arc::new((job, work));
    let gauge = Gauge::start(None)?;
    let of_task = (file.clone(), Arc::clone(&shared));
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || shard_reader(of_task.0, of_task.1, 0, 1));
    let reading = gather(gauge, &shared.1, vec![task.wait()??])?;
    drop(file);
    close(engine)?;
    Ok(reading)
}

/// A part of a sample: the latencies of its reads, and the result of the check of their data.
type Part = (Latency, u64);

async fn shard_reader(
    file: File,
    shared: Arc<(Job, RandomWork)>,
    shard: usize,
    shards: usize,
) -> anyhow::Result<Part> {
    let (job, work) = &*shared;
    let latency = Rc::new(RefCell::new(Latency::new()?));
    // One deadline for all: lanes with their own deadlines would leave the last of them alone at the end.
    let deadline = Instant::now() + Duration::from_secs_f64(work.seconds);
    let mut lanes = Vec::new();
    for lane in (shard..work.depth).step_by(shards) {
        let (file, latency) = (file.clone(), Rc::clone(&latency));
        let (offsets, checker) = (Offsets::new(work, lane), Checker::new(job.pattern()));
        let block_bytes = work.block_bytes;
        lanes.push(forebay::shard::spawn(async move {
            read_until(&file, offsets, checker, block_bytes, deadline, |time| {
                latency.borrow_mut().record(time)
            })
            .await
        })?);
    }
    let mut folded = 0;
    for lane in lanes {
        folded ^= lane.await??;
    }
    let latency = latency.borrow().clone();
    Ok((latency, folded))
}

/// Keeps one read in flight, one after the other, until the deadline.
async fn read_until(
    file: &File,
    mut offsets: Offsets,
    mut checker: Checker,
    block_bytes: u64,
    deadline: Instant,
    mut record: impl FnMut(Duration),
) -> anyhow::Result<u64> {
    let (mut begun, mut is_first) = (Instant::now(), true);
    // A read that takes longer than the whole sample is measured, too.
    while begun < deadline || is_first {
        let offset = offsets.next_offset();
        let block = file.read(offset..offset + block_bytes).await?;
        let ended = Instant::now();
        record(ended - begun);
        checker.check(offset, &block)?;
        (begun, is_first) = (ended, false);
    }
    Ok(checker.folded())
}

/// Runs `direct-tokio`: the reads in flight are tasks of a multi-thread Tokio runtime.
pub(super) fn random_from_tokio(job: &Job, work: &RandomWork) -> anyhow::Result<Reading> {
    let (engine, file) = open(job, work.threads.clamp(1, work.depth), Open::read())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(work.threads).build()?;
    let gauge = Gauge::start(job.device_stat.as_deref())?;
    let parts = runtime.block_on(async {
        let deadline = Instant::now() + Duration::from_secs_f64(work.seconds);
        let mut lanes = Vec::with_capacity(work.depth);
        for lane in 0..work.depth {
            let file = file.clone();
            let (offsets, checker) = (Offsets::new(work, lane), Checker::new(job.pattern()));
            let (block_bytes, mut latency) = (work.block_bytes, Latency::new()?);
            lanes.push(tokio::spawn(async move {
                let folded =
                    read_until(&file, offsets, checker, block_bytes, deadline, |time| latency.record(time))
                        .await?;
                anyhow::Ok((latency, folded))
            }));
        }
        let mut parts = Vec::with_capacity(work.depth);
        for lane in lanes {
            parts.push(lane.await.context("a reading task panicked")??);
        }
        anyhow::Ok(parts)
    })?;
    let reading = gather(gauge, work, parts)?;
    drop(file);
    close(engine)?;
    Ok(reading)
}

/// The gap up to which `read-many-wide` merges blocks; the waste and the request size that it
/// allows follow.
const WIDE_GAP_BYTES: u64 = 128 << 10;
const WIDE_WASTE_BYTES: u64 = 512 << 10;
const WIDE_REQUEST_BYTES: u64 = 1 << 20;

/// Runs `read-many` and `read-many-wide`. A task on a shard requests as many blocks at a time as there are
/// reads in flight, and waits for all of them. The time of this wait is the latency of each.
pub(super) fn random_read_many(job: &Job, work: &RandomWork) -> anyhow::Result<Reading> {
    let (engine, file) = open(job, 1, Open::read())?;
    let shared = (file.clone(), job.clone(), work.clone());
    let gauge = Gauge::start(job.device_stat.as_deref())?;
    let reading = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let (file, job, work) = shared;
        let (mut offsets, mut checker) = (Offsets::new(&work, 0), Checker::new(job.pattern()));
        let mut latency = Latency::new()?;
        let mut begun = Instant::now();
        let deadline = begun + Duration::from_secs_f64(work.seconds);
        while begun < deadline {
            let ranges: Vec<_> = (0..work.depth)
                .map(|_| offsets.next_offset())
                .map(|offset| offset..offset + work.block_bytes)
                .collect();
            let mut many = file.read_many(ranges.iter().cloned()).depth(work.depth as u32);
            if work.row == RandomRow::ReadManyWide {
                many = many.max_gap(WIDE_GAP_BYTES).amplify_at_most(WIDE_WASTE_BYTES);
                many = many.request_bytes_max(WIDE_REQUEST_BYTES);
            }
            let blocks = many.await?;
            let ended = Instant::now();
            for (range, block) in ranges.iter().zip(blocks) {
                latency.record(ended - begun);
                checker.check(range.start, &block?)?;
            }
            begun = ended;
        }
        anyhow::Ok((latency, checker.folded()))
    });
    let part = reading.wait()??;
    let reading = gather(gauge, work, vec![part])?;
    drop(file);
    close(engine)?;
    Ok(reading)
}

fn gather(gauge: Gauge, work: &RandomWork, parts: Vec<Part>) -> anyhow::Result<Reading> {
    let cost = gauge.stop()?;
    let mut latency = Latency::new()?;
    let mut folded = 0;
    for (part, word) in parts {
        latency.add(&part)?;
        folded ^= word;
    }
    Ok(Reading {
        cost,
        bytes: latency.count() * work.block_bytes,
        operations: latency.count(),
        latency: Some(latency),
        buffers_peak_bytes: Some(work.block_bytes * work.depth as u64),
        folded,
    })
}

fn open(job: &Job, shards: usize, options: Open) -> anyhow::Result<(Engine, File)> {
    let engine = Engine::start(Config::default().shards(shards))?;
    let file = engine.open(&job.path, options).wait()?;
    Ok((engine, file))
}

/// Closes the engine after the figures were taken. A row whose engine does not end well cannot be trusted.
fn close(engine: Engine) -> anyhow::Result<()> {
    let report = engine.close().wait()?;
    anyhow::ensure!(
        report.leaked_operations == 0 && report.lost_shards == 0,
        "the engine lost {} shards and {} operations as it was closed",
        report.lost_shards,
        report.leaked_operations
    );
    Ok(())
}
