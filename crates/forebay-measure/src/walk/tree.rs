//! The index of the lookups: the contents of its nodes, its file, the search in a node, and the same search as a walk.
//!
//! All levels have equally many nodes, so that no level is small enough for a cache and each hop is a random read. Inner nodes lead
//! to any node of the level below. Which one is a function of the tree's seed, so that the result can be computed without the file.
//! A lookup of depth d starts at the node of level d - 1 that its key selects.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::Context as _;
use forebay::{Block, Step, Walk};
use serde::{Deserialize, Serialize};

use crate::aligned::AlignedBuffer;
use crate::backing_device::device_stat;
use crate::cleanup::TempFile;
use crate::context::Context;
use crate::pattern::SplitMix;
use crate::preconditions::Preconditions;
use crate::progress::Unit;
use crate::scratch_dir::ScratchDir;
use crate::test_file::{check_space, no_space, require_direct, write_direct};
use crate::units::show_bytes;
use forebay_report::failure::Failure;

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
    #[serde(rename = "nodes_per_level")]
    pub(super) nodes: u64,
    pub(super) seed: u64,
}

/// Returns the maximum number of records in a node.
pub(super) const fn fan_out_max(node_bytes: u64) -> u64 {
    (node_bytes - HEADER as u64) / RECORD as u64
}

impl Tree {
    pub(super) fn file_bytes(&self) -> u64 {
        self.levels * self.nodes * self.node_bytes
    }

    /// Returns the position of a node. Levels are interleaved, so that hops of one level cover the whole file.
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

    /// Returns the position at which a lookup starts.
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

/// A lookup on its way down. It is also the walk of Forebay's rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Descent {
    pub(super) key: u64,
    pub(super) node_bytes: u64,
    /// Position of the next node.
    pub(super) at: u64,
}

impl Descent {
    /// Searches the next node. Returns the value at a leaf; at an inner node the descent moves on to its child.
    ///
    /// # Errors
    /// It is not the node of this tree that belongs to the position.
    pub(super) fn step(&mut self, node: &[u8]) -> anyhow::Result<Option<u64>> {
        let (level, target) = search(node, self.at, self.key).with_context(|| {
            format!(
                "the bytes read at offset {} are not the node that was written there; the storage below the file or the \
                 way it was read is faulty",
                self.at
            )
        })?;
        if level == 0 {
            return Ok(Some(target));
        }
        self.at = target;
        Ok(None)
    }
}

/// Searches the node at `position`. Returns its level and the target of the record that the key selects, or `None` when it
/// is another node.
fn search(node: &[u8], position: u64, key: u64) -> Option<(u64, u64)> {
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
    Some((level, word(HEADER + low.saturating_sub(1) * RECORD + 8)?))
}

impl Walk for Descent {
    type Output = u64;
    type Error = anyhow::Error;

    fn step(&mut self, node: &Block, _: Range<u64>) -> Step<u64, anyhow::Error> {
        match Self::step(self, node) {
            Ok(None) => Step::Read(self.at..self.at + self.node_bytes),
            Ok(Some(value)) => Step::Done(value),
            Err(error) => Step::Fail(error),
        }
    }
}

/// A file with an index.
#[derive(Debug)]
pub(super) struct IndexFile {
    pub(super) temp: TempFile,
    pub(super) tree: Tree,
    /// Alignment of a direct read.
    pub(super) unit_bytes: u64,
    pub(super) preconditions: Preconditions,
    /// Name of that device: `vda`, `zram0`.
    pub(super) device: Option<String>,
}

impl IndexFile {
    /// Writes the file, past the page cache and through to the device.
    ///
    /// # Errors
    /// No space, no direct I/O: each a [`Failure`].
    pub(super) fn make(scratch: &ScratchDir, tree: Tree, context: &Context) -> anyhow::Result<Self> {
        // The last MiB may hold nodes after the last one; no lookup requests them.
        let bytes = tree.file_bytes().next_multiple_of(1 << 20);
        check_space(&scratch.directory, bytes, "give a smaller --size, or name a directory with more space")?;
        let temp = scratch.temp_file(context, "walk")?;
        require_direct(temp.path(), &scratch.filesystem)?;
        let step = context.step(format!("write {} of nodes", show_bytes(bytes)), bytes, Unit::Bytes);
        let refused = |error: io::Error| no_space(&scratch.directory, bytes, &error);
        temp.file().set_len(bytes).map_err(refused)?;
        write_direct(temp.path(), bytes, |offset, memory| tree.fill(offset, memory), &step)
            .map_err(refused)?;
        step.finish("on the device");
        let device_stat = device_stat(temp.file());
        Ok(Self {
            unit_bytes: direct_unit(&open_direct(temp.path())?)?,
            device: device_stat.as_deref().and_then(device_name),
            preconditions: Preconditions::of_file(temp.file(), bytes, device_stat.as_deref()),
            temp,
            tree,
        })
    }
}

/// Opens a file for direct reads.
///
/// # Errors
/// Errors of open.
pub(super) fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)
}

/// Returns the smallest unit in which the file can be read directly, found by trying.
fn direct_unit(file: &File) -> anyhow::Result<u64> {
    let mut buffer = AlignedBuffer::new(4096);
    for unit in [512, 1024, 2048, 4096] {
        match file.read_exact_at(&mut buffer.bytes_mut()[..unit], unit as u64) {
            Ok(()) => return Ok(unit as u64),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            Err(error) => return Err(error.into()),
        }
    }
    let why = "direct reads here need more than 4 KiB at a time; name another directory";
    Err(Failure::Unsuitable(why.to_owned()).into())
}

/// Returns the name of the disk of a `stat` file, also where that is of a partition.
fn device_name(stat: &Path) -> Option<String> {
    let device = fs::canonicalize(stat.parent()?).ok()?;
    let disk = if device.join("partition").exists() { device.parent()? } else { &device };
    Some(disk.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(node_bytes: u64, fan_out: u64) -> Tree {
        Tree { node_bytes, fan_out, levels: 5, nodes: 40, seed: 7 }
    }

    fn descend(tree: &Tree, file: &[u8], depth: u64, key: u64) -> (u64, u64) {
        let mut descent = Descent { key, node_bytes: tree.node_bytes, at: tree.root(depth, key) };
        for hops in 1.. {
            let node = &file[descent.at as usize..(descent.at + tree.node_bytes) as usize];
            if let Some(value) = descent.step(node).expect("a whole node") {
                return (value, hops);
            }
        }
        unreachable!("a tree has leaves")
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

    #[test]
    fn the_file_contains_the_tree() {
        let context = super::super::super::lanes::test_context();
        let scratch = ScratchDir::find(&context, "walk").expect("a directory on a disk");
        let tree = Tree { node_bytes: 512, fan_out: 9, levels: 3, nodes: 1000, seed: 5 };
        let index_file = IndexFile::make(&scratch, tree, &context).expect("space for 2 MiB");
        assert!([512, 1024, 2048, 4096].contains(&index_file.unit_bytes), "{index_file:?}");
        let mut expected = vec![0; tree.file_bytes() as usize];
        tree.fill(0, &mut expected);
        let found = fs::read(index_file.temp.path()).expect("it can be read buffered");
        assert_eq!(found.len(), 2 << 20);
        assert!(found.starts_with(&expected));
    }
}
