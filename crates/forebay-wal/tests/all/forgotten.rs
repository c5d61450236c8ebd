//! The state that a drive may leave after a false flush: the renaming of a segment is forgotten, and the
//! groups written to it since are still there, under its old name.

use crate::common::{self, append, dir, engine, expected, files, put, quiet, records_wait};
use forebay::Engine;
use forebay_wal::{Lsn, Recovery, Wal};

/// Opens with groups of which sixteen fill a segment.
fn open(engine: &Engine, dir: &tempfile::TempDir) -> (Wal, Recovery) {
    Wal::open(engine, dir.path(), quiet()).wait().unwrap()
}

/// Regression: a segment was renamed to be reused under number 9, and groups were written to it. The drive had lied: after a power
/// cut the file had its old name again, and those groups were still in it. The log had been closed before, so it continued in
/// place, in the same epoch. It reached number 9 once more and used the same file. Its first new groups were followed by old whole
/// groups at their exact places, which proved a loss that had not happened.
#[test]
fn a_segment_that_was_renamed_before_does_not_bring_back_what_it_held_then() {
    let dir = dir();
    let (wal, _) = open(&engine(), &dir);
    append(&wal, 1..=100);
    wal.truncate_before(Lsn(95)).wait().unwrap();
    append(&wal, 101..=102);
    wal.close().wait().unwrap();
    let before = files(dir.path());
    let (wal, _) = open(&engine(), &dir);
    append(&wal, 103..=150);
    assert!(wal.stats().segments_recycled > 0);
    wal.close().wait().unwrap();
    let after = files(dir.path());

    let mut forgotten = before.clone();
    let gone = before.keys().filter(|name| !after.contains_key(*name));
    let came: Vec<_> = after.keys().filter(|name| !before.contains_key(*name)).collect();
    assert!(!came.is_empty());
    // Oldest first; a new segment has no old name.
    for (old, new) in gone.zip(came) {
        forgotten.insert(old.clone(), after[new].clone());
    }
    for last in (104..150).step_by(3) {
        put(dir.path(), &forgotten);
        let engine = engine();
        let (wal, recovery) = open(&engine, &dir);
        assert_eq!((recovery.first, recovery.last, &recovery.lost[..]), (Lsn(95), Lsn(102), &[][..]));
        // Different records than the first time, by one.
        wal.append(b"other").wait().unwrap();
        append(&wal, 104..=last);
        // The process dies.
        engine.close().wait().unwrap();
        drop(wal);
        let (wal, recovery) = open(&common::engine(), &dir);
        assert_eq!((recovery.first, recovery.last), (Lsn(95), Lsn(last)), "{recovery:?}");
        assert!(recovery.lost.is_empty() && recovery.damage.is_empty(), "{recovery:?}");
        assert_eq!(records_wait(&wal, 104).unwrap(), expected(104..=last));
        wal.close().wait().unwrap();
    }
}
