//! Sorted files that a store ingests: atomically, newer than all earlier entries, and unchanged.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{self, change, dir, engine, engines, files, key, open, options, random, value};
use forebay::{Config, Engine};
use forebay_kv::{
    Compression, ErrorKind, Isolation, Keyspace, Options, SortedFile, SortedFileInfo, SortedFileOptions,
    Stats, Store,
};

/// A key's value, or `None` for a deletion.
type Entries = BTreeMap<Vec<u8>, Option<Vec<u8>>>;
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const PAGE: u64 = 4096;

fn written_with(
    engine: &Engine,
    path: &Path,
    entries: &Entries,
    options: SortedFileOptions,
) -> SortedFileInfo {
    let mut file = SortedFile::create(engine, path, options).wait().expect("a new file");
    for (key, value) in entries {
        match value {
            Some(value) => file.put(key, value).wait().expect("a put"),
            None => file.delete(key).wait().expect("a deletion"),
        }
    }
    file.finish().wait().expect("an end")
}

fn written(engine: &Engine, path: &Path, entries: &Entries) -> SortedFileInfo {
    written_with(engine, path, entries, SortedFileOptions::new())
}

fn entries(numbers: impl IntoIterator<Item = u64>) -> Entries {
    numbers.into_iter().map(|number| (key(number), Some(value(number)))).collect()
}

fn apply(model: &mut Model, entries: &Entries) {
    for (key, value) in entries {
        match value {
            Some(value) => model.insert(key.clone(), value.clone()),
            None => model.remove(key),
        };
    }
}

fn content(mut range: forebay_kv::Range) -> Model {
    let mut found = Model::new();
    while let Some((key, value)) = range.next().wait().transpose().expect("an entry") {
        found.insert(key, value.to_vec());
    }
    found
}

fn is_like(keyspace: &Keyspace, model: &Model) {
    assert!(content(keyspace.iter()) == *model);
    for (key, value) in model.iter().step_by(7) {
        assert_eq!(keyspace.get(key).wait().expect("a get").as_deref(), Some(&value[..]));
    }
}

/// Returns the tables of each level of the default keyspace.
fn levels(stats: &Stats) -> Vec<usize> {
    stats.keyspaces[0].levels.iter().map(|level| level.tables).collect()
}

/// Runs `fails` until it has returned its result, and asserts that nothing has changed below two directories.
fn unchanged<T>(dirs: [&Path; 2], fails: impl FnOnce() -> T) -> T {
    let before = dirs.map(files);
    let result = fails();
    // Files of an attempt are removed before the call returns.
    assert!(dirs.map(files) == before, "something was changed");
    result
}

#[test]
fn a_file_becomes_a_table_as_it_is() {
    for engine in engines() {
        let dir = dir();
        let path = dir.path().join("users.sorted");
        let at = dir.path().join("store");
        let info = written(&engine, &path, &entries(0..5_000));
        assert_eq!((info.entries, info.deleted, &info.path), (5_000, 0, &path));
        assert_eq!((info.smallest, info.largest), (key(0), key(4_999)));
        let (inode, bytes) =
            std::fs::metadata(&path).map(|found| (found.ino(), found.len())).expect("the file");
        assert_eq!(info.bytes, bytes);

        let store = Store::open(&engine, &at, options()).wait().expect("a store");
        let keyspace = store.default_keyspace();
        let written = |stats: &Stats| (stats.flushes, stats.compactions, stats.log.records);
        let before = store.stats();
        let ingested = store.ingest([(&keyspace, &path)]).wait().expect("an ingest");
        let file = &ingested.files[0];
        assert_eq!((file.level, file.entries, file.bytes), (6, 5_000, bytes));
        assert_eq!(
            (&file.path, &*file.keyspace, file.is_copied, file.is_left),
            (&path, "default", false, false)
        );
        let stats = store.stats();
        assert_eq!(written(&stats), written(&before), "nothing was written again");
        assert_eq!((stats.ingested_bytes, levels(&stats)), (bytes, vec![0, 0, 0, 0, 0, 0, 1]));
        let tables = common::named(&at.join("tables"), "fkv");
        assert_eq!(std::fs::metadata(&tables[0]).expect("a table").ino(), inode, "it is the same file");
        assert!(!path.exists());

        let mut model = Model::new();
        apply(&mut model, &entries(0..5_000));
        is_like(&keyspace, &model);
        let copy = dir.path().join("copy");
        store.checkpoint(&copy).wait().expect("a checkpoint");
        assert!(store.verify().wait().expect("a verification").is_whole());
        store.close().wait().expect("an end");
        for at in [&at, &copy] {
            let verified = forebay_kv::verify(&engine, at).wait().expect("a verification");
            assert!(verified.is_whole() && verified.entries == 5_000, "{verified:?}");
            let store = Store::open(&engine, at, options()).wait().expect("a store");
            assert!(store.recovery().removed.is_empty() && store.recovery().kept.is_empty());
            is_like(&store.default_keyspace(), &model);
            store.compact().wait().expect("a compaction");
            is_like(&store.default_keyspace(), &model);
            store.close().wait().expect("an end");
        }
    }
}

/// Ingests into a keyspace that has puts and deletions of the same keys at every stage: in memory, in level 0, and in
/// lower levels. Snapshots keep their moment. Files have deletions, long and compressed values.
#[test]
fn a_file_is_newer_than_what_was_there_and_older_than_what_comes() {
    let (engine, dir) = (engine(), dir());
    let at = dir.path().join("store");
    let store = Store::open(&engine, &at, options().memtable_bytes(32 << 10)).wait().expect("a store");
    let keyspace = store.default_keyspace();
    let (mut model, mut pasts, mut seen) = (Model::new(), Vec::new(), BTreeMap::new());
    for round in 0..24u64 {
        (0..4).for_each(|part| change(&store, &keyspace, &mut model, [round, part]));
        match round % 5 {
            0 => store.flush().wait().expect("a flush"),
            1 => store.settle().wait().expect("rest"),
            2 if round % 3 == 0 => store.compact().wait().expect("a compaction"),
            _ => {}
        }
        let (first, step) = (random(round) % 1500, 1 + random(round + 1) % 5);
        // Sometimes outside the range of all other keys.
        let base = if round % 7 == 3 { 10_000 + 1_000 * round } else { first };
        let mut two = [Entries::new(), Entries::new()];
        for (index, number) in (base..base + 300).step_by(step as usize).enumerate() {
            let value = match index % 20 {
                3 | 4 => None,
                7 => Some(vec![round as u8; 3_000 + 100 * index]),
                _ => Some(value(number * 31 + round)),
            };
            two[usize::from(number >= base + 150)].insert(key(number), value);
        }
        let compression = if round % 2 == 0 { Compression::None } else { Compression::Lz4 };
        let paths = ["one", "two"].map(|name| dir.path().join(format!("{name} {round}")));
        for (path, entries) in paths.iter().zip(&two) {
            written_with(&engine, path, entries, SortedFileOptions::new().compression(compression));
        }
        let ingested = store.ingest(paths.iter().map(|path| (&keyspace, path))).wait().expect("an ingest");
        ingested.files.iter().for_each(|file| *seen.entry(file.level).or_insert(0) += 1);
        two.iter().for_each(|entries| apply(&mut model, entries));
        is_like(&keyspace, &model);
        pasts.push((store.snapshot(), model.clone()));
        keyspace.put(key(first), "after").wait().expect("a put");
        keyspace.delete(key(first + step)).wait().expect("a deletion");
        model.insert(key(first), b"after".to_vec());
        model.remove(&key(first + step));
        is_like(&keyspace, &model);
        for (snapshot, then) in &pasts {
            assert!(content(snapshot.iter(&keyspace)) == *then, "a snapshot has changed");
        }
        if pasts.len() > 2 {
            pasts.remove(0);
        }
        if round % 12 == 7 {
            pasts.clear();
            store.compact().wait().expect("a compaction");
            is_like(&keyspace, &model);
        }
    }
    println!("files by level: {seen:?}");
    assert!(seen.keys().any(|level| *level == 0) && seen.keys().any(|level| *level > 4), "{seen:?}");
    drop(pasts);
    store.close().wait().expect("an end");
    let verified = forebay_kv::verify(&engine, &at).wait().expect("a verification");
    assert!(verified.is_whole(), "{verified:?}");
    let store = Store::open(&engine, &at, options()).wait().expect("a store");
    is_like(&store.default_keyspace(), &model);
}

/// Readers see all files of an ingest, in both keyspaces, or no file.
#[test]
fn readers_see_all_files_or_none() {
    let (engine, dir) = (engine(), dir());
    let store = Store::open(&engine, dir.path().join("store"), options()).wait().expect("a store");
    let spaces = ["one", "two"].map(|name| store.keyspace(name).wait().expect("a keyspace"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..25u64 {
                let paths = [0, 1].map(|number| dir.path().join(format!("{round} {number}")));
                for path in &paths {
                    let all = (0..150).map(|number| (key(number), Some(value(round)))).collect();
                    written(&engine, path, &all);
                }
                store.ingest(spaces.iter().zip(&paths)).wait().expect("an ingest");
            }
            over.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            let mut number = 0u64;
            while !over.load(Ordering::Acquire) {
                number += 1;
                // Between the files' keys, and so locked now and then.
                spaces[0].put(format!("key {:06}x", number % 150), "put").wait().expect("a put");
                if number.is_multiple_of(100) {
                    store.flush().wait().expect("a flush");
                }
            }
        });
        scope.spawn(|| {
            let mut last = None;
            while !over.load(Ordering::Acquire) {
                let snapshot = store.snapshot();
                let mut values: Vec<Vec<u8>> = Vec::new();
                for space in &spaces {
                    let found = content(snapshot.iter(space)).into_iter();
                    values.extend(found.filter(|(key, _)| !key.ends_with(b"x")).map(|(_, value)| value));
                }
                assert!(values.len().is_multiple_of(300), "{} values", values.len());
                assert!(values.windows(2).all(|pair| pair[0] == pair[1]), "of two ingests");
                let now = values.first().map(Vec::len);
                assert!(now >= last, "{now:?} after {last:?}: an ingest is undone");
                last = now;
            }
        });
    });
}

/// Transactions copy a key's value to another one, and every file sets both to the same value. With writers that commit
/// while a file becomes visible, the copy would be newer than the file although its origin is older.
#[test]
fn no_write_comes_between_a_file_and_its_place() {
    let (engine, dir) = (engine(), dir());
    let store = Store::open(&engine, dir.path().join("store"), options()).wait().expect("a store");
    let keyspace = store.default_keyspace();
    let over = AtomicBool::new(false);
    let set = |number: u64| {
        let path = dir.path().join(format!("file {number}"));
        let both = ["from", "to"].map(|key| (key.as_bytes().to_vec(), Some(value(number))));
        written(&engine, &path, &Entries::from(both));
        store.ingest([(&keyspace, &path)]).wait().expect("an ingest");
    };
    set(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (1..30).for_each(set);
            over.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            let (mut done, mut lost) = (0, 0);
            while !over.load(Ordering::Acquire) {
                let mut copy = store.transaction(Isolation::Serializable);
                let from = copy.get(&keyspace, "from").wait().expect("a get").expect("a value");
                copy.put(&keyspace, "to", &*from).expect("a change");
                match copy.commit().wait() {
                    Ok(()) => done += 1,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                        lost += 1;
                    }
                }
            }
            println!("{done} copies, {lost} conflicts");
        });
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                let snapshot = store.snapshot();
                let [from, to] =
                    ["from", "to"].map(|key| snapshot.get(&keyspace, key).wait().expect("a get"));
                assert!(from == to, "a copy is newer than its origin");
            }
        });
    });
}

#[test]
fn transactions_swaps_and_feeds_see_an_ingest() {
    let (engine, dir) = (engine(), dir());
    let store = Store::open(&engine, dir.path().join("store"), options()).wait().expect("a store");
    let keyspace = store.default_keyspace();
    keyspace.put("other", "1").wait().expect("a put");
    let mut feed = store.changes(store.snapshot().lsn().next());
    keyspace.put("other", "2").wait().expect("a put");
    assert_eq!(
        feed.next().wait().expect("open").expect("a change").entries[0].value.as_deref(),
        Some(&b"2"[..])
    );
    let mut transaction = store.transaction(Isolation::Snapshot);
    transaction.put(&keyspace, key(3), "own").expect("a change");
    let before = store.snapshot();
    let path = dir.path().join("file");
    written(&engine, &path, &entries(0..10));
    let ingested = store.ingest([(&keyspace, &path)]).wait().expect("an ingest");
    assert!(ingested.lsn >= before.lsn());

    let lost = transaction.commit().wait().expect_err("it has not seen the file");
    assert_eq!(lost.kind(), ErrorKind::Conflict);
    assert!(lost.to_string().contains("an ingest"), "{lost}");
    keyspace.put("other", "3").wait().expect("a put");
    let lagged = feed.next().wait().expect("open").expect_err("the file is not in the log");
    assert_eq!(lagged.kind(), ErrorKind::Lagged);
    assert!(lagged.to_string().contains("an ingest"), "{lagged}");
    assert!(before.get(&keyspace, &key(3)).wait().expect("a get").is_none());
    let swapped =
        keyspace.compare_and_set(&key(3), Some(&value(3)), Some(b"swapped")).wait().expect("a swap");
    assert_eq!(swapped, forebay_kv::SwapOutcome::Done);
    let mut transaction = store.transaction(Isolation::Serializable);
    assert_eq!(transaction.get(&keyspace, &key(4)).wait().expect("a get").as_deref(), Some(&value(4)[..]));
    transaction.put(&keyspace, key(4), "own").expect("a change");
    transaction.commit().wait().expect("nothing has changed since");
    assert_eq!(keyspace.get(&key(3)).wait().expect("a get").as_deref(), Some(&b"swapped"[..]));
}

#[test]
fn a_sorted_file_refuses_keys_out_of_order_and_goes_no_further() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("file");
    for (wrong, kind) in [
        (key(999), ErrorKind::InvalidInput),
        (key(998), ErrorKind::InvalidInput),
        (Vec::new(), ErrorKind::InvalidInput),
        (vec![b'z'; 20_000], ErrorKind::TooLarge { limit: 16 << 10 }),
    ] {
        let mut file = SortedFile::create(&engine, &path, SortedFileOptions::new()).wait().expect("a file");
        (0..1000).for_each(|number| file.put(key(number), value(number)).wait().expect("a put"));
        assert_eq!((file.entries(), file.path()), (1000, &*path));
        let error = file.put(&wrong, "x").wait().expect_err("a wrong key");
        assert_eq!(error.kind(), kind, "{error}");
        if wrong.starts_with(b"key") {
            assert!(error.to_string().contains("entry 1000 of the sorted file"), "{error}");
            assert!(error.to_string().contains("not above the one before it"), "{error}");
        }
        assert_eq!(file.delete("zz").wait().expect_err("it has failed").to_string(), error.to_string());
        assert_eq!(file.finish().wait().expect_err("it has failed").to_string(), error.to_string());
        assert!(!path.exists(), "an unfinished file stays");
    }
    let limit = 16 << 20;
    let mut file = SortedFile::create(&engine, &path, SortedFileOptions::new()).wait().expect("a file");
    let error = file.put("long", vec![0; limit + 1]).wait().expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::TooLarge { limit });
    file.abandon().wait().expect("it goes");
    let empty = SortedFile::create(&engine, &path, SortedFileOptions::new()).wait().expect("a file");
    assert_eq!(empty.finish().wait().expect_err("no entry").kind(), ErrorKind::InvalidInput);
    assert!(!path.exists());
    std::fs::write(&path, "mine").expect("a file");
    let error = SortedFile::create(&engine, &path, SortedFileOptions::new()).wait().expect_err("it is there");
    assert_eq!((error.kind(), error.path()), (ErrorKind::AlreadyExists, Some(&*path)));
    assert_eq!(std::fs::read(&path).expect("a file"), b"mine");
    let odd = SortedFileOptions::new().leaf_bytes(5000);
    let error = SortedFile::create(&engine, dir.path().join("odd"), odd).wait().expect_err("no leaf size");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(!dir.path().join("odd").exists());
}

/// Each kind of file that a store refuses. The error names the file; the file and the store stay as they were.
#[test]
fn refused_files_are_named_and_nothing_has_changed() {
    let (engine, dir) = (engine(), dir());
    let (at, from) = (dir.path().join("store"), dir.path().join("files"));
    std::fs::create_dir(&from).expect("a directory");
    let store = Store::open(&engine, &at, options()).wait().expect("a store");
    let keyspace = store.default_keyspace();
    keyspace.bulk_load((0..10).map(|number| (key(number), value(number)))).wait().expect("a load");
    let good = from.join("good");
    written(&engine, &good, &entries(100..5000));
    let bytes = std::fs::metadata(&good).expect("a file").len();
    let variant = |name: &str, change: &dyn Fn(&std::fs::File)| {
        let path = from.join(name);
        std::fs::copy(&good, &path).expect("a copy");
        change(&std::fs::OpenOptions::new().write(true).open(&path).expect("the copy"));
        path
    };
    let flip = |file: &std::fs::File, at: u64| {
        file.write_all_at(&[0xA5, 0x5A], at).expect("other bytes");
    };
    std::fs::write(from.join("text"), "no table at all").expect("a file");
    std::fs::write(from.join("empty"), "").expect("a file");
    std::fs::copy(&common::named(&at.join("tables"), "fkv")[0], from.join("table")).expect("a copy");
    let version = |file: &std::fs::File| {
        // A version from the future, with its checksum: only the version is wrong.
        let mut unit = std::fs::read(&good).expect("a file")[..PAGE as usize].to_vec();
        unit[24] = 9;
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &unit[4..]) as u32;
        unit[..4].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&unit, 0).expect("a header");
    };
    let cases: Vec<(PathBuf, ErrorKind, &str)> = vec![
        (
            variant("no footer", &|file| file.set_len(bytes - PAGE).expect("a cut")),
            ErrorKind::Corruption,
            "no footer",
        ),
        (
            variant("cut", &|file| file.set_len(bytes - 100).expect("a cut")),
            ErrorKind::Corruption,
            "no footer",
        ),
        (variant("one page", &|file| file.set_len(PAGE).expect("a cut")), ErrorKind::Corruption, "no footer"),
        (
            variant("longer", &|file| file.set_len(bytes + PAGE).expect("a page")),
            ErrorKind::Corruption,
            "no footer",
        ),
        (variant("footer", &|file| flip(file, bytes - PAGE + 100)), ErrorKind::Corruption, "no footer"),
        (variant("leaf", &|file| flip(file, bytes / 2)), ErrorKind::Corruption, ""),
        (variant("first leaf", &|file| flip(file, PAGE + 1000)), ErrorKind::Corruption, ""),
        (variant("header", &|file| flip(file, 10)), ErrorKind::Foreign, "sorted file"),
        (variant("version", &version), ErrorKind::Version { found: 0x109 }, "later one"),
        (from.join("text"), ErrorKind::Foreign, "sorted file"),
        (from.join("empty"), ErrorKind::Corruption, "finish the sorted file"),
        (from.join("table"), ErrorKind::Foreign, "not tables of a store"),
        (from.join("nothing"), ErrorKind::NotFound, "no such file"),
        (common::named(&at.join("tables"), "fkv")[0].clone(), ErrorKind::InvalidInput, "elsewhere"),
    ];
    for (path, kind, text) in cases {
        // The good file of the same call is not ingested either.
        let both = [(&keyspace, &good), (&keyspace, &path)];
        let error = unchanged([&at, &from], || store.ingest(both).wait().expect_err("a wrong file"));
        assert_eq!((error.kind(), error.path()), (kind, Some(&*path)), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    // The same keys twice, in one keyspace; in two it is allowed.
    let second = variant("second", &|_| ());
    let error = unchanged([&at, &from], || {
        store.ingest([(&keyspace, &good), (&keyspace, &second)]).wait().expect_err("the same keys")
    });
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("which are newer") && error.path().is_some(), "{error}");
    // A file that is still written.
    let path = from.join("open");
    let mut file = SortedFile::create(&engine, &path, SortedFileOptions::new()).wait().expect("a file");
    (0..1000).for_each(|number| file.put(key(number), value(number)).wait().expect("a put"));
    let error = store.ingest([(&keyspace, &path)]).wait().expect_err("it is open");
    assert_eq!((error.kind(), error.path()), (ErrorKind::Locked, Some(&*path)), "{error}");
    drop(file);
    loop {
        let error = store.ingest([(&keyspace, &path)]).wait().expect_err("it was not finished");
        // The lock ends when the file is closed, in the background.
        if error.kind() != ErrorKind::Locked {
            assert_eq!((error.kind(), error.path()), (ErrorKind::Corruption, Some(&*path)), "{error}");
            break;
        }
    }
    // A keyspace of another store, and a dropped keyspace.
    let other = Store::open(&engine, dir.path().join("other"), options()).wait().expect("a store");
    let error = store.ingest([(&other.default_keyspace(), &good)]).wait().expect_err("of another store");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let gone = store.keyspace("gone").wait().expect("a keyspace");
    store.drop_keyspace("gone").wait().expect("it goes");
    let error = unchanged([&at, &from], || {
        store.ingest([(&keyspace, &good), (&gone, &second)]).wait().expect_err("it is gone")
    });
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    // After all of that the good files are ingested, and damage that no check covered is found when it is read.
    let space = store.keyspace("second").wait().expect("a keyspace");
    store.ingest([(&keyspace, &good), (&space, &second)]).wait().expect("good files");
    let damaged = from.join("leaf");
    assert_eq!(store.ingest(std::iter::empty::<(&Keyspace, &Path)>()).wait().expect("nothing").files, []);
    let third = store.keyspace("third").wait().expect("a keyspace");
    store.ingest([(&third, &damaged)]).unverified().wait().expect("its ends are whole");
    assert!(!store.verify().wait().expect("a verification").is_whole());
    common::nothing_is_held(&store);
    store.close().wait().expect("an end");
    let error = store.ingest([(&keyspace, &good)]).wait().expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::Closed);
}

/// Sorted files have no number of the store's, and the manifest has theirs. One under the name of another is found.
#[test]
fn a_file_under_the_name_of_another_is_refused() {
    let (engine, dir) = (engine(), dir());
    let at = dir.path().join("store");
    let store = Store::open(&engine, &at, options()).wait().expect("a store");
    let (keyspace, second) = (store.default_keyspace(), store.keyspace("second").wait().expect("a keyspace"));
    // With the same keys, lengths and counts: only the number distinguishes them.
    for keyspace in [&keyspace, &second] {
        let path = dir.path().join("file");
        let all = (100..200).map(|number| (key(number), Some(b"value".to_vec()))).collect();
        written(&engine, &path, &all);
        store.ingest([(keyspace, &path)]).wait().expect("an ingest");
    }
    store.close().wait().expect("an end");
    let tables = common::named(&at.join("tables"), "fkv");
    let [one, two] = &tables[..] else { panic!("{tables:?}") };
    assert_eq!(
        std::fs::metadata(one).expect("a table").len(),
        std::fs::metadata(two).expect("a table").len()
    );
    let aside = at.join("tables/aside");
    for (from, to) in [(one, &aside), (two, one), (&aside, two)] {
        std::fs::rename(from, to).expect("another name");
    }
    let error = Store::open(&engine, &at, options()).wait().expect_err("the wrong files");
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    assert!(error.to_string().contains("the table's footer"), "{error}");
    assert!(!forebay_kv::verify(&engine, &at).wait().expect("a verification").is_whole());
}

#[test]
fn a_value_that_the_store_could_not_compact_is_refused() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("file");
    let mut all = entries(0..10);
    all.insert(key(5), Some(vec![7; 5 << 20]));
    written(&engine, &path, &all);
    let store = Store::open(&engine, dir.path().join("store"), options()).wait().expect("a store");
    let error = store.ingest([(&store.default_keyspace(), &path)]).wait().expect_err("a small store");
    assert!(matches!(error.kind(), ErrorKind::TooLarge { .. }), "{error}");
    assert!(error.to_string().contains("larger `Options::memory_bytes_max`"), "{error}");
    store.close().wait().expect("an end");
    let engine = Engine::start(Config::new().shards(2).arena_bytes_max(1 << 30)).expect("an engine");
    let store =
        Store::open(&engine, dir.path().join("store"), Options::new().memory_bytes_max(128 << 20)).wait();
    let store = store.expect("a larger store");
    let keyspace = store.default_keyspace();
    store.ingest([(&keyspace, &path)]).wait().expect("it fits");
    store.compact().wait().expect("a compaction");
    assert_eq!(keyspace.get(&key(5)).wait().expect("a get").map(|value| value.len()), Some(5 << 20));
}

/// A store keeps its own compression, independent of the compression of the files that it ingests.
#[test]
fn the_compression_of_a_file_is_not_that_of_the_store() {
    let (engine, dir) = (engine(), dir());
    let (path, at) = (dir.path().join("file"), dir.path().join("store"));
    let all = (0..2000).map(|number| (key(number), Some(vec![number as u8; 200]))).collect();
    written_with(&engine, &path, &all, SortedFileOptions::new().compression(Compression::Lz4));
    let store = Store::open(&engine, &at, options()).wait().expect("a store");
    store.ingest([(&store.default_keyspace(), &path)]).wait().expect("an ingest");
    assert!(store.stats().keyspaces[0].levels[6].saved_bytes > 0, "the file is compressed");
    store.close().wait().expect("an end");
    let store = Store::open(&engine, &at, options()).wait().expect("a store");
    store.compact().wait().expect("a compaction");
    assert_eq!(store.stats().keyspaces[0].levels[6].saved_bytes, 0, "the store is not");
}

/// One file in two stores and two keyspaces, by its own name and by a symbolic link.
#[test]
fn files_that_are_kept_can_be_ingested_again() {
    let (engine, dir) = (engine(), dir());
    let (path, link) = (dir.path().join("file"), dir.path().join("link"));
    written(&engine, &path, &entries(0..500));
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    let mut model = Model::new();
    apply(&mut model, &entries(0..500));
    for name in ["one", "two"] {
        let store = Store::open(&engine, dir.path().join(name), options()).wait().expect("a store");
        let (keyspace, second) =
            (store.default_keyspace(), store.keyspace("second").wait().expect("a keyspace"));
        let third = store.keyspace("third").wait().expect("a keyspace");
        let both = [(&keyspace, &path), (&second, &path)];
        let ingested = store.ingest(both).keep_files().wait().expect("an ingest");
        assert!(ingested.files.iter().all(|file| file.is_left && !file.is_copied));
        // Its target has no second name by way of the link.
        let ingested = store.ingest([(&third, &link)]).keep_files().wait().expect("an ingest");
        assert!(ingested.files[0].is_left && ingested.files[0].is_copied);
        for keyspace in [keyspace, second, third] {
            is_like(&keyspace, &model);
            keyspace.compact::<&str>(..).wait().expect("a compaction");
            is_like(&keyspace, &model);
        }
        store.close().wait().expect("an end");
        assert!(
            forebay_kv::verify(&engine, dir.path().join(name)).wait().expect("a verification").is_whole()
        );
    }
    // A file given twice and not kept is removed once.
    let store = Store::open(&engine, dir.path().join("three"), options()).wait().expect("a store");
    let (keyspace, second) = (store.default_keyspace(), store.keyspace("second").wait().expect("a keyspace"));
    let ingested = store.ingest([(&keyspace, &path), (&second, &path)]).wait().expect("an ingest");
    assert!(ingested.files.iter().all(|file| !file.is_left) && !path.exists());
    is_like(&second, &model);
}

#[test]
fn a_file_from_another_file_system_is_copied() {
    let (engine, dir) = (engine(), dir());
    let Ok(elsewhere) = tempfile::tempdir_in("/dev/shm") else { return };
    let device = |path: &Path| std::fs::metadata(path).expect("a directory").dev();
    if device(elsewhere.path()) == device(dir.path()) {
        return;
    }
    let path = elsewhere.path().join("file");
    written(&engine, &path, &entries(0..5000));
    let store = Store::open(&engine, dir.path(), options()).wait().expect("a store");
    let keyspace = store.default_keyspace();
    let ingested = store.ingest([(&keyspace, &path)]).wait().expect("an ingest");
    assert!(ingested.files[0].is_copied && !ingested.files[0].is_left && !path.exists());
    let mut model = Model::new();
    apply(&mut model, &entries(0..5000));
    is_like(&keyspace, &model);
    assert!(store.verify().wait().expect("a verification").is_whole());
}

/// Many files over keys that are there would make level 0 slow all writers. They are compacted first instead.
#[test]
fn many_files_do_not_crowd_level_0() {
    let (engine, dir) = (engine(), dir());
    let store = Store::open(&engine, dir.path().join("store"), options()).wait().expect("a store");
    let keyspace = store.default_keyspace();
    let mut model = Model::new();
    for number in 0..6000 {
        model.insert(key(number), b"old".to_vec());
    }
    keyspace.bulk_load(model.iter()).wait().expect("a load");
    keyspace.put(key(0), "new").wait().expect("a put");
    keyspace.put(key(5999), "new").wait().expect("a put");
    store.flush().wait().expect("a flush");
    let paths: Vec<PathBuf> = (0..30).map(|number| dir.path().join(format!("file {number}"))).collect();
    for (index, path) in (0..).zip(&paths) {
        let all = entries((index * 200..(index + 1) * 200).step_by(2));
        written(&engine, path, &all);
        apply(&mut model, &all);
    }
    model.insert(key(5999), b"new".to_vec());
    let ingested = store.ingest(paths.iter().map(|path| (&keyspace, path))).wait().expect("an ingest");
    let upper = ingested.files.iter().filter(|file| file.level == 0).count();
    assert!(upper <= 20 && ingested.files.len() == 30, "{upper} files in level 0");
    is_like(&keyspace, &model);
    store.settle().wait().expect("rest");
    is_like(&keyspace, &model);
}

#[test]
fn values_of_a_file_expire() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("file");
    let mut file = SortedFile::create(&engine, &path, SortedFileOptions::new()).wait().expect("a file");
    file.put_until("a", "1", 1000).wait().expect("a put");
    file.put_until("b", "2", 1001).wait().expect("a put");
    file.put("c", "3").wait().expect("a put");
    file.finish().wait().expect("an end");
    let store =
        Store::open(&engine, dir.path().join("store"), options().clock(|| 1000)).wait().expect("a store");
    let keyspace = store.default_keyspace();
    keyspace.put("a", "before").wait().expect("a put");
    store.ingest([(&keyspace, &path)]).wait().expect("an ingest");
    let found: Vec<Vec<u8>> = content(keyspace.iter()).into_keys().collect();
    assert_eq!(found, [b"b", b"c"]);
    store.close().wait().expect("an end");
    let later = options().clock(|| 1001);
    let store = Store::open(&engine, dir.path().join("store"), later).wait().expect("a store");
    store.compact().wait().expect("a compaction");
    assert_eq!(store.stats().keyspaces[0].levels[6].entries, 1);
}

/// A file full of deletions deletes, and leaves nothing behind.
#[test]
fn deletions_of_a_file_delete_and_go() {
    let (engine, dir) = (engine(), dir());
    let store = open(&engine, &dir);
    let keyspace = store.default_keyspace();
    let files = dir.path().with_extension("files");
    std::fs::create_dir(&files).expect("a directory");
    for is_full in [true, false] {
        if is_full {
            keyspace.bulk_load((0..2000).map(|number| (key(number), value(number)))).wait().expect("a load");
        }
        let path = files.join("file");
        written(&engine, &path, &(0..2000).map(|number| (key(number), None)).collect());
        store.ingest([(&keyspace, &path)]).wait().expect("an ingest");
        assert!(content(keyspace.iter()).is_empty());
        store.settle().wait().expect("rest");
        let entries: u64 = store.stats().keyspaces[0].levels.iter().map(|level| level.entries).sum();
        assert_eq!(entries, 0, "deletions with nothing below stay");
    }
    std::fs::remove_dir_all(files).expect("it goes");
}

/// A future that is dropped after its first poll: the ingest continues.
#[tokio::test]
async fn an_ingest_goes_on_without_its_future() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("file");
    let mut file = SortedFile::create(&engine, &path, SortedFileOptions::new()).await.expect("a file");
    file.put("a", "1").await.expect("a put");
    file.finish().await.expect("an end");
    let store = Store::open(&engine, dir.path().join("store"), options()).await.expect("a store");
    let keyspace = store.default_keyspace();
    {
        let mut ingest = store.ingest([(&keyspace, &path)]);
        let _ = futures::poll!(&mut ingest);
    }
    while keyspace.get("a").await.expect("a get").is_none() {
        tokio::task::yield_now().await;
    }
    store.close().await.expect("an end");
}
