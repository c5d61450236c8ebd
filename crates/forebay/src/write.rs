//! Writing one range, and syncing.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::arena::BUFFER_BYTES_MAX;
use crate::block::{Block, BlockMut};
use crate::class::Class;
use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::op::{Durability, Flush, OpBuffer, OpKind, OpRequest};
use crate::read::operation;
use crate::shard;
use crate::submit::{OpFuture, Target};
use crate::wait;

/// What a write may take: I/O memory as it is, or bytes that are copied once when the write is made.
///
/// Made by `From`: `BlockMut` and `Block` travel without a copy; `&[u8]`, arrays, `Vec<u8>` and `Bytes` are copied, and
/// so is, for a direct file, a part of a block that does not begin at a page.
pub struct WriteData<'d>(Source<'d>);

enum Source<'d> {
    Mut(BlockMut),
    Shared(Block),
    /// Copied where the write is made, when the file and so the arena is known.
    Slice(&'d [u8]),
    Bytes(Bytes),
    Vec(Vec<u8>),
}

/// Implements `From` for what [`WriteData`] may be made of.
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

impl fmt::Debug for WriteData<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, len) = match &self.0 {
            Source::Mut(block) => ("BlockMut", block.len()),
            Source::Shared(block) => ("Block", block.len()),
            Source::Slice(bytes) => ("slice to copy", bytes.len()),
            Source::Bytes(bytes) => ("bytes to copy", bytes.len()),
            Source::Vec(bytes) => ("bytes to copy", bytes.len()),
        };
        f.debug_tuple(kind).field(&len).finish()
    }
}

/// A write of one range; see [`File::write`].
#[must_use = "a write begins only when it is awaited or waited for"]
pub struct Write<'f> {
    file: &'f File,
    offset: u64,
    len: u64,
    data: Result<OpBuffer>,
    durability: Durability,
    flush: Flush,
    class: Option<Class>,
}

/// A sync of one file; see [`File::sync`].
#[must_use = "a sync begins only when it is awaited or waited for"]
pub struct Sync<'f> {
    file: &'f File,
    durability: Durability,
    class: Option<Class>,
}

operation!(Write);
operation!(Sync);

impl<'f> Write<'f> {
    pub(crate) fn new(file: &'f File, offset: u64, data: WriteData<'_>) -> Write<'f> {
        let (len, data) = match data.0 {
            Source::Mut(block) => (block.len(), Ok(OpBuffer::Mut(block))),
            Source::Shared(block) if !is_aligned(file, &block) => (block.len(), copied(file, offset, &block)),
            Source::Shared(block) => (block.len(), Ok(OpBuffer::Shared(block))),
            Source::Slice(bytes) => (bytes.len(), copied(file, offset, bytes)),
            Source::Bytes(bytes) => (bytes.len(), copied(file, offset, &bytes)),
            Source::Vec(bytes) => (bytes.len(), copied(file, offset, &bytes)),
        };
        Write {
            file,
            offset,
            len: len as u64,
            data,
            durability: Durability::None,
            flush: Flush::Queued,
            class: None,
        }
    }

    /// How far the write must have come before it is over. Default: [`Durability::None`].
    ///
    /// Write and sync are one operation of the engine: the sync is submitted where the write's completion is seen,
    /// without waking anyone in between.
    pub fn durable(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Who waits for the device until a [durable](Self::durable) write is durable. Default: [`Flush::Queued`]; without
    /// [`durable`](Self::durable) it changes nothing.
    ///
    /// ```
    /// # use forebay::{Config, Durability, Engine, Flush, Open};
    /// # fn main() -> forebay::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let engine = Engine::start(Config::default())?;
    /// # let file = engine.open(dir.path().join("a"), Open::create()).wait()?;
    /// file.write(0, vec![7u8; 4096]).durable(Durability::Data).flush(Flush::Blocking).wait()?;
    /// # Ok(()) }
    /// ```
    pub fn flush(mut self, flush: Flush) -> Self {
        self.flush = flush;
        self
    }

    /// Blocks the calling thread until the write is over.
    ///
    /// # Errors
    /// As [`File::write`]; [`ErrorKind::WaitOnShard`] on a shard's thread.
    pub fn wait(self) -> Result<()> {
        wait::block_on("write", self.into_future())
    }
}

impl<'f> Sync<'f> {
    pub(crate) fn new(file: &'f File, durability: Durability) -> Sync<'f> {
        Sync { file, durability, class: None }
    }

    /// Blocks the calling thread until the sync is over.
    ///
    /// # Errors
    /// As [`File::sync`]; [`ErrorKind::WaitOnShard`] on a shard's thread.
    pub fn wait(self) -> Result<()> {
        wait::block_on("sync", self.into_future())
    }
}

/// Can the device take the bytes from where they are? A later part of a block may begin anywhere.
fn is_aligned(file: &File, block: &Block) -> bool {
    block.is_empty() || block.as_ptr().addr().is_multiple_of(file.core().alignment().memory.max(1) as usize)
}

fn copied(file: &File, offset: u64, bytes: &[u8]) -> Result<OpBuffer> {
    // What cannot be written anyway is not copied first.
    check(file, offset, bytes.len() as u64)?;
    let block =
        file.core().engine().block_from("write", bytes).map_err(|error| file.core().describe(error))?;
    Ok(OpBuffer::Mut(block))
}

/// Is this a range that can be written to this file as it was opened?
fn check(file: &File, offset: u64, len: u64) -> Result<()> {
    let grain = file.core().alignment().offset.max(1);
    let fault = if len > BUFFER_BYTES_MAX as u64 {
        Error::new(ErrorKind::TooLarge { limit: BUFFER_BYTES_MAX as u64 }, "write")
    } else if offset > i64::MAX as u64 - len {
        Error::invalid("write", format!("offset {offset} is beyond what a file can have"))
    } else if !offset.is_multiple_of(u64::from(grain)) || !len.is_multiple_of(u64::from(grain)) {
        Error::new(ErrorKind::Misaligned { needed: grain }, "write")
    } else {
        return Ok(());
    };
    Err(file.core().describe(fault).with_range(offset, len))
}

impl<'f> IntoFuture for Write<'f> {
    type Output = Result<()>;
    type IntoFuture = WriteFuture<'f>;

    #[inline]
    fn into_future(self) -> WriteFuture<'f> {
        let class = self.class.unwrap_or_else(shard::class);
        let request = check(self.file, self.offset, self.len).and(self.data).map(|buffer| OpRequest {
            kind: match self.len {
                0 => self.durability.sync_kind().unwrap_or(OpKind::Nop),
                _ => OpKind::Write,
            },
            class,
            durability: self.durability,
            flush: self.flush,
            offset: self.offset,
            len: self.len as u32,
            asked: self.len as u32,
            buffer,
        });
        WriteFuture {
            file: self.file,
            operation: "write",
            place: Some((self.offset, self.len)),
            state: begin(self.file, request),
        }
    }
}

impl<'f> IntoFuture for Sync<'f> {
    type Output = Result<()>;
    type IntoFuture = WriteFuture<'f>;

    fn into_future(self) -> WriteFuture<'f> {
        let request = OpRequest {
            // Nothing to sync still finds out whether file and engine are open.
            kind: self.durability.sync_kind().unwrap_or(OpKind::Nop),
            class: self.class.unwrap_or_else(shard::class),
            durability: Durability::None,
            flush: Flush::Queued,
            offset: 0,
            len: 0,
            asked: 0,
            buffer: OpBuffer::None,
        };
        WriteFuture { file: self.file, operation: "sync", place: None, state: begin(self.file, Ok(request)) }
    }
}

fn begin(file: &File, request: Result<OpRequest>) -> WriteState<'_> {
    match request {
        Ok(request) => WriteState::Op(OpFuture::new(Target::File(file.core()), request)),
        Err(error) => WriteState::Fault(Some(error)),
    }
}

/// The future of [`Write`] and [`Sync`].
#[must_use = "futures do nothing unless awaited"]
pub struct WriteFuture<'f> {
    file: &'f File,
    operation: &'static str,
    place: Option<(u64, u64)>,
    state: WriteState<'f>,
}

enum WriteState<'f> {
    Fault(Option<Error>),
    Op(OpFuture<'f>),
}

impl Future for WriteFuture<'_> {
    type Output = Result<()>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        let result = match &mut this.state {
            WriteState::Op(op) => {
                let result = std::task::ready!(op.poll_result(context));
                // What an operation that failed early gives back is the engine's again.
                drop(op.take_buffer());
                result
            }
            WriteState::Fault(error) => {
                let again = || Error::invalid(this.operation, "polled again after it had answered");
                return Poll::Ready(Err(error.take().unwrap_or_else(again)));
            }
        };
        Poll::Ready(result.map(drop).map_err(|failure| {
            let error = failure.into_error(this.operation, Some(this.file.core()));
            match this.place {
                Some((offset, len)) => error.with_range(offset, len),
                None => error,
            }
        }))
    }
}

impl fmt::Debug for WriteFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteFuture").field("operation", &self.operation).finish_non_exhaustive()
    }
}
