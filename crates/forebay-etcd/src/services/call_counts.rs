//! [`CallCounts`]: started calls of each kind, their messages, and their outcomes, as in etcd's metrics.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Response};
use tonic::{Code, Status};

use super::rights::RULES;
use crate::histogram::Histogram;

/// The names of codes in metrics, by their numbers.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];
/// Bounds of times in milliseconds: those that Prometheus's clients have by default.
const BOUNDS_MS: [u64; 11] = [5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000];
/// The calls with more than one message.
const STREAMS: [(&str, &str); 6] = [
    ("/etcdserverpb.KV/RangeStream", "server_stream"),
    ("/etcdserverpb.Watch/Watch", "bidi_stream"),
    ("/etcdserverpb.Lease/LeaseKeepAlive", "bidi_stream"),
    ("/etcdserverpb.Maintenance/Snapshot", "server_stream"),
    ("/v3electionpb.Election/Observe", "server_stream"),
    ("/grpc.health.v1.Health/Watch", "server_stream"),
];
const UNARY: &str = "unary";
/// Bytes before each message: whether it is compressed, and its length.
const HEADER_BYTES: usize = 5;

/// The ways of a call's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Received,
    Sent,
}

/// The calls that clients have made, by their paths.
#[derive(Debug)]
pub(crate) struct CallCounts(HashMap<&'static str, Arc<CallKind>>);

/// The calls of one path.
#[derive(Debug)]
pub(crate) struct CallKind {
    /// As metrics name it.
    pub(crate) labels: [(&'static str, &'static str); 3],
    begun: AtomicU64,
    /// Messages and their bytes, by [`Way`].
    messages: [AtomicU64; 2],
    bytes: [AtomicU64; 2],
    ended: [AtomicU64; CODES.len()],
    pub(crate) times: Histogram,
}

impl Default for CallCounts {
    fn default() -> CallCounts {
        let kind = |(path, _): &(&'static str, _)| {
            let (service, method) = path.strip_prefix('/')?.split_once('/')?;
            let stream = STREAMS.iter().find(|(of, _)| of == path).map_or(UNARY, |(_, stream)| *stream);
            let labels = [("grpc_method", method), ("grpc_service", service), ("grpc_type", stream)];
            let (begun, messages, bytes, ended) = Default::default();
            let times = Histogram::of(BOUNDS_MS.map(|bound| bound * 1_000_000));
            Some((*path, Arc::new(CallKind { labels, begun, messages, bytes, ended, times })))
        };
        CallCounts(RULES.iter().filter_map(kind).collect())
    }
}

impl CallCounts {
    /// Returns all kinds, in an order that stays.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &CallKind> {
        RULES.iter().filter_map(move |(path, _)| self.0.get(path).map(|kind| &**kind))
    }

    /// Counts the start of a call; `None` for an unknown call.
    pub(super) fn begin(&self, path: &str) -> Option<CallUnderWay> {
        let kind = self.0.get(path)?.clone();
        kind.begun.fetch_add(1, Ordering::Relaxed);
        Some(CallUnderWay { kind, begun: Instant::now(), code: Code::Cancelled })
    }
}

impl CallKind {
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Returns the number of messages in this direction, and their bytes.
    pub(crate) fn messages(&self, way: Way) -> (u64, u64) {
        let load = |counts: &[AtomicU64; 2]| counts[way as usize].load(Ordering::Relaxed);
        (load(&self.messages), load(&self.bytes))
    }

    /// Returns how many calls ended with each code.
    pub(crate) fn ended(&self) -> impl Iterator<Item = (&'static str, u64)> {
        CODES.into_iter().zip(self.ended.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}

/// A call until its end. A call whose client has disconnected is dropped, and counts as cancelled.
#[derive(Debug)]
pub(super) struct CallUnderWay {
    kind: Arc<CallKind>,
    begun: Instant,
    code: Code,
}

impl CallUnderWay {
    /// Counts the messages of a request.
    pub(super) fn received(&self, body: Body) -> Body {
        Body::new(CountedBody::new(body, &self.kind, Way::Received))
    }

    fn end(mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for CallUnderWay {
    fn drop(&mut self) {
        if let Some(ended) = self.kind.ended.get(self.code as usize) {
            ended.fetch_add(1, Ordering::Relaxed);
        }
        self.kind.times.observe_time(self.begun.elapsed());
    }
}

fn code_of(headers: &HeaderMap) -> Option<Code> {
    headers.get(Status::GRPC_STATUS).map(|code| Code::from_bytes(code.as_bytes()))
}

/// Counts the messages of a response, and the end of its call: of a stream with the end of its body, of another with its response.
pub(super) fn counted(response: Response<Body>, call: Option<CallUnderWay>) -> Response<Body> {
    let Some(call) = call else { return response };
    let is_stream = call.kind.labels[2].1 != UNARY;
    let code = code_of(response.headers());
    response.map(|body| {
        let mut counted = CountedBody::new(body, &call.kind, Way::Sent);
        match code {
            None if is_stream => counted.call = Some(call),
            code => call.end(code.unwrap_or(Code::Ok)),
        }
        Body::new(counted)
    })
}

/// The body of a request, or of a response.
struct CountedBody {
    body: Body,
    /// That of a stream's response; `None` after the end.
    call: Option<CallUnderWay>,
    kind: Arc<CallKind>,
    way: Way,
    /// The start of a message's header, and the remaining bytes of the message.
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    rest: usize,
}

impl CountedBody {
    fn new(body: Body, kind: &Arc<CallKind>, way: Way) -> CountedBody {
        let (kind, header) = (kind.clone(), [0; HEADER_BYTES]);
        CountedBody { body, call: None, kind, way, header, header_bytes: 0, rest: 0 }
    }

    /// Counts the messages that start in a part, which may end anywhere.
    fn count(&mut self, mut part: &[u8]) {
        while !part.is_empty() {
            let of_message = self.rest.min(part.len());
            (self.rest, part) = (self.rest - of_message, &part[of_message..]);
            let of_header = (HEADER_BYTES - self.header_bytes).min(part.len());
            self.header[self.header_bytes..][..of_header].copy_from_slice(&part[..of_header]);
            (self.header_bytes, part) = (self.header_bytes + of_header, &part[of_header..]);
            if self.header_bytes == HEADER_BYTES {
                let [_, length @ ..] = self.header;
                let length = u32::from_be_bytes(length);
                self.kind.messages[self.way as usize].fetch_add(1, Ordering::Relaxed);
                self.kind.bytes[self.way as usize].fetch_add(u64::from(length), Ordering::Relaxed);
                (self.rest, self.header_bytes) = (length as usize, 0);
            }
        }
    }
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(part)) = &frame
            && let Some(part) = part.data_ref()
        {
            self.count(part);
        }
        let code = match &frame {
            Some(Ok(part)) => part.trailers_ref().map(|trailers| code_of(trailers).unwrap_or(Code::Ok)),
            Some(Err(status)) => Some(status.code()),
            None => Some(Code::Ok),
        };
        if let Some(code) = code
            && let Some(call) = self.call.take()
        {
            call.end(code);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.call.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_wherever_parts_end() {
        let lengths = [0_u32, 3, 0, 300, 7];
        let bytes: Vec<u8> = lengths
            .iter()
            .flat_map(|length| {
                let header = std::iter::once(0).chain(length.to_be_bytes());
                header.chain(std::iter::repeat_n(b'm', *length as usize))
            })
            .collect();
        for part in [1, 2, 4, 5, 6, 8, bytes.len()] {
            let calls = CallCounts::default();
            let kind = calls.0.get("/etcdserverpb.Watch/Watch").unwrap();
            let mut body = CountedBody::new(Body::empty(), kind, Way::Received);
            bytes.chunks(part).for_each(|part| body.count(part));
            assert_eq!(kind.messages(Way::Received), (5, 310), "parts of {part} bytes");
            assert_eq!(kind.messages(Way::Sent), (0, 0));
        }
    }
}
