//! Entries of a memtable in the order of their keys, as they were at a record.

use std::ops::Bound;

use super::{BATCH_BYTES, Batch, Header, Inner, SearchKey};

/// A walk over the keys of a keyspace within a range.
pub(super) struct Walk<'m> {
    pub(super) inner: &'m Inner,
    pub(super) keyspace: u32,
    pub(super) range: (Bound<&'m [u8]>, Bound<&'m [u8]>),
    pub(super) lsn: u64,
    pub(super) batch: Batch,
    /// Bytes of the keys and values collected so far.
    pub(super) bytes: usize,
}

impl Walk<'_> {
    /// Collects at most `count` keys, ascending. Returns whether the walk has reached its end.
    pub(super) fn forwards(&mut self, count: usize) -> bool {
        let inner = self.inner;
        let (key, lsn) = self.low();
        let mut path = inner.seek(&SearchKey { keyspace: self.keyspace, key, lsn });
        while let Some(at) = inner.tree.next(&mut path) {
            let header = inner.text.header(at);
            if header.keyspace != self.keyspace || !self.is_below_high(&header) {
                return true;
            }
            if header.lsn > self.lsn || self.is_taken(&header) {
                continue;
            }
            if self.is_full(count) {
                return false;
            }
            self.take(&header);
        }
        true
    }

    /// Returns whether any version is newer than the record.
    pub(super) fn has_newer(&self) -> bool {
        let (key, lsn) = self.low();
        let mut path = self.inner.seek(&SearchKey { keyspace: self.keyspace, key, lsn });
        let entries = std::iter::from_fn(|| self.inner.tree.next(&mut path));
        let mut headers = entries.map(|at| self.inner.text.header(at));
        headers
            .by_ref()
            .take_while(|header| header.keyspace == self.keyspace && self.is_below_high(header))
            .any(|header| header.lsn > self.lsn)
    }

    /// Returns the first position within the range: the newest version of a key sorts first, and the next key follows its oldest
    /// possible version.
    fn low(&self) -> (&[u8], u64) {
        match self.range.0 {
            Bound::Unbounded => (&[][..], u64::MAX),
            Bound::Included(key) => (key, u64::MAX),
            Bound::Excluded(key) => (key, 0),
        }
    }

    /// Collects keys as `forwards` does, descending.
    pub(super) fn backwards(&mut self, count: usize) -> bool {
        let inner = self.inner;
        let mut path = match self.range.1 {
            Bound::Unbounded => match self.keyspace.checked_add(1) {
                Some(next) => inner.seek(&SearchKey { keyspace: next, key: &[], lsn: u64::MAX }),
                None => inner.tree.end(),
            },
            Bound::Included(key) => inner.seek(&SearchKey { keyspace: self.keyspace, key, lsn: 0 }),
            Bound::Excluded(key) => inner.seek(&SearchKey { keyspace: self.keyspace, key, lsn: u64::MAX }),
        };
        // The oldest version of a key is visited first. A version counts once the next one is too new or of another key.
        let mut newest: Option<Header> = None;
        loop {
            let next = inner.tree.previous(&mut path).map(|at| inner.text.header(at));
            let next = next.filter(|header| header.keyspace == self.keyspace && self.is_above_low(header));
            if let (Some(header), Some(found)) = (&newest, &next)
                && self.is_same(header, found)
            {
                if found.lsn <= self.lsn {
                    newest = next;
                }
                continue;
            }
            if let Some(header) = newest.take() {
                if self.is_full(count) {
                    return false;
                }
                self.take(&header);
            }
            let Some(found) = next else { return true };
            if found.lsn <= self.lsn {
                newest = Some(found);
            }
        }
    }

    fn is_full(&self, count: usize) -> bool {
        self.batch.found.len() >= count || self.bytes >= BATCH_BYTES
    }

    fn take(&mut self, header: &Header) {
        let found = self.inner.version(header, true);
        self.bytes += found.key().len() + found.value().len();
        self.batch.found.push(found);
    }

    /// Returns whether this is an older version of the key collected last.
    fn is_taken(&self, header: &Header) -> bool {
        let last = self.batch.found.last();
        last.is_some_and(|last| self.inner.text.compare_key(header, last.key()).is_eq())
    }

    fn is_same(&self, one: &Header, other: &Header) -> bool {
        let pages = &self.inner.text.pages;
        one.key_bytes == other.key_bytes && {
            let one = pages.parts(one.key_at, one.key_bytes).flatten();
            one.eq(pages.parts(other.key_at, other.key_bytes).flatten())
        }
    }

    fn is_below_high(&self, header: &Header) -> bool {
        let compare = |key| self.inner.text.compare_key(header, key);
        match self.range.1 {
            Bound::Unbounded => true,
            Bound::Included(key) => compare(key).is_le(),
            Bound::Excluded(key) => compare(key).is_lt(),
        }
    }

    fn is_above_low(&self, header: &Header) -> bool {
        let compare = |key| self.inner.text.compare_key(header, key);
        match self.range.0 {
            Bound::Unbounded => true,
            Bound::Included(key) => compare(key).is_ge(),
            Bound::Excluded(key) => compare(key).is_gt(),
        }
    }
}
