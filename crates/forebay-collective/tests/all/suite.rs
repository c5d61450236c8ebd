//! The cases of the core's conformance suite about dropped and frozen futures, with both writers as the operations.

use std::error::Error;
use std::path::Path;

use forebay::{Config, DriverChoice, Durability, Engine, Open, WorkerRings};
use forebay_collective::{Collective, Options, WriteCombiner};
use forebay_conformance::suite::{self, Case};
use forebay_conformance::{Env, Operation};
use forebay_sim::{Profile, World};
use futures::future::join_all;

use crate::common::{bytes_of, config, dir};

/// Returns one use of each writer on a new file, with its result checked.
fn operations(engine: &Engine, dir: &Path) -> Vec<Operation> {
    let file = || {
        let (engine, dir) = (engine.clone(), dir.to_path_buf());
        async move { engine.temp_file(dir, Open::create()).await }
    };
    let (combined, shared) = (file(), file());
    let combine = async move {
        let combiner = WriteCombiner::start(&combined.await?, Options::new().memory_bytes_max(64 << 10));
        // More than its memory, so that the last writes wait for memory.
        for n in 0..25u64 {
            combiner.write(n * 5_000, &bytes_of(n * 5_000..n * 5_000 + 4_000)).await?;
        }
        combiner.barrier()?;
        assert!(combiner.read(60_000..64_000).await? == bytes_of(60_000..64_000));
        combiner.flush(Durability::None).await?;
        assert_eq!(combiner.file().len().await?, 124_000);
        Ok::<_, forebay::Error>(())
    };
    let collective = async move {
        let file = shared.await?;
        let parts = Collective::start(&file, 2, Options::new()).into_iter().map(|mut part| async move {
            let rank = part.rank() as u64;
            let pieces = (0..20).map(|n| (2 * n + rank) * 700).map(|at| (at, bytes_of(at..at + 700).into()));
            part.write(pieces.collect(), Durability::None).await
        });
        join_all(parts).await.into_iter().collect::<Result<(), _>>()?;
        assert!(file.read(0..28_000).await? == bytes_of(0..28_000));
        Ok::<_, forebay::Error>(())
    };
    vec![("combine", Box::pin(combine)), ("collective", Box::pin(collective))]
}

type Outcome = Result<(), Box<dyn Error>>;

/// Runs the cases by `run`, each in a directory that does not exist yet.
fn all_pass(run: impl Fn(&Case, &Path) -> Outcome) {
    let dir = dir();
    let is_meant = |case: &Case| case.name().starts_with("drops::") || case.name().starts_with("freezes::");
    for case in suite::cases().into_iter().filter(is_meant) {
        run(&case, &dir.path().join(case.name())).unwrap_or_else(|why| panic!("{}: {why}", case.name()));
    }
}

/// Runs a case, and closes its engine.
async fn run(case: &Case, config: Config, path: &Path) -> Outcome {
    let env = Env::start(config.shards(2), path).await?.operations(operations);
    suite::run(case, &env).await?;
    let report = env.engine().clone().close().await?;
    let lost = report.leaked_operations + report.lost_shards + report.calls_left.len();
    if lost > 0 { Err(format!("at the end nothing may be lost: {report:?}").into()) } else { Ok(()) }
}

/// Runs worlds with disks of every kind.
fn pass_in_worlds(seeds: u64, rings: WorkerRings, stalls_ppm: u32) {
    let disks = [Profile::ideal(), Profile::nand(), Profile::optane(), Profile::cloud()];
    all_pass(|case, _| {
        (0..seeds).try_for_each(|seed| {
            let disk = disks[seed as usize % disks.len()].clone();
            let mut world = World::new(seed).disk(disk).stalls_ppm(stalls_ppm);
            let config = Config::new().worker_rings(rings);
            let ran = world.run(async |_| run(case, config, Path::new("/case")).await);
            ran.unwrap_or_else(|failure| Err(failure.into()))
                .map_err(|why| format!("seed {seed}: {why}").into())
        })
    });
}

#[test]
fn in_worlds() {
    pass_in_worlds(20 / forebay_test::one_in_daily(2) as u64, WorkerRings::Off, 20_000);
    // Cases poll a future once and rely on the start of its operation.
    pass_in_worlds(8, WorkerRings::Always, 0);
}

#[test]
fn on_threads_and_in_tasks() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for driver in [DriverChoice::Uring, DriverChoice::Threads] {
        all_pass(|case, path| futures::executor::block_on(run(case, config().driver(driver), path)));
        // The runtime's thread has its own ring.
        all_pass(|case, path| runtime.block_on(run(case, config().driver(driver), path)));
    }
}
