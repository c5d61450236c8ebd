//! Timers of tasks on a shard. No kernel timer is armed; the shard's wait ends at the next deadline.

use std::collections::BTreeMap;
use std::task::Waker;

use crate::reactor::shard::clock::Ticks;

/// Sleeping tasks by deadline; the number distinguishes equal deadlines.
#[derive(Default)]
pub(crate) struct Timers {
    sleeping: BTreeMap<(Ticks, u64), Waker>,
    next: u64,
}

impl Timers {
    /// Adds a sleeper, or renews the waker of one. Returns the old waker, which the caller drops where
    /// nothing is borrowed.
    pub(crate) fn set(&mut self, deadline: Ticks, id: Option<u64>, waker: Waker) -> (u64, Option<Waker>) {
        let is_known = id.is_some();
        let id = id.unwrap_or_else(|| {
            self.next += 1;
            self.next
        });
        let old = self.sleeping.insert((deadline, id), waker);
        debug_assert!(is_known || old.is_none(), "each timer has a number of its own");
        (id, old)
    }

    pub(crate) fn remove(&mut self, deadline: Ticks, id: u64) -> Option<Waker> {
        self.sleeping.remove(&(deadline, id))
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sleeping.is_empty()
    }

    pub(crate) fn next_deadline(&self) -> Option<Ticks> {
        self.sleeping.keys().next().map(|&(deadline, _)| deadline)
    }

    /// Removes the earliest sleeper whose time has passed and returns its waker.
    pub(crate) fn pop_due(&mut self, now: Ticks) -> Option<Waker> {
        let first = self.sleeping.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}
