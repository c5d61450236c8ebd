//! A member whose tables are damaged copies its state again from the others. If too few others have it, the damage is reported, and
//! nothing wrong is served.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tonic::Code;
use tonic::transport::Endpoint;

use super::clients::metric_is;
use super::cluster::{Cluster, Member, is_unsettled, settled, until, within};
use super::http::get;
use super::integrity::{alarms, damage, damage_tables};
use crate::EndReason;
use crate::mvcc::{Damage, View};
use crate::node::Node;
use crate::proto::etcdserverpb::kv_client::KvClient;
use crate::proto::etcdserverpb::watch_client::WatchClient;
use crate::proto::etcdserverpb::watch_request::RequestUnion;
use crate::proto::etcdserverpb::{LeaseGrantRequest, RangeRequest, WatchCreateRequest, WatchRequest};
use crate::proto::peer::command::Change;
use crate::proto::v3lockpb::LockRequest;
use crate::proto::v3lockpb::lock_client::LockClient;

/// Keys with a value of 1,000 bytes each: a table of them is long.
const KEYS: usize = 600;
const FLAGS: [&str; 4] = [
    "--forebay-scrub-interval=100ms",
    "--corrupt-check-time=1s",
    "--compact-hash-check-enabled=true",
    "--compact-hash-check-time=1s",
];

fn value(number: usize) -> String {
    format!("{number:04}").repeat(250)
}

/// Puts the keys, and has all members write them to tables.
async fn fill(cluster: &Cluster) {
    let pairs = (0..KEYS).map(|number| (format!("key{number}"), value(number)));
    let last = cluster.members[0].put_all(pairs).await;
    for member in &cluster.members {
        member.applied(last).await;
        member.node().store().flush().await.unwrap();
    }
}

/// Reads all keys at a member.
async fn has_all(member: &Member) {
    settled(async || member.node().read_barrier().await).await.unwrap();
    let view = View::of(member.node().store()).await.unwrap();
    let all = RangeRequest { key: b"key".to_vec(), range_end: b"kez".to_vec(), ..RangeRequest::default() };
    let pairs = view.range(&all).await.unwrap().kvs;
    let pairs: HashMap<&[u8], &[u8]> = pairs.iter().map(|pair| (&pair.key[..], &pair.value[..])).collect();
    for number in 0..KEYS {
        let found = pairs.get(format!("key{number}").as_bytes()).copied();
        let is_kept = found == Some(value(number).as_bytes());
        assert!(is_kept, "{} has lost or changed key{number}", member.name);
    }
}

fn repairs(member: &Member) -> u64 {
    member.node().counts().repairs.load(Ordering::Relaxed)
}

/// Returns the directories of a member's states.
pub(super) fn states(member: &Member) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(member.dir.join("member/state")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_state = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("state-");
    paths.filter(is_state).collect()
}

/// Removes all tables below a directory.
pub(super) fn remove_tables(dir: &Path) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            remove_tables(&path);
        } else if path.extension().is_some_and(|extension| extension == "fkv") {
            std::fs::remove_file(&path).unwrap();
        }
    }
}

/// Damages the state that a member has now until this holds: a compaction may replace a damaged table before anything has read it.
async fn damage_until(member: &Member, is_over: impl Fn() -> bool) {
    let states = states(member);
    until(async || {
        let is_over = is_over();
        if !is_over {
            states.iter().for_each(|state| _ = damage_tables(state));
        }
        is_over
    })
    .await;
}

/// Waits until a member has repaired its state this many times, and serves.
async fn is_repaired(member: &Member, times: u64) {
    until(async || repairs(member) >= times && member.node().damage().is_none()).await;
}

/// Writes at a member until the flag is set; puts may fail.
async fn write(node: Node, is_over: Arc<AtomicBool>) {
    let mut number = 0_u64;
    while !is_over.load(Ordering::Relaxed) {
        let key = format!("key{}", KEYS as u64 + number % 100);
        let _ = node.propose(super::cluster::put(&key, &"w".repeat(100))).await;
        // Without a pause the writers alone keep two processors busy.
        tokio::time::sleep(Duration::from_millis(5)).await;
        number += 1;
    }
}

/// Damages one of three, in turn one that follows and the leader, while the others are written to.
async fn one_of_three_is_healed(rounds: usize) {
    let mut cluster = Cluster::start(3, &FLAGS).await;
    fill(&cluster).await;
    for round in 0..rounds {
        let (leader, follower) = cluster.leader_and_follower().await;
        let at = if round % 2 == 0 { follower } else { leader };
        let is_over = Arc::new(AtomicBool::new(false));
        let others = cluster.members.iter().enumerate().filter(|(other, _)| *other != at);
        let writers: Vec<_> =
            others.map(|(_, other)| tokio::spawn(write(other.node().clone(), is_over.clone()))).collect();
        let member = &cluster.members[at];
        damage_until(member, || repairs(member) > 0).await;
        is_repaired(member, 1).await;
        is_over.store(true, Ordering::Relaxed);
        for writer in writers {
            within(writer).await.unwrap();
        }
        for member in &cluster.members {
            has_all(member).await;
            assert!(alarms(member).await.is_empty(), "round {round}");
            assert_eq!(member.node().counts().differences.load(Ordering::Relaxed), 0, "round {round}");
        }
        // The state is on the disk. A second repair of one process would be one within an hour.
        cluster.members[at].stop().await;
        cluster.members[at].start().await;
        within(cluster.members[at].server.as_ref().unwrap().ready()).await;
        has_all(&cluster.members[at]).await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_is_healed_under_load() {
    one_of_three_is_healed(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "many minutes: 200 members that are damaged and healed"]
async fn two_hundred_of_two_hundred_are_healed() {
    one_of_three_is_healed(200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_cannot_be_opened_is_healed_and_ends_its_member_if_it_is_damaged_again() {
    let mut cluster = Cluster::start(3, &FLAGS).await;
    fill(&cluster).await;
    let at = cluster.follower().await;
    cluster.members[at].stop().await;
    states(&cluster.members[at]).iter().for_each(|state| remove_tables(state));
    cluster.members[at].start().await;
    is_repaired(&cluster.members[at], 1).await;
    has_all(&cluster.members[at]).await;
    let member = &cluster.members[at];
    let ended = member.node().ended();
    damage_until(member, || ended.borrow().is_some()).await;
    let reason = cluster.members[at].ended().await;
    assert!(matches!(&reason, EndReason::Failed(text) if text.contains("within the last hour")), "{reason}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_three_are_named_and_the_third_one_serves() {
    let mut cluster = Cluster::start(3, &[]).await;
    fill(&cluster).await;
    let whole = cluster.follower().await;
    let damaged: Vec<usize> = (0..3).filter(|at| *at != whole).collect();
    for &at in &damaged {
        cluster.members[at].stop().await;
        states(&cluster.members[at]).iter().for_each(|state| remove_tables(state));
    }
    for &at in &damaged {
        cluster.members[at].start().await;
    }
    for &at in &damaged {
        let member = &cluster.members[at];
        until(async || member.node().counts().repairs_failed.load(Ordering::Relaxed) > 0).await;
        assert!(matches!(member.node().damage(), Some(Damage::Tables(_))));
        let endpoint = Endpoint::from_shared(format!("http://{}:2379", member.address)).unwrap();
        let request = RangeRequest { key: b"key0".to_vec(), serializable: true, ..RangeRequest::default() };
        let refused = within(KvClient::new(endpoint.connect_lazy()).range(request)).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(refused.message().contains("is damaged"), "{refused}");
        let (status, body) = get(&member.address, 2379, "/readyz/data_corruption").await;
        assert_eq!(status, 503);
        assert!(body.contains("[-]data_corruption failed"), "{body}");
    }
    cluster.members[whole].put("another", "value").await.unwrap();
    has_all(&cluster.members[whole]).await;
    assert!(alarms(&cluster.members[whole]).await.is_empty());
    for &at in &damaged {
        assert_eq!(repairs(&cluster.members[at]), 0);
    }
    cluster.stop().await;
}

/// Story: a client watched at a member whose tables were damaged. All calls were refused there, and the watch was silent until the state
/// was whole again, which takes minutes for a long one: the client could have gone to another member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_and_waits_for_locks_end_at_a_member_that_is_healed() {
    let mut cluster = Cluster::start(3, &[]).await;
    let at = cluster.follower().await;
    let channel = Endpoint::from_shared(format!("http://{}:2379", cluster.members[at].address));
    let channel = channel.unwrap().connect_lazy();
    let create = WatchCreateRequest { key: "key".into(), ..WatchCreateRequest::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = stream::iter([create]).chain(stream::pending());
    let mut events = within(WatchClient::new(channel.clone()).watch(requests)).await.unwrap().into_inner();
    assert!(within(events.message()).await.unwrap().unwrap().created);
    let mut locks = LockClient::new(channel);
    for id in [7, 8] {
        let grant = Change::LeaseGrant(LeaseGrantRequest { ttl: 600, id });
        cluster.members[at].propose(grant).await.unwrap();
    }
    let lock = |lease| LockRequest { name: "lock".into(), lease };
    settled(async || locks.lock(lock(7)).await).await.unwrap();
    let waiting = tokio::spawn(async move {
        loop {
            match locks.lock(lock(8)).await {
                Err(status) if is_unsettled(&status) => {}
                ended => break ended,
            }
        }
    });
    // The watch of the client, and that of the lock.
    metric_is(&cluster.members[at].address, "etcd_debugging_mvcc_watcher_total", "2").await;
    // Nobody has the state.
    for other in (0..3).filter(|other| *other != at) {
        cluster.members[other].stop().await;
    }
    cluster.members[at].node().set_damage(Some(Damage::Tables("a table".to_owned())));
    let ended = loop {
        match within(events.message()).await {
            Ok(part) => assert!(part.is_some(), "it ended as if its client had ended it"),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::Unavailable, "{ended}");
    assert!(ended.message().contains("is damaged"), "{ended}");
    let ended = within(waiting).await.unwrap().unwrap_err();
    assert!(ended.message().contains("is damaged"), "{ended}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_member_names_its_damage_and_does_not_start_without_its_tables() {
    let mut cluster = Cluster::start(1, &[]).await;
    fill(&cluster).await;
    cluster.members[0].stop().await;
    for state in states(&cluster.members[0]) {
        assert!(damage_tables(&state) > 0, "no table is long");
    }
    cluster.members[0].arguments.push("--forebay-scrub-interval=10ms".to_owned());
    cluster.members[0].start().await;
    let member = &cluster.members[0];
    damage(member).await;
    assert_eq!(repairs(member), 0);
    let (status, body) = get(&member.address, 2379, "/readyz/data_corruption").await;
    assert_eq!(status, 503, "{body}");
    cluster.members[0].stop().await;
    states(&cluster.members[0]).iter().for_each(|state| remove_tables(state));
    let refused = cluster.members[0].try_start().await.unwrap_err().to_string();
    assert!(refused.contains("cannot be opened") && refused.contains("too few other members"), "{refused}");
}
