//! The commit section. One step adds a record to the log's queue and to the list of records that the memtable is to get, so that
//! the two never differ. The writer then waits, outside the section, until the record is durable. Insertion lasts longer than the
//! section; it happens outside ([`insertion`](super::insertion)).

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};

use forebay_wal::{Lsn, PendingAppend};

use super::gate::GatePosition;
use super::insertion::{CommittedRecord, Turn};
use super::shared::{Commit, StoreCore};
use crate::error::{Error, Result};
use crate::is_broken;
use crate::memtable::{self, Memtables};
use crate::record::{self, ENTRY_BYTES, HEADER_BYTES, Record};
use crate::value::HeldShare;
use crate::wait::{BoxFuture, block_in_turn};

/// A record that is ready for the log.
pub(crate) struct Ready {
    pub(crate) record: Record,
    /// The positions of its entries.
    pub(crate) places: Vec<u32>,
    /// The record for the log, if some entries are of keyspaces that are not logged.
    log: Option<Record>,
    /// Whether it has more than deletions.
    grows: bool,
    /// Whether all its entries are of keyspaces that are not logged.
    is_unlogged: bool,
    /// Whether its writer is a thread that does nothing else before the record is durable, and may write the log itself.
    is_in_wait: bool,
    /// Counts the record as memory that the program holds, as long as its writer has it.
    _held: HeldShare,
}

impl Ready {
    /// `puts` is the number of entries that are not deletions.
    pub(crate) fn new(shared: &StoreCore, record: Record, places: Vec<u32>, puts: usize) -> Ready {
        debug_assert_eq!(
            record::parse(&record).ok().as_ref(),
            Some(&places),
            "a record is read back as it was written"
        );
        let held = HeldShare::new(Some(shared.cache.held()), record.memory_bytes());
        let grows = puts > 0;
        Ready { record, places, log: None, grows, is_unlogged: false, is_in_wait: false, _held: held }
    }

    /// Leaves the entries of some keyspaces out of the log. If no entry remains, nothing waits until the record is durable: only a
    /// flush makes its entries so. The log then gets only its number, without a write of its bytes.
    pub(crate) fn without(mut self, unlogged: &BTreeSet<u32>) -> Ready {
        if !unlogged.is_empty() {
            let log = Record::logged(&self.record, &self.places, |keyspace| !unlogged.contains(&keyspace));
            debug_assert!(record::parse(&log).is_ok(), "a record is read back as it was written");
            self.is_unlogged = log.len() == HEADER_BYTES;
            self.log = Some(log);
        }
        self
    }

    /// Returns the bytes of its keys and values, with those of times of expiry.
    fn put_bytes(&self) -> u64 {
        (self.record.len() - HEADER_BYTES - self.places.len() * ENTRY_BYTES) as u64
    }

    fn longest_value(&self) -> usize {
        let entries = self.places.iter().filter_map(|at| record::entry_at(&self.record, *at as usize));
        entries.map(|(entry, _)| entry.value.len()).max().unwrap_or(0)
    }

    /// Returns the keyspaces of its entries.
    pub(super) fn keyspaces(&self) -> BTreeSet<u32> {
        let entries = self.places.iter().filter_map(|at| record::entry_at(&self.record, *at as usize));
        entries.map(|(entry, _)| entry.keyspace).collect()
    }

    /// Returns the bytes for the log.
    pub(super) fn logged(&self) -> &[u8] {
        self.log.as_ref().unwrap_or(&self.record)
    }
}

/// The outcome of an attempt to commit.
pub(crate) enum CommitOutcome {
    /// The record is in the queue, and the memtable has it or will get it.
    Queued(PendingAppend),
    /// Nothing was done; the record is returned.
    Blocked(Ready, Obstacle),
}

/// What became of a commit with a check.
pub(crate) enum Verdict {
    /// The record is in the queue; `None` if its writer does not wait until it is durable.
    Queued(Option<PendingAppend>),
    /// The check rejected it.
    Refused(Ready),
}

/// The reason why a record was not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The memtables are full until a flush has made progress, or other writers wait for that.
    NoSpace,
    /// The log is full until a group is written.
    NoRoom,
    /// It changes keys that are locked while files are ingested.
    Locked,
    /// The check in the commit section rejected it.
    Refused,
}

impl StoreCore {
    /// Tries to commit a record and returns the outcome. It commits if the record fits now and `check`, called in the commit
    /// section, agrees; `check` sees every record committed before. `place` is the caller's place in the line of waiting writers.
    pub(crate) fn try_commit(
        &self,
        ready: Ready,
        place: Option<&GatePosition<'_>>,
        check: Option<&(dyn Fn(&Commit) -> bool + Sync)>,
    ) -> Result<CommitOutcome> {
        let (bytes, entries) = (ready.record.len(), ready.places.len());
        let cost = memtable::cost(bytes, entries);
        self.budget.check_record(bytes, entries, cost, ready.is_unlogged)?;
        if bytes > self.budget.value {
            self.budget.check_value(ready.longest_value())?;
        }
        // Not in the commit section: the call may wake the program's tasks, and their wakers may be code of
        // the program.
        self.look_at_logs();
        let (turn, mut commit) = if check.is_some() {
            let (turn, commit) = self.lock_inserted();
            (Some(turn), commit)
        } else {
            (None, self.lock())
        };
        self.check_writable()?;
        if ready.grows {
            self.full.check_growth()?;
        } else {
            self.check_log_room(&ready, &commit)?;
        }
        if commit.version.has_dropped() {
            let places = ready.places.iter().filter_map(|at| record::entry_at(&ready.record, *at as usize));
            if places.into_iter().any(|(entry, _)| commit.version.is_dropped(entry.keyspace)) {
                return Err(Error::dropped_keyspace());
            }
        }
        if commit.locked.as_ref().is_some_and(|locked| locked.touches(&ready)) && !is_broken!(RangesNotLocked)
        {
            return Ok(CommitOutcome::Blocked(ready, Obstacle::Locked));
        }
        if check.is_some_and(|check| !check(&commit)) {
            return Ok(CommitOutcome::Blocked(ready, Obstacle::Refused));
        }
        let is_turn = commit.sealed.is_empty() || self.gate.is_turn(place);
        if !is_turn || !self.has_space(&mut commit, cost)? {
            self.full.check_flush()?;
            self.counters.space_waits.fetch_add(u64::from(place.is_none()), Ordering::Relaxed);
            return Ok(CommitOutcome::Blocked(ready, Obstacle::NoSpace));
        }
        let is_unlogged = ready.is_unlogged;
        let queued = if is_unlogged {
            self.wal.try_append_deferred(ready.logged())
        } else if ready.is_in_wait {
            self.wal.try_append_in_turn(ready.logged())
        } else {
            self.wal.try_append(ready.logged())
        };
        let Some(appended) = queued.map_err(|error| Error::from(error).named(&self.dir))? else {
            return Ok(CommitOutcome::Blocked(ready, Obstacle::NoRoom));
        };
        let lsn = appended.lsn().0;
        debug_assert!(lsn > commit.last && lsn > commit.flushed, "sequence numbers rise");
        commit.active.expect(cost, lsn);
        commit.last = lsn;
        if !is_unlogged {
            commit.last_logged = lsn;
        }
        debug_assert!(
            commit.sealed.is_empty() || commit.sealed_used() + commit.active.used() <= self.budget.memtables,
            "the memtables keep their share of the memory"
        );
        self.full.note_unflushed(commit.unflushed_bytes());
        self.counters.put.fetch_add(ready.put_bytes(), Ordering::Relaxed);
        self.insertion.push(CommittedRecord { memtables: commit.active.clone(), ready, lsn });
        drop((commit, turn));
        self.insertion.run_unless_busy();
        self.note_change();
        Ok(CommitOutcome::Queued(appended))
    }

    /// Commits a record if `check`, called in the commit section, agrees; gives it back if not. Waits for memory, and while writers
    /// are slowed, as every write does. The caller waits [until it is durable](Self::until_durable).
    pub(crate) async fn commit_if(
        &self,
        mut ready: Ready,
        check: &(dyn Fn(&Commit) -> bool + Sync),
    ) -> Result<Verdict> {
        if !self.write_stall.delay().is_zero() {
            self.write_stall.wait(|| self.check_writable().is_err()).await;
        }
        let (mut place, is_unlogged) = (None, ready.is_unlogged);
        loop {
            ready = match self.try_commit(ready, place.as_ref(), Some(check))? {
                CommitOutcome::Queued(appended) if is_unlogged => {
                    self.show_early(appended.lsn());
                    return Ok(Verdict::Queued(None));
                }
                CommitOutcome::Queued(appended) => return Ok(Verdict::Queued(Some(appended))),
                CommitOutcome::Blocked(ready, Obstacle::Refused) => return Ok(Verdict::Refused(ready)),
                CommitOutcome::Blocked(ready, obstacle) => {
                    place = self.wait_for_room(obstacle, &ready, place).await?;
                    ready
                }
            };
        }
    }

    /// Waits until a queued record is durable, and visible; `None` is one that does not wait for that.
    pub(crate) async fn until_durable(&self, appended: Option<PendingAppend>) -> Result<()> {
        match appended {
            Some(appended) => self.committed(appended.await),
            None => Ok(()),
        }
    }

    /// Returns the lock of the commit section with all committed records in the memtables, and the turn that
    /// keeps it so.
    pub(crate) fn lock_inserted(&self) -> (Turn<'_>, MutexGuard<'_, Commit>) {
        let mut turn = self.insertion.turn();
        let commit = self.lock();
        self.insertion.run(&mut turn);
        (turn, commit)
    }

    /// Returns whether the active memtable fits `cost` more bytes; seals it and starts a new memtable if needed.
    pub(super) fn has_space(&self, commit: &mut Commit, cost: u64) -> Result<bool> {
        if !self.is_free(commit, cost) {
            return Ok(false);
        }
        self.take_back(commit, cost);
        if self.takes(commit, cost) {
            return Ok(true);
        }
        // Sealed memtables that snapshots keep are memory, too.
        self.check_held()?;
        self.seal(commit);
        Ok(self.takes(commit, cost))
    }

    /// Returns whether the active memtable fits `cost` more bytes. An empty memtable fits a record of any length, if the share
    /// does.
    fn takes(&self, commit: &Commit, cost: u64) -> bool {
        let (memtable, active, sealed) = (self.budget.memtable, commit.active.used(), commit.sealed_used());
        match active {
            0 => sealed == 0 || sealed + cost.max(memtable) <= self.budget.memtables,
            _ => active + cost + memtable::SLACK_BYTES.min(memtable / 8) <= memtable,
        }
    }

    /// Returns whether another memtable may follow the active one, which does not fit `cost` more bytes. The share is three
    /// memtables, and each is at most that long.
    fn may_seal(&self, commit: &Commit, cost: u64) -> bool {
        let (active, sealed) = (commit.active.used(), commit.sealed_used());
        let next = cost.max(self.budget.memtable);
        active > 0 && (sealed == 0 || sealed + active + next <= self.budget.memtables)
    }

    /// Returns whether the memtables may use this many more bytes now.
    fn is_free(&self, commit: &Commit, cost: u64) -> bool {
        if !self.takes(commit, cost) && !self.may_seal(commit, cost) {
            return false;
        }
        // No gradual release of memory while the next flush is held back.
        let is_held = self.flush_limit.load(Ordering::Acquire) != u64::MAX;
        if commit.sealed.is_empty() || is_held {
            return true;
        }
        let used = commit.sealed_used() + commit.active.used();
        used + cost <= self.gate.allowed(self.budget.memtables, self.engine.now_ns())
    }

    /// Starts a new active memtable and seals the old one for the flush.
    pub(super) fn seal(&self, commit: &mut Commit) {
        if commit.active.last_lsn() == 0 {
            return;
        }
        let fresh = Arc::new(Memtables::new(&self.engine, self.budget.snapshots().clone()));
        let old = std::mem::replace(&mut commit.active, fresh);
        debug_assert!(
            commit.sealed.back().map_or(commit.flushed, |last| last.last_lsn()) < old.last_lsn(),
            "memtables are sealed and flushed in the order of their records"
        );
        commit.sealed.push_back(old);
        if commit.sealed.len() == 1 {
            self.next_flush(commit);
        }
        self.show(commit);
        self.work.notify();
    }

    /// Makes the flush of the oldest sealed memtables the one that paces writers from now on.
    pub(super) fn next_flush(&self, commit: &Commit) {
        if let Some(oldest) = commit.sealed.front() {
            let used = commit.sealed_used() + commit.active.used();
            self.gate.begin(used, oldest.entries(), self.engine.now_ns());
        }
    }

    /// Shows a committed record to reads although it may not be durable yet, and so all records before it.
    fn show_early(&self, lsn: Lsn) {
        self.insertion.until(lsn.0);
        self.shown.fetch_max(lsn.0, Ordering::AcqRel);
    }

    /// Returns the outcome of a commit whose append has ended with `done`. Its caller's reads see the record.
    pub(super) fn committed(&self, done: forebay_wal::Result<Lsn>) -> Result<()> {
        let lsn = done.map_err(|error| self.log_error(error))?;
        self.insertion.until(lsn.0);
        Ok(())
    }

    /// Waits until reads see all records committed so far.
    pub(crate) async fn see_committed(&self) -> Result<()> {
        let last = self.lock().last;
        if self.visible() >= last {
            return Ok(());
        }
        if !self.is_log_durable(last) {
            return self.sync_committed().await;
        }
        self.show_early(Lsn(last));
        Ok(())
    }

    /// Waits until all that the log has of this record and those before it is durable.
    pub(crate) async fn see_durable(&self, lsn: u64) -> Result<()> {
        if self.is_log_durable(lsn) { Ok(()) } else { self.sync_committed().await }
    }

    /// Returns whether all that the log has of this record and those before it is durable. What is not logged is
    /// durable with a flush, for which no read waits: a flush of the log would not make it so.
    pub(crate) fn is_log_durable(&self, lsn: u64) -> bool {
        let durable = self.wal.durable_lsn().0;
        durable >= lsn || durable >= self.lock().last_logged
    }

    /// Waits until all records committed so far are durable, and so visible.
    pub(crate) async fn sync_committed(&self) -> Result<()> {
        self.check_writable()?;
        if self.wal.durable_lsn().0 < self.lock().last {
            self.wal.sync().await.map_err(|error| self.log_error(error))?;
        }
        self.insertion.until(self.wal.durable_lsn().0);
        Ok(())
    }

    /// Converts an error of the log to the writer's error. An error that means that the log is broken makes the store read-only; a
    /// lack of file descriptors for a read does not.
    pub(crate) fn log_error(&self, error: forebay_wal::Error) -> Error {
        use forebay_wal::ErrorKind as Kind;
        let found_no_descriptor = || error.cause().is_some_and(forebay::Error::is_out_of_descriptors);
        match error.kind() {
            Kind::Io if found_no_descriptor() => error.into(),
            Kind::Poisoned | Kind::Io | Kind::NoSpace => self.fail(&error.into()),
            _ => Error::from(error).named(&self.dir),
        }
    }

    /// Waits until memory may be free again. Returns the caller's place in the line, if it has one, which it keeps until its record
    /// is committed.
    pub(crate) async fn wait_for_room<'a>(
        &'a self,
        obstacle: Obstacle,
        ready: &Ready,
        place: Option<GatePosition<'a>>,
    ) -> Result<Option<GatePosition<'a>>> {
        let cost = memtable::cost(ready.record.len(), ready.places.len());
        let check = || {
            if ready.grows {
                self.check_writable().and_then(|()| self.full.check_growth())
            } else {
                self.check_writable()
            }
        };
        if obstacle == Obstacle::Locked {
            // Other writers continue meanwhile.
            drop(place);
            self.unlocked(ready, check).await?;
            return Ok(None);
        }
        let place = place.unwrap_or_else(|| self.gate.join());
        let is_free = |is_first| match check() {
            Err(error) => Some(Err(error)),
            Ok(()) => {
                let commit = self.lock();
                let is_turn = is_first || commit.sealed.is_empty();
                if is_turn && self.is_free(&commit, cost) {
                    Some(Ok(()))
                } else {
                    // No memory can become free while flushes lack disk space.
                    self.full.check_flush().err().map(Err)
                }
            }
        };
        place.until(is_free).await?;
        if obstacle == Obstacle::NoRoom {
            self.wal.room(ready.logged().len()).await.map_err(|error| self.log_error(error))?;
        }
        Ok(Some(place))
    }
}

/// The future of puts, deletes and batches: completes when the write is durable. **Dropping it does not
/// cancel the write**: once it has been polled, the write may be in the store or may still reach it.
#[must_use = "nothing is written unless this is awaited or waited for"]
pub struct Write<'a> {
    shared: &'a Arc<StoreCore>,
    stage: Stage<'a>,
    is_relaxed: bool,
}

enum Stage<'a> {
    Ready(Ready, Option<GatePosition<'a>>),
    /// Slowed down, or without memory; the commit is tried again afterwards.
    Waiting(BoxFuture<'a, (Ready, Option<GatePosition<'a>>)>),
    Queued(PendingAppend),
    Nothing,
    Failed(Error),
    Over,
}

impl<'a> Write<'a> {
    pub(crate) fn new(shared: &'a Arc<StoreCore>, ready: Result<Ready>) -> Write<'a> {
        let is_relaxed = ready.as_ref().is_ok_and(|ready| ready.is_unlogged);
        let stage = match ready {
            Err(error) => Stage::Failed(error),
            // A full store refuses puts, and deletes free its space: neither is delayed.
            Ok(ready) if shared.write_stall.delay().is_zero() || shared.full.is_full() => {
                Stage::Ready(ready, None)
            }
            Ok(ready) => {
                let slowed = async move {
                    shared.counters.slowed.fetch_add(1, Ordering::Relaxed);
                    shared.write_stall.wait(|| shared.check_writable().is_err()).await;
                    Ok((ready, None))
                };
                Stage::Waiting(Box::pin(slowed))
            }
        };
        Write { shared, stage, is_relaxed }
    }

    /// Makes the write complete without waiting for the device: when it is in the log's queue, where reads see it. The
    /// log makes it durable soon afterwards, usually within milliseconds; [`Store::sync`](crate::Store::sync) waits
    /// for that, and so does every later write that is not relaxed.
    ///
    /// After a crash this write may be lost, together with all writes after it, but never without those. Reads may then have seen
    /// values that are lost. A log that fails afterwards makes the store read-only.
    ///
    /// ```
    /// # use forebay::{Config, Engine};
    /// # use forebay_kv::{Options, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let store = Store::open(&engine, dir.path(), Options::new().memory_bytes_max(16 << 20)).wait()?;
    /// let visits = store.default_keyspace();
    /// for page in ["a", "b", "c"] {
    ///     visits.put(page, "1").relaxed().wait()?;
    /// }
    /// assert!(visits.contains_key("c").wait()?);
    /// store.sync().wait()?; // all of them are durable
    /// # store.close().wait()?;
    /// # Ok(()) }
    /// ```
    pub fn relaxed(mut self) -> Write<'a> {
        self.is_relaxed = true;
        self
    }

    /// Returns a write of nothing, which only checks that the store accepts writes.
    pub(crate) fn nothing(shared: &'a Arc<StoreCore>) -> Write<'a> {
        Write { shared, stage: Stage::Nothing, is_relaxed: false }
    }

    /// Blocks the calling thread until the write is durable. A thread that is alone writes the log itself, as
    /// [`Append::wait`](forebay_wal::Append::wait) says.
    ///
    /// # Errors
    /// Those of the operation; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread and
    /// [`ErrorKind::WaitInWorld`](crate::ErrorKind::WaitInWorld) in a simulated world: use `.await` there.
    pub fn wait(mut self) -> Result<()> {
        if let Stage::Ready(ready, _) = &mut self.stage {
            ready.is_in_wait = !self.is_relaxed;
        }
        block_in_turn(&self.shared.engine, self)
    }

    fn step(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Ready(ready, place) => match self.shared.try_commit(ready, place.as_ref(), None)? {
                    CommitOutcome::Queued(appended) if self.is_relaxed => {
                        self.shared.show_early(appended.lsn());
                        return Poll::Ready(Ok(()));
                    }
                    CommitOutcome::Queued(appended) => self.stage = Stage::Queued(appended),
                    CommitOutcome::Blocked(ready, obstacle) => {
                        let shared = self.shared;
                        let room = async move {
                            let place = shared.wait_for_room(obstacle, &ready, place).await?;
                            Ok((ready, place))
                        };
                        self.stage = Stage::Waiting(Box::pin(room));
                    }
                },
                Stage::Waiting(mut room) => {
                    let Poll::Ready(waited) = room.as_mut().poll(context) else {
                        self.stage = Stage::Waiting(room);
                        return Poll::Pending;
                    };
                    let (ready, place) = waited?;
                    self.stage = Stage::Ready(ready, place);
                }
                Stage::Queued(mut appended) => {
                    let Poll::Ready(done) = Pin::new(&mut appended).poll(context) else {
                        self.stage = Stage::Queued(appended);
                        return Poll::Pending;
                    };
                    return Poll::Ready(self.shared.committed(done));
                }
                Stage::Nothing => return Poll::Ready(self.shared.check_writable()),
                Stage::Failed(error) => return Poll::Ready(Err(error)),
                Stage::Over => return Poll::Ready(Err(Error::polled_again())),
            }
        }
    }
}

impl Future for Write<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.step(context)
    }
}

forebay::_debug_parts!(Write<'_>);
