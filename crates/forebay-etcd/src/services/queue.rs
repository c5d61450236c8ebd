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
