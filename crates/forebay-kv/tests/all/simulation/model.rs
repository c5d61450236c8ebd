//! The possible contents of a store: for each writer, the states that its acknowledged and its open writes
//! can result in.

use std::collections::{BTreeMap, BTreeSet};

/// A keyspace's index and a key's number.
pub(crate) type At = (u8, u8);
/// The contents of a writer's keys: the numbers of values.
pub(crate) type State = BTreeMap<At, u64>;

/// Keys of a writer in each keyspace.
pub(crate) const KEYS: u8 = 10;
/// Number of keyspaces.
pub(crate) const SPACES: u8 = 2;
/// Number of writers, each with its own keys.
pub(crate) const WRITERS: u8 = 4;
/// Maximum open writes of one writer, so that few states are possible.
pub(crate) const OPEN_MAX: usize = 5;

/// One write, whose changes are applied all or not at all.
#[derive(Clone, Debug)]
struct Write {
    number: u64,
    changes: Vec<(At, Option<u64>)>,
    /// The write was acknowledged, or its value was read.
    is_certain: bool,
}

/// The expected contents of one writer's keys.
#[derive(Clone, Debug, Default)]
struct Track {
    base: State,
    /// In the order of their starts.
    writes: Vec<Write>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    tracks: [Track; WRITERS as usize],
    count: u64,
    /// Writes acknowledged in all lives.
    pub(crate) acknowledged: u64,
}

/// Returns the writer whose value has this number.
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
    /// Returns every state that the writes so far can result in.
    fn states(&self) -> BTreeSet<State> {
        let mut states = BTreeSet::from([self.base.clone()]);
        for write in &self.writes {
            let with = states.iter().map(|state| {
                let mut state = state.clone();
                apply(&mut state, &write.changes);
                state
            });
            let with: BTreeSet<State> = with.collect();
            if write.is_certain { states = with } else { states.extend(with) }
        }
        states
    }

    /// Applies the certain writes before the first open one.
    fn settle(&mut self) {
        let settled = self.writes.iter().take_while(|write| write.is_certain).count();
        for write in self.writes.drain(..settled) {
            apply(&mut self.base, &write.changes);
        }
    }
}

impl Model {
    /// Returns the number for a new value of a writer.
    pub(crate) fn value(&mut self, writer: u8) -> u64 {
        self.count += 1;
        u64::from(writer) << 56 | self.count
    }

    /// A write starts.
    pub(crate) fn begin(&mut self, writer: u8, changes: Vec<(At, Option<u64>)>) -> u64 {
        self.count += 1;
        let write = Write { number: self.count, changes, is_certain: false };
        self.tracks[usize::from(writer)].writes.push(write);
        self.count
    }

    /// The write was acknowledged.
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

    /// The write was refused: it cannot have happened.
    pub(crate) fn refused(&mut self, writer: u8, number: u64) {
        self.tracks[usize::from(writer)].writes.retain(|write| write.number != number);
    }

    /// Records that a value was read: its write is durable, even if not acknowledged yet. Returns whether the
    /// write is still open.
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

    /// Returns the number of open writes of a writer.
    pub(crate) fn open(&self, writer: u8) -> usize {
        self.tracks[usize::from(writer)].writes.iter().filter(|write| !write.is_certain).count()
    }

    pub(crate) fn states(&self, writer: u8) -> BTreeSet<State> {
        self.tracks[usize::from(writer)].states()
    }

    /// Checks the contents of a writer's keys after an open; from now on they are the writer's state.
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
