//! The log of a member, which is that of no other one.
//!
//! The log may be on another drive than the rest (`--wal-dir`). If it were created again, because its drive is not mounted, the
//! member would lack its vote and the entries that it acknowledged; and another member's log could be mistaken for its own. So the
//! log has the ids of its member, and a number that was drawn for it; the [`Identity`] has the number as well, from when the log is
//! ready and before anything is in it. Until then the log may be missing or empty, and a start creates it again.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

use forebay::Engine;
use forebay_raft::{LogOptions, RaftLog};
use openraft::RaftLogReader;
use openraft::storage::RaftLogStorage;

use super::identity::Identity;
use super::{Directories, bootstrap, forebay_wal_options};
use crate::start_error::StartError;
use crate::types::Types;

/// The key of the log's value.
const KEY: &str = "etcd.owner";

/// The remedy for a missing log.
const LOST: &str =
    "if it is lost, remove this member from the cluster, empty its directories and add it again";

/// The value: whose log it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    cluster_id: u64,
    member_id: u64,
    number: u64,
}

impl Owner {
    fn encode(self) -> String {
        format!("{:x} {:x} {:x}", self.cluster_id, self.member_id, self.number)
    }

    fn decode(bytes: &[u8]) -> Option<Owner> {
        let mut numbers =
            std::str::from_utf8(bytes).ok()?.split(' ').map(|text| u64::from_str_radix(text, 16));
        let mut next = || numbers.next()?.ok();
        Some(Owner { cluster_id: next()?, member_id: next()?, number: next()? })
    }

    fn is_of(self, identity: &Identity) -> bool {
        (self.cluster_id, self.member_id) == (identity.cluster_id, identity.member_id)
    }

    /// Returns whether it is the member's log from before it continued alone.
    fn was_of(self, identity: &Identity) -> bool {
        (Some(self.cluster_id), self.member_id) == (identity.former_cluster_id, identity.member_id)
    }
}

/// Opens the log of a member, and creates it if the member has no log yet.
///
/// # Errors
/// The log is missing, is another one, or cannot be opened.
pub(super) async fn open(
    engine: &Engine,
    directories: &Directories,
    identity: &mut Identity,
) -> Result<RaftLog<Types>, StartError> {
    let dir = &*directories.log;
    let is_begun = identity.log.is_some();
    let options = LogOptions::new().wal(forebay_wal_options().create(!is_begun));
    let mut log = match RaftLog::open(engine, dir, options).await {
        Err(error) if is_begun && is_missing(&error) => {
            return Err(StartError::new(format!(
                "{} holds no log, and member {:x} has one: mount its drive, or give its --wal-dir; {LOST}",
                dir.display(),
                identity.member_id
            )));
        }
        opened => opened.map_err(|error| bootstrap::not_opened("the log", dir, &error))?,
    };
    if let Err(error) = own(&mut log, directories, identity).await {
        // It is not used: the first error counts.
        let _ = log.close().await;
        return Err(error);
    }
    Ok(log)
}

/// Returns whether the log, or its directory, does not exist.
fn is_missing(error: &forebay_raft::Error) -> bool {
    error.log().is_some_and(|error| match error.kind() {
        forebay_wal::ErrorKind::InvalidInput => true,
        forebay_wal::ErrorKind::Io => {
            error.cause().is_some_and(|cause| cause.kind() == forebay::ErrorKind::NotFound)
        }
        _ => false,
    })
}

/// Refuses a log of another member, and adopts an empty log if the member has no log yet.
async fn own(
    log: &mut RaftLog<Types>,
    directories: &Directories,
    identity: &mut Identity,
) -> Result<(), StartError> {
    let dir = &*directories.log;
    let failed = |error: &dyn fmt::Display| has_failed(dir, error);
    let owner = log.wal().value(KEY).map(|bytes| Owner::decode(&bytes).ok_or_else(|| not_of(dir, identity)));
    let owner = owner.transpose()?;
    match (owner, identity.log) {
        (Some(owner), _) if !owner.is_of(identity) && !owner.was_of(identity) => {
            return Err(StartError::new(format!(
                "{} holds the log of member {:x} of cluster {:x}, and this is member {:x} of cluster {:x}: give its own --wal-dir",
                dir.display(),
                owner.member_id,
                owner.cluster_id,
                identity.member_id,
                identity.cluster_id
            )));
        }
        (Some(owner), Some(begun)) if owner.number == begun => return Ok(()),
        (_, Some(_)) => {
            return Err(StartError::new(format!(
                "{} holds another log than the one that member {:x} started: mount its drive, or give its --wal-dir; {LOST}",
                dir.display(),
                identity.member_id
            )));
        }
        (_, None) => {}
    }
    let vote = log.read_vote().await.map_err(|error| failed(&error))?;
    let state = log.get_log_state().await.map_err(|error| failed(&error))?;
    if vote.is_some() || state.last_log_id.is_some() {
        return Err(not_of(dir, identity));
    }
    let number = RandomState::new().hash_one(identity.member_id);
    let Identity { cluster_id, member_id, .. } = *identity;
    let value = Owner { cluster_id, member_id, number }.encode();
    log.wal().set(KEY, value.as_bytes()).await.map_err(|error| failed(&error))?;
    identity.log = Some(number);
    identity.write(&directories.member)
}

/// Returns the log's owner if its member has another cluster now: it was interrupted as it continued alone.
fn former(log: &RaftLog<Types>, identity: &Identity) -> Option<Owner> {
    log.wal().value(KEY).and_then(|bytes| Owner::decode(&bytes)).filter(|owner| !owner.is_of(identity))
}

/// Returns whether this member was interrupted as it continued alone.
pub(super) fn is_interrupted(log: &RaftLog<Types>, identity: &Identity) -> bool {
    former(log, identity).is_some()
}

/// Marks the log for the cluster of its member, which continues alone.
pub(super) async fn follow(log: &RaftLog<Types>, dir: &Path, identity: &Identity) -> Result<(), StartError> {
    let Some(former) = former(log, identity) else { return Ok(()) };
    let value = Owner { cluster_id: identity.cluster_id, ..former }.encode();
    log.wal().set(KEY, value.as_bytes()).await.map_err(|error| has_failed(dir, &error))?;
    Ok(())
}

fn has_failed(dir: &Path, error: &dyn fmt::Display) -> StartError {
    StartError::new(format!("the log in {} has failed: {error}", dir.display()))
}

fn not_of(dir: &Path, identity: &Identity) -> StartError {
    StartError::new(format!(
        "{} holds a log that is in use, and member {:x} has begun none: give its own --wal-dir; if this is its log, mount the \
         drive of its --data-dir",
        dir.display(),
        identity.member_id
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_read_as_it_was_written() {
        let owner = Owner { cluster_id: u64::MAX, member_id: 0, number: 0xa0b };
        assert_eq!(Owner::decode(owner.encode().as_bytes()), Some(owner));
        for bytes in [&b""[..], b"1 2", b"1 2 z", b"\xff 1 2"] {
            assert_eq!(Owner::decode(bytes), None);
        }
    }
}
