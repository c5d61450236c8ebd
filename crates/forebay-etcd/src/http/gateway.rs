//! The JSON gateway: etcd's services by HTTP and JSON, as grpc-gateway has them. A request becomes a call to the services that gRPC
//! has, in this process. A client that disconnects drops that call.

mod json;
mod routes;

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{pending, ready};
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::{Body, BodyDataStream, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures_util::{StreamExt, stream};
use prost::Message;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::{Code, Extensions, Status, Streaming};

use super::JSON;
use crate::services::LongResponse;
use routes::Call;

/// Factor of the longest JSON text over the longest message: base64 adds a third, and names and spaces add more.
const TEXT_OVER_MESSAGE: usize = 2;
/// The longest message of a response to a range: as JSON it is in memory as a whole, together with its text.
pub(crate) const RANGE_BYTES_MAX: usize = if cfg!(test) { 2 << 20 } else { 64 << 20 };
/// The prefix of headers that are metadata of the call.
const METADATA: &str = "grpc-metadata-";
/// Of replies that a service has made, as etcd's are.
const FROM_SERVICE: [(&str, &str); 2] =
    [("content-type", "application/json"), ("grpc-metadata-content-type", "application/grpc")];

/// Returns the gateway to these services, whose messages have this many bytes at most.
pub(crate) fn router(services: Router, message_bytes_max: usize) -> Router {
    let text_bytes_max = TEXT_OVER_MESSAGE.saturating_mul(message_bytes_max);
    let gateway = Arc::new(Gateway { calls: routes::calls(), services, text_bytes_max });
    let mut router = Router::new();
    for prefix in PREFIXES {
        router = router.route(prefix, any(serve)).route(&format!("{prefix}{{*path}}"), any(serve));
    }
    router.with_state(gateway)
}

const PREFIXES: [&str; 2] = ["/v3/", "/v3beta/"];

/// Returns whether a path is one of the gateway's.
pub(super) fn serves(path: &str) -> bool {
    PREFIXES.iter().any(|prefix| path.starts_with(prefix))
}

struct Gateway {
    calls: HashMap<&'static str, Call>,
    services: Router,
    text_bytes_max: usize,
}

async fn serve(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    gateway.call(request).await.unwrap_or_else(|status| refusal(&status))
}

impl Gateway {
    async fn call(&self, request: Request) -> Result<Response, Status> {
        let path = request.uri().path();
        let path = PREFIXES.iter().find_map(|prefix| path.strip_prefix(prefix));
        let call =
            path.and_then(|path| self.calls.get(path)).ok_or_else(|| Status::not_found("Not Found"))?;
        if request.method() != Method::POST {
            return Err(Status::unimplemented("Method Not Allowed"));
        }
        let (Call { path, method }, metadata) = (call, metadata(request.headers()));
        let (path, codec) = (path.clone(), Messages { responses: method.output() });
        let mut client = Grpc::new(self.services.clone()).max_decoding_message_size(usize::MAX);
        let refused = TooLong::default();
        if method.is_client_streaming() {
            let requests = Requests {
                body: request.into_body().into_data_stream(),
                read: Vec::new(),
                used: 0,
                scan: json::Scan::default(),
                of: method.input(),
                text_bytes_max: self.text_bytes_max,
                too_long: refused.clone(),
                is_over: false,
                // As in etcd, a watch continues when its body has ended: until the client disconnects.
                goes_on: method.name() == "Watch",
            };
            let requests = stream::unfold(requests, Requests::next);
            let requests = tonic::Request::from_parts(metadata, Extensions::default(), requests);
            let responses = client.streaming(requests, path, codec).await;
            return Ok(lines(responses.map(tonic::Response::into_inner), refused).await);
        }
        let text = to_bytes(request.into_body(), self.text_bytes_max).await;
        let text = text.map_err(|_| too_long_body(self.text_bytes_max))?;
        let message = match json::first(&text).map_err(json::syntax).map_err(Status::invalid_argument)? {
            Some((text, _)) => json::read(text, method.input()).map_err(Status::invalid_argument)?,
            None => DynamicMessage::new(method.input()),
        };
        let message = tonic::Request::from_parts(metadata, Extensions::default(), message);
        if method.is_server_streaming() {
            let responses = client.server_streaming(message, path, codec).await;
            return Ok(lines(responses.map(tonic::Response::into_inner), refused).await);
        }
        if method.name() == "Range" {
            client = client.max_decoding_message_size(RANGE_BYTES_MAX);
        }
        let mut response = client.unary(message, path, codec).await.map_err(too_long)?;
        let long = response.extensions_mut().remove::<LongResponse>();
        let mut text = String::new();
        json::write(response.get_ref(), &mut text);
        drop(response);
        let length = [(header::CONTENT_LENGTH, text.len())];
        let body = match long {
            Some(long) => long.send_text(text),
            None => Body::from(text),
        };
        Ok((FROM_SERVICE, length, body).into_response())
    }
}

fn too_long_body(bytes_max: usize) -> Status {
    Status::resource_exhausted(format!("the body has more than {bytes_max} bytes"))
}

/// Names the remedy where a response is longer than it may be, which tonic finds.
fn too_long(status: Status) -> Status {
    if status.code() != Code::OutOfRange || !status.message().contains("decoded message length too large") {
        return status;
    }
    Status::resource_exhausted(format!(
        "the response has more than {RANGE_BYTES_MAX} bytes, which are not sent as JSON: give a limit, and go on behind the last key"
    ))
}

/// Returns the metadata of a call: the token of a user, and headers that are marked as such.
fn metadata(headers: &HeaderMap) -> MetadataMap {
    let mut given = HeaderMap::new();
    for (name, value) in headers {
        let name = match name.as_str().strip_prefix(METADATA) {
            Some(name) => HeaderName::from_bytes(name.as_bytes()).ok(),
            None => Some(name.clone()).filter(|name| *name == header::AUTHORIZATION),
        };
        if let Some(name) = name {
            given.append(name, value.clone());
        }
    }
    MetadataMap::from_headers(given)
}

/// The refusal of a stream's request that is too long, for its responses: their service sees only the end of the requests.
type TooLong = Arc<OnceLock<Status>>;

/// The requests of a stream: values in the body, behind one another.
struct Requests {
    body: BodyDataStream,
    /// Bytes that are read, of which a prefix is used.
    read: Vec<u8>,
    used: usize,
    /// The rest so far.
    scan: json::Scan,
    of: MessageDescriptor,
    text_bytes_max: usize,
    too_long: TooLong,
    /// A text was empty. As in etcd, this is like the end of the body.
    is_over: bool,
    /// Whether the end of the body is not that of the requests.
    goes_on: bool,
}

impl Requests {
    async fn next(mut self) -> Option<(DynamicMessage, Requests)> {
        loop {
            if !self.is_over && self.scan.has_value(&self.read[self.used..]) {
                let next = json::first(&self.read[self.used..])
                    .map(|first| first.map(|(text, end)| (json::read(text, self.of.clone()), end)));
                match next {
                    Ok(Some((Ok(message), end))) => {
                        self.used += end;
                        self.scan = json::Scan::default();
                        return Some((message, self));
                    }
                    _ => self.is_over = true,
                }
            }
            self.read.drain(..std::mem::take(&mut self.used));
            if self.read.len() > self.text_bytes_max {
                self.too_long.get_or_init(|| too_long_body(self.text_bytes_max));
                return None;
            }
            // The rest is read in any case: it shows the client's disconnect, which ends a stream that outlives its body.
            match self.body.next().await {
                Some(part) => {
                    let part = part.ok()?;
                    if !self.is_over {
                        self.read.extend_from_slice(&part);
                    }
                }
                None if self.goes_on => pending().await,
                None => return None,
            }
        }
    }
}

/// Returns the next response of a stream; `None` after the last one.
async fn next_of(
    responses: &mut Streaming<DynamicMessage>,
    too_long: &TooLong,
) -> Result<Option<DynamicMessage>, Status> {
    match responses.message().await {
        Ok(None) => too_long.get().map_or(Ok(None), |status| Err(status.clone())),
        next => next,
    }
}

/// Returns the responses of a stream as lines. Its first one decides about the status, as in etcd.
async fn lines(responses: Result<Streaming<DynamicMessage>, Status>, too_long: TooLong) -> Response {
    let mut responses = match responses {
        Ok(responses) => responses,
        Err(status) => return (http_status(status.code()), JSON, error_line(&status)).into_response(),
    };
    let first = match next_of(&mut responses, &too_long).await {
        Ok(Some(first)) => line(&first),
        Ok(None) => return StatusCode::OK.into_response(),
        Err(status) => return (http_status(status.code()), JSON, error_line(&status)).into_response(),
    };
    let rest = stream::unfold(Some((responses, too_long)), |rest| async move {
        let (mut responses, too_long) = rest?;
        match next_of(&mut responses, &too_long).await {
            Ok(None) => None,
            Ok(Some(response)) => Some((line(&response), Some((responses, too_long)))),
            Err(status) => Some((error_line(&status), None)),
        }
    });
    let all = stream::once(ready(first)).chain(rest).map(Ok::<_, Infallible>);
    (FROM_SERVICE, Body::from_stream(all)).into_response()
}

fn line(response: &DynamicMessage) -> String {
    let mut line = "{\"result\":".to_owned();
    json::write(response, &mut line);
    line.push_str("}\n");
    line
}

fn error_line(status: &Status) -> String {
    format!("{{\"error\":{}}}\n", error(status))
}

fn error(status: &Status) -> String {
    let mut text = format!("{{\"code\":{},\"message\":", status.code() as i32);
    json::write_text(status.message(), &mut text);
    text.push('}');
    text
}

fn refusal(status: &Status) -> Response {
    let mut response = (http_status(status.code()), JSON, error(status)).into_response();
    if status.code() == Code::Unauthenticated
        && let Ok(text) = HeaderValue::from_str(status.message())
    {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, text);
    }
    response
}

/// Returns the status of HTTP that grpc-gateway has for a code.
fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        // It has a number and no name.
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Messages of a call on the wire, as descriptors have them.
struct Messages {
    responses: MessageDescriptor,
}

impl Codec for Messages {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = MessageEncoder;
    type Decoder = Messages;

    fn encoder(&mut self) -> MessageEncoder {
        MessageEncoder
    }

    fn decoder(&mut self) -> Messages {
        Messages { responses: self.responses.clone() }
    }
}

struct MessageEncoder;

impl Encoder for MessageEncoder {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(&mut self, message: DynamicMessage, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.encode(out).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for Messages {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        let message = DynamicMessage::decode(self.responses.clone(), bytes);
        message.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use tonic::codegen::Service;

    use super::*;

    #[tokio::test]
    async fn a_body_is_bounded_before_it_is_read() {
        for (spaces, status) in [(18, 501), (19, 429)] {
            let body = Body::from(format!("{{}}{}", " ".repeat(spaces)));
            let request = axum::http::Request::post("/v3/kv/range").body(body).unwrap();
            // The services are not set.
            let response =
                router(tonic::service::Routes::default().axum_router_mut().clone(), 10).call(request);
            assert_eq!(response.await.unwrap().status().as_u16(), status, "{spaces} spaces");
        }
    }

    #[tokio::test]
    async fn requests_of_a_stream_may_arrive_in_any_parts() {
        let text = "{\"ID\":\"7\"} {\"ID\":8}{} garbage";
        let parts = text.as_bytes().chunks(1).map(|part| Ok::<_, Infallible>(part.to_vec()));
        let requests = Requests {
            body: Body::from_stream(stream::iter(parts.collect::<Vec<_>>())).into_data_stream(),
            read: Vec::new(),
            used: 0,
            scan: json::Scan::default(),
            of: routes::calls()["lease/keepalive"].method.input(),
            text_bytes_max: 100,
            too_long: TooLong::default(),
            is_over: false,
            goes_on: false,
        };
        let requests: Vec<DynamicMessage> = stream::unfold(requests, Requests::next).collect().await;
        let texts = requests.iter().map(|request| {
            let mut text = String::new();
            json::write(request, &mut text);
            text
        });
        assert_eq!(texts.collect::<Vec<_>>(), ["{\"ID\":\"7\"}", "{\"ID\":\"8\"}", "{}"]);
    }
}
