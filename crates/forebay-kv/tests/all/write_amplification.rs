//! The bytes that a store says it has written are those that the device was given.

use crate::common::{key, options};
use forebay::Engine;
use forebay_kv::{Batch, Stats, Store};
use forebay_sim::{Profile, World};

const PUTS: u64 = 600;
const LOADED: u64 = 400;

async fn live(engine: Engine) -> (u64, Stats) {
    let options = options().memtable_bytes(16 << 10).log_segment_bytes(64 << 10).store_id(7).clock(|| 1_000);
    let store = Store::open(&engine, "/disk/store", options).await.expect("a store");
    let keyspace = store.default_keyspace();
    for round in 0..2_u8 {
        for number in (0..PUTS).step_by(2) {
            let mut batch = Batch::new();
            batch.put(&keyspace, key(number), [round; 300]).put(&keyspace, key(number + 1), [round; 300]);
            store.write(&batch).await.expect("a batch");
        }
        keyspace.delete(key(7)).await.expect("a deletion");
        keyspace.put_until(key(8), [round; 100], 2_000).await.expect("a put");
    }
    let loaded = (0..LOADED).map(|number| (key(1_000 + number), [7; 500]));
    keyspace.bulk_load(loaded).await.expect("a load");
    store.compact().await.expect("a compaction");
    store.checkpoint("/disk/copy").await.expect("a checkpoint");
    store.settle().await.expect("rest");
    assert!(store.stats().compactions > 0, "nothing was written twice");
    store.close().await.expect("an end");
    let flows = engine.stats().await.expect("statistics").flows;
    (flows.iter().map(|flow| flow.write_bytes).sum(), store.stats())
}

/// Story: the amplification was that of tables alone. A program that put short values one by one had a page of the log
/// written for each, and the store said 1.0.
#[test]
fn write_amplification_is_the_bytes_of_the_device_for_each_byte_put() {
    for seed in 0..4 {
        let mut world = World::new(seed).disk(Profile::nand().at("/disk"));
        let (written, stats) = world.run(live).expect("a world without faults");
        assert_eq!(stats.written_bytes, written, "seed {seed}: {stats:?}");
        // Keys have ten bytes; a time of expiry counts as eight.
        let put = 2 * (PUTS * 310 + 10 + 10 + 100 + 8) + LOADED * 510;
        assert_eq!(stats.put_bytes, put);
        assert_eq!(stats.write_amplification(), written as f64 / put as f64);
        assert!(
            stats.written_bytes
                > stats.flushed_bytes + stats.compaction_written_bytes + stats.log.write_bytes
        );
    }
}

/// A sorted file was written once before it came, and its second name takes no bytes.
#[test]
fn an_ingested_file_counts_as_written_once() {
    let mut world = World::new(1).disk(Profile::nand().at("/disk"));
    let ran = world.run(async |engine| {
        let store = Store::open(&engine, "/disk/store", options().store_id(7)).await.expect("a store");
        let mut file = store.sorted_file("/disk/sorted").await.expect("a file");
        for number in 0..500 {
            file.put(key(number), [7; 1000]).await.expect("an entry");
        }
        file.finish().await.expect("an end");
        let before = store.stats();
        let report = store.ingest([(&store.default_keyspace(), "/disk/sorted")]).await.expect("an ingest");
        let stats = store.stats();
        let bytes = report.files[0].bytes;
        assert!(!report.files[0].is_copied, "{report:?}");
        assert_eq!((stats.ingested_bytes, stats.put_bytes), (bytes, 0));
        assert!(stats.written_bytes - before.written_bytes < bytes / 4, "{stats:?}");
        let expected = (stats.written_bytes + bytes) as f64 / bytes as f64;
        assert_eq!(stats.write_amplification(), expected);
        store.close().await.expect("an end");
    });
    ran.expect("a world without faults");
}
