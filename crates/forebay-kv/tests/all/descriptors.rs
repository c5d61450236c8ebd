//! Shows: a store may have more tables than the process may have open files, and a store that runs out of descriptors continues
//! once a descriptor is free. How: in child processes with few descriptors, and in simulated worlds in which opens fail.
//!
//! Regression: a store kept a descriptor for each table, so that 400 keyspaces failed where a process may have 256. One flush that found no
//! descriptor made the store read-only until it was opened again.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use forebay::{Class, Engine, Open};
use forebay_kv::{Error, ErrorKind, Keyspace, Options, SortedFile, SortedFileOptions, Store};
use forebay_sim::{self as sim, Fault, Profile, Rule, World};
use forebay_test::children::{all_descriptors, with_descriptors};
use futures::stream::FuturesUnordered;
use futures::{StreamExt, TryStreamExt};

use crate::common::{self, key, value};

const KEYSPACES: u64 = 400;
const KEYS: u64 = 10;

fn name(keyspace: u64) -> String {
    format!("keyspace {keyspace}")
}

async fn check(store: &Store, keyspace: u64) -> forebay_kv::Result<()> {
    let found = store.keyspace(&name(keyspace)).await?;
    for number in 0..KEYS {
        let got = found.get(&key(number)).await?;
        assert_eq!(got.as_deref(), Some(&value(keyspace * KEYS + number)[..]), "{number} in {keyspace}");
    }
    let keys: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
    assert!(found.multi_get(&keys).await?.iter().all(Option::is_some));
    Ok(())
}

#[test]
fn four_hundred_keyspaces_with_few_descriptors() {
    with_descriptors("descriptors::four_hundred_keyspaces_with_few_descriptors", &[64, 256], |limit| {
        let (engine, dir) = (common::engine(), common::dir());
        let options = || common::options().memory_bytes_max(64 << 20);
        futures::executor::block_on(async {
            let store = Store::open(&engine, dir.path(), options()).await.unwrap();
            for keyspace in 0..KEYSPACES {
                let made = store.keyspace(&name(keyspace)).await.unwrap();
                for number in 0..KEYS {
                    made.put(key(number), value(keyspace * KEYS + number)).relaxed().await.unwrap();
                }
            }
            store.flush().await.unwrap();
            for _ in 0..2 {
                for keyspace in 0..KEYSPACES {
                    check(&store, keyspace).await.unwrap();
                }
                // Many concurrent checks queue.
                let checks: FuturesUnordered<_> =
                    (0..KEYSPACES).map(|keyspace| check(&store, keyspace)).collect();
                checks.try_collect::<()>().await.unwrap();
            }
            store.close().await.unwrap();
            // Nothing is in memory now.
            let store = Store::open(&engine, dir.path(), options()).await.unwrap();
            let checks = futures::stream::iter((0..KEYSPACES).map(|keyspace| check(&store, keyspace)));
            checks.buffer_unordered(50).try_collect::<()>().await.unwrap();
            let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
            assert!(open < limit, "{open} descriptors");
            store.compact().await.unwrap();
            store.verify().await.unwrap();
            store.close().await.unwrap();
        });
    });
}

/// Waits until a call succeeds that was refused before.
async fn until_taken(mut call: impl AsyncFnMut() -> forebay_kv::Result<()>, pause: impl AsyncFn()) {
    for _ in 0..500 {
        match call().await {
            Ok(()) => return,
            Err(error) => is_refused(&error),
        }
        pause().await;
    }
    panic!("it is refused for ever");
}

/// Checks that an error names the missing descriptors, and that it is not for good.
fn is_refused(error: &Error) {
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Io, "{text}");
    assert!(error.is_out_of_descriptors(), "{text}");
    assert!(text.contains("ulimit -n"), "{text}");
}

#[test]
fn a_store_goes_on_when_the_process_has_descriptors_again() {
    with_descriptors(
        "descriptors::a_store_goes_on_when_the_process_has_descriptors_again",
        &[64, 128, 256],
        |_| {
            let (engine, dir) = (common::engine(), common::dir());
            let owned = engine.clone();
            let pause = async || {
                let nap = || forebay::shard::sleep(Duration::from_millis(20));
                owned.spawn_on_shard(0, Class::DEFAULT, nap).await.unwrap().unwrap();
            };
            futures::executor::block_on(async {
                let store = Store::open(&engine, dir.path(), common::options()).await.unwrap();
                let keyspace = store.default_keyspace();
                let mut there = 0;
                for _ in 0..3 {
                    // Enough for tables, and for segments of the log.
                    for _ in 0..2000 {
                        keyspace.put(key(there), value(there)).relaxed().await.unwrap();
                        there += 1;
                    }
                    let mut own = Vec::new();
                    let mut refused = 0;
                    while refused < 3 {
                        own.push(all_descriptors());
                        // Idle tables may still have given a flush its descriptors.
                        for result in [
                            keyspace.put(key(there), value(there)).await,
                            store.flush().await,
                            store.compact().await,
                            keyspace.get(&key(common::random(there) % there)).await.map(drop),
                        ] {
                            if let Err(error) = result {
                                is_refused(&error);
                                refused += 1;
                            }
                        }
                        there +=
                            u64::from(keyspace.get(&key(there)).await.is_ok_and(|found| found.is_some()));
                    }
                    assert!(store.stats().failed.is_none());
                    drop(own);
                    until_taken(async || keyspace.put(key(there), value(there)).await, &pause).await;
                    there += 1;
                    until_taken(async || store.flush().await, &pause).await;
                    until_taken(async || store.compact().await, &pause).await;
                    for number in 0..there {
                        let found = keyspace.get(&key(number)).await.unwrap();
                        assert_eq!(found.as_deref(), Some(&value(number)[..]), "key {number}");
                    }
                }
                store.close().await.unwrap();
                let store = Store::open(&engine, dir.path(), common::options()).await.unwrap();
                store.verify().await.unwrap();
                assert!(store.default_keyspace().get(&key(there - 1)).await.unwrap().is_some());
                store.close().await.unwrap();
            });
        },
    );
}

/// Story: an ingest kept a descriptor for each file, and another one for the directory of each.
#[test]
fn an_ingest_has_one_descriptor_for_each_file() {
    with_descriptors("descriptors::an_ingest_has_one_descriptor_for_each_file", &[128], |_| {
        let (engine, dir, files) = (common::engine(), common::dir(), common::dir());
        let store = common::open(&engine, &dir);
        let keyspace = store.default_keyspace();
        let paths: Vec<_> = (0..60).map(|number| files.path().join(number.to_string())).collect();
        for (number, path) in (0..).zip(&paths) {
            let mut file = SortedFile::create(&engine, path, SortedFileOptions::new()).wait().unwrap();
            file.put(key(number), value(number)).wait().unwrap();
            file.finish().wait().unwrap();
        }
        store.ingest(paths.iter().map(|path| (&keyspace, path))).wait().unwrap();
        for number in 0..60 {
            let found = keyspace.get(&key(number)).wait().unwrap();
            assert_eq!(found.as_deref(), Some(&value(number)[..]), "key {number}");
        }
        store.close().wait().unwrap();
    });
}

const DIR: &str = "/disk/store";

fn options() -> Options {
    common::options().store_id(9).clock(|| 1_000_000)
}

async fn open(engine: &Engine) -> Store {
    Store::open(engine, DIR, options())
        .await
        .unwrap_or_else(|error| panic!("the store does not open: {error}"))
}

async fn puts(
    keyspace: &Keyspace,
    there: &mut BTreeMap<u64, u64>,
    numbers: std::ops::Range<u64>,
    round: u64,
) {
    for number in numbers {
        match keyspace.put(key(number), value(number + round)).await {
            Ok(()) => drop(there.insert(number, number + round)),
            Err(error) => is_refused(&error),
        }
    }
}

/// Opens of the store's files fail often, some calls twice in a row, which the engine does not hide.
#[test]
fn opens_that_fail_change_nothing_for_good() {
    for seed in 0..6 {
        let ran = World::new(seed).disk(Profile::nand().at("/disk")).run(async |engine| {
            let store = open(&engine).await;
            let (keyspace, mut there) = (store.default_keyspace(), BTreeMap::new());
            puts(&keyspace, &mut there, 0..800, 0).await;
            for round in 1..6 {
                sim::inject(Rule::new(Fault::TooManyFiles).on(DIR).chance_ppm(600_000));
                puts(&keyspace, &mut there, 0..400, round).await;
                for result in [store.flush().await, store.compact().await] {
                    result.err().iter().for_each(is_refused);
                }
                for number in 0..50 {
                    match keyspace.get(&key(number * 16)).await {
                        Ok(found) => assert_eq!(
                            found.as_deref(),
                            there.get(&(number * 16)).map(|at| value(*at)).as_deref()
                        ),
                        Err(error) => is_refused(&error),
                    }
                }
                assert!(store.stats().failed.is_none(), "{:?}", store.stats().failed);
                sim::clear_faults();
                let pause = async || sim::sleep(Duration::from_millis(50)).await.unwrap();
                until_taken(async || keyspace.put("again", "1").await, pause).await;
                until_taken(async || store.flush().await, pause).await;
                until_taken(async || store.compact().await, pause).await;
                for (number, at) in &there {
                    let found = keyspace.get(&key(*number)).await.unwrap();
                    assert_eq!(found.as_deref(), Some(&value(*at)[..]), "key {number}");
                }
            }
            sim::sleep(Duration::from_millis(200)).await.unwrap();
            let levels = store.stats().keyspaces.into_iter().flat_map(|keyspace| keyspace.levels);
            let tables: usize = levels.map(|level| level.tables).sum();
            let files = engine.read_dir(format!("{DIR}/tables")).await.unwrap().len();
            assert_eq!(files, tables, "files that nothing names");
            store.close().await.unwrap();
            drop(store);
            let store = open(&engine).await;
            store.verify().await.unwrap();
            store.close().await.unwrap();
        });
        ran.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// Story: the close of a store with entries that are not logged failed at the first table for which the process had no descriptor, and the
/// entries were lost. Now it waits for some seconds, as the logs do.
#[test]
fn a_close_waits_for_the_descriptors_of_what_is_not_logged() {
    let ran = World::new(1).disk(Profile::nand().at("/disk")).run(async |engine| {
        let store = open(&engine).await;
        let keyspace = store.unlogged_keyspace("unlogged").await.unwrap();
        keyspace.put("key", "value").await.unwrap();
        sim::inject(Rule::new(Fault::TooManyFiles).on("/disk/store/tables"));
        let freed = async {
            sim::sleep(Duration::from_secs(2)).await.unwrap();
            sim::clear_faults();
        };
        let (closed, ()) = futures::join!(store.close(), freed);
        closed.expect("a descriptor is free in time");
        let store = open(&engine).await;
        let keyspace = store.unlogged_keyspace("unlogged").await.unwrap();
        assert_eq!(keyspace.get("key").await.unwrap().as_deref(), Some(&b"value"[..]));
        store.close().await.unwrap();
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Copies a directory with all that is in it.
async fn copy(engine: &Engine, from: &Path, to: &Path) {
    engine.create_dir_all(to).await.unwrap();
    for entry in engine.read_dir(from).await.unwrap() {
        let (from, to) = (from.join(entry.name()), to.join(entry.name()));
        if engine.metadata(&from).await.unwrap().is_dir() {
            Box::pin(copy(engine, &from, &to)).await;
            continue;
        }
        let file = engine.open(&from, Open::read().buffered()).await.unwrap();
        let copy = engine.open(&to, Open::create().buffered()).await.unwrap();
        let len = file.len().await.unwrap();
        let mut at = 0;
        while at < len {
            let block = file.read(at..len.min(at + (256 << 10))).await.unwrap();
            let end = at + block.len() as u64;
            copy.write(at, block).await.unwrap();
            at = end;
        }
    }
}

/// Returns whether the open of a table for a get that was dropped ran after the close of its store.
fn open_after_close(seed: u64) -> bool {
    // Only calls about tables are slow, so that the close has nothing else to wait for.
    let (fast, slow) = (Profile::ideal().at("/disk"), Profile::ideal().at("/disk/copy/tables"));
    let mut world = World::new(seed).disk(fast).disk(slow.call_latency(Duration::from_millis(20)));
    let ran = world.run(async |engine| {
        let options = || options().reserve_bytes(0);
        let store = Store::open(&engine, DIR, options()).await.unwrap();
        puts(&store.default_keyspace(), &mut BTreeMap::new(), 0..100, 0).await;
        store.flush().await.unwrap();
        store.close().await.unwrap();
        copy(&engine, Path::new(DIR), Path::new("/disk/copy")).await;
        engine.open("/disk/a", Open::create()).await.unwrap();
        for polls in 1..4 {
            let store = Store::open(&engine, "/disk/copy", options()).await.unwrap();
            // Closes the tables' files, as nothing uses them.
            sim::inject(Rule::new(Fault::TooManyFiles).on("/disk/a").times(1));
            engine.open("/disk/a", Open::read()).await.unwrap();
            let keyspace = store.default_keyspace();
            let _ = sim::dropped_after(polls, keyspace.get(&key(7))).await;
            store.close().await.unwrap();
            sim::inject(Rule::new(Fault::TooManyFiles).on("/disk/copy/tables"));
            sim::sleep(Duration::from_secs(1)).await.unwrap();
            sim::clear_faults();
        }
        // All but those that closed the files.
        sim::node(0).counts().fired(Fault::TooManyFiles) > 3
    });
    ran.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"))
}

#[test]
fn no_table_is_opened_after_the_close() {
    (0..3).for_each(|seed| assert!(!open_after_close(seed), "seed {seed}"));
    #[cfg(feature = "_mutants")]
    assert!(forebay::mutants::with(forebay::mutants::Mutant::OpensOutliveClose, || open_after_close(0)));
}
