//! The runs of pages in progress.

use std::ops::Range;
use std::task::{Context, Poll};

use super::{CoalesceStats, Shape};
use crate::base::class::Class;
use crate::base::error::{Error, ErrorKind, Result};
use crate::handle::file::File;
use crate::io::op::{Durability, Flush, OpBuffer, OpFailure, OpKind, OpOutcome, OpRequest};
use crate::memory::arena::{self, AllocError, Buffer};
use crate::memory::block::{Block, BlockMut};
use crate::ops::read::RangeRead;
use crate::ops::submit::{OpFuture, Target};

/// Bytes copied in one poll, after which other tasks of the shard have their turn: a tenth of a millisecond.
const COPY_BYTES: u64 = 1 << 20;

/// The source of a run's bytes.
pub(crate) trait Source {
    /// Puts the bytes of `range` into `into`, which is empty and has room for all. Where the source does not
    /// have all bytes of a page itself, `edges` has the file's.
    fn gather(&mut self, range: &Range<u64>, edges: &Edges, into: BlockMut) -> Result<RunBytes>;

    /// Notes that the write that began at `start` has completed.
    fn written(&mut self, start: u64);

    /// Returns a buffer for a request of any size, reserved for the case that no other memory is left.
    fn spare(&mut self) -> Option<BlockMut> {
        None
    }
}

/// A run's bytes, ready to be written.
pub(crate) struct RunBytes {
    pub(crate) block: Block,
    /// The number of them that the program wrote.
    pub(crate) asked: u64,
}

/// The file's bytes of those pages of a run that are not written whole.
pub(crate) struct Edges(Vec<Edge>);

struct Edge {
    range: Range<u64>,
    read: RangeRead<'static>,
    found: Option<Block>,
}

impl Edges {
    /// Returns the file's bytes of the page at `start`: none where they were not read, or where the file ends
    /// before.
    pub(crate) fn page(&self, start: u64, len: u64) -> &[u8] {
        let edge = self.0.iter().find(|edge| edge.range.contains(&start));
        let Some((edge, found)) = edge.and_then(|edge| Some((edge, edge.found.as_ref()?))) else {
            return &[];
        };
        let from = ((start - edge.range.start) as usize).min(found.len());
        let to = from.saturating_add(len as usize).min(found.len());
        &found[from..to]
    }
}

/// The runs in progress, at most as many as the shape allows. They never overlap.
pub(crate) struct Runs {
    file: File,
    class: Class,
    shape: Shape,
    runs: Vec<Run>,
    /// Bytes of buffers that runs have or will have.
    bytes: u64,
    stats: CoalesceStats,
}

struct Run {
    range: Range<u64>,
    /// Its share of `bytes`.
    bytes: u64,
    stage: Stage,
}

enum Stage {
    /// Its pages wait for the file's bytes of them, or for memory.
    Reading(Edges),
    Writing {
        op: OpFuture<'static>,
        len: u32,
    },
}

enum RunProgress {
    Pending,
    Over,
    /// Its bytes were not copied, because this poll has copied enough.
    Later,
}

impl Runs {
    pub(crate) fn new(file: File, class: Class, shape: Shape) -> Runs {
        Runs {
            file,
            class,
            shape,
            runs: Vec::with_capacity(shape.depth),
            bytes: 0,
            stats: CoalesceStats::default(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns requests and bytes since the last call.
    pub(crate) fn take_stats(&mut self) -> CoalesceStats {
        std::mem::take(&mut self.stats)
    }

    /// Returns whether a run of that many bytes may begin beside these.
    pub(crate) fn has_room(&self, len: u64) -> bool {
        self.runs.is_empty()
            || (self.runs.len() < self.shape.depth && self.bytes + capacity(len) <= self.shape.in_flight)
    }

    /// Returns whether one of the runs overlaps `range`.
    pub(crate) fn meet(&self, range: &Range<u64>) -> bool {
        self.runs.iter().any(|run| run.range.start < range.end && range.start < run.range.end)
    }

    /// Adds a run; `incomplete` are the parts of it that must be read first, in whole pages.
    pub(crate) fn begin(&mut self, range: Range<u64>, incomplete: Vec<Range<u64>>) {
        debug_assert!(self.has_room(range.end - range.start) && !self.meet(&range));
        let bytes = capacity(range.end - range.start);
        for edge in &incomplete {
            self.stats.read_requests += 1;
            self.stats.read_bytes += edge.end - edge.start;
        }
        let edges = incomplete.into_iter().map(|range| self.edge(range)).collect();
        self.bytes += bytes;
        self.runs.push(Run { range, bytes, stage: Stage::Reading(Edges(edges)) });
    }

    fn edge(&self, range: Range<u64>) -> Edge {
        let read = RangeRead::owned(self.file.core().clone(), range.clone(), self.class);
        Edge { range, read, found: None }
    }

    /// Polls every run, and removes those that have completed.
    ///
    /// # Errors
    /// The first that a run met. After [`ErrorKind::ArenaExhausted`] nothing is lost, and polling again tries
    /// again.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, source: &mut impl Source) -> Result<()> {
        let mut allowance = COPY_BYTES;
        let mut later = false;
        let mut index = 0;
        while index < self.runs.len() {
            match self.poll_run(index, context, source, &mut allowance)? {
                RunProgress::Pending => index += 1,
                RunProgress::Later => {
                    later = true;
                    index += 1;
                }
                RunProgress::Over => {
                    let over = self.runs.swap_remove(index);
                    self.bytes -= over.bytes;
                    source.written(over.range.start);
                }
            }
        }
        debug_assert!(self.bytes == 0 || !self.runs.is_empty(), "memory in use belongs to a run");
        if later {
            context.waker().wake_by_ref();
        }
        Ok(())
    }

    fn poll_run(
        &mut self,
        index: usize,
        context: &mut Context<'_>,
        source: &mut impl Source,
        allowance: &mut u64,
    ) -> Result<RunProgress> {
        // Our own writes in flight release memory by themselves.
        let writing = self.runs.iter().any(|run| matches!(run.stage, Stage::Writing { .. }));
        let Some(run) = self.runs.get_mut(index) else { return Ok(RunProgress::Pending) };
        if let Stage::Reading(edges) = &mut run.stage {
            match poll_edges(&self.file, self.class, edges, context) {
                Poll::Pending => return Ok(RunProgress::Pending),
                Poll::Ready(Err(error)) if writing && is_lack(&error) => return Ok(RunProgress::Pending),
                Poll::Ready(read) => read?,
            }
            if *allowance == 0 {
                return Ok(RunProgress::Later);
            }
            let len = run.range.end - run.range.start;
            let into = match memory(&self.file, len as usize, writing) {
                Err(error) if is_lack(&error) => Some(source.spare().ok_or(error)?),
                other => other?,
            };
            let Some(into) = into else { return Ok(RunProgress::Pending) };
            *allowance = allowance.saturating_sub(len);
            let RunBytes { block, asked } = source.gather(&run.range, edges, into)?;
            debug_assert!(block.len() as u64 <= len && asked <= len, "a write stays within its run");
            self.stats.write_requests += 1;
            self.stats.written_bytes += block.len() as u64;
            // A run has at most 1 GiB.
            let (len, asked) = (block.len() as u32, asked as u32);
            let request = OpRequest {
                kind: OpKind::Write,
                class: self.class,
                durability: Durability::None,
                flush: Flush::Queued,
                offset: run.range.start,
                len,
                asked,
                buffer: OpBuffer::Shared(block),
            };
            let op = OpFuture::new(Target::Owned(self.file.core().clone()), request);
            run.stage = Stage::Writing { op, len };
        }
        let Stage::Writing { op, len } = &mut run.stage else { return Ok(RunProgress::Pending) };
        match op.poll_outcome(context) {
            Poll::Pending => Ok(RunProgress::Pending),
            Poll::Ready(outcome) => {
                judge(&self.file, outcome, run.range.start, *len)?;
                Ok(RunProgress::Over)
            }
        }
    }
}

/// Returns the capacity of the buffer for so many bytes.
fn capacity(len: u64) -> u64 {
    arena::capacity_for(len as usize).map_or(len, |bytes| bytes as u64)
}

/// Returns whether the error is only that others hold all memory.
pub(crate) fn is_lack(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::ArenaExhausted { .. })
}

fn poll_edges(file: &File, class: Class, edges: &mut Edges, context: &mut Context<'_>) -> Poll<Result<()>> {
    let mut all = true;
    for edge in &mut edges.0 {
        if edge.found.is_some() {
            continue;
        }
        match edge.read.poll(context) {
            Poll::Pending => all = false,
            Poll::Ready(Ok(block)) => edge.found = Some(block),
            Poll::Ready(Err(error)) => {
                // Only a lack of memory is followed by another try.
                edge.read = RangeRead::owned(file.core().clone(), edge.range.clone(), class);
                return Poll::Ready(Err(error));
            }
        }
    }
    if all { Poll::Ready(Ok(())) } else { Poll::Pending }
}

/// Returns an empty buffer for that many bytes; `None` when our own writes will release one.
fn memory(file: &File, len: usize, writing: bool) -> Result<Option<BlockMut>> {
    let arena = &file.core().engine().arena;
    let buffer = match arena.alloc_local(len) {
        Err(AllocError::NoMemory { .. }) if writing => return Ok(None),
        Err(AllocError::NoMemory { .. }) => arena.alloc_overflow(len),
        other => other,
    };
    let buffer = buffer.map_err(|error| OpFailure::from(error).into_error("write", Some(file.core())))?;
    Ok(Some(empty(buffer)))
}

/// Returns a buffer as a block without bytes, to be filled.
pub(crate) fn empty(buffer: Buffer) -> BlockMut {
    // SAFETY: no bytes are claimed to be initialised, and the buffer is the caller's alone.
    unsafe { buffer.into_block_mut(0, 0) }
}

fn judge(file: &File, outcome: OpOutcome, offset: u64, len: u32) -> Result<()> {
    let failed = |error: Error| Err(error.with_range(offset, u64::from(len)));
    match outcome.result {
        Ok(bytes) if bytes == len => Ok(()),
        // The core resolves short writes; one that came through would be lost data.
        Ok(_) => failed(file.core().describe(Error::os("write", libc::EIO))),
        Err(failure) => failed(failure.into_error("write", Some(file.core()))),
    }
}
