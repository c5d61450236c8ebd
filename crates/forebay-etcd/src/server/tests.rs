//! Members and clusters in one process.

mod alerts;
mod alone;
mod auth;
mod calls;
mod changes;
mod clients;
pub(crate) mod cluster;
mod compaction;
mod formats;
mod gateway;
mod healing;
mod http;
mod integrity;
mod leases;
mod probes;
mod ranges;
mod restore;
mod starts;
mod streams;
mod tls;

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cluster::{Cluster, settled, within};
use futures_util::FutureExt;
use futures_util::future::join_all;
use openraft::async_runtime::WatchReceiver;

use crate::proto::etcdserverpb::PutRequest;
use crate::proto::peer::command::Change;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_and_reads_are_made_at_any_member() {
    let mut cluster = Cluster::start(3, &[]).await;
    for (at, member) in cluster.members.iter().enumerate() {
        member.put(&format!("key{at}"), "value").await.unwrap();
        // It is applied here already, whoever leads.
        assert_eq!(member.local(&format!("key{at}")).await.as_deref(), Some("value"));
        for other in &cluster.members {
            assert_eq!(other.get(&format!("key{at}")).await.as_deref(), Some("value"));
        }
    }
    let names = |members: Vec<crate::proto::etcdserverpb::Member>| -> BTreeSet<String> {
        members.into_iter().map(|member| member.name).collect()
    };
    let expected = BTreeSet::from(["m0", "m1", "m2"].map(str::to_owned));
    for member in &cluster.members {
        let members = settled(async || member.node().members(true).await).await;
        assert_eq!(names(members.unwrap()), expected);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_after_a_change_of_the_leader_has_everything_before_it() {
    let mut cluster = Cluster::start(3, &[]).await;
    for round in 0..3 {
        let leader = cluster.leader().await;
        let key = format!("key{round}");
        cluster.members[leader].put(&key, "value").await.unwrap();
        cluster.members[leader].stop().await;
        for member in cluster.members.iter().filter(|member| member.server.is_some()) {
            assert_eq!(member.get(&key).await.as_deref(), Some("value"), "round {round}");
        }
        cluster.members[leader].start().await;
        assert_eq!(cluster.members[leader].get(&key).await.as_deref(), Some("value"), "round {round}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_at_the_same_time_share_rounds() {
    let mut cluster = Cluster::start(3, &[]).await;
    let member = &cluster.members[cluster.follower().await];
    let counts = member.node().counts();
    let before = counts.read_rounds.load(Ordering::Relaxed);
    // The first round reaches no leader until all reads have started.
    member.node().forget_members();
    {
        let mut reads = pin!(join_all((0..500).map(|_| member.node().read_barrier())));
        assert!(reads.as_mut().now_or_never().is_none(), "no leader is reached");
        for other in &cluster.members {
            member.node().set_urls(other.node().id(), &[other.peer_url()]);
        }
        for read in reads.await {
            read.unwrap();
        }
    }
    let rounds = counts.read_rounds.load(Ordering::Relaxed) - before;
    assert!((1..=2).contains(&rounds), "{rounds} rounds for 500 reads");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_alone_of_three_refuses_in_time_and_goes_on_with_a_second() {
    let mut cluster = Cluster::start(3, &[]).await;
    let leader = cluster.leader().await;
    for at in (0..3).filter(|at| *at != leader) {
        cluster.members[at].stop().await;
    }
    let member = &cluster.members[leader];
    let mut leadership = member.node().leadership();
    within(leadership.wait_for(|now| now.leader.is_none())).await.unwrap();
    let refused = within(member.put_once("lonely", "value")).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: request timed out");
    let refused = within(member.node().read_barrier()).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: request timed out");
    let other = (leader + 1) % 3;
    cluster.members[other].start().await;
    cluster.members[other].put("together", "value").await.unwrap();
    assert_eq!(cluster.members[leader].get("together").await.as_deref(), Some("value"));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_far_behind_catches_up_by_a_snapshot() {
    let mut cluster = Cluster::start(3, &["--snapshot-count=50", "--snapshot-catchup-entries=5"]).await;
    let (leader, behind) = cluster.leader_and_follower().await;
    let has = cluster.members[behind].node().last_index();
    cluster.members[behind].stop().await;
    let mut last = 0;
    for number in 0..300 {
        let key = format!("key{number}");
        last = cluster.members[leader].put(&key, &"v".repeat(1000)).await.unwrap();
    }
    // Snapshots are built, and logs purged, some time after the entries. A busy machine may elect another leader.
    for member in cluster.members.iter().filter(|member| member.server.is_some()) {
        let mut metrics = member.node().raft().metrics();
        while metrics.borrow_watched().purged.is_none_or(|id| id.index <= has + 1) {
            within(metrics.changed()).await.unwrap();
        }
    }
    cluster.members[behind].start().await;
    let member = &cluster.members[behind];
    member.applied(last).await;
    // A slow machine may need another one, because the log has been purged meanwhile.
    assert!(member.node().counts().installed.load(Ordering::Relaxed) > 0, "no snapshot was needed");
    assert_eq!(member.local("key0").await.unwrap().len(), 1000);
    // It participates again, with the state of the snapshot and later changes.
    member.put("after", "value").await.unwrap();
    assert_eq!(member.get("after").await.as_deref(), Some("value"));
    cluster.members[behind].stop().await;
    cluster.members[behind].start().await;
    assert_eq!(cluster.members[behind].get("key299").await.unwrap().len(), 1000);
    cluster.stop().await;
}

/// Members are restarted one after the other while clients write through the running members: acknowledged changes stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_loses_nothing_that_was_acknowledged() {
    let mut cluster = Cluster::start(3, &["--snapshot-count=100", "--snapshot-catchup-entries=20"]).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let nodes = Arc::new(std::sync::Mutex::new(
        cluster.members.iter().map(|member| member.node().clone()).collect::<Vec<_>>(),
    ));
    let clients = (0..4).map(|client| {
        let (is_over, nodes) = (is_over.clone(), nodes.clone());
        tokio::spawn(async move {
            let (mut acknowledged, mut refused) = (Vec::new(), 0_u32);
            for number in 0.. {
                if is_over.load(Ordering::Relaxed) && acknowledged.len() > 50 {
                    break;
                }
                let key = format!("c{client}-{number}");
                let put = PutRequest { key: key.clone().into(), value: "v".into(), ..PutRequest::default() };
                let node = {
                    let nodes = nodes.lock().unwrap();
                    nodes[number % nodes.len()].clone()
                };
                match node.propose(Change::Put(put)).await {
                    Ok(_) => acknowledged.push(key),
                    Err(_) => refused += 1,
                }
                // The members have the processor in between.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            (acknowledged, refused)
        })
    });
    let clients: Vec<_> = clients.collect();
    for turn in 0..6 {
        let at = turn % 3;
        // Clients leave a member before it ends; requests under way there may still fail.
        let of_others = |cluster: &Cluster, but: Option<usize>| -> Vec<crate::node::Node> {
            let others = cluster.members.iter().enumerate().filter(|(other, _)| Some(*other) != but);
            others.map(|(_, member)| member.node().clone()).collect()
        };
        *nodes.lock().unwrap() = of_others(&cluster, Some(at));
        cluster.members[at].stop().await;
        cluster.members[at].start().await;
        within(cluster.members[at].server.as_ref().unwrap().ready()).await;
        *nodes.lock().unwrap() = of_others(&cluster, None);
    }
    is_over.store(true, Ordering::Relaxed);
    let mut total = 0;
    for client in clients {
        let (acknowledged, refused) = within(client).await.unwrap();
        println!("{} acknowledged, {refused} refused", acknowledged.len());
        total += acknowledged.len();
        for member in &cluster.members {
            settled(async || member.node().read_barrier().await).await.unwrap();
            for key in &acknowledged {
                assert!(member.local(key).await.is_some(), "{} lost {key}", member.name);
            }
        }
    }
    println!("{total} acknowledged");
    cluster.stop().await;
}

/// A call that its client gives up counted as pending for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proposal_that_is_given_up_is_not_pending() {
    let mut cluster = Cluster::start(1, &[]).await;
    let member = &cluster.members[0];
    // A thread that was stopped in its only poll may find the outcome there.
    while member.put_once("key", "value").now_or_never().is_some() {}
    assert_eq!(member.node().counts().proposals_pending.load(Ordering::Relaxed), 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_are_too_large_are_refused_before_they_are_proposed() {
    let mut cluster = Cluster::start(1, &["--max-request-bytes=2000"]).await;
    let member = &cluster.members[0];
    let before = member.node().last_index();
    let refused = member.put("key", &"v".repeat(3000)).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: request is too large");
    assert_eq!(member.node().last_index(), before);
    member.put("key", &"v".repeat(1000)).await.unwrap();
    cluster.stop().await;
}
