//! A separate program: threads of the process are counted, signals sent to it, and it forks.
//!
//! Back-traces of tasks that held their shard: the feature `backtrace` through the public API.
//!
//! A held shard serves no request, so tasks here hold theirs until the watcher has looked often enough, which
//! the system counts: each look ends with a voluntary context switch of the thread `forebay-watch`.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod common;

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use common::config;
use forebay::{Class, Engine, Stall, shard};

/// Returns the watcher's threads of this process, by thread number, and how often each gave up its processor
/// by itself.
fn watchers() -> Vec<(String, u64)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let mut watchers = Vec::new();
    for task in tasks.flatten() {
        let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        if read("comm").trim() != "forebay-watch" {
            continue;
        }
        let status = read("status");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let Some(looks) = line.and_then(|count| count.trim().parse().ok()) else { continue };
        watchers.push((task.file_name().into_string().unwrap(), looks));
    }
    watchers
}

/// Returns the looks of all watchers together.
fn looks() -> u64 {
    watchers().iter().map(|(_, looks)| looks).sum()
}

/// Locks the tests: one at a time, each after the end of the previous test's engines; the process has one watcher then.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    until("no watcher is left", || watchers().is_empty());
    alone
}

#[track_caller]
fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(120), "still not: {what}");
        std::thread::yield_now();
    }
}

const BOUND: Duration = Duration::from_millis(2);

fn engine() -> Engine {
    Engine::start(config().shards(1).stall_after(BOUND)).unwrap()
}

/// Starts an engine whose watcher has started.
fn watched() -> Engine {
    let engine = engine();
    until("there is a watcher", || !watchers().is_empty());
    engine
}

/// More looks than a poll needs to be sampled. The looks are at least half of the bound apart: five are longer than it.
const ENOUGH: u64 = 12;

/// Returns the stalled task whose name contains `name`, once it has a back-trace.
#[track_caller]
fn traced(engine: &Engine, name: &str) -> Stall {
    let begun = Instant::now();
    loop {
        let stalls = engine.stats().wait().unwrap().stalls;
        let known = stalls.iter().find(|stall| stall.task.contains(name));
        if let Some(stall) = known.filter(|stall| stall.back_trace.is_some()) {
            return stall.clone();
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{name} has no back-trace: {stalls:?}");
        std::thread::yield_now();
    }
}

#[inline(never)]
fn holds_on_here() {
    let begun = looks();
    while looks() < begun + ENOUGH {
        std::hint::spin_loop();
    }
}

#[inline(never)]
fn calls_what_holds() {
    holds_on_here();
    std::hint::black_box(());
}

async fn a_long_task() {
    shard::yield_now().await;
    calls_what_holds();
}

/// Returns the position in the text of the line that starts with this function of the tests.
#[track_caller]
fn line_of(text: &str, function: &str) -> usize {
    let named = |line: &str| line.split(" (").next().unwrap_or_default().ends_with(function);
    text.lines().position(named).unwrap_or_else(|| panic!("no {function} in:\n{text}"))
}

#[test]
fn a_task_that_holds_its_shard_is_found_where_it_stands() {
    let _alone = alone();
    let engine = watched();
    engine.spawn_on_shard(0, Class::DEFAULT, a_long_task).wait().unwrap();
    let stall = traced(&engine, "a_long_task");
    assert!(stall.longest_ns >= BOUND.as_nanos() as u64, "{stall:?}");
    let text = stall.back_trace.unwrap();
    let (inner, outer) = (line_of(&text, "holds_on_here"), line_of(&text, "calls_what_holds"));
    assert!(inner < outer, "the innermost first:\n{text}");
    assert!(text.contains("back_traces.rs:"), "files and lines:\n{text}");
    // By its file: with line tables alone, an inlined function's name has no path.
    let last = text.lines().last().unwrap();
    assert!(
        outer + 1 < text.lines().count() && last.contains(file!()),
        "the task itself comes last:\n{text}"
    );
    assert!(!text.contains("executor"), "nothing of who polled it:\n{text}");
    assert!(engine.health().degraded.iter().all(|known| known.what != "back-traces"));
}

/// Waits for a byte in the kernel.
#[inline(never)]
fn waits_in_the_kernel(pipe: i32) -> (isize, u8) {
    let mut byte = 0u8;
    // SAFETY: one byte into a local of one byte.
    let got = unsafe { libc::read(pipe, (&raw mut byte).cast(), 1) };
    (got, byte)
}

#[test]
fn a_call_that_the_signal_interrupts_goes_on() {
    let _alone = alone();
    let engine = watched();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (tell, told) = mpsc::channel();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        tell.send(()).unwrap();
        waits_in_the_kernel(reader.as_raw_fd())
    });
    told.recv().unwrap();
    let begun = looks();
    until("the watcher has looked", || looks() >= begun + ENOUGH);
    std::io::Write::write_all(&mut writer, b"x").unwrap();
    assert_eq!(task.wait().unwrap(), (1, b'x'));
    let text = traced(&engine, "a_call_that_the_signal").back_trace.unwrap();
    line_of(&text, "waits_in_the_kernel");
}

#[inline(never)]
fn holds_on_longer(at_least: Duration) {
    let begun = Instant::now();
    holds_on_here();
    while begun.elapsed() < at_least {
        std::hint::spin_loop();
    }
}

async fn holds(at_least: Duration) {
    match at_least {
        Duration::ZERO => holds_on_here(),
        at_least => holds_on_longer(at_least),
    }
}

#[test]
fn the_longest_poll_is_the_one_that_is_shown() {
    let _alone = alone();
    let engine = watched();
    let hold = |at_least| engine.spawn_on_shard(0, Class::DEFAULT, move || holds(at_least)).wait().unwrap();
    hold(Duration::ZERO);
    let first = traced(&engine, "::holds");
    assert!(!first.back_trace.unwrap().contains("holds_on_longer"));
    hold(Duration::from_nanos(first.longest_ns * 2));
    until("the longer one is there", || {
        traced(&engine, "::holds").back_trace.unwrap().contains("holds_on_longer")
    });
    let second = traced(&engine, "::holds");
    hold(Duration::ZERO);
    let third = traced(&engine, "::holds");
    assert_eq!(third.polls, 3);
    // On a busy machine the last one may have been the longest.
    assert!(third.longest_ns > second.longest_ns || third.back_trace == second.back_trace);
}

/// Runs `body` in a child of this process without its threads, for tests that concern a whole process. Fails if `body` failed.
fn in_child(body: impl FnOnce()) {
    // SAFETY: the child runs `body`, which uses the allocator (usable after fork with this C library) and none of the
    // test harness's locks, and leaves by `_exit`.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: alarm(2) and _exit(2) have no pointer arguments.
            unsafe { libc::alarm(200) };
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            // SAFETY: as above.
            unsafe { libc::_exit(if ended.is_ok() { 0 } else { 1 }) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is writable; the child is ours.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child failed; what it wrote is above");
        }
    }
}

static URGENT: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_urgent(_: libc::c_int) {
    URGENT.fetch_add(1, Ordering::Relaxed);
}

fn set_handler(handler: libc::sighandler_t) {
    // SAFETY: the handler only adds to an atomic, or is one of the system's.
    assert_ne!(unsafe { libc::signal(libc::SIGURG, handler) }, libc::SIG_ERR);
}

fn complaint(engine: &Engine) -> Option<String> {
    let health = engine.health();
    health.degraded.iter().find(|known| known.what == "back-traces").map(|known| known.why.clone())
}

#[test]
fn a_program_with_a_handler_of_its_own_keeps_it() {
    let _alone = alone();
    in_child(|| {
        set_handler(on_urgent as *const () as libc::sighandler_t);
        let engine = engine();
        assert!(complaint(&engine).unwrap().contains("handles SIGURG itself"));
        assert!(watchers().is_empty(), "nobody looks for what cannot be had");
        let task = || async {
            // SAFETY: raise(3) has no pointer arguments.
            unsafe { libc::raise(libc::SIGURG) };
        };
        engine.spawn_on_shard(0, Class::DEFAULT, task).wait().unwrap();
        assert_eq!(URGENT.load(Ordering::Relaxed), 1);
    });
    in_child(|| {
        set_handler(libc::SIG_IGN);
        assert!(complaint(&engine()).unwrap().contains("ignores SIGURG"));
    });
}

#[test]
fn a_program_that_takes_the_signal_later_is_not_sent_it() {
    let _alone = alone();
    in_child(|| {
        set_handler(libc::SIG_DFL);
        let engine = watched();
        assert_eq!(complaint(&engine), None);
        set_handler(on_urgent as *const () as libc::sighandler_t);
        let hold = || async { until("the watcher gave up", || watchers().is_empty()) };
        engine.spawn_on_shard(0, Class::DEFAULT, hold).wait().unwrap();
        until("it is told", || complaint(&engine).is_some());
        assert_eq!(URGENT.load(Ordering::Relaxed), 0);
        // Detected without a watcher: it has its name.
        let stalls = engine.stats().wait().unwrap().stalls;
        assert!(stalls.iter().all(|stall| stall.back_trace.is_none()), "{stalls:?}");
    });
}

#[test]
fn a_program_that_blocks_the_signal_has_it_blocked() {
    let _alone = alone();
    in_child(|| {
        // SAFETY: a set that is made before it is used, and this thread's own mask.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGURG);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        }
        assert!(complaint(&engine()).unwrap().contains("blocked"));
    });
}

#[test]
fn a_signal_that_nobody_asked_for_does_nothing() {
    let _alone = alone();
    let engine = watched();
    let raises = || async {
        // SAFETY: raise(3) has no pointer arguments.
        (0..100).for_each(|_| assert_eq!(unsafe { libc::raise(libc::SIGURG) }, 0));
    };
    engine.spawn_on_shard(0, Class::DEFAULT, raises).wait().unwrap();
    // SAFETY: as above; this thread is not a shard's.
    assert_eq!(unsafe { libc::raise(libc::SIGURG) }, 0);
    engine.spawn_on_shard(0, Class::DEFAULT, a_long_task).wait().unwrap();
    line_of(&traced(&engine, "a_long_task").back_trace.unwrap(), "holds_on_here");
}

#[test]
fn an_engine_of_a_forked_child_has_a_watcher_of_its_own() {
    let _alone = alone();
    let parents = watched();
    parents.spawn_on_shard(0, Class::DEFAULT, a_long_task).wait().unwrap();
    traced(&parents, "a_long_task");
    let child = |engine: Engine| {
        in_child(|| {
            let own = watched();
            own.spawn_on_shard(0, Class::DEFAULT, a_long_task).wait().unwrap();
            line_of(&traced(&own, "a_long_task").back_trace.unwrap(), "holds_on_here");
            drop(engine);
            own.spawn_on_shard(0, Class::DEFAULT, a_long_task).wait().unwrap();
        });
    };
    child(parents.clone());
    parents.spawn_on_shard(0, Class::DEFAULT, a_long_task).wait().unwrap();
}

/// Looks for these faults: a buffer that a late handler writes to after its engine's end, an end that waits
/// for a watcher, a sample under the wrong poll. Tasks hold their shards for about the bound, so that polls
/// end while they are being sampled.
#[test]
fn stalls_while_engines_start_and_stop() {
    let _alone = alone();
    let mut found = 0;
    for round in 0..60 {
        let engine = Engine::start(config().shards(2).stall_after(Duration::from_micros(500))).unwrap();
        let tasks: Vec<_> = (0..8u64)
            .map(|task| {
                let hold = Duration::from_micros(400 * ((task + round) % 7));
                engine.spawn_on_shard(
                    task as usize % engine.shard_count(),
                    Class::DEFAULT,
                    move || async move {
                        for _ in 0..3 {
                            let begun = Instant::now();
                            while begun.elapsed() < hold {
                                std::hint::spin_loop();
                            }
                            shard::yield_now().await;
                        }
                        task
                    },
                )
            })
            .collect();
        for (task, answer) in tasks.into_iter().enumerate() {
            if round % 2 == 0 || task < 4 {
                assert_eq!(answer.wait().unwrap(), task as u64);
            }
        }
        if round % 3 != 0 {
            let stalls = engine.stats().wait().unwrap().stalls;
            found += usize::from(stalls.iter().any(|stall| stall.back_trace.is_some()));
        }
        if round % 4 != 0 {
            engine.close().wait().unwrap();
        }
    }
    until("every watcher has ended", || watchers().is_empty());
    println!("{found} of 40 rounds had back-traces when they were asked");
}

/// An idle engine's watcher does not run at all; the first poll after that wakes it.
#[test]
fn a_watcher_of_an_idle_engine_sleeps_and_is_woken() {
    let _alone = alone();
    let engine = watched();
    // Windows of wall time, at any load of the machine: looks are by the clock, if any.
    until("it does not look", || {
        let (begun, before) = (Instant::now(), looks());
        while begun.elapsed() < Duration::from_millis(1_100) {
            std::thread::park_timeout(Duration::from_millis(100));
        }
        looks() == before
    });
    engine.spawn_on_shard(0, Class::DEFAULT, a_long_task).wait().unwrap();
    line_of(&traced(&engine, "a_long_task").back_trace.unwrap(), "holds_on_here");
}
