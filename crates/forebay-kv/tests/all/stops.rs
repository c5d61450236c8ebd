//! Writers are slowed smoothly and never stopped for long, regardless of flushes and compaction. The tests
//! run in a simulated world, whose clock measures how long each writer really waited.
//!
//! Regression: a batch of puts once lasted 1.75 s. Writers had filled all memtables as fast as they could. Then all of them stalled
//! until a flush had written one, in an order that left some of them behind every time. The larger the memtables and the slower the
//! disk, the longer it lasted.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use forebay_kv::{Batch, Options, Stats, Store};
use forebay_sim::{self as sim, Fault, Profile, Rule, World};

/// Guaranteed maximum wait of a writer.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Bytes written in total: many memtables of 0.8 MiB each.
const BYTES: u64 = 8 << 20;

/// The writes of a world.
#[derive(Clone, Copy, Debug)]
struct Load {
    writers: u64,
    /// Entries of a write.
    entries: u64,
    value_bytes: usize,
}

const LOADS: [Load; 3] = [
    Load { writers: 2, entries: 20, value_bytes: 1000 },
    Load { writers: 16, entries: 1, value_bytes: 1000 },
    Load { writers: 16, entries: 1, value_bytes: 256 },
];

fn mix(number: u64) -> u64 {
    let mut x = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

async fn writes(store: &Store, load: Load, writer: u64, longest: &RefCell<Duration>) {
    let keyspace = store.default_keyspace();
    let writes = BYTES / load.writers / (load.entries * (load.value_bytes as u64 + 16));
    for number in 0..writes {
        let mut batch = Batch::new();
        for entry in 0..load.entries {
            let key = mix((number * load.entries + entry) << 8 | writer) % 20_000;
            batch.put(&keyspace, format!("key {key:012}"), vec![entry as u8; load.value_bytes]);
        }
        let began = sim::now();
        store.write(&batch).await.expect("a write");
        let mut longest = longest.borrow_mut();
        *longest = longest.max(sim::now() - began);
    }
}

/// Runs writers without pauses on a disk with a fast log and slow tables. A write of 64 KiB to a table lasts 10 ms and a sync 20
/// ms, so that the flush of a memtable lasts two tenths of a second. Returns the longest wait and the store's statistics.
fn longest_wait(load: Load) -> (Duration, Stats) {
    let times = [5, 10, 20].map(Duration::from_micros);
    let profile = Profile::nand().at("/disk").tail(0, 1).jitter(10).latency(times[0], times[1], times[2]);
    let mut world = World::new(7).disk(profile.call_latency(times[0])).steps_max(u64::MAX);
    let longest = Rc::new(RefCell::new(Duration::ZERO));
    let seen = longest.clone();
    let stats = world.run(async |engine| {
        let options =
            Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN).store_id(9).clock(|| 1_000_000);
        let store = Store::open(&engine, "/disk/kv", options).await.expect("the store opens");
        // A thousand times as slow as the log.
        sim::inject(Rule::new(Fault::Slow).on("/disk/kv/tables"));
        let writers = (0..load.writers).map(|writer| {
            let (store, seen) = (store.clone(), seen.clone());
            sim::spawn_local(async move { writes(&store, load, writer, &seen).await })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.expect("a writer");
        }
        let stats = store.stats();
        store.close().await.expect("the store closes");
        stats
    });
    let longest = *longest.borrow();
    (longest, stats.expect("a world that ends"))
}

#[test]
fn no_writer_is_stopped_for_long_by_flushes_and_compaction() {
    for load in LOADS {
        let (longest, stats) = longest_wait(load);
        println!("{load:?}: {longest:?}");
        assert!(stats.flushes > 5 && stats.compactions > 0, "{load:?} was too little: {stats:?}");
        assert!(stats.space_waits > 0, "{load:?}: nobody came to wait for memory");
        assert!(longest <= WAIT_MAX, "{load:?}: a writer waited {longest:?}");
    }
}

/// A waiter for memory that is no longer polled, such as a kept branch of a `select!`, does not hold up later waiters.
#[test]
fn a_writer_that_is_not_polled_any_more_stops_nobody() {
    let mut world = World::new(11).disk(Profile::nand().at("/disk")).steps_max(u64::MAX);
    let run = world.run(async |engine| {
        let options =
            Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN).store_id(9).clock(|| 1_000_000);
        let store = Store::open(&engine, "/disk/kv", options).await.expect("the store opens");
        sim::inject(Rule::new(Fault::Slow).on("/disk/kv/tables"));
        let (keyspace, mut asleep) = (store.default_keyspace(), Vec::new());
        for number in 0..4_000_u32 {
            let before = store.stats().space_waits;
            let mut write = Box::pin(keyspace.put(number.to_be_bytes(), vec![7; 1000]));
            let is_ready = futures::poll!(&mut write).is_ready();
            if store.stats().space_waits > before && asleep.len() < 3 {
                asleep.push(write);
            } else if !is_ready {
                write.await.expect("a write");
            }
        }
        assert_eq!(asleep.len(), 3, "nobody came to wait for memory");
        for write in asleep {
            write.await.expect("a write");
        }
        store.close().await.expect("the store closes");
    });
    run.expect("a world that ends");
}

/// Test of the test: without the pacing, a writer waits for most of a flush.
#[cfg(feature = "_mutants")]
#[test]
fn writers_that_nothing_paces_are_seen_to_stop() {
    use forebay_kv::mutants::{self, Mutant};
    for load in LOADS {
        let (longest, _) = mutants::with(Mutant::WritersNotPaced, || longest_wait(load));
        println!("{load:?}, not paced: {longest:?}");
        assert!(longest > WAIT_MAX, "{load:?}: {longest:?} is no stop");
    }
}
