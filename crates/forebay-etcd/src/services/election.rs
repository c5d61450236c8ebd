//! The Election service.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::follow::Follow;
use super::queue::{
    Queue, QueuedKey, delete, first, found, get, is_made_at, key_of, keys_of, operation, prefix, put,
    revision, unknown,
};
use crate::answer::{Answer, forward};
use crate::hub::Keys;
use crate::proto::etcdserverpb::ResponseHeader;
use crate::proto::etcdserverpb::request_op::Request as Op;
use crate::proto::mvccpb::event::EventType;
use crate::proto::v3electionpb::election_server::Election;
use crate::proto::v3electionpb::*;
use crate::refusal::Refusal;

/// Leaders that wait for the client to read them.
const RESPONSES_MAX: usize = 8;

#[derive(Clone)]
pub(crate) struct Elections {
    pub(super) queue: Queue,
}

type Responses = mpsc::Sender<Result<LeaderResponse, Status>>;

fn named(leader: Option<LeaderKey>) -> Result<LeaderKey, Status> {
    leader.ok_or_else(|| unknown("\"leader\" field must be provided"))
}

impl Elections {
    /// Returns the same for a request's caller.
    fn of<T>(&self, request: &Request<T>) -> Elections {
        Elections { queue: self.queue.of(request) }
    }

    /// Puts another value, if the key is still the one that was made then.
    async fn proclaim_value(
        &self,
        key: &[u8],
        made: i64,
        value: Vec<u8>,
        lease: i64,
    ) -> Result<Option<ResponseHeader>, Status> {
        let response =
            self.queue.txn(is_made_at(key, made), vec![put(key, value, lease)], Vec::new()).await?;
        if response.succeeded { Ok(response.header) } else { Err(unknown("election: not leader")) }
    }

    /// Sends leaders and their values until the client has disconnected.
    async fn observe_all(&self, name: &[u8], responses: &Responses) -> Result<(), Status> {
        let (queue, prefix) = (&self.queue, prefix(name));
        let context = &queue.context;
        let send = async |revision: i64, kv| {
            let header = Some(context.node.header(revision));
            responses.send(Ok(LeaderResponse { header, kv: Some(kv) })).await.is_ok()
        };
        loop {
            let response = queue.range(first(&prefix)).await?;
            let (at, kv) = match response.kvs.into_iter().next() {
                Some(kv) => (revision(&response.header), kv),
                None => {
                    let Some(keys) = keys_of(&prefix) else { return Ok(()) };
                    let mut events = Follow::new(context, keys, revision(&response.header));
                    loop {
                        let event = events.next().await?;
                        if let Some(kv) = event.kv.clone().filter(|_| event.r#type() == EventType::Put) {
                            break (kv.mod_revision, kv);
                        }
                    }
                }
            };
            let Some(keys) = Keys::of(&kv.key, &[]) else { return Ok(()) };
            let mut events = Follow::new(context, keys, at + 1);
            if !send(at, kv).await {
                return Ok(());
            }
            loop {
                let event = events.next().await?;
                let Some(kv) = event.kv.clone().filter(|_| event.r#type() == EventType::Put) else { break };
                if !send(kv.mod_revision, kv).await {
                    return Ok(());
                }
            }
        }
    }
}

type Leaders = ReceiverStream<Result<LeaderResponse, Status>>;

impl Elections {
    fn campaign(&self, request: Request<CampaignRequest>) -> Answer<'_, Response<CampaignResponse>> {
        Box::pin(async move {
            let elections = self.of(&request);
            let CampaignRequest { name, lease, value } = request.into_inner();
            let queue = &elections.queue;
            let lease = queue.lease(lease).await?;
            let prefix = prefix(&name);
            let key = key_of(&prefix, lease);
            let own = operation(Op::RequestRange(get(&key)));
            let success = vec![put(&key, value.clone(), lease)];
            let (response, queued) = queue.enter(&key, success, vec![own]).await?;
            let before = found(&response, 0).first();
            let rev = before.map_or_else(|| revision(&response.header), |own| own.create_revision);
            let queued = queued.unwrap_or_else(|| QueuedKey::new(queue, &key, rev));
            if before.is_some_and(|own| own.value != value) {
                elections.proclaim_value(&key, rev, value, lease).await?;
            }
            match queue.wait_for_those_before(&prefix, rev - 1).await {
                Ok(()) => queued.end(),
                Err(status) => {
                    // As etcd: another try with the same lease keeps its place in the queue.
                    queued.end();
                    return Err(status);
                }
            }
            let leader = Some(LeaderKey { name, key, rev, lease });
            Ok(Response::new(CampaignResponse { header: response.header, leader }))
        })
    }

    fn proclaim(&self, request: Request<ProclaimRequest>) -> Answer<'_, Response<ProclaimResponse>> {
        Box::pin(async move {
            let elections = self.of(&request);
            let ProclaimRequest { leader, value } = request.into_inner();
            let leader = named(leader)?;
            let lease = elections.queue.lease(leader.lease).await?;
            let header = elections.proclaim_value(&leader.key, leader.rev, value, lease).await?;
            Ok(Response::new(ProclaimResponse { header }))
        })
    }

    fn leader(&self, request: Request<LeaderRequest>) -> Answer<'_, Response<LeaderResponse>> {
        Box::pin(async move {
            let queue = self.queue.of(&request);
            let response = queue.range(first(&prefix(&request.get_ref().name))).await?;
            let kv = response.kvs.into_iter().next().ok_or_else(|| unknown("election: no leader"))?;
            Ok(Response::new(LeaderResponse { header: response.header, kv: Some(kv) }))
        })
    }

    fn observe(&self, request: Request<LeaderRequest>) -> Answer<'_, Response<Leaders>> {
        Box::pin(async move {
            let (responses, stream) = mpsc::channel(RESPONSES_MAX);
            let (elections, name) = (self.of(&request), request.into_inner().name);
            tokio::spawn(async move {
                let observed = tokio::select! {
                    () = responses.closed() => return,
                    observed = elections.observe_all(&name, &responses) => observed,
                };
                // etcd ends the stream without a reason, such as a compaction; clients observe again.
                if let Err(status) = observed
                    && status.message() == Refusal::Stopped.text()
                {
                    let _ = responses.send(Err(status)).await;
                }
            });
            Ok(Response::new(ReceiverStream::new(stream)))
        })
    }

    fn resign(&self, request: Request<ResignRequest>) -> Answer<'_, Response<ResignResponse>> {
        Box::pin(async move {
            let queue = self.queue.of(&request);
            let leader = named(request.into_inner().leader)?;
            let key = &leader.key[..];
            let response = queue.txn(is_made_at(key, leader.rev), vec![delete(key)], Vec::new()).await?;
            Ok(Response::new(ResignResponse { header: response.header }))
        })
    }
}

impl Election for Elections {
    type ObserveStream = Leaders;

    forward! {
        campaign(CampaignRequest) -> CampaignResponse;
        proclaim(ProclaimRequest) -> ProclaimResponse;
        leader(LeaderRequest) -> LeaderResponse;
        observe(LeaderRequest) -> Leaders;
        resign(ResignRequest) -> ResignResponse;
    }
}
