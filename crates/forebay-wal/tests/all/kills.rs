//! A process that appends is killed repeatedly: every record that it reported as durable is there.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use std::time::Duration;

use forebay::{Config, Engine};
use forebay_test::killed::{self, Kills, say};
use forebay_wal::{ErrorKind, Lsn, Options, Recovery, Wal};

const WRITERS: u64 = 4;
/// Number of records that stay when the log's front is removed.
const KEPT: u64 = 300;

fn engine() -> Engine {
    Engine::start(Config::new().shards(1)).expect("an engine")
}

fn open(engine: &Engine, dir: &Path) -> (Wal, Recovery) {
    let options = || Options::new().segment_bytes(256 << 10).group_bytes_max(32 << 10);
    let is_locked = |error: &forebay_wal::Error| error.kind() == ErrorKind::Locked;
    let opened = killed::opened(async || Wal::open(engine, dir, options()).wait(), is_locked);
    futures::executor::block_on(opened).unwrap_or_else(|error| panic!("opening: {error:?}"))
}

/// Writer, life and count distinguish a record from every other; its length depends on them.
fn record(life: u64, writer: u64, count: u64) -> Vec<u8> {
    let name = [life.to_le_bytes(), writer.to_le_bytes(), count.to_le_bytes()].concat();
    let len = 24 + (count * 97 + writer * 31) % 900;
    name.into_iter().cycle().take(len as usize).collect()
}

/// The process to be killed.
#[test]
#[ignore = "runs in a process of its own, which the test below starts"]
fn writer() {
    let Some((dir, life)) = killed::place() else { return };
    let engine = engine();
    let (wal, _) = open(&engine, &dir);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let wal = wal.clone();
            scope.spawn(move || {
                for count in 0.. {
                    let lsn = wal.append(&record(life, writer, count)).wait().expect("an append").0;
                    say(&format!("durable {lsn} {writer} {count}"));
                    if lsn % 101 == 0 && lsn > KEPT {
                        say(&format!("removing {}", lsn - KEPT));
                        wal.truncate_before(Lsn(lsn - KEPT)).wait().expect("a truncation");
                        say(&format!("removed {}", lsn - KEPT));
                    }
                }
            });
        }
    });
}

#[test]
fn a_killed_process_loses_nothing_that_was_durable() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let mut held: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let (mut removed, mut told) = (0, 0);
    let (worker, time) = ("kills::writer", Duration::from_secs(25));
    let kills = Kills { worker, dir: dir.path(), count: 150, least: 20, time, lines: 200 };
    kills.run(|life, lines| {
        let mut removing = removed;
        for (word, numbers) in lines {
            match (&*word, &*numbers) {
                ("durable", &[lsn, writer, count]) => {
                    assert!(held.insert(lsn, record(life, writer, count)).is_none(), "{lsn} given twice");
                    told += 1;
                }
                ("removing", &[lsn]) => removing = removing.max(lsn),
                ("removed", &[lsn]) => removed = removed.max(lsn),
                _ => {}
            }
        }
        let (wal, recovery) = open(&engine, dir.path());
        let first = recovery.first.0;
        assert!((removed.max(1)..=removing.max(1)).contains(&first), "{recovery:?}: {removed}, {removing}");
        removed = removed.max(removing.min(first));
        held.retain(|lsn, _| *lsn >= first);
        check(&wal, &recovery, &mut held, life);
        wal.close().wait().expect("closing");
    });
    println!("{told} records");
    assert!(told > 0, "nothing was ever durable");
}

/// Checks that every durable record is there. Other records found were appended in this life, and must be
/// there from now on.
fn check(wal: &Wal, recovery: &Recovery, held: &mut BTreeMap<u64, Vec<u8>>, life: u64) {
    let mut found = BTreeMap::new();
    futures::executor::block_on(async {
        let mut reader = wal.read_from(recovery.first);
        while let Some(record) = reader.next().await.transpose().expect("a readable log") {
            found.insert(record.lsn().0, record.to_vec());
        }
    });
    assert!(found.keys().copied().eq(recovery.first.0..recovery.last.0 + 1), "no gap in life {life}");
    for (lsn, bytes) in held.iter() {
        let there = found.get(lsn);
        assert!(there == Some(bytes), "life {life}: record {lsn} is {there:?} and not what was durable");
    }
    for (lsn, bytes) in found {
        let Entry::Vacant(place) = held.entry(lsn) else { continue };
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).expect("8 bytes");
        assert!(bytes == record(life, word(8), word(16)), "life {life}: record {lsn} is of another life");
        place.insert(bytes);
    }
}
