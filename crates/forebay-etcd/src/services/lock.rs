//! The Lock service.

use tonic::{Request, Response};

use super::queue::{Queue, QueuedKey, first, found, get, key_of, operation, prefix, put, revision, unknown};
use crate::answer::{Answer, forward};
use crate::proto::etcdserverpb::request_op::Request as Op;
use crate::proto::v3lockpb::lock_server::Lock;
use crate::proto::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};

#[derive(Clone)]
pub(crate) struct Locks {
    pub(super) queue: Queue,
}

impl Locks {
    fn lock(&self, request: Request<LockRequest>) -> Answer<'_, Response<LockResponse>> {
        Box::pin(async move {
            let queue = &self.queue.of(&request);
            let LockRequest { name, lease } = request.into_inner();
            let lease = queue.lease(lease).await?;
            let prefix = prefix(&name);
            let key = key_of(&prefix, lease);
            let (own, owner) =
                (operation(Op::RequestRange(get(&key))), operation(Op::RequestRange(first(&prefix))));
            let success = vec![put(&key, Vec::new(), lease), owner.clone()];
            let (response, queued) = queue.enter(&key, success, vec![own, owner]).await?;
            let made = if response.succeeded {
                revision(&response.header)
            } else {
                found(&response, 0).first().map_or(0, |own| own.create_revision)
            };
            if found(&response, 1).first().is_none_or(|owner| owner.create_revision == made) {
                if let Some(queued) = queued {
                    queued.end();
                }
                return Ok(Response::new(LockResponse { header: response.header, key }));
            }
            let queued = queued.unwrap_or_else(|| QueuedKey::new(queue, &key, made));
            queue.wait_for_those_before(&prefix, made - 1).await?;
            let own = queue.range(get(&key)).await?;
            if own.kvs.is_empty() {
                // Its lease has ended meanwhile.
                return Err(unknown("mutex: session is expired"));
            }
            queued.end();
            Ok(Response::new(LockResponse { header: own.header, key }))
        })
    }

    fn unlock(&self, request: Request<UnlockRequest>) -> Answer<'_, Response<UnlockResponse>> {
        Box::pin(async move {
            let header = self.queue.of(&request).delete(&request.get_ref().key).await?;
            Ok(Response::new(UnlockResponse { header }))
        })
    }
}

impl Lock for Locks {
    forward! {
        lock(LockRequest) -> LockResponse;
        unlock(UnlockRequest) -> UnlockResponse;
    }
}
