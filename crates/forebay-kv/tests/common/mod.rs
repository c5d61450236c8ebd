//! Helpers shared by the tests.
#![allow(dead_code, reason = "each test crate uses a part of it")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use forebay::{Config, Engine};
use forebay_kv::{Batch, ErrorKind, Keyspace, Options, Store};

/// Returns a directory on a real file system, in the build directory, where O_DIRECT works; `/tmp` is often memory.
pub(crate) fn dir() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("forebay-kv-test-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a directory")
}

pub(crate) fn engine() -> Engine {
    Engine::start(Config::new().shards(2)).expect("an engine")
}

/// Returns engines with both drivers, where the machine has both.
pub(crate) fn engines() -> Vec<Engine> {
    let drivers = [forebay::DriverChoice::Auto, forebay::DriverChoice::Threads];
    let start = |driver| Engine::start(Config::new().shards(2).driver(driver)).expect("an engine");
    drivers.into_iter().map(start).collect()
}

/// Returns options with a small budget and small memtables, so that a test's store soon has tables.
pub(crate) fn options() -> Options {
    Options::new()
        .memory_bytes_max(Options::MEMORY_BYTES_MIN)
        .memtable_bytes(64 << 10)
        .log_segment_bytes(256 << 10)
}

pub(crate) fn open(engine: &Engine, dir: &tempfile::TempDir) -> Store {
    Store::open(engine, dir.path(), options()).wait().expect("the store opens")
}

/// An open waits for a store that this process has dropped, which ends in the background, for a second of the shard's clock.
const PATIENCE: Duration = Duration::from_millis(900);

/// Opens a store whose last handle was dropped, waiting for its end on a slow disk. A refusal that arrives early is a failure.
pub(crate) fn open_after_drop(engine: &Engine, dir: &tempfile::TempDir) -> Store {
    loop {
        let begun = Instant::now();
        match Store::open(engine, dir.path(), options()).wait() {
            Err(error) if error.kind() == ErrorKind::Locked => {
                assert!(begun.elapsed() >= PATIENCE, "{error}")
            }
            opened => return opened.expect("the store opens"),
        }
    }
}

/// Waits until the program holds no memory of a store: the last flush frees its memtable in the background.
pub(crate) fn nothing_is_held(store: &Store) {
    while store.stats().memory.held > 0 {
        std::thread::yield_now();
    }
}

/// Returns a pseudorandom number; neighbouring seeds give unrelated numbers.
pub(crate) fn random(seed: u64) -> u64 {
    forebay_test::draw::mix(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// Returns a key made from its number.
pub(crate) fn key(number: u64) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

/// Returns a value made from its number; its length differs from others'.
pub(crate) fn value(number: u64) -> Vec<u8> {
    let word = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    word.iter().copied().cycle().take(8 + (number % 900) as usize).collect()
}

/// Returns a batch that counts as this many bytes: keys from 1 on, with values of 20,000 bytes and a longer last one, and the
/// lengths of the values.
pub(crate) fn batch_of(keyspace: &Keyspace, bytes: u64) -> (Batch, Vec<u64>) {
    const VALUE: u64 = 20_000;
    // In addition to the values: 11 bytes and a key for each, and 6 for all.
    let (count, rest) = ((bytes - 6) / (VALUE + 21), (bytes - 6) % (VALUE + 21));
    let mut lens = vec![VALUE; count as usize];
    *lens.last_mut().expect("one value at least") += rest;
    let mut batch = Batch::new();
    for (number, len) in (1..).zip(&lens) {
        batch.put(keyspace, key(number), forebay_test::sweep::content(number, *len));
    }
    (batch, lens)
}

/// Writes a batch of puts and deletions of 1,500 keys to a keyspace and its model; the part of a round selects them.
pub(crate) fn change(
    store: &Store,
    keyspace: &Keyspace,
    model: &mut BTreeMap<Vec<u8>, Vec<u8>>,
    [round, part]: [u64; 2],
) {
    let mut batch = Batch::new();
    for index in 0..25 {
        let seed = random(round << 32 | part << 16 | index);
        let name = key(seed % 1500);
        if seed >> 40 & 1 == 0 {
            batch.delete(keyspace, &name);
            model.remove(&name);
        } else {
            batch.put(keyspace, &name, value(seed >> 20 & 0xffff));
            model.insert(name, value(seed >> 20 & 0xffff));
        }
    }
    store.write(&batch).wait().expect("a batch");
}

/// Returns all files below a directory with their contents. Those of the logs are left out because they
/// record an open, and the reserves because they are created in the background.
pub(crate) fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = forebay_test::live_files::files(dir).into_iter();
    let of_store = files.filter(|(name, _)| {
        let name = name.file_name().expect("a name").to_string_lossy();
        name != "reserve" && !name.ends_with(".wal") && !name.starts_with("wal.")
    });
    of_store.map(|(name, bytes)| (dir.join(name), bytes)).collect()
}

/// Returns a directory and all below it, with the bytes of files and the times of the last change.
pub(crate) fn everything(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let (mut found, mut dirs) = (BTreeMap::new(), vec![dir.to_path_buf()]);
    let modified = |path: &Path| path.metadata().and_then(|found| found.modified()).expect("a time");
    while let Some(dir) = dirs.pop() {
        found.insert(dir.clone(), (Vec::new(), modified(&dir)));
        for entry in std::fs::read_dir(&dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            found.insert(path.clone(), (std::fs::read(&path).expect("a file"), modified(&path)));
        }
    }
    found
}

/// Returns the files of a directory with this extension, in order of their names.
pub(crate) fn named(dir: &Path, end: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a directory");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|found| found == end));
    paths.sort();
    paths
}
