//! Records that no one waits for have their numbers and cause no write by themselves.
//!
//! Story: a store logs nothing of some keyspaces, and yet each write of these cost a flush, of a group that had a number and
//! nothing else. A record that no writer waits for can be written with the next group.

use std::time::Duration;

use crate::common::{append, dir, engine, expected, open, record, records_wait};
use forebay::Engine;
use forebay_sim::{self as sim, Profile, World};
use forebay_wal::{Lsn, Options, PendingAppend, Wal};

const US: Duration = Duration::from_micros(1);

fn options() -> Options {
    Options::new().segment_bytes(1 << 20).log_id(7)
}

/// Opens a log in a world, with one durable record. It is quiet: the mark behind that record is written, too.
async fn quiet(engine: &Engine, options: Options) -> Wal {
    let (wal, _) = Wal::open(engine, "/disk/log", options).await.expect("a log");
    wal.append(b"the first").await.expect("a record");
    let _ = sim::sleep(200_000 * US).await;
    wal
}

fn deferred(wal: &Wal) -> PendingAppend {
    wal.try_append_deferred(b"a number").expect("an open log").expect("room")
}

fn world() -> World {
    World::new(1).disk(Profile::nand().at("/disk")).stalls_ppm(0)
}

#[test]
fn they_are_written_with_the_next_record() {
    let lived = world().run(async |engine| {
        let wal = quiet(&engine, options()).await;
        let counts = || (sim::current_node().counts().flushes, wal.stats().groups);
        let before = counts();
        for number in 2..=1_000 {
            assert_eq!(deferred(&wal).lsn(), Lsn(number));
            let _ = sim::sleep(300 * US).await;
        }
        assert_eq!((counts(), wal.durable_lsn()), (before, Lsn(1)), "no one waits");
        assert_eq!(wal.read(Lsn(2).., usize::MAX).await.expect("queued records").len(), 999);
        assert_eq!(wal.append(b"the last").await.expect("a record"), Lsn(1_001));
        assert_eq!(wal.stats().groups, before.1 + 1, "all of them are one group");
        // So are records that are queued together with a record that is waited for.
        let queued = wal.append(b"queued").queued().await.expect("room");
        let beside = deferred(&wal);
        queued.await.expect("a record");
        assert!(beside.lsn() <= wal.durable_lsn());
    });
    lived.expect("a world without faults");
}

#[test]
fn a_wait_for_one_causes_its_write() {
    let lived = world().run(async |engine| {
        let wal = quiet(&engine, options()).await;
        let is_all_durable = || wal.durable_lsn().next() == wal.next_lsn();
        assert_eq!(deferred(&wal).await.expect("a record"), wal.durable_lsn());
        drop(deferred(&wal));
        wal.sync().await.expect("all records");
        assert!(is_all_durable());
        let lsn = deferred(&wal).lsn();
        wal.wait_durable(lsn).await.expect("a record");
        // Also a wait from before: such as that of a feed, which waits for the next record.
        let early = sim::spawn(wal.wait_durable(wal.next_lsn()));
        let _ = sim::sleep(1_000 * US).await;
        drop(deferred(&wal));
        early.await.expect("a task").expect("a record");
        assert!(is_all_durable());
        // A wait for another one causes nothing.
        let queued = wal.append(b"queued").queued().await.expect("room");
        let _ = sim::sleep(20_000 * US).await;
        drop(deferred(&wal));
        queued.await.expect("a record");
        wal.wait_durable(Lsn(1)).await.expect("a record");
        assert!(!is_all_durable());
        // Changes are behind all records before them.
        wal.set("key", b"value").await.expect("a value");
        assert!(is_all_durable());
        drop(deferred(&wal));
        wal.truncate_before(Lsn(2)).await.expect("a truncation");
        assert!(is_all_durable());
        drop(deferred(&wal));
        wal.truncate_from(wal.next_lsn()).await.expect("a truncation");
        assert!(is_all_durable());
    });
    lived.expect("a world without faults");
}

#[test]
fn they_give_their_room_back_to_those_that_wait_for_it() {
    let lived = world().run(async |engine| {
        let wal = quiet(&engine, options().group_bytes_max(4096).pending_bytes_max(16 << 10)).await;
        let mut refused = 0;
        while refused < 5 {
            if wal.try_append_deferred(b"a number").expect("an open log").is_none() {
                refused += 1;
                wal.room(8).await.expect("room");
            }
        }
        for _ in 0..3 {
            drop(deferred(&wal));
            wal.append(&[1; 4_000]).await.expect("a record");
        }
        // Nothing is waited for now, and a full group is written nevertheless.
        let _ = sim::sleep(20_000 * US).await;
        let durable = wal.durable_lsn();
        for _ in 0..500 {
            drop(deferred(&wal));
            let _ = sim::sleep(300 * US).await;
        }
        assert!(wal.durable_lsn() > durable && wal.stats().pending_bytes <= 16 << 10);
    });
    lived.expect("a world without faults");
}

/// A crash loses them, and their numbers are then unused. A close does not.
#[test]
fn a_crash_takes_them_and_a_close_does_not() {
    for is_closed in [false, true] {
        let mut world = world();
        let lived = world.run(async |engine| {
            let wal = quiet(&engine, options()).await;
            drop(deferred(&wal));
            wal.append(b"durable").await.expect("a record");
            drop(deferred(&wal));
            if is_closed {
                wal.close().await.expect("an end");
            }
            sim::power_cut().await;
        });
        assert!(lived.is_err_and(|failure| failure.is_power_cut()));
        world.reboot();
        let lived = world.run(async |engine| {
            let (wal, _) = Wal::open(&engine, "/disk/log", options()).await.expect("a log");
            let next = if is_closed { Lsn(5) } else { Lsn(4) };
            assert_eq!(wal.append(b"the next").await.expect("a record"), next);
        });
        lived.expect("a world without faults");
    }
}

#[test]
fn a_log_of_files_has_them_after_its_close() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = open(&engine, &dir);
    append(&wal, 1..=3);
    let defer = |wal: &Wal, number| {
        assert_eq!(wal.try_append_deferred(&record(number)).unwrap().expect("room").lsn(), Lsn(number));
    };
    (4..=50).for_each(|number| defer(&wal, number));
    assert_eq!(wal.durable_lsn(), Lsn(3));
    wal.close().wait().unwrap();
    assert!(wal.try_append_deferred(b"late").is_err());
    let (wal, recovery) = open(&engine, &dir);
    assert_eq!(recovery.last, Lsn(50));
    assert_eq!(records_wait(&wal, 1).unwrap(), expected(1..=50));
    (51..=60).for_each(|number| defer(&wal, number));
    append(&wal, 61..=61);
    (62..=70).for_each(|number| defer(&wal, number));
    wal.sync().wait().unwrap();
    assert_eq!(records_wait(&wal, 51).unwrap(), expected(51..=70));
    wal.close().wait().unwrap();
}
