//! Writing one range, and syncing.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::base::class::Class;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::wait;
use crate::handle::file::File;
use crate::io::op::{Durability, Flush, OpBuffer, OpKind, OpRequest};
use crate::memory::arena::BUFFER_BYTES_MAX;
use crate::memory::block::{Block, BlockMut};
use crate::memory::lent::{IoMemory, IoSource, LentMemory};
use crate::ops::lent_op::LentOp;
use crate::ops::read::operation;
use crate::ops::submit::{FileRef, OpFuture};
use crate::reactor::open_file::FileCore;

impl File {
    /// Writes all of `data` at `offset`. A [`BlockMut`](crate::BlockMut) or [`Block`](crate::Block) is written without a copy, and
    /// so is a `Vec<u8>` or `Bytes` on a file through the page cache; `&[u8]`, and for a direct file bytes that are not aligned,
    /// are copied once into I/O memory. [`write_from`](File::write_from) returns the memory.
    ///
    /// On a direct file offset and length must be multiples of [`Alignment::offset`](crate::Alignment::offset): the rest of a unit would have to be
    /// read first. [`append`](File::append) does that for bytes from front to back, the crate `forebay-collective` for pieces
    /// at any offsets. Dropping the future may or may not stop the write.
    ///
    /// # Errors
    /// [`ErrorKind::Misaligned`](crate::ErrorKind::Misaligned); [`ErrorKind::ArenaExhausted`](crate::ErrorKind::ArenaExhausted)
    /// without memory for a copy; the device's and the file system's errors. After an error any part of the range may have been
    /// written.
    ///
    /// ```
    /// # use forebay::{Config, Durability, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// let mut page = engine.block(4096)?; // I/O memory: written without a copy
    /// page[..5].copy_from_slice(b"hello");
    /// file.write(0, page).durable(Durability::Data).wait()?;
    ///
    /// file.write(4096, vec![7; 4096]).wait()?; // a `Vec`, a slice, `Bytes`: copied once, if they have to be
    /// let page = file.read(0..4096).wait()?;
    /// file.write(8192, page).wait()?; // the block of a read, as it is
    /// assert_eq!(&file.read(8192..8197).wait()?[..], b"hello");
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn write<'d>(&self, offset: u64, data: impl Into<WriteData<'d>>) -> Write<'_> {
        Write::new(self, offset, data.into())
    }

    /// Returns a write of the caller's memory at `offset` that completes with that memory: the counterpart of
    /// [`read_into`](File::read_into), for memory that is filled and written again and again, or that lies where a copy would
    /// cost too much.
    ///
    /// It may be longer than 1 GiB: it is made in parts then, several in flight, in no particular order. On a direct file offset
    /// and length must be multiples of [`Alignment::offset`](crate::Alignment::offset), as for [`write`](File::write); memory that
    /// does not start at a multiple of [`Alignment::memory`](crate::Alignment::memory) is copied, at most 2 MiB at a time. Costs
    /// two small allocations.
    ///
    /// # Errors
    /// Those of [`File::write`], without [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge).
    ///
    /// ```
    /// # use forebay::{BlockMut, Config, Durability, Engine, Open};
    /// # fn main() -> forebay::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// let mut memory = BlockMut::aligned(1 << 20)?;
    /// for part in 0..4 {
    ///     memory.fill(part);
    ///     let (written, same) = file.write_from(u64::from(part) << 20, memory).durable(Durability::Data).wait();
    ///     memory = same;
    ///     written?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn write_from<B: IoMemory>(&self, offset: u64, memory: B) -> WriteFrom<'_, B> {
        WriteFrom::new(self, offset, memory)
    }

    /// Makes the writes that had completed before this call durable: they survive a power cut once the sync completes.
    ///
    /// # Errors
    /// The device's. After a failed sync the kernel may have dropped the data: bytes not synced before count
    /// as lost.
    ///
    /// ```
    /// # use forebay::{Config, Durability, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// for page in 0..8 {
    ///     file.write(page * 4096, vec![page as u8; 4096]).wait()?;
    /// }
    /// file.sync(Durability::Data).wait()?; // one flush for all of them
    /// # Ok(()) }
    /// ```
    pub fn sync(&self, durability: Durability) -> Sync<'_> {
        Sync::new(self, durability)
    }
}

/// The bytes of a write: used in place, or copied once when the write is made.
///
/// Made by `From`: `BlockMut` and `Block` are written without a copy, and so are `Vec<u8>` and `Bytes` on files through the page
/// cache. `&[u8]` and arrays are copied, and so are, for a direct file, bytes that do not start at a page.
pub struct WriteData<'d>(Source<'d>);

enum Source<'d> {
    Mut(BlockMut),
    Shared(Block),
    /// Copied when the write is made, where the file and so the arena is known.
    Slice(&'d [u8]),
    Bytes(Bytes),
    Vec(Vec<u8>),
}

/// Implements `From` for the types that [`WriteData`] can be made of.
macro_rules! write_data {
    ($($from:ty => $variant:ident),* $(,)?) => {
        $(impl<'d> From<$from> for WriteData<'d> {
            fn from(data: $from) -> WriteData<'d> {
                WriteData(Source::$variant(data))
            }
        })*
    };
}

write_data!(BlockMut => Mut, Block => Shared, &'d [u8] => Slice, Bytes => Bytes, Vec<u8> => Vec);

impl<'d, const N: usize> From<&'d [u8; N]> for WriteData<'d> {
    fn from(data: &'d [u8; N]) -> WriteData<'d> {
        WriteData(Source::Slice(data))
    }
}

impl<'d> From<&'d Vec<u8>> for WriteData<'d> {
    fn from(data: &'d Vec<u8>) -> WriteData<'d> {
        WriteData(Source::Slice(data))
    }
}

impl WriteData<'_> {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.bytes().len()
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.0 {
            Source::Mut(block) => block,
            Source::Shared(block) => block,
            Source::Slice(bytes) => bytes,
            Source::Bytes(bytes) => bytes,
            Source::Vec(bytes) => bytes,
        }
    }

    /// Returns whether one request to this file uses the bytes in place.
    pub(super) fn goes_in_place(&self, core: &FileCore) -> bool {
        let bytes = self.bytes();
        let is_one = bytes.len() <= BUFFER_BYTES_MAX;
        match &self.0 {
            Source::Mut(_) => is_one,
            Source::Slice(_) => false,
            Source::Shared(_) | Source::Bytes(_) | Source::Vec(_) => is_one && is_aligned(core, bytes),
        }
    }

    /// Returns the memory for a request to this file: the bytes in place if possible, else a copy.
    pub(super) fn into_buffer(self, core: &FileCore) -> Result<OpBuffer> {
        match self.0 {
            Source::Mut(block) => Ok(OpBuffer::Mut(block)),
            Source::Shared(block) if !is_aligned(core, &block) => copied(core, &block),
            Source::Shared(block) => Ok(OpBuffer::Shared(block)),
            Source::Slice(bytes) => copied(core, bytes),
            Source::Bytes(bytes) => lent(core, bytes),
            Source::Vec(bytes) => lent(core, bytes),
        }
    }
}

impl fmt::Debug for WriteData<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Source::Mut(_) => "BlockMut",
            Source::Shared(_) => "Block",
            Source::Slice(_) => "slice to copy",
            Source::Bytes(_) | Source::Vec(_) => "bytes to copy",
        };
        f.debug_tuple(kind).field(&self.len()).finish()
    }
}

/// The future of [`File::write`]; the write starts when it is first polled.
#[must_use = "a write begins only when it is awaited or waited for"]
pub struct Write<'f> {
    inner: FileOp<'f>,
}

/// The future of [`File::sync`]; the sync starts when it is first polled.
#[must_use = "a sync begins only when it is awaited or waited for"]
pub struct Sync<'f> {
    inner: FileOp<'f>,
}

operation!(Write);
operation!(Sync);

impl<'f> Write<'f> {
    pub(crate) fn new(file: &'f File, offset: u64, data: WriteData<'_>) -> Write<'f> {
        let len = data.len() as u64;
        let buffer = check(file.core(), offset, len).and_then(|()| data.into_buffer(file.core()));
        let kind = if len == 0 { OpKind::Nop } else { OpKind::Write };
        let request = buffer.map(|buffer| OpRequest::new(kind, Class::OF_TASK, offset, len as u32, buffer));
        Write { inner: FileOp::new(file, Call::Write, request) }
    }

    /// Sets the durability that the write must have reached before it completes. Default:
    /// [`Durability::None`].
    ///
    /// Write and sync are one operation of the engine: the sync is submitted where the write's completion is seen, without
    /// waking any task in between. Has no effect after the first poll.
    ///
    /// ```
    /// # use forebay::{Config, Durability, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// file.write(0, vec![1; 4096]).durable(Durability::Data).wait()?; // survives a power cut from here on
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn durable(mut self, durability: Durability) -> Self {
        if let Some(request) = self.inner.options() {
            request.durability = durability;
            if request.len == 0 {
                // An operation with nothing to sync still finds out whether file and engine are open.
                request.kind = durability.sync_kind().unwrap_or(OpKind::Nop);
            }
        }
        self
    }

    /// Sets which thread waits for the device until a [durable](Self::durable) write is durable. Default:
    /// [`Flush::Queued`]. Without [`durable`](Self::durable), and after the first poll, it changes nothing.
    ///
    /// ```
    /// # use forebay::{Config, Durability, Engine, Flush, Open};
    /// # fn main() -> forebay::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("a"), Open::create()).wait()?;
    /// file.write(0, vec![7u8; 4096]).durable(Durability::Data).flush(Flush::Blocking).wait()?;
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn flush(mut self, flush: Flush) -> Self {
        if let Some(request) = self.inner.options() {
            request.flush = flush;
        }
        self
    }

    /// Sets the number of bytes, of those written, that the program gave; for the statistics.
    pub(crate) fn given(mut self, bytes: u32) -> Self {
        if let Some(request) = self.inner.options() {
            request.asked = bytes;
        }
        self
    }

    /// Blocks the calling thread until the write has completed.
    ///
    /// # Errors
    /// Those of [`File::write`]; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread.
    pub fn wait(self) -> Result<()> {
        wait::block_in_turn("write", self)
    }
}

/// The future of [`File::write_from`]; the write starts when it is first polled.
///
/// When it is dropped between its first poll and its end, the memory stays with the engine until the kernel is done with it.
#[must_use = "a write begins only when it is awaited or waited for"]
pub struct WriteFrom<'f, B: IoMemory> {
    state: Result<LentOp<'f, B>, Option<(Error, B)>>,
}

impl<'f, B: IoMemory> WriteFrom<'f, B> {
    fn new(file: &'f File, offset: u64, mut owner: B) -> WriteFrom<'f, B> {
        let len = owner.memory().1 as u64;
        let state = match check_place(file.core(), offset, len) {
            Ok(()) => Ok(LentOp::new(FileRef::Borrowed(file.core()), OpKind::Write, offset, owner)),
            Err(fault) => Err(Some((fault, owner))),
        };
        WriteFrom { state }
    }

    fn set(mut self, change: impl FnOnce(&mut LentOp<'f, B>)) -> Self {
        if let Ok(op) = &mut self.state {
            change(op);
        }
        self
    }

    /// Sets the class; as [`Write::class`].
    pub fn class(self, class: Class) -> Self {
        self.set(|op| op.set_class(class))
    }

    /// Sets the durability that the write must have reached before it completes; as [`Write::durable`]. A write of several
    /// parts is synced once, after all of them.
    pub fn durable(self, durability: Durability) -> Self {
        self.set(|op| op.set_durability(durability))
    }

    /// Sets which thread waits for the device; as [`Write::flush`]. For a write of several parts it changes nothing.
    pub fn flush(self, flush: Flush) -> Self {
        self.set(|op| op.set_flush(flush))
    }

    /// Converts the operation into one that owns a handle of the file instead of borrowing it.
    pub fn owned(self) -> WriteFrom<'static, B> {
        WriteFrom { state: self.state.map(LentOp::into_owned) }
    }

    /// Blocks the calling thread until the write has completed; returns the memory in every case.
    ///
    /// # Errors
    /// Those of [`File::write_from`]; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread.
    pub fn wait(mut self) -> (Result<()>, B) {
        match (wait::refusal(), &mut self.state) {
            (Some(kind), Ok(op)) => (Err(Error::new(kind, "write")), op.take_owner()),
            (None, Ok(op)) if op.is_one_part() => wait::block_in_turn_on_any(self),
            // Parts of a long write should be in flight together.
            _ => wait::block_on_any(self),
        }
    }
}

impl<B: IoMemory> Future for WriteFrom<'_, B> {
    type Output = (Result<()>, B);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Nothing here is pinned: requests name memory outside of this value.
        match &mut self.get_mut().state {
            Ok(op) => op.poll(context).map(|(result, owner)| (result.map(drop), owner)),
            Err(fault) => {
                let again = || (Error::invalid("write", "polled again after it had completed"), B::default());
                let (error, owner) = fault.take().unwrap_or_else(again);
                Poll::Ready((Err(error), owner))
            }
        }
    }
}

// No field is pinned.
impl<B: IoMemory> Unpin for WriteFrom<'_, B> {}

impl<B: IoMemory> fmt::Debug for WriteFrom<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("WriteFrom");
        match &self.state {
            Ok(op) => op.describe(&mut debug),
            Err(fault) => {
                debug.field("fault", &fault.as_ref().map(|(error, _)| error));
            }
        }
        debug.finish_non_exhaustive()
    }
}

impl<'f> Sync<'f> {
    pub(crate) fn new(file: &'f File, durability: Durability) -> Sync<'f> {
        // An operation with nothing to sync still finds out whether file and engine are open.
        let kind = durability.sync_kind().unwrap_or(OpKind::Nop);
        let request = OpRequest::new(kind, Class::OF_TASK, 0, 0, OpBuffer::None);
        Sync { inner: FileOp::new(file, Call::Sync, Ok(request)) }
    }

    /// Blocks the calling thread until the sync has completed.
    ///
    /// # Errors
    /// Those of [`File::sync`]; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread.
    pub fn wait(self) -> Result<()> {
        wait::block_in_turn("sync", self)
    }
}

/// Returns whether the device can use the bytes in place. A later part of a block, and memory of the allocator, may start anywhere.
fn is_aligned(core: &FileCore, bytes: &[u8]) -> bool {
    bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(core.alignment().memory.max(1) as usize)
}

/// Returns bytes that the operation owns, in place if the file can use them there.
fn lent(core: &FileCore, source: impl IoSource) -> Result<OpBuffer> {
    let bytes = source.bytes();
    if bytes.is_empty() || !is_aligned(core, bytes) {
        return copied(core, bytes);
    }
    Ok(OpBuffer::Lent(LentMemory::source(source)))
}

fn copied(core: &FileCore, bytes: &[u8]) -> Result<OpBuffer> {
    let block = core.engine().block_from("write", bytes).map_err(|error| core.describe(error))?;
    Ok(OpBuffer::Mut(block))
}

/// Checks that the range can be written to this file in its mode by one request.
pub(super) fn check(core: &FileCore, offset: u64, len: u64) -> Result<()> {
    if len > BUFFER_BYTES_MAX as u64 {
        let fault = Error::new(ErrorKind::TooLarge { limit: BUFFER_BYTES_MAX as u64 }, "write");
        return Err(core.describe(fault).with_range(offset, len));
    }
    check_place(core, offset, len)
}

/// Checks that the range can be written to this file in its mode.
fn check_place(core: &FileCore, offset: u64, len: u64) -> Result<()> {
    let grain = core.alignment().offset.max(1);
    let fault = if len > i64::MAX as u64 || offset > i64::MAX as u64 - len {
        Error::invalid("write", format!("offset {offset} is beyond what a file can have"))
    } else if !offset.is_multiple_of(u64::from(grain)) || !len.is_multiple_of(u64::from(grain)) {
        Error::new(ErrorKind::Misaligned { needed: grain }, "write")
    } else {
        return Ok(());
    };
    Err(core.describe(fault).with_range(offset, len))
}

impl Future for Write<'_> {
    type Output = Result<()>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.inner.poll(context)
    }
}

impl Future for Sync<'_> {
    type Output = Result<()>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.inner.poll(context)
    }
}

/// An operation of a file that moves no bytes to the caller.
struct FileOp<'f> {
    core: FileRef<'f>,
    state: State<'f>,
    call: Call,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Write,
    Sync,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Call::Write => "write",
            Call::Sync => "sync",
        }
    }

    /// Returns offset and length of the written range.
    fn place(self, op: &OpFuture<'_>) -> Option<(u64, u64)> {
        match self {
            Call::Write => Some(op.place()),
            Call::Sync => None,
        }
    }
}

enum State<'f> {
    Fault(Option<Error>),
    Op(OpFuture<'f>),
}

impl<'f> FileOp<'f> {
    #[inline]
    fn new(file: &'f File, call: Call, request: Result<OpRequest>) -> FileOp<'f> {
        let core = FileRef::Borrowed(file.core());
        let state = match request {
            Ok(request) => State::Op(OpFuture::new(core.target(), request)),
            Err(error) => State::Fault(Some(error)),
        };
        FileOp { core, state, call }
    }

    #[inline]
    fn options(&mut self) -> Option<&mut OpRequest> {
        match &mut self.state {
            State::Op(op) => op.options(),
            State::Fault(_) => None,
        }
    }

    #[inline]
    fn set_class(&mut self, class: Class) {
        if let Some(request) = self.options() {
            request.class = class;
        }
    }

    fn into_owned(self) -> FileOp<'static> {
        let core = self.core.into_owned();
        let state = match self.state {
            State::Fault(fault) => State::Fault(fault),
            State::Op(op) => State::Op(op.into_owned(core.target())),
        };
        FileOp { core, state, call: self.call }
    }

    fn describe(&self, debug: &mut fmt::DebugStruct<'_, '_>) {
        debug.field("path", &self.core.path());
        match &self.state {
            State::Op(op) => debug.field("place", &self.call.place(op)),
            State::Fault(fault) => debug.field("fault", fault),
        };
    }

    #[inline]
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.state {
            State::Op(op) => {
                let result = std::task::ready!(op.poll_result(context));
                // An operation that failed early returns its memory, to the engine.
                drop(op.take_buffer());
                Poll::Ready(result.map(drop).map_err(|failure| {
                    let error = failure.into_error(self.call.name(), Some(&self.core));
                    match self.call.place(op) {
                        Some((offset, len)) => error.with_range(offset, len),
                        None => error,
                    }
                }))
            }
            State::Fault(error) => {
                let again = || Error::invalid(self.call.name(), "polled again after it had completed");
                Poll::Ready(Err(error.take().unwrap_or_else(again)))
            }
        }
    }
}
