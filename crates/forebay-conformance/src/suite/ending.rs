//! The end of an engine: it is orderly, reported to every waiter, and never waits for itself.

use std::cell::RefCell;
use std::future::{IntoFuture, pending};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use forebay::internal::channel;
use forebay::{Class, Config, Dir, Engine, Error, ErrorKind, File, Open, shard};

use super::check::{Outcome, fail, fails_with, holds, same, same_bytes};
use super::files::calls;
use super::tools::{SendFuture, all, bytes_of, modes, poll_now, put, some};
use crate::Env;

super::group! { "ending":
    closing_answers_every_operation_in_flight,
    closing_answers_operations_of_every_kind,
    closing_answers_a_batch,
    after_the_end_every_call_says_so,
    an_engine_dropped_before_its_files,
    the_last_engine_dropped_on_its_own_shard,
    the_last_engine_dropped_elsewhere,
    close_awaited_on_its_own_shard_cancels_the_task,
    an_engine_closed_twice,
    a_close_that_nobody_awaits_ends_the_engine,
    tasks_end_on_their_own_thread,
    futures_dropped_while_the_engine_ends,
    an_open_outlives_all_handles,
}

async fn scene(env: &Env, change: impl FnOnce(Config) -> Config) -> Outcome<(Engine, File)> {
    let path = env.path("a");
    if !env.storage().has(env.engine(), &path).await {
        put(env, "a", 1 << 20).await?;
    }
    let engine = env.restart(change)?;
    let file = env.open_on(&engine, &path, Open::write()).await?;
    Ok((engine, file))
}

/// Checks that a read returned the bytes of the file, or reported that the engine was closed.
fn check_read(n: u64, read: Poll<Result<forebay::Block, Error>>) -> Outcome {
    match read {
        Poll::Ready(Ok(block)) => same_bytes("a read", &block, &bytes_of(n * 8192..(n + 1) * 8192)),
        Poll::Ready(Err(error)) => same("a read's error", error.kind(), ErrorKind::EngineClosed),
        Poll::Pending => fail(format_args!("read {n} has no answer when close has")),
    }
}

async fn closing_answers_every_operation_in_flight(env: &Env) -> Outcome {
    for round in some(env, 10) {
        let (engine, file) = scene(env, |config| config.shards(1).queue_depth(8)).await?;
        // Some started from outside, some on the shard.
        let (inner, range) = (file.clone(), |n: u64| n * 8192..(n + 1) * 8192);
        let begun = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            let mut reads: Vec<SendFuture<Result<forebay::Block, Error>>> = Vec::new();
            for n in 0..20 {
                let file = inner.clone();
                reads.push(Box::pin(async move { file.read(range(n)).await }));
            }
            let first: Vec<_> = reads.iter_mut().map(poll_now).collect();
            (reads, first)
        });
        let (mut there, first_there) = begun.await?;
        let mut here: Vec<_> = (20..40).map(|n| file.read(range(n)).into_future()).collect();
        let first: Vec<_> = here.iter_mut().map(poll_now).collect();
        let report = engine.close().await?;
        same("leaked and lost", (report.leaked_operations, report.lost_shards), (0, 0))?;
        for (n, (read, first)) in there.iter_mut().zip(first_there).enumerate() {
            check_read(n as u64, if first.is_ready() { first } else { poll_now(read) })?;
        }
        for (n, (read, first)) in here.iter_mut().zip(first).enumerate() {
            check_read(20 + n as u64, if first.is_ready() { first } else { poll_now(read) })?;
        }
        let error = fails_with("a later read", file.read(0..1).await, ErrorKind::EngineClosed)?;
        holds(format_args!("round {round}: the error has a path"), error.path().is_some())?;
    }
    Ok(())
}

async fn closing_answers_operations_of_every_kind(env: &Env) -> Outcome {
    for round in some(env, 6) {
        for open in modes(env, Open::write()) {
            let path = put(env, "b", 100_000).await?;
            let engine = env.restart(|config| config.shards(1).inbox_depth(1 + round as usize))?;
            let file = env.open_on(&engine, &path, open).await?;
            let mut begun = Vec::new();
            for (name, mut call) in calls(&engine, &file)? {
                if poll_now(&mut call).is_pending() {
                    begun.push((name, call));
                }
            }
            let report = engine.close().await?;
            same("leaked and lost", (report.leaked_operations, report.lost_shards), (0, 0))?;
            // Calls that a thread of the pool has started run to their end; all others have ended.
            for (name, call) in begun {
                let Err(error) = call.await else { continue };
                let known = matches!(error.kind(), ErrorKind::EngineClosed | ErrorKind::Misaligned { .. });
                // Cut by the concurrent truncation, of a range that the file does not have, or a command that its device does not
                // have.
                let other = matches!(error.kind(), ErrorKind::UnexpectedEof { .. } | ErrorKind::Unsupported);
                holds(format_args!("{name} is told of the end: {error:?}"), known || other)?;
            }
        }
    }
    Ok(())
}

/// Each range completes, with its bytes or with the engine's end, whichever was first.
async fn closing_answers_a_batch(env: &Env) -> Outcome {
    let (engine, file) = scene(env, |config| config.shards(1)).await?;
    let range = |n: u64| n % 250 * 4096..n % 250 * 4096 + 4096;
    let mut batch =
        file.read_many((0..10_000).map(range)).gap_bytes_max(0).request_bytes_max(4096).into_future();
    // On a busy machine the whole batch may be there before the poll looks.
    let first = poll_now(&mut batch);
    engine.nop().await?;
    let report = engine.close().await?;
    same("leaked and lost", (report.leaked_operations, report.lost_shards), (0, 0))?;
    let Poll::Ready(results) = (if first.is_ready() { first } else { poll_now(&mut batch) }) else {
        return fail("a batch has its results when close has");
    };
    for (n, result) in results?.into_iter().enumerate() {
        match result {
            Ok(block) => same_bytes("a range", &block[..64], &bytes_of(range(n as u64))[..64])?,
            Err(error) => same("a range", error.kind(), ErrorKind::EngineClosed)?,
        }
    }
    Ok(())
}

/// Makes every call of an open directory, on an engine that ended or that this process does not own.
async fn all_dir_calls(dir: &Dir) -> [(&'static str, Result<(), Error>); 11] {
    [
        ("open", dir.open("a", Open::read()).await.map(drop)),
        ("open_dir", dir.open_dir("a").await.map(drop)),
        ("temp_file", dir.temp_file(Open::create()).await.map(drop)),
        ("create_dir", dir.create_dir("late").await),
        ("rename", dir.rename("a", "b").await),
        ("hard_link", dir.hard_link("a", dir, "b").await),
        ("remove_file", dir.remove_file("a").await),
        ("remove_dir", dir.remove_dir("a").await),
        ("sync_dir", dir.sync().await),
        ("read_dir", dir.read_dir().await.map(drop)),
        ("metadata", dir.own_metadata().await.map(drop)),
    ]
}

async fn all_closed(env: &Env, engine: &Engine, file: &File, dir: Option<&Dir>, own: &Engine) -> Outcome {
    for (name, call) in calls(own, file)? {
        fails_with(name, call.await, ErrorKind::EngineClosed)?;
    }
    let path = env.path("late");
    let (found, below) = (file.path(), path.join("below"));
    if let Some(dir) = dir {
        for (operation, result) in all_dir_calls(dir).await {
            let error = fails_with(operation, result, ErrorKind::EngineClosed)?;
            same("the operation of the error", error.operation(), operation)?;
        }
    }
    let results = [
        ("open", engine.open(found, Open::read()).await.map(drop)),
        ("open_dir", engine.open_dir(env.dir()).await.map(drop)),
        ("temp_file", engine.temp_file(env.dir(), Open::create()).await.map(drop)),
        ("nop", engine.nop().await),
        ("stats", engine.stats().await.map(drop)),
        ("metadata", engine.metadata(found).await.map(drop)),
        ("read_dir", engine.read_dir(env.dir()).await.map(drop)),
        ("rename", engine.rename(found, &path).await),
        ("hard_link", engine.hard_link(found, &path).await),
        ("remove_file", engine.remove_file(found).await),
        ("remove_dir", engine.remove_dir(env.dir()).await),
        ("create_dir", engine.create_dir(&path).await),
        ("create_dir_all", engine.create_dir_all(&below).await),
        ("sync_dir", engine.sync_dir(env.dir()).await),
        ("spawn_on_shard", engine.spawn_on_shard(0, Class::DEFAULT, || async {}).await),
        ("close", engine.clone().close().await.map(drop)),
    ];
    for (name, result) in results {
        fails_with(name, result, ErrorKind::EngineClosed)?;
    }
    Ok(())
}

async fn after_the_end_every_call_says_so(env: &Env) -> Outcome {
    for open in modes(env, Open::write()) {
        let path = put(env, "a", 10_000).await?;
        let engine = env.restart(|config| config)?;
        let file = env.open_on(&engine, &path, open).await?;
        // A namespace's files are in no directory.
        let dir = if env.is_namespace() { None } else { Some(engine.open_dir(env.dir()).await?) };
        engine.clone().close().await?;
        all_closed(env, &engine, &file, dir.as_ref(), env.engine()).await?;
        same_bytes("the file", &super::tools::content(env, &path).await?, &bytes_of(0..10_000))?;
        // Closing a file that was closed with its engine does no harm.
        file.close().await?;
    }
    Ok(())
}

async fn an_engine_dropped_before_its_files(env: &Env) -> Outcome {
    let (engine, file) = scene(env, |config| config).await?;
    let mut reads: Vec<_> = (0..20).map(|n| file.read(n * 8192..(n + 1) * 8192).into_future()).collect();
    let first: Vec<_> = reads.iter_mut().map(poll_now).collect();
    drop(engine);
    for (name, call) in calls(env.engine(), &file)? {
        fails_with(name, call.await, ErrorKind::EngineClosed)?;
    }
    for (n, (read, first)) in reads.into_iter().zip(first).enumerate() {
        let answer = match first {
            Poll::Ready(answer) => answer,
            Poll::Pending => read.await,
        };
        check_read(n as u64, Poll::Ready(answer))?;
    }
    Ok(())
}

async fn the_last_engine_dropped_on_its_own_shard(env: &Env) -> Outcome {
    for shards in [1, 2] {
        let (engine, file) = scene(env, |config| config.shards(shards)).await?;
        let (go, gone) = channel::<()>("case");
        let (inner, read) = (engine.clone(), file.clone());
        let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            let told = gone.await;
            let mut reads: Vec<_> =
                (0..8).map(|n| read.read(n * 4096..n * 4096 + 100).into_future()).collect();
            let _ = reads.iter_mut().map(poll_now).filter(Poll::is_ready).count();
            drop(inner);
            drop(reads);
            shard::yield_now().await;
            shard::yield_now().await;
            told
        });
        drop(engine);
        go.send(Ok(()));
        match task.await {
            Ok(told) => told?,
            Err(error) => same("the task", error.kind(), ErrorKind::TaskCancelled)?,
        }
        fails_with("a read", file.read(0..1).await, ErrorKind::EngineClosed)?;
    }
    Ok(())
}

async fn the_last_engine_dropped_elsewhere(env: &Env) -> Outcome {
    let (engine, file) = scene(env, |config| config.shards(2)).await?;
    let task = engine.spawn_on_shard(1, Class::DEFAULT, pending::<()>);
    engine.stats().await?;
    env.elsewhere(async move { drop(engine) }).await?;
    fails_with("a read", file.read(0..1).await, ErrorKind::EngineClosed)?;
    fails_with("a task", task.await, ErrorKind::TaskCancelled).map(drop)
}

async fn close_awaited_on_its_own_shard_cancels_the_task(env: &Env) -> Outcome {
    for shards in [1, 2] {
        let (engine, _file) = scene(env, |config| config.shards(shards)).await?;
        let inner = engine.clone();
        let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move { inner.close().await });
        fails_with("the task", task.await, ErrorKind::TaskCancelled)?;
        fails_with("the engine", engine.nop().await, ErrorKind::EngineClosed)?;
    }
    Ok(())
}

async fn an_engine_closed_twice(env: &Env) -> Outcome {
    let (engine, _file) = scene(env, |config| config.shards(2)).await?;
    let (one, two) = (engine.clone(), engine);
    let first = one.close();
    fails_with("the second", two.close().await, ErrorKind::EngineClosed)?;
    let report = first.await?;
    same("the first", (report.leaked_operations, report.lost_shards), (0, 0))
}

async fn a_close_that_nobody_awaits_ends_the_engine(env: &Env) -> Outcome {
    let (engine, file) = scene(env, |config| config).await?;
    drop(engine.clone().close());
    fails_with("a read", file.read(0..1).await, ErrorKind::EngineClosed)?;
    fails_with("the engine", engine.stats().await, ErrorKind::EngineClosed).map(drop)
}

/// Counts, when it is dropped, whether that happens on the shard where it was made.
struct ShardProbe {
    made: Rc<RefCell<Option<usize>>>,
    right: Arc<AtomicU64>,
}

impl Drop for ShardProbe {
    fn drop(&mut self) {
        let right = shard::current().is_some() && *self.made.borrow() == shard::current();
        self.right.fetch_add(u64::from(right), Ordering::SeqCst);
    }
}

async fn tasks_end_on_their_own_thread(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(2))?;
    let right = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..20)
        .map(|n| {
            let right = right.clone();
            engine.spawn_on_shard(n % engine.shard_count(), Class::DEFAULT, move || {
                let owned = ShardProbe { made: Rc::new(RefCell::new(shard::current())), right };
                async move {
                    let _owned = owned;
                    match n % 3 {
                        0 => pending().await,
                        _ => shard::sleep(std::time::Duration::MAX).await.unwrap_or_default(),
                    }
                }
            })
        })
        .collect();
    engine.stats().await?;
    engine.close().await?;
    same("destructors on the right thread", right.load(Ordering::SeqCst), 20)?;
    for answer in all(tasks).await {
        fails_with("a task", answer, ErrorKind::TaskCancelled)?;
    }
    Ok(())
}

async fn futures_dropped_while_the_engine_ends(env: &Env) -> Outcome {
    for round in some(env, 20) {
        let (engine, file) = scene(env, |config| config.shards(2).inbox_depth(4)).await?;
        let mut begun = Vec::new();
        for (_, mut call) in calls(&engine, &file)? {
            if poll_now(&mut call).is_pending() {
                begun.push(call);
            }
        }
        let mut reads: Vec<_> = (0..20).map(|n| file.read(n * 8192..(n + 1) * 8192).into_future()).collect();
        let _ = reads.iter_mut().map(poll_now).filter(Poll::is_ready).count();
        let closing = engine.close();
        match round % 2 {
            0 => drop(begun),
            _ => env.elsewhere(async move { drop(begun) }).await?,
        }
        drop(reads);
        let report = closing.await?;
        same("leaked and lost", (report.leaked_operations, report.lost_shards), (0, 0))?;
    }
    Ok(())
}

async fn an_open_outlives_all_handles(env: &Env) -> Outcome {
    let path = put(env, "a", 10_000).await?;
    for _ in some(env, 20) {
        let engine = env.restart(|config| config.shards(1))?;
        let opening = env.open_on(&engine, &path, Open::read());
        drop(engine);
        // The call may hold the engine until it has completed; the file then belongs to an engine that ends.
        let file = match opening.await {
            Ok(file) => file,
            Err(error) => {
                same("the open", error.kind(), ErrorKind::EngineClosed)?;
                continue;
            }
        };
        match file.read(0..100).await {
            Ok(block) => same_bytes("a read", &block, &bytes_of(0..100))?,
            Err(error) => same("a read", error.kind(), ErrorKind::EngineClosed)?,
        }
    }
    Ok(())
}
