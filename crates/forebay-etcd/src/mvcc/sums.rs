//! [`Sums`]: sums over the entries of the keyspaces, kept as entries of the log are applied, so that members are compared without a read of
//! any table.
//!
//! Each event, with its key, place and value, has a hash of 128 bits, and so has each lease. Sums of them, modulo 2^128, are a part of
//! the state. They follow from its entries alone, so a state without them can be counted at any time, on each member at another. Hashes
//! of the same event in `events` and in `now` are alike.

use sha2::{Digest, Sha256};

use super::Failure;
use super::codec::{self, At, Bytes, Now, Put, PutRecord, Record, put_number};
use super::reader::Part;

/// How many checkpoints the state keeps. All members keep the same checkpoints.
pub(super) const CHECKPOINTS_KEPT: usize = if cfg!(test) { 4 } else { 16 };
/// A checkpoint is made by the entry that passes a multiple of this many revisions.
const CHECKPOINT_REVISIONS: i64 = if cfg!(test) { 64 } else { 10_000 };

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// Of the events that no compaction has looked at.
    pub(super) events: u128,
    /// Of the [`place_hash`]es of the others. Compactions know no more of the events that they remove.
    pub(super) left: u128,
    /// Of current values, of leases, and of users and roles if the state's format counts them.
    pub(super) current: u128,
}

impl Sums {
    /// Returns the number that members compare.
    pub(super) fn compared(&self) -> u128 {
        self.events.wrapping_add(self.left).wrapping_add(self.current)
    }

    /// Adds an entry of a keyspace. `cleaned` is the first event that no compaction has looked at.
    pub(super) fn add(&mut self, part: Part, key: &[u8], value: &[u8], cleaned: At) -> Result<(), Failure> {
        match part {
            Part::Now => add(&mut self.current, now_hash(key, &Now::decode(value)?)),
            Part::Leases => {
                let ttl_s = Bytes::new(value, "a lease").signed()?;
                add(&mut self.current, lease_hash(codec::lease_id(key)?, ttl_s));
            }
            Part::Events => {
                let (at, record) = (At::of_key(key)?, Record::decode(value)?);
                if at < cleaned {
                    add(&mut self.left, place_hash(record.key, at, record.value_bytes()));
                } else {
                    add(&mut self.events, event_hash(at, &record));
                }
            }
            Part::Meta if codec::is_account(key) => add(&mut self.current, record_hash(key, value)),
            Part::Versions | Part::LeaseKeys | Part::Meta => {}
        }
        Ok(())
    }

    /// Changes them for an event that a compaction looks at, and those that it removes for it.
    pub(super) fn clean(&mut self, at: At, record: &Record<'_>) {
        self.events = self.events.wrapping_sub(event_hash(at, record));
        if record.put.is_some() {
            add(&mut self.left, place_hash(record.key, at, record.value_bytes()));
        }
        if let Some(previous) = &record.previous {
            let removed = place_hash(record.key, previous.at, previous.value_bytes);
            self.left = self.left.wrapping_sub(removed);
        }
    }

    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        for sum in [self.events, self.left, self.current] {
            to.extend_from_slice(&sum.to_le_bytes());
        }
    }

    pub(super) fn decode(bytes: &mut Bytes<'_>) -> Result<Sums, Failure> {
        Ok(Sums { events: bytes.hash()?, left: bytes.hash()?, current: bytes.hash()? })
    }
}

pub(super) fn add(sum: &mut u128, hash: u128) {
    *sum = sum.wrapping_add(hash);
}

/// The sum of a state at one entry, by which members are compared later: after its own changes, and before the compaction step in
/// the same entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// That of the entry.
    pub(crate) index: u64,
    pub(crate) revision: i64,
    pub(crate) compacted: i64,
    pub(crate) sum: u128,
}

impl Checkpoint {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(32);
        put_number(self.revision as u64, &mut bytes);
        put_number((self.compacted + 1) as u64, &mut bytes);
        bytes.extend_from_slice(&self.sum.to_le_bytes());
        bytes
    }

    pub(super) fn decode(key: &[u8], bytes: &[u8]) -> Result<Checkpoint, Failure> {
        let index = codec::checkpoint_index(key)?;
        let mut bytes = Bytes::new(bytes, "a checkpoint");
        let (revision, compacted) = (bytes.signed()?, bytes.signed()? - 1);
        Ok(Checkpoint { index, revision, compacted, sum: bytes.hash()? })
    }
}

/// Returns whether an entry that raises the revision from `before` to `after` makes a checkpoint for that reason.
pub(super) fn is_checkpoint(before: i64, after: i64) -> bool {
    before / CHECKPOINT_REVISIONS != after / CHECKPOINT_REVISIONS
}

pub(super) fn event_hash(at: At, record: &Record<'_>) -> u128 {
    match &record.put {
        Some(Put::Whole(put)) => put_hash(record.key, at, put),
        Some(Put::Short { hash, .. }) => *hash,
        None => hash(b'd', &[record.key, &at.key()]),
    }
}

/// Returns the hash of a current value: that of the event that wrote it.
pub(super) fn now_hash(key: &[u8], now: &Now<'_>) -> u128 {
    let Now { create, at, version, lease, value } = *now;
    put_hash(key, at, &PutRecord { create, version, lease, value })
}

pub(super) fn put_hash(key: &[u8], at: At, put: &PutRecord<'_>) -> u128 {
    let PutRecord { create, version, lease, value } = *put;
    let numbers = [create, version, lease].map(i64::to_le_bytes);
    hash(b'p', &[key, &at.key(), numbers.as_flattened(), value])
}

pub(super) fn lease_hash(id: i64, ttl_s: i64) -> u128 {
    hash(b'l', &[&id.to_le_bytes(), &ttl_s.to_le_bytes()])
}

/// Returns the hash of a record of users and roles.
pub(super) fn record_hash(key: &[u8], record: &[u8]) -> u128 {
    hash(b'u', &[key, record])
}

/// Returns the hash of the place of an event, with the length of its value.
fn place_hash(key: &[u8], at: At, value_bytes: u64) -> u128 {
    hash(b'e', &[key, &at.key(), &value_bytes.to_le_bytes()])
}

pub(super) fn version_hash(version_key: &[u8], is_put: bool) -> u128 {
    hash(b'v', &[version_key, &[u8::from(is_put)]])
}

/// Returns the hash of an entry of `lease_keys`.
pub(super) fn lease_key_hash(lease_key: &[u8]) -> u128 {
    hash(b'k', &[lease_key])
}

fn hash(kind: u8, parts: &[&[u8]]) -> u128 {
    let mut hasher = Sha256::new();
    hasher.update([kind]);
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let digest: [u8; 32] = hasher.finalize().into();
    digest.first_chunk().map_or(0, |half| u128::from_le_bytes(*half))
}
