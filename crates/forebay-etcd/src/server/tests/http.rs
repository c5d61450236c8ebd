//! HTTP in addition to gRPC.

use forebay_test::exposition::{family, prometheus};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::clients::metric_is;
use super::cluster::{Cluster, within};
use crate::mvcc::View;
use crate::proto::etcdserverpb::PutRequest;
use crate::proto::etcdserverpb::kv_client::KvClient;
use crate::version::{CLUSTER_MINOR, CLUSTER_VERSION, ETCD_VERSION};

/// Asks for a page by HTTP/1, and returns status and body.
pub(super) async fn ask(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    path: &str,
) -> std::io::Result<(u16, String)> {
    let mut stream = stream;
    let request = format!("GET {path} HTTP/1.1\r\nHost: member\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut reply = Vec::new();
    within(stream.read_to_end(&mut reply)).await?;
    let reply = String::from_utf8_lossy(&reply).into_owned();
    let (head, body) = reply.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or(std::io::ErrorKind::InvalidData)?, body.to_owned()))
}

pub(super) async fn get(address: &str, port: u16, path: &str) -> (u16, String) {
    ask(TcpStream::connect((address, port)).await.unwrap(), path).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_and_version_are_as_in_etcd() {
    let mut cluster = Cluster::start(1, &[]).await;
    let address = cluster.members[0].address.clone();
    for (path, expected) in [
        ("/health", "{\"health\":\"true\",\"reason\":\"\"}"),
        ("/health?serializable=true", "{\"health\":\"true\",\"reason\":\"\"}"),
        ("/version", "{\"etcdserver\":\"3.7.3\",\"etcdcluster\":\"3.7.0\",\"storage\":\"3.7.0\"}"),
        ("/livez", "ok\n"),
        ("/readyz", "ok\n"),
        ("/readyz/linearizable_read?verbose", "[+]linearizable_read ok\nok\n"),
        ("/livez?verbose", "[+]serializable_read ok\nok\n"),
    ] {
        assert_eq!(get(&address, 2379, path).await, (200, expected.to_owned()), "{path}");
    }
    assert_eq!(get(&address, 2379, "/readyz/nothing").await.0, 404);
    // Members are asked by the same means.
    assert_eq!(get(&address, 2380, "/version").await.0, 200);
    cluster.stop().await;
}

/// A POST of JSON to any path got 200 and an empty body: its status was in headers that only gRPC has, and a caller mistook it for
/// success.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_grpc_is_not_found() {
    let mut cluster = Cluster::start(1, &[]).await;
    let address = (cluster.members[0].address.as_str(), 2379);
    for path in ["/v2/keys/key", "/etcdserverpb.KV/Range", "/etcdserverpb.KV/None", "/none"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: member\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: 2\r\n\r\n{{}}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = String::new();
        within(stream.read_to_string(&mut reply)).await.unwrap();
        assert!(reply.starts_with("HTTP/1.1 404 "), "{path}: {reply}");
        assert!(reply.contains("404 page not found\n"), "{path}: {reply}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_not_reached_shows_in_metrics() {
    let mut cluster = Cluster::start(2, &[]).await;
    let [own, other] = [0, 1].map(|at| cluster.members[at].node().id());
    let address = cluster.members[0].address.clone();
    let active_of = |local: u64, remote: u64| {
        format!("etcd_network_active_peers{{Local=\"{local:x}\",Remote=\"{remote:x}\"}}")
    };
    let active = active_of(own, other);
    // Story: a follower whose last vote had failed, as the other was not up yet, called its leader lost for as long as it followed.
    cluster.members[0].node().lose_member(other);
    cluster.members[1].node().lose_member(own);
    metric_is(&address, &active, "1").await;
    metric_is(&cluster.members[1].address, &active_of(other, own), "1").await;
    metric_is(&address, &active.replace("active", "known"), "1").await;
    // Whichever member leads, both have sent something to the other.
    let families = prometheus(&get(&address, 2379, "/metrics").await.1).unwrap();
    for (name, label) in [("sent", "To"), ("received", "From")] {
        let bytes = family(&families, &format!("etcd_network_peer_{name}_bytes_total"));
        assert!(bytes.value(&[(label, &format!("{other:x}"))]) > 0.0, "{:?}", bytes.samples);
    }
    // The one that leads sends heartbeats.
    let name = "etcd_network_peer_round_trip_time_seconds";
    let addresses = [0, 1].map(|at| cluster.members[at].address.clone());
    within(async {
        for at in (0..2).cycle() {
            let families = prometheus(&get(&addresses[at], 2379, "/metrics").await.1).unwrap();
            let mut times =
                families.iter().filter(|family| family.name == name).flat_map(|family| &family.samples);
            if times.any(|sample| sample.name.ends_with("_count") && sample.value > 0.0) {
                break;
            }
        }
    })
    .await;
    cluster.members[1].stop().await;
    metric_is(&address, &active, "0").await;
    let families = prometheus(&get(&address, 2379, "/metrics").await.1).unwrap();
    let failures = family(&families, "etcd_network_peer_sent_failures_total");
    assert!(failures.value(&[("To", &format!("{other:x}"))]) > 0.0, "{:?}", failures.samples);
    let losses = family(&families, "etcd_network_disconnected_peers_total");
    assert!(losses.value(&[("Remote", &format!("{other:x}"))]) > 0.0, "{:?}", losses.samples);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_without_a_majority_is_not_healthy_and_still_alive() {
    let mut cluster = Cluster::start(2, &[]).await;
    // The member that ends hands its lead over. Once, the other led forever without a majority, if its first appends had no reply:
    // a leader that was never acknowledged counted as acknowledged.
    let (ends, stays) = match cluster.leader().await {
        0 => (0, 1),
        _ => (1, 0),
    };
    cluster.members[ends].stop().await;
    let mut leadership = cluster.members[stays].node().leadership();
    within(leadership.wait_for(|now| now.leader.is_none())).await.unwrap();
    let address = cluster.members[stays].address.clone();
    let expected = "{\"health\":\"false\",\"reason\":\"RAFT NO LEADER\"}".to_owned();
    assert_eq!(get(&address, 2379, "/health").await, (503, expected));
    assert_eq!(get(&address, 2379, "/health?serializable=true").await.0, 200);
    assert_eq!(get(&address, 2379, "/livez").await.0, 200);
    let (status, body) = get(&address, 2379, "/readyz").await;
    assert!(status == 503 && body.contains("[-]linearizable_read failed"), "{body}");
    cluster.stop().await;
}

/// Names and kinds in etcd 3.7.3 of all metrics with names of etcd.
const OF_ETCD: &[&str] = &[
    "etcd_cluster_version gauge",
    "etcd_debugging_auth_revision gauge",
    "etcd_debugging_lease_granted_total counter",
    "etcd_debugging_lease_renewed_total counter",
    "etcd_debugging_lease_revoked_total counter",
    "etcd_debugging_lease_ttl_total histogram",
    "etcd_debugging_mvcc_compact_revision gauge",
    "etcd_debugging_mvcc_current_revision gauge",
    "etcd_debugging_mvcc_db_compaction_keys_total counter",
    "etcd_debugging_mvcc_db_compaction_last gauge",
    "etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds histogram",
    "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds histogram",
    "etcd_debugging_mvcc_events_total counter",
    "etcd_debugging_mvcc_pending_events_total gauge",
    "etcd_debugging_mvcc_slow_watcher_total gauge",
    "etcd_debugging_mvcc_total_put_size_in_bytes gauge",
    "etcd_debugging_mvcc_watch_stream_total gauge",
    "etcd_debugging_mvcc_watcher_total gauge",
    "etcd_debugging_server_lease_expired_total counter",
    "etcd_disk_backend_commit_duration_seconds histogram",
    "etcd_disk_backend_snapshot_duration_seconds histogram",
    "etcd_disk_wal_fsync_duration_seconds histogram",
    "etcd_disk_wal_write_bytes_total gauge",
    "etcd_mvcc_db_total_size_in_bytes gauge",
    "etcd_mvcc_db_total_size_in_use_in_bytes gauge",
    "etcd_mvcc_delete_total counter",
    "etcd_mvcc_hash_duration_seconds histogram",
    "etcd_mvcc_hash_rev_duration_seconds histogram",
    "etcd_mvcc_put_total counter",
    "etcd_mvcc_range_total counter",
    "etcd_mvcc_txn_total counter",
    "etcd_network_client_grpc_received_bytes_total counter",
    "etcd_network_client_grpc_sent_bytes_total counter",
    "etcd_network_known_peers gauge",
    "etcd_server_apply_duration_seconds histogram",
    "etcd_server_feature_enabled gauge",
    "etcd_server_has_leader gauge",
    "etcd_server_health_failures counter",
    "etcd_server_health_success counter",
    "etcd_server_heartbeat_send_failures_total counter",
    "etcd_server_id gauge",
    "etcd_server_is_leader gauge",
    "etcd_server_is_learner gauge",
    "etcd_server_leader_changes_seen_total counter",
    "etcd_server_learner_promote_successes counter",
    "etcd_server_proposals_applied_total gauge",
    "etcd_server_proposals_committed_total gauge",
    "etcd_server_proposals_failed_total counter",
    "etcd_server_proposals_pending gauge",
    "etcd_server_quota_backend_bytes gauge",
    "etcd_server_range_duration_seconds histogram",
    "etcd_server_read_indexes_failed_total counter",
    "etcd_server_request_duration_seconds histogram",
    "etcd_server_slow_apply_total counter",
    "etcd_server_slow_read_indexes_total counter",
    "etcd_server_snapshot_apply_in_progress_total gauge",
    "etcd_server_version gauge",
    "etcd_snap_db_save_total_duration_seconds histogram",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_text_that_prometheus_reads() {
    let mut cluster = Cluster::new(1, &[]);
    let metrics_url = format!("http://{}:2381", cluster.members[0].address);
    cluster.members[0].arguments.push(format!("--listen-metrics-urls={metrics_url}"));
    cluster.members[0].start().await;
    within(cluster.members[0].server.as_ref().unwrap().ready()).await;
    cluster.members[0].has_latest_format().await;
    cluster.members[0].put("key", "value").await.unwrap();
    let (status, body) = get(&cluster.members[0].address, 2381, "/metrics").await;
    assert_eq!(status, 200);
    let families = prometheus(&body).unwrap();
    let value = |name: &str| family(&families, name).value(&[]);
    assert_eq!(value("etcd_server_has_leader"), 1.0);
    assert_eq!(value("etcd_server_is_leader"), 1.0);
    assert_eq!(value("etcd_server_proposals_pending"), 0.0);
    assert!(value("etcd_server_proposals_applied_total") >= 2.0);
    assert_eq!(value("etcd_debugging_mvcc_current_revision"), 2.0);
    assert_eq!(
        (value("etcd_mvcc_put_total"), value("etcd_debugging_mvcc_total_put_size_in_bytes")),
        (1.0, 8.0)
    );
    // A rule for alerts of etcd's divides one by the other: the size was that of files, with which nothing is compared.
    let sizes = ["etcd_mvcc_db_total_size_in_bytes", "etcd_mvcc_db_total_size_in_use_in_bytes"].map(value);
    let used = View::of(cluster.members[0].node().store()).await.unwrap().used_bytes() as f64;
    assert_eq!((sizes, value("etcd_server_quota_backend_bytes")), ([used; 2], (2_u64 << 30) as f64));
    family(&families, "etcd_server_version").value(&[("server_version", ETCD_VERSION)]);
    let flushes = &family(&families, "etcd_disk_wal_fsync_duration_seconds").samples;
    assert!(
        flushes.iter().any(|sample| sample.name.ends_with("_count") && sample.value >= 2.0),
        "{flushes:?}"
    );
    let bounds: Vec<_> = flushes.iter().filter_map(|sample| sample.labels.get("le")).collect();
    assert_eq!((bounds.len(), bounds[0].as_str(), bounds[13].as_str()), (15, "0.001", "8.192"));
    family(&families, "etcd_cluster_version").value(&[("cluster_version", CLUSTER_MINOR)]);
    assert!(CLUSTER_VERSION.starts_with(CLUSTER_MINOR));
    for name in
        ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds"]
    {
        assert!(value(name) >= 0.0, "{name}");
    }
    assert!(value("process_start_time_seconds") > 1e9);
    let own: Vec<_> = families.iter().map(|family| format!("{} {}", family.name, family.kind)).collect();
    let own: Vec<_> = own.iter().map(String::as_str).filter(|name| name.starts_with("etcd_")).collect();
    for name in OF_ETCD {
        assert!(own.contains(name), "{name} is missing: {own:?}");
    }
    assert_eq!(own.len(), OF_ETCD.len(), "a name that etcd does not print: {own:?}");
    cluster.stop().await;
}

/// Clients of this machine need no port, as with etcd.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_are_served_by_a_socket_of_the_file_system() {
    let (mut cluster, mut other) = (Cluster::new(1, &[]), Cluster::new(1, &[]));
    let path = cluster.dir.path().join("clients.sock");
    let url = format!("unix://{}", path.display());
    for member in [&mut cluster.members[0], &mut other.members[0]] {
        let flags = ["listen-client-urls", "advertise-client-urls"].map(|flag| format!("--{flag}={url}"));
        member.arguments.extend(flags);
    }
    // A server that was killed has left it.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    cluster.members[0].start().await;
    within(cluster.members[0].server.as_ref().unwrap().ready()).await;
    let mut client = KvClient::connect(url).await.unwrap();
    let put = PutRequest { key: "key".into(), value: "value".into(), ..PutRequest::default() };
    within(client.put(put)).await.unwrap();
    assert_eq!(cluster.members[0].get("key").await.as_deref(), Some("value"));
    let page = ask(UnixStream::connect(&path).await.unwrap(), "/health").await.unwrap();
    assert_eq!(page, (200, "{\"health\":\"true\",\"reason\":\"\"}".to_owned()));
    let refused = other.members[0].try_start().await.unwrap_err().to_string();
    assert!(refused.contains("the file is in use"), "{refused}");
    cluster.stop().await;
    assert!(!path.exists());
    // Another file stays.
    std::fs::write(&path, "mine").unwrap();
    let refused = other.members[0].try_start().await.unwrap_err().to_string();
    assert!(refused.contains("the file is in use"), "{refused}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
}
