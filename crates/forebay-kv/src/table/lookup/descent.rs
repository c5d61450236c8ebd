//! Lookups whose descent to the leaf was walked elsewhere, without verifying any checksum.

use bytes::Bytes;

use super::super::{Hit, Table};
use super::{At, Lookup, Progress};
use crate::node::read::u32_at;
use crate::node::{Child, LEAF, Node, Payload, UNIT, check};
use crate::value::Value;

/// The effect of a leaf on a lookup; see [`Lookup::take_leaf`].
pub(crate) enum AtLeaf {
    Done(Option<Hit>),
    /// The value is elsewhere: the lookup continues there.
    GoesOn,
    /// The leaf does not decide, and nothing has changed.
    Undecided,
}

impl Table {
    /// Returns the number that the table's nodes have: a sorted file's own.
    pub(crate) fn number(&self) -> u32 {
        self.footer.table
    }
}

impl Lookup {
    /// Returns the node to read next, with its level and the key. `None` unless the lookup is at a node of one
    /// unit, leaves are of one unit as well, and the table is not compressed.
    pub(crate) fn descent(&self) -> Option<(Child, u8, &[u8])> {
        match self.at {
            At::Node(child, level)
                if child.units == 1
                    && self.table.leaf_bytes() as usize == UNIT
                    && self.table.footer.packing.is_none() =>
            {
                Some((child, level, self.key.bytes()))
            }
            _ => None,
        }
    }

    /// Notes a read of a leaf that bypasses the cache. Returns whether the leaf was read not long ago, so that the cache will keep
    /// it if it is read again in the ordinary way.
    pub(crate) fn note_leaf(&self, leaf: Child) -> bool {
        self.fill && self.table.cache.note(self.table.meta.id, leaf.offset())
    }

    /// Continues from a leaf that a walk reached without verifying checksums on its way. The leaf is trusted
    /// if its own checksum is right and the key lies between its first and its last; keys outside may be in
    /// another leaf. The value is copied: nothing else is wanted of a leaf below an inner node that is not in
    /// memory. The cache learns that the leaf was read. Costs a checksum over the leaf, and a search.
    pub(crate) fn take_leaf(&mut self, leaf: &[u8]) -> AtLeaf {
        // The ordinary walk reports the fault, if any.
        self.look_into_leaf(leaf).unwrap_or(AtLeaf::Undecided)
    }

    fn look_into_leaf(&mut self, leaf: &[u8]) -> Option<AtLeaf> {
        let (table, key) = (&self.table, self.key.bytes());
        let child = Child { position: u32_at(leaf, 8), units: 1 };
        table.check_place(child, LEAF).ok()?;
        check(leaf, table.identity(child, LEAF)).ok()?;
        let node = Node::of(leaf).ok()?;
        let index = match node.search(key).ok()? {
            Ok(index) => Some(index),
            Err(behind) if (1..node.count()).contains(&behind) => None,
            // The ordinary walk reads this leaf again, or its neighbour, and the cache learns of it then.
            Err(_) => return None,
        };
        self.note_leaf(child);
        let Some(index) = index else { return Some(AtLeaf::Done(None)) };
        let entry = node.entry(index).ok()?;
        if entry.expires_s.is_some_and(|time| time <= self.now_s) {
            return Some(AtLeaf::Done(Some(Hit::Deleted)));
        }
        let found = match entry.payload {
            Payload::Deleted => Hit::Deleted,
            Payload::Inline(range) => {
                let bytes = leaf.get(range)?;
                let held = table.cache.held();
                Hit::Value(Value::of_bytes(Bytes::copy_from_slice(bytes), bytes.len() as u64, held))
            }
            Payload::Blob(blob) => {
                table.file_of(blob).ok()?;
                match table.advance(key, self.now_s, At::Blob(blob)).ok()? {
                    Progress::Done(found) => return Some(AtLeaf::Done(found)),
                    Progress::Blob(blob) => Hit::Blob(table.blob(blob, self.fill).ok()?),
                    Progress::Needs(at) => {
                        self.at = at;
                        return Some(AtLeaf::GoesOn);
                    }
                }
            }
        };
        Some(AtLeaf::Done(Some(found)))
    }
}
