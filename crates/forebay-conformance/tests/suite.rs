//! A separate program: virtual machines run it alone (`vm/test`, `vm/tests`).
//!
//! Shows: every driver keeps the documented contract. How: all cases of the conformance suite, each on a fresh engine and in a
//! fresh directory. All cases of a group run, and all failures are named at the end; a skipped case is named with the reason. On an
//! NVMe namespace too, which is overwritten, where `FOREBAY_TEST_NVME` names one: `vm/tests/polled` does.

use forebay::{DriverChoice, WorkerRings};
use forebay_conformance::Env;
use forebay_conformance::suite::{self, Case, Need, Verdict};
use forebay_sim::{Profile, World};

#[path = "../../forebay/tests/common/mod.rs"]
mod common;

/// Creates a directory on a real file system next to the build, where O_DIRECT works; `/tmp` is often memory.
fn base() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("forebay-suite-").tempdir_in(common::place()).expect("a directory")
}

/// Runs the cases of a group with `run`, and reports all failures.
fn run_group(group: &str, run: impl Fn(&Case) -> Result<Verdict, String>) {
    let mut failures = Vec::new();
    let mut count = 0;
    for case in suite::cases().iter().filter(|case| case.name().split("::").next() == Some(group)) {
        count += 1;
        match run(case) {
            Ok(Verdict::Passed) => {}
            Ok(Verdict::Skipped(why)) => println!("skipped: {}: {why}", case.name()),
            Ok(other) => {
                failures.push(format!("{}: {other:?} is no verdict that is known here", case.name()))
            }
            Err(reason) => failures.push(reason),
        }
    }
    assert!(count > 0, "there is no group {group}");
    assert!(failures.is_empty(), "{} of {count} failed:\n{}", failures.len(), failures.join("\n"));
}

/// Runs a group with two shards, whose number by default depends on the machine.
fn run_on(driver: DriverChoice, group: &str) {
    let base = base();
    let config = common::config().driver(driver).shards(2);
    run_group(group, |case| suite::run_at(case, &config, base.path()).map_err(|failure| failure.to_string()));
}

/// Runs a group in a Tokio runtime, whose thread has its own ring: of io_uring, or of native AIO where the shards have threads.
#[cfg(target_os = "linux")]
fn run_in_task(driver: DriverChoice, group: &str) {
    let base = base();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    run_group(group, |case| {
        let path = base.path().join(case.name().replace("::", "-"));
        let config = common::config().driver(driver).shards(2);
        runtime.block_on(async {
            let env = Env::start(config, &path).await.map_err(|error| error.to_string())?;
            // The first operation makes the ring, which is used once the runtime has polled its attendant.
            env.engine().nop().await.map_err(|error| error.to_string())?;
            let health = env.engine().health();
            let expected = if driver == DriverChoice::Uring { "uring" } else { "aio" };
            let is_refused = health.degraded.iter().any(|known| known.what == "worker rings");
            if health.worker_rings != Some(expected) && !is_refused {
                return Err(format!("the worker has no ring of {expected}: {health}"));
            }
            tokio::task::yield_now().await;
            suite::run(case, &env).await.map_err(|failure| failure.to_string())
        })
    });
}

/// Runs a group on a namespace, polled for or not as `FOREBAY_TEST_POLLING` sets. Only cases that need a file
/// system may be skipped.
#[cfg(target_os = "linux")]
fn run_on_namespace(group: &str) {
    let Some(namespace) = std::env::var_os("FOREBAY_TEST_NVME") else {
        println!("skipped: FOREBAY_TEST_NVME names no namespace");
        return;
    };
    let config = common::config().driver(DriverChoice::Uring).shards(2);
    run_group(group, |case| {
        let verdict = suite::run_on_namespace(case, &config, namespace.as_ref());
        let needs_file_system = case.needs().contains(&Need::FileSystem);
        match verdict.map_err(|failure| failure.to_string())? {
            Verdict::Skipped(why) if !needs_file_system => Err(format!("{} was skipped: {why}", case.name())),
            Verdict::Passed if needs_file_system => Err(format!("{} has run", case.name())),
            verdict => Ok(verdict),
        }
    });
}

/// Runs twenty worlds for each case, on disks of every kind, or eight with rings; without optimisation ten.
fn run_simulated(group: &str, rings: WorkerRings) {
    let disks = [Profile::ideal(), Profile::nand(), Profile::optane(), Profile::cloud()];
    run_group(group, |case| {
        let mut verdict = Verdict::Passed;
        // Cases poll a future once and rely on its operation having started.
        let many = 20 / forebay_test::one_in_daily(2) as u64;
        let (seeds, stalls_ppm) = if rings == WorkerRings::Off { (many, 20_000) } else { (8, 0) };
        for seed in 0..seeds {
            let mut world =
                World::new(seed).disk(disks[seed as usize % disks.len()].clone()).stalls_ppm(stalls_ppm);
            let config = forebay::Config::new().shards(2).worker_rings(rings);
            let outcome = world.run(async |_| {
                let env = Env::start(config, "/case").await.map_err(|error| error.to_string())?;
                suite::run(case, &env).await.map_err(|failure| failure.to_string())
            });
            let outcome = outcome.unwrap_or_else(|failure| Err(format!("{}: {failure}", case.name())));
            verdict = outcome.map_err(|reason| format!("seed {seed}: {reason}"))?;
        }
        Ok(verdict)
    });
}

/// One test for each driver and group.
macro_rules! groups {
    ($($group:ident),* $(,)?) => {
        #[cfg(target_os = "linux")]
        mod uring {
            $(#[test]
            fn $group() {
                super::run_on(super::DriverChoice::Uring, stringify!($group));
            })*
        }

        #[cfg(target_os = "linux")]
        mod worker_ring {
            $(#[test]
            fn $group() {
                super::run_in_task(super::DriverChoice::Uring, stringify!($group));
            })*
        }

        #[cfg(target_os = "linux")]
        mod worker_without_uring {
            $(#[test]
            fn $group() {
                super::run_in_task(super::DriverChoice::Threads, stringify!($group));
            })*
        }

        #[cfg(target_os = "linux")]
        mod namespace {
            $(#[test]
            fn $group() {
                super::run_on_namespace(stringify!($group));
            })*
        }

        mod threads {
            $(#[test]
            fn $group() {
                super::run_on(super::DriverChoice::Threads, stringify!($group));
            })*
        }

        mod simulator {
            $(#[test]
            fn $group() {
                super::run_simulated(stringify!($group), forebay::WorkerRings::Off);
            })*
        }

        mod simulator_rings {
            $(#[test]
            fn $group() {
                super::run_simulated(stringify!($group), forebay::WorkerRings::Always);
            })*
        }

        #[test]
        fn every_group_is_here() {
            let known = [$(stringify!($group)),*];
            for case in suite::cases() {
                let group = case.name().split("::").next().unwrap_or_default();
                assert!(known.contains(&group), "{} is in no group", case.name());
            }
        }
    };
}

groups!(
    reads, writes, many, lent, lives, walk, append, space, names, files, memory, tasks, engine, drops,
    freezes, ending, threads
);

#[test]
fn cases_have_names_of_their_own() {
    let mut names: Vec<_> = suite::cases().iter().map(Case::name).collect();
    names.sort_unstable();
    names.windows(2).for_each(|pair| assert_ne!(pair[0], pair[1]));
    // Most cases run in a simulated world, and most run on a namespace.
    let (cases, lacks) = (suite::cases(), |case: &&Case, need| !case.needs().contains(&need));
    let simulated =
        cases.iter().filter(|case| lacks(case, Need::Threads) && lacks(case, Need::Process)).count();
    assert!(simulated * 10 > cases.len() * 8, "{simulated} of {}", cases.len());
    let on_namespace = cases.iter().filter(|case| lacks(case, Need::FileSystem)).count();
    assert!(on_namespace * 10 > cases.len() * 7, "{on_namespace} of {}", cases.len());
    assert!(suite::cases().iter().any(|case| case.needs() == [Need::Threads]));
}
