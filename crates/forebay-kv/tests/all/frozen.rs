//! Futures that a program keeps and does not poll cost only the resources that they hold: all other tasks continue.
//!
//! Regression: the permit of a get lay in the program's future from its first poll to its last. Example: a stream of gets
//! (`buffer_unordered`) whose loop body awaits another get. As soon as the stream had started as many gets as the budget allows, it
//! hung forever, and so did every get of other tasks. The tests run in a simulated world, which detects when no task can continue.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use forebay::Engine;
use forebay_kv::{Keyspace, Options, Store};
use forebay_sim::{self as sim, Profile, World};
use futures::future::{Either, select};
use futures::{FutureExt, StreamExt, stream};

/// Entries of the store: many times the capacity of its cache.
const KEYS: u64 = 12_000;
/// Number of long values, each in its own memory of 128 KiB.
const LONG: u64 = 24;
const LONG_BYTES: usize = 100_000;

fn key(number: u64) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

fn value(number: u64) -> Vec<u8> {
    let word = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    word.into_iter().cycle().take(900).collect()
}

fn long_key(number: u64) -> Vec<u8> {
    format!("long {number:03}").into_bytes()
}

/// Returns a pseudorandom key.
fn drawn(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (x ^ (x >> 27)) % KEYS
}

fn options() -> Options {
    Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN).store_id(9).clock(|| 1_000_000)
}

/// Returns a store with all entries in tables and an empty cache.
async fn filled(engine: &Engine) -> Store {
    let store = Store::open(engine, "/disk/kv", options()).await.expect("the store opens");
    let short = (0..KEYS).map(|number| (key(number), value(number)));
    let long = (0..LONG).map(|number| (long_key(number), vec![number as u8; LONG_BYTES]));
    let entries = short.chain(long);
    store.default_keyspace().bulk_load(entries).await.expect("a load");
    store.close().await.expect("the store closes");
    Store::open(engine, "/disk/kv", options()).await.expect("the store opens")
}

fn world(seed: u64) -> World {
    World::new(seed).disk(Profile::nand().at("/disk")).steps_max(u64::MAX)
}

/// The loop that programs commonly write first. Every third key is in memory, and its get releases no memory.
async fn reads_beside_a_stream(keyspace: &Keyspace, at_once: usize) {
    // Different, uncached keys each time.
    let first = at_once as u64 * 10_000;
    let wanted = |seed: u64| if seed.is_multiple_of(3) { 7 } else { drawn(first + seed) };
    keyspace.put(key(7), value(7)).await.expect("a put");
    let mut gets = stream::iter(0..1_000)
        .map(|seed| async move { (seed, keyspace.get(&key(wanted(seed))).await) })
        .buffer_unordered(at_once);
    while let Some((seed, found)) = gets.next().await {
        assert_eq!(found.expect("a get").as_deref(), Some(&value(wanted(seed))[..]));
        let other = drawn(first + seed + 5_000);
        let found = keyspace.get(&key(other)).await.expect("a get in the loop's body");
        assert_eq!(found.as_deref(), Some(&value(other)[..]));
    }
}

#[test]
fn a_loop_over_buffered_gets_may_get_in_its_body() {
    let run = world(1).run(async |engine| {
        let store = filled(&engine).await;
        let keyspace = store.default_keyspace();
        for at_once in [8, 200, 1_000] {
            reads_beside_a_stream(&keyspace, at_once).await;
        }
        // As a task of a shard, where reads start without a message.
        let there = engine.spawn_on_shard(0, forebay::Class::DEFAULT, move || async move {
            reads_beside_a_stream(&keyspace, 256).await;
        });
        there.await.expect("the task");
        store.close().await.expect("the store closes");
    });
    run.expect("a world that ends");
}

type Frozen<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Polls all futures this many times, with time for their reads in between, and keeps those that are not
/// complete.
async fn freeze(polls: usize, futures: &mut Vec<Frozen<'_>>) {
    for poll in 0..polls {
        if poll > 0 {
            sim::sleep(Duration::from_millis(20)).await.expect("a sleep");
        }
        futures.retain_mut(|future| future.now_or_never().is_none());
    }
}

/// Gets four long values by one call, which reads two of them side by side.
async fn assert_long_at_once(keyspace: &Keyspace, first: u64) {
    let numbers = (first..first + 4).map(|number| number % LONG);
    let keys: Vec<Vec<u8>> = numbers.clone().map(long_key).collect();
    let found = keyspace.multi_get(&keys).await.expect("gets of several long values");
    for (number, found) in numbers.zip(found) {
        assert_eq!(found.as_deref(), Some(&vec![number as u8; LONG_BYTES][..]));
    }
}

/// Calls every operation of a store once.
async fn all_of_it(store: &Store, keyspace: &Keyspace, round: u64) {
    for seed in 0..60 {
        let number = drawn(round * 1_000 + seed);
        let found = keyspace.get(&key(number)).await.expect("a get");
        assert_eq!(found.as_deref(), Some(&value(number)[..]));
    }
    let numbers: Vec<u64> = (0..128).map(|seed| drawn(round * 1_000 + 100 + seed)).collect();
    let keys: Vec<Vec<u8>> = numbers.iter().map(|number| key(*number)).collect();
    let found = store.snapshot().multi_get(keyspace, &keys).await.expect("gets of several keys");
    for (number, found) in numbers.iter().zip(found) {
        assert_eq!(found.as_deref(), Some(&value(*number)[..]));
    }
    for number in 0..LONG {
        let found = keyspace.get(&long_key(number)).await.expect("a long value");
        assert_eq!(found.as_deref(), Some(&vec![number as u8; LONG_BYTES][..]));
    }
    assert_long_at_once(keyspace, round * 4).await;
    let mut range = keyspace.prefix("key 0001");
    let mut count = 0;
    while range.next().await.transpose().expect("a range").is_some() {
        count += 1;
    }
    assert_eq!(count, 100);
    keyspace.put(format!("put {round}"), "1").await.expect("a put");
    let swapped = keyspace.compare_and_set(&format!("put {round}"), Some(b"1"), Some(b"2")).await;
    assert_eq!(swapped.expect("a swap"), forebay_kv::SwapOutcome::Done);
    store.flush().await.expect("a flush");
}

/// Returns futures of every kind that reads, more of them than the budget allows to read concurrently.
fn reads<'a>(store: &'a Store, keyspace: &'a Keyspace) -> Vec<Frozen<'a>> {
    let mut reads: Vec<Frozen<'a>> = Vec::new();
    for seed in 0..400 {
        let number = drawn(20_000 + seed);
        let get = async move {
            let found = keyspace.get(&key(number)).await.expect("a frozen get");
            assert_eq!(found.as_deref(), Some(&value(number)[..]));
        };
        reads.push(Box::pin(get));
    }
    for first in 0..4 {
        let numbers: Vec<u64> = (0..128).map(|seed| drawn(first * 128 + seed)).collect();
        let get = async move {
            let keys: Vec<Vec<u8>> = numbers.iter().map(|number| key(*number)).collect();
            let found = keyspace.multi_get(&keys).await.expect("frozen gets of several keys");
            for (number, found) in numbers.iter().zip(found) {
                assert_eq!(found.as_deref(), Some(&value(*number)[..]));
            }
        };
        reads.push(Box::pin(get));
    }
    for number in 0..LONG {
        let get = async move {
            let found = keyspace.get(&long_key(number)).await.expect("a frozen get of a long value");
            assert_eq!(found.as_deref(), Some(&vec![number as u8; LONG_BYTES][..]));
        };
        reads.push(Box::pin(get));
    }
    reads.push(Box::pin(assert_long_at_once(keyspace, 8)));
    let swap = async move {
        let swapped = keyspace.compare_and_set(&key(77), Some(b"never"), None).await;
        assert!(matches!(swapped.expect("a frozen swap"), forebay_kv::SwapOutcome::Not { .. }));
    };
    reads.push(Box::pin(swap));
    let verify = async move {
        assert!(store.verify().await.expect("a frozen look at everything").is_whole());
    };
    reads.push(Box::pin(verify));
    reads
}

#[test]
fn frozen_reads_stop_nobody_and_answer_when_they_are_polled_again() {
    for polls in [1, 2, 4] {
        let run = world(polls as u64).run(async |engine| {
            let store = filled(&engine).await;
            let keyspace = store.default_keyspace();
            let mut frozen = reads(&store, &keyspace);
            freeze(polls, &mut frozen).await;
            assert!(frozen.len() > 200, "{polls} polls: only {} are frozen", frozen.len());
            for round in 0..3 {
                all_of_it(&store, &keyspace, round).await;
            }
            let held = store.stats().memory;
            assert!(held.gets <= held.gets_max, "{held:?}");
            for future in frozen {
                future.await;
            }
            store.close().await.expect("the store closes");
        });
        run.unwrap_or_else(|failure| panic!("{polls} polls: {failure}"));
    }
}

/// Returns futures of every operation that changes a store or starts work; each may fail once the store is
/// closed.
fn changes<'a>(store: &'a Store, keyspace: &'a Keyspace, round: usize) -> Vec<Frozen<'a>> {
    let mut changes: Vec<Frozen<'a>> = Vec::new();
    for number in 0..40_u32 {
        let put = keyspace.put(number.to_be_bytes(), vec![7; 20_000]);
        changes.push(Box::pin(async { drop(put.await) }));
    }
    changes.push(Box::pin(async {
        let mut load = keyspace.loader();
        for number in 0..2_000_u32 {
            if load.add(format!("load {number:06}"), [7; 100]).await.is_err() {
                return;
            }
        }
        drop(load.finish().await);
    }));
    changes.push(Box::pin(async { drop(keyspace.compact::<&[u8]>(..).await) }));
    changes.push(Box::pin(async { drop(store.compact().await) }));
    changes.push(Box::pin(async { drop(store.flush().await) }));
    changes.push(Box::pin(async { drop(store.settle().await) }));
    changes.push(Box::pin(async move { drop(store.keyspace(&format!("one more {round}")).await) }));
    changes.push(Box::pin(async move { drop(store.checkpoint(format!("/disk/copy {round}")).await) }));
    changes.push(Box::pin(async { drop(store.verify().await) }));
    changes.push(Box::pin(async {
        let mut range = keyspace.iter();
        while range.next().await.transpose().is_ok_and(|entry| entry.is_some()) {}
    }));
    changes
}

/// Regression: a load that was not polled while it was creating a file counted as a task of the store, and closing waited for it
/// forever.
#[test]
fn frozen_changes_stop_neither_others_nor_the_end() {
    for polls in [1, 2, 4] {
        let run = world(polls as u64).run(async |engine| {
            let store = filled(&engine).await;
            let keyspace = store.default_keyspace();
            let mut frozen = changes(&store, &keyspace, polls);
            freeze(polls, &mut frozen).await;
            assert!(!frozen.is_empty());
            all_of_it(&store, &keyspace, 1).await;
            store.settle().await.expect("compaction comes to rest");
            store.close().await.expect("the store closes");
            let again = Store::open(&engine, "/disk/kv", options()).await.expect("the store opens again");
            for future in frozen {
                future.await;
            }
            again.close().await.expect("the store closes again");
        });
        run.unwrap_or_else(|failure| panic!("{polls} polls: {failure}"));
    }
}

/// Regression: the gets of 128 keys requested their memory in one piece, which was nearly all of a small store's share. With eight
/// threads of plain gets, which used memory as it became free, they did not complete in 15 seconds.
#[test]
fn many_keys_at_once_have_their_turn_beside_plain_gets() {
    let run = world(3).run(async |engine| {
        let store = filled(&engine).await;
        let keyspace = store.default_keyspace();
        let under_way = Rc::new(Cell::new(8));
        let plain = (0..8_u64).map(|task| {
            let (keyspace, under_way) = (keyspace.clone(), under_way.clone());
            sim::spawn_local(async move {
                for seed in 0..4_000 {
                    keyspace.get(&key(drawn(task * 10_000 + seed))).await.expect("a plain get");
                }
                under_way.set(under_way.get() - 1);
            })
        });
        let plain: Vec<_> = plain.collect();
        sim::sleep(Duration::from_millis(1)).await.expect("a sleep");
        for round in 0..4 {
            let keys: Vec<Vec<u8>> = (0..128).map(|seed| key(drawn(100_000 + 128 * round + seed))).collect();
            let gets = keyspace.multi_get(&keys);
            let limit = sim::sleep(Duration::from_millis(100));
            match select(Box::pin(gets), Box::pin(limit)).await {
                Either::Left((found, _)) => assert!(found.expect("gets").iter().all(Option::is_some)),
                Either::Right(_) => panic!("128 keys had no answer in 100 ms"),
            }
        }
        assert_eq!(under_way.get(), 8, "some have ended already");
        for task in plain {
            task.await.expect("a task");
        }
        store.close().await.expect("the store closes");
    });
    run.expect("a world that ends");
}
