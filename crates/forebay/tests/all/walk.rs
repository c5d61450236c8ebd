//! Dependent reads on both real drivers: right results, and the rules for steps. The ends of walks are in
//! `walk_endings.rs`.

use std::future::{IntoFuture, poll_fn};
use std::marker::PhantomData;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use crate::common::{bytes_of, config, dir, write_file};
use crate::tree::{self, Lookup, LookupError, Sum, Tree, expected, value_of};
use forebay::{Block, Class, Config, Engine, Error, ErrorKind, File, Open, Step, Walk, shard};

const LEN: u64 = 1 << 20;

/// Starts an engine with one shard, and opens a file of known bytes.
fn scene(config: Config) -> (Engine, File, tempfile::TempDir) {
    let dir = dir();
    write_file(&dir.path().join("a"), LEN);
    let engine = Engine::start(config.shards(1)).unwrap();
    let file = engine.open(dir.path().join("a"), Open::read()).wait().unwrap();
    (engine, file, dir)
}

/// A walk made of a closure.
struct Steps<F, T>(F, PhantomData<fn() -> T>);

fn steps<F, T>(step: F) -> Steps<F, T>
where
    F: FnMut(&Block, Range<u64>) -> Step<T, Error> + Send + 'static,
    T: Send + 'static,
{
    Steps(step, PhantomData)
}

impl<F, T> Walk for Steps<F, T>
where
    F: FnMut(&Block, Range<u64>) -> Step<T, Error> + Send + 'static,
    T: Send + 'static,
{
    type Output = T;
    type Error = Error;

    fn step(&mut self, block: &Block, at: Range<u64>) -> Step<T, Error> {
        (self.0)(block, at)
    }
}

#[derive(Default)]
struct CountingWaker {
    wakes: AtomicU64,
}

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
    }
}

/// Polls when woken and only then; returns the output, and how often it was woken.
fn wakes_of<F: Future + Unpin>(engine: &Engine, mut future: F) -> (F::Output, u64) {
    let counter = Arc::new(CountingWaker::default());
    let waker = Waker::from(counter.clone());
    let mut seen = u64::MAX;
    loop {
        let wakes = counter.wakes.load(Ordering::SeqCst);
        if wakes != seen {
            seen = wakes;
            if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
                // The wake-up may arrive right after the output was found: by the shard's next turn it has arrived.
                engine.nop().wait().unwrap();
                return (output, counter.wakes.load(Ordering::SeqCst));
            }
        }
        engine.nop().wait().unwrap();
    }
}

#[test]
fn trees_of_all_depths_answer_right_from_everywhere() {
    let dir = dir();
    let engine = Engine::start(config().shards(2)).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    for (depth, fan_out) in [(1, 31), (2, 31), (3, 11), (4, 5), (5, 4), (6, 3), (7, 2), (8, 2)] {
        let tree = Arc::new(Tree::new(depth, fan_out));
        let path = dir.path().join(format!("tree{depth}"));
        std::fs::write(&path, &tree.bytes).unwrap();
        let keys: Vec<u64> = (0..40).map(|n| n * 7919 % (2 * tree.keys + 3)).collect();
        for open in [Open::read(), Open::read().buffered(), Open::read().uncached()] {
            let file = engine.open(&path, open).wait().unwrap();
            for &key in &keys {
                let found = file.walk(tree.root.clone(), Lookup { key }).wait().unwrap();
                assert_eq!(found, expected(&tree, key), "key {key}, depth {depth}");
            }
            let walks = keys.iter().map(|&key| (tree.root.clone(), Lookup { key }));
            let batch = file.walk_many(walks.clone()).depth(7).wait().unwrap();
            for (&key, found) in keys.iter().zip(batch) {
                assert_eq!(found.unwrap(), expected(&tree, key), "key {key}, depth {depth}, in a batch");
            }
            // From Tokio, all concurrently, and from a shard, alone and as a batch.
            let tasks: Vec<_> = keys
                .iter()
                .map(|&key| {
                    let (file, root) = (file.clone(), tree.root.clone());
                    runtime.spawn(async move { (key, file.walk(root, Lookup { key }).await.unwrap()) })
                })
                .collect();
            for task in tasks {
                let (key, found) = runtime.block_on(task).unwrap();
                assert_eq!(found, expected(&tree, key), "key {key}, depth {depth}, from Tokio");
            }
            let (inner, on_shard) = (tree.clone(), keys.clone());
            let task = engine.spawn_on_shard(1, Class::DEFAULT, move || async move {
                for &key in &on_shard {
                    let found = file.walk(inner.root.clone(), Lookup { key }).await.unwrap();
                    assert_eq!(found, expected(&inner, key), "key {key}, depth {depth}, on a shard");
                }
                let walks = on_shard.iter().map(|&key| (inner.root.clone(), Lookup { key }));
                let batch = file.walk_many(walks).await.unwrap();
                for (&key, found) in on_shard.iter().zip(batch) {
                    assert_eq!(found.unwrap(), expected(&inner, key), "key {key}, depth {depth}");
                }
                let (sum, pages) =
                    file.walk(inner.root.clone(), Sum::new(u32::MAX)).hops_max(5_000).await.unwrap();
                assert_eq!(u64::from(pages) * tree::PAGE, inner.bytes.len() as u64);
                let all = (0..inner.keys).fold(0u64, |sum, n| sum.wrapping_add(value_of(2 * n)));
                assert_eq!(sum, all);
            });
            task.wait().unwrap();
        }
    }
    let stats = engine.stats().wait().unwrap();
    assert_eq!(stats.walks.boxed_states, 0);
    assert!(stats.walks.hops > stats.walks.walks && stats.walks.steps >= stats.walks.hops);
    assert!(stats.shards.iter().all(|shard| shard.slots_used == 0));
    assert_eq!(stats.memory.held_bytes, 0);
}

#[test]
fn a_walk_wakes_once_and_a_batch_does_too() {
    let (engine, file, _dir) = scene(config().inbox_depth(1));
    let hops = |n: u64| {
        let mut left = n;
        steps(move |_, at| {
            left -= 1;
            match left {
                0 => Step::Done(at.start),
                _ => Step::Read(at.start + 512..at.end + 512),
            }
        })
    };
    let (last, wakes) = wakes_of(&engine, file.walk(0..512, hops(20)).into_future());
    assert_eq!((last.unwrap(), wakes), (19 * 512, 1));
    // A thousand walks through an inbox for one message.
    let walks = (0..1_000).map(|n| (n * 512..n * 512 + 512, hops(1 + n % 5)));
    let (all, wakes) = wakes_of(&engine, file.walk_many(walks).into_future());
    assert_eq!(wakes, 1);
    for (n, last) in all.unwrap().into_iter().enumerate() {
        assert_eq!(last.unwrap(), (n + n % 5) as u64 * 512);
    }
    let stats = engine.stats().wait().unwrap().walks;
    assert_eq!((stats.walks, stats.wakes, stats.hops), (1_001, 2, 20 + 3_000));
    // On the shard: a task is polled twice, for any number of hops.
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let mut walk = file.walk(0..512, hops(20)).into_future();
        let mut polls = 0;
        poll_fn(|context| {
            polls += 1;
            Pin::new(&mut walk).poll(context)
        })
        .await
        .unwrap();
        polls
    });
    assert_eq!(task.wait().unwrap(), 2);
}

#[test]
fn each_of_sixteen_comes_once() {
    let (engine, file, _dir) = scene(config());
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        for count in 1..=16u64 {
            let mut seen = Vec::new();
            let walk = steps(move |block, at| {
                if seen.is_empty() && at == (0..10) {
                    seen.push(u64::MAX);
                    return Step::read_each((0..count).map(|n| n * 60_001..n * 60_001 + 100 + n));
                }
                assert_eq!(&block[..], &bytes_of(at.clone())[..]);
                seen.push(at.start);
                if seen.len() as u64 <= count { Step::Wait } else { Step::Done(seen.clone()) }
            });
            let mut seen = file.walk(0..10, walk).await.unwrap();
            seen.sort();
            let mut all: Vec<u64> = (0..count).map(|n| n * 60_001).collect();
            all.push(u64::MAX);
            assert_eq!(seen, all);
        }
    });
    task.wait().unwrap();
}

/// Reads that are not awaited any more reach no step, and their memory and slots are released.
#[test]
fn a_new_read_or_the_end_drops_what_is_under_way() {
    let (engine, file, _dir) = scene(config());
    for round in 0..200u64 {
        // Any error of Forebay's own.
        let mut failure = Some(error_of(file.read(LEN..LEN + 1).wait()));
        // The first of sixteen decides: another sixteen, one read, the end, or a failure.
        let mut asked = 0;
        let walk = steps(move |block, at| {
            assert_eq!(&block[..], &bytes_of(at.clone())[..]);
            asked += 1;
            let wave = asked;
            assert!(at.start >= (wave - 1) << 16 && at.start < wave << 16, "{at:?} in wave {wave}");
            let next = (0..16).map(|n| (wave << 16) + n * 4096..(wave << 16) + n * 4096 + 4096);
            match (wave, round % 4) {
                (1 | 2, _) => Step::read_each(next),
                (3, 0) => Step::Read((3 << 16) + 7..(3 << 16) + 9),
                (_, 1) => Step::Fail(failure.take().expect("one failure")),
                (_, 2) => panic!("while others are under way"),
                _ => Step::Done(wave),
            }
        });
        let result = file.walk(0..1, walk).wait();
        match round % 4 {
            0 => assert_eq!(result.unwrap(), 4),
            3 => assert_eq!(result.unwrap(), 3),
            1 => assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof { got: 0 }),
            _ => assert_eq!(result.unwrap_err().kind(), ErrorKind::TaskPanicked),
        }
    }
    assert_at_rest(&engine);
}

/// Waits until memory and slots are released.
fn assert_at_rest(engine: &Engine) {
    loop {
        let stats = engine.stats().wait().unwrap();
        assert!(stats.shards.iter().all(|shard| shard.stray_completions == 0), "{stats:?}");
        if stats.memory.held_bytes == 0 && stats.shards.iter().all(|shard| shard.slots_used == 0) {
            return;
        }
        std::thread::yield_now();
    }
}

fn error_of<T>(result: Result<T, Error>) -> Error {
    match result {
        Err(error) => error,
        Ok(_) => panic!("an error was expected"),
    }
}

#[test]
fn faults_name_operation_hop_path_and_place() {
    let (engine, file, dir) = scene(config());
    let path = dir.path().join("a");
    let third = |range: Range<u64>| {
        let mut hops = 0;
        steps::<_, ()>(move |_, at| {
            hops += 1;
            if hops < 3 { Step::Read(at.start + 1..at.end + 1) } else { Step::Read(range.clone()) }
        })
    };
    let backwards = Range { start: 9, end: 3 };
    let cases = [
        (LEN - 5..LEN + 5, ErrorKind::UnexpectedEof { got: 5 }),
        (LEN + 4096..LEN + 4097, ErrorKind::UnexpectedEof { got: 0 }),
        (backwards.clone(), ErrorKind::InvalidInput),
        (7..7, ErrorKind::InvalidInput),
        (u64::MAX - 5..u64::MAX, ErrorKind::InvalidInput),
        (0..8 << 30, ErrorKind::TooLarge { limit: 1 << 30 }),
    ];
    for (range, kind) in cases {
        let error = error_of(file.walk(0..1, third(range.clone())).wait());
        assert_eq!((error.kind(), error.operation(), error.hop()), (kind, "walk", Some(4)), "{error}");
        assert_eq!(error.range(), Some((range.start, range.end.saturating_sub(range.start))), "{error}");
        assert_eq!(error.path(), Some(path.as_path()));
        assert!(error.to_string().contains("at hop 4"), "{error}");
        let error = error_of(file.walk(range.clone(), third(range)).wait());
        assert_eq!((error.kind(), error.hop()), (kind, Some(1)), "{error}");
    }
    type Answer = fn() -> Step<(), Error>;
    let answers: [(&str, Answer); 4] = [
        ("none is to come", || Step::Wait),
        ("no range at all", || Step::read_each([])),
        ("more than 16", || Step::read_each((0..17).map(|n| n..n + 1))),
        ("the range is empty", || Step::read_each([0..1, 4..4])),
    ];
    for (words, answer) in answers {
        let error = error_of(file.walk(0..1, steps(move |_, _| answer())).wait());
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(words), "{error}");
    }
    assert_at_rest(&engine);
}

#[test]
fn a_cycle_ends_at_the_hop_limit() {
    let (_engine, file, _dir) = scene(config());
    let circle = || {
        let mut hops = 0u32;
        steps(move |_, at| {
            hops += 1;
            if hops == 1_000 { Step::Done(hops) } else { Step::Read(at) }
        })
    };
    let error = error_of(file.walk(0..1, circle()).wait());
    assert_eq!((error.kind(), error.hop()), (ErrorKind::TooManyHops { limit: 64 }, Some(65)), "{error}");
    assert!(error.to_string().contains("within 64 hops"), "{error}");
    assert_eq!(file.walk(0..1, circle()).hops_max(1_000).wait().unwrap(), 1_000);
    let error = error_of(file.walk(0..1, circle()).hops_max(999).wait());
    assert_eq!(error.kind(), ErrorKind::TooManyHops { limit: 999 });
    assert_eq!(
        error_of(file.walk(0..1, circle()).hops_max(0).wait()).kind(),
        ErrorKind::TooManyHops { limit: 0 }
    );
}

#[test]
fn a_panic_is_the_walks_error_and_nobody_elses() {
    let (engine, file, _dir) = scene(config());
    let walk = |panics: bool| {
        steps(move |_, at| {
            if panics && at.start > 0 {
                panic!("the step's words");
            }
            if at.start == 0 { Step::Read(40..50) } else { Step::Done(()) }
        })
    };
    let results = file.walk_many((0..40).map(|n| (0..1, walk(n % 2 == 1)))).wait().unwrap();
    for (n, result) in results.into_iter().enumerate() {
        match (n % 2, result) {
            (0, result) => result.unwrap(),
            (_, result) => {
                let error = error_of(result);
                assert_eq!((error.kind(), error.hop()), (ErrorKind::TaskPanicked, Some(2)));
                assert!(error.to_string().contains("the step's words"), "{error}");
            }
        }
    }
    assert_at_rest(&engine);
    assert_eq!(engine.close().wait().unwrap().lost_shards, 0);
}

#[test]
fn a_failure_of_its_own_comes_back_as_it_is() {
    let dir = dir();
    let tree = Tree::new(2, 4);
    let mut bytes = tree.bytes.clone();
    bytes[0] ^= 1;
    std::fs::write(dir.path().join("a"), &bytes).unwrap();
    let engine = Engine::start(config().shards(1)).unwrap();
    let file = engine.open(dir.path().join("a"), Open::read()).wait().unwrap();
    let lookup = |key| file.walk(tree.root.clone(), Lookup { key }).wait();
    assert!(matches!(lookup(0), Err(LookupError::Corrupt(0))));
    assert_eq!(lookup(8).unwrap(), expected(&tree, 8));
    engine.close().wait().unwrap();
    assert!(matches!(lookup(8), Err(LookupError::Io(error)) if error.kind() == ErrorKind::EngineClosed));
}

#[test]
fn large_states_and_results_are_boxed_and_counted() {
    let (engine, file, _dir) = scene(config());
    let boxed = || engine.stats().wait().unwrap().walks.boxed_states;
    fn state<const BYTES: usize>() -> impl Walk<Output = u8, Error = Error> {
        let state = [7u8; BYTES];
        steps(move |_, _| Step::Done(state[BYTES - 1]))
    }
    assert_eq!(file.walk(0..1, state::<1>()).wait().unwrap(), 7);
    assert_eq!(file.walk(0..1, state::<128>()).wait().unwrap(), 7);
    assert_eq!(boxed(), 0);
    assert_eq!(file.walk(0..1, state::<145>()).wait().unwrap(), 7);
    assert_eq!(boxed(), 1);
    assert_eq!(file.walk(0..1, steps(|_, _| Step::Done([1u8; 4096]))).wait().unwrap(), [1u8; 4096]);
    assert_eq!(boxed(), 2);
}

/// A walk keeps blocks, and slices of them, without copying; they outlive it and the engine.
#[test]
fn blocks_may_be_kept() {
    let (engine, file, _dir) = scene(config());
    let mut kept = Vec::new();
    let walk = steps(move |block, at| {
        kept.extend(block.slice(10..20));
        match kept.len() {
            9 => Step::Done((std::mem::take(&mut kept), block.clone())),
            _ => Step::Read(at.start + 100_000..at.end + 100_000),
        }
    });
    let (parts, last) = file.walk(0..5_000, walk).wait().unwrap();
    drop((file, engine));
    for (n, part) in (0..).zip(&parts) {
        assert_eq!(&part[..], &bytes_of(n * 100_000 + 10..n * 100_000 + 20)[..]);
    }
    assert_eq!(&last[..], &bytes_of(800_000..805_000)[..]);
}

/// A page cache completes immediately, again and again: tasks and other completions still have their turns. In each turn of the
/// shard this task runs, so the steps that see the same count of it ran in one turn.
#[test]
fn walks_that_never_wait_give_way() {
    let dir = dir();
    write_file(&dir.path().join("a"), LEN);
    let engine = Engine::start(config().shards(1)).unwrap();
    let file = engine.open(dir.path().join("a"), Open::read().buffered()).wait().unwrap();
    // The kernel may reclaim others.
    #[cfg(target_os = "linux")]
    let Some(_loaded) = crate::adaptive::load(&dir.path().join("a"), 0..LEN / 4096) else { return };
    let turns = Arc::new(AtomicU64::new(0));
    let walks = 100;
    let seen = Arc::new(std::sync::Mutex::new(Vec::<(u64, u64)>::new()));
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let (counted, over) = (turns.clone(), Arc::new(AtomicU64::new(0)));
        let stop = over.clone();
        let ticking = shard::spawn(async move {
            while stop.load(Ordering::Relaxed) == 0 {
                counted.fetch_add(1, Ordering::Relaxed);
                shard::yield_now().await;
            }
        })
        .unwrap();
        let walk = |number: u64| {
            let (turns, seen) = (turns.clone(), seen.clone());
            let mut hops = 0;
            steps(move |_, at| {
                seen.lock().unwrap().push((turns.load(Ordering::Relaxed), number));
                hops += 1;
                if hops == 64 { Step::Done(()) } else { Step::Read(at.start + 4096..at.end + 4096) }
            })
        };
        for result in file.walk_many((0..walks).map(|n| (n..n + 100, walk(n)))).await.unwrap() {
            result.unwrap();
        }
        over.store(1, Ordering::Relaxed);
        ticking.await.unwrap();
        std::mem::take(&mut *seen.lock().unwrap())
    });
    let seen = task.wait().unwrap();
    assert_eq!(seen.len() as u64, 64 * walks);
    let (mut by_turn, mut by_walk) = (std::collections::BTreeMap::new(), std::collections::BTreeMap::new());
    for (turn, walk) in seen {
        *by_turn.entry(turn).or_insert(0u32) += 1;
        *by_walk.entry((turn, walk)).or_insert(0u32) += 1;
    }
    assert!(by_turn.values().all(|&steps| steps <= 256), "{by_turn:?}");
    assert!(by_walk.values().all(|&hops| hops <= 8), "{by_walk:?}");
    let stats = engine.stats().wait().unwrap().walks;
    assert!(stats.inline_blocks > stats.steps / 2, "what the page cache has needs no driver: {stats:?}");
}

#[test]
fn a_slow_step_is_counted_and_named() {
    struct Sluggish;
    impl Walk for Sluggish {
        type Output = ();
        type Error = Error;
        fn step(&mut self, _: &Block, at: Range<u64>) -> Step<(), Error> {
            let began = Instant::now();
            while at.start >= 64 && began.elapsed().as_micros() < 300 {}
            if at.start == 128 { Step::Done(()) } else { Step::Read(at.start + 1..at.end + 1) }
        }
    }
    let (engine, file, _dir) = scene(config());
    file.walk(0..1, Sluggish).hops_max(1_000).wait().unwrap();
    let stats = engine.stats().wait().unwrap().walks;
    let slow = stats.slow_steps.iter().find(|slow| slow.walk.contains("Sluggish")).expect("it is named");
    // Two of them are timed even where one step in 32 is.
    assert!(slow.steps >= 2 && slow.steps <= 129 && slow.longest_ns >= 300_000, "{stats:?}");
}

/// Reads of walks release their memory by themselves: a read without memory waits for another's end.
#[test]
fn many_walks_share_little_memory() {
    let (engine, file, _dir) =
        scene(config().arena_bytes(2 << 20).arena_bytes_max(2 << 20).overflow_bytes_max(0).queue_depth(1024));
    let walk = |number: u64| {
        let mut hops = 0;
        steps(move |block, at| {
            assert_eq!(&block[..], &bytes_of(at.clone())[..]);
            hops += 1;
            let start = (number * 7919 + hops * 104_729) % (LEN - 20_000);
            if hops == 5 { Step::Done(()) } else { Step::Read(start..start + 20_000) }
        })
    };
    let walks = (0..600).map(|n| (n..n + 20_000, walk(n)));
    let results = file.walk_many(walks).depth(600).wait().unwrap();
    for result in results {
        result.unwrap();
    }
    let stats = engine.stats().wait().unwrap();
    assert_eq!(stats.memory.overflow_allocations, 0);
    assert!(stats.shards[0].memory_waits > 0, "the arena was too large for this test");
}

#[test]
fn a_walk_belongs_to_its_class() {
    let (engine, file, _dir) = scene(config());
    let class = engine.class("lookups", 100).unwrap();
    let walk = || {
        steps(move |_, at| {
            assert_eq!(shard::class(), class);
            if at.start == 3 { Step::Done(()) } else { Step::Read(at.start + 1..at.end + 1) }
        })
    };
    file.walk(0..1, walk()).class(class).wait().unwrap();
    file.walk_many([(1..2, walk())]).class(class).wait().unwrap().pop().unwrap().unwrap();
    let stats = engine.stats().wait().unwrap();
    let flow = stats.flows.iter().find(|flow| flow.class == "lookups").expect("its flow");
    assert_eq!((flow.reads, flow.read_bytes_asked), (7, 7));
}

#[test]
fn waiting_where_it_would_never_end_is_refused() {
    let (engine, file, _dir) = scene(config());
    let inner = file.clone();
    let walk = |file: File| {
        steps(move |_, _| {
            let error = error_of(file.walk(0..1, steps(|_, _| Step::Done(()))).wait());
            Step::Done(error.kind())
        })
    };
    assert_eq!(file.walk(0..1, walk(inner.clone())).wait().unwrap(), ErrorKind::WaitOnShard);
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let many = inner.walk_many([(0..1, walk(inner.clone()))]);
        error_of(many.wait()).kind()
    });
    assert_eq!(task.wait().unwrap(), ErrorKind::WaitOnShard);
}
