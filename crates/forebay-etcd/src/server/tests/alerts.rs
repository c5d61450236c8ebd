//! Shows: the alerts of etcd-mixin fire for a member of this server. How: its condition is brought about, and the samples that its
//! expression selects are there, with values for which it is true.

use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_test::exposition::{Family, Sample, prometheus};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

use super::clients::metric_is;
use super::cluster::{Cluster, Member, until, within};
use super::http::get;
use crate::http::{PageSettings, metrics_page};
use crate::mvcc::View;
use crate::proto::etcdserverpb::kv_client::KvClient;
use crate::proto::etcdserverpb::lease_client::LeaseClient;
use crate::proto::etcdserverpb::maintenance_client::MaintenanceClient;
use crate::proto::etcdserverpb::request_op::Request as Op;
use crate::proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, HashKvRequest, LeaseGrantRequest, PutRequest, RangeRequest,
    RequestOp, TxnRequest,
};
use crate::proto::v3lockpb::lock_client::LockClient;
use crate::proto::v3lockpb::{LockRequest, UnlockRequest};
use crate::services::{CallCounts, Followers};

/// The samples that the alerts select, with the labels that they name. Those of `up`, which etcdInsufficientMembers has alone, are
/// Prometheus' own.
const ALERTS: &[(&str, &str, &[&str])] = &[
    ("etcdMembersDown", "etcd_network_peer_sent_failures_total", &["To"]),
    ("etcdNoLeader", "etcd_server_has_leader", &[]),
    ("etcdHighNumberOfLeaderChanges", "etcd_server_leader_changes_seen_total", &[]),
    (
        "etcdHighNumberOfFailedGRPCRequests",
        "grpc_server_handled_total",
        &["grpc_code", "grpc_method", "grpc_service", "grpc_type"],
    ),
    ("etcdGRPCRequestsSlow", "grpc_server_handling_seconds_bucket", &["grpc_method", "grpc_type", "le"]),
    ("etcdMemberCommunicationSlow", "etcd_network_peer_round_trip_time_seconds_bucket", &["To", "le"]),
    ("etcdHighNumberOfFailedProposals", "etcd_server_proposals_failed_total", &[]),
    ("etcdHighFsyncDurations", "etcd_disk_wal_fsync_duration_seconds_bucket", &["le"]),
    ("etcdHighCommitDurations", "etcd_disk_backend_commit_duration_seconds_bucket", &["le"]),
    ("etcdDatabaseQuotaLowSpace", "etcd_mvcc_db_total_size_in_bytes", &[]),
    ("etcdDatabaseQuotaLowSpace", "etcd_server_quota_backend_bytes", &[]),
    ("etcdExcessiveDatabaseGrowth", "etcd_mvcc_db_total_size_in_bytes", &[]),
    ("etcdDatabaseHighFragmentationRatio", "etcd_mvcc_db_total_size_in_use_in_bytes", &[]),
];

async fn figures(member: &Member) -> Vec<Family> {
    prometheus(&get(&member.address, 2379, "/metrics").await.1).unwrap()
}

fn samples<'f>(families: &'f [Family], name: &'f str) -> impl Iterator<Item = &'f Sample> {
    families.iter().flat_map(|family| &family.samples).filter(move |sample| sample.name == name)
}

/// Returns the sum of the samples with at least these labels.
fn sum(families: &[Family], name: &str, labels: &[(&str, &str)]) -> f64 {
    let has = |sample: &&Sample| {
        labels.iter().all(|(label, value)| sample.labels.get(*label).is_some_and(|known| known == value))
    };
    let found: Vec<f64> = samples(families, name).filter(has).map(|sample| sample.value).collect();
    assert!(!found.is_empty(), "{name} {labels:?}");
    found.iter().sum()
}

fn channel(member: &Member) -> Channel {
    Endpoint::from_shared(format!("http://{}:2379", member.address)).unwrap().connect_lazy()
}

fn put(value_bytes: usize) -> PutRequest {
    PutRequest { key: "key".into(), value: vec![b'v'; value_bytes], ..PutRequest::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_fire_without_a_majority() {
    let mut cluster = Cluster::start(2, &["--max-request-bytes=2000"]).await;
    // Four changes of the leader in 15 minutes.
    within(async {
        loop {
            let leader = cluster.leader().await;
            let counts = |at: usize| cluster.members[at].node().counts();
            if (0..2).all(|at| counts(at).leader_changes.load(Ordering::Relaxed) >= 4) {
                break;
            }
            cluster.members[leader].node().hand_over_lead(0).await;
            tokio::task::yield_now().await;
        }
    })
    .await;
    let (ends, stays) = cluster.leader_and_follower().await;
    cluster.members[stays].put("key", &"v".repeat(3000)).await.unwrap_err();
    cluster.members[ends].stop().await;
    let member = &cluster.members[stays];
    let mut leadership = member.node().leadership();
    within(leadership.wait_for(|now| now.leader.is_none())).await.unwrap();
    // It is refused before its service sees it, and was not counted.
    let mut call = Request::new(put(1));
    call.metadata_mut().insert("hasleader", "true".parse().unwrap());
    let refused = within(KvClient::new(channel(member)).put(call)).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::Unavailable, "etcdserver: no leader"));
    let failures = "etcd_network_peer_sent_failures_total";
    until(async || sum(&figures(member).await, failures, &[]) > 0.0).await;
    let families = figures(member).await;
    for (alert, name, labels) in ALERTS {
        let has = |sample: &Sample| labels.iter().all(|label| sample.labels.contains_key(*label));
        assert!(samples(&families, name).any(has), "{alert}: {name} {labels:?}");
    }
    let value = |name: &str| sum(&families, name, &[]);
    assert_eq!(value("etcd_server_has_leader"), 0.0);
    assert!(value("etcd_server_leader_changes_seen_total") >= 4.0);
    // More than 5 a second, once 4,501 of them are within 15 minutes.
    assert!(value("etcd_server_proposals_failed_total") >= 1.0);
    // 100 * 1 / 1 is more than 5.
    let puts = [("grpc_method", "Put"), ("grpc_service", "etcdserverpb.KV")];
    let unavailable = [&puts[..], &[("grpc_code", "Unavailable")]].concat();
    assert_eq!(sum(&families, "grpc_server_handled_total", &unavailable), 1.0);
    assert_eq!(sum(&families, "grpc_server_handled_total", &puts), 1.0);
    // A 99th percentile above 0.15 s is that of a bucket which starts before it.
    for bound in ["0.1024", "0.2048"] {
        sum(&families, "etcd_network_peer_round_trip_time_seconds_bucket", &[("le", bound)]);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_fire_for_what_is_slow_or_nearly_full() {
    let mut cluster = Cluster::start(1, &["--quota-backend-bytes=20000"]).await;
    let member = &cluster.members[0];
    let mut locks = LockClient::new(channel(member));
    let lock = || LockRequest { name: "lock".into(), lease: 0 };
    let first = within(locks.lock(lock())).await.unwrap().into_inner();
    let (mut second, request) = (locks.clone(), lock());
    let waiting = tokio::spawn(async move { second.lock(request).await });
    let kind = "grpc_method=\"Lock\",grpc_service=\"v3lockpb.Lock\",grpc_type=\"unary\"";
    metric_is(&member.address, &format!("grpc_server_started_total{{{kind}}}"), "2").await;
    // The call lasts at least as long.
    tokio::time::sleep(Duration::from_millis(300)).await;
    within(locks.unlock(UnlockRequest { key: first.key })).await.unwrap();
    within(waiting).await.unwrap().unwrap();
    let families = figures(member).await;
    let slow = [("grpc_method", "Lock"), ("grpc_type", "unary")];
    assert_eq!(sum(&families, "grpc_server_handling_seconds_count", &slow), 2.0);
    // One call of two lasted more than 0.25 s, so that their 99th percentile is above 0.15 s.
    let up_to = [&slow[..], &[("le", "0.25")]].concat();
    assert!(sum(&families, "grpc_server_handling_seconds_bucket", &up_to) <= 1.0);

    let used = async || View::of(member.node().store()).await.unwrap().used_bytes();
    while used().await * 100 <= 20_000 * 95 {
        member.put("key", &"v".repeat(100)).await.unwrap();
    }
    let refused = within(KvClient::new(channel(member)).put(put(1_000))).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let before = sum(&families, "etcd_mvcc_db_total_size_in_bytes", &[]);
    let families = figures(member).await;
    let sizes = ["etcd_mvcc_db_total_size_in_bytes", "etcd_server_quota_backend_bytes"];
    let [size, quota] = sizes.map(|name| sum(&families, name, &[]));
    assert!(size / quota * 100.0 > 95.0, "{size} of {quota}");
    // It grew by this within a minute, and exceeds the quota in four hours.
    assert!(size + (size - before) * 240.0 > quota, "{before}, then {size}");
    let exhausted = [("grpc_code", "ResourceExhausted"), ("grpc_method", "Put")];
    assert_eq!(sum(&families, "grpc_server_handled_total", &exhausted), 1.0);

    // A store that is behind its disk needs 0.3 s for the changes of each entry.
    let followers = Followers::default();
    for _ in 0..100 {
        followers.counts.commits.observe_time(Duration::from_millis(300));
    }
    let features = [("CompactHashCheck", true), ("InitialCorruptCheck", false)];
    let settings = PageSettings { quota_bytes: 0, features };
    let page = metrics_page(member.node(), &followers, &CallCounts::default(), settings).await;
    let families = prometheus(&page.finish()).unwrap();
    // All are between these bounds: so is the 99th percentile, which is above 0.25 s.
    for (bound, count) in [("0.256", 0.0), ("0.512", 100.0), ("+Inf", 100.0)] {
        let name = "etcd_disk_backend_commit_duration_seconds_bucket";
        assert_eq!(sum(&families, name, &[("le", bound)]), count, "up to {bound}");
    }
    // Those for flushes of 0.5 s and of 1 s have such bounds too.
    for bound in ["0.512", "1.024"] {
        sum(&families, "etcd_disk_wal_fsync_duration_seconds_bucket", &[("le", bound)]);
    }
    for (feature, is_on) in features {
        let labels = [("name", feature), ("stage", "ALPHA")];
        assert_eq!(sum(&families, "etcd_server_feature_enabled", &labels), f64::from(u8::from(is_on)));
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_and_reads_are_counted_by_their_kinds() {
    let mut cluster = Cluster::start(1, &[]).await;
    let member = &cluster.members[0];
    let mut keys = KvClient::new(channel(member));
    let range = RangeRequest { key: "key".into(), ..RangeRequest::default() };
    let read = || RequestOp { request: Some(Op::RequestRange(range.clone())) };
    let write = RequestOp { request: Some(Op::RequestPut(put(5))) };
    within(keys.put(put(5))).await.unwrap();
    within(keys.put(put(5))).await.unwrap();
    within(keys.put(PutRequest { lease: 99, ..put(5) })).await.unwrap_err();
    within(keys.range(range.clone())).await.unwrap();
    within(keys.delete_range(DeleteRangeRequest { key: "none".into(), ..Default::default() })).await.unwrap();
    for success in [vec![write, read()], vec![read(), read()], vec![read()]] {
        within(keys.txn(TxnRequest { success, ..TxnRequest::default() })).await.unwrap();
    }
    // Three values of the key have the revisions 2 to 4.
    within(keys.compact(CompactionRequest { revision: 4, physical: true })).await.unwrap();
    let grant = LeaseGrantRequest { ttl: 600, id: 7 };
    within(LeaseClient::new(channel(member)).lease_grant(grant)).await.unwrap();
    let hash = HashKvRequest { revision: 0 };
    within(MaintenanceClient::new(channel(member)).hash_kv(hash)).await.unwrap();
    let families = figures(member).await;
    for (name, value) in [
        ("etcd_mvcc_put_total", 3.0),
        ("etcd_debugging_mvcc_total_put_size_in_bytes", 24.0),
        ("etcd_mvcc_range_total", 5.0),
        ("etcd_mvcc_delete_total", 1.0),
        // Transactions with one operation do not count, as in etcd.
        ("etcd_mvcc_txn_total", 2.0),
        ("etcd_debugging_mvcc_db_compaction_keys_total", 1.0),
        ("etcd_debugging_mvcc_db_compaction_total_duration_milliseconds_count", 1.0),
        ("etcd_debugging_lease_ttl_total_sum", 600.0),
        ("etcd_mvcc_hash_rev_duration_seconds_count", 1.0),
        ("etcd_mvcc_hash_duration_seconds_count", 0.0),
    ] {
        assert_eq!(sum(&families, name, &[]), value, "{name}");
    }
    assert!(sum(&families, "etcd_debugging_mvcc_db_compaction_last", &[]) > 1e9);
    for (bound, count) in [("512.0", 0.0), ("1024.0", 1.0)] {
        assert_eq!(sum(&families, "etcd_debugging_lease_ttl_total_bucket", &[("le", bound)]), count);
    }
    let (yes, no) = (("success", "true"), ("success", "false"));
    let kinds = [("DeleteRange", 1.0), ("Txn", 1.0), ("Compaction", 1.0), ("LeaseGrant", 1.0)];
    for (kind, count) in kinds.into_iter().chain([("Put", 2.0)]) {
        let labels = [("op", kind), yes, ("version", "v3")];
        assert_eq!(sum(&families, "etcd_server_apply_duration_seconds_count", &labels), count, "{kind}");
    }
    let refused = [("op", "Put"), no, ("version", "v3")];
    assert_eq!(sum(&families, "etcd_server_apply_duration_seconds_count", &refused), 1.0);
    // The refused one is a request that has its outcome.
    for (kind, count) in kinds.into_iter().chain([("Put", 3.0), ("Range", 1.0), ("ReadonlyTxn", 2.0)]) {
        let labels = [("type", kind), yes];
        assert_eq!(sum(&families, "etcd_server_request_duration_seconds_count", &labels), count, "{kind}");
    }
    assert_eq!(sum(&families, "etcd_server_range_duration_seconds_count", &[("success", "true")]), 1.0);
    cluster.stop().await;
}
