//! Writing a file from front to back: any sizes in, large aligned writes out, in the background.

use std::future::{Future, poll_fn};

use writer::{Plan, Writer};

use crate::base::class::Class;
use crate::base::error::Result;
use crate::base::wait::Waitable;
use crate::handle::file::File;
use crate::io::op::Durability;
use crate::memory::arena::Buffer;
use crate::memory::block::{Block, BlockMut};
use crate::reactor::shard;

#[cfg(feature = "tokio")]
mod async_write;
mod flight;
mod settle;
mod writer;

impl File {
    /// Returns a builder for a sequential writer, which buffers pieces of any size and writes them in the background.
    ///
    /// ```
    /// # use forebay::{Config, Durability, Engine, Open};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).await?;
    /// let mut append = file.append().request_bytes(256 << 10).depth(2).start();
    /// for number in 0..1000 {
    ///     append.write(format!("line {number}\n").as_bytes()).await?; // waits only when the device is behind
    /// }
    /// append.sync(Durability::Data).await?;
    /// let end = append.close().await?;
    /// assert_eq!(end, file.len().await?);
    /// // Later, at the same place:
    /// let mut append = file.append().at(end).start();
    /// append.write(b"one more\n").await?;
    /// assert_eq!(append.close().await?, end + 9);
    /// # Ok(()) }
    /// ```
    pub fn append(&self) -> AppendBuilder {
        AppendBuilder::new(self.clone())
    }
}

const BUFFER_BYTES_DEFAULT: usize = 512 << 10;
const BUFFER_BYTES_MIN: usize = 4096;
const BUFFER_BYTES_MAX: usize = 64 << 20;
const DEPTH_DEFAULT: usize = 4;
const DEPTH_MAX: usize = 1024;

/// Settings of an append, which writes a file from front to back; see [`File::append`].
///
/// Values out of range are clamped.
#[derive(Clone, Debug)]
#[must_use = "an append begins with start()"]
pub struct AppendBuilder {
    file: File,
    buffer_bytes: usize,
    depth: usize,
    offset: u64,
    class: Option<Class>,
}

impl AppendBuilder {
    pub(crate) fn new(file: File) -> AppendBuilder {
        AppendBuilder {
            file,
            buffer_bytes: BUFFER_BYTES_DEFAULT,
            depth: DEPTH_DEFAULT,
            offset: 0,
            class: None,
        }
    }

    /// Sets the bytes of one write, 4 KiB to 64 MiB, rounded up to a multiple of
    /// [`Alignment::offset`](crate::Alignment::offset). Default: 512 KiB. Powers of two waste no memory.
    pub fn request_bytes(mut self, bytes: usize) -> AppendBuilder {
        self.buffer_bytes = bytes.clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
        self
    }

    /// Sets the most writes in flight, 1 to 1,024. Default: 4. One more buffer is held: the one that is being
    /// filled.
    pub fn depth(mut self, writes: usize) -> AppendBuilder {
        self.depth = writes.clamp(1, DEPTH_MAX);
        self
    }

    /// Sets the offset of the first byte in the file. Default: 0.
    ///
    /// Any offset will do. On a direct file an unaligned one costs a read with the first write, because the
    /// bytes before it in the same unit are written again. So the file must be open for reading too.
    pub fn at(mut self, offset: u64) -> AppendBuilder {
        self.offset = offset;
        self
    }

    /// Sets the class of the I/O. Default: that of the task that calls `start`,
    /// [`Class::DEFAULT`] outside of shards.
    pub fn class(mut self, class: Class) -> AppendBuilder {
        self.class = Some(class);
        self
    }

    /// Returns the append. Cheap: the first I/O is made at the first full buffer, sync or close.
    pub fn start(self) -> Append {
        Append {
            writer: Writer::new(
                self.file,
                Plan {
                    buffer_bytes: self.buffer_bytes,
                    depth: self.depth,
                    offset: self.offset,
                    class: self.class.unwrap_or_else(shard::class),
                },
            ),
        }
    }
}

/// A sequential writer: accepts bytes in pieces of any size, and writes them in large aligned requests in the background.
///
/// ```
/// # use forebay::{Config, Durability, Engine, Open};
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let engine = Engine::start(Config::new())?;
/// let file = engine.open(dir.path().join("table"), Open::create()).wait()?;
/// let mut append = file.append().start();
/// for line in ["any sizes\n", "at all\n"] {
///     append.write(line.as_bytes()).wait()?; // append.write(..).await in a task
/// }
/// append.sync(Durability::Data).wait()?;
/// assert_eq!(append.close().wait()?, 17);
/// assert_eq!(file.len().wait()?, 17);
/// # Ok(()) }
/// ```
///
/// **Length.** [`sync`](Append::sync) and [`close`](Append::close) leave the file at its exact length, also
/// when it is direct and the last unit had to be padded with zeros. A file that was longer before is not cut,
/// and the bytes behind the last one written stay as they are. Until then, and when an `Append` is dropped
/// instead of closed, up to one unit of padding may follow the data. While an `Append` writes a direct file
/// no one else may change the file's length within a unit of where it writes. Several that write parts of one
/// file side by side need the file's full length set ([`File::truncate`]) before.
///
/// **Errors.** The error of a write that fails in the background is returned by the next call that checks. Every later call fails
/// in the same way: nothing is written any more, and no call reports success. The exception is
/// [`ErrorKind::ArenaExhausted`](crate::ErrorKind::ArenaExhausted): nothing is lost then, and the append can continue from
/// [`position`](Append::position).
///
/// **Dropping** an `Append` without [`close`](Append::close) discards the bytes not written yet. Buffered bytes are lost. Writes
/// in flight may or may not happen, and their memory stays with the engine until the device is done with it. After the future of
/// a write is dropped, [`position`](Append::position) returns the end of the accepted bytes; the next sync does the work of a
/// dropped one. Dropping the future of [`close`](Append::close) drops the `Append`, and the padding may be truncated a little
/// later: await a call such as [`File::close`] before extending the file.
#[must_use = "what is still in its buffer is written by close()"]
pub struct Append {
    writer: Writer,
}

impl Append {
    /// Appends a copy of `bytes`. Waits only when as many writes are in flight as the depth allows, or when one of them must first
    /// release memory.
    ///
    /// # Errors
    /// The error of an earlier write that failed;
    /// [`ErrorKind::ArenaExhausted`](crate::ErrorKind::ArenaExhausted) when others hold all I/O memory;
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) past 2^63 bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("append", async move {
            let mut left = bytes;
            while !left.is_empty() {
                let taken = poll_fn(|context| self.writer.poll_write(context, left)).await?;
                left = &left[taken..];
            }
            Ok(())
        })
    }

    /// Appends a block. It is written from the block's memory, without a copy, when the position and the block's memory are aligned
    /// as the file needs (a buffered file needs nothing). An unaligned rest at the block's end is copied, and so is all of a block
    /// that is not aligned.
    ///
    /// Each block costs a request to the device, so small blocks are better copied with [`write`](Append::write).
    ///
    /// # Errors
    /// Those of [`write`](Append::write).
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// let copy = engine.open(dir.path().join("copy"), Open::create()).wait()?;
    /// let (mut scan, mut append) = (file.scan().start(), copy.append().start());
    /// while let Some(block) = scan.next().wait() {
    ///     append.write_block(block?).wait()?; // no byte is copied on the way
    /// }
    /// assert_eq!(append.close().wait()?, 16_384);
    /// # Ok(()) }
    /// ```
    pub fn write_block(&mut self, block: Block) -> Waitable<impl Future<Output = Result<()>>> {
        let mut left = block;
        Waitable::new("append", poll_fn(move |context| self.writer.poll_write_block(context, &mut left)))
    }

    /// Writes everything accepted so far to the file, sets the file's exact length, then syncs. With [`Durability::None`] the sync
    /// is omitted, and only that order is kept.
    ///
    /// On a direct file the last unit, when it is not full, is written padded, and again with later bytes.
    ///
    /// # Errors
    /// That of a write or of the sync. After a failed sync nothing since the last successful one counts as
    /// written.
    pub fn sync(&mut self, durability: Durability) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("append", async move {
            // A sync whose future was dropped may have an error to report.
            poll_fn(|context| self.writer.poll_sync_over(context)).await?;
            poll_fn(|context| self.writer.poll_settled(context)).await?;
            self.writer.begin_sync(durability);
            poll_fn(|context| self.writer.poll_sync_over(context)).await
        })
    }

    /// Writes all accepted bytes to the file, sets its exact length, and returns the position behind the last byte. That is the
    /// file's length, unless the file was longer before.
    ///
    /// Does not sync: a power cut may still lose bytes that [`sync`](Append::sync) has not made durable. The
    /// file stays open.
    ///
    /// # Errors
    /// The error of any write that failed.
    pub fn close(mut self) -> Waitable<impl Future<Output = Result<u64>>> {
        Waitable::new("append", async move {
            poll_fn(|context| self.writer.poll_settled(context)).await?;
            poll_fn(|context| self.writer.poll_sync_over(context)).await?;
            Ok(self.writer.position())
        })
    }

    /// Returns the file, for all other calls.
    pub fn file(&self) -> &File {
        self.writer.file()
    }

    /// Returns the offset in the file of the next byte: [`AppendBuilder::at`] plus all bytes accepted since.
    pub fn position(&self) -> u64 {
        self.writer.position()
    }

    /// Returns the bytes of writes in flight, padding included. For tests.
    #[doc(hidden)]
    pub fn in_flight_bytes(&self) -> u64 {
        self.writer.in_flight_bytes()
    }

    /// Returns the bytes of I/O memory held: the buffer being filled, and the buffers in flight. Never more
    /// than depth plus one buffers; blocks given to [`write_block`](Append::write_block) count by their
    /// length.
    pub fn held_bytes(&self) -> u64 {
        self.writer.held_bytes()
    }
}

crate::_debug_parts!(
    Append, |append|
    file: append.file(),
    position: append.position(),
    in_flight_bytes: append.in_flight_bytes()
);

/// A buffer being filled, and its place in the file.
struct AppendBuffer {
    /// The offset of its first byte: a multiple of the unit of the file's writes.
    start: u64,
    /// Bytes from `start` on that are in the file already and share their unit with the next bytes. Kept
    /// here, so that an idle append holds no I/O memory.
    carry: Vec<u8>,
    block: Option<BlockMut>,
    /// The length at which the block is sent to be written.
    full: usize,
}

impl AppendBuffer {
    fn new(start: u64) -> AppendBuffer {
        AppendBuffer { start, carry: Vec::new(), block: None, full: 0 }
    }

    fn start(&self) -> u64 {
        self.start
    }

    fn has_block(&self) -> bool {
        self.block.is_some()
    }

    fn is_full(&self) -> bool {
        self.block.as_ref().is_some_and(|block| block.len() >= self.full)
    }

    /// Returns the bytes of I/O memory held.
    fn capacity(&self) -> usize {
        self.block.as_ref().map_or(0, BlockMut::capacity)
    }

    /// Continues at `start`, a multiple of the file's unit, with bytes that are in the file already.
    fn restart(&mut self, start: u64, carry: &[u8]) {
        self.start = start;
        self.carry.clear();
        self.carry.extend_from_slice(carry);
    }

    /// Sets the `len` bytes before the first one: those found in the file, and zeros beyond its end.
    fn carry_found(&mut self, found: &[u8], len: usize) {
        self.carry.clear();
        self.carry.extend_from_slice(found);
        self.carry.resize(len, 0);
    }

    /// Takes over a buffer of at least `full` bytes to fill.
    fn give(&mut self, buffer: Buffer, full: usize) -> Result<()> {
        let mut block = buffer.into_empty();
        block.extend_from_slice(&self.carry)?;
        debug_assert!(block.len() < full, "what was carried over is less than a buffer");
        self.full = full;
        self.block = Some(block);
        Ok(())
    }

    /// Copies as many bytes as fit; returns their number.
    fn copy(&mut self, bytes: &[u8]) -> Result<usize> {
        let Some(block) = &mut self.block else { return Ok(0) };
        let taken = &bytes[..bytes.len().min(self.full - block.len())];
        block.extend_from_slice(taken)?;
        Ok(taken.len())
    }

    /// Returns the filled block, to be written at [`start`](Self::start).
    fn take(&mut self) -> Option<BlockMut> {
        self.block.take()
    }
}
