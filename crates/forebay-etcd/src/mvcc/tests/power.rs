//! Shows: after power cuts at any point the state is the model's after the entry that its log id names, the log has every acknowledged entry, and
//! the entries that follow have the model's outcomes. How: random requests in simulated worlds (`forebay_test::raft_worlds`), whose power fails
//! while entries are applied, compactions are cleaned up, snapshots are built and installed.
//!
//! `FOREBAY_SIM_SEEDS=500` runs more worlds.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};

use forebay_kv::{Batch, Keyspace};
use forebay_raft::mutants::{self, Mutant};
use forebay_raft::{Apply, RaftStore};
use forebay_test::raft_worlds::{Finding, Subject, attempt, explore};
use forebay_test::worlds::{self, Trouble};
use openraft::alias::{EntryOf, LogIdOf};
use openraft::entry::RaftEntry;

use super::harness::{LIMITS, Recorder, range};
use super::model::Model;
use super::random::{Random, is_proposed};
use crate::mvcc::{Failure, Machine, View};
use crate::proto::etcdserverpb::RangeRequest;
use crate::proto::peer::Outcome;
use crate::proto::peer::command::Change;
use crate::types::{Command, Types};

/// Worlds of each kind of trouble.
const SEEDS: u64 = 12;
/// Worlds in which a defect must be found.
const SEEDS_OF_DEFECTS: u64 = 120;

/// How the machine works: as it should, or wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Sound,
    /// It does not learn the state's numbers when it is opened with one.
    ForgetsNumbers,
    /// The changes of some entries are not written, although their outcomes say so.
    LosesChanges,
}

/// The requests of a world with the model's outcomes, which grow as they are needed.
struct Script {
    random: Random,
    changes: Vec<(Change, Outcome)>,
    /// The model after all of them.
    last: Model,
    /// The model after the first `count`.
    model: Model,
    count: usize,
    /// What was wrong with an outcome.
    wrong: Option<String>,
}

impl Script {
    /// Returns the change with this number, and its outcome.
    fn change(&mut self, number: usize) -> &(Change, Outcome) {
        while self.changes.len() <= number {
            let change = self.random.change(&self.last);
            if is_proposed(&change) {
                let outcome = self.last.apply(&change);
                self.changes.push((change, outcome));
            }
        }
        &self.changes[number]
    }

    /// Returns the model after the first `count` changes.
    fn after(&mut self, count: usize) -> Model {
        if count < self.count {
            (self.model, self.count) = (Model::new(), 0);
        }
        for (change, _) in &self.changes[self.count..count] {
            self.model.apply(change);
        }
        self.count = count;
        self.model.clone()
    }
}

/// The machine on random requests.
#[derive(Clone)]
struct Requests {
    script: Arc<Mutex<Script>>,
    way: Way,
}

impl Requests {
    fn new(seed: u64, way: Way) -> Requests {
        let random = if way == Way::Sound { Random::raising(seed) } else { Random::new(seed) };
        let changes = Vec::new();
        let script =
            Script { random, changes, last: Model::new(), model: Model::new(), count: 0, wrong: None };
        Requests { script: Arc::new(Mutex::new(script)), way }
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }
}

/// The machine, whose outcomes are compared.
struct CheckedMachine {
    machine: Machine,
    requests: Requests,
}

impl Apply<Types> for CheckedMachine {
    fn keyspaces(&self) -> Vec<String> {
        self.machine.keyspaces()
    }

    async fn opened(&self, keyspaces: &[Keyspace]) -> io::Result<()> {
        let view = View::of_keyspaces(keyspaces.into()).await?;
        if self.requests.way == Way::ForgetsNumbers && view.revision() > 1 {
            return Ok(());
        }
        self.machine.opened(keyspaces).await
    }

    async fn prepare(&self, entries: &[EntryOf<Types>], keyspaces: &[Keyspace]) -> io::Result<()> {
        self.machine.prepare(entries, keyspaces).await
    }

    async fn apply(
        &self,
        entry: EntryOf<Types>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<Outcome> {
        let index = entry.log_id().index;
        let outcome = self.machine.apply(entry, keyspaces, batch).await?;
        if self.requests.way == Way::LosesChanges && index % 16 == 15 {
            batch.clear();
        }
        let mut script = self.requests.script();
        let (change, expected) = script.change(index as usize);
        if outcome != *expected {
            let text = format!("entry {index}, {change:?}, has the outcome {outcome:?}, not {expected:?}");
            script.wrong.get_or_insert(text);
        }
        Ok(outcome)
    }

    fn applied(&self, log_id: &LogIdOf<Types>) {
        self.machine.applied(log_id);
    }
}

impl Subject for Requests {
    type Types = Types;
    type Machine = CheckedMachine;

    fn machine(&self) -> CheckedMachine {
        CheckedMachine { machine: Machine::new(Arc::<Recorder>::default(), LIMITS), requests: self.clone() }
    }

    fn entry(&self, id: LogIdOf<Types>) -> EntryOf<Types> {
        let (change, _) = self.script().change(id.index as usize).clone();
        EntryOf::<Types>::new_normal(id, Command::new(change))
    }

    fn memtable_bytes(&self) -> u64 {
        // Some values have 20,000 bytes.
        64 << 10
    }

    async fn check(&self, store: &RaftStore<Types, CheckedMachine>, count: u64) -> Result<(), Finding> {
        let model = {
            let mut script = self.script();
            if let Some(wrong) = &script.wrong {
                return Err(Finding::Wrong(wrong.clone()));
            }
            script.after(count as usize)
        };
        match compare(store, &model).await {
            Err(Finding::Wrong(why)) => Err(Finding::Wrong(format!("after {count} entries: {why}"))),
            compared => compared,
        }
    }
}

/// Compares all that can be read: keys at every third revision since the last compaction, all events since, and leases with their keys.
async fn compare(store: &RaftStore<Types, CheckedMachine>, model: &Model) -> Result<(), Finding> {
    let text = |failure: Failure| match failure {
        Failure::Store(error) => Finding::Unread(error.to_string()),
        other => Finding::Wrong(format!("{other:?}")),
    };
    let wrong = |why: String| Err(Finding::Wrong(why));
    let view = View::of_keyspaces(store.keyspaces()).await.map_err(text)?;
    let numbers = ((view.revision(), view.compacted()), (model.revision, model.compacted));
    if numbers.0 != numbers.1 {
        return wrong(format!("revision and compacted revision are {:?}, not {:?}", numbers.0, numbers.1));
    }
    let first = model.compacted.max(1);
    for revision in (first..=model.revision).rev().step_by(3) {
        let request = RangeRequest { revision, ..range([0], [0]) };
        let (found, expected) = (view.range(&request).await.map_err(text)?, model.range(&request));
        if Ok(&found) != expected.as_ref() {
            return wrong(format!("at revision {revision} there is {found:?}, not {expected:?}"));
        }
    }
    let (events, next) = view.events(first, |_| true, usize::MAX).await.map_err(text)?;
    if events != model.events(first) || next != model.revision + 1 {
        return wrong(format!(
            "events from {first} are {events:?} up to {next}, not {:?}",
            model.events(first)
        ));
    }
    let mut leases = view.leases().await.map_err(text)?;
    leases.sort_unstable();
    if !leases.iter().copied().eq(model.leases.clone()) {
        return wrong(format!("leases are {leases:?}, not {:?}", model.leases));
    }
    for (id, _) in leases {
        let (found, expected) = (view.lease_keys(id).await.map_err(text)?, model.lease_keys(id));
        if found != expected {
            return wrong(format!("lease {id} has the keys {found:?}, not {expected:?}"));
        }
    }
    Ok(())
}

#[test]
fn a_power_cut_leaves_the_state_of_one_entry() {
    explore(Trouble::Crashes, SEEDS, |seed| Requests::new(seed, Way::Sound));
}

#[test]
fn the_same_on_disks_that_fail() {
    explore(Trouble::Errors, SEEDS, |seed| Requests::new(seed, Way::Sound));
}

/// Checks that a machine that is wrong on purpose is found.
fn is_found(way: Way) {
    let now = Cell::new(Way::Sound);
    let broken = |run: &dyn Fn() -> Result<(), String>| {
        now.set(way);
        let result = run();
        now.set(Way::Sound);
        result
    };
    worlds::is_caught(way, SEEDS_OF_DEFECTS, broken, |world| {
        let requests = Requests::new(world.seed(), now.get());
        attempt(world, &requests, Trouble::Crashes, &Rc::default())
    });
}

#[test]
fn a_machine_that_forgets_its_numbers_is_found() {
    is_found(Way::ForgetsNumbers);
}

#[test]
fn a_machine_that_loses_changes_is_found() {
    is_found(Way::LosesChanges);
}

/// A state whose log id is not written together with its changes.
#[test]
fn a_log_id_behind_its_data_is_found() {
    let mutant = Mutant::AppliedBehindData;
    worlds::is_caught(
        mutant,
        SEEDS_OF_DEFECTS,
        |run| mutants::with(mutant, run),
        |world| {
            let requests = Requests::new(world.seed(), Way::Sound);
            attempt(world, &requests, Trouble::Crashes, &Rc::default())
        },
    );
}
