//! The blocks that were offered last, until they are wanted a second time or others follow; and blocks in memory that is lent to the
//! cache for a while.
//!
//! Lent memory is acquired and released in steps of one block, each of one part: a withdrawn step evicts at most one block of the
//! usual length, so that the waiting operation needs no more than that. The map's limit cannot do that: it applies to all parts.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay::Block;

use crate::blocks::{At, Mix, hash_of, weight_of};

/// Number of parts, each with its own lock.
const PARTS: usize = 4;
/// The most blocks of the usual length, without those in lent memory.
const BLOCKS_MAX: u64 = 64;
/// The window uses at most this part of the cache, without lent memory.
const SHARE: u64 = 32;
/// The most blocks that one eviction passes over because they were used since their insertion.
const PASSED_MAX: usize = 8;
/// Divisor for the bytes that a part gives up when the engine has no memory left.
const GIVEN_PART: u64 = 8;

/// A first-in-first-out list of blocks: the window before the filter of TinyLFU. A block that is used again soon, as by a neighbour
/// of the key that it was read for, is found here although it is not worth its memory for longer yet.
///
/// With lent memory the list is longer. Blocks that are used again stay in it then, and such a block is passed over once at its
/// eviction; when it is replaced after that, it moves to the map of blocks, which blocks that are used once never enter.
pub(crate) struct Window {
    parts: [Mutex<Part>; PARTS],
    /// The bytes of a step, those of a block of the usual length.
    step: u64,
    /// Number of lent steps. Changed with the lock of the part that gains or loses them.
    steps: AtomicU64,
    /// The part that gives the next step back.
    turn: AtomicUsize,
}

#[derive(Default)]
struct Part {
    /// In the order in which they leave.
    blocks: BTreeMap<u64, RecentBlock>,
    /// The place of each block in that order.
    places: HashMap<At, u64, Mix>,
    next: u64,
    bytes: u64,
    /// The most bytes, without lent memory.
    bytes_max: u64,
    /// Bytes that are lent.
    lent: u64,
}

struct RecentBlock {
    at: At,
    block: Block,
    /// Used since its insertion.
    is_wanted: bool,
    /// It was passed over when it would have left.
    is_passed: bool,
}

impl Window {
    /// Returns an empty window for a cache of `bytes_max` bytes.
    pub(crate) fn new(bytes_max: u64, block_bytes: u64) -> Window {
        let window = Window {
            parts: Default::default(),
            step: weight_of(block_bytes),
            steps: AtomicU64::new(0),
            turn: AtomicUsize::new(0),
        };
        window.set_bytes_max(Window::bytes_of(bytes_max, block_bytes));
        window
    }

    /// Returns the most bytes of the window of a cache of `bytes_max` bytes, for blocks of about `block_bytes`.
    pub(crate) fn bytes_of(bytes_max: u64, block_bytes: u64) -> u64 {
        (BLOCKS_MAX * weight_of(block_bytes)).min(bytes_max / SHARE)
    }

    /// Changes the limit; blocks beyond it are dropped immediately.
    pub(crate) fn set_bytes_max(&self, bytes_max: u64) {
        for part in &self.parts {
            let mut part = lock(part);
            part.bytes_max = bytes_max / PARTS as u64;
            let dropped = part.shrink();
            drop(part);
            drop(dropped);
        }
    }

    pub(crate) fn lent_bytes(&self) -> u64 {
        self.steps.load(Ordering::Relaxed) * self.step
    }

    /// Lends up to `bytes` bytes more, in whole steps. Returns the bytes.
    pub(crate) fn lend(&self, bytes: u64) -> u64 {
        let steps = bytes / self.step;
        for (index, part) in self.parts.iter().enumerate() {
            let mine = (steps + index as u64) / PARTS as u64;
            let mut part = lock(part);
            part.lent += mine * self.step;
            self.steps.fetch_add(mine, Ordering::Relaxed);
        }
        steps * self.step
    }

    /// Withdraws one step, and drops the blocks that no longer fit: at most one of the usual length. Returns the bytes, 0 if
    /// nothing is lent.
    pub(crate) fn take_back(&self) -> u64 {
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        for index in first..first + PARTS {
            let mut part = lock(&self.parts[index % PARTS]);
            if part.lent < self.step {
                continue;
            }
            part.lent -= self.step;
            let dropped = part.shrink();
            if part.lent == 0 {
                part.blocks.values_mut().for_each(|recent| recent.is_wanted = false);
                part.places.shrink_to_fit();
            }
            self.steps.fetch_sub(1, Ordering::Relaxed);
            drop(part);
            drop(dropped);
            return self.step;
        }
        0
    }

    fn part(&self, at: &At) -> MutexGuard<'_, Part> {
        // The lower bits place a block within its part.
        lock(&self.parts[(hash_of(at) >> 32) as usize % PARTS])
    }

    /// Adds a block in place of the oldest blocks. Returns the replaced blocks that were used again.
    pub(crate) fn push(&self, at: At, block: &Block) -> impl Iterator<Item = (At, Block)> + use<> {
        let mut part = self.part(&at);
        let replaced = part.add(at, block);
        let left = part.shrink();
        // Blocks are returned to the engine without the lock.
        drop(part);
        drop(replaced);
        left.into_iter().filter(|recent| recent.is_passed).map(|recent| (recent.at, recent.block))
    }

    /// Adds a block if it fits into lent memory without an eviction. Returns whether it was added.
    pub(crate) fn fill(&self, at: At, block: &Block) -> bool {
        if self.steps.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut part = self.part(&at);
        let bytes = part.bytes + weight_of(block.pinned_bytes() as u64);
        let fits = part.lent > 0 && bytes <= part.bytes_max + part.lent;
        let replaced = if fits { part.add(at, block) } else { None };
        drop(part);
        drop(replaced);
        fits
    }

    /// Removes a block and returns it.
    pub(crate) fn take(&self, at: &At) -> Option<Block> {
        self.part(at).take(at)
    }

    /// Returns a block that is wanted again, and whether it stays here: in lent memory it does, else it is removed.
    pub(crate) fn wanted(&self, at: &At) -> Option<(Block, bool)> {
        let mut part = self.part(at);
        if part.lent == 0 {
            return part.take(at).map(|block| (block, false));
        }
        let place = *part.places.get(at)?;
        let recent = part.blocks.get_mut(&place)?;
        recent.is_wanted = true;
        Some((recent.block.clone(), true))
    }

    pub(crate) fn peek(&self, at: &At) -> Option<Block> {
        let part = self.part(at);
        let place = part.places.get(at)?;
        part.blocks.get(place).map(|recent| recent.block.clone())
    }

    /// Keeps the blocks for which `keeps` returns true.
    pub(crate) fn retain(&self, keeps: impl Fn(&At) -> bool) {
        for part in &self.parts {
            let mut part = lock(part);
            let Part { blocks, places, bytes, .. } = &mut *part;
            blocks.retain(|_, recent| keeps(&recent.at));
            places.retain(|at, _| keeps(at));
            *bytes = blocks.values().map(RecentBlock::weight).sum();
        }
    }

    /// Drops the oldest blocks: an eighth of those in lent memory, or all blocks without lent memory. Returns whether it dropped
    /// any.
    pub(crate) fn give_way(&self) -> bool {
        let mut given = false;
        for part in &self.parts {
            let mut part = lock(part);
            let kept = if part.lent > 0 { part.bytes - part.bytes.div_ceil(GIVEN_PART) } else { 0 };
            let dropped = part.shrink_to(kept);
            drop(part);
            given |= !dropped.is_empty();
        }
        given
    }

    /// Returns the number of blocks, and their bytes with the memory for their entries.
    pub(crate) fn size(&self) -> (u64, u64) {
        self.parts
            .iter()
            .map(lock)
            .fold((0, 0), |(blocks, bytes), part| (blocks + part.blocks.len() as u64, bytes + part.bytes))
    }
}

impl RecentBlock {
    fn weight(&self) -> u64 {
        weight_of(self.block.pinned_bytes() as u64)
    }
}

impl Part {
    /// Adds a block as the last to leave. Returns the one that it replaces.
    fn add(&mut self, at: At, block: &Block) -> Option<Block> {
        let replaced = self.take(&at);
        let recent = RecentBlock { at, block: block.clone(), is_wanted: false, is_passed: false };
        self.bytes += recent.weight();
        self.enter(recent);
        replaced
    }

    fn enter(&mut self, recent: RecentBlock) {
        self.places.insert(recent.at, self.next);
        self.blocks.insert(self.next, recent);
        self.next += 1;
    }

    fn take(&mut self, at: &At) -> Option<Block> {
        let place = self.places.remove(at)?;
        let recent = self.blocks.remove(&place)?;
        self.bytes -= recent.weight();
        Some(recent.block)
    }

    /// Removes and returns the oldest blocks beyond the limit.
    fn shrink(&mut self) -> Vec<RecentBlock> {
        self.shrink_to(self.bytes_max + self.lent)
    }

    fn shrink_to(&mut self, bytes_max: u64) -> Vec<RecentBlock> {
        let (mut dropped, mut passed) = (Vec::new(), 0);
        while self.bytes > bytes_max {
            let Some((_, mut recent)) = self.blocks.pop_first() else { break };
            if recent.is_wanted && passed < PASSED_MAX {
                passed += 1;
                (recent.is_wanted, recent.is_passed) = (false, true);
                self.enter(recent);
                continue;
            }
            self.places.remove(&recent.at);
            self.bytes -= recent.weight();
            dropped.push(recent);
        }
        debug_assert!(self.bytes == 0 || !self.blocks.is_empty(), "bytes are those of blocks");
        debug_assert_eq!(self.places.len(), self.blocks.len(), "each block has one place");
        dropped
    }
}

fn lock(part: &Mutex<Part>) -> MutexGuard<'_, Part> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}
