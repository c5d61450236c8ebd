//! A client that others wrote, `etcd-client`, against the server: the cases that its own tests have, but for those of
//! locks and elections.

use crate::common::{Member, within};
use etcd_client::{
    AlarmAction, AlarmType, Client, Compare, CompareOp, DeleteOptions, Error, EventType, GetOptions,
    LeaseGrantOptions, LeaseTimeToLiveOptions, MemberAddOptions, Permission, PutOptions, SortOrder,
    SortTarget, Txn, TxnOp, TxnOpResponse, WatchFilterType, WatchOptions,
};

async fn client(member: &Member) -> Client {
    Client::connect([member.client_url()], None).await.unwrap()
}

/// A server, and a client of it.
async fn pair() -> (Member, Client) {
    let member = Member::own(&[]);
    let client = client(&member).await;
    (member, client)
}

/// The sentence of a refusal.
fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result.unwrap_err() {
        Error::GRpcStatus(status) => status.message().to_owned(),
        error => panic!("no refusal of the server: {error}"),
    }
}

async fn keys(client: &mut Client, key: &str, options: GetOptions) -> Vec<(String, String)> {
    let response = client.get(key, Some(options)).await.unwrap();
    let text =
        |kv: &etcd_client::KeyValue| (kv.key_str().unwrap().to_owned(), kv.value_str().unwrap().to_owned());
    response.kvs().iter().map(text).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn puts_gets_and_deletes() {
    let (_member, mut client) = pair().await;
    let first = client.put("put", "1", None).await.unwrap();
    assert!(first.prev_key().is_none());
    assert_eq!(first.header().unwrap().revision(), 2);
    assert_ne!(first.header().unwrap().cluster_id(), 0);
    assert_ne!(first.header().unwrap().member_id(), 0);
    for (value, before) in [("2", "1"), ("3", "2")] {
        let response = client.put("put", value, Some(PutOptions::new().with_prev_key())).await.unwrap();
        let prev = response.prev_key().unwrap();
        assert_eq!((prev.key(), prev.value()), (&b"put"[..], before.as_bytes()));
    }
    for (key, value) in [("k10", "c"), ("k11", "b"), ("k20", "a"), ("k21", "d"), ("k31", "e")] {
        client.put(key, value, None).await.unwrap();
    }
    let one = client.get("put", None).await.unwrap();
    assert_eq!((one.count(), one.more(), one.kvs().len()), (1, false, 1));
    let kv = &one.kvs()[0];
    assert_eq!((kv.value(), kv.version(), kv.create_revision(), kv.mod_revision()), (&b"3"[..], 3, 2, 4));
    let some = client.get("k11", Some(GetOptions::new().with_from_key().with_limit(2))).await.unwrap();
    assert_eq!((some.count(), some.more(), some.kvs().len()), (5, true, 2));
    let by_prefix = GetOptions::new().with_prefix();
    assert_eq!(keys(&mut client, "k1", by_prefix).await, pairs(&[("k10", "c"), ("k11", "b")]));
    let sorted =
        GetOptions::new().with_prefix().with_sort(SortTarget::Value, SortOrder::Descend).with_limit(3);
    assert_eq!(keys(&mut client, "k", sorted).await, pairs(&[("k31", "e"), ("k21", "d"), ("k10", "c")]));
    let bounded = GetOptions::new().with_prefix().with_min_mod_revision(6).with_max_mod_revision(7);
    assert_eq!(keys(&mut client, "k", bounded).await, pairs(&[("k11", "b"), ("k20", "a")]));
    let old = GetOptions::new().with_revision(3);
    assert_eq!(keys(&mut client, "put", old).await, pairs(&[("put", "2")]));
    let counted = client.get("k", Some(GetOptions::new().with_prefix().with_count_only())).await.unwrap();
    assert_eq!((counted.count(), counted.kvs().len()), (5, 0));
    let names =
        client.get("k10", Some(GetOptions::new().with_keys_only().with_serializable())).await.unwrap();
    assert_eq!((names.kvs()[0].key(), names.kvs()[0].value()), (&b"k10"[..], &b""[..]));

    let response = client.delete("k11", None).await.unwrap();
    assert_eq!((response.deleted(), response.prev_kvs().len()), (1, 0));
    assert_eq!(client.delete("k11", None).await.unwrap().deleted(), 0);
    let range = DeleteOptions::new().with_range("k21").with_prev_key();
    let response = client.delete("k10", Some(range)).await.unwrap();
    assert_eq!(response.deleted(), 2);
    let values: Vec<&[u8]> = response.prev_kvs().iter().map(etcd_client::KeyValue::value).collect();
    assert_eq!(values, [b"c", b"a"]);
    let left = GetOptions::new().with_all_keys();
    assert_eq!(keys(&mut client, "", left).await, pairs(&[("k21", "d"), ("k31", "e"), ("put", "3")]));
    assert_eq!(client.delete("k", Some(DeleteOptions::new().with_prefix())).await.unwrap().deleted(), 2);
    assert_eq!(client.delete("", Some(DeleteOptions::new().with_all_keys())).await.unwrap().deleted(), 1);
    assert_eq!(client.get("", Some(GetOptions::new().with_all_keys())).await.unwrap().count(), 0);
    assert_eq!(refusal(client.put("", "value", None).await), "etcdserver: key is not provided");
}

#[tokio::test]
async fn history_before_a_compaction_is_refused() {
    let (_member, mut client) = pair().await;
    let mut revisions = Vec::new();
    for value in ["0", "1", "2"] {
        let response = client.put("compact", value, None).await.unwrap();
        revisions.push(response.header().unwrap().revision());
    }
    let at = |revision| Some(GetOptions::new().with_revision(revision));
    for (revision, value) in revisions.iter().zip(["0", "1", "2"]) {
        assert_eq!(client.get("compact", at(*revision)).await.unwrap().kvs()[0].value(), value.as_bytes());
    }
    client.compact(revisions[1], None).await.unwrap();
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    assert_eq!(refusal(client.get("compact", at(revisions[0])).await), compacted);
    assert_eq!(client.get("compact", at(revisions[1])).await.unwrap().kvs()[0].value(), b"1");
    assert_eq!(refusal(client.compact(revisions[1], None).await), compacted);
    let future = "etcdserver: mvcc: required revision is a future revision";
    assert_eq!(refusal(client.compact(revisions[2] + 1, None).await), future);
    assert_eq!(refusal(client.get("compact", at(revisions[2] + 1)).await), future);
}

#[tokio::test]
async fn transactions() {
    let (_member, mut client) = pair().await;
    client.put("txn", "1", None).await.unwrap();
    let swap = || {
        Txn::new()
            .when([Compare::value("txn", CompareOp::Equal, "1")])
            .and_then([TxnOp::put("txn", "2", Some(PutOptions::new().with_prev_key()))])
            .or_else([TxnOp::get("txn", None)])
    };
    let response = client.txn(swap()).await.unwrap();
    assert!(response.succeeded());
    let [TxnOpResponse::Put(put)] = &response.op_responses()[..] else { panic!("{response:?}") };
    assert_eq!(put.prev_key().unwrap().value(), b"1");
    assert_eq!(client.get("txn", None).await.unwrap().kvs()[0].value(), b"2");
    let response = client.txn(swap()).await.unwrap();
    assert!(!response.succeeded());
    let [TxnOpResponse::Get(get)] = &response.op_responses()[..] else { panic!("{response:?}") };
    assert_eq!(get.kvs()[0].value(), b"2");

    // Comparisons of all kinds, over a range as well.
    let compares = [
        Compare::version("txn", CompareOp::Equal, 2),
        Compare::create_revision("txn", CompareOp::Less, 3),
        Compare::mod_revision("txn", CompareOp::Greater, 2),
        Compare::lease("txn", CompareOp::Equal, 0),
        Compare::value("t", CompareOp::NotEqual, "3").with_prefix(),
        Compare::version("none", CompareOp::Equal, 0),
    ];
    assert!(client.txn(Txn::new().when(compares)).await.unwrap().succeeded());
    for wrong in [
        Compare::version("txn", CompareOp::Equal, 3),
        Compare::value("t", CompareOp::NotEqual, "2").with_prefix(),
        Compare::value("none", CompareOp::Equal, ""),
    ] {
        assert!(!client.txn(Txn::new().when([wrong.clone()])).await.unwrap().succeeded(), "{wrong:?}");
    }
}

#[tokio::test]
async fn transactions_in_transactions() {
    let (_member, mut client) = pair().await;
    client.put("a", "1", None).await.unwrap();
    let inner = Txn::new()
        .when([Compare::value("b", CompareOp::Equal, "2")])
        .and_then([TxnOp::delete("a", None), TxnOp::get("b", None)])
        .or_else([TxnOp::put("c", "wrong", None)]);
    let outer = Txn::new().when([Compare::value("a", CompareOp::Equal, "1")]).and_then([
        TxnOp::put("b", "2", None),
        TxnOp::txn(inner),
        TxnOp::get("a", None),
    ]);
    let response = client.txn(outer).await.unwrap();
    assert!(response.succeeded());
    let responses = response.op_responses();
    let [TxnOpResponse::Put(_), TxnOpResponse::Txn(inner), TxnOpResponse::Get(get)] = &responses[..] else {
        panic!("{response:?}")
    };
    // etcd selects all branches before anything is written.
    assert!(!inner.succeeded());
    assert_eq!(get.kvs().len(), 1);
    let all = GetOptions::new().with_all_keys();
    assert_eq!(keys(&mut client, "", all).await, pairs(&[("a", "1"), ("b", "2"), ("c", "wrong")]));
    let revisions: Vec<i64> = client.get("", Some(GetOptions::new().with_all_keys())).await.unwrap().kvs()
        [1..]
        .iter()
        .map(etcd_client::KeyValue::mod_revision)
        .collect();
    assert_eq!(revisions, [3, 3], "one transaction has one revision");
    let twice = Txn::new().and_then([TxnOp::put("d", "1", None), TxnOp::put("d", "2", None)]);
    assert_eq!(refusal(client.txn(twice).await), "etcdserver: duplicate key given in txn request");
    let many: Vec<TxnOp> = (0..129).map(|at| TxnOp::put(format!("m{at}"), "", None)).collect();
    assert_eq!(
        refusal(client.txn(Txn::new().and_then(many)).await),
        "etcdserver: too many operations in txn request"
    );
}

#[tokio::test]
async fn a_watch_begins_has_events_and_is_cancelled() {
    let (_member, mut client) = pair().await;
    let mut stream = client.watch("watch", None).await.unwrap();
    let created = within(stream.message()).await.unwrap().unwrap();
    assert!(created.created() && !created.canceled());
    let id = created.watch_id();
    client.put("other", "0", None).await.unwrap();
    client.put("watch", "1", None).await.unwrap();
    let response = within(stream.message()).await.unwrap().unwrap();
    assert_eq!((response.watch_id(), response.events().len()), (id, 1));
    let event = &response.events()[0];
    assert_eq!((event.event_type(), event.kv().unwrap().value()), (EventType::Put, &b"1"[..]));
    assert!(event.prev_kv().is_none());
    client.delete("watch", None).await.unwrap();
    let response = within(stream.message()).await.unwrap().unwrap();
    assert_eq!(response.events()[0].event_type(), EventType::Delete);
    assert_eq!(response.events()[0].kv().unwrap().mod_revision(), 4);
    stream.cancel(id).await.unwrap();
    let response = within(stream.message()).await.unwrap().unwrap();
    assert_eq!((response.watch_id(), response.canceled()), (id, true));

    // Several watches of a stream: from history, with previous values, filtered, and of a range without keys.
    let options = WatchOptions::new().with_prefix().with_start_revision(3).with_prev_key().with_watch_id(7);
    stream.watch("watch", Some(options)).await.unwrap();
    assert!(within(stream.message()).await.unwrap().unwrap().created());
    let mut events = Vec::new();
    while events.len() < 2 {
        let response = within(stream.message()).await.unwrap().unwrap();
        assert_eq!(response.watch_id(), 7);
        events.extend(response.events().to_vec());
    }
    assert!(events[0].prev_kv().is_none());
    assert_eq!(events[1].prev_kv().unwrap().value(), b"1");
    let options =
        WatchOptions::new().with_all_keys().with_filters([WatchFilterType::NoPut]).with_start_revision(2);
    stream.watch("", Some(options)).await.unwrap();
    assert!(within(stream.message()).await.unwrap().unwrap().created());
    let response = within(stream.message()).await.unwrap().unwrap();
    assert_eq!(response.events().len(), 1);
    assert_eq!(response.events()[0].event_type(), EventType::Delete);
    stream.watch("x", Some(WatchOptions::new().with_watch_id(7))).await.unwrap();
    let refused = within(stream.message()).await.unwrap().unwrap();
    assert!(refused.canceled() && !refused.cancel_reason().is_empty(), "{refused:?}");

    client.compact(4, None).await.unwrap();
    stream.watch("watch", Some(WatchOptions::new().with_start_revision(2))).await.unwrap();
    assert!(within(stream.message()).await.unwrap().unwrap().created());
    let response = within(stream.message()).await.unwrap().unwrap();
    assert_eq!((response.canceled(), response.compact_revision()), (true, 4));
}

#[tokio::test]
async fn a_watch_reports_its_progress_when_it_is_asked() {
    let (_member, mut client) = pair().await;
    let mut stream = client.watch("watch", None).await.unwrap();
    assert!(within(stream.message()).await.unwrap().unwrap().created());
    let mut revision = 0;
    for _ in 0..3 {
        revision = client.put("elsewhere", "", None).await.unwrap().header().unwrap().revision();
    }
    stream.request_progress().await.unwrap();
    let response = within(stream.message()).await.unwrap().unwrap();
    assert_eq!((response.events().len(), response.watch_id()), (0, -1));
    assert_eq!(response.header().unwrap().revision(), revision);
}

#[tokio::test]
async fn leases_are_granted_kept_listed_and_revoked() {
    let (_member, mut client) = pair().await;
    let granted = client.lease_grant(123, None).await.unwrap();
    assert_eq!(granted.ttl(), 123);
    let id = granted.id();
    client.put("leased", "", Some(PutOptions::new().with_lease(id))).await.unwrap();
    let left = client.lease_time_to_live(id, Some(LeaseTimeToLiveOptions::new().with_keys())).await.unwrap();
    assert_eq!((left.granted_ttl(), left.keys()), (123, &[b"leased".to_vec()][..]));
    assert!((1..=123).contains(&left.ttl()), "{left:?}");
    let (mut keeper, mut stream) = client.lease_keep_alive(id).await.unwrap();
    keeper.keep_alive().await.unwrap();
    let kept = within(stream.message()).await.unwrap().unwrap();
    assert_eq!((kept.id(), kept.ttl()), (id, 123));
    client.lease_revoke(id).await.unwrap();
    assert_eq!(client.get("leased", None).await.unwrap().count(), 0);
    // A stream that continues reports this by a time of zero; a new stream is refused by the client.
    keeper.keep_alive().await.unwrap();
    assert_eq!(within(stream.message()).await.unwrap().unwrap().ttl(), 0);
    assert!(client.lease_keep_alive(id).await.is_err());
    assert_eq!(client.lease_time_to_live(id, None).await.unwrap().ttl(), -1);
    assert_eq!(refusal(client.lease_revoke(id).await), "etcdserver: requested lease not found");
    let leased = PutOptions::new().with_lease(id);
    assert_eq!(
        refusal(client.put("leased", "", Some(leased)).await),
        "etcdserver: requested lease not found"
    );

    for id in [100, 101, 102] {
        let granted = client.lease_grant(60, Some(LeaseGrantOptions::new().with_id(id))).await.unwrap();
        assert_eq!((granted.id(), granted.ttl()), (id, 60));
    }
    let again = client.lease_grant(60, Some(LeaseGrantOptions::new().with_id(101))).await;
    assert_eq!(refusal(again), "etcdserver: lease already exists");
    let mut ids: Vec<i64> =
        client.leases().await.unwrap().leases().iter().map(etcd_client::LeaseStatus::id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [100, 101, 102]);
}

#[tokio::test]
async fn maintenance_calls() {
    let (_member, mut client) = pair().await;
    let revision = client.put("key", "value", None).await.unwrap().header().unwrap().revision();
    let status = client.status().await.unwrap();
    assert!(status.db_size() > 0);
    assert_eq!(status.leader(), status.header().unwrap().member_id());
    assert_eq!(status.raft_applied_index(), status.raft_index());
    assert!(status.errors().is_empty() && !status.is_learner());

    let off = client.alarm(AlarmAction::Deactivate, AlarmType::None, None).await.unwrap();
    assert!(off.alarms().is_empty());
    client.alarm(AlarmAction::Activate, AlarmType::Nospace, None).await.unwrap();
    let raised = client.alarm(AlarmAction::Get, AlarmType::None, None).await.unwrap();
    assert_eq!(raised.alarms().len(), 1);
    assert_eq!(raised.alarms()[0].alarm(), AlarmType::Nospace);
    assert_eq!(refusal(client.put("key", "more", None).await), "etcdserver: mvcc: database space exceeded");
    client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, None).await.unwrap();
    assert!(client.alarm(AlarmAction::Get, AlarmType::None, None).await.unwrap().alarms().is_empty());

    assert_ne!(client.hash().await.unwrap().hash(), 0);
    let hash = client.hash_kv(0).await.unwrap();
    assert_ne!(hash.hash(), 0);
    assert_eq!(client.hash_kv(revision).await.unwrap().hash(), hash.hash());
    client.put("key", "other", None).await.unwrap();
    assert_ne!(client.hash_kv(0).await.unwrap().hash(), hash.hash());
    // The state of a revision keeps its hash.
    assert_eq!(client.hash_kv(revision).await.unwrap().hash(), hash.hash());
    // etcd's has no header.
    assert!(client.defragment().await.unwrap().header().is_none());

    let mut parts = client.snapshot().await.unwrap();
    let (mut file, mut left) = (Vec::new(), u64::MAX);
    while let Some(part) = within(parts.message()).await.unwrap() {
        assert!(!part.blob().is_empty() && part.remaining_bytes() <= left);
        left = part.remaining_bytes();
        file.extend_from_slice(part.blob());
    }
    assert_eq!(left, 0);
    // Pages, and a checksum.
    assert_eq!(file.len() % 512, 32);
}

#[tokio::test]
async fn members_are_listed_added_updated_and_removed() {
    let (member, mut client) = pair().await;
    // A member serves before the cluster has its name.
    let mut listed = client.member_list().await.unwrap();
    while listed.members()[0].name().is_empty() {
        listed = within(client.member_list()).await.unwrap();
    }
    let [own] = listed.members() else { panic!("{listed:?}") };
    assert_eq!((own.name(), own.is_learner()), ("n1", false));
    assert_eq!(own.peer_urls(), [member.peer_url()]);
    assert_eq!(own.client_urls(), [member.client_url()]);
    let own_id = own.id();

    // It never runs: as a learner it does not count for the quorum.
    let learner = Some(MemberAddOptions::new().with_is_learner());
    let added = client.member_add(["http://127.0.0.1:1"], learner.clone()).await.unwrap();
    let id = added.member().unwrap().id();
    assert!(added.member().unwrap().is_learner());
    assert_eq!(added.member_list().len(), 2);
    let again = client.member_add(["http://127.0.0.1:1"], learner.clone()).await;
    assert_eq!(refusal(again), "etcdserver: Peer URLs already exists");
    let more = client.member_add(["http://127.0.0.1:2"], learner).await;
    assert_eq!(refusal(more), "etcdserver: too many learner members in cluster");
    client.member_update(id, ["http://127.0.0.1:3".to_owned()]).await.unwrap();
    // Once, the list of then still had the old URL at times: it was made of what Raft publishes after it has responded.
    let listed = client.member_list().await.unwrap();
    let updated = listed.members().iter().find(|member| member.id() == id).unwrap();
    assert_eq!(updated.peer_urls(), ["http://127.0.0.1:3"]);
    let promoted = client.member_promote(id).await;
    assert_eq!(
        refusal(promoted),
        "etcdserver: can only promote a learner member which is in sync with leader"
    );
    assert_eq!(client.member_remove(id).await.unwrap().members().len(), 1);
    assert_eq!(refusal(client.member_remove(id).await), "etcdserver: member not found");
    let updated = client.member_update(id, ["http://127.0.0.1:4".to_owned()]).await;
    assert_eq!(refusal(updated), "etcdserver: member not found");
    assert_eq!(client.member_list().await.unwrap().members()[0].id(), own_id);
    client.put("key", "value", None).await.unwrap();
}

#[tokio::test]
async fn the_lead_moves() {
    let members = Member::cluster(3, &[]);
    let urls: Vec<String> = members.iter().map(Member::client_url).collect();
    let mut ids = Vec::new();
    for url in &urls {
        let mut client = Client::connect([url], None).await.unwrap();
        ids.push(client.status().await.unwrap().header().unwrap().member_id());
    }
    let mut any = Client::connect(&urls, None).await.unwrap();
    // The place of the leader as a member sees it, but for one that leads no more.
    let next_leader = async |member: &mut Client, but: Option<usize>| {
        loop {
            let leader = member.status().await.unwrap().leader();
            if let Some(at) = ids.iter().position(|id| *id == leader)
                && Some(at) != but
            {
                break at;
            }
        }
    };
    // A busy machine may elect another leader at any time.
    loop {
        let at = within(next_leader(&mut any, None)).await;
        let other = (at + 1) % 3;
        // A follower refuses.
        let mut follower = client(&members[other]).await;
        let refused = follower.move_leader(ids[other]).await;
        if refused.is_ok() {
            continue;
        }
        assert_eq!(refusal(refused), "etcdserver: not leader");
        let mut leading = client(&members[at]).await;
        let Ok(moved) = leading.move_leader(ids[other]).await else { continue };
        // etcd's response has no header.
        assert!(moved.header().is_none());
        if within(next_leader(&mut leading, Some(at))).await == other {
            break;
        }
    }
    within(async { while any.put("key", "value", None).await.is_err() {} }).await;
}

#[tokio::test]
async fn users_and_roles_are_kept() {
    let (member, mut client) = pair().await;
    assert_eq!(refusal(client.auth_enable().await), "etcdserver: root user does not exist");
    client.auth_disable().await.unwrap();
    for name in ["root", "user"] {
        client.user_add(name, "password", None).await.unwrap();
    }
    client.role_add("role").await.unwrap();
    client.role_grant_permission("role", Permission::read("key")).await.unwrap();
    client.user_grant_role("user", "role").await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    assert_eq!(client.user_list().await.unwrap().users(), ["root", "user"]);
    assert_eq!(client.role_list().await.unwrap().roles(), ["role"]);
    client.put("key", "value", None).await.unwrap();
    client.auth_enable().await.unwrap();
    assert_eq!(refusal(client.get("key", None).await), "etcdserver: user name is empty");
    let options = etcd_client::ConnectOptions::new().with_user("user", "password");
    let mut user = Client::connect([member.client_url()], Some(options)).await.unwrap();
    assert_eq!(user.get("key", None).await.unwrap().kvs()[0].value(), b"value");
    assert_eq!(refusal(user.put("key", "other", None).await), "etcdserver: permission denied");
    let options = etcd_client::ConnectOptions::new().with_user("root", "password");
    let mut root = Client::connect([member.client_url()], Some(options)).await.unwrap();
    root.role_revoke_permission("role", "key", None).await.unwrap();
    root.auth_disable().await.unwrap();
    client.user_delete("user").await.unwrap();
    client.role_delete("role").await.unwrap();
}

#[tokio::test]
async fn endpoints_come_and_go() {
    let (member, mut client) = pair().await;
    client.put("endpoint", "1", None).await.unwrap();
    client.remove_endpoint(member.client_url()).await.unwrap();
    client.add_endpoint(member.client_url()).await.unwrap();
    assert_eq!(within(client.get("endpoint", None)).await.unwrap().kvs()[0].value(), b"1");
}
