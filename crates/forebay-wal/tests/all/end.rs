//! A log that lost its end: `wal.end` shows that it was longer.

use crate::simulation::groups;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::{self, append, dir, engine, expected, files, quiet, records_wait};
use forebay::Engine;
use forebay_wal::{ErrorKind, Loss, Lsn, Recovery, Wal};

const END: &str = "wal.end";
/// Offset of the second slot.
const SLOT: u64 = 64 << 10;

fn open(engine: &Engine, dir: &Path) -> (Wal, Recovery) {
    Wal::open(engine, dir, quiet()).wait().unwrap()
}

/// Makes a closed log of `records` records.
fn written(records: u64) -> (Engine, tempfile::TempDir) {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = open(&engine, dir.path());
    append(&wal, 1..=records);
    wal.close().wait().unwrap();
    (engine, dir)
}

fn write(dir: &Path, name: &str, at: u64, bytes: &[u8]) {
    fs::OpenOptions::new().write(true).open(dir.join(name)).unwrap().write_all_at(bytes, at).unwrap();
}

/// Overwrites a group with zeros.
fn erase(dir: &Path, group: &groups::Group) {
    write(dir, &group.file(), group.offset, &vec![0; group.len]);
}

/// Checks that the log is refused with exactly these records and nothing changes, and that salvage returns
/// the others and names these.
fn lost(engine: &Engine, dir: &Path, records: std::ops::RangeInclusive<u64>) {
    let before = files(dir);
    let error = Wal::open(engine, dir, quiet()).wait().map(|(_, recovery)| recovery).unwrap_err();
    let Some(lost) = error.loss() else { panic!("{error:?}") };
    assert_eq!(lost.first.0..=lost.last.0, records, "{error}");
    assert!(files(dir) == before, "a refused open changes nothing");
    let (last, next) = (*records.end(), *records.end() + 1);
    let there = expected(1..=*records.start() - 1);
    let (wal, recovery) = Wal::open(engine, dir, quiet().salvage(true)).wait().unwrap();
    assert_eq!((recovery.last, &recovery.lost), (Lsn(last), &vec![lost.clone()]));
    assert_eq!(all(&wal), there);
    append(&wal, next..=next);
    wal.close().wait().unwrap();
    let (wal, recovery) = open(engine, dir);
    let named = |lost: &Loss| lost.first.0..=lost.last.0;
    assert_eq!((recovery.last, recovery.lost.iter().map(named).collect()), (Lsn(next), vec![records]));
    let mut there = there;
    there.extend(expected(next..=next));
    assert_eq!(all(&wal), there);
    wal.close().wait().unwrap();
}

/// Returns the readable records, skipping those named as lost.
fn all(wal: &Wal) -> Vec<(u64, Vec<u8>)> {
    let (mut reader, mut records) = (wal.read_from(wal.first_lsn()), Vec::new());
    loop {
        match reader.next().wait() {
            Some(Ok(record)) => records.push((record.lsn().0, record.to_vec())),
            None => return records,
            Some(Err(error)) => {
                let Some(lost) = error.loss() else { panic!("{error:?}") };
                reader = wal.read_from(lost.last.next());
            }
        }
    }
}

/// Regression: a log of 100 records was closed, its last three groups became zeros, and it opened with 97
/// records and without any report. The mark that proves that all were durable lies in the lost tail.
#[test]
fn a_closed_log_whose_last_groups_are_zeros_is_refused() {
    let (engine, dir) = written(100);
    for group in groups::live(&files(dir.path())).iter().filter(|group| group.lsns.end > 98) {
        erase(dir.path(), group);
    }
    lost(&engine, dir.path(), 98..=100);
}

/// The same with the file cut in the middle of a segment.
#[test]
fn a_closed_log_that_is_cut_is_refused() {
    let (engine, dir) = written(100);
    let groups = groups::live(&files(dir.path()));
    let at = groups.iter().find(|group| group.lsns.contains(&99)).unwrap();
    let file = fs::OpenOptions::new().write(true).open(dir.path().join(at.file())).unwrap();
    file.set_len(at.offset).unwrap();
    lost(&engine, dir.path(), 99..=100);
}

/// Regression: all but the first of eight segments were deleted, and the log opened with 15 of 100 records.
#[test]
fn a_closed_log_with_only_its_first_segment_is_refused() {
    let (engine, dir) = written(100);
    let first = groups::live(&files(dir.path()))[0].file();
    for name in files(dir.path()).keys().filter(|name| name.ends_with(".wal") && **name != first) {
        fs::remove_file(dir.path().join(name)).unwrap();
    }
    let left = groups::live(&files(dir.path())).iter().map(|group| group.lsns.end).max().unwrap();
    lost(&engine, dir.path(), left..=100);
}

/// Regression: after a salvage the records before the loss were truncated up to a number within it. The next open no longer
/// recognized that the log started within a loss, and promised the missing records. The log starts after the loss.
#[test]
fn a_log_that_is_truncated_within_a_loss_begins_behind_it() {
    let (engine, dir) = written(100);
    for group in groups::live(&files(dir.path())).iter().filter(|group| group.lsns.end > 91) {
        erase(dir.path(), group);
    }
    let (wal, recovery) = Wal::open(&engine, dir.path(), quiet().salvage(true)).wait().unwrap();
    assert_eq!((recovery.lost[0].first, recovery.lost[0].last), (Lsn(91), Lsn(100)));
    append(&wal, 101..=103);
    wal.truncate_before(Lsn(95)).wait().unwrap();
    assert_eq!(wal.first_lsn(), Lsn(101));
    append(&wal, 104..=105);
    wal.close().wait().unwrap();
    let (wal, recovery) = open(&engine, dir.path());
    assert_eq!((recovery.first, recovery.last, recovery.lost), (Lsn(101), Lsn(105), vec![]));
    assert_eq!(all(&wal), expected(101..=105));
    // A reset to lower numbers is not a loss either.
    wal.reset_to(Lsn(7)).wait().unwrap();
    append(&wal, 7..=9);
    wal.close().wait().unwrap();
    let (_, recovery) = open(&engine, dir.path());
    assert_eq!((recovery.first, recovery.last), (Lsn(7), Lsn(9)));
    assert_eq!((&recovery.lost[..], &recovery.damage[..]), (&[][..], &[][..]));
}

/// Regression: after a loss that salvage had declared, the end was truncated, newer records were appended, and everything up to a
/// number within the loss was removed. The first segment of the log then had no proof of the loss, and the log was refused. Found
/// in a simulated world.
#[test]
fn a_log_whose_end_was_truncated_behind_a_loss_opens() {
    let (engine, dir) = written(100);
    for group in groups::live(&files(dir.path())).iter().filter(|group| (51..=55).contains(&group.lsns.start))
    {
        erase(dir.path(), group);
    }
    let (wal, recovery) = Wal::open(&engine, dir.path(), quiet().salvage(true)).wait().unwrap();
    assert_eq!((recovery.lost[0].first, recovery.lost[0].last), (Lsn(51), Lsn(55)));
    append(&wal, 101..=103);
    wal.truncate_from(Lsn(55)).wait().unwrap();
    append(&wal, 55..=60);
    wal.truncate_before(Lsn(53)).wait().unwrap();
    assert_eq!(wal.first_lsn(), Lsn(55));
    append(&wal, 61..=62);
    wal.close().wait().unwrap();
    let (wal, recovery) = open(&engine, dir.path());
    assert_eq!((recovery.first, recovery.last, recovery.lost), (Lsn(55), Lsn(62), vec![]));
    assert_eq!(all(&wal), expected(55..=62));
}

/// Regression: the last group of a log was damaged, only the record outside of the segments proved its end, and the power failed
/// while the log was opened: its new segment was there, behind a number that is passed over in this case, without its first group
/// or with a part of it. The next open mistook the number for that of a removed segment and refused the log. Found in a simulated
/// world.
#[test]
fn an_open_that_ended_early_behind_a_lost_end_is_no_loss() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = open(&engine, dir.path());
    append(&wal, 1..=7);
    let before = groups::live(&files(dir.path())).len();
    wal.truncate_from(Lsn(6)).wait().unwrap();
    wal.close().wait().unwrap();
    // The truncation and the mark of a clean end: no record is lost.
    groups::live(&files(dir.path()))[before..].iter().for_each(|group| erase(dir.path(), group));
    let copied = common::dir();
    forebay_test::live_files::copy(dir.path(), copied.path());
    let (wal, recovery) = open(&engine, dir.path());
    assert!(recovery.last == Lsn(5) && recovery.lost.is_empty(), "{recovery:?}");
    wal.close().wait().unwrap();
    let newest =
        |dir: &Path| files(dir).into_iter().rfind(|(name, _)| groups::generation(name).is_some()).unwrap();
    let (before, _) = newest(copied.path());
    let made = files(dir.path()).into_iter().find(|(name, bytes)| {
        groups::generation(name) > groups::generation(&before) && bytes[..4096].iter().any(|byte| *byte != 0)
    });
    let (name, bytes) = made.expect("the log goes on in a new segment");
    assert!(groups::generation(&name) > groups::generation(&before).map(|number| number + 1), "{name}");
    for written in [0, 64, 100] {
        let row = common::dir();
        forebay_test::live_files::copy(copied.path(), row.path());
        let mut segment = vec![0; bytes.len()];
        segment[..written].copy_from_slice(&bytes[..written]);
        fs::write(row.path().join(&name), segment).unwrap();
        let (wal, recovery) = open(&engine, row.path());
        assert!(recovery.last == Lsn(5) && recovery.lost.is_empty(), "{written} bytes: {recovery:?}");
        assert_eq!(all(&wal), expected(1..=5));
        append(&wal, 6..=7);
        wal.close().wait().unwrap();
        let (wal, recovery) = open(&engine, row.path());
        assert!(recovery.last == Lsn(7) && recovery.lost.is_empty(), "{written} bytes: {recovery:?}");
        wal.close().wait().unwrap();
    }
}

/// Regression: with every segment deleted, a new log was created in place of the old one.
#[test]
fn a_log_without_segments_is_no_new_one() {
    let (engine, dir) = written(100);
    for name in files(dir.path()).keys().filter(|name| name.ends_with(".wal")) {
        fs::remove_file(dir.path().join(name)).unwrap();
    }
    for salvage in [false, true] {
        let error = Wal::open(&engine, dir.path(), quiet().salvage(salvage)).wait().unwrap_err();
        let Some(lost) = error.loss() else { panic!("{error:?}") };
        assert_eq!((lost.first, lost.last), (Lsn(1), Lsn(100)));
        assert!(error.to_string().contains(END), "{error}");
    }
    fs::remove_file(dir.path().join(END)).unwrap();
    assert!(open(&engine, dir.path()).1.created);
}

/// A machine stopped: records appended since the end was recorded are judged by the segments alone, as
/// without the record.
#[test]
fn the_end_of_a_log_that_was_not_closed_is_recorded_on_demand() {
    for recorded in [false, true] {
        let (running, dir) = (engine(), dir());
        let (wal, _) = open(&running, dir.path());
        append(&wal, 1..=20);
        if recorded {
            wal.record_end().wait().unwrap();
        }
        running.close().wait().unwrap();
        drop(wal);
        let all = groups::live(&files(dir.path()));
        all.iter().filter(|group| group.lsns.end > 18).for_each(|group| erase(dir.path(), group));
        if recorded {
            lost(&engine(), dir.path(), 18..=20)
        } else {
            assert_eq!(open(&engine(), dir.path()).1.last, Lsn(17))
        }
    }
}

/// Regression: the end was recorded at a position where a segment is full, the last groups of that segment
/// were damaged, and salvage declared the damage up to the recorded position. Once a later end was recorded
/// the log was refused again: no group was at that position.
#[test]
fn a_loss_before_a_recorded_place_stays_declared_when_that_place_is_forgotten() {
    let (running, dir) = (engine(), dir());
    let (wal, _) = open(&running, dir.path());
    // With the log's first group and the truncation sixteen: the end of the log is the end of the segment.
    append(&wal, 1..=14);
    wal.truncate_from(Lsn(13)).wait().unwrap();
    append(&wal, 13..=17);
    running.close().wait().unwrap();
    drop(wal);
    // The groups of 12, 13 and 14, and the truncation.
    write(dir.path(), &groups::file_name(1), 12 << 12, &[0; 4 << 12]);
    let engine = engine();
    let (wal, recovery) = Wal::open(&engine, dir.path(), quiet().salvage(true)).wait().unwrap();
    assert_eq!(recovery.lost.iter().map(|lost| lost.first.0..=lost.last.0).collect::<Vec<_>>(), [12..=12]);
    append(&wal, 18..=20);
    wal.close().wait().unwrap();
    let (wal, again) = open(&engine, dir.path());
    assert_eq!((again.last, again.lost), (Lsn(20), recovery.lost));
    assert_eq!(all(&wal), [expected(1..=11), expected(13..=20)].concat());
}

/// Regression: a truncation was acknowledged, its group was damaged, and the removed records reappeared.
#[test]
fn what_was_truncated_stays_so_without_its_group() {
    for next in [11, 5_000] {
        let (running, dir) = (engine(), dir());
        let (wal, _) = open(&running, dir.path());
        append(&wal, 1..=20);
        match next {
            11 => wal.truncate_from(Lsn(11)).wait().unwrap(),
            _ => wal.reset_to(Lsn(next)).wait().unwrap(),
        }
        running.close().wait().unwrap();
        drop(wal);
        erase(dir.path(), groups::live(&files(dir.path())).last().unwrap());
        let engine = engine();
        let (wal, recovery) = open(&engine, dir.path());
        assert_eq!((recovery.last, wal.next_lsn()), (Lsn(next - 1), Lsn(next)), "{recovery:?}");
        assert_eq!((recovery.damage.len(), &recovery.lost[..]), (1, &[][..]));
        let there = if next == 11 { expected(1..=10) } else { Vec::new() };
        assert_eq!(all(&wal), there);
        append(&wal, next..=next + 3);
        wal.close().wait().unwrap();
        assert_eq!(open(&engine, dir.path()).1.last, Lsn(next + 3));
    }
}

/// The record is a fact of the past: an older one does not judge groups written since.
#[test]
fn an_older_record_of_the_end_refuses_nothing() {
    let (engine, dir) = written(100);
    let old = fs::read(dir.path().join(END)).unwrap();
    for next in [60, 7, 300] {
        let (wal, _) = open(&engine, dir.path());
        match next {
            60 => wal.truncate_from(Lsn(60)).wait().unwrap(),
            _ => wal.reset_to(Lsn(next)).wait().unwrap(),
        }
        append(&wal, next..=next + 30);
        wal.truncate_before(Lsn(next + 10)).wait().unwrap();
        append(&wal, next + 31..=next + 40);
        wal.close().wait().unwrap();
        fs::write(dir.path().join(END), &old).unwrap();
        let (wal, recovery) = open(&engine, dir.path());
        assert_eq!((recovery.first, recovery.last), (Lsn(next + 10), Lsn(next + 40)), "{recovery:?}");
        assert_eq!((&recovery.lost[..], &recovery.damage[..]), (&[][..], &[][..]));
        assert_eq!(records_wait(&wal, next + 10).unwrap(), expected(next + 10..=next + 40));
        wal.close().wait().unwrap();
    }
    // A directory that is rolled back as a whole is in its former state.
    let before = files(dir.path());
    let (wal, _) = open(&engine, dir.path());
    append(&wal, 341..=350);
    wal.close().wait().unwrap();
    for name in files(dir.path()).keys() {
        fs::remove_file(dir.path().join(name)).unwrap();
    }
    before.iter().for_each(|(name, bytes)| fs::write(dir.path().join(name), bytes).unwrap());
    assert_eq!(open(&engine, dir.path()).1.last, Lsn(340));
}

/// Either slot may be lost. Without both the log opens, reports the damage, and writes the file anew.
#[test]
fn a_damaged_record_of_the_end_is_named() {
    let (engine, dir) = written(20);
    for slots in [&[0][..], &[SLOT], &[0, SLOT]] {
        for damage in [&[0; 4096][..], &[0xa5; 40]] {
            slots.iter().for_each(|&at| write(dir.path(), END, at, damage));
            let (wal, recovery) = open(&engine, dir.path());
            let named: Vec<_> = recovery.damage.iter().map(|damage| damage.file.clone()).collect();
            let expected = if slots.len() == 2 { vec![dir.path().join(END)] } else { Vec::new() };
            assert_eq!((recovery.last, named), (Lsn(20), expected));
            wal.close().wait().unwrap();
        }
    }
    let (wal, recovery) = open(&engine, dir.path());
    assert!(recovery.damage.is_empty());
    wal.close().wait().unwrap();
    // Every byte that carries information is covered.
    let whole = fs::read(dir.path().join(END)).unwrap();
    for at in 0..128 {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes[SLOT as usize + at] ^= 1;
        fs::write(dir.path().join(END), bytes).unwrap();
        let report = forebay_wal::inspect::inspect(&engine, dir.path()).wait().unwrap();
        assert!(!report.is_whole(), "byte {at}");
    }
}

/// A log from before the file existed opens, and has the file from then on.
#[test]
fn an_old_log_has_none() {
    let (engine, dir) = written(20);
    fs::remove_file(dir.path().join(END)).unwrap();
    let (wal, recovery) = open(&engine, dir.path());
    assert_eq!((recovery.last, &recovery.damage[..]), (Lsn(20), &[][..]));
    wal.close().wait().unwrap();
    erase(dir.path(), groups::live(&files(dir.path())).last().unwrap());
    let group = groups::live(&files(dir.path())).into_iter().find(|group| group.lsns.contains(&20)).unwrap();
    for group in groups::live(&files(dir.path())).iter().filter(|other| other.place() >= group.place()) {
        erase(dir.path(), group);
    }
    lost(&engine, dir.path(), 20..=20);
}

/// The segments of one log with the record of another log's end.
#[test]
fn another_logs_record_is_refused() {
    let ((engine, dir), (_, other)) = (written(20), written(30));
    fs::copy(other.path().join(END), dir.path().join(END)).unwrap();
    let error = Wal::open(&engine, dir.path(), quiet()).wait().unwrap_err();
    assert_eq!((error.kind(), error.path()), (ErrorKind::Foreign, Some(&*dir.path().join(END))));
    let (wal, recovery) = Wal::open(&engine, dir.path(), quiet().salvage(true)).wait().unwrap();
    assert_eq!((recovery.last, &recovery.lost[..]), (Lsn(20), &[][..]));
    wal.close().wait().unwrap();
    assert_eq!(open(&engine, dir.path()).1.last, Lsn(20));
}
