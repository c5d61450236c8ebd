//! Files that stay open for later use, in worlds: who waits for an open, and descriptors that run out.

use std::sync::Arc;

use forebay::{Engine, Error, FileCache, FileEntry, FilePlace, FileUse, Open};
use forebay_sim::{self as sim, Fault, Rule, World};

use crate::common::bytes_of;

const NONE: FilePlace = FilePlace::NONE;

async fn check(entry: &FileEntry, number: u64) -> Result<FileUse, Error> {
    let file = entry.open(&NONE).await?;
    let block = file.read(0..4096).await?;
    assert!(block[..] == bytes_of(number * 4096..(number + 1) * 4096), "file {number}");
    Ok(file)
}

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
