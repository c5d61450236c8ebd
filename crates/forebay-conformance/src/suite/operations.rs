//! One operation of each kind, for cases about the fate of their futures.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay::{Advice, Class, Durability, Engine, Error, File, FileCache, FilePlace, Lock, Open, shard};

use super::check::{Outcome, holds, same, same_bytes};
use super::hike::Hike;
use super::tools::{SendFuture, bytes_of, fresh_on, modes, put};
use crate::Env;

/// Bytes of each file.
pub(super) const LEN: u64 = (100 << 10) + 13;

/// The name of an operation, and its future with the result checked.
pub(super) type Operation = (&'static str, SendFuture<Outcome>);

/// The files that the operations of a case work on; each operation leaves its file unchanged.
pub(super) struct Scene {
    pub(super) files: Vec<File>,
    /// Scratch space of the same modes.
    others: Vec<File>,
}

pub(super) async fn scene(env: &Env, engine: &Engine) -> Outcome<Scene> {
    let (mut files, mut others) = (Vec::new(), Vec::new());
    // A file for each mode: when a direct write and a write of the same place through the page cache run concurrently, the kernel
    // fails the next sync with EIO.
    for (number, open) in modes(env, Open::create()).into_iter().enumerate() {
        let path = put(env, &number.to_string(), LEN).await?;
        files.push(env.open_on(engine, &path, open).await?);
        let other = env.path(&format!("other-{number}"));
        others.push(fresh_on(env, engine, other, open, 64 << 10).await?);
    }
    Ok(Scene { files, others })
}

/// Returns one operation of each kind on each file, with its result checked.
pub(super) fn operations(env: &Env, engine: &Engine, scene: &Scene) -> Vec<Operation> {
    if let Some(others) = env.operations {
        let outcome = |(name, future)| -> Operation { (name, Box::pin(async { Ok(future.await?) })) };
        return others(engine, env.dir()).into_iter().map(outcome).collect();
    }
    let mut list: Vec<Operation> = Vec::new();
    macro_rules! operation {
        ($name:literal, $($held:ident),+ => $body:block) => {{
            $(let $held = $held.clone();)+
            list.push(($name, Box::pin(async move { $body Ok(()) })));
        }};
    }
    for (number, (file, other)) in scene.files.iter().zip(&scene.others).enumerate() {
        operation!("read", file => {
            same_bytes("read", &file.read(4097..70_000).await?, &bytes_of(4097..70_000))?;
        });
        operation!("read_up_to", file => {
            same("bytes", file.read_up_to(LEN - 10..LEN + 10).await?.len(), 10)?;
        });
        operation!("read_into", file, engine => {
            let (result, block) = file.read_into(8192, engine.block(8192)?).await;
            same("bytes", result?, 8192)?;
            same_bytes("read_into", &block, &bytes_of(8192..16_384))?;
        });
        // Writes the bytes that are there already.
        operation!("write", file => { file.write(0, bytes_of(0..8192)).await?; });
        operation!("durable write", file => {
            file.write(8192, bytes_of(8192..12_288)).durable(Durability::Data).await?;
        });
        operation!("write and all", file => {
            file.write(12_288, bytes_of(12_288..16_384)).durable(Durability::All).await?;
        });
        operation!("write of a block", file, engine => {
            let block = engine.block_from(&bytes_of(16_384..20_480))?.freeze();
            file.write(16_384, block).await?;
        });
        operation!("sync", file => { file.sync(Durability::All).await?; });
        operation!("read_many", file => {
            for block in file.read_many((0..40).map(|n| n * 2_400..n * 2_400 + 2000)).await? {
                same("bytes", block?.len(), 2000)?;
            }
        });
        operation!("stream", file => {
            let mut stream = file.read_many((0..40).map(|n| n * 2_400..n * 2_400 + 2000)).depth(2).stream();
            while let Some((_, block)) = stream.next().await {
                same("bytes", block?.len(), 2000)?;
            }
        });
        operation!("walk", file => {
            same("wrong blocks", file.walk(Hike::ROOT, Hike::new(5, 4)).hops_max(9).await?, 0)?;
        });
        operation!("walks", file => {
            for wrong in file.walk_many((1..9).map(|n| (Hike::ROOT, Hike::new(n, 2)))).depth(3).await? {
                same("wrong blocks", wrong?, 0)?;
            }
        });
        operation!("scan", file => {
            let mut scan = file.scan().request_bytes(8 << 10).depth(4).start();
            for n in 0..6u64 {
                let block = scan.next().await.transpose()?.unwrap_or_default();
                same_bytes("scan", &block, &bytes_of(n << 13..(n + 1) << 13))?;
            }
        });
        operation!("append", other => {
            let mut append = other.append().request_bytes(4096).depth(2).start();
            append.write(&bytes_of(0..20_001)).await?;
            append.sync(Durability::None).await?;
            same("position", append.close().await?, 20_001)?;
        });
        operation!("length and attributes", file => {
            same("length", (file.len().await?, file.metadata().await?.len()), (LEN, LEN))?;
        });
        operation!("lock", other => {
            let _ = (other.try_lock(Lock::Shared).await, other.unlock().await);
        });
        let (path, storage) = (env.path(&number.to_string()), env.storage());
        operation!("open and close", engine, path, storage => {
            let file = storage.open(&engine, path, Open::read()).await?;
            file.read(0..1).await?;
            file.close().await?;
        });
        if env.is_namespace() {
            continue;
        }
        operation!("file cache", engine, path => {
            let cache = FileCache::new(&engine, Open::read(), None);
            let entry = cache.file(&path);
            let file = entry.open(&FilePlace::NONE).await?;
            same_bytes("read", &file.read(5..5000).await?, &bytes_of(5..5000))?;
            drop(file);
            cache.close_idle().await?;
            let file = entry.open(&FilePlace::NONE).await?;
            same_bytes("read again", &file.read(5..5000).await?, &bytes_of(5..5000))?;
            drop(file);
            cache.close().await?;
            same("open files", cache.open_files(), 0)?;
        });
        operation!("advise", file => { file.advise(0..LEN, Advice::Normal).await?; });
        operation!("copy_range", file => {
            same("bytes", file.copy_range(LEN..LEN + 5, &file, 0).await?, 0)?;
        });
    }
    operation!("stats", engine => { engine.stats().await?; });
    operation!("nop", engine => { engine.nop().await?; });
    operation!("task", engine => {
        let task = engine.spawn_on_shard(0, Class::DEFAULT, || async {
            shard::yield_now().await;
            3
        });
        same("its answer", task.await?, 3)?;
    });
    operation!("timers", engine => {
        let task = engine.spawn_on_shard(1 % engine.shard_count(), Class::DEFAULT, || async {
            shard::timeout(Duration::from_secs(60), shard::sleep(Duration::from_micros(20))).await??;
            Ok::<_, Error>(())
        });
        task.await??;
    });
    if env.is_namespace() {
        return list;
    }
    let dir = env.dir().to_path_buf();
    operation!("temp_file", engine, dir => {
        let file = engine.temp_file(dir, Open::create()).await?;
        file.truncate(100).await?;
        file.close().await?;
    });
    operation!("changes of names", engine, dir => {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let own = dir.join(format!("own-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        engine.create_dir(&own).await?;
        engine.open(own.join("a"), Open::create()).await?.close().await?;
        engine.hard_link(own.join("a"), own.join("b")).await?;
        engine.rename(own.join("b"), own.join("c")).await?;
        engine.hard_link_unsynced(own.join("a"), own.join("b")).await?;
        engine.rename_unsynced(own.join("b"), own.join("d")).await?;
        engine.remove_file(own.join("d")).await?;
        engine.remove_file(own.join("a")).await?;
        engine.remove_file(own.join("c")).await?;
        engine.remove_dir(&own).await?;
    });
    operation!("directory handle", engine, dir => {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (first, second) = (format!("first-{number}"), format!("second-{number}"));
        let dir = engine.open_dir(dir).await?;
        dir.open(&first, Open::create()).await?.close().await?;
        dir.rename(&first, &second).await?;
        holds("the new name", dir.metadata(&second).await?.is_file())?;
        dir.remove_file(&second).await?;
        dir.sync().await?;
    });
    operation!("space", engine, dir => {
        let file = engine.temp_file(dir, Open::create()).await?;
        file.truncate(100_000).await?;
        // Not every file system can.
        let _ = (file.allocate(0..8192).await, file.punch_hole(0..4096).await);
        let _ = file.write_zeros(0..8192).await;
        file.close().await?;
    });
    operation!("names", engine, dir => {
        engine.create_dir_all(dir.join("below")).await?;
        engine.sync_dir(&dir).await?;
        holds("names", engine.read_dir(&dir).await?.len() >= 5)?;
        holds("a directory", engine.metadata(&dir).await?.is_dir())?;
        holds("itself", engine.symlink_metadata(&dir).await?.is_dir())?;
        same("many", engine.metadata_many([&dir, &dir]).await?.len(), 2)?;
    });
    list
}
