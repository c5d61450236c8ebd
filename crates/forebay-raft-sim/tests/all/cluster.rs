//! Three Raft nodes in a world: they elect, are partitioned, lose their power; no acknowledged write is lost, and no read is stale.

use std::sync::Arc;
use std::time::Duration;

use crate::common::memory::{Disk, Machine};
use crate::common::{
    Defect, History, RAFT, Types, Work, WorldCounts, client, initialize, judge, recovers, serve_clients,
};
use forebay_raft_sim::{InMemory, SimNetwork, serve};
use forebay_sim::net::{self, Address, Conditions};
use forebay_sim::{self as sim, World};
use openraft::{Config, Raft, SnapshotPolicy};

const NODES: u32 = 3;
const CLIENTS: u32 = 2;
const WORK: Work = Work { operations: 12, pause_us_max: 100_000, text_bytes: 1 };
/// Twenty times as many as a world needs: a defect may have a node run in circles.
const STEPS_MAX: u64 = 100_000;

fn config() -> Config {
    let config = Config {
        election_timeout_min: 150,
        election_timeout_max: 300,
        heartbeat_interval: 50,
        // Snapshots and purges happen in every world.
        snapshot_policy: SnapshotPolicy::LogsSinceLast(8),
        max_in_snapshot_log_to_keep: 2,
        replication_lag_threshold: 8,
        ..Config::default()
    };
    config.validate().unwrap()
}

/// One Raft node; it runs until its power is cut.
async fn run_node(number: u32, disk: Disk, defect: Defect) {
    let network = SimNetwork::<Types, _>::new(|&node, ()| Address::new(node as u32, RAFT), InMemory);
    let machine = Machine::open(&disk);
    let raft =
        Raft::new(u64::from(number), Arc::new(config()), network, disk, machine.clone()).await.unwrap();
    drop(sim::spawn(serve(raft.clone(), RAFT, InMemory)));
    initialize(&raft, number, NODES).await;
    serve_clients(raft, machine, defect).await;
}

/// What happens to the nodes of a world.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    /// Links are cut, one way or both.
    Links,
    /// Nodes lose their power, and clocks drift.
    Power,
}

/// Cuts links or power, one after the other.
async fn trouble(disks: &[Disk], trouble: Trouble, defect: Defect) {
    let restart = |node: u32| {
        let disk = if defect == Defect::Forgets { Disk::default() } else { disks[node as usize - 1].clone() };
        sim::node(node).power_on();
        drop(sim::node(node).spawn(run_node(node, disk, defect)));
    };
    for _ in 0..4 {
        sim::sleep(Duration::from_micros(sim::random(400_000))).await.unwrap();
        let node = 1 + sim::random(u64::from(NODES)) as u32;
        let other = 1 + node % NODES;
        let pause = Duration::from_micros(sim::random(800_000));
        let single = sim::random(2) == 0;
        match trouble {
            Trouble::Links if single => net::cut(node, other),
            Trouble::Links => {
                let others: Vec<u32> = (1..=NODES).filter(|&other| other != node).collect();
                net::partition(&[&[node], &others]);
            }
            Trouble::Power => {
                // Two concurrent cuts leave no majority.
                let cut = if single { vec![node] } else { vec![node, other] };
                for &node in &cut {
                    sim::node(node).power_cut().await;
                }
                sim::sleep(pause).await.unwrap();
                cut.into_iter().for_each(restart);
                sim::node(other).set_drift_ppm(sim::random(100_000) as i32 - 50_000);
            }
        }
        sim::sleep(pause).await.unwrap();
        net::heal_all();
    }
}

fn attempt(world: &mut World, kind: Trouble, defect: Defect, seen: &WorldCounts) -> Result<(), String> {
    let history = History::default();
    let run = world.run(async |_| {
        net::set_conditions(
            [Conditions::ideal(), Conditions::lan(), Conditions::hostile()][sim::random(3) as usize],
        );
        let disks: Vec<Disk> = (0..NODES).map(|_| Disk::default()).collect();
        for node in 1..=NODES {
            drop(sim::node(node).spawn(run_node(node, disks[node as usize - 1].clone(), defect)));
        }
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| sim::node(10 + number).spawn_local(client(number, NODES, WORK, history.clone())))
            .collect();
        trouble(&disks, kind, defect).await;
        for client in clients {
            client.await.unwrap();
        }
        net::set_conditions(Conditions::lan());
        net::heal_all();
        recovers(NODES, &history).await
    });
    run.map_err(|failure| failure.to_string())??;
    judge(world, &history, seen)
}

/// Runs 50 worlds, and returns what they saw; `None` when one seed or another number of them was asked for.
fn explore(kind: Trouble) -> Option<WorldCounts> {
    let seen = WorldCounts::default();
    let attempt = |seed| attempt(&mut World::new(seed).steps_max(STEPS_MAX), kind, Defect::None, &seen);
    let tried = sim::explore(0..50, attempt).unwrap_or_else(|failing| panic!("{failing}"));
    println!("{seen:?}");
    (tried == 50).then_some(seen)
}

#[test]
fn a_cluster_is_linearizable_when_links_are_cut() {
    if let Some(seen) = explore(Trouble::Links) {
        assert!(
            seen.acknowledged.get() > 200 && seen.reads.get() > 200 && seen.unknown.get() > 25,
            "{seen:?}"
        );
        assert!(seen.lost.get() > 500, "{seen:?}");
    }
}

#[test]
fn a_cluster_is_linearizable_when_nodes_lose_their_power() {
    if let Some(seen) = explore(Trouble::Power) {
        assert!(
            seen.acknowledged.get() > 200 && seen.reads.get() > 200 && seen.unknown.get() > 25,
            "{seen:?}"
        );
        assert!(seen.power_cuts.get() > 100, "{seen:?}");
    }
}

#[test]
fn one_seed_is_one_history() {
    let run = |seed, kind| {
        let mut world = World::new(seed);
        attempt(&mut world, kind, Defect::None, &WorldCounts::default()).unwrap();
        (world.history_digest(), world.steps(), world.now())
    };
    for seed in 0..8 {
        let kind = if seed % 2 == 0 { Trouble::Links } else { Trouble::Power };
        let first = run(seed, kind);
        println!("seed {seed}: {first:x?}");
        assert_eq!(first, run(seed, kind), "seed {seed}");
    }
    assert_ne!(run(0, Trouble::Links), run(2, Trouble::Links));
}

/// Returns whether one of the first 100 seeds finds a defect.
fn is_found(kind: Trouble, defect: Defect) -> bool {
    (0..100).any(|seed| {
        let mut world = World::new(seed).steps_max(STEPS_MAX);
        let result = attempt(&mut world, kind, defect, &WorldCounts::default());
        result.inspect_err(|why| println!("seed {seed}: {why}")).is_err()
    })
}

#[test]
fn a_node_that_forgets_its_disk_is_found() {
    assert!(is_found(Trouble::Power, Defect::Forgets));
}

#[test]
fn stale_reads_are_found() {
    assert!(is_found(Trouble::Links, Defect::ReadsLocally));
}

#[test]
fn a_write_that_is_acknowledged_early_is_found() {
    assert!(is_found(Trouble::Links, Defect::AcknowledgesEarly));
}
