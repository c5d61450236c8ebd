//! Logs on full disks, in simulated worlds: the notice that a program gets while the log still works, and that a log can be opened
//! and truncated on a full disk.

use std::time::Duration;

use crate::common::{expected, options, record, records};
use forebay::{Durability, Engine, File, Open};
use forebay_sim::{self as sim, MetadataOrder, Profile, World};
use forebay_wal::{ErrorKind, Lsn, Options, Wal};

fn small() -> Options {
    options().log_id(7)
}

async fn open(engine: &Engine) -> (Wal, forebay_wal::Recovery) {
    engine.create_dir_all("/log").await.unwrap();
    Wal::open(engine, "/log", small()).await.unwrap()
}

/// Fills all space that is left on the disk.
async fn fill(engine: &Engine) -> File {
    let filler = engine.open("/filler", Open::create()).await.unwrap();
    let mut at = filler.len().await.unwrap();
    for piece in [64 << 10, 4096] {
        while filler.allocate(at..at + piece).await.is_ok() {
            at += piece;
        }
    }
    filler.sync(Durability::All).await.unwrap();
    engine.sync_dir("/").await.unwrap();
    filler
}

/// Appends records one after the other until the next segment does not fit.
async fn append_until_short(wal: &Wal) {
    for _ in 0..100_000 {
        if wal.no_space().is_some() {
            return;
        }
        wal.append(&record(wal.next_lsn().0)).await.unwrap();
    }
    panic!("there is no end of the space");
}

/// Waits until the log found space, for which it checks once a second.
async fn until_space(wal: &Wal) {
    for _ in 0..40 {
        if wal.no_space().is_none() {
            return;
        }
        sim::sleep(Duration::from_millis(100)).await.unwrap();
    }
    panic!("{:?}", wal.no_space());
}

/// Regression: a log on a full disk reported nothing until an append that needed the next segment poisoned
/// it. Once making that segment had failed in the background, it was not tried again before that append. Now
/// a program is notified while the log works, and truncates.
#[test]
fn a_program_hears_that_there_is_no_space_while_the_log_works() {
    let mut world = World::new(1).disk(Profile::ideal().capacity(1 << 20));
    world
        .run(async |engine| {
            let (wal, _) = open(&engine).await;
            for number in 1..=2_000 {
                wal.append(&record(number)).queued().await.unwrap();
            }
            wal.sync().await.unwrap();
            assert!(wal.no_space().is_none());
            let _filler = fill(&engine).await;
            append_until_short(&wal).await;
            let error = wal.no_space().unwrap();
            assert_eq!(error.kind(), ErrorKind::NoSpace);
            assert_eq!(error.raw_os_error(), Some(28));
            assert!(error.to_string().contains("truncate the log"), "{error}");

            // No append is needed to make use of a truncation.
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

/// Regression: a log did not check for space freed by others before it needed the segment, so a program that
/// had stopped appending would have waited forever.
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

/// Returns the names in the log's directory.
async fn names(engine: &Engine) -> Vec<String> {
    let entries = engine.read_dir("/log").await.unwrap();
    let mut names: Vec<_> = entries.iter().map(|entry| entry.name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

const RESERVE: &str = "wal.reserve";

/// Runs a first life: other data fills the log's disk when the log has some `early` records. The log
/// continues until it detects the lack of space, and for `late` records after that. Nothing is closed.
/// Returns the last acknowledged record.
fn fill_up(world: &mut World, early: u64, late: u64) -> u64 {
    let ran = world.run(async |engine| {
        let (wal, _) = open(&engine).await;
        for number in 1..=early {
            wal.append(&record(number)).queued().await.unwrap();
        }
        wal.sync().await.unwrap();
        // The reserve is made in the background.
        sim::sleep(Duration::from_millis(500)).await.unwrap();
        let _filler = fill(&engine).await;
        append_until_short(&wal).await;
        for _ in 0..late {
            wal.append(&record(wal.next_lsn().0)).await.unwrap();
        }
        assert!(names(&engine).await.iter().any(|name| name == RESERVE), "{:?}", names(&engine).await);
        let last = wal.durable_lsn().0;
        std::mem::forget(wal);
        last
    });
    let last = ran.unwrap();
    world.power_cut();
    world.reboot();
    last
}

/// Opens the log on the full disk and compares all its contents.
async fn open_full(engine: &Engine, last: u64) -> Wal {
    let (wal, recovery) = open(engine).await;
    assert_eq!(recovery.last, Lsn(last), "{recovery:?}");
    assert!(recovery.lost.is_empty() && recovery.damage.is_empty(), "{recovery:?}");
    let first = recovery.first.0;
    assert_eq!(records(&wal, first).await.unwrap(), expected(first..=last));
    wal
}

/// Removes all records but the last, then appends `count` and truncates whenever space is lacking. Returns the last record.
async fn resume(wal: &Wal, count: u64) -> u64 {
    wal.truncate_before(wal.durable_lsn()).await.unwrap();
    until_space(wal).await;
    for _ in 0..count {
        if wal.no_space().is_some() {
            wal.truncate_before(wal.durable_lsn()).await.unwrap();
            until_space(wal).await;
        }
        wal.append(&record(wal.next_lsn().0)).await.unwrap();
    }
    wal.durable_lsn().0
}

/// Regression: a log that was not closed continues in a fresh segment, which needs space. On a full disk it
/// could not be opened, so nothing could be read or truncated, and the disk stayed full.
#[test]
fn a_log_on_a_full_disk_opens_and_truncates_and_goes_on() {
    for seed in 0..12 {
        let mut world = World::new(seed).disk(Profile::nand().capacity(2 << 20));
        let last = fill_up(&mut world, 500 + seed * 40, seed % 5);
        let ran = world.run(async |engine| {
            let wal = open_full(&engine, last).await;
            assert!(wal.no_space().is_some());
            let last = resume(&wal, 300).await;
            wal.close().await.unwrap();
            last
        });
        let last = ran.unwrap();
        world.power_cut();
        world.reboot();
        world.run(async |engine| drop(open_full(&engine, last).await)).unwrap();
    }
}

/// Regression: the reserve was used up by the first open on the full disk, and missing at the next one. The power may fail at any
/// operation of an open, and of the one after it.
#[test]
fn the_power_may_go_at_any_operation_of_opens_on_a_full_disk() {
    for (seed, late) in [(1, 0), (2, 1), (3, 3)] {
        let order = [MetadataOrder::Journal, MetadataOrder::Posix][(seed % 2) as usize];
        let mut met = 0;
        for n in 1..400 {
            let mut world = World::new(seed).disk(Profile::nand().capacity(1 << 20).metadata_order(order));
            let last = fill_up(&mut world, 400, late);
            world.power_cut_at_operation(n);
            let looked = world.run(async |engine| drop(open_full(&engine, last).await));
            let struck = looked.as_ref().is_err_and(|failure| failure.is_power_cut());
            if !struck {
                looked.unwrap();
            }
            world.power_cut();
            world.reboot();
            // Once more, a little later.
            world.power_cut_at_operation(n + 3);
            if let Err(failure) = world.run(async |engine| drop(open_full(&engine, last).await)) {
                assert!(failure.is_power_cut(), "operation {n} of seed {seed}: {failure}");
            }
            world.power_cut();
            world.reboot();
            let ran = world.run(async |engine| {
                let wal = open_full(&engine, last).await;
                let last = resume(&wal, 200).await;
                wal.close().await.unwrap();
                last
            });
            let last = ran.unwrap_or_else(|failure| panic!("operation {n} of seed {seed}: {failure}"));
            world.run(async |engine| drop(open_full(&engine, last).await)).unwrap();
            if !struck {
                break;
            }
            met = n;
        }
        assert!((10..399).contains(&met), "{met} operations");
    }
}

/// Space that is freed refills the reserve, so the next full disk is as harmless as the first.
#[test]
fn a_used_reserve_is_made_again() {
    let mut world = World::new(5).disk(Profile::nand().capacity(2 << 20));
    let mut last = fill_up(&mut world, 400, 0);
    for _ in 0..3 {
        let ran = world.run(async |engine| {
            let wal = open_full(&engine, last).await;
            engine.remove_file("/filler").await.unwrap();
            until_space(&wal).await;
            for _ in 0..50 {
                wal.append(&record(wal.next_lsn().0)).await.unwrap();
            }
            sim::sleep(Duration::from_millis(500)).await.unwrap();
            assert!(names(&engine).await.iter().any(|name| name == RESERVE));
            let _filler = fill(&engine).await;
            append_until_short(&wal).await;
            let last = wal.durable_lsn().0;
            std::mem::forget(wal);
            last
        });
        last = ran.unwrap();
        world.power_cut();
        world.reboot();
    }
    world.run(async |engine| drop(open_full(&engine, last).await)).unwrap();
}

/// The reserve is as long as a segment, so every record fits. Regression: a log whose last record was longer than its groups did
/// not open on a full disk.
#[test]
fn a_reserve_has_room_for_the_longest_record() {
    let options = || Options::new().log_id(7).segment_bytes(1 << 20).group_bytes_max(4096);
    let mut world = World::new(6).disk(Profile::ideal().capacity(8 << 20));
    let ran = world.run(async |engine| {
        engine.create_dir_all("/log").await.unwrap();
        let (wal, _) = Wal::open(&engine, "/log", options()).await.unwrap();
        for number in 1..=150 {
            wal.append(&record(number)).await.unwrap();
        }
        sim::sleep(Duration::from_millis(500)).await.unwrap();
        let _filler = fill(&engine).await;
        append_until_short(&wal).await;
        let last = wal.append(&vec![7; 600 << 10]).await.unwrap();
        std::mem::forget(wal);
        last
    });
    let last = ran.unwrap();
    world.power_cut();
    world.reboot();
    let ran = world.run(async |engine| {
        let (wal, recovery) = Wal::open(&engine, "/log", options()).await.unwrap();
        assert_eq!((recovery.last, recovery.tail_records), (last, 1));
        assert_eq!(records(&wal, last.0).await.unwrap(), [(last.0, vec![7; 600 << 10])]);
        assert!(!names(&engine).await.iter().any(|name| name == RESERVE));
    });
    ran.unwrap();
}

/// Regression: a log that had not yet noticed the lack of space for its next segment reached the end of the current one, and failed
/// for good. Programs that had asked [`Wal::no_space`] before each append lost their log, too.
#[test]
fn a_log_goes_on_in_its_reserve_at_the_end_of_its_segment() {
    for seed in 0..4 {
        let mut world = World::new(seed).disk(Profile::nand().capacity(1 << 20));
        let ran = world.run(async |engine| {
            let (wal, _) = open(&engine).await;
            for number in 1..=1_000 {
                wal.append(&record(number)).queued().await.unwrap();
            }
            wal.sync().await.unwrap();
            sim::sleep(Duration::from_millis(500)).await.unwrap();
            assert_eq!(wal.reserve_bytes().unwrap(), 64 << 10);
            let filler = fill(&engine).await;
            append_until_short(&wal).await;
            let made = wal.stats().segments_made;
            while wal.stats().segments_made == made {
                wal.append(&record(wal.next_lsn().0)).await.unwrap();
            }
            assert_eq!(wal.reserve_bytes().unwrap_err().kind(), ErrorKind::NoSpace);
            assert!(!names(&engine).await.iter().any(|name| name == RESERVE));
            // Truncations, and records after them, as before.
            let last = resume(&wal, 100).await;
            drop(filler);
            engine.remove_file("/filler").await.unwrap();
            for _ in 0..40 {
                if wal.reserve_bytes().is_ok_and(|bytes| bytes > 0) {
                    break;
                }
                sim::sleep(Duration::from_millis(100)).await.unwrap();
            }
            assert_eq!(wal.reserve_bytes().unwrap(), 64 << 10, "it is made again");
            let first = wal.first_lsn().0;
            assert_eq!(records(&wal, first).await.unwrap(), expected(first..=last));
            wal.close().await.unwrap();
        });
        ran.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// A disk that stays full, and a log that survives by truncating: whenever its power fails, it finds a
/// segment that it no longer needs, or its reserve.
#[test]
fn a_log_lives_on_a_disk_that_stays_full() {
    for seed in 0..20 {
        let mut world = World::new(seed).disk(Profile::nand().capacity(2 << 20));
        let mut last = fill_up(&mut world, 600, 0);
        for life in 1..8 {
            let ran = world.run(async |engine| {
                let wal = open_full(&engine, last).await;
                let last = resume(&wal, sim::random(60)).await;
                std::mem::forget(wal);
                last
            });
            last = ran.unwrap_or_else(|failure| panic!("life {life} of seed {seed}: {failure}"));
            world.power_cut();
            world.reboot();
        }
    }
}
