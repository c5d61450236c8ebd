//! Members with the same entries have the same hashes, and others have not.

use super::harness::{Node, compact, delete, put};
use super::model::Model;
use super::random::{Random, is_proposed};
use crate::mvcc::Failure;
use crate::mvcc::reader::Part;
use crate::proto::etcdserverpb::PutRequest;
use crate::proto::peer::command::Change;
use crate::refusal::Refusal;
use crate::types::Command;

#[tokio::test]
async fn members_with_the_same_entries_have_the_same_hashes() {
    let (mut random, mut model) = (Random::raising(77), Model::new());
    let (mut one, mut two) = (Node::new().await, Node::new().await);
    for number in 0..400 {
        let change = random.change(&model);
        if !is_proposed(&change) {
            continue;
        }
        model.apply(&change);
        one.apply(change.clone()).await;
        let hash = one.view().await.hash(0).await.unwrap();
        assert_eq!((hash.1, hash.2), (model.compacted, model.revision));
        two.apply(change).await;
        assert_eq!(two.view().await.hash(0).await.unwrap(), hash);
        // One member is ahead, and has removed more of what was compacted.
        if number % 20 == 0 {
            one.apply_command(Command(Vec::new())).await;
            assert_eq!(one.view().await.hash(hash.2).await.unwrap(), hash);
            two.apply_command(Command(Vec::new())).await;
            two.reopen().await;
            assert_eq!(two.view().await.hash(hash.2).await.unwrap(), hash);
        }
    }
    let (view, past) = (one.view().await, two.view().await);
    for revision in model.compacted.max(1)..=model.revision {
        assert_eq!(view.hash(revision).await.unwrap(), past.hash(revision).await.unwrap());
    }
    let refused = view.hash(model.compacted - 1).await;
    assert!(model.compacted < 2 || matches!(refused, Err(Failure::Refused(Refusal::Compacted))));
    let refused = view.hash(model.revision + 1).await;
    assert!(matches!(refused, Err(Failure::Refused(Refusal::FutureRevision))));
}

/// Story: the members of a state of millions of events were compared right after a compaction. The places of all that was not removed yet
/// were in memory, and the members were ended for lack of it. Most of these hashes have more of them than are in memory now.
#[tokio::test]
async fn a_hash_does_not_show_how_much_was_removed() {
    let mut node = Node::new().await;
    for number in 0..60 {
        node.put(format!("key {}", number % 7), number.to_string()).await;
    }
    node.done(Change::DeleteRange(delete("key 3", ""))).await;
    node.done(compact(50)).await;
    let hash = node.view().await.hash(0).await.unwrap();
    let mut steps = 0;
    while node.view().await.is_cleaning() {
        node.apply_command(Command(Vec::new())).await;
        assert_eq!(node.view().await.hash(0).await.unwrap(), hash);
        steps += 1;
    }
    assert!(steps > 5);
}

#[tokio::test]
async fn a_hash_depends_on_each_part_of_an_event() {
    let mut hashes = std::collections::BTreeSet::new();
    let changed: [&[(&str, &str, i64)]; 7] = [
        &[("a", "1", 0), ("b", "2", 0)],
        &[("a", "1", 0), ("b", "3", 0)],
        &[("a", "1", 0), ("c", "2", 0)],
        &[("a", "1", 1), ("b", "2", 0)],
        &[("b", "2", 0), ("a", "1", 0)],
        &[("a", "1b", 0), ("b", "2", 0)],
        &[("a", "1", 0), ("a", "2", 0)],
    ];
    for puts in changed {
        let mut node = Node::new().await;
        node.done(super::harness::grant(1, 60)).await;
        for (key, value, lease) in puts {
            node.put_with(PutRequest { lease: *lease, ..put(key, value) }).await;
        }
        assert!(hashes.insert(node.view().await.hash(0).await.unwrap().0), "{puts:?}");
    }
}

#[tokio::test]
async fn a_hash_finds_a_byte_that_is_wrong_in_the_store() {
    let mut node = Node::new().await;
    for key in ["a", "b", "c"] {
        node.put(key, "value").await;
    }
    let hash = node.view().await.hash(0).await.unwrap().0;
    let events = node.store.keyspaces()[Part::Events as usize].clone();
    let (mut all, mut entries) = (events.iter(), Vec::new());
    while let Some(found) = all.next().await.transpose().unwrap() {
        entries.push(found);
    }
    drop(all);
    assert_eq!(entries.len(), 3);
    for (key, value) in entries {
        let mut wrong = value.to_vec();
        *wrong.last_mut().unwrap() ^= 1;
        let mut batch = forebay_kv::Batch::new();
        node.store.store().write(batch.put(&events, &key, &wrong)).await.unwrap();
        assert_ne!(node.view().await.hash(0).await.unwrap().0, hash);
        batch.clear();
        node.store.store().write(batch.put(&events, &key, &value[..])).await.unwrap();
        assert_eq!(node.view().await.hash(0).await.unwrap().0, hash);
    }
}
