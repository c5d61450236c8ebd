//! Reading a file from front to back: read-ahead as parallelism, not as bigger requests.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::block::Block;
use crate::class::Class;
use crate::error::{Error, Result};
use crate::file::{File, FileCore};
use crate::pending::Pending;
use crate::read::RangeRead;
use crate::shard;
use crate::wait;

/// How to read a file from front to back; see [`File::scan`].
///
/// Without [`buffer`](ScanBuilder::buffer) and [`depth`](ScanBuilder::depth) the scan adapts: it begins with two
/// requests of 128 KiB and doubles what is in flight with every block taken, up to eight requests of 512 KiB (4 MiB),
/// which was the best of all cells measured; a consumer that is slower than the device makes it give depth back.
#[derive(Clone, Debug)]
#[must_use = "a scan begins with start()"]
pub struct ScanBuilder {
    file: File,
    range: Range<u64>,
    buffer: Option<u32>,
    depth: Option<u32>,
    class: Option<Class>,
}

/// An adaptive scan never has more than this in flight.
const IN_FLIGHT_BYTES_MAX: u64 = 8 << 20;
const ADAPTIVE_BUFFER: u32 = 512 << 10;
const ADAPTIVE_DEPTH: u32 = 8;
/// Blocks in a row that were ready before they were asked for: below the first the scan grows, above the second the
/// consumer counts as the slower one.
const SLOWER_GROW: u32 = 32;
const SLOWER_SHRINK: u32 = 64;
const RAMP_BUFFER: u32 = 128 << 10;
const RAMP_DEPTH: u32 = 2;

impl ScanBuilder {
    pub(crate) fn new(file: File) -> ScanBuilder {
        ScanBuilder { file, range: 0..u64::MAX, buffer: None, depth: None, class: None }
    }

    /// The part of the file to read. Default: all of it. It may begin anywhere; the end is cut to the file's.
    pub fn range(mut self, range: Range<u64>) -> ScanBuilder {
        self.range = range;
        self
    }

    /// Bytes of one request, 4 KiB to 64 MiB, rounded up to whole pages; makes the scan a fixed one.
    pub fn buffer(mut self, bytes: usize) -> ScanBuilder {
        let pages = bytes.clamp(4096, 64 << 20).next_multiple_of(4096);
        self.buffer = Some(pages as u32);
        self
    }

    /// Requests in flight, 1 to 1,024; makes the scan a fixed one.
    pub fn depth(mut self, requests: usize) -> ScanBuilder {
        self.depth = Some(requests.clamp(1, 1024) as u32);
        self
    }

    /// Who asks; default: the class of the task that runs, [`Class::DEFAULT`] outside of shards.
    pub fn class(mut self, class: Class) -> ScanBuilder {
        self.class = Some(class);
        self
    }

    /// Begins; the first requests go out when the first block is asked for.
    pub fn start(self) -> Scan {
        let fixed = self.buffer.is_some() || self.depth.is_some();
        let pace = match fixed {
            true => Pace {
                buffer: self.buffer.unwrap_or(ADAPTIVE_BUFFER),
                depth: self.depth.unwrap_or(ADAPTIVE_DEPTH),
                adaptive: false,
            },
            false => Pace { buffer: RAMP_BUFFER, depth: RAMP_DEPTH, adaptive: true },
        };
        Scan {
            core: self.file.core().clone(),
            class: self.class.unwrap_or_else(shard::class),
            next: self.range.start,
            end: self.range.end,
            length: None,
            asked_length: false,
            pace,
            slower: 0,
            in_flight: VecDeque::with_capacity(ADAPTIVE_DEPTH as usize),
            in_flight_bytes: 0,
            in_flight_bytes_peak: 0,
            over: false,
            file: self.file,
        }
    }
}

/// What is in flight at the moment.
#[derive(Clone, Copy, Debug)]
struct Pace {
    buffer: u32,
    depth: u32,
    adaptive: bool,
}

/// A file being read from front to back; gives blocks without a copy.
///
/// ```
/// # use forebay::{Config, Engine, Open};
/// # fn main() -> forebay::Result<()> {
/// # let engine = Engine::start(Config::default())?;
/// let file = engine.open("Cargo.toml", Open::read()).wait()?;
/// let mut scan = file.scan().start();
/// let mut bytes = 0;
/// while let Some(block) = scan.next_wait()? {
///     bytes += block.len();
/// }
/// assert_eq!(bytes as u64, file.len().wait()?);
/// # Ok(()) }
/// ```
///
/// The end is where the file ended when the scan began. Dropping the scan cancels what is in flight; the memory stays
/// with the engine until the device is done with it.
#[must_use = "a scan gives blocks only when they are asked for"]
pub struct Scan {
    file: File,
    core: Arc<FileCore>,
    class: Class,
    next: u64,
    end: u64,
    /// Asked once, so that no request goes out past the end of the file.
    length: Option<Pending<u64>>,
    asked_length: bool,
    pace: Pace,
    /// Blocks in a row that had waited for the consumer.
    slower: u32,
    in_flight: VecDeque<InFlight>,
    in_flight_bytes: u64,
    in_flight_bytes_peak: u64,
    over: bool,
}

struct InFlight {
    read: RangeRead<'static>,
    len: u32,
}

impl Scan {
    /// The next block, in order; `None` at the end. Blocks are as long as the scan's requests, the last one shorter.
    ///
    /// # Errors
    /// The device's, and [`ErrorKind::ArenaExhausted`](crate::ErrorKind::ArenaExhausted) when the program holds all blocks. After an error the scan is
    /// over. A file that became shorter meanwhile ends early, without an error.
    pub async fn next(&mut self) -> Result<Option<Block>> {
        poll_fn(|context| self.poll_next_block(context)).await
    }

    /// As [`next`](Scan::next) on a plain thread.
    ///
    /// # Errors
    /// As [`next`](Scan::next); [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread.
    pub fn next_wait(&mut self) -> Result<Option<Block>> {
        wait::block_on("scan", self.next())
    }

    /// The most bytes that were in flight or ready at once so far.
    pub fn in_flight_bytes_peak(&self) -> u64 {
        self.in_flight_bytes_peak
    }

    /// Reads as a byte stream that copies into the reader's memory.
    #[cfg(feature = "tokio")]
    pub fn into_async_read(self) -> ScanReader {
        ScanReader { scan: self, block: Block::default(), at: 0 }
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
        self.fill();
        let Some(first) = self.in_flight.front_mut() else {
            self.over = true;
            return Poll::Ready(Ok(None));
        };
        let polled = first.read.poll(context);
        let Poll::Ready(result) = polled else {
            self.slower = 0;
            return Poll::Pending;
        };
        let asked = first.len;
        self.in_flight.pop_front();
        self.in_flight_bytes -= u64::from(asked);
        let block = match result {
            Ok(block) => block,
            Err(error) => {
                self.stop();
                return Poll::Ready(Err(error));
            }
        };
        if (block.len() as u32) < asked {
            // The file is shorter than it was: what follows would be a gap.
            self.stop();
        }
        self.adapt();
        self.fill();
        match block.is_empty() {
            true => Poll::Ready(Ok(None)),
            false => Poll::Ready(Ok(Some(block))),
        }
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
        Poll::Ready(length.map(|length| self.end = self.end.min(length)))
    }

    /// Keeps the requests in flight that the pace allows.
    fn fill(&mut self) {
        while self.next < self.end && (self.in_flight.len() as u32) < self.pace.depth {
            // Requests end at multiples of their size, so that all but the first are aligned whatever the start.
            let aligned_end = self.next - self.next % 4096 + u64::from(self.pace.buffer);
            let end = aligned_end.min(self.end);
            let len = (end - self.next) as u32;
            let mut read = RangeRead::owned(self.core.clone(), self.next..end, Some(self.class));
            // The first poll sends it off; whoever waits for it polls it again with a waker of its own.
            let begun = read.poll(&mut Context::from_waker(Waker::noop()));
            let read = match begun {
                Poll::Pending => read,
                Poll::Ready(result) => RangeRead::known(self.core.clone(), self.next..end, result),
            };
            self.in_flight.push_back(InFlight { read, len });
            self.in_flight_bytes += u64::from(len);
            self.in_flight_bytes_peak = self.in_flight_bytes_peak.max(self.in_flight_bytes);
            self.next = end;
        }
    }

    /// Doubles what is in flight until the target, and gives depth back while the consumer is the slower one.
    fn adapt(&mut self) {
        if !self.pace.adaptive {
            return;
        }
        if self.next_is_ready() {
            self.slower += 1;
        }
        if self.slower > SLOWER_SHRINK && self.pace.depth > RAMP_DEPTH {
            self.pace.depth -= 1;
            self.slower = 0;
        } else if self.pace.buffer < ADAPTIVE_BUFFER {
            self.pace.buffer *= 2;
        } else if self.pace.depth < ADAPTIVE_DEPTH && self.slower < SLOWER_GROW {
            self.pace.depth = (self.pace.depth * 2).min(ADAPTIVE_DEPTH);
        }
        debug_assert!(u64::from(self.pace.depth) * u64::from(self.pace.buffer) <= IN_FLIGHT_BYTES_MAX);
    }

    /// Has the block after this one been waiting for the consumer?
    fn next_is_ready(&mut self) -> bool {
        let Some(first) = self.in_flight.front_mut() else { return false };
        if !first.read.is_known() {
            // Whoever waits for it polls it again with a waker of its own.
            if let Poll::Ready(result) = first.read.poll(&mut Context::from_waker(Waker::noop())) {
                first.read = RangeRead::known(self.core.clone(), 0..u64::from(first.len), result);
            }
        }
        first.read.is_known()
    }

    fn stop(&mut self) {
        self.over = true;
        self.next = self.end;
        self.in_flight.clear();
        self.in_flight_bytes = 0;
    }
}

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

impl fmt::Debug for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scan")
            .field("file", &self.file)
            .field("next", &self.next)
            .field("pace", &self.pace)
            .finish_non_exhaustive()
    }
}

/// A [`Scan`] as a `tokio::io::AsyncRead`: one copy, from the blocks into the reader's memory.
#[cfg(feature = "tokio")]
#[derive(Debug)]
pub struct ScanReader {
    scan: Scan,
    block: Block,
    at: usize,
}

#[cfg(feature = "tokio")]
impl tokio::io::AsyncRead for ScanReader {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        context: &mut Context<'_>,
        target: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        while this.at == this.block.len() {
            match std::task::ready!(this.scan.poll_next_block(context)) {
                Ok(Some(block)) => (this.block, this.at) = (block, 0),
                Ok(None) => return Poll::Ready(Ok(())),
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        let part = &this.block[this.at..];
        let part = &part[..part.len().min(target.remaining())];
        target.put_slice(part);
        this.at += part.len();
        if this.at == this.block.len() {
            // Given back now: the next poll may come late.
            (this.block, this.at) = (Block::default(), 0);
        }
        Poll::Ready(Ok(()))
    }
}
