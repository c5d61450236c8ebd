//! The order of a memtable's entries: a B+-tree of their places, to which entries only come.

use std::cmp::Ordering;

use forebay::Engine;

use super::pages::{PAGE, Pages};

/// Bytes of a node: a count; then, in a leaf, places of entries; in an inner node the place of the first entry
/// below each child, then the children.
const NODE: usize = 512;
const WORD: usize = 8;
/// Entries of a leaf, and children of an inner node.
const LEAF_MAX: usize = NODE / WORD - 1;
const INNER_MAX: usize = LEAF_MAX / 2;
/// More levels than there is memory for.
const LEVELS_MAX: usize = 16;

/// Places of entries, in the order that who asks gives them. A place is a number of the caller's.
#[derive(Debug)]
pub(super) struct Tree {
    pages: Pages,
    nodes: u64,
    root: u64,
    /// Inner levels above the leaves.
    levels: usize,
}

/// An entry's place in the tree: from the root down each node, and what was taken of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    steps: [(u64, usize); LEVELS_MAX],
}

impl Tree {
    pub(super) fn new(engine: &Engine) -> Tree {
        Tree { pages: Pages::new(engine), nodes: 0, root: 0, levels: 0 }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.pages.memory_bytes()
    }

    /// As [`Pages::free`]; what is left is no tree.
    pub(super) fn free(&mut self, pages: usize) -> bool {
        self.pages.free(pages)
    }

    /// Bytes of its nodes.
    pub(super) fn used_bytes(&self) -> u64 {
        self.nodes * NODE as u64
    }

    #[inline]
    fn count(&self, node: u64) -> usize {
        self.pages.word(node * NODE as u64) as usize
    }

    /// The word behind the count with this number.
    #[inline]
    fn word(&self, node: u64, index: usize) -> u64 {
        self.pages.word(node * NODE as u64 + ((1 + index) * WORD) as u64)
    }

    fn child(&self, node: u64, index: usize) -> u64 {
        self.word(node, INNER_MAX + index)
    }

    fn set_count(&mut self, node: u64, count: usize) {
        self.pages.write(node * NODE as u64, &(count as u64).to_le_bytes());
    }

    fn set_word(&mut self, node: u64, index: usize, word: u64) {
        self.pages.write(node * NODE as u64 + ((1 + index) * WORD) as u64, &word.to_le_bytes());
    }

    fn add_node(&mut self) -> u64 {
        let node = self.nodes;
        self.nodes += 1;
        self.pages.reach(self.nodes * NODE as u64);
        node
    }

    /// Makes room for a word before the one with this number; `count` words there move.
    fn make_room(&mut self, node: u64, index: usize, count: usize) {
        let begin = (1 + index) * WORD;
        let bytes = self.pages.part_mut(node * NODE as u64, NODE);
        if begin + (count + 1) * WORD <= bytes.len() {
            bytes.copy_within(begin..begin + count * WORD, begin + WORD);
        }
    }

    /// Copies `count` words from one node to the front of another's.
    fn copy(&mut self, from: (u64, usize), to: (u64, usize), count: usize) {
        for index in 0..count {
            let word = self.word(from.0, from.1 + index);
            self.set_word(to.0, to.1 + index, word);
        }
    }

    /// The first entry that is not before what is sought, as `compare` tells of each place; behind the last
    /// entry if all are.
    pub(super) fn seek(&self, compare: impl Fn(u64) -> Ordering) -> Path {
        let (mut path, mut node) = (Path { steps: [(0, 0); LEVELS_MAX] }, self.root);
        if self.nodes == 0 {
            return path;
        }
        for level in 0..self.levels {
            // Of the first child nothing is asked: what is before all it has goes there.
            let (mut low, mut high) = (1, self.count(node));
            while low < high {
                let middle = low.midpoint(high);
                match compare(self.word(node, middle)) {
                    Ordering::Greater => high = middle,
                    _ => low = middle + 1,
                }
            }
            path.steps[level] = (node, low - 1);
            node = self.child(node, low - 1);
        }
        let (mut low, mut high) = (0, self.count(node));
        while low < high {
            let middle = low.midpoint(high);
            match compare(self.word(node, middle)) {
                Ordering::Less => low = middle + 1,
                _ => high = middle,
            }
        }
        path.steps[self.levels] = (node, low);
        path
    }

    /// Behind the last entry.
    pub(super) fn end(&self) -> Path {
        self.seek(|_| Ordering::Less)
    }

    /// The entry at a path, and the path goes behind it.
    pub(super) fn next(&self, path: &mut Path) -> Option<u64> {
        if self.nodes == 0 {
            return None;
        }
        let (leaf, index) = path.steps[self.levels];
        if index >= self.count(leaf) {
            let is_left = |&level: &usize| path.steps[level].1 + 1 < self.count(path.steps[level].0);
            let turn = (0..self.levels).rev().find(is_left)?;
            path.steps[turn].1 += 1;
            for level in turn..self.levels {
                let (node, index) = path.steps[level];
                path.steps[level + 1] = (self.child(node, index), 0);
            }
        }
        let (leaf, index) = &mut path.steps[self.levels];
        let entry = self.word(*leaf, *index);
        *index += 1;
        Some(entry)
    }

    /// The entry before a path, and the path goes before it.
    pub(super) fn previous(&self, path: &mut Path) -> Option<u64> {
        if self.nodes == 0 {
            return None;
        }
        if path.steps[self.levels].1 == 0 {
            let turn = (0..self.levels).rev().find(|&level| path.steps[level].1 > 0)?;
            path.steps[turn].1 -= 1;
            for level in turn..self.levels {
                let (node, index) = path.steps[level];
                let child = self.child(node, index);
                // In an inner node the last child, in the leaf behind the last entry.
                let is_leaf = level + 1 == self.levels;
                path.steps[level + 1] = (child, self.count(child) - usize::from(!is_leaf));
            }
        }
        let (leaf, index) = &mut path.steps[self.levels];
        *index = index.checked_sub(1)?;
        Some(self.word(*leaf, *index))
    }

    /// Adds an entry; one that `compare` finds equal is replaced.
    pub(super) fn insert(&mut self, entry: u64, compare: impl Fn(u64) -> Ordering) {
        if self.nodes == 0 {
            self.root = self.add_node();
        }
        let path = self.seek(&compare);
        let (leaf, at) = path.steps[self.levels];
        let count = self.count(leaf);
        if at < count && compare(self.word(leaf, at)).is_eq() {
            self.set_word(leaf, at, entry);
            return;
        }
        if count < LEAF_MAX {
            self.put_in_leaf(leaf, at, entry);
            return;
        }
        // Entries that come in order leave full leaves behind.
        let is_last = self.is_last(&path);
        let kept = if is_last && at == count { count } else { count / 2 };
        let right = self.add_node();
        self.copy((leaf, kept), (right, 0), count - kept);
        self.set_count(leaf, kept);
        self.set_count(right, count - kept);
        match at.checked_sub(kept) {
            Some(behind) if behind > 0 || kept == count => self.put_in_leaf(right, behind, entry),
            _ => self.put_in_leaf(leaf, at, entry),
        }
        self.add_child(&path, is_last, right);
    }

    fn put_in_leaf(&mut self, leaf: u64, at: usize, entry: u64) {
        let count = self.count(leaf);
        self.make_room(leaf, at, count - at);
        self.set_word(leaf, at, entry);
        self.set_count(leaf, count + 1);
    }

    fn is_last(&self, path: &Path) -> bool {
        path.steps[..self.levels].iter().all(|(node, index)| index + 1 == self.count(*node))
    }

    /// Adds what was split off a leaf to the inner nodes above.
    fn add_child(&mut self, path: &Path, is_last: bool, leaf: u64) {
        let (mut first, mut child) = (self.word(leaf, 0), leaf);
        for level in (0..self.levels).rev() {
            let (node, index) = path.steps[level];
            let (at, count) = (index + 1, self.count(node));
            if count < INNER_MAX {
                self.put_in_inner(node, at, first, child);
                return;
            }
            let kept = if is_last && at == count { count } else { count / 2 };
            let right = self.add_node();
            self.copy((node, kept), (right, 0), count - kept);
            self.copy((node, INNER_MAX + kept), (right, INNER_MAX), count - kept);
            self.set_count(node, kept);
            self.set_count(right, count - kept);
            match at.checked_sub(kept) {
                Some(behind) if behind > 0 || kept == count => {
                    self.put_in_inner(right, behind, first, child);
                }
                _ => self.put_in_inner(node, at, first, child),
            }
            (first, child) = (self.word(right, 0), right);
        }
        let root = self.add_node();
        // What the first child begins with is never asked for.
        self.put_in_inner(root, 0, first, self.root);
        self.put_in_inner(root, 1, first, child);
        self.root = root;
        self.levels += 1;
    }

    fn put_in_inner(&mut self, node: u64, at: usize, first: u64, child: u64) {
        let count = self.count(node);
        self.make_room(node, at, count - at);
        self.make_room(node, INNER_MAX + at, count - at);
        self.set_word(node, at, first);
        self.set_word(node, INNER_MAX + at, child);
        self.set_count(node, count + 1);
    }
}

const _: () = assert!(PAGE.is_multiple_of(NODE) && 2 * INNER_MAX < NODE / WORD);
