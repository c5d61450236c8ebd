//! Shows: the guarantees for a task on a shard: timers, yielding, panics kept apart, abort, classes and their
//! shares. How: counters and channels inside tasks of one shard, whose order of polls is its own and does not
//! depend on load.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::common::{self, dir, engine, write_file};
use forebay::{Class, Engine, ErrorKind, Open, shard};

fn one_shard() -> Engine {
    Engine::start(common::config().shards(1)).unwrap()
}

/// Runs a future that need not be Send on the engine's first shard, to its end.
fn on_shard<F, Fut>(engine: &Engine, make: F) -> Fut::Output
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future + 'static,
    Fut::Output: Send + 'static,
{
    engine.spawn_on_shard(0, Class::DEFAULT, make).wait().unwrap()
}

#[test]
fn sleepers_wake_in_the_order_of_their_deadlines_and_not_early() {
    let engine = one_shard();
    on_shard(&engine, || async {
        let order = Rc::new(std::cell::RefCell::new(Vec::new()));
        let began = Instant::now();
        let tasks: Vec<_> = [30u64, 10, 20, 0, 10]
            .into_iter()
            .map(|ms| {
                let order = order.clone();
                shard::spawn(async move {
                    let mut sleep = shard::sleep(Duration::from_millis(ms));
                    // The deadline is between these two, which are apart if the thread was away in between.
                    let earliest = Instant::now() + Duration::from_millis(ms);
                    let done = futures::poll!(&mut sleep);
                    let latest = Instant::now() + Duration::from_millis(ms);
                    match done {
                        Poll::Ready(done) => done.unwrap(),
                        Poll::Pending => sleep.await.unwrap(),
                    }
                    assert!(began.elapsed() >= Duration::from_millis(ms), "{ms} ms");
                    order.borrow_mut().push((earliest, latest));
                })
                .unwrap()
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let order = order.borrow();
        assert_eq!(order.len(), 5);
        // The shard counts the processor's ticks, which are not exactly the system's time.
        let apart = Duration::from_millis(1);
        for (n, (earliest, _)) in order.iter().enumerate() {
            let is_first = order[n..].iter().all(|(_, latest)| *latest + apart >= *earliest);
            assert!(is_first, "one with a later deadline woke before: {order:?}");
        }
    });
}

#[test]
fn a_sleep_of_for_ever_is_one_and_can_be_dropped() {
    let engine = one_shard();
    on_shard(&engine, || async {
        for long in [Duration::MAX, Duration::from_nanos(u64::MAX), Duration::from_secs(1 << 40)] {
            let mut sleeping = Box::pin(shard::sleep(long));
            let mut waiting = Box::pin(shard::timeout(long, futures::future::pending::<()>()));
            for _ in 0..3 {
                assert!(futures::poll!(sleeping.as_mut()).is_pending());
                assert!(futures::poll!(waiting.as_mut()).is_pending());
                shard::sleep(Duration::from_millis(1)).await.unwrap();
            }
            // The shard's own wait lasts until the next deadline, which is this one for a moment.
            let error = shard::timeout(Duration::from_millis(1), sleeping).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Elapsed);
        }
    });
    // With nothing but that sleep the shard still responds.
    let sleeper = engine.spawn_on_shard(0, Class::DEFAULT, || shard::sleep(Duration::MAX));
    engine.nop().wait().unwrap();
    sleeper.abort();
    assert_eq!(sleeper.wait().unwrap_err().kind(), ErrorKind::TaskCancelled);
}

#[test]
fn a_timeout_gives_the_result_or_drops_the_future() {
    let (engine, dir) = (one_shard(), dir());
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    on_shard(&engine, || async move {
        assert_eq!(
            shard::timeout(Duration::ZERO, async { 5 }).await.unwrap(),
            5,
            "ready wins over no time at all"
        );
        let block =
            shard::timeout(Duration::from_secs(3600), async { file.read(0..100).await }).await.unwrap();
        assert_eq!(block.unwrap().len(), 100);
        let dropped = Rc::new(());
        let held = dropped.clone();
        let never = async move {
            let _held = held;
            futures::future::pending::<()>().await
        };
        let error = shard::timeout(Duration::from_millis(1), never).await.unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::Elapsed, "timeout"));
        assert_eq!(Rc::strong_count(&dropped), 1, "the future is gone when the timeout answers");
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::TimedOut);
        // Reads cut off in flight leave everything right.
        for n in 0..200u64 {
            let _ = shard::timeout(Duration::from_micros(n % 90), async {
                file.read(n * 4096..(n + 1) * 4096).await
            })
            .await;
        }
        let nested = shard::timeout(
            Duration::from_secs(3600),
            shard::timeout(Duration::from_millis(1), futures::future::pending::<()>()),
        );
        assert_eq!(nested.await.unwrap().unwrap_err().kind(), ErrorKind::Elapsed);
    });
    assert_eq!(engine.close().wait().unwrap().leaked_operations, 0);
}

#[test]
fn yielding_lets_others_go_first() {
    let engine = one_shard();
    on_shard(&engine, || async {
        let turns = Rc::new(Cell::new(0));
        let counter = turns.clone();
        let other = shard::spawn(async move {
            for _ in 0..10 {
                counter.set(counter.get() + 1);
                shard::yield_now().await;
            }
        })
        .unwrap();
        for n in 0..10 {
            assert_eq!(turns.get(), n, "each yield is one turn of the other task");
            shard::yield_now().await;
        }
        other.await.unwrap();

        // A task that computes for long and only checks: the other one must get its turn, or this never ends.
        let flag = Rc::new(Cell::new(false));
        let setter = flag.clone();
        let _detached = shard::spawn(async move { setter.set(true) });
        while !flag.get() {
            shard::yield_if_needed().await;
        }
    });
}

#[test]
fn a_panic_is_its_awaiters_alone() {
    let engine = one_shard();
    let bystander = Arc::new(AtomicU64::new(0));
    let (seen, stop) = (bystander.clone(), Arc::new(AtomicBool::new(false)));
    let stopped = stop.clone();
    let other = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        while !stopped.load(Ordering::Relaxed) {
            seen.fetch_add(1, Ordering::Relaxed);
            shard::sleep(Duration::from_micros(100)).await.unwrap();
        }
    });
    let spawn = |which: u32| {
        engine.spawn_on_shard(0, Class::DEFAULT, move || {
            assert!(which != 0, "in the closure");
            async move {
                match which {
                    1 => panic!("at once"),
                    2 => {
                        shard::yield_now().await;
                        panic!("later, number {which}")
                    }
                    3 => std::panic::panic_any(5),
                    4 => {
                        let inner: shard::JoinHandle<()> =
                            shard::spawn(async { panic!("further inside") }).unwrap();
                        let error = inner.await.unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::TaskPanicked);
                        assert!(error.to_string().contains("further inside"), "{error}");
                    }
                    _ => {}
                }
                which
            }
        })
    };
    for (which, text) in
        [(0, "in the closure"), (1, "at once"), (2, "later, number 2"), (3, "without a message")]
    {
        let error = spawn(which).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TaskPanicked, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    assert_eq!(spawn(4).wait().unwrap(), 4);
    assert_eq!(spawn(5).wait().unwrap(), 5);
    stop.store(true, Ordering::Relaxed);
    other.wait().unwrap();
    assert!(bystander.load(Ordering::Relaxed) > 0);
    assert_eq!(engine.close().wait().unwrap().lost_shards, 0);
}

struct DropCounter(Arc<AtomicU64>);

impl Drop for DropCounter {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_dropped_handle_lets_the_task_run_on() {
    let engine = engine();
    let (send, receive) = async_channel::bounded(1);
    drop(engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        shard::sleep(Duration::from_millis(1)).await.unwrap();
        drop(shard::spawn(async move {
            shard::sleep(Duration::from_millis(1)).await.unwrap();
            send.send(9).await.unwrap();
        }));
    }));
    assert_eq!(receive.recv_blocking(), Ok(9));
}

#[test]
fn abort_ends_a_task_wherever_it_waits_and_nothing_else() {
    let engine = Engine::start(common::config().shards(2)).unwrap();
    let dropped = Arc::new(AtomicU64::new(0));
    let waiting = |shard: usize| {
        let counted = DropCounter(dropped.clone());
        engine.spawn_on_shard(shard, Class::DEFAULT, move || async move {
            let _counted = counted;
            futures::future::pending::<u32>().await
        })
    };
    // Regression: an abort before the start of the task was lost. After that was fixed, the handle resolved before the values that
    // the task would have owned were dropped: seen once in a hundred, on a busy machine.
    let tasks: Vec<_> = (0..100).map(|n| waiting(n % 2)).collect();
    tasks.iter().for_each(|task| task.abort());
    for task in tasks {
        assert_eq!(task.wait().unwrap_err().kind(), ErrorKind::TaskCancelled);
    }
    assert_eq!(dropped.load(Ordering::SeqCst), 100, "the destructor has run when the handle answers");
    // Aborted once it waits: from here, from its own shard and from the other one.
    let task = waiting(0);
    engine.stats().wait().unwrap();
    task.abort();
    task.abort();
    assert_eq!(task.wait().unwrap_err().kind(), ErrorKind::TaskCancelled);
    for from in 0..2 {
        let task = waiting(0);
        let aborter =
            engine.spawn_on_shard(from % engine.shard_count(), Class::DEFAULT, move || async move {
                shard::yield_now().await;
                task.abort();
                task.await.unwrap_err().kind()
            });
        assert_eq!(aborter.wait().unwrap(), ErrorKind::TaskCancelled);
    }
    // Regression: a handle remembered its task's place in a list, so aborting a task that had ended aborted
    // whichever task had the place by then.
    let mut over = engine.spawn_on_shard(0, Class::DEFAULT, || async { 1 });
    assert_eq!(futures::executor::block_on(&mut over).unwrap(), 1);
    let (send, receive) = async_channel::bounded::<()>(1);
    let next: Vec<_> = (0..4)
        .map(|_| {
            let receive = receive.clone();
            engine.spawn_on_shard(0, Class::DEFAULT, move || async move { receive.recv().await.is_err() })
        })
        .collect();
    engine.stats().wait().unwrap();
    over.abort();
    engine.nop().wait().unwrap();
    drop(send);
    for task in next {
        assert!(task.wait().unwrap());
    }
}

#[test]
fn the_engines_end_cancels_tasks_and_runs_their_destructors() {
    let engine = Engine::start(common::config().shards(2)).unwrap();
    let dropped = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..20)
        .map(|n| {
            let counted = DropCounter(dropped.clone());
            engine.spawn_on_shard(n % 2, Class::DEFAULT, move || async move {
                let _counted = counted;
                match n % 4 {
                    0 | 1 => futures::future::pending::<()>().await,
                    _ => shard::sleep(Duration::from_secs(3600)).await.unwrap(),
                }
            })
        })
        .collect();
    let held = engine.clone();
    // All have started once the shards reply to a later query.
    engine.stats().wait().unwrap();
    engine.close().wait().unwrap();
    for task in tasks {
        assert_eq!(task.wait().unwrap_err().kind(), ErrorKind::TaskCancelled);
    }
    assert_eq!(dropped.load(Ordering::SeqCst), 20);
    let error = held.spawn_on_shard(0, Class::DEFAULT, || async {}).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EngineClosed, "{error}");
}

#[test]
fn a_tasks_class_is_inherited_by_what_it_starts_and_asks_for() {
    let (engine, dir) = (one_shard(), dir());
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let reports = engine.class("reports", 50).unwrap();
    let task = engine.spawn_on_shard(0, reports, move || async move {
        assert_eq!(shard::class(), reports);
        file.read(0..4096).await.unwrap();
        shard::sleep(Duration::from_micros(10)).await.unwrap();
        let inner = file.clone();
        let child = shard::spawn(async move {
            shard::yield_now().await;
            inner.read(0..4096).await.unwrap();
            shard::class()
        });
        assert_eq!(child.unwrap().await.unwrap(), reports);
        assert_eq!(shard::class(), reports, "after others have run");
        file.read(0..4096).class(Class::LOG).await.unwrap();
    });
    task.wait().unwrap();
    let stats = engine.stats().wait().unwrap();
    let reads = |class: &str| {
        stats.flows.iter().filter(|flow| flow.class == class).map(|flow| flow.reads).sum::<u64>()
    };
    assert_eq!((reads("reports"), reads("log"), reads("default")), (2, 1, 0));
}

#[test]
fn busy_classes_are_polled_in_the_ratio_of_their_shares() {
    let engine = one_shard();
    let classes = [("three", 300u32, 2), ("one", 100, 5), ("six", 600, 1)];
    let counts: Arc<[AtomicU64; 3]> = Arc::default();
    let (begun, polls) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for (number, (name, shares, count)) in classes.into_iter().enumerate() {
        let class = engine.class(name, shares).unwrap();
        for _ in 0..count {
            let (counts, begun, polls) = (counts.clone(), begun.clone(), polls.clone());
            tasks.push(engine.spawn_on_shard(0, class, move || async move {
                begun.fetch_add(1, Ordering::Relaxed);
                while polls.load(Ordering::Relaxed) < 20_000 {
                    shard::yield_now().await;
                    // No task counts before all are there.
                    if begun.load(Ordering::Relaxed) == 8 {
                        counts[number].fetch_add(1, Ordering::Relaxed);
                        polls.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }));
        }
    }
    tasks.into_iter().for_each(|task| task.wait().unwrap());
    let [three, one, six] = [0, 1, 2].map(|n| counts[n].load(Ordering::Relaxed) as f64);
    assert!((2.7..3.3).contains(&(three / one)), "{three} : {one}");
    assert!((5.4..6.6).contains(&(six / one)), "{six} : {one}");
}

#[test]
fn a_class_that_slept_for_long_does_not_catch_up() {
    // Regression: a class woken while the only other busy task was running kept its old virtual time, and
    // then ran alone for as many polls as it had missed while it slept.
    let engine = one_shard();
    let (wake, woken) = async_channel::bounded::<()>(1);
    let (sleeper_polls, busy_polls) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counted = sleeper_polls.clone();
    let sleeper = engine.spawn_on_shard(0, Class::BACKGROUND, move || async move {
        woken.recv().await.unwrap();
        for _ in 0..1000 {
            counted.fetch_add(1, Ordering::Relaxed);
            shard::yield_now().await;
        }
    });
    let rival = engine.spawn_on_shard(0, Class::LOG, || async {
        for _ in 0..50_000 {
            shard::yield_now().await;
        }
    });
    let (busy, asleep) = (busy_polls.clone(), sleeper_polls.clone());
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        rival.await.unwrap();
        for _ in 0..10 {
            shard::yield_now().await;
        }
        wake.send(()).await.unwrap();
        while asleep.load(Ordering::Relaxed) < 1000 {
            busy.fetch_add(1, Ordering::Relaxed);
            shard::yield_now().await;
        }
    });
    task.wait().unwrap();
    sleeper.wait().unwrap();
    let ratio = busy_polls.load(Ordering::Relaxed) as f64 / 1000.0;
    assert!((3.5..4.5).contains(&ratio), "400 shares had {ratio} times the polls of 100 shares");
}
