//! A separate program: descriptors, threads and resident memory of the process are counted.
//!
//! Many concurrent operations for long: nothing is lost, nothing is left over, nothing grows.
//!
//! Ten thousand tasks, on the program's runtime and on the shards, read and write separate regions in shared files; one operation
//! in eight is dropped after a few polls. Every byte read is checked.
#![cfg(target_os = "linux")]

mod common;
#[path = "load/work.rs"]
mod work;

use std::future::{Future as _, IntoFuture as _};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::{config, dir};
use forebay::{Class, Config, DriverChoice, Engine, File, Open};
use forebay_test::draw::Random;
use work::{REGION_BYTES, Region, Tally};

const TASKS: u64 = 10_000;
const FILES: u64 = 16;

/// Locks the tests: descriptors and memory are counted for the whole process, so these tests run one after
/// the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open_descriptors() -> usize {
    // The directory's own descriptor is in every count.
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns the resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * rustix::param::page_size() as u64
}

/// Waits until `holds`, for changes that other threads are about to make; panics after a minute with the
/// value of `seen`.
fn settle<T: std::fmt::Debug>(what: &str, mut seen: impl FnMut() -> T, holds: impl Fn(&T) -> bool) {
    let begun = Instant::now();
    loop {
        let state = seen();
        if holds(&state) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {state:?}");
        std::thread::yield_now();
    }
}

/// Creates files of that many regions each, all holes.
fn files(engine: &Engine, dir: &Path, count: u64, regions: u64) -> Vec<File> {
    let make = |n| {
        let file = engine.open(dir.join(format!("file-{n}")), Open::create().truncate()).wait().unwrap();
        file.truncate(regions * REGION_BYTES).wait().unwrap();
        file
    };
    (0..count).map(make).collect()
}

/// Has `tasks` tasks do `operations` each: every fourth on a shard, the others in the program's runtime.
fn run(engine: &Engine, files: &[File], tasks: u64, operations: u64, seed: u64) -> Tally {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let mut tally = Tally::default();
    let mut on_shards = Vec::new();
    let mut elsewhere = Vec::new();
    for task in 0..tasks {
        let file = files[(task % files.len() as u64) as usize].clone();
        let base = task / files.len() as u64 * REGION_BYTES;
        let (engine, seed) = (engine.clone(), Random(seed ^ task << 20).word());
        if task % 4 == 0 {
            let shard = (task / 4) as usize % engine.shard_count();
            let inner = engine.clone();
            let make = move || Region::new(file, base, seed).work(inner, operations);
            on_shards.push(engine.spawn_on_shard(shard, Class::DEFAULT, make));
        } else {
            elsewhere.push(runtime.spawn(Region::new(file, base, seed).work(engine, operations)));
        }
    }
    for task in on_shards {
        tally += task.wait().unwrap();
    }
    for task in elsewhere {
        tally += runtime.block_on(task).unwrap();
    }
    tally
}

/// Checks that nothing of the work is left: no operation, no slot, no memory, and no stray completion.
fn comes_to_rest(engine: &Engine) {
    // Dropped operations may still be in flight at the device.
    settle(
        "slots in use",
        || engine.stats().wait().unwrap(),
        |stats| {
            stats.shards.iter().all(|shard| shard.in_flight == 0 && shard.slots_used == 0 && shard.tasks == 0)
        },
    );
    settle("memory held", || engine.memory(), |memory| memory.held_bytes == 0 && memory.overflow_bytes == 0);
    assert!(engine.stats().wait().unwrap().shards.iter().all(|shard| shard.stray_completions == 0));
}

/// Runs `operations` in all by that many tasks on uring, and a tenth of them on threads, where each costs
/// more, but one of each task.
fn load(config: Config, tasks: u64, operations: u64) -> Tally {
    let _alone = alone();
    let descriptors = open_descriptors();
    let begun = Instant::now();
    let tally = {
        let dir = dir();
        let engine = Engine::start(config).unwrap();
        let operations = if engine.driver() == "threads" { (operations / 10).max(tasks) } else { operations };
        let files = files(&engine, dir.path(), FILES, tasks.div_ceil(FILES));
        let tally = run(&engine, &files, tasks, operations / tasks, 1);
        comes_to_rest(&engine);
        // Each task ends with one additional read.
        assert_eq!(tally.reads + tally.writes + tally.given_up, operations / tasks * tasks + tasks);
        assert!(tally.given_up > operations / 20 && tally.writes > operations / 5, "{tally:?}");
        drop(files);
        assert_eq!(engine.close().wait().unwrap().leaked_operations, 0);
        tally
    };
    settle("descriptors", open_descriptors, |&now| now == descriptors);
    println!("{tally:?} in {:.1?}", begun.elapsed());
    tally
}

#[test]
fn ten_thousand_tasks() {
    load(config().arena_bytes_max(512 << 20), TASKS, 50_000);
}

#[test]
fn ten_thousand_tasks_on_threads() {
    load(config().arena_bytes_max(512 << 20).driver(DriverChoice::Threads), TASKS, 100_000);
}

/// In a debug build 23 s on two idle cores, and minutes on busy cores.
#[test]
#[ignore = "a minute or more; scripts/test --long"]
fn a_million_operations_of_ten_thousand_tasks() {
    load(config().arena_bytes_max(512 << 20), TASKS, 1_000_000);
}

#[test]
#[ignore = "a minute or more; scripts/test --long"]
fn a_million_operations_on_threads() {
    // A tenth of ten millions.
    load(config().arena_bytes_max(512 << 20).driver(DriverChoice::Threads), TASKS, 10_000_000);
}

/// With far less I/O memory than the tasks need: a task without memory requests it again, and nothing else is different.
#[test]
fn with_little_memory() {
    let config = config().arena_bytes(2 << 20).arena_bytes_max(2 << 20).overflow_bytes_max(1 << 20);
    // Until tasks wanted memory at the same time, which depends on the device and on the processors.
    while load(config.clone(), 400, 20_000).exhausted == 0 {}
}

/// Quantities that may not grow from cycle to cycle.
#[derive(Clone, Copy, Debug)]
struct Footprint {
    /// Without the lasting engine's arena, which grows to its limit in steps and stays.
    resident_bytes: u64,
    descriptors: usize,
    threads: usize,
    slots: u32,
}

impl Footprint {
    /// Returns the footprint of this process and of an engine at rest.
    fn of(engine: &Engine) -> Footprint {
        Footprint {
            resident_bytes: resident_bytes().saturating_sub(engine.memory().arena_bytes),
            descriptors: open_descriptors(),
            threads: std::fs::read_dir("/proc/self/task").unwrap().count(),
            slots: engine.stats().wait().unwrap().shards.iter().map(|shard| shard.slots).sum(),
        }
    }
}

/// Resident memory may be this much above the most of the warm-up. The remains of past threads in the allocator's arenas vary by 3
/// MiB in a run of 120 s. A leaked engine would show: its inbox alone has 128 KiB a shard, and three minutes have more than a
/// hundred engines on an idle machine.
const GROWTH_BYTES: u64 = 16 << 20;
/// Threads may be this many above the most of the warm-up: the lasting engine's pool starts its four on
/// demand, and the kernel its workers, at any time (16 after 15 was seen in 189 cycles). If each ended engine
/// left a thread, there would be a hundred.
const GROWTH_THREADS: u64 = 8;

/// A long life: one engine serves all the time, others start and end meanwhile, on either driver, with separate files; every third
/// ends with operations in flight.
#[test]
#[ignore = "minutes; scripts/test --long"]
fn a_long_life() {
    let _alone = alone();
    let seconds =
        std::env::var("FOREBAY_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(180);
    let (begun, whole) = (Instant::now(), Duration::from_secs(seconds));
    let dir = dir();
    let lasting = Engine::start(config().arena_bytes_max(64 << 20)).unwrap();
    let mut tally = Tally::default();
    let mut warm: Option<Footprint> = None;
    let mut last = Vec::new();
    let mut cycles = 0u64;
    while begun.elapsed() < whole || last.len() < 5 {
        cycles += 1;
        let own = dir.path().join(cycles.to_string());
        lasting.create_dir(&own).wait().unwrap();
        let config = match cycles % 4 {
            0 => config().driver(DriverChoice::Threads),
            _ => config().shards(1 + cycles as usize % 3).inbox_depth(if cycles.is_multiple_of(2) {
                8
            } else {
                4096
            }),
        };
        let passing = Engine::start(config.arena_bytes(2 << 20).arena_bytes_max(32 << 20)).unwrap();
        for engine in [&lasting, &passing] {
            let files = files(engine, &own, 8, 32);
            tally += run(engine, &files, 256, 20, cycles);
            if cycles.is_multiple_of(3) {
                leave_in_flight(&files);
            } else {
                comes_to_rest(engine);
            }
        }
        assert_eq!(passing.close().wait().unwrap().leaked_operations, 0);
        comes_to_rest(&lasting);
        std::fs::remove_dir_all(&own).unwrap();
        // Files are closed, and threads end, a moment after the caller that waited for them returns.
        if let Some(warm) = warm {
            settle("descriptors", open_descriptors, |&now| now <= warm.descriptors);
        }
        let now = Footprint::of(&lasting);
        if begun.elapsed() < whole / 3 || warm.is_none() {
            let most = warm.unwrap_or(now);
            warm = Some(Footprint {
                resident_bytes: now.resident_bytes.max(most.resident_bytes),
                // The most of a time without growth is the value to settle to.
                descriptors: if cycles < 3 { now.descriptors } else { now.descriptors.min(most.descriptors) },
                threads: now.threads.max(most.threads),
                slots: now.slots.max(most.slots),
            });
        } else {
            last.push(now);
            last.drain(..last.len().saturating_sub(5));
        }
    }
    let warm = warm.unwrap();
    println!("{cycles} cycles, {tally:?}\nafter the warm-up at most {warm:?}\nat the end {last:?}");
    // The least of the last five: growth is in each of them, a temporary use is not.
    let least = |value: fn(&Footprint) -> u64| last.iter().map(value).min().unwrap();
    assert!(least(|now| now.resident_bytes) <= warm.resident_bytes + GROWTH_BYTES, "resident memory grew");
    assert!(least(|now| now.descriptors as u64) <= warm.descriptors as u64, "descriptors grew");
    let threads = warm.threads as u64 + GROWTH_THREADS;
    assert!(least(|now| now.threads as u64) <= threads, "threads grew");
    assert!(least(|now| now.slots.into()) <= warm.slots.into(), "slots grew");
    assert_eq!(lasting.close().wait().unwrap().leaked_operations, 0);
}

/// Starts reads and drops their futures, so that the engine ends with them in flight.
fn leave_in_flight(files: &[File]) {
    for file in files {
        for n in 0..8 {
            let mut read = file.read(n * 4096..(n + 4) * 4096).into_future();
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let _ = std::pin::Pin::new(&mut read).poll(&mut context);
        }
    }
}
