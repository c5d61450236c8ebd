//! [`CallCounts`]: how many calls of each kind have begun, and how they have ended, as etcd's metrics have them.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Response};
use tonic::{Code, Status};

use super::rights::RULES;

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
const STREAMS: [(&str, &str); 5] = [
    ("/etcdserverpb.KV/RangeStream", "server_stream"),
    ("/etcdserverpb.Watch/Watch", "bidi_stream"),
    ("/etcdserverpb.Lease/LeaseKeepAlive", "bidi_stream"),
    ("/etcdserverpb.Maintenance/Snapshot", "server_stream"),
    ("/v3electionpb.Election/Observe", "server_stream"),
];
const UNARY: &str = "unary";

/// The calls that clients have made, by their paths.
#[derive(Debug)]
pub(crate) struct CallCounts(HashMap<&'static str, Arc<CallKind>>);

/// The calls of one path.
#[derive(Debug)]
pub(crate) struct CallKind {
    /// As metrics name it.
    pub(crate) labels: [(&'static str, &'static str); 3],
    begun: AtomicU64,
    ended: [AtomicU64; CODES.len()],
    /// By their time: each up to its bound, and the rest.
    times: [AtomicU64; BOUNDS_MS.len() + 1],
    nanoseconds: AtomicU64,
}

impl Default for CallCounts {
    fn default() -> CallCounts {
        let kind = |(path, _): &(&'static str, _)| {
            let (service, method) = path.strip_prefix('/')?.split_once('/')?;
            let stream = STREAMS.iter().find(|(of, _)| of == path).map_or(UNARY, |(_, stream)| *stream);
            let labels = [("grpc_method", method), ("grpc_service", service), ("grpc_type", stream)];
            let (begun, nanoseconds) = (AtomicU64::default(), AtomicU64::default());
            let (ended, times) = (Default::default(), Default::default());
            Some((*path, Arc::new(CallKind { labels, begun, ended, times, nanoseconds })))
        };
        CallCounts(RULES.iter().filter_map(kind).collect())
    }
}

impl CallCounts {
    /// Returns all kinds, in an order that stays.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &CallKind> {
        RULES.iter().filter_map(move |(path, _)| self.0.get(path).map(|kind| &**kind))
    }

    /// Counts a call that begins; `None` if there is no such call.
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

    /// Returns how many calls ended with each code.
    pub(crate) fn ended(&self) -> impl Iterator<Item = (&'static str, u64)> {
        CODES.into_iter().zip(self.ended.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Returns how many calls took up to each bound in seconds, how many there are, and their seconds together.
    pub(crate) fn times(&self) -> (Vec<(f64, u64)>, u64, f64) {
        let mut count = 0;
        let mut up_to = self.times.iter().map(|times| {
            count += times.load(Ordering::Relaxed);
            count
        });
        let bounds = BOUNDS_MS.iter().map(|bound| *bound as f64 / 1e3);
        let bounds: Vec<(f64, u64)> = bounds.zip(up_to.by_ref()).collect();
        let all = up_to.next().unwrap_or_default();
        (bounds, all, self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9)
    }
}

/// A call until it ends. One whose client has gone is dropped, and counts as cancelled.
#[derive(Debug)]
pub(super) struct CallUnderWay {
    kind: Arc<CallKind>,
    begun: Instant,
    code: Code,
}

impl CallUnderWay {
    fn end(mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for CallUnderWay {
    fn drop(&mut self) {
        let (kind, time) = (&self.kind, self.begun.elapsed());
        if let Some(ended) = kind.ended.get(self.code as usize) {
            ended.fetch_add(1, Ordering::Relaxed);
        }
        let place = BOUNDS_MS.partition_point(|bound| Duration::from_millis(*bound) < time);
        kind.times[place].fetch_add(1, Ordering::Relaxed);
        kind.nanoseconds.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

fn code_of(headers: &HeaderMap) -> Option<Code> {
    headers.get(Status::GRPC_STATUS).map(|code| Code::from_bytes(code.as_bytes()))
}

/// Counts the end of a call: of a stream with the end of its body, of another with its response.
pub(super) fn counted(response: Response<Body>, call: Option<CallUnderWay>) -> Response<Body> {
    let Some(call) = call else { return response };
    let is_stream = call.kind.labels[2].1 != UNARY;
    match code_of(response.headers()) {
        None if is_stream => response.map(|body| Body::new(CountedBody { body, call: Some(call) })),
        code => {
            call.end(code.unwrap_or(Code::Ok));
            response
        }
    }
}

/// The body of a stream's response.
struct CountedBody {
    body: Body,
    /// None after the end.
    call: Option<CallUnderWay>,
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
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
