//! A shard's walks at work: begun, stepped as blocks arrive, and brought to their end.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::batch::{Batch, Place, Settings};
use super::state::{Job, Next};
use super::step::Ranges;
use super::table::{Arrival, Owner, WalkKey, WalkRead, WalkState};
use crate::block::Block;
use crate::error::{Error, ErrorKind};
use crate::file::FileCore;
use crate::op::{Durability, OpBuffer, OpFailure, OpKind, OpOutcome, OpRequest};
use crate::read::{Widened, cut, from_page_cache};
use crate::shard::Shard;
use crate::shard::optable::{Continuation, NO_FILE};

/// A step that takes longer is counted and named.
const STEP_NS_SLOW: u64 = 20_000;
/// Where reading the clock costs as much as half an operation, one step in so many is timed.
const STEPS_PER_SLOW_CLOCK: u64 = 32;

/// Is there a free slot? Else `waker` is woken when there is one.
pub(super) fn has_room(shard: &Shard, waker: &Waker) -> bool {
    if !shard.walks.with(|walks| walks.is_full()) {
        return true;
    }
    let waker = waker.clone();
    shard.walks.with(|walks| walks.waiters.push(waker));
    false
}

/// Begins a walk for a future on this shard, which saw that there is room.
pub(super) fn begin(
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
        // Cloned with nothing borrowed: it may run code of the program's.
        None => Owner::Wake(waker.clone()),
    };
    // Only the clone of a strange waker can have taken the room.
    begin_with(shard, file, settings, root, owner, job).ok_or(OpFailure::Errno(libc::EAGAIN))
}

/// Puts a walk into a slot and asks for its root; `None` when there is no slot.
fn begin_with(
    shard: &Shard,
    file: u32,
    settings: Settings,
    root: &Range<u64>,
    owner: Owner,
    job: Job,
) -> Option<WalkKey> {
    let key = shard.walks.with(|walks| {
        let key = walks.take()?;
        walks.counts.boxed_states += u64::from(job.is_boxed());
        walks.counts.walks += 1;
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
    // The slot's old owner is `Nobody`, or a task's number.
    let old = shard.walks.with(|walks| std::mem::replace(&mut walks.slot(key.index).owner, owner));
    drop(old);
    go_on(shard, key.index, job, Next::Read(root.clone()));
    Some(key)
}

/// For a future on this shard: the walk when it is over, or a promise to wake `waker`.
pub(super) fn poll(shard: &Shard, key: WalkKey, waker: &Waker) -> Poll<Option<Job>> {
    let over = shard.walks.with(|walks| match walks.find(key) {
        // Cannot happen while its future lives; answered without a panic.
        None => Some(None),
        Some(slot) if slot.state == WalkState::Over => {
            let job = slot.job.take();
            walks.give_back(key.index);
            Some(job)
        }
        Some(_) => None,
    });
    if let Some(job) = over {
        tell_room(shard);
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

/// Nobody waits for this walk any more: its reads are cancelled, and its state is dropped.
pub(crate) fn drop_walk(shard: &Shard, key: WalkKey) {
    let state = shard.walks.with(|walks| walks.find(key).map(|slot| slot.state));
    match state {
        None | Some(WalkState::Free) => {}
        Some(WalkState::Stepping) => {
            // By its own step, which finds the mark when it is over.
            let owner =
                shard.walks.with(|walks| std::mem::replace(&mut walks.slot(key.index).owner, Owner::Nobody));
            drop(owner);
        }
        Some(WalkState::Reading | WalkState::Over) => {
            drop_reads(shard, key.index);
            drop(clear(shard, key.index));
            tell_room(shard);
        }
    }
}

/// A walk whose local future was dropped on another thread.
pub(crate) fn drop_walk_at(shard: &Shard, index: u32) {
    let key = shard.walks.with(|walks| walks.key_at(index));
    drop_walk(shard, key);
}

/// Takes what a slot holds out of it and gives it back.
fn clear(shard: &Shard, index: u32) -> (Option<Job>, Owner) {
    let held = shard.walks.with(|walks| walks.clear(index));
    shard.leave_file(held.file);
    (held.job, held.owner)
}

/// A slot is free again: whoever found none may try.
fn tell_room(shard: &Shard) {
    if !shard.walks.with(|walks| walks.waiters.is_empty()) {
        let waiters = shard.walks.with(|walks| std::mem::take(&mut walks.waiters));
        waiters.into_iter().for_each(Waker::wake);
    }
}

/// A read of a walk is over.
#[inline]
pub(crate) fn arrived(shard: &Shard, walk: u32, place: u32, outcome: OpOutcome) {
    shard.walks.with(|walks| walks.push_arrival(walk, place, outcome));
}

/// After the turn's tasks: walks may hop again, and those that found no room try again.
#[inline]
pub(crate) fn turn(shard: &Shard) {
    if shard.walks.with(|walks| walks.is_idle()) {
        return;
    }
    shard.walks.with(|walks| walks.begin_turn());
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

/// Gives blocks that arrived to their steps, as far as this turn's allowance goes.
#[inline]
pub(crate) fn run(shard: &Shard) {
    while let Some(arrival) = shard.walks.with(|walks| walks.next_arrival()) {
        step(shard, arrival);
    }
}

fn step(shard: &Shard, arrival: Arrival) {
    let index = arrival.walk;
    let taken = shard.walks.with(|walks| {
        walks.counts.steps += 1;
        let steps = walks.counts.steps;
        let slot = walks.slot(index);
        slot.coming &= !(1 << arrival.place);
        let job = slot.job.take()?;
        slot.state = WalkState::Stepping;
        let range = slot.reads[arrival.place as usize].range();
        Some((job, range, slot.file, slot.class, steps))
    });
    let Some((mut job, range, file, class, steps)) = taken else { return };
    let block = match block_of(shard, file, arrival.outcome, &range) {
        Ok(block) => block,
        Err(error) => return fail(shard, index, job, error, Some(&range)),
    };
    let clock = shard.clock();
    let began = (clock.is_cheap() || steps % STEPS_PER_SLOW_CLOCK == 0).then(|| clock.now());
    shard.set_class(class);
    let next = job.step(&block, range.clone());
    shard.set_class(crate::Class::DEFAULT);
    if let Some(began) = began {
        let ns = clock.ns(clock.now().wrapping_sub(began));
        if ns > STEP_NS_SLOW {
            let name = job.name();
            shard.walks.with(|walks| walks.counts.add_slow(name, ns));
        }
    }
    drop(block);
    match next {
        Next::Panicked(error) => fail(shard, index, job, error, Some(&range)),
        next => go_on(shard, index, job, next),
    }
}

/// The bytes of a read, exactly as many as asked.
fn block_of(shard: &Shard, file: u32, outcome: OpOutcome, range: &Range<u64>) -> Result<Block, Error> {
    let failure = match (outcome.result, outcome.buffer) {
        // From the page cache.
        (Ok(_), OpBuffer::Shared(block)) => return Ok(block),
        (Ok(bytes), OpBuffer::Buffer(buffer)) => {
            let grain = shard.file_target(file).map_or(1, |target| target.read_grain);
            return cut(buffer, bytes, range, grain, true).map_err(|error| error.of("walk"));
        }
        (Ok(_), _) => OpFailure::Errno(libc::EIO),
        (Err(failure), _) => failure,
    };
    let core = shard.file_core(file);
    Err(failure.into_error("walk", core.as_deref()))
}

/// Does what a step, or the beginning, asked for. The slot is `Stepping`, and its job comes back here.
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
        // `step` has looked.
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
                slot.job = Some(job);
                slot.state = WalkState::Reading;
            });
            stage_all(shard, index);
        }
    }
}

type Refusal = (Error, Option<Range<u64>>);

/// Checks the ranges and notes them in the slot; false when nobody waits any more.
fn place_reads(shard: &Shard, index: u32, asked: &Ranges) -> Result<bool, Refusal> {
    let (file, owned, hops, hops_max) = shard.walks.with(|walks| {
        let slot = walks.slot(index);
        (slot.file, !matches!(slot.owner, Owner::Nobody), slot.hops, slot.hops_max)
    });
    if !owned {
        return Ok(false);
    }
    // The hop that is refused is the next one.
    let refused = |error: Error, range| Err((error.of("walk").with_hop(hops.saturating_add(1)), range));
    let Some(first) = asked.iter().next() else {
        return refused(Error::invalid("walk", "the step asks for no range at all"), None);
    };
    if asked.is_too_many() {
        return refused(Error::invalid("walk", "the step asks for more than 16 ranges"), None);
    }
    if hops >= hops_max {
        return refused(Error::new(ErrorKind::TooManyHops { limit: hops_max }, "walk"), Some(first));
    }
    let grain = shard.file_target(file).map_or(1, |target| target.read_grain);
    for range in asked.iter() {
        match Widened::of(&range, grain) {
            Ok(_) if !range.is_empty() => {}
            Ok(_) => return refused(Error::invalid("walk", "the range is empty"), Some(range)),
            Err(error) => return refused(error, Some(range)),
        }
    }
    shard.walks.with(|walks| {
        let turn = walks.turn;
        walks.counts.hops += 1;
        let slot = walks.slot(index);
        slot.hops += 1;
        slot.turn_hops = if slot.turn == turn { slot.turn_hops + 1 } else { 1 };
        slot.turn = turn;
        for (place, range) in asked.iter().enumerate() {
            slot.reads[place] = WalkRead { start: range.start, end: range.end, ..slot.reads[place] };
            slot.coming |= 1 << place;
        }
        slot.unasked = slot.coming;
    });
    Ok(true)
}

/// Asks for each block that is to come and was not asked for yet: of the page cache, else of the device.
fn stage_all(shard: &Shard, index: u32) {
    let (file, class, unasked) = shard.walks.with(|walks| {
        let slot = walks.slot(index);
        (slot.file, slot.class, slot.unasked)
    });
    let Some(target) = shard.file_target(file) else { return };
    let cached = if target.is_cached { shard.file_core(file) } else { None };
    for place in (0..u16::BITS).filter(|place| unasked & (1 << place) != 0) {
        let range = shard.walks.with(|walks| walks.slot(index).reads[place as usize].range());
        // Was looked at by `place_reads`.
        let Ok(wide) = Widened::of(&range, target.read_grain) else { continue };
        if let Some(core) = &cached
            && let Some(block) = from_page_cache(core, wide.offset, wide.len)
        {
            shard.walks.with(|walks| walks.counts.inline_blocks += 1);
            arrived(shard, index, place, OpOutcome { result: Ok(wide.len), buffer: OpBuffer::Shared(block) });
            continue;
        }
        let mut request = OpRequest {
            kind: OpKind::Read,
            class,
            durability: Durability::None,
            offset: wide.offset,
            len: wide.len,
            asked: (range.end - range.start) as u32,
            buffer: OpBuffer::Late,
        };
        shard.enter_file_again(file);
        let staged = shard.stage(file, &mut request, || Continuation::Walk { walk: index, place });
        if staged.is_none() {
            shard.leave_file(file);
        }
        let found_room = shard.walks.with(|walks| {
            let Some(key) = staged else {
                walks.unstaged.push(index);
                return false;
            };
            walks.has_staged = true;
            let slot = walks.slot(index);
            slot.unasked &= !(1 << place);
            slot.reads[place as usize].key = key;
            slot.staged |= 1 << place;
            true
        });
        if !found_room {
            return;
        }
    }
}

/// Cancels the reads that a walk has under way; what comes of them reaches no step.
fn drop_reads(shard: &Shard, index: u32) {
    let (mut staged, reads) = shard.walks.with(|walks| {
        let slot = walks.slot(index);
        slot.epoch = slot.epoch.wrapping_add(1);
        (slot.coming, slot.unasked) = (0, 0);
        let staged = std::mem::take(&mut slot.staged);
        (staged, if staged == 0 { None } else { Some(slot.reads) })
    });
    let Some(reads) = reads else { return };
    while staged != 0 {
        shard.drop_op(reads[staged.trailing_zeros() as usize].key);
        staged &= staged - 1;
    }
}

/// Ends a walk with an error of the core's, which gets what is known of the place.
fn fail(shard: &Shard, index: u32, mut job: Job, error: Error, range: Option<&Range<u64>>) {
    let (file, hop) = shard.walks.with(|walks| {
        let slot = walks.slot(index);
        (slot.file, slot.hops)
    });
    let error = if error.hop().is_none() { error.with_hop(hop) } else { error };
    let error = match range {
        Some(range) => error.with_range(range.start, range.end.saturating_sub(range.start)),
        None => error,
    };
    let error = match shard.file_core(file) {
        Some(core) => core.describe(error),
        None => error,
    };
    job.fail(error);
    over(shard, index, job);
}

/// A walk is over: whoever waits is told. The slot is `Stepping`, and its job comes back here.
fn over(shard: &Shard, index: u32, job: Job) {
    drop_reads(shard, index);
    let mut job = Some(job);
    let (file, task) = shard.walks.with(|walks| {
        let slot = walks.slot(index);
        let file = std::mem::replace(&mut slot.file, NO_FILE);
        let task = match slot.owner {
            Owner::Task(task) => Some(task),
            _ => None,
        };
        if matches!(slot.owner, Owner::Task(_) | Owner::Wake(_)) {
            slot.job = job.take();
            slot.state = WalkState::Over;
            walks.counts.wakes += 1;
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
        batch.replace(number, Place::Over(job));
        batch.set_progress(|progress| progress.running -= 1);
        begin_more(shard, &batch);
    } else {
        drop(job);
    }
    tell_room(shard);
}

/// Takes a batch on; on its shard.
pub(crate) fn begin_batch(shard: &Shard, batch: &Arc<Batch>) {
    batch.set_progress(|progress| progress.begun = true);
    begin_more(shard, batch);
}

/// Looks after a batch that left word: its future came from another thread to take over, or is gone.
pub(crate) fn resume(shard: &Shard, batch: &Arc<Batch>) {
    if batch.is_done() {
        return;
    }
    let begun = batch.progress().begun;
    if let Some(key) = batch.adopts.filter(|_| !begun) {
        batch.set_progress(|progress| progress.begun = true);
        match batch.is_cancelled() {
            true => drop_walk(shard, key),
            false => adopt(shard, batch, key),
        }
    } else if begun && batch.is_cancelled() {
        for number in 0..batch.progress().next {
            match batch.replace(number, Place::Gone) {
                Place::Running(index) => {
                    let key = shard.walks.with(|walks| walks.key_at(index));
                    drop_walk(shard, key);
                }
                other => drop(other),
            }
        }
        batch.end();
    }
}

/// Lets a future on another thread speak for a walk from now on.
fn adopt(shard: &Shard, batch: &Arc<Batch>, key: WalkKey) {
    let (job, old) = shard.walks.with(|walks| match walks.find(key) {
        Some(slot) if slot.state == WalkState::Over => {
            let job = slot.job.take();
            walks.give_back(key.index);
            (job, None)
        }
        Some(slot) => {
            batch.replace(0, Place::Running(key.index));
            batch.set_progress(|progress| (progress.next, progress.running) = (1, 1));
            (None, Some(std::mem::replace(&mut slot.owner, Owner::Batch(batch.clone(), 0))))
        }
        None => (None, None),
    });
    if old.is_some() {
        return drop(old);
    }
    if let Some(job) = job {
        batch.replace(0, Place::Over(job));
    }
    batch.end();
    tell_room(shard);
}

/// Begins walks of a batch while there is room, and ends the batch when none is left.
fn begin_more(shard: &Shard, batch: &Arc<Batch>) {
    // A walk that fails at once ends while its batch begins it, and must not begin the next one from there.
    if batch.progress().is_beginning {
        return;
    }
    batch.set_progress(|progress| progress.is_beginning = true);
    while !batch.is_cancelled() {
        let progress = batch.progress();
        if progress.next >= batch.len() || progress.running >= batch.settings.depth || progress.is_blocked {
            break;
        }
        if shard.walks.with(|walks| walks.is_full()) {
            batch.set_progress(|progress| progress.is_blocked = true);
            shard.walks.with(|walks| walks.waiting.push_back(batch.clone()));
            break;
        }
        let number = progress.next;
        batch.set_progress(|progress| progress.next += 1);
        let Place::Waiting(root, mut job) = batch.replace(number, Place::Gone) else { continue };
        let file = match shard.enter_file(&batch.file) {
            Ok(file) => file,
            Err(failure) => {
                let error = failure.into_error("walk", Some(&batch.file));
                job.fail(error.with_range(root.start, root.end.saturating_sub(root.start)));
                batch.replace(number, Place::Over(job));
                continue;
            }
        };
        batch.set_progress(|progress| progress.running += 1);
        let owner = Owner::Batch(batch.clone(), number);
        // There was room, and nothing of the program's ran since.
        if let Some(key) = begin_with(shard, file, batch.settings, &root, owner, job) {
            note_running(shard, batch, number, key);
        }
    }
    batch.set_progress(|progress| progress.is_beginning = false);
    let progress = batch.progress();
    let left = progress.next < batch.len() && !batch.is_cancelled();
    if progress.running == 0 && !left && !batch.is_done() {
        shard.walks.with(|walks| walks.counts.wakes += 1);
        batch.end();
    }
}

/// A walk that was over at once has its place already.
fn note_running(shard: &Shard, batch: &Arc<Batch>, number: u32, key: WalkKey) {
    if shard.walks.with(|walks| walks.find(key).is_some()) {
        batch.replace(number, Place::Running(key.index));
    }
}

/// At a shard's end: every walk that is not over fails, and its reads become nobody's.
pub(crate) fn refuse_all(shard: &Shard, failure: OpFailure) {
    let (keys, waiting) = shard.walks.with(|walks| {
        walks.forget_arrivals();
        (walks.live_keys(), std::mem::take(&mut walks.waiting))
    });
    let mut batches: Vec<Arc<Batch>> = waiting.into();
    for WalkKey { index, .. } in keys {
        let (mut staged, reads, held) = shard.walks.with(|walks| {
            let slot = walks.slot(index);
            slot.epoch = slot.epoch.wrapping_add(1);
            (slot.coming, slot.unasked) = (0, 0);
            let (staged, reads) = (std::mem::take(&mut slot.staged), slot.reads);
            (staged, reads, walks.clear(index))
        });
        while staged != 0 {
            shard.orphan_op(reads[staged.trailing_zeros() as usize].key);
            staged &= staged - 1;
        }
        // What a dead shard's files are used for is not known any more: they stay open.
        if failure != OpFailure::ShardLost {
            shard.leave_file(held.file);
        }
        match (held.job, held.owner) {
            (job, Owner::Batch(batch, number)) => {
                if let Some(mut job) = job {
                    job.fail(failure.into_error("walk", Some(&batch.file)));
                    batch.replace(number, Place::Over(job));
                }
                batches.push(batch);
            }
            (_, Owner::Task(task)) => shard.executor().wake_task(task),
            (_, Owner::Wake(waker)) => guarded(|| waker.wake()),
            (_, Owner::Nobody) => {}
        }
    }
    for batch in batches {
        if !batch.is_done() {
            guarded(|| batch.refuse(failure));
        }
    }
    tell_room(shard);
}

/// One waker that panics must not keep the others from their answers.
fn guarded(wake: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(wake));
}
