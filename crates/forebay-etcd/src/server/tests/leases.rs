//! Leases while the lead changes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use tonic::transport::Channel;

use super::cluster::{Cluster, Member, settled, until, within};
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

/// Grants a lease with a key.
async fn grant(member: &Member) {
    let grant = Change::LeaseGrant(LeaseGrantRequest { id: 7, ttl: TTL_S });
    member.propose(grant).await.unwrap();
    let put = PutRequest { key: "leased".into(), lease: 7, ..PutRequest::default() };
    member.propose(Change::Put(put)).await.unwrap();
}

/// Returns the place of the leader, which does not notice any more who leads.
async fn unaware_leader(cluster: &Cluster) -> usize {
    // A busy machine may elect another one just now.
    loop {
        let leader = cluster.leader().await;
        let node = cluster.members[leader].node();
        node.set_unaware(true);
        if node.is_leader() {
            return leader;
        }
        node.set_unaware(false);
    }
}

fn others(cluster: &Cluster, but: usize) -> Vec<&Member> {
    let others = cluster.members.iter().enumerate().filter(|(at, _)| *at != but);
    others.map(|(_, member)| member).collect()
}

/// Moves the lead to another member, and returns it.
async fn another_leads<'a>(former: &Member, others: &[&'a Member]) -> &'a Member {
    // On a busy machine the third one may win the election.
    within(async {
        loop {
            former.node().raft().trigger().transfer_leader(others[0].node().id()).await.unwrap();
            let moved = others.iter().map(|&member| {
                Box::pin(async move {
                    let _ = member.node().leadership().wait_for(|now| now.is_own).await;
                    member
                })
            });
            let moved = futures_util::future::select_all(moved);
            if let Ok((next, ..)) = tokio::time::timeout(Duration::from_secs(1), moved).await {
                return next;
            }
        }
    })
    .await
}

/// Waits until the lease's time is over for a former leader, which tries to revoke it. It is kept alive meanwhile.
async fn tries_to_revoke(former: &Member, alive: &mut LeaseClient<Channel>) {
    let counts = former.node().counts();
    let (pending, failed) = (&counts.proposals_pending, &counts.proposals_failed);
    let failed_before = failed.load(Ordering::SeqCst);
    until(async || {
        assert_eq!(keep_alive(alive, 7).await, TTL_S);
        pending.load(Ordering::SeqCst) > 0 || failed.load(Ordering::SeqCst) > failed_before
    })
    .await;
}

/// A leader that was paused for longer than a lease's time continued as if it led. Raft refused its revocation, which was then
/// forwarded to the next leader: that leader applied it, and deleted the keys of a lease that it had kept alive all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_former_leader_does_not_revoke_what_the_next_one_keeps_alive() {
    let mut cluster = Cluster::start(3, &[]).await;
    grant(&cluster.members[0]).await;
    let leader = unaware_leader(&cluster).await;
    let (former, others) = (&cluster.members[leader], others(&cluster, leader));
    let next = another_leads(former, &others).await;
    assert!(former.node().is_leader(), "as far as it knows");
    let mut alive = client(next);
    tries_to_revoke(former, &mut alive).await;

    // The time is over at the former leader, which has tried to revoke the lease. Now it notices that another one leads.
    former.node().set_unaware(false);
    let mut leadership = former.node().leadership();
    within(leadership.wait_for(|now| !now.is_own && now.leader.is_some())).await.unwrap();
    until(async || former.node().counts().proposals_pending.load(Ordering::SeqCst) == 0).await;
    assert_eq!(keep_alive(&mut alive, 7).await, TTL_S);
    assert!(former.get("leased").await.is_some());

    // Left alone, it ends: the next leader's own revocation is made.
    until(async || former.get("leased").await.is_none()).await;
    cluster.stop().await;
}

/// A leader lost the lead and had it again before it noticed. A keep-alive was confirmed in its new term, and looked at the lease's time
/// of the former one: its client heard that the lease was over, which another leader had kept alive meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_leads_again_has_no_times_of_its_former_term() {
    let mut cluster = Cluster::start(3, &[]).await;
    grant(&cluster.members[0]).await;
    let leader = unaware_leader(&cluster).await;
    let (former, others) = (&cluster.members[leader], others(&cluster, leader));
    let term = former.node().term();
    let mut alive = client(another_leads(former, &others).await);
    tries_to_revoke(former, &mut alive).await;
    let leads_again = || {
        let metrics = former.node().raft().metrics();
        let now = metrics.borrow_watched();
        now.state == ServerState::Leader && now.current_term > term
    };
    within(async {
        while !leads_again() {
            for other in &others {
                other.node().raft().trigger().transfer_leader(former.node().id()).await.unwrap();
            }
            let led = until(async || leads_again());
            let _ = tokio::time::timeout(Duration::from_secs(1), led).await;
        }
    })
    .await;

    let reads = &former.node().counts().reads;
    let before = reads.load(Ordering::SeqCst);
    let mut kept = std::pin::pin!(keep_alive(&mut alive, 7));
    // Refused, it is made again: this leader does not know yet since when it leads.
    let is_made_again = until(async || reads.load(Ordering::SeqCst) >= before + 2);
    let early = within(async {
        tokio::select! {
            // On a busy machine another one may lead.
            left = &mut kept => Some(left),
            () = is_made_again => None,
        }
    })
    .await;
    former.node().set_unaware(false);
    let left = match early {
        Some(left) => left,
        None => kept.await,
    };
    assert_eq!(left, TTL_S);
    assert!(former.get("leased").await.is_some());
    cluster.stop().await;
}
