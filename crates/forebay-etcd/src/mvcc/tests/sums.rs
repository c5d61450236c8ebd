//! Sums are the same on members with the same entries, at the same checkpoints, and others where anything differs.

use std::collections::BTreeSet;

use super::harness::{Node, compact, grant, put, revoke};
use super::model::Model;
use super::random::{Random, is_proposed};
use crate::mvcc::ages::Ages;
use crate::mvcc::codec::State;
use crate::mvcc::reader::Reader;
use crate::mvcc::sums::{CHECKPOINTS_KEPT, Sums};
use crate::mvcc::{Checkpoint, count};
use crate::proto::etcdserverpb::PutRequest;
use crate::proto::peer;
use crate::proto::peer::command::Change;
use crate::version::Formats;

fn checkpoint() -> Change {
    Change::Checkpoint(peer::Checkpoint {})
}

async fn checkpoints(node: &Node) -> Vec<Checkpoint> {
    node.view().await.checkpoints().await.unwrap()
}

/// Returns the sum after the last entry, which is one that asks for a checkpoint.
async fn sum(node: &mut Node) -> u128 {
    node.done(checkpoint()).await;
    checkpoints(node).await.last().unwrap().sum
}

#[tokio::test]
async fn members_with_the_same_entries_have_the_same_checkpoints() {
    let (mut random, mut model) = (Random::raising(79), Model::new());
    let (mut one, mut two) = (Node::new().await, Node::new().await);
    let mut seen = BTreeSet::new();
    for number in 0..400 {
        let change = random.change(&model);
        if !is_proposed(&change) {
            continue;
        }
        model.apply(&change);
        one.apply(change.clone()).await;
        two.apply(change).await;
        if number % 50 == 7 {
            one.done(checkpoint()).await;
            two.done(checkpoint()).await;
            two.reopen().await;
        }
        let found = checkpoints(&one).await;
        assert_eq!(found, checkpoints(&two).await, "after {number} changes");
        assert!(found.len() <= CHECKPOINTS_KEPT && found.is_sorted_by_key(|checkpoint| checkpoint.index));
        seen.extend(found.iter().map(|checkpoint| checkpoint.index));
    }
    assert!(seen.len() > 8, "{} checkpoints", seen.len());
}

/// Members count states of earlier builds at different times, and must reach the same sums.
#[tokio::test]
async fn sums_are_those_of_a_count_after_any_changes() {
    let mut while_cleaning = 0;
    for seed in 0..4 {
        let (mut random, mut model) = (Random::raising(950 + seed), Model::new());
        let mut node = Node::new().await;
        for number in 0..300 {
            let change = random.change(&model);
            if is_proposed(&change) {
                model.apply(&change);
                node.apply(change).await;
            }
            let keyspaces = node.store.keyspaces();
            let reader = Reader::new(&keyspaces, None).unwrap();
            let state = reader.state().await.unwrap();
            while_cleaning += u32::from(state.is_cleaning());
            let (used_bytes, sums) = count::count(&reader, state.cleaned, Formats::FIRST).await.unwrap();
            assert_eq!(
                (state.used_bytes, state.sums),
                (used_bytes, Some(sums)),
                "seed {seed}, after {number} changes"
            );
        }
    }
    assert!(while_cleaning > 10, "{while_cleaning} states were being cleaned");
}

/// A value that nothing reads any more is in no sum once a compaction has looked at it.
#[tokio::test]
async fn a_compaction_makes_its_checkpoint_before_it_looks_at_events() {
    let (mut at_compaction, mut later) = (BTreeSet::new(), BTreeSet::new());
    for value in ["one", "two"] {
        let mut node = Node::new().await;
        node.put("key", value).await;
        node.put("key", "last").await;
        node.done(compact(3)).await;
        at_compaction.insert(checkpoints(&node).await.last().unwrap().sum);
        while node.view().await.is_cleaning() {
            node.done(Change::Clean(peer::Clean {})).await;
        }
        later.insert(sum(&mut node).await);
    }
    assert_eq!((at_compaction.len(), later.len()), (2, 1));
}

#[tokio::test]
async fn a_sum_depends_on_each_part_of_an_event() {
    let mut sums = BTreeSet::new();
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
        node.done(grant(1, 60)).await;
        for (key, value, lease) in puts {
            node.put_with(PutRequest { lease: *lease, ..put(key, value) }).await;
        }
        assert!(sums.insert(sum(&mut node).await), "{puts:?}");
        node.done(grant(2, 60)).await;
        let with_lease = sum(&mut node).await;
        node.done(revoke(2)).await;
        assert!(sums.contains(&sum(&mut node).await) && sums.insert(with_lease), "{puts:?}");
    }
}

#[test]
fn a_state_is_read_as_it_was_written() {
    let sums = Sums { events: u128::MAX, left: 1 << 100, current: 7 };
    for (sums, ages) in [(None, None), (Some(Sums::default()), None), (Some(sums), Some(Ages::new(4)))] {
        let state = State { revision: 5, compacted: 3, used_bytes: 9, sums, ages, ..State::default() };
        assert_eq!(State::decode(&state.encode()).unwrap(), state);
    }
}
