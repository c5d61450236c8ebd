//! Reading a file from front to back: read-ahead as parallelism, not as bigger requests.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
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

mod builder;
#[cfg(feature = "tokio")]
mod reader;

pub use builder::ScanBuilder;
#[cfg(feature = "tokio")]
pub use reader::ScanReader;

impl File {
    /// Reads the file, or a range of it, from front to back with read-ahead.
    pub fn scan(&self) -> ScanBuilder {
        ScanBuilder::new(self.clone())
    }
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
/// while let Some(block) = scan.next().wait() {
///     bytes += block?.len();
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
    /// Where to begin again after a read found no memory, while reads behind it are still in flight.
    retreat: Option<u64>,
    /// After a retreat the first read goes alone, so that it lacks no memory that this scan holds.
    alone: bool,
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
    /// The device's, and [`ErrorKind::ArenaExhausted`](crate::ErrorKind::ArenaExhausted) when the program holds all blocks;
    /// where read-ahead alone needs more memory than there is, the scan goes on with less of it. After an error the scan is
    /// over. A file that became shorter meanwhile ends early, without an error.
    #[expect(clippy::should_implement_trait, reason = "the asynchronous `next`, as that of a `Stream`")]
    pub fn next(&mut self) -> Waitable<impl Future<Output = Option<Result<Block>>>> {
        Waitable::new("scan", poll_fn(|context| self.poll_next_block(context).map(Result::transpose)))
    }

    /// The most bytes that were in flight or ready at once so far.
    pub fn in_flight_bytes_peak(&self) -> u64 {
        self.in_flight_bytes_peak
    }

    /// Reads as a byte stream that copies into the reader's memory.
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
                return Poll::Ready(Ok(None));
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
                // Its memory may be in read-ahead of ours rather than in the program's hands.
                Err(error) if !self.alone && matches!(error.kind(), ErrorKind::ArenaExhausted { .. }) => {
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

    /// Waits for the reads behind one that found no memory, gives back what they hold, and has the scan begin again at
    /// its place with half as much ahead.
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
            // Requests end at multiples of their size, so that all but the first are aligned whatever the start.
            let aligned_end = self.next - self.next % 4096 + u64::from(self.pace.buffer);
            let end = aligned_end.min(self.end);
            let len = (end - self.next) as u32;
            let mut read = RangeRead::owned(self.core.clone(), self.next..end, self.class);
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
        self.retreat = None;
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
