//! The same random requests, sent to etcd's own server as well.

use std::net::TcpListener;
use std::process::{Child, Command};
use std::time::Duration;

use forebay_test::children::end_with_parent;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::harness::{Node, range};
use super::random::{Random, is_proposed};
use crate::proto::etcdserverpb::kv_client::KvClient;
use crate::proto::etcdserverpb::lease_client::LeaseClient;
use crate::proto::etcdserverpb::watch_client::WatchClient;
use crate::proto::etcdserverpb::watch_request::RequestUnion;
use crate::proto::etcdserverpb::{ResponseHeader, WatchCreateRequest, WatchRequest};
use crate::proto::mvccpb::Event;
use crate::proto::peer::command::Change;
use crate::proto::peer::outcome::Result as Response;
use crate::proto::peer::{Done, Outcome, Refusal};

use super::model::Model;

/// A server of etcd, with its directory.
pub(crate) struct Real {
    child: Child,
    channel: Channel,
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
    watch: WatchClient<Channel>,
    _dir: tempfile::TempDir,
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Real {
    pub(crate) async fn start(program: &str) -> Real {
        let dir = tempfile::tempdir().unwrap();
        let (client, peer) =
            (format!("http://127.0.0.1:{}", free_port()), format!("http://127.0.0.1:{}", free_port()));
        let mut command = Command::new(program);
        command
            .arg("--data-dir")
            .arg(dir.path())
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}"), "--log-level", "error"])
            .args(
                ["--unsafe-no-fsync"].iter().filter(|_| std::env::var_os("FOREBAY_ETCD_NO_FSYNC").is_some()),
            );
        let child = end_with_parent(&mut command).spawn().unwrap();
        let channel = Channel::from_shared(client).unwrap().connect_lazy();
        let kv = KvClient::new(channel.clone());
        let (lease, watch) = (LeaseClient::new(channel.clone()), WatchClient::new(channel.clone()));
        let mut real = Real { child, channel, kv, lease, watch, _dir: dir };
        while let Err(error) = real.kv.range(range("a", "")).await {
            assert!(real.child.try_wait().unwrap().is_none(), "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        real
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Sends a command; `None` for those that clients cannot send.
    async fn apply(&mut self, change: Change) -> Option<Result<(i64, Response), Status>> {
        let revision = |header: &mut Option<ResponseHeader>| header.take().unwrap().revision;
        Some(match change {
            Change::Put(request) => self.kv.put(request).await.map(|response| {
                let mut response = response.into_inner();
                (revision(&mut response.header), Response::Put(response))
            }),
            Change::DeleteRange(request) => self.kv.delete_range(request).await.map(|response| {
                let mut response = response.into_inner();
                (revision(&mut response.header), Response::DeleteRange(response))
            }),
            Change::Txn(request) => self.kv.txn(request).await.map(|response| {
                let mut response = response.into_inner();
                (revision(&mut response.header), Response::Txn(response))
            }),
            Change::Compact(request) => self.kv.compact(request).await.map(|response| {
                (revision(&mut response.into_inner().header), Response::Done(Done::default()))
            }),
            Change::LeaseGrant(request) => self.lease.lease_grant(request).await.map(|response| {
                (revision(&mut response.into_inner().header), Response::Done(Done::default()))
            }),
            Change::LeaseRevoke(request) => self.lease.lease_revoke(request).await.map(|response| {
                (revision(&mut response.into_inner().header), Response::Done(Done::default()))
            }),
            Change::Attributes(_)
            | Change::Alarm(_)
            | Change::Clean(_)
            | Change::Checkpoint(_)
            | Change::Auth(_)
            | Change::Format(_) => return None,
        })
    }
}

fn refusal(status: &Status) -> Refusal {
    assert_ne!(status.code(), Code::Unavailable, "{status:?}");
    Refusal { code: status.code() as i32, text: status.message().to_owned() }
}

async fn run(program: &str, seed: u64, changes: usize) {
    let (mut random, mut node, mut model) = (Random::with_few_keys(seed), Node::new().await, Model::new());
    let mut real = Real::start(program).await;
    let (mut made, mut refused, mut revisions) = (0, 0, 0);
    while made < changes {
        let change = random.change(&model);
        if !is_proposed(&change) {
            continue;
        }
        made += 1;
        model.apply(&change);
        let Some(given) = real.apply(change.clone()).await else { continue };
        let outcome = node.apply(change.clone()).await;
        let expected = match given {
            Ok((revision, response)) => {
                revisions += 1;
                Outcome { revision, result: Some(response) }
            }
            // Which of several errors is named depends on etcd's version.
            Err(_) if matches!((&change, &outcome.result), (Change::Txn(_), Some(Response::Refusal(_)))) => {
                refused += 1;
                outcome.clone()
            }
            Err(status) => {
                refused += 1;
                Outcome { revision: outcome.revision, result: Some(Response::Refusal(refusal(&status))) }
            }
        };
        assert_eq!(outcome, expected, "seed {seed}, change {made}: {change:?}");
        let view = node.view().await;
        for _ in 0..2 {
            let request = random.range(&model);
            let ours = view.range(&request).await;
            let ours = ours.map_err(|failure| refusal(&failure.into()));
            let theirs = real.kv.range(request.clone()).await;
            let theirs = theirs.map_err(|status| refusal(&status)).map(|response| {
                let mut response = response.into_inner();
                assert_eq!(response.header.take().unwrap().revision, view.revision());
                response
            });
            assert_eq!(ours, theirs, "seed {seed}, change {made}: {request:?}");
        }
    }
    compare_events(&node, &mut real).await;
    println!("seed {seed}: {made} changes alike, {refused} of them refused, {revisions} not");
}

/// Compares all events that are left.
async fn compare_events(node: &Node, real: &mut Real) {
    let view = node.view().await;
    let from = view.compacted().max(1);
    let (mut ours, _) = view.events(from, |_| true, usize::MAX).await.unwrap();
    // etcd 3.4.23 drops the deletes of the compacted revision itself, some time after it has responded to the compaction.
    let is_kept =
        |event: &Event| event.r#type == 0 || event.kv.as_ref().unwrap().mod_revision > view.compacted();
    ours.retain(is_kept);
    let create = WatchCreateRequest {
        key: vec![0],
        range_end: vec![0],
        start_revision: from,
        prev_kv: true,
        ..Default::default()
    };
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = futures_util::stream::StreamExt::chain(
        futures_util::stream::iter([request]),
        futures_util::stream::pending(),
    );
    let mut responses = real.watch.watch(requests).await.unwrap().into_inner();
    let mut theirs = Vec::new();
    while theirs.len() < ours.len() {
        let response = responses.message().await.unwrap().unwrap();
        assert!(!response.canceled, "{response:?}");
        theirs.extend(response.events.into_iter().filter(is_kept));
    }
    assert_eq!(ours, theirs);
}

/// `FOREBAY_ETCD=/usr/bin/etcd cargo test -p forebay-etcd -- --ignored real`.
#[tokio::test]
#[ignore = "it needs etcd's own server, named by FOREBAY_ETCD"]
async fn random_requests_give_what_a_real_server_gives() {
    let program = std::env::var("FOREBAY_ETCD").expect("FOREBAY_ETCD names etcd's server");
    for seed in 1..=5 {
        run(&program, seed, 600).await;
    }
}
