//! One client of the cluster: a call at a time, on keys of its round.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{
    Client as Etcd, Compare, CompareOp, DeleteOptions, Error, GetOptions, KeyValue, PutOptions,
    ResponseHeader, Txn, TxnOp, TxnOpResponse,
};
use forebay_test::draw::Draw;
use forebay_test::registers::{History, Op};
use tokio::time::{sleep, timeout};

use super::check::{Call, Change, Observation, Outcome, Record};
use super::past::Pair;
use super::watcher::{key, pair};
use super::{PATIENCE, RECOVERY_MAX};

pub(crate) const KEYS: u64 = 8;

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Yes,
    /// It was refused, or never sent.
    No,
    Unknown,
}

/// Shared by the clients of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct ClientGroup {
    pub(crate) record: Arc<Record>,
    pub(crate) next_process: Arc<AtomicUsize>,
    pub(crate) next_value: Arc<AtomicU64>,
    /// Reads are served by any member without a quorum: wrong on purpose.
    pub(crate) reads_are_stale: bool,
}

pub(crate) struct Client {
    urls: Vec<String>,
    members: Vec<Etcd>,
    /// The member that it calls next.
    at: usize,
    pub(crate) round: u64,
    pub(crate) record: Arc<Record>,
    shared: ClientGroup,
    process: usize,
    history: Arc<History>,
    /// The last state that it has seen of a key: mod revision and value, for swaps that have a chance.
    seen: BTreeMap<String, Option<(i64, u64)>>,
    random: Draw,
}

/// Nothing was sent without a connection.
fn is_unsent(error: &Error) -> bool {
    format!("{error:?}").contains("ConnectError")
}

fn revision(header: Option<&ResponseHeader>) -> i64 {
    header.map_or(0, ResponseHeader::revision)
}

fn number(pair: Option<&Pair>) -> Option<u64> {
    pair.map(|pair| pair.value)
}

fn pairs(kvs: &[KeyValue]) -> Vec<(String, Pair)> {
    kvs.iter().map(|kv| (key(kv), pair(kv))).collect()
}

/// The reply to one call, for the checker of revisions and for that of registers.
struct Reply {
    outcome: Outcome,
    op: Option<Op>,
}

impl Client {
    pub(crate) async fn new(
        urls: Vec<String>,
        at: usize,
        round: u64,
        shared: ClientGroup,
        history: Arc<History>,
        random: Draw,
    ) -> Client {
        let mut members = Vec::new();
        for url in &urls {
            members.push(Etcd::connect([url], None).await.expect("it connects with the first call"));
        }
        let process = shared.next_process.fetch_add(1, Ordering::Relaxed);
        let (seen, record) = (BTreeMap::new(), shared.record.clone());
        Client { at: at % urls.len(), urls, members, round, record, shared, process, history, seen, random }
    }

    pub(crate) fn member(&mut self) -> &mut Etcd {
        &mut self.members[self.at]
    }

    pub(crate) fn url(&self) -> &str {
        &self.urls[self.at]
    }

    /// Calls another member next.
    pub(crate) fn turn(&mut self) {
        self.at = (self.at + 1) % self.urls.len();
    }

    /// Returns a number that no other call has.
    pub(crate) fn value(&self) -> u64 {
        self.shared.next_value.fetch_add(1, Ordering::Relaxed)
    }

    fn key(&self, number: u64) -> String {
        format!("{}.k{number}", self.round)
    }

    /// Makes a call, of any kind.
    pub(crate) async fn step(&mut self) {
        if self.shared.reads_are_stale || self.random.below(8) == 0 {
            self.at = self.random.below(self.urls.len() as u64) as usize;
        }
        let number = self.random.below(KEYS);
        let key = self.key(number);
        let made = match self.random.below(20) {
            0..5 => self.put(&key).await,
            5..8 => self.swap(&key).await,
            8 | 9 => self.delete(&key).await,
            10 => self.swap_pair().await,
            11 | 12 => self.read_all().await,
            _ => self.get(&key).await,
        };
        // Others have a turn, and the history stays short enough to be checked.
        let pause_ms = if made == Effect::Yes { 5 } else { 30 };
        sleep(Duration::from_millis(pause_ms + self.random.below(10))).await;
    }

    pub(crate) async fn put(&mut self, key: &str) -> Effect {
        let value = self.value();
        let changes = vec![Change::Put { key: key.to_owned(), value, lease: 0 }];
        let asked_key = key.to_owned();
        self.call(key, Op::Put(value), None, changes, async move |member: &mut Etcd| {
            let options = PutOptions::new().with_prev_key();
            let response = member.put(&*asked_key, value.to_string(), Some(options)).await?;
            let before = vec![Observation::One(asked_key, response.prev_key().map(pair))];
            let outcome = Outcome::Made(revision(response.header()), before);
            Ok(Reply { outcome, op: Some(Op::Put(value)) })
        })
        .await
    }

    async fn delete(&mut self, key: &str) -> Effect {
        let asked_key = key.to_owned();
        let changes = vec![Change::Delete(key.to_owned())];
        self.call(key, Op::Delete, None, changes, async move |member: &mut Etcd| {
            let options = DeleteOptions::new().with_prev_key();
            let response = member.delete(&*asked_key, Some(options)).await?;
            let at = revision(response.header());
            let before = response.prev_kvs().first().map(pair);
            let is_made = response.deleted() > 0;
            let seen = vec![Observation::One(asked_key, before)];
            let outcome = if is_made { Outcome::Made(at, seen) } else { Outcome::Read(at, seen) };
            Ok(Reply { outcome, op: Some(Op::Delete) })
        })
        .await
    }

    /// Puts a key if it is as this client saw it last; else it reads it.
    async fn swap(&mut self, key: &str) -> Effect {
        let value = self.value();
        let (modified, expected) = match self.seen.get(key).copied().flatten() {
            Some((modified, value)) => (modified, Some(value)),
            None => (0, None),
        };
        let condition = Some((key.to_owned(), modified));
        let changes = vec![Change::Put { key: key.to_owned(), value, lease: 0 }];
        let asked_key = key.to_owned();
        self.call(key, Op::Swap(expected, value, None), condition, changes, async move |member: &mut Etcd| {
            let put = TxnOp::put(&*asked_key, value.to_string(), None);
            let txn = Txn::new()
                .when([Compare::mod_revision(&*asked_key, CompareOp::Equal, modified)])
                .and_then([put])
                .or_else([TxnOp::get(&*asked_key, None)]);
            let response = member.txn(txn).await?;
            let at = revision(response.header());
            let op = Some(Op::Swap(expected, value, Some(response.succeeded())));
            let outcome = match response.op_responses().first() {
                Some(TxnOpResponse::Get(got)) => {
                    Outcome::Read(at, vec![Observation::One(asked_key, got.kvs().first().map(pair))])
                }
                _ => Outcome::Made(at, Vec::new()),
            };
            Ok(Reply { outcome, op })
        })
        .await
    }

    /// Puts two keys in one transaction, if the first is unchanged since this client saw it last.
    async fn swap_pair(&mut self) -> Effect {
        let value = self.value();
        let keys = ["a", "b"].map(|name| format!("{}.pair.{name}", self.round));
        let modified = self.seen.get(&keys[0]).copied().flatten().map_or(0, |(modified, _)| modified);
        let changes = keys.iter().map(|key| Change::Put { key: key.clone(), value, lease: 0 }).collect();
        let asked = keys.clone();
        let condition = Some((keys[0].clone(), modified));
        self.call_unseen(&keys[0], condition, changes, async move |member: &mut Etcd| {
            let puts = asked.each_ref().map(|key| TxnOp::put(&**key, value.to_string(), None));
            let gets = asked.each_ref().map(|key| TxnOp::get(&**key, None));
            let txn = Txn::new()
                .when([Compare::mod_revision(&*asked[0], CompareOp::Equal, modified)])
                .and_then(puts)
                .or_else(gets);
            let response = member.txn(txn).await?;
            let at = revision(response.header());
            let mut seen = Vec::new();
            for (key, response) in asked.iter().zip(response.op_responses()) {
                if let TxnOpResponse::Get(got) = response {
                    seen.push(Observation::One(key.clone(), got.kvs().first().map(pair)));
                }
            }
            let outcome =
                if response.succeeded() { Outcome::Made(at, Vec::new()) } else { Outcome::Read(at, seen) };
            Ok(Reply { outcome, op: None })
        })
        .await
    }

    pub(crate) async fn put_leased(&mut self, keys: &[String; 2], lease: i64) -> Effect {
        let value = self.value();
        let changes = keys.iter().map(|key| Change::Put { key: key.clone(), value, lease }).collect();
        let asked = keys.clone();
        self.call_unseen(&keys[0], None, changes, async move |member: &mut Etcd| {
            let options = || Some(PutOptions::new().with_lease(lease));
            let puts = asked.each_ref().map(|key| TxnOp::put(&**key, value.to_string(), options()));
            let response = member.txn(Txn::new().and_then(puts)).await?;
            Ok(Reply { outcome: Outcome::Made(revision(response.header()), Vec::new()), op: None })
        })
        .await
    }

    async fn get(&mut self, key: &str) -> Effect {
        let asked_key = key.to_owned();
        let options = self.options();
        self.call(key, Op::Get(None), None, Vec::new(), async move |member: &mut Etcd| {
            let response = member.get(&*asked_key, Some(options)).await?;
            let found = response.kvs().first().map(pair);
            let op = Some(Op::Get(Some(number(found.as_ref()))));
            let outcome =
                Outcome::Read(revision(response.header()), vec![Observation::One(asked_key, found)]);
            Ok(Reply { outcome, op })
        })
        .await
    }

    /// Reads all keys of the round.
    async fn read_all(&mut self) -> Effect {
        let prefix = format!("{}.", self.round);
        let asked = prefix.clone();
        let options = self.options().with_prefix();
        self.call_unseen(&prefix, None, Vec::new(), async move |member: &mut Etcd| {
            let response = member.get(&*asked, Some(options)).await?;
            let seen = vec![Observation::All(asked, pairs(response.kvs()))];
            Ok(Reply { outcome: Outcome::Read(revision(response.header()), seen), op: None })
        })
        .await
    }

    fn options(&self) -> GetOptions {
        if self.shared.reads_are_stale { GetOptions::new().with_serializable() } else { GetOptions::new() }
    }

    async fn call(
        &mut self,
        key: &str,
        op: Op,
        condition: Option<(String, i64)>,
        changes: Vec<Change>,
        run: impl AsyncFnOnce(&mut Etcd) -> Result<Reply, Error>,
    ) -> Effect {
        self.run(key, Some(op), condition, changes, run).await
    }

    /// A call that the registers do not have.
    async fn call_unseen(
        &mut self,
        key: &str,
        condition: Option<(String, i64)>,
        changes: Vec<Change>,
        run: impl AsyncFnOnce(&mut Etcd) -> Result<Reply, Error>,
    ) -> Effect {
        self.run(key, None, condition, changes, run).await
    }

    async fn run(
        &mut self,
        key: &str,
        op: Option<Op>,
        condition: Option<(String, i64)>,
        changes: Vec<Change>,
        run: impl AsyncFnOnce(&mut Etcd) -> Result<Reply, Error>,
    ) -> Effect {
        let called = self.record.tick();
        if let Some(op) = op {
            self.history.call(self.process, key, op);
        }
        let done = timeout(PATIENCE, run(&mut self.members[self.at])).await;
        let reply = match done {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) if is_unsent(&error) => {
                if op.is_some() {
                    self.history.take_back(self.process, key);
                }
                self.turn();
                return Effect::No;
            }
            _ => {
                // It may happen yet, so the client continues under another number.
                self.process = self.shared.next_process.fetch_add(1, Ordering::Relaxed);
                let replied = self.record.tick();
                self.record.add(Call { called, replied, condition, changes, outcome: Outcome::Unknown });
                self.turn();
                return Effect::Unknown;
            }
        };
        if let Some(op) = reply.op {
            self.history.reply(self.process, key, op);
        }
        self.remember(&reply.outcome, &changes);
        let replied = self.record.tick();
        self.record.add(Call { called, replied, condition, changes, outcome: reply.outcome });
        Effect::Yes
    }

    fn remember(&mut self, outcome: &Outcome, changes: &[Change]) {
        let seen = |pair: &Option<Pair>| pair.map(|pair| (pair.modified, pair.value));
        match outcome {
            Outcome::Read(_, all) => {
                for one in all {
                    if let Observation::One(key, pair) = one {
                        self.seen.insert(key.clone(), seen(pair));
                    }
                }
            }
            Outcome::Made(revision, _) => {
                for change in changes {
                    let (key, now) = match change {
                        Change::Put { key, value, .. } => (key, Some((*revision, *value))),
                        Change::Delete(key) => (key, None),
                    };
                    self.seen.insert(key.clone(), now);
                }
            }
            Outcome::Unknown => {}
        }
    }

    /// Reads every key of the round, when the faults are over.
    pub(crate) async fn read_at_last(&mut self) {
        for number in 0..KEYS {
            let (key, begun) = (self.key(number), Instant::now());
            while self.get(&key).await != Effect::Yes {
                assert!(begun.elapsed() < RECOVERY_MAX, "a read after the faults has no reply");
                sleep(Duration::from_millis(5)).await;
            }
        }
    }
}
