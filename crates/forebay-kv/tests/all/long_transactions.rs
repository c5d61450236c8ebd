//! Regression: a transaction of a second never committed during writes to *another* keyspace (0 of 18 at 16, 64 and 256 MiB): it
//! conflicted when two memtables had been flushed since its start, with keys of any keyspace. During puts to other keys of the same
//! keyspace its chance was as small.
//!
//! Time is that of a world, so the machine does not decide.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay::{Config, Engine};
use forebay_kv::{Batch, Isolation, Keyspace, Options, Result, Stats, Store};
use forebay_sim::{self as sim, Profile, World};

use crate::common::{key, random};

const TRANSACTIONS: u64 = 6;
/// Time between the starts of two transactions.
const APART: Duration = Duration::from_millis(50);
const LENGTH: Duration = Duration::from_secs(3);
/// Keys that the transactions read and no writer changes.
const READ: u64 = 20;

async fn pause(time: Duration) {
    sim::sleep(time).await.expect("in a world");
}

/// Reads keys and a range that no writer changes, lives for three seconds, and commits.
async fn long(store: Store, keyspace: Keyspace, number: u64) -> Result<()> {
    pause(APART * number as u32).await;
    let isolation = if number.is_multiple_of(2) { Isolation::Serializable } else { Isolation::Snapshot };
    let mut transaction = store.transaction(isolation);
    for index in 0..READ {
        assert!(transaction.get_for_update(&keyspace, &key(index)).await?.is_some());
    }
    assert!(transaction.range(&keyspace, key(READ)..key(READ + 1)).next().await.transpose()?.is_none());
    pause(LENGTH).await;
    transaction.put(&keyspace, format!("result {number}"), "x")?;
    transaction.commit().await
}

/// Writes a batch of new keys with each pause, until the transactions are over.
async fn write(
    (store, keyspace): (Store, Keyspace),
    (entries, value_bytes): (u64, usize),
    (seed, every): (u64, Duration),
    is_over: Arc<AtomicBool>,
) -> Result<()> {
    let mut number = seed << 32;
    while !is_over.load(Ordering::Relaxed) {
        let mut batch = Batch::new();
        for _ in 0..entries {
            number += 1;
            batch.put(&keyspace, format!("{:016x}", random(number)), vec![number as u8; value_bytes]);
        }
        store.write(&batch).await?;
        pause(every).await;
    }
    Ok(())
}

/// A writer: how many entries with how long values, and how often.
type Writer = (u64, usize, Duration);

/// Runs the transactions concurrently with writers of the same or of another keyspace. All have to commit.
async fn run(engine: Engine, memory_mib: u64, is_same: bool, writers: &[Writer]) -> Result<Stats> {
    let options = Options::new().memory_bytes_max(memory_mib << 20).store_id(7).clock(|| 1_000);
    let store = Store::open(&engine, "/disk/store", options).await?;
    let own = store.default_keyspace();
    for index in 0..READ {
        own.put(key(index), "x").await?;
    }
    let written = if is_same { own.clone() } else { store.keyspace("other").await? };
    let (is_over, mut writing, mut open) = (Arc::new(AtomicBool::new(false)), Vec::new(), Vec::new());
    for (seed, (entries, value_bytes, every)) in (0..).zip(writers.iter().copied()) {
        let (place, is_over) = ((store.clone(), written.clone()), is_over.clone());
        writing.push(sim::spawn(write(place, (entries, value_bytes), (seed, every), is_over)));
    }
    for number in 0..TRANSACTIONS {
        open.push(sim::spawn(long(store.clone(), own.clone(), number)));
    }
    for task in open {
        task.await.expect("a task")?;
    }
    is_over.store(true, Ordering::Relaxed);
    for task in writing {
        task.await.expect("a task")?;
    }
    let stats = store.stats();
    store.close().await?;
    Ok(stats)
}

fn check(memory_mib: u64, is_same: bool, writers: &[Writer], flushes_min: u64) {
    let config = Config::new().arena_bytes_max((2 * memory_mib as usize).max(64) << 20);
    let mut world = World::new(memory_mib).config(config).disk(Profile::nand().at("/disk"));
    let ran = world.run(async |engine| run(engine, memory_mib, is_same, writers).await);
    let stats = ran.expect("a world").expect("every transaction commits");
    assert!(stats.flushes >= flushes_min, "{} flushes: the test shows little", stats.flushes);
    assert!(stats.memory.used() <= memory_mib << 20, "{:?}", stats.memory);
}

#[test]
fn transactions_of_three_seconds_commit_beside_writers_of_another_keyspace() {
    let writer = |every_ms| (20, 4_000, Duration::from_millis(every_ms));
    check(16, false, &[writer(20), writer(20)], 8);
    check(64, false, &[writer(16), writer(16)], 2);
    check(256, false, &[writer(12), writer(12)], 1);
}

/// 20,000 puts a second.
#[test]
fn transactions_of_three_seconds_commit_beside_puts_to_other_keys_of_their_keyspace() {
    check(16, true, &[(250, 100, Duration::from_millis(10))], 5);
}
