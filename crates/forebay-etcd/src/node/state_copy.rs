//! The state of another member in the place of one whose tables are damaged: `services/heal.rs` says when, and why it is sound.

use std::future::ready;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay::Engine;
use forebay_kv::Keyspace;
use forebay_raft::{ErrorKind, RaftSnapshot, SnapshotPart};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use openraft::storage::RaftSnapshotBuilder;
use openraft::type_config::alias::SnapshotOf;
use tokio::time::{timeout, timeout_at};
use tonic::{Status, Streaming};

use super::peers::{Purpose, causes};
use super::wire::{Snapshot, decode, encode};
use super::{Node, bootstrap, store_options};
use crate::mvcc::{Damage, DamageRecord, Machine, Store, View, is_repaired};
use crate::proto::peer::command::Change;
use crate::proto::peer::{Checkpoint, Encoded, StateRequest, StateSum};
use crate::refusal::Refusal;
use crate::start_error::StartError;
use crate::types::Types;

/// The time limit for each message of another member.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// The reason why another member's state was not adopted.
#[derive(Debug)]
pub(crate) enum CopyFailure {
    /// Another try may do.
    Early(String),
    /// The majority has another state than this member, which would be the source.
    Different(u64),
    /// No other try does.
    Final(String),
}

impl From<Status> for CopyFailure {
    fn from(status: Status) -> CopyFailure {
        CopyFailure::Early(status.message().to_owned())
    }
}

impl From<forebay_raft::Error> for CopyFailure {
    fn from(error: forebay_raft::Error) -> CopyFailure {
        let text = causes(&error);
        if error.cause().is_some_and(|cause| cause.kind() == forebay::ErrorKind::NoSpace) {
            return CopyFailure::Final(format!("there is too little space for a second state: {text}"));
        }
        match error.kind() {
            // From the check, or from an unfinished install: no state is open.
            ErrorKind::Application | ErrorKind::Poisoned => CopyFailure::Final(text),
            _ => CopyFailure::Early(text),
        }
    }
}

/// A state that was opened, with the index of its last entry and its format.
pub(super) struct OpenedState {
    pub(super) store: Store,
    pub(super) applied: Arc<AtomicU64>,
    pub(super) format: Arc<AtomicU64>,
}

/// Opens the state; an empty one in the place of one whose tables are damaged.
pub(super) async fn open(
    engine: &Engine,
    dir: &Path,
    machine: impl Fn() -> Machine,
    damage: &DamageRecord,
) -> Result<OpenedState, StartError> {
    let opened = |store, applied, format| OpenedState { store, applied, format };
    let whole = machine();
    let (applied, format) = (whole.applied_index(), whole.format());
    match Store::open(engine, dir, store_options(), whole).await {
        Err(error) if error.is_damage() => damage.set(Some(Damage::Tables(causes(&error)))),
        Err(error) => return Err(bootstrap::not_opened("the state", dir, &error)),
        Ok(store) => return Ok(opened(store, applied, format)),
    }
    let empty = machine();
    let (applied, format) = (empty.applied_index(), empty.format());
    let store = Store::open_damaged(engine, dir, store_options(), empty).await;
    let store = store.map_err(|error| bootstrap::not_opened("the state", dir, &error))?;
    Ok(opened(store, applied, format))
}

async fn in_time<T>(message: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = |_| Err(Status::deadline_exceeded("no message in time"));
    timeout(MESSAGE_TIMEOUT, message).await.unwrap_or_else(late)
}

async fn next(messages: &mut Streaming<Encoded>) -> Result<Snapshot, Status> {
    let message = in_time(messages.message()).await?;
    decode(&message.ok_or_else(|| Status::aborted("the state ended before its last part"))?)
}

fn unexpected() -> Status {
    Status::aborted("the messages of the state are out of order")
}

/// Refuses a state that is not the majority's.
async fn check_sum(keyspaces: Arc<[Keyspace]>, majority: &OnceLock<StateSum>) -> io::Result<()> {
    let checkpoints = View::of_keyspaces(keyspaces).await?.checkpoints().await?;
    let mut sums = checkpoints.into_iter().map(StateSum::from);
    if majority.get().is_some_and(|majority| sums.any(|sum| sum == *majority)) {
        return Ok(());
    }
    Err(io::Error::other("the state that came has not the sum of the majority"))
}

impl Node {
    /// Returns whether tables of the state are damaged, and are copied again from the others. This member serves nothing meanwhile,
    /// and leads only until another member does.
    pub(crate) fn is_healing(&self) -> bool {
        let damage = &self.inner.damage;
        damage.is_of_tables() && (damage.are_entries_counted() || is_repaired(&self.membership()))
    }

    /// Refuses to read a state that is being healed. Raft treats entries as applied that are only counted.
    pub(super) fn check_whole(&self) -> Result<(), Status> {
        if self.is_healing() {
            return Err(Status::unavailable(format!("tables of member {:x} are damaged", self.id())));
        }
        Ok(())
    }

    /// Waits until another member leads.
    pub(crate) async fn other_leader(&self) -> Result<u64, Status> {
        let mut leadership = self.leadership();
        let leads = leadership.wait_for(|now| now.leader.is_some_and(|leader| leader != self.id()));
        match timeout_at(self.deadline(), leads).await {
            Ok(Ok(now)) => now.leader.ok_or_else(|| Refusal::NoLeader.into()),
            Ok(Err(_)) => Err(Refusal::Stopped.into()),
            Err(_) => Err(Refusal::NoLeader.into()),
        }
    }

    /// Returns the parts of a snapshot that has an entry, and a separate checkpoint after the present one.
    pub(super) async fn state_parts(
        &self,
        index: u64,
    ) -> Result<BoxStream<'static, Result<Encoded, Status>>, Status> {
        if let Some(damage) = self.damage() {
            return Err(Status::unavailable(format!(
                "the state of member {:x} is damaged: {damage}",
                self.id()
            )));
        }
        let failed = |error: &dyn std::error::Error| Status::internal(causes(error));
        let (_, checkpoint) = self.propose(Change::Checkpoint(Checkpoint {})).await?;
        self.wait_applied(index, self.deadline()).await?;
        let built = self.store().clone().build_snapshot().await.map_err(|error| failed(&error))?;
        let SnapshotOf::<Types, RaftSnapshot> { meta, snapshot } = built;
        // Changes behind it may have removed it meanwhile.
        let kept = self.state_sums().await?;
        if !kept.iter().any(|kept| kept.index == checkpoint) {
            return Err(Status::unavailable(format!("checkpoint {checkpoint} is not kept any more")));
        }
        let begin = encode(&Snapshot::Begin { meta, bytes: snapshot.bytes(), checkpoint });
        let parts = stream::try_unfold(snapshot.reader(), |mut reader| async move {
            let part = reader.next().await.map_err(|error| Status::internal(causes(&error)))?;
            let Some(part) = part else { return Ok::<_, Status>(None) };
            Ok(Some((encode(&Snapshot::Part(part))?, reader)))
        });
        Ok(stream::once(ready(begin)).chain(parts).boxed())
    }

    /// Replaces this member's state by that of another member, if the majority has that state. No entry is applied meanwhile.
    pub(crate) async fn take_state(&self, from: u64) -> Result<(), CopyFailure> {
        let majority = OnceLock::new();
        self.store()
            .repair(
                |applied| self.receive_state(from, applied.map_or(0, |id| id.index), &majority),
                |keyspaces| check_sum(keyspaces, &majority),
            )
            .await
    }

    async fn receive_state(
        &self,
        from: u64,
        index: u64,
        majority: &OnceLock<StateSum>,
    ) -> Result<SnapshotOf<Types, RaftSnapshot>, CopyFailure> {
        let mut client = self.inner.peers.client(from, Purpose::Other)?;
        let mut messages = in_time(client.state(StateRequest { index })).await?.into_inner();
        let Snapshot::Begin { meta, bytes, checkpoint } = next(&mut messages).await? else {
            return Err(unexpected().into());
        };
        let sum = self.majority_at(from, checkpoint).await?;
        // Nothing else sets it.
        let _ = majority.set(sum);
        let last = meta.last_log_id.as_ref().map_or(0, |id| id.index);
        if last < checkpoint {
            // The leader has met damage meanwhile.
            return Err(CopyFailure::Early(format!(
                "the snapshot ends at entry {last}, before its checkpoint"
            )));
        }
        // The log of this member has its entries then, as that of each one has those of its state.
        let mut committed = self.inner.raft.watch_commit_progress();
        let reached = committed.wait_until(|id| id.as_ref().is_some_and(|id| id.index >= last));
        if !matches!(timeout(MESSAGE_TIMEOUT, reached).await, Ok(Ok(_))) {
            return Err(CopyFailure::Early(format!("entry {last} is not known here to be committed")));
        }
        let mut receiver = self.store().receive_snapshot().await?;
        receiver.check_space(bytes).await?;
        loop {
            let Snapshot::Part(part) = next(&mut messages).await? else { return Err(unexpected().into()) };
            receiver.write(&part).await?;
            if matches!(part, SnapshotPart::End { .. }) {
                break;
            }
        }
        let snapshot = receiver.finish().await?;
        Ok(SnapshotOf::<Types, RaftSnapshot> { meta, snapshot })
    }

    /// Returns the sum at a checkpoint that most voters have, without this member and others whose tables are damaged.
    async fn majority_at(&self, from: u64, index: u64) -> Result<StateSum, CopyFailure> {
        let replies = self.checkpoints_of_others(index).await;
        let membership = self.membership();
        let voters: Vec<u64> = membership.membership().voter_ids().collect();
        let mut sums: Vec<(u64, &StateSum)> = Vec::new();
        for (id, reply) in replies.iter().filter(|(id, _)| voters.contains(id)) {
            let found = reply.iter().flat_map(|reply| &reply.sums).find(|sum| sum.index == index);
            sums.extend(found.map(|sum| (*id, sum)));
        }
        let having = |sum: &StateSum| sums.iter().filter(|(_, other)| *other == sum).count();
        let Some(&(_, sum)) = sums.iter().find(|&&(_, sum)| having(sum) > voters.len() / 2) else {
            let text = format!("{} others of {} voters show a whole state", sums.len(), voters.len());
            let text = format!("{text}, and a majority has to have the same one");
            // Once voters are removed this member may be the only voter, and its entries are not applied to the damaged state.
            let others = voters.iter().filter(|id| **id != self.id()).count();
            let is_final = self.inner.damage.are_entries_counted() && others <= voters.len() / 2;
            return Err(if is_final { CopyFailure::Final(text) } else { CopyFailure::Early(text) });
        };
        if sums.iter().any(|&(id, theirs)| id == from && theirs != sum) {
            return Err(CopyFailure::Different(from));
        }
        Ok(sum.clone())
    }
}
