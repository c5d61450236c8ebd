//! The core of an append, made of polls: the common part of its async methods and `AsyncWrite`.

use std::task::{Context, Poll, ready};

use super::AppendBuffer;
use super::flight::Flight;
use super::settle::Settlement;
use crate::base::class::Class;
use crate::base::error::{Error, Failure, Result};
use crate::handle::file::File;
use crate::io::op::{OpBuffer, OpFailure};
use crate::memory::arena::{AllocError, Buffer};
use crate::memory::block::Block;
use crate::ops::read::RangeRead;
use crate::ops::submit::OpFuture;

/// The builder's settings.
pub(super) struct Plan {
    pub(super) buffer_bytes: usize,
    pub(super) depth: usize,
    pub(super) offset: u64,
    pub(super) class: Class,
}

/// Accepts bytes, and keeps writes in flight.
pub(super) struct Writer {
    pub(super) file: File,
    pub(super) class: Class,
    /// The unit of a write: its offset and length must be multiples of it.
    pub(super) grain: u64,
    memory_grain: usize,
    buffer_bytes: u64,
    /// The offset of the next byte.
    pub(super) position: u64,
    /// The bytes before this are in writes that were started.
    pub(super) handed: u64,
    /// The offset of the first byte, while the bytes before it in its unit have not been read yet.
    head: Option<u64>,
    head_read: Option<RangeRead<'static>>,
    pub(super) filling: AppendBuffer,
    pub(super) flight: Flight,
    pub(super) settling: Settlement,
    pub(super) syncing: Option<OpFuture<'static>>,
    failure: Option<Failure>,
}

impl Writer {
    pub(super) fn new(file: File, plan: Plan) -> Writer {
        let alignment = file.alignment();
        let grain = u64::from(alignment.offset.max(1));
        let start = plan.offset - plan.offset % grain;
        Writer {
            class: plan.class,
            grain,
            memory_grain: alignment.memory.max(1) as usize,
            buffer_bytes: (plan.buffer_bytes as u64).next_multiple_of(grain),
            position: plan.offset,
            handed: plan.offset,
            head: (start != plan.offset).then_some(plan.offset),
            head_read: None,
            filling: AppendBuffer::new(start),
            flight: Flight::new(plan.depth),
            settling: Settlement::new(),
            syncing: None,
            failure: None,
            file,
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn in_flight_bytes(&self) -> u64 {
        self.flight.bytes()
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.flight.bytes() + self.filling.capacity() as u64
    }

    /// Accepts at least one byte, unless `bytes` is empty; returns the number.
    pub(super) fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        self.check(bytes.len())?;
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        ready!(self.poll_block(context))?;
        let taken = self.filling.copy(bytes)?;
        self.position += taken as u64;
        self.settling.forget_reads();
        if self.filling.is_full() {
            // If the write cannot be sent now, the next call waits for it.
            if let Poll::Ready(begun) = self.poll_hand_over_aligned(context) {
                begun?;
            }
        }
        Poll::Ready(Ok(taken))
    }

    /// Accepts all of `left`. While this is pending, `left` is the part still to be accepted.
    pub(super) fn poll_write_block(
        &mut self,
        context: &mut Context<'_>,
        left: &mut Block,
    ) -> Poll<Result<()>> {
        loop {
            self.check(left.len())?;
            if left.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let taken = match self.uncopied(left) {
                0 => ready!(self.poll_write(context, left))?,
                len => {
                    ready!(self.poll_write_uncopied(context, left, len))?;
                    len
                }
            };
            *left = left.slice(taken..).unwrap_or_default();
        }
    }

    /// Returns how many bytes of a block can be written right from it at this position.
    fn uncopied(&self, block: &Block) -> usize {
        if self.grain == 1 {
            return block.len();
        }
        let aligned = self.position.is_multiple_of(self.grain)
            && block.as_ptr().addr().is_multiple_of(self.memory_grain);
        // A block has at most 1 GiB, and a grain is far smaller.
        if aligned { block.len() - block.len() % self.grain as usize } else { 0 }
    }

    fn poll_write_uncopied(
        &mut self,
        context: &mut Context<'_>,
        block: &Block,
        len: usize,
    ) -> Poll<Result<()>> {
        if self.handed < self.position {
            ready!(self.poll_hand_over_aligned(context))?;
        }
        let offset = self.position;
        ready!(self.poll_room(context, offset))?;
        let Some(part) = block.slice(..len) else { return Poll::Ready(Ok(())) };
        self.position += len as u64;
        self.handed = self.position;
        // An aligned position shares its unit with no byte before it; a buffer without new bytes is released.
        drop(self.filling.take());
        self.filling.restart(self.position, &[]);
        self.settling.forget_reads();
        Poll::Ready(self.begin(context, offset, len, OpBuffer::Shared(part)))
    }

    /// Sends the filled buffer, which ends at a multiple of the file's unit.
    pub(super) fn poll_hand_over_aligned(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let offset = self.filling.start();
        ready!(self.poll_room(context, offset))?;
        let Some(block) = self.filling.take() else { return Poll::Ready(Ok(())) };
        let len = block.len();
        self.filling.restart(offset + len as u64, &[]);
        self.handed = self.position;
        Poll::Ready(self.begin(context, offset, len, OpBuffer::Mut(block)))
    }

    /// Ensures a buffer with space for at least one byte.
    fn poll_block(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            if self.filling.is_full() {
                ready!(self.poll_hand_over_aligned(context))?;
            }
            if self.filling.has_block() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_head(context))?;
            // Writes end at multiples of the buffer's size, so that all but the first are aligned to it.
            let full = (self.buffer_bytes - self.filling.start() % self.buffer_bytes) as usize;
            match self.memory(full) {
                Ok(buffer) => self.filling.give(buffer, full)?,
                Err(failure) if self.flight.is_empty() => {
                    return Poll::Ready(Err(failure.into_error("append", Some(self.file.core()))));
                }
                // Our own writes in flight will release memory.
                Err(_) => {
                    let before = self.flight.len();
                    self.reap(context)?;
                    if self.flight.len() == before {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    /// Allocates a buffer. Overflow memory is only for the case that no write in flight will release memory.
    fn memory(&self, len: usize) -> Result<Buffer, OpFailure> {
        let arena = &self.file.core().engine().arena;
        match arena.alloc_local(len) {
            Err(AllocError::NoMemory { .. }) if self.flight.is_empty() => Ok(arena.alloc_overflow(len)?),
            other => Ok(other?),
        }
    }

    /// Reads the bytes before an unaligned first byte in its unit, once.
    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let Some(at) = self.head else { return Poll::Ready(Ok(())) };
        let start = self.filling.start();
        let read = self
            .head_read
            .get_or_insert_with(|| RangeRead::owned(self.file.core().clone(), start..at, self.class));
        let found = ready!(read.poll(context));
        self.head_read = None;
        let found = self.noted(found)?;
        self.filling.carry_found(&found, (at - start) as usize);
        self.head = None;
        Poll::Ready(Ok(()))
    }

    /// Waits until a write at `offset` may be sent.
    pub(super) fn poll_room(&mut self, context: &mut Context<'_>, offset: u64) -> Poll<Result<()>> {
        ready!(self.poll_no_cut(context))?;
        self.reap(context)?;
        if self.flight.has_room(offset) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    pub(super) fn begin(
        &mut self,
        context: &mut Context<'_>,
        offset: u64,
        len: usize,
        buffer: OpBuffer,
    ) -> Result<()> {
        debug_assert!(
            offset.is_multiple_of(self.grain) && (len as u64).is_multiple_of(self.grain),
            "whole units go to the device: {len} bytes at {offset}"
        );
        debug_assert!(
            self.filling.start() <= self.position && self.handed <= self.position,
            "no more is handed over than the program has written"
        );
        // A buffer has at most 1 GiB.
        let begun = self.flight.begin(context, &self.file, self.class, offset, len as u32, buffer);
        self.noted(begun)
    }

    pub(super) fn reap(&mut self, context: &mut Context<'_>) -> Result<()> {
        let reaped = self.flight.reap(context, &self.file);
        self.noted(reaped)
    }

    /// Stores a failure, so that every later call fails too. Only a lack of memory, which costs no data, does
    /// not end the append.
    pub(super) fn noted<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && !error.is_out_of_memory()
        {
            self.failure.get_or_insert_with(|| Failure::of(error));
        }
        result
    }

    /// Fails when an earlier write failed, and when `more` bytes would end where no file can.
    pub(super) fn check(&self, more: usize) -> Result<()> {
        if let Some(failure) = &self.failure {
            return Err(self.file.core().describe(failure.again("an earlier write of this append failed")));
        }
        // The kernel's offsets are signed (off_t), and the padded end must fit as well.
        let end = self.position.checked_add(more as u64 + self.grain);
        if end.is_none_or(|end| end > i64::MAX as u64) {
            let note = format!("offset {} is beyond what a file can have", self.position);
            return Err(self.file.core().describe(Error::invalid("append", note)));
        }
        Ok(())
    }
}
