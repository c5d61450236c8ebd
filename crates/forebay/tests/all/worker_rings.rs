//! Tasks of a Tokio runtime read and write through rings of their workers.

use std::future::{Future, IntoFuture};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::common::{self, config};
use forebay::{ClassSpec, Config, Durability, Engine, ErrorKind, File, Flush, Open, ShardStats, WorkerRings};
use tokio::runtime::{Builder, Runtime};

const PAGES: u64 = 1024;

/// A directory, a file in it whose pages each hold their number, and its engine.
struct Bench {
    engine: Engine,
    file: File,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

fn page(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(512)
}

impl Bench {
    fn new() -> Bench {
        Bench::with(config().shards(1))
    }

    fn with(config: Config) -> Bench {
        let dir = common::dir();
        let path = dir.path().join("pages");
        std::fs::write(&path, (0..PAGES).flat_map(page).collect::<Vec<_>>()).unwrap();
        let engine = Engine::start(config).unwrap();
        let file = engine.open(&path, Open::create()).wait().unwrap();
        Bench { engine, file, path, _dir: dir }
    }

    /// Returns whether the kernel gives rings to workers, of io_uring or of native AIO. Known once a task has asked for one.
    fn has_rings(&self) -> bool {
        let refused =
            |known: &forebay::Degradation| known.what == "worker rings" && known.why.contains("kernel");
        cfg!(target_os = "linux") && !self.engine.health().degraded.iter().any(refused)
    }

    /// Returns the number of visits to rings.
    fn visits(&self) -> u64 {
        self.engine.stats().wait().unwrap().worker_rings.iter().map(|ring| ring.turns + ring.enters).sum()
    }
}

fn multi(workers: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap()
}

fn current() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn read_all(file: &File, seed: u64) {
    for turn in 0..200 {
        let number = (seed * 7919 + turn * 31) % PAGES;
        let block = file.read(number * 4096..number * 4096 + 4096).await.unwrap();
        assert_eq!(block[..8], number.to_le_bytes());
    }
}

/// Runs 40 tasks that each read 200 pages.
fn read_from_tasks(runtime: &Runtime, file: &File) {
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for seed in 0..40 {
            let file = file.clone();
            tasks.spawn(async move { read_all(&file, seed).await });
        }
        tasks.join_all().await;
    });
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn tasks_of_both_kinds_of_runtime_read_through_their_workers_rings() {
    for runtime in [multi(2), current()] {
        let bench = Bench::new();
        read_from_tasks(&runtime, &bench.file);
        let stats = bench.engine.stats().wait().unwrap();
        let reads: u64 = stats.flows.iter().map(|flow| flow.reads).sum();
        assert_eq!(reads, 40 * 200);
        if bench.has_rings() {
            let enters: u64 = stats.worker_rings.iter().map(|ring| ring.enters).sum();
            assert!(enters > 100, "{stats:?} {:?}", bench.engine.health());
            let is_empty = |ring: &ShardStats| ring.in_flight == 0 && ring.slots_used == 0;
            assert!(stats.worker_rings.iter().all(is_empty), "{stats:?}");
        }
        drop(runtime);
        assert_eq!(bench.engine.close().wait().unwrap().leaked_operations, 0);
    }
}

#[test]
fn without_rings_everything_goes_through_the_shards() {
    let bench = Bench::with(config().shards(1).worker_rings(WorkerRings::Off));
    read_from_tasks(&multi(2), &bench.file);
    let stats = bench.engine.stats().wait().unwrap();
    assert!(stats.worker_rings.is_empty());
    assert_eq!(stats.flows.iter().map(|flow| flow.reads).sum::<u64>(), 40 * 200);
}

/// A runtime without an I/O driver cannot watch a ring. The shards carry out its tasks' operations; `health` says so, and the
/// program's hook sees no panic of the runtime.
#[test]
fn a_runtime_without_an_io_driver_uses_the_shards() {
    let seen = Arc::new(AtomicUsize::new(0));
    let counts = seen.clone();
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref::<String>().is_some_and(|text| text.contains("IO is disabled")) {
            counts.fetch_add(1, Ordering::Relaxed);
        }
        before(info);
    }));
    let bench = Bench::new();
    read_from_tasks(&Builder::new_multi_thread().worker_threads(2).build().unwrap(), &bench.file);
    read_from_tasks(&Builder::new_current_thread().build().unwrap(), &bench.file);
    assert_eq!(seen.load(Ordering::Relaxed), 0, "a hook saw a panic");
    let health = bench.engine.health();
    let told = health
        .degraded
        .iter()
        .any(|known| known.what == "worker rings" && known.remedy.contains("enable_io"));
    assert_eq!(told, bench.has_rings(), "{health:?}");
    // A runtime with one still gets its rings.
    let before = bench.visits();
    read_from_tasks(&multi(2), &bench.file);
    assert_eq!(bench.visits() > before, bench.has_rings());
}

/// Every kind of operation works there, and one after the other sees the bytes.
#[test]
fn all_operations_work_in_a_task() {
    for runtime in [multi(2), current()] {
        let bench = Bench::new();
        let file = bench.file.clone();
        let work = async move {
            // The first operation may still use a shard.
            file.read(0..1).await.unwrap();
            tokio::task::yield_now().await;
            for number in 0..50u64 {
                file.write(number * 4096, page(number + 1_000_000)).await.unwrap();
            }
            file.write(50 * 4096, page(7)).durable(Durability::Data).await.unwrap();
            file.write(51 * 4096, page(8)).durable(Durability::All).flush(Flush::Blocking).await.unwrap();
            file.sync(Durability::All).await.unwrap();
            let blocks = file.read_many((0..50u64).map(|n| n * 4096..n * 4096 + 8)).await.unwrap();
            for (number, block) in (0u64..).zip(blocks) {
                assert_eq!(block.unwrap()[..], (number + 1_000_000).to_le_bytes());
            }
            let mut stream =
                file.read_many((60..1000u64).map(|n| n * 4096..n * 4096 + 8)).gap_bytes_max(0).stream();
            let mut count = 0;
            while let Some((number, block)) = stream.next().await {
                assert_eq!(block.unwrap()[..], (number as u64 + 60).to_le_bytes());
                count += 1;
            }
            assert_eq!(count, 940);
            let mut scan = file.scan().start();
            let mut bytes = 0;
            while let Some(block) = scan.next().await {
                bytes += block.unwrap().len() as u64;
            }
            assert_eq!(bytes, PAGES * 4096);
            let end = file.read(PAGES * 4096 - 10..PAGES * 4096 + 10).await.unwrap_err();
            assert!(matches!(end.kind(), ErrorKind::UnexpectedEof { got: 10 }), "{end}");
            file.clone().close().await.unwrap();
            assert_eq!(file.read(0..10).await.unwrap_err().kind(), ErrorKind::FileClosed);
        };
        runtime.block_on(async { tokio::spawn(work).await }).unwrap();
        drop(runtime);
        assert_eq!(bench.engine.close().wait().unwrap().leaked_operations, 0);
    }
}

/// Immediate completions never yield by themselves: they use up the runtime's budget of a task for one turn.
#[test]
fn a_task_whose_operations_complete_at_once_leaves_turns_to_others() {
    const OPERATIONS: u32 = 20_000;
    let bench = Bench::new();
    let turns = Arc::new(AtomicUsize::new(0));
    let (engine, counts) = (bench.engine.clone(), turns.clone());
    current().block_on(async move {
        let other = tokio::spawn(async move {
            loop {
                counts.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        let hot = tokio::spawn(async move {
            for _ in 0..OPERATIONS {
                engine.nop().await.unwrap();
            }
        });
        hot.await.unwrap();
        other.abort();
    });
    // The runtime gives 128 operations a turn.
    let turns = turns.load(Ordering::Relaxed);
    assert!(turns >= OPERATIONS as usize / 256, "{turns} turns beside {OPERATIONS} operations");
}

/// Runtimes are started and dropped, several at a time and with threads that enter one after the other.
#[test]
fn runtimes_are_dropped_and_made_anew() {
    let bench = Bench::new();
    for _ in 0..4 {
        let (one, two, three) = (multi(2), current(), current());
        one.block_on(async { two_handles(&bench.file, one.handle()).await });
        read_from_tasks(&two, &bench.file);
        std::thread::scope(|scope| {
            scope.spawn(|| read_from_tasks(&one, &bench.file));
            scope.spawn(|| read_from_tasks(&three, &bench.file));
        });
        read_from_tasks(&two, &bench.file);
        one.shutdown_background();
    }
    assert_eq!(bench.engine.close().wait().unwrap().leaked_operations, 0);
}

/// A blocking task that waits for a future by the runtime's handle, and a `LocalSet`.
async fn two_handles(file: &File, handle: &tokio::runtime::Handle) {
    let (kept, handle) = (file.clone(), handle.clone());
    tokio::task::spawn_blocking(move || handle.block_on(read_all(&kept, 3))).await.unwrap();
    let local = tokio::task::LocalSet::new();
    let kept = file.clone();
    local
        .run_until(async move {
            tokio::task::spawn_local(async move { read_all(&kept, 4).await }).await.unwrap();
        })
        .await;
}

/// Operations that a task started while its runtime existed are awaited after it was dropped, and by another runtime.
#[test]
fn operations_outlive_the_runtime_that_began_them() {
    let bench = Bench::new();
    for round in 0..30u64 {
        let runtime = if round % 2 == 0 { multi(2) } else { current() };
        let file = bench.file.clone();
        let reads = runtime.block_on(async {
            tokio::spawn(async move {
                file.read(0..1).await.unwrap();
                tokio::task::yield_now().await;
                let read = |n: u64| file.read(n * 4096..n * 4096 + 8).owned().into_future();
                let mut reads: Vec<_> = (0..100).map(|n| Box::pin(read((n * 7 + round) % PAGES))).collect();
                // Few were submitted by now, and the others are staged.
                let early: Vec<_> = reads.iter_mut().map(poll_once).collect();
                // A thread of the kernel flushes for the worker, and ends with it: that is not a failure of the flush.
                let write = file.write(0, page(0)).durable(Durability::All);
                let mut flushes = vec![Box::pin(write.owned().into_future())];
                let is_flushed: Vec<_> = flushes.iter_mut().map(poll_once).collect();
                (reads.into_iter().zip(early).collect::<Vec<_>>(), flushes.into_iter().zip(is_flushed))
            })
            .await
            .unwrap()
        });
        drop(runtime);
        let (reads, flushes) = reads;
        for (flush, early) in flushes {
            let result = match early {
                Poll::Ready(result) => result,
                Poll::Pending => futures::executor::block_on(flush),
            };
            result.unwrap();
        }
        for (n, (mut read, early)) in (0u64..).zip(reads) {
            let block = match early {
                Poll::Ready(result) => result.unwrap(),
                Poll::Pending if n % 3 == 0 => {
                    drop(read);
                    continue;
                }
                Poll::Pending if n % 3 == 1 => current().block_on(read).unwrap(),
                Poll::Pending => futures::executor::block_on(&mut read).unwrap(),
            };
            assert_eq!(block[..], ((n * 7 + round) % PAGES).to_le_bytes());
        }
    }
    let report = bench.engine.close().wait().unwrap();
    assert_eq!((report.leaked_operations, report.lost_shards), (0, 0));
}

/// A `.wait()` and a foreign executor inside of a task occupy the thread that drives the runtime: their operations need nothing of
/// it.
#[test]
fn a_thread_that_waits_inside_of_its_runtime_is_not_needed() {
    let bench = Bench::new();
    let file = bench.file.clone();
    current().block_on(async move {
        file.read(0..1).await.unwrap();
        tokio::task::yield_now().await;
        for n in 0..300u64 {
            let block = if n % 2 == 0 {
                file.read(n * 4096..n * 4096 + 8).wait().unwrap()
            } else {
                futures::executor::block_on(file.read(n * 4096..n * 4096 + 8).into_future()).unwrap()
            };
            assert_eq!(block[..], n.to_le_bytes());
        }
        read_all(&file, 5).await;
    });
}

/// A runtime that is not driven any more does not delay operations that were moved elsewhere.
#[test]
fn a_runtime_that_nobody_drives_keeps_nobody_waiting() {
    let bench = Bench::new();
    let runtime = current();
    for round in 0..10u64 {
        let file = bench.file.clone();
        let (send, receive) = std::sync::mpsc::channel();
        runtime.block_on(async move {
            file.read(0..1).await.unwrap();
            tokio::task::yield_now().await;
            for n in 0..60 {
                let mut read = Box::pin(file.read(n * 4096..n * 4096 + 8).owned().into_future());
                if poll_once(&mut read).is_pending() {
                    send.send((n, read)).unwrap();
                }
            }
        });
        // The runtime lives and does nothing.
        for (n, read) in receive {
            assert_eq!(futures::executor::block_on(read).unwrap()[..], n.to_le_bytes(), "round {round}");
        }
    }
    read_from_tasks(&runtime, &bench.file);
}

/// A waker may do anything: it reads, and drops a file and other futures. Nothing of that happens under a ring's lock.
#[test]
fn wakers_read_and_drop() {
    struct Wild {
        file: File,
        kept: Mutex<Vec<Box<dyn Send>>>,
        woken: AtomicUsize,
    }

    impl Wake for Wild {
        fn wake(self: Arc<Self>) {
            self.woken.fetch_add(1, Ordering::Relaxed);
            let mut read = Box::pin(self.file.read(4096..4104).owned().into_future());
            let _ = poll_once(&mut read);
            let kept = std::mem::take(&mut *self.kept.lock().unwrap());
            drop((kept, read));
        }
    }

    let bench = Bench::new();
    let (engine, path) = (bench.engine.clone(), bench.path.clone());
    multi(2).block_on(async move {
        tokio::spawn(async move {
            let file = engine.open(&path, Open::read()).await.unwrap();
            for _ in 0..200 {
                let other = engine.open(&path, Open::read()).await.unwrap();
                let mut begun = Box::pin(other.read(0..8).owned().into_future());
                let _ = poll_once(&mut begun);
                let wild = Arc::new(Wild {
                    file: file.clone(),
                    kept: Mutex::new(vec![Box::new(begun), Box::new(other)]),
                    woken: AtomicUsize::new(0),
                });
                let waker = Waker::from(wild.clone());
                let mut reads: Vec<_> = (0..20u64)
                    .map(|n| Box::pin(file.read(n * 4096..n * 4096 + 8).owned().into_future()))
                    .collect();
                let mut left = 0;
                for read in &mut reads {
                    left += usize::from(read.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                }
                for read in reads.drain(..left / 2) {
                    drop(read);
                }
                // Other tasks progress meanwhile.
                assert_eq!(file.read(9 * 4096..9 * 4096 + 8).await.unwrap()[..], 9u64.to_le_bytes());
            }
        })
        .await
        .unwrap();
    });
}

/// The engine ends while tasks read: each gets its bytes or the reason, and nothing is leaked.
#[test]
fn the_engine_ends_while_tasks_read() {
    for round in 0..20 {
        let bench = Bench::new();
        let runtime = multi(2);
        let tasks: Vec<_> = (0..16u64)
            .map(|seed| {
                let file = bench.file.clone();
                runtime.spawn(async move {
                    for n in 0.. {
                        let at = (n * 31 + seed) % PAGES;
                        match file.read(at * 4096..at * 4096 + 8).await {
                            Ok(block) => assert_eq!(block[..], at.to_le_bytes()),
                            Err(error) => return error,
                        }
                    }
                    unreachable!("reads go on until the end")
                })
            })
            .collect();
        for _ in 0..round {
            bench.engine.nop().wait().unwrap();
        }
        let report = bench.engine.close().wait().unwrap();
        assert_eq!((report.leaked_operations, report.lost_shards), (0, 0));
        for task in tasks {
            let error = runtime.block_on(task).unwrap();
            assert_eq!(error.kind(), ErrorKind::EngineClosed, "{error}");
        }
    }
}

/// Several engines in one runtime, and many threads: each operation is sent to its own engine.
#[test]
fn engines_do_not_mix() {
    let benches: Vec<_> = (0..4).map(|_| Bench::new()).collect();
    let runtime = multi(3);
    for (number, bench) in (0u64..).zip(&benches) {
        bench.file.write(0, page(number)).wait().unwrap();
    }
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for turn in 0..64 {
            let files: Vec<_> = benches.iter().map(|bench| bench.file.clone()).collect();
            tasks.spawn(async move {
                for step in 0..50 {
                    let number = (turn + step) % files.len();
                    assert_eq!(files[number].read(0..8).await.unwrap()[..], (number as u64).to_le_bytes());
                }
            });
        }
        tasks.join_all().await;
    });
    for bench in benches {
        assert_eq!(bench.engine.close().wait().unwrap().leaked_operations, 0);
    }
}

/// Classes and caps hold in rings: a capped class is not faster there.
#[test]
fn a_cap_holds_in_rings() {
    let bench = Bench::new();
    let capped = bench.engine.set_class(ClassSpec::new("capped").reads_per_second_max(1_000)).unwrap();
    let file = bench.file.clone();
    let begun = Instant::now();
    multi(2).block_on(async move {
        let mut tasks = tokio::task::JoinSet::new();
        for seed in 0..10u64 {
            let file = file.clone();
            tasks.spawn(async move {
                for n in 0..20u64 {
                    let at = (seed * 20 + n) * 4096;
                    assert_eq!(
                        file.read(at..at + 8).class(capped).await.unwrap()[..],
                        (seed * 20 + n).to_le_bytes()
                    );
                }
            });
        }
        tasks.join_all().await;
    });
    // 200 reads, less the burst of 2 ms.
    assert!(begun.elapsed() >= Duration::from_millis(190), "{:?}", begun.elapsed());
    let stats = bench.engine.stats().wait().unwrap();
    let flow = stats.flows.iter().find(|flow| flow.class == "capped").unwrap();
    assert_eq!(flow.reads, 200);
}

/// A worker submits reads whose results are awaited elsewhere, and then sleeps or computes meanwhile. The runtime's other worker
/// handles the completions; with all workers busy, shard 0 does.
#[test]
fn reads_complete_while_the_worker_that_submitted_them_is_taken() {
    const LIMIT: Duration = Duration::from_secs(60);
    for (workers, computes) in [(2, false), (2, true), (1, false), (1, true)] {
        let bench = Bench::new();
        let runtime = multi(workers);
        let (send, receive) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let file = bench.file.clone();
        let task = runtime.spawn(async move {
            file.read(0..1).await.unwrap();
            tokio::task::yield_now().await;
            for number in 0..16u64 {
                let mut read = Box::pin(file.read(number * 4096..number * 4096 + 8).owned().into_future());
                let polled = poll_once(&mut read);
                send.send((number, polled, read)).unwrap();
            }
            drop(send);
            let begun = Instant::now();
            while released.try_recv().is_err() {
                if !computes {
                    return released.recv_timeout(LIMIT).is_ok();
                }
                if begun.elapsed() > LIMIT {
                    return false;
                }
            }
            true
        });
        for (number, polled, read) in receive {
            let block = match polled {
                Poll::Ready(block) => block.unwrap(),
                Poll::Pending => futures::executor::block_on(read).unwrap(),
            };
            assert_eq!(block[..], number.to_le_bytes());
        }
        release.send(()).unwrap();
        assert!(runtime.block_on(task).unwrap(), "the reads waited for their worker");
    }
}

/// Returns the number of this process's descriptors, and of the pollers among them.
#[cfg(target_os = "linux")]
fn descriptors() -> (usize, usize) {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let links: Vec<_> = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok()).collect();
    let is_poller = |link: &&PathBuf| link.to_str().is_some_and(|link| link.contains("eventpoll"));
    (links.len(), links.iter().filter(is_poller).count())
}

/// A thread that had driven a current-thread runtime kept the ring, and with it shard 0's, for as long as it lived, though runtime
/// and engine were dropped; and the ring's engine kept the runtime's poller.
#[cfg(target_os = "linux")]
#[test]
fn a_current_thread_runtime_takes_its_ring_along() {
    let name = "worker_rings::a_current_thread_runtime_takes_its_ring_along";
    // Alone: it counts the descriptors of its process.
    forebay_test::children::Scene::new(name).play(|| {
        // Tokio's sockets for signals are the process's.
        drop(current());
        let before = descriptors();
        let bench = Bench::new();
        read_waiting(&bench.file);
        let without = descriptors();
        let mut after = Vec::new();
        for _ in 0..3 {
            let runtime = current();
            runtime.block_on(async {
                for turn in 0..10u64 {
                    bench.file.read(turn * 4096..turn * 4096 + 100).await.unwrap();
                    tokio::task::yield_now().await;
                }
            });
            if !bench.has_rings() {
                return println!("skipped: the kernel gives no rings to workers");
            }
            assert!(descriptors().1 > without.1, "the runtime has a poller");
            drop(runtime);
            after.push(descriptors());
        }
        assert_eq!(after[0].1, without.1, "the runtime's poller is gone");
        assert_eq!(after, [after[0]; 3], "the next runtime has the ring of the one before");
        let Bench { engine, file, path: _, _dir } = bench;
        drop(file);
        engine.close().wait().unwrap();
        drop(_dir);
        // Threads of the engine release it a moment after its close.
        let begun = Instant::now();
        while descriptors() != before {
            assert!(begun.elapsed() < Duration::from_secs(30), "{before:?} before, now {:?}", descriptors());
            std::thread::yield_now();
        }
    });
}

/// Story: an attendant that was polled while another one of its runtime was dropped could leave its waker behind, in a ring that
/// the next runtime had already. The waker kept the poller of the dropped runtime.
#[cfg(target_os = "linux")]
#[test]
fn a_runtime_of_several_workers_leaves_no_poller_behind() {
    let name = "worker_rings::a_runtime_of_several_workers_leaves_no_poller_behind";
    // Alone: it counts the descriptors of its process.
    forebay_test::children::Scene::new(name).play(|| {
        drop(current());
        let bench = Bench::new();
        read_waiting(&bench.file);
        let without = descriptors().1;
        for _ in 0..10 {
            let runtime = multi(4);
            read_from_tasks(&runtime, &bench.file);
            drop(runtime);
            let begun = Instant::now();
            while descriptors().1 != without {
                assert!(
                    begun.elapsed() < Duration::from_secs(30),
                    "{} of {without} pollers",
                    descriptors().1
                );
                std::thread::yield_now();
            }
        }
    });
}

#[cfg(target_os = "linux")]
fn read_waiting(file: &File) {
    assert_eq!(file.read(0..100).wait().unwrap().len(), 100);
}
