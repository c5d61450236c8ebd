//! [`RaftLog`]: the log of a Raft node.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay::Engine;
use forebay_wal::{Batch, Lsn, PendingAppend, Recovery, Wal};
use futures_util::FutureExt;
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::type_config::alias::{LogIdOf, VoteOf};
use openraft::{OptionalSend, RaftTypeConfig};

use crate::codec::{decode, encode, next_index};
use crate::error::{Error, ErrorKind, Result};
use crate::flushes::Flushes;
use crate::is_broken;
use crate::options::LogOptions;

/// Keys of the log's values.
const FORMAT: &str = "raft.format";
const VOTE: &str = "raft.vote";
const COMMITTED: &str = "raft.committed";
const PURGED: &str = "raft.purged";
/// The version of the encoding of entries and values.
const VERSION: &[u8] = b"1";

/// The log of a Raft node: entries, vote, and the log ids up to which they are committed and purged.
///
/// It is openraft's [`RaftLogStorage`]; clones are handles of the same log, and are its readers. An entry's index is the number of
/// its record in a [`Wal`], which batches concurrent appends into one write and one flush.
///
/// | call | returns |
/// |---|---|
/// | `append` | once the entries are queued and can be read; the callback is called when they are durable, in order. It waits only while [`LogOptions::pending_bytes_max`] are queued already |
/// | `save_vote`, `truncate_after`, `purge` | once the change is durable |
/// | `save_committed` | immediately; durable with the next append, or with [`close`](RaftLog::close) |
/// | reads | entries from memory while they are queued or among the last [`LogOptions::tail_bytes_max`], else from the disk |
///
/// A failed write or flush *poisons* the log: the callbacks of all appends since, and every later call, fail with that
/// first failure. Nothing is retried, since the contents of the disk are then unknown; open the log again.
///
/// ```
/// use forebay::{Config, Engine};
/// use forebay_raft::{LogOptions, RaftLog};
/// use openraft::storage::RaftLogStorage;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path();
/// openraft::declare_raft_types!(pub Types: D = String, R = String);
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let engine = Engine::start(Config::new())?;
/// let mut log: RaftLog<Types> = RaftLog::open(&engine, dir.join("log"), LogOptions::new()).await?;
/// assert_eq!(log.get_log_state().await?.last_log_id, None);
/// log.close().await?;
/// # Ok::<_, Box<dyn std::error::Error>>(()) })?;
/// # Ok(()) }
/// ```
pub struct RaftLog<C: RaftTypeConfig> {
    pub(crate) inner: Arc<Inner<C>>,
}

pub(crate) struct Inner<C: RaftTypeConfig> {
    pub(crate) wal: Wal,
    pub(crate) flushes: Arc<Flushes<C>>,
    state: Mutex<State<C>>,
    recovery: Recovery,
    batch_bytes_max: usize,
    pub(crate) read_bytes_max: usize,
}

struct State<C: RaftTypeConfig> {
    /// The durable vote.
    vote: Option<VoteOf<C>>,
    committed: Option<LogIdOf<C>>,
    /// The committed log id that was queued last.
    committed_queued: Option<LogIdOf<C>>,
    purged: Option<LogIdOf<C>>,
    /// The last entry, durable or queued; otherwise the last purged entry.
    last: Option<LogIdOf<C>>,
}

impl<C: RaftTypeConfig> RaftLog<C> {
    /// Opens the log in a directory, which is made if it does not exist, and returns it with all that was durable.
    ///
    /// Entries whose append was not acknowledged may be there too, without a gap. A purge that a crash interrupted is completed.
    /// Reads the log's segments once.
    ///
    /// # Errors
    /// - [`ErrorKind::Foreign`] for a directory with a log that is not a Raft log, or has a later version.
    /// - [`ErrorKind::Corruption`] if acknowledged entries or values are lost, or cannot be decoded; nothing is changed.
    /// - [`ErrorKind::Io`] with the log's error as its source: it is open elsewhere, the disk is full, or the system
    ///   refused a call.
    /// - [`ErrorKind::InvalidInput`] for options out of range.
    pub async fn open(engine: &Engine, dir: impl AsRef<Path>, options: LogOptions) -> Result<RaftLog<C>> {
        let dir = dir.as_ref();
        let batch_bytes_max = options.batch_bytes_max();
        let read_bytes_max = options.read_bytes_max;
        let (wal, recovery) = Wal::open(engine, dir, options.into_wal()).await?;
        match wal.value(FORMAT) {
            Some(version) if version == VERSION => {}
            Some(_) => {
                return Err(Error::at(
                    ErrorKind::Foreign,
                    dir,
                    "this Raft log was written by another version of forebay-raft: open it with that one",
                ));
            }
            None if wal.first_lsn() == wal.next_lsn() && wal.values().is_empty() => {
                wal.set(FORMAT, VERSION).await.map(drop)?
            }
            None => {
                let text =
                    "this log is no Raft log, its records are of another program: choose another directory";
                return Err(Error::at(ErrorKind::Foreign, dir, text));
            }
        }
        let value = |key: &str| wal.value(key);
        let vote = value(VOTE).map(|bytes| decode("the vote", &bytes)).transpose()?;
        let committed: Option<LogIdOf<C>> =
            value(COMMITTED).map(|bytes| decode("the committed log id", &bytes)).transpose()?;
        let purged: Option<LogIdOf<C>> =
            value(PURGED).map(|bytes| decode("the purged log id", &bytes)).transpose()?;
        // The purged log id is durable before the entries are removed: a crash in between leaves some of them.
        remove_purged(&wal, purged.as_ref()).await?;
        let state =
            State { vote, committed_queued: committed.clone(), committed, last: purged.clone(), purged };
        let log = RaftLog {
            inner: Arc::new(Inner {
                wal,
                flushes: Flushes::new(),
                state: Mutex::new(state),
                recovery,
                batch_bytes_max,
                read_bytes_max,
            }),
        };
        let first = log.inner.wal.first_lsn().0;
        let purged_next = next_index::<openraft::type_config::alias::CommittedLeaderIdOf<C>>(
            log.inner.lock().purged.as_ref(),
        );
        if purged_next > 0 && first != purged_next {
            let text = format!("entries {purged_next} to {first} are missing, which were not purged");
            return Err(Error::at(ErrorKind::Corruption, dir, text));
        }
        let next = log.inner.wal.next_lsn().0;
        if first < next {
            let read = log.inner.read(next - 1, next, usize::MAX).await?;
            if let Some(entry) = read.first() {
                log.inner.lock().last = Some(log_id::<C>(entry));
            }
        }
        Ok(log)
    }

    /// Returns how the open found the log on disk: its first and last entry, and the part that was cut off.
    pub fn recovery(&self) -> &Recovery {
        &self.inner.recovery
    }

    /// Returns the log below, for its counts, [`no_space`](Wal::no_space) and the caller's values. Its records are entries by
    /// index, and values whose keys start with `raft.` belong to this log: do not change them.
    pub fn wal(&self) -> &Wal {
        &self.inner.wal
    }

    /// Saves the committed log id if it is not saved, and closes the log for all handles: it can be opened again when the
    /// future resolves. Queued entries are written, and their callbacks called.
    ///
    /// # Errors
    /// The failure that poisoned the log, or the one of saving the committed log id. It is closed all the same.
    pub async fn close(&self) -> Result<()> {
        let unsaved = self.inner.lock().unsaved_committed();
        let saved = match unsaved {
            Some(committed) => {
                self.inner.wal.set(COMMITTED, &encode("the committed log id", &committed)?).await.map(drop)
            }
            None => Ok(()),
        };
        let closed = self.inner.wal.close().await;
        // A log whose engine was closed below it has nothing queued and closes without an error.
        Ok(closed.and(saved)?)
    }
}

impl<C: RaftTypeConfig> State<C> {
    /// Returns the committed log id if it has to be queued, and notes that it is.
    fn unsaved_committed(&mut self) -> Option<LogIdOf<C>> {
        let committed = self.committed.clone().filter(|_| self.committed != self.committed_queued)?;
        self.committed_queued = Some(committed.clone());
        Some(committed)
    }
}

impl<C: RaftTypeConfig> Inner<C> {
    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn vote(&self) -> Option<VoteOf<C>> {
        self.lock().vote.clone()
    }

    /// Notes a failure that leaves the log unusable.
    pub(crate) fn fail(&self, error: forebay_wal::Error) -> Error {
        match error.kind() {
            forebay_wal::ErrorKind::Poisoned | forebay_wal::ErrorKind::Closed => {
                self.flushes.fail(error.into())
            }
            _ => error.into(),
        }
    }

    /// Queues entries. Returns the last batch, which is durable after all others.
    async fn queue(&self, entries: impl IntoIterator<Item = C::Entry>) -> Result<Option<PendingAppend>> {
        let (mut batch, mut bytes, mut queued) = (Batch::new(), 0, None);
        if let Some(committed) = self.lock().unsaved_committed() {
            batch.set(COMMITTED, &encode("the committed log id", &committed)?)?;
        }
        let mut last = None;
        for entry in entries {
            let id = log_id::<C>(&entry);
            let expected = match &last {
                None => self.first_index(id.index).await?,
                Some(LogIdOf::<C> { index, .. }) => index + 1,
            };
            if id.index != expected {
                let text = format!("entry {} follows entry {}", id.index, expected.wrapping_sub(1));
                return Err(Error::new(ErrorKind::InvalidInput, text + ": entries have consecutive indexes"));
            }
            let record = encode("an entry", &entry)?;
            if bytes > 0 && bytes + record.len() > self.batch_bytes_max {
                queued = Some(self.queue_batch(std::mem::take(&mut batch), last.take()).await?);
                bytes = 0;
            }
            bytes += record.len();
            batch.push(record);
            last = Some(id);
        }
        if !batch.is_empty() {
            queued = Some(self.queue_batch(batch, last).await?);
        }
        Ok(queued)
    }

    async fn queue_batch(&self, batch: Batch<'_>, last: Option<LogIdOf<C>>) -> Result<PendingAppend> {
        let queued = self.wal.append(batch).queued().await.map_err(|error| self.fail(error))?;
        if last.is_some() {
            self.lock().last = last;
        }
        Ok(queued)
    }

    /// Returns the index that the next entry must have. An empty log in which nothing was purged starts with any index.
    async fn first_index(&self, index: u64) -> Result<u64> {
        let next = self.wal.next_lsn().0;
        if index != next && self.wal.first_lsn().0 == next && self.lock().purged.is_none() {
            self.wal.reset_to(Lsn(index)).await.map_err(|error| self.fail(error))?;
            return Ok(index);
        }
        Ok(next)
    }

    async fn save_vote(&self, vote: &VoteOf<C>) -> Result<()> {
        self.flushes.check()?;
        let setting = self.wal.set(VOTE, &encode("the vote", vote)?);
        if !is_broken!(VoteNotSynced) {
            setting.await.map_err(|error| self.fail(error))?;
        }
        self.lock().vote = Some(vote.clone());
        Ok(())
    }

    async fn truncate_after(&self, last: Option<LogIdOf<C>>) -> Result<()> {
        self.flushes.check()?;
        let from = {
            let state = self.lock();
            next_index(last.as_ref()).max(next_index(state.purged.as_ref())).max(self.wal.first_lsn().0)
        };
        if from < self.wal.next_lsn().0 {
            let truncated = self.wal.truncate_from(Lsn(from));
            let truncated = if is_broken!(TruncateNotSynced) {
                truncated.now_or_never().unwrap_or(Ok(()))
            } else {
                truncated.await
            };
            truncated.map_err(|error| self.fail(error))?;
        }
        let mut state = self.lock();
        if next_index(last.as_ref()) < next_index(state.last.as_ref()) {
            state.last = last.max(state.purged.clone());
        }
        Ok(())
    }

    async fn purge(&self, upto: LogIdOf<C>) -> Result<()> {
        self.flushes.check()?;
        if self.lock().purged.as_ref().is_some_and(|purged| *purged >= upto) {
            return Ok(());
        }
        // Queued before the entries are removed, so a crash leaves either all of them or the id of the last removed entry.
        let setting = self.wal.set(PURGED, &encode("the purged log id", &upto)?);
        if is_broken!(PurgeNotSynced) {
            remove_purged(&self.wal, Some(&upto)).now_or_never().unwrap_or(Ok(()))
        } else {
            // Polled immediately, before it is known whether the value is durable: one flush may cover both.
            let (removed, set) =
                futures_util::future::join(remove_purged(&self.wal, Some(&upto)), setting).await;
            set.map(drop).and(removed)
        }
        .map_err(|error| self.fail(error))?;
        let mut state = self.lock();
        if next_index(state.last.as_ref()) <= next_index(Some(&upto)) {
            state.last = Some(upto.clone());
        }
        state.purged = Some(upto);
        Ok(())
    }
}

/// Removes the entries up to a log id from the front of the log, also where the log ends before it.
async fn remove_purged<L: openraft::vote::RaftCommittedLeaderId>(
    wal: &Wal,
    upto: Option<&openraft::LogId<L>>,
) -> forebay_wal::Result<()> {
    let first = Lsn(next_index(upto));
    if first > wal.next_lsn() {
        wal.reset_to(first).await
    } else if first > wal.first_lsn() {
        wal.truncate_before(first).await
    } else {
        Ok(())
    }
}

/// Returns an entry's log id.
pub(crate) fn log_id<C: RaftTypeConfig>(entry: &C::Entry) -> LogIdOf<C> {
    let (leader, index) = entry.log_id_parts();
    LogIdOf::<C>::new(leader.clone(), index)
}

impl<C: RaftTypeConfig> RaftLogStorage<C> for RaftLog<C> {
    type LogReader = RaftLog<C>;

    async fn get_log_state(&mut self) -> std::io::Result<LogState<C>> {
        self.inner.flushes.check()?;
        let state = self.inner.lock();
        Ok(LogState { last_purged_log_id: state.purged.clone(), last_log_id: state.last.clone() })
    }

    async fn get_log_reader(&mut self) -> RaftLog<C> {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf<C>) -> std::io::Result<()> {
        Ok(self.inner.save_vote(vote).await?)
    }

    async fn save_committed(&mut self, committed: Option<LogIdOf<C>>) -> std::io::Result<()> {
        self.inner.flushes.check()?;
        self.inner.lock().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> std::io::Result<Option<LogIdOf<C>>> {
        self.inner.flushes.check()?;
        Ok(self.inner.lock().committed.clone())
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<C>) -> std::io::Result<()>
    where
        I: IntoIterator<Item = C::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.inner.flushes.check()?;
        let queued = self.inner.queue(entries).await?;
        if is_broken!(AppendAcknowledgedEarly) {
            callback.io_completed(Ok(()));
        } else {
            self.inner.flushes.push(queued, callback);
        }
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogIdOf<C>>) -> std::io::Result<()> {
        Ok(self.inner.truncate_after(last_log_id).await?)
    }

    async fn purge(&mut self, log_id: LogIdOf<C>) -> std::io::Result<()> {
        Ok(self.inner.purge(log_id).await?)
    }
}

impl<C: RaftTypeConfig> Clone for RaftLog<C> {
    fn clone(&self) -> RaftLog<C> {
        RaftLog { inner: self.inner.clone() }
    }
}

forebay::_debug_parts!([C: RaftTypeConfig] RaftLog<C>, |raft_log| wal: raft_log.inner.wal);
