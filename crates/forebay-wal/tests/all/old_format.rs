//! Logs that a program of version 1 of the format wrote, through its own API: one that was closed, and one whose program
//! was killed after its last append.

use std::fs;
use std::path::Path;

use crate::common::{dir, engine, expected, options, record, records_wait};
use forebay_wal::inspect::inspect;
use forebay_wal::{Lsn, Wal};

/// Copies a fixture into a new directory.
fn fixture(name: &str) -> tempfile::TempDir {
    let dir = dir();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

#[test]
fn they_open_and_go_on() {
    let engine = engine();
    for (name, last, unproven) in [("v1-closed", 30, 0), ("v1-killed", 33, 1)] {
        let dir = fixture(name);
        let report = inspect(&engine, dir.path()).wait().unwrap();
        assert!(report.is_whole() && report.values.is_empty(), "{name}: {report:?}");
        let (wal, recovery) = Wal::open(&engine, dir.path(), options()).wait().unwrap();
        assert_eq!(
            (recovery.first, recovery.last, recovery.tail_records),
            (Lsn(15), Lsn(last), unproven),
            "{name}"
        );
        assert_eq!(records_wait(&wal, 15).unwrap(), expected(15..=last), "{name}");
        assert!(wal.values().is_empty());
        // The log continues in this version, in the same segment or in a fresh one.
        wal.set("vote", b"for 2").wait().unwrap();
        for number in last + 1..=last + 500 {
            wal.append(&record(number)).queued().wait().unwrap();
        }
        wal.truncate_from(Lsn(last + 301)).wait().unwrap();
        wal.close().wait().unwrap();
        drop(wal);
        let (wal, recovery) = Wal::open(&engine, dir.path(), options()).wait().unwrap();
        assert_eq!(
            (recovery.tail_records, recovery.truncated_at, recovery.damage.len()),
            (0, None, 0),
            "{name}"
        );
        assert_eq!(records_wait(&wal, 15).unwrap(), expected(15..=last + 300), "{name}");
        assert_eq!(wal.value("vote").as_deref(), Some(&b"for 2"[..]), "{name}");
    }
}
