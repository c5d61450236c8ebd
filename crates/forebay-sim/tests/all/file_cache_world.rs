//! Files that stay open for later use, in worlds: who waits for an open, and descriptors that run out.

use std::sync::Arc;
use std::time::Duration;

use forebay::{Engine, Error, FileCache, FileEntry, FilePlace, FileUse, Open};
use forebay_sim::{self as sim, Fault, Profile, Rule, World};

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
                // A caller that starts the open and drops it.
                let _ = sim::dropped_after(1, entries[1].open(&none)).await;
                let tasks = (0..8).map(|task| {
                    let entry = entries[task % 2].clone();
                    sim::spawn(async move { check(&entry, task as u64 % 2).await.map(drop) })
                });
                for task in tasks.collect::<Vec<_>>() {
                    task.await.unwrap().unwrap();
                }
                assert!(begun.is_open() && cache.open_files() == 2);
                cache.close_idle().await.unwrap();
                assert_eq!(cache.open_files(), 1, "one is about to be used");
                drop(kept);
                cache.close_idle().await.unwrap();
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
                cache.close_idle().await.unwrap();
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

/// Returns whether an open happened after the close that should have waited for it.
fn open_after_close(seed: u64) -> bool {
    let disk = Profile::nand().call_latency(Duration::from_millis(20));
    let ran = World::new(seed).disk(disk).run(async |engine| {
        let (cache, entries) = made(&engine, 4).await;
        let mut is_late = false;
        for close in [FileCache::close_idle, FileCache::close] {
            for entry in &entries[..3] {
                let _ = sim::dropped_after(1, entry.open(&NONE)).await;
            }
            // One is dropped before its end, which leaves the rest to the next one.
            let _ = sim::dropped_after(1, close(&cache)).await;
            close(&cache).await.unwrap();
            sim::inject(Rule::new(Fault::TooManyFiles));
            sim::sleep(Duration::from_secs(1)).await.unwrap();
            is_late |= sim::node(0).counts().fired(Fault::TooManyFiles) > 0;
            sim::clear_faults();
            assert_eq!(cache.open_files(), 0);
        }
        is_late
    });
    ran.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"))
}

#[test]
fn no_open_takes_place_after_the_close_of_its_cache() {
    (0..20).for_each(|seed| assert!(!open_after_close(seed), "seed {seed}"));
    #[cfg(feature = "_mutants")]
    assert!(forebay::mutants::with(forebay::mutants::Mutant::OpensOutliveClose, || open_after_close(0)));
}

/// An open may start at any time.
#[test]
fn a_close_of_idle_files_waits_for_no_later_open() {
    let disk = Profile::ideal().call_latency(Duration::from_millis(20));
    let ran = World::new(1).disk(disk).run(async |engine| {
        let (cache, entries) = made(&engine, 2).await;
        let _ = sim::dropped_after(1, entries[0].open(&NONE)).await;
        sim::sleep(Duration::from_millis(10)).await.unwrap();
        let close = cache.close_idle();
        let none = NONE;
        let mut later = Box::pin(entries[1].open(&none));
        assert!(futures::poll!(&mut later).is_pending());
        close.await.unwrap();
        assert!(futures::poll!(&mut later).is_pending());
        drop(later.await.unwrap());
        assert_eq!((entries[0].is_open(), entries[1].is_open()), (false, true));
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}
