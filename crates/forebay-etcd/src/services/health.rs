//! gRPC's health service, as etcd has it: the empty name, for all services. A member does not serve while it heals its state.

use std::collections::HashMap;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::{Context, stopped};
use crate::answer::{Answer, forward};
use crate::mvcc::Damage;
use crate::node::Node;
use crate::proto::health::health_check_response::ServingStatus;
use crate::proto::health::health_server::Health;
use crate::proto::health::{HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse};
use crate::refusal::Refusal;

#[derive(Clone)]
pub(crate) struct HealthChecks {
    pub(super) context: Context,
}

fn status(node: &Node) -> ServingStatus {
    if node.is_healing() { ServingStatus::NotServing } else { ServingStatus::Serving }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

/// A stream of the statuses of a service.
struct StatusWatch {
    context: Context,
    is_known: bool,
    damage: watch::Receiver<Option<Damage>>,
    sent: Option<ServingStatus>,
    is_over: bool,
}

impl StatusWatch {
    async fn next(mut self) -> Option<(Result<HealthCheckResponse, Status>, StatusWatch)> {
        if self.is_over {
            return None;
        }
        loop {
            // Before the status is looked at: a later change of it is seen below.
            self.damage.borrow_and_update();
            let unknown = ServingStatus::ServiceUnknown;
            let now = if self.is_known { status(&self.context.node) } else { unknown };
            if self.sent != Some(now) {
                self.sent = Some(now);
                return Some((Ok(response(now)), self));
            }
            let mut stopping = self.context.stopping.clone();
            let is_over = tokio::select! {
                () = stopped(&mut stopping) => true,
                changed = self.damage.changed() => changed.is_err(),
            };
            if is_over {
                self.is_over = true;
                return Some((Err(Refusal::Stopped.into()), self));
            }
        }
    }
}

type Statuses = BoxStream<'static, Result<HealthCheckResponse, Status>>;

impl HealthChecks {
    fn check(&self, request: Request<HealthCheckRequest>) -> Answer<'_, Response<HealthCheckResponse>> {
        Box::pin(async move {
            if !request.get_ref().service.is_empty() {
                return Err(Status::not_found("unknown service"));
            }
            Ok(Response::new(response(status(&self.context.node))))
        })
    }

    fn list(&self, _: Request<HealthListRequest>) -> Answer<'_, Response<HealthListResponse>> {
        Box::pin(async move {
            let statuses = HashMap::from([(String::new(), response(status(&self.context.node)))]);
            Ok(Response::new(HealthListResponse { statuses }))
        })
    }

    fn watch(&self, request: Request<HealthCheckRequest>) -> Answer<'_, Response<Statuses>> {
        Box::pin(async move {
            let (context, is_known) = (self.context.clone(), request.get_ref().service.is_empty());
            let damage = context.node.damage_found();
            let watch = StatusWatch { context, is_known, damage, sent: None, is_over: false };
            Ok(Response::new(stream::unfold(watch, StatusWatch::next).boxed()))
        })
    }
}

impl Health for HealthChecks {
    type WatchStream = Statuses;

    forward! {
        check(HealthCheckRequest) -> HealthCheckResponse;
        list(HealthListRequest) -> HealthListResponse;
        watch(HealthCheckRequest) -> Statuses;
    }
}
