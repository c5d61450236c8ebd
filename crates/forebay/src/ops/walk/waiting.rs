//! A walk that its waiting thread carries out itself, block by block: no shard takes part unless a read is sent there. See
//! `reactor/calls.rs`.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

use crate::base::error::{Error, Result};
use crate::base::wait;
use crate::io::stats::WalkStats;
use crate::memory::block::Block;
use crate::ops::read::RangeRead;
use crate::ops::submit::FileRef;
use crate::reactor::open_file::FileCore;
use crate::reactor::walk::remote_walks::Settings;
use crate::reactor::walk::state::{Job, Next};
use crate::reactor::walk::{Ranges, Refusal, as_step, check_request, describe, timed};

/// A block on its way, and its place in the file.
type PendingBlock<'c> = (Range<u64>, RangeRead<'c, true>);

/// Carries out a walk. Returns it with its ending.
pub(super) fn carry_out(core: &Arc<FileCore>, settings: Settings, root: Range<u64>, job: Job) -> Job {
    let mut walk = BlockingWalk { core, settings, hops: 0, coming: Vec::new(), counts: WalkStats::default() };
    walk.counts.walks = 1;
    walk.counts.boxed_states = u64::from(job.is_boxed());
    let job = walk.run(root, job);
    core.engine().calls.count_walk(&walk.counts);
    job
}

/// A walk under way on the thread that waits for it.
struct BlockingWalk<'c> {
    core: &'c Arc<FileCore>,
    settings: Settings,
    hops: u32,
    coming: Vec<PendingBlock<'c>>,
    counts: WalkStats,
}

impl<'c> BlockingWalk<'c> {
    fn run(&mut self, root: Range<u64>, mut job: Job) -> Job {
        let mut next = Next::Read(root);
        loop {
            let arrived = match next {
                Next::Over => return job,
                Next::Panicked(error) => Err((error, None)),
                Next::Read(range) => {
                    self.request(&std::iter::once(range).collect()).and_then(|()| self.arrival())
                }
                Next::ReadEach(ranges) => self.request(&ranges).and_then(|()| self.arrival()),
                Next::Wait => self.arrival(),
            };
            let (range, block) = match arrived {
                Ok(arrived) => arrived,
                Err((error, range)) => {
                    job.fail(self.describe(error, range.as_ref()));
                    return job;
                }
            };
            next = self.step(&mut job, &block, range.clone());
            if let Next::Panicked(error) = next {
                job.fail(self.describe(error, Some(&range)));
                return job;
            }
        }
    }

    /// Starts the reads that a step requested, replacing all earlier reads.
    fn request(&mut self, ranges: &Ranges) -> Result<(), Refusal> {
        self.coming.clear();
        let grain = self.core.alignment().read_offset;
        check_request(ranges, self.hops, self.settings.hops_max, grain)?;
        self.hops += 1;
        self.counts.hops += 1;
        let read = |range: Range<u64>| {
            let read = RangeRead::of_core(FileRef::Borrowed(self.core), range.clone(), self.settings.class);
            (range, read)
        };
        self.coming.extend(ranges.iter().map(read));
        Ok(())
    }

    /// Waits for the next block of the reads under way.
    fn arrival(&mut self) -> Result<(Range<u64>, Block), Refusal> {
        let coming = &mut self.coming;
        let (range, read, result) = match coming.len() {
            0 => {
                let error = Error::invalid("walk", "the step waits for blocks, and none is to come");
                return Err((error, None));
            }
            1 => {
                let (range, mut read) = coming.remove(0);
                let result = wait::block_in_turn_on_any(poll_fn(|context| read.poll(context)));
                (range, read, result)
            }
            // Together in flight, so by their shard.
            _ => wait::block_on_any(poll_fn(|context| {
                for at in 0..coming.len() {
                    if let Poll::Ready(result) = coming[at].1.poll(context) {
                        let (range, read) = coming.swap_remove(at);
                        return Poll::Ready((range, read, result));
                    }
                }
                Poll::Pending
            })),
        };
        // As a shard counts them: blocks that failed are included.
        self.counts.steps += 1;
        self.counts.inline_blocks += u64::from(read.is_known());
        match result {
            Ok(block) => Ok((range, block)),
            Err(error) => Err((error.of("walk"), Some(range))),
        }
    }

    /// Passes a block to the walk, as on a shard.
    fn step(&mut self, job: &mut Job, block: &Block, range: Range<u64>) -> Next {
        let (clock, step) = (self.core.engine().clock(), || job.step(block, range));
        let (next, slow_ns) = timed(&clock, self.counts.steps, || as_step(self.settings.class, step));
        if let Some(ns) = slow_ns {
            self.counts.add_slow(job.name(), ns);
        }
        next
    }

    fn describe(&self, error: Error, range: Option<&Range<u64>>) -> Error {
        describe(error, self.hops, range, Some(self.core))
    }
}
