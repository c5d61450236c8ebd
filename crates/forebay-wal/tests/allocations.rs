//! A separate program: it counts allocations with a global allocator.
//!
//! No allocation on the shard's thread per append once the log is warm, for any caller.

mod common;

use std::time::Duration;

use common::dir;
use forebay::{Class, Config, Engine};
use forebay_test::allocations::{self, CountingAllocator};
use forebay_wal::{Options, Wal};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Returns the allocations allowed regardless of the number of appends: the thread driver starts a thread
/// when all others are busy.
fn allowance(engine: &Engine) -> u64 {
    if engine.driver() == "threads" { 64 * 8 } else { 0 }
}

/// Options without a mark or a new segment within the test: these are rare, but they allocate.
fn options() -> Options {
    Options::new().segment_bytes(64 << 20).mark_after(Duration::from_secs(3600))
}

/// Returns an engine without a list of stalls. On a busy machine a task loses the processor for 10 ms now and then, and the first
/// such note allocates on the shard's thread: that was the one allocation of this test in 5 of 150 runs next to other programs.
fn engine(config: Config) -> Engine {
    Engine::start(config.stall_after(Duration::from_secs(3600))).unwrap()
}

#[test]
fn appends_on_a_shard_allocate_nothing() {
    let (engine, dir) = (engine(Config::new()), dir());
    let path = dir.path().to_path_buf();
    let inner = engine.clone();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let (wal, _) = Wal::open(&inner, &path, options()).await.unwrap();
        let append = async |times: u32| {
            for _ in 0..times {
                wal.append(&[5; 300]).await.unwrap();
            }
        };
        append(300).await;
        allocations::set(Some(0));
        append(500).await;
        allocations::set(None).unwrap_or(u64::MAX)
    });
    let allocations = task.wait().unwrap();
    assert!(allocations <= allowance(&engine), "{allocations} allocations in 500 appends");
}

#[test]
fn appends_from_elsewhere_allocate_nothing_on_the_shard() {
    let (engine, dir) = (engine(Config::new().shards(1)), dir());
    let (wal, _) = Wal::open(&engine, dir.path(), options()).wait().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let append = |times: u32| {
        let tasks: Vec<_> = (0..16)
            .map(|_| {
                let wal = wal.clone();
                runtime.spawn(async move {
                    for _ in 0..times {
                        wal.append(&[5; 300]).await.unwrap();
                    }
                })
            })
            .collect();
        tasks.into_iter().for_each(|task| runtime.block_on(task).unwrap());
    };
    append(100);
    let watch =
        |value| engine.spawn_on_shard(0, Class::DEFAULT, move || async move { allocations::set(value) });
    watch(Some(0)).wait().unwrap();
    append(200);
    let allocations = watch(None).wait().unwrap().unwrap_or(u64::MAX);
    // Starting and ending the watch are separate tasks, and Tokio's queue of tasks woken from elsewhere may grow.
    let rest = 64;
    assert!(allocations <= rest + allowance(&engine), "{allocations} allocations in 3,200 appends");
}
