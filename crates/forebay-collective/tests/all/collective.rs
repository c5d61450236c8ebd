//! Collective writes on real files: strided, uneven and overlapping pieces from threads, tasks and shards;
//! few requests, bounded memory, errors that every participant receives.

use std::path::Path;

use crate::common::{assert_file, bytes_of, config, dir, engine, write_file};
use bytes::Bytes;
use forebay::{Class, Durability, Engine, ErrorKind, File, Open};
use forebay_collective::{Collective, Options};

fn open(engine: &Engine, path: &Path, open: Open) -> File {
    engine.open(path, open).wait().unwrap()
}

/// Returns every this many-th record from `rank` on, of a file that is made of records from `base` on.
fn strided(rank: u64, participants: u64, records: u64, record: u64, base: u64) -> Vec<(u64, Bytes)> {
    let mine = (0..records).filter(|number| number % participants == rank);
    let piece = |number| {
        let offset = base + number * record;
        (offset, Bytes::from(bytes_of(offset..offset + record)))
    };
    mine.map(piece).collect()
}

/// Runs one write of every participant on a separate thread.
fn on_threads(handles: Vec<Collective>, pieces: impl Fn(u64) -> Vec<(u64, Bytes)> + Sync) -> Vec<Collective> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = handles
            .into_iter()
            .map(|mut handle| {
                let pieces = &pieces;
                scope.spawn(move || {
                    handle.write(pieces(handle.rank() as u64), Durability::Data).wait().unwrap();
                    handle
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn strided_records_become_large_writes() {
    let (engine, dir) = (engine(), dir());
    const RECORD: u64 = 47_008;
    for mode in [Open::create(), Open::create().buffered(), Open::create().uncached()] {
        for participants in [1, 2, 8] {
            let path = dir.path().join("strided");
            let file = open(&engine, &path, mode.truncate());
            let handles = Collective::start(&file, participants, Options::new().request_bytes_max(256 << 10));
            let handles = on_threads(handles, |rank| strided(rank, participants as u64, 100, RECORD, 0));
            let what = format!("{participants} participants, {mode:?}");
            assert_file(&path, &bytes_of(0..100 * RECORD), &what);
            let stats = handles[0].stats();
            assert_eq!((stats.taken_bytes, stats.read_requests), (100 * RECORD, 0), "{what}");
            assert_eq!(stats.write_requests, (100 * RECORD).div_ceil(256 << 10), "{what}");
            assert!(stats.written_bytes - stats.taken_bytes < 4096, "{what}: {stats:?}");
        }
    }
}

/// Inside a longer file and not aligned: the two ends are read, each once, and neighbours stay.
#[test]
fn edges_are_read_once_and_holes_stay() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("edges");
    std::fs::write(&path, vec![0xEE; 3 << 20]).unwrap();
    let file = open(&engine, &path, Open::write());
    let mut expected = vec![0xEE; 3 << 20];
    let handles =
        on_threads(Collective::start(&file, 3, Options::new()), |rank| strided(rank, 3, 90, 10_001, 5_000));
    expected[5_000..5_000 + 90 * 10_001].copy_from_slice(&bytes_of(5_000..5_000 + 90 * 10_001));
    assert_file(&path, &expected, "filled");
    assert_eq!(handles[0].stats().read_requests, 2);
    // One participant has no pieces this time, so every third record is a hole.
    let handles = on_threads(handles, |rank| match rank {
        1 => Vec::new(),
        _ => strided(rank, 3, 30, 20_003, 1_500_001),
    });
    for number in (0..30).filter(|number| number % 3 != 1) {
        let start = 1_500_001 + number * 20_003;
        expected[start..start + 20_003].copy_from_slice(&bytes_of(start as u64..start as u64 + 20_003));
    }
    assert_file(&path, &expected, "with holes");
    drop(handles);
}

#[test]
fn the_highest_rank_and_its_last_piece_are_seen() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("overlaps");
    write_file(&path, 10);
    let file = open(&engine, &path, Open::write());
    let piece = |offset: u64, byte: u8, len: usize| (offset, Bytes::from(vec![byte; len]));
    let mut handles = Collective::start(&file, 3, Options::new());
    // The participants arrive in each order.
    for first in 0..3 {
        handles.rotate_left(first);
        handles = on_threads(handles, |rank| match rank {
            0 => vec![piece(0, 1, 1_000_000)],
            1 => vec![piece(100, 3, 50), piece(90, 2, 30), piece(5_000, 2, 300_000)],
            _ => vec![piece(200_000, 4, 10_000)],
        });
        let mut expected = vec![1; 1_000_000];
        expected[100..150].fill(3);
        expected[90..120].fill(2);
        expected[5_000..305_000].fill(2);
        expected[200_000..210_000].fill(4);
        assert_file(&path, &expected, "overlaps");
    }
}

#[test]
fn memory_is_bounded_whatever_is_given() {
    let dir = dir();
    let engine = Engine::start(config().arena_bytes(4 << 20).arena_bytes_max(4 << 20)).unwrap();
    let path = dir.path().join("bounded");
    let file = open(&engine, &path, Open::create());
    let handles = Collective::start(&file, 4, Options::new().memory_bytes_max(1 << 20));
    let over = std::sync::atomic::AtomicBool::new(false);
    let watched = std::thread::scope(|scope| {
        let (over, engine) = (&over, &engine);
        let watcher = scope.spawn(move || {
            let mut most = 0;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                most = most.max(engine.memory().held_bytes);
            }
            most
        });
        drop(on_threads(handles, |rank| strided(rank, 4, 2_000, 12_345, 0)));
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        watcher.join().unwrap()
    });
    assert!(watched <= 1 << 20, "{watched} bytes of the arena were held");
    assert_file(&path, &bytes_of(0..2_000 * 12_345), "bounded");
}

#[test]
fn tasks_of_a_runtime_and_of_shards_take_part() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("mixed");
    let file = open(&engine, &path, Open::create());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let mut handles = Collective::start(&file, 6, Options::new()).into_iter();
    let mut next = || {
        let mut handle = handles.next().unwrap();
        async move {
            for round in 0..5 {
                let pieces = strided(handle.rank() as u64, 6, 60, 3_000, round * 180_000);
                handle.write(pieces, Durability::None).await.unwrap();
            }
            handle
        }
    };
    let on_tokio = [runtime.spawn(next()), runtime.spawn(next())];
    let on_shards = [next(), next()].map(|work| engine.spawn_on_shard(0, Class::DEFAULT, move || work));
    std::thread::scope(|scope| {
        let threads = [next(), next()].map(|work| scope.spawn(|| engine.block_on(work).unwrap()));
        runtime.block_on(async {
            for task in on_tokio {
                drop(task.await.unwrap());
            }
            for task in on_shards {
                drop(task.await.unwrap());
            }
        });
        for thread in threads {
            drop(thread.join().unwrap());
        }
    });
    assert_file(&path, &bytes_of(0..900_000), "mixed");
}

#[test]
fn an_error_is_told_to_all() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("read-only");
    write_file(&path, 100_000);
    let file = open(&engine, &path, Open::read());
    let threads: Vec<_> = Collective::start(&file, 4, Options::new())
        .into_iter()
        .map(|mut handle| {
            std::thread::spawn(move || {
                let error =
                    handle.write(strided(handle.rank() as u64, 4, 8, 4096, 0), Durability::None).wait();
                (handle, error.unwrap_err())
            })
        })
        .collect();
    let ended: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(ended.iter().all(|(_, error)| error.raw_os_error() == Some(libc::EBADF)));
    let own = ended.iter().filter(|(_, error)| !error.to_string().contains("had failed before"));
    assert_eq!(own.count(), 1);
    assert_file(&path, &bytes_of(0..100_000), "nothing was written");
}

#[test]
fn one_who_is_gone_and_an_engine_that_closes_are_told() {
    let (engine, dir) = (engine(), dir());
    let file = open(&engine, &dir.path().join("gone"), Open::create());
    let mut handles = Collective::start(&file, 3, Options::new());
    let (last, mut first) = (handles.pop().unwrap(), handles.remove(0));
    let waiting = std::thread::spawn(move || first.write(Vec::new(), Durability::None).wait());
    drop(last);
    let error = waiting.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(error.to_string().contains("participant 2 of 3 is gone"), "{error}");
    drop(handles);
    file.close().wait().unwrap();

    let file = open(&engine, &dir.path().join("closed"), Open::create());
    let mut handle = Collective::start(&file, 2, Options::new()).remove(0);
    engine.close().wait().unwrap();
    let error = handle.write(Vec::new(), Durability::None).wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::EngineClosed | ErrorKind::Cancelled), "{error}");
}

#[test]
fn arguments_that_cannot_be_are_refused_and_end_nothing() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("refused");
    let file = open(&engine, &path, Open::create());
    let mut alone = Collective::start(&file, 0, Options::new());
    let handle = &mut alone[0];
    assert_eq!((handle.rank(), handle.participants()), (0, 1));
    let far = vec![(u64::MAX, Bytes::from_static(b"x"))];
    assert_eq!(handle.write(far, Durability::None).wait().unwrap_err().kind(), ErrorKind::InvalidInput);
    handle.write(vec![(3, Bytes::new())], Durability::None).wait().unwrap();
    assert_eq!(file.len().wait().unwrap(), 0);
    handle.write(vec![(3, Bytes::from_static(b"x"))], Durability::Data).wait().unwrap();
    assert_file(&path, b"\0\0\0x", "one byte");
    assert!(format!("{handle:?}").contains("rank: 0"));
    let waits = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        alone[0].write(Vec::new(), Durability::None).wait()
    });
    assert_eq!(waits.wait().unwrap().unwrap_err().kind(), ErrorKind::WaitOnShard);
}
