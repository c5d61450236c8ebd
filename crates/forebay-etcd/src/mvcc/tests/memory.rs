//! Entries are applied even if clients' reads use up the store's memory: later, but always.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay::{Config, Engine};
use forebay_kv::{ErrorKind, Keyspace, Value};
use forebay_raft::Apply;
use forebay_test::sweep::meter;
use tokio::time::{Instant, sleep, timeout};

use super::harness::*;
use crate::mvcc::reader::{Part, Reader};
use crate::mvcc::{CompactionRevisions, Import, ImportSummary, KeyRecord, Machine, view};
use crate::proto::etcdserverpb::{PutRequest, RangeRequest};
use crate::proto::mvccpb::KeyValue;
use crate::proto::peer::command::Change;

/// Uses up all of a store's memory, as clients do that keep all their values.
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

/// The first read of an entry that found no memory ended the member.
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
        // Values of an old revision.
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

/// A range keeps the memtables of its time, which count as held once they are in tables. An entry whose own range held the memory
/// waited forever.
#[tokio::test]
async fn an_entry_does_not_wait_for_what_it_holds_itself() {
    let mut node = Node::new().await;
    for number in 0..300 {
        node.put(format!("key {number:03}"), vec![1; 20_000]).await;
    }
    node.store.store().flush().await.unwrap();
    for number in 300..305 {
        node.put(format!("key {number:03}"), vec![1; 20_000]).await;
    }
    let keyspaces = node.store.keyspaces();
    let mut walk = Reader::new(&keyspaces, None).unwrap().walk_prefix(Part::Now, b"key");
    let mut found = vec![walk.next().await.unwrap().unwrap().0];
    node.store.store().flush().await.unwrap();
    let held = take_memory(&keyspaces[0], 300).await;
    // Nothing is released by the clients.
    let next = timeout(Duration::from_secs(20), walk.next()).await;
    found.push(next.expect("it waits for its own range").unwrap().unwrap().0);
    drop(held);
    while let Some((key, _)) = walk.next().await.unwrap() {
        found.push(key);
    }
    let keys: Vec<_> = (0..305).map(|number| format!("key {number:03}").into_bytes()).collect();
    assert_eq!(found, keys);
}

/// A walk that releases its resources between two entries continues after the last entry.
#[tokio::test]
async fn a_walk_goes_on_where_it_was() {
    let mut node = Node::new().await;
    let keys =
        [&b"\xfe"[..], b"\xfe\xff", b"\xfe\xff\x01", b"\xfe\xff\xff", b"\xff", b"\xff\xff", b"\xff\xff\xff"];
    for key in keys {
        node.put(key, "value").await;
    }
    let keyspaces = node.store.keyspaces();
    let reader = Reader::new(&keyspaces, None).unwrap();
    for prefix in [&b""[..], b"\xfe", b"\xfe\xff", b"\xff", b"\xff\xff", b"\xff\xff\xff\xff"] {
        let expected: Vec<_> =
            keys.iter().filter(|key| key.starts_with(prefix)).map(|key| key.to_vec()).collect();
        for is_reversed in [false, true] {
            let mut walk = reader.walk_prefix(Part::Now, prefix);
            if is_reversed {
                walk = walk.rev();
            }
            let mut found = Vec::new();
            while let Some((key, _)) = walk.next().await.unwrap() {
                found.push(key);
                walk.let_go();
            }
            assert!(walk.next().await.unwrap().is_none());
            if is_reversed {
                found.reverse();
            }
            assert_eq!(found, expected, "{prefix:?}");
        }
    }
}

/// The leases and alarms of an installed snapshot are read when it is opened. Clients that held the memory then ended the member.
#[tokio::test(start_paused = true)]
async fn a_state_is_opened_when_there_is_memory_again() {
    let mut node = Node::new().await;
    for number in 0..300 {
        node.put(format!("key {number:03}"), vec![1; 20_000]).await;
    }
    node.done(grant(7, 60)).await;
    node.put_with(PutRequest { lease: 7, ..put("leased", "") }).await;
    node.done(alarm(9, 1, true)).await;
    let keyspaces = node.store.keyspaces();
    let reader = Reader::new(&keyspaces, None).unwrap();
    for turn in 0..4 {
        let held = take_memory(&keyspaces[0], 300).await;
        let begun = Instant::now();
        let free = async {
            sleep(Duration::from_secs(5)).await;
            drop(held);
        };
        let read = async {
            match turn {
                0 => assert_eq!(view::leases(&reader).await.unwrap(), [(7, 60)]),
                1 => assert_eq!(view::lease_keys(&reader, 7).await.unwrap(), [b"leased"]),
                2 => assert_eq!(view::alarms(&reader).await.unwrap(), [(9, 1)]),
                _ => {
                    let seen = Arc::new(Recorder::default());
                    Machine::new(seen.clone(), LIMITS).opened(&keyspaces).await.unwrap();
                    assert_eq!(seen.opened.lock().unwrap()[0].leases, [(7, 60)]);
                }
            }
            begun.elapsed()
        };
        let (elapsed, ()) = tokio::join!(read, free);
        assert!(elapsed >= Duration::from_secs(5), "there was no memory: {elapsed:?}");
    }
}

/// A backup in which many long values are replaced one after the other could not be restored: all of them were looked up together,
/// each time again, and no memory was enough for that.
#[tokio::test(start_paused = true)]
async fn a_restore_replaces_values_that_find_no_memory_together() {
    const KEYS: i64 = 200;
    const REPLACED: i64 = 7;
    let node = Node::new().await;
    let keyspaces = node.store.keyspaces();
    let record = |main: i64, key: i64, value: Vec<u8>| KeyRecord {
        main,
        sub: 0,
        is_delete: false,
        pair: KeyValue {
            key: format!("key {key:03}").into(),
            create_revision: key + 1,
            mod_revision: main,
            version: if main == key + 1 { 1 } else { 2 },
            value: value.into(),
            lease: 0,
        },
    };
    let mut import = Import::new(&keyspaces).unwrap();
    for key in 0..KEYS {
        import.add(record(key + 1, key, vec![1; 60_000])).await.unwrap();
    }
    for key in KEYS - REPLACED..KEYS {
        import.add(record(REPLACED + key + 1, key, vec![2])).await.unwrap();
        // Values of tables use memory, recently written values do not.
        node.store.store().flush().await.unwrap();
    }
    // As the values do that were looked up together.
    let held = take_memory(&keyspaces[0], (KEYS - REPLACED) as u64).await;
    let free = async {
        sleep(Duration::from_secs(5)).await;
        drop(held);
    };
    let (imported, ()) = tokio::join!(import.finish(CompactionRevisions::default(), 0), free);
    let expected = ImportSummary { revision: KEYS + REPLACED, keys: KEYS as u64, leases: 0 };
    assert_eq!(imported.unwrap(), expected);
}

/// An entry that read the values of an old revision waited for the device once for each of them: a range of all keys in one
/// transaction with a put kept all members from applying anything else for a minute. In a simulated world all reads have the same
/// duration, and no two end apart by chance.
#[test]
fn an_entry_reads_many_old_values_at_once() {
    const KEYS: usize = 1_000;
    let ran = meter::world().run(async |engine| {
        let options = options().log_segment_bytes(1 << 20).reserve_bytes(0).clock(|| 1_000);
        let mut node = Node::at(&engine, Path::new("/disk/state"), options, LIMITS).await;
        for value in [vec![1; 4_000], vec![2]] {
            let puts: Vec<_> =
                (0..KEYS).map(|number| Change::Put(put(format!("key {number:04}"), &value))).collect();
            for some in puts.chunks(100) {
                node.apply_all(some).await;
            }
        }
        node.store.store().flush().await.unwrap();
        meter::rest().await;
        let view = node.view().await;
        let request = RangeRequest { revision: KEYS as i64 + 1, ..range("key", "kez") };
        let (read, cost) = meter::count(view.range(&request)).await;
        let read = read.unwrap();
        assert_eq!((read.kvs.len(), read.kvs[9].value.len()), (KEYS, 4_000));
        assert!(cost.rounds < KEYS as u64 / 2, "{} rounds for {KEYS} values", cost.rounds);
        drop(view);
        node.store.close().await.unwrap();
    });
    ran.unwrap();
}

/// Story: a count, and the count beside a list with a limit, read the values of all keys. Kubernetes asks for one with each page of a list.
#[tokio::test]
async fn a_count_reads_no_values() {
    let (engine, dir) = (Engine::start(Config::new().shards(1)).unwrap(), dir());
    let mut node = Node::at(&engine, dir.path(), options(), LIMITS).await;
    node.done(raise()).await;
    let mut older = 0;
    // The second values move the first.
    for value in [1_u8, 2] {
        older = node.view().await.revision();
        for number in 0..400 {
            node.put(format!("key {number:03}"), vec![value; 20_000]).await;
        }
    }
    let read_bytes = async || {
        let flows = engine.stats().await.unwrap().flows;
        flows.iter().filter(|flow| flow.class == "default").map(|flow| flow.read_bytes).sum::<u64>()
    };
    for revision in [0, older] {
        for (limit, count_only) in [(0, true), (5, false)] {
            // Without anything in the cache.
            node.reopen().await;
            let request = RangeRequest { revision, limit, count_only, ..range("key", "kez") };
            let before = read_bytes().await;
            let response = node.range(request).await;
            let bytes = read_bytes().await - before;
            assert_eq!((response.count, response.kvs.len() as i64), (400, limit));
            let of_values = |pair: &KeyValue| pair.value.len() == 20_000;
            assert!(response.kvs.iter().all(of_values));
            // The values have 8 MB.
            assert!(bytes < 2 << 20, "{bytes} bytes for {limit} pairs at {revision}");
        }
    }
}
