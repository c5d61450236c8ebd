//! The priority of the shards' threads, health's report of it, and that everything works meanwhile. Each
//! scene is this test program again, alone with its threads.

mod scene;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay::{Class, Config, DriverChoice, Durability, Engine, Open, Priority, polite_worker};

use crate::common::{bytes_of, config, dir};
use scene::{Rights, SchedAttr, kernel_grants, scene, threads_named};

const MIB: u64 = 1 << 20;

/// Returns the settings of this run's driver, and of the one that every machine has.
fn configs() -> [Config; 2] {
    [config(), Config::new().driver(DriverChoice::Threads)]
}

/// Returns the priority that the kernel can be expected to grant to a process with these rights.
fn expected(asked: Priority) -> Priority {
    match (asked, kernel_grants()) {
        (Priority::RealTime, (true, _)) => Priority::RealTime,
        (Priority::Default, _) | (_, (_, false)) => Priority::Default,
        _ => Priority::Prompt,
    }
}

#[track_caller]
fn assert_has(thread: &SchedAttr, priority: Priority) {
    match priority {
        Priority::RealTime => assert!(thread.is_real_time(), "{thread:?}"),
        Priority::Prompt => assert!(thread.is_prompt(), "{thread:?}"),
        _ => assert!(!thread.is_real_time() && !thread.is_prompt(), "{thread:?}"),
    }
}

/// Returns the number of a shard's thread.
fn tid_of(engine: &Engine, shard: usize) -> i32 {
    let tid = engine
        .spawn_on_shard(shard, Class::DEFAULT, || async { rustix::thread::gettid().as_raw_nonzero().get() });
    tid.wait().unwrap()
}

/// Moves bytes in every way, from a thread and from each shard, and checks them; with calls of the pool from
/// shards.
#[track_caller]
fn everything_works(engine: &Engine, dir: &Path) {
    for shard in 0..engine.shard_count() {
        let (inner, path) = (engine.clone(), dir.join(format!("file-{shard}")));
        let task = engine.spawn_on_shard(shard, Class::DEFAULT, move || async move {
            let file = inner.open(&path, Open::create().truncate()).await?;
            file.write(0, bytes_of(0..MIB)).await?;
            file.write(MIB, bytes_of(MIB..2 * MIB)).durable(Durability::All).await?;
            assert!(file.read(0..MIB).await?[..] == bytes_of(0..MIB)[..]);
            Ok::<_, forebay::Error>(file)
        });
        let file = task.wait().unwrap().unwrap();
        assert_eq!(&file.read(1001..9999).wait().unwrap()[..], &bytes_of(1001..9999)[..]);
        let ranges = (0..300).map(|n| n * 5011..n * 5011 + 3000);
        for (n, block) in file.read_many(ranges).wait().unwrap().into_iter().enumerate() {
            let start = n as u64 * 5011;
            assert_eq!(&block.unwrap()[..], &bytes_of(start..start + 3000)[..]);
        }
        let ranges: Vec<_> = (0..300).map(|n| n * 5011..n * 5011 + 100).collect();
        let mut stream = file.read_many(ranges).request_bytes_max(0).depth(8).stream();
        while let Some((n, block)) = stream.next().wait() {
            let start = n as u64 * 5011;
            assert_eq!(&block.unwrap()[..], &bytes_of(start..start + 100)[..]);
        }
        let mut append = file.append().at(2 * MIB).start();
        append.write(&bytes_of(2 * MIB..2 * MIB + 10_000)).wait().unwrap();
        append.close().wait().unwrap();
        let (mut scan, mut at) = (file.scan().start(), 0);
        while let Some(block) = scan.next().wait().transpose().unwrap() {
            assert!(block[..] == bytes_of(at..at + block.len() as u64)[..], "at {at}");
            at += block.len() as u64;
        }
        assert_eq!(at, 2 * MIB + 10_000);
    }
}

#[track_caller]
fn close(engine: Engine) {
    let report = engine.close().wait().unwrap();
    assert_eq!((report.leaked_operations, report.lost_shards), (0, 0));
}

/// Returns health's entries about priorities.
fn told(engine: &Engine) -> Vec<String> {
    let about = ["real-time priority", "short time slice", "nice value of the shards"];
    let told = engine.health().degraded.into_iter().map(|degradation| degradation.what);
    told.filter(|what| about.contains(&what.as_str())).collect()
}

#[test]
fn names_and_order() {
    let all = [Priority::Default, Priority::Prompt, Priority::RealTime];
    assert_eq!(all.map(|priority| priority.to_string()), ["default", "prompt", "real-time"]);
    assert!(all.is_sorted() && Priority::default() == Priority::Default);
    assert_eq!(format!("{:>8}", Priority::Prompt), "  prompt");
}

#[test]
fn what_is_asked_is_granted_and_works() {
    scene("what_is_asked_is_granted_and_works", Rights::Same, || {
        for asked in [Priority::Default, Priority::Prompt, Priority::RealTime] {
            let granted = expected(asked);
            if granted != asked {
                println!("skipped: {asked}, which this process cannot have");
            }
            for config in configs() {
                let dir = dir();
                let engine = Engine::start(config.shards(2).priority(asked)).unwrap();
                let health = engine.health();
                assert_eq!(health.priority, granted, "{health:?}");
                assert_eq!(told(&engine).is_empty(), granted == asked, "{health:?}");
                everything_works(&engine, dir.path());
                let stats = engine.stats().wait().unwrap();
                for (index, shard) in stats.shards.iter().enumerate() {
                    assert_eq!(shard.priority, granted);
                    assert_has(&SchedAttr::of(tid_of(&engine, index)), granted);
                }
                assert_has(&SchedAttr::of(0), Priority::Default);
                close(engine);
            }
        }
    });
}

/// The kernel's workers of a ring carry out syncs of buffered files, and start on demand and stay for seconds.
#[test]
fn those_who_carry_out_the_io_have_the_priority_too() {
    scene("those_who_carry_out_the_io_have_the_priority_too", Rights::Same, || {
        for asked in [Priority::Default, Priority::Prompt, Priority::RealTime] {
            let granted = expected(asked);
            for config in configs() {
                let dir = dir();
                let engine = Engine::start(config.shards(1).priority(asked)).unwrap();
                let file = engine.open(dir.path().join("file"), Open::create().buffered()).wait().unwrap();
                let writes: Vec<_> = (0..16u64)
                    .map(|n| file.write(n * MIB, bytes_of(0..MIB)).durable(Durability::All))
                    .collect();
                let writes: Vec<_> = writes.into_iter().map(IntoFuture::into_future).collect();
                for written in futures::executor::block_on(futures::future::join_all(writes)) {
                    written.unwrap();
                }
                let workers = threads_named(match engine.driver() {
                    "uring" => "iou-wrk-",
                    _ => "forebay-io",
                });
                assert!(!workers.is_empty(), "none on {}", engine.driver());
                for tid in workers {
                    assert_has(&SchedAttr::of(tid), granted);
                }
                drop(file);
                close(engine);
                // No other workers may be left for the next engine.
                for name in ["iou-wrk-", "forebay-io"] {
                    while !threads_named(name).is_empty() {
                        std::thread::yield_now();
                    }
                }
            }
        }
    });
}

/// Regression: a thread of the pool that a shard starts inherits its priority, and would map and clear
/// gigabytes for it, or search directories, before everything else on its processor.
#[test]
fn helpers_that_a_shard_starts_are_ordinary_threads() {
    scene("helpers_that_a_shard_starts_are_ordinary_threads", Rights::Same, || {
        let before = SchedAttr::of(0);
        for asked in [Priority::Prompt, Priority::RealTime] {
            let dir = dir();
            let engine = Engine::start(config().shards(1).priority(asked)).unwrap();
            let (inner, path) = (engine.clone(), dir.path().join("file"));
            assert!(threads_named("forebay-pool").is_empty());
            let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
                inner.open(&path, Open::create()).await.map(drop)
            });
            task.wait().unwrap().unwrap();
            let helpers = threads_named("forebay-pool");
            assert!(!helpers.is_empty());
            for tid in helpers {
                let helper = SchedAttr::of(tid);
                assert_eq!(
                    (helper.policy, helper.nice, helper.slice_ns),
                    (before.policy, before.nice, before.slice_ns)
                );
            }
            close(engine);
            while !threads_named("forebay-pool").is_empty() {
                std::thread::yield_now();
            }
        }
    });
}

#[test]
fn without_the_right_real_time_becomes_prompt() {
    scene("without_the_right_real_time_becomes_prompt", Rights::Limit(0), || {
        assert!(!kernel_grants().0);
        let granted = expected(Priority::RealTime);
        for config in configs() {
            let (dir, heard) = (dir(), Arc::new(Mutex::new(Vec::new())));
            let ear = heard.clone();
            let config = config.on_event(move |degradation| ear.lock().unwrap().push(degradation.clone()));
            let engine = Engine::start(config.shards(2).priority(Priority::RealTime)).unwrap();
            assert_eq!(engine.health().priority, granted);
            let degraded = engine.health().degraded;
            let refusals: Vec<_> =
                degraded.iter().filter(|known| known.what == "real-time priority").collect();
            assert_eq!(refusals.len(), 1, "{degraded:?}");
            assert!(refusals[0].why.contains("SCHED_FIFO"), "{degraded:?}");
            assert!(refusals[0].remedy.contains("CAP_SYS_NICE"), "{degraded:?}");
            assert!(refusals[0].remedy.contains("RLIMIT_RTPRIO"), "{degraded:?}");
            assert!(heard.lock().unwrap().contains(refusals[0]));
            assert_eq!(told(&engine).len(), 1 + usize::from(granted == Priority::Default));
            everything_works(&engine, dir.path());
            assert_has(&SchedAttr::of(tid_of(&engine, 1)), granted);
            close(engine);
        }
    });
}

#[test]
fn a_limit_of_one_is_right_enough() {
    scene("a_limit_of_one_is_right_enough", Rights::Limit(1), || {
        let dir = dir();
        let engine = Engine::start(config().shards(1).priority(Priority::RealTime)).unwrap();
        assert_eq!(engine.health().priority, Priority::RealTime, "{:?}", engine.health());
        assert_has(&SchedAttr::of(tid_of(&engine, 0)), Priority::RealTime);
        everything_works(&engine, dir.path());
        close(engine);
    });
}

/// On one processor a real-time thread that spins for messages keeps all other threads from sending any.
#[test]
fn a_real_time_shard_never_spins() {
    scene("a_real_time_shard_never_spins", Rights::Same, || {
        for config in configs() {
            let dir = dir();
            let hour = Duration::from_secs(3600);
            let config = config.shards(1).priority(Priority::RealTime).spin(hour);
            let engine = Engine::start(config).unwrap();
            let file = engine.open(dir.path().join("file"), Open::create()).wait().unwrap();
            for n in 0..64 {
                file.write(n * 4096, bytes_of(0..4096)).wait().unwrap();
                file.read(n * 4096..n * 4096 + 100).wait().unwrap();
            }
            assert_eq!(engine.stats().wait().unwrap().shards[0].spins, 0);
            drop(file);
            close(engine);
        }
    });
}

/// Regression: the queues between threads spin where another thread has claimed a place and not filled it
/// yet. A shard of `SCHED_FIFO` that had preempted that thread kept its processor, and spun until the kernel
/// stepped in 0.1 s later.
#[test]
fn senders_that_are_preempted_do_not_stop_a_real_time_shard() {
    scene("senders_that_are_preempted_do_not_stop_a_real_time_shard", Rights::Same, || {
        let dir = dir();
        let engine = Engine::start(config().shards(2).priority(Priority::RealTime)).unwrap();
        let file = engine.open(dir.path().join("file"), Open::create()).wait().unwrap();
        file.write(0, bytes_of(0..MIB)).wait().unwrap();
        std::thread::scope(|scope| {
            for sender in 0..6u64 {
                let (engine, file) = (&engine, &file);
                scope.spawn(move || {
                    for n in 0..500u64 {
                        let at = (sender * 997 + n * 13) % 200 * 4096;
                        // One message, and one task that another thread wakes.
                        assert_eq!(&file.read(at..at + 8).wait().unwrap()[..], &bytes_of(at..at + 8)[..]);
                        let (ask, asked) = async_channel::bounded::<u64>(1);
                        let task = engine.spawn_on_shard(
                            n as usize % engine.shard_count(),
                            Class::DEFAULT,
                            move || async move { asked.recv().await },
                        );
                        ask.send_blocking(n).unwrap();
                        assert_eq!(task.wait().unwrap().unwrap(), n);
                    }
                });
            }
        });
        drop(file);
        close(engine);
    });
}

fn nice() -> i32 {
    SchedAttr::of(0).nice
}

#[test]
fn a_polite_worker_gives_way_alone() {
    scene("a_polite_worker_gives_way_alone", Rights::Same, || {
        let before = nice();
        let after = |start: Option<i32>| {
            let thread = std::thread::spawn(move || {
                start.into_iter().for_each(|nice| rustix::process::setpriority_process(None, nice).unwrap());
                polite_worker();
                let once = nice();
                polite_worker();
                (once, nice())
            });
            thread.join().unwrap()
        };
        assert_eq!(after(None), (before.max(10), before.max(10)));
        assert_eq!(after(Some(19)), (19, 19));
        assert_eq!(after(Some(before.max(12))), (before.max(12), before.max(12)));
        assert_eq!(nice(), before);
        let engine = Engine::start(config().priority(Priority::Prompt)).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .on_thread_start(polite_worker)
            .build()
            .unwrap();
        let worker = runtime.block_on(async { tokio::spawn(async { nice() }).await.unwrap() });
        assert_eq!((worker, nice()), (before.max(10), before));
        assert_eq!(SchedAttr::of(tid_of(&engine, 0)).nice, before);
        close(engine);
    });
}

/// Regression: an engine that a task of a runtime with polite workers started had polite shards.
#[test]
fn a_prompt_engine_started_by_a_polite_worker() {
    let name = "a_prompt_engine_started_by_a_polite_worker";
    scene(name, Rights::Limit(0), || {
        let process = nice();
        // Some systems allow it (RLIMIT_NICE): tried on a separate thread.
        let may_lower = std::thread::spawn(move || {
            polite_worker();
            rustix::process::setpriority_process(None, process).is_ok()
        });
        let may_lower = may_lower.join().unwrap();
        let engine = std::thread::spawn(|| {
            polite_worker();
            Engine::start(config().shards(1).priority(Priority::Prompt)).unwrap()
        });
        let engine = engine.join().unwrap();
        let shard = SchedAttr::of(tid_of(&engine, 0));
        if !kernel_grants().1 {
            return println!("skipped: this kernel knows no slices");
        }
        assert_has(&shard, Priority::Prompt);
        assert_eq!(engine.health().priority, Priority::Prompt);
        if may_lower || process >= 10 {
            assert_eq!((shard.nice, told(&engine).len()), (process, 0))
        } else {
            assert_eq!(shard.nice, 10);
            assert_eq!(told(&engine), ["nice value of the shards"]);
        }
        close(engine);
    });
}
