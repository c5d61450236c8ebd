//! Ranges that are sent as they are read, so that their values are never in memory together: responses of Range from [`LONG_BYTES`]
//! on, and RangeStream.
//!
//! A message of gRPC starts with its length. So a response of Range is read twice, in one view: the first pass sums the lengths,
//! and has the whole response unless it is long; the second pass sends it. A message that tonic encodes is in memory as a whole, so
//! the body of a long response bypasses it: the guard substitutes it for an empty body.
//!
//! A response that is in memory as a whole is sent in the same parts: a long one of a transaction, of a range in another order than that
//! of the keys, or of a delete with the pairs it deletes, and the text that the JSON gateway makes of a long response. It has a permit as
//! well: from before its pairs are read until its client has it. So no more of them are in memory together than there are permits, and
//! none stays there for a client that does not read.
//!
//! A view keeps files and memory of the store, so the wait for a stalled client is without a view: the range continues after its
//! last pair in a new view, at the same revision. It does the same when a snapshot of another member replaces the state. Only a
//! compaction above the revision removes pairs, and ends it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as Turn, Poll, ready};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::Stream;
use http_body::Frame;
use prost::{EncodeError, Message};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout};
use tonic::body::Body;
use tonic::codegen::http::HeaderMap;
use tonic::{Code, Status};

use super::Context;
use super::rights::Credentials;
use crate::accounts::range_needs;
use crate::mvcc::{Failure, View, is_in_key_order};
use crate::proto::etcdserverpb::{RangeRequest, RangeResponse, RangeStreamResponse};
use crate::proto::mvccpb::KeyValue;
use crate::refusal::Refusal;

/// Bytes of pairs from which on a response is sent as it is read.
pub(super) const LONG_BYTES: usize = 1 << 20;
/// Bytes of pairs sent together, and the number of such parts that wait for the client. A part may be as long as a pair.
const PART_BYTES: usize = 128 << 10;
const PARTS_MAX: usize = 1;
/// Concurrent ranges with more than one part. Each has about four parts in memory, in addition to HTTP/2's buffers.
pub(crate) const RANGES_MAX: usize = if cfg!(test) { 3 } else { 32 };
/// A client that reads nothing for this part of its time limit is awaited without a view.
const STALLS: u32 = 60;
/// The minimum rate of a client, apart from the total time that it may stall.
pub(super) const LEAST_BYTES_A_SECOND: usize = 32 << 10;
/// The same while other ranges wait for a permit: slow clients must not have all permits for long.
const CROWDED_BYTES_A_SECOND: usize = 1 << 20;
/// The first pass and the second one differ, which one revision cannot.
const CHANGED: &str =
    "a range read other pairs the second time: ask again, and look at the disk of this member";
/// The longest message of etcd's servers.
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// The place for a response's body that is sent in parts, in the extensions of its request.
#[derive(Clone, Default)]
pub(super) struct BodyPlace(Arc<Mutex<Option<(Body, LongResponse)>>>);

impl BodyPlace {
    fn put(&self, body: Body, long: LongResponse) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((body, long));
    }

    pub(super) fn take(&self) -> Option<(Body, LongResponse)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A part of a gauge's value, while this lives.
struct GaugeShare {
    gauge: Arc<AtomicU64>,
    amount: u64,
}

impl GaugeShare {
    fn new(gauge: &Arc<AtomicU64>, amount: u64) -> GaugeShare {
        gauge.fetch_add(amount, Ordering::Relaxed);
        GaugeShare { gauge: gauge.clone(), amount }
    }
}

impl Drop for GaugeShare {
    fn drop(&mut self) {
        self.gauge.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

/// One of [`RANGES_MAX`] permits to send a long range.
pub(super) struct RangePermit {
    _permit: OwnedSemaphorePermit,
    _counted: GaugeShare,
}

impl RangePermit {
    fn new(context: &Context, permit: OwnedSemaphorePermit) -> RangePermit {
        RangePermit { _permit: permit, _counted: GaugeShare::new(&context.node.counts().ranges, 1) }
    }

    /// Returns a permit if one is free.
    fn free(context: &Context) -> Option<RangePermit> {
        let permit = context.ranges.clone().try_acquire_owned().ok()?;
        Some(RangePermit::new(context, permit))
    }

    /// Waits for a permit, as long as a client may stand still. Hold no view meanwhile.
    ///
    /// # Errors
    /// No permit became free in time.
    pub(super) async fn wait(context: &Context) -> Result<RangePermit, Status> {
        let counts = context.node.counts();
        let _waiting = GaugeShare::new(&counts.ranges_waiting, 1);
        match acquire(&context.ranges, context.limits.snapshot_patience).await {
            Ok(permit) => Ok(RangePermit::new(context, permit)),
            Err(status) => {
                counts.ranges_refused.fetch_add(1, Ordering::Relaxed);
                Err(status)
            }
        }
    }
}

async fn acquire(ranges: &Arc<Semaphore>, patience: Duration) -> Result<OwnedSemaphorePermit, Status> {
    // No semaphore is closed.
    match timeout(patience, ranges.clone().acquire_owned()).await {
        Ok(Ok(permit)) => Ok(permit),
        _ => Err(Status::resource_exhausted(format!(
            "this member sends {RANGES_MAX} long ranges already, and none of them ended within {} s: ask again, or give a limit",
            patience.as_secs_f64()
        ))),
    }
}

/// In the extensions of a long response: its permit, which the text that is made of it keeps.
#[derive(Clone)]
pub(crate) struct LongResponse {
    context: Context,
    _permit: Option<Arc<RangePermit>>,
}

impl LongResponse {
    fn new(context: &Context, permit: Option<RangePermit>) -> LongResponse {
        LongResponse { context: context.clone(), _permit: permit.map(Arc::new) }
    }

    /// Returns a body that sends the response's text in its place.
    pub(crate) fn send_text(self, text: String) -> axum::body::Body {
        axum::body::Body::from_stream(send_whole(self, text.into()))
    }
}

/// Sends bytes in parts, in a new task.
fn send_whole(long: LongResponse, bytes: Bytes) -> Parts<Bytes> {
    let (mut sender, parts) = Parts::<Bytes>::new(&long.context);
    tokio::spawn(async move {
        sender.push(bytes);
        let mut sent = sender.send_beside_view().await;
        if matches!(sent, Err(RangeEnd::Stalled)) {
            sent = sender.send_to_slow().await;
        }
        drop(long);
        sender.end(sent).await;
    });
    parts
}

/// Puts a long response that is in memory into its place, if given, and returns what is sent otherwise.
///
/// # Errors
/// It is longer than etcd's may be.
pub(super) fn place_long<M: Message + Default>(
    context: &Context,
    response: M,
    permit: Option<RangePermit>,
    place: Option<&BodyPlace>,
) -> Result<M, Status> {
    let bytes = response.encoded_len();
    let Some(place) = place.filter(|_| bytes >= LONG_BYTES) else { return Ok(response) };
    let mut message = start_message(bytes)?;
    message.reserve(bytes);
    response.encode(&mut message).map_err(|error| Status::internal(error.to_string()))?;
    drop(response);
    let long = LongResponse::new(context, permit.or_else(|| RangePermit::free(context)));
    place.put(Body::new(send_whole(long.clone(), message.freeze())), long);
    Ok(M::default())
}

/// Returns the header of a message with this many bytes.
fn start_message(bytes: usize) -> Result<BytesMut, Status> {
    let Some(length) = u32::try_from(bytes).ok().filter(|_| bytes <= MESSAGE_BYTES_MAX) else {
        let text = format!("grpc: trying to send message larger than max ({bytes} vs. {MESSAGE_BYTES_MAX})");
        return Err(Status::resource_exhausted(text));
    };
    let mut message = BytesMut::new();
    message.put_u8(0);
    message.put_u32(length);
    Ok(message)
}

/// The result of a range's first pass.
pub(super) enum FirstPass {
    /// The response, without a header.
    Whole(RangeResponse),
    /// The bytes of all pairs, and the end of the response.
    Long(usize, RangeResponse),
    /// It is long, and needs a permit, which is waited for without the view.
    Crowded,
}

fn pair_bytes(pair: &KeyValue) -> usize {
    let bytes = pair.encoded_len();
    1 + prost::length_delimiter_len(bytes) + bytes
}

/// Reads a range until it is long, and then only lengths. A long range acquires a permit, unless it has one. A range in another order
/// than that of the keys is read as a whole, with a permit if it is long.
pub(super) async fn first_pass(
    context: &Context,
    view: &View,
    request: &RangeRequest,
    permit: &mut Option<RangePermit>,
) -> Result<FirstPass, Failure> {
    if request.range_end.is_empty() {
        return view.range(request).await.map(FirstPass::Whole);
    }
    if !is_in_key_order(request) {
        let bytes_max = if permit.is_some() { u64::MAX } else { LONG_BYTES as u64 };
        let read = view.range_within(request, bytes_max).await?;
        return Ok(read.map_or(FirstPass::Crowded, FirstPass::Whole));
    }
    let (mut pairs, mut kvs, mut bytes) = (view.pairs(request).await?, Vec::new(), 0);
    while let Some(pair) = pairs.next().await? {
        bytes += pair_bytes(&pair);
        if bytes < LONG_BYTES {
            kvs.push(pair);
            continue;
        }
        kvs = Vec::new();
        if permit.is_none() {
            *permit = RangePermit::free(context);
        }
        if permit.is_none() {
            return Ok(FirstPass::Crowded);
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

/// Sends a long response of Range into its place, in a new task.
///
/// # Errors
/// It is longer than etcd's may be.
pub(super) fn send_long(
    context: &Context,
    view: View,
    request: RangeRequest,
    (pairs_bytes, end): (usize, RangeResponse),
    permit: Option<RangePermit>,
    place: &BodyPlace,
) -> Result<(), Status> {
    let header = Some(context.node.header(view.revision()));
    let begin = RangeResponse { header, ..RangeResponse::default() };
    let mut first = start_message(begin.encoded_len() + pairs_bytes + end.encoded_len())?;
    let (mut sender, parts) = Parts::<Bytes>::new(context);
    let long = LongResponse::new(context, permit);
    place.put(Body::new(parts), long.clone());
    tokio::spawn(async move {
        let sent = async {
            begin.encode(&mut first)?;
            sender.send_response(view, request, first, &end, pairs_bytes).await
        };
        let sent = sent.await;
        drop(long);
        sender.end(sent).await;
    });
    Ok(())
}

/// Sends the parts of a RangeStream to its caller, in a new task.
pub(super) fn send_stream(
    context: &Context,
    by: Credentials,
    request: RangeRequest,
) -> Parts<RangeStreamResponse> {
    let (mut sender, parts) = Parts::<RangeStreamResponse>::new(context);
    tokio::spawn(async move {
        let sent = sender.send_range(&by, request).await;
        sender.end(sent).await;
    });
    parts
}

/// Why a range is not read on, or not in this view.
enum RangeEnd {
    Failed(Status),
    /// Perhaps because an installed snapshot has replaced the state.
    Unreadable(Failure),
    /// It is long, and no permit is free.
    Crowded,
    /// The client has not read a part for a while.
    Stalled,
    /// The client has disconnected, or does not read.
    Unread,
}

impl From<Failure> for RangeEnd {
    fn from(failure: Failure) -> RangeEnd {
        RangeEnd::Unreadable(failure)
    }
}

impl From<EncodeError> for RangeEnd {
    fn from(error: EncodeError) -> RangeEnd {
        RangeEnd::Failed(Status::internal(error.to_string()))
    }
}

/// How long a range, or a snapshot, has waited for its client, and how much it has sent.
#[derive(Debug, Default)]
pub(super) struct Pace {
    pub(super) waited: Duration,
    pub(super) sent_bytes: usize,
}

impl Pace {
    /// Returns how long it may wait now for its client, which may read nothing for `patience`, and has to read at this rate beside that.
    pub(super) fn left(&self, patience: Duration, bytes_a_second: usize) -> Duration {
        let earned = Duration::from_secs_f64(self.sent_bytes as f64 / bytes_a_second as f64);
        patience.min((patience + earned).saturating_sub(self.waited))
    }
}

/// The rest of a range, for any view that has its revision.
struct Rest {
    /// From the next key on, at the revision of the range.
    request: RangeRequest,
    /// The revision of its first view, for its header.
    state_revision: i64,
    /// The pairs that were read.
    count: i64,
    /// Whether the limit lets no more of them through.
    is_limit_reached: bool,
    /// Those that are not in a part yet.
    kvs: Vec<KeyValue>,
}

impl Rest {
    fn new(view: &View, mut request: RangeRequest) -> Rest {
        let state_revision = view.revision();
        if request.revision <= 0 {
            request.revision = state_revision;
        }
        Rest { request, state_revision, count: 0, is_limit_reached: false, kvs: Vec::new() }
    }

    /// Continues after a pair.
    fn pass(&mut self, pair: &KeyValue) {
        self.count += 1;
        let key = &mut self.request.key;
        key.clear();
        key.extend_from_slice(&pair.key);
        // The first key behind it.
        key.push(0);
        if self.request.limit > 0 {
            self.request.limit -= 1;
            // No limit would mean all.
            self.is_limit_reached = self.request.limit == 0;
            self.request.count_only = self.is_limit_reached;
        }
    }
}

/// The sender of a range's parts, of which few wait for the client.
struct PartSender<T> {
    parts: mpsc::Sender<Result<T, Status>>,
    context: Context,
    pace: Pace,
    /// The time spent waiting for the client while holding the present view.
    view_waited: Duration,
    /// The next parts, with their bytes.
    unsent: VecDeque<(T, usize)>,
}

impl<T> PartSender<T> {
    /// Sends the next parts, unless the client reads nothing for so long.
    async fn send(&mut self, limit: Duration) -> Result<(), RangeEnd> {
        while !self.unsent.is_empty() {
            let is_crowded = self.context.node.counts().ranges_waiting.load(Ordering::Relaxed) > 0;
            let rate = if is_crowded { CROWDED_BYTES_A_SECOND } else { LEAST_BYTES_A_SECOND };
            let (begun, left) = (Instant::now(), self.pace.left(self.context.limits.snapshot_patience, rate));
            let room = timeout(limit.min(left), self.parts.reserve()).await;
            self.pace.waited += begun.elapsed();
            let room = room.map_err(|_| RangeEnd::Stalled)?.map_err(|_| RangeEnd::Unread)?;
            if let Some((part, bytes)) = self.unsent.pop_front() {
                self.pace.sent_bytes += bytes;
                room.send(Ok(part));
            }
        }
        Ok(())
    }

    /// Sends them while a view is held, for a short time only.
    async fn send_beside_view(&mut self) -> Result<(), RangeEnd> {
        let limit = (self.context.limits.snapshot_patience / STALLS).saturating_sub(self.view_waited);
        let before = self.pace.waited;
        let sent = self.send(limit).await;
        self.view_waited += self.pace.waited - before;
        sent
    }

    /// Sends them, for as long as the client may need. Hold no view meanwhile.
    async fn send_to_slow(&mut self) -> Result<(), RangeEnd> {
        let _stalled = GaugeShare::new(&self.context.node.counts().ranges_stalled, 1);
        let sent = self.send(Duration::MAX).await;
        if !matches!(sent, Err(RangeEnd::Stalled)) {
            return sent;
        }
        self.context.node.counts().ranges_given_up.fetch_add(1, Ordering::Relaxed);
        Err(RangeEnd::Unread)
    }

    /// Returns the view to read on in.
    async fn next_view(&mut self, view: View, end: RangeEnd) -> Result<View, RangeEnd> {
        match end {
            RangeEnd::Unreadable(failure) => {
                if !view.is_replaced(self.context.node.store(), &failure).await {
                    return Err(RangeEnd::Unreadable(failure));
                }
                drop(view);
            }
            RangeEnd::Stalled => {
                drop(view);
                self.send_to_slow().await?;
            }
            end => return Err(end),
        }
        self.view_waited = Duration::ZERO;
        Ok(View::of(self.context.node.store()).await?)
    }

    /// Says how it has ended, unless the client has not read.
    async fn end(self, sent: Result<(), RangeEnd>) {
        let status = match sent {
            Ok(()) => Status::ok(""),
            Err(RangeEnd::Failed(status)) => status,
            Err(RangeEnd::Unreadable(failure)) => self.context.node.unread(failure),
            Err(RangeEnd::Crowded | RangeEnd::Stalled | RangeEnd::Unread) => return,
        };
        // An end without it says that it was not read.
        let _ = timeout(self.context.limits.snapshot_patience, self.parts.send(Err(status))).await;
    }
}

/// A part that is counted until HTTP/2 has written it.
struct CountedPart {
    bytes: Bytes,
    _counted: GaugeShare,
}

impl AsRef<[u8]> for CountedPart {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl PartSender<Bytes> {
    /// Adds a part to the next parts; a long part in pieces, so that HTTP/2 accepts only as much as fits its buffers.
    fn push(&mut self, bytes: Bytes) {
        let counted = GaugeShare::new(&self.context.node.counts().range_bytes, bytes.len() as u64);
        let mut part = Bytes::from_owner(CountedPart { bytes, _counted: counted });
        while part.len() > 2 * PART_BYTES {
            self.unsent.push_back((part.split_to(PART_BYTES), PART_BYTES));
        }
        let bytes = part.len();
        self.unsent.push_back((part, bytes));
    }

    /// Sends the bytes of a response, as the first pass has counted them.
    async fn send_response(
        &mut self,
        mut view: View,
        request: RangeRequest,
        mut part: BytesMut,
        end: &RangeResponse,
        mut left_bytes: usize,
    ) -> Result<(), RangeEnd> {
        let mut rest = Rest::new(&view, request);
        loop {
            match self.send_pairs(&view, &mut rest, &mut part, &mut left_bytes).await {
                Ok(()) => break,
                Err(end) => view = self.next_view(view, end).await?,
            }
        }
        drop(view);
        if left_bytes > 0 {
            return Err(RangeEnd::Failed(Status::internal(CHANGED)));
        }
        end.encode(&mut part)?;
        self.push(part.freeze());
        self.send_to_slow().await
    }

    /// Sends the remaining pairs, except the last.
    async fn send_pairs(
        &mut self,
        view: &View,
        rest: &mut Rest,
        part: &mut BytesMut,
        left_bytes: &mut usize,
    ) -> Result<(), RangeEnd> {
        let mut pairs = view.pairs(&rest.request).await?;
        while let Some(pair) = pairs.next().await? {
            rest.pass(&pair);
            let left = left_bytes.checked_sub(pair_bytes(&pair));
            *left_bytes = left.ok_or_else(|| RangeEnd::Failed(Status::internal(CHANGED)))?;
            // Responses behind one another are one.
            RangeResponse { kvs: vec![pair], ..RangeResponse::default() }.encode(part)?;
            if part.len() >= PART_BYTES {
                self.push(part.split().freeze());
                self.send_beside_view().await?;
            }
        }
        Ok(())
    }
}

impl PartSender<RangeStreamResponse> {
    fn push(&mut self, response: RangeResponse, bytes: usize) {
        self.unsent.push_back((RangeStreamResponse { range_response: Some(response) }, bytes));
    }

    /// Sends the pairs, and behind them the header and the count, as etcd does.
    async fn send_range(&mut self, by: &Credentials, request: RangeRequest) -> Result<(), RangeEnd> {
        let mut permit = None;
        let (mut view, mut rest) = self.begin(by, &request).await?;
        let last = loop {
            match self.send_parts(&view, &mut rest, &mut permit).await {
                Ok(last) => break last,
                // Nothing was sent yet.
                Err(RangeEnd::Crowded) => {
                    drop(view);
                    permit = Some(self.permit().await?);
                    (view, rest) = self.begin(by, &request).await?;
                }
                Err(end) => view = self.next_view(view, end).await?,
            }
        };
        drop(view);
        self.push(last, PART_BYTES);
        self.send_to_slow().await
    }

    /// Returns a view in which the caller may read the range, and the whole of it as the rest.
    async fn begin(&self, by: &Credentials, request: &RangeRequest) -> Result<(View, Rest), RangeEnd> {
        let view = View::of(self.context.node.store()).await?;
        let permitted = self.context.check(by, |check| range_needs(request, check));
        permitted.map_err(|refusal| RangeEnd::Failed(refusal.into()))?;
        let rest = Rest::new(&view, request.clone());
        Ok((view, rest))
    }

    /// Waits for a permit as long as the client does.
    async fn permit(&self) -> Result<RangePermit, RangeEnd> {
        tokio::select! {
            () = self.parts.closed() => Err(RangeEnd::Unread),
            permit = RangePermit::wait(&self.context) => permit.map_err(RangeEnd::Failed),
        }
    }

    /// Sends the pairs that are left, and returns the last part. A compaction above the revision ends it, also as in etcd, although the
    /// view could be read on.
    async fn send_parts(
        &mut self,
        view: &View,
        rest: &mut Rest,
        permit: &mut Option<RangePermit>,
    ) -> Result<RangeResponse, RangeEnd> {
        let (count_before, was_limit_reached) = (rest.count, rest.is_limit_reached);
        let mut bytes: usize = rest.kvs.iter().map(pair_bytes).sum();
        let mut pairs = view.pairs(&rest.request).await?;
        while let Some(pair) = pairs.next().await? {
            rest.pass(&pair);
            bytes += pair_bytes(&pair);
            rest.kvs.push(pair);
            if bytes >= PART_BYTES {
                if permit.is_none() {
                    *permit = Some(RangePermit::free(&self.context).ok_or(RangeEnd::Crowded)?);
                }
                self.check_compaction(rest.request.revision).await?;
                let kvs = std::mem::take(&mut rest.kvs);
                self.push(RangeResponse { kvs, ..RangeResponse::default() }, bytes);
                bytes = 0;
                self.send_beside_view().await?;
            }
        }
        let (is_more, count) = pairs.count_rest().await?;
        self.check_compaction(rest.request.revision).await?;
        Ok(RangeResponse {
            header: Some(self.context.node.header(rest.state_revision)),
            kvs: std::mem::take(&mut rest.kvs),
            more: is_more || (was_limit_reached && count > 0),
            count: count_before + count,
        })
    }

    async fn check_compaction(&self, revision: i64) -> Result<(), RangeEnd> {
        let now = View::of(self.context.node.store()).await?;
        if now.compacted() > revision { Err(Failure::from(Refusal::Compacted).into()) } else { Ok(()) }
    }
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
        let (context, patience) = (context.clone(), context.limits.snapshot_patience);
        let (pace, view_waited, unsent) = (Pace::default(), Duration::ZERO, VecDeque::new());
        let sender = PartSender { parts: sender, context, pace, view_waited, unsent };
        (sender, Parts { parts, patience, is_over: false })
    }

    /// Returns the next part, or the status at the end.
    fn poll_part(&mut self, turn: &mut Turn<'_>) -> Poll<Result<T, Status>> {
        let cut = || {
            Status::deadline_exceeded(format!(
                "the range ended because nothing of it was read for {} s, or less than {} KiB a second for longer ({} while others \
                 wait): ask again, and read on, or give a limit",
                self.patience.as_secs_f64(),
                LEAST_BYTES_A_SECOND >> 10,
                CROWDED_BYTES_A_SECOND >> 10
            ))
        };
        let part = ready!(self.parts.poll_recv(turn)).unwrap_or_else(|| Err(cut()));
        self.is_over = part.is_err();
        Poll::Ready(part)
    }
}

impl<T> Stream for Parts<T> {
    type Item = Result<T, Status>;

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

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A client that read one part a minute kept its range without a time limit.
    #[test]
    fn a_client_that_reads_little_is_not_waited_for() {
        let mut pace = Pace::default();
        assert_eq!(pace.left(PATIENCE, LEAST_BYTES_A_SECOND), PATIENCE);
        let mut minutes = 0;
        while pace.left(PATIENCE, LEAST_BYTES_A_SECOND) > Duration::from_secs(50) {
            pace.waited += Duration::from_secs(50);
            pace.sent_bytes += PART_BYTES;
            minutes += 1;
        }
        assert!(minutes <= 2, "{minutes} parts");
        // A client that reads at the minimum rate is served without a time limit.
        let mut pace = Pace::default();
        for _ in 0..100_000 {
            pace.sent_bytes += PART_BYTES;
            pace.waited += Duration::from_secs((PART_BYTES / LEAST_BYTES_A_SECOND) as u64);
        }
        assert_eq!(pace.left(PATIENCE, LEAST_BYTES_A_SECOND), PATIENCE);
    }

    /// Story: as many clients as there are permits, each of which read 33 KiB a second, kept the long ranges of all others away.
    #[test]
    fn a_slow_client_gives_way_to_those_that_wait() {
        let mut pace = Pace::default();
        for _ in 0..100 {
            pace.sent_bytes += PART_BYTES;
            pace.waited += Duration::from_secs_f64(PART_BYTES as f64 / f64::from(33 << 10));
        }
        assert_eq!(pace.left(PATIENCE, LEAST_BYTES_A_SECOND), PATIENCE);
        assert_eq!(pace.left(PATIENCE, CROWDED_BYTES_A_SECOND), Duration::ZERO);
        // A fast client continues, and a new one has its grace.
        let fast = Pace { waited: Duration::from_secs(60), sent_bytes: 100 * CROWDED_BYTES_A_SECOND };
        assert_eq!(fast.left(PATIENCE, CROWDED_BYTES_A_SECOND), PATIENCE);
        assert_eq!(Pace::default().left(PATIENCE, CROWDED_BYTES_A_SECOND), PATIENCE);
    }

    /// The time is simulated.
    #[tokio::test(start_paused = true)]
    async fn a_range_without_a_permit_is_refused_in_the_end() {
        let ranges = Arc::new(Semaphore::new(1));
        let first = acquire(&ranges, PATIENCE).await.unwrap();
        let refused = acquire(&ranges, PATIENCE).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains("none of them ended within 60 s"), "{refused}");
        let (second, ()) = tokio::join!(acquire(&ranges, PATIENCE), async { drop(first) });
        drop(second.unwrap());
    }
}
