//! A lock on ranges of keys, which writers of these keys wait for. An ingest holds it from the moment at which no memtable has such
//! keys until its files are visible, so that they are newer than all writes before and older than all writes after. Writers of
//! other keys continue.

use std::ops::Bound;
use std::sync::Arc;

use super::commit::Ready;
use super::shared::{Commit, StoreCore};
use crate::merge::Bounds;
use crate::record;

/// Ranges of keys, each of a keyspace.
#[derive(Debug)]
pub(crate) struct LockedRanges(pub(crate) Vec<(u32, Bounds)>);

impl LockedRanges {
    fn has(&self, keyspace: u32, key: &[u8]) -> bool {
        let is_in = |(of, bounds): &(u32, Bounds)| {
            *of == keyspace && bounds.is_above_low(key) && bounds.is_below_high(key)
        };
        self.0.iter().any(is_in)
    }

    /// Returns whether a record changes one of the keys.
    pub(super) fn touches(&self, ready: &Ready) -> bool {
        let entries = ready.places.iter().filter_map(|at| record::entry_at(&ready.record, *at as usize));
        entries
            .into_iter()
            .any(|(entry, _)| self.has(entry.keyspace, record::slice(&ready.record, &entry.key)))
    }

    /// Returns whether a memtable that is not in tables yet has a version of one of the keys.
    fn are_in_memtables(&self, commit: &Commit) -> bool {
        commit.memtables().any(|memtables| {
            self.0.iter().any(|(keyspace, bounds)| memtables.has_newer(*keyspace, bounds.slices(), 0))
        })
    }
}

/// Returns the bounds from one key to another, both included.
pub(crate) fn between(smallest: &[u8], largest: &[u8]) -> Bounds {
    Bounds { low: Bound::Included(smallest.to_vec()), high: Bound::Included(largest.to_vec()) }
}

/// The lock, held until it is dropped.
pub(crate) struct RangeLock<'a> {
    shared: &'a StoreCore,
    /// The newest record at the time of the lock.
    pub(crate) last: u64,
    /// Whether memtables had some of the keys. They were sealed, and the keys are in tables after a flush up to `last`.
    pub(crate) is_sealed: bool,
}

impl Drop for RangeLock<'_> {
    fn drop(&mut self) {
        self.shared.lock().locked = None;
        self.shared.unlocked.notify();
    }
}

impl StoreCore {
    /// Returns whether a memtable has some of these keys.
    pub(crate) fn has_in_memtables(&self, ranges: &LockedRanges) -> bool {
        let (_turn, commit) = self.lock_inserted();
        ranges.are_in_memtables(&commit)
    }

    /// Locks ranges of keys; the caller has compaction's turn, so that only one such lock exists at a time.
    pub(crate) fn lock_ranges(&self, ranges: &Arc<LockedRanges>) -> RangeLock<'_> {
        let (_turn, mut commit) = self.lock_inserted();
        debug_assert!(commit.locked.is_none(), "one lock of ranges at a time");
        commit.locked = Some(ranges.clone());
        let is_sealed = ranges.are_in_memtables(&commit);
        if is_sealed {
            self.seal(&mut commit);
        }
        RangeLock { shared: self, last: commit.last, is_sealed }
    }

    /// Waits until no lock has a key that this record changes, or until `failed` returns an error.
    pub(super) async fn unlocked<E>(
        &self,
        ready: &Ready,
        failed: impl Fn() -> Result<(), E>,
    ) -> Result<(), E> {
        let is_free = || match failed() {
            Err(error) => Some(Err(error)),
            Ok(()) => {
                let locked = self.lock().locked.clone();
                locked.is_none_or(|locked| !locked.touches(ready)).then_some(Ok(()))
            }
        };
        self.unlocked.until(is_free).await
    }
}
