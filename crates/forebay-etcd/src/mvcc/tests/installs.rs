use std::sync::atomic::{AtomicBool, Ordering};

use openraft::storage::{RaftSnapshotBuilder, RaftStateMachine};

use super::harness::{Node, range};
use crate::mvcc::{Failure, View};

/// While a snapshot was installed, reads failed with "the store was closed": the old state closes before the new one opens.
#[tokio::test]
async fn reads_wait_while_a_snapshot_is_installed() {
    let (mut leader, mut follower) = (Node::new().await, Node::new().await);
    follower.put("key", "old").await;
    for at in 0..50 {
        leader.put("key", format!("new {at}")).await;
    }
    let is_over = AtomicBool::new(false);
    let reader = follower.store.clone();
    let old = View::of(&reader).await.unwrap().range(&range("key", "")).await.unwrap().kvs[0].value.clone();
    let reads = async {
        let (mut values, mut again) = (vec![old], 0);
        loop {
            // The last read starts after all installs.
            let is_last = is_over.load(Ordering::Relaxed);
            let view = View::of(&reader).await.unwrap();
            match view.range(&range("key", "")).await {
                Ok(response) => {
                    values.push(response.kvs[0].value.clone());
                    if is_last {
                        break;
                    }
                }
                Err(failure) => {
                    assert!(view.is_replaced(&reader, &failure).await, "{failure:?}");
                    again += 1;
                }
            }
            tokio::task::yield_now().await;
        }
        values.dedup();
        (values, again)
    };
    let store = &mut follower.store;
    let installs = async {
        for _ in 0..5 {
            let built = leader.store.build_snapshot().await.unwrap();
            store.install_snapshot(&built.meta, built.snapshot).await.unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    };
    let ((values, again), ()) = tokio::join!(reads, installs);
    println!("{again} reads were made again");
    assert_eq!(values, [&b"old"[..], &b"new 49"[..]]);
    // A state that is closed for good is not waited for.
    follower.store.close().await.unwrap();
    assert!(matches!(View::of(&follower.store).await, Err(Failure::Store(_))));
}

/// Damage that a read of the former state met late was attributed to the new state, and ended a member that was just repaired.
#[tokio::test]
async fn damage_goes_with_the_state_in_which_it_was_met() {
    let mut node = Node::new().await;
    node.put("key", "value").await;
    let (former, late) = (View::of(&node.store).await.unwrap(), Failure::Damaged("met late".into()));
    assert!(!former.is_replaced(&node.store, &late).await);
    let built = node.store.build_snapshot().await.unwrap();
    node.store.install_snapshot(&built.meta, built.snapshot).await.unwrap();
    assert!(former.is_replaced(&node.store, &late).await);
    node.store.close().await.unwrap();
}
