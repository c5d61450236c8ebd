//! [`Apply`]: the state machine of a program.

use std::future::Future;
use std::io;

use forebay_kv::{Batch, Keyspace};
use openraft::RaftTypeConfig;
use openraft::type_config::alias::{LogIdOf, StoredMembershipOf};

use crate::error::Error;

/// The state machine of a program: how an entry changes its keyspaces, and the response to it.
///
/// [`RaftStore`](crate::RaftStore) calls it for each committed entry, in order, one at a time. The changes of an entry, its
/// log id and its membership are one atomic batch. Results must follow from the entry and the keyspaces alone: no clocks, no
/// random numbers, nothing of this node. So all nodes have the same state, and an entry that is applied again after a crash
/// gives the same.
pub trait Apply<C: RaftTypeConfig>: Send + Sync + 'static {
    /// Returns the names of the program's keyspaces. They are made when the store is opened; more may be added in later
    /// versions of the program, at the end. Default: one, `state`.
    fn keyspaces(&self) -> Vec<String> {
        vec!["state".to_owned()]
    }

    /// Returns how many bytes of memory an entry takes, roughly. Entries are prepared together until they have 8 MiB, so that long
    /// entries are not in memory 64 at a time. Default: 0, and only their number counts.
    fn entry_bytes(&self, entry: &C::Entry) -> usize {
        let _ = entry;
        0
    }

    /// Called with entries that are ready to be applied, at most 64 and in order, before the first of them is applied. A state
    /// machine that reads its keyspaces can read for all of them concurrently here, into its own memory, so that entries do not
    /// wait for the device one after the other. The grouping of entries differs between nodes, so no result may depend on it.
    /// Default: nothing.
    ///
    /// # Errors
    /// An error ends this node: read by [`until_memory`](crate::until_memory).
    fn prepare(
        &self,
        entries: &[C::Entry],
        keyspaces: &[Keyspace],
    ) -> impl Future<Output = io::Result<()>> + Send {
        let _ = (entries, keyspaces);
        async { Ok(()) }
    }

    /// Adds the changes of an entry to a batch, and returns the response to its client. `keyspaces` are those of
    /// [`keyspaces`](Self::keyspaces), in that order, with the changes of all earlier entries. Blank and membership entries are
    /// included: return a response for them.
    ///
    /// # Errors
    /// An error ends this node: the entry is committed, so it cannot be skipped. An invalid request is not an error, but a
    /// response. Read through [`until_memory`](crate::until_memory), as clients' reads may use up the store's memory.
    fn apply(
        &self,
        entry: C::Entry,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> impl Future<Output = io::Result<C::R>> + Send;

    /// Called with the keyspaces of a state that was opened, or that an installed snapshot puts in the place of the former
    /// one, before others read it and before any entry is applied to it. A state machine that has something of its state in memory reads it here. Default:
    /// nothing.
    ///
    /// # Errors
    /// An error fails [`RaftStore::open`](crate::RaftStore::open). After an install it ends this node.
    fn opened(&self, keyspaces: &[Keyspace]) -> impl Future<Output = io::Result<()>> + Send {
        let _ = keyspaces;
        async { Ok(()) }
    }

    /// Called when an entry cannot be applied, or a snapshot cannot be built, because [tables are damaged](Error::is_damage), with
    /// the membership of the state. Returns whether the program will [repair](crate::RaftStore::repair) the state: until then
    /// entries are counted without effect, and their clients get no response. openraft treats them as applied: read nothing
    /// meanwhile. Default: `false`, and the error ends this node.
    fn damaged(&self, error: &Error, membership: &StoredMembershipOf<C>) -> bool {
        let _ = (error, membership);
        false
    }

    /// Called after each entry, when its changes can be read, before its client has the response and before the next entry is
    /// applied. A state machine passes its changes on here to those who follow them. Openraft's loop waits meanwhile, so return
    /// soon. Default: nothing.
    fn applied(&self, log_id: &LogIdOf<C>) {
        let _ = log_id;
    }
}
