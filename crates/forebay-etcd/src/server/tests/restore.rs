//! Restored snapshots: members of a new cluster start with them, and invalid files leave nothing behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use tonic::transport::Channel;

use super::cluster::{Cluster, Member, until, within};
use crate::mvcc::View;
use crate::proto::etcdserverpb::maintenance_client::MaintenanceClient;
use crate::proto::etcdserverpb::watch_client::WatchClient;
use crate::proto::etcdserverpb::watch_request::RequestUnion;
use crate::proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, LeaseGrantRequest, MemberAddRequest, PutRequest, RangeRequest,
    SnapshotRequest, WatchCreateRequest, WatchRequest,
};
use crate::proto::mvccpb::KeyValue;
use crate::proto::peer::command::Change;
use crate::proto::peer::member_change;
use crate::{Config, Invocation, Restore};

fn channel(member: &Member) -> Channel {
    Channel::from_shared(format!("http://{}:2379", member.address)).unwrap().connect_lazy()
}

/// Saves a snapshot as clients do.
async fn save(member: &Member, path: &Path) {
    let mut parts =
        MaintenanceClient::new(channel(member)).snapshot(SnapshotRequest {}).await.unwrap().into_inner();
    let mut file = Vec::new();
    while let Some(part) = within(parts.message()).await.unwrap() {
        file.extend(part.blob);
    }
    fs::write(path, file).unwrap();
}

fn restore_with(arguments: &[String]) -> Restore {
    let command = ["forebay-etcd", "snapshot", "restore"].map(str::to_owned);
    match Config::parse(command.into_iter().chain(arguments.iter().cloned()), []).unwrap() {
        Invocation::Restore(restore) => *restore,
        other => panic!("{other:?}"),
    }
}

/// Returns the command that restores a file for a member, with the flags with which that is started.
fn restore(member: &Member, file: &Path, more: &[&str]) -> Restore {
    let is_meant =
        |flag: &&String| ["--name", "--data-dir", "--initial-"].iter().any(|name| flag.starts_with(name));
    let mut arguments = vec![file.display().to_string()];
    arguments.extend(member.arguments.iter().filter(is_meant).cloned());
    arguments.extend(more.iter().map(|flag| (*flag).to_owned()));
    restore_with(&arguments)
}

async fn all(member: &Member, revision: i64) -> Vec<KeyValue> {
    let view = View::of(member.node().store()).await.unwrap();
    let request = RangeRequest { key: vec![0], range_end: vec![0], revision, ..RangeRequest::default() };
    view.range(&request).await.unwrap().kvs
}

async fn hash(member: &Member, revision: i64) -> (u32, i64, i64) {
    View::of(member.node().store()).await.unwrap().hash(revision).await.unwrap()
}

/// A state with history, deletes, a lease with a key, and a compaction.
async fn fill(member: &Member) {
    for number in 0..30 {
        member.put(&format!("key{}", number % 10), &format!("value {number}")).await.unwrap();
    }
    let node = member.node();
    let change = |change| async { node.propose(change).await.unwrap() };
    change(Change::LeaseGrant(LeaseGrantRequest { id: 77, ttl: 5_000 })).await;
    let leased = PutRequest { key: "leased".into(), lease: 77, ..PutRequest::default() };
    change(Change::Put(leased)).await;
    let delete = DeleteRangeRequest { key: "key3".into(), range_end: "key6".into(), prev_kv: false };
    change(Change::DeleteRange(delete)).await;
    change(Change::Compact(CompactionRequest { revision: 15, physical: false })).await;
    member.put("last", "value").await.unwrap();
}

/// Starts a member, fills its state, and saves a snapshot of it.
async fn saved() -> (Cluster, PathBuf) {
    let cluster = Cluster::start(1, &[]).await;
    fill(&cluster.members[0]).await;
    let path = cluster.members[0].dir.parent().unwrap().join("snapshot");
    save(&cluster.members[0], &path).await;
    (cluster, path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_restore_a_snapshot_and_are_a_cluster() {
    let (mut before, file) = saved().await;
    let mut cluster = Cluster::new(3, &[]);
    for member in &cluster.members {
        let restored = restore(member, &file, &[]).run().await.unwrap().to_string();
        assert!(
            restored.starts_with("restored 9 keys and 1 leases as of revision 34 for member "),
            "{restored}"
        );
    }
    for member in &mut cluster.members {
        member.start().await;
    }
    for member in &cluster.members {
        within(member.server.as_ref().unwrap().ready()).await;
    }
    let old = &before.members[0];
    for member in &cluster.members {
        for revision in 15..=34 {
            assert_eq!(all(member, revision).await, all(old, revision).await);
            assert_eq!(hash(member, revision).await, hash(old, revision).await);
        }
        let members = member.node().members(true).await.unwrap();
        let names: Vec<&str> = members.iter().map(|member| &*member.name).collect();
        assert!(names.len() == 3 && names.iter().all(|name| name.starts_with('m')), "{names:?}");
        assert_ne!(member.node().cluster_id(), old.node().cluster_id());
        assert_eq!(member.node().counts().foreign.load(Ordering::Relaxed), 0);
    }

    // Changes, and a watch that starts before the restore.
    let follower = cluster.follower().await;
    cluster.members[follower].put("after", "value").await.unwrap();
    let create =
        WatchCreateRequest { key: "key9".into(), start_revision: 20, prev_kv: true, ..Default::default() };
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = futures_util::StreamExt::chain(
        futures_util::stream::iter([request]),
        futures_util::stream::pending(),
    );
    let mut watch = WatchClient::new(channel(&cluster.members[follower]));
    let mut watch = watch.watch(requests).await.unwrap().into_inner();
    cluster.members[follower].put("key9", "newest").await.unwrap();
    let mut events = Vec::new();
    while events.len() < 3 {
        events.extend(within(watch.message()).await.unwrap().unwrap().events);
    }
    let values: Vec<String> = events
        .iter()
        .map(|event| String::from_utf8(event.kv.as_ref().unwrap().value.to_vec()).unwrap())
        .collect();
    assert_eq!(values, ["value 19", "value 29", "newest"]);
    assert_eq!(events[1].prev_kv.as_ref().unwrap().value, "value 19");

    // A member that is added has no other way to the entries before the restore than a snapshot.
    let at = cluster.make_joining();
    let url = cluster.members[at].peer_url();
    let add = MemberAddRequest { peer_ur_ls: vec![url], is_learner: false };
    cluster.members[follower].change(member_change::Change::Add(add)).await;
    cluster.members[at].start().await;
    cluster.members[at].votes().await;
    let joined = &cluster.members[at];
    assert!(joined.node().counts().installed.load(Ordering::Relaxed) > 0, "no snapshot was needed");
    assert_eq!(joined.get("key9").await.as_deref(), Some("newest"));
    assert_eq!(hash(joined, 34).await, hash(old, 34).await);
    assert_eq!(all(joined, 15).await, all(old, 15).await);
    // It continues from its own directory.
    cluster.stop().await;
    for member in &mut cluster.members {
        member.start().await;
    }
    assert_eq!(cluster.members[0].get("after").await.as_deref(), Some("value"));
    cluster.stop().await;
    before.stop().await;
}

/// Members of different states would never agree. A member that was not restored, or from another file, is of another cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_different_states_are_not_a_cluster() {
    let (mut before, file) = saved().await;
    let other = file.with_extension("other");
    before.members[0].put("one", "more").await.unwrap();
    save(&before.members[0], &other).await;
    let mut cluster = Cluster::new(3, &[]);
    restore(&cluster.members[0], &file, &[]).run().await.unwrap();
    restore(&cluster.members[1], &other, &[]).run().await.unwrap();
    for member in &mut cluster.members {
        member.start().await;
    }
    let ids: std::collections::BTreeSet<u64> =
        cluster.members.iter().map(|member| member.node().cluster_id()).collect();
    assert_eq!(ids.len(), 3);
    for member in &cluster.members {
        let counts = member.node().counts();
        until(async || counts.foreign.load(Ordering::Relaxed) > 0).await;
        assert_eq!(member.node().leader(), None);
    }
    cluster.stop().await;
    before.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_are_no_snapshots_leave_nothing_behind() {
    let (mut before, file) = saved().await;
    before.stop().await;
    let whole = fs::read(&file).unwrap();
    let damaged = file.with_extension("damaged");
    let cluster = Cluster::new(1, &[]);
    let member = &cluster.members[0];
    let run = async |bytes: &[u8], more: &[&str]| {
        fs::write(&damaged, bytes).unwrap();
        let result = restore(member, &damaged, more).run().await;
        let result = result.map(|restored| restored.to_string()).map_err(|error| error.to_string());
        assert_eq!(member.dir.exists(), result.is_ok(), "{result:?}");
        if result.is_ok() {
            fs::remove_dir_all(&member.dir).unwrap();
        }
        if let Err(text) = &result {
            assert!(text.contains(&damaged.display().to_string()), "{text}");
        }
        result
    };
    let mut random = 1_u64;
    let mut below = |end: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % end
    };
    // One bit anywhere.
    for _ in 0..100 {
        let mut file = whole.clone();
        let at = below(file.len());
        file[at] ^= 1 << below(8);
        let text = run(&file, &[]).await.unwrap_err();
        assert!(text.ends_with("it is damaged: its contents do not have the checksum at its end"), "{text}");
    }
    for length in [0, 31, 100, 4096, whole.len() - 32, whole.len() - 1] {
        let text = run(&whole[..length], &[]).await.unwrap_err();
        assert!(text.contains("has no checksum at its end"), "{length}: {text}");
    }
    for length in [32, 4096 + 32] {
        let text = run(&whole[..length], &[]).await.unwrap_err();
        assert!(text.contains("do not have the checksum"), "{length}: {text}");
    }
    let noise: Vec<u8> = (0..4096 + 32).map(|_| below(256) as u8).collect();
    run(&noise, &[]).await.unwrap_err();
    let skip = ["--skip-hash-check"];
    assert!(run(&noise, &skip).await.unwrap_err().contains("no page of it has the mark of a bbolt file"));
    assert!(run(&[], &skip).await.unwrap_err().contains("no page of it has the mark of a bbolt file"));
    assert!(run(&whole[..4096 * 4], &skip).await.unwrap_err().contains("and should have"));
    // Without its checksum it is as one that was copied.
    let pages = &whole[..whole.len() - 32];
    let copied = run(pages, &skip).await.unwrap();
    assert_eq!(copied, run(&whole, &[]).await.unwrap());
    // Damage that no checksum shows is an error, or another state; it neither panics nor hangs.
    let mut refused = 0;
    for round in 0..30 {
        let mut file = pages.to_vec();
        for _ in 0..1 + below(20) {
            let at = below(file.len());
            file[at] ^= 1 << below(8);
        }
        // Much of the file is free: every second time the head of each page has a wrong bit as well.
        for page in file.chunks_mut(4096).filter(|_| round % 2 == 1) {
            page[below(12)] ^= 1 << below(8);
        }
        refused += u32::from(within(run(&file, &skip)).await.is_err());
    }
    assert!(refused >= 15, "{refused} of 30 were refused");
    let missing = restore(member, &file.with_extension("missing"), &[]).run().await.unwrap_err().to_string();
    assert!(missing.contains("missing") && !member.dir.exists(), "{missing}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_is_in_use_is_not_restored_into() {
    let (mut before, file) = saved().await;
    let mut cluster = Cluster::new(1, &["--snapshot-count=1000"]);
    let dir = cluster.members[0].dir.clone();
    let text = async |member: &Member, more: &[&str]| {
        restore(member, &file, more).run().await.unwrap_err().to_string()
    };
    // The server's own, while it runs.
    assert!(text(&before.members[0], &[]).await.ends_with("holds a member already: give another --data-dir"));
    before.stop().await;
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("mine.txt"), "").unwrap();
    assert!(text(&cluster.members[0], &[]).await.ends_with("is not empty: give another --data-dir"));
    assert!(dir.join("mine.txt").exists());
    fs::remove_file(dir.join("mine.txt")).unwrap();
    let log_dir = dir.with_extension("log");
    fs::create_dir(&log_dir).unwrap();
    fs::write(log_dir.join("mine.txt"), "").unwrap();
    let with_log = format!("--wal-dir={}", log_dir.display());
    assert!(text(&cluster.members[0], &[&with_log]).await.ends_with("is not empty: give another --wal-dir"));
    assert!(dir.exists() && log_dir.join("mine.txt").exists());
    fs::remove_file(log_dir.join("mine.txt")).unwrap();

    // A crash in the middle of a restore: neither a server nor another restore accepts the remains as a member.
    fs::create_dir_all(dir.join("member.unfinished/state")).unwrap();
    let left =
        "was left by a restore that did not come to its end: remove it, and restore the snapshot again";
    assert!(text(&cluster.members[0], &[]).await.ends_with(left));
    assert!(cluster.members[0].try_start().await.unwrap_err().to_string().ends_with(left));
    fs::remove_dir_all(dir.join("member.unfinished")).unwrap();

    // An empty directory counts as missing, for example the mount point of a disk. The log may be on another disk.
    restore(&cluster.members[0], &file, &[&with_log]).run().await.unwrap();
    cluster.members[0].arguments.push(with_log);
    cluster.members[0].start().await;
    assert_eq!(cluster.members[0].get("last").await.as_deref(), Some("value"));
    cluster.members[0].put("after", "value").await.unwrap();
    cluster.stop().await;
}

/// Story: a restore that failed removed the directory of its log, which was made for it, with an owner and a mode. A directory of data
/// stayed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_restore_leaves_directories_as_they_were() {
    let (mut before, file) = saved().await;
    before.stop().await;
    let cluster = Cluster::new(1, &[]);
    let member = &cluster.members[0];
    let log_dir = member.dir.with_extension("log");
    let with_log = format!("--wal-dir={}", log_dir.display());
    let too_far = format!("--bump-revision={}", i64::MAX);
    let fail = async || {
        let failed = restore(member, &file, &[&with_log, &too_far, "--mark-compacted"]).run().await;
        assert!(failed.unwrap_err().to_string().contains("no revision is"));
    };
    fail().await;
    assert!(!member.dir.exists() && !log_dir.exists());
    for dir in [&member.dir, &log_dir] {
        fs::create_dir(dir).unwrap();
    }
    fail().await;
    for dir in [&member.dir, &log_dir] {
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "{}", dir.display());
    }
    // They are used after the failure.
    restore(member, &file, &[&with_log]).run().await.unwrap();
}
