//! A filter of recent keys: a Bloom filter of two generations.
//!
//! It is the doorkeeper that TinyLFU puts before its sketch (Einziger, Friedman, Manes, 2017), as blocks of one word. A word has
//! the bits of its keys for the current generation and for the one before, and the number of the current one. So no generation is
//! cleared as a whole: a word ages at the next key that hashes to it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::blocks::{At, hash_of};

/// Bits of a word for one generation. Two of them and the generation's number make a word.
const GENERATION_BITS: u64 = 28;
const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;
const NUMBER_SHIFT: u64 = 2 * GENERATION_BITS;
/// Keys of a generation for each word, in the mean. With the three bits of a key, 2 % of all new keys count as known.
const KEYS_PER_WORD: u64 = 2;

/// A filter of recent blocks, by owner and offset: a block that is seen twice is worth keeping.
///
/// [`BlockCache::offer`](crate::BlockCache::offer) has one. Uses four bytes for each block of its window, and 30 ns a call, from
/// any thread and without a lock.
///
/// ```
/// use forebay_cache::Doorkeeper;
///
/// let doorkeeper = Doorkeeper::new(1000);
/// assert!(!doorkeeper.note(1, 4096));
/// assert!(doorkeeper.note(1, 4096));
/// ```
pub struct Doorkeeper {
    words: Box<[AtomicU64]>,
    /// Number of keys that were added to their generation.
    added: AtomicU64,
    window: u64,
}

impl Doorkeeper {
    /// Returns an empty filter. A block is known until at least `window` other new blocks were noted, and for twice as many at
    /// most. Of unknown blocks, 2 % count as known.
    pub fn new(window: u64) -> Doorkeeper {
        let window = window.max(1);
        let words = window.div_ceil(KEYS_PER_WORD);
        Doorkeeper {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            added: AtomicU64::new(0),
            window,
        }
    }

    /// Notes the block of an owner at `offset`. Returns whether it was noted before within the window.
    ///
    /// Threads that note blocks at the same time may see a new generation at different times: a few blocks are forgotten early
    /// then.
    pub fn note(&self, owner: u64, offset: u64) -> bool {
        let hash = hash_of(&At { owner, offset });
        // The upper bits choose the word, and the lower ones its bits.
        let index = (u128::from(hash) * self.words.len() as u128) >> 64;
        let Some(word) = self.words.get(index as usize) else { return false };
        let bit = |shift: u64| 1 << ((((hash >> shift) & 0xff) * GENERATION_BITS) >> 8);
        let bits: u64 = bit(0) | bit(8) | bit(16);
        let (mut is_known, mut is_added) = (false, false);
        let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            let number = (self.added.load(Ordering::Relaxed) / self.window) & 0xff;
            let (current, before) = match number.wrapping_sub(word >> NUMBER_SHIFT) & 0xff {
                0 => (word & GENERATION_MASK, (word >> GENERATION_BITS) & GENERATION_MASK),
                1 => (0, word & GENERATION_MASK),
                _ => (0, 0),
            };
            is_added = current & bits != bits;
            is_known = !is_added || before & bits == bits;
            let aged = (current | bits) | before << GENERATION_BITS | number << NUMBER_SHIFT;
            (aged != word).then_some(aged)
        });
        if is_added {
            self.added.fetch_add(1, Ordering::Relaxed);
        }
        is_known
    }
}

forebay::_debug_parts!(Doorkeeper, |doorkeeper| window: doorkeeper.window);

#[cfg(test)]
mod tests {
    use super::*;

    fn note(doorkeeper: &Doorkeeper, number: u64) -> bool {
        doorkeeper.note(7, number * 4096)
    }

    #[test]
    fn a_key_is_known_for_the_window_and_not_for_much_longer() {
        for window in [1, 2, 100, 10_000] {
            let doorkeeper = Doorkeeper::new(window);
            assert!(!note(&doorkeeper, 0));
            for number in 1..window {
                note(&doorkeeper, number);
            }
            assert!(note(&doorkeeper, 0), "window of {window}");
            // New keys push it out.
            for number in window..4 * window + 16 {
                note(&doorkeeper, number);
            }
            assert!(window < 100 || !note(&doorkeeper, 0), "window of {window}");
        }
    }

    #[test]
    fn each_key_of_a_second_pass_over_the_window_is_known() {
        let window = 5_000;
        let doorkeeper = Doorkeeper::new(window);
        // For every position within the generation at the start of the first pass.
        for begun in 0..7 {
            let first = begun * 1_000_000;
            for number in 0..begun * 700 {
                note(&doorkeeper, first + 500_000 + number);
            }
            for number in first..first + window {
                note(&doorkeeper, number);
            }
            let known = (first..first + window).filter(|number| note(&doorkeeper, *number)).count();
            assert_eq!(known as u64, window);
        }
    }

    #[test]
    fn few_new_keys_count_as_known() {
        let doorkeeper = Doorkeeper::new(5_000);
        let known = (0..100_000).filter(|number| note(&doorkeeper, *number)).count();
        assert!((500..3_000).contains(&known), "{known} of 100,000");
    }
}
