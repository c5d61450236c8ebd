//! A separate program: resident memory and threads of the process are counted, and a large program would be most of the memory.
//!
//! The cost of an engine for a machine or a container: threads, resident memory, and no processor time without work.
//!
//! Each engine is in a separate process, this program again. Memory and wake-ups are the kernel's counts for that process.
//!
//! Seen to fail: with 8 MiB of I/O memory from the start; with inboxes made at the start, for 16 shards; when shard 0 never stopped
//! checking the rings of a runtime; when the stall profiler's thread checked once a second.
#![cfg(target_os = "linux")]

mod common;

use std::sync::mpsc;
use std::time::Duration;

use common::{config, dir, write_file};
#[cfg(feature = "tokio")]
use forebay::WorkerRings;
use forebay::{Class, Config, Engine, Open};
use forebay_test::children::{Scene, is_child};

/// The most that an engine may add to the resident memory of its process.
const RESIDENT_KIB_MAX: u64 = 16 << 10;

/// The limits at the start, before an operation: of an engine, most of which is the program itself, and of each shard.
const STARTED_KIB_MAX: u64 = 4 << 10;
const SHARD_KIB_MAX: u64 = 256;

/// Runs the test `name` in a child, where this call runs `body`.
fn alone(name: &str, body: impl FnOnce()) {
    if is_child(name) {
        return body();
    }
    print!("{}", Scene::new(name).run().unwrap());
}

/// This process, as the kernel counts it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Process {
    threads: u64,
    resident_kib: u64,
}

impl Process {
    fn now() -> Process {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        // The kernel may reclaim memory at any time: into swap space, which counts here too.
        let resident_kib = number(&status, "VmRSS:") + number(&status, "VmSwap:");
        Process { threads: number(&status, "Threads:"), resident_kib }
    }
}

fn number(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Returns the threads whose name starts with `prefix`, by number, with how often each was switched to.
fn switches(prefix: &str) -> Vec<(String, u64)> {
    let count = |task: std::fs::DirEntry| {
        // A thread may end meanwhile.
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let name = status.lines().find_map(|line| line.strip_prefix("Name:"))?.trim();
        let (waits, preemptions) = ("voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:");
        let switches = number(&status, waits) + number(&status, preemptions);
        name.starts_with(prefix).then(|| (format!("{name} {}", task.file_name().display()), switches))
    };
    std::fs::read_dir("/proc/self/task").unwrap().flatten().filter_map(count).collect()
}

/// Checks that the engine's threads are not switched to for a while, once they are idle. Any thread with periodic work does it
/// within this while: no period is longer than a second.
#[track_caller]
fn rests(engine: &Engine) {
    const WHILE: Duration = Duration::from_millis(1_100);
    let (_open, never) = mpsc::channel::<()>();
    let mut seen = Vec::new();
    // Work of the start may still run, and threads without work end after some seconds: one while in these is without.
    for _ in 0..8 {
        let before = switches("forebay");
        assert!(before.len() >= engine.shard_count(), "the engine has threads: {before:?}");
        let _ = never.recv_timeout(WHILE);
        let after = switches("forebay");
        if after == before {
            return;
        }
        seen.push((before, after));
    }
    panic!("threads of an idle engine were switched to: {seen:#?}");
}

/// Reads on each of the engine's shards, and from this thread.
fn read_everywhere(engine: &Engine) {
    let dir = dir();
    let path = dir.path().join("data");
    write_file(&path, 1 << 20);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    assert_eq!(file.read(0..4096).wait().unwrap().len(), 4096);
    for shard in 0..engine.shard_count() {
        let file = file.clone();
        let read = move || async move { file.read(4096..8192).await.map(|block| block.len()) };
        assert_eq!(engine.spawn_on_shard(shard, Class::DEFAULT, read).wait().unwrap().unwrap(), 4096);
    }
}

/// Starts an engine, uses it, lets it rest, and checks its resources at each step.
fn is_small(shards: usize, start: impl FnOnce(Config) -> Engine) {
    let before = Process::now();
    let engine = start(config());
    let started = Process::now();
    assert_eq!(engine.shard_count(), shards);
    // The stall profiler has a thread; nothing else has before it is used.
    let others = u64::from(cfg!(feature = "backtrace"));
    assert!(started.threads <= before.threads + shards as u64 + others, "{before:?} {started:?}");
    let added = |now: Process| now.resident_kib.saturating_sub(before.resident_kib);
    println!("{shards} shards: {} KiB after the start", added(started));
    let most = STARTED_KIB_MAX + SHARD_KIB_MAX * shards as u64;
    assert!(added(started) <= most, "{} KiB after the start, of {most}", added(started));
    assert_eq!(engine.memory().arena_bytes, 0, "I/O memory comes with the first operation");
    rests(&engine);
    read_everywhere(&engine);
    println!("{shards} shards: {} KiB after reads", added(Process::now()));
    assert!(added(Process::now()) <= RESIDENT_KIB_MAX, "{} KiB after reads", added(Process::now()));
    rests(&engine);
}

#[test]
fn one_shard_is_small() {
    alone("one_shard_is_small", || is_small(1, |config| Engine::start(config.shards(1)).unwrap()));
}

/// Regression: a shard whose task slept for ever, as one with a time limit of `Duration::MAX` does, kept its processor busy. The
/// kernel's wait of 584 years ended immediately, each time.
#[test]
fn a_shard_rests_while_a_task_sleeps_for_ever() {
    alone("a_shard_rests_while_a_task_sleeps_for_ever", || {
        let engine = Engine::start(config().shards(1)).unwrap();
        let turns = || engine.stats().wait().unwrap().shards[0].turns;
        let task = engine.spawn_on_shard(0, Class::DEFAULT, || forebay::shard::sleep(Duration::MAX));
        let before = turns();
        rests(&engine);
        let more = turns() - before;
        assert!(more < 1000, "{more} turns without work");
        task.abort();
        assert!(task.wait().is_err());
    });
}

/// The engine of a machine with 64 processors: one shard for four of them.
#[test]
#[cfg(feature = "_sim")]
fn sixty_four_processors_have_sixteen_small_shards() {
    alone("sixty_four_processors_have_sixteen_small_shards", || {
        is_small(16, |config| forebay::internal::start_on_processors(64, config).unwrap());
    });
}

#[test]
fn memory_that_was_asked_for_exists_from_the_start() {
    alone("memory_that_was_asked_for_exists_from_the_start", || {
        let before = Process::now();
        let engine =
            Engine::start(config().shards(1).arena_bytes(6 << 20).arena_bytes_max(64 << 20)).unwrap();
        assert_eq!(engine.memory().arena_bytes, 6 << 20);
        let added = Process::now().resident_kib.saturating_sub(before.resident_kib);
        assert!(added >= 6 << 10, "{added} KiB");
    });
}

/// Rings of a runtime's workers, and the shard that serves them, are at rest when no operation is in flight.
#[test]
#[cfg(feature = "tokio")]
fn rings_of_a_runtime_are_at_rest_without_work() {
    alone("rings_of_a_runtime_are_at_rest_without_work", || {
        let before = Process::now();
        let engine = Engine::start(config().shards(1).worker_rings(WorkerRings::Auto)).unwrap();
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let dir = dir();
        let path = dir.path().join("data");
        write_file(&path, 1 << 20);
        let file = engine.open(&path, Open::read()).wait().unwrap();
        let read = |n: u64| {
            let file = file.clone();
            runtime.spawn(async move { file.read(n * 4096..(n + 1) * 4096).await.map(|block| block.len()) })
        };
        for task in (0..64).map(read).collect::<Vec<_>>() {
            assert_eq!(runtime.block_on(task).unwrap().unwrap(), 4096);
        }
        rests(&engine);
        let added = Process::now().resident_kib.saturating_sub(before.resident_kib);
        assert!(added <= RESIDENT_KIB_MAX, "{added} KiB");
        drop(runtime);
    });
}
