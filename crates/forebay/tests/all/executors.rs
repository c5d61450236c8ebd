//! Shows: the same calls work from every executor, from plain threads and on shards, and futures may move
//! between them. How: one mixed piece of work run everywhere, well-kept channels and locks across the
//! borders, futures polled on two sides.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::common::{self, bytes_of, dir, engine, write_file};
use forebay::{Block, Class, Engine, ErrorKind, File, Open, Result, shard};
use futures::{SinkExt, StreamExt};

const LEN: u64 = 1 << 20;

/// Starts an engine, and returns it with a directory that lives as long as the file in it, and the file.
fn file_with(shards: usize) -> (Engine, tempfile::TempDir, File) {
    let (engine, dir) = (Engine::start(common::config().shards(shards)).unwrap(), dir());
    let path = dir.path().join("a");
    write_file(&path, LEN);
    let file = engine.open(&path, Open::write()).wait().unwrap();
    (engine, dir, file)
}

/// Runs some operations of each kind, and checks them.
async fn work(engine: Engine, file: File) {
    let reads = (0..50u64).map(|n| {
        let file = &file;
        async move {
            let range = n * 17_001..n * 17_001 + 5_000;
            assert_eq!(&file.read(range.clone()).await.unwrap()[..], &bytes_of(range)[..]);
        }
    });
    futures::future::join_all(reads).await;
    let (result, block) = file.read_into(4096, engine.block(8192).unwrap()).await;
    assert_eq!((result.unwrap(), &block[..]), (8192, &bytes_of(4096..12_288)[..]));
    // Every caller writes the existing bytes, so that many may run concurrently.
    file.write(4096, block).durable(forebay::Durability::Data).await.unwrap();
    file.write(8192, bytes_of(8192..12_288)).await.unwrap();
    file.sync(forebay::Durability::All).await.unwrap();
    for result in file.read_many((0..100).map(|n| n * 10_000..n * 10_000 + 10)).await.unwrap() {
        assert_eq!(result.unwrap().len(), 10);
    }
    let mut scan = file.scan().start();
    let mut at = 0;
    while let Some(block) = scan.next().await.transpose().unwrap() {
        assert!(block[..] == bytes_of(at..at + block.len() as u64)[..]);
        at += block.len() as u64;
    }
    assert_eq!(at, LEN);
    assert_eq!(file.len().await.unwrap(), LEN);
    engine.nop().await.unwrap();
    engine.stats().await.unwrap();
    let other = engine.open(file.path(), Open::read().buffered()).await.unwrap();
    assert_eq!(&other.read(5..9).await.unwrap()[..], &bytes_of(5..9)[..]);
    other.close().await.unwrap();
}

#[test]
fn tokio_with_many_threads_and_with_one() {
    let (engine, _dir, file) = file_with(2);
    let multi = tokio::runtime::Builder::new_multi_thread().worker_threads(3).build().unwrap();
    multi.block_on(async {
        let tasks: Vec<_> = (0..8).map(|_| tokio::spawn(work(engine.clone(), file.clone()))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    let single = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tokio::task::LocalSet::new().block_on(&single, async {
        let tasks: Vec<_> =
            (0..4).map(|_| tokio::task::spawn_local(work(engine.clone(), file.clone()))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn smol_and_the_executors_of_futures() {
    let (engine, _dir, file) = file_with(2);
    smol::block_on(work(engine.clone(), file.clone()));
    let executor = Arc::new(smol::Executor::new());
    let tasks: Vec<_> = (0..6).map(|_| executor.spawn(work(engine.clone(), file.clone()))).collect();
    std::thread::scope(|scope| {
        let (stop, stopped) = async_channel::bounded::<()>(1);
        for _ in 0..2 {
            let (executor, stopped) = (executor.clone(), stopped.clone());
            scope.spawn(move || {
                let ended = futures::executor::block_on(executor.run(stopped.recv()));
                assert!(ended.is_err(), "the sender is dropped, never used");
            });
        }
        smol::block_on(async {
            for task in tasks {
                task.await;
            }
        });
        drop(stop);
    });
    futures::executor::block_on(work(engine.clone(), file.clone()));
    let mut pool = futures::executor::LocalPool::new();
    for _ in 0..3 {
        futures::task::LocalSpawnExt::spawn_local(&pool.spawner(), work(engine.clone(), file.clone()))
            .unwrap();
    }
    pool.run();
}

#[test]
fn plain_threads_that_wait() {
    let (engine, _dir, file) = file_with(2);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (engine, file) = (&engine, &file);
            scope.spawn(move || {
                for n in 0..50 {
                    let range = (thread * 50 + n) * 2_003..(thread * 50 + n) * 2_003 + 777;
                    assert_eq!(&file.read(range.clone()).wait().unwrap()[..], &bytes_of(range)[..]);
                }
                let blocks = file.read_many([0..10, 20..30]).wait().unwrap();
                assert_eq!(&blocks[1].as_ref().unwrap()[..], &bytes_of(20..30)[..]);
                engine.nop().wait().unwrap();
            });
        }
    });
}

#[test]
fn tasks_on_every_shard() {
    let (engine, _dir, file) = file_with(3);
    assert_eq!(engine.shard_count(), 3);
    let tasks: Vec<_> = (0..6)
        .map(|number| {
            let (inner, file) = (engine.clone(), file.clone());
            engine.spawn_on_shard(number % engine.shard_count(), Class::DEFAULT, move || async move {
                work(inner, file).await;
                // Not Send, across an await.
                let local = std::rc::Rc::new(5);
                shard::yield_now().await;
                assert_eq!(*local, 5);
                shard::current()
            })
        })
        .collect();
    for (number, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.wait().unwrap(), Some(number % 3));
    }
    assert_eq!(shard::current(), None);
    let stats = engine.stats().wait().unwrap();
    assert!(stats.shards.iter().all(|shard| shard.tasks == 0 && shard.turns > 0), "{:?}", stats.shards);
}

#[test]
fn a_shard_of_one_engine_uses_the_files_of_another() {
    let (one, _dir_one, file) = file_with(1);
    let (two, _dir_two, own) = file_with(1);
    let (inner, inner_two) = (one.clone(), two.clone());
    let task = two.spawn_on_shard(0, Class::DEFAULT, move || async move {
        futures::join!(work(inner, file), work(inner_two, own));
    });
    task.wait().unwrap();
    drop(one);
}

type MovingRead = Pin<Box<dyn Future<Output = Result<Block>> + Send>>;

fn moving(file: &File, n: u64) -> MovingRead {
    let file = file.clone();
    Box::pin(async move { file.read(n * 100..n * 100 + 50).await })
}

fn poll_once(future: &mut MovingRead) -> Option<Result<Block>> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// Results of futures that were polled once where they were made.
type BegunReads = Vec<(u64, MovingRead, Option<Result<Block>>)>;

fn begin(file: &File, count: u64) -> BegunReads {
    let begun = (0..count).map(|n| {
        let mut future = moving(file, n);
        let first = poll_once(&mut future);
        (n, future, first)
    });
    begun.collect()
}

async fn finish(begun: BegunReads) {
    for (n, future, first) in begun {
        let block = match first {
            Some(result) => result.unwrap(),
            None => future.await.unwrap(),
        };
        assert_eq!(&block[..], &bytes_of(n * 100..n * 100 + 50)[..]);
    }
}

#[test]
fn futures_move_between_shards_and_other_threads() {
    let (engine, _dir, file) = file_with(2);
    for _ in 0..20 {
        let from = |shard: usize| {
            let file = file.clone();
            engine.spawn_on_shard(shard, Class::DEFAULT, move || async move { begin(&file, 30) })
        };
        // From a shard to this thread, to the other shard, and from this thread to a shard.
        futures::executor::block_on(finish(from(0).wait().unwrap()));
        for (begun, target) in
            [(from(0).wait().unwrap(), 1), (from(1).wait().unwrap(), 0), (begin(&file, 30), 0)]
        {
            engine
                .spawn_on_shard(target % engine.shard_count(), Class::DEFAULT, move || finish(begun))
                .wait()
                .unwrap();
        }
        // Dropped on another thread than that of their start, started or not.
        drop(from(0).wait().unwrap());
        let begun = begin(&file, 30);
        engine.spawn_on_shard(1, Class::DEFAULT, move || async move { drop(begun) }).wait().unwrap();
        drop((0..30).map(|n| moving(&file, n)).collect::<Vec<_>>());
    }
    file.close().wait().unwrap();
    let stats = engine.stats().wait().unwrap();
    assert!(stats.shards.iter().all(|shard| shard.stray_completions == 0));
    assert_eq!(engine.close().wait().unwrap().leaked_operations, 0);
}

#[test]
fn a_small_inbox_makes_callers_wait_and_loses_nothing() {
    let (engine, dir) =
        (Engine::start(common::config().shards(1).inbox_depth(1).queue_depth(2)).unwrap(), dir());
    let path = dir.path().join("a");
    write_file(&path, LEN);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..300u64)
            .map(|n| {
                let (engine, file) = (engine.clone(), file.clone());
                tokio::spawn(async move {
                    let range = n * 3_000..n * 3_000 + 100;
                    assert_eq!(&file.read(range.clone()).await.unwrap()[..], &bytes_of(range.clone())[..]);
                    let (start, inner) = (range.start, file.clone());
                    let task = engine
                        .spawn_on_shard(0, Class::DEFAULT, move || async move { inner.read(range).await });
                    assert_eq!(task.await.unwrap().unwrap()[..], bytes_of(start..start + 100)[..]);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn channels_and_locks_work_on_a_shard() {
    let (engine, _dir, file) = file_with(1);
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        // async-channel: bounded to 1, so that both sides wait.
        let (send, receive) = async_channel::bounded::<Block>(1);
        let inner = file.clone();
        let producer = shard::spawn(async move {
            for n in 0..100u64 {
                send.send(inner.read(n * 10..n * 10 + 10).await.unwrap()).await.unwrap();
            }
        })
        .unwrap();
        let mut n = 0;
        while let Ok(block) = receive.recv().await {
            assert_eq!(&block[..], &bytes_of(n * 10..n * 10 + 10)[..]);
            n += 1;
        }
        assert_eq!(n, 100);
        producer.await.unwrap();

        // futures: mpsc, oneshot, lock, select.
        let (mut send, mut receive) = futures::channel::mpsc::channel::<u64>(1);
        let (tell, told) = futures::channel::oneshot::channel();
        let sum = Arc::new(futures::lock::Mutex::new(0));
        let adder = sum.clone();
        let _detached = shard::spawn(async move {
            while let Some(n) = receive.next().await {
                let mut sum = adder.lock().await;
                shard::yield_now().await;
                *sum += n;
            }
            tell.send(()).unwrap();
        });
        for n in 0..50 {
            send.send(n).await.unwrap();
            drop(sum.lock().await);
        }
        drop(send);
        told.await.unwrap();
        assert_eq!(*sum.lock().await, 49 * 50 / 2);
        let never = futures::future::pending::<()>();
        let read = Box::pin(async { file.read(0..10).await });
        match futures::future::select(Box::pin(never), read).await {
            futures::future::Either::Right((block, _)) => {
                assert_eq!(&block.unwrap()[..], &bytes_of(0..10)[..])
            }
            futures::future::Either::Left(_) => unreachable!("pending is never ready"),
        }

        // tokio::sync without its runtime.
        let (send, mut receive) = tokio::sync::mpsc::channel::<u64>(1);
        let (tell, told) = tokio::sync::oneshot::channel::<u64>();
        let (notify, gate) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Semaphore::new(2)));
        let (waiting, lock) = (notify.clone(), Arc::new(tokio::sync::Mutex::new(0)));
        let inner = lock.clone();
        let consumer = shard::spawn(async move {
            let mut sum = 0;
            while let Some(n) = receive.recv().await {
                sum += n;
                *inner.lock().await += 1;
            }
            tell.send(sum).unwrap();
            waiting.notified().await;
        })
        .unwrap();
        let permits = (0..50).map(|n| {
            let (gate, send) = (gate.clone(), send.clone());
            async move {
                let _permit = gate.acquire().await.unwrap();
                send.send(n).await.unwrap();
            }
        });
        futures::future::join_all(permits).await;
        drop(send);
        assert_eq!(told.await.unwrap(), 49 * 50 / 2);
        assert_eq!(*lock.lock().await, 50);
        notify.notify_one();
        consumer.await.unwrap();
    });
    task.wait().unwrap();
}

#[test]
fn channels_and_locks_work_between_shards_and_tokio() {
    let (engine, _dir, file) = file_with(2);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let requests = tokio::sync::mpsc::channel::<(u64, tokio::sync::oneshot::Sender<Block>)>(4);
    let (ask, mut asked) = requests;
    let count = Arc::new(tokio::sync::Mutex::new(0u64));
    let (served, ended) = (count.clone(), Arc::new(tokio::sync::Notify::new()));
    let tell_end = ended.clone();
    let service = engine.spawn_on_shard(1, Class::LOG, move || async move {
        while let Some((n, answer)) = asked.recv().await {
            let block = file.read(n * 10..n * 10 + 10).await.unwrap();
            *served.lock().await += 1;
            let _ = answer.send(block);
        }
        tell_end.notify_one();
        7
    });
    runtime.block_on(async {
        let askers: Vec<_> = (0..4u64)
            .map(|asker| {
                let (ask, count) = (ask.clone(), count.clone());
                tokio::spawn(async move {
                    for n in asker * 100..asker * 100 + 100 {
                        let (answer, answered) = tokio::sync::oneshot::channel();
                        ask.send((n, answer)).await.unwrap();
                        assert_eq!(&answered.await.unwrap()[..], &bytes_of(n * 10..n * 10 + 10)[..]);
                        assert!(*count.lock().await > 0);
                    }
                })
            })
            .collect();
        // From a task on the other shard too.
        let other = ask.clone();
        let on_shard = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            for n in 0..100 {
                let (answer, answered) = tokio::sync::oneshot::channel();
                other.send((n, answer)).await.unwrap();
                assert_eq!(&answered.await.unwrap()[..], &bytes_of(n * 10..n * 10 + 10)[..]);
            }
        });
        for asker in askers {
            asker.await.unwrap();
        }
        on_shard.await.unwrap();
        drop(ask);
        ended.notified().await;
        assert_eq!(service.await.unwrap(), 7);
    });
    assert_eq!(*runtime.block_on(count.lock()), 500);
}

#[test]
fn outside_of_shards_the_calls_of_shards_say_so() {
    assert_eq!(shard::spawn(async {}).unwrap_err().kind(), ErrorKind::NotOnShard);
    futures::executor::block_on(async {
        let time = std::time::Duration::from_secs(3600);
        assert_eq!(shard::sleep(time).await.unwrap_err().kind(), ErrorKind::NotOnShard);
        let error = shard::timeout(time, futures::future::pending::<()>()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotOnShard);
        // These have a meaning everywhere.
        shard::yield_now().await;
        shard::yield_if_needed().await;
        assert_eq!(shard::class(), Class::DEFAULT);
    });
    let _ = engine();
}

/// Tokio moves a paused clock to the next timer while its runtime waits for a task of a shard, as if it had nothing to do. The
/// remedy of docs/modes.md is a blocking task, during which the clock stands.
#[tokio::test(start_paused = true)]
async fn a_paused_clock_stands_beside_a_blocking_task() {
    let (kept, end) = std::sync::mpsc::channel::<()>();
    drop(tokio::task::spawn_blocking(move || end.recv()));
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, LEN);
    let begun = tokio::time::Instant::now();
    let limit = std::time::Duration::from_millis(1);
    for open in [Open::read(), Open::read().buffered()] {
        let file = tokio::time::timeout(limit, engine.open(&path, open)).await.expect("it stands").unwrap();
        for turn in 0..50u64 {
            let range = turn * 20_000..turn * 20_000 + 5_000;
            let block =
                tokio::time::timeout(limit, file.read(range.clone())).await.expect("it stands").unwrap();
            assert_eq!(block[..], bytes_of(range)[..]);
        }
    }
    assert_eq!(begun.elapsed(), std::time::Duration::ZERO);
    drop(kept);
    tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
    assert!(begun.elapsed() >= std::time::Duration::from_secs(3600), "and goes on afterwards");
}

/// The reads of a test with a paused clock had a limit of a second each, and expired: Tokio moved the clock to the limit while its
/// runtime waited for the device, as if it had nothing to do.
#[tokio::test(start_paused = true)]
async fn a_paused_clock_stands_while_an_operation_is_in_flight() {
    use_paused_clock().await;
}

/// The same with a clock that was paused after the runtime had its ring.
#[tokio::test]
async fn a_clock_that_is_paused_later_stands_as_well() {
    let (_engine, _dir, file) = file_with(1);
    assert_eq!(file.read(0..4096).await.unwrap()[..], bytes_of(0..4096)[..]);
    tokio::time::pause();
    use_paused_clock().await;
}

/// Has limits that expire when the clock moves during an operation, and timers that wait until it moves afterwards.
async fn use_paused_clock() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, LEN);
    let begun = tokio::time::Instant::now();
    for open in [Open::write(), Open::write().buffered(), Open::write().adaptive()] {
        let file = in_time(engine.open(&path, open)).await.unwrap();
        for turn in 0..50u64 {
            let range = turn * 20_000..turn * 20_000 + 5_000;
            assert_eq!(in_time(file.read(range.clone())).await.unwrap()[..], bytes_of(range)[..]);
        }
        let ranges = (0..20u64).map(|n| n * 50_000..n * 50_000 + 100);
        let blocks = in_time(file.read_many(ranges)).await.unwrap();
        assert!(blocks.iter().all(Result::is_ok));
        in_time(file.write(0, bytes_of(0..4096)).durable(forebay::Durability::Data)).await.unwrap();
        in_time(file.close()).await.unwrap();
    }
    assert_eq!(begun.elapsed(), std::time::Duration::ZERO);
    let file = engine.open(&path, Open::read()).await.unwrap();
    let hour = std::time::Duration::from_secs(3600);
    // One that is dropped, and one that is not polled again, do not stop the clock for ever.
    let mut read = Box::pin(file.read(0..4096));
    let _ = futures::poll!(&mut read);
    drop(read);
    tokio::time::sleep(hour).await;
    let mut read = Box::pin(file.read(0..4096));
    let _ = futures::poll!(&mut read);
    tokio::time::sleep(hour).await;
    assert!(begun.elapsed() >= 2 * hour);
}

async fn in_time<T>(operation: impl Future<Output = T>) -> T {
    let limit = std::time::Duration::from_millis(1);
    tokio::time::timeout(limit, operation).await.expect("the clock stands")
}
