//! Cases that need real threads: waiting on them, crossing between them at any moment, and stopping a shard
//! for a while.

#![allow(clippy::panic, reason = "what panics is what some cases are about")]

use std::future::IntoFuture;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};

use forebay::{
    Block, Class, Durability, Engine, Error, ErrorKind, File, Lock, Open, Pending, WorkerRings, shard,
};

use super::check::{Outcome, Stop, fails_with, holds, same, same_bytes};
use super::tools::{Dice, all, at_rest, bytes_of, fresh_on, open_all, poll_now, put};
use crate::Env;

super::group! { "threads":
    every_operation_can_be_waited_for [Threads],
    waiting_on_a_shard_is_an_error [Threads],
    a_full_inbox_makes_callers_wait [Threads],
    what_destructors_say_needs_no_room_in_the_inbox [Threads],
    threads_in_disorder [Threads],
    a_panicking_waker_costs_its_shard_and_everyone_is_told [Threads],
}

/// Does each call that a plain thread can wait for once.
fn wait_for_all(engine: &Engine, file: &File, env: &Env) -> Outcome {
    same_bytes("read", &file.read(5..500).wait()?, &bytes_of(5..500))?;
    same("read_up_to", file.read_up_to(99_990..100_010).wait()?.len(), 10)?;
    let (result, block) = file.read_into(4096, engine.block(4096)?).wait();
    same("read_into", result?, 4096)?;
    file.write(4096, block).durable(Durability::Data).wait()?;
    file.sync(Durability::All).wait()?;
    for result in file.read_many([1..2, 50..99]).wait()? {
        result?;
    }
    let mut stream = file.read_many([0..3, 3..5]).gap_bytes_max(0).stream();
    let mut count = 0;
    while let Some((_, result)) = stream.next().wait() {
        count += result?.len();
    }
    same("bytes of the stream", count, 5)?;
    let mut scan = file.scan().start();
    let mut bytes = 0;
    while let Some(block) = scan.next().wait().transpose()? {
        bytes += block.len();
    }
    same("scan", bytes, 100_000)?;
    let other = engine.block_on(fresh_on(env, engine, env.path("other"), Open::create(), 4096))??;
    let mut append = other.append().start();
    append.write(b"some ").wait()?;
    append.write_block(engine.block_from(b"bytes")?.freeze()).wait()?;
    append.sync(Durability::Data).wait()?;
    same("append", append.close().wait()?, 10)?;
    other.try_lock(Lock::Exclusive).wait()?;
    other.close().wait()?;
    if !env.is_namespace() {
        engine.remove_file(env.path("other")).wait()?;
    }
    engine.nop().wait()?;
    same("stats", engine.stats().wait()?.shards.len(), engine.shard_count())?;
    same("a task", engine.spawn_on_shard(0, Class::DEFAULT, || async { 4 }).wait()?, 4)
}

async fn every_operation_can_be_waited_for(env: &Env) -> Outcome {
    let path = put(env, "a", 100_000).await?;
    for file in open_all(env, &path, Open::write()).await? {
        wait_for_all(env.engine(), &file, env)?;
    }
    let engine = env.restart(|config| config)?;
    let report = engine.close().wait()?;
    same("close", (report.leaked_operations, report.lost_shards), (0, 0))
}

async fn waiting_on_a_shard_is_an_error(env: &Env) -> Outcome {
    let path = put(env, "a", 100_000).await?;
    for file in open_all(env, &path, Open::write()).await? {
        let (engine, memory) = (env.engine().clone(), env.engine().block(4096)?);
        let task = env.engine().spawn_on_shard(0, Class::DEFAULT, move || async move {
            let (into, block) = file.read_into(0, memory).wait();
            let mut append = file.append().start();
            let results = [
                ("read", file.read(0..10).wait().map(drop)),
                ("read_up_to", file.read_up_to(0..10).wait().map(drop)),
                ("read_into", into.map(drop)),
                ("write", file.write(0, vec![1; 4096]).wait()),
                ("sync", file.sync(Durability::Data).wait()),
                ("read_many", file.read_many([0..1, 5..6]).wait().map(drop)),
                (
                    "stream",
                    file.read_many([0..1, 5..6])
                        .stream()
                        .next()
                        .wait()
                        .map_or(Ok(()), |(_, result)| result.map(drop)),
                ),
                ("scan", file.scan().start().next().wait().transpose().map(drop)),
                ("append", append.write(b"a").wait()),
                ("append's sync", append.sync(Durability::Data).wait()),
                ("append's close", append.close().wait().map(drop)),
                ("nop", engine.nop().wait()),
                ("stats", engine.stats().wait().map(drop)),
                ("len", file.len().wait().map(drop)),
                ("a task", engine.spawn_on_shard(0, Class::DEFAULT, || async {}).wait()),
            ];
            (results, block.len())
        });
        let (results, len) = task.await?;
        for (name, result) in results {
            fails_with(name, result, ErrorKind::WaitOnShard)?;
        }
        same("the block of the read_into", len, 4096)?;
    }
    same_bytes("the file", &super::tools::content(env, &path).await?, &bytes_of(0..100_000))
}

/// Keeps a shard from doing anything until the sender is dropped.
async fn stop_shard(engine: &Engine) -> Outcome<mpsc::Sender<()>> {
    let (release, released) = mpsc::channel::<()>();
    let (begun, begins) = forebay::internal::channel::<()>("case");
    drop(engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        begun.send(Ok(()));
        let _ = released.recv();
    }));
    begins.await?;
    Ok(release)
}

async fn a_full_inbox_makes_callers_wait(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(1).inbox_depth(1).worker_rings(WorkerRings::Off))?;
    let file = env.open_on(&engine, put(env, "a", 100_000).await?, Open::read()).await?;
    for _ in 0..5 {
        let release = stop_shard(&engine).await?;
        let mut reads: Vec<_> = (0..100).map(|n| file.read(n * 900..n * 900 + 500).into_future()).collect();
        holds("none is answered yet", reads.iter_mut().all(|read| poll_now(read).is_pending()))?;
        let tasks: Vec<_> =
            (0..20).map(|n| engine.spawn_on_shard(0, Class::DEFAULT, move || async move { n })).collect();
        let late = engine.spawn_on_shard(0, Class::DEFAULT, std::future::pending::<()>);
        late.abort();
        drop(release);
        for (n, block) in all(reads).await.into_iter().enumerate() {
            let at = n as u64 * 900;
            same_bytes("a read", &block?, &bytes_of(at..at + 500))?;
        }
        for (n, answer) in all(tasks).await.into_iter().enumerate() {
            same("a task", answer?, n)?;
        }
        fails_with("a task that was aborted before it had room", late.await, ErrorKind::TaskCancelled)?;
    }
    at_rest(env, &engine).await
}

async fn what_destructors_say_needs_no_room_in_the_inbox(env: &Env) -> Outcome {
    let engine =
        env.restart(|config| config.shards(1).inbox_depth(1).queue_depth(4).worker_rings(WorkerRings::Off))?;
    let path = put(env, "a", 1 << 20).await?;
    for _ in 0..5 {
        let file = env.open_on(&engine, &path, Open::read()).await?;
        let blocks = all((0..20).map(|n| file.read(n * 5_000..n * 5_000 + 4_000).into_future())).await;
        let inner = file.clone();
        let begun = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            let mut reads = Vec::new();
            for n in 0..20u64 {
                let file = inner.clone();
                let mut read = Box::pin(async move { file.read(n * 5_000..n * 5_000 + 4_000).await });
                if poll_now(&mut read).is_pending() {
                    reads.push(read);
                }
            }
            reads
        });
        let there = begun.await?;
        let release = stop_shard(&engine).await?;
        let mut here: Vec<_> = (0..20).map(|n| file.read(n * 900..n * 900 + 500).into_future()).collect();
        holds("none is answered yet", here.iter_mut().all(|read| poll_now(read).is_pending()))?;
        let mut many = file.read_many([0..10, 50_000..50_010]).into_future();
        holds("nor is the batch", poll_now(&mut many).is_pending())?;
        // On another thread and here: cells, slots, blocks, a batch, and at last the file itself.
        let blocks: Vec<Result<Block, Error>> = blocks;
        env.elsewhere(async move { drop((there, blocks)) }).await?;
        drop((here, many));
        let other = file.clone();
        drop(file);
        env.elsewhere(async move { drop(other) }).await?;
        drop(release);
        at_rest(env, &engine).await?;
    }
    Ok(())
}

const FILE_BYTES: u64 = 1 << 20;

fn some_range(dice: &mut Dice) -> std::ops::Range<u64> {
    let start = dice.roll(FILE_BYTES - 70_000);
    start..start + dice.roll(69_999) + 1
}

/// Does one step of a thread in disorder, and returns the range and block if it read one.
fn step(
    dice: &mut Dice,
    engine: &Engine,
    file: &File,
    again: impl Fn() -> Pending<File>,
) -> Outcome<Option<(std::ops::Range<u64>, Block)>> {
    let range = some_range(dice);
    match dice.roll(7) {
        0 | 1 => return Ok(Some((range.clone(), file.read(range).wait()?))),
        2 => drop(poll_now(&mut file.read(range).into_future())),
        3 => drop(poll_now(&mut file.read_many([range, some_range(dice), some_range(dice)]).into_future())),
        4 => {
            let other = again().wait()?;
            drop(poll_now(&mut other.read(range).into_future()));
            if dice.roll(2) == 0 {
                other.close().wait()?;
            }
        }
        5 => {
            let file = file.clone();
            let make = move || async move {
                let block = file.read(range.clone()).await?;
                shard::yield_now().await;
                Ok::<_, Error>((range, block))
            };
            let handle =
                engine.spawn_on_shard(dice.roll(4) as usize % engine.shard_count(), Class::DEFAULT, make);
            match dice.roll(3) {
                0 => drop(handle),
                1 => handle.abort(),
                _ => return Ok(Some(handle.wait()??)),
            }
        }
        _ => {
            let mut scan = file.scan().start();
            let block = scan.next().wait().transpose()?.unwrap_or_default();
            return Ok(Some((0..block.len() as u64, block)));
        }
    }
    Ok(None)
}

async fn threads_in_disorder(env: &Env) -> Outcome {
    let path = put(env, "a", FILE_BYTES).await?;
    for (shards, inbox_depth) in [(1, 4096), (2, 2)] {
        let engine = env.restart(|config| config.shards(shards).inbox_depth(inbox_depth))?;
        let file = env.open_on(&engine, &path, Open::read()).await?;
        let (give, take) = mpsc::channel::<(std::ops::Range<u64>, Block)>();
        let threads = (0..6u64).map(|thread| {
            let (engine, file, give) = (engine.clone(), file.clone(), give.clone());
            let (storage, path) = (env.storage().clone(), path.clone());
            env.elsewhere(async move {
                let mut dice = Dice(thread * 7919 + 1);
                for _ in 0..60 {
                    if let Some(read) =
                        step(&mut dice, &engine, &file, || storage.open(&engine, &path, Open::read()))?
                    {
                        let _ = give.send(read);
                    }
                }
                Ok::<_, Stop>(())
            })
        });
        for outcome in all(threads).await {
            outcome??;
        }
        drop(give);
        // Blocks end on a thread that did not make them.
        for (range, block) in take {
            same_bytes(format_args!("{range:?}"), &block, &bytes_of(range.clone()))?;
        }
        at_rest(env, &engine).await?;
        drop(file);
        let report = engine.close().await?;
        same("leaked and lost", (report.leaked_operations, report.lost_shards), (0, 0))?;
    }
    Ok(())
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        std::panic::panic_any("in a waker");
    }
}

async fn a_panicking_waker_costs_its_shard_and_everyone_is_told(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(1).worker_rings(WorkerRings::Off))?;
    let file = env.open_on(&engine, put(env, "a", 100_000).await?, Open::read()).await?;
    let waker = Waker::from(Arc::new(Panics));
    let task = engine.spawn_on_shard(0, Class::DEFAULT, std::future::pending::<()>);
    let release = stop_shard(&engine).await?;
    let mut bad: Vec<_> = (0..3).map(|n| file.read(n * 4096..(n + 1) * 4096).into_future()).collect();
    for read in &mut bad {
        let polled = std::pin::Pin::new(read).poll(&mut Context::from_waker(&waker));
        holds("the shard is stopped", matches!(polled, Poll::Pending))?;
    }
    drop(release);
    fails_with("a task", task.await, ErrorKind::ShardLost)?;
    fails_with("a later read", file.read(0..1).await, ErrorKind::ShardLost)?;
    let told = engine.health().degraded.iter().any(|degradation| degradation.what == "shard");
    holds("it is a degradation", told)?;
    drop(bad);
    file.close().await?;
    same("lost shards", engine.close().await?.lost_shards, 1)
}
