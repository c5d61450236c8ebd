//! Programs for the tables of `forebay-kv`: [`TableDescent`] descends from an inner node to the only leaf
//! that can contain a key.
//!
//! The walk reads nodes of one unit (4,096 bytes). A larger node ends the walk with [`TABLE_LARGER`], and is
//! read another way. The kernel checks a node's own header (table, place, level, length) and every place in
//! it, and no checksum: an inner node that rotted may lead to the wrong leaf. The caller that receives the
//! leaf checks its checksum, and that the key lies between its first and its last; if not, a descent that
//! checks every node decides.

use std::cmp::Ordering;

use crate::layout as at;
use crate::program::{Next, Program, Scratch};

/// The code of a [`TableDescent`] that fails: a node is not the expected one, or a position in it is invalid.
pub const TABLE_DAMAGED: u32 = at::TABLE_DAMAGED as u32;
/// The code of a [`TableDescent`] that ends because the next node has more than one unit.
pub const TABLE_LARGER: u32 = at::TABLE_LARGER as u32;
/// The longest key that a [`TableDescent`] accepts, in bytes; with a longer key it fails with [`TABLE_DAMAGED`].
pub const TABLE_KEY_BYTES_MAX: usize = at::DESCENT_KEY_MAX;

/// A descent in a table of `forebay-kv`.
#[derive(Clone, Copy, Debug, Default)]
pub struct TableDescent;

/// Arguments of a [`TableDescent`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descent {
    /// The table's number.
    pub table: u32,
    /// The position of the node where the descent starts, in units of 4,096 bytes.
    pub position: u32,
    /// The level of that node; 0 for a leaf.
    pub level: u8,
    /// The key, at most [`TABLE_KEY_BYTES_MAX`] bytes.
    pub key: Vec<u8>,
}

/// The result of a descent: a leaf as read from the file, its checksum not checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The leaf's 4,096 bytes.
    pub bytes: Box<[u8]>,
}

impl Program for TableDescent {
    type Args = Descent;
    type Output = Leaf;

    fn name(&self) -> &'static str {
        "table-descent"
    }

    fn page_bytes(&self) -> u32 {
        at::TABLE_UNIT as u32
    }

    fn object(&self) -> Option<&[u8]> {
        Some(include_bytes!("../objects/table_descent.loop.bpf.o"))
    }

    fn module_object(&self) -> Option<&[u8]> {
        Some(include_bytes!("../objects/table_descent.module.bpf.o"))
    }

    fn begin(&self, descent: &Descent, scratch: &mut Scratch) -> u64 {
        scratch.set_u64(at::DESCENT_TABLE, descent.table.into());
        scratch.set_u64(at::DESCENT_LEVEL, descent.level.into());
        scratch.set_u64(at::DESCENT_KEY_LEN, descent.key.len() as u64);
        for (place, byte) in scratch.bytes_mut()[at::DESCENT_KEY..].iter_mut().zip(&descent.key) {
            *place = *byte;
        }
        u64::from(descent.position) * at::TABLE_UNIT as u64
    }

    fn step(&self, page: &[u8], position: u64, scratch: &mut Scratch) -> Next {
        let level = scratch.u64(at::DESCENT_LEVEL);
        let key = scratch.bytes()[at::DESCENT_KEY..].get(..scratch.u64(at::DESCENT_KEY_LEN) as usize);
        let node = Node::of(page, position, scratch.u64(at::DESCENT_TABLE), level);
        let (Some(key), Some(node)) = (key, node) else { return Next::Fail(TABLE_DAMAGED) };
        if level == 0 {
            return Next::Over;
        }
        let Some(count) = node.records() else { return Next::Fail(TABLE_DAMAGED) };
        let record = node.below(key, Limit::Same).saturating_sub(1);
        match node.child(record, count) {
            Ok(child) => {
                scratch.set_u64(at::DESCENT_LEVEL, level - 1);
                Next::read(child)
            }
            Err(failure) => Next::Fail(failure),
        }
    }

    fn end(&self, _scratch: &Scratch, page: &[u8]) -> Leaf {
        Leaf { bytes: page.into() }
    }
}

/// The position of a search's end relative to the key.
#[derive(Clone, Copy)]
pub(crate) enum Limit {
    /// Before the key.
    Before,
    /// Behind the key, if the node has it.
    Same,
}

/// A node of one unit. Places outside of it wrap around, as they do in the kernel, and are detected
/// afterwards.
pub(crate) struct Node<'a>(&'a [u8; at::TABLE_UNIT]);

impl Node<'_> {
    /// Returns the node; `None` if the page is not the node of this table and level that belongs to
    /// `position`.
    pub(crate) fn of(page: &[u8], position: u64, table: u64, level: u64) -> Option<Node<'_>> {
        let node = Node(page.first_chunk()?);
        let belongs = u64::from(node.word(at::TABLE_TABLE_AT)) == table
            && u64::from(node.word(at::TABLE_POSITION_AT)) == position / at::TABLE_UNIT as u64
            && u64::from(node.0[at::TABLE_LEVEL_AT]) == level
            && node.0[at::TABLE_UNITS_AT] == 1;
        belongs.then_some(node)
    }

    fn byte(&self, place: usize) -> u8 {
        self.0[place % at::TABLE_UNIT]
    }

    fn short(&self, place: usize) -> usize {
        usize::from(u16::from_le_bytes([self.byte(place), self.byte(place + 1)]))
    }

    fn word(&self, place: usize) -> u32 {
        u32::from_le_bytes([0, 1, 2, 3].map(|byte| self.byte(place + byte)))
    }

    /// Returns the end of the records, and the start of the first record.
    fn ends(&self) -> (usize, usize) {
        (self.short(at::TABLE_END_AT), self.short(at::TABLE_SLOTS_AT))
    }

    /// Returns the number of records; `None` if a position is invalid.
    pub(crate) fn records(&self) -> Option<usize> {
        let count = self.short(at::TABLE_COUNT_AT);
        let (end, first) = self.ends();
        let prefix_at = at::TABLE_SLOTS_AT + count * at::TABLE_SLOT_BYTES;
        (count > 0 && end <= at::TABLE_UNIT && first <= end && first >= prefix_at).then_some(count)
    }

    /// Returns the position of a record's child, in bytes. The error is the code that the walk fails with.
    pub(crate) fn child(&self, record: usize, count: usize) -> Result<u64, u32> {
        let (end, first) = self.ends();
        let slot = at::TABLE_SLOTS_AT + record * at::TABLE_SLOT_BYTES;
        let (begin, len) = (self.short(slot), self.short(slot + 2));
        let behind = if record + 1 < count { self.short(slot + at::TABLE_SLOT_BYTES) } else { end };
        let is_right =
            begin >= first && len & at::TABLE_TAGGED == 0 && begin + len + 8 == behind && behind <= end;
        let bytes = [0, 1, 2, 3, 4, 5, 6, 7].map(|byte| self.byte(begin + len + byte));
        let child = u64::from_le_bytes(bytes);
        let is_place = child as u32 != 0 && child << 8 >> 40 == 0 && (1..=9).contains(&(child >> 56));
        match child >> 56 {
            _ if !(is_right && is_place) => Err(TABLE_DAMAGED),
            1 => Ok(u64::from(child as u32) * at::TABLE_UNIT as u64),
            _ => Err(TABLE_LARGER),
        }
    }

    /// Returns how many keys of the node are before the limit. The node's [`records`](Self::records) must
    /// have been checked.
    pub(crate) fn below(&self, key: &[u8], limit: Limit) -> usize {
        let count = self.short(at::TABLE_COUNT_AT);
        let (end, first) = self.ends();
        let prefix_at = at::TABLE_SLOTS_AT + count * at::TABLE_SLOT_BYTES;
        let prefix = first - prefix_at;
        match self.compare(prefix_at, prefix, &key[..prefix.min(key.len())]) {
            Ordering::Greater => return 0,
            Ordering::Less => return count,
            Ordering::Equal => {}
        }
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = (low + high) / 2;
            let slot = at::TABLE_SLOTS_AT + middle * at::TABLE_SLOT_BYTES;
            let (begin, len) = (self.short(slot), self.short(slot + 2) & !at::TABLE_TAGGED);
            let len = if begin < first || begin + len > end { 0 } else { len };
            let is_before = match (self.compare(begin, len, &key[prefix..]), limit) {
                (Ordering::Less, _) | (Ordering::Equal, Limit::Same) => true,
                (Ordering::Equal, Limit::Before) | (Ordering::Greater, _) => false,
            };
            if is_before { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Compares the `len` bytes from `place` on with `key`.
    fn compare(&self, place: usize, len: usize, key: &[u8]) -> Ordering {
        (place..place + len).map(|place| self.byte(place)).cmp(key.iter().copied())
    }
}
