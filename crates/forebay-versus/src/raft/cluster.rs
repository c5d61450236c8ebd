//! Nodes in one process that call each other, and the clients that propose to them.

use std::collections::BTreeMap;

use openraft::alias::{SnapshotOf, VoteOf};
use openraft::async_runtime::WatchReceiver as _;
use openraft::errors::{
    ClientWriteError, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable,
};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::storage::{RaftLogStorage, RaftStateMachine};
use openraft::{AnyError, BasicNode, Config, Raft, RaftNetworkFactory, RaftNetworkV2};

use super::Types;
use crate::prelude::*;

/// Followers may elect another leader when they have heard nothing for this long, or up to twice as long.
pub(super) const ELECTION_MS_MIN: u64 = 300;

/// Nodes by their numbers.
pub(super) type Nodes<M> = Arc<Mutex<BTreeMap<u64, Raft<Types, M>>>>;

/// Calls one of the nodes of this process.
struct Local<M: RaftStateMachine<Types>> {
    nodes: Nodes<M>,
    target: u64,
}

impl<M: RaftStateMachine<Types>> Local<M> {
    /// Makes a call of the target in the time that openraft gives it.
    async fn call<T, E, F>(
        &self,
        option: &RPCOption,
        call: impl FnOnce(Raft<Types, M>) -> F,
    ) -> Result<T, Unreachable<Types>>
    where
        E: std::fmt::Display,
        F: Future<Output = Result<T, E>>,
    {
        let node = node(&self.nodes, self.target);
        let node = node.ok_or_else(|| Unreachable::new(&AnyError::error("not started yet")))?;
        let late = |_| Unreachable::new(&AnyError::error("no reply in time"));
        let done = tokio::time::timeout(option.soft_ttl(), call(node)).await.map_err(late)?;
        done.map_err(|error| Unreachable::new(&AnyError::error(error)))
    }
}

fn node<M: RaftStateMachine<Types>>(nodes: &Nodes<M>, number: u64) -> Option<Raft<Types, M>> {
    nodes.lock().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
}

/// Makes the calls of one node.
struct Network<M: RaftStateMachine<Types>>(Nodes<M>);

impl<M: RaftStateMachine<Types>> RaftNetworkFactory<Types> for Network<M> {
    type Network = Local<M>;

    async fn new_client(&mut self, target: u64, _: &BasicNode) -> Local<M> {
        Local { nodes: self.0.clone(), target }
    }
}

impl<M: RaftStateMachine<Types>> RaftNetworkV2<Types> for Local<M> {
    type SnapshotData = M::SnapshotData;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        Ok(self.call(&option, |node| async move { node.append_entries(request).await }).await?)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Ok(self.call(&option, |node| async move { node.vote(request).await }).await?)
    }

    async fn full_snapshot(
        &mut self,
        _: VoteOf<Types>,
        _: SnapshotOf<Types, M::SnapshotData>,
        _: impl Future<Output = ReplicationClosed> + Send + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        // No entry is purged here, so no snapshot is needed.
        Err(StreamingError::Unreachable(Unreachable::new(&AnyError::error("no snapshots here"))))
    }
}

/// Starts nodes with these logs and states on the current runtime, and waits for a leader.
pub(super) async fn start<L, M, F>(count: usize, dir: &Path, open: impl Fn(PathBuf) -> F) -> Result<Nodes<M>>
where
    L: RaftLogStorage<Types>,
    M: RaftStateMachine<Types>,
    F: Future<Output = Result<(L, M)>>,
{
    let nodes = Nodes::<M>::default();
    let config = Config {
        heartbeat_interval: 50,
        election_timeout_min: ELECTION_MS_MIN,
        election_timeout_max: 2 * ELECTION_MS_MIN,
        snapshot_policy: openraft::SnapshotPolicy::Never,
        ..forebay_raft::config()
    };
    let config = Arc::new(config.validate()?);
    for number in 0..count as u64 {
        let dir = dir.join(number.to_string());
        std::fs::create_dir_all(&dir)?;
        let (log, state) = open(dir).await?;
        let node = Raft::new(number, config.clone(), Network(nodes.clone()), log, state).await?;
        nodes.lock().unwrap_or_else(PoisonError::into_inner).insert(number, node);
    }
    let first = node(&nodes, 0).context("no node")?;
    let members: BTreeMap<_, _> = (0..count as u64).map(|number| (number, BasicNode::default())).collect();
    first.initialize(members).await?;
    let has_leader = |metrics: &openraft::RaftMetrics<Types>| metrics.current_leader.is_some();
    first.wait(Some(Duration::from_secs(20))).metrics(has_leader, "a leader").await?;
    Ok(nodes)
}

/// Returns the newest term of all nodes: each election of a leader starts a term.
pub(super) fn term<M: RaftStateMachine<Types>>(nodes: &Nodes<M>) -> u64 {
    let nodes = nodes.lock().unwrap_or_else(PoisonError::into_inner);
    nodes.values().map(|node| node.metrics().borrow_watched().current_term).max().unwrap_or(0)
}

/// Returns how long ago a majority last acknowledged the leader: its heartbeats, or entries.
pub(super) fn quorum_age<M: RaftStateMachine<Types>>(nodes: &Nodes<M>) -> Option<Duration> {
    let nodes = nodes.lock().unwrap_or_else(PoisonError::into_inner);
    let ages = nodes.values().filter_map(|node| {
        let metrics = node.metrics();
        let metrics = metrics.borrow_watched();
        metrics.last_quorum_acked.as_deref().map(openraft::Instant::elapsed)
    });
    ages.min()
}

/// Ends the nodes, and closes their logs and states with them.
pub(super) async fn stop<M: RaftStateMachine<Types>>(nodes: Nodes<M>) -> Result<()> {
    let nodes = std::mem::take(&mut *nodes.lock().unwrap_or_else(PoisonError::into_inner));
    for node in nodes.into_values() {
        node.shutdown().await.map_err(|error| anyhow!("a node does not stop: {error}"))?;
    }
    Ok(())
}

/// A client, which proposes at the leader.
pub(super) struct Client<M: RaftStateMachine<Types>> {
    nodes: Nodes<M>,
    at: u64,
    value: String,
    /// Proposals that ended with an error; how many had to look for another leader does not count.
    pub(super) failed: u64,
}

impl<M: RaftStateMachine<Types>> Client<M> {
    pub(super) fn new(nodes: &Nodes<M>, value_bytes: usize) -> Self {
        Self { nodes: nodes.clone(), at: 0, value: "v".repeat(value_bytes), failed: 0 }
    }

    /// Returns when a value is applied at the leader.
    pub(super) async fn propose(&mut self) -> Result<()> {
        loop {
            let node = node(&self.nodes, self.at).context("no node")?;
            match node.client_write(self.value.clone()).await {
                Ok(_) => return Ok(()),
                Err(RaftError::APIError(ClientWriteError::ForwardToLeader(to))) => {
                    let others = self.nodes.lock().unwrap_or_else(PoisonError::into_inner).len() as u64;
                    self.at = to.leader_id.unwrap_or((self.at + 1) % others);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Err(RaftError::Fatal(fatal)) => return Err(fatal.into()),
                Err(_) => self.failed += 1,
            }
        }
    }
}
