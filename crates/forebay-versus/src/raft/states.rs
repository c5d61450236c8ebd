//! State machines of a Raft node: they keep the last value that was proposed. None waits for the device, since the log has the entries.

use std::io;

use forebay_kv::{Batch, Keyspace};
use forebay_raft::Apply;
use futures_util::{Stream, StreamExt as _};
use openraft::alias::{EntryOf, LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::entry::RaftEntry as _;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};

use super::Types;

const KEY: &str = "last";

/// The state machine of forebay-raft's store.
pub(super) struct Last;

impl Apply<Types> for Last {
    async fn apply(
        &self,
        entry: EntryOf<Types>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<()> {
        if let EntryPayload::Normal(value) = entry.payload {
            batch.put(&keyspaces[0], KEY, value);
        }
        Ok(())
    }
}

/// A store of other state machines: a value and the applied log id.
pub(super) trait Values: Send + Sync + 'static {
    fn put(&mut self, applied: LogIdOf<Types>, value: String) -> io::Result<()>;
}

/// A value in memory.
#[derive(Default)]
pub(super) struct Memory(Option<(LogIdOf<Types>, String)>);

impl Values for Memory {
    fn put(&mut self, applied: LogIdOf<Types>, value: String) -> io::Result<()> {
        self.0 = Some((applied, value));
        Ok(())
    }
}

#[cfg(feature = "rocksdb")]
impl Values for rocksdb::DB {
    fn put(&mut self, applied: LogIdOf<Types>, value: String) -> io::Result<()> {
        let mut batch = rocksdb::WriteBatch::default();
        batch.put("applied", applied.to_string());
        batch.put(KEY, value);
        // As forebay-raft's store: durable with the next flush to its tables.
        let mut how = rocksdb::WriteOptions::default();
        how.disable_wal(true);
        self.write_opt(batch, &how).map_err(io::Error::other)
    }
}

/// A state machine on such a store. A node with it is never started again, and has no snapshots.
pub(super) struct Machine<V> {
    values: V,
    applied: Option<LogIdOf<Types>>,
    membership: StoredMembershipOf<Types>,
}

impl<V: Values> Machine<V> {
    pub(super) fn new(values: V) -> Self {
        Self { values, applied: None, membership: StoredMembershipOf::<Types>::default() }
    }
}

/// Nothing here builds or sends snapshots.
pub(super) struct NoSnapshots;

fn no_snapshots() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "no snapshots here")
}

impl RaftSnapshotBuilder<Types> for NoSnapshots {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, ()>> {
        Err(no_snapshots())
    }
}

impl<V: Values> RaftStateMachine<Types> for Machine<V> {
    type SnapshotData = ();
    type SnapshotBuilder = NoSnapshots;

    async fn applied_state(&mut self) -> io::Result<(Option<LogIdOf<Types>>, StoredMembershipOf<Types>)> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        while let Some(next) = entries.next().await {
            let (entry, responder) = next?;
            let id = entry.log_id();
            match entry.payload {
                EntryPayload::Normal(value) => self.values.put(id, value)?,
                EntryPayload::Membership(membership) => {
                    self.membership = StoredMembershipOf::<Types>::new(Some(id), membership);
                }
                EntryPayload::Blank => {}
            }
            self.applied = Some(id);
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> NoSnapshots {
        NoSnapshots
    }

    async fn install_snapshot(&mut self, _: &SnapshotMetaOf<Types>, (): ()) -> io::Result<()> {
        Err(no_snapshots())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, ()>>> {
        Ok(None)
    }
}
