//! Batches of walks on their shard: started while slots are free, taken over, cancelled, and failed at the shard's end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::lifecycle::{begin_with, drop_walk, notify_room};
use super::remote_walks::{Batch, BatchEntry};
use super::table::{Owner, WalkKey, WalkState};
use crate::io::op::OpFailure;
use crate::reactor::shard::Shard;

/// Starts a batch on its shard.
pub(crate) fn begin_batch(shard: &Shard, batch: &Arc<Batch>) {
    batch.set_progress(|progress| progress.begun = true);
    begin_more(shard, batch);
}

/// Handles the notification of a batch: its future, now polled on another thread, takes the walk over, or was dropped.
pub(crate) fn resume(shard: &Shard, batch: &Arc<Batch>) {
    if batch.is_done() {
        return;
    }
    let begun = batch.progress().begun;
    if let Some(key) = batch.adopts.filter(|_| !begun) {
        batch.set_progress(|progress| progress.begun = true);
        if batch.is_cancelled() { drop_walk(shard, key) } else { adopt(shard, batch, key) }
    } else if begun && batch.is_cancelled() {
        for number in 0..batch.progress().next {
            match batch.replace(number, BatchEntry::Gone) {
                BatchEntry::Running(index) => {
                    let key = shard.walks.with(|walks| walks.key_at(index));
                    drop_walk(shard, key);
                }
                other => drop(other),
            }
        }
        batch.end();
    }
}

/// Makes a future on another thread the owner of a walk.
fn adopt(shard: &Shard, batch: &Arc<Batch>, key: WalkKey) {
    let (job, old) = shard.walks.with(|walks| match walks.find(key) {
        Some(slot) if slot.state == WalkState::Over => {
            let job = slot.job.take();
            walks.give_back(key.index);
            (job, None)
        }
        Some(slot) => {
            batch.replace(0, BatchEntry::Running(key.index));
            batch.set_progress(|progress| (progress.next, progress.running) = (1, 1));
            (None, Some(std::mem::replace(&mut slot.owner, Owner::Batch(batch.clone(), 0))))
        }
        None => (None, None),
    });
    if old.is_some() {
        return drop(old);
    }
    if let Some(job) = job {
        batch.replace(0, BatchEntry::Over(job));
    }
    batch.end();
    notify_room(shard);
}

/// Starts walks of a batch while slots are free, and ends the batch after the last walk.
pub(crate) fn begin_more(shard: &Shard, batch: &Arc<Batch>) {
    // A walk that fails immediately ends while its batch starts it, and must not start the next one from there.
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
        let BatchEntry::Waiting(root, mut job) = batch.replace(number, BatchEntry::Gone) else { continue };
        let file = match shard.enter_file(&batch.file) {
            Ok(file) => file,
            Err(failure) => {
                let error = failure.into_error("walk", Some(&batch.file));
                job.fail(error.with_range(root.start, root.end.saturating_sub(root.start)));
                batch.replace(number, BatchEntry::Over(job));
                continue;
            }
        };
        batch.set_progress(|progress| progress.running += 1);
        let owner = Owner::Batch(batch.clone(), number);
        // A slot was free, and no code of the program has run since.
        if let Some(key) = begin_with(shard, file, batch.settings, &root, owner, job) {
            note_running(shard, batch, number, key);
        }
    }
    batch.set_progress(|progress| progress.is_beginning = false);
    let progress = batch.progress();
    debug_assert!(
        progress.running <= batch.settings.depth.max(1) && progress.running <= progress.next,
        "a batch has no more walks under way than its depth"
    );
    let left = progress.next < batch.len() && !batch.is_cancelled();
    if progress.running == 0 && !left && !batch.is_done() {
        shard.account.with(|account| account.walks.wakes += 1);
        batch.end();
    }
}

/// Records a walk as running, unless it ended immediately and already has its place.
fn note_running(shard: &Shard, batch: &Arc<Batch>, number: u32, key: WalkKey) {
    if shard.walks.with(|walks| walks.find(key).is_some()) {
        batch.replace(number, BatchEntry::Running(key.index));
    }
}

/// Fails, at a shard's end, every walk that has not ended; its reads become orphans.
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
        // The uses of a dead shard's files are no longer known, so the files stay open.
        if failure != OpFailure::ShardLost {
            shard.leave_file(held.file);
        }
        match (held.job, held.owner) {
            (job, Owner::Batch(batch, number)) => {
                if let Some(mut job) = job {
                    job.fail(failure.into_error("walk", Some(&batch.file)));
                    batch.replace(number, BatchEntry::Over(job));
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
    notify_room(shard);
}

/// Wakes a waiter. A waker that panics must not keep the others from their results.
fn guarded(wake: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(wake));
}
