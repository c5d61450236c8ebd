//! One range on its way into a block: widened to the device's units, read, and cut to the range requested.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::base::class::Class;
use crate::base::error::{Error, ErrorKind, Result};
use crate::handle::file::File;
use crate::io::op::{Durability, Flush, OpBuffer, OpKind, OpRequest, OpResult};
use crate::memory::arena::Buffer;
use crate::memory::block::Block;
use crate::memory::lent::Room;
use crate::ops::lent_op::LentOp;
use crate::ops::submit::{FileRef, OpFuture};
use crate::reactor::open_file::FileCore;
use crate::reactor::page_cache::{begins_in_page_cache, from_page_cache};
use crate::reactor::ranges::{AlignedRange, cut};

/// Reads a range into a block; [`File::read`], scans and appends are built of it.
///
/// `EXACT`: a range that the file has only a part of is an error.
pub(crate) struct RangeRead<'f, const EXACT: bool = false> {
    core: FileRef<'f>,
    pub(super) range: Range<u64>,
    stage: Stage<'f>,
}

enum Stage<'f> {
    /// The result is there without a request to the device.
    Known(Option<Result<Block>>),
    /// An empty range: nothing is read, but file and engine are checked to be open.
    Empty,
    /// Tries the page cache on the calling thread first.
    Cached(Option<OpRequest>),
    Op(OpFuture<'f>),
    /// Too long to be copied by one poll: its start is in the page cache.
    Parts(Box<LentOp<'f, Room>>),
}

impl RangeRead<'static> {
    /// Returns a read of the bytes that the file has of the range, with its own reference count of the file.
    pub(crate) fn owned(core: Arc<FileCore>, range: Range<u64>, class: Class) -> RangeRead<'static> {
        RangeRead::of_core(FileRef::Owned(core), range, class)
    }

    /// As [`owned`](Self::owned), for a caller that has tried the page cache itself.
    pub(crate) fn of_device(core: Arc<FileCore>, range: Range<u64>, class: Class) -> RangeRead<'static> {
        let mut read = RangeRead::owned(core, range, class);
        if let Stage::Cached(Some(request)) = &mut read.stage {
            read.stage = Stage::Op(OpFuture::new(read.core.target(), request.take()));
        }
        read
    }

    /// Returns a read that has completed with `result`.
    pub(crate) fn known(core: Arc<FileCore>, range: Range<u64>, result: Result<Block>) -> RangeRead<'static> {
        RangeRead { core: FileRef::Owned(core), range, stage: Stage::Known(Some(result)) }
    }
}

impl<'f, const EXACT: bool> RangeRead<'f, EXACT> {
    #[inline]
    pub(crate) fn new(file: &'f File, range: Range<u64>) -> RangeRead<'f, EXACT> {
        RangeRead::of_core(FileRef::Borrowed(file.core()), range, Class::OF_TASK)
    }

    /// Sets the class; changes nothing once the read has started.
    pub(super) fn set_class(&mut self, class: Class) {
        let request = match &mut self.stage {
            Stage::Op(op) => op.options(),
            Stage::Cached(request) => request.as_mut(),
            Stage::Known(_) | Stage::Empty | Stage::Parts(_) => None,
        };
        if let Some(request) = request {
            request.class = class;
        }
    }

    /// Returns the same read, in its present state, with its own reference count of the file.
    pub(super) fn into_owned(self) -> RangeRead<'static, EXACT> {
        let core = self.core.into_owned();
        let stage = match self.stage {
            Stage::Op(op) => Stage::Op(op.into_owned(core.target())),
            Stage::Cached(request) => Stage::Cached(request),
            Stage::Known(known) => Stage::Known(known),
            Stage::Parts(parts) => Stage::Parts(Box::new(parts.into_owned())),
            Stage::Empty => Stage::Empty,
        };
        RangeRead { core, range: self.range, stage }
    }

    pub(super) fn describe(&self, debug: &mut fmt::DebugStruct<'_, '_>) {
        debug.field("path", &self.core.path()).field("range", &self.range);
    }

    /// Returns whether the result is there without a request to a device.
    pub(crate) fn is_known(&self) -> bool {
        matches!(self.stage, Stage::Known(_))
    }

    #[inline]
    pub(crate) fn of_core(core: FileRef<'f>, range: Range<u64>, class: Class) -> RangeRead<'f, EXACT> {
        let stage = match AlignedRange::of(&range, core.alignment().read_offset) {
            Err(fault) => Stage::Known(Some(Err(core.describe(fault)))),
            Ok(_) if range.is_empty() => Stage::Empty,
            Ok(widened) => {
                let request = OpRequest {
                    kind: OpKind::Read,
                    class,
                    durability: Durability::None,
                    flush: Flush::Queued,
                    offset: widened.offset,
                    len: widened.len,
                    asked: (range.end - range.start) as u32,
                    buffer: OpBuffer::Late,
                };
                match core.page_cache() {
                    Some(_) => Stage::Cached(Some(request)),
                    None => Stage::Op(OpFuture::new(core.target(), request)),
                }
            }
        };
        RangeRead { core, range, stage }
    }

    #[inline]
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Block>> {
        loop {
            match &mut self.stage {
                Stage::Op(op) => {
                    let result = std::task::ready!(op.poll_result(context));
                    let buffer = op.take_buffer();
                    return Poll::Ready(self.finish(result, buffer));
                }
                Stage::Cached(request) => {
                    let Some(request) = request.take() else { return Poll::Ready(Err(self.again())) };
                    if let Some(block) = from_page_cache(&self.core, &self.range) {
                        self.stage = Stage::Known(None);
                        return Poll::Ready(Ok(block));
                    }
                    self.stage = match self.in_parts(request.class) {
                        Some(parts) => Stage::Parts(parts),
                        None => Stage::Op(OpFuture::new(self.core.target(), request)),
                    };
                }
                Stage::Parts(parts) => {
                    let (result, room) = std::task::ready!(parts.poll(context));
                    return Poll::Ready(match result {
                        Ok(bytes) => self.cut(room.into_buffer(), bytes as u32),
                        Err(error) => Err(self.describe_error(error)),
                    });
                }
                Stage::Empty => {
                    self.stage = Stage::Known(None);
                    return Poll::Ready(empty(&self.core));
                }
                Stage::Known(known) => {
                    let known = known.take();
                    return Poll::Ready(known.unwrap_or_else(|| Err(self.again())));
                }
            }
        }
    }

    /// Returns the read in parts of a range that is too long to be copied by one poll, if its start is in the page cache and memory
    /// for it is available now.
    #[cold]
    fn in_parts(&self, class: Class) -> Option<Box<LentOp<'f, Room>>> {
        if !begins_in_page_cache(&self.core, &self.range) {
            return None;
        }
        let engine = self.core.engine();
        let wide = AlignedRange::of(&self.range, self.core.alignment().read_offset).ok()?;
        let len = (self.range.end - wide.offset) as usize;
        if !engine.arena.has_room_now(len) {
            return None;
        }
        let buffer = engine.buffer("read", len).ok()?;
        let mut parts = LentOp::new(self.core.clone(), OpKind::Read, wide.offset, Room::new(buffer, len));
        parts.set_class(class);
        Some(Box::new(parts))
    }

    #[inline]
    fn finish(&self, result: OpResult, buffer: OpBuffer) -> Result<Block> {
        let buffer = if let OpBuffer::Buffer(buffer) = buffer { Some(buffer) } else { None };
        match result {
            Ok(bytes) => self.cut(buffer, bytes),
            Err(failure) => Err(self.describe_error(failure.into_error("read", Some(&self.core)))),
        }
    }

    /// Returns the range out of the `bytes` bytes that were read into a buffer; `None` for one that was lost.
    #[inline]
    fn cut(&self, buffer: Option<Buffer>, bytes: u32) -> Result<Block> {
        let grain = self.core.alignment().read_offset;
        let block = match buffer {
            Some(buffer) => cut(buffer, bytes, &self.range, grain, EXACT),
            None => Err(Error::os("read", libc::EIO)),
        };
        block.map_err(|error| self.describe_error(error))
    }

    fn describe_error(&self, error: Error) -> Error {
        self.core.describe(error).with_range(self.range.start, self.range.end - self.range.start)
    }

    fn again(&self) -> Error {
        self.core.describe(Error::invalid("read", "this read was polled again after it had completed"))
    }
}

pub(super) fn empty(core: &FileCore) -> Result<Block> {
    if core.is_closed() {
        return Err(core.describe(Error::new(ErrorKind::FileClosed, "read")));
    }
    match core.engine().failure() {
        Some(failure) => Err(failure.into_error("read", Some(core))),
        None => Ok(Block::default()),
    }
}
