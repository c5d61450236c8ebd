//! Inspects logs, reads them without opening them, and repairs them, on simulated disks: with unreadable
//! parts, with every call failing in turn, and with power cuts. The tests of the program `forebay` do the
//! same on real disks.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::left;
use forebay::{Durability, Engine, Lock, Open};
use forebay_sim::{self as sim, Fault, Profile, Rule, World};
use forebay_wal::inspect::{GroupKind, Report, Verdict, inspect, records, repair};
use forebay_wal::{ErrorKind, Lsn, Options, Wal};

const DIR: &str = "/disk/log";
const OUT: &str = "/disk/out";
const RECORDS: u64 = 60;
/// More calls than a repair makes.
const CALLS_MAX: u64 = 2_000;

fn options() -> Options {
    Options::new().segment_bytes(64 << 10).log_id(0x1234)
}

fn record(lsn: u64) -> Vec<u8> {
    (0..3_000u64).map(|at| (lsn * 7 + at) as u8).collect()
}

fn world(seed: u64) -> World {
    World::new(seed).disk(Profile::nand().at("/disk"))
}

/// Writes a closed log of several segments.
fn with_log(world: &mut World) -> Report {
    let written = world.run(async |engine| {
        engine.create_dir(DIR).await.expect("a directory");
        let (wal, _) = Wal::open(&engine, DIR, options()).await.expect("a new log");
        for lsn in 1..=RECORDS {
            wal.append(&record(lsn)).await.expect("an append");
        }
        wal.close().await.expect("closing");
        inspect(&engine, DIR).await.expect("a log")
    });
    let report = written.expect("the world runs");
    assert!(report.is_whole() && report.segments.len() > 3, "{report:?}");
    report
}

/// Returns all files of a directory; `None` without the directory.
async fn files(engine: &Engine, dir: &str) -> Option<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in engine.read_dir(dir).await.ok()? {
        let name = entry.name().to_str().expect("a name").to_owned();
        let file = engine.open(format!("{dir}/{name}"), Open::read().buffered()).await.expect("a file");
        let length = file.len().await.expect("a length");
        files.insert(name, file.read_up_to(0..length).await.expect("its bytes").to_vec());
    }
    Some(files)
}

/// Returns the records of a log that opens.
async fn content(engine: &Engine, dir: &str) -> Result<BTreeMap<u64, Vec<u8>>, forebay_wal::Error> {
    let (wal, _) = Wal::open(engine, dir, options().create(false)).await?;
    read(wal).await
}

async fn read(wal: Wal) -> Result<BTreeMap<u64, Vec<u8>>, forebay_wal::Error> {
    let records = left(&wal).await?;
    wal.close().await?;
    Ok(records)
}

fn all_but(lost: &[u64]) -> BTreeMap<u64, Vec<u8>> {
    (1..=RECORDS).filter(|lsn| !lost.contains(lsn)).map(|lsn| (lsn, record(lsn))).collect()
}

#[test]
fn what_the_drive_cannot_read_is_named_and_the_rest_is_saved() {
    let mut world = world(1);
    let report = with_log(&mut world);
    let mut segments = report.segments.iter();
    let found = segments
        .find_map(|each| each.groups.iter().find(|group| group.live == (33..34)).map(|group| (each, group)));
    let (segment, group) = found.expect("the record's group");
    let zone = group.offset + 512..group.offset + 1024;
    world.inject(Rule::new(Fault::LatentSectorError).on(&segment.file).within(zone));
    let file = segment.file.clone();
    let offset = group.offset;
    let ran = world.run(async move |engine| {
        let report = inspect(&engine, DIR).await.expect("what can be read of it");
        let unreadable: Vec<_> =
            report.unreadable().map(|(path, range)| (path.to_path_buf(), range)).collect();
        assert_eq!(unreadable, [(file.clone(), offset..offset + 4096)]);
        assert!(!report.is_whole() && matches!(report.verdict, Verdict::Damaged(_)), "{:?}", report.verdict);
        assert_eq!(
            (report.lost_now[0].first.0, report.lost_now[0].last.0, report.lost_now[0].offset),
            (33, 33, offset)
        );
        let repaired = repair(&engine, DIR, OUT).await.expect("repaired");
        assert_eq!(repaired.records, RECORDS - 1);
        assert!(repaired.after.is_whole());
        content(&engine, OUT).await.expect("it opens")
    });
    assert!(ran.expect("the world runs") == all_but(&[33]));
}

/// Regression: records before and after a mark were lost, so recovery reported two adjacent losses. The new log had one gap for
/// both, and repair mistook that for a fault of the new log.
#[test]
fn losses_on_both_sides_of_a_mark_are_one_gap() {
    let mut world = world(2);
    let ran = world.run(async |engine| {
        engine.create_dir(DIR).await.expect("a directory");
        let (wal, _) = Wal::open(&engine, DIR, options()).await.expect("a new log");
        for lsn in 1..=4 {
            wal.append(&record(lsn)).await.expect("an append");
            sim::sleep(Duration::from_millis(50)).await.expect("time");
        }
        wal.close().await.expect("closing");
        let report = inspect(&engine, DIR).await.expect("a log");
        let groups = &report.segments[0].groups;
        let marks = groups.iter().filter(|group| group.kind == GroupKind::Mark).count();
        assert!(marks >= 4, "{groups:?}");
        let file = engine.open(&report.segments[0].file, Open::write()).await.expect("the segment");
        for group in groups.iter().filter(|group| group.lsns == (2..3) || group.lsns == (3..4)) {
            file.write(group.offset, vec![0; group.bytes as usize]).await.expect("damage");
        }
        let repaired = repair(&engine, DIR, OUT).await.expect("repaired");
        assert_eq!((repaired.records, repaired.before.lost_now.len()), (2, 2));
        content(&engine, OUT).await.expect("it opens")
    });
    let kept = [1, 4].map(|lsn| (lsn, record(lsn)));
    assert!(ran.expect("the world runs") == BTreeMap::from(kept));
}

/// The first call of the repair fails, then the second, and so on. The damaged log stays as it is, and the
/// result is complete or absent.
#[test]
fn a_repair_that_fails_leaves_nothing() {
    for fault in [Fault::WriteError, Fault::FlushError, Fault::NoSpace] {
        let mut failed = 0;
        for n in 1..CALLS_MAX {
            let mut world = world(n);
            with_log(&mut world);
            world.inject(Rule::new(fault).nth(n));
            let ran = world.run(async |engine| {
                let before = files(&engine, DIR).await;
                let repaired = repair(&engine, DIR, OUT).await;
                assert!(files(&engine, DIR).await == before, "the log changed");
                match &repaired {
                    Ok(repaired) => assert!(repaired.after.is_whole() && repaired.records == RECORDS),
                    Err(error) => {
                        let kind = if fault == Fault::NoSpace { ErrorKind::NoSpace } else { ErrorKind::Io };
                        assert_eq!(error.kind(), kind, "{error}");
                    }
                }
                (repaired.is_ok(), files(&engine, OUT).await.is_some())
            });
            let (repaired, exists) = ran.expect("the world runs");
            let struck = world.counts().fired(fault) > 0;
            assert!(repaired != struck, "{fault:?} {n}");
            assert!(repaired == exists, "{fault:?} {n}");
            if !struck {
                break;
            }
            failed += 1;
        }
        assert!((1..CALLS_MAX - 1).contains(&failed), "{fault:?}: {failed}");
    }
}

/// The power fails at the first operation of the repair, then at the second, and so on. The damaged log stays as it is, and an
/// incomplete result is never mistaken for a log with fewer records.
#[test]
fn a_power_cut_in_a_repair_never_leaves_a_log_with_less() {
    let mut whole = 0;
    for n in 1..CALLS_MAX {
        let mut world = world(n);
        with_log(&mut world);
        let before = world.run(async |engine| files(&engine, DIR).await).expect("the world runs");
        world.power_cut_at_operation(n);
        let repaired = world.run(async |engine| repair(&engine, DIR, OUT).await.is_ok());
        let finished = repaired.is_ok();
        world.power_cut();
        world.reboot();
        let ran = world.run(async |engine| {
            assert!(files(&engine, DIR).await == before, "the log changed");
            match content(&engine, OUT).await {
                Ok(records) => {
                    assert!(records == all_but(&[]), "{n}: it opens with less");
                    true
                }
                Err(_) => false,
            }
        });
        let opens = ran.expect("the world runs");
        assert!(opens || !finished, "{n}: a finished repair is durable");
        whole += u32::from(opens);
        if finished {
            break;
        }
    }
    assert!(whole > 0);
}

/// Runs a life of appends, truncations, resets, reopenings and marks, in small segments.
async fn lively(engine: &Engine) {
    engine.create_dir(DIR).await.expect("a directory");
    for _ in 0..=sim::random(3) {
        let (wal, _) = Wal::open(engine, DIR, options()).await.expect("it opens");
        for _ in 0..sim::random(40) {
            match sim::random(20) {
                0 => wal.truncate_before(Lsn(wal.first_lsn().0 + sim::random(5)).min(wal.next_lsn())).await,
                1 if wal.next_lsn() > wal.first_lsn() => {
                    let last = wal.next_lsn().0.saturating_sub(1 + sim::random(4)).max(wal.first_lsn().0);
                    wal.truncate_from(Lsn(last + 1)).await
                }
                2 if sim::random(8) == 0 => wal.reset_to(Lsn(wal.next_lsn().0 + sim::random(50))).await,
                3 => sim::sleep(Duration::from_millis(5)).await.map_err(forebay_wal::Error::from),
                _ => {
                    let length = [0, 10, 900, 5_000, 20_000][sim::random(5) as usize];
                    let record = vec![sim::random(256) as u8; length];
                    wal.append(&record).await.map(|_| ())
                }
            }
            .expect("it works");
        }
        match sim::random(3) {
            // The last handle is dropped; queued records are written.
            0 => drop(wal),
            _ => wal.close().await.expect("closing"),
        }
        sim::sleep(Duration::from_secs(1)).await.expect("time");
    }
}

/// Zeros some groups of any kind, or flips bytes in them.
async fn damage(engine: &Engine, report: &Report) {
    for segment in &report.segments {
        let file = engine.open(&segment.file, Open::write().buffered()).await.expect("a segment");
        for group in &segment.groups {
            let at = group.offset + sim::random(group.bytes - 8);
            match sim::random(60) {
                0 => file.write(at, vec![0xa5; 8]).await.expect("damage"),
                1 => file.write(group.offset, vec![0; group.bytes as usize]).await.expect("damage"),
                _ => {}
            }
        }
        file.sync(Durability::All).await.expect("durable");
    }
}

/// Returns the records of a log that is not opened; `None` if nothing is left of it.
async fn listed(engine: &Engine) -> Option<BTreeMap<u64, Vec<u8>>> {
    let before = files(engine, DIR).await;
    let mut listed = BTreeMap::new();
    let mut found = match records(engine, DIR).await {
        Ok(found) => found,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
            return None;
        }
    };
    while let Some((lsn, record)) = found.next().await.transpose().expect("readable") {
        assert!(listed.insert(lsn.0, record).is_none());
    }
    // No process can open it meanwhile.
    let locked = Wal::open(engine, DIR, options()).await.expect_err("it is being read");
    assert_eq!(locked.kind(), ErrorKind::Locked);
    drop(found);
    assert!(files(engine, DIR).await == before, "reading changed the log");
    Some(listed)
}

/// The locks of a process that was killed stay until the kernel has torn down its rings. `inspect`, `records` and `repair` failed
/// immediately with a log in use, where an open waited.
#[test]
fn a_lock_that_goes_late_is_waited_for() {
    let mut world = world(1);
    with_log(&mut world);
    let ran = world.run(async |engine| {
        let lock =
            engine.open(format!("{DIR}/wal.lock"), Open::read().buffered()).await.expect("the lock's file");
        lock.try_lock(Lock::Exclusive).await.expect("nothing has the log open");
        let late = sim::spawn(async move {
            sim::sleep(Duration::from_millis(600)).await.expect("a world");
            lock.close().await
        });
        let report = inspect(&engine, DIR).await.expect("a log");
        assert!(report.is_whole() && !report.in_use, "{report:?}");
        late.await.expect("a task").expect("a close");
        let lock =
            engine.open(format!("{DIR}/wal.lock"), Open::read().buffered()).await.expect("the lock's file");
        lock.try_lock(Lock::Exclusive).await.expect("the report has given it back");
        let refused = records(&engine, DIR).await.expect_err("it stays open elsewhere");
        assert_eq!(refused.kind(), ErrorKind::Locked);
    });
    ran.expect("the world runs");
}

/// The report of `inspect` agrees with an open, and `repair` saves the same records as salvage.
#[test]
fn damaged_lives_are_judged_and_saved_as_an_open_does_it() {
    let (mut opened, mut damaged) = (0, 0);
    for seed in 0..150 {
        let mut world = world(seed);
        let ran = world.run(async |engine| {
            lively(&engine).await;
            let whole = inspect(&engine, DIR).await.expect("a log");
            assert!(whole.is_whole() && !whole.in_use, "{whole:?}");
            damage(&engine, &whole).await;
            let report = inspect(&engine, DIR).await.expect("a log");
            let repaired = repair(&engine, DIR, OUT).await;
            let before = files(&engine, DIR).await;
            let saved = match &repaired {
                Ok(_) => Some(content(&engine, OUT).await.expect("it opens")),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
                    None
                }
            };
            assert!(listed(&engine).await == saved, "read without opening, the log holds something else");
            match (Wal::open(&engine, DIR, options().read_only(true)).await, &report.verdict) {
                (Ok((wal, recovery)), Verdict::Opens) => {
                    assert_eq!(Some(&recovery), report.recovery.as_ref());
                    assert_eq!(Some(wal.next_lsn()), report.next_lsn);
                    assert_eq!(wal.durable_end().epoch, recovery.epoch);
                    let refused = wal.append(b"no").await.expect_err("it is only read");
                    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
                    assert!(Some(read(wal).await.expect("readable")) == saved);
                }
                (Err(error), Verdict::Damaged(expected)) => assert_eq!(error.kind(), expected.kind()),
                (opened, verdict) => {
                    panic!("{:?} to be read, and not {verdict:?}", opened.map(|(_, recovery)| recovery))
                }
            }
            assert!(files(&engine, DIR).await == before, "reading changed the log");
            match (Wal::open(&engine, DIR, options()).await, &report.verdict) {
                (Ok((wal, recovery)), Verdict::Opens) => {
                    assert_eq!(Some(&recovery), report.recovery.as_ref());
                    assert_eq!(Some(wal.next_lsn()), report.next_lsn);
                    assert!(Some(read(wal).await.expect("readable")) == saved);
                    true
                }
                (Err(error), Verdict::Damaged(expected)) => {
                    assert_eq!(error.kind(), expected.kind());
                    match Wal::open(&engine, DIR, options().salvage(true)).await {
                        Ok((wal, recovery)) => {
                            assert_eq!(Some(&recovery), report.recovery.as_ref());
                            assert_eq!(Some(wal.next_lsn()), report.next_lsn);
                            assert!(Some(read(wal).await.expect("readable")) == saved);
                        }
                        Err(_) => assert!(saved.is_none()),
                    }
                    false
                }
                (opened, verdict) => {
                    panic!("{:?}, and not {verdict:?}", opened.map(|(_, recovery)| recovery))
                }
            }
        });
        match ran {
            Ok(true) => opened += 1,
            Ok(false) => damaged += 1,
            Err(failure) => panic!("seed {seed}: {failure}"),
        }
    }
    assert!(opened > 20 && damaged > 20, "{opened} {damaged}");
}
