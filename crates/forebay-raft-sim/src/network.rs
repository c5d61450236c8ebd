//! openraft's network on the network of a world.

use std::fmt;
use std::future::Future;
use std::io::{self, Cursor};
use std::time::Duration;

use forebay::sim::net::{self, Address, Message, Socket};
use forebay::sim::{self};
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

/// Snapshot data that travels in one message of a world.
pub trait SnapshotBytes: Sized + Send + 'static {
    /// Returns all of it.
    fn into_bytes(self) -> impl Future<Output = io::Result<Vec<u8>>> + Send;

    /// Makes snapshot data from the bytes that [`into_bytes`](SnapshotBytes::into_bytes) returned on another node.
    fn from_bytes(bytes: Vec<u8>) -> impl Future<Output = io::Result<Self>> + Send;
}

impl SnapshotBytes for Cursor<Vec<u8>> {
    async fn into_bytes(self) -> io::Result<Vec<u8>> {
        Ok(self.into_inner())
    }

    async fn from_bytes(bytes: Vec<u8>) -> io::Result<Self> {
        Ok(Cursor::new(bytes))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
enum Request<C: RaftTypeConfig> {
    Append(AppendEntriesRequest<C>),
    Vote(VoteRequest<C>),
    PreVote(VoteRequest<C>),
    TransferLeader(TransferLeaderRequest<C>),
    Snapshot { vote: VoteOf<C>, meta: SnapshotMetaOf<C>, bytes: Vec<u8> },
}

/// Makes connections to the Raft nodes of a world, which [`serve`] at the addresses that `address` returns.
pub struct SimNetwork<C: RaftTypeConfig, SD> {
    address: fn(&C::NodeId, &C::Node) -> Address,
    snapshots: std::marker::PhantomData<fn() -> SD>,
}

impl<C: RaftTypeConfig, SD> SimNetwork<C, SD> {
    /// Returns a network whose nodes have the addresses that `address` returns.
    pub fn new(address: fn(&C::NodeId, &C::Node) -> Address) -> SimNetwork<C, SD> {
        SimNetwork { address, snapshots: std::marker::PhantomData }
    }
}

impl<C: RaftTypeConfig, SD> fmt::Debug for SimNetwork<C, SD> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimNetwork").finish_non_exhaustive()
    }
}

/// A connection to one Raft node: each request is a call of its own ([`net::call`]), which may be lost, or arrive
/// twice or late.
pub struct Connection<SD> {
    to: Address,
    snapshots: std::marker::PhantomData<fn() -> SD>,
}

impl<SD> fmt::Debug for Connection<SD> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("to", &self.to).finish_non_exhaustive()
    }
}

impl<C: RaftTypeConfig, SD: SnapshotBytes> RaftNetworkFactory<C> for SimNetwork<C, SD> {
    type Network = Connection<SD>;

    async fn new_client(&mut self, target: C::NodeId, node: &C::Node) -> Connection<SD> {
        Connection { to: (self.address)(&target, node), snapshots: std::marker::PhantomData }
    }
}

impl<SD: SnapshotBytes> Connection<SD> {
    async fn call<C: RaftTypeConfig, R: DeserializeOwned>(
        &self,
        request: &Request<C>,
        limit: Duration,
    ) -> Result<R, NetworkError<C>> {
        let request = serde_json::to_vec(request).map_err(|error| NetworkError::new(&error))?;
        let reply = net::call(self.to, request, limit).await.map_err(|error| NetworkError::new(&error))?;
        let reply: Result<R, String> =
            serde_json::from_slice(&reply).map_err(|error| NetworkError::new(&error))?;
        reply.map_err(NetworkError::from_string)
    }
}

impl<C: RaftTypeConfig, SD: SnapshotBytes> RaftNetworkV2<C> for Connection<SD> {
    type SnapshotData = SD;

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
        snapshot: SnapshotOf<C, SD>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<C>, StreamingError<C>> {
        let Snapshot { meta, snapshot } = snapshot;
        let send = async {
            let bytes = snapshot.into_bytes().await.map_err(|error| NetworkError::new(&error))?;
            let vote = self.call(&Request::<C>::Snapshot { vote, meta, bytes }, option.hard_ttl()).await?;
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

/// Passes the requests of other nodes that arrive at a port of the current node to `raft`, each in a task of its own.
///
/// # Errors
/// Returns when the socket cannot be bound, or is closed.
pub async fn serve<C, SM>(raft: Raft<C, SM>, port: u32) -> forebay::Result<()>
where
    C: RaftTypeConfig,
    SM: RaftStateMachine<C>,
    SM::SnapshotData: SnapshotBytes,
{
    let mut socket = Socket::bind(port)?;
    loop {
        let message = socket.recv().await?;
        let raft = raft.clone();
        // It runs on, and ends with the node.
        drop(sim::spawn(handle(raft, message)));
    }
}

async fn handle<C, SM>(raft: Raft<C, SM>, message: Message)
where
    C: RaftTypeConfig,
    SM: RaftStateMachine<C>,
    SM::SnapshotData: SnapshotBytes,
{
    // Bytes of another program get no reply.
    let Ok(request) = serde_json::from_slice::<Request<C>>(message.bytes()) else { return };
    let reply = match request {
        Request::Append(request) => encode(raft.append_entries(request).await),
        Request::Vote(request) => encode(raft.vote(request).await),
        Request::PreVote(request) => encode(raft.pre_vote(request).await),
        Request::TransferLeader(request) => encode(raft.handle_transfer_leader(request).await),
        Request::Snapshot { vote, meta, bytes } => match SM::SnapshotData::from_bytes(bytes).await {
            Ok(snapshot) => {
                let installed = raft.install_full_snapshot(vote, Snapshot { meta, snapshot }).await;
                encode(installed.map(|response| response.vote))
            }
            Err(error) => encode(Err::<(), _>(error)),
        },
    };
    message.reply(reply);
}

fn encode<T: Serialize, E: fmt::Display>(result: Result<T, E>) -> Vec<u8> {
    let result = result.map_err(|error| error.to_string());
    // Responses are plain data, whose encoding does not fail; an empty reply is an error at its receiver.
    serde_json::to_vec(&result).unwrap_or_default()
}
