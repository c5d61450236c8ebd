//! The Lease service.

use std::hash::{BuildHasher, RandomState};

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::ahead::{Ahead, Place};
use super::rights::Credentials;
use super::{Context, StopSignal, foreign, stopped};
use crate::accounts::Need;
use crate::answer::{Answer, forward};
use crate::mvcc::{LEASE_COST_BYTES, TTL_MAX_S, View};
use crate::node::{Client, LeaderCall};
use crate::proto::etcdserverpb::lease_server::Lease;
use crate::proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
};
use crate::proto::peer::command::Change;
use crate::proto::peer::{KeepAliveReply, KeepAliveRequest};
use crate::refusal::Refusal;

/// Leases that are kept alive before other tasks have their turn.
const TURN: usize = 1024;

#[derive(Clone)]
pub(crate) struct LeaseCalls {
    pub(super) context: Context,
}

/// Revokes a lease whose time ended in a term in which this member leads. A lease with more keys than an entry of the log may
/// change remains with the rest of them, and is among the next expired leases. A lease that is already revoked is not an error.
pub(super) async fn expire(context: &Context, term: u64, id: i64) -> Result<(), Status> {
    match context.change_leading(term, Change::LeaseRevoke(LeaseRevokeRequest { id })).await {
        Err(error) if error.code() == Refusal::LeaseNotFound.code() => Ok(()),
        revoked => revoked.map(drop),
    }
}

/// Keeps leases alive at the leader, which is this member.
pub(super) async fn keep_alive_here(
    context: &Context,
    request: KeepAliveRequest,
) -> Result<KeepAliveReply, Status> {
    // Another member may lead by now, and may have revoked some. Or this member leads again, with times of its former term: they
    // miss leases kept alive by the leader in between, and a revocation that was not committed then.
    let term = context.node.read_barrier_leading().await?;
    let mut ttls = Vec::with_capacity(request.ids.len());
    for ids in request.ids.chunks(TURN) {
        if !ttls.is_empty() {
            tokio::task::yield_now().await;
        }
        context.leading_in(term, |lessor| {
            ttls.extend(ids.iter().map(|&id| lessor.keep_alive(id).unwrap_or(0)));
        })?;
    }
    Ok(KeepAliveReply { revision: context.hub.revision(), ttls })
}

async fn lease_keys(context: &Context, view: &View, id: i64) -> Result<Vec<Vec<u8>>, Status> {
    match view.lease_keys(id).await {
        Ok(keys) => Ok(keys),
        Err(failure) => Err(context.node.unread_in(view, failure).await),
    }
}

/// Returns the time that a lease has left at the leader, which is this member.
pub(super) async fn time_to_live_here(
    context: &Context,
    request: LeaseTimeToLiveRequest,
) -> Result<LeaseTimeToLiveResponse, Status> {
    let term = context.node.read_barrier_leading().await?;
    let view = context.node.view().await?;
    let header = Some(context.node.header(view.revision()));
    let time = context.leading_in(term, |lessor| lessor.time_to_live(request.id))?;
    let Some((ttl, granted_ttl)) = time else {
        return Ok(LeaseTimeToLiveResponse { header, id: request.id, ttl: -1, ..Default::default() });
    };
    let keys = if request.keys { lease_keys(context, &view, request.id).await? } else { Vec::new() };
    Ok(LeaseTimeToLiveResponse { header, id: request.id, ttl, granted_ttl, keys })
}

impl LeaseCalls {
    /// Keeps leases alive behind one read barrier.
    async fn keep_alive(
        &self,
        by: &Credentials,
        ids: Vec<i64>,
    ) -> Result<Vec<LeaseKeepAliveResponse>, Status> {
        self.context.permit_leases(by, &ids).await?;
        let (node, request) = (&self.context.node, KeepAliveRequest { ids });
        let here = || keep_alive_here(&self.context, request.clone());
        let there = |mut leader: Client| {
            let request = request.clone();
            async move { leader.keep_alive(request).await.map(Response::into_inner) }
        };
        let reply = node.call_leader(LeaderCall::REPEATABLE, node.deadline(), here, there).await?;
        if reply.ttls.len() != request.ids.len() {
            return Err(foreign());
        }
        let header = Some(node.header(reply.revision));
        let kept = request.ids.into_iter().zip(reply.ttls);
        Ok(kept.map(|(id, ttl)| LeaseKeepAliveResponse { header, id, ttl }).collect())
    }

    /// All that have arrived together, in the order of the requests.
    async fn keep_all_alive(
        self,
        by: Credentials,
        mut requests: Ahead<LeaseKeepAliveRequest>,
        responses: mpsc::UnboundedSender<(Result<LeaseKeepAliveResponse, Status>, Option<Place>)>,
        mut stopping: StopSignal,
    ) {
        let mut arrived = Vec::new();
        loop {
            tokio::select! {
                () = stopped(&mut stopping) => {
                    let _ = responses.send((Err(Refusal::Stopped.into()), None));
                    return;
                }
                () = responses.closed() => return,
                () = requests.next_all(&mut arrived) => if arrived.is_empty() {
                    if let Some(refusal) = requests.refusal() {
                        let _ = responses.send((Err(refusal), None));
                    }
                    return;
                },
            }
            let (ids, places): (Vec<i64>, Vec<Place>) =
                arrived.drain(..).map(|(request, place)| (request.id, place)).unzip();
            match self.keep_alive(&by, ids).await {
                Ok(kept) => {
                    for (response, place) in kept.into_iter().zip(places) {
                        // Without a reader the stream is over, which the next turn sees.
                        let _ = responses.send((Ok(response), Some(place)));
                    }
                }
                Err(status) => {
                    let _ = responses.send((Err(status), None));
                    return;
                }
            }
        }
    }
}

type KeepAliveResponses = BoxStream<'static, Result<LeaseKeepAliveResponse, Status>>;

impl LeaseCalls {
    /// Refuses those that may not read the keys of all leases.
    async fn check_all_leases(&self, by: &Credentials) -> Result<(), Status> {
        let context = &self.context;
        if context.unless_root(by)?.is_none() {
            return Ok(());
        }
        let view = context.node.view().await?;
        let leases = match view.leases().await {
            Ok(leases) => leases,
            Err(failure) => return Err(context.node.unread_in(&view, failure).await),
        };
        for (id, _) in leases {
            let keys = lease_keys(context, &view, id).await?;
            context.check(by, |check| keys.iter().try_for_each(|key| check(Need::Read(key, &[]))))?;
        }
        Ok(())
    }

    fn lease_grant(&self, request: Request<LeaseGrantRequest>) -> Answer<'_, Response<LeaseGrantResponse>> {
        Box::pin(async move {
            let (by, LeaseGrantRequest { ttl, mut id }) = Credentials::split(request);
            let author = self.context.author(&by)?;
            if ttl > TTL_MAX_S {
                return Err(Refusal::LeaseTtlTooLarge.into());
            }
            self.context.check_room(LEASE_COST_BYTES).await?;
            let is_drawn = id == 0;
            let ttl = ttl.max(self.context.limits.lease_s_min);
            loop {
                if is_drawn {
                    // Positive. Each state is seeded anew by the system.
                    id = (RandomState::new().hash_one(self.context.node.id()) >> 1).max(1) as i64;
                }
                let change = Change::LeaseGrant(LeaseGrantRequest { ttl, id });
                match self.context.change_by(author.clone(), change).await {
                    Err(status) if is_drawn && status.message() == Refusal::LeaseExists.text() => {}
                    Err(status) => return Err(status),
                    Ok((_, revision)) => {
                        let header = Some(self.context.node.header(revision));
                        return Ok(Response::new(LeaseGrantResponse {
                            header,
                            id,
                            ttl,
                            error: String::new(),
                        }));
                    }
                }
            }
        })
    }

    fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Answer<'_, Response<LeaseRevokeResponse>> {
        Box::pin(async move {
            let (by, LeaseRevokeRequest { id }) = Credentials::split(request);
            let (author, change) =
                (self.context.author(&by)?, Change::LeaseRevoke(LeaseRevokeRequest { id }));
            let revision = self.context.change_in_steps(author, change, Refusal::LeaseNotFound).await?;
            let header = Some(self.context.node.header(revision));
            Ok(Response::new(LeaseRevokeResponse { header }))
        })
    }

    fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Answer<'_, Response<KeepAliveResponses>> {
        Box::pin(async move {
            // Each response has its request's place.
            let (responses, stream) = mpsc::unbounded_channel();
            let (by, requests) = Credentials::split(request);
            let stopping = self.context.stopping.clone();
            let requests = Ahead::new(requests, self.context.ahead.clone());
            tokio::spawn(self.clone().keep_all_alive(by, requests, responses, stopping));
            Ok(Response::new(UnboundedReceiverStream::new(stream).map(|(response, _)| response).boxed()))
        })
    }

    fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Answer<'_, Response<LeaseTimeToLiveResponse>> {
        Box::pin(async move {
            let ((by, request), node) = (Credentials::split(request), &self.context.node);
            let here = || time_to_live_here(&self.context, request);
            let there = |mut leader: Client| async move {
                leader.time_to_live(request).await.map(Response::into_inner)
            };
            let response = node.call_leader(LeaderCall::REPEATABLE, node.deadline(), here, there).await?;
            if !response.keys.is_empty() && self.context.users.is_on() {
                // All changes from before the keys were read count.
                node.read_barrier().await?;
                self.context.check(&by, |check| {
                    response.keys.iter().try_for_each(|key| check(Need::Read(key, &[])))
                })?;
            }
            let header = response.header.map(|header| node.header(header.revision));
            Ok(Response::new(LeaseTimeToLiveResponse { header, ..response }))
        })
    }

    fn lease_leases(
        &self,
        request: Request<LeaseLeasesRequest>,
    ) -> Answer<'_, Response<LeaseLeasesResponse>> {
        Box::pin(async move {
            self.context.node.read_barrier().await?;
            self.check_all_leases(&Credentials::split(request).0).await?;
            let leases = self.context.lessor.ids().into_iter().map(|id| LeaseStatus { id }).collect();
            let header = Some(self.context.node.header(self.context.hub.revision()));
            Ok(Response::new(LeaseLeasesResponse { header, leases }))
        })
    }
}

impl Lease for LeaseCalls {
    type LeaseKeepAliveStream = KeepAliveResponses;

    forward! {
        lease_grant(LeaseGrantRequest) -> LeaseGrantResponse;
        lease_revoke(LeaseRevokeRequest) -> LeaseRevokeResponse;
        lease_keep_alive(Streaming<LeaseKeepAliveRequest>) -> KeepAliveResponses;
        lease_time_to_live(LeaseTimeToLiveRequest) -> LeaseTimeToLiveResponse;
        lease_leases(LeaseLeasesRequest) -> LeaseLeasesResponse;
    }
}
