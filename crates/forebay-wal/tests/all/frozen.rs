//! Futures that are kept and no longer polled, as a `select!` in a loop keeps them, do not delay others.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay::Engine;
use forebay_sim::{self as sim, Profile, World};
use forebay_wal::{Append, Lsn, Options, Wal};

const LIMIT: usize = 1000;

async fn open(engine: &Engine) -> Wal {
    engine.create_dir_all("/log").await.unwrap();
    let options = Options::new().log_id(7).segment_bytes(1 << 20).pending_bytes_max(LIMIT);
    Wal::open(engine, "/log", options).await.unwrap().0
}

fn world() -> World {
    World::new(1).disk(Profile::nand())
}

/// Fills the queue, so that another record of 400 bytes does not fit.
fn fill(wal: &Wal) {
    for _ in 0..2 {
        drop(wal.try_append(&[1; 400]).unwrap().expect("room"));
    }
}

/// Polls once, and never again unless the caller does.
fn freeze(append: &mut Append<'_>) {
    let polled = Pin::new(append).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Pending), "{polled:?}");
}

/// Regression: an append that had waited for room stayed at the head of the line after its `select!` had
/// continued without it. Nothing was pending any more, and no later append of any task ever got its turn.
#[test]
fn an_append_that_is_not_polled_stops_no_other() {
    world()
        .run(async |engine| {
            let wal = open(&engine).await;
            fill(&wal);
            let record = [2; 400];
            let mut frozen: Vec<_> = (0..3).map(|_| wal.append(&record)).collect();
            frozen.iter_mut().for_each(freeze);
            wal.sync().await.unwrap();
            for number in 3..=40 {
                assert_eq!(wal.append(&[3; 300]).await.unwrap(), Lsn(number));
            }
            let appended = wal.try_append(&[4; 300]).unwrap().expect("nothing is pending");
            assert_eq!(appended.await.unwrap(), Lsn(41));
            wal.room(300).await.unwrap();
            // Polled again, they are ordinary appends.
            for (append, number) in frozen.into_iter().zip(42..) {
                assert_eq!(append.await.unwrap(), Lsn(number));
            }
        })
        .unwrap();
}

/// The same with later live appends that wait behind the frozen appends: they are woken, too.
#[test]
fn appends_behind_a_frozen_one_come_to_their_turn() {
    world()
        .run(async |engine| {
            let wal = open(&engine).await;
            fill(&wal);
            let (long, record) = ([2; 900], [2; 400]);
            let mut frozen = [wal.append(&long), wal.append(&record), wal.append(&long)];
            let tasks: Vec<_> = frozen
                .iter_mut()
                .map(|append| {
                    freeze(append);
                    let wal = wal.clone();
                    sim::spawn(async move { wal.append(&[3; 400]).await })
                })
                .collect();
            // Some of them freeze only after they waited in vain.
            for _ in 0..3 {
                fill_up(&wal).await;
                frozen.iter_mut().for_each(|append| {
                    let _ = Pin::new(append).poll(&mut Context::from_waker(Waker::noop()));
                });
            }
            for task in tasks {
                task.await.unwrap().unwrap();
            }
            assert!(wal.append(&[4; 900]).await.is_ok());
        })
        .unwrap();
}

async fn fill_up(wal: &Wal) {
    while wal.try_append(&[1; 200]).unwrap().is_none() {
        wal.room(200).await.unwrap();
    }
}

/// A long append that is polled gets its turn among short appends that never leave it enough space by themselves.
#[test]
fn a_long_append_does_not_starve() {
    world()
        .run(async |engine| {
            let wal = open(&engine).await;
            fill(&wal);
            let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
            let tasks: Vec<_> = (0..8)
                .map(|task| {
                    let (wal, stop) = (wal.clone(), stop.clone());
                    sim::spawn(async move {
                        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                            match task % 2 {
                                0 => drop(wal.append(&[3; 100]).await.unwrap()),
                                _ => {
                                    while wal.try_append(&[3; 100]).unwrap().is_none() {
                                        wal.room(100).await.unwrap();
                                    }
                                }
                            }
                        }
                    })
                })
                .collect();
            let mut waited = 0;
            for _ in 0..20 {
                let before = wal.next_lsn();
                let lsn = wal.append(&[5; 980]).await.unwrap();
                waited = waited.max(lsn.0 - before.0);
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            for task in tasks {
                task.await.unwrap();
            }
            assert!(waited < 200, "{waited} records came first");
        })
        .unwrap();
}

/// Other futures that are kept and not polled do not block a task: a wait for room, for durability, a reader's next record.
#[test]
fn other_futures_that_are_not_polled_stop_nobody() {
    world()
        .run(async |engine| {
            let wal = open(&engine).await;
            let mut context = Context::from_waker(Waker::noop());
            fill(&wal);
            let mut room = wal.room(400);
            assert!(Pin::new(&mut room).poll(&mut context).is_pending());
            let mut sync = wal.sync();
            assert!(Pin::new(&mut sync).poll(&mut context).is_pending());
            let mut reader = wal.read_from(Lsn(1));
            let mut next = Box::pin(reader.next());
            wal.sync().await.unwrap();
            let _ = next.as_mut().poll(&mut context);
            let mut cut = wal.truncate_before(Lsn(2));
            let _ = Pin::new(&mut cut).poll(&mut context);
            for number in 3..=40 {
                assert_eq!(wal.append(&[3; 300]).await.unwrap(), Lsn(number));
            }
            wal.truncate_from(Lsn(31)).await.unwrap();
            let _ = sim::sleep(Duration::from_millis(50)).await;
            wal.close().await.unwrap();
            drop((room, sync, next, cut));
        })
        .unwrap();
}
