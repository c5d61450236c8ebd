//! The cost for a disk of changes and reads of the state, and of its followers in memory, at every length and number that a user
//! may choose (forebay-test/SWEEPS.md). A failure prints each point of its axis with its counts. Some limits are smaller in tests.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay::{Config, Engine};
use forebay_kv::Options;
use forebay_test::sweep::meter::{self, Attempt, count};
use forebay_test::sweep::{Axis, BLOCK, Cost, Limit, Points, Step, Sweep, content};
use futures_util::FutureExt;
use prost::Message;

use super::harness::*;
use crate::hub::{Bell, EventFilter, Hub, Keys};
use crate::lessor::Lessor;
use crate::mvcc::{CompactionRevisions, Failure, Import, ImportSummary, KeyRecord, Limits, check_txn};
use crate::proto::etcdserverpb::compare::{CompareTarget, TargetUnion};
use crate::proto::etcdserverpb::response_op::Response as Read;
use crate::proto::etcdserverpb::{Compare, PutRequest, RangeRequest};
use crate::proto::mvccpb::{Event, KeyValue};
use crate::proto::peer::command::Change;
use crate::proto::peer::outcome::Result as Response;
use crate::proto::peer::{Done, Outcome};
use crate::snapshot::{self, Around, Sink};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const DIR: &str = "/disk/state";
/// The memory of these states, and of one that is too small for many long values together.
const MEMORY: u64 = 128 * MIB;
const LITTLE_MEMORY: u64 = 16 * MIB;
/// Bytes of most values: four fill a leaf.
const VALUE: u64 = 1_000;
/// Bytes of an event of such a value, and of the value before.
const EVENT: u64 = 2 * KIB;
/// Bytes of a value where the axis is the sum of all.
const PIECE: u64 = 16 * KIB;
/// Keys that are read before concurrent reads are counted: after writes the device has a budget of a few, which the first reads of
/// an idle period release.
const WARM: u64 = 96;
/// The keys that are read in the axis of their length.
const FEW: u64 = 32;
/// A range reads twice this much ahead, in the end.
const AHEAD: u64 = 64 * KIB;
/// Gets of a batch under way, and reads ahead of an entry: at first, and when the lengths are known.
const GETS: u64 = 128;
const FIRST_READS: u64 = 16;
const READS: u64 = 32;
/// The seconds of a lease.
const TTL: u64 = 5;

static CHANGES: Axis = Axis {
    name: "etcd changes of an entry",
    unit: "bytes",
    package: "forebay-etcd",
    range: 128..=(128 << 10) + 1,
    crosses: &[("CHANGES_BYTES_MAX", 128 << 10)],
    steps: &[],
    limit: Some(Limit { most: 128 << 10, words: &["request is too large"] }),
};
static KEY: Axis = Axis {
    name: "etcd key",
    unit: "bytes",
    package: "forebay-etcd",
    range: 1..=16_371,
    crosses: &[("KEY_BYTES_MAX", 16_384 - 2 - 12)],
    steps: &[],
    limit: Some(Limit { most: 16_370, words: &["request is too large"] }),
};
static OPERATIONS: Axis = Axis {
    name: "etcd operations of a transaction",
    unit: "puts",
    package: "forebay-etcd",
    range: 1..=129,
    crosses: &[("READS_MAX", 32)],
    steps: &[],
    limit: Some(Limit { most: 128, words: &["too many operations"] }),
};
static COMPARES: Axis = Axis {
    name: "etcd compares of a transaction",
    unit: "compares",
    package: "forebay-etcd",
    range: 1..=129,
    crosses: &[],
    steps: &[],
    limit: Some(Limit { most: 128, words: &["too many operations"] }),
};
static GETS_TOGETHER: Axis = Axis {
    name: "etcd gets of a transaction",
    unit: "gets",
    package: "forebay-etcd",
    range: 1..=129,
    crosses: &[],
    steps: &[],
    limit: Some(Limit { most: 128, words: &["too many operations"] }),
};
static LEASED: Axis = Axis {
    name: "etcd keys of a lease",
    unit: "keys",
    package: "forebay-etcd",
    // A lease without keys reads nothing.
    range: 1..=100,
    crosses: &[("LEASE_KEYS_AT_ONCE", 3)],
    steps: &[],
    limit: None,
};
static LEASE_TIME: Axis = Axis {
    name: "etcd time of a lease",
    unit: "seconds",
    package: "forebay-etcd",
    range: 0..=9_000_000_001,
    crosses: &[("TTL_MAX_S", 9_000_000_000)],
    steps: &[],
    limit: Some(Limit { most: 9_000_000_000, words: &["too large lease TTL"] }),
};
static HISTORY: Axis = Axis {
    name: "etcd history of a watch",
    unit: "bytes",
    package: "forebay-etcd",
    range: 32 * KIB..=5 * MIB / 4,
    crosses: &[("READ_BYTES_MAX", 1 << 20)],
    steps: &[Step {
        range: (1 << 20) + 2..=5 * MIB / 4,
        percent: 150,
        neighbours: 130,
        reason: "events beyond 1 MiB are a read of their own, whose read-ahead begins anew",
    }],
    limit: None,
};
static SHORT_HISTORY: Axis = Axis {
    name: "etcd history of an election",
    unit: "bytes",
    package: "forebay-etcd",
    range: 16 * KIB..=192 * KIB,
    crosses: &[("READ_BYTES_MAX", 64 << 10)],
    steps: &[],
    limit: None,
};
static LONG_HISTORY: Axis = Axis {
    name: "etcd revisions",
    unit: "revisions",
    package: "forebay-etcd",
    range: 10_000..=1_000_000,
    crosses: &[],
    steps: &[],
    limit: None,
};
static OLDER: Axis = Axis {
    name: "etcd keys of an older range",
    unit: "keys",
    package: "forebay-etcd",
    range: 1..=600,
    crosses: &[("FETCH", 128)],
    steps: &[],
    limit: None,
};
static OLDER_VALUE: Axis = Axis {
    name: "etcd value of an older range",
    unit: "bytes",
    package: "forebay-etcd",
    range: 256..=60_000,
    crosses: &[],
    steps: &[Step {
        range: 8_000..=60_000,
        percent: 400,
        neighbours: 400,
        reason: "values that find no memory together are read again, half as many at once",
    }],
    limit: None,
};
static DELETED: Axis = Axis {
    name: "etcd values of a delete",
    unit: "bytes",
    package: "forebay-etcd",
    range: 4 * KIB..=512 * KIB + 1,
    crosses: &[("PREVIOUS_BYTES_MAX", 512 << 10)],
    steps: &[Step {
        range: 4 * KIB..=512 * KIB,
        percent: 150,
        neighbours: 300,
        reason: "a range doubles its read-ahead with each leaf",
    }],
    limit: Some(Limit { most: 512 << 10, words: &["request is too large"] }),
};
static SAVED: Axis = Axis {
    name: "etcd values of a saved snapshot",
    unit: "bytes",
    package: "forebay-etcd",
    range: 4 * KIB..=256 * KIB,
    crosses: &[("PART_BYTES", 64 << 10)],
    steps: &[Step {
        range: 4 * KIB..=256 * KIB,
        percent: 150,
        neighbours: 300,
        reason: "a range doubles its read-ahead with each leaf",
    }],
    limit: None,
};
static RESTORED: Axis = Axis {
    name: "etcd restored records",
    unit: "records",
    package: "forebay-etcd",
    range: 0..=40,
    crosses: &[("RECORDS_MAX", 7), ("LOOKED_UP_MAX", 3)],
    steps: &[Step {
        range: 0..=7,
        percent: 150,
        neighbours: 130,
        reason: "records that are not written yet are replaced in memory",
    }],
    limit: None,
};
static RESTORED_VALUE: Axis = Axis {
    name: "etcd value of a restored record",
    unit: "bytes",
    package: "forebay-etcd",
    range: 1_000..=40_000,
    crosses: &[("RECORDS_BYTES_MAX", 16 << 10)],
    steps: &[],
    limit: None,
};
static ENDED: Axis = Axis {
    name: "etcd leases that end together",
    unit: "leases",
    package: "forebay-etcd",
    range: 0..=50_000,
    crosses: &[("REVOKED_AT_ONCE_MAX", 512)],
    steps: &[],
    limit: None,
};
static WATCHES: Axis = Axis {
    name: "etcd watches of a client",
    unit: "watches",
    package: "forebay-etcd",
    range: 0..=50_000,
    crosses: &[],
    steps: &[],
    limit: None,
};
static WATCHERS: Axis = Axis {
    name: "etcd clients with a watch",
    unit: "clients",
    package: "forebay-etcd",
    range: 0..=50_000,
    crosses: &[],
    steps: &[],
    limit: None,
};
static QUEUED: Axis = Axis {
    name: "etcd events that a client does not take",
    unit: "bytes",
    package: "forebay-etcd",
    range: 64 * KIB..=2 * MIB,
    crosses: &[("QUEUE_BYTES_MAX", 1 << 20)],
    steps: &[],
    limit: None,
};

fn key(number: u64) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

fn warm(number: u64) -> Vec<u8> {
    format!("warm {number:06}").into_bytes()
}

/// All keys of [`key`].
const ALL: (&str, &str) = ("key", "kez");

fn put_of(number: u64, version: u64) -> Change {
    Change::Put(put(key(number), content(number + version, VALUE)))
}

fn config() -> Config {
    Config::new().arena_bytes_max(2 * MEMORY as usize)
}

async fn member(engine: &Engine, memory: u64) -> Node {
    let options = Options::new().memory_bytes_max(memory).log_segment_bytes(MIB).reserve_bytes(0);
    Node::at(engine, Path::new(DIR), options.store_id(7).clock(|| 1_000), Limits::default()).await
}

/// Has everything in tables, for whose levels nothing is left to do.
async fn settle(node: &Node) {
    node.store.flush().await.unwrap();
    node.store.store().settle().await.unwrap();
    meter::rest().await;
}

/// Has everything in such tables, of which the inner levels are in memory.
async fn cool(node: &mut Node) {
    settle(node).await;
    node.reopen().await;
    meter::rest().await;
}

/// Applies changes, and has everything in tables while the device is awake.
async fn begin(engine: &Engine, memory: u64, groups: &[Vec<Change>]) -> Node {
    let mut node = member(engine, memory).await;
    let others: Vec<Change> =
        (0..WARM).map(|number| Change::Put(put(warm(number), content(number, VALUE)))).collect();
    node.apply_all(&others).await;
    for changes in groups {
        node.apply_all(changes).await;
    }
    cool(&mut node).await;
    let names: Vec<Vec<u8>> = (0..WARM).map(warm).collect();
    node.store.keyspaces()[0].multi_get(&names).await.unwrap();
    node
}

/// Applies a change, whose refusal is the error.
async fn applied(node: &mut Node, change: Change) -> Result<Outcome, String> {
    let outcome = node.apply(change).await;
    if let Some(Response::Refusal(refusal)) = &outcome.result {
        return Err(refusal.text.clone());
    }
    Ok(outcome)
}

/// Ends an attempt.
async fn over(node: Node, cost: Cost) -> Attempt {
    node.store.close().await?;
    Ok(cost)
}

/// Checks the values of keys that were found in their order.
fn check(found: &[KeyValue], first: u64, value: impl Fn(u64) -> Vec<u8>) {
    for (number, pair) in (first..).zip(found) {
        assert_eq!(pair.key, key(number));
        assert!(pair.value == value(number), "key {number} has {} bytes, which differ", pair.value.len());
    }
}

fn of_get(len: u64) -> Cost {
    if len <= KIB { Cost::together(1, BLOCK) } else { Cost::together(2, BLOCK + len).in_rounds(2) }
}

/// Returns the cost of a range that ends after `bytes`. It doubles its read-ahead.
fn of_range(bytes: u64) -> Cost {
    let read = bytes + (3 * bytes).min(2 * AHEAD) + BLOCK;
    Cost::together(3 + bytes / (AHEAD / 2), read).in_rounds(2 + bytes / AHEAD)
}

/// Returns the cost of a range over values of [`PIECE`] bytes, which are outside of their leaves.
fn of_pieces(bytes: u64) -> Cost {
    let cost = of_range(2 * bytes);
    Cost { requests: cost.requests + 2 + 2 * bytes / PIECE, rounds: cost.rounds + 2, ..cost }
}

/// Returns the cost of reads ahead of an entry.
fn of_reads(count: u64) -> Cost {
    let rounds = 1 + count.saturating_sub(FIRST_READS).div_ceil(READS);
    Cost::together(count, count * BLOCK).in_rounds(rounds)
}

/// An entry's bytes are those of the value in `now` and in `events`, of the key in these and in `versions`, and 72.
async fn changes(engine: Engine, at: u64) -> Attempt {
    let mut node = member(&engine, MEMORY).await;
    let key = if at.is_multiple_of(2) { "kk" } else { "k" };
    let value = content(at, (at - 72 - 3 * key.len() as u64) / 2);
    applied(&mut node, Change::Put(put(key, &value))).await?;
    cool(&mut node).await;
    let view = node.view().await;
    let (found, cost) = count(view.range(&range(key, ""))).await;
    assert!(found.unwrap().kvs[0].value == value);
    drop(view);
    over(node, cost).await
}

async fn keys(engine: Engine, at: u64) -> Attempt {
    let mut node = member(&engine, MEMORY).await;
    let name = |number: u8| [vec![b'k'; at as usize - 1], vec![b'0' + number]].concat();
    for number in 0..4 {
        applied(&mut node, Change::Put(put(name(number), content(number.into(), 100)))).await?;
    }
    cool(&mut node).await;
    let view = node.view().await;
    let (found, cost) = count(view.range(&range(name(1), ""))).await;
    assert!(found.unwrap().kvs[0].value == content(1, 100));
    drop(view);
    over(node, cost).await
}

/// Returns puts of this many keys.
fn puts(count: u64, version: u64) -> Vec<Change> {
    (0..count).map(|number| put_of(number, version)).collect()
}

/// A transaction that changes keys, each of which is in another leaf.
async fn operations(engine: Engine, at: u64) -> Attempt {
    let again = (0..at).map(|number| operation(put(key(4 * number), "again")));
    let request = txn(vec![], again.collect(), vec![]);
    check_txn(&request, &Limits::default()).map_err(text)?;
    let mut node = begin(&engine, MEMORY, &[puts(4 * at + 4, 0)]).await;
    let (outcome, cost) = count(applied(&mut node, Change::Txn(request))).await;
    outcome?;
    let is_changed = |number: u64| number.is_multiple_of(4) && number < 4 * at;
    let found = node.range(range(ALL.0, ALL.1)).await;
    check(
        &found.kvs,
        0,
        |number| if is_changed(number) { b"again".to_vec() } else { content(number, VALUE) },
    );
    over(node, cost).await
}

async fn compares(engine: Engine, at: u64) -> Attempt {
    let equal = |number: u64| Compare {
        key: key(4 * number),
        target: CompareTarget::Value.into(),
        target_union: Some(TargetUnion::Value(content(4 * number, VALUE))),
        ..Compare::default()
    };
    let request = txn((0..at).map(equal).collect(), vec![operation(put("all", "equal"))], vec![]);
    check_txn(&request, &Limits::default()).map_err(text)?;
    let mut node = begin(&engine, MEMORY, &[puts(4 * at + 4, 0)]).await;
    let (outcome, cost) = count(applied(&mut node, Change::Txn(request))).await;
    let Some(Response::Txn(response)) = outcome?.result else { return Err("no transaction".into()) };
    assert!(response.succeeded);
    over(node, cost).await
}

/// A transaction that only reads.
async fn gets(engine: Engine, at: u64) -> Attempt {
    let get = |number: u64| operation(range(key(4 * number), ""));
    let request = txn(vec![], (0..at).map(get).collect(), vec![]);
    check_txn(&request, &Limits::default()).map_err(text)?;
    let node = begin(&engine, MEMORY, &[puts(4 * at + 4, 0)]).await;
    let view = node.view().await;
    let (found, cost) = count(view.txn(&request)).await;
    let responses = found.unwrap().responses;
    assert_eq!(responses.len() as u64, at);
    for (number, response) in (0..at).zip(&responses) {
        let Some(Read::ResponseRange(found)) = &response.response else { return Err("no range".into()) };
        assert_eq!((found.count, found.kvs.len()), (1, 1));
        assert!(found.kvs[0].value == content(4 * number, VALUE), "get {number}");
    }
    drop(view);
    over(node, cost).await
}

/// The keys of a lease, each in another leaf.
async fn leased(engine: Engine, at: u64) -> Attempt {
    let lease_of = |number: u64| if number.is_multiple_of(4) && number < 4 * at { 7 } else { 0 };
    let put =
        |number: u64| PutRequest { lease: lease_of(number), ..put(key(number), content(number, VALUE)) };
    let changes = (0..4 * at + 4).map(|number| Change::Put(put(number))).collect();
    let mut node = begin(&engine, MEMORY, &[vec![grant(7, 60)], changes]).await;
    let (revoked, cost) = count(async {
        loop {
            match applied(&mut node, revoke(7)).await?.result {
                Some(Response::Done(Done { is_partial: true })) => {}
                _ => return Ok::<(), String>(()),
            }
        }
    })
    .await;
    revoked?;
    assert_eq!(node.range(range(ALL.0, ALL.1)).await.count as u64, 3 * at + 4);
    over(node, cost).await
}

/// Returns the cost of a revocation: a walk from the last key on for each part of three, whose values are read together. An entry
/// deletes up to 32 KiB of values.
fn of_revocation(at: u64) -> Cost {
    let walks = 2 + at / 3 + at / (32 * KIB / VALUE);
    Cost::together(at + walks, (at + walks) * BLOCK).in_rounds(2 * walks)
}

/// All events after the first of each key, in reads of `bytes_max`. The events of their previous values are not among them.
async fn history(engine: Engine, at: u64, bytes_max: usize) -> Attempt {
    let events_of = at.div_ceil(EVENT);
    let node = begin(&engine, MEMORY, &[puts(events_of, 0), puts(events_of, 1)]).await;
    let view = node.view().await;
    let (events, cost) = count(async {
        let (mut next, mut all) = (view.revision() - events_of as i64 + 1, Vec::new());
        while next <= view.revision() {
            let (events, after) = view.events(next, |_| true, bytes_max).await.unwrap();
            all.extend(events);
            next = after;
        }
        all
    })
    .await;
    assert_eq!(events.len() as u64, events_of);
    let (now, before): (Vec<KeyValue>, Vec<KeyValue>) =
        events.into_iter().map(|event| (event.kv.unwrap(), event.prev_kv.unwrap())).unzip();
    check(&now, 0, |number| content(number + 1, VALUE));
    check(&before, 0, |number| content(number, VALUE));
    drop(view);
    over(node, cost).await
}

/// Returns the cost of such reads: each is a range, and then the previous values concurrently.
fn of_history(at: u64, bytes_max: u64) -> Cost {
    let (events, reads) = (at.div_ceil(EVENT), 1 + at / (bytes_max - EVENT));
    let one = of_range(at.min(bytes_max));
    let ranges = Cost {
        requests: reads * one.requests,
        bytes: reads * one.bytes,
        flushes: 0,
        rounds: reads * one.rounds,
    };
    ranges + Cost::together(events, events * BLOCK).in_rounds(reads + events.div_ceil(GETS))
}

/// A state of many revisions: a key, and the events of a watch that is a thousand revisions behind.
async fn long_history(engine: Engine, at: u64) -> Attempt {
    const KEYS: u64 = 1_000;
    let value = |number: u64| content(number, 20);
    let mut node = member(&engine, MEMORY).await;
    let rounds = at.div_ceil(KEYS);
    for round in 0..rounds {
        let puts = (0..KEYS).map(|number| Change::Put(put(key(number), value(number + round))));
        node.apply_all(&puts.collect::<Vec<_>>()).await;
    }
    cool(&mut node).await;
    let view = node.view().await;
    let ((found, events), cost) = count(async {
        let (events, _) = view.events(view.revision() - KEYS as i64 + 1, |_| true, usize::MAX).await.unwrap();
        (view.range(&range(key(7), "")).await.unwrap(), events.len() as u64)
    })
    .await;
    assert_eq!(events, KEYS);
    check(&found.kvs, 7, |number| value(number + rounds - 1));
    drop(view);
    over(node, cost).await
}

/// The keys as they were before the last change of each.
async fn older(engine: Engine, at: u64) -> Attempt {
    let node = begin(&engine, MEMORY, &[puts(at, 0), puts(at, 1)]).await;
    let view = node.view().await;
    let request = range_at(view.revision() - at as i64);
    let (found, cost) = count(view.range(&request)).await;
    let found = found.unwrap();
    assert_eq!(found.kvs.len() as u64, at);
    check(&found.kvs, 0, |number| content(number, VALUE));
    drop(view);
    over(node, cost).await
}

fn range_at(revision: i64) -> RangeRequest {
    RangeRequest { revision, ..range(ALL.0, ALL.1) }
}

/// Once, a range failed whose old values had no memory together.
async fn older_value(engine: Engine, at: u64) -> Attempt {
    let first = (0..FEW).map(|number| Change::Put(put(key(number), content(number, at))));
    let node = begin(&engine, LITTLE_MEMORY, &[first.collect(), puts(FEW, 1)]).await;
    let view = node.view().await;
    let request = range_at(view.revision() - FEW as i64);
    let (found, cost) = count(view.range(&request)).await;
    let found = found.map_err(|failure| format!("{failure:?}"))?;
    assert_eq!(found.kvs.len() as u64, FEW);
    check(&found.kvs, 0, |number| content(number, at));
    drop(view);
    over(node, cost).await
}

/// Returns puts of values that have `bytes` together.
fn pieces(bytes: u64) -> Vec<Change> {
    let piece = |number: u64| content(number, PIECE.min(bytes - number * PIECE));
    (0..bytes.div_ceil(PIECE)).map(|number| Change::Put(put(key(number), piece(number)))).collect()
}

async fn deleted(engine: Engine, at: u64) -> Attempt {
    let mut node = member(&engine, MEMORY).await;
    node.apply_all(&pieces(at)).await;
    cool(&mut node).await;
    let (outcome, cost) = count(applied(&mut node, Change::DeleteRange(delete(ALL.0, ALL.1)))).await;
    outcome?;
    assert_eq!(node.range(range(ALL.0, ALL.1)).await.count, 0);
    over(node, cost).await
}

/// The lengths of the parts of a file.
#[derive(Default)]
struct PartLengths(Vec<u64>);

impl Sink for PartLengths {
    type Error = Failure;

    async fn take(&mut self, part: Vec<u8>) -> Result<(), Failure> {
        self.0.push(part.len() as u64);
        Ok(())
    }
}

async fn saved(engine: Engine, at: u64) -> Attempt {
    let mut node = member(&engine, MEMORY).await;
    node.apply_all(&pieces(at)).await;
    cool(&mut node).await;
    let view = node.view().await;
    let around = Around { members: Vec::new(), cluster_version: "3.5.0".to_owned(), index: 1, term: 1 };
    let mut parts = PartLengths::default();
    let (meta, cost) = count(snapshot::write(&view, &around, &mut parts)).await;
    let bytes = parts.0.iter().sum::<u64>() + meta.unwrap().first_pages().len() as u64;
    assert!(bytes > at && bytes < 2 * at + 128 * KIB, "{bytes} bytes in the file");
    // But for the last, which has all that is not of a key.
    let (_, parts) = parts.0.split_last().unwrap();
    assert!(parts.iter().all(|part| (64 * KIB..128 * KIB).contains(part)), "{parts:?}");
    drop(view);
    over(node, cost).await
}

fn record(main: u64, number: u64, version: i64, value: Vec<u8>) -> KeyRecord {
    let create = number as i64 + 1;
    let pair = KeyValue {
        key: key(number).into(),
        create_revision: create,
        mod_revision: main as i64,
        version,
        value: value.into(),
        lease: 0,
    };
    KeyRecord { main: main as i64, sub: 0, is_delete: false, pair }
}

/// Records that replace others, which are in tables.
async fn restored(engine: Engine, at: u64) -> Attempt {
    let node = member(&engine, MEMORY).await;
    let keyspaces = node.store.keyspaces();
    let mut import = Import::new(&keyspaces).unwrap();
    for number in 0..at {
        import.add(record(number + 1, number, 1, content(number, VALUE))).await.unwrap();
    }
    settle(&node).await;
    let (imported, cost) = count(async {
        for number in 0..at {
            import.add(record(at + number + 1, number, 2, content(number + 1, VALUE))).await?;
        }
        import.finish(CompactionRevisions::default(), 0).await
    })
    .await;
    let revision = if at == 0 { 1 } else { 2 * at as i64 };
    assert_eq!(imported.unwrap(), ImportSummary { revision, keys: at, leases: 0 });
    check(&node.range(range(ALL.0, ALL.1)).await.kvs, 0, |number| content(number + 1, VALUE));
    drop(keyspaces);
    over(node, cost).await
}

async fn restored_value(engine: Engine, at: u64) -> Attempt {
    let node = member(&engine, MEMORY).await;
    let keyspaces = node.store.keyspaces();
    let mut import = Import::new(&keyspaces).unwrap();
    let (imported, cost) = count(async {
        for number in 0..3 {
            import.add(record(number + 1, number, 1, content(number, at))).await?;
        }
        import.finish(CompactionRevisions::default(), 0).await
    })
    .await;
    assert_eq!(imported.unwrap().keys, 3);
    check(&node.range(range(ALL.0, ALL.1)).await.kvs, 0, |number| content(number, at));
    drop(keyspaces);
    over(node, cost).await
}

/// Tries an axis at its points without a disk: what costs is turns and what each has.
fn in_memory<'a>(
    axis: &'a Axis,
    points: Points,
    ideal: impl Fn(u64) -> Cost,
    attempt: impl Fn(u64) -> Cost,
) -> Sweep<'a> {
    let mut sweep = Sweep::new(axis);
    for at in points(axis) {
        sweep.add(at, ideal(at), Ok(attempt(at)));
    }
    sweep
}

/// Leases whose time is over: the rounds in which they are revoked.
fn ended(at: u64) -> Cost {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(async {
        let lessor = Lessor::default();
        lessor.set_leader(Some(1), Duration::ZERO);
        (0..at).for_each(|id| lessor.granted(id as i64, TTL as i64));
        tokio::time::advance(Duration::from_secs(TTL + 1)).await;
        let (mut revoked, mut rounds) = (HashSet::new(), 0);
        while let Some((_, ids)) = lessor.ended().now_or_never() {
            assert!(ids.iter().all(|id| lessor.keep_alive(*id).is_none()), "they are over");
            ids.iter().for_each(|id| lessor.revoked(*id));
            revoked.extend(ids);
            rounds += 1;
        }
        assert!(lessor.ids().is_empty());
        Cost::together(revoked.len() as u64, 0).in_rounds(rounds)
    })
}

fn event_of(key: Vec<u8>, revision: i64, bytes: u64) -> Event {
    let kv = KeyValue {
        key: key.into(),
        mod_revision: revision,
        value: content(revision as u64, bytes).into(),
        ..KeyValue::default()
    };
    Event { kv: Some(kv), ..Event::default() }
}

fn filter(key: &[u8]) -> EventFilter {
    EventFilter { keys: Keys::of(key, b"").unwrap(), puts: true, deletes: true }
}

/// Watches of one key, and as many of a key for each; each has one event. They have one bell, or one each.
fn watched(at: u64, has_one_bell: bool) -> Cost {
    let (hub, shared) = (Hub::default(), Arc::<Bell>::default());
    let name = |number: u64| if number.is_multiple_of(2) { key(0) } else { key(number) };
    let watches: Vec<_> = (0..at)
        .map(|number| {
            let bell = if has_one_bell { shared.clone() } else { Arc::default() };
            (hub.add(number as i64, filter(&name(number)), 0, &bell).0, bell)
        })
        .collect();
    let names: HashSet<Vec<u8>> = (0..at).map(name).collect();
    hub.publish(1, names.into_iter().map(|name| event_of(name, 1, 10)).collect());
    let mut rung = 0;
    for (_, bell) in watches.iter().take(if has_one_bell { 1 } else { usize::MAX }) {
        rung += bell.rung().now_or_never().map_or(0, |ids| ids.len() as u64);
    }
    assert_eq!(rung, at);
    let taken: usize = watches.iter().map(|(watch, _)| hub.take(watch).len()).sum();
    watches.iter().for_each(|(watch, _)| hub.remove(watch));
    let counts = hub.counts();
    let left = [&counts.watches, &counts.pending, &counts.behind].map(|left| left.load(Ordering::Relaxed));
    assert_eq!(left, [0; 3]);
    Cost::together(taken as u64, 0)
}

/// Events that stay with the server: they are queued up to a limit, and behind it are left to the store, without a gap.
fn queued(at: u64) -> Cost {
    let (hub, bell) = (Hub::default(), Arc::default());
    let (watch, _) = hub.add(1, filter(&key(0)), 0, &bell);
    let (revisions, mut published) = (at.div_ceil(KIB) as i64, 0);
    for revision in 1..=revisions {
        // Nearly a kibibyte with all that is around the value.
        let event = event_of(key(0), revision, KIB - 40);
        published += event.encoded_len() as u64;
        hub.publish(revision, vec![event]);
    }
    let behind = watch.behind_from();
    let taken = hub.take(&watch);
    assert!(taken.iter().map(|group| group.revision).eq(1..behind.unwrap_or(revisions + 1)));
    assert_eq!(behind.is_some(), published > MIB, "of {published} bytes");
    let bytes: usize = taken.iter().flat_map(|group| &group.events).map(|event| event.encoded_len()).sum();
    // The rest is read by one more request.
    Cost { bytes: bytes as u64, ..Cost::together(1 + u64::from(behind.is_some()), 0) }
}

fn entries(points: Points) {
    let config = config();
    let of_key = |at: u64| Cost::together(1, BLOCK + 2 * at);
    Sweep::judge_all(&[
        meter::sweep_worlds(&CHANGES, points, &config, |at| of_get(at / 2), changes),
        meter::sweep_worlds(&KEY, points, &config, of_key, keys),
        meter::sweep_worlds(&OPERATIONS, points, &config, of_reads, operations),
        // That which is put is read too.
        meter::sweep_worlds(&COMPARES, points, &config, |at| of_reads(at + 1), compares),
        meter::sweep_worlds(&GETS_TOGETHER, points, &config, of_reads, gets),
        meter::sweep_worlds(&DELETED, points, &config, of_pieces, deleted),
    ]);
}

fn leases(points: Points) {
    let ran = meter::world().config(config()).run(async |engine| {
        let node = tokio::sync::Mutex::new(member(&engine, MEMORY).await);
        let attempt = async |at: u64| -> Attempt {
            let id = at as i64 + 1;
            let mut node = node.lock().await;
            let (outcome, cost) = count(applied(&mut node, grant(id, at as i64))).await;
            outcome?;
            assert_eq!(node.view().await.lease(id).await.unwrap(), Some(at as i64));
            Ok(cost)
        };
        let sweep = meter::sweep(&LEASE_TIME, points, |_| Cost::default(), attempt).await;
        node.into_inner().store.close().await.unwrap();
        sweep
    });
    let times = ran.unwrap_or_else(|failure| panic!("{failure}"));
    let keys = meter::sweep_worlds(&LEASED, points, &config(), of_revocation, leased);
    Sweep::judge_all(&[times, keys]);
}

fn histories(points: Points) {
    let config = config();
    let of_older = |at: u64| of_range(at * 100) + Cost::together(at, at * BLOCK).in_rounds(at.div_ceil(GETS));
    // In such a memory a batch has 16 gets under way.
    let of_older_value =
        |at: u64| of_range(FEW * 100) + Cost::together(2 * FEW, FEW * (BLOCK + at)).in_rounds(4);
    let watch = async |engine: Engine, at: u64| history(engine, at, 1 << 20).await;
    let election = async |engine: Engine, at: u64| history(engine, at, 64 << 10).await;
    Sweep::judge_all(&[
        meter::sweep_worlds(&HISTORY, points, &config, |at| of_history(at, MIB), watch),
        meter::sweep_worlds(&SHORT_HISTORY, points, &config, |at| of_history(at, 64 * KIB), election),
        meter::sweep_worlds(&OLDER, points, &config, of_older, older),
        meter::sweep_worlds(&OLDER_VALUE, points, &config, of_older_value, older_value),
    ]);
}

fn snapshots(points: Points) {
    let config = config();
    // Parts of up to seven records, in each of which three keys are looked up concurrently.
    let of_records = |at: u64| Cost::together(at, at * BLOCK).in_rounds(at.div_ceil(3) + at / 7);
    Sweep::judge_all(&[
        meter::sweep_worlds(&SAVED, points, &config, of_pieces, saved),
        meter::sweep_worlds(&RESTORED, points, &config, of_records, restored),
        // Keys that are new are known to be so without a read.
        meter::sweep_worlds(&RESTORED_VALUE, points, &config, |_| Cost::default(), restored_value),
    ]);
}

fn followers(points: Points) {
    let of_ended = |at: u64| Cost::together(at, 0).in_rounds(at.div_ceil(512));
    let of_watched = |at: u64| Cost::together(at, 0);
    let of_queued = |at: u64| Cost { bytes: at.min(MIB), ..Cost::together(1 + u64::from(at > MIB), 0) };
    Sweep::judge_all(&[
        in_memory(&ENDED, points, of_ended, ended),
        in_memory(&WATCHES, points, of_watched, |at| watched(at, true)),
        in_memory(&WATCHERS, points, of_watched, |at| watched(at, false)),
        in_memory(&QUEUED, points, of_queued, queued),
    ]);
}

#[test]
fn changes_transactions_keys_and_deletes_of_every_length_and_number() {
    entries(Axis::points);
}

#[test]
fn leases_of_every_time_and_number_of_keys() {
    leases(Axis::points);
}

#[test]
fn histories_of_every_length() {
    histories(Axis::points);
}

#[test]
fn snapshots_of_every_length_and_number_of_records() {
    snapshots(Axis::points);
}

#[test]
fn every_number_of_leases_watches_and_queued_events() {
    // Tens of thousands need seconds in test builds. Bytes are few enough.
    followers(|axis: &Axis| {
        axis.points().into_iter().filter(|at| axis.unit == "bytes" || *at <= 5_000).collect()
    });
}

#[test]
#[ignore = "minutes: the points between those of every gate, 50,000 watches and a million revisions"]
fn the_points_between() {
    for sweep in [entries, leases, histories, snapshots, followers] {
        sweep(Axis::all_points);
    }
    let ends = |axis: &Axis| vec![*axis.range.start(), *axis.range.end()];
    // A get and a range of 1,000 events with their previous values, with a table or two more on the way.
    let constant = |_: u64| {
        let before = Cost::together(1_000, 1_000 * BLOCK).in_rounds(1_000 / GETS);
        of_range(1_000 * KIB) + before + of_get(VALUE) + of_range(AHEAD)
    };
    Sweep::judge_all(&[meter::sweep_worlds(&LONG_HISTORY, ends, &config(), constant, long_history)]);
}
