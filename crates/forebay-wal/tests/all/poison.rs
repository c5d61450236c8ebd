//! Failing writes and flushes, and full disks, in simulated worlds: every call fails with the first failure,
//! nothing hangs, and a log that is opened again has every acknowledged record.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{expected, options, record, records};
use forebay::{Engine, Open};
use forebay_sim::{self as sim, Fault, Profile, Rule, World};
use forebay_wal::{Error, ErrorKind, Lsn, Options, Wal};

fn small() -> Options {
    options().log_id(7)
}

async fn open(engine: &Engine) -> (Wal, forebay_wal::Recovery) {
    engine.create_dir_all("/log").await.unwrap();
    Wal::open(engine, "/log", small()).await.unwrap()
}

/// Runs eight tasks that append until they fail; returns the newest acknowledged number and every task's
/// failure.
async fn append_until_failure(wal: &Wal) -> (u64, Vec<Error>) {
    let acknowledged = Rc::new(Cell::new(wal.durable_lsn().0));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (wal, acknowledged) = (wal.clone(), acknowledged.clone());
            sim::spawn_local(async move {
                loop {
                    match wal.append(&[9; 100]).await {
                        Ok(lsn) => acknowledged.set(acknowledged.get().max(lsn.0)),
                        Err(error) => return error,
                    }
                }
            })
        })
        .collect();
    let mut failures = Vec::new();
    for task in tasks {
        failures.push(task.await.unwrap());
    }
    (acknowledged.get(), failures)
}

#[test]
fn a_failed_flush_or_write_poisons_and_opening_again_recovers() {
    for (seed, fault) in
        [(1, Fault::FlushError), (2, Fault::WriteError), (3, Fault::FlushError), (4, Fault::WriteError)]
    {
        let mut world = World::new(seed).disk(Profile::nand());
        world
            .run(async |engine| {
                let (wal, _) = open(&engine).await;
                sim::inject(Rule::new(fault).on("/log").nth(20).times(1));
                let (acknowledged, failures) = append_until_failure(&wal).await;
                assert!(acknowledged > 0);
                for error in failures {
                    assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
                    assert_eq!(error.raw_os_error(), Some(5), "{error}");
                }
                // Every later call fails in the same way.
                let later = [
                    wal.append(b"later").await.unwrap_err(),
                    wal.append(b"later").queued().await.unwrap_err(),
                    wal.append(&[b"later".as_slice()]).await.unwrap_err(),
                    wal.sync().await.unwrap_err(),
                    wal.truncate_before(Lsn(2)).await.unwrap_err(),
                    wal.truncate_from(Lsn(2)).await.unwrap_err(),
                    wal.reset_to(Lsn(9)).await.unwrap_err(),
                    wal.close().await.unwrap_err(),
                ];
                assert!(later.iter().all(|error| error.kind() == ErrorKind::Poisoned));
                // Durable records can still be read.
                assert_eq!(records(&wal, 1).await.unwrap().len() as u64, acknowledged);

                let (wal, recovery) = open(&engine).await;
                assert!(recovery.last.0 >= acknowledged && recovery.lost.is_empty(), "{recovery:?}");
                let next = recovery.last.0 + 1;
                assert_eq!(wal.append(&record(next)).await.unwrap(), Lsn(next));
                assert_eq!(records(&wal, next).await.unwrap(), expected(next..=next));
                wal.close().await.unwrap();
            })
            .unwrap();
    }
}

#[test]
fn a_full_disk_is_an_error_and_space_that_comes_back_helps() {
    let mut world = World::new(5).disk(Profile::ideal().capacity(1 << 20));
    world
        .run(async |engine| {
            let ballast = engine.open("/ballast", Open::create()).await.unwrap();
            ballast.allocate(0..400 << 10).await.unwrap();
            drop(ballast);
            let (wal, _) = open(&engine).await;
            let (acknowledged, failures) = append_until_failure(&wal).await;
            assert!(acknowledged > 0);
            let is_full = |error: &Error| error.raw_os_error() == Some(28);
            for error in failures {
                assert!(error.kind() == ErrorKind::Poisoned && is_full(&error), "{error}");
            }
            assert!(is_full(&wal.close().await.unwrap_err()));
            drop(wal);
            // A log whose disk is still full opens if it needs no new segment, and otherwise reports why not.
            match Wal::open(&engine, "/log", small()).await {
                Ok((wal, recovery)) => {
                    assert!(recovery.last.0 >= acknowledged);
                    let _ = wal.close().await;
                }
                Err(error) => assert!(error.kind() == ErrorKind::NoSpace && is_full(&error), "{error}"),
            }
            engine.remove_file("/ballast").await.unwrap();
            let (wal, recovery) = open(&engine).await;
            assert!(recovery.last.0 >= acknowledged && recovery.lost.is_empty(), "{recovery:?}");
            let last = recovery.last.0;
            for number in last + 1..=last + 1_000 {
                wal.append(&[9; 100]).queued().await.unwrap();
                assert_eq!(wal.next_lsn(), Lsn(number + 1));
            }
            wal.sync().await.unwrap();
            let found = records(&wal, 1).await.unwrap();
            assert_eq!(found.len() as u64, last + 1_000);
            assert!(found.iter().all(|(_, record)| record[..] == [9; 100]));
        })
        .unwrap();
}

#[test]
fn space_that_comes_back_before_the_segment_is_needed_is_no_error() {
    let mut world = World::new(6).disk(Profile::ideal());
    world
        .run(async |engine| {
            let (wal, _) = open(&engine).await;
            // Making the second segment fails once, in the background.
            sim::inject(Rule::new(Fault::NoSpace).on("/log/0000000000000002.wal").times(1));
            for number in 1..=600 {
                wal.append(&record(number)).queued().await.unwrap();
            }
            wal.sync().await.unwrap();
            assert_eq!(records(&wal, 1).await.unwrap(), expected(1..=600));
            assert!(wal.stats().segments_made > 1);
            wal.close().await.unwrap();
            let (_, recovery) = open(&engine).await;
            assert_eq!(recovery.last, Lsn(600));
        })
        .unwrap();
}

#[test]
fn an_open_that_fails_leaves_the_log_as_it_was() {
    for nth in 1.. {
        let mut world = World::new(100 + nth).disk(Profile::ideal());
        let failed = world
            .run(async |engine| {
                let (wal, _) = open(&engine).await;
                for number in 1..=700 {
                    wal.append(&record(number)).queued().await.unwrap();
                }
                wal.close().await.unwrap();
                sim::inject(Rule::new(Fault::FlushError).on("/log").nth(nth).times(1));
                let first = Wal::open(&engine, "/log", small()).await;
                sim::clear_faults();
                let failed = match first {
                    Ok((wal, recovery)) => {
                        assert_eq!(recovery.last, Lsn(700));
                        let _ = wal.close().await;
                        false
                    }
                    Err(_) => true,
                };
                let (wal, recovery) = open(&engine).await;
                assert_eq!((recovery.first, recovery.last), (Lsn(1), Lsn(700)), "{recovery:?}");
                assert_eq!(records(&wal, 1).await.unwrap(), expected(1..=700));
                failed
            })
            .unwrap();
        if !failed {
            assert!(nth > 1, "an open syncs something");
            return;
        }
    }
}

#[test]
fn in_a_world_waiting_is_refused_and_runs_are_equal() {
    let digest = |seed| {
        let times = Cell::new((0, 0));
        let mut world = World::new(seed).disk(Profile::nand());
        world
            .run(async |engine| {
                let (wal, _) = open(&engine).await;
                assert_eq!(wal.append(b"wait").wait().unwrap_err().kind(), ErrorKind::WaitInWorld);
                let opening = Wal::open(&engine, "/log", small());
                assert_eq!(opening.wait().unwrap_err().kind(), ErrorKind::WaitInWorld);
                let tasks: Vec<_> = (0..8)
                    .map(|_| {
                        let wal = wal.clone();
                        sim::spawn(async move {
                            for number in 0..20 {
                                wal.append(&record(number)).await.unwrap();
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.unwrap();
                }
                assert_eq!(records(&wal, 1).await.unwrap().len(), 160);
                // Times are the world's.
                let stats = wal.stats();
                assert!(
                    stats.flush_ns.count() == stats.groups && stats.flush_ns.ns_at(0.01) > 1_000,
                    "{stats:?}"
                );
                assert!(stats.queued_ns.count() > 0 && stats.queued_ns.ns_max() > 1_000, "{stats:?}");
                times.set((stats.flush_ns.ns_mean().to_bits(), stats.queued_ns.ns_max()));
            })
            .unwrap();
        (world.history_digest(), times.get())
    };
    assert_eq!(digest(1), digest(1));
    assert_ne!(digest(1), digest(2));
}

#[test]
fn appends_dropped_at_any_await_harm_nobody() {
    for polls in 0..6usize {
        let mut world = World::new(20 + polls as u64).disk(Profile::nand());
        world
            .run(async |engine| {
                engine.create_dir_all("/log").await.unwrap();
                let tight = small().pending_bytes_max(300);
                let (wal, _) = Wal::open(&engine, "/log", tight).await.unwrap();
                let others: Vec<_> = (0..4)
                    .map(|_| {
                        let wal = wal.clone();
                        sim::spawn(async move {
                            for _ in 0..10 {
                                wal.append(&[1; 90]).await.unwrap();
                            }
                        })
                    })
                    .collect();
                for _ in 0..10 {
                    sim::dropped_after(polls, wal.append(&[2; 90])).await;
                }
                for other in others {
                    other.await.unwrap();
                }
                wal.sync().await.unwrap();
                let found = records(&wal, 1).await.unwrap();
                assert_eq!(found.iter().filter(|(_, record)| record[0] == 1).count(), 40);
                assert!(found.len() <= 50);
                wal.close().await.unwrap();
            })
            .unwrap();
    }
}
