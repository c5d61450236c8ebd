//! A separate program: virtual machines run it alone (`vm/tests/polled`).
//!
//! Shows: polled reads and writes are right, are really polled for, and share a shard with everything else; a shard with nothing in
//! flight sleeps; where polling is not available the engine reports it and works without it. How: the tests that start with
//! `device_` need a directory on a device with poll queues, in `FOREBAY_TEST_DIR`, and `FOREBAY_TEST_POLLING=on` or `hybrid`:
//! `vm/tests/polled` sees to that, on an emulated NVMe device. Elsewhere they do nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use forebay::{
    Class, Config, DriverChoice, Durability, Engine, File, Open, Polling, Priority, ShardStats, shard,
};

mod common;
use common::{bytes_of, config, dir, write_file};

const PAGE: u64 = 4096;

/// Returns a directory on a device with poll queues, if this run has one.
fn polled_dir() -> Option<tempfile::TempDir> {
    if !matches!(std::env::var("FOREBAY_TEST_POLLING").as_deref(), Ok("on" | "hybrid")) {
        println!("skipped: FOREBAY_TEST_POLLING is neither on nor hybrid");
        return None;
    }
    let dir = dir();
    let device = forebay::device::Device::of_path(dir.path()).expect("the directory's device");
    assert_eq!(
        device.io_poll(),
        Some(true),
        "FOREBAY_TEST_DIR must be on a device with poll queues: {device}"
    );
    Some(dir)
}

/// Starts an engine with the polling mode of this run.
fn polling() -> Engine {
    let config = match std::env::var("FOREBAY_TEST_POLLING").as_deref() {
        Ok("hybrid") => config().polling(Polling::Hybrid),
        _ => config().polling(Polling::On),
    };
    Engine::start(config.shards(1)).expect("an engine")
}

fn counts(engine: &Engine) -> ShardStats {
    engine.stats().wait().expect("statistics").shards.remove(0)
}

fn told_of_polling(engine: &Engine) -> Option<String> {
    let told = engine.health().degraded.into_iter().find(|told| told.what == "polled I/O");
    told.map(|told| told.why)
}

/// Returns the number of NVMe devices' interrupts on this machine so far.
fn interrupts() -> u64 {
    let text = std::fs::read_to_string("/proc/interrupts").expect("/proc/interrupts");
    let lines = text.lines().filter(|line| line.contains("nvme"));
    // The number, a count for each processor, then words.
    let counts =
        |line: &str| line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok()).sum::<u64>();
    lines.map(counts).sum()
}

/// Reads `pages` pages of the file one after the other, on the shard, and compares them.
fn read_pages(engine: &Engine, file: &File, pages: std::ops::Range<u64>) {
    let file = file.clone();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        for page in pages {
            let range = page * PAGE..(page + 1) * PAGE;
            assert_eq!(
                file.read(range.clone()).await.expect("a read")[..],
                bytes_of(range)[..],
                "page {page}"
            );
        }
    });
    task.wait().expect("the task");
}

#[test]
fn by_default_nothing_is_polled() {
    let dir = dir();
    let path = dir.path().join("a");
    write_file(&path, 16 * PAGE);
    let engine = Engine::start(Config::new().shards(1)).unwrap();
    let file = engine.open(&path, Open::read()).wait().unwrap();
    read_pages(&engine, &file, 0..16);
    assert_eq!((counts(&engine).polled, counts(&engine).polls), (0, 0));
    assert_eq!(told_of_polling(&engine), None);
}

#[test]
fn what_cannot_be_polled_is_told_and_works() {
    let dir = dir();
    let path = dir.path().join("a");
    write_file(&path, 16 * PAGE);
    let refused = [
        ("threads", config().driver(DriverChoice::Threads)),
        // Whether real time was granted or not: a thread that nothing preempts must not poll without end.
        ("real time", config().driver(DriverChoice::Auto).priority(Priority::RealTime)),
    ];
    for (what, config) in refused {
        let engine = Engine::start(config.polling(Polling::On).shards(1)).unwrap();
        let buffered = engine.open(&path, Open::read().buffered()).wait().unwrap();
        read_pages(&engine, &buffered, 0..2);
        assert_eq!(told_of_polling(&engine), None, "{what}: nothing was to be polled yet");
        let file = engine.open(&path, Open::read()).wait().unwrap();
        read_pages(&engine, &file, 0..16);
        assert!(told_of_polling(&engine).is_some(), "{what}");
        assert_eq!(counts(&engine).polled, 0, "{what}");
    }
    let engine = polling();
    let file = engine.open(&path, Open::read()).wait().unwrap();
    read_pages(&engine, &file, 0..16);
    match file.device().io_poll() {
        Some(true) if engine.driver() == "uring" => assert_eq!(told_of_polling(&engine), None),
        _ => assert!(
            told_of_polling(&engine).is_some(),
            "this device has no poll queues, or the driver no ring"
        ),
    }
}

#[test]
fn device_reads_and_writes_are_polled_and_interrupt_nobody() {
    let Some(dir) = polled_dir() else { return };
    let engine = polling();
    let file = engine.open(dir.path().join("a"), Open::create_new()).wait().unwrap();
    for page in 0..256 {
        let range = page * PAGE..(page + 1) * PAGE;
        file.write(range.start, bytes_of(range)).wait().unwrap();
    }
    file.sync(Durability::Data).wait().unwrap();
    let (before, seen) = (counts(&engine), interrupts());
    for _ in 0..8 {
        read_pages(&engine, &file, 0..256);
    }
    let (after, seen) = (counts(&engine), interrupts() - seen);
    assert_eq!(after.polled - before.polled, 8 * 256, "each read once, and nothing else");
    assert!(after.polls > before.polls && after.polls_refused == 0, "{after:?}");
    assert_eq!(told_of_polling(&engine), None);
    // Others may use the device meanwhile; a read that was not polled would interrupt each time.
    assert!(seen < 8 * 256 / 10, "{seen} interrupts while 2,048 reads were polled for");
    // The same without polling, so that the figure above means something.
    let engine = Engine::start(config().polling(Polling::Off).shards(1)).unwrap();
    let file = engine.open(dir.path().join("a"), Open::read()).wait().unwrap();
    let seen = interrupts();
    read_pages(&engine, &file, 0..256);
    assert!(interrupts() - seen >= 256 / 2, "without polling the device interrupts");
}

#[test]
fn device_a_kernel_that_cannot_sleep_before_it_looks_is_told_of() {
    let Some(dir) = polled_dir() else { return };
    let path = dir.path().join("a");
    write_file(&path, 64 * PAGE);
    let told = |polling| {
        let engine = Engine::start(config().polling(polling).shards(1)).unwrap();
        let file = engine.open(&path, Open::read()).wait().unwrap();
        read_pages(&engine, &file, 0..64);
        assert_eq!(counts(&engine).polled, 64, "polled in either way");
        engine.health().degraded.iter().any(|told| told.what == "HYBRID_IOPOLL")
    };
    assert!(!told(Polling::On), "nobody asked for it");
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|word| word.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    assert_eq!(told(Polling::Hybrid), version < (6, 13), "on Linux {release}");
}

#[test]
fn device_large_requests_travel_in_parts_or_the_ordinary_way() {
    let Some(dir) = polled_dir() else { return };
    let engine = polling();
    let file = engine.open(dir.path().join("a"), Open::create_new()).wait().unwrap();
    let part = file.device().request_bytes_max().unwrap();
    // Several parts and a rest; and more than 16 of any size.
    for len in [3 * part + PAGE, 40 << 20] {
        let before = counts(&engine);
        file.write(PAGE, bytes_of(PAGE..PAGE + len)).durable(Durability::Data).wait().unwrap();
        let block = file.read(PAGE..PAGE + len).wait().unwrap();
        assert!(block[..] == bytes_of(PAGE..PAGE + len)[..], "the bytes of {len}");
        let polled = counts(&engine).polled - before.polled;
        assert_eq!(
            polled,
            if len < 16 * part.min(1 << 20) { 2 } else { 0 },
            "{len} bytes in parts of {part}"
        );
        // The file ends inside a part.
        assert_eq!(file.read_up_to(0..2 * len).wait().unwrap().len() as u64, PAGE + len);
        assert!(file.read(len..len + 4 * PAGE).wait().is_err());
    }
}

#[test]
fn device_everything_else_goes_on_beside_polled_reads() {
    let Some(dir) = polled_dir() else { return };
    let path = dir.path().join("a");
    write_file(&path, 256 * PAGE);
    let engine = polling();
    let file = engine.open(&path, Open::write()).wait().unwrap();
    let buffered = engine.open(&path, Open::read().buffered()).wait().unwrap();
    let log = engine.open(dir.path().join("log"), Open::create()).wait().unwrap();
    let slept = Arc::new(AtomicU64::new(0));
    let rounds = slept.clone();
    let polled_reader = file.clone();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let stop = std::rc::Rc::new(std::cell::Cell::new(false));
        // Eight readers without pause, so that something is always in flight in the polled ring.
        let readers: Vec<_> = (0..8)
            .map(|lane| {
                let (file, stop) = (polled_reader.clone(), stop.clone());
                shard::spawn(async move {
                    let mut reads = 0u64;
                    while !stop.get() {
                        let page = (lane * 31 + reads * 7) % 256;
                        let range = page * PAGE..(page + 1) * PAGE;
                        assert_eq!(file.read(range.clone()).await.unwrap()[..], bytes_of(range)[..]);
                        reads += 1;
                    }
                    reads
                })
                .unwrap()
            })
            .collect();
        for round in 0..20u64 {
            shard::sleep(Duration::from_millis(1)).await.unwrap();
            rounds.fetch_add(1, Ordering::Relaxed);
            log.write(round * PAGE, vec![round as u8; PAGE as usize]).durable(Durability::All).await.unwrap();
            log.sync(Durability::Data).await.unwrap();
            assert_eq!(log.len().await.unwrap(), (round + 1) * PAGE);
            buffered.advise(0..0, forebay::Advice::DontNeed).await.unwrap();
            let range = round * PAGE..round * PAGE + 100;
            assert_eq!(buffered.read(range.clone()).await.unwrap()[..], bytes_of(range)[..]);
        }
        stop.set(true);
        let mut reads = 0;
        for reader in readers {
            reads += reader.await.unwrap();
        }
        reads
    });
    // Meanwhile from outside: messages must find a shard that never sleeps.
    for page in 0..64 {
        let range = page * PAGE..(page + 1) * PAGE;
        assert_eq!(file.read(range.clone()).wait().unwrap()[..], bytes_of(range)[..]);
    }
    assert!(task.wait().unwrap() > 20);
    assert_eq!(slept.load(Ordering::Relaxed), 20);
    let counts = counts(&engine);
    assert!(counts.polled > 0 && counts.stray_completions == 0 && counts.in_flight == 0, "{counts:?}");
}

#[test]
fn device_an_idle_shard_sleeps() {
    let Some(dir) = polled_dir() else { return };
    let path = dir.path().join("a");
    write_file(&path, 64 * PAGE);
    let engine = polling();
    let file = engine.open(&path, Open::read()).wait().unwrap();
    read_pages(&engine, &file, 0..64);
    let before = counts(&engine);
    // One timer of the shard's own; it must be the only cause of the shard's wake-ups.
    let task = engine.spawn_on_shard(0, Class::DEFAULT, || shard::sleep(Duration::from_millis(300)));
    task.wait().unwrap().unwrap();
    let after = counts(&engine);
    assert_eq!(after.polls, before.polls, "there was nothing to look for");
    assert!(after.turns - before.turns < 100, "{} turns in 300 ms without work", after.turns - before.turns);
}

#[test]
fn device_dropped_reads_keep_their_memory_until_they_are_over() {
    let Some(dir) = polled_dir() else { return };
    let path = dir.path().join("a");
    write_file(&path, 256 * PAGE);
    let engine = polling();
    let file = engine.open(&path, Open::read()).wait().unwrap();
    for round in 0..50u64 {
        let file = file.clone();
        let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            let mut kept = Vec::new();
            for page in 0..32u64 {
                let mut read = Box::pin(file.read(page * PAGE..(page + 1) * PAGE).into_future());
                // The first poll stages it; yielding has it submitted.
                let polled = futures::poll!(&mut read);
                assert!(polled.is_pending());
                if page % 2 == 0 {
                    kept.push((page, read));
                } else if (page + round) % 4 == 1 {
                    shard::yield_now().await;
                    drop(read);
                } else {
                    drop(read);
                }
            }
            // Memory that was released too early would be overwritten by the dropped reads.
            for (page, read) in kept {
                let range = page * PAGE..(page + 1) * PAGE;
                assert_eq!(read.await.unwrap()[..], bytes_of(range)[..], "round {round}, page {page}");
            }
        });
        task.wait().unwrap();
    }
    let counts = counts(&engine);
    assert_eq!(counts.stray_completions, 0, "{counts:?}");
}

#[test]
fn device_files_and_engines_close_with_polled_reads_in_flight() {
    let Some(dir) = polled_dir() else { return };
    let path = dir.path().join("a");
    write_file(&path, 256 * PAGE);
    for round in 0..30u64 {
        let engine = polling();
        let file = engine.open(&path, Open::read()).wait().unwrap();
        let (began, begun) = mpsc::channel();
        let reader = file.clone();
        let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            let reads: Vec<_> = (0..64u64)
                .map(|page| {
                    let file = reader.clone();
                    shard::spawn(async move {
                        let range = page * PAGE..(page + 1) * PAGE;
                        file.read(range.clone()).await.map(|block| assert_eq!(block[..], bytes_of(range)[..]))
                    })
                    .unwrap()
                })
                .collect();
            shard::yield_now().await;
            began.send(()).unwrap();
            for read in reads {
                // Those that were not submitted fail with the file or the engine.
                let _ = read.await;
            }
        });
        begun.recv().unwrap();
        if round % 2 == 0 {
            file.close().wait().unwrap();
            let _ = task.wait();
        } else {
            drop(file);
        }
        let report = engine.close().wait().unwrap();
        assert_eq!((report.leaked_operations, report.lost_shards), (0, 0), "{report:?}");
    }
}

#[test]
fn device_a_file_system_that_does_not_poll_is_read_the_ordinary_way() {
    // A mounted file system without polling on a device with poll queues; the script names it.
    let Some(place) = std::env::var_os("FOREBAY_TEST_UNPOLLED_DIR") else { return };
    let path = std::path::Path::new(&place).join("a");
    write_file(&path, 64 * PAGE);
    let engine = polling();
    let file = engine.open(&path, Open::read()).wait().unwrap();
    assert_eq!(file.device().io_poll(), Some(true), "{}", file.device());
    read_pages(&engine, &file, 0..32);
    let first = counts(&engine);
    assert!(first.polls_refused > 0, "{first:?}");
    assert!(told_of_polling(&engine).is_some());
    read_pages(&engine, &file, 32..64);
    assert_eq!(counts(&engine).polls_refused, first.polls_refused, "it is tried once a file, not each time");
}
