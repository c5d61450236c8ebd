//! Shows: a killed process loses no entry and no vote that it had reported as durable, and its state machine continues from them.
//! How: a process that appends, votes, applies, builds snapshots and purges is killed again and again.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::common::{Types, dir, entry, is_locked, log_id};
use forebay::{Config, Engine};
use forebay_kv::{Batch, Keyspace, Options};
use forebay_raft::{Apply, LogOptions, RaftLog, RaftStore};
use forebay_test::killed::{self, Kills, say};
use openraft::alias::{EntryOf, VoteOf};
use openraft::entry::RaftEntry;
use openraft::storage::{
    RaftLogReader, RaftLogStorage, RaftLogStorageExt, RaftSnapshotBuilder, RaftStateMachine,
};

/// Counts entries.
struct Counts;

impl Apply<Types> for Counts {
    async fn apply(
        &self,
        entry: EntryOf<Types>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<String> {
        let count = keyspaces[0].get("count").await.map_err(io::Error::other)?;
        let count = count.map_or(0, |bytes| u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")));
        assert_eq!(count, entry.log_id().index, "each entry is applied once");
        batch.put(&keyspaces[0], "count", (count + 1).to_le_bytes());
        batch.put(&keyspaces[0], entry.log_id().index.to_be_bytes(), entry.to_string());
        Ok(String::new())
    }
}

type Node = (RaftLog<Types>, RaftStore<Types, Counts>);

async fn open(engine: &Engine, dir: &Path) -> Node {
    let opened = killed::opened(async || try_open(engine, dir).await, is_locked).await;
    opened.unwrap_or_else(|error| panic!("opening: {error:?}"))
}

async fn try_open(engine: &Engine, dir: &Path) -> forebay_raft::Result<Node> {
    let log = RaftLog::open(engine, dir.join("log"), LogOptions::new().segment_bytes(256 << 10)).await?;
    let options = Options::new()
        .memory_bytes_max(Options::MEMORY_BYTES_MIN)
        .memtable_bytes(64 << 10)
        .log_segment_bytes(64 << 10);
    Ok((log, RaftStore::open(engine, dir.join("state"), options, Counts).await?))
}

/// Checks the node and applies what the log has beyond the state. Returns the vote's term and the number of entries.
async fn recover((log, store): &mut Node) -> (u64, u64) {
    let state = log.get_log_state().await.unwrap();
    let next = state.last_log_id.map_or(0, |id| id.index + 1);
    let applied = store.applied_state().await.unwrap().0.map_or(0, |id| id.index + 1);
    assert!(applied <= next, "{applied} entries are applied, the log ends with {next}");
    let entries = log.try_get_log_entries(applied..next).await.unwrap();
    assert!(entries.iter().map(|entry| entry.log_id().index).eq(applied..next), "entries are missing");
    apply(store, entries).await;
    let term = log.read_vote().await.unwrap().map_or(0, |vote| vote.leader_id.term);
    (term, next)
}

async fn apply(store: &mut RaftStore<Types, Counts>, entries: Vec<EntryOf<Types>>) {
    let entries = entries.into_iter().map(|entry| Ok((entry, None)));
    store.apply(futures_util::stream::iter(entries)).await.unwrap();
}

async fn work(dir: &Path) {
    let engine = Engine::start(Config::new().shards(1)).unwrap();
    let mut node = open(&engine, dir).await;
    let (mut term, mut next) = recover(&mut node).await;
    let (mut log, mut store) = node;
    loop {
        if next % 5 == 0 {
            term += 1;
            log.save_vote(&VoteOf::<Types>::new_committed(term, 1)).await.unwrap();
            say(&format!("vote {term}"));
        }
        let entries: Vec<_> = (next..next + 1 + next % 3)
            .map(|index| entry::<Types>(1, index, "x".repeat(index as usize % 700)))
            .collect();
        log.blocking_append(entries.clone()).await.unwrap();
        next += entries.len() as u64;
        say(&format!("durable {next}"));
        apply(&mut store, entries).await;
        if next % 11 == 0 {
            let built = store.build_snapshot().await.unwrap();
            let last = built.meta.last_log_id.unwrap();
            log.purge(log_id::<Types>(1, last.index)).await.unwrap();
            say(&format!("purged {}", last.index + 1));
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// The process to be killed.
#[test]
#[ignore = "runs in a process of its own, which the test below starts"]
fn node() {
    let Some((dir, _)) = killed::place() else { return };
    runtime().block_on(work(&dir));
}

#[test]
fn a_killed_node_loses_nothing_that_was_durable() {
    let (dir, engine) = (dir(), Engine::start(Config::new().shards(1)).unwrap());
    let (mut vote, mut durable, mut purged) = (0, 0, 0);
    let (worker, time) = ("kills::node", Duration::from_secs(15));
    let kills = Kills { worker, dir: dir.path(), count: 40, least: 8, time, lines: 60 };
    kills.run(|life, lines| {
        for (word, numbers) in lines {
            match (&*word, &*numbers) {
                ("vote", &[term]) => vote = term,
                ("durable", &[next]) => durable = next,
                ("purged", &[first]) => purged = first,
                _ => {}
            }
        }
        runtime().block_on(async {
            let mut node = open(&engine, dir.path()).await;
            let (term, next) = recover(&mut node).await;
            assert!(term >= vote, "life {life}: the vote went back from term {vote} to {term}");
            assert!(next >= durable, "life {life}: {next} entries are there, {durable} were durable");
            let first = node.0.get_log_state().await.unwrap().last_purged_log_id.map_or(0, |id| id.index + 1);
            assert!(first >= purged, "life {life}: purged entries came back: {first} after {purged}");
            node.1.close().await.unwrap();
            node.0.close().await.unwrap();
        });
    });
    println!("{durable} entries");
    assert!(durable > 0 && vote > 0, "nothing was ever durable");
}
