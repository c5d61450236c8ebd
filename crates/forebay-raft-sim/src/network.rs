//! openraft's network on the network of a world.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io::{self, Cursor};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_sim as sim;
use forebay_sim::net::{self, Address, Message, Socket};
use openraft::alias::{SnapshotMetaOf, SnapshotOf, VoteOf};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::storage::RaftStateMachine;
use openraft::{Raft, RaftTypeConfig, Snapshot};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Attempts to send one part of a snapshot.
const PART_ATTEMPTS: u32 = 4;
/// The most snapshots that a node receives concurrently.
const ARRIVALS_MAX: usize = 4;

/// How the data of snapshots travel between the nodes of a world: in parts, one message each.
///
/// Parts are written in the order in which they were read, each once: the network repeats lost parts, and drops those that
/// arrive twice.
pub trait Transfer: Clone + Send + Sync + 'static {
    /// openraft's snapshot data.
    type Snapshot: Send + 'static;
    /// A snapshot that is read.
    type Sender: Send;
    /// A snapshot that arrives. Dropped before [`finish`](Transfer::finish), it was not whole.
    type Receiver: Send + 'static;

    /// Starts to read a snapshot.
    fn send(&self, snapshot: Self::Snapshot) -> Self::Sender;

    /// Returns the next part; `None` after the last one.
    fn next(&self, sender: &mut Self::Sender) -> impl Future<Output = io::Result<Option<Vec<u8>>>> + Send;

    /// Starts to receive a snapshot.
    fn receive(&self) -> impl Future<Output = io::Result<Self::Receiver>> + Send;

    /// Receives the next part.
    fn write(
        &self,
        receiver: &mut Self::Receiver,
        part: Vec<u8>,
    ) -> impl Future<Output = io::Result<()>> + Send;

    /// Returns the snapshot data for openraft, after the last part.
    fn finish(&self, receiver: Self::Receiver) -> impl Future<Output = io::Result<Self::Snapshot>> + Send;
}

/// Snapshots that are bytes in memory; each travels in one part.
#[derive(Clone, Copy, Debug, Default)]
pub struct InMemory;

impl Transfer for InMemory {
    type Snapshot = Cursor<Vec<u8>>;
    type Sender = Option<Vec<u8>>;
    type Receiver = Vec<u8>;

    fn send(&self, snapshot: Cursor<Vec<u8>>) -> Option<Vec<u8>> {
        Some(snapshot.into_inner())
    }

    async fn next(&self, sender: &mut Option<Vec<u8>>) -> io::Result<Option<Vec<u8>>> {
        Ok(sender.take())
    }

    async fn receive(&self) -> io::Result<Vec<u8>> {
        Ok(Vec::new())
    }

    async fn write(&self, receiver: &mut Vec<u8>, part: Vec<u8>) -> io::Result<()> {
        receiver.extend(part);
        Ok(())
    }

    async fn finish(&self, receiver: Vec<u8>) -> io::Result<Cursor<Vec<u8>>> {
        Ok(Cursor::new(receiver))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
enum Request<C: RaftTypeConfig> {
    Append(AppendEntriesRequest<C>),
    Vote(VoteRequest<C>),
    PreVote(VoteRequest<C>),
    TransferLeader(TransferLeaderRequest<C>),
    /// A part of a snapshot; `transfer` is a number that its sender drew.
    Part {
        transfer: u64,
        number: u64,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// All parts were sent.
    Install {
        transfer: u64,
        vote: VoteOf<C>,
        meta: SnapshotMetaOf<C>,
    },
}

/// Makes connections to the Raft nodes of a world, which [`serve`] at the addresses that `address` returns.
pub struct SimNetwork<C: RaftTypeConfig, T> {
    address: fn(&C::NodeId, &C::Node) -> Address,
    transfer: T,
}

impl<C: RaftTypeConfig, T> SimNetwork<C, T> {
    /// Returns a network whose nodes have the addresses that `address` returns, and send snapshots by `transfer`.
    pub fn new(address: fn(&C::NodeId, &C::Node) -> Address, transfer: T) -> SimNetwork<C, T> {
        SimNetwork { address, transfer }
    }
}

forebay::_debug_parts!([C: RaftTypeConfig, T] SimNetwork<C, T>);

/// A connection to one Raft node: each request is a separate call ([`net::call`]), which may be lost, or arrive twice or late.
pub struct Connection<T> {
    to: Address,
    transfer: T,
}

forebay::_debug_parts!([T] Connection<T>, |connection| to: connection.to);

impl<C: RaftTypeConfig, T: Transfer> RaftNetworkFactory<C> for SimNetwork<C, T> {
    type Network = Connection<T>;

    async fn new_client(&mut self, target: C::NodeId, node: &C::Node) -> Connection<T> {
        Connection { to: (self.address)(&target, node), transfer: self.transfer.clone() }
    }
}

impl<T: Transfer> Connection<T> {
    async fn call<C: RaftTypeConfig, R: DeserializeOwned>(
        &self,
        request: &Request<C>,
        limit: Duration,
    ) -> Result<R, NetworkError<C>> {
        let request = rmp_serde::to_vec_named(request).map_err(|error| NetworkError::new(&error))?;
        let reply = net::call(self.to, request, limit).await.map_err(|error| NetworkError::new(&error))?;
        let reply: Result<R, String> =
            rmp_serde::from_slice(&reply).map_err(|error| NetworkError::new(&error))?;
        reply.map_err(NetworkError::from_string)
    }

    /// Sends the parts of a snapshot one after the other. Returns the number of the transfer.
    async fn send_parts<C: RaftTypeConfig>(
        &self,
        snapshot: T::Snapshot,
        limit: Duration,
    ) -> Result<u64, NetworkError<C>> {
        let transfer = sim::random(1 << 32) << 32 | sim::random(1 << 32);
        let (mut sender, mut number) = (self.transfer.send(snapshot), 0);
        while let Some(bytes) =
            self.transfer.next(&mut sender).await.map_err(|error| NetworkError::new(&error))?
        {
            let part = Request::<C>::Part { transfer, number, bytes };
            let mut attempts = 1;
            while let Err(error) = self.call::<C, ()>(&part, limit / PART_ATTEMPTS).await {
                if attempts == PART_ATTEMPTS {
                    return Err(error);
                }
                attempts += 1;
            }
            number += 1;
        }
        Ok(transfer)
    }
}

impl<C: RaftTypeConfig, T: Transfer> RaftNetworkV2<C> for Connection<T> {
    type SnapshotData = T::Snapshot;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<C>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<C>, RPCError<C>> {
        Ok(self.call(&Request::Append(request), option.hard_ttl()).await?)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<C>,
        option: RPCOption,
    ) -> Result<VoteResponse<C>, RPCError<C>> {
        Ok(self.call(&Request::Vote(request), option.hard_ttl()).await?)
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<C>,
        option: RPCOption,
    ) -> Result<VoteResponse<C>, RPCError<C>> {
        Ok(self.call(&Request::PreVote(request), option.hard_ttl()).await?)
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<C>,
        snapshot: SnapshotOf<C, T::Snapshot>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<C>, StreamingError<C>> {
        let Snapshot { meta, snapshot } = snapshot;
        let send = async {
            let transfer = self.send_parts(snapshot, option.hard_ttl()).await?;
            let vote = self.call(&Request::<C>::Install { transfer, vote, meta }, option.hard_ttl()).await?;
            Ok(SnapshotResponse { vote })
        };
        let (mut send, mut cancel) = (std::pin::pin!(send), std::pin::pin!(cancel));
        std::future::poll_fn(|context| match cancel.as_mut().poll(context) {
            std::task::Poll::Ready(closed) => std::task::Poll::Ready(Err(StreamingError::Closed(closed))),
            std::task::Poll::Pending => send.as_mut().poll(context),
        })
        .await
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<C>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<C>, RPCError<C>> {
        Ok(self.call(&Request::TransferLeader(request), option.hard_ttl()).await?)
    }
}

/// A snapshot that arrives.
struct Arrival<R> {
    transfer: u64,
    /// The number of its next part.
    next: u64,
    /// `None` while a part is written, and after the last one.
    receiver: Option<R>,
}

/// The snapshots that arrive at a node; the oldest first.
struct Arrivals<T: Transfer> {
    transfer: T,
    arrivals: Mutex<VecDeque<Arrival<T::Receiver>>>,
}

impl<T: Transfer> Arrivals<T> {
    /// Calls `change` with the arrival of this number, if any.
    fn with<R>(&self, transfer: u64, change: impl FnOnce(&mut Arrival<T::Receiver>) -> R) -> Option<R> {
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        arrivals.iter_mut().find(|arrival| arrival.transfer == transfer).map(change)
    }

    fn insert(&self, transfer: u64) {
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        if arrivals.len() == ARRIVALS_MAX {
            arrivals.pop_front();
        }
        arrivals.push_back(Arrival { transfer, next: 0, receiver: None });
    }

    /// Receives a part. `None`: an earlier message with it is at work, and replies.
    async fn take(&self, transfer: u64, number: u64, bytes: Vec<u8>) -> Option<io::Result<()>> {
        let found = self.with(transfer, |arrival| (arrival.next, arrival.receiver.take()));
        let receiver = match found {
            None if number == 0 => {
                self.insert(transfer);
                self.transfer.receive().await
            }
            None => return Some(Err(unknown(transfer))),
            Some((next, receiver)) if number != next => {
                self.with(transfer, |arrival| arrival.receiver = receiver);
                return (number < next).then_some(Ok(()));
            }
            Some((_, receiver)) => Ok(receiver?),
        };
        let written = match receiver {
            Ok(mut receiver) => self.transfer.write(&mut receiver, bytes).await.map(|()| receiver),
            Err(error) => Err(error),
        };
        // After an error no part of it is accepted any more.
        Some(written.map(|receiver| {
            self.with(transfer, |arrival| {
                (arrival.next, arrival.receiver) = (number + 1, Some(receiver));
            });
        }))
    }

    /// Returns a snapshot of which all parts have arrived. `None`: an earlier message with the same request is at work.
    async fn finish(&self, transfer: u64) -> Option<io::Result<T::Snapshot>> {
        match self.with(transfer, |arrival| arrival.receiver.take()) {
            None => Some(Err(unknown(transfer))),
            Some(receiver) => Some(self.transfer.finish(receiver?).await),
        }
    }
}

fn unknown(transfer: u64) -> io::Error {
    io::Error::other(format!("transfer {transfer:016x} is not known here: send the snapshot again"))
}

/// Passes the requests of other nodes that arrive at a port of the current node to `raft`, each in a new task. Snapshots
/// arrive by `transfer`.
///
/// # Errors
/// Returns when the socket cannot be bound, or is closed.
pub async fn serve<C, SM, T>(raft: Raft<C, SM>, port: u32, transfer: T) -> forebay::Result<()>
where
    C: RaftTypeConfig,
    SM: RaftStateMachine<C, SnapshotData = T::Snapshot>,
    T: Transfer,
{
    let mut socket = Socket::bind(port)?;
    let arrivals = Arc::new(Arrivals { transfer, arrivals: Mutex::default() });
    loop {
        let message = socket.recv().await?;
        // It runs on, and ends with the node.
        drop(sim::spawn(handle(raft.clone(), arrivals.clone(), message)));
    }
}

async fn handle<C, SM, T>(raft: Raft<C, SM>, arrivals: Arc<Arrivals<T>>, message: Message)
where
    C: RaftTypeConfig,
    SM: RaftStateMachine<C, SnapshotData = T::Snapshot>,
    T: Transfer,
{
    // Bytes of another program get no reply.
    let Ok(request) = rmp_serde::from_slice::<Request<C>>(message.bytes()) else { return };
    let reply = match request {
        Request::Append(request) => encode(raft.append_entries(request).await),
        Request::Vote(request) => encode(raft.vote(request).await),
        Request::PreVote(request) => encode(raft.pre_vote(request).await),
        Request::TransferLeader(request) => encode(raft.handle_transfer_leader(request).await),
        Request::Part { transfer, number, bytes } => {
            let Some(taken) = arrivals.take(transfer, number, bytes).await else { return };
            encode(taken)
        }
        Request::Install { transfer, vote, meta } => match arrivals.finish(transfer).await {
            None => return,
            Some(Ok(snapshot)) => {
                let installed = raft.install_full_snapshot(vote, Snapshot { meta, snapshot }).await;
                encode(installed.map(|response| response.vote))
            }
            Some(Err(error)) => encode(Err::<(), _>(error)),
        },
    };
    message.reply(reply);
}

fn encode<T: Serialize, E: fmt::Display>(result: Result<T, E>) -> Vec<u8> {
    let result = result.map_err(|error| error.to_string());
    // Responses are plain data, whose encoding does not fail; an empty reply is an error at its receiver.
    rmp_serde::to_vec_named(&result).unwrap_or_default()
}
