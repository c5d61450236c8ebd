//! The Lease service.

use std::hash::{BuildHasher, RandomState};

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Context, Outcome, Stopping, stopped};
use crate::mvcc::{LEASE_COST_BYTES, TTL_MAX_S, View};
use crate::node::Client;
use crate::proto::etcdserverpb::lease_server::Lease;
use crate::proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
};
use crate::proto::peer::Done;
use crate::proto::peer::command::Change;
use crate::refusal::Refusal;

/// Responses that wait for a client to read them.
const RESPONSES_MAX: usize = 16;

/// The service.
#[derive(Clone)]
pub(crate) struct LeaseCalls {
    pub(super) context: Context,
}

/// Revokes a lease whose time ended in a term in which this member leads; in several steps, as [`revoke_all`]. One that is revoked
/// already is no error.
pub(super) async fn expire(context: &Context, term: u64, id: i64) -> Result<(), Status> {
    loop {
        match context.change_leading(term, Change::LeaseRevoke(LeaseRevokeRequest { id })).await {
            Ok((Some(Outcome::Done(Done { is_partial: true })), _)) => {}
            Err(error) if error.code() == Refusal::LeaseNotFound.code() => return Ok(()),
            revoked => return revoked.map(drop),
        }
    }
}

/// Revokes a lease, in several steps if it has more keys than an entry of the log may change, and returns the revision after the last.
/// If that fails in between, the lease is there with the keys that are left.
async fn revoke_all(context: &Context, id: i64) -> Result<i64, Status> {
    let mut before = None;
    loop {
        match (context.change(Change::LeaseRevoke(LeaseRevokeRequest { id })).await, before) {
            (Ok((Some(Outcome::Done(Done { is_partial: true })), revision)), _) => before = Some(revision),
            (Ok((_, revision)), _) => return Ok(revision),
            // Another one has made the last step.
            (Err(error), Some(revision)) if error.code() == Refusal::LeaseNotFound.code() => {
                return Ok(revision);
            }
            (Err(error), _) => return Err(error),
        }
    }
}

/// Keeps a lease alive at the leader, which is this member.
pub(super) async fn keep_alive_here(context: &Context, id: i64) -> Result<LeaseKeepAliveResponse, Status> {
    // Another member may lead by now, and may have revoked it.
    context.node.read_barrier().await?;
    if !context.leads() {
        return Err(Refusal::NotLeader.into());
    }
    let ttl = context.lessor.keep_alive(id).unwrap_or(0);
    let header = Some(context.node.header(context.hub.revision()));
    Ok(LeaseKeepAliveResponse { header, id, ttl })
}

/// Returns the time that a lease has left at the leader, which is this member.
pub(super) async fn time_to_live_here(
    context: &Context,
    request: LeaseTimeToLiveRequest,
) -> Result<LeaseTimeToLiveResponse, Status> {
    context.node.read_barrier().await?;
    if !context.leads() {
        return Err(Refusal::NotLeader.into());
    }
    let view = View::of(context.node.store()).await?;
    let header = Some(context.node.header(view.revision()));
    let Some((ttl, granted_ttl)) = context.lessor.time_to_live(request.id) else {
        return Ok(LeaseTimeToLiveResponse { header, id: request.id, ttl: -1, ..Default::default() });
    };
    let keys = if request.keys { view.lease_keys(request.id).await? } else { Vec::new() };
    Ok(LeaseTimeToLiveResponse { header, id: request.id, ttl, granted_ttl, keys })
}

impl LeaseCalls {
    async fn keep_alive(&self, id: i64) -> Result<LeaseKeepAliveResponse, Status> {
        let node = &self.context.node;
        let here = || keep_alive_here(&self.context, id);
        let there = |mut leader: Client| async move {
            leader.keep_alive(LeaseKeepAliveRequest { id }).await.map(Response::into_inner)
        };
        let response = node.at_leader_or_again(here, there).await?;
        let header = response.header.map(|header| node.header(header.revision));
        Ok(LeaseKeepAliveResponse { header, ..response })
    }

    /// One after the other, in the order of the requests.
    async fn keep_all_alive(
        self,
        mut requests: Streaming<LeaseKeepAliveRequest>,
        responses: mpsc::Sender<Result<LeaseKeepAliveResponse, Status>>,
        mut stopping: Stopping,
    ) {
        loop {
            let request = tokio::select! {
                () = stopped(&mut stopping) => Err(Refusal::Stopped.into()),
                () = responses.closed() => return,
                request = requests.message() => match request {
                    Ok(Some(request)) => Ok(request),
                    Ok(None) | Err(_) => return,
                },
            };
            let response = match request {
                Ok(LeaseKeepAliveRequest { id }) => self.keep_alive(id).await,
                Err(status) => Err(status),
            };
            let is_over = response.is_err();
            if responses.send(response).await.is_err() || is_over {
                return;
            }
        }
    }
}

#[tonic::async_trait]
impl Lease for LeaseCalls {
    type LeaseKeepAliveStream = ReceiverStream<Result<LeaseKeepAliveResponse, Status>>;

    async fn lease_grant(
        &self,
        request: Request<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        let LeaseGrantRequest { ttl, mut id } = request.into_inner();
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
            match self.context.change(Change::LeaseGrant(LeaseGrantRequest { ttl, id })).await {
                Err(status) if is_drawn && status.message() == Refusal::LeaseExists.text() => {}
                Err(status) => return Err(status),
                Ok((_, revision)) => {
                    let header = Some(self.context.node.header(revision));
                    return Ok(Response::new(LeaseGrantResponse { header, id, ttl, error: String::new() }));
                }
            }
        }
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        let revision = revoke_all(&self.context, request.get_ref().id).await?;
        let header = Some(self.context.node.header(revision));
        Ok(Response::new(LeaseRevokeResponse { header }))
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let (responses, stream) = mpsc::channel(RESPONSES_MAX);
        let stopping = self.context.stopping.clone();
        tokio::spawn(self.clone().keep_all_alive(request.into_inner(), responses, stopping));
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        let (request, node) = (request.into_inner(), &self.context.node);
        let here = || time_to_live_here(&self.context, request);
        let there =
            |mut leader: Client| async move { leader.time_to_live(request).await.map(Response::into_inner) };
        let response = node.at_leader_or_again(here, there).await?;
        let header = response.header.map(|header| node.header(header.revision));
        Ok(Response::new(LeaseTimeToLiveResponse { header, ..response }))
    }

    async fn lease_leases(
        &self,
        _: Request<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        self.context.node.read_barrier().await?;
        let leases = self.context.lessor.ids().into_iter().map(|id| LeaseStatus { id }).collect();
        let header = Some(self.context.node.header(self.context.hub.revision()));
        Ok(Response::new(LeaseLeasesResponse { header, leases }))
    }
}
