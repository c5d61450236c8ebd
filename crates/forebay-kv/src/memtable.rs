//! What was written lately: in memory, ordered by key, with every version.
//!
//! Records are copied into pages of I/O memory, with an index in other such pages; all of it comes and goes as
//! a whole.

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
use text::{DELETED, EXPIRES, HEADER_BYTES, Header, Sought, Text};
use tree::{Path, Tree};
use walk::Walk;

/// Bytes of values after which no more are taken out at once.
const BATCH_BYTES: usize = 32 << 10;

/// Pages that are freed in one go: some 50 us.
const TAKE_DOWN: usize = 256;

/// Everything that was written between two seals, of all keyspaces.
#[derive(Debug)]
pub(crate) struct Memtables {
    inner: RwLock<Inner>,
    bytes: AtomicU64,
    used: AtomicU64,
    /// The newest record in it.
    last_lsn: AtomicU64,
    /// Bytes are added here when it lives on for snapshots only, and subtracted when it goes.
    held: Arc<AtomicU64>,
    is_held: AtomicBool,
}

#[derive(Debug)]
struct Inner {
    text: Text,
    /// Their places by keyspace, key, and from the newest version to the oldest.
    tree: Tree,
    /// What it has anything of, ascending.
    keyspaces: Vec<u32>,
    entries: usize,
}

/// A version that was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) lsn: u64,
    pub(crate) deleted: bool,
    pub(crate) expires_s: Option<u64>,
    /// The key, if it was asked for, and the value.
    copy: Record,
    key_bytes: usize,
}

/// Versions that were found at once.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) found: Vec<Found>,
    /// There are no more.
    pub(crate) is_last: bool,
}

impl Found {
    pub(crate) fn key(&self) -> &[u8] {
        self.copy.get(..self.key_bytes).unwrap_or_default()
    }

    pub(crate) fn value(&self) -> &[u8] {
        self.copy.get(self.key_bytes..).unwrap_or_default()
    }

    /// The value, and the bytes of memory that it keeps.
    pub(crate) fn to_value(&self) -> (Bytes, u64) {
        let bytes = self.copy.bytes();
        (bytes.slice(self.key_bytes.min(bytes.len())..), self.copy.memory_bytes())
    }
}

/// The bytes of memory that a record will be counted with, at most.
pub(crate) fn cost(record_bytes: usize, entries: usize) -> u64 {
    // What comes before a key beyond what stands in the record, and its place, twice as nodes may be half full.
    let around = HEADER_BYTES + 8 + 7 + 3 * 8 - record::ENTRY_BYTES as u64;
    pages::cost(record_bytes as u64 + entries as u64 * around)
}

/// Bytes that a memtable may have beyond what is used of it: the rest of two pages.
pub(crate) const SLACK_BYTES: u64 = 2 * (PAGE as u64 + 64);

impl Inner {
    fn seek(&self, sought: &Sought<'_>) -> Path {
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
        let (text, sought) = (&self.text, Sought { keyspace: entry.keyspace, key, lsn });
        self.tree.insert(place, |at| text.compare(at, &sought));
        self.entries += 1;
        if let Err(index) = self.keyspaces.binary_search(&entry.keyspace) {
            self.keyspaces.insert(index, entry.keyspace);
        }
    }

    /// A copy of an entry.
    fn found(&self, header: &Header, with_key: bool) -> Found {
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
        Found {
            lsn: header.lsn,
            deleted: header.flags & DELETED != 0,
            // It stands right before the key.
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
    /// An empty one; `held` is told of its bytes while only snapshots need it.
    pub(crate) fn new(engine: &Engine, held: Arc<AtomicU64>) -> Memtables {
        let inner = Inner {
            text: Text { pages: Pages::new(engine), end: 0 },
            tree: Tree::new(engine),
            keyspaces: Vec::new(),
            entries: 0,
        };
        Memtables {
            inner: RwLock::new(inner),
            bytes: AtomicU64::new(0),
            used: AtomicU64::new(0),
            last_lsn: AtomicU64::new(0),
            held,
            is_held: AtomicBool::new(false),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the entries of a record, which are at these places, all at once. Records come in the order of
    /// their numbers. Of several changes of one key the last one counts.
    pub(crate) fn insert(&self, record: &[u8], places: &[u32], lsn: u64) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        for &at in places {
            if let Some((entry, _)) = record::entry_at(record, at as usize) {
                inner.insert(record, &entry, lsn);
            }
        }
        // Under the lock, so that what is seen is counted.
        self.bytes.store(inner.memory_bytes(), Ordering::Relaxed);
        self.used.store(inner.used_bytes(), Ordering::Relaxed);
        self.last_lsn.store(lsn, Ordering::Release);
    }

    /// The newest version of a key that is not newer than `lsn`, without its key. Copies the value.
    pub(crate) fn get(&self, keyspace: u32, key: &[u8], lsn: u64) -> Option<Found> {
        let inner = self.read();
        let mut path = inner.seek(&Sought { keyspace, key, lsn });
        let header = inner.text.header(inner.tree.next(&mut path)?);
        let is_it = header.keyspace == keyspace && inner.text.compare_key(&header, key).is_eq();
        is_it.then(|| inner.found(&header, false))
    }

    /// Up to `count` keys from a bound on, in order, each with its newest version not newer than `lsn`; keys
    /// without one are left out. Fewer where their values are long. Copies them.
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
        walk.batch.is_last = match backwards {
            false => walk.forwards(count),
            true => walk.backwards(count),
        };
        walk.batch
    }

    /// The keyspaces that it has anything of.
    pub(crate) fn keyspaces(&self) -> Vec<u32> {
        self.read().keyspaces.clone()
    }

    /// Entries that it has, all versions of a key counted.
    pub(crate) fn entries(&self) -> usize {
        self.read().entries
    }

    /// Bytes of memory that it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The same without the rest of what was begun last: what [`cost`] adds to.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The newest record in it; 0 when it is empty.
    pub(crate) fn last_lsn(&self) -> u64 {
        self.last_lsn.load(Ordering::Acquire)
    }

    /// Frees it a little at a time: all at once takes milliseconds in which a shard does nothing else.
    pub(crate) async fn take_down(mut self) {
        loop {
            let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
            if !(inner.text.pages.free(TAKE_DOWN) || inner.tree.free(TAKE_DOWN)) {
                return;
            }
            forebay::shard::yield_now().await;
        }
    }

    /// It is in tables now, and lives on only as long as somebody reads in it.
    pub(crate) fn hold(&self) {
        if !self.is_held.swap(true, Ordering::AcqRel) {
            self.held.fetch_add(self.bytes(), Ordering::Relaxed);
        }
    }
}

impl Drop for Memtables {
    fn drop(&mut self) {
        if self.is_held.load(Ordering::Acquire) {
            self.held.fetch_sub(self.bytes(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
