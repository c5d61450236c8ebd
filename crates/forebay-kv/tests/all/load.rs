//! Sorted entries loaded directly into tables: atomically, and written once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{
    change, dir, engine, engines, files, key, nothing_is_held, open, options, random, value,
};
use forebay_kv::{ErrorKind, Keyspace, Options, Stats, Store};
use forebay_sim::{self as sim, Profile, World};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn bytes(stats: &Stats) -> u64 {
    stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels).map(|level| level.bytes).sum()
}

fn is_like(keyspace: &Keyspace, model: &Model) {
    let mut range = keyspace.iter();
    for (key, value) in model {
        let (found, known) = range.next().wait().transpose().unwrap().expect("another entry");
        assert!(found == *key && *known == value[..], "{} is not {}", show(&found), show(key));
    }
    assert!(range.next().wait().transpose().unwrap().is_none());
    for (key, value) in model.iter().step_by(5) {
        assert_eq!(keyspace.get(key).wait().unwrap().as_deref(), Some(&value[..]), "{}", show(key));
    }
}

fn show(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

#[test]
fn a_load_is_written_once_and_is_there_at_once() {
    const KEYS: u64 = 20_000;
    for engine in engines() {
        let dir = dir();
        let store =
            Store::open(&engine, dir.path(), Options::new().memory_bytes_max(32 << 20)).wait().unwrap();
        let keyspace = store.keyspace("k").wait().unwrap();
        let before = store.stats();
        let entries = (0..KEYS).map(|number| (format!("{number:016}"), [number as u8; 1000]));
        assert_eq!(keyspace.bulk_load(entries).wait().unwrap(), KEYS);
        let stats = store.stats();
        let user = KEYS * 1016;
        let factor = bytes(&stats) as f64 / user as f64;
        println!("{factor:.4} times the entries");
        assert!(factor <= 1.05 && stats.loaded_bytes == bytes(&stats), "{stats:?}");
        assert_eq!(stats.put_bytes - before.put_bytes, user);
        assert_eq!((stats.log.records, stats.flushes), (before.log.records, 0));
        let last = stats.keyspaces[1].levels[6];
        assert_eq!((last.entries, last.bytes), (KEYS, bytes(&stats)));
        for reopened in [false, true] {
            let store = if reopened {
                Store::open(&engine, dir.path(), Options::new().memory_bytes_max(32 << 20)).wait().unwrap()
            } else {
                store.clone()
            };
            let keyspace = store.keyspace("k").wait().unwrap();
            let mut range = keyspace.iter();
            for number in 0..KEYS {
                let (key, value) = range.next().wait().transpose().unwrap().unwrap();
                assert!(key == format!("{number:016}").as_bytes() && *value == [number as u8; 1000]);
            }
            assert!(range.next().wait().transpose().unwrap().is_none());
            store.close().wait().unwrap();
        }
    }
}

#[test]
fn a_key_out_of_order_is_refused_and_nothing_has_changed() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    keyspace.put(key(1), "there").wait().unwrap();
    store.flush().wait().unwrap();
    let before = files(dir.path());
    for (place, wrong) in [(1000, key(999)), (1000, key(10)), (0, Vec::new()), (500, vec![1; 20_000])] {
        let good = (0..place).map(|number| (key(number), value(number)));
        let error = keyspace.bulk_load(good.chain([(wrong.clone(), Vec::new())])).wait().unwrap_err();
        let is_long = wrong.len() > 16 << 10;
        let expected =
            if is_long { ErrorKind::TooLarge { limit: 16 << 10 } } else { ErrorKind::InvalidInput };
        assert_eq!(error.kind(), expected, "{error}");
        if place == 1000 {
            assert!(error.to_string().contains("not above the one before it"), "{error}");
        }
    }
    // One load that continues after an error, and one that is never finished.
    let mut load = keyspace.loader();
    load.add(key(5), "5").wait().unwrap();
    load.add(key(5), "6").wait().unwrap_err();
    load.add(key(7), "7").wait().unwrap_err();
    assert_eq!(load.finish().wait().unwrap_err().kind(), ErrorKind::InvalidInput);
    let mut load = keyspace.loader();
    (0..2000).for_each(|number| load.add(key(number), value(number)).wait().unwrap());
    assert_eq!(load.entries(), 2000);
    drop(load);
    // The files written are removed in the background.
    while std::fs::read_dir(dir.path().join("tables")).unwrap().count() > 1 {
        std::thread::yield_now();
    }
    assert_eq!(files(dir.path()), before);
    is_like(&keyspace, &Model::from([(key(1), b"there".to_vec())]));
    nothing_is_held(&store);
    // An empty load changes nothing.
    keyspace.loader().finish().wait().unwrap();
    assert_eq!(files(dir.path()), before);
}

/// Loads into keyspaces that have puts and deletions of the same keys at every stage: in memory, in level 0, and in lower levels.
/// Earlier writes lose to the load, later writes win.
#[test]
fn a_load_is_newer_than_what_was_there_and_older_than_what_comes() {
    let (engine, dir) = (engine(), dir());
    let store = Store::open(&engine, dir.path(), options().memtable_bytes(32 << 10)).wait().unwrap();
    let keyspace = store.default_keyspace();
    let mut model = Model::new();
    for round in 0..24u64 {
        (0..8).for_each(|part| change(&store, &keyspace, &mut model, [round, part]));
        match round % 4 {
            0 => store.flush().wait().unwrap(),
            1 => store.settle().wait().unwrap(),
            _ => {}
        }
        let (first, step) = (random(round) % 1500, 1 + random(round + 1) % 5);
        let loaded: Vec<u64> = (first..first + 300).step_by(step as usize).collect();
        let entry = |number: &u64| (key(*number), value(number * 31 + round));
        keyspace.bulk_load(loaded.iter().map(entry)).wait().unwrap();
        model.extend(loaded.iter().map(entry));
        let snapshot = store.snapshot();
        let then = model.clone();
        keyspace.put(key(first), "after").wait().unwrap();
        keyspace.delete(key(first + step)).wait().unwrap();
        model.insert(key(first), b"after".to_vec());
        model.remove(&key(first + step));
        is_like(&keyspace, &model);
        let (low, _) = snapshot.iter(&keyspace).next().wait().transpose().unwrap().unwrap();
        assert_eq!(Some(&low), then.keys().next());
        if round % 6 == 5 {
            store.compact().wait().unwrap();
            is_like(&keyspace, &model);
        }
    }
    store.close().wait().unwrap();
    let store = open(&engine, &dir);
    is_like(&store.default_keyspace(), &model);
}

/// A load runs while other threads write the same keys and read. Readers see all of it or nothing, apart from
/// later writes.
#[test]
fn readers_see_all_of_a_load_or_nothing() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..1500u64 {
                keyspace.put(format!("put {:03}", number % 50), value(number)).wait().unwrap();
                if number % 100 == 0 {
                    store.flush().wait().unwrap();
                }
                assert!(keyspace.get(&format!("put {:03}", number % 50)).wait().unwrap().is_some());
            }
        });
        scope.spawn(|| {
            for round in 0..12u64 {
                // Keys between and around those that are put.
                let keys = (0..100).map(|number| (format!("lot {number:03}"), value(round)));
                let keys = keys.chain((0..50).map(|number| (format!("put {number:03}x"), value(round))));
                keyspace.bulk_load(keys).wait().unwrap();
            }
            over.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            let mut last = None;
            while !over.load(Ordering::Acquire) {
                let mut values: Vec<_> = Vec::new();
                let mut range = keyspace.iter();
                while let Some((key, value)) = range.next().wait().transpose().unwrap() {
                    if key.starts_with(b"lot") || key.ends_with(b"x") {
                        values.push(value.to_vec());
                    }
                }
                assert!(values.len() % 150 == 0 && values.windows(2).all(|pair| pair[0] == pair[1]));
                // No load is undone.
                let now = values.first().map(|value| value.len());
                assert!(now >= last, "{now:?} after {last:?}");
                last = now;
            }
        });
    });
    assert_eq!(keyspace.get("lot 099").wait().unwrap().as_deref(), Some(&value(11)[..]));
}

#[tokio::test]
async fn large_and_expiring_values_are_loaded_from_a_task_too() {
    let (engine, dir) = (engine(), dir());
    let clock = || 1000;
    let store = Store::open(&engine, dir.path(), options().clock(clock)).await.unwrap();
    let keyspace = store.default_keyspace();
    let task = tokio::spawn(async move {
        let mut load = keyspace.loader();
        for number in 0..60u64 {
            match number % 3 {
                0 => load.add(key(number), vec![number as u8; 100_000]).await.unwrap(),
                1 => load.add_until(key(number), value(number), 1001).await.unwrap(),
                _ => load.add_until(key(number), value(number), 1000).await.unwrap(),
            }
        }
        load.finish().await.unwrap();
        keyspace
    });
    let keyspace = task.await.unwrap();
    for number in 0..60u64 {
        let found = keyspace.get(&key(number)).await.unwrap().map(|value| value.to_vec());
        let expected = match number % 3 {
            0 => Some(vec![number as u8; 100_000]),
            1 => Some(value(number)),
            _ => None,
        };
        assert_eq!(found, expected, "{number}");
    }
    let mut unfinished = keyspace.loader();
    unfinished.add("a", "b").await.unwrap();
    store.close().await.unwrap();
    assert_eq!(unfinished.add("c", "d").await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(unfinished.finish().await.unwrap_err().kind(), ErrorKind::Closed);
}

/// Story: a time limit dropped the future of a finish that wrote the end of its last table. The load was removed, although a finish
/// continues.
#[test]
fn a_finish_continues_when_its_future_is_dropped() {
    let ran = World::new(3).disk(Profile::nand().at("/disk")).run(async |engine| {
        let options = options().store_id(7).clock(|| 1_000);
        let store = Store::open(&engine, "/disk/store", options).await.expect("a store");
        let keyspace = store.default_keyspace();
        let mut load = keyspace.loader();
        for number in 0..100 {
            load.add(key(number), value(number)).await.expect("an entry");
        }
        let mut finishing = Box::pin(load.finish());
        assert!(futures::poll!(&mut finishing).is_pending());
        drop(finishing);
        let mut looks = 0;
        while keyspace.get(&key(0)).await.expect("a read").is_none() {
            looks += 1;
            assert!(looks < 100, "{:?}", store.stats());
            sim::sleep(Duration::from_millis(100)).await.expect("in a world");
        }
        for number in 0..100 {
            let found = keyspace.get(&key(number)).await.expect("a read");
            assert_eq!(found.as_deref(), Some(&value(number)[..]), "{number}");
        }
        store.close().await.expect("an end");
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}
