//! A full disk with many keyspaces or short segments of the log: what a flush, the manifest and a batch of deletes need then.

use forebay::{Config, Engine};
use forebay_kv::{Batch, ErrorKind, Keyspace, Options, Store};
use forebay_sim::{Profile, World};

use crate::common;
use crate::full::{FILLER, pause, seeds, table_files, take_all_but};

const DIR: &str = "/disk/store";
/// Refusals of one call, a tenth of a second apart, before the store counts as stuck.
const REFUSALS_MAX: u32 = 600;

fn options() -> Options {
    common::options().store_id(9).clock(|| 1_000_000)
}

fn world(seed: u64) -> World {
    World::new(seed).disk(Profile::nand().at("/disk").capacity(8 << 20))
}

async fn open(engine: &Engine, options: Options, keyspaces: usize) -> (Store, Vec<Keyspace>) {
    let store = Store::open(engine, DIR, options).await.expect("a store");
    let mut made = Vec::new();
    for number in 0..keyspaces {
        made.push(store.keyspace(&format!("keyspace {number}")).await.expect("there is space"));
    }
    (store, made)
}

/// Makes a call until it is not refused for lack of space any more.
pub(crate) async fn until_taken(store: &Store, mut call: impl AsyncFnMut() -> forebay_kv::Result<()>) {
    let mut refusals = 0;
    while let Err(error) = call().await {
        refusals += 1;
        assert!(error.kind() == ErrorKind::NoSpace, "{error}");
        assert!(refusals < REFUSALS_MAX, "{error}, {:?}", store.stats());
        pause(100).await;
    }
}

/// Puts a key until the store is full. Another process takes what the store gives back, but not while the store works: a store that has
/// just become full gives its reserve back, too.
pub(crate) async fn fill_beside_others(engine: &Engine, store: &Store, key: &[u8]) {
    let mut puts = 0;
    while store.stats().full.is_none() {
        if puts % 500 == 0 {
            pause(100).await;
            take_all_but(engine, 0).await;
        }
        drop(store.default_keyspace().put(key, [7; 1_000]).await);
        puts += 1;
        assert!(puts < 10_000, "{:?}", store.stats());
    }
}

/// Story: the flush of a memtable writes a table of 16 KiB or more for each keyspace, and the reserve counted the bytes in memory alone.
/// On a full disk a store with short entries in many keyspaces found no space for its flush, and stayed full whatever was deleted.
#[test]
fn a_full_store_of_many_keyspaces_is_flushed_and_emptied() {
    seeds(1).for_each(|seed| flush_and_empty_many_keyspaces(3 + seed));
}

fn flush_and_empty_many_keyspaces(seed: u64) {
    let ran = world(seed).run(async |engine| {
        let (store, keyspaces) = open(&engine, options(), 150).await;
        for keyspace in &keyspaces {
            keyspace.put("key", "value").await.expect("there is space");
        }
        // The reserve grows in the background.
        pause(500).await;
        take_all_but(&engine, 0).await;
        store.flush().await.expect("the reserve has space for it");
        for keyspace in &keyspaces {
            until_taken(&store, async || keyspace.delete("key").await).await;
        }
        let mut looks = 0;
        while table_files(&engine).await > 0 {
            looks += 1;
            assert!(looks < REFUSALS_MAX, "{:?}", store.stats());
            // Few deletions wait in memory.
            if store.stats().full.is_none() {
                drop(store.compact().await);
            }
            pause(100).await;
        }
        until_taken(&store, async || keyspaces[0].put("again", "1").await).await;
        store.close().await.unwrap();
    });
    ran.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
}

/// Story: the edit of a flush names the first and the last key of each table, which is 3 MB for 100 keyspaces with keys of 16 KiB, and
/// the reserve did not count it: on a disk that others kept full the flush found no space, and no delete was taken.
#[test]
fn the_reserve_has_space_for_the_edit_of_long_keys() {
    const KEYSPACES: usize = 100;
    let key = |number: usize| vec![number as u8 + 1; 16 << 10];
    let disk = Profile::nand().at("/disk").capacity(32 << 20);
    let config = Config::new().arena_bytes_max(160 << 20);
    let ran = World::new(9).disk(disk).config(config).run(async |engine| {
        let options = options().memory_bytes_max(64 << 20).memtable_bytes(2 << 20);
        let (store, keyspaces) = open(&engine, options, KEYSPACES).await;
        for (number, keyspace) in keyspaces.iter().enumerate() {
            keyspace.put(key(number), "value").await.expect("there is space");
        }
        // The reserve grows in the background, and the logs make their next segments.
        pause(2_000).await;
        take_all_but(&engine, 0).await;
        until_taken(&store, async || store.flush().await).await;
        for (number, keyspace) in keyspaces.iter().enumerate() {
            until_taken(&store, async || keyspace.delete(key(number)).await).await;
        }
        assert!(store.stats().failed.is_none(), "{:?}", store.stats());
        engine.remove_file(FILLER).await.unwrap();
        until_taken(&store, async || keyspaces[0].put("again", "1").await).await;
        for (number, keyspace) in keyspaces.iter().enumerate() {
            assert!(keyspace.get(&key(number)).await.expect("a read").is_none(), "{number}");
        }
        store.close().await.unwrap();
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Story: a full store took one batch of deletes in any number of keyspaces. Its flush then found no space for their tables, and with
/// nothing else to flush no further delete was taken.
#[test]
fn a_full_store_refuses_deletes_in_more_keyspaces_than_it_can_flush() {
    let ran = world(5).run(async |engine| {
        let (store, keyspaces) = open(&engine, options(), 150).await;
        let mut batch = Batch::new();
        for keyspace in &keyspaces {
            keyspace.put("key", "value").await.expect("there is space");
            batch.delete(keyspace, "key");
        }
        // The reserve grows in the background.
        pause(500).await;
        take_all_but(&engine, 0).await;
        store.flush().await.expect("the reserve has space for it");
        let mut puts = 0;
        while store.stats().full.is_none() {
            // Another process uses what the store gives back.
            take_all_but(&engine, 0).await;
            drop(keyspaces[0].put("key", [7; 1_000]).await);
            puts += 1;
            assert!(puts < 10_000, "{:?}", store.stats());
        }
        let error = store.write(&batch).await.expect_err("the reserve has no space for so many tables");
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        engine.remove_file(FILLER).await.unwrap();
        for keyspace in &keyspaces {
            until_taken(&store, async || keyspace.delete("key").await).await;
        }
        until_taken(&store, async || keyspaces[0].put("again", "1").await).await;
        store.close().await.unwrap();
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Story: with short segments of the log a batch of deletes of more than 16 KB was refused by a full store whatever it had flushed, and
/// the sentence said that deletes are taken.
#[test]
fn a_full_store_says_which_batch_of_deletes_its_log_never_takes() {
    let key = |number: u64| format!("{number:0250}");
    let ran = world(8).run(async |engine| {
        let (store, _) = open(&engine, options().log_segment_bytes(64 << 10), 0).await;
        let keyspace = store.default_keyspace();
        let mut all = Batch::new();
        for number in 0..100 {
            keyspace.put(key(number), "value").await.expect("there is space");
            all.delete(&keyspace, key(number));
        }
        // The reserve grows in the background.
        pause(500).await;
        fill_beside_others(&engine, &store, b"key").await;
        let error = store.write(&all).await.expect_err("longer than what the log has for deletes");
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        let text = error.to_string();
        assert!(text.contains("16384: use smaller batches"), "{text}");
        for first in (0..100).step_by(25) {
            let mut batch = Batch::new();
            for number in first..first + 25 {
                batch.delete(&keyspace, key(number));
            }
            until_taken(&store, async || store.write(&batch).await).await;
        }
        for number in 0..100 {
            assert!(keyspace.get(&key(number)).await.expect("reads go on").is_none(), "{number}");
        }
        engine.remove_file(FILLER).await.unwrap();
        until_taken(&store, async || keyspace.put("again", "1").await).await;
        store.close().await.unwrap();
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Story: with short segments of the log a full store refused `delete_range` of a hundred long keys for ever, and said to use smaller
/// batches: the batch is made by the call, which takes the other way for more entries.
#[test]
fn a_full_store_deletes_ranges_whose_batch_its_log_does_not_take() {
    let key = |number: u64| format!("{number:0250}");
    let ran = world(9).run(async |engine| {
        let short = options().memtable_bytes(256 << 10).log_segment_bytes(64 << 10);
        let (store, _) = open(&engine, short, 0).await;
        let keyspace = store.default_keyspace();
        for number in 0..100 {
            keyspace.put(key(number), "value").await.expect("there is space");
        }
        // The reserve grows in the background.
        pause(500).await;
        fill_beside_others(&engine, &store, b"key").await;
        until_taken(&store, async || keyspace.delete_range("0".."1").await).await;
        for number in 0..100 {
            assert!(keyspace.get(&key(number)).await.expect("reads go on").is_none(), "{number}");
        }
        engine.remove_file(FILLER).await.unwrap();
        until_taken(&store, async || keyspace.put("again", "1").await).await;
        store.close().await.unwrap();
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Story: keyspaces were dropped on a full disk without a look at the room that the manifest's log has left without a next segment. The
/// log failed for lack of space, and the store was read-only until it was opened again.
#[test]
fn keyspaces_are_dropped_on_a_full_disk_as_far_as_the_manifest_has_room() {
    let disk = Profile::ideal().at("/disk").capacity(8 << 20);
    let ran = World::new(4).disk(disk).run(async |engine| {
        let options = options().reserve_bytes(0).log_segment_bytes(64 << 10);
        let (store, keyspaces) = open(&engine, options, 180).await;
        store.default_keyspace().put("key", "value").await.expect("there is space");
        // A drop flushes what is in memory.
        store.flush().await.expect("there is space");
        // The logs make their reserves in the background.
        pause(2_000).await;
        for keyspace in &keyspaces {
            let dropped = async || {
                // Another process uses what the store gives back.
                take_all_but(&engine, 0).await;
                store.drop_keyspace(keyspace.name()).await
            };
            until_taken(&store, dropped).await;
        }
        assert!(store.stats().failed.is_none(), "{:?}", store.stats());
        engine.remove_file(FILLER).await.unwrap();
        until_taken(&store, async || store.default_keyspace().put("again", "1").await).await;
        assert_eq!(store.keyspaces(), ["default"]);
        store.close().await.unwrap();
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Story: of all keyspaces a full store tried one job only, again and again. Where another process had filled the disk, and this job
/// needed more than was left, a keyspace next to it whose deletions would have freed megabytes for a few pages was never compacted.
#[test]
fn a_long_job_without_space_keeps_no_short_one_from_freeing_some() {
    let mut world = World::new(7).disk(Profile::nand().at("/disk").capacity(32 << 20));
    let ran = world.run(async |engine| {
        let (store, keyspaces) = open(&engine, options().reserve_bytes(0), 2).await;
        for keyspace in &keyspaces {
            for number in 0..1_500u32 {
                keyspace.put(number.to_be_bytes(), [7; 1_000]).await.expect("there is space");
            }
        }
        store.compact().await.expect("there is space");
        // Of the first keyspace little is deleted, and of the second nearly all.
        for number in 0..1_499u32 {
            if number % 4 == 0 {
                keyspaces[0].delete(number.to_be_bytes()).await.expect("there is space");
            }
            keyspaces[1].delete(number.to_be_bytes()).await.expect("there is space");
        }
        store.flush().await.expect("there is space");
        // The log frees the segments whose records are in tables.
        pause(50).await;
        take_all_but(&engine, 24 << 10).await;
        let mut looks = 0;
        let bytes = || {
            let levels = store.stats().keyspaces.into_iter().flat_map(|keyspace| keyspace.levels);
            levels.map(|level| level.bytes).sum::<u64>()
        };
        while store.stats().full.is_some() || bytes() > 1_800_000 {
            looks += 1;
            assert!(looks < REFUSALS_MAX, "{:?}", store.stats());
            pause(100).await;
        }
        store.close().await.unwrap();
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Story: the edit of a flush names the first and the last key of each table, and with keys of 16 KiB in 24 keyspaces it is longer than
/// three segments of the manifest's log. Where the disk had space for the tables and not for the next segments, the log failed between
/// two records, and the store was read-only.
#[test]
fn a_flush_whose_edit_finds_no_space_is_made_later() {
    const KEYSPACES: usize = 24;
    let key = |number: usize| vec![number as u8 + 1; 16 << 10];
    for free_kib in (512..2_048).step_by(128) {
        let disk = Profile::nand().at("/disk").capacity(8 << 20);
        let ran = World::new(free_kib).disk(disk).run(async |engine| {
            let options = options().memtable_bytes(512 << 10).reserve_bytes(0);
            let (store, keyspaces) = open(&engine, options, KEYSPACES).await;
            for (number, keyspace) in keyspaces.iter().enumerate() {
                keyspace.put(key(number), "value").await.expect("there is space");
            }
            // The logs make their next segments in the background.
            pause(2_000).await;
            take_all_but(&engine, free_kib << 10).await;
            if let Err(error) = store.flush().await {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            }
            assert!(store.stats().failed.is_none(), "{:?}", store.stats());
            engine.remove_file(FILLER).await.unwrap();
            until_taken(&store, async || store.flush().await).await;
            for (number, keyspace) in keyspaces.iter().enumerate() {
                let found = keyspace.get(&key(number)).await.expect("a read");
                assert_eq!(found.as_deref(), Some(&b"value"[..]));
            }
            store.close().await.unwrap();
        });
        ran.unwrap_or_else(|failure| panic!("{free_kib} KiB: {failure}"));
    }
}
