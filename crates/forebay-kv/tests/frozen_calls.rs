//! Shows: a future of the store that is no longer polled costs the memory that it holds, and every other call
//! goes on.
//!
//! How: each kind of call is kept unpolled at each of its awaits. The kept calls are one of each kind, or as
//! many of one kind as fill its share. One of each kind completes beside them. Then the kept ones are polled
//! again on another thread, or dropped. This runs on a real engine, where a round must end within a minute,
//! and in worlds whose seed decides which calls are kept.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::key;
use forebay::sim::{self, Profile, World};
use forebay::{Config, Engine};
use forebay_kv::{Batch, Keyspace, Options, Store, verify};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;

mod common;

/// A call whose result is checked.
type Call = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;
type Named = (&'static str, Call);

/// More polls than most of the calls need.
const POLLS: usize = 6;
/// A round that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// Keys that are in tables and never written again: three to a leaf, none of them in memory at first.
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
        let large = Options::new().memory(96 << 20).clock(|| 1);
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

    /// Returns one call of each kind.
    fn calls(&self) -> Vec<Named> {
        let mut calls: Vec<Named> = Vec::new();
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

    fn kinds(&self) -> usize {
        self.calls().len()
    }

    /// Returns many calls of one kind: more gets than may read at once, and fewer of the calls that hold much
    /// memory.
    fn many(&self, kind: usize) -> Vec<Named> {
        let count = match self.calls()[kind].0 {
            "get" => 100,
            "load" => 1,
            _ => 6,
        };
        (0..count).map(|_| self.calls().swap_remove(kind)).collect()
    }
}

/// Polls each call once, so that none has been woken yet. Returns those that are not complete.
fn begin(calls: Vec<Named>) -> Result<Vec<Named>, String> {
    let mut kept = Vec::new();
    for (name, mut call) in calls {
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer.map_err(|wrong| format!("{name}: {wrong}"))?,
            Poll::Pending => kept.push((name, call)),
        }
    }
    Ok(kept)
}

/// Polls each call this many times and keeps those that are not complete.
async fn freeze(calls: Vec<Named>, polls: usize) -> Result<Vec<Named>, String> {
    let mut kept = Vec::new();
    for (name, call) in calls {
        match sim::frozen_after(polls, call).await {
            Ok(answer) => answer.map_err(|wrong| format!("{name}: {wrong}"))?,
            Err(call) => kept.push((name, *Pin::into_inner(call))),
        }
    }
    Ok(kept)
}

/// Completes all calls concurrently, each polled only when it was woken itself.
async fn go_on(calls: Vec<Named>) -> Result<(), String> {
    let named =
        calls.into_iter().map(async |(name, call)| call.await.map_err(|wrong| format!("{name}: {wrong}")));
    let mut going: FuturesUnordered<_> = named.collect();
    while let Some(answer) = going.next().await {
        answer?;
    }
    Ok(())
}

/// Keeps one call of each kind while one of each kind completes.
async fn one_of_each(scene: &Scene, polls: usize) -> Result<Vec<Named>, String> {
    let kept = freeze(scene.calls(), polls).await?;
    go_on(scene.calls()).await?;
    Ok(kept)
}

/// Keeps many calls of one kind while one of each kind completes.
async fn many_of_one(scene: &Scene, kind: usize, polls: usize) -> Result<Vec<Named>, String> {
    let kept = match polls {
        0 => begin(scene.many(kind))?,
        _ => freeze(scene.many(kind), polls).await?,
    };
    go_on(scene.calls()).await?;
    Ok(kept)
}

/// Runs `body` on its own thread, which must end in time.
fn in_time(what: &str, body: impl FnOnce() -> Result<(), String> + Send + 'static) {
    let (ended, has_ended) = mpsc::channel();
    let thread = std::thread::spawn(move || ended.send(body()));
    let answer = has_ended.recv_timeout(LIMIT).unwrap_or_else(|_| Err("it hangs".to_string()));
    answer.unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
    thread.join().unwrap().unwrap();
}

/// Runs a round on a real engine; the kept calls complete on another thread, or are dropped.
fn round(
    scene: &Scene,
    what: String,
    is_dropped: bool,
    freeze: impl AsyncFnOnce(Scene) -> Result<Vec<Named>, String> + Send + 'static,
) {
    let here = scene.clone();
    in_time(&what, move || {
        let kept = futures::executor::block_on(freeze(here))?;
        if !is_dropped {
            let thread = std::thread::spawn(move || futures::executor::block_on(go_on(kept)));
            thread.join().map_err(|_| "a panic".to_string())??;
        }
        Ok(())
    });
}

/// Regression: the permit of a get lay in its future. `buffer_unordered` over gets, whose loop awaited
/// another get, kept all permits in futures that it did not poll, and no get of any task completed any more.
#[test]
fn no_call_waits_for_one_that_is_not_polled() {
    let dir = common::dir();
    let engine = Engine::start(Config::default().shards(2).inbox_depth(2).queue_depth(4)).unwrap();
    let scene = futures::executor::block_on(Scene::new(engine, dir.path().to_path_buf())).unwrap();
    for polls in 1..POLLS {
        let what = format!("one of each kind, kept after {polls} polls");
        round(&scene, what, polls % 2 == 0, async move |scene| one_of_each(&scene, polls).await);
    }
    for kind in 0..scene.kinds() {
        let polls = kind % 3;
        let what = format!("{} many times, kept after {polls} polls", scene.calls()[kind].0);
        round(&scene, what, kind % 2 == 0, async move |scene| many_of_one(&scene, kind, polls).await);
    }
    let what = "gets, kept after 1 poll".to_string();
    round(&scene, what, false, async move |scene| many_of_one(&scene, 0, 1).await);
    // Closing the store also completes although calls on it were begun and are not polled.
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
            go_on(kept_closes).await
        })
    });
}

/// Tasks make calls in some order, and leave some of them unfinished; each may continue calls that others
/// left.
async fn among_others(scene: Scene, left: Arc<Mutex<Vec<Named>>>) -> Result<(), String> {
    let mut calls = scene.calls();
    while !calls.is_empty() {
        let (name, call) = calls.swap_remove(sim::random(calls.len() as u64) as usize);
        if sim::random(3) == 0 {
            let polls = sim::random(POLLS as u64) as usize;
            // One load beside those that go on: each holds a third of the memory that programs may hold.
            let is_kept = name != "load" || left.lock().unwrap().iter().all(|(name, _)| *name != "load");
            let kept = freeze(vec![(name, call)], if is_kept { polls } else { usize::MAX }).await?;
            left.lock().unwrap().extend(kept);
        } else {
            go_on(vec![(name, call)]).await?;
        }
        if sim::random(5) == 0 {
            let taken = {
                let mut left = left.lock().unwrap();
                let count = left.len() as u64;
                (count > 0).then(|| left.swap_remove(sim::random(count) as usize))
            };
            if sim::random(2) == 0 {
                go_on(taken.into_iter().collect()).await?;
            }
        }
    }
    Ok(())
}

async fn in_a_world(engine: Engine, seed: u64) -> Result<(), String> {
    let scene = Scene::new(engine, PathBuf::from("/")).await?;
    let kept = match seed % 3 {
        // More calls of the first kind, which is a get, than there is room for.
        0 => many_of_one(&scene, 0, 0).await?,
        1 => one_of_each(&scene, sim::random(POLLS as u64) as usize).await?,
        _ => many_of_one(&scene, sim::random(scene.kinds() as u64) as usize, sim::random(3) as usize).await?,
    };
    let left = Arc::new(Mutex::new(kept));
    let tasks: Vec<_> = (0..2).map(|_| sim::spawn(among_others(scene.clone(), left.clone()))).collect();
    for task in tasks {
        task.await.map_err(text)??;
    }
    let left = std::mem::take(&mut *left.lock().unwrap());
    sim::spawn(go_on(left)).await.map_err(text)?
}

/// Runs a round in a world. A hang is reported as an error, after a minute of the world's time.
fn simulate(seed: u64) -> Result<(), String> {
    // Room for all gets of the first world, so that as many as allowed read; in the others they find the
    // inbox full.
    let inbox = if seed.is_multiple_of(6) { 128 } else { 1 + seed as usize % 3 };
    // A store reserves its memory: two stores stay open, and others are opened meanwhile.
    let config = Config::default().shards(2).inbox_depth(inbox).queue_depth(4).arena_bytes_max(512 << 20);
    let run = World::new(seed).disk(Profile::nand()).config(config).run(async |engine| {
        let limit = std::pin::pin!(sim::sleep(LIMIT));
        match futures::future::select(std::pin::pin!(in_a_world(engine, seed)), limit).await {
            futures::future::Either::Left((answer, _)) => answer,
            futures::future::Either::Right(_) => Err("it hangs".to_string()),
        }
    });
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
