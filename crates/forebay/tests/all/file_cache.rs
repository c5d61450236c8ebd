//! Files that stay open for later use. Scenes in which a real process has no descriptor left are in `exhaustion/files.rs`.

use std::future::Future;
use std::task::{Context, Waker};

use forebay::{Error, ErrorKind, FileCache, FileEntry, FilePlace, FileUse, Open};

use crate::common::{bytes_of, dir, engine};

const NONE: FilePlace = FilePlace::NONE;

/// Makes files of known bytes in a directory.
fn files(dir: &std::path::Path, count: u64) -> impl Iterator<Item = std::path::PathBuf> {
    let path = move |number: u64| dir.join(number.to_string());
    for number in 0..count {
        std::fs::write(path(number), bytes_of(number * 4096..(number + 1) * 4096)).unwrap();
    }
    (0..count).map(path).collect::<Vec<_>>().into_iter()
}

fn entries(cache: &FileCache, dir: &std::path::Path, count: u64) -> Vec<FileEntry> {
    files(dir, count).map(|path| cache.file(path)).collect()
}

async fn check(entry: &FileEntry, number: u64) -> Result<FileUse, Error> {
    let file = entry.open(&NONE).await?;
    let block = file.read(0..4096).await?;
    assert!(block[..] == bytes_of(number * 4096..(number + 1) * 4096), "file {number}");
    Ok(file)
}

#[test]
fn the_files_that_were_used_last_stay_open() {
    let (engine, dir) = (engine(), dir());
    let cache = FileCache::new(&engine, Open::read(), Some(4));
    let entries = entries(&cache, dir.path(), 10);
    futures::executor::block_on(async {
        for _ in 0..3 {
            for (entry, number) in entries.iter().zip(0..) {
                check(entry, number).await.unwrap();
                // Used again and again, it stays.
                assert!(entries[0].get().is_some());
            }
        }
        assert_eq!(cache.open_files(), 4);
        let open: Vec<usize> = (0..10).filter(|number| entries[*number].is_open()).collect();
        assert_eq!(open, [0, 7, 8, 9]);
        // What is in use stays open beyond the limit, and not longer.
        let used =
            futures::future::join_all((0..8).map(|number| check(&entries[number as usize], number))).await;
        assert!(cache.open_files() >= 8);
        drop(used);
        assert_eq!(cache.open_files(), 4);
        let used = check(&entries[0], 0).await.unwrap();
        cache.close().await.unwrap();
        assert_eq!(cache.open_files(), 1, "it is in use");
        drop(used);
        assert_eq!(cache.open_files(), 0, "a closed cache keeps nothing open");
        assert_eq!(check(&entries[0], 0).await.unwrap_err().kind(), ErrorKind::FileClosed);
        cache.close().await.unwrap();
    });
}

/// Story: each call that waited for the open of a file looked through all others. The time of a server whose clients, ten thousand of
/// them, wanted the same file at first grew with the square of their number.
#[test]
fn thousands_of_calls_wait_for_one_open_together() {
    let (engine, dir) = (engine(), dir());
    for _ in 0..10 {
        let cache = FileCache::new(&engine, Open::read(), None);
        let entry = entries(&cache, dir.path(), 1).remove(0);
        let mut calls: Vec<_> = (0..2_000).map(|_| Box::pin(check(&entry, 0))).collect();
        // A call is woken by the waker of its last poll, and one that is dropped leaves the others.
        calls.retain_mut(|call| call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        calls.truncate(1_990);
        let used = futures::executor::block_on(futures::future::join_all(calls));
        used.into_iter().for_each(|used| drop(used.unwrap()));
        assert_eq!(cache.open_files(), 1);
    }
}

/// Each open makes its file, so that an open after the close would be seen.
#[test]
fn a_close_waits_for_opens_whose_calls_were_dropped() {
    let (engine, dir) = (engine(), dir());
    futures::executor::block_on(async {
        for is_last in [false, true] {
            let home = dir.path().join(is_last.to_string());
            std::fs::create_dir(&home).unwrap();
            let cache = FileCache::new(&engine, Open::create(), None);
            let entries: Vec<FileEntry> =
                (0..200).map(|number| cache.file(home.join(number.to_string()))).collect();
            for entry in &entries {
                assert!(futures::poll!(Box::pin(entry.open(&NONE))).is_pending());
            }
            let close = || if is_last { cache.close() } else { cache.close_idle() };
            // Dropped, it leaves the rest to the next one.
            drop(close());
            close().await.unwrap();
            assert_eq!(std::fs::read_dir(&home).unwrap().count(), entries.len());
            assert_eq!(cache.open_files(), 0);
        }
    });
}

#[test]
fn what_cannot_be_opened_is_an_error_each_time() {
    let (engine, dir) = (engine(), dir());
    let cache = FileCache::new(&engine, Open::read(), None);
    let entry = cache.file(dir.path().join("none"));
    futures::executor::block_on(async {
        for _ in 0..3 {
            let error = entry.open(&NONE).await.unwrap_err();
            assert_eq!((error.kind(), error.path()), (ErrorKind::NotFound, Some(entry.path())));
        }
        std::fs::write(entry.path(), bytes_of(0..4096)).unwrap();
        check(&entry, 0).await.unwrap();
        let open = engine.open_dir(dir.path()).await.unwrap();
        assert_eq!(cache.file_in(&open, "a/b").unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn an_entry_outlives_its_engine() {
    let (engine, dir) = (engine(), dir());
    let cache = FileCache::new(&engine, Open::read(), None);
    let entries = entries(&cache, dir.path(), 2);
    futures::executor::block_on(async {
        let file = check(&entries[0], 0).await.unwrap();
        engine.close().await.unwrap();
        assert_eq!(file.read(0..1).await.unwrap_err().kind(), ErrorKind::EngineClosed);
        assert_eq!(entries[1].open(&NONE).await.unwrap_err().kind(), ErrorKind::EngineClosed);
        let ran = cache.run(forebay::Class::DEFAULT, async |_: FilePlace| 1).await;
        assert!(ran.is_ok_and(|one| one == 1), "it needs no task while few files are open");
    });
}

/// An open file stays the same after its directory was moved, and a file whose name was removed stays as long as it is in use.
#[test]
fn names_are_looked_up_in_the_open_directory() {
    let (engine, base) = (engine(), dir());
    let (there, moved) = (base.path().join("there"), base.path().join("moved"));
    std::fs::create_dir(&there).unwrap();
    files(&there, 1).for_each(drop);
    let cache = FileCache::new(&engine, Open::read(), None);
    futures::executor::block_on(async {
        let entry = cache.file_in(&engine.open_dir(&there).await.unwrap(), "0").unwrap();
        check(&entry, 0).await.unwrap();
        std::fs::rename(&there, &moved).unwrap();
        cache.close_idle().await.unwrap();
        let used = check(&entry, 0).await.unwrap();
        std::fs::remove_file(moved.join("0")).unwrap();
        cache.close_idle().await.unwrap();
        drop(check(&entry, 0).await.unwrap());
        drop(used);
        cache.close_idle().await.unwrap();
        assert_eq!(check(&entry, 0).await.unwrap_err().kind(), ErrorKind::NotFound);
        let held =
            cache.holding(engine.open(files(base.path(), 1).next().unwrap(), Open::read()).await.unwrap());
        cache.close_idle().await.unwrap();
        check(&held, 0).await.unwrap();
        assert_eq!(cache.open_files(), 1);
        drop(held);
        assert_eq!(cache.open_files(), 0);
    });
}
