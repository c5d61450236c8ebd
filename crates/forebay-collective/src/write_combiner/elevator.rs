//! The task on the file's home shard that writes pages to the device.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay::internal::{ErrorExt, FileInternals};
use forebay::{Block, BlockMut, Durability, ErrorKind, Result};

use super::combiner_core::CombinerCore;
use super::state::CombinerState;
use crate::coalesce::{Edges, Runs, Source, Tail, Waiters};

/// The sweep's task. It ends the write combiner for all when it ends, for any reason.
pub(super) struct Elevator {
    core: Arc<CombinerCore>,
    runs: Runs,
    tail: Tail,
    /// Whether `tail` has the length that the file had.
    measured: bool,
    /// The page behind the last one that left. Pages leave in the order of the file, around and around, so
    /// that those behind have the longest time to get neighbours.
    cursor: u64,
    /// Whether pages leave until enough slots are free.
    draining: bool,
    /// Whether memory was lacking; the next request tries again.
    lacking: bool,
}

/// Work that cannot be done within a poll.
enum Step {
    /// Gets the file's length.
    Length,
    Settle(Durability),
    End,
}

impl Elevator {
    pub(super) fn new(core: Arc<CombinerCore>) -> Elevator {
        Elevator {
            runs: Runs::new(&core),
            core,
            tail: Tail::default(),
            measured: false,
            cursor: 0,
            draining: false,
            lacking: false,
        }
    }

    pub(super) async fn run(mut self) {
        if let Err(error) = self.work().await {
            self.core.fail(error);
        }
    }

    async fn work(&mut self) -> Result<()> {
        loop {
            match poll_fn(|context| self.poll(context)).await? {
                Step::End => return Ok(()),
                Step::Length => {
                    self.tail.end = self.core.length().await?;
                    self.measured = true;
                }
                Step::Settle(durability) => {
                    self.tail.settle(&self.core, durability).await?;
                    self.core.settled(durability);
                }
            }
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Step>> {
        let core = self.core.clone();
        loop {
            let mut pages = Pages { core: &core, tail: &mut self.tail };
            match self.runs.poll(context, &mut pages) {
                Err(error) if error.is_out_of_memory() => {
                    self.lacking = true;
                    core.lack();
                }
                polled => polled?,
            }
            let mut state = core.lock();
            state.stats.add_requests(&self.runs.take_stats());
            if state.closed {
                return Poll::Ready(Ok(Step::End));
            }
            if !self.lacking && self.wants(&state) && !self.measured {
                return Poll::Ready(Ok(Step::Length));
            }
            let mut began = false;
            while !self.lacking && self.wants(&state) && self.begin_next(&state) {
                began = true;
            }
            if began {
                drop(state);
                // The first poll of the started runs.
                continue;
            }
            if self.runs.is_empty()
                && let Some(front) = state.epochs.front()
                && front.pages.is_empty()
                && let Some(durability) = front.seal
            {
                state.settling = true;
                return Poll::Ready(Ok(Step::Settle(durability)));
            }
            let enough = state.slots.room() >= (state.reserve() / 4).max(1) || self.runs.is_empty();
            let woken = enough && state.slots.room() > 0 && !state.writers.is_empty();
            let writers = if woken { std::mem::take(&mut state.writers) } else { Waiters::default() };
            self.keep_spare(&mut state);
            if !self.wants(&state) || self.lacking {
                state.sweeper = Some(context.waker().clone());
            }
            self.lacking = false;
            drop(state);
            writers.wake();
            return Poll::Pending;
        }
    }

    /// Returns whether pages are to leave.
    fn wants(&mut self, state: &CombinerState) -> bool {
        let sealed = state.epochs.front().is_some_and(|front| front.seal.is_some());
        // Continues for a while once started, so that it is not woken for every few pages.
        self.draining = state.is_tight() || (self.draining && state.slots.room() < 2 * state.reserve());
        (sealed || self.draining) && state.epochs.front().is_some_and(|front| !front.pages.is_empty())
    }

    /// Replaces the spare buffer, when it was used, as soon as memory is free; releases it to the engine with the last page.
    fn keep_spare(&self, state: &mut CombinerState) {
        if state.slots.held_bytes() == 0 {
            state.spare = None;
        } else if state.spare.is_none() {
            state.spare = FileInternals::of(&self.core.file).try_block(state.shape.request as usize);
        }
    }

    /// Starts the next run, if a run may start; returns whether it did.
    fn begin_next(&mut self, state: &CombinerState) -> bool {
        let page = state.shape.page;
        let Some(pages) = state.pick(self.cursor) else { return false };
        let run = pages.start * page..pages.end * page;
        if !self.runs.has_room(run.end - run.start) || self.runs.meet(&run) {
            return false;
        }
        self.cursor = pages.end;
        self.runs.begin(run, state.incomplete(&pages, self.tail.end));
        true
    }
}

impl Drop for Elevator {
    fn drop(&mut self) {
        // After an orderly end no caller remains to get this error.
        self.core.fail(self.core.task_ended());
    }
}

/// The pages as the source of runs.
struct Pages<'s> {
    core: &'s CombinerCore,
    tail: &'s mut Tail,
}

impl Source for Pages<'_> {
    fn gather(&mut self, range: &Range<u64>, edges: &Edges, mut into: BlockMut) -> Result<(Block, u64)> {
        let mut state = self.core.lock();
        debug_assert!(!state.settling, "nothing of an epoch is sent while the one before it settles");
        let CombinerState { shape, slots, epochs, flying, unsynced, .. } = &mut *state;
        let page = shape.page;
        let mut given = 0;
        let mut valid = range.end;
        for start in range.clone().step_by(page as usize) {
            let known = epochs.front_mut().and_then(|front| front.pages.remove(&(start / page)));
            let Some(known) = known else {
                // No other code removes pages.
                return Err(self.core.error(ErrorKind::Io).with_note("a page is gone"));
            };
            let bytes = slots.bytes(known.slot);
            given += known.dirty.len() as u64;
            if known.dirty.is_whole(page as usize) {
                into.extend_from_slice(bytes)?;
            } else {
                let at = into.len();
                into.extend_from_slice(edges.page(start, page))?;
                into.resize(at + page as usize)?;
                for dirty in known.dirty.ranges() {
                    into[at + dirty.start..at + dirty.end].copy_from_slice(&bytes[dirty]);
                }
            }
            if start + page == range.end {
                let dirty_end = start + known.dirty.end() as u64;
                valid = dirty_end.max(self.tail.end.min(range.end));
            }
            slots.give(known.slot);
        }
        let len = self.tail.extend(range.start, valid, shape.grain);
        into.truncate(len as usize);
        *unsynced = true;
        let block = into.freeze();
        debug_assert!(
            flying.iter().all(|(start, other)| {
                *start + other.len() as u64 <= range.start || range.start + block.len() as u64 <= *start
            }),
            "no byte is in two writes at once"
        );
        flying.push((range.start, block.clone()));
        Ok((block, given))
    }

    fn written(&mut self, start: u64) {
        self.core.lock().flying.retain(|(begins, _)| *begins != start);
    }

    fn spare(&mut self) -> Option<BlockMut> {
        self.core.lock().spare.take()
    }
}
