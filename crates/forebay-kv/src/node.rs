//! The format of a table's nodes: how a node is laid out, built, checked and searched.
//!
//! `FORMAT.md` has the drawings and the reasons. Everything here is pure: no I/O, and no panic on any
//! bytes.

use std::ops::Range;

pub(crate) mod bloom;
pub(crate) mod build;
pub(crate) mod codec;
pub(crate) mod packed;
pub(crate) mod read;
#[cfg(test)]
mod tests;

pub(crate) use build::Builder;
pub(crate) use read::{Node, Payload};

/// Nodes are multiples of this many bytes long, and lie at multiples of it.
pub(crate) const UNIT: usize = 4096;
/// Maximum units of a node: two separators of maximum length.
pub(crate) const NODE_UNITS_MAX: u8 = 9;
/// Bytes before the slots.
pub(crate) const HEADER_BYTES: usize = 18;
/// Bytes of a slot.
pub(crate) const SLOT_BYTES: usize = 4;
/// Maximum length of a key, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 16 << 10;
/// Maximum length of a value, in bytes.
pub(crate) const VALUE_BYTES_MAX: usize = 16 << 20;
/// Maximum length of an inline value in bytes, regardless of the leaf size.
pub(crate) const INLINE_BYTES_MAX: usize = 8 << 10;
/// Smallest and largest leaf size of a table, in bytes.
pub(crate) const LEAF_BYTES: std::ops::RangeInclusive<u32> = 4096..=32768;

/// Level of the leaves.
pub(crate) const LEAF: u8 = 0;
/// Maximum number of inner levels.
pub(crate) const LEVELS_MAX: u8 = 31;
/// Level of a filter's partition.
pub(crate) const FILTER: u8 = 0xF0;
/// Level of the footer, the last unit of a table.
pub(crate) const FOOTER: u8 = 0xF1;
/// Level of the header, the first unit of a table.
pub(crate) const HEADER: u8 = 0xF2;

/// The reason why a node's bytes are invalid.
pub(crate) type Wrong = &'static str;

/// A node's table, its level, and its position in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) table: u32,
    pub(crate) position: u32,
    pub(crate) level: u8,
}

/// A node's position and length, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) position: u32,
    pub(crate) units: u8,
}

impl Child {
    pub(crate) fn encode(self) -> u64 {
        u64::from(self.position) | u64::from(self.units) << 56
    }

    /// Returns `None` for a word that cannot be a node's place.
    pub(crate) fn decode(word: u64) -> Option<Child> {
        let child = Child { position: u32::try_from(word & !(0xFF << 56)).ok()?, units: (word >> 56) as u8 };
        (child.position > 0 && (1..=NODE_UNITS_MAX).contains(&child.units) && child.end() <= u32::MAX.into())
            .then_some(child)
    }

    /// Returns the offset of its first byte in the file.
    pub(crate) fn offset(self) -> u64 {
        u64::from(self.position) * UNIT as u64
    }

    pub(crate) fn len(self) -> usize {
        usize::from(self.units) * UNIT
    }

    /// Returns its byte range in the file.
    pub(crate) fn range(self) -> std::ops::Range<u64> {
        self.offset()..self.offset() + self.len() as u64
    }

    /// Returns the number of the unit behind it.
    pub(crate) fn end(self) -> u64 {
        u64::from(self.position) + u64::from(self.units)
    }
}

/// A blob's place, and its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlobAt {
    /// The number of the table that wrote it, if its leaf is in another table; 0 if it is in the leaf's own file.
    pub(crate) file: u32,
    /// Offset of its first byte in the file.
    pub(crate) offset: u64,
    /// Length in the file, in bytes.
    pub(crate) len: u32,
    /// CRC-32C of the bytes in the file.
    pub(crate) crc: u32,
    /// Length of the value in bytes; more than `len` if the blob is packed, and else the same.
    pub(crate) value_len: u32,
}

impl BlobAt {
    /// Returns its byte range in the file.
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + u64::from(self.len)
    }

    pub(crate) fn is_packed(&self) -> bool {
        self.value_len != self.len
    }

    /// Returns whether it is in another file than its leaf.
    pub(crate) fn is_far(&self) -> bool {
        self.file != 0
    }
}

/// Returns the CRC-32C of the bytes.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Seals a node of 1 to 9 units: writes its identity, length and checksum. The other bytes are in place
/// already. A buffer shorter than a node's header is left unchanged.
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

/// Returns whether the node's header has this identity. Costs a few comparisons; for blocks that were checked
/// before.
pub(crate) fn is(node: &[u8], identity: Identity) -> bool {
    read::u32_at(node, 4) == identity.table
        && read::u32_at(node, 8) == identity.position
        && node.get(12) == Some(&identity.level)
}

/// Checks that the bytes are the whole node with this identity. Costs one pass over them.
pub(crate) fn check(node: &[u8], identity: Identity) -> Result<(), Wrong> {
    let Some(head) = node.first_chunk::<HEADER_BYTES>() else { return Err("a node's bytes end too soon") };
    if u32::from_le_bytes([head[0], head[1], head[2], head[3]]) != checksum(&node[4..]) {
        return Err(if node.iter().all(|&byte| byte == 0) {
            "zeros stand where a node should"
        } else {
            "the node's checksum is wrong"
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
    if usize::from(head[13]) * UNIT == node.len() { Ok(()) } else { Err("the node's length is wrong") }
}
