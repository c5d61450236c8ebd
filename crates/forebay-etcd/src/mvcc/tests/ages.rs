//! Values are in one place once they are older than the window, and what is read stays the same. `random`, `sums`, `audits`, `hashes` and
//! `power` raise the format of states among their changes, too.

use super::edges::stored;
use super::harness::*;
use super::model::Model;
use super::random::{Random, is_proposed};
use crate::mvcc::KeyRecord;
use crate::mvcc::codec::{Put, Record};
use crate::mvcc::reader::{Part, Reader};
use crate::proto::etcdserverpb::{PutRequest, RangeRequest, RangeResponse};
use crate::proto::mvccpb::Event;
use crate::proto::peer::command::Change;
use crate::proto::peer::outcome::Result as Response;
use crate::proto::peer::{Clean, Done};
use crate::refusal::Refusal;

/// Returns how many puts of events have their value, and how many have not.
async fn puts(node: &Node) -> (usize, usize) {
    let keyspaces = node.store.keyspaces();
    let reader = Reader::new(&keyspaces, None).unwrap();
    let (mut whole, mut short) = (0, 0);
    let mut all = reader.keyspace(Part::Events).iter();
    while let Some((_, value)) = all.next().await.transpose().unwrap() {
        match Record::decode(&value).unwrap().put {
            Some(Put::Whole(_)) => whole += 1,
            Some(Put::Short { .. }) => short += 1,
            None => {}
        }
    }
    (whole, short)
}

/// Everything that can be read of a state.
#[derive(Debug, PartialEq)]
struct Contents {
    ranges: Vec<RangeResponse>,
    events: Vec<Event>,
    hash: u32,
    records: Vec<KeyRecord>,
    used_bytes: u64,
}

async fn contents(node: &Node) -> Contents {
    let view = node.view().await;
    let first = view.compacted().max(1);
    let mut ranges = Vec::new();
    for revision in (first..=view.revision()).step_by(5) {
        ranges.push(view.range(&RangeRequest { revision, ..range([0], [0]) }).await.unwrap());
    }
    let events = view.events(first, |_| true, usize::MAX).await.unwrap().0;
    let hash = view.hash(0).await.unwrap().0;
    let (mut all, mut records) = (view.records().unwrap(), Vec::new());
    while let Some(record) = all.next().await.unwrap() {
        records.push(record);
    }
    Contents { ranges, events, hash, records, used_bytes: view.used_bytes() }
}

#[tokio::test]
async fn a_current_value_is_in_one_place_when_it_is_old() {
    let (mut once, mut twice) = (Node::new().await, Node::new().await);
    once.done(raise()).await;
    for number in 0..60 {
        for node in [&mut once, &mut twice] {
            node.put(format!("key {number}"), [7_u8; 100]).await;
        }
        let (whole, short) = puts(&once).await;
        assert!(whole <= 9 && whole + short == number + 1, "{whole} and {short} after {number}");
    }
    assert_eq!(puts(&twice).await, (60, 0));
    let (found, expected) = (contents(&once).await, contents(&twice).await);
    assert_eq!(found, expected);
    assert_eq!(stored(&once).await.2, found.used_bytes);
}

/// A state of an earlier format shows the same at each step of its migration, and continues from each.
#[tokio::test]
async fn a_state_of_an_earlier_format_shows_the_same_while_its_values_move() {
    let mut moved = 0;
    for seed in 0..3 {
        let (mut random, mut model, mut node) = (Random::new(480 + seed), Model::new(), Node::new().await);
        for _ in 0..150 {
            let change = random.change(&model);
            if is_proposed(&change) {
                model.apply(&change);
                node.apply(change).await;
            }
        }
        while node.view().await.is_cleaning() {
            node.done(Change::Clean(Clean {})).await;
        }
        let before = contents(&node).await;
        let (whole, short) = puts(&node).await;
        assert_eq!(short, 0);
        node.done(raise()).await;
        let mut steps = 0;
        while !node.view().await.is_finished() {
            node.done(Change::Clean(Clean {})).await;
            steps += 1;
            if steps % 3 == 0 {
                assert_eq!(contents(&node).await, before, "seed {seed}, step {steps}");
                node.reopen().await;
            }
        }
        assert_eq!(contents(&node).await, before, "seed {seed}");
        let (whole_after, short_after) = puts(&node).await;
        assert!(steps > 3, "{steps} steps");
        assert_eq!(whole_after + short_after, whole);
        moved += short_after;
    }
    // A seed may have replaced all that is older than the window.
    assert!(moved > 0);
}

/// A long value is in one place from the start. A replacement writes it again, so it counts.
#[tokio::test]
async fn values_that_a_change_writes_again_count_for_its_length() {
    let mut node = Node::new().await;
    node.done(raise()).await;
    for number in 0..10 {
        node.put(format!("key {number}"), vec![7_u8; 20_000]).await;
    }
    assert_eq!(puts(&node).await, (0, 10));
    let before = node.range(range("key", "kez")).await.kvs;
    let revision = node.view().await.revision();
    let refused = node.refused(Change::DeleteRange(delete("key", "kez"))).await;
    assert_eq!(refused, text(Refusal::RequestTooLarge));
    for (first, end) in [("key 0", "key 5"), ("key 5", "kez")] {
        node.done(Change::DeleteRange(delete(first, end))).await;
    }
    assert_eq!(node.range(range("key", "kez")).await.count, 0);
    let older = RangeRequest { revision, ..range("key", "kez") };
    assert_eq!(node.range(older).await.kvs, before);
    // The longest that can be put can be replaced by itself.
    for byte in [1_u8, 2, 3] {
        node.put("long", vec![byte; 65_000]).await;
    }
    let events = node.view().await.events(revision + 1, |key| key == b"long", usize::MAX).await.unwrap().0;
    let first_bytes = |event: &Event| {
        let byte = |pair: &Option<crate::proto::mvccpb::KeyValue>| pair.as_ref().map(|pair| pair.value[0]);
        (byte(&event.kv), byte(&event.prev_kv))
    };
    let bytes: Vec<_> = events.iter().map(first_bytes).collect();
    assert_eq!(bytes, [(Some(1), None), (Some(2), Some(1)), (Some(3), Some(2))]);
}

/// Story: a batch has a deleted key three times, in its version with two bytes for each zero, and once more with a value that is moved.
/// The limit of an entry knew half of these bytes: a delete of 600 keys of 8,000 zeros ended each member whose store has 112 MiB.
#[tokio::test]
async fn keys_count_as_often_as_a_batch_has_them() {
    let mut node = Node::new().await;
    node.done(raise()).await;
    let key = |number: u8| [&[0_u8; 8000][..], &[number]].concat();
    for number in 1..=5 {
        node.put(key(number), vec![7_u8; 1001]).await;
    }
    let delete_until = |number| Change::DeleteRange(delete(key(1), key(number)));
    assert_eq!(node.refused(delete_until(6)).await, text(Refusal::RequestTooLarge));
    node.done(delete_until(4)).await;
    assert_eq!(node.range(range([0], [0])).await.count, 2);
    // A lease with such keys ends in steps, of which none is too long.
    node.done(grant(1, 60)).await;
    for number in 1..=5 {
        node.put_with(PutRequest { lease: 1, ..put(key(number), vec![7_u8; 1001]) }).await;
    }
    while let Some(Response::Done(Done { is_partial: true })) = node.apply(revoke(1)).await.result {}
    assert_eq!(node.range(range([0], [0])).await.count, 0);
}

#[tokio::test]
async fn a_lease_with_long_values_ends_in_steps() {
    let mut node = Node::new().await;
    node.done(raise()).await;
    node.done(grant(1, 60)).await;
    for number in 0..10 {
        node.put_with(PutRequest { lease: 1, ..put(format!("key {number}"), vec![7_u8; 60_000]) }).await;
    }
    let mut steps = 1;
    while let Some(Response::Done(Done { is_partial: true })) = node.apply(revoke(1)).await.result {
        steps += 1;
        assert!(steps <= 10);
    }
    assert!(steps > 3, "{steps} steps");
    assert_eq!(node.range(range([0], [0])).await.count, 0);
    assert!(node.view().await.leases().await.unwrap().is_empty());
}
