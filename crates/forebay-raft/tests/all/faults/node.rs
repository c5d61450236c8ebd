//! A node: openraft on this crate's log and state machine, behind a socket.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay::{Config, Engine};
use forebay_kv::{Batch, Keyspace, Options};
use forebay_raft::{Apply, LogOptions, RaftLog, RaftSnapshot, RaftStore, SnapshotReceiver};
use forebay_test::killed;
use openraft::ReadPolicy;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{
    ClientWriteError, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable,
};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::{EntryOf, SnapshotOf, VoteOf};
use openraft::{BasicNode, EntryPayload, Raft, SnapshotPolicy};
use tokio::net::{TcpListener, TcpStream};

use crate::common::is_locked;
use crate::faults::wire::{Command, Peer, Reads, Reply, Request, Response, Status, Types, receive, send};

/// Variable with number, address and directory of a node.
pub(crate) const NODE: &str = "FOREBAY_RAFT_NODE";
/// Variable of nodes that lead again after a restart without an election: wrong on purpose.
pub(crate) const RESTORE: &str = "FOREBAY_RAFT_RESTORE";

type Store = RaftStore<Types, Registers>;

pub(crate) fn run_if_wanted() {
    let Ok(node) = std::env::var(NODE) else { return };
    let [id, address, dir] = node.split(',').collect::<Vec<_>>()[..] else { panic!("{NODE} is {node}") };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let served =
        runtime.expect("a runtime").block_on(serve(id.parse().expect("a number"), address, Path::new(dir)));
    // Its parent starts it again.
    served.unwrap_or_else(|error| panic!("node {id}: {error:?}"));
}

/// Registers by name.
struct Registers;

fn number(value: &[u8]) -> io::Result<u64> {
    value.try_into().map(u64::from_le_bytes).map_err(io::Error::other)
}

impl Apply<Types> for Registers {
    async fn apply(
        &self,
        entry: EntryOf<Types>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<Reply> {
        let EntryPayload::Normal(command) = entry.payload else { return Ok(Reply::Done) };
        let registers = &keyspaces[0];
        let (key, value) = match command {
            Command::Put { key, value } => (key, value),
            Command::Swap { key, expected, value } => {
                let found = registers.get(&key).await.map_err(io::Error::other)?;
                if found.map(|found| number(&found)).transpose()? != expected {
                    return Ok(Reply::Other);
                }
                (key, value)
            }
        };
        batch.put(registers, key, value.to_le_bytes());
        Ok(Reply::Done)
    }
}

struct Node {
    raft: Raft<Types, Store>,
    store: Store,
    installed: AtomicU64,
}

/// Opens a log or a store that a killed process may still have locked.
async fn opened<T>(open: impl AsyncFn() -> forebay_raft::Result<T>) -> io::Result<T> {
    killed::opened(open, is_locked).await.map_err(io::Error::other)
}

async fn serve(id: u64, address: &str, dir: &Path) -> io::Result<()> {
    let engine = Engine::start(Config::new().shards(1)).map_err(io::Error::other)?;
    let options = || LogOptions::new().segment_bytes(256 << 10).tail_bytes_max(16 << 10);
    let log: RaftLog<Types> =
        opened(async || RaftLog::open(&engine, dir.join("log"), options()).await).await?;
    let memory = || Options::new().memory_bytes_max(16 << 20);
    let store: Store =
        opened(async || RaftStore::open(&engine, dir.join("state"), memory(), Registers).await).await?;
    let config = openraft::Config {
        heartbeat_interval: 50,
        election_timeout_min: 250,
        election_timeout_max: 500,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(150),
        max_in_snapshot_log_to_keep: 20,
        enable_pre_vote: Some(true),
        enable_leader_restore: Some(std::env::var(RESTORE).is_ok()),
        ..forebay_raft::config()
    };
    let config = Arc::new(config.validate().map_err(io::Error::other)?);
    let raft = Raft::new(id, config, Network, log, store.clone()).await.map_err(io::Error::other)?;
    let node = Arc::new(Node { raft: raft.clone(), store, installed: AtomicU64::new(0) });
    let listener = TcpListener::bind(address).await?;
    let mut metrics = raft.metrics();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                stream.set_nodelay(true)?;
                tokio::spawn(converse(node.clone(), stream));
            }
            changed = metrics.changed() => {
                // A node whose log or store has failed ends, and starts again with the contents of its disk.
                if changed.is_err() {
                    return Ok(());
                }
                if let Err(fatal) = &metrics.borrow_watched().running_state {
                    return Err(io::Error::other(fatal.to_string()));
                }
            }
        }
    }
}

/// Serves one connection to its end, a request at a time.
async fn converse(node: Arc<Node>, mut stream: TcpStream) {
    let mut receiver = None;
    while let Ok(request) = receive::<Request>(&mut stream).await {
        let response = reply(&node, &mut receiver, request).await.unwrap_or_else(Response::Failed);
        if send(&mut stream, &response).await.is_err() {
            return;
        }
    }
}

async fn reply(
    node: &Node,
    receiver: &mut Option<SnapshotReceiver>,
    request: Request,
) -> Result<Response, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let raft = &node.raft;
    Ok(match request {
        Request::Initialize(members) => {
            let members = members.into_iter().map(|(id, address)| (id, BasicNode::new(address)));
            let members: std::collections::BTreeMap<_, _> = members.collect();
            raft.initialize(members).await.map_err(|error| text(&error))?;
            Response::Ok
        }
        Request::Change(command) => match raft.client_write(command).await {
            Ok(done) => Response::Changed(done.data),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(to))) => {
                Response::NotHere(to.leader_id)
            }
            Err(error) => return Err(text(&error)),
        },
        Request::Get(key, reads) => {
            if reads == Reads::Linearizable && raft.ensure_linearizable(ReadPolicy::ReadIndex).await.is_err()
            {
                return Ok(Response::NotHere(raft.current_leader().await));
            }
            let registers = node.store.keyspaces();
            let found = registers[0].get(&key).await.map_err(|error| text(&error))?;
            Response::Got(found.map(|found| number(&found)).transpose().map_err(|error| text(&error))?)
        }
        Request::Status => {
            let metrics = raft.metrics().borrow_watched().clone();
            let mut status = Status {
                term: metrics.current_term,
                leader: metrics.current_leader,
                applied: metrics.last_applied.map(|id| id.index),
                purged: metrics.purged.map(|id| id.index),
                installed: node.installed.load(Ordering::Relaxed),
                ..Status::default()
            };
            let registers = node.store.keyspaces();
            let mut range = registers[0].range::<&[u8]>(..);
            while let Some(entry) = range.next().await {
                let (key, value) = entry.map_err(|error| text(&error))?;
                let key = String::from_utf8_lossy(&key).into_owned();
                status.state.insert(key, number(&value).map_err(|error| text(&error))?);
            }
            Response::Status(Box::new(status))
        }
        Request::Append(request) => {
            Response::Appended(raft.append_entries(request).await.map_err(|error| text(&error))?)
        }
        Request::Vote(request) => Response::Voted(raft.vote(request).await.map_err(|error| text(&error))?),
        Request::PreVote(request) => {
            Response::Voted(raft.pre_vote(request).await.map_err(|error| text(&error))?)
        }
        Request::Part(part) => {
            let receiver = match receiver {
                Some(receiver) => receiver,
                None => receiver.insert(node.store.receive_snapshot().await.map_err(|error| text(&error))?),
            };
            receiver.write(&part).await.map_err(|error| text(&error))?;
            Response::Ok
        }
        Request::Install(vote, meta) => {
            let receiver = receiver.take().ok_or("no part of a snapshot came before")?;
            let snapshot = receiver.finish().await.map_err(|error| text(&error))?;
            let snapshot = SnapshotOf::<Types, RaftSnapshot> { meta, snapshot };
            let installed = raft.install_full_snapshot(vote, snapshot).await.map_err(|error| text(&error))?;
            node.installed.fetch_add(1, Ordering::Relaxed);
            Response::Installed(installed)
        }
    })
}

/// Makes connections to the other nodes.
struct Network;

impl RaftNetworkFactory<Types> for Network {
    type Network = Connection;

    async fn new_client(&mut self, _: u64, node: &BasicNode) -> Connection {
        Connection { peer: Peer::new(node.addr.clone()) }
    }
}

struct Connection {
    peer: Peer,
}

impl Connection {
    async fn call(&mut self, request: &Request, option: &RPCOption) -> Result<Response, Unreachable<Types>> {
        match tokio::time::timeout(option.soft_ttl(), self.peer.call(request)).await {
            Ok(Ok(Response::Failed(text))) => Err(Unreachable::from_string(text)),
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(Unreachable::new(&error)),
            Err(late) => Err(Unreachable::new(&late)),
        }
    }
}

fn unexpected<T>(response: &Response) -> Result<T, Unreachable<Types>> {
    Err(Unreachable::from_string(format!("the reply is {response:?}")))
}

impl RaftNetworkV2<Types> for Connection {
    type SnapshotData = RaftSnapshot;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        match self.call(&Request::Append(request), &option).await? {
            Response::Appended(response) => Ok(response),
            other => Ok(unexpected(&other)?),
        }
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self.call(&Request::Vote(request), &option).await? {
            Response::Voted(response) => Ok(response),
            other => Ok(unexpected(&other)?),
        }
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self.call(&Request::PreVote(request), &option).await? {
            Response::Voted(response) => Ok(response),
            other => Ok(unexpected(&other)?),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<Types>,
        snapshot: SnapshotOf<Types, RaftSnapshot>,
        _cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let mut reader = snapshot.snapshot.reader();
        while let Some(part) = reader.next().await.map_err(|error| Unreachable::new(&error))? {
            match self.call(&Request::Part(Box::new(part)), &option).await? {
                Response::Ok => {}
                other => return Ok(unexpected(&other)?),
            }
        }
        match self.call(&Request::Install(vote, snapshot.meta), &option).await? {
            Response::Installed(response) => Ok(response),
            other => Ok(unexpected(&other)?),
        }
    }
}
