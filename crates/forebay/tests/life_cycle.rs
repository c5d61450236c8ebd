//! A separate program: it executes files right after their close, and children that other tests start hold copies of descriptors
//! until they have executed theirs.
//!
//! Calls about names, lengths and space have the life of every operation: a drop withdraws a queued call, a close waits for a
//! running call, and nothing of it happens afterwards.
//!
//! The story: a program gave up a `truncate` while the threads of the engine's pool were busy, closed the file, and wrote 64 KiB
//! durably through another handle. The close had returned immediately, with the truncation still in the pool's queue: it was
//! carried out later and cut the 64 KiB to 4. The queued call also kept the descriptor, so that a program which was written, closed
//! and executed was "text file busy", and a log that was closed and opened again found its own lock.
#![cfg(target_os = "linux")]

use std::fs::File as StdFile;
use std::future::IntoFuture;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay::{Advice, Config, DriverChoice, Engine, ErrorKind, File, Lock, Open, Pending};

/// The threads of an engine's pool.
const THREADS: usize = 4;
const LEN: usize = 64 << 10;

fn place() -> PathBuf {
    std::env::var_os("FOREBAY_TEST_DIR").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into()).into()
}

/// An engine, a directory, and files that others cannot open until the test lets them: leases (fcntl(2)).
struct Scene {
    engine: Engine,
    dir: tempfile::TempDir,
    leased: Vec<StdFile>,
}

/// The drivers: whichever is chosen here, and threads.
fn configs() -> [Config; 2] {
    [DriverChoice::Auto, DriverChoice::Threads].map(|driver| Config::new().shards(2).driver(driver))
}

impl Scene {
    fn new(config: Config) -> Scene {
        let dir = tempfile::Builder::new().prefix("forebay-life-").tempdir_in(place()).unwrap();
        Scene { engine: Engine::start(config).unwrap(), dir, leased: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Has every thread of the pool wait in an open(2), and returns these calls.
    fn keep_the_pool_busy(&mut self) -> Vec<Pending<File>> {
        // SAFETY: ignoring a signal touches no memory. The kernel reports with it that another process waits for a lease.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
        let busy = (0..THREADS).map(|number| {
            let path = self.path(&format!("leased {number}"));
            std::fs::write(&path, b"x").unwrap();
            let file = StdFile::options().read(true).write(true).open(&path).unwrap();
            // SAFETY: fcntl(2) on an open descriptor, without memory.
            assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) }, 0);
            self.leased.push(file);
            self.engine.open(path, Open::read().buffered())
        });
        let busy = busy.collect();
        // The kernel names what a lease is to become once another process waits for it.
        for file in &self.leased {
            // SAFETY: as above.
            while unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) } == libc::F_WRLCK {
                std::thread::yield_now();
            }
        }
        busy
    }

    /// Lets the threads continue, and waits for all queued calls.
    fn release(&mut self, busy: Vec<Pending<File>>) {
        self.leased.clear();
        busy.into_iter().for_each(|open| drop(open.wait().unwrap()));
        for _ in 0..4 * THREADS {
            self.engine.metadata(self.dir.path()).wait().unwrap();
        }
    }
}

/// A call that has started, with any result.
type Call = Pin<Box<dyn Future<Output = forebay::Result<()>>>>;

fn begun<T: 'static>(pending: Pending<T>) -> Call {
    Box::pin(async move { pending.await.map(drop) })
}

fn poll<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Poll<T> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns how many of this process's descriptors are of a path.
fn descriptors_of(path: &Path) -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let leads_there = |entry: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_link(entry.unwrap().path()).is_ok_and(|to| to == path)
    };
    entries.filter_map(|entry| leads_there(entry).then_some(())).count()
}

/// Every call about an open file that the pool carries out; `file` is the one that is closed.
const CALLS: [&str; 10] = [
    "truncate",
    "punch_hole",
    "allocate",
    "copy_range within",
    "copy_range from",
    "copy_range to",
    "advise",
    "metadata",
    "try_lock",
    "unlock",
];

fn begin(name: &str, file: &File, other: &File) -> Call {
    match name {
        "truncate" => begun(file.truncate(4096)),
        "punch_hole" => begun(file.punch_hole(0..LEN as u64)),
        "allocate" => begun(file.allocate(0..1 << 20)),
        "copy_range within" => begun(file.copy_range(0..4096, file, 8192)),
        "copy_range from" => begun(file.copy_range(0..4096, other, 0)),
        "copy_range to" => begun(other.copy_range(0..4096, file, 8192)),
        "advise" => begun(file.advise(0..4096, Advice::DontNeed)),
        "metadata" => begun(file.metadata()),
        "try_lock" => begun(file.try_lock(Lock::Exclusive)),
        _ => begun(file.unlock()),
    }
}

/// Writes a file anew as another program would, durably.
fn write_anew(path: &Path) {
    let file = StdFile::options().read(true).write(true).open(path).unwrap();
    file.write_all_at(&[9; LEN], 0).unwrap();
    file.sync_all().unwrap();
}

/// The story, for each call and whether it was polled or not.
#[test]
fn a_dropped_call_has_no_effect_after_the_close() {
    for config in configs() {
        let mut scene = Scene::new(config);
        for (number, name) in CALLS.into_iter().enumerate() {
            let (path, others) = (scene.path("data"), scene.path("other"));
            std::fs::write(&path, [1; LEN]).unwrap();
            std::fs::write(&others, [2; LEN]).unwrap();
            let file = scene.engine.open(&path, Open::write()).wait().unwrap();
            let other = scene.engine.open(&others, Open::write()).wait().unwrap();
            let busy = scene.keep_the_pool_busy();
            let mut call = begin(name, &file, &other);
            if number % 2 == 0 {
                assert!(poll(&mut call).is_pending());
            }
            drop(call);
            // No thread has started it, so nothing is waited for, and nothing of it is left.
            file.close().wait().unwrap();
            assert_eq!(descriptors_of(&path), 0, "{name}");
            StdFile::open(&path).unwrap().try_lock().unwrap();
            write_anew(&path);
            write_anew(&others);
            scene.release(busy);
            for path in [&path, &others] {
                let bytes = std::fs::read(path).unwrap();
                assert_eq!(
                    (bytes.len(), bytes.iter().filter(|byte| **byte != 9).count()),
                    (LEN, 0),
                    "{name}"
                );
            }
        }
    }
}

/// The descriptor that a queued call kept made the kernel refuse to execute the file: ETXTBSY.
#[test]
fn a_program_that_was_written_and_closed_is_executed() {
    let mut scene = Scene::new(Config::new());
    let path = scene.path("program");
    let file = scene.engine.open(&path, Open::create().permissions(0o755).buffered()).wait().unwrap();
    file.write(0, b"#!/bin/sh\nexit 7\n".to_vec()).wait().unwrap();
    let busy = scene.keep_the_pool_busy();
    drop(file.truncate(17));
    file.close().wait().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o111, 0o111);
    // Another test's process may be between its fork and its exec, with a copy of every descriptor of this one.
    let status = std::process::Command::new(&path).status();
    assert_eq!(status.unwrap().code(), Some(7));
    scene.release(busy);
}

/// An operation whose future is dropped while its message is in a shard's inbox: the message has the file.
#[test]
fn a_close_waits_for_messages_of_dropped_operations() {
    for config in configs() {
        // Calls of waiting threads send no message.
        let scene = Scene::new(config.wait_calls(false));
        let path = scene.path("data");
        std::fs::write(&path, [1; LEN]).unwrap();
        for round in 0..200 {
            let file = scene.engine.open(&path, Open::read()).wait().unwrap();
            let mut read = file.read(0..4096).into_future();
            assert!(poll(&mut Box::pin(&mut read)).is_pending());
            drop(read);
            let mut many = Box::pin(file.read_many([0..100, 5000..5100]).into_future());
            let _ = poll(&mut many);
            drop(many);
            file.close().wait().unwrap();
            assert_eq!(descriptors_of(&path), 0, "round {round}");
        }
    }
}

/// A call whose future lives runs to its end, polled or not, and the close completes after it.
#[test]
fn a_close_waits_for_calls_in_the_queue() {
    for config in configs() {
        let mut scene = Scene::new(config);
        let path = scene.path("data");
        std::fs::write(&path, [1; LEN]).unwrap();
        let file = scene.engine.open(&path, Open::write()).wait().unwrap();
        let busy = scene.keep_the_pool_busy();
        let kept = file.truncate(4096);
        file.punch_hole(0..1024).detach();
        let late = file.clone();
        let mut close = file.close();
        assert!(poll(&mut close).is_pending());
        assert_eq!(late.truncate(0).wait().unwrap_err().kind(), ErrorKind::FileClosed);
        drop(late);
        scene.release(busy);
        close.wait().unwrap();
        assert_eq!(descriptors_of(&path), 0);
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!((bytes.len(), bytes.iter().filter(|byte| **byte == 0).count()), (4096, 1024));
        kept.wait().unwrap();
    }
}

/// Calls in a directory: a dropped one never happens, a detached one happens before the close has completed.
#[test]
fn a_directory_is_closed_after_its_calls() {
    for config in configs() {
        let mut scene = Scene::new(config);
        for name in ["removed", "renamed", "kept", "kept too"] {
            std::fs::write(scene.path(name), b"x").unwrap();
        }
        let dir = scene.engine.open_dir(scene.dir.path()).wait().unwrap();
        let busy = scene.keep_the_pool_busy();
        dir.remove_file("removed").detach();
        dir.rename("renamed", "under another name").detach();
        drop(dir.remove_file("kept"));
        drop(dir.rename_into("kept too", &dir, "lost"));
        drop(dir.open("made", Open::create()));
        drop(dir.create_dir("made too"));
        let other = dir.clone();
        let mut close = dir.close();
        assert!(poll(&mut close).is_pending());
        scene.release(busy);
        close.wait().unwrap();
        let there = |name: &str| scene.path(name).exists();
        assert_eq!(["removed", "renamed", "lost", "made", "made too"].map(there), [false; 5]);
        assert_eq!(["under another name", "kept", "kept too"].map(there), [true; 3]);
        for error in [
            other.remove_file("kept").wait().unwrap_err(),
            other.open("made", Open::create()).wait().unwrap_err(),
            other.is_removed().unwrap_err(),
            other.clone().close().wait().unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::FileClosed, "{error}");
            assert!(error.path().is_some_and(|path| path.starts_with(scene.dir.path())), "{error}");
        }
        drop(other);
        assert_eq!(descriptors_of(scene.dir.path()), 0);
    }
}

/// An engine's close refuses what waits for its turn, and waits for what a thread is in and for what was detached.
#[test]
fn an_engine_is_closed_after_its_calls() {
    for config in configs() {
        let mut scene = Scene::new(config);
        std::fs::write(scene.path("removed"), b"x").unwrap();
        std::fs::write(scene.path("kept"), b"x").unwrap();
        let busy = scene.keep_the_pool_busy();
        scene.engine.remove_file(scene.path("removed")).detach();
        let refused = scene.engine.remove_file(scene.path("kept"));
        let mut close = scene.engine.clone().close();
        assert_eq!(refused.wait().unwrap_err().kind(), ErrorKind::EngineClosed);
        assert!(poll(&mut close).is_pending());
        scene.leased.clear();
        let report = close.wait().unwrap();
        assert_eq!((report.leaked_operations, report.lost_shards, report.calls_left.len()), (0, 0, 0));
        assert_eq!(["removed", "kept"].map(|name| scene.path(name).exists()), [false, true]);
        // The opens that ran have completed, for an engine that has ended.
        busy.into_iter().for_each(|open| drop(open.wait()));
    }
}

/// Past the deadline the close names what is left; nothing of the queue happens any more.
#[test]
fn past_the_deadline_an_engine_names_what_is_left() {
    let mut scene = Scene::new(Config::new().shutdown_deadline(Duration::from_millis(50)));
    std::fs::write(scene.path("kept"), b"x").unwrap();
    let busy = scene.keep_the_pool_busy();
    scene.engine.remove_file(scene.path("kept")).detach();
    let mut report = scene.engine.clone().close().wait().unwrap();
    report.calls_left.sort_unstable();
    assert_eq!(report.calls_left, ["open", "open", "open", "open", "remove_file"]);
    let degraded = scene.engine.health().degraded;
    assert!(degraded.iter().any(|what| what.to_string().contains("remove_file")), "{degraded:?}");
    scene.leased.clear();
    busy.into_iter().for_each(|open| drop(open.wait()));
    assert!(scene.path("kept").exists());
}

/// Handles that are dropped without a close leave detached calls their turn, and nothing else.
#[test]
fn an_engine_that_is_dropped_carries_out_what_was_detached() {
    let mut scene = Scene::new(Config::new());
    let [removed, kept] = ["removed", "kept"].map(|name| scene.path(name));
    std::fs::write(&removed, b"x").unwrap();
    std::fs::write(&kept, b"x").unwrap();
    let busy = scene.keep_the_pool_busy();
    scene.engine.remove_file(&removed).detach();
    drop(scene.engine.remove_file(&kept));
    let Scene { engine, leased, dir } = scene;
    drop(engine);
    drop(leased);
    busy.into_iter().for_each(|open| drop(open.wait()));
    while removed.exists() {
        std::thread::yield_now();
    }
    assert!(kept.exists());
    drop(dir);
}

/// The first test fails with a core whose dropped calls keep their turn, as it did with the core of the story.
#[cfg(feature = "_mutants")]
#[test]
fn a_core_as_in_the_story_is_caught() {
    use forebay::mutants::{self, Mutant};
    let story =
        || mutants::with(Mutant::DroppedCallsStayQueued, a_dropped_call_has_no_effect_after_the_close);
    assert!(std::panic::catch_unwind(story).is_err());
}
