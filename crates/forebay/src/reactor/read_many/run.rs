//! The batches of a shard: their start, their progress within the limits, and their end.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::batch::{Batch, Progress, SINGLE, is_part};
use super::range_error;
use crate::base::error::{Error, ErrorKind, Result};
use crate::io::op::{Durability, Flush, OpBuffer, OpFailure, OpKind, OpOutcome, OpRequest};
use crate::memory::arena::{Arena, Packer};
use crate::memory::block::Block;
use crate::memory::lent::LentMemory;
use crate::reactor::engine_shared::EngineShared;
use crate::reactor::open_file::FileCore;
use crate::reactor::ranges::AlignedRange;
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

/// Adds a batch to its shard's list and starts it; called on that shard.
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
    progress.depth = batch.depth;
    progress.begun = true;
    for &number in &batch.plan.empty {
        batch.put(number as usize, Ok(Block::default()));
    }
    for (number, fault) in &batch.plan.faulty {
        let copy = match fault.kind() {
            kind @ ErrorKind::TooLarge { .. } => Error::new(kind, "read_many"),
            _ => Error::invalid("read_many", "no file can have this range"),
        };
        batch.put(*number as usize, Err(range_error(&batch, copy, *number)));
    }
    go_on(shard, &batch);
}

/// Continues a batch that sent a notification: its consumer has consumed results, or was dropped.
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
            // SAFETY: on the batch's shard; no other reference to its progress is live here.
            unsafe { (*batch.progress.get()).is_blocked = false };
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
        if is_part(piece) {
            progress.long.note_ended();
        }
    }
    if !batch.cancelled.load(Ordering::Acquire) {
        take_piece(&batch, piece, outcome);
    }
    go_on(shard, &batch);
}

/// Notes whether a request found memory. Returns true if it did not and is to be made again: those in flight return theirs, or their
/// consumer does.
fn is_made_again(batch: &Batch, piece: u32, outcome: &OpOutcome) -> bool {
    // SAFETY: on the batch's shard; the reference ends with this function.
    let progress = unsafe { &mut *batch.progress.get() };
    match outcome.result {
        Ok(_) => progress.depth = batch.depth.min(progress.depth.saturating_add(1)),
        Err(OpFailure::NoMemory) if progress.in_flight > 0 => {
            progress.depth = progress.in_flight;
            progress.again.push_back(piece);
            return true;
        }
        Err(OpFailure::NoMemory) if batch.has_destination() && progress.apart != Some(piece) => {
            progress.apart = Some(piece);
            // Before the others, which would use up its turn.
            progress.again.push_front(piece);
            return true;
        }
        Err(_) => {}
    }
    false
}

/// Ends a part of a long range.
fn take_part(batch: &Batch, piece: u32, outcome: OpOutcome) {
    // SAFETY: on the batch's shard; the reference ends with this statement.
    let ended = unsafe { &mut (*batch.progress.get()).long }.end_part(batch, piece, outcome);
    if let Some((number, result)) = ended {
        batch.put(number as usize, result);
    }
}

fn take_piece(batch: &Arc<Batch>, piece: u32, outcome: OpOutcome) {
    if is_made_again(batch, piece, &outcome) {
        return;
    }
    if is_part(piece) {
        return take_part(batch, piece, outcome);
    }
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
                let error = failure.into_error("read_many", Some(batch.file_of(number)));
                batch.put(number as usize, Err(range_error(batch, error, number)));
            }
            return;
        }
    };
    let buffer = match outcome.buffer {
        OpBuffer::Buffer(buffer) => buffer,
        // Read into the program's memory itself.
        OpBuffer::Lent(_) => {
            for &number in members {
                batch.put(
                    number as usize,
                    whole_range(batch, number, place.offset, bytes).map(|_| Block::default()),
                );
            }
            return;
        }
        _ => return,
    };
    // SAFETY: the device filled that many bytes from the buffer's start.
    let whole = unsafe { buffer.into_block(0, bytes as usize) };
    let copies = batch.destination(members[0]).is_none() && copies_pay(batch, members, whole.pinned_bytes());
    let mut whole = Some(whole);
    for (at, &number) in members.iter().enumerate() {
        let result = whole_range(batch, number, place.offset, bytes).and_then(|part| {
            // The last range owns the whole, so that a request with one range needs no reference counting.
            let block = if at + 1 == members.len() { whole.take() } else { whole.clone() };
            let block = block.and_then(|whole| whole.into_slice(part));
            let block = block.map(|block| match batch.destination(number) {
                Some(place) => moved_to(&place, &block),
                None if copies => packed(batch, &block).unwrap_or(block),
                None => block,
            });
            block.ok_or_else(|| range_error(batch, Error::os("read_many", libc::EIO), number))
        });
        batch.put(number as usize, result);
    }
}

/// Returns the place of a range in the `bytes` bytes that its request has read from `offset` on.
fn whole_range(batch: &Batch, number: u32, offset: u64, bytes: u32) -> Result<Range<usize>> {
    let range = batch.plan.ranges.get(number);
    let (start, end) = (range.start - offset, range.end - offset);
    if end > u64::from(bytes) {
        let got = u64::from(bytes).saturating_sub(start);
        return Err(range_error(batch, Error::new(ErrorKind::UnexpectedEof { got }, "read_many"), number));
    }
    Ok(start as usize..end as usize)
}

/// Copies a result to its place in the program's memory. The result is empty then.
fn moved_to(place: &LentMemory, block: &Block) -> Block {
    // SAFETY: the batch placed its ranges side by side in memory that is long enough, and the program does not use it before
    // the batch's end.
    unsafe { place.start().as_ptr().copy_from_nonoverlapping(block.as_ptr(), block.len()) };
    Block::default()
}

/// Returns the place in the program's memory to which the device can read a request as it is.
fn direct_place(batch: &Batch, members: &[u32], place: AlignedRange) -> Option<LentMemory> {
    let [number] = *members else { return None };
    let lent = batch.destination(number)?;
    let range = batch.plan.ranges.get(number);
    let unit = batch.file_of(number).alignment().memory.max(1) as usize;
    let is_whole = place.offset == range.start && u64::from(place.len) == range.end - range.start;
    (is_whole && lent.start().as_ptr().addr().is_multiple_of(unit)).then_some(lent)
}

/// Returns whether the results of one request are copied out of its buffer, which serves the next request then, instead of
/// keeping it.
///
/// A copy costs a tenth of the device's time for the bytes. Mapping memory for results costs as much as the device, so kept results
/// should use no more of it than their length.
fn copies_pay(batch: &Batch, members: &[u32], pinned_bytes: usize) -> bool {
    let ranges = members.iter().map(|&number| batch.plan.ranges.get(number));
    let wanted_bytes: u64 = ranges.map(|range| range.end - range.start).sum();
    let spared_bytes = (pinned_bytes as u64).saturating_sub(wanted_bytes);
    if batch.detached && (members.len() > 1 || spared_bytes > DETACHED_SPARED_BYTES) {
        return true;
    }
    if !batch.collects() {
        // The consumer of a stream is likely to be done with a result soon.
        return spared_bytes >= pinned_bytes as u64 / STREAM_SPARED_PART * (STREAM_SPARED_PART - 1);
    }
    if !batch.detached && spared_bytes > pinned_bytes as u64 / COLLECT_SPARED_PART {
        return true;
    }
    // SAFETY: on the batch's shard; the reference ends with this function.
    let progress = unsafe { &mut *batch.progress.get() };
    let all_bytes = progress.kept_bytes + pinned_bytes;
    let arena = &batch.engine().arena;
    let is_little = all_bytes <= KEPT_BYTES_UNASKED.min(arena.bytes_max() / 16);
    let keeps =
        is_little || all_bytes <= *progress.kept_bytes_max.get_or_insert_with(|| kept_bytes_max(arena));
    if keeps {
        progress.kept_bytes = all_bytes;
    }
    !keeps
}

/// Returns the most I/O memory that the collected results of one batch keep: less where much is held already.
#[cold]
fn kept_bytes_max(arena: &Arena) -> usize {
    let half = arena.bytes_max() / 2;
    KEPT_BYTES_MAX.min(half / 2).min(half.saturating_sub(arena.counts().bytes_held))
}

/// Returns a copy of a result, behind the batch's other copies; `None` where the system has no memory.
fn packed(batch: &Batch, part: &Block) -> Option<Block> {
    // SAFETY: on the batch's shard; the reference ends with this function.
    let place = unsafe { &mut (*batch.progress.get()).packer };
    place.get_or_insert_with(|| packer(batch.engine(), !batch.collects(), batch.detached)).copy(part)
}

/// A stream's results are copied where that spares all but this part of their request's buffer.
const STREAM_SPARED_PART: u64 = 16;
/// Collected results are copied where that spares more than this part of their request's buffer.
const COLLECT_SPARED_PART: u64 = 8;
/// The most I/O memory that a batch's collected results keep; more are copied.
pub(crate) const KEPT_BYTES_MAX: usize = 16 << 20;
/// Up to here a batch keeps memory without a check of the arena's size.
const KEPT_BYTES_UNASKED: usize = 1 << 20;
/// Memory for the copies of collected results, which a program is likely to drop together. A little less than 64 pages: the
/// allocator's own bytes fit in addition.
const COLLECT_SLAB_BYTES: usize = (256 << 10) - 256;
/// Memory for the copies of a stream's results: one that is kept keeps this much from other use.
const STREAM_SLAB_BYTES: usize = (16 << 10) - 256;
/// Memory that a detached result may pin in addition to its own length.
const DETACHED_SPARED_BYTES: u64 = 4 << 10;
/// Memory for the copies of detached results: short results share it.
const DETACHED_SLAB_BYTES: usize = DETACHED_SPARED_BYTES as usize - 256;

/// Detached results of up to this many bytes share memory of a few times their length, so that thousands are not as many allocations.
const DETACHED_SHORT_BYTES_MAX: usize = 8 << 10;

/// Returns what lays the copies of a batch's results side by side.
pub(crate) fn packer(engine: &EngineShared, streams: bool, detached: bool) -> Packer {
    let (slab_bytes, short_bytes_max) = match (detached, streams) {
        (true, _) => (DETACHED_SLAB_BYTES, DETACHED_SHORT_BYTES_MAX),
        (false, true) => (STREAM_SLAB_BYTES, 0),
        (false, false) => (COLLECT_SLAB_BYTES, 0),
    };
    // A simulated world repeats itself: nothing in it may depend on real time.
    let may_be_huge = !streams && !detached && !engine.is_simulated();
    Packer::new(&engine.arena, slab_bytes, short_bytes_max, may_be_huge)
}

/// Delivers results, starts further requests within the limits, and ends the batch when nothing is left.
fn go_on(shard: &Shard, batch: &Arc<Batch>) {
    let cancelled = batch.cancelled.load(Ordering::Acquire);
    let mut delivered;
    loop {
        // In each iteration: a request that cannot even start puts its results behind the waiting results.
        delivered = cancelled || batch.drain_waiting();
        let (piece, retry) = {
            // SAFETY: on the batch's shard; the reference ends with this block.
            let progress = unsafe { &mut *batch.progress.get() };
            let left = progress.next_piece < batch.plan.pieces.len() as u32
                || !progress.split.is_empty()
                || !progress.again.is_empty()
                || progress.long.may_begin().is_some();
            if cancelled || !left {
                break;
            }
            if !delivered || progress.in_flight >= progress.depth.max(1) {
                batch.wake_consumer();
                return;
            }
            match (progress.again.pop_front(), progress.split.front().copied(), progress.long.may_begin()) {
                (Some(piece), ..) => (piece, true),
                (None, Some(order), _) => {
                    progress.split.pop_front();
                    (order | SINGLE, true)
                }
                (None, None, Some(false)) => {
                    batch.wake_consumer();
                    return;
                }
                (None, None, Some(true)) => match next_part(batch, progress) {
                    Some(piece) => (piece, true),
                    None => continue,
                },
                (None, None, None) => {
                    progress.next_piece += 1;
                    (progress.next_piece - 1, false)
                }
            }
        };
        let has_begun = match batch.plan.pieces.get(piece as usize).filter(|piece| batch.plan.is_long(piece))
        {
            Some(_) => begin_long(shard, batch, piece),
            None => stage(shard, batch, piece),
        };
        if !has_begun {
            // SAFETY: as the block above.
            let progress = unsafe { &mut *batch.progress.get() };
            if retry {
                progress.again.push_front(piece);
            } else {
                progress.next_piece -= 1;
            }
            if !std::mem::replace(&mut progress.is_blocked, true) {
                let place = progress.place;
                shard.batches.with(|batches| batches.blocked.push(place));
            }
            batch.wake_consumer();
            return;
        }
    }
    // SAFETY: on the batch's shard; the copies end the reference.
    let (in_flight, place) = unsafe { ((*batch.progress.get()).in_flight, (*batch.progress.get()).place) };
    if cancelled {
        // SAFETY: as above.
        unsafe { (*batch.progress.get()).ticket = None };
    }
    if in_flight == 0 && delivered {
        // SAFETY: as above. Of a cancelled batch some ranges have not ended.
        unsafe { (*batch.progress.get()).give_up() };
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

/// Returns the next part of the current long range; `None` after its last part.
fn next_part(batch: &Batch, progress: &mut Progress) -> Option<u32> {
    let number = progress.long.current_number()?;
    let grain = batch.plan.grains[batch.plan.ranges.file(number) as usize];
    progress.long.next_part(grain)
}

/// Starts a range that is read in parts; returns false if it has to wait for the line.
fn begin_long(shard: &Shard, batch: &Arc<Batch>, piece: u32) -> bool {
    let number = batch.members(piece)[0];
    // SAFETY: on the batch's shard; the reference ends with this statement.
    let Progress { long, ticket, .. } = unsafe { &mut *batch.progress.get() };
    match long.begin(shard, batch, number, ticket) {
        Ok(has_begun) => has_begun,
        Err(failure) => {
            let error = failure.into_error("read_many", Some(batch.file_of(number)));
            batch.put(number as usize, Err(range_error(batch, error, number)));
            true
        }
    }
}

/// Returns the file of a request, its place, the bytes requested of it, and the memory that it names.
fn request_of(batch: &Batch, piece: u32) -> Option<(&Arc<FileCore>, AlignedRange, u64, OpBuffer)> {
    // SAFETY: on the batch's shard; the copy ends the reference.
    let is_apart = unsafe { (*batch.progress.get()).apart } == Some(piece);
    let late = if is_apart { OpBuffer::LateApart } else { OpBuffer::Late };
    if is_part(piece) {
        // SAFETY: on the batch's shard; the reference ends with this function.
        let long = unsafe { &(*batch.progress.get()).long };
        let (part, number) = (long.part(piece)?, long.number_of(piece)?);
        let buffer = long.memory_of(part).map_or(late, OpBuffer::Lent);
        return Some((batch.file_of(number), part.place, u64::from(part.place.len), buffer));
    }
    let (members, place) = (batch.members(piece), batch.place_of(piece)?);
    let ranges = members.iter().map(|&number| batch.plan.ranges.get(number));
    let asked = ranges.map(|range| range.end - range.start).sum();
    let buffer = direct_place(batch, members, place).map_or(late, OpBuffer::Lent);
    Some((batch.file_of(members[0]), place, asked, buffer))
}

/// Puts one request into a slot; returns false if the op table is full.
fn stage(shard: &Shard, batch: &Arc<Batch>, piece: u32) -> bool {
    let is_part = is_part(piece);
    let Some((core, place, asked, buffer)) = request_of(batch, piece) else { return true };
    let file = match shard.enter_file(core) {
        Ok(file) => file,
        Err(failure) if is_part => {
            drop(buffer);
            take_part(batch, piece, OpOutcome::failed(failure));
            return true;
        }
        Err(failure) => {
            for &number in batch.members(piece) {
                let error = failure.into_error("read_many", Some(core));
                batch.put(number as usize, Err(range_error(batch, error, number)));
            }
            return true;
        }
    };
    let mut request = OpRequest {
        kind: OpKind::Read,
        class: batch.class,
        durability: Durability::None,
        flush: Flush::Queued,
        offset: place.offset,
        len: place.len,
        asked: asked.min(u64::from(u32::MAX)) as u32,
        buffer,
    };
    // SAFETY: on the batch's shard; the copy ends the reference.
    let continuation = Continuation::Batch { batch: unsafe { (*batch.progress.get()).place }, piece };
    match shard.stage(file, &mut request, || continuation) {
        Some(_) => {
            // SAFETY: on the batch's shard; the reference ends here.
            let progress = unsafe { &mut *batch.progress.get() };
            progress.in_flight += 1;
            if is_part {
                progress.long.note_staged();
            }
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
