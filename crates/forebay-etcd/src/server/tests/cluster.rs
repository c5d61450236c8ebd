//! Clusters in one process, each with separate loopback addresses: no two tests use the same port.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use openraft::async_runtime::WatchReceiver;
use tonic::Status;

use crate::mvcc::View;
use crate::node::Node;
use crate::proto::etcdserverpb::{PutRequest, RangeRequest};
use crate::proto::peer::command::Change;
use crate::proto::peer::outcome::Result as Response;
use crate::proto::peer::{MemberChanged, Outcome, member_change};
use crate::refusal::Refusal;
use crate::version::Formats;
use crate::{Config, EndReason, Invocation, Server, StartError};

/// Longer than any step of a test.
pub(crate) const LONG: Duration = Duration::from_secs(60);

static ADDRESSES: AtomicU32 = AtomicU32::new(1);

/// Returns a loopback address that no other test has.
pub(crate) fn new_address() -> String {
    let (process, number) = (std::process::id(), ADDRESSES.fetch_add(1, Ordering::Relaxed));
    format!("127.{}.{}.{}", 1 + process % 250, process / 250 % 250, number % 250 + 1)
}

/// A member that runs, or does not.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) dir: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) server: Option<Server>,
}

impl Member {
    pub(crate) fn peer_url(&self) -> String {
        format!("http://{}:2380", self.address)
    }

    /// Returns the settings with which it starts.
    pub(crate) fn config(&self) -> Config {
        let arguments = std::iter::once("forebay-etcd".to_owned()).chain(self.arguments.iter().cloned());
        match Config::parse(arguments, []).unwrap() {
            Invocation::Serve(config) => Config { health_interval: Duration::ZERO, ..*config },
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn try_start(&mut self) -> Result<(), StartError> {
        self.server = Some(Server::start(self.config()).await?);
        Ok(())
    }

    pub(crate) async fn start(&mut self) {
        self.try_start().await.unwrap();
    }

    pub(crate) async fn stop(&mut self) {
        within(self.server.take().unwrap().shutdown()).await;
    }

    pub(crate) fn node(&self) -> &Node {
        self.server.as_ref().unwrap().node()
    }

    /// Waits until the server ends by itself, and closes it.
    pub(crate) async fn ended(&mut self) -> EndReason {
        let reason = within(self.server.as_ref().unwrap().ended()).await;
        self.stop().await;
        reason
    }

    /// Proposes a change that may be made twice, until it is known to be made: an election may happen at any time on a busy
    /// machine.
    pub(crate) async fn propose(&self, change: Change) -> Result<(Outcome, u64), Status> {
        settled(async || self.node().propose(change.clone()).await).await
    }

    pub(crate) async fn put(&self, key: &str, value: &str) -> Result<u64, Status> {
        let (outcome, index) = self.propose(put(key, value)).await?;
        assert!(!matches!(outcome.result, Some(Response::Refusal(_))), "{key}: {outcome:?}");
        Ok(index)
    }

    /// Puts pairs, many at once. Returns the index of the last entry.
    pub(crate) async fn put_all(&self, pairs: impl IntoIterator<Item = (String, String)>) -> u64 {
        let puts = pairs.into_iter().map(|(key, value)| async move { self.put(&key, &value).await.unwrap() });
        let indexes: Vec<u64> = stream::iter(puts).buffer_unordered(50).collect().await;
        indexes.into_iter().max().unwrap()
    }

    /// Puts with a single proposal, whose outcome may be unknown.
    pub(crate) async fn put_once(&self, key: &str, value: &str) -> Result<u64, Status> {
        self.node().propose(put(key, value)).await.map(|(_, index)| index)
    }

    /// Changes the members as an operator does: a change whose outcome is not known is made again, and may then be found made.
    pub(crate) async fn change(&self, change: member_change::Change) -> MemberChanged {
        let mut is_again = false;
        loop {
            let refused = match within(self.node().change_members(change.clone())).await {
                Ok(changed) => return changed,
                Err(status) => status,
            };
            let made = [Refusal::MemberNotFound, Refusal::PeerUrlExists, Refusal::MemberNotLearner];
            if is_again && is_one_of(&refused, &made) {
                let members = settled(async || self.node().members(true).await).await.unwrap();
                let is_added = |urls: &[String]| match &change {
                    member_change::Change::Add(add) => add.peer_ur_ls == urls,
                    _ => false,
                };
                let member = members.iter().find(|member| is_added(&member.peer_ur_ls)).cloned();
                return MemberChanged { member, members };
            }
            // A member that the machine stopped for a while counts as away.
            assert!(is_unsettled(&refused) || is_one_of(&refused, &[Refusal::Unhealthy]), "{refused}");
            is_again = true;
        }
    }

    /// Reads what this member's state has.
    pub(crate) async fn local(&self, key: &str) -> Option<String> {
        let view = View::of(self.node().store()).await.unwrap();
        let request = RangeRequest { key: key.into(), ..RangeRequest::default() };
        let found = view.range(&request).await.unwrap().kvs;
        found.first().map(|found| String::from_utf8(found.value.to_vec()).unwrap())
    }

    /// Reads linearizably, at this member.
    pub(crate) async fn get(&self, key: &str) -> Option<String> {
        settled(async || self.node().read_barrier().await).await.unwrap();
        self.local(key).await
    }

    /// Waits until the state has a format.
    pub(crate) async fn has_format(&self, format: u64) {
        until(async || self.node().format() == format).await;
    }

    /// Waits until the state has this version's own format, and its leader has nothing more to do for that.
    pub(crate) async fn has_latest_format(&self) {
        self.has_format(Formats::OWN.own).await;
        until(async || View::of(self.node().store()).await.unwrap().is_finished()).await;
        until(async || self.node().counts().proposals_pending.load(Ordering::Relaxed) == 0).await;
    }

    /// Waits until this member has applied an entry.
    pub(crate) async fn applied(&self, index: u64) {
        let mut metrics = self.node().raft().metrics();
        while metrics.borrow_watched().last_applied.is_none_or(|id| id.index < index) {
            within(metrics.changed()).await.unwrap();
        }
    }

    /// Waits until this member sees a membership like this.
    pub(crate) async fn sees(&self, is_so: impl Fn(&[crate::proto::etcdserverpb::Member]) -> bool) {
        let mut metrics = self.node().raft().metrics();
        loop {
            metrics.borrow_and_update();
            if is_so(&self.node().members(false).await.unwrap()) {
                return;
            }
            within(metrics.changed()).await.unwrap();
        }
    }

    /// Waits until this member has a vote.
    pub(crate) async fn votes(&self) {
        let mut metrics = self.node().raft().metrics();
        while self.node().is_learner() {
            within(metrics.changed()).await.unwrap();
        }
    }
}

pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(LONG, future).await.expect("a step of the test hangs")
}

/// Waits until this holds. The members have the processor between two looks.
pub(crate) async fn until(mut holds: impl AsyncFnMut() -> bool) {
    within(async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

pub(crate) fn put(key: &str, value: &str) -> Change {
    Change::Put(PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() })
}

fn is_one_of(status: &Status, refusals: &[Refusal]) -> bool {
    refusals.iter().any(|refusal| (refusal.code(), refusal.text()) == (status.code(), status.message()))
}

/// Returns whether it is not known what became of a call, since no leader was there to say it in time.
pub(crate) fn is_unsettled(status: &Status) -> bool {
    // Locks and elections report these texts with another code.
    let refusals = [Refusal::LeaderChanged, Refusal::Timeout, Refusal::TimeoutLeaderFailure];
    refusals.iter().any(|refusal| refusal.text() == status.message())
}

/// Makes a call, again and again while its outcome is not known.
pub(crate) async fn settled<T>(mut call: impl AsyncFnMut() -> Result<T, Status>) -> Result<T, Status> {
    loop {
        match within(call()).await {
            Err(status) if is_unsettled(&status) => tokio::task::yield_now().await,
            outcome => return outcome,
        }
    }
}

/// Accepts a change that an earlier try with unknown outcome may have made: then it is refused.
pub(crate) fn made<T>(outcome: Result<T, Status>, refusal: Refusal) {
    if let Err(status) = outcome {
        assert!(is_one_of(&status, &[refusal]), "{status}");
    }
}

/// Members with a directory for their data.
pub(crate) struct Cluster {
    pub(crate) members: Vec<Member>,
    pub(crate) dir: tempfile::TempDir,
    /// Arguments of all members.
    more: Vec<String>,
}

impl Cluster {
    /// Makes the members of a new cluster, without starting them.
    pub(crate) fn new(count: usize, more: &[&str]) -> Cluster {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ =
            tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_test_writer().try_init();
        let dir = tempfile::tempdir().unwrap();
        let more = more.iter().map(|argument| (*argument).to_owned()).collect();
        let mut cluster = Cluster { members: Vec::new(), dir, more };
        for _ in 0..count {
            cluster.make();
        }
        let list = cluster.list();
        for member in &mut cluster.members {
            member.arguments.push(format!("--initial-cluster={list}"));
        }
        cluster
    }

    /// Makes and starts the members of a new cluster.
    pub(crate) async fn start(count: usize, more: &[&str]) -> Cluster {
        let mut cluster = Cluster::new(count, more);
        for member in &mut cluster.members {
            member.start().await;
        }
        for member in &cluster.members {
            within(member.server.as_ref().unwrap().ready()).await;
        }
        for member in &cluster.members {
            member.has_latest_format().await;
        }
        cluster
    }

    fn list(&self) -> String {
        let members = self.members.iter().map(|member| format!("{}={}", member.name, member.peer_url()));
        members.collect::<Vec<_>>().join(",")
    }

    fn make(&mut self) -> &mut Member {
        let (name, address) = (format!("m{}", self.members.len()), new_address());
        let dir = self.dir.path().join(&name);
        let mut arguments = vec![
            format!("--name={name}"),
            format!("--data-dir={}", dir.display()),
            format!("--listen-peer-urls=http://{address}:2380"),
            format!("--initial-advertise-peer-urls=http://{address}:2380"),
            format!("--listen-client-urls=http://{address}:2379"),
            format!("--advertise-client-urls=http://{address}:2379"),
            "--heartbeat-interval=50".to_owned(),
            "--election-timeout=500".to_owned(),
        ];
        arguments.extend(self.more.iter().cloned());
        self.members.push(Member { name, address, dir, arguments, server: None });
        self.members.last_mut().unwrap()
    }

    /// Makes a member that joins, and does not start it. Returns its place.
    pub(crate) fn make_joining(&mut self) -> usize {
        self.make();
        let list = self.list();
        let member = self.members.last_mut().unwrap();
        member.arguments.push(format!("--initial-cluster={list}"));
        member.arguments.push("--initial-cluster-state=existing".to_owned());
        self.members.len() - 1
    }

    /// Returns the place of the leader, as a member that runs sees it.
    pub(crate) async fn leader(&self) -> usize {
        let running = || self.members.iter().filter(|member| member.server.is_some());
        let any = running().next().unwrap();
        let mut leadership = any.node().leadership();
        loop {
            let leader = within(leadership.wait_for(|now| now.leader.is_some())).await.unwrap().leader;
            let is_it = |member: &&Member| Some(member.node().id()) == leader && member.node().is_leader();
            if let Some(found) = running().find(is_it) {
                return self.members.iter().position(|member| member.name == found.name).unwrap();
            }
            // It may not run any more, or not know it yet.
            tokio::task::yield_now().await;
        }
    }

    /// Returns the places of the leader and of a member that runs and does not lead.
    pub(crate) async fn leader_and_follower(&self) -> (usize, usize) {
        let leader = self.leader().await;
        let is_other = |at: &usize| *at != leader && self.members[*at].server.is_some();
        (leader, (0..self.members.len()).find(is_other).unwrap())
    }

    /// Returns the place of a member that runs and does not lead.
    pub(crate) async fn follower(&self) -> usize {
        self.leader_and_follower().await.1
    }

    pub(crate) async fn stop(&mut self) {
        for member in self.members.iter_mut().filter(|member| member.server.is_some()) {
            member.stop().await;
        }
    }
}
