//! Shows: a node whose state machine waits, for example for memory that clients hold, still accepts entries, and ends when it is
//! asked to. How: a single node, whose state machine waits until the test releases it.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Types, dir};
use forebay::Engine;
use forebay_kv::{Batch, Keyspace, Options};
use forebay_raft::{Apply, LogOptions, RaftLog, RaftSnapshot, RaftStore};
use openraft::alias::{EntryOf, SnapshotOf, VoteOf};
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{AnyError, BasicNode, EntryPayload, Raft, RaftNetworkFactory, RaftNetworkV2};
use tokio::sync::Semaphore;

/// More commits than openraft lets wait by default.
const COMMITS: u64 = 1_200;

/// Applies an entry of a client for each permit.
struct Waits(Arc<Semaphore>);

impl Apply<Types> for Waits {
    async fn apply(
        &self,
        entry: EntryOf<Types>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<String> {
        let EntryPayload::Normal(text) = entry.payload else { return Ok(String::new()) };
        self.0.acquire().await.map_err(io::Error::other)?.forget();
        batch.put(&keyspaces[0], &text, &text);
        Ok(text)
    }
}

/// A network without other nodes.
struct Alone;

fn alone() -> Unreachable<Types> {
    Unreachable::new(&AnyError::error("this node is alone"))
}

impl RaftNetworkFactory<Types> for Alone {
    type Network = Alone;

    async fn new_client(&mut self, _: u64, _: &BasicNode) -> Alone {
        Alone
    }
}

impl RaftNetworkV2<Types> for Alone {
    type SnapshotData = RaftSnapshot;

    async fn append_entries(
        &mut self,
        _: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        Err(RPCError::Unreachable(alone()))
    }

    async fn vote(
        &mut self,
        _: VoteRequest<Types>,
        _: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(RPCError::Unreachable(alone()))
    }

    async fn full_snapshot(
        &mut self,
        _: VoteOf<Types>,
        _: SnapshotOf<Types, RaftSnapshot>,
        _: impl Future<Output = ReplicationClosed> + Send + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        Err(StreamingError::Unreachable(alone()))
    }
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("a step of the test hangs")
}

/// Regression: with 1,024 commits for the state machine openraft's core waited for it, so that a node without memory for its
/// entries accepted no more entries, did not vote, and could not even end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_entries_wait_takes_more_and_ends() {
    let dir = dir();
    let engine = Engine::start(forebay::Config::new()).unwrap();
    let log = RaftLog::<Types>::open(&engine, dir.path().join("log"), LogOptions::new()).await.unwrap();
    let permits = Arc::new(Semaphore::new(0));
    let options = Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN);
    let store =
        RaftStore::open(&engine, dir.path().join("state"), options, Waits(permits.clone())).await.unwrap();
    let config = Arc::new(forebay_raft::config().validate().unwrap());
    let raft = Raft::new(1, config, Alone, log.clone(), store.clone()).await.unwrap();
    raft.initialize(BTreeMap::from([(1, BasicNode::new("here"))])).await.unwrap();
    raft.wait(None).current_leader(1, "it leads").await.unwrap();
    let mut writes = Vec::new();
    for number in 0..COMMITS {
        let writer = raft.clone();
        writes.push(tokio::spawn(async move { writer.client_write(number.to_string()).await }));
        let mut metrics = raft.metrics();
        while metrics.borrow_watched().local_committed.is_none_or(|id| id.index < number + 2) {
            within(metrics.changed()).await.unwrap();
        }
    }
    permits.add_permits(7);
    for (number, write) in writes.drain(..7).enumerate() {
        assert_eq!(within(write).await.unwrap().unwrap().data, number.to_string());
    }
    within(raft.shutdown()).await.unwrap();
    // The worker of the state machine is still there, with the entry that waits.
    permits.close();
    for write in writes {
        assert!(within(write).await.unwrap().is_err());
    }
    store.close().await.unwrap();
    log.close().await.unwrap();
}
