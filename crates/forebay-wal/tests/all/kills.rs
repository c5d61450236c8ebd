//! A process that appends is killed repeatedly: every record that it reported as durable is there.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use forebay::{Config, Engine};
use forebay_test::killed;
use forebay_wal::{ErrorKind, Lsn, Options, Recovery, Wal};

/// Variable with the directory for the writing process.
const DIR: &str = "FOREBAY_WAL_KILLS_DIR";
/// Variable with the number of the process.
const LIFE: &str = "FOREBAY_WAL_KILLS_LIFE";
const KILLS: u64 = 150;
/// As many where the tests are asked for little, or the machine is slow.
const LEAST: u64 = 20;
const WRITERS: u64 = 4;
/// Number of records that stay when the log's front is removed.
const KEPT: u64 = 300;

fn engine() -> Engine {
    Engine::start(Config::new().shards(1)).expect("an engine")
}

/// A killed process may hold its lock until the kernel has torn down its ring.
fn open(engine: &Engine, dir: &Path) -> (Wal, Recovery) {
    let begun = Instant::now();
    loop {
        let options = Options::new().segment_bytes(256 << 10).group_bytes_max(32 << 10);
        match Wal::open(engine, dir, options).wait() {
            Ok(opened) => return opened,
            Err(error) if *error.kind() == ErrorKind::Locked && begun.elapsed() < Duration::from_secs(20) => {
                std::thread::yield_now();
            }
            Err(error) => panic!("opening: {error:?}"),
        }
    }
}

/// Writer, life and count distinguish a record from every other; its length depends on them.
fn record(life: u64, writer: u64, count: u64) -> Vec<u8> {
    let name = [life.to_le_bytes(), writer.to_le_bytes(), count.to_le_bytes()].concat();
    let len = 24 + (count * 97 + writer * 31) % 900;
    name.into_iter().cycle().take(len as usize).collect()
}

/// The process to be killed: the test that started it set the variables.
#[test]
#[ignore = "runs in a process of its own, which the test below starts"]
fn writer() {
    let (Ok(dir), Ok(life)) = (std::env::var(DIR), std::env::var(LIFE)) else { return };
    let life: u64 = life.parse().expect("a number");
    let engine = engine();
    let (wal, _) = open(&engine, Path::new(&dir));
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
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine();
    let mut luck = 0x5eed_u64;
    let mut held: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let (mut removed, mut told) = (0, 0);
    let begun = Instant::now();
    let mut life = 0;
    // A slow machine kills fewer processes, but always some.
    let kills = if forebay_test::one_in(2) > 1 { LEAST } else { KILLS };
    while life < kills && (life < LEAST || begun.elapsed() < Duration::from_secs(25)) {
        luck = luck.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let lines = match luck >> 60 {
            0 => 0,
            1 => 1,
            _ => (luck >> 33) % 200,
        };
        let mut child = start(dir.path(), life);
        let mut out = BufReader::new(child.stdout.take().expect("its output"));
        let (mut line, mut seen) = (String::new(), 0);
        let mut removing = removed;
        let mut killed = lines == 0;
        if killed {
            child.kill().expect("a process to kill");
        }
        // Its last lines before it died are in the pipe.
        while out.read_line(&mut line).expect("its output") > 0 {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |at: usize| words.get(at).and_then(|word: &&str| word.parse::<u64>().ok());
            match (words.first().copied(), number(1), number(2), number(3)) {
                (Some("durable"), Some(lsn), Some(writer), Some(count)) => {
                    assert!(held.insert(lsn, record(life, writer, count)).is_none(), "{lsn} given twice");
                    told += 1;
                }
                (Some("removing"), Some(lsn), ..) => removing = removing.max(lsn),
                (Some("removed"), Some(lsn), ..) => removed = removed.max(lsn),
                _ => {}
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
        let (wal, recovery) = open(&engine, dir.path());
        let first = recovery.first.0;
        assert!((removed.max(1)..=removing.max(1)).contains(&first), "{recovery:?}: {removed}, {removing}");
        removed = removed.max(removing.min(first));
        held.retain(|lsn, _| *lsn >= first);
        check(&wal, &recovery, &mut held, life);
        wal.close().wait().expect("closing");
        life += 1;
    }
    println!("{life} kills, {told} records, {:?}", begun.elapsed());
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
