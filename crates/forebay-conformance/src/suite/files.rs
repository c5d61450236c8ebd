//! The lifetime of files: the effect of closing on all handles, locks, and files that were opened elsewhere.

use std::future::IntoFuture;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::{Duration, SystemTime};

use forebay::internal::ErrorExt;
use forebay::{Advice, Block, Class, Durability, Engine, Error, ErrorKind, File, Lock, Mode, Open};

use super::check::{Outcome, fail, fails, fails_os, fails_with, holds, same, same_bytes};
use super::tools::{SendFuture, all, bytes_of, modes, open_all, poll_now, put};
use crate::Env;

super::group! { "files":
    after_close_every_operation_says_so,
    what_is_copied_to_a_closed_file_is_refused [FileSystem],
    closing_waits_for_what_is_in_flight,
    closing_ends_although_an_operation_comes_too_late,
    a_file_dropped_with_operations_in_flight_serves_them,
    handles_share_one_file,
    locks_bind_other_holders_and_go_with_the_file,
    times_and_attributes_are_kept [FileSystem],
    modes_are_what_was_asked_for [FileSystem],
    the_descriptor_goes_with_the_last_handle [Process, FileSystem],
    files_opened_elsewhere_keep_their_mode [Process, FileSystem],
    locks_bind_the_rest_of_the_system [Process, FileSystem],
}

/// The name of a call, and its result.
pub(super) type Call = (&'static str, SendFuture<Result<(), Error>>);

/// Returns each operation of a file, with its name. All of them fail on a closed file or engine.
pub(super) fn calls(engine: &Engine, file: &File) -> Outcome<Vec<Call>> {
    let memory = engine.block(4096)?;
    let mut calls: Vec<Call> = Vec::new();
    macro_rules! call {
        ($name:literal, $file:ident => $answer:expr) => {{
            let $file = file.clone();
            calls.push(($name, Box::pin(async move { $answer })));
        }};
    }
    call!("read", file => file.read(0..1).await.map(drop));
    call!("read of nothing", file => file.read(5..5).await.map(drop));
    call!("read_up_to", file => file.read_up_to(0..1).await.map(drop));
    call!("read_into", file => file.read_into(0, memory).await.0.map(drop));
    call!("write", file => file.write(0, &[1u8; 4096]).await);
    call!("write of nothing", file => file.write(0, &[]).await);
    call!("durable write", file => file.write(0, &[1u8; 4096]).durable(Durability::All).await);
    call!("sync of all", file => file.sync(Durability::All).await);
    call!("sync of data", file => file.sync(Durability::Data).await);
    call!("sync of nothing", file => file.sync(Durability::None).await);
    call!("read_many", file => file.read_many([0..1, 5..6]).await.map(drop));
    call!("read_many of nothing", file => file.read_many([]).await.map(drop));
    call!("stream", file => match file.read_many([0..1, 5..6]).stream().next().await {
        Some((_, result)) => result.map(drop),
        None => Ok(()),
    });
    call!("scan", file => file.scan().start().next().await.transpose().map(drop));
    call!("append", file => {
        let mut append = file.append().start();
        append.write(b"late").await?;
        append.close().await.map(drop)
    });
    call!("allocate", file => file.allocate(0..4096).await);
    call!("write_zeros", file => file.write_zeros(0..4096).await);
    call!("punch_hole", file => file.punch_hole(0..4096).await);
    call!("truncate", file => file.truncate(0).await);
    call!("len", file => file.len().await.map(drop));
    call!("metadata", file => file.metadata().await.map(drop));
    call!("advise", file => file.advise(0..4096, Advice::DontNeed).await);
    call!("copy_range", file => file.copy_range(0..100, &file, 8192).await.map(drop));
    call!("try_lock", file => file.try_lock(Lock::Shared).await);
    call!("unlock", file => file.unlock().await);
    Ok(calls)
}

async fn after_close_every_operation_says_so(env: &Env) -> Outcome {
    for (number, open) in modes(env, Open::write()).into_iter().enumerate() {
        let path = put(env, &number.to_string(), 100_000).await?;
        let file = env.open(&path, open).await?;
        file.read(5..500).await?;
        let (other, third) = (file.clone(), file.clone());
        file.close().await?;
        for (name, call) in calls(env.engine(), &other)? {
            let error = fails_with(format_args!("{name}, {open:?}"), call.await, ErrorKind::FileClosed)?;
            same(format_args!("the path of {name}"), error.path(), Some(other.path()))?;
        }
        // On a shard as well, where no message is sent.
        let there = calls(env.engine(), &other)?;
        let task = env.engine().spawn_on_shard(0, Class::DEFAULT, move || async move {
            let mut answers = Vec::new();
            for (name, call) in there {
                answers.push((name, call.await));
            }
            answers
        });
        for (name, answer) in task.await? {
            fails_with(format_args!("{name} on a shard, {open:?}"), answer, ErrorKind::FileClosed)?;
        }
        fails_with("close again", other.close().await, ErrorKind::FileClosed)?;
        fails_with("and again", third.close().await, ErrorKind::FileClosed)?;
        same_bytes("the file", &super::tools::content(env, &path).await?, &bytes_of(0..100_000))?;
    }
    Ok(())
}

async fn what_is_copied_to_a_closed_file_is_refused(env: &Env) -> Outcome {
    let (source, target) = (put(env, "source", 8192).await?, put(env, "target", 100).await?);
    let source = env.open(source, Open::read()).await?;
    let file = env.open(&target, Open::write()).await?;
    let closed = file.clone();
    file.close().await?;
    fails_with("copy_range", source.copy_range(0..4096, &closed, 0).await, ErrorKind::FileClosed)?;
    same_bytes("the target", &super::tools::content(env, &target).await?, &bytes_of(0..100))
}

async fn closing_waits_for_what_is_in_flight(env: &Env) -> Outcome {
    let path = put(env, "a", 256 << 10).await?;
    for file in open_all(env, &path, Open::read()).await? {
        let other = file.clone();
        let mut reads: Vec<_> =
            (0..64u64).map(|n| other.read(n * 4096..(n + 1) * 4096).into_future()).collect();
        let first: Vec<_> = reads.iter_mut().map(poll_now).collect();
        file.close().await?;
        let answers = all(reads.into_iter().zip(first).map(async |(read, first)| match first {
            std::task::Poll::Ready(answer) => answer,
            std::task::Poll::Pending => read.await,
        }));
        for (n, answer) in answers.await.into_iter().enumerate() {
            check_read(answer, n as u64 * 4096..(n as u64 + 1) * 4096)?;
        }
    }
    Ok(())
}

/// Checks that a read returned the bytes, or reported that the file was closed before.
fn check_read(answer: Result<Block, Error>, range: std::ops::Range<u64>) -> Outcome {
    match answer {
        Ok(block) => same_bytes(format_args!("{range:?}"), &block, &bytes_of(range.clone())),
        Err(error) if error.kind() == ErrorKind::FileClosed => Ok(()),
        Err(error) => fail(format_args!("expected bytes or FileClosed, came {error:?}")),
    }
}

async fn closing_ends_although_an_operation_comes_too_late(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(2))?;
    let path = put(env, "a", 8192).await?;
    for round in 0..20 {
        let file = env.open_on(&engine, &path, Open::read()).await?;
        let late = file.clone();
        let closing = file.close();
        let task = engine.spawn_on_shard(round % engine.shard_count(), Class::DEFAULT, move || async move {
            late.read(0..1).await
        });
        fails_with("the late read", task.await?, ErrorKind::FileClosed)?;
        closing.await?;
    }
    Ok(())
}

async fn a_file_dropped_with_operations_in_flight_serves_them(env: &Env) -> Outcome {
    const LEN: u64 = 200_000;
    let path = put(env, "a", LEN).await?;
    for file in open_all(env, &path, Open::read()).await? {
        let mut scans: Vec<_> =
            (0..3).map(|_| file.scan().request_bytes(16 << 10).depth(4).start()).collect();
        let mut stream = file.read_many((0..20).map(|n| n * 9_000..n * 9_000 + 10)).depth(2).stream();
        for scan in &mut scans {
            scan.next().await.transpose()?;
        }
        let first = stream.next().await;
        drop(file);
        for mut scan in scans {
            let mut at = 16 << 10;
            while let Some(block) = scan.next().await.transpose()? {
                same_bytes("in order", &block, &bytes_of(at..at + block.len() as u64))?;
                at += block.len() as u64;
            }
            same("all of it", at, LEN)?;
        }
        let mut count = usize::from(first.is_some());
        while let Some((_, result)) = stream.next().await {
            result?;
            count += 1;
        }
        same("each of the stream", count, 20)?;
    }
    Ok(())
}

async fn handles_share_one_file(env: &Env) -> Outcome {
    let path = put(env, "a", 8192).await?;
    for file in open_all(env, &path, Open::write()).await? {
        let clones: Vec<File> = (0..10).map(|_| file.clone()).collect();
        drop(file);
        for (n, clone) in clones.into_iter().enumerate() {
            clone.write(0, vec![n as u8; 4096]).await?;
            same_bytes("a handle among others", &clone.read(0..4096).await?, &[n as u8; 4096])?;
        }
    }
    Ok(())
}

async fn locks_bind_other_holders_and_go_with_the_file(env: &Env) -> Outcome {
    let path = put(env, "a", 4096).await?;
    let (one, two) = (env.open(&path, Open::write()).await?, env.open(&path, Open::read()).await?);
    one.try_lock(Lock::Exclusive).await?;
    one.clone().try_lock(Lock::Exclusive).await?;
    for lock in [Lock::Shared, Lock::Exclusive] {
        let error = fails_with(format_args!("{lock:?}"), two.try_lock(lock).await, ErrorKind::Locked)?;
        same("the path of the error", error.path(), Some(two.path()))?;
    }
    let refused = two.lock_within(Lock::Shared, Duration::from_millis(12)).await;
    fails_with("a lock that stays", refused, ErrorKind::Locked)?;
    // The waiter has it as soon as the other releases it.
    let mut waiting: SendFuture<_> = Box::pin(two.lock_within(Lock::Shared, Duration::from_secs(60)));
    holds("it waits", poll_now(&mut waiting).is_pending())?;
    one.unlock().await?;
    waiting.await?;
    fails_with("the lock of the one that waited", one.try_lock(Lock::Exclusive).await, ErrorKind::Locked)?;
    two.unlock().await?;
    one.unlock().await?;
    two.try_lock(Lock::Shared).await?;
    one.try_lock(Lock::Shared).await?;
    fails_with("beside a shared one", one.try_lock(Lock::Exclusive).await, ErrorKind::Locked)?;
    two.close().await?;
    one.try_lock(Lock::Exclusive).await?;
    one.close().await?;
    env.open(&path, Open::read()).await?.try_lock(Lock::Exclusive).await?;
    Ok(())
}

async fn times_and_attributes_are_kept(env: &Env) -> Outcome {
    let path = put(env, "a", 4096).await?;
    let file = env.open(&path, Open::write()).await?;
    let modified = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_700);
    same("the time that was set", file.set_modified(modified).await?.modified(), Some(modified))?;
    file.sync(Durability::All).await?;
    same("the time after a sync", file.metadata().await?.modified(), Some(modified))?;
    let (name, value) = ("user.forebay".to_string(), b"value".to_vec());
    match file.set_attribute(name.clone(), value.clone()).await {
        // A file system without them.
        Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(()),
        set => set?,
    }
    let other = env.open(&path, Open::read()).await?;
    same("the attributes", other.attributes().await?, vec![(name, value)])?;
    let long = file.set_attribute("user.long".to_string(), vec![7; 1 << 20]).await;
    holds("a value that is too long is refused", long.is_err())
}

async fn modes_are_what_was_asked_for(env: &Env) -> Outcome {
    let path = put(env, "a", 4096).await?;
    let files = open_all(env, &path, Open::read()).await?;
    let modes: Vec<Mode> = files.iter().map(File::mode).collect();
    same("the modes", modes, vec![Mode::Direct, Mode::Buffered, Mode::Uncached, Mode::Adaptive])?;
    for file in &files[1..3] {
        same("any offset will do", (file.alignment().offset, file.alignment().read_offset), (1, 1))?;
    }
    let device = files[0].device().name();
    same("one device", files.iter().all(|file| file.device().name() == device), true)
}

/// Returns the number of descriptors of this process that name `path`.
fn descriptors_of(path: &Path) -> std::io::Result<usize> {
    let path = path.canonicalize()?;
    let links =
        std::fs::read_dir("/proc/self/fd")?.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    Ok(links.filter(|link| *link == path).count())
}

fn count(path: &Path) -> Outcome<usize> {
    descriptors_of(path)
        .map_err(|error| super::Stop::Skipped(format!("descriptors cannot be counted here: {error}")))
}

async fn the_descriptor_goes_with_the_last_handle(env: &Env) -> Outcome {
    let engine = env.restart(|config| config.shards(3))?;
    let path = put(env, "a", 100_000).await?;
    for round in 0..20 {
        let file = env.open_on(&engine, &path, Open::write()).await?;
        for shard in 0..3 {
            let file = file.clone();
            let task =
                engine.spawn_on_shard(shard, Class::DEFAULT, move || async move { file.read(5..500).await });
            same_bytes("on each shard", &task.await??, &bytes_of(5..500))?;
        }
        same("while it is open", count(&path)?, 1)?;
        match round % 2 {
            0 => {
                file.close().await?;
                same("when the close has answered", count(&path)?, 0)?;
            }
            _ => {
                let other = file.clone();
                file.close().await?;
                same("with another handle", count(&path)?, 1)?;
                drop(other);
                // The shards have noticed it by the time they reply to a later request.
                engine.stats().await?;
                same("with none", count(&path)?, 0)?;
            }
        }
    }
    engine.close().await?;
    Ok(())
}

async fn files_opened_elsewhere_keep_their_mode(env: &Env) -> Outcome {
    let path = put(env, "a", 10_000).await?;
    for (open, mode) in [
        (Open::read(), Mode::Buffered),
        (Open::read().adaptive(), Mode::Buffered),
        (Open::read().uncached(), Mode::Uncached),
    ] {
        let given = std::fs::File::open(&path).map_err(|error| Error::io("open", error))?;
        let number = given.as_raw_fd();
        let file = env.engine().from_std(given, open).await?;
        same("mode and descriptor", (file.mode(), file.as_fd().as_raw_fd()), (mode, number))?;
        same_bytes("its bytes", &file.read(4_001..9_999).await?, &bytes_of(4_001..9_999))?;
        fails_os("write", file.write(0, &[1u8; 4096]).await, libc::EBADF)?;
        fails("truncate", file.truncate(0).await)?;
        file.close().await?;
    }
    Ok(())
}

async fn locks_bind_the_rest_of_the_system(env: &Env) -> Outcome {
    let path = put(env, "a", 4096).await?;
    let outside = std::fs::File::open(&path).map_err(|error| Error::io("open", error))?;
    let file = env.open(&path, Open::read()).await?;
    file.try_lock(Lock::Exclusive).await?;
    let how = rustix::fs::FlockOperation::NonBlockingLockShared;
    same("outside", rustix::fs::flock(&outside, how), Err(rustix::io::Errno::WOULDBLOCK))?;
    file.close().await?;
    same("after the close", rustix::fs::flock(&outside, how), Ok(()))?;
    let file = env.open(&path, Open::read()).await?;
    fails_with("from inside", file.try_lock(Lock::Exclusive).await, ErrorKind::Locked).map(drop)
}
