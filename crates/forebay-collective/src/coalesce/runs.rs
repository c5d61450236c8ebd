//! The runs of pages in progress.

use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use forebay::internal::FileInternals;
use forebay::{Block, BlockMut, Class, File, ReadUpTo, Result, Write};

use super::{Shape, WriteStats, WriterCore};

/// Bytes copied in one poll, after which other tasks of the shard have their turn: a tenth of a millisecond.
const COPY_BYTES: u64 = 1 << 20;

/// The source of a run's bytes.
pub(crate) trait Source {
    /// Puts the bytes of `range` into `into`, which is empty and long enough for all. Where the source does not have all bytes of a
    /// page itself, `edges` has the file's. Returns them, and how many the program wrote.
    fn gather(&mut self, range: &Range<u64>, edges: &Edges, into: BlockMut) -> Result<(Block, u64)>;

    /// Notes that the write at `start` has completed.
    fn written(&mut self, start: u64);

    /// Returns a buffer for a request of any size, reserved for the case that no other memory is left.
    fn spare(&mut self) -> Option<BlockMut> {
        None
    }
}

/// The file's bytes of those pages of a run that are not written whole.
pub(crate) struct Edges(Vec<Edge>);

struct Edge {
    range: Range<u64>,
    read: ReadUpTo<'static>,
    found: Option<Block>,
}

impl Edges {
    /// Returns the file's bytes of the page at `start`: empty where they were not read, or behind the file's end.
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
    stats: WriteStats,
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

impl Runs {
    pub(crate) fn new<S>(core: &WriterCore<S>) -> Runs {
        Runs {
            file: core.file.clone(),
            class: core.class,
            shape: core.shape,
            runs: Vec::with_capacity(core.shape.depth),
            bytes: 0,
            stats: WriteStats::default(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns requests and bytes since the last call.
    pub(crate) fn take_stats(&mut self) -> WriteStats {
        std::mem::take(&mut self.stats)
    }

    /// Returns whether a run of that many bytes may start in addition to these.
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
        let incomplete = if forebay::_is_broken!(EdgeNotRead) { Vec::new() } else { incomplete };
        let bytes = FileInternals::capacity(range.end - range.start);
        self.bytes += bytes;
        self.stats.read_requests += incomplete.len() as u64;
        self.stats.read_bytes += incomplete.iter().map(|edge| edge.end - edge.start).sum::<u64>();
        let edge =
            |range: Range<u64>| Edge { read: read(&self.file, &range, self.class), range, found: None };
        let edges = Edges(incomplete.into_iter().map(edge).collect());
        self.runs.push(Run { range, bytes, stage: Stage::Reading(edges) });
    }

    /// Polls every run, and removes those that have completed.
    ///
    /// # Errors
    /// The first that a run met. Where it is only a lack of memory nothing is lost, and polling again tries again.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, source: &mut impl Source) -> Result<()> {
        let mut allowance = COPY_BYTES;
        let mut index = 0;
        while index < self.runs.len() {
            if self.poll_run(index, context, source, &mut allowance)?.is_pending() {
                index += 1;
                continue;
            }
            let over = self.runs.swap_remove(index);
            self.bytes -= over.bytes;
            source.written(over.range.start);
        }
        debug_assert!(self.bytes == 0 || !self.runs.is_empty(), "memory in use belongs to a run");
        Ok(())
    }

    fn poll_run(
        &mut self,
        index: usize,
        context: &mut Context<'_>,
        source: &mut impl Source,
        allowance: &mut u64,
    ) -> Poll<Result<()>> {
        // Our own writes in flight release memory by themselves.
        let writing = self.runs.iter().any(|run| matches!(run.stage, Stage::Writing(_)));
        let run = &mut self.runs[index];
        if let Stage::Reading(edges) = &mut run.stage {
            match ready!(poll_edges(&self.file, self.class, edges, context)) {
                Err(error) if writing && error.is_out_of_memory() => return Poll::Pending,
                read => read?,
            }
            if *allowance == 0 {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let len = run.range.end - run.range.start;
            let internals = FileInternals::of(&self.file);
            let into = match internals.try_block(len as usize) {
                Some(block) => block,
                None if writing => return Poll::Pending,
                None => match internals.block("write", len as usize) {
                    Err(error) if error.is_out_of_memory() => source.spare().ok_or(error)?,
                    other => other?,
                },
            };
            *allowance = allowance.saturating_sub(len);
            let (block, given) = source.gather(&run.range, edges, into)?;
            debug_assert!(block.len() as u64 <= len && given <= len, "a write stays within its run");
            self.stats.write_requests += 1;
            self.stats.written_bytes += block.len() as u64;
            // A run has at most 1 GiB.
            let write = internals.write(run.range.start, block, given as u32, self.class);
            run.stage = Stage::Writing(write);
        }
        let Stage::Writing(write) = &mut run.stage else { return Poll::Pending };
        Pin::new(write).poll(context)
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
