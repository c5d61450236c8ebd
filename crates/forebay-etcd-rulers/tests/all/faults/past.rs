//! The state at every revision, made of the events of watches.

use std::collections::BTreeMap;

/// A key's value with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) value: u64,
    pub(crate) created: i64,
    pub(crate) modified: i64,
    pub(crate) version: i64,
    pub(crate) lease: i64,
}

/// A change of one key. Those of one transaction share a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) revision: i64,
    pub(crate) key: String,
    /// `None` after a delete.
    pub(crate) now: Option<Pair>,
    pub(crate) before: Option<Pair>,
}

/// All values of all keys.
#[derive(Debug)]
pub(crate) struct Past {
    /// By revision.
    keys: BTreeMap<String, Vec<(i64, Option<Pair>)>>,
    pub(crate) revision: i64,
}

impl Past {
    /// Starts without a key.
    pub(crate) fn new() -> Past {
        Past { keys: BTreeMap::new(), revision: 1 }
    }

    /// Adds an event. An error says how it contradicts earlier events: a revision is missing, repeated or lower, or its pair does
    /// not follow from the previous pair.
    pub(crate) fn add(&mut self, event: &Event) -> Result<(), String> {
        let wrong = |why: &str| Err(format!("{why} at revision {}: {event:?}", self.revision));
        let before = self.at(&event.key, self.revision);
        if event.revision != self.revision + 1 {
            let changes = self.keys.get(&event.key);
            let is_here_already =
                changes.and_then(|all| all.last()).is_some_and(|last| last.0 >= event.revision);
            if event.revision != self.revision || is_here_already {
                return wrong("an event is missing, or comes twice");
            }
        }
        if event.before != before {
            return wrong(&format!("the pair before was {before:?}"));
        }
        let fits = match (event.now, before) {
            (None, before) => before.is_some(),
            (Some(now), None) => (now.created, now.version) == (event.revision, 1),
            (Some(now), Some(before)) => (now.created, now.version) == (before.created, before.version + 1),
        };
        if !fits || event.now.is_some_and(|now| now.modified != event.revision) {
            return wrong("the numbers do not follow");
        }
        self.revision = event.revision;
        self.keys.entry(event.key.clone()).or_default().push((event.revision, event.now));
        Ok(())
    }

    /// Returns a key's pair at a revision.
    pub(crate) fn at(&self, key: &str, revision: i64) -> Option<Pair> {
        let changes = self.keys.get(key)?;
        let later = changes.partition_point(|(at, _)| *at <= revision);
        changes[..later].last().and_then(|(_, pair)| *pair)
    }

    pub(crate) fn all_at(&self, prefix: &str, revision: i64) -> Vec<(String, Pair)> {
        let keys = self.keys.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        keys.filter_map(|(key, _)| Some((key.clone(), self.at(key, revision)?))).collect()
    }
}
