//! Test data that do not compress and that a reader can check.

/// The grain of the pattern in bytes. Every page is generated on its own, so a reader can check
/// any single page.
pub(super) const PAGE_BYTES: usize = 4096;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Pseudo-random data that are a function of a seed and the position in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pattern {
    seed: u64,
}

impl Pattern {
    pub(super) const fn new(seed: u64) -> Self {
        Self { seed }
    }

    pub(super) const fn seed(self) -> u64 {
        self.seed
    }

    /// Fills `memory` with the data of the file at `offset`; both are multiples of [`PAGE_BYTES`].
    pub(super) fn fill(self, offset: u64, memory: &mut [u8]) {
        debug_assert!(offset.is_multiple_of(PAGE_BYTES as u64) && memory.len().is_multiple_of(PAGE_BYTES));
        for (page, bytes) in (offset / PAGE_BYTES as u64..).zip(memory.chunks_exact_mut(PAGE_BYTES)) {
            let mut words = SplitMix::new(self.page_state(page));
            for word in bytes.chunks_exact_mut(8) {
                word.copy_from_slice(&words.next_u64().to_le_bytes());
            }
        }
    }

    /// Returns the first eight bytes of page number `page`.
    #[inline]
    pub(super) fn first_word(self, page: u64) -> u64 {
        SplitMix::new(self.page_state(page)).next_u64()
    }

    fn page_state(self, page: u64) -> u64 {
        // One round of mixing keeps neighbouring pages from being the same stream, shifted by a few words.
        SplitMix::new(self.seed ^ page.wrapping_mul(GOLDEN).rotate_left(17)).next_u64()
    }
}

/// The check that every row makes of its bytes: it inspects the first word of each page, and compares it if the expected value is
/// known. So no row can win by not delivering, and all rows pay the same.
#[derive(Debug, Clone, Copy)]
pub(super) struct Checker {
    pattern: Option<Pattern>,
    folded: u64,
}

impl Checker {
    /// Returns a checker. `pattern` is `None` for a file that this program did not write.
    pub(super) const fn new(pattern: Option<Pattern>) -> Self {
        Self { pattern, folded: 0 }
    }

    /// Checks `bytes`, which are those at `offset` (any offset, any length).
    ///
    /// # Errors
    /// Fails with the offset of the first page whose first word is not the one written there.
    pub(super) fn check(&mut self, offset: u64, bytes: &[u8]) -> anyhow::Result<()> {
        let page_bytes = PAGE_BYTES as u64;
        let first_page = offset.div_ceil(page_bytes);
        let mut page = first_page;
        let mut at = (first_page * page_bytes - offset) as usize;
        while let Some(word) = bytes.get(at..at + 8) {
            let mut raw = [0; 8];
            raw.copy_from_slice(word);
            self.check_word(page, u64::from_le_bytes(raw))?;
            page += 1;
            at += PAGE_BYTES;
        }
        Ok(())
    }

    /// Checks the first word of page number `page`.
    ///
    /// # Errors
    /// See [`check`](Self::check).
    #[inline]
    pub(super) fn check_word(&mut self, page: u64, found: u64) -> anyhow::Result<()> {
        self.folded ^= found;
        if let Some(pattern) = self.pattern
            && pattern.first_word(page) != found
        {
            anyhow::bail!(
                "the data read at offset {} are not the data written there; the storage below the file or the way it was read is faulty",
                page * PAGE_BYTES as u64
            );
        }
        Ok(())
    }

    /// Returns a value that depends on every word seen, so that the compiler cannot drop the check.
    pub(super) const fn folded(&self) -> u64 {
        self.folded
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): a counter and a mixing function, so one word costs about a nanosecond.
#[derive(Debug, Clone)]
pub struct SplitMix {
    state: u64,
}

impl SplitMix {
    /// Returns the generator of this seed.
    #[inline]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Puts the values into a random order.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for index in (1..values.len()).rev() {
            values.swap(index, self.below(index as u64 + 1) as usize);
        }
    }

    /// Returns a number below `bound`, which is not zero. The bias of the multiplication is below
    /// `bound` / 2^64.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_place_has_the_same_data_however_it_is_cut() {
        let pattern = Pattern::new(7);
        let mut whole = vec![0; 8 * PAGE_BYTES];
        pattern.fill(0, &mut whole);
        let mut part = vec![0; 2 * PAGE_BYTES];
        pattern.fill(3 * PAGE_BYTES as u64, &mut part);
        assert_eq!(whole[3 * PAGE_BYTES..5 * PAGE_BYTES], part[..]);
    }

    #[test]
    fn no_two_pages_and_no_two_seeds_are_alike() {
        let mut words: Vec<u64> = (0..10_000).map(|page| Pattern::new(1).first_word(page)).collect();
        words.extend((0..10_000).map(|page| Pattern::new(2).first_word(page)));
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 20_000);
    }

    #[test]
    fn every_byte_value_is_about_equally_frequent() {
        let mut memory = vec![0; 1 << 20];
        Pattern::new(99).fill(0, &mut memory);
        let mut counts = [0_u32; 256];
        for byte in &memory {
            counts[usize::from(*byte)] += 1;
        }
        // 4,096 expected, standard deviation 64: a deviation of six of them would occur in one run of
        // hundreds of millions.
        assert!(counts.iter().all(|count| (3_700..4_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_wrong_page_is_found_and_named() {
        let pattern = Pattern::new(3);
        let mut memory = vec![0; 4 * PAGE_BYTES];
        pattern.fill(0, &mut memory);
        let mut checker = Checker::new(Some(pattern));
        checker.check(0, &memory).unwrap();
        checker.check(100, &memory[100..]).unwrap();
        memory[2 * PAGE_BYTES] ^= 1;
        let message = checker.check(0, &memory).unwrap_err().to_string();
        assert!(message.contains("offset 8192"), "{message}");
        Checker::new(None).check(0, &memory).unwrap();
    }

    #[test]
    fn unaligned_pieces_are_checked_at_their_page_beginnings() {
        let pattern = Pattern::new(3);
        let mut memory = vec![0; 4 * PAGE_BYTES];
        pattern.fill(0, &mut memory);
        let mut checker = Checker::new(Some(pattern));
        checker.check(1, &memory[1..]).unwrap();
        assert_eq!(checker.folded(), pattern.first_word(1) ^ pattern.first_word(2) ^ pattern.first_word(3));
    }

    #[test]
    fn numbers_below_a_bound_cover_it_and_stay_below() {
        let mut numbers = SplitMix::new(5);
        let mut seen = [false; 10];
        for _ in 0..1_000 {
            seen[numbers.below(10) as usize] = true;
        }
        assert_eq!(seen, [true; 10]);
        assert_eq!(numbers.below(1), 0);
    }
}
