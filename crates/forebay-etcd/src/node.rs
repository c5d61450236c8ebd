//! A member of the cluster: Raft on this crate's log and state, and its conversation with the other members.

mod bootstrap;
mod checkpoints;
mod force;
mod identity;
mod lead;
mod leader_call;
mod member_changes;
mod members;
mod network;
mod owner;
mod peers;
mod read_index;
mod reads;
mod restore;
mod service;
mod state_copy;
mod tasks;
mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use forebay::{Class, ClassSpec, Engine};
use forebay_kv::{Compression, FilterPolicy, Keyspace};
use forebay_raft::RaftLog;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::{Raft, SnapshotPolicy};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tonic::Status;

use self::identity::Identity;
pub(crate) use self::leader_call::LeaderCall;
use self::leader_call::not_leader;
use self::network::Network;
pub(crate) use self::peers::Client;
use self::peers::{Dialer, Peers, Purpose, Reachability, is_unsent};
pub use self::restore::RestoreReport;
pub(crate) use self::service::PeerService;
pub(crate) use self::state_copy::CopyFailure;
use crate::answer::Answer;
use crate::config::Config;
use crate::histogram::DoublingHistogram;
use crate::mvcc::{Damage, DamageRecord, Machine, Store};
use crate::operation::{Operation, OperationTimes};
use crate::proto::etcdserverpb::{LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, ResponseHeader};
use crate::proto::peer::{self, KeepAliveReply, KeepAliveRequest, Outcome, Proposal, command};
use crate::refusal::Refusal;
use crate::start_error::StartError;
use crate::types::{Command, Types, format_of};
use crate::version::Formats;

/// Committed entries that may wait to be applied before requests are refused.
const APPLY_GAP_MAX: u64 = 5_000;
/// The longest time of a request, in addition to two elections.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The engine's least memory, also in a small container: the memtables of a store with half of it have 24 MiB for the changes of an entry.
const ARENA_BYTES_MIN: usize = 224 << 20;
/// Those of background work.
const SCRUB_SHARES: u32 = 100;
/// Threads that Raft has for itself: its turns must not wait behind requests of clients.
const RAFT_THREADS: usize = 2;

/// The leases as the leader keeps them.
pub(crate) trait LeaderLeases: Send + Sync {
    fn keep_alive(&self, request: KeepAliveRequest) -> Answer<'_, KeepAliveReply>;
    fn time_to_live(&self, request: LeaseTimeToLiveRequest) -> Answer<'_, LeaseTimeToLiveResponse>;
}

/// Who leads, as far as this member knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leadership {
    /// None while no member was heard of for an election timeout.
    pub(crate) leader: Option<u64>,
    pub(crate) term: u64,
    pub(crate) is_own: bool,
}

/// Why a member has ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// The member was removed from the cluster.
    Removed,
    /// Its log or its state has failed. A new start recovers from the disk.
    Failed(String),
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndReason::Removed => f.write_str("this member was removed from the cluster for good"),
            EndReason::Failed(what) => write!(f, "this member has failed: {what}"),
        }
    }
}

/// Counts of what has happened since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) leader_changes: AtomicU64,
    pub(crate) proposals_pending: AtomicU64,
    pub(crate) proposals_failed: AtomicU64,
    pub(crate) read_rounds: AtomicU64,
    pub(crate) read_rounds_failed: AtomicU64,
    /// Those to which no leader replied in time.
    pub(crate) read_rounds_slow: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) installed: AtomicU64,
    /// Snapshots that are being installed now, and the times in which others arrived in files.
    pub(crate) installing: AtomicU64,
    pub(crate) snapshot_times: DoublingHistogram<100_000_000, 10>,
    /// The durations of snapshots that clients save.
    pub(crate) saved_snapshot_times: DoublingHistogram<10_000_000, 17>,
    /// Turns of Raft's tasks that were more than two heartbeats late, while this member led.
    pub(crate) late_heartbeats: AtomicU64,
    /// The durations of requests of clients and of this member.
    pub(crate) requests: OperationTimes<1_000_000, 14>,
    pub(crate) promoted: AtomicU64,
    pub(crate) foreign: AtomicU64,
    /// Long ranges under way, waiting ranges, and ranges whose client reads nothing.
    pub(crate) ranges: Arc<AtomicU64>,
    pub(crate) ranges_waiting: Arc<AtomicU64>,
    pub(crate) ranges_stalled: Arc<AtomicU64>,
    /// Bytes of responses of Range that are in memory as parts.
    pub(crate) range_bytes: Arc<AtomicU64>,
    pub(crate) ranges_refused: AtomicU64,
    pub(crate) ranges_given_up: AtomicU64,
    pub(crate) snapshots_given_up: AtomicU64,
    pub(crate) checks: AtomicU64,
    pub(crate) differences: AtomicU64,
    pub(crate) scrubs: AtomicU64,
    pub(crate) scrubbed_bytes: AtomicU64,
    /// Checks of `/health` that found this member healthy, and the others.
    pub(crate) healthy: AtomicU64,
    pub(crate) unhealthy: AtomicU64,
    pub(crate) repairs: AtomicU64,
    pub(crate) repairs_failed: AtomicU64,
}

/// A member of the cluster. Clones are handles of the same one.
#[derive(Clone)]
pub(crate) struct Node {
    inner: Arc<Inner>,
}

struct Inner {
    identity: Identity,
    name: String,
    client_urls: Vec<String>,
    settings: Settings,
    raft: Raft<Types, Store>,
    store: Store,
    /// The state machine's.
    applied: Arc<AtomicU64>,
    /// That of the state, and those of this version.
    format: Arc<AtomicU64>,
    formats: Formats,
    log: RaftLog<Types>,
    peers: Peers,
    leadership: watch::Receiver<Leadership>,
    /// When a leader was heard of last, in milliseconds since `began`.
    heard_ms: AtomicU64,
    began: Instant,
    barrier: read_index::Barrier,
    changing: tokio::sync::Mutex<()>,
    /// The server's, which has this node.
    leader_leases: OnceLock<Weak<dyn LeaderLeases>>,
    is_published: watch::Sender<bool>,
    ended: watch::Sender<Option<EndReason>>,
    /// The state machine's.
    damage: Arc<DamageRecord>,
    is_stopping: AtomicBool,
    /// Whether this member was added as a learner without a later promotion.
    is_only_learning: AtomicBool,
    tasks: Mutex<Vec<tokio::task::JoinHandle<()>>>,
    /// Of tests: this member does not notice who leads, as after a pause.
    #[cfg(test)]
    is_unaware: AtomicBool,
    counts: Counts,
    /// Of Raft's own runtime, which is the server's: its tasks have this node.
    runtime: tokio::runtime::Handle,
    /// Last, since log and store use it.
    engine: Engine,
}

/// The settings that a running node looks at.
#[derive(Clone, Debug)]
struct Settings {
    election_timeout: Duration,
    heartbeat_interval: Duration,
    request_timeout: Duration,
    max_request_bytes: usize,
    is_reconfig_check_strict: bool,
    health_interval: Duration,
    max_learners: usize,
}

/// The runtime that Raft has for itself. It ends with this value, and all its tasks with it; without waiting, since its owner may be
/// dropped in a task.
pub(crate) struct RaftRuntime(Option<Runtime>);

impl RaftRuntime {
    pub(crate) fn start() -> Result<RaftRuntime, StartError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RAFT_THREADS)
            .thread_name("raft")
            .enable_all()
            .build();
        let failed = |error| StartError::new(format!("the threads of Raft cannot be started: {error}"));
        Ok(RaftRuntime(Some(runtime.map_err(failed)?)))
    }

    fn handle(&self) -> Result<tokio::runtime::Handle, StartError> {
        let handle = self.0.as_ref().map(|runtime| runtime.handle().clone());
        handle.ok_or_else(|| StartError::new("the threads of Raft have ended"))
    }
}

impl Drop for RaftRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

fn raft_config(config: &Config) -> Result<openraft::Config, StartError> {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let election = millis(config.election_timeout);
    let raft = openraft::Config {
        cluster_name: config.initial_cluster_token.clone(),
        heartbeat_interval: millis(config.heartbeat_interval),
        election_timeout_min: election,
        election_timeout_max: election * 2,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(config.snapshot_count),
        max_in_snapshot_log_to_keep: config.catchup_entries,
        replication_lag_threshold: config.snapshot_count.saturating_add(config.catchup_entries),
        // A removed leader continues until its followers have the entry.
        removed_leader_step_down: openraft::StepDownPolicy::After(election),
        enable_pre_vote: Some(config.is_pre_vote_on),
        ..forebay_raft::config()
    };
    raft.validate()
        .map_err(|error| StartError::new(format!("the settings of Raft contradict each other: {error}")))
}

/// Returns the engine of a member. The store of its state has half of the engine's memory, which by default is a quarter of the machine's.
fn engine() -> Result<Engine, StartError> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let shards = if processors >= 4 { 2 } else { 1 };
    let start = |config: forebay::Config| {
        let config = config.shards(shards).on_event(|degradation| tracing::warn!("{degradation}"));
        Engine::start(config)
            .map_err(|error| StartError::new(format!("the storage engine cannot be started: {error}")))
    };
    let engine = start(forebay::Config::new())?;
    if engine.memory_unreserved() >= ARENA_BYTES_MIN as u64 {
        return Ok(engine);
    }
    drop(engine);
    let engine = start(forebay::Config::new().arena_bytes_max(ARENA_BYTES_MIN))?;
    if engine.memory_unreserved() < ARENA_BYTES_MIN as u64 {
        let least = ARENA_BYTES_MIN >> 20;
        tracing::warn!(
            "there is less memory than {least} MiB: a long change that other members apply may end this one"
        );
    }
    Ok(engine)
}

/// Where the parts of a member are below its data directory.
struct Directories {
    member: PathBuf,
    log: PathBuf,
    state: PathBuf,
}

impl Directories {
    fn of(member: PathBuf, log: Option<PathBuf>) -> Directories {
        Directories { log: log.unwrap_or_else(|| member.join("log")), state: member.join("state"), member }
    }
}

impl Node {
    /// Opens log and state, and starts, joins or continues in the cluster.
    ///
    /// # Errors
    /// What stands in the way, as a sentence.
    pub(crate) async fn start(
        config: &Config,
        machine: impl Fn() -> Machine,
        tls: Option<Arc<rustls::ClientConfig>>,
        runtime: &RaftRuntime,
    ) -> Result<Node, StartError> {
        let handle = runtime.handle()?;
        let dialer = Dialer {
            tls,
            names: config.peer_names.clone(),
            connect_timeout: config.election_timeout,
            keep_alive: config.election_timeout.max(Duration::from_secs(1)),
            formats: config.formats,
            runtime: handle.clone(),
        };
        let directories = Directories::of(config.member_dir(), config.log_dir.clone());
        let mut identity = bootstrap::identity(config, &directories.member, &dialer).await?;
        let raft_config = Arc::new(raft_config(config)?);
        let engine = engine()?;
        let mut log = owner::open(&engine, &directories, &mut identity).await?;
        let damage = Arc::new(DamageRecord::default());
        let machine = || machine().with_damage(damage.clone());
        let opened = state_copy::open(&engine, &directories.state, machine, &damage).await?;
        let state_copy::OpenedState { mut store, applied, format } = opened;
        if config.is_new_cluster_forced || owner::is_interrupted(&log, &identity) {
            let damage = damage.get();
            let forced =
                force::go_on_alone(&mut identity, &directories, &mut log, &mut store, damage, &dialer);
            if let Err(error) = forced.await {
                // The first error counts.
                let _ = (store.close().await, log.close().await);
                return Err(error);
            }
        }
        let peers = Peers::new(identity.cluster_id, identity.member_id, dialer);
        let network = Network {
            peers: peers.clone(),
            append_timeout: (config.election_timeout * 2).max(Duration::from_secs(5)),
            install_timeout: Duration::from_secs(600),
        };
        let (id, raft_log, raft_store) = (identity.member_id, log.clone(), store.clone());
        let started = handle.spawn(async move {
            let raft = Raft::new(id, raft_config, network, raft_log, raft_store).await;
            raft.map_err(|error| StartError::new(format!("Raft cannot be started: {error}")))
        });
        let started = started.await;
        let raft = started.map_err(|error| StartError::new(format!("Raft cannot be started: {error}")))??;
        let (leadership_sender, leadership) = watch::channel(Leadership::default());
        let inner = Inner {
            name: config.name.clone(),
            client_urls: config.advertise_client_urls.iter().map(ToString::to_string).collect(),
            settings: Settings {
                election_timeout: config.election_timeout,
                heartbeat_interval: config.heartbeat_interval,
                request_timeout: REQUEST_TIMEOUT + config.election_timeout * 2,
                max_request_bytes: config.max_request_bytes,
                is_reconfig_check_strict: config.is_reconfig_check_strict,
                health_interval: config.health_interval,
                max_learners: config.max_learners,
            },
            identity,
            raft,
            store,
            applied,
            format,
            formats: config.formats,
            log,
            peers,
            leadership,
            heard_ms: AtomicU64::new(0),
            began: Instant::now(),
            barrier: read_index::Barrier::new(),
            changing: tokio::sync::Mutex::new(()),
            leader_leases: OnceLock::new(),
            is_published: watch::Sender::new(false),
            ended: watch::Sender::new(None),
            damage,
            is_stopping: AtomicBool::new(false),
            is_only_learning: AtomicBool::new(false),
            tasks: Mutex::default(),
            #[cfg(test)]
            is_unaware: AtomicBool::new(false),
            counts: Counts::default(),
            runtime: handle,
            engine,
        };
        let node = Node { inner: Arc::new(inner) };
        node.begin().await?;
        if let Some(damage) = node.damage() {
            if !node.is_healing() {
                node.shutdown().await;
                return Err(StartError::new(format!(
                    "the state in {} cannot be opened: {damage}; there are too few other members to take it from",
                    directories.state.display()
                )));
            }
            // For any later membership.
            node.inner.damage.count_entries();
        }
        node.start_tasks(leadership_sender);
        Ok(node)
    }

    /// Returns the handle of Raft's own runtime: its service runs there too.
    pub(crate) fn runtime(&self) -> &tokio::runtime::Handle {
        &self.inner.runtime
    }

    /// Returns what has no strong reference any more once nothing keeps the node.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> Weak<dyn Send + Sync> {
        Arc::downgrade(&(self.inner.clone() as Arc<dyn Send + Sync>))
    }

    #[cfg(test)]
    pub(crate) fn raft(&self) -> &Raft<Types, Store> {
        &self.inner.raft
    }

    /// Forgets where the other members are reached, as a member that has not heard of them yet.
    #[cfg(test)]
    pub(crate) fn forget_members(&self) {
        self.inner.peers.retain(|_| false);
    }

    /// Notes that a message to another member did not arrive.
    #[cfg(test)]
    pub(crate) fn lose_member(&self, id: u64) {
        self.inner.peers.note(id, Err(&Status::unavailable("lost")));
    }

    /// The same as [`forget_members`](Self::forget_members) for good: an election says nothing about this member.
    #[cfg(test)]
    pub(crate) fn forget_members_for_good(&self) {
        self.inner.peers.forget();
    }

    /// Sets whether this member keeps to the leader that it knows of, as one does that was paused.
    #[cfg(test)]
    pub(crate) fn set_unaware(&self, is_unaware: bool) {
        self.inner.is_unaware.store(is_unaware, Ordering::SeqCst);
    }

    /// Sets the URLs of another member.
    #[cfg(test)]
    pub(crate) fn set_urls(&self, id: u64, urls: &[String]) {
        self.inner.peers.set(id, urls);
    }

    pub(crate) fn store(&self) -> &Store {
        &self.inner.store
    }

    pub(crate) fn log(&self) -> &RaftLog<Types> {
        &self.inner.log
    }

    /// Returns the I/O class of the scrub: as background work, and with a limit.
    pub(crate) fn scrub_class(&self, bytes_per_second_max: u64) -> forebay::Result<Class> {
        let spec = ClassSpec::new("scrub").shares(SCRUB_SHARES);
        self.inner.engine.set_class(spec.read_bytes_per_second_max(bytes_per_second_max))
    }

    /// Returns how messages to the other members fare, by their ids.
    pub(crate) fn reached(&self) -> BTreeMap<u64, Reachability> {
        self.inner.peers.reached()
    }

    pub(crate) fn id(&self) -> u64 {
        self.inner.identity.member_id
    }

    pub(crate) fn cluster_id(&self) -> u64 {
        self.inner.identity.cluster_id
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.inner.counts
    }

    pub(crate) fn term(&self) -> u64 {
        self.inner.leadership.borrow().term
    }

    pub(crate) fn leader(&self) -> Option<u64> {
        self.inner.leadership.borrow().leader
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.inner.leadership.borrow().is_own
    }

    /// Returns a receiver of who leads. It changes within a heartbeat.
    pub(crate) fn leadership(&self) -> watch::Receiver<Leadership> {
        self.inner.leadership.clone()
    }

    /// Returns a receiver of why this member's time has ended.
    pub(crate) fn ended(&self) -> watch::Receiver<Option<EndReason>> {
        self.inner.ended.subscribe()
    }

    /// Returns in which way the state is not as it was written, as far as reads have found.
    pub(crate) fn damage(&self) -> Option<Damage> {
        self.inner.damage.get()
    }

    /// Returns a receiver of the same.
    pub(crate) fn damage_found(&self) -> watch::Receiver<Option<Damage>> {
        self.inner.damage.subscribe()
    }

    /// Returns which state is open, to be compared. It keeps nothing of it.
    pub(crate) fn open_state(&self) -> Weak<[Keyspace]> {
        Arc::downgrade(&self.inner.store.keyspaces())
    }

    /// Sets in which way the state is not as it was written; `None` once all of it was read, and is.
    pub(crate) fn set_damage(&self, damage: Option<Damage>) {
        self.inner.damage.set(damage);
    }

    /// Returns the index of the last entry that was applied here: at least that of each outcome that a caller has.
    pub(crate) fn applied_index(&self) -> u64 {
        // Raft knows of those before the start, and of a snapshot's.
        let of_raft = self.inner.raft.watch_apply_progress().get().map_or(0, |id| id.index);
        of_raft.max(self.inner.applied.load(Ordering::Acquire))
    }

    /// Returns the index of the last entry that is known here to be committed.
    pub(crate) fn committed_index(&self) -> u64 {
        let of_raft = self.inner.raft.watch_commit_progress().get().map_or(0, |id| id.index);
        of_raft.max(self.inner.applied.load(Ordering::Acquire))
    }

    /// Returns the index of the last entry of the log.
    pub(crate) fn last_index(&self) -> u64 {
        let of_raft = self.inner.raft.metrics().borrow_watched().last_log_index.unwrap_or(0);
        of_raft.max(self.inner.applied.load(Ordering::Acquire))
    }

    /// Returns the format of the state; see [`Formats`].
    pub(crate) fn format(&self) -> u64 {
        self.inner.format.load(Ordering::Acquire)
    }

    /// Refuses a change that some members may not know.
    fn check_format(&self, change: &command::Change) -> Result<(), Status> {
        if format_of(change) > self.format() { Err(Refusal::NotCapable.into()) } else { Ok(()) }
    }

    /// Returns whether this member only follows, without a vote.
    pub(crate) fn is_learner(&self) -> bool {
        let metrics = self.inner.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        !metrics.membership_config.membership().voter_ids().any(|id| id == self.id())
    }

    /// Returns whether `member list` shows this member as a learner: a learner that becomes a voter by itself does not count.
    pub(crate) fn is_only_learning(&self) -> bool {
        self.inner.is_only_learning.load(Ordering::Relaxed)
    }

    /// Returns when nothing has led for three election timeouts on end, as far as this member knows.
    pub(crate) fn long_without_leader(&self) -> impl Future<Output = ()> + Send + 'static {
        alone(self.leadership(), self.inner.settings.election_timeout * 3)
    }

    pub(crate) fn header(&self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.cluster_id(),
            member_id: self.id(),
            revision,
            raft_term: self.term(),
        }
    }

    /// Sets the keeper of the leases. Before, and once it is dropped, requests about leases are refused as unavailable.
    pub(crate) fn set_leader_leases(&self, leader_leases: &Arc<dyn LeaderLeases>) {
        // A second one would have the same leases.
        let _ = self.inner.leader_leases.set(Arc::downgrade(leader_leases));
    }

    fn leader_leases(&self) -> Result<Arc<dyn LeaderLeases>, Status> {
        if !self.is_leader() {
            return Err(not_leader());
        }
        self.inner.leader_leases.get().and_then(Weak::upgrade).ok_or_else(|| Refusal::Stopped.into())
    }

    fn heard_from_leader(&self) {
        let millis = u64::try_from(self.inner.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.inner.heard_ms.store(millis, Ordering::Relaxed);
    }

    /// Returns the deadline of a request that starts now.
    pub(crate) fn deadline(&self) -> tokio::time::Instant {
        tokio::time::Instant::now() + self.inner.settings.request_timeout
    }

    /// Ends this member's service.
    pub(crate) fn end(&self, why: EndReason) {
        self.inner.ended.send_if_modified(|ended| {
            let is_first = ended.is_none();
            if is_first {
                *ended = Some(why);
            }
            is_first
        });
    }

    fn check_running(&self) -> Result<(), Status> {
        let is_over = self.inner.is_stopping.load(Ordering::Relaxed) || self.inner.ended.borrow().is_some();
        if is_over { Err(Refusal::Stopped.into()) } else { Ok(()) }
    }

    /// Proposes a change, here or at the leader, and returns when it is applied here: the outcome, and its index in the log.
    ///
    /// # Errors
    /// After [`Refusal::Timeout`] and [`Refusal::LeaderChanged`] the change may have been made, or may still be made.
    pub(crate) async fn propose(&self, change: command::Change) -> Result<(Outcome, u64), Status> {
        self.propose_by(None, change).await
    }

    /// Proposes a change that this author asks for; `None` while authentication is off.
    ///
    /// # Errors
    /// As of [`propose`](Node::propose).
    pub(crate) async fn propose_by(
        &self,
        author: Option<peer::Author>,
        change: command::Change,
    ) -> Result<(Outcome, u64), Status> {
        self.check_format(&change)?;
        let operation = Operation::of(&change);
        self.counted(operation, self.propose_anywhere(Command::by(author, change))).await
    }

    async fn propose_anywhere(&self, command: Command) -> Result<(Outcome, u64), Status> {
        if command.0.len() > self.inner.settings.max_request_bytes {
            return Err(Refusal::RequestTooLarge.into());
        }
        let deadline = self.deadline();
        let here = || self.propose_here(command.clone());
        let there = |mut leader: Client| {
            let proposal = Proposal { command: command.0.clone() };
            async move {
                let peer::Proposed { outcome, index } = leader.propose(proposal).await?.into_inner();
                let outcome = outcome.ok_or_else(|| Status::internal("the leader sent no outcome"))?;
                self.wait_applied(index, deadline).await?;
                Ok((outcome, index))
            }
        };
        self.call_leader(LeaderCall::ONCE, deadline, here, there).await
    }

    /// Proposes a change as the leader.
    ///
    /// # Errors
    /// [`Refusal::NotLeader`]: nothing was done. After others the change may have been made, or may still be made.
    async fn propose_here(&self, command: Command) -> Result<(Outcome, u64), Status> {
        self.check_running()?;
        if self.is_healing() {
            return Err(not_leader());
        }
        if self.committed_index() > self.applied_index().saturating_add(APPLY_GAP_MAX) {
            return Err(Refusal::TooManyRequests.into());
        }
        match self.inner.raft.client_write(command).await {
            Ok(written) => Ok((written.data, written.log_id.index)),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => Err(not_leader()),
            // It may be committed by the next leader.
            Err(RaftError::APIError(ClientWriteError::LogEntryDiscarded(_))) => {
                Err(Refusal::LeaderChanged.into())
            }
            Err(RaftError::APIError(error)) => Err(Status::internal(error.to_string())),
            // It is committed, and its outcome is in the next state.
            Err(RaftError::Fatal(_)) if self.is_healing() => Err(Refusal::LeaderChanged.into()),
            Err(RaftError::Fatal(error)) => {
                tracing::warn!("a proposal failed: {error}");
                Err(Refusal::Stopped.into())
            }
        }
    }

    /// Waits until an entry is applied here.
    async fn wait_applied(&self, index: u64, deadline: tokio::time::Instant) -> Result<(), Status> {
        let mut applied = self.inner.raft.watch_apply_progress();
        let reached = applied.wait_until(|id| id.as_ref().is_some_and(|id| id.index >= index));
        match tokio::time::timeout_at(deadline, reached).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(Refusal::Stopped.into()),
            Err(_) => Err(Refusal::Timeout.into()),
        }
    }

    /// Waits until the cluster knows this member's name and client URLs.
    pub(crate) async fn published(&self) {
        let mut published = self.inner.is_published.subscribe();
        // The sender lives as long as the node.
        let _ = published.wait_for(|published| *published).await;
    }

    /// Hands the lead over if this member leads others: the first time to the one with the most entries, the next time to another one.
    pub(crate) async fn hand_over_lead(&self, time: usize) {
        self.hand_over(time).await;
    }

    pub(crate) fn heartbeat_interval(&self) -> Duration {
        self.inner.settings.heartbeat_interval
    }

    /// Has requests fail from here on. Returns whether they did before.
    pub(crate) fn set_stopping(&self) -> bool {
        self.inner.is_stopping.swap(true, Ordering::Relaxed)
    }

    /// Closes Raft, state and log. Requests fail from here on.
    pub(crate) async fn shutdown(&self) {
        if self.set_stopping() {
            return;
        }
        for task in std::mem::take(&mut *self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner)) {
            task.abort();
        }
        if let Err(error) = self.inner.raft.shutdown().await {
            tracing::warn!("Raft ended with a failure: {error}");
        }
        // What failed before is known already; the next start recovers.
        if let Err(error) = self.inner.store.close().await {
            tracing::warn!("the state was not closed cleanly: {error}");
        }
        if let Err(error) = self.inner.log.close().await {
            tracing::warn!("the log was not closed cleanly: {error}");
        }
    }
}

/// Returns when nothing has led for this long on end.
async fn alone(mut leadership: watch::Receiver<Leadership>, limit: Duration) {
    while leadership.wait_for(|now| now.leader.is_none()).await.is_ok() {
        match tokio::time::timeout(limit, leadership.wait_for(|now| now.leader.is_some())).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => break,
            Err(_) => return,
        }
    }
    // The member has ended, for another reason.
    std::future::pending().await
}

/// Returns the settings of the state's store. A put looks its key up, and often the key is new. Nearly all bytes are in the last level.
fn store_options() -> forebay_kv::Options {
    forebay_kv::Options::new()
        .filter_policy(FilterPolicy::Always)
        .compression(Compression::Zstd(3))
        .upper_compression(Compression::Lz4)
}

fn forebay_wal_options() -> forebay_wal::Options {
    forebay_wal::Options::new().class(Class::LOG).shard(0)
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = format!("{:x}", self.id());
        f.debug_struct("Node").field("id", &id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time is simulated.
    #[tokio::test(start_paused = true)]
    async fn a_leader_that_comes_back_in_time_counts_from_anew() {
        let limit = Duration::from_secs(3);
        let led = Leadership { leader: Some(1), term: 1, is_own: false };
        let (sender, leadership) = watch::channel(led);
        let alone = tokio::spawn(alone(leadership, limit));
        for _ in 0..3 {
            sender.send_replace(Leadership { leader: None, ..led });
            tokio::time::sleep(limit * 9 / 10).await;
            sender.send_replace(led);
            tokio::time::sleep(limit * 2).await;
            assert!(!alone.is_finished());
        }
        let began = tokio::time::Instant::now();
        sender.send_replace(Leadership { leader: None, ..led });
        alone.await.unwrap();
        assert!((limit..limit * 2).contains(&began.elapsed()), "{:?}", began.elapsed());
    }
}
