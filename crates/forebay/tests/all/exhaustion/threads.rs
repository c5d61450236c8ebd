//! No thread can be started: RLIMIT_NPROC, like pids.max of a control group, lets clone(2) fail with EAGAIN.

use forebay::{DriverChoice, Durability, Engine, ErrorKind, Open};
use forebay_test::children::{limits, set_limit};

use super::child::{is_root, scene};
use super::scenery::{Holdings, close, everything_works, names, tells};
use crate::common::{bytes_of, config, dir};

/// Makes the child run as a user without other processes: root has no limit of processes.
fn become_nobody() -> tempfile::TempDir {
    // A concurrent scene has another number: the limit counts all threads of a user.
    let nobody: libc::uid_t = 1_000_000 + std::process::id();
    let dir = dir();
    if is_root() {
        let path = std::ffi::CString::new(dir.path().as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: chown(2) reads the path; setresuid(2) has no pointer arguments and, in this C library, changes all threads.
        unsafe {
            assert_eq!(libc::chown(path.as_ptr(), nobody, nobody), 0);
            assert_eq!(libc::setresuid(nobody, nobody, nobody), 0);
        }
    }
    dir
}

/// Returns the limit that lets `more` threads start, if the user has no process but this one.
fn threads_at_most(more: usize) -> u64 {
    (Holdings::now().threads() + more) as u64
}

/// However many threads may start: the engine runs, or the error names the limit to raise, and nothing is
/// left of the attempt.
#[test]
fn an_engine_starts_with_few_threads_or_not_at_all() {
    scene("threads::an_engine_starts_with_few_threads_or_not_at_all", || {
        if !is_root() {
            return println!(
                "skipped: how many threads this user has can be told for a user made up by root only"
            );
        }
        let dir = become_nobody();
        let (before, (enough, _)) = (Holdings::now(), limits(libc::RLIMIT_NPROC));
        for choice in [DriverChoice::Auto, DriverChoice::Threads] {
            for more in 0..6 {
                set_limit(libc::RLIMIT_NPROC, threads_at_most(more));
                let engine = Engine::start(config().shards(4).driver(choice));
                let refused = engine.as_ref().err().map(|error| {
                    assert_eq!(error.raw_os_error(), Some(libc::EAGAIN), "{error}");
                    names(error, &["start", "thread for a shard", "ulimit -u", "pids.max"]);
                });
                assert_eq!(refused.is_some(), more < 4);
                set_limit(libc::RLIMIT_NPROC, enough);
                if let Ok(engine) = engine {
                    everything_works(&engine, dir.path());
                    close(engine);
                }
                before.is_all_again();
            }
        }
    });
}

#[test]
fn no_thread_for_calls() {
    scene("threads::no_thread_for_calls", || {
        let dir = become_nobody();
        let (before, (enough, _)) = (Holdings::now(), limits(libc::RLIMIT_NPROC));
        let engine = Engine::start(config().shards(1)).unwrap();
        set_limit(libc::RLIMIT_NPROC, 0);
        let path = dir.path().join("file");
        let error = engine.open(&path, Open::create_new()).wait().unwrap_err();
        assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::Io, Some(libc::EAGAIN)), "{error}");
        names(&error, &["open", "no thread", "ulimit -u", "pids.max"]);
        assert!(!path.exists());
        set_limit(libc::RLIMIT_NPROC, enough);
        engine.open(&path, Open::create_new()).wait().unwrap().write(0, bytes_of(0..4096)).wait().unwrap();
        // From here on a thread exists, which does everything.
        set_limit(libc::RLIMIT_NPROC, 0);
        let opening: Vec<_> = (0..100).map(|_| engine.open(&path, Open::read())).collect();
        opening.into_iter().for_each(|file| drop(file.wait().unwrap()));
        set_limit(libc::RLIMIT_NPROC, enough);
        everything_works(&engine, dir.path());
        close(engine);
        before.is_all_again();
    });
}

/// The threads driver without a thread fails its operations with the reason, and works once it gets one. A
/// ring needs threads of the kernel's for operations that would block, syncs above all.
///
/// Regressions: health did not report threads that were refused after the start; and the kernel ends
/// operations that it has no worker for with ECANCELED, which was reported as an operation that a caller had
/// cancelled.
#[test]
fn no_thread_for_operations() {
    scene("threads::no_thread_for_operations", || {
        let dir = become_nobody();
        let (before, (enough, _)) = (Holdings::now(), limits(libc::RLIMIT_NPROC));
        for open in [Open::create(), Open::create().buffered()] {
            let engine = Engine::start(config().shards(1)).unwrap();
            let path = dir.path().join("file");
            let file = engine.open(&path, open.truncate()).wait().unwrap();
            set_limit(libc::RLIMIT_NPROC, 0);
            let mut refused = 0;
            let mut look = |result: forebay::Result<()>| {
                let Err(error) = result else { return };
                assert_eq!(
                    (error.kind(), error.raw_os_error()),
                    (ErrorKind::Io, Some(libc::EAGAIN)),
                    "{error}"
                );
                names(&error, &[path.to_str().unwrap(), "ulimit -u", "pids.max"]);
                refused += 1;
            };
            for n in 0..3u64 {
                let range = n * 4096..(n + 1) * 4096;
                look(file.write(range.start, bytes_of(range.clone())).wait());
                look(file.write(range.start, bytes_of(range.clone())).durable(Durability::Data).wait());
                look(file.read_up_to(range.clone()).wait().map(drop));
                look(file.sync(Durability::All).wait());
            }
            if engine.driver() == "threads" {
                assert_eq!(refused, 12);
                tells(&engine, &["I/O threads"], "ulimit -u");
            }
            set_limit(libc::RLIMIT_NPROC, enough);
            file.write(0, bytes_of(0..1 << 20)).durable(Durability::All).wait().unwrap();
            assert!(file.read(0..1 << 20).wait().unwrap()[..] == bytes_of(0..1 << 20)[..]);
            everything_works(&engine, dir.path());
            drop(file);
            close(engine);
            before.is_all_again();
        }
    });
}
