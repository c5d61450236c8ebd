//! Tasks on shards: their results, their ends, and the properties that they inherit.

#![allow(clippy::panic, reason = "what panics is what some cases are about")]

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay::internal::channel;
use forebay::{Class, Engine, Error, ErrorKind, Open, shard};

use super::check::{Outcome, fail, fails_with, holds, same, same_bytes};
use super::tools::{all, bytes_of, put};
use crate::Env;

super::group! { "tasks":
    a_task_answers_what_it_returns,
    a_task_need_not_be_send_and_stays_on_its_shard,
    classes_are_inherited_and_counted,
    a_panic_is_its_awaiters_alone,
    a_panicking_destructor_ends_its_task_only,
    abort_ends_its_own_task_and_no_other,
    a_dropped_handle_lets_the_task_run_on,
    handles_dropped_and_awaited_on_the_wrong_thread,
    sleepers_wake_in_the_order_of_their_deadlines,
    a_timeout_gives_the_result_or_drops_the_future,
    yielding_lets_others_go_first,
}

async fn a_task_answers_what_it_returns(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(3).inbox_depth(2))?;
    same("number of shards", engine.shard_count(), 3)?;
    let tasks = (0..60).map(|number| {
        engine.spawn_on_shard(number % engine.shard_count(), Class::DEFAULT, move || async move {
            shard::yield_now().await;
            (number, shard::current())
        })
    });
    for answer in all(tasks).await {
        let (number, shard) = answer?;
        same("the shard", shard, Some(number % 3))?;
    }
    same("outside there is none", shard::current(), None)
}

async fn a_task_need_not_be_send_and_stays_on_its_shard(env: &Env) -> Outcome {
    let file = env.open(put(env, "a", 100_000).await?, Open::read()).await?;
    let task = env.engine().spawn_on_shard(0, Class::DEFAULT, move || async move {
        let (local, shared) = (Rc::new(Cell::new(0)), Rc::new(file));
        let mut inner = Vec::new();
        for n in 0..20u64 {
            let (local, shared) = (local.clone(), shared.clone());
            inner.push(shard::spawn(async move {
                let block = shared.read(n * 4_000..n * 4_000 + 100).await?;
                local.set(local.get() + 1);
                Ok::<_, Error>((shard::current(), block))
            })?);
        }
        let mut answers = Vec::new();
        for task in inner {
            answers.push(task.await??);
        }
        Ok::<_, Error>((local.get(), answers))
    });
    let (count, answers) = task.await??;
    same("tasks that ran", count, 20)?;
    for (n, (shard, block)) in answers.into_iter().enumerate() {
        let at = n as u64 * 4_000;
        same("the shard", shard, Some(0))?;
        same_bytes("its bytes", &block, &bytes_of(at..at + 100))?;
    }
    Ok(())
}

async fn classes_are_inherited_and_counted(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(1))?;
    let file = env.open_on(&engine, put(env, "a", 100_000).await?, Open::read()).await?;
    let reports = engine.class("reports", 50)?;
    same("the same class again", engine.class("reports", 60)?, reports)?;
    let task = engine.spawn_on_shard(0, reports, move || async move {
        let begin = shard::class();
        file.read(0..4096).await?;
        let inner = file.clone();
        let child = shard::spawn(async move {
            shard::yield_now().await;
            inner.read(0..4096).await?;
            Ok::<_, Error>(shard::class())
        })?;
        let child = child.await??;
        file.read(0..4096).class(Class::LOG).await?;
        Ok::<_, Error>([begin, child, shard::class()])
    });
    same("the classes", task.await??, [reports; 3])?;
    let stats = engine.stats().await?;
    let reads =
        |class: &str| stats.flows.iter().filter(|flow| flow.class == class).map(|flow| flow.reads).sum();
    same::<(u64, u64, u64), _>("reads", (reads("reports"), reads("log"), reads("default")), (2, 1, 0))
}

async fn a_panic_is_its_awaiters_alone(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(1))?;
    let (stop, stopped) = channel::<()>("case");
    let bystander = engine.spawn_on_shard(0, Class::DEFAULT, || stopped);
    let spawn = |which: u32| {
        engine.spawn_on_shard(0, Class::DEFAULT, move || {
            assert!(which != 0, "in the closure");
            async move {
                match which {
                    1 => std::panic::panic_any("at once"),
                    2 => {
                        shard::yield_now().await;
                        std::panic::panic_any(format!("later, number {which}"))
                    }
                    3 => std::panic::panic_any(5),
                    _ => {}
                }
                which
            }
        })
    };
    let texts = [(0, "in the closure"), (1, "at once"), (2, "later, number 2"), (3, "without a message")];
    for (which, text) in texts {
        let error = fails_with(text, spawn(which).await, ErrorKind::TaskPanicked)?;
        holds(format_args!("{error} has the text {text:?}"), error.to_string().contains(text))?;
    }
    same("a task after them", spawn(5).await?, 5)?;
    stop.send(Ok(()));
    bystander.await??;
    same("no shard is lost", engine.close().await?.lost_shards, 0)
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::panic::panic_any("in a destructor");
        }
    }
}

async fn a_panicking_destructor_ends_its_task_only(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(1))?;
    let armed = || {
        engine.spawn_on_shard(0, Class::DEFAULT, || async {
            let _bomb = Bomb;
            pending::<()>().await;
        })
    };
    let task = armed();
    engine.nop().await?;
    task.abort();
    fails_with("aborted", task.await, ErrorKind::TaskCancelled)?;
    engine.nop().await?;
    // One more whose timer fires while the engine ends.
    let task = armed();
    engine.stats().await?;
    let report = engine.close().await?;
    same("leaked and lost", (report.leaked_operations, report.lost_shards), (0, 0))?;
    fails_with("at the end", task.await, ErrorKind::TaskCancelled).map(drop)
}

struct DropProbe(Arc<AtomicU64>);

impl Drop for DropProbe {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

async fn abort_ends_its_own_task_and_no_other(env: &Env) -> Outcome {
    let engine: Engine = env.restart(|config| config.shards(2).inbox_depth(2))?;
    let dropped = Arc::new(AtomicU64::new(0));
    let waiting = |shard: usize| {
        let counted = DropProbe(dropped.clone());
        engine.spawn_on_shard(shard, Class::DEFAULT, move || async move {
            let _counted = counted;
            pending::<u32>().await
        })
    };
    // Before they have started, some of them waiting for room in the inbox.
    let tasks: Vec<_> = (0..30).map(|n| waiting(n % 2)).collect();
    tasks.iter().for_each(|task| task.abort());
    for answer in all(tasks).await {
        fails_with("aborted early", answer, ErrorKind::TaskCancelled)?;
    }
    same("destructors that ran when the handles answered", dropped.load(Ordering::SeqCst), 30)?;
    // Once it waits, twice, from here, from its own shard, from the other one, and from elsewhere.
    for from in 0..4 {
        let task = waiting(0);
        engine.stats().await?;
        let end = async move {
            task.abort();
            task.abort();
            task.await
        };
        let answer = match from {
            0 => end.await,
            1 | 2 => engine.spawn_on_shard(from % engine.shard_count(), Class::DEFAULT, move || end).await?,
            _ => env.elsewhere(end).await?,
        };
        fails_with(format_args!("from {from}"), answer, ErrorKind::TaskCancelled)?;
    }
    // Regression: a handle identified its task by its place, so aborting one that had ended aborted the next
    // task in it.
    let mut over = engine.spawn_on_shard(0, Class::DEFAULT, || async { 1 });
    same("what it returned", (&mut over).await?, 1)?;
    let (stop, stopped) = channel::<()>("case");
    let next = engine.spawn_on_shard(0, Class::DEFAULT, || stopped);
    engine.stats().await?;
    over.abort();
    engine.stats().await?;
    stop.send(Ok(()));
    next.await??;
    Ok(())
}

async fn a_dropped_handle_lets_the_task_run_on(env: &Env) -> Outcome {
    let (done, told) = channel("case");
    drop(env.engine().spawn_on_shard(0, Class::DEFAULT, move || async move {
        shard::yield_now().await;
        drop(shard::spawn(async move {
            let slept = shard::sleep(Duration::from_millis(1)).await;
            done.send(slept.map(|()| 9));
        }));
    }));
    same("what the inner task said", told.await?, 9)
}

async fn handles_dropped_and_awaited_on_the_wrong_thread(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(2))?;
    for place in 0..3 {
        let (go, gone) = channel::<()>("case");
        let (done, told) = channel("case");
        let waiting = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            let answer = gone.await;
            done.send(answer.map(|()| 7));
        });
        let over = engine.spawn_on_shard(1, Class::DEFAULT, || async { 5 });
        let inner =
            engine.spawn_on_shard(0, Class::DEFAULT, || async { shard::spawn(async { 6 }) }).await??;
        let end = async move {
            drop(waiting);
            (over.await, inner.await)
        };
        let (over, inner) = match place {
            2 => env.elsewhere(end).await?,
            shard => engine.spawn_on_shard(shard, Class::DEFAULT, move || end).await?,
        };
        same("handles awaited elsewhere", (over?, inner?), (5, 6))?;
        go.send(Ok(()));
        same("a task whose handle was dropped elsewhere", told.await?, 7)?;
    }
    Ok(())
}

/// Deadlines count from the start of a sleep, so the order is only known if all started together. When the machine stopped in
/// between (a virtual one without its processor for 5 ms, say), the case tries again.
async fn sleepers_wake_in_the_order_of_their_deadlines(env: &Env) -> Outcome {
    for _ in 0..100 {
        let engine = env.engine().clone();
        let task = env.engine().spawn_on_shard(0, Class::DEFAULT, move || async move {
            let order = Rc::new(Cell::new(0u64));
            let begun_ns = Rc::new(Cell::new(0));
            let mut tasks = Vec::new();
            let before_ns = engine.now_ns();
            for ms in [6u64, 2, 4, 0, 2, 9] {
                let order = order.clone();
                tasks.push(shard::spawn(async move {
                    shard::sleep(Duration::from_millis(ms)).await?;
                    order.set(order.get() * 10 + ms);
                    Ok::<_, Error>(())
                })?);
            }
            let (begun, clock) = (begun_ns.clone(), engine.clone());
            tasks.push(shard::spawn(async move {
                begun.set(clock.now_ns());
                Ok::<_, Error>(())
            })?);
            for task in tasks {
                task.await??;
            }
            Ok::<_, Error>((order.get(), begun_ns.get().saturating_sub(before_ns)))
        });
        let (order, spread_ns) = task.await??;
        if spread_ns < 1_000_000 {
            return same("the order", order, 22_469);
        }
    }
    fail("the sleeps never began within a millisecond of each other")
}

async fn a_timeout_gives_the_result_or_drops_the_future(env: &Env) -> Outcome {
    let file = env.open(put(env, "a", 400_000).await?, Open::read()).await?;
    let task = env.engine().spawn_on_shard(0, Class::DEFAULT, move || async move {
        let ready = shard::timeout(Duration::ZERO, async { 5 }).await?;
        let hour = Duration::from_secs(3600);
        let read = shard::timeout(hour, async { file.read(0..100).await }).await??.len();
        let dropped = Rc::new(());
        let held = dropped.clone();
        let never = async move {
            let _held = held;
            pending::<()>().await
        };
        let elapsed = shard::timeout(Duration::from_millis(1), never).await.map_err(|error| error.kind());
        let left = Rc::strong_count(&dropped);
        // A sleep for ever is a valid sleep, and can be dropped.
        let sleep = shard::timeout(Duration::from_millis(1), shard::sleep(Duration::MAX)).await;
        // Reads cut off in flight leave everything right.
        for n in 0..90u64 {
            let read = async { file.read(n * 4096..(n + 1) * 4096).await };
            let _ = shard::timeout(Duration::from_micros(n), read).await;
        }
        Ok::<_, Error>((ready, read, elapsed, left, sleep.is_err()))
    });
    same("what came", task.await??, (5, 100, Err(ErrorKind::Elapsed), 1, true))
}

async fn yielding_lets_others_go_first(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(1))?;
    let task = engine.spawn_on_shard(0, Class::DEFAULT, || async {
        let flag = Rc::new(Cell::new(false));
        let setter = flag.clone();
        let _detached = shard::spawn(async move { setter.set(true) });
        let mut yields = 0;
        while !flag.get() {
            shard::yield_now().await;
            yields += 1;
        }
        yields
    });
    same("one turn was enough", task.await?, 1)?;
    let turns = engine.stats().await?.shards[0].turns;
    let task = engine.spawn_on_shard(0, Class::DEFAULT, || async {
        for _ in 0..100 {
            shard::yield_now().await;
        }
    });
    task.await?;
    // Regression: a task that was alone was polled again in the same turn, and the requests that it had made
    // were not sent.
    holds("each time is a turn", engine.stats().await?.shards[0].turns >= turns + 100)
}
