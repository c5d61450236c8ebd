//! Shows: a state machine sees its keyspaces when they are opened, and again when an installed snapshot replaces them, before others read them
//! and before any entry;
//! and hears of each entry when its changes can be read and nothing later has been applied. How: a state machine that writes down its calls.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::common::{Types, apply, dir, entry};
use forebay::{Config, Engine};
use forebay_kv::{Batch, Keyspace, Options};
use forebay_raft::{Apply, ErrorKind, RaftStore};
use openraft::EntryPayload;
use openraft::alias::{EntryOf, LogIdOf};
use openraft::entry::RaftEntry;
use openraft::storage::{RaftSnapshotBuilder, RaftStateMachine};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Call {
    /// With the number of entries that the state has.
    Opened(u64),
    Apply(u64),
    /// With the entry that is found in the state.
    Applied(u64, Option<Vec<u8>>),
}

#[derive(Clone, Default)]
struct HookRecord {
    calls: Arc<Mutex<Vec<Call>>>,
    /// The keyspaces that the last open has shown.
    keyspaces: Arc<Mutex<Vec<Keyspace>>>,
    refuses_opens: Arc<Mutex<bool>>,
    /// A store that others read while a snapshot is installed.
    reader: Arc<Mutex<Option<Store>>>,
}

impl HookRecord {
    fn note(&self, call: Call) {
        self.calls.lock().unwrap().push(call);
    }

    fn taken(&self) -> Vec<Call> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
}

impl Apply<Types> for HookRecord {
    async fn apply(
        &self,
        entry: EntryOf<Types>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<String> {
        let index = entry.log_id().index;
        self.note(Call::Apply(index));
        batch.put(&keyspaces[0], index.to_be_bytes(), entry.to_string());
        Ok(String::new())
    }

    async fn opened(&self, keyspaces: &[Keyspace]) -> io::Result<()> {
        if *self.refuses_opens.lock().unwrap() {
            return Err(io::Error::other("what is in the state is not known"));
        }
        let reader = self.reader.lock().unwrap().clone();
        if let Some(reader) = reader {
            let read = reader.keyspaces()[0].get("a").await;
            assert_eq!(read.unwrap_err().kind(), forebay_kv::ErrorKind::Closed);
        }
        let (mut all, mut count) = (keyspaces[0].iter(), 0);
        while let Some(entry) = all.next().await {
            entry.map_err(io::Error::other)?;
            count += 1;
        }
        self.note(Call::Opened(count));
        *self.keyspaces.lock().unwrap() = keyspaces.to_vec();
        Ok(())
    }

    fn applied(&self, log_id: &LogIdOf<Types>) {
        let keyspace = self.keyspaces.lock().unwrap()[0].clone();
        let found = keyspace.get(&log_id.index.to_be_bytes()).wait().unwrap();
        self.note(Call::Applied(log_id.index, found.map(Vec::from)));
    }
}

type Store = RaftStore<Types, HookRecord>;

fn engine() -> Engine {
    Engine::start(Config::new().shards(2)).unwrap()
}

async fn try_open(engine: &Engine, dir: &Path, noted: &HookRecord) -> forebay_raft::Result<Store> {
    let options = Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN).memtable_bytes(64 << 10);
    RaftStore::open(engine, dir, options, noted.clone()).await
}

async fn open(engine: &Engine, dir: &Path, noted: &HookRecord) -> Store {
    try_open(engine, dir, noted).await.unwrap()
}

/// The calls for entries.
fn calls(indexes: std::ops::Range<u64>) -> Vec<Call> {
    let bytes = |index| entry::<Types>(1, index, format!("entry {index}")).to_string().into_bytes();
    indexes.flat_map(|index| [Call::Apply(index), Call::Applied(index, Some(bytes(index)))]).collect()
}

#[tokio::test]
async fn a_state_machine_sees_its_state_before_the_first_entry() {
    let (engine, one, noted) = (engine(), dir(), HookRecord::default());
    let mut store = open(&engine, one.path(), &noted).await;
    assert_eq!(noted.taken(), [Call::Opened(0)]);
    apply(&mut store, 0..5).await.unwrap();
    assert_eq!(noted.taken(), calls(0..5));
    store.close().await.unwrap();
    drop(store);
    let mut store = open(&engine, one.path(), &noted).await;
    apply(&mut store, 5..7).await.unwrap();
    assert_eq!(noted.taken(), [vec![Call::Opened(5)], calls(5..7)].concat());
}

#[tokio::test]
async fn a_state_machine_sees_the_state_that_a_snapshot_brings() {
    let (engine, one, two, noted) = (engine(), dir(), dir(), HookRecord::default());
    let mut leader = open(&engine, one.path(), &HookRecord::default()).await;
    let mut follower = open(&engine, two.path(), &noted).await;
    apply(&mut leader, 0..50).await.unwrap();
    apply(&mut follower, 0..3).await.unwrap();
    let former = follower.keyspaces();
    let snapshot = leader.build_snapshot().await.unwrap();
    noted.taken();
    *noted.reader.lock().unwrap() = Some(follower.clone());
    follower.install_snapshot(&snapshot.meta, snapshot.snapshot).await.unwrap();
    *noted.reader.lock().unwrap() = None;
    assert_eq!(noted.taken(), [Call::Opened(50)]);
    // It was shown the current keyspaces, not their predecessors.
    let shown = noted.keyspaces.lock().unwrap()[0].clone();
    assert!(follower.keyspaces()[0].get(&49u64.to_be_bytes()).await.unwrap().is_some());
    assert!(shown.get(&49u64.to_be_bytes()).await.unwrap().is_some());
    assert_eq!(former[0].get("a").await.unwrap_err().kind(), forebay_kv::ErrorKind::Closed);
    apply(&mut follower, 50..52).await.unwrap();
    assert_eq!(noted.taken(), calls(50..52));
}

#[tokio::test]
async fn a_state_machine_that_cannot_read_its_state_does_not_run() {
    let (engine, one, two, noted) = (engine(), dir(), dir(), HookRecord::default());
    let mut leader = open(&engine, one.path(), &HookRecord::default()).await;
    apply(&mut leader, 0..50).await.unwrap();
    let snapshot = leader.build_snapshot().await.unwrap();
    let mut follower = open(&engine, two.path(), &noted).await;
    apply(&mut follower, 0..3).await.unwrap();
    *noted.refuses_opens.lock().unwrap() = true;
    let error = follower.install_snapshot(&snapshot.meta, snapshot.snapshot).await.unwrap_err();
    assert!(error.to_string().contains("what is in the state is not known"), "{error}");
    assert!(apply(&mut follower, 50..51).await.is_err());
    follower.close().await.unwrap();
    drop(follower);
    let error = try_open(&engine, two.path(), &noted).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Application, "{error}");
    // The snapshot is the state all the same.
    *noted.refuses_opens.lock().unwrap() = false;
    noted.taken();
    let mut follower = open(&engine, two.path(), &noted).await;
    apply(&mut follower, 50..51).await.unwrap();
    assert_eq!(noted.taken(), [vec![Call::Opened(50)], calls(50..51)].concat());
}

/// Story: the store's own log had a number for each entry and nothing else. Each number was written and flushed.
#[tokio::test]
async fn entries_that_are_applied_are_not_logged_again() {
    let (engine, one) = (engine(), dir());
    let mut store = open(&engine, one.path(), &HookRecord::default()).await;
    apply(&mut store, 0..50).await.unwrap();
    assert_eq!(store.store().stats().log.records, 0);
    store.flush().await.unwrap();
    assert_eq!(store.store().stats().log.records, 50, "a table has them, so their numbers are for good");
    store.close().await.unwrap();
}

/// A state machine that writes down how many entries it prepares together. An entry's text is its length.
#[derive(Clone, Default)]
struct GroupRecord(Arc<Mutex<Vec<usize>>>);

impl Apply<Types> for GroupRecord {
    fn entry_bytes(&self, entry: &EntryOf<Types>) -> usize {
        match &entry.payload {
            EntryPayload::Normal(text) => text.parse().unwrap(),
            EntryPayload::Blank | EntryPayload::Membership(_) => 0,
        }
    }

    async fn prepare(&self, entries: &[EntryOf<Types>], _keyspaces: &[Keyspace]) -> io::Result<()> {
        self.0.lock().unwrap().push(entries.len());
        Ok(())
    }

    async fn apply(
        &self,
        _entry: EntryOf<Types>,
        _keyspaces: &[Keyspace],
        _batch: &mut Batch,
    ) -> io::Result<String> {
        Ok(String::new())
    }
}

/// Story: 64 entries were in memory together however long they were, and once more as what their state machine made of them: with requests
/// of 10 MiB, 1.3 GB.
#[tokio::test]
async fn long_entries_are_prepared_in_smaller_groups() {
    let (engine, one, noted) = (engine(), dir(), GroupRecord::default());
    let options = Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN).memtable_bytes(64 << 10);
    let mut store = RaftStore::open(&engine, one.path(), options, noted.clone()).await.unwrap();
    let mut next = 0;
    for (bytes, count, expected) in [
        (0, 130, vec![64, 64, 2]),
        (100 << 10, 100, vec![64, 36]),
        (3 << 20, 7, vec![3, 3, 1]),
        ((8 << 20) - 1, 3, vec![2, 1]),
        (8 << 20, 2, vec![1, 1]),
    ] {
        let entries = (next..next + count).map(|index| {
            let entry = entry::<Types>(1, index, format!("{bytes}"));
            Ok((entry, None))
        });
        store.apply(futures_util::stream::iter(entries.collect::<Vec<_>>())).await.unwrap();
        next += count;
        assert_eq!(std::mem::take(&mut *noted.0.lock().unwrap()), expected, "{bytes} bytes");
    }
    store.close().await.unwrap();
}
