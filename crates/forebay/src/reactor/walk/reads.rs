//! The reads that a step requested, from their check to the block: recorded in the walk's slot, staged, and
//! cancelled.

use std::ops::Range;

use super::lifecycle::arrived;
use super::step::Ranges;
use super::table::{Owner, WalkRead, WalkState};
use crate::base::error::{Error, ErrorKind};
use crate::io::op::{Durability, Flush, OpBuffer, OpFailure, OpKind, OpOutcome, OpRequest};
use crate::memory::block::Block;
use crate::reactor::page_cache::from_page_cache;
use crate::reactor::ranges::{AlignedRange, cut};
use crate::reactor::shard::Shard;
use crate::reactor::shard::optable::Continuation;

/// The reason why a step's request is refused, and the range concerned.
pub(crate) type Refusal = (Error, Option<Range<u64>>);

/// Checks the ranges that a step requests after `hops` hops.
pub(crate) fn check_request(asked: &Ranges, hops: u32, hops_max: u32, grain: u32) -> Result<(), Refusal> {
    // The hop that is refused is the next one.
    let refused = |error: Error, range| Err((error.of("walk").with_hop(hops.saturating_add(1)), range));
    let Some(first) = asked.iter().next() else {
        return refused(Error::invalid("walk", "the step asks for no range at all"), None);
    };
    if asked.is_too_many() {
        return refused(
            Error::invalid("walk", "the step asks for more than 16 ranges; ask for the rest in a later step"),
            None,
        );
    }
    if hops >= hops_max {
        return refused(Error::new(ErrorKind::TooManyHops { limit: hops_max }, "walk"), Some(first));
    }
    for range in asked.iter() {
        match AlignedRange::of(&range, grain) {
            Ok(_) if !range.is_empty() => {}
            Ok(_) => return refused(Error::invalid("walk", "the range is empty"), Some(range)),
            Err(error) => return refused(error, Some(range)),
        }
    }
    Ok(())
}

/// Checks the ranges and records them in the slot. Returns false if the walk no longer has a waiter.
pub(crate) fn place_reads(shard: &Shard, index: u32, asked: &Ranges) -> Result<bool, Refusal> {
    let (file, owned, hops, hops_max) = shard.walks.with(|walks| {
        let slot = walks.slot(index);
        (slot.file, !matches!(slot.owner, Owner::Nobody), slot.hops, slot.hops_max)
    });
    if !owned {
        return Ok(false);
    }
    let grain = shard.file_target(file).map_or(1, |target| target.read_grain);
    check_request(asked, hops, hops_max, grain)?;
    shard.account.with(|account| account.walks.hops += 1);
    shard.walks.with(|walks| {
        let turn = walks.turn;
        let slot = walks.slot(index);
        debug_assert_eq!(
            (slot.state, slot.coming),
            (WalkState::Stepping, 0),
            "a step's reads replace all before"
        );
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

/// Requests each pending block that was not requested yet: from the page cache, otherwise from the device.
pub(crate) fn stage_all(shard: &Shard, index: u32) {
    let (file, class, unasked) = shard.walks.with(|walks| {
        let slot = walks.slot(index);
        (slot.file, slot.class, slot.unasked)
    });
    let Some(target) = shard.file_target(file) else { return };
    let cached = if target.is_cached { shard.file_core(file) } else { None };
    for place in (0..u16::BITS).filter(|place| unasked & (1 << place) != 0) {
        let range = shard.walks.with(|walks| walks.slot(index).reads[place as usize].range());
        // Checked by `place_reads`.
        let Ok(wide) = AlignedRange::of(&range, target.read_grain) else { continue };
        if let Some(core) = &cached
            && let Some(block) = from_page_cache(core, &range)
        {
            shard.account.with(|account| account.walks.inline_blocks += 1);
            arrived(shard, index, place, OpOutcome { result: Ok(wide.len), buffer: OpBuffer::Shared(block) });
            continue;
        }
        let mut request = OpRequest {
            kind: OpKind::Read,
            class,
            durability: Durability::None,
            flush: Flush::Queued,
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
            debug_assert_ne!(slot.coming & (1 << place), 0, "reads are staged for blocks that are to come");
            debug_assert_eq!(slot.staged & (1 << place), 0, "each place has one read");
            slot.reads[place as usize].key = key;
            slot.staged |= 1 << place;
            true
        });
        if !found_room {
            return;
        }
    }
}

/// Cancels the reads that a walk has in flight; their completions reach no step.
pub(crate) fn drop_reads(shard: &Shard, index: u32) {
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

/// Returns the bytes of a read, exactly as many as requested.
pub(crate) fn block_of(
    shard: &Shard,
    file: u32,
    outcome: OpOutcome,
    range: &Range<u64>,
) -> Result<Block, Error> {
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
