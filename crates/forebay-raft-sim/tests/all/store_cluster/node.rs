//! One Raft node of a cluster: its state machine, its snapshots on their way, and how it is.

use std::io;
use std::sync::Arc;

use forebay::{Config, Engine};
use forebay_kv::{Batch, Keyspace, Options};
use forebay_raft::{Apply, LogOptions, RaftLog, RaftSnapshot, RaftStore, SnapshotReader, SnapshotReceiver};
use forebay_raft_sim::{SimNetwork, Transfer, serve};
use forebay_sim as sim;
use forebay_sim::net::{self, Address, Socket};
use futures::StreamExt;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender};
use openraft::alias::{EntryOf, LogIdOf};
use openraft::async_runtime::WatchReceiver;
use openraft::entry::RaftEntry;
use openraft::{EntryPayload, Raft, ServerState};
use serde::{Deserialize, Serialize};

use crate::common::{Append, Defect, LISTS, Lists, MS, RAFT, SECOND, Types, initialize, serve_clients};
use crate::store_cluster::ledger::{Cluster, WatchedLog, note};
use crate::store_cluster::trouble::Trouble;

/// The port that says how a node is.
const STATUS: u32 = 3;

type Store = RaftStore<Types, Machine>;

/// The state machine: the lists, the last text of each, and the number of entries.
struct Machine {
    node: u32,
    cluster: Cluster,
    /// Has the store flushed.
    flushes: UnboundedSender<()>,
}

async fn elements(lists: &Keyspace, list: u64) -> io::Result<Vec<u64>> {
    let found = lists.get(&list.to_be_bytes()).await.map_err(io::Error::other)?;
    found.map_or(Ok(Vec::new()), |bytes| serde_json::from_slice(&bytes).map_err(io::Error::other))
}

async fn count_of(keyspaces: &[Keyspace]) -> io::Result<u64> {
    let found = keyspaces[1].get("entries").await.map_err(io::Error::other)?;
    found.map_or(Ok(0), |bytes| serde_json::from_slice(&bytes).map_err(io::Error::other))
}

impl Machine {
    /// Checks that the entry is the one that other nodes have applied at its index, and that the state has those before it.
    fn check(&self, id: LogIdOf<Types>, element: Option<u64>, count: u64) {
        let mut ledger = self.cluster.ledger();
        let next = ledger.next.entry(self.node).or_default();
        if id.index() > *next {
            // A snapshot had those in between.
            note(&self.cluster.events.installed);
        }
        *next = (*next).max(id.index() + 1);
        let known = *ledger.applied.entry(id.index()).or_insert((id, element));
        drop(ledger);
        let node = self.node;
        if known != (id, element) {
            let (other, others) = known;
            self.cluster.fail(format!(
                "node {node} applies {id} with {element:?}, and another node had applied {other} with {others:?}"
            ));
        }
        if count != id.index() {
            self.cluster.fail(format!("node {node} applies {id} to a state of {count} entries"));
        }
    }
}

impl Apply<Types> for Machine {
    fn keyspaces(&self) -> Vec<String> {
        vec!["lists".into(), "counts".into(), "texts".into()]
    }

    async fn apply(
        &self,
        entry: EntryOf<Types>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<()> {
        let count = count_of(keyspaces).await?;
        let element = match &entry.payload {
            EntryPayload::Normal(append) => Some(append.element),
            _ => None,
        };
        self.check(entry.log_id(), element, count);
        if self.cluster.kind == Trouble::Flushes && sim::random(12) == 0 {
            let _ = self.flushes.unbounded_send(());
        }
        batch.put(&keyspaces[1], "entries", serde_json::to_vec(&(count + 1))?);
        if let EntryPayload::Normal(Append { list, element, text }) = entry.payload {
            let mut elements = elements(&keyspaces[0], list).await?;
            // A request may arrive twice.
            if !elements.contains(&element) {
                elements.push(element);
            }
            batch.put(&keyspaces[0], list.to_be_bytes(), serde_json::to_vec(&elements)?);
            batch.put(&keyspaces[2], (element % 7).to_be_bytes(), text);
        }
        Ok(())
    }
}

#[derive(Clone)]
struct State {
    engine: Engine,
    store: Store,
    cluster: Cluster,
}

impl Lists for State {
    async fn read(&self, list: u64) -> Option<Vec<u64>> {
        // An install may close the keyspaces meanwhile.
        elements(&self.store.keyspaces()[0], list).await.ok()
    }
}

impl Transfer for State {
    type Snapshot = RaftSnapshot;
    type Sender = SnapshotReader;
    type Receiver = SnapshotReceiver;

    fn send(&self, snapshot: RaftSnapshot) -> SnapshotReader {
        snapshot.reader()
    }

    async fn next(&self, sender: &mut SnapshotReader) -> io::Result<Option<Vec<u8>>> {
        let part = sender.next().await?;
        part.map(|part| rmp_serde::to_vec_named(&part).map_err(io::Error::other)).transpose()
    }

    async fn receive(&self) -> io::Result<SnapshotReceiver> {
        Ok(self.store.receive_snapshot().await?)
    }

    async fn write(&self, receiver: &mut SnapshotReceiver, part: Vec<u8>) -> io::Result<()> {
        let part = rmp_serde::from_slice(&part).map_err(io::Error::other)?;
        Ok(receiver.write(&part).await?)
    }

    async fn finish(&self, receiver: SnapshotReceiver) -> io::Result<RaftSnapshot> {
        // Before it is verified: power cuts watch for the install from here on.
        self.cluster.arrived(&self.engine);
        Ok(receiver.finish().await?)
    }
}

/// One Raft node; it runs until its power is cut.
pub(crate) async fn run_node(number: u32, cluster: Cluster) {
    if let Err(why) = open_and_serve(number, &cluster).await {
        cluster.fail(format!("node {number}: {why}"));
    }
}

async fn open_and_serve(number: u32, cluster: &Cluster) -> Result<(), String> {
    let text = |error: forebay_raft::Error| error.to_string();
    let engine = Engine::start(Config::new().shards(1).arena_bytes_max(64 << 20))
        .map_err(|error| error.to_string())?;
    let options = LogOptions::new()
        .segment_bytes(64 << 10)
        .tail_bytes_max(4 << 10)
        .wal(forebay_wal::Options::new().log_id(u128::from(number)));
    let log = RaftLog::open(&engine, "/disk/log", options).await.map_err(text)?;
    let log = WatchedLog::new(log, number, cluster.clone()).await?;
    let options = Options::new()
        .memory_bytes_max(Options::MEMORY_BYTES_MIN)
        .memtable_bytes(16 << 10)
        .log_segment_bytes(64 << 10)
        .clock(|| 1_000_000);
    let (flushes, due) = futures::channel::mpsc::unbounded();
    let machine = Machine { node: number, cluster: cluster.clone(), flushes };
    let store = RaftStore::open(&engine, "/disk/state", options, machine).await.map_err(text)?;
    drop(sim::spawn(flush(store.clone(), cluster.clone(), due)));
    let config = openraft::Config {
        heartbeat_interval: 100,
        election_timeout_min: 300,
        election_timeout_max: 600,
        install_snapshot_timeout: 2_000,
        snapshot_policy: cluster.kind.snapshots(),
        max_in_snapshot_log_to_keep: 1,
        replication_lag_threshold: 6,
        ..forebay_raft::config()
    };
    let config = match cluster.defect {
        Defect::RestoresLeader => openraft::Config { enable_leader_restore: Some(true), ..config },
        _ => config,
    };
    let config = Arc::new(config.validate().map_err(|error| error.to_string())?);
    let state = State { engine: engine.clone(), store: store.clone(), cluster: cluster.clone() };
    let network = SimNetwork::<Types, _>::new(|&node, ()| Address::new(node as u32, RAFT), state.clone());
    let raft = Raft::new(u64::from(number), config, network, log, store.clone())
        .await
        .map_err(|error| error.to_string())?;
    drop(sim::spawn(serve(raft.clone(), RAFT, state.clone())));
    drop(sim::spawn(serve_status(raft.clone(), store)));
    initialize(&raft, number, cluster.nodes).await;
    serve_clients(raft, state, cluster.defect).await;
    Ok(())
}

/// Flushes the store, while entries are applied; after some flushes the node loses its power.
async fn flush(store: Store, cluster: Cluster, mut due: UnboundedReceiver<()>) {
    while due.next().await.is_some() {
        let flushed = store.flush().await;
        if flushed.is_ok() && cluster.ledger().is_trouble && sim::random(2) == 0 {
            sim::current_node().power_cut().await;
        }
    }
}

/// How a node is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    fatal: Option<String>,
    /// The term in which it leads.
    leads: Option<u64>,
    applied: Option<u64>,
    pub(crate) purged: Option<u64>,
    /// The number of entries that the state has, and its lists.
    state: Result<(u64, Vec<Vec<u64>>), String>,
}

async fn state_of(store: &Store) -> io::Result<(u64, Vec<Vec<u64>>)> {
    let (keyspaces, mut lists) = (store.keyspaces(), Vec::new());
    for list in 0..LISTS {
        lists.push(elements(&keyspaces[0], list).await?);
    }
    Ok((count_of(&keyspaces).await?, lists))
}

async fn serve_status(raft: Raft<Types, Store>, store: Store) {
    let Ok(mut socket) = Socket::bind(STATUS) else { return };
    while let Ok(message) = socket.recv().await {
        let metrics = raft.metrics().borrow_watched().clone();
        let status = Status {
            fatal: metrics.running_state.err().map(|fatal| fatal.to_string()),
            leads: (metrics.state == ServerState::Leader).then_some(metrics.current_term),
            applied: metrics.last_applied.map(|id| id.index()),
            purged: metrics.purged.map(|id| id.index()),
            state: state_of(&store).await.map_err(|error| error.to_string()),
        };
        message.reply(serde_json::to_vec(&status).unwrap());
    }
}

async fn status_of(node: u32) -> Option<Status> {
    let reply = net::call(Address::new(node, STATUS), Vec::new(), SECOND).await;
    reply.ok().map(|bytes| serde_json::from_slice(&bytes).unwrap())
}

/// Returns the one of some nodes that leads in the highest term.
pub(crate) async fn leader(nodes: &[u32]) -> Option<u32> {
    let mut found = None;
    for &node in nodes {
        // A node without power gives no reply.
        let leads = if sim::node(node).is_on() {
            status_of(node).await.and_then(|status| status.leads)
        } else {
            None
        };
        found = found.max(leads.map(|term| (term, node)));
    }
    found.map(|(_, node)| node)
}

/// Returns once all nodes have the same state.
pub(crate) async fn agree(cluster: &Cluster) -> Result<Vec<Status>, String> {
    let began = sim::world_time();
    loop {
        let mut all = Vec::new();
        for node in 1..=cluster.nodes {
            all.push(status_of(node).await);
        }
        let whole: Vec<Status> = all.iter().flatten().cloned().collect();
        let is_same = whole.windows(2).all(|two| two[0].applied == two[1].applied);
        if let Some(fatal) = whole.iter().find_map(|status| status.fatal.clone()) {
            return Err(format!("a node has stopped: {fatal}"));
        }
        if whole.len() == cluster.nodes as usize && is_same && whole.iter().all(|status| status.state.is_ok())
        {
            let (first, applied) = (whole[0].state.clone(), whole[0].applied);
            let count = first.as_ref().map_or(0, |(count, _)| *count);
            if whole.iter().any(|status| status.state != first) || Some(count) != applied.map(|at| at + 1) {
                return Err(format!("the nodes' states differ: {whole:?}"));
            }
            return Ok(whole);
        }
        if sim::world_time() - began > 30 * SECOND {
            return Err(format!("the nodes do not agree 30 s after the faults: {all:?}"));
        }
        let _ = sim::sleep(50 * MS).await;
    }
}
