//! Log and state of a node in memory.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::{self, Cursor};
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard};

use futures::{Stream, TryStreamExt};
use openraft::alias::{EntryOf, LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf, VoteOf};
use openraft::entry::RaftEntry;
use openraft::storage::{EntryResponder, IOFlushed, LogState, RaftLogStorage, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftLogReader, RaftSnapshotBuilder, Snapshot};
use serde::{Deserialize, Serialize};

use super::{Append, Lists, Types};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    applied: Option<LogIdOf<Types>>,
    membership: StoredMembershipOf<Types>,
    lists: BTreeMap<u64, Vec<u64>>,
}

#[derive(Debug, Default)]
struct DiskContents {
    vote: Option<VoteOf<Types>>,
    committed: Option<LogIdOf<Types>>,
    purged: Option<LogIdOf<Types>>,
    log: BTreeMap<u64, EntryOf<Types>>,
    snapshot: Option<(SnapshotMetaOf<Types>, Vec<u8>)>,
}

/// A node's durable state, as on a disk that needs no time: it survives the node's power.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(Arc<Mutex<DiskContents>>);

impl Disk {
    fn kept(&self) -> MutexGuard<'_, DiskContents> {
        self.0.lock().unwrap()
    }
}

/// The state machine: in memory, built again from the snapshot and the log after a restart.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    disk: Disk,
    state: Arc<Mutex<State>>,
}

impl Machine {
    pub(crate) fn open(disk: &Disk) -> Machine {
        let snapshot = disk.kept().snapshot.as_ref().map(|(_, bytes)| serde_json::from_slice(bytes).unwrap());
        Machine { disk: disk.clone(), state: Arc::new(Mutex::new(snapshot.unwrap_or_default())) }
    }
}

impl Lists for Machine {
    async fn read(&self, list: u64) -> Option<Vec<u64>> {
        Some(self.state.lock().unwrap().lists.get(&list).cloned().unwrap_or_default())
    }
}

impl RaftLogReader<Types> for Disk {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<EntryOf<Types>>> {
        Ok(self.kept().log.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> io::Result<Option<VoteOf<Types>>> {
        Ok(self.kept().vote)
    }
}

impl RaftLogStorage<Types> for Disk {
    type LogReader = Disk;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let kept = self.kept();
        let last = kept.log.values().next_back().map(|entry| entry.log_id());
        Ok(LogState { last_purged_log_id: kept.purged, last_log_id: last.or(kept.purged) })
    }

    async fn get_log_reader(&mut self) -> Disk {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf<Types>) -> io::Result<()> {
        self.kept().vote = Some(*vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogIdOf<Types>>) -> io::Result<()> {
        self.kept().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogIdOf<Types>>> {
        Ok(self.kept().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = EntryOf<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.kept().log.extend(entries.into_iter().map(|entry| (entry.index(), entry)));
        callback.io_completed(Ok(()));
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogIdOf<Types>>) -> io::Result<()> {
        self.kept().log.split_off(&last.map_or(0, |last| last.index() + 1));
        Ok(())
    }

    async fn purge(&mut self, up_to: LogIdOf<Types>) -> io::Result<()> {
        let mut kept = self.kept();
        kept.purged = Some(up_to);
        kept.log = kept.log.split_off(&(up_to.index() + 1));
        Ok(())
    }
}

impl RaftSnapshotBuilder<Types> for Machine {
    type SnapshotData = Cursor<Vec<u8>>;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, Cursor<Vec<u8>>>> {
        let state = self.state.lock().unwrap().clone();
        let meta =
            SnapshotMetaOf::<Types> { last_log_id: state.applied, last_membership: state.membership.clone() };
        let bytes = serde_json::to_vec(&state)?;
        self.disk.kept().snapshot = Some((meta.clone(), bytes.clone()));
        Ok(Snapshot { meta, snapshot: Cursor::new(bytes) })
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = Cursor<Vec<u8>>;
    type SnapshotBuilder = Machine;

    async fn applied_state(&mut self) -> io::Result<(Option<LogIdOf<Types>>, StoredMembershipOf<Types>)> {
        let state = self.state.lock().unwrap();
        Ok((state.applied, state.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let mut state = self.state.lock().unwrap();
            state.applied = Some(entry.log_id());
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(Append { list, element, .. }) => {
                    // A request may arrive twice.
                    let elements = state.lists.entry(list).or_default();
                    if !elements.contains(&element) {
                        elements.push(element);
                    }
                }
                EntryPayload::Membership(membership) => {
                    state.membership = StoredMembershipOf::<Types>::new(Some(entry.log_id), membership);
                }
            }
            drop(state);
            responder.into_iter().for_each(|responder| responder.send(()));
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Machine {
        self.clone()
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<Types>,
        snapshot: Cursor<Vec<u8>>,
    ) -> io::Result<()> {
        let bytes = snapshot.into_inner();
        *self.state.lock().unwrap() = serde_json::from_slice(&bytes)?;
        self.disk.kept().snapshot = Some((meta.clone(), bytes));
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, Cursor<Vec<u8>>>>> {
        let kept = self.disk.kept();
        let snapshot = kept.snapshot.clone();
        Ok(snapshot.map(|(meta, bytes)| Snapshot { meta, snapshot: Cursor::new(bytes) }))
    }
}
