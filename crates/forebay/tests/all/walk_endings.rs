//! Every way in which a walk can end, on both real drivers: its state is dropped exactly once, in its slot or
//! its box, and slots and memory are released.

use std::future::{Future, IntoFuture, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::common::{bytes_of, config, dir, hold, write_file};
use crate::tree::{Entry, Ledger};
use forebay::{Block, Class, Engine, Error, ErrorKind, File, Open, Step, Walk, shard};

const LEN: u64 = 1 << 20;
/// Sizes of states that lie in the slot, and in a box.
const SMALL: usize = 8;
const LARGE: usize = 1_000;

fn scene() -> (Engine, File, tempfile::TempDir) {
    let dir = dir();
    write_file(&dir.path().join("a"), LEN);
    let engine = Engine::start(config().shards(1)).unwrap();
    let file = engine.open(dir.path().join("a"), Open::read()).wait().unwrap();
    (engine, file, dir)
}

/// The way in which a walk ends by itself, after some hops with several reads each.
#[derive(Clone, Copy, Debug)]
enum End {
    Done,
    Fail,
    Panic,
    Beyond,
    HopLimit,
    Waits,
    Never,
}

struct Walker<const BYTES: usize> {
    end: End,
    hops: u64,
    padding: [u8; BYTES],
    _entry: Entry,
}

fn walker<const BYTES: usize>(ledger: &Ledger, end: End) -> Walker<BYTES> {
    Walker { end, hops: 0, padding: [5; BYTES], _entry: ledger.entry() }
}

impl<const BYTES: usize> Walk for Walker<BYTES> {
    type Output = u64;
    type Error = Error;

    fn step(&mut self, block: &Block, at: Range<u64>) -> Step<u64, Error> {
        assert_eq!(&block[..], &bytes_of(at.clone())[..]);
        assert!(self.padding.iter().all(|&byte| byte == 5));
        self.hops += 1;
        let place = |n: u64| (self.hops * 16 + n) * 7_919 % (LEN - 4096);
        match self.end {
            End::Never | End::HopLimit => {}
            _ if self.hops < 5 => {}
            End::Done => return Step::Done(self.hops),
            End::Fail => return Step::Fail(own_failure()),
            End::Panic => panic!("as it should"),
            End::Beyond => return Step::Read(LEN - 1..LEN + 1),
            End::Waits => return Step::Wait,
        }
        match self.hops % 3 {
            _ if matches!(self.end, End::Waits) => Step::Read(place(0)..place(0) + 4096),
            0 => Step::read_each((0..16).map(|n| place(n)..place(n) + 4096)),
            n => Step::Read(place(n)..place(n) + 100 * n),
        }
    }
}

/// Returns an error of Forebay's that a step can make without waiting.
fn own_failure() -> Error {
    let refused = Engine::start(config().shards(0));
    refused.err().unwrap_or_else(|| panic!("no engine has no shards"))
}

/// Waits until all slots and all memory are released.
fn at_rest(engine: &Engine) {
    loop {
        let stats = engine.stats().wait().unwrap();
        assert!(stats.shards.iter().all(|shard| shard.stray_completions == 0), "{stats:?}");
        if stats.memory.held_bytes == 0
            && stats.shards.iter().chain(&stats.worker_rings).all(|shard| shard.slots_used == 0)
        {
            return;
        }
        std::thread::yield_now();
    }
}

fn settled(ledger: &Ledger, what: &str) {
    let (made, dropped) = ledger.counts();
    assert_eq!(made, dropped, "{what}");
}

/// Checks the result of a walk that ends by itself.
fn is_right(end: End, result: Result<u64, Error>) {
    match (end, result.map_err(|error| error.kind())) {
        (End::Done, Ok(hops)) => assert_eq!(hops, 5),
        (End::Fail, Err(ErrorKind::InvalidInput)) => {}
        (End::Panic, Err(ErrorKind::TaskPanicked)) => {}
        (End::Beyond, Err(ErrorKind::UnexpectedEof { got: 1 })) => {}
        (End::HopLimit, Err(ErrorKind::TooManyHops { limit: 64 })) => {}
        (End::Waits, Err(ErrorKind::InvalidInput)) => {}
        (end, result) => panic!("{end:?} came to {result:?}"),
    }
}

fn ends_by_itself<const BYTES: usize>() {
    let (engine, file, _dir) = scene();
    let ledger = Ledger::default();
    let ends = [End::Done, End::Fail, End::Panic, End::Beyond, End::HopLimit, End::Waits];
    for end in ends {
        is_right(end, file.walk(0..9, walker::<BYTES>(&ledger, end)).wait());
        settled(&ledger, "alone, from elsewhere");
        let batch = (0..20).map(|_| (0..9, walker::<BYTES>(&ledger, end)));
        for result in file.walk_many(batch).depth(6).wait().unwrap() {
            is_right(end, result);
        }
        settled(&ledger, "in a batch");
        let (inner, entries) = (file.clone(), ledger.clone());
        let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            let result = inner.walk(0..9, walker::<BYTES>(&entries, end)).await;
            settled(&entries, "on the shard");
            result
        });
        is_right(end, task.wait().unwrap());
    }
    at_rest(&engine);
}

#[test]
fn by_itself() {
    ends_by_itself::<SMALL>();
    ends_by_itself::<LARGE>();
}

type MovingWalk = Pin<Box<dyn Future<Output = Result<u64, Error>> + Send>>;

/// Returns a walk that may move to other threads.
fn moving<const BYTES: usize>(file: &File, ledger: &Ledger, end: End) -> MovingWalk {
    let (file, walk) = (file.clone(), walker::<BYTES>(ledger, end));
    Box::pin(async move { file.walk(0..9, walk).hops_max(u32::MAX).await })
}

/// Polls each once on the shard and returns them.
fn begun_on_the_shard(engine: &Engine, mut walks: Vec<MovingWalk>) -> Vec<MovingWalk> {
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        poll_fn(|context| {
            for walk in &mut walks {
                assert!(walk.as_mut().poll(context).is_pending());
            }
            Poll::Ready(())
        })
        .await;
        walks
    });
    task.wait().unwrap()
}

#[test]
fn by_being_dropped_anywhere() {
    let (engine, file, _dir) = scene();
    let ledger = Ledger::default();
    let many = |end| -> Vec<MovingWalk> {
        let small = (0..10).map(|_| moving::<SMALL>(&file, &ledger, end));
        small.chain((0..10).map(|_| moving::<LARGE>(&file, &ledger, end))).collect()
    };
    // Never polled.
    drop(file.walk(0..9, walker::<SMALL>(&ledger, End::Never)));
    drop(file.walk(0..9, walker::<LARGE>(&ledger, End::Never)).into_future());
    drop(file.walk_many([(0..9, walker::<LARGE>(&ledger, End::Never))]).into_future());
    settled(&ledger, "never polled");
    for round in 0..20 {
        // Started on the shard, dropped here: also a walk that has ended by then.
        for end in [End::Never, End::Done, End::Panic] {
            drop(begun_on_the_shard(&engine, many(end)));
        }
        at_rest(&engine);
        settled(&ledger, "dropped on a foreign thread");
        // Started on the shard, polled here, then dropped.
        let mut walks = begun_on_the_shard(&engine, many(End::Never));
        for walk in &mut walks {
            assert!(walk.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        if round % 2 == 0 {
            engine.nop().wait().unwrap();
        }
        drop(walks);
        at_rest(&engine);
        settled(&ledger, "dropped after it was taken over");
        // Started here, dropped on the shard and here.
        for here in [true, false] {
            let mut walks = many(End::Never);
            for walk in &mut walks {
                assert!(walk.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            }
            if here {
                drop(walks);
            } else {
                engine.spawn_on_shard(0, Class::DEFAULT, move || async move { drop(walks) }).wait().unwrap();
            }
        }
        // A batch, of which a part has started; and a walk whose time is up.
        let batch = (0..50).map(|_| (0..9, walker::<SMALL>(&ledger, End::Never)));
        let mut batch = file.walk_many(batch).depth(5).hops_max(u32::MAX).into_future();
        assert!(Pin::new(&mut batch).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(batch);
        let walk = moving::<LARGE>(&file, &ledger, End::Never);
        let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            shard::timeout(Duration::from_micros(300), walk).await.map(drop)
        });
        assert_eq!(task.wait().unwrap().unwrap_err().kind(), ErrorKind::Elapsed);
        at_rest(&engine);
        settled(&ledger, "dropped");
    }
}

#[test]
fn begun_on_the_shard_and_ended_here() {
    let (engine, file, _dir) = scene();
    let ledger = Ledger::default();
    for _ in 0..20 {
        let walks = (0..20).map(|_| moving::<SMALL>(&file, &ledger, End::Done)).collect();
        for walk in begun_on_the_shard(&engine, walks) {
            assert_eq!(futures::executor::block_on(walk).unwrap(), 5);
        }
        settled(&ledger, "taken over");
    }
    at_rest(&engine);
}

/// The step of a walk drops the future that waits for it.
#[test]
fn by_its_own_step() {
    struct Own {
        future: Arc<Mutex<Option<MovingWalk>>>,
        last: fn() -> Step<u64, Error>,
        _entry: Entry,
    }
    impl Walk for Own {
        type Output = u64;
        type Error = Error;
        fn step(&mut self, _: &Block, at: Range<u64>) -> Step<u64, Error> {
            if at.start == 3 {
                drop(self.future.lock().unwrap().take());
                return (self.last)();
            }
            Step::Read(at.start + 1..at.end + 1)
        }
    }
    let (engine, file, _dir) = scene();
    let ledger = Ledger::default();
    let lasts: [fn() -> Step<u64, Error>; 5] = [
        || Step::Done(1),
        || Step::Wait,
        || Step::Read(5..6),
        || Step::read_each([5..6, 7..8]),
        || panic!("as it should"),
    ];
    for last in lasts {
        for on_shard in [true, false] {
            let place = Arc::new(Mutex::new(None));
            let walk = Own { future: place.clone(), last, _entry: ledger.entry() };
            let inner = file.clone();
            let mut future: MovingWalk = Box::pin(async move { inner.walk(0..1, walk).await });
            let begin = move || {
                // Locked while it is polled: the step waits for its future to be in place.
                let mut slot = place.lock().unwrap();
                assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
                *slot = Some(future);
            };
            if on_shard {
                engine.spawn_on_shard(0, Class::DEFAULT, move || async move { begin() }).wait().unwrap()
            } else {
                begin()
            }
            at_rest(&engine);
            settled(&ledger, "dropped by its own step");
        }
    }
    assert_eq!(engine.close().wait().unwrap().lost_shards, 0);
}

#[test]
fn by_the_engines_end() {
    for round in 0..20 {
        let (engine, file, _dir) = scene();
        let ledger = Ledger::default();
        let mut context = Context::from_waker(Waker::noop());
        // On the shard: in tasks, started by hand and handed out; from elsewhere: alone and in a batch. In every second round their
        // messages are still in the inbox when the end starts.
        let there = begun_on_the_shard(&engine, vec![moving::<SMALL>(&file, &ledger, End::Never)]);
        let tasks: Vec<_> = (0..5)
            .map(|_| {
                let walk = moving::<LARGE>(&file, &ledger, End::Never);
                engine.spawn_on_shard(0, Class::DEFAULT, move || walk)
            })
            .collect();
        let held = (round % 2 == 0).then(|| hold(&engine));
        let mut here: Vec<_> = (0..20).map(|_| moving::<SMALL>(&file, &ledger, End::Never)).collect();
        for walk in &mut here {
            assert!(walk.as_mut().poll(&mut context).is_pending());
        }
        let batch = (0..50).map(|_| (0..9, walker::<LARGE>(&ledger, End::Never)));
        let mut batch = file.walk_many(batch).depth(7).hops_max(u32::MAX).into_future();
        assert!(Pin::new(&mut batch).poll(&mut context).is_pending());
        let closing = engine.close();
        drop(held);
        assert_eq!(closing.wait().unwrap().leaked_operations, 0);
        for mut walk in here.into_iter().chain(there) {
            match walk.as_mut().poll(&mut context) {
                Poll::Ready(result) => assert_eq!(result.unwrap_err().kind(), ErrorKind::EngineClosed),
                Poll::Pending => panic!("a walk has no answer after close"),
            }
        }
        let Poll::Ready(results) = Pin::new(&mut batch).poll(&mut context) else {
            panic!("a batch has no answer after close")
        };
        for result in results.unwrap() {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::EngineClosed);
        }
        for task in tasks {
            // Its message may never have arrived, or have found the engine closing: then the task ended, with its walk's error.
            let kind = match task.wait() {
                Ok(walked) => walked.unwrap_err().kind(),
                Err(error) => error.kind(),
            };
            assert!(matches!(kind, ErrorKind::TaskCancelled | ErrorKind::EngineClosed), "{kind:?}");
        }
        settled(&ledger, "the engine's end");
    }
}

#[test]
fn by_the_shards_death() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("in a waker");
        }
    }
    let (engine, file, _dir) = scene();
    let ledger = Ledger::default();
    let mut context = Context::from_waker(Waker::noop());
    let there = begun_on_the_shard(&engine, vec![moving::<LARGE>(&file, &ledger, End::Never)]);
    let walk = moving::<SMALL>(&file, &ledger, End::Never);
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || walk);
    let mut here: Vec<_> = (0..20).map(|_| moving::<SMALL>(&file, &ledger, End::Never)).collect();
    for walk in &mut here {
        assert!(walk.as_mut().poll(&mut context).is_pending());
    }
    // The end of a walk wakes a waker that panics.
    let mut last = moving::<SMALL>(&file, &ledger, End::Done);
    let waker = Waker::from(Arc::new(Panics));
    // On a running shard it may have ended before its poll has, and then no waker is called.
    let held = hold(&engine);
    assert!(last.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(held);
    assert_eq!(task.wait().unwrap_err().kind(), ErrorKind::ShardLost);
    assert_eq!(engine.close().wait().unwrap().lost_shards, 1);
    for mut walk in here.into_iter().chain(there) {
        match walk.as_mut().poll(&mut context) {
            Poll::Ready(result) => assert_eq!(result.unwrap_err().kind(), ErrorKind::ShardLost),
            Poll::Pending => panic!("a walk has no answer after its shard's death"),
        }
    }
    drop(last);
    settled(&ledger, "the shard's death");
}

/// In the rings of a Tokio runtime's workers, where the steps run under a ring's lock.
#[cfg(all(feature = "tokio", target_os = "linux"))]
mod in_tasks {
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtimes() -> [Runtime; 2] {
        let multi = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        [multi, Builder::new_current_thread().enable_all().build().unwrap()]
    }

    /// Runs `work` in a task whose thread has a ring.
    fn run<T: Send + 'static>(
        runtime: &Runtime,
        file: &File,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let file = file.clone();
        let task = async move {
            // The first operation may still use a shard.
            file.read(0..1).await.unwrap();
            tokio::task::yield_now().await;
            work.await
        };
        runtime.block_on(async { tokio::spawn(task).await }).unwrap()
    }

    /// Returns the walks' steps, and how often rings submitted.
    fn counts(engine: &Engine) -> (u64, u64) {
        let stats = engine.stats().wait().unwrap();
        (stats.walks.steps, stats.worker_rings.iter().map(|ring| ring.enters).sum())
    }

    fn ends_by_itself<const BYTES: usize>() {
        for runtime in runtimes() {
            let (engine, file, _dir) = scene();
            let ledger = Ledger::default();
            let (inner, entries) = (file.clone(), ledger.clone());
            run(&runtime, &file, async move {
                for end in [End::Done, End::Fail, End::Panic, End::Beyond, End::HopLimit, End::Waits] {
                    is_right(end, inner.walk(0..9, walker::<BYTES>(&entries, end)).await);
                    let batch = (0..20).map(|_| (0..9, walker::<BYTES>(&entries, end)));
                    for result in inner.walk_many(batch).depth(6).await.unwrap() {
                        is_right(end, result);
                    }
                }
            });
            settled(&ledger, "in a task");
            at_rest(&engine);
            let (steps, enters) = counts(&engine);
            assert!(steps > 6 * 21 * 4);
            assert_eq!(
                enters > 100,
                engine.health().worker_rings.is_some(),
                "walks run in the worker's ring"
            );
            drop(runtime);
            assert_eq!(engine.close().wait().unwrap().leaked_operations, 0);
        }
    }

    #[test]
    fn by_itself() {
        ends_by_itself::<SMALL>();
        ends_by_itself::<LARGE>();
    }

    #[test]
    fn by_being_dropped() {
        for runtime in runtimes() {
            let (engine, file, _dir) = scene();
            let ledger = Ledger::default();
            for round in 0..20 {
                let (inner, entries) = (file.clone(), ledger.clone());
                let walks = run(&runtime, &file, async move {
                    let mut walks: Vec<_> = (0..20)
                        .map(|n| {
                            let end = [End::Never, End::Done, End::Panic][n % 3];
                            moving::<SMALL>(&inner, &entries, end)
                        })
                        .collect();
                    for walk in &mut walks {
                        let _ = walk.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    }
                    let batch = (0..50).map(|_| (0..9, walker::<LARGE>(&entries, End::Never)));
                    let mut batch = inner.walk_many(batch).depth(5).hops_max(u32::MAX).into_future();
                    let polled = Pin::new(&mut batch).poll(&mut Context::from_waker(Waker::noop()));
                    assert!(polled.is_pending());
                    if round % 2 == 0 {
                        inner.read(0..1).await.unwrap();
                    }
                    drop(batch);
                    // Half of them on this worker, and half on a thread outside of the runtime.
                    walks.split_off(10)
                });
                drop(walks);
                at_rest(&engine);
                settled(&ledger, "dropped");
            }
        }
    }

    /// A walk continues while its task is not polled, so that its permits and memory are released: no other task waits for a busy
    /// one.
    #[test]
    fn without_its_task() {
        for runtime in runtimes() {
            let (engine, file, _dir) = scene();
            let ledger = Ledger::default();
            let (inner, entries) = (file.clone(), ledger.clone());
            run(&runtime, &file, async move {
                let mut walks: Vec<_> =
                    (0..10).map(|_| moving::<LARGE>(&inner, &entries, End::Done)).collect();
                let mut pending: Vec<_> = Vec::new();
                for mut walk in walks.drain(..) {
                    if walk.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                        pending.push(walk);
                    }
                }
                // No future of a walk is polled from here on.
                while entries.counts().1 < entries.counts().0 {
                    inner.read(0..1).await.unwrap();
                    tokio::task::yield_now().await;
                }
                for walk in pending {
                    assert_eq!(walk.await.unwrap(), 5);
                }
            });
            at_rest(&engine);
        }
    }

    /// The walks continue, ten milliseconds a hop at worst, when their runtime was dropped or is idle.
    #[test]
    fn after_their_runtime() {
        for runtime in runtimes() {
            let (engine, file, _dir) = scene();
            let ledger = Ledger::default();
            let begin = || {
                let (inner, entries) = (file.clone(), ledger.clone());
                run(&runtime, &file, async move {
                    let mut walks: Vec<_> =
                        (0..10).map(|_| moving::<SMALL>(&inner, &entries, End::Done)).collect();
                    walks.retain_mut(|walk| {
                        walk.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
                    });
                    walks
                })
            };
            for walk in begin() {
                assert_eq!(futures::executor::block_on(walk).unwrap(), 5);
            }
            let walks = begin();
            drop(runtime);
            for walk in walks {
                assert_eq!(futures::executor::block_on(walk).unwrap(), 5);
            }
            settled(&ledger, "after their runtime");
            at_rest(&engine);
        }
    }

    #[test]
    fn by_the_engines_end() {
        for round in 0..10 {
            for runtime in runtimes() {
                let (engine, file, _dir) = scene();
                let ledger = Ledger::default();
                let (inner, entries) = (file.clone(), ledger.clone());
                let (walks, mut batch) = run(&runtime, &file, async move {
                    let mut walks: Vec<_> =
                        (0..20).map(|_| moving::<SMALL>(&inner, &entries, End::Never)).collect();
                    let batch = (0..50).map(|_| (0..9, walker::<LARGE>(&entries, End::Never)));
                    let mut batch = inner.walk_many(batch).depth(7).hops_max(u32::MAX).into_future();
                    for _ in 0..=round % 3 {
                        for walk in &mut walks {
                            let polled = walk.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                            assert!(polled.is_pending());
                        }
                    }
                    let polled = Pin::new(&mut batch).poll(&mut Context::from_waker(Waker::noop()));
                    assert!(polled.is_pending());
                    (walks, batch)
                });
                let report = engine.close().wait().unwrap();
                assert_eq!((report.leaked_operations, report.lost_shards), (0, 0));
                let mut context = Context::from_waker(Waker::noop());
                for mut walk in walks {
                    match walk.as_mut().poll(&mut context) {
                        Poll::Ready(result) => {
                            assert_eq!(result.unwrap_err().kind(), ErrorKind::EngineClosed)
                        }
                        Poll::Pending => panic!("a walk has no result after close"),
                    }
                }
                let Poll::Ready(results) = Pin::new(&mut batch).poll(&mut context) else {
                    panic!("a batch has no result after close")
                };
                for result in results.unwrap() {
                    assert_eq!(result.unwrap_err().kind(), ErrorKind::EngineClosed);
                }
                settled(&ledger, "the engine's end");
            }
        }
    }

    /// A step may do anything but wait: read by separate futures, drop files and other walks. It sees its walk's class.
    #[test]
    fn steps_come_back_into_the_engine() {
        type BegunRead = Pin<Box<dyn Future<Output = Result<Block, Error>> + Send>>;
        struct Wild {
            file: Option<File>,
            begun: Vec<BegunRead>,
            hops: u64,
            _entry: Entry,
        }
        impl Walk for Wild {
            type Output = u64;
            type Error = Error;
            fn step(&mut self, _: &Block, at: Range<u64>) -> Step<u64, Error> {
                assert_eq!(shard::class(), Class::BACKGROUND);
                self.hops += 1;
                if let Some(file) = &self.file {
                    let refused = file.read(0..1).wait().unwrap_err();
                    assert_eq!(refused.kind(), ErrorKind::WaitOnShard);
                    let mut read = Box::pin(file.read(0..1).owned().into_future());
                    let _ = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    self.begun.push(read);
                }
                match self.hops {
                    8 => {
                        // The file's last handle but the test's, and reads in flight.
                        self.file = None;
                        self.begun.clear();
                        Step::Read(0..8)
                    }
                    10 => Step::Done(self.hops),
                    _ => Step::Read(at.start + 4096..at.end + 4096),
                }
            }
        }
        for runtime in runtimes() {
            let (engine, file, dir) = scene();
            let ledger = Ledger::default();
            let (inner, entries, path) = (file.clone(), ledger.clone(), dir.path().join("a"));
            let opener = engine.clone();
            run(&runtime, &file, async move {
                for _ in 0..30 {
                    let other = opener.open(&path, Open::read()).await.unwrap();
                    let wild = || Wild {
                        file: Some(other.clone()),
                        begun: Vec::new(),
                        hops: 0,
                        _entry: entries.entry(),
                    };
                    let batch = (0..8).map(|_| (0..8, wild()));
                    let walks = inner.walk_many(batch).class(Class::BACKGROUND);
                    for result in walks.await.unwrap() {
                        assert_eq!(result.unwrap(), 10);
                    }
                }
            });
            settled(&ledger, "steps of all kinds");
            at_rest(&engine);
            assert_eq!(engine.close().wait().unwrap().lost_shards, 0);
        }
    }

    /// Blocks that lie in the page cache need no operation, and a visit runs some steps of such a walk: the next one continues.
    #[test]
    fn with_blocks_in_memory() {
        for runtime in runtimes() {
            let (engine, file, dir) = scene();
            let ledger = Ledger::default();
            let (opener, entries, path) = (engine.clone(), ledger.clone(), dir.path().join("a"));
            run(&runtime, &file, async move {
                let cached = opener.open(&path, Open::read().buffered()).await.unwrap();
                cached.read(0..LEN).await.unwrap();
                let walks = (0..10).map(|_| (0..9, walker::<SMALL>(&entries, End::HopLimit)));
                let walks = cached.walk_many(walks).hops_max(1_000).into_future();
                for result in tokio::time::timeout(Duration::from_secs(30), walks).await.unwrap().unwrap() {
                    assert_eq!(result.unwrap_err().kind(), ErrorKind::TooManyHops { limit: 1_000 });
                }
            });
            settled(&ledger, "in memory");
            at_rest(&engine);
        }
    }

    /// A walk without an end gives others of its runtime their turns.
    #[test]
    fn beside_others() {
        for runtime in runtimes() {
            let (_engine, file, _dir) = scene();
            let ledger = Ledger::default();
            let (inner, entries) = (file.clone(), ledger.clone());
            run(&runtime, &file, async move {
                let hot: Vec<_> =
                    (0..4).map(|_| tokio::spawn(moving::<SMALL>(&inner, &entries, End::Never))).collect();
                for _ in 0..20 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    inner.read(0..1).await.unwrap();
                }
                for task in hot {
                    task.abort();
                    assert!(task.await.unwrap_err().is_cancelled());
                }
            });
        }
    }
}
