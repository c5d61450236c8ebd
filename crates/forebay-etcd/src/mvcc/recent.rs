//! [`Recent`]: current values that were written lately, so that applying another change of such a key reads nothing.

use std::collections::HashMap;
use std::mem;

use super::codec::At;
use crate::proto::mvccpb::event::EventType;
use crate::proto::mvccpb::{Event, KeyValue};

/// Counted for each value beside its own bytes and its key twice.
const VALUE_BYTES: usize = 160;

/// Values in two generations: those that were used since the last change of generations, and those before. All of them are as in `now`.
#[derive(Default)]
pub(super) struct Recent {
    young: HashMap<Vec<u8>, (At, KeyValue)>,
    old: HashMap<Vec<u8>, (At, KeyValue)>,
    young_bytes: usize,
    /// For both generations together.
    bytes_max: usize,
}

impl Recent {
    pub(super) fn new(bytes_max: usize) -> Recent {
        Recent { bytes_max, ..Recent::default() }
    }

    /// Returns the current value of a key if it is here.
    pub(super) fn get(&mut self, key: &[u8]) -> Option<(At, KeyValue)> {
        if let Some(found) = self.young.get(key) {
            return Some(found.clone());
        }
        let found = self.old.remove(key)?;
        self.insert(key.to_vec(), found.clone());
        Some(found)
    }

    /// Takes over the changes of an entry.
    pub(super) fn apply(&mut self, main: i64, events: &[Event]) {
        for (sub, event) in (0..).zip(events) {
            let Some(pair) = &event.kv else { continue };
            self.old.remove(&pair.key);
            if let Some((_, before)) = self.young.remove(&pair.key) {
                self.young_bytes -= bytes(&before);
            }
            if event.r#type() == EventType::Put {
                self.insert(pair.key.clone(), (At { main, sub }, pair.clone()));
            }
        }
    }

    fn insert(&mut self, key: Vec<u8>, value: (At, KeyValue)) {
        let bytes = bytes(&value.1);
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

fn bytes(pair: &KeyValue) -> usize {
    VALUE_BYTES + 2 * pair.key.len() + pair.value.len()
}
