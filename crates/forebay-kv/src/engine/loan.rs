//! The loans: memory of idle memtables, and memory for values that the program does not hold, that the cache has for the time being.
//!
//! - The memtables' share of the budget is theirs. While few write, the cache has what they do not use, but for the *headroom*, a
//!   quarter of a memtable: with 256 MiB of memory up to 59 of the memtables' 65 MiB. A store that is opened has lent nothing.
//! - A get *lends*, at one read of tables of 1,024, if at most 16 records were written since the last such read and nothing is
//!   flushed. A put *takes back*, in the commit section, before its record is queued.
//! - *Invariant*: the memtables with all records that are committed, the rests of their pages, and the loan are within the share.
//!   Both sides change the loan under the lock of the commit section, and statistics read it there.
//! - The loan changes in *steps* of one block. A put takes back its own size, rounded up to steps, until the headroom is whole: a
//!   dozen short puts evict one block, and each put waits for the eviction of its own length at most. Memory that was taken back is
//!   lent again only while the memtables are idle.
//! - What is lent lies in the window of the cache, which drops single blocks; the map of blocks changes its limit as a whole.
//! - The program's share is lent in the same way except for a quarter, at the same checks, unless some of it was taken back since
//!   the last check. It is taken back where values are counted (`HeldBytes` in `value.rs`), on any thread, under a separate lock,
//!   ordered after that of the commit section: the window's steps that are not of this loan are the memtables'. *Invariant*:
//!   counted values, memtables that only snapshots need, and the loan are within the share.
//! - *What can go wrong*: the program may hold an evicted block. Its eviction frees nothing, but the block counts in the program's
//!   share from the start.

use std::sync::atomic::Ordering;

use super::shared::{Commit, StoreCore};
use crate::is_broken;
use crate::memtable::SLACK_BYTES;

/// The most records from one look to the next while which the memtables count as idle.
const IDLE_RECORDS: u64 = 16;
/// The part of a memtable that is not lent.
const HEADROOM_PART: u64 = 4;

/// Returns the bytes that memtables have, or may have for records that are committed. A new one may follow the active one.
fn needed(commit: &Commit) -> u64 {
    let rests = (commit.sealed.len() as u64 + 2) * SLACK_BYTES;
    commit.sealed_used() + commit.active.used() + rests
}

impl StoreCore {
    /// Counts reads of tables. One of many looks for memory that the cache may fill.
    pub(crate) fn look_for_room(&self, reads: usize) {
        if self.cache.is_look_due(reads as u64) {
            self.lend();
            self.cache.look_for_room();
        }
    }

    /// Lends the cache what idle memtables do not use.
    fn lend(&self) {
        let commit = self.lock();
        let seen = self.seen.swap(commit.last, Ordering::Relaxed);
        if commit.last.saturating_sub(seen) <= IDLE_RECORDS && commit.sealed.is_empty() {
            // Memtables that were flushed are freed bit by bit, or kept for snapshots.
            let flushed = self.budget.snapshots().load(Ordering::Relaxed);
            let kept = needed(&commit) + flushed + self.headroom() + self.cache.lent_bytes().1;
            self.cache.lend(self.budget.memtables.saturating_sub(kept));
        }
        // Under the same lock, so that statistics see both loans or neither.
        let others = self.budget.snapshots().load(Ordering::Relaxed);
        self.cache.held().lend(self.budget.held, others);
    }

    /// Takes back what `cost` more bytes in memtables need, and as much ahead of need.
    pub(super) fn take_back(&self, commit: &Commit, cost: u64) {
        if !self.cache.is_lent() || is_broken!(LoanKept) {
            return;
        }
        let lent = self.cache.lent_bytes().1;
        let needed = needed(commit) + cost;
        let missing = |headroom: u64| (needed + headroom + lent).saturating_sub(self.budget.memtables);
        let mut due = missing(0).max(missing(self.headroom()).min(cost)).min(lent);
        while due > 0 {
            match self.cache.take_back() {
                0 => break,
                bytes => due = due.saturating_sub(bytes),
            }
        }
        debug_assert!(
            needed + self.cache.lent_bytes().1 <= self.budget.memtables.max(needed),
            "memtables and what they lend are within their share"
        );
    }

    fn headroom(&self) -> u64 {
        self.budget.memtable / HEADROOM_PART
    }
}
