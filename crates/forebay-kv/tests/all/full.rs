//! A full disk. Regression: a flush or a compaction that found no space made the store read-only, and after the store was opened
//! again its first delete did the same. So a full store could not be emptied. Now it accepts deletes and gets smaller by them. It
//! accepts puts again as soon as space is free, all without a reopen.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::common::{self, random};
use forebay::{Engine, File, Open};
use forebay_kv::{Batch, Compression, Error, ErrorKind, Keyspace, Options, Store};
use forebay_sim::{self as sim, Fault, MetadataOrder, Profile, Rule, World};

const DIR: &str = "/disk/store";
pub(crate) const FILLER: &str = "/disk/filler";
/// Bytes of the disks.
const DISK: u64 = 8 << 20;

fn options() -> Options {
    common::options().store_id(9).clock(|| 1_000_000)
}

fn world(seed: u64) -> World {
    let order = [MetadataOrder::Journal, MetadataOrder::Posix][(seed % 2) as usize];
    World::new(seed).disk(Profile::nand().at("/disk").capacity(DISK).metadata_order(order))
}

/// Returns the seeds of a test: this many, and ten times as many in an optimised build.
pub(crate) fn seeds(few: u64) -> std::ops::Range<u64> {
    0..10 * few / forebay_test::one_in_daily(10) as u64
}

fn key(number: u64) -> Vec<u8> {
    // At a random place among the others.
    format!("{:016x}", random(number)).into_bytes()
}

fn value(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(100 + (number % 50) as usize)
}

async fn open(engine: &Engine) -> Store {
    let store = Store::open(engine, DIR, options()).await;
    store.unwrap_or_else(|error| panic!("the store does not open: {error}"))
}

/// The acknowledged state: values by the numbers of their keys, and those that may exist in addition.
#[derive(Clone, Debug, Default)]
struct Model {
    there: BTreeMap<u64, bool>,
    next: u64,
}

impl Model {
    /// Puts until the store is full.
    async fn fill(&mut self, store: &Store) -> Error {
        loop {
            if let Err(error) = self.fill_some(store).await {
                return error;
            }
        }
    }

    async fn fill_some(&mut self, store: &Store) -> forebay_kv::Result<()> {
        let keyspace = store.default_keyspace();
        let mut batch = Batch::new();
        let numbers = self.next..self.next + 4;
        for number in numbers.clone() {
            batch.put(&keyspace, key(number), value(number));
        }
        store.write(&batch).await?;
        self.there.extend(numbers.map(|number| (number, true)));
        self.next += 4;
        Ok(())
    }

    /// Deletes every second key, each as soon as the store accepts it.
    async fn delete_half(&mut self, store: &Store) {
        let keyspace = store.default_keyspace();
        let there: Vec<u64> = self.numbers().collect();
        let mut refused = 0;
        for number in there.into_iter().step_by(2) {
            loop {
                match keyspace.delete(key(number)).await {
                    Ok(()) => break,
                    Err(error) if error.kind() == ErrorKind::NoSpace && refused < 600 => {
                        refused += 1;
                        pause(100).await;
                    }
                    Err(error) => panic!("the delete of {number}, after {refused} refusals: {error}"),
                }
            }
            self.there.insert(number, false);
        }
    }

    fn numbers(&self) -> impl Iterator<Item = u64> {
        self.there.iter().filter(|(_, is_there)| **is_there).map(|(number, _)| *number)
    }

    /// Checks that every acknowledged value is there, and no deleted one.
    async fn check(&self, store: &Store) {
        let keyspace = store.default_keyspace();
        for (number, is_there) in &self.there {
            let found = keyspace.get(&key(*number)).await.expect("reads go on");
            assert_eq!(found.as_deref(), is_there.then(|| value(*number)).as_deref(), "key {number}");
        }
    }
}

pub(crate) async fn pause(millis: u64) {
    sim::sleep(Duration::from_millis(millis)).await.expect("in a world");
}

/// Waits until the store accepts a put. Returns the time until then.
async fn puts_are_taken(keyspace: &Keyspace, within: Duration) -> Duration {
    let began = sim::now();
    loop {
        match keyspace.put("again", "1").await {
            Ok(()) => return sim::now() - began,
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                let took = sim::now() - began;
                assert!(took < within, "still after {took:?}: {error}");
            }
            Err(error) => panic!("a put answered {error}"),
        }
        pause(20).await;
    }
}

/// Waits until a store without keys has no tables, and takes puts.
async fn is_emptied(engine: &Engine, store: &Store) {
    let mut looks = 0;
    while table_files(engine).await > 0 {
        looks += 1;
        assert!(looks < 600, "{:?}", store.stats());
        // Few deletions wait in memory.
        if store.stats().full.is_none() {
            drop(store.compact().await);
        }
        pause(100).await;
    }
    puts_are_taken(&store.default_keyspace(), Duration::from_secs(60)).await;
}

fn is_the_sentence(error: &Error) {
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
    assert!(text.starts_with(DIR), "{text}");
    assert!(text.contains("free space on this file system, or delete keys"), "{text}");
    assert_eq!(error.cause().map(forebay::Error::kind), Some(forebay::ErrorKind::NoSpace), "{text}");
}

/// Returns the number of table files.
pub(crate) async fn table_files(engine: &Engine) -> usize {
    engine.read_dir(format!("{DIR}/tables")).await.expect("the directory of the tables").len()
}

fn tables(store: &Store) -> usize {
    let levels = store.stats().keyspaces.into_iter().flat_map(|keyspace| keyspace.levels);
    levels.map(|level| level.tables).sum()
}

/// Fills a store, deletes half of it, and fills it again. Returns how the world of this seed ended.
fn fill_delete_fill(seed: u64) -> Result<(), sim::Failure> {
    world(seed).run(async |engine| {
        let (store, mut model) = (open(&engine).await, Model::default());
        is_the_sentence(&model.fill(&store).await);
        assert!(model.there.len() > 1000, "only {} keys", model.there.len());
        let stats = store.stats();
        assert!(stats.full.is_some() && stats.failed.is_none() && stats.reserve_bytes == 0, "{stats:?}");
        // Every call that adds data is refused, without waiting.
        let keyspace = store.default_keyspace();
        for error in [
            keyspace.put("more", "1").await.unwrap_err(),
            keyspace.compare_and_set("more", None, Some(b"1")).await.unwrap_err(),
            keyspace.bulk_load([("more", "1")]).await.unwrap_err(),
            store.keyspace("more").await.unwrap_err(),
        ] {
            is_the_sentence(&error);
        }
        model.check(&store).await;
        model.delete_half(&store).await;
        puts_are_taken(&keyspace, Duration::from_secs(60)).await;
        let stats = store.stats();
        assert!(stats.full.is_none() && stats.reserve_bytes > 0, "{stats:?}");
        model.check(&store).await;
        // Many more fit.
        let before = model.there.len();
        is_the_sentence(&model.fill(&store).await);
        assert!(model.there.len() - before > 300, "only {} more keys", model.there.len() - before);
        model.check(&store).await;
        store.close().await.expect("the data are in the log");
        let verified = forebay_kv::verify(&engine, DIR).await.unwrap();
        assert!(verified.is_whole(), "{verified:?}");
    })
}

/// Story: in one world of six a store stayed full after half of it was deleted. A compaction of many tables of level 0 had found no
/// space; with that of the reserve it went on, which duplicates each piece until the last, and left too little for any other.
#[test]
fn a_full_store_gets_smaller_by_deletes_and_takes_puts_again() {
    for seed in seeds(8) {
        fill_delete_fill(seed).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// Test of the test.
#[cfg(feature = "_mutants")]
#[test]
fn a_job_that_leaves_no_space_for_others_is_caught() {
    use forebay_kv::mutants::{self, Mutant};
    let is_caught = |seed| mutants::with(Mutant::LargeJobContinued, || fill_delete_fill(seed)).is_err();
    assert!((0..40).any(is_caught));
}

/// As above, but the store was closed, or the power failed, on the full disk.
#[test]
fn a_full_store_that_is_opened_again_gets_smaller_by_deletes() {
    for (seed, is_cut) in [(0, false), (3, true)] {
        let mut world = world(seed);
        let mut model = Model::default();
        let filled = world.run(async |engine| {
            let store = open(&engine).await;
            is_the_sentence(&model.fill(&store).await);
            if !is_cut {
                store.close().await.expect("the data are in the log");
            }
        });
        filled.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        if is_cut {
            world.power_cut();
        }
        world.reboot();
        let ran = world.run(async |engine| {
            let store = open(&engine).await;
            model.check(&store).await;
            model.fill(&store).await;
            model.delete_half(&store).await;
            puts_are_taken(&store.default_keyspace(), Duration::from_secs(60)).await;
            model.check(&store).await;
            store.close().await.expect("it closes");
        });
        ran.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// Fills the disk, from large pieces to small pieces. Returns the file and its length.
async fn take_all(engine: &Engine, name: &str) -> (File, u64) {
    let filler = engine.open(name, Open::create()).await.unwrap();
    let (mut end, mut step) = (0, DISK / 4096 * 4096);
    while step >= 4096 {
        match filler.allocate(end..end + step).await {
            Ok(()) => end += step,
            Err(_) => step = step / 2 / 4096 * 4096,
        }
    }
    (filler, end)
}

/// Fills the disk up to this many free bytes.
pub(crate) async fn take_all_but(engine: &Engine, bytes: u64) {
    let (filler, end) = take_all(engine, FILLER).await;
    filler.truncate(end - bytes).await.unwrap();
    filler.close().await.unwrap();
}

/// Regression: no check noticed that space was available again; only reopening the store helped.
#[test]
fn space_that_others_free_ends_the_state_within_about_a_second() {
    let ran = world(5).run(async |engine| {
        let (store, mut model) = (open(&engine).await, Model::default());
        let keyspace = store.default_keyspace();
        keyspace.put("first", "1").await.unwrap();
        pause(50).await;
        assert!(store.stats().reserve_bytes > 0, "the reserve is made in the background");
        take_all_but(&engine, 300 << 10).await;
        is_the_sentence(&model.fill(&store).await);
        pause(5_000).await;
        is_the_sentence(&keyspace.put("more", "1").await.unwrap_err());
        engine.remove_file(FILLER).await.unwrap();
        let took = puts_are_taken(&keyspace, Duration::from_secs(3)).await;
        assert!(took < Duration::from_millis(1_600), "{took:?}");
        assert!(store.stats().full.is_none());
        model.check(&store).await;
        store.flush().await.expect("there is space");
        store.compact().await.expect("there is space");
        model.check(&store).await;
        store.close().await.unwrap();
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Returns the bytes of the files below a directory on disk.
fn taken_bytes(dir: &Path) -> u64 {
    let entries = dir.read_dir().expect("a directory").map(|entry| entry.expect("an entry"));
    let each = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => taken_bytes(&entry.path()),
        Ok(found) => found.blocks() * 512,
        Err(_) => 0, // removed meanwhile
    });
    each.sum()
}

/// Waits until the reserve has at least this many bytes.
async fn reserve_reaches(store: &Store, bytes: u64) {
    while store.stats().reserve_bytes < bytes {
        assert!(store.stats().full.is_none());
        tokio::task::yield_now().await;
    }
}

/// Regression: a new store used 203 MB of disk by default, 169 of them for the reserve of the largest store.
#[tokio::test]
async fn a_small_store_takes_little_space_and_its_reserve_grows_with_it() {
    let (engine, dir) = (common::engine(), common::dir());
    let options = || Options::new().memory_bytes_max(256 << 20);
    let store = Store::open(&engine, dir.path(), options()).await.unwrap();
    reserve_reaches(&store, 1).await;
    let (taken, first) = (taken_bytes(dir.path()), store.stats().reserve_bytes);
    assert!(taken < 128 << 20, "{taken} bytes for an empty store, {first} of them its reserve");
    // The space for flushes and compactions is reserved while memtables and tables grow.
    let keyspace = store.default_keyspace();
    let segment = 32 << 20;
    let mut written = 0;
    for number in 0..100_u64 {
        let mut batch = Batch::new();
        for part in 0..100 {
            batch.put(&keyspace, key(number * 100 + part), vec![7; 10_000]);
        }
        store.write(&batch).await.unwrap();
        written += 1_000_000;
        let used = store.stats().memory.memtables;
        reserve_reaches(&store, used.min(written) + segment).await;
    }
    store.settle().await.unwrap();
    let tables: u64 = store.stats().keyspaces[0].levels.iter().map(|level| level.bytes).sum();
    assert!(tables > 64 << 20, "{tables}");
    reserve_reaches(&store, segment + (64 << 20)).await;
    assert!(store.stats().reserve_bytes > 2 * first);
    // Smaller again once the store is.
    keyspace.delete_range::<&str>(..).await.unwrap();
    store.compact().await.unwrap();
    store.close().await.unwrap();
    let store = Store::open(&engine, dir.path(), options()).await.unwrap();
    reserve_reaches(&store, 1).await;
    assert!(store.stats().reserve_bytes <= first, "{} of {first}", store.stats().reserve_bytes);
}

/// The reserve that grows finds no space: the store is full while deletions can still free some.
#[test]
fn a_reserve_that_cannot_grow_makes_the_store_full() {
    for seed in seeds(2) {
        let ran = world(seed).run(async |engine| {
            let (store, mut model) = (open(&engine).await, Model::default());
            let keyspace = store.default_keyspace();
            keyspace.put("first", "1").await.unwrap();
            pause(50).await;
            let first = store.stats().reserve_bytes;
            // Enough for the log, and not for the reserve to grow.
            take_all_but(&engine, 0).await;
            is_the_sentence(&model.fill(&store).await);
            assert!(model.there.len() < 300, "{} keys", model.there.len());
            let full = store.stats().full.expect("it is full");
            let text = full.to_string();
            assert!(text.contains("for a reserve of") && text.contains("twice that until"), "{text}");
            // The space of the reserve is enough for deletions.
            model.delete_half(&store).await;
            model.check(&store).await;
            engine.remove_file(FILLER).await.unwrap();
            puts_are_taken(&keyspace, Duration::from_secs(3)).await;
            while store.stats().reserve_bytes <= first {
                model.fill_some(&store).await.expect("there is space");
            }
            model.check(&store).await;
            store.close().await.unwrap();
        });
        ran.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// Regression: a writer waiting for memory waited for a flush that could not continue.
#[test]
fn who_waits_when_the_store_becomes_full_hears_of_it() {
    let ran = world(6).run(async |engine| {
        let store = open(&engine).await;
        let keyspace = store.default_keyspace();
        keyspace.put("first", "1").await.unwrap();
        pause(50).await;
        take_all_but(&engine, 300 << 10).await;
        let write = |number: u64| {
            let keyspace = keyspace.clone();
            sim::spawn(async move {
                let mut answers = Vec::new();
                for step in 0..5 {
                    answers.push(keyspace.put(key(number * 1_000 + step), value(step)).await);
                }
                answers
            })
        };
        let writers: Vec<_> = (0..300).map(write).collect();
        let (mut taken, mut refused) = (0, 0);
        for writer in writers {
            for answer in writer.await.unwrap() {
                match answer {
                    Ok(()) => taken += 1,
                    Err(error) => {
                        is_the_sentence(&error);
                        refused += 1;
                    }
                }
            }
        }
        assert!(taken > 50 && refused > 100, "{taken} taken, {refused} refused");
        assert!(store.stats().space_waits > 0, "none had to wait");
        // These calls wait for work that runs out of space, once others have used the space that the store freed.
        let mut lacked = None;
        for number in 0..50 {
            take_all_but_if_full(&engine, &store).await;
            let _ = keyspace.delete(key(number)).await;
            if let Err(error) = store.flush().await {
                lacked = Some(error);
                break;
            }
        }
        is_the_sentence(&lacked.expect("there is space after all"));
        is_the_sentence(&store.settle().await.unwrap_err());
        store.close().await.expect("the data are in the log");
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// The output of flushes and compactions that ran out of space is removed. In the first form of this test the
/// fault also struck the creation of files. So nothing was ever written, and the test passed without any
/// removal.
#[test]
fn work_that_finds_no_space_leaves_no_files() {
    for seed in seeds(4) {
        let ran = world(seed).run(async |engine| {
            let (store, mut model) = (open(&engine).await, Model::default());
            let keyspace = store.default_keyspace();
            for number in 0..1_000 {
                keyspace.put(key(number), value(number)).await.unwrap();
                model.there.insert(number, true);
            }
            store.compact().await.unwrap();
            // One call in six finds no space: most tables fail at one of their writes, and some complete.
            sim::inject(Rule::new(Fault::NoSpace).on("/disk/store/tables").chance_ppm(160_000));
            for number in 0..300 {
                match keyspace.put(key(number), value(number)).await {
                    Ok(()) => {}
                    Err(error) => is_the_sentence(&error),
                }
                pause(10).await;
            }
            assert!(store.stats().failed.is_none());
            model.check(&store).await;
            sim::clear_faults();
            puts_are_taken(&keyspace, Duration::from_secs(2)).await;
            store.compact().await.expect("there is space");
            pause(200).await;
            assert_eq!(table_files(&engine).await, tables(&store), "files that nothing names");
            model.check(&store).await;
            store.close().await.unwrap();
        });
        ran.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// Regression: a compaction that ran out of space after some of its pieces restarted with the first piece. A store that remained
/// full wrote the same tables twice a second.
#[test]
fn what_a_full_store_has_compacted_is_not_compacted_again() {
    let mut stuck = 0;
    for free in (0..=480).step_by(40) {
        let ran = world(free).run(async |engine| {
            let store = Store::open(&engine, DIR, options().reserve_bytes(0)).await.expect("a store");
            let (keyspace, mut model) = (store.default_keyspace(), Model::default());
            while model.next < 2_000 {
                model.fill_some(&store).await.expect("there is space");
            }
            store.compact().await.expect("there is space");
            // Some keys of each table.
            for number in (0..2_000).step_by(40) {
                keyspace.put(key(number), value(number)).await.expect("there is space");
            }
            store.flush().await.expect("there is space");
            // The log frees the segments whose records are in tables.
            pause(50).await;
            take_all_but(&engine, free << 10).await;
            let (before, mut refused) = (store.stats().compaction_written_bytes, 0);
            while refused < 20
                && let Err(error) = store.compact().await
            {
                is_the_sentence(&error);
                refused += 1;
                pause(100).await;
            }
            let stats = store.stats();
            let tables: u64 = stats.keyspaces[0].levels.iter().map(|level| level.bytes).sum();
            let written = stats.compaction_written_bytes - before;
            assert!(written < 2 * tables, "{written} bytes for {tables} in {refused} tries with {free} KiB");
            engine.remove_file(FILLER).await.unwrap();
            puts_are_taken(&keyspace, Duration::from_secs(3)).await;
            store.compact().await.expect("there is space");
            model.check(&store).await;
            store.close().await.unwrap();
            refused
        });
        let refused = ran.unwrap_or_else(|failure| panic!("{free} KiB: {failure}"));
        stuck += usize::from(refused == 20);
    }
    assert!(stuck > 0, "no disk was full");
}

/// Regression: a store on a full disk allocated the free space twice a second, and found each time that it was too little.
#[test]
fn a_full_store_writes_nothing_while_there_is_no_more_space() {
    let ran = world(9).run(async |engine| {
        let store = Store::open(&engine, DIR, options().reserve_bytes(0)).await.expect("a store");
        let (keyspace, mut model) = (store.default_keyspace(), Model::default());
        while model.next < 2_000 {
            model.fill_some(&store).await.expect("there is space");
        }
        store.compact().await.expect("there is space");
        // This many that a store at rest compacts them.
        for first in (0..2_000).step_by(100) {
            let mut batch = Batch::new();
            for number in (first..first + 100).step_by(4) {
                batch.put(&keyspace, key(number), value(number));
            }
            store.write(&batch).await.expect("there is space");
        }
        store.flush().await.expect("there is space");
        // The log frees the segments whose records are in tables.
        pause(50).await;
        take_all_but(&engine, 200 << 10).await;
        pause(30_000).await;
        assert!(store.stats().full.is_some(), "{:?}", store.stats());
        let before = sim::node(0).counts().written_bytes;
        pause(120_000).await;
        let written = sim::node(0).counts().written_bytes - before;
        assert!(written < 512 << 10, "{written} bytes in two minutes");
        engine.remove_file(FILLER).await.unwrap();
        puts_are_taken(&keyspace, Duration::from_secs(30)).await;
        model.check(&store).await;
        store.close().await.unwrap();
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Regression: a full store compared the free space with the bytes of the latest failure: a flush of a delete waited for the space
/// that a compaction had lacked.
#[test]
fn a_flush_does_not_wait_for_the_space_that_a_compaction_lacks() {
    let ran = world(10).run(async |engine| {
        let store = Store::open(&engine, DIR, options().reserve_bytes(0)).await.expect("a store");
        let (keyspace, mut model) = (store.default_keyspace(), Model::default());
        while model.next < 2_000 {
            model.fill_some(&store).await.expect("there is space");
        }
        store.compact().await.expect("there is space");
        // This many that a store at rest compacts them.
        for first in (0..2_000).step_by(100) {
            let mut batch = Batch::new();
            for number in (first..first + 100).step_by(4) {
                batch.put(&keyspace, key(number), value(number));
            }
            store.write(&batch).await.expect("there is space");
        }
        store.flush().await.expect("there is space");
        // The log frees the segments whose records are in tables.
        pause(50).await;
        take_all_but(&engine, 48 << 10).await;
        let rest = format!("{FILLER}.rest");
        drop(take_all(&engine, &rest).await);
        keyspace.delete(key(0)).await.expect("the log has room");
        model.there.insert(0, false);
        // Longer than the retries of all work, while the disk stays full.
        pause(30_000).await;
        assert!(store.stats().full.is_some(), "{:?}", store.stats());
        let before = store.stats().flushes;
        engine.remove_file(&rest).await.unwrap();
        pause(30_000).await;
        assert!(store.stats().flushes > before, "{:?}", store.stats());
        engine.remove_file(FILLER).await.unwrap();
        puts_are_taken(&keyspace, Duration::from_secs(30)).await;
        model.check(&store).await;
        store.close().await.unwrap();
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Regression: once a compaction had run out of space, tables reached the last level without its compression, even when space was
/// free again.
#[test]
fn a_store_that_was_full_compresses_its_last_level_again() {
    let ran = world(12).run(async |engine| {
        let options = options().compression(Compression::Lz4).upper_compression(Compression::None);
        let store = Store::open(&engine, DIR, options).await.expect("a store");
        let keyspace = store.default_keyspace();
        // Two tables that have to be merged.
        for _ in 0..2 {
            for number in 0..50 {
                keyspace.put(key(number), value(number)).await.expect("there is space");
            }
            store.flush().await.expect("there is space");
        }
        sim::inject(Rule::new(Fault::NoSpace).on("/disk/store/tables"));
        is_the_sentence(&store.compact().await.unwrap_err());
        sim::clear_faults();
        puts_are_taken(&keyspace, Duration::from_secs(30)).await;
        store.compact().await.expect("there is space");
        let saved = || store.stats().keyspaces[0].levels.last().map_or(0, |lowest| lowest.saved_bytes);
        let mut before = saved();
        for round in 0..4 {
            // Above all others, so that a table of them could be moved.
            for number in 0..200 {
                let name = format!("key {round} {number:05}");
                keyspace.put(name, value(number)).await.expect("there is space");
            }
            store.settle().await.expect("there is space");
            assert!(saved() > before, "round {round}: {:?}", store.stats());
            before = saved();
        }
        store.close().await.unwrap();
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Regression: each compaction that ran out of space evicted the blocks that it had passed from the cache, although no table was
/// replaced.
#[test]
fn a_compaction_without_space_takes_nothing_out_of_the_cache() {
    let ran = world(13).run(async |engine| {
        let (store, mut model) = (open(&engine).await, Model::default());
        let keyspace = store.default_keyspace();
        while model.next < 1_000 {
            model.fill_some(&store).await.expect("there is space");
        }
        store.compact().await.expect("there is space");
        // Tables that have to be merged.
        for number in (0..1_000).step_by(4) {
            keyspace.put(key(number), value(number)).await.expect("there is space");
        }
        store.flush().await.expect("there is space");
        sim::inject(Rule::new(Fault::NoSpace).on("/disk/store/tables"));
        is_the_sentence(&store.compact().await.unwrap_err());
        // Those that a compaction passes first.
        let mut numbers: Vec<u64> = model.numbers().collect();
        numbers.sort_by_cached_key(|number| key(*number));
        let misses = async || {
            let before = store.stats().cache_misses;
            for number in &numbers[..50] {
                let found = keyspace.get(&key(*number)).await.expect("reads go on");
                assert_eq!(found.as_deref(), Some(&value(*number)[..]), "key {number}");
            }
            store.stats().cache_misses - before
        };
        // They are in memory by then.
        let first = [misses().await, misses().await];
        for _ in 0..3 {
            is_the_sentence(&store.compact().await.unwrap_err());
        }
        let again = misses().await;
        assert!(again < 5, "{again} of 50 keys were read again, after {first:?}");
        sim::clear_faults();
        puts_are_taken(&keyspace, Duration::from_secs(30)).await;
        model.check(&store).await;
        store.close().await.unwrap();
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Regression: a full store tried again and again to empty files of separated values, without the space to do so, before it applied
/// the deletions that left no value in them.
#[test]
fn deletions_go_before_the_files_that_a_full_store_cannot_empty() {
    let ran = world(11).run(async |engine| {
        let options = options().separation_bytes(1_500).reserve_bytes(0);
        let store = Store::open(&engine, DIR, options).await.expect("a store");
        let keyspace = store.default_keyspace();
        for first in (0..1_200_u64).step_by(4) {
            let mut batch = Batch::new();
            for number in first..first + 4 {
                batch.put(&keyspace, key(number), number.to_le_bytes().repeat(300));
            }
            store.write(&batch).await.expect("there is space");
        }
        store.compact().await.expect("there is space");
        // The log frees the segments whose records are in tables.
        pause(50).await;
        take_all_but(&engine, 160 << 10).await;
        // Half of each file, then the rest.
        for begin in 0..2_u64 {
            for first in (0..1_200_u64).step_by(100) {
                let mut batch = Batch::new();
                for number in (first + begin..first + 100).step_by(2) {
                    batch.delete(&keyspace, key(number));
                }
                let mut refused = 0;
                while let Err(error) = store.write(&batch).await {
                    is_the_sentence(&error);
                    refused += 1;
                    assert!(refused < 600, "{:?}", store.stats());
                    pause(100).await;
                }
            }
            if begin == 0 {
                store.flush().await.expect("there is space for the deletions");
                let mut looks = 0;
                while store.stats().full.is_none() {
                    looks += 1;
                    assert!(looks < 600, "{:?}", store.stats());
                    pause(100).await;
                }
            }
        }
        is_emptied(&engine, &store).await;
        store.close().await.unwrap();
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Regression: a full store whose separated values were only overwritten, never deleted, stayed full for ever: its level 0 stayed where
/// it was, and so did all older values.
#[test]
fn a_full_store_whose_values_are_overwritten_takes_puts_again() {
    let mut refused = 0;
    for seed in seeds(3) {
        let free = [64, 192, 320][(seed % 3) as usize];
        let ran = world(seed).run(async |engine| {
            let options = options().memtable_bytes(256 << 10).separation_bytes(1_500);
            let store = Store::open(&engine, DIR, options).await.expect("a store");
            let keyspace = store.default_keyspace();
            let value = |version: u64| version.to_le_bytes().repeat(1_250);
            for number in 0..200 {
                keyspace.put(key(number), value(0)).await.expect("there is space");
            }
            store.compact().await.expect("there is space");
            // The log frees the segments whose records are in tables.
            pause(50).await;
            take_all_but(&engine, free << 10).await;
            let mut refused = 0;
            for version in 1..=8 {
                for number in 0..200 {
                    let before = refused;
                    while let Err(error) = keyspace.put(key(number), value(version)).await {
                        is_the_sentence(&error);
                        refused += 1;
                        assert!(refused - before < 600, "{:?}", store.stats());
                        pause(100).await;
                    }
                }
            }
            for number in 0..200 {
                let found = keyspace.get(&key(number)).await.expect("reads go on");
                assert_eq!(found.as_deref(), Some(&value(8)[..]), "key {number}");
            }
            store.close().await.unwrap();
            refused
        });
        refused += ran.unwrap_or_else(|failure| panic!("{free} KiB: {failure}"));
    }
    assert!(refused > 0, "no disk was full");
}

/// A full store that is left alone moves its keys down also where that frees nothing, and keeps the space for its deletions.
#[test]
fn a_full_store_of_separated_values_comes_to_rest_and_is_emptied_afterwards() {
    for seed in seeds(3) {
        let ran = world(seed).run(async |engine| {
            let options = options().memtable_bytes(256 << 10).separation_bytes(1_500);
            let store = Store::open(&engine, DIR, options).await.expect("a store");
            let (keyspace, mut next) = (store.default_keyspace(), 0_u64);
            let full = loop {
                match keyspace.put(key(next), next.to_le_bytes().repeat(1_250)).await {
                    Ok(()) => next += 1,
                    Err(error) => break error,
                }
            };
            is_the_sentence(&full);
            pause(60_000).await;
            let before = store.stats().compaction_written_bytes;
            pause(60_000).await;
            assert_eq!(store.stats().compaction_written_bytes, before, "{:?}", store.stats());
            for number in 0..next {
                let mut refused = 0;
                while let Err(error) = keyspace.delete(key(number)).await {
                    is_the_sentence(&error);
                    refused += 1;
                    assert!(refused < 600, "{:?}", store.stats());
                    pause(100).await;
                }
            }
            is_emptied(&engine, &store).await;
            store.close().await.unwrap();
        });
        ran.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// Regression: values that were separated before the store was opened with a larger `separation_bytes` counted as staying where they
/// are, and were copied: a full disk had no space for that, and the deletions were never applied.
#[test]
fn a_full_store_leaves_values_of_an_earlier_separation_where_they_are() {
    let ran = world(14).run(async |engine| {
        let opened = async |separation_bytes: u32| {
            let options = options().separation_bytes(separation_bytes).reserve_bytes(0);
            Store::open(&engine, DIR, options).await.expect("the store opens")
        };
        let value = |number: u64| number.to_le_bytes().repeat(500);
        let store = opened(1_500).await;
        let keyspace = store.default_keyspace();
        for number in 0..600 {
            keyspace.put(key(number), value(number)).await.expect("there is space");
        }
        store.compact().await.expect("there is space");
        store.close().await.expect("it closes");
        let store = opened(32 << 10).await;
        let (keyspace, mut looks) = (store.default_keyspace(), 0);
        // The log frees the segments whose records are in tables.
        pause(50).await;
        take_all_but(&engine, 160 << 10).await;
        let before = store.stats().value_live_bytes;
        assert!(before > 1 << 20, "{before} bytes of separated values");
        for first in (0..600).step_by(100) {
            let mut batch = Batch::new();
            for number in (first..first + 100).step_by(2) {
                batch.delete(&keyspace, key(number));
            }
            while let Err(error) = store.write(&batch).await {
                is_the_sentence(&error);
                looks += 1;
                assert!(looks < 600, "{:?}", store.stats());
                pause(100).await;
            }
        }
        drop(store.flush().await);
        while store.stats().value_live_bytes > before / 4 * 3 {
            looks += 1;
            assert!(looks < 600, "{:?}", store.stats());
            pause(100).await;
        }
        puts_are_taken(&keyspace, Duration::from_secs(60)).await;
        for number in 0..600 {
            let (found, is_there) = (keyspace.get(&key(number)).await.expect("reads go on"), number % 2 == 1);
            assert_eq!(found.as_deref(), is_there.then(|| value(number)).as_deref(), "key {number}");
        }
        store.close().await.unwrap();
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Regression: of a full store a whole compaction returned while tables that it had made itself lay above the last level.
#[test]
fn a_whole_compaction_of_a_full_store_leaves_nothing_above_the_last_level() {
    for seed in seeds(3) {
        let ran = world(seed).run(async |engine| {
            let (store, mut model) = (open(&engine).await, Model::default());
            let (keyspace, mut refused) = (store.default_keyspace(), 0);
            is_the_sentence(&model.fill(&store).await);
            while let Err(error) = store.compact().await {
                is_the_sentence(&error);
                refused += 1;
                assert!(refused < 600, "{:?}", store.stats());
                for number in model.numbers().take(4).collect::<Vec<u64>>() {
                    if keyspace.delete(key(number)).await.is_ok() {
                        model.there.insert(number, false);
                    }
                }
                pause(100).await;
            }
            let stats = store.stats();
            let above = &stats.keyspaces[0].levels[..6];
            assert!(above.iter().all(|level| level.tables == 0), "seed {seed}: {above:?}");
            model.check(&store).await;
            store.close().await.unwrap();
        });
        ran.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

/// Uses the space that the store frees, once the store is full.
async fn take_all_but_if_full(engine: &Engine, store: &Store) -> bool {
    let is_full = store.stats().full.is_some();
    if is_full {
        drop(take_all(engine, &format!("{FILLER}.{}", sim::now().as_nanos())).await);
    }
    is_full
}
