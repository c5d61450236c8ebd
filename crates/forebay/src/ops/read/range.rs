//! One range on its way into a block: widened to the device's units, read, and cut to the range requested.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::base::class::Class;
use crate::base::error::{Error, ErrorKind, Result};
use crate::handle::file::File;
use crate::io::op::{Durability, Flush, OpBuffer, OpKind, OpRequest, OpResult};
use crate::memory::block::Block;
use crate::ops::submit::{FileRef, OpFuture};
use crate::reactor::open_file::FileCore;
use crate::reactor::page_cache::from_page_cache;
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

    /// Sets the class; changes nothing once the read has begun.
    pub(super) fn set_class(&mut self, class: Class) {
        let request = match &mut self.stage {
            Stage::Op(op) => op.options(),
            Stage::Cached(request) => request.as_mut(),
            Stage::Known(_) | Stage::Empty => None,
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
                    self.stage = Stage::Op(OpFuture::new(self.core.target(), request));
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

    #[inline]
    fn finish(&self, result: OpResult, buffer: OpBuffer) -> Result<Block> {
        let describe = |error: Error| {
            self.core.describe(error).with_range(self.range.start, self.range.end - self.range.start)
        };
        let bytes = match result {
            Ok(bytes) => bytes,
            Err(failure) => return Err(describe(failure.into_error("read", Some(&self.core)))),
        };
        let OpBuffer::Buffer(buffer) = buffer else {
            return Err(describe(Error::os("read", libc::EIO)));
        };
        cut(buffer, bytes, &self.range, self.core.alignment().read_offset, EXACT).map_err(describe)
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
