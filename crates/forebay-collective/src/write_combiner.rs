//! Small writes at any offsets: gathered in bounded memory, sorted, and merged into large aligned writes.

use std::future::{Future, poll_fn};
use std::ops::Range;
use std::sync::Arc;

use forebay::internal::{ErrorExt, FileInternals};
use forebay::{Block, Durability, ErrorKind, File, Result, Waitable};

use crate::coalesce::{Shape, WriteStats, WriterCore};
use crate::options::Options;

mod combiner_core;
mod dirty;
mod elevator;
mod slots;
mod state;

use combiner_core::{CombinerCore, Handles};
use elevator::Elevator;
use state::{CombinerState, Holes};

const REQUEST_BYTES_DEFAULT: u64 = 512 << 10;
const DEPTH_DEFAULT: usize = 32;

/// Accepts small writes at any offsets, and writes them to the file in few large requests.
///
/// ```
/// # use forebay::{Config, Durability, Engine, Open};
/// # use forebay_collective::{Options, WriteCombiner};
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let engine = Engine::start(Config::new())?;
/// let file = engine.open(dir.path().join("table"), Open::create()).wait()?;
/// let combiner = WriteCombiner::start(&file, Options::new().memory_bytes_max(1 << 20));
/// for n in (0..1000u64).rev() {
///     combiner.write(n * 100, &[n as u8; 100]).wait()?; // combiner.write(..).await in a task
/// }
/// assert_eq!(&combiner.read(500..502).wait()?[..], &[5, 5]); // its own writes, though nothing is in the file yet
/// combiner.flush(Durability::Data).wait()?;
/// assert_eq!(file.len().wait()?, 100_000);
/// # Ok(()) }
/// ```
///
/// **Order.** Where writes overlap the later call wins. Calls that run at the same time may be applied in any order, and two that
/// overlap may be mixed at multiples of the page size. A clone is another handle of the same write combiner, for any thread.
///
/// **Durability.** Nothing is durable before [`flush`](WriteCombiner::flush). Until then a power cut, the end of
/// the process, or dropping the last handle may lose any part of the bytes written. They wait in memory and
/// leave it when it is full, in the order of the file and not of the calls; so after a power cut any part of
/// them may be in the file. After a flush everything written before it has the durability requested.
/// [`barrier`](WriteCombiner::barrier) gives an order without waiting.
///
/// **Pages.** The device is written in whole pages: 4 KiB, or more where the file's alignment is more. A page that was written in
/// part is read once, when it leaves memory. So the file must be open for reading too. Meanwhile no one else may write the pages
/// that a write combiner writes, or change the file's length. Pages that were not written are not touched. A page that extends past
/// the end of the file is padded. [`flush`](WriteCombiner::flush), and writes behind a barrier, find the file at its exact length;
/// until then, and when the write combiner is dropped, up to a page of zeros may follow.
///
/// **Memory** is limited by [`Options::memory_bytes_max`]; a write waits when all of it is used. Pages leave as in an elevator, in
/// one sweep through the file after the other, so that those behind the sweep have the longest time to get neighbours.
///
/// **Errors.** The first error of a write, read or sync in the background ends the write combiner. The next call
/// that checks returns it, and every later call fails in the same way; bytes not flushed by then count as
/// lost. The exception is [`ErrorKind::ArenaExhausted`]: nothing is lost then, and the call can be made
/// again.
///
/// **Dropping** the future of a write may leave a first part of it written. Dropping the future of a flush leaves its work to the
/// next flush. The task ends with the last handle; bytes not flushed by then are dropped.
#[derive(Clone)]
#[must_use = "what is still in memory is written by flush()"]
pub struct WriteCombiner {
    handles: Arc<Handles>,
}

impl WriteCombiner {
    /// Returns a write combiner of the file, with its task started on the file's home shard. No I/O happens before the first write.
    pub fn start(file: &File, options: Options) -> WriteCombiner {
        let class = options.class_here();
        let request = options.request_bytes.unwrap_or(REQUEST_BYTES_DEFAULT);
        let depth = options.depth.unwrap_or(DEPTH_DEFAULT);
        let shape = Shape::of(file, options.memory_bytes(), request, depth);
        let core = WriterCore::new("combine", file, class, shape, CombinerState::new(shape));
        // Made here, so that a task which cannot be spawned ends the write combiner as well.
        let sweep = Elevator::new(core.clone());
        FileInternals::of(file).spawn(0, class, move || sweep.run());
        WriteCombiner { handles: Arc::new(Handles(core)) }
    }

    /// Writes a copy of `bytes` at `offset`. Costs a copy and a search; waits only when the memory is full.
    ///
    /// # Errors
    /// The first error of the write combiner; [`ErrorKind::ArenaExhausted`] when others hold all I/O memory, and a
    /// first part may be written then; [`ErrorKind::InvalidInput`] past 2^63 bytes;
    /// [`ErrorKind::EngineClosed`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("combine", async move {
            let core = self.core();
            core.check_place(offset, bytes.len())?;
            let lacks = core.open()?.lacks;
            let mut taken = 0;
            while taken < bytes.len() {
                let (at, left) = (offset + taken as u64, &bytes[taken..]);
                match poll_fn(|context| core.poll_take(context, lacks, at, left)).await? {
                    Some(more) => taken += more,
                    None => core.add_slab()?,
                }
            }
            Ok(())
        })
    }

    /// Returns the bytes of `range` as they were written. They are copied from memory and from writes in flight, and read from the
    /// file where this write combiner has no bytes, in one read from the first such byte to the last.
    ///
    /// It may show any part of writes that run at the same time.
    ///
    /// # Errors
    /// [`ErrorKind::UnexpectedEof`] when neither file nor write combiner reach that far; [`ErrorKind::InvalidInput`],
    /// [`ErrorKind::TooLarge`], [`ErrorKind::ArenaExhausted`]; the device's errors, which do not end the write combiner; the first
    /// error that ended it.
    pub fn read(&self, range: Range<u64>) -> Waitable<impl Future<Output = Result<Block>>> {
        Waitable::new("read", async move {
            let core = self.core();
            let internals = FileInternals::of(&core.file);
            let Some(len) = range.end.checked_sub(range.start) else {
                // Which refuses it.
                return core.file.read(range).await;
            };
            drop(core.open()?);
            let length = core.length().await?;
            let mut block = internals.block("read", len as usize)?;
            block.resize(len as usize)?;
            let holes = {
                let state = core.open()?;
                let end = length.max(state.end);
                if range.end > end {
                    let kind = ErrorKind::UnexpectedEof { got: end.saturating_sub(range.start) };
                    return Err(internals.error("read", kind).with_range(range.start, len));
                }
                let mut holes = Holes::new(range.clone());
                state.overlay(&range, &mut block, &mut holes);
                holes
            };
            // The file is read second: bytes that leave memory from here on were copied before.
            if let (Some(first), Some(last)) = (holes.parts().first(), holes.parts().last()) {
                let span = first.start..last.end;
                let found = core.file.read_up_to(span.clone()).class(core.class).await?;
                for hole in holes.parts() {
                    let from = ((hole.start - span.start) as usize).min(found.len());
                    let to = ((hole.end - span.start) as usize).min(found.len());
                    let at = (hole.start - range.start) as usize;
                    block[at..at + to - from].copy_from_slice(&found[from..to]);
                }
            }
            Ok(block.freeze())
        })
    }

    /// Orders writes without waiting. Everything whose write had returned before this call is durable (`fdatasync(2)`) before any
    /// byte of a write that starts after it is sent to the device. The earlier writes are sent immediately, and their sync follows.
    ///
    /// So after a power cut, if any byte written behind the barrier is in the file, then all bytes written
    /// before it are. A page rewritten behind a barrier needs memory a second time until the older bytes are
    /// in the file. A write that runs during the call may be on either side, or on both.
    ///
    /// # Errors
    /// The first error of the write combiner.
    ///
    /// ```
    /// # use forebay::{Config, Durability, Engine, Open};
    /// # use forebay_collective::{Options, WriteCombiner};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// let combiner = WriteCombiner::start(&file, Options::new());
    /// combiner.write(0, b"record").wait()?;
    /// combiner.barrier()?; // no wait: the pointer reaches the file after the record
    /// combiner.write(8192, b"pointer").wait()?;
    /// combiner.flush(Durability::Data).wait()?;
    /// # Ok(()) }
    /// ```
    pub fn barrier(&self) -> Result<()> {
        if forebay::_is_broken!(BarrierIgnored) {
            return Ok(());
        }
        let sealed = self.core().open()?.seal(Durability::Data);
        if sealed.is_some() {
            self.core().kick();
        }
        Ok(())
    }

    /// Writes everything whose write had returned before this call to the file, sets the file's exact length, then syncs.
    /// [`Durability::None`] omits the sync.
    ///
    /// Writes may continue meanwhile. The flush does not wait for them, and they wait in memory until it is done.
    ///
    /// # Errors
    /// The first error of the write combiner. After a failed sync nothing since the last successful one counts as
    /// written.
    pub fn flush(&self, durability: Durability) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("combine", async move {
            let core = self.core();
            let (sealed, lacks) = {
                let mut state = core.open()?;
                (state.seal(durability), state.lacks)
            };
            match sealed {
                Some(epoch) => poll_fn(|context| core.poll_settled(context, lacks, epoch)).await,
                None => Ok(()),
            }
        })
    }

    /// Returns the file, for all other calls.
    pub fn file(&self) -> &File {
        &self.core().file
    }

    /// Returns the bytes of I/O memory that pages occupy, 0 when nothing waits. Bytes in flight are not included, and both together
    /// never exceed [`Options::memory_bytes_max`]. 0 in a forked child.
    pub fn held_bytes(&self) -> u64 {
        self.core().lock_here().map_or(0, |state| state.held_bytes())
    }

    /// Returns the bytes accepted and the requests sent to the device for them so far. Zeros in a forked child.
    pub fn stats(&self) -> WriteStats {
        self.core().lock_here().map_or_else(WriteStats::default, |state| state.stats)
    }

    fn core(&self) -> &CombinerCore {
        &self.handles.0
    }
}

forebay::_debug_parts!(WriteCombiner, |write_combiner| file: write_combiner.file());
