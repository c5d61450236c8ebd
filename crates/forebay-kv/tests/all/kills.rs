//! A writing process is killed again and again. All writes that it reported as durable are there, and no
//! batch is there in part.

use crate::common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use forebay::{Config, Engine};
use forebay_kv::{Batch, Store};
use forebay_test::killed;

/// Directory for the writing process.
const DIR: &str = "FOREBAY_KV_KILLS_DIR";
/// Number of the process.
const LIFE: &str = "FOREBAY_KV_KILLS_LIFE";
const KILLS: u64 = 60;
/// As many where the tests are asked for little, or the machine is slow.
const LEAST: u64 = 12;
const WRITERS: u64 = 4;
/// Keys of a writer, each in two keyspaces.
const KEYS: u64 = 40;

fn engine() -> Engine {
    Engine::start(Config::new().shards(1)).expect("an engine")
}

/// Opens the store at once. Regression: a killed process holds its locks until the kernel has cleaned up its ring, and
/// an open right after the kill failed with `Locked`, which named a process that was dead.
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

/// The process that is killed; the test that starts it sets the variables.
#[test]
#[ignore = "runs in a process of its own, which the test below starts"]
fn writer() {
    let (Ok(dir), Ok(life)) = (std::env::var(DIR), std::env::var(LIFE)) else { return };
    let life: u64 = life.parse().expect("a number");
    let engine = engine();
    let store = open(&engine, Path::new(&dir));
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

fn start(dir: &Path, life: u64) -> Child {
    let variables = [(DIR, dir.as_os_str().to_owned()), (LIFE, life.to_string().into())];
    killed::start("kills::writer", &variables).expect("a process")
}

/// Prints one line, unless the reader is gone.
fn say(line: &str) {
    killed::say(line).expect("the test listens");
}

#[test]
fn a_killed_process_loses_nothing_that_was_durable() {
    let dir = common::dir();
    let engine = engine();
    let mut luck = 0x5eed_u64;
    // The minimum state of each key: life and count.
    let mut held: BTreeMap<(u64, u64), (u64, u64)> = BTreeMap::new();
    let begun = Instant::now();
    let (mut life, mut told) = (0, 0);
    // On a slow machine there are fewer kills, but at least one.
    let kills = if forebay_test::one_in(2) > 1 { LEAST } else { KILLS };
    while life < kills && (life < LEAST || begun.elapsed() < Duration::from_secs(25)) {
        luck = luck.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let lines = match luck >> 60 {
            0 => 0,
            1 => 1,
            _ => (luck >> 33) % 400,
        };
        let mut child = start(dir.path(), life);
        let mut out = BufReader::new(child.stdout.take().expect("its output"));
        let (mut line, mut seen, mut killed) = (String::new(), 0, lines == 0);
        if killed {
            child.kill().expect("a process to kill");
        }
        // The pipe has the lines that the process wrote before it was killed.
        while out.read_line(&mut line).expect("its output") > 0 {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |at: usize| words.get(at).and_then(|word: &&str| word.parse::<u64>().ok());
            if let (Some("durable"), Some(writer), Some(count)) =
                (words.first().copied(), number(1), number(2))
            {
                held.insert((writer, count % KEYS), (life, count));
                told += 1;
            }
            line.clear();
            seen += 1;
            if seen >= lines && !killed {
                child.kill().expect("a process to kill");
                killed = true;
            }
        }
        assert!(killed, "the writer ended by itself in life {life}: {:?}", child.wait());
        child.wait().expect("its end");
        check(&engine, dir.path(), &mut held, life);
        life += 1;
    }
    println!("{life} kills, {told} batches, {:?}", begun.elapsed());
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
