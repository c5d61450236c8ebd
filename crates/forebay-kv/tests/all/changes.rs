//! Feeds of changes: every write once, in order, from any moment that the log still has.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::{self, dir, engine, open};
use forebay_kv::{Batch, ChangeSet, Changes, ErrorKind, Isolation, Store};
use forebay_sim::{self as sim, Profile, World};

type Entries = Vec<(String, String, Option<String>)>;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn entries(changed: &ChangeSet) -> Entries {
    let of = |entry: &forebay_kv::ChangedEntry| {
        (entry.keyspace.to_string(), text(&entry.key), entry.value.as_deref().map(text))
    };
    changed.entries.iter().map(of).collect()
}

fn next(changes: &mut Changes) -> ChangeSet {
    changes.next().wait().expect("the store is open").expect("a change")
}

#[test]
fn every_kind_of_write_is_in_it_once_and_in_order() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let (one, two) = (store.keyspace("one").wait().unwrap(), store.keyspace("two").wait().unwrap());
    let state = store.unlogged_keyspace("state").wait().unwrap();
    one.put("before", "x").wait().unwrap();
    let snapshot = store.snapshot();
    let mut changes = store.changes(snapshot.lsn().next());
    drop(snapshot);
    one.put("a", "1").wait().unwrap();
    let mut batch = Batch::new();
    batch.put(&one, "a", "2").put(&two, "b", "3").delete(&one, "a").put(&state, "s", "x");
    store.write(&batch).wait().unwrap();
    state.put("s", "y").wait().unwrap();
    assert!(matches!(
        two.compare_and_set("b", Some(b"3"), Some(b"4")).wait().unwrap(),
        forebay_kv::SwapOutcome::Done
    ));
    let mut transaction = store.transaction(Isolation::Serializable);
    transaction.delete(&two, "b").unwrap();
    transaction.commit().wait().unwrap();
    one.put("c", "5").relaxed().wait().unwrap();
    one.put_until("d", "6", 77).wait().unwrap();

    let entry = |keyspace: &str, key: &str, value: Option<&str>| {
        (keyspace.to_string(), key.to_string(), value.map(str::to_string))
    };
    let expected: [Entries; 6] = [
        vec![entry("one", "a", Some("1"))],
        vec![entry("one", "a", Some("2")), entry("two", "b", Some("3")), entry("one", "a", None)],
        vec![entry("two", "b", Some("4"))],
        vec![entry("two", "b", None)],
        vec![entry("one", "c", Some("5"))],
        vec![entry("one", "d", Some("6"))],
    ];
    let mut last = forebay_wal::Lsn(0);
    for expected in expected {
        let changed = next(&mut changes);
        assert_eq!(entries(&changed), expected);
        assert!(changed.lsn > last && changes.position() > changed.lsn);
        last = changed.lsn;
    }
    assert!(last <= store.snapshot().lsn());
    // A close ends it, also where it waits.
    let waits = std::thread::spawn(move || changes.next().wait());
    store.close().wait().unwrap();
    assert!(waits.join().unwrap().is_none());
}

/// A feed concurrent with writers and flushes rebuilds the store's contents.
#[test]
fn a_copy_made_from_it_is_the_store() {
    const WRITERS: u64 = 4;
    const WRITES: u64 = 400;
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    let mut changes = store.changes(store.snapshot().lsn().next());
    let mut copy: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    std::thread::scope(|scope| {
        // The feed has the records of three flushes: a thread that reads it late on a busy machine would have lagged.
        let (ahead, seen) = std::sync::mpsc::sync_channel::<()>(100);
        for writer in 0..WRITERS {
            let (keyspace, ahead) = (&keyspace, ahead.clone());
            scope.spawn(move || {
                for number in 0..WRITES {
                    ahead.send(()).expect("the feed is read");
                    let word = common::random(writer << 32 | number);
                    let key = common::key(word % 50);
                    if word.is_multiple_of(5) {
                        keyspace.delete(key).wait().unwrap();
                    } else {
                        keyspace.put(key, common::value(word)).wait().unwrap();
                    }
                }
            });
        }
        for _ in 0..WRITERS * WRITES {
            for entry in next(&mut changes).entries {
                match entry.value {
                    Some(value) => drop(copy.insert(entry.key, value)),
                    None => drop(copy.remove(&entry.key)),
                }
            }
            seen.recv().unwrap();
        }
    });
    assert!(store.stats().flushes > 0, "records went to tables meanwhile");
    let mut range = keyspace.iter();
    let stored: BTreeMap<Vec<u8>, Vec<u8>> = std::iter::from_fn(|| range.next().wait().transpose().unwrap())
        .map(|(key, value)| (key, value.to_vec()))
        .collect();
    assert!(stored == copy);
    drop((range, changes));
    store.close().wait().unwrap();
}

/// A feed that is not read costs the records of three flushes, and then it has lagged; the log of a store without one is
/// as short as ever.
#[test]
fn one_that_is_not_read_lags_and_holds_the_log_for_three_flushes_only() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    let write = |store: &Store| {
        keyspace.put("key", "value").wait().unwrap();
        store.flush().wait().unwrap();
    };
    write(&store);
    let from = store.snapshot().lsn().next();
    let mut slow = store.changes(from);
    (0..3).for_each(|_| write(&store));
    assert_eq!(next(&mut slow).lsn, from, "the records of three flushes are kept");
    let mut lagged = store.changes(from);
    (0..6).for_each(|_| write(&store));
    let error = lagged.next().wait().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lagged, "{error}");
    assert!(lagged.next().wait().is_none(), "it has ended");
    let early = store.changes(forebay_wal::Lsn(1)).next().wait().unwrap().unwrap_err();
    assert_eq!(early.kind(), ErrorKind::Lagged);
    drop((slow, lagged));
    write(&store);
    store.close().wait().unwrap();
}

#[test]
fn what_is_not_in_the_log_ends_it() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    let mut changes = store.changes(store.snapshot().lsn().next());
    keyspace.put("a", "1").wait().unwrap();
    assert_eq!(entries(&next(&mut changes)).len(), 1);
    assert_eq!(keyspace.bulk_load([("x", "y")]).wait().unwrap(), 1);
    keyspace.put("b", "2").wait().unwrap();
    let error = changes.next().wait().unwrap().unwrap_err();
    assert!(error.kind() == ErrorKind::Lagged && error.to_string().contains("bulk load"), "{error}");
    store.close().wait().unwrap();
}

/// Story: records that the log had kept for a feed stayed there when the feed was dropped or had read them, until the next flush: in a
/// idle store, for ever.
#[test]
fn the_log_gives_up_what_no_feed_wants_any_more() {
    for is_read in [false, true] {
        let ran = World::new(1).disk(Profile::nand().at("/disk")).run(async |engine| {
            let options = common::options().log_segment_bytes(64 << 10).store_id(9).clock(|| 1_000);
            let store = Store::open(&engine, "/disk/store", options).await.unwrap();
            let keyspace = store.default_keyspace();
            let mut feed = Some(store.changes(store.snapshot().lsn().next()));
            for number in 0..200_u64 {
                keyspace.put(number.to_be_bytes(), [7_u8; 100]).await.unwrap();
            }
            store.flush().await.unwrap();
            sim::sleep(Duration::from_secs(1)).await.unwrap();
            let files = async || engine.read_dir("/disk/store/log").await.unwrap().len();
            let before = files().await;
            match &mut feed {
                Some(changes) if is_read => {
                    for _ in 0..200 {
                        changes.next().await.expect("the store is open").expect("a change");
                    }
                }
                _ => feed = None,
            }
            sim::sleep(Duration::from_secs(1)).await.unwrap();
            let after = files().await;
            assert!(after + 3 <= before, "{before} files before, {after} after");
            drop(feed);
            store.close().await.unwrap();
        });
        ran.unwrap_or_else(|failure| panic!("read: {is_read}: {failure}"));
    }
}
