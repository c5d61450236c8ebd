//! A log that grows, in simulated worlds: the segments that it prepares during appends, and the bytes that its disk gets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{expected, record, records};
use forebay::{Engine, Open};
use forebay_sim::{self as sim, Fault, MetadataOrder, Profile, Rule, World};
use forebay_wal::{Fill, Lsn, Options, Wal};
use futures::future::join_all;

/// Bytes of zeros in one write during appends.
const STEP: u64 = 64 << 10;

fn options(segment_bytes: u64) -> Options {
    Options::new().segment_bytes(segment_bytes).log_id(7)
}

async fn open(engine: &Engine, segment_bytes: u64) -> Wal {
    Wal::open(engine, "/log", options(segment_bytes)).await.unwrap().0
}

/// Returns the most zeros, in bytes, that were written during appends and that these had not earned, of all windows of appends.
fn burst_bytes(seed: u64, profile: Profile) -> u64 {
    let ran = World::new(seed).disk(profile).run(async |engine| {
        let wal = open(&engine, 2 << 20).await;
        let mut seen = Vec::new();
        for _ in 0..1_300 {
            wal.append(&[7u8; 3_000]).await.unwrap();
            let stats = wal.stats();
            seen.push((stats.write_bytes, stats.written_bytes - stats.write_bytes));
        }
        let stats = wal.stats();
        assert_eq!((stats.segments_made, stats.segment_waits), (2, 0), "{stats:?}");
        assert!(stats.written_bytes - stats.write_bytes >= 3 * (2 << 20), "{stats:?}");
        wal.close().await.unwrap();
        seen
    });
    let seen = ran.unwrap();
    let windows =
        seen.iter().enumerate().flat_map(|(at, begin)| seen[at..].iter().map(move |end| (begin, end)));
    // Two bytes for each, and a little more: a segment is not started at its quarter exactly.
    let unearned = windows.map(|(begin, end)| (end.1 - begin.1).saturating_sub((end.0 - begin.0) * 17 / 8));
    unearned.max().unwrap_or(0)
}

/// Story: the next segment was written through in one go behind the first quarter of a segment, and the appends of that time waited
/// for a device that wrote 64 MiB of zeros. Now each group earns its share, and the segment is still ready in time.
#[test]
fn zeros_follow_appends_and_no_burst_comes_beside_them() {
    for (seed, profile) in [(0, Profile::ideal()), (1, Profile::nand())] {
        let bytes = burst_bytes(seed, profile);
        assert!(bytes <= 6 * STEP, "{bytes} bytes in world {seed}");
    }
}

#[cfg(feature = "_mutants")]
#[test]
fn a_burst_of_zeros_is_noticed() {
    use forebay_wal::mutants::{self, Mutant};
    let bytes = mutants::with(Mutant::ZerosInOneBurst, || burst_bytes(0, Profile::ideal()));
    assert!(bytes > 1 << 20, "{bytes}");
}

/// Where kernel and device have a command for it, no zeros are written.
#[test]
fn a_device_with_a_command_for_zeros_gets_none() {
    let ran = World::new(1).disk(Profile::nand().write_zeros(true)).run(async |engine| {
        let wal = open(&engine, 256 << 10).await;
        for number in 1..=300 {
            wal.append(&record(number)).await.unwrap();
        }
        let stats = wal.stats();
        assert_eq!((stats.segments_made, stats.segment_waits), (4, 0), "{stats:?}");
        // The record of the end at most.
        assert!(stats.written_bytes - stats.write_bytes < STEP, "{stats:?}");
        assert_eq!(records(&wal, 1).await.unwrap(), expected(1..=300));
        wal.close().await.unwrap();
    });
    ran.unwrap();
}

#[test]
fn an_idle_log_prepares_its_next_segment() {
    let ran = World::new(2).disk(Profile::nand()).run(async |engine| {
        let wal = open(&engine, 2 << 20).await;
        for _ in 0..150 {
            wal.append(&[7u8; 3_000]).await.unwrap();
        }
        let zeros = |wal: &Wal| wal.stats().written_bytes - wal.stats().write_bytes;
        assert!(zeros(&wal) < 3 << 20, "{:?}", wal.stats());
        sim::sleep(Duration::from_millis(500)).await.unwrap();
        // This segment and the next one; the reserve is only allocated.
        assert!(zeros(&wal) >= 4 << 20, "{:?}", wal.stats());
        wal.close().await.unwrap();
    });
    ran.unwrap();
}

/// A group that needs the next segment waits for the disk alone, not for groups that are blocked.
#[test]
fn a_group_that_needs_the_next_segment_waits_for_no_pace() {
    for profile in [Profile::ideal().bandwidth(10_000_000), Profile::nand().write_zeros(true)] {
        let ran = World::new(3).disk(profile).run(async |engine| {
            let options = options(256 << 10).fill(Fill::Zeros);
            let (wal, _) = Wal::open(&engine, "/log", options).await.unwrap();
            for number in 1..=8 {
                assert_eq!(wal.append(&vec![7; 200 << 10]).await.unwrap(), Lsn(number));
            }
            assert_eq!(wal.stats().segments_made, 7, "{:?}", wal.stats());
            wal.close().await.unwrap();
        });
        ran.unwrap();
    }
}

/// A preparation that a power cut interrupts leaves a segment without meaning, at any point.
#[test]
fn the_power_may_go_at_any_operation_of_a_preparation() {
    const APPENDS: u64 = 60;
    for (seed, order) in (0..4).zip([MetadataOrder::Journal, MetadataOrder::Posix].into_iter().cycle()) {
        let mut met = 0;
        for n in (1 + seed % 3..1_000).step_by(3) {
            let profile = Profile::nand().metadata_order(order).write_zeros(seed < 2);
            let mut world = World::new(seed).disk(profile);
            let acknowledged = AtomicU64::new(0);
            world.power_cut_at_operation(n);
            let ran = world.run(async |engine| {
                let wal = open(&engine, 128 << 10).await;
                for number in 1..=APPENDS {
                    wal.append(&record(number)).await.unwrap();
                    acknowledged.store(number, Ordering::Relaxed);
                }
                std::mem::forget(wal);
            });
            let is_struck = ran.as_ref().is_err_and(|failure| failure.is_power_cut());
            if !is_struck {
                ran.unwrap();
            }
            world.power_cut();
            world.reboot();
            let ran = world.run(async |engine| {
                let wal = open(&engine, 128 << 10).await;
                let last = wal.durable_lsn().0;
                assert!((acknowledged.load(Ordering::Relaxed)..=APPENDS).contains(&last), "{last}");
                assert_eq!(records(&wal, 1).await.unwrap(), expected(1..=last));
                for number in last + 1..=last + 40 {
                    assert_eq!(wal.append(&record(number)).await.unwrap(), Lsn(number));
                }
                wal.close().await.unwrap();
            });
            ran.unwrap_or_else(|failure| panic!("operation {n} of seed {seed}: {failure}"));
            if !is_struck {
                break;
            }
            met = n;
        }
        assert!((60..999).contains(&met), "{met} operations");
    }
}

/// The disk is full at one call of a preparation: to make the file, to allocate it, or for one of its zeros.
#[test]
fn a_disk_that_is_full_in_a_preparation_is_no_trap() {
    for nth in 1..=6 {
        for has in [false, true] {
            let mut world = World::new(nth).disk(Profile::nand().write_zeros(has));
            world.inject(Rule::new(Fault::NoSpace).on("/log/0000000000000002.wal").nth(nth));
            let ran = world.run(async |engine| {
                let wal = open(&engine, 256 << 10).await;
                for number in 1..=100 {
                    assert_eq!(wal.append(&record(number)).await.unwrap(), Lsn(number));
                }
                sim::sleep(Duration::from_secs(3)).await.unwrap();
                assert!(wal.no_space().is_none(), "{:?}", wal.no_space());
                assert_eq!(records(&wal, 1).await.unwrap(), expected(1..=100));
                wal.close().await.unwrap();
                open(&engine, 256 << 10).await.durable_lsn()
            });
            assert_eq!(ran.unwrap(), Lsn(100), "call {nth}");
            assert_eq!(world.counts().fired(Fault::NoSpace), 1, "call {nth}");
        }
    }
}

/// The log says how much its disk has written, zeros and marks and the record of its end included.
#[test]
fn the_bytes_that_a_log_says_it_has_written_are_those_of_its_disk() {
    for (seed, has) in (0..6).zip([false, true].into_iter().cycle()) {
        let mut world = World::new(seed).disk(Profile::nand().write_zeros(has));
        let ran = world.run(async |engine| {
            let wal = open(&engine, 128 << 10).await;
            for number in 1..=200 {
                wal.append(&record(number)).await.unwrap();
                if sim::random(20) == 0 {
                    sim::sleep(Duration::from_millis(10)).await.unwrap();
                }
            }
            wal.truncate_before(Lsn(150)).await.unwrap();
            wal.record_end().await.unwrap();
            wal.close().await.unwrap();
            wal.stats()
        });
        let (stats, written) = (ran.unwrap(), world.counts().written_bytes);
        assert_eq!(stats.written_bytes, written, "seed {seed}: {stats:?}");
        let appended = expected(1..=200).iter().map(|(_, record)| record.len() as u64).sum::<u64>();
        assert_eq!(stats.record_bytes, appended);
    }
}

/// Each write that touches a block of an acknowledged record would fail here.
#[test]
fn no_block_of_an_acknowledged_record_is_written_again() {
    const FIRST: &str = "/log/0000000000000001.wal";
    for seed in 0..4 {
        let ran = World::new(seed).disk(Profile::nand()).run(async |engine| {
            let wal = open(&engine, 1 << 20).await;
            for _ in 0..40 {
                let some: Vec<_> =
                    (0..=sim::random(4)).map(|_| vec![7u8; sim::random(6_000) as usize]).collect();
                for lsn in join_all(some.iter().map(|record| wal.append(record))).await {
                    lsn.unwrap();
                }
                // All groups so far lie one after the other in the first segment.
                let end = wal.stats().write_bytes;
                assert!(end < 1 << 20, "{end}");
                sim::inject(Rule::new(Fault::WriteError).on(FIRST).within(0..end));
                if sim::random(4) == 0 {
                    // Marks.
                    sim::sleep(Duration::from_millis(10)).await.unwrap();
                }
            }
            wal.close().await.unwrap();
            assert_eq!(sim::node(0).counts().fired(Fault::WriteError), 0);
            let file = engine.open(FIRST, Open::write()).await.unwrap();
            file.write(0, vec![0; 4096]).await.unwrap_err();
        });
        ran.unwrap();
    }
}
