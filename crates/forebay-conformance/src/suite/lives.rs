//! Calls about names, lengths and space that are dropped at every point: what they do is done when the file, the directory or the
//! engine is closed, and nothing of them happens to what is written afterwards.

use std::path::Path;
use std::time::Duration;

use forebay::{Advice, Class, Dir, Durability, Engine, ErrorKind, File, Lock, Open, Pending};

use super::check::{Outcome, fails_with, holds, same, same_bytes};
use super::tools::{SendFuture, bytes_of, content, poll_now, poll_times, put, put_bytes, some};
use crate::Env;

super::group! { "lives":
    calls_about_a_file_end_with_its_close [FileSystem],
    a_copy_ends_with_the_close_of_either_file [FileSystem],
    calls_in_a_directory_end_with_its_close [FileSystem],
    calls_of_an_engine_end_with_its_close [FileSystem],
    a_close_needs_no_poll_of_a_call [FileSystem],
    detached_calls_are_carried_out_before_the_close [FileSystem],
}

const LEN: u64 = 64 << 10;
/// More than the pool has threads, so that some wait for their turn.
const CROWD: usize = 24;
/// One more than the polls that a call needs.
const POLLS: u64 = 3;

/// A call that has started.
type Call = SendFuture<forebay::Result<()>>;
/// Starts one call, without the others, which would run during the checks of this one.
type Begin<On> = fn(&On) -> Call;

fn begun<T: Send + 'static>(pending: Pending<T>) -> Call {
    Box::pin(async move { pending.await.map(drop) })
}

/// Polls each as often, and drops all that have not ended.
async fn give_up(calls: Vec<Call>, times: u64) {
    let mut kept = Vec::new();
    for mut call in calls {
        if poll_times(&mut call, times as u32).await.is_none() {
            kept.push(call);
        }
    }
}

/// Lets all queued calls have their turn.
async fn later(env: &Env) -> Outcome {
    if env.is_simulated() {
        return Ok(forebay_sim::sleep(Duration::from_millis(100)).await?);
    }
    for _ in 0..CROWD {
        env.engine().metadata(env.dir()).await?;
    }
    Ok(())
}

/// Writes the file anew through another handle, and checks that it stays like that.
async fn rewrite(env: &Env, path: &Path, what: &str) -> Outcome {
    let expected = bytes_of(7..7 + LEN);
    let file = env.open(path, Open::create().truncate().buffered()).await?;
    file.write(0, expected.clone()).durable(Durability::All).await?;
    file.close().await?;
    later(env).await?;
    same_bytes(format_args!("{what}, later"), &content(env, path).await?, &expected)
}

/// Every call about one open file.
const CALLS_OF_A_FILE: [(&str, Begin<File>); 9] = [
    ("truncate", |file| begun(file.truncate(4096))),
    ("punch_hole", |file| begun(file.punch_hole(0..LEN))),
    ("allocate", |file| begun(file.allocate(0..2 * LEN))),
    ("copy_range", |file| begun(file.copy_range(0..4096, file, 8192))),
    ("advise", |file| begun(file.advise(0..LEN, Advice::DontNeed))),
    ("metadata", |file| begun(file.metadata())),
    ("len", |file| begun(file.len())),
    ("try_lock", |file| begun(file.try_lock(Lock::Exclusive))),
    ("unlock", |file| begun(file.unlock())),
];

async fn calls_about_a_file_end_with_its_close(env: &Env) -> Outcome {
    for times in some(env, POLLS) {
        for kind in some(env, CALLS_OF_A_FILE.len() as u64) {
            let path = put(env, "a", LEN).await?;
            let file = env.open(&path, Open::write()).await?;
            let (what, call) = CALLS_OF_A_FILE[kind as usize];
            give_up((0..CROWD).map(|_| call(&file)).collect(), times).await;
            file.close().await?;
            rewrite(env, &path, what).await?;
            // The lock was released with the file.
            let again = env.open(&path, Open::write()).await?;
            again.try_lock(Lock::Exclusive).await?;
            again.close().await?;
        }
    }
    Ok(())
}

async fn a_copy_ends_with_the_close_of_either_file(env: &Env) -> Outcome {
    for times in some(env, POLLS) {
        for closed in some(env, 2) {
            let (from, to) = (put(env, "from", LEN).await?, put(env, "to", LEN).await?);
            let files = [env.open(&from, Open::write()).await?, env.open(&to, Open::write()).await?];
            let calls = (0..CROWD).map(|_| begun(files[0].copy_range(0..8192, &files[1], 4096)));
            give_up(calls.collect(), times).await;
            // The other one stays open.
            files[closed as usize].clone().close().await?;
            rewrite(env, &to, "to").await?;
            rewrite(env, &from, "from").await?;
        }
    }
    Ok(())
}

/// Every call in a directory.
const CALLS_IN_A_DIRECTORY: [Begin<Dir>; 10] = [
    |dir| begun(dir.remove_file("a")),
    |dir| begun(dir.rename("a", "b")),
    |dir| begun(dir.rename_into("a", dir, "b")),
    |dir| begun(dir.hard_link("a", dir, "b")),
    |dir| begun(dir.create_dir("b")),
    |dir| begun(dir.open("b", Open::create())),
    |dir| begun(dir.open("a", Open::create().truncate())),
    |dir| begun(dir.remove_dir("b")),
    |dir| begun(dir.sync()),
    |dir| begun(dir.read_dir()),
];

/// Makes the names as they were, checks that nothing changes them any more, and removes them.
async fn stays(env: &Env, dir: &Path) -> Outcome {
    let engine = env.engine();
    let (a, b) = (dir.join("a"), dir.join("b"));
    let _ = engine.remove_dir(&b).await;
    for path in [&a, &b] {
        let _ = engine.remove_file(path).await;
    }
    let file = engine.open(&a, Open::create_new().buffered()).await?;
    file.write(0, bytes_of(0..LEN)).durable(Durability::All).await?;
    file.close().await?;
    later(env).await?;
    let names = engine.read_dir(dir).await?;
    same("the names", names.iter().map(|entry| entry.name().to_owned()).collect::<Vec<_>>(), ["a"])?;
    same_bytes("the file", &content(env, &a).await?, &bytes_of(0..LEN))
}

async fn calls_in_a_directory_end_with_its_close(env: &Env) -> Outcome {
    let path = env.path("names");
    env.engine().create_dir(&path).await?;
    for times in some(env, POLLS) {
        for kind in some(env, CALLS_IN_A_DIRECTORY.len() as u64) {
            let dir = env.engine().open_dir(&path).await?;
            let calls = (0..CROWD).map(|_| CALLS_IN_A_DIRECTORY[kind as usize](&dir));
            give_up(calls.collect(), times).await;
            let other = dir.clone();
            dir.close().await?;
            fails_with("a closed directory", other.remove_file("a").await, ErrorKind::FileClosed)?;
            stays(env, &path).await.map_err(|stop| stop.of(format_args!("call {kind}, polled {times}")))?;
        }
    }
    Ok(())
}

/// Every call of an engine about names, here a directory's and two in it.
const CALLS_OF_AN_ENGINE: [fn(&Engine, [&Path; 3]) -> Call; 12] = [
    |engine, [_, a, _]| begun(engine.remove_file(a)),
    |engine, [_, a, b]| begun(engine.rename(a, b)),
    |engine, [_, a, b]| begun(engine.rename_unsynced(a, b)),
    |engine, [_, a, b]| begun(engine.hard_link(a, b)),
    |engine, [_, a, b]| begun(engine.hard_link_unsynced(a, b)),
    |engine, [_, _, b]| begun(engine.create_dir(b)),
    |engine, [_, _, b]| begun(engine.create_dir_all(b)),
    |engine, [_, _, b]| begun(engine.remove_dir(b)),
    |engine, [_, _, b]| begun(engine.open(b, Open::create())),
    |engine, [_, a, _]| begun(engine.open(a, Open::create().truncate())),
    |engine, [dir, _, _]| begun(engine.sync_dir(dir)),
    |engine, [_, a, _]| begun(engine.metadata(a)),
];

async fn calls_of_an_engine_end_with_its_close(env: &Env) -> Outcome {
    let path = env.path("names");
    env.engine().create_dir(&path).await?;
    let (a, b) = (path.join("a"), path.join("b"));
    stays(env, &path).await?;
    for kind in some(env, CALLS_OF_AN_ENGINE.len() as u64) {
        let engine = env.restart(|config| config.shards(1))?;
        let calls = (0..CROWD).map(|_| CALLS_OF_AN_ENGINE[kind as usize](&engine, [&path, &a, &b]));
        give_up(calls.collect(), kind % POLLS).await;
        let report = engine.close().await?;
        same("calls left", report.calls_left.len(), 0)?;
        stays(env, &path).await.map_err(|stop| stop.of(format_args!("call {kind}")))?;
    }
    Ok(())
}

/// The futures of calls are kept, unpolled or polled once: they complete without that, and the close after them.
async fn a_close_needs_no_poll_of_a_call(env: &Env) -> Outcome {
    for times in some(env, 2) {
        let path = put(env, "a", LEN).await?;
        let file = env.open(&path, Open::write()).await?;
        let mut kept: Vec<Call> = (0..CROWD).map(|_| begun(file.truncate(8192))).collect();
        if times == 1 {
            // The pool may be done with some by then.
            kept.retain_mut(|call| poll_now(call).is_pending());
        }
        let other = file.clone();
        file.close().await?;
        fails_with("a closed file", other.truncate(0).await, ErrorKind::FileClosed)?;
        rewrite(env, &path, "truncate").await?;
        // They succeeded, before the close.
        for call in kept {
            env.elsewhere(call).await??;
        }
    }
    Ok(())
}

async fn detached_calls_are_carried_out_before_the_close(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(2))?;
    let path = env.path("names");
    engine.create_dir(&path).await?;
    let names: Vec<String> = (0..CROWD).map(|number| number.to_string()).collect();
    for name in &names {
        put_bytes(env, &format!("names/{name}"), b"x").await?;
    }
    let dir = engine.open_dir(&path).await?;
    let (first, rest) = names.split_at(CROWD / 2);
    for name in first {
        dir.remove_file(name).detach();
    }
    dir.close().await?;
    let left = env.engine().read_dir(&path).await?.len();
    same("names after the directory was closed", left, rest.len())?;
    let names = rest.to_vec();
    let (remover, at) = (engine.clone(), path.clone());
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        names.iter().for_each(|name| remover.remove_file(at.join(name)).detach());
    });
    task.await?;
    let report = engine.close().await?;
    holds("nothing is left to do", report.calls_left.is_empty())?;
    same("names after the engine was closed", env.engine().read_dir(&path).await?.len(), 0)
}
