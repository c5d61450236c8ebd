//! Members whose states differ are found by the sums at their checkpoints, those whose tables differ from their sums by the scrub, and no
//! others.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_test::draw;
use futures_util::{StreamExt, stream};
use tonic::transport::Channel;

use super::cluster::{self, Cluster, Member, is_unsettled, until, within};
use super::http::get;
use super::starts::open_files;
use crate::mvcc::{Damage, View};
use crate::node::Counts;
use crate::proto::etcdserverpb::maintenance_client::MaintenanceClient;
use crate::proto::etcdserverpb::watch_client::WatchClient;
use crate::proto::etcdserverpb::watch_request::RequestUnion;
use crate::proto::etcdserverpb::{
    AlarmMember, AlarmType, CompactionRequest, DeleteRangeRequest, HashKvRequest, SnapshotRequest,
    WatchCreateRequest, WatchRequest,
};
use crate::proto::peer::command::Change;
use crate::proto::peer::outcome::Result as Response;

pub(super) async fn alarms(member: &Member) -> Vec<AlarmMember> {
    View::of(member.node().store()).await.unwrap().alarms().await.unwrap()
}

/// Returns the sum of a count over the members that run.
fn sum(cluster: &Cluster, count: impl Fn(&Counts) -> &AtomicU64) -> u64 {
    let running = cluster.members.iter().filter(|member| member.server.is_some());
    running.map(|member| count(member.node().counts()).load(Ordering::Relaxed)).sum()
}

/// Waits until the members that run have been compared this many times more.
async fn are_compared(cluster: &Cluster, times: u64) {
    let before = sum(cluster, |counts| &counts.checks);
    until(async || sum(cluster, |counts| &counts.checks) >= before + times).await;
}

/// Waits until `member` knows of an alarm that names another member, or itself. An alarm without a name may precede it: while a
/// member is not reached in time, the others may have no majority.
async fn is_named(member: &Member, named: u64) {
    until(async || {
        let found = alarms(member).await;
        assert!(found.iter().all(|alarm| [0, named].contains(&alarm.member_id)), "{found:?}");
        assert!(found.iter().all(|alarm| alarm.alarm() == AlarmType::Corrupt), "{found:?}");
        found.iter().any(|alarm| alarm.member_id == named)
    })
    .await;
}

/// Puts a key by a single proposal, so that it is not put again later, and waits until `member` has it. Returns the key.
async fn put_new(member: &Member) -> String {
    let mut number = 0;
    loop {
        let key = format!("key{number}");
        match member.put_once(&key, "value").await {
            Ok(index) => {
                member.applied(index).await;
                return key;
            }
            Err(status) => assert!(is_unsettled(&status), "{status}"),
        }
        number += 1;
    }
}

/// Compacts, and waits until the member has done so. A compaction that was made already is refused, which changes nothing.
async fn compact(member: &Member, revision: i64) {
    let request = CompactionRequest { revision, physical: false };
    let (_, index) = member.propose(Change::Compact(request)).await.unwrap();
    member.applied(index).await;
}

async fn revision(member: &Member) -> i64 {
    View::of(member.node().store()).await.unwrap().revision()
}

/// Changes the last byte of a key's current value, as no entry does.
async fn change_value(member: &Member, key: &str) {
    let store = member.node().store();
    let keyspaces = store.keyspaces();
    let mut value = keyspaces[0].get(key).await.unwrap().unwrap().to_vec();
    *value.last_mut().unwrap() ^= 1;
    let mut batch = forebay_kv::Batch::new();
    batch.put(&keyspaces[0], key, &value);
    store.store().write(&batch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_with_another_state_is_named_and_does_not_start_with_the_check() {
    let checks = ["--compact-hash-check-enabled=true", "--compact-hash-check-time=50ms"];
    let mut cluster = Cluster::start(3, &checks).await;
    let changed = cluster.follower().await;
    let key = put_new(&cluster.members[changed]).await;
    compact(&cluster.members[changed], 2).await;
    are_compared(&cluster, 2).await;
    // All are alike so far, which the check of a start finds as well.
    cluster.members[changed].arguments.push("--initial-corrupt-check=true".to_owned());
    cluster.members[changed].stop().await;
    cluster.members[changed].start().await;
    change_value(&cluster.members[changed], &key).await;
    // Nothing of the value is in memory after this.
    cluster.members[changed].stop().await;
    cluster.members[changed].start().await;
    let id = cluster.members[changed].node().id();
    cluster.members[changed].put(&key, "other").await.unwrap();
    compact(&cluster.members[changed], 3).await;
    for member in &cluster.members {
        is_named(member, id).await;
    }
    assert!(sum(&cluster, |counts| &counts.differences) > 0);
    // The entry is there, and changes nothing.
    let member = &cluster.members[cluster.leader().await];
    let before = revision(member).await;
    let (outcome, index) = member.propose(cluster::put(&key, "refused")).await.unwrap();
    assert!(matches!(outcome.result, Some(Response::Refusal(_))), "{outcome:?}");
    member.applied(index).await;
    assert_eq!(revision(member).await, before);
    let refused = loop {
        cluster.members[changed].stop().await;
        // It may have reached no other member in time.
        if let Err(error) = cluster.members[changed].try_start().await {
            break error.to_string();
        }
    };
    assert!(refused.contains("found data inconsistency with peers"), "{refused}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_comparison_at_intervals_needs_no_compaction() {
    let mut cluster = Cluster::start(3, &["--corrupt-check-time=50ms"]).await;
    are_compared(&cluster, 2).await;
    let changed = cluster.follower().await;
    let key = put_new(&cluster.members[changed]).await;
    change_value(&cluster.members[changed], &key).await;
    cluster.members[changed].stop().await;
    cluster.members[changed].start().await;
    are_compared(&cluster, 2).await;
    let member = &cluster.members[changed];
    // No entry has met it yet.
    assert!(alarms(member).await.is_empty());
    member.put(&key, "other").await.unwrap();
    is_named(member, member.node().id()).await;
    cluster.stop().await;
}

/// Ends a member as a process does that is killed: what its state has not written is applied again.
async fn kill(member: &mut Member) {
    let kept = member.node().kept();
    drop(member.server.take());
    until(async || kept.strong_count() == 0 && open_files(&member.dir).is_empty()).await;
}

/// Checks, compactions, restarts, kills and installs of snapshots, with changes all the time: no alarm.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_difference_is_found_where_there_is_none() {
    let flags = [
        "--snapshot-count=60",
        "--snapshot-catchup-entries=5",
        "--corrupt-check-time=50ms",
        "--compact-hash-check-enabled=true",
        "--compact-hash-check-time=50ms",
    ];
    let mut cluster = Cluster::start(3, &flags).await;
    let (mut round, mut installed) = (0, 0);
    // A member that is back before the others have removed their entries needs no snapshot.
    while round < 6 || installed == 0 {
        assert!(round < 60, "no snapshot was installed");
        let away = round % 3;
        if round % 2 == 0 {
            cluster.members[away].stop().await;
        } else {
            kill(&mut cluster.members[away]).await;
        }
        let leader = cluster.leader().await;
        for number in 0..80 {
            let member = &cluster.members[leader];
            member.put(&format!("key{}", number % 17), &format!("{round} {number}")).await.unwrap();
            if number % 40 == 20 {
                let delete = DeleteRangeRequest { key: "key1".into(), ..DeleteRangeRequest::default() };
                member.propose(Change::DeleteRange(delete)).await.unwrap();
                compact(member, revision(member).await - 10).await;
            }
        }
        cluster.members[away].start().await;
        let last = cluster.members[leader].node().applied_index();
        cluster.members[away].applied(last).await;
        are_compared(&cluster, 3).await;
        installed += cluster.members[away].node().counts().installed.load(Ordering::Relaxed);
        round += 1;
    }
    for member in &cluster.members {
        assert!(alarms(member).await.is_empty(), "{}", member.name);
        assert_eq!(member.node().counts().differences.load(Ordering::Relaxed), 0, "{}", member.name);
    }
    cluster.stop().await;
}

/// Writes zeros around the middle of each longer file of tables below a directory. Returns their number.
pub(super) fn damage_tables(dir: &Path) -> usize {
    let mut damaged = 0;
    // A member that runs may have removed them meanwhile.
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            damaged += damage_tables(&path);
        } else if path.extension().is_some_and(|extension| extension == "fkv") {
            let Ok(file) = std::fs::File::options().write(true).open(&path) else { continue };
            let bytes = file.metadata().unwrap().len();
            if bytes < 100_000 {
                continue;
            }
            for at in (3..=5).map(|part| bytes * part / 8) {
                file.write_all_at(&[0; 64], at).unwrap();
            }
            file.sync_all().unwrap();
            damaged += 1;
        }
    }
    damaged
}

/// Waits until a member knows of damage.
pub(super) async fn damage(member: &Member) -> String {
    let mut found = None;
    until(async || {
        found = member.node().damage();
        found.is_some()
    })
    .await;
    found.unwrap().to_string()
}

/// Starts two members, too few for one to be healed, of which one has damaged tables that nothing has read. Returns its place as well.
async fn with_damaged_tables() -> (Cluster, usize) {
    let mut cluster = Cluster::start(2, &[]).await;
    let damaged = cluster.follower().await;
    let mut random = draw::Random(7);
    // Tables are compressed.
    let mut value = || -> String { (0..62).map(|_| format!("{:016x}", random.word())).collect() };
    let pairs = (0..600).map(|number| (format!("key{number}"), value()));
    let last = cluster.members[damaged].put_all(pairs).await;
    cluster.members[damaged].applied(last).await;
    cluster.members[damaged].node().store().flush().await.unwrap();
    cluster.members[damaged].stop().await;
    let dir = cluster.members[damaged].dir.join("member/state");
    assert!(damage_tables(&dir) > 0, "no table is long");
    cluster.members[damaged].start().await;
    assert_eq!(cluster.members[damaged].node().damage(), None);
    (cluster, damaged)
}

/// Regression: a corrupted byte in the history was found by the client that read it, or never.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scrub_finds_a_damaged_table_and_a_watch_that_meets_it_is_cancelled() {
    let (mut cluster, damaged) = with_damaged_tables().await;
    // The watch is the first to read there.
    let member = &cluster.members[damaged];
    let channel = Channel::from_shared(format!("http://{}:2379", member.address)).unwrap().connect_lazy();
    let create = WatchCreateRequest {
        key: "key".into(),
        range_end: "kez".into(),
        start_revision: 2,
        ..WatchCreateRequest::default()
    };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = stream::iter([create]).chain(stream::pending());
    let mut client = WatchClient::new(channel);
    let mut responses = within(client.watch(requests)).await.unwrap().into_inner();
    let cancelled = loop {
        let response = within(responses.message()).await.unwrap().unwrap();
        if response.canceled {
            break response;
        }
    };
    assert!(cancelled.cancel_reason.contains("is damaged"), "{}", cancelled.cancel_reason);
    assert_ne!(member.node().damage(), None);
    // A new start forgets it, and the scrub finds it again.
    cluster.members[damaged].stop().await;
    cluster.members[damaged].arguments.push("--forebay-scrub-interval=10ms".to_owned());
    cluster.members[damaged].start().await;
    damage(&cluster.members[damaged]).await;
    for (at, member) in cluster.members.iter().enumerate() {
        // The rest of it may fail, without a leader for a while.
        let (status, body) = get(&member.address, 2379, "/readyz/data_corruption").await;
        let expected = if at == damaged { 503 } else { 200 };
        assert_eq!(status, expected, "{}: {body}", member.name);
        assert_eq!(body.contains("[-]data_corruption failed"), at == damaged, "{body}");
        // It is one member's: the others serve.
        assert!(alarms(member).await.is_empty());
    }
    let (status, body) = get(&cluster.members[damaged].address, 2379, "/health").await;
    assert_eq!(status, 503);
    assert!(body.contains("DAMAGED STATE"), "{body}");
    cluster.stop().await;
}

/// Story: a kubelet asked `/livez` every few seconds, and each time all keys were read, to be counted. A state with very many keys took too
/// long, and its member was restarted for that again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_reads_one_key_however_many_there_are() {
    let (mut cluster, damaged) = with_damaged_tables().await;
    // A read of all keys fails there.
    let address = &cluster.members[damaged].address;
    for path in ["/livez", "/health?serializable=true"] {
        let (status, body) = get(address, 2379, path).await;
        assert_eq!(status, 200, "{path}: {body}");
    }
    cluster.stop().await;
}

/// Story: an operator saved a snapshot, and compared members by `etcdctl endpoint hashkv`. Both failed at a member whose disk had lost
/// bytes, and only the caller knew: log, metrics and `/readyz` said nothing, and one of three was not healed until the scrub found the
/// same, days later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_that_a_snapshot_or_a_hash_meets_is_named() {
    let (mut cluster, damaged) = with_damaged_tables().await;
    for is_snapshot in [true, false] {
        let member = &cluster.members[damaged];
        let address = format!("http://{}:2379", member.address);
        let mut client = MaintenanceClient::new(Channel::from_shared(address).unwrap().connect_lazy());
        if is_snapshot {
            let mut parts = within(client.snapshot(SnapshotRequest {})).await.unwrap().into_inner();
            while let Ok(part) = within(parts.message()).await {
                assert!(part.is_some(), "it ended as if it were whole");
            }
        } else {
            within(client.hash_kv(HashKvRequest { revision: 0 })).await.unwrap_err();
        }
        assert!(matches!(member.node().damage(), Some(Damage::Tables(_))), "{:?}", member.node().damage());
        let (status, body) = get(&member.address, 2379, "/readyz/data_corruption").await;
        assert_eq!(status, 503, "{body}");
        // A new start forgets it.
        cluster.members[damaged].stop().await;
        cluster.members[damaged].start().await;
        assert_eq!(cluster.members[damaged].node().damage(), None);
    }
    cluster.stop().await;
}

/// Story: a supervisor asked for `/health`, and an operator for the members. Both were told of entries that cannot be read, each time again,
/// and the member itself, which repairs or at least names its damage, took no note of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_that_a_probe_or_a_list_of_members_meets_is_named() {
    let mut cluster = Cluster::start(1, &[]).await;
    let member = &cluster.members[0];
    let node = member.node();
    for (key, is_probe) in [("alarm/1", true), ("member/1", false)] {
        assert_eq!(node.damage(), None);
        let keyspaces = node.store().keyspaces();
        let mut batch = forebay_kv::Batch::new();
        // No entry writes this.
        batch.put(keyspaces.last().unwrap(), key, [0xff]);
        node.store().store().write(&batch).await.unwrap();
        if is_probe {
            let (status, body) = get(&member.address, 2379, "/health").await;
            assert!(status == 503 && body.contains("RANGE ERROR"), "{body}");
        } else {
            node.members(false).await.unwrap_err();
        }
        assert!(matches!(node.damage(), Some(Damage::Sums(_))), "{key}: {:?}", node.damage());
        node.set_damage(None);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scrub_names_a_member_whose_tables_are_not_those_of_its_sums() {
    let mut cluster = Cluster::start(3, &["--forebay-scrub-interval=10ms"]).await;
    let member = &cluster.members[cluster.follower().await];
    let key = put_new(member).await;
    let scrubs = || member.node().counts().scrubs.load(Ordering::Relaxed);
    until(async || scrubs() >= 2).await;
    assert_eq!(member.node().damage(), None);
    change_value(member, &key).await;
    let found = damage(member).await;
    assert!(found.contains("current values"), "{found}");
    is_named(member, member.node().id()).await;
    // All checksums are right: this damage is not from a disk.
    assert_eq!(member.node().counts().repairs_failed.load(Ordering::Relaxed), 0);
    assert_eq!(member.node().counts().repairs.load(Ordering::Relaxed), 0);
    cluster.stop().await;
}
