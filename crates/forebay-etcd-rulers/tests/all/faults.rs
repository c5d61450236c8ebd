//! Shows: three whole servers lose no acknowledged change, serve no stale read, leave no event out of a watch and end no lease
//! early, under all these faults. How: clients keep a history through gRPC while the servers' processes are killed and stopped, cut
//! off from each other, their disks are full or slow, their clocks jump, and members are replaced. One checker looks for an order
//! of each key's calls that explains it. Another compares all that was seen with the state at every revision.
//!
//! `FOREBAY_ETCD_ROUNDS=300` runs more rounds; `FOREBAY_ETCD_SEED` chooses others. Partitions, full and slow disks need root, jumps of clocks Debian's package faketime.
//! What cannot be had is said, and left out.

mod check;
mod client;
mod clocks;
mod cluster;
mod leases;
mod past;
mod planted;
mod watcher;

use std::time::Duration;

use cluster::{Cluster, Way};
use forebay_test::machines::Machines;
use forebay_test::machines::nodes::{PATIENCE, RECOVERY_MAX};
use forebay_test::number_from;

const ROUNDS: u64 = 6;
/// The shortest time in which each round's clients are at work.
const ROUND: Duration = Duration::from_millis(1500);
const DISK_BYTES: u64 = 640 << 20;

fn machines() -> Machines {
    Machines::new(env!("CARGO_TARGET_TMPDIR").as_ref(), 3, DISK_BYTES).expect("three machines")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

#[test]
fn no_fault_of_processes_networks_disks_and_clocks_is_seen_by_clients() {
    let rounds = number_from("FOREBAY_ETCD_ROUNDS").unwrap_or(ROUNDS);
    let seed = number_from("FOREBAY_ETCD_SEED").unwrap_or(1);
    let runtime = runtime();
    let _in_it = runtime.enter();
    let mut cluster = Cluster::start(machines(), seed, Way::Sound);
    runtime.block_on(async {
        cluster.begin().await;
        for round in 0..rounds {
            let checked = cluster.round(round, ROUND).await;
            checked.unwrap_or_else(|why| panic!("seed {seed}, round {round}: {why}"));
            cluster.compact().await;
            if round % 10 == 9 {
                println!("after round {round}: {}", cluster.report());
            }
        }
        cluster.leases_end().await.unwrap_or_else(|why| panic!("seed {seed}, at the end: {why}"));
    });
    println!("{rounds} rounds: {}", cluster.report());
    cluster.check_that_faults_happened(rounds);
}

/// Runs rounds until a checker finds the defect, and returns its report. The test's own limit ends it if that never happens.
fn found(way: Way) -> String {
    let runtime = runtime();
    let _in_it = runtime.enter();
    let mut cluster = Cluster::start(machines(), 7, way);
    runtime.block_on(async {
        cluster.begin().await;
        for round in 0.. {
            if let Err(why) = cluster.round(round, ROUND).await {
                println!("{way:?} was found in round {round}");
                return why;
            }
        }
        unreachable!("rounds have no end");
    })
}

/// The checkers see what members do wrong that serve reads without a word with the others.
#[test]
fn reads_of_what_a_member_happens_to_have_are_found() {
    let why = found(Way::StaleReads);
    assert!(why.contains("no order explains") || why.contains("was known before"), "{why}");
}

#[test]
fn watches_that_leave_events_out_are_found() {
    let why = found(Way::SkippingWatches);
    assert!(why.contains("watcher"), "{why}");
}
