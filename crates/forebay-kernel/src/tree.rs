//! Programs for the tree of `forebay measure walk`: nodes of 512 or 4,096 bytes, each with a header of 24
//! bytes and sorted records of two words, a separator and a child or value. `kernel/include/forebay_walk.h`
//! has the places.

use crate::layout as at;
use crate::program::{Next, Positions, Program, Scratch};

/// The code of a tree's program that fails: a page is not the expected node.
pub const TREE_DAMAGED: u32 = at::TREE_DAMAGED as u32;

/// One lookup, from a node down to a leaf's value.
#[derive(Clone, Copy, Debug)]
pub struct TreeLookup {
    /// Bytes of a node.
    pub node_bytes: u32,
}

/// Arguments of a [`TreeLookup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The position of the node where the lookup starts, in bytes.
    pub root: u64,
    /// The level of that node; leaves are of level 0. Each node on the way must be one level below the one before it.
    pub level: u16,
    /// The key to look up.
    pub key: u64,
}

impl Program for TreeLookup {
    type Args = Lookup;
    type Output = u64;

    fn name(&self) -> &'static str {
        "tree-lookup"
    }

    fn page_bytes(&self) -> u32 {
        self.node_bytes
    }

    fn object(&self) -> Option<&[u8]> {
        Some(include_bytes!("../objects/tree_lookup.loop.bpf.o"))
    }

    fn module_object(&self) -> Option<&[u8]> {
        Some(include_bytes!("../objects/tree_lookup.module.bpf.o"))
    }

    fn begin(&self, lookup: &Lookup, scratch: &mut Scratch) -> u64 {
        scratch.set_u64(at::LOOKUP_KEY, lookup.key);
        scratch.set_u64(at::LOOKUP_LEVEL, lookup.level.into());
        lookup.root
    }

    fn step(&self, page: &[u8], position: u64, scratch: &mut Scratch) -> Next {
        let level = scratch.u64(at::LOOKUP_LEVEL);
        let Some(node) = Node::of(page, position, level) else { return Next::Fail(TREE_DAMAGED) };
        let word = node.leads_to(node.record_for(scratch.u64(at::LOOKUP_KEY)));
        if let Some(below) = level.checked_sub(1) {
            scratch.set_u64(at::LOOKUP_LEVEL, below);
            return Next::read(word);
        }
        scratch.set_u64(at::LOOKUP_VALUE, word);
        Next::Over
    }

    fn end(&self, scratch: &Scratch, _page: &[u8]) -> u64 {
        scratch.u64(at::LOOKUP_VALUE)
    }
}

/// Counts separators of leaves in a range: descends to level 1 like a lookup, and reads up to 16 leaves from there concurrently.
#[derive(Clone, Copy, Debug)]
pub struct TreeCount {
    /// Bytes of a node.
    pub node_bytes: u32,
}

/// Arguments of a [`TreeCount`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The position of the node where the count starts, in bytes: of level 1 or above, or the one leaf to read.
    pub root: u64,
    /// The level of that node. Each node on the way must be one level below the one before it.
    pub level: u16,
    /// The key that determines the way down to level 1.
    pub key: u64,
    /// The least separator to count.
    pub low: u64,
    /// The greatest separator to count.
    pub high: u64,
}

/// The result of a [`TreeCount`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CountResult {
    /// Separators in the range.
    pub found: u64,
    /// Leaves read, at most 16.
    pub leaves: u64,
}

impl Program for TreeCount {
    type Args = Count;
    type Output = CountResult;

    fn name(&self) -> &'static str {
        "tree-count"
    }

    fn page_bytes(&self) -> u32 {
        self.node_bytes
    }

    fn fan_out(&self) -> u32 {
        at::READS_MAX as u32
    }

    fn object(&self) -> Option<&[u8]> {
        Some(include_bytes!("../objects/tree_count.loop.bpf.o"))
    }

    fn module_object(&self) -> Option<&[u8]> {
        Some(include_bytes!("../objects/tree_count.module.bpf.o"))
    }

    fn begin(&self, count: &Count, scratch: &mut Scratch) -> u64 {
        scratch.set_u64(at::COUNT_KEY, count.key);
        scratch.set_u64(at::COUNT_LEVEL, count.level.into());
        scratch.set_u64(at::COUNT_LOW, count.low);
        scratch.set_u64(at::COUNT_HIGH, count.high);
        count.root
    }

    fn step(&self, page: &[u8], position: u64, scratch: &mut Scratch) -> Next {
        let level = scratch.u64(at::COUNT_LEVEL);
        let Some(node) = Node::of(page, position, level) else { return Next::Fail(TREE_DAMAGED) };
        let (low, high) = (scratch.u64(at::COUNT_LOW), scratch.u64(at::COUNT_HIGH));
        scratch.set_u64(at::COUNT_LEVEL, level.saturating_sub(1));
        if node.level > 1 {
            return Next::read(node.leads_to(node.record_for(scratch.u64(at::COUNT_KEY))));
        }
        let last = node.not_above(high);
        if node.level == 1 {
            let first = node.not_above(low).saturating_sub(1);
            let leaves: Positions =
                (first..last.max(first)).take(at::READS_MAX).map(|record| node.leads_to(record)).collect();
            if leaves.as_slice().is_empty() {
                return Next::Over;
            }
            scratch.set_u64(at::COUNT_COMING, leaves.as_slice().len() as u64);
            return Next::Read(leaves);
        }
        let first = low.checked_sub(1).map_or(0, |below| node.not_above(below));
        let add = |scratch: &mut Scratch, place, more| scratch.set_u64(place, scratch.u64(place) + more);
        add(scratch, at::COUNT_FOUND, last.saturating_sub(first) as u64);
        add(scratch, at::COUNT_LEAVES, 1);
        let coming = scratch.u64(at::COUNT_COMING);
        if coming <= 1 {
            return Next::Over;
        }
        scratch.set_u64(at::COUNT_COMING, coming - 1);
        Next::Wait
    }

    fn end(&self, scratch: &Scratch, _page: &[u8]) -> CountResult {
        CountResult { found: scratch.u64(at::COUNT_FOUND), leaves: scratch.u64(at::COUNT_LEAVES) }
    }
}

/// A node whose header was checked.
struct Node<'a> {
    bytes: &'a [u8],
    level: u16,
    count: usize,
}

impl Node<'_> {
    /// Returns the node; `None` if the page is not the node that belongs to `position`, or not of that level. A child of an inner
    /// node is never returned as a value, even if a damaged node states another level.
    fn of(bytes: &[u8], position: u64, level: u64) -> Option<Node<'_>> {
        let short = |place: usize| bytes.get(place..)?.first_chunk().map(|word| u16::from_le_bytes(*word));
        let magic = bytes.get(at::TREE_MAGIC_AT..)?.first_chunk().map(|word| u32::from_le_bytes(*word))?;
        let count = usize::from(short(at::TREE_COUNT_AT)?);
        let node = Node { bytes, level: short(at::TREE_LEVEL_AT)?, count };
        let right = magic as usize == at::TREE_MAGIC
            && node.word(at::TREE_POSITION_AT) == position
            && u64::from(node.level) == level
            && (1..=254).contains(&count)
            && at::TREE_RECORDS_AT + count * at::TREE_RECORD_BYTES <= bytes.len();
        right.then_some(node)
    }

    fn word(&self, place: usize) -> u64 {
        self.bytes
            .get(place..)
            .and_then(|rest| rest.first_chunk())
            .map_or(0, |word| u64::from_le_bytes(*word))
    }

    fn separator(&self, record: usize) -> u64 {
        self.word(at::TREE_RECORDS_AT + record * at::TREE_RECORD_BYTES)
    }

    fn leads_to(&self, record: usize) -> u64 {
        self.word(at::TREE_RECORDS_AT + record * at::TREE_RECORD_BYTES + 8)
    }

    /// Returns how many records have a separator that is not above `wanted`.
    fn not_above(&self, wanted: u64) -> usize {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = (low + high) / 2;
            if self.separator(middle) <= wanted { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Returns the record that leads to the place of `key`; the first record covers everything below.
    fn record_for(&self, key: u64) -> usize {
        let wanted = mix(key.wrapping_add(u64::from(self.level) + 1));
        self.not_above(wanted).saturating_sub(1)
    }
}

/// Returns the first number of SplitMix64 with this seed.
fn mix(seed: u64) -> u64 {
    let mut word = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
