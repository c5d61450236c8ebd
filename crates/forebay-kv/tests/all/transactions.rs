//! Transactions: what they see, what they change, and when they conflict.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{dir, engine, open};
use forebay_kv::{ErrorKind, Isolation, Keyspace, Store, Transaction, TransactionRange};

const BOTH: [Isolation; 2] = [Isolation::Snapshot, Isolation::Serializable];

fn text(transaction: &Transaction, keyspace: &Keyspace, key: &str) -> Option<String> {
    let value = transaction.get(keyspace, key).wait().unwrap();
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

fn entries(mut range: TransactionRange) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    std::iter::from_fn(|| range.next().wait().transpose().unwrap())
        .map(|(key, value)| (text(&key), text(&value)))
        .collect()
}

fn conflicts(transaction: Transaction) -> bool {
    match transaction.commit().wait() {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            true
        }
    }
}

#[test]
fn it_reads_as_of_its_beginning_and_its_own_changes() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    for (key, value) in [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")] {
        keyspace.put(key, value).wait().unwrap();
    }
    for isolation in BOTH {
        let mut transaction = store.transaction(isolation);
        keyspace.put("e", "5").wait().unwrap();
        assert_eq!(text(&transaction, &keyspace, "e"), None, "it was put later");
        transaction.put(&keyspace, "bb", "own").unwrap();
        transaction.put(&keyspace, "c", "own").unwrap();
        transaction.delete(&keyspace, "a").unwrap();
        transaction.delete(&keyspace, "nothing").unwrap();
        transaction.put_until(&keyspace, "cc", "gone", 1).unwrap();
        assert_eq!(text(&transaction, &keyspace, "a"), None);
        assert_eq!(text(&transaction, &keyspace, "c").as_deref(), Some("own"));
        assert_eq!(text(&transaction, &keyspace, "cc"), None, "it has expired");
        let pairs = |all: &[(&str, &str)]| -> Vec<(String, String)> {
            all.iter().map(|(key, value)| ((*key).to_string(), (*value).to_string())).collect()
        };
        let all = pairs(&[("b", "2"), ("bb", "own"), ("c", "own"), ("d", "4")]);
        assert_eq!(entries(transaction.range::<&str>(&keyspace, ..)), all);
        let reversed: Vec<_> = all.iter().rev().cloned().collect();
        assert_eq!(entries(transaction.range::<&str>(&keyspace, ..).rev()), reversed);
        assert_eq!(entries(transaction.range(&keyspace, "bb".."d")), all[1..3]);
        assert_eq!(entries(transaction.prefix(&keyspace, "b")), all[..2]);
        assert_eq!(keyspace.get("bb").wait().unwrap(), None, "others do not see it");
        drop(transaction);
        assert_eq!(keyspace.get("c").wait().unwrap().as_deref(), Some(&b"3"[..]), "it was discarded");
        keyspace.delete("e").wait().unwrap();
    }
    store.close().wait().unwrap();
}

#[test]
fn changes_are_there_after_the_store_was_opened_again() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let (one, two) = (store.keyspace("one").wait().unwrap(), store.keyspace("two").wait().unwrap());
    one.put("old", "x").wait().unwrap();
    let mut transaction = store.transaction(Isolation::Serializable);
    transaction.put(&one, "key", "1").unwrap();
    transaction.put(&two, "key", "2").unwrap();
    transaction.delete(&one, "old").unwrap();
    transaction.commit().wait().unwrap();
    store.close().wait().unwrap();
    let store = open(&engine, &dir);
    let (one, two) = (store.keyspace("one").wait().unwrap(), store.keyspace("two").wait().unwrap());
    assert_eq!(one.get("key").wait().unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(two.get("key").wait().unwrap().as_deref(), Some(&b"2"[..]));
    assert_eq!(one.get("old").wait().unwrap(), None);
    store.close().wait().unwrap();
}

/// Each case: what the transaction does, what another writer does meanwhile, and at which levels that conflicts.
#[test]
fn conflicts_are_those_of_the_level() {
    type Step = fn(&mut Transaction, &Keyspace);
    type Other = fn(&Store, &Keyspace);
    let get: Step = |transaction, keyspace| drop(text(transaction, keyspace, "a"));
    let scan: Step = |transaction, keyspace| drop(entries(transaction.range(keyspace, "a".."c")));
    let write: Step = |transaction, keyspace| transaction.put(keyspace, "a", "own").unwrap();
    let nothing: Step = |_, _| {};
    let put: Other = |_, keyspace| keyspace.put("a", "other").wait().unwrap();
    let delete: Other = |_, keyspace| keyspace.delete("a").wait().unwrap();
    let insert: Other = |_, keyspace| keyspace.put("b", "new").wait().unwrap();
    let beside: Other = |_, keyspace| keyspace.put("c", "new").wait().unwrap();
    let flushed: Other = |store, keyspace| {
        keyspace.put("a", "other").wait().unwrap();
        store.flush().wait().unwrap();
    };
    let load: Other = |_, keyspace| assert_eq!(keyspace.bulk_load([("x", "y")]).wait().unwrap(), 1);
    let cases: [(&str, Step, Other, [bool; 2]); 13] = [
        ("read, put", get, put, [false, true]),
        ("read, delete", get, delete, [false, true]),
        ("read, other key", get, beside, [false, false]),
        ("read, put and flush", get, flushed, [false, true]),
        ("scan, put", scan, put, [false, true]),
        ("scan, insert", scan, insert, [false, true]),
        ("scan, beside", scan, beside, [false, false]),
        ("scan, put and flush", scan, flushed, [false, true]),
        ("write, put", write, put, [true, false]),
        ("write, put and flush", write, flushed, [true, false]),
        ("nothing, put", nothing, put, [false, false]),
        ("nothing, load", nothing, load, [true, true]),
        ("read, load", get, load, [true, true]),
    ];
    for (case, step, other, expected) in cases {
        for (isolation, expected) in BOTH.into_iter().zip(expected) {
            let (engine, dir) = (engine(), dir());
            let store = open(&engine, &dir);
            let keyspace = store.default_keyspace();
            keyspace.put("a", "1").wait().unwrap();
            let mut transaction = store.transaction(isolation);
            step(&mut transaction, &keyspace);
            transaction.put(&keyspace, "result", "x").unwrap();
            other(&store, &keyspace);
            assert_eq!(conflicts(transaction), expected, "{case} at {isolation:?}");
            assert_eq!(keyspace.get("result").wait().unwrap().is_none(), expected, "{case}: all or nothing");
            store.close().wait().unwrap();
        }
    }
}

#[test]
fn one_that_only_reads_commits_always() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    keyspace.put("a", "1").wait().unwrap();
    let transaction = store.transaction(Isolation::Serializable);
    assert_eq!(text(&transaction, &keyspace, "a").as_deref(), Some("1"));
    keyspace.put("a", "2").wait().unwrap();
    transaction.commit().wait().unwrap();
    store.close().wait().unwrap();
}

/// A transaction that outlives a second flush cannot be compared any more; one that began since can.
#[test]
fn one_that_spans_two_flushes_conflicts_and_leaves_nothing() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    let held = || store.stats().memory.held;
    let flush = || {
        keyspace.put("other", vec![7; 1000]).wait().unwrap();
        store.flush().wait().unwrap();
    };
    flush();
    let mut old = store.transaction(Isolation::Serializable);
    old.put(&keyspace, "a", "old").unwrap();
    flush();
    let mut young = store.transaction(Isolation::Serializable);
    young.put(&keyspace, "b", "young").unwrap();
    flush();
    flush();
    assert!(held() > 0, "it keeps the memtables of its moment");
    let lost = old.commit().wait().unwrap_err();
    assert!(lost.kind() == ErrorKind::Conflict && lost.to_string().contains("flushed"), "{lost}");
    let mut third = store.transaction(Isolation::Serializable);
    third.put(&keyspace, "c", "third").unwrap();
    flush();
    third.commit().wait().unwrap();
    assert!(conflicts(young));
    // What transactions kept is free when they end; the last flush frees its memtable in the background.
    while held() > 0 {
        std::thread::yield_now();
    }
    store.close().wait().unwrap();
}

#[test]
fn the_helper_runs_a_transaction_again_until_it_commits() {
    const THREADS: usize = 8;
    const ADDED: usize = 20;
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let (keyspace, runs) = (store.default_keyspace(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..ADDED {
                    let add = store.transact(Isolation::Serializable, async |mut transaction| {
                        runs.fetch_add(1, Ordering::Relaxed);
                        let sum = transaction.get(&keyspace, "sum").await?;
                        let sum: usize = sum.map_or(0, |sum| String::from_utf8_lossy(&sum).parse().unwrap());
                        transaction.put(&keyspace, "sum", (sum + 1).to_string())?;
                        Ok((transaction, sum + 1))
                    });
                    let sum = add.wait().unwrap();
                    assert!((1..=THREADS * ADDED).contains(&sum));
                }
            });
        }
    });
    let sum = keyspace.get("sum").wait().unwrap();
    assert_eq!(sum.as_deref(), Some((THREADS * ADDED).to_string().as_bytes()));
    assert!(runs.into_inner() > THREADS * ADDED, "there was no conflict, so the test shows little");
    store.close().wait().unwrap();
}

#[test]
fn bad_input_is_an_error_at_once() {
    let (engine, dir, other) = (engine(), dir(), dir());
    let (store, stranger) = (open(&engine, &dir), open(&engine, &other));
    let (keyspace, foreign) = (store.default_keyspace(), stranger.default_keyspace());
    let mut transaction = store.transaction(Isolation::Snapshot);
    assert_eq!(transaction.put(&keyspace, "", "x").unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(transaction.put(&foreign, "a", "x").unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(transaction.get(&foreign, "a").wait().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(transaction.range(&foreign, "a"..).next().wait().unwrap().is_err());
    let long = vec![0; 1 << 20];
    assert!(matches!(transaction.put(&keyspace, long, "x").unwrap_err().kind(), ErrorKind::TooLarge { .. }));
    store.close().wait().unwrap();
    transaction.put(&keyspace, "a", "x").unwrap();
    assert_eq!(transaction.commit().wait().unwrap_err().kind(), ErrorKind::Closed);
    stranger.close().wait().unwrap();
}
