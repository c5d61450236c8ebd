//! Transactions: all compares are evaluated before anything is written, then all operations are checked, then carried out.

use std::cmp::Ordering;
use std::pin::Pin;
use std::sync::Mutex;

use super::apply::keys_named_by_txn;
use super::change::Change;
use super::range::{self, Place};
use super::reader::Span;
use super::recent::Recent;
use super::{Failure, RETURNED_BYTES_MAX};
use crate::proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::etcdserverpb::request_op::Request;
use crate::proto::etcdserverpb::response_op::Response;
use crate::proto::etcdserverpb::{Compare, RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse};
use crate::proto::mvccpb::KeyValue;

/// Twice the bytes of the values that a read-only transaction has in memory together, in addition to its response.
const AHEAD_BYTES: usize = 4 << 20;

/// A transaction's branch, with the branches of the transactions in it, in their order.
pub(super) struct Branch {
    is_success: bool,
    inner: Vec<Branch>,
}

type TxnFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// Evaluates the compares.
pub(super) fn branch<'a>(place: &'a Place<'a>, request: &'a TxnRequest) -> TxnFuture<'a, Branch> {
    Box::pin(async move {
        let mut is_success = true;
        for compare in &request.compare {
            if !holds(place, compare).await? {
                is_success = false;
                break;
            }
        }
        let mut inner = Vec::new();
        for operation in operations(request, is_success) {
            if let Some(Request::RequestTxn(txn)) = &operation.request {
                inner.push(branch(place, txn).await?);
            }
        }
        Ok(Branch { is_success, inner })
    })
}

fn operations(request: &TxnRequest, is_success: bool) -> &[RequestOp] {
    if is_success { &request.success } else { &request.failure }
}

/// Checks the operations of a branch in their order, as of before the transaction, as etcd 3.7 does. Up to 3.6 it checks puts first.
pub(super) fn check<'a>(
    change: &'a Change<'_>,
    request: &'a TxnRequest,
    branch: &'a Branch,
) -> TxnFuture<'a, ()> {
    Box::pin(async move {
        let mut inner = branch.inner.iter();
        for operation in operations(request, branch.is_success) {
            match &operation.request {
                Some(Request::RequestPut(put)) => {
                    change.check_lease(put).await?;
                    change.check_before(put).await?;
                }
                Some(Request::RequestRange(range)) => range::check_revision(range.revision, &change.state)?,
                Some(Request::RequestTxn(txn)) => {
                    if let Some(branch) = inner.next() {
                        check(change, txn, branch).await?;
                    }
                }
                Some(Request::RequestDeleteRange(_)) | None => {}
            }
        }
        Ok(())
    })
}

/// Carries the operations of a branch out. The response has no header; those in it have the revision alone.
pub(super) fn carry_out<'a>(
    change: &'a mut Change<'_>,
    request: TxnRequest,
    branch: &'a Branch,
) -> TxnFuture<'a, TxnResponse> {
    Box::pin(async move {
        let operations = if branch.is_success { request.success } else { request.failure };
        let mut inner = branch.inner.iter();
        let mut responses = Vec::with_capacity(operations.len());
        for operation in operations {
            let response = match operation.request {
                Some(Request::RequestRange(range)) => {
                    let mut response = change.range(&range).await?;
                    response.header = header(change.revision());
                    Some(Response::ResponseRange(response))
                }
                Some(Request::RequestPut(put)) => {
                    let mut response = change.put(put).await?;
                    response.header = header(change.revision());
                    Some(Response::ResponsePut(response))
                }
                Some(Request::RequestDeleteRange(delete)) => {
                    let mut response = change.delete_range(&delete).await?;
                    response.header = header(change.revision());
                    Some(Response::ResponseDeleteRange(response))
                }
                Some(Request::RequestTxn(txn)) => match inner.next() {
                    Some(branch) => {
                        let mut response = carry_out(change, txn, branch).await?;
                        response.header = header(0);
                        Some(Response::ResponseTxn(response))
                    }
                    None => None,
                },
                None => None,
            };
            responses.push(ResponseOp { response });
        }
        Ok(TxnResponse { header: None, succeeded: branch.is_success, responses })
    })
}

fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision, ..ResponseHeader::default() })
}

/// Carries out a transaction without puts, deletes and transactions in it. Returns `None` if its ranges return more than this
/// many bytes.
pub(super) async fn read(
    place: &Place<'_>,
    request: &TxnRequest,
    bytes_max: u64,
) -> Result<Option<TxnResponse>, Failure> {
    if !super::is_read_only(request) {
        return Err(Failure::Damaged("a transaction that writes was given to a read".into()));
    }
    let (recent, mut keys) = (Mutex::new(Recent::new(AHEAD_BYTES)), Vec::new());
    keys_named_by_txn(request, &mut keys);
    if keys.len() > 1 {
        place.reader.read_ahead(&recent, keys).await?;
    }
    let place = &Place { recent: Some(&recent), ..*place };
    let branch = branch(place, request).await?;
    let mut responses = Vec::new();
    let ranges =
        operations(request, branch.is_success).iter().filter_map(|operation| match &operation.request {
            Some(Request::RequestRange(range)) => Some(range),
            _ => None,
        });
    ranges.clone().try_for_each(|range| range::check_revision(range.revision, &place.state))?;
    let (mut returned_bytes, most) = (0, bytes_max.min(RETURNED_BYTES_MAX));
    for range in ranges {
        let read = range::range(place, range, Some((&mut returned_bytes, most))).await;
        if returned_bytes > bytes_max {
            return Ok(None);
        }
        let mut response = read?;
        response.header = header(place.revision);
        responses.push(ResponseOp { response: Some(Response::ResponseRange(response)) });
    }
    Ok(Some(TxnResponse { header: None, succeeded: branch.is_success, responses }))
}

async fn holds(place: &Place<'_>, compare: &Compare) -> Result<bool, Failure> {
    let span = Span::new(&compare.key, &compare.range_end);
    let none = KeyValue::default();
    range::all_current(place, span, |pair| match pair {
        Some(pair) => holds_for(compare, pair),
        // No value is equal to that of a key that is not there, nor unequal.
        None => compare.target() != CompareTarget::Value && holds_for(compare, &none),
    })
    .await
}

fn holds_for(compare: &Compare, pair: &KeyValue) -> bool {
    let number = |number: i64, wanted: Option<i64>| number.cmp(&wanted.unwrap_or(0));
    let union = compare.target_union.as_ref();
    let order = match CompareTarget::try_from(compare.target) {
        Ok(CompareTarget::Value) => {
            let wanted = match union {
                Some(TargetUnion::Value(value)) => &value[..],
                _ => &[],
            };
            pair.value[..].cmp(wanted)
        }
        Ok(CompareTarget::Create) => number(
            pair.create_revision,
            union
                .and_then(|union| if let TargetUnion::CreateRevision(it) = union { Some(*it) } else { None }),
        ),
        Ok(CompareTarget::Mod) => number(
            pair.mod_revision,
            union.and_then(|union| if let TargetUnion::ModRevision(it) = union { Some(*it) } else { None }),
        ),
        Ok(CompareTarget::Version) => number(
            pair.version,
            union.and_then(|union| if let TargetUnion::Version(it) = union { Some(*it) } else { None }),
        ),
        Ok(CompareTarget::Lease) => number(
            pair.lease,
            union.and_then(|union| if let TargetUnion::Lease(it) = union { Some(*it) } else { None }),
        ),
        Err(_) => Ordering::Equal,
    };
    match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) => order.is_eq(),
        Ok(CompareResult::NotEqual) => order.is_ne(),
        Ok(CompareResult::Greater) => order.is_gt(),
        Ok(CompareResult::Less) => order.is_lt(),
        Err(_) => true,
    }
}
