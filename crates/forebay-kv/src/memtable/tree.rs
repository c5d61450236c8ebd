//! The order of a memtable's entries: an insert-only B+-tree of their places.

use std::cmp::Ordering;

use forebay::Engine;

use super::pages::{PAGE, Pages};

/// Bytes of a node. It starts with a count. In a leaf, places of entries follow; in an inner node, the place of the first entry
/// below each child, then the children.
const NODE: usize = 512;
const WORD: usize = 8;
/// Maximum entries of a leaf; `INNER_MAX` is that of an inner node's children.
const LEAF_MAX: usize = NODE / WORD - 1;
const INNER_MAX: usize = LEAF_MAX / 2;
/// A bound on the levels: memory is exhausted before it is reached.
const LEVELS_MAX: usize = 16;

/// Places of entries, in the order of the caller's `compare` functions. A place is a number chosen by the
/// caller.
#[derive(Debug)]
pub(super) struct Tree {
    pages: Pages,
    nodes: u64,
    root: u64,
    /// Inner levels above the leaves.
    levels: usize,
}

/// A position in the tree: the nodes from the root down, with an index in each.
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

    /// Frees pages as [`Pages::free`] does; the tree is unusable afterwards.
    pub(super) fn free(&mut self, pages: usize) -> bool {
        self.pages.free(pages)
    }

    /// Returns the bytes of its nodes.
    pub(super) fn used_bytes(&self) -> u64 {
        self.nodes * NODE as u64
    }

    #[inline]
    fn count(&self, node: u64) -> usize {
        self.pages.word(node * NODE as u64) as usize
    }

    /// Returns the word with this number, counted from behind the node's count.
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

    /// Shifts `count` words from this index on, for a word at it.
    fn make_room(&mut self, node: u64, index: usize, count: usize) {
        let begin = (1 + index) * WORD;
        let bytes = self.pages.part_mut(node * NODE as u64, NODE);
        if begin + (count + 1) * WORD <= bytes.len() {
            bytes.copy_within(begin..begin + count * WORD, begin + WORD);
        }
    }

    /// Copies `count` words from one node to another; `from` and `to` are a node and the index of a word.
    fn copy(&mut self, from: (u64, usize), to: (u64, usize), count: usize) {
        for index in 0..count {
            let word = self.word(from.0, from.1 + index);
            self.set_word(to.0, to.1 + index, word);
        }
    }

    /// Returns the path of the first entry that does not precede the target, or the end if all entries do. `compare` orders an
    /// entry, given by its place, against the target.
    pub(super) fn seek(&self, compare: impl Fn(u64) -> Ordering) -> Path {
        let (mut path, mut node) = (Path { steps: [(0, 0); LEVELS_MAX] }, self.root);
        if self.nodes == 0 {
            return path;
        }
        for level in 0..self.levels {
            // The first child's key is not compared: a target before all its entries belongs there as well.
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

    /// Returns the path behind the last entry.
    pub(super) fn end(&self) -> Path {
        self.seek(|_| Ordering::Less)
    }

    /// Returns the entry at a path and moves the path behind it.
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

    /// Returns the entry before a path and moves the path to it.
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
                // The last child of an inner node; in a leaf the position behind its last entry.
                let is_leaf = level + 1 == self.levels;
                path.steps[level + 1] = (child, self.count(child) - usize::from(!is_leaf));
            }
        }
        let (leaf, index) = &mut path.steps[self.levels];
        *index = index.checked_sub(1)?;
        Some(self.word(*leaf, *index))
    }

    /// Adds an entry; replaces one that `compare` finds equal. Returns the one replaced, or else the next entry.
    pub(super) fn insert(&mut self, entry: u64, compare: impl Fn(u64) -> Ordering) -> Option<u64> {
        if self.nodes == 0 {
            self.root = self.add_node();
        }
        let path = self.seek(&compare);
        let mut ahead = path;
        let next = self.next(&mut ahead);
        self.insert_at(&path, entry, compare);
        next
    }

    /// Adds an entry at its path.
    fn insert_at(&mut self, path: &Path, entry: u64, compare: impl Fn(u64) -> Ordering) {
        let (leaf, at) = path.steps[self.levels];
        let count = self.count(leaf);
        debug_assert!(
            (at == 0 || compare(self.word(leaf, at - 1)).is_lt())
                && (at >= count || compare(self.word(leaf, at)).is_ge()),
            "a leaf's entries are sorted"
        );
        if at < count && compare(self.word(leaf, at)).is_eq() {
            self.set_word(leaf, at, entry);
            return;
        }
        if count < LEAF_MAX {
            self.put_in_leaf(leaf, at, entry);
            return;
        }
        // Inserts in ascending order leave full leaves behind.
        let is_last = self.is_last(path);
        let kept = if is_last && at == count { count } else { count / 2 };
        let right = self.add_node();
        self.copy((leaf, kept), (right, 0), count - kept);
        self.set_count(leaf, kept);
        self.set_count(right, count - kept);
        match at.checked_sub(kept) {
            Some(behind) if behind > 0 || kept == count => self.put_in_leaf(right, behind, entry),
            _ => self.put_in_leaf(leaf, at, entry),
        }
        self.add_child(path, is_last, right);
    }

    fn put_in_leaf(&mut self, leaf: u64, at: usize, entry: u64) {
        let count = self.count(leaf);
        debug_assert!(at <= count && count < LEAF_MAX, "a leaf is split when it is full");
        self.make_room(leaf, at, count - at);
        self.set_word(leaf, at, entry);
        self.set_count(leaf, count + 1);
    }

    fn is_last(&self, path: &Path) -> bool {
        path.steps[..self.levels].iter().all(|(node, index)| index + 1 == self.count(*node))
    }

    /// Adds the leaf split off at a path to the inner nodes above.
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
        debug_assert!(self.levels + 1 < LEVELS_MAX, "a path has room for every level");
        let root = self.add_node();
        // The key of a first child is never compared.
        self.put_in_inner(root, 0, first, self.root);
        self.put_in_inner(root, 1, first, child);
        self.root = root;
        self.levels += 1;
    }

    fn put_in_inner(&mut self, node: u64, at: usize, first: u64, child: u64) {
        let count = self.count(node);
        debug_assert!(at <= count && count < INNER_MAX, "an inner node is split when it is full");
        self.make_room(node, at, count - at);
        self.make_room(node, INNER_MAX + at, count - at);
        self.set_word(node, at, first);
        self.set_word(node, INNER_MAX + at, child);
        self.set_count(node, count + 1);
    }
}

const _: () = assert!(PAGE.is_multiple_of(NODE) && 2 * INNER_MAX < NODE / WORD);
