//! Shows: a node whose memory the program holds for its clients' reads applies no entry until memory is free, and continues then.
//! Before, the first write without memory ended it. How: a simulated world, in which waiting costs no time.

use std::io;
use std::time::Duration;

use crate::common::{WorldTypes, apply};
use forebay_kv::{Batch, ErrorKind, Keyspace, Options};
use forebay_raft::{Apply, RaftStore, until_memory};
use forebay_sim::{self as sim, Profile, World};
use futures_util::future::{Either, select};
use openraft::alias::EntryOf;
use openraft::entry::RaftEntry;
use openraft::storage::RaftSnapshotBuilder;

type C = WorldTypes;

const VALUE_BYTES: usize = 20_000;

/// Keeps a long value for each entry, and reads the one of the entry before.
struct Long;

impl Apply<C> for Long {
    async fn apply(
        &self,
        entry: EntryOf<C>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<String> {
        let index = entry.log_id().index;
        let former = index.saturating_sub(400).to_be_bytes();
        let former = until_memory::<C, _, _>(|| keyspaces[0].get(&former)).await.map_err(io::Error::other)?;
        assert_eq!(former.is_some(), index > 0);
        batch.put(&keyspaces[0], index.to_be_bytes(), vec![index as u8; VALUE_BYTES]);
        Ok(index.to_string())
    }
}

type Store = RaftStore<C, Long>;

/// Uses up the store's memory, as a client does that keeps all its values.
async fn take_memory(store: &Store, count: u64) -> Vec<forebay_kv::Value> {
    let keyspace = store.keyspaces()[0].clone();
    let mut held = Vec::new();
    for index in (0..count).cycle() {
        match keyspace.get(&index.to_be_bytes()).await {
            Ok(value) => held.extend(value),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::MemoryBudget { .. }), "{error}");
                break;
            }
        }
    }
    held
}

#[test]
fn entries_and_snapshots_wait_for_memory() {
    let mut world = World::new(1);
    world.add_disk(Profile::nand().at("/disk"));
    let run = world.run(async |engine| {
        let options = Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN).memtable_bytes(64 << 10);
        let mut store = Store::open(&engine, "/disk/state", options, Long).await.unwrap();
        apply(&mut store, 0..400).await.unwrap();
        let held = take_memory(&store, 400).await;
        let pause = Box::pin(sim::sleep(Duration::from_secs(5)));
        let applied = {
            let mut other = store.clone();
            let applying = Box::pin(async move { apply(&mut other, 400..500).await });
            match select(applying, pause).await {
                Either::Left((applied, _)) => panic!("without memory: {applied:?}"),
                Either::Right((_, applying)) => {
                    drop(held);
                    applying.await
                }
            }
        };
        applied.unwrap();
        let held = take_memory(&store, 500).await;
        let mut other = store.clone();
        let building = Box::pin(async move { other.build_snapshot().await });
        let pause = Box::pin(sim::sleep(Duration::from_secs(5)));
        let built = match select(building, pause).await {
            Either::Left((built, _)) => panic!("without memory: {:?}", built.map(|built| built.meta)),
            Either::Right((_, building)) => {
                drop(held);
                building.await
            }
        };
        assert_eq!(built.unwrap().meta.last_log_id.map(|id| id.index), Some(499));
        store.close().await.unwrap();
    });
    run.unwrap();
}
