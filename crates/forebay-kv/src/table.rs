//! Tables: immutable B+-trees, one file each, written once in key order.
//!
//! `FORMAT.md` has the drawing of the file.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use forebay::Class;

use crate::cache::{Cache, Pin};
use crate::error::{Error, ErrorKind, Result};
use crate::node::codec::Codec;
use crate::node::{BlobAt, Child, FILTER, Identity, LEAF, UNIT, VALUE_BYTES_MAX, Wrong};
use crate::options::Compression;
use crate::value::Value;

mod ahead;
mod blob;
mod cursor;
mod file;
mod footer;
mod lookup;
mod lookup_walk;
mod open_table;
mod pinned;
mod sorted;
#[cfg(test)]
mod tests;
mod unpack;
mod verification;
mod write;

pub(crate) use blob::Blob;
pub(crate) use cursor::{Cursor, CursorHow, Direction, Leave};
pub(crate) use file::{Files, TableFile, opened_at_once};
pub(crate) use footer::{HeaderFound, NO_KEYSPACE, SORTED_NUMBER, read_header};
pub(crate) use lookup::Lookup;
#[cfg(all(feature = "kernel", target_os = "linux"))]
pub(crate) use lookup::descent::AtLeaf;
pub(crate) use lookup_walk::{OpenTables, walk_all};
pub(crate) use open_table::{OpenHow, TABLE_GONE, TABLE_MEMORY};
use pinned::PinnedParts;
pub(crate) use write::TableWriter;

/// An entry for a key, to be written or at a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry<'a> {
    Value {
        bytes: &'a [u8],
        /// The second since 1970 from which on the value counts as deleted.
        expires_s: Option<u64>,
    },
    /// A value that stays in the file of another table; only from cursors that leave values.
    Blob {
        at: BlobAt,
        expires_s: Option<u64>,
    },
    Deleted,
}

impl Entry<'_> {
    /// Returns whether it is a value that has expired at `now_s`.
    pub(crate) fn has_expired(&self, now_s: u64) -> bool {
        match self {
            Entry::Value { expires_s, .. } | Entry::Blob { expires_s, .. } => {
                expires_s.is_some_and(|expires_s| expires_s <= now_s)
            }
            Entry::Deleted => false,
        }
    }
}

/// Parameters for writing a table.
#[derive(Clone, Debug)]
pub(crate) struct TableSpec {
    pub(crate) id: u32,
    pub(crate) keyspace: u32,
    /// 4 to 32 KiB, a multiple of 4 KiB.
    pub(crate) leaf_bytes: u32,
    pub(crate) compression: Compression,
    /// Whether values may stay in files of other tables.
    pub(crate) links: bool,
    /// The length from which on values may stay in this file for other tables.
    pub(crate) separation_bytes: u32,
    /// The length of the longest value that is compressed.
    pub(crate) packed_value_max: usize,
    /// The I/O class of the writes.
    pub(crate) class: Class,
    /// The home shard of the file; any if `None`.
    pub(crate) shard: Option<usize>,
    /// Bytes of one write: 64 KiB or more, a power of two. `depth` + 1 such buffers are held.
    pub(crate) buffer_bytes: usize,
    /// Maximum number of writes in flight.
    pub(crate) depth: usize,
    /// The cache that is shrunk when the engine has no memory left for a buffer, and that lends the memory of
    /// an encoder.
    pub(crate) cache: Option<Arc<Cache>>,
    /// Whether leaves and values are inserted into free memory of that cache as they are written.
    pub(crate) fill: bool,
    /// Counts the bytes written.
    pub(crate) written_bytes: Arc<AtomicU64>,
}

impl TableSpec {
    /// Returns parameters for writing a table in the background, with some 1 MiB of buffers.
    pub(crate) fn new(id: u32, keyspace: u32) -> TableSpec {
        TableSpec {
            id,
            keyspace,
            leaf_bytes: UNIT as u32,
            compression: Compression::None,
            links: false,
            separation_bytes: u32::MAX,
            packed_value_max: VALUE_BYTES_MAX,
            class: Class::BACKGROUND,
            shard: None,
            buffer_bytes: 256 << 10,
            depth: 3,
            cache: None,
            fill: false,
            written_bytes: Arc::default(),
        }
    }
}

/// The manifest's description of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableMeta {
    pub(crate) id: u32,
    /// The number that its nodes have: `id`, or a sorted file's own.
    pub(crate) number: u32,
    pub(crate) keyspace: u32,
    /// The file's length.
    pub(crate) bytes: u64,
    /// All entries, tombstones included; at least 1.
    pub(crate) entries: u64,
    /// Number of tombstones.
    pub(crate) deleted: u64,
    /// Number of values that expire.
    pub(crate) expiring: u64,
    /// The times of the first and the last expiry, in seconds since 1970; 0 if no value expires.
    pub(crate) expires_s: (u64, u64),
    pub(crate) smallest: Box<[u8]>,
    pub(crate) largest: Box<[u8]>,
    /// The files that have its long values, its own included, and the bytes of these values there, by number.
    pub(crate) values: Box<[(u32, u64)]>,
}

impl TableMeta {
    /// Returns the file's length without its separated values.
    pub(crate) fn key_bytes(&self) -> u64 {
        let own = self.values.iter().find(|(file, _)| *file == self.id);
        self.bytes.saturating_sub(own.map_or(0, |(_, bytes)| *bytes))
    }
}

/// The entry found for a key. A value that has expired counts as deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hit {
    Value(Value),
    /// A value that must still be read; memory for it must be claimed first.
    Blob(Blob),
    Deleted,
}

/// The result of [`Table::get_cached`], which searches only in memory.
#[derive(Debug)]
pub(crate) enum Probe {
    Done(Option<Hit>),
    /// Something must be read first; the lookup has its range and continues from there.
    NeedsRead(Lookup),
}

/// Parameters of a lookup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GetHow {
    /// The current time in seconds since 1970: values that expire by then count as deleted.
    pub(crate) now_s: u64,
    pub(crate) filter: FilterUse,
    /// Whether blocks that were read are inserted into the cache.
    pub(crate) fill: bool,
}

/// When a lookup checks a table's filter before its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilterUse {
    /// Even if its partition must be read first: for tables that seldom have the key.
    Read,
    /// Only if its partition is in memory.
    InMemory,
}

/// A table that can be read. Its file stays as long as any reader holds it. Long values may lie in the files of tables
/// that were compacted.
pub(crate) struct Table {
    meta: TableMeta,
    own: Arc<TableFile>,
    /// The other files that have values of this table, by number.
    far: Box<[Arc<TableFile>]>,
    pinned: PinnedParts,
    /// The pin for the memory of the table's metadata.
    _known: Pin,
}

/// The table's own file.
impl Deref for Table {
    type Target = TableFile;

    fn deref(&self) -> &TableFile {
        &self.own
    }
}

impl Table {
    pub(crate) fn meta(&self) -> &TableMeta {
        &self.meta
    }

    /// Returns the length of a leaf of this table in bytes.
    pub(crate) fn leaf_bytes(&self) -> u32 {
        self.footer.leaf_bytes
    }

    /// Returns the codec of a table with compression.
    pub(crate) fn codec(&self) -> Option<Codec> {
        self.footer.packing.as_ref().map(|packing| packing.codec)
    }

    /// Returns the maximum bytes of memory of an unpacked leaf of this table; 0 if no leaf is packed.
    pub(crate) fn unpacked_leaf_bytes(&self) -> u64 {
        match &self.footer.packing {
            Some(packing) => u64::from(packing.leaf_bytes_max).next_power_of_two(),
            None => 0,
        }
    }

    /// Returns whether the table was written outside of a store.
    pub(crate) fn is_sorted_file(&self) -> bool {
        self.footer.sorted.is_some()
    }

    /// Returns the bytes that compression saved in this table's file.
    pub(crate) fn saved_bytes(&self) -> u64 {
        self.footer.packing.as_ref().map_or(0, |packing| packing.saved_bytes)
    }

    /// Returns the bytes pinned for this table, its metadata included.
    #[cfg(test)]
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.pinned.bytes() + self._known.bytes()
    }

    /// Returns whether the key can be in the table, by its smallest and largest key.
    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        *self.meta.smallest <= *key && key <= &*self.meta.largest
    }

    /// Returns the table's own file.
    pub(crate) fn own_file(&self) -> &Arc<TableFile> {
        &self.own
    }

    /// Returns the other files that have values of this table, by number.
    pub(crate) fn far_files(&self) -> &[Arc<TableFile>] {
        &self.far
    }

    /// Returns the file of a blob, in which it can lie.
    fn file_of(&self, blob: BlobAt) -> Result<&Arc<TableFile>, Wrong> {
        let file = if blob.is_far() {
            let found = self.far.binary_search_by_key(&blob.file, |file| file.id());
            let file = found.ok().and_then(|index| self.far.get(index));
            file.ok_or("a value is in a file that the manifest does not name for this table")?
        } else {
            &self.own
        };
        file.check_blob_place(blob)?;
        Ok(file)
    }

    /// Returns the identity that the node at `child` must have.
    fn identity(&self, child: Child, level: u8) -> Identity {
        Identity { table: self.footer.table, position: child.position, level }
    }

    /// Returns the range of a level's nodes, in units.
    fn area(&self, level: u8) -> Option<std::ops::Range<u64>> {
        let footer = &self.footer;
        match level {
            LEAF => Some(1..footer.leaf_end.into()),
            FILTER => {
                let first = u64::from(footer.filter_first);
                Some(first..first + u64::from(footer.filter_partitions))
            }
            level if u32::from(level) <= footer.levels => footer.level(level),
            _ => None,
        }
    }

    /// Checks whether a node of this level can be at this place.
    fn check_place(&self, child: Child, level: u8) -> Result<(), &'static str> {
        let fits = self
            .area(level)
            .is_some_and(|area| area.start <= child.position.into() && child.end() <= area.end);
        if fits { Ok(()) } else { Err("a child's place is outside of its level's part of the table") }
    }
}

forebay::_debug_parts!(Table, |table| path: table.path(), meta: table.meta);

/// Returns an error for a key of a length that is not allowed.
fn check_key(key: &[u8]) -> Result<()> {
    match key.len() {
        0 => Err(Error::new(ErrorKind::InvalidInput, "the empty key cannot be used")),
        1..=crate::node::KEY_BYTES_MAX => Ok(()),
        len => {
            let limit = crate::node::KEY_BYTES_MAX;
            let text = format!("a key of {len} bytes; keys may have {limit} at most");
            Err(Error::new(ErrorKind::TooLarge { limit }, text))
        }
    }
}
