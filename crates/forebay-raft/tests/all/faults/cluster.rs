//! Three nodes, what happens to them, and the clients.

use std::collections::BTreeMap;
use std::process::Command as Process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_test::draw::Draw;
use forebay_test::machines::Machines;
use forebay_test::machines::nodes::{FAULTS, Nodes, OPERATIONS_LEAST, PATIENCE, Program, RECOVERY_MAX};
use forebay_test::registers::{History, Op};
use tokio::time::{sleep, timeout};

use crate::faults::node::{NODE, RESTORE};
use crate::faults::wire::{Command, Peer, Reads, Reply, Request, Response, Status};

const KEYS: u64 = 6;

/// How the nodes work: as they should, or wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Sound,
    /// Each serves reads from its local state.
    LocalReads,
    /// A leader that starts again leads without an election, openraft's default.
    RestoredLeaders,
}

impl Program for Way {
    fn command(&mut self, machines: &Machines, node: usize) -> Process {
        let value = format!("{},{},{}", node, machines.address(node, 0), machines.dir_of(node).display());
        let program = std::env::current_exe().expect("this program");
        let mut command = machines.command(node, &program);
        command
            .args(["faults::node_process", "--exact", "--include-ignored", "--nocapture"])
            .env(NODE, value);
        if *self == Way::RestoredLeaders {
            command.env(RESTORE, "1");
        }
        command
    }
}

pub(crate) struct Cluster {
    pub(crate) nodes: Nodes<Way>,
    next_client: Arc<AtomicUsize>,
    next_value: Arc<AtomicU64>,
}

impl Cluster {
    pub(crate) fn start(machines: Machines, seed: u64, way: Way) -> Cluster {
        let faults = match way {
            Way::RestoredLeaders => &["all killed"][..],
            _ => &FAULTS[..],
        };
        let nodes = Nodes::start(machines, way, seed, faults);
        Cluster { nodes, next_client: Arc::default(), next_value: Arc::new(AtomicU64::new(1)) }
    }

    async fn count_snapshots(&mut self) {
        for node in 0..3 {
            if let Some(status) = self.status(node).await {
                self.nodes.note_snapshots(node, status.installed);
            }
        }
    }

    fn peer(&self, node: usize) -> Peer {
        Peer::new(self.nodes.machines.address(node, 0))
    }

    async fn status(&self, node: usize) -> Option<Status> {
        match timeout(PATIENCE, self.peer(node).call(&Request::Status)).await {
            Ok(Ok(Response::Status(status))) => Some(*status),
            _ => None,
        }
    }

    /// Makes the three nodes a cluster.
    pub(crate) async fn begin(&mut self) {
        let members: BTreeMap<u64, String> =
            (0..3).map(|node| (node as u64, self.nodes.machines.address(node, 0))).collect();
        let begun = Instant::now();
        let begin = Request::Initialize(members);
        while !matches!(timeout(PATIENCE, self.peer(0).call(&begin)).await, Ok(Ok(Response::Ok))) {
            self.nodes.has_time(begun, "node 0 does not begin").unwrap_or_else(|why| panic!("{why}"));
            self.nodes.restart_ended();
            sleep(Duration::from_millis(20)).await;
        }
        self.recover().await;
    }

    /// Ends all faults, and waits until a change succeeds.
    async fn recover(&mut self) {
        self.nodes.heal();
        let begun = Instant::now();
        let mut node = 0;
        loop {
            self.nodes.restart_ended();
            let command = Command::Put { key: "recovery".into(), value: 0 };
            let leader = match timeout(PATIENCE, self.peer(node).call(&Request::Change(command))).await {
                Ok(Ok(Response::Changed(_))) => break,
                Ok(Ok(Response::NotHere(leader))) => leader,
                _ => None,
            };
            self.nodes.has_time(begun, "no change comes through").unwrap_or_else(|why| panic!("{why}"));
            node = leader.map_or((node + 1) % 3, |leader| leader as usize);
            sleep(Duration::from_millis(5)).await;
        }
        self.nodes.recoveries.push(begun.elapsed());
        self.count_snapshots().await;
    }

    /// Runs clients on separate keys under faults, ends the faults, and reads all keys at last.
    pub(crate) async fn round(&mut self, round: u64, clients: usize, least: Duration) -> History {
        let history = Arc::new(History::default());
        let is_over = Arc::new(AtomicBool::new(false));
        let tasks: Vec<_> = (0..clients)
            .map(|number| {
                let mut client = self.client(round, number, history.clone());
                let is_over = is_over.clone();
                tokio::spawn(async move {
                    while !is_over.load(Ordering::Relaxed) {
                        client.step().await;
                    }
                })
            })
            .collect();
        let begun = Instant::now();
        loop {
            self.fault().await;
            if begun.elapsed() >= least {
                break;
            }
        }
        self.recover().await;
        // Faults and a busy machine may have left them no time.
        while history.counts().0 <= OPERATIONS_LEAST {
            sleep(Duration::from_millis(5)).await;
        }
        is_over.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.expect("a client");
        }
        let mut last = self.client(round, 0, history.clone());
        for key in 0..KEYS {
            last.read_at_last(key).await;
        }
        self.nodes.note_operations(&history);
        drop(last);
        Arc::into_inner(history).expect("no client is left")
    }

    fn client(&mut self, round: u64, number: usize, history: Arc<History>) -> Client {
        Client {
            peers: (0..3).map(|node| self.peer(node)).collect(),
            at: number % 3,
            round,
            reads: if self.nodes.program == Way::LocalReads { Reads::Local } else { Reads::Linearizable },
            process: self.next_client.fetch_add(1, Ordering::Relaxed),
            next_client: self.next_client.clone(),
            next_value: self.next_value.clone(),
            history,
            seen: BTreeMap::new(),
            random: Draw::new(self.nodes.random.below(u64::MAX)),
        }
    }

    /// Lets something happen, for a while.
    async fn fault(&mut self) {
        let mut fault = self.nodes.draw();
        if fault.name == "leader cut off" {
            for at in 0..3 {
                if let Some(found) = self.status(at).await.and_then(|status| status.leader) {
                    fault.node = found as usize;
                }
            }
        }
        self.nodes.strike(&fault);
        sleep(fault.time).await;
        let pause = self.nodes.end(&fault);
        sleep(pause).await;
    }

    /// Waits until all nodes have applied the same entries, and compares what they have.
    pub(crate) async fn nodes_agree(&mut self) {
        let begun = Instant::now();
        loop {
            let mut all = Vec::new();
            for node in 0..3 {
                all.extend(self.status(node).await);
            }
            if all.len() == 3 && all.iter().all(|status| status.applied == all[0].applied) {
                assert!(all.iter().all(|status| status.state == all[0].state), "they differ: {all:#?}");
                return self.count_snapshots().await;
            }
            let what = format!("the nodes have {all:?}");
            self.nodes.has_time(begun, &what).unwrap_or_else(|why| panic!("{why}"));
            self.nodes.restart_ended();
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// One client: a request at a time, on keys of its round.
struct Client {
    peers: Vec<Peer>,
    /// The node that it calls next.
    at: usize,
    round: u64,
    reads: Reads,
    process: usize,
    next_client: Arc<AtomicUsize>,
    next_value: Arc<AtomicU64>,
    history: Arc<History>,
    /// What it has seen last, for swaps that have a chance.
    seen: BTreeMap<u64, Option<u64>>,
    random: Draw,
}

impl Client {
    fn key(&self, key: u64) -> String {
        format!("{}.{key}", self.round)
    }

    async fn step(&mut self) {
        let key = self.random.below(KEYS);
        if self.reads == Reads::Local {
            self.at = self.random.below(3) as usize;
        }
        let value = self.next_value.fetch_add(1, Ordering::Relaxed);
        let op = match self.random.below(4) {
            0 => Op::Put(value),
            1 => Op::Swap(self.seen.get(&key).copied().flatten(), value, None),
            _ => Op::Get(None),
        };
        self.run(key, op).await;
        // Others have a turn, and the history stays short enough to be checked.
        sleep(Duration::from_millis(5 + self.random.below(10))).await;
    }

    /// Makes one request until a node accepts it, or until its outcome is unknown. Returns whether there was a reply.
    async fn run(&mut self, key: u64, op: Op) -> bool {
        let name = self.key(key);
        let request = match op {
            Op::Put(value) => Request::Change(Command::Put { key: name.clone(), value }),
            Op::Swap(expected, value, _) => {
                Request::Change(Command::Swap { key: name.clone(), expected, value })
            }
            _ => Request::Get(name.clone(), self.reads),
        };
        // Nothing was sent without a connection.
        if !matches!(timeout(PATIENCE, self.peers[self.at].ready()).await, Ok(Ok(()))) {
            return self.turn_to(None);
        }
        self.history.call(self.process, &name, op);
        let reply = match (timeout(PATIENCE, self.peers[self.at].call(&request)).await, op) {
            (Ok(Ok(Response::Changed(_))), Op::Put(value)) => Op::Put(value),
            (Ok(Ok(Response::Changed(reply))), Op::Swap(expected, value, _)) => {
                Op::Swap(expected, value, Some(reply == Reply::Done))
            }
            (Ok(Ok(Response::Got(value))), _) => Op::Get(Some(value)),
            (Ok(Ok(Response::NotHere(leader))), _) => {
                self.history.take_back(self.process, &name);
                return self.turn_to(leader);
            }
            _ => {
                // It may still happen, so the client continues under another number.
                self.process = self.next_client.fetch_add(1, Ordering::Relaxed);
                return self.turn_to(None);
            }
        };
        self.history.reply(self.process, &name, reply);
        let seen = match reply {
            Op::Get(seen) => seen.flatten(),
            Op::Swap(_, value, Some(true)) | Op::Put(value) => Some(value),
            _ => return true,
        };
        self.seen.insert(key, seen);
        true
    }

    fn turn_to(&mut self, leader: Option<u64>) -> bool {
        self.at = match leader {
            Some(leader) => leader as usize,
            None => (self.at + 1) % self.peers.len(),
        };
        false
    }

    async fn read_at_last(&mut self, key: u64) {
        let begun = Instant::now();
        while !self.run(key, Op::Get(None)).await {
            assert!(begun.elapsed() < RECOVERY_MAX, "a read after the faults has no reply");
            sleep(Duration::from_millis(5)).await;
        }
    }
}
