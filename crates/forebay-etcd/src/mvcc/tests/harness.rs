//! A store with the machine, entries for it, and an observer that keeps its calls.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use forebay::{Config, Engine};
use forebay_kv::{Batch, Keyspace, Options};
use forebay_raft::{Apply, RaftStore};
use openraft::alias::{EntryOf, LogIdOf};
use openraft::entry::RaftEntry;
use openraft::storage::RaftStateMachine;
use openraft::vote::RaftLeaderIdExt;

use crate::mvcc::{Limits, Machine, View};
use crate::observer::{EntryChanges, InitialState, Observer};
use crate::proto::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest,
    PutResponse, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse, request_op::Request,
};
use crate::proto::mvccpb::{Event, KeyValue};
use crate::proto::peer::command::Change;
use crate::proto::peer::outcome::Result as Response;
use crate::proto::peer::{self, Outcome};
use crate::refusal::Refusal;
use crate::types::{Command, Types};
use crate::version::Formats;

/// An observer that keeps its calls.
#[derive(Default)]
pub(super) struct Recorder {
    pub(super) opened: Mutex<Vec<InitialState>>,
    pub(super) applied: Mutex<Vec<EntryChanges>>,
}

impl Observer for Recorder {
    fn opened(&self, opened: InitialState) {
        self.opened.lock().unwrap().push(opened);
    }

    fn applied(&self, applied: EntryChanges) {
        self.applied.lock().unwrap().push(applied);
    }
}

/// The machine, with its outcomes kept.
pub(super) struct RecordingMachine {
    machine: Machine,
    outcomes: Arc<Mutex<Vec<Outcome>>>,
}

impl Apply<Types> for RecordingMachine {
    fn keyspaces(&self) -> Vec<String> {
        self.machine.keyspaces()
    }

    async fn opened(&self, keyspaces: &[Keyspace]) -> io::Result<()> {
        self.machine.opened(keyspaces).await
    }

    async fn prepare(&self, entries: &[EntryOf<Types>], keyspaces: &[Keyspace]) -> io::Result<()> {
        self.machine.prepare(entries, keyspaces).await
    }

    async fn apply(
        &self,
        entry: EntryOf<Types>,
        keyspaces: &[Keyspace],
        batch: &mut Batch,
    ) -> io::Result<Outcome> {
        let outcome = self.machine.apply(entry, keyspaces, batch).await?;
        self.outcomes.lock().unwrap().push(outcome.clone());
        Ok(outcome)
    }

    fn applied(&self, log_id: &LogIdOf<Types>) {
        self.machine.applied(log_id);
    }
}

pub(super) struct Node {
    pub(super) store: RaftStore<Types, RecordingMachine>,
    pub(super) seen: Arc<Recorder>,
    outcomes: Arc<Mutex<Vec<Outcome>>>,
    index: u64,
    engine: Engine,
    place: PathBuf,
    settings: (Options, Limits),
    /// Of a real file system: removed with the node.
    _dir: Option<tempfile::TempDir>,
}

/// Returns a directory on a real file system next to the build, where O_DIRECT works; `/tmp` is often memory.
pub(super) fn dir() -> tempfile::TempDir {
    let program = std::env::current_exe().unwrap();
    tempfile::Builder::new().prefix("forebay-etcd-test-").tempdir_in(program.parent().unwrap()).unwrap()
}

pub(super) fn options() -> Options {
    Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN).memtable_bytes(256 << 10)
}

/// Limits that no outcome depends on.
pub(super) const LIMITS: Limits = Limits { space_bytes: 20_000, txn_operations: 128, recent_bytes: 4000 };

async fn open(
    engine: &Engine,
    place: &Path,
    (options, limits): &(Options, Limits),
    seen: &Arc<Recorder>,
) -> (RaftStore<Types, RecordingMachine>, Arc<Mutex<Vec<Outcome>>>) {
    let outcomes = Arc::new(Mutex::default());
    let recorded =
        RecordingMachine { machine: Machine::new(seen.clone(), *limits), outcomes: outcomes.clone() };
    (RaftStore::open(engine, place, options.clone(), recorded).await.unwrap(), outcomes)
}

pub(super) fn entry(index: u64, command: Command) -> EntryOf<Types> {
    let leader = openraft::alias::LeaderIdOf::<Types>::new_committed(1, 1);
    EntryOf::<Types>::new_normal(LogIdOf::<Types>::new(leader, index), command)
}

impl Node {
    pub(super) async fn new() -> Node {
        let engine = Engine::start(Config::new().shards(1)).unwrap();
        let dir = dir();
        let node = Node::at(&engine, dir.path(), options(), LIMITS).await;
        Node { _dir: Some(dir), ..node }
    }

    /// Makes a node in a directory of an engine, such as that of a world.
    pub(super) async fn at(engine: &Engine, place: &Path, options: Options, limits: Limits) -> Node {
        let (seen, settings) = (Arc::new(Recorder::default()), (options, limits));
        let (store, outcomes) = open(engine, place, &settings, &seen).await;
        let (engine, place) = (engine.clone(), place.to_owned());
        Node { store, seen, outcomes, index: 0, engine, place, settings, _dir: None }
    }

    pub(super) async fn reopen(&mut self) {
        self.store.close().await.unwrap();
        let (store, outcomes) = open(&self.engine, &self.place, &self.settings, &self.seen).await;
        (self.store, self.outcomes) = (store, outcomes);
    }

    pub(super) async fn apply(&mut self, change: Change) -> Outcome {
        self.apply_command(Command::new(change)).await
    }

    pub(super) async fn apply_command(&mut self, command: Command) -> Outcome {
        let entry = entry(self.index, command);
        self.index += 1;
        self.seen.applied.lock().unwrap().clear();
        self.store.apply(futures_util::stream::iter([Ok((entry, None))])).await.unwrap();
        self.outcomes.lock().unwrap().pop().unwrap()
    }

    /// Applies commands as one group. Returns their outcomes, and the events of each that has any.
    pub(super) async fn apply_all(&mut self, changes: &[Change]) -> (Vec<Outcome>, Vec<Vec<Event>>) {
        let entries: Vec<_> = (self.index..)
            .zip(changes)
            .map(|(index, change)| Ok((entry(index, Command::new(change.clone())), None)))
            .collect();
        self.index += changes.len() as u64;
        self.seen.applied.lock().unwrap().clear();
        self.store.apply(futures_util::stream::iter(entries)).await.unwrap();
        let applied = std::mem::take(&mut *self.seen.applied.lock().unwrap());
        let events = applied.into_iter().map(|applied| applied.events).filter(|events| !events.is_empty());
        (std::mem::take(&mut *self.outcomes.lock().unwrap()), events.collect())
    }

    /// Applies a command that is carried out, and returns the revision after it.
    pub(super) async fn done(&mut self, change: Change) -> i64 {
        let outcome = self.apply(change).await;
        assert!(!matches!(outcome.result, Some(Response::Refusal(_)) | None), "{outcome:?}");
        outcome.revision
    }

    /// Applies a command that is refused, and returns the text.
    pub(super) async fn refused(&mut self, change: Change) -> String {
        let revision = self.view().await.revision();
        let outcome = self.apply(change).await;
        assert_eq!(outcome.revision, revision);
        let applied = self.applied();
        assert!(applied.as_ref().is_none_or(|applied| !applied.is_change()), "{applied:?}");
        let Some(Response::Refusal(refusal)) = outcome.result else { panic!("{outcome:?}") };
        refusal.text
    }

    pub(super) async fn put_with(&mut self, request: PutRequest) -> (PutResponse, i64) {
        let outcome = self.apply(Change::Put(request)).await;
        let Some(Response::Put(response)) = outcome.result else { panic!("{outcome:?}") };
        (response, outcome.revision)
    }

    pub(super) async fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> i64 {
        self.put_with(put(key, value)).await.1
    }

    pub(super) async fn txn(&mut self, request: TxnRequest) -> (TxnResponse, i64) {
        let outcome = self.apply(Change::Txn(request)).await;
        let Some(Response::Txn(response)) = outcome.result else { panic!("{outcome:?}") };
        (response, outcome.revision)
    }

    pub(super) async fn view(&self) -> View {
        View::of_keyspaces(self.store.keyspaces()).await.unwrap()
    }

    pub(super) async fn range(&self, request: RangeRequest) -> RangeResponse {
        self.view().await.range(&request).await.unwrap()
    }

    /// Returns the observer's call for the last entry, if any.
    pub(super) fn applied(&self) -> Option<EntryChanges> {
        let mut applied = self.seen.applied.lock().unwrap();
        let last = applied.pop();
        assert!(applied.is_empty(), "one entry is passed on once");
        last
    }

    /// Returns the events of the last entry.
    pub(super) fn events(&self) -> Vec<Event> {
        self.applied().map_or(Vec::new(), |applied| applied.events)
    }
}

pub(super) fn put(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> PutRequest {
    PutRequest { key: key.as_ref().to_vec(), value: value.as_ref().to_vec(), ..PutRequest::default() }
}

pub(super) fn delete(key: impl AsRef<[u8]>, range_end: impl AsRef<[u8]>) -> DeleteRangeRequest {
    let (key, range_end) = (key.as_ref().to_vec(), range_end.as_ref().to_vec());
    DeleteRangeRequest { key, range_end, prev_kv: false }
}

pub(super) fn range(key: impl AsRef<[u8]>, range_end: impl AsRef<[u8]>) -> RangeRequest {
    let (key, range_end) = (key.as_ref().to_vec(), range_end.as_ref().to_vec());
    RangeRequest { key, range_end, ..RangeRequest::default() }
}

pub(super) fn compact(revision: i64) -> Change {
    Change::Compact(CompactionRequest { revision, physical: false })
}

/// Raises the format of the state to the one in which values are in one place.
pub(super) fn raise() -> Change {
    Change::Format(peer::Format { format: Formats::VALUES_ONCE })
}

pub(super) fn grant(id: i64, ttl: i64) -> Change {
    Change::LeaseGrant(LeaseGrantRequest { id, ttl })
}

pub(super) fn revoke(id: i64) -> Change {
    Change::LeaseRevoke(LeaseRevokeRequest { id })
}

pub(super) fn alarm(member: u64, alarm: i32, is_raised: bool) -> Change {
    Change::Alarm(peer::Alarm { is_raised, member, r#type: alarm })
}

pub(super) fn operation(request: impl Into<Request>) -> RequestOp {
    RequestOp { request: Some(request.into()) }
}

macro_rules! operations {
    ($($of:ty => $variant:ident),*) => {
        $(impl From<$of> for Request {
            fn from(request: $of) -> Request {
                Request::$variant(request)
            }
        })*
    };
}
operations!(
    RangeRequest => RequestRange,
    PutRequest => RequestPut,
    DeleteRangeRequest => RequestDeleteRange,
    TxnRequest => RequestTxn
);

pub(super) fn txn(compare: Vec<Compare>, success: Vec<RequestOp>, failure: Vec<RequestOp>) -> TxnRequest {
    TxnRequest { compare, success, failure }
}

/// A pair: key, value, create revision, mod revision, version.
pub(super) fn pair(key: &str, value: &str, create: i64, modified: i64, version: i64) -> KeyValue {
    KeyValue {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        create_revision: create,
        mod_revision: modified,
        version,
        lease: 0,
    }
}

pub(super) fn text(refusal: Refusal) -> String {
    refusal.text().to_owned()
}
