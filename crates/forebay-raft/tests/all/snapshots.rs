//! Shows: a snapshot is transferred part by part to another node without a difference; an invalid snapshot changes nothing; old
//! snapshots are removed, but not under a reader; another open finds the same state. How: two stores on real files, and one in a
//! simulated world.

use std::path::Path;

use crate::common::{Texts, Types, WorldTypes, apply, count, dir, entry, log_id, parts};
use forebay::{Config, Engine};
use forebay_kv::Options;
use forebay_raft::{Error, ErrorKind, RaftSnapshot, RaftStore, SnapshotPart};
use forebay_sim::{self as sim, Fault, Profile, Rule, World};
use openraft::alias::SnapshotOf;
use openraft::storage::{RaftSnapshotBuilder, RaftStateMachine};

type Store = RaftStore<Types, Texts>;

fn engine() -> Engine {
    Engine::start(Config::new().shards(2)).unwrap()
}

fn options() -> Options {
    Options::new()
        .memory_bytes_max(Options::MEMORY_BYTES_MIN)
        .memtable_bytes(64 << 10)
        .log_segment_bytes(64 << 10)
}

async fn open(engine: &Engine, dir: &Path) -> Store {
    RaftStore::open(engine, dir, options(), Texts).await.unwrap()
}

async fn receive(store: &Store, parts: &[SnapshotPart]) -> Result<RaftSnapshot, Error> {
    let mut receiver = store.receive_snapshot().await?;
    for part in parts {
        receiver.write(part).await?;
    }
    receiver.finish().await
}

fn dirs(dir: &Path) -> Vec<String> {
    let all = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let mut dirs: Vec<_> = all
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    dirs.sort();
    dirs
}

async fn built(store: &mut Store) -> SnapshotOf<Types, RaftSnapshot> {
    store.build_snapshot().await.unwrap()
}

#[tokio::test]
async fn a_snapshot_goes_part_by_part_to_another_node() {
    let (engine, one, two) = (engine(), dir(), dir());
    let (mut leader, mut follower) = (open(&engine, one.path()).await, open(&engine, two.path()).await);
    apply(&mut leader, 0..500).await.unwrap();
    apply(&mut follower, 0..40).await.unwrap();
    let snapshot = built(&mut leader).await;
    assert_eq!(snapshot.meta.last_log_id, Some(log_id::<Types>(1, 499)));
    let parts = parts(&snapshot.snapshot).await;
    assert!(parts.len() > snapshot.snapshot.files().len(), "some file has several parts");
    // On the way they are bytes.
    let bytes: Vec<_> = parts.iter().map(|part| rmp_serde::to_vec_named(part).unwrap()).collect();
    let parts: Vec<SnapshotPart> = bytes.iter().map(|bytes| rmp_serde::from_slice(bytes).unwrap()).collect();
    let received = receive(&follower, &parts).await.unwrap();
    assert_eq!((received.files(), received.bytes()), (snapshot.snapshot.files(), snapshot.snapshot.bytes()));
    assert_eq!(count(&mut follower).await, 40);
    let old = follower.keyspaces();
    follower.install_snapshot(&snapshot.meta, received).await.unwrap();
    assert_eq!(count(&mut follower).await, 500);
    assert_eq!(old[0].get("a").await.unwrap_err().kind(), forebay_kv::ErrorKind::Closed);
    apply(&mut follower, 500..520).await.unwrap();
    let current = follower.get_current_snapshot().await.unwrap().unwrap();
    assert_eq!(current.meta, snapshot.meta);
    assert_eq!(dirs(two.path()).len(), 2);
    // It is there after another open, and can be sent on.
    drop((old, current));
    follower.close().await.unwrap();
    drop(follower);
    let mut follower = open(&engine, two.path()).await;
    assert_eq!(count(&mut follower).await, 520);
    let current = follower.get_current_snapshot().await.unwrap().unwrap();
    assert_eq!(current.meta, snapshot.meta);
    assert!(forebay_kv::verify(&engine, current.snapshot.path()).await.unwrap().is_whole());
}

/// Reads failed with "closed" while a snapshot was installed, and a reader could not learn when the new state was there.
#[tokio::test]
async fn reads_go_on_when_a_snapshot_is_installed() {
    let (engine, one, two) = (engine(), dir(), dir());
    let (mut leader, mut follower) = (open(&engine, one.path()).await, open(&engine, two.path()).await);
    apply(&mut leader, 0..500).await.unwrap();
    apply(&mut follower, 0..40).await.unwrap();
    let snapshot = built(&mut leader).await;
    let received = receive(&follower, &parts(&snapshot.snapshot).await).await.unwrap();
    let reader = follower.clone();
    let mut former = reader.keyspaces();
    let reads = async {
        let mut waits = 0;
        loop {
            match former[0].get(&499u64.to_be_bytes()).await {
                Ok(Some(_)) => return waits,
                Ok(None) => tokio::task::yield_now().await,
                Err(error) => {
                    assert_eq!(error.kind(), forebay_kv::ErrorKind::Closed);
                    assert!(reader.is_replaced(&former).await, "the install ends");
                    (former, waits) = (reader.keyspaces(), waits + 1);
                }
            }
        }
    };
    let (installed, waits) = tokio::join!(follower.install_snapshot(&snapshot.meta, received), reads);
    installed.unwrap();
    assert_eq!(waits, 1, "the first state that can be read after the failure is the new one");
    // Closed for good, or not at all.
    let current = follower.keyspaces();
    assert!(!follower.is_replaced(&current).await);
    follower.close().await.unwrap();
    assert!(!follower.is_replaced(&current).await);
}

#[tokio::test]
async fn a_wrong_snapshot_changes_nothing() {
    let (engine, one, two) = (engine(), dir(), dir());
    let (mut leader, mut follower) = (open(&engine, one.path()).await, open(&engine, two.path()).await);
    apply(&mut leader, 0..500).await.unwrap();
    apply(&mut follower, 0..40).await.unwrap();
    let snapshot = built(&mut leader).await;
    let good = parts(&snapshot.snapshot).await;
    let at_table =
        |part: &SnapshotPart| matches!(part, SnapshotPart::Bytes { name, .. } if name.ends_with(".fkv"));
    let table = good.iter().position(at_table).unwrap();
    let refused = |error: Error| assert_eq!(error.kind(), ErrorKind::BadSnapshot, "{error}");
    // The last part is missing, a part is missing, a file is missing, a part is repeated.
    refused(receive(&follower, &good[..good.len() - 1]).await.unwrap_err());
    let without = |at: usize| [&good[..at], &good[at + 1..]].concat();
    refused(receive(&follower, &without(table)).await.unwrap_err());
    refused(receive(&follower, &without(0)).await.unwrap_err());
    refused(receive(&follower, &[&good[..=table], &good[table..]].concat()).await.unwrap_err());
    for name in ["../outside", "/outside", "", "a/../../outside"] {
        let outside = SnapshotPart::Bytes { name: name.into(), offset: 0, bytes: vec![1] };
        refused(receive(&follower, &[outside]).await.unwrap_err());
    }
    // A byte is wrong: the checksums of the store find it, and the sender hears of it. They were checked by the install, whose
    // errors end the node.
    let mut damaged = good.clone();
    if let SnapshotPart::Bytes { bytes, .. } = &mut damaged[table] {
        bytes[100] ^= 1;
    }
    refused(receive(&follower, &damaged).await.unwrap_err());
    assert_eq!(count(&mut follower).await, 40);
    assert!(follower.get_current_snapshot().await.unwrap().is_none());
    apply(&mut follower, 40..50).await.unwrap();
    // What was received is removed at the start of the next transfer.
    let received = receive(&follower, &good).await.unwrap();
    assert_eq!(dirs(two.path()).len(), 2, "{:?}", dirs(two.path()));
    follower.install_snapshot(&snapshot.meta, received).await.unwrap();
    assert_eq!(count(&mut follower).await, 500);
}

#[tokio::test]
async fn an_old_snapshot_stays_while_it_is_read() {
    let (engine, one) = (engine(), dir());
    let mut store = open(&engine, one.path()).await;
    apply(&mut store, 0..200).await.unwrap();
    let first = built(&mut store).await;
    apply(&mut store, 200..300).await.unwrap();
    let second = built(&mut store).await;
    assert_eq!(dirs(one.path()).len(), 3);
    assert!(matches!(parts(&first.snapshot).await.last(), Some(SnapshotPart::End { .. })));
    drop(first);
    apply(&mut store, 300..400).await.unwrap();
    let third = built(&mut store).await;
    // The first was removed, the second is held.
    assert_eq!(dirs(one.path()).len(), 3);
    drop((second, third));
    built(&mut store).await;
    assert_eq!(dirs(one.path()).len(), 2);
}

/// The parts behind it were read ahead by then, and are returned again, after it.
#[test]
fn a_part_that_could_not_be_read_is_read_again() {
    World::new(1)
        .disk(Profile::nand().at("/disk"))
        .run(async |engine: Engine| {
            let options = options().reserve_bytes(0).clock(|| 1_000);
            let mut store =
                RaftStore::<WorldTypes, _>::open(&engine, "/disk/one", options, Texts).await.unwrap();
            apply(&mut store, 0..500).await.unwrap();
            let snapshot = store.build_snapshot().await.unwrap().snapshot;
            let whole = parts(&snapshot).await;
            for nth in 1..=3 {
                sim::inject(Rule::new(Fault::ReadError).on(snapshot.path()).nth(nth).times(1));
                let (mut reader, mut read, mut failures) = (snapshot.reader(), Vec::new(), 0);
                loop {
                    match reader.next().await {
                        Ok(Some(part)) => read.push(part),
                        Ok(None) => break,
                        Err(_) => failures += 1,
                    }
                }
                assert_eq!(failures, 1);
                assert!(read == whole, "other parts, or in another order");
            }
            store.close().await.unwrap();
        })
        .unwrap();
}

#[tokio::test]
async fn a_lost_name_of_the_state_removes_nothing() {
    let (engine, one) = (engine(), dir());
    let mut store = open(&engine, one.path()).await;
    apply(&mut store, 0..100).await.unwrap();
    let snapshot = built(&mut store).await;
    store.install_snapshot(&snapshot.meta, snapshot.snapshot).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let (current, before) = (one.path().join("current"), dirs(one.path()));
    let bytes = std::fs::read(&current).unwrap();
    std::fs::remove_file(&current).unwrap();
    let error = RaftStore::<Types, _>::open(&engine, one.path(), options(), Texts).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    // Nor does a damaged one.
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&current, damaged).unwrap();
    let error = RaftStore::<Types, _>::open(&engine, one.path(), options(), Texts).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert_eq!(dirs(one.path()), before);
    std::fs::write(&current, bytes).unwrap();
    assert_eq!(count(&mut open(&engine, one.path()).await).await, 100);
}

#[tokio::test]
async fn an_error_of_the_state_machine_ends_the_node() {
    let (engine, one) = (engine(), dir());
    let mut store = open(&engine, one.path()).await;
    apply(&mut store, 0..10).await.unwrap();
    let refused = entry::<Types>(1, 10, "refused");
    let error = store.apply(futures_util::stream::iter([Ok((refused, None))])).await.unwrap_err();
    assert!(error.to_string().contains("this state machine cannot go on"), "{error}");
    let error = apply(&mut store, 10..11).await.unwrap_err();
    let error = error.get_ref().unwrap().downcast_ref::<Error>().unwrap();
    assert_eq!(error.kind(), ErrorKind::Poisoned);
    // What was applied before is there.
    store.close().await.unwrap();
    drop(store);
    assert_eq!(count(&mut open(&engine, one.path()).await).await, 10);
}

#[tokio::test]
async fn a_directory_of_others_is_refused() {
    let (engine, one) = (engine(), dir());
    std::fs::write(one.path().join("current"), "of another program").unwrap();
    let error = RaftStore::<Types, _>::open(&engine, one.path(), options(), Texts).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    let log = dir();
    let (wal, _) = forebay_wal::Wal::open(&engine, log.path(), forebay_wal::Options::new()).await.unwrap();
    wal.append(b"a record").await.unwrap();
    wal.close().await.unwrap();
    let opened =
        forebay_raft::RaftLog::<Types>::open(&engine, log.path(), forebay_raft::LogOptions::new()).await;
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::Foreign);
}
