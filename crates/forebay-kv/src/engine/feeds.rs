//! [`Feeds`]: the open feeds of changes.
//!
//! A feed reads the log. The log gives records up when a flush has written them to tables; for open feeds it keeps those of
//! the last flushes, up to a bound, so that a feed that is not polled costs that much space and delays no one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_wal::Lsn;

/// Flushes whose records the log keeps for feeds that have not read them.
const FLUSHES_KEPT: usize = 3;

/// The open feeds of a store.
#[derive(Debug, Default)]
pub(crate) struct Feeds {
    state: Mutex<State>,
    /// Whether the log has records that no feed wants any more.
    has_released: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The next records that feeds want, each with their number.
    wanted: BTreeMap<u64, usize>,
    /// The last records of the last flushes, oldest first.
    flushed: VecDeque<u64>,
}

impl Feeds {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the record from which on the log is needed after a flush up to `last`. On a full disk feeds keep nothing.
    pub(crate) fn needed_after(&self, last: u64, is_full: bool) -> Lsn {
        {
            let mut state = self.lock();
            state.flushed.push_back(last);
            // The records kept are those behind the flush before them.
            if state.flushed.len() > FLUSHES_KEPT + 1 {
                state.flushed.pop_front();
            }
        }
        self.needed(last, is_full)
    }

    /// Returns the record from which on the log is needed, if the last flush ended with the record `last`.
    pub(crate) fn needed(&self, last: u64, is_full: bool) -> Lsn {
        let state = self.lock();
        let kept = match state.flushed.front() {
            _ if is_full => last + 1,
            Some(before) if state.flushed.len() > FLUSHES_KEPT => before + 1,
            _ => 0,
        };
        let wanted = state.wanted.keys().next().map_or(u64::MAX, |first| *first);
        Lsn(wanted.max(kept).min(last + 1))
    }

    /// Opens a feed whose next record is `lsn`.
    pub(crate) fn enter(&self, lsn: u64) {
        *self.lock().wanted.entry(lsn).or_default() += 1;
    }

    /// Returns whether the log has records that no feed wants any more.
    pub(crate) fn has_released(&self) -> bool {
        self.has_released.load(Ordering::Acquire)
    }

    /// Returns the same, and counts them as given up.
    pub(crate) fn take_released(&self) -> bool {
        self.has_released.swap(false, Ordering::AcqRel)
    }

    /// Closes a feed whose next record was `lsn`. Returns whether the log may give up records now that were kept for it.
    pub(crate) fn leave(&self, lsn: u64) -> bool {
        let mut state = self.lock();
        if let Some(count) = state.wanted.get_mut(&lsn) {
            *count -= 1;
            if *count == 0 {
                state.wanted.remove(&lsn);
            }
        }
        let last = state.flushed.back().map_or(0, |last| *last);
        let has_released = lsn <= last && state.wanted.keys().next().is_none_or(|first| *first > last);
        self.has_released.fetch_or(has_released, Ordering::AcqRel);
        has_released
    }
}
