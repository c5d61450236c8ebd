//! Calls by gRPC at members that lead, that follow, that have no leader, and that only learn.

use std::sync::atomic::{AtomicBool, Ordering};

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};

use super::cluster::{Cluster, Member, is_unsettled, settled, within};
use crate::mvcc::View;
use crate::node::{Client, LeaderCall};
use crate::proto::etcdserverpb::alarm_request::AlarmAction;
use crate::proto::etcdserverpb::cluster_client::ClusterClient;
use crate::proto::etcdserverpb::downgrade_request::DowngradeAction;
use crate::proto::etcdserverpb::kv_client::KvClient;
use crate::proto::etcdserverpb::lease_client::LeaseClient;
use crate::proto::etcdserverpb::maintenance_client::MaintenanceClient;
use crate::proto::etcdserverpb::request_op::Request as Op;
use crate::proto::etcdserverpb::watch_client::WatchClient;
use crate::proto::etcdserverpb::watch_request::RequestUnion;
use crate::proto::etcdserverpb::{
    AlarmRequest, AlarmType, DowngradeInfo, DowngradeRequest, LeaseGrantRequest, LeaseKeepAliveRequest,
    LeaseTimeToLiveRequest, MemberAddRequest, MemberListRequest, MemberPromoteRequest, MoveLeaderRequest,
    PutRequest, RangeRequest, RequestOp, SnapshotRequest, StatusRequest, TxnRequest, WatchCreateRequest,
    WatchRequest, WatchResponse,
};
use crate::proto::peer::member_change::Change;
use crate::proto::v3electionpb::election_client::ElectionClient;
use crate::proto::v3electionpb::{CampaignRequest, LeaderRequest};
use crate::proto::v3lockpb::LockRequest;
use crate::proto::v3lockpb::lock_client::LockClient;

const NO_LEADER: (Code, &str) = (Code::Unavailable, "etcdserver: no leader");
const LEARNER: (Code, &str) = (Code::FailedPrecondition, "etcdserver: rpc not supported for learner");

fn channel(member: &Member) -> Channel {
    Endpoint::from_shared(format!("http://{}:2379", member.address)).unwrap().connect_lazy()
}

/// Marks the call as useful only with a leader, as etcd's clients do.
fn with_leader<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("hasleader", "true".parse().unwrap());
    request
}

fn refusal<T>(refused: Result<T, Status>) -> (Code, String) {
    let status = refused.map(|_| ()).unwrap_err();
    (status.code(), status.message().to_owned())
}

/// Retries a repeatable call until it reaches a leader: a busy machine may lose its leader for a moment, or elect another.
async fn led<T>(mut call: impl AsyncFnMut() -> Result<T, Status>) -> T {
    loop {
        match settled(&mut call).await {
            Ok(reply) => return reply,
            refused => assert_eq!(refusal(refused), is(NO_LEADER)),
        }
        tokio::task::yield_now().await;
    }
}

/// Grants a lease of ten minutes, and returns its id.
async fn granted(leases: &mut LeaseClient<Channel>) -> i64 {
    led(async || leases.lease_grant(LeaseGrantRequest { ttl: 600, id: 0 }).await).await.into_inner().id
}

fn is(expected: (Code, &str)) -> (Code, String) {
    (expected.0, expected.1.to_owned())
}

fn put(key: &str) -> PutRequest {
    PutRequest { key: key.into(), value: "value".into(), ..Default::default() }
}

fn get(key: &str, serializable: bool) -> RangeRequest {
    RangeRequest { key: key.into(), serializable, ..Default::default() }
}

/// Requests of a stream: one, and then no other until it ends.
fn only<T: Send + 'static>(request: Option<T>) -> impl futures_util::Stream<Item = T> + Send + 'static {
    use futures_util::StreamExt;
    futures_util::stream::iter(request).chain(futures_util::stream::pending())
}

fn watch_of(key: &str) -> WatchRequest {
    let create = WatchCreateRequest { key: key.into(), ..Default::default() };
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

async fn event_key(events: &mut Streaming<WatchResponse>) -> Vec<u8> {
    loop {
        let response = within(events.message()).await.unwrap().unwrap();
        if let Some(event) = response.events.into_iter().next() {
            break event.kv.unwrap().key.to_vec();
        }
    }
}

/// etcd's clients can require a leader for a call, and Kubernetes does so for its watches. This was ignored: a watch at a member
/// that was cut off stayed silent forever, while its client could have used another member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_want_a_leader_end_without_one() {
    let mut cluster = Cluster::start(3, &[]).await;
    let stays = cluster.follower().await;
    let channel = channel(&cluster.members[stays]);
    let mut keys = KvClient::new(channel.clone());
    let (mut watches, mut leases) = (WatchClient::new(channel.clone()), LeaseClient::new(channel.clone()));
    let mut elections = ElectionClient::new(channel.clone());
    let wanting = led(async || watches.watch(with_leader(only(Some(watch_of("key"))))).await).await;
    let mut wanting = wanting.into_inner();
    let mut patient = watches.watch(only(Some(watch_of("key")))).await.unwrap().into_inner();
    let lease = granted(&mut leases).await;
    let alive = || with_leader(only(Some(LeaseKeepAliveRequest { id: lease })));
    let mut alive = led(async || leases.lease_keep_alive(alive()).await).await.into_inner();
    assert_eq!(within(alive.message()).await.unwrap().unwrap().ttl, 600);
    let campaign = || CampaignRequest { name: "name".into(), lease, value: "value".into() };
    led(async || elections.campaign(campaign()).await).await;
    let observed = || with_leader(LeaderRequest { name: "name".into() });
    let mut observed = led(async || elections.observe(observed()).await).await.into_inner();
    assert_eq!(within(observed.message()).await.unwrap().unwrap().kv.unwrap().value, "value");
    led(async || keys.put(with_leader(put("key"))).await).await;
    for events in [&mut wanting, &mut patient] {
        assert_eq!(event_key(events).await, b"key");
    }
    // Two of three stop.
    for at in (0..3).filter(|at| *at != stays) {
        cluster.members[at].stop().await;
    }
    let mut leadership = cluster.members[stays].node().leadership();
    within(leadership.wait_for(|now| now.leader.is_none())).await.unwrap();
    // New calls are refused immediately, including those that need no leader.
    let refused = within(keys.put(with_leader(put("key")))).await;
    assert_eq!(refusal(refused), is(NO_LEADER));
    assert_eq!(refusal(within(keys.range(with_leader(get("key", true)))).await), is(NO_LEADER));
    assert_eq!(keys.range(get("key", true)).await.unwrap().into_inner().count, 1);
    let another = with_leader(only(Some(watch_of("key"))));
    assert_eq!(refusal(within(watches.watch(another)).await), is(NO_LEADER));
    // Streams end.
    assert_eq!(refusal(within(wanting.message()).await), is(NO_LEADER));
    assert_eq!(refusal(within(alive.message()).await), is(NO_LEADER));
    assert_eq!(refusal(within(observed.message()).await), is(NO_LEADER));
    // Calls that did not require it continue.
    let other = (stays + 1) % 3;
    cluster.members[other].start().await;
    cluster.members[other].put("key", "after").await.unwrap();
    assert_eq!(event_key(&mut patient).await, b"key");
    led(async || keys.put(with_leader(put("key"))).await).await;
    cluster.stop().await;
}

/// `alarm list` and `alarm disarm` read this member's own state, however old. etcd's are entries of the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alarms_are_read_in_order_with_changes() {
    let mut cluster = Cluster::start(3, &[]).await;
    let alarm = |action: AlarmAction, alarm: AlarmType| AlarmRequest {
        action: action as i32,
        member_id: 0,
        alarm: alarm as i32,
    };
    let stays = cluster.follower().await;
    let id = cluster.members[stays].node().id();
    let mut maintenance = MaintenanceClient::new(channel(&cluster.members[stays]));
    let raise = || AlarmRequest { member_id: id, ..alarm(AlarmAction::Activate, AlarmType::Nospace) };
    led(async || maintenance.alarm(raise()).await).await;
    for member in &cluster.members {
        let mut maintenance = MaintenanceClient::new(channel(member));
        let listed = led(async || maintenance.alarm(alarm(AlarmAction::Get, AlarmType::None)).await).await;
        assert_eq!(listed.into_inner().alarms.len(), 1, "{}", member.name);
    }
    let clear = AlarmRequest { member_id: id, ..alarm(AlarmAction::Deactivate, AlarmType::Nospace) };
    let cleared = maintenance.alarm(clear).await;
    // Where its outcome is not known it may have been cleared.
    match cleared {
        Ok(cleared) => assert_eq!(cleared.into_inner().alarms.len(), 1),
        Err(status) => assert!(is_unsettled(&status), "{status}"),
    }
    for at in (0..3).filter(|at| *at != stays) {
        cluster.members[at].stop().await;
    }
    // A member without its peers does not know of later alarms.
    for action in [AlarmAction::Get, AlarmAction::Deactivate] {
        let refused = within(maintenance.alarm(alarm(action, AlarmType::None))).await;
        let (code, text) = refusal(refused);
        assert_eq!(code, Code::Unavailable);
        assert!(text.starts_with("etcdserver: request timed out"), "{text}");
    }
    cluster.stop().await;
}

/// Story: a member or a type that a request did not name was any, so a request that etcd passes over cleared the alarms of all members.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alarm_is_cleared_by_its_member_and_its_type() {
    let mut cluster = Cluster::start(1, &[]).await;
    let mut maintenance = MaintenanceClient::new(channel(&cluster.members[0]));
    let mut alarms = async |action: AlarmAction, member_id: u64, alarm: AlarmType| {
        let request = AlarmRequest { action: action.into(), member_id, alarm: alarm.into() };
        let alarms = within(maintenance.alarm(request)).await.unwrap().into_inner().alarms;
        alarms.iter().map(|one| one.member_id.to_string()).collect::<Vec<_>>().join(" ")
    };
    let (none, full) = (AlarmType::None, AlarmType::Nospace);
    // Etcd 3.7.3 replies so.
    assert_eq!(alarms(AlarmAction::Activate, 7, none).await, "");
    assert_eq!(alarms(AlarmAction::Activate, 7, full).await, "7");
    assert_eq!(alarms(AlarmAction::Activate, 8, full).await, "8");
    assert_eq!(alarms(AlarmAction::Get, 7, none).await, "7 8");
    assert_eq!(alarms(AlarmAction::Deactivate, 0, full).await, "");
    assert_eq!(alarms(AlarmAction::Deactivate, 7, none).await, "");
    assert_eq!(alarms(AlarmAction::Deactivate, 7, full).await, "7");
    assert_eq!(alarms(AlarmAction::Get, 0, none).await, "8");
    cluster.stop().await;
}

/// Story: a client raised an alarm for each number. None was refused, each was copied for each entry from then on, and no limit of space
/// counts them: puts took longer with each alarm.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_so_many_alarms_are_raised() {
    let mut cluster = Cluster::start(1, &[]).await;
    let mut maintenance = MaintenanceClient::new(channel(&cluster.members[0]));
    let mut alarm = async |action: AlarmAction, member_id: u64| {
        let request = AlarmRequest { action: action.into(), member_id, alarm: AlarmType::Nospace.into() };
        within(maintenance.alarm(request)).await.map(|response| response.into_inner().alarms.len())
    };
    let mut raised = 0;
    let refused = loop {
        match alarm(AlarmAction::Activate, raised + 1).await {
            Ok(count) => assert_eq!(count, 1),
            Err(refused) => break refused,
        }
        raised += 1;
        assert!(raised < 100, "none is refused");
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    // A raised alarm may be raised again, and another takes the place of a cleared alarm.
    assert_eq!(alarm(AlarmAction::Activate, raised).await.unwrap(), 1);
    assert_eq!(alarm(AlarmAction::Deactivate, 1).await.unwrap(), 1);
    assert_eq!(alarm(AlarmAction::Activate, raised + 1).await.unwrap(), 1);
    assert_eq!(alarm(AlarmAction::Get, 0).await.unwrap() as u64, raised);
    cluster.stop().await;
}

/// Calls about leases that a member forwarded failed with "not leader" when the leader had just stepped down, and clients gave their
/// leases up. In etcd they wait for the next leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_kept_alive_at_any_member_while_the_lead_moves() {
    let mut cluster = Cluster::start(3, &[]).await;
    let id = granted(&mut LeaseClient::new(channel(&cluster.members[0]))).await;
    let is_over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut clients = Vec::new();
    for member in &cluster.members {
        let mut leases = LeaseClient::new(channel(member));
        let is_over = is_over.clone();
        clients.push(tokio::spawn(async move {
            let (requests, stream) = tokio::sync::mpsc::channel(1);
            let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
            let mut alive = leases.lease_keep_alive(stream).await.unwrap().into_inner();
            let mut turns = 0_u32;
            loop {
                requests.send(LeaseKeepAliveRequest { id }).await.unwrap();
                let kept = alive.message().await.map_err(|status| format!("turn {turns}: {status}"))?;
                assert_eq!(kept.unwrap().ttl, 600);
                let left = leases.lease_time_to_live(LeaseTimeToLiveRequest { id, keys: false }).await;
                let left = left.map_err(|status| format!("turn {turns}, time to live: {status}"))?;
                assert_eq!(left.into_inner().granted_ttl, 600);
                turns += 1;
                if is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    break Ok::<u32, String>(turns);
                }
            }
        }));
    }
    // On a busy machine the lead may move to another member, or move on immediately: then another turn compensates.
    let mut moves = 0;
    while moves < 10 {
        let (leader, follower) = cluster.leader_and_follower().await;
        let target_id = cluster.members[follower].node().id();
        let to = Change::MoveLeader(MoveLeaderRequest { target_id });
        let mut leadership = cluster.members[follower].node().leadership();
        let moved = async {
            cluster.members[leader].node().change_members(to).await?;
            let _ = leadership.wait_for(|now| now.is_own).await;
            Ok::<(), tonic::Status>(())
        };
        let moved = tokio::time::timeout(std::time::Duration::from_secs(5), moved).await;
        moves += u32::from(matches!(moved, Ok(Ok(()))));
    }
    is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    for client in clients {
        let turns = within(client).await.unwrap().unwrap();
        assert!(turns > 0);
    }
    cluster.stop().await;
}

/// The same without a race: a member that cannot reach the leader keeps retrying, here until it leads itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_about_a_lease_waits_until_a_leader_is_reached() {
    let mut cluster = Cluster::start(3, &[]).await;
    let id = granted(&mut LeaseClient::new(channel(&cluster.members[0]))).await;
    loop {
        let (leader, follower) = cluster.leader_and_follower().await;
        let mut leases = LeaseClient::new(channel(&cluster.members[follower]));
        let node = cluster.members[follower].node();
        node.forget_members();
        let left = leases.lease_time_to_live(LeaseTimeToLiveRequest { id, keys: false });
        let to = Change::MoveLeader(MoveLeaderRequest { target_id: node.id() });
        let moved = cluster.members[leader].node().change_members(to);
        let (left, moved) = within(futures_util::future::join(left, moved)).await;
        match left {
            Ok(left) => {
                assert_eq!(left.into_inner().granted_ttl, 600);
                break;
            }
            // On a busy machine the third may win the election: this member does not reach it, and waits until the end.
            Err(status) => assert!(is_unsettled(&status), "{status}, after {moved:?}"),
        }
        for other in &cluster.members {
            node.set_urls(other.node().id(), &[other.peer_url()]);
        }
    }
    cluster.stop().await;
}

/// A member that knew the leader but not its address retried immediately, without an end: the request kept a thread busy, and its
/// client had no reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_refused_in_time_where_the_leader_cannot_be_reached() {
    let mut cluster = Cluster::start(3, &[]).await;
    let member = &cluster.members[cluster.follower().await];
    // On a busy machine there may be an election meanwhile.
    member.node().forget_members_for_good();
    let refused = within(member.put_once("key", "value")).await.unwrap_err();
    assert!(refused.message().starts_with("etcdserver: request timed out"), "{refused}");
    cluster.stop().await;
}

/// Regression: a status after a put reported one applied entry of three. The figure was Raft's, which lags the outcome by some
/// turns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_counts_as_applied() {
    let mut cluster = Cluster::start(1, &[]).await;
    let member = &cluster.members[0];
    for _ in 0..200 {
        let index = within(member.put("key", "value")).await.unwrap();
        let (applied, committed) = (member.node().applied_index(), member.node().committed_index());
        assert!(applied >= index && committed >= index && member.node().last_index() >= index);
    }
    cluster.stop().await;
}

/// A learner served everything. etcd's learners are not endpoints for clients: they serve only calls that show their progress.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_serves_what_etcds_do() {
    let mut cluster = Cluster::start(1, &[]).await;
    cluster.members[0].put("key", "value").await.unwrap();
    let at = cluster.make_joining();
    let node = cluster.members[0].node().clone();
    let url = cluster.members[at].peer_url();
    let add = Change::Add(MemberAddRequest { peer_ur_ls: vec![url], is_learner: true });
    let id = cluster.members[0].change(add).await.member.unwrap().id;
    cluster.members[at].start().await;
    within(cluster.members[at].server.as_ref().unwrap().ready()).await;
    let index = node.last_index();
    cluster.members[at].applied(index).await;
    let channel = channel(&cluster.members[at]);
    let mut keys = KvClient::new(channel.clone());
    let mut maintenance = MaintenanceClient::new(channel.clone());
    assert_eq!(keys.range(get("key", true)).await.unwrap().into_inner().count, 1);
    assert!(maintenance.status(StatusRequest {}).await.unwrap().into_inner().is_learner);
    let mut parts = maintenance.snapshot(SnapshotRequest {}).await.unwrap().into_inner();
    assert!(!within(parts.message()).await.unwrap().unwrap().blob.is_empty());
    // The rest is not.
    assert_eq!(refusal(keys.range(get("key", false)).await), is(LEARNER));
    assert_eq!(refusal(keys.put(put("key")).await), is(LEARNER));
    let mut members = ClusterClient::new(channel.clone());
    assert_eq!(refusal(members.member_list(MemberListRequest { linearizable: false }).await), is(LEARNER));
    let mut watches = WatchClient::new(channel.clone());
    assert_eq!(refusal(watches.watch(only(Some(watch_of("key")))).await), is(LEARNER));
    let mut leases = LeaseClient::new(channel.clone());
    assert_eq!(refusal(leases.lease_grant(LeaseGrantRequest { ttl: 600, id: 7 }).await), is(LEARNER));
    let lock = LockRequest { name: "name".into(), lease: 0 };
    assert_eq!(refusal(LockClient::new(channel.clone()).lock(lock).await), is(LEARNER));
    // With a vote it is like the others.
    loop {
        match node.change_members(Change::Promote(MemberPromoteRequest { id })).await {
            Ok(_) => break,
            // The leader may not have heard yet how far it is.
            Err(status) => assert!(status.message().ends_with("in sync with leader"), "{status}"),
        }
        tokio::task::yield_now().await;
    }
    cluster.members[at].votes().await;
    within(async { while keys.put(put("key")).await.is_err() {} }).await;
    assert_eq!(led(async || keys.range(get("key", false)).await).await.into_inner().count, 1);
    cluster.stop().await;
}

/// kubeadm refuses etcd below 3.5.24, and the server reported 3.5.21. The version implies further fields: a downgrade that is not
/// under way, and the sizes that the quota is compared with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_is_that_of_etcd_3_7() {
    let mut cluster = Cluster::start(1, &[]).await;
    let member = &cluster.members[0];
    member.put("key", "value").await.unwrap();
    let mut upkeep = MaintenanceClient::new(channel(member));
    let status = upkeep.status(StatusRequest {}).await.unwrap().into_inner();
    assert_eq!((&status.version[..], &status.storage_version[..]), ("3.7.3", "3.7.0"));
    assert_eq!(status.downgrade_info, Some(DowngradeInfo { enabled: false, target_version: String::new() }));
    let used = View::of(member.node().store()).await.unwrap().used_bytes() as i64;
    assert_eq!((status.db_size, status.db_size_in_use, status.db_size_quota), (used, used, 2 << 30));
    let mut downgrade = async |action: DowngradeAction, version: &str| {
        let request = DowngradeRequest { action: action.into(), version: version.into() };
        upkeep.downgrade(request).await
    };
    // Without a downgrade nothing can be cancelled, which etcd only logs.
    assert_eq!(downgrade(DowngradeAction::Cancel, "").await.unwrap().into_inner().version, "3.7");
    for (version, text) in [
        ("four", "etcdserver: wrong downgrade target version format"),
        ("3.5.0", "etcdserver: invalid downgrade target version"),
    ] {
        for action in [DowngradeAction::Validate, DowngradeAction::Enable] {
            let refused = downgrade(action, version).await;
            assert_eq!(refusal(refused), is((Code::InvalidArgument, text)));
        }
    }
    cluster.stop().await;
}

/// A message that is too long was refused with tonic's code and text, which etcd's clients do not know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_too_long_is_refused_as_by_etcd() {
    let mut cluster = Cluster::start(1, &["--max-request-bytes=2000"]).await;
    let mut keys = KvClient::new(channel(&cluster.members[0]));
    let request = PutRequest { value: vec![1; 1 << 20], ..put("key") };
    let (bytes, limit) = (prost::Message::encoded_len(&request), 2000 + (512 << 10));
    let text = format!("grpc: received message larger than max ({bytes} vs. {limit})");
    assert_eq!(refusal(keys.put(request).await), is((Code::ResourceExhausted, &text[..])));
    // A request that fits with its headers is read, and refused only for its length.
    let request = PutRequest { value: vec![1; 3000], ..put("key") };
    let text = "etcdserver: request is too large";
    assert_eq!(refusal(keys.put(request).await), is((Code::InvalidArgument, text)));
    cluster.stop().await;
}

/// A transaction of 48 in each other was committed, and then refused: its response had more levels than a message may have. The
/// limit is 40, and one of that depth has its reply at each member, through the leader or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_deepest_transaction_is_replied_to_at_each_member() {
    let mut cluster = Cluster::start(3, &[]).await;
    let operation = |request| RequestOp { request: Some(request) };
    let nested = |depth: usize| {
        let innermost = operation(Op::RequestPut(PutRequest { prev_kv: true, ..put("key") }));
        let innermost = TxnRequest { success: vec![innermost], ..TxnRequest::default() };
        (1..depth).fold(innermost, |inner, _| TxnRequest {
            success: vec![operation(Op::RequestTxn(inner))],
            ..TxnRequest::default()
        })
    };
    let (mut before, mut tries) = (1, 0);
    for member in &cluster.members {
        let mut keys = KvClient::new(channel(member));
        let text = "etcdserver: too many operations in txn request";
        assert_eq!(refusal(keys.txn(nested(41)).await), is((Code::InvalidArgument, text)));
        // A try whose outcome is not known, because of an election, may be committed at any time.
        let response = led(async || {
            tries += 1;
            keys.txn(nested(40)).await
        });
        let revision = response.await.into_inner().header.unwrap().revision;
        assert!((before + 1..=1 + tries).contains(&revision), "{revision} after {before}, {tries} tries");
        before = revision;
    }
    cluster.stop().await;
}

/// A member that was stopped with SIGSTOP does not reply, and its connections stay: keep-alives through it waited for their whole
/// time, although another one led soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeatable_call_leaves_a_leader_that_is_replaced() {
    let mut cluster = Cluster::start(3, &[]).await;
    let follower = cluster.follower().await;
    let node = cluster.members[follower].node().clone();
    let (begins, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let call = tokio::spawn(async move {
        let is_first = AtomicBool::new(true);
        let here = || async { Ok::<_, Status>(()) };
        let there = |_: Client| {
            let hangs = is_first.swap(false, Ordering::Relaxed);
            let _ = begins.send(());
            async move {
                if hangs {
                    std::future::pending::<()>().await;
                }
                Ok(())
            }
        };
        node.call_leader(LeaderCall::REPEATABLE, node.deadline(), here, there).await
    });
    // On a busy machine it may lead itself by now.
    let _ = within(begun.recv()).await;
    let leader = cluster.leader().await;
    cluster.members[leader].stop().await;
    within(call).await.unwrap().unwrap();
    cluster.stop().await;
}
