//! A writing process is killed again and again. All writes that it reported as durable are there, and no
//! batch is there in part.

use crate::common;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use forebay::{Config, Engine};
use forebay_kv::{Batch, Store};
use forebay_test::killed::{self, Kills, say};

const WRITERS: u64 = 4;
/// Keys of a writer, each in two keyspaces.
const KEYS: u64 = 40;

fn engine() -> Engine {
    Engine::start(Config::new().shards(1)).expect("an engine")
}

/// Opens the store immediately. Regression: a killed process holds its locks until the kernel has cleaned up its ring, and an open
/// right after the kill failed with `Locked`, which named a process that was dead.
fn open(engine: &Engine, dir: &Path) -> Store {
    Store::open(engine, dir, common::options()).wait().unwrap_or_else(|error| panic!("opening: {error:?}"))
}

/// Life, writer and count distinguish a value from every other, and determine its length.
fn value(life: u64, writer: u64, count: u64) -> Vec<u8> {
    let name = [life.to_le_bytes(), writer.to_le_bytes(), count.to_le_bytes()].concat();
    let len = 24 + (count * 97 + writer * 31) % 1500;
    name.into_iter().cycle().take(len as usize).collect()
}

fn key(writer: u64, count: u64) -> Vec<u8> {
    format!("writer {writer} key {}", count % KEYS).into_bytes()
}

/// The process that is killed.
#[test]
#[ignore = "runs in a process of its own, which the test below starts"]
fn writer() {
    let Some((dir, life)) = killed::place() else { return };
    let engine = engine();
    let store = open(&engine, &dir);
    let (one, two) = (store.default_keyspace(), store.keyspace("two").wait().expect("a keyspace"));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (store, one, two) = (&store, &one, &two);
            scope.spawn(move || {
                for count in 0.. {
                    let (key, value) = (key(writer, count), value(life, writer, count));
                    let mut batch = Batch::new();
                    batch.put(one, &key, &value).put(two, &key, &value);
                    store.write(&batch).wait().expect("a batch");
                    say(&format!("durable {writer} {count}"));
                }
            });
        }
    });
}

#[test]
fn a_killed_process_loses_nothing_that_was_durable() {
    let dir = common::dir();
    let engine = engine();
    // The minimum state of each key: life and count.
    let mut held: BTreeMap<(u64, u64), (u64, u64)> = BTreeMap::new();
    let mut told = 0;
    let (worker, time) = ("kills::writer", Duration::from_secs(25));
    let kills = Kills { worker, dir: dir.path(), count: 60, least: 12, time, lines: 400 };
    kills.run(|life, lines| {
        for (word, numbers) in lines {
            if let ("durable", &[writer, count]) = (&*word, &*numbers) {
                held.insert((writer, count % KEYS), (life, count));
                told += 1;
            }
        }
        check(&engine, dir.path(), &mut held, life);
    });
    println!("{told} batches");
    assert!(told > 0, "nothing was ever durable");
}

/// Checks that each key has its last durable value, or one that this life wrote later, and the same in both
/// keyspaces.
fn check(engine: &Engine, dir: &Path, held: &mut BTreeMap<(u64, u64), (u64, u64)>, life: u64) {
    let store = open(engine, dir);
    let (one, two) = (store.default_keyspace(), store.keyspace("two").wait().expect("a keyspace"));
    for writer in 0..WRITERS {
        for number in 0..KEYS {
            let key = key(writer, number);
            let found = one.get(&key).wait().expect("a get").map(|value| value.to_vec());
            let other = two.get(&key).wait().expect("a get").map(|value| value.to_vec());
            assert!(found == other, "life {life}: half a batch of writer {writer}, key {number}");
            let least = held.get(&(writer, number)).copied();
            let Some(found) = found else {
                assert!(least.is_none(), "life {life}: writer {writer} lost key {number} of {least:?}");
                continue;
            };
            let word = |at: usize| found[at..at + 8].try_into().map(u64::from_le_bytes).expect("8 bytes");
            let (wrote, count) = (word(0), word(16));
            assert!(found == value(wrote, writer, count), "life {life}: a value that nobody wrote");
            let is_right = Some((wrote, count)) >= least && (wrote == life || Some((wrote, count)) == least);
            assert!(
                is_right,
                "life {life}: writer {writer}, key {number} is of {wrote}, {count}, not {least:?}"
            );
            held.insert((writer, number), (wrote, count));
        }
    }
    store.close().wait().expect("closing");
}
