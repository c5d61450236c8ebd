//! The commit section: a record goes into the log's queue and into the memtable in one step, so that they
//! never differ. Then its writer waits, outside, until it is durable.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use forebay_wal::Appended;

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
    /// The memtables are full until a flush has ended.
    NoSpace,
    /// The log has no room until a group was written.
    NoRoom,
    /// The check in the commit section said no.
    Refused,
}

impl Shared {
    /// Commits a record, if there is room now and `check`, in the commit section, agrees.
    pub(crate) fn try_commit(&self, ready: &Ready, check: impl FnOnce(&Commit) -> bool) -> Result<Tried> {
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
        if !self.has_space(&mut commit, cost)? {
            self.counters.space_waits.fetch_add(1, Ordering::Relaxed);
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
        if active == 0 || active + cost <= self.budget.memtable {
            return Ok(true);
        }
        // The share is three of them, and each is at most that long.
        if commit.sealed_bytes() + active + self.budget.memtable > self.budget.memtables {
            return Ok(false);
        }
        // What snapshots keep of earlier ones is memory, too.
        self.check_held()?;
        self.seal(commit);
        Ok(true)
    }

    /// Begins a new active memtable; what was in the old one is flushed.
    pub(super) fn seal(&self, commit: &mut Commit) {
        if commit.active.last_lsn() == 0 {
            return;
        }
        let fresh = Arc::new(Memtables::new(self.budget.snapshots().clone()));
        let old = std::mem::replace(&mut commit.active, fresh);
        commit.sealed.push_back(old);
        self.show(commit);
        self.work.tell();
    }

    /// An error of the log as the writer's answer. What means that the log is broken breaks the store.
    pub(crate) fn log_error(&self, error: forebay_wal::Error) -> Error {
        match error.kind() {
            forebay_wal::ErrorKind::Poisoned | forebay_wal::ErrorKind::Io => self.fail(&error.into()),
            _ => error.into(),
        }
    }

    /// Waits until there may be room again after `tried`.
    pub(crate) async fn wait_for_room(&self, tried: &Tried, bytes: usize) -> Result<()> {
        match tried {
            Tried::NoRoom => self.wal.room(bytes).await.map_err(|error| self.log_error(error)),
            Tried::NoSpace => {
                let is_free = |commit: &Commit| {
                    let sealed = commit.sealed_bytes();
                    sealed + commit.active.bytes() + self.budget.memtable <= self.budget.memtables
                };
                self.space
                    .until(|| match self.check_writable() {
                        Err(error) => Some(Err(error)),
                        Ok(()) => is_free(&self.lock()).then_some(Ok(())),
                    })
                    .await
            }
            Tried::In(_) | Tried::Refused => Ok(()),
        }
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
    Ready(Ready),
    /// Slowed down, or without room: then it is tried again.
    Waiting(Ready, Boxed<'a, ()>),
    Queued(Appended),
    Nothing,
    Failed(Error),
    Over,
}

impl<'a> Write<'a> {
    pub(crate) fn new(shared: &'a Arc<Shared>, ready: Result<Ready>) -> Write<'a> {
        let stage = match ready {
            Err(error) => Stage::Failed(error),
            Ok(ready) if shared.throttle.delay().is_zero() => Stage::Ready(ready),
            Ok(ready) => {
                let slowed = async {
                    shared.counters.slowed.fetch_add(1, Ordering::Relaxed);
                    shared.throttle.wait(|| shared.check_writable().is_err()).await;
                    Ok(())
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
                Stage::Ready(ready) => match self.shared.try_commit(&ready, |_| true)? {
                    Tried::In(appended) => self.stage = Stage::Queued(appended),
                    tried => {
                        let (shared, bytes) = (self.shared, ready.record.len());
                        let room = async move { shared.wait_for_room(&tried, bytes).await };
                        self.stage = Stage::Waiting(ready, Box::pin(room));
                    }
                },
                Stage::Waiting(ready, mut room) => {
                    let Poll::Ready(waited) = room.as_mut().poll(context) else {
                        self.stage = Stage::Waiting(ready, room);
                        return Poll::Pending;
                    };
                    waited?;
                    self.stage = Stage::Ready(ready);
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
