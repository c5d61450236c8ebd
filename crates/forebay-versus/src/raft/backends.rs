//! Logs of a Raft node to compare with forebay-raft's. Each keeps its entries in memory as well, for openraft's reads, so that only
//! the writes differ.

use std::collections::BTreeMap;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::MutexGuard;

use openraft::OptionalSend;
use openraft::alias::{EntryOf, LogIdOf, VoteOf};
use openraft::entry::RaftEntry as _;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::type_config::TypeConfigExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::Types;
use crate::prelude::*;

/// A change of a log.
#[derive(Debug)]
pub(super) enum Change {
    /// Entries with their encoded bytes.
    Append(Vec<(LogIdOf<Types>, Vec<u8>)>),
    Vote(VoteOf<Types>),
    /// Entries from this index on are removed.
    Truncate(u64),
    /// Entries up to this log id are removed.
    Purge(LogIdOf<Types>),
}

/// What makes the changes of a log durable, in their order.
pub(super) trait Backend: Clone + Send + Sync + 'static {
    /// Queues a change. `done` is called when it and all before it are durable.
    fn write(&self, change: Change, done: IOFlushed<Types>) -> io::Result<()>;
}

/// A log whose entries are in memory, and in a backend.
#[derive(Clone)]
pub(super) struct BackedLog<B> {
    state: Arc<Mutex<State>>,
    backend: B,
}

#[derive(Default)]
struct State {
    vote: Option<VoteOf<Types>>,
    purged: Option<LogIdOf<Types>>,
    entries: BTreeMap<u64, EntryOf<Types>>,
}

impl<B: Backend> BackedLog<B> {
    /// Returns an empty log.
    pub(super) fn new(backend: B) -> Self {
        Self { state: Arc::default(), backend }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn write_and_wait(&self, change: Change) -> io::Result<()> {
        let (sender, receiver) = Types::oneshot();
        self.backend.write(change, IOFlushed::signal(sender))?;
        receiver.await.map_err(io::Error::other)?
    }
}

impl<B: Backend> RaftLogReader<Types> for BackedLog<B> {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + std::fmt::Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> io::Result<Vec<EntryOf<Types>>> {
        let range: (Bound<u64>, Bound<u64>) = (range.start_bound().cloned(), range.end_bound().cloned());
        Ok(self.lock().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> io::Result<Option<VoteOf<Types>>> {
        Ok(self.lock().vote)
    }
}

impl<B: Backend> RaftLogStorage<Types> for BackedLog<B> {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let state = self.lock();
        let last = state.entries.last_key_value().map(|(_, entry)| entry.log_id());
        Ok(LogState { last_purged_log_id: state.purged, last_log_id: last.or(state.purged) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf<Types>) -> io::Result<()> {
        self.lock().vote = Some(*vote);
        self.write_and_wait(Change::Vote(*vote)).await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = EntryOf<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut encoded = Vec::new();
        for entry in entries {
            let bytes = rmp_serde::to_vec_named(&entry).map_err(io::Error::other)?;
            encoded.push((entry.log_id(), bytes));
            self.lock().entries.insert(entry.index(), entry);
        }
        self.backend.write(Change::Append(encoded), callback)
    }

    async fn truncate_after(&mut self, last: Option<LogIdOf<Types>>) -> io::Result<()> {
        let from = last.map_or(0, |last| last.index + 1);
        self.lock().entries.split_off(&from);
        self.write_and_wait(Change::Truncate(from)).await
    }

    async fn purge(&mut self, upto: LogIdOf<Types>) -> io::Result<()> {
        {
            let mut state = self.lock();
            state.entries = state.entries.split_off(&(upto.index + 1));
            state.purged = Some(upto);
        }
        self.write_and_wait(Change::Purge(upto)).await
    }
}

/// A change and its callback, on the way to the task or thread that writes.
type QueuedChange = (Change, IOFlushed<Types>);

/// Changes that one task or thread writes: waiting changes share one flush.
#[derive(Clone)]
pub(super) struct Queue(UnboundedSender<QueuedChange>);

impl Backend for Queue {
    fn write(&self, change: Change, done: IOFlushed<Types>) -> io::Result<()> {
        self.0.send((change, done)).map_err(io::Error::other)
    }
}

/// The most changes of one flush.
const GROUP_MAX: usize = 1024;

fn complete(waiting: &mut Vec<QueuedChange>, written: &io::Result<()>) {
    for (_, done) in waiting.drain(..) {
        done.io_completed(written.as_ref().map(drop).map_err(|error| error.kind().into()));
    }
}

/// Returns the usual log of a program on Tokio: a task appends to a file by `tokio::fs`, whose calls run on the runtime's blocking
/// pool. Truncations and purges are separate lines; removed entries stay in the file.
pub(super) async fn file(path: &Path) -> Result<BackedLog<Queue>> {
    let mut file = tokio::fs::File::create(path).await?;
    let (queue, mut received): (_, UnboundedReceiver<QueuedChange>) = unbounded_channel();
    tokio::spawn(async move {
        let (mut waiting, mut bytes) = (Vec::new(), Vec::new());
        while received.recv_many(&mut waiting, GROUP_MAX).await > 0 {
            bytes.clear();
            for (change, _) in &waiting {
                match change {
                    Change::Append(entries) => {
                        entries.iter().for_each(|(_, entry)| bytes.extend_from_slice(entry));
                    }
                    other => bytes.extend_from_slice(format!("{other:?}\n").as_bytes()),
                }
            }
            let written = match file.write_all(&bytes).await {
                Ok(()) => file.sync_data().await,
                failed => failed,
            };
            complete(&mut waiting, &written);
        }
    });
    Ok(BackedLog::new(Queue(queue)))
}

/// raft-log: a separate thread writes and flushes.
pub(super) mod raft_log {
    use ::raft_log::api::raft_log_writer::RaftLogWriter as _;
    use ::raft_log::chunked_wal::Callback;
    use ::raft_log::{Config, RaftLog};

    use super::*;

    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Own;

    /// openraft's callback.
    pub(crate) struct FlushCallback(IOFlushed<Types>);

    impl Callback for FlushCallback {
        fn send(self, result: io::Result<()>) {
            self.0.io_completed(result);
        }
    }

    impl ::raft_log::Types for Own {
        /// Term and index.
        type LogId = (u64, u64);
        type LogPayload = Vec<u8>;
        /// The term, and twice the node, plus one where the vote is committed.
        type Vote = (u64, u64);
        type Callback = FlushCallback;
        type UserData = ();

        fn log_index((_, index): &(u64, u64)) -> u64 {
            *index
        }

        fn payload_size(payload: &Vec<u8>) -> u64 {
            payload.len() as u64
        }
    }

    #[derive(Clone)]
    pub(crate) struct Log(Arc<Mutex<RaftLog<Own>>>);

    fn id(id: LogIdOf<Types>) -> (u64, u64) {
        (id.committed_leader_id().term, id.index)
    }

    impl Backend for Log {
        fn write(&self, change: Change, done: IOFlushed<Types>) -> io::Result<()> {
            let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match change {
                Change::Append(entries) => {
                    log.append(entries.into_iter().map(|(at, bytes)| (id(at), bytes)))?
                }
                Change::Vote(vote) => {
                    let leader = vote.leader_id;
                    log.save_vote((leader.term, 2 * leader.node_id + u64::from(vote.committed)))?
                }
                Change::Truncate(from) => log.truncate(from)?,
                Change::Purge(upto) => log.purge(id(upto))?,
            };
            log.flush(true, Some(FlushCallback(done)))
        }
    }

    /// Opens a log in a directory.
    pub(in super::super) fn open(dir: &Path) -> Result<BackedLog<Log>> {
        std::fs::create_dir_all(dir)?;
        let log = RaftLog::open(Arc::new(Config::new(dir.display())))?;
        Ok(BackedLog::new(Log(Arc::new(Mutex::new(log)))))
    }
}

/// RocksDB: a thread writes the changes that wait as one batch, with one sync.
#[cfg(feature = "rocksdb")]
pub(super) mod rocks {
    use rocksdb::{DB, Options, WriteBatch, WriteOptions};

    use super::*;

    const VOTE: &[u8] = b"vote";

    static THREADS: Mutex<Vec<std::thread::JoinHandle<()>>> = Mutex::new(Vec::new());

    /// Waits for the threads of all logs, which end when no one can write any more. A process that ended before would destroy
    /// RocksDB's state under them.
    pub(in super::super) fn wait_for_threads() -> Result<()> {
        let threads = std::mem::take(&mut *THREADS.lock().unwrap_or_else(PoisonError::into_inner));
        let ended = threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked")));
        ended.collect()
    }

    fn add(batch: &mut WriteBatch, change: &Change) {
        match change {
            Change::Append(entries) => {
                entries.iter().for_each(|(id, bytes)| batch.put(id.index.to_be_bytes(), bytes));
            }
            Change::Vote(vote) => batch.put(VOTE, vote.to_string()),
            Change::Truncate(from) => batch.delete_range(from.to_be_bytes(), u64::MAX.to_be_bytes()),
            Change::Purge(upto) => batch.delete_range([0; 8], (upto.index + 1).to_be_bytes()),
        }
    }

    /// Opens a log in a directory.
    pub(in super::super) fn open(dir: &Path) -> Result<BackedLog<Queue>> {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.increase_parallelism(i32::try_from(cores())?.max(2));
        let database = DB::open(&options, dir)?;
        let (queue, mut received): (_, UnboundedReceiver<QueuedChange>) = unbounded_channel();
        let thread = std::thread::spawn(move || {
            let mut synced = WriteOptions::default();
            synced.set_sync(true);
            let mut waiting = Vec::new();
            while received.blocking_recv_many(&mut waiting, GROUP_MAX) > 0 {
                let mut batch = WriteBatch::default();
                waiting.iter().for_each(|(change, _)| add(&mut batch, change));
                let written = database.write_opt(batch, &synced).map_err(io::Error::other);
                complete(&mut waiting, &written);
            }
        });
        THREADS.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(BackedLog::new(Queue(queue)))
    }
}
