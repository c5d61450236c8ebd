//! Queuing at once or not at all, and waiting for room without a place in the line.

use std::task::{Poll, Waker};

use crate::error::Result;
use crate::queue::{Shared, Ticket, framed_bytes, group, is_large};

impl Shared {
    /// Queues a record now; `None` when there is no room, or when it is another's turn.
    pub(crate) fn try_push(&self, record: &[u8]) -> Result<Option<(Ticket, u64)>> {
        let records = [record];
        self.check_size(&records)?;
        let framed = framed_bytes(&records);
        let large = is_large(&self.limits, framed);
        {
            let mut locked = self.lock();
            let state = &mut *locked;
            state.check()?;
            if !state.is_turn(&self.limits, framed, None) {
                state.stats.full_waits += 1;
                return Ok(None);
            }
            if !large && let Err(error) = state.make_group(self, framed) {
                let exhausted = matches!(error.kind(), forebay::ErrorKind::ArenaExhausted { .. });
                // The group that is being written will give its memory back.
                return if exhausted && state.pending > 0 { Ok(None) } else { Err(error.into()) };
            }
            state.pending += framed;
            if !large {
                let pushed = state.push(&records);
                let writer = state.writer.take();
                drop(locked);
                writer.into_iter().for_each(Waker::wake);
                return pushed.map(Some);
            }
        }
        // Its room is reserved; so long a copy is made without the lock.
        let buffer = group::own_buffer(&self.engine, &records, framed, self.limits.unit);
        let mut state = self.lock();
        let pushed = match buffer {
            Ok(buffer) => state.check().map(|()| state.push_own(buffer, 1, self.engine.now_ns())),
            Err(error) => Err(error.into()),
        };
        if pushed.is_err() {
            state.pending = state.pending.saturating_sub(framed);
        }
        let writer = state.writer.take();
        drop(state);
        writer.into_iter().for_each(Waker::wake);
        pushed.map(Some)
    }

    /// Whether a record of `bytes` would be taken now; then `waker` is not kept.
    pub(crate) fn poll_room(&self, bytes: usize, waker: &Waker) -> Poll<Result<()>> {
        let framed = bytes.saturating_add(crate::format::RECORD_HEADER_BYTES);
        let mut state = self.lock();
        if let Err(error) = state.check() {
            return Poll::Ready(Err(error));
        }
        if state.is_turn(&self.limits, framed, None) {
            return Poll::Ready(Ok(()));
        }
        if !state.watchers.iter().any(|known| known.will_wake(waker)) {
            state.watchers.push(waker.clone());
        }
        Poll::Pending
    }
}
