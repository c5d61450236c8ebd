//! The processors of the shards' threads, and of those that they start. Choices on machines of other shapes: the unit tests of
//! `io/placement`.

use std::collections::BTreeSet;

use forebay::{Class, Config, DriverChoice, Engine, ErrorKind, Open, Placement};
use forebay_test::children::{Restriction, Scene};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_getcpu};

use crate::common::{bytes_of, config, dir};

/// A longer child hangs.
const DEADLINE_S: u32 = 120;

/// Returns the processors of the calling thread.
fn own_processors() -> BTreeSet<usize> {
    processors_of(&sched_getaffinity(None).unwrap())
}

fn processors_of(set: &CpuSet) -> BTreeSet<usize> {
    (0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect()
}

/// Returns the threads of this process with that name.
fn threads_named(name: &str) -> Vec<Pid> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap());
    // A thread may end between the list and the read of its name.
    let has_name = |task: &std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|found| found.trim() == name)
    };
    let number = |task: std::fs::DirEntry| task.file_name().to_str().unwrap().parse().unwrap();
    tasks.filter(has_name).map(|task| Pid::from_raw(number(task)).unwrap()).collect()
}

/// Returns the processors of a shard's thread, as the thread sees them and as proc(5) shows them, and the one that it runs on.
fn seen_by(engine: &Engine, shard: usize) -> (BTreeSet<usize>, String, usize) {
    let look = || async {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        (own_processors(), list.unwrap().trim().to_owned(), sched_getcpu())
    };
    engine.spawn_on_shard(shard, Class::DEFAULT, look).wait().unwrap()
}

#[test]
fn each_shard_runs_on_the_processor_that_health_names() {
    let all = own_processors();
    for processor in all.iter().copied().take(2) {
        let dir = dir();
        let placement = Placement::Processors(vec![processor]);
        let engine = Engine::start(config().shards(2).placement(placement)).unwrap();
        let health = engine.health();
        assert_eq!(health.processors, [processor; 2], "{health}");
        assert!(health.to_string().contains(&format!("processors {processor} {processor}")), "{health}");
        for shard in 0..2 {
            let expected = (BTreeSet::from([processor]), processor.to_string(), processor);
            assert_eq!(seen_by(&engine, shard), expected);
        }
        let file = engine.open(dir.path().join("file"), Open::create()).wait().unwrap();
        file.write(0, bytes_of(0..1 << 20)).wait().unwrap();
        assert!(file.read(0..1 << 20).wait().unwrap()[..] == bytes_of(0..1 << 20)[..]);
        engine.close().wait().unwrap();
    }
    assert_eq!(own_processors(), all, "the thread that starts an engine is the program's");
}

#[test]
fn as_many_shards_as_processors_have_one_each() {
    let all = own_processors();
    let shards = all.len().min(4);
    let placement = Placement::Processors(all.iter().copied().collect());
    let engine = Engine::start(config().shards(shards).placement(placement)).unwrap();
    let chosen = engine.health().processors;
    assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), shards, "{chosen:?}");
    for (shard, processor) in chosen.into_iter().enumerate() {
        assert_eq!(seen_by(&engine, shard).0, BTreeSet::from([processor]));
    }
    // Without a number of shards the placement's processors count.
    let placement = Placement::Processors(all.into_iter().take(1).collect());
    assert_eq!(Engine::start(config().placement(placement)).unwrap().shard_count(), 1);
}

/// A thread inherits the processors of the one that starts it: a shard's pool would copy files and search directories on the
/// shard's.
#[test]
fn pools_that_a_shard_starts_run_anywhere() {
    Scene::new("placement::pools_that_a_shard_starts_run_anywhere")
        .without(vec![Restriction::Time(DEADLINE_S)])
        .play(|| {
            let (all, dir) = (own_processors(), dir());
            let placement = Placement::Processors(all.iter().copied().take(1).collect());
            let config = Config::new().driver(DriverChoice::Threads).shards(1).placement(placement);
            let engine = Engine::start(config).unwrap();
            let (inner, path) = (engine.clone(), dir.path().join("file"));
            let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
                let file = inner.open(&path, Open::create()).await?;
                file.write(0, vec![1; 8192]).await?;
                file.read(0..8192).await
            });
            assert_eq!(task.wait().unwrap().unwrap().len(), 8192);
            for name in ["forebay-pool", "forebay-io"] {
                let threads = threads_named(name);
                assert!(!threads.is_empty(), "{name}");
                for thread in threads {
                    // One that has just started moves with its first instructions.
                    while sched_getaffinity(Some(thread)).is_ok_and(|set| processors_of(&set) != all) {
                        std::thread::yield_now();
                    }
                }
            }
            assert_eq!(seen_by(&engine, 0).0.len(), 1);
        });
}

#[test]
fn a_worker_is_kept_on_the_processors_of_the_placement() {
    let all = own_processors();
    let first: BTreeSet<usize> = all.iter().copied().take(1).collect();
    let placement = Placement::Processors(first.iter().copied().collect());
    let pinned = Engine::start(config().placement(placement)).unwrap();
    let unpinned = Engine::start(config()).unwrap();
    for (engine, expected) in [(pinned, first), (unpinned, all)] {
        let worker = std::thread::spawn(move || {
            engine.pin_worker().unwrap();
            own_processors()
        });
        assert_eq!(worker.join().unwrap(), expected);
    }
}

#[test]
fn processors_that_this_process_may_not_use_are_refused_with_the_remedy() {
    let absent = (0..CpuSet::MAX_CPU).rev().find(|number| !own_processors().contains(number)).unwrap();
    let error = Engine::start(config().placement(Placement::Processors(vec![absent]))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let text = error.to_string();
    assert!(text.contains(&format!("processors {absent} (Config::placement)")), "{text}");
    assert!(text.contains("cpuset") && text.contains("taskset"), "{text}");
    let error = Engine::start(config().placement(Placement::Node(u32::MAX))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("no memory node 4294967295"), "{error}");
    let error = Engine::start(config().placement(Placement::Device("/no/such/file".into()))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// Whether this machine names a node for the device or not.
#[test]
fn the_device_of_a_directory_gives_processors_or_the_reason_for_none() {
    let dir = dir();
    let engine = Engine::start(config().placement(Placement::Device(dir.path().into()))).unwrap();
    let health = engine.health();
    let is_told = health.degraded.iter().any(|degradation| degradation.what == "placement");
    assert_eq!(health.processors.is_empty(), is_told, "{health}");
    for (shard, processor) in health.processors.into_iter().enumerate() {
        assert_eq!(seen_by(&engine, shard).0, BTreeSet::from([processor]));
    }
}
