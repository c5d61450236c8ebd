//! Shows: a killed process loses no entry and no vote that it had reported as durable, and its state machine goes on from them. How: a process
//! that appends, votes, applies, builds snapshots and purges is killed again and again.

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{Types, dir, entry, log_id};
use forebay::{Config, Engine};
use forebay_kv::{Batch, Keyspace, Options};
use forebay_raft::{Apply, LogOptions, RaftLog, RaftStore};
use forebay_test::{killed, worlds};
use openraft::alias::{EntryOf, VoteOf};
use openraft::entry::RaftEntry;
use openraft::storage::{
    RaftLogReader, RaftLogStorage, RaftLogStorageExt, RaftSnapshotBuilder, RaftStateMachine,
};

/// Variable with the directory for the writing process.
const DIR: &str = "FOREBAY_RAFT_KILLS_DIR";
const KILLS: u64 = 40;
/// As many where the tests are asked for little, or the machine is slow.
const LEAST: u64 = 8;

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

/// A killed process may hold its locks until the kernel has torn down its rings.
async fn open(engine: &Engine, dir: &Path) -> Node {
    let begun = Instant::now();
    loop {
        match try_open(engine, dir).await {
            Ok(node) => return node,
            Err(error) if is_locked(&error) && begun.elapsed() < Duration::from_secs(20) => {
                tokio::task::yield_now().await;
            }
            Err(error) => panic!("opening: {error:?}"),
        }
    }
}

fn is_locked(error: &forebay_raft::Error) -> bool {
    error.log().is_some_and(|log| *log.kind() == forebay_wal::ErrorKind::Locked)
        || error.store().is_some_and(|store| *store.kind() == forebay_kv::ErrorKind::Locked)
}

async fn try_open(engine: &Engine, dir: &Path) -> forebay_raft::Result<Node> {
    let log = RaftLog::open(engine, dir.join("log"), LogOptions::new().segment_bytes(256 << 10)).await?;
    let options =
        Options::new().memory(Options::MEMORY_MIN).memtable_bytes(64 << 10).log_segment_bytes(64 << 10);
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

/// Prints one line, unless the reader is gone.
fn say(line: &str) {
    killed::say(line).expect("the test listens");
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

/// The process to be killed: the test that started it set the variable.
#[test]
#[ignore = "runs in a process of its own, which the test below starts"]
fn node() {
    let Ok(dir) = std::env::var(DIR) else { return };
    runtime().block_on(work(Path::new(&dir)));
}

#[test]
fn a_killed_node_loses_nothing_that_was_durable() {
    let (dir, engine) = (dir(), Engine::start(Config::new().shards(1)).unwrap());
    let (mut vote, mut durable, mut purged, begun) = (0, 0, 0, Instant::now());
    let mut life = 0;
    // A slow machine kills fewer processes, but always some.
    let kills = if forebay_test::one_in(2) > 1 { LEAST } else { KILLS };
    while life < kills && (life < LEAST || begun.elapsed() < Duration::from_secs(15)) {
        let lines = worlds::mix(life) % 60;
        let mut child = killed::start("kills::node", &[(DIR, dir.path())]).unwrap();
        let (mut line, mut seen) = (String::new(), 0);
        let mut out = BufReader::new(child.stdout.take().unwrap());
        // Its last lines before it died are in the pipe.
        while out.read_line(&mut line).unwrap() > 0 {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = words.get(1).and_then(|word| word.parse::<u64>().ok());
            match (words.first().copied(), number) {
                (Some("vote"), Some(term)) => vote = term,
                (Some("durable"), Some(next)) => durable = next,
                (Some("purged"), Some(first)) => purged = first,
                _ => {}
            }
            line.clear();
            seen += 1;
            if seen == lines.max(1) {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(seen >= lines.max(1), "the node ended by itself in life {life}");
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
        life += 1;
    }
    println!("{life} kills, {durable} entries, {:?}", begun.elapsed());
    assert!(durable > 0 && vote > 0, "nothing was ever durable");
}
