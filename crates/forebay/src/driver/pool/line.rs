//! The line of jobs that found a pool's queue full.

use std::io;
use std::sync::Arc;

use super::{Job, Refused, Shared};

/// A caller's place in the line; dropping it takes the job out, unless a thread has moved it to the queue.
pub(super) struct Line {
    shared: Arc<Shared>,
    ticket: Option<u64>,
}

impl Line {
    /// Queues the job, or puts it into the line. A closed pool drops the job, whose sender then completes
    /// with an error.
    ///
    /// # Errors
    /// The system's refusal of a thread, if the pool has none.
    pub(super) fn join(shared: Arc<Shared>, job: Job) -> io::Result<Line> {
        let mut ticket = None;
        let refused = {
            // One critical section: if the queue were emptied between the refusal and the entry, the job
            // would be left behind.
            let mut state = shared.lock();
            match Shared::submit_locked(&shared, &mut state, job) {
                Err(Refused::Full(job)) => {
                    let next = state.next_ticket;
                    state.next_ticket += 1;
                    state.line.insert(next, job);
                    ticket = Some(next);
                    Ok(())
                }
                other => other,
            }
        };
        match refused {
            Err(Refused::NoThread(cause)) => Err(cause),
            _ => Ok(Line { shared, ticket }),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket
            && !self.shared.origin.is_elsewhere()
        {
            let job = self.shared.lock().line.remove(&ticket);
            // The lock is not held here: the job owns values with destructors.
            drop(job);
        }
    }
}
