//! A log whose engine ends while the log is open: every waiter is notified, with the reason.

use std::future::{Future, IntoFuture};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use crate::common::{self, dir, engine, open, options, record, records_wait};
use forebay::{Config, Engine, Open};
use forebay_wal::{ErrorKind, Lsn, Wal};

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("in a waker");
    }
}

fn panics() -> Waker {
    Waker::from(Arc::new(Panics))
}

/// Kills a shard by a waker that panics outside of any task: that of a read that bypasses the page cache.
fn kill_the_shard(engine: &Engine, path: &Path) {
    let waker = panics();
    let file = engine.open(path, Open::read()).wait().unwrap();
    loop {
        let mut reads: Vec<_> = (0..3).map(|_| file.read(0..4096).into_future()).collect();
        for read in &mut reads {
            let _ = Pin::new(read).poll(&mut Context::from_waker(&waker));
        }
        match engine.nop().wait() {
            Ok(_) => {}
            Err(error) => return assert_eq!(error.kind(), forebay::ErrorKind::ShardLost),
        }
    }
}

/// Returns whether this is the error of a log whose shard died.
fn is_lost(error: &forebay_wal::Error) -> bool {
    let cause = error.cause().map(forebay::Error::kind);
    error.kind() == ErrorKind::Closed && cause == Some(forebay::ErrorKind::ShardLost)
}

#[test]
fn when_its_shard_dies_everyone_is_told() {
    for round in 0..10 {
        let (dir, other) = (dir(), dir());
        let path = other.path().join("a file");
        std::fs::write(&path, [1; 8192]).unwrap();
        let engine = Engine::start(Config::new().shards(1)).unwrap();
        // So little space that most appends wait for it.
        let tight = options().pending_bytes_max(500);
        let (wal, _) = Wal::open(&engine, dir.path(), tight).wait().unwrap();
        thread::scope(|scope| {
            let appends = (0..8u64).map(|thread| {
                let wal = &wal;
                scope.spawn(move || {
                    (0..).find_map(|count| wal.append(&record(thread * 37 + count)).wait().err()).unwrap()
                })
            });
            let syncs = (0..2).map(|_| {
                let wal = &wal;
                scope.spawn(move || {
                    loop {
                        if let Err(error) = wal.append(b"no matter").queued().wait() {
                            return error;
                        }
                        if let Err(error) = wal.sync().wait() {
                            return error;
                        }
                    }
                })
            });
            let waiting: Vec<_> = appends.chain(syncs).collect();
            while wal.durable_lsn() < Lsn(20 * round) {
                thread::yield_now();
            }
            kill_the_shard(&engine, &path);
            for waiting in waiting {
                let error = waiting.join().unwrap();
                assert!(is_lost(&error), "{error:?}");
            }
        });
        // Later calls fail in the same way, and acknowledged records stay acknowledged.
        for error in
            [wal.append(b"late").wait().unwrap_err(), wal.truncate_before(Lsn(1)).wait().unwrap_err()]
        {
            assert!(is_lost(&error), "{error:?}");
        }
        if let Err(error) = wal.close().wait() {
            assert!(is_lost(&error), "{error:?}");
        }
        let acknowledged = wal.durable_lsn();
        // Durable records can no longer be read; an empty log misses nothing.
        match records_wait(&wal, 1) {
            Ok(records) => assert!(records.is_empty() && acknowledged < Lsn(1), "{records:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Closed, "{error}"),
        }
        let opened = Wal::open(&engine, dir.path(), options()).wait().unwrap_err();
        assert!(is_lost(&opened), "{opened:?}");
        drop((wal, engine));
        // The dead shard's files are leaked together with their locks: only another process can open the log
        // in its place. A copy is another log.
        let copy = common::dir();
        forebay_test::live_files::copy(dir.path(), copy.path());
        let (_, recovery) = Wal::open(&common::engine(), copy.path(), options()).wait().unwrap();
        assert!(recovery.last >= acknowledged, "{recovery:?}, and {acknowledged} was acknowledged");
    }
}

/// Regression: tasks that waited for the same group after a waker that panicked were never woken.
#[test]
fn a_waker_that_panics_keeps_nobody_else_from_its_answer() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = Wal::open(&engine, dir.path(), options()).wait().unwrap();
    for _ in 0..50 {
        let waker = panics();
        let mut bad: Vec<_> = (0..3).map(|_| Box::pin(wal.append(b"bad"))).collect();
        // Those that the log's thread makes durable before their first poll ends need no waker.
        bad.retain_mut(|append| match append.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => result.is_err(),
            Poll::Pending => true,
        });
        wal.append(b"good").wait().unwrap();
        for append in bad {
            let polled = pin!(append).poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Ready(Ok(_))), "{polled:?}");
        }
    }
    wal.close().wait().unwrap();
}

/// A caller that queued records may wait for them although another handle closed the log.
#[test]
fn a_closed_log_tells_what_became_of_what_was_queued() {
    let (engine, dir) = (engine(), dir());
    let (wal, _) = Wal::open(&engine, dir.path(), options()).wait().unwrap();
    for number in 1..=100 {
        wal.append(&record(number)).queued().wait().unwrap();
    }
    let closing = wal.close();
    wal.sync().wait().unwrap();
    assert_eq!(wal.durable_lsn(), Lsn(100));
    closing.wait().unwrap();
    wal.sync().wait().unwrap();
    assert_eq!(wal.append(b"late").queued().wait().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(wal.append(b"late").wait().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(wal.truncate_from(Lsn(51)).wait().unwrap_err().kind(), ErrorKind::Closed);
    // Again after the engine has ended as well.
    engine.close().wait().unwrap();
    wal.sync().wait().unwrap();
}

/// Returns whether the file is unlocked: tested by flock(2) on a separate descriptor, as another process would do.
fn is_free(path: &Path) -> bool {
    let file = std::fs::File::open(path).unwrap();
    // SAFETY: the descriptor is open for as long as the call lasts, and the call has no other argument.
    let got = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    got == 0
}

/// Returns the files with a lock on them, of a log that is closed.
fn locked(dir: &Path) -> Vec<PathBuf> {
    let names = forebay_test::live_files::files(dir).into_keys().map(|name| dir.join(name));
    names.filter(|path| path.exists() && !is_free(path)).collect()
}

/// Regression: `forebay kv verify` sometimes reported that a store was open elsewhere, right after the
/// process that had it had closed it and ended. A segment prepared ahead, and the one that recovery had
/// synced, still had their locks. These were released with the files, and the files with the process's ring,
/// which the kernel tears down later than the process.
#[test]
fn a_closed_log_has_no_lock_left_on_any_file() {
    let engine = engine();
    for round in 0..40 {
        let (dir, copy) = (dir(), dir());
        let (wal, _) = open(&engine, &dir);
        // Until a segment is being made ahead.
        let mut lsn = 0;
        while !dir.path().join("0000000000000002.wal").exists() {
            lsn += 1;
            wal.append(&record(lsn)).wait().unwrap();
        }
        // This file alone keeps its name; others are renamed during the check of each.
        assert!(!is_free(&dir.path().join("wal.lock")), "an open log has a lock");
        // A log that was not closed continues in a new segment.
        forebay_test::live_files::copy(dir.path(), copy.path());
        wal.close().wait().unwrap();
        assert_eq!(locked(dir.path()), Vec::<PathBuf>::new(), "round {round}");
        let (wal, recovery) = open(&engine, &copy);
        assert!(!recovery.created);
        wal.close().wait().unwrap();
        assert_eq!(locked(copy.path()), Vec::<PathBuf>::new(), "round {round}, after a recovery");
    }
}

/// As above, if the log could not be opened: the next opener does not find it locked.
#[test]
fn a_log_that_does_not_open_has_no_lock_left() {
    let (engine, dir) = (engine(), dir());
    for _ in 0..20 {
        let error = Wal::open(&engine, dir.path(), options().create(false)).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert_eq!(locked(dir.path()), Vec::<PathBuf>::new());
    }
}
