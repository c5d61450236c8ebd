//! The three nodes of a cluster: a process on each machine, and what happens to processes, networks and disks.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Machines;
use crate::children::{SIGCONT, SIGSTOP, end_with_parent, signal};
use crate::draw::Draw;
use crate::registers::History;

/// The time after which a client gives up on a request.
pub const PATIENCE: Duration = Duration::from_millis(700);
/// The time in which a cluster must recover after a fault.
pub const RECOVERY_MAX: Duration = Duration::from_secs(60);
/// The number of operations that a round must exceed to be worth its check.
pub const OPERATIONS_LEAST: usize = 20;
/// The faults that [`Nodes`] can cause, by their names in the report.
pub const FAULTS: [&str; 9] = [
    "one killed",
    "two killed",
    "all killed",
    "one stopped",
    "one cut off",
    "one way cut",
    "leader cut off",
    "disk full",
    "disk slow",
];

/// The lines of a node's log that are said of it.
const LINES: usize = 12;

/// The program of the nodes.
pub trait Program {
    /// Returns the command for a node's next process.
    fn command(&mut self, machines: &Machines, node: usize) -> Command;
}

/// A fault for a while.
#[derive(Clone, Debug)]
pub struct Fault {
    /// One of [`FAULTS`], or of a test's own.
    pub name: &'static str,
    /// The node that the fault strikes.
    pub node: usize,
    /// The second node, for faults that strike two.
    pub other: usize,
    /// How long the fault lasts.
    pub time: Duration,
}

/// The nodes' processes, which end with this, and what has happened to them.
#[derive(Debug)]
pub struct Nodes<P> {
    /// The machines of the nodes.
    pub machines: Machines,
    /// The program of the nodes.
    pub program: P,
    /// The numbers that decide what happens.
    pub random: Draw,
    /// The recovery times of the cluster.
    pub recoveries: Vec<Duration>,
    children: [Option<Child>; 3],
    possible: Vec<&'static str>,
    /// The faults of this turn that are left.
    deck: Vec<&'static str>,
    counts: BTreeMap<&'static str, u64>,
    restarts: u64,
    /// Snapshots that each process is known to have installed, and those of all processes.
    installed_now: [u64; 3],
    installed: u64,
    done: usize,
    unknown: usize,
}

impl<P: Program> Nodes<P> {
    /// Starts the nodes. It draws from those of these faults that the machines support.
    ///
    /// # Panics
    /// If a process cannot be started.
    pub fn start(machines: Machines, program: P, seed: u64, faults: &[&'static str]) -> Nodes<P> {
        let is_possible = |name: &&str| match *name {
            "one cut off" | "one way cut" | "leader cut off" => machines.has_network(),
            "disk full" => machines.has_disks(),
            "disk slow" => machines.has_brakes(),
            _ => true,
        };
        let possible = faults.iter().copied().filter(is_possible).collect();
        let mut nodes = Nodes {
            machines,
            program,
            random: Draw::new(seed),
            recoveries: Vec::new(),
            children: [None, None, None],
            possible,
            deck: Vec::new(),
            counts: BTreeMap::new(),
            restarts: 0,
            installed_now: [0; 3],
            installed: 0,
            done: 0,
            unknown: 0,
        };
        (0..3).for_each(|node| nodes.spawn(node));
        nodes
    }

    /// Starts a node's process. Its output is written to the node's log.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn(&mut self, node: usize) {
        let log = File::options().create(true).append(true).open(self.machines.log_of(node)).expect("a file");
        let mut command = self.program.command(&self.machines, node);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file")).stderr(log);
        self.children[node] = Some(end_with_parent(&mut command).spawn().expect("a process"));
        self.installed_now[node] = 0;
    }

    /// Starts a node's process again if it has ended: by a kill, or because its disk failed.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn restart_if_ended(&mut self, node: usize) {
        let has_ended = match &mut self.children[node] {
            None => true,
            Some(child) => child.try_wait().expect("it is ours").is_some(),
        };
        if has_ended {
            self.restarts += 1;
            self.spawn(node);
        }
    }

    /// Starts all processes again that have ended.
    ///
    /// # Panics
    /// If one cannot be started.
    pub fn restart_ended(&mut self) {
        (0..3).for_each(|node| self.restart_if_ended(node));
    }

    /// Draws the next fault. Every kind is drawn once before a repetition.
    pub fn draw(&mut self) -> Fault {
        let node = self.random.below(3) as usize;
        let other = (node + 1 + self.random.below(2) as usize) % 3;
        let time = Duration::from_millis(50 + self.random.below(700));
        if self.deck.is_empty() {
            self.deck.clone_from(&self.possible);
        }
        let drawn = self.random.below(self.deck.len() as u64) as usize;
        Fault { name: self.deck.swap_remove(drawn), node, other, time }
    }

    /// Starts a fault if it is one of [`FAULTS`]. It blocks the thread while a disk is filled.
    ///
    /// # Panics
    /// If it cannot be done, although these machines can do such faults.
    pub fn strike(&mut self, fault: &Fault) {
        let Fault { name, node, other, .. } = *fault;
        match name {
            "one killed" => self.kill(node),
            "two killed" => [node, other].into_iter().for_each(|node| self.kill(node)),
            "all killed" => (0..3).for_each(|node| self.kill(node)),
            "one stopped" => self.signal(node, SIGSTOP),
            "one cut off" | "leader cut off" => {
                for other in (0..3).filter(|other| *other != node) {
                    self.machines.cut(node, other).expect("a route");
                    self.machines.cut(other, node).expect("a route");
                }
            }
            "one way cut" => {
                self.machines.cut(node, other).expect("a route");
                // Or all that it sends.
                if self.random.below(2) == 0 {
                    self.machines.cut(node, 3 - node - other).expect("a route");
                }
            }
            "disk full" => self.machines.fill(node).expect("a full disk"),
            "disk slow" => {
                if let Some(child) = &self.children[node] {
                    self.machines.brake(node, child.id()).expect("it runs");
                }
            }
            _ => {}
        }
    }

    /// Ends a fault and starts the processes again that have ended. Returns the time until the next one.
    ///
    /// # Panics
    /// If it cannot be done.
    pub fn end(&mut self, fault: &Fault) -> Duration {
        match fault.name {
            "one stopped" => self.signal(fault.node, SIGCONT),
            "disk full" => self.machines.give_space_back(fault.node),
            "disk slow" => self.machines.release(fault.node).expect("the group"),
            _ => self.machines.heal(),
        }
        *self.counts.entry(fault.name).or_default() += 1;
        self.restart_ended();
        Duration::from_millis(self.random.below(400))
    }

    /// Ends all faults, except that ended processes stay ended.
    ///
    /// # Panics
    /// If it cannot be done.
    pub fn heal(&mut self) {
        self.machines.heal();
        for node in 0..3 {
            self.signal(node, SIGCONT);
            self.machines.give_space_back(node);
            self.machines.release(node).expect("the group");
        }
    }

    /// Notes the number of snapshots that a node's process has installed so far.
    pub fn note_snapshots(&mut self, node: usize, installed: u64) {
        self.installed += installed.saturating_sub(self.installed_now[node]);
        self.installed_now[node] = installed;
    }

    /// Notes the operations of a round's clients.
    pub fn note_operations(&mut self, history: &History) {
        let (done, unknown) = history.counts();
        self.done += done;
        self.unknown += unknown;
    }

    /// Returns what has happened, in words.
    pub fn report(&self) -> String {
        let mut text = format!("{} operations, {} without a reply; faults:", self.done, self.unknown);
        for (name, count) in &self.counts {
            let _ = write!(text, " {name} {count},");
        }
        let mut recoveries = self.recoveries.clone();
        recoveries.sort();
        let middle = recoveries.get(recoveries.len() / 2).copied().unwrap_or_default();
        let last = recoveries.last().copied().unwrap_or_default();
        let _ = write!(
            text,
            " nodes started again {}; snapshots installed {}; recovered after {middle:.1?} (median), {last:.1?} (longest)",
            self.restarts, self.installed
        );
        text
    }

    /// Checks that each kind of fault that is possible here has happened. Returns whether the faults were enough for that.
    ///
    /// # Panics
    /// If a kind of fault has not happened after enough faults, or faults or operations were too few for the rounds.
    pub fn check_that_faults_happened(&self, rounds: u64) -> bool {
        let faults: u64 = self.counts.values().sum();
        assert!(faults >= rounds, "{faults} faults in {rounds} rounds");
        let least = rounds * OPERATIONS_LEAST as u64;
        assert!(self.done as u64 > least, "{} operations in {rounds} rounds", self.done);
        let is_enough = faults >= self.possible.len() as u64;
        for name in self.possible.iter().filter(|_| is_enough) {
            assert!(self.counts.contains_key(name), "{name}: never, in {faults} faults");
        }
        is_enough
    }
}

impl<P> Nodes<P> {
    /// Kills a node's process, if it runs.
    ///
    /// # Panics
    /// If the process cannot be killed.
    pub fn kill(&mut self, node: usize) {
        if let Some(mut child) = self.children[node].take() {
            child.kill().expect("it is ours");
            child.wait().expect("it is ours");
        }
    }

    fn signal(&self, node: usize, number: i32) {
        if let Some(child) = &self.children[node] {
            signal(child, number).expect("it is ours");
        }
    }

    /// Returns all that a node has written.
    pub fn log(&self, node: usize) -> String {
        String::from_utf8_lossy(&std::fs::read(self.machines.log_of(node)).unwrap_or_default()).into_owned()
    }

    /// Returns the last lines that the nodes have written.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for node in 0..3 {
            let log = self.log(node);
            let lines: Vec<&str> = log.lines().collect();
            let from = lines.len().saturating_sub(LINES);
            let _ = write!(text, "\nnode {node}:\n{}", lines[from..].join("\n"));
        }
        text
    }

    /// Checks that the cluster has time left for `what`.
    ///
    /// # Errors
    /// No time is left: `what`, and the nodes' last lines.
    pub fn has_time(&self, begun: Instant, what: &str) -> Result<(), String> {
        if begun.elapsed() < RECOVERY_MAX { Ok(()) } else { Err(format!("{what}: {}", self.logs())) }
    }
}

impl<P> Drop for Nodes<P> {
    fn drop(&mut self) {
        (0..3).for_each(|node| self.kill(node));
    }
}
