//! Ownership of a slot, its memory and its file when futures are dropped anywhere, cross threads, or outlive
//! their origin.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::common::{bytes_of, config, dir, write_file};
use forebay::{Class, Durability, Engine, ErrorKind, File, Open, shard};

const FILE_BYTES: u64 = 4 << 20;

struct Scene {
    engine: Engine,
    file: File,
    path: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

fn scene(config: forebay::Config) -> Scene {
    let dir = dir();
    let path = dir.path().join("a");
    write_file(&path, FILE_BYTES);
    let engine = Engine::start(config).unwrap();
    let file = engine.open(&path, Open::write()).wait().unwrap();
    Scene { engine, file, path, _dir: dir }
}

type BoxedOperation = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Returns one operation of each kind, with its result checked.
fn operations(engine: &Engine, file: &File, path: &std::path::Path) -> Vec<(&'static str, BoxedOperation)> {
    let (e, f, p) = (engine.clone(), file.clone(), path.to_path_buf());
    let mut all: Vec<(&'static str, BoxedOperation)> = Vec::new();
    let file = f.clone();
    all.push((
        "read",
        Box::pin(async move {
            assert_eq!(&file.read(4097..70_000).await.unwrap()[..], &bytes_of(4097..70_000)[..]);
        }),
    ));
    let file = f.clone();
    all.push((
        "read_up_to",
        Box::pin(async move {
            assert_eq!(file.read_up_to(FILE_BYTES - 10..FILE_BYTES + 10).await.unwrap().len(), 10);
        }),
    ));
    let (file, engine) = (f.clone(), e.clone());
    all.push((
        "read_into",
        Box::pin(async move {
            let (result, block) = file.read_into(8192, engine.block(8192).unwrap()).await;
            assert_eq!(result.unwrap(), 8192);
            assert_eq!(&block[..], &bytes_of(8192..16384)[..]);
        }),
    ));
    let file = f.clone();
    all.push((
        "write",
        Box::pin(async move {
            file.write(0, bytes_of(0..8192)).durable(Durability::Data).await.unwrap();
        }),
    ));
    let file = f.clone();
    all.push((
        "read_many",
        Box::pin(async move {
            for block in file.read_many((0..40).map(|n| n * 90_000..n * 90_000 + 5000)).await.unwrap() {
                assert_eq!(block.unwrap().len(), 5000);
            }
        }),
    ));
    let file = f.clone();
    all.push((
        "read_many stream",
        Box::pin(async move {
            let mut stream = file.read_many((0..40).map(|n| n * 90_000..n * 90_000 + 5000)).depth(2).stream();
            while let Some((_, block)) = stream.next().await {
                assert_eq!(block.unwrap().len(), 5000);
            }
        }),
    ));
    let file = f.clone();
    all.push((
        "scan",
        Box::pin(async move {
            let mut scan = file.scan().request_bytes(64 << 10).depth(4).start();
            for _ in 0..8 {
                scan.next().await.transpose().unwrap().unwrap();
            }
        }),
    ));
    let file = f.clone();
    all.push(("sync", Box::pin(async move { file.sync(Durability::All).await.unwrap() })));
    let (engine, path) = (e.clone(), p);
    all.push((
        "open and close",
        Box::pin(async move {
            let file = engine.open(path, Open::read()).await.unwrap();
            file.read(0..1).await.unwrap();
            file.close().await.unwrap();
        }),
    ));
    let engine = e.clone();
    all.push(("stats", Box::pin(async move { drop(engine.stats().await.unwrap()) })));
    all.push(("nop", Box::pin(async move { e.nop().await.unwrap() })));
    all
}

/// Polls `future` this many times, each time but the first after it was woken; returns true when it completed.
fn poll_times(future: &mut BoxedOperation, times: u32) -> bool {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    for poll in 0..times {
        if poll > 0 {
            std::thread::park_timeout(Duration::from_secs(1));
        }
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            return true;
        }
    }
    false
}

/// Waits until all memory and slots are released; each `stats` makes the shards check.
fn comes_to_rest(engine: &Engine) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let stats = engine.stats().wait().unwrap();
        let idle = stats.shards.iter().all(|shard| shard.slots_used == 0 && shard.stray_completions == 0);
        if idle && stats.memory.held_bytes == 0 && stats.memory.overflow_bytes == 0 {
            return;
        }
        assert!(Instant::now() < deadline, "never came back: {stats:?}");
        std::thread::yield_now();
    }
}

#[test]
fn dropped_at_every_await_point_by_a_thread() {
    let scene = scene(config());
    for times in 0..12 {
        for (_, mut future) in operations(&scene.engine, &scene.file, &scene.path) {
            poll_times(&mut future, times);
        }
    }
    comes_to_rest(&scene.engine);
}

#[test]
fn dropped_at_every_await_point_on_a_shard() {
    let scene = scene(config());
    for times in 0..12u32 {
        let (engine, file, path) = (scene.engine.clone(), scene.file.clone(), scene.path.clone());
        let task = scene.engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            for (_, mut future) in operations(&engine, &file, &path) {
                let mut polls = 0;
                std::future::poll_fn(|context| {
                    if polls == times {
                        return Poll::Ready(());
                    }
                    polls += 1;
                    future.as_mut().poll(context)
                })
                .await;
                drop(future);
                shard::yield_now().await;
            }
        });
        task.wait().unwrap();
    }
    comes_to_rest(&scene.engine);
}

#[test]
fn dropped_at_every_await_point_by_tokio() {
    let scene = scene(config());
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async {
        for times in 0..12 {
            let mut tasks = Vec::new();
            for (_, mut future) in operations(&scene.engine, &scene.file, &scene.path) {
                tasks.push(tokio::spawn(async move {
                    let mut polls = 0;
                    std::future::poll_fn(|context| {
                        if polls == times {
                            return Poll::Ready(());
                        }
                        polls += 1;
                        future.as_mut().poll(context)
                    })
                    .await;
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
        }
    });
    comes_to_rest(&scene.engine);
}

/// A future that was first polled on a shard moves to another thread before, during and after its operation; there it is polled to
/// its end, dropped, or sent back.
#[test]
fn first_polled_on_a_shard_then_elsewhere() {
    let scene = scene(config().shards(1));
    for turns in 0..4 {
        let (give, take) = mpsc::channel::<BoxedOperation>();
        let (engine, file, path) = (scene.engine.clone(), scene.file.clone(), scene.path.clone());
        let begin = scene.engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            for (_, mut future) in operations(&engine, &file, &path) {
                let ready =
                    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready()))
                        .await;
                for _ in 0..turns {
                    shard::yield_now().await;
                }
                if !ready {
                    give.send(future).unwrap();
                }
            }
        });
        let mut back: Vec<BoxedOperation> = Vec::new();
        for (number, mut future) in take.into_iter().enumerate() {
            match number % 3 {
                0 => futures::executor::block_on(future),
                1 => drop(future),
                _ => {
                    if !poll_times(&mut future, 1) {
                        back.push(future);
                    }
                }
            }
        }
        begin.wait().unwrap();
        let end = scene.engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            for future in back {
                future.await;
            }
        });
        end.wait().unwrap();
    }
    comes_to_rest(&scene.engine);
}

#[test]
fn first_polled_elsewhere_then_on_a_shard() {
    let scene = scene(config().shards(2));
    for shard in 0..2 {
        let mut begun = Vec::new();
        for (number, (_, mut future)) in
            operations(&scene.engine, &scene.file, &scene.path).into_iter().enumerate()
        {
            if !poll_times(&mut future, 1) {
                begun.push((number, future));
            }
        }
        let end = scene.engine.spawn_on_shard(shard, Class::DEFAULT, move || async move {
            for (number, mut future) in begun {
                match number % 3 {
                    0 => drop(future),
                    1 => {
                        let polled =
                            std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
                        drop((polled, future));
                    }
                    _ => future.await,
                }
            }
        });
        end.wait().unwrap();
    }
    comes_to_rest(&scene.engine);
}

#[test]
fn a_file_dropped_with_operations_in_flight_stays_open_for_them() {
    let scene = scene(config());
    for _ in 0..20 {
        let file = scene.engine.open(&scene.path, Open::read()).wait().unwrap();
        let mut scans: Vec<_> =
            (0..4).map(|_| file.scan().request_bytes(128 << 10).depth(4).start()).collect();
        for scan in &mut scans {
            scan.next().wait().transpose().unwrap().unwrap();
        }
        drop(file);
        for mut scan in scans {
            let mut place = 128 << 10;
            while let Some(block) = scan.next().wait().transpose().unwrap() {
                assert_eq!(&block[..64], &bytes_of(place..place + 64)[..]);
                place += block.len() as u64;
            }
            assert_eq!(place, FILE_BYTES);
        }
    }
    comes_to_rest(&scene.engine);
}

#[test]
fn blocks_outlive_file_and_engine_and_end_anywhere() {
    let Scene { engine, file, .. } = scene(config().inbox_depth(1));
    let blocks: Vec<_> = (0..64u64).map(|n| file.read(n * 5000..n * 5000 + 4000).wait().unwrap()).collect();
    drop(file);
    engine.close().wait().unwrap();
    std::thread::scope(|scope| {
        for (n, block) in blocks.into_iter().enumerate() {
            scope.spawn(move || {
                let n = n as u64;
                assert_eq!(&block[..], &bytes_of(n * 5000..n * 5000 + 4000)[..]);
                let half = block.slice(..2000).unwrap();
                drop(block);
                assert_eq!(&half[..], &bytes_of(n * 5000..n * 5000 + 2000)[..]);
            });
        }
    });
}

/// The program holds every buffer: ordinary memory is used up to its limit, then reads fail with that error,
/// and work again once blocks are dropped.
///
/// Regression: a read that failed this way on a shard hit an assertion about the slot's memory before it had
/// any; hence both places.
#[test]
fn a_program_that_holds_everything_is_told_and_recovers() {
    let config =
        config().shards(1).arena_bytes(1 << 20).arena_bytes_max(1 << 20).overflow_bytes_max(256 << 10);
    let scene = scene(config);
    let hold = |file: File| async move {
        let mut held = Vec::new();
        loop {
            let start = held.len() as u64 * 65536;
            match file.read(start..start + 65536).await {
                Ok(block) => held.push(block),
                Err(error) => return (held, error),
            }
        }
    };
    let (held, error) = futures::executor::block_on(hold(scene.file.clone()));
    let file = scene.file.clone();
    assert!(held.len() >= 20, "only {} blocks of 64 KiB fit in 1.25 MiB", held.len());
    let ErrorKind::ArenaExhausted { held: bytes } = error.kind() else { panic!("{error}") };
    assert!(bytes >= 1 << 20, "{error}");
    assert!(scene.engine.stats().wait().unwrap().memory.overflow_allocations > 0);
    // Small reads do not wait for memory either, nor do they hang.
    assert!(file.read(0..65536).wait().is_err());
    drop(held);
    assert_eq!(file.read(0..65536).wait().unwrap().len(), 65536);
    comes_to_rest(&scene.engine);

    let on_shard = scene.engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let (held, error) = hold(file.clone()).await;
        assert!(matches!(error.kind(), ErrorKind::ArenaExhausted { .. }), "{error}");
        assert!(held.len() >= 20);
        drop(held);
        file.read(0..65536).await.unwrap().len()
    });
    assert_eq!(on_shard.wait().unwrap(), 65536);
    comes_to_rest(&scene.engine);
}

#[test]
fn an_inbox_of_one_loses_none_of_thousands_of_senders() {
    let scene = scene(config().shards(1).inbox_depth(1).queue_depth(4));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..4000u64)
            .map(|n| {
                let file = scene.file.clone();
                tokio::spawn(async move {
                    let start = n * 977 % (FILE_BYTES - 100);
                    assert_eq!(
                        &file.read(start..start + 100).await.unwrap()[..],
                        &bytes_of(start..start + 100)[..]
                    );
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    std::thread::scope(|scope| {
        for thread in 0..32u64 {
            let file = &scene.file;
            scope.spawn(move || {
                for n in 0..40 {
                    let start = (thread * 40 + n) * 3001 % (FILE_BYTES - 100);
                    assert_eq!(file.read(start..start + 100).wait().unwrap().len(), 100);
                }
            });
        }
    });
    comes_to_rest(&scene.engine);
}

/// Regression: spawns that found the inbox full waited outside of it, and the shard received them after its first 256 messages,
/// before spawns of the same thread that lay further behind in the inbox.
#[test]
fn spawns_of_one_thread_begin_in_their_order() {
    const INBOX: usize = 1000;
    let scene = scene(config().shards(1).inbox_depth(INBOX));
    let (open, closed) = mpsc::channel::<()>();
    let order = Arc::new(Mutex::new(Vec::new()));
    // The shard's thread is held until all are sent.
    let held = scene.engine.spawn_on_shard(0, Class::DEFAULT, move || async move { closed.recv().is_ok() });
    let tasks: Vec<_> = (0..INBOX + 700)
        .map(|number| {
            let order = order.clone();
            scene
                .engine
                .spawn_on_shard(0, Class::DEFAULT, move || async move { order.lock().unwrap().push(number) })
        })
        .collect();
    open.send(()).unwrap();
    assert!(held.wait().unwrap());
    for task in tasks {
        task.wait().unwrap();
    }
    assert!(order.lock().unwrap().is_sorted());
}

/// Regression: the first use of a file on a shard counted a table entry before it saw that the file was closed, and did not release
/// the count; a caller that waited for that close waited for ever.
#[test]
fn closing_ends_although_a_read_comes_too_late() {
    let scene = scene(config().shards(2));
    for shard in 0..20 {
        let file = scene.engine.open(&scene.path, Open::read()).wait().unwrap();
        let late = file.clone();
        let closing = file.close();
        let task = scene.engine.spawn_on_shard(shard % 2, Class::DEFAULT, move || async move {
            late.read(0..1).await.unwrap_err().kind()
        });
        assert_eq!(task.wait().unwrap(), ErrorKind::FileClosed);
        closing.wait().unwrap();
    }
}

/// The caller's memory is returned with an error too, wherever the operation was stopped.
#[test]
fn memory_of_read_into_comes_back_with_the_error() {
    let Scene { engine, file, .. } = scene(config());
    let second = engine.clone();
    let block = engine.block(4096).unwrap();
    engine.close().wait().unwrap();
    let (result, block) = file.read_into(0, block).wait();
    assert_eq!(result.unwrap_err().kind(), ErrorKind::EngineClosed);
    assert_eq!(block.len(), 4096);
    drop(second);
}

/// Regression: a lone task that yielded did not end the turn. It was polled again in the same turn, up to 256 times, and the
/// requests that it had just made were not submitted meanwhile. A test of reads in flight had none in flight, and saw nothing.
#[test]
fn giving_way_ends_the_turn() {
    let scene = scene(config().shards(1));
    let turns = || scene.engine.stats().wait().unwrap().shards[0].turns;
    let before = turns();
    let task = scene.engine.spawn_on_shard(0, Class::DEFAULT, || async {
        for _ in 0..100 {
            shard::yield_now().await;
        }
    });
    task.wait().unwrap();
    assert!(turns() - before >= 100);
}
