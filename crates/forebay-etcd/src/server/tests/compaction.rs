//! Compacted history is removed without further requests, and a physical compaction waits for that.

use tonic::transport::Channel;

use super::cluster::{Cluster, Member, is_unsettled, settled, until, within};
use crate::mvcc::View;
use crate::proto::etcdserverpb::alarm_request::AlarmAction;
use crate::proto::etcdserverpb::auth_client::AuthClient;
use crate::proto::etcdserverpb::kv_client::KvClient;
use crate::proto::etcdserverpb::maintenance_client::MaintenanceClient;
use crate::proto::etcdserverpb::request_op::Request;
use crate::proto::etcdserverpb::{
    AlarmRequest, AlarmType, AuthRoleAddRequest, AuthRoleDeleteRequest, CompactionRequest, PutRequest,
    RequestOp, TxnRequest,
};

fn channel(member: &Member) -> Channel {
    Channel::from_shared(format!("http://{}:2379", member.address)).unwrap().connect_lazy()
}

async fn is_cleaning(member: &Member) -> bool {
    View::of(member.node().store()).await.unwrap().is_cleaning()
}

async fn is_finished(member: &Member) -> bool {
    View::of(member.node().store()).await.unwrap().is_finished()
}

async fn put(client: &mut KvClient<Channel>, value_bytes: usize) -> Result<i64, tonic::Status> {
    let put = PutRequest { key: "key".into(), value: vec![b'v'; value_bytes], ..PutRequest::default() };
    let response = settled(async || client.put(put.clone()).await).await?;
    Ok(response.into_inner().header.unwrap().revision)
}

/// Puts some values, and compacts to the last one.
async fn put_and_compact(client: &mut KvClient<Channel>, puts: usize, physical: bool) {
    loop {
        let mut revision = 0;
        for _ in 0..puts {
            revision = put(client, 10).await.unwrap();
        }
        match within(client.compact(CompactionRequest { revision, physical })).await {
            Ok(_) => return,
            // It may have been made, and is then not made again.
            Err(status) => assert!(is_unsettled(&status), "{status}"),
        }
    }
}

/// Compacted history was removed only by later entries: without any, it stayed forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_goes_without_further_requests() {
    let mut cluster = Cluster::start(3, &[]).await;
    let member = &cluster.members[cluster.follower().await];
    put_and_compact(&mut KvClient::new(channel(member)), 100, false).await;
    for member in &cluster.members {
        until(async || is_finished(member).await).await;
    }
    // Nothing is proposed any more, but for the first entry of a leader that a busy machine may elect.
    let (last, term) = (member.node().last_index(), member.node().term());
    settled(async || member.node().read_barrier().await).await.unwrap();
    let elections = member.node().term() - term;
    assert!(member.node().last_index() <= last + 1 + elections);
    cluster.stop().await;
}

/// A physical compaction responded immediately, as any other, before the history was removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_physical_compaction_waits_until_history_is_gone() {
    let mut cluster = Cluster::start(3, &[]).await;
    for member in &cluster.members {
        put_and_compact(&mut KvClient::new(channel(member)), 60, true).await;
        assert!(!is_cleaning(member).await, "{}", member.name);
    }
    cluster.stop().await;
}

/// The way out of a full space: compact, and clear the alarm. Too little was removed, and the next put raised the alarm again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_space_has_room_again_after_a_physical_compaction() {
    let mut cluster = Cluster::start(1, &["--quota-backend-bytes=100000"]).await;
    let member = &cluster.members[0];
    let mut client = KvClient::new(channel(member));
    let mut revision = 0;
    let refused = loop {
        match put(&mut client, 1000).await {
            Ok(after) => revision = after,
            Err(status) => break status,
        }
    };
    let full = "etcdserver: mvcc: database space exceeded";
    assert_eq!(refused.message(), full);
    // Roles use space as well; changes without cost continue.
    let mut auth = AuthClient::new(channel(member));
    let add = AuthRoleAddRequest { name: "r".repeat(2000) };
    let refused = settled(async || auth.role_add(add.clone()).await).await.unwrap_err();
    assert_eq!(refused.message(), full);
    let delete = AuthRoleDeleteRequest { role: "r".to_owned() };
    let refused = settled(async || auth.role_delete(delete.clone()).await).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: role name not found");
    within(client.compact(CompactionRequest { revision, physical: true })).await.unwrap();
    let mut upkeep = MaintenanceClient::new(channel(member));
    let disarm = AlarmRequest {
        action: AlarmAction::Deactivate.into(),
        member_id: member.node().id(),
        alarm: AlarmType::Nospace.into(),
    };
    upkeep.alarm(disarm).await.unwrap();
    // A single large part, without others before it.
    put(&mut client, 60_000).await.unwrap();
    cluster.stop().await;
}

/// Story: the alarm of a damaged state refuses the entries that are there for the steps of a compaction, and a second went by before the
/// next one. A physical compaction hung.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compaction_ends_while_the_state_counts_as_damaged() {
    let mut cluster = Cluster::start(1, &[]).await;
    let member = &cluster.members[0];
    let mut client = KvClient::new(channel(member));
    let put = |number: usize| PutRequest { key: number.to_string().into(), ..PutRequest::default() };
    let puts = (0..100).map(|number| RequestOp { request: Some(Request::RequestPut(put(number))) });
    let txn = TxnRequest { success: puts.collect(), ..TxnRequest::default() };
    let mut revision = 0;
    for _ in 0..4 {
        let done = settled(async || client.txn(txn.clone()).await).await.unwrap();
        revision = done.into_inner().header.unwrap().revision;
    }
    within(client.compact(CompactionRequest { revision, physical: false })).await.unwrap();
    let raise =
        AlarmRequest { action: AlarmAction::Activate.into(), member_id: 7, alarm: AlarmType::Corrupt.into() };
    MaintenanceClient::new(channel(member)).alarm(raise).await.unwrap();
    until(async || !is_cleaning(member).await).await;
    cluster.stop().await;
}
