//! A store and its engine's I/O memory: a budget is reserved before it is used, and the cache gives up memory
//! where the engine has no more.

use crate::common::{dir, key, random};
use forebay::{BlockMut, Config, Engine};
use forebay_kv::{ErrorKind, Options, Store};

const MIB: u64 = 1 << 20;

/// Returns an engine like that of a small container, where the engine uses a quarter of the memory.
fn engine(arena_mib: usize) -> Engine {
    let config = Config::new().arena_bytes_max(arena_mib << 20).overflow_bytes_max(0);
    Engine::start(config.shards(2)).expect("an engine")
}

fn open(engine: &Engine, dir: &tempfile::TempDir, options: Options) -> Result<Store, forebay_kv::Error> {
    Store::open(engine, dir.path(), options).wait()
}

/// Regression: a store of 2 GiB was opened on an engine with an arena of 1 GiB, and gets failed with "no I/O
/// memory left" as soon as the cache was full. The default of 256 MiB did the same in a container of 512 MiB.
#[test]
fn a_budget_that_the_engine_cannot_give_is_refused_with_both_figures() {
    let (engine, one, two) = (engine(64), dir(), dir());
    let refused = open(&engine, &one, Options::new().memory_bytes_max(256 * MIB)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    let text = refused.to_string();
    for part in ["268435456", "67108864", "Config::arena_bytes_max", "Options::memory_bytes_max"] {
        assert!(text.contains(part), "no {part} in: {text}");
    }
    // Without a setting the store uses half of the free memory, and the next store half of the rest.
    let first = open(&engine, &one, Options::new()).unwrap();
    assert!(first.stats().memory.used() <= 32 * MIB);
    assert_eq!(engine.memory_unreserved(), 32 * MIB);
    let second = open(&engine, &two, Options::new()).unwrap();
    assert_eq!(engine.memory_unreserved(), 16 * MIB);
    // The budgets together do not exceed the memory.
    let three = dir();
    assert!(open(&engine, &three, Options::new().memory_bytes_max(17 * MIB)).is_err());
    let third = open(&engine, &three, Options::new()).unwrap();
    assert!(open(&engine, &dir(), Options::new()).is_err());
    // The memory of a closed store is free again, even while handles of it exist.
    second.close().wait().unwrap();
    assert_eq!(engine.memory_unreserved(), 16 * MIB);
    let again = open(&engine, &two, Options::new().memory_bytes_max(16 * MIB)).unwrap();
    for store in [first, again, third] {
        store.close().wait().unwrap();
    }
    assert_eq!(engine.memory_unreserved(), 64 * MIB);
    drop(second);
}

/// Regression: other uses of the engine's memory by the program made gets, flushes and compaction fail, while
/// the cache kept all its memory.
#[test]
fn the_cache_gives_way_when_the_program_takes_the_engines_memory() {
    let (engine, dir) = (engine(32), dir());
    let store = open(&engine, &dir, Options::new().memory_bytes_max(24 * MIB)).unwrap();
    let keyspace = store.default_keyspace();
    let value = |number: u64| vec![number as u8; 1000];
    keyspace.bulk_load((0..40_000).map(|number| (key(number), value(number)))).wait().unwrap();
    keyspace.bulk_load([(b"long".to_vec(), vec![7; 300_000])]).wait().unwrap();
    for seed in 0..6_000 {
        keyspace.get(&key(random(seed) % 40_000)).wait().unwrap().expect("a key");
    }
    let cached = store.stats().memory.blocks;
    assert!(cached > 4 * MIB, "only {cached} bytes are cached");
    let mut taken: Vec<BlockMut> = Vec::new();
    for bytes in [1 << 20, 64 << 10, 4096] {
        while let Ok(block) = engine.block(bytes) {
            taken.push(block);
        }
    }
    for round in 0..3 {
        for seed in 0..200 {
            let number = random(100_000 + round * 1_000 + seed) % 40_000;
            let found = keyspace.get(&key(number)).wait().expect("a get");
            assert_eq!(found.as_deref(), Some(&value(number)[..]));
        }
        let keys: Vec<Vec<u8>> = (0..100).map(|seed| key(random(round * 7_000 + seed) % 40_000)).collect();
        assert!(keyspace.multi_get(&keys).wait().expect("gets").iter().all(Option::is_some));
        assert_eq!(keyspace.get(b"long").wait().expect("a long value").map(|long| long.len()), Some(300_000));
        let mut range = keyspace.iter();
        for _ in 0..1_000 {
            assert!(engine.block_on(range.next()).unwrap().is_some_and(|entry| entry.is_ok()));
        }
        keyspace.put(key(round), value(round)).wait().expect("a put");
        store.flush().wait().expect("a flush");
    }
    store.compact().wait().expect("a compaction");
    drop(taken);
    store.close().wait().unwrap();
}
