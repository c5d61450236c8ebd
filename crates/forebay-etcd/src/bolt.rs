//! The file format of bbolt, which etcd's snapshots have: [`Writer`] and [`Reader`].
//!
//! A file is pages of 4 KiB: two copies of the meta page, a list of free pages, and a B+ tree for each bucket, whose roots are the
//! values of the tree of all buckets. An element longer than a page continues in the pages after it. The writer accepts keys in
//! order and writes each page once, from start to end, so a snapshot is a stream: only the meta pages need later values, and a
//! first pass without output finds those.

mod read;

pub(crate) use read::Reader;

const PAGE_BYTES: usize = 4096;
const HEADER_BYTES: usize = 16;
/// An element's head, in both kinds of pages.
const ELEMENT_BYTES: usize = 16;
/// Of the meta page.
const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META: u16 = 0x04;
const FREE_LIST: u16 = 0x10;
/// The value of an element is a bucket.
const IS_BUCKET: u32 = 1;

/// The pages before the trees: two of meta, and the empty list of free pages.
const FIRST_PAGES: u64 = 3;

/// The FNV-1a hash of 64 bits, which meta pages end with.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// The contents of the meta pages: known when all else is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    root: u64,
    pages: u64,
}

impl Meta {
    pub(crate) fn file_bytes(&self) -> u64 {
        self.pages * PAGE_BYTES as u64
    }

    fn page(&self, number: u64) -> Vec<u8> {
        let mut page = header(number, META, 0, 0).to_vec();
        for number in [MAGIC, VERSION, PAGE_BYTES as u32, 0] {
            page.extend(number.to_le_bytes());
        }
        // The bucket of all buckets and its sequence, the free list, the number of pages, the transaction.
        for number in [self.root, 0, 2, self.pages, number] {
            page.extend(number.to_le_bytes());
        }
        let sum = fnv1a(&page[HEADER_BYTES..]);
        page.extend(sum.to_le_bytes());
        page.resize(PAGE_BYTES, 0);
        page
    }

    /// Returns the pages before the trees.
    pub(crate) fn first_pages(&self) -> Vec<u8> {
        let mut pages = [self.page(0), self.page(1)].concat();
        pages.extend(header(2, FREE_LIST, 0, 0));
        pages.resize(FIRST_PAGES as usize * PAGE_BYTES, 0);
        pages
    }
}

fn header(number: u64, kind: u16, elements: u16, overflow: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&number.to_le_bytes());
    header[8..10].copy_from_slice(&kind.to_le_bytes());
    header[10..12].copy_from_slice(&elements.to_le_bytes());
    header[12..].copy_from_slice(&overflow.to_le_bytes());
    header
}

/// A page that is being filled.
#[derive(Debug, Default)]
struct PageBuilder {
    heads: Vec<[u8; ELEMENT_BYTES]>,
    /// Keys and values, one after the other, and the start of each element.
    data: Vec<u8>,
    starts: Vec<usize>,
    first_key: Vec<u8>,
}

impl PageBuilder {
    fn bytes(&self) -> usize {
        HEADER_BYTES + self.heads.len() * ELEMENT_BYTES + self.data.len()
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.heads.is_empty() || self.bytes() + ELEMENT_BYTES + bytes <= PAGE_BYTES
    }

    /// Adds an element. Its head's place of the data is filled in at the end.
    fn add(&mut self, head: [u8; ELEMENT_BYTES], key: &[u8], value: &[u8]) {
        if self.heads.is_empty() {
            self.first_key = key.to_vec();
        }
        self.heads.push(head);
        self.starts.push(self.data.len());
        self.data.extend_from_slice(key);
        self.data.extend_from_slice(value);
    }

    /// Appends the page to `out`, and returns how many pages it has.
    fn write(&self, number: u64, kind: u16, out: &mut Vec<u8>) -> u64 {
        let pages = self.bytes().div_ceil(PAGE_BYTES);
        let begin = out.len();
        out.extend(header(number, kind, self.heads.len() as u16, pages as u32 - 1));
        for (at, (head, start)) in self.heads.iter().zip(&self.starts).enumerate() {
            // Counted from the element's own head.
            let place = (self.heads.len() - at) * ELEMENT_BYTES + start;
            let mut head = *head;
            let field = if kind == LEAF { 4..8 } else { 0..4 };
            head[field].copy_from_slice(&(place as u32).to_le_bytes());
            out.extend(head);
        }
        out.extend(&self.data);
        out.resize(begin + pages * PAGE_BYTES, 0);
        pages as u64
    }
}

fn leaf_head(flags: u32, key: &[u8], value: &[u8]) -> [u8; ELEMENT_BYTES] {
    let mut head = [0; ELEMENT_BYTES];
    head[..4].copy_from_slice(&flags.to_le_bytes());
    head[8..12].copy_from_slice(&(key.len() as u32).to_le_bytes());
    head[12..].copy_from_slice(&(value.len() as u32).to_le_bytes());
    head
}

fn branch_head(key: &[u8], child: u64) -> [u8; ELEMENT_BYTES] {
    let mut head = [0; ELEMENT_BYTES];
    head[4..8].copy_from_slice(&(key.len() as u32).to_le_bytes());
    head[8..].copy_from_slice(&child.to_le_bytes());
    head
}

/// Writes a file, one bucket after the other.
#[derive(Debug)]
pub(crate) struct Writer {
    next_page: u64,
    /// The value of each bucket in the tree of all.
    buckets: Vec<(Vec<u8>, Vec<u8>)>,
    leaf: PageBuilder,
    /// The branches above it, from the lowest level up. A full branch is written, so a bucket of any length has a page a level in memory.
    branches: Vec<PageBuilder>,
    /// The page that was added to a branch last.
    last_page: u64,
}

impl Writer {
    pub(crate) fn new() -> Writer {
        Writer {
            next_page: FIRST_PAGES,
            buckets: Vec::new(),
            leaf: PageBuilder::default(),
            branches: Vec::new(),
            last_page: 0,
        }
    }

    /// Adds a pair to the bucket that [`end_bucket`](Self::end_bucket) ends, in the order of the keys. Appends the pages that are
    /// complete to `out`.
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8], out: &mut Vec<u8>) {
        self.add_element(0, key, value, out);
    }

    fn add_element(&mut self, flags: u32, key: &[u8], value: &[u8], out: &mut Vec<u8>) {
        if !self.leaf.has_room(key.len() + value.len()) {
            self.end_leaf(out);
        }
        self.leaf.add(leaf_head(flags, key, value), key, value);
    }

    fn end_leaf(&mut self, out: &mut Vec<u8>) {
        let leaf = std::mem::take(&mut self.leaf);
        self.end_page(&leaf, LEAF, 0, out);
    }

    fn end_branch(&mut self, level: usize, out: &mut Vec<u8>) {
        let branch = std::mem::take(&mut self.branches[level]);
        self.end_page(&branch, BRANCH, level + 1, out);
    }

    /// Writes a page, and adds it to the branch of a level.
    fn end_page(&mut self, page: &PageBuilder, kind: u16, above: usize, out: &mut Vec<u8>) {
        let number = self.next_page;
        self.next_page += page.write(number, kind, out);
        if self.branches.len() == above {
            self.branches.push(PageBuilder::default());
        }
        let key = &page.first_key[..];
        if !self.branches[above].has_room(key.len()) {
            self.end_branch(above, out);
        }
        self.branches[above].add(branch_head(key, number), key, &[]);
        self.last_page = number;
    }

    /// Writes the rest of a tree, and returns the number of its root.
    fn end_tree(&mut self, out: &mut Vec<u8>) -> u64 {
        self.end_leaf(out);
        let mut level = 0;
        // The only page of the highest level is the root.
        while level + 1 < self.branches.len() || self.branches[level].heads.len() > 1 {
            self.end_branch(level, out);
            level += 1;
        }
        self.branches.clear();
        self.last_page
    }

    /// Ends a bucket. Buckets are added in the order of their names.
    pub(crate) fn end_bucket(&mut self, name: &str, out: &mut Vec<u8>) {
        let is_empty = self.leaf.heads.is_empty() && self.branches.is_empty();
        // An empty bucket has no page: its root is 0, and a page without elements follows.
        let root = if is_empty { 0 } else { self.end_tree(out) };
        let mut value = [root.to_le_bytes(), [0; 8]].concat();
        if is_empty {
            value.extend(header(0, LEAF, 0, 0));
        }
        self.buckets.push((name.as_bytes().to_vec(), value));
    }

    /// Writes the tree of the buckets, and returns the contents of the meta pages.
    pub(crate) fn end(mut self, out: &mut Vec<u8>) -> Meta {
        for (name, value) in std::mem::take(&mut self.buckets) {
            self.add_element(IS_BUCKET, &name, &value, out);
        }
        let root = self.end_tree(out);
        Meta { root, pages: self.next_page }
    }
}

#[cfg(test)]
mod tests;
