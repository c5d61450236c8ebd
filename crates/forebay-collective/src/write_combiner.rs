//! Small writes at any offsets: gathered in bounded memory, sorted, and merged into large aligned writes.

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::sync::Arc;

#[cfg(feature = "_mutants")]
use crate::base::mutants::Mutant;
use crate::ops::coalesce::{CoalesceStats, Shape};
use crate::{Block, Class, Durability, ErrorKind, File, Result, Waitable, shard};

#[path = "write_combiner/dirty.rs"]
mod dirty;
#[path = "write_combiner/elevator.rs"]
mod elevator;
#[path = "write_combiner/shared.rs"]
mod shared;
#[path = "write_combiner/slots.rs"]
mod slots;
#[path = "write_combiner/state.rs"]
mod state;

use elevator::Elevator;
use shared::{CombinerCore, Handles};
use state::Holes;

impl File {
    /// Returns a builder for a write combiner, which gathers small writes at any offsets in memory and merges them
    /// into large ones.
    ///
    /// ```
    /// # use forebay::{Config, Durability, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::default())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// let combine = file.write_combiner().memory(4 << 20).start();
    /// combine.write(5_000, b"small").wait()?; // in memory
    /// combine.write(70, b"pieces").wait()?;
    /// combine.flush(Durability::Data).wait()?; // in the file, and durable
    /// assert_eq!(&file.read(70..76).wait()?[..], b"pieces");
    /// # Ok(()) }
    /// ```
    pub fn write_combiner(&self) -> WriteCombinerBuilder {
        WriteCombinerBuilder::new(self.clone())
    }
}

const MEMORY_DEFAULT: u64 = 16 << 20;
const REQUEST_DEFAULT: u64 = 512 << 10;
const REQUEST_MAX: u64 = 64 << 20;
const DEPTH_DEFAULT: usize = 32;
const DEPTH_MAX: usize = 1024;

/// Settings of a write combiner, which gathers small writes; see [`File::write_combiner`].
///
/// A number outside of its setting's range counts as the nearest one in it.
#[derive(Clone, Debug)]
#[must_use = "a write combiner begins with start()"]
pub struct WriteCombinerBuilder {
    file: File,
    memory: u64,
    request: u64,
    depth: usize,
    class: Option<Class>,
}

impl WriteCombinerBuilder {
    pub(crate) fn new(file: File) -> WriteCombinerBuilder {
        WriteCombinerBuilder {
            file,
            memory: MEMORY_DEFAULT,
            request: REQUEST_DEFAULT,
            depth: DEPTH_DEFAULT,
            class: None,
        }
    }

    /// Sets the most bytes of I/O memory to use, those in flight included; at least 16 pages (64 KiB).
    /// Default: 16 MiB.
    ///
    /// More memory makes longer writes, because neighbouring pages are merged only while they wait together.
    /// Up to a quarter, and at most 8 MiB, is reserved for writes in flight. In addition a page costs about
    /// 60 bytes of heap, and 512 more while separate parts of it are written. The engine's own limit,
    /// [`Config::arena_bytes_max`](crate::Config::arena_bytes_max), must leave room for it.
    pub fn memory(mut self, bytes: usize) -> WriteCombinerBuilder {
        self.memory = bytes as u64;
        self
    }

    /// Sets the most bytes of one write, 4 KiB to 64 MiB, rounded down to a power of two and to a quarter of
    /// the memory. Default: 512 KiB.
    pub fn request(mut self, bytes: usize) -> WriteCombinerBuilder {
        self.request = (bytes as u64).min(REQUEST_MAX);
        self
    }

    /// Sets the most writes in flight, 1 to 1,024. Default: 32. The limit matters where little can be merged;
    /// large writes reach the limit on their bytes first.
    pub fn depth(mut self, writes: usize) -> WriteCombinerBuilder {
        self.depth = writes.clamp(1, DEPTH_MAX);
        self
    }

    /// Sets the class of the I/O. Default: that of the task that calls `start`,
    /// [`Class::DEFAULT`] outside of shards.
    pub fn class(mut self, class: Class) -> WriteCombinerBuilder {
        self.class = Some(class);
        self
    }

    /// Returns the write combiner, with its task started on the file's home shard. No I/O happens before there is
    /// something to write.
    pub fn start(self) -> WriteCombiner {
        let class = self.class.unwrap_or_else(shard::class);
        let shape = Shape::new(&self.file.alignment(), self.memory, self.request, self.depth);
        let shared = Arc::new(CombinerCore::new(shape));
        // Made here, so that a task which cannot be spawned ends the write combiner as well.
        let sweep = Elevator::new(shared.clone(), self.file.clone(), class);
        self.file.internals().spawn(0, class, move || sweep.run());
        WriteCombiner { class, handles: Arc::new(Handles { shared, file: self.file }) }
    }
}

/// Takes small writes at any offsets, and writes them to the file in few large ones.
///
/// ```
/// # use forebay::{Config, Durability, Engine, Open};
/// # fn main() -> forebay::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let engine = Engine::start(Config::default())?;
/// let file = engine.open(dir.path().join("table"), Open::create()).wait()?;
/// let combine = file.write_combiner().memory(1 << 20).start();
/// for n in (0..1000u64).rev() {
///     combine.write(n * 100, &[n as u8; 100]).wait()?; // combine.write(..).await in a task
/// }
/// assert_eq!(&combine.read(500..502).wait()?[..], &[5, 5]); // its own writes, though nothing is in the file yet
/// combine.flush(Durability::Data).wait()?;
/// assert_eq!(file.len().wait()?, 100_000);
/// # Ok(()) }
/// ```
///
/// **Order.** Where writes overlap the later call wins. Calls that run at the same time may be taken in any
/// order, and two that overlap may be mixed at multiples of the page size. A clone is another handle of the
/// same write combiner, for any thread.
///
/// **Durability.** Nothing is durable before [`flush`](WriteCombiner::flush). Until then a power cut, the end of
/// the process, or dropping the last handle may lose any part of the bytes written. They wait in memory and
/// leave it when it is full, in the order of the file and not of the calls; so after a power cut any part of
/// them may be in the file. After a flush everything written before it has the durability requested.
/// [`barrier`](WriteCombiner::barrier) gives an order without waiting.
///
/// **Pages.** The device is written in whole pages: 4 KiB, or more where the file's alignment is more. A page
/// that was written in part is read once, when it leaves memory. So the file must be open for reading too.
/// Meanwhile no one else may write the pages that a write combiner writes, or change the file's length. Pages that
/// were not written are not touched. A page that goes past the end of the file is padded.
/// [`flush`](WriteCombiner::flush), and writes behind a barrier, find the file at its exact length; until then, and
/// when the write combiner is dropped, up to a page of zeros may follow.
///
/// **Memory** is limited by [`WriteCombinerBuilder::memory`]; a write waits for room when all of it is used. Pages
/// leave as in an elevator, in one sweep through the file after the other, so that those behind the sweep
/// have the longest time to get neighbours.
///
/// **Errors.** The first error of a write, read or sync in the background ends the write combiner. The next call
/// that checks returns it, and every later call fails in the same way; bytes not flushed by then count as
/// lost. The exception is [`ErrorKind::ArenaExhausted`]: nothing is lost then, and the call can be made
/// again.
///
/// **Dropping** the future of a write may leave a first part of it written. Dropping that of a flush only
/// leaves it to the next one. The task ends with the last handle; bytes not flushed by then are dropped.
#[derive(Clone)]
#[must_use = "what is still in memory is written by flush()"]
pub struct WriteCombiner {
    class: Class,
    handles: Arc<Handles>,
}

impl WriteCombiner {
    /// Writes a copy of `bytes` at `offset`. Costs a copy and a search; waits only when the memory is full.
    ///
    /// # Errors
    /// The first error of the write combiner; [`ErrorKind::ArenaExhausted`] when others hold all I/O memory, and a
    /// first part may be written then; [`ErrorKind::InvalidInput`] past 2^63 bytes;
    /// [`ErrorKind::EngineClosed`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("combine", async move {
            let (shared, file) = (&self.handles.shared, self.file());
            let fits = offset.checked_add(bytes.len() as u64 + shared.shape.page);
            if fits.is_none_or(|end| end > i64::MAX as u64) {
                let note = format!("offset {offset} is beyond what a file can have");
                return Err(file.internals().error("combine", ErrorKind::InvalidInput, None, Some(note)));
            }
            let lacks = shared.enter(file)?.lacks;
            let mut taken = 0;
            while taken < bytes.len() {
                let (at, left) = (offset + taken as u64, &bytes[taken..]);
                match poll_fn(|context| shared.poll_take(context, file, lacks, at, left)).await? {
                    Some(more) => taken += more,
                    None => shared.add_slab(file)?,
                }
            }
            Ok(())
        })
    }

    /// Returns the bytes of `range` as they were written. They come from memory, from writes in flight, and
    /// from the file where this write combiner has none, in one read from the first such byte to the last.
    ///
    /// It may show any part of writes that run at the same time.
    ///
    /// # Errors
    /// [`ErrorKind::UnexpectedEof`] when neither file nor write combiner go as far; [`ErrorKind::InvalidInput`],
    /// [`ErrorKind::TooLarge`], [`ErrorKind::ArenaExhausted`]; the device's errors, which do not end the
    /// combine; the first error that ended it.
    pub fn read(&self, range: Range<u64>) -> Waitable<impl Future<Output = Result<Block>>> {
        Waitable::new("read", async move {
            let (shared, file) = (&self.handles.shared, self.file());
            let internals = file.internals();
            let failed = |kind, note| Err(internals.error("read", kind, Some(&range), note));
            let Some(len) = range.end.checked_sub(range.start) else {
                let note = format!("the range ends ({}) before it starts ({})", range.end, range.start);
                return failed(ErrorKind::InvalidInput, Some(note));
            };
            drop(shared.enter(file)?);
            let length = shared.length(file).await?;
            let mut block = internals.block("read", len as usize)?;
            block.resize(len as usize)?;
            let holes = {
                let state = shared.enter(file)?;
                let end = length.max(state.end);
                if range.end > end {
                    let got = end.saturating_sub(range.start);
                    return failed(ErrorKind::UnexpectedEof { got }, None);
                }
                let mut holes = Holes::new(range.clone());
                state.overlay(&range, &mut block, &mut holes);
                holes
            };
            // The file is read second: bytes that leave memory from here on were copied before.
            if let (Some(first), Some(last)) = (holes.parts().first(), holes.parts().last()) {
                let span = first.start..last.end;
                let found = file.read_up_to(span.clone()).class(self.class).await?;
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

    /// Orders writes without waiting. Everything whose write had returned before this call is durable
    /// (`fdatasync(2)`) before any byte of a write that begins after it is sent to the device. The earlier
    /// writes begin to leave at once, and their sync follows.
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
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::default())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// let combine = file.write_combiner().start();
    /// combine.write(0, b"record").wait()?;
    /// combine.barrier()?; // no wait: the pointer reaches the file after the record
    /// combine.write(8192, b"pointer").wait()?;
    /// combine.flush(Durability::Data).wait()?;
    /// # Ok(()) }
    /// ```
    pub fn barrier(&self) -> Result<()> {
        #[cfg(feature = "_mutants")]
        if Mutant::BarrierIgnored.is_on() {
            return Ok(());
        }
        let sealed = self.handles.shared.enter(self.file())?.seal(Durability::Data);
        if sealed.is_some() {
            self.handles.shared.kick();
        }
        Ok(())
    }

    /// Brings everything whose write had returned before this call into the file, sets the file's exact
    /// length, then syncs. With [`Durability::None`] there is no sync.
    ///
    /// Writes may go on meanwhile. The flush does not wait for them, and they wait in memory until it is
    /// done.
    ///
    /// # Errors
    /// The first error of the write combiner. After a failed sync nothing since the last successful one counts as
    /// written.
    pub fn flush(&self, durability: Durability) -> Waitable<impl Future<Output = Result<()>>> {
        Waitable::new("combine", async move {
            let (shared, file) = (&self.handles.shared, self.file());
            let (sealed, lacks) = {
                let mut state = shared.enter(file)?;
                (state.seal(durability), state.lacks)
            };
            match sealed {
                Some(epoch) => poll_fn(|context| shared.poll_settled(context, file, lacks, epoch)).await,
                None => Ok(()),
            }
        })
    }

    /// Returns the file, for all other calls.
    pub fn file(&self) -> &File {
        &self.handles.file
    }

    /// Returns the bytes of I/O memory that pages occupy, 0 when nothing waits. Bytes in flight come on top,
    /// and both together never exceed [`WriteCombinerBuilder::memory`].
    pub fn held_bytes(&self) -> u64 {
        self.handles.shared.lock().held_bytes()
    }

    /// Returns the bytes taken and the requests sent to the device for them so far.
    pub fn stats(&self) -> CoalesceStats {
        self.handles.shared.lock().stats
    }
}

impl fmt::Debug for WriteCombiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteCombiner").field("file", self.file()).finish_non_exhaustive()
    }
}
