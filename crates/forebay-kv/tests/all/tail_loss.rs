//! A store whose manifest or log lost its end is refused by an open and by a verification alike, and no file
//! that may be the only copy of data is removed.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::common::{dir, engine, everything, key, named, open, options, value};
use forebay::Engine;
use forebay_kv::{ErrorKind, Options, Store, VerifyReport};
use forebay_test::live_files::copy;

const LOADED: u64 = 300;

/// Zeros a file from an offset to its end; its length stays.
fn zero_from(path: &Path, at: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("the file");
    let len = file.metadata().expect("its length").len();
    file.write_all_at(&vec![0; (len - at) as usize], at).expect("zeros");
}

/// Returns the offset of the last byte of a file that is not zero.
fn end_of(path: &Path) -> u64 {
    let bytes = std::fs::read(path).expect("the file");
    bytes.iter().rposition(|&byte| byte != 0).map_or(0, |at| at as u64 + 1)
}

/// Opens a store and reads it. Returns its failure, or `None` if every value is there.
fn opened_and_read(
    engine: &Engine,
    dir: &Path,
    options: Options,
    expected: impl Fn(u64) -> Option<Vec<u8>>,
) -> Option<String> {
    let store = match Store::open(engine, dir, options).wait() {
        Ok(store) => store,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
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

/// Returns whether a verification found no loss. Damage that lost no record is a finding and no reason to
/// refuse a store.
fn is_harmless(verified: &VerifyReport) -> bool {
    verified.findings.iter().all(|finding| finding.to_string().contains("no record is lost"))
}

/// Zeros a log's end from each multiple of 4,096 bytes of its last two segments on, each time in a fresh copy
/// of the store, and compares the results of an open and a verification. A row may be whole if nothing is
/// missing, and no table may be removed.
///
/// Regression of the test: it cut only the last segment and failed where the records before had filled theirs
/// to the end, so that the last one held nothing but the mark of a clean end, whose loss is harmless.
fn every_cut(engine: &Engine, made: &Path, log: &str, expected: impl Fn(u64) -> Option<Vec<u8>>) {
    let place = dir();
    // At most one segment follows, prepared for later writes.
    let used = named(&made.join(log), "wal").into_iter().filter(|path| end_of(path) > 0);
    let mut used: Vec<PathBuf> = used.collect();
    used.sort();
    used.drain(..used.len().saturating_sub(2));
    let cuts = used
        .iter()
        .enumerate()
        .flat_map(|(index, segment)| (0..end_of(segment)).step_by(4096).skip(1).map(move |at| (index, at)));
    let (mut refused, mut whole) = (0, 0);
    for (index, at) in cuts {
        let row = place.path().join(format!("{log} {index} {at}"));
        copy(made, &row);
        for (number, segment) in used.iter().enumerate().skip(index) {
            let from = if number == index { at } else { 0 };
            zero_from(&row.join(log).join(segment.file_name().expect("a name")), from);
        }
        let before: BTreeSet<PathBuf> = named(&row.join("tables"), "fkv").into_iter().collect();
        let verified = forebay_kv::verify(engine, &row).wait();
        let is_whole = verified.as_ref().is_ok_and(VerifyReport::is_whole);
        if let Ok(verified) = &verified {
            assert!(verified.leftovers.is_empty() || is_whole, "{log} from {at}: {verified:?}");
        }
        let seen = everything(&row);
        // With memory for all records, as nothing is flushed.
        let to_read = options().memtable_bytes(512 << 10).read_only(true);
        let read = opened_and_read(engine, &row, to_read, &expected);
        assert!(everything(&row) == seen, "{log} from {at}: reading changed something");
        let said = opened_and_read(engine, &row, options(), &expected);
        assert_eq!(read, said, "{log} from {at}: a reader and a writer");
        let is_harmless = verified.as_ref().is_ok_and(is_harmless);
        assert_eq!(is_harmless, said.is_none(), "{log} from {at}: {verified:?}, and an open: {said:?}");
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

/// Regression: zeros from byte 8,192 of the manifest's log on leave the first record of a store. An open refused the rest, because
/// the log did not fit it. `forebay kv verify` called the store whole, and its only table "not needed, an open removes it".
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

/// Flushed values are overwritten and deleted by records that only the log has, in more than one segment of
/// it.
fn overwritten(engine: &Engine) -> tempfile::TempDir {
    let place = dir();
    // All of it stays in the log: no flush starts by itself.
    let options = options().memtable_bytes(512 << 10).log_segment_bytes(64 << 10);
    let store = Store::open(engine, place.path(), options).wait().expect("a new store");
    let keys = store.default_keyspace();
    for number in 0..LOADED {
        keys.put(key(number), "old").wait().expect("a put");
    }
    store.flush().wait().expect("a flush");
    for number in 0..LOADED {
        match newer(number) {
            Some(value) => keys.put(key(number), value).wait().expect("a put"),
            None => keys.delete(key(number)).wait().expect("a deletion"),
        }
    }
    store.close().wait().expect("an end");
    place
}

fn newer(number: u64) -> Option<Vec<u8>> {
    (!number.is_multiple_of(3)).then(|| value(number))
}

/// Regression: the mark of a clean end lies in the part of the log that is lost. So a store that had been closed opened without an
/// error although its last records were missing. Overwritten and deleted values reappeared, and a verification called the store
/// whole.
#[test]
fn a_log_that_lost_its_end_is_refused_by_all() {
    let engine = engine();
    let place = overwritten(&engine);
    every_cut(&engine, place.path(), "log", newer);
}

/// As above, with whole segments of the log missing.
#[test]
fn a_log_that_lost_its_last_segments_is_refused_by_all() {
    let (engine, rows) = (engine(), dir());
    let place = overwritten(&engine);
    let segments = named(&place.path().join("log"), "wal").len();
    assert!(segments > 2, "the log has {segments} segments");
    for kept in 0..segments {
        let row = rows.path().join(format!("row {kept}"));
        copy(place.path(), &row);
        for gone in &named(&row.join("log"), "wal")[kept..] {
            std::fs::remove_file(gone).expect("a segment goes");
        }
        let verified = forebay_kv::verify(&engine, &row).wait().expect("a verification");
        let said = opened_and_read(&engine, &row, options(), newer);
        assert_eq!(
            is_harmless(&verified),
            said.is_none(),
            "{kept} segments: {verified:?}, and an open: {said:?}"
        );
    }
}

/// The end of the log is recorded twice: in the log's own file and in the store's manifest. The manifest
/// alone is enough.
#[test]
fn the_manifest_alone_misses_the_end_of_a_log() {
    let engine = engine();
    let place = overwritten(&engine);
    for path in [place.path().join("log"), place.path().join("manifest")] {
        for entry in std::fs::read_dir(path).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.extension().is_none_or(|end| end != "wal") {
                std::fs::remove_file(&path).expect("it goes");
            }
        }
    }
    every_cut(&engine, place.path(), "log", newer);
}

/// The rest of a log that lost its end can be salvaged on request, and new writes are safe again.
#[test]
fn a_salvage_takes_what_is_left_and_says_what_is_missing() {
    let engine = engine();
    let place = overwritten(&engine);
    let mut segments = named(&place.path().join("log"), "wal");
    segments.retain(|path| end_of(path) > 0);
    // The last segment may hold only the mark of the end.
    segments.iter().rev().take(2).for_each(|path| zero_from(path, 0));
    let refused = Store::open(&engine, place.path(), options()).wait().expect_err("records are missing");
    assert_eq!(refused.kind(), ErrorKind::Corruption, "{refused}");

    let salvaging = options().memtable_bytes(512 << 10).salvage(true);
    let store = Store::open(&engine, place.path(), salvaging).wait().expect("a salvage");
    let recovery = store.recovery().clone();
    let keys = store.default_keyspace();
    let mut old = 0;
    for number in 0..LOADED {
        let found = keys.get(&key(number)).wait().expect("a get");
        let is_old = found.as_deref() == Some(b"old");
        assert!(is_old || found.as_deref() == newer(number).as_deref(), "key {number}: {found:?}");
        old += u64::from(is_old);
    }
    assert!((1..LOADED).contains(&old), "{old} of {LOADED} are old");
    let missing = recovery.log.lost.len() + usize::from(recovery.refused.is_some());
    assert!(missing > 0, "it does not say what is missing: {recovery:?}");
    keys.put("after", "the salvage").wait().expect("a put");
    store.close().wait().expect("an end");

    let verified = forebay_kv::verify(&engine, place.path()).wait().expect("a verification");
    assert!(verified.is_whole(), "{verified:?}");
    let store = Store::open(&engine, place.path(), options()).wait().expect("a whole store");
    assert!(store.recovery().refused.is_none() && store.recovery().replayed >= 1, "{:?}", store.recovery());
    let found = store.default_keyspace().get("after").wait().expect("a get");
    assert_eq!(found.as_deref(), Some(&b"the salvage"[..]));
    store.close().wait().expect("an end");
}

/// A crash's leftovers and tables whose edit the manifest lost look the same: the manifest names neither.
/// They are removed only where the record of the manifest's end shows that no edit is missing; without one
/// they are kept aside.
#[test]
fn a_table_that_nothing_names_is_kept_unless_the_manifest_is_proven() {
    let engine = engine();
    for is_proven in [true, false] {
        let place = overwritten(&engine);
        let tables = place.path().join("tables");
        let made = named(&tables, "fkv").remove(0);
        // The file contains its number, so only a file under its original name is accepted as a table.
        let (row, aside) = (tables.join("00000077.fkv"), tables.join("00000077.fkv.kept"));
        std::fs::write(&row, []).expect("a file that nothing names");
        if !is_proven {
            std::fs::remove_file(place.path().join("manifest/wal.end")).expect("the record of the end");
        }
        let verified = forebay_kv::verify(&engine, place.path()).wait().expect("a verification");
        let (leftovers, kept) = (verified.leftovers.len(), verified.kept.len());
        assert!(verified.is_whole(), "{verified:?}");
        assert_eq!((leftovers, kept), (usize::from(is_proven), usize::from(!is_proven)), "{verified:?}");
        let store = open(&engine, &place);
        let recovery = store.recovery();
        assert_eq!((recovery.removed.len(), recovery.kept.len()), (leftovers, kept), "{recovery:?}");
        store.close().wait().expect("an end");
        assert!(!row.exists() && aside.exists() != is_proven && made.exists());
    }
}

/// Regression: a load writes its tables past the log, so only the manifest names them. After a crash a
/// manifest that had lost the edit of a load was accepted, and the load's tables were removed as leftovers.
#[test]
fn a_loaded_table_whose_edit_is_lost_after_a_crash_is_missed() {
    let (engine, rows, place) = (engine(), dir(), dir());
    let store = open(&engine, &place);
    let entries = (0..LOADED).map(|number| (key(number), value(number)));
    store.default_keyspace().bulk_load(entries).wait().expect("a load");
    // The files that a crash leaves at this moment.
    let crashed = rows.path().join("crashed");
    copy(place.path(), &crashed);
    store.close().wait().expect("an end");
    every_cut(&engine, &crashed, "manifest", |number| Some(value(number)));
}
