//! Regression: `Store::transact` gave up under ordinary contention. 16 tasks that incremented one counter 50 times each ended with
//! up to 51 of 800 conflicts after 100 tries: each retried immediately, all of them against the same record that was being written,
//! and the next winner was random. Now each waits for its turn, in the order of their conflicts, and then sees commits that are not
//! durable yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{dir, engines, open, options};
use forebay::Engine;
use forebay_kv::{ErrorKind, Isolation, Keyspace, Result, Store};
use forebay_sim::{self as sim, Profile, World};
use forebay_test::worlds::{self, Draw};

/// Increments the counter once, with a pause in its body in a world; returns the number of tries.
async fn increment(store: &Store, counters: &Keyspace, pause: Duration) -> Result<usize> {
    let tries = AtomicUsize::new(0);
    let add = store.transact(Isolation::Serializable, async |mut transaction| {
        tries.fetch_add(1, Ordering::Relaxed);
        let count = number(transaction.get(counters, "count").await?.as_deref());
        if !pause.is_zero() {
            sim::sleep(pause).await.expect("in a world");
        }
        transaction.put(counters, "count", (count + 1).to_le_bytes())?;
        Ok((transaction, ()))
    });
    add.await?;
    Ok(tries.into_inner())
}

fn number(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
}

async fn increments(store: Store, counters: Keyspace, times: usize, pause: Duration) -> Result<Vec<usize>> {
    let mut tries = Vec::new();
    for _ in 0..times {
        tries.push(increment(&store, &counters, pause).await?);
    }
    Ok(tries)
}

/// Checks that no increment is lost and that no task retried often.
fn judge(what: &str, mut tries: Vec<usize>, expected: usize, count: u64) {
    assert_eq!((tries.len(), count), (expected, expected as u64), "{what}");
    tries.sort_unstable();
    let (median, most) = (tries[expected / 2], tries[expected - 1]);
    println!("{what}: {expected} increments, {median} tries in the median, {most} at most");
    assert!(median <= 2, "{what}: {median} tries in the median, {most} at most");
}

/// Tasks and the increments of each: fewer of each task with many tasks, since each waits for the device.
const SIZES: [(usize, usize); 4] = [(2, 30), (4, 20), (16, 10), (64, 4)];

fn on_runtime(runtime: &tokio::runtime::Runtime, what: &str, (tasks, times): (usize, usize)) {
    for engine in engines() {
        let dir = dir();
        let store = open(&engine, &dir);
        let counters = store.default_keyspace();
        let began = Instant::now();
        let tries = runtime.block_on(async {
            let increments = || increments(store.clone(), counters.clone(), times, Duration::ZERO);
            let tasks = (0..tasks).map(|_| tokio::spawn(increments()));
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
        let increments = || increments(store.clone(), counters.clone(), times, Duration::ZERO);
        let run = || engine.block_on(increments()).unwrap().unwrap();
        let tries: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..tasks).map(|_| scope.spawn(run)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let count = number(counters.get("count").wait().unwrap().as_deref());
        judge(&format!("{tasks} threads, {}", engine.driver()), tries, tasks * times, count);
        store.close().wait().unwrap();
    }
}

/// A pause in the body that makes several of them conflict with each other.
const BODY: Duration = Duration::from_micros(10);

async fn in_world(engine: &Engine) -> Result<Store> {
    Store::open(engine, "/disk/store", options().store_id(7).clock(|| 1_000)).await
}

/// Runs increments of tasks in a world; returns the flushes of the log.
fn run_in_world(seed: u64, (tasks, times): (usize, usize), pause: Duration) -> u64 {
    let mut world = World::new(seed).disk(Profile::nand().at("/disk"));
    let ran = world.run(async |engine| {
        let store = in_world(&engine).await?;
        let (counters, groups) = (store.default_keyspace(), store.stats().log.groups);
        let increments = || increments(store.clone(), counters.clone(), times, pause);
        let tasks = (0..tasks).map(|_| sim::spawn(increments()));
        let mut tries = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            tries.extend(task.await.unwrap()?);
        }
        let count = number(counters.get("count").await?.as_deref());
        let groups = store.stats().log.groups - groups;
        store.close().await?;
        Ok::<_, forebay_kv::Error>((tries, count, groups))
    });
    let (tries, count, groups) = ran.unwrap().unwrap();
    judge(&format!("{tasks} tasks of a world, {groups} flushes"), tries, tasks * times, count);
    groups
}

#[test]
fn tasks_of_a_world_take_turns() {
    for (seed, tasks) in [(0, 2), (1, 4), (2, 16), (3, 64)] {
        run_in_world(seed, (tasks, 50), BODY);
    }
}

/// Regression: each commit waited until the one before it was durable, and so needed its own flush.
#[test]
fn increments_of_many_tasks_share_flushes() {
    for (seed, tasks) in [(0, 16), (1, 64)] {
        let (flushes, increments) = (run_in_world(seed, (tasks, 50), Duration::ZERO), tasks * 50);
        assert!(flushes * 4 < increments as u64, "{flushes} flushes for {increments} increments");
    }
}

/// A transaction that is polled a number of times and then not until all others are done, or is dropped, does not hold back the
/// others.
#[test]
fn one_that_is_not_polled_or_dropped_blocks_no_other() {
    for polls in 0..12 {
        for is_dropped in [false, true] {
            let mut world = World::new(polls as u64).disk(Profile::nand().at("/disk"));
            let ran = world.run(async |engine| {
                let store = in_world(&engine).await?;
                let counters = store.default_keyspace();
                let tasks = (0..4).map(|_| sim::spawn(increments(store.clone(), counters.clone(), 8, BODY)));
                let tasks: Vec<_> = tasks.collect();
                let mut kept = Vec::new();
                for _ in 0..2 {
                    kept.push(sim::frozen_after(polls, Box::pin(increment(&store, &counters, BODY))).await);
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

/// Test of the test: a store that waits forever for one that is not polled is caught.
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

/// Counts that calls told their callers.
async fn tell(store: Store, counters: Keyspace, told: Arc<AtomicU64>) -> Result<()> {
    loop {
        let (tries, refused) = (AtomicUsize::new(0), AtomicU64::new(0));
        let call = store.transact(Isolation::Serializable, async |mut transaction| {
            let count = number(transaction.get(&counters, "count").await?.as_deref());
            if tries.fetch_add(1, Ordering::Relaxed) == 0 || sim::random(2) == 0 {
                transaction.put(&counters, "count", (count + 1).to_le_bytes())?;
                return Ok((transaction, count + 1));
            }
            if sim::random(2) == 0 {
                // An error with the values that it has seen.
                refused.store(count, Ordering::Relaxed);
                transaction.put(&counters, "", "")?;
            }
            Ok((transaction, count))
        });
        let count = match call.await {
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput) => refused.into_inner(),
            counted => counted?,
        };
        told.fetch_max(count, Ordering::Relaxed);
    }
}

/// Runs a world: calls that commit, that only read and that fail, until the power does. What they told is there afterwards.
fn attempt(world: &mut World) -> std::result::Result<(), String> {
    const LIVES: u64 = 4;
    let (mut draw, told) = (Draw::new(world.seed()), Arc::new(AtomicU64::new(0)));
    world.add_disk(worlds::disk(&mut draw));
    for life in 0..LIVES {
        let is_last = life + 1 == LIVES;
        if !is_last {
            worlds::silent_faults(&mut draw).into_iter().for_each(|rule| world.inject(rule));
            world.power_cut_after(Duration::from_micros(draw.below(80_000)));
        }
        let told = told.clone();
        let live = async move |engine: Engine| {
            let store = in_world(&engine).await.map_err(|error| format!("{error:?}"))?;
            let counters = store.default_keyspace();
            let count = counters.get("count").await.map_err(|error| format!("{error:?}"))?;
            let (count, told_before) = (number(count.as_deref()), told.load(Ordering::Relaxed));
            if count < told_before {
                return Err(format!("the count is {count}, and {told_before} was told"));
            }
            let tasks = (0..if is_last { 0 } else { 6 }).map(|_| {
                let told = told.clone();
                sim::spawn(tell(store.clone(), counters.clone(), told))
            });
            for task in tasks.collect::<Vec<_>>() {
                let _ = task.await;
            }
            store.close().await.map_err(|error| format!("{error:?}"))
        };
        worlds::live(world, !is_last, live).map_err(|text| format!("life {life}: {text}"))?;
    }
    Ok(())
}

#[test]
fn what_a_call_tells_survives_power_cuts() {
    worlds::explore(60, attempt);
}

/// Test of the test: calls that return before what they have read is durable are caught.
#[cfg(feature = "_mutants")]
#[test]
fn a_call_that_tells_too_soon_is_caught() {
    use forebay_kv::mutants::{self, Mutant};
    let mutant = Mutant::AnsweredBeforeDurable;
    worlds::is_caught(mutant, 60, |run| mutants::with(mutant, run), attempt);
}
