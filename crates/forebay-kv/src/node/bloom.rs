//! Filters, which report the keys that a table certainly does not have.

use xxhash_rust::xxh3::xxh3_64;

use super::UNIT;

/// Offset of a partition's first block, in bytes.
const BLOCKS_AT: usize = 64;
const BLOCK_BYTES: usize = 64;
/// Blocks of a partition.
const BLOCKS: u64 = ((UNIT - BLOCKS_AT) / BLOCK_BYTES) as u64;
/// Keys per partition, with 10 bits each.
const KEYS: u64 = BLOCKS * BLOCK_BYTES as u64 * 8 / 10;
/// Bits that a key sets.
const BITS: u32 = 7;

/// The hash of a key, from which the filter derives its partition, block and bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hash(pub(crate) u32);

impl Hash {
    #[inline]
    pub(crate) fn of(key: &[u8]) -> Hash {
        Hash((xxh3_64(key) >> 32) as u32)
    }

    /// Returns the index of the key's partition.
    #[inline]
    pub(crate) fn partition(self, partitions: u32) -> u32 {
        ((u64::from(self.0) * u64::from(partitions)) >> 32) as u32
    }

    /// Returns the first byte of the key's block in its partition.
    #[inline]
    fn block(self, partitions: u32) -> usize {
        let rest = (u64::from(self.0) * u64::from(partitions)) & 0xFFFF_FFFF;
        BLOCKS_AT + ((rest * BLOCKS) >> 32) as usize * BLOCK_BYTES
    }

    /// Returns the key's bits in its block.
    #[inline]
    fn bits(self) -> impl Iterator<Item = usize> {
        let mixed = u64::from(self.0).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (0..BITS).map(move |bit| ((mixed >> (1 + 9 * bit)) & 511) as usize)
    }
}

/// Returns the number of partitions of a filter for this many keys.
pub(crate) fn partitions(keys: u64) -> u32 {
    keys.div_ceil(KEYS).clamp(1, u64::from(u32::MAX)) as u32
}

/// Adds a key to its partition, one of `partitions`.
#[inline]
pub(crate) fn insert(partition: &mut [u8], hash: Hash, partitions: u32) {
    let block = hash.block(partitions);
    let Some(block) = partition.get_mut(block..block + BLOCK_BYTES) else { return };
    for bit in hash.bits() {
        block[bit / 8] |= 1 << (bit % 8);
    }
}

/// Returns `false` only if the key was never added to this partition, one of `partitions`.
#[inline]
pub(crate) fn contains(partition: &[u8], hash: Hash, partitions: u32) -> bool {
    let block = hash.block(partitions);
    // A partition that is too short excludes no key.
    let Some(block) = partition.get(block..block + BLOCK_BYTES) else { return true };
    hash.bits().all(|bit| block[bit / 8] & 1 << (bit % 8) != 0)
}
