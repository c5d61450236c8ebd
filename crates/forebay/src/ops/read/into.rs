//! Reading into the caller's memory.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::operation;
use super::range::empty;
use crate::base::class::Class;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::wait;
use crate::handle::file::File;
use crate::io::op::{Durability, Flush, OpBuffer, OpKind, OpRequest};
use crate::memory::block::BlockMut;
use crate::ops::submit::{FileRef, OpFuture};
use crate::reactor::ranges::Widened;

/// A read into the caller's memory, which begins when it is first polled; see [`File::read_into`].
///
/// When it is dropped between its first poll and its end, the block stays with the engine.
#[must_use = "a read begins only when it is awaited or waited for"]
pub struct ReadInto<'f> {
    inner: IntoRead<'f>,
}

operation!(ReadInto);

impl<'f> ReadInto<'f> {
    pub(crate) fn new(file: &'f File, offset: u64, block: BlockMut) -> ReadInto<'f> {
        let core = file.core();
        let range = offset..offset.saturating_add(block.len() as u64);
        let grain = core.alignment().read_offset;
        let fault = match Widened::of(&range, grain) {
            Err(fault) => Some(fault),
            Ok(widened)
                if widened.offset != range.start || u64::from(widened.len) != range.end - range.start =>
            {
                Some(Error::new(ErrorKind::Misaligned { needed: grain }, "read"))
            }
            Ok(_) => None,
        };
        let core = FileRef::Borrowed(core);
        let state = match fault {
            Some(fault) if !range.is_empty() || !matches!(fault.kind(), ErrorKind::Misaligned { .. }) => {
                let fault =
                    core.describe(fault).with_range(range.start, range.end.saturating_sub(range.start));
                State::Known(Some((Err(fault), block)))
            }
            _ if range.is_empty() => State::Empty(block),
            _ => State::Op(OpFuture::new(
                core.target(),
                OpRequest {
                    kind: OpKind::Read,
                    class: Class::OF_TASK,
                    durability: Durability::None,
                    flush: Flush::Queued,
                    offset: range.start,
                    len: block.len() as u32,
                    asked: block.len() as u32,
                    buffer: OpBuffer::Mut(block),
                },
            )),
        };
        ReadInto { inner: IntoRead { core, range, state } }
    }

    /// Blocks the calling thread until the bytes are there; returns the block in every case.
    pub fn wait(mut self) -> (Result<usize>, BlockMut) {
        match wait::refusal() {
            Some(kind) => (Err(Error::new(kind, "read")), self.inner.take_block()),
            None => wait::block_in_turn_on_any(self),
        }
    }
}

impl Future for ReadInto<'_> {
    type Output = (Result<usize>, BlockMut);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.inner.poll(context)
    }
}

struct IntoRead<'f> {
    core: FileRef<'f>,
    range: Range<u64>,
    state: State<'f>,
}

enum State<'f> {
    /// The result is there without a request to the device.
    Known(Option<(Result<usize>, BlockMut)>),
    /// Nothing to read; file and engine are checked to be open when it is polled.
    Empty(BlockMut),
    Op(OpFuture<'f>),
}

impl IntoRead<'_> {
    fn set_class(&mut self, class: Class) {
        if let State::Op(op) = &mut self.state
            && let Some(request) = op.options()
        {
            request.class = class;
        }
    }

    fn into_owned(self) -> IntoRead<'static> {
        let core = self.core.into_owned();
        let state = match self.state {
            State::Known(known) => State::Known(known),
            State::Empty(block) => State::Empty(block),
            State::Op(op) => State::Op(op.into_owned(core.target())),
        };
        IntoRead { core, range: self.range, state }
    }

    fn describe(&self, debug: &mut fmt::DebugStruct<'_, '_>) {
        debug.field("path", &self.core.path()).field("range", &self.range);
    }

    /// Returns the block of a read that has not begun or has completed; an empty one while the engine has it.
    fn take_block(&mut self) -> BlockMut {
        match &mut self.state {
            State::Known(known) => known.take().map(|(_, block)| block).unwrap_or_default(),
            State::Empty(block) => std::mem::take(block),
            State::Op(op) => match op.take_buffer() {
                OpBuffer::Mut(block) => block,
                _ => BlockMut::default(),
            },
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<(Result<usize>, BlockMut)> {
        let result = match &mut self.state {
            State::Known(known) => {
                return Poll::Ready(known.take().unwrap_or_else(|| {
                    let error = Error::invalid("read", "this read was polled again after it had completed");
                    (Err(error), BlockMut::default())
                }));
            }
            State::Empty(block) => {
                let block = std::mem::take(block);
                self.state = State::Known(None);
                let result = empty(&self.core).map(|_| 0);
                return Poll::Ready((result.map_err(|error| self.at_range(error)), block));
            }
            State::Op(op) => std::task::ready!(op.poll_result(context)),
        };
        let result = match result {
            Ok(bytes) => Ok(bytes as usize),
            Err(failure) => Err(self.at_range(failure.into_error("read", Some(&self.core)))),
        };
        // An empty block: the memory was lost with its shard.
        Poll::Ready((result, self.take_block()))
    }

    fn at_range(&self, error: Error) -> Error {
        self.core.describe(error).with_range(self.range.start, self.range.end - self.range.start)
    }
}
