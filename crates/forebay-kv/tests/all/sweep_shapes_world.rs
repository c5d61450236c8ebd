//! The cost for a disk of a store's operations, for any memory and any shape of its leaves, tables and levels
//! (forebay-test/SWEEPS.md). A failure prints each point of its axis with its counts.

use forebay::{Config, Engine};
use forebay_kv::{Compression, Store};
use forebay_test::sweep::meter::{self, Attempt, count};
use forebay_test::sweep::{Axis, BLOCK, Cost, Points, Sweep, content as value};

use crate::common::key;
use crate::sweep_world::{
    BESIDE, DIR, KIB, MIB, check, cold_with, config, entries, of_get, of_range, open_with, options,
};

/// The entries of most of these stores, and the bytes of a value: four fill a leaf.
const MANY: u64 = 400;
const VALUE: u64 = 1_000;
/// The longest value in a leaf of 32 KiB.
const INLINE: u64 = 8 * KIB;
const LONG_LEAF: u64 = 32 * KIB;
/// The links of a checkpoint that are made together.
const LINKS: u64 = 16;
/// The tables that an open opens together.
const TOGETHER: u64 = 32;

static MEMORY: Axis = Axis {
    name: "store memory",
    unit: "bytes",
    package: "forebay-kv",
    range: 16 * MIB..=4_096 * MIB,
    // At 64 MiB the manifest's share has `MIB`, that of a load `MEMORY_MAX`, and that of a range `READ_BYTES_MAX`.
    crosses: &[
        ("MEMORY_BYTES_MIN", 16 << 20),
        ("MEMORY_BYTES_DEFAULT", 256 << 20),
        ("SMALL", 40 << 20),
        ("MIB", 1 << 20),
        ("MEMORY_MAX", 2 << 20),
        ("READ_BYTES_MAX", 1 << 20),
    ],
    steps: &[],
    limit: None,
};
static LEAF: Axis = Axis {
    name: "store compressed leaf",
    unit: "bytes",
    package: "forebay-kv",
    range: 4 * KIB..=32 * KIB,
    // A leaf of 8 KiB has 32 before it is compressed, and one of more has no more.
    crosses: &[("LEAF_MULTIPLE", 4), ("LEAF_MAX", 32 << 10)],
    steps: &[],
    limit: None,
};
static LONG_LEAF_VALUE: Axis = Axis {
    name: "store value with long leaves",
    unit: "bytes",
    package: "forebay-kv",
    range: 0..=32 * KIB,
    crosses: &[("INLINE_BYTES_MAX", 8 << 10)],
    steps: &[],
    limit: None,
};
static COMPRESSED_VALUE: Axis = Axis {
    name: "store compressed value",
    unit: "bytes",
    package: "forebay-kv",
    range: 1..=256 * KIB,
    crosses: &[("PIECE_BYTES_MAX", 15 * 4096)],
    steps: &[],
    limit: None,
};
static ENTRIES: Axis = Axis {
    name: "store entries of a table",
    unit: "entries",
    package: "forebay-kv",
    range: 1_024..=8_192,
    crosses: &[("KEYS", 63 * 64 * 8 / 10)],
    steps: &[],
    limit: None,
};
static FLUSHES: Axis = Axis {
    name: "store flushes",
    unit: "flushes",
    package: "forebay-kv",
    range: 1..=30,
    crosses: &[("LEVEL0_FULL", 20), ("LEVEL0_MAX", 26)],
    steps: &[],
    limit: None,
};
static REWRITTEN: Axis = Axis {
    name: "store rewritten keys",
    unit: "percent",
    package: "forebay-kv",
    range: 0..=100,
    // An eighth.
    crosses: &[("REST", 8)],
    steps: &[],
    limit: None,
};
static DELETED: Axis = Axis {
    name: "store deleted keys",
    unit: "percent",
    package: "forebay-kv",
    range: 0..=100,
    // An eighth.
    crosses: &[("DELETED_PART", 8)],
    steps: &[],
    limit: None,
};
static TABLES: Axis = Axis {
    name: "store tables of a checkpoint",
    unit: "tables",
    package: "forebay-kv",
    range: 1..=40,
    crosses: &[("LINKS_MAX", 16)],
    steps: &[],
    limit: None,
};

static OPENED: Axis = Axis {
    name: "store tables of an open",
    unit: "tables",
    package: "forebay-kv",
    range: 1..=40,
    crosses: &[("OPENED_AT_ONCE", 32)],
    steps: &[],
    limit: None,
};

/// A get, a range of 200 entries and a put.
async fn memory(engine: Engine, at: u64) -> Attempt {
    let store = cold_with(&engine, options().memory_bytes_max(at), entries(MANY, VALUE)).await?;
    let keys = store.default_keyspace();
    keys.put(key(MANY), value(MANY, 100)).await?;
    meter::rest().await;
    let (done, cost) = count(async {
        check(keys.get(&key(300)).await?.as_deref(), 300, VALUE)?;
        let (mut range, mut number) = (keys.range(key(0)..key(200)), 0);
        while let Some(entry) = range.next().await {
            check(Some(&entry?.1[..]), number, VALUE)?;
            number += 1;
        }
        keys.put(key(MANY), value(MANY + 1, VALUE)).await?;
        Ok::<u64, Box<dyn std::error::Error>>(number)
    })
    .await;
    assert_eq!(done?, 200);
    store.close().await?;
    Ok(cost)
}

/// Gets an entry of a store.
async fn get(store: Store, number: u64, len: u64) -> Attempt {
    let keys = store.default_keyspace();
    let (found, cost) = count(keys.get(&key(number))).await;
    check(found?.as_deref(), number, len)?;
    store.close().await?;
    Ok(cost)
}

async fn leaf(engine: Engine, at: u64) -> Attempt {
    let options = options().leaf_bytes(at.next_multiple_of(BLOCK) as u32).compression(Compression::Lz4);
    get(cold_with(&engine, options, entries(MANY, VALUE)).await?, 7, VALUE).await
}

async fn long_leaf_value(engine: Engine, at: u64) -> Attempt {
    let count = (256 * KIB / (at + 1)).clamp(3, 64);
    get(cold_with(&engine, options().leaf_bytes(LONG_LEAF as u32), entries(count, at)).await?, 1, at).await
}

async fn compressed_value(engine: Engine, at: u64) -> Attempt {
    let options = options().compression(Compression::Lz4);
    get(cold_with(&engine, options, entries(4, at)).await?, 1, at).await
}

/// A key that is there, and one that is not.
async fn of_entries(engine: Engine, at: u64) -> Attempt {
    let store = cold_with(&engine, options(), entries(at, 20)).await?;
    let absent = [key(7), key(7)].concat();
    let (found, cost) =
        count(async { store.default_keyspace().get(&absent).await.map(|found| found.is_some()) }).await;
    assert!(!found?);
    Ok(cost + get(store, 7, 20).await?)
}

/// One key is in each of the tables, and another one in the oldest.
async fn flushes(engine: Engine, at: u64) -> Attempt {
    let store = open_with(&engine, options()).await?;
    let keys = store.default_keyspace();
    keys.put(key(1), value(1, VALUE)).relaxed().await?;
    for round in 0..at {
        keys.put(key(2), value(round, VALUE)).relaxed().await?;
        store.flush().await?;
    }
    store.settle().await?;
    store.close().await?;
    drop((keys, store));
    let store = open_with(&engine, options()).await?;
    let (found, cost) = count(async { store.default_keyspace().get(&key(2)).await }).await;
    assert!(found?.as_deref() == Some(&value(at - 1, VALUE)[..]));
    Ok(cost + get(store, 1, VALUE).await?)
}

/// The number of a key's value after a change; `None` if it is deleted.
type NewValue = Option<u64>;

/// A range over all keys, of which some were changed since they were flushed to tables.
async fn changed(engine: Engine, change: impl Fn(u64) -> Option<NewValue>) -> Attempt {
    let store = cold_with(&engine, options(), entries(MANY, VALUE)).await?;
    let keys = store.default_keyspace();
    for number in 0..MANY {
        let write = match change(number) {
            Some(Some(other)) => keys.put(key(number), value(other, VALUE)),
            Some(None) => keys.delete(key(number)),
            None => continue,
        };
        write.relaxed().await?;
    }
    store.flush().await?;
    store.settle().await?;
    store.close().await?;
    drop((keys, store));
    let store = open_with(&engine, options()).await?;
    let keys = store.default_keyspace();
    let (found, cost) = count(async {
        let (mut range, mut found) = (keys.iter(), Vec::new());
        while let Some(entry) = range.next().await {
            found.push(entry?);
        }
        Ok::<_, forebay_kv::Error>(found)
    })
    .await;
    let expected = (0..MANY).filter_map(|number| Some((number, change(number).unwrap_or(Some(number))?)));
    let is_right = found?
        .iter()
        .map(|(name, found)| (name.clone(), found.to_vec()))
        .eq(expected.map(|(number, other)| (key(number), value(other, VALUE))));
    assert!(is_right, "other entries are there");
    store.close().await?;
    Ok(cost)
}

/// Returns whether a key is among this many percent of them, which lie between the others.
fn is_among(number: u64, percent: u64) -> bool {
    number * 7_919 % MANY * 100 < percent * MANY
}

async fn rewritten(engine: Engine, at: u64) -> Attempt {
    changed(engine, |number| is_among(number, at).then_some(Some(number + 1))).await
}

/// All keys are changed, and of these this many percent deleted.
async fn deleted(engine: Engine, at: u64) -> Attempt {
    changed(engine, |number| Some((!is_among(number, at)).then_some(number + 1))).await
}

/// Makes a store of this many keyspaces, each of which has a table.
async fn with_tables(engine: &Engine, count: u64) -> forebay_kv::Result<Store> {
    let store = open_with(engine, options()).await?;
    for number in 0..count {
        let keys = store.keyspace(&format!("keyspace {number}")).await?;
        keys.put(key(1), value(number, 100)).relaxed().await?;
    }
    store.flush().await?;
    store.settle().await?;
    meter::rest().await;
    Ok(store)
}

/// Checks such a store, and closes it.
async fn check_tables(store: Store, count: u64) -> Result<(), Box<dyn std::error::Error>> {
    for number in 0..count {
        let keys = store.keyspace(&format!("keyspace {number}")).await?;
        check(keys.get(&key(1)).await?.as_deref(), number, 100)?;
    }
    Ok(store.close().await?)
}

async fn opened(engine: Engine, at: u64) -> Attempt {
    let store = with_tables(&engine, at).await?;
    store.close().await?;
    drop(store);
    meter::rest().await;
    let (store, cost) = count(Store::open(&engine, DIR, options())).await;
    check_tables(store?, at).await?;
    Ok(cost)
}

/// The checkpoint is a store.
async fn tables(engine: Engine, at: u64) -> Attempt {
    let store = with_tables(&engine, at).await?;
    let (made, cost) = count(store.checkpoint("/disk/checkpoint")).await;
    made?;
    store.close().await?;
    drop(store);
    check_tables(Store::open(&engine, "/disk/checkpoint", options()).await?, at).await?;
    Ok(cost)
}

fn memories(points: Points) {
    let wide = Config::new().arena_bytes_max(5 << 30);
    let beside = VALUE + BESIDE;
    let ideal = |_: u64| of_get(VALUE) + of_range(200 * beside) + Cost::of_group(beside);
    Sweep::judge_all(&[meter::sweep_worlds(&MEMORY, points, &wide, ideal, memory)]);
}

fn leaves(points: Points) {
    let of_leaf = |at: u64| Cost::together(1, at);
    let of_value = |at: u64| match at {
        0..=INLINE => Cost::together(1, LONG_LEAF),
        _ => Cost::together(2, BLOCK + at).in_rounds(2),
    };
    Sweep::judge_all(&[
        meter::sweep_worlds(&LEAF, points, &config(), of_leaf, leaf),
        meter::sweep_worlds(&LONG_LEAF_VALUE, points, &config(), of_value, long_leaf_value),
        meter::sweep_worlds(&COMPRESSED_VALUE, points, &config(), of_get, compressed_value),
    ]);
}

fn levels(points: Points) {
    let of_two = |_: u64| of_get(VALUE) + of_get(VALUE);
    let all = of_range(MANY * (VALUE + BESIDE));
    let of_some = |at: u64| all + of_range(MANY * (VALUE + BESIDE) * at / 100);
    // Links with a flush of their directory each, then a new manifest and log, which are read back.
    let of_links = |at: u64| Cost::together(16, MIB).with_flushes(24 + at).in_rounds(36 + at.div_ceil(LINKS));
    // Manifest and log, then the tables concurrently: of each its end, its levels and its filter.
    let of_open = |at: u64| {
        let bytes = 4 * MIB + 4 * at * BLOCK;
        Cost::together(50 + 4 * at, bytes).with_flushes(16).in_rounds(50 + 4 * at.div_ceil(TOGETHER))
    };
    Sweep::judge_all(&[
        meter::sweep_worlds(&ENTRIES, points, &config(), of_two, of_entries),
        meter::sweep_worlds(&FLUSHES, points, &config(), of_two, flushes),
        meter::sweep_worlds(&REWRITTEN, points, &config(), of_some, rewritten),
        meter::sweep_worlds(&DELETED, points, &config(), |at| of_some(100 - at), deleted),
        meter::sweep_worlds(&TABLES, points, &config(), of_links, tables),
        meter::sweep_worlds(&OPENED, points, &config(), of_open, opened),
    ]);
}

#[test]
fn every_memory() {
    // More is not had by every machine.
    memories(|axis: &Axis| axis.points().into_iter().filter(|at| *at <= 1 << 30).collect());
}

#[test]
fn leaves_and_compressed_values_of_every_length() {
    leaves(Axis::points);
}

#[test]
fn every_number_of_entries_flushes_changes_and_tables() {
    levels(Axis::points);
}

#[test]
#[ignore = "minutes: the points between those of every gate, and up to 4 GiB of memory"]
fn the_points_between() {
    for sweep in [memories, leaves, levels] {
        sweep(Axis::all_points);
    }
}
