//! Writes that do not wait for the device: relaxed ones, and those of keyspaces that are not logged.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{dir, engine, open};
use forebay::Engine;
use forebay_kv::{Batch, ErrorKind, Isolation, Keyspace, Options, Store, SwapOutcome};
use forebay_sim::{self as sim, World};
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
}

/// Checks what an open has found, and goes on from there.
async fn check(store: &Store, state: &Keyspace, done: &SharedProgress) -> Result<(), String> {
    let error = |error: forebay_kv::Error| format!("{error:?}");
    let last = |found: Option<forebay_kv::Value>| {
        found.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().unwrap()))
    };
    let progress = *done.0.lock().unwrap();
    let keyspace = store.default_keyspace();
    // Relaxed writes: key n has the value n; those that are there are the first ones.
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
    *done.0.lock().unwrap() = Progress { relaxed: count, synced: count, flushed: applied, applied };
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
                let relaxed = done.0.lock().unwrap().relaxed;
                store.sync().await.map_err(error)?;
                done.0.lock().unwrap().synced = relaxed;
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
                store.flush().await.map_err(error)?;
                let mut progress = done.0.lock().unwrap();
                (progress.synced, progress.flushed) = (relaxed, applied);
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
    worlds::explore(150, attempt);
}
