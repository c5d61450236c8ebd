//! Decides which inner nodes are worth a place in the cache: those at which two recent descents began.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The nodes at which recent descents began: a bit for each, in an array that is cleared after a number of
/// descents. Two nodes may share a bit; then one of them comes into the cache too early.
pub(crate) struct Seen {
    bits: Box<[AtomicU64]>,
    begun: AtomicU32,
    descents_max: u32,
}

/// Bits for each remembered descent.
const BITS: u32 = 8;
/// The range for the number of descents after which all are forgotten. The number is a quarter of the nodes
/// that the cache has room for. Half of the cache has leaves, and a node that came back later than that
/// would no longer be there.
const DESCENTS: std::ops::RangeInclusive<u64> = 64..=8192;

impl Seen {
    /// Returns an empty record for a cache of `nodes` nodes.
    pub(crate) fn new(nodes: u64) -> Seen {
        let descents_max = (nodes / 4).clamp(*DESCENTS.start(), *DESCENTS.end()).next_power_of_two() as u32;
        let words = descents_max * BITS / u64::BITS;
        Seen { bits: (0..words).map(|_| AtomicU64::new(0)).collect(), begun: AtomicU32::new(0), descents_max }
    }

    /// Records that a descent begins at this node. Returns whether another recent one did.
    pub(crate) fn again(&self, table: u32, position: u32) -> bool {
        if self.begun.fetch_add(1, Ordering::Relaxed) >= self.descents_max {
            self.begun.store(0, Ordering::Relaxed);
            self.bits.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        // Fibonacci hashing: the upper bits depend on all bits of the number.
        let number = u64::from(table) << 32 | u64::from(position);
        let hash = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let index = hash as usize % (self.bits.len() * u64::BITS as usize);
        let bit = 1 << (index % u64::BITS as usize);
        let word = self.bits.get(index / u64::BITS as usize);
        word.is_some_and(|word| word.fetch_or(bit, Ordering::Relaxed) & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_known_the_second_time_and_forgotten_after_many_others() {
        let seen = Seen::new(4000);
        assert!(!seen.again(7, 100));
        assert!(seen.again(7, 100) && seen.again(7, 100));
        let known = (0..500).filter(|position| seen.again(8, *position)).count();
        assert!(known < 60, "{known} of 500 nodes share a bit");
        let known = (0..1100).filter(|position| seen.again(9, *position)).count();
        assert!(known < 200, "{known} of 1100 nodes share a bit");
        assert!(!seen.again(7, 100));
    }
}
