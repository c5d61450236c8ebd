//! Compaction: a task of the store that keeps the levels in shape.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::flush;
use super::shared::StoreCore;
use super::space::Work;
use crate::async_mutex::AsyncMutex;
use crate::error::{Error, Result};
use crate::manifest::version::Version;
use crate::merge::Bounds;

mod output;
pub(crate) mod pick;
mod run;

pub(crate) use output::Output;

/// A store whose tables have not changed for this long is at rest.
const REST: Duration = Duration::from_secs(1);

/// A keyspace that is not the only one written to is at rest if its tables have not changed for this long: of many keyspaces each
/// may be written to now and then.
const REST_BESIDE: Duration = Duration::from_secs(10);

/// Limits for the time after which a store at rest checks for expired entries. Within them it checks when
/// that may be worthwhile.
const EXPIRY_MIN: Duration = Duration::from_secs(10);
const EXPIRY_MAX: Duration = Duration::from_secs(600);

/// Keyspaces whose jobs an attempt of a full store tries in vain before it ends: each writes until no space is left.
const STUCK_MAX: usize = 16;

/// The keyspaces of a full store whose next job found no space. They are passed over until those of all others were tried: a short
/// job may free the space for a long one.
#[derive(Default)]
struct StuckJobs {
    keyspaces: BTreeSet<u32>,
    failure: Option<Failure>,
}

/// What failed in the present attempt of a full store.
struct Failure {
    error: Error,
    jobs: usize,
    /// The fewest bytes that one of the jobs wrote before it found no space.
    bytes: u64,
    /// Whether the store was full already.
    was_full: bool,
}

impl StuckJobs {
    /// Records a job that found no space. Returns whether another may be tried in this attempt.
    fn add(&mut self, shared: &StoreCore, keyspace: u32, error: Error) -> bool {
        let before = self.failure.take();
        let jobs = before.as_ref().map_or(0, |before| before.jobs) + 1;
        let least = before.map_or(u64::MAX, |before| before.bytes);
        let bytes = least.min(shared.full.bytes_in_vain(Work::Compaction));
        let was_full = shared.full.is_full();
        self.failure = Some(Failure { error, jobs, bytes, was_full });
        was_full && self.keyspaces.insert(keyspace) && jobs < STUCK_MAX
    }

    /// Ends an attempt. Where other jobs have ended the full state meanwhile, those that failed are picked again.
    fn end_attempt(&mut self, shared: &StoreCore) {
        if let Some(Failure { error, bytes, was_full, .. }) = self.failure.take()
            && (!was_full || shared.full.is_full())
        {
            shared.full.set_in_vain(Work::Compaction, bytes);
            shared.lacks_space(Work::Compaction, &error);
        }
    }
}

/// State that compaction shares with its waiters.
#[derive(Debug, Default)]
pub(crate) struct Compaction {
    /// Serializes compactions: the tables below level 0 change only while this turn is held.
    pub(crate) turn: AsyncMutex,
    /// Counts the changes of the tables.
    edits: AtomicU64,
    /// The count of changes at which no work was found, not even work for a store at rest. Stored plus 1, so that 0 means unset.
    rested: AtomicU64,
    /// A task waits for rest, or did when compaction was last at rest. This is not a count: a waiter that is no longer polled must
    /// not make every change be compacted immediately forever.
    is_awaited: AtomicBool,
    /// The job that was run last, if not all of its pieces were done.
    progress: Mutex<Option<pick::Progress>>,
    is_tight: AtomicBool,
}

impl Compaction {
    fn progress(&self) -> MutexGuard<'_, Option<pick::Progress>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the job that ran last, if it is worth continuing.
    fn begun(&self, version: &Version, how: &pick::How<'_>) -> Option<pick::Job> {
        self.progress().as_ref().and_then(|begun| pick::begun(version, how, begun))
    }

    /// Returns whether a job ran out of space, and since then no job of several runs has rewritten tables, nor has compaction come to
    /// rest.
    pub(crate) fn is_tight(&self) -> bool {
        self.is_tight.load(Ordering::Relaxed)
    }

    /// Counts a change of the tables. Called in the commit section.
    pub(crate) fn note_edit(&self) {
        self.edits.fetch_add(1, Ordering::AcqRel);
    }

    fn edits(&self) -> u64 {
        self.edits.load(Ordering::Acquire)
    }

    fn has_rested(&self) -> bool {
        self.rested.load(Ordering::Acquire) == self.edits() + 1
    }
}

/// Why compaction starts, or stops.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    Urgent,
    /// The store is written to, and some of its keyspaces may be at rest.
    Look,
    Rest,
    Over,
}

/// The tables of keyspaces that are at rest while others are written to: those with numbers below `settled`.
#[derive(Default)]
struct RestMark {
    settled: u32,
    /// The number of the next table at a moment of the engine's clock. They are settled when [`REST_BESIDE`] has passed.
    next: Option<(u32, u64)>,
}

impl RestMark {
    fn upto(&mut self, shared: &StoreCore) -> u32 {
        let now_ns = shared.engine.now_ns();
        match self.next {
            Some((_, begun_ns)) if now_ns.saturating_sub(begun_ns) < REST_BESIDE.as_nanos() as u64 => {}
            passed => {
                self.settled = passed.map_or(0, |(next, _)| next);
                self.next = Some((shared.next_table(), now_ns));
            }
        }
        self.settled
    }
}

/// Compacts until the store closes or fails.
pub(crate) async fn run(shared: &Arc<StoreCore>) {
    let compaction = &shared.compaction;
    // The attempt of a full store at which compaction last looked for work.
    let mut looked = None;
    let (mut resting, mut stuck) = (RestMark::default(), StuckJobs::default());
    loop {
        let is_resting = match reason(shared, looked).await {
            Reason::Over => return,
            reason => reason == Reason::Rest,
        };
        if !shared.full.is_full() {
            stuck.keyspaces.clear();
        }
        let flushes = shared.counters.flushes.load(Ordering::Relaxed);
        loop {
            let _turn = compaction.turn.take().await;
            let edits = compaction.edits();
            if stuck.failure.is_none() {
                looked = Some(shared.full.attempt());
            }
            let upto = if is_resting { u32::MAX } else { resting.upto(shared) };
            let how = shared.pick_how();
            let job = shared.with_view(|view| {
                let begun = compaction.begun(&view.version, &how);
                begun.or_else(|| pick::next(&view.version, &how, upto, &stuck.keyspaces))
            });
            let Some(job) = job else {
                if !stuck.keyspaces.is_empty() {
                    stuck.keyspaces.clear();
                    match stuck.failure {
                        Some(_) => break,
                        None => continue,
                    }
                }
                shared.needs_no_space();
                keep_filters(shared).await;
                if is_resting {
                    if !how.is_full {
                        compaction.is_tight.store(false, Ordering::Relaxed);
                    }
                    compaction.is_awaited.store(false, Ordering::Release);
                    compaction.rested.store(edits + 1, Ordering::Release);
                    shared.changed.notify();
                }
                break;
            };
            let keyspace = job.keyspace;
            match run::run(shared, job).await {
                Ok(true) => shared.found_space(Work::Compaction),
                Ok(false) => return,
                Err(error) if error.is_shortage() => {
                    if !stuck.add(shared, keyspace, error) {
                        break;
                    }
                }
                Err(error) => {
                    shared.unless_closed(error);
                    return;
                }
            }
            // Tables flushed in the meantime may make other work urgent.
            if flushes != shared.counters.flushes.load(Ordering::Relaxed) {
                break;
            }
        }
        stuck.end_attempt(shared);
    }
}

/// Keeps those filters of the last level that did not fit before: replaced tables have released theirs since.
async fn keep_filters(shared: &Arc<StoreCore>) {
    let tables = shared.with_view(|view| view.version.with_kept_filters(&shared.options));
    for table in tables {
        if shared.check_writable().is_err() {
            return;
        }
        table.keep_filter(shared.options.background).await;
    }
}

/// Waits for work and returns the reason for it, or `Over` when the store closes or fails.
async fn reason(shared: &Arc<StoreCore>, looked: Option<u64>) -> Reason {
    let compaction = &shared.compaction;
    let now = || {
        if shared.check_writable().is_err() {
            return Some(Reason::Over);
        }
        // Without space on disk every compaction that frees some is worth the work, once per attempt.
        if shared.full.is_full() {
            let is_next = looked != Some(shared.full.attempt()) && !shared.full.is_hopeless(Work::Compaction);
            return is_next.then_some(Reason::Rest);
        }
        if shared.with_view(|view| pick::is_urgent(&view.version, &shared.pick_how())) {
            return Some(Reason::Urgent);
        }
        let is_awaited = compaction.is_awaited.load(Ordering::Acquire) && !compaction.has_rested();
        is_awaited.then_some(Reason::Rest)
    };
    loop {
        if compaction.has_rested() {
            let edits = compaction.edits();
            let woken = || now().map(Some).or_else(|| (compaction.edits() != edits).then_some(None));
            let (woken, now_s) = (shared.changed.until(woken), shared.now_s());
            let woken = match shared.with_view(|view| pick::expires_s(&view.version, now_s)) {
                None => woken.await,
                Some(due_s) => {
                    let wait = Duration::from_secs(due_s.saturating_sub(now_s)).clamp(EXPIRY_MIN, EXPIRY_MAX);
                    forebay::shard::timeout(wait, woken).await.unwrap_or(Some(Reason::Rest))
                }
            };
            match woken {
                Some(reason) => return reason,
                None => continue,
            }
        }
        let (edits, waits) = (compaction.edits(), shared.changed.until(now));
        match forebay::shard::timeout(REST, waits).await {
            Ok(reason) => return reason,
            Err(_) if shared.full.is_full() => {}
            // Only a whole wait without a change counts as rest.
            Err(_) if edits == compaction.edits() => return Reason::Rest,
            Err(_) => return Reason::Look,
        }
    }
}

/// Flushes the memtables. Then waits until nothing is left to compact, not even work that only saves space, and the files of
/// replaced tables are removed.
pub(crate) async fn settle(shared: &Arc<StoreCore>) -> Result<()> {
    flush::everything(shared).await?;
    let compaction = &shared.compaction;
    // Entries may have expired without a change of the tables.
    compaction.rested.store(0, Ordering::Release);
    let (of_flushes, of_compactions) =
        (shared.full.patience(Work::Flush), shared.full.patience(Work::Compaction));
    shared.try_again();
    let rests = || {
        if let Err(error) = shared.check_writable() {
            return Some(Err(error));
        }
        let has_rested = shared.lock().sealed.is_empty() && compaction.has_rested();
        if has_rested && shared.cache.removals().is_done() {
            return Some(Ok(()));
        }
        let tries = [(Work::Flush, of_flushes), (Work::Compaction, of_compactions)];
        if let Err(error) = tries.iter().try_for_each(|(work, most)| shared.full.check_tries(*work, *most)) {
            return Some(Err(error));
        }
        // Tables flushed in the meantime need another request.
        if !has_rested && !compaction.is_awaited.swap(true, Ordering::AcqRel) {
            shared.changed.notify();
        }
        None
    };
    shared.changed.until(rests).await
}

/// Compacts everything that a keyspace has within `bounds` to the last level.
pub(crate) async fn range(shared: &Arc<StoreCore>, keyspace: u32, bounds: Bounds) -> Result<()> {
    flush::everything(shared).await?;
    let work = move |shared: Arc<StoreCore>| async move {
        let mut descent = pick::Descent::new(keyspace, bounds, shared.next_table());
        loop {
            let _turn = shared.compaction.turn.take().await;
            while now(&shared, |version, how| shared.compaction.begun(version, how)).await? {}
            if !now(&shared, |version, how| descent.pick(version, how)).await? {
                return Ok(());
            }
            descent.advance();
        }
    };
    shared.spawn_task(shared.background_shard(), shared.options.background, work).await?
}

/// Runs the next step that moves keys out of level 0, in compaction's turn. Returns whether a step was due.
pub(crate) async fn clear_level0(shared: &Arc<StoreCore>, keyspace: u32, bounds: &Bounds) -> Result<bool> {
    now(shared, |version, how| pick::clearing_level0(version, how, keyspace, bounds)).await
}

/// Runs the next step that moves keys out of the first two levels, in compaction's turn. Returns whether a step was due.
pub(crate) async fn clear(shared: &Arc<StoreCore>, keyspace: u32, bounds: &Bounds) -> Result<bool> {
    now(shared, |version, how| pick::clearing(version, how, keyspace, bounds)).await
}

/// Runs the picked job, in compaction's turn. Returns false if no job was picked.
async fn now(
    shared: &Arc<StoreCore>,
    mut pick: impl FnMut(&Version, &pick::How<'_>) -> Option<pick::Job>,
) -> Result<bool> {
    shared.check_writable()?;
    let patience = shared.full.patience(Work::Compaction);
    loop {
        let attempt = shared.full.attempt();
        // Picked again for each attempt: some pieces of a job that was run piece by piece may be done.
        let Some(job) = shared.with_view(|view| pick(&view.version, &shared.pick_how())) else {
            return Ok(false);
        };
        match run::run(shared, job).await {
            Ok(true) => {
                shared.found_space(Work::Compaction);
                return Ok(true);
            }
            Ok(false) => return shared.check_writable().map(|()| true),
            Err(error) if error.is_shortage() => {
                shared.lacks_space(Work::Compaction, &error);
                shared.full.check_tries(Work::Compaction, patience)?;
                shared.next_attempt(attempt).await;
            }
            Err(error) => return Err(shared.unless_closed(error)),
        }
    }
}
