//! Threads in `.wait()` that write their groups themselves, concurrently with the log's thread.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use forebay::{Config, Engine};
use forebay_wal::{ErrorKind, Lsn, Wal};

use crate::common::{append, dir, engine, expected, open, options, quiet, record, records_wait};

#[test]
fn a_thread_that_is_alone_writes_its_groups_itself() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = Wal::open(&engine, dir.path(), quiet()).wait().unwrap();
    // Some arrive while the log's thread is still about to sleep.
    let mut last = 0;
    while wal.stats().groups_in_wait < 200 {
        last += 1;
        append(&wal, last..=last);
    }
    let stats = wal.stats();
    assert_eq!(stats.records, last);
    // The change of a segment is a part of the write.
    assert!(stats.segments_made + stats.segments_recycled > 3, "{stats:?}");
    // A long record is allocated separately.
    let (long, mut count) = (vec![7; 20 << 10], 0);
    while wal.stats().groups_in_wait == stats.groups_in_wait {
        assert_eq!(wal.append(&long).wait().unwrap(), Lsn(last + 1 + count));
        count += 1;
    }
    wal.close().wait().unwrap();
    let (wal, _) = open(&engine, &dir);
    let found = records_wait(&wal, 1).unwrap();
    assert_eq!(found[..last as usize], expected(1..=last));
    assert!(found[last as usize..].iter().all(|(_, record)| *record == long));
    assert_eq!(found.len() as u64, last + count);
}

#[test]
fn tasks_write_nothing_themselves() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = Wal::open(&engine, dir.path(), quiet()).wait().unwrap();
    // `block_on` is for futures of any kind, as a runtime is.
    engine
        .block_on(async {
            for number in 1..=50 {
                assert_eq!(wal.append(&record(number)).await.unwrap(), Lsn(number));
            }
        })
        .unwrap();
    assert_eq!(wal.stats().groups_in_wait, 0);
    // Nor does a log on its shard have threads that write for it.
    drop(wal);
    let dir = crate::common::dir();
    let (wal, _) = Wal::open(&engine, dir.path(), quiet().own_thread(false)).wait().unwrap();
    append(&wal, 1..=20);
    assert_eq!(wal.stats().groups_in_wait, 0);
}

#[test]
fn a_mark_follows_a_group_that_a_thread_wrote_itself() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) =
        Wal::open(&engine, dir.path(), options().mark_after(Duration::from_millis(1))).wait().unwrap();
    let mut number = 0;
    let mut marks = 0;
    for _ in 0..20 {
        let before = wal.stats().groups_in_wait;
        while wal.stats().groups_in_wait == before {
            number += 1;
            append(&wal, number..=number);
        }
        // The log is quiet from now on.
        while wal.stats().control_groups == marks {
            thread::yield_now();
        }
        marks = wal.stats().control_groups;
    }
}

/// A wake-up for the future around a write was consumed by the write.
#[test]
fn a_future_beside_a_write_is_polled_again() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = Wal::open(&engine, dir.path(), quiet()).wait().unwrap();
    append(&wal, 1..=10);
    for number in 11..=60 {
        let (send, receive) = std::sync::mpsc::channel::<std::task::Waker>();
        let is_set = AtomicBool::new(false);
        thread::scope(|scope| {
            let is_set = &is_set;
            scope.spawn(move || {
                let waker = receive.recv().unwrap();
                is_set.store(true, Ordering::Release);
                waker.wake();
            });
            let record = record(number);
            let both = async {
                let mut appended = pin!(wal.append(&record));
                let (mut is_sent, mut lsn) = (false, None);
                poll_fn(|context| {
                    if !is_sent {
                        send.send(context.waker().clone()).unwrap();
                        is_sent = true;
                    }
                    if lsn.is_none()
                        && let Poll::Ready(done) = appended.as_mut().poll(context)
                    {
                        lsn = Some(done.unwrap());
                    }
                    match lsn {
                        Some(lsn) if is_set.load(Ordering::Acquire) => Poll::Ready(lsn),
                        _ => Poll::Pending,
                    }
                })
                .await
            };
            assert_eq!(engine.block_on_in_turn(both).unwrap(), Lsn(number));
        });
    }
}

#[test]
fn threads_and_tasks_append_to_one_log() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = Wal::open(&engine, dir.path(), options()).wait().unwrap();
    let (lone, together) = (AtomicU64::new(0), 6);
    thread::scope(|scope| {
        for thread in 0..together {
            let (wal, engine, lone) = (&wal, &engine, &lone);
            scope.spawn(move || {
                for count in 0..100u64 {
                    let number = thread * 1000 + count;
                    let lsn = match (thread, count % 4) {
                        (0, _) => engine.block_on(wal.append(&record(number))).unwrap().unwrap(),
                        (1, 0) => wal.append(&record(number)).queued().wait().unwrap().wait().unwrap(),
                        (2, 0) => {
                            let append = wal.append(&record(number)).queued().wait().unwrap();
                            let lsn = append.lsn();
                            wal.sync().wait().unwrap();
                            lsn
                        }
                        _ => wal.append(&record(number)).wait().unwrap(),
                    };
                    assert!(wal.durable_lsn() >= lsn);
                }
                lone.fetch_add(1, Ordering::Relaxed);
                // The last thread is alone.
                while thread == 5 && lone.load(Ordering::Relaxed) < together {
                    wal.append(b"alone").wait().unwrap();
                }
                if thread == 5 {
                    let before = wal.stats().groups_in_wait;
                    while wal.stats().groups_in_wait == before {
                        wal.append(b"alone").wait().unwrap();
                    }
                }
            });
        }
    });
    let last = wal.durable_lsn();
    wal.close().wait().unwrap();
    let (wal, recovery) = open(&engine, &dir);
    assert_eq!((recovery.last, recovery.durable_lsn), (last, last));
    let mut found: Vec<_> = records_wait(&wal, 1).unwrap().into_iter().map(|(_, record)| record).collect();
    found.retain(|record| record != b"alone");
    let mut wanted: Vec<_> = (0..6000).filter(|number| number % 1000 < 100).map(record).collect();
    found.sort_unstable();
    wanted.sort_unstable();
    assert!(found == wanted, "{} of {}", found.len(), wanted.len());
}

/// An acknowledged record is readable when the log is reopened immediately: the close releases its locks.
#[test]
fn a_log_is_closed_beside_a_thread_that_writes() {
    for round in 0..20 {
        let (engine, dir) = (engine(), dir());
        let (wal, _) = open(&engine, &dir);
        let acknowledged = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1.. {
                    match wal.append(&record(number)).wait() {
                        Ok(lsn) => acknowledged.store(lsn.0, Ordering::Release),
                        Err(error) => return assert_eq!(error.kind(), ErrorKind::Closed, "{error}"),
                    }
                }
            });
            while acknowledged.load(Ordering::Acquire) < 5 + round {
                thread::yield_now();
            }
            if round % 2 == 0 {
                wal.close().wait().unwrap();
                let (again, recovery) = open(&engine, &dir);
                assert!(recovery.last.0 >= acknowledged.load(Ordering::Acquire));
                again.close().wait().unwrap();
            } else {
                engine.clone().close().wait().unwrap();
                let engine = Engine::start(Config::new()).unwrap();
                let (again, recovery) = open(&engine, &dir);
                assert!(recovery.last.0 >= acknowledged.load(Ordering::Acquire));
                again.close().wait().unwrap();
            }
        });
        let last = acknowledged.load(Ordering::Acquire);
        let engine = Engine::start(Config::new()).unwrap();
        let (wal, _) = open(&engine, &dir);
        assert_eq!(records_wait(&wal, 1).unwrap()[..last as usize], expected(1..=last));
    }
}

/// A thread that fails to write poisons the log for all.
#[test]
fn a_failed_write_of_a_thread_poisons_the_log() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = Wal::open(&engine, dir.path(), quiet()).wait().unwrap();
    // On a busy machine the log's thread may write each group that arrives before it sleeps: ten of ten once.
    let mut last = 0;
    while wal.stats().groups_in_wait == 0 {
        last += 1;
        append(&wal, last..=last);
    }
    // The directory is removed, so the segment after this one cannot be made. The next segment or the reserve may be in
    // preparation.
    while dir.path().exists() {
        let _ = std::fs::remove_dir_all(dir.path());
    }
    let error = (last + 1..).find_map(|number| wal.append(&record(number)).wait().err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
    assert_eq!(engine.block_on(wal.append(b"late")).unwrap().unwrap_err().kind(), ErrorKind::Poisoned);
    wal.close().wait().unwrap_err();
}
