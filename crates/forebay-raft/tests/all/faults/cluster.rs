//! Three nodes, what happens to them, and the clients.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_test::draw::Draw;
use forebay_test::machines::Machines;
use forebay_test::registers::{History, Op};
use tokio::time::{sleep, timeout};

use crate::faults::node::{NODE, RESTORE};
use crate::faults::wire::{Command, Peer, Reads, Reply, Request, Response, Status};

/// The time after which a client gives a request up.
const PATIENCE: Duration = Duration::from_millis(700);
/// The time in which a cluster without a fault must be there again.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
const KEYS: u64 = 6;

/// The faults, by what is counted.
const FAULTS: [&str; 8] = [
    "one killed",
    "two killed",
    "all killed",
    "one stopped",
    "one cut off",
    "one way cut",
    "leader cut off",
    "disk full",
];

/// How the nodes work: as they should, or wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Sound,
    /// Each serves reads from whatever it has.
    LocalReads,
    /// A leader that starts again leads without an election, openraft's default.
    RestoredLeaders,
}

pub(crate) struct Cluster {
    machines: Arc<Machines>,
    nodes: Vec<Option<Child>>,
    way: Way,
    random: Draw,
    next_client: Arc<AtomicUsize>,
    next_value: Arc<AtomicU64>,
    counts: BTreeMap<&'static str, u64>,
    recoveries: Vec<Duration>,
    done: usize,
    unknown: usize,
    /// Snapshots that each process is known to have installed, and those of all processes.
    installed_now: [u64; 3],
    installed: u64,
    restarts: u64,
}

impl Cluster {
    pub(crate) fn start(machines: Machines, seed: u64, way: Way) -> Cluster {
        let mut cluster = Cluster {
            machines: Arc::new(machines),
            nodes: vec![None, None, None],
            way,
            random: Draw::new(seed),
            next_client: Arc::default(),
            next_value: Arc::new(AtomicU64::new(1)),
            counts: BTreeMap::new(),
            recoveries: Vec::new(),
            done: 0,
            unknown: 0,
            installed_now: [0; 3],
            installed: 0,
            restarts: 0,
        };
        (0..3).for_each(|node| cluster.spawn(node));
        cluster
    }

    fn spawn(&mut self, node: usize) {
        let log = File::options().create(true).append(true).open(self.machines.log_of(node)).expect("a file");
        let value =
            format!("{},{},{}", node, self.machines.address(node, 0), self.machines.dir_of(node).display());
        let program = std::env::current_exe().expect("this program");
        let mut command = self.machines.command(node, &program);
        command
            .args(["faults::node_process", "--exact", "--include-ignored", "--nocapture"])
            .env(NODE, value);
        if self.way == Way::RestoredLeaders {
            command.env(RESTORE, "1");
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file")).stderr(log);
        self.nodes[node] = Some(command.spawn().expect("a process"));
        self.installed_now[node] = 0;
    }

    fn kill(&mut self, node: usize) {
        if let Some(mut child) = self.nodes[node].take() {
            child.kill().expect("it is ours");
            child.wait().expect("it is ours");
        }
    }

    fn signal(&self, node: usize, signal: i32) {
        if let Some(child) = &self.nodes[node] {
            // SAFETY: kill(2) of a child that was not waited for: the number is its own.
            unsafe { libc::kill(child.id() as i32, signal) };
        }
    }

    /// Starts nodes again that have ended, by a kill or by a failure of their disk.
    fn restart_ended(&mut self) {
        for node in 0..3 {
            let has_ended = match &mut self.nodes[node] {
                None => true,
                Some(child) => child.try_wait().expect("it is ours").is_some(),
            };
            if has_ended {
                self.restarts += 1;
                self.spawn(node);
            }
        }
    }

    async fn count_snapshots(&mut self) {
        for node in 0..3 {
            if let Some(status) = self.status(node).await {
                self.installed += status.installed - self.installed_now[node];
                self.installed_now[node] = status.installed;
            }
        }
    }

    async fn status(&self, node: usize) -> Option<Status> {
        let mut peer = Peer::new(self.machines.address(node, 0));
        match timeout(PATIENCE, peer.call(&Request::Status)).await {
            Ok(Ok(Response::Status(status))) => Some(*status),
            _ => None,
        }
    }

    /// Makes the three nodes a cluster.
    pub(crate) async fn begin(&mut self) {
        let members: BTreeMap<u64, String> =
            (0..3).map(|node| (node as u64, self.machines.address(node, 0))).collect();
        let begun = Instant::now();
        loop {
            let mut peer = Peer::new(self.machines.address(0, 0));
            let begin = Request::Initialize(members.clone());
            if matches!(timeout(PATIENCE, peer.call(&begin)).await, Ok(Ok(Response::Ok))) {
                break;
            }
            assert!(begun.elapsed() < RECOVERY_MAX, "node 0 does not begin: {}", self.logs());
            self.restart_ended();
            sleep(Duration::from_millis(20)).await;
        }
        self.recover().await;
    }

    /// Ends all faults, and waits until a change comes through.
    async fn recover(&mut self) {
        self.machines.heal();
        for node in 0..3 {
            self.signal(node, libc::SIGCONT);
            self.machines.give_space_back(node);
        }
        let begun = Instant::now();
        let mut node = 0;
        loop {
            self.restart_ended();
            let mut peer = Peer::new(self.machines.address(node, 0));
            let command = Command::Put { key: "recovery".into(), value: 0 };
            let leader = match timeout(PATIENCE, peer.call(&Request::Change(command))).await {
                Ok(Ok(Response::Changed(_))) => break,
                Ok(Ok(Response::NotHere(leader))) => leader,
                _ => None,
            };
            assert!(begun.elapsed() < RECOVERY_MAX, "no leader after {:?}: {}", begun.elapsed(), self.logs());
            node = leader.map_or((node + 1) % 3, |leader| leader as usize);
            sleep(Duration::from_millis(5)).await;
        }
        self.recoveries.push(begun.elapsed());
        self.count_snapshots().await;
    }

    /// Runs clients on keys of their own beside faults, ends the faults, and reads all keys at last.
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
        while begun.elapsed() < least {
            self.fault().await;
        }
        self.recover().await;
        is_over.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.expect("a client");
        }
        let mut last = self.client(round, 0, history.clone());
        for key in 0..KEYS {
            last.read_at_last(key).await;
        }
        let (done, unknown) = history.counts();
        self.done += done;
        self.unknown += unknown;
        drop(last);
        Arc::into_inner(history).expect("no client is left")
    }

    fn client(&mut self, round: u64, number: usize, history: Arc<History>) -> Client {
        Client {
            addresses: (0..3).map(|node| self.machines.address(node, 0)).collect(),
            peers: (0..3).map(|node| Peer::new(self.machines.address(node, 0))).collect(),
            at: number % 3,
            round,
            reads: if self.way == Way::LocalReads { Reads::Local } else { Reads::Linearizable },
            process: self.next_client.fetch_add(1, Ordering::Relaxed),
            next_client: self.next_client.clone(),
            next_value: self.next_value.clone(),
            history,
            seen: BTreeMap::new(),
            random: Draw::new(self.random.below(u64::MAX)),
        }
    }

    /// Lets something happen, for a while.
    async fn fault(&mut self) {
        let node = self.random.below(3) as usize;
        let other = (node + 1 + self.random.below(2) as usize) % 3;
        let third = 3 - node - other;
        let long = Duration::from_millis(50 + self.random.below(700));
        let name = match self.way {
            Way::RestoredLeaders => "all killed",
            _ => FAULTS[self.random.below(FAULTS.len() as u64) as usize],
        };
        match name {
            "one killed" => self.kill(node),
            "two killed" => [node, other].into_iter().for_each(|node| self.kill(node)),
            "all killed" => (0..3).for_each(|node| self.kill(node)),
            "one stopped" => self.signal(node, libc::SIGSTOP),
            "disk full" if self.machines.has_disks() => {
                let machines = self.machines.clone();
                tokio::task::spawn_blocking(move || machines.fill(node))
                    .await
                    .expect("no panic")
                    .expect("a full disk");
            }
            "one cut off" if self.machines.has_network() => self.cut_off(node),
            "one way cut" if self.machines.has_network() => {
                self.machines.cut(node, other).expect("a route");
                // Or all that it sends.
                if self.random.below(2) == 0 {
                    self.machines.cut(node, third).expect("a route");
                }
            }
            "leader cut off" if self.machines.has_network() => {
                let mut leader = node;
                for at in 0..3 {
                    if let Some(found) = self.status(at).await.and_then(|status| status.leader) {
                        leader = found as usize;
                    }
                }
                self.cut_off(leader);
            }
            _ => return,
        }
        *self.counts.entry(name).or_default() += 1;
        sleep(long).await;
        match name {
            "one stopped" => self.signal(node, libc::SIGCONT),
            "disk full" => self.machines.give_space_back(node),
            _ => self.machines.heal(),
        }
        self.restart_ended();
        sleep(Duration::from_millis(self.random.below(400))).await;
    }

    fn cut_off(&self, node: usize) {
        for other in (0..3).filter(|other| *other != node) {
            self.machines.cut(node, other).expect("a route");
            self.machines.cut(other, node).expect("a route");
        }
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
            assert!(begun.elapsed() < RECOVERY_MAX, "the nodes have {all:?}: {}", self.logs());
            self.restart_ended();
            sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) fn report(&self) -> String {
        let mut recoveries = self.recoveries.clone();
        recoveries.sort();
        let mut text = format!("{} operations, {} without a reply; faults:", self.done, self.unknown);
        for (name, count) in &self.counts {
            let _ = write!(text, " {name} {count},");
        }
        let (middle, last) = (recoveries[recoveries.len() / 2], recoveries[recoveries.len() - 1]);
        let _ = write!(
            text,
            " nodes started again {}; snapshots installed {}; recovered after {middle:.1?} (median), {last:.1?} (longest)",
            self.restarts, self.installed
        );
        text
    }

    pub(crate) fn check_that_faults_happened(&self, rounds: u64) {
        let faults: u64 = self.counts.values().sum();
        assert!(faults >= rounds, "{faults} faults in {rounds} rounds");
        assert!(self.done as u64 > rounds * 20, "{} operations in {rounds} rounds", self.done);
    }

    /// Returns the last lines that the nodes have written.
    fn logs(&self) -> String {
        let mut text = String::new();
        for node in 0..3 {
            let log = std::fs::read(self.machines.log_of(node)).unwrap_or_default();
            let log = String::from_utf8_lossy(&log[log.len().saturating_sub(1500)..]).into_owned();
            let _ = write!(text, "\nnode {node}: {log}");
        }
        text
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..3).for_each(|node| self.kill(node));
    }
}

/// One client: a request at a time, on keys of its round.
struct Client {
    addresses: Vec<String>,
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

    /// Makes one request until a node takes it, or until nothing is known of it. Returns whether there was a reply.
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
                // It may happen yet, so the client goes on under another number.
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
            None => (self.at + 1) % self.addresses.len(),
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
