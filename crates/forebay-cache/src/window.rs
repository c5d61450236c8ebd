//! The blocks that were offered last, until they are wanted a second time or others follow.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay::Block;

use crate::blocks::{At, hash_of, weight_of};

/// Number of parts, each with its own lock.
const PARTS: usize = 4;
/// The most blocks of a part, which are looked through one by one.
const BLOCKS_MAX: usize = 16;
/// The window takes at most this part of the cache.
const SHARE: u64 = 32;

/// A first-in-first-out list of blocks: the window before the filter of TinyLFU. A block that is wanted again at once, as
/// by a neighbour of the key that it was read for, is found here although it is not worth its memory for longer yet.
pub(crate) struct Window {
    parts: [Mutex<Part>; PARTS],
    /// The most bytes of a part.
    part_bytes_max: AtomicU64,
}

#[derive(Default)]
struct Part {
    blocks: VecDeque<(At, Block)>,
    bytes: u64,
}

impl Window {
    /// Returns an empty window for a cache of `bytes_max` bytes.
    pub(crate) fn new(bytes_max: u64, block_bytes: u64) -> Window {
        let window = Window { parts: Default::default(), part_bytes_max: AtomicU64::new(0) };
        window.set_bytes_max(Window::bytes_of(bytes_max, block_bytes));
        window
    }

    /// Returns the most bytes of the window of a cache of `bytes_max` bytes, for blocks of about `block_bytes`.
    pub(crate) fn bytes_of(bytes_max: u64, block_bytes: u64) -> u64 {
        let most = (PARTS * BLOCKS_MAX) as u64 * weight_of(block_bytes);
        most.min(bytes_max / SHARE)
    }

    /// Changes the limit; blocks beyond it are dropped at once.
    pub(crate) fn set_bytes_max(&self, bytes_max: u64) {
        let most = bytes_max / PARTS as u64;
        self.part_bytes_max.store(most, Ordering::Relaxed);
        for part in &self.parts {
            drop(lock(part).shrink(most));
        }
    }

    fn part(&self, at: &At) -> MutexGuard<'_, Part> {
        lock(&self.parts[hash_of(at) as usize % PARTS])
    }

    /// Adds a block, in place of the oldest ones.
    pub(crate) fn push(&self, at: At, block: &Block) {
        let bytes = weight_of(block.pinned_bytes() as u64);
        let mut part = self.part(&at);
        let replaced = part.take(&at);
        part.blocks.push_back((at, block.clone()));
        part.bytes += bytes;
        let dropped = part.shrink(self.part_bytes_max.load(Ordering::Relaxed));
        // Blocks go back to the engine without the lock.
        drop(part);
        drop((replaced, dropped));
    }

    /// Removes a block and returns it.
    pub(crate) fn take(&self, at: &At) -> Option<Block> {
        self.part(at).take(at)
    }

    /// Returns a block.
    pub(crate) fn peek(&self, at: &At) -> Option<Block> {
        self.part(at).blocks.iter().find(|(known, _)| known == at).map(|(_, block)| block.clone())
    }

    /// Keeps the blocks for which `keeps` returns true.
    pub(crate) fn retain(&self, keeps: impl Fn(&At) -> bool) {
        for part in &self.parts {
            let mut part = lock(part);
            part.blocks.retain(|(at, _)| keeps(at));
            part.bytes = part.blocks.iter().map(|(_, block)| weight_of(block.pinned_bytes() as u64)).sum();
        }
    }

    /// Returns the number of blocks, and their bytes with the memory for their entries.
    pub(crate) fn size(&self) -> (u64, u64) {
        self.parts
            .iter()
            .map(lock)
            .fold((0, 0), |(blocks, bytes), part| (blocks + part.blocks.len() as u64, bytes + part.bytes))
    }
}

impl Part {
    fn take(&mut self, at: &At) -> Option<Block> {
        let place = self.blocks.iter().position(|(known, _)| known == at)?;
        let (_, block) = self.blocks.remove(place)?;
        self.bytes -= weight_of(block.pinned_bytes() as u64);
        Some(block)
    }

    /// Removes and returns the oldest blocks beyond the limits.
    fn shrink(&mut self, bytes_max: u64) -> Vec<Block> {
        let mut dropped = Vec::new();
        while self.bytes > bytes_max || self.blocks.len() > BLOCKS_MAX {
            let Some((_, block)) = self.blocks.pop_front() else { break };
            self.bytes -= weight_of(block.pinned_bytes() as u64);
            dropped.push(block);
        }
        debug_assert!(self.bytes == 0 || !self.blocks.is_empty(), "bytes are those of blocks");
        dropped
    }
}

fn lock(part: &Mutex<Part>) -> MutexGuard<'_, Part> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}
