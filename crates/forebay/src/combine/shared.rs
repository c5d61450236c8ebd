//! What the handles of a combine and its task share.

use std::future::Future;
use std::pin::Pin;
use std::sync::PoisonError;
use std::task::{Context, Poll};

use super::state::{State, Taken};
use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::gather::{Shape, empty, is_lack};
use crate::op::Durability;
use crate::shard::JoinHandle;
use crate::sync::{Mutex, MutexGuard};

/// The state, its lock, and the task.
pub(super) struct Shared {
    pub(super) shape: Shape,
    state: Mutex<State>,
    /// Not under the state's lock: what polling it drops may need that.
    task: Mutex<Option<JoinHandle<()>>>,
}

/// A call that waits, for one who has begun it.
pub(super) struct Waiting<'s> {
    shared: &'s Shared,
    /// Times without memory before it began.
    lacks: u64,
    pending: bool,
}

impl Shared {
    pub(super) fn new(shape: Shape) -> Shared {
        Shared { shape, state: Mutex::new(State::new(shape)), task: Mutex::new(None) }
    }

    pub(super) fn set_task(&self, task: JoinHandle<()>) {
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses when nothing can be asked of this combine any more, and otherwise gives the state.
    pub(super) fn enter(&self, file: &File) -> Result<MutexGuard<'_, State>> {
        // Before the lock, which a thread of the parent may have held at the fork.
        if let Some(failure) = file.core().engine().failure() {
            return Err(failure.into_error("combine", Some(file.core())));
        }
        let mut state = self.lock();
        match (state.error.take(), &state.failure) {
            (Some(error), _) => Err(error),
            (None, Some(failure)) => Err(failure.again(file.core(), "this combine had failed before")),
            (None, None) => Ok(state),
        }
    }

    /// The file's length before this combine wrote to it.
    pub(super) async fn length(&self, file: &File) -> Result<u64> {
        if let Some(length) = self.lock().length {
            return Ok(length);
        }
        // Whose answer comes first counts: nothing is written before there is one.
        let found = file.len().await?;
        Ok(*self.lock().length.get_or_insert(found))
    }

    /// An error that ends it for all.
    pub(super) fn fail(&self, error: Error) {
        let waiters = {
            let mut state = self.lock();
            state.fail(error);
            state.take_waiters()
        };
        waiters.wake();
    }

    /// There is no memory to go on with: whoever waits is told.
    pub(super) fn lack(&self) {
        let waiters = {
            let mut state = self.lock();
            state.lacks += 1;
            state.take_waiters()
        };
        waiters.wake();
    }

    /// The first epoch is settled.
    pub(super) fn settled(&self, durability: Durability) {
        let waiters = {
            let mut state = self.lock();
            state.settled(durability);
            state.take_waiters()
        };
        waiters.wake();
    }

    /// Has the task look, if it has nothing to do.
    pub(super) fn kick(&self) {
        let sweeper = self.lock().sweeper.take();
        if let Some(waker) = sweeper {
            waker.wake();
        }
    }

    /// No handle is left.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.kick();
    }

    /// Memory for more pages, and for the request that brings them away. Where there is none, the pages that there are must do.
    ///
    /// # Errors
    /// When there are none.
    pub(super) fn add_slab(&self, file: &File) -> Result<()> {
        let (bytes, spare) = {
            let state = self.lock();
            (state.slots.slab_bytes(), state.spare.is_none().then_some(self.shape.request as usize))
        };
        // Without the lock: the arena may have to grow.
        let engine = file.core().engine();
        let taken = spare.map(|bytes| engine.buffer("combine", bytes)).transpose();
        match taken.and_then(|spare| Ok((spare, engine.buffer("combine", bytes)?))) {
            Ok((spare, slab)) => {
                let mut state = self.lock();
                state.spare = state.spare.take().or(spare.map(empty));
                state.slots.add_slab(empty(slab));
                Ok(())
            }
            Err(error) if is_lack(&error) && self.lock().slots.limit() => Ok(()),
            Err(error) => Err(file.core().describe(error)),
        }
    }

    /// The task's own end, which matters only where it never began.
    fn poll_task(&self, context: &mut Context<'_>) {
        let ended = {
            let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(handle) = task.as_mut() else { return };
            match Pin::new(handle).poll(context) {
                Poll::Pending => return,
                Poll::Ready(ended) => {
                    *task = None;
                    ended
                }
            }
        };
        if let Err(error) = ended {
            self.fail(error);
        }
    }
}

impl<'s> Waiting<'s> {
    /// `lacks` is what the state said before the call could be told of one.
    pub(super) fn new(shared: &'s Shared, lacks: u64) -> Waiting<'s> {
        Waiting { shared, lacks, pending: false }
    }

    /// Takes at least one byte; `None` when a slab must be added.
    pub(super) fn poll_take(
        &mut self,
        context: &mut Context<'_>,
        file: &File,
        offset: u64,
        bytes: &[u8],
    ) -> Poll<Result<Option<usize>>> {
        let mut state = self.shared.enter(file)?;
        let taken = match state.take(offset, bytes) {
            Taken::Bytes(taken) => Some(taken),
            Taken::WantsSlab => None,
            Taken::NoRoom => {
                return match self.lacked(&mut state, file) {
                    Some(error) => Poll::Ready(Err(error)),
                    None => {
                        state.writers.add(context.waker());
                        self.wait(context, state)
                    }
                };
            }
        };
        let sweeper = if state.is_tight() { state.sweeper.take() } else { None };
        drop(state);
        if let Some(waker) = sweeper {
            waker.wake();
        }
        self.pending = false;
        Poll::Ready(Ok(taken))
    }

    /// Waits until the epoch of that number is settled.
    pub(super) fn poll_settled(
        &mut self,
        context: &mut Context<'_>,
        file: &File,
        number: u64,
    ) -> Poll<Result<()>> {
        let mut state = self.shared.enter(file)?;
        if state.oldest > number {
            self.pending = false;
            return Poll::Ready(Ok(()));
        }
        match self.lacked(&mut state, file) {
            Some(error) => Poll::Ready(Err(error)),
            None => {
                state.flushers.add(context.waker());
                self.wait(context, state)
            }
        }
    }

    fn lacked(&mut self, state: &mut State, file: &File) -> Option<Error> {
        if state.lacks == self.lacks {
            return None;
        }
        self.pending = false;
        let held = state.held_bytes();
        let error = Error::new(ErrorKind::ArenaExhausted { held }, "combine");
        Some(file.core().describe(error))
    }

    fn wait<T>(&mut self, context: &mut Context<'_>, mut state: MutexGuard<'_, State>) -> Poll<T> {
        let (sweeper, begun) = (state.sweeper.take(), state.begun);
        drop(state);
        self.pending = !begun;
        if let Some(waker) = sweeper {
            waker.wake();
        }
        if !begun {
            self.shared.poll_task(context);
        }
        Poll::Pending
    }
}

/// Another caller goes on with starting the task, should that have been waited for here.
impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.pending {
            let waiters = self.shared.lock().take_waiters();
            waiters.wake();
        }
    }
}

/// The last handle that is dropped ends the task.
pub(super) struct Handles {
    pub(super) shared: std::sync::Arc<Shared>,
    pub(super) file: File,
}

impl Drop for Handles {
    fn drop(&mut self) {
        let engine = self.file.core().engine();
        // A child of fork(2) has no task, and the lock may be held for ever there.
        if !engine.is_forked() {
            self.shared.close();
        }
    }
}
