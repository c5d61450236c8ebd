//! [`Guard`]: refusals before a service sees a call, by [who makes it](super::rights) as well, and ends of calls without a leader, as etcd's
//! interceptors have them; replies that are etcd's where tonic has others.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request, Response, StatusCode, Version, header};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;
use tonic::{Code, Status};

use super::call_counts::counted;
use super::long_range::BodyPlace;
use super::rights::{Credentials, Marks, has_token};
use super::{Context as Server, healing};
use crate::node::Node;
use crate::refusal::Refusal;

/// Metadata of calls that require a leader, as named by etcd's clients.
const WANTS_LEADER: (&str, &str) = ("hasleader", "true");
/// The calls that a learner serves; of ranges only those that are serializable, which their service sees to.
const OF_LEARNERS: [&str; 3] = [RANGE, STATUS, "/etcdserverpb.Maintenance/Snapshot"];
const RANGE: &str = "/etcdserverpb.KV/Range";
/// The calls whose responses may be long.
const OF_LONG_RESPONSES: [&str; 3] = [RANGE, "/etcdserverpb.KV/Txn", "/etcdserverpb.KV/DeleteRange"];
/// The calls that a member with damaged tables serves, which say so.
const OF_DAMAGED: [&str; 4] =
    [STATUS, "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/List", "/grpc.health.v1.Health/Watch"];
const STATUS: &str = "/etcdserverpb.Maintenance/Status";

/// A service with a guard before it.
#[derive(Clone)]
pub(super) struct Guard<S> {
    service: S,
    server: Arc<Server>,
}

impl<S> Guard<S> {
    pub(super) fn new(service: S, server: Arc<Server>) -> Guard<S> {
        Guard { service, server }
    }
}

impl<S: NamedService> NamedService for Guard<S> {
    const NAME: &'static str = S::NAME;
}

fn ready_with(response: Response<Body>) -> BoxFuture<Response<Body>, Infallible> {
    Box::pin(std::future::ready(Ok(response)))
}

fn refused(refusal: Refusal) -> BoxFuture<Response<Body>, Infallible> {
    ready_with(Status::from(refusal).into_http())
}

/// Returns whether a request is a call of gRPC. A page of a browser can name its content so, but without TLS it cannot speak HTTP/2.
pub(crate) fn is_call<B>(request: &Request<B>) -> bool {
    request.version() == Version::HTTP_2 && is_grpc(request.headers())
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// Returns etcd's reply to a request for an unknown path. For gRPC it has a status in its headers, and 200 elsewhere: a caller that
/// sends JSON mistook that for success.
pub(crate) fn not_found(headers: &HeaderMap) -> Response<Body> {
    if is_grpc(headers) {
        return Status::unimplemented("unknown service or method").into_http();
    }
    let mut response = Response::new(Body::new(String::from("404 page not found\n")));
    *response.status_mut() = StatusCode::NOT_FOUND;
    let text = header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    response
}

/// Returns etcd's refusal of a message that is too long, if a status is tonic's, which has another code and text.
pub(super) fn too_long(status: &Status) -> Option<Status> {
    if status.code() != Code::OutOfRange || !status.message().contains("message length too large") {
        return None;
    }
    let mut numbers = status.message().split(' ').filter_map(|word| word.parse::<usize>().ok());
    let (found, limit) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let text = format!("grpc: received message larger than max ({found} vs. {limit})");
    Some(Status::resource_exhausted(text))
}

/// Makes the refusal of a message that is too long etcd's. tonic refuses it before a service sees it.
fn with_etcds_refusal(response: Response<Body>) -> Response<Body> {
    if !response.headers().contains_key(Status::GRPC_STATUS) {
        return response;
    }
    let status = Status::from_header_map(response.headers());
    match status.as_ref().and_then(too_long) {
        Some(refusal) => refusal.into_http(),
        None => response,
    }
}

impl<S> Service<Request<Body>> for Guard<S>
where
    S: Service<
            Request<Body>,
            Response = Response<Body>,
            Error = Infallible,
            Future = BoxFuture<Response<Body>, Infallible>,
        > + Clone
        + Send
        + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if !is_call(&request) {
            return ready_with(not_found(request.headers()));
        }
        let (node, path) = (&self.server.node, request.uri().path());
        let call_under_way = self.server.calls.begin(path);
        let wanted = request.headers().get(WANTS_LEADER.0);
        let wants_leader = wanted.is_some_and(|wanted| wanted == WANTS_LEADER.1);
        let early = if node.is_only_learning() && !OF_LEARNERS.contains(&path) {
            Some(Refusal::LearnerOnly.into())
        } else if node.is_healing() && !OF_DAMAGED.contains(&path) {
            Some(healing())
        } else if wants_leader && node.leader().is_none() {
            Some(Refusal::NoLeader.into())
        } else {
            None
        };
        if let Some(status) = early {
            // The alert for failed calls counts these too.
            return ready_with(counted(status.into_http(), call_under_way));
        }
        let place = OF_LONG_RESPONSES.contains(&request.uri().path()).then(BodyPlace::default);
        if let Some(place) = &place {
            request.extensions_mut().insert(place.clone());
        }
        let node = wants_leader.then(|| node.clone());
        let request = match &call_under_way {
            Some(call) => request.map(|body| call.received(body)),
            None => request,
        };
        let response = self.admitted(request);
        Box::pin(async move {
            let response = with_etcds_refusal(response.await?);
            let response = match place.and_then(|place| place.take()) {
                Some((body, long)) => {
                    let mut response = response.map(|_| body);
                    response.extensions_mut().insert(long);
                    response
                }
                None => response,
            };
            let response = match node {
                Some(node) => response.map(|body| Body::new(GuardedBody::new(body, &node))),
                None => response,
            };
            Ok(counted(response, call_under_way))
        })
    }
}

impl<S> Guard<S>
where
    S: Service<
            Request<Body>,
            Response = Response<Body>,
            Error = Infallible,
            Future = BoxFuture<Response<Body>, Infallible>,
        > + Clone
        + Send
        + 'static,
{
    /// Makes a call, if its caller may. A refusal counts once this member has applied all that was changed before.
    fn admitted(&mut self, request: Request<Body>) -> BoxFuture<Response<Body>, Infallible> {
        let users = &self.server.users;
        let is_on = users.is_on();
        if !is_on && (!has_token(request.headers()) || users.is_off_confirmed()) {
            return self.service.call(request);
        }
        let marks = Marks::of(request.headers(), request.extensions());
        match self.server.refusal(request.uri().path(), marks) {
            None if is_on => return self.service.call(request),
            Some(Refusal::UserEmpty) => return refused(Refusal::UserEmpty),
            _ => {}
        }
        let by = Credentials::of_call(request.headers(), request.extensions());
        let path = request.uri().path().to_owned();
        // The one that is ready makes the call.
        let next = self.service.clone();
        let (mut service, server) = (std::mem::replace(&mut self.service, next), self.server.clone());
        Box::pin(async move {
            match server.admit(&path, &by).await {
                Ok(()) => service.call(request).await,
                Err(status) => Ok(status.into_http()),
            }
        })
    }
}

/// The body of a response, which ends after a long time without a leader: only a stream's, since any other body is complete
/// immediately.
struct GuardedBody {
    /// None after the end.
    body: Option<Body>,
    is_alone: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl GuardedBody {
    fn new(body: Body, node: &Node) -> GuardedBody {
        GuardedBody { body: Some(body), is_alone: Box::pin(node.long_without_leader()) }
    }
}

impl http_body::Body for GuardedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        // An available message is sent first.
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(context) {
            return Poll::Ready(frame);
        }
        ready!(self.is_alone.as_mut().poll(context));
        // This drops everything that the stream keeps: its watches, and the requests of its client.
        self.body = None;
        let mut trailers = HeaderMap::new();
        Status::from(Refusal::NoLeader).add_header(&mut trailers)?;
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), http_body::Body::size_hint)
    }
}
