//! Three members, what happens to them, and the rounds of clients.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use etcd_client::Client as Etcd;
use forebay_test::draw::Draw;
use forebay_test::machines::Machines;
use forebay_test::machines::nodes::{FAULTS, Nodes, OPERATIONS_LEAST, Program};
use forebay_test::registers::History;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::PATIENCE;
use super::check::{Call, Checker};
use super::client::{Client, ClientGroup, Effect};
use super::clocks::{self, Clock, Clocks};
use super::leases::{Holder, Leases};
use super::watcher::{Feed, Habit, ShownEvent, Watcher};
use crate::common::{http_get, own_program};

const CLIENTS: usize = 5;
/// The clients, the one that keeps leases, and the one that leaves them.
const PARTIES: usize = CLIENTS + 2;

/// How members and clients work: as they should, or wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Sound,
    /// Clients count serializable reads as linearizable.
    StaleReads,
    /// Restarted watches skip a revision.
    SkippingWatches,
}

struct Server {
    program: PathBuf,
    /// The member joins a cluster that is there, if it has no data.
    joins: [bool; 3],
    clocks: Clocks,
}

fn client_url(machines: &Machines, node: usize) -> String {
    format!("http://{}", machines.address(node, 0))
}

fn peer_url(machines: &Machines, node: usize) -> String {
    format!("http://{}", machines.address(node, 1))
}

fn clock_of(machines: &Machines, node: usize) -> PathBuf {
    machines.log_of(node).with_extension("clock")
}

fn data_of(machines: &Machines, node: usize) -> PathBuf {
    machines.dir_of(node).join("data")
}

impl Program for Server {
    fn command(&mut self, machines: &Machines, node: usize) -> Command {
        let all: Vec<String> = (0..3).map(|node| format!("n{node}={}", peer_url(machines, node))).collect();
        let (client, peer) = (client_url(machines, node), peer_url(machines, node));
        let state = if self.joins[node] { "existing" } else { "new" };
        let mut command = machines.command(node, &self.program);
        self.clocks.start(node, &clock_of(machines, node), &mut command);
        command
            .arg(format!("--name=n{node}"))
            .arg(format!("--data-dir={}", data_of(machines, node).display()))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster={}", all.join(",")))
            .arg(format!("--initial-cluster-state={state}"))
            // So that members that were away for a while need snapshots.
            .args(["--snapshot-count=60", "--snapshot-catchup-entries=20"])
            .args(["--heartbeat-interval=50", "--election-timeout=300"]);
        command
    }
}

pub(crate) struct Cluster {
    nodes: Nodes<Server>,
    way: Way,
    shared: ClientGroup,
    feed: Arc<Feed>,
    leases: Arc<Leases>,
    checker: Checker,
    watchers: Vec<JoinHandle<()>>,
    /// Events of the feed that were checked.
    checked: usize,
    compacted: i64,
}

impl Cluster {
    pub(crate) fn start(machines: Machines, seed: u64, way: Way) -> Cluster {
        let shared = ClientGroup {
            record: Arc::default(),
            next_process: Arc::new(AtomicUsize::new(0)),
            next_value: Arc::new(AtomicU64::new(1)),
            reads_are_stale: way == Way::StaleReads,
        };
        let server = Server { program: own_program(), joins: [false; 3], clocks: Clocks::new() };
        let mut faults = [&FAULTS[..], &["member replaced"]].concat();
        if server.clocks.of(1) != Clock::Real {
            faults.extend(["time of day jumped", "all clocks jumped"]);
        }
        Cluster {
            nodes: Nodes::start(machines, server, seed, &faults),
            way,
            shared,
            feed: Arc::default(),
            leases: Arc::default(),
            checker: Checker::new(),
            watchers: Vec::new(),
            checked: 0,
            compacted: 0,
        }
    }

    fn urls(&self) -> Vec<String> {
        (0..3).map(|node| client_url(&self.nodes.machines, node)).collect()
    }

    async fn connect(&self, node: usize) -> Etcd {
        Etcd::connect([client_url(&self.nodes.machines, node)], None)
            .await
            .expect("it connects with the first call")
    }

    async fn client(&mut self, round: u64, number: usize, history: &Arc<History>) -> Client {
        let random = Draw::new(self.nodes.random.below(u64::MAX));
        Client::new(self.urls(), number, round, self.shared.clone(), history.clone(), random).await
    }

    /// Waits for the first change, and starts the watchers.
    pub(crate) async fn begin(&mut self) {
        self.recover(0).await;
        for (number, habit) in [Habit::Stays, Habit::LeavesSilence, Habit::Hops].into_iter().enumerate() {
            let watcher = Watcher {
                number,
                urls: self.urls(),
                habit,
                feed: self.feed.clone(),
                record: self.shared.record.clone(),
                random: Draw::new(self.nodes.random.below(u64::MAX)),
                skips: self.way == Way::SkippingWatches,
            };
            self.watchers.push(tokio::spawn(watcher.follow()));
        }
        // The first recovery, before any fault, does not count.
        self.nodes.recoveries.clear();
    }

    /// Ends all faults, and waits until a change succeeds.
    async fn recover(&mut self, round: u64) {
        self.nodes.heal();
        let begun = Instant::now();
        let mut client = self.client(round, 0, &Arc::default()).await;
        loop {
            self.nodes.restart_ended();
            if client.put("recovery").await == Effect::Yes {
                break;
            }
            self.nodes.has_time(begun, "no change comes through").unwrap_or_else(|why| panic!("{why}"));
            sleep(Duration::from_millis(5)).await;
        }
        self.nodes.recoveries.push(begun.elapsed());
        self.count_snapshots().await;
    }

    async fn count_snapshots(&mut self) {
        for node in 0..3 {
            let address = self.nodes.machines.address(node, 0);
            let page = tokio::task::spawn_blocking(move || http_get(&address, "/metrics"));
            let page = page.await.expect("no panic").unwrap_or_default();
            let name = "forebay_etcd_snapshots_installed_total ";
            let count = page.lines().find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok());
            if let Some(count) = count {
                self.nodes.note_snapshots(node, count);
            }
        }
    }

    /// Runs clients on separate keys under faults, ends the faults, reads all keys, and checks everything that was seen.
    pub(crate) async fn round(&mut self, round: u64, least: Duration) -> Result<(), String> {
        let history = Arc::new(History::default());
        let is_over = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        for number in 0..PARTIES {
            let mut client = self.client(round, number, &history).await;
            let flag = is_over.clone();
            let is_over = move || flag.load(Ordering::Relaxed);
            let leases = self.leases.clone();
            tasks.push(match number {
                0 => tokio::spawn(Holder { client, leases }.keep_until(is_over)),
                1 => tokio::spawn(Holder { client, leases }.leave_until(is_over)),
                _ => tokio::spawn(async move {
                    while !is_over() {
                        client.step().await;
                    }
                }),
            });
        }
        let begun = Instant::now();
        loop {
            self.fault().await;
            if begun.elapsed() >= least {
                break;
            }
        }
        self.recover(round).await;
        // Faults and a busy machine may have left them no time.
        while history.counts().0 <= OPERATIONS_LEAST {
            sleep(Duration::from_millis(5)).await;
        }
        is_over.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.expect("a client");
        }
        let mut last = self.client(round, 0, &history).await;
        last.read_at_last().await;
        drop(last);
        let revision = self.members_agree().await?;
        self.nodes.note_operations(&history);
        history.check()?;
        self.check(revision).await
    }

    /// Checks what was seen up to a revision, which all members have.
    async fn check(&mut self, revision: i64) -> Result<(), String> {
        let begun = Instant::now();
        while self.feed.reached() < revision {
            if let Some(problem) = self.feed.problem() {
                return Err(problem);
            }
            self.nodes.has_time(begun, &format!("watches are at {} of {revision}", self.feed.reached()))?;
            self.nodes.restart_ended();
            sleep(Duration::from_millis(5)).await;
        }
        // Watches may be ahead, and calls are not: leases end.
        let shown = self.feed.range(self.checked, revision);
        self.checked += shown.len();
        for id in self.leases.ids() {
            self.checker.may_end(id);
        }
        self.leases.check(&shown)?;
        let calls: Vec<Call> = self.shared.record.take();
        let shown: Vec<_> = shown.into_iter().map(|ShownEvent { event, tick, .. }| (event, tick)).collect();
        self.checker.check(&shown, calls)?;
        self.feed.problem().map_or(Ok(()), Err)
    }

    /// Waits until all members have the same keys, and returns the revision.
    async fn members_agree(&mut self) -> Result<i64, String> {
        let mut client = self.client(0, 0, &Arc::default()).await;
        let begun = Instant::now();
        let mut revision = 0;
        loop {
            self.nodes.restart_ended();
            self.nodes.has_time(begun, &format!("members do not come to revision {revision}"))?;
            if revision == 0 {
                if let Ok(Ok(read)) = timeout(PATIENCE, client.member().get("recovery", None)).await {
                    revision = read.header().map_or(0, etcd_client::ResponseHeader::revision);
                } else {
                    client.turn();
                }
                continue;
            }
            let mut hashes = Vec::new();
            for node in 0..3 {
                let mut member = self.connect(node).await;
                if let Ok(Ok(hash)) = timeout(PATIENCE, member.hash_kv(revision)).await {
                    hashes.push((hash.compact_version(), hash.hash()));
                }
            }
            // A compaction may not have reached all of them.
            if hashes.len() == 3 && hashes.iter().all(|(compacted, _)| *compacted == hashes[0].0) {
                if hashes.iter().any(|hash| *hash != hashes[0]) {
                    return Err(format!("members differ at revision {revision}: {hashes:?}"));
                }
                return Ok(revision);
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Forgets the history that every watch has passed, half of the time.
    pub(crate) async fn compact(&mut self) {
        let revision = self.checker.past.revision - 1;
        if revision <= self.compacted || self.nodes.random.below(2) == 0 {
            return;
        }
        let at = self.nodes.random.below(3) as usize;
        let mut client = self.client(0, at, &Arc::default()).await;
        // Without a reply it may be made all the same.
        self.compacted = revision;
        let _ = timeout(PATIENCE, client.member().compact(revision, None)).await;
    }

    /// Waits until leases that were left have ended.
    pub(crate) async fn leases_end(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        while self.leases.left(&self.feed.range(self.checked, i64::MAX)) > 0 {
            self.nodes.has_time(begun, &format!("leases do not end: {:?}", self.leases))?;
            self.nodes.restart_ended();
            sleep(Duration::from_millis(20)).await;
        }
        let revision = self.members_agree().await?;
        self.check(revision).await
    }

    /// Lets something happen, for a while.
    async fn fault(&mut self) {
        let mut fault = self.nodes.draw();
        match fault.name {
            "leader cut off" => fault.node = self.leader().await.unwrap_or(fault.node),
            "time of day jumped" => self.jump(1),
            "all clocks jumped" => self.jump(2),
            "member replaced" => self.replace(fault.node).await,
            _ => {}
        }
        self.nodes.strike(&fault);
        // On a full disk a member ends, or continues with its present data; a start there may fail, without harm.
        if fault.name == "disk full" && self.nodes.random.below(2) == 0 {
            sleep(fault.time).await;
            self.nodes.kill(fault.node);
            self.nodes.spawn(fault.node);
        }
        // The library reads a clock's file now and then.
        let is_clock = fault.name.ends_with("jumped");
        sleep(if is_clock { fault.time + clocks::CACHE } else { fault.time }).await;
        let pause = self.nodes.end(&fault);
        sleep(pause).await;
    }

    fn jump(&mut self, node: usize) {
        let Nodes { program: Server { clocks, .. }, machines, random, .. } = &mut self.nodes;
        if clocks.of(node) == Clock::Both {
            self.leases.jumps(2 * clocks::CACHE);
        }
        clocks.jump(node, &clock_of(machines, node), |below| random.below(below));
    }

    /// Returns the leader that most members name.
    async fn leader(&self) -> Option<usize> {
        let mut ids = BTreeMap::new();
        let mut named: BTreeMap<u64, u32> = BTreeMap::new();
        for node in 0..3 {
            let mut member = self.connect(node).await;
            if let Ok(Ok(status)) = timeout(PATIENCE, member.status()).await {
                ids.insert(status.header().map_or(0, etcd_client::ResponseHeader::member_id), node);
                *named.entry(status.leader()).or_default() += 1;
            }
        }
        let leader = named.into_iter().max_by_key(|(_, count)| *count)?.0;
        ids.get(&leader).copied()
    }

    /// Removes a member, and adds it anew with an empty directory.
    async fn replace(&mut self, node: usize) {
        let url = peer_url(&self.nodes.machines, node);
        let begun = Instant::now();
        let (mut is_removed, mut at) = (false, (node + 1) % 3);
        loop {
            let what = format!("n{node} is not replaced");
            self.nodes.has_time(begun, &what).unwrap_or_else(|why| panic!("{why}"));
            for other in (0..3).filter(|other| *other != node) {
                self.nodes.restart_if_ended(other);
            }
            let mut member = self.connect(at).await;
            let Ok(Ok(list)) = timeout(PATIENCE * 2, member.member_list()).await else {
                at = if (at + 1) % 3 == node { (at + 2) % 3 } else { (at + 1) % 3 };
                continue;
            };
            let found = list.members().iter().find(|member| member.peer_urls().contains(&url));
            match (found, is_removed) {
                (Some(found), false) => {
                    // Whether it was made is seen in the next list.
                    let _ = timeout(PATIENCE * 4, member.member_remove(found.id())).await;
                }
                (None, _) => {
                    is_removed = true;
                    self.nodes.kill(node);
                    let _ = timeout(PATIENCE * 4, member.member_add([&url], None)).await;
                }
                (Some(_), true) => break,
            }
            sleep(Duration::from_millis(20)).await;
        }
        self.nodes.kill(node);
        std::fs::remove_dir_all(data_of(&self.nodes.machines, node)).expect("its directory");
        self.nodes.program.joins[node] = true;
        self.nodes.spawn(node);
    }

    pub(crate) fn report(&self) -> String {
        let mut text = self.nodes.report();
        let leases = self.leases.counts();
        let _ = write!(
            text,
            "; {} revisions, seen by 3 watchers over {} connections; leases granted {}, kept alive {}, ended {}; \
             writes of disks that were slow {}; lines of logs with another year {}",
            self.checker.past.revision,
            self.feed.connections.load(Ordering::Relaxed),
            leases.granted,
            leases.kept_alive,
            leases.ended,
            self.slow_writes(),
            self.lines_of_other_years(),
        );
        text
    }

    fn slow_writes(&self) -> u64 {
        (0..3).map(|node| self.nodes.machines.writes_in_group(node)).sum()
    }

    fn lines_of_other_years(&self) -> usize {
        (0..3).map(|node| clocks::lines_of_other_years(&self.nodes.log(node))).sum()
    }

    /// Each kind possible here has occurred, with an observed effect where that is visible.
    pub(crate) fn check_that_faults_happened(&self, rounds: u64) {
        if !self.nodes.check_that_faults_happened(rounds) {
            return;
        }
        assert!(!self.nodes.machines.has_brakes() || self.slow_writes() > 0, "no disk was slow");
        let leases = self.leases.counts();
        assert!(leases.ended > 0 && leases.kept_alive > 0, "{leases:?}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.watchers.iter().for_each(JoinHandle::abort);
    }
}
