//! The life of a shard's walks: the start, steps as blocks arrive, and the end.

use std::ops::Range;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::many::begin_more;
use super::reads::{block_of, drop_reads, place_reads, stage_all};
use super::remote_walks::{BatchEntry, Settings};
use super::state::{Job, Next};
use super::step::Ranges;
use super::table::{Arrival, Owner, WalkKey, WalkState};
use crate::base::class::Class;
use crate::base::error::Error;
use crate::base::here;
use crate::base::wakes;
use crate::io::op::{OpFailure, OpOutcome};
use crate::reactor::account::file_table::NO_FILE;
use crate::reactor::class_scope::run_as;
use crate::reactor::open_file::FileCore;
use crate::reactor::shard::Shard;
use crate::reactor::shard::clock::Clock;

/// A longer step is counted under its walk's type.
const STEP_NS_SLOW: u64 = 20_000;
/// Where reading the clock costs as much as half an operation, one step in this many is timed.
const STEPS_PER_SLOW_CLOCK: u64 = 32;

/// Returns whether a slot is free. If not, `waker` is woken for one.
pub(crate) fn has_room(shard: &Shard, waker: &Waker) -> bool {
    if !shard.walks.with(|walks| walks.is_full()) {
        return true;
    }
    let waker = waker.clone();
    shard.walks.with(|walks| walks.waiters.push(waker));
    false
}

/// Starts a walk for a future on this shard, which has checked for a free slot.
pub(crate) fn begin(
    shard: &Shard,
    core: &Arc<FileCore>,
    settings: Settings,
    root: &Range<u64>,
    waker: &Waker,
    job: Job,
) -> Result<WalkKey, OpFailure> {
    let file = shard.enter_file(core)?;
    let owner = match shard.executor().own_task(waker) {
        Some(task) => Owner::Task(task),
        // Cloned with nothing borrowed: cloning may run the program's code.
        None => Owner::Wake(waker.clone()),
    };
    // Only the clone of a foreign waker can have taken the slot.
    begin_with(shard, file, settings, root, owner, job).ok_or(OpFailure::Errno(libc::EAGAIN))
}

/// Puts a walk into a slot and requests its root. Returns `None` without a free slot.
pub(crate) fn begin_with(
    shard: &Shard,
    file: u32,
    settings: Settings,
    root: &Range<u64>,
    owner: Owner,
    job: Job,
) -> Option<WalkKey> {
    let key = shard.walks.with(|walks| {
        let key = walks.take()?;
        let slot = walks.slot(key.index);
        slot.state = WalkState::Stepping;
        slot.class = settings.class;
        slot.file = file;
        slot.hops = 0;
        slot.hops_max = settings.hops_max;
        Some(key)
    });
    let Some(key) = key else {
        shard.leave_file(file);
        return None;
    };
    shard.account.with(|account| {
        account.walks.walks += 1;
        account.walks.boxed_states += u64::from(job.is_boxed());
    });
    // The slot's old owner is `Nobody`, or a task's number.
    let old = shard.walks.with(|walks| std::mem::replace(&mut walks.slot(key.index).owner, owner));
    drop(old);
    go_on(shard, key.index, job, Next::Read(root.clone()));
    Some(key)
}

/// Returns, for a future on this shard, the walk when it has ended; otherwise `waker` will be woken.
pub(crate) fn poll(shard: &Shard, key: WalkKey, waker: &Waker) -> Poll<Option<Job>> {
    let over = shard.walks.with(|walks| match walks.find(key) {
        // Cannot happen while its future lives; handled without a panic.
        None => Some(None),
        Some(slot) if slot.state == WalkState::Over => {
            let job = slot.job.take();
            walks.give_back(key.index);
            Some(job)
        }
        Some(_) => None,
    });
    if let Some(job) = over {
        notify_room(shard);
        return Poll::Ready(job);
    }
    let task = shard.executor().own_task(waker);
    let known = shard.walks.with(|walks| match walks.find(key).map(|slot| &slot.owner) {
        Some(Owner::Wake(known)) => known.will_wake(waker),
        Some(Owner::Task(known)) => Some(*known) == task,
        _ => false,
    });
    if !known {
        let new = task.map_or_else(|| Owner::Wake(waker.clone()), Owner::Task);
        let old =
            shard.walks.with(|walks| walks.find(key).map(|slot| std::mem::replace(&mut slot.owner, new)));
        drop(old);
    }
    Poll::Pending
}

/// Ends a walk that has no waiter any more: its reads are cancelled, and its state is dropped.
pub(crate) fn drop_walk(shard: &Shard, key: WalkKey) {
    let state = shard.walks.with(|walks| walks.find(key).map(|slot| slot.state));
    match state {
        None | Some(WalkState::Free) => {}
        Some(WalkState::Stepping) => {
            // Dropped by its own step: the step's end finds the mark.
            let owner =
                shard.walks.with(|walks| std::mem::replace(&mut walks.slot(key.index).owner, Owner::Nobody));
            drop(owner);
        }
        Some(WalkState::Reading | WalkState::Over) => {
            drop_reads(shard, key.index);
            drop(clear(shard, key.index));
            notify_room(shard);
        }
    }
}

/// Ends a walk whose local future was dropped on another thread.
pub(crate) fn drop_walk_at(shard: &Shard, index: u32) {
    let key = shard.walks.with(|walks| walks.key_at(index));
    drop_walk(shard, key);
}

/// Empties a slot and frees it. Returns its job and owner.
fn clear(shard: &Shard, index: u32) -> (Option<Job>, Owner) {
    let held = shard.walks.with(|walks| walks.clear(index));
    shard.leave_file(held.file);
    (held.job, held.owner)
}

/// Wakes the futures that found no slot, because one is free again.
pub(crate) fn notify_room(shard: &Shard) {
    if !shard.walks.with(|walks| walks.waiters.is_empty()) {
        let waiters = shard.walks.with(|walks| std::mem::take(&mut walks.waiters));
        wakes::wake_each(waiters);
    }
}

/// Queues the outcome of a walk's read.
#[inline]
pub(crate) fn arrived(shard: &Shard, walk: u32, place: u32, outcome: OpOutcome) {
    shard.walks.with(|walks| walks.push_arrival(walk, place, outcome));
}

/// Called after the turn's tasks: walks may hop again, for `steps` steps, and those that found no slot try again.
#[inline]
pub(crate) fn turn(shard: &Shard, steps: u32) {
    if shard.walks.with(|walks| walks.is_idle()) {
        return;
    }
    shard.walks.with(|walks| walks.begin_turn(steps));
    if !shard.walks.with(|walks| walks.unstaged.is_empty()) {
        for index in shard.walks.with(|walks| std::mem::take(&mut walks.unstaged)) {
            stage_all(shard, index);
        }
    }
    let waiting = shard.walks.with(|walks| walks.waiting.len());
    for _ in 0..waiting {
        let Some(batch) = shard.walks.with(|walks| walks.waiting.pop_front()) else { break };
        batch.set_progress(|progress| progress.is_blocked = false);
        begin_more(shard, &batch);
    }
    run(shard);
}

/// Passes blocks that arrived to their steps, within this turn's allowance.
#[inline]
pub(crate) fn run(shard: &Shard) {
    while let Some(arrival) = shard.walks.with(|walks| walks.next_arrival()) {
        step(shard, arrival);
    }
}

fn step(shard: &Shard, arrival: Arrival) {
    let index = arrival.walk;
    let steps = shard.account.with(|account| {
        account.walks.steps += 1;
        account.walks.steps
    });
    let taken = shard.walks.with(|walks| {
        let slot = walks.slot(index);
        slot.coming &= !(1 << arrival.place);
        let job = slot.job.take()?;
        slot.state = WalkState::Stepping;
        let range = slot.reads[arrival.place as usize].range();
        Some((job, range, slot.file, slot.class))
    });
    let Some((mut job, range, file, class)) = taken else { return };
    let block = match block_of(shard, file, arrival.outcome, &range) {
        Ok(block) => block,
        Err(error) => return fail(shard, index, job, error, Some(&range)),
    };
    let (next, slow_ns) = timed(shard.clock(), steps, || {
        if shard.is_current() {
            shard.set_class(class);
            let next = job.step(&block, range.clone());
            shard.set_class(Class::DEFAULT);
            next
        } else {
            as_step(class, || job.step(&block, range.clone()))
        }
    });
    if let Some(ns) = slow_ns {
        let name = job.name();
        shard.account.with(|account| account.walks.add_slow(name, ns));
    }
    drop(block);
    match next {
        Next::Panicked(error) => fail(shard, index, job, error, Some(&range)),
        next => go_on(shard, index, job, next),
    }
}

/// Runs a step, the one with this number of its account. Returns also its time if that was too long.
#[inline]
pub(crate) fn timed(clock: &Clock, number: u64, step: impl FnOnce() -> Next) -> (Next, Option<u64>) {
    let began = (clock.is_cheap() || number.is_multiple_of(STEPS_PER_SLOW_CLOCK)).then(|| clock.now());
    let next = step();
    let ns = began.map(|began| clock.ns(clock.now().wrapping_sub(began)));
    (next, ns.filter(|&ns| ns > STEP_NS_SLOW))
}

/// Runs a step on a thread that is not its shard's: in the walk's class, and where nothing may wait.
pub(crate) fn as_step<T>(class: Class, step: impl FnOnce() -> T) -> T {
    let before = here::is_on_shard();
    here::set_on_shard(true);
    let result = run_as(class, step);
    here::set_on_shard(before);
    result
}

/// Executes the request of a step, or of the walk's start. The slot is `Stepping`, and its job is returned to it here.
fn go_on(shard: &Shard, index: u32, job: Job, next: Next) {
    let asked: Ranges = match next {
        Next::Wait => {
            let coming = shard.walks.with(|walks| {
                let slot = walks.slot(index);
                let coming = slot.coming != 0 && !matches!(slot.owner, Owner::Nobody);
                if coming {
                    slot.state = WalkState::Reading;
                }
                coming
            });
            if coming {
                return shard.walks.with(|walks| walks.slot(index).job = Some(job));
            }
            let error = Error::invalid("walk", "the step waits for blocks, and none is to come");
            return fail(shard, index, job, error, None);
        }
        Next::Over => return over(shard, index, job),
        // `step` has checked.
        Next::Panicked(error) => return fail(shard, index, job, error, None),
        Next::Read(range) => std::iter::once(range).collect(),
        Next::ReadEach(ranges) => ranges,
    };
    drop_reads(shard, index);
    match place_reads(shard, index, &asked) {
        Err((error, range)) => fail(shard, index, job, error, range.as_ref()),
        Ok(false) => over(shard, index, job),
        Ok(true) => {
            shard.walks.with(|walks| {
                let slot = walks.slot(index);
                debug_assert!(slot.job.is_none(), "a walk's state is in one place");
                slot.job = Some(job);
                slot.state = WalkState::Reading;
            });
            stage_all(shard, index);
        }
    }
}

/// Adds the hop, the range and the file to the error of a walk, as far as they are known.
pub(crate) fn describe(error: Error, hop: u32, range: Option<&Range<u64>>, core: Option<&FileCore>) -> Error {
    let error = if error.hop().is_none() { error.with_hop(hop) } else { error };
    let error = match range {
        Some(range) => error.with_range(range.start, range.end.saturating_sub(range.start)),
        None => error,
    };
    match core {
        Some(core) => core.describe(error),
        None => error,
    }
}

/// Ends a walk with an error of the core.
fn fail(shard: &Shard, index: u32, mut job: Job, error: Error, range: Option<&Range<u64>>) {
    let (file, hop) = shard.walks.with(|walks| {
        let slot = walks.slot(index);
        (slot.file, slot.hops)
    });
    job.fail(describe(error, hop, range, shard.file_core(file).as_deref()));
    over(shard, index, job);
}

/// Ends a walk and wakes its waiter. The slot is `Stepping`, and its job is returned to it here.
fn over(shard: &Shard, index: u32, job: Job) {
    drop_reads(shard, index);
    let mut job = Some(job);
    let (file, task) = shard.walks.with(|walks| {
        let slot = walks.slot(index);
        debug_assert_eq!(slot.state, WalkState::Stepping, "a walk ends in its own step, or before the first");
        debug_assert!(slot.job.is_none(), "a walk's state is in one place");
        let file = std::mem::replace(&mut slot.file, NO_FILE);
        let task = match slot.owner {
            Owner::Task(task) => Some(task),
            _ => None,
        };
        if matches!(slot.owner, Owner::Task(_) | Owner::Wake(_)) {
            slot.job = job.take();
            slot.state = WalkState::Over;
            shard.account.with(|account| account.walks.wakes += 1);
        }
        (file, task)
    });
    shard.leave_file(file);
    if let Some(task) = task {
        return shard.executor().wake_task(task);
    }
    let Some(job) = job else {
        let owner = shard.walks.with(|walks| std::mem::replace(&mut walks.slot(index).owner, Owner::Nobody));
        if let Owner::Wake(waker) = owner {
            waker.wake();
        }
        return;
    };
    let (_, owner) = clear(shard, index);
    if let Owner::Batch(batch, number) = owner {
        batch.replace(number, BatchEntry::Over(job));
        batch.set_progress(|progress| progress.running -= 1);
        begin_more(shard, &batch);
    } else {
        drop(job);
    }
    notify_room(shard);
}
