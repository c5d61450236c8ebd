//! Observations of a simulated device: closed loops of reads, writes with and without a flush, and a
//! long load.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use forebay::{Config, Durability, Engine, File, Open};
use forebay_sim::{self as sim, World};

use super::simulated::{Device, MS, READ};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 256;
/// Writes of a sample without a stall; half as many where each is flushed.
const WRITES: u32 = 200;
const WRITES_STALLING: u32 = 600;
/// Writes in flight of a long load, and its length.
pub(super) const LOAD_DEPTH: u32 = 8;
pub(super) const LOAD: Duration = Duration::from_secs(8);
/// Doublings of the readers; where closed loops last whole periods of a stall, fewer suffice.
const DOUBLINGS: u32 = 8;
const DOUBLINGS_STALLING: u32 = 5;

/// The figures of the readers of a closed loop.
pub(super) struct ReadFigures {
    pub(super) readers: u32,
    pub(super) per_second: f64,
    pub(super) times: Vec<Duration>,
}

/// Runs `observe` on the device, in the world of one seed.
fn in_world<T>(device: &Device, seed: u64, observe: impl AsyncFnOnce(Engine) -> forebay::Result<T>) -> T {
    let mut world = World::new(seed)
        .disk(device.profile.clone())
        .stalls_ppm(0)
        .wanders_ppm(0)
        .config(Config::new().shards(1).arena_bytes_max(16 << 20));
    world
        .run(observe)
        .unwrap_or_else(|failure| panic!("{}: {failure}", device.name))
        .unwrap_or_else(|error| panic!("{}: {error}", device.name))
}

/// Reads with more and more readers.
pub(super) fn reads(device: &Device, seed: u64) -> Vec<ReadFigures> {
    let each = device.reads_each();
    in_world(device, seed, async |engine| {
        let file = written(&engine).await?;
        let mut seen = Vec::new();
        for doublings in 0..=if device.stall.is_some() { DOUBLINGS_STALLING } else { DOUBLINGS } {
            let readers = 1 << doublings;
            // The single reader runs for long, because the latencies are classified there.
            let lasts = READ * if readers == 1 { 1000 } else { each };
            seen.push(closed_loop(&file, readers, lasts).await?);
        }
        Ok(seen)
    })
}

async fn written(engine: &Engine) -> forebay::Result<File> {
    let file = engine.open("/data", Open::create()).await?;
    for block in 0..BLOCKS {
        file.write(block * BLOCK, vec![7; BLOCK as usize]).await?;
    }
    // A bucket that the writes have emptied fills again.
    sim::sleep(MS * 5_000).await?;
    Ok(file)
}

async fn closed_loop(file: &File, readers: u32, lasts: Duration) -> forebay::Result<ReadFigures> {
    let until = sim::now() + lasts;
    let tasks: Vec<_> = (0..readers).map(|_| sim::spawn_local(reader(file.clone(), until))).collect();
    let mut times = Vec::new();
    let mut in_time = 0;
    for task in tasks {
        let (own, count) = task.await??;
        times.extend(own);
        in_time += count;
    }
    Ok(ReadFigures { readers, per_second: f64::from(in_time) / lasts.as_secs_f64(), times })
}

/// Returns the times of a reader's reads, and how many of them completed in time.
async fn reader(file: File, until: Duration) -> forebay::Result<(Vec<Duration>, u32)> {
    let (mut times, mut in_time) = (Vec::new(), 0);
    let mut begun = sim::now();
    while begun < until {
        let offset = sim::random(BLOCKS) * BLOCK;
        file.read(offset..offset + BLOCK).await?;
        let ended = sim::now();
        times.push(ended - begun);
        in_time += u32::from(ended <= until);
        begun = ended;
    }
    Ok((times, in_time))
}

/// The figures of one repeat of writes by one client.
pub(super) struct WriteFigures {
    /// Total time of the writes, without the sync of all of them, which `left_out` is.
    pub(super) write: Duration,
    pub(super) writes: u32,
    pub(super) left_out: Duration,
    /// Total time of writes of which each is durable before the next.
    pub(super) durable: Duration,
    pub(super) durables: u32,
}

/// Runs three repeats.
pub(super) fn writes(device: &Device, seed: u64) -> Vec<WriteFigures> {
    let writes = if device.stall.is_some() { WRITES_STALLING } else { WRITES };
    in_world(device, seed, async |engine| {
        let file = written(&engine).await?;
        let mut seen = Vec::new();
        for _ in 0..3 {
            file.sync(Durability::All).await?;
            let write = one_by_one(&file, writes, Durability::None).await?;
            let begun = sim::now();
            file.sync(Durability::All).await?;
            let left_out = sim::now() - begun;
            let durables = writes / 2;
            let durable = one_by_one(&file, durables, Durability::Data).await?;
            seen.push(WriteFigures { write, writes, left_out, durable, durables });
        }
        Ok(seen)
    })
}

async fn one_by_one(file: &File, writes: u32, durability: Durability) -> forebay::Result<Duration> {
    let begun = sim::now();
    for _ in 0..writes {
        let offset = sim::random(BLOCKS) * BLOCK;
        file.write(offset, vec![9; BLOCK as usize]).durable(durability).await?;
    }
    Ok(sim::now() - begun)
}

/// Returns the completion time of each write of a long load, and its bytes.
pub(super) fn load(device: &Device, seed: u64) -> Vec<(Duration, u64)> {
    in_world(device, seed, async |engine| {
        let file = written(&engine).await?;
        let begun = sim::now();
        let ended = Rc::new(RefCell::new(Vec::new()));
        let lane = |file: File, ended: Rc<RefCell<Vec<(Duration, u64)>>>| async move {
            while sim::now() - begun < LOAD {
                let offset = sim::random(BLOCKS) * BLOCK;
                file.write(offset, vec![9; BLOCK as usize]).await?;
                ended.borrow_mut().push((sim::now() - begun, BLOCK));
            }
            forebay::Result::Ok(())
        };
        let lanes: Vec<_> =
            (0..LOAD_DEPTH).map(|_| sim::spawn_local(lane(file.clone(), Rc::clone(&ended)))).collect();
        for lane in lanes {
            lane.await??;
        }
        Ok(ended.take())
    })
}
