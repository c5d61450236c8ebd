//! Numbers that only their seed determines, and the bytes of test files.

use std::ops::Range;

/// A random draw that only the seed determines, for the parameters of a world.
#[derive(Clone, Debug)]
pub struct Draw {
    seed: u64,
    count: u64,
}

impl Draw {
    /// Returns the draw of a world's seed.
    pub fn new(seed: u64) -> Draw {
        Draw { seed, count: 0 }
    }

    /// Returns the next number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.count += 1;
        mix(self.seed.wrapping_mul(0x1_0001).wrapping_add(self.count)) % n
    }
}

/// The step of SplitMix64.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Returns a number that looks random; neighbouring inputs give unrelated numbers.
pub fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(STEP);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A generator of pseudo-random numbers (SplitMix64); any seed is good, and the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next number.
    pub fn word(&mut self) -> u64 {
        let word = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        word
    }

    /// Returns the next number below a limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.word() % limit
    }

    /// Returns that many bytes.
    pub fn bytes(&mut self, len: u64) -> Vec<u8> {
        // By whole words, as in `bytes_of`.
        let mut bytes = Vec::with_capacity(len as usize + 8);
        (0..len.div_ceil(8)).for_each(|_| bytes.extend_from_slice(&self.word().to_le_bytes()));
        bytes.truncate(len as usize);
        bytes
    }
}

/// Numbers from a seed other than 0, one after the other (xorshift64).
#[derive(Clone, Debug)]
pub struct Numbers(pub u64);

impl Numbers {
    /// Returns the next number below a limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    /// Returns the numbers below a limit in any order.
    pub fn shuffled(&mut self, limit: u64) -> Vec<u64> {
        let mut all: Vec<u64> = (0..limit).collect();
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last as u64 + 1) as usize);
        }
        all
    }

    /// Returns a size: mostly small, sometimes several buffers.
    pub fn size(&mut self) -> usize {
        let limit = [1, 100, 600, 5_000, 70_000][self.below(5) as usize];
        self.below(limit + 1) as usize
    }
}

/// Returns the bytes of a range of every test file: no two 4 KiB pages of a file are equal.
pub fn bytes_of(range: Range<u64>) -> Vec<u8> {
    // By whole words: test builds are not optimised, and some files are many MiB.
    let mut bytes = Vec::with_capacity(range.end.saturating_sub(range.start) as usize + 8);
    for word in range.start / 8..range.end.div_ceil(8) {
        bytes.extend_from_slice(&word.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    }
    bytes.truncate(range.end.saturating_sub(range.start / 8 * 8) as usize);
    bytes.drain(..((range.start % 8) as usize).min(bytes.len()));
    bytes
}
