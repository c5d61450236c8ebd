//! A separate program: it counts allocations with a global allocator.
//!
//! Costs of gets: those found in memory, those that read, and several concurrently.

mod common;

use std::ops::ControlFlow;

use common::{dir, engine, key, open, random, value};
use forebay_kv::{FilterPolicy, Keyspace, Store};
use forebay_test::allocations::{self, CountingAllocator};
use futures::executor::block_on;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Keys that are looked up. The store has twice as many entries; the keys in between are never looked up.
const KEYS: u64 = 3000;

/// Returns a store with its keys in tables and nothing in memory but the parts pinned by the open.
fn store(engine: &forebay::Engine, dir: &tempfile::TempDir) -> (Store, Keyspace) {
    let store = open(engine, dir);
    let entries = (0..2 * KEYS).map(|number| (key(number), value(number)));
    store.default_keyspace().bulk_load(entries).wait().unwrap();
    store.close().wait().unwrap();
    let store = open(engine, dir);
    let keyspace = store.default_keyspace();
    (store, keyspace)
}

#[test]
fn a_get_whose_leaf_is_cached_stays_on_its_thread_and_allocates_nothing() {
    let (engine, dir) = (engine(), dir());
    let (store, keyspace) = store(&engine, &dir);
    let (first, absent) = (key(40), b"key 000040 and a half");
    assert_eq!(&*keyspace.get(&first).wait().unwrap().unwrap(), value(40));
    // The first of these gets initializes the thread's state.
    assert!(keyspace.get(absent).wait().unwrap().is_none());
    drop(keyspace.get(&first).wait().unwrap());
    let before = engine.stats().wait().unwrap().walks;
    allocations::set(Some(0));
    for _ in 0..100 {
        let found = keyspace.get(&first).wait();
        assert!(matches!(found, Ok(Some(_))));
        assert!(matches!(keyspace.get(absent).wait(), Ok(None)));
    }
    let allocations = allocations::set(None);
    let after = engine.stats().wait().unwrap().walks;
    assert_eq!(allocations, Some(0));
    assert_eq!(after.walks, before.walks);
    store.close().wait().unwrap();
}

/// Story: a range of ten entries in memory cost twice what RocksDB's did, most of it before its first entry: a boxed future, a path
/// of nodes and a plan of reads, although there was nothing to read.
#[test]
fn a_range_in_memory_allocates_for_its_entries_and_little_else() {
    const ENTRIES: u64 = 10;
    let (engine, dir) = (engine(), dir());
    let (store, keyspace) = store(&engine, &dir);
    let pass = |first: u64| {
        let mut range = keyspace.range(key(first)..);
        for _ in 0..ENTRIES {
            assert!(matches!(range.next().wait(), Some(Ok(_))));
        }
    };
    // The leaves are offered to the cache until it has them.
    (0..4).for_each(|_| (0..100).for_each(pass));
    allocations::set(Some(0));
    (0..100).for_each(pass);
    let allocations = allocations::set(None).unwrap();
    // A key and a value each. Some of these ranges have two leaves.
    assert!(allocations <= 100 * (2 * ENTRIES + 14), "{allocations}");
    let visit = |first: u64| {
        let (mut range, mut left) = (keyspace.range(key(first)..), ENTRIES);
        let ended = range.visit(|_, _| {
            left -= 1;
            if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        assert!(matches!(ended.wait(), Ok(Some(()))));
    };
    allocations::set(Some(0));
    (0..100).for_each(visit);
    let allocations = allocations::set(None).unwrap();
    // Nothing for an entry that is visited.
    assert!(allocations <= 100 * 14, "{allocations}");
    store.close().wait().unwrap();
}

#[test]
fn a_get_that_reads_is_one_walk_with_one_wake_and_no_box() {
    let (engine, dir) = (engine(), dir());
    let (store, keyspace) = store(&engine, &dir);
    // A blob is one more hop of the same walk.
    keyspace.bulk_load([(b"large".to_vec(), vec![7; 40_000])]).wait().unwrap();
    let before = engine.stats().wait().unwrap().walks;
    // Awaited: a thread in `.wait()` may read by itself, and then nothing wakes it.
    assert_eq!(&*block_on(keyspace.get(&key(1000))).unwrap().unwrap(), value(1000));
    let one = engine.stats().wait().unwrap().walks;
    assert_eq!((one.walks - before.walks, one.wakes - before.wakes), (1, 1), "{one:?}");
    assert_eq!(&*block_on(keyspace.get(b"large")).unwrap().unwrap(), [7; 40_000]);
    let two = engine.stats().wait().unwrap().walks;
    assert_eq!((two.walks - one.walks, two.wakes - one.wakes), (1, 1), "{two:?}");
    assert!(two.hops - one.hops >= 2, "{two:?}");
    assert_eq!(two.boxed_states, 0);
    store.close().wait().unwrap();
}

#[test]
fn several_gets_answer_in_order_and_cost_a_wake_for_each_table() {
    let (engine, dir) = (engine(), dir());
    let (store, keyspace) = store(&engine, &dir);
    // Newer versions of some keys in tables of level 0, of others in memory; some keys are deleted.
    let mut expected: Vec<Option<Vec<u8>>> = (0..2 * KEYS).map(|number| Some(value(number))).collect();
    for number in (0..2 * KEYS).step_by(7) {
        let is_deleted = number % 3 == 0;
        expected[number as usize] = (!is_deleted).then(|| value(number + 1));
        if is_deleted {
            keyspace.delete(key(number)).wait().unwrap()
        } else {
            keyspace.put(key(number), value(number + 1)).wait().unwrap()
        }
        if number == KEYS / 7 * 7 {
            store.flush().wait().unwrap();
        }
    }
    let snapshot = store.snapshot();
    // One key many times, and many absent keys.
    let numbers: Vec<u64> = (0..KEYS).map(|seed| random(seed) % (3 * KEYS)).chain([5; 40]).collect();
    let keys: Vec<Vec<u8>> = numbers.iter().map(|number| key(*number)).collect();
    let wanted: Vec<Option<&[u8]>> =
        numbers.iter().map(|number| expected.get(*number as usize)?.as_deref()).collect();
    for number in 0..50 {
        keyspace.put(key(number), b"after the snapshot").wait().unwrap();
    }
    let before = engine.stats().wait().unwrap().walks;
    // In pieces, so that the kept values stay within their share of the budget.
    for (keys, wanted) in keys.chunks(100).zip(wanted.chunks(100)) {
        let found = snapshot.multi_get(&keyspace, keys).wait().unwrap();
        assert_eq!(found.iter().map(Option::as_deref).collect::<Vec<_>>(), wanted);
    }
    let after = engine.stats().wait().unwrap().walks;
    assert!(after.walks > before.walks);
    // The store has many tables, and most of their blocks are soon in memory.
    let (walks, wakes) = (after.walks - before.walks, after.wakes - before.wakes);
    assert!(wakes * 4 < walks * 3, "{wakes} wakes of {walks} walks");
    assert!(keyspace.multi_get::<Vec<u8>>(&[]).wait().unwrap().is_empty());
    drop(snapshot);
    store.close().wait().unwrap();
}

/// forebay-etcd looks a key up before it writes it. Of new keys each lookup read a leaf of the last level, even where its filters
/// would fit: they were an option that nobody set.
#[test]
fn with_filters_of_the_last_level_a_get_of_an_absent_key_reads_nothing() {
    let (engine, dir) = (engine(), dir());
    store(&engine, &dir).0.close().wait().unwrap();
    let absent: Vec<Vec<u8>> =
        (0..2 * KEYS).step_by(5).map(|number| [&key(number)[..], b" and a half"].concat()).collect();
    // Returns how often a block was not in memory, and the bytes of filters that are kept and left out.
    let look_up = |policy: Option<FilterPolicy>| {
        let options = policy.map_or(common::options(), |policy| common::options().filter_policy(policy));
        let store = Store::open(&engine, dir.path(), options).wait().unwrap();
        let keyspace = store.default_keyspace();
        for key in &absent {
            assert!(keyspace.get(key).wait().unwrap().is_none());
        }
        let misses = store.stats().cache_misses;
        for number in (0..2 * KEYS).step_by(7) {
            assert_eq!(&*keyspace.get(&key(number)).wait().unwrap().unwrap(), value(number));
        }
        let memory = store.stats().memory;
        store.close().wait().unwrap();
        (misses, memory.filters, memory.filters_left_out)
    };
    let (misses, bytes, left_out) = look_up(Some(FilterPolicy::UpperLevels));
    assert!(misses > 100 && bytes == 0, "{misses} blocks read, {bytes} bytes of filters");
    assert!(left_out >= 2 * KEYS * 10 / 8, "{left_out}");
    for policy in [None, Some(FilterPolicy::WhereTheyFit), Some(FilterPolicy::Always)] {
        let (misses, bytes, not_kept) = look_up(policy);
        // One filter in a hundred is wrong.
        assert!(misses < absent.len() as u64 / 30, "{misses} blocks read for {} keys", absent.len());
        assert_eq!((bytes, not_kept), (left_out, 0), "{policy:?}");
    }
}
