//! The offsets that a reader at random visits.

use super::pattern::SplitMix;

/// The offsets of one of the readers.
#[derive(Debug, Clone)]
pub(super) struct Offsets {
    random: SplitMix,
    start: u64,
    blocks: u64,
    block_bytes: u64,
}

impl Offsets {
    /// Returns the offsets of a lane over `blocks` blocks that begin at `start`. Each lane of a sample has its own.
    pub(super) fn over(seed: u64, lane: usize, start: u64, blocks: u64, block_bytes: u64) -> Self {
        let mut seeds = SplitMix::new(seed ^ (lane as u64).rotate_left(32));
        Self { random: SplitMix::new(seeds.next_u64()), start, blocks: blocks.max(1), block_bytes }
    }

    pub(super) fn next_offset(&mut self) -> u64 {
        self.start + self.random.below(self.blocks) * self.block_bytes
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
    fn lanes_and_seeds_have_their_own_offsets() {
        let first = |seed, lane| Offsets::over(seed, lane, 0, 1 << 28, 4096).next_offset();
        assert_ne!(first(1, 0), first(1, 1));
        assert_ne!(first(1, 0), first(2, 0));
        assert_eq!(first(1, 0), first(1, 0));
    }
}
