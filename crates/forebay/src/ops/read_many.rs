//! Many ranges of one or several files as one request: sorted, merged where that pays, all in flight together, with one message and
//! one wake-up for the whole batch.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::base::class::Class;
use crate::base::error::{Error, Result};
use crate::base::wait::{self, Waitable};
use crate::handle::engine::Engine;
use crate::handle::file::File;
use crate::io::op::OpFailure;
use crate::memory::block::Block;
use crate::memory::lent::{IoMemory, Lender};
use crate::reactor::open_file::FileCore;
use crate::reactor::read_many::{Batch, Limits, Piece, Plan, Ranges, begin, part_bytes};
use crate::reactor::shard::inbox::Message;
use crate::reactor::shard::{self, with_current};
use crate::reactor::visited;

mod cached;

use cached::{CachedBatch, CachedBatchInto, Hits};

impl File {
    /// Reads many ranges as one batch: sorted, merged where that pays, and in flight together.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).wait()?;
    /// # file.write(0, vec![7; 16_384]).wait()?;
    /// let blocks = file.read_many((0..4).map(|page| page * 4096..page * 4096 + 100)).wait()?;
    /// for block in blocks {
    ///     assert_eq!(block?.len(), 100); // each range has its own result
    /// }
    /// # Ok(()) }
    /// ```
    pub fn read_many(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> ReadMany {
        ReadMany::new(Box::new([self.core().clone()]), Ranges::of_one(ranges.into_iter().collect()))
    }
}

impl Engine {
    /// Returns a read of many ranges of several files of this engine in one message: as [`File::read_many`], and the requests of
    /// all files are in flight together. The shard of the first file runs it, or the ring of the Tokio worker.
    ///
    /// # Errors
    /// Awaiting it fails as a whole with [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) when a file belongs to
    /// another engine. A file that is closed fails its own ranges.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> forebay::Result<()> {
    /// # let engine = Engine::start(Config::new())?;
    /// let manifest = engine.open("Cargo.toml", Open::read()).wait()?;
    /// let readme = engine.open("README.md", Open::read()).wait()?;
    /// let blocks = engine.read_many([(&manifest, 0..9), (&readme, 0..9), (&manifest, 1..8)]).wait()?;
    /// assert_eq!(&blocks[2].as_ref().unwrap()[..], b"package");
    /// # Ok(()) }
    /// ```
    pub fn read_many<'f>(&self, ranges: impl IntoIterator<Item = (&'f File, Range<u64>)>) -> ReadMany {
        let mut files: Vec<Arc<FileCore>> = Vec::new();
        let mut numbers = HashMap::new();
        let mut all = Ranges::default();
        let mut foreign = None;
        for (file, range) in ranges {
            let core = file.core();
            let number = *numbers.entry(Arc::as_ptr(core)).or_insert_with(|| {
                if !Arc::ptr_eq(core.engine(), self.shared()) {
                    foreign.get_or_insert_with(|| core.clone());
                }
                files.push(core.clone());
                files.len() as u32 - 1
            });
            all.push(number, range);
        }
        let ranges = all.len();
        let mut batch = ReadMany::new(files.into(), all);
        if let Some(core) = foreign {
            let error = Error::invalid("read_many", "this file was opened with another engine");
            batch.state = State::Refused(Some(core.describe(error)), ranges);
        }
        batch
    }
}

/// A batch of reads; see [`File::read_many`].
///
/// Ranges may overlap, be equal, be empty, have any length, and be in any order. Ranges of more than 8 MiB, or a quarter of the I/O
/// memory, are read in parts into memory of their length: `docs/tuning.md`. Each has its own result: a range past the end of the
/// file fails alone, and when a merged request fails it is split and repeated range by range.
///
/// Awaited, it returns all results in the order of the ranges, however much that is: beyond 16 MiB of I/O memory, and where a
/// request's buffer is more than an eighth larger than its results, results are copied contiguously into ordinary memory
/// ([`MemoryStats::result_bytes`](crate::MemoryStats::result_bytes)). A result then pins up to 256 KiB, or 2 MiB of many results,
/// until its neighbours are dropped, too ([`Block::detach`](crate::Block::detach)). [`stream`](ReadMany::stream) returns results as
/// they arrive, with bounded memory: right for more than fits in memory.
///
/// Of an adaptive file ([`Open::adaptive`](crate::Open::adaptive)), ranges that the page cache has are copied first, on the
/// thread that polls, for 0.3 ms at a time; the rest is planned and read as one batch. A stream returns them first.
///
/// Costs one message to the file's shard and one wake-up for the whole batch; no allocation per range.
///
/// It starts when it is first polled; its methods change nothing afterwards. It borrows nothing, so it may be spawned as it is.
/// Awaiting it fails as a whole only when the file or the engine is closed; all other errors are in the single results. Dropping it
/// stops the batch.
///
/// ```
/// # use forebay::{Config, Engine, Open};
/// # fn main() -> forebay::Result<()> {
/// # let engine = Engine::start(Config::new())?;
/// let file = engine.open("Cargo.toml", Open::read()).wait()?;
/// let blocks = file.read_many([1..8, 0..9, 4..4]).wait()?;
/// assert_eq!(&blocks[0].as_ref().unwrap()[..], b"package");
/// assert_eq!(&blocks[1].as_ref().unwrap()[..], b"[package]");
/// assert!(blocks[2].as_ref().unwrap().is_empty());
/// # Ok(()) }
/// ```
#[must_use = "a batch begins only when it is awaited, waited for or streamed"]
pub struct ReadMany {
    state: State,
}

enum State {
    New(Ask),
    /// Tries the page cache first.
    Cached(Box<CachedBatch>, Hits),
    Rest(Rest),
    Begun(Run),
    /// A batch of this many ranges that cannot start, for this reason.
    Refused(Option<Error>, usize),
}

/// The batch of the remaining ranges for the device, after those from the page cache.
struct Rest {
    /// `None` where the page cache had all.
    run: Option<Run>,
    hits: Hits,
}

/// The ranges to read, and the settings.
struct Ask {
    files: Box<[Arc<FileCore>]>,
    ranges: Ranges,
    limits: Limits,
    depth: u32,
    class: Option<Class>,
    detached: bool,
}

/// The default of requests of one batch in flight.
const DEPTH: u32 = 128;

impl ReadMany {
    fn new(files: Box<[Arc<FileCore>]>, ranges: Ranges) -> ReadMany {
        let limits = Limits::default();
        ReadMany {
            state: State::New(Ask { files, ranges, limits, depth: DEPTH, class: None, detached: false }),
        }
    }

    /// Changes the settings of a batch that has not started.
    fn set(mut self, change: impl FnOnce(&mut Ask)) -> ReadMany {
        if let State::New(ask) = &mut self.state {
            change(ask);
        }
        self
    }

    /// Sets the maximum gap in bytes between two ranges that are merged into one request. Default: 16 KiB, which a device that
    /// moves 1 GB/s reads in less time than it needs for a second request.
    pub fn gap_bytes_max(self, bytes: u64) -> Self {
        self.set(|ask| ask.limits.gap_bytes_max = bytes)
    }

    /// Sets the maximum number of unwanted bytes, between its ranges, that a merged request may read. Default: 64 KiB; 0 merges
    /// only ranges that touch or overlap.
    pub fn waste_bytes_max(self, bytes: u64) -> Self {
        self.set(|ask| ask.limits.waste_bytes_max = bytes)
    }

    /// Sets the maximum length of a merged request in bytes; a longer range is read alone. Default: 256 KiB.
    pub fn request_bytes_max(self, bytes: u64) -> Self {
        self.set(|ask| ask.limits.request_bytes_max = bytes)
    }

    /// Sets the maximum number of requests in flight, at least 1. Default: 128.
    pub fn depth(self, requests: u32) -> Self {
        self.set(|ask| ask.depth = requests.max(1))
    }

    /// Sets the class. Default: that of the task that starts the batch, [`Class::DEFAULT`] outside of shards.
    pub fn class(self, class: Class) -> Self {
        self.set(|ask| ask.class = Some(class))
    }

    /// Limits the memory that each result pins to its own length and 4 KiB, or to four times its length of up to 8 KiB, for results with
    /// separate lifetimes, as in a cache. Results of merged requests, and those from the page cache, are copied then, which costs an
    /// allocation for each, or for four of up to 8 KiB; one that fills its request's buffer stays there, up to 16 MiB of them.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> forebay::Result<()> {
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open("Cargo.toml", Open::read()).wait()?;
    /// for block in file.read_many([1..8, 0..9]).detached().wait()? {
    ///     let block = block?;
    ///     assert!(block.pinned_bytes() <= block.len() + 4096);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn detached(self) -> Self {
        self.set(|ask| ask.detached = true)
    }

    /// Returns a read of the same ranges into `memory`, side by side in their order. Awaited, it returns the memory; no block is
    /// made and no I/O memory kept.
    ///
    /// A range of whole device blocks that has a separate request and an aligned place in `memory` is read there directly; all
    /// others are copied from I/O memory. Cached ranges of an adaptive file are copied from the page cache.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> forebay::Result<()> {
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open("Cargo.toml", Open::read()).wait()?;
    /// let (result, memory) = file.read_many([1..8, 0..9]).into_memory(vec![0; 16]).wait();
    /// result?;
    /// assert_eq!(&memory, b"package[package]");
    /// # Ok(()) }
    /// ```
    pub fn into_memory<B: IoMemory>(self, memory: B) -> ReadManyInto<B> {
        ReadManyInto { batch: self, memory: Memory::Owned(Some(memory)), lender: None, cached: None }
    }

    /// Returns the requests that the batch will make, to inspect the effect of its settings; `None` once it has started. For an
    /// adaptive file these are the requests that the page cache lacks. Costs a sort of the ranges, which the batch repeats when it
    /// starts.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # fn main() -> forebay::Result<()> {
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open("Cargo.toml", Open::read()).wait()?;
    /// let ranges = || (0..100).map(|part| part * 10_000..part * 10_000 + 4_000);
    /// let plan = file.read_many(ranges()).plan().unwrap();
    /// println!("{} requests, {:.2} bytes read for one wanted", plan.requests.len(), plan.amplification());
    /// let apart = file.read_many(ranges()).gap_bytes_max(0).plan().unwrap();
    /// assert!(apart.requests.len() == 100 && plan.requests.len() < 10);
    /// # Ok(()) }
    /// ```
    pub fn plan(&self) -> Option<ReadPlan> {
        let State::New(ask) = &self.state else { return None };
        let plan = ask.plan(ask.ranges.clone());
        let request = |piece: &Piece| PlannedRequest {
            file: piece.file as usize,
            range: piece.offset..piece.offset + piece.len,
            ranges: piece.count as usize,
        };
        Some(ReadPlan {
            wanted_bytes: plan.wanted_bytes(),
            requests: plan.pieces.iter().map(request).collect(),
        })
    }

    /// Blocks the calling thread until all results are there.
    ///
    /// # Errors
    /// The same as when awaited; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread.
    pub fn wait(self) -> Result<Vec<Result<Block>>> {
        wait::block_on("read_many", self)
    }

    /// Returns a stream of the results as they arrive, each with the number of its range, in no particular order. Each number is
    /// returned once: where the batch fails as a whole, because the file or the engine is closed, every range that has no result
    /// yet gets that error. The depth bounds the memory held by results that were not consumed.
    ///
    /// ```
    /// # use forebay::{Config, Engine, Open};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = Engine::start(Config::new())?;
    /// # let file = engine.open(dir.path().join("data"), Open::create()).await?;
    /// # file.write(0, vec![7; 16_384]).await?;
    /// let mut results = file.read_many((0..4).map(|page| page * 4096..page * 4096 + 100)).depth(2).stream();
    /// let mut bytes = 0;
    /// while let Some((number, block)) = results.next().await {
    ///     bytes += block?.len();
    ///     assert!(number < 4);
    /// }
    /// assert_eq!(bytes, 400);
    /// # Ok(()) }
    /// ```
    pub fn stream(self) -> ReadManyStream {
        let (cached, source) = match self.state {
            State::New(ask) => match CachedBatch::of(ask, true) {
                Ok(cached) => (Some(cached), Source::Nothing),
                Err(ask) => (None, Source::of(ask.start_stream())),
            },
            State::Begun(run) => (None, Source::Run(run)),
            State::Refused(Some(error), ranges) => (None, Source::Refused(error, ranges)),
            State::Refused(None, _) => (None, Source::Nothing),
            // The parts collected so far are collected again.
            State::Cached(cached, _) => (Some(cached.again()), Source::Nothing),
            State::Rest(rest) => (None, Source::of(rest.run)),
        };
        ReadManyStream { cached, numbers: None, source, delivered: Deliveries::default() }
    }
}

impl Ask {
    /// Moves the request out: the ranges are moved, the rest is copied.
    fn take(&mut self) -> Ask {
        Ask { files: std::mem::take(&mut self.files), ranges: std::mem::take(&mut self.ranges), ..*self }
    }

    fn plan(&self, ranges: Ranges) -> Plan {
        let grains = self.files.iter().map(|core| core.alignment().read_offset).collect();
        let arena = self.files.first().map(|core| &core.engine().arena);
        let limits = Limits { part_bytes: arena.map_or(self.limits.part_bytes, part_bytes), ..self.limits };
        Plan::new(ranges, &limits, grains)
    }

    /// As [`start`](Self::start), for a stream.
    fn start_stream(self) -> Option<Run> {
        let queue = (self.depth as usize).saturating_mul(2).min(self.ranges.len().max(1));
        self.start(Some(queue))
    }

    /// Returns the batch; `None` without any file, where nothing is to be read.
    fn start(mut self, queue: Option<usize>) -> Option<Run> {
        if self.files.is_empty() {
            return None;
        }
        let class = self.class.unwrap_or_else(shard::class);
        let ranges = std::mem::take(&mut self.ranges);
        let plan = self.plan(ranges);
        Some(Run {
            batch: Batch::new(self.files, plan, class, self.depth, queue, self.detached),
            sent: false,
        })
    }
}

impl Future for ReadMany {
    type Output = Result<Vec<Result<Block>>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let run = loop {
            match &mut self.state {
                State::Begun(run) => break run,
                State::New(ask) => match CachedBatch::of(ask.take(), false) {
                    Ok(cached) => {
                        let hits = Hits::new(cached.ask().ranges.len());
                        self.state = State::Cached(cached, hits);
                    }
                    Err(ask) => match ask.start(None) {
                        Some(run) => self.state = State::Begun(run),
                        None => return Poll::Ready(Ok(Vec::new())),
                    },
                },
                State::Cached(..) => {
                    if self.poll_cached(context).is_pending() {
                        return Poll::Pending;
                    }
                }
                State::Rest(rest) => return rest.poll(context),
                State::Refused(error, _) => return Poll::Ready(error.take().map_or(Ok(Vec::new()), Err)),
            }
        };
        if let Err(failure) = std::task::ready!(run.send(context)) {
            return Poll::Ready(Err(run.error(failure)));
        }
        run.batch.poll_all(context.waker())
    }
}

impl ReadMany {
    /// Copies ranges from the page cache; then the rest may start.
    fn poll_cached(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let State::Cached(cached, hits) = &mut self.state else { return Poll::Ready(()) };
        let mut spent_bytes = 0;
        while let Some((number, block)) = std::task::ready!(cached.poll_hit(&mut spent_bytes, context)) {
            hits.put(number, block);
        }
        if let State::Cached(cached, hits) = std::mem::replace(&mut self.state, State::Refused(None, 0)) {
            let (ask, missed) = cached.into_rest();
            let run = if missed.is_empty() { None } else { ask.start(None) };
            self.state = State::Rest(Rest { run, hits });
        }
        Poll::Ready(())
    }
}

impl Rest {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Vec<Result<Block>>>> {
        let rest = match &mut self.run {
            None => Vec::new(),
            Some(run) => {
                if let Err(failure) = std::task::ready!(run.send(context)) {
                    return Poll::Ready(Err(run.error(failure)));
                }
                match std::task::ready!(run.batch.poll_all(context.waker())) {
                    Ok(rest) => rest,
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
        };
        let hits = std::mem::replace(&mut self.hits, Hits::new(0));
        self.run = None;
        Poll::Ready(Ok(hits.merge(rest)))
    }
}

impl fmt::Debug for ReadMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (files, ranges) = match &self.state {
            State::New(ask) => (&ask.files[..], ask.ranges.len()),
            State::Cached(cached, _) => (&cached.ask().files[..], cached.ask().ranges.len()),
            State::Rest(Rest { run: Some(run), .. }) => (run.batch.files(), run.batch.plan.ranges.len()),
            State::Rest(Rest { run: None, .. }) => (&[][..], 0),
            State::Begun(run) => (run.batch.files(), run.batch.plan.ranges.len()),
            State::Refused(_, ranges) => (&[][..], *ranges),
        };
        f.debug_struct("ReadMany")
            .field("path", &files.first().map(|core| core.path()))
            .field("files", &files.len())
            .field("ranges", &ranges)
            .finish_non_exhaustive()
    }
}

/// A batch of reads into the caller's memory; see [`ReadMany::into_memory`].
///
/// Its output is the memory and the first error, in the order of the ranges, which names its range. All other ranges have been
/// read then. Dropping it stops the batch; the memory stays with the engine until the kernel is done with it.
#[must_use = "a batch begins only when it is awaited or waited for"]
pub struct ReadManyInto<B: IoMemory> {
    batch: ReadMany,
    memory: Memory<B>,
    lender: Option<Arc<Lender<B>>>,
    /// Between the first poll and the request to the shard.
    cached: Option<Box<CachedBatchInto>>,
}

enum Memory<B> {
    Owned(Option<B>),
    Lent,
}

impl<B: IoMemory> ReadManyInto<B> {
    /// Blocks the calling thread until all bytes are there; returns the memory in every case.
    ///
    /// # Errors
    /// The same as when awaited; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard) on a shard's thread.
    pub fn wait(mut self) -> (Result<()>, B) {
        match wait::refusal() {
            Some(kind) => (Err(Error::new(kind, "read_many")), self.take_memory()),
            None => wait::block_on_any(self),
        }
    }

    /// Starts the batch, which owns the memory from here on.
    fn lend(&mut self) -> Result<()> {
        let Memory::Owned(owner) = &mut self.memory else { return Ok(()) };
        let State::New(ask) = &mut self.batch.state else { return Ok(()) };
        let ask = ask.take();
        let Some(first) = ask.files.first() else { return Ok(()) };
        let owner = owner.take().unwrap_or_default();
        let (lender, lent, len) = Lender::new(owner, &first.engine().releases);
        self.lender = Some(lender);
        self.memory = Memory::Lent;
        self.cached = Some(CachedBatchInto::new(ask, lent, len)?);
        Ok(())
    }

    /// Copies the ranges from the page cache, and starts the batch of the others. Returns true if no ranges are left.
    fn poll_cached(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let Some(cached) = &mut self.cached else { return Poll::Ready(false) };
        std::task::ready!(cached.poll(context));
        let Some(cached) = self.cached.take() else { return Poll::Ready(false) };
        let (ask, lent, starts) = cached.into_rest();
        if starts.is_empty() && ask.ranges.len() > 0 {
            return Poll::Ready(true);
        }
        if let Some(mut run) = ask.start(None) {
            run.batch.read_into(lent, starts);
            self.batch.state = State::Begun(run);
        }
        Poll::Ready(false)
    }

    /// Returns the memory; the default while the engine has it.
    fn take_memory(&mut self) -> B {
        if let State::Begun(run) = &self.batch.state
            && (run.batch.is_done() || !run.sent)
        {
            // SAFETY: it is over, or was never sent.
            unsafe { run.batch.forget_destination() };
        }
        match &mut self.memory {
            Memory::Owned(owner) => owner.take().unwrap_or_default(),
            Memory::Lent => self.lender.take().and_then(Lender::into_owner).unwrap_or_default(),
        }
    }
}

impl<B: IoMemory> Future for ReadManyInto<B> {
    type Output = (Result<()>, B);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Nothing here is pinned: requests name memory outside of this value.
        let this = self.get_mut();
        if let Err(error) = this.lend() {
            return Poll::Ready((Err(error), this.take_memory()));
        }
        if std::task::ready!(this.poll_cached(context)) {
            return Poll::Ready((Ok(()), this.take_memory()));
        }
        let results = std::task::ready!(Pin::new(&mut this.batch).poll(context));
        let result = results.and_then(|results| results.into_iter().try_for_each(|result| result.map(drop)));
        Poll::Ready((result, this.take_memory()))
    }
}

// No field is pinned.
impl<B: IoMemory> Unpin for ReadManyInto<B> {}

crate::_debug_parts!([B: IoMemory] ReadManyInto<B>, |read_many_into| batch: read_many_into.batch);

/// The requests that a batch makes; see [`ReadMany::plan`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReadPlan {
    /// Bytes of all ranges together. Ranges that overlap count each.
    pub wanted_bytes: u64,
    /// The requests, by file and offset. Empty ranges, and those that no file can have, are omitted.
    pub requests: Vec<PlannedRequest>,
}

impl ReadPlan {
    /// Returns the bytes of all requests together.
    pub fn read_bytes(&self) -> u64 {
        let bytes = self.requests.iter().map(|request| request.range.end - request.range.start);
        bytes.fold(0, u64::saturating_add)
    }

    /// Returns the bytes read per wanted byte, 1.0 for a plan without requests. Below 1 where ranges overlap.
    pub fn amplification(&self) -> f64 {
        match self.wanted_bytes {
            0 => 1.0,
            wanted => self.read_bytes() as f64 / wanted as f64,
        }
    }
}

/// One request of a [`ReadPlan`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannedRequest {
    /// The number of the file, in the order in which the batch's ranges first name them.
    pub file: usize,
    /// The bytes of the file that it reads: whole blocks of the device, for a direct file.
    pub range: Range<u64>,
    /// The number of ranges that it serves.
    pub ranges: usize,
}

/// The results of a [`ReadMany`] as they arrive. Dropping it stops the batch.
#[must_use = "a batch begins only when its stream is polled"]
pub struct ReadManyStream {
    /// Tries the page cache first: its ranges are returned before those from the device.
    cached: Option<Box<CachedBatch>>,
    /// The numbers of the ranges that are left for the device; `None` where all are.
    numbers: Option<Vec<u32>>,
    source: Source,
    /// Of the ranges that are left for the device.
    delivered: Deliveries,
}

/// The source of the results that the page cache has not.
enum Source {
    Nothing,
    Run(Run),
    /// The run has failed as a whole: its ranges without a result get this error.
    Failed(Run, OpFailure),
    /// The batch could not start: each of its ranges, this many, gets this error.
    Refused(Error, usize),
}

impl Source {
    fn of(run: Option<Run>) -> Source {
        run.map_or(Source::Nothing, Source::Run)
    }
}

/// The ranges of a stream that have had their result.
#[derive(Default)]
struct Deliveries {
    /// A bit for each; empty before the first.
    words: Vec<u64>,
    /// Those before this one have had theirs.
    next: usize,
}

impl Deliveries {
    fn add(&mut self, number: usize, ranges: usize) {
        if self.words.is_empty() {
            self.words.resize(ranges.div_ceil(64), 0);
        }
        self.words[number / 64] |= 1 << (number % 64);
    }

    /// Adds the first of `ranges` ranges that is missing, and returns its number.
    fn add_missing(&mut self, ranges: usize) -> Option<usize> {
        while self.next < ranges {
            let number = self.next;
            self.next += 1;
            let word = self.words.get(number / 64).copied().unwrap_or(0);
            if (word >> (number % 64)) & 1 == 0 {
                return Some(number);
            }
        }
        None
    }
}

impl ReadManyStream {
    /// Returns the next result and the number of its range; `None` after the last one. Each range has one result.
    ///
    /// # Errors
    /// Those of the single ranges; [`ErrorKind::WaitOnShard`](crate::ErrorKind::WaitOnShard), with the number `usize::MAX`, of a
    /// `.wait()` on a shard's thread.
    #[expect(clippy::should_implement_trait, reason = "the asynchronous `next`, as that of a `Stream`")]
    pub fn next(&mut self) -> Waitable<impl Future<Output = Option<(usize, Result<Block>)>>> {
        Waitable::new("read_many", poll_fn(|context| self.poll_next_result(context)))
    }

    fn poll_next_result(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Result<Block>)>> {
        if let Some(hit) = std::task::ready!(self.poll_cached(context)) {
            return Poll::Ready(Some(hit));
        }
        let next = std::task::ready!(self.poll_source(context));
        let numbers = self.numbers.as_ref();
        let in_all = |number: usize| numbers.map_or(number, |numbers| numbers[number] as usize);
        Poll::Ready(next.map(|(number, result)| (in_all(number), result)))
    }

    /// Returns the next result of the ranges that are left for the device, with the number among these.
    fn poll_source(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Result<Block>)>> {
        if let Source::Run(run) = &mut self.source {
            let failure = match std::task::ready!(run.send(context)) {
                Err(failure) => Some(failure),
                Ok(()) => match std::task::ready!(run.batch.poll_next(context.waker())) {
                    Some((number, result)) => {
                        self.delivered.add(number, run.batch.plan.ranges.len());
                        return Poll::Ready(Some((number, result)));
                    }
                    None => run.batch.failure(),
                },
            };
            let Some(failure) = failure else { return Poll::Ready(None) };
            if let Source::Run(run) = std::mem::replace(&mut self.source, Source::Nothing) {
                self.source = Source::Failed(run, failure);
            }
        }
        Poll::Ready(match &self.source {
            Source::Nothing | Source::Run(_) => None,
            Source::Failed(run, failure) => {
                let missing = self.delivered.add_missing(run.batch.plan.ranges.len());
                missing.map(|number| (number, Err(run.batch.refusal(*failure, number))))
            }
            Source::Refused(error, ranges) => {
                self.delivered.add_missing(*ranges).map(|number| (number, Err(error.clone())))
            }
        })
    }

    /// Returns the next range from the page cache. After the last one the rest may start.
    fn poll_cached(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Result<Block>)>> {
        let Some(cached) = &mut self.cached else { return Poll::Ready(None) };
        if let Some((number, block)) = std::task::ready!(cached.poll_hit(&mut 0, context)) {
            return Poll::Ready(Some((number as usize, Ok(block))));
        }
        if let Some(cached) = self.cached.take() {
            let (ask, missed) = cached.into_rest();
            self.source = Source::of(if missed.is_empty() { None } else { ask.start_stream() });
            self.numbers = Some(missed);
        }
        Poll::Ready(None)
    }
}

/// Gives the items of [`next`](ReadManyStream::next).
///
/// ```
/// # use forebay::{Config, Engine, Open};
/// use futures::TryStreamExt;
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = Engine::start(Config::new())?;
/// let file = engine.open("Cargo.toml", Open::read()).await?;
/// let results = futures::StreamExt::map(file.read_many([0..9, 1..8]).stream(), |(_number, block)| block);
/// let bytes = results.try_fold(0, async |sum, block| Ok(sum + block.len())).await?;
/// assert_eq!(bytes, 16);
/// # Ok(()) }
/// ```
#[cfg(feature = "stream")]
impl futures_core::Stream for ReadManyStream {
    type Item = (usize, Result<Block>);

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_next_result(context)
    }
}

crate::_debug_parts!(ReadManyStream);

/// A batch, and whether it was sent to its shard.
struct Run {
    batch: Arc<Batch>,
    sent: bool,
}

impl Run {
    /// Returns the error of a batch that failed as a whole.
    fn error(&self, failure: OpFailure) -> Error {
        failure.into_error("read_many", Some(self.batch.first_file()))
    }

    /// Starts the batch: immediately on a shard of its engine, by one message elsewhere.
    ///
    /// # Errors
    /// The failure of the whole batch.
    fn send(&mut self, context: &mut Context<'_>) -> Poll<Result<(), OpFailure>> {
        if self.sent {
            return if self.batch.engine().is_forked() {
                Poll::Ready(Err(OpFailure::Forked))
            } else {
                Poll::Ready(Ok(()))
            };
        }
        let core = self.batch.first_file().clone();
        // One of several files that is closed fails its own ranges.
        let is_closed = self.batch.files().len() == 1 && core.is_closed();
        let failure = if is_closed { Some(OpFailure::FileClosed) } else { core.engine().failure() };
        if let Some(failure) = failure {
            return Poll::Ready(Err(failure));
        }
        self.batch.register(context.waker());
        let local = with_current(|shard| {
            let ours = Arc::ptr_eq(shard.engine(), core.engine());
            if ours {
                self.batch.set_shard(shard.index());
                begin(shard, self.batch.clone());
            }
            ours
        });
        let begun = match local {
            Some(true) => Some(Poll::Ready(())),
            _ => visited::begin_batch(core.engine(), &self.batch, context),
        };
        if begun == Some(Poll::Pending) {
            return Poll::Pending;
        }
        if begun.is_none() {
            self.batch.set_shard(core.home());
            let inbox = &core.engine().inboxes[core.home()];
            if inbox.send(Message::Batch(self.batch.clone()), Some(context.waker())).is_err() {
                return Poll::Pending;
            }
        }
        self.sent = true;
        Poll::Ready(Ok(()))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.sent {
            self.batch.cancel();
        }
    }
}
