//! Numbers that only their seed determines.

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

/// Returns a number that looks random; neighbouring inputs give unrelated ones.
pub fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
