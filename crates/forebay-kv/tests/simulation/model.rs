//! What a store may hold: for each writer, the states that its acknowledged and its open writes add up to.

use std::collections::{BTreeMap, BTreeSet};

/// A keyspace's place and a key's number.
pub(crate) type At = (u8, u8);
/// What a writer's keys hold: the numbers of values.
pub(crate) type State = BTreeMap<At, u64>;

/// Keys of a writer in each keyspace.
pub(crate) const KEYS: u8 = 10;
/// Keyspaces.
pub(crate) const SPACES: u8 = 2;
/// Writers, each with keys of its own.
pub(crate) const WRITERS: u8 = 4;
/// Writes of one writer that may be open at once, so that what they can add up to stays few.
pub(crate) const OPEN_MAX: usize = 5;

/// One write: all of its changes happen or none.
#[derive(Clone, Debug)]
struct Write {
    number: u64,
    changes: Vec<(At, Option<u64>)>,
    /// It was acknowledged, or its value was seen.
    is_certain: bool,
}

/// What is known of one writer.
#[derive(Clone, Debug, Default)]
struct Track {
    base: State,
    /// In the order in which they were begun.
    writes: Vec<Write>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    tracks: [Track; WRITERS as usize],
    count: u64,
    /// Writes that were acknowledged, in all lives.
    pub(crate) acknowledged: u64,
}

/// The writer whose value has this number.
fn writer_of(value: u64) -> usize {
    (value >> 56) as usize
}

fn apply(state: &mut State, changes: &[(At, Option<u64>)]) {
    for (at, value) in changes {
        match value {
            Some(value) => state.insert(*at, *value),
            None => state.remove(at),
        };
    }
}

impl Track {
    /// Every state that the writes so far can add up to.
    fn states(&self) -> BTreeSet<State> {
        let mut states = BTreeSet::from([self.base.clone()]);
        for write in &self.writes {
            let with = states.iter().map(|state| {
                let mut state = state.clone();
                apply(&mut state, &write.changes);
                state
            });
            let with: BTreeSet<State> = with.collect();
            match write.is_certain {
                true => states = with,
                false => states.extend(with),
            }
        }
        states
    }

    /// What came before the first open write is settled.
    fn settle(&mut self) {
        let settled = self.writes.iter().take_while(|write| write.is_certain).count();
        for write in self.writes.drain(..settled) {
            apply(&mut self.base, &write.changes);
        }
    }
}

impl Model {
    /// The number for a new value of a writer.
    pub(crate) fn value(&mut self, writer: u8) -> u64 {
        self.count += 1;
        u64::from(writer) << 56 | self.count
    }

    /// A write is under way.
    pub(crate) fn begin(&mut self, writer: u8, changes: Vec<(At, Option<u64>)>) -> u64 {
        self.count += 1;
        let write = Write { number: self.count, changes, is_certain: false };
        self.tracks[usize::from(writer)].writes.push(write);
        self.count
    }

    /// It was acknowledged.
    pub(crate) fn acknowledge(&mut self, writer: u8, number: u64) {
        self.acknowledged += 1;
        let track = &mut self.tracks[usize::from(writer)];
        track
            .writes
            .iter_mut()
            .filter(|write| write.number == number)
            .for_each(|write| write.is_certain = true);
        track.settle();
    }

    /// It cannot have happened: it was refused.
    pub(crate) fn refused(&mut self, writer: u8, number: u64) {
        self.tracks[usize::from(writer)].writes.retain(|write| write.number != number);
    }

    /// Somebody read a value: it is durable, whoever still waits for it. Answers whether somebody does.
    pub(crate) fn saw(&mut self, value: u64) -> Result<bool, String> {
        if writer_of(value) >= usize::from(WRITERS) || value & 0xff_ffff_ffff_ffff > self.count {
            return Err(format!("value {value:x} was never written"));
        }
        let track = &mut self.tracks[writer_of(value)];
        let mut was_open = false;
        for write in &mut track.writes {
            if write.changes.iter().any(|(_, new)| *new == Some(value)) {
                was_open |= !write.is_certain;
                write.is_certain = true;
            }
        }
        track.settle();
        Ok(was_open)
    }

    /// Open writes of a writer.
    pub(crate) fn open(&self, writer: u8) -> usize {
        self.tracks[usize::from(writer)].writes.iter().filter(|write| !write.is_certain).count()
    }

    pub(crate) fn states(&self, writer: u8) -> BTreeSet<State> {
        self.tracks[usize::from(writer)].states()
    }

    /// What a store that was opened holds of a writer's keys; from now on that is what it is.
    pub(crate) fn opened(&mut self, writer: u8, found: State) -> Result<(), String> {
        let states = self.states(writer);
        if !states.contains(&found) {
            let track = &self.tracks[usize::from(writer)];
            return Err(format!(
                "writer {writer} finds {found:x?}, which none of {} states is; {track:x?}",
                states.len()
            ));
        }
        self.tracks[usize::from(writer)] = Track { base: found, writes: Vec::new() };
        Ok(())
    }
}
