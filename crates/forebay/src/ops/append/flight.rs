//! The writes of an append that are in flight.

use std::task::{Context, Poll};

use crate::base::class::Class;
use crate::base::error::{Error, Result};
use crate::handle::file::File;
use crate::io::op::{OpBuffer, OpKind, OpOutcome, OpRequest};
use crate::ops::submit::{OpFuture, Target};

/// Writes in flight, at most `depth`. Their order does not matter: they do not overlap.
pub(super) struct Flight {
    writes: Vec<InFlight>,
    depth: usize,
    bytes: u64,
}

struct InFlight {
    op: OpFuture<'static>,
    place: FileRange,
}

/// A write's offset and length in the file, in bytes.
#[derive(Clone, Copy)]
struct FileRange {
    offset: u64,
    len: u32,
}

impl Flight {
    pub(super) fn new(depth: usize) -> Flight {
        Flight { writes: Vec::with_capacity(depth), depth, bytes: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.writes.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether a write at `offset` may be sent while these are in flight. An overlapping write may not: it occurs at the
    /// padded end of the file, when that unit is written again.
    pub(super) fn has_room(&self, offset: u64) -> bool {
        let overlaps = |write: &InFlight| write.place.offset + u64::from(write.place.len) > offset;
        self.writes.len() < self.depth && !self.writes.iter().any(overlaps)
    }

    /// Sends a write of the first `len` bytes of `buffer`.
    pub(super) fn begin(
        &mut self,
        context: &mut Context<'_>,
        file: &File,
        class: Class,
        offset: u64,
        len: u32,
        buffer: OpBuffer,
    ) -> Result<()> {
        let request = OpRequest::new(OpKind::Write, class, offset, len, buffer);
        let mut op = OpFuture::new(Target::Owned(file.core().clone()), request);
        let place = FileRange { offset, len };
        match op.poll_outcome(context) {
            Poll::Ready(outcome) => place.judge(outcome, file),
            Poll::Pending => {
                self.writes.push(InFlight { op, place });
                debug_assert!(self.writes.len() <= self.depth, "no more writes are in flight than the depth");
                self.bytes += u64::from(len);
                Ok(())
            }
        }
    }

    /// Removes the writes that have completed, and has `context` woken by each of the others. Returns the
    /// first failure seen.
    pub(super) fn reap(&mut self, context: &mut Context<'_>, file: &File) -> Result<()> {
        let mut first = Ok(());
        let mut index = 0;
        while let Some(write) = self.writes.get_mut(index) {
            match write.op.poll_outcome(context) {
                Poll::Pending => index += 1,
                Poll::Ready(outcome) => {
                    let over = self.writes.swap_remove(index);
                    self.bytes -= u64::from(over.place.len);
                    first = first.and(over.place.judge(outcome, file));
                }
            }
        }
        debug_assert!(self.bytes == 0 || !self.writes.is_empty(), "bytes in flight belong to a write");
        first
    }
}

impl FileRange {
    fn judge(self, outcome: OpOutcome, file: &File) -> Result<()> {
        let failed = |error: Error| Err(error.with_range(self.offset, u64::from(self.len)));
        match outcome.result {
            Ok(bytes) if bytes == self.len => Ok(()),
            // The core resolves short writes; one that got here would be lost data.
            Ok(_) => failed(file.core().describe(Error::os("append", libc::EIO))),
            Err(failure) => failed(failure.into_error("append", Some(file.core()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::{Config, Engine, Open};

    #[test]
    fn what_overlaps_waits_until_the_write_was_seen_to_be_over() {
        let engine = Engine::start(Config::new()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = engine.open(dir.path().join("overlap"), Open::create().buffered()).wait().unwrap();
        let mut flight = Flight::new(2);
        let block = engine.block(4096).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        let buffer = OpBuffer::Mut(block);
        flight.begin(&mut context, &file, Class::DEFAULT, 8192, 4096, buffer).unwrap();
        assert!(!flight.has_room(8192) && !flight.has_room(12_287) && flight.has_room(12_288));
        crate::base::wait::block_on_any(std::future::poll_fn(|context| {
            flight.reap(context, &file).unwrap();
            if flight.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        }));
        assert!(flight.has_room(8192) && flight.bytes() == 0);
    }
}
