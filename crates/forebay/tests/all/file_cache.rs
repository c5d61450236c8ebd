//! Files that stay open for later use. Scenes in which a real process has no descriptor left are in `exhaustion/files.rs`.

use forebay::{Engine, Error, ErrorKind, FileCache, FileEntry, FilePlace, FileUse, Open};

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
        cache.close();
        assert_eq!(cache.open_files(), 0);
        drop(check(&entries[0], 0).await.unwrap());
        assert_eq!(cache.open_files(), 0, "a closed cache keeps nothing open");
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

/// A file that was opened is the same one after its directory was moved, and one whose name is gone stays as long as it is in use.
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
        cache.close_idle();
        let used = check(&entry, 0).await.unwrap();
        std::fs::remove_file(moved.join("0")).unwrap();
        cache.close_idle();
        drop(check(&entry, 0).await.unwrap());
        drop(used);
        cache.close_idle();
        assert_eq!(check(&entry, 0).await.unwrap_err().kind(), ErrorKind::NotFound);
        let held =
            cache.holding(engine.open(files(base.path(), 1).next().unwrap(), Open::read()).await.unwrap());
        cache.close_idle();
        check(&held, 0).await.unwrap();
        assert_eq!(cache.open_files(), 1);
        drop(held);
        assert_eq!(cache.open_files(), 0);
    });
}

#[cfg(feature = "sim")]
mod worlds {
    use std::sync::Arc;

    use forebay::sim::{self, Fault, Rule, World};

    use super::*;

    async fn made(engine: &Engine, count: usize) -> (FileCache, Vec<Arc<FileEntry>>) {
        let cache = FileCache::new(engine, Open::read(), None);
        let mut entries = Vec::new();
        for number in 0..count {
            let path = format!("/{number}");
            let file = engine.open(&path, Open::create()).await.unwrap();
            file.write(0, bytes_of(number as u64 * 4096..(number as u64 + 1) * 4096)).await.unwrap();
            entries.push(Arc::new(cache.file(path)));
        }
        (cache, entries)
    }

    #[test]
    fn one_open_serves_all_that_wait_and_none_waits_for_one_that_is_not_polled() {
        for seed in 0..40 {
            let mut world = World::new(seed);
            world
                .run(async |engine| {
                    let (cache, entries) = made(&engine, 2).await;
                    let (kept, begun) = (entries[0].clone(), entries[0].clone());
                    let none = NONE;
                    let mut kept = Box::pin(kept.open(&none));
                    assert!(futures::poll!(&mut kept).is_pending());
                    // One that begins the open and gives it up.
                    let _ = sim::dropped_after(1, entries[1].open(&none)).await;
                    let tasks = (0..8).map(|task| {
                        let entry = entries[task % 2].clone();
                        sim::spawn(async move { check(&entry, task as u64 % 2).await.map(drop) })
                    });
                    for task in tasks.collect::<Vec<_>>() {
                        task.await.unwrap().unwrap();
                    }
                    assert!(begun.is_open() && cache.open_files() == 2);
                    cache.close_idle();
                    assert_eq!(cache.open_files(), 1, "one is about to be used");
                    drop(kept);
                    cache.close_idle();
                    assert_eq!(cache.open_files(), 0);
                })
                .unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        }
    }

    #[test]
    fn a_call_without_a_descriptor_is_made_again_once_idle_files_are_closed() {
        for seed in 0..40 {
            let mut world = World::new(seed);
            world
                .run(async |engine| {
                    let (cache, entries) = made(&engine, 6).await;
                    let used = check(&entries[0], 0).await.unwrap();
                    for (entry, number) in entries[1..5].iter().zip(1..) {
                        check(entry, number).await.unwrap();
                    }
                    // The first attempt closes the four idle files, the second one is the last try.
                    sim::inject(Rule::new(Fault::TooManyFiles).on("/5").times(2));
                    check(&entries[5], 5).await.unwrap();
                    assert_eq!(cache.open_files(), 2);
                    cache.close_idle();
                    // Any other call has the same chance.
                    sim::inject(Rule::new(Fault::TooManyFiles).on("/4").times(1));
                    engine.open("/4", Open::read()).await.unwrap();
                    sim::inject(Rule::new(Fault::TooManyFiles).on("/4").times(4));
                    for error in [
                        engine.open("/4", Open::read()).await.map(drop).unwrap_err(),
                        entries[4].open(&NONE).await.map(drop).unwrap_err(),
                    ] {
                        assert!(error.is_out_of_descriptors());
                        let text = error.to_string();
                        assert!(text.contains("RLIMIT_NOFILE") && text.contains("ulimit -n"), "{text}");
                    }
                    check(&entries[4], 4).await.unwrap();
                    assert!(used.read(0..1).await.is_ok(), "what is in use is not closed");
                })
                .unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        }
    }
}
