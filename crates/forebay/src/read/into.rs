//! Reading into the caller's memory.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::operation;
use super::range::{Widened, empty};
use crate::block::BlockMut;
use crate::class::Class;
use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::op::{Durability, Flush, OpBuffer, OpKind, OpRequest};
use crate::shard;
use crate::submit::{OpFuture, Target};
use crate::wait;

/// A read into the caller's memory; see [`File::read_into`].
#[must_use = "a read begins only when it is awaited or waited for"]
pub struct ReadInto<'f> {
    file: &'f File,
    offset: u64,
    block: BlockMut,
    class: Option<Class>,
}

operation!(ReadInto);

impl<'f> ReadInto<'f> {
    pub(crate) fn new(file: &'f File, offset: u64, block: BlockMut) -> ReadInto<'f> {
        ReadInto { file, offset, block, class: None }
    }

    /// Blocks the calling thread until the bytes are there; the block comes back in every case.
    pub fn wait(self) -> (Result<usize>, BlockMut) {
        match wait::refusal() {
            Some(kind) => (Err(Error::new(kind, "read")), self.block),
            None => wait::block_on_any(self.into_future()),
        }
    }
}

impl<'f> IntoFuture for ReadInto<'f> {
    type Output = (Result<usize>, BlockMut);
    type IntoFuture = ReadIntoFuture<'f>;

    fn into_future(self) -> ReadIntoFuture<'f> {
        let core = self.file.core();
        let range = self.offset..self.offset.saturating_add(self.block.len() as u64);
        let grain = core.alignment().read_offset;
        let fault = match Widened::of(&range, grain) {
            Err(fault) => Some(fault),
            Ok(_) if range.is_empty() => empty(core).err(),
            Ok(widened)
                if widened.offset != range.start || u64::from(widened.len) != range.end - range.start =>
            {
                Some(Error::new(ErrorKind::Misaligned { needed: grain }, "read"))
            }
            Ok(_) => None,
        };
        let state = match fault {
            Some(fault) => {
                let fault = core.describe(fault).with_range(range.start, range.end - range.start);
                IntoState::Known(Some((Err(fault), self.block)))
            }
            None if range.is_empty() => IntoState::Known(Some((Ok(0), self.block))),
            None => IntoState::Op(OpFuture::new(
                Target::File(core),
                OpRequest {
                    kind: OpKind::Read,
                    class: self.class.unwrap_or_else(shard::class),
                    durability: Durability::None,
                    flush: Flush::Queued,
                    offset: range.start,
                    len: self.block.len() as u32,
                    asked: self.block.len() as u32,
                    buffer: OpBuffer::Mut(self.block),
                },
            )),
        };
        ReadIntoFuture { file: self.file, range, state }
    }
}

/// The future of [`ReadInto`]. When it is dropped early, the block stays with the engine.
#[must_use = "futures do nothing unless awaited"]
pub struct ReadIntoFuture<'f> {
    file: &'f File,
    range: Range<u64>,
    state: IntoState<'f>,
}

enum IntoState<'f> {
    Known(Option<(Result<usize>, BlockMut)>),
    Op(OpFuture<'f>),
}

impl Future for ReadIntoFuture<'_> {
    type Output = (Result<usize>, BlockMut);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let describe = |error: Error| {
            this.file.core().describe(error).with_range(this.range.start, this.range.end - this.range.start)
        };
        let (result, buffer) = match &mut this.state {
            IntoState::Known(known) => {
                return Poll::Ready(known.take().unwrap_or_else(|| {
                    let error = Error::invalid("read", "this read was polled again after it had answered");
                    (Err(error), BlockMut::default())
                }));
            }
            IntoState::Op(op) => (std::task::ready!(op.poll_result(context)), op.take_buffer()),
        };
        let result = match result {
            Ok(bytes) => Ok(bytes as usize),
            Err(failure) => Err(describe(failure.into_error("read", Some(this.file.core())))),
        };
        Poll::Ready(match buffer {
            OpBuffer::Mut(block) => (result, block),
            // Lost with its shard.
            _ => (result, BlockMut::default()),
        })
    }
}

impl fmt::Debug for ReadIntoFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadIntoFuture").field("range", &self.range).finish_non_exhaustive()
    }
}
