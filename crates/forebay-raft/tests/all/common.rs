//! Helpers shared by the tests.
#![allow(dead_code, reason = "each test crate uses a part of it")]

use std::io;
use std::ops::Range;

use forebay_kv::{Batch, Keyspace};
use forebay_raft::{Apply, RaftSnapshot, RaftStore, SnapshotPart};
use forebay_raft_sim::SimRuntime;
use openraft::RaftTypeConfig;
use openraft::alias::{EntryOf, LogIdOf};
use openraft::entry::RaftEntry;
use openraft::storage::RaftStateMachine;
use openraft::vote::RaftLeaderIdExt;

openraft::declare_raft_types!(
    /// On Tokio.
    pub(crate) Types: D = String, R = String
);
openraft::declare_raft_types!(
    /// In a simulated world.
    pub(crate) WorldTypes: D = String, R = String, AsyncRuntime = SimRuntime
);

/// Returns a directory on a real file system, in the build directory, where O_DIRECT works; `/tmp` is often memory.
pub(crate) fn dir() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("forebay-raft-test-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a directory")
}

/// Returns a log id of node 1.
pub(crate) fn log_id<C: RaftTypeConfig<Term = u64, NodeId = u64>>(term: u64, index: u64) -> LogIdOf<C> {
    LogIdOf::<C>::new(C::LeaderId::new_committed(term, 1), index)
}

/// Returns an entry of the program.
pub(crate) fn entry<C>(term: u64, index: u64, data: impl Into<String>) -> C::Entry
where
    C: RaftTypeConfig<Term = u64, NodeId = u64, D = String>,
{
    C::Entry::new_normal(log_id::<C>(term, index), data.into())
}

/// Types of a node whose requests and responses are texts.
pub(crate) trait TextTypes: RaftTypeConfig<Term = u64, NodeId = u64, D = String, R = String> {}

impl<C: RaftTypeConfig<Term = u64, NodeId = u64, D = String, R = String>> TextTypes for C {}

/// Keeps each entry's text by its index, and fails on a `refused` text.
pub(crate) struct Texts;

impl<C: TextTypes> Apply<C> for Texts {
    async fn apply(
        &self,
        entry: EntryOf<C>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<String> {
        let text = entry.to_string();
        if text.contains("refused") {
            return Err(io::Error::other("this state machine cannot go on"));
        }
        batch.put(&keyspaces[0], entry.log_id().index.to_be_bytes(), text.repeat(30));
        Ok(text)
    }
}

/// Applies the entries with these indexes.
pub(crate) async fn apply<C: TextTypes, A: Apply<C>>(
    store: &mut RaftStore<C, A>,
    indexes: Range<u64>,
) -> io::Result<()> {
    let entries = indexes.map(|index| Ok((entry::<C>(1, index, format!("entry {index}")), None)));
    store.apply(futures_util::stream::iter(entries.collect::<Vec<_>>())).await
}

/// Returns the number of entries that the state has, all of which must be there.
pub(crate) async fn count<C: TextTypes>(store: &mut RaftStore<C, Texts>) -> u64 {
    let (applied, _) = store.applied_state().await.expect("a state");
    let count = applied.map_or(0, |id| id.index + 1);
    let keyspaces = store.keyspaces();
    let (mut all, mut found) = (keyspaces[0].iter(), 0u64);
    while let Some(next) = all.next().await {
        let (key, value) = next.expect("an entry");
        assert_eq!(key, found.to_be_bytes());
        let text = entry::<C>(1, found, format!("entry {found}")).to_string().repeat(30);
        assert_eq!(&value[..], text.as_bytes());
        found += 1;
    }
    assert_eq!(found, count);
    count
}

/// Returns the parts of a snapshot.
pub(crate) async fn parts(snapshot: &RaftSnapshot) -> Vec<SnapshotPart> {
    let (mut reader, mut parts) = (snapshot.reader(), Vec::new());
    while let Some(part) = reader.next().await.expect("a part") {
        parts.push(part);
    }
    parts
}

/// Returns whether another process has log or store locked.
pub(crate) fn is_locked(error: &forebay_raft::Error) -> bool {
    error.log().is_some_and(|log| log.kind() == forebay_wal::ErrorKind::Locked)
        || error.store().is_some_and(|store| store.kind() == forebay_kv::ErrorKind::Locked)
}
