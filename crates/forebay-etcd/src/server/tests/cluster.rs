//! Clusters in one process, each with loopback addresses of its own: no two tests meet on a port.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;

use crate::mvcc::View;
use crate::node::Node;
use crate::proto::etcdserverpb::{PutRequest, RangeRequest};
use crate::proto::peer::command::Change;
use crate::{Config, EndReason, Invocation, Server, StartError};

/// No step of a test takes this long.
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
            Invocation::Serve(config) => *config,
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

    pub(crate) async fn put(&self, key: &str, value: &str) -> Result<u64, tonic::Status> {
        let put = PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() };
        self.node().propose(Change::Put(put)).await.map(|(_, index)| index)
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
        self.node().read_barrier().await.unwrap();
        self.local(key).await
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

/// Members with a directory for their data.
pub(crate) struct Cluster {
    pub(crate) members: Vec<Member>,
    pub(crate) dir: tempfile::TempDir,
    /// Arguments of all members.
    more: Vec<String>,
}

impl Cluster {
    /// Makes the members of a new cluster, and starts none.
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

    /// Returns the place of a member that runs and does not lead.
    pub(crate) async fn follower(&self) -> usize {
        let leader = self.leader().await;
        (0..self.members.len()).find(|at| *at != leader && self.members[*at].server.is_some()).unwrap()
    }

    pub(crate) async fn stop(&mut self) {
        for member in self.members.iter_mut().filter(|member| member.server.is_some()) {
            member.stop().await;
        }
    }
}
