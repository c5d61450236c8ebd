//! Shows: reads return the object's bytes of the moment, whoever replaced it; results keep only their own bytes; streams may be dropped
//! anywhere; open files have a limit. How: real files, the engine's counters, and the descriptors of files below a test's own directory.
#![allow(clippy::single_range_in_vec_init, reason = "a batch of one range")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path as FsPath;
use std::time::{Duration, Instant, SystemTime};

use crate::common::{Numbers, bytes_of, dir, engine, settings, store};
use bytes::Bytes;
use forebay::device::DeviceKind;
use forebay::{Class, Config, Durability, Engine, Mode, Open};
use forebay_object_store::ForebayStore;
use futures::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion};

const MIB: u64 = 1 << 20;
/// Only a hang lasts this long.
const LONG: Duration = Duration::from_secs(60);
const MODES: [Mode; 3] = [Mode::Adaptive, Mode::Direct, Mode::Buffered];

fn write(root: &FsPath, name: &str, len: u64) {
    fs::write(root.join(name), bytes_of(0..len)).unwrap();
}

/// Returns the descriptors of files below `root`.
fn descriptors(root: &FsPath) -> usize {
    let fds = fs::read_dir("/proc/self/fd").unwrap().flatten();
    fds.filter(|fd| fs::read_link(fd.path()).is_ok_and(|target| target.starts_with(root))).count()
}

fn evict(path: &FsPath) {
    let file = fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_of_every_kind_come_back_in_their_order() {
    let root = dir();
    write(root.path(), "a", 12 * MIB + 5);
    let location = Path::from("a");
    let mut numbers = Numbers(3);
    let mut ranges: Vec<_> = (0..700)
        .map(|_| {
            let start = numbers.below(12 * MIB);
            start..(start + numbers.below(9000)).min(12 * MIB + 5)
        })
        .collect();
    ranges.extend([
        0..0,
        5..5,
        99 * MIB..99 * MIB,
        0..1,
        0..1,
        0..12 * MIB + 5,
        7..5 * MIB,
        12 * MIB..12 * MIB + 5,
    ]);
    for mode in MODES {
        for gap in [0, 16 << 10, MIB, u64::MAX] {
            let store = settings(root.path()).read_mode(mode).gap_bytes_max(gap).open().await.unwrap();
            let parts = store.get_ranges(&location, &ranges).await.unwrap();
            assert_eq!(parts.len(), ranges.len());
            for (range, part) in ranges.iter().zip(&parts) {
                let expected = if range.is_empty() { Vec::new() } else { bytes_of(range.clone()) };
                assert!(*part == expected, "{mode:?}, gap {gap}, {range:?}");
            }
            assert!(store.get_ranges(&location, &[]).await.unwrap().is_empty());
        }
    }
    let store = store(root.path()).await;
    #[expect(clippy::reversed_empty_ranges, reason = "what is refused")]
    let refused =
        [12 * MIB..12 * MIB + 6, 12 * MIB + 5..12 * MIB + 6, 0..u64::MAX, u64::MAX - 1..u64::MAX, 9..3];
    for range in refused {
        let error = store.get_ranges(&location, &[0..1, range.clone()]).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Generic { .. }), "{text}");
        assert!(text.contains(&range.start.to_string()) && text.contains("/a"), "{text}");
    }
    assert!(matches!(store.get_ranges(&Path::from("b"), &[]).await, Err(Error::NotFound { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_keep_little_beside_their_own_bytes() {
    let root = dir();
    write(root.path(), "a", 8 * MIB);
    let location = Path::from("a");
    for mode in MODES {
        for is_cold in [false, true] {
            let engine = engine();
            let store = ForebayStore::builder(&engine, root.path()).read_mode(mode).open().await.unwrap();
            if is_cold {
                evict(&root.path().join("a"));
            }
            // Close together, so that many are read with one request.
            let ranges: Vec<_> = (0..2000).map(|number| number * 4000..number * 4000 + 1000).collect();
            let parts = store.get_ranges(&location, &ranges).await.unwrap();
            // One of a hundred is kept.
            let kept: Vec<Bytes> = parts.into_iter().step_by(100).collect();
            // Buffers that were in use are returned in some turn of the shards.
            let begun = Instant::now();
            loop {
                engine.stats().await.unwrap();
                let memory = engine.memory();
                let held = memory.held_bytes + memory.result_bytes;
                if held <= 20 * (1000 + 4096) {
                    break;
                }
                let what = format!("{mode:?}, cold {is_cold}: {held} bytes are held by 20 results");
                assert!(begun.elapsed() < LONG, "{what}");
            }
            assert!(kept[3] == bytes_of(1_200_000..1_201_000));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_was_replaced_is_seen_by_the_next_read() {
    let above = dir();
    let root = above.path().join("root");
    fs::create_dir_all(root.join("v1")).unwrap();
    fs::create_dir_all(root.join("v2")).unwrap();
    write(&root, "v1/a", 5000);
    fs::write(root.join("v2/a"), "second").unwrap();
    std::os::unix::fs::symlink("v1", root.join("current")).unwrap();
    for mode in MODES {
        let store = settings(&root).read_mode(mode).open().await.unwrap();
        let first = async |location: &str| {
            let location = Path::from(location);
            let part = store.get_ranges(&location, &[0..4]).await.unwrap();
            let got = store.get_opts(&location, GetOptions::new().with_range(Some(0..4))).await.unwrap();
            assert_eq!(got.bytes().await.unwrap(), part[0]);
            part[0].to_vec()
        };
        let one = bytes_of(0..4);
        assert_eq!(first("v1/a").await, one);
        // By a rename of another file, which is how files are replaced.
        let old = fs::read(root.join("v1/a")).unwrap();
        fs::write(root.join("v1/new"), "third").unwrap();
        fs::rename(root.join("v1/new"), root.join("v1/a")).unwrap();
        assert_eq!(first("v1/a").await, b"thir");
        // In place.
        fs::write(root.join("v1/a"), "fourth").unwrap();
        assert_eq!(first("v1/a").await, b"four");
        // By a copy that keeps a second name of the old file.
        fs::hard_link(root.join("v1/a"), root.join("v1/kept")).unwrap();
        fs::write(root.join("v1/new"), "fifth").unwrap();
        fs::rename(root.join("v1/new"), root.join("v1/a")).unwrap();
        assert_eq!(first("v1/a").await, b"fift");
        fs::remove_file(root.join("v1/kept")).unwrap();
        // By a link above it, and by a directory above it.
        assert_eq!(first("current/a").await, b"fift");
        fs::remove_file(root.join("current")).unwrap();
        std::os::unix::fs::symlink("v2", root.join("current")).unwrap();
        assert_eq!(first("current/a").await, b"seco");
        assert_eq!(first("v2/a").await, b"seco");
        fs::rename(root.join("v2"), root.join("v3")).unwrap();
        fs::rename(root.join("v1"), root.join("v2")).unwrap();
        assert_eq!(first("v2/a").await, b"fift");
        // By nothing.
        fs::remove_file(root.join("v2/a")).unwrap();
        let gone = store.get_ranges(&Path::from("v2/a"), &[0..4]).await;
        assert!(matches!(gone, Err(Error::NotFound { .. })));
        fs::rename(root.join("v2"), root.join("v1")).unwrap();
        fs::rename(root.join("v3"), root.join("v2")).unwrap();
        fs::write(root.join("v1/a"), old).unwrap();
        fs::remove_file(root.join("current")).unwrap();
        std::os::unix::fs::symlink("v1", root.join("current")).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_goes_on_with_the_file_that_it_began_with() {
    let root = dir();
    let location = Path::from("a");
    for mode in MODES {
        write(root.path(), "a", 20 * MIB);
        let store = settings(root.path()).read_mode(mode).open_files_max(1).open().await.unwrap();
        let mut chunks = store.get(&location).await.unwrap().into_stream();
        let mut found = chunks.next().await.unwrap().unwrap().to_vec();
        store.put(&location, "other".into()).await.unwrap();
        store.put(&Path::from("b"), "other".into()).await.unwrap();
        store.get_ranges(&Path::from("b"), &[0..1]).await.unwrap();
        while let Some(chunk) = chunks.next().await {
            found.extend_from_slice(&chunk.unwrap());
        }
        assert!(found == bytes_of(0..20 * MIB), "{mode:?}");
        store.delete(&location).await.unwrap();
    }
    // One that becomes shorter ends with an error, not with fewer bytes.
    write(root.path(), "a", 20 * MIB);
    let store = store(root.path()).await;
    let mut chunks = store.get(&location).await.unwrap().into_stream();
    chunks.next().await.unwrap().unwrap();
    fs::File::options().write(true).open(root.path().join("a")).unwrap().set_len(15 * MIB + 3).unwrap();
    let error = loop {
        match chunks.next().await {
            Some(Ok(_)) => {}
            Some(Err(error)) => break error,
            None => panic!("the stream ended as if it were whole"),
        }
    };
    assert!(error.to_string().contains("became shorter"), "{error}");
    assert!(chunks.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_come_as_streams_and_short_ones_as_one_chunk() {
    let root = dir();
    write(root.path(), "a", 9 * MIB + 77);
    let location = Path::from("a");
    for mode in MODES {
        let store = settings(root.path()).read_mode(mode).open().await.unwrap();
        for (range, expected, chunks_max) in [
            (None, 0..9 * MIB + 77, usize::MAX),
            (Some(GetRange::Bounded(5..5 + 8 * MIB)), 5..5 + 8 * MIB, 1),
            (Some(GetRange::Bounded(5..6 + 8 * MIB)), 5..6 + 8 * MIB, usize::MAX),
            (Some(GetRange::Bounded(9 * MIB..99 * MIB)), 9 * MIB..9 * MIB + 77, 1),
            (Some(GetRange::Offset(8 * MIB)), 8 * MIB..9 * MIB + 77, 1),
            (Some(GetRange::Suffix(7)), 9 * MIB + 70..9 * MIB + 77, 1),
        ] {
            let got = store.get_opts(&location, GetOptions { range, ..GetOptions::default() }).await.unwrap();
            assert_eq!(got.range, expected);
            let chunks: Vec<Bytes> = got.into_stream().try_collect().await.unwrap();
            assert!(chunks.len() <= chunks_max, "{} chunks for {expected:?}", chunks.len());
            assert!(chunks.concat() == bytes_of(expected.clone()), "{mode:?} {expected:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_may_be_kept_beyond_the_engines_memory() {
    let root = dir();
    write(root.path(), "a", 48 * MIB);
    let memory = 32 << 20;
    let config = Config::new().shards(2).arena_bytes(memory).arena_bytes_max(memory).overflow_bytes_max(0);
    for mode in MODES {
        let engine = Engine::start(config.clone()).unwrap();
        let store = ForebayStore::builder(&engine, root.path()).read_mode(mode).open().await.unwrap();
        let got = store.get(&Path::from("a")).await.unwrap();
        let chunks: Vec<Bytes> = got.into_stream().try_collect().await.unwrap();
        assert!(chunks.concat() == bytes_of(0..48 * MIB), "{mode:?}");
        assert!(engine.memory().held_bytes <= memory as u64 / 2, "{:?}", engine.memory());
        let ranges: Vec<_> = (0..48).map(|number| number * MIB..(number + 1) * MIB).collect();
        let parts = store.get_ranges(&Path::from("a"), &ranges).await.unwrap();
        assert!(parts.concat() == chunks.concat());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_may_be_dropped_at_any_point() {
    let root = dir();
    write(root.path(), "a", 12 * MIB);
    let location = Path::from("a");
    for mode in MODES {
        let engine = engine();
        let store = ForebayStore::builder(&engine, root.path()).read_mode(mode).open().await.unwrap();
        for chunks in 0..12 {
            if chunks % 3 == 0 {
                evict(&root.path().join("a"));
            }
            let mut stream = store.get(&location).await.unwrap().into_stream();
            for _ in 0..chunks {
                let _ = stream.next().await;
            }
            // Also in the middle of a read, unless it ends while it is polled.
            if chunks % 2 == 0 {
                let _ = futures::poll!(stream.next());
            }
            drop(stream);
            let ranges: Vec<_> = (0..200).map(|number| number * 60_000..number * 60_000 + 500).collect();
            let mut batch = store.get_ranges(&location, &ranges);
            let _ = futures::poll!(&mut batch);
            drop(batch);
        }
        // All others continue.
        let whole = store.get(&location).await.unwrap().bytes().await.unwrap();
        assert!(whole == bytes_of(0..12 * MIB));
        drop(whole);
        store.close_files().await.unwrap();
        drop(store);
        let report = engine.close().await.unwrap();
        assert_eq!((report.leaked_operations, report.lost_shards), (0, 0));
        assert_eq!(descriptors(root.path()), 0, "{mode:?}");
    }
}

/// An adaptive file has two descriptors.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_files_have_a_limit() {
    let root = dir();
    for number in 0..300 {
        write(root.path(), &number.to_string(), 9000);
    }
    let engine = engine();
    let settled = async || {
        // Files are closed by the shards, in their next turns.
        for _ in 0..3 {
            engine.stats().await.unwrap();
        }
        descriptors(root.path())
    };
    let store = ForebayStore::builder(&engine, root.path()).open_files_max(10).open().await.unwrap();
    let mut peak = 0;
    for number in 0..300 {
        let location = Path::from(number.to_string());
        assert!(store.get_ranges(&location, &[5..8000]).await.unwrap()[0] == bytes_of(5..8000));
        assert_eq!(store.get(&location).await.unwrap().bytes().await.unwrap().len(), 9000);
        peak = peak.max(settled().await);
    }
    assert!((10..=20).contains(&peak), "{peak} descriptors for 10 files");
    assert!(store.open_files() <= 10);
    // The same file again and again is opened once.
    let before = store.open_files();
    for _ in 0..50 {
        store.get_ranges(&Path::from("299"), &[0..1]).await.unwrap();
    }
    assert_eq!(store.open_files(), before);
    // Eight at a time: at most that many more.
    let mut reads = futures::stream::iter((0..300).map(|number| {
        let store = store.clone();
        async move { store.get_ranges(&Path::from(number.to_string()), &[5..8000]).await.map(drop) }
    }))
    .buffer_unordered(8);
    let mut peak = 0;
    while let Some(result) = reads.next().await {
        result.unwrap();
        peak = peak.max(descriptors(root.path()));
    }
    assert!(peak <= 2 * (10 + 8) + 8, "{peak} descriptors");
    // What is deleted does not stay open, whether it was read before or is read meanwhile.
    for number in 0..300 {
        store.delete(&Path::from(number.to_string())).await.unwrap();
    }
    let begun = Instant::now();
    while (store.open_files(), settled().await) != (0, 0) {
        assert!(begun.elapsed() < LONG, "{} descriptors stay", descriptors(root.path()));
    }
    drop(reads);
    // What another program deletes stays open until then.
    write(root.path(), "a", 10);
    store.get_ranges(&Path::from("a"), &[0..1]).await.unwrap();
    fs::remove_file(root.path().join("a")).unwrap();
    assert_ne!(settled().await, 0);
    store.close_files().await.unwrap();
    let begun = Instant::now();
    while settled().await != 0 {
        assert!(begun.elapsed() < LONG, "{} descriptors stay", descriptors(root.path()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_many_tasks_on_many_objects_beside_puts() {
    let root = dir();
    let settings = settings(root.path()).put_durability(Durability::None).open_files_max(3);
    let store = settings.open().await.unwrap();
    let content = |version: u64| bytes_of(version * 8192..(version + 1) * 8192);
    for object in 0..8 {
        store.put(&Path::from(object.to_string()), content(object).into()).await.unwrap();
    }
    let tasks: Vec<_> = (0..16_u64)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut numbers = Numbers(task + 1);
                for _ in 0..60 {
                    let object = numbers.below(8);
                    let location = Path::from(object.to_string());
                    if numbers.below(4) == 0 {
                        let version = object + 8 * numbers.below(20);
                        store.put(&location, content(version).into()).await.unwrap();
                    }
                    let parts = store.get_ranges(&location, &[0..8, 8000..8192, 0..8192]).await.unwrap();
                    let versions = (0..20).map(|version| content(object + 8 * version));
                    // All parts of one batch are of one version.
                    assert!(versions.into_iter().any(|whole| parts[2] == whole && parts[1] == whole[8000..]));
                }
            })
        })
        .collect();
    let seen: BTreeSet<bool> =
        futures::future::join_all(tasks).await.into_iter().map(|task| task.is_ok()).collect();
    assert_eq!(seen, BTreeSet::from([true]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_and_writes_are_of_the_stores_class() {
    let root = dir();
    let engine = engine();
    let query = engine.class("query", 100).unwrap();
    let settings = ForebayStore::builder(&engine, root.path()).read_mode(Mode::Direct);
    let store = settings.class(query).open().await.unwrap();
    let counts = async || {
        let stats = engine.stats().await.unwrap();
        let of = |name: &str| {
            let flows = stats.flows.iter().filter(|flow| flow.class == name);
            flows
                .map(|flow| (flow.reads, flow.writes))
                .fold((0, 0), |sum, flow| (sum.0 + flow.0, sum.1 + flow.1))
        };
        (of("query"), of("background"), of("default"))
    };
    let location = Path::from("a");
    store.put(&location, bytes_of(0..100_000).into()).await.unwrap();
    store.get_ranges(&location, &[0..5000, 60_000..60_001]).await.unwrap();
    store.get(&location).await.unwrap().bytes().await.unwrap();
    let (own, _, default) = counts().await;
    assert!(own.0 >= 2 && own.1 >= 1 && default == (0, 0), "{own:?} {default:?}");
    store.with_class(Class::BACKGROUND).get_ranges(&location, &[0..5000]).await.unwrap();
    let (_, background, default) = counts().await;
    assert!(background.0 >= 1 && default == (0, 0), "{background:?} {default:?}");
}

/// Thousands of concurrent calls: the first open their files where they are polled, all others queue as tasks of the engine. Calls
/// that are kept unpolled hold up no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_beyond_the_limit_of_open_files_take_turns() {
    let root = dir();
    for number in 0..900 {
        write(root.path(), &number.to_string(), 5000);
    }
    let engine = engine();
    let settings = ForebayStore::builder(&engine, root.path()).open_files_max(4);
    let store = settings.put_durability(Durability::None).open().await.unwrap();
    let read = |number: usize| {
        let store = store.clone();
        async move {
            let parts = store.get_ranges(&Path::from(number.to_string()), &[5..4000, 0..1]).await?;
            assert!(parts[0] == bytes_of(5..4000));
            Ok::<_, Error>(())
        }
    };
    // Some wait for the look-up of a name or the open of a file, some for a task.
    let mut kept = Vec::new();
    for number in 0..300 {
        let mut call = Box::pin(read(number));
        if futures::poll!(&mut call).is_pending() {
            kept.push(call);
        }
    }
    assert!(kept.len() > 200, "{} are kept", kept.len());
    let mut peak = 0;
    let mut calls: futures::stream::FuturesUnordered<_> = (300..900).map(read).collect();
    let mut done = 0;
    while let Some(result) = calls.next().await {
        result.unwrap();
        done += 1;
        if done % 25 == 0 {
            peak = peak.max(descriptors(root.path()));
        }
    }
    // Two for each: 4 that stay, 64 that were polled, 64 that queued; and some that the shards have not closed yet.
    assert!(peak <= 2 * (4 + 64 + 64) + 60, "{peak} descriptors");
    let puts =
        (0..600).map(|number| {
            let store = store.clone();
            async move {
                store.put(&Path::from(format!("put/{number}")), bytes_of(0..3000).into()).await.map(drop)
            }
        });
    let mut puts: futures::stream::FuturesUnordered<_> = puts.collect();
    let mut peak = 0;
    while let Some(result) = puts.next().await {
        result.unwrap();
        done += 1;
        if done % 25 == 0 {
            peak = peak.max(descriptors(root.path()));
        }
    }
    assert!(peak <= 2 * (4 + 64 + 64) + 60, "{peak} descriptors");
    for result in futures::future::join_all(kept).await {
        result.unwrap();
    }
    assert_eq!(fs::read_dir(root.path().join("put")).unwrap().count(), 600);
}

/// Gets beyond the limit of open files read their bytes in their turn and kept them until their streams were polled: ten thousand of 8 MiB
/// kept 80 GB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gets_whose_streams_are_not_polled_keep_few_bytes() {
    const OBJECTS: u64 = 20;
    const LEN: u64 = MIB / 2;
    let root = dir();
    for number in 0..OBJECTS {
        write(root.path(), &number.to_string(), LEN);
    }
    // A quarter of the I/O memory fits four objects; two files may be open in addition to the one that stays.
    let config = Config::new().shards(1).descriptors_max(16).arena_bytes_max(8 << 20);
    let engine = Engine::start(config).unwrap();
    let settings = ForebayStore::builder(&engine, root.path()).open_files_max(1);
    let store = settings.put_durability(Durability::None).open().await.unwrap();
    let get_all = async || {
        let mut gets = Vec::new();
        for number in 0..OBJECTS {
            gets.push(store.get(&Path::from(number.to_string())).await.unwrap());
        }
        gets
    };
    for got in get_all().await.into_iter().rev() {
        assert!(got.bytes().await.unwrap() == bytes_of(0..LEN));
    }
    // Results that are open or in memory continue with their initial object; the others never return another object's bytes.
    let gets = get_all().await;
    for number in 0..OBJECTS {
        store.put(&Path::from(number.to_string()), "other".into()).await.unwrap();
    }
    let mut kept = 0;
    for got in gets {
        match got.bytes().await {
            Ok(bytes) => {
                assert!(bytes == bytes_of(0..LEN));
                kept += 1;
            }
            Err(error) => assert!(error.to_string().contains("get it again"), "{error}"),
        }
    }
    assert!((1..=8).contains(&kept), "{kept} of {OBJECTS} objects are open or in memory");
}

/// A whole get of an object whose length is 0 gave no bytes: files of procfs have some all the same.
#[tokio::test]
async fn an_object_without_a_length_is_read_to_its_end() {
    let expected = fs::read("/proc/version").unwrap();
    for mode in [Mode::Adaptive, Mode::Buffered] {
        let store = settings(FsPath::new("/proc")).read_mode(mode).open().await.unwrap();
        let result = store.get(&Path::from("version")).await.unwrap();
        assert_eq!(result.meta.size, 0);
        assert_eq!(result.bytes().await.unwrap(), expected);
    }
    let root = dir();
    write(root.path(), "empty", 0);
    let store = settings(root.path()).open().await.unwrap();
    assert!(store.get(&Path::from("empty")).await.unwrap().bytes().await.unwrap().is_empty());
}

async fn range_of(store: &dyn ObjectStore, location: &Path, range: GetRange) -> Option<Bytes> {
    let options = GetOptions { range: Some(range), ..GetOptions::default() };
    store.get_opts(location, options).await.ok()?.bytes().await.ok()
}

/// Story: a suffix of a file of procfs was all of it, and each empty file on a disk cost a read to its end.
#[tokio::test]
async fn ranges_of_objects_of_size_0_are_those_of_local_file_system() {
    let root = dir();
    write(root.path(), "empty", 0);
    for (root, name) in [(root.path(), "empty"), (FsPath::new("/proc"), "version")] {
        let (store, local) = (store(root).await, LocalFileSystem::new_with_prefix(root).unwrap());
        let location = Path::from(name);
        for range in [GetRange::Suffix(5), GetRange::Offset(0), GetRange::Bounded(0..1)] {
            let ours = range_of(&store, &location, range.clone()).await;
            assert_eq!(ours, range_of(&local, &location, range.clone()).await, "{range} of {name}");
        }
        assert_eq!(range_of(&store, &location, GetRange::Suffix(5)).await, Some(Bytes::new()));
    }
}

/// The engine's counters say that an empty file on a block device is not read.
#[tokio::test]
async fn an_empty_object_on_a_disk_costs_no_read() {
    let root = dir();
    write(root.path(), "empty", 0);
    let engine = engine();
    let file = engine.open(root.path().join("empty"), Open::read()).await.unwrap();
    if file.device().kind() == DeviceKind::Anonymous {
        return;
    }
    let reads = async || engine.stats().await.unwrap().flows.iter().map(|flow| flow.reads).sum::<u64>();
    let before = reads().await;
    let store = ForebayStore::builder(&engine, root.path()).read_mode(Mode::Direct).open().await.unwrap();
    let got = store.get(&Path::from("empty")).await.unwrap().bytes().await.unwrap();
    assert_eq!((got.len(), reads().await), (0, before));
}

/// RFC 9110, 13.2.2, as in the trait: a tag has precedence over a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_of_a_get_are_those_of_the_trait() {
    let root = dir();
    let store = store(root.path()).await;
    let location = Path::from("a");
    let put = store.put(&location, "data".into()).await.unwrap();
    let tag = put.e_tag.unwrap();
    let at = store.head(&location).await.unwrap().last_modified;
    let (before, after) = (at - LONG, at + LONG);
    let others = format!("\"x\", {tag} ,\"y\"");
    let options = || [GetOptions::default(), GetOptions { head: true, ..GetOptions::default() }];
    let matched = |tag: &str| options().map(|options| options.with_if_match(Some(tag)));
    let unmatched = |tag: &str| options().map(|options| options.with_if_none_match(Some(tag)));
    let modified = |since| options().map(|options| options.with_if_modified_since(Some(since)));
    let unmodified = |since| options().map(|options| options.with_if_unmodified_since(Some(since)));
    let table = [
        (matched(&tag), "read"),
        (matched("*"), "read"),
        (matched(&others), "read"),
        (matched("\"x\""), "precondition"),
        (unmatched(&tag), "not modified"),
        (unmatched("*"), "not modified"),
        (unmatched(&others), "not modified"),
        (unmatched("\"x\""), "read"),
        (modified(before), "read"),
        (modified(at), "not modified"),
        (modified(after), "not modified"),
        (unmodified(before), "precondition"),
        (unmodified(at), "read"),
        (unmodified(after), "read"),
        (matched(&tag).map(|options| options.with_if_unmodified_since(Some(before))), "read"),
        (unmatched("\"x\"").map(|options| options.with_if_modified_since(Some(after))), "read"),
        (matched("\"x\"").map(|options| options.with_if_none_match(Some(tag.as_str()))), "precondition"),
    ];
    for (row, (options, expected)) in table.into_iter().enumerate() {
        for options in options {
            let got = match store.get_opts(&location, options).await {
                Ok(_) => "read",
                Err(Error::Precondition { .. }) => "precondition",
                Err(Error::NotModified { .. }) => "not modified",
                Err(error) => panic!("row {row}: {error}"),
            };
            assert_eq!(got, expected, "row {row}");
        }
    }
}

/// A range that ends beyond the object is cut, a range that starts there fails; in a batch every range has to exist.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_beyond_the_end() {
    let root = dir();
    let store = store(root.path()).await;
    let local = LocalFileSystem::new_with_prefix(root.path()).unwrap();
    write(root.path(), "a", 5000);
    let location = Path::from("a");
    for range in [4000..6000, 4999..7000, 5000..5001, 5000..5000, 0..5000, 6000..7000] {
        let bounded = || GetRange::Bounded(range.clone());
        let (one, two) =
            (range_of(&store, &location, bounded()).await, range_of(&local, &location, bounded()).await);
        assert_eq!(one, two, "{range:?}");
        let ranges = [0..10, range.clone()];
        let (one, two) =
            (store.get_ranges(&location, &ranges).await, local.get_ranges(&location, &ranges).await);
        assert_eq!(one.ok(), two.ok(), "{range:?}");
    }
    for range in [GetRange::Offset(4999), GetRange::Offset(5000), GetRange::Suffix(0), GetRange::Suffix(9000)]
    {
        let (one, two) = (
            range_of(&store, &location, range.clone()).await,
            range_of(&local, &location, range.clone()).await,
        );
        assert_eq!(one, two, "{range}");
    }
}

/// Returns a directory on tmpfs, whose files may have any time and any length; `None` where the system has none.
fn memory_dir() -> Option<tempfile::TempDir> {
    tempfile::Builder::new().prefix("forebay-object-store-").tempdir_in("/dev/shm").ok()
}

/// An archive with a damaged time was unpacked: heads, gets and the whole list of the store panicked, and so did those of objects that were
/// put later, whose times follow that of the object they replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_may_have_a_time_beyond_every_calendar() {
    let Some(root) = memory_dir() else { return };
    let store = store(root.path()).await;
    let (location, path) = (Path::from("a"), root.path().join("a"));
    let far = Duration::from_secs(9_000_000_000_000);
    for time in [SystemTime::UNIX_EPOCH - far, SystemTime::UNIX_EPOCH + far] {
        fs::write(&path, "old").unwrap();
        let file = fs::File::open(&path).unwrap();
        file.set_modified(time).unwrap();
        if file.metadata().unwrap().modified().unwrap() != time {
            return;
        }
        let found = store.head(&location).await.unwrap();
        let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
        assert_eq!(listed, std::slice::from_ref(&found));
        assert_eq!(found.last_modified.timestamp() < 0, time < SystemTime::UNIX_EPOCH);
        let version = UpdateVersion { e_tag: found.e_tag.clone(), version: None };
        store.put_opts(&location, "new".into(), PutMode::Update(version).into()).await.unwrap();
        let got = store.get(&location).await.unwrap();
        assert_ne!(got.meta.e_tag, found.e_tag);
        assert_eq!(got.bytes().await.unwrap(), "new");
    }
}

/// A server of files passed on a range of a sparse file that is longer than its memory, and was aborted by the failed allocation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_longer_than_memory_is_an_error() {
    // Longer than any address space.
    const LEN: u64 = 1 << 60;
    let Some(root) = memory_dir() else { return };
    let file = fs::File::create(root.path().join("a")).unwrap();
    if file.set_len(LEN).is_err() {
        return;
    }
    let store = store(root.path()).await;
    let location = Path::from("a");
    let error = store.get_ranges(&location, &[0..10, 0..LEN]).await.unwrap_err().to_string();
    assert!(error.contains(&LEN.to_string()) && error.contains("as a stream"), "{error}");
    assert_eq!(store.get_ranges(&location, &[LEN - 10..LEN]).await.unwrap(), [vec![0_u8; 10]]);
    let first = store.get(&location).await.unwrap().into_stream().try_next().await.unwrap();
    assert!(first.unwrap().iter().all(|byte| *byte == 0));
}
