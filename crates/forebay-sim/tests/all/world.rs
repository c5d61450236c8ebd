//! The simulated world's scheduling: order, time, tasks, and the calls that are refused inside it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebay::{Class, Config, Engine, ErrorKind, Open, Placement, Priority, shard};
use forebay_sim::{self as sim, FailureKind, World};

/// A program of many small tasks on both sides; its result depends on their order.
async fn busy(engine: Engine) -> Vec<u64> {
    let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..8u64 {
        let (engine, order) = (engine.clone(), order.clone());
        tasks.push(sim::spawn(async move {
            for _ in 0..4 {
                engine.nop().await.unwrap();
                order.lock().unwrap().push(number);
                sim::sleep(Duration::from_micros(sim::random(100))).await.unwrap();
            }
            let local = engine.spawn_on_shard(
                number as usize % engine.shard_count(),
                Class::DEFAULT,
                move || async move {
                    shard::sleep(Duration::from_micros(50)).await.unwrap();
                    shard::yield_now().await;
                    shard::current().unwrap() as u64
                },
            );
            local.await.unwrap()
        }));
    }
    for task in tasks {
        let shard = task.await.unwrap();
        order.lock().unwrap().push(100 + shard);
    }
    order.lock().unwrap().clone()
}

#[test]
fn one_seed_is_one_run_and_another_seed_is_another() {
    let run = |seed| {
        let mut world = World::new(seed);
        let order = world.run(busy).unwrap();
        (order, world.history_digest(), world.now(), world.steps())
    };
    assert_eq!(run(1), run(1));
    assert_eq!(run(2), run(2));
    assert_ne!(run(1).1, run(2).1);
    assert_ne!(run(1).0, run(2).0, "the order of tasks is the seed's as well");
}

#[test]
fn hours_take_no_time() {
    let mut world = World::new(3);
    let slept = world
        .run(async |engine| {
            let before = sim::now();
            let on_shard = engine.spawn_on_shard(0, Class::DEFAULT, || async {
                shard::sleep(Duration::from_secs(7200)).await.unwrap();
            });
            sim::sleep(Duration::from_secs(3600)).await.unwrap();
            on_shard.await.unwrap();
            sim::now() - before
        })
        .unwrap();
    assert!(slept >= Duration::from_secs(7200) && slept < Duration::from_secs(7201), "{slept:?}");
    assert!(world.now() >= slept);
}

#[test]
fn waiting_is_refused_inside_and_named() {
    let mut world = World::new(4);
    let error = world.run(async |engine| engine.nop().wait().unwrap_err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::WaitInWorld);
    assert!(error.to_string().contains(".await"), "{error}");
}

#[test]
fn what_leaves_the_world_answers_that_it_does() {
    // An engine and its operations belong to one thread, while the world runs.
    let mut world = World::new(5);
    let engine = world.run(async |engine| engine).unwrap();
    let error = engine.nop().wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutsideWorld, "{error}");
    let error = world
        .run(async |engine| {
            let inside = engine.clone();
            std::thread::spawn(move || inside.nop().wait().unwrap_err()).join().unwrap()
        })
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::OutsideWorld, "{error}");
}

#[test]
fn another_threads_wake_ends_the_run() {
    let failure = World::new(6)
        .run(async |_| {
            let (tell, told) = futures::channel::oneshot::channel::<()>();
            std::thread::spawn(move || tell.send(())).join().unwrap().unwrap();
            let _ = told.await;
            // A wake-up of a future that waits, too.
            let (tell, told) = futures::channel::oneshot::channel::<()>();
            let mut tell = Some(tell);
            futures::future::join(told, async {
                sim::sleep(Duration::from_millis(1)).await.unwrap();
                let tell = tell.take().unwrap();
                std::thread::spawn(move || tell.send(())).join().unwrap().unwrap();
                sim::sleep(Duration::from_millis(1)).await.unwrap();
            })
            .await
        })
        .unwrap_err();
    assert_eq!(failure.kind(), FailureKind::ForeignThread, "{failure}");
    assert!(failure.to_string().contains("sim::spawn"), "{failure}");
}

#[test]
fn a_program_that_waits_for_the_outside_is_told_so() {
    let failure = World::new(7).run(async |_| std::future::pending::<()>().await).unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Deadlock);
    let text = failure.to_string();
    for part in ["seed 7", "Tokio", "FOREBAY_SIM_SEED=7 cargo test -p forebay", "a_program_that_waits"] {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
}

#[test]
fn a_panic_of_a_task_is_the_runs_failure() {
    let failure = World::new(8)
        .run(async |_| {
            let task = sim::spawn(async {
                sim::sleep(Duration::from_micros(1)).await.unwrap();
                panic!("the task's words");
            });
            task.await
        })
        .unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Panicked);
    assert!(failure.to_string().contains("the task's words"), "{failure}");
}

#[test]
fn circles_end() {
    let failure = World::new(9)
        .steps_max(10_000)
        .run(async |_| {
            loop {
                shard::yield_now().await;
            }
        })
        .unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Endless);
}

#[test]
fn one_world_at_a_time_on_a_thread() {
    let failure = World::new(10).run(async |_| World::new(11).run(async |_| ()).unwrap_err()).unwrap();
    assert_eq!(failure.kind(), FailureKind::NotStarted);
    assert!(!sim::is_inside());
}

#[test]
fn tasks_wander_over_all_shards_and_outside() {
    let places = World::new(12)
        .run(async |engine| {
            assert_eq!(engine.shard_count(), 2);
            let task = sim::spawn(async {
                let mut places = [0; 3];
                for _ in 0..200 {
                    places[shard::current().map_or(2, |shard| shard)] += 1;
                    sim::sleep(Duration::from_nanos(1)).await.unwrap();
                }
                places
            });
            let local = sim::spawn_local(async {
                for _ in 0..50 {
                    assert_eq!(shard::current(), None);
                    sim::sleep(Duration::from_nanos(1)).await.unwrap();
                }
            });
            local.await.unwrap();
            task.await.unwrap()
        })
        .unwrap();
    assert!(places.iter().all(|&count| count > 10), "{places:?}");
}

#[test]
fn an_aborted_task_is_dropped_where_it_stands() {
    let error = World::new(13)
        .run(async |engine| {
            let task = sim::spawn(async move {
                loop {
                    engine.nop().await.unwrap();
                }
            });
            sim::sleep(Duration::from_micros(200)).await.unwrap();
            task.abort();
            task.await.unwrap_err()
        })
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::TaskCancelled);
}

#[test]
fn a_program_may_start_engines_of_its_own_and_close_them() {
    let mut world = World::new(14).config(Config::new().shards(1));
    let report = world
        .run(async |first| {
            assert_eq!(first.shard_count(), 1);
            let second = Engine::start(Config::new().shards(3)).unwrap();
            assert_eq!((second.driver(), second.shard_count()), ("sim", 3));
            second.nop().await.unwrap();
            second.close().await
        })
        .unwrap();
    assert_eq!(report.unwrap().leaked_operations, 0);
}

#[test]
fn what_is_left_at_the_end_is_dropped_inside() {
    struct DropCounter(Rc<Cell<u32>>);
    impl Drop for DropCounter {
        fn drop(&mut self) {
            assert!(sim::is_inside());
            self.0.set(self.0.get() + 1);
        }
    }
    let drops = Rc::new(Cell::new(0));
    let inside = drops.clone();
    World::new(15)
        .run(async |_| {
            for _ in 0..3 {
                let told = DropCounter(inside.clone());
                drop(sim::spawn_local(async move {
                    sim::sleep(Duration::from_secs(1000)).await.unwrap();
                    drop(told);
                }));
            }
            sim::sleep(Duration::from_millis(1)).await.unwrap();
        })
        .unwrap();
    assert_eq!(drops.get(), 3);
}

#[test]
fn a_power_cut_ends_the_run_and_the_world_is_off_until_a_reboot() {
    let mut world = World::new(16);
    let failure = world
        .run(async |engine| {
            engine.nop().await.unwrap();
            sim::power_cut().await;
        })
        .unwrap_err();
    assert!(failure.is_power_cut());
    assert_eq!(world.run(async |_| ()).unwrap_err().kind(), FailureKind::Off);
    world.reboot();
    world.run(async |engine| engine.nop().await.unwrap()).unwrap();
    world.power_cut_after(Duration::from_micros(50));
    let failure = world.run(async |engine| busy(engine).await).unwrap_err();
    assert!(failure.is_power_cut(), "{failure}");
}

#[test]
fn a_failing_run_shrinks() {
    // Fails when two tasks are in a section at the same time; the simplest order of two tasks does not.
    let attempt = |world: &mut World| {
        world
            .run(async |_| {
                let inside = Rc::new(Cell::new(0));
                let tasks: Vec<_> = (0..6)
                    .map(|_| {
                        let inside = inside.clone();
                        sim::spawn_local(async move {
                            sim::sleep(Duration::from_micros(sim::random(1000))).await.unwrap();
                            inside.set(inside.get() + 1);
                            let crowded = inside.get() > 1;
                            sim::sleep(Duration::from_micros(sim::random(50))).await.unwrap();
                            inside.set(inside.get() - 1);
                            crowded
                        })
                    })
                    .collect();
                let mut crowded = false;
                for task in tasks {
                    crowded |= task.await.unwrap();
                }
                crowded
            })
            .map_err(|failure| failure.to_string())
            .and_then(|crowded| if crowded { Err("two at once".to_string()) } else { Ok(()) })
    };
    let failing = sim::explore(0..50, |seed| attempt(&mut World::new(seed))).unwrap_err();
    assert!(failing.to_string().contains("two at once"));
    let shrunk = sim::shrink(failing.seed(), 300, attempt).unwrap();
    assert!(shrunk.schedule.len() < shrunk.choices_before, "{shrunk}");
    let again: sim::Schedule = shrunk.schedule.to_string().parse().unwrap();
    let why = attempt(&mut World::replay(failing.seed(), &again)).unwrap_err();
    assert_eq!(why, shrunk.why);
}

/// A runtime in addition to the world's: its timers never fire while the world has the thread, and its threads cannot be repeated.
#[test]
fn tokio_inside_of_a_world_is_told_apart() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _inside = runtime.enter();
    let failure = World::new(17).run(async |_| {
        let task = tokio::spawn(async { 7 });
        task.await.unwrap()
    });
    // The world does not determine whether the worker was done before the first poll.
    if let Err(failure) = failure {
        let kinds = [FailureKind::ForeignThread, FailureKind::Deadlock];
        assert!(kinds.contains(&failure.kind()), "{failure}");
        assert!(
            failure.to_string().contains("runtime") || failure.to_string().contains("Tokio"),
            "{failure}"
        );
    }
    let failure =
        World::new(18).run(async |_| tokio::time::sleep(Duration::from_secs(3600)).await).unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Deadlock, "{failure}");
    assert!(failure.to_string().contains("Tokio"), "{failure}");
    drop(_inside);
    let failure =
        World::new(19).run(async |_| tokio::time::sleep(Duration::from_millis(1)).await).unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Panicked, "without a runtime it is Tokio's own panic: {failure}");
}

/// Channels and locks only need wakers, so they work as they are.
#[test]
fn channels_and_locks_of_tokio_work() {
    let sum = World::new(20)
        .run(async |engine| {
            let (tell, mut told) = tokio::sync::mpsc::channel(2);
            let total = std::sync::Arc::new(tokio::sync::Mutex::new(0u64));
            for number in 0..10u64 {
                let (engine, tell, total) = (engine.clone(), tell.clone(), total.clone());
                drop(sim::spawn(async move {
                    engine.nop().await.unwrap();
                    *total.lock().await += number;
                    tell.send(number).await.unwrap();
                }));
            }
            drop(tell);
            let mut sum = 0;
            while let Some(number) = told.recv().await {
                sum += number;
            }
            assert_eq!(*total.lock().await, sum);
            sum
        })
        .unwrap();
    assert_eq!(sum, 45);
}

#[test]
fn in_a_world_nobody_waits_and_the_clock_is_the_worlds() {
    let mut world = World::new(1);
    let (engine, slept_ns) = world
        .run(async |engine| {
            assert_eq!(engine.block_on(async {}).unwrap_err().kind(), ErrorKind::WaitInWorld);
            let (before, before_ns) = (sim::now(), engine.now_ns());
            sim::sleep(Duration::from_secs(7)).await.unwrap();
            let slept = (sim::now() - before).as_nanos() as u64;
            assert_eq!(engine.now_ns() - before_ns, slept);
            (engine, slept)
        })
        .unwrap();
    assert!(slept_ns >= 7_000_000_000);
    assert_eq!(engine.block_on(async {}).unwrap_err().kind(), ErrorKind::WaitInWorld);
}

/// A world's machine is not this one: the calling thread keeps its priority, nice value, policy and processors (proc(5), stat
/// and status).
#[cfg(target_os = "linux")]
#[test]
fn in_a_world_nothing_is_asked_of_the_kernel() {
    let scheduling = || {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().map(str::to_owned).collect();
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let processors = status.lines().find(|line| line.starts_with("Cpus_allowed_list")).map(str::to_owned);
        ([15, 16, 37, 38].map(|field| fields[field].clone()), processors)
    };
    let before = scheduling();
    let run = World::new(7).run(async move |_| {
        let config = Config::new().priority(Priority::RealTime).placement(Placement::Processors(vec![0]));
        let engine = Engine::start(config).unwrap();
        let file = engine.open("file", Open::create()).await.unwrap();
        file.write(0, vec![1; 4096]).await.unwrap();
        let health = engine.health();
        assert_eq!(health.priority, Priority::Default);
        assert!(health.processors.is_empty(), "{health}");
        let about = ["real-time priority", "short time slice", "nice value of the shards"];
        assert!(!health.degraded.iter().any(|known| about.contains(&known.what.as_str())), "{health}");
        assert_eq!(engine.stats().await.unwrap().shards[0].priority, Priority::Default);
        assert_eq!(scheduling(), before);
    });
    run.unwrap();
}
