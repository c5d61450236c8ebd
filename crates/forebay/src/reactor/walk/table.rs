//! A shard's walks: a slot each, and the queue of blocks on their way to steps.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use super::remote_walks::Batch;
use super::state::Job;
use crate::base::class::Class;
use crate::io::op::{OpKey, OpOutcome};
use crate::reactor::account::file_table::NO_FILE;
use crate::reactor::shard::optable::NIL;

/// Identifies a slot and one particular use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WalkKey {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// The most walks in progress on one shard; more wait for their turn.
pub(crate) const WALKS_MAX: u32 = 1 << 16;
/// Hops of one walk, and steps of all walks, that may end in one turn before tasks and other completions run.
pub(crate) const HOPS_PER_TURN: u32 = 8;
pub(crate) const STEPS_PER_TURN: u32 = 256;
const CHUNK_SLOTS: u32 = 32;
/// Reads of one walk in flight.
const READS_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkState {
    Free,
    /// Waits for blocks.
    Reading,
    /// Its step has the job, and returns it.
    Stepping,
    /// Its future has not yet returned the ending.
    Over,
}

/// The waiter that is notified when a walk ends.
pub(crate) enum Owner {
    /// No waiter: the future was dropped while the step ran.
    Nobody,
    /// A future of this task on this shard.
    Task(u32),
    /// A future on this shard, polled with a waker that is not its task's own.
    Wake(Waker),
    /// One of a batch, or a single walk from elsewhere.
    Batch(Arc<Batch>, u32),
}

/// The former content of a slot, which is dropped or used where nothing is borrowed.
pub(crate) struct Former {
    pub(crate) job: Option<Job>,
    pub(crate) owner: Owner,
    pub(crate) file: u32,
}

/// A walk in progress.
pub(crate) struct WalkSlot {
    pub(crate) generation: u32,
    next: u32,
    pub(crate) state: WalkState,
    pub(crate) class: Class,
    /// The file's entry in the shard's table, of which the walk has one use.
    pub(crate) file: u32,
    pub(crate) hops: u32,
    pub(crate) hops_max: u32,
    /// Hops started in the turn whose number is `turn`.
    pub(crate) turn_hops: u32,
    pub(crate) turn: u32,
    /// Changes with each result of a step that drops reads in flight; never starts over.
    pub(crate) epoch: u32,
    /// Blocks that a step still waits for, one bit per element of `reads`.
    pub(crate) coming: u16,
    /// Those of them that have a slot of the op table, and (`unasked`) those that were not requested yet.
    pub(crate) staged: u16,
    pub(crate) unasked: u16,
    pub(crate) owner: Owner,
    pub(crate) job: Option<Job>,
    pub(crate) reads: [WalkRead; READS_MAX],
}

const _: () = assert!(size_of::<WalkSlot>() <= 640, "docs/walks.md tells what a walk under way takes");

/// A read that a step requested.
#[derive(Clone, Copy)]
pub(crate) struct WalkRead {
    pub(crate) key: OpKey,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl WalkRead {
    const NONE: WalkRead = WalkRead { key: OpKey { index: NIL, generation: 0 }, start: 0, end: 0 };

    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.end
    }
}

/// A block, or the reason for its failure, to be passed to a step.
pub(crate) struct Arrival {
    pub(crate) walk: u32,
    pub(crate) epoch: u32,
    pub(crate) place: u32,
    pub(crate) outcome: OpOutcome,
}

/// The walks of one shard.
pub(crate) struct Walks {
    chunks: Vec<Box<[WalkSlot]>>,
    free: u32,
    live: u32,
    /// The generation of slots that do not exist yet, so that no key occurs twice.
    generation: u32,
    arrivals: VecDeque<Arrival>,
    /// Arrivals of walks that have used up their hops in this turn.
    later: VecDeque<Arrival>,
    pub(crate) turn: u32,
    steps_left: u32,
    /// Whether reads were staged since the last submission.
    pub(crate) has_staged: bool,
    /// Batches that found no free slot.
    pub(crate) waiting: VecDeque<Arc<Batch>>,
    /// Futures that found no free slot.
    pub(crate) waiters: Vec<Waker>,
    /// Walks with a read that found the op table full.
    pub(crate) unstaged: Vec<u32>,
}

impl Walks {
    pub(crate) fn new() -> Walks {
        Walks {
            chunks: Vec::new(),
            free: NIL,
            live: 0,
            generation: 1,
            arrivals: VecDeque::new(),
            later: VecDeque::new(),
            turn: 0,
            steps_left: STEPS_PER_TURN,
            has_staged: false,
            waiting: VecDeque::new(),
            waiters: Vec::new(),
            unstaged: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.live == 0 && self.waiting.is_empty() && self.unstaged.is_empty() && !self.has_arrivals()
    }

    /// Returns whether blocks wait for steps.
    #[inline]
    pub(crate) fn has_arrivals(&self) -> bool {
        !self.arrivals.is_empty() || !self.later.is_empty()
    }

    /// Returns the number of slots that exist.
    pub(crate) fn capacity(&self) -> u32 {
        self.chunks.len() as u32 * CHUNK_SLOTS
    }

    /// Returns the number of walks in progress or waiting to start.
    #[inline]
    #[cfg(any(feature = "_sim", all(feature = "tokio", target_os = "linux", not(forebay_no_uring))))]
    pub(crate) fn load(&self) -> u32 {
        self.live + self.waiting.len() as u32
    }

    pub(crate) fn is_full(&self) -> bool {
        self.live >= WALKS_MAX
    }

    /// Returns a free slot, which the caller fills, or `None` with `WALKS_MAX` walks.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<WalkKey> {
        if self.is_full() {
            return None;
        }
        if self.free == NIL {
            self.grow();
        }
        let index = self.free;
        let slot = self.slot(index);
        debug_assert!(
            slot.state == WalkState::Free && slot.job.is_none(),
            "a free slot has no state of a walk"
        );
        let (next, generation) = (slot.next, slot.generation);
        self.free = next;
        self.live += 1;
        Some(WalkKey { index, generation })
    }

    /// Frees a slot whose job, owner and file were moved out.
    #[inline]
    pub(crate) fn give_back(&mut self, index: u32) {
        let head = self.free;
        let slot = self.slot(index);
        debug_assert!(slot.state != WalkState::Free && slot.job.is_none() && slot.file == NO_FILE);
        debug_assert_eq!(slot.staged, 0, "a walk that ended has given up its reads");
        slot.state = WalkState::Free;
        slot.generation = slot.generation.wrapping_add(1);
        slot.next = head;
        self.free = index;
        self.live -= 1;
    }

    /// Empties a slot, frees it, and returns its content.
    pub(crate) fn clear(&mut self, index: u32) -> Former {
        let slot = self.slot(index);
        let file = std::mem::replace(&mut slot.file, NO_FILE);
        let owner = std::mem::replace(&mut slot.owner, Owner::Nobody);
        let held = Former { job: slot.job.take(), owner, file };
        self.give_back(index);
        held
    }

    #[inline]
    pub(crate) fn slot(&mut self, index: u32) -> &mut WalkSlot {
        &mut self.chunks[(index / CHUNK_SLOTS) as usize][(index % CHUNK_SLOTS) as usize]
    }

    /// Returns the slot that `key` names, unless that use of it has ended.
    #[inline]
    pub(crate) fn find(&mut self, key: WalkKey) -> Option<&mut WalkSlot> {
        let chunk = self.chunks.get_mut((key.index / CHUNK_SLOTS) as usize)?;
        let slot = &mut chunk[(key.index % CHUNK_SLOTS) as usize];
        (slot.generation == key.generation && slot.state != WalkState::Free).then_some(slot)
    }

    /// Returns the key of a slot whose future was dropped on another thread.
    pub(crate) fn key_at(&mut self, index: u32) -> WalkKey {
        WalkKey { index, generation: self.slot(index).generation }
    }

    /// Returns the keys of all slots in use.
    pub(crate) fn live_keys(&self) -> Vec<WalkKey> {
        let slots = self.chunks.iter().flat_map(|chunk| chunk.iter()).enumerate();
        slots
            .filter(|(_, slot)| slot.state != WalkState::Free)
            .map(|(index, slot)| WalkKey { index: index as u32, generation: slot.generation })
            .collect()
    }

    /// Starts a new turn of at most `steps` steps: each walk may hop again.
    pub(crate) fn begin_turn(&mut self, steps: u32) {
        self.turn = self.turn.wrapping_add(1);
        self.steps_left = steps;
        self.arrivals.append(&mut self.later);
    }

    #[inline]
    pub(crate) fn push_arrival(&mut self, walk: u32, place: u32, outcome: OpOutcome) {
        let slot = self.slot(walk);
        debug_assert_ne!(slot.coming & (1 << place), 0, "a block arrives where one is to come");
        slot.staged &= !(1 << place);
        slot.unasked &= !(1 << place);
        let epoch = slot.epoch;
        self.arrivals.push_back(Arrival { walk, epoch, place, outcome });
    }

    /// Returns the next arrival that a step may handle in this turn. Blocks that no step wants any more are
    /// dropped.
    #[inline]
    pub(crate) fn next_arrival(&mut self) -> Option<Arrival> {
        while self.steps_left > 0 {
            let arrival = self.arrivals.pop_front()?;
            let turn = self.turn;
            let slot = self.slot(arrival.walk);
            if slot.epoch != arrival.epoch || slot.state != WalkState::Reading {
                continue;
            }
            if slot.turn == turn && slot.turn_hops >= HOPS_PER_TURN {
                self.later.push_back(arrival);
                continue;
            }
            debug_assert_ne!(
                slot.coming & (1 << arrival.place),
                0,
                "a block of this epoch is waited for, once"
            );
            self.steps_left -= 1;
            return Some(arrival);
        }
        None
    }

    /// Drops all arrivals, for the shard's end.
    pub(crate) fn forget_arrivals(&mut self) {
        self.arrivals.clear();
        self.later.clear();
        self.unstaged.clear();
    }

    /// Releases memory, for a shard that is idle.
    pub(crate) fn shrink(&mut self) {
        if self.chunks.len() < 2 || !self.is_idle() {
            return;
        }
        let slots = self.chunks.iter().flat_map(|chunk| chunk.iter());
        let newest = slots.map(|slot| slot.generation).max().unwrap_or(0);
        self.generation = newest.max(self.generation).wrapping_add(1);
        self.chunks.clear();
        self.free = NIL;
    }

    #[cold]
    fn grow(&mut self) {
        debug_assert_eq!(self.live, self.capacity(), "the table grows when every slot is in use");
        // Reserved at the start, so that no burst on a warm shard allocates.
        self.arrivals.reserve(256);
        self.later.reserve(256);
        let first = self.capacity();
        let (end, generation) = (self.free, self.generation);
        let slots = (0..CHUNK_SLOTS).map(|at| WalkSlot {
            generation,
            next: if at + 1 == CHUNK_SLOTS { end } else { first + at + 1 },
            state: WalkState::Free,
            class: Class::DEFAULT,
            file: NO_FILE,
            hops: 0,
            hops_max: 0,
            turn_hops: 0,
            turn: 0,
            epoch: 0,
            coming: 0,
            staged: 0,
            unasked: 0,
            owner: Owner::Nobody,
            job: None,
            reads: [WalkRead::NONE; READS_MAX],
        });
        self.chunks.push(slots.collect());
        self.free = first;
    }
}
