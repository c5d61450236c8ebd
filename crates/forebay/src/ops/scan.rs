//! Reading a file from front to back: read-ahead by parallel requests, not by larger requests.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::base::class::Class;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::pending::Pending;
use crate::base::wait::Waitable;
use crate::handle::file::File;
use crate::memory::block::Block;
use crate::ops::read::RangeRead;
use crate::reactor::open_file::FileCore;
use crate::reactor::page_cache::{Sequence, TRY_BYTES_MAX, next_from_page_cache};
use crate::reactor::shard;

#[cfg(feature = "tokio")]
mod reader;

#[cfg(feature = "tokio")]
pub use reader::ScanReader;

impl File {
    /// Returns a builder for a scan, which reads the file, or a range of it, from front to back with
    /// read-ahead.
    ///
    /// ```
    /// # use forebay::{Class, Config, Engine, Open};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).await?;
    /// # file.write(0, vec![7; 16_384]).await?;
    /// let mut scan = file.scan().range(4096..).class(Class::BACKGROUND).start();
    /// let mut sum = 0;
    /// while let Some(block) = scan.next().await {
    ///     sum += block?.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    /// }
    /// assert_eq!(sum, 7 * 12_288);
    /// # Ok(()) }
    /// ```
    pub fn scan(&self) -> ScanBuilder {
        ScanBuilder::new(self.clone())
    }
}

/// The most bytes that an adaptive scan has in flight.
const IN_FLIGHT_BYTES_MAX: u64 = 8 << 20;
const ADAPTIVE_BUFFER: u32 = 512 << 10;
const ADAPTIVE_DEPTH: u32 = 8;
/// Blocks in a row that were ready before they were requested: below the first limit the scan grows, above the second the consumer
/// counts as slower than the device, and the count continues from the first limit.
const SLOWER_GROW: u32 = 32;
const SLOWER_SHRINK: u32 = 64;
/// A file of length 0 may still have bytes, as in procfs and in control groups. At most this many are read.
const UNSIZED_BYTES_MAX: u64 = 1 << 30;
const RAMP_BUFFER: u32 = 128 << 10;
const RAMP_DEPTH: u32 = 2;

/// Size and number of the requests in flight at the moment.
#[derive(Clone, Copy, Debug)]
struct Pace {
    buffer: u32,
    depth: u32,
    adaptive: bool,
}

/// A scan of a file from front to back; returns blocks without a copy.
///
/// ```
/// # use forebay::{Config, Engine, Open};
/// # fn main() -> forebay::Result<()> {
/// # let engine = Engine::start(Config::new())?;
/// let file = engine.open("Cargo.toml", Open::read()).wait()?;
/// let mut scan = file.scan().start();
/// let mut bytes = 0;
/// while let Some(block) = scan.next().wait() {
///     bytes += block?.len();
/// }
/// assert_eq!(bytes as u64, file.len().wait()?);
/// # Ok(()) }
/// ```
///
/// The scan ends at the file's length at the start of the scan. A file of length 0 is read, one request at a time, until a read
/// finds its end: files of procfs and of control groups have length 0 and still have bytes. For an empty file that is one read.
///
/// Dropping the scan cancels the reads in flight; their memory stays with the engine until the device is done with it.
#[must_use = "a scan gives blocks only when they are asked for"]
pub struct Scan {
    file: File,
    core: Arc<FileCore>,
    class: Class,
    next: u64,
    end: u64,
    /// The file's length is 0 and says nothing: the scan ends with an error at `end`, which is the limit, if no read has ended before.
    is_unsized: bool,
    /// Read once, so that no request is past the end of the file.
    length: Option<Pending<u64>>,
    asked_length: bool,
    pace: Pace,
    /// Blocks in a row that had waited for the consumer.
    slower: u32,
    in_flight: VecDeque<InFlight>,
    in_flight_bytes: u64,
    in_flight_bytes_peak: u64,
    /// The offset to restart at after a read found no memory, while reads behind it are still in flight.
    retreat: Option<u64>,
    /// The reads so far, for an adaptive file's look into the page cache.
    sequence: Sequence,
    /// Set after a retreat: the first read is then alone in flight, so that this scan itself does not hold the memory that it
    /// needs.
    alone: bool,
    over: bool,
}

struct InFlight {
    read: RangeRead<'static>,
    len: u32,
}

impl Scan {
    /// Returns the next block, in order; `None` at the end. Blocks are as long as the scan's requests, the
    /// last one shorter.
    ///
    /// # Errors
    /// The device's, and [`ErrorKind::ArenaExhausted`](crate::ErrorKind::ArenaExhausted) when the program holds all blocks. If only
    /// read-ahead lacks memory, the scan continues with less of it. [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge) for a file
    /// of length 0 that has more than 1 GiB. An error ends the scan. A file that is truncated meanwhile ends early, without an
    /// error.
    #[expect(clippy::should_implement_trait, reason = "the asynchronous `next`, as that of a `Stream`")]
    pub fn next(&mut self) -> Waitable<impl Future<Output = Option<Result<Block>>>> {
        Waitable::new("scan", poll_fn(|context| self.poll_next_block(context).map(Result::transpose)))
    }

    /// Returns the peak of the bytes in flight or ready so far.
    pub fn in_flight_bytes_peak(&self) -> u64 {
        self.in_flight_bytes_peak
    }

    /// Returns a byte stream that copies into the reader's memory.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::start(Config::new())?;
    /// use tokio::io::AsyncBufReadExt;
    ///
    /// let file = engine.open("Cargo.toml", Open::read()).await?;
    /// let mut lines = tokio::io::BufReader::new(file.scan().start().into_async_read()).lines();
    /// assert_eq!(lines.next_line().await?.as_deref(), Some("[package]"));
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "tokio")]
    pub fn into_async_read(self) -> ScanReader {
        ScanReader::new(self)
    }

    pub(crate) fn poll_next_block(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Block>>> {
        if self.over {
            return Poll::Ready(Ok(None));
        }
        if !self.asked_length
            && let Err(error) = std::task::ready!(self.poll_length(context))
        {
            self.over = true;
            return Poll::Ready(Err(error));
        }
        let (block, asked) = loop {
            std::task::ready!(self.poll_retreat(context));
            self.fill();
            let Some(first) = self.in_flight.front_mut() else {
                self.over = true;
                return Poll::Ready(if self.is_unsized { Err(self.too_long()) } else { Ok(None) });
            };
            let polled = first.read.poll(context);
            let Poll::Ready(result) = polled else {
                self.slower = 0;
                return Poll::Pending;
            };
            let asked = first.len;
            let place = self.next - self.in_flight_bytes;
            self.in_flight.pop_front();
            self.in_flight_bytes -= u64::from(asked);
            match result {
                Ok(block) => break (block, asked),
                // The memory that it needs may be in our own read-ahead rather than held by the program.
                Err(error) if !self.alone && error.is_out_of_memory() => {
                    self.retreat = Some(place);
                }
                Err(error) => {
                    self.stop();
                    return Poll::Ready(Err(error));
                }
            }
        };
        self.alone = false;
        if (block.len() as u32) < asked {
            // The file is shorter than it was: a block after this one would leave a gap.
            self.stop();
        }
        self.adapt();
        self.fill();
        if block.is_empty() { Poll::Ready(Ok(None)) } else { Poll::Ready(Ok(Some(block))) }
    }

    fn poll_length(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.end < self.next {
            let note = format!("the range ends ({}) before it starts ({})", self.end, self.next);
            return Poll::Ready(Err(self.core.describe(Error::invalid("scan", note))));
        }
        let length = self.length.get_or_insert_with(|| self.file.len());
        let length = std::task::ready!(std::pin::Pin::new(length).poll(context));
        self.length = None;
        self.asked_length = true;
        // No file has bytes so close to the largest offset, and the end of a request there would be beyond it.
        let is_possible = i64::try_from(self.next.saturating_add(UNSIZED_BYTES_MAX)).is_ok();
        let may_have_bytes = self.next < self.end && is_possible;
        Poll::Ready(length.map(|length| match length {
            0 if may_have_bytes && !self.core.engine().is_simulated() => self.look_for_end(),
            length => self.end = self.end.min(length),
        }))
    }

    /// Lets the scan of a file of length 0 continue until a read finds the end.
    #[cold]
    fn look_for_end(&mut self) {
        let limit = self.next.saturating_add(UNSIZED_BYTES_MAX);
        self.is_unsized = limit < self.end;
        self.end = self.end.min(limit);
        // Read-ahead is wasted if the end is found first, which is usual.
        self.pace = Pace { depth: 1, adaptive: false, ..self.pace };
    }

    #[cold]
    fn too_long(&self) -> Error {
        let error = Error::new(ErrorKind::TooLarge { limit: UNSIZED_BYTES_MAX }, "scan");
        self.core.describe(error.with_note(" of a file without a length"))
    }

    /// Waits for the reads behind one that found no memory, releases their memory, and restarts the scan at its place with half the
    /// depth.
    fn poll_retreat(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(place) = self.retreat else { return Poll::Ready(()) };
        while let Some(first) = self.in_flight.front_mut() {
            drop(std::task::ready!(first.read.poll(context)));
            self.in_flight.pop_front();
        }
        self.in_flight_bytes = 0;
        self.next = place;
        self.pace.depth = (self.pace.depth / 2).max(1);
        self.pace.adaptive = false;
        self.retreat = None;
        self.alone = true;
        Poll::Ready(())
    }

    /// Keeps the requests in flight that the pace allows.
    fn fill(&mut self) {
        let depth = if self.alone { 1 } else { self.pace.depth };
        while self.next < self.end && (self.in_flight.len() as u32) < depth {
            // Requests end at multiples of their size, so that all but the first are aligned for any start.
            let aligned_end = self.next - self.next % 4096 + u64::from(self.pace.buffer);
            let end = aligned_end.min(self.end);
            let len = (end - self.next) as u32;
            let cached = self.cached_block(end);
            let is_cached = cached.is_some();
            let read = match cached {
                Some(block) => RangeRead::known(self.core.clone(), self.next..end, Ok(block)),
                None => self.begin(end),
            };
            self.in_flight.push_back(InFlight { read, len });
            self.in_flight_bytes += u64::from(len);
            self.in_flight_bytes_peak = self.in_flight_bytes_peak.max(self.in_flight_bytes);
            self.next = end;
            if is_cached {
                // Reading ahead of what lies in memory would only hold more of it.
                break;
            }
        }
    }

    /// Starts the read of the bytes up to `end`.
    fn begin(&self, end: u64) -> RangeRead<'static> {
        let make = if self.core.is_adaptive() { RangeRead::of_device } else { RangeRead::owned };
        let mut read = make(self.core.clone(), self.next..end, self.class);
        // The first poll sends it. A task that waits for it polls it again with its own waker.
        match read.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => read,
            Poll::Ready(result) => RangeRead::known(self.core.clone(), self.next..end, result),
        }
    }

    /// Returns the bytes up to `end` of an adaptive file, if the page cache has them.
    fn cached_block(&mut self, end: u64) -> Option<Block> {
        if !self.core.is_adaptive() {
            return None;
        }
        next_from_page_cache(&self.core, &(self.next..end), &mut self.sequence)
    }

    /// Doubles the bytes in flight up to the target, and reduces the depth while the consumer is slower than
    /// the device.
    fn adapt(&mut self) {
        if !self.pace.adaptive {
            return;
        }
        if self.next_is_ready() {
            self.slower += 1;
        }
        if self.slower > SLOWER_SHRINK && self.pace.depth > RAMP_DEPTH {
            self.pace.depth -= 1;
            // Not from zero, or the next block would bring the depth back: it grows after the device was waited for.
            self.slower = SLOWER_GROW;
        } else if self.pace.buffer < ADAPTIVE_BUFFER {
            self.pace.buffer *= 2;
        } else if self.pace.depth < ADAPTIVE_DEPTH && self.slower < SLOWER_GROW {
            self.pace.depth = (self.pace.depth * 2).min(ADAPTIVE_DEPTH);
        }
        debug_assert!(u64::from(self.pace.depth) * u64::from(self.pace.buffer) <= IN_FLIGHT_BYTES_MAX);
    }

    /// Returns whether the block after this one has been waiting for the consumer.
    fn next_is_ready(&mut self) -> bool {
        let Some(first) = self.in_flight.front_mut() else { return false };
        if !first.read.is_known() {
            // A task that waits for it polls it again with its own waker.
            if let Poll::Ready(result) = first.read.poll(&mut Context::from_waker(Waker::noop())) {
                first.read = RangeRead::known(self.core.clone(), 0..u64::from(first.len), result);
            }
        }
        first.read.is_known()
    }

    fn stop(&mut self) {
        self.over = true;
        self.retreat = None;
        self.next = self.end;
        self.in_flight.clear();
        self.in_flight_bytes = 0;
    }
}

/// Gives the items of [`next`](Scan::next).
#[cfg(feature = "stream")]
impl futures_core::Stream for Scan {
    type Item = Result<Block>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Block>>> {
        self.poll_next_block(context).map(Result::transpose)
    }
}

crate::_debug_parts!(Scan, |scan| file: scan.file, next: scan.next, pace: scan.pace);

/// Settings of a scan, which reads a file from front to back; see [`File::scan`].
///
/// Without [`request_bytes`](ScanBuilder::request_bytes) and [`depth`](ScanBuilder::depth) the scan adapts. It starts with two
/// requests of 128 KiB and doubles the bytes in flight with every block returned, up to eight requests of 512 KiB (4 MiB), which
/// was the best of all cells measured. A consumer that is slower than the device makes it reduce the depth.
///
/// Values out of range are clamped.
#[derive(Clone, Debug)]
#[must_use = "a scan begins with start()"]
pub struct ScanBuilder {
    file: File,
    range: Range<u64>,
    buffer: Option<u32>,
    depth: Option<u32>,
    class: Option<Class>,
}

impl ScanBuilder {
    pub(crate) fn new(file: File) -> ScanBuilder {
        ScanBuilder { file, range: 0..u64::MAX, buffer: None, depth: None, class: None }
    }

    /// Sets the part of the file to read. Default: all of it. It may start anywhere. The end is clamped to the end of the file,
    /// which is also the end of an open range (`4096..`). The limit for files of length 0 counts from the start of the range.
    pub fn range(mut self, range: impl RangeBounds<u64>) -> ScanBuilder {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        self.range = start..end;
        self
    }

    /// Sets the bytes of one request, 4 KiB to 64 MiB, of an adaptive file at most 4 MiB, rounded up to whole pages; the scan then does
    /// not adapt.
    pub fn request_bytes(mut self, bytes: usize) -> ScanBuilder {
        let pages = bytes.clamp(4096, 64 << 20).next_multiple_of(4096);
        self.buffer = Some(pages as u32);
        self
    }

    /// Sets the requests in flight, 1 to 1,024; the scan then does not adapt.
    pub fn depth(mut self, requests: usize) -> ScanBuilder {
        self.depth = Some(requests.clamp(1, 1024) as u32);
        self
    }

    /// Sets the class. Default: that of the task that calls `start`, [`Class::DEFAULT`] outside of shards.
    pub fn class(mut self, class: Class) -> ScanBuilder {
        self.class = Some(class);
        self
    }

    /// Returns the scan; its first requests are sent when the first block is requested.
    pub fn start(self) -> Scan {
        let fixed = self.buffer.is_some() || self.depth.is_some();
        // The most that one poll copies.
        let buffer_max = if self.file.core().is_adaptive() { TRY_BYTES_MAX as u32 } else { u32::MAX };
        let pace = if fixed {
            Pace {
                buffer: self.buffer.unwrap_or(ADAPTIVE_BUFFER).min(buffer_max),
                depth: self.depth.unwrap_or(ADAPTIVE_DEPTH),
                adaptive: false,
            }
        } else {
            Pace { buffer: RAMP_BUFFER, depth: RAMP_DEPTH, adaptive: true }
        };
        Scan {
            core: self.file.core().clone(),
            class: self.class.unwrap_or_else(shard::class),
            next: self.range.start,
            end: self.range.end,
            is_unsized: false,
            length: None,
            asked_length: false,
            pace,
            slower: 0,
            in_flight: VecDeque::with_capacity(ADAPTIVE_DEPTH as usize),
            in_flight_bytes: 0,
            in_flight_bytes_peak: 0,
            retreat: None,
            sequence: Sequence::at(self.range.start),
            alone: false,
            over: false,
            file: self.file,
        }
    }
}
