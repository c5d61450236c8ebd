//! One sample: runs the load and counts the operations that completed in each tenth of a second.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use forebay::{Class, Config, Durability, Engine, File, Open};

use super::super::aligned::AlignedBuffer;
use super::super::gauge::Gauge;
use super::super::interleave::Evidence;
use super::super::latency::Latency;
use super::super::pattern::{PAGE_BYTES, Pattern, SplitMix};
use super::job::{Ended, LoadRow, SustainResult, SustainWork};

/// Runs the load on the file at `path` after the idle time, and returns the result as text.
///
/// # Errors
/// A read or a write failed.
pub(super) fn sample(path: &Path, device_stat: Option<&Path>, work: &SustainWork) -> anyhow::Result<String> {
    let engine = Engine::start(Config::default().shards(1))?;
    let file = engine.open(path, Open::write()).wait()?;
    std::thread::sleep(Duration::from_secs_f64(work.idle_seconds));
    let gauge = Gauge::start(device_stat)?;
    let begun = gauge.begun();
    let handle = {
        let (file, work) = (file.clone(), work.clone());
        engine.spawn_on_shard(0, Class::DEFAULT, move || on_shard(file, work, begun))
    };
    let tally = handle.wait()??;
    let written = Instant::now();
    file.sync(Durability::All).wait()?;
    let sync_s = written.elapsed().as_secs_f64();
    let cost = gauge.stop()?;
    drop(file);
    let report = engine.close().wait()?;
    anyhow::ensure!(
        report.leaked_operations == 0 && report.lost_shards == 0,
        "the engine lost {} shards and {} operations as it was closed",
        report.lost_shards,
        report.leaked_operations
    );
    let result = SustainResult {
        ended: tally.ended,
        seconds: (written - begun).as_secs_f64(),
        cpu_seconds: cost.cpu_seconds,
        operations: tally.latency.count(),
        p50_us: tally.latency.quantile_us(0.5),
        p99_us: tally.latency.quantile_us(0.99),
        sync_s,
        evidence: Evidence {
            counter_deltas: cost.counter_deltas,
            times: [("latency".to_owned(), tally.latency)].into(),
        },
    };
    Ok(serde_json::to_string(&result)?)
}

/// State that the lanes share; they never leave their thread.
#[derive(Debug)]
struct Tally {
    begun: Instant,
    ended: Ended,
    latency: Latency,
    /// Offset of the next sequential write.
    next_offset: u64,
}

impl Tally {
    fn ended(&mut self, before: Instant, now: Instant, bytes: u64) {
        self.latency.record(now - before);
        self.ended.count(now - self.begun, bytes);
    }
}

async fn on_shard(file: File, work: SustainWork, begun: Instant) -> anyhow::Result<Tally> {
    let tally = Tally { begun, ended: Ended::new(work.seconds), latency: Latency::new()?, next_offset: 0 };
    let tally = Rc::new(RefCell::new(tally));
    let work = Rc::new(work);
    let lanes = (0..work.depth())
        .map(|number| {
            let lane = lane(file.clone(), Rc::clone(&work), number, Rc::clone(&tally));
            Ok(forebay::shard::spawn(lane)?)
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    for lane in lanes {
        lane.await??;
    }
    drop(work);
    let tally = Rc::into_inner(tally).map(RefCell::into_inner);
    tally.ok_or_else(|| anyhow::anyhow!("a lane of the load is still there"))
}

async fn lane(
    file: File,
    work: Rc<SustainWork>,
    number: usize,
    tally: Rc<RefCell<Tally>>,
) -> anyhow::Result<()> {
    let bytes = work.block_bytes();
    let mut random = SplitMix::new(work.seed ^ SplitMix::new(number as u64 + 1).next_u64());
    let mut memory = AlignedBuffer::new(bytes as usize);
    Pattern::new(random.next_u64()).fill(0, memory.bytes_mut());
    let deadline = tally.borrow().begun + Duration::from_secs_f64(work.seconds);
    let mut now = Instant::now();
    while now < deadline {
        let offset = match work.row {
            LoadRow::SequentialWrite => {
                let mut tally = tally.borrow_mut();
                let offset = tally.next_offset;
                tally.next_offset = (offset + bytes) % work.file_bytes;
                offset
            }
            _ => random.below(work.file_bytes / bytes) * bytes,
        };
        let before = now;
        if work.row == LoadRow::RandomRead {
            file.read(offset..offset + bytes).await?;
        } else {
            // All pages differ, because some devices store equal pages only once.
            for page in memory.bytes_mut().chunks_exact_mut(PAGE_BYTES) {
                page[..8].copy_from_slice(&random.next_u64().to_le_bytes());
            }
            file.write(offset, memory.bytes()).await?;
        }
        now = Instant::now();
        tally.borrow_mut().ended(before, now, bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Cleanup;

    #[test]
    fn every_load_fills_its_bins_and_reaches_the_whole_file() {
        let cleanup = Cleanup::default();
        for row in LoadRow::ALL {
            let temp = cleanup.temp_file(Path::new(env!("CARGO_MANIFEST_DIR")), "sustain").expect("writable");
            temp.file().set_len(8 << 20).expect("a sparse file");
            let work =
                SustainWork { row, file_bytes: 8 << 20, depth: 4, idle_seconds: 0.01, seconds: 0.5, seed: 2 };
            let text = sample(temp.path(), None, &work).unwrap_or_else(|error| panic!("{row:?}: {error:#}"));
            let result: SustainResult = serde_json::from_str(&text).expect("its own text");
            assert_eq!((result.ended.bins.len(), result.ended.steps.len()), (5, 50), "{row:?}");
            let bytes: u64 = result.ended.bins.iter().sum();
            // The bytes of the last operations, which completed too late, are in no bin.
            assert!(bytes > 0 && bytes <= result.operations * work.block_bytes(), "{row:?} {result:?}");
            assert!(bytes.is_multiple_of(work.block_bytes()) && result.seconds >= 0.5, "{row:?} {result:?}");
            let found = std::fs::read(temp.path()).expect("readable");
            assert_eq!(found.len(), 8 << 20, "{row:?}");
            assert_eq!(found.iter().all(|byte| *byte == 0), row == LoadRow::RandomRead, "{row:?}");
        }
    }
}
