//! Starts that are refused, and members that are not of one cluster.

use std::sync::atomic::Ordering;

use forebay_raft::RaftLog;

use super::cluster::{Cluster, until, within};
use crate::Server;
use crate::proto::etcdserverpb::{MemberAddRequest, MemberRemoveRequest};
use crate::proto::peer::member_change;
use crate::types::Types;

async fn refusal(cluster: &Cluster, at: usize) -> String {
    Server::start(cluster.members[at].config()).await.map(|_| ()).unwrap_err().to_string()
}

fn set(cluster: &mut Cluster, at: usize, flag: &str, value: &str) {
    let arguments = &mut cluster.members[at].arguments;
    arguments.retain(|argument| !argument.starts_with(&format!("--{flag}=")));
    arguments.push(format!("--{flag}={value}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_in_use_is_said_before_anything_is_made() {
    let mut cluster = Cluster::new(1, &[]);
    let taken = tokio::net::TcpListener::bind(format!("{}:2379", cluster.members[0].address)).await.unwrap();
    let sentence = refusal(&cluster, 0).await;
    assert!(sentence.starts_with("--listen-client-urls=http://127."), "{sentence}");
    assert!(sentence.contains("the port is in use"), "{sentence}");
    assert!(!cluster.members[0].dir.exists());
    drop(taken);
    cluster.members[0].start().await;
    // Its own ports are in use now; another name for the directory does not help.
    let elsewhere = cluster.dir.path().join("elsewhere").display().to_string();
    set(&mut cluster, 0, "data-dir", &elsewhere);
    assert!(refusal(&cluster, 0).await.contains("the port is in use"));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_of_another_member_or_cluster_is_refused() {
    let mut cluster = Cluster::start(2, &[]).await;
    cluster.stop().await;
    let dirs: Vec<String> = cluster.members.iter().map(|member| member.dir.display().to_string()).collect();
    set(&mut cluster, 0, "data-dir", &dirs[1]);
    let sentence = refusal(&cluster, 0).await;
    assert!(sentence.contains("is of member") && sentence.contains("--data-dir"), "{sentence}");
    set(&mut cluster, 0, "data-dir", &dirs[0]);
    set(&mut cluster, 0, "initial-cluster-token", "another");
    let sentence = refusal(&cluster, 0).await;
    assert!(sentence.contains("token \"etcd-cluster\""), "{sentence}");
    // Directories that are not of this program.
    set(&mut cluster, 0, "initial-cluster-token", "etcd-cluster");
    let foreign = cluster.dir.path().join("foreign");
    std::fs::create_dir_all(foreign.join("member/wal")).unwrap();
    set(&mut cluster, 0, "data-dir", &foreign.display().to_string());
    assert!(refusal(&cluster, 0).await.contains("data of etcd itself"));
    // Its own directory is in use.
    set(&mut cluster, 0, "data-dir", &dirs[0]);
    for member in &mut cluster.members {
        member.start().await;
    }
    for member in &cluster.members {
        within(member.server.as_ref().unwrap().ready()).await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_directory_that_is_in_use_is_refused() {
    let mut cluster = Cluster::start(1, &[]).await;
    let address = super::cluster::new_address();
    for flag in ["listen-client-urls", "listen-peer-urls"] {
        set(&mut cluster, 0, flag, &format!("http://{address}:2379"));
    }
    set(&mut cluster, 0, "listen-peer-urls", &format!("http://{address}:2380"));
    let sentence = refusal(&cluster, 0).await;
    assert!(sentence.contains("in use by another process"), "{sentence}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_joins_only_a_cluster_that_expects_it() {
    let mut cluster = Cluster::start(1, &[]).await;
    let at = cluster.make_joining();
    let sentence = refusal(&cluster, at).await;
    assert!(
        sentence.contains("has no member with the peer URLs") && sentence.contains("member add"),
        "{sentence}"
    );
    cluster.stop().await;
    let sentence = refusal(&cluster, at).await;
    assert!(sentence.contains("no member of the cluster to join replied"), "{sentence}");
    let alone = format!("m1={}", cluster.members[at].peer_url());
    set(&mut cluster, at, "initial-cluster", &alone);
    let sentence = refusal(&cluster, at).await;
    assert!(sentence.contains("this member is alone there"), "{sentence}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_another_cluster_are_not_listened_to() {
    let mut cluster = Cluster::new(2, &[]);
    set(&mut cluster, 1, "initial-cluster-token", "another");
    for member in &mut cluster.members {
        member.start().await;
    }
    // Both ask the other for its vote, and are refused.
    let mut terms = Vec::new();
    for member in &cluster.members {
        let counts = member.node().counts();
        until(async || counts.foreign.load(Ordering::Relaxed) >= 3).await;
        terms.push(member.node().leader());
    }
    assert_eq!(terms, [None, None]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_comes_back_from_its_directory_alone() {
    let mut cluster = Cluster::start(3, &[]).await;
    let ids: Vec<u64> = cluster.members.iter().map(|member| member.node().id()).collect();
    cluster.members[0].put("key", "value").await.unwrap();
    cluster.stop().await;
    for member in &mut cluster.members {
        // Flags of the first members do not count any more.
        let name = member.name.clone();
        let url = member.peer_url();
        member.arguments.retain(|argument| !argument.starts_with("--initial-cluster="));
        member.arguments.push(format!("--initial-cluster={name}={url}"));
        member.start().await;
    }
    for (member, id) in cluster.members.iter().zip(ids) {
        assert_eq!(member.node().id(), id);
        assert_eq!(member.get("key").await.as_deref(), Some("value"));
    }
    cluster.stop().await;
}

/// The drive of --wal-dir was not mounted: the log was created anew, without the former vote and entries, which the member had
/// acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_does_not_go_on_without_its_log() {
    let mut cluster = Cluster::new(1, &[]);
    let log = cluster.dir.path().join("drive/log");
    set(&mut cluster, 0, "wal-dir", &log.display().to_string());
    cluster.members[0].start().await;
    cluster.members[0].put("key", "value").await.unwrap();
    cluster.members[0].stop().await;

    let away = cluster.dir.path().join("away");
    std::fs::rename(log.parent().unwrap(), &away).unwrap();
    for _ in 0..2 {
        let sentence = refusal(&cluster, 0).await;
        assert!(sentence.starts_with(&log.display().to_string()), "{sentence}");
        assert!(
            sentence.contains("holds no log, and member") && sentence.contains("mount its drive"),
            "{sentence}"
        );
        // The second time only the empty mount point of the drive exists.
        std::fs::create_dir_all(&log).unwrap();
    }
    // Nor with a log that another start has created there meanwhile.
    let elsewhere = cluster.dir.path().join("elsewhere").display().to_string();
    let own = cluster.members[0].dir.display().to_string();
    set(&mut cluster, 0, "data-dir", &elsewhere);
    cluster.members[0].start().await;
    cluster.members[0].stop().await;
    set(&mut cluster, 0, "data-dir", &own);
    let sentence = refusal(&cluster, 0).await;
    assert!(sentence.contains("holds another log than the one that member"), "{sentence}");

    std::fs::remove_dir_all(log.parent().unwrap()).unwrap();
    std::fs::rename(&away, log.parent().unwrap()).unwrap();
    cluster.members[0].start().await;
    assert_eq!(cluster.members[0].get("key").await.as_deref(), Some("value"));
    cluster.stop().await;
}

/// Vote and entries of another member's log were adopted as the member's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_of_another_member_is_refused() {
    let mut cluster = Cluster::new(2, &[]);
    let logs: Vec<String> =
        (0..2).map(|at| cluster.dir.path().join(format!("log{at}")).display().to_string()).collect();
    for (at, log) in logs.iter().enumerate() {
        set(&mut cluster, at, "wal-dir", log);
        cluster.members[at].start().await;
    }
    cluster.members[0].put("key", "value").await.unwrap();
    cluster.stop().await;
    set(&mut cluster, 0, "wal-dir", &logs[1]);
    let sentence = refusal(&cluster, 0).await;
    assert!(sentence.starts_with(&format!("{} holds the log of member ", logs[1])), "{sentence}");
    // At a first start too, and its own without the rest of its data.
    let own = cluster.members[0].dir.display().to_string();
    let fresh = cluster.dir.path().join("fresh").display().to_string();
    set(&mut cluster, 0, "data-dir", &fresh);
    let sentence = refusal(&cluster, 0).await;
    assert!(sentence.starts_with(&format!("{} holds the log of member ", logs[1])), "{sentence}");
    set(&mut cluster, 0, "wal-dir", &logs[0]);
    let sentence = refusal(&cluster, 0).await;
    assert!(sentence.contains("holds a log that is in use") && sentence.contains("--data-dir"), "{sentence}");

    set(&mut cluster, 0, "data-dir", &own);
    for member in &mut cluster.members {
        member.start().await;
    }
    assert_eq!(cluster.members[0].get("key").await.as_deref(), Some("value"));
    cluster.stop().await;
}

/// A first start may be interrupted after each of its writes: the identity, the log, the owner in the log, the log in the identity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_start_that_was_interrupted_is_resumed() {
    for stage in ["identity", "log", "owner"] {
        let mut cluster = Cluster::start(1, &[]).await;
        let member = cluster.members[0].dir.join("member");
        let (cluster_id, member_id) = {
            let node = cluster.members[0].node();
            (node.cluster_id(), node.id())
        };
        cluster.stop().await;
        let file = member.join("identity.json");
        let mut identity: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert!(identity["log"].is_u64(), "{identity}");
        identity["log"] = serde_json::Value::Null;
        for part in ["log", "state"] {
            std::fs::remove_dir_all(member.join(part)).unwrap();
        }
        std::fs::write(&file, serde_json::to_vec(&identity).unwrap()).unwrap();
        if stage != "identity" {
            let engine = forebay::Engine::start(forebay::Config::new().shards(1)).unwrap();
            let options = forebay_raft::LogOptions::new();
            let log = RaftLog::<Types>::open(&engine, member.join("log"), options).await.unwrap();
            if stage == "owner" {
                let owner = format!("{cluster_id:x} {member_id:x} 77");
                log.wal().set("etcd.owner", owner.as_bytes()).await.unwrap();
            }
            log.close().await.unwrap();
        }
        cluster.members[0].start().await;
        within(cluster.members[0].server.as_ref().unwrap().ready()).await;
        cluster.members[0].put("key", stage).await.unwrap();
        cluster.members[0].stop().await;
        cluster.members[0].start().await;
        assert_eq!(cluster.members[0].get("key").await.as_deref(), Some(stage));
        cluster.stop().await;
    }
}

/// A member whose data was lost returned with its old id and its old flags, without the entries that it had acknowledged: with one
/// of the others down, entries known only to those two were lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_without_its_data_is_no_first_member() {
    let mut cluster = Cluster::new(3, &[]);
    for at in [0, 1] {
        cluster.members[at].start().await;
    }
    for at in [0, 1] {
        within(cluster.members[at].server.as_ref().unwrap().ready()).await;
    }
    cluster.members[0].put("key", "value").await.unwrap();
    // One that starts for the first time, long after the others.
    cluster.members[2].start().await;
    within(cluster.members[2].server.as_ref().unwrap().ready()).await;
    let id = cluster.members[2].node().id();
    cluster.members[2].stop().await;
    std::fs::remove_dir_all(&cluster.members[2].dir).unwrap();

    let sentence = refusal(&cluster, 2).await;
    assert!(sentence.starts_with(&format!("member {id:x} with the peer URLs ")), "{sentence}");
    assert!(sentence.contains("has started before") && sentence.contains("member remove"), "{sentence}");
    assert!(!cluster.members[2].dir.exists(), "a refusal leaves nothing");
    // The remedy that it names. Between its steps it is refused as well.
    let change = |change| async { cluster.members[0].change(change).await };
    change(member_change::Change::Remove(MemberRemoveRequest { id })).await;
    let sentence = refusal(&cluster, 2).await;
    assert!(
        sentence.contains("was removed from the cluster") && sentence.contains("member add m2"),
        "{sentence}"
    );
    let url = cluster.members[2].peer_url();
    change(member_change::Change::Add(MemberAddRequest { peer_ur_ls: vec![url], is_learner: false })).await;
    set(&mut cluster, 2, "initial-cluster-state", "existing");
    cluster.members[2].start().await;
    cluster.members[2].votes().await;
    assert_ne!(cluster.members[2].node().id(), id);
    assert_eq!(cluster.members[2].get("key").await.as_deref(), Some("value"));
    cluster.stop().await;
}

/// Returns the files below a directory that this process has open.
pub(super) fn open_files(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let open = open.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    open.filter(|file| file.starts_with(dir)).collect()
}

/// Regression: the leases had the node, and the node had the leases. A member that was shut down kept its threads and its memory
/// for as long as the process ran, and a dropped member continued with all its tasks and kept its files, too: tests used 12 GB of
/// disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_has_ended_leaves_nothing_behind() {
    let mut cluster = Cluster::start(1, &[]).await;
    for is_shut_down in [true, false] {
        cluster.members[0].put("a", "1").await.unwrap();
        let kept = cluster.members[0].node().kept();
        assert!(!open_files(cluster.dir.path()).is_empty());
        if is_shut_down {
            cluster.members[0].stop().await;
        } else {
            drop(cluster.members[0].server.take());
        }
        let gone = async {
            while kept.strong_count() > 0 || !open_files(cluster.dir.path()).is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        within(gone).await;
        cluster.members[0].start().await;
        assert_eq!(cluster.members[0].local("a").await.as_deref(), Some("1"));
        within(cluster.members[0].server.as_ref().unwrap().ready()).await;
    }
    cluster.stop().await;
}
