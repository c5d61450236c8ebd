//! A store that cannot be opened or written returns an error with the cause, and leaves everything unchanged.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{self, dir, engine, files, key, open, options, value};
use forebay::Engine;
use forebay_kv::{Batch, Error, ErrorKind, Options, Store};

fn open_error(engine: &Engine, dir: &Path) -> Error {
    Store::open(engine, dir, options()).wait().expect_err("no store to open")
}

/// Makes a closed store with tables and a log.
fn made(engine: &Engine) -> tempfile::TempDir {
    let dir = dir();
    let store = open(engine, &dir);
    let keyspace = store.default_keyspace();
    for number in 0..400 {
        keyspace.put(key(number), value(number)).wait().unwrap();
    }
    store.flush().wait().unwrap();
    for number in 400..450 {
        keyspace.put(key(number), value(number)).wait().unwrap();
    }
    store.close().wait().unwrap();
    dir
}

fn is_whole(engine: &Engine, dir: &Path) {
    let store = Store::open(engine, dir, options()).wait().expect("it opens again");
    for number in 0..450 {
        let found = store.default_keyspace().get(&key(number)).wait().unwrap();
        assert_eq!(found.as_deref(), Some(&value(number)[..]), "{number}");
    }
    store.close().wait().unwrap();
}

fn segment(dir: &Path) -> PathBuf {
    let mut segments: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| path.extension().is_some_and(|end| end == "wal"));
    segments.sort();
    segments.remove(0)
}

fn table(dir: &Path) -> PathBuf {
    let mut tables: Vec<_> =
        std::fs::read_dir(dir.join("tables")).unwrap().map(|entry| entry.unwrap().path()).collect();
    tables.sort();
    tables.remove(0)
}

#[test]
fn a_second_opener_is_refused_and_the_first_goes_on() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    store.default_keyspace().put("a", "1").wait().unwrap();
    let before = files(dir.path());
    let other = common::engine();
    for engine in [&engine, &other] {
        let error = open_error(engine, dir.path());
        assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
        assert!(error.path().is_some_and(|path| path.starts_with(dir.path())), "{error:?}");
    }
    assert_eq!(files(dir.path()), before);
    store.default_keyspace().put("a", "2").wait().unwrap();
    store.close().wait().unwrap();
    open(&other, &dir).close().wait().unwrap();
}

#[test]
fn a_directory_with_something_else_is_left_alone() {
    let (engine, dir) = (engine(), dir());
    std::fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    let error = open_error(&engine, dir.path());
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    assert!(error.to_string().contains("notes.txt"), "{error}");
    let error = open_error(&engine, &dir.path().join("notes.txt"));
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(names.len(), 1);
    // The root of a file system may have this directory.
    std::fs::remove_file(dir.path().join("notes.txt")).unwrap();
    std::fs::create_dir(dir.path().join("lost+found")).unwrap();
    open(&engine, &dir).close().wait().unwrap();
}

/// Regression: once its engine was closed, a put, an open and a verification failed with "task: the engine is closed". Of which store?
#[test]
fn a_store_whose_engine_was_closed_is_named() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    keyspace.put("a", "1").wait().unwrap();
    engine.clone().close().wait().unwrap();
    for error in [
        keyspace.put("b", "2").wait().unwrap_err(),
        keyspace.delete("a").relaxed().wait().unwrap_err(),
        store.sync().wait().unwrap_err(),
        store.keyspace("new").wait().map(drop).unwrap_err(),
        store.verify().wait().unwrap_err(),
        forebay_kv::verify(&engine, dir.path()).wait().unwrap_err(),
        open_error(&engine, dir.path()),
    ] {
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        assert!(error.to_string().contains(&*dir.path().to_string_lossy()), "{error}");
    }
}

/// Story: a store was closed, opened again, and a key changed. On a handle of the closed one `compare_and_set` said that the key has the
/// value of before.
#[test]
fn a_closed_store_compares_nothing() {
    let (engine, dir) = (engine(), dir());
    let closed = open(&engine, &dir);
    let keyspace = closed.default_keyspace();
    keyspace.put("key", "1").wait().unwrap();
    closed.close().wait().unwrap();
    let store = open(&engine, &dir);
    store.default_keyspace().put("key", "2").wait().unwrap();
    for expected in [None, Some(&b"1"[..]), Some(&b"2"[..])] {
        let error = keyspace.compare_and_set("key", expected, Some(b"3")).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
    store.close().wait().unwrap();
}

/// Whether the next call of the clock panics, unless it is the test's thread that calls.
static CLOCK_PANICS: AtomicBool = AtomicBool::new(false);
thread_local! { static IS_CALLER: Cell<bool> = const { Cell::new(false) } }

fn clock_that_panics() -> u64 {
    let panics = !IS_CALLER.get() && CLOCK_PANICS.swap(false, Ordering::AcqRel);
    assert!(!panics, "a clock of the program's");
    1_000
}

/// Story: the task that compacts tables panicked, in a clock of the program's, and the store was open without it: `settle` waited for
/// ever, and level 0 grew.
#[test]
fn a_store_whose_task_panics_is_read_only() {
    let (engine, dir) = (engine(), dir());
    IS_CALLER.set(true);
    let open = || Store::open(&engine, dir.path(), options().clock(clock_that_panics)).wait().unwrap();
    let store = open();
    let keyspace = store.default_keyspace();
    keyspace.put("a", "1").wait().unwrap();
    store.settle().wait().unwrap();
    CLOCK_PANICS.store(true, Ordering::Release);
    for error in [
        store.settle().wait().unwrap_err(),
        store.compact().wait().unwrap_err(),
        keyspace.put("b", "2").wait().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
        assert!(error.to_string().contains("panicked, so the store is read-only"), "{error}");
        assert!(error.to_string().contains(&*dir.path().to_string_lossy()), "{error}");
    }
    assert_eq!(keyspace.get(b"a").wait().unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(store.close().wait().unwrap_err().kind(), ErrorKind::ReadOnly);
    let store = open();
    assert_eq!(store.default_keyspace().get(b"a").wait().unwrap().as_deref(), Some(&b"1"[..]));
    store.close().wait().unwrap();
}

/// Regression: an empty path gave "open : No such file".
#[test]
fn an_empty_path_is_named_as_one() {
    let error = open_error(&engine(), Path::new(""));
    assert!(error.to_string().contains("empty path"), "{error}");
}

#[test]
fn a_store_that_was_not_to_be_made_is_not() {
    let (engine, dir) = (engine(), dir());
    for path in [dir.path().join("none"), dir.path().to_path_buf()] {
        let error = Store::open(&engine, &path, options().create(false)).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    open(&engine, &dir).close().wait().unwrap();
    Store::open(&engine, dir.path(), options().create(false)).wait().unwrap().close().wait().unwrap();
}

/// Makes one change, expects this error at a path with this name twice, and undoes the change: all data is
/// there.
fn refuses(hurt: impl Fn(&Path) -> Box<dyn FnOnce()>, is_right: impl Fn(&Error, &Path) -> bool) {
    let engine = engine();
    let dir = made(&engine);
    let dir = dir.path();
    let mend = hurt(dir);
    let before = files(dir);
    for _ in 0..2 {
        let error = open_error(&engine, dir);
        assert!(is_right(&error, dir), "{error:?} of {:?}", error.path());
        assert!(files(dir) == before, "an open that was refused changed files");
    }
    mend();
    is_whole(&engine, dir);
}

/// Story: the place aside had the name of the directory that all tests share, and of two of them at once one failed.
fn moved(from: PathBuf) -> Box<dyn FnOnce()> {
    let aside = dir();
    let to = aside.path().join("moved");
    std::fs::rename(&from, &to).unwrap();
    Box::new(move || {
        std::fs::rename(&to, &from).unwrap();
        drop(aside);
    })
}

fn overwritten(path: PathBuf, at: usize, bytes: &[u8]) -> Box<dyn FnOnce()> {
    let whole = std::fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    damaged[at..at + bytes.len()].copy_from_slice(bytes);
    std::fs::write(&path, damaged).unwrap();
    Box::new(move || std::fs::write(&path, whole).unwrap())
}

fn is_corruption_at(error: &Error, path: &Path) -> bool {
    error.kind() == ErrorKind::Corruption && error.path().is_some_and(|found| found.starts_with(path))
}

#[test]
fn a_damaged_manifest_is_named() {
    refuses(
        |dir| overwritten(segment(&dir.join("manifest")), 4096 + 200, b"damage"),
        |error, dir| is_corruption_at(error, &dir.join("manifest")),
    );
}

#[test]
fn a_manifest_that_is_gone_is_missed() {
    refuses(|dir| moved(dir.join("manifest")), is_corruption_at);
}

#[test]
fn a_log_that_is_gone_is_missed() {
    refuses(|dir| moved(dir.join("log")), |error, dir| is_corruption_at(error, &dir.join("log")));
}

#[test]
fn a_table_that_is_gone_is_named() {
    let is_right = |error: &Error, dir: &Path| {
        error.kind() == ErrorKind::MissingTable
            && error.path().is_some_and(|path| path.starts_with(dir.join("tables")))
    };
    refuses(|dir| moved(table(dir)), is_right);
    let cut = |dir: &Path| -> Box<dyn FnOnce()> {
        let path = table(dir);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 4096]).unwrap();
        Box::new(move || std::fs::write(&path, whole).unwrap())
    };
    refuses(cut, is_right);
}

#[test]
fn a_table_with_a_damaged_end_is_named() {
    let hurt = |dir: &Path| {
        let path = table(dir);
        let end = std::fs::metadata(&path).unwrap().len() as usize;
        overwritten(path, end - 4000, b"damage")
    };
    refuses(hurt, |error, dir| is_corruption_at(error, &dir.join("tables")) && error.offset().is_some());
}

/// Damage to a leaf is found when the leaf is read, and affects nothing else.
#[test]
fn a_table_with_a_damaged_leaf_answers_an_error_and_never_a_wrong_value() {
    let engine = engine();
    let dir = made(&engine);
    let path = table(dir.path());
    let mend = overwritten(path.clone(), 4096 + 300, b"damage");
    let store = open(&engine, &dir);
    let mut errors = 0;
    for number in 0..450 {
        match store.default_keyspace().get(&key(number)).wait() {
            Ok(found) => assert_eq!(found.as_deref(), Some(&value(number)[..])),
            Err(error) => {
                assert_eq!((error.kind(), error.path()), (ErrorKind::Corruption, Some(&*path)), "{error}");
                assert_eq!(error.offset(), Some(4096), "{error}");
                errors += 1;
            }
        }
    }
    assert!(errors > 0);
    store.close().wait().unwrap();
    mend();
    is_whole(&engine, dir.path());
}

/// Appends a record to a log of a store as a future version would: the store's logs are ordinary logs.
fn append(engine: &Engine, dir: &Path, record: &[u8]) {
    let options = forebay_wal::Options::new().segment_bytes(256 << 10);
    let (wal, _) = forebay_wal::Wal::open(engine, dir, options).wait().unwrap();
    wal.append(record).wait().unwrap();
    wal.close().wait().unwrap();
}

#[test]
fn unknown_versions_are_refused() {
    for (log, record) in [("manifest", &[9, 3][..]), ("log", &[9, 0, 1, 0, 0, 0][..])] {
        let engine = engine();
        let dir = made(&engine);
        append(&engine, &dir.path().join(log), record);
        let before = files(dir.path());
        let error = open_error(&engine, dir.path());
        assert_eq!(error.kind(), ErrorKind::Version { found: 9 }, "{error}");
        assert!(error.path().is_some_and(|path| path.ends_with(log)), "{error:?}");
        assert!(files(dir.path()) == before);
    }
    // An invalid record of this version is damage.
    for (log, record) in [("manifest", &[1, 3, 255][..]), ("log", &[1, 0, 1, 0, 0, 0, 7][..])] {
        let engine = engine();
        let dir = made(&engine);
        append(&engine, &dir.path().join(log), record);
        let error = open_error(&engine, dir.path());
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    }
}

#[test]
fn what_a_crash_left_goes_and_what_is_others_stays() {
    let engine = engine();
    let dir = made(&engine);
    let tables = dir.path().join("tables");
    let (empty, others) = (tables.join("00000777.fkv"), tables.join("00000778.fkv"));
    std::fs::write(&empty, [0; 8192]).unwrap();
    std::fs::write(&others, b"not a table of ours").unwrap();
    std::fs::write(tables.join("readme.txt"), "mine").unwrap();
    // One of our files, with a number that the manifest does not name.
    let orphan = tables.join("00000700.fkv");
    let store = open(&engine, &dir);
    assert_eq!(store.stats().orphans, 1);
    assert!(!empty.exists() && others.exists() && tables.join("readme.txt").exists() && !orphan.exists());
    // New tables get unused numbers.
    store.default_keyspace().put("new", "1").wait().unwrap();
    store.flush().wait().unwrap();
    assert!(tables.join("00000779.fkv").exists());
    store.close().wait().unwrap();
    is_whole(&engine, dir.path());
}

#[test]
fn what_cannot_be_written_is_refused_and_the_store_goes_on() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    let long = vec![1; (16 << 10) + 1];
    let refused = |result: forebay_kv::Result<()>| result.unwrap_err().kind();
    let too_long = ErrorKind::TooLarge { limit: 16 << 10 };
    assert_eq!(refused(keyspace.put(&long, "x").wait()), too_long);
    assert_eq!(refused(keyspace.delete(&long).wait()), too_long);
    assert_eq!(keyspace.get(&long).wait().unwrap_err().kind(), too_long);
    assert_eq!(refused(keyspace.put("", "x").wait()), ErrorKind::InvalidInput);
    let value = vec![0; 100_000];
    assert!(matches!(refused(keyspace.put("k", &value).wait()), ErrorKind::TooLarge { .. }));
    let mut batch = Batch::new();
    batch.put(&keyspace, "a", "1").put(&keyspace, &long, "2");
    assert_eq!(refused(store.write(&batch).wait()), too_long);
    // Many small changes use more bytes in memory than in the log.
    let mut batch = Batch::new();
    for number in 0..3000u32 {
        batch.put(&keyspace, number.to_le_bytes(), "");
    }
    assert!(matches!(refused(store.write(&batch).wait()), ErrorKind::TooLarge { .. }));
    assert_eq!(store.keyspace("").wait().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(store.keyspace(&"n".repeat(256)).wait().unwrap_err().kind(), ErrorKind::InvalidInput);

    let elsewhere = common::dir();
    let other = open(&engine, &elsewhere);
    let mut batch = Batch::new();
    batch.put(&keyspace, "a", "1");
    assert_eq!(refused(other.write(&batch).wait()), ErrorKind::InvalidInput);
    batch.put(&other.default_keyspace(), "a", "1");
    assert_eq!(refused(store.write(&batch).wait()), ErrorKind::InvalidInput);
    let snapshot = other.snapshot();
    assert_eq!(snapshot.get(&keyspace, "a").wait().unwrap_err().kind(), ErrorKind::InvalidInput);

    assert_eq!(keyspace.get("a").wait().unwrap(), None);
    keyspace.put("a", "1").wait().unwrap();
    assert!(store.stats().failed.is_none());
}

#[test]
fn options_out_of_range_are_refused() {
    let (engine, dir) = (engine(), dir());
    let bad = [
        options().memory_bytes_max(Options::MEMORY_BYTES_MIN - 1),
        options().memtable_bytes(1),
        options().memtable_bytes(1 << 40),
        options().leaf_bytes(5000),
        options().shard(99),
        options().log_segment_bytes(1),
    ];
    for options in bad {
        let error = Store::open(&engine, dir.path().join("x"), options).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}

#[test]
fn values_that_the_program_keeps_have_a_limit() {
    let (engine, dir) = (engine(), dir());
    let options = Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN);
    let store = Store::open(&engine, dir.path(), options).wait().unwrap();
    let keyspace = store.default_keyspace();
    let long = vec![3; 512 << 10];
    keyspace.put("k", &long).wait().unwrap();
    store.flush().wait().unwrap();
    let mut kept = Vec::new();
    let error = loop {
        match keyspace.get("k").wait() {
            Ok(found) => kept.push(found.expect("it is there")),
            Err(error) => break error,
        }
        assert!(kept.len() < 32, "{:?}", store.stats().memory);
    };
    assert!(matches!(error.kind(), ErrorKind::MemoryBudget { held } if held > 1 << 20), "{error}");
    assert!(kept.len() > 1 && kept.iter().all(|value| *value == long[..]));
    drop(kept);
    assert_eq!(keyspace.get("k").wait().unwrap().as_deref(), Some(&long[..]));
    assert!(store.stats().memory.held < 1 << 20);
}
