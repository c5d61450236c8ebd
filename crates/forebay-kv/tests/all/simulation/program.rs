//! The program of a world's life: opens the store, works on it from several tasks, and closes it or not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use forebay::Engine;
use forebay_kv::{Error, ErrorKind, Snapshot, SwapOutcome};
use forebay_sim::{self as sim, Rule};

use crate::simulation::model::{At, KEYS, Model, OPEN_MAX, SPACES, State, WRITERS};
use crate::simulation::store::{Open, Shape, bytes, is_failure, is_full, key, number, rest};

/// The model, which all tasks of a life share.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedModel(Arc<Mutex<Model>>);

/// The parameters of a life.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) shape: Shape,
    /// Faults in force while the tasks work on the store.
    pub(crate) rules: Vec<Rule>,
    /// Whether the faults are in force during the open, too.
    pub(crate) from_the_start: bool,
    /// Whether the power may fail while the tasks work.
    pub(crate) may_cut: bool,
    pub(crate) phases: u64,
    /// Maximum steps of a writer in a phase.
    pub(crate) steps: u64,
}

/// The reason why a task or a life stopped.
pub(crate) enum Stop {
    /// The store failed, as it may on a failing disk.
    Failed(Error),
    /// The store violated its guarantees.
    Wrong(String),
}

impl From<String> for Stop {
    fn from(text: String) -> Stop {
        Stop::Wrong(text)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        if is_failure(&error) { Stop::Failed(error) } else { Stop::Wrong(format!("unexpected: {error:?}")) }
    }
}

impl SharedModel {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Model> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Runs a life.
pub(crate) async fn live(engine: Engine, shared: SharedModel, plan: Plan) -> Result<(), String> {
    if plan.from_the_start {
        plan.rules.iter().cloned().for_each(sim::inject);
    }
    let mut open = begin(&engine, &shared, &plan).await?;
    if !plan.from_the_start {
        plan.rules.iter().cloned().for_each(sim::inject);
    }
    for _ in 0..plan.phases {
        match work(&open, &shared, &plan).await {
            Ok(()) => {}
            Err(Stop::Wrong(text)) => return Err(text),
            Err(Stop::Failed(first)) => {
                sim::clear_faults();
                if open.store.stats().failed.is_some() {
                    read_only(&open, &shared, &first).await?;
                }
                let _ = open.store.close().await;
                drop(open);
                open = begin(&engine, &shared, &plan).await?;
            }
        }
        if sim::random(3) == 0 {
            match open.store.close().await {
                Ok(()) => closed(&open).await?,
                Err(error) if is_failure(&error) => sim::clear_faults(),
                Err(error) => return Err(format!("closing: {error:?}")),
            }
            drop(open);
            open = begin(&engine, &shared, &plan).await?;
        } else if sim::random(8) == 0 {
            drop(open);
            open = begin(&engine, &shared, &plan).await?;
        }
    }
    Ok(())
}

/// Opens the store, with retries until it succeeds, and judges its contents.
async fn begin(engine: &Engine, shared: &SharedModel, plan: &Plan) -> Result<Open, String> {
    let (mut failures, mut locked) = (0, 0);
    loop {
        let error = match Open::open(engine, plan.shape).await {
            Ok(open) => match judge(&open, shared).await {
                Ok(()) => return Ok(open),
                Err(Stop::Wrong(text)) => return Err(text),
                Err(Stop::Failed(error)) => {
                    let _ = open.store.close().await;
                    error
                }
            },
            Err(error) => error,
        };
        match error.kind() {
            // A store whose last handle was dropped closes in the background.
            ErrorKind::Locked if locked < 1_000 => {
                locked += 1;
                rest(2_000).await;
            }
            _ if is_failure(&error) && failures < 3 => {
                failures += 1;
                sim::clear_faults();
            }
            _ => return Err(format!("opening: {error:?}")),
        }
    }
}

async fn judge(open: &Open, shared: &SharedModel) -> Result<(), Stop> {
    for writer in 0..WRITERS {
        let found = open.content(writer).await??;
        shared.lock().opened(writer, found)?;
    }
    Ok(())
}

/// Checks that a store that failed refuses every write with the first cause, and can still be read.
async fn read_only(open: &Open, shared: &SharedModel, first: &Error) -> Result<(), String> {
    let at = (0, 0);
    let answers = [
        ("put", open.write(0, &[(at, Some(1))]).await.err()),
        ("delete", open.write(0, &[(at, None)]).await.err()),
        ("batch", open.write(0, &[(at, None), ((1, 1), None)]).await.err()),
        ("keyspace", open.store.keyspace("another").await.err()),
        ("flush", open.store.flush().await.err()),
    ];
    let cause = open.store.stats().failed.map(|error| error.to_string());
    for (call, answer) in answers {
        let is_right = answer.as_ref().is_some_and(|error| error.kind() == ErrorKind::ReadOnly);
        if !is_right || answer.as_ref().map(Error::to_string) != cause {
            return Err(format!("{call} answered {answer:?} after {cause:?}, first seen as {first:?}"));
        }
    }
    for writer in 0..WRITERS {
        let found =
            open.content(writer).await.map_err(|error| format!("reading what failed: {error:?}"))??;
        let states = shared.lock().states(writer);
        if !states.contains(&found) {
            return Err(format!("a store that failed holds {found:x?} for writer {writer}"));
        }
    }
    Ok(())
}

/// Checks that a closed store refuses every call.
async fn closed(open: &Open) -> Result<(), String> {
    let answers = [
        open.write(0, &[((0, 0), None)]).await.err(),
        open.get(0, (0, 0)).await.err(),
        open.store.flush().await.err(),
    ];
    if answers.iter().all(|error| error.as_ref().is_some_and(|error| error.kind() == ErrorKind::Closed)) {
        Ok(())
    } else {
        Err(format!("a closed store answered {answers:?}"))
    }
}

/// Writers and a reader work on the store at the same time.
async fn work(open: &Open, shared: &SharedModel, plan: &Plan) -> Result<(), Stop> {
    let mut tasks = Vec::new();
    for writer in 0..1 + sim::random(u64::from(WRITERS)) as u8 {
        let (open, shared, steps) = (open.clone(), shared.clone(), 1 + sim::random(plan.steps));
        tasks.push(sim::spawn(async move { writes(&open, &shared, writer, steps).await }));
    }
    if sim::random(2) == 0 {
        let (open, shared, plan) = (open.clone(), shared.clone(), plan.clone());
        tasks.push(sim::spawn(async move { reads(&open, &shared, &plan).await }));
    }
    let mut stop = None;
    for task in tasks {
        match task.await {
            Ok(Ok(())) => {}
            Ok(Err(Stop::Failed(error))) if stop.is_some() => drop(error),
            Ok(Err(why)) => stop = Some(why),
            Err(error) => stop = Some(Stop::Wrong(format!("a task: {error}"))),
        }
    }
    stop.map_or(Ok(()), Err)
}

/// Reads values of the writers: a value once read stays.
async fn reads(open: &Open, shared: &SharedModel, plan: &Plan) -> Result<(), Stop> {
    for _ in 0..5 + sim::random(80) {
        rest(100).await;
        let writer = sim::random(u64::from(WRITERS)) as u8;
        let found = match open.get(writer, any_place()).await {
            Ok(found) => found,
            // The writes report whether the store itself failed.
            Err(error) if is_failure(&error) => continue,
            Err(error) => return Err(Stop::Wrong(format!("reading: {error:?}"))),
        };
        if let Some(found) = found {
            let value = number(&found)?;
            // The moment at which a value that became visible too soon is lost.
            if shared.lock().saw(value)? && plan.may_cut && sim::random(3) == 0 {
                sim::power_cut().await;
            }
        }
    }
    Ok(())
}

fn any_place() -> At {
    (sim::random(u64::from(SPACES)) as u8, sim::random(u64::from(KEYS)) as u8)
}

/// A snapshot, and its possible states.
struct Past {
    snapshot: Snapshot,
    states: BTreeSet<State>,
}

/// Writes in every possible way, to the writer's own keys.
async fn writes(open: &Open, shared: &SharedModel, me: u8, steps: u64) -> Result<(), Stop> {
    let mut pasts: Vec<Past> = Vec::new();
    for _ in 0..steps {
        match sim::random(22) {
            0..=4 => {
                let change = change(shared, me, any_place());
                write(open, shared, me, vec![change]).await?;
            }
            5 | 6 => {
                let changes = batch(shared, me);
                write(open, shared, me, changes).await?;
            }
            7 | 8 => {
                // Each at another key, so that their order does not matter.
                let first = sim::random(u64::from(KEYS)) as u8;
                let all = (0..2 + sim::random(3) as u8).map(|index| {
                    let change = change(shared, me, (0, (first + index) % KEYS));
                    write(open, shared, me, vec![change])
                });
                let all: Vec<_> = all.collect();
                if shared.lock().open(me) + all.len() <= OPEN_MAX {
                    futures::future::try_join_all(all).await?;
                }
            }
            9 if shared.lock().open(me) + 2 < OPEN_MAX => {
                let changes = batch(shared, me);
                let polls = sim::random(4) as usize;
                let number = shared.lock().begin(me, changes.clone());
                match sim::dropped_after(polls, open.write(me, &changes)).await {
                    None => {}
                    Some(Ok(())) => shared.lock().acknowledge(me, number),
                    Some(Err(error))
                        if matches!(error.kind(), ErrorKind::TooLarge { .. }) || is_full(&error) =>
                    {
                        shared.lock().refused(me, number);
                    }
                    Some(Err(error)) => return Err(error.into()),
                }
            }
            10 => swap(open, shared, me).await?,
            11 => pasts.push(Past { states: shared.lock().states(me), snapshot: open.store.snapshot() }),
            12 => {
                pasts.truncate(3);
                if sim::random(4) == 0 {
                    pasts.clear();
                }
            }
            13 if sim::random(3) == 0 => unless_full(open.store.flush().await)?,
            14 => rest(2_000).await,
            15 => scan(open, shared, me).await?,
            16 if sim::random(2) == 0 => unless_full(open.store.compact().await)?,
            16 => unless_full(open.store.settle().await)?,
            17 if shared.lock().open(me) < OPEN_MAX => load(open, shared, me).await?,
            18 if shared.lock().open(me) < OPEN_MAX => delete_range(open, shared, me).await?,
            19 if shared.lock().open(me) < OPEN_MAX => ingest(open, shared, me).await?,
            20 if sim::random(3) == 0 => checkpoint(open, shared, me).await?,
            _ => read(open, shared, me).await?,
        }
        for past in &mut pasts {
            look(open, me, past).await?;
        }
    }
    Ok(())
}

/// Reads all of the writer's own keys at one moment: the result is one of the possible states.
async fn scan(open: &Open, shared: &SharedModel, me: u8) -> Result<(), Stop> {
    let space = sim::random(u64::from(SPACES)) as u8;
    // The states at its start: writes open then may become durable meanwhile.
    let states = shared.lock().states(me);
    let found = match open.scan(me, space, sim::random(2) == 0).await {
        Ok(found) => found?,
        Err(error) if is_failure(&error) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let in_space = |state: &State| -> State {
        state.iter().filter(|(at, _)| at.0 == space).map(|(at, value)| (*at, *value)).collect()
    };
    if !states.iter().any(|state| in_space(state) == found) {
        return Err(Stop::Wrong(format!("writer {me} went through {found:x?}, and may be {states:x?}")));
    }
    found.into_values().try_for_each(|value| shared.lock().saw(value).map(drop))?;
    Ok(())
}

/// Makes a checkpoint and opens it: the writer's own keys are in one of the possible states.
async fn checkpoint(open: &Open, shared: &SharedModel, me: u8) -> Result<(), Stop> {
    // The states at its start: writes open then may become durable meanwhile.
    let states = shared.lock().states(me);
    let number = shared.lock().value(me);
    let is_over = |error: &Error| is_failure(error) && open.store.stats().failed.is_none();
    let copy = match open.checkpoint(number).await {
        Ok(copy) => copy,
        Err(error) if is_over(&error) || matches!(error.kind(), ErrorKind::MemoryBudget { .. }) => {
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let (found, closed) = (copy.content(me).await, copy.store.close().await);
    for error in [found.as_ref().err(), closed.as_ref().err()].into_iter().flatten() {
        if !is_failure(error) {
            return Err(error.clone().into());
        }
    }
    match found.ok().transpose()? {
        Some(found) if !states.contains(&found) => {
            Err(Stop::Wrong(format!("a checkpoint has {found:x?} for writer {me}, of {states:x?}")))
        }
        _ => Ok(()),
    }
}

/// Loads some of the writer's keys in one step.
async fn load(open: &Open, shared: &SharedModel, me: u8) -> Result<(), Stop> {
    let (space, first) = (sim::random(u64::from(SPACES)) as u8, sim::random(u64::from(KEYS)) as u8);
    let last = KEYS.min(first + 1 + sim::random(5) as u8);
    let entries = (first..last).map(|number| ((space, number), shared.lock().value(me)));
    let entries: Vec<(At, u64)> = entries.collect();
    let changes = entries.iter().map(|(at, value)| (*at, Some(*value))).collect();
    let number = shared.lock().begin(me, changes);
    match open.load(me, &entries).await {
        Ok(()) => shared.lock().acknowledge(me, number),
        Err(error) if is_full(&error) => shared.lock().refused(me, number),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Ingests sorted files with some of the writer's keys, of one keyspace or both, in one step.
async fn ingest(open: &Open, shared: &SharedModel, me: u8) -> Result<(), Stop> {
    let changes: BTreeMap<At, Option<u64>> = batch(shared, me).into_iter().collect();
    let changes: Vec<_> = changes.into_iter().collect();
    let files = shared.lock().value(me);
    let files = match open.sorted_files(me, &changes, files).await {
        Ok(files) => files,
        // No store has failed with them.
        Err(error) if is_failure(&error) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let number = shared.lock().begin(me, changes);
    match open.ingest(&files).await {
        Ok(_) => shared.lock().acknowledge(me, number),
        Err(error) if error.kind() == ErrorKind::ReadOnly => return Err(error.into()),
        // Files that could not be read or named: nothing was changed, and the store continues.
        Err(error) if is_failure(&error) => shared.lock().refused(me, number),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Deletes some of the writer's keys in one step.
async fn delete_range(open: &Open, shared: &SharedModel, me: u8) -> Result<(), Stop> {
    let (space, first) = (sim::random(u64::from(SPACES)) as u8, sim::random(u64::from(KEYS)) as u8);
    let last = (KEYS - 1).min(first + sim::random(5) as u8);
    let changes = (first..=last).map(|number| ((space, number), None)).collect();
    let number = shared.lock().begin(me, changes);
    match open.delete_range(me, (space, first), last).await {
        Ok(()) => shared.lock().acknowledge(me, number),
        Err(error) if is_full(&error) => shared.lock().refused(me, number),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Accepts the error of a full store, which stays usable; any other error is returned.
fn unless_full(answer: Result<(), Error>) -> Result<(), Error> {
    match answer {
        Err(error) if is_full(&error) => Ok(()),
        other => other,
    }
}

fn change(shared: &SharedModel, me: u8, at: At) -> (At, Option<u64>) {
    let value = (sim::random(5) > 0).then(|| shared.lock().value(me));
    (at, value)
}

fn batch(shared: &SharedModel, me: u8) -> Vec<(At, Option<u64>)> {
    (0..1 + sim::random(5)).map(|_| change(shared, me, any_place())).collect()
}

async fn write(
    open: &Open,
    shared: &SharedModel,
    me: u8,
    changes: Vec<(At, Option<u64>)>,
) -> Result<(), Stop> {
    let number = shared.lock().begin(me, changes.clone());
    match open.write(me, &changes).await {
        Ok(()) => shared.lock().acknowledge(me, number),
        // Several long values may be larger than a memtable.
        Err(error) if matches!(error.kind(), ErrorKind::TooLarge { .. }) && changes.len() > 1 => {
            shared.lock().refused(me, number);
        }
        Err(error) if is_full(&error) => shared.lock().refused(me, number),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

async fn swap(open: &Open, shared: &SharedModel, me: u8) -> Result<(), Stop> {
    let at = any_place();
    let states = shared.lock().states(me);
    let mut values: BTreeSet<Option<u64>> = states.iter().map(|state| state.get(&at).copied()).collect();
    let (Some(current), true) = (values.pop_first(), values.is_empty()) else { return Ok(()) };
    let is_right = sim::random(2) == 0;
    let expected = if is_right { current } else { Some(shared.lock().value(me)) };
    let change = change(shared, me, at);
    let number = shared.lock().begin(me, vec![change]);
    let (expected, new) = (expected.map(bytes), change.1.map(bytes));
    let name = key(me, at);
    let answer = open.space(at).compare_and_set(&name, expected.as_deref(), new.as_deref()).await;
    match answer {
        Ok(SwapOutcome::Done) if is_right => shared.lock().acknowledge(me, number),
        Ok(SwapOutcome::Not { current: found }) if !is_right => {
            shared.lock().refused(me, number);
            if found.as_deref() != current.map(bytes).as_deref() {
                return Err(Stop::Wrong(format!("a swap found {found:?} and not {current:x?}")));
            }
        }
        Ok(answer) => return Err(Stop::Wrong(format!("a swap of {current:x?} answered {answer:?}"))),
        Err(error) if is_full(&error) => shared.lock().refused(me, number),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Reads one of the writer's own keys; one of the possible states must have the result.
async fn read(open: &Open, shared: &SharedModel, me: u8) -> Result<(), Stop> {
    let at = any_place();
    let found = match open.get(me, at).await {
        Ok(found) => found.as_deref().map(number).transpose()?,
        Err(error) if is_failure(&error) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let states = shared.lock().states(me);
    if !states.iter().any(|state| state.get(&at).copied() == found) {
        return Err(Stop::Wrong(format!("writer {me} read {found:x?} at {at:?}, and may be {states:x?}")));
    }
    found.map_or(Ok(false), |value| shared.lock().saw(value))?;
    Ok(())
}

/// Reads in a snapshot: one state has all values ever read in it.
async fn look(open: &Open, me: u8, past: &mut Past) -> Result<(), Stop> {
    let at = any_place();
    let found = match open.get_in(&past.snapshot, me, at).await {
        Ok(found) => found.as_deref().map(number).transpose()?,
        Err(error) if is_failure(&error) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let before = past.states.clone();
    past.states.retain(|state| state.get(&at).copied() == found);
    if !past.states.is_empty() {
        Ok(())
    } else {
        Err(Stop::Wrong(format!("a snapshot of writer {me} has {found:x?} at {at:?}, of {before:x?}")))
    }
}
