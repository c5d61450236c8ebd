//! Stores with compressed tables, through the public API: the same contents as without, in fewer bytes.

use std::collections::BTreeMap;

use crate::common::{dir, engines, options, random};
use forebay::Engine;
use forebay_kv::{Batch, Compression, ErrorKind, Options, Stats, Store};

type Values = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns every compression that this build has.
fn compressions() -> Vec<Compression> {
    vec![
        Compression::None,
        Compression::Lz4,
        #[cfg(feature = "zstd")]
        Compression::Zstd(1),
        #[cfg(feature = "zstd")]
        Compression::Zstd(9),
    ]
}

fn key(number: u64) -> Vec<u8> {
    format!("user{number:06}").into_bytes()
}

/// Returns a value that compresses to about half, of varying length; some are outside of their leaf, and one in 200 is too long for
/// the cache.
fn value(number: u64, version: u64) -> Vec<u8> {
    let seed = number | version << 40;
    let len = match random(seed) % 200 {
        0 if version == 0 => 100_000 + random(seed) % 50_000,
        1..20 => 1_100 + random(seed) % 9_000,
        _ => random(seed) % 400,
    };
    // Of 64 bytes the last 32 are the first again, but in one value of five.
    let repeats = !random(number).is_multiple_of(5);
    let place = |at: u64| if repeats { at / 8 * 4 + at % 4 } else { at };
    let words = (0u64..).flat_map(|at| random(seed ^ place(at) << 20).to_le_bytes());
    words.take(len as usize).collect()
}

fn range_of(engine: &Engine, store: &Store, is_back: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
    let read = async {
        let (mut found, keys) = (Vec::new(), store.default_keyspace());
        let mut range = if is_back { keys.iter().rev() } else { keys.iter() };
        while let Some(entry) = range.next().await {
            let (name, value) = entry.expect("an entry");
            found.push((name, value.to_vec()));
        }
        found
    };
    engine.block_on(read).expect("not on a shard")
}

/// Asserts that a store has exactly these entries, by gets of each, many concurrent gets, and ranges.
fn assert_has(engine: &Engine, store: &Store, values: &Values) {
    let keys = store.default_keyspace();
    let names: Vec<Vec<u8>> = (0..1_200).map(key).collect();
    for some in names.chunks(64) {
        let found = keys.multi_get(some).wait().expect("gets");
        for (name, found) in some.iter().zip(&found) {
            assert!(found.as_deref() == values.get(name).map(|value| &value[..]), "{name:?}");
        }
    }
    for name in names.iter().step_by(3) {
        let found = keys.get(name).wait().expect("a get");
        assert!(found.as_deref() == values.get(name).map(|value| &value[..]), "{name:?}");
    }
    let expected: Vec<_> = values.clone().into_iter().collect();
    assert!(range_of(engine, store, false) == expected);
    assert!(range_of(engine, store, true).into_iter().rev().eq(expected));
}

/// Loads, overwrites and deletes, with flushes and compactions in between. Returns the entries.
fn filled(store: &Store) -> Values {
    let keys = store.default_keyspace();
    let mut values: Values = (0..1_000).map(|number| (key(number), value(number, 0))).collect();
    keys.bulk_load(values.clone()).wait().expect("a load");
    for version in 1..4 {
        for number in (0..1_100).filter(|number| random(number | version << 30).is_multiple_of(9)) {
            let mut batch = Batch::new();
            batch.put(&keys, key(number), value(number, version));
            values.insert(key(number), value(number, version));
            if number > 20 {
                batch.delete(&keys, key(number - 20));
                values.remove(&key(number - 20));
            }
            store.write(&batch).wait().expect("a batch");
        }
        store.flush().wait().expect("a flush");
    }
    values
}

fn sum(stats: &Stats) -> (u64, u64) {
    let levels = stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels);
    levels.fold((0, 0), |(bytes, saved), level| (bytes + level.bytes, saved + level.saved_bytes))
}

#[test]
fn all_compressions_return_the_same_values() {
    for engine in engines() {
        let mut plain_bytes = 0;
        for compression in compressions() {
            let place = dir();
            let at = place.path().join("store");
            let open = |options: Options| Store::open(&engine, &at, options).wait().expect("a store");
            let store = open(options().compression(compression));
            let values = filled(&store);
            assert_has(&engine, &store, &values);
            store.settle().wait().expect("rest");
            assert_has(&engine, &store, &values);
            store.compact().wait().expect("a compaction");
            assert_has(&engine, &store, &values);
            let verified = store.verify().wait().expect("a verification");
            assert!(verified.is_whole(), "{verified:?}");
            let (bytes, saved) = sum(&store.stats());
            match compression {
                Compression::None => {
                    plain_bytes = bytes;
                    assert_eq!(saved, 0);
                }
                _ => {
                    assert!(bytes < plain_bytes / 5 * 4, "{compression:?}: {bytes} of {plain_bytes}");
                    assert!((bytes + saved).abs_diff(plain_bytes) < plain_bytes / 8, "{bytes} and {saved}");
                }
            }
            let copy = place.path().join("copy");
            store.checkpoint(&copy).wait().expect("a checkpoint");
            store.close().wait().expect("an end");
            let store = open(options());
            assert_has(&engine, &store, &values);
            store.close().wait().expect("an end");
            let store = Store::open(&engine, &copy, options()).wait().expect("the checkpoint");
            assert_has(&engine, &store, &values);
            store.close().wait().expect("an end");
        }
    }
}

#[test]
fn a_store_changes_its_compression_from_one_life_to_the_next() {
    let engine = &engines()[0];
    let place = dir();
    let at = place.path().join("store");
    let mut values = Values::new();
    for (life, compression) in compressions().into_iter().chain(compressions()).enumerate() {
        let store = Store::open(engine, &at, options().compression(compression)).wait().expect("a store");
        assert_has(engine, &store, &values);
        let keys = store.default_keyspace();
        for number in (0..1_000).filter(|number| random(number ^ (life as u64) << 50).is_multiple_of(3)) {
            keys.put(key(number), value(number, 1 + life as u64)).wait().expect("a put");
            values.insert(key(number), value(number, 1 + life as u64));
        }
        store.flush().wait().expect("a flush");
        assert_has(engine, &store, &values);
        if life % 3 == 2 {
            store.compact().wait().expect("a compaction");
        }
        store.close().wait().expect("an end");
    }
    let store = Store::open(engine, &at, options()).wait().expect("a store");
    assert_has(engine, &store, &values);
    store.close().wait().expect("an end");
}

/// Once, a table without tables below it was moved to the last level as the flush had written it: keys written in order were never
/// compressed with that level's compression.
#[test]
fn the_last_level_has_a_compression_of_its_own() {
    let engine = &engines()[0];
    for (upper, last) in [(Compression::None, Compression::Lz4), (Compression::Lz4, Compression::None)] {
        let place = dir();
        let options = || options().compression(last).upper_compression(upper);
        let store = Store::open(engine, place.path(), options()).wait().expect("a store");
        let (keys, mut values) = (store.default_keyspace(), Values::new());
        for round in 0..4 {
            for number in round * 100..round * 100 + 100 {
                let text = format!("{number} has the same words as all others, ").repeat(6).into_bytes();
                keys.put(key(number), &text).wait().expect("a put");
                values.insert(key(number), text);
            }
            store.settle().wait().expect("rest");
            let stats = store.stats();
            let levels = stats.keyspaces.iter().flat_map(|keyspace| keyspace.levels.split_last());
            for (lowest, above) in levels {
                assert_eq!(lowest.saved_bytes > 0, last != Compression::None, "{round}: {lowest:?}");
                let saved: u64 = above.iter().map(|level| level.saved_bytes).sum();
                assert!(saved == 0 || upper != Compression::None, "{round}: {saved}");
            }
            assert_has(engine, &store, &values);
        }
        store.close().wait().expect("an end");
        let store = Store::open(engine, place.path(), options()).wait().expect("a store");
        assert_has(engine, &store, &values);
        store.close().wait().expect("an end");
    }
}

/// Writes that compress use fewer bytes of the device in each step: flush, and every compaction.
#[test]
fn write_and_space_amplification_fall_with_the_ratio() {
    let engine = &engines()[0];
    let figures = |compression| {
        let place = dir();
        // Each step is explicit and awaited: both stores run the same steps, on a busy machine too.
        let options = options().memtable_bytes(512 << 10).compression(compression);
        let store = Store::open(engine, place.path(), options).wait().expect("a store");
        let keys = store.default_keyspace();
        let mut user = 0;
        for round in 0..3 {
            let mut batch = Batch::new();
            for number in 0..4_000u64 {
                let record = random(number | round << 32) % 4_000;
                let seed = random(record ^ round << 40);
                let (id, score) = (seed % 100_000, seed >> 40);
                let value = format!(
                    "{{\"id\":{id:05},\"name\":\"user {record}\",\"mail\":\"u{score}@example.com\",\"active\":true,\"score\":{score}}}"
                );
                user += 10 + value.len() as u64;
                batch.put(&keys, key(record), &value);
                if number % 50 == 49 {
                    store.write(&batch).wait().expect("a batch");
                    batch = Batch::new();
                }
                if number % 2_000 == 1_999 {
                    store.settle().wait().expect("rest");
                }
            }
        }
        let stats = store.stats();
        let (bytes, _) = sum(&stats);
        let written = stats.flushed_bytes + stats.compaction_written_bytes;
        store.close().wait().expect("an end");
        let places = |bytes: u64| bytes as f64 / user as f64;
        println!("{compression:?}: written {:.2} times, space {:.2} times", places(written), places(bytes));
        (written, bytes)
    };
    let (plain, packed) = (figures(Compression::None), figures(Compression::Lz4));
    assert!(packed.0 < plain.0 / 4 * 3, "written {} of {}", packed.0, plain.0);
    assert!(packed.1 < plain.1 / 4 * 3, "space {} of {}", packed.1, plain.1);
}

/// Files of random values are as long as without compression, and nothing in them is packed.
#[test]
fn values_that_do_not_compress_cost_no_space() {
    let engine = &engines()[0];
    let bytes = |compression| {
        let place = dir();
        let options = options().compression(compression);
        let store = Store::open(engine, place.path(), options).wait().expect("a store");
        let entries = (0..4_000).map(|number| {
            let value: Vec<u8> = (0..30).flat_map(|at| random(number | at << 32).to_le_bytes()).collect();
            (random(number).to_be_bytes().to_vec(), value)
        });
        let entries: Values = entries.collect();
        store.default_keyspace().bulk_load(entries).wait().expect("a load");
        let (bytes, saved) = sum(&store.stats());
        store.close().wait().expect("an end");
        assert_eq!(saved, 0, "{compression:?}");
        bytes
    };
    let plain = bytes(Compression::None);
    for compression in compressions() {
        assert_eq!(bytes(compression), plain, "{compression:?}");
    }
}

/// The program holds values of compressed leaves and long values, in ranges that stand still, up to the
/// budget; the memory in use stays within it.
#[test]
fn the_memory_of_a_compressed_store_stays_within_its_budget() {
    let engine = &engines()[0];
    for leaf_bytes in [4 << 10, 32 << 10] {
        let place = dir();
        let options = options().compression(Compression::Lz4).leaf_bytes(leaf_bytes);
        let store = Store::open(engine, place.path(), options).wait().expect("a store");
        let values = filled(&store);
        let keys = store.default_keyspace();
        // A long value that is almost nothing when it is compressed.
        keys.bulk_load([(b"zeros".to_vec(), vec![0; 1 << 20])]).wait().expect("a load");
        let check = || {
            let memory = store.stats().memory;
            assert!(memory.used() <= memory.budget, "{memory:?}");
            assert!(memory.blocks + memory.pinned <= memory.cache_max, "{memory:?}");
        };
        let mut kept = Vec::new();
        for name in values.keys() {
            match keys.get(name).wait() {
                Ok(found) => kept.extend(found),
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::MemoryBudget { .. }), "{error}");
                    break;
                }
            }
            check();
        }
        assert!(kept.len() > 20, "{} values of leaves of {leaf_bytes} bytes", kept.len());
        drop(kept);
        let mut ranges = Vec::new();
        for _ in 0..20 {
            let mut range = keys.iter();
            match range.next().wait() {
                Some(Ok(_)) => ranges.push(range),
                Some(Err(error)) => {
                    assert!(matches!(error.kind(), ErrorKind::MemoryBudget { .. }), "{error}");
                    break;
                }
                None => panic!("a range over {} entries is empty", values.len()),
            }
            check();
        }
        assert!(!ranges.is_empty());
        drop(ranges);
        assert_eq!(keys.get(b"zeros").wait().expect("a get").as_deref(), Some(&vec![0; 1 << 20][..]));
        store.compact().wait().expect("a compaction");
        assert_eq!(keys.get(b"zeros").wait().expect("a get").as_deref(), Some(&vec![0; 1 << 20][..]));
        check();
        store.close().wait().expect("an end");
    }
}

#[test]
#[cfg(feature = "zstd")]
fn levels_beyond_the_limits_are_refused() {
    let engine = &engines()[0];
    for level in [0, 10, 255] {
        let place = dir();
        let at = place.path().join("store");
        let options = options().compression(Compression::Zstd(level));
        let error = Store::open(engine, &at, options).wait().expect_err("no such level");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("from 1 to 9"), "{error}");
        assert!(!at.exists());
    }
}
