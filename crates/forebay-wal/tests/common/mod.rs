//! Helpers shared by the tests.
#![allow(dead_code, reason = "each test crate uses a part of it")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use forebay::{Class, Config, Engine};
use forebay_wal::{ErrorKind, Lsn, Options, Recovery, Result, Wal};

/// Returns a directory on a real file system next to the build, where O_DIRECT works; `/tmp` is often in memory.
pub(crate) fn dir() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("forebay-wal-test-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a directory")
}

pub(crate) fn engine() -> Engine {
    Engine::start(Config::new()).expect("an engine")
}

/// Options with small segments, so that a test's log is made quickly and soon has many of them.
pub(crate) fn options() -> Options {
    Options::new().segment_bytes(64 << 10)
}

/// Options without automatic marks, so every append is a group of one unit, and damage falls on no mark that follows later.
pub(crate) fn quiet() -> Options {
    options().mark_after(Duration::from_secs(3600))
}

pub(crate) fn open(engine: &Engine, dir: &tempfile::TempDir) -> (Wal, Recovery) {
    Wal::open(engine, dir.path(), options()).wait().expect("the log opens")
}

/// An open waits for a log that this process has dropped, which ends in the background, for a second of the shard's clock.
const PATIENCE: Duration = Duration::from_millis(900);

/// Opens a log whose last handle was dropped, within the time of its end on a slow disk. An early refusal is a failure.
pub(crate) fn open_after_drop(engine: &Engine, dir: &tempfile::TempDir) -> (Wal, Recovery) {
    loop {
        let begun = Instant::now();
        match Wal::open(engine, dir.path(), options()).wait() {
            Err(error) if error.kind() == ErrorKind::Locked => {
                assert!(begun.elapsed() >= PATIENCE, "{error}")
            }
            opened => return opened.expect("the log opens"),
        }
    }
}

/// Holds an engine's first shard, on which nothing runs until the result is dropped.
pub(crate) fn hold(engine: &Engine) -> mpsc::Sender<()> {
    let (begins, begun) = mpsc::channel();
    let (held, released) = mpsc::channel();
    drop(engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let _ = begins.send(());
        let _ = released.recv();
    }));
    begun.recv().expect("the shard runs tasks");
    held
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

/// Appends the records with these numbers, each by itself.
pub(crate) fn append(wal: &Wal, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        assert_eq!(wal.append(&record(number)).wait().unwrap(), Lsn(number));
    }
}

/// Returns the records that are left in a log that was opened in spite of a loss.
pub(crate) async fn left(wal: &Wal) -> Result<BTreeMap<u64, Vec<u8>>> {
    let (mut records, mut reader) = (BTreeMap::new(), wal.read_from(wal.first_lsn()));
    loop {
        match reader.next().await.transpose() {
            Ok(Some(record)) => assert!(records.insert(record.lsn().0, record.to_vec()).is_none()),
            Ok(None) => return Ok(records),
            // A loss is reported again when its records are read.
            Err(error) => {
                let Some(lost) = error.loss() else { return Err(error) };
                assert_eq!(lost.first, reader.position());
                reader = wal.read_from(lost.last.next());
            }
        }
    }
}

/// The files of a log by their names.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// Returns the files of a log.
pub(crate) fn files(dir: &Path) -> Files {
    let files = forebay_test::live_files::files(dir).into_iter();
    files.map(|(name, bytes)| (name.to_string_lossy().into_owned(), bytes)).collect()
}

/// Puts these files into the place of a log's.
pub(crate) fn put(dir: &Path, files: &Files) {
    for name in self::files(dir).keys() {
        std::fs::remove_file(dir.join(name)).unwrap();
    }
    for (name, bytes) in files {
        std::fs::write(dir.join(name), bytes).unwrap();
    }
}
