//! A separate program: it forks, and until a child has ended it holds every descriptor of the process, with its locks.
//!
//! A forked child and the handles it inherits: every kind of call returns `Forked` there, dropping them does
//! nothing, and the parent is not affected.
//!
//! Regression: of a child's calls `spawn_on_shard` and `File::close` hung. `Engine::block` and writes of borrowed bytes ended the
//! process (I/O memory is not inherited, so it wrote to addresses where nothing was mapped). The engine that the error's text
//! advises to start in the child counted itself as the parent's.
#![cfg(target_os = "linux")]

mod common;

use std::future::{Future, IntoFuture};
use std::io::{Read as _, Write as _};
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::{bytes_of, config, dir, write_file};
use forebay::{BlockMut, Class, Durability, Engine, Error, ErrorKind, File, IoMemory, Lock, Open};
use forebay_test::children::in_fork;

fn forked<T>(result: Result<T, Error>) -> bool {
    result.is_err_and(|error| error.kind() == ErrorKind::Forked)
}

#[test]
fn the_childs_handles_answer_forked_and_the_parents_data_stay_right() {
    let dir = dir();
    let (path, target) = (dir.path().join("a"), dir.path().join("b"));
    write_file(&path, 8 << 20);
    let engine = Engine::start(config()).unwrap();
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let written = engine.open(&target, Open::create_new()).wait().unwrap();
    let handle = engine.open_dir(dir.path()).wait().unwrap();
    for round in 0..5u64 {
        let kept = file.read(0..100).wait().unwrap();
        let range = |n: u64| (n * 17 + round) * 4000 + 13..(n * 17 + round) * 4000 + 200_000;
        let mut reads: Vec<_> = (0..16).map(|n| file.read(range(n)).into_future()).collect();
        let mut context = Context::from_waker(Waker::noop());
        for read in &mut reads {
            assert!(Pin::new(read).poll(&mut context).is_pending());
        }
        // One may end within its first poll, of a thread that runs late.
        let many = loop {
            let mut many = file.read_many((0..64).map(range)).into_future();
            if Pin::new(&mut many).poll(&mut context).is_pending() {
                break many;
            }
        };
        let opening = engine.open(&path, Open::read());
        let task = engine.spawn_on_shard(0, Class::DEFAULT, std::future::pending::<()>);

        // Code 0: all is well; otherwise the number of the first call with another result.
        let mut taken = Some((reads, many, opening, task));
        let code = in_fork(|| {
            let (mut reads, mut many, opening, task) = taken.take().unwrap();
            // Started before the fork. They may have completed before it, and then the child has their result too.
            let told = |polled: Poll<bool>| matches!(polled, Poll::Ready(true));
            let polled = |read: &mut forebay::Read<'_>| {
                Pin::new(read)
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .map(|answer| answer.is_ok() || forked(answer))
            };
            if !reads.iter_mut().all(|read| told(polled(read))) {
                return 1;
            }
            let mut context = Context::from_waker(Waker::noop());
            let answer = Pin::new(&mut many).poll(&mut context);
            if !told(answer.map(|answer| answer.is_ok() || forked(answer))) {
                return 2;
            }
            let opened = opening.wait();
            if !(opened.is_ok() || forked(opened)) || !forked(task.wait()) {
                return 3;
            }
            drop((reads, many));
            // Started after it.
            let calls: [&dyn Fn() -> bool; 26] = [
                &|| forked(file.read(0..10).wait()),
                &|| forked(file.read(5..5).wait()),
                &|| forked(file.read_up_to(0..10).wait()),
                &|| forked(file.read_many([0..10, 20..30]).wait()),
                &|| forked(file.scan().start().next().wait().transpose()),
                &|| forked(written.write(0, vec![1u8; 4096]).wait()),
                &|| forked(written.write(0, &[1u8; 4096]).wait()),
                &|| forked(written.sync(Durability::Data).wait()),
                &|| forked(written.truncate(0).wait()),
                &|| forked(file.len().wait()),
                &|| forked(file.metadata().wait()),
                &|| forked(file.clone().close().wait()),
                &|| forked(engine.open(&path, Open::read()).wait()),
                &|| forked(engine.metadata(&path).wait()),
                &|| forked(engine.rename(&target, &path).wait()),
                &|| forked(engine.temp_file(dir.path(), Open::create()).wait()),
                &|| forked(engine.open_dir(dir.path()).wait()),
                &|| forked(handle.open("a", Open::read()).wait()),
                &|| forked(handle.rename("b", "a").wait()),
                &|| forked(handle.sync().wait()),
                &|| forked(engine.block(4096)),
                &|| forked(engine.block_from(b"x")),
                &|| forked(engine.stats().wait()),
                &|| forked(engine.nop().wait()),
                &|| forked(engine.spawn_on_shard(0, Class::DEFAULT, || async {}).wait()),
                &|| forked(engine.clone().close().wait()),
            ];
            for (number, call) in calls.iter().enumerate() {
                if !call() {
                    return 10 + number as u8;
                }
            }
            // An engine of the child's own works, and the inherited one is still the parent's.
            let own = match Engine::start(config()) {
                Ok(own) => own,
                Err(_) => return 100,
            };
            let mine = own.open(&path, Open::read()).wait().and_then(|file| file.read(7..5007).wait());
            if !mine.is_ok_and(|block| block[..] == bytes_of(7..5007)[..]) || !forked(engine.nop().wait()) {
                return 101;
            }
            if !own.close().wait().is_ok_and(|report| report.leaked_operations == 0) {
                return 102;
            }
            drop(kept.clone());
            // The child's copies of the last handles are dropped, too: this must end nothing of the parent's.
            // SAFETY: read from our own memory and then never used again: the child ends by `_exit`.
            unsafe {
                drop(std::ptr::read(&kept));
                drop(std::ptr::read(&file));
                drop(std::ptr::read(&written));
                drop(std::ptr::read(&engine));
            }
            0
        });
        assert_eq!(code, 0, "the call with this number answered something else than Forked");

        let (mut reads, many, opening, task) = taken.unwrap();
        task.abort();
        assert_eq!(&kept[..], &bytes_of(0..100)[..]);
        for (n, read) in reads.drain(..).enumerate() {
            let block = futures::executor::block_on(read).unwrap();
            assert_eq!(&block[..], &bytes_of(range(n as u64))[..]);
        }
        for (n, block) in futures::executor::block_on(many).unwrap().into_iter().enumerate() {
            assert_eq!(&block.unwrap()[..], &bytes_of(range(n as u64))[..]);
        }
        opening.wait().unwrap();
        written.write(0, bytes_of(0..4096)).wait().unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), bytes_of(0..4096));
    }
    drop((file, written));
    assert_eq!(engine.close().wait().unwrap().leaked_operations, 0);
}

/// A runtime continues in a forked child, and with it the task that drives a worker's ring: it must leave the parent's ring alone.
#[cfg(feature = "tokio")]
#[test]
fn a_childs_runtime_leaves_the_parents_rings_alone() {
    for driver in [config(), config().driver(forebay::DriverChoice::Threads)] {
        let dir = dir();
        let path = dir.path().join("a");
        write_file(&path, 8 << 20);
        let engine = Engine::start(driver).unwrap();
        let file = engine.open(&path, Open::read()).wait().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            engine.nop().await.unwrap();
            tokio::task::yield_now().await;
        });
        let range = |n: u64| n * 4000 + 13..n * 4000 + 200_000;
        for _ in 0..5 {
            let mut reads: Vec<_> = (0..16).map(|n| file.read(range(n)).into_future()).collect();
            runtime.block_on(async {
                let mut context = Context::from_waker(Waker::noop());
                reads.retain_mut(|read| Pin::new(read).poll(&mut context).is_pending());
            });
            let count = reads.len();
            let mut taken = Some(reads);
            let code = in_fork(|| {
                let reads = taken.take().unwrap();
                runtime.block_on(async {
                    // The poller is the parent's too, and sees what completes there.
                    for _ in 0..20 {
                        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                    }
                    for read in reads {
                        let result = read.await;
                        if !(result.is_ok() || forked(result)) {
                            return 1;
                        }
                    }
                    if !forked(file.read(0..10).await) || !forked(engine.nop().await) { 2 } else { 0 }
                })
            });
            assert_eq!(code, 0);
            let reads = taken.unwrap();
            assert_eq!(reads.len(), count);
            runtime.block_on(async {
                for read in reads {
                    read.await.unwrap();
                }
                assert_eq!(&file.read(range(3)).await.unwrap()[..], &bytes_of(range(3))[..]);
            });
        }
        drop(file);
        assert_eq!(engine.close().wait().unwrap().leaked_operations, 0);
    }
}

/// The second descriptor of an adaptive file is the parent's, too.
#[test]
fn a_child_reads_nothing_of_an_adaptive_file_and_closes_nothing() {
    let dir = dir();
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let engine = Engine::start(config()).unwrap();
    let file = engine.open(&path, Open::read().adaptive()).wait().unwrap();
    let check = |range: std::ops::Range<u64>| {
        assert_eq!(&file.read(range.clone()).wait().unwrap()[..], &bytes_of(range)[..]);
    };
    let tried = || {
        let stats = engine.stats().wait().unwrap();
        stats.page_cache_reads + stats.page_cache_misses + stats.page_cache_skips
    };
    check(0..100);
    let mut taken = Some(file.clone());
    let code = in_fork(|| {
        let file = taken.take().unwrap();
        let (lone, batch) = (file.read(0..100).wait(), file.read_many(std::iter::once(0..100)).wait());
        drop(file);
        u8::from(!(forked(lone) && forked(batch)))
    });
    assert_eq!(code, 0);
    check(5..50_000);
    assert_eq!(tried(), 2, "the parent's reads, and none of the child's");
}

/// Regression: flock(2) locks belong to the open file, which a forked child has as well. The close of the parent's file left the lock
/// to the child, and nobody got it while the child lived.
#[test]
fn a_lock_ends_with_the_parents_file() {
    ends_with_the_parents_file(|file| file.try_lock(Lock::Exclusive).wait());
}

/// Regression: the same of OFD locks, which keep the holes of a file in a collective write. A rank whose call was dropped left the lock
/// to its child.
#[test]
fn a_record_lock_ends_with_the_parents_file() {
    ends_with_the_parents_file(|file| file.record_lock(Some(Lock::Exclusive), Duration::ZERO).wait());
}

fn ends_with_the_parents_file(lock: fn(&File) -> Result<(), Error>) {
    let dir = dir();
    let path = dir.path().join("a");
    let engine = Engine::start(config()).unwrap();
    let open = || engine.open(&path, Open::create().buffered()).wait().unwrap();
    let is_locked = || match lock(&open()) {
        Err(error) if error.kind() == ErrorKind::Locked => true,
        locked => {
            locked.unwrap();
            false
        }
    };
    let locked = open();
    lock(&locked).unwrap();
    let mut inherited = Some(locked.clone());
    let code = in_fork(|| {
        drop(inherited.take());
        0
    });
    drop(inherited);
    assert_eq!(code, 0);
    assert!(is_locked(), "the child released nothing");

    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: the child makes system calls only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: alarm(2) has no pointer arguments.
        unsafe { libc::alarm(30) };
        let _ = reader.read(&mut [0]);
        // SAFETY: _exit(2) has no pointer arguments.
        unsafe { libc::_exit(0) }
    }
    assert!(child > 0, "{}", std::io::Error::last_os_error());
    locked.close().wait().unwrap();
    let was_locked = is_locked();
    writer.write_all(&[0]).unwrap();
    // SAFETY: the child is this test's, and nothing is written to a null pointer.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    assert!(!was_locked, "the child had the lock");
    engine.close().wait().unwrap();
}

/// Ordinary memory, whole pages of it, that is lent.
#[derive(Default)]
struct LentPages(BlockMut);

// SAFETY: the block is its own and does not move.
unsafe impl IoMemory for LentPages {
    fn memory(&mut self) -> (*mut u8, usize) {
        (self.0.as_mut_ptr(), self.0.len())
    }
}

/// Lent memory is ordinary memory, so a child inherits it: with what the device had written by then, while the rest of the
/// bytes arrive in the parent's. (I/O memory is not inherited at all.)
#[test]
fn a_child_forked_during_a_read_has_the_memory_and_the_parent_the_bytes() {
    let (engine, dir) = (Engine::start(config()).unwrap(), dir());
    let path = dir.path().join("a");
    const LEN: usize = 4 << 20;
    write_file(&path, LEN as u64);
    let expected = bytes_of(0..LEN as u64);
    for open in [Open::read(), Open::read().buffered()] {
        for _ in 0..5 {
            let file = engine.open(&path, open).wait().unwrap();
            let mut memory = BlockMut::aligned(LEN).unwrap();
            memory.fill(0xEE);
            let start = memory.as_ptr().addr();
            let mut read = Box::pin(file.read_into(0, LentPages(memory)));
            let ready = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let mut taken = Some(read);
            let code = in_fork(|| {
                // SAFETY: the child's copy of the parent's memory.
                let bytes = unsafe { std::slice::from_raw_parts(start as *const u8, LEN) };
                let is_ours = bytes.iter().zip(&expected).all(|(byte, read)| *byte == 0xEE || byte == read);
                drop(taken.take());
                u8::from(!is_ours)
            });
            assert_eq!(code, 0);
            let read = taken.unwrap();
            let (result, lent) = match ready {
                Poll::Ready(done) => done,
                Poll::Pending => futures::executor::block_on(read),
            };
            assert_eq!(result.unwrap(), LEN);
            assert!(lent.0[..] == expected[..], "the parent's read went on");
        }
    }
}

/// Regression: a handler of exit(3), as the destructor of a static in C++, runs on a thread that has lost its locals. The waker of
/// `.wait()` was one of them, so a handler that read a file, or closed the engine, ended the process by a panic.
#[test]
fn a_handler_of_exit_reads_and_closes() {
    static OPEN: OnceLock<(Engine, File)> = OnceLock::new();
    extern "C" fn handler() {
        let code = OPEN.get().map_or(1, |(engine, file)| {
            let calls = [
                engine.nop().wait().is_ok(),
                file.read(5..9).wait().is_ok_and(|block| block[..] == bytes_of(5..9)[..]),
                file.clone().close().wait().is_ok(),
                engine.clone().close().wait().is_ok(),
            ];
            i32::from(calls.contains(&false))
        });
        // SAFETY: _exit(2) has no pointer arguments.
        unsafe { libc::_exit(code) }
    }
    let dir = dir();
    let path = dir.path().join("a");
    write_file(&path, 4096);
    let code = in_fork(|| {
        let (engine, file) = OPEN.get_or_init(|| {
            let engine = Engine::start(config()).unwrap();
            let file = engine.open(&path, Open::read()).wait().unwrap();
            (engine, file)
        });
        // The thread has its waker before its end.
        engine.nop().wait().unwrap();
        file.read(0..4).wait().unwrap();
        // SAFETY: the handler is a function of this program. It ends the child, whose other threads are its engine's.
        unsafe {
            assert_eq!(libc::atexit(handler), 0);
            libc::exit(2)
        }
    });
    assert_eq!(code, 0);
}
