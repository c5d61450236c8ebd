//! The task on a shard that writes one part of the file.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::plan::{self, Part, Run};
use super::shared::{AggregatorStep, CollectiveCore};
#[cfg(feature = "_mutants")]
use crate::base::mutants::Mutant;
use crate::ops::coalesce::{Edges, RunBytes, Runs, Source, Tail, task_ended};
use crate::{BlockMut, Class, ErrorKind, File, Result};

/// An aggregator's task. It ends the collective for all when it ends, for whatever reason.
pub(super) struct Aggregate {
    shared: Arc<CollectiveCore>,
    file: File,
    class: Class,
    /// Its number; the first one also gets the file's length, takes padding off and syncs.
    index: usize,
    runs: Runs,
}

impl Aggregate {
    pub(super) fn new(shared: Arc<CollectiveCore>, file: File, class: Class, index: usize) -> Aggregate {
        let runs = Runs::new(file.clone(), class, shared.shape);
        Aggregate { shared, file, class, index, runs }
    }

    pub(super) async fn run(mut self) {
        if let Err(error) = self.work().await {
            self.shared.fail(error);
        }
    }

    async fn work(&mut self) -> Result<()> {
        let (mut round, mut done) = (0, None);
        loop {
            match poll_fn(|context| self.shared.poll_turn(context, self.index, done)).await {
                AggregatorStep::End => return Ok(()),
                AggregatorStep::Measure => self.shared.measured(self.file.len().await?),
                AggregatorStep::Write(deposits, length) => {
                    let shape = self.shared.shape;
                    let mut tail = Tail { end: length, padded: None };
                    if let Some(span) = plan::span(&deposits) {
                        let count = self.shared.aggregators as u64;
                        let domain = plan::domain(&span, &shape, self.index as u64, count);
                        let mut pieces = Pieces {
                            file: &self.file,
                            part: Part::new(deposits, shape, domain),
                            under_way: Vec::new(),
                            length,
                            tail: &mut tail,
                            grain: shape.grain,
                            page: shape.page,
                        };
                        poll_fn(|context| poll_part(&mut self.runs, &mut pieces, context)).await?;
                    }
                    self.shared.wrote(tail, self.runs.take_stats());
                    done = Some(round);
                    round += 1;
                }
                AggregatorStep::Settle(mut tail, durability) => {
                    tail.settle(&self.file, self.class, durability).await?;
                    self.shared.settled(durability);
                }
            }
        }
    }
}

fn poll_part(runs: &mut Runs, pieces: &mut Pieces<'_>, context: &mut Context<'_>) -> Poll<Result<()>> {
    loop {
        runs.poll(context, pieces)?;
        let mut began = false;
        while let Some(next) = pieces.part.peek()
            && runs.has_room(next.range.end - next.range.start)
        {
            let Some(mut next) = pieces.part.take() else { break };
            let mut incomplete = std::mem::take(&mut next.incomplete);
            incomplete.retain(|part| part.start < pieces.length);
            #[cfg(feature = "_mutants")]
            if Mutant::EdgeNotRead.is_on() {
                incomplete.clear();
            }
            runs.begin(next.range.clone(), incomplete);
            pieces.under_way.push(next);
            began = true;
        }
        if !began {
            // A planned run always has room when none is under way.
            return if runs.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
    }
}

impl Drop for Aggregate {
    fn drop(&mut self) {
        self.shared.fail(task_ended(&self.file, "collective"));
    }
}

/// The pieces as the source of runs.
struct Pieces<'t> {
    file: &'t File,
    part: Part,
    under_way: Vec<Run>,
    /// The offset behind the file's last byte before this write: bytes behind it need not be read.
    length: u64,
    tail: &'t mut Tail,
    grain: u64,
    page: u64,
}

impl Source for Pieces<'_> {
    fn gather(&mut self, range: &Range<u64>, edges: &Edges, mut into: BlockMut) -> Result<RunBytes> {
        let note = || Some("its pieces are gone".to_owned());
        let gone = || self.file.internals().error("collective", ErrorKind::Io, Some(range), note());
        let index = self.under_way.iter().position(|run| run.range == *range).ok_or_else(gone)?;
        let run = self.under_way.swap_remove(index);
        into.resize((range.end - range.start) as usize)?;
        for start in range.clone().step_by(self.page as usize) {
            let found = edges.page(start, self.page);
            let at = (start - range.start) as usize;
            into[at..at + found.len()].copy_from_slice(found);
        }
        self.part.lay(&run, &mut into);
        let valid = run.end.max(self.tail.end.min(range.end));
        let len = self.tail.extend(range.start, valid, self.grain);
        into.truncate(len as usize);
        Ok(RunBytes { block: into.freeze(), asked: run.covered })
    }

    fn written(&mut self, _: u64) {}
}
