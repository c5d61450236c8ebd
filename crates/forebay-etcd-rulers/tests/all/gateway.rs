//! The JSON gateway compared with that of etcd: random requests, many of them malformed, get the same status and the same JSON.
//!
//! Needs an etcd of 3.7 in `FOREBAY_ETCD_WITH_JSON`: earlier versions write other errors. `FOREBAY_ETCD_BODIES` is the number of
//! requests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use forebay_test::draw::Draw;
use serde_json::Value;

use crate::common::Member;

const BODIES: u64 = 5_000;

/// Calls without an end of their own, and without times, with the fields that they have.
const CALLS: &[(&str, &[&str])] = &[
    (
        "/v3/kv/range",
        &[
            "key",
            "range_end",
            "limit",
            "revision",
            "sort_order",
            "sort_target",
            "serializable",
            "keys_only",
            "count_only",
            "min_mod_revision",
            "maxCreateRevision",
        ],
    ),
    ("/v3/kv/put", &["key", "value", "lease", "prev_kv", "ignore_value", "ignoreLease"]),
    ("/v3beta/kv/deleterange", &["key", "rangeEnd", "prevKv"]),
    ("/v3/kv/txn", &["compare", "success", "failure"]),
    ("/v3/kv/compaction", &["revision", "physical"]),
    ("/v3/kv/lease/revoke", &["ID"]),
    ("/v3/lease/keepalive", &["ID"]),
    ("/v3/lock/unlock", &["key"]),
    ("/v3/election/leader", &["name"]),
    ("/v3/cluster/member/update", &["ID", "peerURLs"]),
    // An alarm that is raised would be all that is seen from then on.
    ("/v3/maintenance/alarm", &["memberID", "alarm"]),
    ("/v3/auth/user/get", &["name"]),
];

/// Values of any field, most of them right for some.
const VALUES: &[&str] = &[
    "\"YQ==\"",
    "\"YQ\"",
    "\"Yg==\"",
    "\"Yw\"",
    "\"AA==\"",
    "\"_w\"",
    "\"/w==\"",
    "\"-_8=\"",
    "\"YQ=\"",
    "\"a b\"",
    "\"\"",
    "0",
    "1",
    "2",
    "3",
    "\"1\"",
    "\"2\"",
    "\"1.0\"",
    "1.0",
    "1e0",
    "20e-1",
    "-1",
    "\"-1\"",
    "1.5",
    "\"x\"",
    "\" 1\"",
    "9223372036854775807",
    "9223372036854775808",
    "\"18446744073709551615\"",
    "1e30",
    "true",
    "false",
    "\"true\"",
    "null",
    "[]",
    "{}",
    "[1]",
    "[\"YQ==\"]",
    "[null]",
    "[{}]",
    "{\"a\":1}",
    "\"ASCEND\"",
    "\"DESCEND\"",
    "\"VALUE\"",
    "\"MOD\"",
    "\"GET\"",
    "\"NOSPACE\"",
    "\"http://127.0.0.1:1\"",
    "\"\\u0059Q==\"",
    "\"\\n\"",
];

fn any<'a>(random: &mut Draw, from: &[&'a str]) -> &'a str {
    from[random.below(from.len() as u64) as usize]
}

/// Returns the text of an object with some of these fields.
fn object(random: &mut Draw, fields: &[&str], depth: u64) -> String {
    let mut members = Vec::new();
    // One in ten names no field, and names may occur twice.
    for _ in 0..random.below(fields.len() as u64 + 2) {
        let name = if random.below(10) == 0 { "nothing" } else { any(random, fields) };
        members.push(format!("\"{name}\":{}", value(random, name, depth)));
    }
    if fields[0] == "key" && random.below(4) > 0 && !members.iter().any(|one| one.starts_with("\"key\"")) {
        members.push(format!("\"key\":\"{}\"", any(random, &["YQ==", "Yg", "Yw=="])));
    }
    format!("{{{}}}", members.join(any(random, &[",", ", ", "\n,\t"])))
}

fn value(random: &mut Draw, name: &str, depth: u64) -> String {
    if depth > 0 && random.below(5) > 0 {
        let fields: &[&str] = match name {
            "compare" => &[
                "key",
                "result",
                "target",
                "version",
                "create_revision",
                "modRevision",
                "value",
                "lease",
                "range_end",
            ],
            "success" | "failure" => &["request_range", "request_put", "requestDeleteRange", "request_txn"],
            "request_range" => CALLS[0].1,
            "request_put" => CALLS[1].1,
            "requestDeleteRange" => CALLS[2].1,
            "request_txn" => CALLS[3].1,
            _ => &[],
        };
        match name {
            "compare" | "success" | "failure" => {
                let items: Vec<String> =
                    (0..random.below(3)).map(|_| object(random, fields, depth - 1)).collect();
                return format!("[{}]", items.join(","));
            }
            _ if !fields.is_empty() => return object(random, fields, depth - 1),
            _ => {}
        }
    }
    let right: &[&str] = match name {
        "key" | "range_end" | "rangeEnd" | "value" | "name" => &["\"YQ==\"", "\"Yg\"", "\"Yw==\"", "\"AA\""],
        "sort_order" => &["\"ASCEND\"", "\"DESCEND\"", "0", "2"],
        "sort_target" | "target" => &["\"VALUE\"", "\"MOD\"", "\"VERSION\"", "2"],
        "result" => &["\"EQUAL\"", "\"NOT_EQUAL\"", "1"],
        "serializable" | "keys_only" | "count_only" | "physical" | "prev_kv" | "prevKv" => &["true", "false"],
        "peerURLs" => &["[\"http://127.0.0.1:1\"]"],
        _ => &["0", "\"1\"", "3", "\"0\""],
    };
    // Else most bodies would have a fault.
    let from = if random.below(6) > 0 { right } else { VALUES };
    any(random, from).to_owned()
}

/// Returns a request: path and body. One body in eight is damaged.
fn request(random: &mut Draw) -> (&'static str, String) {
    let (path, fields) = CALLS[random.below(CALLS.len() as u64) as usize];
    let mut body = object(random, fields, 6);
    if random.below(8) == 0 {
        let at = random.below(body.len() as u64 + 1) as usize;
        match random.below(3) {
            0 => body.truncate(at),
            1 => {
                body.insert_str(at, any(random, &["{", "}", "]", ",", ":", "\"", "\\", "x", "1", " ", "\n"]))
            }
            _ => body.push_str(any(random, &[" ", "}", "garbage", "{}"])),
        }
    }
    (path, body)
}

fn post(member: &Member, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(member.endpoint()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, text) = reply.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), text.to_owned())
}

/// Removes parts that differ by nature: ids, the term, and the wording of Go's reader of JSON.
fn compared(text: &str) -> Vec<Value> {
    fn clean(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                let by_nature = ["cluster_id", "member_id", "raft_term", "members", "TTL"];
                fields.retain(|name, _| !by_nature.contains(&name.as_str()));
                if let Some(Value::String(text)) = fields.get_mut("message") {
                    *text = text.replace('\u{a0}', " ");
                    if !text.contains("etcdserver")
                        && !text.starts_with("proto: (")
                        && !text.starts_with("proto: syntax error")
                    {
                        text.clear();
                    }
                }
                fields.values_mut().for_each(clean);
            }
            Value::Array(values) => values.iter_mut().for_each(clean),
            _ => {}
        }
    }
    let values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut values: Vec<Value> = values.map(|value| value.unwrap_or_else(|_| text.into())).collect();
    values.iter_mut().for_each(clean);
    values
}

#[test]
fn random_bodies_get_the_replies_of_etcd() {
    let Some(etcd) = std::env::var_os("FOREBAY_ETCD_WITH_JSON").map(PathBuf::from) else {
        eprintln!("SKIPPED: FOREBAY_ETCD_WITH_JSON names no etcd of 3.7");
        return;
    };
    let count = std::env::var("FOREBAY_ETCD_BODIES").map_or(BODIES, |count| count.parse().unwrap());
    let (own, etcds) = (Member::own(&[]), Member::alone(&etcd, &[]));
    let mut random = Draw::new(7);
    let mut different = Vec::new();
    for number in 0..count {
        let (path, body) = request(&mut random);
        let (here, there) = (post(&own, path, &body), post(&etcds, path, &body));
        if (here.0, compared(&here.1)) != (there.0, compared(&there.1)) {
            different.push(format!("{number}: {path} {body}\n  etcd: {there:?}\n  here: {here:?}"));
            if different.len() == 20 {
                break;
            }
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}
