//! Futures that are kept unpolled at every await, as in a `select!` or a `buffer_unordered` whose body waits for something else.
//! All others continue and succeed, and the kept futures complete when they are polled again, on any thread.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, ready};

use forebay::{Class, Engine, ErrorKind, Open, WorkerRings, shard};

use super::check::{Outcome, fail, fails, holds, same, same_bytes};
use super::drops::{POLLS, begin, finish, settled};
use super::operations::{Operation, Scene, operations, scene};
use super::tools::{Dice, LIMIT, SendFuture, at_rest, bytes_of, each, poll_now, poll_times, put, some};
use crate::Env;

super::group! { "freezes":
    one_of_each_kind_in_a_task,
    one_of_each_kind_on_a_shard,
    many_of_each_kind_at_the_smallest_depths,
    many_of_each_kind_on_a_shard_at_the_smallest_depths,
    senders_that_wait_for_room,
    any_at_any_time_among_tasks_and_threads,
    reads_that_hold_all_memory,
    streams_and_batches_whose_results_nobody_takes,
    closes,
}

/// Returns the future's output, or a failure if it does not complete: the watchdog of everything that might wait for a frozen
/// future.
async fn within<T>(env: &Env, what: &str, future: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    // On an engine without frozen calls, so that its shard's timers fire.
    let (mut alarm, task): (SendFuture<()>, _) = if env.is_simulated() {
        (Box::pin(async { forebay_sim::sleep(LIMIT).await.unwrap_or_default() }), None)
    } else {
        let task = env.engine().spawn_on_shard(0, Class::DEFAULT, || shard::sleep(LIMIT));
        let task = Arc::new(Mutex::new(task));
        let alarm = task.clone();
        let ended = std::future::poll_fn(move |context| {
            Pin::new(&mut *alarm.lock().unwrap_or_else(PoisonError::into_inner)).poll(context).map(drop)
        });
        (Box::pin(ended), Some(task))
    };
    let mut future = std::pin::pin!(future);
    let output = std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(output);
        }
        ready!(alarm.as_mut().poll(context));
        Poll::Ready(fail(format_args!("{what}: no end within {} s", LIMIT.as_secs())))
    })
    .await;
    if let Some(task) = task {
        task.lock().unwrap_or_else(PoisonError::into_inner).abort();
    }
    output
}

/// Polls each `polls()` times, after a wake-up each time but the first, and keeps those that have not
/// completed.
async fn freeze(operations: Vec<Operation>, mut polls: impl FnMut() -> u64) -> Outcome<Vec<Operation>> {
    let mut frozen = Vec::new();
    for (name, mut future) in operations {
        match poll_times(&mut future, polls() as u32).await {
            Some(outcome) => outcome.map_err(|stop| stop.of(name))?,
            None => frozen.push((name, future)),
        }
    }
    Ok(frozen)
}

/// Runs one operation of each kind, all concurrently, to their end.
async fn go_on(env: &Env, engine: &Engine, scene: &Scene) -> Outcome {
    finish_all(operations(env, engine, scene)).await
}

async fn finish_all(operations: Vec<Operation>) -> Outcome {
    let futures =
        operations.into_iter().map(async |(name, future)| future.await.map_err(|stop| stop.of(name)));
    each(futures).await.into_iter().collect()
}

/// Ends the frozen futures: they are polled again, on this thread, another one or a shard, or dropped.
async fn thaw(env: &Env, engine: &Engine, frozen: Vec<Operation>, round: u64) -> Outcome {
    match round % 4 {
        0 => env.elsewhere(finish(frozen)).await?,
        1 => engine.spawn_on_shard(1 % engine.shard_count(), Class::DEFAULT, move || finish(frozen)).await?,
        2 => finish(frozen).await,
        _ => {
            drop(frozen);
            Ok(())
        }
    }
}

async fn one_of_each_kind_in_a_task(env: &Env) -> Outcome {
    let scene = scene(env, env.engine()).await?;
    for times in some(env, POLLS) {
        let what = format!("frozen after {times} polls");
        let round = async {
            let frozen = freeze(operations(env, env.engine(), &scene), || times).await?;
            go_on(env, env.engine(), &scene).await?;
            thaw(env, env.engine(), frozen, times).await
        };
        within(env, &what, round).await.map_err(|stop| stop.of(&what))?;
        settled(env, env.engine()).await?;
    }
    Ok(())
}

async fn one_of_each_kind_on_a_shard(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(2))?;
    let scene = scene(env, &engine).await?;
    for times in some(env, POLLS) {
        let what = format!("frozen on a shard after {times} polls");
        let round = async {
            let list = operations(env, &engine, &scene);
            let frozen =
                engine.spawn_on_shard(0, Class::DEFAULT, move || freeze(list, move || times)).await??;
            for shard in 0..2 {
                let list = operations(env, &engine, &scene);
                engine
                    .spawn_on_shard(shard % engine.shard_count(), Class::DEFAULT, move || finish_all(list))
                    .await??;
            }
            go_on(env, &engine, &scene).await?;
            thaw(env, &engine, frozen, times).await
        };
        within(env, &what, round).await.map_err(|stop| stop.of(&what))?;
        settled(env, &engine).await?;
    }
    Ok(())
}

/// Returns four times the operations of a scene, by kind.
fn kinds(env: &Env, engine: &Engine, scene: &Scene) -> BTreeMap<&'static str, Vec<Operation>> {
    let mut kinds: BTreeMap<_, Vec<Operation>> = BTreeMap::new();
    for _ in 0..4 {
        for (name, future) in operations(env, engine, scene) {
            kinds.entry(name).or_default().push((name, future));
        }
    }
    kinds
}

/// Numbers of polls after which all of a kind are frozen together, in addition to "polled once, all before the shard can receive
/// any".
const AFTER: [u64; 3] = [1, 2, 4];

async fn many_of_each_kind_at_the_smallest_depths(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(1).inbox_depth(1).queue_depth(2))?;
    let scene = scene(env, &engine).await?;
    for (round, name) in chosen_kinds(env, &engine, &scene) {
        // Half of them each time.
        for times in some(env, 1 + AFTER.len() as u64).into_iter().filter(|times| (times + round) % 2 == 0) {
            let what = format!("{name}, frozen {times}");
            let list = kinds(env, &engine, &scene).remove(name).unwrap_or_default();
            let round = async {
                let frozen = match times {
                    0 => begin(list)?,
                    _ => freeze(list, || AFTER[times as usize - 1]).await?,
                };
                go_on(env, &engine, &scene).await?;
                thaw(env, &engine, frozen, round).await
            };
            within(env, &what, round).await.map_err(|stop| stop.of(&what))?;
        }
        settled(env, &engine).await.map_err(|stop| stop.of(name))?;
    }
    Ok(())
}

async fn many_of_each_kind_on_a_shard_at_the_smallest_depths(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(2).inbox_depth(1).queue_depth(2))?;
    let scene = scene(env, &engine).await?;
    for (round, name) in chosen_kinds(env, &engine, &scene) {
        let list = kinds(env, &engine, &scene).remove(name).unwrap_or_default();
        let times = AFTER[round as usize % AFTER.len()];
        let round = async {
            let begun = async move {
                let polled = list.into_iter().map(|one| freeze(vec![one], move || times));
                each(polled).await.into_iter().collect::<Outcome<Vec<_>>>()
            };
            let frozen = engine.spawn_on_shard(0, Class::DEFAULT, move || begun).await??;
            let list = operations(env, &engine, &scene);
            engine.spawn_on_shard(0, Class::DEFAULT, move || finish_all(list)).await??;
            go_on(env, &engine, &scene).await?;
            thaw(env, &engine, frozen.into_iter().flatten().collect(), round).await
        };
        within(env, name, round).await.map_err(|stop| stop.of(name))?;
        settled(env, &engine).await.map_err(|stop| stop.of(name))?;
    }
    Ok(())
}

/// Returns all kinds, each with a number; in a world four that its seed decides.
fn chosen_kinds(env: &Env, engine: &Engine, scene: &Scene) -> Vec<(u64, &'static str)> {
    let names: Vec<_> = kinds(env, engine, scene).into_keys().collect();
    if env.is_simulated() {
        (0..4)
            .map(|_| (forebay_sim::random(4), names[forebay_sim::random(names.len() as u64) as usize]))
            .collect()
    } else {
        names.into_iter().enumerate().map(|(round, name)| (round as u64, name)).collect()
    }
}

/// Many senders found the inbox full, before one that is polled: the place that becomes free is not reserved
/// for them.
async fn senders_that_wait_for_room(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(1).inbox_depth(1).queue_depth(2))?;
    let path = put(env, "a", 1 << 20).await?;
    let file = env.open_on(&engine, &path, Open::read().direct()).await?;
    let read = |number: u64| -> Operation {
        let (file, at) = (file.clone(), number * 4096 % (1 << 20));
        let read =
            async move { same_bytes("read", &file.read(at..at + 100).await?, &bytes_of(at..at + 100)) };
        ("read", Box::pin(read))
    };
    let round = async {
        let mut frozen = begin((0..64).map(read).collect())?;
        finish(vec![read(64)]).await?;
        finish_all((65..80).map(read).collect()).await?;
        env.elsewhere(finish(frozen.split_off(frozen.len() / 2))).await??;
        drop(frozen);
        finish_all((80..90).map(read).collect()).await
    };
    within(env, "reads", round).await?;
    at_rest(env, &engine).await
}

/// Futures frozen by one task, which any task may poll.
type Frozen = Arc<Mutex<Vec<Operation>>>;

/// Carries out operations in some order. Some are frozen at some await and left to other tasks. Of those that
/// other tasks left, some are polled to their end here and some dropped. All the rest has to succeed.
async fn among_others(mut list: Vec<Operation>, frozen: Frozen, mut dice: Dice) -> Outcome {
    let lock = || frozen.lock().unwrap_or_else(PoisonError::into_inner);
    while !list.is_empty() {
        let (name, mut future) = list.swap_remove(dice.roll(list.len() as u64) as usize);
        if dice.roll(3) == 0 {
            match poll_times(&mut future, dice.roll(POLLS) as u32).await {
                Some(outcome) => outcome.map_err(|stop| stop.of(name))?,
                None => lock().push((name, future)),
            }
        } else {
            future.await.map_err(|stop| stop.of(name))?;
        }
        if dice.roll(6) == 0 {
            let taken = {
                let mut frozen = lock();
                let count = frozen.len() as u64;
                (count > 0).then(|| frozen.swap_remove(dice.roll(count) as usize))
            };
            if let Some((name, future)) = taken
                && dice.roll(2) == 0
            {
                future.await.map_err(|stop| stop.of(format_args!("{name}, frozen by another")))?;
            }
        }
    }
    Ok(())
}

async fn any_at_any_time_among_tasks_and_threads(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(2).inbox_depth(2).queue_depth(3))?;
    let scene = scene(env, &engine).await?;
    let seed = if env.is_simulated() { forebay_sim::random(1 << 32) } else { 0x5EED };
    let frozen = Frozen::default();
    let worker = |number: u64| {
        let list = operations(env, &engine, &scene);
        among_others(list, frozen.clone(), Dice((seed + 1) * 0x9E37_79B9 + number))
    };
    let round = async {
        let here = each((0..3).map(worker));
        let elsewhere = each((3..6).map(|number| env.elsewhere(worker(number))));
        let on_shards = each((6..10).map(|number| {
            let work = worker(number);
            engine.spawn_on_shard(number as usize % engine.shard_count(), Class::DEFAULT, move || work)
        }));
        let boxed: Vec<Pin<Box<dyn Future<Output = Outcome> + '_>>> = vec![
            Box::pin(async { here.await.into_iter().collect() }),
            Box::pin(async { elsewhere.await.into_iter().try_for_each(|outcome| outcome?) }),
            Box::pin(async { on_shards.await.into_iter().try_for_each(|outcome| outcome?) }),
        ];
        each(boxed).await.into_iter().collect::<Outcome>()?;
        // Those that no task polled, one after the other: each may end only while the others stay frozen.
        let left = std::mem::take(&mut *frozen.lock().unwrap_or_else(PoisonError::into_inner));
        env.elsewhere(finish(left)).await?
    };
    within(env, "tasks and threads", round).await?;
    settled(env, &engine).await
}

/// Frozen reads may keep the memory they were promised. Other reads then fail immediately instead of waiting, and once the frozen
/// reads are dropped everything works as before.
async fn reads_that_hold_all_memory(env: &Env) -> Outcome {
    const LEN: u64 = 256 << 10;
    // One shard and no rings: memory cached by another shard or ring would never be held.
    let engine = env.restart(|config| {
        let config = config.shards(1).worker_rings(WorkerRings::Off);
        config.arena_bytes(8 << 20).arena_bytes_max(8 << 20).overflow_bytes_max(1 << 20)
    })?;
    let path = put(env, "a", 1 << 20).await?;
    let file = env.open_on(&engine, &path, Open::read()).await?;
    let round = async {
        let mut frozen: Vec<SendFuture<_>> = Vec::new();
        let mut refused = 0;
        for number in 0..80 {
            let kept = file.clone();
            let mut read: SendFuture<_> = Box::pin(async move { kept.read(LEN..2 * LEN).await });
            if let Poll::Ready(result) = poll_now(&mut read) {
                read = Box::pin(std::future::ready(result));
            }
            frozen.push(read);
            // While memory is left another read succeeds; after that it fails with the reason.
            match file.read(0..4096).await {
                Ok(block) => same_bytes("beside them", &block, &bytes_of(0..4096))?,
                Err(error) if matches!(error.kind(), ErrorKind::ArenaExhausted { .. }) => refused += 1,
                Err(error) => return fail(format_args!("after {number} frozen reads: {error}")),
            }
            if number == 10 {
                same("refused with a third of the memory held", refused, 0)?;
            }
        }
        holds("in the end the frozen reads hold all memory", refused > 0)?;
        drop(frozen.split_off(40));
        at_rest_but_memory(env, &engine).await?;
        let mut failed = 0;
        for read in frozen {
            match env.elsewhere(read).await? {
                Ok(block) => same_bytes("a frozen read", &block, &bytes_of(LEN..2 * LEN))?,
                Err(_) => failed += 1,
            }
        }
        holds("most of the frozen reads had memory", failed < 20)?;
        same_bytes("afterwards", &file.read(0..LEN).await?, &bytes_of(0..LEN))
    };
    within(env, "reads", round).await?;
    at_rest(env, &engine).await
}

/// Waits until the shards have noticed the dropped futures.
async fn at_rest_but_memory(env: &Env, engine: &Engine) -> Outcome {
    for _ in 0..10 {
        engine.stats().await?;
        env.pause().await;
    }
    Ok(())
}

/// Batches and streams with more results than their queues hold: their requests end, and hold no slot that others need.
async fn streams_and_batches_whose_results_nobody_takes(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(1).inbox_depth(1).queue_depth(2))?;
    let scene = scene(env, &engine).await?;
    let path = put(env, "long", 1 << 20).await?;
    let file = env.open_on(&engine, &path, Open::read()).await?;
    let round = async {
        let (mut streams, mut batches) = (Vec::new(), Vec::new());
        for number in 0..6u64 {
            let ranges = || (0..200u64).map(move |n| (n * 5000 + number)..(n * 5000 + number + 100));
            let mut stream = file.read_many(ranges()).waste_bytes_max(0).depth(4).stream();
            for _ in 0..number {
                let Some((n, block)) = stream.next().await else { return fail("a stream ended early") };
                let at = n as u64 * 5000 + number;
                same_bytes("a stream", &block?, &bytes_of(at..at + 100))?;
            }
            streams.push((number, stream));
            let mut batch: SendFuture<_> = Box::pin(file.read_many(ranges()).depth(3).into_future());
            if let Poll::Ready(results) = poll_now(&mut batch) {
                batch = Box::pin(std::future::ready(results));
            }
            batches.push(batch);
        }
        go_on(env, &engine, &scene).await?;
        for (number, mut stream) in streams {
            let mut taken = number;
            while let Some((n, block)) = stream.next().await {
                let at = n as u64 * 5000 + number;
                same_bytes("a stream later", &block?, &bytes_of(at..at + 100))?;
                taken += 1;
            }
            same("results of a stream", taken, 200)?;
        }
        for batch in batches {
            let results = env.elsewhere(batch).await??;
            same("results of a batch", results.iter().filter(|result| result.is_ok()).count(), 200)?;
        }
        Ok(())
    };
    within(env, "streams", round).await?;
    settled(env, &engine).await
}

/// The close of a file or an engine starts with the call, whether or not its future is polled.
async fn closes(env: &Env) -> Outcome {
    let scene = scene(env, env.engine()).await?;
    let path = put(env, "a", 100_000).await?;
    let round = async {
        let mut frozen: Vec<SendFuture<Outcome>> = Vec::new();
        for times in 0..3 {
            let file = env.open(&path, Open::read()).await?;
            let mut read = Box::pin(async { file.read(0..50_000).await });
            let _ = poll_now(&mut read);
            let mut close: SendFuture<Outcome> = {
                let close = file.clone().close();
                Box::pin(async move { Ok(close.await?) })
            };
            if let Some(outcome) = poll_times(&mut close, times).await {
                outcome?;
            } else {
                frozen.push(close);
            }
            fails("a read of a closed file", file.read(0..10).await)?;
        }
        let engine = env.restart(|config| config.shards(2).inbox_depth(1))?;
        let other = env.open_on(&engine, &path, Open::read()).await?;
        let mut close: SendFuture<_> = Box::pin(engine.clone().close());
        if let Poll::Ready(report) = poll_now(&mut close) {
            close = Box::pin(std::future::ready(report));
        }
        fails("a read with a closed engine", other.read(0..10).await)?;
        go_on(env, env.engine(), &scene).await?;
        for close in frozen {
            env.elsewhere(close).await??;
        }
        let report = env.elsewhere(close).await??;
        same("leaked", report.leaked_operations, 0)
    };
    within(env, "closes", round).await?;
    settled(env, env.engine()).await
}
