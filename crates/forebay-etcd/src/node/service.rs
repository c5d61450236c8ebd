//! Requests of other members to this member.

use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use openraft::type_config::alias::SnapshotOf;
use tonic::{Request, Response, Status, Streaming};

use super::Node;
use super::lead::InFlight;
use super::leader_call::not_leader;
use super::peers::{CLUSTER, FORMAT, FORMAT_LEAST, FROM, TO};
use super::wire::{AppendReply, Snapshot, Transfer, Vote, decode, encode};
use crate::answer::{Answer, forward};
use crate::mvcc::Checkpoint;
use crate::proto::etcdserverpb::{LeaseTimeToLiveRequest, LeaseTimeToLiveResponse};
use crate::proto::peer::{
    CheckpointsReply, CheckpointsRequest, Encoded, KeepAliveReply, KeepAliveRequest, MemberChange,
    MemberChanged, MembersReply, MembersRequest, Proposal, Proposed, ReadIndexReply, ReadIndexRequest,
    StateRequest, StateSum, peer_server,
};
use crate::types::{Command, Types};
use crate::version::Formats;
use forebay_raft::RaftSnapshot;

/// Appends that wait for Raft.
const APPENDS_MAX: usize = 16;

#[derive(Clone, Debug)]
pub(crate) struct PeerService {
    node: Node,
}

impl PeerService {
    pub(crate) fn server(node: Node) -> peer_server::PeerServer<PeerService> {
        peer_server::PeerServer::new(PeerService { node })
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX)
    }

    /// Refuses requests of a version that is incompatible with this version, or with the state's format.
    fn check_formats<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let (node, own) = (&self.node, self.node.inner.formats);
        let theirs = number(request, FORMAT).zip(number(request, FORMAT_LEAST));
        let theirs = theirs.map(|(own, least)| Formats { least, own });
        if theirs.is_some_and(|theirs| theirs.meet(own) && theirs.own >= node.format()) {
            return Ok(());
        }
        node.inner.counts.foreign.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let theirs =
            theirs.map_or_else(|| "an earlier build".to_owned(), |theirs| format!("formats {theirs}"));
        let text = format!(
            "versions that do not work together: {theirs} calls member {:x}, which has formats {own} and a state of format {}; stop all \
             members, and start them with one version",
            node.id(),
            node.format()
        );
        let from = number(request, FROM).unwrap_or_default();
        tracing::error!(from = format!("{from:x}"), "{text}");
        Err(Status::failed_precondition(text))
    }

    /// Refuses requests of another cluster, and those that are meant for another member.
    fn check<T>(&self, request: &Request<T>) -> Result<u64, Status> {
        self.check_formats(request)?;
        let number = |name| number(request, name);
        let (Some(cluster), Some(from), Some(to)) = (number(CLUSTER), number(FROM), number(TO)) else {
            return Err(Status::invalid_argument("a request between members has the ids of both"));
        };
        let node = &self.node;
        if cluster != node.cluster_id() {
            node.inner.counts.foreign.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            tracing::error!(
                from = format!("{from:x}"),
                cluster = format!("{cluster:x}"),
                "a member of another cluster calls: look at its --initial-cluster and --initial-cluster-token"
            );
            return Err(Status::failed_precondition("etcdserver: cluster ID mismatch"));
        }
        if to != node.id() {
            return Err(Status::failed_precondition(format!("this is member {:x}, not {to:x}", node.id())));
        }
        Ok(from)
    }
}

/// Returns a number of a request's metadata.
fn number<T>(request: &Request<T>, name: &str) -> Option<u64> {
    request.metadata().get(name)?.to_str().ok()?.parse().ok()
}

fn failed(error: impl std::fmt::Display) -> Status {
    Status::internal(error.to_string())
}

type Outcomes = BoxStream<'static, Result<Encoded, Status>>;

impl PeerService {
    fn append(&self, request: Request<Streaming<Encoded>>) -> Answer<'_, Response<Outcomes>> {
        Box::pin(async move {
            let from = self.check(&request)?;
            let node = self.node.clone();
            let (requests, arrived) = tokio::sync::mpsc::channel(APPENDS_MAX);
            let mut incoming = request.into_inner();
            let heard = node.clone();
            // A malformed message ends the stream: the outcomes of those before it are still sent back.
            tokio::spawn(async move {
                while let Ok(Some(message)) = incoming.message().await {
                    heard.heard_from_leader();
                    heard.inner.peers.note_bytes(from, 0, message.bytes.len());
                    let Ok(append) = decode(&message) else { return };
                    if requests.send(append).await.is_err() {
                        return;
                    }
                }
            });
            let arrived = tokio_stream::wrappers::ReceiverStream::new(arrived);
            let replies = node.inner.raft.stream_append(arrived);
            let peers = node.inner.peers.clone();
            let replies = replies.map(move |reply| -> Result<Encoded, Status> {
                let reply = encode::<AppendReply>(&reply.map_err(failed)?)?;
                peers.note_bytes(from, reply.bytes.len(), 0);
                Ok(reply)
            });
            Ok(Response::new(replies.boxed()))
        })
    }

    fn vote(&self, request: Request<Encoded>) -> Answer<'_, Response<Encoded>> {
        Box::pin(async move {
            self.check(&request)?;
            let Vote { request, is_pre_vote } = decode(request.get_ref())?;
            let raft = &self.node.inner.raft;
            let voted = if is_pre_vote { raft.pre_vote(request).await } else { raft.vote(request).await };
            Ok(Response::new(encode(&voted.map_err(failed)?)?))
        })
    }

    fn install_snapshot(&self, request: Request<Streaming<Encoded>>) -> Answer<'_, Response<Encoded>> {
        Box::pin(async move {
            let from = self.check(&request)?;
            let mut parts = request.into_inner();
            let inner = &self.node.inner;
            tracing::info!(from = format!("{from:x}"), "a snapshot is received");
            let begun = Instant::now();
            let mut receiver = inner.store.receive_snapshot().await.map_err(failed)?;
            while let Some(message) = parts.message().await? {
                // The leader is alive, though its heartbeats may wait behind the parts.
                self.node.heard_from_leader();
                inner.peers.note_bytes(from, 0, message.bytes.len());
                match decode(&message)? {
                    Snapshot::Begin { .. } => return Err(Status::invalid_argument("no part of a snapshot")),
                    Snapshot::Part(part) => receiver.write(&part).await.map_err(failed)?,
                    Snapshot::Install(vote, meta) => {
                        let snapshot = receiver.finish().await.map_err(failed)?;
                        inner.counts.snapshot_times.observe_time(begun.elapsed());
                        let _installing = InFlight::begin(&inner.counts.installing);
                        let bytes = snapshot.bytes();
                        let snapshot = SnapshotOf::<Types, RaftSnapshot> { meta, snapshot };
                        let before = self.node.open_state();
                        let installed = inner.raft.install_full_snapshot(vote, snapshot).await;
                        let installed = installed.map_err(failed)?;
                        inner.counts.installed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        // Of another state nothing is known. One that is to be healed is compared with the others first.
                        if !before.ptr_eq(&self.node.open_state()) && !self.node.is_healing() {
                            self.node.set_damage(None);
                        }
                        tracing::info!(from = format!("{from:x}"), bytes, "a snapshot is installed");
                        return Ok(Response::new(encode(&installed)?));
                    }
                }
            }
            Err(Status::aborted("the snapshot ended before its last part"))
        })
    }

    fn transfer_leader(&self, request: Request<Encoded>) -> Answer<'_, Response<Encoded>> {
        Box::pin(async move {
            self.check(&request)?;
            let transfer: Transfer = decode(request.get_ref())?;
            if *transfer.to_node_id() == self.node.id() && self.node.is_healing() {
                return Err(Status::aborted("this member has no state to lead with"));
            }
            let transferred = self.node.inner.raft.handle_transfer_leader(transfer).await.map_err(failed)?;
            Ok(Response::new(encode(&transferred)?))
        })
    }

    fn propose(&self, request: Request<Proposal>) -> Answer<'_, Response<Proposed>> {
        Box::pin(async move {
            self.check(&request)?;
            let command = Command(request.into_inner().command);
            let (outcome, index) = self.node.propose_here(command).await?;
            Ok(Response::new(Proposed { outcome: Some(outcome), index }))
        })
    }

    fn read_index(&self, request: Request<ReadIndexRequest>) -> Answer<'_, Response<ReadIndexReply>> {
        Box::pin(async move {
            self.check(&request)?;
            let index = self.node.read_index_here().await?.index;
            Ok(Response::new(ReadIndexReply { index }))
        })
    }

    fn keep_alive(&self, request: Request<KeepAliveRequest>) -> Answer<'_, Response<KeepAliveReply>> {
        Box::pin(async move {
            self.check(&request)?;
            let leader_leases = self.node.leader_leases()?;
            leader_leases.keep_alive(request.into_inner()).await.map(Response::new)
        })
    }

    fn time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Answer<'_, Response<LeaseTimeToLiveResponse>> {
        Box::pin(async move {
            self.check(&request)?;
            let leader_leases = self.node.leader_leases()?;
            leader_leases.time_to_live(request.into_inner()).await.map(Response::new)
        })
    }

    fn change_members(&self, request: Request<MemberChange>) -> Answer<'_, Response<MemberChanged>> {
        Box::pin(async move {
            self.check(&request)?;
            if !self.node.is_leader() {
                return Err(not_leader());
            }
            let change = request.into_inner().change.ok_or_else(|| Status::invalid_argument("no change"))?;
            self.node.change_members_here(change, self.node.deadline()).await.map(Response::new)
        })
    }

    fn members(&self, request: Request<MembersRequest>) -> Answer<'_, Response<MembersReply>> {
        Box::pin(async move {
            self.check_formats(&request)?;
            // A member that joins does not know the cluster's id yet.
            if request.metadata().contains_key(CLUSTER) {
                self.check(&request)?;
            }
            self.node.check_whole()?;
            let members = self.node.members(request.get_ref().is_linearizable).await?;
            let (cluster_id, format) = (self.node.cluster_id(), self.node.format());
            Ok(Response::new(MembersReply { cluster_id, members, format }))
        })
    }

    fn checkpoints(&self, request: Request<CheckpointsRequest>) -> Answer<'_, Response<CheckpointsReply>> {
        Box::pin(async move {
            self.check(&request)?;
            let (node, index) = (&self.node, request.get_ref().index);
            node.check_whole()?;
            if index > 0 {
                node.wait_applied(index, node.deadline()).await?;
            }
            Ok(Response::new(CheckpointsReply { sums: node.state_sums().await? }))
        })
    }

    fn state(&self, request: Request<StateRequest>) -> Answer<'_, Response<Outcomes>> {
        Box::pin(async move {
            let from = self.check(&request)?;
            tracing::info!(from = format!("{from:x}"), "a member whose tables are damaged takes this state");
            Ok(Response::new(self.node.state_parts(request.get_ref().index).await?))
        })
    }
}

impl From<Checkpoint> for StateSum {
    fn from(checkpoint: Checkpoint) -> StateSum {
        let Checkpoint { index, revision, compacted, sum } = checkpoint;
        StateSum { index, revision, compacted, sum: sum.to_be_bytes().to_vec() }
    }
}

impl peer_server::Peer for PeerService {
    type AppendStream = Outcomes;
    type StateStream = Outcomes;

    forward! {
        append(Streaming<Encoded>) -> Outcomes;
        vote(Encoded) -> Encoded;
        install_snapshot(Streaming<Encoded>) -> Encoded;
        transfer_leader(Encoded) -> Encoded;
        propose(Proposal) -> Proposed;
        read_index(ReadIndexRequest) -> ReadIndexReply;
        keep_alive(KeepAliveRequest) -> KeepAliveReply;
        time_to_live(LeaseTimeToLiveRequest) -> LeaseTimeToLiveResponse;
        change_members(MemberChange) -> MemberChanged;
        members(MembersRequest) -> MembersReply;
        checkpoints(CheckpointsRequest) -> CheckpointsReply;
        state(StateRequest) -> Outcomes;
    }
}
