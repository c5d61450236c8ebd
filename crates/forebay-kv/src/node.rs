//! The bytes of a table's nodes: what stands where, how a node is built, checked and searched.
//!
//! `docs/kv-format.md` has the drawings and the reasons. Everything here is pure: no I/O, and no panic on any
//! bytes.

use std::ops::Range;

pub(crate) mod build;
pub(crate) mod filter;
pub(crate) mod read;
#[cfg(test)]
mod tests;

pub(crate) use build::Builder;
pub(crate) use read::{Node, Payload};

/// Nodes are multiples of it and stand at multiples of it, in bytes.
pub(crate) const UNIT: usize = 4096;
/// The most units of a node: two separators of the greatest length.
pub(crate) const NODE_UNITS_MAX: u8 = 9;
/// Bytes before the slots.
pub(crate) const HEADER_BYTES: usize = 18;
/// Bytes of a slot.
pub(crate) const SLOT_BYTES: usize = 4;
/// The longest key, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 16 << 10;
/// The longest value, in bytes.
pub(crate) const VALUE_BYTES_MAX: usize = 16 << 20;
/// Inline values are no longer than this, in bytes, however large the leaves are.
pub(crate) const INLINE_BYTES_MAX: usize = 8 << 10;
/// The smallest and largest leaf size that a table may have, in bytes.
pub(crate) const LEAF_BYTES: std::ops::RangeInclusive<u32> = 4096..=32768;

/// Leaves.
pub(crate) const LEAF: u8 = 0;
/// The most inner levels.
pub(crate) const LEVELS_MAX: u8 = 31;
/// A filter's partition.
pub(crate) const FILTER: u8 = 0xF0;
/// The last unit of a table.
pub(crate) const FOOTER: u8 = 0xF1;
/// The first unit of a table.
pub(crate) const HEADER: u8 = 0xF2;

/// What is wrong with the bytes of a node.
pub(crate) type Wrong = &'static str;

/// What a node is: its table, its level, and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) table: u32,
    pub(crate) position: u32,
    pub(crate) level: u8,
}

/// Where a node stands and how long it is, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) position: u32,
    pub(crate) units: u8,
}

impl Child {
    pub(crate) fn encode(self) -> u64 {
        u64::from(self.position) | u64::from(self.units) << 56
    }

    /// `None` for what no node's place can be.
    pub(crate) fn decode(word: u64) -> Option<Child> {
        let child = Child { position: u32::try_from(word & !(0xFF << 56)).ok()?, units: (word >> 56) as u8 };
        (child.position > 0 && (1..=NODE_UNITS_MAX).contains(&child.units) && child.end() <= u32::MAX.into())
            .then_some(child)
    }

    /// The first byte in the file.
    pub(crate) fn offset(self) -> u64 {
        u64::from(self.position) * UNIT as u64
    }

    pub(crate) fn len(self) -> usize {
        usize::from(self.units) * UNIT
    }

    /// The bytes in the file.
    pub(crate) fn range(self) -> std::ops::Range<u64> {
        self.offset()..self.offset() + self.len() as u64
    }

    /// The unit behind it.
    pub(crate) fn end(self) -> u64 {
        u64::from(self.position) + u64::from(self.units)
    }
}

/// Where a blob stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlobAt {
    /// The first byte in the file.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u32,
    /// CRC-32C of the bytes.
    pub(crate) crc: u32,
}

impl BlobAt {
    /// The bytes in the file.
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + u64::from(self.len)
    }
}

/// CRC-32C.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Seals a node: identity, length and checksum. The rest of the bytes is in place. What is not 1 to 9 units
/// long is left alone.
pub(crate) fn seal(node: &mut [u8], identity: Identity) {
    let units = (node.len() / UNIT) as u8;
    let Some(head) = node.first_chunk_mut::<HEADER_BYTES>() else { return };
    head[4..8].copy_from_slice(&identity.table.to_le_bytes());
    head[8..12].copy_from_slice(&identity.position.to_le_bytes());
    head[12] = identity.level;
    head[13] = units;
    let crc = checksum(&node[4..]);
    node[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Does this call itself the node that it should be? Costs a few comparisons: for blocks that were checked
/// before.
pub(crate) fn is(node: &[u8], identity: Identity) -> bool {
    read::u32_at(node, 4) == identity.table
        && read::u32_at(node, 8) == identity.position
        && node.get(12) == Some(&identity.level)
}

/// Is this the whole node that it should be? Costs one pass over it.
pub(crate) fn check(node: &[u8], identity: Identity) -> Result<(), Wrong> {
    let Some(head) = node.first_chunk::<HEADER_BYTES>() else { return Err("a node's bytes end too soon") };
    if u32::from_le_bytes([head[0], head[1], head[2], head[3]]) != checksum(&node[4..]) {
        return Err(match node.iter().all(|&byte| byte == 0) {
            true => "zeros stand where a node should",
            false => "the node's checksum is wrong",
        });
    }
    if read::u32_at(head, 4) != identity.table {
        return Err("a node of another table stands here");
    }
    if read::u32_at(head, 8) != identity.position {
        return Err("a node of another place of this table stands here");
    }
    if head[12] != identity.level {
        return Err("a node of another level stands here");
    }
    match usize::from(head[13]) * UNIT == node.len() {
        true => Ok(()),
        false => Err("the node's length is wrong"),
    }
}
