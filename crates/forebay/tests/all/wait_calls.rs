//! Threads in `.wait()` carry out their operations themselves.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};

use crate::common::{self, bytes_of, dir, write_file};
use forebay::{
    Block, Class, ClassSpec, Config, Durability, Engine, Error, ErrorKind, File, Flush, Open, Priority,
    Stats, Step, Walk,
};

fn config() -> Config {
    // The pass with the threads driver switches the calls off, for the other tests.
    common::config().wait_calls(true).shards(1)
}

struct Bench {
    engine: Engine,
    file: File,
    dir: tempfile::TempDir,
}

impl Bench {
    fn with(config: Config) -> Bench {
        let dir = dir();
        write_file(&dir.path().join("a"), 1 << 20);
        let engine = Engine::start(config).unwrap();
        let file = engine.open(dir.path().join("a"), Open::create()).wait().unwrap();
        Bench { engine, file, dir }
    }

    fn stats(&self) -> Stats {
        self.engine.stats().wait().unwrap()
    }

    fn calls(&self) -> u64 {
        self.stats().wait_calls
    }

    /// Returns whether `run` made calls on this thread.
    fn makes_calls(&self, run: impl FnOnce()) -> bool {
        let before = self.calls();
        run();
        self.calls() > before
    }

    fn read(&self, page: u64) -> forebay::Block {
        self.file.read(page * 4096..page * 4096 + 4096).wait().unwrap()
    }
}

#[test]
fn every_kind_of_operation_moves_the_right_bytes_and_is_counted() {
    let bench = Bench::with(config());
    let (engine, file) = (&bench.engine, &bench.file);
    assert_eq!(&bench.read(3)[..], &bytes_of(3 * 4096..4 * 4096)[..]);
    assert_eq!(&file.read(5..10_000).wait().unwrap()[..], &bytes_of(5..10_000)[..], "widened and cut");
    assert_eq!(file.read_up_to((1 << 20) - 100..(1 << 20) + 100).wait().unwrap().len(), 100);
    let beyond = file.read((1 << 20) - 1..(1 << 20) + 1).wait().unwrap_err();
    assert!(matches!(beyond.kind(), ErrorKind::UnexpectedEof { .. }), "{beyond}");
    let (read, block) = file.read_into(8192, engine.block(8192).unwrap()).wait();
    assert_eq!((read.unwrap(), &block[..]), (8192, &bytes_of(8192..16_384)[..]));
    file.write(0, vec![1u8; 4096]).wait().unwrap();
    file.write(4096, vec![2u8; 4096]).durable(Durability::Data).wait().unwrap();
    file.write(8192, vec![3u8; 4096]).durable(Durability::All).flush(Flush::Blocking).wait().unwrap();
    file.write(1 << 20, vec![4u8; 4096]).wait().unwrap();
    file.sync(Durability::All).wait().unwrap();
    for (page, byte) in [(0, 1u8), (1, 2), (2, 3), (256, 4)] {
        assert_eq!(&bench.read(page)[..], &[byte; 4096]);
    }
    let stats = bench.stats();
    assert_eq!(stats.wait_calls, 14);
    let flow = stats.flows.iter().find(|flow| flow.reads > 0).unwrap();
    assert_eq!((flow.reads, flow.writes, flow.syncs, flow.failures), (9, 4, 3, 0));
    assert_eq!(
        (flow.write_bytes, flow.read_bytes_asked),
        (4 * 4096, 4096 + 9995 + 200 + 2 + 8192 + 4 * 4096)
    );
    let files = engine.file_stats().wait().unwrap();
    let of_file = files.iter().find(|stats| stats.path.ends_with("a")).unwrap();
    assert_eq!((of_file.reads, of_file.writes, of_file.syncs), (9, 4, 1));
    assert_eq!(of_file.write_bytes, 4 * 4096);
}

#[test]
fn a_read_ends_where_the_file_does() {
    let bench = Bench::with(config());
    write_file(&bench.dir.path().join("odd"), 5001);
    let odd = bench.engine.open(bench.dir.path().join("odd"), Open::read()).wait().unwrap();
    assert_eq!(&odd.read_up_to(0..50_000).wait().unwrap()[..], &bytes_of(0..5001)[..]);
    assert!(odd.read_up_to(8192..10_000).wait().unwrap().is_empty());
    assert_eq!(bench.calls(), 2);
}

#[test]
fn errors_name_the_operation_and_the_file() {
    let bench = Bench::with(config());
    let reader = bench.engine.open(bench.dir.path().join("a"), Open::read()).wait().unwrap();
    let before = bench.calls();
    let error = reader.write(0, vec![1u8; 4096]).wait().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    assert!(error.to_string().contains("write") && error.to_string().contains("/a"), "{error}");
    assert_eq!(bench.calls(), before + 1);
    assert_eq!(bench.stats().flows.iter().map(|flow| flow.failures).sum::<u64>(), 1);
}

#[test]
fn what_a_shard_decides_goes_to_the_shard() {
    let bench = Bench::with(config());
    let slow = bench.engine.set_class(ClassSpec::new("slow").reads_per_second_max(1000)).unwrap();
    // First of all, while no other class is at work.
    assert!(!bench.makes_calls(|| drop(bench.file.read(0..4096).class(slow).wait().unwrap())), "caps");
    let bench = Bench::with(config());
    assert!(bench.makes_calls(|| drop(bench.read(0))));
    let large = bench.engine.open(bench.dir.path().join("a"), Open::read()).wait().unwrap();
    assert!(!bench.makes_calls(|| drop(large.read(0..1 << 17).wait().unwrap())), "more than a piece");
    assert!(!bench.makes_calls(|| drop(bench.file.read_many([0..10, 20..30]).wait().unwrap())), "several");
    let joined = async { futures::join!(bench.file.read(0..10), bench.file.read(20..30)) };
    assert!(!bench.makes_calls(|| drop(bench.engine.block_on(joined).unwrap())), "a program's own future");
    for config in [config().wait_calls(false), config().priority(Priority::RealTime)] {
        let bench = Bench::with(config);
        assert!(!bench.makes_calls(|| drop(bench.read(0))));
    }
}

/// Runs reads of the background class on the shard, `in_flight` at a time, while `run` runs.
fn beside_background(bench: &Bench, in_flight: u64, run: impl FnOnce()) {
    let over = std::sync::Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..in_flight)
        .map(|number| {
            let (file, over) = (bench.file.clone(), over.clone());
            bench.engine.spawn_on_shard(0, Class::BACKGROUND, move || async move {
                while !over.load(Ordering::Relaxed) {
                    let at = number % 8 * (128 << 10);
                    file.read(at..at + (128 << 10)).await.unwrap();
                    forebay::shard::yield_if_needed().await;
                }
            })
        })
        .collect();
    run();
    over.store(true, Ordering::Relaxed);
    tasks.into_iter().for_each(|task| task.wait().unwrap());
}

/// Returns the cost that a class received in competition with others.
fn received(bench: &Bench, name: &str) -> u64 {
    bench.stats().classes.iter().filter(|class| class.class == name).map(|class| class.received).sum()
}

/// Story: a store's get cost five system calls instead of one, and half as much processor time again, whenever its log or
/// compaction had used the device within the last 0.1 s: the shard then carried out each read of a waiting thread.
#[test]
fn a_read_beside_another_class_is_a_call_while_there_is_room_and_counts_in_its_share() {
    let bench = Bench::with(config());
    beside_background(&bench, 1, || {
        // Until a hundred calls have counted: those do not that find no other class at work, as where its thread is away.
        let (mut counted, mut page) = (0, 0);
        while counted < 100 {
            let (calls, before) = (bench.calls(), received(&bench, "default"));
            bench.read(page % 256);
            page += 1;
            // A read of 4 KiB costs 12 KiB.
            counted += u64::from(bench.calls() > calls && received(&bench, "default") - before >= 12 << 10);
        }
    });
    assert!(received(&bench, "background") > 0, "{:?}", bench.stats().classes);
}

/// With more operations than the device's budget, a waiting thread's read waits in its class's queue like all others.
#[test]
fn classes_that_compete_for_room_go_through_the_shard_until_one_is_idle() {
    let bench = Bench::with(config());
    let until = |calls: bool| {
        while bench.makes_calls(|| drop(bench.read(1))) != calls {}
    };
    beside_background(&bench, 256, || {
        until(false);
        for page in 0..100 {
            bench.read(page);
        }
        let stats = bench.stats();
        let queued = |name: &str| {
            stats.classes.iter().any(|class| class.class == name && class.received > 0 && class.queued > 0)
        };
        assert!(queued("background"), "{:?}", stats.classes);
    });
    assert!(received(&bench, "default") > 0 && received(&bench, "background") > 0, "both had their shares");
    // Idle classes count no more: a read is charged to no share.
    loop {
        let before = received(&bench, "default");
        if bench.makes_calls(|| drop(bench.read(1))) && received(&bench, "default") == before {
            break;
        }
    }
}

#[test]
fn a_close_waits_for_calls_and_refuses_later_ones() {
    let bench = Bench::with(config());
    let file = bench.file.clone();
    bench.read(0);
    let closing = file.clone();
    closing.close().wait().unwrap();
    assert_eq!(file.read(0..10).wait().unwrap_err().kind(), ErrorKind::FileClosed);
    assert_eq!(file.write(0, vec![0; 4096]).wait().unwrap_err().kind(), ErrorKind::FileClosed);
    assert!(bench.engine.file_stats().wait().unwrap().is_empty(), "it is no open file any more");
}

/// Threads that read while the engine or the file is closed get their bytes or the reason, and do not hang.
#[test]
fn files_and_engines_close_beside_calls() {
    for closes_engine in [false, true] {
        let bench = Bench::with(config());
        let (started, done) = (Barrier::new(9), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let (file, started, done) = (bench.file.clone(), &started, &done);
                scope.spawn(move || {
                    started.wait();
                    for turn in 0u64.. {
                        let at = (thread * 31 + turn * 7) % 256 * 4096;
                        match file.read(at..at + 4096).wait() {
                            Ok(block) => assert_eq!(block[..], bytes_of(at..at + 4096)),
                            Err(error) => {
                                let kinds = [ErrorKind::EngineClosed, ErrorKind::FileClosed];
                                assert!(kinds.contains(&error.kind()), "{error}");
                                break;
                            }
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            started.wait();
            while done.load(Ordering::Relaxed) < 500 {
                std::thread::yield_now();
            }
            if closes_engine {
                assert_eq!(bench.engine.close().wait().unwrap().leaked_operations, 0);
            } else {
                bench.file.clone().close().wait().unwrap();
            }
        });
    }
}

/// Many threads share little memory: a read without memory is sent to its shard, which has the queue for it.
#[test]
fn threads_share_a_small_arena() {
    let config = config().arena_bytes(1 << 20).arena_bytes_max(1 << 20).overflow_bytes_max(1 << 20);
    let bench = Bench::with(config.clone());
    let threads = (0..32u64).map(|thread| {
        let file = bench.file.clone();
        std::thread::spawn(move || {
            for turn in 0..100u64 {
                let at = (thread * 37 + turn * 11) % 240 * 4096;
                let bytes = if turn % 2 == 0 { 4096 } else { 60_000 };
                let block = file.read(at..at + bytes).wait().unwrap();
                assert_eq!(block[..8], bytes_of(at..at + 8));
            }
        })
    });
    // Joined one by one: the end of a scope waits for what its threads run, but not for the removal of their caches.
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    assert!(bench.calls() > 0);
    // The memory in the threads' caches is there for others.
    let blocks = |bench: &Bench| {
        let all: Vec<_> = std::iter::from_fn(|| bench.engine.block(4096).ok()).collect();
        all.len()
    };
    let (here, all) = (blocks(&bench), blocks(&Bench::with(config)));
    // Story: on a busy machine three of 512 were missing. A read without memory is carried out by the shard, whose cache fetches up
    // to eight more of the shortest buffers, and keeps them.
    assert!(here <= all && here + 8 >= all, "{here} of {all}");
}

/// A durable write of a thread is as durable as one of a shard: it covers what the file's writes before it wrote.
#[test]
fn a_queued_flush_syncs_the_file_and_a_blocking_one_its_bytes() {
    let bench = Bench::with(config());
    let buffered = bench.engine.open(bench.dir.path().join("b"), Open::create().buffered()).wait().unwrap();
    buffered.write(0, b"one").wait().unwrap();
    buffered.write(3, b"two").durable(Durability::Data).wait().unwrap();
    buffered.write(6, b"three").durable(Durability::Data).flush(Flush::Blocking).wait().unwrap();
    assert_eq!(std::fs::read(bench.dir.path().join("b")).unwrap(), b"onetwothree");
    let stats = bench.stats();
    assert_eq!(stats.wait_calls, 3);
    assert_eq!(stats.flows.iter().map(|flow| (flow.writes, flow.syncs)).max(), Some((3, 2)));
}

/// A future that is polled by the program is not a `.wait()`: it never blocks the thread that polls it.
#[test]
fn a_poll_makes_no_call() {
    let bench = Bench::with(config());
    let mut read = bench.file.read(0..4096).into_future();
    let mut context = Context::from_waker(Waker::noop());
    let began = bench.calls();
    let polled = std::future::Future::poll(Pin::new(&mut read), &mut context);
    assert!(polled.is_pending());
    drop(read);
    assert_eq!(bench.calls(), began);
}

#[test]
fn calls_and_worker_rings_and_shards_share_one_file() {
    let bench = Bench::with(config().shards(2));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let file = bench.file.clone();
            scope.spawn(move || {
                for turn in 0..200 {
                    let page = thread * 16 + turn % 16;
                    file.write(page * 4096, vec![turn as u8; 4096]).wait().unwrap();
                    assert_eq!(file.read(page * 4096..page * 4096 + 4096).wait().unwrap()[0], turn as u8);
                }
            });
        }
        runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for task in 4..8u64 {
                let file = bench.file.clone();
                tasks.spawn(async move {
                    for turn in 0..200 {
                        let page = task * 16 + turn % 16;
                        file.write(page * 4096, vec![turn as u8; 4096]).await.unwrap();
                        assert_eq!(file.read(page * 4096..page * 4096 + 4096).await.unwrap()[0], turn as u8);
                    }
                });
            }
            tasks.join_all().await;
        });
    });
    let stats = bench.stats();
    let flow = stats.flows.iter().find(|flow| flow.reads > 0).unwrap();
    assert_eq!((flow.reads, flow.writes, flow.failures), (1600, 1600, 0));
    assert_eq!(stats.wait_calls, 1600);
}

/// The use that a step of the walks below makes of a block.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Reads pages 1 to 9.
    Chain,
    /// Reads sixteen pages concurrently and adds up their first bytes.
    Fan,
    /// Requests two pages, and another one after the first that arrives.
    Change,
    Panics,
    Waits,
    Beyond,
    WaitsForNothing,
}

struct Acts {
    act: Act,
    file: File,
    steps: u64,
    sum: u64,
}

impl Walk for Acts {
    type Output = (u64, u64);
    type Error = Error;

    fn step(&mut self, block: &Block, at: std::ops::Range<u64>) -> Step<(u64, u64), Error> {
        assert_eq!(block[..], bytes_of(at.clone()), "the block of that place");
        let page = |page: u64| page * 4096..page * 4096 + 8;
        self.steps += 1;
        match self.act {
            Act::Chain if self.steps < 10 => return Step::Read(page(self.steps)),
            Act::Fan if self.steps == 1 => return Step::read_each((1..17).map(page)),
            Act::Fan => {
                self.sum += u64::from(block[0]);
                if self.steps < 17 {
                    return Step::Wait;
                }
            }
            Act::Change if self.steps == 1 => return Step::read_each([page(1), page(2)]),
            Act::Change if self.steps == 2 => return Step::Read(page(3)),
            Act::Change => assert_eq!(at, page(3), "the other block reaches no step"),
            Act::Panics => panic!("a step that panics"),
            Act::Waits => {
                let error = self.file.read(0..1).wait().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::WaitOnShard);
            }
            Act::Beyond if self.steps == 1 => return Step::Read(1 << 30..(1 << 30) + 1),
            Act::WaitsForNothing => return Step::Wait,
            Act::Chain | Act::Beyond => {}
        }
        Step::Done((self.steps, self.sum))
    }
}

/// A walk that its waiting thread carries out ends as one on a shard does, down to the texts of its errors.
#[test]
fn walks_end_as_on_a_shard() {
    let (here, there) = (Bench::with(config()), Bench::with(config().wait_calls(false)));
    let walk = |bench: &Bench, act: Act, hops_max: u32| {
        let acts = Acts { act, file: bench.file.clone(), steps: 0, sum: 0 };
        let ended = bench.file.walk(0..8, acts).hops_max(hops_max).wait();
        ended.map_err(|error| {
            let path = bench.dir.path().to_str().unwrap();
            (error.kind(), error.hop(), error.range(), error.to_string().replace(path, ""))
        })
    };
    let acts =
        [Act::Chain, Act::Fan, Act::Change, Act::Panics, Act::Waits, Act::Beyond, Act::WaitsForNothing];
    for act in acts {
        for hops_max in [64, 1] {
            assert_eq!(walk(&here, act, hops_max), walk(&there, act, hops_max), "{act:?}, {hops_max} hops");
        }
    }
    let (here, there) = (here.stats(), there.stats());
    assert!(here.wait_calls > 0);
    assert_eq!(there.wait_calls, 0);
    let counts = |stats: &Stats| (stats.walks.walks, stats.walks.hops, stats.walks.steps);
    assert_eq!(counts(&here), counts(&there));
}

/// A future of a library that makes one operation after the other runs on its thread as well, when the library says so.
#[test]
fn a_sequence_makes_calls() {
    let bench = Bench::with(config());
    let sequence = async {
        let first = bench.file.read(0..8).await.unwrap();
        let acts = Acts { act: Act::Chain, file: bench.file.clone(), steps: 0, sum: 0 };
        let (steps, _) = bench.file.walk(0..8, acts).await.unwrap();
        (first.len(), steps)
    };
    let before = bench.calls();
    assert_eq!(bench.engine.block_on_in_turn(sequence).unwrap(), (8, 10));
    assert_eq!(bench.calls(), before + 11);
    let refused = bench.engine.spawn_on_shard(0, Class::DEFAULT, {
        let engine = bench.engine.clone();
        move || async move { engine.block_on_in_turn(async {}).unwrap_err().kind() }
    });
    assert_eq!(refused.wait().unwrap(), ErrorKind::WaitOnShard);
}
