//! Entries are applied when clients' reads have taken the store's memory: later, and not never.

use std::time::Duration;

use forebay_kv::{ErrorKind, Keyspace, Value};
use tokio::time::{Instant, sleep};

use super::harness::*;
use crate::proto::etcdserverpb::RangeRequest;
use crate::proto::peer::command::Change;

/// Takes all of a store's memory, as clients do that keep all their values.
async fn take_memory(keyspace: &Keyspace, count: u64) -> Vec<Value> {
    let mut held = Vec::new();
    for number in (0..count).cycle() {
        match keyspace.get(format!("key {number:03}").as_bytes()).await {
            Ok(value) => held.extend(value),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::MemoryBudget { .. }), "{error}");
                break;
            }
        }
    }
    held
}

/// The first read of an entry for which there was no memory ended the member.
#[tokio::test(start_paused = true)]
async fn entries_wait_for_memory() {
    let mut node = Node::new().await;
    for number in 0..400 {
        node.put(format!("key {number:03}"), vec![1; 20_000]).await;
    }
    let now = node.store.keyspaces()[0].clone();
    for change in [
        // Reads ranges, versions, single values, and the events that a compaction removes.
        Change::Txn(txn(
            vec![],
            vec![operation(range("key 0", "key 1")), operation(delete("key 010", "key 020"))],
            vec![],
        )),
        Change::Put(put("key 300", "short")),
        // Values of an old revision, one at a time.
        Change::Txn(txn(
            vec![],
            vec![operation(RangeRequest { revision: 400, ..range("key", "kez") })],
            vec![],
        )),
        compact(200),
    ] {
        let held = take_memory(&now, 300).await;
        let begun = Instant::now();
        let free = async {
            sleep(Duration::from_secs(5)).await;
            drop(held);
        };
        let applied = async {
            node.done(change).await;
            begun.elapsed()
        };
        let (elapsed, ()) = tokio::join!(applied, free);
        assert!(elapsed >= Duration::from_secs(5), "there was no memory: {elapsed:?}");
    }
}
