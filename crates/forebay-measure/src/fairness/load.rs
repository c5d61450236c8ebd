//! One sample: the reader's times and the hogs' bytes.

use std::cell::Cell;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay::{Block, Class, Config, Engine, File, Open};

use super::super::gauge::Gauge;
use super::super::interleave::Evidence;
use super::super::latency::Latency;
use super::super::pattern::{Pattern, SplitMix};
use super::job::{FairRow, FairWork, FairnessResult, HOG_BYTES, HOG_DEPTH, READ_BYTES};
use super::other::OtherHogs;
use crate::output::print;

/// Runs the sample on the file at `path`.
///
/// # Errors
/// Fails when a read or a write failed, or the kernel's idle class is not available.
pub(super) fn sample(path: &Path, device_stat: Option<&Path>, work: &FairWork) -> anyhow::Result<String> {
    if let (FairRow::HogsAlone, Some(procs_file)) = (work.row, &work.hogs_procs) {
        // Before the engine starts its threads.
        std::fs::write(procs_file, "0")
            .with_context(|| format!("the hogs may not enter {}", procs_file.display()))?;
    }
    let others = match (work.row, &work.hogs_procs) {
        (FairRow::CgroupIo, Some(_)) => Some(OtherHogs::start(path, work)?),
        (FairRow::CgroupIo, None) => anyhow::bail!("no cgroup was made for the hogs"),
        _ => None,
    };
    let engine = Engine::start(Config::default().shards(1))?;
    let (hog_class, apart) = match work.row {
        FairRow::Classes => (Class::BACKGROUND, None),
        FairRow::Ionice => (Class::DEFAULT, Some(Engine::start(Config::default().shards(1))?)),
        _ => (Class::DEFAULT, None),
    };
    if let Some(engine) = &apart {
        let thread =
            engine.spawn_on_shard(0, Class::DEFAULT, || async { rustix::thread::gettid() }).wait()?;
        make_idle(thread.as_raw_nonzero().get())?;
    }
    let hog_engine = apart.as_ref().unwrap_or(&engine);
    let small = engine.open(path, Open::read()).wait()?;
    let large = hog_engine.open(path, if work.writes { Open::write() } else { Open::read() }).wait()?;
    let gauge = Gauge::start(device_stat)?;
    if work.row == FairRow::HogsAlone && work.hogs_procs.is_some() {
        // The reader, in the other process, begins now.
        print("begun\n")?;
    }
    let begun = gauge.begun();
    let until = begun + Duration::from_secs_f64(work.seconds);
    let hogs = {
        let (work, engine) = (work.clone(), hog_engine.clone());
        hog_engine.spawn_on_shard(0, hog_class, move || hogs(large, work, until, engine))
    };
    let reader = {
        let work = work.clone();
        engine.spawn_on_shard(0, Class::DEFAULT, move || reader(small, work, until))
    };
    let (latency, mut hog_bytes) = (reader.wait()??, hogs.wait()??);
    if let Some(others) = others {
        hog_bytes = others.finish()?;
    }
    let cost = gauge.stop()?;
    for engine in [Some(engine), apart].into_iter().flatten() {
        let report = engine.close().wait()?;
        anyhow::ensure!(
            report.leaked_operations == 0 && report.lost_shards == 0,
            "the engine lost {} shards and {} operations as it was closed",
            report.lost_shards,
            report.leaked_operations
        );
    }
    let [p50_us, p99_us, p99_9_us] = [0.5, 0.99, 0.999].map(|quantile| latency.quantile_us(quantile));
    let times =
        if work.row.has_reader() { [("latency".to_owned(), latency.clone())].into() } else { [].into() };
    let result = FairnessResult {
        seconds: work.seconds,
        reads: latency.count(),
        hog_bytes,
        p50_us,
        p99_us,
        p99_9_us,
        evidence: Evidence { counter_deltas: cost.counter_deltas, times },
    };
    Ok(serde_json::to_string(&result)?)
}

/// Puts a thread into the kernel's idle class: ionice(1).
fn make_idle(thread: i32) -> anyhow::Result<()> {
    let ran = Command::new("ionice").args(["-c", "3", "-p", &thread.to_string()]).output();
    let output = ran.context("ionice is not there (package util-linux)")?;
    anyhow::ensure!(output.status.success(), "ionice: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

async fn reader(file: File, work: FairWork, until: Instant) -> anyhow::Result<Latency> {
    let mut latency = Latency::new()?;
    let mut random = SplitMix::new(work.seed);
    let mut now = Instant::now();
    while work.row.has_reader() && now < until {
        let offset = random.below(work.file_bytes / READ_BYTES) * READ_BYTES;
        let before = now;
        file.read(offset..offset + READ_BYTES).await?;
        now = Instant::now();
        latency.record(now - before);
    }
    Ok(latency)
}

/// Runs all hogs, and returns the bytes of the operations that completed in time.
async fn hogs(file: File, work: FairWork, until: Instant, engine: Engine) -> anyhow::Result<u64> {
    let moved = Rc::new(Cell::new(0));
    let mut tasks = Vec::new();
    let here = work.row.has_hogs() && work.row != FairRow::CgroupIo;
    let hogs = if here { work.hogs } else { 0 };
    for hog in 0..u64::from(hogs) {
        // One block for each hog, at any number of requests in flight: memory is not the subject of
        // the measurement.
        let mut bytes = vec![0; HOG_BYTES as usize];
        Pattern::new(work.seed ^ hog).fill(0, &mut bytes);
        let block = engine.block_from(&bytes)?.freeze();
        for lane in 0..HOG_DEPTH as u64 {
            let start = SplitMix::new(work.seed ^ (hog << 32 | lane) << 1).next_u64();
            let body = hog_lane(file.clone(), work.clone(), start, block.clone(), until, Rc::clone(&moved));
            tasks.push(forebay::shard::spawn(body)?);
        }
    }
    for task in tasks {
        task.await??;
    }
    Ok(moved.get())
}

async fn hog_lane(
    file: File,
    work: FairWork,
    start: u64,
    block: Block,
    until: Instant,
    moved: Rc<Cell<u64>>,
) -> anyhow::Result<()> {
    let mut random = SplitMix::new(start);
    while Instant::now() < until {
        let offset = random.below(work.file_bytes / HOG_BYTES) * HOG_BYTES;
        if work.writes {
            file.write(offset, block.clone()).await?
        } else {
            drop(file.read(offset..offset + HOG_BYTES).await?);
        }
        if Instant::now() < until {
            moved.set(moved.get() + HOG_BYTES);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Cleanup;

    #[test]
    fn every_row_has_its_participants() {
        let cleanup = Cleanup::default();
        for (row, writes) in FairRow::ALL.into_iter().flat_map(|row| [(row, false), (row, true)]) {
            let temp =
                cleanup.temp_file(Path::new(env!("CARGO_MANIFEST_DIR")), "fairness").expect("writable");
            temp.file().set_len(8 << 20).expect("a sparse file");
            let work = FairWork {
                row,
                hogs: 2,
                writes,
                file_bytes: 8 << 20,
                seconds: 0.5,
                seed: 3,
                hogs_procs: None,
            };
            let text = match sample(temp.path(), None, &work) {
                // This row needs another program.
                Err(error) if row == FairRow::Ionice => {
                    assert!(format!("{error:#}").contains("ionice"), "{error:#}");
                    continue;
                }
                // This row needs another process, which a test is not.
                Err(error) if row == FairRow::CgroupIo => {
                    assert!(format!("{error:#}").contains("no cgroup"), "{error:#}");
                    continue;
                }
                text => text.unwrap_or_else(|error| panic!("{row:?}: {error:#}")),
            };
            let result: FairnessResult = serde_json::from_str(&text).expect("its own text");
            assert_eq!(result.reads > 0, row.has_reader(), "{row:?} {result:?}");
            assert_eq!(result.p99_us.is_some_and(|time| time > 0.0), row.has_reader(), "{row:?} {result:?}");
            assert!(result.hog_bytes.is_multiple_of(HOG_BYTES), "{row:?} {result:?}");
            let found = std::fs::read(temp.path()).expect("readable");
            let written = writes && row.has_hogs();
            assert_eq!(found.iter().any(|byte| *byte != 0), written, "{row:?}");
        }
    }
}
