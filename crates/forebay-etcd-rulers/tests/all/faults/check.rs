//! What clients did and saw, and whether the state at every revision explains it.
//!
//! Revisions are the order of all changes reported by the cluster. So no search is needed: a change is at its revision, a read
//! follows the change of its revision, and that order must explain all replies and must not contradict the order in time: a call
//! that had its reply before another call started precedes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::past::{Event, Pair, Past};

/// A point in the order of calls and replies.
pub(crate) type Tick = u64;

/// One change of a key that a call asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The value is unique among calls.
    Put {
        key: String,
        value: u64,
        lease: i64,
    },
    Delete(String),
}

/// What was read of a key, or of all keys with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Observation {
    One(String, Option<Pair>),
    All(String, Vec<(String, Pair)>),
}

/// The outcome of a call, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its changes were made at this revision; what its keys had before, if it says so.
    Made(i64, Vec<Observation>),
    /// Nothing was changed, and this was read at this revision.
    Read(i64, Vec<Observation>),
    /// It may have been made, or may still be made. It had no reply, or a reply that says so.
    Unknown,
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) called: Tick,
    pub(crate) replied: Tick,
    /// The changes are made if this key has this mod revision, 0 if the key does not exist.
    pub(crate) condition: Option<(String, i64)>,
    pub(crate) changes: Vec<Change>,
    pub(crate) outcome: Outcome,
}

/// The calls of clients, and the clock that orders them.
#[derive(Debug, Default)]
pub(crate) struct Record {
    now: AtomicU64,
    calls: Mutex<Vec<Call>>,
}

impl Record {
    pub(crate) fn tick(&self) -> Tick {
        self.now.fetch_add(1, Ordering::SeqCst)
    }

    pub(crate) fn add(&self, call: Call) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }

    /// Drains the calls that have ended so far.
    pub(crate) fn take(&self) -> Vec<Call> {
        std::mem::take(&mut *self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// An event, and when a watch has shown it first.
pub(crate) type DatedEvent = (Event, Tick);

/// The checker of one cluster's history, round by round.
#[derive(Debug)]
pub(crate) struct Checker {
    pub(crate) past: Past,
    /// Calls of earlier rounds with unknown outcome. They may still be made.
    unknown: Vec<Call>,
    /// The highest revision that anybody has seen in rounds before.
    floor: i64,
    /// Leases that may end by themselves.
    leases: BTreeSet<i64>,
    /// The latest call of a change up to the revision of `past`.
    called: Tick,
}

impl Checker {
    pub(crate) fn new() -> Checker {
        let (unknown, leases) = (Vec::new(), BTreeSet::new());
        Checker { past: Past::new(), unknown, floor: 1, leases, called: 0 }
    }

    /// Declares that the keys of a lease may be deleted without a call of a client.
    pub(crate) fn may_end(&mut self, lease: i64) {
        self.leases.insert(lease);
    }

    /// Checks a round. `shown` are all events up to the round's last revision that were not in rounds before.
    pub(crate) fn check(&mut self, shown: &[DatedEvent], calls: Vec<Call>) -> Result<(), String> {
        let first = self.past.revision + 1;
        for (event, _) in shown {
            self.past.add(event)?;
        }
        let mut all = std::mem::take(&mut self.unknown);
        all.extend(calls);
        // Of two deletes that may have made an event, the one that was called first is more likely to fit.
        all.sort_by_key(|call| call.called);
        let made = self.explain(shown, &all)?;
        self.check_time(first, shown, &all, &made)?;
        for (call, made) in all.iter().zip(&made) {
            self.check_reply(call, *made)?;
        }
        let is_open = |(call, made): &(Call, Option<i64>)| call.outcome == Outcome::Unknown && made.is_none();
        self.unknown = all.into_iter().zip(made).filter(is_open).map(|(call, _)| call).collect();
        // A read without a reply changes nothing ever.
        self.unknown.retain(|call| !call.changes.is_empty());
        Ok(())
    }

    /// Finds the call of each event, and the events of each change that was acknowledged. Returns the revision at which each call
    /// was made.
    fn explain(&self, shown: &[DatedEvent], calls: &[Call]) -> Result<Vec<Option<i64>>, String> {
        let mut made: Vec<Option<i64>> = vec![None; calls.len()];
        let mut acknowledged: BTreeMap<i64, usize> = BTreeMap::new();
        let mut putters: BTreeMap<u64, usize> = BTreeMap::new();
        let mut deleters: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (number, call) in calls.iter().enumerate() {
            if let Outcome::Made(revision, _) = call.outcome {
                made[number] = Some(revision);
                if let Some(other) = acknowledged.insert(revision, number) {
                    return Err(format!("one revision for two: {call:?}\n{:?}", calls[other]));
                }
            }
            for change in &call.changes {
                match change {
                    Change::Put { value, .. } => drop(putters.insert(*value, number)),
                    Change::Delete(key) if call.outcome == Outcome::Unknown => {
                        deleters.entry(key).or_default().push(number);
                    }
                    Change::Delete(_) => {}
                }
            }
        }
        let mut events: BTreeMap<i64, Vec<&Event>> = BTreeMap::new();
        for (event, _) in shown {
            events.entry(event.revision).or_default().push(event);
        }
        for (revision, events) in &events {
            let explained = match acknowledged.remove(revision) {
                Some(number) => Some(number),
                None => self.unacknowledged(events, calls, &made, &putters, &deleters)?,
            };
            let Some(number) = explained else {
                self.check_end(*revision, events)?;
                continue;
            };
            let call = &calls[number];
            let are_alike = call.changes.len() == events.len()
                && call.changes.iter().all(|change| events.iter().any(|event| is_of(event, change)));
            if !are_alike {
                return Err(format!("revision {revision} has {events:?}, and {call:?} was made there"));
            }
            made[number] = Some(*revision);
        }
        match acknowledged.first_key_value() {
            Some((_, number)) => Err(format!("an acknowledged change is lost: {:?}", calls[*number])),
            None => Ok(made),
        }
    }

    /// Finds the call without a reply that has made the events of a revision. `None` if a lease has ended.
    fn unacknowledged(
        &self,
        events: &[&Event],
        calls: &[Call],
        made: &[Option<i64>],
        putters: &BTreeMap<u64, usize>,
        deleters: &BTreeMap<&str, Vec<usize>>,
    ) -> Result<Option<usize>, String> {
        let has_ended = |event: &&Event| {
            let lease = event.before.map_or(0, |before| before.lease);
            event.now.is_none() && self.leases.contains(&lease)
        };
        let is_open = |number: &usize| calls[*number].outcome == Outcome::Unknown && made[*number].is_none();
        let first = events[0];
        let found = match first.now {
            Some(pair) => putters.get(&pair.value).copied().filter(is_open),
            // A revocation without a reply may have done it, or may have been called when it was done.
            None if events.iter().all(has_ended) => return Ok(None),
            None => {
                let open = deleters.get(&*first.key);
                open.and_then(|all| all.iter().copied().find(|one| is_open(one)))
            }
        };
        found.map(Some).ok_or_else(|| format!("no call has made these changes: {events:?}"))
    }

    /// Checks that a lease has ended with all its keys.
    fn check_end(&self, revision: i64, events: &[&Event]) -> Result<(), String> {
        let lease = events[0].before.map_or(0, |before| before.lease);
        let keys = self.past.all_at("", revision - 1).into_iter().filter(|(_, pair)| pair.lease == lease);
        let (keys, ended): (BTreeSet<_>, BTreeSet<_>) =
            (keys.map(|(key, _)| key).collect(), events.iter().map(|event| event.key.clone()).collect());
        if keys == ended {
            Ok(())
        } else {
            Err(format!("a lease has ended without all of its keys, {keys:?}: {events:?}"))
        }
    }

    /// Checks that revisions do not contradict the order in time.
    fn check_time(
        &mut self,
        first: i64,
        shown: &[DatedEvent],
        calls: &[Call],
        made: &[Option<i64>],
    ) -> Result<(), String> {
        // The highest revision that was known at each tick.
        let mut known: Vec<(Tick, i64)> = shown.iter().map(|(event, tick)| (*tick, event.revision)).collect();
        let revision_of = |number: usize| match calls[number].outcome {
            Outcome::Made(revision, _) | Outcome::Read(revision, _) => Some(revision),
            Outcome::Unknown => None,
        };
        for (number, call) in calls.iter().enumerate() {
            known.extend(revision_of(number).map(|revision| (call.replied, revision)));
        }
        known.sort_unstable();
        let mut highest = self.floor;
        for (_, revision) in &mut known {
            highest = highest.max(*revision);
            *revision = highest;
        }
        let known_at = |tick: Tick| {
            let later = known.partition_point(|(at, _)| *at < tick);
            known[..later].last().map_or(self.floor, |(_, revision)| *revision)
        };
        // The latest call among the changes up to each revision.
        let mut latest = BTreeMap::from([(first - 1, (self.called, None))]);
        let by_revision = made.iter().enumerate().filter_map(|(number, made)| Some(((*made)?, number)));
        for (revision, number) in by_revision.collect::<BTreeMap<_, _>>() {
            let before = latest.last_key_value().map_or((0, None), |(_, latest)| *latest);
            latest.insert(revision, before.max((calls[number].called, Some(number))));
        }
        let latest_up_to =
            |revision| latest.range(..=revision).next_back().map_or((0, None), |(_, latest)| *latest);
        for (number, call) in calls.iter().enumerate() {
            let Some(revision) = revision_of(number).or(made[number]) else { continue };
            let known = known_at(call.called);
            if revision < known || (revision == known && made[number].is_some()) {
                return Err(format!("revision {known} was known before this was called: {call:?}"));
            }
            let (called, later) = latest_up_to(revision);
            if revision_of(number).is_some() && called > call.replied {
                let later = later.map(|number: usize| &calls[number]);
                return Err(format!("this has seen what was called later, {later:?}: {call:?}"));
            }
        }
        if let Some((event, _)) = shown.iter().find(|(event, tick)| latest_up_to(event.revision).0 > *tick) {
            return Err(format!("a watch has shown a change before it was called: {event:?}"));
        }
        self.called = latest_up_to(self.past.revision).0;
        self.floor = highest;
        Ok(())
    }

    /// Checks that a call has seen the state of its revision.
    fn check_reply(&self, call: &Call, made: Option<i64>) -> Result<(), String> {
        let (at, seen, is_made) = match (&call.outcome, made) {
            (Outcome::Made(revision, seen), _) => (revision - 1, &seen[..], true),
            (Outcome::Read(revision, seen), _) => (*revision, &seen[..], false),
            (Outcome::Unknown, Some(revision)) => (revision - 1, &[][..], true),
            (Outcome::Unknown, None) => return Ok(()),
        };
        if at > self.past.revision {
            return Err(format!("no watch has shown that revision: {call:?}"));
        }
        for seen in seen {
            let (is_so, was) = match seen {
                Observation::One(key, pair) => {
                    let was = self.past.at(key, at);
                    (was == *pair, format!("{was:?}"))
                }
                Observation::All(prefix, pairs) => {
                    let was = self.past.all_at(prefix, at);
                    (was == *pairs, format!("{was:?}"))
                }
            };
            if !is_so {
                return Err(format!("at revision {at} there was {was}: {call:?}"));
            }
        }
        if let Some((key, expected)) = &call.condition {
            let modified = self.past.at(key, at).map_or(0, |pair| pair.modified);
            if (modified == *expected) != is_made {
                return Err(format!("at revision {at} the mod revision was {modified}: {call:?}"));
            }
        }
        let deletes = call.changes.iter().filter_map(|change| match change {
            Change::Delete(key) => Some(key),
            Change::Put { .. } => None,
        });
        if !is_made && call.condition.is_none() {
            for key in deletes {
                if self.past.at(key, at).is_some() {
                    return Err(format!("a delete has left the key at revision {at}: {call:?}"));
                }
            }
        }
        Ok(())
    }
}

fn is_of(event: &Event, change: &Change) -> bool {
    match change {
        Change::Put { key, value, lease } => {
            event.key == *key && event.now.is_some_and(|now| (now.value, now.lease) == (*value, *lease))
        }
        Change::Delete(key) => event.key == *key && event.now.is_none(),
    }
}
