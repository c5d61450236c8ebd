//! One load of `calibrate`: a number of requests of one kind and size in flight, for a while, and until as many have
//! completed: on a machine that is busy otherwise none may complete in the time asked for.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use forebay::{Block, Class, Engine, File};

use super::super::latency::Latency;
use super::super::pattern::{Pattern, SplitMix};

/// The requests in flight: their kind, size and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) writes: bool,
    pub(super) bytes: u64,
    pub(super) depth: usize,
}

impl fmt::Display for Load {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.writes { "writes" } else { "reads" };
        write!(formatter, "{kind} of {} KiB, {} in flight", self.bytes >> 10, self.depth)
    }
}

/// The operations of a load that completed before its end.
#[derive(Debug)]
pub(super) struct Seen {
    bytes: u64,
    seconds: f64,
    times: Latency,
}

/// The operations that have completed so far, shared by the lanes of a load.
struct Progress {
    times: Latency,
    until: Instant,
    /// As many have to complete, whatever the time.
    least: u64,
    last: Instant,
}

impl Progress {
    fn goes_on(&self, now: Instant) -> bool {
        now < self.until || self.times.count() < self.least
    }

    /// A request still in flight at the end would count as if it had taken no time.
    fn completed(&mut self, begun: Instant, now: Instant) {
        if self.goes_on(now) {
            self.times.record(now - begun);
            self.last = self.last.max(now);
        }
    }
}

impl Seen {
    pub(super) fn operations_per_second(&self) -> f64 {
        self.times.count() as f64 / self.seconds
    }

    pub(super) fn bytes_per_second(&self) -> f64 {
        self.operations_per_second() * self.bytes as f64
    }

    pub(super) fn median_ns(&self) -> u64 {
        self.times.quantile_us(0.5).map_or(0, |us| (us * 1e3).round() as u64)
    }

    /// Returns a load with this many operations in one second.
    #[cfg(test)]
    pub(super) fn simulated(bytes: u64, operations: u64, each_ns: u64) -> Seen {
        let mut times = Latency::new().expect("memory");
        (0..operations).for_each(|_| times.record(Duration::from_nanos(each_ns)));
        Seen { bytes, seconds: 1.0, times }
    }
}

/// The engine and files on which loads run.
pub(super) struct Bench {
    pub(super) engine: Engine,
    pub(super) reads: File,
    pub(super) writes: File,
    pub(super) file_bytes: u64,
    pub(super) length: Duration,
    pub(super) seed: u64,
}

impl Bench {
    /// Runs a load.
    ///
    /// # Errors
    /// Fails when a read or write failed.
    pub(super) fn run(&self, load: Load) -> anyhow::Result<Seen> {
        let file = if load.writes { &self.writes } else { &self.reads }.clone();
        let mut bytes = vec![0; load.bytes as usize];
        Pattern::new(self.seed).fill(0, &mut bytes);
        let block = self.engine.block_from(&bytes)?.freeze();
        let (places, length, seed) = (self.file_bytes / load.bytes, self.length, self.seed);
        let tasks = move || async move {
            let begun = Instant::now();
            let (until, least) = (begun + length, load.depth as u64);
            let progress = Progress { times: Latency::new()?, until, least, last: begun };
            let progress = Rc::new(RefCell::new(progress));
            let mut tasks = Vec::new();
            for lane in 0..load.depth as u64 {
                // Each request in flight has its own lane, with places that no other load of this run has.
                let seed =
                    SplitMix::new(seed ^ (lane << 32 | load.bytes | u64::from(load.writes))).next_u64();
                let lane = lane_of(file.clone(), block.clone(), load, places, seed, Rc::clone(&progress));
                tasks.push(forebay::shard::spawn(lane)?);
            }
            for task in tasks {
                task.await??;
            }
            let progress = progress.borrow();
            let seconds = length.max(progress.last - begun).as_secs_f64();
            anyhow::Ok(Seen { bytes: load.bytes, seconds, times: progress.times.clone() })
        };
        self.engine.spawn_on_shard(0, Class::DEFAULT, tasks).wait()?
    }
}

async fn lane_of(
    file: File,
    block: Block,
    load: Load,
    places: u64,
    seed: u64,
    progress: Rc<RefCell<Progress>>,
) -> anyhow::Result<()> {
    let mut random = SplitMix::new(seed);
    let mut now = Instant::now();
    while progress.borrow().goes_on(now) {
        let offset = random.below(places) * load.bytes;
        let begun = now;
        if load.writes {
            file.write(offset, block.clone()).await?;
        } else {
            drop(file.read(offset..offset + load.bytes).await?);
        }
        now = Instant::now();
        progress.borrow_mut().completed(begun, now);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Cleanup;

    /// Regression: beside other programs no write of 64 KiB completed in its 20 ms, and the file that `calibrate`
    /// wrote said that the device writes 0 bytes a second.
    #[test]
    fn a_load_without_time_goes_on_until_its_requests_completed() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let temp = Cleanup::default().temp_file(directory, "load").expect("writable");
        temp.file().set_len(1 << 20).expect("space");
        let engine = Engine::start(forebay::Config::default().shards(1)).expect("an engine");
        let open = |open| engine.open(temp.path(), open).wait().expect("its own file");
        let bench = Bench {
            reads: open(forebay::Open::read()),
            writes: open(forebay::Open::write()),
            file_bytes: 1 << 20,
            length: Duration::ZERO,
            seed: 1,
            engine: engine.clone(),
        };
        for (writes, depth) in [(false, 1), (true, 8)] {
            let seen = bench.run(Load { writes, bytes: 4096, depth }).expect("it runs");
            assert!(seen.times.count() >= depth as u64, "{seen:?}");
            assert!(seen.operations_per_second().is_normal() && seen.median_ns() > 0, "{seen:?}");
        }
    }
}
