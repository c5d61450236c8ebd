//! A member that continues without the others, which are lost.

use std::sync::atomic::Ordering;

use forebay_raft::RaftLog;
use openraft::RaftLogReader;
use openraft::alias::{LeaderIdOf, VoteOf};
use openraft::storage::RaftLogStorage;
use openraft::vote::{RaftLeaderId, RaftVote};

use super::cluster::{Cluster, Member, settled, until, within};
use super::healing::{remove_tables, states};
use crate::proto::etcdserverpb::MemberAddRequest;
use crate::proto::peer::member_change;
use crate::types::Types;

const FORCED: &str = "--force-new-cluster";

async fn names(member: &Member) -> Vec<String> {
    let members = settled(async || member.node().members(true).await).await.unwrap();
    members.into_iter().map(|member| member.name).collect()
}

/// Two of three members are lost: the third continues with all its data, refuses the lost members when they return, and accepts new
/// members.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_goes_on_alone_where_the_others_are_lost() {
    let mut cluster = Cluster::start(3, &["--snapshot-count=20", "--snapshot-catchup-entries=5"]).await;
    let mut last = 0;
    for number in 0..50 {
        last = cluster.members[0].put(&format!("key{number}"), "value").await.unwrap();
    }
    cluster.members[2].applied(last).await;
    let (former, id) = (cluster.members[2].node().cluster_id(), cluster.members[2].node().id());
    cluster.members[2].stop().await;
    cluster.members[2].arguments.push(FORCED.to_owned());
    let refused = cluster.members[2].try_start().await.unwrap_err().to_string();
    assert!(refused.contains(" runs at http://127."), "{refused}");
    // Nothing has changed.
    cluster.members[2].arguments.pop();
    cluster.members[2].start().await;
    let last = cluster.members[2].put("together", "value").await.unwrap();
    cluster.members[2].applied(last).await;
    cluster.stop().await;

    cluster.members[2].arguments.push(FORCED.to_owned());
    let mut other = 0;
    // The second start with the flag finds it alone already.
    for start in ["first", "second", "without the flag"] {
        if start == "without the flag" {
            cluster.members[2].arguments.pop();
        }
        cluster.members[2].start().await;
        let member = &cluster.members[2];
        within(member.server.as_ref().unwrap().ready()).await;
        member.put(start, "value").await.unwrap();
        for key in ["key0", "key49", "together", "first"] {
            assert_eq!(member.get(key).await.as_deref(), Some("value"), "{start}: {key}");
        }
        assert_eq!(names(member).await, ["m2"], "{start}");
        assert_eq!(member.node().id(), id);
        assert_ne!(member.node().cluster_id(), former);
        assert!(other == 0 || member.node().cluster_id() == other, "{start}");
        other = member.node().cluster_id();
        member.has_latest_format().await;
        if start != "without the flag" {
            cluster.members[2].stop().await;
        }
    }

    // Both others are a majority of the former cluster, and reach this member.
    cluster.members[0].start().await;
    cluster.members[1].start().await;
    let member = &cluster.members[2];
    until(async || member.node().counts().foreign.load(Ordering::Relaxed) > 0).await;
    cluster.members[0].put("former", "value").await.unwrap();
    member.put("alone", "value").await.unwrap();
    assert_eq!(member.get("former").await, None);
    cluster.members[0].stop().await;
    cluster.members[1].stop().await;

    let at = cluster.make_joining();
    let url = cluster.members[at].peer_url();
    let add = MemberAddRequest { peer_ur_ls: vec![url], is_learner: false };
    cluster.members[2].change(member_change::Change::Add(add)).await;
    cluster.members[at].start().await;
    cluster.members[at].votes().await;
    for key in ["key0", "together", "alone"] {
        assert_eq!(cluster.members[at].get(key).await.as_deref(), Some("value"), "{key}");
    }
    assert_eq!(cluster.members[at].node().cluster_id(), other);
    // With another member that runs, the flag is refused.
    cluster.members[2].stop().await;
    cluster.members[2].arguments.push(FORCED.to_owned());
    let refused = cluster.members[2].try_start().await.unwrap_err().to_string();
    assert!(refused.contains(" runs at "), "{refused}");
    cluster.stop().await;
}

/// A member may be killed after each of its writes: the identity, the vote, the membership. Without the flag it then continued as a
/// member of the new cluster with the membership of the former: of neither.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_interrupted_goes_on_alone_without_the_flag() {
    for stage in ["identity", "vote", "membership"] {
        let mut cluster = Cluster::start(3, &[]).await;
        cluster.members[2].put("key", "value").await.unwrap();
        let (former, id) = (cluster.members[2].node().cluster_id(), cluster.members[2].node().id());
        cluster.stop().await;
        if stage == "membership" {
            cluster.members[2].arguments.push(FORCED.to_owned());
            cluster.members[2].start().await;
            cluster.members[2].stop().await;
            cluster.members[2].arguments.pop();
        }
        let dir = cluster.members[2].dir.join("member");
        let file = dir.join("identity.json");
        let mut identity: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let engine = forebay::Engine::start(forebay::Config::new().shards(1)).unwrap();
        let options = forebay_raft::LogOptions::new();
        let mut log = RaftLog::<Types>::open(&engine, dir.join("log"), options).await.unwrap();
        if stage == "membership" {
            let owner = format!("{former:x} {id:x} {:x}", identity["log"].as_u64().unwrap());
            log.wal().set("etcd.owner", owner.as_bytes()).await.unwrap();
        } else {
            identity["former_cluster_id"] = former.into();
            identity["cluster_id"] = 77.into();
            std::fs::write(&file, serde_json::to_vec(&identity).unwrap()).unwrap();
        }
        if stage == "vote" {
            let term = log.read_vote().await.unwrap().unwrap().leader_id().term() + 1;
            let vote = VoteOf::<Types>::from_leader_id(LeaderIdOf::<Types>::new(term, id), true);
            log.save_vote(&vote).await.unwrap();
        }
        log.close().await.unwrap();

        if stage != "membership" {
            cluster.members[0].start().await;
            let refused = cluster.members[2].try_start().await.unwrap_err().to_string();
            assert!(refused.contains(" runs at http://127."), "{stage}: {refused}");
            cluster.members[0].stop().await;
        }
        for _ in 0..2 {
            cluster.members[2].start().await;
            let member = &cluster.members[2];
            within(member.server.as_ref().unwrap().ready()).await;
            assert_eq!(member.get("key").await.as_deref(), Some("value"), "{stage}");
            assert_eq!(names(member).await, ["m2"], "{stage}");
            assert_eq!(identity["cluster_id"].as_u64(), Some(member.node().cluster_id()), "{stage}");
            assert_eq!(member.node().id(), id, "{stage}");
            cluster.members[2].stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_without_data_does_not_go_on() {
    let mut cluster = Cluster::new(1, &[FORCED]);
    let refused = cluster.members[0].try_start().await.unwrap_err().to_string();
    assert!(refused.contains("has none: give its --data-dir"), "{refused}");
    assert!(!cluster.members[0].dir.join("member").exists());
}

/// Its state would be empty, and nobody else has another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_state_is_damaged_does_not_go_on() {
    let mut cluster = Cluster::start(3, &[]).await;
    let member = &cluster.members[0];
    member.put("key", &"value".repeat(1_000)).await.unwrap();
    member.node().store().flush().await.unwrap();
    cluster.stop().await;
    states(&cluster.members[0]).iter().for_each(|state| remove_tables(state));
    cluster.members[0].arguments.push(FORCED.to_owned());
    let refused = cluster.members[0].try_start().await.unwrap_err().to_string();
    assert!(refused.contains("its state is damaged"), "{refused}");
}
