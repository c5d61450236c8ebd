//! Raft's messages to other members.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_raft::RaftSnapshot;
use futures_util::{Stream, StreamExt};
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::{SnapshotOf, VoteOf};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::peers::{Client, Peers, Purpose};
use super::wire::{AppendReply, Snapshot, Transfer, TransferReply, Vote, VoteReply, decode, encode};
use crate::proto::peer::Encoded;
use crate::types::{Peer, Types};

/// The most appends in flight to one member. Meanwhile entries gather for the next append.
const APPENDS_MAX: usize = 4;
/// Parts of a snapshot that wait to be sent.
const PARTS_MAX: usize = 4;

/// Makes connections to members.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub(crate) peers: Peers,
    /// The time after which an append counts as lost if its entries are not durable at the member.
    pub(crate) append_timeout: Duration,
    /// The time limit of a member to install a snapshot that it has received.
    pub(crate) install_timeout: Duration,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Connection;

    async fn new_client(&mut self, target: u64, node: &Peer) -> Connection {
        self.peers.set(target, &node.urls);
        Connection { target, network: self.clone() }
    }
}

/// A connection to one member, by its id: where it is reached may change.
#[derive(Debug)]
pub(crate) struct Connection {
    target: u64,
    network: Network,
}

impl Connection {
    fn client(&self, purpose: Purpose) -> Result<Client, Unreachable<Types>> {
        self.network.peers.client(self.target, purpose).map_err(|status| Unreachable::new(&status))
    }

    /// Returns Raft's word for a failure: after one to reach the member it waits before it tries again.
    fn failed(&self, status: &Status) -> RPCError<Types> {
        // The second are refusals that stay, such as of a member whose formats are others.
        if [Code::Unavailable, Code::FailedPrecondition].contains(&status.code()) {
            self.network.peers.note(self.target, Err(status));
            self.network.peers.failed(self.target);
            return RPCError::Unreachable(Unreachable::from_string(super::peers::causes(status)));
        }
        RPCError::Network(NetworkError::from_string(super::peers::causes(status)))
    }

    async fn call<T, F>(&self, option: &RPCOption, call: F) -> Result<T, RPCError<Types>>
    where
        T: serde::de::DeserializeOwned,
        F: Future<Output = Result<tonic::Response<Encoded>, Status>>,
    {
        let late = |_| self.failed(&Status::unavailable("no reply in time"));
        let response = timeout(option.soft_ttl(), call).await.map_err(late)?;
        let response = response.map_err(|status| self.failed(&status))?;
        self.network.peers.note(self.target, Ok(()));
        decode(response.get_ref()).map_err(|status| self.failed(&status))
    }

    async fn vote_or_pre_vote(
        &self,
        request: VoteRequest<Types>,
        is_pre_vote: bool,
        option: &RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let message = encode(&Vote { request, is_pre_vote }).map_err(|status| self.failed(&status))?;
        let mut client = self.client(Purpose::Raft)?;
        self.call::<VoteReply, _>(option, client.vote(message)).await
    }
}

/// When the appends on their way were sent, oldest first, and whether they are heartbeats: without entries.
type SendTimes = Arc<Mutex<VecDeque<(Instant, bool)>>>;

fn oldest(sent: &SendTimes) -> Option<Instant> {
    sent.lock().unwrap_or_else(PoisonError::into_inner).front().map(|(begun, _)| *begun)
}

/// The replies to a stream of appends.
struct Replies {
    replies: tonic::Streaming<Encoded>,
    sent: SendTimes,
    room: Arc<Semaphore>,
    timeout: Duration,
    peers: Peers,
    target: u64,
}

impl Replies {
    /// Waits for the next reply, up to the time limit of the oldest append; with no append in flight, forever.
    async fn next(&mut self) -> Result<Option<Encoded>, Status> {
        loop {
            let begun = oldest(&self.sent).unwrap_or_else(Instant::now);
            match timeout_at(begun + self.timeout, self.replies.message()).await {
                Ok(reply) => {
                    let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    self.room.add_permits(1);
                    if let Ok(Some(reply)) = &reply {
                        self.peers.note_bytes(self.target, 0, reply.bytes.len());
                    }
                    if let (Ok(Some(_)), Some((begun, true))) = (&reply, sent) {
                        self.peers.note_round_trip(self.target, begun.elapsed());
                    }
                    return reply;
                }
                Err(_) if oldest(&self.sent).is_none_or(|begun| begun.elapsed() < self.timeout) => {}
                Err(_) => return Err(Status::unavailable("no reply to an append in time")),
            }
        }
    }
}

impl RaftNetworkV2<Types> for Connection {
    type SnapshotData = RaftSnapshot;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let last = request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id);
        let mut replies = self.stream_append(futures_util::stream::iter([request]), option).await?;
        let reply = replies.next().await;
        drop(replies);
        match reply {
            Some(Ok(Ok(matching))) if matching != last => Ok(AppendEntriesResponse::PartialSuccess(matching)),
            Some(reply) => Ok(reply?.into()),
            None => Err(self.failed(&Status::unavailable("no reply to an append"))),
        }
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<BoxStream<'s, Result<StreamAppendResult<Types>, RPCError<Types>>>, RPCError<Types>>,
    >
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + Send + Unpin + 'static,
    {
        Box::pin(async move {
            // Before the first request Raft waits, if calls have failed. A member that refuses the connection is not reached with any
            // request: it would be called thousands of times a second.
            let mut input = input;
            let Some(first) = input.next().await else {
                let nothing: BoxStream<'s, _> = Box::pin(futures_util::stream::empty());
                return Ok(nothing);
            };
            let input = futures_util::stream::iter([first]).chain(input);
            let (sent, room) = (SendTimes::default(), Arc::new(Semaphore::new(APPENDS_MAX)));
            let (noted, places) = (sent.clone(), room.clone());
            let (peers, target) = (self.network.peers.clone(), self.target);
            let counted = peers.clone();
            let requests = futures_util::stream::unfold(input, move |mut input| {
                let (noted, places, counted) = (noted.clone(), places.clone(), counted.clone());
                async move {
                    places.acquire().await.ok()?.forget();
                    let request = input.next().await?;
                    noted
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push_back((Instant::now(), request.entries.is_empty()));
                    // What cannot be encoded ends the stream, and so the session.
                    let message = encode(&request).ok()?;
                    counted.note_bytes(target, message.bytes.len(), 0);
                    Some((message, input))
                }
            });
            let mut client = self.client(Purpose::Raft)?;
            let limit = self.network.append_timeout;
            let replies = match timeout(limit, client.append(requests)).await {
                Ok(replies) => replies.map_err(|status| self.failed(&status))?.into_inner(),
                Err(_) => return Err(self.failed(&Status::unavailable("no reply to an append in time"))),
            };
            let replies = Replies { replies, sent, room, timeout: limit, peers, target };
            let connection = &*self;
            let replies = futures_util::stream::unfold(Some(replies), move |replies| async move {
                let mut replies = replies?;
                let reply = match replies.next().await {
                    Ok(reply) => {
                        connection.network.peers.note(connection.target, Ok(()));
                        decode::<AppendReply>(&reply?)
                    }
                    Err(status) => Err(status),
                };
                match reply {
                    Ok(Ok(matching)) => Some((Ok(Ok(matching)), Some(replies))),
                    Ok(Err(refused)) => Some((Ok(Err(refused)), None)),
                    Err(status) => Some((Err(connection.failed(&status)), None)),
                }
            });
            let replies: BoxStream<'s, _> = Box::pin(replies);
            Ok(replies)
        })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.vote_or_pre_vote(request, false, &option).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.vote_or_pre_vote(request, true, &option).await
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<Types>,
        snapshot: SnapshotOf<Types, RaftSnapshot>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let unreachable = |status: &Status| match self.failed(status) {
            RPCError::Network(error) => StreamingError::Network(error),
            _ => StreamingError::Unreachable(Unreachable::new(status)),
        };
        let (parts, outgoing) = mpsc::channel(PARTS_MAX);
        let (limit, mut reader) = (self.network.install_timeout, snapshot.snapshot.reader());
        let (peers, target) = (self.network.peers.clone(), self.target);
        let meta = snapshot.meta;
        // The receiver accepts parts as fast as it writes them; a receiver that accepts nothing for this long is lost.
        let sending = async move {
            loop {
                let part = reader.next().await.map_err(|error| Status::internal(error.to_string()))?;
                let is_last = part.is_none();
                let message = match part {
                    Some(part) => Snapshot::Part(part),
                    None => Snapshot::Install(vote, meta.clone()),
                };
                let message = encode(&message)?;
                peers.note_bytes(target, message.bytes.len(), 0);
                match timeout(limit, parts.send(message)).await {
                    Ok(Ok(())) if !is_last => {}
                    // The call itself says what has become of it.
                    Ok(_) => return Ok(()),
                    Err(_) => return Err(Status::unavailable("no part of a snapshot was taken in time")),
                }
            }
        };
        let mut client = self.client(Purpose::Other)?;
        let call = client.install_snapshot(ReceiverStream::new(outgoing));
        let transfer = async move {
            let (mut call, mut sending) = (std::pin::pin!(call), std::pin::pin!(sending));
            let sent: Result<(), Status> = tokio::select! {
                replied = &mut call => return replied,
                sent = &mut sending => sent,
            };
            sent?;
            timeout(limit, call).await.unwrap_or_else(|_| Err(Status::unavailable("not installed in time")))
        };
        tokio::select! {
            replied = transfer => {
                let replied = replied.map_err(|status| unreachable(&status))?;
                decode(replied.get_ref()).map_err(|status| unreachable(&status))
            }
            closed = cancel => Err(StreamingError::Closed(closed)),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let message = encode::<Transfer>(&request).map_err(|status| self.failed(&status))?;
        let mut client = self.client(Purpose::Raft)?;
        self.call::<TransferReply, _>(&option, client.transfer_leader(message)).await
    }

    fn backoff(&self) -> Option<Backoff> {
        // A returning member is found again soon, and an absent member costs little.
        let waits = [10, 20, 50, 100, 200].into_iter().chain(std::iter::repeat(500));
        Some(Backoff::new(waits.map(Duration::from_millis)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::peers::Dialer;
    use super::*;

    /// A leader connected to a killed member 2,000 times a second, and wrote two lines each time: Raft's pause after a failure
    /// applies from the first request, and the refused connection never received one.
    #[tokio::test]
    async fn a_member_is_called_once_raft_has_something_for_it() {
        let dialer = Dialer {
            tls: None,
            names: Default::default(),
            connect_timeout: Duration::from_secs(5),
            keep_alive: Duration::from_secs(5),
            formats: crate::version::Formats::OWN,
            runtime: tokio::runtime::Handle::current(),
        };
        let mut network = Network {
            peers: Peers::new(1, 1, dialer),
            append_timeout: Duration::from_secs(5),
            install_timeout: Duration::from_secs(5),
        };
        // No other program can bind this port meanwhile, and it has no listener.
        let closed = tokio::net::TcpSocket::new_v4().unwrap();
        closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = closed.local_addr().unwrap();
        let peer = Peer { urls: vec![format!("http://{address}")], is_voter_soon: false };
        let mut connection = network.new_client(2, &peer).await;
        let option = || RPCOption::new(Duration::from_secs(5));
        let vote = VoteOf::<Types>::new_committed(1, 1);
        let request =
            AppendEntriesRequest { vote, prev_log_id: None, entries: Vec::new(), leader_commit: None };
        let is_taken = Arc::new(AtomicBool::new(false));
        let taken = is_taken.clone();
        let requests =
            futures_util::stream::iter([request]).inspect(move |_| taken.store(true, Ordering::Relaxed));
        let appended = connection.stream_append(requests, option()).await;
        assert!(matches!(appended, Err(RPCError::Unreachable(_))));
        assert!(is_taken.load(Ordering::Relaxed), "it was called before Raft had something for it");
        drop(appended);
        let nothing = futures_util::stream::empty::<AppendEntriesRequest<Types>>();
        let mut replies = connection.stream_append(nothing, option()).await.expect("nothing to send");
        assert!(replies.next().await.is_none());
    }
}
