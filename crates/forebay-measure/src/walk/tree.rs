//! The index of the lookups: the contents of its nodes, the search in one, and the same search as a walk.
//!
//! All levels have equally many nodes, so that no level is small enough for a cache and each hop is a
//! random read. Inner nodes lead to any node of the level below. Which one is a function of the tree's
//! seed, so that the result can be computed without the file. A lookup of depth d begins at the node
//! of level d - 1 that its key selects.

use std::ops::Range;

use forebay::{Block, Step, Walk};
use serde::{Deserialize, Serialize};

use super::super::pattern::SplitMix;

const MAGIC: u32 = 0x6b6c_6177;
/// Magic, level and count, position, and a number that differs in every node.
const HEADER: usize = 24;
const RECORD: usize = 16;
/// Random bits of a separator, so that nodes do not compress.
const JITTER_BITS: u32 = 48;

/// Parameters of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tree {
    pub(super) node_bytes: u64,
    pub(super) fan_out: u64,
    pub(super) levels: u64,
    /// Number of nodes in each level.
    pub(super) nodes: u64,
    pub(super) seed: u64,
}

/// The next step after a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Continue with the node at this position.
    Child(u64),
    Found(u64),
}

/// Returns the maximum number of records in a node.
pub(super) const fn fan_out_max(node_bytes: u64) -> u64 {
    (node_bytes - HEADER as u64) / RECORD as u64
}

impl Tree {
    pub(super) fn file_bytes(&self) -> u64 {
        self.levels * self.nodes * self.node_bytes
    }

    /// Returns the position of a node. Levels are interleaved, so that hops of one level go to the
    /// whole file.
    fn position(&self, level: u64, node: u64) -> u64 {
        (node * self.levels + level) * self.node_bytes
    }

    /// Returns the target of `record` of the node at `position`, a random word. In a leaf the whole
    /// word is the value; in an inner node it is scaled to the number of nodes.
    fn word(&self, position: u64, record: u64) -> u64 {
        mix(self.seed ^ (position / self.node_bytes) << 16 ^ record)
    }

    /// Returns the smallest word that belongs to `record` of the node at `position`.
    fn separator(&self, position: u64, record: u64) -> u64 {
        if record == 0 {
            return 0;
        }
        self.least(record) + (self.word(position, record + 0x8000) >> (64 - JITTER_BITS))
    }

    fn least(&self, record: u64) -> u64 {
        ((u128::from(record) << 64).div_ceil(u128::from(self.fan_out))) as u64
    }

    /// Returns the position of the child that a word of an inner node selects.
    fn child(&self, level: u64, word: u64) -> u64 {
        self.position(level - 1, scaled(word, self.nodes))
    }

    /// Returns the position at which a lookup begins.
    pub(super) fn root(&self, depth: u64, key: u64) -> u64 {
        let word = mix(key ^ self.seed);
        self.position(depth - 1, scaled(word, self.nodes))
    }

    /// Computes the value that a lookup finds.
    pub(super) fn expected(&self, depth: u64, key: u64) -> u64 {
        let mut position = self.root(depth, key);
        let mut level = depth - 1;
        loop {
            let wanted = wanted(key, level);
            let mut record = scaled(wanted, self.fan_out);
            let near = wanted - self.least(record) < 1 << JITTER_BITS;
            if record > 0 && near && wanted < self.separator(position, record) {
                record -= 1;
            }
            let word = self.word(position, record);
            if level == 0 {
                return word;
            }
            position = self.child(level, word);
            level -= 1;
        }
    }

    /// Fills `memory`, the part of the file at `offset`; both are multiples of a node.
    pub(super) fn fill(&self, offset: u64, memory: &mut [u8]) {
        for (node, bytes) in memory.chunks_exact_mut(self.node_bytes as usize).enumerate() {
            self.fill_node(offset + node as u64 * self.node_bytes, bytes);
        }
    }

    fn fill_node(&self, position: u64, bytes: &mut [u8]) {
        let level = position / self.node_bytes % self.levels;
        let head = u64::from(MAGIC) | level << 32 | self.fan_out << 48;
        let mut rest = SplitMix::new(self.word(position, 0xffff));
        let (header, records) = bytes.split_at_mut(HEADER);
        for (place, word) in [head, position, rest.next_u64()].iter().enumerate() {
            header[place * 8..place * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        let (used, unused) = records.split_at_mut(self.fan_out as usize * RECORD);
        for (record, bytes) in (0..).zip(used.chunks_exact_mut(RECORD)) {
            let word = self.word(position, record);
            let leads_to = if level == 0 { word } else { self.child(level, word) };
            bytes[..8].copy_from_slice(&self.separator(position, record).to_le_bytes());
            bytes[8..].copy_from_slice(&leads_to.to_le_bytes());
        }
        for bytes in unused.chunks_exact_mut(8) {
            bytes.copy_from_slice(&rest.next_u64().to_le_bytes());
        }
    }
}

/// Returns the number below `bound` to which a random word is mapped evenly.
fn scaled(word: u64, bound: u64) -> u64 {
    ((u128::from(word) * u128::from(bound)) >> 64) as u64
}

fn mix(word: u64) -> u64 {
    SplitMix::new(word).next_u64()
}

/// Returns the word for which a level is searched, derived from the key.
fn wanted(key: u64, level: u64) -> u64 {
    mix(key.wrapping_add(level + 1))
}

/// Searches a node. Returns `None` when it is not the node of this tree that belongs to `position`.
pub(super) fn search(node: &[u8], position: u64, key: u64) -> Option<Next> {
    let word = |at: usize| Some(u64::from_le_bytes(node.get(at..at + 8)?.try_into().ok()?));
    let head = word(0)?;
    let (magic, level, count) = (head as u32, u64::from((head >> 32) as u16), (head >> 48) as usize);
    if magic != MAGIC || word(8)? != position || count == 0 || HEADER + count * RECORD > node.len() {
        return None;
    }
    let wanted = wanted(key, level);
    // Finds the last record whose separator is not larger; the first one's is zero.
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = (low + high) / 2;
        if word(HEADER + middle * RECORD)? <= wanted { low = middle + 1 } else { high = middle }
    }
    let leads_to = word(HEADER + low.saturating_sub(1) * RECORD + 8)?;
    Some(if level == 0 { Next::Found(leads_to) } else { Next::Child(leads_to) })
}

/// A lookup as a walk.
#[derive(Debug)]
pub(super) struct Lookup {
    pub(super) key: u64,
    pub(super) node_bytes: u64,
}

/// The reason why a lookup fails.
#[derive(Debug)]
pub(super) enum LookupError {
    Io(forebay::Error),
    Damaged { position: u64 },
}

impl From<forebay::Error> for LookupError {
    fn from(error: forebay::Error) -> Self {
        Self::Io(error)
    }
}

impl std::fmt::Display for LookupError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Damaged { position } => {
                write!(
                    f,
                    "the bytes read at offset {position} are not the node that was written there; the storage below \
                     the file or the way it was read is faulty"
                )
            }
        }
    }
}

impl std::error::Error for LookupError {}

impl Walk for Lookup {
    type Output = u64;
    type Error = LookupError;

    fn step(&mut self, node: &Block, at: Range<u64>) -> Step<u64, LookupError> {
        match search(node, at.start, self.key) {
            Some(Next::Child(child)) => Step::Read(child..child + self.node_bytes),
            Some(Next::Found(value)) => Step::Done(value),
            None => Step::Fail(LookupError::Damaged { position: at.start }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(node_bytes: u64, fan_out: u64) -> Tree {
        Tree { node_bytes, fan_out, levels: 5, nodes: 40, seed: 7 }
    }

    fn descend(tree: &Tree, file: &[u8], depth: u64, key: u64) -> (u64, u64) {
        let (mut at, mut hops) = (tree.root(depth, key), 0);
        loop {
            hops += 1;
            let node = &file[at as usize..(at + tree.node_bytes) as usize];
            match search(node, at, key).expect("a whole node") {
                Next::Child(child) => at = child,
                Next::Found(value) => return (value, hops),
            }
        }
    }

    #[test]
    fn every_lookup_has_its_depth_and_finds_what_was_computed() {
        for (node_bytes, fan_out) in [(512, 2), (512, 30), (4096, 17), (4096, fan_out_max(4096))] {
            let tree = tree(node_bytes, fan_out);
            let mut file = vec![0; tree.file_bytes() as usize];
            tree.fill(0, &mut file);
            for depth in 1..=5 {
                for key in 0..500 {
                    let found = descend(&tree, &file, depth, key);
                    assert_eq!(found, (tree.expected(depth, key), depth), "{tree:?} {key}");
                }
            }
        }
    }

    /// The random parts of the separators decide here; evenly spread keys hardly ever reach them.
    #[test]
    fn keys_beside_a_separator_are_computed_as_they_are_found() {
        let tree = tree(4096, 250);
        let mut file = vec![0; tree.file_bytes() as usize];
        tree.fill(0, &mut file);
        let near = |key: &u64| {
            let wanted = wanted(*key, 0);
            let record = scaled(wanted, 250);
            wanted - tree.least(record) < 1 << JITTER_BITS
        };
        let mut met = 0;
        for key in (0..2_000_000).filter(near) {
            assert_eq!(descend(&tree, &file, 1, key).0, tree.expected(1, key));
            met += 1;
        }
        assert!(met > 1000, "{met}");
    }

    #[test]
    fn a_node_with_another_number_is_refused() {
        let tree = tree(512, 30);
        let mut node = vec![0; 512];
        tree.fill(1024, &mut node);
        assert!(search(&node, 1024, 1).is_some());
        assert_eq!(search(&node, 512, 1), None);
        assert_eq!(search(&node[..400], 1024, 1), None);
        assert_eq!(search(&[], 0, 1), None);
        node[0] ^= 1;
        assert_eq!(search(&node, 1024, 1), None);
    }

    #[test]
    fn the_largest_fan_out_fills_a_node() {
        assert_eq!((fan_out_max(512), fan_out_max(4096)), (30, 254));
    }
}
