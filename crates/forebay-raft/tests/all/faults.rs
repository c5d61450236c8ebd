//! Shows: three nodes in separate processes lose no acknowledged write and serve no stale read under faults. How: clients keep a
//! history while processes are killed, stopped, cut off from each other, run out of disk and have a slow disk, and a checker looks
//! for an order that explains it.
//!
//! `FOREBAY_RAFT_ROUNDS=200` runs more rounds; `FOREBAY_RAFT_SEED` chooses others. Partitions need network namespaces and full disks need loop devices: root. Where
//! they cannot be had the test says so and leaves them out.
#![cfg(target_os = "linux")]

mod cluster;
mod node;
mod wire;

use std::time::Duration;

use crate::faults::cluster::{Cluster, Way};
use forebay_test::machines::Machines;
use forebay_test::number_from;
use forebay_test::registers::History;

const ROUNDS: u64 = 5;
const CLIENTS: usize = 5;
const DISK_BYTES: u64 = 96 << 20;
/// The shortest time in which each round's clients are at work.
const ROUND: Duration = Duration::from_millis(1500);

/// A node in a separate process, which the tests below start.
#[test]
#[ignore = "runs in a process of its own, which the tests below start"]
fn node_process() {
    node::run_if_wanted();
}

fn machines() -> Machines {
    Machines::new(env!("CARGO_TARGET_TMPDIR").as_ref(), 3, DISK_BYTES).expect("three machines")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

#[test]
fn no_fault_of_processes_networks_and_disks_is_seen_by_clients() {
    let rounds = number_from("FOREBAY_RAFT_ROUNDS").unwrap_or(ROUNDS);
    let seed = number_from("FOREBAY_RAFT_SEED").unwrap_or(1);
    let machines = machines();
    let mut cluster = Cluster::start(machines, seed, Way::Sound);
    runtime().block_on(async {
        cluster.begin().await;
        for round in 0..rounds {
            let history = cluster.round(round, CLIENTS, ROUND).await;
            history.check().unwrap_or_else(|why| panic!("seed {seed}, round {round}: {why}"));
        }
        cluster.nodes_agree().await;
    });
    println!("{}", cluster.nodes.report());
    cluster.nodes.check_that_faults_happened(rounds);
}

/// Runs rounds until the checker finds the defect of these nodes, or the test's time limit ends it.
fn is_found(way: Way) {
    let mut cluster = Cluster::start(machines(), 7, way);
    runtime().block_on(async {
        cluster.begin().await;
        for round in 0.. {
            let history: History = cluster.round(round, CLIENTS, ROUND).await;
            if history.check().is_err() {
                return println!("found in round {round}");
            }
        }
    });
}

/// The checker sees what nodes do wrong that serve reads without a word with the others.
#[test]
fn reads_of_what_a_node_happens_to_have_are_found() {
    is_found(Way::LocalReads);
}

/// Nodes with openraft's default settings served stale reads: a leader that was killed and started again led immediately, without
/// an election, and did not know what it had committed, as its state machine had not flushed it. So `forebay_raft::config` turns
/// that off.
#[test]
fn reads_of_leaders_that_were_not_elected_again_are_found() {
    is_found(Way::RestoredLeaders);
}
