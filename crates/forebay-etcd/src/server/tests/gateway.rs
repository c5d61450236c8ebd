//! The JSON gateway, compared with etcd's.

use std::collections::BTreeMap;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::clients::metric_is;
use super::cluster::{Cluster, Member, until, within};
use super::http::get;
use crate::http::RANGE_BYTES_MAX;

/// Requests with the replies of etcd 3.7.3, made by `tests/gateway/record`.
const RECORDED: &str = include_str!("../../../tests/gateway/exchanges.json");
const COMPARED: [&str; 3] = ["content-type", "access-control-allow-origin", "grpc-metadata-content-type"];

#[derive(serde::Deserialize)]
struct Fixture {
    exchanges: Vec<Exchange>,
}

#[derive(serde::Deserialize)]
struct Exchange {
    method: String,
    path: String,
    #[serde(default)]
    body: String,
    /// Instead of a body: a put of a key with this many bytes.
    key_bytes: Option<usize>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// The lines of a stream that are read.
    lines: Option<usize>,
    /// Fields that differ from run to run.
    #[serde(default)]
    any: Vec<String>,
    status: u16,
    found: BTreeMap<String, String>,
    reply: String,
}

/// A reply: status, headers, and the rest of the stream. It is of HTTP/1.0, so that the body is not in chunks.
struct Reply {
    status: u16,
    headers: BTreeMap<String, String>,
    body: BufReader<TcpStream>,
}

impl Reply {
    async fn text(mut self) -> String {
        let mut text = String::new();
        within(self.body.read_to_string(&mut text)).await.unwrap();
        text
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        within(self.body.read_line(&mut line)).await.unwrap();
        line
    }
}

/// Sends a request; its reply is read by [`receive`].
async fn send(
    member: &Member,
    (method, path): (&str, &str),
    headers: &BTreeMap<String, String>,
    body: &str,
) -> TcpStream {
    let mut stream = TcpStream::connect((member.address.as_str(), 2379)).await.unwrap();
    let mut request = format!("{method} {path} HTTP/1.0\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");
    request.push_str(body);
    within(stream.write_all(request.as_bytes())).await.unwrap();
    stream
}

async fn receive(stream: TcpStream) -> Reply {
    let mut body = BufReader::new(stream);
    let (mut head, mut line) = (Vec::new(), String::new());
    while within(body.read_line(&mut line)).await.unwrap() > 2 {
        head.push(std::mem::take(&mut line));
    }
    let status = head[0].split(' ').nth(1).unwrap().parse().unwrap();
    let headers = head[1..].iter().map(|line| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_lowercase(), value.trim().to_owned())
    });
    Reply { status, headers: headers.collect(), body }
}

async fn post(member: &Member, path: &str, body: &str) -> Reply {
    receive(send(member, ("POST", path), &BTreeMap::new(), body).await).await
}

/// Returns the JSON of a reply.
async fn asked(member: &Member, path: &str, body: &str) -> Value {
    serde_json::from_str(&post(member, path, body).await.text().await).unwrap()
}

/// Removes the parts of a reply that differ from run to run.
fn without(value: &mut Value, any: &[String]) {
    match value {
        Value::Object(fields) => {
            let of_run = ["cluster_id", "member_id", "raft_term"];
            fields.retain(|name, _| !of_run.contains(&name.as_str()) && !any.contains(name));
            fields.values_mut().for_each(|value| without(value, any));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| without(value, any)),
        _ => {}
    }
}

/// Returns whether a text is an error of Go's own reader of JSON, whose wording this server does not have.
fn is_of_go(text: &str) -> bool {
    text.starts_with("invalid character ")
        || ["proto: unexpected EOF", "proto: syntax error (line 1:1): unexpected token 0"].contains(&text)
}

/// Returns a reply as it is compared: values of JSON in lines, or text.
fn compared(reply: &str, any: &[String]) -> Result<Vec<Value>, String> {
    let values = serde_json::Deserializer::from_str(reply).into_iter::<Value>();
    let mut values: Vec<Value> = values.collect::<Result<_, _>>().map_err(|_| reply.to_owned())?;
    for value in &mut values {
        without(value, any);
        if let Some(Value::String(text)) = value.get_mut("message") {
            // Go's package writes either space, so that no program relies on the wording.
            *text = text.replace('\u{a0}', " ");
        }
    }
    Ok(values)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_are_those_of_etcd() {
    let mut cluster = Cluster::start(1, &["--bcrypt-cost=4"]).await;
    let member = &cluster.members[0];
    let recorded: Fixture = serde_json::from_str(RECORDED).unwrap();
    let (mut different, mut token) = (Vec::new(), String::new());
    for (at, one) in recorded.exchanges.iter().enumerate() {
        let key = |bytes| {
            let key = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, vec![b'k'; bytes]);
            format!("{{\"key\": \"{key}\"}}")
        };
        let body = one.key_bytes.map_or_else(|| one.body.clone(), key);
        let with_token =
            one.headers.iter().map(|(name, value)| (name.clone(), value.replace("{token}", &token)));
        let sent: BTreeMap<String, String> = with_token.collect();
        let stream = send(member, (one.method.as_str(), one.path.as_str()), &sent, &body).await;
        let mut reply = receive(stream).await;
        let (status, mut headers) = (reply.status, std::mem::take(&mut reply.headers));
        headers.retain(|name, _| COMPARED.contains(&name.as_str()));
        let text = match one.lines {
            Some(lines) => {
                let mut text = String::new();
                for _ in 0..lines {
                    text.push_str(&reply.line().await);
                }
                text
            }
            None => reply.text().await,
        };
        if let Ok(Value::Object(fields)) = serde_json::from_str(&text)
            && let Some(given) = fields.get("token").and_then(Value::as_str)
        {
            token = given.to_owned();
        }
        let (mut found, mut expected) = (compared(&text, &one.any), compared(&one.reply, &one.any));
        for reply in [&mut found, &mut expected] {
            let message = reply.as_mut().ok().and_then(|values| values.first_mut()?.get_mut("message"));
            if let (Some(message), true) = (message, one.reply_is_of_go()) {
                *message = Value::Null;
            }
        }
        if (status, &headers, &found) != (one.status, &one.found, &expected) {
            different.push(format!(
                "{at}: {} {} {}\n  etcd: {} {:?} {expected:?}\n  here: {status} {headers:?} {found:?}",
                one.method, one.path, one.body, one.status, one.found
            ));
        }
    }
    assert!(
        different.is_empty(),
        "{} of {}:\n{}",
        different.len(),
        recorded.exchanges.len(),
        different.join("\n")
    );
    cluster.stop().await;
}

impl Exchange {
    fn reply_is_of_go(&self) -> bool {
        let reply: Option<Value> = serde_json::from_str(&self.reply).ok();
        let text = reply.as_ref().and_then(|reply| reply.get("message")?.as_str());
        text.is_some_and(|text| is_of_go(&text.replace('\u{a0}', " ")))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_ends_its_watch() {
    let mut cluster = Cluster::start(1, &[]).await;
    let member = &cluster.members[0];
    let mut watch = post(member, "/v3/watch", "{\"create_request\":{\"key\":\"YQ==\"}}").await;
    assert!(watch.line().await.contains("\"created\":true"));
    // Its body has ended, and it continues.
    asked(member, "/v3/kv/put", "{\"key\":\"YQ==\",\"value\":\"Yg==\"}").await;
    let event: Value = serde_json::from_str(&watch.line().await).unwrap();
    assert_eq!(event["result"]["events"][0]["kv"]["value"], "Yg==");
    drop(watch);
    within(async {
        while !get(&member.address, 2379, "/metrics")
            .await
            .1
            .contains("\netcd_debugging_mvcc_watch_stream_total 0\n")
        {}
    })
    .await;
    cluster.stop().await;
}

/// The key of a campaign or a lock whose client has disconnected would otherwise block all those behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_takes_its_key_out_of_the_queue() {
    let mut cluster = Cluster::start(1, &[]).await;
    let member = &cluster.members[0];
    for lease in [1, 2] {
        asked(member, "/v3/lease/grant", &format!("{{\"ID\":{lease},\"TTL\":600}}")).await;
    }
    let queued = async || {
        asked(member, "/v3/kv/range", "{\"key\":\"YS8=\",\"range_end\":\"YTA=\"}").await["count"].clone()
    };
    for path in ["/v3/lock/lock", "/v3/election/campaign"] {
        let request = |lease| format!("{{\"name\":\"YQ==\",\"lease\":{lease}}}");
        assert_eq!(post(member, path, &request(1)).await.status, 200);
        let waits = send(member, ("POST", path), &BTreeMap::new(), &request(2)).await;
        until(async || queued().await == "2").await;
        drop(waits);
        until(async || queued().await == "1").await;
        asked(member, "/v3/kv/deleterange", "{\"key\":\"YS8=\",\"range_end\":\"YTA=\"}").await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_and_names_are_those_that_flags_allow() {
    let flags = ["--cors=http://page:80", "--host-whitelist=member,::1"];
    let mut cluster = Cluster::start(1, &flags).await;
    let member = &cluster.members[0];
    for (host, origin, status, allowed) in [
        ("member:2379", "http://page:80", 200, Some("http://page:80")),
        ("member", "http://other:80", 200, None),
        ("[::1]:2379", "", 200, None),
        ("other:2379", "http://page:80", 421, None),
        ("127.0.0.1", "", 421, None),
    ] {
        for (method, path) in [("OPTIONS", "/v3/kv/range"), ("GET", "/health"), ("OPTIONS", "/nothing")] {
            let headers = BTreeMap::from([
                ("Host".to_owned(), host.to_owned()),
                ("Origin".to_owned(), origin.to_owned()),
            ]);
            let reply = receive(send(member, (method, path), &headers, "").await).await;
            let origin = reply.headers.get("access-control-allow-origin").map(String::as_str);
            assert_eq!((reply.status, origin), (status, allowed), "{host} {method} {path}");
        }
    }
    cluster.stop().await;
}

/// A range of gigabytes was in memory as a message and as its text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_that_is_too_long_for_json_is_refused() {
    let mut cluster = Cluster::start(1, &[]).await;
    let member = &cluster.members[0];
    let value = "v".repeat(RANGE_BYTES_MAX / 100);
    for key in 0..100 {
        member.put(&format!("a{key}"), &value).await.unwrap();
    }
    // Keys from `a` on.
    let all = |more: &str| format!("{{\"key\":\"YQ==\",\"range_end\":\"AA==\"{more}}}");
    let reply = post(member, "/v3/kv/range", &all("")).await;
    assert_eq!(reply.status, 429);
    let text = reply.text().await;
    assert!(text.contains("bytes, which are not sent as JSON: give a limit"), "{text}");
    for more in [",\"limit\":1", ",\"keys_only\":true"] {
        let reply = post(member, "/v3/kv/range", &all(more)).await;
        assert_eq!(reply.status, 200, "{more}");
    }
    cluster.stop().await;
}

/// Story: the text of each long response was in memory until its client had it, any number of them. They are sent as long ranges are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_text_is_whole() {
    let mut cluster = Cluster::start(1, &[]).await;
    let member = &cluster.members[0];
    let value = "v".repeat(50_000);
    for key in 0..30 {
        member.put(&format!("a{key:02}"), &value).await.unwrap();
    }
    let range = "{\"key\":\"YQ==\",\"range_end\":\"Yg==\"}";
    let reply = post(member, "/v3/kv/range", range).await;
    let length: usize = reply.headers["content-length"].parse().unwrap();
    let text = reply.text().await;
    assert_eq!(text.len(), length);
    let read: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(read["kvs"].as_array().unwrap().len(), 30);
    for put in ["", ",{\"request_put\":{\"key\":\"Yg==\"}}"] {
        let request = format!("{{\"success\":[{{\"request_range\":{range}}}{put}]}}");
        let reply = asked(member, "/v3/kv/txn", &request).await;
        assert_eq!(reply["responses"][0]["response_range"]["kvs"], read["kvs"], "{request}");
    }
    metric_is(&member.address, "forebay_etcd_long_ranges", "0").await;
    cluster.stop().await;
}

/// Story: a request of a stream that was too long had a reply of 200 without a body, where docs have 429. A client took it for a watch
/// that had ended, and asked again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_a_stream_that_is_too_long_is_refused() {
    let mut cluster = Cluster::start(1, &["--max-request-bytes=1024"]).await;
    // Twice the longest message, which has 512 KiB more than a request.
    let bytes_max = 2 * (1024 + (512 << 10));
    for path in ["/v3/watch", "/v3/lease/keepalive"] {
        let reply = post(&cluster.members[0], path, &format!("{{{}", " ".repeat(bytes_max))).await;
        assert_eq!(reply.status, 429, "{path}");
        let text = reply.text().await;
        assert!(text.contains(&format!("the body has more than {bytes_max} bytes")), "{path}: {text}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_may_be_off() {
    let mut cluster = Cluster::start(1, &["--enable-grpc-gateway=false"]).await;
    let reply = post(&cluster.members[0], "/v3/kv/range", "{\"key\":\"YQ==\"}").await;
    assert_eq!((reply.status, reply.text().await.as_str()), (404, "404 page not found\n"));
    cluster.stop().await;
}
