//! [`Queue`]: keys that wait for each other, in the order in which they were made. Locks and elections are such queues, with the keys
//! of etcd's own clients, so that both may be in one queue.

use tonic::{Code, Request, Response, Status};

use super::Context;
use super::follow::Follow;
use super::kv::Keys as KeyCalls;
use super::lease::LeaseCalls;
use super::rights::Credentials;
use crate::hub::Keys;
use crate::proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::etcdserverpb::kv_server::Kv;
use crate::proto::etcdserverpb::lease_server::Lease;
use crate::proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::proto::etcdserverpb::request_op::Request as Op;
use crate::proto::etcdserverpb::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest, RangeResponse, RequestOp,
    ResponseHeader, TxnRequest, TxnResponse,
};
use crate::proto::mvccpb::KeyValue;
use crate::proto::mvccpb::event::EventType;
use crate::proto::peer::command::Change;
use crate::refusal::Refusal;

/// The time of a lease that was not given, as in etcd.
const LEASE_S: i64 = 60;

/// Calls of the server to itself.
#[derive(Clone)]
pub(super) struct Queue {
    pub(super) context: Context,
    keys: KeyCalls,
    leases: LeaseCalls,
    /// The caller that the calls are made for.
    by: Credentials,
}

/// A failure, as etcd's services of locks and elections report it: with the text, and without the code.
pub(super) fn unknown(text: impl Into<String>) -> Status {
    Status::new(Code::Unknown, text)
}

/// Returns the failure of a call that the server made to itself. A server in shutdown reports that, and clients use another.
pub(super) fn failed(status: Status) -> Status {
    if status.message() == Refusal::Stopped.text() { status } else { unknown(status.message()) }
}

/// Returns the prefix of a queue's keys.
pub(super) fn prefix(name: &[u8]) -> Vec<u8> {
    [name, b"/"].concat()
}

/// Returns where the keys of a queue end.
fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    // It ends with a slash.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// Returns all keys with a queue's prefix.
pub(super) fn keys_of(prefix: &[u8]) -> Option<Keys> {
    Keys::of(prefix, &prefix_end(prefix))
}

pub(super) fn key_of(prefix: &[u8], lease: i64) -> Vec<u8> {
    let sign = if lease < 0 { "-" } else { "" };
    [prefix, format!("{sign}{:x}", lease.unsigned_abs()).as_bytes()].concat()
}

pub(super) fn operation(request: Op) -> RequestOp {
    RequestOp { request: Some(request) }
}

pub(super) fn put(key: &[u8], value: Vec<u8>, lease: i64) -> RequestOp {
    operation(Op::RequestPut(PutRequest { key: key.to_vec(), value, lease, ..PutRequest::default() }))
}

pub(super) fn get(key: &[u8]) -> RangeRequest {
    RangeRequest { key: key.to_vec(), ..RangeRequest::default() }
}

fn delete_request(key: &[u8]) -> DeleteRangeRequest {
    DeleteRangeRequest { key: key.to_vec(), ..DeleteRangeRequest::default() }
}

pub(super) fn delete(key: &[u8]) -> RequestOp {
    operation(Op::RequestDeleteRange(delete_request(key)))
}

/// Returns a request for the key of a queue that was made first.
pub(super) fn first(prefix: &[u8]) -> RangeRequest {
    RangeRequest {
        key: prefix.to_vec(),
        range_end: prefix_end(prefix),
        limit: 1,
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    }
}

/// Returns a comparison of a key's create revision; 0 means that the key does not exist.
pub(super) fn is_made_at(key: &[u8], revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.to_vec(),
        target_union: Some(TargetUnion::CreateRevision(revision)),
        ..Compare::default()
    }
}

pub(super) fn revision(header: &Option<ResponseHeader>) -> i64 {
    header.as_ref().map_or(0, |header| header.revision)
}

/// Returns the pairs of a response in a transaction's.
pub(super) fn found(response: &TxnResponse, at: usize) -> &[KeyValue] {
    use crate::proto::etcdserverpb::response_op::Response;
    match response.responses.get(at).and_then(|response| response.response.as_ref()) {
        Some(Response::ResponseRange(range)) => &range.kvs,
        _ => &[],
    }
}

impl Queue {
    pub(super) fn new(context: &Context) -> Queue {
        let (keys, leases) = (KeyCalls { context: context.clone() }, LeaseCalls { context: context.clone() });
        Queue { context: context.clone(), keys, leases, by: Credentials::default() }
    }

    /// Returns one whose calls are made for a request's caller.
    pub(super) fn of<T>(&self, request: &Request<T>) -> Queue {
        Queue { by: Credentials::of(request), ..self.clone() }
    }

    /// Returns the lease that was given, or a new one.
    pub(super) async fn lease(&self, given: i64) -> Result<i64, Status> {
        if given != 0 {
            return Ok(given);
        }
        let request = LeaseGrantRequest { ttl: LEASE_S, id: 0 };
        let granted = self.leases.lease_grant(self.by.request(request)).await.map_err(failed)?;
        Ok(granted.into_inner().id)
    }

    pub(super) async fn txn(
        &self,
        compare: Compare,
        success: Vec<RequestOp>,
        failure: Vec<RequestOp>,
    ) -> Result<TxnResponse, Status> {
        let request = TxnRequest { compare: vec![compare], success, failure };
        self.keys.txn(self.by.request(request)).await.map(Response::into_inner).map_err(failed)
    }

    /// Makes a key of the queue where it is not there, with the operations of a transaction. A caller that disconnects meanwhile leaves
    /// nothing: the transaction ends in a task, whose result is dropped.
    pub(super) async fn enter(
        &self,
        key: &[u8],
        success: Vec<RequestOp>,
        failure: Vec<RequestOp>,
    ) -> Result<(TxnResponse, Option<QueuedKey>), Status> {
        let (queue, key) = (self.clone(), key.to_vec());
        let entered = tokio::spawn(async move {
            let response = queue.txn(is_made_at(&key, 0), success, failure).await?;
            let made = response.succeeded.then(|| revision(&response.header));
            Ok::<_, Status>((response, made.map(|made| QueuedKey::new(&queue, &key, made))))
        });
        entered.await.map_err(|error| unknown(error.to_string()))?
    }

    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        self.keys.range(self.by.request(request)).await.map(Response::into_inner).map_err(failed)
    }

    pub(super) async fn delete(&self, key: &[u8]) -> Result<Option<ResponseHeader>, Status> {
        let deleted = self.keys.delete_range(self.by.request(delete_request(key))).await.map_err(failed)?;
        Ok(deleted.into_inner().header)
    }

    /// Waits until no key of a queue was made at `made_max` or before. Each key waits only for its predecessor, so a deleted key
    /// wakes one.
    pub(super) async fn wait_for_those_before(&self, prefix: &[u8], made_max: i64) -> Result<(), Status> {
        loop {
            let request = RangeRequest {
                sort_order: SortOrder::Descend.into(),
                max_create_revision: made_max,
                ..first(prefix)
            };
            let response = self.range(request).await?;
            let Some(last) = response.kvs.first() else { return Ok(()) };
            let Some(keys) = Keys::of(&last.key, &[]) else { return Ok(()) };
            let mut events = Follow::new(&self.context, keys, revision(&response.header));
            while events.next().await.map_err(failed)?.r#type() != EventType::Delete {}
        }
    }
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
        let (context, compare) = (self.queue.context.clone(), vec![is_made_at(&self.key, self.made)]);
        let request = TxnRequest { compare, success: vec![delete(&self.key)], failure: Vec::new() };
        runtime.spawn(async move {
            // By the server: the caller's token may have ended meanwhile. If it fails, the key is deleted with its lease.
            let _ = context.change_by(context.own_author(), Change::Txn(request)).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::mvcc;
    use crate::proto::v3lockpb::LockRequest;
    use crate::proto::v3lockpb::lock_server::Lock;
    use crate::server::tests::cluster::{Cluster, until};
    use crate::services::lock::Locks;
    use crate::services::{Authentication, Followers, Limits};

    /// Story: the client of a lock disconnected while its key was on the way into the log. The key came into the queue all the same, and
    /// as the client kept its lease alive for other things, all others waited for it forever.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lock_that_is_given_up_as_its_key_is_made_leaves_no_key() {
        let mut cluster = Cluster::start(1, &[]).await;
        let member = &cluster.members[0];
        let (_stopping, is_stopping) = tokio::sync::watch::channel(false);
        let limits = Limits {
            request_bytes_max: 1 << 20,
            lease_s_min: 1,
            lease_more: Duration::from_secs(1),
            progress_interval: Duration::from_secs(3600),
            snapshot_patience: Duration::from_secs(3600),
            state: mvcc::Limits::default(),
        };
        let authentication = Authentication::open(&member.config()).unwrap();
        let followers = Arc::<Followers>::default();
        let context = Context::new(member.node().clone(), followers, limits, authentication, is_stopping);
        let locks = Locks { queue: Queue::new(&context) };
        member.propose(Change::LeaseGrant(LeaseGrantRequest { ttl: 600, id: 7 })).await.unwrap();
        let revision = async || mvcc::View::of(member.node().store()).await.unwrap().revision();
        let before = revision().await;
        // A thread that was stopped in its only poll may find the outcome there, and has the lock then.
        let request = || Request::new(LockRequest { name: "lock".into(), lease: 7 });
        if locks.lock(request()).now_or_never().is_none() {
            // It is put, and deleted.
            until(async || revision().await == before + 2).await;
            assert_eq!(member.local("lock/7").await, None);
        }
        // Nothing is in the way of the next one, which has it until it is over.
        locks.lock(request()).await.unwrap();
        assert_eq!(member.local("lock/7").await.as_deref(), Some(""));
        cluster.stop().await;
    }
}
