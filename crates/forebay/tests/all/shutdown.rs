//! The end of an engine: in order, in time, reported to all callers, and never by waiting for itself.

use std::cell::RefCell;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::common::{bytes_of, config, dir, write_file};
use crate::stuck_file::StuckFile;
use forebay::{Class, Engine, ErrorKind, File, Open, shard};

fn scene(config: forebay::Config) -> (Engine, File, tempfile::TempDir) {
    let dir = dir();
    let path = dir.path().join("a");
    write_file(&path, 8 << 20);
    let engine = Engine::start(config).unwrap();
    let file = engine.open(&path, Open::read()).wait().unwrap();
    (engine, file, dir)
}

#[test]
fn closing_answers_every_operation_in_flight() {
    for _ in 0..20 {
        let (engine, file, _dir) = scene(config().shards(1).queue_depth(8));
        let mut context = Context::from_waker(Waker::noop());
        let mut reads: Vec<_> =
            (0..40).map(|n| file.read(n * 65536..(n + 1) * 65536).into_future()).collect();
        for read in &mut reads {
            assert!(Pin::new(read).poll(&mut context).is_pending());
        }
        let report = engine.close().wait().unwrap();
        assert_eq!((report.leaked_operations, report.lost_shards), (0, 0));
        for (n, read) in reads.iter_mut().enumerate() {
            match Pin::new(read).poll(&mut context) {
                Poll::Ready(Ok(block)) => {
                    assert_eq!(&block[..100], &bytes_of(n as u64 * 65536..n as u64 * 65536 + 100)[..]);
                }
                Poll::Ready(Err(error)) => assert_eq!(error.kind(), ErrorKind::EngineClosed, "{error}"),
                Poll::Pending => panic!("read {n} has no answer after close"),
            }
        }
        assert_eq!(file.read(0..1).wait().unwrap_err().kind(), ErrorKind::EngineClosed);
    }
}

/// Regression: at a shard's end the completion of each request of a batch started the next one, so closing read a batch of any size
/// to its end; and a file that such a batch had started to use was never closed.
#[test]
fn closing_stops_a_batch_and_its_file_is_closed() {
    // A machine that runs this thread late leaves nothing of the batch to stop.
    while stopped_by_a_close() == 0 {}
}

/// Closes an engine during a batch; returns how many of its ranges were refused.
fn stopped_by_a_close() -> usize {
    let (engine, file, dir) = scene(config().shards(1));
    let ranges = (0..400_000u64).map(|n| n % 2000 * 4096..n % 2000 * 4096 + 4096);
    let mut batch = file.read_many(ranges).gap_bytes_max(0).request_bytes_max(4096).into_future();
    let mut context = Context::from_waker(Waker::noop());
    if Pin::new(&mut batch).poll(&mut context).is_ready() {
        return 0;
    }
    let path = dir.path().join("a");
    assert_eq!(open_count(&path), 1);
    engine.nop().wait().unwrap();
    assert_eq!(engine.close().wait().unwrap().leaked_operations, 0);
    let Poll::Ready(Ok(results)) = Pin::new(&mut batch).poll(&mut context) else {
        panic!("a batch has its answers when close has")
    };
    let refused =
        results.iter().filter(|result| result.as_ref().is_err_and(|e| e.kind() == ErrorKind::EngineClosed));
    let refused = refused.count();
    drop((results, batch));
    drop(file);
    assert_eq!(open_count(&path), 0, "the file is still open");
    refused
}

/// Returns the number of descriptors of this process for that file.
fn open_count(path: &std::path::Path) -> usize {
    let names = std::fs::read_dir("/proc/self/fd").unwrap();
    names
        .filter(|name| std::fs::read_link(name.as_ref().unwrap().path()).is_ok_and(|target| target == path))
        .count()
}

/// Regression: each object that can wake a ring keeps it, and its table of files kept every file open, with its locks, until the
/// last handle of any of the engine's files was dropped.
#[test]
fn a_closed_engine_keeps_no_file_for_itself() {
    let (engine, kept, dir) = scene(config().shards(1));
    let path = dir.path().join("b");
    write_file(&path, 4096);
    let locked = engine.open(&path, Open::read()).wait().unwrap();
    locked.try_lock(forebay::Lock::Exclusive).wait().unwrap();
    for file in [&kept, &locked] {
        file.read(0..100).wait().unwrap();
    }
    engine.close().wait().unwrap();
    drop(locked);
    assert_eq!(open_count(&path), 0, "the engine still has the file open");
    // Not `try_lock`: a child of a concurrent test has the descriptors until its exec.
    std::fs::File::open(&path).unwrap().lock().unwrap();
    drop(kept);
}

#[test]
fn an_engine_dropped_before_its_files() {
    let (engine, file, _dir) = scene(config());
    drop(engine);
    assert_eq!(file.read(0..1).wait().unwrap_err().kind(), ErrorKind::EngineClosed);
    assert_eq!(file.read_many([0..1, 2..3]).wait().unwrap_err().kind(), ErrorKind::EngineClosed);
    assert_eq!(file.len().wait().unwrap_err().kind(), ErrorKind::EngineClosed);
}

/// The last handle may be dropped on the very thread that has to end.
#[test]
fn the_last_engine_dropped_on_its_own_shard() {
    let (engine, file, _dir) = scene(config());
    let (tell, told) = mpsc::channel();
    let inner = engine.clone();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        // Until the other handle is dropped.
        let go: () = futures::future::poll_fn(|context| {
            context.waker().wake_by_ref();
            match told.try_recv() {
                Ok(()) => Poll::Ready(()),
                Err(_) => Poll::Pending,
            }
        })
        .await;
        drop(inner);
        shard::yield_now().await;
        shard::yield_now().await;
        go
    });
    drop(engine);
    tell.send(()).unwrap();
    let _ = task.wait();
    assert_eq!(file.read(0..1).wait().unwrap_err().kind(), ErrorKind::EngineClosed);
}

/// A task that awaits the end of its own shard ends with that shard: it is cancelled there, and does not wait for itself.
#[test]
fn close_awaited_on_a_shard_of_the_same_engine_cancels_the_task() {
    for shards in [1, 2] {
        let (engine, _file, _dir) = scene(config().shards(shards));
        let inner = engine.clone();
        let task =
            engine.spawn_on_shard(0, Class::DEFAULT, move || async move { inner.close().await.map(|_| ()) });
        assert_eq!(task.wait().unwrap_err().kind(), ErrorKind::TaskCancelled);
        assert_eq!(engine.nop().wait().unwrap_err().kind(), ErrorKind::EngineClosed);
    }
}

#[test]
fn an_operation_that_never_ends_is_leaked_after_the_deadline() {
    let dir = dir();
    let stuck = match StuckFile::mount(dir.path()) {
        Ok(stuck) => stuck,
        Err(why) => return println!("skipped: a file that hangs cannot be had here: {why}"),
    };
    let config = config().shards(1).shutdown_deadline(Duration::from_millis(100)).wait_calls(false);
    let engine = Engine::start(config).unwrap();
    let file = engine.open(stuck.path(), Open::read()).wait().unwrap();
    let closing = engine.open(stuck.path(), Open::read()).wait().unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut batch = closing.read_many([0..4096, 1 << 20..(1 << 20) + 4096]).into_future();
    assert!(Pin::new(&mut batch).poll(&mut context).is_pending());
    let hanging = stuck.wait_for(2);
    let reading = std::thread::spawn(move || file.read(4096..8192).wait());
    let third = stuck.wait_for(1);
    let began = Instant::now();
    let report = engine.close().wait().unwrap();
    assert_eq!(report.leaked_operations, 3);
    assert!(began.elapsed() >= Duration::from_millis(100), "the deadline is for the device");
    assert_eq!(reading.join().unwrap().unwrap_err().kind(), ErrorKind::EngineClosed);
    let Poll::Ready(Ok(results)) = Pin::new(&mut batch).poll(&mut context) else { panic!("no answer") };
    assert!(results.iter().all(|result| result.as_ref().is_err_and(|e| e.kind() == ErrorKind::EngineClosed)));
    for read in hanging.iter().chain(&third) {
        stuck.answer(read, 1);
    }
}

/// A thread that makes the system call itself waits for its device alone: the engine's end and the file's close do not wait longer than
/// they promise.
#[test]
fn a_call_that_never_returns_holds_up_nobody_else() {
    let dir = dir();
    let stuck = match StuckFile::mount(dir.path()) {
        Ok(stuck) => stuck,
        Err(why) => return println!("skipped: a file that hangs cannot be had here: {why}"),
    };
    let config = config().shutdown_deadline(Duration::from_millis(100)).wait_calls(true);
    let engine = Engine::start(config).unwrap();
    let file = engine.open(stuck.path(), Open::read()).wait().unwrap();
    let reader = file.clone();
    let reading = std::thread::spawn(move || reader.read(4096..8192).wait());
    let hanging = stuck.wait_for(1);
    assert_eq!(engine.stats().wait().unwrap().wait_calls, 0, "it has not ended");
    let mut closing = file.close();
    let mut context = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut closing).poll(&mut context).is_pending(), "the descriptor is in use");
    let began = Instant::now();
    let report = engine.close().wait().unwrap();
    assert_eq!(report.leaked_operations, 1);
    assert!(began.elapsed() >= Duration::from_millis(100), "the deadline is for the device");
    for read in &hanging {
        stuck.answer(read, 1);
    }
    // The bytes arrived, late.
    assert_eq!(reading.join().unwrap().unwrap().len(), 4096);
    assert!(Pin::new(&mut closing).poll(&mut context).is_ready());
}

/// Regression: a read that was still awaited when the engine's end started was cancelled by the end. When its future was then
/// dropped too, its return was counted down without having been counted up, and the shard died of it (in builds with overflow
/// checks).
#[test]
fn futures_dropped_while_the_engine_ends() {
    let dir = dir();
    let stuck = match StuckFile::mount(dir.path()) {
        Ok(stuck) => stuck,
        Err(why) => return println!("skipped: a file that hangs cannot be had here: {why}"),
    };
    let engine = Engine::start(config().shards(1).shutdown_deadline(Duration::from_secs(30))).unwrap();
    let file = engine.open(stuck.path(), Open::read()).wait().unwrap();
    let mut reads: Vec<_> = (0..2u64).map(|n| file.read(n * 4096..(n + 1) * 4096).into_future()).collect();
    let mut context = Context::from_waker(Waker::noop());
    for read in &mut reads {
        assert!(Pin::new(read).poll(&mut context).is_pending());
    }
    let hanging = stuck.wait_for(2);
    let closing = engine.close();
    // The shard checks its inbox while it waits for the device: one reply wakes it with the other read still
    // in flight.
    drop(reads.pop());
    stuck.answer(&hanging[0], 1);
    while !Pin::new(&mut reads[0]).poll(&mut context).is_ready() {
        std::thread::yield_now();
    }
    drop(reads);
    stuck.answer(&hanging[1], 1);
    let report = closing.wait().unwrap();
    assert_eq!((report.leaked_operations, report.lost_shards), (0, 0));
}

#[test]
fn tasks_hold_what_is_not_send_and_end_on_their_own_thread() {
    struct ThreadWitness(Rc<RefCell<Vec<std::thread::ThreadId>>>, mpsc::Sender<bool>);
    impl Drop for ThreadWitness {
        fn drop(&mut self) {
            let _ = self.1.send(self.0.borrow()[0] == std::thread::current().id());
        }
    }
    let (engine, _file, _dir) = scene(config().shards(2));
    let (tell, told) = mpsc::channel();
    let handles: Vec<_> = (0..20)
        .map(|n| {
            let tell = tell.clone();
            engine.spawn_on_shard(n % engine.shard_count(), Class::DEFAULT, move || {
                let owned = ThreadWitness(Rc::new(RefCell::new(vec![std::thread::current().id()])), tell);
                async move {
                    let _owned = owned;
                    std::future::pending::<()>().await;
                }
            })
        })
        .collect();
    engine.stats().wait().unwrap();
    engine.close().wait().unwrap();
    drop(tell);
    let here: Vec<bool> = told.iter().collect();
    assert_eq!(here, [true; 20]);
    for handle in handles {
        assert_eq!(handle.wait().unwrap_err().kind(), ErrorKind::TaskCancelled);
    }
}

#[test]
fn a_panic_in_a_task_or_its_destructor_ends_that_task_only() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("in a destructor");
            }
        }
    }
    let (engine, file, _dir) = scene(config().shards(1));
    let task = engine.spawn_on_shard(0, Class::DEFAULT, || async { panic!("in a task") });
    let error = task.wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TaskPanicked);
    assert!(error.to_string().contains("in a task"), "{error}");
    let make = || -> std::future::Ready<()> { panic!("while it is made") };
    assert_eq!(
        engine.spawn_on_shard(0, Class::DEFAULT, make).wait().unwrap_err().kind(),
        ErrorKind::TaskPanicked
    );
    let armed = engine.spawn_on_shard(0, Class::DEFAULT, || async {
        let _bomb = Bomb;
        std::future::pending::<()>().await;
    });
    engine.nop().wait().unwrap();
    armed.abort();
    assert_eq!(armed.wait().unwrap_err().kind(), ErrorKind::TaskCancelled);
    assert_eq!(file.read(0..10).wait().unwrap().len(), 10);
    // One more that panics while the engine ends.
    let bomb = Bomb;
    let last = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let _bomb = bomb;
        std::future::pending::<()>().await;
    });
    let report = engine.close().wait().unwrap();
    assert_eq!((report.leaked_operations, report.lost_shards), (0, 0));
    let kind = last.wait().unwrap_err().kind();
    assert!(matches!(kind, ErrorKind::TaskCancelled | ErrorKind::EngineClosed), "{kind:?}");
}

/// A waker of the program that panics on the shard's thread ends the shard. Regression: then callers with later results, tasks, and
/// files being closed waited for ever.
#[test]
fn a_panicking_waker_costs_the_shard_and_everyone_is_told() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("in a waker");
        }
    }
    let (engine, file, _dir) = scene(config().shards(1));
    let mut bad: Vec<_> = (0..3).map(|_| file.read(0..4096).into_future()).collect();
    let waker = Waker::from(Arc::new(Panics));
    let task = engine.spawn_on_shard(0, Class::DEFAULT, std::future::pending::<()>);
    for read in &mut bad {
        let _ = Pin::new(read).poll(&mut Context::from_waker(&waker));
    }
    assert_eq!(task.wait().unwrap_err().kind(), ErrorKind::ShardLost);
    let kind = file.read(0..1).wait().unwrap_err().kind();
    assert_eq!(kind, ErrorKind::ShardLost);
    assert!(engine.health().degraded.iter().any(|degradation| degradation.what == "shard"));
    drop(bad);
    file.close().wait().unwrap();
    assert_eq!(engine.close().wait().unwrap().lost_shards, 1);
}

/// Regression: a handle identified its task by its place in a list. Aborting a task that had ended cancelled the next task in its
/// place; aborting a task that had not started did nothing, and neither did aborting through a full inbox.
#[test]
fn abort_ends_its_own_task_and_no_other() {
    let (engine, _file, _dir) = scene(config().shards(1).inbox_depth(2));
    let runs = Arc::new(AtomicUsize::new(0));
    for _ in 0..50 {
        let over = engine.spawn_on_shard(0, Class::DEFAULT, || async {});
        while engine.stats().wait().unwrap().shards[0].tasks > 0 {}
        let (tell, told) = async_channel::bounded::<()>(1);
        let counted = runs.clone();
        let other = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            told.recv().await.unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
        });
        engine.stats().wait().unwrap();
        over.abort();
        engine.stats().wait().unwrap();
        tell.send_blocking(()).unwrap();
        other.wait().unwrap();
        over.wait().unwrap();

        let at_once = engine.spawn_on_shard(0, Class::DEFAULT, std::future::pending::<()>);
        at_once.abort();
        assert_eq!(at_once.wait().unwrap_err().kind(), ErrorKind::TaskCancelled);
    }
    assert_eq!(runs.load(Ordering::Relaxed), 50);
}
