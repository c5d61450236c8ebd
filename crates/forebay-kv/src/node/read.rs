//! Reading leaves and inner nodes.

use std::cmp::Ordering;
use std::ops::Range;

use super::{BlobAt, Child, HEADER_BYTES, KEY_BYTES_MAX, SLOT_BYTES, VALUE_BYTES_MAX, Wrong};

/// Bits of a tagged value's first byte.
pub(super) const DELETED: u8 = 1;
pub(super) const BLOB: u8 = 2;
pub(super) const EXPIRES: u8 = 4;
pub(super) const PACKED: u8 = 8;
pub(super) const FAR: u8 = 16;

const RECORD: Wrong = "a record's position is invalid";
const TAG: Wrong = "a record's tag is invalid";

/// A leaf or an inner node: a view of its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'a> {
    bytes: &'a [u8],
    count: usize,
    /// Offset of the first record.
    first: usize,
    end: usize,
}

/// A leaf's entry for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// From this second since 1970 on the value counts as deleted.
    pub(crate) expires_s: Option<u64>,
    pub(crate) payload: Payload,
}

/// The payload of an [`Entry`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    Deleted,
    /// The value's byte range in the node.
    Inline(Range<usize>),
    Blob(BlobAt),
}

/// The byte ranges of a record's suffix and value, and whether the value is tagged.
struct Record {
    suffix: Range<usize>,
    value: Range<usize>,
    tagged: bool,
}

impl<'a> Node<'a> {
    /// Returns the node read from the device if it is the right one and complete.
    #[cfg(test)]
    pub(crate) fn checked(bytes: &'a [u8], identity: super::Identity) -> Result<Node<'a>, Wrong> {
        super::check(bytes, identity)?;
        Node::of(bytes)
    }

    /// Returns a view of a node whose bytes were checked before.
    #[inline]
    pub(crate) fn of(bytes: &'a [u8]) -> Result<Node<'a>, Wrong> {
        const WRONG: Wrong = "the node's header is invalid";
        if bytes.len() < HEADER_BYTES + SLOT_BYTES {
            return Err(WRONG);
        }
        let (count, end) = (usize::from(u16_at(bytes, 14)), usize::from(u16_at(bytes, 16)));
        let first = usize::from(u16_at(bytes, HEADER_BYTES));
        if count == 0 || end > bytes.len() || first > end || first < HEADER_BYTES + SLOT_BYTES * count {
            return Err(WRONG);
        }
        Ok(Node { bytes, count, first, end })
    }

    /// Returns the number of records, at least 1.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the prefix that all keys share.
    #[inline]
    pub(crate) fn prefix(&self) -> &'a [u8] {
        self.bytes.get(HEADER_BYTES + SLOT_BYTES * self.count..self.first).unwrap_or_default()
    }

    /// Returns a key without the prefix.
    pub(crate) fn suffix(&self, index: usize) -> Result<&'a [u8], Wrong> {
        let (begin, len, _) = self.slot(index)?;
        self.bytes[..self.end].get(begin..begin + len).ok_or(RECORD)
    }

    /// Replaces the contents of `key` by a key.
    pub(crate) fn key(&self, index: usize, key: &mut Vec<u8>) -> Result<(), Wrong> {
        let suffix = self.suffix(index)?;
        key.clear();
        key.extend_from_slice(self.prefix());
        key.extend_from_slice(suffix);
        Ok(())
    }

    /// Returns the index of the record with this key, or of the place where it would be.
    pub(crate) fn search(&self, key: &[u8]) -> Result<Result<usize, usize>, Wrong> {
        let prefix = self.prefix();
        let rest = match key.get(..prefix.len()) {
            Some(front) => match front.cmp(prefix) {
                Ordering::Less => return Ok(Err(0)),
                Ordering::Equal => &key[prefix.len()..],
                Ordering::Greater => return Ok(Err(self.count)),
            },
            None if key < prefix => return Ok(Err(0)),
            None => return Ok(Err(self.count)),
        };
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.suffix(middle)?.cmp(rest) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(Ok(middle)),
                Ordering::Greater => high = middle,
            }
        }
        Ok(Err(low))
    }

    /// Returns, for an inner node, the index of the only child that may have the key.
    pub(crate) fn search_child(&self, key: &[u8]) -> Result<usize, Wrong> {
        Ok(match self.search(key)? {
            Ok(index) => index,
            // A key below the first separator is not in the table, or the parent's separator was shorter.
            Err(index) => index.saturating_sub(1),
        })
    }

    /// Returns the bytes of a value, and whether it is tagged.
    pub(super) fn value(&self, index: usize) -> Result<(&'a [u8], bool), Wrong> {
        let record = self.record(index)?;
        self.bytes.get(record.value).map(|value| (value, record.tagged)).ok_or(RECORD)
    }

    /// Returns a child of an inner node.
    pub(crate) fn child(&self, index: usize) -> Result<Child, Wrong> {
        let record = self.record(index)?;
        let word = self.bytes.get(record.value).and_then(|value| <&[u8; 8]>::try_from(value).ok());
        let child = word.filter(|_| !record.tagged).and_then(|word| Child::decode(u64::from_le_bytes(*word)));
        child.ok_or("a child's position is invalid")
    }

    /// Returns an entry of a leaf.
    pub(crate) fn entry(&self, index: usize) -> Result<Entry, Wrong> {
        let Record { value, tagged, .. } = self.record(index)?;
        if !tagged {
            return Ok(Entry { expires_s: None, payload: Payload::Inline(value) });
        }
        let (tag, mut rest) = self.bytes[value.clone()].split_first().ok_or(TAG)?;
        if *tag == DELETED && rest.is_empty() {
            return Ok(Entry { expires_s: None, payload: Payload::Deleted });
        }
        let (is_packed, is_far) = (tag & PACKED != 0, tag & FAR != 0);
        if tag & !(BLOB | EXPIRES | PACKED | FAR) != 0 || (is_packed || is_far) && tag & BLOB == 0 {
            return Err(TAG);
        }
        let mut expires_s = None;
        if tag & EXPIRES != 0 {
            let (time, behind) = rest.split_first_chunk::<8>().ok_or(TAG)?;
            (expires_s, rest) = (Some(u64::from_le_bytes(*time)), behind);
        }
        if tag & BLOB == 0 {
            return Ok(Entry { expires_s, payload: Payload::Inline(value.end - rest.len()..value.end) });
        }
        let (fixed, behind) = rest.split_first_chunk::<16>().ok_or(TAG)?;
        let len = u32_at(fixed, 8);
        let (value_len, file) = match (is_packed, is_far, behind.len()) {
            (false, false, 0) => (len, 0),
            (true, false, 4) => (u32_at(behind, 0), 0),
            (false, true, 4) => (len, u32_at(behind, 0)),
            (true, true, 8) => (u32_at(behind, 0), u32_at(behind, 4)),
            _ => return Err(TAG),
        };
        let blob = BlobAt { file, offset: u64_at(fixed, 0), len, crc: u32_at(fixed, 12), value_len };
        if blob.value_len as usize <= VALUE_BYTES_MAX
            && is_packed == (blob.value_len > blob.len)
            && is_far == blob.is_far()
            && blob.offset < u64::MAX / 2
        {
            Ok(Entry { expires_s, payload: Payload::Blob(blob) })
        } else {
            Err(TAG)
        }
    }

    /// Checks that all records are in place, without gaps, and in order.
    pub(crate) fn check_records(&self) -> Result<(), Wrong> {
        let mut last: Option<&[u8]> = None;
        for index in 0..self.count {
            let record = self.record(index)?;
            let suffix = &self.bytes[record.suffix];
            if last.is_some_and(|last| last >= suffix) {
                return Err("the node's keys are not in order");
            }
            if self.prefix().len() + suffix.len() > KEY_BYTES_MAX {
                return Err("a key is too long");
            }
            last = Some(suffix);
        }
        if self.bytes[self.end..].iter().all(|&byte| byte == 0) {
            Ok(())
        } else {
            Err("something stands behind the node's records")
        }
    }

    /// Returns the start and suffix length of a record, and whether its value is tagged.
    #[inline]
    fn slot(&self, index: usize) -> Result<(usize, usize, bool), Wrong> {
        if index >= self.count {
            return Err("a record number is beyond the node's records");
        }
        let at = HEADER_BYTES + SLOT_BYTES * index;
        let (begin, len) = (u16_at(self.bytes, at), u16_at(self.bytes, at + 2));
        Ok((usize::from(begin), usize::from(len & 0x7FFF), len & 0x8000 != 0))
    }

    fn record(&self, index: usize) -> Result<Record, Wrong> {
        let (begin, len, tagged) = self.slot(index)?;
        let end = if index + 1 < self.count { self.slot(index + 1)?.0 } else { self.end };
        let middle = begin + len;
        if self.first <= begin && middle <= end && end <= self.end {
            Ok(Record { suffix: begin..middle, value: middle..end, tagged })
        } else {
            Err(RECORD)
        }
    }
}

#[inline]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u16::from_le_bytes(*word))
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
}

#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}
