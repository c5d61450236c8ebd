//! Shows: an object is put whole or not at all, whatever becomes of the future; parts come in any order; nothing staged is left behind. How:
//! futures that are dropped after each of their polls, and a look at the directory once the engine has settled.

use std::fs;
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::Path as FsPath;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use crate::common::{bytes_of, dir, engine, settings, store, tree};
use bytes::Bytes;
use forebay::{Class, Durability, Engine};
use forebay_object_store::ForebayStore;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions,
    PutOptions, PutPayload, UpdateVersion,
};

/// Waits until all that was begun on the engine's shards and in its pool is over.
async fn settled(engine: &Engine, root: &FsPath) -> usize {
    // Tasks that were left are on shard 0; each takes a few calls, and the end of one may begin another.
    let (mut quiet, begun) = (0, Instant::now());
    while quiet < 3 && begun.elapsed() < Duration::from_secs(60) {
        engine.spawn_on_shard(0, Class::DEFAULT, || async {}).await.unwrap();
        engine.metadata(root).await.unwrap();
        let stats = engine.stats().await.unwrap();
        let tasks = stats.shards.iter().map(|shard| shard.tasks).sum::<usize>();
        quiet = if tasks == 0 { quiet + 1 } else { 0 };
    }
    tree(root).into_keys().filter(|name| name.contains('#')).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_of_any_shape_are_put() {
    let root = dir();
    for durability in [Durability::Data, Durability::None] {
        let store = settings(root.path()).put_durability(durability).open().await.unwrap();
        for (number, sizes) in [
            vec![],
            vec![0],
            vec![1],
            vec![5000],
            vec![100, 0, 3],
            vec![1; 3000],
            vec![70_000, 5, 70_000, 5, 5],
            vec![9 << 20, 1],
            vec![20 << 20],
        ]
        .into_iter()
        .enumerate()
        {
            let location = Path::from(format!("d/{number}"));
            let mut at = 0;
            let chunks: Vec<Bytes> = sizes
                .iter()
                .map(|size| {
                    at += size;
                    Bytes::from(bytes_of(at - size..at))
                })
                .collect();
            let put = store.put(&location, PutPayload::from_iter(chunks.clone())).await.unwrap();
            assert!(
                fs::read(root.path().join(format!("d/{number}"))).unwrap() == bytes_of(0..at),
                "{number}"
            );
            assert_eq!(store.head(&location).await.unwrap().e_tag, put.e_tag);
            // The same in parts, all begun before the first is awaited, in another order.
            let location = Path::from(format!("e/{number}"));
            let mut upload = store.put_multipart(&location).await.unwrap();
            let mut parts: Vec<_> = chunks.into_iter().map(|chunk| upload.put_part(chunk.into())).collect();
            parts.reverse();
            futures::future::try_join_all(parts).await.unwrap();
            let put = upload.complete().await.unwrap();
            assert!(
                fs::read(root.path().join(format!("e/{number}"))).unwrap() == bytes_of(0..at),
                "{number}"
            );
            assert_eq!(store.head(&location).await.unwrap().e_tag, put.e_tag);
        }
    }
    assert!(tree(root.path()).into_keys().all(|name| !name.contains('#')));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn modes_and_attributes_are_those_of_local_file_system() {
    let root = dir();
    let store = store(root.path()).await;
    let location = Path::from("a");
    let create = || PutOptions::from(PutMode::Create);
    store.put_opts(&location, "one".into(), create()).await.unwrap();
    let error = store.put_opts(&location, "two".into(), create()).await.unwrap_err();
    assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
    assert_eq!(store.get(&location).await.unwrap().bytes().await.unwrap(), "one");
    let version = UpdateVersion { e_tag: None, version: None };
    let update = PutOptions::from(PutMode::Update(version));
    let error = store.put_opts(&location, "two".into(), update).await.unwrap_err();
    assert!(matches!(error, Error::NotImplemented { .. }), "{error}");
    let attributes = Attributes::from_iter([(Attribute::ContentType, "text/plain")]);
    let error = store.put_opts(&location, "two".into(), attributes.clone().into()).await.unwrap_err();
    assert!(matches!(error, Error::NotImplemented { .. }), "{error}");
    let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
    let error = store.put_multipart_opts(&location, options).await.unwrap_err();
    assert!(matches!(error, Error::NotImplemented { .. }), "{error}");
    assert_eq!(tree(root.path()).len(), 1);
    // Two at once: one is first.
    let location = Path::from("b");
    let both = [(), ()].map(|()| store.put_opts(&location, "b".into(), create()));
    let results = futures::future::join_all(both).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
    assert_eq!(tree(root.path()).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_in_parts_ends_once_and_leaves_nothing_else() {
    let root = dir();
    let engine = engine();
    let store = ForebayStore::builder(&engine, root.path()).open().await.unwrap();
    let location = Path::from("d/a");
    store.put(&location, "old".into()).await.unwrap();
    let begin = async || -> Box<dyn MultipartUpload> { store.put_multipart(&location).await.unwrap() };

    // Aborted: later parts and a second end are refused.
    let mut upload = begin().await;
    upload.put_part("12".into()).await.unwrap();
    let late = upload.put_part("34".into());
    upload.abort().await.unwrap();
    let error = late.await.unwrap_err();
    assert!(error.to_string().contains("completed or aborted before"), "{error}");
    assert!(upload.abort().await.is_err() && upload.complete().await.is_err());
    drop(upload);
    assert_eq!(settled(&engine, root.path()).await, 0);

    // A part that was not awaited: it does not become a hole.
    let mut upload = begin().await;
    let first = upload.put_part("12".into());
    upload.put_part("34".into()).await.unwrap();
    let error = upload.complete().await.unwrap_err();
    assert!(error.to_string().contains("2 bytes of the parts"), "{error}");
    first.await.unwrap();
    upload.complete().await.unwrap();
    assert!(upload.complete().await.is_err());
    assert!(upload.put_part("56".into()).await.is_err());
    assert_eq!(store.get(&location).await.unwrap().bytes().await.unwrap(), "1234");

    // Dropped, with a part in flight, at any point.
    for polls in 0..6 {
        let mut upload = begin().await;
        let mut part = upload.put_part(Bytes::from(vec![7; 3 << 20]).into());
        for _ in 0..polls {
            if futures::poll!(&mut part).is_ready() {
                break;
            }
        }
        if polls % 2 == 0 {
            drop(part);
            drop(upload);
        } else {
            drop(upload);
            drop(part);
        }
    }
    assert_eq!(settled(&engine, root.path()).await, 0);
    assert_eq!(store.get(&location).await.unwrap().bytes().await.unwrap(), "1234");
}

/// Polls a future that many times, and drops it. Returns whether it completed.
async fn polled<F: Future>(future: F, polls: usize) -> bool {
    let mut future = Box::pin(future);
    for _ in 0..polls {
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return true;
        }
        // Lets the pool complete what it was given.
        tokio::task::yield_now().await;
    }
    false
}

/// Polls each change once, twice, ... and drops it then. Each happens as a whole, and nothing staged is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_was_begun_and_dropped_runs_to_its_end() {
    for durability in [Durability::Data, Durability::None] {
        let root = dir();
        let engine = engine();
        let settings = ForebayStore::builder(&engine, root.path()).put_durability(durability);
        let store = settings.automatic_cleanup(true).open().await.unwrap();
        let content = bytes_of(0..100_000);
        for polls in 0..8 {
            let at = |name: &str| Path::from(format!("{polls}/{name}"));
            let exists = async |name: &str| store.head(&at(name)).await.is_ok();
            store.put(&at("from"), content.clone().into()).await.unwrap();
            // One after the other, so that each is there or not before the next begins.
            polled(store.put(&at("put"), content.clone().into()), polls).await;
            let create = PutOptions::from(PutMode::Create);
            polled(store.put_opts(&at("new/put"), content.clone().into(), create), polls).await;
            polled(store.copy(&at("from"), &at("copy")), polls).await;
            polled(store.copy_if_not_exists(&at("from"), &at("c/copy")), polls).await;
            assert_eq!(settled(&engine, root.path()).await, 0, "{polls} polls");
            polled(store.rename(&at("from"), &at("r/moved")), polls).await;
            assert_eq!(settled(&engine, root.path()).await, 0, "{polls} polls");
            polled(store.put_multipart(&at("m/parts")), polls).await;
            assert_eq!(settled(&engine, root.path()).await, 0, "{polls} polls");
            // Not polled, not begun. Once polled, it happens.
            for name in ["put", "new/put", "copy", "c/copy", "r/moved"] {
                assert_eq!(exists(name).await, polls > 0, "{name} after {polls} polls");
                if polls > 0 {
                    assert_eq!(fs::read(root.path().join(at(name).as_ref())).unwrap(), content, "{name}");
                }
            }
            assert_eq!(exists("from").await, polls == 0);
            let all: Vec<_> = store.list(Some(&Path::from(polls.to_string()))).try_collect().await.unwrap();
            for meta in all {
                polled(store.delete(&meta.location), polls.max(1)).await;
            }
            assert_eq!(settled(&engine, root.path()).await, 0);
        }
        // All of it is gone, with the directories.
        let left: Vec<_> = tree(root.path()).into_keys().filter(|name| !name.ends_with("/m")).collect();
        let only_made_for_parts = left.iter().all(|name| name.len() == 1);
        assert!(only_made_for_parts, "{left:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puts_beside_deletions_that_clean_up() {
    let root = dir();
    let engine = engine();
    let settings = ForebayStore::builder(&engine, root.path()).put_durability(Durability::None);
    let store = settings.automatic_cleanup(true).open().await.unwrap();
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..100 {
                    let location = Path::from(format!("a/b/{}/{task}", task % 2));
                    store.put(&location, "x".into()).await.unwrap();
                    store.delete(&location).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(tree(root.path()).is_empty(), "{:?}", tree(root.path()));
}

/// A put failed with EEXIST for its directory: another task had made that directory and removed it again, between the mkdir(2) that
/// found it there and the stat(2) that looked whether it was a directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_comes_and_goes_fails_no_put() {
    let root = dir();
    let engine = engine();
    let settings = ForebayStore::builder(&engine, root.path()).put_durability(Durability::None);
    let store = settings.automatic_cleanup(true).open().await.unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|threads| {
        // As another program would. Their calls fail where the put's directory is in use, or was just made.
        threads.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                let _ = std::fs::create_dir(root.path().join("a"));
                let _ = std::fs::remove_dir(root.path().join("a"));
                std::thread::yield_now();
            }
        });
        let puts = async {
            for _ in 0..20 {
                store.put(&Path::from("a/x"), "x".into()).await?;
                store.delete(&Path::from("a/x")).await?;
            }
            Ok::<(), Error>(())
        };
        let done = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(puts));
        ended.store(true, Ordering::Relaxed);
        done.unwrap();
    });
}

/// A file where a directory is needed fails the put with an error that names it. The put is not repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_in_place_of_a_directory_fails_a_put() {
    let root = dir();
    let engine = engine();
    let store = ForebayStore::builder(&engine, root.path()).open().await.unwrap();
    store.put(&Path::from("a"), "x".into()).await.unwrap();
    for below in ["a/b", "a/b/c"] {
        let error = store.put(&Path::from(below), "x".into()).await.unwrap_err().to_string();
        assert!(error.contains(&*root.path().join("a").to_string_lossy()), "{error}");
    }
    assert_eq!(tree(root.path()).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_that_fails_leaves_nothing_behind() {
    let root = dir();
    let engine = engine();
    let store = ForebayStore::builder(&engine, root.path()).open().await.unwrap();
    store.put(&Path::from("a"), "old".into()).await.unwrap();
    // A name that is too long for a staged one, but not by itself.
    let long = Path::from("x".repeat(255));
    assert!(store.put(&long, "x".into()).await.is_err());
    assert!(store.put(&Path::from("a/b"), "x".into()).await.is_err(), "below a file");
    fs::create_dir(root.path().join("d")).unwrap();
    assert!(store.put(&Path::from("d"), "x".into()).await.is_err(), "over a directory");
    let mut upload = store.put_multipart(&Path::from("d")).await.unwrap();
    upload.put_part("x".into()).await.unwrap();
    assert!(upload.complete().await.is_err());
    drop(upload);
    assert_eq!(settled(&engine, root.path()).await, 0);
    assert_eq!(tree(root.path()).len(), 2);
}

/// A directory that may be changed and not opened cannot be synced: the failure is reported, though the object has moved. As root every
/// directory can be opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sync_that_fails_is_reported() {
    let root = dir();
    let store = store(root.path()).await;
    let (from, to) = (Path::from("from/object"), Path::from("to/object"));
    store.put(&from, "data".into()).await.unwrap();
    let above = root.path().join("from");
    fs::set_permissions(&above, fs::Permissions::from_mode(0o300)).unwrap();
    let may_open = fs::File::open(&above).is_ok();
    let renamed = store.rename_if_not_exists(&from, &to).await;
    fs::set_permissions(&above, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(renamed.is_ok(), may_open, "{renamed:?}");
    assert_eq!(store.get(&to).await.unwrap().bytes().await.unwrap(), "data");
    assert!(matches!(store.head(&from).await, Err(Error::NotFound { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_engines_end_every_call_fails() {
    let root = dir();
    let engine = engine();
    let store = ForebayStore::builder(&engine, root.path()).open().await.unwrap();
    let location = Path::from("a");
    store.put(&location, bytes_of(0..5 << 20).into()).await.unwrap();
    store.get_ranges(&location, &[0..1, 5..6]).await.unwrap();
    let mut upload = store.put_multipart(&location).await.unwrap();
    let mut stream = store.get(&location).await.unwrap().into_stream();
    stream.try_next().await.unwrap().unwrap();
    engine.close().await.unwrap();

    let results = [
        ("get", store.get(&location).await.map(drop)),
        ("get_ranges", store.get_ranges(&location, &[0..1, 5..6]).await.map(drop)),
        ("head", store.head(&location).await.map(drop)),
        ("put", store.put(&location, "b".into()).await.map(drop)),
        ("put_multipart", store.put_multipart(&location).await.map(drop)),
        ("put_part", upload.put_part("b".into()).await),
        ("complete", upload.complete().await.map(drop)),
        ("copy", store.copy(&location, &Path::from("b")).await),
        ("rename", store.rename(&location, &Path::from("b")).await),
        ("delete", store.delete(&location).await),
        ("list", store.list(None).try_collect::<Vec<_>>().await.map(drop)),
        ("list_with_delimiter", store.list_with_delimiter(None).await.map(drop)),
    ];
    for (call, result) in results {
        let error = result.expect_err(call);
        assert!(matches!(error, Error::Generic { .. }), "{call}: {error}");
    }
    while let Ok(Some(_)) = stream.try_next().await {}
    drop((upload, stream));
    assert_eq!(fs::read(root.path().join("a")).unwrap().len(), 5 << 20, "the object is as it was");
}
