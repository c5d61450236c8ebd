//! Reading one range.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::base::class::Class;
use crate::base::error::Result;
use crate::base::wait;
use crate::handle::file::File;
use crate::memory::block::Block;
use crate::memory::lent::IoMemory;

mod into;
mod range;

pub use into::ReadInto;
pub(crate) use range::RangeRead;

impl File {
    /// Reads exactly the bytes of `range`, at any offset and of any length up to 1 GiB, the limit of one block.
    /// [`read_many`](File::read_many) and [`read_into`](File::read_into) read longer ranges.
    ///
    /// Direct reads fetch the aligned range around it, and the block is the slice requested. Costs one
    /// request to the device; on a shard no allocation.
    ///
    /// A read of more than a quarter of the I/O memory ([`Config::arena_bytes_max`](crate::Config::arena_bytes_max)) is *long*: its
    /// block lies in ordinary memory of its length. Long reads in flight use at most as much of that together as the I/O memory's
    /// limit, and wait for each other in order of arrival; a single one always proceeds. While the blocks of long reads hold half
    /// of the memory that the process may use, more long reads fail.
    ///
    /// The range has both ends, because memory is allocated before the file's length is known. For "to the
    /// end" use [`read_up_to`](File::read_up_to) with the most bytes wanted, or a [scan](File::scan) of
    /// `4096..`.
    ///
    /// # Errors
    /// [`ErrorKind::UnexpectedEof`](crate::ErrorKind::UnexpectedEof) when the file ends inside the range; [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a range that
    /// ends before it starts or past 2^63; [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge) above 1 GiB; [`ErrorKind::ArenaExhausted`](crate::ErrorKind::ArenaExhausted); the device's errors.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> forebay::Result<()> {
    /// # let engine = Engine::start(Config::new())?;
    /// let file = engine.open("Cargo.toml", Open::read()).wait()?;
    /// let block = file.read(1..8).wait()?;
    /// assert_eq!(&block[..], b"package");
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn read(&self, range: Range<u64>) -> Read<'_> {
        Read::new(self, range)
    }

    /// Reads `range` up to the end of the file: the block is shorter than requested, or empty, where the file ends.
    ///
    /// # Errors
    /// Those of [`File::read`], without [`ErrorKind::UnexpectedEof`](crate::ErrorKind::UnexpectedEof).
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// let block = file.read_up_to(10_000..20_000).wait()?;
    /// assert_eq!(block.len(), 6_384); // the file has 16,384 bytes
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn read_up_to(&self, range: Range<u64>) -> ReadUpTo<'_> {
        ReadUpTo::new(self, range)
    }

    /// Reads at `offset` into the caller's memory ([`IoMemory`]: a `Vec<u8>`, `Box<[u8]>`, `BytesMut`,
    /// [`BlockMut`](crate::BlockMut), or a type of the program's); it completes with that memory, and the number of bytes or
    /// the error.
    ///
    /// The whole length of `memory` is requested, which may be more than 1 GiB: longer reads are made in parts, several in
    /// flight. The number of bytes is smaller at the end of the file. After an error any of the memory may have been
    /// written.
    ///
    /// Any offset and length will do. A file through the page cache is read into the memory itself. So are the whole blocks of a
    /// direct file that lie in memory at multiples of [`Alignment::memory`](crate::Alignment::memory), at least 16 KiB of them; the
    /// ends are copied. Without such blocks, as in a `Vec`, which starts 16 bytes behind a page, all is copied from I/O memory, at
    /// most 2 MiB at a time: 50 us a MiB. [`BlockMut::aligned`](crate::BlockMut::aligned) allocates memory of the program that
    /// needs no copy. Costs three small allocations; zero for a `BlockMut` and whole blocks of the device.
    ///
    /// # Errors
    /// Those of [`File::read_up_to`], without [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge).
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// let mut bytes = vec![0; 5_000];
    /// for offset in [7, 5_007] {
    ///     let (read, same) = file.read_into(offset, bytes).wait();
    ///     bytes = same; // comes back with an error as well
    ///     assert_eq!(read?, 5_000);
    /// }
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn read_into<B: IoMemory>(&self, offset: u64, memory: B) -> ReadInto<'_, B> {
        ReadInto::new(self, offset, memory)
    }
}

/// The future of [`File::read`]; the read starts when it is first polled.
///
/// ```
/// # use forebay::{Class, Config, Engine, Open};
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let engine = Engine::start(Config::new())?;
/// # let file = engine.open(dir.path().join("data"), Open::create()).await?;
/// # file.write(0, vec![7; 16_384]).await?;
/// // A time limit drops the future. The engine keeps memory and file until the device is done.
/// let limit = std::time::Duration::from_secs(5);
/// match tokio::time::timeout(limit, file.read(0..4096).class(Class::LOG)).await {
///     Ok(block) => println!("{} bytes", block?.len()),
///     Err(_) => println!("given up"),
/// }
/// // A task of its own keeps the file open.
/// let read = tokio::spawn(file.read(0..4096).owned());
/// assert_eq!(read.await??.len(), 4096);
/// # Ok(()) }
/// ```
#[must_use = "a read begins only when it is awaited or waited for"]
pub struct Read<'f> {
    inner: RangeRead<'f, true>,
}

/// The future of [`File::read_up_to`]; the read starts when it is first polled.
#[must_use = "a read begins only when it is awaited or waited for"]
pub struct ReadUpTo<'f> {
    inner: RangeRead<'f>,
}

/// Implements the common part of the operations of one file, whose `inner` sets a class and releases its file.
macro_rules! operation {
    ($name:ident) => {
        impl $name<'_> {
            /// Sets the class. Default: that of the task that polls first, [`Class::DEFAULT`] outside of shards and
            /// [scopes](Class::scope). Has no effect after the first poll.
            #[inline]
            pub fn class(mut self, class: Class) -> Self {
                self.inner.set_class(class);
                self
            }

            /// Converts the operation into one that owns a handle of the file instead of borrowing it, for tasks that need
            /// `'static`. Costs one or two atomic increments.
            #[inline]
            pub fn owned(self) -> $name<'static> {
                $name { inner: self.inner.into_owned() }
            }
        }

        impl std::fmt::Debug for $name<'_> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut debug = f.debug_struct(stringify!($name));
                self.inner.describe(&mut debug);
                debug.finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use operation;

operation!(Read);
operation!(ReadUpTo);

/// Implements the common part of both kinds of reads of a range.
macro_rules! range_read {
    ($name:ident, $method:literal) => {
        impl<'f> $name<'f> {
            #[inline]
            pub(crate) fn new(file: &'f File, range: Range<u64>) -> $name<'f> {
                $name { inner: RangeRead::new(file, range) }
            }

            /// Blocks the calling thread until the read completes.
            ///
            /// # Errors
            #[doc = concat!("As [`File::", $method, "`]; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread.")]
            pub fn wait(self) -> Result<Block> {
                wait::block_in_turn("read", self)
            }
        }

        impl Future for $name<'_> {
            type Output = Result<Block>;

            #[inline]
            fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Block>> {
                self.inner.poll(context)
            }
        }
    };
}

range_read!(Read, "read");
range_read!(ReadUpTo, "read_up_to");
