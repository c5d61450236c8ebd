//! Shows: log and state machine carry an openraft cluster: entries are replicated, a node that was away gets those that it lacks from the log,
//! or by a snapshot once they are purged, and all nodes have the same state, also after all have started again. How: three nodes in one process,
//! whose network calls each other.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::common::{Types, dir};
use forebay::Engine;
use forebay_kv::{Batch, Keyspace, Options};
use forebay_raft::{Apply, LogOptions, RaftLog, RaftSnapshot, RaftStore};
use openraft::alias::{EntryOf, SnapshotOf, VoteOf};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{
    AnyError, BasicNode, Config, EntryPayload, Raft, RaftNetworkFactory, RaftNetworkV2, SnapshotPolicy,
};

/// Sets the value of the key that an entry names, to its former value and the entry.
struct Chains;

impl Apply<Types> for Chains {
    async fn apply(
        &self,
        entry: EntryOf<Types>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<String> {
        let EntryPayload::Normal(text) = entry.payload else { return Ok(String::new()) };
        let key = text.split(' ').next().unwrap_or_default();
        let before = keyspaces[0].get(key).await.map_err(io::Error::other)?;
        let entry = format!("{text};");
        let is_there =
            before.as_ref().is_some_and(|all| all.windows(entry.len()).any(|some| some == entry.as_bytes()));
        if is_there {
            return Ok(String::new());
        }
        let value = [before.as_deref().unwrap_or_default(), entry.as_bytes()].concat();
        batch.put(&keyspaces[0], key, &value);
        Ok(value.len().to_string())
    }
}

type Store = RaftStore<Types, Chains>;
type Node = Raft<Types, Store>;

/// The nodes that can be reached.
#[derive(Clone, Default)]
struct Network(Arc<Mutex<BTreeMap<u64, (Node, Store)>>>);

struct Link {
    network: Network,
    target: u64,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Link;

    async fn new_client(&mut self, target: u64, _: &BasicNode) -> Link {
        Link { network: self.clone(), target }
    }
}

impl Link {
    fn node(&self) -> Result<(Node, Store), Unreachable<Types>> {
        let found = self.network.0.lock().unwrap().get(&self.target).cloned();
        found.ok_or_else(|| Unreachable::new(&AnyError::error("this node is away")))
    }
}

fn failed(error: impl std::fmt::Display) -> NetworkError<Types> {
    NetworkError::new(&AnyError::error(error.to_string()))
}

impl RaftNetworkV2<Types> for Link {
    type SnapshotData = RaftSnapshot;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let answer = self.node()?.0.append_entries(rpc).await;
        answer.map_err(|error| RPCError::Network(failed(error)))
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Types>,
        _: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.node()?.0.vote(rpc).await.map_err(|error| RPCError::Network(failed(error)))
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<Types>,
        snapshot: SnapshotOf<Types, RaftSnapshot>,
        _: impl Future<Output = ReplicationClosed> + Send + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let (node, store) = self.node()?;
        let (mut reader, mut receiver) =
            (snapshot.snapshot.reader(), store.receive_snapshot().await.map_err(failed)?);
        while let Some(part) = reader.next().await.map_err(failed)? {
            receiver.write(&part).await.map_err(failed)?;
        }
        let snapshot = SnapshotOf::<Types, _> {
            meta: snapshot.meta,
            snapshot: receiver.finish().await.map_err(failed)?,
        };
        Ok(node.install_full_snapshot(vote, snapshot).await.map_err(failed)?)
    }
}

struct Cluster {
    engine: Engine,
    dir: PathBuf,
    network: Network,
    logs: BTreeMap<u64, RaftLog<Types>>,
}

impl Cluster {
    fn new(dir: &Path) -> Cluster {
        let engine = Engine::start(forebay::Config::new().shards(2)).unwrap();
        Cluster { engine, dir: dir.to_owned(), network: Network::default(), logs: BTreeMap::new() }
    }

    async fn start(&mut self, id: u64) {
        let dir = self.dir.join(id.to_string());
        let options = LogOptions::new().segment_bytes(64 << 10).tail_bytes_max(16 << 10);
        let log = RaftLog::open(&self.engine, dir.join("log"), options).await.unwrap();
        let options = Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN).memtable_bytes(64 << 10);
        let options = options.log_segment_bytes(64 << 10);
        let store = RaftStore::open(&self.engine, dir.join("state"), options, Chains).await.unwrap();
        let config = Config {
            heartbeat_interval: 100,
            election_timeout_min: 1000,
            election_timeout_max: 2000,
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: 0,
            purge_batch_size: 1,
            ..Config::default()
        };
        let config = Arc::new(config.validate().unwrap());
        let node = Raft::new(id, config, self.network.clone(), log.clone(), store.clone()).await.unwrap();
        self.network.0.lock().unwrap().insert(id, (node, store));
        self.logs.insert(id, log);
    }

    /// Ends a node. Writes that were not in order are as after a kill.
    async fn stop(&mut self, id: u64) {
        let (node, store) = self.network.0.lock().unwrap().remove(&id).unwrap();
        node.shutdown().await.unwrap();
        // openraft's tasks have ended: these are the last handles.
        let _ = store.close().await;
        self.logs.remove(&id).unwrap().close().await.unwrap();
    }

    fn node(&self, id: u64) -> (Node, Store) {
        self.network.0.lock().unwrap()[&id].clone()
    }

    async fn leader(&self) -> Node {
        let first = self.network.0.lock().unwrap().values().next().unwrap().0.clone();
        let ids: Vec<u64> = self.network.0.lock().unwrap().keys().copied().collect();
        let is_led = move |metrics: &openraft::RaftMetrics<Types>| {
            metrics.current_leader.is_some_and(|leader| ids.contains(&leader))
        };
        let led = first.wait(None).metrics(is_led, "a leader").await.unwrap();
        self.node(led.current_leader.unwrap()).0
    }

    /// Writes entries, many concurrently. Returns the index of the last entry.
    async fn write(&self, numbers: std::ops::Range<u64>) -> u64 {
        let mut last = 0;
        let mut left: Vec<u64> = numbers.collect();
        // A leader that loses its lease refuses entries that it cannot decide on: the client retries, and the entry may be applied
        // twice.
        while !left.is_empty() {
            let leader = self.leader().await;
            let write = |number: u64| {
                let leader = leader.clone();
                let written = async move { leader.client_write(format!("key{} {number}", number % 9)).await };
                (number, tokio::spawn(written))
            };
            let writes: Vec<_> = left.drain(..).map(write).collect();
            for (number, write) in writes {
                match write.await.unwrap() {
                    Ok(written) => last = last.max(written.log_id.index),
                    Err(openraft::errors::RaftError::APIError(_)) => left.push(number),
                    Err(error) => panic!("a write: {error}"),
                }
            }
        }
        last
    }

    /// Waits until all nodes have applied an entry. Returns the state, which all of them have.
    async fn state(&self, index: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut all = Vec::new();
        let nodes: Vec<_> = self.network.0.lock().unwrap().values().cloned().collect();
        for (node, store) in nodes {
            node.wait(None).applied_index_at_least(Some(index), "all entries").await.unwrap();
            let keyspaces = store.keyspaces();
            let (mut range, mut state) = (keyspaces[0].iter(), BTreeMap::new());
            while let Some(entry) = range.next().await {
                let (key, value) = entry.unwrap();
                state.insert(key, value.to_vec());
            }
            all.push(state);
        }
        assert!(all.windows(2).all(|two| two[0] == two[1]), "the states differ: {all:?}");
        all.swap_remove(0)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_keeps_one_state() {
    let dir = dir();
    let mut cluster = Cluster::new(dir.path());
    for id in 1..=3 {
        cluster.start(id).await;
    }
    let members: BTreeMap<_, _> = (1..=3).map(|id| (id, BasicNode::new(id.to_string()))).collect();
    cluster.node(1).0.initialize(members).await.unwrap();
    let last = cluster.write(0..300).await;
    assert_eq!(cluster.state(last).await.len(), 9);

    // Node 3 gets the entries that it has missed from the log.
    cluster.stop(3).await;
    cluster.write(300..400).await;
    cluster.start(3).await;
    let last = cluster.write(400..410).await;
    cluster.state(last).await;

    // And by a snapshot where they are purged.
    cluster.stop(3).await;
    let last = cluster.write(410..600).await;
    cluster.state(last).await;
    // At both: a busy machine may elect the other one.
    for id in 1..=2 {
        let node = cluster.node(id).0;
        node.trigger().snapshot().await.unwrap();
        let wait = node.wait(None);
        wait.metrics(|metrics| metrics.snapshot.is_some_and(|id| id.index >= last), "a snapshot")
            .await
            .unwrap();
        node.trigger().purge_log(last).await.unwrap();
        wait.metrics(|metrics| metrics.purged.is_some_and(|id| id.index >= last), "a purge").await.unwrap();
    }
    cluster.start(3).await;
    let state = cluster.state(last).await;
    let snapshot = cluster.node(3).0.metrics();
    assert!(
        openraft::async_runtime::WatchReceiver::borrow_watched(&snapshot)
            .snapshot
            .is_some_and(|id| id.index >= last)
    );

    // All of them start again.
    for id in 1..=3 {
        cluster.stop(id).await;
    }
    for id in 1..=3 {
        cluster.start(id).await;
    }
    let last = cluster.write(600..601).await;
    let after = cluster.state(last).await;
    assert!(
        state.iter().all(|(key, value)| after[key].starts_with(value)),
        "entries were lost or applied twice"
    );
    let entries: usize = after.values().map(|value| value.iter().filter(|byte| **byte == b';').count()).sum();
    assert_eq!(entries, 601);
    for id in 1..=3 {
        cluster.stop(id).await;
    }
}
