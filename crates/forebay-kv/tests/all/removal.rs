//! Removal of ranges and keyspaces: which entries are removed, which stay, also across opens, and its costs.

use crate::common::{dir, engine, engines, key, nothing_is_held, open, options, random, value};
use forebay_kv::{ErrorKind, Isolation, Keyspace, Store};

fn keys(keyspace: &Keyspace) -> Vec<Vec<u8>> {
    let mut range = keyspace.iter();
    std::iter::from_fn(|| range.next().wait().transpose().unwrap()).map(|(key, _)| key).collect()
}

fn fill(keyspace: &Keyspace, numbers: impl Iterator<Item = u64>) {
    let numbers: Vec<u64> = numbers.collect();
    for some in numbers.chunks(20) {
        let mut batch = forebay_kv::Batch::new();
        for number in some {
            batch.put(keyspace, key(*number), value(*number));
        }
        keyspace.store().write(&batch).wait().unwrap();
    }
}

/// Story: the deletion of a range looked at up to 256 of its entries, and read their values: 256 MiB for values of 1 MiB.
#[test]
fn separated_values_in_a_range_are_not_read_to_delete_it() {
    let (engine, dir) = (engine(), dir());
    let options = options().memtable_bytes(512 << 10).log_segment_bytes(1 << 20);
    let store = Store::open(&engine, dir.path(), options).wait().unwrap();
    let keyspace = store.default_keyspace();
    for number in 0..20 {
        // Too long for the cache.
        keyspace.put(key(number), vec![number as u8; 100_000]).wait().unwrap();
    }
    store.settle().wait().unwrap();
    let read = || {
        let flows = engine.stats().wait().unwrap().flows;
        flows.iter().filter(|flow| flow.class == "default").map(|flow| flow.read_bytes).sum::<u64>()
    };
    let before = read();
    keyspace.delete_range(key(5)..key(15)).wait().unwrap();
    let read = read() - before;
    assert!(read < 500_000, "{read} bytes");
    assert_eq!(keys(&keyspace), (0..5).chain(15..20).map(key).collect::<Vec<_>>());
    nothing_is_held(&store);
    store.close().wait().unwrap();
}

/// Story: the deletion of a range waited until the numbers of records that are not logged were in the log: a write and a flush each time.
#[test]
fn the_deletion_of_a_range_that_is_not_logged_writes_nothing_to_the_log() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.unlogged_keyspace("state").wait().unwrap();
    let groups = || {
        let log = store.stats().log;
        log.groups - log.control_groups
    };
    let before = groups();
    for number in 0..20 {
        keyspace.put(key(number), value(number)).wait().unwrap();
        keyspace.delete_range(key(number)..=key(number)).wait().unwrap();
        assert_eq!(keyspace.get(&key(number)).wait().unwrap(), None);
    }
    assert_eq!(groups(), before, "groups with records");
    store.close().wait().unwrap();
}

#[test]
fn a_range_goes_and_its_neighbours_stay() {
    const KEYS: u64 = 4000;
    for engine in engines() {
        let dir = dir();
        let store = open(&engine, &dir);
        let (keyspace, other) = (store.default_keyspace(), store.keyspace("other").wait().unwrap());
        fill(&keyspace, (0..KEYS).map(|number| number * 7 % KEYS));
        fill(&other, 0..50);
        store.flush().wait().unwrap();
        // Newer versions, and some of them only in memory.
        fill(&keyspace, (0..KEYS).step_by(3));
        let before = store.snapshot();
        let written = store.stats().flushed_bytes + store.stats().compaction_written_bytes;
        keyspace.delete_range(key(100)..key(3900)).wait().unwrap();
        let expected: Vec<_> = (0..100).chain(3900..KEYS).map(key).collect();
        assert_eq!(keys(&keyspace), expected);
        assert_eq!(keys(&other).len(), 50, "the other keyspace stays");
        assert_eq!(before.get(&keyspace, &key(200)).wait().unwrap().as_deref(), Some(&value(200)[..]));
        drop(before);
        let cost = store.stats().flushed_bytes + store.stats().compaction_written_bytes - written;
        println!("{cost} bytes written");
        // Later puts are there, within the gap as well.
        fill(&keyspace, [150, 3950].into_iter());
        store.close().wait().unwrap();
        let store = open(&engine, &dir);
        let keyspace = store.default_keyspace();
        let expected: Vec<_> = (0..100).chain([150]).chain(3900..KEYS).map(key).collect();
        assert_eq!(keys(&keyspace), expected);
        assert!(store.verify().wait().unwrap().is_whole());
        keyspace.delete_range::<&[u8]>(..).wait().unwrap();
        assert!(keys(&keyspace).is_empty());
        store.compact().wait().unwrap();
        let stats = store.stats();
        assert_eq!(stats.keyspaces[0].levels.iter().map(|level| level.tables).sum::<usize>(), 0);
        store.close().wait().unwrap();
    }
}

/// Bounds of every kind, few entries and many, against a model.
#[test]
fn ranges_are_those_of_the_bounds() {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    const KEYS: u64 = 600;
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    for round in 0..24 {
        fill(&keyspace, 0..KEYS);
        if round % 2 == 0 {
            store.flush().wait().unwrap();
        }
        let one = random(round) % KEYS;
        let other = (one + random(round + 100) % if round % 3 == 0 { 40 } else { KEYS }).min(KEYS - 1);
        let bound = |number: u64, kind: u64| match kind % 3 {
            0 => Included(key(number)),
            1 => Excluded(key(number)),
            _ => Unbounded,
        };
        let range = (bound(one, round), bound(other, round / 3));
        let goes = |name: &Vec<u8>| {
            let above = match &range.0 {
                Included(low) => name >= low,
                Excluded(low) => name > low,
                Unbounded => true,
            };
            above
                && match &range.1 {
                    Included(high) => name <= high,
                    Excluded(high) => name < high,
                    Unbounded => true,
                }
        };
        let expected: Vec<_> = (0..KEYS).map(key).filter(|name| !goes(name)).collect();
        keyspace.delete_range(range.clone()).wait().unwrap();
        assert_eq!(keys(&keyspace), expected, "round {round}, {range:?}");
    }
    store.close().wait().unwrap();
}

#[test]
fn a_dropped_keyspace_is_gone_and_its_name_begins_anew() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let (users, stays) = (store.keyspace("users").wait().unwrap(), store.keyspace("stays").wait().unwrap());
    fill(&users, 0..2000);
    fill(&stays, 0..10);
    let snapshot = store.snapshot();
    let mut transaction = store.transaction(Isolation::Serializable);
    transaction.put(&users, "a", "b").unwrap();
    store.drop_keyspace("users").wait().unwrap();
    assert_eq!(store.keyspaces(), ["default", "stays"]);
    let gone = |kind: ErrorKind| kind == ErrorKind::NotFound;
    assert!(gone(users.get(&key(1)).wait().unwrap_err().kind()));
    assert!(gone(users.contains_key(&key(1)).wait().unwrap_err().kind()));
    assert!(gone(users.multi_get([key(1)].iter()).wait().unwrap_err().kind()));
    assert!(gone(users.iter().next().wait().unwrap().unwrap_err().kind()));
    assert!(gone(users.put("a", "b").wait().unwrap_err().kind()));
    assert!(gone(users.compare_and_set("a", None, Some(b"b")).wait().unwrap_err().kind()));
    assert!(gone(users.delete_range("a"..).wait().unwrap_err().kind()));
    assert!(gone(users.bulk_load([("a", "b")]).wait().unwrap_err().kind()));
    assert!(transaction.commit().wait().is_err());
    assert_eq!(snapshot.get(&users, &key(1)).wait().unwrap().as_deref(), Some(&value(1)[..]));
    drop(snapshot);

    // The new one does not see the old one's entries, and the old handle not the new one's.
    let again = store.keyspace("users").wait().unwrap();
    assert!(keys(&again).is_empty());
    again.put("new", "1").wait().unwrap();
    assert!(gone(users.get("new").wait().unwrap_err().kind()));
    store.close().wait().unwrap();

    let store = open(&engine, &dir);
    assert_eq!(store.keyspaces(), ["default", "stays", "users"]);
    assert_eq!(keys(&store.keyspace("users").wait().unwrap()), [b"new"]);
    assert_eq!(keys(&store.keyspace("stays").wait().unwrap()).len(), 10);
    assert!(store.verify().wait().unwrap().is_whole());
    store.drop_keyspace("users").wait().unwrap();
    assert_eq!(store.drop_keyspace("users").wait().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(store.drop_keyspace("default").wait().unwrap_err().kind(), ErrorKind::InvalidInput);
    store.close().wait().unwrap();
    // The last number was given; it is not given again after an open.
    let store = open(&engine, &dir);
    let third = store.keyspace("third").wait().unwrap();
    assert!(keys(&third).is_empty());
    store.close().wait().unwrap();
}

/// Story: three calls on a handle of a dropped keyspace took it for an empty one: a swap of a value that the key does not have, a
/// compaction, and a checkpoint that returns values.
#[test]
fn no_call_takes_a_dropped_keyspace_for_an_empty_one() {
    let (engine, dir, beside) = (engine(), dir(), dir());
    let store = open(&engine, &dir);
    let users = store.keyspace("users").wait().unwrap();
    users.put("a", "1").wait().unwrap();
    store.drop_keyspace("users").wait().unwrap();
    let copy = beside.path().join("copy");
    let errors = [
        users.compare_and_set("a", Some(b"1"), None).wait().unwrap_err(),
        users.compact::<&str>(..).wait().unwrap_err(),
        store.checkpoint_and_get(&copy, &users, ["a"]).wait().unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    assert!(!copy.exists());
    store.checkpoint(&copy).wait().unwrap();
    store.compact().wait().unwrap();
    store.close().wait().unwrap();
}

/// Records of a dropped keyspace that are still in the log when the process dies are skipped, not damage.
#[test]
fn records_of_a_dropped_keyspace_do_not_come_back() {
    let (engine, dir, copy) = (engine(), dir(), dir());
    let store = open(&engine, &dir);
    let users = store.keyspace("users").wait().unwrap();
    let writers: Vec<_> = (0..4)
        .map(|thread: u64| {
            let users = users.clone();
            std::thread::spawn(move || {
                let mut number = thread << 32;
                while users.put(key(number), value(number)).wait().is_ok() {
                    number += 1;
                }
            })
        })
        .collect();
    while store.stats().log.records < 200 {
        std::thread::yield_now();
    }
    store.drop_keyspace("users").wait().unwrap();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    store.keyspace("users").wait().unwrap().put("new", "1").wait().unwrap();
    // As after a crash: the files without a close.
    for (path, bytes) in forebay_test::live_files::files(dir.path()) {
        let to = copy.path().join(&path);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::write(to, bytes).unwrap();
    }
    let again = Store::open(&engine, copy.path(), options()).wait().unwrap();
    assert_eq!(keys(&again.keyspace("users").wait().unwrap()), [b"new"]);
    again.close().wait().unwrap();
    store.close().wait().unwrap();
}

#[test]
fn contains_key_agrees_with_get() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    keyspace.put("short", "x").wait().unwrap();
    keyspace.put("long", vec![7; 40_000]).wait().unwrap();
    keyspace.put("gone", "x").wait().unwrap();
    keyspace.delete("gone").wait().unwrap();
    keyspace.put_until("over", "x", 1).wait().unwrap();
    for _ in 0..2 {
        for name in ["short", "long", "gone", "over", "never"] {
            let there = keyspace.get(name).wait().unwrap().is_some();
            assert_eq!(keyspace.contains_key(name).wait().unwrap(), there, "{name}");
        }
        store.flush().wait().unwrap();
    }
    nothing_is_held(&store);
    assert!(keyspace.contains_key("long").wait().unwrap());
    assert_eq!(store.stats().memory.held, 0);
    assert_eq!(keyspace.contains_key("").wait().unwrap_err().kind(), ErrorKind::InvalidInput);
    store.close().wait().unwrap();
}
