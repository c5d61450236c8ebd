//! Crowds: many puts under way, many keyspaces that are flushed and compacted, and keys of every length on a full disk
//! (forebay-test/SWEEPS.md). A failure prints each point of its axis with its counts.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;

use forebay::Engine;
use forebay_kv::{Result, Store};
use forebay_sim::{Profile, World};
use forebay_test::sweep::meter::{self, Attempt, count};
use forebay_test::sweep::{Axis, Cost, Points, Step, Sweep, content as value};
use futures::future::join_all;

use crate::common::{self, key};
use crate::full::{FILLER, pause};
use crate::full_keyspaces::{fill_beside_others, until_taken};
use crate::sweep_world::{DIR, KIB, MIB, check, config, keeps_its_memory, open_with, options};

/// The memory of stores of up to 1,024 keyspaces.
const KEYSPACES_MEMORY: u64 = 192 * MIB;
/// The keys of a store on a full disk.
const FULL_KEYS: u8 = 24;

static PUTS: Axis = Axis {
    name: "store puts under way",
    unit: "puts",
    package: "forebay-kv",
    range: 1..=10_000,
    crosses: &[],
    steps: &[],
    limit: None,
};
static FLUSHED_KEYSPACES: Axis = Axis {
    name: "store flushed keyspaces",
    unit: "keyspaces",
    package: "forebay-kv",
    range: 1..=1_024,
    crosses: &[],
    steps: &[Step {
        range: 1..=64,
        percent: 150,
        neighbours: 400,
        reason: "the next segment of the log, which is written in advance, is a large part of so few tables",
    }],
    limit: None,
};
static FULL_KEY: Axis = Axis {
    name: "store key on a full disk",
    unit: "bytes",
    package: "forebay-kv",
    range: 1..=16 * KIB,
    crosses: &[],
    steps: &[],
    limit: None,
};

/// Returns how often puts are polled, most of which wait for room in a log of short segments and then for the disk.
async fn puts(engine: Engine, at: u64) -> Attempt {
    let store = open_with(&engine, options().log_segment_bytes(64 * KIB)).await?;
    let (keys, polls) = (store.default_keyspace(), Cell::new(0));
    let puts = (0..at).map(|number| {
        let (mut put, polls) = (keys.put(key(number), value(number, 100)), &polls);
        poll_fn(move |context| {
            polls.set(polls.get() + 1);
            Pin::new(&mut put).poll(context)
        })
    });
    join_all(puts).await.into_iter().collect::<Result<()>>()?;
    check(keys.get(&key(at - 1)).await?.as_deref(), at - 1, 100)?;
    store.close().await?;
    Ok(Cost { requests: polls.get(), ..Cost::default() })
}

/// Overwrites a key of each keyspace, then flushes and compacts all of them.
async fn flushed_keyspaces(engine: Engine, at: u64) -> Attempt {
    let store = open_with(&engine, options().memory_bytes_max(KEYSPACES_MEMORY)).await?;
    let mut keyspaces = Vec::new();
    for number in 0..at {
        keyspaces.push(store.keyspace(&number.to_string()).await?);
    }
    let write = async |version: u64| {
        for (number, keys) in (version..).zip(&keyspaces) {
            keys.put(key(1), value(number, 100)).relaxed().await?;
        }
        store.flush().await?;
        store.settle().await
    };
    write(0).await?;
    meter::rest().await;
    let (written, cost) = count(write(1)).await;
    written?;
    keeps_its_memory(&store);
    for (number, keys) in (1..).zip(&keyspaces) {
        check(keys.get(&key(1)).await?.as_deref(), number, 100)?;
    }
    store.close().await?;
    Ok(cost)
}

/// Deletes all keys of a store whose disk others have filled.
async fn full_key(engine: Engine, at: u64) -> Attempt {
    let name = |number: u8| [vec![b'k'; at as usize - 1], vec![number]].concat();
    let options = common::options().store_id(9).clock(|| 1_000_000);
    let store = Store::open(&engine, DIR, options).await?;
    let keys = store.default_keyspace();
    for number in 0..FULL_KEYS {
        keys.put(name(number), value(number.into(), 100)).await?;
    }
    // The reserve grows in the background.
    pause(500).await;
    fill_beside_others(&engine, &store, &name(0)).await;
    for number in 0..FULL_KEYS {
        until_taken(&store, async || keys.delete(name(number)).await).await;
    }
    for number in 0..FULL_KEYS {
        assert!(keys.get(&name(number)).await?.is_none(), "key {number} is there");
    }
    engine.remove_file(FILLER).await?;
    until_taken(&store, async || keys.put(name(0), "again").await).await;
    store.close().await?;
    Ok(Cost::default())
}

fn puts_under_way(points: Points) {
    // It is polled when it starts, when the log has room for it, when its turn has come, and when it is durable.
    let of_puts = |at: u64| Cost { requests: 4 * at, ..Cost::default() };
    Sweep::judge_all(&[meter::sweep_worlds(&PUTS, points, &config(), of_puts, puts)]);
}

fn keyspaces(points: Points) {
    // A table is written and opened by the flush, and again by the compaction, which reads two. Each compaction is an edit.
    let of_keyspaces = |at: u64| {
        let bytes = 2 * MIB + at * 128 * KIB;
        Cost::together(64 + 24 * at, bytes).with_flushes(32 + 8 * at).in_rounds(64 + 32 * at)
    };
    let sweep = meter::sweep_worlds(&FLUSHED_KEYSPACES, points, &config(), of_keyspaces, flushed_keyspaces);
    Sweep::judge_all(&[sweep]);
}

fn full_keys(points: Points) {
    let mut sweep = Sweep::new(&FULL_KEY);
    for at in points(&FULL_KEY) {
        let disk = Profile::nand().at("/disk").capacity(8 * MIB);
        let ran = World::new(at).disk(disk).run(async |engine| full_key(engine, at).await);
        let outcome = match ran {
            Ok(outcome) => outcome.map_err(|error| error.to_string()),
            Err(failure) => Err(failure.to_string()),
        };
        sweep.add(at, Cost::default(), outcome);
    }
    Sweep::judge_all(&[sweep]);
}

#[test]
fn a_put_costs_no_more_among_many() {
    puts_under_way(|axis: &Axis| axis.points().into_iter().filter(|at| *at <= 1_024).collect());
}

#[test]
fn flushes_and_compactions_of_many_keyspaces() {
    keyspaces(|axis: &Axis| axis.points().into_iter().filter(|at| *at <= 64).collect());
}

#[test]
fn keys_of_every_length_are_deleted_on_a_full_disk() {
    full_keys(|axis: &Axis| axis.points().into_iter().filter(|at| at.is_power_of_two()).collect());
}

#[test]
#[ignore = "minutes: the points between those of every gate, up to 10,000 puts and 1,024 keyspaces"]
fn the_points_between() {
    puts_under_way(Axis::all_points);
    full_keys(Axis::all_points);
    // Each point makes all of its keyspaces. Each edit of the manifest copies the list of them.
    keyspaces(|axis: &Axis| {
        axis.points().into_iter().filter(|at| at.is_power_of_two() && *at <= 1_024).collect()
    });
}
