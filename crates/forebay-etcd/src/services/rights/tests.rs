use std::collections::BTreeSet;

use tonic::codegen::http::HeaderValue;

use super::*;

/// The paths of all calls that the messages' files have.
fn calls() -> BTreeSet<String> {
    let files = [
        include_str!("../../../proto/rpc.proto"),
        include_str!("../../../proto/lock.proto"),
        include_str!("../../../proto/election.proto"),
        include_str!("../../../proto/health.proto"),
    ];
    let mut calls = BTreeSet::new();
    for file in files {
        let (mut package, mut service) = ("", "");
        for line in file.lines() {
            let mut words = line.split([' ', ';', '(', '{']).filter(|word| !word.is_empty());
            match (words.next(), words.next()) {
                (Some("package"), Some(name)) => package = name,
                (Some("service"), Some(name)) => service = name,
                (Some("rpc"), Some(name)) => drop(calls.insert(format!("/{package}.{service}/{name}"))),
                _ => {}
            }
        }
    }
    calls
}

/// Advisory GHSA-q8m4-xhhv-38mg: calls about members, alarms, leases and compactions were open to everybody, because nothing looked
/// at those that were forgotten.
#[test]
fn every_call_has_a_rule() {
    let rules: BTreeSet<String> = RULES.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(rules.len(), RULES.len(), "one rule each");
    assert_eq!(calls(), rules);
    assert!(rules.len() > 40, "{rules:?}");
    let is_open = |rule: &Rule| matches!(rule, Rule::Open | Rule::Anyone);
    let open: Vec<_> = RULES.iter().filter(|(_, rule)| is_open(rule)).map(|(path, _)| *path).collect();
    let expected = [
        "/etcdserverpb.Auth/AuthStatus",
        "/etcdserverpb.Auth/Authenticate",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/List",
        "/grpc.health.v1.Health/Watch",
    ];
    assert_eq!(open, expected);
}

#[test]
fn a_certificate_is_no_user_over_a_gateway() {
    let (mut headers, mut extensions) = (HeaderMap::new(), Extensions::new());
    let of = |headers: &HeaderMap, extensions: &Extensions| {
        let Marks { token, common_name } = Marks::of(headers, extensions);
        (token.map(str::to_owned), common_name.map(str::to_owned))
    };
    assert_eq!(of(&headers, &extensions), (None, None));
    extensions.insert(Caller { common_name: Some("user".into()) });
    let name = Some("user".to_owned());
    assert_eq!(of(&headers, &extensions), (None, name.clone()));
    headers.insert("authorization", HeaderValue::from_static("Bearer web"));
    assert_eq!(of(&headers, &extensions), (Some("web".to_owned()), name.clone()));
    headers.insert("token", HeaderValue::from_static("grpc"));
    assert_eq!(of(&headers, &extensions), (Some("grpc".to_owned()), name));
    headers.insert("grpcgateway-accept", HeaderValue::from_static("application/json"));
    assert_eq!(of(&headers, &extensions), (Some("grpc".to_owned()), None));
    headers.insert("token", HeaderValue::from_bytes(b"\xff").unwrap());
    assert_eq!(of(&headers, &extensions).0.as_deref(), Some(""), "it is no good token, and not none");
}
