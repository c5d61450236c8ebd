//! Three nodes in one process beside a busy Tokio runtime: how long a proposal takes, and how many elections it costs when heartbeats come late.
//!
//! `cargo run --release -p forebay-raft --example busy` runs each row in turn, three times, 5 s each; `busy SECONDS REPEATS DIR` changes that.
//!
//! | row | log | Raft runs on |
//! |---|---|---|
//! | `file` | appended and synced by `tokio::fs`, one sync for all that waits | the busy runtime |
//! | `log` | [`RaftLog`] on shards | the busy runtime |
//! | `apart` | [`RaftLog`] on shards | a runtime of its own, with two threads |
//!
//! The busy runtime has two workers and four tasks that compute for 3 ms between two yields, as parsers and hash tables do. Eight clients are plain
//! threads, so that their own turns are not measured.

use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay::{Engine, Priority};
use forebay_kv::{Batch, Keyspace, Options};
use forebay_raft::{Apply, LogOptions, RaftLog, RaftSnapshot, RaftStore};
use openraft::alias::{EntryOf, LogIdOf, SnapshotOf, VoteOf};
use openraft::async_runtime::WatchReceiver;
use openraft::entry::RaftEntry;
use openraft::errors::{
    ClientWriteError, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable,
};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use openraft::{AnyError, BasicNode, Config, OptionalSend, Raft, RaftNetworkFactory, RaftNetworkV2};
use tokio::io::AsyncWriteExt;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

type Anything = Box<dyn Error + Send + Sync>;

const NODES: u64 = 3;
const CLIENTS: usize = 8;
const BUSY_TASKS: usize = 4;
const COMPUTES: Duration = Duration::from_millis(3);

openraft::declare_raft_types!(
    /// Proposals are values of 256 bytes that are put to a key.
    Types: D = String, R = ()
);

type Store = RaftStore<Types, Last>;
type Node = Raft<Types, Store>;
type Nodes = Arc<Mutex<BTreeMap<u64, Node>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the last value.
struct Last;

impl Apply<Types> for Last {
    async fn apply(
        &self,
        entry: EntryOf<Types>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<()> {
        if let openraft::EntryPayload::Normal(value) = entry.payload {
            batch.put(&keyspaces[0], "last", value);
        }
        Ok(())
    }
}

/// Calls the other nodes of this process.
struct Local {
    nodes: Nodes,
    target: u64,
}

impl Local {
    /// Makes a call of the target in the time that openraft gives it.
    async fn call<T, E, F>(
        &self,
        option: &RPCOption,
        call: impl FnOnce(Node) -> F,
    ) -> Result<T, Unreachable<Types>>
    where
        E: std::fmt::Display,
        F: Future<Output = Result<T, E>>,
    {
        let found = lock(&self.nodes).get(&self.target).cloned();
        let node = found.ok_or_else(|| Unreachable::new(&AnyError::error("not started yet")))?;
        let late = |_| Unreachable::new(&AnyError::error("no reply in time"));
        let done = tokio::time::timeout(option.soft_ttl(), call(node)).await.map_err(late)?;
        done.map_err(|error| Unreachable::new(&AnyError::error(error)))
    }
}

/// Makes the calls of one node.
struct Network(Nodes);

impl RaftNetworkFactory<Types> for Network {
    type Network = Local;

    async fn new_client(&mut self, target: u64, _: &BasicNode) -> Local {
        Local { nodes: self.0.clone(), target }
    }
}

impl RaftNetworkV2<Types> for Local {
    type SnapshotData = RaftSnapshot;

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
        _: SnapshotOf<Types, RaftSnapshot>,
        _: impl Future<Output = ReplicationClosed> + Send + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        // No entry is purged here, so nobody needs one.
        Err(StreamingError::Unreachable(Unreachable::new(&AnyError::error("no snapshots here"))))
    }
}

/// The usual way: a task appends to a file by `tokio::fs`, whose calls run on the runtime's blocking pool.
#[derive(Clone)]
struct FileLog {
    state: Arc<Mutex<FileState>>,
    writes: UnboundedSender<(Vec<u8>, IOFlushed<Types>)>,
}

#[derive(Default)]
struct FileState {
    vote: Option<VoteOf<Types>>,
    entries: BTreeMap<u64, EntryOf<Types>>,
}

impl FileLog {
    async fn create(path: &Path) -> io::Result<FileLog> {
        let file = tokio::fs::File::create(path).await?;
        let (writes, received) = unbounded_channel();
        tokio::spawn(write_all(file, received));
        Ok(FileLog { state: Arc::default(), writes })
    }

    fn write(&self, bytes: Vec<u8>, done: IOFlushed<Types>) -> io::Result<()> {
        self.writes.send((bytes, done)).map_err(io::Error::other)
    }
}

async fn write_all(mut file: tokio::fs::File, mut received: UnboundedReceiver<(Vec<u8>, IOFlushed<Types>)>) {
    let mut waiting = Vec::new();
    while received.recv_many(&mut waiting, 1024).await > 0 {
        let bytes: Vec<u8> = waiting.iter().flat_map(|(bytes, _)| bytes.iter().copied()).collect();
        let written = match file.write_all(&bytes).await {
            Ok(()) => file.sync_data().await,
            failed => failed,
        };
        for (_, done) in waiting.drain(..) {
            done.io_completed(written.as_ref().map(drop).map_err(|error| error.kind().into()));
        }
    }
}

impl RaftLogReader<Types> for FileLog {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + std::fmt::Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> io::Result<Vec<EntryOf<Types>>> {
        let range: (Bound<u64>, Bound<u64>) = (range.start_bound().cloned(), range.end_bound().cloned());
        Ok(lock(&self.state).entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> io::Result<Option<VoteOf<Types>>> {
        Ok(lock(&self.state).vote)
    }
}

impl RaftLogStorage<Types> for FileLog {
    type LogReader = FileLog;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let last_log_id = lock(&self.state).entries.last_key_value().map(|(_, entry)| entry.log_id());
        Ok(LogState { last_purged_log_id: None, last_log_id })
    }

    async fn get_log_reader(&mut self) -> FileLog {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf<Types>) -> io::Result<()> {
        lock(&self.state).vote = Some(*vote);
        let (sender, receiver) = Types::oneshot();
        self.write(format!("{vote}\n").into_bytes(), IOFlushed::signal(sender))?;
        receiver.await.map_err(io::Error::other)?
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = EntryOf<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut bytes = Vec::new();
        for entry in entries {
            rmp_serde::encode::write(&mut bytes, &entry).map_err(io::Error::other)?;
            lock(&self.state).entries.insert(entry.index(), entry);
        }
        self.write(bytes, callback)
    }

    async fn truncate_after(&mut self, last: Option<LogIdOf<Types>>) -> io::Result<()> {
        let from = last.map_or(0, |last| last.index + 1);
        lock(&self.state).entries.split_off(&from);
        Ok(())
    }

    async fn purge(&mut self, _: LogIdOf<Types>) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    File,
    Log,
    Apart,
}

const ROWS: [(Row, bool, &str); 6] = [
    (Row::File, false, "file, idle runtime"),
    (Row::Log, false, "log, idle runtime"),
    (Row::Apart, false, "apart, idle runtime"),
    (Row::File, true, "file, busy runtime"),
    (Row::Log, true, "log, busy runtime"),
    (Row::Apart, true, "apart, busy runtime"),
];

struct Figures {
    each_us: Vec<u64>,
    elections: u64,
    failed: u64,
}

fn runtime(name: &str, threads: usize) -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(threads).thread_name(name).enable_all().build()
}

/// Starts the nodes on the current runtime, and waits for a leader.
async fn start(row: Row, engine: &Engine, dir: &Path) -> Result<Nodes, Anything> {
    let nodes = Nodes::default();
    let config = Config {
        heartbeat_interval: 50,
        election_timeout_min: 300,
        election_timeout_max: 600,
        snapshot_policy: openraft::SnapshotPolicy::Never,
        ..forebay_raft::config()
    };
    let config = Arc::new(config.validate()?);
    for id in 0..NODES {
        let dir = dir.join(id.to_string());
        tokio::fs::create_dir_all(&dir).await?;
        let store: Store =
            RaftStore::open(engine, dir.join("state"), Options::new().memory(32 << 20), Last).await?;
        let network = Network(nodes.clone());
        let node = match row {
            Row::File => {
                let log = FileLog::create(&dir.join("log")).await?;
                Raft::new(id, config.clone(), network, log, store).await?
            }
            Row::Log | Row::Apart => {
                let log = RaftLog::<Types>::open(engine, dir.join("log"), LogOptions::new()).await?;
                Raft::new(id, config.clone(), network, log, store).await?
            }
        };
        lock(&nodes).insert(id, node);
    }
    let first = lock(&nodes).get(&0).cloned().ok_or("no node")?;
    first.initialize((0..NODES).map(|id| (id, BasicNode::default())).collect::<BTreeMap<_, _>>()).await?;
    first
        .wait(Some(Duration::from_secs(20)))
        .metrics(|metrics| metrics.current_leader.is_some(), "a leader")
        .await?;
    Ok(nodes)
}

/// Proposes until the end, each time at the leader. Returns microseconds of each proposal, and how many failed.
fn propose(on: &Handle, nodes: &Nodes, is_over: &AtomicBool) -> (Vec<u64>, u64) {
    let (mut each_us, mut failed, mut at) = (Vec::new(), 0, 0);
    while !is_over.load(Ordering::Relaxed) {
        let Some(node) = lock(nodes).get(&at).cloned() else { break };
        let begun = Instant::now();
        match on.block_on(node.client_write("v".repeat(256))) {
            Ok(_) => each_us.push(begun.elapsed().as_micros() as u64),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(to))) => {
                at = to.leader_id.unwrap_or((at + 1) % NODES);
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => failed += 1,
        }
    }
    (each_us, failed)
}

fn run(row: Row, is_busy: bool, seconds: u64, dir: &Path) -> Result<Figures, Anything> {
    let engine = Engine::start(forebay::Config::new().shards(1).priority(Priority::Prompt))?;
    let busy = runtime("busy", 2)?;
    let own = runtime("raft", 2)?;
    let home = if row == Row::Apart { own.handle() } else { busy.handle() };
    let nodes = home.block_on(home.spawn({
        let (engine, dir) = (engine.clone(), dir.to_path_buf());
        async move { start(row, &engine, &dir).await }
    }))??;
    if is_busy {
        for _ in 0..BUSY_TASKS {
            busy.spawn(async {
                loop {
                    let begun = Instant::now();
                    while begun.elapsed() < COMPUTES {
                        std::hint::spin_loop();
                    }
                    tokio::task::yield_now().await;
                }
            });
        }
    }
    let term = || lock(&nodes).values().map(|node| node.metrics().borrow_watched().current_term).max();
    let (is_over, before) = (AtomicBool::new(false), term());
    let (mut each_us, mut failed) = (Vec::new(), 0);
    std::thread::scope(|threads| {
        let clients: Vec<_> =
            (0..CLIENTS).map(|_| threads.spawn(|| propose(home, &nodes, &is_over))).collect();
        std::thread::sleep(Duration::from_secs(seconds));
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            let (own_us, own_failed) = client.join().unwrap_or_default();
            each_us.extend(own_us);
            failed += own_failed;
        }
    });
    let elections = term().unwrap_or(0) - before.unwrap_or(0);
    busy.shutdown_background();
    own.shutdown_background();
    engine.close().wait()?;
    each_us.sort_unstable();
    Ok(Figures { each_us, elections, failed })
}

fn main() -> Result<(), Anything> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |place: usize, default: u64| arguments.get(place).map_or(Ok(default), |text| text.parse::<u64>());
    let (seconds, repeats) = (number(0, 5)?, number(1, 3)?);
    let parent = arguments.get(2).map_or("target", String::as_str);
    let mut all: Vec<Vec<Figures>> = ROWS.iter().map(|_| Vec::new()).collect();
    for _ in 0..repeats {
        for (figures, (row, is_busy, _)) in all.iter_mut().zip(ROWS) {
            let dir = tempfile::tempdir_in(parent)?;
            figures.push(run(row, is_busy, seconds, dir.path())?);
        }
    }
    println!(
        "| row | proposals a second | p50 us | p99 us | longest us | elections | failed |\n|---|---|---|---|---|---|---|"
    );
    for (figures, (_, _, name)) in all.iter().zip(ROWS) {
        // The middle run by its p99.
        let at = |figures: &Figures, permille: usize| {
            figures
                .each_us
                .get(figures.each_us.len().saturating_sub(1) * permille / 1000)
                .copied()
                .unwrap_or(u64::MAX)
        };
        let mut order: Vec<&Figures> = figures.iter().collect();
        order.sort_by_key(|figures| at(figures, 990));
        let Some(middle) = order.get(order.len() / 2) else { continue };
        let (elections, failed) = figures
            .iter()
            .fold((0, 0), |(elections, failed), one| (elections + one.elections, failed + one.failed));
        println!(
            "| {name} | {} | {} | {} | {} | {elections} | {failed} |",
            middle.each_us.len() as u64 / seconds.max(1),
            at(middle, 500),
            at(middle, 990),
            at(middle, 1000),
        );
    }
    Ok(())
}
