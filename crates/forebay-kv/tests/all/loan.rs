//! The cache has the memory of idle memtables, block by block, until somebody writes, and that for values until the program holds them.

use forebay::Engine;
use forebay_kv::{Batch, Options, Store};
use forebay_sim::{Profile, World};

use crate::common::{key, random};

/// Four values fill a leaf of 4 KiB.
const VALUE: [u8; 1000] = [7; 1000];
/// A leaf in the cache, with the memory for its entry.
const BLOCK: u64 = 4096 + 160;

fn world() -> World {
    World::new(1).disk(Profile::nand().at("/disk")).steps_max(u64::MAX)
}

/// Returns a store of 16 MiB with this many leaves in tables, and nothing of them in its cache.
async fn store(engine: &Engine, leaves: u64) -> Store {
    let options = Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN).store_id(9).clock(|| 1_000_000);
    let store = Store::open(engine, "/disk/kv", options).await.expect("the store opens");
    let entries = (0..leaves * 4).map(|number| (key(number), VALUE));
    store.default_keyspace().bulk_load(entries).await.expect("a load");
    store.settle().await.expect("at rest");
    store
}

async fn get_leaves(store: &Store, leaves: impl Iterator<Item = u64>) {
    let keyspace = store.default_keyspace();
    for leaf in leaves {
        assert!(keyspace.get(&key(leaf * 4)).await.expect("a get").is_some(), "leaf {leaf}");
    }
}

/// Returns whether each part of the memory keeps its share, and all together the budget.
fn is_within(store: &Store) -> bool {
    let memory = store.stats().memory;
    memory.used() <= memory.budget
        && memory.memtables <= memory.memtables_max
        && memory.blocks + memory.pinned <= memory.cache_max
}

/// Story: a store that was opened only for reads read from its device again and again, while the share of its memtables was idle.
#[test]
fn data_that_fit_with_the_memory_of_idle_memtables_are_read_once() {
    // 9.1 MiB, and the cache's own share is 8.8.
    const LEAVES: u64 = 2_250;
    let ran = world().run(async |engine| {
        let store = store(&engine, LEAVES).await;
        let share = store.stats().memory.cache_max;
        get_leaves(&store, 0..LEAVES).await;
        let first = store.stats();
        assert!(first.memory.blocks > share, "the cache has its own share of {share} only: {first:?}");
        // A part of the cache that is full before the others loses a block.
        assert!(first.cache_evictions <= 4 && first.cache_refusals == 0, "{first:?}");
        get_leaves(&store, (0..LEAVES).map(|turn| random(turn) % LEAVES)).await;
        // A few leaves are wanted often.
        get_leaves(&store, (0..LEAVES).map(|turn| random(turn) % LEAVES / (1 + random(!turn) % 200))).await;
        let misses = store.stats().cache_misses - first.cache_misses;
        assert!(misses <= 8, "{misses} reads for {} gets", 2 * LEAVES);
        assert!(is_within(&store));
        store.close().await.expect("an end");
    });
    ran.expect("a world without faults");
}

/// Each put takes back what it needs. A put that found the memory lent never waits for a long eviction.
#[test]
fn a_short_put_evicts_one_block_at_most() {
    let ran = world().run(async |engine| {
        let store = store(&engine, 4_000).await;
        let begun = store.stats().memory;
        get_leaves(&store, (0..4_000).chain(0..4_000)).await;
        let full = store.stats().memory;
        assert!(full.memtables_max < begun.memtables_max / 2, "{full:?}");
        assert!(full.blocks > begun.cache_max, "{full:?}");
        let (keyspace, flushes, mut before) = (store.default_keyspace(), store.stats().flushes, full);
        // No memtable is full: nothing is flushed meanwhile.
        for number in 0..2_000 {
            keyspace.put(key(number), [1; 100]).await.expect("a put");
            let now = store.stats().memory;
            assert!(before.blocks.saturating_sub(now.blocks) <= BLOCK, "put {number}: {before:?}, {now:?}");
            assert!(is_within(&store), "put {number}: {now:?}");
            before = now;
        }
        assert_eq!(store.stats().flushes, flushes);
        assert!(before.memtables_max > full.memtables_max, "{before:?}");
        store.close().await.expect("an end");
    });
    ran.expect("a world without faults");
}

/// Writes and reads in turn. Returns whether the memory kept its limits all the time.
fn keeps_its_limits(changes: u64) -> bool {
    const LEAVES: u64 = 8_000;
    let ran = world().run(async |engine| {
        let store = store(&engine, LEAVES).await;
        let (keyspace, shares) = (store.default_keyspace(), store.stats().memory);
        let (mut leaf, mut keeps) = (0, true);
        for change in 0..changes {
            // Memory of memtables is lent while nobody writes.
            for _ in 0..300 {
                get_leaves(&store, (leaf..leaf + 15).map(|leaf| leaf % LEAVES)).await;
                leaf += 15;
                keeps &= is_within(&store);
            }
            let memory = store.stats().memory;
            assert!(
                memory.memtables_max < shares.memtables_max,
                "change {change}: nothing is lent: {memory:?}"
            );
            assert!(memory.held_max < shares.held_max / 2, "change {change}: nothing is lent: {memory:?}");
            // Most of the share of a program that holds values: each takes back the bytes that it lacks.
            let mut held = Vec::new();
            for turn in 0..200 {
                let number = random(change << 32 | turn) % (LEAVES * 4);
                held.push(keyspace.get(&key(number)).await.expect("a get"));
                let memory = store.stats().memory;
                keeps &= is_within(&store);
                keeps &= memory.held <= memory.held_max || memory.held_max == shares.held_max;
            }
            drop(held);
            // Two memtables are filled.
            for first in (0..1_600).step_by(10) {
                let mut batch = Batch::new();
                for entry in first..first + 10 {
                    let number = random(change << 32 | entry) % (LEAVES * 4);
                    batch.put(&keyspace, key(number), [change as u8; 1000]);
                }
                store.write(&batch).await.expect("a write");
                keeps &= is_within(&store);
            }
        }
        store.close().await.expect("an end");
        keeps
    });
    ran.expect("a world without faults")
}

#[test]
fn the_memory_keeps_its_limits_while_reads_and_writes_take_turns() {
    assert!(keeps_its_limits(20));
}

/// Test of the test.
#[cfg(feature = "_mutants")]
#[test]
fn a_loan_that_no_put_takes_back_is_caught() {
    use forebay_kv::mutants::{self, Mutant};
    assert!(!mutants::with(Mutant::LoanKept, || keeps_its_limits(2)));
}
