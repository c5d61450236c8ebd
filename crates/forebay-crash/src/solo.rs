//! A log with one writer that uses every call that changes the log: batches, long records, both truncations,
//! reset.

use std::collections::BTreeMap;
use std::path::Path;

use forebay::Engine;
use forebay_wal::{Lsn, Wal};

use crate::log::options;
use crate::random::{Random, mix};
use crate::subject::{self, Say, Writer, bytes, difference, number, words};

const EXTRA: u64 = 2_000;
/// Bound of the extra bytes of a record that needs more than one write unit by itself.
const LONG: u64 = 60_000;

/// The contents of the log: life, count and index of each record.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    first: u64,
    next: u64,
    records: BTreeMap<u64, [u64; 3]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Append(u64),
    Long,
    Before(u64),
    After(u64),
    Reset(u64),
}

impl Op {
    fn draw(life: u64, count: u64, state: &State) -> Op {
        let mut random = Random::new(mix(&[life, count]));
        let held = state.next - state.first;
        match random.below(20) {
            0..12 => Op::Append(1 + random.below(6)),
            12 | 13 => Op::Long,
            // Keep the log small, so that each recovery is quick.
            _ if held > 200 => Op::Before(state.next - random.below(100)),
            14 | 15 if held > 0 => Op::Before(state.first + random.below(held + 1)),
            16..19 if held > 0 => Op::After(state.next - 1 - random.below(held.min(20) + 1)),
            19 if random.chance(20) => Op::Reset(state.next + random.below(1_000)),
            _ => Op::Append(1),
        }
    }
}

impl State {
    fn change(&mut self, op: Op, life: u64, count: u64) {
        match op {
            Op::Append(records) => self.append(records, life, count),
            Op::Long => self.append(1, life, count),
            Op::Before(lsn) => {
                self.records.retain(|number, _| *number >= lsn);
                self.first = self.first.max(lsn);
            }
            Op::After(lsn) => {
                self.records.retain(|number, _| *number <= lsn);
                self.next = lsn + 1;
                self.first = self.first.min(self.next);
            }
            Op::Reset(next) => {
                self.records.clear();
                (self.first, self.next) = (next, next);
            }
        }
    }

    fn append(&mut self, records: u64, life: u64, count: u64) {
        for index in 0..records {
            self.records.insert(self.next, [life, count, index]);
            self.next += 1;
        }
    }

    /// Returns how this state differs from `other`.
    fn differs(&self, other: &State) -> Option<String> {
        let bounds = |state: &State| (state.first, state.next);
        if bounds(self) != bounds(other) {
            return Some(format!("it holds {:?} and not {:?}", bounds(other), bounds(self)));
        }
        difference(&self.records, &other.records)
    }
}

struct Open {
    wal: Wal,
    state: State,
}

pub(crate) fn recover(
    engine: &Engine,
    dir: &Path,
    life: u64,
    say: Say<'_>,
) -> Result<impl Writer + 'static, String> {
    let (wal, recovery) =
        Wal::open(engine, dir, options(life + 1)).wait().map_err(|error| format!("opening: {error:?}"))?;
    let mut state = State { first: recovery.first.0, next: recovery.last.0 + 1, records: BTreeMap::new() };
    say(&format!("first {} {}", state.first, state.next));
    let mut reader = wal.read_from(recovery.first);
    while let Some(record) =
        reader.next().wait().transpose().map_err(|error| format!("reading: {error:?}"))?
    {
        let lsn = record.lsn().0;
        let found = words(&record, EXTRA).or_else(|| words(&record, LONG));
        let [life, count, index] = found.ok_or(format!("record {lsn} has bytes that nobody wrote"))?;
        say(&format!("has {lsn} {life} {count} {index}"));
        state.records.insert(lsn, [life, count, index]);
    }
    say("whole");
    Ok(Open { wal, state })
}

impl Writer for Open {
    fn write(mut self: Box<Self>, life: u64, say: Say<'_>) -> Result<(), String> {
        for count in 0.. {
            let op = Op::draw(life, count, &self.state);
            self.run(op, life, count).map_err(|error| format!("{op:?}: {error:?}"))?;
            if !say(&format!("ack {count}")) {
                return Ok(());
            }
            self.state.change(op, life, count);
        }
        Ok(())
    }
}

impl Open {
    fn run(&self, op: Op, life: u64, count: u64) -> forebay_wal::Result<()> {
        match op {
            Op::Append(1) => self.wal.append(&bytes([life, count, 0], EXTRA)).wait().map(drop),
            Op::Append(records) => {
                let records: Vec<_> = (0..records).map(|index| bytes([life, count, index], EXTRA)).collect();
                let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
                self.wal.append(&records[..]).wait().map(drop)
            }
            Op::Long => self.wal.append(&bytes([life, count, 0], LONG)).wait().map(drop),
            Op::Before(lsn) => self.wal.truncate_before(Lsn(lsn)).wait(),
            Op::After(lsn) => self.wal.truncate_from(Lsn(lsn + 1)).wait(),
            Op::Reset(next) => self.wal.reset_to(Lsn(next)).wait(),
        }
    }
}

/// The records that must be in the log: `state`, or `state` and the operation in flight.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    life: u64,
    state: State,
    /// The next operation, set once the guest writes.
    count: Option<u64>,
    told: u64,
    found: State,
}

impl Default for Model {
    fn default() -> Model {
        let empty = State { first: 1, next: 1, records: BTreeMap::new() };
        Model { life: 0, state: empty.clone(), count: None, told: 0, found: empty }
    }
}

impl Model {
    fn check(&mut self) -> Result<(), String> {
        if let Some(difference) = self.state.differs(&self.found) {
            let Some(count) = self.count else {
                return Err(format!("as nothing was in flight: {difference}"));
            };
            let op = Op::draw(self.life, count, &self.state);
            let mut next = self.state.clone();
            next.change(op, self.life, count);
            if let Some(other) = next.differs(&self.found) {
                return Err(format!("without {op:?} in flight: {difference}; with it: {other}"));
            }
            self.state = next;
        }
        self.count = None;
        Ok(())
    }
}

impl subject::Model for Model {
    fn began(&mut self, life: u64) {
        self.life = life;
        self.count = Some(0);
    }

    fn hear(&mut self, words: &[&str]) -> Result<(), String> {
        let number = |at| number(words, at);
        match words.first().copied() {
            Some("ack") => {
                let count = number(1)?;
                if self.count != Some(count) {
                    return Err(format!("operation {count} was acknowledged instead of {:?}", self.count));
                }
                let op = Op::draw(self.life, count, &self.state);
                self.state.change(op, self.life, count);
                self.count = Some(count + 1);
                self.told += 1;
            }
            Some("first") => {
                self.found = State { first: number(1)?, next: number(2)?, records: BTreeMap::new() };
            }
            Some("has") => {
                self.found.records.insert(number(1)?, [number(2)?, number(3)?, number(4)?]);
            }
            Some("whole") => return self.check(),
            _ => return Err(format!("unknown line {}", words.join(" "))),
        }
        Ok(())
    }

    fn acknowledged(&self) -> u64 {
        self.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{Model as _, hear};

    fn lines(state: &State) -> Vec<String> {
        let mut lines = vec![format!("first {} {}", state.first, state.next)];
        lines.extend(
            state
                .records
                .iter()
                .map(|(lsn, [life, count, index])| format!("has {lsn} {life} {count} {index}")),
        );
        lines.push("whole".into());
        lines
    }

    /// Every state on the way is accepted only as the last acknowledged one or the next one.
    #[test]
    fn only_what_was_acknowledged_and_the_next_operation_may_be_there() {
        let mut states = vec![Model::default().state];
        for count in 0..200 {
            let mut state = states[count].clone();
            state.change(Op::draw(1, count as u64, &state), 1, count as u64);
            states.push(state);
        }
        assert!(
            states.iter().any(|state| state.first > 1 && state.records.is_empty()),
            "all is removed at times"
        );
        for acked in [0, 1, 50, 150] {
            let mut right = 0;
            for state in &states {
                let mut model = Model::default();
                model.began(1);
                let acks: Vec<_> = (0..acked).map(|count| format!("ack {count}")).collect();
                hear(&mut model, &acks).expect("acknowledged");
                let allowed = [&states[acked], &states[acked + 1]].contains(&state);
                assert_eq!(hear(&mut model, &lines(state)).is_ok(), allowed);
                right += usize::from(allowed);
            }
            assert!(right >= 2);
        }
    }
}
