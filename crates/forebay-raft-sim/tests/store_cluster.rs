//! Shows: a cluster on Forebay's own log and store is linearizable, its nodes apply the same entries and end with the same state, and it
//! has a leader again soon after the faults end. How: simulated worlds with a disk and an engine for each node; links are cut, messages
//! lost, doubled and late, nodes lose their power with all that was not synced, clocks drift, and snapshots are sent meanwhile.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use common::{
    Append, Defect, History, Lists, MS, RAFT, SECOND, Seen, Types, Work, client, initialize, judge, recovers,
    serve_clients,
};
use forebay::sim::net::{self, Address, Conditions, Socket};
use forebay::sim::{self, Fault, Rule, World};
use forebay::{Config, Engine};
use forebay_kv::{Batch, Keyspace, Options};
use forebay_raft::{Apply, LogOptions, RaftLog, RaftSnapshot, RaftStore, SnapshotReader, SnapshotReceiver};
use forebay_raft_sim::{SimNetwork, Transfer, serve};
use forebay_test::worlds::{self, Draw};
use openraft::alias::{EntryOf, LogIdOf};
use openraft::async_runtime::WatchReceiver;
use openraft::entry::RaftEntry;
use openraft::{EntryPayload, Raft, SnapshotPolicy};
use serde::{Deserialize, Serialize};

const CLIENTS: u32 = 3;
const WORK: Work = Work { operations: 20, pause_us_max: 150_000, text_bytes: 3_000 };
const US: Duration = Duration::from_micros(1);
/// Ten times as many as a world needs: a defect may have a node run in circles.
const STEPS_MAX: u64 = 3_000_000;
/// The port that says how a node is.
const STATUS: u32 = 3;

type Store = RaftStore<Types, Machine>;

/// What the test knows of all nodes.
#[derive(Debug, Default)]
struct Ledger {
    /// The log id of each entry that a node has applied, by its index, and the element that it appends.
    applied: BTreeMap<u64, (LogIdOf<Types>, Option<u64>)>,
    /// Snapshots that replaced the state of a running node.
    installs: u64,
    /// The first violation.
    broken: Option<String>,
}

#[derive(Clone)]
struct Cluster {
    nodes: u32,
    kind: Trouble,
    defect: Defect,
    ledger: Arc<Mutex<Ledger>>,
}

impl Cluster {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }

    fn fail(&self, why: String) {
        self.ledger().broken.get_or_insert(why);
    }
}

/// The state machine: the lists, the last text of each, and the number of entries.
struct Machine {
    node: u32,
    cluster: Cluster,
    /// The entry that was applied last since the start.
    last: Mutex<Option<u64>>,
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
        let before = self.last.lock().unwrap().replace(id.index());
        let mut ledger = self.cluster.ledger();
        ledger.installs += u64::from(before.is_some_and(|before| before + 1 != id.index()));
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
    store: Store,
    kind: Trouble,
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

    fn finish(&self, receiver: SnapshotReceiver) -> io::Result<RaftSnapshot> {
        let snapshot = receiver.finish()?;
        if self.kind != Trouble::Links && sim::random(3) == 0 {
            // In the middle of the install, which follows.
            sim::current_node().power_cut_at_operation(1 + sim::random(80));
        }
        Ok(snapshot)
    }
}

/// One Raft node; it runs until its power goes.
async fn run_node(number: u32, cluster: Cluster) {
    if let Err(why) = open_and_serve(number, &cluster).await {
        cluster.fail(format!("node {number}: {why}"));
    }
}

async fn open_and_serve(number: u32, cluster: &Cluster) -> Result<(), String> {
    let text = |error: forebay_raft::Error| error.to_string();
    let engine = Engine::start(Config::default().shards(1).arena_bytes_max(64 << 20))
        .map_err(|error| error.to_string())?;
    let options = LogOptions::new()
        .segment_bytes(64 << 10)
        .tail_bytes_max(4 << 10)
        .wal(forebay_wal::Options::new().log_id(u128::from(number)));
    let log = RaftLog::open(&engine, "/disk/log", options).await.map_err(text)?;
    let options = Options::new()
        .memory(Options::MEMORY_MIN)
        .memtable_bytes(16 << 10)
        .log_segment_bytes(64 << 10)
        .clock(|| 1_000_000);
    let machine = Machine { node: number, cluster: cluster.clone(), last: Mutex::default() };
    let store = RaftStore::open(&engine, "/disk/state", options, machine).await.map_err(text)?;
    let config = openraft::Config {
        heartbeat_interval: 100,
        election_timeout_min: 300,
        election_timeout_max: 600,
        install_snapshot_timeout: 2_000,
        // Snapshots and purges happen in every world.
        snapshot_policy: SnapshotPolicy::LogsSinceLast(6),
        max_in_snapshot_log_to_keep: 1,
        replication_lag_threshold: 6,
        ..forebay_raft::config()
    };
    let config = match cluster.defect {
        Defect::RestoresLeader => openraft::Config { enable_leader_restore: Some(true), ..config },
        _ => config,
    };
    let config = Arc::new(config.validate().map_err(|error| error.to_string())?);
    let state = State { store: store.clone(), kind: cluster.kind };
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

/// How a node is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Status {
    fatal: Option<String>,
    applied: Option<u64>,
    purged: Option<u64>,
    /// The number of entries that the state has, and its lists.
    state: Result<(u64, Vec<Vec<u64>>), String>,
}

async fn state_of(store: &Store) -> io::Result<(u64, Vec<Vec<u64>>)> {
    let (keyspaces, mut lists) = (store.keyspaces(), Vec::new());
    for list in 0..common::LISTS {
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
            applied: metrics.last_applied.map(|id| id.index()),
            purged: metrics.purged.map(|id| id.index()),
            state: state_of(&store).await.map_err(|error| error.to_string()),
        };
        message.reply(serde_json::to_vec(&status).unwrap());
    }
}

/// Returns once all nodes have the same state.
async fn agree(cluster: &Cluster) -> Result<Vec<Status>, String> {
    let began = sim::world_time();
    loop {
        let mut all = Vec::new();
        for node in 1..=cluster.nodes {
            let reply = net::call(Address::new(node, STATUS), Vec::new(), SECOND).await;
            all.push(reply.ok().map(|bytes| serde_json::from_slice::<Status>(&bytes).unwrap()));
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

/// What happens to the nodes of a world.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    /// Links are cut, one way or both.
    Links,
    /// Nodes lose their power, and clocks drift.
    Power,
    /// Both.
    All,
}

async fn pause(us_max: u64) {
    let _ = sim::sleep(Duration::from_micros(sim::random(us_max))).await;
}

fn some_node(cluster: &Cluster) -> u32 {
    1 + sim::random(u64::from(cluster.nodes)) as u32
}

fn cut_links(cluster: &Cluster) {
    let node = some_node(cluster);
    let others: Vec<u32> = (1..=cluster.nodes).filter(|&other| other != node).collect();
    match sim::random(3) {
        0 => net::cut(node, others[sim::random(others.len() as u64) as usize]),
        // It sends and hears nothing, or only hears.
        1 => others.iter().for_each(|&other| net::cut(node, other)),
        _ => net::partition(&[&[node], &others]),
    }
}

/// Starts the nodes that have no power.
fn start_all(cluster: &Cluster) {
    for node in (1..=cluster.nodes).filter(|&node| !sim::node(node).is_on()) {
        sim::node(node).power_on();
        drop(sim::node(node).spawn(run_node(node, cluster.clone())));
    }
}

/// Cuts the power of one, two or all nodes, and starts them again.
async fn cut_power(cluster: &Cluster) {
    let (first, nodes) = (some_node(cluster), cluster.nodes);
    let count = [1, 1, 2, nodes][sim::random(4) as usize];
    let off: Vec<u32> = (0..count).map(|at| 1 + (first - 1 + at) % nodes).collect();
    if sim::random(2) == 0 {
        // In the middle of whatever its disk does.
        off.iter().for_each(|&node| sim::node(node).power_cut_at_operation(1 + sim::random(60)));
        pause(300_000).await;
    }
    for &node in &off {
        sim::node(node).power_cut().await;
    }
    pause([5_000, 800_000][sim::random(2) as usize]).await;
    start_all(cluster);
    let other = sim::node(some_node(cluster));
    other.set_drift_ppm(sim::random(100_000) as i32 - 50_000);
    if sim::random(4) == 0 {
        other.advance_clock(Duration::from_micros(sim::random(400_000)));
    }
}

/// Cuts links or power, one after the other.
async fn trouble(cluster: &Cluster, kind: Trouble) {
    for _ in 0..5 {
        pause(500_000).await;
        match kind {
            Trouble::Links => cut_links(cluster),
            Trouble::Power => cut_power(cluster).await,
            Trouble::All if sim::random(2) == 0 => cut_links(cluster),
            Trouble::All => cut_power(cluster).await,
        }
        pause(700_000).await;
        if sim::random(3) != 0 {
            net::heal_all();
        }
        start_all(cluster);
    }
}

/// Counts over all worlds of a test.
#[derive(Debug, Default)]
struct Counts {
    common: Seen,
    installs: std::cell::Cell<u64>,
    elections: std::cell::Cell<u64>,
    purged: std::cell::Cell<u64>,
    steps: std::cell::Cell<u64>,
    entries: std::cell::Cell<u64>,
}

fn attempt(
    world: &mut World,
    nodes: u32,
    kind: Trouble,
    defect: Defect,
    counts: &Counts,
) -> Result<(), String> {
    *world = World::new(world.seed()).steps_max(STEPS_MAX);
    let (history, cluster) = (History::default(), Cluster { nodes, kind, defect, ledger: Arc::default() });
    let mut draw = Draw::new(world.seed());
    let run = world.run(async |_| {
        for node in 1..=nodes {
            let mut disk = worlds::disk(&mut draw);
            if draw.below(2) == 0 {
                // What is not synced yet is not synced for long.
                disk = disk.latency(80 * US, 20 * US, 5 * MS);
            }
            sim::node(node).disk(disk).map_err(|error| error.to_string())?;
            // Not the slow ones: a flush of 5 s would be longer than the limits below.
            for fault in [Fault::TornWrite, Fault::LostWrite, Fault::Reorder] {
                if draw.below(3) == 0 {
                    sim::node(node).inject(Rule::new(fault).chance_ppm(200_000));
                }
            }
            drop(sim::node(node).spawn(run_node(node, cluster.clone())));
        }
        recovers(nodes, &history).await?;
        net::set_conditions(
            [Conditions::ideal(), Conditions::lan(), Conditions::hostile()][sim::random(3) as usize],
        );
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| sim::node(10 + number).spawn_local(client(number, nodes, WORK, history.clone())))
            .collect();
        trouble(&cluster, kind).await;
        for client in clients {
            client.await.unwrap();
        }
        net::set_conditions(Conditions::lan());
        net::heal_all();
        // Those that lose their power in an install meanwhile are started again.
        let starter = sim::spawn_local({
            let cluster = cluster.clone();
            async move {
                loop {
                    start_all(&cluster);
                    pause(100_000).await;
                }
            }
        });
        recovers(nodes, &history).await?;
        let agreed = agree(&cluster).await;
        starter.abort();
        agreed
    });
    let ended = run.map_err(|failure| failure.to_string());
    if let Some(broken) = cluster.ledger().broken.take() {
        return Err(broken);
    }
    let statuses = ended??;
    let ledger = cluster.ledger();
    let elections: BTreeSet<_> = ledger.applied.values().map(|(id, _)| *id.committed_leader_id()).collect();
    let add = |to: &std::cell::Cell<u64>, count: u64| to.set(to.get() + count);
    add(&counts.installs, ledger.installs);
    add(&counts.elections, elections.len() as u64);
    add(&counts.entries, ledger.applied.len() as u64);
    add(&counts.purged, statuses.iter().filter(|status| status.purged.is_some()).count() as u64);
    add(&counts.steps, world.steps());
    judge(world, &history, &counts.common)
}

/// Runs worlds of three nodes, every fourth of five, and returns what they saw; `None` when one seed or another number of
/// them was asked for.
fn explore(kind: Trouble, seeds: u64) -> Option<Counts> {
    let counts = Counts::default();
    let attempt = |seed| {
        let nodes = if seed % 4 == 3 { 5 } else { 3 };
        attempt(&mut World::new(seed), nodes, kind, Defect::None, &counts)
    };
    let tried = sim::explore(0..seeds, attempt).unwrap_or_else(|failing| panic!("{failing}"));
    println!("{tried} worlds: {counts:?}");
    (tried == seeds).then_some(counts)
}

#[test]
fn a_cluster_survives_links_that_are_cut() {
    if let Some(counts) = explore(Trouble::Links, 10) {
        let (lost, reads) = (counts.common.lost.get(), counts.common.reads.get());
        assert!(
            counts.installs.get() > 2 && counts.elections.get() > 10 && counts.purged.get() > 10,
            "{counts:?}"
        );
        assert!(lost > 100 && reads > 100 && counts.common.acknowledged.get() > 100, "{counts:?}");
    }
}

#[test]
fn a_cluster_survives_power_cuts() {
    if let Some(counts) = explore(Trouble::Power, 10) {
        assert!(counts.common.power_cuts.get() > 50 && counts.elections.get() > 20, "{counts:?}");
        assert!(counts.common.reads.get() > 50 && counts.common.acknowledged.get() > 50, "{counts:?}");
    }
}

#[test]
fn a_cluster_survives_both_at_once() {
    if let Some(counts) = explore(Trouble::All, 10) {
        assert!(counts.common.power_cuts.get() > 20 && counts.common.lost.get() > 50, "{counts:?}");
        assert!(counts.common.reads.get() > 50 && counts.common.acknowledged.get() > 50, "{counts:?}");
    }
}

/// Returns whether one of the first seeds finds a defect, whose world passes without it.
fn is_found(kind: Trouble, defect: Defect, seeds: u64) -> bool {
    (0..seeds).any(|seed| {
        let try_with = |defect| attempt(&mut World::new(seed), 3, kind, defect, &Counts::default());
        let found = try_with(defect).inspect_err(|why| println!("seed {seed}: {why}")).is_err();
        if found {
            try_with(Defect::None).expect("the same world without the defect");
        }
        found
    })
}

#[test]
fn stale_reads_are_found() {
    assert!(is_found(Trouble::Links, Defect::ReadsLocally, 50));
}

#[test]
fn a_write_that_is_acknowledged_before_the_quorum_is_found() {
    assert!(is_found(Trouble::All, Defect::AcknowledgesEarly, 50));
}

/// openraft's default: a leader that was started again leads at once. It does not know what it had committed, and it gives log ids
/// of entries that it had sent, but not yet synced, to other entries.
#[test]
fn a_leader_that_leads_again_without_an_election_is_found() {
    assert!(is_found(Trouble::Power, Defect::RestoresLeader, 50));
}

/// Test of the checks: a log or a store with a deliberate fault is caught in the cluster.
#[cfg(feature = "_mutants")]
mod broken {
    use forebay_raft::mutants::{self, Mutant};

    use super::*;

    fn is_caught(mutant: Mutant, kind: Trouble, seeds: u64) {
        let broken = |run: &dyn Fn() -> Result<(), String>| mutants::with(mutant, run);
        worlds::is_caught(mutant, seeds, broken, |world| {
            attempt(world, 3, kind, Defect::None, &Counts::default())
        });
    }

    #[test]
    fn an_append_that_is_acknowledged_early_is_caught() {
        is_caught(Mutant::AppendAcknowledgedEarly, Trouble::Power, 50);
    }
}
