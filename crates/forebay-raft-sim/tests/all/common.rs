//! A Raft cluster of lists, its clients, and their history. Log and state of a node are in [`memory`], or the test's own.
#![allow(dead_code, reason = "each test crate uses a part of it")]

pub(crate) mod memory;

use std::cell::{Cell, RefCell};
use std::fmt::{self, Debug};
use std::rc::Rc;
use std::time::Duration;

use forebay_raft_sim::SimRuntime;
use forebay_sim as sim;
use forebay_sim::net::{self, Address, Socket};
use forebay_test::history::{Fate, Level, Operation, Transaction, check};
use openraft::storage::RaftStateMachine;
use openraft::{Raft, ReadPolicy};
use serde::{Deserialize, Serialize};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const LISTS: u64 = 2;
/// The port of requests between Raft nodes, and that of clients.
pub(crate) const RAFT: u32 = 1;
const CLIENT: u32 = 2;

/// Appends an element, which is never used twice, to a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Append {
    pub(crate) list: u64,
    pub(crate) element: u64,
    /// Makes the entry longer.
    pub(crate) text: String,
}

impl fmt::Display for Append {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(self, f)
    }
}

openraft::declare_raft_types!(
    pub(crate) Types:
        D = Append,
        R = (),
        Node = (),
        AsyncRuntime = SimRuntime,
);

/// A defect of the cluster, which the check must find.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Defect {
    None,
    /// A node forgets its vote and log when it loses its power.
    Forgets,
    /// A read does not ask the others whether this node still leads.
    ReadsLocally,
    /// A write is acknowledged when it is proposed.
    AcknowledgesEarly,
    /// A leader that was started again leads without an election.
    RestoresLeader,
}

/// A node's lists; `None`: they cannot be read now.
pub(crate) trait Lists: Clone + Send + 'static {
    fn read(&self, list: u64) -> impl Future<Output = Option<Vec<u64>>> + Send;
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Request {
    Append(Append),
    Read(u64),
}

/// `None`: this node does not know.
type Reply = Option<Vec<u64>>;

/// Makes the first node the leader of a new cluster.
pub(crate) async fn initialize<SM: RaftStateMachine<Types>>(raft: &Raft<Types, SM>, number: u32, nodes: u32) {
    if number == 1 && !raft.is_initialized().await.unwrap() {
        let members =
            (1..=u64::from(nodes)).map(|node| (node, ())).collect::<std::collections::BTreeMap<_, _>>();
        // Refused when another node has been faster.
        let _ = raft.initialize(members).await;
    }
}

/// Replies to clients, until the node's power is cut.
pub(crate) async fn serve_clients<SM: RaftStateMachine<Types>>(
    raft: Raft<Types, SM>,
    lists: impl Lists,
    defect: Defect,
) {
    let mut socket = Socket::bind(CLIENT).unwrap();
    while let Ok(message) = socket.recv().await {
        let (raft, lists) = (raft.clone(), lists.clone());
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
                    if leads { lists.read(list).await } else { None }
                }
            };
            message.reply(serde_json::to_vec(&reply).unwrap());
        }));
    }
}

pub(crate) type History = Rc<RefCell<Vec<Transaction>>>;

fn now_ns() -> u64 {
    sim::world_time().as_nanos() as u64
}

/// The requests of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) operations: u64,
    /// The longest pause after an operation, in microseconds.
    pub(crate) pause_us_max: u64,
    /// Appends have texts below this length in bytes.
    pub(crate) text_bytes: u64,
}

/// Calls nodes until one replies, for a read; a write is sent once, because its outcome is unknown otherwise.
pub(crate) async fn client(number: u32, nodes: u32, work: Work, history: History) {
    let mut to = 1 + number % nodes;
    for at in 0..work.operations {
        let list = sim::random(LISTS);
        let element = u64::from(number) * 1_000 + at;
        let request = if sim::random(2) == 0 {
            Request::Read(list)
        } else {
            let text = "x".repeat(sim::random(work.text_bytes) as usize);
            Request::Append(Append { list, element, text })
        };
        let began = now_ns();
        let bytes = serde_json::to_vec(&request).unwrap();
        let reply = net::call(Address::new(to, CLIENT), bytes, 300 * MS).await;
        let reply: Reply = reply.ok().and_then(|bytes| serde_json::from_slice(&bytes).unwrap());
        if reply.is_none() {
            to = 1 + to % nodes;
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
        sim::sleep(Duration::from_micros(sim::random(work.pause_us_max))).await.unwrap();
    }
}

/// Returns when every list can be read, which needs a leader that knows all that was committed.
pub(crate) async fn recovers(nodes: u32, history: &History) -> Result<(), String> {
    for list in 0..LISTS {
        let began = sim::world_time();
        let mut to = 1;
        loop {
            if sim::world_time() - began > 30 * SECOND {
                let off: Vec<u32> = (1..=nodes).filter(|&node| !sim::node(node).is_on()).collect();
                let now = sim::world_time();
                return Err(format!("no leader for 30 s, at {now:?}; without power: {off:?}"));
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
            to = 1 + to % nodes;
        }
    }
    Ok(())
}

/// Counts over all worlds of a test.
#[derive(Debug, Default)]
pub(crate) struct WorldCounts {
    pub(crate) acknowledged: Cell<u32>,
    pub(crate) reads: Cell<u32>,
    pub(crate) unknown: Cell<u32>,
    pub(crate) power_cuts: Cell<u64>,
    pub(crate) lost: Cell<u64>,
}

/// Counts the transactions of a world, and checks that they are linearizable.
pub(crate) fn judge(world: &sim::World, history: &History, seen: &WorldCounts) -> Result<(), String> {
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
