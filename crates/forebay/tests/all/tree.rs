//! A B+-tree of 512-byte pages that name themselves, and the walk that looks a key up in it.
#![allow(dead_code, reason = "each test crate uses a part of it")]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay::{Block, Error, Step, Walk};

pub(crate) const PAGE: u64 = 512;
const HEADER: usize = 16;
const MAGIC: u32 = 0x7472_6565;

/// A tree as it lies in a file: every even key below `2 * keys` exists, with the value [`value_of`].
pub(crate) struct Tree {
    pub(crate) bytes: Vec<u8>,
    pub(crate) root: Range<u64>,
    pub(crate) keys: u64,
}

pub(crate) fn value_of(key: u64) -> u64 {
    key.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 1
}

/// Returns the expected result of a lookup of `key`.
pub(crate) fn expected(tree: &Tree, key: u64) -> Option<u64> {
    (key.is_multiple_of(2) && key < 2 * tree.keys).then(|| value_of(key))
}

impl Tree {
    /// Returns a tree of `depth` pages from root to leaf, each with `fan_out` (2 to 31) children or records.
    pub(crate) fn new(depth: u32, fan_out: u64) -> Tree {
        let keys = fan_out.pow(depth);
        let mut bytes = Vec::new();
        // First key and place of each page of the level below.
        let mut below: Vec<(u64, u64)> = (0..keys).map(|n| (2 * n, value_of(2 * n))).collect();
        for level in 0..depth {
            below = below
                .chunks(fan_out as usize)
                .map(|records| {
                    let position = bytes.len() as u64;
                    bytes.extend(page(level as u16, position, records));
                    (records[0].0, position)
                })
                .collect();
        }
        let root = below[0].1;
        Tree { bytes, root: root..root + PAGE, keys }
    }
}

/// Returns a page: magic, level, count, own position; then keys and positions (in leaves: values), 16 bytes
/// each.
fn page(level: u16, position: u64, records: &[(u64, u64)]) -> Vec<u8> {
    let mut page = Vec::with_capacity(PAGE as usize);
    page.extend(MAGIC.to_le_bytes());
    page.extend(level.to_le_bytes());
    page.extend((records.len() as u16).to_le_bytes());
    page.extend(position.to_le_bytes());
    for (key, value) in records {
        page.extend(key.to_le_bytes());
        page.extend(value.to_le_bytes());
    }
    page.resize(PAGE as usize, 0);
    page
}

/// The reason why a lookup fails.
#[derive(Debug)]
pub(crate) enum LookupError {
    Io(Error),
    /// The page at this place is not the one that its parent names.
    Corrupt(u64),
}

impl From<Error> for LookupError {
    fn from(error: Error) -> LookupError {
        LookupError::Io(error)
    }
}

/// Returns level and records of a page that names itself; `None` when it is not the one at `position`.
pub(crate) fn records(block: &[u8], position: u64) -> Option<(u16, Vec<(u64, u64)>)> {
    let word = |at: usize| Some(u64::from_le_bytes(block.get(at..at + 8)?.try_into().ok()?));
    let head = word(0)?;
    if head as u32 != MAGIC || word(8)? != position {
        return None;
    }
    let count = (head >> 48) as usize;
    let records = (0..count).map(|n| Some((word(HEADER + n * 16)?, word(HEADER + n * 16 + 8)?)));
    Some(((head >> 32) as u16, records.collect::<Option<_>>()?))
}

/// Looks one key up; the result is its value.
pub(crate) struct Lookup {
    pub(crate) key: u64,
}

impl Walk for Lookup {
    type Output = Option<u64>;
    type Error = LookupError;

    fn step(&mut self, block: &Block, at: Range<u64>) -> Step<Option<u64>, LookupError> {
        let Some((level, records)) = records(block, at.start) else {
            return Step::Fail(LookupError::Corrupt(at.start));
        };
        match level {
            0 => Step::Done(records.iter().find(|record| record.0 == self.key).map(|record| record.1)),
            _ => {
                let child = records.partition_point(|record| record.0 <= self.key).saturating_sub(1);
                Step::Read(records[child].1..records[child].1 + PAGE)
            }
        }
    }
}

/// Visits a whole tree with up to 16 concurrent reads and adds up its values; with `enough`, ends at the first leaf after this many
/// pages, while other reads are still in flight.
pub(crate) struct Sum {
    pub(crate) enough: u32,
    pub(crate) pages: u32,
    todo: Vec<u64>,
    under_way: u32,
    sum: u64,
}

impl Sum {
    pub(crate) fn new(enough: u32) -> Sum {
        Sum { enough, pages: 0, todo: Vec::new(), under_way: 1, sum: 0 }
    }
}

impl Walk for Sum {
    type Output = (u64, u32);
    type Error = LookupError;

    fn step(&mut self, block: &Block, at: Range<u64>) -> Step<(u64, u32), LookupError> {
        let Some((level, records)) = records(block, at.start) else {
            return Step::Fail(LookupError::Corrupt(at.start));
        };
        self.pages += 1;
        self.under_way -= 1;
        match level {
            0 => self.sum = records.iter().fold(self.sum, |sum, record| sum.wrapping_add(record.1)),
            _ => self.todo.extend(records.iter().map(|record| record.1)),
        }
        if self.pages >= self.enough || (self.under_way == 0 && self.todo.is_empty()) {
            return Step::Done((self.sum, self.pages));
        }
        if self.under_way > 0 {
            return Step::Wait;
        }
        let next = self.todo.len().saturating_sub(16);
        let next: Vec<u64> = self.todo.drain(next..).collect();
        self.under_way = next.len() as u32;
        Step::read_each(next.into_iter().map(|position| position..position + PAGE))
    }
}

/// Counts the states that hold one: made, and dropped.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<(AtomicU64, AtomicU64)>);

pub(crate) struct Entry(Ledger);

impl Ledger {
    pub(crate) fn entry(&self) -> Entry {
        self.0.0.fetch_add(1, Ordering::SeqCst);
        Entry(self.clone())
    }

    /// Returns (made, dropped).
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.0.0.load(Ordering::SeqCst), self.0.1.load(Ordering::SeqCst))
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.0.0.1.fetch_add(1, Ordering::SeqCst);
    }
}
