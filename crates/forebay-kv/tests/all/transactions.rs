//! Transactions: what they see, what they change, and when they conflict.

use std::ops::ControlFlow;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::{dir, engine, nothing_is_held, open};
use forebay_kv::{ErrorKind, Isolation, Keyspace, Options, Store, Transaction, TransactionRange};

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

/// A visit gives what `next` gives, with the changes of the transaction among the entries, from any of them on and after each break.
#[test]
fn a_visit_gives_the_entries_of_a_transaction() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    for number in 0..20 {
        keyspace.put(format!("key {number:02}"), "stored").wait().unwrap();
    }
    let mut transaction = store.transaction(Isolation::Serializable);
    transaction.put(&keyspace, "key 03 and more", "own").unwrap();
    transaction.put(&keyspace, "key 07", "own").unwrap();
    transaction.delete(&keyspace, "key 11").unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    for is_reversed in [false, true] {
        let range = || {
            let range = transaction.range::<&str>(&keyspace, ..);
            if is_reversed { range.rev() } else { range }
        };
        let expected = entries(range());
        assert_eq!(expected.len(), 20);
        for taken in 0..=expected.len() {
            let (mut range, mut found) = (range(), Vec::new());
            for _ in 0..taken {
                let (key, value) = range.next().wait().unwrap().unwrap();
                found.push((text(&key), text(&value)));
            }
            loop {
                let mut left = 5;
                let visit = range.visit(|key, value| {
                    found.push((text(key), text(value)));
                    left -= 1;
                    if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                if visit.wait().unwrap().is_none() {
                    break;
                }
            }
            assert_eq!(found, expected, "{taken} before the visit");
        }
    }
    drop(transaction);
    store.close().wait().unwrap();
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
    let later: Other = |store, keyspace| {
        keyspace.put("a", "other").wait().unwrap();
        for _ in 0..3 {
            store.flush().wait().unwrap();
            keyspace.put("z", "other").wait().unwrap();
        }
    };
    let load: Other = |_, keyspace| assert_eq!(keyspace.bulk_load([("x", "y")]).wait().unwrap(), 1);
    let load_it: Other = |_, keyspace| assert_eq!(keyspace.bulk_load([("a", "y")]).wait().unwrap(), 1);
    let elsewhere: Other = |store, _| {
        let other = store.keyspace("other").wait().unwrap();
        other.bulk_load([("a", "y"), ("result", "y")]).wait().unwrap();
        store.drop_keyspace("other").wait().unwrap();
    };
    let for_update: Step =
        |transaction, keyspace| drop(transaction.get_for_update(keyspace, "a").wait().unwrap());
    let cases: [(&str, Step, Other, [bool; 2]); 23] = [
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
        ("read, put and flushes", get, later, [false, true]),
        ("scan, put and flushes", scan, later, [false, true]),
        ("write, put and flushes", write, later, [true, false]),
        ("nothing, put and flushes", nothing, later, [false, false]),
        ("for update, put", for_update, put, [true, true]),
        ("for update, put and flushes", for_update, later, [true, true]),
        ("for update, other key", for_update, beside, [false, false]),
        ("nothing, load", nothing, load, [false, false]),
        ("read, load of another key", get, load, [false, false]),
        ("read, load", get, load_it, [false, true]),
        ("write, load", write, load_it, [true, false]),
        ("read, load and removal elsewhere", get, elsewhere, [false, false]),
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

/// Regression: a transaction that outlived a second flush conflicted, regardless of its reads and writes: during writes to another
/// keyspace no transaction of a second ever committed.
#[test]
fn one_that_spans_flushes_conflicts_with_changes_of_its_own_keys_alone() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let (keyspace, other) = (store.default_keyspace(), store.keyspace("other").wait().unwrap());
    let held = || store.stats().memory.held;
    let flush = |key: &str| {
        keyspace.put(key, vec![7; 1000]).wait().unwrap();
        other.put("a", "other").wait().unwrap();
        store.flush().wait().unwrap();
    };
    flush("x");
    let mut old = store.transaction(Isolation::Serializable);
    assert_eq!(text(&old, &keyspace, "a"), None);
    assert!(entries(old.range(&keyspace, "b".."d")).is_empty());
    old.put(&keyspace, "a", "old").unwrap();
    flush("x");
    let mut young = store.transaction(Isolation::Snapshot);
    young.put(&keyspace, "a", "young").unwrap();
    flush("d");
    flush("x");
    assert!(held() > 0, "it keeps the memtables of its moment");
    old.commit().wait().unwrap();
    flush("x");
    flush("x");
    assert!(conflicts(young), "the other one has written its key, two flushes ago");
    assert_eq!(keyspace.get("a").wait().unwrap().as_deref(), Some(&b"old"[..]));
    // What transactions kept is free when they end.
    nothing_is_held(&store);
    store.close().wait().unwrap();
}

/// A removal touches the range that it was given, and a load that of its table.
#[test]
fn a_removal_conflicts_with_what_lies_in_its_range() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    keyspace.bulk_load((0..1000).map(|number| (format!("r{number:04}"), "x"))).wait().unwrap();
    let mut inside = store.transaction(Isolation::Serializable);
    let mut outside = store.transaction(Isolation::Serializable);
    let mut around = store.transaction(Isolation::Serializable);
    assert!(text(&inside, &keyspace, "r0500").is_some());
    assert_eq!(text(&outside, &keyspace, "s"), None);
    assert_eq!(entries(around.range(&keyspace, "r0990".."x")).len(), 10);
    for transaction in [&mut inside, &mut outside, &mut around] {
        transaction.put(&keyspace, "result", "x").unwrap();
    }
    keyspace.delete_range("r".."s").wait().unwrap();
    assert_eq!((conflicts(inside), conflicts(around), conflicts(outside)), (true, true, false));
    let after = store.transaction(Isolation::Serializable);
    assert_eq!(text(&after, &keyspace, "r0500"), None);
    store.close().wait().unwrap();
}

/// The record of changes has an eighth of the memory. The keyspace with most changes forgets its oldest changes first: transactions
/// that have touched nothing there commit, and so do young transactions.
#[test]
fn without_memory_for_the_comparison_the_oldest_conflict() {
    const KEY_BYTES: usize = 2_000;
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let (busy, quiet) = (store.default_keyspace(), store.keyspace("quiet").wait().unwrap());
    let write = |numbers: std::ops::Range<u64>| {
        for number in numbers {
            let words = (0..KEY_BYTES as u64 / 8).map(|word| crate::common::random(number << 16 | word));
            let key: Vec<u8> = words.flat_map(u64::to_be_bytes).collect();
            busy.put(key, "x").relaxed().wait().unwrap();
        }
        quiet.put("changed", "x").wait().unwrap();
        store.flush().wait().unwrap();
    };
    let begin = |keyspace: &Keyspace, key: &str| {
        let mut transaction = store.transaction(Isolation::Serializable);
        assert_eq!(text(&transaction, keyspace, key), None);
        transaction.put(keyspace, "result", key).unwrap();
        transaction
    };
    let (old, beside, hit) = (begin(&busy, "old"), begin(&quiet, "beside"), begin(&quiet, "changed"));
    write(0..1600);
    let young = begin(&busy, "young");
    write(1600..1800);
    let memory = store.stats().memory;
    assert!(memory.used() <= Options::MEMORY_BYTES_MIN, "{memory:?}");
    let lost = old.commit().wait().unwrap_err();
    assert!(lost.kind() == ErrorKind::Conflict && lost.to_string().contains("no memory"), "{lost}");
    assert_eq!((conflicts(beside), conflicts(hit), conflicts(young)), (false, true, false));
    store.close().wait().unwrap();
}

#[test]
fn the_helper_runs_a_transaction_again_until_it_commits() {
    const THREADS: usize = 8;
    const ADDED: usize = 20;
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let (keyspace, runs, together) = (store.default_keyspace(), AtomicUsize::new(0), Barrier::new(THREADS));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for added in 0..ADDED {
                    // The first of all threads have read before one of them commits: the others conflict.
                    let is_first = AtomicBool::new(added == 0);
                    let add = store.transact(Isolation::Serializable, async |mut transaction| {
                        runs.fetch_add(1, Ordering::Relaxed);
                        let sum = transaction.get(&keyspace, "sum").await?;
                        let sum: usize = sum.map_or(0, |sum| String::from_utf8_lossy(&sum).parse().unwrap());
                        if is_first.swap(false, Ordering::Relaxed) {
                            together.wait();
                        }
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
    assert!(runs.into_inner() > THREADS * ADDED, "there was no conflict");
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
