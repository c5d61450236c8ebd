//! The task on a shard that writes one part of the file.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay::internal::{ErrorExt, FileInternals};
use forebay::{Block, BlockMut, ErrorKind, Result};

use super::plan::{self, Part, Run};
use super::shared::{AggregatorStep, CollectiveCore};
use crate::coalesce::{Edges, Runs, Source, Tail, WriterCore};

/// An aggregator's task. It ends the collective for all when it ends, for any reason.
pub(super) struct Aggregate {
    core: Arc<CollectiveCore>,
    /// Its number; the first also gets the file's length, removes padding and syncs.
    index: usize,
    runs: Runs,
}

impl Aggregate {
    pub(super) fn new(core: Arc<CollectiveCore>, index: usize) -> Aggregate {
        Aggregate { runs: Runs::new(&core), core, index }
    }

    pub(super) async fn run(mut self) {
        if let Err(error) = self.work().await {
            self.core.fail(error);
        }
    }

    async fn work(&mut self) -> Result<()> {
        let mut written = 0;
        loop {
            match poll_fn(|context| self.core.poll_turn(context, self.index, written)).await {
                AggregatorStep::End => return Ok(()),
                AggregatorStep::Measure => self.core.measured(self.core.file.len().await?),
                AggregatorStep::Write(deposits, length) => {
                    let shape = self.core.shape;
                    let mut tail = Tail { end: length, padded: None };
                    if let Some(span) = plan::span(&deposits) {
                        let count = FileInternals::of(&self.core.file).shard_count() as u64;
                        let domain = plan::domain(&span, &shape, self.index as u64, count);
                        let part = Part::new(deposits, shape, domain);
                        write_part(&mut self.runs, &self.core, part, &mut tail).await?;
                    }
                    self.core.wrote(tail, self.runs.take_stats());
                    written += 1;
                }
                AggregatorStep::Settle(mut tail, durability) => {
                    tail.settle(&self.core, durability).await?;
                    self.core.settled(durability);
                }
            }
        }
    }
}

/// Writes a part of the file. `tail` has the file's end before the write, and is extended.
pub(crate) async fn write_part<S>(
    runs: &mut Runs,
    core: &WriterCore<S>,
    part: Part,
    tail: &mut Tail,
) -> Result<()> {
    let mut pieces = Pieces { core, part, under_way: Vec::new(), length: tail.end, tail };
    poll_fn(|context| poll_part(runs, &mut pieces, context)).await
}

fn poll_part<S>(runs: &mut Runs, pieces: &mut Pieces<'_, S>, context: &mut Context<'_>) -> Poll<Result<()>> {
    loop {
        runs.poll(context, pieces)?;
        let mut began = false;
        while let Some(next) = pieces.part.peek()
            && runs.has_room(next.range.end - next.range.start)
        {
            let Some(mut next) = pieces.part.take() else { break };
            let mut incomplete = std::mem::take(&mut next.incomplete);
            incomplete.retain(|part| part.start < pieces.length);
            runs.begin(next.range.clone(), incomplete);
            pieces.under_way.push(next);
            began = true;
        }
        if !began {
            // A planned run always fits when no run is in progress.
            return if runs.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
    }
}

impl Drop for Aggregate {
    fn drop(&mut self) {
        self.core.fail(self.core.task_ended());
    }
}

/// The pieces as the source of runs.
struct Pieces<'t, S> {
    core: &'t WriterCore<S>,
    part: Part,
    under_way: Vec<Run>,
    /// The offset behind the file's last byte before this write: bytes behind it need not be read.
    length: u64,
    tail: &'t mut Tail,
}

impl<S> Source for Pieces<'_, S> {
    fn gather(&mut self, range: &Range<u64>, edges: &Edges, mut into: BlockMut) -> Result<(Block, u64)> {
        let gone = || self.core.error(ErrorKind::Io).with_note("its pieces are gone");
        let index = self.under_way.iter().position(|run| run.range == *range).ok_or_else(gone)?;
        let run = self.under_way.swap_remove(index);
        into.resize((range.end - range.start) as usize)?;
        let page = self.core.shape.page;
        for start in range.clone().step_by(page as usize) {
            let found = edges.page(start, page);
            let at = (start - range.start) as usize;
            into[at..at + found.len()].copy_from_slice(found);
        }
        self.part.lay(&run, &mut into);
        let valid = run.end.max(self.tail.end.min(range.end));
        let len = self.tail.extend(range.start, valid, self.core.shape.grain);
        into.truncate(len as usize);
        Ok((into.freeze(), run.covered))
    }

    fn written(&mut self, _: u64) {}
}
