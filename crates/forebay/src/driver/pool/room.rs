//! Waiting for room in a pool's queue.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::{Job, Refused, Shared, no_thread};
use crate::error::Result;

/// A caller that waits for room in the queue, and the job it brings.
pub(super) struct Room {
    shared: Arc<Shared>,
    job: Option<Job>,
    ticket: Option<u64>,
}

impl Room {
    pub(super) fn new(shared: Arc<Shared>, job: Job) -> Room {
        Room { shared, job: Some(job), ticket: None }
    }

    /// Ready when the job is queued, or dropped because the pool closed (which answers whoever waits for it).
    pub(super) fn poll(&mut self, operation: &'static str, context: &mut Context<'_>) -> Poll<Result<()>> {
        let Some(job) = self.job.take() else { return Poll::Ready(Ok(())) };
        match Shared::submit(&self.shared, job) {
            Ok(()) => self.leave(),
            Err(Refused::Closed(_)) => self.ticket = None,
            Err(Refused::NoThread(cause)) => {
                self.leave();
                return Poll::Ready(Err(no_thread(operation, cause)));
            }
            Err(Refused::Full(job)) => {
                self.job = Some(job);
                let mut state = self.shared.lock();
                let ticket = self.ticket.unwrap_or(state.next_ticket);
                if self.ticket.is_none() {
                    state.next_ticket += 1;
                    self.ticket = Some(ticket);
                }
                let replaced = state.room.insert(ticket, context.waker().clone());
                let room = state.queue.len() < self.shared.queue_max || state.closed;
                drop(state);
                drop(replaced);
                if room {
                    // A place came free between the refusal and the entry in the list; nobody would wake us for it.
                    context.waker().wake_by_ref();
                }
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Takes the caller off the list. The wake it may have had is passed on: the place it told of may still be free.
    fn leave(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        let mut state = self.shared.lock();
        let mine = state.room.remove(&ticket);
        let next = if state.queue.len() < self.shared.queue_max { state.room.pop_first() } else { None };
        drop(state);
        drop(mine);
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if !self.shared.origin.is_elsewhere() {
            self.leave();
        }
    }
}
