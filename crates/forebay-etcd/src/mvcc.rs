//! The state: keys with all their values since the last compaction, leases, and members' attributes.
//!
//! [`Machine`] applies the entries of the log, [`View`] reads. The semantics are those of etcd's server, versions 3.4 and later.
//!
//! # Layout
//! Keyspaces of one store, in the order of [`KEYSPACES`]. An entry's changes are one atomic batch.
//!
//! | keyspace | key | value |
//! |---|---|---|
//! | `now` | a key | its current value, with create and mod revision (and sub revision), version and lease |
//! | `events` | main revision (u64), sub revision (u32), big endian; a 1 if the put is short | put or delete, key; value, create revision, version, lease, or of a short put the value's length and a hash; revision and length of the value before, if any |
//! | `versions` | a key, escaped, then the revisions | one byte: 1 for a put, 0 for a delete; of some replaced puts value, create revision, version, lease |
//! | `leases` | id, big endian | the granted time in seconds |
//! | `lease_keys` | id, key | nothing |
//! | `meta` | `state`, `format`, `checkpoint/` and an index, `member/` and an id, `alarm/` and an id and a type, `replaced/` and a revision, `auth`, `user/` and `role/` and a name | the state's numbers, with its sums; the number of its [format](crate::version::Formats); the sum at an entry; the member's attributes; nothing; nothing; whether authentication is on, with the revision of users and roles; these as etcd's files have them |
//!
//! A put reads `now`, unless the key was written lately, and writes one entry of `now`, `events`, `versions` and `meta`. Reads of the current revision need `now` alone. Reads
//! of an older one find revisions in `versions`, and watches read `events` in order. Each value is in one place, but for the latest: [`ages`] says where.
//!
//! # Compaction
//! A compaction sets the compacted revision, and from then on older revisions are refused. The entries are removed later, in steps
//! of the following entries, some of which the leader proposes only for that purpose until nothing is left: a walk over `events`
//! that resumes at its last position. Each event names the previous event of its key, which reads cannot reach once the walk is at
//! it; a delete is removed itself too. Events of the compacted revision itself stay, because a watch may start there; the next
//! compaction starts with them. So a step needs no look-ups, and its result follows from the state alone. Hashes and reads never
//! show its progress.
//!
//! # Sums
//! The state has sums of the hashes of its events, current values and leases: see [`sums`]. Entries maintain them without further
//! reads. So members are compared by numbers, at checkpoints: entries that compact, that pass a round revision, or that ask for
//! one. An [`Audit`](audit) reads the keyspaces, and compares them with the sums. A state without sums, of an earlier build or of
//! a snapshot that was restored, is counted when it is opened.
//!
//! # Space
//! `used_bytes` is the sum of the lengths of keys and values in these keyspaces and [`ENTRY_BYTES`] for each entry. A value counts
//! once, as in etcd, also while it is in two places; marks do not count. Earlier builds counted it twice, until such a state is
//! opened. The sum is part of the state, so alike on all members, and does not depend on files. No entry is refused for it, because
//! members may have different limits: check [`Limits::has_room`] before a proposal, and raise the alarm `NOSPACE`, which is part of
//! the state, if it is exceeded.

mod ages;
mod apply;
mod audit;
mod change;
mod check;
mod clean;
mod codec;
mod count;
mod counts;
mod damage;
mod hash;
mod import;
mod machine;
mod pairs;
mod parallel_reads;
mod range;
mod reader;
mod recent;
mod records;
mod sums;
mod txn;
mod users;
mod view;
mod walk;

#[cfg(test)]
pub(crate) mod tests;

use tonic::Status;

pub(crate) use audit::Audit;
pub(crate) use check::{check_delete, check_put, check_range, check_txn, is_read_only};
pub(crate) use counts::{Counts, Operations};
pub(crate) use damage::{Damage, DamageRecord, is_repaired};
pub(crate) use import::{CompactionRevisions, Import, ImportSummary};
pub(crate) use machine::Machine;
pub(crate) use pairs::{has_filters, is_in_key_order};
pub(crate) use records::KeyRecord;
pub(crate) use sums::Checkpoint;
pub(crate) use view::View;

use crate::proto::etcdserverpb::{PutRequest, TxnRequest, request_op::Request};
use crate::refusal::Refusal;
use crate::types::Types;

/// The store of the state, for Raft and for reads.
pub(crate) type Store = forebay_raft::RaftStore<Types, Machine>;

/// The keyspaces, in their order.
const KEYSPACES: [&str; 6] = ["now", "events", "versions", "leases", "lease_keys", "meta"];

/// Counted for each entry of a keyspace in addition to its key and value.
const ENTRY_BYTES: u64 = 16;
/// Counted for a lease: its id, and its entry.
const LEASE_BYTES: u64 = ENTRY_BYTES + 8;

/// The most bytes in the changes of one entry of the log, which become one batch of the store.
pub(crate) const CHANGES_BYTES_MAX: u64 = if cfg!(test) { 128 << 10 } else { 14 << 20 };

/// The most memory of such a batch, of which each change takes [`CHANGE_BYTES`] beside its bytes: a memtable has headers and places. An
/// entry whose batch the store refuses ends each member, now and at every start.
const BATCH_BYTES_MAX: u64 = if cfg!(test) { 192 << 10 } else { 20 << 20 };
const CHANGE_BYTES: u64 = 64;

/// The maximum bytes of values that one entry deletes or replaces: its events have them, for watches that want previous values. Each
/// step of a lease's revocation has a sixteenth of them, and at least one value.
pub(crate) const PREVIOUS_BYTES_MAX: u64 = if cfg!(test) { 512 << 10 } else { 256 << 20 };

/// The maximum bytes of pairs that the ranges of one transaction return together. They are in memory as a whole, and where the
/// transaction is an entry on each member, again at each start until the state is flushed.
const RETURNED_BYTES_MAX: u64 = if cfg!(test) { 16 << 20 } else { 128 << 20 };

/// The longest time of a lease, in seconds.
pub(crate) const TTL_MAX_S: i64 = 9_000_000_000;

/// Limits of this member. None of them has a part in how entries are applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The space limit of the state (`--quota-backend-bytes`); 0: no limit.
    pub(crate) space_bytes: u64,
    /// How many operations a transaction may have at each level (`--max-txn-ops`).
    pub(crate) txn_operations: usize,
    /// The size of the cache of recent values. It saves a put from reading the previous value in the store.
    pub(crate) recent_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { space_bytes: 0, txn_operations: 128, recent_bytes: 32 << 20 }
    }
}

impl Limits {
    /// Returns whether a request of this [cost](put_cost_bytes) fits in addition to `used_bytes`.
    pub(crate) fn has_room(&self, used_bytes: u64, cost_bytes: u64) -> bool {
        self.space_bytes == 0 || cost_bytes == 0 || used_bytes.saturating_add(cost_bytes) < self.space_bytes
    }
}

/// Returns an estimate of the space of a put.
pub(crate) fn put_cost_bytes(request: &PutRequest) -> u64 {
    256 + request.key.len() as u64 + request.value.len() as u64
}

/// Returns an estimate of the space of a transaction: that of its larger branch, 0 without puts.
pub(crate) fn txn_cost_bytes(request: &TxnRequest) -> u64 {
    let branch = |operations: &[crate::proto::etcdserverpb::RequestOp]| -> u64 {
        let cost = |request: &Option<Request>| match request {
            Some(Request::RequestPut(put)) => put_cost_bytes(put),
            Some(Request::RequestTxn(txn)) => txn_cost_bytes(txn),
            _ => 0,
        };
        operations.iter().map(|operation| cost(&operation.request)).sum()
    };
    branch(&request.success).max(branch(&request.failure))
}

pub(crate) const LEASE_COST_BYTES: u64 = 64;

/// Why something could not be read or applied.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request is refused.
    Refused(Refusal),
    /// The store failed, or was replaced by a snapshot.
    Store(forebay_kv::Error),
    /// The state is not what this program writes.
    Damaged(String),
}

impl Failure {
    /// Returns the damage of the state that was met.
    pub(crate) fn damage(&self) -> Option<Damage> {
        use forebay_kv::ErrorKind::{Corruption, MissingTable};
        match self {
            Failure::Store(error) if matches!(error.kind(), Corruption | MissingTable) => {
                Some(Damage::Tables(error.to_string()))
            }
            Failure::Damaged(text) => Some(Damage::Sums(text.clone())),
            Failure::Refused(_) | Failure::Store(_) => None,
        }
    }

    /// Returns whether the program holds memory that a read needs: it can be made again.
    pub(crate) fn is_memory(&self) -> bool {
        matches!(self, Failure::Store(error) if walk::is_memory(error))
    }

    fn damaged(what: &str, bytes: &[u8]) -> Failure {
        Failure::Damaged(format!(
            "{what} is not readable: {} bytes {:02x?}",
            bytes.len(),
            &bytes[..bytes.len().min(40)]
        ))
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

impl From<forebay_kv::Error> for Failure {
    fn from(error: forebay_kv::Error) -> Failure {
        Failure::Store(error)
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Status {
        match failure {
            Failure::Refused(refusal) => refusal.into(),
            // A snapshot was installed meanwhile, or the server stops: another try, or another member, may do.
            Failure::Store(error) if error.kind() == forebay_kv::ErrorKind::Closed => {
                Status::unavailable(error.to_string())
            }
            Failure::Store(error) => Status::internal(error.to_string()),
            Failure::Damaged(text) => Status::data_loss(text),
        }
    }
}

impl From<Failure> for std::io::Error {
    fn from(failure: Failure) -> std::io::Error {
        match failure {
            Failure::Refused(refusal) => std::io::Error::other(refusal.text()),
            Failure::Store(error) => std::io::Error::other(error),
            Failure::Damaged(text) => std::io::Error::new(std::io::ErrorKind::InvalidData, text),
        }
    }
}
