//! A separate program: its tests fork, and look for threads of their process.
//!
//! Walks of the module on the ring of a shard: from everywhere concurrently, with futures that are dropped or never polled again,
//! and ended from both sides. Where the module is not loaded these tests try nothing.

mod common;

use std::fs::OpenOptions;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use common::child::in_child;
use common::{Tree, has_module, told};
use forebay::{Class, Config, DriverChoice, Engine, File, WorkerRings};
use forebay_kernel::{
    EngineKind, Error, KernelWalk, Lookup, Next, Options, PendingWalk, Program, Scratch, TreeLookup,
};

const LEVELS: u64 = 6;

struct Scene {
    engine: Engine,
    file: File,
    tree: Arc<Tree>,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Scene {
    fn new(config: Config) -> Option<Scene> {
        if !has_module() {
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let engine = Engine::start(config).expect("an engine");
        let tree = Arc::new(Tree::new(4096, 50, LEVELS, 60));
        let path = dir.path().join("tree");
        let file = tree.plant(&engine, &path);
        Some(Scene { engine, file, tree, path, _dir: dir })
    }

    fn open<P: Program>(&self, program: P, depth: u32) -> KernelWalk<P> {
        let options = Options::new().only(EngineKind::Module).depth(depth);
        let walk = KernelWalk::open_with(&self.engine, &self.file, program, options);
        let walk = walk.expect("the module takes it");
        assert!(walk.why().contains("on the ring of shard"), "{}", walk.why());
        walk
    }

    fn lookups(&self, depth: u32) -> KernelWalk<TreeLookup> {
        self.open(TreeLookup { node_bytes: 4096 }, depth)
    }

    /// The file is free: this write succeeds.
    fn assert_free(&self) {
        OpenOptions::new().write(true).open(&self.path).and_then(|file| file.set_len(0)).expect("it is free");
    }
}

fn lookup(tree: &Tree, key: u64) -> Lookup {
    Lookup { root: tree.root(LEVELS, key), level: LEVELS as u16 - 1, key }
}

fn has_walk_thread() -> bool {
    let threads = std::fs::read_dir("/proc/self/task").expect("this process has threads");
    let name = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm")).ok();
    threads.flatten().filter_map(name).any(|name| name.starts_with("forebay-kwalk"))
}

/// One walk after the other, and some concurrently.
async fn walk_all(walk: Arc<KernelWalk<TreeLookup>>, tree: Arc<Tree>, from: u64) {
    for key in from..from + 50 {
        let lookup = lookup(&tree, key);
        assert_eq!(walk.walk(&lookup).await.ok(), Some(tree.lookup(lookup.root, key)));
    }
    let lookups: Vec<Lookup> = (from..from + 100).map(|key| lookup(&tree, key)).collect();
    for (lookup, found) in lookups.iter().zip(walk.walk_many(&lookups).await) {
        assert_eq!(found.ok(), Some(tree.lookup(lookup.root, lookup.key)));
    }
}

#[test]
fn shards_runtimes_and_threads_walk_at_once_without_a_thread_for_it() {
    let config = Config::new().shards(2).worker_rings(WorkerRings::Auto);
    let Some(scene) = Scene::new(config) else { return };
    let walk = Arc::new(scene.lookups(16));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let all = |from: u64| walk_all(Arc::clone(&walk), Arc::clone(&scene.tree), from);
    let shards: Vec<_> = (0..4)
        .map(|at| {
            let (walk, tree) = (Arc::clone(&walk), Arc::clone(&scene.tree));
            let make = move || walk_all(walk, tree, at * 1000);
            scene.engine.spawn_on_shard(at as usize % 2, Class::DEFAULT, make)
        })
        .collect();
    let workers: Vec<_> = (4..8)
        .map(|at| {
            // A read by the same task, so that its worker has a ring by then.
            let (file, walks) = (scene.file.clone(), all(at * 1000));
            runtime.spawn(async move {
                file.read(0..4096).await.expect("a read beside the walks");
                walks.await;
            })
        })
        .collect();
    std::thread::scope(|scope| {
        for at in 8..12 {
            let (walk, tree) = (&walk, &scene.tree);
            scope.spawn(move || {
                for key in at * 1000..at * 1000 + 150 {
                    let lookup = lookup(tree, key);
                    assert_eq!(walk.walk(&lookup).wait().ok(), Some(tree.lookup(lookup.root, key)));
                }
            });
        }
        assert!(!has_walk_thread());
    });
    shards.into_iter().for_each(|task| task.wait().expect("the task ends"));
    workers.into_iter().for_each(|task| runtime.block_on(task).expect("the task ends"));
    let stats = walk.stats();
    assert_eq!((stats.walks, stats.commands, stats.fell_back), (12 * 150, 12 * 150, 0));
    assert!(!has_walk_thread());
    drop(runtime);
    Arc::into_inner(walk).expect("all tasks have ended").close();
    scene.assert_free();
}

#[test]
fn dropped_futures_leave_room_and_what_waited_never_begins() {
    let Some(scene) = Scene::new(Config::new().shards(1)) else { return };
    let walk = Arc::new(scene.lookups(2));
    let tree = Arc::clone(&scene.tree);
    let on_shard = Arc::clone(&walk);
    let task = scene.engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        // Two of each ten are started here, and continue without their futures.
        for round in 0..30 {
            let futures: Vec<_> = (0..10).map(|key| on_shard.walk(&lookup(&tree, key))).collect();
            drop(futures);
            let last = lookup(&tree, round);
            assert_eq!(on_shard.walk(&last).await.ok(), Some(tree.lookup(last.root, round)));
        }
        (on_shard.stats(), tree)
    });
    let (stats, tree) = task.wait().expect("the task ends");
    assert_eq!(stats.walks, 30 * 11);
    assert!((30..=30 * 3).contains(&stats.commands), "{stats:?}");
    for key in 0..300 {
        let lookup = lookup(&tree, key);
        drop(walk.walk(&lookup));
        if key % 50 == 0 {
            assert_eq!(walk.walk(&lookup).wait().ok(), Some(tree.lookup(lookup.root, key)));
        }
    }
}

/// Starts more walks than slots, polls each once, and returns those that had not ended by then, with their keys. A walk that has
/// ended must not be polled again: that failed this test now and then on a busy machine.
fn freeze(walk: &KernelWalk<TreeLookup>, tree: &Tree) -> Vec<(u64, PendingWalk<TreeLookup>)> {
    let all: Vec<_> = (0..300).map(|key| (key, walk.walk(&lookup(tree, key)))).collect();
    let mut context = Context::from_waker(Waker::noop());
    all.into_iter()
        .filter_map(|(key, mut walk)| match Pin::new(&mut walk).poll(&mut context) {
            Poll::Pending => Some((key, walk)),
            Poll::Ready(found) => {
                assert_eq!(found.ok(), Some(tree.lookup(tree.root(LEVELS, key), key)), "walk {key}");
                None
            }
        })
        .collect()
}

/// A future that was polled once and never again keeps no slot, nor the place of one behind it.
#[test]
fn futures_that_are_not_polled_again_hold_up_no_other() {
    let Some(scene) = Scene::new(Config::new().shards(2)) else { return };
    let walk = Arc::new(scene.lookups(64));
    let home = scene.file.home_shard();
    for (frozen_on, asked_on) in [(None, None), (Some(home), Some(home)), (Some(1 - home), None)] {
        let (begun, tree) = (Arc::clone(&walk), Arc::clone(&scene.tree));
        let frozen = match frozen_on {
            None => freeze(&begun, &tree),
            Some(shard) => {
                let task = scene
                    .engine
                    .spawn_on_shard(shard, Class::DEFAULT, move || async move { freeze(&begun, &tree) });
                task.wait().expect("the task ends")
            }
        };
        let (behind, tree) = (Arc::clone(&walk), Arc::clone(&scene.tree));
        let one = lookup(&tree, 9);
        let found = match asked_on {
            None => behind.walk(&one).wait(),
            Some(shard) => {
                let task = scene
                    .engine
                    .spawn_on_shard(shard, Class::DEFAULT, move || async move { behind.walk(&one).await });
                task.wait().expect("the task ends")
            }
        };
        assert_eq!(found.map_err(|error| error.to_string()), Ok(tree.lookup(one.root, 9)));
        // They have their results when they are polled after all.
        for (key, walk) in frozen {
            let expected = tree.lookup(tree.root(LEVELS, key), key);
            assert_eq!(walk.wait().map_err(|error| error.to_string()), Ok(expected), "walk {key}");
        }
    }
    assert_eq!(walk.stats().fell_back, 0);
}

/// Walks in a circle until its hops are used up.
struct NeverEnds;

impl Program for NeverEnds {
    type Args = ();
    type Output = ();

    fn name(&self) -> &'static str {
        "never_ends"
    }

    fn page_bytes(&self) -> u32 {
        4096
    }

    fn object(&self) -> Option<&[u8]> {
        None
    }

    fn module_object(&self) -> Option<&[u8]> {
        Some(include_bytes!("objects/never_ends.module.bpf.o"))
    }

    fn begin(&self, _: &(), _: &mut Scratch) -> u64 {
        0
    }

    fn step(&self, _: &[u8], at: u64, _: &mut Scratch) -> Next {
        Next::read(at)
    }

    fn end(&self, _: &Scratch, _: &[u8]) {}
}

fn is_engine_closed(error: &Error) -> bool {
    matches!(error, Error::Core(error) if error.kind() == forebay::ErrorKind::EngineClosed)
}

#[test]
fn an_engine_closes_with_walks_in_the_kernel() {
    for _ in 0..10 {
        let Some(scene) = Scene::new(Config::new().shards(1)) else { return };
        let walk = scene.open(NeverEnds, 64);
        let walks = walk.walk_many(&[(); 200]);
        let report = scene.engine.close().wait().expect("a report");
        assert_eq!((report.leaked_operations, report.lost_shards), (0, 0));
        for ended in walks.wait().expect("not on a shard") {
            match ended {
                Err(Error::TooManyHops { limit: 64, .. }) => {}
                Err(error) if is_engine_closed(&error) => {}
                other => panic!("{other:?}"),
            }
        }
        let late = walk.walk(&()).wait().expect_err("there is no engine");
        assert!(is_engine_closed(&late), "{late}");
        walk.close();
        OpenOptions::new()
            .write(true)
            .open(&scene.path)
            .and_then(|file| file.set_len(0))
            .expect("it is free");
    }
}

#[test]
fn a_session_closes_and_is_dropped_with_walks_in_the_kernel() {
    let Some(scene) = Scene::new(Config::new().shards(2)) else { return };
    let closed = |walks: Vec<Result<(), Error>>| {
        for ended in walks {
            assert!(
                matches!(ended, Err(Error::Closed | Error::TooManyHops { .. })),
                "a walk ends with its session: {ended:?}"
            );
        }
    };
    for round in 0..10 {
        // From a thread, and from the task of a shard, which must not wait for itself.
        let walk = scene.open(NeverEnds, 64);
        let walks = walk.walk_many(&[(); 100]);
        walk.close();
        closed(walks.wait().expect("not on a shard"));
        let writer = OpenOptions::new().write(true).open(&scene.path).expect("it is there");
        writer.set_len(4096 * 360).expect("it is free");
        let walk = scene.open(NeverEnds, 64);
        let task = scene.engine.spawn_on_shard(round % 2, Class::DEFAULT, move || async move {
            let walks = walk.walk_many(&[(); 100]);
            walk.close();
            writer.set_len(4096 * 360).expect("it is free");
            walks.await
        });
        closed(task.wait().expect("the task ends"));
        let walk = scene.open(NeverEnds, 64);
        let walks = walk.walk_many(&[(); 100]);
        drop(walk);
        closed(walks.wait().expect("not on a shard"));
        // The drop has not waited.
        let writer = OpenOptions::new().write(true).open(&scene.path).expect("it is there");
        let begun = Instant::now();
        while writer.set_len(4096 * 360).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(30), "the file is still bound");
            std::thread::yield_now();
        }
    }
}

/// A forked child has neither the ring nor the memory of its parent's session, and must not end it.
#[test]
fn a_forked_childs_walks_fail_and_its_end_leaves_the_parents_alone() {
    let Some(scene) = Scene::new(Config::new().shards(1)) else { return };
    let walk = scene.lookups(8);
    let one = lookup(&scene.tree, 5);
    let expected = scene.tree.lookup(one.root, 5);
    assert_eq!(walk.walk(&one).wait().ok(), Some(expected));
    let before = walk.walk_many(&[one; 100]);
    let (mut handle, mut begun) = (Some(walk), Some(before));
    in_child(|| {
        let walk = handle.take().expect("the child's copy");
        let is_forked =
            |error: &Error| matches!(error, Error::Core(error) if error.kind() == forebay::ErrorKind::Forked);
        for ended in begun.take().expect("the child's copy").wait().expect("not on a shard") {
            match ended {
                Ok(found) if found == expected => {}
                Err(error) if is_forked(&error) => {}
                other => return Some(format!("a walk from before: {other:?}")),
            }
        }
        match walk.walk(&one).wait() {
            Err(error) if is_forked(&error) => {}
            other => return Some(format!("{other:?}")),
        }
        walk.close();
        // If a thread were to end the session, it would do so before this process ends.
        while std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count) > 1 {
            std::thread::yield_now();
        }
        None
    });
    let walk = handle.take().expect("the parent's own");
    for ended in begun.take().expect("the parent's own").wait().expect("not on a shard") {
        assert_eq!(ended.ok(), Some(expected));
    }
    assert_eq!(walk.walk(&one).wait().ok(), Some(expected));
    assert_eq!(walk.stats().fell_back, 0);
    walk.close();
    scene.assert_free();
}

/// A waker that owns the last handle of the walks that it waits for.
struct Owner(#[allow(dead_code, reason = "only dropped")] Arc<KernelWalk<NeverEnds>>);

impl std::task::Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

/// A walk that waited for a slot was skipped when its future had been dropped, and its waker was dropped with the session's lock
/// held. A waker that owned the last handle, like the waker of a task with the handle, made the shard wait for itself.
#[test]
fn the_last_handle_may_be_a_dropped_walks_waker() {
    let Some(scene) = Scene::new(Config::new().shards(1)) else { return };
    let walk = Arc::new(scene.open(NeverEnds, 1));
    let before = walk.walk_many(&[(); 30]);
    let mut frozen = walk.walk(&());
    let waker = Waker::from(Arc::new(Owner(walk)));
    let polled = Pin::new(&mut frozen).poll(&mut Context::from_waker(&waker));
    drop(waker);
    assert!(polled.is_pending(), "it waits behind the others: {polled:?}");
    drop(frozen);
    let (tell, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(before.wait()));
    let before = ended.recv_timeout(Duration::from_secs(60)).expect("the shard waits for itself");
    for ended in before.expect("not on a shard") {
        assert!(matches!(ended, Err(Error::Closed | Error::TooManyHops { .. })), "{ended:?}");
    }
    let report = scene.engine.close().wait().expect("a report");
    assert_eq!((report.leaked_operations, report.lost_shards), (0, 0));
}

/// The other forms: a ring that polls, and an engine without rings.
#[test]
fn without_such_a_ring_walks_have_a_thread() {
    let Some(scene) = Scene::new(Config::new().driver(DriverChoice::Threads)) else { return };
    let options = Options::new().only(EngineKind::Module);
    let walk = KernelWalk::open_with(&scene.engine, &scene.file, TreeLookup { node_bytes: 4096 }, options)
        .expect("the module takes it");
    assert!(walk.why().contains("a thread and a ring of their own, as no shard's ring"), "{}", walk.why());
    assert!(has_walk_thread());
    let one = lookup(&scene.tree, 5);
    assert_eq!(told(walk.walk(&one).wait()), scene.tree.lookup(one.root, 5).to_string());
    assert_eq!(walk.stats().commands, 0);
    walk.close();
}
