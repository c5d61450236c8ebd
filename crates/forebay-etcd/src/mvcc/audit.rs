//! [`Audit`]: reads the keyspaces of a view, step by step, and compares them with each other and with the sums of the state.

use std::collections::HashSet;
use std::ops::Bound;

use super::Failure;
use super::codec::{self, At, Now, Put, Record, State};
use super::reader::Part;
use super::sums::{Sums, add, event_hash, lease_key_hash, now_hash, put_hash, version_hash};
use super::view::View;
use crate::version::Formats;

/// The most replaced events that an audit keeps in memory.
const REPLACED_MAX: usize = if cfg!(test) { 1_000 } else { 1 << 18 };

/// A range of entries that an audit reads in one pass.
#[derive(Clone, Copy, Debug)]
enum Stretch {
    Values,
    Leases,
    LeaseKeys,
    Accounts,
    /// Events that no compaction has visited. They name the older events that they have replaced.
    NewEvents,
    OldEvents,
    Versions,
}

/// All of them, in their order.
const STRETCHES: &[Stretch] = &[
    Stretch::Values,
    Stretch::Leases,
    Stretch::LeaseKeys,
    Stretch::Accounts,
    Stretch::NewEvents,
    Stretch::OldEvents,
    Stretch::Versions,
];

impl Stretch {
    fn part(self) -> Part {
        match self {
            Stretch::Values => Part::Now,
            Stretch::Leases => Part::Leases,
            Stretch::LeaseKeys => Part::LeaseKeys,
            Stretch::Accounts => Part::Meta,
            Stretch::NewEvents | Stretch::OldEvents => Part::Events,
            Stretch::Versions => Part::Versions,
        }
    }
}

/// The sums of the entries that were read.
#[derive(Debug, Default)]
struct TableSums {
    /// Those that the state should have.
    state: Sums,
    /// Of the values that old events wrote.
    old_values: u128,
    lease_keys: u128,
    /// Those that values should have.
    lease_keys_of_values: u128,
    /// The old events replaced by new events; `None` if they were too many.
    replaced: Option<HashSet<At>>,
    /// Of the old events that were not replaced.
    old_events: u128,
    versions: u128,
    /// Those that events should have.
    versions_of_events: u128,
    /// Of short events, with the bytes of their values.
    short_events: (u128, u64),
    /// Of the values that they should have.
    values_of_short_events: (u128, u64),
}

/// A pass over the keyspaces of a view.
///
/// It finds each wrong, missing or added entry. Of an event that a compaction left, and that was replaced since, it compares the place and
/// the length: nothing else has its value.
pub(crate) struct Audit {
    view: View,
    /// What is not read yet.
    left: &'static [Stretch],
    /// The last key that was read of the first of them.
    last: Option<Vec<u8>>,
    found: TableSums,
}

impl TableSums {
    fn add(&mut self, stretch: Stretch, key: &[u8], value: &[u8], state: &State) -> Result<(), Failure> {
        let cleaned = state.cleaned;
        self.state.add(stretch.part(), key, value, cleaned)?;
        match stretch {
            Stretch::Values => {
                let now = Now::decode(value)?;
                let hash = now_hash(key, &now);
                if now.at < cleaned {
                    add(&mut self.old_values, hash);
                }
                if state.is_short(now.at, now.value.len()) {
                    add_short(&mut self.values_of_short_events, hash, now.value.len() as u64);
                }
                if now.lease != 0 {
                    let lease_key = codec::lease_key_key(now.lease, key);
                    add(&mut self.lease_keys_of_values, lease_key_hash(&lease_key));
                }
            }
            Stretch::Leases | Stretch::Accounts => {}
            Stretch::LeaseKeys => add(&mut self.lease_keys, lease_key_hash(key)),
            Stretch::NewEvents => {
                let (at, record) = (At::of_key(key)?, Record::decode(value)?);
                if let Some(previous) = record.previous.filter(|previous| previous.at < cleaned)
                    && let Some(replaced) = &mut self.replaced
                {
                    replaced.insert(previous.at);
                    if replaced.len() > REPLACED_MAX {
                        self.replaced = None;
                    }
                }
                self.add_event(at, &record);
            }
            Stretch::OldEvents => {
                let (at, record) = (At::of_key(key)?, Record::decode(value)?);
                let is_current = self.replaced.as_ref().is_some_and(|replaced| !replaced.contains(&at));
                if is_current && record.put.is_some() {
                    add(&mut self.old_events, event_hash(at, &record));
                }
                self.add_event(at, &record);
            }
            Stretch::Versions => {
                let is_put = value.first().is_some_and(|is_put| *is_put != 0);
                add(&mut self.versions, version_hash(key, is_put));
                if let Some(put) = codec::moved(value)? {
                    let (escaped, at) = codec::split_version_key(key)?;
                    let hash = put_hash(&codec::unescape(escaped), at, &put);
                    add_short(&mut self.values_of_short_events, hash, put.value.len() as u64);
                }
            }
        }
        Ok(())
    }

    fn add_event(&mut self, at: At, record: &Record<'_>) {
        if let Some(Put::Short { value_bytes, hash }) = record.put {
            add_short(&mut self.short_events, hash, value_bytes);
        }
        let mut version = Vec::with_capacity(record.key.len() + 16);
        codec::version_key(record.key, at, &mut version);
        add(&mut self.versions_of_events, version_hash(&version, record.put.is_some()));
    }
}

fn add_short(sums: &mut (u128, u64), hash: u128, value_bytes: u64) {
    add(&mut sums.0, hash);
    sums.1 = sums.1.wrapping_add(value_bytes);
}

impl Audit {
    pub(crate) fn new(view: View) -> Audit {
        let found = TableSums { replaced: Some(HashSet::new()), ..TableSums::default() };
        Audit { view, left: STRETCHES, last: None, found }
    }

    /// Reads about this many bytes, or to the end of a stretch. Returns the bytes read; `None` at the end. After an error for
    /// lack of memory the next call resumes at the same place.
    ///
    /// # Errors
    /// Damage, and the store's.
    pub(crate) async fn step(&mut self, bytes_max: u64) -> Result<Option<u64>, Failure> {
        let Some((&stretch, rest)) = self.left.split_first() else { return Ok(None) };
        if matches!(stretch, Stretch::Accounts)
            && self.view.reader()?.format().await?.unwrap_or(Formats::FIRST) < Formats::WITH_ACCOUNTS
        {
            self.left = rest;
            return Ok(Some(0));
        }
        let state = self.view.state();
        let first = state.cleaned.key();
        let (low, high) = match stretch {
            Stretch::NewEvents => (Bound::Included(&first[..]), Bound::Unbounded),
            Stretch::OldEvents => (Bound::Unbounded, Bound::Excluded(&first[..])),
            _ => (Bound::Unbounded, Bound::Unbounded),
        };
        let low = self.last.as_deref().map_or(low, Bound::Excluded);
        // The cache holds the server's writes; the device may differ.
        let mut entries = self.view.reader()?.range(stretch.part(), (low, high)).fresh();
        let mut bytes = 0;
        while bytes < bytes_max {
            let Some((key, value)) = entries.next().await.transpose()? else {
                (self.left, self.last) = (rest, None);
                break;
            };
            self.found.add(stretch, &key, &value, &state)?;
            bytes += (key.len() + value.len()) as u64;
            self.last = Some(key);
        }
        Ok(Some(bytes))
    }

    /// Returns in which way the entries are not those that were written, once all are read.
    pub(crate) fn difference(&self) -> Option<&'static str> {
        let found = &self.found;
        if found.lease_keys != found.lease_keys_of_values {
            return Some("the keys of leases are not those of current values");
        }
        if found.versions != found.versions_of_events {
            return Some("the versions of keys are not those of events");
        }
        if found.replaced.is_some() && found.old_events != found.old_values {
            return Some("current values are not those of events");
        }
        // None until the first entry after a count.
        let sums = self.view.state().sums?;
        if found.state.current != sums.current {
            return Some("current values, leases, users or roles are not those that were written");
        }
        if found.short_events != found.values_of_short_events {
            return Some("older values are not those of events");
        }
        (found.state != sums).then_some("events are not those that were written")
    }
}
