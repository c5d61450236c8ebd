//! Ranges that are sent as they are read, so that their values are never in memory together: responses of Range from [`LONG_BYTES`]
//! on, and RangeStream.
//!
//! A message of gRPC begins with its length. So a response of Range is read twice, in one view: the first pass adds lengths up, and has the
//! whole response unless it is long; the second one sends it. What tonic encodes is in memory as a whole, so the body of a long
//! response goes past it: the guard puts it in the place of an empty one's.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as Turn, Poll, ready};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::Stream;
use http_body::Frame;
use prost::{EncodeError, Message};
use tokio::sync::mpsc;
use tonic::body::Body;
use tonic::codegen::http::HeaderMap;
use tonic::{Code, Status};

use super::Context;
use crate::mvcc::{Failure, View, is_in_key_order};
use crate::proto::etcdserverpb::{RangeRequest, RangeResponse, RangeStreamResponse};
use crate::proto::mvccpb::KeyValue;
use crate::refusal::Refusal;

/// Bytes of pairs from which on a response is sent as it is read.
const LONG_BYTES: usize = 1 << 20;
/// Bytes of pairs that are sent at once, and how many such parts wait for the client.
const PART_BYTES: usize = 128 << 10;
const PARTS_MAX: usize = 2;
/// The first pass and the second one differ, which one view cannot.
const CHANGED: &str =
    "a range read other pairs the second time: ask again, and look at the disk of this member";
/// The longest message of etcd's servers.
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// The place for a response's body that is sent as it is read, in the extensions of its request.
#[derive(Clone, Debug, Default)]
pub(super) struct BodyPlace(Arc<Mutex<Option<Body>>>);

impl BodyPlace {
    fn put(&self, body: Body) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
    }

    pub(super) fn take(&self) -> Option<Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The result of a range's first pass.
pub(super) enum FirstPass {
    /// The response, without a header.
    Whole(RangeResponse),
    /// The bytes of all pairs, and the end of the response.
    Long(usize, RangeResponse),
}

/// Returns the bytes of a pair in a response.
fn pair_bytes(pair: &KeyValue) -> usize {
    let bytes = pair.encoded_len();
    1 + prost::length_delimiter_len(bytes) + bytes
}

/// Reads a range until it is long, and then lengths. One in another order than that of the keys is read as a whole.
pub(super) async fn first_pass(view: &View, request: &RangeRequest) -> Result<FirstPass, Failure> {
    if request.range_end.is_empty() || !is_in_key_order(request) {
        return view.range(request).await.map(FirstPass::Whole);
    }
    let (mut pairs, mut kvs, mut bytes) = (view.pairs(request).await?, Vec::new(), 0);
    while let Some(pair) = pairs.next().await? {
        bytes += pair_bytes(&pair);
        if bytes < LONG_BYTES {
            kvs.push(pair);
        } else {
            kvs = Vec::new();
        }
    }
    let (more, count) = pairs.count_rest().await?;
    let end = RangeResponse { more, count, ..RangeResponse::default() };
    Ok(if bytes < LONG_BYTES {
        FirstPass::Whole(RangeResponse { kvs, ..end })
    } else {
        FirstPass::Long(bytes, end)
    })
}

/// Sends a long response of Range into its place, in a task of its own.
///
/// # Errors
/// It is longer than etcd's may be.
pub(super) fn send_long(
    context: &Context,
    view: View,
    request: RangeRequest,
    (pairs_bytes, end): (usize, RangeResponse),
    place: &BodyPlace,
) -> Result<(), Status> {
    let header = Some(context.node.header(view.revision()));
    let begin = RangeResponse { header, ..RangeResponse::default() };
    let bytes = begin.encoded_len() + pairs_bytes + end.encoded_len();
    let Some(length) = u32::try_from(bytes).ok().filter(|_| bytes <= MESSAGE_BYTES_MAX) else {
        let text = format!("grpc: trying to send message larger than max ({bytes} vs. {MESSAGE_BYTES_MAX})");
        return Err(Status::resource_exhausted(text));
    };
    let (sender, parts) = Parts::<Bytes>::new(context);
    place.put(Body::new(parts));
    tokio::spawn(async move {
        let mut first = BytesMut::new();
        first.put_u8(0);
        first.put_u32(length);
        let sent = async {
            begin.encode(&mut first)?;
            sender.send_pairs(&view, &request, first, &end, pairs_bytes).await
        };
        let sent = sent.await;
        drop(view);
        sender.end(sent).await;
    });
    Ok(())
}

/// Sends the parts of a RangeStream, in a task of its own.
pub(super) fn send_stream(
    context: &Context,
    view: View,
    request: RangeRequest,
) -> Parts<RangeStreamResponse> {
    let (sender, parts) = Parts::<RangeStreamResponse>::new(context);
    tokio::spawn(async move {
        let sent = sender.send_parts(&view, &request).await;
        drop(view);
        sender.end(sent).await;
    });
    parts
}

/// Why a range is sent no further.
enum RangeEnd {
    Failed(Status),
    /// The client has gone, or does not read.
    Unread,
}

impl From<Failure> for RangeEnd {
    fn from(failure: Failure) -> RangeEnd {
        RangeEnd::Failed(failure.into())
    }
}

impl From<Refusal> for RangeEnd {
    fn from(refusal: Refusal) -> RangeEnd {
        RangeEnd::Failed(refusal.into())
    }
}

impl From<EncodeError> for RangeEnd {
    fn from(error: EncodeError) -> RangeEnd {
        RangeEnd::Failed(Status::internal(error.to_string()))
    }
}

/// The sender of a range's parts, of which few wait for the client.
struct PartSender<T> {
    parts: mpsc::Sender<Result<T, Status>>,
    context: Context,
}

impl<T> PartSender<T> {
    async fn send(&self, part: T) -> Result<(), RangeEnd> {
        self.queue(Ok(part)).await
    }

    async fn queue(&self, part: Result<T, Status>) -> Result<(), RangeEnd> {
        let patience = self.context.limits.snapshot_patience;
        match tokio::time::timeout(patience, self.parts.send(part)).await {
            Ok(sent) => sent.map_err(|_| RangeEnd::Unread),
            Err(_) => {
                self.context.node.counts().ranges_given_up.fetch_add(1, Ordering::Relaxed);
                Err(RangeEnd::Unread)
            }
        }
    }

    /// Says how it has ended, unless the client has not read.
    async fn end(&self, sent: Result<(), RangeEnd>) {
        let status = match sent {
            Ok(()) => Status::ok(""),
            Err(RangeEnd::Failed(status)) => status,
            Err(RangeEnd::Unread) => return,
        };
        // An end without it says that it was not read.
        let _ = self.queue(Err(status)).await;
    }
}

impl PartSender<Bytes> {
    /// Sends the bytes of a response, as the first pass has counted them.
    async fn send_pairs(
        &self,
        view: &View,
        request: &RangeRequest,
        mut part: BytesMut,
        end: &RangeResponse,
        pairs_bytes: usize,
    ) -> Result<(), RangeEnd> {
        let (mut pairs, mut left_bytes) = (view.pairs(request).await?, pairs_bytes);
        while let Some(pair) = pairs.next().await? {
            let bytes = pair_bytes(&pair);
            let left = left_bytes.checked_sub(bytes);
            left_bytes = left.ok_or_else(|| RangeEnd::Failed(Status::internal(CHANGED)))?;
            // Responses behind one another are one.
            RangeResponse { kvs: vec![pair], ..RangeResponse::default() }.encode(&mut part)?;
            if part.len() >= PART_BYTES {
                self.send(part.split().freeze()).await?;
            }
        }
        if left_bytes > 0 {
            return Err(RangeEnd::Failed(Status::internal(CHANGED)));
        }
        end.encode(&mut part)?;
        self.send(part.freeze()).await
    }
}

impl PartSender<RangeStreamResponse> {
    /// Sends the pairs, and behind them the header and the count, as etcd does. A compaction above the revision ends it, also as in
    /// etcd, although the view could be read on.
    async fn send_parts(&self, view: &View, request: &RangeRequest) -> Result<(), RangeEnd> {
        let context = &self.context;
        let revision = if request.revision > 0 { request.revision } else { view.revision() };
        let (mut pairs, mut kvs, mut bytes) = (view.pairs(request).await?, Vec::new(), 0);
        while let Some(pair) = pairs.next().await? {
            bytes += pair_bytes(&pair);
            kvs.push(pair);
            if bytes >= PART_BYTES {
                check_compaction(context, revision).await?;
                let kvs = std::mem::take(&mut kvs);
                self.send(stream_response(RangeResponse { kvs, ..RangeResponse::default() })).await?;
                bytes = 0;
            }
        }
        let (more, count) = pairs.count_rest().await?;
        check_compaction(context, revision).await?;
        let header = Some(context.node.header(view.revision()));
        self.send(stream_response(RangeResponse { header, kvs, more, count })).await
    }
}

fn stream_response(response: RangeResponse) -> RangeStreamResponse {
    RangeStreamResponse { range_response: Some(response) }
}

async fn check_compaction(context: &Context, revision: i64) -> Result<(), RangeEnd> {
    let now = View::of(context.node.store()).await?;
    if now.compacted() > revision { Err(Refusal::Compacted.into()) } else { Ok(()) }
}

/// The parts of a range as its client reads them.
pub(crate) struct Parts<T> {
    /// A status is the last one. Without one the range was cut.
    parts: mpsc::Receiver<Result<T, Status>>,
    patience: Duration,
    is_over: bool,
}

impl<T> Parts<T> {
    fn new(context: &Context) -> (PartSender<T>, Parts<T>) {
        let (sender, parts) = mpsc::channel(PARTS_MAX);
        let patience = context.limits.snapshot_patience;
        (PartSender { parts: sender, context: context.clone() }, Parts { parts, patience, is_over: false })
    }

    /// Returns the next part, or the status at the end.
    fn poll_part(&mut self, turn: &mut Turn<'_>) -> Poll<Result<T, Status>> {
        let cut = || {
            Status::deadline_exceeded(format!(
                "the range ended because nothing of it was read for {} s: ask again, and read on, or give a limit",
                self.patience.as_secs_f64()
            ))
        };
        let part = ready!(self.parts.poll_recv(turn)).unwrap_or_else(|| Err(cut()));
        self.is_over = part.is_err();
        Poll::Ready(part)
    }
}

impl Stream for Parts<RangeStreamResponse> {
    type Item = Result<RangeStreamResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, turn: &mut Turn<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let part = ready!(self.poll_part(turn));
        let is_end = part.as_ref().is_err_and(|status| status.code() == Code::Ok);
        Poll::Ready((!is_end).then_some(part))
    }
}

impl http_body::Body for Parts<Bytes> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        turn: &mut Turn<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(match ready!(self.poll_part(turn)) {
            Ok(part) => Ok(Frame::data(part)),
            Err(status) => {
                let mut trailers = HeaderMap::new();
                status.add_header(&mut trailers)?;
                Ok(Frame::trailers(trailers))
            }
        }))
    }
}
