//! Shows: after any crash a node's state machine is as after one of its entries, with the log id of that entry; snapshots are whole, and an
//! installed one is there whole or not at all; with the log's committed entries the state is that before the crash; nothing is left over.
//! How: simulated worlds with log and store of one node, whose power fails while entries are applied, snapshots are built, read and installed.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use common::{WorldTypes, entry, log_id};
use forebay::sim::{self, Rule, World};
use forebay::{Config, Engine};
use forebay_kv::{Batch, Keyspace, Options};
use forebay_raft::{Apply, LogOptions, RaftLog, RaftSnapshot, RaftStore};
use forebay_test::worlds::{self, Draw};
use openraft::alias::{EntryOf, SnapshotMetaOf};
use openraft::entry::RaftEntry;
use openraft::storage::{
    RaftLogReader, RaftLogStorage, RaftLogStorageExt, RaftSnapshotBuilder, RaftStateMachine,
};

type C = WorldTypes;

const LOG: &str = "/disk/node/log";
const STATE: &str = "/disk/node/state";
const OTHER: &str = "/disk/other";
const LIVES: u64 = 4;

/// Keeps the text of each entry by its index modulo 7, and the number of entries in another keyspace.
struct Keeper;

impl Apply<C> for Keeper {
    fn keyspaces(&self) -> Vec<String> {
        vec!["texts".into(), "counts".into()]
    }

    async fn apply(
        &self,
        entry: EntryOf<C>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<String> {
        let count = keyspaces[1].get("entries").await.map_err(io::Error::other)?;
        let count = count.map_or(0, |bytes| u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")));
        let text = entry.to_string() + &"x".repeat((worlds::mix(count) % 900) as usize);
        batch.put(&keyspaces[0], (entry.log_id().index % 7).to_be_bytes(), text);
        batch.put(&keyspaces[1], "entries", (count + 1).to_le_bytes());
        Ok(count.to_string())
    }
}

type Store = RaftStore<C, Keeper>;

/// Returns the entry with this index: the same in every life, since it is committed.
fn nth(index: u64) -> EntryOf<C> {
    entry::<C>(1, index, index.to_string())
}

/// Returns the keyspace of texts after the entries before `count`.
fn expected(count: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let of = |index: u64| nth(index).to_string() + &"x".repeat((worlds::mix(index) % 900) as usize);
    let newest = count.saturating_sub(7)..count;
    newest.map(|index| ((index % 7).to_be_bytes().to_vec(), of(index).into_bytes())).collect()
}

/// Checks that all that the state has is of one entry. Returns the number of entries.
async fn check(store: &mut Store) -> Result<u64, String> {
    let text = |error: forebay_kv::Error| error.to_string();
    let (applied, _) = store.applied_state().await.map_err(|error| error.to_string())?;
    let applied = applied.map_or(0, |id| id.index + 1);
    let keyspaces = store.keyspaces();
    let count = keyspaces[1].get("entries").await.map_err(text)?;
    let count = count.map_or(0, |bytes| u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")));
    let (mut texts, mut found) = (keyspaces[0].iter(), BTreeMap::new());
    while let Some(entry) = texts.next().await {
        let (key, value) = entry.map_err(text)?;
        found.insert(key, value.to_vec());
    }
    if count != applied {
        return Err(format!("the log id says {applied} entries, the data say {count}"));
    }
    if found != expected(count) {
        return Err(format!("after {count} entries there is {found:?}"));
    }
    Ok(count)
}

#[derive(Debug, Default)]
struct Model {
    /// Entries that are acknowledged as durable in the log.
    appended: u64,
    /// Entries of the newest snapshot that was returned.
    snapshot: u64,
    /// Entries of installs that have begun.
    installing: Option<u64>,
    /// Entries that were purged.
    purged: u64,
    returned: u64,
    cuts_in_snapshots: u64,
    is_in_snapshot: bool,
}

type Shared = Rc<RefCell<Model>>;

fn options() -> Options {
    Options::new()
        .memory(Options::MEMORY_MIN)
        .memtable_bytes(16 << 10)
        .log_segment_bytes(64 << 10)
        .clock(|| 1_000_000)
}

async fn open(engine: &Engine) -> Result<(RaftLog<C>, Store), String> {
    let text = |error: forebay_raft::Error| error.to_string();
    let groups = forebay_wal::Options::new().log_id(7);
    let log = LogOptions::new().segment_bytes(64 << 10).tail_bytes_max(8 << 10).wal(groups);
    let log = RaftLog::open(engine, LOG, log).await.map_err(text)?;
    let store = RaftStore::open(engine, STATE, options(), Keeper).await.map_err(text)?;
    Ok((log, store))
}

/// Applies entries, without clients that wait.
async fn apply(store: &mut Store, entries: Vec<EntryOf<C>>) -> io::Result<()> {
    store.apply(futures_util::stream::iter(entries.into_iter().map(|entry| Ok((entry, None))))).await
}

/// Checks what a crash has left, and brings the state to where it was as openraft does.
async fn recover(
    engine: &Engine,
    log: &mut RaftLog<C>,
    store: &mut Store,
    model: &Shared,
) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let count = check(store).await?;
    let snapshot = store.get_current_snapshot().await.map_err(text)?;
    let in_snapshot = snapshot.as_ref().and_then(|found| found.meta.last_log_id).map_or(0, |id| id.index + 1);
    let (appended, at_least, installing) = {
        let model = model.borrow();
        (model.appended, model.snapshot, model.installing)
    };
    let is_known = |entries: u64| entries >= at_least || installing == Some(entries);
    if !is_known(in_snapshot) || in_snapshot > count {
        return Err(format!(
            "a snapshot of {in_snapshot} entries, {count} applied; {at_least} were returned"
        ));
    }
    if let Some(snapshot) = snapshot {
        let verified =
            forebay_kv::verify(engine, snapshot.snapshot.path()).await.map_err(|error| error.to_string())?;
        if !verified.is_whole() {
            return Err(format!("the snapshot: {:?}", verified.findings));
        }
    }
    let left = engine.read_dir(STATE).await.map_err(|error| error.to_string())?;
    let dirs = left.iter().filter(|entry| entry.kind() == forebay::FileKind::Dir).count();
    if dirs > 2 {
        return Err(format!("{dirs} directories are left: {left:?}"));
    }
    let state = log.get_log_state().await.map_err(text)?;
    let (first, next) = (
        state.last_purged_log_id.map_or(0, |id| id.index + 1),
        state.last_log_id.map_or(0, |id| id.index + 1),
    );
    if first < model.borrow().purged {
        return Err(format!("entries from {first} on are there, which were purged"));
    }
    if first > count {
        return Err(format!("{count} entries are applied, and those before {first} are purged"));
    }
    if next < appended.max(first) && count < appended {
        return Err(format!("{next} entries are in the log, and {appended} were acknowledged"));
    }
    // An installed snapshot may be ahead of the log.
    if next < count {
        log.purge(log_id::<C>(1, count - 1)).await.map_err(text)?;
    } else if count < next {
        let entries = log.try_get_log_entries(count..next).await.map_err(text)?;
        if !entries.iter().map(RaftEntry::log_id).eq((count..next).map(|index| log_id::<C>(1, index))) {
            return Err(format!("the log has {entries:?} from {count} on"));
        }
        apply(store, entries).await.map_err(text)?;
    }
    let all = check(store).await?;
    let mut model = model.borrow_mut();
    (model.appended, model.snapshot, model.installing) = (all.max(next), in_snapshot, None);
    model.purged = first.max(model.purged);
    model.cuts_in_snapshots += u64::from(model.is_in_snapshot);
    model.is_in_snapshot = false;
    Ok(())
}

#[derive(Clone)]
struct Plan {
    rules: Vec<Rule>,
    steps: u64,
}

/// Makes a snapshot of `count` entries on another node.
async fn of_another_node(
    engine: &Engine,
    count: u64,
    salt: u64,
) -> Result<(Store, SnapshotMetaOf<C>, RaftSnapshot), String> {
    let text = |error: io::Error| error.to_string();
    let dir = format!("{OTHER}-{salt}");
    let mut other =
        RaftStore::open(engine, dir, options(), Keeper).await.map_err(|error| error.to_string())?;
    let (applied, _) = other.applied_state().await.map_err(text)?;
    let from = applied.map_or(0, |id| id.index + 1);
    apply(&mut other, (from..count).map(nth).collect()).await.map_err(text)?;
    let built = other.build_snapshot().await.map_err(text)?;
    Ok((other, built.meta, built.snapshot))
}

async fn live(engine: Engine, model: Shared, plan: Plan, seed: u64) -> Result<(), String> {
    let (mut log, mut store) = open(&engine).await?;
    recover(&engine, &mut log, &mut store, &model).await?;
    plan.rules.iter().cloned().for_each(sim::inject);
    let mut draw = Draw::new(seed);
    for step in 0..plan.steps {
        let applied = store.applied_state().await.map_err(|error| error.to_string())?.0;
        let next = applied.map_or(0, |id| id.index + 1);
        let done: io::Result<()> = match draw.below(10) {
            0..5 => {
                let entries: Vec<_> = (next..next + 1 + draw.below(12)).map(nth).collect();
                let after = next + entries.len() as u64;
                let appended = log.blocking_append(entries.clone()).await;
                match appended {
                    Ok(()) => {
                        model.borrow_mut().appended = after;
                        // A snapshot is built while entries are applied, as openraft does.
                        if draw.below(3) == 0 {
                            model.borrow_mut().is_in_snapshot = true;
                            let mut builder = store.clone();
                            let building = sim::spawn(async move { builder.build_snapshot().await });
                            let applied = apply(&mut store, entries).await;
                            let built = building.await.map_err(|error| error.to_string())?;
                            let mut model = model.borrow_mut();
                            model.is_in_snapshot = false;
                            built
                                .map(|built| {
                                    model.snapshot = built.meta.last_log_id.map_or(0, |id| id.index + 1);
                                })
                                .and(applied)
                        } else {
                            apply(&mut store, entries).await
                        }
                    }
                    Err(error) => Err(io::Error::other(error.to_string())),
                }
            }
            5 => {
                model.borrow_mut().is_in_snapshot = true;
                let built = store.build_snapshot().await;
                let mut model = model.borrow_mut();
                model.is_in_snapshot = false;
                built.map(|built| model.snapshot = built.meta.last_log_id.map_or(0, |id| id.index + 1))
            }
            6 => {
                let upto = model.borrow().snapshot;
                if upto <= model.borrow().purged {
                    continue;
                }
                let purged = log.purge(log_id::<C>(1, upto - 1)).await;
                purged.map(|()| model.borrow_mut().purged = upto)
            }
            7 => {
                // A snapshot of another node that is ahead; it is copied part by part.
                let count = next + 1 + draw.below(10);
                let (other, meta, snapshot) = match of_another_node(&engine, count, seed ^ step).await {
                    Ok(made) => made,
                    Err(_) if !plan.rules.is_empty() => continue,
                    Err(error) => return Err(format!("another node: {error}")),
                };
                {
                    let mut model = model.borrow_mut();
                    (model.installing, model.is_in_snapshot) = (Some(count), true);
                }
                let installed = store.install_snapshot(&meta, snapshot).await;
                {
                    let mut model = model.borrow_mut();
                    model.is_in_snapshot = false;
                    if installed.is_ok() {
                        (model.snapshot, model.installing) = (count, None);
                    }
                }
                let _ = other.close().await;
                match installed {
                    Ok(()) => {
                        if check(&mut store).await? != count {
                            return Err(format!("{count} entries were installed, and are not there"));
                        }
                        let purged = log.purge(log_id::<C>(1, count - 1)).await;
                        purged.map(|()| {
                            let mut model = model.borrow_mut();
                            (model.purged, model.appended) = (count, model.appended.max(count));
                        })
                    }
                    Err(error) => Err(error),
                }
            }
            8 => check(&mut store).await.map(drop).map_err(io::Error::other),
            _ => {
                let _ = sim::sleep(Duration::from_micros(draw.below(3_000))).await;
                Ok(())
            }
        };
        model.borrow_mut().returned += u64::from(done.is_ok());
        if let Err(error) = done {
            if plan.rules.is_empty() {
                return Err(format!("a call on a good disk: {error}"));
            }
            break;
        }
    }
    sim::clear_faults();
    // Closed or not, as a process ends.
    if draw.below(2) == 0 {
        let _ = (log.close().await, store.close().await);
    }
    Ok(())
}

/// Faults of a world, besides power cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Crashes,
    Errors,
}

fn attempt(world: &mut World, trouble: Trouble, cuts: &Rc<RefCell<u64>>) -> Result<(), String> {
    let mut draw = Draw::new(world.seed());
    world.add_disk(worlds::disk(&mut draw));
    let model = Shared::default();
    for life in 0..LIVES {
        let wrong = |text: String| format!("life {life} of a world of {trouble:?}: {text}");
        world.clear_faults();
        let last = life + 1 == LIVES;
        let mut rules = if trouble == Trouble::Errors || draw.below(2) == 0 {
            worlds::silent_faults(&mut draw)
        } else {
            Vec::new()
        };
        if trouble == Trouble::Errors {
            rules.extend(worlds::reported_faults(&mut draw, 500, 200));
        }
        let rules = if last { Vec::new() } else { rules };
        let plan = Plan { rules, steps: if last { 4 } else { 14 } };
        if !last {
            world.power_cut_at_operation(1 + draw.below(900));
        }
        let seed = world.seed() ^ life << 50;
        match world.run(async |engine| live(engine, model.clone(), plan, seed).await) {
            Ok(lived) => lived.map_err(wrong)?,
            Err(failure) if failure.is_power_cut() => {}
            Err(failure) => return Err(wrong(failure.to_string())),
        }
        world.clear_faults();
        if !last {
            world.power_cut();
        }
        world.reboot();
    }
    *cuts.borrow_mut() += model.borrow().cuts_in_snapshots;
    match model.borrow().returned {
        0 => Err("nothing ever returned".into()),
        _ => Ok(()),
    }
}

fn world_config(world: &mut World) {
    let config = Config::default().shards(2).arena_bytes_max(64 << 20);
    let empty = std::mem::replace(world, World::new(world.seed()));
    *world = empty.config(config);
}

fn explore(trouble: Trouble, seeds: u64) {
    let cuts = Rc::default();
    worlds::explore(seeds, |world| {
        world_config(world);
        attempt(world, trouble, &cuts)
    });
    let is_one = std::env::var_os("FOREBAY_SIM_SEED").is_some();
    let cuts = *cuts.borrow();
    assert!(is_one || cuts > seeds / 4, "the power failed only {cuts} times within a snapshot");
}

#[test]
fn a_crash_leaves_one_state_and_whole_snapshots() {
    explore(Trouble::Crashes, 30);
}

#[test]
fn the_same_on_disks_that_fail() {
    explore(Trouble::Errors, 30);
}

/// Test of the oracle: a store with a deliberate fault is caught in the worlds that CI runs, and the correct one passes the same ones.
#[cfg(feature = "_mutants")]
mod broken {
    use forebay_raft::mutants::{self, Mutant};

    use super::*;

    fn is_caught(mutant: Mutant) {
        let broken = |run: &dyn Fn() -> Result<(), String>| mutants::with(mutant, run);
        worlds::is_caught(mutant, 30, broken, |world| {
            world_config(world);
            attempt(world, Trouble::Crashes, &Rc::default())
        });
    }

    #[test]
    fn an_applied_log_id_behind_its_data_is_caught() {
        is_caught(Mutant::AppliedBehindData);
    }

    #[test]
    fn a_snapshot_that_is_half_installed_is_caught() {
        is_caught(Mutant::HalfInstalled);
    }

    #[test]
    fn a_purge_that_is_not_synced_is_caught() {
        is_caught(Mutant::PurgeNotSynced);
    }
}
