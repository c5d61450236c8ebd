//! One record of the store's log: the puts and deletes of one batch.
//!
//! Little endian: version u8 (1), reserved u8 (0), count u32; then for each entry keyspace u32, flags u8 (bit
//! 0: deleted, bit 1: expires), key length u16, value length u32, the expiry in seconds since 1970 (u64) if
//! bit 1 is set, the key, the value. The log itself has checksums.
//!
//! A record of version 2 has the header only, with a count of 0: it has the number of entries of keyspaces that are
//! not logged.
//!
//! A record is encoded once; a memtable copies it.

use std::ops::{Deref, Range};

use bytes::Bytes;
use memmap2::MmapMut;

use crate::error::{Error, ErrorKind, Result};

/// Version of the records written.
pub(crate) const VERSION: u8 = 1;
/// Version of a record that stands for entries that are not logged.
const VERSION_UNLOGGED: u8 = 2;
/// Bytes before the first entry.
pub(crate) const HEADER_BYTES: usize = 6;
/// Bytes of an entry before its expiry or key.
pub(crate) const ENTRY_BYTES: usize = 11;
/// Maximum length of a key, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 16 << 10;
/// Maximum length of a value, in bytes.
pub(crate) const VALUE_BYTES_MAX: usize = 16 << 20;

const DELETED: u8 = 1;
const EXPIRES: u8 = 2;

/// A change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    Put { value: &'a [u8], expires_s: Option<u64> },
    Delete,
}

/// An entry of a record; key and value are ranges of the record's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) keyspace: u32,
    pub(crate) deleted: bool,
    pub(crate) expires_s: Option<u64>,
    pub(crate) key: Range<u32>,
    pub(crate) value: Range<u32>,
}

/// Checks a key and a value against the limits of the format.
pub(crate) fn check(key: &[u8], change: &Change<'_>) -> Result<()> {
    if key.len() > KEY_BYTES_MAX {
        let text = format!("a key of {} bytes; the most is {KEY_BYTES_MAX}: use a hash of it", key.len());
        return Err(Error::new(ErrorKind::TooLarge { limit: KEY_BYTES_MAX }, text));
    }
    if key.is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, "a key has at least one byte"));
    }
    if let Change::Put { value, .. } = change
        && value.len() > VALUE_BYTES_MAX
    {
        let text =
            format!("a value of {} bytes; the most is {VALUE_BYTES_MAX}: put it in parts", value.len());
        return Err(Error::new(ErrorKind::TooLarge { limit: VALUE_BYTES_MAX }, text));
    }
    Ok(())
}

/// Returns the length of an entry in a record, in bytes.
pub(crate) fn entry_bytes(key: &[u8], change: &Change<'_>) -> usize {
    let tail = match change {
        Change::Put { value, expires_s } => value.len() + expires_s.map_or(0, |_| 8),
        Change::Delete => 0,
    };
    ENTRY_BYTES + key.len() + tail
}

/// Longer records get their own memory mapping.
const SHORT_BYTES_MAX: usize = 64 << 10;

/// A record's bytes, or an entry copied from a memtable.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    bytes: Bytes,
    memory_bytes: u64,
}

impl Record {
    /// Creates a record of `len` bytes, which are zero until `fill` has been called.
    ///
    /// A long record has its own mapping: exactly as long as needed, and returned to the system as soon as it is dropped. The
    /// allocator would keep the memory on each writer's thread, and I/O memory would use the next power of two.
    pub(crate) fn new(len: usize, fill: impl FnOnce(&mut [u8])) -> Record {
        let is_short = len <= SHORT_BYTES_MAX;
        if !is_short && let Ok(mut map) = MmapMut::map_anon(len) {
            fill(&mut map);
            return Record { bytes: Bytes::from_owner(map), memory_bytes: len.next_multiple_of(4096) as u64 };
        }
        let mut bytes = vec![0; len];
        fill(&mut bytes);
        Record { bytes: bytes.into(), memory_bytes: len as u64 }
    }

    /// Creates a record with one entry; key and value were [checked](check).
    pub(crate) fn single(keyspace: u32, key: &[u8], change: &Change<'_>) -> Record {
        Record::new(HEADER_BYTES + entry_bytes(key, change), |bytes| {
            let (header, entry) = bytes.split_at_mut(HEADER_BYTES);
            header.copy_from_slice(&header_bytes(1));
            put_entry(entry, keyspace, key, change);
        })
    }

    /// Returns the record for the log: with the entries of `record` at these places that `is_logged` accepts.
    pub(crate) fn logged(record: &[u8], places: &[u32], is_logged: impl Fn(u32) -> bool) -> Record {
        let entries = places.iter().filter_map(|at| {
            let (entry, end) = entry_at(record, *at as usize)?;
            if is_logged(entry.keyspace) { record.get(*at as usize..end) } else { None }
        });
        let entries: Vec<&[u8]> = entries.collect();
        let mut header = header_bytes(entries.len() as u32);
        if entries.is_empty() {
            header[0] = VERSION_UNLOGGED;
        }
        let bytes = HEADER_BYTES + entries.iter().map(|entry| entry.len()).sum::<usize>();
        Record::new(bytes, |out| {
            let mut at = 0;
            for part in std::iter::once(&header[..]).chain(entries) {
                out[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
        })
    }

    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the bytes of memory that the record keeps allocated.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

impl Deref for Record {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Returns the bytes before a record's entries.
pub(crate) fn header_bytes(count: u32) -> [u8; HEADER_BYTES] {
    let [a, b, c, d] = count.to_le_bytes();
    [VERSION, 0, a, b, c, d]
}

/// Writes an entry to the start of `bytes`, which must be long enough. Returns its length.
pub(crate) fn put_entry(bytes: &mut [u8], keyspace: u32, key: &[u8], change: &Change<'_>) -> usize {
    let (flags, value, expires_s): (u8, &[u8], Option<u64>) = match *change {
        Change::Put { value, expires_s } => (if expires_s.is_some() { EXPIRES } else { 0 }, value, expires_s),
        Change::Delete => (DELETED, &[], None),
    };
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    put(&keyspace.to_le_bytes());
    put(&[flags]);
    // Both lengths were checked.
    put(&(key.len() as u16).to_le_bytes());
    put(&(value.len() as u32).to_le_bytes());
    if let Some(expires_s) = expires_s {
        put(&expires_s.to_le_bytes());
    }
    put(key);
    put(value);
    debug_assert_eq!(at, entry_bytes(key, change), "an entry takes the bytes that were counted for it");
    at
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Returns the entry at this offset, and the offset of the next entry.
pub(crate) fn entry_at(record: &[u8], at: usize) -> Option<(Entry, usize)> {
    let keyspace = u32::from_le_bytes(word(record, at)?);
    let [flags] = word::<1>(record, at + 4)?;
    let key_len = usize::from(u16::from_le_bytes(word(record, at + 5)?));
    let value_len = usize::try_from(u32::from_le_bytes(word(record, at + 7)?)).ok()?;
    let expires = flags & EXPIRES != 0;
    let expires_s = if expires { Some(u64::from_le_bytes(word(record, at + ENTRY_BYTES)?)) } else { None };
    let key_at = at + ENTRY_BYTES + if expires { 8 } else { 0 };
    let (value_at, end) = (key_at + key_len, key_at + key_len + value_len);
    if flags & !(DELETED | EXPIRES) != 0 || key_len == 0 || end > record.len() {
        return None;
    }
    let place = |at: usize| u32::try_from(at).ok();
    let entry = Entry {
        keyspace,
        deleted: flags & DELETED != 0,
        expires_s,
        key: place(key_at)?..place(value_at)?,
        value: place(value_at)?..place(end)?,
    };
    Some((entry, end))
}

/// Checks a whole record. Returns the offsets of its entries.
pub(crate) fn parse(record: &[u8]) -> Result<Vec<u32>> {
    let damaged = |at: usize| {
        Err(Error::new(ErrorKind::Corruption, format!("a record of the log makes no sense at its byte {at}")))
    };
    let Some(&version) = record.first() else { return damaged(0) };
    if record[..] == [VERSION_UNLOGGED, 0, 0, 0, 0, 0] {
        return Ok(Vec::new());
    }
    if version != VERSION {
        let text = format!("a record of the log has version {version}; this program knows {VERSION}");
        return Err(Error::new(ErrorKind::Version { found: u16::from(version) }, text));
    }
    let Some(count) = word(record, 2).map(u32::from_le_bytes) else { return damaged(2) };
    let (mut at, mut places) = (HEADER_BYTES, Vec::new());
    for _ in 0..count {
        let Some((_, next)) = entry_at(record, at) else { return damaged(at) };
        places.push(at as u32);
        at = next;
    }
    if at != record.len() || count == 0 {
        return damaged(at);
    }
    Ok(places)
}

/// Returns the bytes of a range of a record.
pub(crate) fn slice<'a>(record: &'a [u8], place: &Range<u32>) -> &'a [u8] {
    record.get(place.start as usize..place.end as usize).unwrap_or(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        let put = Change::Put { value: b"value", expires_s: Some(77) };
        let record = Record::single(3, b"key", &put);
        assert_eq!(parse(&record).unwrap(), [HEADER_BYTES as u32]);
        let (entry, end) = entry_at(&record, HEADER_BYTES).unwrap();
        assert_eq!((end, entry.keyspace, entry.deleted, entry.expires_s), (record.len(), 3, false, Some(77)));
        assert_eq!((slice(&record, &entry.key), slice(&record, &entry.value)), (&b"key"[..], &b"value"[..]));
        let record = Record::single(9, b"k", &Change::Delete);
        let (entry, _) = entry_at(&record, HEADER_BYTES).unwrap();
        assert!(entry.deleted && entry.value.is_empty());
    }

    #[test]
    fn a_record_for_the_log_leaves_out_what_is_not_logged() {
        let entries = [(1, &b"a"[..]), (2, b"b"), (1, b"c")].map(|(keyspace, key)| {
            Record::single(keyspace, key, &Change::Put { value: b"v", expires_s: None })[HEADER_BYTES..]
                .to_vec()
        });
        let record = [&header_bytes(3)[..], &entries.concat()].concat();
        let places = parse(&record).unwrap();
        let some = Record::logged(&record, &places, |keyspace| keyspace == 1);
        assert_eq!(some[HEADER_BYTES..], [&entries[0][..], &entries[2]].concat());
        assert_eq!(parse(&some).unwrap().len(), 2);
        let none = Record::logged(&record, &places, |_| false);
        assert_eq!((none.len(), parse(&none).unwrap().len()), (HEADER_BYTES, 0));
        assert!(parse(&header_bytes(0)).is_err(), "a record of version 1 has an entry");
    }

    #[test]
    fn nonsense_is_an_error_wherever_it_is() {
        let record = Record::single(3, b"key", &Change::Put { value: b"value", expires_s: Some(1) });
        for len in 0..record.len() {
            assert!(parse(&record[..len]).is_err(), "cut at {len}");
        }
        for at in 0..record.len() {
            for bit in 0..8 {
                let mut bytes = record.to_vec();
                bytes[at] ^= 1 << bit;
                // No panic, and entries within the record.
                for place in parse(&bytes).unwrap_or_default() {
                    let (entry, end) = entry_at(&bytes, place as usize).unwrap();
                    assert!(end <= bytes.len() && entry.value.end as usize <= end);
                }
            }
        }
        let mut other = record.to_vec();
        other[0] = 7;
        assert_eq!(parse(&other).unwrap_err().kind(), ErrorKind::Version { found: 7 });
    }

    #[test]
    fn keys_and_values_have_limits() {
        let kind = |key: &[u8], change: &Change<'_>| check(key, change).unwrap_err().kind();
        assert_eq!(kind(b"", &Change::Delete), ErrorKind::InvalidInput);
        let long = vec![0; KEY_BYTES_MAX + 1];
        assert_eq!(kind(&long, &Change::Delete), ErrorKind::TooLarge { limit: KEY_BYTES_MAX });
        check(&long[1..], &Change::Delete).unwrap();
        let value = vec![0; VALUE_BYTES_MAX + 1];
        let put = Change::Put { value: &value, expires_s: None };
        assert_eq!(kind(b"k", &put), ErrorKind::TooLarge { limit: VALUE_BYTES_MAX });
    }
}
