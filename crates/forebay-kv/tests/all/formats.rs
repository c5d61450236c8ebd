//! Stores that earlier versions of this crate wrote are opened, read and rewritten. Each folder of
//! `tests/fixtures` is a closed store, and each file a sorted file; the name has the version of the table format, and the codec.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::{self, dir, engine, key, named};
#[cfg(all(feature = "_mutants", feature = "zstd"))]
use crate::moved;
use forebay::Engine;
use forebay_kv::{Batch, Compression, Error, ErrorKind, Options, SortedFile, SortedFileOptions, Store};
#[cfg(all(feature = "_mutants", feature = "zstd"))]
use forebay_sim::{Profile, World};
use forebay_test::live_files::copy;

/// The time at which fixtures were written and are read: between the expiries of the two kinds of values.
const NOW_S: u64 = 1_000_000;
/// Keys of the loaded table.
const LOADED: u64 = 500;

type Values = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    let small = common::options().log_segment_bytes(64 << 10).reserve_bytes(0);
    small.store_id(0x0f0e_0b0a_0402).clock(|| NOW_S)
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Returns a value that compresses to less than half: words of one byte each.
fn text(number: u64, len: usize) -> Vec<u8> {
    let words = (0u64..).flat_map(|at| [b'a' + (common::random(number ^ at << 32) % 26) as u8; 12]);
    words.take(len).collect()
}

/// Returns the contents of the keyspace "default", and those of the keyspace "second".
fn contents() -> (Values, Values) {
    let mut first: Values = (0..LOADED).map(|number| (key(number), text(number, 150))).collect();
    for number in 0..4 {
        first.insert(format!("long {number}").into_bytes(), text(number, 5_000 + 1_500 * number as usize));
    }
    for number in 10..20 {
        first.remove(&key(number));
    }
    first.insert(b"lasts".to_vec(), b"until then".to_vec());
    for number in 100..120 {
        first.insert(key(number), format!("newer {number}").into_bytes());
    }
    let second = (0..50).map(|number| (key(number), text(number + LOADED, 40))).collect();
    (first, second)
}

/// Makes the fixture: a loaded table, a flushed one with long values, deletions and expiries, and a log with
/// newer records.
fn make(engine: &Engine, at: &Path, options: Options) {
    let (first, second) = contents();
    let store = Store::open(engine, at, options).wait().expect("a new store");
    let (keys, others) = (store.default_keyspace(), store.keyspace("second").wait().expect("a keyspace"));
    keys.bulk_load((0..LOADED).map(|number| (key(number), text(number, 150)))).wait().expect("a load");
    for (name, value) in first.iter().filter(|(name, _)| name.starts_with(b"long")) {
        keys.put(name, value).wait().expect("a put");
    }
    for number in 10..20 {
        keys.delete(key(number)).wait().expect("a deletion");
    }
    keys.put_until("gone", "by now", NOW_S - 1).wait().expect("a put");
    keys.put_until("lasts", "until then", NOW_S + 1).wait().expect("a put");
    store.flush().wait().expect("a flush");
    let mut batch = Batch::new();
    for (name, value) in &second {
        batch.put(&others, name, value);
    }
    store.write(&batch).wait().expect("a batch");
    for number in 100..120 {
        keys.put(key(number), &first[&key(number)]).wait().expect("a put");
    }
    store.close().wait().expect("an end");
}

/// Asserts that an open store has the fixture's contents, by gets and by ranges.
fn assert_contents(engine: &Engine, store: &Store) {
    let (first, second) = contents();
    for (name, expected) in [("default", first), ("second", second)] {
        let keys = store.keyspace(name).wait().expect("a keyspace");
        for number in 0..LOADED {
            let found = keys.get(&key(number)).wait().expect("a get");
            assert_eq!(found.as_deref(), expected.get(&key(number)).map(|value| &value[..]), "{number}");
        }
        let found = engine.block_on(async {
            let (mut range, mut found) = (keys.iter(), Values::new());
            while let Some(entry) = range.next().await {
                let (name, value) = entry.expect("an entry");
                found.insert(name, value.to_vec());
            }
            found
        });
        assert!(found.expect("not on a shard") == expected, "a range over {name} has other entries");
    }
}

/// Returns the versions of the table format that a store's tables have, from their headers.
fn versions(at: &Path) -> Vec<u16> {
    let tables = named(&at.join("tables"), "fkv").into_iter();
    let mut versions: Vec<u16> = tables
        .map(|path| {
            let bytes = std::fs::read(path).expect("a table");
            assert_eq!(&bytes[18..24], b"FBYKVT");
            u16::from_le_bytes([bytes[24], bytes[25]])
        })
        .collect();
    versions.sort_unstable();
    versions.dedup();
    versions
}

/// Writes a fixture of the present format: a store, or a sorted file if the name ends with `.fkv`. Run it before a change of
/// the format, and commit the folder or file.
#[test]
#[ignore = "writes a folder named by FOREBAY_KV_FIXTURE, and no check needs it"]
fn make_a_fixture() {
    let at = std::env::var_os("FOREBAY_KV_FIXTURE").expect("FOREBAY_KV_FIXTURE names a new folder");
    let compression = match std::env::var("FOREBAY_KV_COMPRESSION").as_deref() {
        Ok("lz4") => Compression::Lz4,
        #[cfg(feature = "zstd")]
        Ok("zstd") => Compression::Zstd(3),
        Ok(other) => panic!("this build does not know the compression {other}"),
        Err(_) => Compression::None,
    };
    if Path::new(&at).extension().is_some_and(|end| end == "fkv") {
        make_sorted(&engine(), Path::new(&at), compression);
    } else {
        make(&engine(), Path::new(&at), options().compression(compression));
    }
}

/// Opens a copy of a fixture, reads it in all ways, and closes it.
fn assert_is_read(engine: &Engine, at: &Path, fixture: &str, version: u16) {
    copy(&self::fixture(fixture), at);
    let verified = forebay_kv::verify(engine, at).wait().expect("a verification");
    assert!(verified.is_whole(), "{verified:?}");
    assert_eq!(versions(at), [version]);
    let store = Store::open(engine, at, options()).wait().expect("a store of an earlier version");
    assert_contents(engine, &store);
    assert!(store.verify().wait().expect("a verification").is_whole());
    store.close().wait().expect("an end");
}

/// Opens a store, compacts it, reads it in all ways, and closes it. Returns the bytes of its tables.
fn compacted(engine: &Engine, at: &Path, options: Options) -> u64 {
    let store = Store::open(engine, at, options).wait().expect("a store");
    store.compact().wait().expect("a compaction");
    assert_contents(engine, &store);
    let stats = store.stats();
    let levels = stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels);
    let bytes = levels.map(|level| level.bytes).sum();
    store.close().wait().expect("an end");
    let verified = forebay_kv::verify(engine, at).wait().expect("a verification");
    assert!(verified.is_whole(), "{verified:?}");
    bytes
}

/// Writes the fixture of a sorted file: values inside and outside of leaves, a deletion, an expiry.
fn make_sorted(engine: &Engine, path: &Path, compression: Compression) {
    let options = SortedFileOptions::new().compression(compression);
    let mut file = SortedFile::create(engine, path, options).wait().expect("a new file");
    for number in 0..100 {
        match number {
            7 => file.delete(key(number)).wait().expect("a deletion"),
            8 => file.put_until(key(number), text(number, 30), NOW_S).wait().expect("a put"),
            9 => file.put_until(key(number), text(number, 30), NOW_S + 1).wait().expect("a put"),
            50 => file.put(key(number), text(number, 6_000)).wait().expect("a put"),
            _ => file.put(key(number), text(number, 100)).wait().expect("a put"),
        }
    }
    file.finish().wait().expect("an end");
}

/// Sorted files that were written by another version of the crate are ingested and read.
#[test]
fn sorted_files_of_versions_257_and_258_are_ingested() {
    let (engine, place) = (engine(), dir());
    for (name, version) in [("sorted-v257.fkv", 257), ("sorted-v258-lz4.fkv", 258)] {
        let path = place.path().join(name);
        std::fs::copy(fixture(name), &path).expect("a fixture");
        let at = place.path().join(version.to_string());
        let store = Store::open(&engine, &at, options()).wait().expect("a store");
        let keys = store.default_keyspace();
        keys.put(key(7), "before").wait().expect("a put");
        store.ingest([(&keys, &path)]).wait().expect("an ingest");
        for reopened in [false, true] {
            let store = if reopened {
                assert!(versions(&at).contains(&version));
                Store::open(&engine, &at, options()).wait().expect("a store")
            } else {
                store.clone()
            };
            let keys = store.default_keyspace();
            for number in 0..100 {
                let len =
                    [(9, 30), (50, 6_000)].iter().find(|(of, _)| *of == number).map_or(100, |(_, len)| *len);
                let expected = (![7, 8].contains(&number)).then(|| text(number, len));
                let found = keys.get(&key(number)).wait().expect("a get");
                assert_eq!(found.as_deref(), expected.as_deref(), "{number} of {name}");
            }
            assert!(store.verify().wait().expect("a verification").is_whole());
            store.close().wait().expect("an end");
        }
    }
}

#[test]
fn a_store_of_version_1_is_read_rewritten_and_written_back() {
    let (engine, place) = (engine(), dir());
    let at = place.path().join("store");
    assert_is_read(&engine, &at, "v1", 1);
    let plain = compacted(&engine, &at, options());
    assert_eq!(versions(&at), [1], "a store without compression is one that earlier versions read");
    let packed = compacted(&engine, &at, options().compression(Compression::Lz4));
    assert_eq!(versions(&at), [2]);
    assert!(packed < plain / 10 * 8, "{packed} of {plain} bytes");
    // Without the option the store stays as it is.
    assert_eq!(compacted(&engine, &at, options()), packed);
    assert_eq!(versions(&at), [2]);
    assert_eq!(compacted(&engine, &at, options().compression(Compression::None)), plain);
    assert_eq!(versions(&at), [1]);
}

#[test]
fn a_store_of_version_2_is_read() {
    let (engine, place) = (engine(), dir());
    assert_is_read(&engine, &place.path().join("store"), "v2-lz4", 2);
    #[cfg(feature = "zstd")]
    assert_is_read(&engine, &place.path().join("other"), "v2-zstd", 2);
}

/// A build without the feature names it, and leaves the store unchanged. All tests run with all features; a switch disables this
/// feature.
#[cfg(all(feature = "_mutants", feature = "zstd"))]
#[test]
fn a_build_without_zstd_names_the_feature() {
    use forebay_kv::mutants::{self, Mutant};
    let at = Path::new("/disk/store");
    let mut world = World::new(5).disk(Profile::nand().at("/disk"));
    let made = world.run(async |engine| {
        let store =
            Store::open(&engine, at, options().compression(Compression::Zstd(3))).await.expect("a new store");
        let loaded = (0..LOADED).map(|number| (key(number), text(number, 150)));
        store.default_keyspace().bulk_load(loaded).await.expect("a load");
        store.close().await.expect("an end");
    });
    made.expect("a world that ends");
    // The logs record each open.
    let tables = async |engine: &Engine| {
        let mut files = moved::content(engine, at).await;
        files.retain(|path, _| path.extension().is_some_and(|end| end == "fkv"));
        assert!(!files.is_empty(), "no tables");
        files
    };
    let lacks_it = |error: &Error| error.kind() == ErrorKind::MissingFeature { feature: "zstd" };
    let refused = mutants::with(Mutant::ZstdMissing, || {
        world.run(async |engine| {
            let before = tables(&engine).await;
            let error = Store::open(&engine, at, options()).await.expect_err("a build without zstd");
            assert!(lacks_it(&error), "{error}");
            assert!(error.to_string().contains("build forebay-kv with its feature `zstd`"), "{error}");
            assert!(error.path().is_some_and(|path| path.extension().is_some_and(|end| end == "fkv")));
            let error = forebay_kv::verify(&engine, at).await.expect_err("what it cannot read is no damage");
            assert!(lacks_it(&error), "{error}");
            let salvaged = Store::open(&engine, at, options().salvage(true)).await;
            assert!(lacks_it(&salvaged.expect_err("salvage cannot read it either")));
            assert!(tables(&engine).await == before, "something was changed");
        })
    });
    refused.expect("a world that ends");
    let read = world.run(async |engine| {
        let store = Store::open(&engine, at, options()).await.expect("the store as it was");
        assert!(store.verify().await.expect("a verification").is_whole());
        store.close().await.expect("an end");
    });
    read.expect("a world that ends");
}
