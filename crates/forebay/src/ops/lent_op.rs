//! Reads and writes of memory that the program lends, in as many requests as its place and length need.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::base::class::Class;
use crate::base::error::{Error, Result};
use crate::io::op::{Durability, Flush, OpBuffer, OpFailure, OpKind, OpRequest};
use crate::memory::lent::{IoMemory, Lender, LentMemory};
use crate::ops::submit::{FileRef, OpFuture};
use crate::reactor::page_cache::{TRY_BYTES_MAX, read_from_page_cache};
use crate::reactor::ranges::{AlignedRange, BOUNCE_BYTES, PART_BYTES, middle};

/// The most requests of one operation in flight.
const DEPTH: usize = 8;

/// An operation on lent memory.
///
/// Requests name the memory itself where device and kernel can use it: on a file through the page cache all of it; on a direct file
/// the whole blocks of the file whose place in memory is aligned. The ends, and all of it where no block is aligned, are copied
/// through I/O memory, `DEPTH x BOUNCE_BYTES` at a time. Parts that the page cache has are copied by the polls, one each.
pub(super) struct LentOp<'f, B: IoMemory> {
    core: FileRef<'f>,
    kind: OpKind,
    class: Class,
    durability: Durability,
    flush: Flush,
    memory: LentMemory,
    parts: VecDeque<Part<'f>>,
    /// The operation that ends it where no part does: a sync, or, for zero bytes, a check that file and engine are open.
    last: Option<OpFuture<'f>>,
    needs_last: bool,
    /// `None` once the owner was returned.
    lender: Option<Arc<Lender<B>>>,
    offset: u64,
    len: u64,
    /// The bytes of the memory that requests name themselves.
    middle: Range<u64>,
    /// Bytes that requests were made for, and bytes moved without a gap from the start.
    begun: u64,
    moved: u64,
    /// From here on the page cache is tried, before each request; `u64::MAX` where it never is.
    tries_from: u64,
    /// No more parts are started: the file has ended, or a part has failed.
    stops: bool,
    error: Option<Error>,
}

/// The request for one part of the memory.
struct Part<'f> {
    op: OpFuture<'f>,
    /// Place in the memory, and length.
    at: u64,
    len: u64,
    /// Bytes of its I/O memory before the part; `None` for a request that names the lent memory.
    skip: Option<usize>,
    moved: Option<u64>,
    /// It found no memory, and is made again when another part has returned its own.
    is_starved: bool,
    /// It was made again for ordinary memory.
    is_apart: bool,
}

impl<'f, B: IoMemory> LentOp<'f, B> {
    /// Lends `owner` to a read or a write at `offset`, which the caller has checked.
    pub(super) fn new(core: FileRef<'f>, kind: OpKind, offset: u64, owner: B) -> LentOp<'f, B> {
        let (lender, memory, len) = Lender::new(owner, &core.engine().releases);
        let len = len as u64;
        let tries = kind == OpKind::Read && (len <= TRY_BYTES_MAX || core.is_adaptive());
        let middle = middle(core.alignment(), kind, offset, len, memory.start().as_ptr().addr() as u64);
        LentOp {
            core,
            kind,
            class: Class::OF_TASK,
            durability: Durability::None,
            flush: Flush::Queued,
            memory,
            parts: VecDeque::new(),
            last: None,
            needs_last: len == 0,
            lender: Some(lender),
            offset,
            len,
            middle,
            begun: 0,
            moved: 0,
            tries_from: if tries { 0 } else { u64::MAX },
            stops: false,
            error: None,
        }
    }

    pub(super) fn set_class(&mut self, class: Class) {
        self.class = class;
    }

    pub(super) fn set_durability(&mut self, durability: Durability) {
        self.durability = durability;
    }

    pub(super) fn set_flush(&mut self, flush: Flush) {
        self.flush = flush;
    }

    pub(super) fn into_owned(mut self) -> LentOp<'static, B> {
        let core = self.core.clone().into_owned();
        let own = |op: OpFuture<'f>| op.into_owned(core.target());
        let parts = std::mem::take(&mut self.parts).into_iter();
        let parts = parts.map(|part| Part { op: own(part.op), ..part }).collect();
        let last = self.last.take().map(own);
        LentOp {
            kind: self.kind,
            class: self.class,
            durability: self.durability,
            flush: self.flush,
            memory: self.memory,
            parts,
            last,
            needs_last: self.needs_last,
            lender: self.lender.take(),
            offset: self.offset,
            len: self.len,
            middle: self.middle,
            begun: self.begun,
            moved: self.moved,
            tries_from: self.tries_from,
            stops: self.stops,
            error: self.error.take(),
            core,
        }
    }

    pub(super) fn describe(&self, debug: &mut fmt::DebugStruct<'_, '_>) {
        debug.field("path", &self.core.path()).field("place", &(self.offset, self.len));
    }

    /// Returns the number of bytes moved, or the error, and the owner.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<(Result<u64>, B)> {
        if self.lender.is_none() {
            let error = Error::invalid(self.name(), "polled again after it had completed");
            return Poll::Ready((Err(error), B::default()));
        }
        let mut may_copy = true;
        loop {
            let has_turn = self.begin_parts(&mut may_copy);
            let progressed = self.poll_parts(context);
            if self.parts.is_empty() && (self.stops || self.begun >= self.len) {
                break;
            }
            if !has_turn {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if !progressed {
                return Poll::Pending;
            }
        }
        if self.error.is_none() && self.needs_last {
            std::task::ready!(self.poll_last(context));
        }
        let result = match self.error.take() {
            Some(error) => Err(error),
            None => Ok(self.moved),
        };
        Poll::Ready((result, self.take_owner()))
    }

    /// Returns whether one request serves it.
    pub(super) fn is_one_part(&self) -> bool {
        self.middle == (0..self.len) && self.len <= PART_BYTES
            || self.middle.is_empty() && self.len <= BOUNCE_BYTES / 2
    }

    /// Returns the owner; the default where it was lost, or is with requests still.
    pub(super) fn take_owner(&mut self) -> B {
        self.parts.clear();
        self.last = None;
        // The operation's own count of the memory.
        self.memory = LentMemory::nothing();
        self.lender.take().and_then(Lender::into_owner).unwrap_or_default()
    }

    fn name(&self) -> &'static str {
        if self.kind == OpKind::Read { "read" } else { "write" }
    }

    /// Copies `len` bytes from `at` on out of the page cache, if that has all of them.
    fn copy_cached(&self, at: u64, len: u64) -> bool {
        let range = self.offset + at..self.offset + at + len;
        // SAFETY: the lent memory has these bytes, and no request for them has been made.
        unsafe { read_from_page_cache(&self.core, &range, at > 0, self.memory.start().add(at as usize)) }
    }

    /// Starts parts. Returns false if the next one has to wait for another poll, because this one has copied a part.
    fn begin_parts(&mut self, may_copy: &mut bool) -> bool {
        while !self.stops && self.begun < self.len && self.parts.len() < DEPTH {
            let (at, begun) = (self.begun, self.parts.len());
            if at >= self.tries_from {
                if !*may_copy {
                    return false;
                }
                let len = (self.len - at).min(TRY_BYTES_MAX);
                if self.copy_cached(at, len) {
                    *may_copy = false;
                    self.begun += len;
                    if self.parts.is_empty() {
                        self.moved += len;
                    } else {
                        // Behind parts that are on their way.
                        let part = self.part(at, len, None, self.offset + at, len as u32, OpBuffer::None);
                        self.parts.push_back(Part { moved: Some(len), ..part });
                    }
                    continue;
                }
                self.tries_from = at + len;
            }
            match self.next_part(at) {
                Ok(part) => {
                    self.needs_last = part.len < self.len && self.durability != Durability::None;
                    self.begun += part.len;
                    self.parts.push_back(part);
                }
                // Parts in flight will release memory.
                Err(error) if error.is_out_of_memory() && begun > 0 => break,
                Err(error) => {
                    self.stops = true;
                    let error = self.core.describe(error).with_range(self.offset + at, self.len - at);
                    self.error.get_or_insert(error);
                }
            }
            debug_assert!(self.stops || self.parts.len() > begun);
        }
        true
    }

    /// Returns the request for the part at `at`.
    fn next_part(&self, at: u64) -> Result<Part<'f>> {
        let place = self.offset + at;
        let (len, skip, offset, wide_len, buffer) = if self.middle.contains(&at) {
            // No longer than the parts that are tried and loaded, where the page cache has a say.
            let most = if self.tries_from == u64::MAX { PART_BYTES } else { TRY_BYTES_MAX };
            let len = (self.middle.end - at).min(most);
            (len, None, place, len as u32, OpBuffer::Lent(self.memory.from(at as usize)))
        } else {
            let end = if at < self.middle.start { self.middle.start } else { self.len };
            let grain = u64::from(self.core.alignment().offset.max(1));
            // Later parts start at the file's blocks.
            let most = place - place % grain + BOUNCE_BYTES.max(grain) - place;
            let len = (end - at).min(most);
            if self.kind == OpKind::Read {
                let wide = AlignedRange::of(&(place..place + len), self.core.alignment().read_offset)?;
                (len, Some((place - wide.offset) as usize), wide.offset, wide.len, OpBuffer::Late)
            } else {
                // SAFETY: initialised memory, `at + len` bytes of it at least, that only requests to write read meanwhile.
                let bytes = unsafe {
                    std::slice::from_raw_parts(self.memory.from(at as usize).start().as_ptr(), len as usize)
                };
                let block = self.core.engine().block_from(self.name(), bytes)?;
                (len, Some(0), place, len as u32, OpBuffer::Mut(block))
            }
        };
        Ok(self.part(at, len, skip, offset, wide_len, buffer))
    }

    fn part(
        &self,
        at: u64,
        len: u64,
        skip: Option<usize>,
        offset: u64,
        wide_len: u32,
        buffer: OpBuffer,
    ) -> Part<'f> {
        let is_whole = len == self.len;
        let request = OpRequest {
            kind: self.kind,
            class: self.class,
            durability: if is_whole { self.durability } else { Durability::None },
            flush: self.flush,
            offset,
            len: wide_len,
            asked: len as u32,
            buffer,
        };
        Part {
            op: OpFuture::new(self.core.target(), request),
            at,
            len,
            skip,
            moved: None,
            is_starved: false,
            is_apart: false,
        }
    }

    /// Polls all parts, and finishes those at the front that have ended. Returns whether more may start.
    fn poll_parts(&mut self, context: &mut Context<'_>) -> bool {
        let name = self.name();
        let mut in_flight = self.parts.iter().filter(|part| part.moved.is_none() && !part.is_starved).count();
        let mut number = 0;
        // A part that lacked memory is retried for each part that has ended, at the latest when none is in flight.
        let mut returned = 0;
        while number < self.parts.len() {
            if self.parts[number].is_starved && (in_flight == 0 || returned > 0) {
                (in_flight, returned) = (in_flight + 1, returned.max(1) - 1);
                self.begin_again(number, in_flight == 1);
            }
            let part = &mut self.parts[number];
            number += 1;
            if part.moved.is_some() || part.is_starved {
                continue;
            }
            let Poll::Ready(result) = part.op.poll_result(context) else { continue };
            in_flight -= 1;
            let buffer = part.op.take_buffer();
            let moved = match result {
                Ok(bytes) => part.finish(u64::from(bytes), &buffer, &self.memory),
                // Alone it uses ordinary memory, which it needs for a copy only.
                Err(OpFailure::NoMemory) if in_flight > 0 || !part.is_apart => {
                    part.is_starved = true;
                    if in_flight == 0 {
                        number = 0;
                    }
                    continue;
                }
                Err(failure) => {
                    self.stops = true;
                    let error = failure.into_error(name, Some(&self.core));
                    let error = self.core.describe(error).with_range(self.offset + part.at, part.len);
                    self.error.get_or_insert(error);
                    0
                }
            };
            part.moved = Some(moved);
            returned += 1;
            if self.parts.iter().any(|part| part.is_starved) {
                number = 0;
            }
        }
        let before = self.parts.len();
        while let Some(part) = self.parts.front()
            && let Some(moved) = part.moved
        {
            // Behind the end of the file nothing counts.
            if part.at == self.moved {
                self.moved += moved;
            }
            self.stops |= moved < part.len;
            self.parts.pop_front();
        }
        self.parts.len() < before
    }

    /// Makes the request of a read again that found no memory.
    fn begin_again(&mut self, number: usize, is_alone: bool) {
        let (at, len, skip) = (self.parts[number].at, self.parts[number].len, self.parts[number].skip);
        let place = self.offset + at;
        if let Ok(wide) = AlignedRange::of(&(place..place + len), self.core.alignment().read_offset) {
            let buffer = if is_alone { OpBuffer::LateApart } else { OpBuffer::Late };
            self.parts[number] =
                Part { is_apart: is_alone, ..self.part(at, len, skip, wide.offset, wide.len, buffer) };
        }
    }

    /// Syncs a durable write of several parts.
    fn poll_last(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let core = &self.core;
        let last = self.last.get_or_insert_with(|| {
            let kind = self.durability.sync_kind().unwrap_or(OpKind::Nop);
            OpFuture::new(core.target(), OpRequest::new(kind, self.class, 0, 0, OpBuffer::None))
        });
        if let Err(failure) = std::task::ready!(last.poll_result(context)) {
            let error = failure.into_error(self.name(), Some(core));
            self.error = Some(core.describe(error).with_range(self.offset, self.len));
        }
        Poll::Ready(())
    }
}

impl Part<'_> {
    /// Copies a bounced part to its place. Returns how many of its bytes the file had.
    fn finish(&self, bytes: u64, buffer: &OpBuffer, memory: &LentMemory) -> u64 {
        let moved = bytes.saturating_sub(self.skip.unwrap_or(0) as u64).min(self.len);
        if crate::_is_broken!(BounceNotCopied) {
            return moved;
        }
        if let (Some(skip), OpBuffer::Buffer(buffer)) = (self.skip, buffer) {
            debug_assert!(
                skip + moved as usize <= buffer.capacity(),
                "a request's bytes fit into its buffer"
            );
            // SAFETY: the device filled `bytes` from the buffer's start, and the lent memory has the part's bytes, which no
            // other request moves.
            unsafe {
                let place = memory.from(self.at as usize).start();
                place.as_ptr().copy_from_nonoverlapping(buffer.as_ptr().add(skip), moved as usize);
            }
        }
        moved
    }
}
