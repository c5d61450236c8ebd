//! The Lock service.

use tonic::{Request, Response};

use super::queue::{
    Queue, delete, first, found, get, is_made_at, key_of, operation, prefix, put, revision, unknown,
};
use crate::answer::{Answer, forward};
use crate::proto::etcdserverpb::request_op::Request as Op;
use crate::proto::v3lockpb::lock_server::Lock;
use crate::proto::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};

#[derive(Clone)]
pub(crate) struct Locks {
    pub(super) queue: Queue,
}

/// A key in a queue, which is removed if the call that waits in it ends: its client has disconnected, or it has failed.
pub(super) struct QueuedKey {
    queue: Queue,
    key: Vec<u8>,
    made: i64,
    is_over: bool,
}

impl QueuedKey {
    pub(super) fn new(queue: &Queue, key: &[u8], made: i64) -> QueuedKey {
        QueuedKey { queue: queue.clone(), key: key.to_vec(), made, is_over: false }
    }

    /// Leaves the key where it is.
    pub(super) fn end(mut self) {
        self.is_over = true;
    }
}

impl Drop for QueuedKey {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (queue, key, made) = (self.queue.clone(), std::mem::take(&mut self.key), self.made);
        runtime.spawn(async move {
            // If it fails, the key is deleted with its lease.
            let _ = queue.txn(is_made_at(&key, made), vec![delete(&key)], Vec::new()).await;
        });
    }
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
            let response = queue.txn(is_made_at(&key, 0), success, vec![own, owner]).await?;
            let made = if response.succeeded {
                revision(&response.header)
            } else {
                found(&response, 0).first().map_or(0, |own| own.create_revision)
            };
            if found(&response, 1).first().is_none_or(|owner| owner.create_revision == made) {
                return Ok(Response::new(LockResponse { header: response.header, key }));
            }
            let queued = QueuedKey::new(queue, &key, made);
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
