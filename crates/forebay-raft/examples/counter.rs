//! A replicated counter of one node: `cargo run -p forebay-raft --example counter`. A second run continues the count.
//!
//! A state machine of one's own is the implementation of [`Apply`]. A cluster needs a network besides, which openraft's guide
//! describes; docs/raft.md has the part that sends snapshots.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;

use forebay::Engine;
use forebay_kv::{Batch, Keyspace, Options};
use forebay_raft::{Apply, LogOptions, RaftLog, RaftSnapshot, RaftStore};
use openraft::alias::{SnapshotOf, VoteOf};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{AnyError, BasicNode, EntryPayload, Raft, RaftNetworkFactory, RaftNetworkV2};
use serde::{Deserialize, Serialize};

/// A request: add to a counter.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Add {
    counter: String,
    by: u64,
}

impl fmt::Display for Add {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} + {}", self.counter, self.by)
    }
}

openraft::declare_raft_types!(
    /// The types of this cluster: requests are additions, responses are sums.
    Types: D = Add, R = Option<u64>
);

/// The state machine: one keyspace, `state`, with a value for each counter.
struct Counters;

impl Apply<Types> for Counters {
    async fn apply(
        &self,
        entry: openraft::alias::EntryOf<Types>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<Option<u64>> {
        let EntryPayload::Normal(add) = entry.payload else { return Ok(None) };
        // Its memory may be with readers for a while.
        let found = forebay_raft::until_memory::<Types, _, _>(|| keyspaces[0].get(&add.counter)).await;
        let found = found.map_err(io::Error::other)?;
        let sum =
            found.and_then(|bytes| Some(u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?))).unwrap_or(0);
        let sum = sum.saturating_add(add.by);
        batch.put(&keyspaces[0], &add.counter, sum.to_le_bytes());
        Ok(Some(sum))
    }
}

/// A network without other nodes.
struct Alone;

impl RaftNetworkFactory<Types> for Alone {
    type Network = Alone;

    async fn new_client(&mut self, _: u64, _: &BasicNode) -> Alone {
        Alone
    }
}

fn alone() -> Unreachable<Types> {
    Unreachable::new(&AnyError::error("this node is alone"))
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

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args().nth(1).unwrap_or_else(|| "target/raft-counter".to_owned());
    let engine = Engine::start(forebay::Config::new())?;
    let log = RaftLog::<Types>::open(&engine, format!("{dir}/log"), LogOptions::new()).await?;
    let store =
        RaftStore::open(&engine, format!("{dir}/state"), Options::new().memory_bytes_max(64 << 20), Counters)
            .await?;
    let config = Arc::new(forebay_raft::config().validate()?);
    let raft = Raft::new(1, config, Alone, log.clone(), store.clone()).await?;
    if !raft.is_initialized().await? {
        raft.initialize(BTreeMap::from([(1, BasicNode::new("here"))])).await?;
    }
    raft.wait(Some(std::time::Duration::from_secs(10))).current_leader(1, "this node leads").await?;

    let begun = std::time::Instant::now();
    let writes = (0..1000).map(|number| {
        let (raft, add) = (raft.clone(), Add { counter: format!("counter {}", number % 10), by: 1 });
        tokio::spawn(async move { raft.client_write(add).await })
    });
    for write in writes.collect::<Vec<_>>() {
        write.await??;
    }
    let flushes = log.wal().stats().groups;
    println!(
        "1000 additions in {:?}; the log has written {flushes} groups since it was opened",
        begun.elapsed()
    );

    let sum = store.keyspaces()[0].get("counter 7").await?;
    println!(
        "counter 7 is {:?}",
        sum.map(|bytes| u64::from_le_bytes(bytes[..8].try_into().unwrap_or_default()))
    );
    raft.trigger().snapshot().await?;
    raft.wait(None).metrics(|metrics| metrics.snapshot.is_some(), "a snapshot").await?;
    raft.shutdown().await?;
    store.close().await?;
    log.close().await?;
    Ok(())
}
