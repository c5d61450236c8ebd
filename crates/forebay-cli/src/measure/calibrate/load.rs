//! One load of `calibrate`: a number of requests of one kind and size in flight, for a while.

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

/// The operations of a load that completed in its time.
#[derive(Debug)]
pub(super) struct Seen {
    bytes: u64,
    seconds: f64,
    times: Latency,
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
    pub(super) fn planted(bytes: u64, operations: u64, each_ns: u64) -> Seen {
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
            let times = Rc::new(RefCell::new(Latency::new()?));
            let until = Instant::now() + length;
            let mut tasks = Vec::new();
            for lane in 0..load.depth as u64 {
                // Each request in flight has its own lane, with places that no other load of this run has.
                let seed =
                    SplitMix::new(seed ^ (lane << 32 | load.bytes | u64::from(load.writes))).next_u64();
                let lane = lane_of(file.clone(), block.clone(), load, places, seed, until, Rc::clone(&times));
                tasks.push(forebay::shard::spawn(lane)?);
            }
            for task in tasks {
                task.await??;
            }
            let times = times.borrow().clone();
            anyhow::Ok(Seen { bytes: load.bytes, seconds: length.as_secs_f64(), times })
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
    until: Instant,
    times: Rc<RefCell<Latency>>,
) -> anyhow::Result<()> {
    let mut random = SplitMix::new(seed);
    let mut now = Instant::now();
    while now < until {
        let offset = random.below(places) * load.bytes;
        let before = now;
        match load.writes {
            true => file.write(offset, block.clone()).await?,
            false => drop(file.read(offset..offset + load.bytes).await?),
        }
        now = Instant::now();
        // A request still in flight at the end would count as if it had taken no time.
        if now < until {
            times.borrow_mut().record(now - before);
        }
    }
    Ok(())
}
