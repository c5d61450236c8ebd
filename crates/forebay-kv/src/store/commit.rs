//! The commit section: a record goes into the log's queue and into the memtable in one step, so that they
//! never differ. Then its writer waits, outside, until it is durable.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use forebay_wal::Appended;

use super::gate::Place;
use super::shared::{Commit, Shared};
use super::wait::{Boxed, block_on};
use crate::error::{Error, ErrorKind, Result};
use crate::memtable::{self, Memtables};

/// A record that is ready for the log.
#[derive(Clone)]
pub(crate) struct Ready {
    pub(crate) record: Arc<[u8]>,
    /// Where its entries are.
    pub(crate) places: Vec<u32>,
}

/// What came of trying to commit.
pub(crate) enum Tried {
    /// It is in the queue and in the memtable.
    In(Appended),
    /// The memtables are full until a flush has got on, or others wait for that.
    NoSpace,
    /// The log has no room until a group was written.
    NoRoom,
    /// The check in the commit section said no.
    Refused,
}

impl Shared {
    /// Commits a record, if there is room now and `check`, in the commit section, agrees. `place` is the
    /// caller's in the line of those who wait.
    pub(crate) fn try_commit(
        &self,
        ready: &Ready,
        place: Option<&Place<'_>>,
        check: impl FnOnce(&Commit) -> bool,
    ) -> Result<Tried> {
        let (limit, cost) = (self.budget.record, memtable::cost(ready.record.len(), ready.places.len()));
        if ready.record.len() > limit || cost > self.budget.memtable {
            let text = format!(
                "{} entries of {} bytes together; with this memory a memtable of {} has to hold them",
                ready.places.len(),
                ready.record.len(),
                self.budget.memtable
            );
            return Err(Error::new(ErrorKind::TooLarge { limit }, text));
        }
        let mut commit = self.lock();
        self.check_writable()?;
        if !check(&commit) {
            return Ok(Tried::Refused);
        }
        let is_turn = commit.sealed.is_empty() || self.gate.is_turn(place);
        if !is_turn || !self.has_space(&mut commit, cost)? {
            self.counters.space_waits.fetch_add(u64::from(place.is_none()), Ordering::Relaxed);
            return Ok(Tried::NoSpace);
        }
        let Some(appended) = self.wal.try_append(&ready.record)? else { return Ok(Tried::NoRoom) };
        let lsn = appended.lsn().0;
        commit.active.insert(&ready.record, &ready.places, lsn);
        self.inserted.store(lsn, Ordering::Release);
        Ok(Tried::In(appended))
    }

    /// Whether the active memtable takes so many more bytes, perhaps a new one.
    pub(super) fn has_space(&self, commit: &mut Commit, cost: u64) -> Result<bool> {
        let active = commit.active.bytes();
        if !self.is_free(commit, cost) {
            return Ok(false);
        }
        if active > 0 && active + cost > self.budget.memtable {
            // What snapshots keep of earlier ones is memory, too.
            self.check_held()?;
            self.seal(commit);
        }
        Ok(true)
    }

    /// Whether the memtables may have so many more bytes now.
    fn is_free(&self, commit: &Commit, cost: u64) -> bool {
        let (active, sealed, limit) = (commit.active.bytes(), commit.sealed_bytes(), self.budget.memtables);
        // The share is three of them, and each is at most that long.
        let is_over = active > 0 && active + cost > self.budget.memtable;
        if is_over && sealed + active + self.budget.memtable > limit {
            return false;
        }
        // Nothing is given out bit by bit where the next flush has to wait.
        let is_held = self.flush_limit.load(Ordering::Acquire) != u64::MAX;
        let is_paced = !commit.sealed.is_empty() && !is_held;
        !is_paced || sealed + active + cost <= self.gate.allowed(limit, self.engine.now_ns())
    }

    /// Begins a new active memtable; what was in the old one is flushed.
    pub(super) fn seal(&self, commit: &mut Commit) {
        if commit.active.last_lsn() == 0 {
            return;
        }
        let fresh = Arc::new(Memtables::new(self.budget.snapshots().clone()));
        let old = std::mem::replace(&mut commit.active, fresh);
        commit.sealed.push_back(old);
        if commit.sealed.len() == 1 {
            self.next_flush(commit);
        }
        self.show(commit);
        self.work.tell();
    }

    /// From now on writers go by the flush of the oldest sealed memtables.
    pub(super) fn next_flush(&self, commit: &Commit) {
        if let Some(oldest) = commit.sealed.front() {
            let used = commit.sealed_bytes() + commit.active.bytes();
            self.gate.begin(used, oldest.keys(), self.engine.now_ns());
        }
    }

    /// An error of the log as the writer's answer. What means that the log is broken breaks the store.
    pub(crate) fn log_error(&self, error: forebay_wal::Error) -> Error {
        match error.kind() {
            forebay_wal::ErrorKind::Poisoned | forebay_wal::ErrorKind::Io => self.fail(&error.into()),
            _ => error.into(),
        }
    }

    /// Waits until there may be room again after `tried`. Answers the caller's place in the line, which it
    /// keeps until it has what it waited for.
    pub(crate) async fn wait_for_room<'a>(
        &'a self,
        tried: &Tried,
        ready: &Ready,
        place: Option<Place<'a>>,
    ) -> Result<Place<'a>> {
        let place = place.unwrap_or_else(|| self.gate.join());
        let cost = memtable::cost(ready.record.len(), ready.places.len());
        let is_free = |is_first| match self.check_writable() {
            Err(error) => Some(Err(error)),
            Ok(()) => {
                let commit = self.lock();
                let is_turn = is_first || commit.sealed.is_empty();
                (is_turn && self.is_free(&commit, cost)).then_some(Ok(()))
            }
        };
        place.until(is_free).await?;
        if let Tried::NoRoom = tried {
            self.wal.room(ready.record.len()).await.map_err(|error| self.log_error(error))?;
        }
        Ok(place)
    }
}

/// The future of puts, deletes and batches: answers when what they write is durable. **Dropping it takes
/// nothing back**: once polled, what it writes may be in the store, or may come to be.
#[must_use = "nothing is written unless this is awaited or waited for"]
pub struct Write<'a> {
    shared: &'a Arc<Shared>,
    stage: Stage<'a>,
}

enum Stage<'a> {
    Ready(Ready, Option<Place<'a>>),
    /// Slowed down, or without room: then it is tried again.
    Waiting(Ready, Boxed<'a, Option<Place<'a>>>),
    Queued(Appended),
    Nothing,
    Failed(Error),
    Over,
}

impl<'a> Write<'a> {
    pub(crate) fn new(shared: &'a Arc<Shared>, ready: Result<Ready>) -> Write<'a> {
        let stage = match ready {
            Err(error) => Stage::Failed(error),
            Ok(ready) if shared.throttle.delay().is_zero() => Stage::Ready(ready, None),
            Ok(ready) => {
                let slowed = async {
                    shared.counters.slowed.fetch_add(1, Ordering::Relaxed);
                    shared.throttle.wait(|| shared.check_writable().is_err()).await;
                    Ok(None)
                };
                Stage::Waiting(ready, Box::pin(slowed))
            }
        };
        Write { shared, stage }
    }

    /// Nothing is to be written.
    pub(crate) fn nothing(shared: &'a Arc<Shared>) -> Write<'a> {
        Write { shared, stage: Stage::Nothing }
    }

    /// Blocks the calling thread until it is durable.
    ///
    /// # Errors
    /// Those of the operation; [`ErrorKind::WaitOnShard`] on a shard's thread and [`ErrorKind::WaitInWorld`]
    /// in a simulated world, where `.await` is the way.
    pub fn wait(self) -> Result<()> {
        block_on(&self.shared.engine, self)
    }

    fn step(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Ready(ready, place) => {
                    match self.shared.try_commit(&ready, place.as_ref(), |_| true)? {
                        Tried::In(appended) => self.stage = Stage::Queued(appended),
                        tried => {
                            let (shared, waiting) = (self.shared, ready.clone());
                            let room =
                                async move { shared.wait_for_room(&tried, &waiting, place).await.map(Some) };
                            self.stage = Stage::Waiting(ready, Box::pin(room));
                        }
                    }
                }
                Stage::Waiting(ready, mut room) => {
                    let Poll::Ready(waited) = room.as_mut().poll(context) else {
                        self.stage = Stage::Waiting(ready, room);
                        return Poll::Pending;
                    };
                    self.stage = Stage::Ready(ready, waited?);
                }
                Stage::Queued(mut appended) => {
                    let Poll::Ready(done) = Pin::new(&mut appended).poll(context) else {
                        self.stage = Stage::Queued(appended);
                        return Poll::Pending;
                    };
                    return Poll::Ready(done.map(drop).map_err(|error| self.shared.log_error(error)));
                }
                Stage::Nothing => return Poll::Ready(self.shared.check_writable()),
                Stage::Failed(error) => return Poll::Ready(Err(error)),
                Stage::Over => return Poll::Ready(Err(again())),
            }
        }
    }
}

pub(super) fn again() -> Error {
    Error::new(ErrorKind::InvalidInput, "polled again after it had answered")
}

impl Future for Write<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.step(context)
    }
}

impl fmt::Debug for Write<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Write").finish_non_exhaustive()
    }
}
