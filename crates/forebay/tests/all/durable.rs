//! Durable writes both ways, queued and made by the shard's thread: the bytes they leave in the file, their counters, and their
//! ends when something fails, is closed or is full.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::common::{bytes_of, config, dir, engine};
use forebay::{Class, Durability, Engine, ErrorKind, Flush, Open};

const WAYS: [Flush; 3] = [Flush::Queued, Flush::Blocking, Flush::WhenAlone];
const KIB: u64 = 1024;

/// Returns the writes and syncs of an engine so far.
fn counts(engine: &Engine) -> (u64, u64) {
    let stats = engine.stats().wait().unwrap();
    stats.flows.iter().fold((0, 0), |(writes, syncs), flow| (writes + flow.writes, syncs + flow.syncs))
}

#[test]
fn either_way_the_bytes_are_there_and_a_write_and_a_sync_are_counted() {
    let (engine, dir) = (engine(), dir());
    for open in [Open::create(), Open::create().buffered(), Open::create().uncached()] {
        let file = engine.open(dir.path().join("file"), open).wait().unwrap();
        let mut at = 0;
        for flush in WAYS {
            for durability in [Durability::Data, Durability::All] {
                for len in [4 * KIB, 64 * KIB, 1024 * KIB] {
                    let before = counts(&engine);
                    let range = at..at + len;
                    let write = file.write(at, bytes_of(range.clone())).durable(durability);
                    write.flush(flush).wait().unwrap();
                    let after = counts(&engine);
                    assert_eq!((after.0 - before.0, after.1 - before.1), (1, 1), "{flush:?} {durability:?}");
                    assert!(file.read(range.clone()).wait().unwrap()[..] == bytes_of(range)[..]);
                    at += len;
                }
            }
        }
        // Without a durability nothing is flushed; an empty write is a sync alone.
        let before = counts(&engine);
        file.write(0, bytes_of(0..4096)).flush(Flush::Blocking).wait().unwrap();
        assert_eq!(counts(&engine), (before.0 + 1, before.1));
        file.write(0, Vec::new()).durable(Durability::Data).flush(Flush::Blocking).wait().unwrap();
        assert_eq!(counts(&engine), (before.0 + 1, before.1 + 1));
        let all = std::fs::read(dir.path().join("file")).unwrap();
        assert!(all == bytes_of(0..at));
    }
}

#[test]
fn a_write_that_fails_is_an_error_either_way_and_the_next_one_works() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("file");
    std::fs::write(&path, bytes_of(0..8192)).unwrap();
    let (readable, writable) =
        (engine.open(&path, Open::read()).wait().unwrap(), engine.open(&path, Open::write()).wait().unwrap());
    for flush in WAYS {
        let write = || readable.write(0, bytes_of(4096..8192)).durable(Durability::Data).flush(flush);
        let error = write().wait().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF), "{error}");
        assert_eq!(error.range(), Some((0, 4096)), "{error}");
        writable.write(4096, bytes_of(4096..8192)).durable(Durability::All).flush(flush).wait().unwrap();
    }
    assert!(std::fs::read(&path).unwrap() == bytes_of(0..8192));
    assert_eq!(engine.close().wait().unwrap().leaked_operations, 0);
}

/// A file of /proc that accepts writes, and supports neither a sync nor the flags with which one call would do both. It sets the
/// content of a core dump, which is of no concern here.
#[test]
fn a_sync_that_fails_after_a_good_write_is_an_error_either_way() {
    const FILTER: &str = "/proc/self/coredump_filter";
    let engine = engine();
    let file = engine.open(FILTER, Open::write().buffered()).wait().unwrap();
    for (flush, durability, mask) in [
        (Flush::Queued, Durability::Data, "0x31"),
        (Flush::Queued, Durability::All, "0x32"),
        (Flush::Blocking, Durability::Data, "0x33"),
        (Flush::Blocking, Durability::All, "0x34"),
    ] {
        let error = file.write(0, mask.as_bytes()).durable(durability).flush(flush).wait().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{error}");
        assert_eq!(error.range(), Some((0, 4)), "{error}");
        let now = std::fs::read_to_string(FILTER).unwrap();
        assert!(now.trim().ends_with(&mask[2..]), "{now}: the write was not made");
    }
}

/// Returns the write calls of the requesting thread; a ring's writes on its behalf are not counted.
fn write_calls() -> u64 {
    let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    io.lines().find_map(|line| line.strip_prefix("syscw: ")).unwrap().parse().unwrap()
}

/// Counted, because either way the bytes are durable: a `WhenAlone` that never blocked, or always did, passed every other
/// test.
#[test]
fn when_alone_blocks_alone_and_not_beside_another_operation() {
    const WRITES: u64 = 20;
    let (engine, dir) = (Engine::start(config().shards(1)).unwrap(), dir());
    if engine.health().driver != "uring" {
        println!("the threads of the driver `threads` make every call: who makes it is not tested");
        return;
    }
    let file = engine.open(dir.path().join("file"), Open::create()).wait().unwrap();
    let calls = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let mut calls = Vec::new();
        file.write(0, bytes_of(0..64 * KIB)).await.unwrap();
        for (flush, beside) in WAYS.into_iter().flat_map(|flush| [(flush, false), (flush, true)]) {
            let before = write_calls();
            for n in 0..WRITES {
                let mut read = file.read(0..64 * KIB).into_future();
                if beside {
                    // After one poll the read waits for its turn or for the device; nothing else runs before
                    // the write is there.
                    assert!(poll_once(&mut read).await.is_pending());
                }
                let write = file.write(n * 4 * KIB, bytes_of(0..4 * KIB)).durable(Durability::Data);
                write.flush(flush).await.unwrap();
                if beside {
                    read.await.unwrap();
                }
            }
            calls.push((flush, beside, write_calls() - before));
        }
        calls
    });
    let wanted = [
        (Flush::Queued, false, 0),
        (Flush::Queued, true, 0),
        (Flush::Blocking, false, WRITES),
        (Flush::Blocking, true, WRITES),
        (Flush::WhenAlone, false, WRITES),
        (Flush::WhenAlone, true, 0),
    ];
    assert_eq!(calls.wait().unwrap(), wanted);
}

async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await
}

/// More of them than the ring, the queue or the shard accepts together, concurrently with reads, at the smallest depths.
#[test]
fn thousands_at_once_at_small_depths() {
    const WRITES: u64 = 2000;
    for depth in [1, 2, 3, 64] {
        let (engine, dir) = (Engine::start(config().shards(1).queue_depth(depth)).unwrap(), dir());
        let path = dir.path().join("file");
        let file = engine.open(&path, Open::create()).wait().unwrap();
        file.write(0, vec![0; (WRITES * 4096) as usize]).durable(Durability::All).wait().unwrap();
        let mut context = Context::from_waker(Waker::noop());
        let before = counts(&engine);
        // Every eighth is made by the thread itself, every third is not durable.
        let writes = (0..WRITES).map(|n| {
            let durability = if n % 3 == 0 { Durability::None } else { Durability::Data };
            let write = file.write(n * 4096, bytes_of(n * 4096..(n + 1) * 4096)).durable(durability);
            write.flush(WAYS[usize::from(n % 8 == 0)]).into_future()
        });
        let mut writes: Vec<_> = writes.collect();
        let task = engine.spawn_on_shard(0, Class::DEFAULT, {
            let file = file.clone();
            move || async move {
                for n in 0..200 {
                    file.read(n * 4096..n * 4096 + 100).await.unwrap();
                }
            }
        });
        for write in &mut writes {
            let polled = Pin::new(write).poll(&mut context);
            assert!(polled.is_pending(), "a future on another thread waits once");
        }
        for write in writes {
            finished(write).unwrap();
        }
        task.wait().unwrap();
        let after = counts(&engine);
        let durable = (0..WRITES).filter(|n| n % 3 != 0).count() as u64;
        assert_eq!((after.0 - before.0, after.1 - before.1), (WRITES, durable), "depth {depth}");
        assert!(std::fs::read(&path).unwrap() == bytes_of(0..WRITES * 4096), "depth {depth}");
        let report = engine.close().wait().unwrap();
        assert_eq!((report.leaked_operations, report.lost_shards), (0, 0));
    }
}

/// Runs a future that was polled before to its end on this thread.
fn finished<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}

/// Futures are dropped at any point: the memory is returned after the device has completed, and a byte of the
/// file is the old or the new one.
#[test]
fn futures_dropped_midway_give_their_memory_back() {
    let (engine, dir) = (Engine::start(config().shards(1).queue_depth(4)).unwrap(), dir());
    let path = dir.path().join("file");
    let file = engine.open(&path, Open::create()).wait().unwrap();
    file.write(0, vec![0; 64 * 4096]).durable(Durability::All).wait().unwrap();
    let mut context = Context::from_waker(Waker::noop());
    for round in 0..100u64 {
        let mut writes: Vec<_> = (0..16)
            .map(|n| {
                let at = (round * 7 + n) % 64 * 4096;
                let write = file.write(at, bytes_of(at..at + 4096)).durable(Durability::Data);
                write.flush(WAYS[usize::from((round + n) % 5 == 0)]).into_future()
            })
            .collect();
        for write in &mut writes {
            let _ = Pin::new(write).poll(&mut context);
        }
        if round % 2 == 0 {
            // So that some are at the device by now.
            engine.nop().wait().unwrap();
        }
        drop(writes);
    }
    // The last operation on a queue of this depth has all others behind it once it and a sync are through.
    file.sync(Durability::All).wait().unwrap();
    let whole = file.read(0..64 * 4096).wait().unwrap();
    for (n, page) in whole.chunks(4096).enumerate() {
        let new = bytes_of(n as u64 * 4096..(n as u64 + 1) * 4096);
        assert!(page == &new[..] || page.iter().all(|&byte| byte == 0), "page {n} is neither old nor new");
    }
    drop((whole, file));
    let report = engine.clone().close().wait().unwrap();
    assert_eq!((report.leaked_operations, report.lost_shards), (0, 0));
    assert_eq!(engine.memory().held_bytes, 0);
}

#[test]
fn an_engine_that_closes_midway_answers_all_of_them() {
    for round in 0..10u64 {
        let (engine, dir) = (Engine::start(config().shards(1).queue_depth(8)).unwrap(), dir());
        let path = dir.path().join("file");
        let file = engine.open(&path, Open::create()).wait().unwrap();
        file.write(0, vec![0; 40 * 4096]).durable(Durability::All).wait().unwrap();
        let mut context = Context::from_waker(Waker::noop());
        let mut writes: Vec<_> = (0..40)
            .map(|n| {
                let write =
                    file.write(n * 4096, bytes_of(n * 4096..(n + 1) * 4096)).durable(Durability::Data);
                write.flush(WAYS[usize::from((round + n) % 3 == 0)]).into_future()
            })
            .collect();
        for write in &mut writes {
            assert!(Pin::new(write).poll(&mut context).is_pending());
        }
        let report = engine.close().wait().unwrap();
        assert_eq!((report.leaked_operations, report.lost_shards), (0, 0));
        let bytes = std::fs::read(&path).unwrap();
        for (n, write) in writes.iter_mut().enumerate() {
            match Pin::new(write).poll(&mut context) {
                Poll::Ready(Ok(())) => {
                    let range = n * 4096..(n + 1) * 4096;
                    let expected = bytes_of(range.start as u64..range.end as u64);
                    assert!(bytes[range] == expected[..], "write {n} is said to be durable");
                }
                Poll::Ready(Err(error)) => assert_eq!(error.kind(), ErrorKind::EngineClosed, "{error}"),
                Poll::Pending => panic!("write {n} has no answer after close"),
            }
        }
    }
}
