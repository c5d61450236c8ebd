//! Shows: a state whose tables are damaged counts its entries and applies no entry, until the state of another node replaces it,
//! and continues from there; a snapshot with fewer entries, or refused by the program, does not replace it. How: two stores on real
//! files.

use std::future::ready;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Texts, Types, apply, dir, log_id, parts};
use forebay::{Config, Engine};
use forebay_kv::{Batch, Keyspace, Options};
use forebay_raft::{Apply, Error, ErrorKind, RaftSnapshot, RaftStore};
use openraft::alias::{EntryOf, SnapshotOf, StoredMembershipOf};
use openraft::storage::{RaftSnapshotBuilder, RaftStateMachine};

/// Texts, with a state that is repaired.
#[derive(Clone, Default)]
struct RepairedTexts {
    /// Each entry reads all of the state.
    is_reading: Arc<AtomicBool>,
    is_damaged: Arc<AtomicBool>,
}

impl Apply<Types> for RepairedTexts {
    async fn apply(
        &self,
        entry: EntryOf<Types>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<String> {
        if self.is_reading.load(Ordering::Relaxed) {
            let mut all = keyspaces[0].iter();
            while let Some(found) = all.next().await {
                found.map_err(io::Error::other)?;
            }
        }
        <Texts as Apply<Types>>::apply(&Texts, entry, keyspaces, batch).await
    }

    fn damaged(&self, error: &Error, _: &StoredMembershipOf<Types>) -> bool {
        assert!(error.is_damage(), "{error}");
        self.is_damaged.store(true, Ordering::Relaxed);
        true
    }
}

type Store = RaftStore<Types, RepairedTexts>;

fn engine() -> Engine {
    Engine::start(Config::new().shards(2)).unwrap()
}

async fn open(engine: &Engine, dir: &Path, texts: &RepairedTexts) -> Store {
    RaftStore::open(engine, dir, Options::new(), texts.clone()).await.unwrap()
}

/// Returns the files of tables of the states below a directory.
fn tables(dir: &Path) -> Vec<PathBuf> {
    let mut tables = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !name.starts_with("snapshot") {
            tables.extend(self::tables(&path));
        } else if name.ends_with(".fkv") {
            tables.push(path);
        }
    }
    tables
}

/// Flips bits around the middle of each long table, which has entries of the program.
fn damage(dir: &Path) {
    for path in tables(dir) {
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        let bytes = file.metadata().unwrap().len();
        if bytes < 100_000 {
            continue;
        }
        for at in (3..=5).map(|part| bytes * part / 8) {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        }
        file.sync_all().unwrap();
    }
}

/// Makes a store with entries, and closes it: all of them are in tables.
async fn fill(engine: &Engine, dir: &Path, entries: u64) {
    let mut store = open(engine, dir, &RepairedTexts::default()).await;
    apply(&mut store, 0..entries).await.unwrap();
    store.close().await.unwrap();
}

/// Returns the snapshot of a leader with this many entries, as it arrives at a follower.
async fn sent(engine: &Engine, to: &Store, entries: u64) -> SnapshotOf<Types, RaftSnapshot> {
    let one = dir();
    let mut leader = open(engine, one.path(), &RepairedTexts::default()).await;
    apply(&mut leader, 0..entries).await.unwrap();
    let built = leader.build_snapshot().await.unwrap();
    let mut receiver = to.receive_snapshot().await.unwrap();
    receiver.check_space(built.snapshot.bytes()).await.unwrap();
    for part in parts(&built.snapshot).await {
        receiver.write(&part).await.unwrap();
    }
    leader.close().await.unwrap();
    SnapshotOf::<Types, RaftSnapshot> { meta: built.meta, snapshot: receiver.finish().await.unwrap() }
}

async fn repair(engine: &Engine, store: &Store, entries: u64) -> Result<(), Error> {
    store.repair(|_| async move { Ok(sent(engine, store, entries).await) }, |_| ready(Ok(()))).await
}

async fn has(store: &Store, index: u64) -> bool {
    store.keyspaces()[0].get(&index.to_be_bytes()).await.unwrap().is_some()
}

async fn applied(store: &mut Store) -> u64 {
    store.applied_state().await.unwrap().0.unwrap().index
}

#[tokio::test]
async fn entries_that_meet_damage_are_counted_until_another_state_comes() {
    let (engine, one, texts) = (engine(), dir(), RepairedTexts::default());
    fill(&engine, one.path(), 500).await;
    damage(one.path());
    let mut store = open(&engine, one.path(), &texts).await;
    apply(&mut store, 500..510).await.unwrap();
    assert!(has(&store, 509).await, "nothing has met the damage");
    texts.is_reading.store(true, Ordering::Relaxed);
    apply(&mut store, 510..520).await.unwrap();
    assert!(texts.is_damaged.load(Ordering::Relaxed));
    texts.is_reading.store(false, Ordering::Relaxed);
    apply(&mut store, 520..530).await.unwrap();
    assert_eq!(applied(&mut store).await, 529);
    assert!(!has(&store, 529).await, "the entry is counted alone");
    // A snapshot that others would use as the state of these entries is not made.
    assert!(store.try_create_snapshot_builder(false).await.is_none());
    assert!(store.build_snapshot().await.is_err());
    let error = repair(&engine, &store, 529).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSnapshot, "{error}");
    repair(&engine, &store, 540).await.unwrap();
    assert_eq!(applied(&mut store).await, 539);
    // The log has those of the snapshot too.
    apply(&mut store, 530..550).await.unwrap();
    assert!(has(&store, 529).await && has(&store, 549).await);
    store.close().await.unwrap();
    drop(store);
    let mut store = open(&engine, one.path(), &texts).await;
    assert_eq!(applied(&mut store).await, 549);
    assert!(has(&store, 0).await);
}

/// A snapshot that openraft installed during a repair was applied after it: its older state replaced the newer state, and the
/// entries between them were lost.
#[tokio::test]
async fn an_earlier_snapshot_behind_a_repair_takes_nothing_away() {
    let (engine, one, texts) = (engine(), dir(), RepairedTexts::default());
    fill(&engine, one.path(), 500).await;
    damage(one.path());
    let mut store = open(&engine, one.path(), &texts).await;
    texts.is_reading.store(true, Ordering::Relaxed);
    apply(&mut store, 500..510).await.unwrap();
    assert!(texts.is_damaged.load(Ordering::Relaxed));
    texts.is_reading.store(false, Ordering::Relaxed);
    let earlier = sent(&engine, &store, 520).await;
    repair(&engine, &store, 540).await.unwrap();
    store.install_snapshot(&earlier.meta, earlier.snapshot).await.unwrap();
    assert_eq!(applied(&mut store).await, 539);
    apply(&mut store, 520..550).await.unwrap();
    assert_eq!(applied(&mut store).await, 549);
    for index in 0..550 {
        assert!(has(&store, index).await, "entry {index} is missing");
    }
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_state_that_cannot_be_opened_stays_until_another_one_is_there() {
    let (engine, one, texts) = (engine(), dir(), RepairedTexts::default());
    fill(&engine, one.path(), 500).await;
    tables(one.path()).iter().for_each(|table| std::fs::remove_file(table).unwrap());
    for round in 0..2 {
        let opened = RaftStore::<Types, _>::open(&engine, one.path(), Options::new(), texts.clone()).await;
        assert!(opened.unwrap_err().is_damage());
        let store = RaftStore::open_damaged(&engine, one.path(), Options::new(), texts.clone()).await;
        let mut store: Store = store.unwrap();
        apply(&mut store, 0..520).await.unwrap();
        assert!(!has(&store, 0).await);
        if round == 1 {
            repair(&engine, &store, 520).await.unwrap();
            apply(&mut store, 520..521).await.unwrap();
        }
        store.close().await.unwrap();
    }
    let mut store = open(&engine, one.path(), &texts).await;
    assert_eq!(applied(&mut store).await, 520);
    assert!(has(&store, 0).await);
}

#[tokio::test]
async fn a_state_that_the_program_refuses_does_not_become_the_current_one() {
    let (engine, one, texts) = (engine(), dir(), RepairedTexts::default());
    fill(&engine, one.path(), 500).await;
    let mut store = open(&engine, one.path(), &texts).await;
    let (engine, to) = (&engine, &store);
    let refused: Result<(), Error> = store
        .repair(
            |applied| async move {
                assert_eq!(applied, Some(log_id::<Types>(1, 499)));
                Ok(sent(engine, to, 600).await)
            },
            |keyspaces: Arc<[Keyspace]>| async move {
                assert!(keyspaces[0].get(&599u64.to_be_bytes()).await.unwrap().is_some());
                Err(io::Error::other("it is another one's"))
            },
        )
        .await;
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Application, "{error}");
    assert!(apply(&mut store, 500..501).await.is_err(), "no state is open");
    // The failure is known.
    let _ = store.close().await;
    drop(store);
    let mut store = open(engine, one.path(), &texts).await;
    assert_eq!(applied(&mut store).await, 499);
}
