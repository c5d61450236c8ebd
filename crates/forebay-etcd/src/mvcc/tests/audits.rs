//! An audit finds the entries as they were written, however far cleaning is, and each that is not.

use super::harness::{Node, compact, grant, put, raise};
use super::model::Model;
use super::random::{Random, is_proposed};
use crate::mvcc::Audit;
use crate::mvcc::codec::{self, Record};
use crate::mvcc::reader::Part;
use crate::proto::etcdserverpb::PutRequest;
use crate::proto::peer;
use crate::proto::peer::command::Change;

/// Reads everything, in steps of a few entries, and returns what differs.
async fn audit(node: &Node) -> Option<&'static str> {
    let mut audit = Audit::new(node.view().await);
    let mut steps = 0;
    while audit.step(100).await.unwrap().is_some() {
        steps += 1;
    }
    assert!(steps > 5, "{steps} steps");
    audit.difference()
}

#[tokio::test]
async fn a_state_is_as_it_was_written_after_any_changes() {
    for seed in 0..4 {
        let (mut random, mut model) = (Random::raising(900 + seed), Model::new());
        let mut node = Node::new().await;
        let mut while_cleaning = 0;
        for number in 0..300 {
            let change = random.change(&model);
            if is_proposed(&change) {
                model.apply(&change);
                node.apply(change).await;
            }
            if number % 60 == 59 {
                node.reopen().await;
            }
            if number % 10 == 0 {
                while_cleaning += u32::from(node.view().await.is_cleaning());
                assert_eq!(audit(&node).await, None, "seed {seed}, after {number} changes");
            }
        }
        assert!(while_cleaning > 0, "seed {seed}");
    }
}

/// Makes a state with an entry of each kind, some history before the compacted revision, and some behind it.
async fn filled() -> Node {
    let mut node = Node::new().await;
    node.done(grant(5, 60)).await;
    node.put("old key", "value").await;
    for number in 0..20 {
        node.put_with(PutRequest { lease: 5, ..put(format!("key {}", number % 3), number.to_string()) })
            .await;
    }
    node.done(compact(15)).await;
    while node.view().await.is_cleaning() {
        node.done(Change::Clean(peer::Clean {})).await;
    }
    node
}

/// The same, with values in one place: some of them long, some replaced when they were old, and some within the window.
async fn filled_once() -> Node {
    let mut node = Node::new().await;
    node.done(raise()).await;
    for number in 0..40 {
        let value = vec![b'v'; if number % 4 == 0 { 1_100 } else { 10 }];
        let key = if number % 7 < 2 { "often".to_owned() } else { format!("key {}", number % 13) };
        node.put(key, value).await;
    }
    node.done(compact(15)).await;
    while node.view().await.is_cleaning() {
        node.done(Change::Clean(peer::Clean {})).await;
    }
    node
}

/// Audits the state without each of its entries.
async fn assert_each_is_missed(node: &Node, part: Part) {
    let keyspace = node.store.keyspaces()[part as usize].clone();
    let (mut all, mut entries) = (keyspace.iter(), Vec::new());
    while let Some((key, value)) = all.next().await.transpose().unwrap() {
        entries.push((key, value.to_vec()));
    }
    drop(all);
    assert!(!entries.is_empty(), "{part:?}");
    let store = node.store.store();
    let mut batch = forebay_kv::Batch::new();
    for (key, value) in entries {
        batch.clear();
        store.write(batch.delete(&keyspace, &key)).await.unwrap();
        assert!(audit(node).await.is_some(), "{part:?} without {key:02x?}");
        batch.clear();
        store.write(batch.put(&keyspace, &key, &value)).await.unwrap();
        assert_eq!(audit(node).await, None);
    }
}

#[tokio::test]
async fn an_entry_that_is_missing_is_found_in_each_keyspace() {
    let node = filled().await;
    for part in [Part::Now, Part::Leases, Part::LeaseKeys, Part::Events, Part::Versions] {
        assert_each_is_missed(&node, part).await;
    }
    let node = filled_once().await;
    for part in [Part::Now, Part::Events, Part::Versions] {
        assert_each_is_missed(&node, part).await;
    }
}

/// Flips a bit of each value that is in one place, wherever it is.
#[tokio::test]
async fn a_wrong_byte_of_a_value_in_one_place_is_found() {
    let node = filled_once().await;
    assert_eq!(audit(&node).await, None);
    let mut moved = 0;
    for part in [Part::Now, Part::Versions] {
        let keyspace = node.store.keyspaces()[part as usize].clone();
        let (mut all, mut entries) = (keyspace.iter(), Vec::new());
        while let Some((key, value)) = all.next().await.transpose().unwrap() {
            entries.push((key, value.to_vec()));
        }
        drop(all);
        let mut batch = forebay_kv::Batch::new();
        for (key, value) in entries {
            moved += u32::from(part == Part::Versions && value.len() > 1);
            let mut wrong = value.clone();
            *wrong.last_mut().unwrap() ^= 1;
            batch.clear();
            node.store.store().write(batch.put(&keyspace, &key, &wrong)).await.unwrap();
            assert!(audit(&node).await.is_some(), "{part:?} {key:02x?}");
            batch.clear();
            node.store.store().write(batch.put(&keyspace, &key, &value)).await.unwrap();
        }
    }
    assert!(moved > 0);
    assert_eq!(audit(&node).await, None);
}

#[tokio::test]
async fn a_wrong_byte_of_a_value_is_found() {
    let node = filled().await;
    for part in [Part::Now, Part::Events] {
        let keyspace = node.store.keyspaces()[part as usize].clone();
        let (mut all, mut entries) = (keyspace.iter(), Vec::new());
        while let Some((key, value)) = all.next().await.transpose().unwrap() {
            entries.push((key, value.to_vec()));
        }
        drop(all);
        if part == Part::Events {
            // An event that the compaction left has its value nowhere else once it was replaced.
            let compacted = codec::At::first(15).key();
            let before = entries.len();
            entries.retain(|(key, value)| {
                key[..] >= compacted[..] || Record::decode(value).unwrap().key == b"old key"
            });
            assert!(entries.len() < before && entries.iter().any(|(key, _)| key[..] < compacted[..]));
        }
        let store = node.store.store();
        let mut batch = forebay_kv::Batch::new();
        for (key, value) in entries {
            let mut wrong = value.clone();
            *wrong.last_mut().unwrap() ^= 1;
            batch.clear();
            store.write(batch.put(&keyspace, &key, &wrong)).await.unwrap();
            assert!(audit(&node).await.is_some(), "{part:?} {key:02x?}");
            batch.clear();
            store.write(batch.put(&keyspace, &key, &value)).await.unwrap();
        }
        assert_eq!(audit(&node).await, None);
    }
}
