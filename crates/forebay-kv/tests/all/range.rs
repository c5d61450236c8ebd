//! Ranges return the contents of the store when they were made, in order, in both directions, despite concurrent changes.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{self, dir, engine, engines, key, open, options, random, value};
use forebay::Class;
use forebay_kv::{Batch, ErrorKind, Keyspace, Range, Result, Store};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
/// A range in progress, whether it runs backwards, and the entries that it has yet to return.
type Open = (Range, bool, Vec<(Vec<u8>, Vec<u8>)>);

fn all(mut range: Range) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut found = Vec::new();
    while let Some((key, value)) = range.next().wait().transpose()? {
        found.push((key, value.to_vec()));
    }
    assert!(range.next().wait().transpose()?.is_none());
    Ok(found)
}

/// As [`all`], by visits that break after this many entries each.
fn visited(mut range: Range, at_a_time: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut found = Vec::new();
    loop {
        let mut left = at_a_time;
        let ended = range.visit(|key, value| {
            found.push((key.to_vec(), value.to_vec()));
            left -= 1;
            if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        if ended.wait()?.is_none() {
            assert!(range.next().wait().transpose()?.is_none());
            return Ok(found);
        }
    }
}

/// Checks that a range and its reverse return the model's entries between these keys, one by one and in visits.
fn is_like(model: &Model, range: impl Fn() -> Range, bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>)) {
    let mut expected: Vec<_> = model
        .iter()
        .filter(|(key, _)| std::ops::RangeBounds::contains(&bounds, *key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    assert!(all(range()).unwrap() == expected, "{bounds:?} forward");
    for at_a_time in [1, 7, usize::MAX] {
        assert!(visited(range(), at_a_time).unwrap() == expected, "{bounds:?} visited {at_a_time} at a time");
    }
    expected.reverse();
    assert!(all(range().rev()).unwrap() == expected, "{bounds:?} backward");
    assert!(visited(range().rev(), 50).unwrap() == expected, "{bounds:?} visited backward");
}

fn bound(seed: u64) -> Bound<Vec<u8>> {
    let mut key = key(random(seed) % 420);
    match random(seed + 1) % 8 {
        0 => return Bound::Unbounded,
        1 => key.truncate(3 + random(seed + 2) as usize % 7),
        2 => key.push(b'!'),
        _ => {}
    }
    if random(seed + 3).is_multiple_of(2) { Bound::Included(key) } else { Bound::Excluded(key) }
}

/// Makes some changes, in the store and in the model.
fn change(store: &Store, keyspace: &Keyspace, model: &mut Model, seed: u64) {
    let mut batch = Batch::new();
    for index in 0..40 {
        let at = random(seed ^ index << 32);
        let name = key(at % 400);
        match at >> 40 & 3 {
            0 => {
                batch.delete(keyspace, &name);
                model.remove(&name);
            }
            _ => {
                let long = if at >> 50 & 63 == 0 { 9000 } else { 0 };
                let new = [value(at >> 16 & 0xffff), vec![5; long]].concat();
                batch.put(keyspace, &name, &new);
                model.insert(name, new);
            }
        }
        if index % 10 == 9 {
            store.write(&batch).wait().unwrap();
            batch.clear();
        }
    }
}

#[test]
fn ranges_are_like_a_map_s_at_every_stage_of_compaction() {
    for (engine, leaf_bytes) in engines().into_iter().zip([4096, 16 << 10]) {
        let dir = dir();
        let options = options().memtable_bytes(32 << 10).leaf_bytes(leaf_bytes);
        let store = Store::open(&engine, dir.path(), options).wait().unwrap();
        let keyspace = store.keyspace("k").wait().unwrap();
        let mut model = Model::new();
        let mut open: Vec<Open> = Vec::new();
        for round in 0..40u64 {
            change(&store, &keyspace, &mut model, round);
            match random(round) % 6 {
                0 => store.flush().wait().unwrap(),
                1 => store.settle().wait().unwrap(),
                2 => keyspace.compact(key(100)..key(300)).wait().unwrap(),
                3 if round % 2 == 0 => store.compact().wait().unwrap(),
                _ => {}
            }
            for seed in (0..3).map(|index| (round * 3 + index) * 100) {
                let bounds = (bound(seed), bound(seed + 50));
                let range = || keyspace.range(bounds.clone());
                is_like(&model, range, bounds.clone());
            }
            let prefix = &key(round * 10)[..9 - round as usize % 3];
            let of_prefix: Model =
                model.clone().into_iter().filter(|(key, _)| key.starts_with(prefix)).collect();
            is_like(&of_prefix, || keyspace.prefix(prefix), (Bound::Unbounded, Bound::Unbounded));
            // A range that starts now and continues later, concurrent with compactions.
            if round % 4 == 0 {
                let expected = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
                let is_back = round % 8 == 0;
                open.push((if is_back { keyspace.iter().rev() } else { keyspace.iter() }, is_back, expected));
            }
            for (range, is_back, expected) in &mut open {
                for _ in 0..40.min(expected.len()) {
                    let (key, value) = range.next().wait().transpose().unwrap().unwrap();
                    let (known, old) = if *is_back { expected.pop().unwrap() } else { expected.remove(0) };
                    assert!((key, value.to_vec()) == (known, old));
                }
                if expected.is_empty() {
                    assert!(range.next().wait().transpose().unwrap().is_none());
                }
            }
            open.retain(|(_, _, expected)| !expected.is_empty());
        }
        assert!(store.stats().compactions > 0, "{:?}", store.stats());
        drop(open);
        common::nothing_is_held(&store);
        store.close().wait().unwrap();
        let error = keyspace.iter().next().wait().transpose().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
    }
}

#[test]
fn snapshots_have_ranges_too() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    let mut model = Model::new();
    change(&store, &keyspace, &mut model, 1);
    let (snapshot, then) = (store.snapshot(), model.clone());
    for seed in 2..10 {
        change(&store, &keyspace, &mut model, seed);
    }
    for _ in 0..2 {
        is_like(&then, || snapshot.iter(&keyspace), (Bound::Unbounded, Bound::Unbounded));
        let bounds = (Bound::Included(key(50)), Bound::Excluded(key(200)));
        is_like(&then, || snapshot.range(&keyspace, key(50)..key(200)), bounds);
        is_like(&model, || keyspace.iter(), (Bound::Unbounded, Bound::Unbounded));
        store.compact().wait().unwrap();
    }
    let before = snapshot.prefix(&keyspace, "key 0001").next().wait().transpose().unwrap();
    assert_eq!(before.map(|(key, _)| key), then.keys().find(|key| key.starts_with(b"key 0001")).cloned());
    let other = common::dir();
    let stranger = open(&engine, &other).default_keyspace();
    let error = snapshot.iter(&stranger).next().wait().transpose().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn what_has_expired_is_left_out() {
    static NOW: AtomicU64 = AtomicU64::new(1000);
    let (engine, dir) = (engine(), dir());
    let options = options().clock(|| NOW.load(Ordering::Relaxed));
    let store = Store::open(&engine, dir.path(), options).wait().unwrap();
    let keyspace = store.default_keyspace();
    for number in 0..100 {
        keyspace.put(key(number), "old").wait().unwrap();
    }
    store.compact().wait().unwrap();
    for number in 0..100 {
        keyspace.put_until(key(number), value(number), 1000 + number).wait().unwrap();
    }
    for _ in 0..2 {
        NOW.store(1030, Ordering::Relaxed);
        let found = all(keyspace.iter()).unwrap();
        assert!(found == (31..100).map(|number| (key(number), value(number))).collect::<Vec<_>>());
        assert!(visited(keyspace.iter(), 10).unwrap() == found);
        store.flush().wait().unwrap();
    }
    // Expired values stay absent: older versions do not reappear.
    NOW.store(1060, Ordering::Relaxed);
    store.compact().wait().unwrap();
    assert_eq!(all(keyspace.iter()).unwrap().len(), 39);
    let entries: u64 = store.stats().keyspaces[0].levels.iter().map(|level| level.entries).sum();
    assert_eq!(entries, 39);
}

#[tokio::test]
async fn a_range_is_a_stream_in_tokio_and_loses_nothing_when_dropped_half_way() {
    let (engine, dir) = (engine(), dir());
    let store = Store::open(&engine, dir.path(), options()).await.unwrap();
    let keyspace = store.default_keyspace();
    for number in 0..500 {
        keyspace.put(key(number), value(number)).await.unwrap();
    }
    store.compact().await.unwrap();
    let mut range = keyspace.range(key(10)..);
    for number in 10..500 {
        // A future that is polled once and dropped.
        let _ = futures::poll!(std::pin::pin!(async {
            tokio::task::yield_now().await;
            range.next().await.transpose()
        }));
        let next = key(number);
        // And a visit, every other time.
        let found = if number % 2 == 0 {
            let _ = futures::poll!(std::pin::pin!(async {
                tokio::task::yield_now().await;
                range.visit(|_, _| ControlFlow::Break(())).await
            }));
            range.visit(|key, _| ControlFlow::Break(key.to_vec())).await.unwrap()
        } else {
            range.next().await.transpose().unwrap().map(|(key, _)| key)
        };
        assert_eq!(found, Some(next));
    }
    assert!(range.next().await.transpose().unwrap().is_none());
    #[cfg(feature = "stream")]
    {
        use futures::TryStreamExt;
        let found: Vec<_> = keyspace.iter().rev().map_ok(|(key, _)| key).try_collect().await.unwrap();
        assert!(found.into_iter().eq((0..500).rev().map(key)));
    }
}

#[test]
fn a_range_works_in_a_task_of_a_shard() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().to_path_buf();
    let inner = engine.clone();
    let task = engine.spawn_on_shard(1, Class::DEFAULT, move || async move {
        let store = Store::open(&inner, &path, options()).await?;
        let keyspace = store.default_keyspace();
        for number in 0..300 {
            keyspace.put(key(number), value(number)).await?;
        }
        store.compact().await?;
        let error = keyspace.iter().next().wait().transpose().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WaitOnShard);
        let mut range = keyspace.iter().rev();
        for number in (0..300).rev() {
            let found = range.next().await.transpose()?.expect("an entry");
            assert_eq!((found.0, found.1.to_vec()), (key(number), value(number)));
        }
        store.close().await
    });
    task.wait().unwrap().unwrap();
}

/// A program that keeps all values of a range gets an error; after it drops them the range continues at the same entry.
#[test]
fn who_keeps_too_much_is_told() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    for number in 0..2500 {
        let mut batch = Batch::new();
        for part in 0..4u64 {
            batch.put(&keyspace, key(number * 4 + part), vec![1; 2000]);
        }
        store.write(&batch).wait().unwrap();
    }
    store.flush().wait().unwrap();
    let mut kept = Vec::new();
    let mut range = keyspace.iter();
    let error = loop {
        match range.next().wait().transpose() {
            Ok(Some(entry)) => kept.push(entry),
            Ok(None) => panic!("20 MB were kept of a budget of 16"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error.kind(), ErrorKind::MemoryBudget { held } if held > 0), "{error:?}");
    let memory = store.stats().memory;
    assert!(memory.held <= memory.budget, "{memory:?}");
    let count = kept.len();
    drop(kept);
    assert_eq!(count + all_count(range), 10_000);
    common::nothing_is_held(&store);
    assert_eq!(all_count(keyspace.iter()), 10_000);
}

fn all_count(mut range: Range) -> usize {
    let mut count = 0;
    while range.next().wait().transpose().unwrap().is_some() {
        count += 1;
    }
    count
}

/// Regression: a range that lacked memory kept its read-ahead until it continued, and many of them waited for each other forever.
/// Here 100 alternate, each until it lacks memory, and all complete.
#[test]
fn ranges_without_memory_do_not_wait_for_each_other() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    let count = 3000;
    for number in 0..count {
        keyspace.put(key(number), vec![number as u8; 3000]).wait().unwrap();
    }
    store.compact().wait().unwrap();
    let begun = |is_backward| if is_backward { keyspace.iter().rev() } else { keyspace.iter() };
    let mut ranges: Vec<(Range, bool, u64)> = (0..100)
        .map(|number| number % 2 == 0)
        .map(|is_backward| (begun(is_backward), is_backward, 0))
        .collect();
    let (mut turns, mut refused) = (0, 0);
    while !ranges.is_empty() {
        turns += 1;
        assert!(turns < 100_000, "{} ranges wait for each other", ranges.len());
        let mut number = 0;
        ranges.retain_mut(|(range, is_backward, found)| {
            number += 1;
            // Each a little further than the one before, so that they are at different places.
            for _ in 0..20 + number % 7 {
                match range.next().wait().transpose() {
                    Ok(Some((found_key, value))) => {
                        let expected = if *is_backward { count - 1 - *found } else { *found };
                        assert_eq!((found_key, value.len()), (key(expected), 3000));
                        *found += 1;
                    }
                    Ok(None) => {
                        assert_eq!(*found, count);
                        return false;
                    }
                    Err(error) => {
                        assert!(matches!(error.kind(), ErrorKind::MemoryBudget { .. }), "{error}");
                        refused += 1;
                        break;
                    }
                }
            }
            true
        });
    }
    assert!(refused > 0, "there was memory for all ranges at once");
    common::nothing_is_held(&store);
}
