//! The state that the handles of a write combiner and its task share.

use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};

use forebay::internal::FileInternals;
use forebay::{Durability, Error, ErrorKind, Result};

use super::state::{Admission, CombinerState};
use crate::coalesce::WriterCore;

pub(super) type CombinerCore = WriterCore<CombinerState>;

impl CombinerCore {
    /// Returns the locked state, or an error when this write combiner accepts no calls any more.
    pub(super) fn open(&self) -> Result<MutexGuard<'_, CombinerState>> {
        let mut state = self.enter()?;
        state.error.check()?;
        Ok(state)
    }

    /// Returns the file's length before this write combiner wrote to it.
    pub(super) async fn length(&self) -> Result<u64> {
        if let Some(length) = self.lock().length {
            return Ok(length);
        }
        // The first length to arrive counts: nothing is written before it is known.
        let found = self.file.len().await?;
        Ok(*self.lock().length.get_or_insert(found))
    }

    /// Ends the write combiner for all callers with `error`.
    pub(super) fn fail(&self, error: Error) {
        self.change(|state| {
            state.fail(error);
            state.take_waiters()
        });
    }

    /// Notifies all waiters that memory to continue is lacking.
    pub(super) fn lack(&self) {
        self.change(|state| {
            state.lacks += 1;
            state.take_waiters()
        });
    }

    /// Removes the first epoch, which is settled, and wakes all waiters.
    pub(super) fn settled(&self, durability: Durability) {
        self.change(|state| {
            state.settled(durability);
            state.take_waiters()
        });
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

    /// Adds memory for more pages, and for the request that writes them out. If memory is short, the pages already allocated must
    /// do.
    ///
    /// # Errors
    /// When no page is allocated.
    pub(super) fn add_slab(&self) -> Result<()> {
        let (bytes, spare) = {
            let state = self.lock();
            (state.slots.slab_bytes(), state.spare.is_none().then_some(self.shape.request as usize))
        };
        // Without the lock: the arena may have to grow.
        let block = |bytes| FileInternals::of(&self.file).block("combine", bytes);
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

    /// Accepts at least one byte, and returns how many; `None` when a slab must be added. `lacks` is the state's count at the start
    /// of the call.
    pub(super) fn poll_take(
        &self,
        context: &mut Context<'_>,
        lacks: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Poll<Result<Option<usize>>> {
        let mut state = self.open()?;
        let taken = match state.take(offset, bytes) {
            Admission::Bytes(taken) => Some(taken),
            Admission::WantsSlab => None,
            Admission::NoRoom => {
                self.check_lacks(&state, lacks)?;
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
        lacks: u64,
        number: u64,
    ) -> Poll<Result<()>> {
        let mut state = self.open()?;
        if state.oldest > number {
            return Poll::Ready(Ok(()));
        }
        self.check_lacks(&state, lacks)?;
        state.flushers.add(context.waker());
        wait(state)
    }

    /// Fails if memory to continue was lacking since the start of a call.
    fn check_lacks(&self, state: &CombinerState, lacks: u64) -> Result<()> {
        if state.lacks == lacks {
            return Ok(());
        }
        Err(self.error(ErrorKind::ArenaExhausted { held: state.held_bytes() }))
    }
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
pub(super) struct Handles(pub(super) Arc<CombinerCore>);

impl Drop for Handles {
    fn drop(&mut self) {
        // A child of fork(2) has no task, and the lock may stay held there forever.
        if !FileInternals::of(&self.0.file).is_forked() {
            self.0.close();
        }
    }
}
