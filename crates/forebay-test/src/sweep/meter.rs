//! Costs as a simulated disk counts them.

use std::error::Error;
use std::time::Duration;

use forebay::{Config, Engine};
use forebay_sim::{self as sim, Profile, World};

use super::{Axis, Cost, Sweep};

/// The cost of an operation at a point, or its error.
pub type Attempt = Result<Cost, Box<dyn Error>>;

/// The time of every read, write and sync, for any length and any number in flight. It is so long that the program's steps, of half
/// a microsecond each, do not count.
const ROUND: Duration = Duration::from_millis(100);
/// Requests that the disk works on at the same time.
const TOGETHER: u32 = 1 << 14;

/// Returns a world with one disk, at `/disk`, that has blocks of 4 KiB. Calls about names are instantaneous, and nothing happens by
/// chance but the order of the tasks.
pub fn world() -> World {
    let disk = Profile::ideal().at("/disk").sector(4096).latency(ROUND, ROUND, ROUND);
    let disk = disk.call_latency(Duration::ZERO).parallelism(TOGETHER).queue_depth(TOGETHER);
    World::new(0).disk(disk).stalls_ppm(0)
}

/// Awaits `work` in a [`world`] and returns its output and the work of the disk meanwhile, including that of other tasks.
pub async fn count<T>(work: impl Future<Output = T>) -> (T, Cost) {
    let (before, began) = (sim::node(0).counts(), sim::world_time());
    let output = work.await;
    let (after, took) = (sim::node(0).counts(), sim::world_time() - began);
    let cost = Cost {
        requests: after.reads + after.writes - before.reads - before.writes,
        bytes: after.read_bytes + after.written_bytes - before.read_bytes - before.written_bytes,
        flushes: after.flushes - before.flushes,
        rounds: ((took + ROUND / 2).as_nanos() / ROUND.as_nanos()) as u64,
    };
    (output, cost)
}

/// Tries an axis at its `points` in a world, each when the disk is at rest, and returns the results with those of the formula,
/// `ideal`.
pub async fn sweep<'a>(
    axis: &'a Axis,
    points: impl Fn(&Axis) -> Vec<u64>,
    ideal: impl Fn(u64) -> Cost,
    attempt: impl AsyncFn(u64) -> Attempt,
) -> Sweep<'a> {
    let mut sweep = Sweep::new(axis);
    for at in points(axis) {
        rest().await;
        sweep.add(at, ideal(at), attempt(at).await.map_err(|error| error.to_string()));
    }
    sweep
}

/// As [`sweep`], each point in a separate world with an engine of these settings. A point that hangs or panics fails.
pub fn sweep_worlds<'a>(
    axis: &'a Axis,
    points: impl Fn(&Axis) -> Vec<u64>,
    config: &Config,
    ideal: impl Fn(u64) -> Cost,
    attempt: impl AsyncFn(Engine, u64) -> Attempt,
) -> Sweep<'a> {
    let mut sweep = Sweep::new(axis);
    for at in points(axis) {
        let ran = world().config(config.clone()).run(async |engine| attempt(engine, at).await);
        let outcome = match ran {
            Ok(outcome) => outcome.map_err(|error| error.to_string()),
            Err(failure) => Err(failure.to_string()),
        };
        sweep.add(at, ideal(at), outcome);
    }
    sweep
}

/// Waits until the disk is idle: background work of the setup must not count for the next point.
///
/// # Panics
/// If the disk does not become idle.
pub async fn rest() {
    let mut before = sim::node(0).counts();
    for _ in 0..10_000 {
        sim::sleep(3 * ROUND).await.expect("inside a world");
        let after = sim::node(0).counts();
        let moved = |counts: &sim::Counts| (counts.reads, counts.writes, counts.flushes, counts.calls);
        if moved(&before) == moved(&after) {
            return;
        }
        before = after;
    }
    panic!("the disk does not come to rest");
}
