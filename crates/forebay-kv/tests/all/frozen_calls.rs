//! Shows: a future of the store that is no longer polled costs the memory that it holds, and every other call completes.
//!
//! How: each kind of call is kept unpolled at each of its awaits. The kept calls are one of each kind, or as many of one kind as
//! fill its share. Meanwhile one new call of each kind completes. Then the kept calls are polled again on another thread, or
//! dropped. This runs on a real engine, where a round must end within a minute, and in worlds whose seed decides which calls are
//! kept.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{self, key};
use forebay::{Config, Engine};
use forebay_kv::{Batch, Isolation, Keyspace, Options, SortedFile, SortedFileOptions, Store, verify};
use forebay_sim::{Profile, World};
use forebay_test::frozen::{self, NamedCall, Scene as _, begin, freeze, in_time, resume};

/// Keys that are in tables and never written again: three to a leaf, uncached at first.
const KEYS: u64 = 1_500;
/// A value of this many bytes lies outside of the leaves.
const LONG: usize = 40_000;

#[derive(Clone)]
struct Scene {
    engine: Engine,
    dir: PathBuf,
    store: Store,
    keyspace: Keyspace,
    /// Another store for loads, which hold much memory.
    loads: Store,
    next: Arc<AtomicU64>,
}

fn text(error: impl std::fmt::Debug) -> String {
    format!("{error:?}")
}

fn value(number: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(if number % 100 == 7 { LONG } else { 1000 }, number as u8);
    value
}

/// Checks the value returned for one of the first keys.
fn check(number: u64, came: Option<impl std::ops::Deref<Target = [u8]>>) -> Result<(), String> {
    match came {
        Some(came) if came[..] == value(number)[..] => Ok(()),
        Some(came) => Err(format!("key {number} has another value, of {} bytes", came.len())),
        None => Err(format!("key {number} is not there")),
    }
}

impl Scene {
    async fn new(engine: Engine, dir: PathBuf) -> Result<Scene, String> {
        let options = common::options().clock(|| 1);
        for name in ["idle", "store"] {
            let store = Store::open(&engine, dir.join(name), options.clone()).await.map_err(text)?;
            let count = if name == "idle" { 50 } else { KEYS };
            let entries = (0..count).map(|number| (key(number), value(number)));
            store.default_keyspace().bulk_load(entries).await.map_err(text)?;
            store.close().await.map_err(text)?;
        }
        let store = Store::open(&engine, dir.join("store"), options).await.map_err(text)?;
        let large = Options::new().memory_bytes_max(96 << 20).clock(|| 1);
        let loads = Store::open(&engine, dir.join("loads"), large).await.map_err(text)?;
        let keyspace = store.default_keyspace();
        Ok(Scene { engine, dir, store, keyspace, loads, next: Arc::default() })
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns one of the first keys, another one each time.
    fn some_key(&self) -> u64 {
        self.number() * 31 % KEYS
    }
}

impl frozen::Scene for Scene {
    fn calls(&self) -> Vec<NamedCall> {
        let mut calls: Vec<NamedCall> = Vec::new();
        macro_rules! call {
            ($name:literal, $scene:ident => $body:block) => {{
                let $scene = self.clone();
                calls.push(($name, Box::pin(async move { $body Ok(()) })));
            }};
        }
        call!("get", scene => {
            let number = scene.some_key();
            check(number, scene.keyspace.get(&key(number)).await.map_err(text)?)?;
        });
        call!("get of a long value", scene => {
            let number = scene.some_key() / 100 * 100 + 7;
            check(number, scene.keyspace.get(&key(number)).await.map_err(text)?)?;
        });
        call!("multi_get", scene => {
            let numbers: Vec<u64> = (0..40).map(|_| scene.some_key()).filter(|number| number % 100 != 7).collect();
            let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
            let came = scene.keyspace.multi_get(&keys).await.map_err(text)?;
            for (number, came) in numbers.into_iter().zip(came) {
                check(number, came)?;
            }
        });
        call!("put and delete", scene => {
            let own = key(1_000_000 + scene.number());
            scene.keyspace.put(&own, [5; 4000]).await.map_err(text)?;
            if scene.keyspace.get(&own).await.map_err(text)?.is_none() {
                return Err("what was put is not there".to_string());
            }
            scene.keyspace.delete(&own).await.map_err(text)?;
        });
        call!("batch", scene => {
            let mut batch = Batch::new();
            for _ in 0..5 {
                batch.put(&scene.keyspace, key(2_000_000 + scene.number()), [6; 3000]);
            }
            scene.store.write(&batch).await.map_err(text)?;
        });
        call!("compare_and_set", scene => {
            let own = key(3_000_000 + scene.number());
            scene.keyspace.compare_and_set(&own, None, Some(b"new")).await.map_err(text)?;
        });
        call!("transact", scene => {
            // All of them change one key.
            let add = scene.store.transact(Isolation::Serializable, async |mut transaction| {
                let count = transaction.get(&scene.keyspace, "count").await?.map_or(0, |count| count[0]);
                transaction.put(&scene.keyspace, "count", [count.wrapping_add(1)])?;
                Ok((transaction, ()))
            });
            add.await.map_err(text)?;
        });
        call!("range", scene => {
            let from = scene.some_key();
            let mut range = scene.keyspace.range(key(from)..key(from + 8));
            let mut count = from;
            while let Some((_, value)) = range.next().await.transpose().map_err(text)? {
                check(count, Some(value))?;
                count += 1;
            }
            if count != KEYS.min(from + 8) {
                return Err(format!("a range from {from} ended at {count}"));
            }
        });
        call!("snapshot", scene => {
            let snapshot = scene.store.snapshot();
            let number = scene.some_key();
            check(number, snapshot.get(&scene.keyspace, &key(number)).await.map_err(text)?)?;
            let mut range = snapshot.range(&scene.keyspace, key(number)..key(number + 3)).rev();
            while range.next().await.transpose().map_err(text)?.is_some() {}
        });
        call!("load", scene => {
            let from = 4_000_000 + scene.number() * 20;
            let entries = (from..from + 20).map(|number| (key(number), value(number)));
            scene.loads.default_keyspace().bulk_load(entries).await.map_err(text)?;
        });
        call!("ingest", scene => {
            // Around all keys that the other calls write, so that these wait for the end of the ingest.
            let number = scene.number();
            let path = scene.dir.join(format!("sorted-{number}"));
            let mut file = SortedFile::create(&scene.engine, &path, SortedFileOptions::new()).await.map_err(text)?;
            let ends = ["1", "9"].map(|end| format!("key {end} {number:06}"));
            file.put(&ends[0], b"first").await.map_err(text)?;
            file.put(&ends[1], b"last").await.map_err(text)?;
            file.finish().await.map_err(text)?;
            scene.store.ingest([(&scene.keyspace, &path)]).await.map_err(text)?;
            if scene.keyspace.get(&ends[0]).await.map_err(text)?.is_none() {
                return Err("what was ingested is not there".to_string());
            }
        });
        call!("flush", scene => { scene.store.flush().await.map_err(text)?; });
        call!("compact", scene => { scene.keyspace.compact(key(100)..key(120)).await.map_err(text)?; });
        call!("settle", scene => { scene.loads.settle().await.map_err(text)?; });
        call!("keyspace", scene => {
            let name = format!("keyspace {}", scene.number() % 3);
            let keyspace = scene.store.keyspace(&name).await.map_err(text)?;
            keyspace.put(b"a", b"b").await.map_err(text)?;
        });
        call!("checkpoint", scene => {
            let dir = scene.dir.join(format!("checkpoint-{}", scene.number()));
            scene.store.checkpoint(dir).await.map_err(text)?;
        });
        call!("verify", scene => {
            let verified = scene.loads.verify().await.map_err(text)?;
            if !verified.is_whole() {
                return Err(text(verified));
            }
        });
        call!("verify a closed one", scene => {
            let verified = verify(&scene.engine, scene.dir.join("idle")).await.map_err(text)?;
            if !verified.is_whole() {
                return Err(text(verified));
            }
        });
        call!("open and close", scene => {
            let dir = scene.dir.join(format!("fresh-{}", scene.number()));
            let store = Store::open(&scene.engine, dir, common::options()).await.map_err(text)?;
            store.default_keyspace().put(b"a", b"b").await.map_err(text)?;
            store.close().await.map_err(text)?;
        });
        calls
    }

    /// More gets than may read concurrently, and fewer of the calls that hold much memory.
    fn many(&self, name: &str) -> usize {
        match name {
            "get" => 100,
            "load" => 1,
            _ => 6,
        }
    }

    /// One load in addition to those that complete: each holds a third of the memory that programs may hold.
    fn may_keep(&self, name: &str, kept: &[NamedCall]) -> bool {
        name != "load" || kept.iter().all(|(name, _)| *name != "load")
    }
}

/// Regression: the permit of a get lay in its future. `buffer_unordered` over gets, whose loop awaited
/// another get, kept all permits in futures that it did not poll, and no get of any task completed any more.
#[test]
fn no_call_waits_for_one_that_is_not_polled() {
    let dir = common::dir();
    let engine = Engine::start(Config::new().shards(2).inbox_depth(2).queue_depth(4)).unwrap();
    let scene = futures::executor::block_on(Scene::new(engine, dir.path().to_path_buf())).unwrap();
    frozen::rounds_of_each(&scene);
    for kind in 0..scene.calls().len() {
        frozen::round_of_many(&scene, kind, kind % 3, kind % 2 == 0);
    }
    // Gets once more: each has asked for a permit.
    frozen::round_of_many(&scene, 0, 1, false);
    // Closing the store also completes although calls on it were started and are not polled.
    let here = scene.clone();
    in_time("close", move || {
        futures::executor::block_on(async {
            let kept = freeze(here.calls(), 1).await?;
            let kept_closes = begin(vec![("close", {
                let store = here.store.clone();
                Box::pin(async move { store.close().await.map_err(text) })
            })])?;
            here.store.close().await.map_err(text)?;
            here.loads.close().await.map_err(text)?;
            drop(kept);
            resume(kept_closes).await
        })
    });
}

/// Runs a round in a world. A hang is reported as an error, after a minute of the world's time.
fn simulate(seed: u64) -> Result<(), String> {
    // Enough for all gets of the first world, so that as many as allowed read; in the others they find the inbox full.
    let inbox = if seed.is_multiple_of(6) { 128 } else { 1 + seed as usize % 3 };
    // A store reserves its memory: two stores stay open, and others are opened meanwhile.
    let config = Config::new().shards(2).inbox_depth(inbox).queue_depth(4).arena_bytes_max(512 << 20);
    let run = World::new(seed)
        .disk(Profile::nand())
        .config(config)
        .run(async |engine| frozen::in_world(Scene::new(engine, PathBuf::from("/")), seed, 2).await);
    run.unwrap_or_else(|failure| Err(failure.to_string()))
}

#[test]
fn no_call_waits_for_one_that_is_not_polled_in_any_world() {
    for seed in 0..12 {
        simulate(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// Test of the test: a wake-up swallowed by a kept get is detected.
#[cfg(feature = "_mutants")]
#[test]
fn a_wake_up_that_a_kept_get_swallows_is_caught() {
    use forebay_kv::mutants::{self, Mutant};

    for seed in [0, 6, 12] {
        let what =
            mutants::with(Mutant::WokenKeepsItsRoom, || simulate(seed)).expect_err("each seed catches it");
        println!("seed {seed}: {what}");
    }
}
