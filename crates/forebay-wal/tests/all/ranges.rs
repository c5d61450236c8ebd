//! Reads of ranges, also of records that are only queued, and waits for records.

use std::collections::BTreeSet;
use std::future::Future;
use std::ops::Bound;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::common::{self, dir, engine, open, options, record};
use forebay::{Config, Engine};
use forebay_sim::{self as sim, Fault, Profile, Rule, World};
use forebay_wal::{Batch, ErrorKind, LogOperation, Lsn, Options, Record, Wal};

fn found(records: &[Record]) -> Vec<(u64, Vec<u8>)> {
    records.iter().map(|record| (record.lsn().0, record.to_vec())).collect()
}

/// Returns the number of reads that the engine's files have had.
fn reads(engine: &Engine) -> u64 {
    engine.stats().wait().unwrap().flows.iter().map(|flow| flow.reads).sum()
}

#[test]
fn ranges_and_limits() {
    let (engine, dir) = (engine(), dir());
    let options = options().recent_bytes(0);
    for recent_bytes in [0, 1 << 20] {
        let options = options.clone().recent_bytes(recent_bytes);
        let dir = dir.path().join(recent_bytes.to_string());
        let (wal, _) = Wal::open(&engine, dir, options).wait().unwrap();
        assert!(wal.read(.., 100).wait().unwrap().is_empty());
        for number in 1..=400 {
            wal.append(&record(number)).queued().wait().unwrap();
        }
        let all: Vec<_> = (1..=400).map(|number| (number, record(number))).collect();
        for is_durable in [false, true] {
            if is_durable {
                wal.sync().wait().unwrap();
            }
            let read =
                |range: (Bound<Lsn>, Bound<Lsn>), bytes| found(&wal.read(range, bytes).wait().unwrap());
            let (included, excluded) = (|lsn| Bound::Included(Lsn(lsn)), |lsn| Bound::Excluded(Lsn(lsn)));
            assert_eq!(read((Bound::Unbounded, Bound::Unbounded), usize::MAX), all);
            assert_eq!(read((included(7), excluded(9)), usize::MAX), all[6..8]);
            assert_eq!(read((excluded(7), included(9)), usize::MAX), all[7..9]);
            assert_eq!(read((included(7), excluded(7)), usize::MAX), []);
            assert_eq!(read((included(400), Bound::Unbounded), 0), all[399..]);
            assert_eq!(read((included(401), Bound::Unbounded), 0), []);
            assert_eq!(read((included(4000), included(u64::MAX)), 0), []);
            // The first record in any case, and no more than fits.
            let two = record(20).len() + record(21).len();
            assert_eq!(read((included(20), Bound::Unbounded), 0), all[19..20]);
            assert_eq!(read((included(20), Bound::Unbounded), two - 1), all[19..20]);
            assert_eq!(read((included(20), Bound::Unbounded), two), all[19..21]);
        }
        wal.truncate_before(Lsn(300)).wait().unwrap();
        let removed = wal.read(Lsn(299).., 1).wait().unwrap_err();
        assert!(matches!(removed.kind(), ErrorKind::OutOfRange { first: Lsn(300), .. }), "{removed}");
        assert_eq!(found(&wal.read(.., usize::MAX).wait().unwrap()), all[299..]);
        wal.close().wait().unwrap();
        assert_eq!(found(&wal.read(Lsn(395).., usize::MAX).wait().unwrap()), all[394..]);
    }
}

/// The last records are read from memory, each appended in a separate group.
#[test]
fn the_last_records_are_read_without_io() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = open(&engine, &dir);
    for number in 1..=100 {
        wal.append(&record(number)).wait().unwrap();
    }
    let before = reads(&engine);
    let last = wal.read(Lsn(37).., 1 << 20).wait().unwrap();
    assert_eq!(found(&last), (37..=100).map(|number| (number, record(number))).collect::<Vec<_>>());
    assert_eq!(reads(&engine), before);
    // A log without that memory reads them from its segment.
    let other = common::dir();
    let (wal, _) = Wal::open(&engine, other.path(), options().recent_bytes(0)).wait().unwrap();
    wal.append(b"a record").wait().unwrap();
    let before = reads(&engine);
    assert_eq!(&wal.read(.., 1).wait().unwrap()[0][..], b"a record");
    assert!(reads(&engine) > before);
}

/// Readers of the newest records and concurrent appends: each read is a row without a gap, of the right bytes, and starts where it
/// was asked to, while groups are queued, sealed, written and dropped from memory.
#[test]
fn reads_beside_appends_miss_nothing() {
    for recent_bytes in [0, 40 << 10, 1 << 20] {
        let (engine, dir) = (engine(), dir());
        let options = options().recent_bytes(recent_bytes).group_bytes_max(16 << 10);
        let (wal, _) = Wal::open(&engine, dir.path(), options).wait().unwrap();
        let left = AtomicU64::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for at in 0..1500 {
                        // A record names its own number only by its length, so a batch has its first one's.
                        let batch = Batch::from_iter([[at as u8; 100], [!at as u8; 100]]);
                        let queued = wal.append(batch).queued().wait().unwrap();
                        let first = queued.lsn().0;
                        let read = wal.read(Lsn(first)..Lsn(first + 2), usize::MAX).wait().unwrap();
                        assert_eq!(
                            found(&read),
                            [(first, vec![at as u8; 100]), (first + 1, vec![!at as u8; 100])]
                        );
                        if at % 10 == 0 {
                            queued.wait().unwrap();
                        }
                    }
                    left.fetch_sub(1, Ordering::Relaxed);
                });
            }
            for back in [1, 200] {
                let (wal, left) = (&wal, &left);
                scope.spawn(move || {
                    while left.load(Ordering::Relaxed) > 0 {
                        // Looked at before the read: the first records may be queued while it runs.
                        let next = wal.next_lsn();
                        let from = Lsn(next.0.saturating_sub(back).max(1));
                        let read = wal.read(from.., 10_000).wait().unwrap();
                        assert!(
                            read.iter().map(|record| record.lsn().0).eq(from.0..from.0 + read.len() as u64)
                        );
                        assert!(from >= next || !read.is_empty());
                    }
                });
            }
        });
        assert_eq!(wal.next_lsn(), Lsn(12_001));
    }
}

/// A truncation that is queued hides the records that it removes immediately, and later records replace them.
#[test]
fn queued_truncations_count() {
    let mut world = World::new(3).disk(Profile::nand());
    world
        .run(async |engine| {
            engine.create_dir_all("/log").await.unwrap();
            let (wal, _) = Wal::open(&engine, "/log", options().log_id(7)).await.unwrap();
            let append = async |text: &str| wal.append(text.as_bytes()).queued().await.unwrap();
            let texts = async |from: u64| {
                let read = wal.read(Lsn(from).., usize::MAX).await.unwrap();
                read.iter().map(|record| String::from_utf8(record.to_vec()).unwrap()).collect::<Vec<_>>()
            };
            let poll = |change: &mut LogOperation| {
                let polled = Pin::new(change).poll(&mut Context::from_waker(Waker::noop()));
                assert!(matches!(polled, Poll::Pending), "{polled:?}");
            };
            wal.append(b"a").await.unwrap();
            wal.append(b"b").await.unwrap();
            append("c").await;
            let mut after = wal.truncate_from(Lsn(2));
            poll(&mut after);
            assert_eq!((wal.next_lsn(), wal.durable_lsn()), (Lsn(2), Lsn(2)));
            assert_eq!(texts(1).await, ["a"]);
            append("d").await;
            assert_eq!(texts(1).await, ["a", "d"]);
            let mut from = wal.truncate_from(Lsn(2));
            poll(&mut from);
            append("e").await;
            append("f").await;
            assert_eq!(texts(1).await, ["a", "e", "f"]);
            let mut before = wal.truncate_before(Lsn(2));
            poll(&mut before);
            assert!(wal.read(Lsn(1).., 1).await.is_err());
            assert_eq!(texts(2).await, ["e", "f"]);
            let mut reset = wal.reset_to(Lsn(50));
            poll(&mut reset);
            assert_eq!((wal.next_lsn(), texts(50).await.len()), (Lsn(50), 0));
            append("g").await;
            assert_eq!((texts(50).await, wal.next_lsn()), (vec!["g".to_owned()], Lsn(51)));
            wal.sync().await.unwrap();
            assert_eq!(texts(50).await, ["g"]);
        })
        .unwrap();
}

/// Returns the first number of the log, and the next one.
fn range(wal: &Wal) -> std::ops::Range<u64> {
    wal.first_lsn().0..wal.next_lsn().0
}

#[test]
fn a_log_begins_at_0() {
    let (engine, dir) = (engine(), dir());
    let options = options().first_lsn(Lsn(0));
    let (wal, recovery) = Wal::open(&engine, dir.path(), options.clone()).wait().unwrap();
    assert_eq!((recovery.first, recovery.last, range(&wal)), (Lsn(0), Lsn(0), 0..0));
    let mut reader = wal.read_from(Lsn(0));
    assert!(reader.next().wait().is_none());
    wal.close().wait().unwrap();
    let (wal, recovery) = Wal::open(&engine, dir.path(), options.clone()).wait().unwrap();
    assert_eq!((recovery.first, recovery.last, range(&wal)), (Lsn(0), Lsn(0), 0..0));
    assert_eq!(wal.append(b"zero").wait().unwrap(), Lsn(0));
    assert_eq!((range(&wal), wal.durable_lsn()), (0..1, Lsn(0)));
    let mut reader = wal.read_from(Lsn(0));
    assert_eq!(&reader.next().wait().unwrap().unwrap()[..], b"zero");
    assert!(reader.next().wait().is_none());
    assert_eq!(wal.append(b"one").wait().unwrap(), Lsn(1));
    wal.truncate_from(Lsn(1)).wait().unwrap();
    assert_eq!(range(&wal), 0..1);
    wal.truncate_from(Lsn(0)).wait().unwrap();
    assert_eq!(range(&wal), 0..0);
    wal.append(&[b"a".as_slice(), b"b", b"c"]).wait().unwrap();
    wal.truncate_before(Lsn(1)).wait().unwrap();
    let refused = wal.truncate_from(Lsn(0)).wait().unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::OutOfRange { .. }), "{refused}");
    wal.truncate_from(Lsn(1)).wait().unwrap();
    assert_eq!(range(&wal), 1..1);
    wal.reset_to(Lsn(0)).wait().unwrap();
    assert_eq!(wal.append(b"again").wait().unwrap(), Lsn(0));
    wal.close().wait().unwrap();
    // An existing log keeps its numbers, with any options.
    let (wal, recovery) = Wal::open(&engine, dir.path(), common::options()).wait().unwrap();
    assert_eq!((recovery.first, recovery.last, range(&wal)), (Lsn(0), Lsn(0), 0..1));
    assert_eq!(&wal.read(.., 9).wait().unwrap()[0][..], b"again");
}

#[test]
fn many_wait_and_each_is_woken() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = open(&engine, &dir);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let waits: Vec<_> = (0..3000u64)
        .map(|at| {
            let lsn = Lsn(1 + at % 300);
            let (queued, durable) = (wal.wait_queued(lsn), wal.wait_durable(lsn));
            let wal = wal.clone();
            runtime.spawn(async move {
                queued.await.unwrap();
                assert!(wal.next_lsn() > lsn);
                durable.await.unwrap();
                assert!(wal.durable_lsn() >= lsn);
            })
        })
        .collect();
    // Some that are polled once and never again: they cost the others nothing.
    let mut kept: Vec<LogOperation> = (1..300).map(|lsn| wal.wait_durable(Lsn(lsn))).collect();
    for wait in &mut kept {
        let polled = Pin::new(wait).poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    }
    drop(kept.split_off(150));
    let mut reader = wal.read_from(Lsn(1));
    let follower = runtime.spawn(async move {
        let mut seen = BTreeSet::new();
        while seen.len() < 300 {
            seen.insert(reader.follow().await.unwrap().lsn().0);
        }
        (seen.first().copied(), seen.last().copied(), reader.follow().await)
    });
    for number in 1..=300 {
        wal.append(&record(number)).queued().wait().unwrap();
    }
    for wait in waits {
        runtime.block_on(wait).unwrap();
    }
    kept.into_iter().for_each(|wait| wait.wait().unwrap());
    wal.close().wait().unwrap();
    let (first, last, ended) = runtime.block_on(follower).unwrap();
    assert_eq!((first, last), (Some(1), Some(300)));
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
}

/// A wait ends with an error when its record can no longer be appended, and not before.
#[test]
fn waits_end_with_the_log() {
    let mut world = World::new(5).disk(Profile::nand());
    world
        .run(async |engine| {
            engine.create_dir_all("/log").await.unwrap();
            let (wal, _) = Wal::open(&engine, "/log", options().log_id(7)).await.unwrap();
            let spawn =
                |wait: LogOperation| sim::spawn(async move { wait.await.map_err(|error| error.kind()) });
            // Passed over by a reset.
            let passed = [spawn(wal.wait_queued(Lsn(10))), spawn(wal.wait_durable(Lsn(10)))];
            sim::sleep(Duration::from_millis(1)).await.unwrap();
            wal.reset_to(Lsn(20)).await.unwrap();
            for wait in passed {
                let ended = wait.await.unwrap();
                assert!(matches!(ended, Err(ErrorKind::OutOfRange { first: Lsn(20), .. })), "{ended:?}");
            }
            // Queued before the log closes, and durable after that.
            let (queued, durable) = (spawn(wal.wait_queued(Lsn(20))), spawn(wal.wait_durable(Lsn(20))));
            let none = spawn(wal.wait_durable(Lsn(21)));
            sim::sleep(Duration::from_millis(1)).await.unwrap();
            wal.append(b"a record").queued().await.unwrap();
            let closing = wal.close();
            assert_eq!(queued.await.unwrap(), Ok(()));
            assert_eq!(durable.await.unwrap(), Ok(()));
            assert_eq!(none.await.unwrap(), Err(ErrorKind::Closed));
            closing.await.unwrap();
            assert_eq!(wal.wait_durable(Lsn(20)).await.map_err(|error| error.kind()), Ok(()));
            drop(wal);

            let (wal, _) = Wal::open(&engine, "/log", options().log_id(7)).await.unwrap();
            let waits = [spawn(wal.wait_queued(Lsn(22))), spawn(wal.wait_durable(Lsn(21)))];
            sim::inject(Rule::new(Fault::WriteError).on("/log"));
            let failed = wal.append(b"not written").await.unwrap_err();
            for wait in waits {
                assert_eq!(wait.await.unwrap(), Err(ErrorKind::Poisoned));
            }
            // The record was queued and never written; the durable one is still there.
            let lost = wal.read(Lsn(21).., 1).await.unwrap_err();
            assert_eq!((lost.kind(), failed.kind()), (ErrorKind::Poisoned, ErrorKind::Poisoned));
            assert_eq!(wal.read(Lsn(20)..Lsn(21), 9).await.unwrap().len(), 1);
        })
        .unwrap();
}

/// A wait does not keep the log open.
#[test]
fn the_last_handle_closes_the_log_beside_waits() {
    let (engine, dir) = (Engine::start(Config::new()).unwrap(), dir());
    let (wal, _) = Wal::open(&engine, dir.path(), Options::new().segment_bytes(1 << 20)).wait().unwrap();
    let wait = wal.wait_queued(Lsn(1));
    let mut follower = wal.read_from(Lsn(1));
    drop(wal);
    assert_eq!(wait.wait().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(follower.follow().wait().unwrap_err().kind(), ErrorKind::Closed);
}

/// Batches that wait for room get it in turn, and their futures can be spawned.
#[test]
fn batches_wait_for_room() {
    let (engine, dir) = (engine(), dir());
    let options = options().segment_bytes(1 << 20).pending_bytes_max(2_000);
    let (wal, _) = Wal::open(&engine, dir.path(), options).wait().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let tasks: Vec<_> = (0..200u8)
        .map(|at| {
            let (wal, batch) = (wal.clone(), Batch::from_iter([[at; 300], [at; 300]]));
            runtime.spawn(async move {
                let append = wal.append(batch).queued().await.unwrap();
                let first = append.lsn();
                assert_eq!(append.await.unwrap(), first);
                first
            })
        })
        .collect();
    // One that is polled once and kept, as a `select!` does, and one that is dropped.
    let mut kept = [wal.append(&[1; 300]).queued(), wal.append(&[2; 300]).queued()];
    let queued: Vec<_> = kept
        .iter_mut()
        .map(|kept| Pin::new(kept).poll(&mut Context::from_waker(Waker::noop())).is_ready())
        .collect();
    let [_, dropped] = kept;
    drop(dropped);
    let mut lsns: Vec<_> = tasks.into_iter().map(|task| runtime.block_on(task).unwrap()).collect();
    lsns.sort();
    assert!(lsns.windows(2).all(|pair| pair[0].0 + 2 <= pair[1].0), "each batch has two numbers");
    let extra = queued.iter().filter(|queued| **queued).count() as u64;
    assert_eq!(wal.next_lsn(), Lsn(401 + extra));
    let long = wal.append(&vec![0; 2 << 20]).queued().wait().unwrap_err();
    assert!(matches!(long.kind(), ErrorKind::TooLarge { .. }), "{long}");
}
