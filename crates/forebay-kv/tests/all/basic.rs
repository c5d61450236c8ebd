//! A store is opened, written to, read, closed and opened again: from threads, from Tokio, from shards.

use std::sync::Arc;

use crate::common::{dir, engine, engines, key, nothing_is_held, open, options, value};
use forebay::Class;
use forebay_kv::{Batch, ErrorKind, Keyspace, Options, Store, SwapOutcome};

fn get(keyspace: &Keyspace, key: &[u8]) -> Option<Vec<u8>> {
    keyspace.get(key).wait().unwrap().map(|value| value.to_vec())
}

#[test]
fn what_was_put_comes_back_from_memory_and_from_tables() {
    for engine in engines() {
        let dir = dir();
        let store = open(&engine, &dir);
        let keyspace = store.default_keyspace();
        for number in 0..1000 {
            keyspace.put(key(number), value(number)).wait().unwrap();
            assert_eq!(get(&keyspace, &key(number)), Some(value(number)));
        }
        assert!(store.stats().flushes > 0, "{:?}", store.stats());
        for number in 0..1000 {
            assert_eq!(get(&keyspace, &key(number)), Some(value(number)), "{number}");
            assert_eq!(get(&keyspace, &[&key(number)[..], b"x"].concat()), None);
        }
        // A large value, an empty one, and a key of maximum length.
        keyspace.put(b"large", vec![7; 40_000]).wait().unwrap();
        keyspace.put(b"empty", b"").wait().unwrap();
        keyspace.put(vec![9; 16 << 10], b"long key").wait().unwrap();
        store.flush().wait().unwrap();
        for number in (0..1000).step_by(3) {
            keyspace.delete(key(number)).wait().unwrap();
        }
        for flushed in [false, true] {
            if flushed {
                store.flush().wait().unwrap();
            }
            for number in 0..1000 {
                let expected = (number % 3 != 0).then(|| value(number));
                assert_eq!(get(&keyspace, &key(number)), expected, "{number}");
            }
            assert_eq!(get(&keyspace, b"large"), Some(vec![7; 40_000]));
            assert_eq!(get(&keyspace, b"empty"), Some(Vec::new()));
            assert_eq!(get(&keyspace, &vec![9; 16 << 10]), Some(b"long key".to_vec()));
        }
        store.close().wait().unwrap();
        engine.close().wait().unwrap();
    }
}

#[test]
fn what_was_put_comes_back_after_a_close_and_without_one() {
    let (engine, dir) = (engine(), dir());
    for round in 0..6u64 {
        let store = loop {
            match Store::open(&engine, dir.path(), options()).wait() {
                // Retries until the previous store, whose last handle was dropped, has ended.
                Err(error) if error.kind() == ErrorKind::Locked => std::thread::yield_now(),
                opened => break opened.unwrap(),
            }
        };
        let keyspace = store.keyspace("other").wait().unwrap();
        assert_eq!(store.keyspaces(), ["default", "other"]);
        for number in 0..round * 150 {
            assert_eq!(get(&keyspace, &key(number)), Some(value(number)), "{number} in round {round}");
            assert_eq!(get(&store.default_keyspace(), &key(number)), None);
        }
        for number in round * 150..(round + 1) * 150 {
            keyspace.put(key(number), value(number)).wait().unwrap();
        }
        // The log was replayed only from the last flush on.
        let stats = store.stats();
        assert!(stats.replayed <= 300, "{stats:?}");
        if round % 2 == 0 {
            store.close().wait().unwrap();
        }
    }
}

#[test]
fn a_batch_is_one_write_in_several_keyspaces() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let (one, two) = (store.keyspace("one").wait().unwrap(), store.keyspace("two").wait().unwrap());
    two.put("gone", "soon").wait().unwrap();
    let before = store.stats().log.records;
    let mut batch = Batch::new();
    batch.put(&one, "a", "1").put(&two, "a", "2").delete(&two, "gone").put(&one, "a", "3");
    assert_eq!(batch.len(), 4);
    store.write(&batch).wait().unwrap();
    assert_eq!(store.stats().log.records, before + 1);
    let read = || (get(&one, b"a"), get(&two, b"a"), get(&two, b"gone"));
    let expected = (Some(b"3".to_vec()), Some(b"2".to_vec()), None);
    assert_eq!(read(), expected);
    store.flush().wait().unwrap();
    assert_eq!(read(), expected);
    store.write(&Batch::new()).wait().unwrap();
    assert_eq!(store.stats().log.records, before + 1);
}

#[test]
fn snapshots_stay_as_they_were() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    let mut snapshots = vec![];
    for round in 0..8u64 {
        for number in 0..200 {
            if (number + round).is_multiple_of(5) {
                keyspace.delete(key(number)).wait().unwrap()
            } else {
                keyspace.put(key(number), value(number + round)).wait().unwrap()
            }
        }
        snapshots.push(store.snapshot());
    }
    store.flush().wait().unwrap();
    assert!(store.stats().flushes > 2 && store.stats().memory.held > 0, "{:?}", store.stats());
    for (round, snapshot) in snapshots.iter().enumerate() {
        let keys: Vec<Vec<u8>> = (0..200).map(key).collect();
        let all = snapshot.multi_get(&keyspace, &keys).wait().unwrap();
        for (number, found) in (0..200u64).zip(all) {
            let expected = (!(number + round as u64).is_multiple_of(5)).then(|| value(number + round as u64));
            assert_eq!(found.as_deref(), expected.as_deref(), "{number} in round {round}");
            let one = snapshot.get(&keyspace, &key(number)).wait().unwrap();
            assert_eq!(one.as_deref(), expected.as_deref());
        }
    }
    drop(snapshots);
    nothing_is_held(&store);
}

#[test]
fn compare_and_set_sets_what_is_as_expected() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    let swap = |expected: Option<&[u8]>, new: Option<&[u8]>| match keyspace
        .compare_and_set("k", expected, new)
        .wait()
        .unwrap()
    {
        SwapOutcome::Done => Ok(()),
        SwapOutcome::Not { current } => Err(current.map(|value| value.to_vec())),
    };
    for flush in [false, true] {
        let flush = || {
            if flush {
                store.flush().wait().unwrap()
            }
        };
        assert_eq!(swap(Some(b"1"), None), Err(None));
        assert_eq!(swap(None, Some(b"1")), Ok(()));
        flush();
        assert_eq!(swap(None, Some(b"2")), Err(Some(b"1".to_vec())));
        assert_eq!(swap(Some(b"1"), Some(b"2")), Ok(()));
        flush();
        assert_eq!(get(&keyspace, b"k"), Some(b"2".to_vec()));
        assert_eq!(swap(Some(b"2"), None), Ok(()));
        flush();
        assert_eq!(get(&keyspace, b"k"), None);
    }
}

/// Many threads increment counters by compare and set, while the store flushes all the time: no increment is
/// lost.
#[test]
fn no_swap_is_lost_between_threads_and_flushes() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (store, keyspace) = (&store, &keyspace);
            scope.spawn(move || {
                for round in 0..60u64 {
                    loop {
                        let now = get(keyspace, b"count");
                        let count =
                            now.as_deref().map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
                        let next = (count + 1).to_le_bytes();
                        let swap = keyspace.compare_and_set("count", now.as_deref(), Some(&next));
                        if swap.wait().unwrap() == SwapOutcome::Done {
                            break;
                        }
                    }
                    if round % 7 == thread {
                        store.flush().wait().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(get(&keyspace, b"count"), Some(240u64.to_le_bytes().to_vec()));
}

#[test]
fn values_expire() {
    static NOW: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1000);
    let clock = || NOW.load(std::sync::atomic::Ordering::Relaxed);
    let (engine, dir) = (engine(), dir());
    let store = Store::open(&engine, dir.path(), options().clock(clock)).wait().unwrap();
    let keyspace = store.default_keyspace();
    keyspace.put("short", "old").wait().unwrap();
    store.flush().wait().unwrap();
    for flush in [false, true] {
        NOW.store(1000, std::sync::atomic::Ordering::Relaxed);
        keyspace.put_until("short", "1", 1010).wait().unwrap();
        keyspace.put_until("long", "2", 1020).wait().unwrap();
        if flush {
            store.flush().wait().unwrap();
        }
        for (now, short, long) in [(1009, true, true), (1010, false, true), (1020, false, false)] {
            NOW.store(now, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(get(&keyspace, b"short").is_some(), short, "at {now}");
            assert_eq!(get(&keyspace, b"long").is_some(), long, "at {now}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_tokio_tasks_write_and_read() {
    let (engine, dir) = (engine(), dir());
    let store = Store::open(&engine, dir.path(), options()).await.unwrap();
    let keyspace = store.keyspace("tokio").await.unwrap();
    let tasks: Vec<_> = (0..64u64)
        .map(|task| {
            let keyspace = keyspace.clone();
            tokio::spawn(async move {
                for number in task * 40..(task + 1) * 40 {
                    keyspace.put(key(number), value(number)).await.unwrap();
                    let found = keyspace.get(&key(number)).await.unwrap();
                    assert_eq!(found.as_deref(), Some(&value(number)[..]));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    all_there(&keyspace).await;
    store.close().await.unwrap();
    assert_eq!(keyspace.put("late", "x").await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(keyspace.get("late").await.unwrap_err().kind(), ErrorKind::Closed);
    let store = Store::open(&engine, dir.path(), options()).await.unwrap();
    let keyspace = store.keyspace("tokio").await.unwrap();
    all_there(&keyspace).await;
}

/// Reads some at a time: each value counts as held, with the page that it lies in.
async fn all_there(keyspace: &Keyspace) {
    for first in (0..2560).step_by(160) {
        let keys: Vec<_> = (first..first + 160).map(key).collect();
        let all = keyspace.multi_get(&keys).await.unwrap();
        for (number, found) in (first..).zip(all) {
            assert_eq!(found.as_deref(), Some(&value(number)[..]));
        }
    }
}

/// Story: a task asked for hundreds of thousands of keys that were all in memory, and its shard did nothing else until it had them.
#[test]
fn many_gets_from_memory_leave_a_shard_to_others() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    keyspace.put("key", "value").wait().unwrap();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let keys = vec!["key"; 200_000];
        let mut gets = std::pin::pin!(keyspace.multi_get(&keys));
        assert!(futures::poll!(gets.as_mut()).is_pending(), "the shard's other tasks have their turn");
        assert!(gets.await.unwrap().iter().all(Option::is_some));
    });
    task.wait().unwrap();
    store.close().wait().unwrap();
}

#[test]
fn a_task_on_a_shard_does_it_all() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().to_path_buf();
    for shard in 0..2 {
        let (inner, path) = (engine.clone(), path.clone());
        let task = engine.spawn_on_shard(shard, Class::DEFAULT, move || async move {
            let store = Store::open(&inner, &path, options()).await?;
            let keyspace = store.keyspace("k").await?;
            let error = keyspace.put("a", "b").wait().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WaitOnShard);
            for number in 0..300 {
                keyspace.put(key(number), value(number)).await?;
            }
            store.flush().await?;
            for number in 0..300 {
                assert_eq!(keyspace.get(&key(number)).await?.as_deref(), Some(&value(number)[..]));
            }
            store.close().await
        });
        task.wait().unwrap().unwrap();
    }
}

/// Writers on threads and readers of pairs: all changes of a batch become visible together, at one moment.
#[test]
fn readers_see_whole_batches() {
    let (engine, dir) = (engine(), dir());
    let store = Arc::new(open(&engine, &dir));
    let (one, two) = (store.keyspace("one").wait().unwrap(), store.default_keyspace());
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..800u64 {
                let mut batch = Batch::new();
                for place in 0..4 {
                    batch.put(&two, [place], value(number));
                }
                batch.put(&one, "pair", value(number));
                store.write(&batch).wait().unwrap();
            }
            over.store(true, std::sync::atomic::Ordering::Release);
        });
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Acquire) {
                let all = two.multi_get(&[[0u8], [1], [2], [3]]).wait().unwrap();
                assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "four of one batch");
                let snapshot = store.snapshot();
                let pair =
                    (snapshot.get(&one, "pair").wait().unwrap(), snapshot.get(&two, &[2u8]).wait().unwrap());
                assert_eq!(pair.0, pair.1, "two keyspaces of one batch");
            }
        });
    });
}

#[test]
fn a_store_of_the_default_options_works() {
    let (engine, dir) = (engine(), dir());
    let store = Store::open(&engine, dir.path().join("a/b"), Options::new().memory_bytes_max(32 << 20))
        .wait()
        .unwrap();
    let keyspace = store.default_keyspace();
    keyspace.put("a", vec![1; 1 << 20]).wait().unwrap();
    assert_eq!(get(&keyspace, b"a").map(|value| value.len()), Some(1 << 20));
    store.flush().wait().unwrap();
    assert_eq!(get(&keyspace, b"a"), Some(vec![1; 1 << 20]));
    let memory = store.stats().memory;
    let shares = memory.memtables_max + memory.log_max + memory.manifest_max + memory.tables_max;
    assert_eq!(shares + memory.gets_max + memory.held_max + memory.cache_max, memory.budget);
}

#[test]
fn an_engine_that_ends_leaves_nobody_waiting_and_nothing_is_lost() {
    let dir = dir();
    for round in 0..3u64 {
        let engine = engine();
        let store = open(&engine, &dir);
        let keyspace = store.default_keyspace();
        for number in 0..round * 200 {
            assert_eq!(get(&keyspace, &key(number)), Some(value(number)), "{number} in round {round}");
        }
        for number in round * 200..(round + 1) * 200 {
            keyspace.put(key(number), value(number)).wait().unwrap();
        }
        let writer = keyspace.clone();
        let busy = std::thread::spawn(move || {
            let puts = (1000..).map(|number| writer.put(key(number % 10 + 1000), value(number)).wait());
            puts.filter_map(forebay_kv::Result::err).next()
        });
        engine.close().wait().unwrap();
        let error = busy.join().unwrap().expect("an error at last");
        assert!(matches!(error.kind(), ErrorKind::Closed | ErrorKind::ReadOnly), "{error:?}");
        // A store that failed reports its error; either way it has ended.
        let _ = store.close().wait();
        assert!(keyspace.put("late", "x").wait().is_err());
    }
}

/// Story: each write that waited for memory, for the log or for compaction looked through all others whenever it was polled: the time
/// of ten thousand puts at once grew with the square of their number.
#[test]
fn ten_thousand_puts_wait_together() {
    const PUTS: u64 = 10_000;
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    let puts = (0..PUTS).map(|number| keyspace.put(key(number), number.to_le_bytes()));
    let done = futures::executor::block_on(futures::future::join_all(puts));
    done.into_iter().for_each(|done| done.unwrap());
    for number in 0..PUTS {
        assert_eq!(get(&keyspace, &key(number)), Some(number.to_le_bytes().to_vec()), "{number}");
    }
    store.close().wait().unwrap();
}
