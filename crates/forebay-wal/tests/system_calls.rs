//! A separate program: it counts the threads of all logs of the process, and refuses system calls.
//!
//! Where the log makes no system call, and where one that it makes is refused.
#![cfg(target_os = "linux")]

mod common;

use std::time::Duration;

use common::{dir, engine};
use forebay::{Class, Config, Engine};
use forebay_test::system_calls;
use forebay_wal::{Lsn, Options, Wal};

/// Returns the number of this process's threads that belong to logs.
fn threads_of_logs() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "forebay-wal").count()
}

fn used(wal: &Wal) {
    for number in 0..100u64 {
        wal.append(&number.to_le_bytes()).wait().expect("an append");
    }
    assert_eq!(wal.durable_lsn().next(), wal.next_lsn());
}

/// The system may have no more threads for a process. The log's task runs on its shard then, as with `own_thread(false)`.
#[test]
fn without_a_thread_of_its_own_a_log_runs_on_its_shard() {
    let (engine, dir) = (Engine::start(Config::new().shards(1)).expect("an engine"), dir());
    let at = |name: &str| dir.path().join(name);
    // The engine's own threads are there before any are refused.
    let (first, _) = Wal::open(&engine, at("first"), Options::new()).wait().expect("a log");
    used(&first);
    let before = threads_of_logs();
    assert!(before > 0 || !engine.makes_wait_calls(), "the first log has a thread");
    let refused = engine.spawn_on_shard(0, Class::DEFAULT, || async {
        let starts = [libc::SYS_clone3, libc::SYS_clone];
        system_calls::refuse(&starts, libc::EAGAIN).expect("a filter");
        std::thread::Builder::new().spawn(|| ()).map(drop).map_err(|error| error.raw_os_error())
    });
    assert_eq!(refused.wait().expect("a task"), Err(Some(libc::EAGAIN)), "no thread can be started there");

    let (wal, _) = Wal::open(&engine, at("second"), Options::new()).wait().expect("a log");
    assert_eq!(threads_of_logs(), before);
    used(&wal);
    wal.close().wait().expect("an end");
    let (wal, recovery) = Wal::open(&engine, at("second"), Options::new()).wait().expect("a log");
    assert_eq!(recovery.last, Lsn(100));
    used(&wal);
    wal.close().wait().expect("an end");
    first.close().wait().expect("an end");
}

/// The records that followers of a replicated log request are the newest. Reading them needs no system call, whether they are
/// durable or only queued.
#[test]
fn the_last_records_are_read_without_a_system_call() {
    let (engine, dir) = (engine(), dir());
    // Each append is a separate group here, and takes 4 KiB. Without a mark the log's thread holds no lock while reads are counted.
    let options = Options::new().recent_bytes(100 * 4096).mark_after(Duration::from_secs(3600));
    let (wal, _) = Wal::open(&engine, dir.path(), options).wait().expect("a log");
    let record = |number: u64| number.to_le_bytes().repeat(30);
    for number in 1..=1000 {
        wal.append(&record(number)).wait().expect("an append");
    }
    let last = |wal: &Wal| wal.read(Lsn(937).., usize::MAX).wait().expect("a range");
    let reads =
        || -> u64 { engine.stats().wait().expect("counts").flows.iter().map(|flow| flow.reads).sum() };
    let before = reads();
    assert_eq!(wal.read(Lsn(1)..=Lsn(10), usize::MAX).wait().expect("a range").len(), 10);
    assert!(reads() > before, "older records come from the device, so the limit is at work");
    let before = reads();
    assert_eq!((last(&wal).len(), reads()), (64, before), "the last ones come from memory");
    let measured = {
        let wal = wal.clone();
        // A separate thread: its calls are counted until it ends.
        std::thread::spawn(move || {
            // The allocator and the thread's own structures have their memory then.
            for _ in 0..3 {
                drop(last(&wal));
            }
            system_calls::count_from_now_on().expect("a filter");
            let mut records = Vec::new();
            for _ in 0..20 {
                records = last(&wal);
            }
            let calls = system_calls::counted();
            std::thread::yield_now();
            (records, calls, system_calls::counted())
        })
    };
    let (records, calls, with_another) = measured.join().expect("a thread");
    assert_eq!(calls, 0, "system calls in 20 reads of the last records");
    assert_eq!(with_another, 1, "a system call is counted");
    assert_eq!(records.len(), 64);
    for (found, number) in records.iter().zip(937..) {
        assert!(found.lsn() == Lsn(number) && **found == *record(number));
    }
    wal.close().wait().expect("an end");
}
