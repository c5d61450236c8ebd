//! What the cache keeps: all blocks that are read while memory is free, then those that are read again.

use crate::common::{dir, key, random};
use forebay::{Config, Engine};
use forebay_kv::{Keyspace, Options, Stats, Store};

const MIB: u64 = 1 << 20;
/// Four values fill a leaf of 4 KiB.
const VALUE: [u8; 1000] = [7; 1000];

/// Returns a store with `keys` keys in tables and an empty cache, and its engine.
fn store(dir: &tempfile::TempDir, keys: u64, options: Options) -> (Engine, Store, Keyspace) {
    let open = |engine: &Engine| {
        let options = options.clone().memory_bytes_max(Options::MEMORY_BYTES_MIN).memtable_bytes(64 << 10);
        Store::open(engine, dir.path(), options.log_segment_bytes(256 << 10)).wait().expect("a store")
    };
    let start = || Engine::start(Config::new().shards(1)).expect("an engine");
    let engine = start();
    let store = open(&engine);
    store.default_keyspace().bulk_load((0..keys).map(|number| (key(number), VALUE))).wait().expect("a load");
    store.close().wait().expect("closed");
    // A new engine, whose memory is unused.
    let engine = start();
    let store = open(&engine);
    let keyspace = store.default_keyspace();
    (engine, store, keyspace)
}

fn get(keyspace: &Keyspace, number: u64) {
    assert!(keyspace.get(&key(number)).wait().expect("a get").is_some(), "key {number}");
}

/// Gets one key of each of `leaves` leaves from the one with the number `first` on, in any order.
fn get_leaves(keyspace: &Keyspace, first: u64, leaves: u64) {
    let mut numbers: Vec<u64> = (first..first + leaves).collect();
    for at in (1..numbers.len()).rev() {
        numbers.swap(at, (random(at as u64) % (at as u64 + 1)) as usize);
    }
    numbers.into_iter().for_each(|leaf| get(keyspace, leaf * 4));
}

/// Returns the blocks inserted, refused and evicted in between.
fn between(before: &Stats, after: &Stats) -> (u64, u64, u64) {
    (
        after.cache_insertions - before.cache_insertions,
        after.cache_refusals - before.cache_refusals,
        after.cache_evictions - before.cache_evictions,
    )
}

/// Returns the number of reads of gets and ranges.
fn reads(engine: &Engine) -> u64 {
    let flows = engine.stats().wait().expect("statistics").flows;
    flows.iter().filter(|flow| flow.class == "default").map(|flow| flow.reads).sum()
}

/// Story: each block that a get read was inserted into the cache. A program that read at random in a store much larger than its
/// cache paid for blocks that were not read again, and lost others for them.
#[test]
fn a_block_that_is_read_once_evicts_nothing_from_a_full_cache() {
    let dir = dir();
    let (engine, store, keyspace) = store(&dir, 60_000, Options::new());
    get_leaves(&keyspace, 0, 4_000);
    let full = (store.stats(), engine.memory());
    assert!(full.0.memory.blocks > 7 * MIB, "{:?}", full.0);
    get_leaves(&keyspace, 4_000, 4_000);
    let (inserted, refused, evicted) = between(&full.0, &store.stats());
    assert!(inserted < 300 && refused > 3_700, "{inserted} came in, {refused} did not");
    assert!(evicted < 300, "{evicted} left");
    let grown = engine.memory().arena_bytes - full.1.arena_bytes;
    assert!(grown <= 4 * MIB, "{grown} bytes of memory for 16 MiB that were read once");

    // A warm set replaces blocks that were read once, and stays while other blocks are read once.
    for _ in 0..6 {
        get_leaves(&keyspace, 8_000, 500);
    }
    let warm = store.stats();
    get_leaves(&keyspace, 8_500, 6_000);
    let cold = store.stats();
    let (inserted, refused, _) = between(&warm, &cold);
    assert!(inserted < 600 && refused > 5_400, "{inserted} came in, {refused} did not");
    get_leaves(&keyspace, 8_000, 500);
    let misses = store.stats().cache_misses - cold.cache_misses;
    assert!(misses <= 150, "{misses} of 500 warm leaves were read again");
    store.close().wait().expect("closed");
}

/// Story: a fresh store read each leaf twice from the device before it was in memory, with its cache empty.
#[test]
fn data_that_fit_into_the_cache_are_all_in_it_after_one_pass() {
    let dir = dir();
    // 7 of the cache's 11 MiB.
    let (engine, store, keyspace) = store(&dir, 7_000, Options::new());
    get_leaves(&keyspace, 0, 1_750);
    let (before, stats) = (reads(&engine), store.stats());
    assert_eq!((stats.cache_refusals, stats.cache_evictions), (0, 0), "{stats:?}");
    get_leaves(&keyspace, 0, 1_750);
    // Few keys are wanted often.
    (0..5_000).for_each(|turn| get(&keyspace, random(turn) % 1_750 / (1 + random(turn + 9_000) % 400) * 4));
    assert_eq!(reads(&engine), before);
    assert_eq!(store.stats().cache_misses, stats.cache_misses);
    assert!(stats.memory.blocks > 6 * MIB, "{stats:?}");
    store.close().wait().expect("closed");
}

/// Story: a compaction wrote what gets wanted all the time to new tables, from which they had to read it again.
#[test]
fn what_is_wanted_often_stays_in_memory_through_a_compaction() {
    let dir = dir();
    let (engine, store, keyspace) = store(&dir, 60_000, Options::new());
    get_leaves(&keyspace, 0, 4_000);
    for _ in 0..6 {
        get_leaves(&keyspace, 8_000, 500);
    }
    // Something new for every table.
    for number in (0..60_000).step_by(100) {
        keyspace.put(key(number), VALUE).relaxed().wait().expect("a put");
    }
    store.compact().wait().expect("a compaction");
    store.settle().wait().expect("at rest");
    assert!(store.stats().compaction_written_bytes > 50_000_000, "{:?}", store.stats());
    let before = reads(&engine);
    get_leaves(&keyspace, 8_000, 500);
    let again = reads(&engine) - before;
    assert!(again <= 300, "{again} of 500 warm leaves were read again");
    store.close().wait().expect("closed");
}

/// Story: a range through the table inserted leaves of 32 KiB into the cache, two of each read.
#[test]
fn a_long_range_evicts_no_block_of_gets() {
    for leaf_bytes in [4 << 10, 32 << 10] {
        let dir = dir();
        let (_engine, store, keyspace) = store(&dir, 30_000, Options::new().leaf_bytes(leaf_bytes));
        let leaf_keys = u64::from(leaf_bytes) / 1024;
        let warm = || (0..100).for_each(|number| get(&keyspace, (number * 7 + 3) * leaf_keys));
        (0..3).for_each(|_| warm());
        let before = store.stats();
        for _ in 0..3 {
            for mut range in [keyspace.iter(), keyspace.iter().rev()] {
                let mut count = 0;
                while range.next().wait().transpose().expect("an entry").is_some() {
                    count += 1;
                }
                assert_eq!(count, 30_000);
            }
        }
        let after = store.stats();
        let (inserted, _, evicted) = between(&before, &after);
        assert!(inserted < 40 && evicted == 0, "{inserted} came in and {evicted} left, of {leaf_bytes}");
        warm();
        let again = store.stats();
        assert_eq!(again.cache_misses, after.cache_misses);
        store.close().wait().expect("closed");
    }
}

/// A short range is like a get: what it reads again and again is soon in memory.
#[test]
fn a_short_range_that_is_wanted_again_is_read_from_memory() {
    let dir = dir();
    let (engine, store, keyspace) = store(&dir, 10_000, Options::new());
    let short = || {
        let first = [keyspace.iter(), keyspace.iter().rev()];
        for mut range in first.into_iter().chain([keyspace.range(key(4_000)..key(4_003))]) {
            // One leaf: a range that continues reads ahead.
            assert!(range.next().wait().is_some_and(|entry| entry.is_ok()));
        }
    };
    (0..3).for_each(|_| short());
    let before = reads(&engine);
    (0..10).for_each(|_| short());
    assert_eq!(reads(&engine), before);
    store.close().wait().expect("closed");
}

/// Story: a value little longer than a power of two kept a buffer of twice its length in the cache, so a store of values of 4,097 bytes
/// needed twice the memory of one of 4,096. Longer ones than 64 KiB were not cached at all.
#[test]
fn values_of_neighbouring_lengths_need_about_the_same_memory() {
    let turns = |bytes: usize| {
        let dir = dir();
        let options = || {
            let least = Options::new().memory_bytes_max(2 * Options::MEMORY_BYTES_MIN);
            least.separation_bytes(64 << 10)
        };
        let count = 18 * MIB / bytes as u64;
        let config = || Config::new().shards(1).arena_bytes(2 << 20).arena_bytes_max(40 << 20);
        let engine = Engine::start(config()).expect("an engine");
        let store = Store::open(&engine, dir.path(), options()).wait().expect("a store");
        let keyspace = store.default_keyspace();
        for number in 0..count {
            keyspace.put(key(number), vec![number as u8; bytes]).relaxed().wait().expect("a put");
        }
        store.compact().wait().expect("a compaction");
        store.close().wait().expect("closed");
        let engine = Engine::start(config()).expect("an engine");
        let store = Store::open(&engine, dir.path(), options()).wait().expect("a store");
        let keyspace = store.default_keyspace();
        let pass = || (0..count).for_each(|number| get(&keyspace, number));
        // The first get of many looks for free memory.
        (0..20).for_each(|_| pass());
        let (before, memory) = (reads(&engine), engine.memory());
        pass();
        let again = reads(&engine) - before;
        assert!(memory.held_bytes <= 40 << 20, "{memory:?}");
        store.close().wait().expect("closed");
        (again, count)
    };
    for bytes in [4_097, 65_537] {
        let (again, count) = turns(bytes);
        assert!(again <= count / 50, "{again} of {count} values of {bytes} bytes were read again");
    }
}
