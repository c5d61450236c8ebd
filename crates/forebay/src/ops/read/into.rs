//! Reading into the caller's memory.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::base::class::Class;
use crate::base::error::{Error, Result};
use crate::base::wait;
use crate::handle::file::File;
use crate::io::op::{OpBuffer, OpKind, OpRequest};
use crate::memory::block::BlockMut;
use crate::memory::lent::IoMemory;
use crate::ops::lent_op::LentOp;
use crate::ops::submit::{FileRef, OpFuture};
use crate::reactor::ranges::{AlignedRange, check_range};

/// The future of [`File::read_into`]; the read starts when it is first polled.
///
/// When it is dropped between its first poll and its end, the memory stays with the engine until the kernel is done with it.
#[must_use = "a read begins only when it is awaited or waited for"]
pub struct ReadInto<'f, B: IoMemory = BlockMut> {
    core: FileRef<'f>,
    offset: u64,
    len: u64,
    state: State<'f, B>,
}

enum State<'f, B: IoMemory> {
    /// The result is there without a request to the device.
    Known(Option<Box<(Result<usize>, B)>>),
    /// I/O memory, which travels as it is.
    Op(OpFuture<'f>),
    /// In a box: a future of more than 128 bytes is moved by a call of memcpy.
    Lent(Box<LentOp<'f, B>>),
}

impl<'f, B: IoMemory> ReadInto<'f, B> {
    pub(crate) fn new(file: &'f File, offset: u64, mut owner: B) -> ReadInto<'f, B> {
        let core = FileRef::Borrowed(file.core());
        let len = owner.memory().1 as u64;
        let range = offset..offset.saturating_add(len);
        let wide = AlignedRange::of(&range, core.alignment().read_offset).ok();
        let is_as_it_is =
            wide.is_some_and(|wide| wide.offset == offset && u64::from(wide.len) == len && len > 0);
        let state = match check_range("read", &range, core.alignment().read_offset) {
            Err(fault) => State::Known(Some(Box::new((Err(core.describe(fault)), owner)))),
            Ok(()) => match is_as_it_is.then(|| owner.take_block()).flatten() {
                Some(block) => {
                    let buffer = OpBuffer::Mut(block);
                    let request = OpRequest::new(OpKind::Read, Class::OF_TASK, offset, len as u32, buffer);
                    State::Op(OpFuture::new(core.target(), request))
                }
                None => {
                    let op = LentOp::new(FileRef::Borrowed(file.core()), OpKind::Read, offset, owner);
                    State::Lent(Box::new(op))
                }
            },
        };
        ReadInto { core, offset, len, state }
    }

    /// Sets the class. Default: that of the task that polls first, [`Class::DEFAULT`] outside of shards and
    /// [scopes](Class::scope). Has no effect after the first poll.
    pub fn class(mut self, class: Class) -> Self {
        match &mut self.state {
            State::Known(_) => {}
            State::Op(op) => op.options().into_iter().for_each(|request| request.class = class),
            State::Lent(op) => op.set_class(class),
        }
        self
    }

    /// Converts the operation into one that owns a handle of the file instead of borrowing it, for tasks that need `'static`.
    /// Costs one or two atomic increments.
    pub fn owned(self) -> ReadInto<'static, B> {
        let core = self.core.into_owned();
        let state = match self.state {
            State::Known(known) => State::Known(known),
            State::Op(op) => State::Op(op.into_owned(core.target())),
            State::Lent(op) => State::Lent(Box::new(op.into_owned())),
        };
        ReadInto { core, offset: self.offset, len: self.len, state }
    }

    /// Blocks the calling thread until the read completes; returns the memory in every case.
    ///
    /// # Errors
    /// Those of [`File::read_into`]; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread.
    pub fn wait(mut self) -> (Result<usize>, B) {
        if let Some(kind) = wait::refusal() {
            return (Err(Error::new(kind, "read")), self.take_owner());
        }
        // Parts of a long read should be in flight together.
        match &self.state {
            State::Lent(op) if !op.is_one_part() => wait::block_on_any(self),
            _ => wait::block_in_turn_on_any(self),
        }
    }

    /// Returns the memory of a read that has not started or has completed; the default while the engine has it.
    fn take_owner(&mut self) -> B {
        match &mut self.state {
            State::Known(known) => known.take().map(|known| known.1).unwrap_or_default(),
            State::Op(op) => {
                let mut owner = B::default();
                // Otherwise it was lost with its shard.
                if let OpBuffer::Mut(block) = op.take_buffer() {
                    owner.put_block(block);
                }
                owner
            }
            State::Lent(op) => op.take_owner(),
        }
    }
}

impl<B: IoMemory> Future for ReadInto<'_, B> {
    type Output = (Result<usize>, B);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Nothing here is pinned: requests name memory outside of this value.
        let this = self.get_mut();
        let result = match &mut this.state {
            State::Known(known) => {
                return Poll::Ready(known.take().map_or_else(
                    || {
                        let error =
                            Error::invalid("read", "this read was polled again after it had completed");
                        (Err(error), B::default())
                    },
                    |known| *known,
                ));
            }
            State::Lent(op) => {
                let (result, owner) = std::task::ready!(op.poll(context));
                return Poll::Ready((result.map(|bytes| bytes as usize), owner));
            }
            State::Op(op) => std::task::ready!(op.poll_result(context)),
        };
        let result = match result {
            Ok(bytes) => Ok(bytes as usize),
            Err(failure) => {
                let error = failure.into_error("read", Some(&this.core));
                Err(this.core.describe(error).with_range(this.offset, this.len))
            }
        };
        let owner = this.take_owner();
        this.state = State::Known(None);
        Poll::Ready((result, owner))
    }
}

// No field is pinned.
impl<B: IoMemory> Unpin for ReadInto<'_, B> {}

crate::_debug_parts!(
    [B: IoMemory] ReadInto<'_, B>, |read_into|
    path: read_into.core.path(),
    offset: read_into.offset,
    len: read_into.len
);
