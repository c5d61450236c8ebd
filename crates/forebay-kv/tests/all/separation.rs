//! Long values that stay where they were written while compaction rewrites their keys.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{dir, engine, engines, named, options, random};
use forebay::Engine;
use forebay_kv::{Batch, Compression, ErrorKind, Options, Store};
use forebay_sim::{self as sim, World};
use forebay_test::worlds::{self, Draw};

type Values = BTreeMap<Vec<u8>, Vec<u8>>;

/// The length from which on the values of these tests are separated.
const LONG: u32 = 3_000;
const KEYS: u64 = 200;

fn separating() -> Options {
    options().separation_bytes(LONG).delete_batch_max(0)
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number:05}").into_bytes()
}

/// Returns a value; of four, two are long enough to be separated, one has a blob and one is in its leaf.
fn value(number: u64, version: u64) -> Vec<u8> {
    let seed = number | version << 32;
    let len = match number % 4 {
        0 => 100 + random(seed) % 200,
        1 => 1_200 + random(seed) % 1_000,
        _ => u64::from(LONG) + random(seed) % 6_000,
    };
    // Half of it repeats, so that it compresses.
    let words = (0u64..).flat_map(|at| random(seed ^ (at / 4 * 2 + at % 2) << 40).to_le_bytes());
    words.take(len as usize).collect()
}

fn put(store: &Store, values: &mut Values, numbers: impl Iterator<Item = u64>, version: u64) {
    for number in numbers {
        store.default_keyspace().put(key(number), value(number, version)).wait().expect("a put");
        values.insert(key(number), value(number, version));
    }
}

/// Asserts that the store has these values, by every way to read them.
fn assert_has(engine: &Engine, store: &Store, values: &Values) {
    let keys = store.default_keyspace();
    for (name, value) in values {
        assert_eq!(keys.get(name).wait().expect("a get").as_deref(), Some(&value[..]));
    }
    let many = keys.multi_get(values.keys()).wait().expect("gets");
    assert!(many.iter().zip(values.values()).all(|(found, value)| found.as_deref() == Some(&value[..])));
    let read = async |is_back: bool| {
        let mut range = if is_back { keys.iter().rev() } else { keys.iter() };
        let mut found = Vec::new();
        while let Some(entry) = range.next().await {
            let (name, value) = entry.expect("an entry");
            found.push((name, value.to_vec()));
        }
        found
    };
    let (forward, mut back) =
        engine.block_on(async { (read(false).await, read(true).await) }).expect("not on a shard");
    back.reverse();
    assert!(forward.iter().map(|(name, value)| (name, value)).eq(values.iter()), "forward");
    assert!(forward == back, "backward");
}

fn table_files(dir: &Path) -> Vec<PathBuf> {
    named(&dir.join("tables"), "fkv")
}

/// Returns the bytes of all tables on disk, after all pending removals.
fn table_bytes(dir: &Path) -> u64 {
    table_files(dir).iter().map(|path| std::fs::metadata(path).map_or(0, |file| file.len())).sum()
}

/// Makes a store whose long values have stayed in files of compacted tables.
fn made(engine: &Engine, at: &Path, options: Options) -> (Store, Values) {
    let store = Store::open(engine, at, options).wait().expect("a new store");
    let mut values = Values::new();
    put(&store, &mut values, 0..KEYS, 0);
    store.compact().wait().expect("a compaction");
    // New short values everywhere: the tables are rewritten.
    for _ in 0..3 {
        put(&store, &mut values, (0..KEYS).step_by(4), 1);
        store.compact().wait().expect("a compaction");
    }
    (store, values)
}

#[test]
fn compaction_leaves_long_values_where_they_are_and_every_read_finds_them() {
    for engine in engines() {
        for compression in [Compression::None, Compression::Lz4] {
            let (dir, options) = (dir(), separating().compression(compression));
            let (store, mut values) = made(&engine, dir.path(), options.clone());
            let stats = store.stats();
            assert!(stats.value_files > 0 && stats.value_live_bytes > 200_000, "{stats:?}");
            assert_has(&engine, &store, &values);
            let written = stats.compaction_written_bytes;
            put(&store, &mut values, (0..KEYS).step_by(8), 2);
            store.compact().wait().expect("a compaction");
            let written = store.stats().compaction_written_bytes - written;
            let short: usize = values.values().map(Vec::len).filter(|len| *len < LONG as usize).sum();
            assert!(written < short as u64 * 3 / 2 + 60_000, "{written} bytes for {short} of short values");
            let snapshot = store.snapshot();
            put(&store, &mut values, 2..3, 9);
            let past = snapshot.get(&store.default_keyspace(), &key(2)).wait().expect("a get");
            assert_eq!(past.as_deref(), Some(&value(2, 0)[..]));
            drop(snapshot);
            store.close().wait().expect("an end");
            // The manifest has the files.
            let store = Store::open(&engine, dir.path(), options).wait().expect("an open");
            assert_eq!(store.stats().orphans, 0);
            assert!(store.stats().value_files > 0);
            assert_has(&engine, &store, &values);
            let found = store.verify().wait().expect("a verification");
            assert!(found.is_whole() && found.entries >= KEYS, "{found:?}");
            store.close().wait().expect("an end");
            let found = forebay_kv::verify(&engine, dir.path()).wait().expect("a verification");
            assert!(found.is_whole() && found.leftovers.is_empty() && found.kept.is_empty(), "{found:?}");
        }
    }
}

/// Story: a count of entries read all their values.
#[test]
fn a_range_of_keys_leaves_values_outside_of_leaves_unread() {
    for engine in engines() {
        let dir = dir();
        let (store, mut values) = made(&engine, dir.path(), separating());
        // One is in memory.
        put(&store, &mut values, 2..3, 3);
        for is_back in [false, true] {
            let range = store.default_keyspace().iter().keys_only();
            let mut range = if is_back { range.rev() } else { range };
            let mut expected: Vec<_> = values.iter().collect();
            if is_back {
                expected.reverse();
            }
            let mut unread = 0;
            for (name, value) in expected {
                let (found, bytes) = range.next().wait().expect("an entry").expect("a read");
                assert_eq!(found, *name);
                if bytes.is_empty() {
                    unread += 1;
                } else {
                    assert!(bytes == value[..], "{} bytes of {}", bytes.len(), value.len());
                }
            }
            assert!(range.next().wait().is_none());
            // All but a quarter, and the one.
            assert_eq!(unread, KEYS * 3 / 4 - 1);
        }
    }
}

#[test]
fn without_separation_compaction_writes_long_values_again() {
    let (engine, dir) = (engine(), dir());
    let (store, values) = made(&engine, dir.path(), options().separation_bytes(u32::MAX));
    assert_eq!((store.stats().value_files, store.stats().value_live_bytes), (0, 0));
    assert_has(&engine, &store, &values);
    // Separation may be switched on and off with any open.
    store.close().wait().expect("an end");
    let store = Store::open(&engine, dir.path(), separating()).wait().expect("an open");
    let mut values = values;
    for version in 5..8 {
        put(&store, &mut values, (0..KEYS).step_by(4), version);
        store.compact().wait().expect("a compaction");
    }
    assert!(store.stats().value_files > 0);
    assert_has(&engine, &store, &values);
    store.close().wait().expect("an end");
    let store =
        Store::open(&engine, dir.path(), options().separation_bytes(u32::MAX)).wait().expect("an open");
    for version in 8..10 {
        put(&store, &mut values, (0..KEYS).step_by(4), version);
        store.compact().wait().expect("a compaction");
    }
    assert_eq!(store.stats().value_files, 0, "what is not separated any more is written with its key");
    assert_has(&engine, &store, &values);
}

#[test]
fn space_of_values_that_are_no_longer_needed_is_given_back() {
    let (engine, dir) = (engine(), dir());
    let (store, mut values) = made(&engine, dir.path(), separating());
    let before = table_bytes(dir.path());
    // Most long values get a successor, or are deleted.
    for number in (0..KEYS).filter(|number| number % 4 == 2) {
        store.default_keyspace().delete(key(number)).wait().expect("a delete");
        values.remove(&key(number));
    }
    put(&store, &mut values, (0..KEYS).filter(|number| number % 8 == 3), 4);
    store.compact().wait().expect("a compaction");
    store.settle().wait().expect("rest");
    assert_has(&engine, &store, &values);
    let live: u64 = values.values().map(|value| value.len() as u64).sum();
    let stats = store.stats();
    let dead = stats.value_file_bytes - stats.value_live_bytes;
    assert!(dead * 4 <= stats.value_file_bytes + 4096, "{dead} of {} are dead", stats.value_file_bytes);
    store.close().wait().expect("an end");
    let after = table_bytes(dir.path());
    assert!(after < before && after < live * 3 / 2, "{before} bytes before, {after} after, {live} of values");
}

#[test]
fn dropping_a_keyspace_or_a_range_removes_the_files_of_its_values() {
    let (engine, dir) = (engine(), dir());
    let (store, values) = made(&engine, dir.path(), separating());
    let other = store.keyspace("other").wait().expect("a keyspace");
    let batches = (0..3).map(|version| {
        for number in 0..KEYS / 2 {
            other.put(key(number), value(number | 1, version)).wait().expect("a put");
        }
        store.compact().wait().expect("a compaction");
    });
    batches.for_each(drop);
    let files = store.stats().value_files;
    store.drop_keyspace("other").wait().expect("a drop");
    assert!(store.stats().value_files <= files);
    assert_has(&engine, &store, &values);
    store.default_keyspace().delete_range(key(50)..key(150)).wait().expect("a delete");
    let mut values = values;
    values.retain(|name, _| !(key(50)..key(150)).contains(name));
    assert_has(&engine, &store, &values);
    store.default_keyspace().delete_range::<Vec<u8>>(..).wait().expect("a delete");
    assert_eq!((store.stats().value_files, store.stats().value_file_bytes), (0, 0));
    store.settle().wait().expect("rest");
    store.close().wait().expect("an end");
    assert_eq!(table_files(dir.path()), [] as [PathBuf; 0]);
}

#[test]
fn a_checkpoint_has_the_files_of_its_values() {
    let (engine, dir) = (engine(), dir());
    let (store, values) = made(&engine, &dir.path().join("store"), separating());
    let copy = dir.path().join("copy");
    store.checkpoint(&copy).wait().expect("a checkpoint");
    let batch = values.keys().fold(Batch::new(), |mut batch, name| {
        batch.delete(&store.default_keyspace(), name);
        batch
    });
    store.write(&batch).wait().expect("deletes");
    store.compact().wait().expect("a compaction");
    store.close().wait().expect("an end");
    let copy = Store::open(&engine, &copy, separating()).wait().expect("the copy opens");
    assert!(copy.stats().value_files > 0);
    assert_has(&engine, &copy, &values);
}

#[test]
fn a_missing_or_damaged_file_of_values_is_named() {
    let (engine, dir) = (engine(), dir());
    let (store, values) = made(&engine, dir.path(), separating());
    store.close().wait().expect("an end");
    // The oldest file has values only.
    let file = table_files(dir.path()).into_iter().next().expect("a file");
    let right = std::fs::read(&file).expect("bytes");
    let open = || Store::open(&engine, dir.path(), separating()).wait();
    // The first blob of the file is behind its first page.
    let handle = std::fs::OpenOptions::new().write(true).open(&file).expect("a file");
    for at in (4096..right.len() as u64 - 8192).step_by(4096) {
        handle.write_all_at(&[0x5a; 64], at).expect("damage");
    }
    let store = open().expect("an open reads no values");
    let mut errors = 0;
    for (name, value) in &values {
        match store.default_keyspace().get(name).wait() {
            Ok(found) => assert_eq!(found.as_deref(), Some(&value[..])),
            Err(error) => {
                assert_eq!((error.kind(), error.path()), (ErrorKind::Corruption, Some(&*file)));
                errors += 1;
            }
        }
    }
    assert!(errors > 5, "{errors} errors");
    let found = store.verify().wait().expect("a verification");
    assert!(
        !found.is_whole() && found.findings.iter().all(|error| error.path() == Some(&*file)),
        "{found:?}"
    );
    store.close().wait().expect("an end");
    for damaged in [&right[..right.len() - 4096], &right[..8192], &[]] {
        std::fs::write(&file, damaged).expect("damage");
        let error = open().map(drop).expect_err("a file that was cut");
        assert_eq!((error.kind(), error.path()), (ErrorKind::MissingTable, Some(&*file)), "{error}");
    }
    std::fs::remove_file(&file).expect("a removal");
    let error = open().map(drop).expect_err("a file that is gone");
    assert_eq!((error.kind(), error.path()), (ErrorKind::MissingTable, Some(&*file)), "{error}");
    std::fs::write(&file, &right).expect("a repair");
    assert_has(&engine, &open().expect("an open"), &values);
}

/// The contents that a world's store must have: of each key the version that was acknowledged last, and the one that is
/// being written, if any. Version 0 is a key that is not there.
#[derive(Clone, Default)]
struct SharedVersions(Arc<Mutex<Versions>>);

/// The version written last and the one under way, by key.
type Versions = BTreeMap<u64, (u64, Option<u64>)>;

impl SharedVersions {
    fn begin(&self, number: u64, version: u64) {
        self.0.lock().unwrap().entry(number).or_default().1 = Some(version);
    }

    fn end(&self, number: u64) {
        let mut all = self.0.lock().unwrap();
        let (last, open) = all.entry(number).or_default();
        if let Some(version) = open.take() {
            *last = version;
        }
    }

    /// Checks the value that was found; from now on it is the one that the store must have.
    fn judge(&self, number: u64, found: Option<&[u8]>) -> Result<(), String> {
        let mut all = self.0.lock().unwrap();
        let (last, open) = all.entry(number).or_default();
        for version in std::iter::once(*last).chain(*open) {
            let expected = (version > 0).then(|| value(number, version));
            if expected.as_deref() == found {
                (*last, *open) = (version, None);
                return Ok(());
            }
        }
        Err(format!(
            "key {number} has {:?} bytes instead of version {last} or {open:?}",
            found.map(<[u8]>::len)
        ))
    }
}

/// Lives in which a store had files with values only.
static LIVES_WITH_FILES: AtomicU64 = AtomicU64::new(0);

const WORLD_KEYS: u64 = 48;

async fn live(
    engine: Engine,
    expected: SharedVersions,
    steps: u64,
    has_separation: bool,
) -> Result<(), String> {
    let separation_bytes = if has_separation { LONG } else { u32::MAX };
    let options = separating()
        .separation_bytes(separation_bytes)
        .memtable_bytes(32 << 10)
        .log_segment_bytes(64 << 10)
        .store_id(7)
        .compression([Compression::None, Compression::Lz4][sim::random(2) as usize]);
    let fails = |error: forebay_kv::Error| format!("{error:?}");
    let store = Store::open(&engine, "/disk/kv", options).await.map_err(fails)?;
    let keys = store.default_keyspace();
    for number in 0..WORLD_KEYS {
        expected.judge(number, keys.get(&key(number)).await.map_err(fails)?.as_deref())?;
    }
    for step in 0..steps {
        let number = sim::random(WORLD_KEYS);
        match sim::random(40) {
            0 => store.compact().await.map_err(fails)?,
            1 => store.flush().await.map_err(fails)?,
            2 => store.settle().await.map_err(fails)?,
            3..=5 => {
                expected.begin(number, 0);
                keys.delete(key(number)).await.map_err(fails)?;
                expected.end(number);
            }
            6 => expected.judge(number, keys.get(&key(number)).await.map_err(fails)?.as_deref())?,
            _ => {
                // Short values change most, so that long values stay.
                let number = if sim::random(3) > 0 { number / 4 * 4 } else { number };
                let version = 1 + step + sim::random(1 << 20) * 1_000;
                expected.begin(number, version);
                keys.put(key(number), value(number, version)).await.map_err(fails)?;
                expected.end(number);
            }
        }
        if store.stats().value_files > 0 && step + 1 == steps {
            LIVES_WITH_FILES.fetch_add(1, Ordering::Relaxed);
        }
    }
    let found = store.verify().await.map_err(fails)?;
    if !found.is_whole() {
        return Err(format!("{found:?}"));
    }
    if sim::random(3) == 0 {
        store.close().await.map_err(fails)?;
    }
    Ok(())
}

fn attempt(world: &mut World) -> Result<(), String> {
    let mut draw = Draw::new(world.seed());
    world.add_disk(worlds::disk(&mut draw));
    let expected = SharedVersions::default();
    for life in 0..5 {
        worlds::silent_faults(&mut draw).into_iter().for_each(|rule| world.inject(rule));
        match draw.below(3) {
            0 => world.power_cut_after(Duration::from_micros(draw.below(400_000))),
            1 => world.power_cut_at_operation(1 + draw.below(600)),
            _ => {}
        }
        let (expected, steps, has_separation) = (expected.clone(), draw.below(160), draw.below(6) > 0);
        let live = async move |engine| live(engine, expected, steps, has_separation).await;
        worlds::live(world, true, live).map_err(|text| format!("life {life}: {text}"))?;
    }
    Ok(())
}

#[test]
fn power_cuts_lose_no_value_that_stays_in_its_file() {
    worlds::explore(50, attempt);
    let lives = LIVES_WITH_FILES.load(Ordering::Relaxed);
    assert!(worlds::is_single() || lives > 5, "{lives} lives had files of values");
}

const FIXTURE: &str = "tests/fixtures/v3-values";

fn of_fixture() -> Values {
    (0..20).map(|number| (key(number), value(number | 2, u64::from(number == 0)))).collect()
}

fn for_fixture() -> Options {
    separating()
        .memtable_bytes(256 << 10)
        .log_segment_bytes(64 << 10)
        .reserve_bytes(0)
        .store_id(0x0f0e_0b0a_0403)
}

#[test]
#[ignore = "writes the folder of the fixture, and no check needs it"]
fn make_a_fixture() {
    let (engine, at) = (engine(), PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(FIXTURE));
    let store = Store::open(&engine, &at, for_fixture()).wait().expect("a new store");
    let keys = store.default_keyspace();
    for version in 0..2 {
        for number in (0..20).filter(|number| version == 0 || *number == 0) {
            keys.put(key(number), value(number | 2, version)).wait().expect("a put");
        }
        store.compact().wait().expect("a compaction");
    }
    assert!(store.stats().value_files > 0);
    store.close().wait().expect("an end");
}

#[test]
fn a_store_whose_tables_refer_to_other_files_is_read() {
    let (engine, dir) = (engine(), dir());
    forebay_test::live_files::copy(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(FIXTURE), dir.path());
    let store = Store::open(&engine, dir.path(), for_fixture()).wait().expect("the fixture opens");
    assert!(store.stats().value_files > 0);
    assert_has(&engine, &store, &of_fixture());
    assert!(store.verify().wait().expect("a verification").is_whole());
    store.close().wait().expect("an end");
}
