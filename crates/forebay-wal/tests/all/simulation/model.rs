//! The oracle: a model of the contents that the log must have, kept in parallel.
//!
//! The model has a *base*, which is content that is certain, and the requests made since then: appends whose place is known or not,
//! acknowledged or not, and at most one truncation of the log's end or reset, which is only requested while the base is complete.
//! So the possible contents after a crash are known exactly, except for the order in which unacknowledged appends of different
//! tasks were queued.

use std::collections::{BTreeMap, BTreeSet};

use forebay_wal::{Loss, Recovery};

use crate::simulation::log::Content;
use crate::simulation::records;

/// Content that is certain.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) first: u64,
    pub(crate) next: u64,
    pub(crate) records: BTreeMap<u64, u64>,
    /// Records that an earlier salvage gave up.
    gaps: BTreeSet<u64>,
}

/// An append that was requested since the base.
#[derive(Clone, Debug)]
pub(crate) struct SentAppend {
    record: u64,
    lsn: Option<u64>,
    acknowledged: bool,
    batch: Option<usize>,
}

/// A removal of records at the end, or of all records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    From(u64),
    Reset(u64),
}

/// Damage done to the bytes of a log that was not open.
#[derive(Clone, Debug)]
pub(crate) struct Hit {
    /// Records of the group, according to its header before the damage.
    pub(crate) lsns: std::ops::Range<u64>,
    pub(crate) file: String,
    pub(crate) offset: u64,
    /// Whether no valid group followed it.
    pub(crate) last: bool,
    /// Whether nothing of the group's first page is left.
    pub(crate) erased: bool,
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) base: State,
    sent: Vec<SentAppend>,
    befores: Vec<(u64, bool)>,
    removal: Option<Removal>,
    /// The base before the last removal: it is back if the damaged group is that very removal.
    undone: Option<State>,
    /// Earlier bases, left behind since flushes lie, each with the state that was certain before the lies.
    earlier: Vec<State>,
    /// Set while flushes lie: every record before this one was acknowledged before the lies.
    pub(crate) certain: Option<u64>,
    /// Set when the log's bytes were damaged; `Some(None)` if no group that counts was hit.
    pub(crate) hit: Option<Option<Hit>>,
    /// Positions of damaged groups that were skipped since: damage after one of them starts there.
    passed_over: Vec<(String, u64)>,
    /// Every record ever appended.
    ever: BTreeSet<u64>,
    opened: bool,
    life: u64,
    appenders: u64,
    batches: usize,
    pub(crate) acknowledged: u64,
    pub(crate) values: Values,
    /// The first number that the log ever had.
    lowest: u64,
}

impl State {
    fn empty(next: u64) -> State {
        State { first: next, next, records: BTreeMap::new(), gaps: BTreeSet::new() }
    }

    fn without(&self, removal: Removal) -> State {
        match removal {
            Removal::Reset(next) => State::empty(next),
            Removal::From(next) => State {
                first: self.first,
                next,
                records: self.records.range(..next).map(|(lsn, record)| (*lsn, *record)).collect(),
                gaps: self.gaps.range(..next).copied().collect(),
            },
        }
    }
}

/// Reason why contents are not as they must be.
type Wrong = String;

/// The values that were set, by key, in the order in which they were queued.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values([History; 3]);

#[derive(Clone, Debug, Default)]
struct History {
    /// The value that is certain.
    base: Option<u64>,
    since: Vec<Set>,
    /// Every value that was ever set.
    ever: BTreeSet<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Set {
    value: u64,
    /// A record of the same batch.
    record: Option<u64>,
    acknowledged: bool,
}

impl Values {
    /// Notes that a value was queued; returns the argument for [`Values::acknowledge`].
    pub(crate) fn queued(&mut self, key: usize, value: u64, record: Option<u64>) -> (usize, u64) {
        self.0[key].since.push(Set { value, record, acknowledged: false });
        self.0[key].ever.insert(value);
        (key, value)
    }

    pub(crate) fn acknowledge(&mut self, (key, value): (usize, u64)) {
        self.0[key].since.iter_mut().filter(|set| set.value == value).for_each(|set| set.acknowledged = true);
    }

    /// Returns whether this value may be the durable one now: no newer one was acknowledged.
    pub(crate) fn saw(&self, key: usize, found: Option<u64>) -> Result<(), Wrong> {
        let history = &self.0[key];
        let at = history.since.iter().rposition(|set| Some(set.value) == found);
        let newer = &history.since[at.map_or(0, |at| at + 1)..];
        let known = at.is_some() || found == history.base;
        match newer.iter().find(|set| set.acknowledged) {
            None if known => Ok(()),
            acknowledged => Err(format!(
                "value {key} is {found:x?}, and {acknowledged:x?} was acknowledged: {history:x?}"
            )),
        }
    }

    /// Judges values after an open. `is_there` returns whether a record of a batch is there, where that must agree.
    fn judge(
        &self,
        found: [Option<u64>; 3],
        is_any: bool,
        is_there: impl Fn(&u64) -> Option<bool>,
    ) -> Result<(), Wrong> {
        for (key, (history, value)) in self.0.iter().zip(found).enumerate() {
            if is_any {
                if value.is_some_and(|value| !history.ever.contains(&value)) {
                    return Err(format!("value {key} is {value:x?}, which was never set"));
                }
                continue;
            }
            self.saw(key, value)?;
            let at = history.since.iter().rposition(|set| Some(set.value) == value);
            for (index, set) in history.since.iter().enumerate() {
                let durable = at.is_some_and(|at| index <= at);
                if let Some(there) = set.record.as_ref().and_then(&is_there)
                    && there != durable
                {
                    return Err(format!(
                        "value {key} is {value:x?}, and of the batch with {set:x?} the records are there: {there}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks the values of a log without operations in flight, and adopts them as the base.
    pub(crate) fn settle(&mut self, found: [Option<u64>; 3], is_lying: bool) -> Result<(), Wrong> {
        for (key, (history, value)) in self.0.iter().zip(found).enumerate() {
            let newest = history.since.last().map_or(history.base, |set| Some(set.value));
            if newest != value {
                return Err(format!("value {key} is {value:x?}, and was set to {newest:x?}"));
            }
        }
        // Since flushes lie, nothing more becomes certain.
        if !is_lying {
            self.rebase(found);
        }
        Ok(())
    }

    fn rebase(&mut self, found: [Option<u64>; 3]) {
        for (history, value) in self.0.iter_mut().zip(found) {
            history.base = value;
            history.since.clear();
        }
    }
}

impl Model {
    pub(crate) fn new(first: u64) -> Model {
        Model {
            values: Values::default(),
            lowest: first,
            base: State::empty(first),
            sent: Vec::new(),
            befores: Vec::new(),
            removal: None,
            undone: None,
            earlier: Vec::new(),
            certain: None,
            hit: None,
            passed_over: Vec::new(),
            ever: BTreeSet::new(),
            opened: false,
            life: 0,
            appenders: 0,
            batches: 0,
            acknowledged: 0,
        }
    }

    pub(crate) fn next_life(&mut self) {
        // An opening that did not complete may have cut off the damaged group, and no report of that is left.
        if let Some(Some(hit)) = &mut self.hit {
            hit.erased = true;
        }
        (self.life, self.appenders) = (self.life + 1, 0);
    }

    pub(crate) fn life(&self) -> u64 {
        self.life
    }

    /// Returns a number that no other appender of this life has.
    pub(crate) fn appender(&mut self) -> u64 {
        self.appenders += 1;
        self.appenders
    }

    pub(crate) fn record(&self, appender: u64, count: u64) -> u64 {
        records::numbered(self.life, appender, count)
    }

    /// Notes that `record` is about to be appended.
    pub(crate) fn send(&mut self, record: u64) -> usize {
        self.ever.insert(record);
        self.sent.push(SentAppend { record, lsn: None, acknowledged: false, batch: None });
        self.sent.len() - 1
    }

    /// Notes that these records are about to be appended, as one batch.
    pub(crate) fn send_batch(&mut self, records: &[u64]) -> Vec<usize> {
        let sent: Vec<usize> = records.iter().map(|record| self.send(*record)).collect();
        self.batches += 1;
        sent.iter().for_each(|sent| self.sent[*sent].batch = Some(self.batches));
        sent
    }

    /// Notes the place of an append.
    pub(crate) fn placed(&mut self, sent: usize, lsn: u64) {
        self.sent[sent].lsn = Some(lsn);
    }

    /// Notes the place of an append, which is durable.
    pub(crate) fn acknowledge(&mut self, sent: usize, lsn: u64) {
        self.placed(sent, lsn);
        self.sent[sent].acknowledged = true;
        self.acknowledged += 1;
    }

    /// Returns the appends whose place is known now: a sync that starts now must make them durable.
    pub(crate) fn queued(&self) -> Vec<usize> {
        (0..self.sent.len()).filter(|sent| self.sent[*sent].lsn.is_some()).collect()
    }

    pub(crate) fn synced(&mut self, queued: &[usize]) {
        queued.iter().for_each(|sent| self.sent[*sent].acknowledged = true);
    }

    /// Notes that everything before `lsn` is about to be removed; returns the argument for
    /// [`Model::did_remove_before`].
    pub(crate) fn remove_before(&mut self, lsn: u64) -> usize {
        if self.certain.is_some() {
            self.certain = Some(0);
        }
        self.befores.push((lsn, false));
        self.befores.len() - 1
    }

    pub(crate) fn did_remove_before(&mut self, before: usize) {
        self.befores[before].1 = true;
    }

    /// Notes that the log's end, or everything, is about to be removed. No other request may be in flight.
    pub(crate) fn begin(&mut self, removal: Removal) {
        assert!(self.sent.is_empty(), "the base is all there is");
        if self.certain.is_some() {
            self.certain = Some(0);
        }
        self.removal = Some(removal);
    }

    /// Notes that the removal was done.
    pub(crate) fn did(&mut self) {
        let Some(removal) = self.removal.take() else { return };
        let after = self.base.without(removal);
        let before = std::mem::replace(&mut self.base, after);
        if self.certain.is_some() {
            self.earlier.push(before.clone());
        }
        self.undone = Some(before);
        if let Removal::Reset(_) = removal {
            self.befores.clear();
        }
    }

    /// Judges the records read while others append.
    pub(crate) fn saw(&self, read: &[(u64, u64)], from: u64) -> Result<(), Wrong> {
        let mut expected = from;
        for (lsn, record) in read {
            let there = self.base.records.get(lsn).filter(|_| *lsn < self.base.next);
            let sent = self.sent.iter().find(|sent| sent.lsn == Some(*lsn));
            let known = there.or(sent.map(|sent| &sent.record));
            let in_order = (expected..*lsn).all(|lsn| self.base.gaps.contains(&lsn)) && *lsn >= expected;
            if !in_order || known.is_some_and(|known| known != record) {
                return Err(format!(
                    "read {record:#x} at {lsn}, and {expected} was due; there is {known:x?} ({:?})",
                    self.base
                ));
            }
            expected = lsn + 1;
        }
        Ok(())
    }

    /// Returns whether no record from here on was lost in a salvage.
    pub(crate) fn has_no_gap(&self, from: u64) -> bool {
        self.base.gaps.range(from..).next().is_none()
    }

    pub(crate) fn is_lying(&self) -> bool {
        self.certain.is_some()
    }

    /// Judges an open that was refused because the newest values are lost.
    pub(crate) fn refused_values(&self) -> Result<(), Wrong> {
        let is_hit = self.hit.iter().flatten().next().is_some();
        if is_hit || self.is_lying() {
            Ok(())
        } else {
            Err("the values are lost without any damage".to_string())
        }
    }

    /// Notes that flushes lie from now on.
    pub(crate) fn flushes_lie(&mut self) {
        let known = self.sent.iter().filter(|sent| sent.acknowledged).filter_map(|sent| sent.lsn).max();
        self.certain = Some(known.map_or(0, |lsn| lsn + 1).max(self.base.next));
        self.earlier.clear();
    }

    /// Compares the contents of an open log without requests in flight, and adopts them as the base.
    pub(crate) fn settle(&mut self, found: &Content) -> Result<(), Wrong> {
        let missing = self.compare(&self.base, &self.sent, self.firsts(), found, &[])?;
        if !missing.is_empty() {
            return Err(format!("acknowledged records {missing:?} cannot be read"));
        }
        let known = self.sent.iter().filter_map(|sent| Some((sent.lsn?, sent.record)));
        self.base.records.extend(known);
        self.sent.clear();
        self.base.next = found.next;
        self.base.first = found.first;
        self.befores.clear();
        self.base.records.extend(found.records.iter().copied());
        Ok(())
    }

    /// Returns the range of the log's possible first LSNs.
    fn firsts(&self) -> std::ops::RangeInclusive<u64> {
        let done = self.befores.iter().filter(|before| before.1).map(|before| before.0).max();
        let asked = self.befores.iter().map(|before| before.0).max();
        let first = self.base.first;
        first.max(done.unwrap_or(0))..=first.max(asked.unwrap_or(0))
    }

    /// Compares `found` with a base and the requests since then. Returns the acknowledged records that are
    /// missing.
    fn compare(
        &self,
        base: &State,
        sent: &[SentAppend],
        firsts: std::ops::RangeInclusive<u64>,
        found: &Content,
        lost: &[Loss],
    ) -> Result<Vec<u64>, Wrong> {
        let is_lost = |lsn: u64| {
            base.gaps.contains(&lsn) || lost.iter().any(|lost| (lost.first.0..=lost.last.0).contains(&lsn))
        };
        // A log whose first records are lost starts after them.
        let first = (found.first.min(*firsts.end())..found.first).find(|lsn| !is_lost(*lsn));
        if first.is_some() || found.first < *firsts.start() || found.next < found.first {
            return Err(format!("the log is {}..{}, and begins in {firsts:?}", found.first, found.next));
        }
        let is: BTreeMap<u64, u64> = found.records.iter().copied().collect();
        if is.len() != found.records.len() || !found.records.is_sorted() {
            return Err("records are read out of order".to_string());
        }
        if let Some(lsn) = (found.first..found.next).find(|lsn| !is.contains_key(lsn) && !is_lost(*lsn)) {
            return Err(format!("record {lsn} is in no range that is lost, and cannot be read"));
        }
        let numbers: BTreeMap<u64, &SentAppend> = sent.iter().map(|sent| (sent.record, sent)).collect();
        let mut seen = BTreeSet::new();
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        for (lsn, record) in &is {
            if !(found.first..found.next).contains(lsn) {
                return Err(format!("record {lsn} is outside of the log"));
            }
            if let Some(expected) = base.records.get(lsn).filter(|_| *lsn < base.next) {
                if expected != record {
                    return Err(format!("record {lsn} is {record:#x} and was {expected:#x}"));
                }
                continue;
            }
            // The record was removed before it was ever read, and is back because its removal is lost: its
            // place is unknown.
            if *lsn < base.first && self.ever.contains(record) {
                continue;
            }
            let Some(origin) = numbers.get(record) else {
                return Err(format!("record {lsn} is {record:#x}, which belongs to another time"));
            };
            if *lsn < base.next {
                return Err(format!("record {lsn} is {record:#x}, before its time"));
            }
            if *record == records::EMPTY {
                continue;
            }
            let (appender, count) = records::appender(*record);
            if origin.lsn.is_some_and(|known| known != *lsn) || !seen.insert(*record) {
                return Err(format!("record {lsn} is {record:#x}, which was {:?}", origin.lsn));
            }
            if counts.insert(appender, count).is_some_and(|before| before >= count) {
                return Err(format!("record {lsn} is {record:#x}, after later ones of its appender"));
            }
        }
        self.whole_batches(sent, found, &seen, lost)?;
        let mut missing = Vec::new();
        let was =
            base.records.range(found.first.min(base.next)..base.next).map(|(lsn, record)| (*lsn, *record));
        let acknowledged = sent.iter().filter(|sent| sent.acknowledged);
        for (lsn, record) in was.chain(acknowledged.filter_map(|sent| Some((sent.lsn?, sent.record)))) {
            match is.get(&lsn) {
                None if lsn >= found.first => missing.push(lsn),
                Some(other) if *other != record => {
                    return Err(format!("record {lsn} is {other:#x} and was acknowledged as {record:#x}"));
                }
                _ => {}
            }
        }
        missing.sort_unstable();
        Ok(missing)
    }

    /// Checks that each batch is there as a whole or not at all.
    fn whole_batches(
        &self,
        sent: &[SentAppend],
        found: &Content,
        seen: &BTreeSet<u64>,
        lost: &[Loss],
    ) -> Result<(), Wrong> {
        let mut batches: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for one in sent {
            let Some(batch) = one.batch else { continue };
            let there = seen.contains(&one.record) || one.lsn.is_some_and(|lsn| lsn < found.first);
            let (here, all) = batches.entry(batch).or_default();
            (*here, *all) = (*here + usize::from(there), *all + 1);
        }
        // The front of a batch with an unknown place may have been removed.
        let removable = found.first > self.base.next || lost.iter().any(|lost| lost.last.0 >= self.base.next);
        match batches.values().find(|(here, all)| *here != 0 && here != all) {
            Some((here, all)) if !removable => Err(format!("{here} of a batch of {all} are there")),
            _ => Ok(()),
        }
    }

    /// Judges an open that succeeded, and adopts the contents found as the base.
    pub(crate) fn opened(
        &mut self,
        found: &Content,
        values: [Option<u64>; 3],
        recovery: &Recovery,
    ) -> Result<(), Wrong> {
        self.report(found, recovery)?;
        self.opened_values(found, values, recovery)?;
        let mut states = Vec::new();
        let damaged = self.hit.clone().flatten();
        let last_hit = damaged.as_ref().is_some_and(|hit| hit.last);
        let mut firsts = self.firsts();
        if last_hit || self.certain.is_some() {
            firsts = self.lowest..=*firsts.end();
        }
        match self.removal {
            None => states.push((self.base.clone(), self.sent.clone(), firsts.clone())),
            Some(removal) => {
                let begins = if let Removal::Reset(next) = removal { next..=next } else { firsts.clone() };
                states.push((self.base.without(removal), Vec::new(), begins));
                states.push((self.base.clone(), Vec::new(), firsts.clone()));
            }
        }
        let back = self.undone.iter().filter(|_| damaged.is_some());
        for state in back.chain(&self.earlier) {
            states.push((state.clone(), Vec::new(), self.lowest..=state.next));
        }
        let mut wrong = String::new();
        for (state, sent, firsts) in states {
            let judged = self
                .compare(&state, &sent, firsts, found, &recovery.lost)
                .and_then(|missing| self.excused(&missing, found, recovery));
            match judged {
                Ok(()) => {
                    self.rebase(found);
                    return Ok(());
                }
                Err(text) if wrong.is_empty() => wrong = text,
                Err(text) => wrong = format!("{wrong}; or {text}"),
            }
        }
        let (base, sent) = (&self.base, self.sent.len());
        Err(format!(
            "{wrong} ({}..{} are there; certain are {}..{} and {sent} were sent since; \
             damaged: {damaged:?}; {recovery:?})",
            found.first, found.next, base.first, base.next
        ))
    }

    /// Judges the values of an open that succeeded, and adopts them as the base.
    fn opened_values(
        &mut self,
        found: &Content,
        values: [Option<u64>; 3],
        recovery: &Recovery,
    ) -> Result<(), Wrong> {
        let damaged = self.hit.iter().flatten().next();
        if recovery.values_lost.is_some() && damaged.is_none() && self.certain.is_none() {
            return Err(format!("the values were lost without any damage: {recovery:?}"));
        }
        // The last group may be cut off, with its values, and an open that did not complete may have salvaged (seed 256). Nothing is
        // certain once flushes lied and records were removed.
        let is_any = recovery.values_lost.is_some()
            || damaged.is_some_and(|hit| hit.last || hit.erased)
            || self.certain == Some(0);
        let is_exact = damaged.is_none() && self.certain.is_none() && self.removal.is_none();
        let there = |record: &u64| found.records.iter().any(|known| known.1 == *record);
        let removable = found.first > self.base.next;
        self.values
            .judge(values, is_any, |record| (is_exact && !removable).then(|| there(record)))
            .map_err(|wrong| format!("{wrong}; damaged: {damaged:?}; {recovery:?}"))?;
        self.values.rebase(values);
        Ok(())
    }

    fn rebase(&mut self, found: &Content) {
        let records: BTreeMap<u64, u64> = found.records.iter().copied().collect();
        let gaps = (found.first..found.next).filter(|lsn| !records.contains_key(lsn)).collect();
        self.base = State { first: found.first, next: found.next, records, gaps };
        self.sent.clear();
        self.befores.clear();
        self.earlier.clear();
        let passed_over = self.hit.take().flatten().map(|hit| (hit.file, hit.offset));
        self.passed_over.extend(passed_over);
        (self.removal, self.undone, self.certain) = (None, None, None);
        self.opened = true;
    }

    /// Checks recovery's report against the contents.
    fn report(&self, found: &Content, recovery: &Recovery) -> Result<(), Wrong> {
        let mut unproven =
            found.records.iter().filter(|record| record.0 > recovery.durable_lsn.0).count() as u64;
        if recovery.durable_lsn.0 == 0 && recovery.tail_records > unproven {
            // Nothing is proven, and the log starts at 0.
            unproven += 1;
        }
        let told = (recovery.first.0, recovery.last.0, recovery.tail_records);
        if told != (found.first, found.next.saturating_sub(1), unproven) {
            return Err(format!(
                "the report does not fit the log: {recovery:?}, {}..{}",
                found.first, found.next
            ));
        }
        if recovery.created && self.opened { Err("the log was made anew".to_string()) } else { Ok(()) }
    }

    /// Checks that the missing acknowledged records may be missing.
    fn excused(&self, missing: &[u64], found: &Content, recovery: &Recovery) -> Result<(), Wrong> {
        let lost = &recovery.lost;
        let named = |lsn: &u64| lost.iter().any(|lost| (lost.first.0..=lost.last.0).contains(lsn));
        let damaged = self.hit.clone().flatten();
        let known = |lost: &Loss| (lost.first.0..=lost.last.0).all(|lsn| self.base.gaps.contains(&lsn));
        if damaged.is_none() && self.certain.is_none() && !lost.iter().all(known) {
            return Err(format!("lost without any damage: {lost:?}"));
        }
        if let Some(lsn) = found.records.iter().map(|record| record.0).find(|lsn| named(lsn)) {
            return Err(format!("record {lsn} is there, and named as lost"));
        }
        let unnamed: Vec<u64> = missing.iter().filter(|lsn| !named(lsn)).copied().collect();
        let Some(first) = unnamed.first() else { return Ok(()) };
        let at_the_end = found.next <= *first;
        let excused = match (&damaged, self.certain) {
            (_, Some(certain)) => at_the_end && *first >= certain,
            (Some(hit), _) => {
                let cut = hit.erased || recovery.truncated_at.is_some();
                at_the_end && hit.last && cut && unnamed.iter().all(|lsn| hit.lsns.contains(lsn))
            }
            (None, None) => false,
        };
        if excused {
            Ok(())
        } else {
            Err(format!(
                "acknowledged records {unnamed:?} are missing and not named ({}..{} are there; {recovery:?}; \
             hit {:?}, certain {:?})",
                found.first, found.next, damaged, self.certain
            ))
        }
    }

    /// Judges an open that was refused: whether the loss that it names can be the damage done.
    pub(crate) fn refused(&self, lost: &Loss) -> Result<(), Wrong> {
        // Records that an earlier salvage gave up may be named again: the group that declared them lost may
        // be the damaged one.
        let known = |lsn: u64| self.base.gaps.contains(&lsn);
        let mut lsns = lost.first.0..=lost.last.0;
        let right = match (&self.hit, self.is_lying()) {
            (_, true) => true,
            (Some(Some(hit)), _) => {
                // If nothing of the group is left, the damage may seem to start in the next segment.
                let is_at = |(file, offset)| lost.file.ends_with(file) && lost.offset == offset;
                let before = self.passed_over.iter().any(|(file, offset)| is_at((file, *offset)));
                // The remains of an interrupted open in an earlier segment look the same as this one's copy.
                let name = lost.file.file_name().unwrap_or_default();
                let cut_off = (hit.offset, lost.offset) == (0, 0) && *name < *hit.file;
                let exact = is_at((&hit.file, hit.offset)) || before || cut_off;
                let place = exact || hit.erased || known(lost.first.0);
                // The last group may be proven by the record outside of the segments.
                lsns.all(|lsn| known(lsn) || hit.lsns.contains(&lsn)) && place
            }
            _ => false,
        };
        if right { Ok(()) } else { Err(format!("refused with {lost:?}, and damaged was {:?}", self.hit)) }
    }
}
