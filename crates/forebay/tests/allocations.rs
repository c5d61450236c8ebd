//! A separate program: it counts allocations with a global allocator.
//!
//! Counts heap allocations on a shard's thread: zero per I/O once it is warm, for reads, writes, scans, batches and walks.
//!
//! Seen to fail when `Shard::stage` boxed a byte for each operation: 4,000 allocations instead of zero.

mod common;

use std::future::{Future, IntoFuture, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use common::{bytes_of, config, dir, write_file};
use forebay::{Block, Class, Durability, Engine, Error, File, Flush, Open, Read, Step, Walk, shard};
use forebay_test::allocations::{self, CountingAllocator};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const FILE_BYTES: u64 = 16 << 20;

/// Returns the allocations that are allowed for any number of operations. A ring needs zero. The driver of threads starts a thread
/// when all others are busy for a moment, at most 64 times, and each start makes some allocations.
fn allowance(engine: &Engine) -> u64 {
    if engine.driver() == "threads" { 64 * 8 } else { 0 }
}

fn scene() -> (Engine, tempfile::TempDir, File) {
    let dir = dir();
    let path = dir.path().join("a");
    write_file(&path, FILE_BYTES);
    // The list of stalls allocates for a task that lost the processor for 10 ms, as happens on a busy machine.
    let engine = Engine::start(config().shards(1).stall_after(Duration::from_secs(60))).unwrap();
    let file = engine.open(&path, Open::write()).wait().unwrap();
    (engine, dir, file)
}

/// Keeps eight reads in flight at any time, without an allocation for any of them.
async fn read_many_times(file: &File, times: u64) {
    let mut reads: [Option<Read<'_>>; 8] = Default::default();
    let (mut begun, mut over) = (0u64, 0u64);
    poll_fn(|context| {
        loop {
            let mut moved = false;
            for place in &mut reads {
                if place.is_none() && begun < times {
                    let start = begun * 7919 * 4096 % (FILE_BYTES - 8192);
                    *place = Some(file.read(start..start + 4096).into_future());
                    begun += 1;
                }
                if let Some(read) = place
                    && let Poll::Ready(block) = Pin::new(read).poll(context)
                {
                    assert_eq!(block.unwrap().len(), 4096);
                    *place = None;
                    over += 1;
                    moved = true;
                }
            }
            if over == times {
                return Poll::Ready(());
            }
            if !moved {
                return Poll::Pending;
            }
        }
    })
    .await;
}

#[test]
fn reads_allocate_nothing_on_a_shard() {
    let (engine, _dir, file) = scene();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        read_many_times(&file, 2_000).await;
        allocations::during(read_many_times(&file, 4_000)).await.1
    });
    let allocations = task.wait().unwrap();
    assert!(allocations <= allowance(&engine), "{allocations} allocations in 4,000 reads");
}

#[test]
fn writes_and_syncs_allocate_nothing_on_a_shard() {
    let (engine, _dir, file) = scene();
    let inner = engine.clone();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let write = async |times: u64| {
            for n in 0..times {
                let mut block = inner.block(4096).unwrap();
                block[0] = n as u8;
                let durability = if n % 100 == 0 { Durability::Data } else { Durability::None };
                let flush = if n % 200 == 0 { Flush::Blocking } else { Flush::Queued };
                let write = file.write(n * 4096 % FILE_BYTES, block).durable(durability).flush(flush);
                write.await.unwrap();
            }
        };
        write(1_000).await;
        allocations::during(write(2_000)).await.1
    });
    let allocations = task.wait().unwrap();
    assert!(allocations <= allowance(&engine), "{allocations} allocations in 2,000 writes");
}

#[test]
fn scans_allocate_nothing_per_block_on_a_shard() {
    let (engine, _dir, file) = scene();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let scan = async |from: u64| {
            let mut scan = file.scan().range(from..FILE_BYTES).request_bytes(16 << 10).depth(8).start();
            let mut blocks = 0u64;
            while let Some(block) = scan.next().await.transpose().unwrap() {
                assert!(!block.is_empty());
                blocks += 1;
            }
            blocks
        };
        scan(0).await;
        let (few, for_few) = allocations::during(scan(FILE_BYTES / 2)).await;
        let (many, for_many) = allocations::during(scan(0)).await;
        (many - few, for_many as i64 - for_few as i64)
    });
    let (blocks, allocations) = task.wait().unwrap();
    assert!(blocks >= 500);
    assert!(
        allocations <= allowance(&engine) as i64,
        "{allocations} allocations for {blocks} further blocks"
    );
}

/// A batch has a handful of allocations for its lists, however many ranges it has.
#[test]
fn batches_allocate_nothing_per_range() {
    let (engine, _dir, file) = scene();
    let ranges = |count: u64| (0..count).map(|n| n * 3 * 4096 + 5..n * 3 * 4096 + 105).collect::<Vec<_>>();
    let inner = file.clone();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        // Not merged, so that every range is a separate request.
        let batch = async |ranges: Vec<std::ops::Range<u64>>| {
            let blocks = inner.read_many(ranges.iter().cloned()).gap_bytes_max(0).await.unwrap();
            assert_eq!(&blocks[7].as_ref().unwrap()[..], &bytes_of(ranges[7].clone())[..]);
        };
        batch(ranges(1_300)).await;
        let (few, many) = (ranges(300), ranges(1_300));
        let for_few = allocations::during(batch(few)).await.1;
        let for_many = allocations::during(batch(many)).await.1;
        (for_few, for_many)
    });
    let (few, many) = task.wait().unwrap();
    // Lists that grow by doubling reallocate a few times more; a thousand ranges must not show.
    assert!(many <= few + 12 + allowance(&engine), "{few} allocations for 300 ranges, {many} for 1,300");

    // From outside the shard: on the shard's thread, and on the caller's.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let watch = |on: bool| {
        engine
            .spawn_on_shard(0, Class::DEFAULT, move || async move { allocations::set(on.then_some(0)) })
            .wait()
            .unwrap()
    };
    let batch = |count: u64| {
        let ranges = ranges(count);
        watch(true);
        let (blocks, here) =
            runtime.block_on(allocations::during(file.read_many(ranges).gap_bytes_max(0).into_future()));
        drop(blocks.unwrap());
        (here, watch(false).unwrap())
    };
    batch(1_300);
    let (few, many) = (batch(300), batch(1_300));
    println!(
        "read_many from Tokio, 1,300 ranges: {} allocations on the caller's thread, {} on the shard's",
        many.0, many.1
    );
    assert!(many.0 <= few.0 + 12, "on the caller's thread: {} for 300 ranges, {} for 1,300", few.0, many.0);
    assert!(
        many.1 <= few.1 + 12 + allowance(&engine),
        "on the shard's thread: {} for 300 ranges, {} for 1,300",
        few.1,
        many.1
    );
}

/// Copies of short detached results share memory by fours; each of them had a separate allocation.
#[test]
fn detached_results_share_allocations() {
    let (engine, _dir, file) = scene();
    let ranges = |count: u64| (0..count).map(|n| n * 8192..n * 8192 + 4096);
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        // Merged, so that every result is copied out of its request.
        let batch = async |count: u64| {
            let blocks = file.read_many(ranges(count)).detached().await.unwrap();
            assert_eq!(&blocks[7].as_ref().unwrap()[..], &bytes_of(7 * 8192..7 * 8192 + 4096)[..]);
        };
        batch(1_300).await;
        let for_few = allocations::during(batch(300)).await.1;
        (for_few, allocations::during(batch(1_300)).await.1)
    });
    let (few, many) = task.wait().unwrap();
    println!("{few} allocations for 300 detached results, {many} for 1,300");
    let more = 1_000 / 4 + 12 + allowance(&engine);
    assert!(many <= few + more, "{few} allocations for 300 ranges, {many} for 1,300");
}

/// Informational: the cost of one read at a time from Tokio.
#[test]
fn one_read_from_tokio_allocates_one_cell() {
    let (engine, _dir, file) = scene();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let reads = async || {
        for n in 0..500u64 {
            file.read(n * 4096..n * 4096 + 4096).await.unwrap();
        }
    };
    runtime.block_on(reads());
    let (_, allocations) = runtime.block_on(allocations::during(reads()));
    println!("{:.2} allocations a read from Tokio, on the caller's thread", allocations as f64 / 500.0);
    assert!(allocations <= 2 * 500, "{allocations} allocations in 500 reads");
    drop(engine);
}

/// A chain of 40 reads, with a state that fills its slot.
struct Chain([u64; 16]);

impl Walk for Chain {
    type Output = u64;
    type Error = Error;

    fn step(&mut self, block: &Block, at: Range<u64>) -> Step<u64, Error> {
        self.0[0] += 1;
        self.0[1] += block.len() as u64;
        let next = (at.start + 7919 * 4096) % (FILE_BYTES - 65_536);
        match self.0[0] {
            40 => Step::Done(self.0[1]),
            // Sixteen concurrent reads, of which the first is followed and the others are dropped.
            n if n % 8 == 0 => Step::read_each((0..16).map(|n| next + n * 4096..next + n * 4096 + 4096)),
            _ => Step::Read(next..next + 4096),
        }
    }
}

/// One read, whose step is longer than a step may be; a type for each `N`.
struct Slow<const N: usize>;

impl<const N: usize> Walk for Slow<N> {
    type Output = ();
    type Error = Error;

    fn step(&mut self, _: &Block, _: Range<u64>) -> Step<(), Error> {
        let begun = std::time::Instant::now();
        while begun.elapsed() < std::time::Duration::from_micros(100) {
            std::hint::spin_loop();
        }
        Step::Done(())
    }
}

/// Regression: a step that was preempted for 20 us counted as slow, and the first slow step of a walk's type allocated
/// its count.
#[test]
fn slow_steps_are_counted_without_an_allocation() {
    let (engine, _dir, file) = scene();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        // Where the processor has no steady counter one step in 32 is timed.
        async fn slow<const N: usize>(file: &File) {
            for _ in 0..64 {
                file.walk(0..4096, Slow::<N>).await.unwrap();
            }
        }
        slow::<0>(&file).await;
        allocations::during(async {
            slow::<1>(&file).await;
            slow::<2>(&file).await;
            slow::<3>(&file).await;
            slow::<4>(&file).await;
            slow::<5>(&file).await;
        })
        .await
        .1
    });
    let allocations = task.wait().unwrap();
    let counted = engine.stats().wait().unwrap().walks.slow_steps;
    assert_eq!(counted.len(), 6, "{counted:?}");
    assert!(allocations <= allowance(&engine), "{allocations} allocations for slow steps");
}

#[test]
fn walks_allocate_nothing_on_a_shard() {
    let (engine, _dir, file) = scene();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let walks = async |times: u64| {
            for n in 0..times {
                let walk = file.walk(n * 4096..n * 4096 + 4096, Chain([0; 16]));
                assert_eq!(walk.await.unwrap(), 40 * 4096);
            }
        };
        walks(60).await;
        allocations::during(walks(100)).await.1
    });
    let allocations = task.wait().unwrap();
    assert_eq!(engine.stats().wait().unwrap().walks.boxed_states, 0);
    assert!(allocations <= allowance(&engine), "{allocations} allocations in 100 walks of 40 hops");
}

/// Regression: a sender that had sent its result made an error when it was dropped, which allocated and was not sent.
#[test]
fn a_task_allocates_its_parts_alone() {
    let (engine, _dir, _file) = scene();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, || async {
        let tasks = async |times: u64| {
            for n in 0..times {
                assert_eq!(shard::spawn(async move { n }).unwrap().await.unwrap(), n);
            }
        };
        tasks(100).await;
        allocations::during(tasks(1_000)).await.1
    });
    let allocations = task.wait().unwrap();
    // The task, its future, its result, and what aborts it.
    assert!(allocations <= 4 * 1_000, "{allocations} allocations for 1,000 tasks");
}
