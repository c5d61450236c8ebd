//! The state that the handles of a write combiner and its task share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use super::state::{Admission, CombinerState};
use crate::ops::coalesce::Shape;
use crate::{Durability, Error, ErrorKind, File, Result};

/// The state and its lock.
pub(super) struct CombinerCore {
    pub(super) shape: Shape,
    state: Mutex<CombinerState>,
}

impl CombinerCore {
    pub(super) fn new(shape: Shape) -> CombinerCore {
        CombinerCore { shape, state: Mutex::new(CombinerState::new(shape)) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, CombinerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the locked state, or an error when this write combiner takes no calls any more.
    pub(super) fn enter(&self, file: &File) -> Result<MutexGuard<'_, CombinerState>> {
        // Before the lock, which a thread of the parent may have held at the fork.
        file.internals().check("combine")?;
        let mut state = self.lock();
        state.error.check("this write combiner")?;
        Ok(state)
    }

    /// Returns the file's length before this write combiner wrote to it.
    pub(super) async fn length(&self, file: &File) -> Result<u64> {
        if let Some(length) = self.lock().length {
            return Ok(length);
        }
        // The first length to arrive counts: nothing is written before there is one.
        let found = file.len().await?;
        Ok(*self.lock().length.get_or_insert(found))
    }

    /// Ends the write combiner for all callers with `error`.
    pub(super) fn fail(&self, error: Error) {
        let waiters = {
            let mut state = self.lock();
            state.fail(error);
            state.take_waiters()
        };
        waiters.wake();
    }

    /// Notifies all waiters that there is no memory to go on with.
    pub(super) fn lack(&self) {
        let waiters = {
            let mut state = self.lock();
            state.lacks += 1;
            state.take_waiters()
        };
        waiters.wake();
    }

    /// Removes the first epoch, which is settled, and wakes all waiters.
    pub(super) fn settled(&self, durability: Durability) {
        let waiters = {
            let mut state = self.lock();
            state.settled(durability);
            state.take_waiters()
        };
        waiters.wake();
    }

    /// Wakes the task if it has nothing to do.
    pub(super) fn kick(&self) {
        let sweeper = self.lock().sweeper.take();
        if let Some(waker) = sweeper {
            waker.wake();
        }
    }

    /// Ends the task: no handle is left.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.kick();
    }

    /// Adds memory for more pages, and for the request that writes them out. Where there is none, the pages
    /// already allocated must do.
    ///
    /// # Errors
    /// When no page is allocated.
    pub(super) fn add_slab(&self, file: &File) -> Result<()> {
        let (bytes, spare) = {
            let state = self.lock();
            (state.slots.slab_bytes(), state.spare.is_none().then_some(self.shape.request as usize))
        };
        // Without the lock: the arena may have to grow.
        let block = |bytes| file.internals().block("combine", bytes);
        match spare.map(block).transpose().and_then(|spare| Ok((spare, block(bytes)?))) {
            Ok((spare, slab)) => {
                let mut state = self.lock();
                state.spare = state.spare.take().or(spare);
                state.slots.add_slab(slab);
                Ok(())
            }
            Err(error) if error.is_out_of_memory() && self.lock().slots.limit() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes at least one byte, and returns how many; `None` when a slab must be added. `lacks` is the
    /// state's count when the call began.
    pub(super) fn poll_take(
        &self,
        context: &mut Context<'_>,
        file: &File,
        lacks: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Poll<Result<Option<usize>>> {
        let mut state = self.enter(file)?;
        let taken = match state.take(offset, bytes) {
            Admission::Bytes(taken) => Some(taken),
            Admission::WantsSlab => None,
            Admission::NoRoom => {
                if let Some(error) = lacked(&state, lacks, file) {
                    return Poll::Ready(Err(error));
                }
                state.writers.add(context.waker());
                return wait(state);
            }
        };
        let sweeper = if state.is_tight() { state.sweeper.take() } else { None };
        drop(state);
        if let Some(waker) = sweeper {
            waker.wake();
        }
        Poll::Ready(Ok(taken))
    }

    /// Waits until the epoch of that number is settled.
    pub(super) fn poll_settled(
        &self,
        context: &mut Context<'_>,
        file: &File,
        lacks: u64,
        number: u64,
    ) -> Poll<Result<()>> {
        let mut state = self.enter(file)?;
        if state.oldest > number {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = lacked(&state, lacks, file) {
            return Poll::Ready(Err(error));
        }
        state.flushers.add(context.waker());
        wait(state)
    }
}

/// Returns the error of a call during which memory to go on with was lacking.
fn lacked(state: &CombinerState, lacks: u64, file: &File) -> Option<Error> {
    if state.lacks == lacks {
        return None;
    }
    let kind = ErrorKind::ArenaExhausted { held: state.held_bytes() };
    Some(file.internals().error("combine", kind, None, None))
}

/// Wakes the task, and returns `Pending`.
fn wait<T>(mut state: MutexGuard<'_, CombinerState>) -> Poll<T> {
    let sweeper = state.sweeper.take();
    drop(state);
    if let Some(waker) = sweeper {
        waker.wake();
    }
    Poll::Pending
}

/// The handles' shared part. Its drop, with the last handle, ends the task.
pub(super) struct Handles {
    pub(super) shared: Arc<CombinerCore>,
    pub(super) file: File,
}

impl Drop for Handles {
    fn drop(&mut self) {
        // A child of fork(2) has no task, and the lock may stay held there for ever.
        if !self.file.internals().is_forked() {
            self.shared.close();
        }
    }
}
