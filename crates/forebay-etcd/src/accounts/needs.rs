//! The needs of a request: one walk for the checks before the services and for those of entries.

use crate::proto::etcdserverpb::request_op::Request;
use crate::proto::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, TxnRequest};
use crate::refusal::Refusal;

/// A need of a request: keys by `key` and `range_end`, or all keys of a lease to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need<'a> {
    Read(&'a [u8], &'a [u8]),
    Write(&'a [u8], &'a [u8]),
    Lease(i64),
}

/// Refuses a need, or not.
pub(crate) type Check<'c> = dyn FnMut(Need<'_>) -> Result<(), Refusal> + 'c;

/// A range reads, and so does a comparison.
pub(crate) fn range_needs(request: &RangeRequest, check: &mut Check<'_>) -> Result<(), Refusal> {
    check(Need::Read(&request.key, &request.range_end))
}

/// The previous value is read. A key is attached to a lease by those that may end the lease, with all keys that it has.
pub(crate) fn put_needs(request: &PutRequest, check: &mut Check<'_>) -> Result<(), Refusal> {
    check(Need::Write(&request.key, &[]))?;
    if request.lease != 0 {
        check(Need::Lease(request.lease))?;
    }
    if request.prev_kv { check(Need::Read(&request.key, &[])) } else { Ok(()) }
}

pub(crate) fn delete_needs(request: &DeleteRangeRequest, check: &mut Check<'_>) -> Result<(), Refusal> {
    check(Need::Write(&request.key, &request.range_end))?;
    if request.prev_kv { check(Need::Read(&request.key, &request.range_end)) } else { Ok(()) }
}

/// Both branches, as either may be executed, and all transactions in them.
pub(crate) fn txn_needs(request: &TxnRequest, check: &mut Check<'_>) -> Result<(), Refusal> {
    for compare in &request.compare {
        check(Need::Read(&compare.key, &compare.range_end))?;
    }
    for operation in request.success.iter().chain(&request.failure) {
        match &operation.request {
            Some(Request::RequestRange(range)) => range_needs(range, check)?,
            Some(Request::RequestPut(put)) => put_needs(put, check)?,
            Some(Request::RequestDeleteRange(delete)) => delete_needs(delete, check)?,
            Some(Request::RequestTxn(txn)) => txn_needs(txn, check)?,
            None => {}
        }
    }
    Ok(())
}
