//! Building leaves and inner nodes.

use super::read::{BLOB, DELETED, EXPIRES, FAR, Node, PACKED};
use super::{BlobAt, Child, HEADER_BYTES, Identity, NODE_UNITS_MAX, SLOT_BYTES, UNIT, seal};

/// The records of the node under construction, in order. Its memory is used again for the next node.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    /// Keys and values, one after the other.
    bytes: Vec<u8>,
    records: Vec<Pending>,
    /// Length of the prefix that all keys share, in bytes.
    prefix: usize,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    key: u32,
    value: u32,
    end: u32,
    tagged: bool,
}

/// The content of a record, stored behind its key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content<'a> {
    Child(Child),
    Deleted,
    Inline { bytes: &'a [u8], expires_s: Option<u64> },
    Blob { at: BlobAt, expires_s: Option<u64> },
}

impl Content<'_> {
    /// Returns its length in a node, in bytes.
    pub(crate) fn len(&self) -> usize {
        let expiry = |expires_s: &Option<u64>| if expires_s.is_some() { 8 } else { 0 };
        match self {
            Content::Child(_) => 8,
            Content::Deleted => 1,
            Content::Inline { bytes, expires_s: None } => bytes.len(),
            Content::Inline { bytes, expires_s } => 1 + expiry(expires_s) + bytes.len(),
            Content::Blob { at, expires_s } => {
                let words = 4 + usize::from(at.is_packed()) + usize::from(at.is_far());
                1 + expiry(expires_s) + 4 * words
            }
        }
    }
}

impl Builder {
    pub(crate) fn count(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the key added last, or an empty slice for an empty node.
    pub(crate) fn last_key(&self) -> &[u8] {
        self.records.last().map_or(&[], |last| self.key(last))
    }

    /// Returns the key added first, or an empty slice for an empty node.
    pub(crate) fn first_key(&self) -> &[u8] {
        self.records.first().map_or(&[], |first| self.key(first))
    }

    /// Returns the length of the node as it is, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len_of(self.records.len(), self.prefix, self.bytes.len())
    }

    /// Returns the length of the node with one more record, in bytes.
    pub(crate) fn len_with(&self, key: &[u8], content_len: usize) -> usize {
        let prefix = if self.is_empty() { key.len() } else { common(&self.first_key()[..self.prefix], key) };
        self.len_of(self.records.len() + 1, prefix, self.bytes.len() + key.len() + content_len)
    }

    /// Returns the bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.records.capacity() * size_of::<Pending>()
    }

    /// Adds a record whose key is above those before. The caller checks first that it fits.
    pub(crate) fn push(&mut self, key: &[u8], content: Content<'_>) {
        self.prefix = if self.is_empty() { key.len() } else { common(&self.first_key()[..self.prefix], key) };
        debug_assert!(self.is_empty() || self.last_key() < key, "a node's keys are sorted");
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let value = self.bytes.len();
        let tagged = !matches!(content, Content::Child(_) | Content::Inline { expires_s: None, .. });
        match content {
            Content::Child(child) => self.bytes.extend_from_slice(&child.encode().to_le_bytes()),
            Content::Deleted => self.bytes.push(DELETED),
            Content::Inline { bytes, expires_s } => {
                self.tag(0, expires_s, tagged);
                self.bytes.extend_from_slice(bytes);
            }
            Content::Blob { at, expires_s } => {
                let packed = if at.is_packed() { PACKED } else { 0 };
                let far = if at.is_far() { FAR } else { 0 };
                self.tag(BLOB | packed | far, expires_s, tagged);
                self.bytes.extend_from_slice(&at.offset.to_le_bytes());
                self.bytes.extend_from_slice(&at.len.to_le_bytes());
                self.bytes.extend_from_slice(&at.crc.to_le_bytes());
                if at.is_packed() {
                    self.bytes.extend_from_slice(&at.value_len.to_le_bytes());
                }
                if at.is_far() {
                    self.bytes.extend_from_slice(&at.file.to_le_bytes());
                }
            }
        }
        // The records of a node have some 64 KiB at most.
        let (key, value, end) = (begin as u32, value as u32, self.bytes.len() as u32);
        self.records.push(Pending { key, value, end, tagged });
    }

    /// Writes the node into `node`, which is zeroed and has as many units as [`len`](Self::len) needs, and starts the next node.
    /// Returns `false` and writes nothing if the node does not fit.
    pub(crate) fn finish(&mut self, node: &mut [u8], identity: Identity) -> bool {
        self.finish_first(self.records.len(), node, identity)
    }

    /// As [`finish`](Self::finish), with the first `count` records; the others start the next node.
    pub(crate) fn finish_first(&mut self, count: usize, node: &mut [u8], identity: Identity) -> bool {
        let most = usize::from(NODE_UNITS_MAX) * UNIT;
        let fits = self.len_of_first(count) <= node.len() && node.len() <= most;
        if fits && count > 0 {
            self.lay_out(count, node);
            seal(node, identity);
        }
        self.remove_first(count);
        fits
    }

    /// Writes the first `count` records as a node without an identity into `node`, which is zeroed and has at
    /// least [`len_of_first`](Self::len_of_first) bytes. The records stay.
    pub(crate) fn lay_out(&self, count: usize, node: &mut [u8]) {
        let records = self.records.get(..count).unwrap_or(&self.records);
        let (count, prefix) = (records.len(), self.prefix_of_first(records.len()));
        let mut slot = HEADER_BYTES;
        let mut at = HEADER_BYTES + SLOT_BYTES * count;
        node[at..at + prefix].copy_from_slice(&self.first_key()[..prefix]);
        at += prefix;
        for record in records {
            let rest = &self.bytes[record.key as usize + prefix..record.end as usize];
            let suffix = (record.value - record.key) as usize - prefix;
            node[slot..slot + 2].copy_from_slice(&(at as u16).to_le_bytes());
            let len = suffix as u16 | u16::from(record.tagged) << 15;
            node[slot + 2..slot + 4].copy_from_slice(&len.to_le_bytes());
            node[at..at + rest.len()].copy_from_slice(rest);
            slot += SLOT_BYTES;
            at += rest.len();
        }
        debug_assert_eq!(at, self.len_of_first(count), "a node takes the room that was counted for it");
        node[14..16].copy_from_slice(&(count as u16).to_le_bytes());
        node[16..18].copy_from_slice(&(at as u16).to_le_bytes());
        debug_assert!(
            count == 0 || self.is_read_back(records, node),
            "a node is read back as it was written"
        );
    }

    /// Returns whether a node has exactly these records.
    fn is_read_back(&self, records: &[Pending], node: &[u8]) -> bool {
        let Ok(found) = Node::of(node) else { return false };
        let (mut key, mut expected) = (Vec::new(), records.iter());
        let mut is_same = |index: usize| {
            let record = expected.next()?;
            found.key(index, &mut key).ok()?;
            let value = self.bytes.get(record.value as usize..record.end as usize)?;
            (key == self.key(record) && found.value(index).ok()? == (value, record.tagged)).then_some(())
        };
        found.count() == records.len()
            && found.check_records().is_ok()
            && (0..records.len()).all(|index| is_same(index).is_some())
    }

    /// Returns the length of a node of the first `count` records, in bytes.
    pub(crate) fn len_of_first(&self, count: usize) -> usize {
        let end = count.checked_sub(1).and_then(|last| self.records.get(last)).map_or(0, |last| last.end);
        self.len_of(count, self.prefix_of_first(count), end as usize)
    }

    /// Returns how many of the first records fit into a node of `bytes_max` bytes, at least 1.
    pub(crate) fn count_within(&self, bytes_max: usize) -> usize {
        let (mut low, mut high) = (1, self.records.len());
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.len_of_first(middle) <= bytes_max { low = middle } else { high = middle - 1 }
        }
        low
    }

    /// Removes the first `count` records; the others start the next node.
    pub(crate) fn remove_first(&mut self, count: usize) {
        let count = count.min(self.records.len());
        let begin = self.records.get(count).map_or(self.bytes.len() as u32, |first| first.key);
        self.records.drain(..count);
        self.bytes.drain(..begin as usize);
        for record in &mut self.records {
            *record = Pending {
                key: record.key - begin,
                value: record.value - begin,
                end: record.end - begin,
                tagged: record.tagged,
            };
        }
        self.prefix = self.prefix_of_first(self.records.len());
    }

    /// Returns the key of a record, or an empty slice if no such record exists.
    pub(crate) fn key_at(&self, index: usize) -> &[u8] {
        self.records.get(index).map_or(&[], |record| self.key(record))
    }

    /// Returns the length of the prefix that the first `count` keys share: keys are sorted, so the first and
    /// the last of them share no more than all do.
    fn prefix_of_first(&self, count: usize) -> usize {
        count.checked_sub(1).map_or(0, |last| common(self.first_key(), self.key_at(last)))
    }

    fn tag(&mut self, bits: u8, expires_s: Option<u64>, tagged: bool) {
        if tagged {
            self.bytes.push(bits | if expires_s.is_some() { EXPIRES } else { 0 });
        }
        if let Some(time) = expires_s {
            self.bytes.extend_from_slice(&time.to_le_bytes());
        }
    }

    fn key(&self, record: &Pending) -> &[u8] {
        self.bytes.get(record.key as usize..record.value as usize).unwrap_or_default()
    }

    fn len_of(&self, count: usize, prefix: usize, bytes: usize) -> usize {
        HEADER_BYTES + SLOT_BYTES * count + prefix + bytes - prefix * count
    }
}

/// Returns the length of the common prefix of two strings, in bytes.
pub(crate) fn common(a: &[u8], b: &[u8]) -> usize {
    let mut at = 0;
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        if a != b {
            break;
        }
        at += 8;
    }
    at + a[at..].iter().zip(&b[at..]).take_while(|(a, b)| a == b).count()
}

/// Returns the shortest key that is above `below` and not above `key`, which is above `below`.
pub(crate) fn separator<'a>(below: &[u8], key: &'a [u8]) -> &'a [u8] {
    &key[..(common(below, key) + 1).min(key.len())]
}
