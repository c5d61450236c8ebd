//! Reading one range.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use crate::arena::{BUFFER_BYTES_MAX, Buffer};
use crate::block::{Block, BlockMut};
use crate::class::Class;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{File, FileCore};
use crate::op::{Durability, OpBuffer, OpKind, OpRequest, OpResult};
use crate::open::Mode;
use crate::shard;
use crate::submit::{OpFuture, Target};
use crate::wait;

/// A read of exactly one range; see [`File::read`].
#[must_use = "a read begins only when it is awaited or waited for"]
pub struct Read<'f> {
    file: &'f File,
    range: Range<u64>,
    class: Option<Class>,
}

/// A read of what one range has; see [`File::read_up_to`].
#[must_use = "a read begins only when it is awaited or waited for"]
pub struct ReadUpTo<'f> {
    file: &'f File,
    range: Range<u64>,
    class: Option<Class>,
}

/// A read into the caller's memory; see [`File::read_into`].
#[must_use = "a read begins only when it is awaited or waited for"]
pub struct ReadInto<'f> {
    file: &'f File,
    offset: u64,
    block: BlockMut,
    class: Option<Class>,
}

/// What the builders have in common.
macro_rules! operation {
    ($name:ident) => {
        impl $name<'_> {
            /// Who asks; default: the class of the task that runs, [`Class::DEFAULT`] outside of shards.
            pub fn class(mut self, class: Class) -> Self {
                self.class = Some(class);
                self
            }
        }

        impl fmt::Debug for $name<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("file", &self.file).finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use operation;

operation!(Read);
operation!(ReadUpTo);
operation!(ReadInto);

impl<'f> Read<'f> {
    #[inline]
    pub(crate) fn new(file: &'f File, range: Range<u64>) -> Read<'f> {
        Read { file, range, class: None }
    }

    /// Blocks the calling thread until the bytes are there.
    ///
    /// # Errors
    /// As [`File::read`]; [`ErrorKind::WaitOnShard`] on a shard's thread.
    pub fn wait(self) -> Result<Block> {
        wait::block_on("read", self.into_future())
    }
}

impl<'f> ReadUpTo<'f> {
    pub(crate) fn new(file: &'f File, range: Range<u64>) -> ReadUpTo<'f> {
        ReadUpTo { file, range, class: None }
    }

    /// Blocks the calling thread until the bytes are there.
    ///
    /// # Errors
    /// As [`File::read_up_to`]; [`ErrorKind::WaitOnShard`] on a shard's thread.
    pub fn wait(self) -> Result<Block> {
        wait::block_on("read", self.into_future())
    }
}

impl<'f> ReadInto<'f> {
    pub(crate) fn new(file: &'f File, offset: u64, block: BlockMut) -> ReadInto<'f> {
        ReadInto { file, offset, block, class: None }
    }

    /// Blocks the calling thread until the bytes are there; the block comes back in every case.
    pub fn wait(self) -> (Result<usize>, BlockMut) {
        match shard::current() {
            Some(_) => (Err(Error::new(ErrorKind::WaitOnShard, "read")), self.block),
            None => wait::block_on_any(self.into_future()),
        }
    }
}

impl<'f> IntoFuture for Read<'f> {
    type Output = Result<Block>;
    type IntoFuture = ReadFuture<'f>;

    #[inline]
    fn into_future(self) -> ReadFuture<'f> {
        ReadFuture { inner: RangeRead::new(self.file, self.range, self.class, true) }
    }
}

impl<'f> IntoFuture for ReadUpTo<'f> {
    type Output = Result<Block>;
    type IntoFuture = ReadFuture<'f>;

    #[inline]
    fn into_future(self) -> ReadFuture<'f> {
        ReadFuture { inner: RangeRead::new(self.file, self.range, self.class, false) }
    }
}

/// The future of [`Read`] and [`ReadUpTo`].
#[must_use = "futures do nothing unless awaited"]
pub struct ReadFuture<'f> {
    inner: RangeRead<'f>,
}

impl Future for ReadFuture<'_> {
    type Output = Result<Block>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Block>> {
        self.inner.poll(context)
    }
}

impl fmt::Debug for ReadFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadFuture").field("range", &self.inner.range).finish_non_exhaustive()
    }
}

/// Reads a range into a block; what [`File::read`], scans and appends are made of.
pub(crate) struct RangeRead<'f> {
    core: Held<'f>,
    range: Range<u64>,
    exact: bool,
    stage: Stage<'f>,
}

/// The file, borrowed from a handle or kept for as long as the read lives.
enum Held<'f> {
    Borrowed(&'f Arc<FileCore>),
    Owned(Arc<FileCore>),
}

impl<'f> Held<'f> {
    #[inline]
    fn target(&self) -> Target<'f> {
        match self {
            Held::Borrowed(core) => Target::File(core),
            Held::Owned(core) => Target::Owned(core.clone()),
        }
    }
}

impl std::ops::Deref for Held<'_> {
    type Target = FileCore;

    #[inline]
    fn deref(&self) -> &FileCore {
        match self {
            Held::Borrowed(core) => core,
            Held::Owned(core) => core,
        }
    }
}

enum Stage<'f> {
    /// Known without asking the device.
    Known(Option<Result<Block>>),
    /// Tries the page cache on the calling thread first.
    Cached(Option<OpRequest>),
    Op(OpFuture<'f>),
}

impl<'f> RangeRead<'f> {
    #[inline]
    pub(crate) fn new(file: &'f File, range: Range<u64>, class: Option<Class>, exact: bool) -> RangeRead<'f> {
        RangeRead::of_core(Held::Borrowed(file.core()), range, class, exact)
    }

    /// A read that keeps the file itself, of what the range has.
    pub(crate) fn owned(core: Arc<FileCore>, range: Range<u64>, class: Option<Class>) -> RangeRead<'static> {
        RangeRead::of_core(Held::Owned(core), range, class, false)
    }

    /// A read that is over.
    pub(crate) fn known(core: Arc<FileCore>, range: Range<u64>, result: Result<Block>) -> RangeRead<'static> {
        RangeRead { core: Held::Owned(core), range, exact: false, stage: Stage::Known(Some(result)) }
    }

    /// Is the result known without asking a device?
    pub(crate) fn is_known(&self) -> bool {
        matches!(self.stage, Stage::Known(_))
    }

    #[inline]
    fn of_core(core: Held<'f>, range: Range<u64>, class: Option<Class>, exact: bool) -> RangeRead<'f> {
        let stage = match Widened::of(&range, core.alignment().read_offset) {
            Err(fault) => Stage::Known(Some(Err(core.describe(fault)))),
            Ok(_) if range.is_empty() => Stage::Known(Some(empty(&core))),
            Ok(widened) => {
                let request = OpRequest {
                    kind: OpKind::Read,
                    class: class.unwrap_or_else(shard::class),
                    durability: Durability::None,
                    offset: widened.offset,
                    len: widened.len,
                    asked: (range.end - range.start) as u32,
                    buffer: OpBuffer::Late,
                };
                match core.mode() {
                    Mode::Buffered => Stage::Cached(Some(request)),
                    _ => Stage::Op(OpFuture::new(core.target(), request)),
                }
            }
        };
        RangeRead { core, range, exact, stage }
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
                    if let Some(block) = from_page_cache(&self.core, request.offset, request.len) {
                        self.stage = Stage::Known(None);
                        return Poll::Ready(Ok(block));
                    }
                    self.stage = Stage::Op(OpFuture::new(self.core.target(), request));
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
        cut(buffer, bytes, &self.range, self.core.alignment().read_offset, self.exact).map_err(describe)
    }

    fn again(&self) -> Error {
        self.core.describe(Error::invalid("read", "this read was polled again after it had answered"))
    }
}

/// The slice of `range` out of a buffer into which `bytes` were read from the widened offset on.
#[inline]
pub(crate) fn cut(buffer: Buffer, bytes: u32, range: &Range<u64>, grain: u32, exact: bool) -> Result<Block> {
    let skip = (range.start & (u64::from(grain.max(1)) - 1)) as usize;
    let asked = (range.end - range.start) as usize;
    let got = (bytes as usize).saturating_sub(skip).min(asked);
    if exact && got < asked {
        return Err(Error::new(ErrorKind::UnexpectedEof { got: got as u64 }, "read"));
    }
    // SAFETY: the device filled `bytes` from the buffer's start, and `skip + got` does not exceed that.
    Ok(unsafe { buffer.into_block(if got == 0 { 0 } else { skip }, got) })
}

fn empty(core: &FileCore) -> Result<Block> {
    if core.is_closed() {
        return Err(core.describe(Error::new(ErrorKind::FileClosed, "read")));
    }
    match core.engine().failure() {
        Some(failure) => Err(failure.into_error("read", Some(core))),
        None => Ok(Block::default()),
    }
}

/// A range widened to what the device needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Widened {
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

impl Widened {
    #[inline]
    pub(crate) fn of(range: &Range<u64>, grain: u32) -> Result<Widened> {
        if range.end < range.start {
            let note = format!("the range ends ({}) before it starts ({})", range.end, range.start);
            return Err(Error::invalid("read", note));
        }
        let grain = u64::from(grain.max(1));
        // The kernel's offsets are signed (off_t), and the widened range must fit as well.
        if range.end > i64::MAX as u64 - grain {
            let note = format!("offset {} is beyond what a file can have", range.end);
            return Err(Error::invalid("read", note).with_range(range.start, range.end - range.start));
        }
        // Grains are powers of two; a division would cost as much as everything else here.
        debug_assert!(grain.is_power_of_two());
        let offset = range.start & !(grain - 1);
        let len = ((range.end + grain - 1) & !(grain - 1)) - offset;
        if len > BUFFER_BYTES_MAX as u64 {
            return Err(Error::new(ErrorKind::TooLarge { limit: BUFFER_BYTES_MAX as u64 }, "read")
                .with_range(range.start, range.end - range.start));
        }
        Ok(Widened { offset, len: len as u32 })
    }
}

/// All `len` bytes at `offset` if the page cache has them: preadv2(2) with `RWF_NOWAIT`, about a microsecond.
#[cfg(target_os = "linux")]
fn from_page_cache(core: &FileCore, offset: u64, len: u32) -> Option<Block> {
    use std::os::fd::AsRawFd;
    if core.is_closed() || core.engine().failure().is_some() {
        return None;
    }
    let buffer = core.engine().buffer("read", len as usize).ok()?;
    let part = libc::iovec { iov_base: buffer.as_ptr().cast(), iov_len: len as usize };
    // SAFETY: one vector over a buffer of at least `len` bytes that is ours alone.
    let read =
        unsafe { libc::preadv2(core.fd().as_raw_fd(), &part, 1, offset as libc::off_t, libc::RWF_NOWAIT) };
    // Anything less may be the end of the file or the end of what is cached; the ring finds out.
    if read != len as isize {
        return None;
    }
    core.engine().page_cache_reads.fetch_add(1, Ordering::Relaxed);
    core.engine().page_cache_bytes.fetch_add(u64::from(len), Ordering::Relaxed);
    // SAFETY: the kernel filled all `len` bytes.
    Some(unsafe { buffer.into_block(0, len as usize) })
}

#[cfg(not(target_os = "linux"))]
fn from_page_cache(_: &FileCore, _: u64, _: u32) -> Option<Block> {
    None
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
