//! The offsets that a lane visits.

use crate::pattern::SplitMix;

/// The offsets of a lane: at random, or one after the other and again from the start.
#[derive(Debug, Clone)]
pub(super) struct Offsets {
    random: Option<SplitMix>,
    next: u64,
    start: u64,
    blocks: u64,
    block_bytes: u64,
}

impl Offsets {
    /// Returns the random offsets of a lane over `blocks` blocks from `start`. Each lane of a sample has different offsets.
    pub(super) fn over(seed: u64, lane: usize, start: u64, blocks: u64, block_bytes: u64) -> Self {
        let mut seeds = SplitMix::new(seed ^ (lane as u64).rotate_left(32));
        let random = Some(SplitMix::new(seeds.next_u64()));
        Self { random, next: 0, start, blocks: blocks.max(1), block_bytes }
    }

    /// Returns the offsets of all blocks of a file in their order.
    pub(super) const fn in_order(blocks: u64, block_bytes: u64) -> Self {
        Self { random: None, next: 0, start: 0, blocks, block_bytes }
    }

    #[inline]
    pub(super) fn next_offset(&mut self) -> u64 {
        let block = match &mut self.random {
            Some(random) => random.below(self.blocks),
            None => {
                let block = self.next;
                self.next = if block + 1 < self.blocks { block + 1 } else { 0 };
                block
            }
        };
        self.start + block * self.block_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_stay_in_the_span_and_reach_all_of_it() {
        let mut offsets = Offsets::over(1, 0, 8192, 10, 4096);
        let mut seen: Vec<u64> = (0..1000).map(|_| offsets.next_offset()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, (0..10).map(|block| 8192 + block * 4096).collect::<Vec<_>>());
    }

    #[test]
    fn offsets_in_order_begin_again_behind_the_last_block() {
        let mut offsets = Offsets::in_order(3, 4096);
        let seen: Vec<u64> = (0..5).map(|_| offsets.next_offset()).collect();
        assert_eq!(seen, [0, 4096, 8192, 0, 4096]);
    }

    #[test]
    fn lanes_and_seeds_have_their_own_offsets() {
        let first = |seed, lane| Offsets::over(seed, lane, 0, 1 << 28, 4096).next_offset();
        assert_ne!(first(1, 0), first(1, 1));
        assert_ne!(first(1, 0), first(2, 0));
        assert_eq!(first(1, 0), first(1, 0));
    }
}
