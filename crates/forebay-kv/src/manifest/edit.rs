//! An edit: a change of the store's state, and its encoding.
//!
//! Little endian: flags u8 (bit 0: from nothing, bit 1: the log's start is given, bit 2: its end is, bit 3:
//! keyspaces follow at the end, bit 4: long values do, bit 7: sorted files do, in this order), store
//! id u64, next table u32, the log's start u64; with bit 2 the last durable record of the log u64 and its
//! epoch u64; count u32 of keyspaces, each id u32, name length u8, name; count u32 of removed tables, each id
//! u32; count u32 of added tables, each level u8, id u32, keyspace u32, bytes u64, entries u64, deleted u64,
//! expiring u64, seconds of the first and last expiry u64 u64, length u16 and bytes of the smallest and of
//! the largest key; with bit 3 the next keyspace u32, and count u32 of dropped keyspaces, each id u32,
//! and as many for keyspaces that are not logged; with bit 4 count u32 of files that have values and no keys, each
//! table id u32, bytes u64, and count u32 of the added tables with long values, each table id u32, count u32, and as many
//! files, each table id u32, bytes u64; with bit 7 count u32 of those added tables that are sorted files, each id
//! u32 and the number u32 that its nodes have. The records of an edit with bit 4 or 7 are of version 2.

use std::collections::BTreeMap;

use forebay_wal::{End, Lsn};

use crate::table::TableMeta;

/// A change that is applied as a whole or not at all.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Edit {
    /// The edit is the whole state; it replaces everything before.
    pub(crate) is_whole: bool,
    /// Number that distinguishes the store from others; only a whole edit sets it.
    pub(crate) store_id: u64,
    /// Tables from this number on do not exist yet; 0 leaves the number unchanged.
    pub(crate) next_table: u32,
    /// Earlier records of the log are in tables.
    pub(crate) log_start: Option<u64>,
    /// Durable end of the log when the edit was made; recovery must not find less.
    pub(crate) log_end: Option<End>,
    pub(crate) keyspaces: Vec<(u32, String)>,
    /// Keyspaces from this number on do not exist yet; 0 leaves the number unchanged.
    pub(crate) next_keyspace: u32,
    /// Removed keyspaces, which have no tables.
    pub(crate) dropped: Vec<u32>,
    /// Those of `keyspaces` whose entries are not in the log.
    pub(crate) unlogged: Vec<u32>,
    pub(crate) removed: Vec<u32>,
    /// Levels and tables.
    pub(crate) added: Vec<(u8, TableMeta)>,
    /// The files that have values of tables but no keys, with their lengths; only a whole edit names them. A map, since a
    /// reader wants them in the order of their numbers.
    pub(crate) kept: BTreeMap<u32, u64>,
}

/// Bytes of a table in an edit, without its keys.
const TABLE_BYTES: u64 = 1 + 2 * 4 + 6 * 8 + 2 * 2;

/// Returns the bytes that an edit needs on disk, about, which adds this many tables, whose longest keys have these bytes
/// together. Its records are padded, and so are the ends of segments.
pub(crate) fn added_bytes(tables: u64, longest_keys_bytes: u64) -> u64 {
    let bytes = tables * TABLE_BYTES + 2 * longest_keys_bytes;
    bytes + bytes / 4
}

const WHOLE: u8 = 1;
const LOG_START: u8 = 2;
const LOG_END: u8 = 4;
const KEYSPACES: u8 = 8;
const VALUES: u8 = 16;
const SORTED: u8 = 128;

impl Edit {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let whole = if self.is_whole { WHOLE } else { 0 };
        let start = if self.log_start.is_some() { LOG_START } else { 0 };
        let end = if self.log_end.is_some() { LOG_END } else { 0 };
        let has_keyspaces = self.next_keyspace > 0 || !self.dropped.is_empty() || !self.unlogged.is_empty();
        let sorted: Vec<&TableMeta> = self.sorted().collect();
        let has_values = self.has_values();
        let values = if has_values { VALUES } else { 0 };
        let has_sorted = if sorted.is_empty() { 0 } else { SORTED };
        let keyspaces = if has_keyspaces { KEYSPACES } else { 0 };
        out.push(whole | start | end | keyspaces | values | has_sorted);
        out.extend_from_slice(&self.store_id.to_le_bytes());
        out.extend_from_slice(&self.next_table.to_le_bytes());
        out.extend_from_slice(&self.log_start.unwrap_or(0).to_le_bytes());
        if let Some(end) = self.log_end {
            out.extend_from_slice(&end.lsn.0.to_le_bytes());
            out.extend_from_slice(&end.epoch.to_le_bytes());
        }
        out.extend_from_slice(&(self.keyspaces.len() as u32).to_le_bytes());
        for (id, name) in &self.keyspaces {
            out.extend_from_slice(&id.to_le_bytes());
            // A keyspace's name is at most 255 bytes.
            out.push(name.len() as u8);
            out.extend_from_slice(name.as_bytes());
        }
        out.extend_from_slice(&(self.removed.len() as u32).to_le_bytes());
        for id in &self.removed {
            out.extend_from_slice(&id.to_le_bytes());
        }
        out.extend_from_slice(&(self.added.len() as u32).to_le_bytes());
        for (level, table) in &self.added {
            out.push(*level);
            out.extend_from_slice(&table.id.to_le_bytes());
            out.extend_from_slice(&table.keyspace.to_le_bytes());
            let (first_s, last_s) = table.expires_s;
            for number in [table.bytes, table.entries, table.deleted, table.expiring, first_s, last_s] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            for key in [&table.smallest, &table.largest] {
                // A key is at most 16 KiB.
                out.extend_from_slice(&(key.len() as u16).to_le_bytes());
                out.extend_from_slice(key);
            }
        }
        if has_keyspaces {
            out.extend_from_slice(&self.next_keyspace.to_le_bytes());
            for ids in [&self.dropped, &self.unlogged] {
                out.extend_from_slice(&(ids.len() as u32).to_le_bytes());
                ids.iter().for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
            }
        }
        if has_values {
            put_files(&mut out, self.kept.len(), self.kept.iter().map(|(id, bytes)| (*id, *bytes)));
            let with = || self.added.iter().map(|(_, table)| table).filter(|table| !table.values.is_empty());
            out.extend_from_slice(&(with().count() as u32).to_le_bytes());
            for table in with() {
                out.extend_from_slice(&table.id.to_le_bytes());
                put_files(&mut out, table.values.len(), table.values.iter().copied());
            }
        }
        if !sorted.is_empty() {
            out.extend_from_slice(&(sorted.len() as u32).to_le_bytes());
            for table in sorted {
                out.extend_from_slice(&table.id.to_le_bytes());
                out.extend_from_slice(&table.number.to_le_bytes());
            }
        }
        out
    }

    /// Returns whether programs that know neither long values in other files nor sorted files must refuse the edit.
    pub(super) fn is_extended(&self) -> bool {
        self.has_values() || self.sorted().next().is_some()
    }

    fn has_values(&self) -> bool {
        !self.kept.is_empty() || self.added.iter().any(|(_, table)| !table.values.is_empty())
    }

    /// Returns the added tables that are sorted files.
    fn sorted(&self) -> impl Iterator<Item = &TableMeta> {
        self.added.iter().map(|(_, table)| table).filter(|table| table.number != table.id)
    }

    /// Returns `None` if the bytes are not an edit.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Edit> {
        let mut input = Input(bytes);
        let flags = input.u8()?;
        let (store_id, next_table, log_start) = (input.u64()?, input.u32()?, input.u64()?);
        let mut edit = Edit {
            is_whole: flags & WHOLE != 0,
            store_id,
            next_table,
            log_start: (flags & LOG_START != 0).then_some(log_start),
            ..Edit::default()
        };
        if flags & LOG_END != 0 {
            edit.log_end = Some(End { lsn: Lsn(input.u64()?), epoch: input.u64()? });
        }
        for _ in 0..input.u32()? {
            let (id, len) = (input.u32()?, input.u8()?);
            let name = std::str::from_utf8(input.bytes(usize::from(len))?).ok()?;
            edit.keyspaces.push((id, name.to_string()));
        }
        for _ in 0..input.u32()? {
            edit.removed.push(input.u32()?);
        }
        for _ in 0..input.u32()? {
            let level = input.u8()?;
            let id = input.u32()?;
            let table = TableMeta {
                id,
                number: id,
                keyspace: input.u32()?,
                bytes: input.u64()?,
                entries: input.u64()?,
                deleted: input.u64()?,
                expiring: input.u64()?,
                expires_s: (input.u64()?, input.u64()?),
                smallest: input.key()?,
                largest: input.key()?,
                values: Box::default(),
            };
            edit.added.push((level, table));
        }
        if flags & KEYSPACES != 0 {
            edit.next_keyspace = input.u32()?;
            for ids in [&mut edit.dropped, &mut edit.unlogged] {
                for _ in 0..input.u32()? {
                    ids.push(input.u32()?);
                }
            }
        }
        if flags & VALUES != 0 {
            edit.kept = input.files()?.into_iter().collect();
            // They are in the order of the tables.
            let mut tables = edit.added.iter_mut();
            for _ in 0..input.u32()? {
                let (id, files) = (input.u32()?, input.files()?);
                tables.find(|(_, table)| table.id == id)?.1.values = files.into();
            }
        }
        if flags & SORTED != 0 {
            // In the order of the tables, as well.
            let mut tables = edit.added.iter_mut();
            for _ in 0..input.u32()? {
                let (id, number) = (input.u32()?, input.u32()?);
                tables.find(|(_, table)| table.id == id)?.1.number = number;
            }
        }
        let known =
            flags & !(WHOLE | LOG_START | LOG_END | KEYSPACES | VALUES | SORTED) == 0 && input.0.is_empty();
        known.then_some(edit)
    }
}

/// Adds files with bytes to an encoded edit.
fn put_files(out: &mut Vec<u8>, count: usize, files: impl Iterator<Item = (u32, u64)>) {
    out.extend_from_slice(&(count as u32).to_le_bytes());
    for (id, bytes) in files {
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&bytes.to_le_bytes());
    }
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn word<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.word::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.word().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.word().map(u64::from_le_bytes)
    }

    /// Returns files with bytes, which are in the order of their numbers.
    fn files(&mut self) -> Option<Vec<(u32, u64)>> {
        let mut files = Vec::new();
        for _ in 0..self.u32()? {
            files.push((self.u32()?, self.u64()?));
        }
        files.is_sorted_by(|one, next| one.0 < next.0).then_some(files)
    }

    fn key(&mut self) -> Option<Box<[u8]>> {
        let len = self.word().map(u16::from_le_bytes)?;
        self.bytes(usize::from(len)).map(Box::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit() -> Edit {
        let table = TableMeta {
            id: 7,
            number: 7,
            keyspace: 2,
            bytes: 1 << 40,
            entries: 3,
            deleted: 1,
            expiring: 2,
            expires_s: (70, 1 << 40),
            smallest: Box::from(&b"a"[..]),
            largest: Box::from(&b"zz"[..]),
            values: Box::from([(3, 1 << 33), (7, 12)]),
        };
        let other = TableMeta { id: 8, number: 8, values: Box::default(), ..table.clone() };
        Edit {
            is_whole: true,
            store_id: 99,
            next_table: 8,
            log_start: Some(12),
            log_end: Some(End { lsn: Lsn(15), epoch: 3 }),
            keyspaces: vec![(0, "default".to_string()), (2, "k".to_string())],
            next_keyspace: 5,
            dropped: vec![1, 4],
            unlogged: vec![2],
            removed: vec![1, 2],
            added: vec![(0, table), (6, other)],
            kept: BTreeMap::from([(3, 1 << 34), (4, 9)]),
        }
    }

    /// Returns an edit that also adds a sorted file.
    fn edit_with_sorted() -> Edit {
        let mut edit = edit();
        let (_, table) = edit.added[0].clone();
        edit.added.push((5, TableMeta { id: 9, number: 0x8000_0001, values: Box::default(), ..table }));
        edit
    }

    #[test]
    fn edits_come_back() {
        for edit in [edit(), edit_with_sorted(), Edit::default()] {
            assert_eq!(edit.sorted().count(), usize::from(edit.added.len() > 2));
            assert_eq!(edit.is_extended(), edit.added.len() > 1, "it has long values");
            assert_eq!(Edit::decode(&edit.encode()), Some(edit));
        }
    }

    /// Story: of each sorted file the edit of the whole state was searched from its first table. A store with 100,000 ingested files
    /// stood still for seconds at each such edit, which is read once before it is written.
    #[test]
    fn an_edit_with_many_sorted_files_is_read_in_one_pass() {
        let mut edit = edit_with_sorted();
        let (level, last) = edit.added[2].clone();
        let sorted = |id: u32| (level, TableMeta { id, number: 0x8000_0000 | id, ..last.clone() });
        edit.added.extend((10..100_000).map(sorted));
        assert_eq!(Edit::decode(&edit.encode()), Some(edit));
    }

    #[test]
    fn cut_and_extended_edits_are_none() {
        for edit in [edit(), edit_with_sorted()] {
            let bytes = edit.encode();
            for len in 0..bytes.len() {
                assert_eq!(Edit::decode(&bytes[..len]), None, "cut at {len}");
            }
            assert_eq!(Edit::decode(&[&bytes[..], &[0]].concat()), None);
        }
    }
}
