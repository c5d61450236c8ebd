//! Insertion of committed records into memtables: outside of the commit section, by one thread at a time, in the
//! order of the records. While it lasts, other writers commit.
//!
//! A writer that has committed inserts the waiting records, unless another thread is inserting. A record that arrives during an
//! insertion is left to the next writer, to a flush, or to its own writer once it is durable: a writer returns after the insertion
//! of its record, so that it reads its own write. No task is woken for an insertion.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::commit::Ready;
use crate::memtable::Memtables;

/// A record in the log's queue that its memtable has not got yet.
pub(crate) struct CommittedRecord {
    pub(super) memtables: Arc<Memtables>,
    pub(super) ready: Ready,
    pub(super) lsn: u64,
}

/// Committed records on their way into memtables.
#[derive(Default)]
pub(super) struct Insertion {
    /// Held by the thread that inserts, with the memory for a batch. Acquired before the lock of the commit section where a thread
    /// needs both.
    turn: Mutex<Vec<CommittedRecord>>,
    /// Records that wait, in their order. Held for the time of a push or a swap.
    pending: Mutex<Vec<CommittedRecord>>,
    /// Whether any waits; a hint for those who do not hold `pending`.
    has_pending: AtomicBool,
    /// The newest record whose entries are in memtables, with those of all records before it.
    inserted: AtomicU64,
}

/// The turn to insert.
pub(crate) type Turn<'a> = MutexGuard<'a, Vec<CommittedRecord>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Insertion {
    /// Returns the newest record that is in memtables with all records before it.
    pub(super) fn inserted(&self) -> u64 {
        self.inserted.load(Ordering::Acquire)
    }

    /// Notes that all records up to this one are in memtables or tables. Returns the newest such record.
    pub(super) fn note(&self, lsn: u64) -> u64 {
        self.inserted.fetch_max(lsn, Ordering::AcqRel).max(lsn)
    }

    /// Adds a committed record; called in the commit section, so that records arrive in their order.
    pub(super) fn push(&self, committed: CommittedRecord) {
        lock(&self.pending).push(committed);
        self.has_pending.store(true, Ordering::Release);
    }

    /// Waits for the turn to insert.
    pub(super) fn turn(&self) -> Turn<'_> {
        lock(&self.turn)
    }

    /// Inserts all records committed so far.
    pub(super) fn run(&self, batch: &mut Turn<'_>) {
        while self.run_batch(batch) {}
    }

    /// Inserts the records that wait now; returns false if no record waited.
    fn run_batch(&self, batch: &mut Turn<'_>) -> bool {
        {
            let mut pending = lock(&self.pending);
            std::mem::swap(&mut **batch, &mut *pending);
            self.has_pending.store(false, Ordering::Release);
        }
        let is_any = !batch.is_empty();
        for CommittedRecord { memtables, ready, lsn } in batch.drain(..) {
            memtables.insert(&ready.record, &ready.places, lsn);
            debug_assert!(lsn > self.inserted(), "records are inserted in their order");
            self.inserted.store(lsn, Ordering::Release);
        }
        is_any
    }

    /// Inserts the records that wait now, unless another thread does. Records that arrive meanwhile are left: a writer would
    /// otherwise work for all others for as long as they write.
    pub(super) fn run_unless_busy(&self) {
        if !self.has_pending.load(Ordering::Acquire) {
            return;
        }
        match self.turn.try_lock() {
            Ok(mut turn) => self.run_batch(&mut turn),
            Err(TryLockError::Poisoned(turn)) => self.run_batch(&mut turn.into_inner()),
            Err(TryLockError::WouldBlock) => false,
        };
    }

    /// Returns when this record is in its memtable.
    pub(super) fn until(&self, lsn: u64) {
        if self.inserted() < lsn {
            self.run(&mut self.turn());
        }
    }
}
