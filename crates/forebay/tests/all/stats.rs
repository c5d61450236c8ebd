//! Shows: the statistics report the events: exact counts and bytes by class and device, times, memory, the
//! loop's health. How: a known number of operations, then the figures; nothing here is measured against a
//! clock.

use std::future::IntoFuture;
use std::sync::{Arc, Mutex};

use crate::common::{self, bytes_of, dir, engine, write_file};
use forebay::{Class, Durability, Engine, FlowStats, Open, Stats};

fn flow<'s>(stats: &'s Stats, class: &str) -> &'s FlowStats {
    let mut found = stats.flows.iter().filter(|flow| flow.class == class && flow.device != "-");
    let flow = found.next().unwrap_or_else(|| panic!("no flow of {class}: {:?}", stats.flows));
    assert!(found.next().is_none(), "two devices for {class}: {:?}", stats.flows);
    flow
}

#[test]
fn counts_and_bytes_are_exact_for_each_class() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    let file = engine.open(&path, Open::write()).wait().unwrap();
    let reports = engine.class("reports", 50).unwrap();
    for n in 0..100u64 {
        file.read(n * 4096..(n + 1) * 4096).wait().unwrap();
    }
    for n in 0..10u64 {
        file.write(n * 4096, bytes_of(n * 4096..(n + 1) * 4096)).class(Class::LOG).wait().unwrap();
        file.write(n * 8192, bytes_of(n * 8192..(n + 1) * 8192))
            .class(reports)
            .durable(Durability::Data)
            .wait()
            .unwrap();
    }
    file.sync(Durability::All).class(Class::BACKGROUND).wait().unwrap();
    file.sync(Durability::None).class(Class::BACKGROUND).wait().unwrap();
    let stats = engine.stats().wait().unwrap();
    let counts = |class| {
        let flow = flow(&stats, class);
        assert_eq!(flow.device, file.device().name());
        (
            flow.reads,
            flow.read_bytes,
            flow.read_bytes_asked,
            flow.writes,
            flow.write_bytes,
            flow.syncs,
            flow.failures,
        )
    };
    assert_eq!(counts("default"), (100, 100 * 4096, 100 * 4096, 0, 0, 0, 0));
    assert_eq!(counts("log"), (0, 0, 0, 10, 10 * 4096, 0, 0));
    assert_eq!(counts("reports"), (0, 0, 0, 10, 10 * 8192, 10, 0));
    assert_eq!(counts("background"), (0, 0, 0, 0, 0, 1, 0));
}

#[test]
fn failed_operations_are_counted_with_the_others_and_apart() {
    // Regression: a failed read or write counted as a failure only, though the figures promise all that have
    // ended.
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 8192);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    for _ in 0..3 {
        file.write(0, &[1u8; 4096]).wait().unwrap_err();
    }
    // The end of the file is not a failure of the device; an operation that never reaches it is not counted at all.
    file.read(8000..9000).wait().unwrap_err();
    file.read(0..u64::MAX).wait().unwrap_err();
    file.write(1, &[1u8; 10]).wait().unwrap_err();
    let stats = engine.stats().wait().unwrap();
    let flow = flow(&stats, "default");
    assert_eq!((flow.writes, flow.write_bytes, flow.reads, flow.failures), (3, 0, 1, 3));
}

#[test]
fn amplification_is_what_was_read_in_vain() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let grain = u64::from(file.alignment().read_offset);
    for n in 0..8 {
        file.read(n * 8 * grain + 10..n * 8 * grain + 20).wait().unwrap();
    }
    let stats = engine.stats().wait().unwrap();
    let lone = flow(&stats, "default");
    assert_eq!((lone.reads, lone.read_bytes, lone.read_bytes_asked), (8, 8 * grain, 80));
    // Merged: two grains with two between them.
    let ranges = [0..grain, 3 * grain..4 * grain];
    file.read_many(ranges).gap_bytes_max(2 * grain).class(Class::LOG).wait().unwrap();
    let stats = engine.stats().wait().unwrap();
    let merged = flow(&stats, "log");
    assert_eq!((merged.reads, merged.read_bytes, merged.read_bytes_asked), (1, 4 * grain, 2 * grain));
    // A scan reads nothing in vain.
    let mut scan = file.scan().class(Class::BACKGROUND).start();
    while scan.next().wait().transpose().unwrap().is_some() {}
    let stats = engine.stats().wait().unwrap();
    assert_eq!(flow(&stats, "background").read_bytes, 1 << 20);
}

/// The documentation of `Stats` states that times are of one operation in this many.
const SAMPLED: u64 = 32;

#[test]
fn times_of_sampled_operations_are_taken() {
    let (engine, dir) = (Engine::start(common::config().shards(1)).unwrap(), dir());
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        for n in 0..800u64 {
            file.read(n % 256 * 4096..(n % 256 + 1) * 4096).await.unwrap();
        }
    });
    task.wait().unwrap();
    let stats = engine.stats().wait().unwrap();
    let flow = flow(&stats, "default");
    for (name, times) in
        [("queued", &flow.queued_ns), ("device", &flow.device_ns), ("handed over", &flow.handed_over_ns)]
    {
        assert_eq!(times.count(), 800 / SAMPLED, "{name}");
        let marks = [0.0, 0.5, 0.9, 0.99, 1.0].map(|quantile| times.ns_at(quantile));
        assert!(marks.is_sorted(), "{name}: {marks:?}");
        assert!(times.ns_max() >= marks[3] && times.ns_mean() <= times.ns_max() as f64, "{name}: {times:?}");
    }
    assert!(flow.device_ns.ns_at(0.5) > 1000, "a device needs more than a microsecond: {:?}", flow.device_ns);
    assert!(flow.device_ns.ns_max() < 30_000_000_000, "{:?}", flow.device_ns);
}

#[test]
fn the_loop_enters_the_kernel_at_most_once_a_turn_and_is_kicked_only_when_asleep() {
    let (engine, dir) = (Engine::start(common::config().shards(2)).unwrap(), dir());
    let path = dir.path().join("a");
    write_file(&path, 4 << 20);
    let file = engine.open(&path, Open::read().shard(0)).wait().unwrap();
    futures::executor::block_on(futures::future::join_all((0..1000u64).map(|n| {
        let file = &file;
        async move { file.read(n * 4096..(n + 1) * 4096).await.unwrap().len() }
    })));
    for n in 0..100u64 {
        futures::executor::block_on(async { file.read(n * 4096..(n + 1) * 4096).await.unwrap() });
    }
    // On a busy machine each of them may find the shard still awake from the one before.
    let mut more = 0;
    while engine.stats().wait().unwrap().shards[0].kicks == 0 {
        futures::executor::block_on(async { file.read(0..4096).await.unwrap() });
        more += 1;
    }
    let stats = engine.stats().wait().unwrap();
    assert_eq!(stats.shards.len(), 2);
    for shard in &stats.shards {
        assert!(shard.enters <= shard.turns + 8, "{shard:?}");
        assert_eq!(
            (shard.in_flight, shard.slots_used, shard.tasks, shard.stray_completions),
            (0, 0, 0, 0),
            "{shard:?}"
        );
        assert!(shard.slots > 0 && shard.spins_useful <= shard.spins, "{shard:?}");
    }
    let busy = &stats.shards[0];
    // 1,100 reads, these queries and the file's open; each kicks at most once, and most of the batch finds the
    // shard awake.
    assert!(busy.kicks <= 1110 + 2 * more, "{busy:?}");
    assert!(busy.turns >= 100, "{busy:?}");
    assert!(stats.shards[1].kicks <= 10 + more, "the other shard was left alone: {:?}", stats.shards[1]);
}

#[test]
fn tasks_and_slots_in_use_are_seen_while_they_are() {
    let engine = Engine::start(common::config().shards(1)).unwrap();
    let (send, receive) = async_channel::bounded::<()>(1);
    let tasks: Vec<_> = (0..5)
        .map(|_| {
            let receive = receive.clone();
            engine.spawn_on_shard(0, Class::DEFAULT, move || async move { receive.recv().await.is_err() })
        })
        .collect();
    assert_eq!(engine.stats().wait().unwrap().shards[0].tasks, 5);
    drop(send);
    tasks.into_iter().for_each(|task| assert!(task.wait().unwrap()));
    assert_eq!(engine.stats().wait().unwrap().shards[0].tasks, 0);
}

#[test]
fn memory_is_counted_while_it_is_held() {
    let config =
        common::config().shards(1).arena_bytes(2 << 20).arena_bytes_max(2 << 20).overflow_bytes_max(1 << 20);
    let engine = Engine::start(config).unwrap();
    let before = engine.memory();
    assert_eq!((before.arena_bytes, before.arena_bytes_max), (2 << 20, 2 << 20));
    assert_eq!((before.held_bytes, before.overflow_bytes, before.overflow_allocations), (0, 0, 0));
    let blocks: Vec<_> = (0..8).map(|_| engine.block(256 << 10).unwrap()).collect();
    assert_eq!(engine.memory().held_bytes, 2 << 20);
    let more = engine.block(64 << 10).unwrap();
    let memory = engine.stats().wait().unwrap().memory;
    assert!(memory.overflow_bytes >= 64 << 10, "{memory:?}");
    assert_eq!(memory.overflow_allocations, 1);
    // Longer blocks are allocated separately.
    let most = engine.block(512 << 10).unwrap();
    assert!(engine.block(512 << 10).is_err(), "there is a limit to that, too");
    drop((blocks, more, most));
    let after = engine.memory();
    assert_eq!((after.held_bytes, after.overflow_bytes, after.overflow_allocations), (0, 0, 2));
}

#[test]
fn reads_that_wait_for_memory_are_counted() {
    let config =
        common::config().shards(1).arena_bytes(1 << 20).arena_bytes_max(1 << 20).overflow_bytes_max(0);
    let (engine, dir) = (Engine::start(config).unwrap(), dir());
    let path = dir.path().join("a");
    write_file(&path, 4 << 20);
    let file = engine.open(&path, Open::write()).wait().unwrap();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let mut waits = 0;
        for _ in 0..50 {
            // Half of the memory is on its way to the device, and is released by itself; the reads need more
            // than half.
            let data: Vec<_> = (0..2).map(|_| file.read(0..256 << 10).into_future()).collect();
            let data: Vec<_> =
                futures::future::join_all(data).await.into_iter().map(Result::unwrap).collect();
            let writes = data
                .into_iter()
                .enumerate()
                .map(|(n, block)| file.write(n as u64 * (256 << 10), block).into_future());
            let reads = (0..4u64).map(|n| file.read(n << 18..(n + 1) << 18).into_future());
            let (writes, reads) =
                futures::join!(futures::future::join_all(writes), futures::future::join_all(reads));
            writes.into_iter().for_each(|write| write.unwrap());
            waits += reads.into_iter().filter(|read| read.is_ok()).count();
        }
        waits
    });
    assert!(task.wait().unwrap() > 0);
    let stats = engine.stats().wait().unwrap();
    assert!(stats.shards[0].memory_waits > 0, "{:?}", stats.shards[0]);
    assert_eq!(stats.memory.held_bytes, 0);
}

#[test]
fn health_names_the_driver_and_events_tell_what_is_degraded() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let teller = told.clone();
    let config = common::config()
        .shards(2)
        .on_event(move |degradation| teller.lock().unwrap().push(degradation.clone()));
    let engine = Engine::start(config).unwrap();
    let health = engine.health();
    assert_eq!((health.driver, health.shards), (engine.driver(), 2));
    if let Ok(driver @ ("uring" | "threads")) = std::env::var("FOREBAY_TEST_DRIVER").as_deref() {
        assert_eq!(health.driver, driver);
    }
    // A file system in memory has no RWF_DONTCACHE: a real degradation, reported once however many files are
    // opened.
    if let Ok(shm) = tempfile::Builder::new().prefix("forebay-test-").tempdir_in("/dev/shm") {
        let path = shm.path().join("a");
        write_file(&path, 10_000);
        for _ in 0..3 {
            let file = engine.open(&path, Open::read().uncached()).wait().unwrap();
            assert_eq!(&file.read(100..9_000).wait().unwrap()[..], &bytes_of(100..9_000)[..]);
        }
        let degraded = engine.health().degraded;
        let uncached: Vec<_> = degraded.iter().filter(|degradation| degradation.what == "uncached").collect();
        assert_eq!(uncached.len(), 1, "{degraded:?}");
        assert!(!uncached[0].why.is_empty() && !uncached[0].remedy.is_empty());
        assert!(uncached[0].to_string().contains("RWF_DONTCACHE"));
    }
    let told = told.lock().unwrap();
    assert_eq!(
        *told,
        engine.health().degraded,
        "every degradation was told when it was noticed, in the same order"
    );
}

#[test]
fn statistics_after_the_end_are_an_error() {
    let engine = engine();
    let held = engine.clone();
    engine.close().wait().unwrap();
    assert_eq!(held.stats().wait().unwrap_err().kind(), forebay::ErrorKind::EngineClosed);
}
