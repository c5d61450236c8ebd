//! Filters: which keys a table certainly does not have.

use xxhash_rust::xxh3::xxh3_64;

use super::UNIT;

/// Where a partition's blocks begin, in bytes.
const BLOCKS_AT: usize = 64;
const BLOCK_BYTES: usize = 64;
/// Blocks of a partition.
const BLOCKS: u64 = ((UNIT - BLOCKS_AT) / BLOCK_BYTES) as u64;
/// Keys for which a partition is made: 10 bits each.
const KEYS: u64 = BLOCKS * BLOCK_BYTES as u64 * 8 / 10;
/// Bits that a key sets.
const BITS: u32 = 7;

/// What a filter knows of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hash(pub(crate) u32);

impl Hash {
    #[inline]
    pub(crate) fn of(key: &[u8]) -> Hash {
        Hash((xxh3_64(key) >> 32) as u32)
    }

    /// In which of a filter's partitions the key is.
    #[inline]
    pub(crate) fn partition(self, partitions: u32) -> u32 {
        ((u64::from(self.0) * u64::from(partitions)) >> 32) as u32
    }

    /// The first byte of its block in the partition.
    #[inline]
    fn block(self, partitions: u32) -> usize {
        let rest = (u64::from(self.0) * u64::from(partitions)) & 0xFFFF_FFFF;
        BLOCKS_AT + ((rest * BLOCKS) >> 32) as usize * BLOCK_BYTES
    }

    /// Its bits of the block.
    #[inline]
    fn bits(self) -> impl Iterator<Item = usize> {
        let mixed = u64::from(self.0).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (0..BITS).map(move |bit| ((mixed >> (1 + 9 * bit)) & 511) as usize)
    }
}

/// How many partitions a filter for so many keys has.
pub(crate) fn partitions(keys: u64) -> u32 {
    keys.div_ceil(KEYS).clamp(1, u64::from(u32::MAX)) as u32
}

/// Puts a key into its partition, one of `partitions`.
#[inline]
pub(crate) fn insert(partition: &mut [u8], hash: Hash, partitions: u32) {
    let block = hash.block(partitions);
    let Some(block) = partition.get_mut(block..block + BLOCK_BYTES) else { return };
    for bit in hash.bits() {
        block[bit / 8] |= 1 << (bit % 8);
    }
}

/// `false` only if the key was never put into this partition, one of `partitions`.
#[inline]
pub(crate) fn contains(partition: &[u8], hash: Hash, partitions: u32) -> bool {
    let block = hash.block(partitions);
    // A partition that is too short knows nothing.
    let Some(block) = partition.get(block..block + BLOCK_BYTES) else { return true };
    hash.bits().all(|bit| block[bit / 8] & 1 << (bit % 8) != 0)
}
