//! A verification reads everything, names the damage, and changes nothing.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::common::{self, dir, engine, everything, key, open, options, value};
use forebay::Engine;
use forebay_kv::{ErrorKind, Store, VerifyReport};

/// Makes a closed store with tables of two levels, long values, deletions and a log.
fn made(engine: &Engine) -> tempfile::TempDir {
    let dir = dir();
    let store = open(engine, &dir);
    let keyspace = store.default_keyspace();
    for number in 0..400 {
        keyspace.put(key(number), value(number)).wait().unwrap();
    }
    keyspace.put("long", vec![9; 20_000]).wait().unwrap();
    store.compact().wait().unwrap();
    keyspace.delete(key(5)).wait().unwrap();
    keyspace.put_until(key(6), "for long", u64::MAX).wait().unwrap();
    store.flush().wait().unwrap();
    for number in 400..450 {
        keyspace.put(key(number), value(number)).wait().unwrap();
    }
    store.close().wait().unwrap();
    dir
}

fn verify(engine: &Engine, dir: &Path) -> VerifyReport {
    let before = everything(dir);
    let verified = forebay_kv::verify(engine, dir).wait().unwrap();
    assert!(everything(dir) == before, "verifying changed something");
    verified
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

fn named(dir: &Path, end: &str) -> PathBuf {
    common::named(dir, end).remove(0)
}

#[test]
fn a_whole_store_has_no_findings() {
    let engine = engine();
    let dir = made(&engine);
    let told = Arc::new(Mutex::new(Vec::new()));
    let telling = told.clone();
    let verified = forebay_kv::verify_with(&engine, dir.path(), move |done, total| {
        telling.lock().unwrap().push((done, total));
    });
    let verified = verified.wait().unwrap();
    assert!(verified.is_whole() && !verified.cut && verified.leftovers.is_empty(), "{verified:?}");
    assert!(verified.tables >= 2 && verified.table_bytes > 400 * 400, "{verified:?}");
    assert_eq!((verified.entries, verified.deleted, verified.expiring), (403, 1, 1), "{verified:?}");
    assert_eq!((verified.blobs, verified.records), (1, 50), "{verified:?}");
    let told = told.lock().unwrap();
    assert_eq!((told[0].0, told.last().copied()), (0, Some((verified.table_bytes, verified.table_bytes))));
    assert!(verify(&engine, dir.path()).is_whole());
}

#[test]
fn a_damaged_byte_is_named_wherever_it_is() {
    let engine = engine();
    let dir = made(&engine);
    let path = named(&dir.path().join("tables"), "fkv");
    let whole = std::fs::read(&path).unwrap();
    let units = whole.len() as u64 / 4096;
    for unit in 0..units {
        let at = unit * 4096 + 100;
        overwrite(&path, at, &[whole[at as usize] ^ 0x10]);
        let verified = verify(&engine, dir.path());
        assert_eq!(verified.findings.len(), 1, "unit {unit} of {units}: {verified:?}");
        let finding = &verified.findings[0];
        assert_eq!((finding.kind(), finding.path()), (ErrorKind::Corruption, Some(&*path)), "{finding}");
        assert!(finding.offset().is_some_and(|offset| offset <= at), "{finding}");
        overwrite(&path, at, &whole[at as usize..=at as usize]);
    }
    assert!(verify(&engine, dir.path()).is_whole());
}

#[test]
fn tables_and_logs_that_are_gone_or_damaged_are_all_named() {
    let engine = engine();
    let dir = made(&engine);
    let table = named(&dir.path().join("tables"), "fkv");
    std::fs::rename(&table, dir.path().join("tables/00099999.fkv")).unwrap();
    std::fs::rename(dir.path().join("log"), dir.path().join("aside")).unwrap();
    let verified = verify(&engine, dir.path());
    let found: Vec<_> = verified.findings.iter().map(|finding| (finding.kind(), finding.path())).collect();
    let log = dir.path().join("log");
    assert_eq!(found, [(ErrorKind::MissingTable, Some(&*table)), (ErrorKind::Corruption, Some(&*log))]);
    // An open refuses the store, so it removes nothing.
    assert_eq!(verified.kept, [dir.path().join("tables/00099999.fkv")]);
    assert!(verified.leftovers.is_empty(), "{verified:?}");
    std::fs::rename(dir.path().join("aside"), &log).unwrap();
    std::fs::rename(dir.path().join("tables/00099999.fkv"), &table).unwrap();
    assert!(verify(&engine, dir.path()).is_whole());

    std::fs::create_dir(dir.path().join("aside")).unwrap();
    for entry in std::fs::read_dir(dir.path().join("manifest")).unwrap() {
        let entry = entry.unwrap();
        std::fs::rename(entry.path(), dir.path().join("aside").join(entry.file_name())).unwrap();
    }
    let verified = verify(&engine, dir.path());
    assert!(verified.findings[0].to_string().contains("the manifest is empty"), "{verified:?}");
    std::fs::remove_dir(dir.path().join("manifest")).unwrap();
    std::fs::rename(dir.path().join("aside"), dir.path().join("manifest")).unwrap();

    // In the middle of the records that are in no table yet.
    let mut segments = everything(&log);
    segments.retain(|path, _| path.extension().is_some_and(|end| end == "wal"));
    let place = |bytes: &[u8]| bytes.windows(10).position(|window| window == key(420));
    let damaged = segments.iter().find_map(|(path, (bytes, _))| Some((path.clone(), place(bytes)?)));
    let (segment, at) = damaged.expect("the record");
    overwrite(&segment, at as u64, b"damage");
    let verified = verify(&engine, dir.path());
    assert_eq!(verified.findings.len(), 1, "{verified:?}");
    let finding = &verified.findings[0];
    assert!(finding.kind() == ErrorKind::Corruption && finding.path() == Some(&segment), "{finding}");
    assert!(finding.offset().is_some(), "{finding}");

    std::fs::rename(dir.path().join("manifest"), dir.path().join("aside")).unwrap();
    let verified = verify(&engine, dir.path());
    assert_eq!(verified.findings[0].kind(), ErrorKind::Corruption);
    assert!(verified.findings[0].to_string().contains("the manifest is gone"), "{verified:?}");
    std::fs::rename(dir.path().join("aside"), dir.path().join("manifest")).unwrap();
    overwrite(&named(&dir.path().join("manifest"), "wal"), 4096 + 200, b"damage");
    let verified = verify(&engine, dir.path());
    assert!(verified.findings[0].path().unwrap().starts_with(dir.path().join("manifest")), "{verified:?}");
}

#[test]
fn what_is_no_store_or_in_use_is_an_error() {
    let (engine, dir) = (engine(), dir());
    let kind = |path: &Path| forebay_kv::verify(&engine, path).wait().unwrap_err().kind();
    assert_eq!(kind(dir.path()), ErrorKind::NotFound);
    assert_eq!(kind(&dir.path().join("none")), ErrorKind::NotFound);
    std::fs::write(dir.path().join("file"), "").unwrap();
    assert_eq!(kind(&dir.path().join("file")), ErrorKind::InvalidInput);
    std::fs::remove_file(dir.path().join("file")).unwrap();
    let store = open(&engine, &dir);
    assert_eq!(kind(dir.path()), ErrorKind::Locked);
    store.close().wait().unwrap();
    assert!(verify(&engine, dir.path()).is_whole());
}

#[test]
fn a_store_that_is_open_verifies_itself() {
    let engine = engine();
    let dir = made(&engine);
    let store = open(&engine, &dir);
    let verified = store.verify().wait().unwrap();
    assert!(verified.is_whole() && verified.entries >= 403, "{verified:?}");
    let path = named(&dir.path().join("tables"), "fkv");
    overwrite(&path, 4096 + 300, b"damage");
    let verified = store.verify().wait().unwrap();
    assert_eq!(verified.findings.len(), 1, "{verified:?}");
    assert_eq!((verified.findings[0].path(), verified.findings[0].offset()), (Some(&*path), Some(4096)));
    // The store continues to work.
    store.default_keyspace().put("a", "1").wait().unwrap();
    store.close().wait().unwrap();
    assert_eq!(store.verify().wait().unwrap_err().kind(), ErrorKind::Closed);
    let _ = Store::open(&engine, dir.path(), options()).wait().map(|store| store.close().wait());
}

/// Regression: a scrub by a range compared the blocks that the store had left in its cache when it wrote them, and not those of the device;
/// a range in progress went on to do so.
#[test]
fn a_fresh_range_finds_damage_behind_the_cache() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    for number in 0..400 {
        keyspace.put(key(number), value(number)).wait().unwrap();
    }
    store.flush().wait().unwrap();
    let count = |mut range: forebay_kv::Range| {
        let mut entries = 0;
        while let Some(entry) = range.next().wait() {
            entry?;
            entries += 1;
        }
        Ok::<usize, forebay_kv::Error>(entries)
    };
    assert_eq!(count(keyspace.iter().fresh()).unwrap(), 400);
    for number in 0..400 {
        assert!(keyspace.get(&key(number)).wait().unwrap().is_some());
    }
    overwrite(&named(&dir.path().join("tables"), "fkv"), 4096 + 300, b"damage");
    assert_eq!(count(keyspace.iter()).unwrap(), 400, "its leaves are in the cache");
    let mut begun = keyspace.iter();
    assert!(begun.next().wait().unwrap().is_ok());
    for range in [keyspace.iter(), begun] {
        let error = count(range.fresh()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    }
    drop(store.close().wait());
}
