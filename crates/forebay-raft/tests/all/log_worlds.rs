//! Shows: after any crash a log is as it was after one of its changes, the last acknowledged change or a later change. So a vote
//! never reverts, an acknowledged entry is there, a truncated suffix never returns and purged entries stay purged. How: simulated
//! worlds in which disks tear, lose and refuse writes and the power fails; a model has the state after each change.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use crate::common::{WorldTypes, entry, log_id};
use forebay::Engine;
use forebay_raft::{LogOptions, RaftLog};
use forebay_sim::{self as sim, Rule, World};
use forebay_test::worlds::{self, Draw, Trouble};
use futures_util::FutureExt;
use openraft::alias::{LogIdOf, OneshotReceiverOf, VoteOf};
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, RaftLogReader, RaftLogStorage, RaftLogStorageExt};
use openraft::type_config::TypeConfigExt;

type C = WorldTypes;
type Log = RaftLog<C>;

const DIR: &str = "/disk/log";
const LIVES: u64 = 4;

/// A log as it is after one of its changes.
#[derive(Clone, Debug, Default, PartialEq)]
struct State {
    vote: Option<VoteOf<C>>,
    /// The committed log id that was saved before the last append.
    committed: Option<LogIdOf<C>>,
    purged: Option<LogIdOf<C>>,
    /// Of each entry its log id, and which one it is.
    entries: VecDeque<(LogIdOf<C>, u64)>,
}

impl State {
    fn next(&self) -> u64 {
        let last = self.entries.back().map(|(id, _)| id).or(self.purged.as_ref());
        last.map_or(0, |id| id.index + 1)
    }

    fn last(&self) -> Option<LogIdOf<C>> {
        self.entries.back().map(|(id, _)| *id).or(self.purged)
    }
}

/// All states since the last open, in order, and the first one that is durable for certain.
#[derive(Debug)]
struct Model {
    states: Vec<State>,
    durable: usize,
    entries: u64,
    acknowledged: u64,
    cuts_seen: u64,
}

impl Model {
    fn now(&self) -> &State {
        self.states.last().expect("the first state")
    }

    /// Adds the state after a change. Returns its number.
    fn change(&mut self, change: impl FnOnce(&mut State)) -> usize {
        let mut state = self.now().clone();
        change(&mut state);
        self.states.push(state);
        self.states.len() - 1
    }

    fn acknowledge(&mut self, state: usize) {
        self.durable = self.durable.max(state);
        self.acknowledged += 1;
    }
}

type SharedModel = Rc<RefCell<Model>>;

fn data(number: u64) -> String {
    let length = match worlds::mix(number) % 9 {
        0 => 0,
        1 => 6_000,
        length => 40 * length,
    };
    format!("{number} {}", "x".repeat(length as usize))
}

type Entries = VecDeque<(LogIdOf<C>, u64)>;

/// Returns the entries of a log, or the error of the read.
async fn entries_of(log: &mut Log) -> Result<std::io::Result<Entries>, String> {
    let entries = match log.try_get_log_entries(..).await {
        Ok(entries) => entries,
        Err(error) => return Ok(Err(error)),
    };
    let number = |entry: &<C as openraft::RaftTypeConfig>::Entry| -> Result<u64, String> {
        let openraft::EntryPayload::Normal(text) = &entry.payload else {
            return Err(format!("another kind of entry: {entry}"));
        };
        let number = text.split(' ').next().and_then(|number| number.parse().ok());
        number.filter(|number| data(*number) == *text).ok_or_else(|| format!("another entry: {text}"))
    };
    let entries = entries.iter().map(|entry| Ok((entry.log_id(), number(entry)?)));
    entries.collect::<Result<Entries, String>>().map(Ok)
}

/// Checks an open log against the model after a crash, and continues with the state that was found.
async fn judge(log: &mut Log, model: &SharedModel) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let found = State {
        vote: log.read_vote().await.map_err(text)?,
        committed: log.read_committed().await.map_err(text)?,
        purged: log.get_log_state().await.map_err(text)?.last_purged_log_id,
        entries: entries_of(log).await?.map_err(text)?,
    };
    let last = log.get_log_state().await.map_err(text)?.last_log_id;
    if last != found.last() {
        return Err(format!("the last log id is {last:?}, the entries end with {:?}", found.last()));
    }
    let mut model = model.borrow_mut();
    let Some(at) = model.states.iter().rposition(|state| *state == found) else {
        return Err(format!("the log never was {found:?}; the last state was {:?}", model.now()));
    };
    if at < model.durable {
        let acknowledged = &model.states[model.durable];
        return Err(format!("the log went back to {found:?}, after {acknowledged:?} was acknowledged"));
    }
    model.cuts_seen += u64::from(model.states.len() > 1);
    (model.states, model.durable) = (vec![found], 0);
    Ok(())
}

#[derive(Clone)]
struct Plan {
    rules: Vec<Rule>,
    steps: u64,
    closes: bool,
    segment_bytes: u64,
    tail_bytes_max: usize,
}

/// An append whose callback was not called yet, by the state after it.
type InFlight = VecDeque<(usize, OneshotReceiverOf<C, std::io::Result<()>>)>;

/// Collects the callbacks that were called. Returns whether all succeeded.
fn reap(flying: &mut InFlight, model: &SharedModel) -> Result<bool, String> {
    let (mut is_good, mut is_behind) = (true, false);
    let mut left = InFlight::new();
    for (state, mut receiver) in flying.drain(..) {
        match (&mut receiver).now_or_never() {
            Some(_) if is_behind => return Err("a callback was called before an earlier one".into()),
            Some(done) => match done.map_err(|_| "a callback was dropped".to_string())? {
                Ok(()) => model.borrow_mut().acknowledge(state),
                Err(_) => is_good = false,
            },
            None => {
                is_behind = true;
                left.push_back((state, receiver));
            }
        }
    }
    *flying = left;
    Ok(is_good)
}

async fn live(engine: Engine, model: SharedModel, plan: Plan, seed: u64) -> Result<(), String> {
    let options = LogOptions::new()
        .segment_bytes(plan.segment_bytes)
        .tail_bytes_max(plan.tail_bytes_max)
        .pending_bytes_max(64 << 10)
        .read_bytes_max(4 << 10)
        .wal(forebay_wal::Options::new().log_id(7).group_bytes_max(16 << 10));
    let mut log = Log::open(&engine, DIR, options).await.map_err(|error| format!("an open: {error}"))?;
    judge(&mut log, &model).await?;
    plan.rules.iter().cloned().for_each(sim::inject);
    let (mut draw, mut flying) = (Draw::new(seed), InFlight::new());
    let mut is_good = true;
    for _ in 0..plan.steps {
        if !reap(&mut flying, &model)? {
            is_good = false;
        }
        if !is_good {
            break;
        }
        let now = model.borrow().now().clone();
        let term = now.vote.as_ref().map_or(0, |vote| vote.leader_id.term);
        let done = match draw.below(15) {
            0..6 => append(&mut log, &model, &mut flying, 1 + draw.below(4), term).await,
            6 => {
                let vote = VoteOf::<C>::new_committed(term + 1, 1);
                let state = model.borrow_mut().change(|state| state.vote = Some(vote));
                let saved = log.save_vote(&vote).await;
                saved.map(|()| model.borrow_mut().acknowledge(state))
            }
            7 => {
                let (first, next) = (now.purged.map_or(0, |id| id.index + 1), now.next());
                let from = first + draw.below(next - first + 1);
                let last = now.entries.iter().map(|(id, _)| *id).take_while(|id| id.index < from).last();
                let last = last.or(now.purged);
                if from == next {
                    // Nothing to remove, so nothing is waited for: appends before it may be lost.
                    log.truncate_after(last)
                        .await
                        .map_err(|error| format!("an empty truncation: {error}"))?;
                    continue;
                }
                let state =
                    model.borrow_mut().change(|state| state.entries.retain(|(id, _)| id.index < from));
                let truncated = log.truncate_after(last).await;
                truncated.map(|()| model.borrow_mut().acknowledge(state))
            }
            8 => {
                let Some(first) = now.entries.front().map(|(id, _)| id.index) else { continue };
                let upto = match draw.below(8) {
                    // A snapshot was installed that is ahead of the log.
                    0 => log_id::<C>(term, now.next() + draw.below(3)),
                    _ => now.entries[draw.below(now.next() - first) as usize].0,
                };
                let state = model.borrow_mut().change(|state| {
                    state.purged = Some(upto);
                    state.entries.retain(|(id, _)| id.index > upto.index);
                });
                let purged = log.purge(upto).await;
                purged.map(|()| model.borrow_mut().acknowledge(state))
            }
            9 => match now.last() {
                Some(last) => log.save_committed(Some(last)).await,
                None => Ok(()),
            },
            10 => {
                let found = match entries_of(&mut log).await? {
                    Ok(found) => found,
                    // The disk may refuse reads in this world.
                    Err(_) if !plan.rules.is_empty() => continue,
                    Err(error) => return Err(format!("a read: {error}")),
                };
                if found != now.entries {
                    return Err(format!("{found:?} was read, and there are {:?}", now.entries));
                }
                let Some(first) = now.entries.front().map(|(id, _)| id.index) else { continue };
                let start = first + draw.below(now.next() - first);
                let some = log.limited_get_log_entries(start, now.next()).await;
                let Ok(some) = some else { continue };
                if some.first().map(|entry| entry.log_id().index) != Some(start) {
                    return Err(format!("a read from {start} on has {some:?}"));
                }
                Ok(())
            }
            _ => {
                let _ = sim::sleep(Duration::from_micros(draw.below(3_000))).await;
                Ok(())
            }
        };
        is_good = done.is_ok();
    }
    sim::clear_faults();
    if plan.closes || !is_good {
        let closed = log.close().await;
        let all = reap(&mut flying, &model)?;
        if !flying.is_empty() {
            return Err(format!("{} callbacks were never called", flying.len()));
        }
        if is_good && all && closed.is_ok() {
            // The close saves the committed log id.
            let committed = log.inner_committed().await;
            let state = model.borrow_mut().change(|state| state.committed = committed);
            model.borrow_mut().acknowledge(state);
        } else if log.get_log_state().await.is_ok() && !all {
            return Err("a log goes on after a failed flush".into());
        }
    }
    Ok(())
}

/// The committed log id, also of a closed log.
trait CommittedId {
    async fn inner_committed(&mut self) -> Option<LogIdOf<C>>;
}

impl CommittedId for Log {
    async fn inner_committed(&mut self) -> Option<LogIdOf<C>> {
        self.read_committed().await.ok().flatten()
    }
}

async fn append(
    log: &mut Log,
    model: &SharedModel,
    flying: &mut InFlight,
    count: u64,
    term: u64,
) -> std::io::Result<()> {
    let next = model.borrow().now().next();
    let committed = log.read_committed().await?;
    let mut entries = Vec::new();
    for index in next..next + count {
        let mut model = model.borrow_mut();
        model.entries += 1;
        let number = model.entries;
        // Any number of them may be in the log after a crash.
        model.change(|state| {
            state.committed = committed;
            state.entries.push_back((log_id::<C>(term, index), number));
        });
        entries.push(entry::<C>(term, index, data(number)));
    }
    let (sender, receiver) = C::oneshot();
    let appended = log.append(entries, IOFlushed::signal(sender)).await;
    let state = model.borrow().states.len() - 1;
    appended.map(|()| flying.push_back((state, receiver)))
}

fn attempt(world: &mut World, trouble: Trouble, cuts_seen: &Rc<RefCell<u64>>) -> Result<(), String> {
    let mut draw = Draw::new(world.seed());
    world.add_disk(worlds::disk(&mut draw));
    let model =
        Model { states: vec![State::default()], durable: 0, entries: 0, acknowledged: 0, cuts_seen: 0 };
    let model = Rc::new(RefCell::new(model));
    let (segment_bytes, tail_bytes_max) =
        ([64 << 10, 128 << 10][draw.below(2) as usize], draw.below(3) * 20_000);
    for life in 0..LIVES {
        let wrong = |text: String| format!("life {life} of a world of {trouble:?}: {text}");
        let last = life + 1 == LIVES;
        let rules = trouble.faults(&mut draw, 5_000, 60);
        let plan = Plan {
            rules: if last { Vec::new() } else { rules },
            steps: if last { 5 } else { 40 },
            closes: last || draw.below(5) == 0,
            segment_bytes,
            tail_bytes_max: tail_bytes_max as usize,
        };
        if !plan.closes {
            match draw.below(3) {
                0 => world.power_cut_after(Duration::from_micros(draw.below(30_000))),
                _ => world.power_cut_at_operation(1 + draw.below(80)),
            }
        }
        let (is_cut, seed) = (!plan.closes, world.seed() ^ life << 50);
        let live = async |engine| live(engine, model.clone(), plan, seed).await;
        worlds::live(world, is_cut, live).map_err(wrong)?;
    }
    *cuts_seen.borrow_mut() += model.borrow().cuts_seen;
    match model.borrow().acknowledged {
        0 => Err("nothing was ever acknowledged".into()),
        _ => Ok(()),
    }
}

fn explore(trouble: Trouble, seeds: u64) {
    let seen = Rc::default();
    worlds::explore(seeds, |world| attempt(world, trouble, &seen));
    let seen = *seen.borrow();
    assert!(worlds::is_single() || seen > seeds, "only {seen} logs had changed when the power failed");
}

#[test]
fn a_crash_leaves_a_state_that_was_and_all_that_was_acknowledged() {
    explore(Trouble::Crashes, 200);
}

#[test]
fn the_same_on_disks_that_fail() {
    explore(Trouble::Errors, 200);
}

/// A full read across an unreadable place of the disk returned the entries before it, as if no others existed: openraft would have
/// used them as the whole range. Found by the worlds above.
#[test]
fn a_read_that_fails_on_its_way_is_an_error() {
    worlds::explore(20, |world| {
        world.add_disk(forebay_sim::Profile::nand().at("/disk"));
        let run = world.run(async |engine: Engine| {
            let groups = forebay_wal::Options::new().group_bytes_max(16 << 10);
            let options = LogOptions::new().segment_bytes(64 << 10).tail_bytes_max(0).wal(groups);
            let mut log = Log::open(&engine, DIR, options).await.map_err(|error| error.to_string())?;
            let entries: Vec<_> = (0..200).map(|index| entry::<C>(1, index, "x".repeat(4000))).collect();
            log.blocking_append(entries).await.map_err(|error| error.to_string())?;
            sim::inject(Rule::new(forebay_sim::Fault::ReadError).chance_ppm(400_000));
            let read = log.try_get_log_entries(..).await;
            match read {
                Ok(entries) if entries.len() < 200 => Err(format!("{} entries of 200", entries.len())),
                _ => Ok(()),
            }
        });
        run.map_err(|failure| failure.to_string())?
    });
}

/// A read that started before entries that a running purge removes failed, until the purge was durable: for openraft an error of
/// the log ends the node.
#[test]
fn entries_are_read_while_a_purge_is_under_way() {
    worlds::explore(20, |world| {
        world.add_disk(forebay_sim::Profile::nand().at("/disk"));
        let run = world.run(async |engine: Engine| {
            let text = |error: std::io::Error| error.to_string();
            let log = Log::open(&engine, DIR, LogOptions::new()).await.map_err(|error| error.to_string())?;
            let (mut writer, mut reader) = (log.clone(), log.clone());
            let entries = (0..100).map(|index| entry::<C>(1, index, "x"));
            writer.blocking_append(entries).await.map_err(|error| error.to_string())?;
            let is_over = std::cell::Cell::new(false);
            let purge = async {
                let purged = writer.purge(log_id::<C>(1, 59)).await;
                is_over.set(true);
                purged.map_err(text)
            };
            let reads = async {
                let mut firsts = Vec::new();
                while !is_over.get() {
                    let found = reader.try_get_log_entries(0..80).await.map_err(text)?;
                    firsts.push(found.first().map(|entry| entry.log_id().index));
                    // Time passes while the device works.
                    drop(sim::sleep(Duration::from_micros(1)).await);
                }
                Ok(firsts)
            };
            let (purged, firsts): (_, Result<Vec<_>, String>) = futures_util::join!(purge, reads);
            purged?;
            let firsts = firsts?;
            let is_hidden_early = firsts.contains(&Some(60));
            let right = firsts.iter().all(|first| [Some(0), Some(60)].contains(first));
            if right && is_hidden_early { Ok(()) } else { Err(format!("the first entries were {firsts:?}")) }
        });
        run.map_err(|failure| failure.to_string())?
    });
}

#[test]
fn worlds_repeat_themselves() {
    worlds::repeats_itself(|world| attempt(world, Trouble::Errors, &Rc::default()));
}

/// Test of the oracle: a log with a deliberate fault is caught in the worlds that CI runs, and the correct log passes the same
/// worlds.
#[cfg(feature = "_mutants")]
mod broken {
    use forebay_raft::mutants::{self, Mutant};

    use super::*;

    fn is_caught(mutant: Mutant) {
        let attempt = |world: &mut World| attempt(world, Trouble::Crashes, &Rc::default());
        worlds::is_caught(mutant, 200, |run| mutants::with(mutant, run), attempt);
    }

    #[test]
    fn a_vote_that_is_not_synced_is_caught() {
        is_caught(Mutant::VoteNotSynced);
    }

    #[test]
    fn a_truncation_that_is_not_synced_is_caught() {
        is_caught(Mutant::TruncateNotSynced);
    }

    #[test]
    fn a_purge_that_is_not_synced_is_caught() {
        is_caught(Mutant::PurgeNotSynced);
    }

    #[test]
    fn an_append_that_is_acknowledged_early_is_caught() {
        is_caught(Mutant::AppendAcknowledgedEarly);
    }
}
