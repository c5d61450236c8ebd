//! Three members, what happens to them, and the rounds of clients.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use etcd_client::Client as Etcd;
use forebay_test::children::end_with_parent;
use forebay_test::draw::Draw;
use forebay_test::machines::Machines;
use forebay_test::registers::History;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::check::{Call, Checker};
use super::client::{Client, Made, Shared};
use super::clocks::{self, Clock, Clocks};
use super::leases::{Holder, Leases};
use super::watcher::{Feed, Habit, Shown, Watcher};
use super::{PATIENCE, RECOVERY_MAX};
use crate::common::{http_get, own_program};

/// The faults, by their names in the report.
const FAULTS: [&str; 12] = [
    "one killed",
    "two killed",
    "all killed",
    "one stopped",
    "one cut off",
    "one way cut",
    "leader cut off",
    "disk full",
    "disk slow",
    "time of day jumped",
    "all clocks jumped",
    "member replaced",
];

const CLIENTS: usize = 5;
/// The clients, the one that keeps leases, and the one that leaves them.
const PARTIES: usize = CLIENTS + 2;

/// How members and clients work: as they should, or wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Sound,
    /// Clients take serializable reads for linearizable ones.
    StaleReads,
    /// Watches that begin again leave a revision out.
    SkippingWatches,
}

pub(crate) struct Cluster {
    machines: Arc<Machines>,
    program: PathBuf,
    members: Vec<Option<Child>>,
    /// The member joins a cluster that is there, if it has no data.
    joins: [bool; 3],
    clocks: Clocks,
    way: Way,
    random: Draw,
    /// Faults of this turn that are still to come.
    deck: Vec<&'static str>,
    shared: Shared,
    feed: Arc<Feed>,
    leases: Arc<Leases>,
    checker: Checker,
    watchers: Vec<JoinHandle<()>>,
    /// Events of the feed that were checked.
    checked: usize,
    counts: BTreeMap<&'static str, u64>,
    recoveries: Vec<Duration>,
    done: usize,
    unknown: usize,
    /// Snapshots that each process is known to have installed, and those of all processes.
    installed_now: [u64; 3],
    installed: u64,
    restarts: u64,
    compacted: i64,
}

impl Cluster {
    pub(crate) fn start(machines: Machines, seed: u64, way: Way) -> Cluster {
        let shared = Shared {
            record: Arc::default(),
            next_process: Arc::new(AtomicUsize::new(0)),
            next_value: Arc::new(AtomicU64::new(1)),
            reads_are_stale: way == Way::StaleReads,
        };
        let mut cluster = Cluster {
            machines: Arc::new(machines),
            program: own_program(),
            members: vec![None, None, None],
            joins: [false; 3],
            clocks: Clocks::new(),
            way,
            random: Draw::new(seed),
            deck: Vec::new(),
            shared,
            feed: Arc::default(),
            leases: Arc::default(),
            checker: Checker::new(),
            watchers: Vec::new(),
            checked: 0,
            counts: BTreeMap::new(),
            recoveries: Vec::new(),
            done: 0,
            unknown: 0,
            installed_now: [0; 3],
            installed: 0,
            restarts: 0,
            compacted: 0,
        };
        (0..3).for_each(|node| cluster.spawn(node));
        cluster
    }

    fn client_url(&self, node: usize) -> String {
        format!("http://{}", self.machines.address(node, 0))
    }

    fn urls(&self) -> Vec<String> {
        (0..3).map(|node| self.client_url(node)).collect()
    }

    fn peer_url(&self, node: usize) -> String {
        format!("http://{}", self.machines.address(node, 1))
    }

    fn clock_of(&self, node: usize) -> PathBuf {
        self.machines.log_of(node).with_extension("clock")
    }

    fn data_of(&self, node: usize) -> PathBuf {
        self.machines.dir_of(node).join("data")
    }

    fn spawn(&mut self, node: usize) {
        let log = File::options().create(true).append(true).open(self.machines.log_of(node)).expect("a file");
        let all: Vec<String> = (0..3).map(|node| format!("n{node}={}", self.peer_url(node))).collect();
        let (client, peer) = (self.client_url(node), self.peer_url(node));
        let state = if self.joins[node] { "existing" } else { "new" };
        let mut command = self.machines.command(node, &self.program);
        let clock = self.clock_of(node);
        self.clocks.start(node, &clock, &mut command);
        command
            .arg(format!("--name=n{node}"))
            .arg(format!("--data-dir={}", self.data_of(node).display()))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster={}", all.join(",")))
            .arg(format!("--initial-cluster-state={state}"))
            // So that members that were away for a while need snapshots.
            .args(["--snapshot-count=60", "--snapshot-catchup-entries=20"])
            .args(["--heartbeat-interval=50", "--election-timeout=300"]);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file")).stderr(log);
        self.members[node] = Some(end_with_parent(&mut command).spawn().expect("a process"));
        self.installed_now[node] = 0;
    }

    fn kill(&mut self, node: usize) {
        if let Some(mut child) = self.members[node].take() {
            child.kill().expect("it is ours");
            child.wait().expect("it is ours");
        }
    }

    fn signal(&self, node: usize, signal: i32) {
        if let Some(child) = &self.members[node] {
            // SAFETY: kill(2) of a child that was not waited for: the number is its own.
            unsafe { libc::kill(child.id() as i32, signal) };
        }
    }

    fn has_ended(&mut self, node: usize) -> bool {
        match &mut self.members[node] {
            None => true,
            Some(child) => child.try_wait().expect("it is ours").is_some(),
        }
    }

    /// Starts members again that have ended, by a kill or by a failure of their disk.
    fn restart_ended(&mut self) {
        for node in 0..3 {
            if self.has_ended(node) {
                self.restarts += 1;
                self.spawn(node);
            }
        }
    }

    async fn connect(&self, node: usize) -> Etcd {
        Etcd::connect([self.client_url(node)], None).await.expect("it connects with the first call")
    }

    async fn client(&mut self, round: u64, number: usize, history: &Arc<History>) -> Client {
        let random = Draw::new(self.random.below(u64::MAX));
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
                random: Draw::new(self.random.below(u64::MAX)),
                skips: self.way == Way::SkippingWatches,
            };
            self.watchers.push(tokio::spawn(watcher.follow()));
        }
        // From now on there is one more.
        self.recoveries.clear();
    }

    /// Ends all faults, and waits until a change comes through.
    async fn recover(&mut self, round: u64) {
        self.machines.heal();
        for node in 0..3 {
            self.signal(node, libc::SIGCONT);
            self.machines.give_space_back(node);
            self.machines.release(node).expect("the group");
        }
        let begun = Instant::now();
        let mut client = self.client(round, 0, &Arc::default()).await;
        loop {
            self.restart_ended();
            if client.put("recovery").await == Made::Yes {
                break;
            }
            assert!(begun.elapsed() < RECOVERY_MAX, "no change comes through: {}", self.logs());
            sleep(Duration::from_millis(5)).await;
        }
        self.recoveries.push(begun.elapsed());
        self.count_snapshots().await;
    }

    async fn count_snapshots(&mut self) {
        for node in 0..3 {
            let address = self.machines.address(node, 0);
            let page = tokio::task::spawn_blocking(move || http_get(&address, "/metrics"));
            let page = page.await.expect("no panic").unwrap_or_default();
            let name = "forebay_etcd_snapshots_installed_total ";
            let count = page.lines().find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok());
            if let Some(count) = count {
                self.installed += count.saturating_sub(self.installed_now[node]);
                self.installed_now[node] = count;
            }
        }
    }

    /// Runs clients on keys of their own beside faults, ends the faults, reads all keys, and checks everything that was seen.
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
        while begun.elapsed() < least {
            self.fault().await;
        }
        self.recover(round).await;
        is_over.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.expect("a client");
        }
        let mut last = self.client(round, 0, &history).await;
        last.read_at_last().await;
        drop(last);
        let revision = self.members_agree().await?;
        let (done, unknown) = history.counts();
        self.done += done;
        self.unknown += unknown;
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
            if begun.elapsed() > RECOVERY_MAX {
                return Err(format!("watches are at {} of {revision}: {}", self.feed.reached(), self.logs()));
            }
            self.restart_ended();
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
        let shown: Vec<_> = shown.into_iter().map(|Shown { event, tick, .. }| (event, tick)).collect();
        self.checker.check(&shown, calls)?;
        self.feed.problem().map_or(Ok(()), Err)
    }

    /// Waits until all members have the same keys, and returns the revision.
    async fn members_agree(&mut self) -> Result<i64, String> {
        let mut client = self.client(0, 0, &Arc::default()).await;
        let begun = Instant::now();
        let mut revision = 0;
        loop {
            self.restart_ended();
            if begun.elapsed() > RECOVERY_MAX {
                return Err(format!("members do not come to revision {revision}: {}", self.logs()));
            }
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
            // A compaction may not have come to all of them.
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
        if revision <= self.compacted || self.random.below(2) == 0 {
            return;
        }
        let at = self.random.below(3) as usize;
        let mut client = self.client(0, at, &Arc::default()).await;
        // Without a reply it may be made all the same.
        self.compacted = revision;
        let _ = timeout(PATIENCE, client.member().compact(revision, None)).await;
    }

    /// Waits until leases that were left have ended.
    pub(crate) async fn leases_end(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        while self.leases.left(&self.feed.range(self.checked, i64::MAX)) > 0 {
            if begun.elapsed() > RECOVERY_MAX {
                return Err(format!("leases do not end: {:?} {}", self.leases, self.logs()));
            }
            self.restart_ended();
            sleep(Duration::from_millis(20)).await;
        }
        let revision = self.members_agree().await?;
        self.check(revision).await
    }

    /// Lets something happen, for a while. Every kind comes once before one comes again.
    async fn fault(&mut self) {
        let node = self.random.below(3) as usize;
        let other = (node + 1 + self.random.below(2) as usize) % 3;
        let long = Duration::from_millis(50 + self.random.below(700));
        if self.deck.is_empty() {
            self.deck = FAULTS.into_iter().filter(|name| self.is_possible(name)).collect();
        }
        let drawn = self.random.below(self.deck.len() as u64) as usize;
        let name = self.deck.swap_remove(drawn);
        self.fault_of(name, node, other, long).await;
        *self.counts.entry(name).or_default() += 1;
        self.restart_ended();
        sleep(Duration::from_millis(self.random.below(400))).await;
    }

    fn is_possible(&self, name: &str) -> bool {
        match name {
            "one cut off" | "one way cut" | "leader cut off" => self.machines.has_network(),
            "disk full" => self.machines.has_disks(),
            "disk slow" => self.machines.has_brakes(),
            "time of day jumped" | "all clocks jumped" => self.clocks.of(1) != Clock::Real,
            _ => true,
        }
    }

    async fn fault_of(&mut self, name: &str, node: usize, other: usize, long: Duration) {
        match name {
            "one killed" => self.kill(node),
            "two killed" => [node, other].into_iter().for_each(|node| self.kill(node)),
            "all killed" => (0..3).for_each(|node| self.kill(node)),
            "one stopped" => self.signal(node, libc::SIGSTOP),
            "disk full" => self.disk_full(node, long).await,
            "disk slow" => {
                if let Some(child) = &self.members[node] {
                    self.machines.brake(node, child.id()).expect("it runs");
                }
            }
            "one cut off" => self.cut_off(node),
            "one way cut" => {
                self.machines.cut(node, other).expect("a route");
                // Or all that it sends.
                if self.random.below(2) == 0 {
                    self.machines.cut(node, 3 - node - other).expect("a route");
                }
            }
            "leader cut off" => {
                let leader = self.leader().await.unwrap_or(node);
                self.cut_off(leader);
            }
            "time of day jumped" => self.jump(1),
            "all clocks jumped" => self.jump(2),
            "member replaced" => self.replace(node).await,
            _ => unreachable!("{name}"),
        }
        let is_clock = name.ends_with("jumped");
        // The library reads a clock's file now and then.
        sleep(if is_clock { long + clocks::CACHE } else { long }).await;
        match name {
            "one stopped" => self.signal(node, libc::SIGCONT),
            "disk full" => self.machines.give_space_back(node),
            "disk slow" => self.machines.release(node).expect("the group"),
            _ => self.machines.heal(),
        }
    }

    fn jump(&mut self, node: usize) {
        if self.clocks.of(node) == Clock::Both {
            self.leases.jumps(2 * clocks::CACHE);
        }
        let file = self.clock_of(node);
        self.clocks.jump(node, &file, |below| self.random.below(below));
    }

    /// Fills a member's disk. It ends then, or goes on with what it has; a start on a full disk may fail, and does no harm.
    async fn disk_full(&mut self, node: usize, long: Duration) {
        let machines = self.machines.clone();
        let filled = tokio::task::spawn_blocking(move || machines.fill(node)).await;
        filled.expect("no panic").expect("a full disk");
        if self.random.below(2) == 0 {
            sleep(long).await;
            self.kill(node);
            self.spawn(node);
        }
    }

    fn cut_off(&self, node: usize) {
        for other in (0..3).filter(|other| *other != node) {
            self.machines.cut(node, other).expect("a route");
            self.machines.cut(other, node).expect("a route");
        }
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
        let url = self.peer_url(node);
        let begun = Instant::now();
        let (mut is_removed, mut at) = (false, (node + 1) % 3);
        loop {
            assert!(begun.elapsed() < RECOVERY_MAX, "n{node} is not replaced: {}", self.logs());
            for other in (0..3).filter(|other| *other != node) {
                if self.has_ended(other) {
                    self.restarts += 1;
                    self.spawn(other);
                }
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
                    self.kill(node);
                    let _ = timeout(PATIENCE * 4, member.member_add([&url], None)).await;
                }
                (Some(_), true) => break,
            }
            sleep(Duration::from_millis(20)).await;
        }
        self.kill(node);
        std::fs::remove_dir_all(self.data_of(node)).expect("its directory");
        self.joins[node] = true;
        self.spawn(node);
    }

    pub(crate) fn report(&self) -> String {
        let mut recoveries = self.recoveries.clone();
        recoveries.sort();
        let mut text = format!("{} operations, {} without a reply; faults:", self.done, self.unknown);
        for (name, count) in &self.counts {
            let _ = write!(text, " {name} {count},");
        }
        let (middle, last) = (recoveries[recoveries.len() / 2], recoveries[recoveries.len() - 1]);
        let leases = self.leases.counts();
        let _ = write!(
            text,
            " members started again {}; snapshots installed {}; recovered after {middle:.1?} (median), {last:.1?} (longest); \
             {} revisions, seen by 3 watchers over {} connections; leases granted {}, kept alive {}, ended {}; \
             writes of disks that were slow {}; lines of logs with another year {}",
            self.restarts,
            self.installed,
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
        (0..3).map(|node| self.machines.writes_in_group(node)).sum()
    }

    fn lines_of_other_years(&self) -> usize {
        (0..3).map(|node| clocks::lines_of_other_years(&self.log(node))).sum()
    }

    /// Each kind has come that is possible here, and did something where that can be seen.
    pub(crate) fn check_that_faults_happened(&self, rounds: u64) {
        let faults: u64 = self.counts.values().sum();
        assert!(faults >= rounds, "{faults} faults in {rounds} rounds");
        assert!(self.done as u64 > rounds * 20, "{} operations in {rounds} rounds", self.done);
        let possible: Vec<_> = FAULTS.into_iter().filter(|name| self.is_possible(name)).collect();
        if faults < possible.len() as u64 {
            return;
        }
        for name in possible {
            assert!(self.counts.contains_key(name), "{name}: never, in {faults} faults");
        }
        assert!(!self.machines.has_brakes() || self.slow_writes() > 0, "no disk was slow");
        let leases = self.leases.counts();
        assert!(leases.ended > 0 && leases.kept_alive > 0, "{leases:?}");
    }

    fn log(&self, node: usize) -> String {
        String::from_utf8_lossy(&std::fs::read(self.machines.log_of(node)).unwrap_or_default()).into_owned()
    }

    /// Returns the last lines that the members have written.
    fn logs(&self) -> String {
        let mut text = String::new();
        for node in 0..3 {
            let log = self.log(node);
            let lines: Vec<&str> = log.lines().collect();
            let from = lines.len().saturating_sub(12);
            let _ = write!(text, "\nmember {node}:\n{}", lines[from..].join("\n"));
        }
        text
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.watchers.iter().for_each(JoinHandle::abort);
        (0..3).for_each(|node| self.kill(node));
    }
}
