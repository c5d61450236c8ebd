//! Compaction: a task of the store that keeps its levels in shape.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{ErrorKind, Result};
use crate::manifest::version::Version;
use crate::merge::Bounds;
use crate::store::flush;
use crate::store::shared::Shared;
use crate::store::space::Work;
use crate::turn::Turn;

mod out;
pub(crate) mod pick;
mod run;

pub(crate) use out::Output;

/// A store whose tables have not changed for so long is at rest.
const REST: Duration = Duration::from_secs(1);

/// A store at rest looks for what has expired when it may be worth it, but no more and no less often than
/// this.
const EXPIRY_MIN: Duration = Duration::from_secs(10);
const EXPIRY_MAX: Duration = Duration::from_secs(600);

/// What compaction shares with those who wait for it.
#[derive(Debug, Default)]
pub(crate) struct Compaction {
    /// One compaction at a time: the tables below level 0 change only in this turn.
    pub(crate) turn: Turn,
    /// Counts the changes of the tables.
    edits: AtomicU64,
    /// The count for which nothing was found to do, not even at rest; one more, so that 0 is none.
    rested: AtomicU64,
    /// Somebody waits for rest, or did when compaction was last at rest. Not a count: one who is not polled any more
    /// must not have everything compacted at once for ever.
    is_awaited: AtomicBool,
}

impl Compaction {
    /// The tables change; called in the commit section.
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

/// Why compaction goes to work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    Urgent,
    Rest,
    Over,
}

/// Compacts until the store closes or fails.
pub(crate) async fn run(shared: &Arc<Shared>) {
    let compaction = &shared.compaction;
    // The attempt of a full store in which it looked for work last.
    let mut looked = None;
    loop {
        let is_resting = match reason(shared, looked).await {
            Reason::Over => return,
            reason => reason == Reason::Rest,
        };
        let flushes = shared.counters.flushes.load(Ordering::Relaxed);
        loop {
            let _turn = compaction.turn.take().await;
            let edits = compaction.edits();
            let attempt = shared.full.attempt();
            looked = Some(attempt);
            let job = shared.with_view(|view| pick::next(&view.version, &shared.pick_how(), is_resting));
            let Some(job) = job else {
                shared.needs_no_space();
                if is_resting {
                    compaction.is_awaited.store(false, Ordering::Release);
                    compaction.rested.store(edits + 1, Ordering::Release);
                    shared.changed.tell();
                }
                break;
            };
            match run::run(shared, job).await {
                Ok(true) => shared.found_space(Work::Compaction),
                Ok(false) => return,
                Err(error) if *error.kind() == ErrorKind::NoSpace => {
                    shared.lacks_space(Work::Compaction, &error);
                    break;
                }
                Err(error) => {
                    shared.unless_closed(error);
                    return;
                }
            }
            // What is flushed meanwhile may be urgent.
            if flushes != shared.counters.flushes.load(Ordering::Relaxed) {
                break;
            }
        }
    }
}

/// Waits until there is something to do.
async fn reason(shared: &Arc<Shared>, looked: Option<u64>) -> Reason {
    let compaction = &shared.compaction;
    let now = || {
        if shared.check_writable().is_err() {
            return Some(Reason::Over);
        }
        // Where there is no space all that gives some back is worth the work, once for each occasion.
        if shared.full.is_full() {
            return (looked != Some(shared.full.attempt())).then_some(Reason::Rest);
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
            // Only a whole wait without a change is rest.
            Err(_) if edits == compaction.edits() => return Reason::Rest,
            Err(_) => {}
        }
    }
}

/// Waits until nothing is left to compact, not even to save space.
pub(crate) async fn settle(shared: &Arc<Shared>) -> Result<()> {
    let compaction = &shared.compaction;
    // Time may have passed without a change.
    compaction.rested.store(0, Ordering::Release);
    let (of_flushes, of_compactions) =
        (shared.full.patience(Work::Flush), shared.full.patience(Work::Compaction));
    shared.try_again();
    let rests = || {
        if let Err(error) = shared.check_writable() {
            return Some(Err(error));
        }
        if shared.lock().sealed.is_empty() && compaction.has_rested() {
            return Some(Ok(()));
        }
        let tries = [(Work::Flush, of_flushes), (Work::Compaction, of_compactions)];
        if let Err(error) = tries.iter().try_for_each(|(work, most)| shared.full.check_tries(*work, *most)) {
            return Some(Err(error));
        }
        // What was flushed meanwhile is asked for again.
        if !compaction.is_awaited.swap(true, Ordering::AcqRel) {
            shared.changed.tell();
        }
        None
    };
    shared.changed.until(rests).await
}

/// Brings everything that a keyspace has between two keys to the last level.
pub(crate) async fn range(shared: &Arc<Shared>, keyspace: u32, bounds: Bounds) -> Result<()> {
    flush::everything(shared).await?;
    // A task of its own: a compaction that was begun is finished, whoever still waits for it.
    let (owned, task, class) = (shared.clone(), shared.begin_task(), shared.options.background);
    let compacting = shared.engine.spawn_on_shard(shared.background_shard(), class, move || async move {
        let _task = task;
        let upto = owned.next_table();
        loop {
            let _turn = owned.compaction.turn.take().await;
            if !step(&owned, keyspace, &bounds, upto).await? {
                return Ok(());
            }
        }
    });
    compacting.await?
}

/// The next step towards the last level, in compaction's turn. Answers whether there was one.
async fn step(shared: &Arc<Shared>, keyspace: u32, bounds: &Bounds, upto: u32) -> Result<bool> {
    now(shared, |version, how| pick::asked(version, how, keyspace, bounds, upto)).await
}

/// The next step that takes keys out of the first two levels, in compaction's turn. Answers whether there was
/// one.
pub(crate) async fn clear(shared: &Arc<Shared>, keyspace: u32, bounds: &Bounds) -> Result<bool> {
    now(shared, |version, how| pick::clearing(version, how, keyspace, bounds)).await
}

/// Runs the job that is picked, if there is one, in compaction's turn.
async fn now(
    shared: &Arc<Shared>,
    pick: impl Fn(&Version, &pick::How<'_>) -> Option<pick::Job>,
) -> Result<bool> {
    shared.check_writable()?;
    let patience = shared.full.patience(Work::Compaction);
    loop {
        let attempt = shared.full.attempt();
        // Again for each try: of a job that was run piece by piece some may be done.
        let Some(job) = shared.with_view(|view| pick(&view.version, &shared.pick_how())) else {
            return Ok(false);
        };
        match run::run(shared, job).await {
            Ok(true) => {
                shared.found_space(Work::Compaction);
                return Ok(true);
            }
            Ok(false) => return shared.check_writable().map(|()| true),
            Err(error) if *error.kind() == ErrorKind::NoSpace => {
                shared.lacks_space(Work::Compaction, &error);
                shared.full.check_tries(Work::Compaction, patience)?;
                shared.next_attempt(attempt).await;
            }
            Err(error) => return Err(shared.unless_closed(error)),
        }
    }
}
