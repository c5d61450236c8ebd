//! Three Raft nodes in a world: they elect, are partitioned, lose their power; no acknowledged write is lost, and no read is stale.

mod common;

use std::cell::{Cell, RefCell};
use std::io::Cursor;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use common::{Append, Disk, Machine, Types};
use forebay::sim::net::{self, Address, Conditions, Socket};
use forebay::sim::{self, World};
use forebay_raft_sim::{SimNetwork, serve};
use forebay_test::history::{Fate, Level, Operation, Transaction, check};
use openraft::{Config, Raft, ReadPolicy, SnapshotPolicy};
use serde::{Deserialize, Serialize};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const NODES: u32 = 3;
const CLIENTS: u32 = 2;
const OPERATIONS: u64 = 12;
const LISTS: u64 = 2;
/// Twenty times as many as a world needs: a defect may have a node run in circles.
const STEPS_MAX: u64 = 100_000;
/// The port of requests between Raft nodes, and that of clients.
const RAFT: u32 = 1;
const CLIENT: u32 = 2;

/// A defect of the cluster, which the check must find.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Defect {
    None,
    /// A node forgets its vote and log when it loses its power.
    Forgets,
    /// A read does not ask the others whether this node still leads.
    ReadsLocally,
    /// A write is acknowledged when it is proposed.
    AcknowledgesEarly,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Request {
    Append(Append),
    Read(u64),
}

/// `None`: this node does not know.
type Reply = Option<Vec<u64>>;

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

/// One Raft node; it runs until its power goes.
async fn run_node(number: u32, disk: Disk, defect: Defect) {
    let network = SimNetwork::<Types, Cursor<Vec<u8>>>::new(|&node, ()| Address::new(node as u32, RAFT));
    let machine = Machine::open(&disk);
    let raft =
        Raft::new(u64::from(number), Arc::new(config()), network, disk, machine.clone()).await.unwrap();
    drop(sim::spawn(serve(raft.clone(), RAFT)));
    if number == 1 && !raft.is_initialized().await.unwrap() {
        let members =
            (1..=u64::from(NODES)).map(|node| (node, ())).collect::<std::collections::BTreeMap<_, _>>();
        // Refused when another node has been faster.
        let _ = raft.initialize(members).await;
    }
    let mut socket = Socket::bind(CLIENT).unwrap();
    while let Ok(message) = socket.recv().await {
        let (raft, machine) = (raft.clone(), machine.clone());
        drop(sim::spawn(async move {
            let request: Request = serde_json::from_slice(message.bytes()).unwrap();
            let reply: Reply = match request {
                Request::Append(append) if defect == Defect::AcknowledgesEarly => {
                    let raft = raft.clone();
                    drop(sim::spawn(async move { drop(raft.client_write(append).await) }));
                    Some(Vec::new())
                }
                Request::Append(append) => raft.client_write(append).await.ok().map(|_| Vec::new()),
                Request::Read(list) => {
                    let leads = defect == Defect::ReadsLocally
                        || raft.ensure_linearizable(ReadPolicy::ReadIndex).await.is_ok();
                    leads.then(|| machine.read(list))
                }
            };
            message.reply(serde_json::to_vec(&reply).unwrap());
        }));
    }
}

type History = Rc<RefCell<Vec<Transaction>>>;

fn now_ns() -> u64 {
    sim::world_time().as_nanos() as u64
}

/// Calls nodes until one replies, for a read; a write is sent once, because its outcome is unknown otherwise.
async fn client(number: u32, history: History) {
    let mut to = 1 + number % NODES;
    for at in 0..OPERATIONS {
        let list = sim::random(LISTS);
        let element = u64::from(number) * 1_000 + at;
        let request =
            if sim::random(2) == 0 { Request::Read(list) } else { Request::Append(Append { list, element }) };
        let began = now_ns();
        let bytes = serde_json::to_vec(&request).unwrap();
        let reply = net::call(Address::new(to, CLIENT), bytes, 300 * MS).await;
        let reply: Reply = reply.ok().and_then(|bytes| serde_json::from_slice(&bytes).unwrap());
        if reply.is_none() {
            to = 1 + to % NODES;
        }
        let transaction = match (request, reply) {
            (Request::Append(_), reply) => Transaction {
                began,
                ended: if reply.is_some() { now_ns() } else { u64::MAX },
                fate: if reply.is_some() { Fate::Committed } else { Fate::Unknown },
                operations: vec![Operation::Append(list, element)],
            },
            (Request::Read(_), Some(seen)) => Transaction {
                began,
                ended: now_ns(),
                fate: Fate::Committed,
                operations: vec![Operation::Read(list, seen)],
            },
            (Request::Read(_), None) => continue,
        };
        history.borrow_mut().push(transaction);
        sim::sleep(Duration::from_micros(sim::random(100_000))).await.unwrap();
    }
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
                // Two at once leave no majority.
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

/// Returns when every list can be read, which needs a leader that knows all that was committed.
async fn recovers(history: &History) -> Result<(), String> {
    for list in 0..LISTS {
        let began = sim::world_time();
        let mut to = 1;
        loop {
            if sim::world_time() - began > 30 * SECOND {
                return Err("no leader within 30 s after all links were healed".to_string());
            }
            let (began, bytes) = (now_ns(), serde_json::to_vec(&Request::Read(list)).unwrap());
            let reply = net::call(Address::new(to, CLIENT), bytes, 300 * MS).await;
            if let Some(seen) = reply.ok().and_then(|bytes| serde_json::from_slice::<Reply>(&bytes).unwrap())
            {
                let operations = vec![Operation::Read(list, seen)];
                let read = Transaction { began, ended: now_ns(), fate: Fate::Committed, operations };
                history.borrow_mut().push(read);
                break;
            }
            to = 1 + to % NODES;
        }
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Seen {
    acknowledged: Cell<u32>,
    reads: Cell<u32>,
    unknown: Cell<u32>,
    power_cuts: Cell<u64>,
    lost: Cell<u64>,
}

fn attempt(world: &mut World, kind: Trouble, defect: Defect, seen: &Seen) -> Result<(), String> {
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
            .map(|number| sim::node(10 + number).spawn_local(client(number, history.clone())))
            .collect();
        trouble(&disks, kind, defect).await;
        for client in clients {
            client.await.unwrap();
        }
        net::set_conditions(Conditions::lan());
        net::heal_all();
        recovers(&history).await
    });
    run.map_err(|failure| failure.to_string())??;
    let history = history.take();
    for transaction in &history {
        let count = match (transaction.fate, &transaction.operations[0]) {
            (Fate::Committed, Operation::Append(..)) => &seen.acknowledged,
            (Fate::Committed, Operation::Read(..)) => &seen.reads,
            _ => &seen.unknown,
        };
        count.set(count.get() + 1);
    }
    seen.power_cuts.set(seen.power_cuts.get() + world.counts().power_cuts);
    let traffic = world.traffic();
    seen.lost.set(seen.lost.get() + traffic.lost + traffic.blocked);
    // One operation each, so that serializable with the order of time is linearizable.
    check(&history, Level::Serializable).map_err(|anomaly| anomaly.to_string())
}

/// Runs 100 worlds, and returns what they saw; `None` when one seed or another number of them was asked for.
fn explore(kind: Trouble) -> Option<Seen> {
    let seen = Seen::default();
    let attempt = |seed| attempt(&mut World::new(seed).steps_max(STEPS_MAX), kind, Defect::None, &seen);
    let tried = sim::explore(0..100, attempt).unwrap_or_else(|failing| panic!("{failing}"));
    println!("{seen:?}");
    (tried == 100).then_some(seen)
}

#[test]
fn a_cluster_is_linearizable_when_links_are_cut() {
    if let Some(seen) = explore(Trouble::Links) {
        assert!(
            seen.acknowledged.get() > 400 && seen.reads.get() > 400 && seen.unknown.get() > 50,
            "{seen:?}"
        );
        assert!(seen.lost.get() > 1_000, "{seen:?}");
    }
}

#[test]
fn a_cluster_is_linearizable_when_nodes_lose_their_power() {
    if let Some(seen) = explore(Trouble::Power) {
        assert!(
            seen.acknowledged.get() > 400 && seen.reads.get() > 400 && seen.unknown.get() > 50,
            "{seen:?}"
        );
        assert!(seen.power_cuts.get() > 200, "{seen:?}");
    }
}

#[test]
fn one_seed_is_one_history() {
    let run = |seed, kind| {
        let mut world = World::new(seed);
        attempt(&mut world, kind, Defect::None, &Seen::default()).unwrap();
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
        let result = attempt(&mut world, kind, defect, &Seen::default());
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
