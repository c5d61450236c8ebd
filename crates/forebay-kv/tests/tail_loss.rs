//! A store whose manifest or log lost its end is refused, by an open and by a verification alike, and no file that may
//! be the only copy of something goes away.

mod common;

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use common::{dir, engine, key, open, options, value};
use forebay::Engine;
use forebay_kv::{ErrorKind, Store};

const LOADED: u64 = 300;

/// The files of a directory whose names end so, in order.
fn named(dir: &Path, end: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a directory");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|found| found == end));
    paths.sort();
    paths
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("a new directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name");
        match path.is_dir() {
            true => copy(&path, &to.join(name)),
            false => drop(std::fs::copy(&path, to.join(name)).expect("a copy")),
        }
    }
}

/// Zeros a file from a byte to its end; its length stays.
fn zero_from(path: &Path, at: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("the file");
    let len = file.metadata().expect("its length").len();
    file.write_all_at(&vec![0; (len - at) as usize], at).expect("zeros");
}

/// Where the last byte of a file lies that is not zero.
fn end_of(path: &Path) -> u64 {
    let bytes = std::fs::read(path).expect("the file");
    bytes.iter().rposition(|&byte| byte != 0).map_or(0, |at| at as u64 + 1)
}

/// What is wrong with a store that is opened and read: `None` if every value is there.
fn opened_and_read(engine: &Engine, dir: &Path, expected: impl Fn(u64) -> Option<Vec<u8>>) -> Option<String> {
    let store = match Store::open(engine, dir, options()).wait() {
        Ok(store) => store,
        Err(error) => {
            assert_eq!(*error.kind(), ErrorKind::Corruption, "{error}");
            return Some(error.to_string());
        }
    };
    for number in 0..LOADED {
        let found = store.default_keyspace().get(&key(number)).wait().expect("a whole store");
        assert_eq!(found.as_deref(), expected(number).as_deref(), "key {number}, quietly");
    }
    store.close().wait().expect("an end");
    None
}

/// Zeros a log's only segment from each 4,096 bytes on, each time in a fresh copy of the store, and compares what an
/// open and a verification say. A row may be whole if nothing is missing, and no table may go away.
fn every_cut(engine: &Engine, made: &Path, log: &str, expected: impl Fn(u64) -> Option<Vec<u8>>) {
    let place = dir();
    let segment = named(&made.join(log), "wal").pop().expect("a segment");
    let (mut refused, mut whole) = (0, 0);
    for at in (0..end_of(&segment)).step_by(4096).skip(1) {
        let row = place.path().join(format!("{log} {at}"));
        copy(made, &row);
        zero_from(&row.join(log).join(segment.file_name().expect("a name")), at);
        let before: BTreeSet<PathBuf> = named(&row.join("tables"), "fkv").into_iter().collect();
        let verified = forebay_kv::verify(engine, &row).wait();
        let is_whole = verified.as_ref().is_ok_and(|verified| verified.is_whole());
        if let Ok(verified) = &verified {
            assert!(verified.leftovers.is_empty() || is_whole, "{log} from {at}: {verified:?}");
        }
        let said = opened_and_read(engine, &row, &expected);
        assert_eq!(is_whole, said.is_none(), "{log} from {at}: {verified:?}, and an open: {said:?}");
        let after: BTreeSet<PathBuf> = named(&row.join("tables"), "fkv").into_iter().collect();
        assert!(after.is_superset(&before), "{log} from {at}: of {before:?} {after:?} is left");
        if is_whole {
            whole += 1
        } else {
            refused += 1
        }
        std::fs::remove_dir_all(&row).expect("a row goes");
    }
    println!("{log}: {refused} rows refused, {whole} whole");
    assert!(refused > 0, "no row of {log} showed a loss");
}

/// Zeros from byte 8,192 of the manifest's log leave the record that begins a store. An open refused the rest, because
/// the log did not fit it; `forebay kv verify` called the store whole, and its only table "not needed, an open removes
/// it".
#[test]
fn a_manifest_that_lost_its_end_is_refused_by_all() {
    let (engine, place) = (engine(), dir());
    let store = open(&engine, &place);
    for number in 0..LOADED {
        store.default_keyspace().put(key(number), value(number)).wait().expect("a put");
    }
    store.flush().wait().expect("a flush");
    store.close().wait().expect("an end");
    every_cut(&engine, place.path(), "manifest", |number| Some(value(number)));
}
