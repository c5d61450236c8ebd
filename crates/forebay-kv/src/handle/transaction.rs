//! [`Transaction`]: reads as of one moment, and changes that are applied if nothing else has changed what they rest on.
//!
//! Optimistic: a transaction holds no lock. It notes the keys and ranges that it reads. Its commit compares them, in the commit
//! section, with the newest records in the memtables, and with the record of other changes since its start
//! (`engine/recent_changes.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::iter::Peekable;
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::IntoIter;

use bytes::Bytes;
use forebay::Waitable;
use forebay_wal::Lsn;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Handle;
use super::batch::Batch;
use super::keyspace::Keyspace;
use super::range::Range;
use crate::engine::commit::Verdict;
use crate::engine::recent_changes::{Finding, KeyRange, Start};
use crate::engine::shared::Commit;
use crate::engine::turns::{Conflict, Turn};
use crate::error::{ErrorKind, Result};
use crate::is_broken;
use crate::memtable::Memtables;
use crate::merge::Bounds;
use crate::record::{self, Change};
use crate::value::Value;
use crate::view::Moment;
use crate::wait::Pending;

/// The changes by others that a transaction is protected from; see [`Store::transaction`](crate::Store::transaction).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isolation {
    /// Snapshot isolation: reads are as of its start, and a commit fails if another write has changed a key that the transaction
    /// writes, or has read with [`Transaction::get_for_update`]. Two transactions that each read otherwise what the other writes
    /// may both commit (write skew).
    #[default]
    Snapshot,
    /// Serializable: a commit fails if another write has changed a key that the transaction has read, or any key of
    /// a range that it has read. The committed transactions, and all other writes, have the effect of running one
    /// after the other.
    Serializable,
}

/// A key of a keyspace.
type Place = (u32, Vec<u8>);

/// A change that is not committed yet.
#[derive(Clone, Debug)]
enum StagedWrite {
    Put { value: Bytes, expires_s: Option<u64> },
    Delete,
}

/// A transaction: reads from one snapshot, and changes that are applied atomically; see
/// [`Store::transaction`](crate::Store::transaction).
///
/// Reads see the changes of the transaction itself. Changes are kept in the program's memory until
/// [`commit`](Transaction::commit); dropping the transaction discards them. Together they may have
/// [`Store::batch_bytes_max`](crate::Store::batch_bytes_max), as those of a [`Batch`].
///
/// A transaction does not block other calls, and may stay open for long. It keeps the memtables and files of its start, as a
/// snapshot does, and the store keeps the keys that are changed meanwhile: some 10 to 30 bytes for each, up to an eighth of
/// [`Options::memory_bytes_max`](crate::Options::memory_bytes_max) for all. When that is full, the keyspace with the most changes
/// forgets the oldest, and transactions older than those conflict if they have read or written in that keyspace. A bulk load, an
/// ingest and a removal of a range or keyspace conflict with transactions that have read or written between the first and the last
/// key of one of its tables, or within the range.
///
/// Values that expire while it is open remain visible to it: the second of its start decides.
pub struct Transaction {
    handle: Arc<Handle>,
    isolation: Isolation,
    moment: Moment,
    start: Start,
    /// The parts of the store that it has read, as far as it is protected from their changes.
    reads: Mutex<Reads>,
    writes: BTreeMap<Place, StagedWrite>,
    /// Keyspaces written that are not logged.
    unlogged: BTreeSet<u32>,
}

#[derive(Debug, Default)]
struct Reads {
    keys: BTreeSet<Place>,
    ranges: Vec<(u32, Bounds)>,
}

impl Transaction {
    /// Starts a transaction that sees what all reads see.
    pub(crate) fn begin(handle: &Arc<Handle>, isolation: Isolation) -> Transaction {
        let commit = handle.shared.lock();
        Transaction::begin_at(handle, isolation, handle.shared.visible(), commit)
    }

    /// Starts a transaction that sees all earlier commits, durable or not. A call must not return what it has read before the log
    /// is durable [up to there](Transaction::lsn).
    pub(crate) fn begin_early(handle: &Arc<Handle>, isolation: Isolation) -> Transaction {
        let (_turn, commit) = handle.shared.lock_inserted();
        Transaction::begin_at(handle, isolation, handle.shared.inserted(), commit)
    }

    fn begin_at(
        handle: &Arc<Handle>,
        isolation: Isolation,
        lsn: u64,
        commit: MutexGuard<'_, Commit>,
    ) -> Transaction {
        let start = Start { lsn, loads: commit.loads };
        handle.shared.recent().begin(start);
        let view = handle.shared.view();
        drop(commit);
        let moment = Moment { view, lsn, now_s: handle.shared.now_s() };
        let (handle, reads) = (handle.clone(), Mutex::default());
        let (writes, unlogged) = (BTreeMap::new(), BTreeSet::new());
        Transaction { handle, isolation, moment, start, reads, writes, unlogged }
    }

    /// Returns the number of the log's last record that the transaction sees.
    pub fn lsn(&self) -> Lsn {
        Lsn(self.moment.lsn)
    }

    fn reads(&self) -> MutexGuard<'_, Reads> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the key's value, as set by the transaction or as of its start.
    ///
    /// # Errors
    /// Those of [`Keyspace::get`]; [`ErrorKind::InvalidInput`] for a keyspace of another store.
    pub fn get<'a>(
        &'a self,
        keyspace: &'a Keyspace,
        key: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> Pending<'a, Option<Value>> {
        let key = key.as_ref();
        Pending::new(&self.handle.shared.engine, self.read(keyspace, key, false))
    }

    /// Returns the key's value, as [`get`](Transaction::get) does, and protects it at both levels of isolation as if the
    /// transaction wrote the key: the commit fails if another write has changed it. For a read that determines changes of other
    /// keys, so that [`Isolation::Snapshot`] has no write skew there. It locks nothing, and another transaction that reads the
    /// key in this way does not conflict if neither writes it. A transaction without changes still never conflicts.
    ///
    /// # Errors
    /// Those of [`get`](Transaction::get).
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{ErrorKind, Isolation, Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// let shifts = store.default_keyspace();
    /// shifts.put("anna", "on call").wait()?;
    /// shifts.put("bert", "on call").wait()?;
    /// let mut transaction = store.transaction(Isolation::Snapshot);
    /// // Bert may leave as long as Anna stays.
    /// if transaction.get_for_update(&shifts, "anna").wait()?.is_some() {
    ///     transaction.delete(&shifts, "bert")?;
    /// }
    /// shifts.delete("anna").wait()?; // somebody else
    /// let conflict = transaction.commit().wait().unwrap_err();
    /// assert_eq!(conflict.kind(), ErrorKind::Conflict);
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn get_for_update<'a>(
        &'a self,
        keyspace: &'a Keyspace,
        key: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> Pending<'a, Option<Value>> {
        let key = key.as_ref();
        Pending::new(&self.handle.shared.engine, self.read(keyspace, key, true))
    }

    async fn read(&self, keyspace: &Keyspace, key: &[u8], is_for_update: bool) -> Result<Option<Value>> {
        keyspace.check_store(self.handle.number)?;
        let place = (keyspace.id(), key.to_vec());
        let staged = self.writes.get(&place);
        if is_for_update || (self.isolation == Isolation::Serializable && staged.is_none()) {
            self.reads().keys.insert(place);
        }
        match staged {
            Some(staged) => Ok(self.value(staged)),
            None => keyspace.get_at(key, Some(self.moment.clone())).await,
        }
    }

    /// Returns the value that a change sets.
    fn value(&self, staged: &StagedWrite) -> Option<Value> {
        let shared = &self.handle.shared;
        match staged {
            StagedWrite::Put { value, expires_s } => expires_s
                .is_none_or(|expires_s| expires_s > self.moment.now_s)
                .then(|| Value::of_bytes(value.clone(), value.len() as u64, shared.cache.held())),
            StagedWrite::Delete => None,
        }
    }

    /// Returns the entries between two keys, in order, as of the transaction's start, with its changes so far. A serializable
    /// transaction counts the whole range as read.
    ///
    /// For a keyspace of another store, the range's first result is an error.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Isolation, Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// # let users = store.keyspace("users").wait()?;
    /// users.put("anna", "1").wait()?;
    /// let mut transaction = store.transaction(Isolation::Serializable);
    /// transaction.put(&users, "bert", "2")?;
    /// let mut range = transaction.range(&users, "a"..);
    /// let mut names = Vec::new();
    /// while let Some(entry) = range.next().wait() {
    ///     names.push(String::from_utf8(entry?.0)?);
    /// }
    /// assert_eq!(names, ["anna", "bert"]);
    /// transaction.commit().wait()?;
    /// # drop(range);
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn range<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, range: impl RangeBounds<K>) -> TransactionRange {
        self.range_of(keyspace, Bounds::of(&range))
    }

    /// Returns the entries whose keys start with this prefix, as [`range`](Transaction::range) does.
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> TransactionRange {
        self.range_of(keyspace, Bounds::prefix(prefix.as_ref()))
    }

    fn range_of(&self, keyspace: &Keyspace, bounds: Bounds) -> TransactionRange {
        if let Err(error) = keyspace.check_store(self.handle.number) {
            return TransactionRange::new(Range::failed(&self.handle, error), Vec::new());
        }
        let id = keyspace.id();
        if self.isolation == Isolation::Serializable {
            self.reads().ranges.push((id, bounds.clone()));
        }
        let low = match &bounds.low {
            Bound::Unbounded => Bound::Included((id, Vec::new())),
            bound => bound.clone().map(|key| (id, key)),
        };
        let own = self.writes.range((low, Bound::Unbounded));
        let own = own.take_while(|((keyspace, key), _)| *keyspace == id && bounds.is_below_high(key));
        let own = own.map(|((_, key), staged)| (key.clone(), self.value(staged))).collect();
        TransactionRange::new(Range::new(&self.handle, id, bounds, Some(self.moment.clone())), own)
    }

    /// Sets a key's value when the transaction commits.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`]; [`ErrorKind::InvalidInput`] for an empty key and for a
    /// keyspace of another store.
    pub fn put(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.stage(keyspace, key.as_ref(), &Change::Put { value: value.as_ref(), expires_s: None })
    }

    /// Sets a key's value with an expiry: from `expires_s` on, in seconds since 1970, the key counts as deleted.
    ///
    /// # Errors
    /// Those of [`put`](Transaction::put).
    pub fn put_until(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expires_s: u64,
    ) -> Result<()> {
        let put = Change::Put { value: value.as_ref(), expires_s: Some(expires_s) };
        self.stage(keyspace, key.as_ref(), &put)
    }

    /// Removes a key, if it exists, when the transaction commits.
    ///
    /// # Errors
    /// Those of [`put`](Transaction::put).
    pub fn delete(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        self.stage(keyspace, key.as_ref(), &Change::Delete)
    }

    fn stage(&mut self, keyspace: &Keyspace, key: &[u8], change: &Change<'_>) -> Result<()> {
        keyspace.check_store(self.handle.number)?;
        record::check(key, change)?;
        let staged = match *change {
            Change::Put { value, expires_s } => {
                StagedWrite::Put { value: Bytes::copy_from_slice(value), expires_s }
            }
            Change::Delete => StagedWrite::Delete,
        };
        self.writes.insert((keyspace.id(), key.to_vec()), staged);
        self.unlogged.extend(keyspace.unlogged());
        Ok(())
    }

    /// Applies the changes atomically; they are durable when it completes. A transaction without changes only ends, and never
    /// conflicts: its reads were of one moment.
    ///
    /// The check for conflicts costs about a microsecond for each protected key, and as much again for each flush since the
    /// transaction's start that had entries of the key's keyspace; for each range, time in proportion to the entries in it that
    /// are in memtables or were flushed since. Other commits wait for it. **Dropping the future does not undo the commit** once
    /// it has been polled.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if another write, load, ingest or removal has changed what the [`Isolation`] protects since the
    /// transaction's start, or if the changed keys of a keyspace did not fit into memory. Nothing was written then, and a new
    /// transaction sees that other write. Otherwise the errors of [`Keyspace::put`].
    pub fn commit(self) -> Pending<'static, ()> {
        let engine = self.handle.shared.engine.clone();
        Pending::new(&engine, async move {
            let shared = self.handle.shared.clone();
            let Some(conflict) = self.apply(None).await? else { return Ok(()) };
            // The record that it conflicts with may be on its way to the device; until it is durable no transaction
            // sees it, and every one conflicts with it.
            shared.see_committed().await?;
            Err(conflict.into_error())
        })
    }

    /// Applies the changes; returns the conflict, if any. With `turn` it yields to the transactions that wait for their next try,
    /// and gives up its turn as soon as it is committed: the next transaction can wait for the same flush.
    pub(crate) async fn apply(self, turn: Option<&mut Option<Turn>>) -> Result<Option<Conflict>> {
        let shared = &self.handle.shared;
        let mut batch = Batch::new();
        self.unlogged.iter().for_each(|keyspace| batch.note_unlogged(Some(*keyspace)));
        for ((keyspace, key), staged) in &self.writes {
            let change = match staged {
                StagedWrite::Put { value, expires_s } => Change::Put { value, expires_s: *expires_s },
                StagedWrite::Delete => Change::Delete,
            };
            batch.push(*keyspace, key, &change)?;
        }
        let Some(ready) = batch.ready(shared, self.handle.number)? else {
            return shared.check_open().map(|()| None);
        };
        drop(batch);
        let conflict = Mutex::new(None);
        let checked = {
            let own = turn.as_deref().map(Option::as_ref);
            let is_unchanged = |commit: &Commit| {
                let found = self.conflict(commit, own).filter(|_| !is_broken!(ConflictMissed));
                let is_none = found.is_none();
                *conflict.lock().unwrap_or_else(PoisonError::into_inner) = found;
                is_none
            };
            shared.commit_if(ready, &is_unchanged).await?
        };
        match checked {
            Verdict::Queued(appended) => {
                if let Some(turn) = turn {
                    drop(turn.take());
                }
                shared.until_durable(appended).await.map(|()| None)
            }
            Verdict::Refused(_) => {
                let conflict = conflict.into_inner().unwrap_or_else(PoisonError::into_inner);
                Ok(Some(conflict.unwrap_or_default()))
            }
        }
    }

    /// Returns the reason why the transaction must not commit, in the commit section. `own` is its place in a line, for one
    /// that yields to others.
    fn conflict(&self, commit: &Commit, own: Option<Option<&Turn>>) -> Option<Conflict> {
        let yields = |line: u64| own.is_some_and(|own| self.handle.shared.turns.must_yield(line, own));
        // `is_newer`: a memtable has a change. `text` says what has changed.
        let compare =
            |keyspace: u32, range: KeyRange<'_>, line: u64, is_newer: bool, text: &dyn Fn() -> String| {
                let finding = if is_newer || yields(line) {
                    Finding::Changed
                } else {
                    self.handle.shared.recent().find(keyspace, range, self.start)?
                };
                Some(match finding {
                    Finding::Changed => Conflict { line: Some(line), text: text() },
                    Finding::Loaded => Conflict { line: None, text: LOADED.to_string() },
                    Finding::Forgotten => Conflict { line: None, text: FORGOTTEN.to_string() },
                })
            };
        let changed = |(keyspace, key): &Place| {
            let newest = commit.memtables().find_map(|memtables| memtables.newest_lsn(*keyspace, key));
            let is_newer = newest.is_some_and(|lsn| lsn > self.start.lsn);
            let (point, line) = (Bound::Included(&key[..]), xxh3_64_with_seed(key, u64::from(*keyspace)));
            compare(*keyspace, (point, point), line, is_newer, &|| {
                let key = String::from_utf8_lossy(&key[..key.len().min(64)]).into_owned();
                format!("the key {key:?} was changed since the transaction began; run it again")
            })
        };
        let is_changed = |(keyspace, bounds): &(u32, Bounds)| {
            let range @ (low, high) = bounds.slices();
            let has_newer =
                |memtables: &Arc<Memtables>| memtables.has_newer(*keyspace, range, self.start.lsn);
            let is_newer = commit.memtables().any(has_newer);
            let line = xxh3_64_with_seed(bytes(high), xxh3_64_with_seed(bytes(low), u64::from(*keyspace)));
            compare(*keyspace, range, line, is_newer, &|| {
                "a range was changed since the transaction read it; run it again".to_string()
            })
        };
        let reads = self.reads();
        let key = reads.keys.iter().find_map(changed);
        if self.isolation == Isolation::Snapshot {
            return key.or_else(|| self.writes.keys().find_map(changed));
        }
        key.or_else(|| reads.ranges.iter().filter(|_| !is_broken!(PhantomMissed)).find_map(is_changed))
    }
}

/// The conflict of a transaction with a change of tables past the log.
const LOADED: &str =
    "a bulk load, an ingest or a removal has touched keys of the transaction since it began; run it again";

/// The conflict of a transaction whose comparison lacked memory.
const FORGOTTEN: &str = "so many keys were changed since the transaction began that there was no memory for all of them, and its \
                         reads cannot be compared any more; run it again, for a shorter time or with a larger budget of memory";

/// Returns the key of a bound.
fn bytes(bound: Bound<&[u8]>) -> &[u8] {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => key,
        Bound::Unbounded => &[],
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let surplus = self.handle.shared.recent().end(self.start);
        drop(surplus);
    }
}

forebay::_debug_parts!(
    Transaction, |transaction|
    lsn: transaction.moment.lsn,
    changes: transaction.writes.len()
);

/// A key and its value.
type Pair = (Vec<u8>, Value);

/// The entries of a [`Transaction`] between two keys, in order; see [`Transaction::range`]. Changes that the transaction
/// makes later are not in it.
pub struct TransactionRange {
    range: Range,
    /// Changes of the transaction, in the order of the range; `None` for a deletion.
    own: Peekable<IntoIter<(Vec<u8>, Option<Value>)>>,
    /// The next entry of the range, if it was read.
    next: Option<Pair>,
    is_over: bool,
    is_backwards: bool,
}

impl TransactionRange {
    fn new(range: Range, own: Vec<(Vec<u8>, Option<Value>)>) -> TransactionRange {
        let own = own.into_iter().peekable();
        TransactionRange { range, own, next: None, is_over: false, is_backwards: false }
    }

    /// Returns the same entries from the last to the first; call it before the first entry is read.
    #[must_use = "it is the range that goes the other way"]
    pub fn rev(self) -> TransactionRange {
        let own: Vec<_> = self.own.rev().collect();
        TransactionRange { is_backwards: !self.is_backwards, ..TransactionRange::new(self.range.rev(), own) }
    }

    /// Returns the next entry, or `None` at the end. Dropping the future loses nothing.
    ///
    /// # Errors
    /// Those of [`Range::next`].
    #[expect(clippy::should_implement_trait, reason = "the asynchronous `next`, as that of a `Stream`")]
    pub fn next(&mut self) -> Waitable<impl Future<Output = Option<Result<Pair>>>> {
        Waitable::new("range", async move { self.step().await.transpose() })
    }

    /// Passes the further entries to `see`, as [`Range::visit`] does. Entries behind the transaction's own changes are passed in
    /// place.
    ///
    /// # Errors
    /// Those of [`next`](Self::next).
    pub fn visit<B>(
        &mut self,
        mut see: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Waitable<impl Future<Output = Result<Option<B>>>> {
        Waitable::new("range", async move {
            while self.next.is_some() || self.own.peek().is_some() {
                let Some((key, value)) = self.step().await? else { break };
                if let ControlFlow::Break(answer) = see(&key, &value) {
                    return Ok(Some(answer));
                }
            }
            self.range.visit(see).await
        })
    }

    async fn step(&mut self) -> Result<Option<Pair>> {
        loop {
            if self.next.is_none() && !self.is_over {
                match self.range.next().await.transpose() {
                    Ok(next) => (self.is_over, self.next) = (next.is_none(), next),
                    Err(error) => {
                        // As the range in the store does, it continues once memory is free.
                        if !matches!(error.kind(), ErrorKind::MemoryBudget { .. }) {
                            (self.is_over, self.own) = (true, Vec::new().into_iter().peekable());
                        }
                        return Err(error);
                    }
                }
            }
            let order = match (&self.next, self.own.peek()) {
                (Some((stored, _)), Some((own, _))) if self.is_backwards => own.cmp(stored),
                (Some((stored, _)), Some((own, _))) => stored.cmp(own),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (None, None) => return Ok(None),
            };
            if order.is_lt() {
                return Ok(self.next.take());
            }
            if order.is_eq() {
                self.next = None;
            }
            if let Some((key, Some(value))) = self.own.next() {
                return Ok(Some((key, value)));
            }
        }
    }
}

forebay::_debug_parts!(TransactionRange);
