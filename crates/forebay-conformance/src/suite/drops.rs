//! Futures that are dropped at every await, and that move from thread to thread while their operation runs.

use std::task::Poll;

use forebay::{Class, Engine, ErrorKind, FileCache, FilePlace, Open, shard};

use super::check::{Outcome, Stop, fails_with, same, same_bytes};
use super::operations::{LEN, Operation, operations, scene};
use super::tools::{all, at_rest, bytes_of, content, modes, poll_now, poll_times, some};
use crate::Env;

super::group! { "drops":
    at_every_await_in_a_task,
    at_every_await_elsewhere,
    at_every_await_on_a_shard,
    at_every_await_with_an_inbox_of_one,
    all_at_once_with_an_inbox_of_one,
    begun_on_a_shard_and_ended_anywhere,
    begun_outside_and_ended_on_a_shard,
    begun_elsewhere_and_ended_here,
    never_polled,
    nothing_of_a_file_cache_is_left_after_its_close [FileSystem],
}

/// More polls than any of the operations needs.
pub(super) const POLLS: u64 = 9;

/// Returns the operation's own outcome, if it ended.
fn ended((name, outcome): (&'static str, Option<Outcome>)) -> Outcome {
    outcome.unwrap_or(Ok(())).map_err(|stop| stop.of(name))
}

/// Checks, after operations were dropped, that all memory was released and the file is unchanged.
pub(super) async fn settled(env: &Env, engine: &Engine) -> Outcome {
    at_rest(env, engine).await?;
    for number in 0..modes(env, Open::read()).len() {
        let path = env.path(&number.to_string());
        same_bytes("the file", &content(env, path).await?, &bytes_of(0..LEN))?;
    }
    Ok(())
}

async fn at_every_await_in_a_task(env: &Env) -> Outcome {
    let scene = scene(env, env.engine()).await?;
    for times in some(env, POLLS) {
        for (name, mut future) in operations(env, env.engine(), &scene) {
            ended((name, poll_times(&mut future, times as u32).await))?;
        }
        settled(env, env.engine()).await?;
    }
    Ok(())
}

async fn at_every_await_elsewhere(env: &Env) -> Outcome {
    let scene = scene(env, env.engine()).await?;
    for times in some(env, POLLS) {
        let operations = operations(env, env.engine(), &scene);
        let outcome = env.elsewhere(async move {
            for (name, mut future) in operations {
                ended((name, poll_times(&mut future, times as u32).await))?;
            }
            Ok::<_, Stop>(())
        });
        outcome.await??;
        settled(env, env.engine()).await?;
    }
    Ok(())
}

async fn at_every_await_on_a_shard(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(2))?;
    let scene = scene(env, &engine).await?;
    for times in some(env, POLLS) {
        // A file's home shard and the other one.
        for shard in 0..2 {
            let operations = operations(env, &engine, &scene);
            let task =
                engine.spawn_on_shard(shard % engine.shard_count(), Class::DEFAULT, move || async move {
                    for (name, mut future) in operations {
                        ended((name, poll_times(&mut future, times as u32).await))?;
                        drop(future);
                        shard::yield_now().await;
                    }
                    Ok::<_, Stop>(())
                });
            task.await??;
        }
        settled(env, &engine).await?;
    }
    Ok(())
}

async fn at_every_await_with_an_inbox_of_one(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(1).inbox_depth(1).queue_depth(2))?;
    let scene = scene(env, &engine).await?;
    for times in some(env, POLLS) {
        // All kinds concurrently, so that most find the inbox full.
        let futures = operations(env, &engine, &scene);
        let polled = futures
            .into_iter()
            .map(async |(name, mut future)| (name, poll_times(&mut future, times as u32).await));
        for one in all(polled).await {
            ended(one)?;
        }
        settled(env, &engine).await?;
    }
    Ok(())
}

async fn all_at_once_with_an_inbox_of_one(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(1).inbox_depth(1).queue_depth(3))?;
    let scene = scene(env, &engine).await?;
    let reads = (0..600u64).map(|n| {
        let file = scene.files[n as usize % scene.files.len()].clone();
        async move {
            let at = n * 977 % (LEN - 100);
            (at, file.read(at..at + 100).await)
        }
    });
    for (at, block) in all(reads).await {
        same_bytes(format_args!("at {at}"), &block?, &bytes_of(at..at + 100))?;
    }
    for result in all(operations(env, &engine, &scene)
        .into_iter()
        .map(async |(name, future)| future.await.map_err(|stop| stop.of(name))))
    .await
    {
        result?;
    }
    settled(env, &engine).await
}

/// Polls each once, and returns those that have not completed yet.
pub(super) fn begin(operations: Vec<Operation>) -> Outcome<Vec<Operation>> {
    let mut begun = Vec::new();
    for (name, mut future) in operations {
        match poll_now(&mut future) {
            Poll::Ready(outcome) => outcome.map_err(|stop| stop.of(name))?,
            Poll::Pending => begun.push((name, future)),
        }
    }
    Ok(begun)
}

/// Awaits each to its end.
pub(super) async fn finish(begun: Vec<Operation>) -> Outcome {
    for (name, future) in begun {
        future.await.map_err(|stop| stop.of(name))?;
    }
    Ok(())
}

/// The fates of futures that were started on one thread and moved to another.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Finished,
    Dropped,
    PolledAndDropped,
    /// Polled once there, then returned to the thread where it started.
    SentBack,
}

const FATES: [Fate; 4] = [Fate::Finished, Fate::Dropped, Fate::PolledAndDropped, Fate::SentBack];

impl Fate {
    /// Returns the futures that are still to be finished where they started.
    async fn strikes(self, begun: Vec<Operation>) -> Outcome<Vec<Operation>> {
        match self {
            Fate::Finished => finish(begun).await.map(|()| Vec::new()),
            Fate::Dropped => {
                drop(begun);
                Ok(Vec::new())
            }
            Fate::PolledAndDropped => begin(begun).map(|_| Vec::new()),
            Fate::SentBack => begin(begun),
        }
    }
}

async fn begun_on_a_shard_and_ended_anywhere(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(2))?;
    let scene = scene(env, &engine).await?;
    for round in some(env, 36) {
        let fate = FATES[round as usize % 4];
        let place = ["here", "elsewhere", "the other shard"][round as usize / 4 % 3];
        // The device has had no turn, or some.
        let turns = [0, 1, 4][round as usize / 12];
        let operations = operations(env, &engine, &scene);
        let begun = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            let begun = begin(operations)?;
            for _ in 0..turns {
                shard::yield_now().await;
            }
            Ok::<_, Stop>(begun)
        });
        let begun = begun.await??;
        let struck = fate.strikes(begun);
        let back = match place {
            "here" => struck.await,
            "elsewhere" => env.elsewhere(struck).await?,
            _ => engine.spawn_on_shard(1, Class::DEFAULT, move || struck).await?,
        };
        let what = format!("{fate:?} {place} after {turns}");
        let back = back.map_err(|stop| stop.of(&what))?;
        engine
            .spawn_on_shard(0, Class::DEFAULT, move || finish(back))
            .await?
            .map_err(|stop| stop.of(&what))?;
        settled(env, &engine).await.map_err(|stop| stop.of(&what))?;
    }
    Ok(())
}

async fn begun_outside_and_ended_on_a_shard(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(2))?;
    let scene = scene(env, &engine).await?;
    for round in some(env, 8) {
        let (fate, shard) = (FATES[round as usize % 4], round as usize / 4);
        let what = format!("{fate:?} on shard {shard}");
        let begun = begin(operations(env, &engine, &scene))?;
        let struck = fate.strikes(begun);
        let back =
            engine.spawn_on_shard(shard % engine.shard_count(), Class::DEFAULT, move || struck).await?;
        finish(back.map_err(|stop| stop.of(&what))?).await.map_err(|stop| stop.of(&what))?;
        settled(env, &engine).await.map_err(|stop| stop.of(&what))?;
    }
    Ok(())
}

async fn begun_elsewhere_and_ended_here(env: &Env) -> Outcome {
    let scene = scene(env, env.engine()).await?;
    for round in some(env, 4) {
        let fate = FATES[round as usize];
        let operations = operations(env, env.engine(), &scene);
        let begun = env.elsewhere(async move { begin(operations) }).await??;
        let back = fate.strikes(begun).await.map_err(|stop| stop.of(format_args!("{fate:?}")))?;
        env.elsewhere(finish(back)).await??;
        settled(env, env.engine()).await.map_err(|stop| stop.of(format_args!("{fate:?}")))?;
    }
    Ok(())
}

async fn never_polled(env: &Env) -> Outcome {
    let scene = scene(env, env.engine()).await?;
    let (here, elsewhere) = (operations(env, env.engine(), &scene), operations(env, env.engine(), &scene));
    let there = operations(env, env.engine(), &scene);
    drop(here);
    env.elsewhere(async move { drop(elsewhere) }).await?;
    env.engine().spawn_on_shard(0, Class::DEFAULT, move || async move { drop(there) }).await?;
    settled(env, env.engine()).await
}

/// Files that a cache opens concurrently; more than a pool has threads.
const CACHED: usize = 24;

/// Each open makes its file, so that an open after the close would be seen.
async fn nothing_of_a_file_cache_is_left_after_its_close(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(2))?;
    for (number, round) in some(env, 8).into_iter().enumerate() {
        // A close that is dropped before its end leaves the rest to the next one.
        let (polls, is_idle_only, is_close_dropped) = (1 + round % 2, round / 2 % 2 == 0, round / 4 == 0);
        let dir = env.path(&format!("cached-{number}"));
        engine.create_dir(&dir).await?;
        let cache = FileCache::new(&engine, Open::create(), None);
        let entries: Vec<_> = (0..CACHED).map(|number| cache.file(dir.join(number.to_string()))).collect();
        let opens = entries.iter().map(async |entry| {
            let read = async { entry.open(&FilePlace::NONE).await?.read_up_to(0..4096).await };
            poll_times(&mut Box::pin(read), polls as u32).await.transpose()
        });
        for opened in all(opens).await {
            opened?;
        }
        let close = || if is_idle_only { cache.close_idle() } else { cache.close() };
        if is_close_dropped {
            let _ = poll_now(&mut close());
        }
        close().await?;
        same("open files", cache.open_files(), 0)?;
        same("files that were made", env.engine().read_dir(&dir).await?.len(), CACHED)?;
        cache.close().await?;
        fails_with("a closed cache", entries[0].open(&FilePlace::NONE).await, ErrorKind::FileClosed)?;
        at_rest(env, &engine).await?;
    }
    Ok(())
}
