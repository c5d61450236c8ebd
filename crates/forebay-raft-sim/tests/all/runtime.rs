//! openraft's suite for runtimes, in simulated worlds.

use std::time::Duration;

use forebay_raft_sim::SimRuntime;
use openraft_rt::AsyncRuntime;
use openraft_rt::testing::Suite;

#[test]
fn openrafts_suite_for_runtimes_passes() {
    Suite::<SimRuntime>::test_all();
}

#[test]
fn hours_take_no_time_and_work_that_blocks_runs_here() {
    let thread = std::thread::current().id();
    SimRuntime::run(async {
        SimRuntime::sleep(Duration::from_secs(36_000)).await;
        let there = SimRuntime::spawn_blocking(|| std::thread::current().id()).await.unwrap();
        assert_eq!(there, thread);
    });
}
