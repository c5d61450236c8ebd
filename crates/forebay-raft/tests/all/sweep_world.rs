//! The cost for a disk of a Raft node's appends and snapshots, at every length and number that a user may choose
//! (forebay-test/SWEEPS.md). A failure prints each point of its axis with its counts.

use std::error::Error;
use std::io;

use crate::common::{WorldTypes, entry, parts};
use forebay::{Config, Engine};
use forebay_kv::{Batch, Keyspace, Options};
use forebay_raft::{Apply, LogOptions, RaftLog, RaftStore};
use forebay_test::sweep::meter::{self, Attempt, count};
use forebay_test::sweep::{Axis, Cost, Limit, Points, Step, Sweep, content};
use openraft::EntryPayload;
use openraft::alias::EntryOf;
use openraft::entry::RaftEntry;
use openraft::storage::{RaftLogReader, RaftLogStorageExt, RaftSnapshotBuilder, RaftStateMachine};

type C = WorldTypes;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const LOG: &str = "/disk/log";
/// The longest entry of these logs, encoded.
const ENTRY_MAX: u64 = 128 * KIB;
/// Bytes of a segment, and of a segment long enough that no second segment is started.
const SEGMENT: u64 = 2 * MIB;
const LONG_SEGMENT: u64 = 8 * MIB;
/// Bytes of an entry, or of a value, where the axis is the sum of all.
const PIECE: u64 = 16 * KIB;
/// Bytes of an entry that says hardly anything.
const SHORT: u64 = 256;
/// Bytes of a part of a snapshot.
const PART: u64 = 128 * KIB;
/// The memory of a state.
const MEMORY: u64 = 64 * MIB;

static ENTRY: Axis = Axis {
    name: "raft entry",
    unit: "bytes",
    package: "forebay-raft",
    range: 256..=128 * KIB + 1,
    crosses: &[],
    steps: &[],
    limit: Some(Limit { most: 128 << 10, words: &["131072", "record_bytes_max"] }),
};
static ENTRIES: Axis = Axis {
    name: "raft entries of an append",
    unit: "entries",
    package: "forebay-raft",
    range: 1..=1024,
    crosses: &[],
    steps: &[],
    limit: None,
};
static BYTES: Axis = Axis {
    name: "raft bytes of an append",
    unit: "bytes",
    package: "forebay-raft",
    range: 64 * KIB..=3 * MIB / 2,
    crosses: &[("BATCH_BYTES_MAX", 1 << 20)],
    steps: &[Step {
        range: (1 << 20) + 1..=3 * MIB / 2,
        percent: 150,
        neighbours: 130,
        reason: "above 1 MiB an append is two groups of the log, the second of which is written behind the first",
    }],
    limit: None,
};
static SNAPSHOT: Axis = Axis {
    name: "raft snapshot",
    unit: "bytes",
    package: "forebay-raft",
    range: 32 * KIB..=512 * KIB,
    crosses: &[("PART_BYTES", 128 << 10)],
    steps: &[],
    limit: None,
};

/// Returns an entry that has `bytes` in the log, or one or two less.
fn entry_of(index: u64, bytes: u64) -> EntryOf<C> {
    let of = |len: u64| entry::<C>(1, index, "x".repeat(len as usize));
    let encoded = rmp_serde::to_vec_named(&of(bytes)).expect("an entry").len() as u64;
    of(2 * bytes - encoded)
}

fn text(entry: &EntryOf<C>) -> &str {
    if let EntryPayload::Normal(text) = &entry.payload { text } else { "" }
}

/// Appends entries to a log that has one already, and reads them.
async fn append(engine: &Engine, segment: u64, entries: impl Fn() -> Vec<EntryOf<C>>) -> Attempt {
    let groups = forebay_wal::Options::new().log_id(7).record_bytes_max(ENTRY_MAX as usize);
    // No entry stays in memory.
    let options = LogOptions::new().segment_bytes(segment).tail_bytes_max(0).wal(groups);
    let mut log = RaftLog::<C>::open(engine, LOG, options).await?;
    meter::rest().await;
    log.blocking_append([entry::<C>(1, 0, "first")]).await?;
    meter::rest().await;
    let (appended, cost) = count(log.blocking_append(entries())).await;
    appended?;
    let found = log.try_get_log_entries(1..).await?;
    assert!(found.iter().map(text).eq(entries().iter().map(text)), "other entries are read");
    log.close().await?;
    Ok(cost)
}

/// Keeps a value for each entry, whose text is the length.
struct Values;

impl Apply<C> for Values {
    async fn apply(
        &self,
        entry: EntryOf<C>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<String> {
        let (index, len) = (entry.log_id().index, text(&entry).parse::<u64>().map_err(io::Error::other)?);
        batch.put(&keyspaces[0], index.to_be_bytes(), content(index, len));
        Ok(String::new())
    }
}

async fn state(engine: &Engine, dir: &str) -> Result<RaftStore<C, Values>, Box<dyn Error>> {
    let options = Options::new().memory_bytes_max(MEMORY).log_segment_bytes(64 * KIB).reserve_bytes(0);
    Ok(RaftStore::open(engine, dir, options.clock(|| 1_000), Values).await?)
}

/// A snapshot's parts are read, as when they are sent; another node receives them.
async fn snapshot(engine: Engine, at: u64) -> Attempt {
    let (mut one, mut other) = (state(&engine, "/disk/one").await?, state(&engine, "/disk/other").await?);
    let len = |index: u64| PIECE.min(at - index * PIECE);
    let entries =
        (0..at.div_ceil(PIECE)).map(|index| Ok((entry::<C>(1, index, len(index).to_string()), None)));
    one.apply(futures_util::stream::iter(entries.collect::<Vec<_>>())).await?;
    one.flush().await?;
    one.store().settle().await?;
    let built = one.build_snapshot().await?;
    meter::rest().await;
    let (parts, cost) = count(parts(&built.snapshot)).await;
    let mut receiver = other.receive_snapshot().await?;
    for part in &parts {
        receiver.write(part).await?;
    }
    other.install_snapshot(&built.meta, receiver.finish().await?).await?;
    let keyspaces = other.keyspaces();
    for index in 0..at.div_ceil(PIECE) {
        let found = keyspaces[0].get(&index.to_be_bytes()).await?;
        assert!(found.as_deref() == Some(&content(index, len(index))[..]), "value {index} differs");
    }
    drop(keyspaces);
    one.close().await?;
    other.close().await?;
    Ok(cost)
}

/// Returns the cost of an append of this many bytes: at most two groups for each mebibyte, one after the other.
fn of_append(bytes: u64) -> Cost {
    let more = bytes / (MIB / 2);
    let group = Cost::of_group(bytes);
    Cost { requests: 1 + more, flushes: 1 + more, rounds: 2 + 2 * more, ..group }
}

fn appends(points: Points) {
    let config = Config::new();
    let one = async |engine: Engine, at: u64| append(&engine, SEGMENT, || vec![entry_of(1, at)]).await;
    let many = async |engine: Engine, at: u64| {
        append(&engine, SEGMENT, || (1..=at).map(|index| entry_of(index, SHORT)).collect()).await
    };
    let long = async |engine: Engine, at: u64| {
        let count = at.div_ceil(PIECE);
        append(&engine, LONG_SEGMENT, || (1..=count).map(|index| entry_of(index, PIECE)).collect()).await
    };
    Sweep::judge_all(&[
        meter::sweep_worlds(&ENTRY, points, &config, Cost::of_group, one),
        meter::sweep_worlds(&ENTRIES, points, &config, |at| of_append(at * SHORT), many),
        meter::sweep_worlds(&BYTES, points, &config, of_append, long),
    ]);
}

fn snapshots(points: Points) {
    let config = Config::new().arena_bytes_max(4 * MEMORY as usize);
    // Four parts concurrently, of one or of several files; logs and tables of the store have some, which end within a part.
    let of_parts = |at: u64| {
        let requests = 12 + at / PART;
        Cost::together(requests, at + MIB).in_rounds(4 + requests.div_ceil(4))
    };
    Sweep::judge_all(&[meter::sweep_worlds(&SNAPSHOT, points, &config, of_parts, snapshot)]);
}

#[test]
fn appends_of_every_length_and_number() {
    appends(Axis::points);
}

#[test]
fn snapshots_of_every_length() {
    snapshots(Axis::points);
}

#[test]
#[ignore = "a minute: the points between those of every gate"]
fn the_points_between() {
    appends(Axis::all_points);
    snapshots(Axis::all_points);
}
