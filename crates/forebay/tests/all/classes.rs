//! Shows: a scope gives its class to the requests of a future, wherever it is polled; tasks that hold their
//! shard are named; classes change while they are in use. How: exact counts in the statistics.

use std::time::Duration;

use crate::common::{dir, engine, write_file};
use forebay::{Class, ClassSpec, Config, Engine, Error, ErrorKind, Open, Stats, shard};

fn reads(stats: &Stats, class: &str) -> u64 {
    stats.flows.iter().filter(|flow| flow.class == class).map(|flow| flow.reads).sum()
}

#[test]
fn a_scope_is_its_futures_class_on_any_executor() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let reports = engine.class("reports", 50).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let scoped = {
        let file = file.clone();
        reports.scope(async move {
            for n in 0..8 {
                assert_eq!(shard::class(), reports);
                file.read(n * 4096..(n + 1) * 4096).await?;
                // The task may continue on another thread from here.
                tokio::task::yield_now().await;
            }
            let inner = Class::LOG.scope(async { file.read(0..4096).await.map(|_| shard::class()) });
            assert_eq!(inner.await?, Class::LOG);
            assert_eq!(shard::class(), reports);
            file.read(0..4096).class(Class::BACKGROUND).await?;
            Ok::<_, Error>(())
        })
    };
    runtime.block_on(async {
        let beside = tokio::spawn(async { shard::class() });
        tokio::spawn(scoped).await.unwrap().unwrap();
        assert_eq!(beside.await.unwrap(), Class::DEFAULT, "a scope is for its own future");
    });
    let on_shard = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let inside = reports.scope(async { shard::spawn(async { shard::class() })?.await }).await?;
        file.read(0..4096).await?;
        Ok::<_, Error>((inside, shard::class()))
    });
    assert_eq!(on_shard.wait().unwrap().unwrap(), (reports, Class::DEFAULT));
    let stats = engine.stats().wait().unwrap();
    let counts = ["reports", "log", "background", "default"].map(|class| reads(&stats, class));
    assert_eq!(counts, [8, 1, 1, 1]);
}

#[test]
fn a_class_may_be_changed_and_what_is_wrong_is_refused() {
    let engine = engine();
    let tenant = engine.tenant("t", 300).unwrap();
    let class = engine.set_class(ClassSpec::new("c").shares(10).tenant(tenant)).unwrap();
    let again =
        ClassSpec::new("c").shares(20).latency_goal(Duration::from_millis(2)).writes_per_second_max(9);
    assert_eq!(engine.set_class(again).unwrap(), class);
    assert_eq!(engine.class("c", 30).unwrap(), class);
    for wrong in [ClassSpec::new(""), ClassSpec::new("d").shares(0), ClassSpec::new("d").shares(10_001)] {
        assert!(matches!(engine.set_class(wrong).unwrap_err().kind(), ErrorKind::InvalidInput));
    }
    assert!(engine.tenant("", 1).is_err() && engine.tenant("u", 0).is_err());
    for n in 0..7 {
        engine.tenant(&n.to_string(), 1).unwrap();
    }
    assert!(engine.tenant("a ninth", 1).is_err());
    let other = Engine::start(Config::new().shards(1)).unwrap();
    assert!(other.set_class(ClassSpec::new("d").tenant(tenant)).is_err(), "another engine's tenant");
}

/// A class reads at a byte a second: after one read of 4 KiB the next waits for more than an hour, unless the cap is lifted or
/// raised meanwhile.
#[test]
fn a_changed_cap_counts_for_operations_that_wait() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 4096);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let capped = ClassSpec::new("backup").read_bytes_per_second_max(1);
    for (n, changed) in [0, 1 << 30].into_iter().enumerate() {
        let backup = engine.set_class(capped.clone()).unwrap();
        file.read(0..4096).class(backup).wait().unwrap();
        let reader = file.clone();
        let waiting = engine.spawn_on_shard(0, backup, move || async move { reader.read(0..4096).await });
        engine.spawn_on_shard(0, Class::BACKGROUND, || async {}).wait().unwrap();
        let stats = engine.stats().wait().unwrap();
        assert_eq!(reads(&stats, "backup"), 2 * n as u64 + 1, "the second one waits");
        engine.set_class(capped.clone().read_bytes_per_second_max(changed)).unwrap();
        assert_eq!(waiting.wait().unwrap().unwrap().len(), 4096);
    }
}

/// Its polls last any time: with a bound of zero each of them is too long.
async fn holds_its_shard() {
    shard::yield_now().await;
}

#[test]
fn tasks_that_hold_their_shard_are_named() {
    let stalls = |bound| {
        let engine = Engine::start(Config::new().shards(1).stall_after(bound)).unwrap();
        engine.spawn_on_shard(0, Class::DEFAULT, holds_its_shard).wait().unwrap();
        engine.stats().wait().unwrap().stalls
    };
    assert!(stalls(Duration::from_secs(3600)).is_empty());
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if !cpu.contains("nonstop_tsc") && !cpu.contains("constant_tsc") {
        return; // Nothing is timed without a steady counter.
    }
    let listed = stalls(Duration::ZERO);
    let stall = listed.iter().find(|stall| stall.task.contains("holds_its_shard"));
    let stall = stall.unwrap_or_else(|| panic!("{listed:?}"));
    assert!(stall.polls == 2 && stall.longest_ns > 0, "{stall:?}");
}
