//! [`Recent`]: current values of keys that were written or read ahead lately, so that applying a change of such a key reads
//! nothing.

use std::collections::HashMap;
use std::mem;

use bytes::Bytes;

use super::codec::At;
use super::parallel_reads::Ahead;
use crate::proto::mvccpb::event::EventType;
use crate::proto::mvccpb::{Event, KeyValue};

/// Counted for each value in addition to its own bytes and its key twice.
const VALUE_BYTES: usize = 160;

/// The current value of a key, and where it was written; `None` if the key is not there.
pub(super) type Current = Option<(At, KeyValue)>;

/// Values in two generations: those that were used since the last change of generations, and those before. All of them are as in `now`.
#[derive(Default)]
pub(super) struct Recent {
    young: HashMap<Bytes, Current>,
    old: HashMap<Bytes, Current>,
    young_bytes: usize,
    /// For both generations together.
    bytes_max: usize,
}

impl Recent {
    pub(super) fn new(bytes_max: usize) -> Recent {
        Recent { bytes_max, ..Recent::default() }
    }

    /// Returns the current value of a key if it is known here.
    pub(super) fn get(&mut self, key: &[u8]) -> Option<Current> {
        if let Some(found) = self.young.get(key) {
            return Some(found.clone());
        }
        let (key, found) = self.old.remove_entry(key)?;
        self.insert(key, found.clone());
        Some(found)
    }

    pub(super) fn knows(&self, key: &[u8]) -> bool {
        self.young.contains_key(key) || self.old.contains_key(key)
    }

    /// Applies the changes of an entry.
    pub(super) fn apply(&mut self, main: i64, events: &[Event]) {
        for (sub, event) in (0..).zip(events) {
            let Some(pair) = &event.kv else { continue };
            let is_put = event.r#type() == EventType::Put;
            self.insert(pair.key.clone(), is_put.then(|| (At { main, sub }, pair.clone())));
        }
    }

    /// Returns how much of values that are read for it has a place in it.
    pub(super) fn ahead(&self) -> Ahead {
        Ahead { bytes_max: self.bytes_max / 2, value_bytes_max: self.bytes_max / 8 }
    }

    /// Inserts a value as it is in `now`, unless it is very long.
    pub(super) fn insert(&mut self, key: Bytes, value: Current) {
        self.old.remove(&key);
        if let Some(before) = self.young.remove(&key) {
            self.young_bytes -= bytes(&key, &before);
        }
        let bytes = bytes(&key, &value);
        if bytes > self.bytes_max / 8 {
            return;
        }
        if self.young_bytes + bytes > self.bytes_max / 2 {
            self.old = mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += bytes;
        self.young.insert(key, value);
    }
}

fn bytes(key: &[u8], value: &Current) -> usize {
    VALUE_BYTES + key.len() + value.as_ref().map_or(0, |(_, pair)| pair.key.len() + pair.value.len())
}
