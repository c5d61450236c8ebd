//! The entries of a memtable, as consecutive bytes.

use std::cmp::Ordering as Order;

use super::pages::Pages;

/// Bytes of the words before an entry's key: its record's number; its keyspace, key length and flags; its
/// value length. If the entry expires, its expiry follows as a fourth word.
pub(super) const HEADER_BYTES: u64 = 3 * 8;
pub(super) const DELETED: u64 = 1 << 48;
pub(super) const EXPIRES: u64 = 1 << 49;

/// Consecutive entries.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) pages: Pages,
    pub(super) end: u64,
}

/// An entry's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) lsn: u64,
    pub(super) keyspace: u32,
    pub(super) flags: u64,
    pub(super) key_at: u64,
    pub(super) key_bytes: usize,
    pub(super) value_bytes: usize,
}

/// A search target: a key of a keyspace, and the newest version up to a record.
#[derive(Clone, Copy)]
pub(super) struct SearchKey<'k> {
    pub(super) keyspace: u32,
    pub(super) key: &'k [u8],
    pub(super) lsn: u64,
}

impl Text {
    #[inline]
    pub(super) fn header(&self, at: u64) -> Header {
        let words = |number: u64| self.pages.word(at + number * 8);
        let (lsn, what, lengths) = (words(0), words(1), words(2));
        let more = u64::from(what & EXPIRES != 0);
        Header {
            lsn,
            keyspace: what as u32,
            flags: what,
            key_at: at + HEADER_BYTES + more * 8,
            key_bytes: usize::from((what >> 32) as u16),
            value_bytes: lengths as u32 as usize,
        }
    }

    #[inline]
    pub(super) fn compare(&self, at: u64, sought: &SearchKey<'_>) -> Order {
        let header = self.header(at);
        // The newest version sorts first.
        self.compare_place(&header, sought).then_with(|| sought.lsn.cmp(&header.lsn))
    }

    /// Orders an entry's keyspace and key against those of the target.
    #[inline]
    pub(super) fn compare_place(&self, header: &Header, sought: &SearchKey<'_>) -> Order {
        header.keyspace.cmp(&sought.keyspace).then_with(|| self.compare_key(header, sought.key))
    }

    pub(super) fn compare_key(&self, header: &Header, key: &[u8]) -> Order {
        self.pages.compare(header.key_at, header.key_bytes, key)
    }

    /// Appends an entry and returns its place.
    pub(super) fn push(&mut self, words: &[u64], key: &[u8], value: &[u8]) -> u64 {
        let place = self.end;
        debug_assert!(place.is_multiple_of(8), "an entry begins with whole words");
        let begin = place + words.len() as u64 * 8;
        self.end = (begin + (key.len() + value.len()) as u64).next_multiple_of(8);
        self.pages.reach(self.end);
        for (number, word) in (0..).zip(words) {
            self.pages.write(place + number * 8, &word.to_le_bytes());
        }
        self.pages.write(begin, key);
        self.pages.write(begin + key.len() as u64, value);
        place
    }
}
