//! Logs on full disks, in simulated worlds: what a program hears while the log still works, and that a log can be opened
//! and truncated although there is no space left.

mod common;

use std::time::Duration;

use common::{expected, options, record, records};
use forebay::sim::{self, Profile, World};
use forebay::{Engine, File, Open};
use forebay_wal::{ErrorKind, Lsn, Options, Wal};

fn small() -> Options {
    options().log_id(7)
}

async fn open(engine: &Engine) -> (Wal, forebay_wal::Recovery) {
    engine.create_dir_all("/log").await.unwrap();
    Wal::open(engine, "/log", small()).await.unwrap()
}

/// Takes all space that the disk has left.
async fn fill(engine: &Engine) -> File {
    let filler = engine.open("/filler", Open::create()).await.unwrap();
    let mut at = filler.len().await.unwrap();
    for piece in [64 << 10, 4096] {
        while filler.allocate(at..at + piece).await.is_ok() {
            at += piece;
        }
    }
    filler
}

/// Appends records one after the other until there is no space for the next segment.
async fn append_until_short(wal: &Wal) {
    for _ in 0..100_000 {
        if wal.no_space().is_some() {
            return;
        }
        wal.append(&record(wal.next_lsn().0)).await.unwrap();
    }
    panic!("there is no end of the space");
}

/// Waits until the log found space, which it looks for once a second.
async fn until_space(wal: &Wal) {
    for _ in 0..40 {
        if wal.no_space().is_none() {
            return;
        }
        sim::sleep(Duration::from_millis(100)).await.unwrap();
    }
    panic!("{:?}", wal.no_space());
}

/// A log on a full disk said nothing until an append that needed the next segment poisoned it, and the making of that segment,
/// once it had failed in the background, was not tried again before. Now a program hears of it while the log works, and
/// truncates.
#[test]
fn a_program_hears_that_there_is_no_space_while_the_log_works() {
    let mut world = World::new(1).disk(Profile::ideal().capacity(1 << 20));
    world
        .run(async |engine| {
            let (wal, _) = open(&engine).await;
            for number in 1..=2_000 {
                wal.append_unsynced(&record(number)).await.unwrap();
            }
            wal.sync().await.unwrap();
            assert!(wal.no_space().is_none());
            let _filler = fill(&engine).await;
            append_until_short(&wal).await;
            let error = wal.no_space().unwrap();
            assert_eq!(*error.kind(), ErrorKind::NoSpace);
            assert_eq!(error.cause().and_then(forebay::Error::raw_os_error), Some(28));
            assert!(error.to_string().contains("truncate the log"), "{error}");

            // Not one append is needed to make use of a truncation.
            let last = wal.durable_lsn();
            wal.truncate_before(last).await.unwrap();
            until_space(&wal).await;
            for number in last.0 + 1..=last.0 + 2_000 {
                if wal.no_space().is_some() {
                    wal.truncate_before(wal.durable_lsn()).await.unwrap();
                    until_space(&wal).await;
                }
                assert_eq!(wal.append(&record(number)).await.unwrap(), Lsn(number));
            }
            let first = wal.first_lsn().0;
            assert_eq!(records(&wal, first).await.unwrap(), expected(first..=last.0 + 2_000));
            wal.close().await.unwrap();
        })
        .unwrap();
}

/// Space that others gave back was not looked for before the segment was needed, so a program that had stopped to append would
/// have waited for ever.
#[test]
fn space_that_others_give_back_is_found_without_an_append() {
    let mut world = World::new(2).disk(Profile::ideal().capacity(1 << 20));
    world
        .run(async |engine| {
            let (wal, _) = open(&engine).await;
            let filler = fill(&engine).await;
            append_until_short(&wal).await;
            sim::sleep(Duration::from_secs(5)).await.unwrap();
            assert!(wal.no_space().is_some());
            drop(filler);
            engine.remove_file("/filler").await.unwrap();
            until_space(&wal).await;
            let next = wal.next_lsn().0;
            for number in next..next + 60 {
                assert_eq!(wal.append(&record(number)).await.unwrap(), Lsn(number));
            }
            wal.close().await.unwrap();
        })
        .unwrap();
}
