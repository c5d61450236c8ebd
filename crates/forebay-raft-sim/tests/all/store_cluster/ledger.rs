//! The test's knowledge of all nodes, and a node's log under its eyes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use forebay::Engine;
use forebay_raft::RaftLog;
use forebay_sim::{self as sim, net};
use openraft::OptionalSend;
use openraft::alias::{EntryOf, LogIdOf, VoteOf};
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};

use crate::common::{Defect, Types};
use crate::store_cluster::trouble::Trouble;

/// The test's knowledge of all nodes.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The log id of each entry that a node has applied, by its index, and the element that it appends.
    pub(crate) applied: BTreeMap<u64, (LogIdOf<Types>, Option<u64>)>,
    /// The index after the last entry that a node has applied.
    pub(crate) next: BTreeMap<u32, u64>,
    /// The last entry that a node has truncated, until it appends that entry again.
    truncated: BTreeMap<u32, LogIdOf<Types>>,
    /// The nodes on the side of the old leader, until a node on the other side has granted its vote.
    pub(crate) old_side: Option<Vec<u32>>,
    /// The node that lost its power after its vote, until it appends.
    pub(crate) voter: Option<u32>,
    /// The nodes that were given entries, while all nodes wait to lose their power by that.
    pub(crate) given: Option<BTreeSet<u32>>,
    /// Whether nodes lose their power now: neither before the first election, nor after the trouble.
    pub(crate) is_trouble: bool,
    /// The first violation.
    pub(crate) broken: Option<String>,
}

/// Counts of what happened to the nodes of all worlds of a test.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Snapshots that had arrived, and were given to openraft.
    pub(crate) arrived: AtomicU64,
    /// Installed snapshots that replaced the state of a node which continued with the entries after them.
    pub(crate) installed: AtomicU64,
    /// Nodes that lost their power right after they had granted their vote.
    pub(crate) voters_cut: AtomicU64,
    pub(crate) truncations: AtomicU64,
    /// Truncations after which the truncated entries were there again after a power cut.
    pub(crate) returned: AtomicU64,
}

pub(crate) fn note(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// The nodes of a world, and the faults done to them.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) nodes: u32,
    pub(crate) kind: Trouble,
    pub(crate) defect: Defect,
    /// Whether truncated entries may return. For the log they must not; for the cluster, see the test that sets it.
    pub(crate) entries_may_return: bool,
    pub(crate) events: Arc<Events>,
    pub(crate) ledger: Arc<Mutex<Ledger>>,
}

impl Cluster {
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }

    pub(crate) fn fail(&self, why: String) {
        self.ledger().broken.get_or_insert(why);
    }

    /// A node has granted its vote. If that elects the other side's leader, it loses its power when it has just said so,
    /// and the old leader is the first to reach it afterwards.
    fn granted(&self, voter: u32, candidate: u32) {
        let old = self.ledger().old_side.take_if(|old| !old.contains(&voter) && !old.contains(&candidate));
        let Some(old) = old else { return };
        for node in old {
            net::heal(node, voter);
            net::heal(voter, node);
        }
        net::cut(candidate, voter);
        self.ledger().voter = Some(voter);
        sim::node(voter).power_cut_after(Duration::from_micros(1 + sim::random(200)));
        note(&self.events.voters_cut);
    }

    /// A node has truncated its log. Mostly it loses its power before anything follows.
    fn truncated(&self, node: u32, last: LogIdOf<Types>) {
        let mut ledger = self.ledger();
        ledger.truncated.insert(node, last);
        note(&self.events.truncations);
        if self.kind == Trouble::Truncations && ledger.is_trouble && sim::random(4) != 0 {
            sim::node(node).power_cut_after(Duration::from_micros(1 + sim::random(30)));
        }
    }

    /// A snapshot has arrived at the current node, and will be installed. In some installs it loses its power: at any operation,
    /// or while a new file `current` is made, which says what the state is.
    pub(crate) fn arrived(&self, engine: &Engine) {
        note(&self.events.arrived);
        if !self.ledger().is_trouble || sim::random(100) >= self.kind.cuts_in_installs_percent() {
            return;
        }
        let (node, engine) = (sim::current_node(), engine.clone());
        drop(sim::spawn(async move {
            let is_made = async || engine.metadata("/disk/state/current.new").await.is_ok();
            if sim::random(4) == 0 || is_made().await {
                node.power_cut_at_operation(1 + sim::random(200));
                return;
            }
            for _ in 0..1_500 {
                if is_made().await {
                    // Mostly at any time: the steps of an install may follow each other without an operation that counts.
                    if sim::random(4) == 0 {
                        node.power_cut_at_operation(1 + sim::random(8));
                    } else {
                        node.power_cut_after(Duration::from_micros(sim::random(15_000)));
                    }
                    break;
                }
                let _ = sim::sleep(Duration::from_micros(10)).await;
            }
        }));
    }

    /// A node appends. When a majority was given entries, all nodes lose their power: just before or after those are
    /// acknowledged.
    fn appends(&self, node: u32, entries: &[EntryOf<Types>]) {
        let mut ledger = self.ledger();
        if ledger.truncated.get(&node).is_some_and(|last| entries.iter().any(|entry| entry.log_id() == *last))
        {
            ledger.truncated.remove(&node);
        }
        if ledger.voter == Some(node) {
            // The old leader commits these entries. Without power the voter forgets that they are committed, so that openraft's
            // assertions do not stop it when it accepts others in their place.
            ledger.voter = None;
            sim::node(node).power_cut_after(Duration::from_micros(2_000 + sim::random(10_000)));
        }
        let Some(given) = &mut ledger.given else { return };
        given.insert(node);
        if given.len() as u32 > self.nodes / 2 {
            ledger.given = None;
            let soon = 1 + sim::random(1_500);
            for node in 1..=self.nodes {
                sim::node(node).power_cut_after(Duration::from_micros(soon));
            }
        }
    }

    /// Checks the last entry of a log that was opened: what was truncated before must not be there.
    fn opened(&self, node: u32, last: Option<LogIdOf<Types>>) {
        let truncated = self.ledger().truncated.remove(&node);
        if truncated.is_some() && last == truncated {
            note(&self.events.returned);
            if !self.entries_may_return {
                let last = last.map(|id| format!("{id}")).unwrap_or_default();
                self.fail(format!("node {node} begins with {last} in its log, which it had truncated"));
            }
        }
    }
}

/// A node's log, whose votes and truncations the ledger sees.
pub(crate) struct WatchedLog {
    log: RaftLog<Types>,
    node: u32,
    cluster: Cluster,
}

impl WatchedLog {
    /// Returns a log that was just opened, under the ledger's eyes.
    pub(crate) async fn new(
        mut log: RaftLog<Types>,
        node: u32,
        cluster: Cluster,
    ) -> Result<WatchedLog, String> {
        let state = log.get_log_state().await.map_err(|error| error.to_string())?;
        cluster.opened(node, state.last_log_id);
        Ok(WatchedLog { log, node, cluster })
    }
}

impl RaftLogStorage<Types> for WatchedLog {
    type LogReader = RaftLog<Types>;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        self.log.get_log_state().await
    }

    async fn get_log_reader(&mut self) -> RaftLog<Types> {
        self.log.get_log_reader().await
    }

    async fn save_vote(&mut self, vote: &VoteOf<Types>) -> io::Result<()> {
        self.log.save_vote(vote).await?;
        let candidate = vote.leader_id.node_id as u32;
        if !vote.committed && candidate != self.node {
            self.cluster.granted(self.node, candidate);
        }
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogIdOf<Types>>) -> io::Result<()> {
        self.log.save_committed(committed).await
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogIdOf<Types>>> {
        self.log.read_committed().await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = EntryOf<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<_> = entries.into_iter().collect();
        self.cluster.appends(self.node, &entries);
        self.log.append(entries, callback).await
    }

    async fn truncate_after(&mut self, last: Option<LogIdOf<Types>>) -> io::Result<()> {
        let before = self.log.get_log_state().await?.last_log_id;
        self.log.truncate_after(last).await?;
        if let Some(before) = before.filter(|before| last.is_none_or(|last| last.index() < before.index())) {
            self.cluster.truncated(self.node, before);
        }
        Ok(())
    }

    async fn purge(&mut self, upto: LogIdOf<Types>) -> io::Result<()> {
        self.log.purge(upto).await
    }
}
