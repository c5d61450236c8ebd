//! Leases while the lead changes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tonic::transport::Channel;

use super::cluster::{Cluster, Member, settled, within};
use crate::proto::etcdserverpb::lease_client::LeaseClient;
use crate::proto::etcdserverpb::{LeaseGrantRequest, LeaseKeepAliveRequest, PutRequest};
use crate::proto::peer::command::Change;

fn client(member: &Member) -> LeaseClient<Channel> {
    let url = format!("http://{}:2379", member.address);
    LeaseClient::new(Channel::from_shared(url).unwrap().connect_lazy())
}

/// Keeps a lease alive, and returns the seconds that it has.
async fn keep_alive(client: &mut LeaseClient<Channel>, id: i64) -> i64 {
    let kept = settled(async || {
        let requests = futures_util::stream::iter([LeaseKeepAliveRequest { id }]);
        let mut replies = client.lease_keep_alive(requests).await?.into_inner();
        replies.message().await
    });
    kept.await.unwrap().unwrap().ttl
}

/// Longer than a busy machine stalls.
const TTL_S: i64 = 8;

/// A leader that was paused for longer than a lease's time went on as if it led. Raft refused its revocation, which was forwarded to
/// the next leader then: that one applied it, and the keys of a lease were gone that it had kept alive all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_former_leader_does_not_revoke_what_the_next_one_keeps_alive() {
    let mut cluster = Cluster::start(3, &[]).await;
    let grant = Change::LeaseGrant(LeaseGrantRequest { id: 7, ttl: TTL_S });
    cluster.members[0].propose(grant).await.unwrap();
    let put = PutRequest { key: "leased".into(), lease: 7, ..PutRequest::default() };
    cluster.members[0].propose(Change::Put(put)).await.unwrap();

    // A busy machine may elect another one just now.
    let leader = loop {
        let leader = cluster.leader().await;
        let node = cluster.members[leader].node();
        node.set_unaware(true);
        if node.is_leader() {
            break leader;
        }
        node.set_unaware(false);
    };
    let (former, others): (Vec<_>, Vec<_>) =
        cluster.members.iter().enumerate().partition(|(at, _)| *at == leader);
    let former = former[0].1;
    // On a busy machine the third one may win the election.
    let next = within(async {
        loop {
            former.node().raft().trigger().transfer_leader(others[0].1.node().id()).await.unwrap();
            let moved = others.iter().map(|(_, member)| {
                Box::pin(async move {
                    let _ = member.node().leadership().wait_for(|now| now.is_own).await;
                    *member
                })
            });
            let moved = futures_util::future::select_all(moved);
            if let Ok((next, ..)) = tokio::time::timeout(Duration::from_secs(1), moved).await {
                return next;
            }
        }
    })
    .await;
    assert!(former.node().is_leader(), "as far as it knows");
    let counts = former.node().counts();
    let (pending, failed) = (&counts.proposals_pending, &counts.proposals_failed);
    let failed_before = failed.load(Ordering::SeqCst);
    let mut alive = client(next);
    within(async {
        while pending.load(Ordering::SeqCst) == 0 && failed.load(Ordering::SeqCst) == failed_before {
            assert_eq!(keep_alive(&mut alive, 7).await, TTL_S);
        }
    })
    .await;

    // The time is over at the former leader, which has tried to revoke the lease. Now it notices that another one leads.
    former.node().set_unaware(false);
    let mut leadership = former.node().leadership();
    within(leadership.wait_for(|now| !now.is_own && now.leader.is_some())).await.unwrap();
    within(async {
        while pending.load(Ordering::SeqCst) != 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(keep_alive(&mut alive, 7).await, TTL_S);
    assert!(former.get("leased").await.is_some());

    // Left alone, it ends: the next leader's own revocation is made.
    within(async { while former.get("leased").await.is_some() {} }).await;
    cluster.stop().await;
}
