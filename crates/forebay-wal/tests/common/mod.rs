//! Helpers shared by the tests.
#![allow(dead_code, reason = "each test crate uses a part of it")]

use forebay::{Config, Engine};
use forebay_wal::{Lsn, Options, Recovery, Result, Wal};

/// Returns a directory on a real file system beside the build, where O_DIRECT works; `/tmp` is often in
/// memory.
pub(crate) fn dir() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("forebay-wal-test-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a directory")
}

pub(crate) fn engine() -> Engine {
    Engine::start(Config::default()).expect("an engine")
}

/// Options with small segments, so that a test's log is made quickly and soon has many of them.
pub(crate) fn options() -> Options {
    Options::new().segment_bytes(64 << 10)
}

pub(crate) fn open(engine: &Engine, dir: &tempfile::TempDir) -> (Wal, Recovery) {
    Wal::open(engine, dir.path(), options()).wait().expect("the log opens")
}

/// Returns a record that identifies itself; its length differs from others'.
pub(crate) fn record(number: u64) -> Vec<u8> {
    let word = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    let mut record = number.to_le_bytes().to_vec();
    record.extend(word.iter().cycle().take((number % 300) as usize));
    record
}

/// Returns all durable records from `first` on.
pub(crate) async fn records(wal: &Wal, first: u64) -> Result<Vec<(u64, Vec<u8>)>> {
    let mut reader = wal.read_from(Lsn(first));
    let mut records = Vec::new();
    while let Some(record) = reader.next().await.transpose()? {
        records.push((record.lsn().0, record.to_vec()));
    }
    Ok(records)
}

/// As [`records`], on a plain thread.
pub(crate) fn records_wait(wal: &Wal, first: u64) -> Result<Vec<(u64, Vec<u8>)>> {
    let mut reader = wal.read_from(Lsn(first));
    let mut records = Vec::new();
    while let Some(record) = reader.next().wait().transpose()? {
        records.push((record.lsn().0, record.to_vec()));
    }
    Ok(records)
}

/// Returns the records with these LSNs, as [`record`] makes them.
pub(crate) fn expected(lsns: std::ops::RangeInclusive<u64>) -> Vec<(u64, Vec<u8>)> {
    lsns.map(|lsn| (lsn, record(lsn))).collect()
}
