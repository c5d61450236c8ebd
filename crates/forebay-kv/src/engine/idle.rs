//! Flushes of memtables that are not full. A deletion frees space only once it is in a table, and so does a value in place of a
//! longer one: an idle store would keep it in memory forever.
//!
//! The first change of a memtable arms a timer of one second. When it fires the changes are weighed: a deletion weighs as much as an entry
//! of its keyspace, and so do puts of values that are on average less than half as long as those of the keyspace, as each may replace a
//! value. Of each key the newest change counts. If the store was not written to meanwhile, they are flushed where compaction at rest would
//! then have work, and compaction follows. While the store is written to, only deletions are weighed, and flushed only if they weigh more
//! than an eighth of the data, at most once a second, and not if a memtable was sealed meanwhile: a flush of full memtables follows soon
//! enough. The timer restarts until the store is idle or the changes are flushed. An idle store has no timer armed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::compact::pick;
use super::shared::{Commit, StoreCore};
use crate::is_broken;

/// A store that is not written to for this long is idle.
const IDLE: Duration = Duration::from_secs(1);

/// What was written at a moment.
#[derive(Clone, Copy)]
struct Moment {
    /// The newest record.
    newest: u64,
    /// The newest record that is not in the active memtable.
    sealed: u64,
}

impl Moment {
    fn of(commit: &Commit) -> Moment {
        let sealed = commit.sealed.back().map_or(commit.flushed, |sealed| sealed.last_lsn());
        Moment { newest: commit.last, sealed }
    }
}

impl StoreCore {
    /// Arms the timer, after a change was committed.
    pub(super) fn note_change(&self) {
        if !self.has_changes.load(Ordering::Acquire) && !self.has_changes.swap(true, Ordering::AcqRel) {
            self.work.notify();
        }
    }
}

/// Flushes changes that are worth it until the store closes or fails.
pub(super) async fn run(shared: &Arc<StoreCore>) {
    // Changes that the open has read back from the log.
    if shared.lock().active.keyspace_count() > 0 {
        shared.has_changes.store(true, Ordering::Release);
    }
    let is_over = || shared.check_writable().is_err();
    loop {
        let is_armed = || is_over() || shared.has_changes.load(Ordering::Acquire);
        shared.work.until(|| is_armed().then_some(())).await;
        let before = Moment::of(&shared.lock());
        let over = shared.work.until(|| is_over().then_some(()));
        match forebay::shard::timeout(IDLE, over).await {
            Err(error) if error.kind() == forebay::ErrorKind::Elapsed => {}
            // The store or its shard ends.
            _ => return,
        }
        // A writer that finds the timer armed has committed before this, and is seen by the look.
        shared.has_changes.store(false, Ordering::Release);
        if !is_done(shared, before) {
            shared.has_changes.store(true, Ordering::Release);
        }
    }
}

/// Seals the active memtable if its changes are worth a flush. Returns whether nothing is left to do until the next change.
fn is_done(shared: &StoreCore, before: Moment) -> bool {
    let (active, now, is_flushing) = {
        let commit = shared.lock();
        (commit.active.clone(), Moment::of(&commit), !commit.sealed.is_empty())
    };
    if is_flushing || shared.full.is_full() {
        // A full store seals its memtables itself.
        return false;
    }
    // A record that was committed may not be inserted yet.
    shared.insertion.until(now.newest);
    let is_idle = now.newest == before.newest;
    if !is_idle && now.sealed != before.sealed {
        return false;
    }
    let (how, tallies) = (shared.pick_how(), active.tallies());
    let pays = shared.with_view(|view| pick::changes_pay(&view.version, &how, &tallies, is_idle));
    if !pays || is_broken!(DeletionsNotFlushed) {
        return is_idle;
    }
    let mut commit = shared.lock();
    if Arc::ptr_eq(&commit.active, &active) {
        shared.seal(&mut commit);
    }
    true
}
