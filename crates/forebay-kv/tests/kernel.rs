//! A separate program: scripts/checks/kernel-walks runs it by its name in virtual machines.
//!
//! Gets that walk inside the kernel return the same results as the others. On machines whose kernel cannot,
//! all walks fall back and the tests must pass as well. `FOREBAY_KERNEL_ENGINES=bpf-loop` requires a kernel
//! that can (`scripts/checks/kernel-walks`).
#![cfg(all(feature = "kernel", feature = "_mutants", target_os = "linux"))]

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{dir, engine, random, value};
use forebay::Engine;
use forebay_kv::{Batch, Compression, ErrorKind, KernelWalk, Keyspace, Snapshot, Stats, Store, Value};
use futures::executor::block_on;

fn open(engine: &Engine, dir: &Path, kernel_walk: KernelWalk) -> Store {
    // Nothing is pinned, so that inner nodes must be read.
    let options = common::options().pinned_bytes(0).kernel_walk(kernel_walk).kernel_walk_again();
    Store::open(engine, dir, options).wait().expect("the store opens")
}

/// Returns whether the kernel must support the walks.
fn is_demanded() -> bool {
    std::env::var("FOREBAY_KERNEL_ENGINES").is_ok_and(|engines| engines.contains("bpf-loop"))
}

/// Checks that walks used the way that this machine allows.
fn check_engine(stats: &Stats) {
    assert!(stats.kernel_walks + stats.kernel_fell_back > 0, "{stats:?}");
    match &stats.kernel_refused {
        Some(why) => {
            assert!(!is_demanded(), "{why}");
            assert_eq!(stats.kernel_walks, 0);
            eprintln!("gets fall back here: {why}");
        }
        None => assert!(stats.kernel_walks > stats.kernel_fell_back, "{stats:?}"),
    }
}

/// Keys of many lengths with long common prefixes, some too long for the kernel's walks.
fn key(number: u64) -> Vec<u8> {
    let mut key = format!("{:02}/{:08}", number % 17, number / 17).into_bytes();
    key.extend((0..random(number) % 60).map(|at| (random(number + at) % 5) as u8));
    if number.is_multiple_of(50) {
        key.resize(150, b'~');
    }
    key
}

/// The kernel's program reads plain leaves only: gets of a compressed table use the ordinary way from the start.
#[test]
fn compressed_tables_are_not_walked_in_the_kernel() {
    let (engine, dir) = (engine(), dir());
    let options = common::options().pinned_bytes(0).kernel_walk(KernelWalk::Always).kernel_walk_again();
    let options = options.compression(Compression::Lz4);
    let store = Store::open(&engine, dir.path(), options).wait().expect("the store opens");
    let keyspace = store.default_keyspace();
    let name = |number: u64| format!("key {number:06}");
    let all = (0..20_000).map(|number| (name(number), value(number)));
    keyspace.bulk_load(all).wait().unwrap();
    for number in (0..20_000).step_by(97) {
        assert_eq!(keyspace.get(&name(number)).wait().unwrap().unwrap(), value(number)[..]);
        assert_eq!(keyspace.get(&(name(number) + "x")).wait().unwrap(), None);
    }
    let stats = store.stats();
    assert!(stats.cache_misses > 200, "{stats:?}");
    assert_eq!((stats.kernel_walks, stats.kernel_fell_back), (0, 0), "{stats:?}");
    store.close().wait().unwrap();
}

#[test]
fn present_and_absent_keys_are_answered_alike() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, dir.path(), KernelWalk::Always);
    let keyspace = store.default_keyspace();
    let mut all: Vec<(Vec<u8>, Vec<u8>)> = (0..3_000).map(|number| (key(number), value(number))).collect();
    all.sort();
    keyspace.bulk_load(all).wait().unwrap();
    // A newer level with deletions, expired values, and long values outside of their leaves.
    for numbers in (0..3_000).step_by(9).collect::<Vec<u64>>().chunks(10) {
        let mut batch = Batch::new();
        for number in numbers.iter().copied() {
            match number % 4 {
                0 => batch.delete(&keyspace, key(number)),
                1 => batch.put_until(&keyspace, key(number), b"gone", 1),
                2 => batch.put(&keyspace, key(number), vec![number as u8; 9_000]),
                _ => batch.put(&keyspace, key(number), value(number + 1)),
            };
        }
        store.write(&batch).wait().unwrap();
    }
    store.flush().wait().unwrap();
    let absent = |number: u64| [&key(number)[..], b"!"].concat();
    let mut keys: Vec<Vec<u8>> = (0..250).map(|seed| key(random(seed) % 3_300)).collect();
    keys.extend((0..80).map(|seed| absent(random(seed) % 3_000)));
    keys.extend([b"\0".to_vec(), b"zzz".to_vec(), key(0), key(17), vec![b'0'; 128], vec![b'0'; 129]]);
    // Copied, as each value keeps its whole leaf in memory.
    let bytes =
        |answer: forebay_kv::Result<Option<forebay_kv::Value>>| answer.unwrap().map(|value| value.to_vec());
    let answers: Vec<_> = keys.iter().map(|key| bytes(keyspace.get(key).wait())).collect();
    check_engine(&store.stats());
    store.close().wait().unwrap();
    // Together: one, some, as many as descend concurrently, and more; the same key twice, and in any order. Each time with an empty
    // cache: lookups of keys that are too long for the kernel leave inner nodes there, and a lookup whose inner nodes are in memory
    // does not use the kernel. The number of inner nodes left from before depended on the end of a compaction.
    for count in [1, 2, 7, 16, 17, 40, keys.len()] {
        let store = open(&engine, dir.path(), KernelWalk::Always);
        let keyspace = store.default_keyspace();
        for (keys, answers) in keys.chunks(count).zip(answers.chunks(count)) {
            let mut asked: Vec<&Vec<u8>> = keys.iter().rev().collect();
            asked.push(&keys[0]);
            let mut found = copies(keyspace.multi_get(asked.iter().copied()).wait());
            assert_eq!(found.pop(), Some(answers[0].clone()));
            found.reverse();
            assert_eq!(found, answers);
        }
        let stats = store.stats();
        check_engine(&stats);
        // Where all of them fall back, all is in memory soon.
        assert!(stats.kernel_refused.is_some() || stats.kernel_walks > 100, "{count} at once: {stats:?}");
        store.close().wait().unwrap();
    }
    let store = open(&engine, dir.path(), KernelWalk::Always);
    let keyspace = store.default_keyspace();
    // The ordinary way, which leaves in memory what it has read.
    for (key, answer) in keys.iter().zip(&answers) {
        assert_eq!(*answer, bytes(block_on(keyspace.get(key))), "{key:?}");
    }
    assert_eq!(copies(block_on(keyspace.multi_get(&keys))), answers, "awaited");
    store.close().wait().unwrap();
    assert_eq!(keyspace.get(&keys[0]).wait().unwrap_err().kind(), ErrorKind::Closed);
}

/// Returns copies of the values, as each value keeps its whole leaf in memory.
fn copies(values: forebay_kv::Result<Vec<Option<Value>>>) -> Vec<Option<Vec<u8>>> {
    values.unwrap().into_iter().map(|value| value.map(|value| value.to_vec())).collect()
}

/// The nodes of a sorted file have its number, by which the kernel's program knows them.
#[test]
fn sorted_files_are_walked_in_the_kernel_too() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir.path().join("store"), KernelWalk::Always);
    let keyspace = store.default_keyspace();
    let name = |number: u64| format!("key {number:06}");
    let path = dir.path().join("file");
    let mut file = store.sorted_file(&path).wait().unwrap();
    for number in 0..20_000 {
        file.put(name(number), value(number)).wait().unwrap();
    }
    file.finish().wait().unwrap();
    // A verification would leave all inner nodes in the cache.
    store.ingest([(&keyspace, &path)]).unverified().wait().unwrap();
    for number in (0..20_000).step_by(97) {
        assert_eq!(keyspace.get(&name(number)).wait().unwrap().unwrap(), value(number)[..]);
        assert_eq!(keyspace.get(&(name(number) + "x")).wait().unwrap(), None);
    }
    check_engine(&store.stats());
    store.close().wait().unwrap();
}

/// Returns the value of a key's version.
fn versioned(number: u64, version: u64) -> Vec<u8> {
    let mut bytes = [number.to_le_bytes(), version.to_le_bytes()].concat();
    bytes.resize(200 + (number % 300) as usize, version as u8);
    bytes
}

fn version_of(number: u64, bytes: &[u8]) -> u64 {
    let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    assert_eq!(bytes, versioned(number, version));
    version
}

/// Reads keys from a snapshot in both ways, and their current values; a key's version never decreases.
fn read(keyspace: &Keyspace, snapshot: &Snapshot, seen: &mut [u64], seed: u64) {
    let number = random(seed) % seen.len() as u64;
    let bytes = snapshot.get(keyspace, &key(number)).wait().unwrap().expect("no key is ever absent");
    assert_eq!(Some(&bytes), block_on(snapshot.get(keyspace, &key(number))).unwrap().as_ref());
    let then = version_of(number, &bytes);
    let now = version_of(number, &keyspace.get(&key(number)).wait().unwrap().expect("as above"));
    assert!(now >= then && now >= seen[number as usize], "{number}: {then}, {now}");
    seen[number as usize] = now;
    // Several keys at that moment.
    let names: Vec<Vec<u8>> = (0..20).map(|at| key((number + at * 31) % seen.len() as u64)).collect();
    let together = copies(snapshot.multi_get(keyspace, &names).wait());
    assert_eq!(together, copies(block_on(snapshot.multi_get(keyspace, &names))));
    assert_eq!(together[0].as_deref(), Some(&bytes[..]));
}

/// Notifies readers to end, even if their writer fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn tables_come_and_go_under_walks() {
    const KEYS: u64 = 700;
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, dir.path(), KernelWalk::Always);
    let keyspace = store.default_keyspace();
    let mut all: Vec<(Vec<u8>, Vec<u8>)> =
        (0..KEYS).map(|number| (key(number), versioned(number, 0))).collect();
    all.sort();
    keyspace.bulk_load(all).wait().unwrap();
    let (is_over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (store, keyspace, is_over, reads) = (&store, &keyspace, &is_over, &reads);
            scope.spawn(move || {
                let mut seen = vec![0; KEYS as usize];
                let mut seed = reader << 32;
                while !is_over.load(Ordering::Relaxed) {
                    let snapshot = store.snapshot();
                    for _ in 0..5 {
                        seed += 1;
                        read(keyspace, &snapshot, &mut seen, seed);
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let _end = End(&is_over);
        // Until tables have been rewritten several times and the readers have read meanwhile.
        let mut version = 0;
        while version < 8 || reads.load(Ordering::Relaxed) < 24 {
            version += 1;
            let mut batch = Batch::new();
            for number in (version % 7..KEYS).step_by(7 * 4) {
                batch.put(&keyspace, key(number), versioned(number, version));
            }
            store.write(&batch).wait().unwrap();
            if version.is_multiple_of(4) {
                store.compact().wait().unwrap();
            }
        }
    });
    let stats = store.stats();
    assert!(stats.compactions > 0, "{stats:?}");
    check_engine(&stats);
    store.close().wait().unwrap();
}

/// Returns the table files of a store.
fn tables(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir.join("tables")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_damaged_table_never_gives_a_wrong_answer() {
    const KEYS: u64 = 1_500;
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, dir.path(), KernelWalk::Never);
    let mut all: Vec<(Vec<u8>, Vec<u8>)> = (0..KEYS).map(|number| (key(number), value(number))).collect();
    all.sort();
    store.default_keyspace().bulk_load(all).wait().unwrap();
    store.close().wait().unwrap();
    // Inner nodes keep their places and lose a few bytes; so do some leaves.
    for path in tables(dir.path()) {
        let mut bytes = std::fs::read(&path).unwrap();
        for (unit, node) in bytes.chunks_mut(4096).enumerate().skip(1) {
            let luck = random(unit as u64);
            let is_tree = node[12] < 0xF0 && node[13] == 1;
            if is_tree && (node[12] > 0 || luck.is_multiple_of(8)) {
                node[30 + (luck >> 8) as usize % 4_000] ^= 1 << (luck >> 40 & 7);
            }
        }
        std::fs::write(&path, bytes).unwrap();
    }
    let store = open(&engine, dir.path(), KernelWalk::Always);
    let keyspace = store.default_keyspace();
    let (mut right, mut refused) = (0, 0);
    for seed in 0..150 {
        let number = random(seed) % (KEYS + KEYS / 4);
        let wanted = (number < KEYS).then(|| value(number));
        match keyspace.get(&key(number)).wait() {
            Ok(found) => {
                assert_eq!(found.as_deref(), wanted.as_deref(), "{number}");
                right += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "{right} right, {refused} refused");
    check_engine_of_damaged(&store.stats());
    // Together they are all right, or the call fails as one of its keys does.
    let (mut right, mut refused) = (0, 0);
    for seed in 0..60 {
        let numbers: Vec<u64> =
            (0..2 + seed % 20).map(|at| random(seed * 100 + at) % (KEYS + KEYS / 4)).collect();
        let names: Vec<Vec<u8>> = numbers.iter().map(|number| key(*number)).collect();
        let alone = names.iter().all(|name| block_on(keyspace.get(name)).is_ok());
        match keyspace.multi_get(&names).wait() {
            Ok(found) => {
                for (number, found) in numbers.iter().zip(found) {
                    assert_eq!(found.as_deref(), (*number < KEYS).then(|| value(*number)).as_deref());
                }
                right += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
                assert!(!alone, "{error}");
                refused += 1;
            }
        }
    }
    // The kernel passes a damaged node that leads to the right leaf; the ordinary way does not.
    assert!(refused > 0 && (right > 0 || !is_demanded()), "{right} right, {refused} refused");
    store.close().wait().unwrap();
}

/// Checks the walks over damaged tables, most of which may end at unusable bytes.
fn check_engine_of_damaged(stats: &Stats) {
    assert!(stats.kernel_walks + stats.kernel_fell_back > 0);
    assert!(stats.kernel_refused.is_none() || !is_demanded(), "{stats:?}");
}

#[test]
fn nodes_that_are_asked_for_often_come_into_the_cache() {
    let (engine, dir) = (engine(), dir());
    let options = common::options().pinned_bytes(0).kernel_walk(KernelWalk::Always);
    let store = Store::open(&engine, dir.path(), options).wait().expect("the store opens");
    let keyspace = store.default_keyspace();
    keyspace.bulk_load((0..300_u64).map(|n| (n.to_be_bytes(), value(n)))).wait().unwrap();
    for number in (0..300_u64).cycle().take(600) {
        assert_eq!(keyspace.get(&number.to_be_bytes()).wait().unwrap().as_deref(), Some(&value(number)[..]));
    }
    let stats = store.stats();
    // One inner node: the kernel makes the first descent, the second one puts the node into the cache.
    assert!((1..10).contains(&(stats.kernel_walks + stats.kernel_fell_back)), "{stats:?}");
    assert!(stats.cache_hits > 600, "{stats:?}");
    store.close().wait().unwrap();
}

/// The cache counts the kernel's reads of leaves: an ordinary read of a leaf that the kernel has read before keeps the leaf. Such a
/// leaf was new to the cache at first, so that workloads with popular keys needed 3 % more instructions with kernel walks than
/// without.
#[test]
fn leaves_that_the_kernel_read_come_into_the_cache_with_the_next_read() {
    let (engine, dir) = (engine(), dir());
    let options = common::options().pinned_bytes(0).kernel_walk(KernelWalk::Always);
    let store = Store::open(&engine, dir.path(), options).wait().expect("the store opens");
    let keyspace = store.default_keyspace();
    keyspace.bulk_load((0..300_u64).map(|n| (n.to_be_bytes(), value(n)))).wait().unwrap();
    let key = 150_u64.to_be_bytes();
    let mut figures = Vec::new();
    for _ in 0..3 {
        assert_eq!(keyspace.get(&key).wait().unwrap().as_deref(), Some(&value(150)[..]));
        let stats = store.stats();
        figures.push((stats.kernel_walks, stats.cache_refusals, stats.cache_misses));
    }
    if store.stats().kernel_refused.is_none() {
        assert_eq!(figures[0].0, 1, "{figures:?}");
        assert_eq!(figures[1].0, 1, "the inner node is wanted again: {figures:?}");
        assert_eq!(figures[1].1, figures[0].1, "the leaf was kept: {figures:?}");
    }
    assert_eq!(figures[2].2, figures[1].2, "all is in memory: {figures:?}");
    store.close().wait().unwrap();
}

#[test]
fn who_does_not_ask_for_it_has_none() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, dir.path(), KernelWalk::Never);
    let keyspace = store.default_keyspace();
    keyspace.bulk_load((0..300_u64).map(|n| (n.to_be_bytes(), value(n)))).wait().unwrap();
    for number in 0..300_u64 {
        assert_eq!(keyspace.get(&number.to_be_bytes()).wait().unwrap().as_deref(), Some(&value(number)[..]));
    }
    let names: Vec<[u8; 8]> = (0..300_u64).map(u64::to_be_bytes).collect();
    assert!(keyspace.multi_get(&names).wait().unwrap().iter().all(Option::is_some));
    let stats = store.stats();
    assert_eq!((stats.kernel_walks, stats.kernel_fell_back, &stats.kernel_refused), (0, 0, &None));
    assert!(!stats.kernel_gets && !stats.kernel_multi_gets);
    store.close().wait().unwrap();
}

/// A store that chooses tries both ways if the machine has both, and otherwise reports nothing.
#[test]
fn a_store_that_chooses_tries_both_ways() {
    let (engine, dir) = (engine(), dir());
    let options = common::options().pinned_bytes(0).kernel_walk_again();
    let options = options.kernel_walk(KernelWalk::WhereCheaper);
    let store = Store::open(&engine, dir.path(), options).wait().expect("the store opens");
    let keyspace = store.default_keyspace();
    let name = |number: u64| format!("a key {number:06} that is long, so that there are many inner nodes");
    keyspace.bulk_load((0..30_000).map(|number| (name(number), value(number)))).wait().unwrap();
    let mut walks = Vec::new();
    // Each call needs inner nodes that no call before it needed.
    for number in (0..30_000).step_by(600) {
        let names = [name(number), name(number + 300)];
        let found = copies(keyspace.multi_get(&names).wait());
        assert_eq!(found, [Some(value(number)), Some(value(number + 300))]);
        walks.push(store.stats().kernel_walks);
    }
    let stats = store.stats();
    assert!(stats.kernel_refused.is_none() || !is_demanded(), "{stats:?}");
    let is_degraded = |degraded: &forebay::Degradation| degraded.to_string().contains("kernel walks");
    assert!(!engine.health().degraded.iter().any(is_degraded));
    if stats.kernel_refused.is_some() {
        assert_eq!((stats.kernel_walks, stats.kernel_gets, stats.kernel_multi_gets), (0, false, false));
        // It was tried once, and every later get used the ordinary way immediately.
        assert!((1..=8).contains(&stats.kernel_fell_back), "{stats:?}");
    } else {
        assert!(stats.kernel_walks > 0, "{stats:?}");
        assert!(walks.windows(2).any(|pair| pair[0] == pair[1]), "some went the ordinary way: {walks:?}");
    }
    store.close().wait().unwrap();
}

/// A thread that was refused a session does not try again. Its next store did not learn of it: neither its statistics nor the
/// engine's health said why no lookup used the kernel.
#[test]
fn each_store_of_a_thread_says_why_its_walks_fall_back() {
    let name = |number: u64| format!("a key {number:06} that is long, so that there are many inner nodes");
    for way in [KernelWalk::Always, KernelWalk::Always, KernelWalk::WhereCheaper] {
        let (engine, dir) = (engine(), dir());
        let options = common::options().pinned_bytes(0).kernel_walk_again().kernel_walk(way);
        let store = Store::open(&engine, dir.path(), options).wait().expect("the store opens");
        let keyspace = store.default_keyspace();
        keyspace.bulk_load((0..3_000).map(|number| (name(number), value(number)))).wait().unwrap();
        for number in (0..3_000).step_by(100) {
            assert!(keyspace.get(&name(number)).wait().unwrap().is_some());
        }
        let stats = store.stats();
        let is_degraded = |degraded: &forebay::Degradation| degraded.what == "kernel walks";
        let is_degraded = engine.health().degraded.iter().any(is_degraded);
        match &stats.kernel_refused {
            Some(why) => {
                assert!(!is_demanded(), "{why}");
                assert_eq!((stats.kernel_walks, stats.kernel_gets), (0, false), "{stats:?}");
                assert_eq!(is_degraded, way == KernelWalk::Always, "{why}");
            }
            None => {
                // A store that chooses may not have run a trial yet.
                assert!(stats.kernel_walks > 0 || way == KernelWalk::WhereCheaper, "{way:?}: {stats:?}");
                assert!(!is_degraded);
            }
        }
        store.close().wait().unwrap();
    }
}

#[test]
fn sessions_count_within_the_budget() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, dir.path(), KernelWalk::Always);
    let keyspace = store.default_keyspace();
    keyspace.bulk_load((0..800_u64).map(|n| (n.to_be_bytes(), value(n)))).wait().unwrap();
    let before = store.stats().memory.open_tables;
    let walk = |from: u64| {
        for number in from..from + 30 {
            assert!(keyspace.get(&number.to_be_bytes()).wait().unwrap().is_some());
        }
    };
    let counted = || store.stats().memory.open_tables - before;
    std::thread::scope(|scope| scope.spawn(|| walk(0)).join().expect("no panic"));
    let has_walked = store.stats().kernel_walks > 0;
    assert_eq!(counted(), if has_walked { 64 << 10 } else { 0 });
    // The first session ended with its thread; it counts until the start of the next session.
    std::thread::scope(|scope| scope.spawn(|| walk(500)).join().expect("no panic"));
    assert_eq!(counted(), if has_walked { 64 << 10 } else { 0 });
    assert!(has_walked || !is_demanded());
    // A session for several lookups replaces the thread's first.
    let together = || {
        walk(100);
        assert_eq!(counted(), if has_walked { 64 << 10 } else { 0 });
        let names: Vec<[u8; 8]> = (0..30_u64).map(|number| (number * 25).to_be_bytes()).collect();
        assert!(keyspace.multi_get(&names).wait().unwrap().iter().all(Option::is_some));
        assert_eq!(counted(), if has_walked { 128 << 10 } else { 0 });
    };
    std::thread::scope(|scope| scope.spawn(together).join().expect("no panic"));
    store.close().wait().unwrap();
}
