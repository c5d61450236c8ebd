//! Writes that do not wait for the device: relaxed writes, and writes to keyspaces that are not logged.

use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{dir, engine, open};
use forebay::Engine;
use forebay_kv::{Batch, ErrorKind, Isolation, Keyspace, Options, Store, SwapOutcome};
use forebay_sim::{self as sim, Profile, World};
use forebay_test::worlds::{self, Draw};

fn number(keyspace: &Keyspace, key: &str) -> Option<u64> {
    let value = keyspace.get(key).wait().unwrap();
    value.map(|value| u64::from_le_bytes(value[..].try_into().unwrap()))
}

#[test]
fn relaxed_writes_are_seen_at_once_and_durable_after_a_sync() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    for round in 0..200u64 {
        keyspace.put("key", round.to_le_bytes()).relaxed().wait().unwrap();
        assert_eq!(number(&keyspace, "key"), Some(round));
    }
    let mut batch = Batch::new();
    batch.put(&keyspace, "a", "1").delete(&keyspace, "key");
    store.write(&batch).relaxed().wait().unwrap();
    assert_eq!(number(&keyspace, "key"), None);
    assert!(store.snapshot().get(&keyspace, "a").wait().unwrap().is_some(), "snapshots see them, too");
    store.sync().wait().unwrap();
    store.close().wait().unwrap();
    assert_eq!(keyspace.put("b", "2").relaxed().wait().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(store.sync().wait().unwrap_err().kind(), ErrorKind::Closed);
    let store = open(&engine, &dir);
    assert!(store.default_keyspace().get("a").wait().unwrap().is_some());
    store.close().wait().unwrap();
}

#[test]
fn an_unlogged_keyspace_is_there_after_a_close_and_costs_the_log_little() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let (state, plain) =
        (store.unlogged_keyspace("state").wait().unwrap(), store.keyspace("plain").wait().unwrap());
    assert!(!state.is_logged() && plain.is_logged());
    assert_eq!(store.unlogged_keyspace("plain").wait().unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert!(!store.keyspace("state").wait().unwrap().is_logged(), "it stays what it was made");
    let before = store.stats().log.record_bytes;
    for round in 0..300u64 {
        state.put(format!("key {round}"), [7; 1000]).wait().unwrap();
        state.put("applied", round.to_le_bytes()).wait().unwrap();
        assert_eq!(number(&state, "applied"), Some(round));
    }
    assert!(store.stats().log.record_bytes - before < 600 * 32, "values are not in the log");
    assert_eq!(state.compare_and_set("swap", None, Some(b"1")).wait().unwrap(), SwapOutcome::Done);
    let mut transaction = store.transaction(Isolation::Serializable);
    assert!(transaction.get(&state, "swap").wait().unwrap().is_some());
    transaction.put(&state, "result", "1").unwrap();
    transaction.commit().wait().unwrap();
    let mut batch = Batch::new();
    batch.put(&state, "both", "1").put(&plain, "both", "1");
    store.write(&batch).wait().unwrap();
    state.delete("key 0").wait().unwrap();
    store.close().wait().unwrap();

    let store = open(&engine, &dir);
    let (state, plain) = (store.keyspace("state").wait().unwrap(), store.keyspace("plain").wait().unwrap());
    assert!(!state.is_logged());
    assert_eq!(number(&state, "applied"), Some(299));
    for name in ["swap", "result", "both", "key 1", "key 299"] {
        assert!(state.contains_key(name).wait().unwrap(), "{name}");
    }
    assert!(!state.contains_key("key 0").wait().unwrap());
    assert!(plain.contains_key("both").wait().unwrap());
    assert!(store.verify().wait().unwrap().is_whole());
    store.close().wait().unwrap();
}

/// Story: a state machine's batch that was longer than a memtable was refused. Its entry was committed, and its node ended at each start.
#[test]
fn an_unlogged_batch_may_be_longer_than_a_memtable() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let value_bytes = store.batch_bytes_max() / 10;
    let (state, plain) = (store.unlogged_keyspace("state").wait().unwrap(), store.default_keyspace());
    let batch = |keyspace: &Keyspace, of: u8| {
        let mut batch = Batch::new();
        for number in 0..20_u64 {
            batch.put(keyspace, number.to_be_bytes(), vec![of; value_bytes]);
        }
        batch
    };
    let refused = store.write(&batch(&plain, 0)).wait().unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::TooLarge { .. }), "{refused}");
    for of in 1..4 {
        state.put("before", "it").wait().unwrap();
        store.write(&batch(&state, of)).wait().unwrap();
        for number in 0..20_u64 {
            let value = state.get(&number.to_be_bytes()).wait().unwrap().unwrap();
            assert!(value.len() == value_bytes && value.iter().all(|byte| *byte == of), "{number}");
        }
    }
    assert!(store.verify().wait().unwrap().is_whole());
    store.close().wait().unwrap();
}

/// What a world's lives have done so far.
#[derive(Clone, Default)]
struct SharedProgress(Arc<Mutex<Progress>>);

#[derive(Clone, Copy, Default)]
struct Progress {
    /// The number of the last relaxed write, and of the last one that must survive.
    relaxed: u64,
    synced: u64,
    /// The applied index that must survive at least, and the last one written.
    flushed: u64,
    applied: u64,
    /// The last number of a write that a flush or a sync has made durable.
    number: u64,
}

/// Checks the findings of an open, and continues from there.
async fn check(store: &Store, state: &Keyspace, done: &SharedProgress) -> Result<(), String> {
    let error = |error: forebay_kv::Error| format!("{error:?}");
    let last = |found: Option<forebay_kv::Value>| {
        found.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().unwrap()))
    };
    let progress = *done.0.lock().unwrap();
    let keyspace = store.default_keyspace();
    // Relaxed writes: key n has the value n; the keys that survive are the first keys.
    let mut count = 0;
    let mut range = keyspace.prefix("r ");
    while let Some(entry) = range.next().await {
        let (_, value) = entry.map_err(error)?;
        count += 1;
        if last(Some(value)) != count {
            return Err(format!("relaxed write {count} is missing, and a later one is there"));
        }
    }
    if count < progress.synced || count > progress.relaxed {
        let (synced, relaxed) = (progress.synced, progress.relaxed);
        return Err(format!("{count} relaxed writes are there; {synced} were synced, of {relaxed}"));
    }
    // The unlogged keyspace is as after the entry that its applied index names.
    let applied = last(state.get("applied").await.map_err(error)?);
    if applied < progress.flushed || applied > progress.applied {
        let (flushed, last) = (progress.flushed, progress.applied);
        return Err(format!("applied up to {applied}; {flushed} was flushed, of {last}"));
    }
    for slot in 0..4 {
        let expected = (1..=applied).rev().find(|index| index % 4 == slot).unwrap_or(0);
        let found = last(state.get(&format!("slot {slot}")).await.map_err(error)?);
        if found != expected {
            return Err(format!("slot {slot} has {found} and not {expected}, applied up to {applied}"));
        }
    }
    let number = store.snapshot().lsn().0;
    if number < progress.number {
        return Err(format!(
            "the next write gets a number after {number}; {} was given before",
            progress.number
        ));
    }
    *done.0.lock().unwrap() = Progress { relaxed: count, synced: count, flushed: applied, applied, number };
    Ok(())
}

async fn live(engine: Engine, done: SharedProgress, steps: u64) -> Result<(), String> {
    let error = |error: forebay_kv::Error| format!("{error:?}");
    let options =
        Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN).memtable_bytes(16 << 10).store_id(7);
    let store = Store::open(&engine, "/disk/store", options.clock(|| 1_000)).await.map_err(error)?;
    let keyspace = store.default_keyspace();
    let state = store.unlogged_keyspace("state").await.map_err(error)?;
    check(&store, &state, &done).await?;
    let change = |change: fn(&mut Progress) -> u64| change(&mut done.0.lock().unwrap());
    for _ in 0..steps {
        match sim::random(12) {
            0..=3 => {
                let next = change(|progress| {
                    progress.relaxed += 1;
                    progress.relaxed
                });
                let value = [&next.to_le_bytes()[..], &[1; 300]].concat();
                keyspace.put(format!("r {next:08}"), value).relaxed().await.map_err(error)?;
            }
            4..=8 => {
                let next = change(|progress| {
                    progress.applied += 1;
                    progress.applied
                });
                let mut batch = Batch::new();
                let value = [&next.to_le_bytes()[..], &[2; 500]].concat();
                batch.put(&state, format!("slot {}", next % 4), value);
                batch.put(&state, "applied", next.to_le_bytes());
                store.write(&batch).await.map_err(error)?;
            }
            9 => {
                let (relaxed, number) = (done.0.lock().unwrap().relaxed, store.snapshot().lsn().0);
                store.sync().await.map_err(error)?;
                let mut progress = done.0.lock().unwrap();
                (progress.synced, progress.number) = (relaxed, number);
            }
            10 => {
                let relaxed = done.0.lock().unwrap().relaxed;
                keyspace.put("durable", "x").await.map_err(error)?;
                done.0.lock().unwrap().synced = relaxed;
            }
            _ if sim::random(3) == 0 => {
                let (relaxed, applied) = {
                    let progress = done.0.lock().unwrap();
                    (progress.relaxed, progress.applied)
                };
                let number = store.snapshot().lsn().0;
                store.flush().await.map_err(error)?;
                let mut progress = done.0.lock().unwrap();
                (progress.synced, progress.flushed, progress.number) = (relaxed, applied, number);
            }
            _ => drop(sim::sleep(Duration::from_micros(sim::random(2_000))).await),
        }
    }
    if sim::random(3) == 0 {
        store.close().await.map_err(error)?;
        let mut progress = done.0.lock().unwrap();
        (progress.synced, progress.flushed) = (progress.relaxed, progress.applied);
    }
    Ok(())
}

fn attempt(world: &mut World) -> Result<(), String> {
    let mut draw = Draw::new(world.seed());
    world.add_disk(worlds::disk(&mut draw));
    let done = SharedProgress::default();
    for life in 0..5 {
        worlds::silent_faults(&mut draw).into_iter().for_each(|rule| world.inject(rule));
        match draw.below(3) {
            0 => world.power_cut_after(Duration::from_micros(draw.below(60_000))),
            1 => world.power_cut_at_operation(1 + draw.below(200)),
            _ => {}
        }
        let (done, steps) = (done.clone(), draw.below(120));
        let live = async move |engine| live(engine, done, steps).await;
        worlds::live(world, true, live).map_err(|text| format!("life {life}: {text}"))?;
    }
    let progress = *done.0.lock().unwrap();
    if progress.relaxed + progress.applied == 0 { Err("nothing was written".to_string()) } else { Ok(()) }
}

#[test]
fn power_cuts_take_back_the_last_writes_only() {
    worlds::explore(75, attempt);
}

/// Story: the etcd server's Raft log has all that its store has, and yet each put wrote and flushed the store's log as well: a
/// group with a number and nothing else.
#[test]
fn writes_that_are_not_logged_cause_no_flush_of_the_log() {
    let mut world = World::new(1).disk(Profile::nand().at("/disk")).stalls_ppm(0);
    let lived = world.run(async |engine| {
        let options = Options::new().memory_bytes_max(64 << 20).reserve_bytes(0).store_id(7).clock(|| 1_000);
        let store = Store::open(&engine, "/disk/store", options).await.expect("a store");
        let state = store.unlogged_keyspace("state").await.expect("a keyspace");
        let logged = store.default_keyspace();
        logged.put("before", "1").await.expect("a put");
        // The mark behind that record, and the work that an open leaves to the background.
        let _ = sim::sleep(Duration::from_secs(1)).await;
        let groups = || store.stats().log.groups;
        let counts = || {
            let counts = sim::current_node().counts();
            (counts.writes, counts.flushes, groups())
        };
        let before = counts();
        for number in 0..10_000u64 {
            state.put(format!("key {}", number % 100), number.to_le_bytes()).await.expect("a put");
            let _ = sim::sleep(Duration::from_micros(300)).await;
        }
        assert_eq!(counts(), before, "nothing logged is nothing written");
        assert_eq!(store.stats().flushes, 0, "all of them are in one memtable");

        // Nothing that a read waits for is in the log, so neither a refused swap nor a repeated call waits.
        let refused = state.compare_and_set("key 0", None, Some(b"new")).await.expect("a swap");
        assert!(matches!(refused, SwapOutcome::Not { current: Some(_) }));
        let tries = Cell::new(0);
        let seen = store
            .transact(Isolation::Serializable, async |mut transaction| {
                tries.set(tries.get() + 1);
                let seen = transaction.get(&state, "key 1").await?;
                if tries.get() == 1 {
                    state.put("key 1", "of another").await?;
                }
                transaction.put(&state, "key 1", "of this one")?;
                Ok((transaction, seen.map(|value| value.to_vec())))
            })
            .await
            .expect("a transaction");
        assert_eq!((seen.as_deref(), tries.get()), (Some(&b"of another"[..]), 2));
        let mut transaction = store.transaction(Isolation::Snapshot);
        transaction.put(&state, "key 2", "late").expect("a key");
        state.put("key 2", "first").await.expect("a put");
        assert_eq!(transaction.commit().await.expect_err("a conflict").kind(), ErrorKind::Conflict);
        let snapshot = store.snapshot();
        assert_eq!(snapshot.get(&state, "key 2").await.expect("a get").as_deref(), Some(&b"first"[..]));
        drop(snapshot);
        assert_eq!(counts(), before);

        // All their numbers are logged with the next logged write, also with a batch of both kinds.
        let mut batch = Batch::new();
        batch.put(&state, "both", "1").put(&logged, "both", "1");
        store.write(&batch).await.expect("a write");
        assert_eq!(groups(), before.2 + 1);
        // Those that wait for a number make it durable: everything that was written before has its number for good then.
        state.put("key 3", "1").await.expect("a put");
        store.sync().await.expect("a sync");
        let mut changes = store.changes(store.snapshot().lsn().next());
        let next = sim::spawn_local(async move { changes.next().await });
        let _ = sim::sleep(Duration::from_millis(1)).await;
        state.put("key 4", "1").await.expect("a put");
        logged.put("after", "1").relaxed().await.expect("a put");
        let next = next.await.expect("a task").expect("an open store").expect("a change");
        assert_eq!(next.entries[0].key, b"after");
        store.close().await.expect("an end");
    });
    lived.expect("a world without faults");
}

const NUMBERED: u64 = 20;

async fn opened(engine: &Engine) -> Result<(Store, Keyspace), String> {
    let options = Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN).store_id(7).clock(|| 1_000);
    let store = Store::open(engine, "/disk/store", options).await.map_err(|error| format!("{error:?}"))?;
    let state = store.unlogged_keyspace("state").await.map_err(|error| format!("{error:?}"))?;
    Ok((store, state))
}

/// Cuts the power at the n-th operation of a flush. Returns whether the flush had this many operations.
fn cut_in_flush(n: u64) -> Result<bool, String> {
    let mut world = World::new(n).disk(Profile::nand().at("/disk")).stalls_ppm(0);
    let lived = world.run(async |engine| {
        let error = |error: forebay_kv::Error| format!("{error:?}");
        let (store, state) = opened(&engine).await?;
        for number in 0..NUMBERED {
            state.put("applied", number.to_le_bytes()).await.map_err(error)?;
        }
        sim::current_node().power_cut_at_operation(n);
        store.flush().await.map_err(error)
    });
    let was_cut = match lived {
        Ok(lived) => lived.map(|()| false)?,
        Err(failure) if failure.is_power_cut() => true,
        Err(failure) => return Err(failure.to_string()),
    };
    world.power_cut();
    world.reboot();
    let looked = world.run(async |engine| {
        let error = |error: forebay_kv::Error| format!("{error:?}");
        let (store, state) = opened(&engine).await?;
        let is_flushed = state.contains_key("applied").await.map_err(error)?;
        if !is_flushed && !was_cut {
            return Err("a flush is lost that was acknowledged".to_string());
        }
        // Nothing is left of those that were not flushed, and their numbers may be given again.
        store.default_keyspace().put("a", "1").await.map_err(error)?;
        let lsn = store.snapshot().lsn().0;
        if is_flushed && lsn <= NUMBERED {
            return Err(format!("the number {lsn} was given twice: a table has all up to {NUMBERED}"));
        }
        store.flush().await.map_err(error)?;
        store.close().await.map_err(error)
    });
    looked.map_err(|failure| failure.to_string())??;
    Ok(was_cut)
}

/// Cuts the power at each operation of a flush in turn. Returns their number.
fn cut_at_each() -> Result<u64, String> {
    let mut n = 1;
    while cut_in_flush(n).map_err(|text| format!("operation {n}: {text}"))? {
        n += 1;
    }
    Ok(n - 1)
}

#[test]
fn no_number_is_given_twice_wherever_the_power_fails() {
    let operations = cut_at_each().expect("whole stores");
    assert!((5..500).contains(&operations), "{operations} operations of a flush");
}

/// Test of the test: a flush that leaves the numbers of its records to the log's next write is caught.
#[cfg(feature = "_mutants")]
#[test]
fn a_table_named_before_the_numbers_of_its_records_are_written_is_caught() {
    use forebay_kv::mutants::{self, Mutant};
    let text = mutants::with(Mutant::NumbersNotWritten, cut_at_each).expect_err("it is caught");
    assert!(text.contains("the manifest wants those from"), "{text}");
}

#[test]
fn numbers_rise_over_closes_and_opens() {
    let (engine, dir) = (engine(), dir());
    let mut last = 0;
    for life in 0..6u64 {
        let store = open(&engine, &dir);
        let state = store.unlogged_keyspace("state").wait().unwrap();
        let first = store.snapshot().lsn().0;
        assert!(first >= last, "life {life} begins with {first} after {last}");
        assert_eq!(number(&state, "applied"), life.checked_sub(1));
        for round in 0..100 {
            state.put("applied", life.to_le_bytes()).wait().unwrap();
            if life % 2 == 0 && round == 50 {
                store.default_keyspace().put("logged", life.to_le_bytes()).wait().unwrap();
            }
            if life % 3 == 0 && round == 70 {
                store.flush().wait().unwrap();
            }
        }
        last = store.snapshot().lsn().0;
        assert!(last >= first + 100);
        assert!(store.verify().wait().unwrap().is_whole());
        store.close().wait().unwrap();
    }
}
