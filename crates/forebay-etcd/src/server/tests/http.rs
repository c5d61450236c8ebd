//! HTTP beside gRPC.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::cluster::{Cluster, within};

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
        ("/version", "{\"etcdserver\":\"3.5.21\",\"etcdcluster\":\"3.5.0\"}"),
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_without_a_majority_is_not_healthy_and_still_alive() {
    let mut cluster = Cluster::start(2, &[]).await;
    // The one that ends hands its lead over. The other led for ever once, without a majority, if no reply to its first
    // appends had come: a leader that had never been acknowledged passed for one that was.
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_text_that_prometheus_reads() {
    let mut cluster = Cluster::new(1, &[]);
    let metrics_url = format!("http://{}:2381", cluster.members[0].address);
    cluster.members[0].arguments.push(format!("--listen-metrics-urls={metrics_url}"));
    cluster.members[0].start().await;
    within(cluster.members[0].server.as_ref().unwrap().ready()).await;
    cluster.members[0].put("key", "value").await.unwrap();
    let (status, body) = get(&cluster.members[0].address, 2381, "/metrics").await;
    assert_eq!(status, 200);
    let value = |name: &str| -> f64 {
        let line = body.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {body}")).rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(value("etcd_server_has_leader"), 1.0);
    assert_eq!(value("etcd_server_is_leader"), 1.0);
    assert_eq!(value("etcd_server_proposals_pending"), 0.0);
    assert!(value("etcd_server_proposals_applied_total") >= 2.0);
    assert_eq!(value("etcd_debugging_mvcc_current_revision"), 2.0);
    assert!(value("etcd_disk_wal_fsync_duration_seconds_count") >= 2.0);
    assert!(value("etcd_mvcc_db_total_size_in_bytes") > 0.0);
    // Each metric is described before its first value.
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split([' ', '{']).next().unwrap();
        let name = name.strip_suffix("_count").or(name.strip_suffix("_sum")).unwrap_or(name);
        assert!(body.contains(&format!("# TYPE {name} ")), "{line}");
    }
    cluster.stop().await;
}
