//! Dependent reads in simulated worlds: every order of completions, short reads, errors, cancels and power cuts.

use std::sync::Arc;
use std::time::Duration;

use crate::tree::{self, Ledger, Lookup, LookupError, PAGE, Sum, Tree, expected, value_of};
use forebay::{Class, Config, Engine, Error, ErrorKind, File, Open, shard};
use forebay_sim::{self as sim, Fault, Profile, Rule, World};
use futures::FutureExt;

async fn planted(engine: &Engine, tree: &Tree) -> File {
    let file = engine.open("/tree", Open::create()).await.unwrap();
    let mut bytes = tree.bytes.clone();
    bytes.resize(bytes.len().next_multiple_of(file.alignment().offset as usize), 0);
    file.write(0, bytes).await.unwrap();
    file
}

/// Runs lookups and sums from all sides; the disk completes in any order and does only a part of some reads.
async fn explore(engine: Engine) {
    let (depth, fan_out) = [(3, 9), (8, 2), (2, 31), (5, 3)][sim::random(4) as usize];
    let tree = Arc::new(Tree::new(depth, fan_out));
    let file = planted(&engine, &tree).await;
    let mut tasks = Vec::new();
    for number in 0..6usize {
        let (tree, file, engine) = (tree.clone(), file.clone(), engine.clone());
        let lookups = async move {
            for _ in 0..5 {
                let key = sim::random(2 * tree.keys + 4);
                let found = file.walk(tree.root.clone(), Lookup { key }).await.unwrap();
                assert_eq!(found, expected(&tree, key));
            }
            let keys: Vec<u64> = (0..20).map(|_| sim::random(2 * tree.keys)).collect();
            let walks = keys.iter().map(|&key| (tree.root.clone(), Lookup { key }));
            for (&key, found) in keys.iter().zip(file.walk_many(walks).depth(9).await.unwrap()) {
                assert_eq!(found.unwrap(), expected(&tree, key));
            }
            let enough = 1 + sim::random(30) as u32;
            let (_, pages) = file.walk(tree.root.clone(), Sum::new(enough)).hops_max(9_000).await.unwrap();
            assert!(pages <= enough);
            let (sum, _) = file.walk(tree.root.clone(), Sum::new(u32::MAX)).hops_max(9_000).await.unwrap();
            assert_eq!(sum, (0..tree.keys).fold(0u64, |sum, n| sum.wrapping_add(value_of(2 * n))));
        };
        tasks.push(sim::spawn(async move {
            match number % 2 {
                0 => lookups.await,
                _ => engine
                    .spawn_on_shard(number % engine.shard_count(), Class::DEFAULT, move || lookups)
                    .await
                    .unwrap(),
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_at_rest(&engine).await;
}

async fn assert_at_rest(engine: &Engine) {
    for _ in 0..10_000 {
        let stats = engine.stats().await.unwrap();
        if stats.memory.held_bytes == 0 && stats.shards.iter().all(|shard| shard.slots_used == 0) {
            return;
        }
        sim::sleep(Duration::from_micros(50)).await.unwrap();
    }
    panic!("memory and slots come back: {:?}", engine.stats().await.unwrap());
}

fn disk(seed: u64) -> Profile {
    let disk = [Profile::ideal(), Profile::nand(), Profile::optane()][seed as usize % 3].clone();
    disk.fault(Rule::new(Fault::ShortRead).chance_ppm(100_000))
}

#[test]
fn answers_are_right_in_every_order() {
    let run = |seed| {
        let mut world = World::new(seed).disk(disk(seed));
        world.run(explore).unwrap_or_else(|failure| panic!("{failure}"));
        world.history_digest()
    };
    let digests: Vec<u64> = (0..60).map(run).collect();
    assert_eq!(digests[7], run(7), "the same seed is the same run");
    assert_ne!(digests[0], digests[3]);
}

#[test]
fn an_error_at_hop_three_names_it() {
    for seed in 0..20 {
        let tree = Tree::new(5, 3);
        // The third page on the way to key 0: leaves are first in the file, then the levels above them.
        let third: u64 = (81 + 27) * PAGE;
        let disk = Profile::nand().fault(Rule::new(Fault::ReadError).within(third..third + 1));
        let error = World::new(seed)
            .disk(disk)
            .run(async |engine| {
                let file = planted(&engine, &tree).await;
                let walks = (0..9).map(|n| (tree.root.clone(), Lookup { key: n * 54 }));
                for (n, found) in file.walk_many(walks).await.unwrap().into_iter().enumerate().skip(1) {
                    assert_eq!(found.unwrap(), expected(&tree, n as u64 * 54));
                }
                match file.walk(tree.root.clone(), Lookup { key: 0 }).await {
                    Err(LookupError::Io(error)) => error,
                    other => panic!("{other:?}"),
                }
            })
            .unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(
            (error.raw_os_error(), error.hop(), error.operation()),
            (Some(5), Some(3), "walk"),
            "{error}"
        );
        assert_eq!(error.range(), Some((third, PAGE)));
        let text = error.to_string();
        for part in ["walk /tree", "at hop 3", "512 bytes at 55296"] {
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
    }
}

/// Walks that are dropped at any moment, from any side, with reads in flight that end or not.
#[test]
fn given_up_at_any_moment() {
    for seed in 0..60 {
        let ledger = Ledger::default();
        let entries = ledger.clone();
        let disk = disk(seed).fault(Rule::new(Fault::CancelRace).chance_ppm(300_000));
        World::new(seed)
            .disk(disk)
            .run(async |engine| {
                let tree = Arc::new(Tree::new(3, 9));
                let file = planted(&engine, &tree).await;
                let mut tasks = Vec::new();
                for number in 0..30usize {
                    let (file, tree, entries) = (file.clone(), tree.clone(), entries.clone());
                    let (engine, lasts) = (engine.clone(), Duration::from_nanos(sim::random(200_000)));
                    let walk = async move {
                        let walk = LedgerWalk(Sum::new(u32::MAX), entries.entry());
                        file.walk(tree.root.clone(), walk).hops_max(u32::MAX).await
                    };
                    tasks.push(sim::spawn(async move {
                        match number % 2 {
                            0 => {
                                // Polled wherever the world puts this task, and dropped there.
                                futures::future::select(Box::pin(walk), Box::pin(sim::sleep(lasts))).await;
                            }
                            _ => {
                                let timed =
                                    move || async move { shard::timeout(lasts, walk).await.map(drop) };
                                let _ = engine
                                    .spawn_on_shard(number % engine.shard_count(), Class::DEFAULT, timed)
                                    .await
                                    .unwrap();
                            }
                        }
                    }));
                }
                for task in tasks {
                    task.await.unwrap();
                }
                assert_at_rest(&engine).await;
            })
            .unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(ledger.counts(), (30, 30), "seed {seed}");
    }
}

/// A walk with an entry in the ledger.
struct LedgerWalk(Sum, #[expect(dead_code, reason = "held for its drop")] tree::Entry);

impl forebay::Walk for LedgerWalk {
    type Output = (u64, u32);
    type Error = LookupError;

    fn step(
        &mut self,
        block: &forebay::Block,
        at: std::ops::Range<u64>,
    ) -> forebay::Step<(u64, u32), LookupError> {
        self.0.step(block, at)
    }
}

#[test]
fn a_power_cut_drops_every_state_once() {
    for seed in 0..20 {
        let ledger = Ledger::default();
        let entries = ledger.clone();
        let mut world = World::new(seed).disk(disk(seed));
        world.power_cut_after(Duration::from_micros(20_000 + 300 * seed));
        let failure = world.run(async |engine| {
            let tree = Arc::new(Tree::new(3, 9));
            let file = planted(&engine, &tree).await;
            loop {
                let walks =
                    (0..20).map(|_| (tree.root.clone(), LedgerWalk(Sum::new(u32::MAX), entries.entry())));
                for result in file.walk_many(walks).hops_max(9_000).await.unwrap() {
                    result.unwrap();
                }
                let one = LedgerWalk(Sum::new(u32::MAX), entries.entry());
                let (file, root) = (file.clone(), tree.root.clone());
                let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
                    file.walk(root, one).hops_max(9_000).await.map(drop)
                });
                task.await.unwrap().unwrap();
            }
        });
        assert!(matches!(failure, Err(failure) if failure.is_power_cut()), "seed {seed}");
        drop(world);
        let (made, dropped) = ledger.counts();
        assert!(made > 0 && made == dropped, "seed {seed}: {dropped} of {made}");
    }
}

/// The engine ends while the disk hangs: no caller waits for ever, and only memory that the disk has is
/// leaked.
#[test]
fn a_stuck_read_is_leaked_and_its_walk_is_told() {
    let ledger = Ledger::default();
    let entries = ledger.clone();
    let disk = Profile::nand().fault(Rule::new(Fault::Stuck).within(0..PAGE));
    let (error, report): (Error, _) = World::new(5)
        .disk(disk)
        .run(async |engine| {
            let file = engine.open("/tree", Open::create()).await.unwrap();
            let tree = Tree::new(3, 9);
            file.write(PAGE, tree.bytes[PAGE as usize..].to_vec()).await.unwrap();
            let walk = LedgerWalk(Sum::new(u32::MAX), entries.entry());
            let root = tree.root.clone();
            let waiting = sim::spawn(async move { file.walk(root, walk).hops_max(9_000).await });
            sim::sleep(Duration::from_millis(5)).await.unwrap();
            let report = engine.close().await.unwrap();
            match waiting.await.unwrap() {
                Err(LookupError::Io(error)) => (error, report),
                other => panic!("{other:?}"),
            }
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(error.kind(), ErrorKind::EngineClosed, "{error}");
    assert_eq!(report.leaked_operations, 1);
    assert_eq!(ledger.counts(), (1, 1));
}

/// Regression: a walk that found its shard's inbox full is still in the program's hands, and so are the
/// values that its state owns: a store's permits for reads lay there for ever when the future was not polled
/// again.
#[test]
fn a_walk_that_has_not_begun_gives_its_state_back() {
    let mut world = World::new(5).disk(disk(5)).config(Config::new().shards(1).inbox_depth(1));
    let run = world.run(async |engine| {
        let tree = Tree::new(3, 9);
        let file = planted(&engine, &tree).await;
        let lookups = |first: u64| (first..first + 4).map(|key| (tree.root.clone(), Lookup { key }));
        let mut one: Vec<_> = lookups(0).map(|(root, walk)| Box::pin(file.walk(root, walk))).collect();
        let mut many: Vec<_> = (1..4).map(|n| Box::pin(file.walk_many(lookups(4 * n)))).collect();
        assert!(one.iter_mut().all(|walk| walk.unbegun().is_some()));
        assert!(many.iter_mut().all(|walks| walks.unbegun().count() == 4));
        one.iter_mut().for_each(|walk| assert!(walk.now_or_never().is_none()));
        many.iter_mut().for_each(|walks| assert!(walks.now_or_never().is_none()));
        // The first message filled the inbox.
        let unbegun: Vec<bool> = one.iter_mut().map(|walk| walk.unbegun().is_some()).collect();
        assert_eq!(unbegun, [false, true, true, true]);
        for walk in many.iter_mut().flat_map(|walks| walks.unbegun()) {
            walk.key += 100;
        }
        for (key, walk) in one.into_iter().enumerate() {
            assert_eq!(walk.await.unwrap(), expected(&tree, key as u64));
        }
        for (n, walks) in many.into_iter().enumerate() {
            for (key, found) in walks.await.unwrap().into_iter().enumerate() {
                assert_eq!(found.unwrap(), expected(&tree, (4 * (n + 1) + key + 100) as u64));
            }
        }
    });
    run.unwrap();
}

/// Ends with the block of its root.
struct RootBlock;

impl forebay::Walk for RootBlock {
    type Output = forebay::Block;
    type Error = Error;

    fn step(
        &mut self,
        block: &forebay::Block,
        _: std::ops::Range<u64>,
    ) -> forebay::Step<forebay::Block, Error> {
        forebay::Step::Done(block.clone())
    }
}

/// Regression: a future that started on a shard and was dropped on another thread left a mark there. A shard that slept saw it at
/// its next event, and kept the results of a read and of a walk until then.
#[test]
fn results_dropped_elsewhere_leave_a_shard_that_sleeps() {
    let run = World::new(6).config(Config::new().shards(1)).run(async |engine| {
        let file = planted(&engine, &Tree::new(3, 9)).await;
        let begun = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            let walk = sim::frozen_after(1, file.walk(0..PAGE, RootBlock).owned()).await;
            (walk.err(), sim::frozen_after(1, file.read(PAGE..2 * PAGE).owned()).await.err())
        });
        let (walk, read) = begun.await.unwrap();
        sim::sleep(Duration::from_secs(1)).await.unwrap();
        let held_bytes = engine.memory().held_bytes;
        assert!(walk.is_some() && read.is_some() && held_bytes >= 2 * PAGE, "{held_bytes}");
        drop(walk);
        sim::sleep(Duration::from_secs(1)).await.unwrap();
        let left_bytes = engine.memory().held_bytes;
        assert!(left_bytes < held_bytes, "the walk's");
        drop(read);
        sim::sleep(Duration::from_secs(1)).await.unwrap();
        assert!(engine.memory().held_bytes < left_bytes, "the read's");
    });
    run.unwrap();
}
