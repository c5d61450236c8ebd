//! Long ranges of a batch: read in parts, each to its place in memory of the range's own length.
//!
//! The memory is the program's, where the batch reads into it, else ordinary memory that becomes the result. The device writes to
//! it directly wherever file and memory are aligned to each other, in parts of up to 8 MiB that start at pages in both; the
//! engine's memory starts at the page of the range's first byte, so there that is all of it. The rest is copied through I/O memory.
//! A batch has up to `DEPTH` parts in flight, because the kernel looks for the pages of each on the shard's thread.
//!
//! *Owner*: the batch, by its progress; a part that is in flight has a count of the memory in its slot. *Limit*: a range in the
//! engine's memory reserves its length of the line's allowance until it has ended (`memory/arena/line.rs`); the batch waits for
//! that before it starts its next request.

use std::ops::Range;
use std::sync::Arc;

use super::batch::{Batch, PART};
use super::range_error;
use crate::base::error::{Error, ErrorKind, Result};
use crate::io::op::{OpBuffer, OpFailure, OpKind, OpOutcome};
use crate::memory::arena::{Arena, BUFFER_BYTES_MIN, UnderWay};
use crate::memory::block::Block;
use crate::memory::lent::{Lender, LentMemory, Room};
use crate::reactor::ranges::{AlignedRange, BOUNCE_BYTES, middle};
use crate::reactor::shard::Shard;

/// The most parts of a batch in flight.
const DEPTH: u32 = 8;

/// The long ranges of a batch that have started and not ended.
#[derive(Default)]
pub(crate) struct LongRanges {
    list: Vec<Option<LongRange>>,
    /// The range whose parts have not all started.
    current: Option<usize>,
    parts: Vec<Option<Part>>,
    in_flight: u32,
}

struct LongRange {
    number: u32,
    /// The bytes of the file that are read, and the next one.
    bytes: Range<u64>,
    next: u64,
    /// The bytes that the device writes to their place.
    direct: Range<u64>,
    part_bytes: u64,
    /// Memory for the bytes from `origin` on.
    memory: LentMemory,
    origin: u64,
    own: Option<Own>,
    /// Parts that have started and not ended.
    parts: u32,
    /// Where the file ended, if a part found that out.
    file_end: Option<u64>,
    error: Option<Error>,
}

/// Memory of the engine's own for a result.
struct Own {
    lender: Arc<Lender<Room>>,
    _under_way: UnderWay,
}

/// One request for a part of a long range.
#[derive(Clone)]
pub(crate) struct Part {
    range: usize,
    pub(crate) place: AlignedRange,
    /// The bytes that are copied to their place; `None` where the device writes there.
    copied: Option<Range<u64>>,
}

impl LongRanges {
    /// Returns whether a part may start now; `None` if no parts are left.
    pub(super) fn may_begin(&self) -> Option<bool> {
        self.current.map(|_| self.in_flight < DEPTH)
    }

    /// Returns the number of the range whose parts have not all started.
    pub(super) fn current_number(&self) -> Option<u32> {
        self.list[self.current?].as_ref().map(|long| long.number)
    }

    pub(super) fn part(&self, piece: u32) -> Option<&Part> {
        self.parts.get((piece & !PART) as usize)?.as_ref()
    }

    /// Returns the number of the range of a part.
    pub(super) fn number_of(&self, piece: u32) -> Option<u32> {
        let part = self.part(piece)?;
        self.list[part.range].as_ref().map(|long| long.number)
    }

    /// Returns the memory that a part's request names; `None` for a copied part.
    pub(super) fn memory_of(&self, part: &Part) -> Option<LentMemory> {
        let long = self.list[part.range].as_ref().filter(|_| part.copied.is_none())?;
        Some(long.memory.from((part.place.offset - long.origin) as usize))
    }

    pub(super) fn note_staged(&mut self) {
        self.in_flight += 1;
    }

    pub(super) fn note_ended(&mut self) {
        self.in_flight -= 1;
    }

    /// Makes the next part of the current range; returns its name as a piece.
    pub(super) fn next_part(&mut self, grain: u32) -> Option<u32> {
        let at = self.current?;
        let long = self.list[at].as_mut()?;
        let start = long.next;
        let part = if long.direct.contains(&start) {
            let len = (long.direct.end - start)
                .min(long.part_bytes - (start - long.direct.start) % long.part_bytes);
            Part { range: at, place: AlignedRange { offset: start, len: len as u32 }, copied: None }
        } else {
            let most = (start / BOUNCE_BYTES + 1) * BOUNCE_BYTES;
            let end = if start < long.direct.start { long.direct.start } else { long.bytes.end };
            let bytes = start..end.min(most);
            Part { range: at, place: AlignedRange::of(&bytes, grain).ok()?, copied: Some(bytes) }
        };
        long.next =
            part.copied.as_ref().map_or(part.place.offset + u64::from(part.place.len), |bytes| bytes.end);
        long.parts += 1;
        if long.next >= long.bytes.end {
            self.current = None;
        }
        let place = self.parts.iter().position(Option::is_none).unwrap_or(self.parts.len());
        if place == self.parts.len() {
            self.parts.push(None);
        }
        self.parts[place] = Some(part);
        Some(PART | place as u32)
    }

    /// Ends a part. Returns its range's number and result if that was the last one.
    pub(super) fn end_part(
        &mut self,
        batch: &Batch,
        piece: u32,
        outcome: OpOutcome,
    ) -> Option<(u32, Result<Block>)> {
        let part = self.parts.get_mut((piece & !PART) as usize)?.take()?;
        let at = part.range;
        let long = self.list[at].as_mut()?;
        long.parts -= 1;
        match outcome.result {
            Ok(bytes) => long.take(&part, u64::from(bytes), &outcome.buffer),
            Err(failure) => {
                let error = failure.into_error("read_many", Some(batch.file_of(long.number)));
                long.error.get_or_insert(range_error(batch, error, long.number));
            }
        }
        // A count of the memory.
        drop(outcome);
        if (long.error.is_some() || long.file_end.is_some()) && self.current == Some(at) {
            self.current = None;
            long.next = long.bytes.end;
        }
        if long.parts > 0 || long.next < long.bytes.end {
            return None;
        }
        let long = self.list[at].take()?;
        Some((long.number, long.finish(batch)))
    }

    /// Starts a range of at least one byte. Returns false if others have the line's allowance.
    pub(super) fn begin(
        &mut self,
        shard: &Shard,
        batch: &Batch,
        number: u32,
        ticket: &mut Option<crate::memory::arena::Ticket>,
    ) -> Result<bool, OpFailure> {
        let range = batch.plan.ranges.get(number).clone();
        let alignment = batch.file_of(number).alignment();
        let grain = u64::from(alignment.read_offset.max(1));
        let part_bytes = (batch.plan.part_bytes / grain * grain).max(grain);
        let long = match batch.destination(number) {
            Some(memory) => {
                let len = range.end - range.start;
                let address = memory.start().as_ptr().addr() as u64;
                let direct = middle(alignment, OpKind::Read, range.start, len, address);
                let direct = range.start + direct.start..range.start + direct.end;
                LongRange::new(number, range.clone(), direct, part_bytes, memory, range.start)
            }
            None => {
                let unit = grain.max(BUFFER_BYTES_MIN as u64);
                let bytes = range.start / unit * unit..range.end.next_multiple_of(grain);
                let len =
                    usize::try_from(bytes.end - bytes.start).map_err(|_| OpFailure::Errno(libc::ENOMEM))?;
                let Some(under_way) = shard.engine().arena.enter_line(shard.index(), len, ticket) else {
                    return Ok(false);
                };
                // No limit of the engine's: the system has no memory of this length.
                let room =
                    shard.engine().arena.alloc_result(len).map_err(|_| OpFailure::Errno(libc::ENOMEM))?;
                let (lender, memory, _) = Lender::new(Room::new(room, len), &shard.engine().releases);
                let mut long =
                    LongRange::new(number, bytes.clone(), bytes.clone(), part_bytes, memory, bytes.start);
                long.own = Some(Own { lender, _under_way: under_way });
                long
            }
        };
        let at = self.list.iter().position(Option::is_none).unwrap_or(self.list.len());
        if at == self.list.len() {
            self.list.push(None);
        }
        self.list[at] = Some(long);
        debug_assert!(self.current.is_none(), "one range after the other begins its parts");
        self.current = Some(at);
        Ok(true)
    }
}

impl LongRange {
    fn new(
        number: u32,
        bytes: Range<u64>,
        direct: Range<u64>,
        part_bytes: u64,
        memory: LentMemory,
        origin: u64,
    ) -> LongRange {
        LongRange {
            number,
            next: bytes.start,
            bytes,
            direct,
            part_bytes,
            memory,
            origin,
            own: None,
            parts: 0,
            file_end: None,
            error: None,
        }
    }

    /// Accepts `bytes` bytes that a part's request has read.
    fn take(&mut self, part: &Part, bytes: u64, buffer: &OpBuffer) {
        let AlignedRange { offset, len } = part.place;
        if bytes < u64::from(len) {
            let end = offset + bytes;
            self.file_end = Some(self.file_end.map_or(end, |known| known.min(end)));
        }
        if let (Some(copied), OpBuffer::Buffer(buffer)) = (&part.copied, buffer) {
            let len = (offset + bytes).min(copied.end).saturating_sub(copied.start) as usize;
            let skip = (copied.start - offset) as usize;
            debug_assert!(skip + len <= buffer.capacity(), "a request's bytes fit into its buffer");
            // SAFETY: the device filled `bytes` from the buffer's start, and the memory has the range's bytes, which no other request
            // moves.
            unsafe {
                let place = self.memory.from((copied.start - self.origin) as usize).start();
                place.as_ptr().copy_from_nonoverlapping(buffer.as_ptr().add(skip), len);
            }
        }
    }

    fn finish(mut self, batch: &Batch) -> Result<Block> {
        let range = batch.plan.ranges.get(self.number).clone();
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if let Some(end) = self.file_end.filter(|end| *end < range.end) {
            let got = end.saturating_sub(range.start);
            return Err(range_error(
                batch,
                Error::new(ErrorKind::UnexpectedEof { got }, "read_many"),
                self.number,
            ));
        }
        let Some(own) = self.own.take() else { return Ok(Block::default()) };
        // The range's own count of the memory.
        self.memory = LentMemory::nothing();
        let buffer = Lender::into_owner(own.lender).and_then(Room::into_buffer);
        let (skip, len) = ((range.start - self.origin) as usize, (range.end - range.start) as usize);
        // SAFETY: all bytes of the range were read, and no request has the memory any more.
        let block = buffer.map(|buffer| unsafe { buffer.into_block(skip, len) });
        block.ok_or_else(|| range_error(batch, Error::os("read_many", libc::EIO), self.number))
    }
}

/// Returns the length from which on a batch reads a range in parts of that length.
pub(crate) fn part_bytes(arena: &Arena) -> u64 {
    (arena.short_bytes_max() as u64 / BUFFER_BYTES_MIN as u64 * BUFFER_BYTES_MIN as u64)
        .min(crate::reactor::ranges::PART_BYTES)
}
