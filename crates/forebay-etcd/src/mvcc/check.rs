//! Refusals that need no state: they are made before a proposal, and again where the state would suffer.

use std::collections::{BTreeMap, BTreeSet};

use super::Limits;
use super::codec::{KEY_BYTES_MAX, escaped_bytes};
use crate::proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::proto::etcdserverpb::request_op::Request;
use crate::proto::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use crate::refusal::Refusal;

/// How many transactions may be in each other. Messages with more levels are not decoded, and the response has more than the request: one
/// was refused after it had been committed.
pub(super) const TXN_DEPTH_MAX: usize = 40;

pub(super) fn check_key(key: &[u8]) -> Result<(), Refusal> {
    match key {
        [] => Err(Refusal::EmptyKey),
        _ if escaped_bytes(key) > KEY_BYTES_MAX => Err(Refusal::RequestTooLarge),
        _ => Ok(()),
    }
}

pub(crate) fn check_range(request: &RangeRequest) -> Result<(), Refusal> {
    if request.key.is_empty() {
        return Err(Refusal::EmptyKey);
    }
    if SortOrder::try_from(request.sort_order).is_err() || SortTarget::try_from(request.sort_target).is_err()
    {
        return Err(Refusal::InvalidSortOption);
    }
    Ok(())
}

/// Checks a put. Keys of more than about 16,000 bytes are refused, though etcd accepts them.
pub(crate) fn check_put(request: &PutRequest) -> Result<(), Refusal> {
    check_key(&request.key)?;
    if request.ignore_value && !request.value.is_empty() {
        return Err(Refusal::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(Refusal::LeaseProvided);
    }
    Ok(())
}

pub(crate) fn check_delete(request: &DeleteRangeRequest) -> Result<(), Refusal> {
    if request.key.is_empty() { Err(Refusal::EmptyKey) } else { Ok(()) }
}

pub(crate) fn check_txn(request: &TxnRequest, limits: &Limits) -> Result<(), Refusal> {
    check_operations(request, limits.txn_operations, TXN_DEPTH_MAX)?;
    ChangedKeys::of(&request.success)?;
    ChangedKeys::of(&request.failure)?;
    Ok(())
}

/// Returns whether a transaction can be carried out by a [`View`](super::View).
pub(crate) fn is_read_only(request: &TxnRequest) -> bool {
    let mut operations = request.success.iter().chain(&request.failure);
    operations.all(|operation| matches!(operation.request, Some(Request::RequestRange(_))))
}

/// Checks each operation. A nested transaction may have as many operations as the outer transactions leave.
fn check_operations(request: &TxnRequest, operations_max: usize, depth_max: usize) -> Result<(), Refusal> {
    let operations = request.compare.len().max(request.success.len()).max(request.failure.len());
    let rest = operations_max.checked_sub(operations).zip(depth_max.checked_sub(1));
    let Some((rest, depth)) = rest else { return Err(Refusal::TooManyOperations) };
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(Refusal::EmptyKey);
    }
    for operation in request.success.iter().chain(&request.failure) {
        match &operation.request {
            Some(Request::RequestRange(range)) => check_range(range)?,
            Some(Request::RequestPut(put)) => check_put(put)?,
            Some(Request::RequestDeleteRange(delete)) => check_delete(delete)?,
            Some(Request::RequestTxn(txn)) => check_operations(txn, rest, depth)?,
            None => return Err(Refusal::KeyNotFound),
        }
    }
    Ok(())
}

/// The keys that a list of operations may change.
#[derive(Default)]
struct ChangedKeys<'a> {
    puts: BTreeSet<&'a [u8]>,
    /// From each key up to the other one, without it; `None`: all. They do not overlap.
    deletes: BTreeMap<&'a [u8], Option<Vec<u8>>>,
}

impl<'a> ChangedKeys<'a> {
    /// Refuses lists that may put a key twice, or put and delete it. A delete of all keys from a key on (`range_end` of one zero
    /// byte) is not checked, as in etcd, where its interval is empty; nor is a put in one transaction and a delete in a later
    /// sibling transaction.
    fn of(operations: &'a [RequestOp]) -> Result<ChangedKeys<'a>, Refusal> {
        let mut all = ChangedKeys::default();
        for operation in operations {
            if let Some(Request::RequestDeleteRange(delete)) = &operation.request {
                all.add_delete(delete);
            }
        }
        for operation in operations {
            let Some(Request::RequestTxn(txn)) = &operation.request else { continue };
            let (success, failure) = (ChangedKeys::of(&txn.success)?, ChangedKeys::of(&txn.failure)?);
            for key in &success.puts {
                all.add_put(key, None)?;
            }
            for key in &failure.puts {
                // Only one of both branches is carried out.
                all.add_put(key, Some(&success.puts))?;
            }
            for (from, until) in success.deletes.into_iter().chain(failure.deletes) {
                all.add_span(from, until);
            }
        }
        for operation in operations {
            if let Some(Request::RequestPut(put)) = &operation.request {
                all.add_put(&put.key, None)?;
            }
        }
        Ok(all)
    }

    fn add_put(&mut self, key: &'a [u8], other: Option<&BTreeSet<&'a [u8]>>) -> Result<(), Refusal> {
        let is_new = self.puts.insert(key);
        let is_allowed = is_new || other.is_some_and(|other| other.contains(key));
        let before = self.deletes.range(..=key).next_back();
        let is_deleted = before.is_some_and(|(_, until)| until.as_ref().is_none_or(|until| key < &until[..]));
        if is_allowed && !is_deleted { Ok(()) } else { Err(Refusal::DuplicateKey) }
    }

    fn add_delete(&mut self, delete: &'a DeleteRangeRequest) {
        match &delete.range_end[..] {
            [] => self.add_span(&delete.key, Some([&delete.key[..], &[0]].concat())),
            end if &delete.key[..] < end => self.add_span(&delete.key, Some(end.to_vec())),
            _ => {}
        }
    }

    /// Adds a span, joined with those that it meets.
    fn add_span(&mut self, mut from: &'a [u8], mut until: Option<Vec<u8>>) {
        let before = self.deletes.range(..=from).next_back().map(|(from, _)| *from);
        if let Some(before) = before
            && self.deletes.get(before).is_some_and(|end| end.as_ref().is_none_or(|end| from <= &end[..]))
        {
            from = before;
            until = later(until, self.deletes.remove(before).flatten());
        }
        while let Some(next) = self.deletes.range(from..).next().map(|(next, _)| *next)
            && until.as_ref().is_none_or(|until| next <= &until[..])
        {
            until = later(until, self.deletes.remove(next).flatten());
        }
        self.deletes.insert(from, until);
    }
}

fn later(a: Option<Vec<u8>>, b: Option<Vec<u8>>) -> Option<Vec<u8>> {
    Some(a?.max(b?))
}
