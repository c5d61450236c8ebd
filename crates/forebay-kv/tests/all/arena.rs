//! A store and its engine's I/O memory: a budget is reserved before it is used, and the cache gives up memory
//! where the engine has no more.

use crate::common::{dir, key, random};
use forebay::{BlockMut, Class, Config, Engine};
use forebay_kv::{Error, ErrorKind, Options, SortedFile, SortedFileOptions, Store};

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

fn all_blocks(engine: &Engine) -> Vec<BlockMut> {
    let blocks = |bytes| std::iter::from_fn(move || engine.block(bytes).ok());
    [1 << 20, 64 << 10, 4096].into_iter().flat_map(blocks).collect()
}

/// Takes all I/O memory, the shards' own caches included.
fn take_all(engine: &Engine) -> Vec<BlockMut> {
    let mut taken = all_blocks(engine);
    for shard in 0..2 {
        let owned = engine.clone();
        let theirs = engine.spawn_on_shard(shard, Class::DEFAULT, move || async move { all_blocks(&owned) });
        taken.extend(theirs.wait().expect("a shard"));
    }
    taken
}

fn is_refused(error: &Error) {
    let text = error.to_string();
    assert!(error.cause().is_some_and(forebay::Error::is_out_of_memory), "{text}");
    assert!(text.contains("arena_bytes_max"), "{text}");
}

/// Story: a flush, a compaction or the log's next segment that found no I/O memory, as the program held all of it for a moment, made the
/// store read-only until it was opened again. The file of an unfinished table or sorted file stayed.
#[test]
fn a_store_goes_on_when_the_program_has_given_memory_back() {
    let (engine, dir, sorted) = (engine(32), dir(), dir());
    let options = Options::new().memory_bytes_max(16 * MIB).log_segment_bytes(64 << 10);
    let store = open(&engine, &dir, options).unwrap();
    let (keyspace, sorted) = (store.default_keyspace(), sorted.path().join("sorted"));
    let value = |number: u64| vec![number as u8; 1000];
    let put = |number: u64| keyspace.put(key(number), value(number)).wait();
    (0..100).for_each(|number| put(number).expect("a put"));
    let taken = take_all(&engine);
    // Some are taken: the log has memory for short groups.
    let there: Vec<u64> =
        (100..200).filter(|number| put(*number).inspect_err(is_refused).is_ok()).chain(0..100).collect();
    for error in [
        store.flush().wait().expect_err("there is no memory for a table"),
        store.keyspace("more").wait().map(drop).expect_err("the store takes no more for now"),
        put(200).expect_err("the store takes no more for now"),
        SortedFile::create(&engine, &sorted, SortedFileOptions::new())
            .wait()
            .map(drop)
            .expect_err("no memory"),
    ] {
        is_refused(&error);
    }
    assert!(store.stats().failed.is_none(), "{:?}", store.stats().failed);
    drop(taken);
    while let Err(error) = store.flush().wait() {
        is_refused(&error);
    }
    while let Err(error) = put(200) {
        is_refused(&error);
        std::thread::yield_now();
    }
    for number in there {
        let found = keyspace.get(&key(number)).wait().expect("a get");
        assert_eq!(found.as_deref(), Some(&value(number)[..]), "key {number}");
    }
    let sorted =
        SortedFile::create(&engine, &sorted, SortedFileOptions::new()).wait().expect("its name is free");
    sorted.abandon().wait().unwrap();
    store.settle().wait().unwrap();
    let levels = store.stats().keyspaces.into_iter().flat_map(|keyspace| keyspace.levels);
    let tables: usize = levels.map(|level| level.tables).sum();
    let files = std::fs::read_dir(dir.path().join("tables")).unwrap().count();
    assert_eq!(files, tables, "files that nothing names");
    store.close().wait().unwrap();
}
