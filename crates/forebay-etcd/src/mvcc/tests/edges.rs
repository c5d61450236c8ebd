//! Cases by hand. The values are those of etcd 3.4.23, as its server gives them; `real` sends it the same kinds of requests.

use forebay_kv::Batch;

use super::harness::*;
use crate::mvcc::codec::{self, At, KEY_BYTES_MAX, Record, split_version_key};
use crate::mvcc::reader::{Part, Reader};
use crate::mvcc::{ENTRY_BYTES, Failure, View};
use crate::observer::{EntryChanges, InitialState};
use crate::proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::proto::etcdserverpb::response_op::Response as Inner;
use crate::proto::etcdserverpb::{
    AlarmMember, AlarmType, Compare, DeleteRangeRequest, PutRequest, RangeRequest,
};
use crate::proto::mvccpb::{Event, KeyValue};
use crate::proto::peer::command::Change;
use crate::proto::peer::outcome::Result as Response;
use crate::proto::peer::{Attributes, Clean, Done};
use crate::refusal::Refusal;
use crate::types::Command;

async fn refusal(view: &View, request: RangeRequest) -> Refusal {
    match view.range(&request).await {
        Err(Failure::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

fn keys(pairs: &[KeyValue]) -> Vec<&str> {
    pairs.iter().map(|pair| std::str::from_utf8(&pair.key).unwrap()).collect()
}

fn compare_key(key: &str, result: CompareResult, target: CompareTarget, union: TargetUnion) -> Compare {
    Compare {
        result: result.into(),
        target: target.into(),
        key: key.into(),
        target_union: Some(union),
        range_end: Vec::new(),
    }
}

#[tokio::test]
async fn revisions_begin_at_one_and_each_change_takes_one() {
    let mut node = Node::new().await;
    assert_eq!((node.view().await.revision(), node.view().await.compacted()), (1, -1));
    assert_eq!(node.put("a", "1").await, 2);
    assert_eq!(node.put("a", "2").await, 3);
    assert_eq!(node.range(range("a", "")).await.kvs, [pair("a", "2", 2, 3, 2)]);
    // A change without effect makes no revision.
    assert_eq!(node.done(Change::DeleteRange(delete("x", ""))).await, 3);
    assert_eq!(node.done(Change::Txn(txn(vec![], vec![operation(delete("x", "y"))], vec![]))).await, 3);
    assert_eq!(node.done(grant(7, 60)).await, 3);
    assert_eq!(node.done(revoke(7)).await, 3);
    assert_eq!(node.done(compact(2)).await, 3);
    assert_eq!(node.done(Change::DeleteRange(delete("a", ""))).await, 4);
    // A key that is created again starts again.
    node.put("a", "3").await;
    assert_eq!(node.range(range("a", "")).await.kvs, [pair("a", "3", 5, 5, 1)]);
}

#[tokio::test]
async fn ranges_have_ends_limits_and_counts() {
    let mut node = Node::new().await;
    for key in ["a", "b", "b\0", "ba", "c"] {
        node.put(key, "v").await;
    }
    let found = |response: crate::proto::etcdserverpb::RangeResponse| {
        (keys(&response.kvs).join(" ").replace('\0', "0"), response.more, response.count)
    };
    let limited = |request: RangeRequest, limit| RangeRequest { limit, ..request };
    assert_eq!(found(node.range(range("b", "")).await), ("b".into(), false, 1));
    assert_eq!(found(node.range(range("b", "c")).await), ("b b0 ba".into(), false, 3));
    assert_eq!(found(node.range(range("b", [0])).await), ("b b0 ba c".into(), false, 4));
    assert_eq!(found(node.range(range([0], [0])).await), ("a b b0 ba c".into(), false, 5));
    assert_eq!(found(node.range(range("c", "b")).await), (String::new(), false, 0));
    assert_eq!(found(node.range(range("b", "b")).await), (String::new(), false, 0));
    assert_eq!(found(node.range(limited(range([0], [0]), 2)).await), ("a b".into(), true, 5));
    assert_eq!(found(node.range(limited(range([0], [0]), 5)).await), ("a b b0 ba c".into(), false, 5));
    let count = RangeRequest { count_only: true, limit: 1, ..range("b", [0]) };
    assert_eq!(found(node.range(count).await), (String::new(), false, 4));
    let keys_only = node.range(RangeRequest { keys_only: true, ..range("a", "") }).await;
    assert_eq!(keys_only.kvs, [pair("a", "", 2, 2, 1)]);
    // A negative revision is the current one.
    assert_eq!(
        found(node.range(RangeRequest { revision: -3, ..range("b", "") }).await),
        ("b".into(), false, 1)
    );
}

#[tokio::test]
async fn ranges_are_sorted_after_their_limit_only_without_an_order() {
    let mut node = Node::new().await;
    for (key, value) in [("a", "3"), ("b", "2"), ("c", "1"), ("a", "3")] {
        node.put(key, value).await;
    }
    let sorted = |order: SortOrder, target: SortTarget, limit| RangeRequest {
        sort_order: order.into(),
        sort_target: target.into(),
        limit,
        ..range([0], [0])
    };
    for (order, target, limit, expected) in [
        (SortOrder::Descend, SortTarget::Key, 0, "c b a"),
        (SortOrder::Descend, SortTarget::Key, 2, "c b"),
        (SortOrder::Ascend, SortTarget::Value, 2, "c b"),
        (SortOrder::Ascend, SortTarget::Version, 0, "b c a"),
        (SortOrder::Ascend, SortTarget::Mod, 0, "b c a"),
        (SortOrder::Descend, SortTarget::Create, 1, "c"),
        (SortOrder::None, SortTarget::Value, 0, "c b a"),
        // The first two of the keys, and the key that shows further keys, are sorted.
        (SortOrder::None, SortTarget::Value, 1, "b"),
    ] {
        let response = node.range(sorted(order, target, limit)).await;
        assert_eq!(keys(&response.kvs).join(" "), expected, "{order:?} {target:?} {limit}");
        assert_eq!((response.count, response.more), (3, limit != 0));
    }
    // Filters act on pairs and `more`, and not on the count.
    let filtered = RangeRequest { min_mod_revision: 4, limit: 1, ..range([0], [0]) };
    let response = node.range(filtered).await;
    assert_eq!((keys(&response.kvs), response.more, response.count), (vec!["a"], true, 3));
    let filtered = RangeRequest { max_create_revision: 3, min_create_revision: 3, ..range([0], [0]) };
    let response = node.range(filtered).await;
    assert_eq!((keys(&response.kvs), response.more, response.count), (vec!["b"], false, 3));
}

/// Story: an operator asked for the key that was changed last, of 15 GB of them. All were in memory before one was returned, and the server
/// was ended for lack of memory. The first key of a queue is read like this, too.
#[tokio::test]
async fn few_pairs_are_in_memory_for_the_first_few_in_another_order() {
    let mut node = Node::new().await;
    for number in 0..200 {
        node.put(format!("key {number:03}"), "value").await;
    }
    let request = RangeRequest {
        sort_order: SortOrder::Descend.into(),
        sort_target: SortTarget::Mod.into(),
        limit: 2,
        ..range("key", "kez")
    };
    let response = node.range(request).await;
    assert_eq!(keys(&response.kvs), ["key 199", "key 198"]);
    assert_eq!((response.count, response.more), (200, true));
    assert!(response.kvs.capacity() < 20, "{} pairs", response.kvs.capacity());
}

/// Story: the key that was changed last, of 1,000 keys with a value of 1 MiB each, took a gigabyte: 1,024 pairs were kept before the others
/// were dropped, however long they were.
#[tokio::test]
async fn the_first_few_in_another_order_are_few_bytes() {
    let mut node = Node::new().await;
    for number in 0..40 {
        node.put(format!("key {number:03}"), vec![7; 10_000]).await;
    }
    let view = node.view().await;
    let latest = |limit| RangeRequest {
        sort_order: SortOrder::Descend.into(),
        sort_target: SortTarget::Mod.into(),
        limit,
        ..range("key", "kez")
    };
    // Two of them, and one more to detect further pairs.
    let response = view.range_within(&latest(2), 31_000).await.unwrap().unwrap();
    assert_eq!(keys(&response.kvs), ["key 039", "key 038"]);
    assert_eq!((response.count, response.more), (40, true));
    assert!(view.range_within(&latest(2), 30_000).await.unwrap().is_none());
    assert!(view.range_within(&latest(0), 400_000).await.unwrap().is_none());
    let all = view.range_within(&latest(0), 410_000).await.unwrap().unwrap();
    assert_eq!((all.kvs.len(), all.count, all.more), (40, 40, false));
    // The same for a transaction that only reads.
    let txn = txn(vec![], vec![operation(latest(2)), operation(latest(2))], vec![]);
    assert!(view.txn_within(&txn, 61_000).await.unwrap().is_some());
    assert!(view.txn_within(&txn, 60_000).await.unwrap().is_none());
}

#[tokio::test]
async fn older_revisions_are_read_until_they_are_compacted() {
    let mut node = Node::new().await;
    node.put("a", "1").await;
    node.put("a", "2").await;
    node.done(Change::DeleteRange(delete("a", ""))).await;
    node.put("b", "1").await;
    let at = |revision| RangeRequest { revision, ..range([0], [0]) };
    assert_eq!(node.range(at(1)).await.kvs, []);
    assert_eq!(node.range(at(2)).await.kvs, [pair("a", "1", 2, 2, 1)]);
    assert_eq!(node.range(at(3)).await.kvs, [pair("a", "2", 2, 3, 2)]);
    assert_eq!(node.range(at(4)).await.kvs, []);
    assert_eq!(refusal(&node.view().await, at(6)).await, Refusal::FutureRevision);
    assert_eq!(node.refused(compact(6)).await, text(Refusal::FutureRevision));
    node.done(compact(3)).await;
    assert_eq!(node.refused(compact(3)).await, text(Refusal::Compacted));
    assert_eq!(node.refused(compact(2)).await, text(Refusal::Compacted));
    assert_eq!(refusal(&node.view().await, at(2)).await, Refusal::Compacted);
    // The compacted revision itself is there.
    assert_eq!(node.range(at(3)).await.kvs, [pair("a", "2", 2, 3, 2)]);
    let refused = node.view().await.events(2, |_| true, 1 << 20).await;
    assert!(matches!(refused, Err(Failure::Refused(Refusal::Compacted))), "{refused:?}");
    let (events, next) = node.view().await.events(3, |_| true, 1 << 20).await.unwrap();
    assert_eq!((events.len(), next), (3, 6));
    // The value before the compacted revision is removed.
    assert_eq!(events[0].prev_kv, None);
    assert_eq!(events[1].prev_kv, Some(pair("a", "2", 2, 3, 2)));
}

#[tokio::test]
async fn a_first_compaction_may_be_of_revision_zero() {
    let mut node = Node::new().await;
    assert_eq!(node.refused(compact(-1)).await, text(Refusal::Compacted));
    node.done(compact(0)).await;
    assert_eq!(node.view().await.compacted(), 0);
    assert_eq!(node.refused(compact(0)).await, text(Refusal::Compacted));
    // So that of one without any change.
    node.done(compact(1)).await;
    assert_eq!(node.refused(compact(2)).await, text(Refusal::FutureRevision));
}

#[tokio::test]
async fn puts_keep_values_and_leases_of_before() {
    let mut node = Node::new().await;
    let ignoring = |ignore_value, ignore_lease| PutRequest { ignore_value, ignore_lease, ..put("a", "") };
    assert_eq!(node.refused(Change::Put(ignoring(true, false))).await, text(Refusal::KeyNotFound));
    assert_eq!(node.refused(Change::Put(ignoring(false, true))).await, text(Refusal::KeyNotFound));
    let leased = |lease| PutRequest { lease, prev_kv: true, ..put("a", "1") };
    assert_eq!(node.refused(Change::Put(leased(5))).await, text(Refusal::LeaseNotFound));
    // The lease is looked for first.
    let both = PutRequest { lease: 5, ..ignoring(true, false) };
    assert_eq!(node.refused(Change::Put(both.clone())).await, text(Refusal::LeaseNotFound));
    let both = Change::Txn(txn(vec![], vec![operation(both)], vec![]));
    assert_eq!(node.refused(both).await, text(Refusal::LeaseNotFound));
    node.done(grant(5, 60)).await;
    assert_eq!(node.put_with(leased(5)).await.0.prev_kv, None);
    let first = KeyValue { lease: 5, ..pair("a", "1", 2, 2, 1) };
    assert_eq!(
        node.put_with(PutRequest { prev_kv: true, ..ignoring(false, true) }).await.0.prev_kv,
        Some(first)
    );
    let second = KeyValue { lease: 5, ..pair("a", "", 2, 3, 2) };
    assert_eq!(node.range(range("a", "")).await.kvs, [second]);
    assert_eq!(node.view().await.lease_keys(5).await.unwrap(), [b"a"]);
    // A put without a lease detaches the key.
    node.put("a", "3").await;
    assert_eq!(node.view().await.lease_keys(5).await.unwrap(), [b""; 0]);
    node.put_with(ignoring(true, false)).await;
    assert_eq!(node.range(range("a", "")).await.kvs, [pair("a", "3", 2, 5, 4)]);
}

#[tokio::test]
async fn deletes_count_and_return_what_went() {
    let mut node = Node::new().await;
    for key in ["a", "b", "c"] {
        node.put(key, key).await;
    }
    let request = DeleteRangeRequest { prev_kv: true, ..delete("a", "c") };
    let outcome = node.apply(Change::DeleteRange(request)).await;
    let Some(Response::DeleteRange(response)) = outcome.result else { panic!() };
    let (a, b) = (pair("a", "a", 2, 2, 1), pair("b", "b", 3, 3, 1));
    assert_eq!((response.deleted, outcome.revision), (2, 5));
    assert_eq!(response.prev_kvs, [a.clone(), b.clone()]);
    let gone = |before: KeyValue| Event {
        r#type: 1,
        kv: Some(KeyValue { key: before.key.clone(), mod_revision: 5, ..KeyValue::default() }),
        prev_kv: Some(before),
    };
    let events = node.events();
    assert_eq!(events, [gone(a), gone(b)]);
    assert_eq!(node.view().await.events(5, |_| true, 1).await.unwrap(), (events, 6));
    let empty = DeleteRangeRequest::default();
    assert_eq!(node.refused(Change::DeleteRange(empty)).await, text(Refusal::EmptyKey));
}

#[tokio::test]
async fn absent_keys_compare_as_zero_and_have_no_value() {
    let mut node = Node::new().await;
    node.put("b", "").await;
    use CompareResult::{Equal, Greater, Less, NotEqual};
    for (key, result, target, union, expected) in [
        ("a", Equal, CompareTarget::Version, TargetUnion::Version(0), true),
        ("a", Less, CompareTarget::Create, TargetUnion::CreateRevision(1), true),
        ("a", Greater, CompareTarget::Mod, TargetUnion::ModRevision(0), false),
        ("a", Equal, CompareTarget::Lease, TargetUnion::Lease(0), true),
        ("a", Equal, CompareTarget::Value, TargetUnion::Value(vec![]), false),
        ("a", NotEqual, CompareTarget::Value, TargetUnion::Value(vec![1]), false),
        ("b", Equal, CompareTarget::Value, TargetUnion::Value(vec![]), true),
        // A number of another target counts as zero.
        ("b", Greater, CompareTarget::Mod, TargetUnion::Version(9), true),
    ] {
        let compare = compare_key(key, result, target, union);
        let request = txn(vec![compare.clone()], vec![], vec![]);
        assert_eq!(node.txn(request.clone()).await.0.succeeded, expected, "{compare:?}");
        assert_eq!(node.view().await.txn(&request).await.unwrap().succeeded, expected, "{compare:?}");
    }
    // All keys of a range have to hold, and an empty range is an absent key.
    let mut all = compare_key("b", Equal, CompareTarget::Version, TargetUnion::Version(1));
    all.range_end = b"d".to_vec();
    assert!(node.txn(txn(vec![all.clone()], vec![], vec![])).await.0.succeeded);
    node.put("c", "").await;
    node.put("c", "").await;
    assert!(!node.txn(txn(vec![all.clone()], vec![], vec![])).await.0.succeeded);
    all.key = b"x".to_vec();
    all.range_end = vec![0];
    assert!(!node.txn(txn(vec![all], vec![], vec![])).await.0.succeeded);
}

#[tokio::test]
async fn a_transaction_sees_its_own_writes_and_compares_what_was_before() {
    let mut node = Node::new().await;
    node.put("a", "old").await;
    let is_old =
        compare_key("a", CompareResult::Equal, CompareTarget::Value, TargetUnion::Value(b"old".to_vec()));
    let inner = txn(vec![is_old], vec![operation(range([0], [0]))], vec![]);
    let success = vec![
        operation(range([0], [0])),
        operation(put("b", "new")),
        operation(PutRequest { prev_kv: true, ..put("a", "new") }),
        operation(range([0], [0])),
        // As of before the transaction.
        operation(RangeRequest { revision: 2, ..range([0], [0]) }),
        operation(inner),
        operation(delete("c", "")),
    ];
    let (response, revision) = node.txn(txn(vec![], success, vec![])).await;
    assert_eq!((revision, response.succeeded, &response.header), (3, true, &None));
    let responses: Vec<_> =
        response.responses.into_iter().map(|response| response.response.unwrap()).collect();
    let header =
        |revision| Some(crate::proto::etcdserverpb::ResponseHeader { revision, ..Default::default() });
    let (old, new) =
        (vec![pair("a", "old", 2, 2, 1)], vec![pair("a", "new", 2, 3, 2), pair("b", "new", 3, 3, 1)]);
    let range_of = |response: &Inner| match response {
        Inner::ResponseRange(range) => (range.header, range.kvs.clone()),
        other => panic!("{other:?}"),
    };
    assert_eq!(range_of(&responses[0]), (header(2), old.clone()));
    let Inner::ResponsePut(put) = &responses[2] else { panic!() };
    assert_eq!((put.header, put.prev_kv.clone()), (header(3), Some(old[0].clone())));
    assert_eq!(range_of(&responses[3]), (header(3), new.clone()));
    assert_eq!(range_of(&responses[4]), (header(3), old));
    let Inner::ResponseTxn(inner) = &responses[5] else { panic!() };
    assert!(inner.succeeded, "compares are of before the transaction");
    assert_eq!(inner.header, header(0));
    assert_eq!(range_of(inner.responses[0].response.as_ref().unwrap()), (header(3), new));
    let Inner::ResponseDeleteRange(deleted) = &responses[6] else { panic!() };
    assert_eq!((deleted.header, deleted.deleted), (header(3), 0));
    let events = node.events();
    let keys = events.iter().map(|event| event.kv.as_ref().unwrap().key.clone());
    assert_eq!(keys.collect::<Vec<_>>(), ["b", "a"]);
}

#[tokio::test]
async fn a_transaction_with_one_bad_operation_does_nothing() {
    let mut node = Node::new().await;
    for value in ["1", "2", "3"] {
        node.put("a", value).await;
    }
    node.done(compact(3)).await;
    let bad = [
        (operation(PutRequest { lease: 9, ..put("x", "") }), Refusal::LeaseNotFound),
        (operation(PutRequest { ignore_value: true, ..put("b", "") }), Refusal::KeyNotFound),
        (operation(RangeRequest { revision: 2, ..range("a", "") }), Refusal::Compacted),
        (operation(RangeRequest { revision: 9, ..range("a", "") }), Refusal::FutureRevision),
        (operation(PutRequest { key: vec![], ..PutRequest::default() }), Refusal::EmptyKey),
    ];
    for (bad, refusal) in bad {
        let inner = txn(vec![], vec![bad], vec![]);
        // Although the key is made before, by the transaction itself.
        let request = txn(vec![], vec![operation(put("b", "1")), operation(inner)], vec![]);
        assert_eq!(node.refused(Change::Txn(request.clone())).await, text(refusal));
        // The branch that is not executed is not checked.
        let request = txn(vec![], vec![], request.success);
        assert_eq!(node.txn(request).await.1, 4);
        assert_eq!(node.range(range("b", "")).await.count, 0);
    }
    // Of two errors the first is reported, in any order: as in etcd 3.7; other versions check all puts first.
    let future = || operation(RangeRequest { revision: 9, ..range("a", "") });
    let leased = || operation(PutRequest { lease: 9, ..put("x", "") });
    for (first, second, refusal) in
        [(future(), leased(), Refusal::FutureRevision), (leased(), future(), Refusal::LeaseNotFound)]
    {
        let request = txn(vec![], vec![first, second], vec![]);
        assert_eq!(node.refused(Change::Txn(request)).await, text(refusal));
    }
    // The end of this range means all keys from there on, so the key is deleted when its lease is to be kept. etcd's members panic
    // here.
    let keeping = PutRequest { ignore_lease: true, ..put("a", "2") };
    let request = txn(vec![], vec![operation(delete("a", [0])), operation(keeping)], vec![]);
    assert_eq!(node.refused(Change::Txn(request)).await, text(Refusal::KeyNotFound));
}

#[tokio::test]
async fn revoked_leases_delete_their_keys_in_one_revision() {
    let mut node = Node::new().await;
    assert_eq!(node.refused(revoke(1)).await, text(Refusal::LeaseNotFound));
    node.done(grant(1, 60)).await;
    assert_eq!(node.applied().unwrap().granted, Some((1, 60)));
    assert_eq!(node.refused(grant(1, 30)).await, text(Refusal::LeaseExists));
    assert_eq!(node.refused(grant(2, 9_000_000_001)).await, text(Refusal::LeaseTtlTooLarge));
    node.done(grant(-2, 9_000_000_000)).await;
    for key in ["c", "a", "b"] {
        node.put_with(PutRequest { lease: 1, ..put(key, key) }).await;
    }
    node.put_with(PutRequest { lease: -2, ..put("b", "other") }).await;
    let view = node.view().await;
    assert_eq!(view.leases().await.unwrap(), [(1, 60), (-2, 9_000_000_000)]);
    assert_eq!((view.lease(1).await.unwrap(), view.lease(3).await.unwrap()), (Some(60), None));
    assert_eq!(view.lease_keys(1).await.unwrap(), [b"a", b"c"]);
    assert_eq!(node.done(revoke(1)).await, 6);
    let EntryChanges { events, revoked, revision, .. } = node.applied().unwrap();
    assert_eq!((revoked, revision), (Some(1), 6));
    let deleted = events.iter().map(|event| (event.r#type, event.kv.as_ref().unwrap().mod_revision));
    assert_eq!(deleted.collect::<Vec<_>>(), [(1, 6), (1, 6)]);
    assert_eq!(events[0].prev_kv, Some(KeyValue { lease: 1, ..pair("a", "a", 3, 3, 1) }));
    assert_eq!(keys(&node.range(range([0], [0])).await.kvs), ["b"]);
    assert_eq!(node.view().await.lease_keys(1).await.unwrap(), [b""; 0]);
}

#[tokio::test]
async fn alarms_refuse_what_grows_or_all() {
    let mut node = Node::new().await;
    node.put("a", "1").await;
    node.done(grant(1, 60)).await;
    let nospace = i32::from(AlarmType::Nospace);
    node.done(alarm(3, nospace, true)).await;
    let raised = AlarmMember { member_id: 3, alarm: nospace };
    assert_eq!(node.view().await.alarms().await.unwrap(), [raised]);
    let full = text(Refusal::NoSpace);
    let with_put = txn(vec![], vec![], vec![operation(put("b", ""))]);
    let nested = txn(vec![], vec![operation(with_put.clone())], vec![]);
    for change in [Change::Put(put("b", "")), Change::Txn(with_put), Change::Txn(nested), grant(2, 60)] {
        assert_eq!(node.refused(change).await, full);
    }
    // After another open it is still raised.
    node.reopen().await;
    assert_eq!(node.refused(Change::Put(put("b", ""))).await, full);
    assert_eq!(node.txn(txn(vec![], vec![operation(range("a", ""))], vec![])).await.1, 2);
    assert_eq!(node.done(Change::DeleteRange(delete("a", ""))).await, 3);
    node.done(compact(3)).await;
    node.done(revoke(1)).await;
    // Another member's alarm is another one.
    node.done(alarm(4, nospace, true)).await;
    node.done(alarm(3, nospace, false)).await;
    assert_eq!(node.refused(Change::Put(put("b", ""))).await, full);
    node.done(alarm(4, nospace, false)).await;
    assert_eq!(node.put("b", "").await, 4);
    node.done(alarm(3, i32::from(AlarmType::Corrupt), true)).await;
    for change in [Change::Put(put("b", "")), Change::DeleteRange(delete("b", "")), compact(4), grant(2, 60)]
    {
        assert_eq!(node.refused(change).await, text(Refusal::Corrupt));
    }
    // No alarm has no effect.
    node.done(alarm(3, 0, true)).await;
    assert_eq!(node.view().await.alarms().await.unwrap().len(), 1);
}

#[tokio::test]
async fn members_have_attributes() {
    let mut node = Node::new().await;
    let attributes = |member, name: &str| Attributes {
        member,
        name: name.into(),
        client_urls: vec!["http://x".into()],
        format: 1,
    };
    for (member, name) in [(300, "c"), (7, "a"), (300, "d")] {
        let outcome = node.apply(Change::Attributes(attributes(member, name))).await;
        assert_eq!((outcome.revision, outcome.result), (1, Some(Response::Done(Done::default()))));
    }
    assert_eq!(node.view().await.attributes().await.unwrap(), [attributes(7, "a"), attributes(300, "d")]);
}

#[tokio::test]
async fn commands_of_later_versions_are_refused() {
    let mut node = Node::new().await;
    node.put("a", "1").await;
    for bytes in [vec![], vec![0xff; 9], vec![0xfa, 0x07, 0x00]] {
        let outcome = node.apply_command(Command(bytes)).await;
        assert_eq!(outcome.revision, 2);
        let Some(Response::Refusal(refusal)) = outcome.result else { panic!() };
        assert_eq!(refusal.text, text(Refusal::NotCapable));
    }
    assert_eq!(node.put("a", "2").await, 3);
}

#[tokio::test]
async fn keys_may_have_zeros_and_are_bounded() {
    let mut node = Node::new().await;
    let (long, zeros) = (vec![1; KEY_BYTES_MAX], vec![0; KEY_BYTES_MAX / 2]);
    for key in [&long[..], &zeros, &zeros[1..], b"\0", b"\0\xff", b"\0\x01", b"\0\0"] {
        node.done(grant(key.len() as i64 + node.view().await.revision() * 100_000, 60)).await;
        let lease = node.view().await.leases().await.unwrap().last().unwrap().0;
        node.put_with(PutRequest { lease, ..put(key, "first") }).await;
        let revision = node.put(key, "second").await;
        let older = node.range(RangeRequest { revision: revision - 1, ..range(key, "") }).await;
        assert_eq!(older.kvs[0].value, "first");
    }
    node.done(Change::DeleteRange(delete([0], [0]))).await;
    let revision = node.view().await.revision();
    let all = node.range(RangeRequest { revision: revision - 1, ..range([0], [0]) }).await;
    assert_eq!(all.count, 7);
    assert!(all.kvs.is_sorted_by(|a, b| a.key < b.key));
    for key in [vec![1; KEY_BYTES_MAX + 1], vec![0; KEY_BYTES_MAX / 2 + 1]] {
        assert_eq!(node.refused(Change::Put(put(&key, ""))).await, text(Refusal::RequestTooLarge));
        assert_eq!(node.range(range(&key, "")).await.count, 0);
        assert_eq!(node.range(RangeRequest { revision: 2, ..range(&key, "") }).await.count, 0);
        assert_eq!(node.done(Change::DeleteRange(delete(&key, ""))).await, revision);
    }
}

#[tokio::test]
async fn changes_that_fit_into_no_batch_are_refused() {
    let mut node = Node::new().await;
    let large = vec![1; 40_000];
    assert_eq!(node.put("a", &large).await, 2);
    let twice = txn(vec![], vec![operation(put("b", &large)), operation(put("c", &large))], vec![]);
    assert_eq!(node.refused(Change::Txn(twice)).await, text(Refusal::RequestTooLarge));
    assert_eq!(node.refused(Change::Put(put("a", [1; 80_000]))).await, text(Refusal::RequestTooLarge));
    for number in 0..100 {
        node.put([&[b'k'; 600][..], &[number]].concat(), "").await;
    }
    let all = Change::DeleteRange(delete([0], [0]));
    assert_eq!(node.refused(all).await, text(Refusal::RequestTooLarge));
    assert_eq!(node.range(range([0], [0])).await.count, 101);
    let part = delete([0], [&[b'k'; 600][..], &[50]].concat());
    assert_eq!(node.done(Change::DeleteRange(part)).await, 103);
    assert_eq!(node.range(range([0], [0])).await.count, 50);
}

/// Story: the bytes of an entry were limited, and not the number of its changes, each of which has a header in a memtable. A delete of
/// 75,000 short keys was committed, no member could apply it, and none could start again.
#[tokio::test]
async fn no_more_short_keys_are_deleted_than_the_store_takes() {
    let mut node = Node::new().await;
    for hundred in 0..14 {
        let puts = (0..100).map(|number| operation(put(format!("{hundred:02}{number:02}"), "")));
        node.txn(txn(vec![], puts.collect(), vec![])).await;
    }
    let delete_until = |end| Change::DeleteRange(delete("0", end));
    assert_eq!(node.refused(delete_until("2")).await, text(Refusal::RequestTooLarge));
    node.done(delete_until("05")).await;
    assert_eq!(node.range(range([0], [0])).await.count, 900);
    // As in one transaction.
    let put = |number: usize| operation(put(format!("{number:04}"), ""));
    let puts = |count: usize| (0..count).map(put).collect::<Vec<_>>();
    let refused = node.refused(Change::Txn(txn(vec![], puts(1200), vec![]))).await;
    assert_eq!(refused, text(Refusal::RequestTooLarge));
    node.txn(txn(vec![], puts(500), vec![])).await;
}

/// Story: a transaction that puts a key and has very many ranges of all keys was carried out by each member with all that they return in
/// memory, and again at each start.
#[tokio::test]
async fn ranges_of_a_transaction_return_no_more_than_fits_the_memory() {
    let mut node = Node::new().await;
    for number in 0..4 {
        node.put(format!("key {number}"), vec![7; 60_000]).await;
    }
    // 240,000 bytes each, of 16 MiB.
    let reads = |count: usize| vec![operation(range("key", "kez")); count];
    let with_put = |count: usize| [reads(count), vec![operation(put("other", ""))]].concat();
    let refused = node.refused(Change::Txn(txn(vec![], with_put(80), vec![]))).await;
    assert_eq!(refused, text(Refusal::RequestTooLarge));
    assert_eq!(node.txn(txn(vec![], with_put(60), vec![])).await.0.responses.len(), 61);
    let view = node.view().await;
    assert_eq!(view.txn(&txn(vec![], reads(60), vec![])).await.unwrap().responses.len(), 60);
    let refused = view.txn(&txn(vec![], reads(80), vec![])).await.unwrap_err();
    assert!(matches!(refused, Failure::Refused(Refusal::RequestTooLarge)), "{refused:?}");
}

/// Returns the numbers of entries of `events` and `versions`, and the sum that `used_bytes` should be.
pub(super) async fn stored(node: &Node) -> (usize, usize, u64) {
    let keyspaces = node.store.keyspaces();
    let reader = Reader::new(&keyspaces, None).unwrap();
    let (mut events, mut versions, mut sum) = (0, 0, 0);
    for part in [Part::Now, Part::Events, Part::Versions, Part::Leases, Part::LeaseKeys] {
        let mut all = reader.keyspace(part).iter();
        while let Some((key, value)) = all.next().await.transpose().unwrap() {
            sum += ENTRY_BYTES;
            sum += match part {
                Part::Events => {
                    events += 1;
                    let record = Record::decode(&value).unwrap();
                    At::BYTES + record.key.len() + record.value_bytes() as usize
                }
                Part::Versions => {
                    versions += 1;
                    At::BYTES + crate::mvcc::codec::unescape(split_version_key(&key).unwrap().0).len()
                }
                // Its value is counted as its event's.
                _ => key.len(),
            } as u64;
        }
    }
    (events, versions, sum)
}

#[tokio::test]
async fn compacted_events_are_removed_in_steps() {
    let mut node = Node::new().await;
    for number in 0..100 {
        node.put(format!("key {}", number % 10), number.to_string()).await;
        if number % 30 == 0 {
            node.done(Change::DeleteRange(delete(format!("key {}", number % 10), ""))).await;
        }
    }
    assert_eq!(stored(&node).await.0, 104);
    let revision = node.view().await.revision();
    node.done(compact(revision)).await;
    let applied = node.applied().unwrap();
    assert_eq!((applied.compacted, applied.is_unfinished), (Some(revision), true));
    assert!(node.view().await.is_cleaning());
    let mut before = stored(&node).await.0;
    let mut steps = 0;
    while node.view().await.is_cleaning() {
        // Any entry.
        node.apply_command(Command(Vec::new())).await;
        let (events, versions, sum) = stored(&node).await;
        assert!(events <= before && before - events <= 8, "a step is small");
        assert_eq!((versions, sum), (events, node.view().await.used_bytes()));
        (before, steps) = (events, steps + 1);
        if steps == 10 {
            node.reopen().await;
        }
    }
    assert!(steps > 20, "{steps}");
    // Nine keys with one value each, and the one that the compacted revision itself has replaced.
    assert_eq!(node.range(range([0], [0])).await.count, 9);
    assert_eq!(stored(&node).await.0, 9 + 1);
}

/// The leader proposes entries for the removal alone: each does more than others, and the observer is passed how far it is.
#[tokio::test]
async fn entries_for_the_removal_alone_end_it() {
    let mut node = Node::new().await;
    for number in 0..60 {
        node.put(format!("key {}", number % 10), number.to_string()).await;
    }
    let revision = node.done(compact(61)).await;
    let mut steps = 0;
    while node.view().await.is_cleaning() {
        let before = stored(&node).await.0;
        assert_eq!(node.done(Change::Clean(Clean {})).await, revision);
        let applied = node.applied().unwrap();
        assert_eq!(applied.used_bytes, node.view().await.used_bytes());
        assert_eq!(applied.is_unfinished, applied.cleaned < 61);
        assert!(before - stored(&node).await.0 <= 5);
        steps += 1;
    }
    assert_eq!(steps, 11, "60 events, of which the compaction has looked at 7");
    assert_eq!(node.range(range([0], [0])).await.count, 10);
    node.done(Change::Clean(Clean {})).await;
    assert_eq!(node.applied(), None, "nothing is left");
}

#[tokio::test]
async fn an_observer_begins_from_what_was_opened() {
    let mut node = Node::new().await;
    assert_eq!(
        node.seen.opened.lock().unwrap().pop(),
        Some(InitialState { revision: 1, compacted: -1, ..Default::default() })
    );
    node.done(grant(4, 60)).await;
    node.put_with(PutRequest { lease: 4, ..put("a", "1") }).await;
    node.put("a", "2").await;
    node.done(compact(2)).await;
    let used_bytes = node.view().await.used_bytes();
    assert_eq!(stored(&node).await.2, used_bytes);
    let last = node.seen.applied.lock().unwrap().pop().unwrap();
    assert_eq!((last.compacted, last.revision, last.used_bytes), (Some(2), 3, used_bytes));
    node.reopen().await;
    let opened = InitialState {
        revision: 3,
        compacted: 2,
        leases: vec![(4, 60)],
        used_bytes,
        is_unfinished: false,
        cleaned: 2,
        is_full: false,
        ..Default::default()
    };
    assert_eq!(node.seen.opened.lock().unwrap().pop(), Some(opened));
}

#[tokio::test]
async fn an_observer_hears_that_the_space_is_full_and_entries_go_on() {
    let mut node = Node::new().await;
    for (value_bytes, is_full) in [(7000, false), (7000, false), (7000, true)] {
        node.put("a", vec![1; value_bytes]).await;
        let applied = node.applied().unwrap();
        assert_eq!((applied.is_full, applied.used_bytes >= LIMITS.space_bytes), (is_full, is_full));
    }
    node.reopen().await;
    assert!(node.seen.opened.lock().unwrap().pop().unwrap().is_full);
    node.done(compact(4)).await;
    node.put("b", "").await;
    node.done(compact(5)).await;
    while node.view().await.is_cleaning() {
        node.apply_command(Command(Vec::new())).await;
    }
    node.put("b", "").await;
    assert!(!node.applied().unwrap().is_full);
}

/// A delete of a large state held all its values in memory: only the keys counted.
#[tokio::test]
async fn long_values_are_deleted_a_limited_number_at_once() {
    let mut node = Node::new().await;
    node.done(grant(1, 60)).await;
    for number in 0..10 {
        let request = put(format!("key {number}"), vec![7; 60_000]);
        node.put_with(PutRequest { lease: i64::from(number < 3), ..request }).await;
    }
    let delete_until = |end| Change::DeleteRange(delete("key 0", end));
    assert_eq!(node.refused(delete_until("key 9")).await, text(Refusal::RequestTooLarge));
    // A lease is revoked in steps all the same.
    for left in [2, 1, 0] {
        let outcome = node.apply(revoke(1)).await;
        assert_eq!(outcome.result, Some(Response::Done(Done { is_partial: left > 0 })));
        assert_eq!(node.view().await.lease_keys(1).await.unwrap().len(), left);
    }
    node.done(delete_until("key 9")).await;
    assert_eq!(node.range(range([0], [0])).await.kvs.len(), 1);
}

/// Its events have the values that a transaction replaces, as they have those that a delete removes. Only the latter were limited.
#[tokio::test]
async fn long_values_are_replaced_a_limited_number_at_once() {
    let mut node = Node::new().await;
    for number in 0..10 {
        node.put(format!("key {number}"), vec![7; 60_000]).await;
    }
    let put = |number: usize| operation(put(format!("key {number}"), ""));
    let puts = |count: usize| (0..count).map(put).collect::<Vec<_>>();
    let refused = node.refused(Change::Txn(txn(vec![], puts(10), vec![]))).await;
    assert_eq!(refused, text(Refusal::RequestTooLarge));
    node.txn(txn(vec![], puts(8), vec![])).await;
}

/// A lease with more keys than an entry may change was refused as too large, and its leader retried it forever.
#[tokio::test]
async fn a_lease_with_more_keys_than_fit_is_revoked_in_steps() {
    let mut node = Node::new().await;
    node.done(grant(1, 60)).await;
    node.done(grant(2, 60)).await;
    let key = |number: usize| format!("{number:04}-{}", "k".repeat(400));
    for number in 0..150 {
        let lease = if number % 3 == 0 { 2 } else { 1 };
        node.put_with(PutRequest { lease, ..put(key(number), "value") }).await;
    }
    let all = || range([0], [0]);
    let (mut steps, mut left) = (0, 100);
    loop {
        let before = node.view().await.revision();
        let outcome = node.apply(revoke(1)).await;
        let Some(Response::Done(done)) = outcome.result else { panic!("{outcome:?}") };
        let applied = node.applied().unwrap();
        // Each step is one revision with its events, and the lease is there until the last one.
        assert_eq!(outcome.revision, before + 1);
        assert!(!applied.events.is_empty() && applied.events.iter().all(|event| event.r#type == 1));
        left -= applied.events.len();
        assert_eq!(node.range(all()).await.kvs.len(), 50 + left);
        assert_eq!(node.view().await.lease_keys(1).await.unwrap().len(), left);
        assert_eq!(node.view().await.lease(1).await.unwrap().is_some(), done.is_partial);
        assert_eq!(applied.revoked, (!done.is_partial).then_some(1));
        steps += 1;
        if !done.is_partial {
            break;
        }
    }
    assert!(steps > 1 && left == 0, "{steps} steps, {left} left");
    assert_eq!(node.view().await.lease_keys(2).await.unwrap().len(), 50);
    assert_eq!(node.refused(revoke(1)).await, text(Refusal::LeaseNotFound));
    // A revocation that fits is one step.
    node.done(revoke(2)).await;
    assert_eq!(node.applied().unwrap().events.len(), 50);
}

/// Directories of earlier builds kept the space that these counted for current values a second time for good, and they have no sums.
#[tokio::test]
async fn a_state_of_an_earlier_build_is_counted_anew() {
    const EXCESS: u64 = 12_345;
    let mut node = Node::new().await;
    node.done(grant(4, 60)).await;
    for number in 0..20 {
        node.put_with(PutRequest { lease: 4, ..put(format!("key {}", number % 10), "value") }).await;
    }
    node.done(Change::DeleteRange(delete("key 3", ""))).await;
    // As such a build has left it.
    let expected = stored(&node).await.2;
    let sums = {
        let keyspaces = node.store.keyspaces();
        let reader = Reader::new(&keyspaces, None).unwrap();
        assert_eq!(reader.format().await.unwrap(), Some(1));
        let mut state = reader.state().await.unwrap();
        state.used_bytes += EXCESS;
        let sums = state.sums.take();
        let (meta, mut batch) = (reader.keyspace(Part::Meta), Batch::new());
        batch.put(meta, codec::STATE, state.encode());
        batch.delete(meta, codec::FORMAT);
        node.store.store().write(&batch).await.unwrap();
        sums
    };
    // A crash before the next entry leaves it as it was.
    for _ in 0..2 {
        node.reopen().await;
        assert_eq!(node.view().await.used_bytes(), expected + EXCESS);
        assert_eq!(node.seen.opened.lock().unwrap().pop().unwrap().used_bytes, expected);
    }
    // Any entry.
    node.apply_command(Command(Vec::new())).await;
    {
        let keyspaces = node.store.keyspaces();
        let state = Reader::new(&keyspaces, None).unwrap().state().await.unwrap();
        assert_eq!((state.used_bytes, state.sums), (expected, sums));
    }
    node.put("key 1", "a longer value").await;
    node.reopen().await;
    assert_eq!(node.view().await.used_bytes(), stored(&node).await.2);
    let keyspaces = node.store.keyspaces();
    assert_eq!(Reader::new(&keyspaces, None).unwrap().format().await.unwrap(), Some(1));
}

/// A list at an older revision read all later versions of its keys, which contain their values.
#[tokio::test]
async fn an_older_list_has_the_keys_behind_those_with_many_later_versions() {
    let (mut node, listed, mut revision) = (Node::new().await, ["key", "key\0", "key\0a", "kez"], 0);
    for key in listed {
        revision = node.put(key, "first").await;
    }
    for number in 0..30 {
        for key in listed.into_iter().chain(["kex", "key\0\0"]) {
            node.put(key, format!("later {number}")).await;
        }
    }
    let found = node.range(RangeRequest { revision, ..range("k", "l") }).await.kvs;
    assert_eq!(keys(&found), listed);
    assert!(found.iter().all(|pair| pair.value == "first"), "{found:?}");
}
