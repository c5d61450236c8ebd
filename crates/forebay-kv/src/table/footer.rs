//! The first and the last unit of a table.

use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::node::codec::Codec;
use crate::node::packed::LEAF_BYTES_MAX;
use crate::node::read::{u32_at, u64_at};
use crate::node::{Child, FOOTER, HEADER, HEADER_BYTES, Identity, LEAF_BYTES, LEVELS_MAX, UNIT, check, seal};

const MAGIC: [u8; 6] = *b"FBYKVT";
/// The version of tables without compression.
const PLAIN: u16 = 1;
/// The version of tables with compression.
const PACKED: u16 = 2;
/// The version of tables, with or without compression, whose values may lie in files of other tables.
const LINKED: u16 = 3;
/// The bit of the version of a sorted file: a table that was written outside of a store. It has its own number, which its nodes
/// have too, and no keyspace.
const SORTED: u16 = 0x100;
/// The bit that the number of every sorted file has. Stores number their own tables from 1.
pub(crate) const SORTED_NUMBER: u32 = 1 << 31;
/// The keyspace of a sorted file.
pub(crate) const NO_KEYSPACE: u32 = u32::MAX;
/// The offsets of the content of a header or footer, and of the version in it.
const AT: usize = HEADER_BYTES;
const VERSION_AT: usize = AT + MAGIC.len();
const LEVELS_AT: usize = AT + 64;
const PACKING_AT: usize = LEVELS_AT + 4 * LEVELS_MAX as usize;
const SORTED_AT: usize = PACKING_AT + 16;

/// The footer: the content of a table's last unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) table: u32,
    pub(crate) keyspace: u32,
    pub(crate) leaf_bytes: u32,
    pub(crate) root: Child,
    pub(crate) entries: u64,
    pub(crate) deleted: u64,
    pub(crate) expiring: u64,
    /// The unit behind the last leaf.
    pub(crate) leaf_end: u32,
    pub(crate) filter_first: u32,
    pub(crate) filter_partitions: u32,
    /// Number of inner levels.
    pub(crate) levels: u32,
    /// The first unit of each inner level.
    pub(crate) level_first: [u32; LEVELS_MAX as usize],
    /// The footer's own position: the table's last unit.
    pub(crate) position: u32,
    /// How leaves and blobs are compressed; `None` if they are not.
    pub(crate) packing: Option<TableCompression>,
    /// Whether values may lie in files of other tables.
    pub(crate) links: bool,
    /// The facts about a sorted file that a store needs; the manifest has them of its other tables.
    pub(crate) sorted: Option<SortedFooter>,
}

/// The part of a footer that only sorted files have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SortedFooter {
    /// The times of the first and the last expiry, in seconds since 1970; 0 if no value expires.
    pub(crate) expires_s: (u64, u64),
    /// Bytes of the longest value.
    pub(crate) value_bytes_max: u32,
}

/// The compression of a table's leaves and blobs. Each of them may be packed or plain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableCompression {
    pub(crate) codec: Codec,
    /// Maximum bytes of a packed leaf when it is unpacked.
    pub(crate) leaf_bytes_max: u32,
    /// Bytes that the packed leaves and blobs have more when they are unpacked.
    pub(crate) saved_bytes: u64,
}

/// Returns the version of a table.
pub(crate) fn version_of(is_packed: bool, links: bool, keyspace: u32) -> u16 {
    match (is_packed, links) {
        _ if keyspace == NO_KEYSPACE => SORTED | if is_packed { PACKED } else { PLAIN },
        (_, true) => LINKED,
        (true, false) => PACKED,
        (false, false) => PLAIN,
    }
}

impl Footer {
    /// Returns the units of an inner level; the lowest is 1.
    pub(crate) fn level(&self, level: u8) -> Option<std::ops::Range<u64>> {
        let index = usize::from(level).checked_sub(1)?;
        if u32::from(level) > self.levels {
            return None;
        }
        let end = if u32::from(level) == self.levels {
            self.filter_first
        } else {
            *self.level_first.get(index + 1)?
        };
        Some((*self.level_first.get(index)?).into()..end.into())
    }

    /// Returns the level of the root: 0 if it is a leaf.
    pub(crate) fn root_level(&self) -> u8 {
        self.levels as u8
    }

    pub(super) fn version(&self) -> u16 {
        version_of(self.packing.is_some(), self.links, self.keyspace)
    }

    /// Writes the footer into a unit of zeros.
    pub(crate) fn write(&self, unit: &mut [u8]) {
        if unit.len() < UNIT {
            return;
        }
        begin(unit, self.version(), self.keyspace, self.leaf_bytes);
        let words = [self.root.encode(), self.entries, self.deleted, self.expiring];
        for (index, word) in words.into_iter().enumerate() {
            unit[AT + 16 + 8 * index..][..8].copy_from_slice(&word.to_le_bytes());
        }
        let words = [self.leaf_end, self.filter_first, self.filter_partitions, self.levels];
        for (index, word) in words.into_iter().chain(self.level_first).enumerate() {
            unit[AT + 48 + 4 * index..][..4].copy_from_slice(&word.to_le_bytes());
        }
        if let Some(packing) = &self.packing {
            unit[PACKING_AT..][..4].copy_from_slice(&(packing.codec as u32).to_le_bytes());
            unit[PACKING_AT + 4..][..4].copy_from_slice(&packing.leaf_bytes_max.to_le_bytes());
            unit[PACKING_AT + 8..][..8].copy_from_slice(&packing.saved_bytes.to_le_bytes());
        }
        if let Some(SortedFooter { expires_s: (first_s, last_s), value_bytes_max }) = self.sorted {
            for (index, word) in [first_s, last_s, value_bytes_max.into()].into_iter().enumerate() {
                unit[SORTED_AT + 8 * index..][..8].copy_from_slice(&word.to_le_bytes());
            }
        }
        seal(unit, Identity { table: self.table, position: self.position, level: FOOTER });
    }

    /// Reads the footer from the last unit of a table of `bytes` bytes, and accepts it only if all its fields
    /// are consistent. `table` is the number that the table's nodes have.
    ///
    /// # Errors
    /// `Corruption`, `Version`, and `MissingFeature` for a codec that this build lacks.
    pub(crate) fn read(unit: &[u8], table: u32, bytes: u64, path: &Path) -> Result<Footer> {
        let offset = bytes.saturating_sub(UNIT as u64);
        let wrong = |text: &str| Error::corrupt(path, offset, format!("the table's footer: {text}"));
        let position = u32::try_from(offset / UNIT as u64).map_err(|_| wrong("the table is too long"))?;
        check(unit, Identity { table, position, level: FOOTER }).map_err(wrong)?;
        let (version, keyspace, leaf_bytes) = front(unit, path)?;
        let has_codec = version == LINKED && u32_at(unit, PACKING_AT) != 0;
        let is_packed = version & !SORTED == PACKED || has_codec;
        let packing = if is_packed { Some(packing(unit, path, wrong)?) } else { None };
        let long = |index: usize| u64_at(unit, AT + 16 + 8 * index);
        let word = |index: usize| u32_at(unit, AT + 48 + 4 * index);
        let footer = Footer {
            table,
            keyspace,
            leaf_bytes,
            root: Child::decode(long(0)).ok_or_else(|| wrong("the root's position is invalid"))?,
            entries: long(1),
            deleted: long(2),
            expiring: long(3),
            leaf_end: word(0),
            filter_first: word(1),
            filter_partitions: word(2),
            levels: word(3),
            level_first: std::array::from_fn(|index| u32_at(unit, LEVELS_AT + 4 * index)),
            position,
            packing,
            links: version == LINKED,
            sorted: (version & SORTED != 0).then(|| SortedFooter {
                expires_s: (u64_at(unit, SORTED_AT), u64_at(unit, SORTED_AT + 8)),
                value_bytes_max: u32_at(unit, SORTED_AT + 16),
            }),
        };
        if footer.fits_together() { Ok(footer) } else { Err(wrong("its fields contradict each other")) }
    }

    pub(super) fn fits_together(&self) -> bool {
        let levels = self.levels as usize;
        if levels > self.level_first.len() || !LEAF_BYTES.contains(&self.leaf_bytes) {
            return false;
        }
        let mut places = vec![1, self.leaf_end];
        places.extend(&self.level_first[..levels]);
        places.push(self.filter_first);
        let root_area = match self.levels {
            0 => 1..u64::from(self.leaf_end),
            _ => self.level(self.root_level()).unwrap_or(0..0),
        };
        // The parts follow each other without gaps, and each is non-empty; the root is all of its part or the end of it.
        places.is_sorted()
            && self.leaf_end > 1
            && (levels == 0 || self.level_first[0] == self.leaf_end)
            && (levels > 0 || self.filter_first == self.leaf_end)
            && self.filter_partitions > 0
            && self.filter_first.checked_add(self.filter_partitions) == Some(self.position)
            && self.root.end() == root_area.end
            && (levels == 0 || u64::from(self.root.position) == root_area.start)
            && self.entries > 0
            && self.deleted.checked_add(self.expiring).is_some_and(|some| some <= self.entries)
            && self.sorted.is_some() == (self.keyspace == NO_KEYSPACE)
            && self.sorted.is_some() == (self.table & SORTED_NUMBER != 0)
    }
}

/// Reads the part of a footer that is about compression.
fn packing(unit: &[u8], path: &Path, wrong: impl Fn(&str) -> Error) -> Result<TableCompression> {
    let number = u32_at(unit, PACKING_AT);
    let codec = u8::try_from(number).ok().and_then(Codec::of_number);
    let codec = codec.ok_or_else(|| wrong(&format!("there is no codec {number}")))?;
    if let Some(feature) = codec.missing_feature() {
        let text = format!(
            "the table is compressed with {feature}; build forebay-kv with its feature `{feature}` to read it"
        );
        return Err(Error::at(ErrorKind::MissingFeature { feature }, path, text));
    }
    let packing = TableCompression {
        codec,
        leaf_bytes_max: u32_at(unit, PACKING_AT + 4),
        saved_bytes: u64_at(unit, PACKING_AT + 8),
    };
    if packing.leaf_bytes_max as usize <= LEAF_BYTES_MAX {
        Ok(packing)
    } else {
        Err(wrong("compressed leaves cannot be that long"))
    }
}

/// Writes a table's first unit into a unit of zeros.
pub(crate) fn write_header(unit: &mut [u8], table: u32, keyspace: u32, leaf_bytes: u32, version: u16) {
    if unit.len() == UNIT {
        begin(unit, version, keyspace, leaf_bytes);
        seal(unit, Identity { table, position: 0, level: HEADER });
    }
}

/// The kind of file, by its first unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderFound {
    /// A table of this crate, finished or not. A sorted file has the keyspace [`NO_KEYSPACE`].
    Ours { version: u16, keyspace: u32, leaf_bytes: u32 },
    /// A table of this crate in another version.
    Version(u16),
    /// Nothing was written yet: no bytes, or zeros.
    Empty,
    /// Another kind of file, or a damaged header.
    Foreign,
}

/// Classifies a file by its first unit, or by the part of it that exists. The file bears the name of `table`; a sorted file may
/// have any number.
pub(crate) fn read_header(unit: &[u8], table: u32) -> HeaderFound {
    if unit.iter().all(|&byte| byte == 0) {
        return HeaderFound::Empty;
    }
    let table = number(unit, table);
    if check(unit, Identity { table, position: 0, level: HEADER }).is_err() || !has_magic(unit) {
        return HeaderFound::Foreign;
    }
    let keyspace = u32_at(unit, AT + 8);
    let version = version(unit);
    if !is_known(version) {
        HeaderFound::Version(version)
    } else if (version & SORTED != 0) == (keyspace == NO_KEYSPACE) {
        HeaderFound::Ours { version, keyspace, leaf_bytes: u32_at(unit, AT + 12) }
    } else {
        HeaderFound::Foreign
    }
}

/// Writes the fields that header and footer have in common.
fn begin(unit: &mut [u8], version: u16, keyspace: u32, leaf_bytes: u32) {
    unit[AT..VERSION_AT].copy_from_slice(&MAGIC);
    unit[VERSION_AT..VERSION_AT + 2].copy_from_slice(&version.to_le_bytes());
    unit[AT + 8..AT + 12].copy_from_slice(&keyspace.to_le_bytes());
    unit[AT + 12..AT + 16].copy_from_slice(&leaf_bytes.to_le_bytes());
}

/// Returns the version, keyspace and leaf size of a footer whose checksum is right.
fn front(unit: &[u8], path: &Path) -> Result<(u16, u32, u32)> {
    if !has_magic(unit) {
        return Err(Error::at(ErrorKind::Foreign, path, "this is not a table"));
    }
    match version(unit) {
        version if is_known(version) => Ok((version, u32_at(unit, AT + 8), u32_at(unit, AT + 12))),
        found => {
            let text = format!(
                "a table of version {found} of the format; this program reads {PLAIN}, {PACKED}, {LINKED}, {} and {}. Use the version \
                 of forebay-kv that wrote it, or a later one",
                SORTED | PLAIN,
                SORTED | PACKED
            );
            Err(Error::at(ErrorKind::Version { found }, path, text))
        }
    }
}

fn is_known(version: u16) -> bool {
    matches!(version, PLAIN | PACKED | LINKED) || matches!(version ^ SORTED, PLAIN | PACKED)
}

/// Returns the number that the nodes of a table have, by its header or footer: that of its name, or a sorted file's own.
pub(super) fn number(unit: &[u8], table: u32) -> u32 {
    let is_sorted = unit.len() == UNIT && has_magic(unit) && version(unit) & SORTED != 0;
    if is_sorted { u32_at(unit, 4) } else { table }
}

fn has_magic(unit: &[u8]) -> bool {
    unit.get(AT..VERSION_AT) == Some(&MAGIC)
}

fn version(unit: &[u8]) -> u16 {
    let bytes = unit.get(VERSION_AT..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u16::from_le_bytes(*bytes))
}
