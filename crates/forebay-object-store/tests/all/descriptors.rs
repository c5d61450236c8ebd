//! Shows: a process that may have few files open reads and writes any number of objects. How: in child processes with 64, 128 and 256
//! descriptors.
//!
//! Regression: the store kept 256 files of two descriptors each for later reads, whatever the limit of the process. With 256
//! descriptors it read 58 of 400 objects, and no more from then on.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::FileExt;

use forebay::Durability;
use forebay_object_store::ForebayStore;
use forebay_test::children::{all_descriptors, with_descriptors};
use futures::TryStreamExt;
use futures::stream::FuturesUnordered;
use object_store::path::Path;
use object_store::{Attribute, Attributes, ObjectStore, ObjectStoreExt};

use crate::common::{bytes_of, dir, engine};

const OBJECTS: u64 = 400;
const LEN: u64 = 9000;

fn location(number: u64) -> Path {
    Path::from(format!("dir/{number}"))
}

async fn read(store: &ForebayStore, number: u64) -> object_store::Result<()> {
    let parts = store.get_ranges(&location(number), &[0..100, number..LEN]).await?;
    assert!(parts[1] == bytes_of(number..LEN), "object {number}");
    Ok(())
}

async fn get(store: &ForebayStore, number: u64) -> object_store::Result<()> {
    let bytes = store.get(&location(number)).await?.bytes().await?;
    assert!(bytes == bytes_of(0..LEN), "object {number}");
    Ok(())
}

fn in_runtime(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(work);
}

#[test]
fn four_hundred_objects_with_few_descriptors() {
    with_descriptors("descriptors::four_hundred_objects_with_few_descriptors", &[64, 128, 256], |limit| {
        in_runtime(async {
            let root = dir();
            fs::create_dir(root.path().join("dir")).unwrap();
            for number in 0..OBJECTS {
                fs::write(root.path().join(location(number).as_ref()), bytes_of(0..LEN)).unwrap();
            }
            let engine = engine();
            let settings = ForebayStore::builder(&engine, root.path()).put_durability(Durability::None);
            let store = settings.open().await.unwrap();
            for _ in 0..2 {
                for number in 0..OBJECTS {
                    read(&store, number).await.unwrap();
                    get(&store, number).await.unwrap();
                }
                assert_eq!(
                    store.open_files() as u64,
                    (limit - 32) / 4,
                    "half of most descriptors, two a file"
                );
                // All of them concurrently: they queue.
                let reads: FuturesUnordered<_> = (0..OBJECTS).map(|number| read(&store, number)).collect();
                reads.try_collect::<()>().await.unwrap();
                let gets: FuturesUnordered<_> = (0..OBJECTS).map(|number| get(&store, number)).collect();
                gets.try_collect::<()>().await.unwrap();
            }
            let puts: FuturesUnordered<_> = (0..OBJECTS)
                .map(|number| {
                    let (store, location) = (&store, Path::from(format!("put/{number}")));
                    async move { store.put(&location, bytes_of(0..LEN).into()).await.map(drop) }
                })
                .collect();
            puts.try_collect::<()>().await.unwrap();
            assert_eq!(fs::read_dir(root.path().join("put")).unwrap().count() as u64, OBJECTS);
        });
    });
}

/// Each upload kept its file open until its end: with 256 descriptors a hundred of them failed.
#[test]
fn more_uploads_than_files_may_be_open() {
    with_descriptors("descriptors::more_uploads_than_files_may_be_open", &[64, 256], |_| {
        in_runtime(async {
            const UPLOADS: u64 = 150;
            const ABORTED: u64 = 10;
            let root = dir();
            let engine = engine();
            let store = ForebayStore::builder(&engine, root.path()).open().await.unwrap();
            let mut uploads = Vec::new();
            for number in 0..UPLOADS {
                uploads.push(store.put_multipart(&location(number)).await.unwrap());
            }
            let parts: FuturesUnordered<_> = uploads
                .iter_mut()
                .flat_map(|upload| [0..5000, 5000..LEN].map(|part| upload.put_part(bytes_of(part).into())))
                .collect();
            parts.try_collect::<()>().await.unwrap();
            for upload in &mut uploads[(UPLOADS - ABORTED) as usize..] {
                upload.abort().await.unwrap();
            }
            uploads.truncate((UPLOADS - ABORTED) as usize);
            let completed: FuturesUnordered<_> = uploads.iter_mut().map(|upload| upload.complete()).collect();
            completed.try_collect::<Vec<_>>().await.unwrap();
            for number in 0..UPLOADS - ABORTED {
                get(&store, number).await.unwrap();
            }
            let left = fs::read_dir(root.path().join("dir")).unwrap().count() as u64;
            assert_eq!(left, UPLOADS - ABORTED, "no staged file");
        });
    });
}

/// A get kept its file until its stream had ended, and did not queue: of ten thousand concurrent gets most failed.
#[test]
fn ten_thousand_gets_at_once() {
    with_descriptors("descriptors::ten_thousand_gets_at_once", &[256], |_| {
        in_runtime(async {
            let root = dir();
            fs::create_dir(root.path().join("dir")).unwrap();
            for number in 0..OBJECTS {
                fs::write(root.path().join(location(number).as_ref()), bytes_of(0..LEN)).unwrap();
            }
            let engine = engine();
            let store = ForebayStore::builder(&engine, root.path()).open().await.unwrap();
            // Some are never read, and hold up no others.
            let mut kept = Vec::new();
            for number in 0..30 {
                kept.push(store.get(&location(number)).await.unwrap());
            }
            let gets: FuturesUnordered<_> = (0..10_000).map(|number| get(&store, number % OBJECTS)).collect();
            gets.try_collect::<()>().await.unwrap();
            // Each continues with its file.
            fs::remove_dir_all(root.path().join("dir")).unwrap();
            for got in kept {
                assert!(got.bytes().await.unwrap() == bytes_of(0..LEN));
            }
        });
    });
}

/// Gets of more than one chunk kept their files until their streams had ended: beyond about a hundred objects all of them failed.
#[test]
fn more_streams_than_files_may_be_open() {
    with_descriptors("descriptors::more_streams_than_files_may_be_open", &[256], |_| {
        in_runtime(async {
            const COUNT: u64 = 160;
            // The length of a chunk, and one byte.
            const LONG: u64 = (8 << 20) + 1;
            let root = dir();
            for number in 0..COUNT {
                let file = fs::File::create(root.path().join(number.to_string())).unwrap();
                file.write_all_at(&[number as u8], LONG - 1).unwrap();
            }
            let engine = engine();
            let store = ForebayStore::builder(&engine, root.path()).open().await.unwrap();
            let mut streams = Vec::new();
            for number in 0..COUNT {
                streams.push(store.get(&Path::from(number.to_string())).await.unwrap().into_stream());
            }
            for (number, stream) in (0..COUNT).zip(&mut streams) {
                let (mut len, mut last) = (0, None);
                while let Some(chunk) = stream.try_next().await.unwrap() {
                    len += chunk.len() as u64;
                    last = chunk.last().copied();
                }
                assert_eq!((len, last), (LONG, Some(number as u8)), "object {number}");
            }
        });
    });
}

/// Heads of objects with attributes, and gets of empty marker files on a file system without a block device, gave their files back when the
/// program polled them. Some callers did not: after fifty of those calls every other one failed for want of descriptors.
#[test]
fn calls_that_read_no_bytes_keep_no_file() {
    with_descriptors("descriptors::calls_that_read_no_bytes_keep_no_file", &[128], |_| {
        in_runtime(async {
            const CALLS: u64 = 200;
            let engine = engine();
            let memory = tempfile::Builder::new().prefix("forebay-object-store-").tempdir_in("/dev/shm").ok();
            for root in [Some(dir()), memory].into_iter().flatten() {
                fs::create_dir(root.path().join("dir")).unwrap();
                for number in 0..CALLS {
                    fs::write(root.path().join(location(number).as_ref()), "").unwrap();
                }
                let store = ForebayStore::builder(&engine, root.path()).open().await.unwrap();
                let mut kept = Vec::new();
                for number in 0..CALLS {
                    kept.push(store.get(&location(number)).await.unwrap());
                }
                for got in kept {
                    assert!(got.bytes().await.unwrap().is_empty());
                }
            }

            let root = dir();
            let settings = ForebayStore::builder(&engine, root.path()).put_durability(Durability::None);
            let store = settings.open().await.unwrap();
            let locations: Vec<Path> = (0..CALLS).map(location).collect();
            let attributes = Attributes::from_iter([(Attribute::ContentType, "text/plain".to_string())]);
            for location in &locations {
                let put = store.put_opts(location, bytes_of(0..LEN).into(), attributes.clone().into()).await;
                if put.is_err() {
                    // The file system has no extended attributes.
                    return;
                }
            }
            let mut heads: Vec<_> = locations.iter().map(|location| Box::pin(store.head(location))).collect();
            for head in &mut heads {
                assert!(futures::poll!(head).is_pending());
            }
            for number in 0..CALLS {
                read(&store, number).await.unwrap();
            }
            for head in heads {
                assert_eq!(head.await.unwrap().size, LEN);
            }
        });
    });
}

/// The program's own files have priority over those that are kept for later reads.
#[test]
fn a_process_that_has_no_descriptor_left_reads_again_when_it_has_one() {
    let name = "descriptors::a_process_that_has_no_descriptor_left_reads_again_when_it_has_one";
    with_descriptors(name, &[128], |_| {
        in_runtime(async {
            let root = dir();
            fs::create_dir(root.path().join("dir")).unwrap();
            for number in 0..100 {
                fs::write(root.path().join(location(number).as_ref()), bytes_of(0..LEN)).unwrap();
            }
            let store = ForebayStore::builder(&engine(), root.path()).open().await.unwrap();
            for number in 0..50 {
                read(&store, number).await.unwrap();
            }
            let open = store.open_files();
            let own = all_descriptors();
            // The idle files give up their descriptors for those that are read.
            for number in 50..100 {
                read(&store, number).await.unwrap();
            }
            assert!((1..=open).contains(&store.open_files()));
            // Shards close files a moment later, so descriptors may return a few times.
            let mut own = vec![own];
            let error = loop {
                store.close_files().await.unwrap();
                own.push(all_descriptors());
                assert!(own.len() < 1000, "descriptors come from nowhere");
                if let Err(error) = read(&store, 0).await {
                    break error.to_string();
                }
            };
            assert!(error.contains("ulimit -n") && error.contains("RLIMIT_NOFILE"), "{error}");
            drop(own);
            for number in 0..100 {
                read(&store, number).await.unwrap();
            }
        });
    });
}
