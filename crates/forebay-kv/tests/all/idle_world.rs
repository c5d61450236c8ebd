//! A store that nothing is written to is small, and does nothing.
//!
//! Story: 300 MB of values were deleted, and the deletions stayed in memory: an idle store kept all of the values, also after it
//! was opened again and after `settle`. Only `flush` helped.

use std::path::Path;
use std::time::Duration;

use forebay::Engine;
use forebay_kv::{Batch, Options, Store};
use forebay_sim::{self as sim, Profile, World};

use crate::common::{self, key, random};

const DIR: &str = "/disk/store";
const KEYS: u64 = 3_000;
const SECOND: Duration = Duration::from_secs(1);
/// Memtables that the deletions of all keys do not fill. Those of an eighth of this many bytes are not worth a flush.
const MEMTABLE: u64 = 512 << 10;

fn options() -> Options {
    common::options().memtable_bytes(MEMTABLE).log_segment_bytes(1 << 20).store_id(7).clock(|| 1_000)
}

fn world(seed: u64) -> World {
    World::new(seed).disk(Profile::nand().at("/disk"))
}

async fn open(engine: &Engine) -> Store {
    Store::open(engine, DIR, options()).await.expect("the store opens")
}

/// Returns a store at rest with this many keys, each of about a kilobyte, in its last level.
async fn filled(engine: &Engine, keys: u64) -> Store {
    let store = open(engine).await;
    fill(&store, keys, 1_000).await;
    store
}

/// Fills a store with this many keys, all in its last level.
async fn fill(store: &Store, keys: u64, value_bytes: usize) {
    let keyspace = store.default_keyspace();
    for first in (0..keys).step_by(100) {
        let mut batch = Batch::new();
        for number in first..(first + 100).min(keys) {
            let value = random(number).to_le_bytes().repeat(value_bytes / 8);
            batch.put(&keyspace, key(number), value);
        }
        store.write(&batch).await.expect("a batch");
    }
    store.compact().await.expect("a compaction");
    store.settle().await.expect("rest");
}

async fn delete(store: &Store, keys: std::ops::Range<u64>) {
    let keyspace = store.default_keyspace();
    let mut batch = Batch::new();
    for first in keys.clone().step_by(100) {
        batch.clear();
        for number in first..(first + 100).min(keys.end) {
            batch.delete(&keyspace, key(number));
        }
        store.write(&batch).relaxed().await.expect("a batch");
    }
    store.sync().await.expect("durable deletions");
}

/// Returns the bytes of all tables.
fn table_bytes(store: &Store) -> u64 {
    let levels = store.stats().keyspaces.into_iter().flat_map(|keyspace| keyspace.levels);
    levels.map(|level| level.bytes).sum()
}

/// Returns the bytes on disk of the files of one of the store's directories.
async fn dir_bytes(engine: &Engine, name: &str) -> u64 {
    let (dir, mut bytes) = (Path::new(DIR).join(name), 0);
    for entry in engine.read_dir(&dir).await.expect("a directory") {
        bytes += engine.metadata(dir.join(entry.name())).await.expect("a file").blocks_bytes();
    }
    bytes
}

async fn pause(time: Duration) {
    sim::sleep(time).await.expect("in a world");
}

/// Deletes everything and waits, perhaps after the store was closed and opened. Returns whether all space is given back.
fn gives_back(seed: u64, is_reopened: bool) -> bool {
    let ran = world(seed).run(async |engine| {
        let mut store = filled(&engine, KEYS).await;
        let full = table_bytes(&store);
        assert!(full > KEYS * 1_000, "{full}");
        let flushes = store.stats().flushes;
        delete(&store, 0..KEYS).await;
        assert_eq!(store.stats().flushes, flushes, "a memtable holds all deletions");
        if is_reopened {
            store.close().await.expect("an end");
            store = open(&engine).await;
            assert_eq!(table_bytes(&store), full);
        }
        pause(10 * SECOND).await;
        let tables = dir_bytes(&engine, "tables").await;
        let beside = dir_bytes(&engine, "log").await + store.stats().reserve_bytes;
        let is_small = table_bytes(&store) == 0 && tables <= beside / 5;
        // All of it was done, and nothing follows.
        let before = sim::node(0).counts();
        pause(3_600 * SECOND).await;
        assert_eq!(sim::node(0).counts(), before, "an idle store works");
        store.close().await.expect("an end");
        is_small
    });
    ran.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"))
}

#[test]
fn an_idle_store_gives_back_what_was_deleted() {
    for seed in 0..3 {
        assert!(gives_back(seed, false), "seed {seed}: an open store");
        assert!(gives_back(seed, true), "seed {seed}: a store that was opened again");
    }
}

/// Replaces values by short ones and waits, perhaps after the store was closed and opened. Returns whether the space is given back.
fn gives_back_replaced(seed: u64, value_bytes: usize, is_reopened: bool) -> bool {
    let ran = world(seed).run(async |engine| {
        // Those of more than a kilobyte are separated.
        let options = options().separation_bytes(1_200);
        let mut store = Store::open(&engine, DIR, options.clone()).await.expect("a store");
        fill(&store, KEYS, value_bytes).await;
        let full = dir_bytes(&engine, "tables").await;
        assert!(full > KEYS * value_bytes as u64, "{full}");
        let flushes = store.stats().flushes;
        replace(&store, KEYS, 1).await;
        assert_eq!(store.stats().flushes, flushes, "a memtable holds all of it");
        if is_reopened {
            store.close().await.expect("an end");
            store = Store::open(&engine, DIR, options).await.expect("the store opens");
        }
        pause(10 * SECOND).await;
        let left = dir_bytes(&engine, "tables").await;
        // All of it was done, and nothing follows.
        let before = sim::node(0).counts();
        pause(3_600 * SECOND).await;
        assert_eq!(sim::node(0).counts(), before, "an idle store works");
        store.close().await.expect("an end");
        left < full / 10
    });
    ran.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"))
}

/// Replaces the values of the first `keys` keys, with one batch.
async fn replace(store: &Store, keys: u64, value_bytes: usize) {
    let (keyspace, mut batch) = (store.default_keyspace(), Batch::new());
    for number in 0..keys {
        batch.put(&keyspace, key(number), vec![7; value_bytes]);
    }
    store.write(&batch).await.expect("a batch");
}

/// Story: values were replaced by short ones, which stayed in memory as deletions once did: a store of a gigabyte kept it for ten
/// bytes in place of each megabyte.
#[test]
fn an_idle_store_gives_back_what_was_replaced_by_less() {
    for (seed, value_bytes) in [(0, 1_000), (1, 2_000)] {
        assert!(gives_back_replaced(seed, value_bytes, false), "{value_bytes} bytes: an open store");
        assert!(
            gives_back_replaced(seed, value_bytes, true),
            "{value_bytes} bytes: a store that was opened again"
        );
    }
}

/// Replacing a value by one of more than half its length frees little.
#[test]
fn values_of_more_than_half_the_length_are_not_worth_a_flush() {
    for (value_bytes, is_flushed) in [(1_000, false), (560, false), (440, true), (0, true)] {
        let ran = world(8).run(async |engine| {
            let store = filled(&engine, KEYS).await;
            let flushes = store.stats().flushes;
            replace(&store, 400, value_bytes).await;
            pause(10 * SECOND).await;
            let flushes = store.stats().flushes - flushes;
            assert_eq!(flushes, u64::from(is_flushed), "{value_bytes} bytes");
            store.close().await.expect("an end");
        });
        ran.expect("a world without faults");
    }
}

/// Story: a program kept a counter of eight bytes beside long values. Each put of it counted as a value in place of a long one, so that
/// the idle store flushed a table of one key, for nothing.
#[test]
fn a_short_value_that_is_put_again_and_again_is_not_worth_a_flush() {
    let ran = world(9).run(async |engine| {
        let store = filled(&engine, KEYS).await;
        let (keyspace, flushes) = (store.default_keyspace(), store.stats().flushes);
        let mut batch = Batch::new();
        for number in 0..1_000_u64 {
            keyspace.put("counter", number.to_le_bytes()).relaxed().await.expect("a put");
            batch.put(&keyspace, "counter", number.to_le_bytes());
        }
        store.write(&batch).await.expect("a batch");
        pause(10 * SECOND).await;
        assert_eq!(store.stats().flushes, flushes);
        store.close().await.expect("an end");
    });
    ran.expect("a world without faults");
}

/// Test of the test.
#[cfg(feature = "_mutants")]
#[test]
fn deletions_that_stay_in_memory_are_caught() {
    use forebay_kv::mutants::{self, Mutant};
    assert!(!mutants::with(Mutant::DeletionsNotFlushed, || gives_back(0, false)));
    assert!(!mutants::with(Mutant::DeletionsNotFlushed, || gives_back(0, true)));
    assert!(!mutants::with(Mutant::DeletionsNotFlushed, || gives_back_replaced(0, 1_000, false)));
}

#[test]
fn settling_flushes_first() {
    let ran = world(1).run(async |engine| {
        let store = filled(&engine, KEYS).await;
        delete(&store, 0..KEYS).await;
        store.settle().await.expect("rest");
        assert_eq!((table_bytes(&store), dir_bytes(&engine, "tables").await), (0, 0));
        store.close().await.expect("an end");
    });
    ran.expect("a world without faults");
}

/// A flush and a compaction cost more than a few deletions give back.
#[test]
fn deletions_of_little_are_not_worth_a_flush() {
    let ran = world(2).run(async |engine| {
        let store = filled(&engine, KEYS).await;
        let (full, flushes) = (table_bytes(&store), store.stats().flushes);
        // Less than an eighth of the data.
        delete(&store, 0..250).await;
        pause(10 * SECOND).await;
        assert_eq!((table_bytes(&store), store.stats().flushes), (full, flushes));
        // Those before count.
        delete(&store, 250..1_000).await;
        pause(10 * SECOND).await;
        assert_eq!(store.stats().flushes, flushes + 1);
        let left = table_bytes(&store);
        assert!(left < full / 4 * 3, "{left} of {full}");
        store.close().await.expect("an end");
    });
    ran.expect("a world without faults");
    // All of a store, which is less than an eighth of a memtable.
    let ran = world(3).run(async |engine| {
        let store = filled(&engine, 20).await;
        let flushes = store.stats().flushes;
        delete(&store, 0..20).await;
        pause(10 * SECOND).await;
        assert_eq!(store.stats().flushes, flushes);
        store.close().await.expect("an end");
    });
    ran.expect("a world without faults");
}

/// A program that deletes all the time never leaves its store idle.
#[test]
fn deletions_without_a_pause_are_flushed_once_a_second_at_most() {
    let ran = world(4).run(async |engine| {
        let store = filled(&engine, KEYS).await;
        let (full, flushes, began) = (table_bytes(&store), store.stats().flushes, sim::now());
        for first in (0..KEYS / 2).step_by(5) {
            delete(&store, first..first + 5).await;
            pause(SECOND / 20).await;
        }
        let (flushes, took) = (store.stats().flushes - flushes, (sim::now() - began).as_secs());
        assert!(flushes >= 2 && flushes <= took, "{flushes} flushes in {took} s");
        let left = table_bytes(&store);
        assert!(left < full / 5 * 4, "{left} of {full}");
        store.close().await.expect("an end");
    });
    ran.expect("a world without faults");
}

/// Story: a program deleted the data of one keyspace and continued with another: no space was freed for as long as it wrote, as
/// only a whole store could be at rest.
#[test]
fn an_idle_keyspace_gives_back_what_was_deleted_beside_a_busy_one() {
    let ran = world(7).run(async |engine| {
        let options = options().memtable_bytes(64 << 10);
        let store = Store::open(&engine, DIR, options).await.expect("a store");
        let (idle, busy) = (store.default_keyspace(), store.keyspace("busy").await.expect("a keyspace"));
        for first in (0..1_000).step_by(50) {
            let mut batch = Batch::new();
            for number in first..first + 50 {
                batch.put(&idle, key(number), [7; 1_000]);
            }
            store.write(&batch).await.expect("a batch");
        }
        store.compact().await.expect("a compaction");
        delete(&store, 0..1_000).await;
        let began = sim::now();
        let idle_bytes = || {
            let stats = store.stats();
            let levels = stats.keyspaces.iter().filter(|of| of.name == "default").flat_map(|of| &of.levels);
            levels.map(|level| level.bytes).sum::<u64>()
        };
        let mut turn = 0;
        while idle_bytes() > 0 {
            assert!(sim::now() - began < 120 * SECOND, "{:?}", store.stats());
            let mut batch = Batch::new();
            for place in 0..20 {
                batch.put(&busy, key(random(turn << 8 | place) % 500), [turn as u8; 1_000]);
            }
            store.write(&batch).await.expect("a batch");
            pause(SECOND / 10).await;
            turn += 1;
        }
        assert!(turn > 0, "nothing was deleted");
        store.close().await.expect("an end");
    });
    ran.expect("a world without faults");
}

/// Returns the steps of a world in which a store is idle for so long.
fn steps(idle: Duration) -> u64 {
    let mut world = world(5).stalls_ppm(0).wanders_ppm(0);
    let ran = world.run(async |engine| {
        let store = filled(&engine, KEYS).await;
        delete(&store, 0..KEYS).await;
        pause(30 * SECOND).await;
        assert_eq!(table_bytes(&store), 0);
        // Of these the memtable keeps the deletions.
        store.default_keyspace().put(key(0), "1").await.expect("a put");
        delete(&store, 0..10).await;
        pause(idle).await;
        store.close().await.expect("an end");
    });
    ran.expect("a world without faults");
    world.steps()
}

#[test]
fn nothing_ticks_in_an_idle_store() {
    let (short, long) = (steps(60 * SECOND), steps(30 * 24 * 3_600 * SECOND));
    assert!(long.abs_diff(short) < 1_000, "{short} steps, and {long} with a month");
}

/// Returns the flushes and the bytes written of a store whose memtables are full many times a second.
#[cfg(feature = "_mutants")]
fn write_heavy() -> (u64, u64) {
    let ms = Duration::from_millis(1);
    let mut world = World::new(6).disk(Profile::nand().at("/disk").latency(ms / 10, ms, ms));
    let ran = world.run(async |engine| {
        let store = Store::open(&engine, DIR, options().memtable_bytes(64 << 10)).await.expect("a store");
        let (keyspace, began) = (store.default_keyspace(), sim::now());
        let mut batch = Batch::new();
        for turn in 0..1_200_u64 {
            batch.clear();
            for place in 0..25 {
                let name = key(random(turn << 8 | place) % 2_000);
                if place % 5 < 2 {
                    batch.delete(&keyspace, name);
                } else {
                    batch.put(&keyspace, name, [turn as u8; 500]);
                }
            }
            store.write(&batch).await.expect("a batch");
        }
        assert!(sim::now() - began > 2 * SECOND, "the timer has run");
        let flushes = store.stats().flushes;
        store.close().await.expect("an end");
        flushes
    });
    (ran.expect("a world without faults"), world.counts().written_bytes)
}

/// Nothing is flushed early where memtables are full soon.
#[cfg(feature = "_mutants")]
#[test]
fn a_run_of_many_writes_writes_as_much_as_without() {
    use forebay_kv::mutants::{self, Mutant};
    let (with, without) = (write_heavy(), mutants::with(Mutant::DeletionsNotFlushed, write_heavy));
    assert!(without.0 > 100, "{without:?}");
    assert_eq!(with, without);
}
