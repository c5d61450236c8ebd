//! The runs of pages in progress.

use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{CoalesceStats, Shape};
use crate::{Block, BlockMut, Class, File, FileInternals, ReadUpTo, Result, Write};

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
    read: ReadUpTo<'static>,
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
    Writing(Write<'static>),
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
            || (self.runs.len() < self.shape.depth
                && self.bytes + FileInternals::capacity(len) <= self.shape.in_flight)
    }

    /// Returns whether one of the runs overlaps `range`.
    pub(crate) fn meet(&self, range: &Range<u64>) -> bool {
        self.runs.iter().any(|run| run.range.start < range.end && range.start < run.range.end)
    }

    /// Adds a run; `incomplete` are the parts of it that must be read first, in whole pages.
    pub(crate) fn begin(&mut self, range: Range<u64>, incomplete: Vec<Range<u64>>) {
        debug_assert!(self.has_room(range.end - range.start) && !self.meet(&range));
        let bytes = FileInternals::capacity(range.end - range.start);
        for edge in &incomplete {
            self.stats.read_requests += 1;
            self.stats.read_bytes += edge.end - edge.start;
        }
        let edge =
            |range: Range<u64>| Edge { read: read(&self.file, &range, self.class), range, found: None };
        let edges = incomplete.into_iter().map(edge).collect();
        self.bytes += bytes;
        self.runs.push(Run { range, bytes, stage: Stage::Reading(Edges(edges)) });
    }

    /// Polls every run, and removes those that have completed.
    ///
    /// # Errors
    /// The first that a run met. Where it is only a lack of memory nothing is lost, and polling again tries again.
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
        let writing = self.runs.iter().any(|run| matches!(run.stage, Stage::Writing(_)));
        let Some(run) = self.runs.get_mut(index) else { return Ok(RunProgress::Pending) };
        if let Stage::Reading(edges) = &mut run.stage {
            match poll_edges(&self.file, self.class, edges, context) {
                Poll::Pending => return Ok(RunProgress::Pending),
                Poll::Ready(Err(error)) if writing && error.is_out_of_memory() => {
                    return Ok(RunProgress::Pending);
                }
                Poll::Ready(read) => read?,
            }
            if *allowance == 0 {
                return Ok(RunProgress::Later);
            }
            let len = run.range.end - run.range.start;
            let internals = self.file.internals();
            let into = match internals.try_block(len as usize) {
                Some(block) => block,
                None if writing => return Ok(RunProgress::Pending),
                None => match internals.block("write", len as usize) {
                    Err(error) if error.is_out_of_memory() => source.spare().ok_or(error)?,
                    other => other?,
                },
            };
            *allowance = allowance.saturating_sub(len);
            let RunBytes { block, asked } = source.gather(&run.range, edges, into)?;
            debug_assert!(block.len() as u64 <= len && asked <= len, "a write stays within its run");
            self.stats.write_requests += 1;
            self.stats.written_bytes += block.len() as u64;
            // A run has at most 1 GiB.
            let write = internals.write(run.range.start, block, asked as u32, self.class);
            run.stage = Stage::Writing(write);
        }
        let Stage::Writing(write) = &mut run.stage else { return Ok(RunProgress::Pending) };
        match Pin::new(write).poll(context) {
            Poll::Pending => Ok(RunProgress::Pending),
            Poll::Ready(written) => written.map(|()| RunProgress::Over),
        }
    }
}

/// Returns a read of the bytes that the file has of the range.
fn read(file: &File, range: &Range<u64>, class: Class) -> ReadUpTo<'static> {
    file.read_up_to(range.clone()).class(class).owned()
}

fn poll_edges(file: &File, class: Class, edges: &mut Edges, context: &mut Context<'_>) -> Poll<Result<()>> {
    let mut all = true;
    for edge in &mut edges.0 {
        if edge.found.is_some() {
            continue;
        }
        match Pin::new(&mut edge.read).poll(context) {
            Poll::Pending => all = false,
            Poll::Ready(Ok(block)) => edge.found = Some(block),
            Poll::Ready(Err(error)) => {
                // Only a lack of memory is followed by another try.
                edge.read = read(file, &edge.range, class);
                return Poll::Ready(Err(error));
            }
        }
    }
    if all { Poll::Ready(Ok(())) } else { Poll::Pending }
}
