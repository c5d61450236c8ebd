use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::{DriverChoice, Engine, ErrorKind, File, Open};

/// Rings of both kinds: of io_uring where the kernel allows it, and of native AIO.
fn configs() -> [Config; 2] {
    [Config::new(), Config::new().driver(DriverChoice::Threads)]
}

/// An engine with a file of 64 pages, and a runtime whose thread has a ring; nothing where the kernel refuses all kinds.
struct Bench {
    engine: Engine,
    file: File,
    runtime: Runtime,
    _file: tempfile::NamedTempFile,
}

impl Bench {
    fn new(config: Config) -> Option<Bench> {
        let temporary = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(temporary.path(), vec![7; 64 * 4096]).unwrap();
        let engine = Engine::start(config.shards(1)).unwrap();
        let file = engine.open(temporary.path(), Open::read().buffered()).wait().unwrap();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let bench = Bench { engine, file, runtime, _file: temporary };
        bench.runtime.block_on(async {
            bench.engine.nop().await.unwrap();
            tokio::task::yield_now().await;
            bench.engine.nop().await.unwrap();
        });
        bench.shared().visited.iter().next()?;
        Some(bench)
    }

    fn shared(&self) -> &Arc<EngineShared> {
        self.engine.shared()
    }

    fn ring(&self) -> Arc<VisitedShard> {
        self.shared().visited.iter().next().unwrap().clone()
    }

    fn visits(&self) -> u64 {
        self.ring().visits.load(Ordering::Relaxed)
    }
}

/// Takes the lock of a ring. Shard 0 may be inside for a moment, for work that a visitor has left.
fn lock(ring: &VisitedShard) {
    while !ring.lock.try_lock() {
        std::thread::yield_now();
    }
}

#[test]
fn a_ring_with_somebody_inside_sends_operations_to_the_home_shard() {
    for config in configs() {
        let Some(bench) = Bench::new(config) else { continue };
        // Shard 0 may be inside at any of them.
        let through_the_ring = || {
            let before = bench.visits();
            while bench.visits() == before {
                bench.runtime.block_on(async { bench.engine.nop().await.unwrap() });
            }
        };
        through_the_ring();
        let ring = bench.ring();
        lock(&ring);
        let before = bench.visits();
        bench.runtime.block_on(async { bench.engine.nop().await.unwrap() });
        assert_eq!(bench.visits(), before);
        ring.lock.unlock_anyway();
        through_the_ring();
    }
}

#[test]
fn who_is_inside_looks_again_for_those_who_came_meanwhile() {
    for config in configs() {
        let Some(bench) = Bench::new(config) else { continue };
        let ring = bench.ring();
        let turns = |ring: &VisitedShard| {
            let (answer, report) = crate::base::pending::channel("stats");
            ring.inbox.call(Box::new(move |shard| shard.tell_stats(answer)));
            report.wait().unwrap().stats.turns
        };
        let before = turns(&ring);
        let inside = ring.clone();
        lock(&ring);
        ring.stay(|_| std::thread::spawn(move || inside.visit()).join().unwrap()).unwrap();
        // The marked look, and the call that asks for the number.
        assert!(turns(&ring) >= before + 2);
    }
}

#[test]
fn an_engine_ends_although_a_visitor_never_leaves() {
    for config in configs() {
        let Some(bench) = Bench::new(config.shutdown_deadline(Duration::from_millis(50))) else { continue };
        let ring = bench.ring();
        lock(&ring);
        let report = bench.engine.clone().close().wait().unwrap();
        assert!(report.leaked_operations > 0, "{report:?}");
        // The visitor continues in the end, finds everything unchanged, and ends the shard.
        ring.stay(|shard| assert_eq!(shard.index(), 1)).unwrap();
        assert!(ring.enter(|_| ()).is_none(), "it has ended the shard when it left");
        let error = bench.runtime.block_on(async { bench.engine.nop().await.unwrap_err() });
        assert_eq!(error.kind(), ErrorKind::EngineClosed);
    }
}

#[test]
fn a_panic_inside_ends_the_ring_and_nothing_else() {
    for config in configs() {
        let Some(bench) = Bench::new(config) else { continue };
        let ring = bench.ring();
        lock(&ring);
        assert!(ring.stay(|_| panic!("inside")).is_none());
        assert!(ring.is_over());
        let block = bench.runtime.block_on(async { bench.file.read(0..4096).await.unwrap() });
        assert_eq!(block[..], [7; 4096]);
        bench.runtime.block_on(async { bench.engine.nop().await.unwrap() });
        assert!(bench.engine.health().degraded.iter().any(|known| known.what == "worker ring"));
        assert!(bench.engine.stats().wait().unwrap().worker_rings.is_empty());
        bench.engine.close().wait().unwrap();
    }
}

/// The ring of a runtime is free for the next one.
#[test]
fn rings_are_used_again() {
    for config in configs() {
        let Some(bench) = Bench::new(config) else { continue };
        for _ in 0..40 {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                bench.engine.nop().await.unwrap();
                tokio::task::yield_now().await;
                bench.engine.nop().await.unwrap();
            });
        }
        let count = bench.shared().visited.iter().count();
        assert!(count <= 2, "{count} rings for two runtimes at once");
    }
}
