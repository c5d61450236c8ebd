//! Memtables: recent writes in memory, ordered by key, with every version.
//!
//! Records are copied into pages of I/O memory; an index lies in other such pages. All pages of a memtable
//! are freed as a whole.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use bytes::Bytes;
use forebay::Engine;

use crate::record::{self, Entry, Record};

mod pages;
mod text;
mod tree;
mod walk;

use pages::{PAGE, Pages};
use text::{DELETED, EXPIRES, HEADER_BYTES, Header, SearchKey, Text};
use tree::{Path, Tree};
use walk::Walk;

/// Bytes of values after which a batch ends.
const BATCH_BYTES: usize = 32 << 10;

/// Pages freed between two yields: some 50 us.
const TAKE_DOWN: usize = 256;

/// All entries written between two seals, of all keyspaces.
#[derive(Debug)]
pub(crate) struct Memtables {
    inner: RwLock<Inner>,
    bytes: AtomicU64,
    used: AtomicU64,
    /// A bound on the bytes that the records expected and not yet inserted will use.
    expected: AtomicU64,
    keyspace_count: AtomicU64,
    /// The sum of the longest keys of its keyspaces.
    longest_keys_bytes: AtomicU64,
    /// The newest record in the memtable, or expected.
    last_lsn: AtomicU64,
    /// Counts the bytes of memtables that only snapshots need: added to by `hold`, subtracted from when this memtable is dropped.
    held: Arc<AtomicU64>,
    is_held: AtomicBool,
}

#[derive(Debug)]
struct Inner {
    text: Text,
    /// Places of the entries, ordered by keyspace, by key, and from the newest version to the oldest.
    tree: Tree,
    /// Keyspaces with entries here, ascending, each with a count of its changes.
    keyspaces: Vec<(u32, Tally)>,
    longest_keys_bytes: u64,
    entries: usize,
}

/// Counts of the changes of a keyspace: of each key the newest, as a flush writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) deletions: u64,
    pub(crate) puts: u64,
    /// The bytes of the keys and values that were put.
    pub(crate) put_bytes: u64,
    /// The bytes of the longest key of all changes.
    pub(crate) longest_key: usize,
}

impl Tally {
    /// Counts a change, with the bytes of its key and value.
    fn add(&mut self, is_deletion: bool, bytes: usize) {
        if is_deletion {
            self.deletions += 1;
        } else {
            self.puts += 1;
            self.put_bytes += bytes as u64;
        }
    }

    /// Takes back the count of a change that a newer one replaces.
    fn remove(&mut self, is_deletion: bool, bytes: usize) {
        if is_deletion {
            self.deletions -= 1;
        } else {
            self.puts -= 1;
            self.put_bytes -= bytes as u64;
        }
    }
}

/// A version of a key, copied from a memtable.
#[derive(Clone, Debug)]
pub(crate) struct KeyVersion {
    pub(crate) lsn: u64,
    pub(crate) deleted: bool,
    pub(crate) expires_s: Option<u64>,
    /// The key, if requested, and the value.
    copy: Record,
    key_bytes: usize,
}

/// Versions found in one call.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) found: Vec<KeyVersion>,
    /// The walk has reached its end.
    pub(crate) is_last: bool,
}

impl KeyVersion {
    pub(crate) fn key(&self) -> &[u8] {
        self.copy.get(..self.key_bytes).unwrap_or_default()
    }

    pub(crate) fn value(&self) -> &[u8] {
        self.copy.get(self.key_bytes..).unwrap_or_default()
    }

    /// Returns the value, and the bytes of memory that it keeps allocated.
    pub(crate) fn to_value(&self) -> (Bytes, u64) {
        let bytes = self.copy.bytes();
        (bytes.slice(self.key_bytes.min(bytes.len())..), self.copy.memory_bytes())
    }
}

/// Returns the most bytes of memory that a record will be counted with.
pub(crate) fn cost(record_bytes: usize, entries: usize) -> u64 {
    // The part of an entry's header that the record lacks, and its place, counted twice as nodes may be half
    // full.
    let around = HEADER_BYTES + 8 + 7 + 3 * 8 - record::ENTRY_BYTES as u64;
    pages::cost(record_bytes as u64 + entries as u64 * around)
}

/// Most bytes that a memtable has allocated but does not use: the rest of two pages.
pub(crate) const SLACK_BYTES: u64 = 2 * (PAGE as u64 + 64);

impl Inner {
    fn seek(&self, sought: &SearchKey<'_>) -> Path {
        self.tree.seek(|at| self.text.compare(at, sought))
    }

    /// Adds an entry of a record.
    fn insert(&mut self, record: &[u8], entry: &Entry, lsn: u64) {
        let (key, value) = (record::slice(record, &entry.key), record::slice(record, &entry.value));
        let mut flags = if entry.deleted { DELETED } else { 0 };
        flags |= if entry.expires_s.is_some() { EXPIRES } else { 0 };
        let what = flags | (key.len() as u64) << 32 | u64::from(entry.keyspace);
        let words = [lsn, what, value.len() as u64, entry.expires_s.unwrap_or(0)];
        let count = 3 + usize::from(entry.expires_s.is_some());
        let place = self.text.push(&words[..count], key, value);
        let (text, sought) = (&self.text, SearchKey { keyspace: entry.keyspace, key, lsn });
        let next = self.tree.insert(place, |at| text.compare(at, &sought));
        // The versions of a key are next to each other, the newest first.
        let next = next.map(|at| text.header(at));
        let before = next.filter(|header| text.compare_place(header, &sought).is_eq());
        self.entries += 1;
        let found = self.keyspaces.binary_search_by_key(&entry.keyspace, |(keyspace, _)| *keyspace);
        let index = found.unwrap_or_else(|index| {
            self.keyspaces.insert(index, (entry.keyspace, Tally::default()));
            index
        });
        let tally = &mut self.keyspaces[index].1;
        if let Some(before) = before {
            tally.remove(before.flags & DELETED != 0, before.key_bytes + before.value_bytes);
        }
        tally.add(entry.deleted, key.len() + value.len());
        let longer = key.len().saturating_sub(tally.longest_key);
        tally.longest_key += longer;
        self.longest_keys_bytes += longer as u64;
    }

    /// Returns a copy of an entry, with its key if that is wanted.
    fn version(&self, header: &Header, with_key: bool) -> KeyVersion {
        let pages = &self.text.pages;
        let key_bytes = if with_key { header.key_bytes } else { 0 };
        let (begin, len) =
            (header.key_at + (header.key_bytes - key_bytes) as u64, key_bytes + header.value_bytes);
        let copy = Record::new(len, |mut bytes| {
            for part in pages.parts(begin, len) {
                let (now, later) = bytes.split_at_mut(part.len());
                now.copy_from_slice(part);
                bytes = later;
            }
        });
        KeyVersion {
            lsn: header.lsn,
            deleted: header.flags & DELETED != 0,
            // The expiry is the word before the key.
            expires_s: (header.flags & EXPIRES != 0).then(|| pages.word(header.key_at - 8)),
            copy,
            key_bytes,
        }
    }

    fn used_bytes(&self) -> u64 {
        pages::cost(self.text.end + self.tree.used_bytes())
    }

    fn memory_bytes(&self) -> u64 {
        self.text.pages.memory_bytes() + self.tree.memory_bytes()
    }
}

impl Memtables {
    /// Creates an empty memtable. `held` counts its bytes while only snapshots need it.
    pub(crate) fn new(engine: &Engine, held: Arc<AtomicU64>) -> Memtables {
        let inner = Inner {
            text: Text { pages: Pages::new(engine), end: 0 },
            tree: Tree::new(engine),
            keyspaces: Vec::new(),
            longest_keys_bytes: 0,
            entries: 0,
        };
        Memtables {
            inner: RwLock::new(inner),
            bytes: AtomicU64::new(0),
            used: AtomicU64::new(0),
            expected: AtomicU64::new(0),
            keyspace_count: AtomicU64::new(0),
            longest_keys_bytes: AtomicU64::new(0),
            last_lsn: AtomicU64::new(0),
            held,
            is_held: AtomicBool::new(false),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a record of this [`cost`] that is in the log's queue and will be inserted.
    pub(crate) fn expect(&self, cost: u64, lsn: u64) {
        debug_assert!(lsn > self.last_lsn(), "sequence numbers rise");
        self.expected.fetch_add(cost, Ordering::Relaxed);
        self.last_lsn.store(lsn, Ordering::Release);
    }

    /// Adds a record in one step: expects it and inserts it.
    pub(crate) fn add(&self, record: &[u8], places: &[u32], lsn: u64) {
        self.expect(cost(record.len(), places.len()), lsn);
        self.insert(record, places, lsn);
    }

    /// Adds the entries of an expected record, which are at these places, in one step. Records are added in the order of their
    /// numbers. If a record changes a key several times, the last change counts.
    pub(crate) fn insert(&self, record: &[u8], places: &[u32], lsn: u64) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        for &at in places {
            if let Some((entry, _)) = record::entry_at(record, at as usize) {
                inner.insert(record, &entry, lsn);
            }
        }
        debug_assert!(lsn <= self.last_lsn(), "a record is expected before it is inserted");
        debug_assert!(!self.is_held.load(Ordering::Relaxed), "a memtable that was flushed takes no more");
        debug_assert!(inner.used_bytes() <= inner.memory_bytes(), "pages reach behind what is used");
        // Under the lock, so that every visible entry is counted.
        self.bytes.store(inner.memory_bytes(), Ordering::Relaxed);
        self.used.store(inner.used_bytes(), Ordering::Relaxed);
        self.keyspace_count.store(inner.keyspaces.len() as u64, Ordering::Relaxed);
        self.longest_keys_bytes.store(inner.longest_keys_bytes, Ordering::Relaxed);
        // After `used`, so that their sum is never too little.
        self.expected.fetch_sub(cost(record.len(), places.len()), Ordering::Release);
    }

    /// Returns the newest version of a key that is not newer than `lsn`, without its key. Copies the value.
    pub(crate) fn get(&self, keyspace: u32, key: &[u8], lsn: u64) -> Option<KeyVersion> {
        // Without a record there is nothing to lock, which costs all readers more than the rest of a get.
        if self.last_lsn() == 0 {
            return None;
        }
        let inner = self.read();
        let mut path = inner.seek(&SearchKey { keyspace, key, lsn });
        let header = inner.text.header(inner.tree.next(&mut path)?);
        let is_it = header.keyspace == keyspace && inner.text.compare_key(&header, key).is_eq();
        is_it.then(|| inner.version(&header, false))
    }

    /// Returns the record of the newest version of a key.
    pub(crate) fn newest_lsn(&self, keyspace: u32, key: &[u8]) -> Option<u64> {
        let inner = self.read();
        let mut path = inner.seek(&SearchKey { keyspace, key, lsn: u64::MAX });
        let header = inner.text.header(inner.tree.next(&mut path)?);
        let is_it = header.keyspace == keyspace && inner.text.compare_key(&header, key).is_eq();
        is_it.then_some(header.lsn)
    }

    /// Returns whether a key within a range has a version newer than `lsn`.
    pub(crate) fn has_newer(&self, keyspace: u32, range: (Bound<&[u8]>, Bound<&[u8]>), lsn: u64) -> bool {
        if self.last_lsn() <= lsn {
            return false;
        }
        let inner = self.read();
        Walk { inner: &inner, keyspace, range, lsn, batch: Batch::default(), bytes: 0 }.has_newer()
    }

    /// Returns up to `count` keys from a bound on, in order, each with its newest version not newer than
    /// `lsn`. Keys without such a version are left out. Returns fewer keys where their values are long.
    /// Copies them.
    pub(crate) fn batch(
        &self,
        keyspace: u32,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        backwards: bool,
        lsn: u64,
        count: usize,
    ) -> Batch {
        let inner = self.read();
        let mut walk = Walk { inner: &inner, keyspace, range, lsn, batch: Batch::default(), bytes: 0 };
        walk.batch.is_last = if backwards { walk.backwards(count) } else { walk.forwards(count) };
        walk.batch
    }

    /// Returns the keyspaces that have entries here.
    pub(crate) fn keyspaces(&self) -> Vec<u32> {
        self.read().keyspaces.iter().map(|(keyspace, _)| *keyspace).collect()
    }

    /// Returns the number of keyspaces that have entries here.
    pub(crate) fn keyspace_count(&self) -> u64 {
        self.keyspace_count.load(Ordering::Relaxed)
    }

    /// Returns the sum of the longest keys of these keyspaces. The first and the last keys of their tables have at most twice as many
    /// bytes.
    pub(crate) fn longest_keys_bytes(&self) -> u64 {
        self.longest_keys_bytes.load(Ordering::Relaxed)
    }

    /// Returns the keyspaces that have entries here, each with a count of its changes.
    pub(crate) fn tallies(&self) -> Vec<(u32, Tally)> {
        self.read().keyspaces.clone()
    }

    /// Returns the number of entries; every version of a key counts.
    pub(crate) fn entries(&self) -> usize {
        self.read().entries
    }

    /// Returns the bytes of memory allocated.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes used, without the free rest of the last pages, and those of expected records;
    /// [`cost`] bounds the increase by a record.
    pub(crate) fn used(&self) -> u64 {
        let expected = self.expected.load(Ordering::Acquire);
        expected + self.used.load(Ordering::Relaxed)
    }

    /// Returns the number of the newest record in the memtable, or expected; 0 for an empty memtable.
    pub(crate) fn last_lsn(&self) -> u64 {
        self.last_lsn.load(Ordering::Acquire)
    }

    /// Frees the memtable a few pages at a time. Freeing it in one step would block the shard for milliseconds.
    pub(crate) async fn take_down(mut self) {
        loop {
            let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
            if !(inner.text.pages.free(TAKE_DOWN) || inner.tree.free(TAKE_DOWN)) {
                return;
            }
            forebay::shard::yield_now().await;
        }
    }

    /// Marks the memtable as written to tables: only snapshots and reads in progress keep it now.
    pub(crate) fn hold(&self) {
        if !self.is_held.swap(true, Ordering::AcqRel) {
            self.held.fetch_add(self.bytes(), Ordering::Relaxed);
        }
    }
}

impl Drop for Memtables {
    fn drop(&mut self) {
        if self.is_held.load(Ordering::Acquire) {
            let before = self.held.fetch_sub(self.bytes(), Ordering::Relaxed);
            debug_assert!(before >= self.bytes(), "a memtable that snapshots keep is counted until it goes");
        }
    }
}

#[cfg(test)]
mod tests;
