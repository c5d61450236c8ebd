//! Clients that read slowly or not at all, and the numbers of what they do.

use std::time::Duration;

use tonic::Code;
use tonic::transport::Endpoint;

use super::cluster::{Cluster, until, within};
use super::http::get;
use crate::mvcc::View;
use crate::proto::etcdserverpb::kv_client::KvClient;
use crate::proto::etcdserverpb::lease_client::LeaseClient;
use crate::proto::etcdserverpb::maintenance_client::MaintenanceClient;
use crate::proto::etcdserverpb::watch_client::WatchClient;
use crate::proto::etcdserverpb::watch_request::RequestUnion;
use crate::proto::etcdserverpb::{
    LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RangeRequest, SnapshotRequest, WatchCancelRequest,
    WatchCreateRequest, WatchRequest,
};
use crate::proto::peer::command::Change;
use crate::{Config, Server};

/// Waits until a metric has a value.
pub(super) async fn metric_is(address: &str, name: &str, value: &str) {
    let line = format!("\n{name} {value}\n");
    until(async || get(address, 2379, "/metrics").await.1.contains(&line)).await;
}

/// Regression: without them the alert for failed calls, which divides one by the other, never fired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_counted_by_their_codes() {
    let mut cluster = Cluster::start(1, &[]).await;
    let address = cluster.members[0].address.clone();
    let channel = Endpoint::from_shared(format!("http://{address}:2379")).unwrap().connect_lazy();
    let mut keys = KvClient::new(channel);
    within(keys.put(PutRequest { key: "key".into(), ..Default::default() })).await.unwrap();
    within(keys.put(PutRequest::default())).await.unwrap_err();
    let put = "grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"}";
    for (name, value) in [
        ("started_total{", "2"),
        ("handled_total{grpc_code=\"OK\",", "1"),
        ("handled_total{grpc_code=\"InvalidArgument\",", "1"),
        ("handled_total{grpc_code=\"Unavailable\",", "0"),
        ("handling_seconds_count{", "2"),
        ("msg_received_total{", "2"),
        ("msg_sent_total{", "1"),
    ] {
        metric_is(&address, &format!("grpc_server_{name}{put}"), value).await;
    }
    let (requests, stream) = tokio::sync::mpsc::channel(1);
    let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
    let create = WatchCreateRequest { key: "key".into(), ..Default::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    requests.send(create).await.unwrap();
    // A client whose connection breaks with its runtime.
    let client = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let endpoint = Endpoint::from_shared(format!("http://{address}:2379")).unwrap();
    let call = client.spawn(async move { WatchClient::new(endpoint.connect_lazy()).watch(stream).await });
    let events = within(call).await.unwrap().unwrap();
    let watch = "grpc_method=\"Watch\",grpc_service=\"etcdserverpb.Watch\",grpc_type=\"bidi_stream\"}";
    metric_is(&address, &format!("grpc_server_started_total{{{watch}"), "1").await;
    metric_is(&address, &format!("grpc_server_handled_total{{grpc_code=\"Canceled\",{watch}"), "0").await;
    client.shutdown_background();
    metric_is(&address, &format!("grpc_server_handled_total{{grpc_code=\"Canceled\",{watch}"), "1").await;
    drop(events);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_are_counted() {
    let mut cluster = Cluster::start(1, &[]).await;
    let address = cluster.members[0].address.clone();
    let (all, streams) = ("etcd_debugging_mvcc_watcher_total", "etcd_debugging_mvcc_watch_stream_total");
    let (slow, sent) = ("etcd_debugging_mvcc_slow_watcher_total", "etcd_debugging_mvcc_events_total");
    let pending = "etcd_debugging_mvcc_pending_events_total";
    for name in [all, streams, slow, sent, pending] {
        metric_is(&address, name, "0").await;
    }
    let endpoint = Endpoint::from_shared(format!("http://{address}:2379")).unwrap();
    // Little is under way to a client that does not read.
    let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    let (requests, stream) = tokio::sync::mpsc::channel(10);
    let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
    let request = |union| WatchRequest { request_union: Some(union) };
    for watch_id in [1, 2] {
        let key = format!("key{watch_id}").into_bytes();
        let create = WatchCreateRequest { key, watch_id, ..Default::default() };
        requests.send(request(RequestUnion::CreateRequest(create))).await.unwrap();
    }
    let mut watch = WatchClient::new(endpoint.connect_lazy()).max_decoding_message_size(usize::MAX);
    let mut events = watch.watch(stream).await.unwrap().into_inner();
    metric_is(&address, all, "2").await;
    metric_is(&address, streams, "1").await;
    cluster.members[0].put("key1", "value").await.unwrap();
    cluster.members[0].put("other", "value").await.unwrap();
    metric_is(&address, sent, "1").await;
    metric_is(&address, pending, "0").await;
    let cancel = WatchCancelRequest { watch_id: 2 };
    requests.send(request(RequestUnion::CancelRequest(cancel))).await.unwrap();
    metric_is(&address, all, "1").await;
    // Its client reads nothing: it falls behind, and catches up when the client reads again.
    let value = "v".repeat(50_000);
    let is_behind = |body: &str| body.contains(&format!("\n{slow} 1\n"));
    let mut puts = 0;
    while !is_behind(&get(&address, 2379, "/metrics").await.1) {
        assert!(puts < 2_000, "it never falls behind");
        cluster.members[0].put("key1", &value).await.unwrap();
        puts += 1;
    }
    let mut seen = 0;
    while seen < puts + 1 {
        seen += within(events.message()).await.unwrap().unwrap().events.len();
    }
    metric_is(&address, slow, "0").await;
    metric_is(&address, pending, "0").await;
    metric_is(&address, sent, &(puts + 1).to_string()).await;
    drop((events, requests));
    metric_is(&address, all, "0").await;
    metric_is(&address, streams, "0").await;
    cluster.stop().await;
}

/// Once, a client that did not read its snapshot kept the files of that state until its connection ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_is_not_read_ends() {
    let mut cluster = Cluster::new(1, &[]);
    let member = &mut cluster.members[0];
    let patience = Duration::from_millis(50);
    let config = Config { snapshot_patience: patience, ..member.config() };
    member.server = Some(Server::start(config).await.unwrap());
    let address = member.address.clone();
    for number in 0..60 {
        member.put(&format!("key{number}"), &"v".repeat(50_000)).await.unwrap();
    }
    let endpoint = Endpoint::from_shared(format!("http://{address}:2379")).unwrap();
    let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    let mut maintenance = MaintenanceClient::new(endpoint.connect_lazy());
    let mut parts = maintenance.snapshot(SnapshotRequest {}).await.unwrap().into_inner();
    metric_is(&address, "forebay_etcd_snapshots_given_up_total", "1").await;
    // Its parts so far arrive, and then the reason: not an end that looks like that of a whole file.
    let status = loop {
        match within(parts.message()).await {
            Ok(part) => assert!(part.is_some(), "it ended as if it were whole"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(
        status.message().starts_with("the snapshot ended because nothing of it was read for 0.05 s"),
        "{status}"
    );
    cluster.stop().await;
}

/// The leader revokes a lease with more keys than an entry may change, in steps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_with_very_many_keys_ends() {
    let mut cluster = Cluster::start(1, &[]).await;
    let (node, address) = (cluster.members[0].node().clone(), cluster.members[0].address.clone());
    let channel = Endpoint::from_shared(format!("http://{address}:2379")).unwrap().connect_lazy();
    let mut leases = LeaseClient::new(channel);
    let attach = async |lease: i64| {
        for number in 0..100 {
            let key = format!("{number:04}-{}", "k".repeat(400)).into_bytes();
            node.propose(Change::Put(PutRequest { key, lease, ..Default::default() })).await.unwrap();
        }
        View::of(node.store()).await.unwrap().revision()
    };
    let left = async || {
        let view = View::of(node.store()).await.unwrap();
        let all = RangeRequest { key: vec![0], range_end: vec![0], ..Default::default() };
        (view.range(&all).await.unwrap().kvs.len(), view.leases().await.unwrap().len())
    };
    // By a client.
    leases.lease_grant(LeaseGrantRequest { ttl: 600, id: 7 }).await.unwrap();
    let before = attach(7).await;
    let revoked = leases.lease_revoke(LeaseRevokeRequest { id: 7 }).await.unwrap().into_inner();
    assert!(revoked.header.unwrap().revision > before + 1, "it took several steps");
    assert_eq!(left().await, (0, 0));
    let again = leases.lease_revoke(LeaseRevokeRequest { id: 7 }).await.unwrap_err();
    assert_eq!(again.message(), "etcdserver: requested lease not found");
    // By its end.
    leases.lease_grant(LeaseGrantRequest { ttl: 1, id: 8 }).await.unwrap();
    // It may end before all keys are attached: the rest is refused then.
    attach(8).await;
    until(async || left().await == (0, 0)).await;
    cluster.stop().await;
}
