//! Values that expire: no read returns a value from its second of expiry on, wherever it is stored. A snapshot decides by the
//! second of its start.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{dir, engine, options, value};
use forebay_kv::{Keyspace, Snapshot, Store};

static NOW_S: AtomicU64 = AtomicU64::new(1000);

fn now_s() -> u64 {
    NOW_S.load(Ordering::Relaxed)
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number:03}").into_bytes()
}

/// Every tenth value is too long for its leaf.
fn bytes(number: u64) -> Vec<u8> {
    if number.is_multiple_of(10) { vec![number as u8; 9_000] } else { value(number) }
}

/// Key n expires in second 1000 + n; all ways to read agree on the keys present at `now`, and those of a snapshot on the keys present
/// when it was made.
fn check(keyspace: &Keyspace, (snapshot, made_s): (&Snapshot, u64), now: u64) {
    NOW_S.store(now, Ordering::Relaxed);
    let expected_at = |number: u64, second: u64| (1000 + number > second).then(|| bytes(number));
    let expected = |number: u64| expected_at(number, now);
    let keys: Vec<_> = (0..100).map(key).collect();
    let many = keyspace.multi_get(&keys).wait().unwrap();
    let before = snapshot.multi_get(keyspace, &keys).wait().unwrap();
    for number in 0..100 {
        let (at, wanted) = (number as usize, expected(number));
        let was = expected_at(number, made_s);
        assert_eq!(
            keyspace.get(&keys[at]).wait().unwrap().as_deref(),
            wanted.as_deref(),
            "{number} at {now}"
        );
        assert_eq!(snapshot.get(keyspace, &keys[at]).wait().unwrap().as_deref(), was.as_deref());
        assert_eq!((many[at].as_deref(), before[at].as_deref()), (wanted.as_deref(), was.as_deref()));
    }
    for (second, backward, mut range) in [
        (now, false, keyspace.iter()),
        (now, true, keyspace.prefix("key").rev()),
        (made_s, false, snapshot.iter(keyspace)),
        (made_s, true, snapshot.range(keyspace, key(0)..=key(99)).rev()),
    ] {
        let there = (0..100).filter_map(|number| Some((key(number), expected_at(number, second)?)));
        let there: Vec<_> = there.collect();
        let mut found = Vec::new();
        while let Some((key, value)) = range.next().wait().transpose().unwrap() {
            found.push((key, value.to_vec()));
        }
        if backward {
            found.reverse();
        }
        assert!(found == there, "a range of {second} at {now}: {} entries, not {}", found.len(), there.len());
    }
}

#[test]
fn no_read_gives_an_expired_value() {
    let (engine, dir) = (engine(), dir());
    let open = || Store::open(&engine, dir.path(), options().clock(now_s)).wait().unwrap();
    let store = open();
    let keyspace = store.default_keyspace();
    // Older values without an expiry, in a table: an expired value must not make them visible again.
    for number in 0..100 {
        keyspace.put(key(number), "of old").wait().unwrap();
    }
    store.compact().wait().unwrap();
    for number in 0..100 {
        keyspace.put_until(key(number), bytes(number), 1000 + number).wait().unwrap();
    }
    let snapshot = store.snapshot();
    let made = (&snapshot, 1000);
    check(&keyspace, made, 1000);
    check(&keyspace, made, 1020);
    NOW_S.store(1021, Ordering::Relaxed);
    store.flush().wait().unwrap();
    check(&keyspace, made, 1021);
    check(&keyspace, made, 1040);
    store.compact().wait().unwrap();
    check(&keyspace, made, 1041);
    check(&keyspace, made, 1060);
    // Compare and set treats an expired value as absent.
    let swapped = |number: u64, expected: Option<&[u8]>| {
        let swap = keyspace.compare_and_set(&key(number), expected, Some(b"new")).wait().unwrap();
        matches!(swap, forebay_kv::SwapOutcome::Done)
    };
    assert!(!swapped(59, Some(&bytes(59))) && !swapped(61, None));
    let left = store.stats().keyspaces[0].levels.iter().map(|level| level.entries).sum::<u64>();
    assert!(left < 80, "{left} entries are left of 60 that have not expired");
    drop(snapshot);
    store.close().wait().unwrap();

    let store = open();
    let keyspace = store.default_keyspace();
    check(&keyspace, (&store.snapshot(), 1060), 1070);
    // If the clock is set back, values still stored are visible again, and no dropped value reappears as another.
    check(&keyspace, (&store.snapshot(), 1070), 1099);
    check(&keyspace, (&store.snapshot(), 1099), 5000);
    store.close().wait().unwrap();
}

/// Regression: a range judged the expiry of entries in memory by the time at which it reached them, and of
/// those in tables by the time at which the range was made. A slowly read range showed a state that never
/// existed.
#[test]
fn a_range_judges_all_its_entries_at_one_moment() {
    static RANGE_NOW_S: AtomicU64 = AtomicU64::new(1000);
    let (engine, dir) = (engine(), dir());
    let options = options().clock(|| RANGE_NOW_S.load(Ordering::Relaxed));
    let store = Store::open(&engine, dir.path(), options).wait().unwrap();
    let keyspace = store.default_keyspace();
    for number in (0..100).step_by(2) {
        keyspace.put_until(key(number), bytes(number), 1010).wait().unwrap();
    }
    store.flush().wait().unwrap();
    for number in (1..100).step_by(2) {
        keyspace.put_until(key(number), bytes(number), 1010).wait().unwrap();
    }
    let mut range = keyspace.iter();
    RANGE_NOW_S.store(1010, Ordering::Relaxed);
    let mut count = 0;
    while engine.block_on(range.next()).unwrap().transpose().unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, 100);
    assert!(engine.block_on(keyspace.iter().next()).unwrap().transpose().unwrap().is_none());
    drop(range);
    store.close().wait().unwrap();
}

/// Story: a program put values that had expired in second 0 and others that last for ever, with the highest second. The seconds from the
/// first to the last expiry of their table are more than a number holds: in a debug build the task that compacts panicked, and `settle`
/// waited for ever.
#[test]
fn the_lowest_and_the_highest_second_of_expiry_share_a_table() {
    let (engine, dir) = (engine(), dir());
    let store = Store::open(&engine, dir.path(), options().clock(|| 1000)).wait().unwrap();
    let keyspace = store.default_keyspace();
    for number in 0..100 {
        let expires_s = if number < 50 { 0 } else { u64::MAX };
        keyspace.put_until(key(number), bytes(number), expires_s).wait().unwrap();
    }
    store.flush().wait().unwrap();
    store.settle().wait().unwrap();
    for number in 0..100 {
        let wanted = (number >= 50).then(|| bytes(number));
        assert_eq!(keyspace.get(&key(number)).wait().unwrap().as_deref(), wanted.as_deref(), "{number}");
    }
    store.close().wait().unwrap();
}
