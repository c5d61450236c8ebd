//! Shows: entries can be read before they are durable; a purge gives space back and what else the log keeps survives it; a failed flush ends the
//! log; encodings that need names work. How: logs on real files on each way to the kernel, and in a simulated world.

use std::time::Duration;

use crate::common::{Types, WorldTypes, dir, entry, log_id};
use forebay::{Config, DriverChoice, Engine, WorkerRings};
use forebay_raft::{Error, ErrorKind, LogOptions, RaftLog};
use forebay_sim::{self as sim, Fault, Profile, Rule, World};
use futures_util::{FutureExt, StreamExt};
use openraft::RaftTypeConfig;
use openraft::alias::{EntryOf, LeaderIdOf, VoteOf};
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, RaftLogReader, RaftLogStorage, RaftLogStorageExt};
use openraft::type_config::TypeConfigExt;
use serde::{Deserialize, Serialize};

fn engines() -> [Engine; 2] {
    let config = || Config::new().shards(2);
    let uring = config().driver(DriverChoice::Uring);
    let threads = config().driver(DriverChoice::Threads).worker_rings(WorkerRings::Off);
    [uring, threads].map(|config| Engine::start(config).unwrap())
}

fn small() -> LogOptions {
    LogOptions::new().segment_bytes(64 << 10).tail_bytes_max(8 << 10).read_bytes_max(4 << 10)
}

fn kind(error: std::io::Error) -> ErrorKind {
    error.get_ref().unwrap().downcast_ref::<Error>().unwrap().kind()
}

/// Regression: the close returned Ok where its engine was closed before, and the committed log id that it saves was not there.
#[tokio::test]
async fn a_close_behind_its_engine_says_that_something_is_lost() {
    for engine in engines() {
        let dir = dir();
        let mut log = RaftLog::<Types>::open(&engine, dir.path(), small()).await.unwrap();
        log.blocking_append((0..4).map(|index| entry::<Types>(1, index, "x"))).await.unwrap();
        log.save_committed(Some(log_id::<Types>(1, 3))).await.unwrap();
        engine.close().await.unwrap();
        let error = log.close().await.unwrap_err();
        assert!(error.to_string().contains("closed"), "{error}");
    }
}

#[tokio::test]
async fn a_purge_gives_segments_back_and_nothing_else_goes() {
    for engine in engines() {
        let dir = dir();
        let mut log = RaftLog::<Types>::open(&engine, dir.path(), small()).await.unwrap();
        let vote = VoteOf::<Types>::new_committed(7, 2);
        log.save_vote(&vote).await.unwrap();
        log.save_committed(Some(log_id::<Types>(1, 3))).await.unwrap();
        let mut segments_max = 0;
        for round in 0..40u64 {
            let entries: Vec<_> = (round * 20..round * 20 + 20)
                .map(|index| entry::<Types>(1, index, "x".repeat(900)))
                .collect();
            log.blocking_append(entries).await.unwrap();
            log.purge(log_id::<Types>(1, round * 20 + 10)).await.unwrap();
            let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
            let segments = names.filter(|name| name.to_string_lossy().ends_with(".wal")).count();
            segments_max = segments_max.max(segments);
        }
        // 800 entries of 900 bytes would be a dozen.
        assert!(segments_max <= 6, "{segments_max} segments");
        log.close().await.unwrap();
        drop(log);
        let mut log = RaftLog::<Types>::open(&engine, dir.path(), small()).await.unwrap();
        assert_eq!(log.read_vote().await.unwrap(), Some(vote));
        assert_eq!(log.read_committed().await.unwrap(), Some(log_id::<Types>(1, 3)));
        let state = log.get_log_state().await.unwrap();
        assert_eq!(state.last_purged_log_id, Some(log_id::<Types>(1, 790)));
        assert_eq!(state.last_log_id, Some(log_id::<Types>(1, 799)));
        assert_eq!(log.try_get_log_entries(..).await.unwrap().len(), 9);
    }
}

#[tokio::test]
async fn streams_have_all_entries_and_end_when_the_leader_does() {
    for engine in engines() {
        let dir = dir();
        let mut log = RaftLog::<Types>::open(&engine, dir.path(), small()).await.unwrap();
        let entries: Vec<_> = (0..200).map(|index| entry::<Types>(1, index, "x".repeat(300))).collect();
        log.blocking_append(entries.clone()).await.unwrap();
        let all: Vec<_> = log.entries_stream(5..150).await.collect().await;
        assert!(all.iter().map(|entry| entry.as_ref().unwrap().log_id().index).eq(5..150));
        let vote = VoteOf::<Types>::new_committed(3, 1);
        log.save_vote(&vote).await.unwrap();
        let leader = vote.leader_id;
        let all: Vec<_> = log.leader_bounded_stream(leader, 0..200).await.collect().await;
        assert_eq!(all.len(), 200);
        // A vote for another leader in the middle: what follows is not sent in the old one's name.
        let mut stream = log.clone();
        let mut stream = Box::pin(stream.leader_bounded_stream(leader, 0..200).await);
        assert!(stream.next().await.unwrap().is_ok());
        log.save_vote(&VoteOf::<Types>::new(4, 2)).await.unwrap();
        let rest: Vec<_> = stream.collect().await;
        assert!(rest.len() < 199 && rest.last().unwrap().is_err(), "{} entries", rest.len());
        let other = LeaderIdOf::<Types>::clone(&leader);
        let none: Vec<_> = log.leader_bounded_stream(other, 0..200).await.collect().await;
        assert!(none.len() == 1 && none[0].is_err());
    }
}

#[tokio::test]
async fn entries_with_a_gap_are_refused() {
    let (engine, dir) = (Engine::start(Config::new()).unwrap(), dir());
    let mut log = RaftLog::<Types>::open(&engine, dir.path(), small()).await.unwrap();
    log.blocking_append([entry::<Types>(1, 0, "a")]).await.unwrap();
    let refused = log.append([entry::<Types>(1, 2, "c")], IOFlushed::noop()).await.unwrap_err();
    assert_eq!(kind(refused), ErrorKind::InvalidInput);
    let refused = log.append([entry::<Types>(1, 1, "b"), entry::<Types>(1, 3, "d")], IOFlushed::noop()).await;
    assert_eq!(kind(refused.unwrap_err()), ErrorKind::InvalidInput);
    log.blocking_append([entry::<Types>(1, 1, "b")]).await.unwrap();
    let long = log.append([entry::<Types>(1, 2, "x".repeat(80_000))], IOFlushed::noop()).await.unwrap_err();
    assert_eq!(kind(long), ErrorKind::InvalidInput);
}

/// A request that serde must look into to decode it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Request {
    Named {
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<u64>,
    },
    Number(i64),
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

openraft::declare_raft_types!(
    /// With requests that a format without names cannot carry.
    Untagged: D = Request, R = String
);

#[tokio::test]
async fn requests_that_need_names_are_read_back() {
    let (engine, dir) = (Engine::start(Config::new()).unwrap(), dir());
    let mut log = RaftLog::<Untagged>::open(&engine, dir.path(), small()).await.unwrap();
    let requests = [
        Request::Named { name: "a".into(), by: None },
        Request::Named { name: "b".into(), by: Some(7) },
        Request::Number(-5),
    ];
    let entries: Vec<EntryOf<Untagged>> = (0..)
        .zip(&requests)
        .map(|(index, request)| {
            EntryOf::<Untagged>::new_normal(log_id::<Untagged>(1, index), request.clone())
        })
        .collect();
    log.blocking_append(entries.clone()).await.unwrap();
    log.close().await.unwrap();
    drop(log);
    let mut log = RaftLog::<Untagged>::open(&engine, dir.path(), small()).await.unwrap();
    assert_eq!(log.try_get_log_entries(..).await.unwrap(), entries);
}

async fn open<C: RaftTypeConfig>(engine: &Engine) -> RaftLog<C> {
    RaftLog::open(engine, "/disk/log", small()).await.unwrap()
}

/// Runs a program in a world whose disk flushes in 5 ms.
fn in_world(program: impl AsyncFnOnce(Engine)) {
    let slow = Duration::from_millis(5);
    let disk = Profile::nand().at("/disk").latency(Duration::from_micros(80), slow, slow);
    World::new(1).disk(disk).run(program).unwrap();
}

#[test]
fn entries_are_read_before_they_are_durable() {
    in_world(async |engine| {
        let mut log = open::<WorldTypes>(&engine).await;
        let begun = sim::now();
        let mut receivers = Vec::new();
        for index in 0..64 {
            let (sender, receiver) = WorldTypes::oneshot();
            log.append([entry::<WorldTypes>(1, index, "x")], IOFlushed::signal(sender)).await.unwrap();
            receivers.push(receiver);
            let read = log.limited_get_log_entries(index, index + 1).await.unwrap();
            assert_eq!(read.len(), 1);
        }
        assert!(receivers.iter_mut().all(|receiver| receiver.now_or_never().is_none()));
        assert!(sim::now() - begun < Duration::from_millis(5), "an append waits for the disk");
        let groups = log.wal().stats().groups;
        for receiver in receivers {
            receiver.await.unwrap().unwrap();
        }
        let groups = log.wal().stats().groups - groups;
        assert!(groups <= 4, "64 appends in {groups} groups");
    });
}

/// Story: replication to a follower read entries 2 to 80 as a purge removed all before 80. It got entry 80 alone, to send it behind entry 1:
/// a panic in builds with assertions, a gap in the follower's log in others.
#[test]
fn a_limited_read_has_no_entries_behind_purged_ones() {
    in_world(async |engine| {
        let mut log = open::<WorldTypes>(&engine).await;
        log.blocking_append((0..10).map(|index| entry::<WorldTypes>(1, index, "x"))).await.unwrap();
        log.purge(log_id::<WorldTypes>(1, 4)).await.unwrap();
        let indexes = |entries: Vec<EntryOf<WorldTypes>>| -> Vec<u64> {
            entries.iter().map(|entry| entry.log_id().index).collect()
        };
        assert_eq!(indexes(log.limited_get_log_entries(2, 8).await.unwrap()), []);
        assert_eq!(indexes(log.limited_get_log_entries(5, 8).await.unwrap()), [5, 6, 7]);
        assert_eq!(indexes(log.try_get_log_entries(2..8).await.unwrap()), [5, 6, 7]);
    });
}

#[test]
fn a_failed_flush_ends_the_log() {
    in_world(async |engine| {
        let mut log = open::<WorldTypes>(&engine).await;
        log.blocking_append([entry::<WorldTypes>(1, 0, "a")]).await.unwrap();
        sim::inject(Rule::new(Fault::FlushError).times(1));
        let mut receivers = Vec::new();
        for index in 1..4 {
            let (sender, receiver) = WorldTypes::oneshot();
            log.append([entry::<WorldTypes>(1, index, "x")], IOFlushed::signal(sender)).await.unwrap();
            receivers.push(receiver);
        }
        for receiver in receivers {
            assert!(receiver.await.unwrap().is_err());
        }
        // The disk works again, and the log must not: what was written is not known.
        let (sender, _receiver) = WorldTypes::oneshot();
        let appended = log.append([entry::<WorldTypes>(1, 4, "x")], IOFlushed::signal(sender)).await;
        let vote = VoteOf::<WorldTypes>::new(1, 1);
        let id = log_id::<WorldTypes>(1, 0);
        let errors = [
            appended.unwrap_err(),
            log.save_vote(&vote).await.unwrap_err(),
            log.read_vote().await.unwrap_err(),
            log.save_committed(Some(id)).await.unwrap_err(),
            log.read_committed().await.unwrap_err(),
            log.truncate_after(Some(id)).await.unwrap_err(),
            log.purge(id).await.unwrap_err(),
            log.get_log_state().await.unwrap_err(),
            log.try_get_log_entries(..).await.unwrap_err(),
        ];
        for error in errors {
            assert!(error.to_string().contains("open"), "{error} does not say what helps");
            assert_eq!(kind(error), ErrorKind::Poisoned);
        }
        assert!(log.close().await.is_err());
        drop(log);
        let mut log = open::<WorldTypes>(&engine).await;
        assert!(!log.try_get_log_entries(..).await.unwrap().is_empty());
    });
}
