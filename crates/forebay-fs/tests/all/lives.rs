//! Files that outlive their tasks, runtimes that end, and places without a runtime.

use std::future::Future;
use std::io::SeekFrom;
use std::path::Path;
use std::pin::pin;
use std::process::Command;
use std::task::{Context, Poll, Waker};

use forebay_fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

use crate::common::{bytes, dir};

fn runtimes() -> Vec<(&'static str, Runtime)> {
    vec![
        ("current-thread", Builder::new_current_thread().enable_all().build().unwrap()),
        ("current-thread without drivers", Builder::new_current_thread().build().unwrap()),
        ("two workers", Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()),
        ("a worker without drivers", Builder::new_multi_thread().worker_threads(1).build().unwrap()),
        ("a paused clock", Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()),
    ]
}

#[test]
fn all_runtimes_serve() {
    for (name, runtime) in runtimes() {
        let dir = dir();
        let path = dir.path().join("file");
        runtime.block_on(async {
            let mut file = File::options().read(true).write(true).create(true).open(&path).await.unwrap();
            file.write_all(&bytes(100_000)).await.unwrap();
            file.seek(SeekFrom::Start(50_000)).await.unwrap();
            let mut rest = Vec::new();
            file.read_to_end(&mut rest).await.unwrap();
            assert!(rest == bytes(100_000)[50_000..], "{name}");
            assert_eq!(forebay_fs::read(&path).await.unwrap().len(), 100_000, "{name}");
        });
    }
}

/// tokio's runtime waits for its blocking threads. A reader behind the runtime's end finds the accepted bytes, also where the file
/// was dropped first.
#[test]
fn accepted_bytes_are_in_the_file_when_the_runtime_has_ended() {
    for drops_first in [true, false] {
        for (name, runtime) in runtimes() {
            let dir = dir();
            let path = dir.path().join("file");
            let file = runtime.block_on(async {
                let mut file = File::create(&path).await.unwrap();
                // One write alone is accepted immediately.
                assert_eq!(file.write(&bytes(1 << 20)).await.unwrap(), 1 << 20);
                if drops_first { None } else { Some(file) }
            });
            drop(runtime);
            assert!(std::fs::read(&path).unwrap() == bytes(1 << 20), "{name}, {drops_first}");
            drop(file);
        }
    }
}

/// Regression: a write or copy of a whole file was not waited for once its future was dropped.
#[test]
fn whole_files_are_written_when_the_runtime_has_ended() {
    let content = bytes(8 << 20);
    for (name, runtime) in runtimes() {
        let dir = dir();
        let (path, copy) = (dir.path().join("file"), dir.path().join("copy"));
        std::fs::write(&path, &content).unwrap();
        let written = dir.path().join("written");
        runtime.block_on(async {
            let mut context = Context::from_waker(Waker::noop());
            // A first poll begins them; it may find their ends.
            let _ = pin!(forebay_fs::write(&written, &content)).poll(&mut context);
            let _ = pin!(forebay_fs::copy(&path, &copy)).poll(&mut context);
        });
        drop(runtime);
        assert!(std::fs::read(&written).unwrap() == content, "{name}");
        assert!(std::fs::read(&copy).unwrap() == content, "{name}");
    }
}

/// As above, in a task that the runtime's end cuts off.
#[test]
fn accepted_bytes_of_a_task_that_is_cut_off_are_in_the_file() {
    for (name, runtime) in runtimes() {
        let dir = dir();
        let path = dir.path().join("file");
        let (sender, accepted) = std::sync::mpsc::channel();
        let task = {
            let path = path.clone();
            async move {
                let mut file = File::create(&path).await.unwrap();
                assert_eq!(file.write(&bytes(300_000)).await.unwrap(), 300_000);
                sender.send(()).unwrap();
                std::future::pending::<()>().await;
            }
        };
        let task = runtime.spawn(task);
        runtime.block_on(async {
            while accepted.try_recv().is_err() {
                tokio::task::yield_now().await;
            }
        });
        drop(runtime);
        assert!(std::fs::read(&path).unwrap() == bytes(300_000), "{name}");
        drop(task);
    }
}

/// The end of a runtime waited for a write to a pipe before it had dropped the task with the other end.
#[test]
fn a_pipe_between_tasks_does_not_hold_up_the_end_of_their_runtime() {
    for (_, runtime) in runtimes() {
        let dir = dir();
        let path = dir.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let writer = runtime.block_on(async {
            let write = async { File::options().write(true).open(&path).await.unwrap() };
            let read = async { File::open(&path).await.unwrap() };
            let (mut writer, reader) = futures::future::join(write, read).await;
            // More than a pipe holds without a reader.
            assert_eq!(writer.write(&bytes(2 << 20)).await.unwrap(), 2 << 20);
            drop(tokio::spawn(async move {
                let _reader = reader;
                std::future::pending::<()>().await;
            }));
            writer
        });
        drop(runtime);
        drop(writer);
    }
}

/// Each thread that had written left a task behind.
#[test]
fn threads_that_wrote_leave_their_runtime_one_task() {
    let dir = dir();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    for _ in 0..20 {
        let (handle, path) = (runtime.handle().clone(), dir.path().join("file"));
        let thread = std::thread::spawn(move || {
            let _entered = handle.enter();
            futures::executor::block_on(async {
                let mut file = File::create(&path).await.unwrap();
                file.write_all(&bytes(100)).await.unwrap();
                file.flush().await.unwrap();
            });
        });
        thread.join().unwrap();
    }
    assert!(runtime.metrics().num_alive_tasks() <= 1);
}

#[test]
fn accepted_bytes_of_a_thread_without_a_runtime_are_in_the_file_when_it_has_ended() {
    let dir = dir();
    let path = dir.path().join("file");
    let own = path.clone();
    let thread = std::thread::spawn(move || {
        futures::executor::block_on(async {
            let mut file = File::create(&own).await.unwrap();
            assert_eq!(file.write(&bytes(300_000)).await.unwrap(), 300_000);
        });
    });
    thread.join().unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes(300_000));
}

#[test]
fn other_executors_serve() {
    futures::executor::block_on(async {
        let dir = dir();
        let path = dir.path().join("file");
        forebay_fs::write(&path, bytes(10_000)).await.unwrap();
        let mut file = File::open(&path).await.unwrap();
        let mut contents = Vec::new();
        file.read_to_end(&mut contents).await.unwrap();
        assert!(contents == bytes(10_000));
    });
}

/// A write that fails after it was accepted is reported once, by the next write or flush; reads and seeks in between leave it
/// there.
#[tokio::test]
async fn an_error_of_accepted_bytes_comes_once() {
    let dir = dir();
    let path = dir.path().join("file");
    std::fs::write(&path, bytes(100)).unwrap();
    let mut file = File::open(&path).await.unwrap();
    assert_eq!(file.write(b"refused").await.unwrap(), 7, "accepted");
    let mut first = [0; 10];
    file.read_exact(&mut first).await.unwrap();
    assert_eq!(first, bytes(100)[..10]);
    assert_eq!(file.stream_position().await.unwrap(), 10);
    file.flush().await.unwrap_err();
    file.flush().await.unwrap();
    assert_eq!(file.write(b"refused").await.unwrap(), 7);
    file.sync_all().await.unwrap();
    file.write(b"again").await.unwrap_err();
}

/// A call that was polled once happens; tokio's do.
#[tokio::test]
async fn a_call_that_is_dropped_goes_on() {
    let dir = dir();
    let path = dir.path().join("file");
    {
        let mut write = Box::pin(forebay_fs::write(&path, bytes(500_000)));
        let _ = write.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    while std::fs::metadata(&path).map_or(0, |metadata| metadata.len()) < 500_000 {
        tokio::task::yield_now().await;
    }
    assert!(forebay_fs::read(&path).await.unwrap() == bytes(500_000));
}

/// A read that was polled once and dropped leaves its bytes to the next one.
#[tokio::test]
async fn the_bytes_of_a_read_that_is_dropped_come_with_the_next() {
    let dir = dir();
    let path = dir.path().join("file");
    std::fs::write(&path, bytes(3_000)).unwrap();
    let mut file = File::open(&path).await.unwrap();
    // With a clone no read ends in its first poll, unless its thread is faster than the poll.
    let _clone = file.try_clone().await.unwrap();
    let mut first = vec![0; 1_000];
    let taken = {
        let mut read = Box::pin(file.read(&mut first));
        match read.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(count) => count.unwrap(),
            Poll::Pending => 0,
        }
    };
    let mut rest = Vec::new();
    file.read_to_end(&mut rest).await.unwrap();
    assert!(rest == bytes(3_000)[taken..]);
}

#[test]
fn a_thousand_runtimes_leave_nothing() {
    let dir = dir();
    let path = dir.path().join("file");
    std::fs::write(&path, bytes(10_000)).unwrap();
    for _ in 0..1_000 {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut file = File::open(&path).await.unwrap();
            let mut part = [0; 100];
            file.read_exact(&mut part).await.unwrap();
            let mut copy = File::create(dir.path().join("copy")).await.unwrap();
            copy.write_all(&part).await.unwrap();
        });
    }
    assert_eq!(descriptors_of(dir.path()), 0);
}

/// Returns how many descriptors of this process are of files in a directory.
fn descriptors_of(dir: &Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(dir))).count()
}

/// A program that was just written can be run: its file is closed with its handle, not some time later (ETXTBSY).
#[tokio::test]
async fn a_file_that_may_be_written_is_closed_with_its_handle() {
    use std::os::unix::fs::PermissionsExt;

    let dir = dir();
    for turn in 0..20 {
        let path = dir.path().join(format!("program {turn}"));
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).await.unwrap();
        file.write_all(b"#!/bin/sh\necho ran\n").await.unwrap();
        file.rewind().await.unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).await.unwrap();
        let mut head = [0; 2];
        file.read_exact_at(&mut head, 0).await.unwrap();
        file.set_permissions(std::fs::Permissions::from_mode(0o755)).await.unwrap();
        file.flush().await.unwrap();
        drop(file);
        assert_eq!(descriptors_of(dir.path()), 0);
    }
}

/// Files keep what they were opened with; the scope is that of a thread or a task.
#[tokio::test]
async fn a_scope_has_its_own_engine() {
    let dir = dir();
    let path = dir.path().join("file");
    std::fs::write(&path, bytes(100_000)).unwrap();
    let engine = forebay::Engine::start(forebay::Config::new().shards(1)).unwrap();
    let read = async {
        let mut options = forebay_fs::OpenOptions::new();
        let file = options.read(true).adaptive(true).open(&path).await.unwrap();
        let mut part = vec![0; 5_000];
        file.read_exact_at(&mut part, 3_000).await.unwrap();
        assert!(part == bytes(100_000)[3_000..8_000]);
    };
    forebay_fs::within(&engine, read).await;
    let stats = engine.stats().await.unwrap();
    let of_device: u64 = stats.flows.iter().map(|flow| flow.reads).sum();
    assert!(stats.page_cache_reads + of_device > 0, "{stats:?}");
    {
        let _scope = forebay_fs::enter(&engine);
        assert_eq!(forebay_fs::engine().unwrap().shard_count(), 1);
    }
}

/// The calls of a test with a paused clock had a limit of a second each, and expired, where those of `tokio::fs` did not: the clock
/// moved to the limit while the calls were on threads of this crate.
#[tokio::test(start_paused = true)]
async fn a_paused_clock_stands_while_a_call_is_in_flight() {
    let dir = dir();
    let path = dir.path().join("file");
    let begun = tokio::time::Instant::now();
    for turn in 0..20 {
        in_time(forebay_fs::write(&path, bytes(100_000))).await.unwrap();
        let mut options = forebay_fs::OpenOptions::new();
        let mut file = in_time(options.read(true).adaptive(turn % 2 == 0).open(&path)).await.unwrap();
        let mut all = Vec::new();
        in_time(file.read_to_end(&mut all)).await.unwrap();
        assert!(all == bytes(100_000));
        in_time(file.read_exact_at(&mut all[..5_000], 3_000)).await.unwrap();
        assert_eq!(in_time(forebay_fs::metadata(&path)).await.unwrap().len(), 100_000);
    }
    assert_eq!(begun.elapsed(), std::time::Duration::ZERO);
    tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
    assert!(begun.elapsed() >= std::time::Duration::from_secs(3600), "and goes on afterwards");
}

async fn in_time<T>(call: impl Future<Output = T>) -> T {
    let limit = std::time::Duration::from_millis(1);
    tokio::time::timeout(limit, call).await.expect("the clock stands")
}
