//! Worlds of one Raft node's log and state, whose power fails while entries are applied, snapshots are built, read and installed.
//!
//! They show: after any crash the state is that after one of the entries, with the log id of that entry; snapshots are whole, and an
//! installed one is there whole or not at all; with the log's committed entries the state is that before the crash; nothing is left over.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use forebay::{Config, Engine};
use forebay_kv::Options;
use forebay_raft::{Apply, LogOptions, RaftLog, RaftSnapshot, RaftStore};
use forebay_sim::{self as sim, Rule, World};
use openraft::RaftTypeConfig;
use openraft::alias::{EntryOf, LogIdOf, SnapshotMetaOf};
use openraft::entry::RaftEntry;
use openraft::storage::{
    RaftLogReader, RaftLogStorage, RaftLogStorageExt, RaftSnapshotBuilder, RaftStateMachine,
};
use openraft::vote::RaftLeaderIdExt;

use crate::worlds::{self, Draw, Trouble};

const LOG: &str = "/disk/node/log";
const STATE: &str = "/disk/node/state";
const OTHER: &str = "/disk/other";
const LIVES: u64 = 4;

/// The types of a node whose entries one leader has written.
pub trait Types: RaftTypeConfig<Term = u64, NodeId = u64> {}

impl<C: RaftTypeConfig<Term = u64, NodeId = u64>> Types for C {}

/// A violation found in a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It could not be read, as happens on disks that fail.
    Unread(String),
    /// It is another one.
    Wrong(String),
}

impl Finding {
    fn text(self) -> String {
        match self {
            Finding::Unread(text) | Finding::Wrong(text) => text,
        }
    }
}

/// A state machine under test, and what its state must be. Clones are the same one.
pub trait Subject: Clone + 'static {
    /// The types of the node.
    type Types: Types;
    /// The state machine.
    type Machine: Apply<Self::Types>;

    /// Returns the state machine for a store that is opened.
    fn machine(&self) -> Self::Machine;

    /// Returns the entry with this index, which is the same in every life, since it is committed.
    fn entry(&self, id: LogIdOf<Self::Types>) -> EntryOf<Self::Types>;

    /// Returns the size of a memtable, which the changes of an entry must fit into.
    fn memtable_bytes(&self) -> u64 {
        16 << 10
    }

    /// Checks that the state is that after the first `count` entries.
    fn check(
        &self,
        store: &RaftStore<Self::Types, Self::Machine>,
        count: u64,
    ) -> impl Future<Output = Result<(), Finding>>;
}

type Log<S> = RaftLog<<S as Subject>::Types>;
type Store<S> = RaftStore<<S as Subject>::Types, <S as Subject>::Machine>;
type Entry<S> = EntryOf<<S as Subject>::Types>;

fn log_id<S: Subject>(index: u64) -> LogIdOf<S::Types> {
    LogIdOf::<S::Types>::new(<S::Types as RaftTypeConfig>::LeaderId::new_committed(1, 1), index)
}

fn nth<S: Subject>(subject: &S, index: u64) -> Entry<S> {
    subject.entry(log_id::<S>(index))
}

/// Checks that all that the state has is of one entry. Returns the number of entries.
async fn check<S: Subject>(subject: &S, store: &mut Store<S>) -> Result<u64, Finding> {
    let applied = store.applied_state().await;
    let (applied, _) = applied.map_err(|error| Finding::Unread(error.to_string()))?;
    let count = applied.map_or(0, |id| id.index + 1);
    subject.check(store, count).await?;
    Ok(count)
}

#[derive(Debug, Default)]
struct Model {
    /// Entries that are acknowledged as durable in the log.
    appended: u64,
    /// Entries of the newest snapshot that was returned.
    snapshot: u64,
    /// Entries of installs that have started.
    installing: Option<u64>,
    /// Entries that were purged.
    purged: u64,
    returned: u64,
    cuts_in_snapshots: u64,
    is_in_snapshot: bool,
}

type SharedModel = Rc<RefCell<Model>>;

fn options<S: Subject>(subject: &S) -> Options {
    Options::new()
        .memory_bytes_max(Options::MEMORY_BYTES_MIN)
        .memtable_bytes(subject.memtable_bytes())
        .log_segment_bytes(64 << 10)
        .clock(|| 1_000_000)
}

async fn open<S: Subject>(subject: &S, engine: &Engine) -> Result<(Log<S>, Store<S>), String> {
    let text = |error: forebay_raft::Error| error.to_string();
    let groups = forebay_wal::Options::new().log_id(7);
    let log = LogOptions::new().segment_bytes(64 << 10).tail_bytes_max(8 << 10).wal(groups);
    let log = RaftLog::open(engine, LOG, log).await.map_err(text)?;
    let store = RaftStore::open(engine, STATE, options(subject), subject.machine()).await.map_err(text)?;
    Ok((log, store))
}

/// Applies entries, without clients that wait.
async fn apply<S: Subject>(store: &mut Store<S>, entries: Vec<Entry<S>>) -> io::Result<()> {
    store.apply(futures_util::stream::iter(entries.into_iter().map(|entry| Ok((entry, None))))).await
}

/// Checks log and state after a crash, and brings the state to where it was as openraft does.
async fn recover<S: Subject>(
    subject: &S,
    engine: &Engine,
    log: &mut Log<S>,
    store: &mut Store<S>,
    model: &SharedModel,
) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let count = check(subject, store).await.map_err(Finding::text)?;
    let snapshot = store.get_current_snapshot().await.map_err(text)?;
    let in_snapshot =
        snapshot.as_ref().and_then(|found| found.meta.last_log_id.as_ref()).map_or(0, |id| id.index + 1);
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
        log.purge(log_id::<S>(count - 1)).await.map_err(text)?;
    } else if count < next {
        let entries = log.try_get_log_entries(count..next).await.map_err(text)?;
        if !entries.iter().map(RaftEntry::log_id).eq((count..next).map(|index| log_id::<S>(index))) {
            return Err(format!("the log has {entries:?} from {count} on"));
        }
        apply::<S>(store, entries).await.map_err(text)?;
    }
    let all = check(subject, store).await.map_err(Finding::text)?;
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
async fn of_another_node<S: Subject>(
    subject: &S,
    engine: &Engine,
    count: u64,
    salt: u64,
) -> Result<(Store<S>, SnapshotMetaOf<S::Types>, RaftSnapshot), String> {
    let text = |error: io::Error| error.to_string();
    let dir = format!("{OTHER}-{salt}");
    let mut other = RaftStore::open(engine, dir, options(subject), subject.machine())
        .await
        .map_err(|error| error.to_string())?;
    let (applied, _) = other.applied_state().await.map_err(text)?;
    let from = applied.map_or(0, |id| id.index + 1);
    apply::<S>(&mut other, (from..count).map(|index| nth(subject, index)).collect()).await.map_err(text)?;
    let built = other.build_snapshot().await.map_err(text)?;
    Ok((other, built.meta, built.snapshot))
}

async fn live<S: Subject>(
    subject: &S,
    engine: Engine,
    model: SharedModel,
    plan: Plan,
    seed: u64,
) -> Result<(), String> {
    let (mut log, mut store) = open(subject, &engine).await?;
    recover(subject, &engine, &mut log, &mut store, &model).await?;
    plan.rules.iter().cloned().for_each(sim::inject);
    let mut draw = Draw::new(seed);
    for step in 0..plan.steps {
        let applied = store.applied_state().await.map_err(|error| error.to_string())?.0;
        let next = applied.map_or(0, |id| id.index + 1);
        let done: io::Result<()> = match draw.below(10) {
            0..5 => {
                let after = next + 1 + draw.below(12);
                let entries = || (next..after).map(|index| nth(subject, index)).collect::<Vec<_>>();
                let appended = log.blocking_append(entries()).await;
                match appended {
                    Ok(()) => {
                        model.borrow_mut().appended = after;
                        // A snapshot is built while entries are applied, as openraft does.
                        if draw.below(3) == 0 {
                            model.borrow_mut().is_in_snapshot = true;
                            let mut builder = store.clone();
                            let building = sim::spawn(async move { builder.build_snapshot().await });
                            let applied = apply::<S>(&mut store, entries()).await;
                            let built = building.await.map_err(|error| error.to_string())?;
                            let mut model = model.borrow_mut();
                            model.is_in_snapshot = false;
                            built
                                .map(|built| {
                                    model.snapshot = built.meta.last_log_id.map_or(0, |id| id.index + 1);
                                })
                                .and(applied)
                        } else {
                            apply::<S>(&mut store, entries()).await
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
                let purged = log.purge(log_id::<S>(upto - 1)).await;
                purged.map(|()| model.borrow_mut().purged = upto)
            }
            7 => {
                // A snapshot of another node that is ahead; it is copied part by part.
                let count = next + 1 + draw.below(10);
                let (other, meta, snapshot) =
                    match of_another_node(subject, &engine, count, seed ^ step).await {
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
                        match check(subject, &mut store).await {
                            Ok(there) if there == count => {}
                            Ok(_) => {
                                return Err(format!("{count} entries were installed, and are not there"));
                            }
                            Err(Finding::Wrong(why)) => return Err(why),
                            // The installed entries are there nevertheless.
                            Err(Finding::Unread(_)) if !plan.rules.is_empty() => {}
                            Err(Finding::Unread(why)) => return Err(why),
                        }
                        let purged = log.purge(log_id::<S>(count - 1)).await;
                        purged.map(|()| {
                            let mut model = model.borrow_mut();
                            (model.purged, model.appended) = (count, model.appended.max(count));
                        })
                    }
                    Err(error) => Err(error),
                }
            }
            8 => match check(subject, &mut store).await {
                Err(Finding::Wrong(why)) => return Err(why),
                Err(Finding::Unread(why)) => Err(io::Error::other(why)),
                Ok(_) => Ok(()),
            },
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

/// Runs the world of a seed: four lives of a node, with power cuts between and within them. `cuts` counts those within a snapshot.
///
/// # Errors
/// What was found to be wrong.
pub fn attempt<S: Subject>(
    world: &mut World,
    subject: &S,
    trouble: Trouble,
    cuts: &Rc<RefCell<u64>>,
) -> Result<(), String> {
    let config = Config::new().shards(2).arena_bytes_max(64 << 20);
    let empty = std::mem::replace(world, World::new(world.seed()));
    *world = empty.config(config);
    let mut draw = Draw::new(world.seed());
    world.add_disk(worlds::disk(&mut draw));
    let model = SharedModel::default();
    for life in 0..LIVES {
        let wrong = |text: String| format!("life {life} of a world of {trouble:?}: {text}");
        let last = life + 1 == LIVES;
        let has_faults = trouble == Trouble::Errors || draw.below(2) == 0;
        let rules = if has_faults { trouble.faults(&mut draw, 500, 200) } else { Vec::new() };
        let rules = if last { Vec::new() } else { rules };
        let plan = Plan { rules, steps: if last { 4 } else { 14 } };
        if !last {
            world.power_cut_at_operation(1 + draw.below(900));
        }
        let seed = world.seed() ^ life << 50;
        let live = async |engine| live(subject, engine, model.clone(), plan, seed).await;
        worlds::live(world, !last, live).map_err(wrong)?;
    }
    *cuts.borrow_mut() += model.borrow().cuts_in_snapshots;
    match model.borrow().returned {
        0 => Err("nothing ever returned".into()),
        _ => Ok(()),
    }
}

/// Runs the worlds of the first `seeds` seeds, and shrinks the first that fails. `subject` makes the subject of a seed.
///
/// # Panics
/// If a world failed, or hardly any power cut was within a snapshot.
pub fn explore<S: Subject>(trouble: Trouble, seeds: u64, subject: impl Fn(u64) -> S) {
    let cuts = Rc::default();
    worlds::explore(seeds, |world| {
        let subject = subject(world.seed());
        attempt(world, &subject, trouble, &cuts)
    });
    let cuts = *cuts.borrow();
    assert!(worlds::is_single() || cuts > seeds / 4, "the power failed only {cuts} times within a snapshot");
}
