//! A client: its part of the writes, and the time of each kind of call.

use std::time::{Duration, Instant};

use super::super::latency::Latency;
use super::super::pattern::{self, PAGE_BYTES};
use super::job::{BLOCK_BYTES, WritesWork};

/// The times of one client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) open: Duration,
    pub(super) write: Duration,
    pub(super) sync: Duration,
    pub(super) close: Duration,
    /// The end of the time that counts for the client.
    pub(super) ended: Instant,
    /// Latency of one write, with its own sync where it has one.
    pub(super) latency: Latency,
}

impl Client {
    pub(super) fn new() -> anyhow::Result<Self> {
        let zero = Duration::ZERO;
        let (ended, latency) = (Instant::now(), Latency::new()?);
        Ok(Self { open: zero, write: zero, sync: zero, close: zero, ended, latency })
    }
}

/// Contents of the blocks: data that do not compress and differ in the first word of each block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contents(pattern::Pattern);

impl Contents {
    pub(super) const fn new(work: &WritesWork) -> Self {
        // Not the previous contents of the file: those were made from the seed of the run itself.
        Self(pattern::Pattern::new(work.seed ^ 0x5eed_0f77_0000_0001))
    }

    /// Fills a block's memory at the start. Generating all of it for each write would cost as much as
    /// a write into the page cache.
    pub(super) fn fill(self, memory: &mut [u8]) {
        self.0.fill(0, memory);
    }

    /// Turns `memory` into the contents of the block at `offset`.
    pub(super) fn stamp(self, offset: u64, memory: &mut [u8]) {
        memory[..8].copy_from_slice(&self.word(offset).to_le_bytes());
    }

    /// Returns the first word of the block at `offset`.
    pub(super) fn word(self, offset: u64) -> u64 {
        self.0.first_word(offset / PAGE_BYTES as u64)
    }
}

/// Returns the offsets that client number `client` writes, in this order.
pub(super) fn part(work: &WritesWork, offsets: &[u64], client: usize) -> Vec<u64> {
    debug_assert_eq!(BLOCK_BYTES, PAGE_BYTES as u64);
    offsets.iter().copied().skip(client).step_by(work.clients).collect()
}
