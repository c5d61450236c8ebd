//! The KV service.

use std::time::Instant;

use tonic::{Request, Response, Status};

use super::long_range::{self, BodyPlace, FirstPass, Parts, RangePermit};
use super::rights::Credentials;
use super::{Context, Outcome, foreign};
use crate::accounts::{delete_needs, put_needs, range_needs, txn_needs};
use crate::answer::{Answer, forward};
use crate::mvcc::{
    Operations, check_delete, check_put, check_range, check_txn, has_filters, is_in_key_order, is_read_only,
    put_cost_bytes, txn_cost_bytes,
};
use crate::operation::Operation;
use crate::proto::etcdserverpb::kv_server::Kv;
use crate::proto::etcdserverpb::range_request::SortOrder;
use crate::proto::etcdserverpb::request_op::Request as Op;
use crate::proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RangeStreamResponse, TxnRequest, TxnResponse,
};
use crate::proto::peer::command::Change;
use crate::refusal::Refusal;

#[derive(Clone)]
pub(crate) struct Keys {
    pub(super) context: Context,
}

fn is_serializable(txn: &TxnRequest) -> bool {
    txn.success.iter().chain(&txn.failure).all(|operation| match &operation.request {
        Some(Op::RequestRange(range)) => range.serializable,
        _ => false,
    })
}

impl Keys {
    /// Returns the response to a range. A long response is empty, and its body is put into `place`, if given.
    async fn read(
        &self,
        by: &Credentials,
        request: RangeRequest,
        place: Option<BodyPlace>,
    ) -> Result<RangeResponse, Status> {
        check_range(&request)?;
        if !request.serializable {
            self.context.node.read_barrier().await?;
        }
        let (store, mut permit) = (self.context.node.store(), None);
        loop {
            let view = self.context.node.view().await?;
            self.context.check(by, |check| range_needs(&request, check))?;
            let begun = Instant::now();
            let read = match &place {
                Some(_) => long_range::first_pass(&self.context, &view, &request, &mut permit).await,
                None => view.range(&request).await.map(FirstPass::Whole),
            };
            self.context.followers.counts.range_times[usize::from(read.is_ok())]
                .observe_time(begun.elapsed());
            match (read, &place) {
                (Err(failure), _) if view.is_replaced(store, &failure).await => {}
                (Err(failure), _) => return Err(self.context.node.unread(failure)),
                (Ok(FirstPass::Crowded), _) => {
                    drop(view);
                    permit = Some(RangePermit::wait(&self.context).await?);
                }
                (Ok(FirstPass::Long(pairs_bytes, end)), Some(place)) => {
                    let found = (pairs_bytes, end);
                    long_range::send_long(&self.context, view, request, found, permit, place)?;
                    return Ok(RangeResponse::default());
                }
                (Ok(FirstPass::Whole(response) | FirstPass::Long(_, response)), _) => {
                    let header = Some(self.context.node.header(view.revision()));
                    let response = RangeResponse { header, ..response };
                    return long_range::place_long(&self.context, response, permit, place.as_ref());
                }
            }
        }
    }

    /// Returns the response to a transaction that only reads, and the revision. A long response has a permit.
    async fn read_txn(
        &self,
        by: &Credentials,
        request: &TxnRequest,
    ) -> Result<(TxnResponse, i64, Option<RangePermit>), Status> {
        if !is_serializable(request) {
            self.context.node.read_barrier().await?;
        }
        let (store, mut permit) = (self.context.node.store(), None);
        loop {
            let view = self.context.node.view().await?;
            self.context.check(by, |check| txn_needs(request, check))?;
            let bytes_max = if permit.is_some() { u64::MAX } else { long_range::LONG_BYTES as u64 };
            match view.txn_within(request, bytes_max).await {
                Err(failure) if view.is_replaced(store, &failure).await => {}
                Err(failure) => return Err(self.context.node.unread(failure)),
                Ok(Some(response)) => return Ok((response, view.revision(), permit)),
                Ok(None) => {
                    drop(view);
                    permit = Some(RangePermit::wait(&self.context).await?);
                }
            }
        }
    }
}

/// Returns whether a delete returns as many pairs as there are.
fn returns_all(delete: &DeleteRangeRequest) -> bool {
    delete.prev_kv && !delete.range_end.is_empty()
}

/// Returns whether a range may. The first pair of a range is one, as that of a key is: each lock reads it.
fn reads_all(range: &RangeRequest) -> bool {
    !range.range_end.is_empty() && !range.count_only && range.limit != 1
}

/// Returns whether a transaction may.
fn may_return_all(txn: &TxnRequest) -> bool {
    txn.success.iter().chain(&txn.failure).any(|operation| match &operation.request {
        Some(Op::RequestRange(range)) => reads_all(range),
        Some(Op::RequestDeleteRange(delete)) => returns_all(delete),
        Some(Op::RequestTxn(inner)) => may_return_all(inner),
        Some(Op::RequestPut(_)) | None => false,
    })
}

type Ranges = Parts<RangeStreamResponse>;

/// Refuses what etcd's RangeStream does not do.
fn check_range_stream(request: &RangeRequest) -> Result<(), Status> {
    check_range(request)?;
    if request.sort_order() != SortOrder::None && !is_in_key_order(request) {
        return Err(Status::unimplemented("RangeStream does not support custom sort orders"));
    }
    if has_filters(request) {
        return Err(Status::unimplemented("RangeStream does not support revision filters"));
    }
    Ok(())
}

impl Keys {
    fn range(&self, request: Request<RangeRequest>) -> Answer<'_, Response<RangeResponse>> {
        Box::pin(async move {
            // The guard does not see which reads are serializable.
            if !request.get_ref().serializable && self.context.node.is_only_learning() {
                return Err(Refusal::LearnerOnly.into());
            }
            let place = request.extensions().get::<BodyPlace>().cloned();
            let ((by, request), begun) = (Credentials::split(request), Instant::now());
            let read = self.read(&by, request, place).await;
            let done = Operations { ranges: read.is_ok().into(), ..Operations::default() };
            self.context.note_read(Operation::Range, begun, read.is_ok(), done);
            read.map(Response::new)
        })
    }

    fn range_stream(&self, request: Request<RangeRequest>) -> Answer<'_, Response<Ranges>> {
        Box::pin(async move {
            let (by, request) = Credentials::split(request);
            check_range_stream(&request)?;
            if !request.serializable {
                self.context.node.read_barrier().await?;
            }
            self.context.followers.counts.note(Operations { ranges: 1, ..Operations::default() });
            Ok(Response::new(long_range::send_stream(&self.context, by, request)))
        })
    }

    fn put(&self, request: Request<PutRequest>) -> Answer<'_, Response<PutResponse>> {
        Box::pin(async move {
            let (by, request) = Credentials::split(request);
            check_put(&request)?;
            self.context.check_bytes(&request)?;
            let author = self.context.permit(&by, |check| put_needs(&request, check)).await?;
            self.context.check_room(put_cost_bytes(&request)).await?;
            let changed = self.context.change_by(author, Change::Put(request)).await?;
            let (Some(Outcome::Put(response)), revision) = changed else { return Err(foreign()) };
            let header = Some(self.context.node.header(revision));
            Ok(Response::new(PutResponse { header, ..response }))
        })
    }

    fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Answer<'_, Response<DeleteRangeResponse>> {
        Box::pin(async move {
            let place = request.extensions().get::<BodyPlace>().cloned();
            let (by, request) = Credentials::split(request);
            check_delete(&request)?;
            self.context.check_bytes(&request)?;
            let mut author = self.context.permit(&by, |check| delete_needs(&request, check)).await?;
            let mut permit = None;
            if returns_all(&request) {
                permit = Some(RangePermit::wait(&self.context).await?);
                // As of now.
                author = self.context.permit(&by, |check| delete_needs(&request, check)).await?;
            }
            let changed = self.context.change_by(author, Change::DeleteRange(request)).await?;
            let (Some(Outcome::DeleteRange(response)), revision) = changed else { return Err(foreign()) };
            let header = Some(self.context.node.header(revision));
            let response = DeleteRangeResponse { header, ..response };
            long_range::place_long(&self.context, response, permit, place.as_ref()).map(Response::new)
        })
    }

    fn txn(&self, request: Request<TxnRequest>) -> Answer<'_, Response<TxnResponse>> {
        Box::pin(async move {
            let place = request.extensions().get::<BodyPlace>().cloned();
            let (by, request) = Credentials::split(request);
            check_txn(&request, &self.context.limits.state)?;
            let (response, revision, permit) = if is_read_only(&request) {
                let begun = Instant::now();
                let read = self.read_txn(&by, &request).await;
                let ranges = read.as_ref().map_or(0, |(response, ..)| response.responses.len() as u64);
                let done = Operations { ranges, ..Operations::default() };
                self.context.note_read(Operation::ReadonlyTxn, begun, read.is_ok(), done);
                read?
            } else {
                self.context.check_bytes(&request)?;
                let mut author = self.context.permit(&by, |check| txn_needs(&request, check)).await?;
                // Its ranges are read as it is applied, which waits for no client.
                let mut permit = None;
                if may_return_all(&request) {
                    permit = Some(RangePermit::wait(&self.context).await?);
                    // As of now.
                    author = self.context.permit(&by, |check| txn_needs(&request, check)).await?;
                }
                self.context.check_room(txn_cost_bytes(&request)).await?;
                let changed = self.context.change_by(author, Change::Txn(request)).await?;
                let (Some(Outcome::Txn(response)), revision) = changed else { return Err(foreign()) };
                (response, revision, permit)
            };
            let response = TxnResponse { header: Some(self.context.node.header(revision)), ..response };
            long_range::place_long(&self.context, response, permit, place.as_ref()).map(Response::new)
        })
    }

    fn compact(&self, request: Request<CompactionRequest>) -> Answer<'_, Response<CompactionResponse>> {
        Box::pin(async move {
            let (by, request) = Credentials::split(request);
            let author = self.context.author(&by)?;
            let (_, revision) = self.context.change_by(author, Change::Compact(request)).await?;
            if request.physical {
                self.context.cleaned(request.revision).await?;
            }
            let header = Some(self.context.node.header(revision));
            Ok(Response::new(CompactionResponse { header }))
        })
    }
}

impl Kv for Keys {
    type RangeStreamStream = Ranges;

    forward! {
        range(RangeRequest) -> RangeResponse;
        range_stream(RangeRequest) -> Ranges;
        put(PutRequest) -> PutResponse;
        delete_range(DeleteRangeRequest) -> DeleteRangeResponse;
        txn(TxnRequest) -> TxnResponse;
        compact(CompactionRequest) -> CompactionResponse;
    }
}
