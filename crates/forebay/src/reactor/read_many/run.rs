//! The batches of a shard: their begin, their progress while there is room, and their end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::batch::{Batch, SINGLE};
use super::range_error;
use crate::base::error::{Error, ErrorKind};
use crate::io::op::{Durability, Flush, OpBuffer, OpFailure, OpKind, OpOutcome, OpRequest};
use crate::memory::arena::BUFFER_BYTES_MIN;
use crate::memory::block::Block;
use crate::reactor::shard::Shard;
use crate::reactor::shard::optable::Continuation;

/// The batches of one shard.
#[derive(Default)]
pub(crate) struct Batches {
    list: Vec<Option<Arc<Batch>>>,
    free: Vec<u32>,
    /// Batches that found the op table full, to be tried again next turn.
    blocked: Vec<u32>,
}

/// Adds a batch to its shard's list and begins it; called on that shard.
pub(crate) fn begin(shard: &Shard, batch: Arc<Batch>) {
    let place = shard.batches.with(|batches| match batches.free.pop() {
        Some(place) => {
            batches.list[place as usize] = Some(batch.clone());
            place
        }
        None => {
            batches.list.push(Some(batch.clone()));
            batches.list.len() as u32 - 1
        }
    });
    // SAFETY: the batch was just handed to this shard, which owns its progress from here on.
    let progress = unsafe { &mut *batch.progress.get() };
    progress.place = place;
    progress.begun = true;
    for &number in &batch.plan.empty {
        batch.put(number as usize, Ok(Block::default()));
    }
    for (number, fault) in &batch.plan.faulty {
        let range = &batch.plan.ranges[*number as usize];
        let copy = match fault.kind() {
            kind @ ErrorKind::TooLarge { .. } => Error::new(kind, "read_many"),
            _ => Error::invalid("read_many", "no file can have this range"),
        };
        batch.put(*number as usize, Err(range_error(&batch, copy, range)));
    }
    go_on(shard, &batch);
}

/// Continues a batch that sent a notification: its consumer made room, or is gone.
pub(crate) fn resume(shard: &Shard, batch: &Arc<Batch>) {
    // SAFETY: on the batch's shard; `begun` is set once the batch's message has arrived.
    let begun = unsafe { (*batch.progress.get()).begun };
    if begun && !batch.done.load(Ordering::Relaxed) {
        go_on(shard, batch);
    }
}

/// Retries the batches that found the op table full.
#[inline]
pub(crate) fn retry_blocked(shard: &Shard) {
    if shard.batches.with(|batches| batches.blocked.is_empty()) {
        return;
    }
    for place in shard.batches.with(|batches| std::mem::take(&mut batches.blocked)) {
        if let Some(batch) = shard.batches.with(|batches| batches.list[place as usize].clone()) {
            go_on(shard, &batch);
        }
    }
}

/// Handles the completion of one request of a batch.
pub(crate) fn piece_done(shard: &Shard, place: u32, piece: u32, outcome: OpOutcome) {
    let Some(batch) = shard.batches.with(|batches| batches.list.get(place as usize).cloned().flatten())
    else {
        return;
    };
    {
        // SAFETY: on the batch's shard; no other reference to its progress is live here.
        let progress = unsafe { &mut *batch.progress.get() };
        progress.in_flight -= 1;
    }
    if !batch.cancelled.load(Ordering::Acquire) {
        take_piece(&batch, piece, outcome);
    }
    go_on(shard, &batch);
}

fn take_piece(batch: &Arc<Batch>, piece: u32, outcome: OpOutcome) {
    let members = batch.members(piece);
    let Some(place) = batch.place_of(piece) else { return };
    let bytes = match (outcome.result, members.len()) {
        (Ok(bytes), _) => bytes,
        (Err(OpFailure::Errno(_) | OpFailure::NoMemory | OpFailure::TooLarge), 2..) => {
            let first = batch.plan.pieces[piece as usize].first;
            // SAFETY: on the batch's shard; no other reference to its progress is live here.
            let split = unsafe { &mut (*batch.progress.get()).split };
            split.extend(first..first + members.len() as u32);
            return;
        }
        (Err(failure), _) => {
            for &number in members {
                let error = failure.into_error("read_many", Some(&batch.file));
                batch.put(
                    number as usize,
                    Err(range_error(batch, error, &batch.plan.ranges[number as usize])),
                );
            }
            return;
        }
    };
    let OpBuffer::Buffer(buffer) = outcome.buffer else { return };
    // SAFETY: the device filled that many bytes from the buffer's start.
    let whole = unsafe { buffer.into_block(0, bytes as usize) };
    // Each copy takes a buffer of the smallest size: many tiny ones would take more memory than the one they
    // are to free.
    let copies_pay = members.len() > 1 && members.len() * BUFFER_BYTES_MIN <= whole.pinned_bytes() / 4;
    let mut whole = Some(whole);
    for (at, &number) in members.iter().enumerate() {
        let range = &batch.plan.ranges[number as usize];
        let (start, end) = (range.start - place.offset, range.end - place.offset);
        let result = if end > u64::from(bytes) {
            let got = u64::from(bytes).saturating_sub(start);
            let error = Error::new(ErrorKind::UnexpectedEof { got }, "read_many");
            Err(range_error(batch, error, range))
        } else {
            // The last range takes over the whole, so that a request with one range needs no reference
            // counting.
            let part = if at + 1 == members.len() { whole.take() } else { whole.clone() };
            let part = part.and_then(|whole| whole.into_slice(start as usize..end as usize));
            part.map(|part| if copies_pay { compact(part) } else { part })
                .ok_or_else(|| range_error(batch, Error::os("read_many", libc::EIO), range))
        };
        batch.put(number as usize, result);
    }
}

/// Copies a slice smaller than a sixteenth of its merged request, which it would otherwise pin for as long as
/// the program keeps the slice.
fn compact(part: Block) -> Block {
    if part.pinned_bytes() / 16 > part.len() { part.detach() } else { part }
}

/// Delivers results, begins further requests while there is room, and ends the batch when nothing is left.
fn go_on(shard: &Shard, batch: &Arc<Batch>) {
    let cancelled = batch.cancelled.load(Ordering::Acquire);
    let mut delivered;
    loop {
        // In each iteration: a request that cannot even begin puts its results behind the waiting ones.
        delivered = cancelled || batch.drain_waiting();
        let (piece, retry) = {
            // SAFETY: on the batch's shard; the reference ends with this block.
            let progress = unsafe { &mut *batch.progress.get() };
            let left = progress.next_piece < batch.plan.pieces.len() as u32 || !progress.split.is_empty();
            if cancelled || !left {
                break;
            }
            if !delivered || progress.in_flight >= batch.depth {
                batch.wake_consumer();
                return;
            }
            match progress.split.pop_front() {
                Some(order) => (order | SINGLE, true),
                None => {
                    progress.next_piece += 1;
                    (progress.next_piece - 1, false)
                }
            }
        };
        if !stage(shard, batch, piece) {
            // SAFETY: as the block above.
            let progress = unsafe { &mut *batch.progress.get() };
            if retry {
                progress.split.push_front(piece & !SINGLE);
            } else {
                progress.next_piece -= 1;
            }
            let place = progress.place;
            shard.batches.with(|batches| batches.blocked.push(place));
            return;
        }
    }
    // SAFETY: on the batch's shard; the copies end the reference.
    let (in_flight, place) = unsafe { ((*batch.progress.get()).in_flight, (*batch.progress.get()).place) };
    if in_flight == 0 && delivered {
        shard.batches.with(|batches| {
            batches.list[place as usize] = None;
            batches.free.push(place);
        });
        debug_assert!(cancelled || batch.is_whole(), "every range of a batch gets its result before the end");
        batch.end();
    } else {
        batch.wake_consumer();
    }
}

/// Puts one request into a slot; returns false if the op table is full.
fn stage(shard: &Shard, batch: &Arc<Batch>, piece: u32) -> bool {
    let Some(place) = batch.place_of(piece) else { return true };
    let file = match shard.enter_file(&batch.file) {
        Ok(file) => file,
        Err(failure) => {
            for &number in batch.members(piece) {
                let error = failure.into_error("read_many", Some(&batch.file));
                batch.put(
                    number as usize,
                    Err(range_error(batch, error, &batch.plan.ranges[number as usize])),
                );
            }
            return true;
        }
    };
    let asked: u64 = batch
        .members(piece)
        .iter()
        .map(|&number| &batch.plan.ranges[number as usize])
        .map(|range| range.end - range.start)
        .sum();
    let mut request = OpRequest {
        kind: OpKind::Read,
        class: batch.class,
        durability: Durability::None,
        flush: Flush::Queued,
        offset: place.offset,
        len: place.len,
        asked: asked.min(u64::from(u32::MAX)) as u32,
        buffer: OpBuffer::Late,
    };
    // SAFETY: on the batch's shard; the copy ends the reference.
    let continuation = Continuation::Batch { batch: unsafe { (*batch.progress.get()).place }, piece };
    match shard.stage(file, &mut request, || continuation) {
        Some(_) => {
            // SAFETY: on the batch's shard; the reference ends here.
            let progress = unsafe { &mut *batch.progress.get() };
            progress.in_flight += 1;
            debug_assert!(
                progress.in_flight <= batch.depth,
                "a batch has no more requests in flight than its depth"
            );
            true
        }
        None => {
            shard.leave_file(file);
            false
        }
    }
}

/// Refuses every batch that has not ended; at a shard's end.
pub(crate) fn refuse_all(shard: &Shard, failure: OpFailure) {
    let batches = shard.batches.with(|batches| {
        batches.blocked.clear();
        batches.free.clear();
        std::mem::take(&mut batches.list)
    });
    for batch in batches.into_iter().flatten() {
        if !batch.done.load(Ordering::Relaxed) {
            batch.refuse(failure);
        }
    }
}
