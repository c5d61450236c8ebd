//! An open store whose directory is moved away, replaced or removed.
//!
//! Regression: an open store accessed its files by path. After `mv data data.old; mv good data` under an open
//! store in `data` it removed the tables of the good one, overwrote its logs, and closed successfully.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::{dir, engines, key, options, value};
use forebay::{Engine, FileKind, Open};
use forebay_kv::{ErrorKind, Keyspace, Store};
use forebay_sim::{Profile, World};

/// Returns every file below a directory with its bytes.
pub(crate) async fn content(engine: &Engine, dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut files, mut dirs) = (BTreeMap::new(), vec![dir.to_path_buf()]);
    while let Some(dir) = dirs.pop() {
        for entry in engine.read_dir(&dir).await.unwrap() {
            let path = dir.join(entry.name());
            if entry.kind() == FileKind::Dir {
                dirs.push(path);
                continue;
            }
            let file = engine.open(&path, Open::read().buffered()).await.unwrap();
            let len = file.len().await.unwrap();
            files.insert(path, file.read(0..len).await.unwrap().to_vec());
        }
    }
    files
}

async fn put(keyspace: &Keyspace, numbers: std::ops::Range<u64>) {
    let puts = numbers.map(|number| keyspace.put(key(number), value(number)));
    for put in futures::future::join_all(puts).await {
        put.unwrap();
    }
}

async fn open(engine: &Engine, dir: &Path) -> Store {
    Store::open(engine, dir, options().store_id(7)).await.unwrap()
}

async fn has(keyspace: &Keyspace, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let found = keyspace.get(&key(number)).await.unwrap();
        assert_eq!(found.as_deref(), Some(&value(number)[..]), "key {number}");
    }
}

/// Removes the directory of an open store, whose logs may be making their next segments and reserves meanwhile.
async fn remove_all(engine: &Engine, dir: &Path) {
    loop {
        for entry in engine.read_dir(dir).await.unwrap() {
            let path = dir.join(entry.name());
            if entry.kind() == FileKind::Dir {
                Box::pin(remove_all(engine, &path)).await;
            } else {
                let _ = engine.remove_file(&path).await;
            }
        }
        match engine.remove_dir(dir).await {
            Err(error) if error.kind() == forebay::ErrorKind::DirectoryNotEmpty => {}
            removed => break removed.unwrap(),
        }
    }
}

/// Replaces the directory of an open store by another store; the open one then flushes, compacts, makes a
/// checkpoint and closes.
async fn is_moved_and_replaced(engine: &Engine, base: &Path) {
    let [data, good, moved, copy] = ["data", "good", "moved", "copy"].map(|name| base.join(name));
    engine.create_dir_all(base).await.unwrap();
    let store = open(engine, &good).await;
    for part in 0..4 {
        put(&store.default_keyspace(), part * 200..(part + 1) * 200).await;
        store.flush().await.unwrap();
    }
    store.close().await.unwrap();

    let store = open(engine, &data).await;
    let keyspace = store.default_keyspace();
    put(&keyspace, 0..100).await;
    store.flush().await.unwrap();
    engine.rename(&data, &moved).await.unwrap();
    engine.rename(&good, &data).await.unwrap();
    let before = content(engine, &data).await;
    for round in 0..6 {
        put(&keyspace, round * 300..round * 300 + 400).await;
        store.flush().await.unwrap();
    }
    store.compact().await.unwrap();
    store.settle().await.unwrap();
    store.checkpoint(&copy).await.unwrap();
    put(&keyspace, 1900..2000).await;
    has(&keyspace, 0..2000).await;
    assert!(store.verify().await.unwrap().is_whole());
    store.close().await.unwrap();

    let after = content(engine, &data).await;
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>(), "the other's files");
    assert!(after == before, "bytes of the other store");
    for (dir, count) in [(&moved, 2000), (&copy, 1900), (&data, 800)] {
        let verified = forebay_kv::verify(engine, dir).await.unwrap();
        assert!(verified.is_whole(), "{verified:?}");
        let store = open(engine, dir).await;
        has(&store.default_keyspace(), 0..count).await;
        store.close().await.unwrap();
    }
}

#[test]
fn a_store_goes_on_in_a_directory_that_is_moved_and_leaves_the_other_alone() {
    for engine in engines() {
        let dir = dir();
        futures::executor::block_on(is_moved_and_replaced(&engine, dir.path()));
    }
}

#[test]
fn the_same_in_worlds() {
    for seed in 0..5 {
        World::new(seed)
            .disk(Profile::nand())
            .run(async |engine| is_moved_and_replaced(&engine, Path::new("/stores")).await)
            .unwrap();
    }
}

/// Nothing more is acknowledged, no file is created under the old name, and nothing hangs.
async fn is_removed(engine: &Engine, base: &Path) {
    let data = base.join("data");
    engine.create_dir_all(base).await.unwrap();
    let store = open(engine, &data).await;
    let keyspace = store.default_keyspace();
    put(&keyspace, 0..300).await;
    store.flush().await.unwrap();
    put(&keyspace, 300..400).await;
    remove_all(engine, &data).await;
    engine.create_dir(&data).await.unwrap();

    let error = keyspace.put(key(400), value(400)).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("removed") && text.contains("data"), "{text}");
    let error = keyspace.put(key(401), value(401)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    assert!(store.flush().await.is_err() && store.checkpoint(base.join("copy")).await.is_err());
    // Acknowledged values can be read as long as the store is open.
    has(&keyspace, 0..400).await;
    let _ = store.close().await;
    assert_eq!(content(engine, &data).await.len(), 0, "a directory of the same name is another");
    assert_eq!(engine.read_dir(&data).await.unwrap().len(), 0);
}

#[test]
fn nothing_is_acknowledged_in_a_directory_that_was_removed() {
    for engine in engines() {
        let dir = dir();
        futures::executor::block_on(is_removed(&engine, dir.path()));
    }
}

#[test]
fn nothing_is_acknowledged_in_a_directory_that_was_removed_in_a_world() {
    World::new(1)
        .disk(Profile::nand())
        .run(async |engine| is_removed(&engine, Path::new("/stores")).await)
        .unwrap();
}
