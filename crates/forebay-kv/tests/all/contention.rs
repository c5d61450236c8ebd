//! Regression: `Store::transact` gave up under ordinary contention. 16 tasks that incremented one counter 50 times each ended with up to
//! 51 of 800 conflicts after 100 tries: each try began again at once, all of them against the same record on its way to the device, and
//! the one that won next was drawn by lot. Now each waits for its turn, in the order of their conflicts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{dir, engines, open, options};
use forebay::Engine;
use forebay_kv::{ErrorKind, Isolation, Keyspace, Result, Store};
use forebay_sim::{self as sim, Profile, World};

/// Increments the counter once; returns the number of tries.
async fn increment(store: &Store, counters: &Keyspace) -> Result<usize> {
    let tries = AtomicUsize::new(0);
    let add = store.transact(Isolation::Serializable, async |mut transaction| {
        tries.fetch_add(1, Ordering::Relaxed);
        let count = number(transaction.get(counters, "count").await?.as_deref());
        transaction.put(counters, "count", (count + 1).to_le_bytes())?;
        Ok((transaction, ()))
    });
    add.await?;
    Ok(tries.into_inner())
}

fn number(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
}

async fn increments(store: Store, counters: Keyspace, times: usize) -> Result<Vec<usize>> {
    let mut tries = Vec::new();
    for _ in 0..times {
        tries.push(increment(&store, &counters).await?);
    }
    Ok(tries)
}

/// Checks that none is lost and none had to try often.
fn judge(what: &str, mut tries: Vec<usize>, expected: usize, count: u64) {
    assert_eq!((tries.len(), count), (expected, expected as u64), "{what}");
    tries.sort_unstable();
    let (median, most) = (tries[expected / 2], tries[expected - 1]);
    println!("{what}: {expected} increments, {median} tries in the median, {most} at most");
    assert!(median <= 2, "{what}: {median} tries in the median, {most} at most");
}

/// Tasks and the increments of each: fewer of each task where there are many, since each waits for the device.
const SIZES: [(usize, usize); 4] = [(2, 30), (4, 20), (16, 10), (64, 4)];

fn on_runtime(runtime: &tokio::runtime::Runtime, what: &str, (tasks, times): (usize, usize)) {
    for engine in engines() {
        let dir = dir();
        let store = open(&engine, &dir);
        let counters = store.default_keyspace();
        let began = Instant::now();
        let tries = runtime.block_on(async {
            let tasks = (0..tasks).map(|_| tokio::spawn(increments(store.clone(), counters.clone(), times)));
            let mut tries = Vec::new();
            for task in tasks.collect::<Vec<_>>() {
                tries.extend(task.await.unwrap().unwrap());
            }
            tries
        });
        let what = format!("{tasks} tasks, {what}, {}, {:?}", engine.driver(), began.elapsed());
        let count = number(counters.get("count").wait().unwrap().as_deref());
        judge(&what, tries, tasks * times, count);
        store.close().wait().unwrap();
    }
}

#[test]
fn tasks_of_a_multi_thread_runtime_take_turns() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    SIZES.into_iter().for_each(|size| on_runtime(&runtime, "4 workers", size));
}

#[test]
fn tasks_of_a_current_thread_runtime_take_turns() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    SIZES.into_iter().for_each(|size| on_runtime(&runtime, "one thread", size));
}

#[test]
fn threads_that_wait_take_turns() {
    for ((tasks, times), engine) in
        SIZES.into_iter().flat_map(|size| engines().into_iter().map(move |engine| (size, engine)))
    {
        let dir = dir();
        let store = open(&engine, &dir);
        let counters = store.default_keyspace();
        let run = || engine.block_on(increments(store.clone(), counters.clone(), times)).unwrap().unwrap();
        let tries: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..tasks).map(|_| scope.spawn(run)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let count = number(counters.get("count").wait().unwrap().as_deref());
        judge(&format!("{tasks} threads, {}", engine.driver()), tries, tasks * times, count);
        store.close().wait().unwrap();
    }
}

async fn in_world(engine: &Engine) -> Result<Store> {
    Store::open(engine, "/disk/store", options().store_id(7).clock(|| 1_000)).await
}

#[test]
fn tasks_of_a_world_take_turns() {
    for (seed, (tasks, times)) in [(2, 50), (4, 50), (16, 50), (64, 50)].into_iter().enumerate() {
        let mut world = World::new(seed as u64).disk(Profile::nand().at("/disk"));
        let ran = world.run(async |engine| {
            let store = in_world(&engine).await?;
            let counters = store.default_keyspace();
            let tasks = (0..tasks).map(|_| sim::spawn(increments(store.clone(), counters.clone(), times)));
            let mut tries = Vec::new();
            for task in tasks.collect::<Vec<_>>() {
                tries.extend(task.await.unwrap()?);
            }
            let count = number(counters.get("count").await?.as_deref());
            store.close().await?;
            Ok::<_, forebay_kv::Error>((tries, count))
        });
        let (tries, count) = ran.unwrap().unwrap();
        judge(&format!("{tasks} tasks of a world"), tries, tasks * times, count);
    }
}

/// One that is polled so many times and then not until all others are done, or dropped, holds back none of them.
#[test]
fn one_that_is_not_polled_or_dropped_blocks_no_other() {
    for polls in 0..12 {
        for is_dropped in [false, true] {
            let mut world = World::new(polls as u64).disk(Profile::nand().at("/disk"));
            let ran = world.run(async |engine| {
                let store = in_world(&engine).await?;
                let counters = store.default_keyspace();
                let tasks = (0..4).map(|_| sim::spawn(increments(store.clone(), counters.clone(), 8)));
                let tasks: Vec<_> = tasks.collect();
                let mut kept = Vec::new();
                for _ in 0..2 {
                    kept.push(sim::frozen_after(polls, Box::pin(increment(&store, &counters))).await);
                }
                if is_dropped {
                    kept.clear();
                }
                let mut done = 0;
                for task in tasks {
                    done += task.await.unwrap()?.len();
                }
                for one in kept {
                    match one {
                        Ok(tries) => drop(tries?),
                        Err(going) => drop(going.await?),
                    }
                    done += 1;
                }
                let count = number(counters.get("count").await?.as_deref());
                store.close().await?;
                Ok::<_, forebay_kv::Error>((done as u64, count))
            });
            let (done, count) = ran.unwrap_or_else(|failure| panic!("{polls} polls: {failure}")).unwrap();
            let more = if is_dropped { done..=done + 2 } else { done..=done };
            assert!(more.contains(&count), "{polls} polls: {done} done, {count} counted");
        }
    }
}

/// Test of the test: a store that waits for ever for one that is not polled is caught.
#[cfg(feature = "_mutants")]
#[test]
fn a_turn_that_is_kept_is_caught() {
    use forebay_kv::mutants::{self, Mutant};

    let caught = std::panic::catch_unwind(|| {
        mutants::with(Mutant::TurnKept, one_that_is_not_polled_or_dropped_blocks_no_other);
    });
    assert!(caught.is_err(), "no other waited for it");
}

/// A conflict is returned when the caller's time is over, and only then.
#[test]
fn a_conflict_after_the_limit_is_returned() {
    let mut world = World::new(1).disk(Profile::nand().at("/disk"));
    let ran = world.run(async |engine| {
        let store = in_world(&engine).await?;
        let counters = store.default_keyspace();
        let (limit, began, tries) = (Duration::from_secs(2), sim::now(), AtomicUsize::new(0));
        let lost = store.transact_within(limit, Isolation::Snapshot, async |mut transaction| {
            tries.fetch_add(1, Ordering::Relaxed);
            // Somebody else is always faster.
            counters.put("count", [1]).await?;
            sim::sleep(Duration::from_millis(150)).await.expect("in a world");
            transaction.put(&counters, "count", [2])?;
            Ok((transaction, ()))
        });
        let lost = lost.await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::Conflict, "{lost}");
        let (took, tries) = (sim::now() - began, tries.into_inner());
        assert!(took >= limit && took < limit * 2 && tries > 5, "{tries} tries in {took:?}");
        store.close().await
    });
    ran.unwrap().unwrap();
}
